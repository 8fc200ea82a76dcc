//! The load: so many obligations at once for a while, each timed.

use super::Way;
use super::nodes::Nodes;
use anyhow::{Context as _, ensure};
use proto::custodian::Draft;
use proto::event::Event;
use proto::id::{Kind, ObligationId};
use proto::payload::Payload;
use proto::record::Terminal;
use std::time::{Duration, Instant};

/// Governed keys that obligations spread over: more than are in flight, so that no two effects of
/// one key are in one commit.
const KEYS: usize = 8192;
/// Obligations of one issue call at most, as an agent that batches would.
const ISSUE_BATCH_MAX: usize = 64;
/// An obligation under custody that takes longer ends the measurement.
const PATIENCE: Duration = Duration::from_secs(30);
/// A best-effort obligation that takes longer is lost.
const LOST_AFTER: Duration = Duration::from_millis(250);
const ID_PREFIX: &str = "price-";

/// One way for a while.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) transfers: u64,
    pub(super) lost: u64,
    pub(super) took: Duration,
    /// Microseconds from issue until the effect is there, sorted.
    pub(super) applied_us: Vec<u64>,
    /// Microseconds from issue until its custodian knows, sorted.
    pub(super) acked_us: Vec<u64>,
    pub(super) custodian_fsyncs: u64,
    pub(super) receiver_fsyncs: u64,
    pub(super) wire_bytes: u64,
    pub(super) datagrams: u64,
}

/// What loads the nodes.
pub(super) struct Load {
    nodes: Nodes,
    kind: Kind,
    corrective: Vec<Payload>,
    reinforcing: Vec<Payload>,
    /// When each obligation of this run was issued, by its number above `first`.
    issued: Vec<Instant>,
    first: usize,
}

impl Load {
    pub(super) fn new(nodes: Nodes, payload_bytes: usize) -> anyhow::Result<Self> {
        Ok(Self {
            nodes,
            kind: Kind::new("phala.belief_update")?,
            corrective: payloads(-0.000_001, payload_bytes)?,
            reinforcing: payloads(0.000_001, payload_bytes)?,
            issued: Vec::new(),
            first: 0,
        })
    }

    /// Keeps `in_flight` obligations under way for `time`, and lets them end.
    pub(super) async fn run(
        &mut self,
        way: Way,
        in_flight: usize,
        time: Duration,
    ) -> anyhow::Result<Sample> {
        for node in [&self.nodes.custodian, &self.nodes.receiver] {
            node.disk.skip_syncs(way == Way::CustodyUnsynced);
        }
        self.first += self.issued.len();
        self.issued.clear();
        self.nodes.receiver.disk.take_applied();
        let before = self.counters();
        let mut sample = match way {
            Way::BestEffort => self.best_effort(in_flight, time).await?,
            Way::Custody | Way::CustodyUnsynced => self.custody(in_flight, time).await?,
        };
        let after = self.counters();
        let [custodian, receiver, bytes, datagrams] =
            std::array::from_fn(|n| match (after.get(n), before.get(n)) {
                (Some(after), Some(before)) => after - before,
                _ => 0,
            });
        (sample.custodian_fsyncs, sample.receiver_fsyncs) = (custodian, receiver);
        (sample.wire_bytes, sample.datagrams) = (bytes, datagrams);
        for node in [&self.nodes.custodian, &self.nodes.receiver] {
            node.disk.skip_syncs(false);
        }
        sample.applied_us.sort_unstable();
        sample.acked_us.sort_unstable();
        Ok(sample)
    }

    fn counters(&self) -> [u64; 4] {
        let Nodes { custodian, receiver, .. } = &self.nodes;
        let (out, back) = (custodian.wire.sent(), receiver.wire.sent());
        [custodian.disk.syncs(), receiver.disk.syncs(), out.0 + back.0, out.1 + back.1]
    }

    /// Drafts with new numbers, issued now. Their payloads are made once: what building a document
    /// costs an agent is not what we measure.
    fn drafts(&mut self, count: usize, way: Way) -> anyhow::Result<Vec<Draft>> {
        let best_effort = way == Way::BestEffort;
        let payloads = if best_effort { &self.reinforcing } else { &self.corrective };
        let mut drafts = Vec::with_capacity(count);
        let now = Instant::now();
        for _ in 0..count {
            let number = self.first + self.issued.len();
            self.issued.push(now);
            drafts.push(Draft {
                id: ObligationId::new(&format!("{ID_PREFIX}{number:012x}"))?,
                kind: self.kind.clone(),
                target: self.nodes.target.clone(),
                payload: payloads.get(number % KEYS).context("payloads")?.clone(),
                deadline_seconds: None,
                max_retries: None,
                sequence: None,
            });
        }
        Ok(drafts)
    }

    /// Microseconds from the issue of an obligation of this run to a time.
    fn since_issue(&self, id: &str, at: Instant) -> Option<u64> {
        let number = usize::from_str_radix(id.strip_prefix(ID_PREFIX)?, 16).ok()?;
        let issued = self.issued.get(number.checked_sub(self.first)?)?;
        u64::try_from(at.duration_since(*issued).as_micros()).ok()
    }

    async fn custody(&mut self, in_flight: usize, time: Duration) -> anyhow::Result<Sample> {
        let mut events = self.nodes.custodian.handle.events();
        let mut sample = Sample::default();
        let mut issuing = tokio::task::JoinSet::new();
        let (mut open, batch) = (0, batch(in_flight));
        let begun = Instant::now();
        loop {
            let more = begun.elapsed() < time;
            while more && open + batch <= in_flight {
                let drafts = self.drafts(batch, Way::Custody)?;
                open += batch;
                let node = self.nodes.custodian.handle.clone();
                issuing.spawn(async move { node.issue(drafts).await });
            }
            if open == 0 {
                break;
            }
            let event = tokio::time::timeout(PATIENCE, events.recv()).await;
            match &*event.context("no obligation ended in time")?.context("events lost")? {
                Event::Attested { obligation_id, .. } => {
                    sample
                        .acked_us
                        .extend(self.since_issue(obligation_id.as_str(), Instant::now()));
                }
                Event::Terminal { obligation_id, outcome, .. } => {
                    ensure!(*outcome == Terminal::Applied, "{obligation_id} ended {outcome:?}");
                    open -= 1;
                    sample.transfers += 1;
                }
                _ => {}
            }
        }
        sample.took = begun.elapsed();
        while let Some(done) = issuing.join_next().await {
            for result in done?? {
                result?;
            }
        }
        for (at, id) in self.nodes.receiver.disk.take_applied() {
            sample.applied_us.extend(self.since_issue(&id, at));
        }
        ensure!(
            sample.applied_us.len() as u64 == sample.transfers,
            "{} obligations ended applied, and {} had their effect",
            sample.transfers,
            sample.applied_us.len()
        );
        Ok(sample)
    }

    /// An obligation makes room for the next when its effect is there, or when it is lost. Nothing
    /// on the wire tells its issuer; we see both ends.
    async fn best_effort(&mut self, in_flight: usize, time: Duration) -> anyhow::Result<Sample> {
        let mut sample = Sample::default();
        let (mut open, batch) = (0usize, batch(in_flight));
        let begun = Instant::now();
        let mut last = begun;
        loop {
            let more = begun.elapsed() < time;
            while more && open + batch <= in_flight {
                let drafts = self.drafts(batch, Way::BestEffort)?;
                open += batch;
                for result in self.nodes.custodian.handle.issue(drafts).await? {
                    result?;
                }
            }
            if open == 0 {
                break;
            }
            let receiver = self.nodes.receiver.disk.clone();
            if tokio::time::timeout(LOST_AFTER, receiver.applies()).await.is_err() {
                sample.lost += open as u64;
                open = 0;
            }
            for (at, id) in receiver.take_applied() {
                if let Some(us) = self.since_issue(&id, at) {
                    sample.applied_us.push(us);
                    last = last.max(at);
                    open = open.saturating_sub(1);
                }
            }
        }
        sample.transfers = sample.applied_us.len() as u64;
        sample.took = last.duration_since(begun);
        ensure!(sample.transfers > 0, "no best-effort obligation arrived");
        Ok(sample)
    }
}

/// Obligations of one issue call.
fn batch(in_flight: usize) -> usize {
    (in_flight / 8).clamp(1, ISSUE_BATCH_MAX)
}

/// One payload of `bytes` for each governed key.
fn payloads(delta: f64, bytes: usize) -> anyhow::Result<Vec<Payload>> {
    let payload = |key: usize, note: usize| {
        let value = serde_json::json!({
            "weight_delta": delta,
            "weight_key": format!("routing.price.{key:04}"),
            "note": "x".repeat(note),
        });
        Ok(Payload::from_json(value.as_object().context("object")?)?)
    };
    let bare = payload(0, 24)?.as_bytes().len();
    (0..KEYS).map(|key| payload(key, 24 + bytes.saturating_sub(bare))).collect()
}
