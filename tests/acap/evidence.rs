//! What a node has of consent is shown to a third party.

use super::{BOB, CAROL, PROFILING, Server, USE, code, config, event, first, record, second};
use crate::common::{World, id};
use reqwest::Method;
use serde_json::json;
use std::path::Path;
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
