//! What came of a run of the node world.

use super::{Traffic, World};
use crate::measures::Measures;
use crate::run::{Counts, Report};
use crate::world::metrics::measured;
use proto::record::Terminal;
use serde::Serialize;

/// What came of a run with real nodes.
#[derive(Clone, Debug, Serialize)]
pub struct NodeReport {
    /// What is told of any run. Frames are UDP packets here.
    #[serde(flatten)]
    pub run: Report,
    /// What went over the wire.
    pub traffic: Traffic,
    /// Sessions that came up, each counted at both ends.
    pub session_ends: u64,
    /// Handshakes raced against a silent session.
    pub races: u64,
    /// Retries made, of all transfers.
    pub retries: u64,
    /// From issue to the custodian's own mark that it is applied, in milliseconds.
    pub applied_ms: Quantiles,
    /// How long after its deadline an escalation was durable, in milliseconds.
    pub late_ms: Quantiles,
}

/// Some quantiles of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// Size of the sample.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 99%.
    pub p99: u64,
    /// The largest.
    pub max: u64,
}

impl Quantiles {
    fn of(mut sample: Vec<u64>) -> Self {
        sample.sort_unstable();
        let at = |permille: usize| {
            let rank = (sample.len() * permille).div_ceil(1000).max(1) - 1;
            sample.get(rank).copied().unwrap_or(0)
        };
        Self { count: sample.len() as u64, p50: at(500), p99: at(990), max: at(1000) }
    }
}

impl World {
    pub(super) fn report(self) -> NodeReport {
        let live = self.places.iter().enumerate().filter_map(|(n, _)| self.hub.handle(n));
        let races = self.races + live.map(|handle| handle.metrics().races.get()).sum::<u64>();
        let traffic = self.wire.traffic();
        let (mut applied, mut late, mut retries) = (Vec::new(), Vec::new(), 0);
        self.hub.check(|checker| {
            for entry in checker.entries() {
                retries += u64::from(entry.retries());
                let Some((issued_at, ended_at, deadline)) = entry.times() else { continue };
                match entry.terminal() {
                    Some(Terminal::Applied) => applied.push(ended_at.saturating_sub(issued_at)),
                    Some(Terminal::Escalated) => {
                        late.push(ended_at.saturating_sub(deadline.as_ms()));
                    }
                    _ => {}
                }
            }
        });
        let syncs = self.places.iter().map(|place| place.disk.syncs()).sum();
        let run = self.hub.check(|checker| Report {
            options: self.options.clone(),
            counts: Counts::of(checker),
            measures: measured(
                Measures { bytes: traffic.bytes, syncs, ..Measures::default() },
                checker,
                &self.options,
                &self.timeline,
                self.now(),
                |_| true, // no external handlers here
            ),
            virtual_ms: self.now(),
            events: self.events,
            frames: traffic.packets,
            bytes: traffic.bytes,
            syncs,
            kills: self.kills,
            trace: checker.trace(),
            violations: checker.violations().to_vec(),
        });
        NodeReport {
            run,
            traffic,
            session_ends: self.outside.sessions(),
            races,
            retries,
            applied_ms: Quantiles::of(applied),
            late_ms: Quantiles::of(late),
        }
    }
}
