//! The HTTP API and the command line against real nodes on loopback: every route, and every
//! refusal that guards one.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod access;
mod cli;
mod inbox;
mod issue;
mod peer;
mod watch;

use abhyasa::api;
use abhyasa::config::NodeConfig;
use abhyasa::init::{InitOptions, init};
use abhyasa::node::{Builder, Node, NodeHandle};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const CONSENT: &str = "anumati.consent";
const BELIEF: &str = "phala.belief_update";
const KINDS: &str = r#"["anumati.consent", "phala.belief_update"]"#;

/// Short enough that a test sees an escalation.
const PROFILES: &str = r#"
[kinds."anumati.consent"]
deadline_seconds = 4
max_retries = 60
backoff_base_ms = 50
backoff_cap_ms = 200
"#;

/// A node and its API.
struct Server {
    node: Node,
    handle: NodeHandle,
    address: SocketAddr,
    http: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<std::io::Result<()>>,
}

/// Directory of a node, with certificates of the CA of the first one made in `root`.
fn directory(root: &Path, name: &str) -> PathBuf {
    let dir = root.join(name);
    let ca = root.join("ca");
    let made = ca.exists();
    let options = InitOptions {
        id: Some(format!("spiffe://t/{name}")),
        ca: made.then(|| ca.clone()),
        ..Default::default()
    };
    init(&dir, &options).unwrap();
    if !made {
        std::fs::rename(dir.join("ca"), ca).unwrap();
    }
    dir
}

/// The node's configuration: any free ports, short deadlines, and `more`.
fn config(root: &Path, name: &str, api: &str, more: &str) -> NodeConfig {
    let dir = directory(root, name);
    let text = format!(
        "[node]\nid = \"spiffe://t/{name}\"\n[quic]\nlisten = \"127.0.0.1:0\"\n\
         [custody]\nmax_clock_skew_ms = 50\n[api]\nlisten = \"127.0.0.1:0\"\n{api}\n{PROFILES}\n{more}"
    );
    let file = dir.join("abhyasa.toml");
    std::fs::write(&file, text).unwrap();
    NodeConfig::load(&file).unwrap_or_else(|error| panic!("{error}"))
}

/// A peer entry with both kinds allowed both ways.
fn peer_entry(name: &str, address: Option<SocketAddr>, more: &str) -> String {
    let mut text = format!(
        "[[peers]]\nid = \"spiffe://t/{name}\"\nmay_issue = {KINDS}\nmay_receive = {KINDS}\n"
    );
    if let Some(address) = address {
        writeln!(text, "address = \"{address}\"").unwrap();
    }
    text + more + "\n"
}

/// A token file only its owner may read.
fn token_file(file: &Path, token: &str) {
    std::fs::write(file, token).unwrap();
    #[cfg(unix)]
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

impl Server {
    async fn start(builder: Builder) -> Self {
        let node = builder.start().await.unwrap();
        let handle = node.handle();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served =
            tokio::spawn(api::serve(listener, handle.clone(), async { drop(stopped.await) }));
        while handle.readiness().is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let http =
            reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap();
        Self { node, handle, address, http, stop: Some(stop), served }
    }

    /// A node whose one peer `b` is never there.
    async fn alone(root: &Path) -> Self {
        Self::start(Builder::new(config(root, "a", "", &peer_entry("b", None, "")))).await
    }

    /// Two nodes, `a` connected to `b`.
    async fn pair(root: &Path) -> (Self, Self) {
        let b = Self::start(Builder::new(config(root, "b", "", &peer_entry("a", None, "")))).await;
        let address = Some(b.handle.quic_address());
        let a =
            Self::start(Builder::new(config(root, "a", "", &peer_entry("b", address, "")))).await;
        for _ in 0..1000 {
            if a.handle.peers()[0].connected && b.handle.peers()[0].connected {
                return (a, b);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the nodes do not find each other");
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("http://{}{path}", self.address))
    }

    async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.request(Method::GET, path).send().await.unwrap()).await
    }

    async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        answer(self.request(Method::POST, path).json(&body).send().await.unwrap()).await
    }

    /// The error code of an issue that must be refused.
    async fn refused(&self, body: Value) -> (u16, String) {
        let (status, body) = self.post("/v1/obligations", body).await;
        (
            status.as_u16(),
            body["error"]["code"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned(),
        )
    }

    /// Stops the API, then the node.
    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.served.await.unwrap().unwrap();
        self.node.stop().await.unwrap();
    }
}

async fn answer(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = response.text().await.unwrap();
    let body = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    };
    (status, body)
}

fn revoke(scope: &str) -> Value {
    json!({ "kind": CONSENT, "target": "spiffe://t/b", "payload": { "decision": "revoke", "scope": scope } })
}

/// `base` and more members.
fn with(mut base: Value, more: Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}
