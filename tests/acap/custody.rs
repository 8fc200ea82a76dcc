//! Consent that an obligation withdraws, between two nodes.

use super::{PROFILING, Server, USE, acap, code, event, file, first, private, publish, record};
use crate::common::{self, CONSENT, World, connected, ends, id, issue, peer_toml, revoke};
use abhyasa::loopback::free_address;
use abhyasa::proto::record::Terminal;
use serde_json::json;

/// Bob's node revokes under custody: once that is applied, his next call is refused, his consent has ended
/// for good, and nothing but new consent after a grant brings it back.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_under_custody_blocks_the_next_call() {
    let world = World::new();
    publish(&world, &first());
    let token = world.path().join("bob.token");
    std::fs::write(&token, super::BOB).unwrap();
    private(&token);
    let (at_alice, at_bob) = (free_address().unwrap(), free_address().unwrap());
    let more = format!(
        "[a2a]\nagent = \"echo\"\nskills_believed = true\n{}{}http_token_file = {token:?}\n",
        acap(&world, ""),
        peer_toml("bob", Some(at_bob))
    );
    let mut alice = world.config_at("alice", at_alice, &more);
    alice.api.listen = free_address().unwrap();
    let server = Server::start(alice).await;
    let bob = world.config_at("bob", at_bob, &peer_toml("alice", Some(at_alice)));
    let bob = common::start(bob).await;
    connected(&bob.handle(), 1).await;
    assert!(file(&world).exists());
    server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
    server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    issue(&bob.handle(), revoke("withdraw-1", "alice", "acap.consent")).await;
    ends(&bob.handle(), "withdraw-1", Terminal::Applied).await;
    // Applied is applied: there is nothing to wait for.
    let refused = server.call("book", json!({})).await.unwrap_err();
    assert_eq!(
        (&refused["code"], &refused["obligation_id"]),
        (&json!("withdrawn"), &json!("withdraw-1"))
    );
    let more = event("e-2", Some("e-1"), "r-1", USE, "permit", json!({}));
    assert_eq!(code(&server.adhere(&more).await), (403, "withdrawn"));
    let anew = record("r-2", Some("r-1"), &first(), &[], json!({}));
    assert_eq!(code(&server.consent(&anew).await), (403, "withdrawn"));
    let attempts = server.entries("attempt").await;
    assert_eq!(attempts[1]["decision"], "deny");
    assert_eq!(attempts[1]["event"]["consent_record_id"], "r-1");
    let server = Server::start(server.crash()).await;
    connected(&bob.handle(), 1).await;
    assert_eq!(server.call("book", json!({})).await.unwrap_err()["code"], "withdrawn");
    let grant = json!({
        "obligation_id": "grant-1", "kind": CONSENT, "target": id("alice"),
        "payload": { "decision": "grant", "scope": "acap.consent", "sequence": 100 },
        "deadline_seconds": 60, "max_retries": 600, "created_at": super::now(), "sequence": 100,
    });
    let granted = server.post(Some(super::BOB), "/abhyasa/obligations", &grant).await;
    assert_eq!((granted.0, &granted.1["status"]), (200, &json!("applied")), "{granted:?}");
    let refused = server.call("book", json!({})).await.unwrap_err();
    assert_eq!(refused["code"], "withdrawn", "the old record stays withdrawn");
    assert_eq!(server.consent(&anew).await.0, 201);
    server.adhere(&event("e-2", Some("e-1"), "r-2", USE, "permit", json!({}))).await;
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    let refused = server.call("analyse", json!({})).await.unwrap_err();
    assert_eq!(super::blocking(&refused), [PROFILING]);
    server.stop().await;
    bob.stop().await.unwrap();
}
