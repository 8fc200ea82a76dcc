//! From rounds to figures: which rounds count, and medians of ratios within rounds.

use crate::load::{Duty, Peer, Sample};
use serde::Serialize;

/// A round whose control is further than this from the median control says more of the disk than of
/// what was measured.
pub(crate) const CONTROL_SPREAD: f64 = 0.3;

/// One load of one peer.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) peer: Peer,
    pub(crate) duty: Duty,
    pub(crate) in_flight: usize,
    /// Messages a second offered by an open loop.
    pub(crate) rate: Option<f64>,
    pub(crate) sample: Option<Sample>,
    /// Why there is none.
    pub(crate) error: Option<String>,
    /// CPU of the peer's server while the load ran, as a share of one core.
    pub(crate) server_cpu: Option<f64>,
    pub(crate) argv: Vec<String>,
}

/// Every peer once, with a control between.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Round {
    /// Medians of `append 256 bytes + fdatasync`, in microseconds, over the round.
    pub(crate) controls_us: Vec<f64>,
    pub(crate) control_us: f64,
    /// Our group commit as a share of the raw append ceiling for the same bytes in each sync.
    pub(crate) group_commit: Option<f64>,
    pub(crate) cells: Vec<Cell>,
}

impl Round {
    /// A closed loop's sample.
    pub(crate) fn closed(&self, peer: Peer, duty: Duty, in_flight: usize) -> Option<&Sample> {
        let cell = |cell: &&Cell| {
            (cell.peer, cell.duty, cell.in_flight, cell.rate) == (peer, duty, in_flight, None)
        };
        self.cells.iter().find(cell)?.sample.as_ref()
    }

    /// The open loop's sample.
    pub(crate) fn open(&self, peer: Peer, duty: Duty) -> Option<&Sample> {
        let cell = |cell: &&Cell| (cell.peer, cell.duty) == (peer, duty) && cell.rate.is_some();
        self.cells.iter().find(cell)?.sample.as_ref()
    }

    /// What a peer does at its best window, over several ways to use it.
    pub(crate) fn best(&self, peers: &[Peer], duty: Duty) -> Option<f64> {
        let cells = self
            .cells
            .iter()
            .filter(|cell| peers.contains(&cell.peer) && cell.duty == duty && cell.rate.is_none());
        cells.filter_map(|cell| Some(cell.sample.as_ref()?.per_s)).max_by(f64::total_cmp)
    }
}

/// The middle of figures, by value; between the two middle ones of an even number.
pub(crate) fn median(figures: &[f64]) -> Option<f64> {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    let upper = *figures.get(figures.len() / 2)?;
    if figures.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = figures.get((figures.len() / 2).checked_sub(1)?)?;
    Some(lower.midpoint(upper))
}

/// For each round, whether it counts.
pub(crate) fn kept(controls: &[f64]) -> Vec<bool> {
    let Some(middle) = median(controls) else { return Vec::new() };
    controls.iter().map(|control| (control / middle - 1.0).abs() <= CONTROL_SPREAD).collect()
}

/// A median and its range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) rounds: usize,
}

/// The median over the rounds that have the figure.
pub(crate) fn spread<'a>(
    rounds: impl IntoIterator<Item = &'a Round>,
    figure: impl Fn(&Round) -> Option<f64>,
) -> Option<Spread> {
    Spread::of(rounds.into_iter().filter_map(figure))
}

impl Spread {
    /// Of figures that are numbers. None of nothing.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let all: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
        Some(Self {
            median: median(&all)?,
            min: all.iter().copied().min_by(f64::total_cmp)?,
            max: all.iter().copied().max_by(f64::total_cmp)?,
            rounds: all.len(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn cell(peer: Peer, duty: Duty, in_flight: usize, per_s: f64, p50_us: f64) -> Cell {
        let sample = Sample { per_s, p50_us, p99_us: p50_us * 2.0, ..Sample::default() };
        Cell {
            peer,
            duty,
            in_flight,
            rate: None,
            sample: Some(sample),
            error: None,
            server_cpu: None,
            argv: Vec::new(),
        }
    }

    #[test]
    fn a_median_is_by_value() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(&[2.0]), Some(2.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn a_round_with_another_disk_is_discarded() {
        assert_eq!(kept(&[100.0, 131.0, 100.0, 69.0, 129.0]), [true, false, true, false, true]);
        assert_eq!(kept(&[100.0]), [true]);
        assert!(kept(&[]).is_empty());
    }

    #[test]
    fn ratios_are_taken_within_a_round_and_not_of_medians() {
        let round = |ours: f64, theirs: f64| Round {
            cells: vec![
                cell(Peer::Abhyasa, Duty::Accepted, 64, ours, 1.0),
                cell(Peer::Nats, Duty::Accepted, 64, theirs, 1.0),
            ],
            ..Round::default()
        };
        // Medians: 20 / 10 = 2. Within the rounds: 1, 2.5, 3.
        let rounds = [round(10.0, 10.0), round(20.0, 8.0), round(60.0, 20.0)];
        let per_s = |round: &Round, peer| Some(round.closed(peer, Duty::Accepted, 64)?.per_s);
        let ratio =
            spread(&rounds, |round| Some(per_s(round, Peer::Abhyasa)? / per_s(round, Peer::Nats)?));
        assert_eq!(ratio, Some(Spread { median: 2.5, min: 1.0, max: 3.0, rounds: 3 }));
    }

    #[test]
    fn a_round_without_the_figure_is_no_zero() {
        let with =
            Round { cells: vec![cell(Peer::Nats, Duty::Applied, 1, 7.0, 1.0)], ..Round::default() };
        let rounds = [Round::default(), with];
        let found = spread(&rounds, |round| round.best(&[Peer::Nats], Duty::Applied));
        assert_eq!(found, Some(Spread { median: 7.0, min: 7.0, max: 7.0, rounds: 1 }));
        assert_eq!(spread(&rounds, |round| round.best(&[Peer::Redis], Duty::Applied)), None);
    }

    #[test]
    fn the_best_window_is_over_all_ways_and_leaves_out_the_open_loop() {
        let mut open = cell(Peer::Postgres, Duty::Applied, 64, 1e9, 1.0);
        open.rate = Some(1e9);
        let round = Round {
            cells: vec![
                cell(Peer::Postgres, Duty::Applied, 64, 5.0, 1.0),
                cell(Peer::PostgresBatch, Duty::Applied, 512, 9.0, 1.0),
                cell(Peer::PostgresBatch, Duty::Accepted, 512, 99.0, 1.0),
                open,
            ],
            ..Round::default()
        };
        let both = [Peer::Postgres, Peer::PostgresBatch];
        assert_eq!(round.best(&both, Duty::Applied), Some(9.0));
    }
}
