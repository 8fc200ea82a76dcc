//! The A2A server against real clients on loopback: our own raw requests, and the official SDK.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
#[allow(unreachable_pub, reason = "shared with tests that are one file each")]
mod common;

mod crashes;
mod gate;
mod http3;
mod moqt;
mod nodes;
mod obligations;
mod proxy;
mod push;
mod quic;
mod sdk;
mod streams;
mod surface;
mod tasks;

use abhyasa::api;
use abhyasa::config::NodeConfig;
use abhyasa::loopback::free_address;
use abhyasa::node::{Node, NodeHandle};
use common::{PATIENCE, World, eventually};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const URI: &str = "https://ravikiran438.github.io/abhyasa-protocol/v1";
const TOKEN: &str = "token-of-bob-0123456789";

/// A node and its HTTP surface, on a runtime of their own, so that nothing of them outlives a crash.
struct Server {
    runtime: Option<Runtime>,
    node: Option<Node>,
    handle: Option<NodeHandle>,
    config: NodeConfig,
    address: SocketAddr,
    http: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<std::io::Result<()>>>,
}

/// Node `name` with an agent, that listens where its card says. `more` is TOML.
fn config(world: &World, name: &str, a2a: &str, more: &str) -> NodeConfig {
    let at = free_address().unwrap();
    let a2a = format!("[a2a]\npublic_url = \"http://{at}\"\npush_to_private = true\n{a2a}\n{more}");
    let mut config = world.config(name, &a2a);
    config.api.listen = at;
    config
}

/// With the echo agent.
fn echo(world: &World, a2a: &str, more: &str) -> NodeConfig {
    config(world, "alice", &format!("agent = \"echo\"\n{a2a}"), more)
}

/// Bob as a peer who may call us, by his token.
fn bob(world: &World) -> String {
    let file = world.path().join("bob.token");
    std::fs::write(&file, TOKEN).unwrap();
    private(&file);
    let text = common::peer_toml("bob", None);
    format!("{text}http_token_file = {file:?}\n")
}

/// Only its owner may read it.
fn private(file: &Path) {
    #[cfg(unix)]
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // a test that failed
        }
    }
}

impl Server {
    async fn start(config: NodeConfig) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (here, address) = (runtime.handle().clone(), config.api.listen);
        let started = config.clone();
        // On a thread of its own, but with the tasks of that runtime.
        let (node, listener) = tokio::task::spawn_blocking(move || {
            here.block_on(async {
                let node = common::start(started).await;
                let bind = async || TcpListener::bind(address).await.ok();
                (node, eventually("the port", bind).await)
            })
        })
        .await
        .unwrap();
        let handle = node.handle();
        let (stop, stopped) = oneshot::channel::<()>();
        let served =
            runtime.spawn(api::serve(listener, handle.clone(), async { drop(stopped.await) }));
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self {
            runtime: Some(runtime),
            node: Some(node),
            handle: Some(handle),
            config,
            address,
            http,
            stop: Some(stop),
            served: Some(served),
        }
    }

    fn handle(&self) -> &NodeHandle {
        self.handle.as_ref().unwrap()
    }

    /// Stops it as an operator does.
    async fn stop(mut self) -> NodeConfig {
        drop(self.stop.take());
        self.served.take().unwrap().await.unwrap().unwrap();
        drop(self.handle.take());
        let node = self.node.take().unwrap();
        let runtime = self.runtime.take().unwrap();
        runtime.spawn(node.stop()).await.unwrap().unwrap();
        runtime.shutdown_background();
        self.config.clone()
    }

    /// Ends it without a word, as a crash does.
    fn crash(mut self) -> NodeConfig {
        drop(self.handle.take());
        drop(self.node.take());
        self.runtime.take().unwrap().shutdown_background();
        self.config.clone()
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// A request in our version.
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, self.url(path)).header("a2a-version", "1.0")
    }

    /// A JSON-RPC request.
    fn rpc(&self, method: &str, params: &Value) -> RequestBuilder {
        let body = json!({ "jsonrpc": "2.0", "id": "call-1", "method": method, "params": params });
        self.request(Method::POST, "/a2a").json(&body)
    }

    /// The result of a call that must succeed.
    async fn call(&self, method: &str, params: Value) -> Value {
        let answer = json_of(self.rpc(method, &params).send().await.unwrap()).await;
        assert_eq!(answer["id"], "call-1", "{answer}");
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The code of a call that must fail.
    async fn refused(&self, method: &str, params: Value) -> i64 {
        let answer = json_of(self.rpc(method, &params).send().await.unwrap()).await;
        answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{method}: {answer}"))
    }

    /// A call over HTTP+JSON: status and body.
    async fn rest(&self, method: Method, path: &str, body: Option<&Value>) -> (u16, Value) {
        let request = self.request(method, &format!("/a2a/rest{path}"));
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        let response = request.send().await.unwrap();
        (response.status().as_u16(), json_of(response).await)
    }

    /// Sends a message and gives its task.
    async fn send(&self, message: Value) -> Value {
        self.call("SendMessage", json!({ "message": message })).await["task"].clone()
    }

    /// Sends a message and gives its task as it begins.
    async fn begin(&self, message: Value) -> Value {
        let configuration = json!({ "returnImmediately": true });
        let params = json!({ "message": message, "configuration": configuration });
        self.call("SendMessage", params).await["task"].clone()
    }

    async fn get(&self, task: &str) -> Value {
        self.call("GetTask", json!({ "id": task })).await
    }

    /// Waits until a task is in this state.
    async fn reaches(&self, task: &str, state: &str) -> Value {
        eventually(state, async || {
            let found = self.get(task).await;
            (found["status"]["state"] == state).then_some(found)
        })
        .await
    }

    /// A stream over HTTP+JSON.
    async fn subscribe(&self, task: &str, after: Option<u64>) -> Stream {
        let path = format!("/a2a/rest/tasks/{task}:subscribe");
        let mut request = self.request(Method::POST, &path);
        if let Some(after) = after {
            request = request.header("last-event-id", after.to_string());
        }
        Stream::of(request.send().await.unwrap())
    }
}

async fn json_of(response: Response) -> Value {
    let text = response.text().await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text:?} is no JSON"))
}

/// A message of the user with these parts, text or JSON, and what it tells the echo agent.
fn message(id: &str, parts: &[&str], wish: Value) -> Value {
    let parts: Vec<Value> = parts.iter().map(|text| json!({ "text": text })).collect();
    json!({
        "messageId": id, "role": "ROLE_USER", "parts": parts,
        "metadata": { "abhyasa.echo": wish }
    })
}

/// A message that is echoed at once.
fn hello(id: &str) -> Value {
    message(id, &["hello"], json!({}))
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_else(|| panic!("no text at {pointer} of {value}"))
}

fn id_of(task: &Value) -> String {
    text(task, "/id").to_owned()
}

/// Server-sent events, read by hand.
struct Stream {
    response: Response,
    buffer: String,
}

impl Stream {
    fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, buffer: String::new() }
    }

    /// The next event: its number and its data. `None` at the end.
    async fn next(&mut self) -> Option<(u64, Value)> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let field = |name: &str| {
                    event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
                };
                let found = field("data:").map(|data| {
                    let number = field("id:").unwrap().parse().unwrap();
                    (number, serde_json::from_str(data).unwrap())
                });
                self.buffer = rest.to_owned();
                if found.is_some() {
                    return found;
                }
                continue; // a comment
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk());
            match chunk.await.expect("an event in time").ok()? {
                Some(chunk) => self.buffer.push_str(std::str::from_utf8(&chunk).unwrap()),
                None => return None,
            }
        }
    }

    /// All that is left.
    async fn rest(&mut self) -> Vec<(u64, Value)> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }
}

/// What an event is, and what it says in a word.
fn shape(event: &Value) -> String {
    let member = event.as_object().unwrap().keys().next().unwrap();
    let word = match member.as_str() {
        "task" => text(event, "/task/status/state"),
        "statusUpdate" => text(event, "/statusUpdate/status/state"),
        "artifactUpdate" => text(event, "/artifactUpdate/artifact/parts/0/text"),
        other => panic!("{other}"),
    };
    format!("{member} {}", word.trim_start_matches("TASK_STATE_"))
}

fn shapes(events: &[(u64, Value)]) -> Vec<String> {
    events.iter().map(|(_, event)| shape(event)).collect()
}
