//! Decisions that take back what was permitted, under custody, between two nodes.

use super::caller::{Between, alice, ask, bob, operator, status};
use super::{PROFILING, Server, USE, blocking};
use crate::common::{CONSENT, World, connected, draft, ends, eventually, id, issue, revoke};
use abhyasa::config::{HttpUrl, IntendedUse, NodeConfig};
use abhyasa::proto::consent::{Context, PrincipalId, Text};
use abhyasa::proto::record::Terminal;
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

pub(super) fn acts(task: &Value) -> bool {
    task["status"]["state"] == "TASK_STATE_COMPLETED"
}

pub(super) fn refusal(task: &Value) -> &Value {
    &task["status"]["message"]["metadata"]["acap"]
}

/// Ids of transfers of a node that ended applied, by how they begin.
pub(super) async fn applied(node: &Server, beginning: &str) -> Vec<String> {
    let (_, page) = super::answer(node.request(Method::GET, "/v1/terminal?limit=1000")).await;
    let items = page["items"].as_array().unwrap().iter();
    items
        .filter(|item| item["state"] == "applied")
        .filter_map(|item| item["obligation_id"].as_str())
        .filter(|id| id.starts_with(beginning))
        .map(str::to_owned)
        .collect()
}

pub(super) async fn begun(node: &Server) {
    connected(&node.node.as_ref().unwrap().handle(), 1).await;
}

async fn ended_applied(node: &Server, name: &str) {
    ends(&node.node.as_ref().unwrap().handle(), name, Terminal::Applied).await;
}

/// Bob withdraws his consent, and Alice revokes it: either counts at once where it is decided and, once it is
/// applied, where it is told. Nothing but new consent after a grant brings it back.
#[tokio::test(flavor = "multi_thread")]
async fn ab_1_consent_is_withdrawn_by_the_caller_and_revoked_by_the_callee() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let at_bob = bob(&world, &at_alice, false, "poll_seconds = 3600");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    begun(&bob).await;
    assert!(acts(&ask(&bob, json!({})).await));
    let of = |peer: &str, name: &str| json!({ "peer": id(peer), "obligation_id": name });
    let (code, issued) = operator(&bob, "/v1/consent/withdraw", of("alice", "w-1")).await;
    assert_eq!((code, &issued["custody"]), (200, &json!(true)), "{issued}");
    let held = ask(&bob, json!({})).await;
    let why = refusal(&held);
    assert_eq!((&why["code"], &why["obligation_id"]), (&json!("withdrawn"), &json!("w-1")));
    ended_applied(&bob, "w-1").await;
    let refused = alice.call("book", json!({})).await.unwrap_err();
    assert_eq!((&refused["code"], &refused["obligation_id"]), (&json!("withdrawn"), &json!("w-1")));
    let (code, granted) = operator(&bob, "/v1/consent/grant", of("alice", "g-1")).await;
    assert_eq!((code, &granted["custody"]), (200, &json!(false)), "best-effort");
    let again = async || acts(&ask(&bob, json!({})).await).then_some(());
    eventually("new consent after the grant", again).await;
    let records = alice.entries("record").await;
    assert_eq!(records.len(), 2, "{records:?}");
    assert_eq!(records[1]["reconsent_trigger"], "PRINCIPAL_CHANGE");

    let attempts = alice.entries("attempt").await.len();
    let (code, issued) = operator(&alice, "/v1/consent/revoke", of("bob", "r-1")).await;
    assert_eq!((code, &issued["custody"]), (200, &json!(true)), "{issued}");
    ended_applied(&alice, "r-1").await;
    // Applied is applied: there is nothing to wait for.
    let held = ask(&bob, json!({})).await;
    let why = refusal(&held);
    assert_eq!(
        (&why["code"], &why["by"], &why["obligation_id"]),
        (&json!("withdrawn"), &json!("caller"), &json!("r-1"))
    );
    assert_eq!(alice.entries("attempt").await.len(), attempts, "it did not leave");
    let ended = async || (status(&bob).await["withdrawn_by"] == "r-1").then_some(());
    eventually("the end of the record here", ended).await;
    let bob = Server::start(bob.crash()).await;
    assert_eq!(refusal(&ask(&bob, json!({})).await)["code"], "withdrawn");
    begun(&bob).await;
    operator(&alice, "/v1/consent/grant", of("bob", "g-2")).await;
    let again = async || acts(&ask(&bob, json!({})).await).then_some(());
    eventually("new consent after the grant", again).await;
    assert_eq!(alice.entries("record").await.len(), 3, "the old one stays withdrawn");
    let stranger = operator(&bob, "/v1/consent/withdraw", of("carol", "w-2")).await;
    assert_eq!((stranger.0, &stranger.1["error"]["code"]), (404, &json!("unknown_callee")));
    bob.stop().await;
    alice.stop().await;
}

fn act(facts: Value, claims: &[&str]) -> Value {
    json!({ "callee": id("alice"), "call": "a2a:analyse", "facts": facts, "claims": claims })
}

/// Bob, who reaches Alice's policy and chains by way of `between`.
fn bob_by(world: &World, at_alice: &NodeConfig, between: &Between) -> NodeConfig {
    let mut at_bob = bob(world, at_alice, false, "poll_seconds = 3600");
    let url = HttpUrl::try_from(format!("http://{}/", between.at)).unwrap();
    at_bob.consent[0].url = Some(url);
    at_bob
}

/// Bob denies by a claim that he had permitted, and his event does not reach Alice: the obligation does, and
/// blocks what the claim governs, and nothing else, until he permits it again.
#[tokio::test(flavor = "multi_thread")]
async fn ac_1_a_denial_blocks_at_the_callee_before_its_event_is_there() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let (between, _served) = Between::before(&at_alice).await;
    let at_bob = bob_by(&world, &at_alice, &between);
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    begun(&bob).await;
    let may = operator(&bob, "/v1/consent/act", act(json!({}), &[])).await;
    assert_eq!(may.0, 200, "{may:?}");
    assert_eq!(alice.call("analyse", json!({})).await, Ok(()));
    between.cuts.store(true, Ordering::SeqCst);
    let profiling = json!({ "odrl:purpose": "behavioral_profiling" });
    let (code, lost) = operator(&bob, "/v1/consent/act", act(profiling, &[PROFILING])).await;
    assert_eq!((code, &lost["error"]["code"]), (503, &json!("unreached")), "{lost}");
    let told = async || applied(&bob, "acap-deny-").await.pop();
    let denial = eventually("the obligation at Alice", told).await;
    let refused = alice.call("analyse", json!({})).await.unwrap_err();
    assert_eq!(
        (refused["code"].as_str(), blocking(&refused)),
        (Some("claims_blocked"), vec![PROFILING])
    );
    assert_eq!(alice.call("book", json!({})).await, Ok(()), "the other claim is not meant");
    let event = denial.strip_prefix("acap-deny-").unwrap();
    assert!(alice.entries("event").await.iter().all(|one| one["event_id"] != event));
    between.cuts.store(false, Ordering::SeqCst);
    let may = operator(&bob, "/v1/consent/act", act(json!({}), &[])).await;
    assert_eq!(may.0, 200, "{may:?}");
    assert_eq!(alice.call("analyse", json!({})).await, Ok(()));
    assert!(alice.entries("event").await.iter().any(|one| one["event_id"] == event));
    bob.stop().await;
    alice.stop().await;
}

/// While custody takes no more, a decision that takes back is not told otherwise either.
#[tokio::test(flavor = "multi_thread")]
async fn ab_1_no_denial_is_sent_before_its_obligation_is_durable() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let (between, _served) = Between::before(&at_alice).await;
    let mut at_bob = bob_by(&world, &at_alice, &between);
    // No session between them, so that what is issued stays pending.
    at_bob.peers[0].address = Some("127.0.0.1:9".parse().unwrap());
    at_bob.custody.pending_per_peer_max = 1;
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    let may = operator(&bob, "/v1/consent/act", act(json!({}), &[])).await;
    assert_eq!(may.0, 200, "{may:?}");
    issue(&bob.node.as_ref().unwrap().handle(), revoke("fills", "alice", "calendar")).await;
    let sent = between.heard.lock().unwrap().len();
    let profiling = json!({ "odrl:purpose": "behavioral_profiling" });
    for _ in 0..2 {
        let denied = operator(&bob, "/v1/consent/act", act(profiling.clone(), &[PROFILING])).await;
        assert_eq!((denied.0, &denied.1["error"]["code"]), (503, &json!("custody")), "{denied:?}");
    }
    assert_eq!(between.heard.lock().unwrap().len(), sent, "nothing was told");
    // As little after a crash.
    let bob = Server::start(bob.crash()).await;
    let denied = operator(&bob, "/v1/consent/act", act(json!({}), &[])).await;
    assert_eq!((denied.0, &denied.1["error"]["code"]), (503, &json!("custody")), "{denied:?}");
    assert_eq!(between.heard.lock().unwrap().len(), sent, "nothing was told");
    bob.stop().await;
    alice.stop().await;
}

/// Bob acts for somebody else, who intends what a claim prohibits: his new record disputes what the old one
/// accepted. That goes under custody, and does not end the record that says it.
#[tokio::test(flavor = "multi_thread")]
async fn s7_a_principal_change_that_disputes_more_goes_under_custody() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let at_bob = bob(&world, &at_alice, false, "poll_seconds = 3600");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    begun(&bob).await;
    assert!(acts(&ask(&bob, json!({})).await));
    let mut at_bob = bob.stop().await;
    let facts = [("odrl:purpose".to_owned(), "behavioral_profiling".to_owned())];
    let consent = &mut at_bob.consent[0];
    consent.principal = Some(PrincipalId::new("spiffe://test/org").unwrap());
    consent.facts = Context::new(facts.into()).unwrap();
    consent.uses = vec![IntendedUse {
        action: Text::new("odrl:aggregate").unwrap(),
        asset: Text::new("a2a:task_output").unwrap(),
    }];
    let bob = Server::start(at_bob).await;
    let told = async || applied(&bob, "acap-dispute-").await.pop();
    let dispute = eventually("the obligation at Alice", told).await;
    let anew = async || alice.entries("record").await.get(1).cloned();
    let record = eventually("the record at Alice", anew).await;
    assert_eq!(dispute, format!("acap-dispute-{}", record["record_id"].as_str().unwrap()));
    assert_eq!(
        (&record["decision"], &record["reconsent_trigger"], &record["principal_id"]),
        (&json!("conditional"), &json!("PRINCIPAL_CHANGE"), &json!("spiffe://test/org"))
    );
    let may = operator(&bob, "/v1/consent/act", act(json!({}), &[USE])).await;
    assert_eq!(may.0, 200, "{may:?}");
    assert_eq!(alice.call("book", json!({})).await, Ok(()), "the new record holds");
    let refused = alice.call("analyse", json!({})).await.unwrap_err();
    assert_eq!(blocking(&refused), [PROFILING]);
    bob.stop().await;
    alice.stop().await;
}

/// The obligation comes long after its document, and after another that permits: it changes nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn ab_1_an_obligation_that_comes_after_its_event_changes_nothing() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let mut at_bob = bob(&world, &at_alice, false, "poll_seconds = 3600");
    let address = at_bob.peers[0].address.take();
    at_bob.peers[0].address = Some("127.0.0.1:9".parse().unwrap());
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    let profiling = json!({ "odrl:purpose": "behavioral_profiling" });
    for (facts, code) in [(json!({}), 200), (profiling, 403), (json!({}), 200)] {
        let (status, said) = operator(&bob, "/v1/consent/act", act(facts, &[])).await;
        assert_eq!(status, code, "{said}");
    }
    assert_eq!(alice.call("analyse", json!({})).await, Ok(()));
    let mut at_bob = bob.stop().await;
    at_bob.peers[0].address = address;
    let bob = Server::start(at_bob).await;
    let told = async || applied(&bob, "acap-deny-").await.pop();
    eventually("the obligation at Alice", told).await;
    assert_eq!(alice.call("analyse", json!({})).await, Ok(()));
    bob.stop().await;
    alice.stop().await;
}

/// What is withdrawn and granted again before anybody looks has ended the record all the same.
#[tokio::test(flavor = "multi_thread")]
async fn ab_1_what_is_withdrawn_for_a_moment_is_consented_to_anew() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let at_bob = bob(&world, &at_alice, false, "poll_seconds = 3600");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    begun(&bob).await;
    assert!(acts(&ask(&bob, json!({})).await));
    let scope = |decision: &str| json!({ "decision": decision, "scope": "acap.consent" });
    let draft = |name: &str, decision| draft(name, CONSENT, "alice", scope(decision));
    let handle = bob.node.as_ref().unwrap().handle();
    let both = vec![draft("w-1", "revoke"), draft("g-1", "grant")];
    assert!(handle.issue(both).await.unwrap().iter().all(Result::is_ok), "in one commit");
    let again = async || acts(&ask(&bob, json!({})).await).then_some(());
    eventually("new consent", again).await;
    let records = alice.entries("record").await;
    assert!(records.len() > 1, "{records:?}");
    assert_eq!(records[1]["reconsent_trigger"], "PRINCIPAL_CHANGE");
    drop(handle);
    bob.stop().await;
    alice.stop().await;
}
