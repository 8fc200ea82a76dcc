//! The node that is measured, with its load in the same process, for one point of a curve.

use super::Sizes;
use super::stub::{name, unix_us};
use crate::load::abhyasa::{Ours, payloads, runtime};
use crate::load::{Args as LoadArgs, Duty, Peer};
use crate::{control, figures, process};
use abhyasa::config::{HostPort, NodeConfig, PeerConfig};
use abhyasa::init::{InitOptions, init};
use abhyasa::loopback::free_address;
use abhyasa::node::{Builder, Node};
use abhyasa::proto::backoff::Backoff;
use abhyasa::proto::id::AgentId;
use abhyasa::proto::profile::Profile;
use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const NODE: &str = "spiffe://bench.local/custodian";
const LIVE: &str = "spiffe://bench.local/receiver";
const AWAY: &str = "spiffe://bench.local/away";
/// Between two retries to who is away: so long that none falls due while a point is measured, since
/// each is a durable write of its own.
const RETRY_MS: u64 = 3_600_000;
/// Deadline and retries of the pending: the defaults of their kind.
const DEADLINE_MS: u64 = 86_400_000;
const RETRIES_MAX: u32 = 200;
/// Callers that fill the pending set, and obligations of one call.
const FILLERS: usize = 4;
const FILL_BATCH: usize = 1_024;
/// What was freed or is to be written in the background may be until memory is looked at.
const SETTLE: Duration = Duration::from_millis(700);
/// How long a stopped peer may take to see what it waits for.
const PATIENCE: Duration = Duration::from_secs(300);

/// One part of one point.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(value_enum)]
    what: What,
    /// Folder of the nodes, on the disk that is measured.
    #[arg(long)]
    dir: PathBuf,
    /// Pending obligations, or peers.
    #[arg(long, default_value_t = 0)]
    count: usize,
    #[command(flatten)]
    sizes: Sizes,
    /// Slices of the age curve.
    #[arg(long, default_value_t = 0)]
    slices: usize,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum What {
    /// Takes `count` obligations for a peer that is away.
    Fill,
    /// Restarts on them beside a live peer.
    Restart,
    /// Restarts on them, and the peer that was away is there.
    Return,
    /// Loads `count` connections.
    Peers,
    /// Loads one peer, slice by slice.
    Age,
}

impl What {
    const fn name(self) -> &'static str {
        match self {
            Self::Fill => "fill",
            Self::Restart => "restart",
            Self::Return => "return",
            Self::Peers => "peers",
            Self::Age => "age",
        }
    }
}

/// Figures of a part by name, and of each slice of an age curve.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) figures: BTreeMap<String, f64>,
    pub(crate) slices: Vec<BTreeMap<String, f64>>,
}

/// Runs one part and prints its [`Figures`] as JSON.
pub(crate) fn main(args: &Args) -> anyhow::Result<()> {
    let args = args.clone();
    let what = args.what.name();
    // On a worker of the runtime, not on the thread that blocks for it.
    let runtime = runtime()?;
    let figures = runtime.block_on(runtime.spawn(async move {
        let part = Part { args };
        match part.args.what {
            What::Fill => part.fill().await,
            What::Restart => part.restart().await,
            What::Return => part.back().await,
            What::Peers => part.peers().await,
            What::Age => part.age().await,
        }
    }))?;
    println!("{}", serde_json::to_string(&figures.context(what)?)?);
    // As a crash would: what is durable is all there is, and the next start must do with it.
    std::process::exit(0)
}

struct Part {
    args: Args,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn figures<const N: usize>(all: [(&str, f64); N]) -> Figures {
    let figures = all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Figures { figures, slices: Vec::new() }
}

impl Part {
    fn at(&self, name: &str) -> PathBuf {
        self.args.dir.join(name)
    }

    /// A node's folder, made if it is not there. The first makes the CA.
    fn node(&self, name: &str, id: &str, peers: &[&str]) -> anyhow::Result<NodeConfig> {
        let dir = self.at(name);
        let file = dir.join(abhyasa::init::CONFIG_FILE);
        if !file.exists() {
            let at = free_address()?;
            let peer = |id: &&str| {
                let nowhere: HostPort = free_address()?.to_string().parse()?;
                anyhow::Ok((AgentId::new(id)?, nowhere))
            };
            let ca = self.at("custodian").join("ca");
            init(
                &dir,
                &InitOptions {
                    id: Some(id.to_owned()),
                    ca: ca.exists().then_some(ca),
                    quic_listen: at,
                    api_listen: at,
                    peers: peers.iter().map(peer).collect::<Result<_, _>>()?,
                    force: false,
                },
            )?;
            let text = std::fs::read_to_string(&file)?;
            // Who only accepts: one connection, as between a custodian and an edge node.
            let accepts = text.lines().filter(|line| id == NODE || !line.starts_with("address"));
            std::fs::write(&file, accepts.map(|line| format!("{line}\n")).collect::<String>())?;
        }
        Ok(NodeConfig::load(&file)?)
    }

    /// The custodian with a live peer and one that is away, and the live one's process.
    fn pair(&self) -> anyhow::Result<(NodeConfig, process::Process)> {
        let mut config = self.node("custodian", NODE, &[LIVE, AWAY])?;
        let receiver = self.node("receiver", LIVE, &[NODE])?;
        for peer in config.peers.iter_mut().filter(|peer| peer.id.as_str() == LIVE) {
            peer.address = Some(receiver.quic.listen.to_string().parse()?);
        }
        config.custody.pending_max = config.custody.pending_max.max(self.args.count * 2);
        config.custody.pending_per_peer_max =
            config.custody.pending_per_peer_max.max(self.args.count * 2);
        let backoff = Backoff { base_ms: RETRY_MS, cap_ms: RETRY_MS, jitter_permille: 200 };
        for kind in config.kinds.values_mut() {
            kind.profile = Profile::new(DEADLINE_MS, RETRIES_MAX, backoff)?;
        }
        let file = self.at("receiver").join(abhyasa::init::CONFIG_FILE);
        Ok((config, self.child("receiver", ["node".as_ref(), file.as_os_str()])?))
    }

    fn child<'a>(
        &self,
        name: &str,
        words: impl IntoIterator<Item = &'a std::ffi::OsStr>,
    ) -> anyhow::Result<process::Process> {
        process::Command::new(std::env::current_exe()?)
            .args(words)
            .core(process::CLIENT_CORE)
            .log(&self.at(&format!("{name}.log")))
            .start()
    }

    fn load(&self, warm_up: f64) -> LoadArgs {
        let sizes = self.args.sizes;
        LoadArgs {
            peer: Peer::Abhyasa,
            duty: Duty::Applied,
            in_flight: sizes.in_flight,
            seconds: sizes.seconds,
            warm_up,
            payload_bytes: sizes.payload_bytes,
            dir: self.args.dir.clone(),
            address: None,
            queue: String::new(),
            rate: None,
            check: false,
        }
    }

    fn ours(
        &self,
        node: &Node,
        targets: Vec<AgentId>,
        receiver: process::Process,
    ) -> anyhow::Result<Ours> {
        let payloads = payloads(-0.000_001, self.args.sizes.payload_bytes)?;
        // The store knows the ids of the part before; the clock has none of them.
        Ours::new(node.handle(), targets, payloads, unix_us(), receiver)
    }

    async fn fill(&self) -> anyhow::Result<Figures> {
        let (config, receiver) = self.pair()?;
        let node = Builder::new(config).start().await?;
        let live = self.ours(&node, vec![AgentId::new(LIVE)?], receiver)?;
        live.connected(1).await?;
        // What a node needs for its work at all is not what a pending obligation takes.
        live.applied(&self.load(self.args.sizes.warm_up)).await?;
        live.drained(0).await?;
        tokio::time::sleep(SETTLE).await;
        let empty = process::resident_bytes()?;
        let nobody = process::Command::new("sleep").arg("infinity").start()?;
        let away = self.ours(&node, vec![AgentId::new(AWAY)?], nobody)?;
        let begun = Instant::now();
        let mut fillers = JoinSet::new();
        for nth in 0..FILLERS {
            let (away, count) = (away.clone(), self.args.count);
            fillers.spawn(async move {
                let mut left = count / FILLERS + usize::from(nth < count % FILLERS);
                while left > 0 {
                    let some = left.min(FILL_BATCH);
                    away.issue(away.drafts(some)?).await?;
                    left -= some;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = fillers.join_next().await {
            ended??;
        }
        let took = begun.elapsed();
        self.all_pending(&node)?;
        tokio::time::sleep(SETTLE).await;
        let full = process::resident_bytes()?;
        Ok(figures([
            ("rss_empty_bytes", empty),
            ("rss_filled_bytes", full),
            ("accepted_per_s", self.args.count as f64 / took.as_secs_f64()),
        ]))
    }

    fn all_pending(&self, node: &Node) -> anyhow::Result<()> {
        let pending = node.handle().pending();
        ensure!(pending >= self.args.count, "{pending} are pending, of {}", self.args.count);
        Ok(())
    }

    /// Until what is pending is in memory again.
    async fn ready(&self, node: &Node) -> anyhow::Result<()> {
        let begun = Instant::now();
        while let Err(why) = node.handle().readiness() {
            ensure!(begun.elapsed() < PATIENCE, "not ready: {why}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    async fn restart(&self) -> anyhow::Result<Figures> {
        let (config, receiver) = self.pair()?;
        let begun = Instant::now();
        let node = Builder::new(config).start().await?;
        let open = begun.elapsed();
        self.ready(&node).await?;
        let ready = begun.elapsed();
        let live = self.ours(&node, vec![AgentId::new(LIVE)?], receiver)?;
        live.connected(1).await?;
        tokio::time::sleep(SETTLE).await;
        let resident = process::resident_bytes()?;
        let control_us = figures::median(&control::fdatasync_us(&self.args.dir)?);
        let sample = live.applied(&self.load(self.args.sizes.warm_up)).await?;
        live.drained(self.args.count).await?;
        // Known from the first commit on, so not right after the start.
        self.all_pending(&node)?;
        tokio::time::sleep(SETTLE).await;
        Ok(figures([
            ("open_ms", ms(open)),
            ("ready_ms", ms(ready)),
            ("rss_restarted_bytes", resident),
            ("rss_loaded_bytes", process::resident_bytes()?),
            ("applied_per_s", sample.per_s),
            ("p99_us", sample.p99_us),
            ("node_cpu", sample.client_cpu),
            ("control_us", control_us.context("control")?),
        ]))
    }

    /// The first retransmit needs someone to send it to.
    async fn back(&self) -> anyhow::Result<Figures> {
        let (mut config, receiver) = self.pair()?;
        drop(receiver);
        let (address, file) = (free_address()?, self.at("first-offer"));
        let _ = std::fs::remove_file(&file);
        let (ca, listen) = (self.at("custodian").join("ca"), address.to_string());
        let words =
            ["scale-stub", "--node", NODE, "--id", AWAY, "--listen", listen.as_str(), "--ca"];
        let more = [ca.as_os_str(), "--first-offer".as_ref(), file.as_os_str()];
        let mut stub = self.child("away", words.into_iter().map(AsRef::as_ref).chain(more))?;
        for peer in config.peers.iter_mut().filter(|peer| peer.id.as_str() == AWAY) {
            peer.address = Some(listen.parse()?);
        }
        // It listens before it is dialled: what is measured is the node.
        tokio::time::sleep(SETTLE).await;
        let (begun, begun_us) = (Instant::now(), unix_us());
        let node = Builder::new(config).start().await?;
        self.ready(&node).await?;
        let ready = begun.elapsed();
        while !file.exists() {
            stub.still_runs()?;
            ensure!(begun.elapsed() < PATIENCE, "nothing was offered to the peer that came back");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let at: u64 = std::fs::read_to_string(&file)?.parse()?;
        Ok(figures([
            ("first_offer_ms", at.saturating_sub(begun_us) as f64 / 1e3),
            ("ready_while_offering_ms", ms(ready)),
        ]))
    }

    async fn peers(&self) -> anyhow::Result<Figures> {
        let count = self.args.count;
        let mut config = self.node("custodian", NODE, &[LIVE])?;
        let pattern = config.peers.first().context("a peer")?.clone();
        let names: Vec<AgentId> = (0..count).map(name).collect::<Result<_, _>>()?;
        let peer = |id: &AgentId| PeerConfig {
            id: id.clone(),
            principal: id.clone(),
            address: None,
            ..pattern.clone()
        };
        config.peers = names.iter().map(peer).collect();
        config.quic.connections_max = config.quic.connections_max.max(count * 2);
        let node = Builder::new(config).start().await?;
        self.ready(&node).await?;
        tokio::time::sleep(SETTLE).await;
        let alone = process::resident_bytes()?;
        let begun = Instant::now();
        let (ca, number) = (self.at("custodian").join("ca"), count.to_string());
        let at = node.handle().quic_address().to_string();
        let words = ["scale-stub", "--node", NODE, "--dial", &at, "--count", &number, "--ca"];
        let words = words.into_iter().map(AsRef::as_ref).chain([ca.as_os_str()]);
        let ours = self.ours(&node, names, self.child("stubs", words)?)?;
        ours.connected(count).await?;
        let connected = begun.elapsed();
        tokio::time::sleep(SETTLE).await;
        let idle = process::resident_bytes()?;
        let control_us = figures::median(&control::fdatasync_us(&self.args.dir)?);
        let commits = || node.handle().metrics().commits.get() as f64;
        let before = commits();
        let sample = ours.applied(&self.load(self.args.sizes.warm_up)).await?;
        ours.drained(0).await?;
        let commits = commits() - before;
        let loaded = process::resident_bytes()?;
        Ok(figures([
            ("applied_per_s", sample.per_s),
            ("p99_us", sample.p99_us),
            ("node_cpu", sample.client_cpu),
            ("obligations_per_commit", sample.total as f64 / commits.max(1.0)),
            ("connected_ms", ms(connected)),
            ("rss_alone_bytes", alone),
            ("rss_connected_bytes", idle),
            ("rss_loaded_bytes", loaded),
            ("rss_per_connection_bytes", (idle - alone) / count as f64),
            ("control_us", control_us.context("control")?),
        ]))
    }

    async fn age(&self) -> anyhow::Result<Figures> {
        let (config, receiver) = self.pair()?;
        let store = config.data_dir.clone();
        let node = Builder::new(config).start().await?;
        let ours = self.ours(&node, vec![AgentId::new(LIVE)?], receiver)?;
        ours.connected(1).await?;
        // The first load of a process pays for its memory.
        ours.applied(&self.load(self.args.sizes.warm_up)).await?;
        ours.drained(0).await?;
        let begun = process::written_bytes()?;
        let mut tables = Tables::default();
        let (mut slices, mut total) = (Vec::new(), 0);
        for _ in 0..self.args.slices {
            let control_us = figures::median(&control::fdatasync_us(&self.args.dir)?);
            let sample = ours.applied(&self.load(self.args.sizes.warm_up / 2.0)).await?;
            ours.drained(0).await?;
            total += sample.total;
            tables.look(&store);
            let slice = figures([
                ("history_bytes", process::written_bytes()? - begun - control_bytes(slices.len())),
                ("applied_per_s", sample.per_s),
                ("p99_us", sample.p99_us),
                ("node_cpu", sample.client_cpu),
                ("control_us", control_us.context("control")?),
                ("tables", tables.now.len() as f64),
                ("tables_compacted", tables.gone as f64),
                ("store_bytes", tables.bytes),
                ("rss_bytes", process::resident_bytes()?),
                ("obligations", total as f64),
            ]);
            eprintln!(
                "slice {}: {:.0}/s, {:.2} GB written",
                slices.len() + 1,
                sample.per_s,
                slice.figures.get("history_bytes").copied().unwrap_or(0.0) / 1e9
            );
            slices.push(slice.figures);
        }
        Ok(Figures { figures: BTreeMap::new(), slices })
    }
}

/// What the controls of an age curve have written, which is no history.
fn control_bytes(slices_before: usize) -> f64 {
    (slices_before as f64 + 1.0) * control::FDATASYNC_BYTES
}

/// Table files of a store, as they are seen from time to time.
#[derive(Debug, Default)]
struct Tables {
    now: BTreeSet<PathBuf>,
    /// Files that were there and went: compactions have merged them into others. Those that came
    /// and went between two looks are not counted.
    gone: usize,
    bytes: f64,
}

impl Tables {
    fn look(&mut self, store: &Path) {
        let (mut found, mut bytes) = (BTreeSet::new(), 0.0);
        walk(store, &mut |path, len| {
            bytes += len;
            if path.parent().is_some_and(|dir| dir.ends_with("tables")) {
                found.insert(path);
            }
        });
        self.gone += self.now.difference(&found).count();
        (self.now, self.bytes) = (found, bytes);
    }
}

/// Every file under `dir` with the bytes it takes on the disk. What goes meanwhile is passed over.
fn walk(dir: &Path, file: &mut impl FnMut(PathBuf, f64)) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => walk(&entry.path(), file),
            Ok(meta) => {
                let bytes = std::os::unix::fs::MetadataExt::blocks(&meta) as f64 * 512.0;
                file(entry.path(), bytes);
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_went_were_compacted() {
        let dir = std::env::temp_dir().join(format!("scale-tables-{}", std::process::id()));
        let tables = dir.join("keyspaces/1/tables");
        std::fs::create_dir_all(&tables).unwrap();
        let mut seen = Tables::default();
        for (write, remove, wanted) in [("1", "", (1, 0)), ("2", "", (2, 0)), ("3", "1", (2, 1))] {
            std::fs::write(tables.join(write), [0; 4096]).unwrap();
            let _ = std::fs::remove_file(tables.join(remove));
            std::fs::write(dir.join("journal"), "not a table").unwrap();
            seen.look(&dir);
            assert_eq!((seen.now.len(), seen.gone), wanted);
        }
        assert!(seen.bytes > 0.0);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
