//! A server on a stream of bytes, as a peer has it, and how little a peer may see.

use super::{Value, initialize, json, modern, revoke};
use crate::common::{PATIENCE, World, id, issue, peer_toml};
use abhyasa::mcp::{Caller, serve_lines};
use abhyasa::node::Node;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines, ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::task::JoinHandle;

struct Client {
    lines: Lines<BufReader<ReadHalf<tokio::io::DuplexStream>>>,
    write: WriteHalf<tokio::io::DuplexStream>,
    stop: watch::Sender<bool>,
    served: JoinHandle<Result<(), abhyasa::mcp::LinesError>>,
}

impl Client {
    fn of(node: &Node, caller: Caller) -> Self {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (stop, stopped) = watch::channel(false);
        let (read, write) = tokio::io::split(theirs);
        let served = tokio::spawn(serve_lines(node.handle(), caller, stopped, read, write));
        let (read, write) = tokio::io::split(ours);
        Self { lines: BufReader::new(read).lines(), write, stop, served }
    }

    async fn say(&mut self, message: &Value) {
        self.write.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    async fn next(&mut self) -> Option<Value> {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("in time");
        line.unwrap().map(|line| serde_json::from_str(&line).unwrap())
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.say(&modern(method, params)).await;
        self.next().await.expect("an answer")
    }

    /// What a tool says, and whether it could do it.
    async fn tool(&mut self, name: &str, arguments: Value) -> (bool, Value) {
        let answer = self.ask("tools/call", json!({ "name": name, "arguments": arguments })).await;
        let result = &answer["result"];
        let failed = result["isError"].as_bool().unwrap_or_else(|| panic!("{answer}"));
        (
            !failed,
            if failed {
                result["content"][0]["text"].clone()
            } else {
                result["structuredContent"].clone()
            },
        )
    }
}

fn names(answer: &Value) -> Vec<&str> {
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("{answer}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

async fn alice(world: &World, more: &str) -> Node {
    let peers = format!("{}{}", peer_toml("bob", None), peer_toml("carol", None));
    crate::common::start(world.config("alice", &format!("{more}\n{peers}"))).await
}

#[tokio::test]
async fn a_peer_sees_only_what_concerns_itself() {
    let world = World::new();
    let node = alice(&world, "").await;
    issue(&node.handle(), crate::common::revoke("to-bob", "bob", "mail")).await;
    issue(&node.handle(), crate::common::revoke("to-carol", "carol", "mail")).await;
    let mut bob = Client::of(&node, Caller::Peer(id("bob")));
    let listed = bob.ask("tools/list", json!({})).await;
    assert_eq!(names(&listed), ["obligation_status", "check_authorization"]);
    // By name, and without one.
    for arguments in [
        json!({ "scope": "mail", "role": "principal" }),
        json!({ "scope": "mail", "role": "principal", "agent": id("bob") }),
    ] {
        let (ok, answer) = bob.tool("check_authorization", arguments).await;
        assert!(ok && answer["allowed"] == false && answer["why"] == "withheld", "{answer}");
    }
    let (ok, said) =
        bob.tool("check_authorization", json!({ "scope": "mail", "agent": id("carol") })).await;
    assert!(!ok && said.as_str().unwrap().contains("[forbidden]"), "{said}");
    let (ok, status) = bob.tool("obligation_status", json!({ "obligation_id": "to-bob" })).await;
    assert!(ok && status["state"] == "pending", "{status}");
    // What is Carol's looks like what is nobody's.
    let mut said = Vec::new();
    for name in ["to-carol", "to-nobody"] {
        let (ok, text) = bob.tool("obligation_status", json!({ "obligation_id": name })).await;
        assert!(!ok);
        said.push(text.as_str().unwrap().replace(name, "?"));
    }
    assert_eq!(said[0], said[1]);
    let (ok, text) =
        bob.tool("obligation_status", json!({ "obligation_id": "x", "issuer": id("carol") })).await;
    assert!(!ok && text.as_str().unwrap().contains("[forbidden]"), "{text}");
    for (method, params, code) in [
        (
            "tools/call",
            json!({ "name": "issue_obligation", "arguments": revoke("ob-1", "mail") }),
            -32602,
        ),
        ("tools/call", json!({ "name": "list_pending", "arguments": {} }), -32602),
        ("resources/read", json!({ "uri": "abhyasa://pending" }), -32602),
    ] {
        let answer = bob.ask(method, params).await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    let listed = bob.ask("resources/list", json!({})).await;
    assert_eq!(listed["result"]["resources"], json!([]), "{listed}");
    let filter = json!({ "notifications": { "resourceSubscriptions": ["abhyasa://pending"] } });
    let acknowledged = bob.ask("subscriptions/listen", filter).await;
    let accepted = &acknowledged["params"]["notifications"]["resourceSubscriptions"];
    assert!(accepted.as_array().is_none_or(Vec::is_empty), "{acknowledged}");
    bob.write.shutdown().await.unwrap();
    bob.served.await.unwrap().unwrap();
    node.stop().await.unwrap();
}

#[tokio::test]
async fn an_operator_sees_everything_in_either_era_and_the_stop_ends_it() {
    let world = World::new();
    let node = alice(&world, "").await;
    let mut modern = Client::of(&node, Caller::Operator);
    assert_eq!(names(&modern.ask("tools/list", json!({})).await).len(), 9);
    let mut legacy = Client::of(&node, Caller::Operator);
    legacy.say(&initialize()).await;
    let begun = legacy.next().await.unwrap();
    assert_eq!(begun["result"]["serverInfo"]["name"], "abhyasa", "{begun}");
    legacy.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
    let subscribe = json!({ "uri": "abhyasa://pending" });
    legacy.say(&json!({ "jsonrpc": "2.0", "id": 2, "method": "resources/subscribe", "params": subscribe })).await;
    assert_eq!(legacy.next().await.unwrap()["id"], 2);
    issue(&node.handle(), crate::common::revoke("to-bob", "bob", "mail")).await;
    let told = legacy.next().await.unwrap();
    assert_eq!(told["method"], "notifications/resources/updated", "{told}");
    for mut client in [modern, legacy] {
        client.stop.send(true).unwrap();
        (&mut client.served).await.unwrap().unwrap();
        while client.next().await.is_some() {}
    }
    node.stop().await.unwrap();
}

#[tokio::test]
async fn bd1_a_line_over_the_limit_ends_the_stream() {
    let world = World::new();
    let node = alice(&world, "[mcp]\nrequest_len_max = 100000").await;
    let mut client = Client::of(&node, Caller::Operator);
    assert_eq!(names(&client.ask("tools/list", json!({})).await).len(), 9);
    let long = json!({ "agent": "a", "scope": "x".repeat(100_000) });
    let call = modern("tools/call", json!({ "name": "check_authorization", "arguments": long }));
    let _ = client.write.write_all(format!("{call}\n").as_bytes()).await; // may end before its end
    assert_eq!(client.next().await, None);
    client.served.await.unwrap().unwrap();
    node.stop().await.unwrap();
}
