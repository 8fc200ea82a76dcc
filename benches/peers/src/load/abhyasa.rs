//! Us: the custodian in the load's process, as an agent that lives beside its node has it, and the
//! receiver in a process of its own.

use super::{Args, Duty, Flow, Sample};
use crate::process;
use abhyasa::config::{HostPort, NodeConfig};
use abhyasa::init::{InitOptions, init};
use abhyasa::loopback::free_address;
use abhyasa::node::{Builder, Node, NodeError, NodeHandle};
use abhyasa::proto::custodian::Draft;
use abhyasa::proto::event::Event;
use abhyasa::proto::id::{AgentId, Kind, ObligationId};
use abhyasa::proto::payload::Payload;
use abhyasa::proto::record::Terminal;
use anyhow::{Context as _, ensure};
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;

/// Governed keys the obligations spread over.
const KEYS: usize = 4096;
/// How long the nodes may take to find each other, and what is pending to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two bursts of the open loop.
const TICK: Duration = Duration::from_micros(250);
/// Best-effort obligations under way, and their bytes that wait for the wire, at most.
const BEST_EFFORT_WINDOW: f64 = 8192.0;
const BEST_EFFORT_QUEUE: usize = 128 * 1024;
/// Best-effort obligations of one call.
const BEST_EFFORT_BATCH: usize = 64;
/// Time between two looks at what has arrived.
const BEST_EFFORT_LOOK: Duration = Duration::from_millis(20);

/// As `abhyasa node` has it.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(abhyasa::node::worker_threads()).enable_all();
    builder.build().context("the runtime cannot start")
}

/// Our second node, as `abhyasa node` runs it.
pub(crate) fn second_node(config: &Path) -> anyhow::Result<()> {
    use clap::Parser as _;
    let arguments = ["abhyasa".as_ref(), "node".as_ref(), "--config".as_ref(), config.as_os_str()];
    let _ = abhyasa::cli::Cli::parse_from(arguments).run();
    anyhow::bail!("the node has ended")
}

pub(super) async fn load(args: &Args) -> anyhow::Result<Sample> {
    // On a worker of the runtime, not on the thread that blocks for it.
    let args = args.clone();
    tokio::spawn(async move {
        let (ours, node) = Ours::start(&args).await?;
        args.begin().await?;
        let sample = ours.measure(&args).await;
        if args.check {
            ours.drained(0).await?;
        }
        drop(ours);
        node.stop().await?;
        sample
    })
    .await?
}

/// A custodian of this process, what it is loaded with, and who receives.
#[derive(Clone)]
pub(crate) struct Ours {
    pub(crate) node: NodeHandle,
    /// Each draft goes to the next one.
    targets: Arc<Vec<AgentId>>,
    kind: Kind,
    payloads: Arc<Vec<Payload>>,
    next: Arc<AtomicU64>,
    /// The process of all targets.
    receiver: Arc<Mutex<process::Process>>,
    receiver_api: Option<SocketAddr>,
}

impl Ours {
    async fn start(args: &Args) -> anyhow::Result<(Self, Node)> {
        std::fs::create_dir_all(&args.dir)?;
        let pair = Pair::init(&args.dir)?;
        let receiver_api = NodeConfig::load(&pair.receiver)?.api.listen;
        let this = std::env::current_exe()?;
        let receiver = process::Command::new(&this)
            .arg("node")
            .arg(&pair.receiver)
            .core(process::CLIENT_CORE)
            .log(&args.dir.join("receiver.log"))
            .start()?;
        let node = Builder::new(NodeConfig::load(&pair.custodian)?).start().await?;
        let delta = if args.duty == Duty::BestEffort { 0.000_001 } else { -0.000_001 };
        let payloads = payloads(delta, args.payload_bytes)?;
        let mut ours = Self::new(node.handle(), vec![pair.target], payloads, 0, receiver)?;
        ours.receiver_api = Some(receiver_api);
        ours.connected(1).await?;
        Ok((ours, node))
    }

    /// A load of `node` on `targets`, all of them in the process `receiver`. Ids are numbered from
    /// `first`: a store that knows ids of an earlier load needs others.
    pub(crate) fn new(
        node: NodeHandle,
        targets: Vec<AgentId>,
        payloads: Vec<Payload>,
        first: u64,
        receiver: process::Process,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            node,
            targets: Arc::new(targets),
            kind: Kind::new("phala.belief_update")?,
            payloads: Arc::new(payloads),
            next: Arc::new(AtomicU64::new(first)),
            receiver: Arc::new(Mutex::new(receiver)),
            receiver_api: None,
        })
    }

    /// Until the node is ready and `count` of its peers are there.
    pub(crate) async fn connected(&self, count: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        let there = || self.node.peers().iter().filter(|peer| peer.connected).count();
        while self.node.readiness().is_err() || there() < count {
            self.receiver.lock().unwrap_or_else(PoisonError::into_inner).still_runs()?;
            ensure!(begun.elapsed() < PATIENCE, "{} of {count} peers connected", there());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Until no more than `left` are pending.
    pub(crate) async fn drained(&self, left: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.node.pending() > left {
            ensure!(begun.elapsed() < PATIENCE, "{} are still pending", self.node.pending());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn measure(&self, args: &Args) -> anyhow::Result<Sample> {
        let commits = || self.node.metrics().commits.get() as f64;
        let (before, written) = (commits(), process::written_bytes()?);
        let mut sample = match (args.duty, args.rate) {
            (Duty::BestEffort, _) => self.best_effort(args).await?,
            (_, Some(rate)) => self.open_loop(args, rate).await?,
            (Duty::Accepted, None) => self.accepted(args).await?,
            (Duty::Applied, None) => self.applied(args).await?,
        };
        let commits = commits() - before;
        let written = process::written_bytes()? - written;
        sample.more.insert("commits".into(), commits);
        sample.more.insert("bytes_per_commit".into(), written / commits.max(1.0));
        sample.more.insert("messages_per_commit".into(), sample.total as f64 / commits.max(1.0));
        Ok(sample)
    }

    /// Drafts with new ids. Their payloads are made once: what building a document costs an agent
    /// is not what we measure.
    pub(crate) fn drafts(&self, count: usize) -> anyhow::Result<Vec<Draft>> {
        let first = self.next.fetch_add(count as u64, Ordering::Relaxed);
        let draft = |number: u64| {
            let nth = usize::try_from(number)?;
            let target = self.targets.get(nth % self.targets.len().max(1));
            Ok(Draft {
                id: ObligationId::new(&format!("peers-{number:012x}"))?,
                kind: self.kind.clone(),
                target: target.context("targets")?.clone(),
                payload: self.payloads.get(nth % KEYS).context("payloads")?.clone(),
                deadline_seconds: None,
                max_retries: None,
                sequence: None,
            })
        };
        (first..first + count as u64).map(draft).collect()
    }

    /// Returns once the drafts are durable here. Asks again while the node is busy.
    pub(crate) async fn issue(&self, drafts: Vec<Draft>) -> anyhow::Result<()> {
        loop {
            match self.node.issue(drafts.clone()).await {
                Ok(results) => {
                    for result in results {
                        result?;
                    }
                    return Ok(());
                }
                Err(NodeError::Busy { .. }) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The receiver takes what it can meanwhile; what is left is in `backlog`.
    async fn accepted(&self, args: &Args) -> anyhow::Result<Sample> {
        let flow = Flow::new(args)?;
        let mut tasks = JoinSet::new();
        for _ in 0..args.callers() {
            let (ours, flow, batch) = (self.clone(), flow.clone(), args.batch());
            tasks.spawn(async move {
                while flow.meter.open() {
                    let drafts = ours.drafts(batch)?;
                    let begun = Instant::now();
                    ours.issue(drafts).await?;
                    for _ in 0..batch {
                        flow.meter.done(begun);
                    }
                }
                Ok(())
            });
        }
        let mut sample = flow.run(tasks).await?;
        sample.more.insert("backlog".into(), self.node.pending() as f64);
        Ok(sample)
    }

    /// Keeps `args.in_flight` obligations between issue and applied.
    pub(crate) async fn applied(&self, args: &Args) -> anyhow::Result<Sample> {
        let flow = Flow::new(args)?;
        let open: Arc<Mutex<HashMap<ObligationId, Instant>>> = Arc::default();
        let mut tasks = JoinSet::new();
        let (ended, since, window) = (self.node.events(), open.clone(), flow.clone());
        tasks.spawn(each_end(ended, move |id| {
            let begun = since.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
            if let Some(begun) = begun {
                window.meter.done(begun);
                window.window.add_permits(1);
            }
        }));
        for _ in 0..args.callers() {
            let (ours, flow, open, batch) =
                (self.clone(), flow.clone(), open.clone(), args.batch());
            tasks.spawn(async move {
                while flow.admit(batch).await? {
                    let drafts = ours.drafts(batch)?;
                    let begun = Instant::now();
                    open.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .extend(drafts.iter().map(|draft| (draft.id.clone(), begun)));
                    ours.issue(drafts).await?;
                }
                Ok(())
            });
        }
        flow.run(tasks).await
    }

    /// Sends at a fixed rate, however long the answers take; latency counts from when a message was
    /// to be sent, not from when it was.
    async fn open_loop(&self, args: &Args, rate: f64) -> anyhow::Result<Sample> {
        let flow = Flow::new(args)?;
        let open: Arc<Mutex<HashMap<ObligationId, Instant>>> = Arc::default();
        let mut tasks = JoinSet::new();
        let accepted = args.duty == Duty::Accepted;
        let (ended, since, meter) = (self.node.events(), open.clone(), flow.meter.clone());
        tasks.spawn(each_end(ended, move |id| {
            let begun = since.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
            if let (Some(begun), false) = (begun, accepted) {
                meter.done(begun);
            }
        }));
        // The runtime's timers are a millisecond apart, too coarse for what is measured.
        let (tick, mut ticks) = tokio::sync::mpsc::channel(1);
        std::thread::spawn(move || {
            while !tick.is_closed() {
                std::thread::sleep(TICK);
                let _ = tick.try_send(());
            }
        });
        let (ours, meter) = (self.clone(), flow.meter.clone());
        tasks.spawn(async move {
            let mut issuing: JoinSet<anyhow::Result<()>> = JoinSet::new();
            let mut sent = 0u64;
            while meter.open() {
                ticks.recv().await;
                let due = (meter.start.elapsed().as_secs_f64() * rate) as u64;
                let count = usize::try_from(due - sent)?;
                if count == 0 {
                    continue;
                }
                let when = |nth: usize| {
                    meter.start + Duration::from_secs_f64((sent + nth as u64) as f64 / rate)
                };
                let drafts = ours.drafts(count)?;
                let due_at: Vec<Instant> = (1..=count).map(when).collect();
                sent = due;
                if !accepted {
                    open.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .extend(drafts.iter().map(|draft| draft.id.clone()).zip(due_at.clone()));
                }
                let (ours, meter) = (ours.clone(), meter.clone());
                issuing.spawn(async move {
                    ours.issue(drafts).await?;
                    if accepted {
                        due_at.into_iter().for_each(|due| meter.done(due));
                    }
                    Ok(())
                });
                while let Some(issued) = issuing.try_join_next() {
                    issued??;
                }
            }
            Ok(())
        });
        let mut sample = flow.run(tasks).await?;
        sample.more.insert("offered_per_s".into(), rate);
        Ok(sample)
    }

    /// Sends as fast as the wire takes it; what the receiver has applied counts.
    async fn best_effort(&self, args: &Args) -> anyhow::Result<Sample> {
        let meter = super::Meter::new(args)?;
        let (mut sent, mut seen, mut lost) = (0.0, 0.0, 0.0);
        let mut looked = Instant::now();
        let mut at_warm = None;
        while meter.open() {
            // Without a brake most would be dropped on the way, at the cost of both nodes. What
            // does not arrive between two looks is lost.
            if looked.elapsed() > BEST_EFFORT_LOOK {
                let applied = self.best_effort_applied()?;
                if applied == seen {
                    lost = sent - applied;
                }
                (looked, seen) = (Instant::now(), applied);
                if looked >= meter.warm && at_warm.is_none() {
                    at_warm = Some((looked, applied));
                }
            }
            if self.queued_bytes() > BEST_EFFORT_QUEUE || sent - seen - lost > BEST_EFFORT_WINDOW {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            self.issue(self.drafts(BEST_EFFORT_BATCH)?).await?;
            sent += BEST_EFFORT_BATCH as f64;
        }
        let (since, before) = at_warm.context("shorter than its warm-up")?;
        let count = self.best_effort_applied()? - before;
        let mut sample = meter.sample()?;
        sample.per_s = count / since.elapsed().as_secs_f64();
        (sample.count, sample.total) = (count as u64, sent as u64);
        Ok(sample)
    }

    fn queued_bytes(&self) -> usize {
        self.targets.iter().map(|target| self.node.queued_bytes(target)).sum()
    }

    /// What the receiver says of itself.
    fn best_effort_applied(&self) -> anyhow::Result<f64> {
        metric(self.receiver_api.context("no receiver to ask")?, "abhyasa_best_effort_applied")
    }
}

/// Calls `end` for each obligation that ends. Each ends applied, or the run is void.
async fn each_end(
    mut events: tokio::sync::broadcast::Receiver<Arc<Event>>,
    end: impl Fn(&ObligationId) + Send,
) -> anyhow::Result<()> {
    loop {
        match events.recv().await {
            Ok(event) => {
                if let Event::Terminal { obligation_id, outcome, .. } = &*event {
                    ensure!(*outcome == Terminal::Applied, "{obligation_id} ended {outcome:?}");
                    end(obligation_id);
                }
            }
            Err(RecvError::Lagged(count)) => anyhow::bail!("{count} events were missed"),
            Err(RecvError::Closed) => anyhow::bail!("the node has ended"),
        }
    }
}

/// One counter or gauge of a node, by a plain HTTP request.
fn metric(api: SocketAddr, name: &str) -> anyhow::Result<f64> {
    let mut stream = std::net::TcpStream::connect(api)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {api}\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let line = text.lines().find(|line| line.split(' ').next() == Some(name));
    let value = line.and_then(|line| line.rsplit(' ').next());
    Ok(value.with_context(|| format!("{api} has no metric {name}"))?.parse()?)
}

/// Payloads of exactly `bytes`, or of one less where no length makes them, one for each governed
/// key.
///
/// # Errors
/// If `bytes` are too few for the least there must be, or too many for a payload.
pub(crate) fn payloads(delta: f64, bytes: usize) -> anyhow::Result<Vec<Payload>> {
    let payload = |key: usize, note: usize| {
        let value = serde_json::json!({
            "weight_delta": delta,
            "weight_key": format!("routing.bench.{key:04}"),
            "note": "x".repeat(note),
        });
        anyhow::Ok(Payload::from_json(value.as_object().context("object")?)?)
    };
    let bare = payload(0, 0)?.as_bytes().len();
    let room = bytes.checked_sub(bare).with_context(|| format!("a payload has {bare} at least"))?;
    // The text's own length takes 0 to 4 bytes more than in the bare one.
    let fits = |note: &usize| payload(0, *note).is_ok_and(|p| p.as_bytes().len() <= bytes);
    let note = (room.saturating_sub(4)..=room).rev().find(fits);
    let note = note.with_context(|| format!("a payload of {bytes} bytes is over the limit"))?;
    (0..KEYS).map(|key| payload(key, note)).collect()
}

/// Two configured nodes that know each other.
struct Pair {
    custodian: PathBuf,
    receiver: PathBuf,
    target: AgentId,
}

impl Pair {
    fn init(dir: &Path) -> anyhow::Result<Self> {
        let (a, b) = (free_address()?, free_address()?);
        let target = AgentId::new("spiffe://bench.local/receiver")?;
        let source = AgentId::new("spiffe://bench.local/custodian")?;
        let options = |id: &AgentId, at: SocketAddr, ca, peers| InitOptions {
            id: Some(id.to_string()),
            ca,
            quic_listen: at,
            api_listen: at,
            peers,
            force: false,
        };
        let there: HostPort = b.to_string().parse()?;
        let back: HostPort = a.to_string().parse()?;
        let peers = vec![(target.clone(), there)];
        let custodian = init(&dir.join("custodian"), &options(&source, a, None, peers))?;
        let peers = vec![(source, back)];
        let ca = Some(custodian.ca.clone());
        let receiver = init(&dir.join("receiver"), &options(&target, b, ca, peers))?;
        // The receiver only accepts: one connection, as between a custodian and an edge node.
        let text = std::fs::read_to_string(&receiver.config)?;
        let accepts = text.lines().filter(|line| !line.starts_with("address"));
        let text: String = accepts.map(|line| format!("{line}\n")).collect();
        std::fs::write(&receiver.config, text)?;
        Ok(Self { custodian: custodian.config, receiver: receiver.config, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abhyasa::proto::limits::PAYLOAD_LEN_MAX;

    #[test]
    fn payloads_are_as_long_as_asked() {
        for bytes in [64, 79, 256, 1024, 4096, PAYLOAD_LEN_MAX] {
            let all = payloads(-0.000_001, bytes).unwrap();
            assert_eq!(all.len(), KEYS);
            let fits = |payload: &Payload| bytes - payload.as_bytes().len() <= 1;
            assert!(all.iter().all(fits), "{bytes}");
        }
        assert!(payloads(-0.000_001, 16).is_err());
    }
}
