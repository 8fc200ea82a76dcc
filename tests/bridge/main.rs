//! MCP between nodes, with the official SDK at both ends: its client before the proxy, its server
//! behind the node.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
#[allow(unreachable_pub, reason = "shared with tests that are one file each")]
mod common;

mod consent;
mod http3;
mod sdk;
mod sessions;

use abhyasa::api;
use abhyasa::config::NodeConfig;
use abhyasa::node::{Node, NodeHandle};
use common::{PATIENCE, World, id, peers};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const ACK_KEY: &str = "io.github.ravikiran438/abhyasa.custody-ack";

/// A Python with the SDK, made once.
fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        peers::python("mcp-peers-1", &["mcp==2.3.0"], "mcp", "tests/mcp/constraints.txt")
    })
}

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// `[[mcp_servers]]` with the SDK's server, as a program.
fn files() -> String {
    let (python, server) = (python(), here("tests/bridge/server.py"));
    format!("\n[[mcp_servers]]\nname = \"files\"\ncommand = [{python:?}, {server:?}]\n")
}

/// What `watch` of it needs.
const GATE: &str =
    "\n[[gate]]\ncalls = [\"mcp:files/watch\"]\nscope = \"files.watch\"\nprincipal = \"caller\"\n";

/// Alice's node with this behind it, and Bob, whose configuration the proxies have.
fn configs(world: &World, more: &str) -> (NodeConfig, PathBuf) {
    let (alice, _) =
        world.configs(&format!("[api]\nhttp3 = true\n[moq]\nenabled = true\n{more}"), "");
    (alice, world.path().join("bob/abhyasa.toml"))
}

/// A node, and its API, of which HTTP/3 is.
struct Served {
    node: Node,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

async fn start(config: NodeConfig) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let node = common::start(config).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(api::serve(listener, node.handle(), async { drop(stopped.await) }));
    Served { node, stop, served }
}

impl Served {
    fn handle(&self) -> NodeHandle {
        self.node.handle()
    }

    /// As `abhyasa node` stops.
    async fn stop(self) {
        drop(self.stop);
        self.served.await.unwrap().unwrap();
        self.node.stop().await.unwrap();
    }
}

/// What the proxies go over.
#[derive(Clone, Copy, Debug)]
enum Over {
    Native,
    Http3,
    Moqt,
}

impl Over {
    const ALL: [Self; 3] = [Self::Native, Self::Http3, Self::Moqt];

    /// The argument for it: native is what is taken without one.
    const fn argument(self) -> Option<&'static str> {
        match self {
            Self::Native => None,
            Self::Http3 => Some("--over=http3"),
            Self::Moqt => Some("--over=moqt"),
        }
    }
}

/// The arguments of a proxy.
fn proxy(config: &Path, server: &str, over: Over) -> Vec<String> {
    let config = config.to_str().unwrap();
    let peer = id("alice").to_string();
    ["mcp", "proxy", "--config", config, "--peer", &peer, "--server", server]
        .into_iter()
        .chain(over.argument())
        .map(str::to_owned)
        .collect()
}

/// A proxy, spoken to line by line.
struct Proxy {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    calls: i64,
    /// Whether it has a session of the time of `initialize`.
    opened: bool,
}

impl Proxy {
    fn start(config: &Path, server: &str, over: Over) -> Self {
        let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_abhyasa"))
            .args(proxy(config, server, over))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, stdin, stdout: BufReader::new(stdout), calls: 0, opened: false }
    }

    async fn write(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
    }

    /// The next line; `None` at the end.
    async fn read(&mut self) -> Option<Value> {
        let mut line = String::new();
        let read = tokio::time::timeout(PATIENCE, self.stdout.read_line(&mut line));
        match read.await.expect("a line in time").unwrap() {
            0 => None,
            _ => Some(serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"))),
        }
    }

    /// Asks, and gives the id.
    async fn ask(&mut self, method: &str, params: Value) -> i64 {
        self.calls += 1;
        let id = self.calls;
        let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.write(&request.to_string()).await;
        id
    }

    /// The answer to a request; what else comes is passed over.
    async fn answer(&mut self, id: i64) -> Value {
        loop {
            let line = self.read().await.expect("an answer");
            if line["id"] == id && line.get("method").is_none() {
                return line;
            }
        }
    }

    async fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params).await;
        self.answer(id).await
    }

    async fn tool(&mut self, name: &str, arguments: Value) -> Value {
        self.call("tools/call", json!({ "name": name, "arguments": arguments })).await
    }

    /// Opens a session of the time of `initialize`.
    async fn open(&mut self) {
        let info = json!({ "name": "test", "version": "1" });
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": { "roots": {} }, "clientInfo": info,
        });
        let opened = self.call("initialize", params).await;
        assert_eq!(opened["result"]["serverInfo"]["name"], "files", "{opened}");
        self.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        self.opened = true;
    }

    /// Ends its input, and waits for its end.
    async fn end(mut self) {
        drop(self.stdin.take());
        while self.read().await.is_some() {}
        let ended = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        assert!(ended.expect("it ends").unwrap().success());
    }
}
