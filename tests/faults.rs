//! What must hold when a disk does not: nothing is acknowledged that was not durable, the node
//! ends, and its next start brings every transfer to its right end.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    unreachable_pub
)]

mod common;

use abhyasa::DriverError;
use abhyasa::config::NodeConfig;
use abhyasa::demo::api::{nano, text};
use abhyasa::demo::stage::{ALICE, BOB, NodeProcess, Stage};
use abhyasa::node::{Builder, Node, NodeError};
use abhyasa::store::{FaultPlan, FaultStore, FjallStore, Storage, StoreError, StoreOptions};
use bytes::Bytes;
use common::raw::Raw;
use common::*;
use proto::ack::AckStatus;
use proto::frame::Frame;
use proto::record::{Role, Terminal};
use proto::store::{Read, ReadError, Table, Write};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Synced commits at which the fault strikes, each in a run of its own.
const POINTS: std::ops::RangeInclusive<u64> = 1..=12;
/// Each correction of these tests, in billionths.
const STEP: i64 = 1_000_000;
/// Corrections of one test at most: the weight stays above its lower bound.
const STEPS_MAX: u64 = 450;

async fn open(config: &NodeConfig) -> FjallStore {
    let open =
        async || FjallStore::open(&config.data_dir, &config.id, &StoreOptions::default()).ok();
    eventually("the store", open).await
}

async fn start_faulty(config: NodeConfig, plan: &str) -> Node {
    let plan: FaultPlan = plan.parse().unwrap();
    let storage =
        async || Some(Arc::new(FaultStore::new(open(&config).await, plan)) as Arc<dyn Storage>);
    start_on(&config, storage).await
}

/// The configuration to start a node again with: on another port, so that it need not wait for the
/// old one to drain. It dials the other, so the other need not find it.
fn elsewhere(node: &Node) -> NodeConfig {
    let mut config = node.handle().config().as_ref().clone();
    config.quic.listen.set_port(0);
    config
}

fn step(n: u64) -> proto::custodian::Draft {
    move_weight(&format!("w{n}"), "bob", "route", -0.001)
}

fn steps(count: usize) -> Option<i64> {
    Some(500_000_000 - STEP * i64::try_from(count).unwrap())
}

/// The custodian's store fails at each point, on the same store every time.
async fn custodian_fails(fault: &str) {
    let world = World::new();
    let (mut config, bob) = world.configs("", "");
    let b = start(bob).await;
    let (mut taken, mut next) = (Vec::new(), 0);
    for point in POINTS {
        let plan = format!("{fault}@{point}");
        let mut a = start_faulty(config, &plan).await;
        config = elsewhere(&a);
        let alice = a.handle();
        while next < STEPS_MAX {
            let answer = alice.issue(vec![step(next)]).await;
            next += 1;
            let Ok(results) = answer else { break };
            assert!(results[0].is_ok(), "{plan}: {results:?}");
            taken.push(format!("w{}", next - 1));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        failed(&mut a, &plan).await;
        drop(alice);
        a.stop().await.unwrap();
        let a = start(config.clone()).await;
        for name in &taken {
            ends(&a.handle(), name, Terminal::Applied).await; // or it was answered, and is lost
        }
        let found = weight(b.handle().store(), Role::Receiver, "alice", "route").or(steps(0));
        let why = "what was not durable was never offered, the rest applied once";
        assert_eq!(found, steps(taken.len()), "{plan}: {why}");
        a.stop().await.unwrap();
    }
}

/// The receiver's store fails at each point, on the same store every time.
async fn receiver_fails(fault: &str) {
    let world = World::new();
    let (alice, mut config) = world.configs("", "");
    let a = start(alice).await;
    let alice = a.handle();
    let mut count = 0;
    for point in POINTS {
        let plan = format!("{fault}@{point}");
        let mut b = start_faulty(config, &plan).await;
        config = elsewhere(&b);
        // Slower than a commit, so that each has its own.
        while tokio::time::timeout(Duration::from_millis(8), failed(&mut b, &plan)).await.is_err() {
            assert!(count < STEPS_MAX, "{plan}: it never failed");
            issue(&alice, step(count)).await;
            count += 1;
        }
        b.stop().await.unwrap();
        let store = open(&config).await;
        for name in (0..count).map(|n| format!("w{n}")) {
            if let Some(outcome) = alice.outcome(&ob(&name)).unwrap() {
                assert_eq!(outcome.terminal, Terminal::Applied, "{plan}: {outcome:?}");
                assert!(
                    ledger(&store, "alice", &name).is_some(),
                    "{plan}: {name} was acked, and is not durable"
                );
            }
        }
        drop(store);
        let b = start(config.clone()).await;
        for n in 0..count {
            ends(&alice, &format!("w{n}"), Terminal::Applied).await;
        }
        let found = weight(b.handle().store(), Role::Receiver, "alice", "route").or(steps(0));
        assert_eq!(found, steps(usize::try_from(count).unwrap()), "{plan}: once each");
        b.stop().await.unwrap();
    }
}

/// Waits until the node ends, by its store.
async fn failed(node: &mut Node, plan: &str) {
    let ended = tokio::time::timeout(PATIENCE, node.failed()).await.expect("the node ends");
    let error = ended.expect_err("by its store");
    assert!(error.to_string().contains("injected"), "{plan}: {error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cr1_a_failing_sync_of_the_custodian_loses_nothing_that_was_answered() {
    custodian_fails("fail").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cr1_a_full_disk_of_the_custodian_loses_nothing_that_was_answered() {
    custodian_fails("full").await;
}

/// A sync that fails may have reached the disk. Then the caller is not told "not taken".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cr1_a_commit_that_fails_and_is_kept_is_taken_by_a_caller_who_asks_again() {
    let world = World::new();
    let (config, bob) = world.configs("", "");
    let b = start(bob).await;
    // Its first commit is that of the issue: at the start nothing was pending.
    let mut a = start_faulty(config, "fail-kept@1").await;
    let answer = a.handle().issue(vec![step(0)]).await;
    assert_eq!(answer.unwrap_err(), NodeError::Unanswered);
    failed(&mut a, "fail-kept@1").await;
    let config = elsewhere(&a);
    a.stop().await.unwrap();
    let a = start(config).await;
    let again = a.handle().issue(vec![step(0)]).await.unwrap().pop().unwrap().unwrap();
    assert!(again.existing, "it is on the disk");
    ends(&a.handle(), "w0", Terminal::Applied).await;
    assert_eq!(weight(b.handle().store(), Role::Receiver, "alice", "route"), steps(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cr1_a_failing_sync_of_the_receiver_acks_nothing_that_was_not_durable() {
    receiver_fails("fail").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cr1_a_full_disk_of_the_receiver_acks_nothing_that_was_not_durable() {
    receiver_fails("full").await;
}

/// Real processes: one of them dies just before, or just after, each of its first commits; it is
/// started again, and in the end everything is applied once.
async fn a_process_aborts(mode: &str, pick: fn(&mut Stage) -> &mut NodeProcess) {
    let mut stage = Stage::set(Path::new(env!("CARGO_BIN_EXE_abhyasa")), 1, "").await.unwrap();
    stage.start().await.unwrap();
    let mut count = 0u32;
    let mut owed: Vec<u32> = Vec::new();
    for point in POINTS {
        pick(&mut stage).start(Some(&format!("{mode}@{point}"))).unwrap();
        // It may die while it starts: recovery commits, too.
        let _ = pick(&mut stage).ready().await;
        let status = within(PATIENCE, "the process to die", async || {
            if let Some(status) = pick(&mut stage).exited().unwrap() {
                return Some(status);
            }
            if stage.alice.api.issue(&correction(count)).await.is_err() {
                owed.push(count);
            }
            count += 1;
            None
        })
        .await;
        #[cfg(unix)]
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(6),
            "{mode}@{point}: {status}"
        );
        pick(&mut stage).start(None).unwrap();
        pick(&mut stage).ready().await.unwrap();
        for n in owed.drain(..) {
            stage.alice.api.issue(&correction(n)).await.unwrap();
        }
    }
    stage.alice.api.idle(PATIENCE).await.unwrap();
    for n in 0..count {
        let status = stage.alice.api.status(&format!("w{n}")).await.unwrap();
        assert_eq!(text(&status, "state"), "applied", "{mode}: {status}");
    }
    let found = stage.bob.api.weight("receiver", ALICE, "route").await.unwrap();
    assert_eq!(
        found,
        Some(nano(0.5) - STEP * i64::from(count)),
        "{mode}: {count} corrections, each once"
    );
}

fn correction(n: u32) -> Value {
    let payload = json!({ "weight_delta": -0.001, "weight_key": "route" });
    json!({ "obligation_id": format!("w{n}"), "kind": BELIEF, "target": BOB, "payload": payload })
}

#[tokio::test]
async fn ab1_a_custodian_that_dies_before_a_commit_loses_nothing() {
    a_process_aborts("abort-before", |stage| &mut stage.alice).await;
}

#[tokio::test]
async fn ab1_a_custodian_that_dies_after_a_commit_loses_nothing() {
    a_process_aborts("abort-after", |stage| &mut stage.alice).await;
}

#[tokio::test]
async fn ab3_a_receiver_that_dies_before_a_commit_applies_once() {
    a_process_aborts("abort-before", |stage| &mut stage.bob).await;
}

#[tokio::test]
async fn ab3_a_receiver_that_dies_after_a_commit_applies_once() {
    a_process_aborts("abort-after", |stage| &mut stage.bob).await;
}

/// A store whose synced commits wait until the test lets them through.
struct Gate {
    inner: FjallStore,
    /// Whether it is open, and how many commits have come to it.
    state: Mutex<(bool, u64)>,
    bell: Condvar,
}

impl Gate {
    fn set(&self, open: bool) {
        self.state.lock().unwrap().0 = open;
        self.bell.notify_all();
    }

    fn arrived(&self) -> u64 {
        self.state.lock().unwrap().1
    }
}

impl Read for Gate {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.inner.get(table, key)
    }
    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        self.inner.scan(table, from, limit)
    }
    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        self.inner.last(table)
    }
}

impl Storage for Gate {
    fn commit(&self, writes: &[Write], sync: bool) -> Result<(), StoreError> {
        if sync {
            let mut state = self.state.lock().unwrap();
            state.1 += 1;
            let (guard, timeout) =
                self.bell.wait_timeout_while(state, PATIENCE, |state| !state.0).unwrap();
            drop(guard);
            assert!(!timeout.timed_out(), "the gate was never opened");
        }
        self.inner.commit(writes, sync)
    }
}

async fn gated(world: &World) -> (Node, Arc<Gate>, Raw) {
    let config = world.config("alice", &peer_toml("bob", None));
    let gate = Arc::new(Gate {
        inner: open(&config).await,
        state: Mutex::new((true, 0)),
        bell: Condvar::new(),
    });
    let node = Builder::new(config).storage(gate.clone()).start().await.unwrap();
    ready(&node.handle()).await;
    let bob = Raw::session(world, "bob", "alice", node.handle().quic_address()).await;
    bob.probe(0).await;
    (node, gate, bob)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ps1_no_ack_leaves_before_its_commit_has_returned() {
    let world = World::new();
    let (node, gate, bob) = gated(&world).await;
    let handle = node.handle();
    // Few are committed by the driver itself, many by its thread while the next step is computed.
    for (batch, count) in [1u64, 40].into_iter().enumerate() {
        let name = |n: u64| format!("b{batch}-{n}");
        let offers: Vec<_> =
            (0..count).map(|n| obligation(revoke(&name(n), "alice", &name(n)))).collect();
        let first = 1_000 * batch as u64;
        gate.set(false);
        let arrived = gate.arrived();
        bob.offer(first, &offers).await;
        eventually("the commit", async || (gate.arrived() > arrived).then_some(())).await;
        // A duplicate, and a query, find the effect in memory; neither may tell of it.
        bob.offer(first + 100, &offers).await;
        bob.send(&Frame::Query { query_ref: 1, ids: vec![ob(&name(0))] }).await;
        if let Some(frame) = bob.next_within(Duration::from_millis(300)).await {
            panic!("{frame:?} left before the commit");
        }
        assert!(ledger(handle.store(), "bob", &name(0)).is_none());
        gate.set(true);
        let mut acked = 0;
        let mut answered = false;
        while acked < 2 * count || !answered {
            match bob.next().await {
                Frame::AckRuns(runs) => {
                    assert!(runs.iter().all(|run| run.status == AckStatus::Applied));
                    acked +=
                        runs.iter().flat_map(|run| &run.refs).map(|range| range.count).sum::<u64>();
                }
                Frame::Answer { acks, .. } => answered |= acks.len() == 1,
                other => panic!("{other:?}"),
            }
            for n in 0..count {
                assert!(
                    ledger(handle.store(), "bob", &name(n)).is_some(),
                    "acked, and not durable"
                );
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ps1_no_issue_is_answered_and_no_offer_leaves_before_its_commit_has_returned() {
    let world = World::new();
    let (node, gate, bob) = gated(&world).await;
    let handle = node.handle();
    for (batch, count) in [1u64, 40].into_iter().enumerate() {
        let name = |n: u64| format!("b{batch}-{n}");
        // Retries of the batch before that were under way.
        while bob.next_within(Duration::from_millis(100)).await.is_some() {}
        let drafts: Vec<_> = (0..count).map(|n| revoke(&name(n), "bob", &name(n))).collect();
        gate.set(false);
        let arrived = gate.arrived();
        let issuing = tokio::spawn({
            let handle = handle.clone();
            async move { handle.issue(drafts).await }
        });
        eventually("the commit", async || (gate.arrived() > arrived).then_some(())).await;
        if let Some(frame) = bob.next_within(Duration::from_millis(300)).await {
            panic!("{frame:?} left before the commit");
        }
        assert!(!issuing.is_finished(), "answered before the commit");
        // Asking for it finds it in memory, and is not told of it either.
        let asking = tokio::spawn({
            let (handle, id) = (handle.clone(), ob(&name(0)));
            async move { handle.status(&id).await }
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!asking.is_finished(), "a look-up told of it before the commit");
        gate.set(true);
        assert!(asking.await.unwrap().unwrap().is_some());
        assert!(issuing.await.unwrap().unwrap().iter().all(Result::is_ok));
        let mut offered = 0;
        while offered < count {
            let (first, obligations) = bob.offered().await;
            for (reference, obligation) in (first..).zip(&obligations) {
                assert!(handle.status(&obligation.id).await.unwrap().is_some());
                bob.ack(reference, AckStatus::Applied).await;
                offered += u64::from(obligation.id.as_str().starts_with(&format!("b{batch}-")));
            }
        }
        for n in 0..count {
            ends(&handle, &name(n), Terminal::Applied).await;
        }
    }
}

/// A store that panics in its first commit of more than a few writes.
struct Panicking(FjallStore);

impl Read for Panicking {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.0.get(table, key)
    }
    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        self.0.scan(table, from, limit)
    }
    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        self.0.last(table)
    }
}

impl Storage for Panicking {
    fn commit(&self, writes: &[Write], sync: bool) -> Result<(), StoreError> {
        assert!(writes.len() < 20, "a commit that panics on purpose");
        self.0.commit(writes, sync)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cr1_a_commit_that_panics_ends_the_node_and_answers_nobody() {
    let world = World::new();
    let config = world.config("alice", &peer_toml("bob", None));
    let store = Arc::new(Panicking(open(&config).await));
    let mut node = Builder::new(config).storage(store).start().await.unwrap();
    let handle = node.handle();
    ready(&handle).await;
    let drafts = (0..40).map(|n| revoke(&format!("p-{n}"), "bob", &format!("s-{n}"))).collect();
    assert!(handle.issue(drafts).await.is_err(), "answered, and not on disk");
    let ended = tokio::time::timeout(PATIENCE, node.failed()).await.unwrap();
    assert!(matches!(ended, Err(DriverError::CommitThread)), "{ended:?}");
    assert!(handle.issue(vec![revoke("later", "bob", "s")]).await.is_err());
}
