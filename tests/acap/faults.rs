//! Ways around consent that are none.

use super::{
    BOB, PROFILING, Server, USE, blocking, code, config, event, first, now, private, publish,
    record, second,
};
use crate::common::{CONSENT, World, eventually, id};
use serde_json::{Value, json};
use std::time::Duration;

/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(40);

const OPERATOR: &str = "token-of-the-operator-0123456789";

/// Who is nobody has consented to nothing; the operator is somebody.
#[tokio::test(flavor = "multi_thread")]
async fn s1_who_calls_without_a_token_is_refused_what_claims_govern() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    let refused = server.call_as(None, "analyse", json!({})).await.unwrap_err();
    assert_eq!(refused["code"], "consent_required");
    assert_eq!(blocking(&refused), [USE, PROFILING]);
    assert_eq!(refused["policy_version"], "1.0.0");
    assert_eq!(server.call_as(None, "free", json!({})).await, Ok(()), "no claim governs it");
    let mut config = server.stop().await;

    config.acap.local_callers = true;
    let server = Server::start(config).await;
    assert_eq!(server.call_as(None, "analyse", json!({})).await, Ok(()));
    let mut config = server.stop().await;

    config.acap.local_callers = false;
    let file = world.path().join("operator.token");
    std::fs::write(&file, OPERATOR).unwrap();
    private(&file);
    config.api.token_file = Some(file);
    let server = Server::start(config).await;
    assert_eq!(server.call_as(Some(OPERATOR), "analyse", json!({})).await, Ok(()));
    server.stop().await;
}

/// For whom a caller acts is not for it to say where the node knows.
#[tokio::test(flavor = "multi_thread")]
async fn s7_a_caller_acts_for_whom_its_table_names() {
    let world = World::new();
    let mut config = config(&world, "");
    let bob = config.peers.iter_mut().find(|peer| peer.id == id("bob")).unwrap();
    bob.principal = id("dave");
    let server = Server::start(config).await;
    let of = |who: &str| json!({ "principal_id": id(who) });
    let told = server.consent(&record("r-1", None, &first(), &[], of("erin"))).await;
    assert_eq!(code(&told), (403, "principal"));
    assert_eq!(server.consent(&record("r-1", None, &first(), &[], of("dave"))).await.0, 201);
    let permit = event("e-1", None, "r-1", USE, "permit", of("erin"));
    assert_eq!(code(&server.adhere(&permit).await), (403, "principal"));
    server.adhere(&event("e-1", None, "r-1", USE, "permit", of("dave"))).await;
    let by = |who: &str| json!({ "acap/principal_id": id(who) });
    let refused = server.call("book", by("erin")).await.unwrap_err();
    assert_eq!(refused["code"], "principal");
    assert_eq!(server.call("book", by("dave")).await, Ok(()), "its consent holds");
    let attempts = server.entries("attempt").await;
    let decisions: Vec<_> = attempts.iter().map(|attempt| attempt["decision"].clone()).collect();
    assert_eq!(decisions, ["deny", "permit"], "what was refused is on record");
    server.stop().await;
}

/// Where a permit is for one call, the next needs events of its own; also after a crash.
#[tokio::test(flavor = "multi_thread")]
async fn s4_a_permit_may_be_for_one_call() {
    let world = World::new();
    let server = Server::start(config(&world, "permit = \"once\"")).await;
    server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
    server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
    server.adhere(&event("e-2", Some("e-1"), "r-1", PROFILING, "permit", json!({}))).await;
    assert_eq!(server.call("analyse", json!({})).await, Ok(()));
    let server = Server::start(server.crash()).await;
    let refused = server.call("book", json!({})).await.unwrap_err();
    assert_eq!((&refused["code"], blocking(&refused)), (&json!("claims_blocked"), vec![USE]));
    server.adhere(&event("e-3", Some("e-2"), "r-1", USE, "permit", json!({}))).await;
    let refused = server.call("analyse", json!({})).await.unwrap_err();
    assert_eq!(blocking(&refused), [PROFILING], "and uses nothing up");
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    assert!(server.call("book", json!({})).await.is_err());
    server.stop().await;
}

/// Asks for a turn that takes long, or waits behind one that does; gives its task.
pub(super) async fn slow(server: &Server, name: &str, delay: Duration) -> String {
    let message = json!({
        "messageId": name, "role": "ROLE_USER", "parts": [{ "text": "hello" }],
        "metadata": { "abhyasa.skill": "book", "abhyasa.echo": { "delay_ms": delay.as_millis() } },
    });
    let params = json!({ "message": message, "configuration": { "returnImmediately": true } });
    let answer = server.rpc(Some(BOB), "SendMessage", params).await;
    answer["result"]["task"]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// Waits until a task is in a state, and gives its status.
pub(super) async fn status(server: &Server, task: &str, state: &str) -> Value {
    eventually(state, async || {
        let found = server.rpc(Some(BOB), "GetTask", json!({ "id": task })).await;
        let status = &found["result"]["status"];
        (status["state"] == state).then(|| status.clone())
    })
    .await
}

/// A turn that waited for a place needs consent as it begins, and so does one that is begun anew after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn s7_what_waited_begins_by_consent_that_holds_then() {
    let world = World::new();
    let mut config = config(&world, "");
    config.a2a.running_max = 1;
    let server = Server::start(config).await;
    server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
    server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
    let running = slow(&server, "m-1", LONG).await;
    status(&server, &running, "TASK_STATE_WORKING").await;
    let waiting = slow(&server, "m-2", LONG).await;
    status(&server, &waiting, "TASK_STATE_SUBMITTED").await;
    server.adhere(&event("e-2", Some("e-1"), "r-1", USE, "deny", json!({}))).await;
    status(&server, &running, "TASK_STATE_WORKING").await; // it is let finish
    let canceled = server.rpc(Some(BOB), "CancelTask", json!({ "id": running })).await;
    assert!(canceled.get("error").is_none(), "{canceled}");
    let ended = status(&server, &waiting, "TASK_STATE_CANCELED").await;
    let withheld = &ended["message"]["metadata"]["abhyasa.withheld"]["acap"];
    assert_eq!(withheld["code"], "claims_blocked", "{ended}");
    assert_eq!(blocking(withheld), [USE]);
    let attempts = server.entries("attempt").await;
    let decisions: Vec<_> = attempts.iter().map(|attempt| attempt["decision"].clone()).collect();
    assert_eq!(decisions, ["permit", "permit", "deny"], "that it was refused is on record");

    server.adhere(&event("e-3", Some("e-2"), "r-1", USE, "permit", json!({}))).await;
    let again = slow(&server, "m-3", LONG).await;
    status(&server, &again, "TASK_STATE_WORKING").await;
    let config = server.crash();
    publish(&world, &second());
    let server = Server::start(config).await;
    let ended = status(&server, &again, "TASK_STATE_CANCELED").await;
    let withheld = &ended["message"]["metadata"]["abhyasa.withheld"]["acap"];
    assert_eq!(withheld["code"], "consent_stale", "{ended}");
    server.stop().await;
}

/// A revocation ends the record also where a grant follows before anybody looks: the gate looks 20 ms after a change.
#[tokio::test(flavor = "multi_thread")]
async fn ab1_what_was_revoked_and_granted_at_once_needs_new_consent() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    let decides = async |name: &str, sequence: u64, decision: &str, scope: &str| {
        let obligation = json!({
            "obligation_id": name, "kind": CONSENT, "target": id("alice"),
            "payload": { "decision": decision, "scope": scope, "sequence": sequence },
            "deadline_seconds": 60, "max_retries": 600, "created_at": now(), "sequence": sequence,
        });
        let told = server.post(Some(BOB), "/abhyasa/obligations", &obligation).await;
        assert_eq!((told.0, &told.1["status"]), (200, &json!("applied")), "{told:?}");
    };
    server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
    server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    decides("other-1", 1, "grant", "other").await; // it looks now
    decides("revoke-1", 2, "revoke", "acap.consent").await;
    decides("grant-1", 3, "grant", "acap.consent").await;
    let refused = server.call("book", json!({})).await.unwrap_err();
    assert_ne!(refused["code"], "claims_blocked", "{refused}");
    let config = server.crash();
    let server = Server::start(config).await;
    assert!(server.call("book", json!({})).await.is_err(), "also after a restart");
    let anew = record("r-2", Some("r-1"), &first(), &[], json!({}));
    assert_eq!(server.consent(&anew).await.0, 201);
    server.adhere(&event("e-2", None, "r-2", USE, "permit", json!({}))).await;
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    server.stop().await;
}
