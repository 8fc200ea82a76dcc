//! What a run is measured by, whatever its policy.
//!
//! - **Silent loss**: an admissible obligation that never had its effect at its receiver, and whose
//!   issuer's principal was told nothing, or told that it was applied. A line in a log tells nobody.
//! - **Double application**: it had its effect more than once.
//! - **Spurious escalation**: it escalated although its receiver had applied it, or was up and would
//!   have applied it, had it only come: the delay outlasted the deadline, nothing else was wrong.
//! - **Delivery delay**: from issue until the custodian knew the end. It is measured on *twins*
//!   ([`Options::twin_deadline_s`](crate::Options)): an obligation's twin says the same under another key, was
//!   issued in the same call and has a deadline so long that it does not bind. The share of twins that
//!   took longer than the deadline of the obligation itself is the **bound** of spurious escalations.

use crate::stats::Times;
use proto::record::Terminal;
use serde::Serialize;

/// What became of one admissible obligation. Times are milliseconds of world time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Life {
    /// When its client asked a live node for it, first.
    pub(crate) asked_at: u64,
    /// When its effect happened, first.
    pub(crate) effect_at: Option<u64>,
    /// How often.
    pub(crate) effects: u32,
    /// What its issuer's principal was told of its end, and when.
    pub(crate) told: Option<(Terminal, u64)>,
    /// Whether its failure is in a log at least.
    pub(crate) logged: bool,
    /// Whether its receiver would have applied it, asked often enough.
    pub(crate) willing: bool,
    /// Whether its receiver was up when it ended.
    pub(crate) receiver_up: bool,
    /// How often it was sent.
    pub(crate) attempts: u32,
    /// How late it escalated, if that was for its deadline.
    pub(crate) late_ms: Option<u64>,
    /// When the principal learned that an escalated obligation was applied.
    pub(crate) cleared_at: Option<u64>,
    /// For a twin: how long it took from its creation to its end, by the custodian's clock, and the
    /// deadline of the obligation it goes with.
    pub(crate) twin: Option<(u64, u64)>,
}

/// Sums and distributions over the admissible obligations of runs.
#[derive(Clone, Debug, Default)]
pub struct Measures {
    /// Admissible obligations that were taken, twins aside.
    pub transfers: u64,
    /// Of these, with their effect at the receiver, and neither declined nor escalated.
    pub applied: u64,
    /// Declined, as the principal was told.
    pub declined: u64,
    /// Escalated.
    pub escalated: u64,
    /// Neither applied nor told of.
    pub silent: u64,
    /// Of the silent ones, with an error in a log.
    pub logged: u64,
    /// Escalated, and applied at the receiver all the same.
    pub spurious_applied: u64,
    /// Escalated, and applied or with a receiver that was up and would have.
    pub spurious: u64,
    /// With their effect more than once.
    pub doubled: u64,
    /// Twins that ended.
    pub twins: u64,
    /// Of these, later than the deadline of the obligation they go with.
    pub twins_late: u64,
    /// Sent in all, repeats included, twins aside.
    pub attempts: u64,
    /// Bytes handed to the network by all nodes, repeats by streams included.
    pub bytes: u64,
    /// Syncs of all disks.
    pub syncs: u64,
    /// Bytes of all packets that the first node sent, where it decides for many.
    pub custodian_bytes: u64,
    /// The same, objects of tracks.
    pub custodian_objects: u64,
    /// From a decision for many until all of them are applied, declined or escalated.
    pub settled: Times,
    /// From the client's call to the effect.
    pub latency: Times,
    /// From the end of the last outage to the effect, for what was issued before it ended.
    pub recovery: Times,
    /// Delivery delays of twins.
    pub delays: Times,
    /// From the deadline to the escalation.
    pub lateness: Times,
    /// For how long the safe state stood though the obligation was applied.
    pub overprotection: Times,
}

/// What else a run knows of its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around {
    /// When the last outage of its timeline ended, in world time.
    pub(crate) healed_at: Option<u64>,
    /// When everything was well.
    pub(crate) well_at: u64,
}

impl Measures {
    pub(crate) fn add(&mut self, life: &Life, around: Around) {
        let ms = |ms: u64| ms * 1000;
        if let Some((took_ms, deadline_ms)) = life.twin {
            self.twins += 1;
            self.twins_late += u64::from(took_ms >= deadline_ms);
            self.delays.record(ms(took_ms));
            return;
        }
        self.transfers += 1;
        self.attempts += u64::from(life.attempts);
        self.doubled += u64::from(life.effects > 1);
        if let Some(at) = life.effect_at {
            self.latency.record(ms(at.saturating_sub(life.asked_at)));
            let outage = around.healed_at.filter(|healed| life.asked_at < *healed && at >= *healed);
            if let Some(healed) = outage {
                self.recovery.record(ms(at - healed));
            }
        }
        match life.told {
            Some((Terminal::Escalated, at)) => self.escalated(life, at, around.well_at),
            Some((Terminal::Declined, _)) => self.declined += 1,
            _ if life.effects > 0 => self.applied += 1,
            _ => {
                self.silent += 1;
                self.logged += u64::from(life.logged);
            }
        }
    }

    fn escalated(&mut self, life: &Life, at: u64, well_at: u64) {
        self.escalated += 1;
        let applied = life.effects > 0;
        self.spurious_applied += u64::from(applied);
        self.spurious += u64::from(applied || (life.willing && life.receiver_up));
        if let Some(late) = life.late_ms {
            self.lateness.record(late * 1000);
        }
        if let Some(effect_at) = life.effect_at {
            // Until the principal knows better, and no longer than anything is wrong.
            let from = at.max(effect_at);
            let until = life.cleared_at.unwrap_or(well_at).max(from);
            self.overprotection.record((until - from) * 1000);
        }
    }

    /// Adds the sums and distributions of another run.
    pub fn merge(&mut self, other: &Self) {
        for (sum, n) in [
            (&mut self.transfers, other.transfers),
            (&mut self.applied, other.applied),
            (&mut self.declined, other.declined),
            (&mut self.escalated, other.escalated),
            (&mut self.silent, other.silent),
            (&mut self.logged, other.logged),
            (&mut self.spurious_applied, other.spurious_applied),
            (&mut self.spurious, other.spurious),
            (&mut self.doubled, other.doubled),
            (&mut self.twins, other.twins),
            (&mut self.twins_late, other.twins_late),
            (&mut self.attempts, other.attempts),
            (&mut self.bytes, other.bytes),
            (&mut self.syncs, other.syncs),
            (&mut self.custodian_bytes, other.custodian_bytes),
            (&mut self.custodian_objects, other.custodian_objects),
        ] {
            *sum += n;
        }
        for (times, more) in [
            (&mut self.settled, &other.settled),
            (&mut self.latency, &other.latency),
            (&mut self.recovery, &other.recovery),
            (&mut self.delays, &other.delays),
            (&mut self.lateness, &other.lateness),
            (&mut self.overprotection, &other.overprotection),
        ] {
            times.merge(more);
        }
    }

    /// How it reads in the report of one run.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            transfers: self.transfers,
            silent: self.silent,
            doubled: self.doubled,
            spurious: self.spurious,
            latency_p50_ms: self.latency.quantile_ms(0.5),
            latency_p99_ms: self.latency.quantile_ms(0.99),
            latency_max_ms: self.latency.max_ms(),
            lateness_p99_ms: self.lateness.quantile_ms(0.99),
            overprotection_mean_ms: self.overprotection.mean_ms(),
            attempts_mean: self.attempts_mean(),
            bytes_mean: self.bytes_mean(),
        }
    }

    /// Attempts of an obligation, on average.
    #[must_use]
    pub fn attempts_mean(&self) -> f64 {
        self.attempts as f64 / self.transfers.max(1) as f64
    }

    /// Bytes of an obligation, on average, acknowledgements and repeats included. Twins travel too.
    #[must_use]
    pub fn bytes_mean(&self) -> f64 {
        self.bytes as f64 / (self.transfers + self.twins).max(1) as f64
    }
}

/// The measures of one run, in short.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Admissible obligations taken.
    pub transfers: u64,
    /// Silent losses.
    pub silent: u64,
    /// With their effect more than once.
    pub doubled: u64,
    /// Spurious escalations.
    pub spurious: u64,
    /// From issue to the effect: median.
    pub latency_p50_ms: Option<f64>,
    /// The same, 99 in 100.
    pub latency_p99_ms: Option<f64>,
    /// The same, the longest.
    pub latency_max_ms: Option<f64>,
    /// From the deadline to the escalation, 99 in 100.
    pub lateness_p99_ms: Option<f64>,
    /// For how long the safe state stood needlessly, on average.
    pub overprotection_mean_ms: Option<f64>,
    /// Attempts of an obligation, on average.
    pub attempts_mean: f64,
    /// Bytes of an obligation, on average.
    pub bytes_mean: f64,
}
