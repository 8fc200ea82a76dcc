//! `abhyasa moq relay-check` against relays of others: what it finds is what docs/moq-peers.md says.

use crate::common::relay::{Kind, Relay};
use crate::common::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

/// Checks that wait until a relay's idle timeout is over; `tests/moq/relays.sh` asks for them too.
const SLOW: [&str; 2] = ["publisher-silent", "publisher-129th"];
/// What the document says of a check that does not end alike in each run.
const VARIES: &str = "varies";
/// Environment variable under which the slow checks run too.
const SLOW_VARIABLE: &str = "ABHYASA_TEST_SLOW";

/// The verdicts of the document on a relay, by check.
fn documented(kind: Kind) -> BTreeMap<String, String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/moq-peers.md");
    let text = std::fs::read_to_string(file).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let rows: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").map(str::trim).collect()).collect();
    let heading = rows.iter().find(|row| row.first() == Some(&"check")).expect("the table");
    let column = heading.iter().position(|cell| *cell == kind.name()).expect("its column");
    let checks = rows.iter().filter_map(|row| {
        let check = row.first()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((check.to_owned(), row.get(column)?.split(&[',', ':'][..]).next()?.to_owned()))
    });
    checks.collect()
}

fn relay_check(relay: &Relay, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abhyasa"));
    command.args(["moq", "relay-check", &relay.url("/abhyasa"), "--ca"]).arg(&relay.ca);
    command.args(more).output().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_can_do_what_the_document_says() {
    for kind in Kind::all() {
        let world = World::new();
        let relay = Relay::start(&world, kind).await;
        let documented = documented(kind);
        let slow = std::env::var_os(SLOW_VARIABLE).is_some();
        let asked = documented.keys().filter(|check| slow || !SLOW.contains(&check.as_str()));
        let asked: Vec<&str> = asked.map(String::as_str).collect();
        let output = relay_check(&relay, &["--json", "--only", &asked.join(",")]);
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{}: {error}: {output:?}", kind.name()));
        let found: BTreeMap<&str, (&str, &str)> = report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|finding| {
                let text = |member: &str| finding[member].as_str().unwrap();
                (text("check"), (text("verdict"), text("saw")))
            })
            .collect();
        assert_eq!(found.len(), asked.len(), "{found:?}");
        let differs = |check: &str, verdict: &str| {
            documented[check] != verdict && documented[check] != VARIES
        };
        let other: Vec<_> =
            found.iter().filter(|(check, (verdict, _))| differs(check, verdict)).collect();
        let (name, log) = (kind.name(), relay.log());
        let end = log.char_indices().rev().nth(4_000).map_or(0, |(at, _)| at);
        assert!(
            other.is_empty(),
            "{name} does otherwise than documented: {other:#?}\n{}",
            &log[end..]
        );
        assert_eq!(report["usable"], Value::Bool(true), "{name}: {report}");
        assert!(output.status.success(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_not_there_is_said_to_lack_everything() {
    let world = World::new();
    let mut relay = Relay::start(&world, Kind::Aiomoqt).await;
    relay.kill();
    let output = relay_check(&relay, &["--only", "setup,groups,unknown-namespace"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let said: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| Some((line.get(..24)?.trim(), line.get(25..35)?.trim())))
        .collect();
    assert!(said.contains(&("setup", "lacks")), "{text}");
    assert!(said.contains(&("", "NEEDED")), "{text}");
    assert!(said.contains(&("unknown-namespace", "not asked")), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_ends_in_its_setup_is_begun_once_more() {
    let world = World::new();
    let (endpoint, address) = crate::wire::endpoint(&world);
    let ca = world.path().join("relay-ca.pem");
    std::fs::write(&ca, world.ca.cert_pem()).unwrap();
    let relay = tokio::spawn(async move {
        let mut seen = 0;
        while let Some(incoming) = endpoint.accept().await {
            seen += 1;
            let connection = incoming.await.unwrap();
            connection.close(3u32.into(), b"");
            if seen == 2 {
                break;
            }
        }
        endpoint.wait_idle().await;
        seen
    });
    let check = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_abhyasa"));
        command.args(["moq", "relay-check", &format!("moqt://{address}/"), "--ca"]).arg(&ca);
        command.args(["--json", "--only", "setup"]).output().unwrap()
    });
    let report: Value = serde_json::from_slice(&check.await.unwrap().stdout).unwrap();
    let saw = report["findings"][0]["saw"].as_str().unwrap();
    assert!(saw.contains("closed by peer: 3; before: SETUP"), "{report}");
    assert_eq!(relay.await.unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_demo_keeps_its_promises_through_a_relay() {
    for kind in Kind::all() {
        let program = kind.program().unwrap();
        let mut demo = Command::new(env!("CARGO_BIN_EXE_abhyasa"));
        let played = demo.args(["demo", "--json", "--relay-program"]).arg(&program).output();
        let played = played.unwrap();
        let told: Value = serde_json::from_slice(&played.stdout).unwrap();
        assert!(played.status.success(), "{told}");
        let last = told["scenarios"].as_array().unwrap().last().unwrap();
        assert_eq!(last["name"], "relay_killed", "{told}");
        assert_eq!(last["relay"], program.file_name().unwrap().to_str().unwrap(), "{told}");
    }
}
