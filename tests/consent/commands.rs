//! `abhyasa consent`, as a process.

use abhyasa::acap::audit::Exporter;
use abhyasa::acap::jws::{Signed as _, SigningKey};
use abhyasa::proto::consent::{ConsentRecord, PolicyDocument, read};
use abhyasa::proto::id::AgentId;
use abhyasa::proto::time::Time;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use serde_json::json;
use std::path::Path;
use std::process::Command;

const POLICY: &str = "proto/tests/consent/samples/usage_policy.json";

/// Exit code, standard output and standard error.
fn abhyasa(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_abhyasa")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn sample() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(POLICY).to_str().unwrap().to_owned()
}

#[test]
fn the_hash_of_a_policy_is_printed() {
    // Computed with the Python implementation of the protocol's author.
    let hash = "sha256:e7152ef2d3e1c5937854e72caa3653d80eb8a995247031bce57ddc54e0e2b57c";
    let (code, out, err) = abhyasa(&["consent", "hash", &sample()]);
    assert_eq!((code, out.trim()), (Some(0), hash));
    assert!(err.contains("its document_hash is"), "{err}");
    let (code, out, _) = abhyasa(&["--json", "consent", "hash", &sample()]);
    assert_eq!(code, Some(0));
    assert!(out.contains(hash) && out.contains("\"same\":false"), "{out}");
    let (code, _, err) = abhyasa(&["consent", "hash", "no-such-file"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("no-such-file"), "{err}");
    let cargo = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let (code, _, err) = abhyasa(&["consent", "hash", cargo.to_str().unwrap()]);
    assert_eq!(code, Some(1));
    assert!(err.contains("is no policy"), "{err}");
}

#[test]
fn an_export_is_checked_and_a_tampered_one_refused() {
    let dir = tempfile::tempdir().unwrap();
    let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let key = SigningKey::from_pkcs8(der.as_ref(), Some("key-1")).unwrap();
    let policy: PolicyDocument = read(&std::fs::read(sample()).unwrap()).unwrap();
    let policy = policy.sealed();
    let answers: Vec<_> = policy
        .claims
        .iter()
        .map(|claim| json!({ "claim_id": claim.claim_id, "understood": true, "disputed": false }))
        .collect();
    let (caller, callee) = ("did:web:caller.example", "did:web:data-agent.example.com");
    let record: ConsentRecord = serde_json::from_value(json!({
        "record_id": "r-1", "caller_agent_id": caller, "callee_agent_id": callee, "policy_version": policy.version,
        "policy_hash": policy.document_hash, "parsed_claims": answers, "decision": "accepted",
        "accepted_at": "2026-03-04T09:00:00Z", "valid_until": "on_any_change" }))
    .unwrap();
    let (caller_id, callee) = (AgentId::new(caller).unwrap(), AgentId::new(callee).unwrap());
    let now = Time::parse_rfc3339("2026-03-05T09:00:00Z").unwrap();
    let mut export = Exporter::new(Vec::new(), caller_id, callee, now).unwrap();
    export.policy(&policy).unwrap();
    export.record(&record.signed(&key).unwrap()).unwrap();
    let export = String::from_utf8(export.end().unwrap()).unwrap();
    let write = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let multikey = key.public().to_multikey();
    let method = json!({ "id": "#key-1", "controller": caller, "publicKeyMultibase": multikey });
    let keys = json!({ caller: { "id": caller, "assertionMethod": [method] } });
    let keys = write("keys.json", &keys.to_string());
    let file = write("export.jsonl", &export);
    let (code, out, err) =
        abhyasa(&["consent", "verify", &file, "--keys", &keys, "--require-signatures"]);
    assert_eq!((code, &*err), (Some(0), ""), "{out}");
    assert!(out.contains("good: 1 policies, 1 records, 0 events; 1 signed, 0 anchored"), "{out}");
    // Without its keys it cannot be said to be good.
    let (code, out, _) = abhyasa(&["consent", "verify", &file]);
    assert_eq!(code, Some(1));
    assert!(out.contains("the keys of did:web:caller.example are not known"), "{out}");
    let (code, out, _) =
        abhyasa(&["consent", "verify", &file, "--keys", &keys, "--require-anchors"]);
    assert_eq!(code, Some(1));
    assert!(out.contains("line 3: consent record r-1: anchor: it has no anchor"), "{out}");
    let tampered = export.replace("\"decision\":\"accepted\"", "\"decision\":\"rejected\"");
    let tampered = write("tampered.jsonl", &tampered);
    let (code, out, _) = abhyasa(&["consent", "verify", &tampered, "--keys", &keys]);
    assert_eq!(code, Some(1));
    assert!(out.contains("line 3: consent record r-1: signature:"), "{out}");
    assert!(out.contains("line 4: the export: end:"), "{out}");
    assert!(out.contains("NOT GOOD, 2 findings"), "{out}");
    let (code, out, _) = abhyasa(&["--json", "consent", "verify", &tampered, "--keys", &keys]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["good"], &report["count"]), (Some(1), &json!(false), &json!(2)));
    let (code, _, err) = abhyasa(&["consent", "verify", &file, "--log", "ethereum:mainnet"]);
    assert_eq!(code, Some(1));
    assert!(err.contains("a log is called by its did:key"), "{err}");
}
