//! The commands beside `run`: what they print, write, and say by their exit code.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use std::path::Path;
use std::process::{Command, Output};

fn netsim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_netsim")).args(args).output().unwrap()
}

fn json(args: &[&str]) -> serde_json::Value {
    let out = netsim(args);
    assert_eq!(out.status.code(), Some(0), "{args:?}: {}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn studies_are_listed_and_others_are_refused() {
    let out = netsim(&["study", "--list"]);
    let listed = text(&out.stdout);
    for name in
        ["partition-sweep", "best-effort", "latency", "recovery", "slow-receiver", "baselines"]
    {
        assert!(listed.lines().any(|line| line.starts_with(name)), "{name} is not in {listed}");
    }
    let out = netsim(&["study", "partition-swap"]);
    assert!(!out.status.success() && text(&out.stderr).contains("partition-sweep"));
}

#[test]
fn a_study_writes_its_files_and_the_command_that_makes_them_again() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("study");
    let there = dir.to_str().unwrap();
    let run = |threads| {
        let args =
            ["study", "baselines", "--seeds", "2", "--svg", "--threads", threads, "--out", there];
        let out = netsim(&args);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        let read = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap();
        assert!(read("baselines-1.svg").contains("xmlns=\"http://www.w3.org/2000/svg\""));
        assert!(read("baselines.html").contains("netsim study baselines --out DIR --seeds 2"));
        (read("baselines.csv"), read("baselines.json"))
    };
    let ((csv, json), (again, _)) = (run("1"), run("3"));
    assert_eq!(csv, again);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["command"], "netsim study baselines --out DIR --seeds 2");
    assert_eq!((&json["seeds"], &json["partial"]), (&"0..2".into(), &false.into()));
    assert_eq!(json["points"][0]["policy"], "custody");
    assert_eq!(json["points"][0]["silent_losses"], 0);
    let started = json["started"].as_str().unwrap();
    assert!(
        started.len() == 20 && started.starts_with("20") && started.ends_with('Z'),
        "{started}"
    );
}

#[test]
fn fuzz_size_and_oracle_answer_in_json() {
    let fuzz = json(&["fuzz", "--transfers", "3000", "--json"]);
    assert_eq!((&fuzz["tally"]["silent"], &fuzz["holds"]), (&0.into(), &true.into()));
    let size = json(&[
        "size",
        "--loss",
        "0.2",
        "--outage",
        "exp 10s",
        "--target",
        "0.01",
        "--transfers",
        "1000",
        "--json",
    ]);
    assert_eq!((&size["outage"], &size["holds"]), (&"exp 10s".into(), &true.into()));
    assert!(size["answer"]["profile"]["deadline_s"].as_u64() > Some(30));
    let out = netsim(&["size", "--loss", "1.5"]);
    assert_eq!(out.status.code(), Some(2), "a loss is below 1");
}
