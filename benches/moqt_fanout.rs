//! One decision to many targets by a MOQT relay of others, beside as many offers to each alone.
//!
//! Custodian and targets are whole nodes in this process, each with its own identity, UDP port and session with
//! the relay, which is a process of its own. The targets' stores are in memory, or one disk would be measured a
//! thousand times; the custodian's is on disk.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing
)]

use abhyasa::config::{Binding, GroupConfig, NodeConfig, PeerConfig, RelayConfig};
use abhyasa::demo::relay::RelayProcess;
use abhyasa::init::ca::{DevCa, valid_days};
use abhyasa::init::{InitOptions, init};
use abhyasa::node::{Builder, Node, NodeHandle};
use abhyasa::store::{Storage, StoreError};
use abhyasa::tls::TlsIdentity;
use bytes::Bytes;
use clap::Parser as _;
use proto::backoff::Backoff;
use proto::custodian::Draft;
use proto::fanout::GroupId;
use proto::id::{AgentId, Kind, ObligationId};
use proto::payload::Payload;
use proto::profile::Profile;
use proto::record::Terminal;
use proto::store::{Read, ReadError, Table, Write};
use proto::track::GroupName;
use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const GROUP: &str = "everybody";
/// Nodes started side by side.
const STARTING: usize = 16;

#[derive(Debug, clap::Parser)]
struct Args {
    /// Program of the relay: moq-relay-ietf, moq-relay or moq-interop-relay.
    #[arg(long)]
    relay_program: PathBuf,
    #[arg(long, default_value_t = 1_000)]
    targets: usize,
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// All targets share two cores with the relay: what is slow for that is not to be offered again.
    #[arg(long, default_value_t = 10_000)]
    first_retry_ms: u64,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Ordered tables that nothing outlives.
#[derive(Debug, Default)]
struct Memory(Mutex<BTreeMap<Table, BTreeMap<Bytes, Bytes>>>);

impl Read for Memory {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.0.lock().unwrap().get(&table).and_then(|table| table.get(key)).cloned())
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let tables = self.0.lock().unwrap();
        let from = Bytes::copy_from_slice(from);
        let members = tables.get(&table).into_iter().flat_map(|table| table.range(from.clone()..));
        Ok(members.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        let tables = self.0.lock().unwrap();
        let last = tables.get(&table).and_then(BTreeMap::last_key_value);
        Ok(last.map(|(key, value)| (key.clone(), value.clone())))
    }
}

impl Storage for Memory {
    fn commit(&self, writes: &[Write], _sync: bool) -> Result<(), StoreError> {
        let mut tables = self.0.lock().unwrap();
        for Write { table, key, value } in writes {
            let table = tables.entry(*table).or_default();
            match value {
                Some(value) => table.insert(key.clone(), value.clone()),
                None => table.remove(key),
            };
        }
        Ok(())
    }
}

/// A UDP socket that counts what goes out.
#[derive(Debug)]
struct Counting {
    socket: Arc<dyn quinn::AsyncUdpSocket>,
    sent: Arc<AtomicU64>,
}

impl quinn::AsyncUdpSocket for Counting {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn quinn::UdpPoller>> {
        self.socket.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &quinn::udp::Transmit<'_>) -> std::io::Result<()> {
        self.socket.try_send(transmit)?;
        self.sent.fetch_add(transmit.contents.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [quinn::udp::RecvMeta],
    ) -> Poll<std::io::Result<usize>> {
        self.socket.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

fn agent(name: &str) -> AgentId {
    AgentId::new(&format!("spiffe://bench.local/{name}")).unwrap()
}

fn identity(ca: &DevCa, id: &AgentId) -> TlsIdentity {
    let issued = ca.issue(id, valid_days(1)).unwrap();
    TlsIdentity::from_der(vec![issued.cert], issued.key, vec![ca.cert().clone()]).unwrap()
}

struct World {
    custodian: Node,
    targets: Vec<Node>,
    ids: Vec<AgentId>,
    sent: Arc<AtomicU64>,
}

impl World {
    async fn new(args: &Args, dir: &std::path::Path, relay: &RelayProcess) -> Self {
        let ca = DevCa::generate().unwrap();
        let peer = (agent("target"), "127.0.0.1:1".parse().unwrap());
        let options = InitOptions {
            id: Some(agent("custodian").to_string()),
            quic_listen: "127.0.0.1:0".parse().unwrap(),
            peers: vec![peer],
            ..InitOptions::default()
        };
        let file = init(&dir.join("custodian"), &options).unwrap().config;
        let mut base = NodeConfig::load(&file).unwrap();
        base.relays = vec![RelayConfig {
            name: "r".to_owned(),
            url: relay.url("/bench").parse().unwrap(),
            ca: relay.ca().to_owned(),
            may_watch: false,
        }];
        let backoff =
            Backoff { base_ms: args.first_retry_ms, cap_ms: 60_000, jitter_permille: 200 };
        for kind in base.kinds.values_mut() {
            kind.profile = Profile::new(3_600_000, 100, backoff).unwrap();
        }
        let peer = PeerConfig {
            address: None,
            binding: Binding::Relay("r".to_owned()),
            ..base.peers.remove(0)
        };
        let ids: Vec<AgentId> = (0..args.targets).map(|n| agent(&format!("target/{n}"))).collect();
        let group = GroupName::new(GROUP).unwrap();
        let of_custodian = PeerConfig {
            id: agent("custodian"),
            principal: agent("custodian"),
            groups: [group.clone()].into(),
            ..peer.clone()
        };
        let mut targets = Vec::new();
        for ids in ids.chunks(STARTING) {
            let starting = ids.iter().map(|id| {
                let config = NodeConfig {
                    id: id.clone(),
                    peers: vec![of_custodian.clone()],
                    ..base.clone()
                };
                let builder = Builder::new(config).identity(identity(&ca, id));
                builder.storage(Arc::new(Memory::default())).driver_thread(false).start()
            });
            for started in futures_util::future::join_all(starting).await {
                targets.push(started.unwrap());
            }
        }
        let of_target =
            |id: &AgentId| PeerConfig { id: id.clone(), principal: id.clone(), ..peer.clone() };
        let config = NodeConfig {
            peers: ids.iter().map(of_target).collect(),
            groups: vec![GroupConfig { name: group, members: ids.iter().cloned().collect() }],
            ..base
        };
        let sent = Arc::new(AtomicU64::new(0));
        let runtime: Arc<dyn quinn::Runtime> = Arc::new(quinn::TokioRuntime);
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = runtime.wrap_udp_socket(udp).unwrap();
        let socket = Arc::new(Counting { socket, sent: sent.clone() });
        let id = agent("custodian");
        let builder = Builder::new(config).identity(identity(&ca, &id)).network(socket, runtime);
        let custodian = builder.start().await.unwrap();
        let world = Self { custodian, targets, ids, sent };
        let begun = Instant::now();
        let connected =
            |node: &NodeHandle| node.peers().iter().filter(|peer| peer.connected).count();
        while connected(&world.custodian.handle()) < args.targets {
            assert!(
                begun.elapsed() < PATIENCE,
                "{} of {} are there",
                connected(&world.custodian.handle()),
                args.targets
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        eprintln!(
            "{} targets are there after {:.1} s",
            args.targets,
            begun.elapsed().as_secs_f64()
        );
        world
    }

    fn published(&self, what: &str) -> u64 {
        let text = self.custodian.handle().metrics().encode();
        let lines = text.lines().filter_map(|line| line.strip_prefix(what)?.split_once("} "));
        lines.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
    }

    /// Issues one decision to all and waits until each has applied it. Whether by the group is up to `grouped`.
    async fn round(&self, name: &str, grouped: bool) -> (Duration, u64, u64, u64) {
        const OFFERED: [&str; 2] = [
            "abhyasa_moqt_published_bytes_total{outcome=\"offers\"",
            "abhyasa_moqt_published_bytes_total{outcome=\"group_offer\"",
        ];
        let node = self.custodian.handle();
        let payload = serde_json::json!({ "decision": "revoke", "scope": name });
        let payload = Payload::from_json(payload.as_object().unwrap()).unwrap();
        let gid = GroupId::new(name).unwrap();
        let id = |target: &AgentId| match grouped {
            true => gid.member(target),
            false => ObligationId::new(&format!("{name}-{target}")).unwrap(),
        };
        let drafts: Vec<Draft> = self
            .ids
            .iter()
            .map(|target| Draft {
                id: id(target),
                kind: Kind::new("anumati.consent").unwrap(),
                target: target.clone(),
                payload: payload.clone(),
                deadline_seconds: None,
                max_retries: None,
                sequence: None,
            })
            .collect();
        let offered = || OFFERED.iter().map(|what| self.published(what)).sum::<u64>();
        let objects =
            || self.published("abhyasa_moqt_objects_published_total{outcome=\"group_offer\"");
        let before = (offered(), self.sent.load(Ordering::Relaxed), objects());
        let begun = Instant::now();
        let results = if grouped {
            node.issue_to_group(&gid, &GroupName::new(GROUP).unwrap(), drafts).await
        } else {
            node.issue(drafts).await
        };
        assert!(
            results
                .unwrap()
                .iter()
                .all(|result| result.as_ref().is_ok_and(|issued| issued.custody))
        );
        for target in &self.ids {
            let outcome = loop {
                if let Some(outcome) = node.outcome(&id(target)).unwrap() {
                    break outcome;
                }
                assert!(begun.elapsed() < PATIENCE, "{} are pending", node.pending());
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            assert_eq!(outcome.terminal, Terminal::Applied, "{target}");
        }
        let took = begun.elapsed();
        let sent = self.sent.load(Ordering::Relaxed) - before.1;
        (took, offered() - before.0, sent, objects() - before.2)
    }
}

fn main() {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let dir = std::env::temp_dir().join(format!("abhyasa-fanout-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let relay = RelayProcess::start(&args.relay_program, &dir.join("relay"), &DevCa::generate().unwrap()).unwrap();
        let world = World::new(&args, &dir, &relay).await;
        // Until the relay has asked for the group's track each gets it alone.
        for n in 0.. {
            let (_, _, _, objects) = world.round(&format!("warm-{n}"), true).await;
            if objects > 0 {
                break;
            }
            assert!(n < 20, "the relay never asks for the group's track");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        println!("{:>8} {:>10} {:>14} {:>14} {:>8}", "", "all acked", "bytes offered", "bytes sent", "objects");
        let mut totals = [(0u64, 0u64); 2];
        for n in 0..args.rounds {
            for (at, (how, grouped)) in [("group", true), ("alone", false)].into_iter().enumerate() {
                let (took, offered, sent, objects) = world.round(&format!("{how}-{n}"), grouped).await;
                println!("{how:>8} {:>8.0}ms {offered:>14} {sent:>14} {objects:>8}", took.as_secs_f64() * 1e3);
                totals[at].0 += offered;
                totals[at].1 += sent;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
        let [group, alone] = totals;
        println!("offered, group over alone: 1/{:.0}; sent in all, acks of what comes back included: 1/{:.1}", alone.0 as f64 / group.0 as f64, alone.1 as f64 / group.1 as f64);
        world.custodian.stop().await.unwrap();
        for target in world.targets {
            target.stop().await.unwrap();
        }
        drop(relay);
        let _ = std::fs::remove_dir_all(&dir);
    });
}
