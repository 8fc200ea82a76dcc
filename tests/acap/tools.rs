//! Calls of MCP tools, held against the claims that the callee names for them, on standard input and output
//! and at a local URL.

use super::caller::{alice, bob, operator};
use super::{PROFILING, Server, USE, first, publish, second};
use crate::common::{PATIENCE, World, eventually, id};
use abhyasa::config::NodeConfig;
use abhyasa::loopback::free_address;
use abhyasa::proto::consent::PolicyDocument;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A server of MCP with two tools, and a third that it does not list.
const SERVER: &str = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif asked["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ["read", "profile"]]}
    else:
        result = {"content": [{"type": "text", "text": "done"}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"#;

/// Alice with that server behind her, Bob, and Bob's configuration.
async fn nodes(world: &World) -> (Server, Server, PathBuf) {
    let script = world.path().join("server.py");
    std::fs::write(&script, SERVER).unwrap();
    let mut at_alice = alice(world, "");
    let file = world.path().join("alice/abhyasa.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("\"a2a:book\"", "\"mcp:files/*\"");
    let text = text.replace("\"a2a:analyse\"", "\"mcp:files/profile\"");
    let server =
        format!("[[mcp_servers]]\nname = \"files\"\ncommand = [\"python3\", {script:?}]\n");
    std::fs::write(&file, format!("{text}\n{server}")).unwrap();
    let loaded = NodeConfig::load(&file).unwrap();
    (at_alice.policy_claims, at_alice.mcp_servers) = (loaded.policy_claims, loaded.mcp_servers);
    let api = free_address().unwrap();
    let mut at_bob = bob(world, &at_alice, false, "");
    let file = world.path().join("bob/abhyasa.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replacen("listen = \"127.0.0.1:8433\"", &format!("listen = \"{api}\""), 1);
    std::fs::write(&file, text).unwrap();
    at_bob.api.listen = api;
    (Server::start(at_alice).await, Server::start(at_bob).await, file)
}

fn proxy(file: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abhyasa"));
    command
        .args(["mcp", "proxy", "--config", file.to_str().unwrap()])
        .args(["--peer", id("alice").as_str(), "--server", "files"])
        .kill_on_drop(true);
    command
}

/// A client of the proxy.
enum Client {
    Pipe(Child, Option<ChildStdin>, Lines<BufReader<ChildStdout>>),
    Http(Child, reqwest::Client, String, Option<String>),
}

impl Client {
    fn pipe(file: &std::path::Path) -> Self {
        let mut child = proxy(file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (says, hears) = (child.stdin.take(), child.stdout.take().unwrap());
        Self::Pipe(child, says, BufReader::new(hears).lines())
    }

    async fn http(file: &std::path::Path) -> Self {
        let at = free_address().unwrap();
        let child = proxy(file).args(["--listen", &at.to_string()]).spawn().unwrap();
        eventually("the proxy", async || tokio::net::TcpStream::connect(at).await.ok()).await;
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self::Http(child, http, format!("http://{at}/mcp"), None)
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let message = json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params });
        match self {
            Self::Pipe(_, says, hears) => {
                let says = says.as_mut().unwrap();
                says.write_all(format!("{message}\n").as_bytes()).await.unwrap();
                let line = tokio::time::timeout(PATIENCE, hears.next_line()).await;
                serde_json::from_str(&line.unwrap().unwrap().unwrap()).unwrap()
            }
            Self::Http(_, http, url, session) => {
                let accept = "application/json, text/event-stream";
                let mut request = http.post(&*url).header("accept", accept).json(&message);
                if let Some(session) = session {
                    request = request.header("mcp-session-id", &*session);
                }
                let response = request.send().await.unwrap();
                if let Some(id) = response.headers().get("mcp-session-id") {
                    *session = Some(id.to_str().unwrap().to_owned());
                }
                response.json().await.unwrap()
            }
        }
    }

    /// Claims in the way of a tool, or none if it ran.
    async fn call(&mut self, tool: &str, facts: Value) -> Vec<String> {
        let params = json!({ "name": tool, "arguments": {}, "_meta": { "acap/context": facts } });
        let answer = self.ask("tools/call", params).await;
        if answer["error"].is_null() {
            assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
            return Vec::new();
        }
        assert_eq!(answer["error"]["code"], -31_403, "{answer}");
        let refusal = &answer["error"]["data"]["acap"];
        assert_eq!(refusal["by"], "caller", "{answer}");
        let claims = refusal["blocking_claims"].as_array().unwrap();
        claims.iter().map(|claim| claim["claim_id"].as_str().unwrap().to_owned()).collect()
    }

    async fn end(self) {
        let (Self::Pipe(mut child, ..) | Self::Http(mut child, ..)) = self;
        child.kill().await.unwrap();
    }
}

/// A tool that the callee has listed is held against the claims it names there; one that it has not, against
/// all of the policy.
#[tokio::test(flavor = "multi_thread")]
async fn s4_a_tool_is_held_against_the_claims_that_the_callee_lists() {
    for over_http in [false, true] {
        let world = World::new();
        let (alice, bob, file) = nodes(&world).await;
        let mut client = match over_http {
            true => Client::http(&file).await,
            false => Client::pipe(&file),
        };
        let opens = json!({
            "protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": { "name": "c", "version": "1" },
        });
        let opened = client.ask("initialize", opens).await;
        let policy = &opened["result"]["capabilities"]["usagePolicy"];
        assert_eq!(policy["version"], "1.0.0", "{opened}");
        let profiling = || json!({ "odrl:purpose": "behavioral_profiling" });
        assert!(client.call("read", json!({})).await.is_empty());
        assert_eq!(client.call("read", profiling()).await, [PROFILING], "of all of the policy");
        let listed = client.ask("tools/list", json!({})).await;
        assert_eq!(listed["result"]["tools"][0]["policyClaims"], json!([USE]), "{listed}");
        let events = alice.entries("event").await.len();
        assert!(client.call("read", profiling()).await.is_empty(), "it governs something else");
        assert_eq!(alice.entries("event").await.len(), events + 1, "an event for what governs it");
        assert_eq!(client.call("profile", profiling()).await, [PROFILING]);
        assert_eq!(client.call("unlisted", profiling()).await, [PROFILING]);
        client.end().await;
        bob.stop().await;
        alice.stop().await;
    }
}

/// A server says beside its tools which policy holds: a newer one than ours is fetched before the call goes,
/// though it is not time to look; one that the callee does not serve lets nothing go, and an older one was
/// said before.
#[tokio::test(flavor = "multi_thread")]
async fn s7_the_policy_that_a_server_points_to_is_the_one_that_counts() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let at_bob = bob(&world, &at_alice, false, "poll_seconds = 3600");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    let act = async |policy: &PolicyDocument| {
        let (version, hash) = (&policy.version, &policy.document_hash);
        let pointer = json!({ "version": version, "hash": hash });
        let body = json!({ "callee": id("alice"), "call": "mcp:files/read", "policy": pointer });
        operator(&bob, "/v1/consent/act", body).await
    };
    assert_eq!(act(&first()).await.0, 200);
    let unserved = act(&second()).await;
    assert_eq!((unserved.0, &unserved.1["error"]["code"]), (503, &json!("policy")), "{unserved:?}");
    let at_alice = alice.stop().await;
    publish(&world, &second());
    let alice = Server::start(at_alice).await;
    assert_eq!(act(&second()).await.0, 200);
    let records = alice.entries("record").await;
    assert_eq!(records.len(), 2, "{records:?}");
    assert_eq!(records[1]["policy_version"], "2.0.0");
    assert_eq!(act(&first()).await.0, 200, "said before");
    bob.stop().await;
    alice.stop().await;
}
