//! What a call of an MCP server costs more through a proxy, QUIC and a node than the same call of the
//! same program on a pipe. Both in one run, by turns; medians over all calls.
//!
//! `cargo bench --bench mcp_call`, or with `-- --calls 5000`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use abhyasa::config::NodeConfig;
use abhyasa::init::{InitOptions, init};
use abhyasa::loopback::free_address;
use abhyasa::node::Builder;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Calls of a turn.
const TURN: usize = 100;

/// A program that speaks MCP on its pipes.
struct Program {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    calls: u64,
}

impl Program {
    fn start(program: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, stdout: BufReader::new(stdout), calls: 0 }
    }

    fn call(&mut self) -> Duration {
        self.calls += 1;
        let params = json!({ "name": "echo", "arguments": { "text": "x".repeat(200) } });
        let id = self.calls;
        let request =
            json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        let line = format!("{request}\n");
        let begun = Instant::now();
        self.stdin.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        self.stdout.read_line(&mut answer).unwrap();
        let took = begun.elapsed();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert!(answer["id"] == id && answer.get("result").is_some(), "{answer}");
        took
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let calls = arguments.iter().position(|argument| argument == "--calls");
    let calls = calls.map_or(2_000, |at| arguments[at + 1].parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let echo = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/mcp_echo.py");
    let echo = echo.to_str().unwrap();
    let (quic, api) = (free_address().unwrap(), free_address().unwrap());
    let (near, far) = ("spiffe://bench/near", "spiffe://bench/far");
    let node = |name: &str, id: &str, more: &str| {
        let options = InitOptions {
            id: Some(id.to_owned()),
            ca: (name == "near").then(|| dir.path().join("far/ca")),
            quic_listen: if name == "far" { quic } else { free_address().unwrap() },
            api_listen: api,
            ..InitOptions::default()
        };
        let file = init(&dir.path().join(name), &options).unwrap().config;
        let text = std::fs::read_to_string(&file).unwrap() + more;
        std::fs::write(&file, text).unwrap();
        file
    };
    let server = format!(
        "\n[[peers]]\nid = \"{near}\"\n[[mcp_servers]]\nname = \"echo\"\ncommand = [\"python3\", \"{echo}\"]\n[[gate]]\ncalls = [\"mcp:*\"]\nscope = \"s\"\nprincipal = \"caller\"\nunknown = \"allow\"\n"
    );
    let far_file = node("far", far, &server);
    let peer = format!("\n[[peers]]\nid = \"{far}\"\naddress = \"{quic}\"\n");
    let near_file = node("near", near, &peer);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let config = NodeConfig::load(&far_file).unwrap();
    let running = runtime.block_on(Builder::new(config).start()).unwrap();

    let near_file = near_file.to_str().unwrap();
    let proxy = ["mcp", "proxy", "--config", near_file, "--peer", far, "--server", "echo"];
    let mut direct = Program::start("python3", &[echo]);
    let mut through = Program::start(env!("CARGO_BIN_EXE_abhyasa"), &proxy);
    for _ in 0..TURN {
        direct.call();
        through.call();
    }
    let (mut alone, mut carried) = (Vec::new(), Vec::new());
    while alone.len() < calls {
        alone.extend((0..TURN).map(|_| direct.call()));
        carried.extend((0..TURN).map(|_| through.call()));
    }
    let (alone, carried) = (median(&mut alone), median(&mut carried));
    println!("a call of 200 bytes, median of {calls}:");
    println!("  on a pipe                       {:>8.1} us", alone.as_secs_f64() * 1e6);
    println!("  through proxy, QUIC and a node  {:>8.1} us", carried.as_secs_f64() * 1e6);
    println!(
        "  more                            {:>8.1} us",
        carried.saturating_sub(alone).as_secs_f64() * 1e6
    );
    drop(through);
    runtime.block_on(running.stop()).unwrap();
}
