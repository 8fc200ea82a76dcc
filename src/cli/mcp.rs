//! `abhyasa mcp`.

use super::Global;
use crate::bridge::{Far, proxy};
use crate::config::NodeConfig;
use proto::id::AgentId;

/// Model Context Protocol.
#[derive(Debug, clap::Subcommand)]
pub(super) enum McpCommand {
    /// Be an MCP server whose calls go to one behind another node, over QUIC: on standard input and
    /// output, as MCP clients start it.
    Proxy(ProxyArgs),
}

/// Where calls go.
#[derive(Debug, clap::Args)]
pub(super) struct ProxyArgs {
    /// The node before the server: a peer with an address in the configuration.
    #[arg(long, value_name = "ID")]
    peer: AgentId,
    /// Name of the server there.
    #[arg(long, value_name = "NAME")]
    server: String,
}

pub(super) async fn run(global: &Global, command: McpCommand) -> anyhow::Result<()> {
    match command {
        McpCommand::Proxy(ProxyArgs { peer, server }) => {
            let config = NodeConfig::load(&global.config_file())?;
            super::run::log_to_stderr(&config.log)?;
            let far = Far::new(&config, peer, server)?;
            proxy::lines(far, tokio::io::stdin(), tokio::io::stdout()).await?;
            Ok(())
        }
    }
}
