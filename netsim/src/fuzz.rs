//! The conformance fuzz of the paper, on the real [`Custody`](proto::custody::Custody).
//!
//! The reference implementation (github.com/ravikiran438/abhyasa-protocol,
//! `tests/test_fuzz_deliver_or_report.py`) draws for each transfer the chances of loss, of duplication and of
//! the loss of the answer, each evenly from 0 to 1, and lets the receiver decline one in three. Each
//! attempt is one round trip that takes no time: lost on the way; delivered, and once more if
//! duplicated; its answer lost. Backoff from 1 s doubling to 64 s, deadline 600 s: 15 attempts.
//!
//! The same is done here, with the same meaning of each draw, and these differences:
//!
//! - Two real cores, custodian and receiver, with their stores, rather than one function; both under the
//!   checkers of the core world. Transfers share them, a thousand at a time, and the channel of each
//!   is its own.
//! - What the reference's decision function says is said by an external handler, as in a node: an intent
//!   is written before it is asked.
//! - Our receiver remembers a decline; the reference asks again. The handler's word is the same each
//!   time, so neither shares nor attempts differ.
//! - The random numbers are ours, so the counts are not those of the reference; the shares are, and both
//!   have a closed form. With `n` = 15 attempts and chances `u`, `v` even on (0, 1):
//!   P(escalated) = E(1 - uv)^n = H(n+1) / (n+1), and attempts on average are the sum of H(k) / k for
//!   k = 1..n, where H(k) is the k-th harmonic number.

mod channel;

use crate::pool;
use crate::stats::{Share, Z_99};
use channel::Shard;
use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// Attempts before the deadline: at 0, 1, 3, 7, 15, 31, 63, 127 s, and every 64 s.
const ATTEMPTS: u32 = 15;
/// Transfers that share two cores.
const SHARD: u64 = 1_000;

/// What the reference reports for 100,000 transfers.
pub const REFERENCE: Shares = Shares { applied: 0.526, declined: 0.262, escalated: 0.212 };
/// The attempts of a transfer that it reports, on average.
pub const REFERENCE_ATTEMPTS: f64 = 6.3;

/// How transfers ended, as shares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shares {
    /// Applied.
    pub applied: f64,
    /// Declined.
    pub declined: f64,
    /// Escalated.
    pub escalated: f64,
}

/// What came of a fuzz.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Tally {
    /// Transfers that ended or should have.
    pub transfers: u64,
    /// Applied.
    pub applied: u64,
    /// Declined.
    pub declined: u64,
    /// Escalated.
    pub escalated: u64,
    /// Of these, applied at the receiver.
    pub spurious: u64,
    /// Without an end, or applied only by the custodian's belief.
    pub silent: u64,
    /// With their effect more than once.
    pub doubled: u64,
    /// Offers in all.
    pub attempts: u64,
    /// The most of one transfer.
    pub attempts_max: u32,
    /// Broken promises, as the checkers say; the first few.
    pub violations: Vec<String>,
}

/// Violations that are kept.
const VIOLATIONS_MAX: usize = 8;

impl Tally {
    fn merge(&mut self, other: &Self) {
        self.transfers += other.transfers;
        self.applied += other.applied;
        self.declined += other.declined;
        self.escalated += other.escalated;
        self.spurious += other.spurious;
        self.silent += other.silent;
        self.doubled += other.doubled;
        self.attempts += other.attempts;
        self.attempts_max = self.attempts_max.max(other.attempts_max);
        let room = VIOLATIONS_MAX.saturating_sub(self.violations.len());
        self.violations.extend(other.violations.iter().take(room).cloned());
    }

    /// The shares.
    #[must_use]
    pub fn shares(&self) -> Shares {
        let of = |hits| Share { hits, n: self.transfers }.rate();
        Shares {
            applied: of(self.applied),
            declined: of(self.declined),
            escalated: of(self.escalated),
        }
    }

    /// Attempts of a transfer, on average.
    #[must_use]
    pub fn attempts_mean(&self) -> f64 {
        self.attempts as f64 / self.transfers.max(1) as f64
    }

    /// Whether each share of the closed form lies inside the 99 % interval of ours, and nothing broke.
    #[must_use]
    pub fn holds(&self) -> bool {
        let expected = expected();
        let inside = |hits, share| {
            let interval = Share { hits, n: self.transfers }.interval(Z_99);
            (interval.low..=interval.high).contains(&share)
        };
        inside(self.applied, expected.applied)
            && inside(self.declined, expected.declined)
            && inside(self.escalated, expected.escalated)
            && self.silent + self.doubled == 0
            && self.violations.is_empty()
            && self.attempts_max == ATTEMPTS
    }
}

fn harmonic(k: u32) -> f64 {
    (1..=k).map(|n| 1.0 / f64::from(n)).sum()
}

/// The shares by the closed form.
#[must_use]
pub fn expected() -> Shares {
    let escalated = harmonic(ATTEMPTS + 1) / f64::from(ATTEMPTS + 1);
    let heard = 1.0 - escalated;
    Shares { applied: heard * 2.0 / 3.0, declined: heard / 3.0, escalated }
}

/// Attempts of a transfer, on average, by the closed form.
#[must_use]
pub fn expected_attempts() -> f64 {
    (1..=ATTEMPTS).map(|k| harmonic(k) / f64::from(k)).sum()
}

/// Runs `transfers` transfers. `told` hears how many are done.
pub fn fuzz(
    transfers: u64,
    seed: u64,
    threads: usize,
    stop: &AtomicBool,
    mut told: impl FnMut(u64),
) -> Tally {
    let mut total = Tally::default();
    let work = |shard: u64| {
        let first = shard * SHARD;
        Shard::new(seed, first, SHARD.min(transfers - first)).run()
    };
    pool::in_order(threads, transfers.div_ceil(SHARD), stop, work, |_, tally| {
        total.merge(&tally);
        told(total.transfers);
        true
    });
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_as_the_closed_form_says() {
        let Shares { applied, declined, escalated } = expected();
        assert!((applied - REFERENCE.applied).abs() < 0.001, "{applied}");
        assert!((declined - REFERENCE.declined).abs() < 0.001, "{declined}");
        assert!((escalated - REFERENCE.escalated).abs() < 0.001, "{escalated}");
        assert!((expected_attempts() - REFERENCE_ATTEMPTS).abs() < 0.01);
    }
}
