//! From rounds of parts to the points of curves, and how a curve goes.

use crate::figures::{Spread, median};
use serde::Serialize;
use std::collections::BTreeMap;

/// Figures of one round, by name.
pub(super) type Named = BTreeMap<String, f64>;

/// Fewer pending than these take less memory than what a node writes and frees by the way.
const RESOLVED_MIN: u64 = 100_000;
/// History from which on a store counts as aged, in bytes.
pub(super) const AGED_BYTES: f64 = 1e8;

/// The curves there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Curve {
    /// By obligations pending to a peer that is away.
    Pending,
    /// By connected peers.
    Peers,
    /// By bytes of a payload.
    Payload,
    /// By what was written before.
    Age,
}

impl Curve {
    pub(super) const ALL: [Self; 4] = [Self::Pending, Self::Peers, Self::Payload, Self::Age];

    /// As on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Peers => "peers",
            Self::Payload => "payload",
            Self::Age => "age",
        }
    }
}

/// One point of a curve.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    pub(super) at: u64,
    /// Over the rounds that have the figure.
    pub(super) figures: BTreeMap<String, Spread>,
    pub(super) rounds: Vec<Named>,
}

impl Point {
    pub(super) fn new(at: u64, rounds: Vec<Named>) -> Self {
        let names = rounds.iter().flat_map(BTreeMap::keys);
        let of =
            |name: &String| Spread::of(rounds.iter().filter_map(|round| round.get(name).copied()));
        let figures = names.filter_map(|name| Some((name.clone(), of(name)?))).collect();
        Self { at, figures, rounds }
    }

    pub(super) fn median(&self, name: &str) -> Option<f64> {
        Some(self.figures.get(name)?.median)
    }
}

/// A point that was not measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct LeftOut {
    pub(super) curve: Curve,
    pub(super) at: u64,
    pub(super) why: String,
}

/// Memory of the pending set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Memory {
    /// Bytes that one more takes, between the two largest points, as filled.
    pub(super) bytes_per_pending: Option<f64>,
    /// And between the smallest and the largest, after a restart.
    pub(super) bytes_per_pending_restarted: Option<f64>,
}

/// The bytes that a pending obligation takes at one point, if they can be told.
pub(super) fn bytes_per_pending(point: &Point) -> Option<f64> {
    if point.at < RESOLVED_MIN {
        return None;
    }
    let grown = point.median("rss_filled_bytes")? - point.median("rss_empty_bytes")?;
    Some(grown / point.at as f64)
}

pub(super) fn memory(points: &[Point]) -> Memory {
    let resolved: Vec<&Point> = points.iter().filter(|point| point.at >= RESOLVED_MIN).collect();
    let grown = |p: &Point| Some(p.median("rss_filled_bytes")? - p.median("rss_empty_bytes")?);
    let restarted = |p: &Point| p.median("rss_restarted_bytes");
    let between = |a: Option<&Point>, b: Option<&Point>, of: &dyn Fn(&Point) -> Option<f64>| {
        let (a, b) = (a?, b?);
        (a.at < b.at).then(|| Some((of(b)? - of(a)?) / (b.at - a.at) as f64))?
    };
    let last = resolved.last().copied();
    let before = resolved.len().checked_sub(2).and_then(|nth| resolved.get(nth).copied());
    Memory {
        bytes_per_pending: between(before, last, &grown),
        bytes_per_pending_restarted: between(points.first(), last, &restarted),
    }
}

/// How throughput goes with age.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Trend {
    pub(super) slices: usize,
    pub(super) history_bytes: f64,
    pub(super) tables_compacted: f64,
    /// Whether so much was written, and compacted, that the store counts as aged.
    pub(super) aged: bool,
    /// Median of the last quarter of the slices over that of the first.
    pub(super) last_over_first: f64,
    /// The same of the fsync control's speed: what the disk did meanwhile.
    pub(super) disk_last_over_first: f64,
    /// Obligations a second that each gigabyte of history adds, by least squares.
    pub(super) slope_per_gb: f64,
    /// The same as a share of the mean.
    pub(super) slope_share_per_gb: f64,
}

/// None of fewer than four slices.
pub(super) fn trend(slices: &[Named]) -> Option<Trend> {
    let of = |name: &str| -> Vec<f64> {
        slices.iter().filter_map(|slice| slice.get(name).copied()).collect()
    };
    let (per_s, history) = (of("applied_per_s"), of("history_bytes"));
    let last = slices.last()?;
    let (history_bytes, tables_compacted) =
        (*last.get("history_bytes")?, *last.get("tables_compacted")?);
    let points: Vec<(f64, f64)> =
        history.iter().map(|bytes| bytes / 1e9).zip(per_s.iter().copied()).collect();
    let slope_per_gb = slope(&points)?;
    let mean = per_s.iter().sum::<f64>() / per_s.len() as f64;
    Some(Trend {
        slices: slices.len(),
        history_bytes,
        tables_compacted,
        aged: history_bytes >= AGED_BYTES && tables_compacted > 0.0,
        last_over_first: quarters(&per_s)?,
        // Longer syncs are a slower disk.
        disk_last_over_first: 1.0 / quarters(&of("control_us"))?,
        slope_per_gb,
        slope_share_per_gb: slope_per_gb / mean,
    })
}

/// The median of the last quarter over that of the first. None of fewer than four.
fn quarters(figures: &[f64]) -> Option<f64> {
    let quarter = figures.len() / 4;
    if quarter == 0 {
        return None;
    }
    let first = median(figures.get(..quarter)?)?;
    Some(median(figures.get(figures.len() - quarter..)?)? / first)
}

/// The slope of the line with the least squares. None if all are at one place.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(&|p| p.0), mean(&|p| p.1));
    let over: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    let under: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
    (under > 0.0).then_some(over / under)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::scale) fn named(all: &[(&str, f64)]) -> Named {
        all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn a_point_has_each_figure_over_the_rounds_that_have_it() {
        let rounds = vec![
            named(&[("a", 3.0), ("filled", 9.0)]),
            named(&[("a", 1.0)]),
            named(&[("a", 2.0), ("nan", f64::NAN)]),
        ];
        let point = Point::new(10, rounds);
        let a = Spread { median: 2.0, min: 1.0, max: 3.0, rounds: 3 };
        assert_eq!(point.figures["a"], a);
        assert_eq!(point.figures["filled"].rounds, 1);
        assert_eq!(point.median("nan"), None);
    }

    fn filled(at: u64, empty: f64, full: f64, restarted: f64) -> Point {
        let all = [
            ("rss_empty_bytes", empty),
            ("rss_filled_bytes", full),
            ("rss_restarted_bytes", restarted),
        ];
        Point::new(at, vec![named(&all)])
    }

    #[test]
    fn memory_of_one_pending_is_a_difference_of_points() {
        let points = [
            filled(1_000, 50e6, 51e6, 40e6),
            filled(100_000, 50e6, 130e6, 70e6),
            filled(1_000_000, 50e6, 490e6, 339.7e6),
        ];
        assert_eq!(bytes_per_pending(&points[0]), None);
        assert_eq!(bytes_per_pending(&points[1]), Some(800.0));
        assert_eq!(bytes_per_pending(&points[2]), Some(440.0));
        let memory = memory(&points);
        // What the first hundred thousand take once does not count for each.
        assert_eq!(memory.bytes_per_pending, Some(400.0));
        assert_eq!(memory.bytes_per_pending_restarted, Some(300.0));
        assert_eq!(super::memory(&points[..2]).bytes_per_pending, None);
        assert_eq!(super::memory(&[]), Memory::default());
    }

    fn slices(per_s: impl Fn(usize) -> f64, compacted: f64) -> Vec<Named> {
        let slice = |nth: usize| {
            named(&[
                ("applied_per_s", per_s(nth)),
                ("history_bytes", (nth + 1) as f64 * 5e8),
                ("tables_compacted", compacted),
                ("control_us", 100.0),
            ])
        };
        (0..20).map(slice).collect()
    }

    #[test]
    fn a_flat_curve_has_no_slope_and_a_falling_one_has() {
        let flat = trend(&slices(|_| 40_000.0, 3.0)).unwrap();
        assert_eq!((flat.last_over_first, flat.disk_last_over_first), (1.0, 1.0));
        assert!(flat.slope_per_gb.abs() < 1e-6 && flat.aged);
        // 100 a second less with each slice of half a gigabyte.
        let falling = trend(&slices(|nth| 40_000.0 - 100.0 * nth as f64, 3.0)).unwrap();
        assert!((falling.slope_per_gb + 200.0).abs() < 1e-6, "{falling:?}");
        assert!((falling.slope_share_per_gb + 200.0 / 39_050.0).abs() < 1e-9);
        assert!((falling.last_over_first - 38_300.0 / 39_800.0).abs() < 1e-9);
    }

    #[test]
    fn a_store_without_compactions_is_not_aged() {
        assert!(!trend(&slices(|_| 1.0, 0.0)).unwrap().aged);
        assert_eq!(trend(&slices(|_| 1.0, 1.0)[..3]), None);
        assert_eq!(trend(&[]), None);
    }

    #[test]
    fn points_at_one_place_have_no_slope() {
        assert_eq!(slope(&[(1.0, 2.0), (1.0, 5.0)]), None);
        assert_eq!(slope(&[(0.0, 1.0), (2.0, 5.0)]), Some(2.0));
    }
}
