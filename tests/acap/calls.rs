//! What the gate makes of the chains: nothing passes without consent, and everything leaves an event.

use super::{
    PROFILING, Server, USE, blocking, code, config, event, first, publish, record, second,
};
use crate::common::World;
use serde_json::json;

/// Each refusal says what is missing and which claims are in the way, and is on record.
#[tokio::test(flavor = "multi_thread")]
async fn s1_s4_no_call_passes_without_consent_and_a_permit() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    let refused = server.call("analyse", json!({})).await.unwrap_err();
    assert_eq!(refused["code"], "consent_required");
    assert_eq!(blocking(&refused), [USE, PROFILING]);
    assert_eq!(refused["policy_version"], "1.0.0");
    assert_eq!(server.consent(&record("r-1", None, &first(), &[], json!({}))).await.0, 201);
    let refused = server.call("analyse", json!({})).await.unwrap_err();
    assert_eq!(
        (&refused["code"], blocking(&refused)),
        (&json!("claims_blocked"), vec![USE, PROFILING])
    );
    server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
    let refused = server.call("analyse", json!({})).await.unwrap_err();
    assert_eq!(blocking(&refused), [PROFILING]);
    server.adhere(&event("e-2", Some("e-1"), "r-1", PROFILING, "deny", json!({}))).await;
    let refused = server.call("analyse", json!({})).await.unwrap_err();
    assert_eq!(refused["blocking_claims"][0]["why"], "denied by its latest adherence event");
    assert_eq!(server.call("book", json!({})).await, Ok(()), "that skill is not governed by it");
    server.adhere(&event("e-3", Some("e-2"), "r-1", PROFILING, "permit", json!({}))).await;
    assert_eq!(server.call("analyse", json!({})).await, Ok(()));
    let attempts = server.entries("attempt").await;
    let said: Vec<_> = attempts
        .iter()
        .map(|attempt| {
            let event = &attempt["event"];
            (attempt["decision"].as_str().unwrap(), event["claim_id"].as_str().unwrap_or("none"))
        })
        .collect();
    assert_eq!(
        said,
        [
            ("deny", "none"), // there is no record that an event could rest on
            ("deny", USE),
            ("deny", PROFILING),
            ("deny", PROFILING),
            ("permit", USE),
            ("permit", USE),
        ]
    );
    assert_eq!(attempts[0]["blocking"], json!([USE, PROFILING]));
    server.stop().await;
}

/// Conditional consent: what is disputed blocks the skills it governs, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn s5_s6_a_disputed_claim_blocks_its_skills_only() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    let told = server.consent(&record("r-1", None, &first(), &[PROFILING], json!({}))).await;
    assert_eq!((told.0, &told.1["decision"]), (201, &json!("conditional")));
    server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
    let permit = event("e-2", Some("e-1"), "r-1", PROFILING, "permit", json!({}));
    assert_eq!(code(&server.adhere(&permit).await), (403, "claims_blocked"));
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    let refused = server.call("analyse", json!({})).await.unwrap_err();
    assert_eq!(blocking(&refused), [PROFILING]);
    assert_eq!(refused["blocking_claims"][0]["why"], "disputed by the caller");
    server.stop().await;
}

/// A new version ends consent, also of a caller that was there before; anew it goes on in the same chain.
#[tokio::test(flavor = "multi_thread")]
async fn s7_a_new_version_of_the_policy_blocks_until_there_is_new_consent() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
    server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    let config = server.stop().await;
    publish(&world, &second());
    let server = Server::start(config).await;
    let (_, audit) = server.audit(None, "bob", "").await;
    assert_eq!((&audit["state"], &audit["ended"]), (&json!("stale"), &json!("POLICY_BUMP")));
    let refused = server.call("book", json!({})).await.unwrap_err();
    assert_eq!((&refused["code"], blocking(&refused)), (&json!("consent_stale"), vec![USE]));
    let late = event("e-2", Some("e-1"), "r-1", USE, "permit", json!({}));
    let late = server.adhere(&late).await;
    assert_eq!(code(&late), (403, "consent_stale"));
    assert_eq!(late.1["error"]["reconsent_trigger"], "POLICY_BUMP");
    let trigger = json!({ "reconsent_trigger": "POLICY_BUMP" });
    assert_eq!(server.consent(&record("r-2", Some("r-1"), &second(), &[], trigger)).await.0, 201);
    let refused = server.call("book", json!({})).await.unwrap_err();
    assert_eq!(refused["code"], "claims_blocked", "what was said before counts no more");
    server.adhere(&event("e-2", Some("e-1"), "r-2", USE, "permit", json!({}))).await;
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    // The attempt in between rests on the record that was.
    let attempts = server.entries("attempt").await;
    assert_eq!(attempts[1]["event"]["consent_record_id"], "r-1");
    assert_eq!(attempts[1]["decision"], "deny");
    server.stop().await;
}

/// Who is another than the one that consented is not let in, nor is it again by saying what it was, nor
/// after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn s7_a_caller_that_changes_has_to_consent_anew() {
    for (told, beside) in [
        ("caller_capability_hash", "acap/caller_capability_hash"),
        ("principal_id", "acap/principal_id"),
    ] {
        let world = World::new();
        let server = Server::start(config(&world, "")).await;
        let is = |what: &str| json!({ told: what });
        let says = |what: &str| json!({ beside: what });
        server.consent(&record("r-1", None, &first(), &[], is("one"))).await;
        server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
        assert_eq!(server.call("book", says("one")).await, Ok(()));
        assert_eq!(server.call("book", json!({})).await, Ok(()), "nothing said, nothing changed");
        let refused = server.call("book", says("two")).await.unwrap_err();
        assert_eq!(refused["code"], "consent_stale", "{told}");
        assert_eq!(server.call("book", says("one")).await.unwrap_err()["code"], "consent_stale");
        let server = Server::start(server.crash()).await;
        assert_eq!(server.call("book", says("one")).await.unwrap_err()["code"], "consent_stale");
        server.consent(&record("r-2", Some("r-1"), &first(), &[], is("two"))).await;
        server.adhere(&event("e-2", Some("e-1"), "r-2", USE, "permit", json!({}))).await;
        assert_eq!(server.call("book", says("two")).await, Ok(()));
        server.stop().await;
    }
}

/// In delegated mode this node decides: what it finds stricter than the caller is what counts, and both
/// are on record.
#[tokio::test(flavor = "multi_thread")]
async fn in_delegated_mode_the_node_decides() {
    let world = World::new();
    let server = Server::start(config(&world, "mode = \"delegated\"")).await;
    server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
    server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
    let of = |purpose: &str| json!({ "context": { "odrl:purpose": purpose } });
    let profiles =
        event("e-2", Some("e-1"), "r-1", PROFILING, "permit", of("behavioral_profiling"));
    let told = server.adhere(&profiles).await;
    assert_eq!((told.0, &told.1["decision"]), (201, &json!("deny")), "{told:?}");
    assert!(told.1["reasoning"].as_str().unwrap().contains("§3.4"), "{told:?}");
    assert_eq!(server.adhere(&profiles).await, told, "told again, answered alike");
    assert_eq!(blocking(&server.call("analyse", json!({})).await.unwrap_err()), [PROFILING]);
    let unknown = event("e-3", Some("e-2"), "r-1", PROFILING, "permit", json!({}));
    assert_eq!(server.adhere(&unknown).await.1["decision"], "escalate", "no purpose is given");
    let counts = event("e-4", Some("e-3"), "r-1", PROFILING, "permit", of("statistics"));
    assert_eq!(server.adhere(&counts).await.1["decision"], "permit");
    assert_eq!(server.call("analyse", json!({})).await, Ok(()));
    // A caller may be stricter.
    let strict = event("e-5", Some("e-4"), "r-1", PROFILING, "deny", of("statistics"));
    assert_eq!(server.adhere(&strict).await.1["decision"], "deny");
    let events = server.entries("event").await;
    assert_eq!(events[1]["decision"], "deny");
    assert_eq!(events[1]["event_given"]["decision"], "permit");
    server.stop().await;
}
