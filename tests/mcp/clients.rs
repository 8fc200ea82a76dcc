//! Clients of others: the official Python SDK, the inspector, and the conformance suite.

use super::{Server, alice};
use crate::common::{World, connected, id, peer_toml, peers};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;
use std::time::Duration;
use tokio::process::Command;

/// How long a client may take.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(180);

fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        peers::python("mcp-peers-1", &["mcp==2.3.0"], "mcp", "tests/mcp/constraints.txt")
    })
}

async fn output(command: &mut Command) -> Output {
    let output = command.env("NO_PROXY", "127.0.0.1").kill_on_drop(true).output();
    tokio::time::timeout(CLIENT_TIME_MAX, output).await.expect("it ends in time").unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A walk of the Python SDK over a node whose peer Bob answers and whose peer Carol never does.
async fn walk(way: &str, mode: &str) {
    let world = World::new();
    let (mut config, bob) = world.configs(&peer_toml("carol", None), "");
    config.api.listen = abhyasa::loopback::free_address().unwrap();
    let bob = crate::common::start(bob).await;
    let server = Server::start(config).await;
    connected(&server.handle(), 1).await;
    let target = match way {
        "http" => server.url(),
        _ => {
            let (program, api) =
                (env!("CARGO_BIN_EXE_abhyasa"), format!("http://{}", server.address));
            serde_json::json!([program, "mcp", "stdio", "--api", api]).to_string()
        }
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/client.py");
    let (of_bob, of_carol) = (id("bob"), id("carol"));
    let mut command = Command::new(python());
    command.arg(script).args([way, mode, &target, of_bob.as_str(), of_carol.as_str()]);
    let output = output(&mut command).await;
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    // A script that ends early proves nothing.
    assert!(said.trim_end().ends_with("all 6 walks done"), "{said}\n{complained}");
    server.stop().await;
    bob.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sdk_over_http_without_sessions() {
    walk("http", "auto").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sdk_over_http_in_a_session() {
    walk("http", "legacy").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sdk_over_stdio_without_sessions() {
    walk("stdio", "auto").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sdk_over_stdio_in_a_session() {
    walk("stdio", "legacy").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inspector_lists_the_tools() {
    let world = World::new();
    let server = Server::start(alice(&world, "")).await;
    let inspector = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js";
    let mut command = Command::new(peers::npm().join("node_modules/node/bin/node"));
    command.current_dir(peers::npm()).arg(inspector).args(["--cli", &server.url()]);
    command.args(["--transport", "http", "--method", "tools/list"]);
    let output = output(&mut command).await;
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    let listed: serde_json::Value =
        serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(listed["tools"].as_array().unwrap().len(), 9, "{said}");
    server.stop().await;
}

/// The scenarios that a revision requires of a server, as the suite lists them.
fn required(revision: &str) -> BTreeSet<String> {
    let file =
        format!("node_modules/@modelcontextprotocol/conformance/requirements/{revision}.yaml");
    let list = std::fs::read_to_string(peers::npm().join(file)).unwrap();
    list.lines()
        .skip_while(|line| *line != "server:")
        .skip(1)
        .map_while(|line| line.strip_prefix("  - "))
        .map(str::to_owned)
        .collect()
}

/// Scenarios of the baseline: those that are known to fail.
fn expected_failures(baseline: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(baseline).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("  - ")).map(str::to_owned).collect()
}

async fn conforms(revision: &str, scenarios: usize) {
    let world = World::new();
    let mut config = alice(&world, "");
    config.conformance = true;
    let server = Server::start(config).await;
    let baseline = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/mcp")
        .join(format!("expected-failures-{revision}.yml"));
    let mut command = Command::new(peers::npm().join("node_modules/node/bin/node"));
    command
        .current_dir(peers::npm())
        .arg("node_modules/@modelcontextprotocol/conformance/dist/index.js")
        .args(["server", "--url", &server.url(), "--requirements", revision, "--expected-failures"])
        .arg(&baseline)
        .arg("--output-dir")
        .arg(world.path().join("results"));
    let output = output(&mut command).await;
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    // What the suite says in its summary, against what it requires: none may be left out.
    let passed: BTreeSet<String> = said
        .lines()
        .filter_map(|line| line.strip_prefix("✓ ")?.split(':').next())
        .map(str::to_owned)
        .collect();
    let required = required(revision);
    assert_eq!(required.len(), scenarios, "{required:?}");
    let failed: BTreeSet<String> = required.difference(&passed).cloned().collect();
    assert_eq!(failed, expected_failures(&baseline), "{said}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_conforms_to_2026_07_28() {
    conforms("2026-07-28", 37).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_conforms_to_2025_11_25() {
    conforms("2025-11-25", 30).await;
}
