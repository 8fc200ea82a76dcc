//! The policy: served with its hash, held against what was served before.

use super::{
    PROFILING, RETENTION, Server, USE, answer, claim, claims, code, config, first, policy, publish,
    second,
};
use crate::common::World;
use abhyasa::config::NodeConfig;
use abhyasa::node::{Builder, StartError};
use abhyasa::proto::consent::{PolicyDocument, read};
use reqwest::{Method, header};
use serde_json::{Value, json};

const PATH: &str = "/.well-known/usage-policy.json";

#[tokio::test(flavor = "multi_thread")]
async fn it_is_served_with_its_hash_and_what_has_changed() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    let response = server.request(Method::GET, PATH).send().await.unwrap();
    let tag = response.headers()[header::ETAG].to_str().unwrap().to_owned();
    let served: PolicyDocument = read(&response.bytes().await.unwrap()).unwrap();
    served.verify_hash().unwrap();
    assert_eq!((&served, tag), (&first(), format!("\"{}\"", first().document_hash)));
    let again = server
        .request(Method::GET, PATH)
        .header(header::IF_NONE_MATCH, &*format!("\"{}\"", first().document_hash));
    assert_eq!(again.send().await.unwrap().status(), 304);
    let config = server.stop().await;
    publish(&world, &second());
    let server = Server::start(config).await;
    let old = server
        .request(Method::GET, PATH)
        .header(header::IF_NONE_MATCH, &*format!("\"{}\"", first().document_hash));
    assert_eq!(old.send().await.unwrap().status(), 200, "it has changed");
    let since = format!("{PATH}?since_version=1.0.0");
    let (status, diff) = answer(server.request(Method::GET, &since)).await;
    assert_eq!((status, &diff["version"], &diff["material"]), (200, &json!("2.0.0"), &json!(true)));
    assert_eq!((&diff["added"], &diff["retired"]), (&json!([RETENTION]), &json!([])));
    let named: Vec<&Value> =
        diff["claims"].as_array().unwrap().iter().map(|claim| &claim["claim_id"]).collect();
    assert_eq!(named, [&json!(RETENTION)]);
    for (version, status) in [("3.0.0", 404), ("two", 400)] {
        let path = format!("{PATH}?since_version={version}");
        assert_eq!(answer(server.request(Method::GET, &path)).await.0, status, "{version}");
    }
    server.stop().await;
}

async fn refused(config: &NodeConfig) -> String {
    match Builder::new(config.clone()).start().await {
        Err(StartError::Acap(error)) => error.to_string(),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it started"),
    }
}

/// A node does not start with a policy that is not what it says, or that bends what it said before.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_bends_what_was_served_is_refused_at_start() {
    let world = World::new();
    let mut wrong = serde_json::to_value(first()).unwrap();
    wrong["natural_language_uri"] = json!("https://alice.test/other");
    std::fs::write(super::file(&world), wrong.to_string()).unwrap();
    let config = config(&world, "");
    assert!(refused(&config).await.contains("says its hash is sha256:"));
    publish(&world, &first());
    let config = Server::start(config).await.stop().await;
    // The same version with another text.
    let renamed = policy(
        "1.0.0",
        Value::Null,
        &[claims(), vec![claim("c", "§9", "odrl:use", "permission", Value::Null, "1.0.0")]]
            .concat(),
    );
    publish(&world, &renamed);
    assert!(refused(&config).await.contains("version 1.0.0 was served with hash"));
    // A claim that means something else under its id.
    let mut bent = claims();
    bent[1]["constraint"] = json!("odrl:purpose eq anything");
    publish(&world, &policy("2.0.0", json!("1.0.0"), &bent));
    let error = refused(&config).await;
    assert!(
        error.contains(&format!("claim {PROFILING} means something else than in 1.0.0")),
        "{error}"
    );
    // What replaces nothing.
    publish(&world, &policy("2.0.0", Value::Null, &claims()));
    assert!(refused(&config).await.contains("supersedes"));
    // A claim that governs a skill and is not there.
    publish(&world, &policy("2.0.0", json!("1.0.0"), &claims()[..1]));
    assert!(refused(&config).await.contains(&format!("names claim {PROFILING}")));
}

/// The card and the skills on it say where the policy is and what it governs.
#[tokio::test(flavor = "multi_thread")]
async fn the_card_points_to_it() {
    let world = World::new();
    let mut config = config(&world, "mode = \"delegated\"");
    config.policy_claims[0].calls = abhyasa_calls(&world);
    let server = Server::start(config).await;
    let (_, card) = answer(server.request(Method::GET, "/.well-known/agent-card.json")).await;
    let extensions = card["capabilities"]["extensions"].as_array().unwrap();
    let uri = abhyasa::proto::consent::EXTENSION_URI;
    let ours = extensions.iter().find(|extension| extension["uri"] == uri).unwrap();
    let params = &ours["params"];
    assert_eq!(params["document_hash"], json!(first().document_hash));
    assert_eq!(params["adherence_mode"], "delegated");
    let endpoint = params["acceptance_endpoint"].as_str().unwrap();
    assert!(endpoint.ends_with("/acap/consent"), "{endpoint}");
    let skills = card["skills"].as_array().unwrap();
    assert!(
        !skills.is_empty() && skills.iter().all(|skill| skill["policy_claims"] == json!([USE])),
        "{card}"
    );
    let wrong = server.post(Some(super::BOB), "/acap/consent", &json!({})).await;
    assert_eq!(code(&wrong), (400, "malformed"));
    server.stop().await;
}

/// Patterns for all skills, as a configuration has them.
fn abhyasa_calls(world: &World) -> Vec<abhyasa::config::CallPattern> {
    let more = format!(
        "[[policy_claims]]\ncalls = [\"a2a:*\"]\nclaims = [\"{USE}\"]\n[acap]\nenabled = true\npolicy = {:?}\n",
        super::file(world)
    );
    world.config("pattern", &more).policy_claims.remove(0).calls
}
