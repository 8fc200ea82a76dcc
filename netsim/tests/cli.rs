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
fn scenarios_are_files_or_have_names() {
    let out = netsim(&["lossy-wifi", "--transfers", "20", "--json"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("\"name\":\"lossy-wifi\""));
    let out = netsim(&["lossy-wiki"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("there are clean, lossy-wifi"), "{}", text(&out.stderr));
    let out = netsim(&["./none.toml"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("scenario ./none.toml"), "{}", text(&out.stderr));
}

#[test]
fn a_range_without_seeds_is_refused() {
    let out = netsim(&["--seeds", "5..5"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("holds no seed"));
}

fn command(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_netsim")).args(args).output().unwrap()
}

#[test]
fn a_broken_seed_is_shrunk_into_a_file_that_breaks_it_again() {
    let dir = std::env::temp_dir().join(format!("netsim-cli-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (file, small) = (dir.join("broken.toml"), dir.join("small.toml"));
    let (file, small) = (file.to_str().unwrap(), small.to_str().unwrap());
    let broken = (0..50).map(|seed| netsim::Options {
        sabotage: netsim::Sabotage::NoLedger,
        mode: netsim::Mode::Datagrams,
        ..netsim::Options::swarm(seed, 40)
    });
    let options = broken.into_iter().find(|options| !netsim::run(options).violations.is_empty());
    std::fs::write(file, options.unwrap().to_toml().unwrap()).unwrap();
    let out = command(&["shrink", file, "--out", small, "--runs", "300"]);
    assert_eq!(out.status.code(), Some(129), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains(&format!("again: netsim replay {small} --events")));
    let written = std::fs::read_to_string(small).unwrap();
    let told = written.lines().next().unwrap().trim_start_matches("# ").to_owned();
    let out = command(&["replay", small, "--events"]);
    assert_eq!(out.status.code(), Some(129));
    let said = text(&out.stdout);
    assert!(said.lines().any(|line| line.starts_with("trace ")), "{said}");
    assert!(said.contains(&told), "{told:?} is not in {said}");
    assert!(said.contains("tells {"), "events are told");
    let out = command(&["replay", "--seed", "3", "--transfers", "20"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stdout));
    let out = command(&["shrink", "--seed", "3", "--transfers", "20", "--out", small]);
    assert_eq!(out.status.code(), Some(0));
    assert!(text(&out.stderr).contains("nothing to shrink"));
    std::fs::remove_dir_all(&dir).unwrap();
}
