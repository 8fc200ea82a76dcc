//! A2A under load: streams that stay open beside calls at a fixed rate, against a node in a process of its
//! own; errors, latencies and the node's memory as it goes.
//!
//! `cargo bench --bench a2a_load`, or with `-- --seconds 60 --streams 1000 --rate 500`.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use abhyasa::init::{InitOptions, init};
use abhyasa::loopback::free_address;
use hdrhistogram::Histogram;
use reqwest::Client;
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How many times the memory is looked at.
const LOOKS: u32 = 6;

struct Node {
    child: Child,
    url: String,
    _dir: tempfile::TempDir,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Node {
    fn start(streams: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = free_address().unwrap();
        let options = InitOptions {
            quic_listen: free_address().unwrap(),
            api_listen: at,
            ..InitOptions::default()
        };
        let file = init(&dir.path().join("node"), &options).unwrap().config;
        let text = std::fs::read_to_string(&file).unwrap();
        let text = text
            // Old tasks are forgotten while this goes on, so that what memory shows is no task list.
            .replace(
                "[a2a]\n",
                &format!("[a2a]\nagent = \"echo\"\ntasks_max = {}\n", streams + 4_000),
            )
            // One over the limit would wait until one that is idle is closed.
            .replace("[api]\n", &format!("[api]\nconnections_max = {}\n", streams + 4_000));
        std::fs::write(&file, text).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_abhyasa"))
            .args(["node", "--config", file.to_str().unwrap()])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, url: format!("http://{at}/a2a"), _dir: dir }
    }

    /// Resident memory, in MB.
    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kb = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kb.unwrap_or(0) / 1024
    }
}

fn request(method: &str, id: u64, wish: Value) -> Value {
    let message = json!({
        "messageId": format!("m-{id}"), "role": "ROLE_USER", "parts": [{ "text": "x".repeat(200) }],
        "metadata": { "abhyasa.echo": wish }
    });
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": { "message": message } })
}

fn argument(name: &str, default: u64) -> u64 {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|argument| argument == name);
    at.map_or(default, |at| arguments[at + 1].parse().unwrap())
}

#[tokio::main]
async fn main() {
    let (seconds, streams, rate) =
        (argument("--seconds", 60), argument("--streams", 1_000), argument("--rate", 500));
    let node = Node::start(usize::try_from(streams).unwrap());
    let http = Client::builder().no_proxy().timeout(Duration::from_secs(600)).build().unwrap();
    let post = |body: &Value| http.post(&node.url).header("a2a-version", "1.0").json(body);
    let begun = Instant::now();
    while post(&request("SendMessage", 0, json!({}))).send().await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30), "the node is not there");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let (open, heard, broken) =
        (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut listening = JoinSet::new();
    for id in 0..streams {
        // A part of the echo every ten seconds, for longer than all this takes.
        let mut body = request("SendStreamingMessage", id, json!({ "delay_ms": 10_000 }));
        let parts = usize::try_from(seconds / 10 + 12).unwrap();
        body["params"]["message"]["parts"] = Value::Array(vec![json!({ "text": "tick" }); parts]);
        let sent = post(&body).send();
        let (open, heard, broken) = (open.clone(), heard.clone(), broken.clone());
        listening.spawn(async move {
            let Ok(mut response) = sent.await else {
                broken.fetch_add(1, Ordering::Relaxed);
                return;
            };
            if response.status() != 200 {
                broken.fetch_add(1, Ordering::Relaxed);
                return;
            }
            open.fetch_add(1, Ordering::Relaxed);
            while let Ok(Some(chunk)) = response.chunk().await {
                let events = chunk.windows(5).filter(|window| window == b"data:").count();
                heard.fetch_add(events as u64, Ordering::Relaxed);
            }
            broken.fetch_add(1, Ordering::Relaxed); // none ends by itself in this time
        });
    }
    while open.load(Ordering::Relaxed) + broken.load(Ordering::Relaxed) < streams {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("{} streams are open, {} MB resident", open.load(Ordering::Relaxed), node.resident());

    let times = Arc::new(Mutex::new(Histogram::<u64>::new(3).unwrap()));
    let failed = Arc::new(AtomicU64::new(0));
    let mut calls = JoinSet::new();
    let mut tick = tokio::time::interval(Duration::from_secs(1) / u32::try_from(rate).unwrap());
    let (begun, mut looks) = (Instant::now(), 0);
    for id in 0..rate * seconds {
        tick.tick().await;
        let due = Instant::now();
        let sent = post(&request("SendMessage", streams + id, json!({}))).send();
        let (times, failed) = (times.clone(), failed.clone());
        calls.spawn(async move {
            let answer = match sent.await {
                Ok(response) => response.json::<Value>().await.ok(),
                Err(_) => None,
            };
            let state =
                answer.as_ref().and_then(|answer| answer.pointer("/result/task/status/state"));
            if state.is_some_and(|state| state == "TASK_STATE_COMPLETED") {
                let took = u64::try_from(due.elapsed().as_micros()).unwrap();
                times.lock().unwrap().record(took).unwrap();
            } else {
                failed.fetch_add(1, Ordering::Relaxed);
            }
        });
        while calls.try_join_next().is_some() {}
        let step = Duration::from_secs(seconds) / LOOKS;
        if begun.elapsed() >= step * (looks + 1) {
            looks += 1;
            let events = heard.load(Ordering::Relaxed);
            println!(
                "after {:>3} s: {} MB resident, {events} events heard, {} calls under way",
                begun.elapsed().as_secs(),
                node.resident(),
                calls.len()
            );
        }
    }
    while calls.join_next().await.is_some() {}
    let took = begun.elapsed().as_secs_f64();
    let times = times.lock().unwrap();
    println!(
        "{} calls answered in {took:.1} s ({:.0} a second), {} failed; p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
        times.len(),
        times.len() as f64 / took,
        failed.load(Ordering::Relaxed),
        times.value_at_quantile(0.5) as f64 / 1e3,
        times.value_at_quantile(0.99) as f64 / 1e3,
        times.max() as f64 / 1e3,
    );
    println!("{} streams broke", broken.load(Ordering::Relaxed));
    listening.abort_all();
    assert_eq!(failed.load(Ordering::Relaxed) + broken.load(Ordering::Relaxed), 0);
}
