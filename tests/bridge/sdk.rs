//! The official SDK's client, unmodified, in both eras.

use super::{GATE, configs, files, here, proxy, python};
use crate::common::{self, World, id};
use std::path::Path;
use std::time::Duration;

/// How long the client may take.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(120);

pub(super) async fn client(era: &str, reach: &[String]) {
    let mut command = tokio::process::Command::new(python());
    command
        .arg(here("tests/bridge/client.py"))
        .args([era, id("bob").as_str(), id("alice").as_str()])
        .args(reach)
        .env("NO_PROXY", "127.0.0.1")
        .kill_on_drop(true);
    let output = tokio::time::timeout(CLIENT_TIME_MAX, command.output());
    let output = output.await.expect("the client ends in time").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    // A script that ends early proves nothing.
    assert!(said.trim_end().ends_with("all 8 walks done"), "{said}\n{complained}");
}

fn by_stdio(config: &Path) -> Vec<String> {
    let mut reach = vec![env!("CARGO_BIN_EXE_abhyasa").to_owned()];
    reach.extend(proxy(config, "files"));
    reach
}

#[tokio::test(flavor = "multi_thread")]
async fn ab3_the_sdk_calls_over_quic_with_obligations_beside_its_calls() {
    let world = World::new();
    let (alice, bob) = configs(&world, &format!("{}{GATE}", files()));
    let alice = common::start(alice).await;
    client("auto", &by_stdio(&bob)).await;
    alice.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ab3_the_sdk_does_in_the_era_of_sessions_too() {
    let world = World::new();
    let (alice, bob) = configs(&world, &format!("{}{GATE}", files()));
    let alice = common::start(alice).await;
    client("legacy", &by_stdio(&bob)).await;
    alice.stop().await.unwrap();
}
