//! The two nodes that are measured.

use super::seam::{Disk, Wire};
use abhyasa::config::{HostPort, NodeConfig};
use abhyasa::init::{InitOptions, init};
use abhyasa::loopback::free_address;
use abhyasa::node::{Builder, Node, NodeHandle};
use abhyasa::store::{FjallStore, StoreOptions};
use anyhow::{Context as _, ensure};
use proto::id::AgentId;
use quinn::Runtime as _;
use std::net::UdpSocket;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long the nodes may take to connect.
const CONNECTED_WITHIN: Duration = Duration::from_secs(20);

/// One node with its seams.
pub(super) struct Measured {
    pub(super) handle: NodeHandle,
    pub(super) disk: Arc<Disk>,
    pub(super) wire: Arc<Wire>,
}

/// Both nodes.
pub(super) struct Nodes {
    pub(super) custodian: Measured,
    pub(super) receiver: Measured,
    pub(super) target: AgentId,
}

/// Keeps them running.
pub(super) struct Running([Node; 2]);

impl Running {
    pub(super) fn stop(self, ours: &Runtime, theirs: &Runtime) -> anyhow::Result<()> {
        let Self([custodian, receiver]) = self;
        ours.block_on(custodian.stop())?;
        theirs.block_on(receiver.stop())?;
        Ok(())
    }
}

impl Nodes {
    /// Starts both in `dir`, each on its runtime, and waits until they are connected.
    pub(super) fn start(
        dir: &Path,
        ours: &Runtime,
        theirs: &Runtime,
    ) -> anyhow::Result<(Self, Running)> {
        let target = AgentId::new("spiffe://price.local/receiver")?;
        let source = AgentId::new("spiffe://price.local/custodian")?;
        let (here, there) = (free_address()?, free_address()?);
        let options = |id: &AgentId, at, ca, peer: &AgentId, to| {
            let address: HostPort = std::net::SocketAddr::to_string(&to).parse()?;
            anyhow::Ok(InitOptions {
                id: Some(id.to_string()),
                ca,
                quic_listen: at,
                api_listen: at,
                peers: vec![(peer.clone(), address)],
                force: false,
            })
        };
        let own = options(&source, here, None, &target, there)?;
        let custodian = init(&dir.join("custodian"), &own)?;
        let own = options(&target, there, Some(custodian.ca), &source, here)?;
        let receiver = init(&dir.join("receiver"), &own)?;
        let custodian = NodeConfig::load(&custodian.config)?;
        let mut receiver = NodeConfig::load(&receiver.config)?;
        // It only accepts: one connection, as between a custodian and an edge node.
        receiver.peers.iter_mut().for_each(|peer| peer.address = None);
        let (receiver, there) = theirs.block_on(start(receiver))?;
        let (custodian, here) = ours.block_on(start(custodian))?;
        let nodes = Self { custodian: here, receiver: there, target };
        ours.block_on(nodes.connected())?;
        Ok((nodes, Running([custodian, receiver])))
    }

    async fn connected(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let up = |node: &NodeHandle| {
            node.readiness().is_ok() && node.peers().iter().any(|peer| peer.connected)
        };
        while !up(&self.custodian.handle) || !up(&self.receiver.handle) {
            ensure!(begun.elapsed() < CONNECTED_WITHIN, "the two nodes did not connect");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

async fn start(config: NodeConfig) -> anyhow::Result<(Node, Measured)> {
    let store = FjallStore::open(&config.data_dir, &config.id, &StoreOptions::default())?;
    let disk = Arc::new(Disk::new(store));
    let socket = UdpSocket::bind(config.quic.listen).context("the UDP socket")?;
    let runtime = quinn::TokioRuntime;
    let wire = Arc::new(Wire::new(runtime.wrap_udp_socket(socket)?));
    let node = Builder::new(config)
        .storage(disk.clone())
        .network(wire.clone(), Arc::new(runtime))
        .start()
        .await?;
    let handle = node.handle();
    Ok((node, Measured { handle, disk, wire }))
}
