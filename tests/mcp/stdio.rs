//! `abhyasa mcp stdio`, driven line by line.

use super::{Server, Value, alice, initialize, json, modern, revoke};
use crate::common::{PATIENCE, World};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

struct Process {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(url: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_abhyasa"))
            .args(["mcp", "stdio", "--api", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, input, output }
    }

    async fn say(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> Option<Value> {
        let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await.expect("in time");
        line.unwrap().map(|line| serde_json::from_str(&line).unwrap())
    }

    async fn ask(&mut self, message: &Value) -> Value {
        self.say(&message.to_string()).await;
        let answer = self.next().await.expect("an answer");
        assert_eq!(answer["id"], message["id"], "{answer}");
        answer
    }

    /// Ends as its standard input does.
    async fn end(mut self) {
        drop(self.input);
        while tokio::time::timeout(PATIENCE, self.output.next_line())
            .await
            .unwrap()
            .unwrap()
            .is_some()
        {}
        let status =
            tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap();
        assert!(status.success(), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_node_every_request_gets_an_error() {
    let nobody = abhyasa::loopback::free_address().unwrap();
    let mut process = Process::start(&format!("http://{nobody}"));
    for message in [initialize(), modern("tools/list", json!({}))] {
        let answer = process.ask(&message).await;
        assert_eq!(answer["error"]["code"], -32603, "{answer}");
        let said = answer["error"]["message"].as_str().unwrap();
        assert!(said.contains(&format!("no node answers at http://{nobody}/")), "{said}");
    }
    process.say("this is no JSON").await;
    let answer = process.next().await.unwrap();
    assert_eq!(
        (&answer["id"], &answer["error"]["code"]),
        (&Value::Null, &json!(-32700)),
        "{answer}"
    );
    process.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cancelled_ends_and_the_rest_goes_on() {
    let world = World::new();
    let server = Server::start(alice(&world, "[mcp]\nrequests_max = 2")).await;
    let mut process = Process::start(&format!("http://{}", server.address));
    let filter = json!({ "notifications": { "resourceSubscriptions": ["abhyasa://pending"] } });
    let listen = modern("subscriptions/listen", filter);
    process.say(&listen.to_string()).await;
    let first = process.next().await.unwrap();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
    let mut list = modern("tools/list", json!({}));
    list["id"] = json!(2);
    assert_eq!(process.ask(&list).await["result"]["tools"].as_array().unwrap().len(), 9);
    // Cancelled, it gives its place back: then there are two.
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": "call-1" } });
    process.say(&cancelled.to_string()).await;
    crate::common::eventually("both places", async || {
        let one = server
            .modern("subscriptions/listen", json!({ "notifications": {} }))
            .send()
            .await
            .unwrap();
        let two = server.modern("tools/list", json!({})).send().await.unwrap();
        (one.status() == 200 && two.status() == 200).then_some(())
    })
    .await;
    process.end().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlives_a_restart_of_the_node() {
    let world = World::new();
    let config = alice(&world, "");
    let server = Server::start(config.clone()).await;
    let mut process = Process::start(&format!("http://{}", server.address));
    let begun = process.ask(&initialize()).await;
    assert_eq!(begun["result"]["protocolVersion"], super::LEGACY, "{begun}");
    process.say(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    let subscribe = json!({
        "jsonrpc": "2.0", "id": 2, "method": "resources/subscribe", "params": { "uri": "abhyasa://pending" }
    });
    assert_eq!(process.ask(&subscribe).await["result"], json!({}));
    server.stop().await;
    let server = Server::start(config).await;
    // The node knows nothing of the session; the host does not notice.
    let call = json!({ "name": "issue_obligation", "arguments": revoke("ob-1", "mail") });
    let call = json!({ "jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": call });
    process.say(&call.to_string()).await;
    let (mut answered, mut told) = (false, false);
    while !(answered && told) {
        let message = process.next().await.unwrap();
        answered |= message["id"] == 3 && message["result"]["structuredContent"]["custody"] == true;
        let updated = message["method"] == "notifications/resources/updated";
        told |= updated && message["params"]["uri"] == "abhyasa://pending";
    }
    process.end().await;
    server.stop().await;
}

#[test]
fn the_fixtures_of_the_suite_are_for_a_loopback_api_only() {
    let world = World::new();
    world.config("alice", "[api]\nlisten = \"0.0.0.0:0\"\ntoken_file = \"api.token\"");
    let mut node = std::process::Command::new(env!("CARGO_BIN_EXE_abhyasa"));
    node.args(["node", "--conformance", "--config"]).arg(world.path().join("alice/abhyasa.toml"));
    let output = node.output().unwrap();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && complained.contains("--conformance"), "{complained}");
}
