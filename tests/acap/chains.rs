//! The chains: what is taken, what is refused, and that none of it is lost.

use super::{
    BOB, CAROL, PROFILING, Server, USE, code, config, event, first, now, publish, record, second,
};
use crate::common::{World, id};
use abhyasa::proto::consent::{
    AdherenceEvent, ConsentRecord, read, validate_chain, validate_trail,
};
use serde_json::{Value, json};

fn documents<T: serde::de::DeserializeOwned>(values: &[Value]) -> Vec<T> {
    values.iter().map(|value| read(value.to_string().as_bytes()).unwrap()).collect()
}

/// Consent, events and attempts are where they were after a crash, and make the chains of the paper.
#[tokio::test(flavor = "multi_thread")]
async fn s2_a_restart_keeps_the_chains() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    assert_eq!(server.consent(&record("r-1", None, &first(), &[], json!({}))).await.0, 201);
    let denied = server.call("book", json!({})).await.unwrap_err();
    assert_eq!(denied["code"], "claims_blocked");
    assert_eq!(server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await.0, 201);
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    let server = Server::start(server.crash()).await;
    assert_eq!(server.call("book", json!({})).await, Ok(()), "as before");
    let deny = event("e-2", Some("e-1"), "r-1", PROFILING, "deny", json!({}));
    assert_eq!(server.adhere(&deny).await.0, 201, "it goes on behind what was");
    let records: Vec<ConsentRecord> = documents(&server.entries("record").await);
    validate_chain(&records, |_| Some(Box::leak(Box::new(first())))).unwrap();
    let events: Vec<AdherenceEvent> = documents(&server.entries("event").await);
    assert_eq!(events.iter().map(|e| e.event_id.as_str()).collect::<Vec<_>>(), ["e-1", "e-2"]);
    validate_trail(&events, &records).unwrap();
    let attempts = server.entries("attempt").await;
    let said: Vec<&str> = attempts.iter().map(|a| a["decision"].as_str().unwrap()).collect();
    assert_eq!(said, ["deny", "permit", "permit"]);
    let ours: Vec<Value> = attempts.iter().map(|attempt| attempt["event"].clone()).collect();
    let ours: Vec<AdherenceEvent> = documents(&ours);
    validate_trail(&ours, &records).unwrap();
    assert_eq!(denied["event_id"], json!(ours[0].event_id));
    server.stop().await;
}

/// A record speaks for its caller only, and a chain is told to its caller and the operator only.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_another_is_refused() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    let record_of_bob = record("r-1", None, &first(), &[], json!({}));
    let replayed = server.post(Some(CAROL), "/acap/consent", &record_of_bob).await;
    assert_eq!(code(&replayed), (403, "caller"));
    let nobody = server.post(None, "/acap/consent", &record_of_bob).await;
    assert_eq!(code(&nobody), (403, "caller"));
    let stranger = server.post(Some("token-of-nobody-0123"), "/acap/consent", &record_of_bob).await;
    assert_eq!(stranger.0, 401);
    assert_eq!(server.consent(&record_of_bob).await.0, 201);
    // An event under Bob's record by somebody else has nothing to rest on.
    let stolen = event("e-1", None, "r-1", USE, "permit", json!({}));
    let stolen = server.post(Some(CAROL), "/acap/adherence", &stolen).await;
    assert_eq!(code(&stolen), (403, "consent_required"));
    assert_eq!(code(&server.audit(Some(CAROL), "bob", "").await), (403, "caller"));
    assert_eq!(server.audit(Some(BOB), "bob", "").await.0, 200);
    assert_eq!(server.audit(None, "carol", "").await.1["records"], 0);
    server.stop().await;
}

/// Told again, a document is answered alike; another under its id is refused.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_again_is_answered_alike() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    let one = record("r-1", None, &first(), &[], json!({}));
    let told = server.consent(&one).await;
    let permit = event("e-1", None, "r-1", USE, "permit", json!({}));
    let permitted = server.adhere(&permit).await;
    assert_eq!((told.0, permitted.0), (201, 201), "{told:?} {permitted:?}");
    let server = Server::start(server.crash()).await;
    assert_eq!(server.consent(&one).await, told);
    assert_eq!(server.adhere(&permit).await, permitted);
    let other = record("r-1", None, &first(), &[PROFILING], json!({}));
    assert_eq!(code(&server.consent(&other).await), (409, "id_taken"));
    let other = event("e-1", None, "r-1", PROFILING, "permit", json!({}));
    assert_eq!(code(&server.adhere(&other).await), (409, "id_taken"));
    let astray = event("e-2", Some("e-0"), "r-1", USE, "permit", json!({}));
    let astray = server.adhere(&astray).await;
    assert_eq!(code(&astray), (409, "chain"));
    assert_eq!(astray.1["error"]["prev_event_id"], "e-1");
    // What holds needs no second consent.
    let again = record("r-2", Some("r-1"), &first(), &[], json!({}));
    assert_eq!(code(&server.consent(&again).await), (409, "state"));
    assert_eq!(server.entries("record").await.len(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_an_old_version_is_a_conflict() {
    let world = World::new();
    publish(&world, &first());
    let config = Server::start(config(&world, "")).await.stop().await;
    publish(&world, &second());
    let server = Server::start(config).await;
    let old = server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
    assert_eq!(code(&old), (409, "policy_version"));
    assert_eq!(old.1["error"]["policy_version"], "2.0.0");
    let hash = json!({ "policy_hash": first().document_hash });
    let wrong = server.consent(&record("r-1", None, &second(), &[], hash)).await;
    assert_eq!(code(&wrong), (409, "policy_hash"));
    let late = json!({ "accepted_at": "2999-01-01T00:00:00Z" });
    let late = server.consent(&record("r-1", None, &second(), &[], late)).await;
    assert_eq!(code(&late), (422, "time"));
    let mut part = serde_json::to_value(record("r-1", None, &second(), &[], json!({}))).unwrap();
    part["parsed_claims"].as_array_mut().unwrap().pop();
    let part = server.post(Some(BOB), "/acap/consent", &part).await;
    assert_eq!(code(&part), (422, "record"), "a claim without an answer");
    assert!(part.1["error"]["message"].as_str().unwrap().contains("claim-retention"));
    server.stop().await;
}

/// At a limit it is said which, and a new record makes room.
#[tokio::test(flavor = "multi_thread")]
async fn bd1_chains_have_limits_with_names() {
    let world = World::new();
    let limits = "records_max = 2\nevents_max = 2\nattempts_max = 2";
    let server = Server::start(config(&world, limits)).await;
    let short = json!({ "valid_until": "2999-01-01T00:00:00Z" }); // renewable
    assert_eq!(server.consent(&record("r-1", None, &first(), &[], short.clone())).await.0, 201);
    for (name, prev) in [("e-1", None), ("e-2", Some("e-1"))] {
        assert_eq!(server.adhere(&event(name, prev, "r-1", USE, "permit", json!({}))).await.0, 201);
    }
    let third = event("e-3", Some("e-2"), "r-1", USE, "permit", json!({}));
    assert_eq!(code(&server.adhere(&third).await), (429, "full"));
    for _ in 0..2 {
        assert_eq!(server.call("book", json!({})).await, Ok(()));
    }
    let refused = server.call("book", json!({})).await.unwrap_err();
    assert!(refused["message"].as_str().unwrap().contains("acap.attempts_max"), "{refused}");
    assert_eq!(server.entries("attempt").await.len(), 2);
    let next = record("r-2", Some("r-1"), &first(), &[], short.clone());
    assert_eq!(server.consent(&next).await.0, 201);
    let event = event("e-3", Some("e-2"), "r-2", USE, "permit", json!({}));
    assert_eq!(server.adhere(&event).await.0, 201);
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    let over = record("r-3", Some("r-2"), &first(), &[], json!({ "accepted_at": now() }));
    assert_eq!(code(&server.consent(&over).await), (429, "full"));
    // The operator lets it go on, in the same chain.
    let renewed = server.post(None, "/v1/consent/renew", &json!({ "peer": id("bob") })).await;
    assert_eq!((renewed.0, &renewed.1["records"]), (200, &json!(2)), "{renewed:?}");
    let nobody = server.post(None, "/v1/consent/renew", &json!({ "peer": id("carol") })).await;
    assert_eq!(code(&nobody), (404, "not_found"));
    let server = Server::start(server.crash()).await;
    assert_eq!(server.consent(&over).await.0, 201);
    assert_eq!(server.entries("record").await[2]["prev_record_id"], "r-2");
    server.stop().await;
}

/// Long documents count by their bytes.
#[tokio::test(flavor = "multi_thread")]
async fn bd1_chains_are_bounded_in_bytes() {
    let world = World::new();
    let server = Server::start(config(&world, "caller_len_max = 65536")).await;
    assert_eq!(server.consent(&record("r-1", None, &first(), &[], json!({}))).await.0, 201);
    let long = json!({ "note": "x".repeat(30_000) });
    assert_eq!(server.adhere(&event("e-1", None, "r-1", USE, "permit", long.clone())).await.0, 201);
    assert_eq!(
        server.adhere(&event("e-2", Some("e-1"), "r-1", USE, "permit", long.clone())).await.0,
        201
    );
    let third = event("e-3", Some("e-2"), "r-1", USE, "permit", long);
    let refused = server.adhere(&third).await;
    assert_eq!(code(&refused), (429, "full"));
    assert!(refused.1["error"]["message"].as_str().unwrap().contains("acap.caller_len_max"));
    server.post(None, "/v1/consent/renew", &json!({ "peer": id("bob") })).await;
    assert_eq!(server.adhere(&third).await.0, 201);
    server.stop().await;
}

/// Pages go through records, events and attempts in order, with nothing twice.
#[tokio::test(flavor = "multi_thread")]
async fn an_audit_comes_in_pages() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
    server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
    server.adhere(&event("e-2", Some("e-1"), "r-1", USE, "permit", json!({}))).await;
    server.call("book", json!({})).await.unwrap();
    let (mut seen, mut query) = (Vec::new(), "?limit=1".to_owned());
    loop {
        let (status, page) = server.audit(Some(BOB), "bob", &query).await;
        assert_eq!(status, 200, "{page}");
        for item in page["items"].as_array().unwrap() {
            seen.push(format!("{} {}", item["kind"].as_str().unwrap(), item["number"]));
        }
        let Some(next) = page["next"].as_str() else { break };
        query = format!("?limit=1&after={next}");
    }
    assert_eq!(seen, ["record 0", "event 0", "event 1", "attempt 0"]);
    assert_eq!(code(&server.audit(Some(BOB), "bob", "?after=x").await), (400, "malformed"));
    server.stop().await;
}
