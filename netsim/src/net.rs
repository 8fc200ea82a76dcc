//! The simulated network: what becomes of a frame between two nodes.

use link::Rng;
use serde::Serialize;
use std::collections::BTreeMap;

/// How frames of a session are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// As QUIC streams: a lost packet is sent again, a frame is lost with its session only.
    Streams,
    /// As datagrams: each frame for itself.
    Datagrams,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LinkModel {
    /// Shortest one-way delay, in milliseconds.
    pub delay_ms_min: u64,
    /// Longest; the spread reorders frames.
    pub delay_ms_max: u64,
    /// Loss, in thousandths.
    pub loss_permille: u32,
    /// Duplication, in thousandths.
    pub duplicate_permille: u32,
}

/// A direction that carries nothing for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    since: u64,
    until: u64,
}

/// All links. Directions are `(from, to)`, by node number.
#[derive(Debug)]
pub(crate) struct SimNet {
    mode: Mode,
    link: LinkModel,
    cuts: BTreeMap<(usize, usize), Cut>,
    rng: Rng,
    /// Frames of the direction to lose next, for story tests.
    pub(crate) drop_next: BTreeMap<(usize, usize), u32>,
    /// The same, to duplicate.
    pub(crate) duplicate_next: BTreeMap<(usize, usize), u32>,
}

fn takes_one(counts: &mut BTreeMap<(usize, usize), u32>, direction: (usize, usize)) -> bool {
    match counts.get_mut(&direction) {
        Some(count) if *count > 0 => {
            *count -= 1;
            true
        }
        _ => false,
    }
}

impl SimNet {
    pub(crate) fn new(mode: Mode, link: LinkModel, rng: Rng) -> Self {
        let cuts = BTreeMap::new();
        Self { mode, link, cuts, rng, drop_next: BTreeMap::new(), duplicate_next: BTreeMap::new() }
    }

    /// No more loss, duplication or cuts.
    pub(crate) fn heal(&mut self) {
        self.link.loss_permille = 0;
        self.link.duplicate_permille = 0;
        self.cuts.clear();
    }

    pub(crate) fn cut(&mut self, from: usize, to: usize, since: u64, until: u64) {
        let cut = self.cuts.entry((from, to)).or_insert(Cut { since, until });
        cut.until = cut.until.max(until);
    }

    pub(crate) fn mend(&mut self, from: usize, to: usize) {
        self.cuts.remove(&(from, to));
    }

    /// Since when one of the two directions is cut, if one is.
    pub(crate) fn cut_since(&self, a: usize, b: usize, now: u64) -> Option<u64> {
        [(a, b), (b, a)]
            .into_iter()
            .filter_map(|direction| self.cuts.get(&direction))
            .filter(|cut| cut.until > now)
            .map(|cut| cut.since)
            .min()
    }

    /// One delay of the link.
    pub(crate) const fn delay(&mut self) -> u64 {
        self.rng.range(self.link.delay_ms_min, self.link.delay_ms_max)
    }

    /// When a frame sent at `now` arrives: never, once or twice.
    pub(crate) fn route(
        &mut self,
        from: usize,
        to: usize,
        now: u64,
        unreliable: bool,
    ) -> (Option<u64>, Option<u64>) {
        let lossy = unreliable || self.mode == Mode::Datagrams;
        if takes_one(&mut self.drop_next, (from, to)) {
            return (None, None);
        }
        let mut at = now + self.delay();
        if let Some(cut) = self.cuts.get(&(from, to)).filter(|cut| cut.until > now) {
            if lossy || cut.until == u64::MAX {
                return (None, None);
            }
            at = cut.until + 2 * self.link.delay_ms_max + self.delay(); // sent again after the cut
        }
        let mut rto = 2 * self.link.delay_ms_max + 10;
        while self.rng.chance(self.link.loss_permille.min(950)) {
            if lossy {
                return (None, None);
            }
            at += rto;
            rto = (rto * 2).min(10_000);
        }
        let twice = takes_one(&mut self.duplicate_next, (from, to))
            || self.rng.chance(self.link.duplicate_permille);
        let again = twice.then(|| at + self.delay());
        (Some(at), again)
    }
}
