//! The demonstration of the paper, as whoever tries the program sees it.

use serde_json::Value;
use std::process::Command;

#[test]
fn the_papers_demonstration_comes_out_as_it_should() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("audit.html");
    let mut demo = Command::new(env!("CARGO_BIN_EXE_abhyasa"));
    demo.args(["demo", "--consent", "--json", "--page"]).arg(&page);
    let output = demo.output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let told: Value = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"));
    assert_eq!((output.status.code(), &told["ok"]), (Some(0), &Value::Bool(true)), "{told}");
    let audit = &told["audit"];
    assert_eq!(audit["withdrawn_by"], "revocation-1");
    let items = audit["items"].as_array().unwrap();
    let of = |kind: &str| -> Vec<&str> {
        let found = items.iter().filter(|item| item["kind"] == kind);
        found.map(|item| item[kind]["decision"].as_str().unwrap()).collect()
    };
    assert_eq!(of("record"), ["accepted", "accepted"]);
    assert_eq!(of("event"), ["permit", "deny", "permit", "permit", "permit", "permit", "permit"]);
    assert_eq!(of("attempt"), ["deny", "deny", "permit", "deny", "deny", "permit", "deny"]);
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("claim-aggregation-prohibition") && html.contains("revocation-1"));
}
