//! The command tells by its exit code what broke, and how to see it again.
#![allow(missing_docs, clippy::unwrap_used)]

use std::process::{Command, Output};

fn netsim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_netsim")).arg("run").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn held_promises_exit_0_with_one_json_object_for_each_seed() {
    let out = netsim(&["--seeds", "0..3", "--transfers", "20", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let lines: Vec<serde_json::Value> =
        text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    for (seed, line) in lines.iter().enumerate() {
        assert_eq!(line["options"]["seed"], seed);
        assert_eq!(line["violations"], serde_json::json!([]));
    }
}

#[test]
fn broken_safety_exits_129_and_names_seed_options_and_command() {
    let out = netsim(&["--seeds", "0..50", "--transfers", "50", "--sabotage", "no-ledger"]);
    assert_eq!(out.status.code(), Some(129));
    let said = text(&out.stderr);
    for part in [
        "broke a promise",
        "Safety",
        "options: {",
        "again: netsim run --seed ",
        "--sabotage no-ledger",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
}

#[test]
fn a_range_without_seeds_is_refused() {
    let out = netsim(&["--seeds", "5..5"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("holds no seed"));
}
