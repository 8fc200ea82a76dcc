//! Ways around consent that are none.

use super::{PROFILING, Server, USE, blocking, code, config, event, first, private, record};
use crate::common::{World, id};
use serde_json::json;

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
