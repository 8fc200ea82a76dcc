//! Who may do what: each refusal over a real QUIC connection, by a peer that misbehaves.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    unreachable_pub
)]

mod common;

use abhyasa::clock::{Clock, SystemClock};
use abhyasa::config::QuicConfig;
use abhyasa::node::{Builder, Node, NodeHandle};
use abhyasa::tls::{self, ALPN};
use common::raw::{Raw, best_effort, hello, identity, one};
use common::*;
use proto::ack::{AckStatus, CustodyAck, Reason};
use proto::frame::{Frame, RefuseCode};
use proto::id::ObligationId;
use proto::record::{Escalation, EscalationReason, Role, Terminal, issued_key, num_key};
use proto::store::Table;
use proto::time::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const A_MOMENT: Duration = Duration::from_millis(300);

/// Alice's node, whose peers Bob and Carol are played by the test.
async fn alice(world: &World, tuning: &str) -> (Node, NodeHandle) {
    let peers = format!("{}{}", peer_toml("bob", None), peer_toml("carol", None));
    let node = start(world.config("alice", &format!("{tuning}\n{peers}"))).await;
    let handle = node.handle();
    (node, handle)
}

async fn session(world: &World, name: &str, node: &NodeHandle) -> Raw {
    let raw = Raw::session(world, name, "alice", node.quic_address()).await;
    eventually("the session", async || {
        node.peers().iter().any(|peer| peer.id == id(name) && peer.connected).then_some(())
    })
    .await;
    raw
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_identity_is_refused() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let eve = Raw::dial(&world, "eve", ALPN, "alice", node.quic_address()).await.unwrap();
    assert_eq!(eve.closed().await, 1);
    assert!(node.peers().iter().all(|peer| !peer.connected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_another_ca_is_refused() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let other = World::new();
    // The other world's Bob trusts Alice's CA, but Alice does not trust his.
    let issued = other.ca.issue(&id("bob"), abhyasa::init::ca::valid_days(1)).unwrap();
    let identity = abhyasa::tls::TlsIdentity::from_der(
        vec![issued.cert],
        issued.key,
        vec![world.ca.cert().clone()],
    )
    .unwrap();
    let transport = Arc::new(abhyasa::tls::transport(&Default::default()).unwrap());
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = identity.client(&[ALPN], &id("alice"), transport).unwrap();
    let connecting = endpoint.connect_with(config, node.quic_address(), "alice").unwrap();
    // A TLS 1.3 client may believe itself connected until the server's alert comes.
    if let Ok(connection) = connecting.await {
        let closed = tokio::time::timeout(PATIENCE, connection.closed()).await.expect("a close");
        assert!(matches!(closed, quinn::ConnectionError::ConnectionClosed(_)), "{closed}");
    }
    assert!(node.peers().iter().all(|peer| !peer.connected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_alpn_is_refused() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let refused = Raw::dial(&world, "bob", b"abhyasa/2", "alice", node.quic_address()).await;
    assert!(refused.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_of_another_version_or_identity_closes() {
    let world = World::new();
    let (_node, node) = alice(&world, "quic = { handshake_timeout_ms = 300 }").await;
    let Frame::Hello { agent, limits, features, .. } = hello(&id("bob")) else { panic!() };
    let other_version = Frame::Hello { version: 2, agent, limits, features };
    for wrong in [other_version, hello(&id("carol"))] {
        let bob = Raw::dial(&world, "bob", ALPN, "alice", node.quic_address()).await.unwrap();
        bob.send(&wrong).await;
        assert_eq!(bob.closed().await, 2, "{wrong:?}");
    }
    let silent = Raw::dial(&world, "bob", ALPN, "alice", node.quic_address()).await.unwrap();
    assert_eq!(silent.closed().await, 2, "no hello at all");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_looked_at_before_the_hello() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let bob = Raw::dial(&world, "bob", ALPN, "alice", node.quic_address()).await.unwrap();
    bob.offer(0, &[obligation(revoke("early", "alice", "s"))]).await;
    tokio::time::sleep(A_MOMENT).await;
    assert!(ledger(node.store(), "bob", "early").is_none());
    bob.send(&hello(&id("bob"))).await;
    let Frame::Hello { .. } = bob.next().await else { panic!("no hello") };
    assert_eq!(bob.acked(0).await.0, AckStatus::Applied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_the_peer_may_not_issue_is_refused_without_a_trace() {
    let world = World::new();
    let peer = format!("[[peers]]\nid = \"{}\"\nmay_issue = [\"{BELIEF}\"]\n", id("bob"));
    let node = start(world.config("alice", &peer)).await;
    let handle = node.handle();
    let bob = session(&world, "bob", &handle).await;
    let before = commits(&handle);
    bob.offer(7, &[obligation(revoke("r", "alice", "s"))]).await;
    assert_eq!(bob.refused(7).await.0, RefuseCode::Unauthorized);
    assert!(ledger(handle.store(), "bob", "r").is_none());
    assert_eq!(granted(handle.store(), Role::Receiver, "bob", "s"), None);
    assert_eq!(commits(&handle), before, "no fsync for what is refused");
    assert_eq!(faults(&handle, "unauthorized"), 1);
    // Best effort neither.
    bob.send(&best_effort(&[obligation(draft(
        "g",
        CONSENT,
        "alice",
        serde_json::json!({"decision": "grant", "scope": "s"}),
    ))]))
    .await;
    eventually("the fault", async || (faults(&handle, "unauthorized") == 2).then_some(())).await;
    assert_eq!(granted(handle.store(), Role::Receiver, "bob", "s"), None);
    // And what it may issue is applied.
    bob.offer(8, &[obligation(move_weight("w", "alice", "k", -0.1))]).await;
    assert_eq!(bob.acked(8).await.0, AckStatus::Applied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_obligation_for_another_target_is_refused() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let bob = session(&world, "bob", &node).await;
    let before = commits(&node);
    bob.offer(0, &[obligation(revoke("r", "carol", "s"))]).await;
    assert_eq!(bob.refused(0).await.0, RefuseCode::WrongTarget);
    assert_eq!((commits(&node), faults(&node, "wrong_target")), (before, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_nobody_knows_is_refused() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let bob = session(&world, "bob", &node).await;
    bob.offer(0, &[obligation(draft("r", "acme.telemetry", "alice", serde_json::json!({})))]).await;
    // It cannot be in may_issue, since no configuration may name it.
    assert_eq!(bob.refused(0).await.0, RefuseCode::Unauthorized);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_item_is_refused_while_its_neighbours_are_applied() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let bob = session(&world, "bob", &node).await;
    let good = |name: &str| obligation(revoke(name, "alice", name)).encode();
    let items = vec![good("one"), bytes::Bytes::from_static(b"\xa1garbage"), good("three")];
    bob.send(&Frame::Offers { first_ref: 0, items }).await;
    let (mut applied, mut refused) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        match bob.next().await {
            Frame::AckRuns(runs) => applied.extend(runs.into_iter().flat_map(|run| run.refs)),
            Frame::Refuse { refs, code: RefuseCode::Malformed, .. } => refused.extend(refs),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((applied, refused), (vec![one(0), one(2)], vec![one(1)]));
    for name in ["one", "three"] {
        assert_eq!(granted(node.store(), Role::Receiver, "bob", name), Some(false));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ack_of_a_peer_that_is_not_the_target_counts_for_nothing() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    issue(&node, revoke("r", "bob", "s")).await;
    let carol = session(&world, "carol", &node).await;
    let before = commits(&node);
    for status in [AckStatus::Applied, AckStatus::Declined, AckStatus::Deferred] {
        let ack = |target| CustodyAck {
            obligation_id: ob("r"),
            target,
            status,
            acked_at: Time::from_ms(1),
            reason: None,
        };
        // In her own name, and in Bob's.
        carol.send(&Frame::Acks(vec![ack(id("carol")), ack(id("bob"))])).await;
    }
    // And as if the offer had been hers.
    carol.ack(0, AckStatus::Applied).await;
    eventually("seven faults", async || (faults(&node, "foreign_ack") == 7).then_some(())).await;
    let pending = node.status(&ob("r")).await.unwrap().expect("still pending");
    assert!(!pending.deferred);
    assert_eq!(commits(&node), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ack_of_an_unknown_id_makes_no_state() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let bob = session(&world, "bob", &node).await;
    let before = commits(&node);
    let ack = CustodyAck {
        obligation_id: ob("never"),
        target: id("bob"),
        status: AckStatus::Applied,
        acked_at: Time::from_ms(1),
        reason: None,
    };
    bob.send(&Frame::Acks(vec![ack])).await;
    eventually("the fault", async || (faults(&node, "foreign_ack") == 1).then_some(())).await;
    assert_eq!(commits(&node), before);
    assert_eq!(node.outcome(&ob("never")).unwrap(), None);
    for table in [Table::Reconcile, Table::Outcome, Table::Pending, Table::Ledger] {
        assert!(node.store().last(table).unwrap().is_none(), "{table:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn df1_deferred_extends_nothing() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let bob = session(&world, "bob", &node).await;
    let issued = issue(&node, due(revoke("r", "bob", "s"), 2)).await;
    let deferring = async {
        // Each retry is deferred again.
        while let Some(frame) = bob.next_within(Duration::from_secs(3)).await {
            let Frame::Offers { first_ref, .. } = frame else { panic!("{frame:?}") };
            bob.ack(first_ref, AckStatus::Deferred).await;
        }
    };
    let (outcome, ()) = tokio::join!(ends(&node, "r", Terminal::Escalated), deferring);
    assert_eq!(outcome.deadline_at.as_ms(), issued.deadline_at_ms);
    let late = outcome.at.ms_since(outcome.deadline_at);
    assert!(outcome.at >= outcome.deadline_at && late < 1_000, "{late} ms late");
    assert!(outcome.retries >= 3, "{} retries", outcome.retries);
    let bytes = node.store().get(Table::Escalation, &num_key(outcome.num)).unwrap().unwrap();
    let escalation: Escalation = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(escalation.reason, EscalationReason::Deferring);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_query_tells_nothing_of_another_issuers_ids() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let (bob, carol) = (session(&world, "bob", &node).await, session(&world, "carol", &node).await);
    carol.offer(0, &[obligation(revoke("hers", "alice", "s"))]).await;
    assert_eq!(carol.acked(0).await.0, AckStatus::Applied);
    let query = Frame::Query { query_ref: 3, ids: vec![ob("hers"), ob("never")] };
    assert_eq!(answer(&bob, &query).await, (vec![], vec![ob("hers"), ob("never")]));
    let (acks, unknown) = answer(&carol, &query).await;
    assert_eq!((acks.len(), unknown), (1, vec![ob("never")]));
    assert_eq!((&acks[0].obligation_id, acks[0].status), (&ob("hers"), AckStatus::Applied));
    // Bob's own obligation of the same id is another one.
    bob.offer(0, &[obligation(revoke("hers", "alice", "t"))]).await;
    assert_eq!(bob.acked(0).await.0, AckStatus::Applied);
}

/// Asks for two ids, and gathers what may come in several answers.
async fn answer(raw: &Raw, query: &Frame) -> (Vec<CustodyAck>, Vec<ObligationId>) {
    raw.send(query).await;
    let (mut known, mut not) = (Vec::new(), Vec::new());
    while known.len() + not.len() < 2 {
        let Frame::Answer { query_ref: 3, acks, unknown } = raw.next().await else {
            panic!("no answer")
        };
        known.extend(acks);
        not.extend(unknown);
    }
    (known, not)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab3_an_id_reused_for_other_content_is_declined() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let bob = session(&world, "bob", &node).await;
    bob.offer(0, &[obligation(revoke("r", "alice", "one"))]).await;
    assert_eq!(bob.acked(0).await.0, AckStatus::Applied);
    bob.offer(1, &[obligation(revoke("r", "alice", "two"))]).await;
    assert_eq!(bob.acked(1).await, (AckStatus::Declined, Some(Reason::ID_CONFLICT)));
    assert_eq!(granted(node.store(), Role::Receiver, "bob", "two"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversized_frame_closes_the_connection() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let bob = session(&world, "bob", &node).await;
    let mut stream = bob.connection.open_uni().await.unwrap();
    let _ = stream.write_all(&vec![0; proto::limits::FRAME_LEN_MAX + 1]).await;
    let _ = stream.finish();
    assert_eq!(bob.closed().await, 3);
    let again = session(&world, "bob", &node).await;
    again.send_bytes(b"no frame").await;
    assert_eq!(again.closed().await, 3);
    let again = session(&world, "bob", &node).await;
    again.connection.send_datagram(Frame::Probe { nonce: 1, id: None }.encode()).unwrap();
    assert_eq!(again.closed().await, 3, "only best effort goes in datagrams");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_sent_stream_is_stopped_and_the_session_goes_on() {
    let world = World::new();
    let (_node, node) = alice(&world, "quic = { frame_timeout_ms = 200 }").await;
    let bob = session(&world, "bob", &node).await;
    let mut stream = bob.connection.open_uni().await.unwrap();
    stream.write_all(&[0xa3]).await.unwrap();
    let code = tokio::time::timeout(PATIENCE, stream.stopped()).await.expect("stopped").unwrap();
    assert!(code.is_some());
    bob.probe(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_are_bounded() {
    let world = World::new();
    let (_node, node) = alice(&world, "quic = { streams_max = 8, frame_timeout_ms = 60000 }").await;
    let bob = session(&world, "bob", &node).await;
    bob.probe(1).await;
    let mut open = Vec::new();
    loop {
        match tokio::time::timeout(A_MOMENT, bob.connection.open_uni()).await {
            Ok(stream) => {
                let mut stream = stream.unwrap();
                stream.write_all(&[0xa3]).await.unwrap();
                open.push(stream);
            }
            Err(_) => break,
        }
        assert!(open.len() <= 8, "more streams than allowed");
    }
    assert_eq!(open.len(), 8);
    assert!(
        bob.connection.open_bi().now_or_none().await.is_none(),
        "bidirectional streams are not used"
    );
}

trait NowOrNone: Future + Sized {
    async fn now_or_none(self) -> Option<Self::Output> {
        tokio::time::timeout(A_MOMENT, self).await.ok()
    }
}

impl<F: Future> NowOrNone for F {}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_bounded_per_peer_and_in_all() {
    let world = World::new();
    let (_node, node) =
        alice(&world, "quic = { connections_max = 3, connections_per_peer_max = 2 }").await;
    let first = session(&world, "bob", &node).await;
    let second = session(&world, "bob", &node).await;
    let third = session(&world, "bob", &node).await;
    assert_eq!(first.closed().await, 4, "replaced: the oldest of one peer goes");
    second.probe(1).await;
    third.probe(1).await;
    // The one that was closed counts until its last packets cannot come any more.
    let dial = async || Raw::dial(&world, "carol", ALPN, "alice", node.quic_address()).await.ok();
    let _carol = eventually("room for Carol", dial).await;
    assert!(dial().await.is_none(), "beyond connections_max");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bd1_a_peer_over_its_rate_is_refused_before_any_fsync() {
    let world = World::new();
    let rates = "rates = { obligations_per_second = 1, obligations_burst = 4096 }";
    let (_node, node) = alice(&world, rates).await;
    let bob = session(&world, "bob", &node).await;
    let burst: Vec<_> = (0..4096u64)
        .map(|n| obligation(move_weight(&n.to_string(), "alice", "k", -1e-6)))
        .collect();
    let mut first = 0;
    for chunk in burst.chunks(1024) {
        bob.offer(first, chunk).await;
        first += 1024;
    }
    let mut applied = 0;
    while applied < 4096 {
        let Frame::AckRuns(runs) = bob.next().await else { panic!("no acks") };
        applied += runs.iter().flat_map(|run| &run.refs).map(|range| range.count).sum::<u64>();
    }
    // The bucket may have got a token or two since; these are over it for sure.
    let before = commits(&node);
    let over: Vec<_> = (0..60)
        .map(|n| obligation(move_weight(&format!("over-{n}"), "alice", "k", -1e-6)))
        .collect();
    bob.offer(5000, &over).await;
    let refused = loop {
        match bob.next().await {
            Frame::Refuse { refs, code: RefuseCode::Overloaded, retry_after_ms, .. } => {
                assert_eq!(retry_after_ms, 100);
                break refs.iter().map(|range| range.count).sum::<u64>();
            }
            Frame::AckRuns(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!((50..=60).contains(&refused), "{refused} refused");
    let before_refusals = commits(&node);
    assert!(before_refusals <= before + 1);
    bob.offer(6000, &[over.last().unwrap().clone()]).await;
    bob.offer(6001, &[over.last().unwrap().clone()]).await;
    bob.probe(1).await;
    assert!(commits(&node) <= before_refusals + 1, "no fsync for what is refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_best_effort_duplicate_is_dropped_and_a_restriction_needs_custody() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let bob = session(&world, "bob", &node).await;
    let benign = best_effort(&[obligation(move_weight("up", "alice", "k", 0.1))]);
    bob.connection.send_datagram(benign.encode()).unwrap();
    eventually("the weight", async || weight(node.store(), Role::Receiver, "bob", "k")).await;
    bob.connection.send_datagram(benign.encode()).unwrap();
    bob.send(&benign).await;
    bob.send(&best_effort(&[obligation(revoke("r", "alice", "s"))])).await;
    eventually("the fault", async || (faults(&node, "malformed") == 1).then_some(())).await;
    tokio::time::sleep(A_MOMENT).await;
    assert_eq!(weight(node.store(), Role::Receiver, "bob", "k"), Some(600_000_000));
    assert_eq!(granted(node.store(), Role::Receiver, "bob", "s"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bd1_a_peer_that_hangs_up_at_once_is_dialled_with_backoff() {
    let world = World::new();
    let transport = Arc::new(tls::transport(&QuicConfig::default()).unwrap());
    let server = identity(&world, &id("bob")).server(&[ALPN], transport).unwrap();
    let bob = quinn::Endpoint::server(server, "127.0.0.1:0".parse().unwrap()).unwrap();
    let tuning = "quic = { reconnect_base_ms = 100, reconnect_cap_ms = 400 }\n";
    let peers = peer_toml("bob", Some(bob.local_addr().unwrap()));
    let _alice = start(world.config("alice", &format!("{tuning}{peers}"))).await;
    let mut begun = None;
    for _ in 0..5 {
        let connection = bob.accept().await.unwrap().await.unwrap();
        begun.get_or_insert_with(Instant::now);
        connection.close(1u32.into(), b"not a peer of this node");
    }
    // Waits of 100, 200, 400 and 400 ms, each shortened by its jitter.
    assert!(begun.unwrap().elapsed() >= Duration::from_millis(800), "dialled without a pause");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bd1_what_comes_to_nothing_does_not_stop_the_driver() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let bob = session(&world, "bob", &node).await;
    let copies = vec![obligation(move_weight("up", "alice", "k", 0.1)); 1_500];
    for _ in 0..5 {
        bob.send(&best_effort(&copies)).await;
    }
    bob.probe(1).await;
    assert_eq!(weight(node.store(), Role::Receiver, "bob", "k"), Some(600_000_000), "moved once");
}

/// The system's clock, and what the test adds.
struct Jumping(SystemClock, AtomicU64);

impl Clock for Jumping {
    fn now(&self) -> Time {
        self.0.now().after_ms(self.1.load(Ordering::SeqCst))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dl1_a_replay_after_pruning_is_declined_as_expired() {
    let world = World::new();
    let config = world.config("alice", &peer_toml("bob", None));
    let clock =
        Arc::new(Jumping(SystemClock::starting_at_least(Time::default()), AtomicU64::new(0)));
    let node = Builder::new(config).clock(clock.clone()).start().await.unwrap();
    let handle = node.handle();
    ready(&handle).await;
    let bob = session(&world, "bob", &handle).await;
    let captured = [obligation(due(move_weight("w", "alice", "k", -0.1), 5))];
    bob.offer(0, &captured).await;
    assert_eq!(bob.acked(0).await.0, AckStatus::Applied);
    bob.offer(1, &captured).await;
    assert_eq!(bob.acked(1).await.0, AckStatus::Applied, "a redelivery is acked again");
    // Past the deadline, not pruned yet: still what the ledger says.
    clock.1.store(6_000, Ordering::SeqCst);
    bob.offer(2, &captured).await;
    assert_eq!(bob.acked(2).await.0, AckStatus::Applied);
    clock.1.store(200_000, Ordering::SeqCst);
    bob.probe(1).await;
    let pruned = async || {
        handle
            .store()
            .get(Table::Ledger, &issued_key(&id("bob"), &ob("w")))
            .unwrap()
            .is_none()
            .then_some(())
    };
    eventually("the ledger to be pruned", pruned).await;
    bob.offer(3, &captured).await;
    assert_eq!(bob.acked(3).await, (AckStatus::Declined, Some(Reason::EXPIRED)));
    assert_eq!(weight(handle.store(), Role::Receiver, "bob", "k"), Some(400_000_000), "moved once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sg2_an_older_sequence_is_declined_as_superseded() {
    let world = World::new();
    let (_node, node) = alice(&world, "").await;
    let bob = session(&world, "bob", &node).await;
    let grant = |name: &str, sequence| {
        let mut draft =
            draft(name, CONSENT, "alice", serde_json::json!({ "decision": "grant", "scope": "s" }));
        draft.sequence = Some(sequence);
        obligation(draft)
    };
    let mut newer = obligation(revoke("newer", "alice", "s"));
    newer.sequence = Some(5);
    bob.offer(0, &[newer]).await;
    assert_eq!(bob.acked(0).await.0, AckStatus::Applied);
    // A grant from before, replayed or late, does not open what was closed.
    bob.send(&best_effort(&[grant("older", 4), grant("same", 5)])).await;
    let mut older = obligation(revoke("older-revoke", "alice", "s"));
    older.sequence = Some(3);
    bob.offer(1, &[older]).await;
    assert_eq!(bob.acked(1).await, (AckStatus::Declined, Some(Reason::SUPERSEDED)));
    assert_eq!(granted(node.store(), Role::Receiver, "bob", "s"), Some(false));
    bob.send(&best_effort(&[grant("newest", 6)])).await;
    eventually("the grant", async || {
        (granted(node.store(), Role::Receiver, "bob", "s") == Some(true)).then_some(())
    })
    .await;
}
