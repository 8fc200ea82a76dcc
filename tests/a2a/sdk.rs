//! The official SDKs as clients, unmodified, over both bindings: Python with streams, webhooks and
//! obligations, JavaScript with streams and webhooks.
//!
//! They come from their registries into scratch places below `target/`. Without them these tests fail:
//! what they show cannot be shown otherwise.

use super::{Server, TOKEN, bob, echo};
use crate::common::{World, id, peers};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// The releases that are spoken with: the A2A SDK, and a QUIC and HTTP/3 stack.
const PEERS: [&str; 2] = ["a2a-sdk==1.3.0", "aioquic==1.7.2"];
/// Of what they need: a release of tomorrow is no reason for a test to fail.
const CONSTRAINTS: &str = "tests/a2a/constraints.txt";
/// How long the client may take.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(120);

/// A Python with both, made once.
pub(super) fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| peers::python("a2a-peers-2", &PEERS, "a2a, httpx, aioquic", CONSTRAINTS))
}

/// A script that must say at its end that it did all of this.
async fn script(command: &mut tokio::process::Command, all: &str) {
    let output = command.env("NO_PROXY", "127.0.0.1").kill_on_drop(true).output();
    let output = tokio::time::timeout(CLIENT_TIME_MAX, output);
    let output = output.await.expect("the client ends in time").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}\n{said}\n{complained}", output.status);
    // A script that ends early proves nothing.
    assert!(said.trim_end().ends_with(all), "{said}\n{complained}");
}

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

async fn client(server: &Server, binding: &str) {
    let mut command = tokio::process::Command::new(python());
    let (url, alice) = (server.url(""), id("alice"));
    command.arg(here("tests/a2a/client.py")).args([&url, binding, TOKEN, alice.as_str()]);
    script(&mut command, "all 8 walks done").await;
}

/// The same over the SDK of JavaScript.
async fn js_client(server: &Server, binding: &str) {
    let place = peers::npm();
    // It finds its packages from where it is.
    let copy = place.join(format!("client-{}.mjs", binding.replace('+', "-")));
    std::fs::copy(here("tests/a2a/client.mjs"), &copy).unwrap();
    let mut command = tokio::process::Command::new(place.join("node_modules/node/bin/node"));
    command.arg(copy).args([&server.url(""), binding]);
    script(&mut command, "all 7 walks done").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_sdk_speaks_json_rpc_with_us() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    js_client(&server, "JSONRPC").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_sdk_speaks_http_json_with_us() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    js_client(&server, "HTTP+JSON").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sdk_speaks_json_rpc_with_us() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &bob(&world))).await;
    client(&server, "JSONRPC").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sdk_speaks_http_json_with_us() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &bob(&world))).await;
    client(&server, "HTTP+JSON").await;
    server.stop().await;
}
