//! `abhyasa init`.

use super::output;
use crate::config::{ApiConfig, HostPort, QuicConfig};
use crate::init::{InitOptions, init};
use proto::id::AgentId;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What to set up.
#[derive(Debug, clap::Args)]
pub(super) struct InitArgs {
    /// Directory to write to; made if it is not there.
    dir: PathBuf,
    /// Id of the node, a spiffe:// URI or a DNS name; by default made from the directory's name.
    #[arg(long)]
    id: Option<String>,
    /// Directory with the ca.pem and ca.key that sign its certificate; by default a new development
    /// CA in DIR/ca.
    #[arg(long, value_name = "DIR")]
    ca: Option<PathBuf>,
    /// UDP address for peers.
    #[arg(long, value_name = "ADDRESS", default_value_t = QuicConfig::default().listen)]
    listen: SocketAddr,
    /// TCP address of the API. Beyond loopback it asks for the token in DIR/api.token.
    #[arg(long, value_name = "ADDRESS", default_value_t = ApiConfig::default().listen)]
    api_listen: SocketAddr,
    /// A peer and where to dial it, with all kinds allowed both ways. May be repeated.
    #[arg(long = "peer", value_name = "ID=HOST:PORT", value_parser = peer)]
    peers: Vec<(AgentId, HostPort)>,
    /// Replace files of the node that are there. A CA is never replaced.
    #[arg(long)]
    force: bool,
}

fn peer(text: &str) -> Result<(AgentId, HostPort), String> {
    let (id, address) = text.rsplit_once('=').ok_or("not ID=HOST:PORT")?;
    let id = AgentId::new(id).map_err(|error| error.to_string())?;
    Ok((id, address.parse().map_err(|error: crate::config::AddressError| error.to_string())?))
}

pub(super) fn run(args: &InitArgs, json: bool) -> anyhow::Result<()> {
    let options = InitOptions {
        id: args.id.clone(),
        ca: args.ca.clone(),
        quic_listen: args.listen,
        api_listen: args.api_listen,
        peers: args.peers.clone(),
        force: args.force,
    };
    let report = init(&args.dir, &options)?;
    if json {
        output::line(&serde_json::to_string(&report)?);
        return Ok(());
    }
    output::line(&format!("{} is set up:", report.id));
    for file in &report.files {
        output::line(&format!("  {}", file.display()));
    }
    output::line(&format!("start it:    abhyasa node --config {}", report.config.display()));
    output::line(&format!(
        "add another: abhyasa init DIR --ca {} --peer {}=HOST:PORT",
        report.ca.display(),
        report.id
    ));
    Ok(())
}
