//! Two nodes in this process, over real QUIC, on real stores.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    unreachable_pub
)]

mod common;

use abhyasa::loopback::free_address;
use abhyasa::node::{Node, NodeHandle};
use abhyasa::proxy::{self, Chance, Delay, Faults, LinkModel, Micros, ProxyHandle};
use axum::extract::State;
use axum::http::StatusCode;
use common::web::{Mood, Service, serve};
use common::*;
use proto::record::{
    Escalation, EscalationReason, Reconcile, ReconcileKind, Resolution, Role, Terminal, num_key,
};
use proto::store::Table;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn reconcile(node: &NodeHandle, number: u64) -> Option<Reconcile> {
    let bytes = node.store().get(Table::Reconcile, &num_key(number)).unwrap()?;
    Some(serde_json::from_slice(&bytes).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn obligations_are_applied_end_to_end_both_ways() {
    let world = World::new();
    let (a, b) = world.pair("", "").await;
    let (alice, bob) = (a.handle(), b.handle());
    issue(&alice, revoke("r", "bob", "calendar")).await;
    assert_eq!(
        granted(alice.store(), Role::Principal, "bob", "calendar"),
        Some(false),
        "AB-1: withheld at issue"
    );
    issue(&alice, move_weight("w", "bob", "route", -0.25)).await;
    issue(&alice, draft("t", TOKEN, "bob", json!({ "action": "revoke", "token_id": "tok" }))).await;
    issue(&bob, revoke("r", "alice", "mail")).await;
    for name in ["r", "w", "t"] {
        ends(&alice, name, Terminal::Applied).await;
    }
    ends(&bob, "r", Terminal::Applied).await;
    assert_eq!(granted(bob.store(), Role::Receiver, "alice", "calendar"), Some(false));
    assert_eq!(weight(bob.store(), Role::Receiver, "alice", "route"), Some(250_000_000));
    assert_eq!(granted(alice.store(), Role::Receiver, "bob", "mail"), Some(false));
    // Issued again, it is the same transfer, and no second effect.
    let again = issue(&alice, move_weight("w", "bob", "route", -0.25)).await;
    assert!(again.existing);
    assert!(
        alice.issue(vec![move_weight("w", "bob", "route", -0.5)]).await.unwrap()[0].is_err(),
        "other content"
    );
    assert_eq!(weight(bob.store(), Role::Receiver, "alice", "route"), Some(250_000_000));
    assert_eq!((alice.pending(), bob.pending()), (0, 0));
    a.stop().await.unwrap();
    b.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ac1_best_effort_is_applied_and_leaves_no_custody_record() {
    let world = World::new();
    let (a, b) = world.pair("", "").await;
    let (alice, bob) = (a.handle(), b.handle());
    let small = issue(&alice, move_weight("up", "bob", "route", 0.125)).await;
    assert!(!small.custody);
    // Too large for a datagram: it goes by stream.
    let large = json!({ "weight_delta": 0.125, "weight_key": "route", "note": "x".repeat(8_000) });
    assert!(!issue(&alice, draft("large", BELIEF, "bob", large)).await.custody);
    eventually("both", async || {
        (weight(bob.store(), Role::Receiver, "alice", "route") == Some(750_000_000)).then_some(())
    })
    .await;
    assert_eq!(metric(&alice, "abhyasa_best_effort_sent_total"), 2);
    for name in ["up", "large"] {
        assert!(alice.status(&ob(name)).await.unwrap().is_none());
        assert!(alice.outcome(&ob(name)).unwrap().is_none());
        assert!(ledger(bob.store(), "alice", name).is_none());
    }
    for table in [Table::Pending, Table::Escalation, Table::OutcomeLog] {
        assert!(alice.store().last(table).unwrap().is_none(), "{table:?}");
    }
    // To a peer that is away it is dropped, and never escalates.
    b.stop().await.unwrap();
    eventually("Bob to be gone", async || {
        alice.peers().iter().all(|peer| !peer.connected).then_some(())
    })
    .await;
    issue(&alice, due(move_weight("lost", "bob", "route", 0.1), 1)).await;
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert!(alice.store().last(Table::Escalation).unwrap().is_none());
    assert_eq!(metric(&alice, "abhyasa_best_effort_dropped_total"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_issued_while_the_peer_was_away_is_applied_when_it_is_back() {
    let world = World::new();
    let (a, b) = world.pair("", "").await;
    let alice = a.handle();
    let config = b.handle().config().as_ref().clone();
    b.stop().await.unwrap();
    issue(&alice, move_weight("w", "bob", "route", -0.25)).await;
    let none = alice.wait(&ob("w"), Duration::from_millis(500)).await.unwrap();
    assert!(none.is_none(), "nobody was there to apply it");
    let b = start(config).await;
    let back = Instant::now();
    ends(&alice, "w", Terminal::Applied).await;
    assert!(back.elapsed() < Duration::from_secs(3), "{:?}", back.elapsed());
    assert_eq!(weight(b.handle().store(), Role::Receiver, "alice", "route"), Some(250_000_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_custodian_goes_on_with_what_was_pending() {
    let world = World::new();
    let (a, b) = world.pair("", "").await;
    let config = b.handle().config().as_ref().clone();
    b.stop().await.unwrap();
    let issued = issue(&a.handle(), move_weight("w", "bob", "route", -0.25)).await;
    let alice_config = a.handle().config().as_ref().clone();
    a.stop().await.unwrap();
    let a = start(alice_config).await;
    let found = a.handle().status(&ob("w")).await.unwrap().expect("still pending");
    assert_eq!(
        found.obligation.deadline_at().as_ms(),
        issued.deadline_at_ms,
        "AB-2: the deadline it was issued with"
    );
    let _b = start(config).await;
    ends(&a.handle(), "w", Terminal::Applied).await;
}

/// A pair whose only link is a proxy: Alice dials Bob through it, Bob only accepts.
async fn through_proxy(world: &World) -> (Node, Node, ProxyHandle) {
    let at_bob = free_address().unwrap();
    let link = proxy::start(at_bob, 1).await.unwrap();
    let bob = start(world.config_at("bob", at_bob, &peer_toml("alice", None))).await;
    let alice = start(world.config("alice", &peer_toml("bob", Some(link.address())))).await;
    connected(&alice.handle(), 1).await;
    connected(&bob.handle(), 1).await;
    (alice, bob, link)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recovery_after_a_partition_is_bounded_by_the_backoff_and_not_by_the_outage() {
    let world = World::new();
    let (a, b, link) = through_proxy(&world).await;
    let alice = a.handle();
    link.partition(true);
    issue(&alice, move_weight("w", "bob", "route", -0.25)).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    link.partition(false);
    let healed = Instant::now();
    ends(&alice, "w", Terminal::Applied).await;
    // QUIC alone would probe again only after about as long as the cut lasted.
    assert!(healed.elapsed() < Duration::from_millis(2_500), "{:?}", healed.elapsed());
    assert!(metric(&alice, "abhyasa_handshake_races_total") >= 1);
    assert_eq!(
        weight(b.handle().store(), Role::Receiver, "alice", "route"),
        Some(250_000_000),
        "moved once"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lossy_link_loses_no_obligation_and_doubles_none() {
    let world = World::new();
    let (a, b, link) = through_proxy(&world).await;
    let alice = a.handle();
    let faults = LinkModel {
        delay: Delay::Uniform(Micros::from_ms(1), Micros::from_ms(21)),
        loss: Chance::permille(200),
        duplicate: Chance::permille(200),
        ..LinkModel::default()
    };
    link.set(Faults::both(faults));
    let drafts: Vec<_> =
        (0..100).map(|n| move_weight(&format!("w{n}"), "bob", "route", -0.004)).collect();
    assert!(alice.issue(drafts).await.unwrap().iter().all(Result::is_ok));
    for n in 0..100 {
        ends(&alice, &format!("w{n}"), Terminal::Applied).await;
    }
    assert_eq!(weight(b.handle().store(), Role::Receiver, "alice", "route"), Some(100_000_000));
    assert!(link.counters().total().dropped > 0 && link.counters().total().duplicated > 0);
}

/// A retry over a link that is slow, and not silent, adds nothing to what is on its way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_link_carries_each_offer_once() {
    const COUNT: u64 = 40;
    const LEN: usize = 16_000;
    let world = World::new();
    let (a, _b, link) = through_proxy(&world).await;
    let alice = a.handle();
    let slow = LinkModel { bytes_per_second: 150_000, ..LinkModel::default() };
    link.set(Faults { to_target: slow.into(), ..Faults::default() });
    let before = link.counters().to_target.forwarded_bytes;
    let drafts = (0..COUNT).map(|n| {
        let value =
            json!({ "decision": "revoke", "scope": format!("s{n}"), "note": "x".repeat(LEN) });
        draft(&format!("r{n}"), CONSENT, "bob", value)
    });
    assert!(alice.issue(drafts.collect()).await.unwrap().iter().all(Result::is_ok));
    let mut retries = 0;
    for n in 0..COUNT {
        retries += ends(&alice, &format!("r{n}"), Terminal::Applied).await.retries;
    }
    assert!(retries > 0, "it takes longer than the backoff");
    let bytes = link.counters().to_target.forwarded_bytes - before;
    let least = COUNT * LEN as u64;
    assert!(
        (least..least * 3 / 2).contains(&bytes),
        "{bytes} bytes for {least}, {retries} retries"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_survives_a_change_of_address() {
    let world = World::new();
    let (a, b, link) = through_proxy(&world).await;
    let (alice, bob) = (a.handle(), b.handle());
    issue(&alice, move_weight("before", "bob", "route", -0.1)).await;
    ends(&alice, "before", Terminal::Applied).await;
    let mut events = bob.events();
    link.rebind();
    issue(&alice, move_weight("after", "bob", "route", -0.1)).await;
    ends(&alice, "after", Terminal::Applied).await;
    while let Ok(event) = events.try_recv() {
        assert!(
            !matches!(*event, proto::event::Event::SessionUp { .. }),
            "the session moved, none was made"
        );
    }
}

fn handler(at: SocketAddr, more: &str) -> String {
    format!(
        "kinds.\"{CONSENT}\".handler = {{ type = \"webhook\", url = \"http://{at}/do\", timeout_ms = 2000{more} }}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab3_a_handler_applies_once_by_idempotency_key() {
    let world = World::new();
    let (service, at) = Service::start().await;
    let (a, b) = world.pair("", &handler(at, "")).await;
    let (alice, bob) = (a.handle(), b.handle());
    issue(&alice, revoke("r", "bob", "calendar")).await;
    ends(&alice, "r", Terminal::Applied).await;
    let posts = service.posts.lock().unwrap().clone();
    assert_eq!(posts.len(), 1);
    let (key, issuer, body) = &posts[0];
    assert_eq!((key.as_str(), issuer.as_str()), ("r", id("alice").as_str()));
    assert_eq!(body.pointer("/payload/scope"), Some(&json!("calendar")));
    assert_eq!(service.effects_of("r"), 1);
    assert!(bob.store().last(Table::Intent).unwrap().is_none(), "settled");
    assert_eq!(
        granted(bob.store(), Role::Receiver, "alice", "calendar"),
        Some(false),
        "what an agent asks is right too"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab3_an_id_of_any_text_reaches_the_handler() {
    let world = World::new();
    let (service, at) = Service::start().await;
    let (a, _b) = world.pair("", &handler(at, "")).await;
    for (name, key) in [("größe 5", "gr%C3%B6%C3%9Fe%205"), ("100%", "100%25"), ("a/b", "a/b")] {
        issue(&a.handle(), revoke(name, "bob", name)).await;
        ends(&a.handle(), name, Terminal::Applied).await;
        assert_eq!(service.effects_of(key), 1, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dc1_a_decline_of_the_handler_ends_with_the_fail_safe() {
    let world = World::new();
    let (service, at) = Service::start().await;
    let (a, b) = world.pair("", &handler(at, "")).await;
    let alice = a.handle();
    service.set(Mood::Declines);
    issue(&alice, revoke("r", "bob", "calendar")).await;
    let outcome = ends(&alice, "r", Terminal::Declined).await;
    assert_eq!(outcome.reason.unwrap().as_str(), "not my patient");
    assert_eq!(granted(alice.store(), Role::Principal, "bob", "calendar"), Some(false));
    assert_eq!(
        granted(b.handle().store(), Role::Receiver, "alice", "calendar"),
        None,
        "declined is not applied"
    );
    assert!(alice.store().last(Table::Escalation).unwrap().is_none(), "a decline is no escalation");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dc1_a_decline_can_be_left_to_the_principal() {
    let world = World::new();
    let (service, at) = Service::start().await;
    let surface = format!("kinds.\"{BELIEF}\".on_decline = \"surface\"\n");
    let (a, _b) = world.pair(&surface, &handler(at, "").replace(CONSENT, BELIEF)).await;
    let alice = a.handle();
    service.set(Mood::Declines);
    issue(&alice, move_weight("w", "bob", "route", -0.25)).await;
    ends(&alice, "w", Terminal::Declined).await;
    assert_eq!(
        weight(alice.store(), Role::Principal, "bob", "route"),
        None,
        "the principal has not decided"
    );
    let item = reconcile(&alice, 1).unwrap();
    assert_eq!((item.kind, item.obligation_id), (ReconcileKind::DeclineSurfaced, ob("w")));
    alice.resolve(1, Resolution::ApplySafe).await.unwrap().unwrap();
    assert_eq!(weight(alice.store(), Role::Principal, "bob", "route"), Some(250_000_000));
    assert!(alice.resolve(1, Resolution::ApplySafe).await.unwrap().is_err(), "resolved once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn df1_a_handler_may_defer_and_apply_later() {
    let world = World::new();
    let (service, at) = Service::start().await;
    let (a, _b) = world.pair("", &handler(at, "")).await;
    let alice = a.handle();
    service.set(Mood::Defers);
    let issued = issue(&alice, revoke("r", "bob", "calendar")).await;
    eventually("the deferral", async || {
        alice.status(&ob("r")).await.unwrap().filter(|view| view.deferred && view.retries >= 2)
    })
    .await;
    assert!(service.posts_of("r") >= 2, "asked again with each offer");
    service.set(Mood::Applies);
    let outcome = ends(&alice, "r", Terminal::Applied).await;
    assert_eq!(outcome.deadline_at.as_ms(), issued.deadline_at_ms);
    assert_eq!(service.effects_of("r"), 1);
    // One that is down has done nothing: asked again, as after a deferral.
    service.set(Mood::Down);
    issue(&alice, revoke("s", "bob", "mail")).await;
    eventually("the deferral", async || {
        alice.status(&ob("s")).await.unwrap().filter(|view| view.deferred)
    })
    .await;
    service.set(Mood::Applies);
    ends(&alice, "s", Terminal::Applied).await;
    assert_eq!(service.effects_of("s"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab3_a_lost_answer_of_the_handler_is_settled_by_asking_for_the_status() {
    let world = World::new();
    let (service, at) = Service::start().await;
    let (a, _b) = world.pair("", &handler(at, "")).await;
    let alice = a.handle();
    service.set(Mood::LosesAnswer);
    issue(&alice, revoke("r", "bob", "calendar")).await;
    ends(&alice, "r", Terminal::Applied).await;
    assert_eq!((service.posts_of("r"), service.effects_of("r")), (1, 1), "never asked for twice");
    assert_eq!(*service.queries.lock().unwrap(), [id("alice").as_str()], "whose id it is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab3_what_nobody_can_say_is_reconciled_by_a_person() {
    let world = World::new();
    let (service, at) = Service::start().await;
    let (a, b) = world.pair("", &handler(at, "")).await;
    let (alice, bob) = (a.handle(), b.handle());
    service.set(Mood::Mute);
    for (name, number, resolution, end) in [
        ("r", 1, Resolution::Applied, Terminal::Applied),
        ("s", 2, Resolution::NotApplied, Terminal::Declined),
    ] {
        issue(&alice, revoke(name, "bob", name)).await;
        let item = eventually("the item", async || reconcile(&bob, number)).await;
        assert_eq!((item.kind, item.obligation_id), (ReconcileKind::InDoubt, ob(name)));
        // Retries come, and find it waiting; the handler is not asked again.
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!(service.posts_of(name), 1);
        assert!(alice.status(&ob(name)).await.unwrap().unwrap().deferred);
        assert!(
            bob.resolve(number, Resolution::Noted).await.unwrap().is_err(),
            "a person must decide"
        );
        bob.resolve(number, resolution).await.unwrap().unwrap();
        ends(&alice, name, end).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab3_an_effect_nobody_answers_for_is_asked_for_until_the_deadline_and_never_declined() {
    let world = World::new();
    let (service, at) = Service::start().await;
    let (a, b) = world.pair("", &handler(at, "")).await;
    let (alice, bob) = (a.handle(), b.handle());
    service.set(Mood::Gone);
    // One whose handler comes back in time, one whose handler does not.
    issue(&alice, due(revoke("r", "bob", "calendar"), 60)).await;
    eventually("a second query", async || {
        (service.queries.lock().unwrap().len() >= 2).then_some(())
    })
    .await;
    service.set(Mood::Applies);
    ends(&alice, "r", Terminal::Applied).await;
    service.set(Mood::Gone);
    issue(&alice, due(revoke("s", "bob", "mail"), 2)).await;
    let item = eventually("the item", async || reconcile(&bob, 1)).await;
    assert_eq!((item.kind, item.obligation_id), (ReconcileKind::InDoubt, ob("s")));
    ends(&alice, "s", Terminal::Escalated).await;
    assert_eq!((service.posts_of("r"), service.posts_of("s")), (1, 1), "never asked for twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn df1_a_handler_without_a_status_query_may_defer_too() {
    let world = World::new();
    let (service, at) = Service::start().await;
    let (a, b) = world.pair("", &handler(at, ", query = false")).await;
    let alice = a.handle();
    service.set(Mood::Defers);
    issue(&alice, revoke("r", "bob", "calendar")).await;
    eventually("the deferral", async || {
        alice.status(&ob("r")).await.unwrap().filter(|view| view.deferred && view.retries >= 2)
    })
    .await;
    service.set(Mood::Applies);
    ends(&alice, "r", Terminal::Applied).await;
    assert_eq!((service.queries.lock().unwrap().len(), service.effects_of("r")), (0, 1));
    assert!(reconcile(&b.handle(), 1).is_none(), "its word was clear");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab3_a_restarted_receiver_asks_for_the_status_of_what_was_under_way() {
    let world = World::new();
    let (service, at) = Service::start().await;
    let (a, b) = world.pair("", &handler(at, "")).await;
    let alice = a.handle();
    service.set(Mood::Defers);
    issue(&alice, revoke("r", "bob", "calendar")).await;
    eventually("the deferral", async || {
        alice.status(&ob("r")).await.unwrap().filter(|view| view.deferred)
    })
    .await;
    let config = b.handle().config().as_ref().clone();
    b.stop().await.unwrap();
    // It was done while the node was down, and the answer went nowhere.
    service.effects.lock().unwrap().insert("r".to_owned(), 1);
    service.set(Mood::LosesAnswer);
    let _b = start(config).await;
    ends(&alice, "r", Terminal::Applied).await;
    assert_eq!(service.effects_of("r"), 1, "asked for the status, not for the effect");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dl1_a_handler_is_not_asked_for_an_effect_after_the_deadline() {
    let world = World::new();
    let (service, at) = Service::start().await;
    let (a, b) = world.pair("", &handler(at, "")).await;
    let alice = a.handle();
    service.set(Mood::Hangs);
    issue(&alice, due(revoke("r", "bob", "calendar"), 1)).await;
    eventually("the call", async || (service.posts_of("r") == 1).then_some(())).await;
    let config = b.handle().config().as_ref().clone();
    b.stop().await.unwrap();
    ends(&alice, "r", Terminal::Escalated).await;
    // The intent is found at the start, the handler says that it has never seen the id; and now it
    // is too late.
    service.set(Mood::Applies);
    let b = start(config).await;
    eventually("a status query", async || service.queries.lock().unwrap().pop()).await;
    let settled = async || b.handle().store().last(Table::Intent).unwrap().is_none().then_some(());
    eventually("the intent to be settled", settled).await;
    assert_eq!((service.posts_of("r"), service.effects_of("r")), (1, 0));
    assert_eq!(granted(b.handle().store(), Role::Receiver, "alice", "calendar"), None);
}

/// Escalations that are noted as taken by the sink.
fn taken(node: &NodeHandle) -> usize {
    let items = node.store().scan(Table::Escalation, &[], 100).unwrap();
    let noted = |value: &[u8]| {
        serde_json::from_slice::<Escalation>(value).unwrap().delivered_at_ms.is_some()
    };
    items.iter().filter(|(_, value)| noted(value)).count()
}

/// Escalations end in another order than they were issued in, and one that the sink does not take
/// holds up no other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab4_every_escalation_reaches_the_sink_in_whatever_order_they_end() {
    type Seen = Arc<Mutex<Vec<String>>>;
    async fn sink(State(seen): State<Seen>, axum::Json(body): axum::Json<Value>) -> StatusCode {
        let id = body["obligation_id"].as_str().unwrap();
        if id == "poison" {
            return StatusCode::UNPROCESSABLE_ENTITY;
        }
        seen.lock().unwrap().push(id.to_owned());
        StatusCode::NO_CONTENT
    }
    let world = World::new();
    let seen = Seen::default();
    let routes = axum::Router::new().route("/", axum::routing::post(sink));
    let at = serve(routes.with_state(seen.clone())).await;
    let sink = format!(
        "escalation = {{ webhook_url = \"http://{at}/\", webhook_retry_cap_ms = 500 }}\n{}",
        peer_toml("bob", None)
    );
    let a = start(world.config("alice", &sink)).await;
    let alice = a.handle();
    issue(&alice, due(revoke("late", "bob", "one"), 3)).await;
    issue(&alice, due(revoke("poison", "bob", "two"), 1)).await;
    issue(&alice, due(revoke("early", "bob", "three"), 2)).await;
    let all = async || (seen.lock().unwrap().len() >= 2).then_some(());
    eventually("the sink to have both", all).await;
    assert_eq!(*seen.lock().unwrap(), ["early", "late"]);
    eventually("both to be noted", async || (taken(&alice) == 2).then_some(())).await;
    // What it never took is still due after a restart, and the others are not.
    let config = alice.config().as_ref().clone();
    drop(alice);
    a.stop().await.unwrap();
    let a = start(config).await;
    issue(&a.handle(), due(revoke("last", "bob", "four"), 1)).await;
    eventually("the last", async || (seen.lock().unwrap().len() >= 3).then_some(())).await;
    assert_eq!(*seen.lock().unwrap(), ["early", "late", "last"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab4_an_escalation_is_posted_until_the_sink_takes_it() {
    type Seen = Arc<Mutex<(u32, Vec<Value>)>>;
    async fn sink(State(seen): State<Seen>, axum::Json(body): axum::Json<Value>) -> StatusCode {
        let mut seen = seen.lock().unwrap();
        seen.0 += 1;
        if seen.0 <= 2 {
            return StatusCode::INTERNAL_SERVER_ERROR;
        }
        seen.1.push(body);
        StatusCode::NO_CONTENT
    }
    let world = World::new();
    let seen = Seen::default();
    let at =
        serve(axum::Router::new().route("/", axum::routing::post(sink)).with_state(seen.clone()))
            .await;
    let sink = format!(
        "escalation = {{ webhook_url = \"http://{at}/\", webhook_retry_cap_ms = 500 }}\n{}",
        peer_toml("bob", None)
    );
    let a = start(world.config("alice", &sink)).await;
    let alice = a.handle();
    issue(&alice, due(revoke("one", "bob", "calendar"), 1)).await;
    issue(&alice, due(move_weight("two", "bob", "route", -0.25), 1)).await;
    for name in ["one", "two"] {
        let outcome = ends(&alice, name, Terminal::Escalated).await;
        assert!(
            outcome.at >= outcome.deadline_at && outcome.at.ms_since(outcome.deadline_at) < 1_000
        );
        let bytes = alice.store().get(Table::Escalation, &num_key(outcome.num)).unwrap().unwrap();
        let escalation: Escalation = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(escalation.reason, EscalationReason::Unreachable);
        assert!(escalation.safe_action_applied);
    }
    assert_eq!(granted(alice.store(), Role::Principal, "bob", "calendar"), Some(false));
    assert_eq!(weight(alice.store(), Role::Principal, "bob", "route"), Some(250_000_000));
    eventually("the sink to have both", async || (seen.lock().unwrap().1.len() == 2).then_some(()))
        .await;
    let mut ids: Vec<String> =
        seen.lock().unwrap().1.iter().map(|body| body["obligation_id"].to_string()).collect();
    ids.sort();
    assert_eq!(ids, ["\"one\"", "\"two\""], "each once");
    assert_eq!(metric(&alice, "abhyasa_escalations_open"), 2);
    alice.ack_escalation(ob("one")).await.unwrap().unwrap();
    assert_eq!(metric(&alice, "abhyasa_escalations_open"), 1);
    eventually("both to be noted", async || (taken(&alice) == 2).then_some(())).await;
    // A restart does not send them again.
    let config = alice.config().as_ref().clone();
    drop(alice);
    a.stop().await.unwrap();
    let _a = start(config).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(seen.lock().unwrap().1.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_papers_http_binding_carries_obligations_both_ways() {
    let world = World::new();
    let token = world.path().join("token");
    std::fs::write(&token, "a-token-both-of-them-know\n").unwrap();
    #[cfg(unix)]
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let listen = async || tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at_alice, at_bob) = (listen().await, listen().await);
    let peer = |name: &str, at: SocketAddr| {
        format!(
            "{}http_token_file = {:?}\nobligation_endpoint = \"http://{at}/abhyasa/obligations\"\ncustody_ack_endpoint = \"http://{at}/abhyasa/custody_ack\"\n",
            peer_toml(name, None),
            token.display().to_string(),
        )
    };
    let (service, handler_at) = Service::start().await;
    let slow = handler(handler_at, "");
    let a = start(world.config("alice", &peer("bob", at_bob.local_addr().unwrap()))).await;
    let b = start(
        world.config("bob", &format!("{slow}{}", peer("alice", at_alice.local_addr().unwrap()))),
    )
    .await;
    let (alice, bob) = (a.handle(), b.handle());
    for (listener, node) in [(at_alice, alice.clone()), (at_bob, bob.clone())] {
        tokio::spawn(abhyasa::api::serve(listener, node, std::future::pending()));
    }
    issue(&alice, move_weight("w", "bob", "route", -0.25)).await;
    issue(&bob, move_weight("v", "alice", "route", -0.25)).await;
    ends(&alice, "w", Terminal::Applied).await;
    ends(&bob, "v", Terminal::Applied).await;
    assert_eq!(weight(bob.store(), Role::Receiver, "alice", "route"), Some(250_000_000));
    assert_eq!(weight(alice.store(), Role::Receiver, "bob", "route"), Some(250_000_000));
    issue(&alice, revoke("r", "bob", "calendar")).await;
    ends(&alice, "r", Terminal::Applied).await;
    assert_eq!(service.effects_of("r"), 1);
    service.set(Mood::Declines);
    issue(&alice, revoke("s", "bob", "mail")).await;
    assert_eq!(
        ends(&alice, "s", Terminal::Declined).await.reason.unwrap().as_str(),
        "not my patient"
    );
    service.set(Mood::Defers);
    issue(&alice, revoke("t", "bob", "photos")).await;
    eventually("the deferral", async || {
        alice.status(&ob("t")).await.unwrap().filter(|view| view.deferred)
    })
    .await;
    service.set(Mood::Applies);
    ends(&alice, "t", Terminal::Applied).await;
}
