//! From issue to applied: two nodes in this process, with stores on disk and mTLS between them.
//!
//! For figures of nodes in processes of their own, beside best effort and an fsync control, use
//! `abhyasa bench`.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

use abhyasa::config::NodeConfig;
use abhyasa::init::{InitOptions, init};
use abhyasa::node::{Builder, Node, NodeHandle};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use proto::custodian::Draft;
use proto::event::Event;
use proto::id::{AgentId, Kind, ObligationId};
use proto::payload::Payload;
use proto::record::Terminal;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Obligations of one call, as an agent that batches would issue them.
const CALL_MAX: usize = 64;
const PATIENCE: Duration = Duration::from_secs(30);

fn agent(name: &str) -> AgentId {
    AgentId::new(&format!("spiffe://bench.local/{name}")).unwrap()
}

/// Configures `name` with one peer. `address` is where to dial it, if it is to be dialled.
fn config(dir: &Path, name: &str, peer: &str, address: Option<SocketAddr>) -> NodeConfig {
    let options = InitOptions {
        id: Some(agent(name).to_string()),
        ca: dir.join("receiver/ca").exists().then(|| dir.join("receiver/ca")),
        quic_listen: "127.0.0.1:0".parse().unwrap(),
        peers: vec![(
            agent(peer),
            address.map_or_else(|| "127.0.0.1:1".to_owned(), |at| at.to_string()).parse().unwrap(),
        )],
        ..InitOptions::default()
    };
    let mut config = NodeConfig::load(&init(&dir.join(name), &options).unwrap().config).unwrap();
    for peer in config.peers.iter_mut().filter(|_| address.is_none()) {
        peer.address = None;
    }
    config
}

struct World {
    custodian: Node,
    receiver: Node,
    payload: Payload,
    next: u64,
}

impl World {
    async fn new(dir: &Path) -> Self {
        let receiver =
            Builder::new(config(dir, "receiver", "custodian", None)).start().await.unwrap();
        let address = receiver.handle().quic_address();
        let custodian = Builder::new(config(dir, "custodian", "receiver", Some(address)))
            .start()
            .await
            .unwrap();
        let node = custodian.handle();
        let begun = Instant::now();
        while !node.peers().iter().any(|peer| peer.connected) || node.readiness().is_err() {
            assert!(begun.elapsed() < PATIENCE, "the nodes do not connect");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let payload = serde_json::json!({ "weight_delta": -0.000_001, "weight_key": "routing.bench", "note": "x".repeat(190) });
        Self {
            custodian,
            receiver,
            payload: Payload::from_json(payload.as_object().unwrap()).unwrap(),
            next: 0,
        }
    }

    fn drafts(&mut self, count: usize) -> Vec<Draft> {
        let from = self.next;
        self.next += count as u64;
        let draft = |number| Draft {
            id: ObligationId::new(&format!("bench-{number:012x}")).unwrap(),
            kind: Kind::new("phala.belief_update").unwrap(),
            target: agent("receiver"),
            payload: self.payload.clone(),
            deadline_seconds: None,
            max_retries: None,
            sequence: None,
        };
        (from..self.next).map(draft).collect()
    }

    /// Issues `count` obligations at once and waits until each is applied and that is on disk.
    async fn round(&mut self, count: usize) -> Duration {
        let node = self.custodian.handle();
        let calls: Vec<Vec<Draft>> =
            (0..count.div_ceil(CALL_MAX)).map(|_| self.drafts(CALL_MAX.min(count))).collect();
        let mut left: usize = calls.iter().map(Vec::len).sum();
        let mut events = node.events();
        let begun = Instant::now();
        for drafts in calls {
            tokio::spawn(issue(node.clone(), drafts));
        }
        while left > 0 {
            let event = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap();
            if let Event::Terminal { outcome, .. } = &*event {
                assert_eq!(*outcome, Terminal::Applied);
                left -= 1;
            }
        }
        begun.elapsed()
    }
}

async fn issue(node: NodeHandle, drafts: Vec<Draft>) {
    for result in node.issue(drafts).await.unwrap() {
        result.unwrap();
    }
}

fn applied(c: &mut Criterion) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut world = runtime.block_on(World::new(dir.path()));
    let mut group = c.benchmark_group("issue_to_applied");
    group.sample_size(20);
    for in_flight in [1usize, 64, 2048] {
        group.throughput(Throughput::Elements(in_flight as u64));
        group.bench_function(BenchmarkId::new("in_flight", in_flight), |b| {
            b.iter_custom(|rounds| {
                runtime.block_on(async {
                    let mut took = Duration::ZERO;
                    for _ in 0..rounds {
                        took += world.round(in_flight).await;
                    }
                    took
                })
            });
        });
    }
    group.finish();
    runtime.block_on(async {
        world.custodian.stop().await.unwrap();
        world.receiver.stop().await.unwrap();
    });
}

criterion_group!(benches, applied);
criterion_main!(benches);
