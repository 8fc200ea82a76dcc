//! Statistics of runs: shares with their intervals, and distributions of times.
//!
//! Shares are pooled over seeds. Obligations of one run share its faults, so they are not
//! independent; [`Share::pooled`] takes the spread between seeds into account.

use hdrhistogram::Histogram;

/// Two-sided quantile of the normal distribution for 95 %.
pub const Z_95: f64 = 1.959_963_984_540_054;
/// The same for 99 %.
pub const Z_99: f64 = 2.575_829_303_548_901;

/// Significant digits of a distribution.
const DIGITS: u8 = 3;

/// An interval of a share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end, from 0.
    pub low: f64,
    /// Upper end, up to 1.
    pub high: f64,
}

/// The Wilson score interval of `hits` in `n` at the normal quantile `z`. Of nothing all is
/// possible: 0 to 1. (Wilson, J. Am. Stat. Assoc. 22, 1927.)
#[must_use]
pub fn wilson(hits: f64, n: f64, z: f64) -> Interval {
    if n <= 0.0 {
        return Interval { low: 0.0, high: 1.0 };
    }
    let (p, z2) = (hits / n, z * z);
    let centre = p + z2 / (2.0 * n);
    let half = z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z2 / n;
    // At the ends of the range the formula is exact up to rounding.
    let low = if hits <= 0.0 { 0.0 } else { ((centre - half) / scale).max(0.0) };
    let high = if hits >= n { 1.0 } else { ((centre + half) / scale).min(1.0) };
    Interval { low, high }
}

/// What a share is below, with 95 %, when it was seen 0 times in `n`: the rule of three.
#[must_use]
pub fn below_if_none(n: u64) -> f64 {
    if n == 0 { 1.0 } else { (3.0 / n as f64).min(1.0) }
}

/// So many of so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Those counted.
    pub hits: u64,
    /// All.
    pub n: u64,
}

impl Share {
    /// As a fraction; 0 of nothing.
    #[must_use]
    pub fn rate(self) -> f64 {
        if self.n == 0 { 0.0 } else { self.hits as f64 / self.n as f64 }
    }

    /// The interval if all were independent.
    #[must_use]
    pub fn interval(self, z: f64) -> Interval {
        wilson(self.hits as f64, self.n as f64, z)
    }

    /// The sum of the shares of several seeds, and its interval by the spread between them: Wilson's
    /// on the effective number, which is the number over the design effect (Kish), at least 1.
    #[must_use]
    pub fn pooled(seeds: &[Self], z: f64) -> (Self, Interval) {
        let total = seeds.iter().fold(Self::default(), |sum, seed| Self {
            hits: sum.hits + seed.hits,
            n: sum.n + seed.n,
        });
        let effect = design_effect(seeds, total);
        let n = total.n as f64 / effect;
        (total, wilson(total.rate() * n, n, z))
    }
}

/// How much wider than independent obligations the seeds spread: the variance of the pooled rate
/// by seeds, over the binomial one.
fn design_effect(seeds: &[Share], total: Share) -> f64 {
    let (p, k) = (total.rate(), seeds.iter().filter(|seed| seed.n > 0).count() as f64);
    let binomial = p * (1.0 - p) * total.n as f64;
    if k < 2.0 || binomial <= 0.0 {
        return 1.0;
    }
    let residual = |seed: &Share| (seed.hits as f64 - p * seed.n as f64).powi(2);
    let between = k / (k - 1.0) * seeds.iter().map(residual).sum::<f64>();
    (between / binomial).max(1.0)
}

/// A distribution of times, within a thousandth.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "a constant the constructor takes")]
        Self(Histogram::new(DIGITS).expect("up to five digits"))
    }
}

impl Times {
    /// Adds one, in microseconds.
    pub fn record(&mut self, us: u64) {
        // It grows as needed, so that nothing is out of its range.
        let recorded = self.0.record(us);
        debug_assert!(recorded.is_ok());
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &Self) {
        let added = self.0.add(&other.0);
        debug_assert!(added.is_ok());
    }

    /// How many.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The time that a share `quantile` of them stays at or below, in milliseconds; none of none.
    #[must_use]
    pub fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        let us = (self.count() > 0).then(|| self.0.value_at_quantile(quantile))?;
        // The histogram answers with the upper end of a bucket, and never above what it has seen.
        Some(us.min(self.0.max()) as f64 / 1000.0)
    }

    /// The longest, in milliseconds.
    #[must_use]
    pub fn max_ms(&self) -> Option<f64> {
        self.quantile_ms(1.0)
    }

    /// The mean, in milliseconds.
    #[must_use]
    pub fn mean_ms(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.0.mean() / 1000.0)
    }

    /// Shares and times for a curve: for each distinct value its time in milliseconds and the share
    /// at or below it.
    pub fn curve(&self) -> Vec<(f64, f64)> {
        let all = self.count() as f64;
        let mut seen = 0.0;
        self.0
            .iter_recorded()
            .map(|step| {
                seen += step.count_since_last_iteration() as f64;
                (step.value_iterated_to().min(self.0.max()) as f64 / 1000.0, seen / all)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_is_as_in_the_tables() {
        // 10 of 100 at 95 %: 5.52 % to 17.44 % (Newcombe 1998, Stat. Med. 17, method 3).
        let Interval { low, high } = wilson(10.0, 100.0, Z_95);
        assert!((low - 0.0552).abs() < 5e-5 && (high - 0.1744).abs() < 5e-5, "{low} {high}");
        // 81 of 263: 25.53 % to 36.62 %; 0 of 20: 0 to 16.11 % (the same).
        let Interval { low, high } = wilson(81.0, 263.0, Z_95);
        assert!((low - 0.2553).abs() < 5e-5 && (high - 0.3662).abs() < 5e-5, "{low} {high}");
        let Interval { low, high } = wilson(0.0, 20.0, Z_95);
        assert!(low == 0.0 && (high - 0.1611).abs() < 5e-5, "{high}");
        assert_eq!(wilson(20.0, 20.0, Z_99).high, 1.0);
        assert_eq!(wilson(0.0, 0.0, Z_95), Interval { low: 0.0, high: 1.0 });
    }

    #[test]
    fn the_rule_of_three_is_near_the_exact_bound() {
        // Exact: 1 - 0.05^(1/n).
        for n in [100u64, 10_000, 1_000_000] {
            let exact = 1.0 - 0.05f64.powf(1.0 / n as f64);
            assert!((below_if_none(n) / exact - 1.0).abs() < 0.02, "{n}");
        }
    }

    #[test]
    fn seeds_that_differ_widen_the_interval() {
        let alike = [Share { hits: 10, n: 100 }; 20];
        let (total, narrow) = Share::pooled(&alike, Z_95);
        assert_eq!((total, narrow), (Share { hits: 200, n: 2_000 }, total.interval(Z_95)));
        // All or nothing by seed: 20 observations, not 2,000.
        let apart: Vec<Share> =
            (0..20).map(|n| Share { hits: if n % 10 == 0 { 100 } else { 0 }, n: 100 }).collect();
        let (total, wide) = Share::pooled(&apart, Z_95);
        let twenty = wilson(2.0, 20.0, Z_95);
        assert_eq!(total.rate(), 0.1);
        assert!((wide.low - twenty.low).abs() < 0.01 && (wide.high - twenty.high).abs() < 0.02);
    }

    #[test]
    fn times_have_their_quantiles_and_merge() {
        let mut all = Times::default();
        let mut parts = [Times::default(), Times::default()];
        for ms in 1..=1_000u64 {
            all.record(ms * 1_000);
            parts[usize::from(ms % 2 == 0)].record(ms * 1_000);
        }
        let [mut odd, even] = parts;
        odd.merge(&even);
        for quantile in [0.5, 0.99, 0.999, 1.0] {
            let expected = quantile * 1_000.0;
            let seen = all.quantile_ms(quantile).unwrap();
            assert!((seen / expected - 1.0).abs() < 2e-3, "{quantile}: {seen}");
            assert_eq!(odd.quantile_ms(quantile), Some(seen));
        }
        assert_eq!(Times::default().quantile_ms(0.5), None);
        assert_eq!(all.curve().last().map(|(_, share)| *share), Some(1.0));
    }
}
