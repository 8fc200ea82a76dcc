//! `abhyasa mcp proxy`.

use super::run::Signals;
use super::{Global, output};
use crate::bridge::{Far, Over, listen, proxy};
use crate::config::NodeConfig;
use proto::id::AgentId;
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// Where calls go.
#[derive(Debug, clap::Args)]
pub(super) struct ProxyArgs {
    /// The node before the server: a peer with an address in the configuration.
    #[arg(long, value_name = "ID")]
    peer: AgentId,
    /// Name of the server there.
    #[arg(long, value_name = "NAME")]
    server: String,
    /// What the calls go over.
    #[arg(long, value_enum, default_value_t, value_name = "WAY")]
    over: Over,
    /// Listen here for Streamable HTTP, at /mcp, in place of standard input: a loopback address.
    #[arg(long, value_name = "ADDRESS", value_parser = loopback)]
    listen: Option<SocketAddr>,
}

/// There is no login, so it is for this machine only.
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| "not an address and a port".to_owned())?;
    if address.ip().is_loopback() { Ok(address) } else { Err("not a loopback address".to_owned()) }
}

/// Runs until its client ends, or for one that listens until a signal.
pub(super) async fn run(global: &Global, args: ProxyArgs) -> anyhow::Result<()> {
    let ProxyArgs { peer, server, over, listen } = args;
    let config = NodeConfig::load(&global.config_file())?;
    super::run::log_to_stderr(&config.log)?;
    let far = Far::new(&config, peer, server, over)?;
    let Some(address) = listen else {
        proxy::lines(far, tokio::io::stdin(), tokio::io::stdout()).await?;
        return Ok(());
    };
    let listener = TcpListener::bind(address).await?;
    output::line(&format!("MCP at http://{}/mcp", listener.local_addr()?));
    let mut signals = Signals::new()?;
    listen::serve(far, listener, async move { signals.next().await }).await?;
    Ok(())
}
