//! What a node has of consent is shown to a third party.

use super::caller::{alice, ask, bob};
use super::{
    BOB, CAROL, PROFILING, Server, USE, code, config, event, first, private, record, second,
};
use crate::common::{World, eventually, id};
use abhyasa::acap::jws::{Signed as _, SigningKey};
use abhyasa::config::{Anchoring, Signatures, SigningKeys};
use rcgen::KeyPair;
use reqwest::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

fn verify(file: &Path, more: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abhyasa"));
    let told = command.args(["consent", "verify"]).arg(file).args(more).output().unwrap();
    let text = [told.stdout, told.stderr].concat();
    (told.status.success(), String::from_utf8(text).unwrap())
}

/// The chains of a caller, over versions and denials, are found good offline, and not once a letter is altered.
#[tokio::test(flavor = "multi_thread")]
async fn s2_an_export_is_found_good_and_an_altered_one_is_not() {
    let world = World::new();
    let server = Server::start(config(&world, "mode = \"delegated\"")).await;
    let path = format!("/acap/export/{}", id("bob"));
    let none = super::answer(server.request(Method::GET, &path)).await;
    assert_eq!(code(&none), (404, "not_found"));
    server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
    server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
    let breaks = json!({ "context": { "odrl:purpose": "behavioral_profiling" } });
    let denied =
        server.adhere(&event("e-2", Some("e-1"), "r-1", PROFILING, "permit", breaks)).await;
    assert_eq!(denied.1["decision"], "deny", "{denied:?}");
    assert_eq!(server.post(None, "/v1/consent/policy", &second()).await.0, 200);
    server.consent(&record("r-2", Some("r-1"), &second(), &[], json!({}))).await;
    server.adhere(&event("e-3", None, "r-2", USE, "permit", json!({}))).await;

    let carol = super::answer(server.request(Method::GET, &path).bearer_auth(CAROL)).await;
    assert_eq!(code(&carol), (403, "caller"));
    let own = server.request(Method::GET, &path).bearer_auth(BOB).send().await.unwrap();
    assert_eq!(own.status(), 200);
    let (file, url) = (world.path().join("export.jsonl"), server.config.api.listen);
    let mut command = Command::new(env!("CARGO_BIN_EXE_abhyasa"));
    command.args(["consent", "export", id("bob").as_str(), "--out"]).arg(&file);
    command.args(["--api", &format!("http://{url}"), "--config"]);
    command.arg(world.path().join("alice/abhyasa.toml"));
    let told = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(told.status.success(), "{told:?}");
    let lines = std::fs::read_to_string(&file).unwrap();
    let types: Vec<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| line["type"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        types,
        ["export", "policy", "policy", "record", "record", "event", "event", "event", "end"]
    );
    let (good, text) = verify(&file, &[]);
    assert!(good, "{text}");
    std::fs::write(&file, lines.replacen("The clause was read.", "The clause was reed.", 1))
        .unwrap();
    let (good, text) = verify(&file, &[]);
    assert!(!good && text.contains("its lines are not those it was made with"), "{text}");
    // Who alters and counts anew is found by the chain.
    let other = lines.replacen("\"r-1\"", "\"r-7\"", 1);
    std::fs::write(&file, other).unwrap();
    assert!(!verify(&file, &[]).0);
    server.stop().await;
}

fn ed25519() -> KeyPair {
    KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap()
}

fn signer(pair: &KeyPair) -> SigningKey {
    SigningKey::from_pkcs8(&pair.serialize_der(), None).unwrap()
}

/// The key as a member of a JWKS.
fn jwk(key: &SigningKey, more: Value) -> Value {
    let mut jwk = key.public().to_jwk();
    jwk["kid"] = json!(key.kid());
    for (name, value) in more.as_object().unwrap() {
        jwk[name] = value.clone();
    }
    jwk
}

fn written(world: &World, name: &str, text: &str) -> PathBuf {
    let file = world.path().join(name);
    std::fs::write(&file, text).unwrap();
    private(&file);
    file
}

/// What is not signed, altered, or signed by another or a revoked key, is not taken; and what was taken is answered
/// alike when it is told again.
#[tokio::test(flavor = "multi_thread")]
async fn signatures_of_callers_are_held_against_their_keys() {
    let world = World::new();
    let (own, old, others) = (signer(&ed25519()), signer(&ed25519()), signer(&ed25519()));
    let keys = json!({ "keys": [
        jwk(&old, json!({ "revoked": { "revoked_at": 1_700_000_000, "reason": "superseded" } })),
        jwk(&own, json!({})),
    ] });
    let file = written(&world, "bob-keys.json", &keys.to_string());
    let mut config = config(&world, "");
    config.acap.signatures = Signatures::Required;
    config.peers.iter_mut().find(|peer| peer.id == id("bob")).unwrap().signing_keys =
        Some(SigningKeys::File(file));
    let server = Server::start(config).await;
    let plain = record("r-1", None, &first(), &[], json!({}));
    let refused = server.consent(&plain).await;
    assert_eq!(code(&refused), (403, "signature"), "{refused:?}");
    for key in [&others, &old] {
        let refused = server.consent(&plain.clone().signed(key).unwrap()).await;
        assert_eq!(code(&refused), (403, "signature"), "{refused:?}");
    }
    let good = plain.clone().signed(&own).unwrap();
    let mut altered = serde_json::to_value(&good).unwrap();
    altered["record_id"] = json!("r-2");
    let refused = server.post(Some(BOB), "/acap/consent", &altered).await;
    assert_eq!(code(&refused), (403, "signature"), "{refused:?}");
    assert_eq!(server.consent(&good).await.0, 201);
    assert_eq!(server.consent(&good).await.0, 201, "told again");
    let said = event("e-1", None, "r-1", USE, "permit", json!({}));
    assert_eq!(code(&server.adhere(&said).await), (403, "signature"));
    let signed = said.signed(&own).unwrap();
    assert_eq!(server.adhere(&signed).await.0, 201);
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    // Carol's name says nowhere where her keys are.
    let mut carols = plain.clone();
    carols.caller_agent_id = id("carol");
    let carols = carols.signed(&own).unwrap();
    let refused = server.post(Some(CAROL), "/acap/consent", &carols).await;
    assert_eq!(code(&refused), (403, "signature"), "{refused:?}");
    // Where none is required that counts as none; a bad one of whom the keys are known does not.
    let mut config = server.stop().await;
    config.acap.signatures = Signatures::Optional;
    let server = Server::start(config).await;
    assert_eq!(server.post(Some(CAROL), "/acap/consent", &carols).await.0, 201);
    let next = event("e-2", Some("e-1"), "r-1", USE, "permit", json!({}));
    let refused = server.adhere(&next.clone().signed(&others).unwrap()).await;
    assert_eq!(code(&refused), (403, "signature"), "{refused:?}");
    assert_eq!(server.adhere(&next).await.0, 201);
    server.stop().await;
}

/// Our caller signs, by keys of both kinds; another node takes it by the key it was told of, and a third party finds
/// it good by the JWKS that is published, also what an earlier key has signed.
#[tokio::test(flavor = "multi_thread")]
async fn what_our_caller_signs_is_good_to_others() {
    for ed25519_first in [true, false] {
        let world = World::new();
        let (mut one, mut two) = (ed25519(), KeyPair::generate().unwrap());
        if !ed25519_first {
            std::mem::swap(&mut one, &mut two);
        }
        let mut at_alice = alice(&world, "");
        at_alice.acap.signatures = Signatures::Required;
        let of_bob = |key: &KeyPair| Some(SigningKeys::Did(signer(key).public().to_did()));
        at_alice.peers.iter_mut().find(|peer| peer.id == id("bob")).unwrap().signing_keys =
            of_bob(&one);
        let mut at_bob = bob(&world, &at_alice, false, "");
        at_bob.acap.signing_key = Some(written(&world, "one.pem", &one.serialize_pem()));
        let alice = Server::start(at_alice).await;
        let bob = Server::start(at_bob).await;
        assert_eq!(ask(&bob, json!({})).await["status"]["state"], "TASK_STATE_COMPLETED");
        let jwks = async |bob: &Server| {
            let request = bob.request(Method::GET, "/.well-known/jwks.json");
            let (status, jwks) = super::answer(request).await;
            assert_eq!(status, 200, "{jwks}");
            jwks
        };
        let first_keys = jwks(&bob).await;

        // Another key signs from now on, and the old one is published beside it.
        let old = written(&world, "old.json", &first_keys.to_string());
        let (mut at_bob, mut at_alice) = (bob.stop().await, alice.stop().await);
        at_bob.acap.signing_key = Some(written(&world, "two.pem", &two.serialize_pem()));
        at_bob.acap.published_keys = Some(old);
        at_alice.peers.iter_mut().find(|peer| peer.id == id("bob")).unwrap().signing_keys =
            of_bob(&two);
        let (alice, bob) = (Server::start(at_alice).await, Server::start(at_bob).await);
        assert_eq!(ask(&bob, json!({})).await["status"]["state"], "TASK_STATE_COMPLETED");
        let keys = jwks(&bob).await;
        assert_eq!(keys["keys"].as_array().unwrap().len(), 2, "{keys}");

        let path = format!("/acap/export/{}", id("bob"));
        let export = alice.request(Method::GET, &path).send().await.unwrap().text().await.unwrap();
        let file = written(&world, "export.jsonl", &export);
        let known =
            written(&world, "keys.json", &json!({ (id("bob").as_str()): keys }).to_string());
        let known = ["--require-signatures", "--keys", known.to_str().unwrap()];
        let (good, text) = verify(&file, &known);
        assert!(good && text.contains("5 signed"), "{text}");
        let only_first = json!({ (id("bob").as_str()): first_keys }).to_string();
        let only_first = written(&world, "first.json", &only_first);
        let known = ["--require-signatures", "--keys", only_first.to_str().unwrap()];
        assert!(!verify(&file, &known).0, "the second key is not known there");
        bob.stop().await;
        alice.stop().await;
    }
}

/// What is kept is anchored in the node's own log soon after, also after a crash; a third party finds it there, and
/// an altered document not.
#[tokio::test(flavor = "multi_thread")]
async fn chains_are_anchored_in_the_log_of_the_node() {
    for anchor in [Anchoring::Batch, Anchoring::Record] {
        let world = World::new();
        let mut config = config(&world, "");
        let none = Server::start(config.clone()).await;
        let absent = super::answer(none.request(Method::GET, "/acap/log/head")).await;
        assert_eq!(code(&absent), (404, "not_found"));
        none.stop().await;
        config.acap.signing_key = Some(written(&world, "log.pem", &ed25519().serialize_pem()));
        config.acap.anchor = anchor;
        config.acap.anchor_interval_ms = 10;
        let server = Server::start(config).await;
        server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
        server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
        let head = async |server: &Server, leaves: u64| {
            eventually("the head", async || {
                let request = server.request(Method::GET, "/acap/log/head");
                let head = super::answer(request).await.1["head"].clone();
                (head["tree_size"].as_u64() >= Some(leaves)).then_some(head)
            })
            .await
        };
        let early = head(&server, 2).await;
        let server = Server::start(server.crash()).await;
        server.adhere(&event("e-2", Some("e-1"), "r-1", PROFILING, "permit", json!({}))).await;
        let late = head(&server, 3).await;
        assert_eq!(early["log_id"], late["log_id"]);

        let path = format!("/acap/export/{}", id("bob"));
        let (file, known) = (world.path().join("export.jsonl"), late["log_id"].as_str().unwrap());
        let known = ["--require-anchors", "--log", known];
        let export = eventually("all anchors", async || {
            let export = server.request(Method::GET, &path).send().await.unwrap().text().await;
            let export = export.unwrap();
            std::fs::write(&file, &export).unwrap();
            verify(&file, &known).0.then_some(export)
        })
        .await;
        assert!(export.contains("\"consistency\"") && export.contains("\"tree_head\""));
        let other = verify(
            &file,
            &[
                "--require-anchors",
                "--log",
                "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK",
            ],
        );
        assert!(!other.0, "a log that is not believed: {}", other.1);
        std::fs::write(&file, export.replacen("The clause was read.", "The clause was reed.", 1))
            .unwrap();
        let (good, text) = verify(&file, &known);
        assert!(!good && text.contains("anchor"), "{text}");

        let ask = async |query: &str| {
            super::answer(server.request(Method::GET, &format!("/acap/log/proof?{query}"))).await
        };
        let (status, proof) = ask(&format!("first={}", early["tree_size"])).await;
        assert_eq!((status, &proof["second"]), (200, &late["tree_size"]), "{proof}");
        let (status, proof) = ask("leaf=0").await;
        assert!(status == 200 && !proof["path"].as_array().unwrap().is_empty(), "{proof}");
        assert_eq!(code(&ask("leaf=1000").await), (422, "log"));
        assert_eq!(code(&ask("leaf=1&first=1").await), (400, "malformed"));
        server.stop().await;
    }
}
