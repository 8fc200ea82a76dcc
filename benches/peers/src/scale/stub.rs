//! Peers without a store: real identities on real QUIC connections that speak the frames of the
//! native binding, and call everything they are offered applied. A thousand nodes with a disk each
//! would measure that disk.

use abhyasa::config::QuicConfig;
use abhyasa::init::ca::{DevCa, NODE_DAYS, valid_days};
use abhyasa::proto::ack::{AckRun, AckStatus, RefRange};
use abhyasa::proto::frame::{Frame, HelloLimits, VERSION};
use abhyasa::proto::id::AgentId;
use abhyasa::proto::limits::{DATAGRAM_LEN_MAX, FRAME_LEN_MAX};
use abhyasa::proto::time::Time;
use abhyasa::tls::{ALPN, SERVER_NAME, TlsIdentity, transport};
use anyhow::Context as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;

/// Offers a stub takes before it has answered.
const IN_FLIGHT_MAX: u64 = 8_192;
/// Handshakes at once: fewer than the node asks for a proof of address at.
const DIALS_MAX: usize = 32;

/// Which stubs to be.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the CA that the node trusts.
    #[arg(long)]
    ca: PathBuf,
    /// Dial the node here, as so many peers.
    #[arg(long, requires = "count")]
    dial: Option<SocketAddr>,
    #[arg(long)]
    count: Option<usize>,
    /// The node's id.
    #[arg(long)]
    node: String,
    /// Or listen here as this one peer, and answer nothing.
    #[arg(long, requires = "id", conflicts_with = "dial")]
    listen: Option<SocketAddr>,
    #[arg(long)]
    id: Option<String>,
    /// Where to write the unix time in microseconds of the first offer that comes.
    #[arg(long)]
    first_offer: Option<PathBuf>,
}

/// The id of one of many peers.
pub(super) fn name(number: usize) -> anyhow::Result<AgentId> {
    Ok(AgentId::new(&format!("spiffe://bench.local/peer/{number:05}"))?)
}

/// Microseconds since 1970: what two processes of a machine agree on.
pub(super) fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Runs until it is killed.
pub(crate) fn main(args: &Args) -> anyhow::Result<()> {
    // One thread: it has one core.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match (args.dial, args.listen) {
            (Some(node), _) => dial(args, node).await,
            (None, Some(address)) => listen(args, address).await,
            (None, None) => anyhow::bail!("--dial or --listen"),
        }
    })
}

fn identity(ca: &DevCa, id: &AgentId) -> anyhow::Result<TlsIdentity> {
    let issued = ca.issue(id, valid_days(NODE_DAYS))?;
    Ok(TlsIdentity::from_der(vec![issued.cert], issued.key, vec![ca.cert().clone()])?)
}

fn ca(dir: &Path) -> anyhow::Result<DevCa> {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).context(name.to_owned());
    Ok(DevCa::from_pem(&read("ca.pem")?, &read("ca.key")?)?)
}

/// All peers on one socket, each with its own identity and connection.
async fn dial(args: &Args, node: SocketAddr) -> anyhow::Result<()> {
    let (ca, expected) = (ca(&args.ca)?, AgentId::new(&args.node)?);
    let endpoint = quinn::Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())?;
    let transport = Arc::new(transport(&QuicConfig::default())?);
    let dials = Arc::new(tokio::sync::Semaphore::new(DIALS_MAX));
    let mut peers = JoinSet::new();
    for number in 0..args.count.unwrap_or(1) {
        let me = name(number)?;
        let config = identity(&ca, &me)?.client(&[ALPN], &expected, transport.clone())?;
        let (endpoint, dials) = (endpoint.clone(), dials.clone());
        peers.spawn(async move {
            let turn = dials.acquire_owned().await?;
            let connection = endpoint.connect_with(config, node, SERVER_NAME)?.await?;
            drop(turn);
            serve(connection, me, |_| true).await
        });
    }
    while let Some(ended) = peers.join_next().await {
        ended??;
    }
    anyhow::bail!("every connection has ended")
}

async fn listen(args: &Args, address: SocketAddr) -> anyhow::Result<()> {
    let me = AgentId::new(args.id.as_deref().context("--id")?)?;
    let identity = identity(&ca(&args.ca)?, &me)?;
    let transport = Arc::new(transport(&QuicConfig::default())?);
    let server = identity.server(&[ALPN], transport)?;
    let endpoint = quinn::Endpoint::server(server, address)?;
    let mut sessions = JoinSet::new();
    while let Some(incoming) = endpoint.accept().await {
        let (me, file) = (me.clone(), args.first_offer.clone());
        sessions.spawn(async move {
            let connection = incoming.await?;
            serve(connection, me, move |at| {
                if let Some(file) = file.as_ref().filter(|file| !file.exists()) {
                    // Whole or not at all: someone waits for it.
                    let part = file.with_extension("part");
                    let written = std::fs::write(&part, at.to_string());
                    let _ = written.and_then(|()| std::fs::rename(&part, file));
                }
                false
            })
            .await
        });
    }
    anyhow::bail!("the endpoint has ended")
}

/// One session. `offered` is told when offers came, and says whether they are to be answered.
async fn serve(
    connection: quinn::Connection,
    me: AgentId,
    offered: impl Fn(u64) -> bool,
) -> anyhow::Result<()> {
    let hello = Frame::Hello {
        version: VERSION,
        agent: me,
        limits: HelloLimits {
            frame_len_max: FRAME_LEN_MAX as u64,
            in_flight_max: IN_FLIGHT_MAX,
            datagram_len_max: DATAGRAM_LEN_MAX as u64,
        },
        features: Vec::new(),
    };
    send(&connection, &hello).await?;
    loop {
        let mut stream = connection.accept_uni().await?;
        let bytes = stream.read_to_end(FRAME_LEN_MAX).await?;
        match Frame::decode(bytes.into())? {
            Frame::Offers { first_ref, items } if offered(unix_us()) => {
                send(&connection, &applied(first_ref, items.len())).await?;
            }
            Frame::Probe { nonce, .. } => {
                let at = Time::from_ms(unix_us() / 1_000);
                send(&connection, &Frame::ProbeReply { nonce, at }).await?;
            }
            _ => {}
        }
    }
}

fn applied(first_ref: u64, count: usize) -> Frame {
    Frame::AckRuns(vec![AckRun {
        status: AckStatus::Applied,
        acked_at: Time::from_ms(unix_us() / 1_000),
        reason: None,
        refs: vec![RefRange { first: first_ref, count: count as u64 }],
    }])
}

async fn send(connection: &quinn::Connection, frame: &Frame) -> anyhow::Result<()> {
    let mut stream = connection.open_uni().await?;
    stream.write_chunk(frame.encode()).await?;
    stream.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_answered_by_their_references() {
        let frame = Frame::decode(applied(7, 3).encode()).unwrap();
        let Frame::AckRuns(runs) = frame else { panic!("{frame:?}") };
        let refs: Vec<u64> =
            runs.iter().flat_map(|run| run.refs.iter().flat_map(|r| r.iter())).collect();
        assert_eq!(refs, [7, 8, 9]);
        assert_eq!(runs[0].status, AckStatus::Applied);
    }
}
