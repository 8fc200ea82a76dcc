//! A large pending set to a peer that is away: memory, cost of doing nothing, restart.

use super::Args;
use super::world::{ChildNode, Pair};
use crate::loopback::free_address;
use anyhow::{Context as _, ensure};
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

const ISSUE_BATCH: usize = 2048;
/// How long the idle node is watched.
const WATCH: Duration = Duration::from_secs(10);
/// Kernel clock ticks a second, as in /proc.
const TICKS_PER_S: f64 = 100.0;

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pending: usize,
    payload_bytes: usize,
    issue_per_s: f64,
    resident_mb: f64,
    resident_mb_after_restart: f64,
    resident_bytes_per_pending_beyond_empty: f64,
    idle_cpu_percent: f64,
    restart_to_first_packet_ms: f64,
    restart_to_all_armed_ms: f64,
    store_mb: f64,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Figures> {
    let root = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = root.join(format!("abhyasa-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let figures = measure(&args, &dir).await;
    let _ = std::fs::remove_dir_all(&dir);
    figures
}

async fn measure(args: &Args, dir: &Path) -> anyhow::Result<Figures> {
    let pair = Pair::init(dir)?;
    // The peer is away, but its port is ours, to see when it is called.
    let absent = free_address()?;
    let text = std::fs::read_to_string(&pair.custodian)?;
    let text: String = text
        .lines()
        .map(|line| {
            if line.starts_with("address") {
                format!("address = \"{absent}\"\n")
            } else {
                format!("{line}\n")
            }
        })
        .collect();
    // Nothing is due while the idle node is watched: the first retry comes after ten minutes.
    let table = "[kinds.\"phala.belief_update\"]\n";
    let profile = format!("{table}backoff_base_ms = 600000\nbackoff_cap_ms = 600000\n");
    std::fs::write(&pair.custodian, text.replace(table, &profile))?;
    let socket = tokio::net::UdpSocket::bind(absent).await?;
    let mut node = ChildNode::start(&pair.custodian)?;
    node.ready().await?;
    let empty = resident(node.pid())?;
    let begun = Instant::now();
    let client = reqwest::Client::new();
    let mut issued = 0;
    while issued < args.pending {
        let count = ISSUE_BATCH.min(args.pending - issued);
        let obligations: Vec<_> = (issued..issued + count)
            .map(|n| draft(n, args.payload_bytes, pair.target.as_str()))
            .collect();
        let body = serde_json::json!({ "obligations": obligations });
        let response =
            client.post(format!("http://{}/v1/obligations", node.api)).json(&body).send().await?;
        ensure!(response.status().is_success(), "issue answered {}", response.status());
        issued += count;
    }
    let issue_per_s = issued as f64 / begun.elapsed().as_secs_f64();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let full = resident(node.pid())?;
    let (before, at) = (cpu(node.pid())?, Instant::now());
    tokio::time::sleep(WATCH).await;
    let idle = (cpu(node.pid())? - before) / at.elapsed().as_secs_f64() * 100.0;
    drop(node);
    // What the dead process had sent is not an answer.
    let mut buffer = [0u8; 2048];
    while socket.try_recv_from(&mut buffer).is_ok() {}
    let begun = Instant::now();
    let mut node = ChildNode::start(&pair.custodian)?;
    let first = tokio::time::timeout(Duration::from_secs(30), socket.recv_from(&mut buffer)).await;
    let first = first.context("no packet within 30 s of the restart").map(|_| begun.elapsed())?;
    node.ready().await?;
    let armed = begun.elapsed();
    let pending = node.metric("abhyasa_pending").await?;
    ensure!(pending >= args.pending as f64, "{pending} pending after the restart");
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Figures {
        pending: args.pending,
        payload_bytes: args.payload_bytes,
        issue_per_s,
        resident_mb: full / 1e6,
        resident_mb_after_restart: resident(node.pid())? / 1e6,
        resident_bytes_per_pending_beyond_empty: (full - empty) / args.pending as f64,
        idle_cpu_percent: idle,
        restart_to_first_packet_ms: ms(first),
        restart_to_all_armed_ms: ms(armed),
        store_mb: folder_bytes(dir) / 1e6,
    })
}

fn draft(number: usize, payload_bytes: usize, target: &str) -> serde_json::Value {
    serde_json::json!({
        "obligation_id": format!("idle-{number:012x}"),
        "kind": "phala.belief_update",
        "target": target,
        "payload": {"weight_delta": -0.001, "note": "x".repeat(payload_bytes.saturating_sub(40))},
        "deadline_seconds": 86_400,
    })
}

pub(super) fn resident(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).context("VmRSS")?.parse()?;
    Ok(kib * 1024.0)
}

fn cpu(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit(") ").next().context("stat")?;
    let mut fields = after_name.split(' ').skip(11);
    let mut tick = || -> anyhow::Result<f64> { Ok(fields.next().context("stat")?.parse()?) };
    Ok((tick()? + tick()?) / TICKS_PER_S)
}

fn folder_bytes(dir: &Path) -> f64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0.0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => folder_bytes(&entry.path()),
            Ok(meta) => std::os::unix::fs::MetadataExt::blocks(&meta) as f64 * 512.0,
            Err(_) => 0.0,
        })
        .sum()
}
