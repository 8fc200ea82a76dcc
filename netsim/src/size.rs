//! Sizing: the deadline and the backoff that keep spurious escalations below a target.
//!
//! A deadline must cover what is left of an outage when an obligation is issued, and after it enough
//! attempts to get one there and its answer back (the paper, section 4.1). With a target `t`:
//!
//! 1. Of each attempt, the chance to get through is `s = (1 - loss there)(1 - loss back)`. It takes
//!    `N = ln(t/2) / ln(1 - s)` attempts to fail with less than half of the target.
//! 2. All but `t/2` of the moments inside outages have at most `x` seconds of theirs left.
//! 3. Silences of a Gilbert-Elliott link that are not short against the cap count as outages too.
//! 4. The deadline is `x + N * cap` and a round trip: after a long outage attempts are a cap apart.
//!    The cap leaves the attempts at most half as long again as the outage, or the shortest deadline.
//!
//! The rate is that among obligations that are issued while the link is out; over all, it is smaller by
//! the share of time that it is out. The answer is then simulated, in the harshest of ways: each frame
//! lost for itself and repeated by custody only. If the target does not hold, the deadline is raised.

mod outage;

use crate::net::Mode;
use crate::options::Options;
use crate::pool;
use crate::run::run;
use crate::scenario::{Fault, FaultKind};
use crate::stats::{Interval, Share, Z_95, below_if_none};
use link::{LinkModel, Rng};
use proto::backoff::Backoff;
use serde::Serialize;
use std::sync::atomic::AtomicBool;

pub use outage::Outage;

/// What is to be sized.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Link, disks and handlers.
    pub scenario: Options,
    /// How long outages last.
    pub outage: Outage,
    /// Spurious escalations of all obligations that are issued in outages, or of all if there are none.
    pub target: f64,
    /// The shortest deadline wanted, in seconds.
    pub deadline_s_min: u64,
}

/// A profile of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sized {
    /// Deadline.
    pub deadline_s: u64,
    /// First delay between attempts.
    pub base_ms: u64,
    /// Longest.
    pub cap_ms: u64,
    /// Retries that span the deadline.
    pub retries: u64,
    /// Attempts that it takes at this loss, once the link is back.
    pub attempts: u64,
    /// Chance of one attempt to get there and its answer back.
    pub chance: f64,
    /// What is left of an outage, in seconds, but for half of the target.
    pub outage_s: f64,
}

/// What the simulation said of a profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Trial {
    /// The profile.
    pub profile: Sized,
    /// Transfers.
    pub transfers: u64,
    /// Spurious escalations.
    pub spurious: u64,
    /// As a share.
    pub rate: f64,
    /// Its 95 % interval.
    pub low: f64,
    /// Its upper end; of none, by the rule of three.
    pub high: f64,
    /// Silent losses: none, or something is broken.
    pub silent: u64,
    /// From issue to the effect, 99 in 100, in milliseconds.
    pub p99_ms: Option<f64>,
    /// Offers of an obligation, on average.
    pub attempts_mean: f64,
    /// Broken promises: seed and rule.
    pub broken: Vec<String>,
}

/// Backoffs are rounded to these, times a power of ten.
const ROUND: [u64; 3] = [1, 2, 5];
/// The longest cap proposed, in milliseconds.
const CAP_MS_MAX: u64 = 60_000;

/// The largest round number that is not above.
fn round_down(ms: f64) -> u64 {
    let mut best = 1;
    let mut size = 1u64;
    while size as f64 <= ms {
        best = ROUND.iter().map(|n| n * size).filter(|n| *n as f64 <= ms).max().unwrap_or(best);
        size = size.saturating_mul(10);
    }
    best
}

/// Loss of a direction in the long run.
fn mean_loss(link: &LinkModel) -> f64 {
    let bursts = link.bursts.map_or(0.0, |bursts| bursts.mean_loss());
    1.0 - (1.0 - link.loss.fraction()) * (1.0 - bursts) * (1.0 - link.corrupt.fraction())
}

impl Wish {
    /// Both directions between nodes 0 and 1.
    fn ways(&self) -> [&LinkModel; 2] {
        [(0, 1), (1, 0)].map(|(from, to)| {
            let special = self.scenario.links.iter().find(|way| (way.from, way.to) == (from, to));
            special.map_or(&self.scenario.link, |way| &way.link)
        })
    }

    /// The profile by the rule of this module.
    #[must_use]
    pub fn size(&self) -> Sized {
        let [there, back] = self.ways();
        let chance = ((1.0 - mean_loss(there)) * (1.0 - mean_loss(back))).clamp(1e-9, 1.0);
        let half = self.target / 2.0;
        let attempts = if chance >= 1.0 { 1.0 } else { (half.ln() / (1.0 - chance).ln()).ceil() };
        let disk = self.scenario.commit_ms_max
            + if self.scenario.stall_permille > 0 { self.scenario.stall_ms } else { 0 };
        let trip_ms = (there.delay.max().ms() + back.delay.max().ms() + 2 + 3 * disk) as f64;
        let mut outage_s = self.outage.left_quantile(half);
        // Room for attempts: half as much again as the outage, or up to the shortest deadline.
        let room_ms = |outage_s: f64| {
            let shortest = self.deadline_s_min as f64 - outage_s - trip_ms / 1000.0;
            1000.0 * (outage_s / 2.0).max(shortest)
        };
        let base_ms = round_down((2.0 * trip_ms).max(100.0)).max(100);
        let cap = |outage_s| round_down(room_ms(outage_s) / attempts).clamp(base_ms, CAP_MS_MAX);
        let silence_s = [there, back]
            .into_iter()
            .filter_map(|link| link.bursts)
            .map(|bursts| bursts.bad.seconds())
            .fold(0.0, f64::max);
        if silence_s * 3_000.0 > cap(outage_s) as f64 {
            outage_s += silence_s * (1.0 / half).ln();
        }
        let cap_ms = cap(outage_s);
        let after_ms = attempts * cap_ms as f64 + trip_ms;
        let deadline_s = (outage_s + after_ms / 1000.0).ceil() as u64;
        self.profile(
            deadline_s.max(self.deadline_s_min),
            base_ms,
            cap_ms,
            attempts,
            chance,
            outage_s,
        )
    }

    fn profile(
        &self,
        deadline_s: u64,
        base_ms: u64,
        cap_ms: u64,
        attempts: f64,
        chance: f64,
        outage_s: f64,
    ) -> Sized {
        let backoff = Backoff { base_ms, cap_ms, jitter_permille: 200 };
        let retries = backoff.retries_needed(deadline_s * 1000);
        Sized { deadline_s, base_ms, cap_ms, retries, attempts: attempts as u64, chance, outage_s }
    }

    /// Simulates a profile over about so many transfers.
    pub fn try_out(
        &self,
        profile: Sized,
        transfers: u64,
        threads: usize,
        stop: &AtomicBool,
        mut told: impl FnMut(u64),
    ) -> Trial {
        let scenarios = self.scenarios(profile, transfers);
        let mut shares = Vec::new();
        let mut measures = crate::Measures::default();
        let mut broken = Vec::new();
        let work = |seed: u64| usize::try_from(seed).ok().and_then(|n| scenarios.get(n)).map(run);
        pool::in_order(threads, scenarios.len() as u64, stop, work, |seed, report| {
            let Some(report) = report else { return true };
            let m = &report.measures;
            shares.push(Share { hits: m.spurious, n: m.transfers });
            measures.merge(m);
            told(measures.transfers);
            broken.extend(
                report.violations.first().map(|v| format!("seed {seed}: {}: {}", v.rule, v.detail)),
            );
            true
        });
        let (total, Interval { low, high }) = Share::pooled(&shares, Z_95);
        Trial {
            profile,
            transfers: total.n,
            spurious: total.hits,
            rate: total.rate(),
            low,
            high: if total.hits == 0 { below_if_none(total.n) } else { high },
            silent: measures.silent,
            p99_ms: measures.latency.quantile_ms(0.99),
            attempts_mean: measures.attempts_mean(),
            broken,
        }
    }

    /// One scenario for each outage drawn: obligations are issued all through it, at an even rate,
    /// so that a long one holds more of them. Without outages they are issued over ten minutes.
    fn scenarios(&self, profile: Sized, transfers: u64) -> Vec<Options> {
        const EACH: u64 = 1_000;
        const RUNS_MAX: u64 = 400;
        let runs = transfers.div_ceil(EACH).clamp(1, RUNS_MAX.max(transfers.div_ceil(5_000)));
        let mut rng = Rng::new(0, 77);
        let mut length_ms = || match self.outage {
            Outage::None => 600_000,
            _ => self.outage.draw(&mut rng).ms().max(1),
        };
        let lengths: Vec<u64> = (0..runs).map(|_| length_ms()).collect();
        let all = lengths.iter().sum::<u64>() as f64;
        let one = |(seed, length_ms): (u64, u64)| {
            let count = (transfers as f64 * length_ms as f64 / all).ceil() as u32;
            Options { seed, transfers: count, ..self.scenario_of(profile, length_ms) }
        };
        (0..).zip(lengths).map(one).collect()
    }

    fn scenario_of(&self, profile: Sized, length_ms: u64) -> Options {
        // The nodes connect first: what is sized are obligations, not handshakes.
        let begins = |for_ms, what| Fault { at_ms: 0, for_ms, what };
        let way = |((from, to), link): ((usize, usize), &LinkModel)| {
            begins(0, FaultKind::Link { from, to, back: false, link: link.clone() })
        };
        let mut timeline: Vec<Fault> =
            [(0, 1), (1, 0)].into_iter().zip(self.ways()).map(way).collect();
        if self.outage != Outage::None {
            timeline.push(begins(length_ms, FaultKind::Partition { a: 0, b: 1 }));
        }
        Options {
            nodes: 2,
            warm_up_ms: 1_000,
            faults_ms: length_ms,
            heal_after_ms: profile.deadline_s * 1_000,
            timeline: Some(timeline),
            link: LinkModel::with_delay(self.scenario.link.delay),
            links: Vec::new(),
            keys: 1_000_000_000,
            benign_permille: 0,
            mode: Mode::Datagrams,
            singly: true,
            wire: false,
            idle_ms: length_ms * 2 + 3_600_000,
            racing: false,
            deadline_s: profile.deadline_s,
            retries: None,
            backoff: Backoff {
                base_ms: profile.base_ms,
                cap_ms: profile.cap_ms,
                jitter_permille: 200,
            },
            window: 1 << 20,
            window_bytes: 1 << 30,
            deciding_max: 1 << 20,
            ..self.scenario.clone()
        }
    }

    /// Sizes, tries out, and raises the deadline until the rate seen is not above the target: at most
    /// `rounds` times. The last trial is the answer.
    pub fn answer(
        &self,
        transfers: u64,
        rounds: usize,
        threads: usize,
        stop: &AtomicBool,
        mut told: impl FnMut(u64),
    ) -> Vec<Trial> {
        let mut trials: Vec<Trial> = Vec::new();
        let mut profile = self.size();
        for _ in 0..rounds.max(1) {
            let trial = self.try_out(profile, transfers, threads, stop, &mut told);
            let holds = trial.rate <= self.target;
            trials.push(trial);
            if holds || stop.load(std::sync::atomic::Ordering::Relaxed) {
                break;
            }
            let Sized { deadline_s, base_ms, cap_ms, attempts, chance, outage_s, .. } = profile;
            let longer = deadline_s + deadline_s.div_ceil(2);
            profile = self.profile(longer, base_ms, cap_ms, attempts as f64, chance, outage_s);
        }
        trials
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::Chance;

    fn wish(loss: u32, outage: &str, target: f64) -> Wish {
        let link = LinkModel { loss: Chance::permille(loss), ..Options::quiet(0).link };
        let scenario = Options { link, ..Options::quiet(0) };
        Wish { scenario, outage: outage.parse().unwrap(), target, deadline_s_min: 30 }
    }

    #[test]
    fn a_deadline_covers_the_outage_and_the_attempts_after_it() {
        let none = wish(300, "none", 1e-6).size();
        assert_eq!((none.deadline_s, none.attempts), (30, 22), "ln(5e-7) / ln(0.51)");
        assert!(none.attempts * none.cap_ms < 30_000);
        let mut before = none.deadline_s;
        for (outage, left) in
            [("fixed 60s", 59.9), ("exp 60s", 400.0), ("pareto 30s 1.5 1h", 3_000.0)]
        {
            let sized = wish(100, outage, 1e-3).size();
            assert!(sized.outage_s > left && sized.deadline_s as f64 > sized.outage_s);
            assert!(sized.deadline_s as f64 <= 1.6 * sized.outage_s + 30.0, "{sized:?}");
            assert!(sized.deadline_s > before);
            before = sized.deadline_s;
        }
    }

    #[test]
    fn backoffs_are_round() {
        let rounded = [0.5, 1.0, 9.0, 49.9, 1_428.0, 20_000.0].map(round_down);
        assert_eq!(rounded, [1, 1, 5, 20, 1_000, 20_000]);
    }
}
