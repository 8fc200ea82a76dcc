//! What the node tests share: nodes in this process on temporary directories, and peers made of
//! bare quinn that may misbehave.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod peers;
pub mod raw;
pub mod relay;
pub mod web;

use abhyasa::config::{HostPort, NodeConfig};
use abhyasa::demo::stage::tune;
use abhyasa::init::ca::DevCa;
use abhyasa::init::{InitOptions, init};
use abhyasa::loopback::free_address;
use abhyasa::node::{Builder, Node, NodeHandle, StartError};
use abhyasa::store::{Storage, StoreError};
use proto::custodian::{Draft, Issued};
use proto::id::{AgentId, GovernedKey, Kind, ObligationId};
use proto::obligation::Obligation;
use proto::payload::Payload;
use proto::record::{Cell, CellValue, Ledger, Outcome, Role, Terminal, cell_key, issued_key};
use proto::store::{Read, Table};
use proto::time::Time;
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(30);
pub const CONSENT: &str = "anumati.consent";
pub const BELIEF: &str = "phala.belief_update";
pub const TOKEN: &str = "oauth.token";

/// Everything fast enough for a test.
const FAST: &str = r#"
quic = { listen = "127.0.0.1:0", handshake_timeout_ms = 1500, reconnect_cap_ms = 300, silent_after_ms = 300, idle_timeout_ms = 10000, keep_alive_ms = 1000 }
custody = { max_clock_skew_ms = 50, refuse_retry_after_ms = 100 }
[kinds."anumati.consent"]
deadline_seconds = 120
max_retries = 600
backoff_base_ms = 100
backoff_cap_ms = 500
[kinds."oauth.token"]
deadline_seconds = 120
max_retries = 600
backoff_base_ms = 100
backoff_cap_ms = 500
[kinds."phala.belief_update"]
deadline_seconds = 120
max_retries = 600
backoff_base_ms = 100
backoff_cap_ms = 500
"#;

/// A directory with a development CA, in which nodes are set up.
pub struct World {
    pub dir: tempfile::TempDir,
    pub ca: DevCa,
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = DevCa::generate().unwrap();
        std::fs::create_dir(dir.path().join("ca")).unwrap();
        std::fs::write(dir.path().join("ca/ca.pem"), ca.cert_pem()).unwrap();
        std::fs::write(dir.path().join("ca/ca.key"), ca.key_pem()).unwrap();
        Self { dir, ca }
    }

    /// Configures node `name`. `tuning` is TOML over the defaults of these tests.
    pub fn config(&self, name: &str, tuning: &str) -> NodeConfig {
        let options = InitOptions {
            id: Some(id(name).to_string()),
            ca: Some(self.dir.path().join("ca")),
            ..InitOptions::default()
        };
        let file = init(&self.dir.path().join(name), &options).unwrap().config;
        tune(&file, FAST).unwrap();
        tune(&file, tuning).unwrap();
        NodeConfig::load(&file).unwrap()
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Alice and Bob, who dial each other directly. Extra TOML for each.
    pub fn configs(&self, alice: &str, bob: &str) -> (NodeConfig, NodeConfig) {
        let (at_alice, at_bob) = (free_address().unwrap(), free_address().unwrap());
        let alice = self.config_at(
            "alice",
            at_alice,
            &format!("{alice}\n{}", peer_toml("bob", Some(at_bob))),
        );
        let bob = self.config_at(
            "bob",
            at_bob,
            &format!("{bob}\n{}", peer_toml("alice", Some(at_alice))),
        );
        (alice, bob)
    }

    /// Both of [`Self::configs`], started and connected.
    pub async fn pair(&self, alice: &str, bob: &str) -> (Node, Node) {
        let (alice, bob) = self.configs(alice, bob);
        let (alice, bob) = (start(alice).await, start(bob).await);
        connected(&alice.handle(), 1).await;
        connected(&bob.handle(), 1).await;
        (alice, bob)
    }

    /// As [`Self::config`], listening for peers at a given address.
    pub fn config_at(&self, name: &str, at: SocketAddr, tuning: &str) -> NodeConfig {
        let mut config = self.config(name, tuning);
        config.quic.listen = at;
        config
    }
}

pub fn id(name: &str) -> AgentId {
    AgentId::new(&format!("spiffe://test/{name}")).unwrap()
}

pub fn kind(name: &str) -> Kind {
    Kind::new(name).unwrap()
}

pub fn ob(name: &str) -> ObligationId {
    ObligationId::new(name).unwrap()
}

pub fn key(name: &str) -> GovernedKey {
    GovernedKey::new(name).unwrap()
}

/// A `[[peers]]` table with every kind allowed both ways.
pub fn peer_toml(name: &str, at: Option<SocketAddr>) -> String {
    let kinds = format!("[\"{CONSENT}\", \"{BELIEF}\", \"{TOKEN}\"]");
    let address = at.map_or_else(String::new, |at| {
        let at: HostPort = at.to_string().parse().unwrap();
        format!("address = \"{}\"\n", at.as_str())
    });
    format!(
        "\n[[peers]]\nid = \"{}\"\n{address}may_issue = {kinds}\nmay_receive = {kinds}\n",
        id(name)
    )
}

pub async fn start(config: NodeConfig) -> Node {
    start_on(&config, async || None).await
}

/// Starts a node, on another store than its own if there is one.
pub async fn start_on(
    config: &NodeConfig,
    mut storage: impl AsyncFnMut() -> Option<Arc<dyn Storage>>,
) -> Node {
    // A node that was stopped in this process leaves its port only when its last connection has
    // drained, and its store when its last task is gone.
    let node = eventually("the port and the store", async || {
        let mut builder = Builder::new(config.clone());
        if let Some(storage) = storage().await {
            builder = builder.storage(storage);
        }
        match builder.start().await {
            Ok(node) => Some(node),
            Err(StartError::Listen { .. } | StartError::Store(StoreError::Open { .. })) => None,
            Err(error) => panic!("{error}"),
        }
    })
    .await;
    ready(&node.handle()).await;
    node
}

pub async fn ready(node: &NodeHandle) {
    eventually("the node to be ready", async || node.readiness().ok()).await;
}

/// Waits until the node has at least `count` sessions in all.
pub async fn connected(node: &NodeHandle, count: usize) {
    eventually("sessions", async || {
        (node.peers().iter().map(|peer| peer.sessions).sum::<usize>() >= count).then_some(())
    })
    .await;
}

/// Looks until something is there, or fails the test.
pub async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    within(PATIENCE, what, look).await
}

pub async fn within<T>(time: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begun.elapsed() < time, "waited {time:?} for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn payload(value: serde_json::Value) -> Payload {
    Payload::from_json(value.as_object().unwrap()).unwrap()
}

pub fn draft(name: &str, kind_name: &str, target: &str, value: serde_json::Value) -> Draft {
    Draft {
        id: ob(name),
        kind: kind(kind_name),
        target: id(target),
        payload: payload(value),
        deadline_seconds: None,
        max_retries: None,
        sequence: None,
    }
}

pub fn revoke(name: &str, target: &str, scope: &str) -> Draft {
    draft(name, CONSENT, target, json!({ "decision": "revoke", "scope": scope }))
}

pub fn move_weight(name: &str, target: &str, weight_key: &str, delta: f64) -> Draft {
    draft(name, BELIEF, target, json!({ "weight_delta": delta, "weight_key": weight_key }))
}

pub fn due(mut draft: Draft, seconds: u64) -> Draft {
    draft.deadline_seconds = Some(seconds);
    draft
}

/// An obligation as a peer would send it, issued now.
pub fn obligation(draft: Draft) -> Obligation {
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Obligation {
        id: draft.id,
        kind: draft.kind,
        target: draft.target,
        payload: draft.payload,
        deadline_seconds: draft.deadline_seconds.unwrap_or(120),
        max_retries: draft.max_retries.unwrap_or(600),
        created_at: Time::default().after(unix),
        sequence: draft.sequence,
    }
}

/// Issues one obligation that must be taken.
pub async fn issue(node: &NodeHandle, draft: Draft) -> Issued {
    node.issue(vec![draft]).await.unwrap().pop().unwrap().unwrap()
}

/// Waits for the end of a transfer.
pub async fn end(node: &NodeHandle, name: &str) -> Outcome {
    node.wait(&ob(name), PATIENCE)
        .await
        .unwrap()
        .unwrap_or_else(|| panic!("{name} is still pending"))
}

pub async fn ends(node: &NodeHandle, name: &str, how: Terminal) -> Outcome {
    let outcome = end(node, name).await;
    assert_eq!(outcome.terminal, how, "{name}: {outcome:?}");
    outcome
}

/// State under a governed key.
pub fn cell(
    store: &dyn Read,
    role: Role,
    agent: &str,
    kind_name: &str,
    name: &str,
) -> Option<CellValue> {
    let at = cell_key(role, &id(agent), &kind(kind_name), &key(name));
    store.get(Table::Cell, &at).unwrap().map(|bytes| Cell::decode(&bytes).unwrap().value)
}

/// Whether a scope is granted there; `None` if it was never decided.
pub fn granted(store: &dyn Read, role: Role, agent: &str, scope: &str) -> Option<bool> {
    cell(store, role, agent, CONSENT, scope).map(|value| match value {
        CellValue::Authorization { granted } => granted,
        CellValue::Weight(_) => panic!("{scope} is a weight"),
    })
}

/// A weight there in billionths; `None` if it was never moved.
pub fn weight(store: &dyn Read, role: Role, agent: &str, name: &str) -> Option<i64> {
    cell(store, role, agent, BELIEF, name).map(|value| match value {
        CellValue::Weight(weight) => weight.nanos(),
        CellValue::Authorization { .. } => panic!("{name} is an authorization"),
    })
}

/// What `store` has recorded as receiver of `issuer`'s obligation.
pub fn ledger(store: &dyn Read, issuer: &str, name: &str) -> Option<Ledger> {
    let bytes = store.get(Table::Ledger, &issued_key(&id(issuer), &ob(name))).unwrap()?;
    Some(Ledger::decode(&bytes).unwrap())
}

/// A counter or gauge of the node, by its full name.
pub fn metric(node: &NodeHandle, name: &str) -> u64 {
    let text = node.metrics().encode();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
}

pub fn faults(node: &NodeHandle, fault: &str) -> u64 {
    metric(node, &format!("abhyasa_peer_faults_total{{outcome=\"{fault}\"}}"))
}

pub fn commits(node: &NodeHandle) -> u64 {
    metric(node, "abhyasa_commits_total")
}
