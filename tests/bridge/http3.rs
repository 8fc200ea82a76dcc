//! What each way must carry, HTTP/3 among them, and what a client over HTTP/3 sees that is not ours.

use super::{Over, Proxy, configs, files, here, start};
use crate::common::{self, PATIENCE, World, id, peers};
use abhyasa::config::NodeConfig;
use rcgen::SanType;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

const OVERLOADED: i64 = -31_429;
const UNAVAILABLE: i64 = -31_503;

fn text(answer: &Value) -> &str {
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text in {answer}"))
}

/// `_meta` of a client of 2026-07-28.
fn stateless() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {}
    })
}

/// The server's process, and how many of its calls were canceled.
async fn about(client: &mut Proxy) -> (u32, u32) {
    let params = json!({ "name": "about", "arguments": {}, "_meta": client.meta() });
    let answer = client.call("tools/call", params).await;
    let (process, canceled) = text(&answer).split_once(' ').unwrap();
    (process.parse().unwrap(), canceled.parse().unwrap())
}

impl Proxy {
    /// `_meta` of its calls, whether it has a session or not.
    fn meta(&self) -> Value {
        if self.opened { json!({}) } else { stateless() }
    }
}

/// Begins a call that takes long.
async fn watch(client: &mut Proxy) -> i64 {
    let arguments = json!({ "seconds": 600, "every": 600 });
    let token = client.calls + 1; // its id
    let mut meta = client.meta();
    meta["progressToken"] = json!(token);
    let params = json!({ "name": "watch", "arguments": arguments, "_meta": meta });
    let id = client.ask("tools/call", params).await;
    let told = client.read().await.unwrap();
    assert_eq!(told["method"], "notifications/progress", "{told}");
    assert_eq!(told["params"]["progressToken"], token, "{told}");
    id
}

/// A client that cancels hears no more of the call, and the server that it is canceled; another call goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_canceled_ends_and_another_does_not() {
    for (over, opens) in Over::ALL.into_iter().flat_map(|over| [(over, false), (over, true)]) {
        let world = World::new();
        let (alice, bob) = configs(&world, &files());
        let alice = start(alice).await;
        let mut client = Proxy::start(&bob, "files", over);
        if opens {
            client.open().await;
        }
        let (first, _second) = (watch(&mut client).await, watch(&mut client).await);
        let what = json!({ "requestId": first, "reason": "enough" });
        let cancel =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": what });
        client.write(&cancel.to_string()).await;
        let canceled = common::eventually("the server to hear of it", async || {
            let (_, canceled) = about(&mut client).await;
            (canceled > 0).then_some(canceled)
        });
        assert_eq!(canceled.await, 1, "{over:?} {opens}");
        drop(client);
        alice.stop().await;
    }
}

/// The server speaks beside its calls, and asks its client.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_says_and_asks_reaches_its_client() {
    for over in Over::ALL {
        let world = World::new();
        let (alice, bob) = configs(&world, &files());
        let alice = start(alice).await;
        let mut client = Proxy::start(&bob, "files", over);
        client.open().await;
        let roots = client.ask("tools/call", json!({ "name": "roots", "arguments": {} })).await;
        let (mut told, mut asked) = (false, false);
        let answer = loop {
            let line = client.read().await.expect("an answer");
            match line["method"].as_str() {
                Some("notifications/tools/list_changed") => told = true,
                Some("roots/list") => {
                    asked = true;
                    let roots = json!({ "roots": [{ "uri": "file:///of/bob" }] });
                    let said = json!({ "jsonrpc": "2.0", "id": line["id"], "result": roots });
                    client.write(&said.to_string()).await;
                }
                _ if line["id"] == roots => break line,
                _ => panic!("{line}"),
            }
        };
        assert_eq!(text(&answer), "file:///of/bob", "{over:?}");
        assert!(told && asked, "{over:?}");
        client.end().await;
        alice.stop().await;
    }
}

/// A session ends with its client, and the server's process with it.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_server_ends_with_its_client() {
    for over in Over::ALL {
        let world = World::new();
        let (alice, bob) = configs(&world, &files());
        let alice = start(alice).await;
        for opens in [false, true] {
            let mut client = Proxy::start(&bob, "files", over);
            if opens {
                client.open().await;
            }
            let (process, _) = about(&mut client).await;
            let process = PathBuf::from(format!("/proc/{process}/cmdline"));
            assert!(process.exists());
            watch(&mut client).await;
            drop(client); // killed: it says nothing
            let gone = async || (!process.exists()).then_some(());
            common::eventually("the server to end", gone).await;
        }
        alice.stop().await;
    }
}

/// A call beyond the limit is refused, and those that run go on.
#[tokio::test(flavor = "multi_thread")]
async fn bd1_calls_over_http3_are_bounded() {
    let world = World::new();
    let (alice, bob) = configs(&world, &files());
    let alice = start(alice).await;
    let mut client = Proxy::start(&bob, "files", Over::Http3);
    client.open().await;
    let arguments = json!({ "seconds": 600, "every": 600 });
    let first = watch(&mut client).await;
    for _ in 0..200 {
        client.ask("tools/call", json!({ "name": "watch", "arguments": arguments })).await;
    }
    let refused = client.read().await.unwrap();
    assert_ne!(refused["id"], first);
    assert_eq!(refused["error"]["code"], OVERLOADED, "{refused}");
    let what = refused["error"]["message"].as_str().unwrap();
    assert!(what.contains("200 calls run"), "{what}");
    // A place is free again once a call is over.
    let cancel = json!({ "requestId": first });
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel });
    client.write(&cancel.to_string()).await;
    let read = async || {
        let answer = client.tool("read", json!({ "path": "a" })).await;
        answer.get("error").is_none().then_some(answer)
    };
    assert_eq!(text(&common::eventually("a place", read).await), "content of a");
    drop(client);
    alice.stop().await;
}

/// A Python with another stack of QUIC and HTTP/3.
fn python() -> PathBuf {
    let packages = ["a2a-sdk==1.3.0", "aioquic==1.7.2"];
    peers::python("a2a-peers-2", &packages, "a2a, httpx, aioquic", "tests/a2a/constraints.txt")
}

/// What a client of another stack is answered, whose directory this is.
async fn call(at: &NodeConfig, dir: &Path, requests: &Value) -> Result<Vec<Value>, String> {
    let mut command = tokio::process::Command::new(python());
    command
        .arg(here("tests/a2a/http3.py"))
        .args([at.quic.listen.ip().to_string(), at.quic.listen.port().to_string()])
        .args([dir.join("ca.pem"), dir.join("node.pem"), dir.join("node.key")])
        .arg(requests.to_string())
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE * 3, command.output());
    let output = output.await.expect("the client ends in time").unwrap();
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn post(path: &str, message: &Value) -> Value {
    let mut headers = json!({
        "content-type": "application/json", "accept": "application/json, text/event-stream",
    });
    if let Some(name) = message["params"].get("name") {
        headers["mcp-protocol-version"] = json!("2026-07-28");
        headers["mcp-method"] = message["method"].clone();
        headers["mcp-name"] = name.clone();
    }
    json!({ "method": "POST", "path": path, "headers": headers, "body": message.to_string() })
}

/// Streamable HTTP as any client may speak it, known by its certificate; a stranger is not heard, and over TCP
/// nobody is.
#[tokio::test(flavor = "multi_thread")]
async fn bd1_a_client_that_is_not_ours_is_served_by_its_certificate_and_within_limits() {
    python(); // at its first use it is fetched
    let world = World::new();
    let others = files().replace("files", "others") + "peers = []\n";
    let (config, bob) = configs(&world, &format!("{}{others}", files()));
    let names = vec![
        SanType::URI(id("alice").as_str().try_into().unwrap()),
        SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    ];
    let issued = world.ca.issue_for(names, abhyasa::init::ca::valid_days(1)).unwrap();
    std::fs::write(&config.quic.cert, issued.cert_pem).unwrap();
    std::fs::write(&config.quic.key, issued.key_pem).unwrap();
    let alice = start(config.clone()).await;
    let request = |method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": "q", "method": method, "params": params });
    let read = request(
        "tools/call",
        json!({ "name": "read", "arguments": { "path": "a" }, "_meta": stateless() }),
    );
    let mut meta = stateless();
    meta["progressToken"] = json!(7);
    let arguments = json!({ "seconds": 0.3 });
    let steps =
        request("tools/call", json!({ "name": "watch", "arguments": arguments, "_meta": meta }));
    let mut of_session = post("/mcp/files", &read);
    of_session["headers"]["mcp-session-id"] = json!("of-another-connection");
    let requests = json!([
        post("/mcp/files", &read),
        post("/mcp/files", &steps),
        post("/mcp/others", &read),
        { "method": "GET", "path": "/mcp/nothing" },
        { "method": "GET", "path": "/mcp/files" },
        { "method": "PUT", "path": "/mcp/files" },
        { "method": "DELETE", "path": "/mcp/files", "headers": { "mcp-session-id": "none" } },
        of_session,
        { "method": "POST", "path": "/mcp/files", "body": "[1]" },
        { "method": "POST", "path": "/mcp/files", "body": "x", "times": (4 << 20) + 1 },
    ]);
    let bobs = bob.parent().unwrap();
    let answers = call(&config, bobs, &requests).await.unwrap();
    let status: Vec<i64> =
        answers.iter().map(|answer| answer["status"].as_i64().unwrap()).collect();
    assert_eq!(status, [200, 200, 404, 404, 405, 405, 404, 404, 400, 413], "{answers:?}");
    let body = |at: usize| serde_json::from_str::<Value>(answers[at]["body"].as_str().unwrap());
    assert_eq!(text(&body(0).unwrap()), "content of a");
    assert_eq!(body(0).unwrap()["id"], "q");
    let events = answers[1]["body"].as_str().unwrap();
    assert_eq!(events.matches("notifications/progress").count(), 3, "{events}");
    assert!(events.contains(r#""progressToken":7"#) && events.contains("over"), "{events}");
    let refused = body(2).unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!("q"), &json!(UNAVAILABLE)));
    let what = "no MCP server \"others\" for spiffe://test/bob here";
    assert_eq!(refused["error"]["message"], what);
    assert_eq!(body(3).unwrap()["error"]["message"], what.replace("others", "nothing"));
    // Sessions of one connection, here with the node itself.
    let info = json!({ "name": "test", "version": "1" });
    let opening =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
    let opening = post("/mcp/abhyasa", &request("initialize", opening));
    let answers = call(&config, bobs, &json!(vec![opening; 34])).await.unwrap();
    let (last, sessions) = answers.split_last().unwrap();
    for session in sessions {
        assert_eq!(session["status"], 200, "{session}");
        assert!(session["headers"]["mcp-session-id"].is_string(), "{session}");
    }
    assert_eq!(last["status"], 429, "{last}");
    assert!(last["body"].as_str().unwrap().contains("33 sessions are open"), "{last}");
    let mallory = world.config("mallory", "");
    let stranger = call(&config, mallory.quic.cert.parent().unwrap(), &requests).await;
    assert!(stranger.is_err(), "{stranger:?}");
    alice.stop().await;
}
