//! The MCP server against clients on loopback: our own raw requests, the official Python SDK, the
//! inspector, and the conformance suite.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
#[allow(unreachable_pub, reason = "shared with tests that are one file each")]
mod common;

mod access;
mod clients;
mod eras;
mod lines;
mod stdio;

use abhyasa::api;
use abhyasa::config::NodeConfig;
use abhyasa::loopback::free_address;
use abhyasa::node::{Node, NodeHandle};
use common::{PATIENCE, World, eventually, peer_toml};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The version without sessions, and the newest with them.
const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";
const ACCEPT: &str = "application/json, text/event-stream";

/// A node and its API.
struct Server {
    node: Node,
    address: SocketAddr,
    http: reqwest::Client,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

/// Alice, with Bob as a peer that is never there. `more` is TOML.
fn alice(world: &World, more: &str) -> NodeConfig {
    let mut config = world.config("alice", &format!("{more}\n{}", peer_toml("bob", None)));
    config.api.listen = free_address().unwrap();
    config
}

impl Server {
    async fn start(config: NodeConfig) -> Self {
        let address = config.api.listen;
        let node = common::start(config).await;
        let listener = eventually("the port", async || TcpListener::bind(address).await.ok()).await;
        let (stop, stopped) = oneshot::channel::<()>();
        let served =
            tokio::spawn(api::serve(listener, node.handle(), async { drop(stopped.await) }));
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self { node, address, http, stop, served }
    }

    fn handle(&self) -> NodeHandle {
        self.node.handle()
    }

    /// Stops it as an operator does.
    async fn stop(self) {
        drop(self.stop);
        self.served.await.unwrap().unwrap();
        self.node.stop().await.unwrap();
    }

    fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    fn request(&self, method: Method) -> RequestBuilder {
        self.http.request(method, self.url()).header("accept", ACCEPT)
    }

    fn post(&self, message: &Value) -> RequestBuilder {
        self.request(Method::POST).json(message)
    }

    /// A request that stands alone.
    fn modern(&self, method: &str, params: Value) -> RequestBuilder {
        let message = modern(method, params);
        let named =
            ["/params/name", "/params/uri"].iter().find_map(|at| message.pointer(at)?.as_str());
        let mut request =
            self.post(&message).header("mcp-protocol-version", MODERN).header("mcp-method", method);
        if let Some(named) = named {
            request = request.header("mcp-name", named);
        }
        request
    }

    /// The answer to such a request.
    async fn ask(&self, method: &str, params: Value) -> Value {
        message_of(self.modern(method, params).send().await.unwrap()).await
    }

    /// The result of a tool that must not fail.
    async fn tool(&self, name: &str, arguments: Value) -> Value {
        let answer = self.ask("tools/call", json!({ "name": name, "arguments": arguments })).await;
        assert_eq!(answer["result"]["isError"], false, "{answer}");
        answer["result"]["structuredContent"].clone()
    }

    /// Begins a session; its id.
    async fn begin(&self) -> Result<String, Response> {
        let response = self.post(&initialize()).send().await.unwrap();
        if response.status() != 200 {
            return Err(response);
        }
        let id = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let answer = message_of(response).await;
        assert_eq!(answer["result"]["protocolVersion"], LEGACY, "{answer}");
        let told = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        assert_eq!(self.in_session(&id, &told).send().await.unwrap().status(), 202);
        Ok(id)
    }

    fn in_session(&self, id: &str, message: &Value) -> RequestBuilder {
        self.post(message).header("mcp-session-id", id).header("mcp-protocol-version", LEGACY)
    }

    /// The stream of a session.
    async fn follow(&self, id: &str) -> Stream {
        let request = self.request(Method::GET).header("mcp-session-id", id);
        Stream::of(request.header("mcp-protocol-version", LEGACY).send().await.unwrap())
    }

    /// Subscribes to resources, without a session.
    async fn listen(&self, uris: &[&str]) -> Stream {
        let params = json!({ "notifications": { "resourceSubscriptions": uris } });
        let mut stream =
            Stream::of(self.modern("subscriptions/listen", params).send().await.unwrap());
        let first = stream.next().await.unwrap();
        assert_eq!(first["method"], "notifications/subscriptions/acknowledged", "{first}");
        stream
    }
}

fn initialize() -> Value {
    let params = json!({
        "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": { "name": "t", "version": "1" }
    });
    json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params })
}

fn modern(method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
    });
    json!({ "jsonrpc": "2.0", "id": "call-1", "method": method, "params": params })
}

/// The last message of a response, which is the answer.
async fn message_of(response: Response) -> Value {
    if response.headers()["content-type"] != "text/event-stream" {
        let text = response.text().await.unwrap();
        return serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text:?} is no JSON"));
    }
    let mut stream = Stream::of(response);
    let mut last = Value::Null;
    while let Some(message) = stream.next().await {
        last = message;
    }
    last
}

/// Server-sent events with messages.
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

    /// The next message. `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data:")).map(str::trim);
                let message = data
                    .filter(|data| !data.is_empty())
                    .map(|data| serde_json::from_str(data).unwrap());
                self.buffer = rest.to_owned();
                if message.is_some() {
                    return message;
                }
                continue; // a comment, or where to go on
            }
            let chunk = tokio::time::timeout(PATIENCE, self.response.chunk());
            match chunk.await.expect("an event in time").ok()? {
                Some(chunk) => self.buffer.push_str(std::str::from_utf8(&chunk).unwrap()),
                None => return None,
            }
        }
    }

    /// Waits for a resource to be said to have changed.
    async fn updated(&mut self, uri: &str) -> Value {
        loop {
            let message = self.next().await.expect("the stream goes on");
            if message["method"] == "notifications/resources/updated"
                && message["params"]["uri"] == uri
            {
                return message;
            }
        }
    }
}

/// Arguments that issue a revocation to Bob.
fn revoke(id: &str, scope: &str) -> Value {
    json!({
        "obligation_id": id, "kind": common::CONSENT, "target": common::id("bob"),
        "payload": { "decision": "revoke", "scope": scope },
    })
}
