//! The oracle: what the simulator must find where the answer is known.
//!
//! With each frame lost with chance `p`, each way, and 15 attempts,
//!
//! - P(escalated) = (1 - (1-p)^2)^15: no attempt came there and its answer back;
//! - P(spurious) = that - p^15: and yet one came there.
//!
//! The simulator runs the real core over many seeds, and its counts are held against these: pooled, inside
//! the 99 % interval; and by seed, spread as the binomial distribution says, so that neither a bias nor
//! seeds that are alike can hide in the sum.

use crate::net::Mode;
use crate::options::Options;
use crate::pool;
use crate::run::run;
use crate::scenario::{Fault, FaultKind};
use link::{Chance, Delay, LinkModel, Micros};
use proto::backoff::Backoff;
use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// Attempts of a transfer.
const ATTEMPTS: i32 = 15;

/// A loss, and how much is run at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Loss each way, in thousandths.
    pub loss_permille: u32,
    /// Transfers of a seed.
    pub transfers: u32,
    /// Seeds, from 0.
    pub seeds: u64,
}

impl Ask {
    /// Loss each way, as a fraction.
    #[must_use]
    pub fn loss(&self) -> f64 {
        f64::from(self.loss_permille) / 1000.0
    }
}

/// What is run unless said otherwise: enough at each loss to see a bias of a few percent.
pub const ASKS: [Ask; 4] = [
    Ask { loss_permille: 300, transfers: 20_000, seeds: 100 },
    Ask { loss_permille: 500, transfers: 2_000, seeds: 100 },
    Ask { loss_permille: 700, transfers: 1_000, seeds: 100 },
    Ask { loss_permille: 900, transfers: 1_000, seeds: 100 },
];

/// One quantity: what was expected, and what was seen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// Loss each way.
    pub loss: f64,
    /// `escalated` or `spurious`.
    pub what: &'static str,
    /// Transfers of all seeds.
    pub transfers: u64,
    /// Seeds.
    pub seeds: u64,
    /// By the closed form.
    pub odds: f64,
    /// So many transfers.
    pub expected: f64,
    /// As counted.
    pub seen: u64,
    /// Standard deviations between the two.
    pub sigmas: f64,
    /// The spread of the seeds: their mean squared deviation, 1 if they are independent draws.
    pub spread: f64,
    /// Seeds outside of their own 99 % interval.
    pub seeds_outside: u64,
}

impl Found {
    /// Whether what was seen lies inside the 99 % interval about what was expected.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.sigmas.abs() < crate::stats::Z_99
    }
}

/// The chances of the closed form: escalated, and escalated though applied.
#[must_use]
pub fn closed_form(loss: f64) -> (f64, f64) {
    let escalated = (1.0 - (1.0 - loss).powi(2)).powi(ATTEMPTS);
    (escalated, escalated - loss.powi(ATTEMPTS))
}

/// The scenario of a loss: 15 attempts well before the deadline, each frame for itself.
#[must_use]
pub fn scenario(ask: Ask, seed: u64) -> Options {
    let good = LinkModel::with_delay(Delay::Fixed(Micros::from_ms(1)));
    let link = LinkModel { loss: Chance::permille(ask.loss_permille), ..good.clone() };
    let lossy = FaultKind::Link { from: 0, to: 1, back: true, link };
    Options {
        transfers: ask.transfers,
        warm_up_ms: 100,
        faults_ms: 600_000,
        // Or the last would have better odds.
        heal_after_ms: 30_000,
        keys: 1_000_000_000,
        mode: Mode::Datagrams,
        singly: true,
        wire: false,
        // They connect first: a handshake takes its own odds, which the closed form does not know.
        link: good.clone(),
        timeline: Some(vec![Fault { at_ms: 0, for_ms: 0, what: lossy }]),
        backoff: Backoff { base_ms: 100, cap_ms: 1_000, jitter_permille: 0 },
        retries: Some(14),
        window: 1 << 20,
        window_bytes: 1 << 30,
        ..Options::quiet(seed)
    }
}

/// Runs one loss over its seeds.
///
/// # Errors
/// The first seed in which a promise broke, and which.
pub fn ask(
    ask: Ask,
    threads: usize,
    stop: &AtomicBool,
    mut told: impl FnMut(),
) -> Result<[Found; 2], String> {
    let loss = ask.loss();
    let (escalated, spurious) = closed_form(loss);
    let mut seen: Vec<[u64; 2]> = Vec::new();
    let mut broken = None;
    let work = |seed: u64| run(&scenario(ask, seed));
    pool::in_order(threads, ask.seeds, stop, work, |seed, report| {
        told();
        let counts = report.counts;
        if let Some(violation) = report.violations.first() {
            broken = Some(format!("seed {seed}: {}: {}", violation.rule, violation.detail));
        } else if counts.applied + counts.escalated != u64::from(ask.transfers) {
            broken = Some(format!("seed {seed}: not all applied or escalated: {counts:?}"));
        }
        seen.push([counts.escalated, counts.spurious]);
        broken.is_none()
    });
    if let Some(broken) = broken {
        return Err(broken);
    }
    let found = |what, odds: f64, of: fn(&[u64; 2]) -> u64| {
        let seeds = seen.len() as u64;
        let each = f64::from(ask.transfers);
        let sigma = (each * odds * (1.0 - odds)).sqrt();
        let off = |counts: &[u64; 2]| (of(counts) as f64 - each * odds) / sigma;
        let total: u64 = seen.iter().map(of).sum();
        let n = each * seeds as f64;
        Found {
            loss,
            what,
            transfers: u64::from(ask.transfers) * seeds,
            seeds,
            odds,
            expected: n * odds,
            seen: total,
            sigmas: (total as f64 - n * odds) / (n * odds * (1.0 - odds)).sqrt(),
            spread: seen.iter().map(|counts| off(counts).powi(2)).sum::<f64>() / seeds as f64,
            seeds_outside: seen
                .iter()
                .filter(|counts| off(counts).abs() >= crate::stats::Z_99)
                .count() as u64,
        }
    };
    Ok([
        found("escalated", escalated, |[escalated, _]| *escalated),
        found("spurious", spurious, |[_, spurious]| *spurious),
    ])
}
