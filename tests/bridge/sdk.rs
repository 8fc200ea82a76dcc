//! The official SDK's client, unmodified, in both eras.

use super::{GATE, Over, configs, files, here, proxy, python, start};
use crate::common::{self, World, id};
use abhyasa::mcp::MoqtTransport;
use rmcp::RoleClient;
use rmcp::transport::Transport;
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader};

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

fn by_stdio(config: &Path, over: Over) -> Vec<String> {
    let mut reach = vec![env!("CARGO_BIN_EXE_abhyasa").to_owned()];
    reach.extend(proxy(config, "files", over));
    reach
}

#[tokio::test(flavor = "multi_thread")]
async fn ab3_the_sdk_calls_over_quic_with_obligations_beside_its_calls() {
    let world = World::new();
    let (alice, bob) = configs(&world, &format!("{}{GATE}", files()));
    let alice = start(alice).await;
    client("auto", &by_stdio(&bob, Over::Native)).await;
    alice.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ab3_the_sdk_does_in_the_era_of_sessions_too() {
    let world = World::new();
    let (alice, bob) = configs(&world, &format!("{}{GATE}", files()));
    let alice = start(alice).await;
    client("legacy", &by_stdio(&bob, Over::Native)).await;
    alice.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ab3_the_sdk_calls_over_moqt_with_obligations_beside_its_calls_in_both_eras() {
    let world = World::new();
    let (alice, bob) = configs(&world, &format!("{}{GATE}", files()));
    let alice = start(alice).await;
    client("auto", &by_stdio(&bob, Over::Moqt)).await;
    client("legacy", &by_stdio(&bob, Over::Moqt)).await;
    alice.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ab3_the_sdk_calls_over_http3_with_obligations_beside_its_calls_in_both_eras() {
    let world = World::new();
    let (alice, bob) = configs(&world, &format!("{}{GATE}", files()));
    let alice = start(alice).await;
    client("auto", &by_stdio(&bob, Over::Http3)).await;
    client("legacy", &by_stdio(&bob, Over::Http3)).await;
    alice.stop().await;
}

/// A proxy that listens, and where.
async fn listening(config: &Path, over: Over) -> (tokio::process::Child, String) {
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_abhyasa"))
        .args(proxy(config, "files", over))
        .args(["--listen", "127.0.0.1:0"])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).await.unwrap();
    let url = line.trim().strip_prefix("MCP at ").unwrap_or_else(|| panic!("{line:?}"));
    (child, url.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn ab3_the_sdk_calls_over_http_and_quic_in_both_eras() {
    by_http(Over::Native).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ab3_the_sdk_calls_over_http_and_http3_in_both_eras() {
    by_http(Over::Http3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ab3_the_sdk_calls_over_http_and_moqt_in_both_eras() {
    by_http(Over::Moqt).await;
}

async fn by_http(over: Over) {
    let world = World::new();
    let (alice, bob) = configs(&world, &format!("{}{GATE}", files()));
    let alice = start(alice).await;
    let (mut child, url) = listening(&bob, over).await;
    client("auto", std::slice::from_ref(&url)).await;
    client("legacy", std::slice::from_ref(&url)).await;
    web(&url).await;
    #[cfg(unix)]
    {
        let id = child.id().unwrap().to_string();
        std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap();
        let ended = tokio::time::timeout(common::PATIENCE, child.wait()).await;
        assert!(ended.expect("it ends").unwrap().success());
    }
    child.kill().await.ok();
    alice.stop().await;
}

/// What Streamable HTTP wants of a server beside MCP itself.
async fn web(url: &str) {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let list = |id: i64| {
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/list", "params": {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {}
        }
    } })
    };
    let bare = || http.post(url).header("accept", "application/json, text/event-stream");
    let post =
        || bare().header("mcp-protocol-version", "2026-07-28").header("mcp-method", "tools/list");
    let status = async |request: reqwest::RequestBuilder| request.send().await.unwrap().status();
    assert_eq!(status(post().json(&list(1))).await, 200);
    assert_eq!(status(post().json(&list(1)).header("origin", "https://example.org")).await, 403);
    assert_eq!(status(post().json(&list(1)).header("host", "example.org")).await, 403);
    assert_eq!(status(bare().json(&list(1))).await, 400, "without headers");
    let wrong =
        bare().header("mcp-protocol-version", "2025-11-25").header("mcp-method", "tools/list");
    assert_eq!(status(wrong.json(&list(1))).await, 400);
    let unknown = |method: &str| {
        let mut none = list(1);
        none["method"] = json!(method);
        let version = bare().header("mcp-protocol-version", "2026-07-28");
        version.header("mcp-method", method).json(&none)
    };
    assert_eq!(status(unknown("logging/setLevel")).await, 404, "that server has no such method");
    // What a method reaches that is not known here, the gate cannot know either.
    let withheld =
        unknown("no/such").send().await.unwrap().json::<serde_json::Value>().await.unwrap();
    assert_eq!(withheld["error"]["code"], -31_403, "{withheld}");
    assert_eq!(status(post().json(&list(1)).header("mcp-session-id", "none")).await, 404);
    assert_eq!(status(post().body("[1]")).await, 400);
    assert_eq!(status(http.get(url)).await, 405);
    assert_eq!(status(http.delete(url)).await, 404);
    // Clients without sessions share the way, and not their ids.
    let mut answers = tokio::task::JoinSet::new();
    for path in ["a", "b", "c", "d"] {
        let mut call = list(7);
        call["method"] = json!("tools/call");
        call["params"]["name"] = json!("read");
        call["params"]["arguments"] = json!({ "path": path });
        let request = bare()
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", "tools/call")
            .header("mcp-name", "read")
            .json(&call);
        answers.spawn(async move {
            let answer: serde_json::Value = request.send().await.unwrap().json().await.unwrap();
            assert_eq!(answer["id"], 7, "{answer}");
            assert_eq!(answer["result"]["content"][0]["text"], format!("content of {path}"));
        });
    }
    answers.join_all().await;
}

/// The server may speak HTTP itself, in whichever era its client does.
#[tokio::test(flavor = "multi_thread")]
async fn ab3_the_server_behind_may_speak_http() {
    let world = World::new();
    let at = abhyasa::loopback::free_address().unwrap();
    let mut server = tokio::process::Command::new(python())
        .arg(here("tests/bridge/server.py"))
        .arg(at.port().to_string())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let up = async || tokio::net::TcpStream::connect(at).await.ok();
    common::eventually("the server", up).await;
    let files = format!("\n[[mcp_servers]]\nname = \"files\"\nurl = \"http://{at}/mcp\"\n");
    let (alice, bob) = configs(&world, &format!("{files}{GATE}"));
    let alice = start(alice).await;
    client("auto", &by_stdio(&bob, Over::Native)).await;
    client("legacy", &by_stdio(&bob, Over::Native)).await;
    alice.stop().await;
    server.kill().await.unwrap();
}

/// Who closes is sure that all has arrived which was said before.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_said_before_the_transport_closes_arrives() {
    const SAID: usize = 40;
    let world = World::new();
    let file = world.path().join("said");
    let command = format!("cat > {}", file.display());
    let keeps =
        format!("\n[[mcp_servers]]\nname = \"keeps\"\ncommand = [\"sh\", \"-c\", {command:?}]\n");
    let (alice, bob) = configs(&world, &keeps);
    let alice = start(alice).await;
    let bob = abhyasa::config::NodeConfig::load(&bob).unwrap();
    let mut transport = MoqtTransport::connect(&bob, id("alice"), "keeps").await.unwrap();
    for number in 0..SAID {
        let params = json!({ "progressToken": 1, "progress": number });
        let said =
            json!({ "jsonrpc": "2.0", "method": "notifications/progress", "params": params });
        let said = serde_json::from_value(said).unwrap();
        Transport::<RoleClient>::send(&mut transport, said).await.unwrap();
    }
    Transport::<RoleClient>::close(&mut transport).await.unwrap();
    drop(transport);
    let kept = async || {
        let kept = std::fs::read_to_string(&file).unwrap_or_default();
        (kept.lines().count() == SAID).then_some(())
    };
    common::eventually("all that was said", kept).await;
    alice.stop().await;
}

/// The Rust SDK's client, on our transport.
#[tokio::test(flavor = "multi_thread")]
async fn the_rust_sdk_calls_over_moqt() {
    let world = World::new();
    let (alice, bob) = configs(&world, &files());
    let alice = start(alice).await;
    let bob = abhyasa::config::NodeConfig::load(&bob).unwrap();
    let transport = MoqtTransport::connect(&bob, id("alice"), "files").await.unwrap();
    let client = rmcp::serve_client((), transport).await.unwrap();
    let tools = client.list_all_tools().await.unwrap();
    assert!(tools.iter().any(|tool| tool.name == "read"), "{tools:?}");
    let call = json!({ "name": "read", "arguments": { "path": "a" } });
    let call = serde_json::from_value(call).unwrap();
    let answer = serde_json::to_value(client.call_tool(call).await.unwrap()).unwrap();
    assert_eq!(answer["content"][0]["text"], "content of a", "{answer}");
    client.cancel().await.unwrap();
    let error = MoqtTransport::connect(&bob, id("alice"), "other").await.unwrap_err();
    assert!(error.to_string().contains("no MCP server \"other\" for us"), "{error}");
    alice.stop().await;
}
