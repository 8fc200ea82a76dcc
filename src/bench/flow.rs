//! Throughput and latency of one custodian and one receiver.

use super::world::{ChildNode, Pair};
use super::{Args, control, median};
use crate::config::NodeConfig;
use crate::node::{Builder, Node, NodeHandle};
use anyhow::{Context as _, ensure};
use hdrhistogram::Histogram;
use proto::custodian::Draft;
use proto::event::Event;
use proto::id::{AgentId, Kind, ObligationId};
use proto::payload::Payload;
use proto::record::Terminal;
use serde::Serialize;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Obligations issued by one call, as an agent that batches would.
const ISSUE_BATCH: usize = 64;
/// Obligations of the one-at-a-time part of a round.
const SINGLES: usize = 300;
/// Governed keys the obligations spread over.
const KEYS: usize = 4096;
/// Best-effort obligations under way at once.
const BEST_EFFORT_WINDOW: f64 = 8192.0;
/// Time between two looks at what has arrived.
const BEST_EFFORT_LOOK: Duration = Duration::from_millis(20);
/// Best-effort bytes kept waiting for the wire.
const BEST_EFFORT_QUEUE: usize = 128 * 1024;
/// Rounds whose fsync control is further than this from the median control say more of the disk
/// than of us.
const CONTROL_SPREAD: f64 = 0.3;

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    in_flight: usize,
    payload_bytes: usize,
    rounds: usize,
    rounds_kept: usize,
    applied_per_s: f64,
    best_effort_per_s: f64,
    durable_over_best_effort: f64,
    durable_over_best_effort_min: f64,
    durable_over_best_effort_max: f64,
    fsync_per_obligation: f64,
    obligations_per_fsync_custodian: f64,
    obligations_per_fsync_receiver: f64,
    applied_p50_ms: f64,
    applied_p99_ms: f64,
    one_in_flight_p50_us: f64,
    one_in_flight_p99_us: f64,
    one_in_flight_over_budget: f64,
    one_in_flight_fsyncs: f64,
    fdatasync_p50_us: f64,
    best_effort_delivered: f64,
    each_round: Vec<Round>,
}

#[derive(Clone, Debug, Serialize)]
struct Round {
    fdatasync_p50_us: f64,
    applied_per_s: f64,
    best_effort_per_s: f64,
    best_effort_delivered: f64,
    custodian_fsyncs_per_obligation: f64,
    receiver_fsyncs_per_obligation: f64,
    receiver_commit_ms: f64,
    applied_p50_ms: f64,
    applied_p99_ms: f64,
    one_in_flight_p50_us: f64,
    one_in_flight_p99_us: f64,
    one_in_flight_fsyncs: f64,
    one_in_flight_commit_us: f64,
}

pub(super) struct Load {
    pub(super) node: NodeHandle,
    pub(super) receiver: ChildNode,
    target: AgentId,
    kind: Kind,
    corrective: Vec<Payload>,
    reinforcing: Vec<Payload>,
    next: u64,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Figures> {
    let root = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = root.join(format!("abhyasa-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let figures = rounds(&args, &dir).await;
    let _ = std::fs::remove_dir_all(&dir);
    figures
}

async fn rounds(args: &Args, dir: &std::path::Path) -> anyhow::Result<Figures> {
    let (node, mut load) = Load::start(Pair::init(dir)?, args).await?;
    let mut each = Vec::new();
    for n in 0..args.rounds {
        let round = load.round(args, dir).await?;
        eprintln!(
            "round {}/{}: applied {:.0}/s, best effort {:.0}/s, one at a time {:.0} us, fdatasync {:.0} us",
            n + 1,
            args.rounds,
            round.applied_per_s,
            round.best_effort_per_s,
            round.one_in_flight_p50_us,
            round.fdatasync_p50_us
        );
        each.push(round);
    }
    node.stop().await?;
    Ok(figures(args, each))
}

fn figures(args: &Args, each: Vec<Round>) -> Figures {
    let control = median(each.iter().map(|round| round.fdatasync_p50_us).collect());
    let near = |round: &&Round| (round.fdatasync_p50_us / control - 1.0).abs() <= CONTROL_SPREAD;
    let kept: Vec<Round> = each.iter().filter(near).cloned().collect();
    let of = |figure: fn(&Round) -> f64| median(kept.iter().map(figure).collect());
    let ratios: Vec<f64> = kept.iter().map(|r| r.applied_per_s / r.best_effort_per_s).collect();
    let per_fsync = |figure: fn(&Round) -> f64| 1.0 / of(figure);
    Figures {
        in_flight: args.in_flight,
        payload_bytes: args.payload_bytes,
        rounds: each.len(),
        rounds_kept: kept.len(),
        applied_per_s: of(|r| r.applied_per_s),
        best_effort_per_s: of(|r| r.best_effort_per_s),
        durable_over_best_effort_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
        durable_over_best_effort_max: ratios.iter().copied().fold(0.0, f64::max),
        durable_over_best_effort: median(ratios),
        fsync_per_obligation: of(|r| {
            r.custodian_fsyncs_per_obligation.max(r.receiver_fsyncs_per_obligation)
        }),
        obligations_per_fsync_custodian: per_fsync(|r| r.custodian_fsyncs_per_obligation),
        obligations_per_fsync_receiver: per_fsync(|r| r.receiver_fsyncs_per_obligation),
        applied_p50_ms: of(|r| r.applied_p50_ms),
        applied_p99_ms: of(|r| r.applied_p99_ms),
        one_in_flight_p50_us: of(|r| r.one_in_flight_p50_us),
        one_in_flight_p99_us: of(|r| r.one_in_flight_p99_us),
        one_in_flight_over_budget: of(|r| {
            r.one_in_flight_p50_us / (2.0 * r.fdatasync_p50_us + 300.0)
        }),
        one_in_flight_fsyncs: of(|r| r.one_in_flight_fsyncs),
        fdatasync_p50_us: of(|r| r.fdatasync_p50_us),
        best_effort_delivered: of(|r| r.best_effort_delivered),
        each_round: each,
    }
}

/// One payload of `bytes` for each governed key.
fn payloads(delta: f64, bytes: usize) -> anyhow::Result<Vec<Payload>> {
    let payload = |key: usize, note: usize| {
        let value = serde_json::json!({
            "weight_delta": delta,
            "weight_key": format!("routing.bench.{key:04}"),
            "note": "x".repeat(note),
        });
        Ok(Payload::from_json(value.as_object().context("object")?)?)
    };
    let bare = payload(0, 24)?.as_bytes().len();
    (0..KEYS).map(|key| payload(key, 24 + bytes.saturating_sub(bare))).collect()
}

impl Load {
    /// Starts both nodes, and warms them up.
    pub(super) async fn start(pair: Pair, args: &Args) -> anyhow::Result<(Node, Self)> {
        let mut receiver = ChildNode::start(&pair.receiver)?;
        receiver.ready().await?;
        let node = Builder::new(NodeConfig::load(&pair.custodian)?).start().await?;
        let mut load = Self {
            node: node.handle(),
            receiver,
            target: pair.target,
            kind: Kind::new("phala.belief_update")?,
            corrective: payloads(-0.000_001, args.payload_bytes)?,
            reinforcing: payloads(0.000_001, args.payload_bytes)?,
            next: 0,
        };
        load.connected().await?;
        load.custody(args.in_flight, Duration::from_secs(1)).await?;
        Ok((node, load))
    }

    async fn connected(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while !self.node.peers().iter().any(|peer| peer.connected) || self.node.readiness().is_err()
        {
            ensure!(
                begun.elapsed() < Duration::from_secs(10),
                "the two nodes did not connect within 10 s"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn round(&mut self, args: &Args, dir: &std::path::Path) -> anyhow::Result<Round> {
        let seconds = Duration::from_secs_f64(args.seconds);
        let fdatasync_p50_us = median(control::fdatasync_us(dir)?);
        let (own, theirs) =
            (self.own_commits(), self.receiver.metric("abhyasa_commits_total").await?);
        let busy = self.receiver.metric("abhyasa_commit_seconds_sum").await?;
        let (count, took, latency) = self.custody(args.in_flight, seconds).await?;
        let busy = self.receiver.metric("abhyasa_commit_seconds_sum").await? - busy;
        let custodian = self.own_commits() - own;
        let receiver = self.receiver.metric("abhyasa_commits_total").await? - theirs;
        let (best_effort_per_s, best_effort_delivered) = self.best_effort(seconds).await?;
        let begun = (self.own_commits(), self.own_commit_seconds());
        let single = self.singles().await?;
        let one_in_flight_commit_us =
            (self.own_commit_seconds() - begun.1) / (self.own_commits() - begun.0) * 1e6;
        let (own, theirs) =
            (self.own_commits(), self.receiver.metric("abhyasa_commits_total").await?);
        // Exactly two on the path: the custodian's before the offer, the receiver's before the ack.
        // The custodian's terminal mark is a third, off the path.
        self.custody(1, Duration::ZERO).await?;
        let off_path = 1.0;
        let one = self.own_commits() - own + self.receiver.metric("abhyasa_commits_total").await?
            - theirs
            - off_path;
        let ms = |us: u64| us as f64 / 1e3;
        Ok(Round {
            fdatasync_p50_us,
            applied_per_s: count as f64 / took.as_secs_f64(),
            best_effort_per_s,
            best_effort_delivered,
            custodian_fsyncs_per_obligation: custodian / count as f64,
            receiver_fsyncs_per_obligation: receiver / count as f64,
            receiver_commit_ms: busy / receiver * 1e3,
            applied_p50_ms: ms(latency.value_at_quantile(0.5)),
            applied_p99_ms: ms(latency.value_at_quantile(0.99)),
            one_in_flight_p50_us: single.value_at_quantile(0.5) as f64,
            one_in_flight_p99_us: single.value_at_quantile(0.99) as f64,
            one_in_flight_fsyncs: one,
            one_in_flight_commit_us,
        })
    }

    fn own_commits(&self) -> f64 {
        self.node.metrics().commits.get() as f64
    }

    fn own_commit_seconds(&self) -> f64 {
        let text = self.node.metrics().encode();
        let line = text.lines().find(|line| line.starts_with("abhyasa_commit_seconds_sum"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }

    /// Drafts with new ids. Their payloads are made once: what building a document costs an agent
    /// is not what we measure.
    fn drafts(&mut self, count: usize, corrective: bool) -> anyhow::Result<Vec<Draft>> {
        let payloads = if corrective { &self.corrective } else { &self.reinforcing };
        let mut drafts = Vec::with_capacity(count);
        for _ in 0..count {
            let number = self.next;
            self.next += 1;
            let payload = payloads.get(usize::try_from(number)? % KEYS).context("payloads")?;
            drafts.push(Draft {
                id: ObligationId::new(&format!("bench-{number:012x}"))?,
                kind: self.kind.clone(),
                target: self.target.clone(),
                payload: payload.clone(),
                deadline_seconds: None,
                max_retries: None,
                sequence: None,
            });
        }
        Ok(drafts)
    }

    /// Keeps `in_flight` obligations between issue and applied ack for `seconds`, then lets them
    /// drain. Each ends applied, or the run is void.
    pub(super) async fn custody(
        &mut self,
        in_flight: usize,
        seconds: Duration,
    ) -> anyhow::Result<(u64, Duration, Histogram<u64>)> {
        let mut events = self.node.events();
        let mut open: HashMap<ObligationId, Instant> = HashMap::with_capacity(in_flight * 2);
        let mut latency = Histogram::new(3)?;
        let mut issuing = tokio::task::JoinSet::new();
        let begun = Instant::now();
        let mut count = 0u64;
        let batch = ISSUE_BATCH.min(in_flight);
        loop {
            let more = begun.elapsed() < seconds || count == 0;
            while more && open.len() + batch <= in_flight {
                let drafts = self.drafts(batch, true)?;
                let now = Instant::now();
                open.extend(drafts.iter().map(|draft| (draft.id.clone(), now)));
                count += drafts.len() as u64;
                let node = self.node.clone();
                issuing.spawn(async move { node.issue(drafts).await });
            }
            if open.is_empty() {
                break;
            }
            let event = tokio::time::timeout(Duration::from_secs(30), events.recv()).await;
            let event = event.context("no obligation ended within 30 s")?.context("events lost")?;
            if let Event::Terminal { obligation_id, outcome, .. } = &*event
                && let Some(since) = open.remove(obligation_id)
            {
                ensure!(*outcome == Terminal::Applied, "{obligation_id} ended {outcome:?}");
                latency.record(u64::try_from(since.elapsed().as_micros())?)?;
            }
        }
        let took = begun.elapsed();
        while let Some(done) = issuing.join_next().await {
            for result in done?? {
                result?;
            }
        }
        Ok((count, took, latency))
    }

    /// From issue to the receiver's applied ack, one at a time, each ended before the next begins.
    pub(super) async fn singles(&mut self) -> anyhow::Result<Histogram<u64>> {
        let mut events = self.node.events();
        let mut all = Histogram::new(3)?;
        for _ in 0..SINGLES {
            let drafts = self.drafts(1, true)?;
            let begun = Instant::now();
            for result in self.node.issue(drafts).await? {
                result?;
            }
            loop {
                let event = tokio::time::timeout(Duration::from_secs(30), events.recv()).await;
                match &*event.context("no obligation ended within 30 s")?.context("events lost")? {
                    Event::Attested { .. } => {
                        all.record(u64::try_from(begun.elapsed().as_micros())?)?
                    }
                    Event::Terminal { .. } => break,
                    _ => {}
                }
            }
        }
        Ok(all)
    }

    /// Sends as fast as the wire takes it for `seconds`; what the receiver has applied counts.
    async fn best_effort(&mut self, seconds: Duration) -> anyhow::Result<(f64, f64)> {
        let before = self.receiver.metric("abhyasa_best_effort_applied").await?;
        let begun = Instant::now();
        let mut sent = 0usize;
        let (mut looked, mut seen, mut lost) = (begun, 0.0, 0.0);
        while begun.elapsed() < seconds {
            // Without a brake most would be dropped on the way, at the cost of both nodes. So no
            // more are under way than the receiver takes in a moment; what does not arrive within
            // two looks is lost.
            if looked.elapsed() > BEST_EFFORT_LOOK {
                let applied = self.receiver.metric("abhyasa_best_effort_applied").await? - before;
                if applied == seen {
                    lost = sent as f64 - applied;
                }
                (looked, seen) = (Instant::now(), applied);
            }
            if self.node.queued_bytes(&self.target) > BEST_EFFORT_QUEUE
                || sent as f64 - seen - lost > BEST_EFFORT_WINDOW
            {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            let drafts = self.drafts(ISSUE_BATCH, false)?;
            sent += drafts.len();
            for result in self.node.issue(drafts).await? {
                result?;
            }
        }
        // Until no more arrive.
        let mut applied = 0.0;
        let mut took = begun.elapsed();
        for _ in 0..200 {
            let now = self.receiver.metric("abhyasa_best_effort_applied").await? - before;
            if now > applied {
                (applied, took) = (now, begun.elapsed());
            } else if begun.elapsed() > took + Duration::from_millis(100) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok((applied / took.as_secs_f64(), applied / sent as f64))
    }
}
