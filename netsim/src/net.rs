//! The simulated network: what becomes of a frame between two nodes.

use crate::options::Options;
use link::{Fate, Link, LinkModel, Rng};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How frames of a session are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// As QUIC streams: a lost packet is sent again, a frame is lost with its session only.
    Streams,
    /// As datagrams: each frame for itself.
    Datagrams,
}

/// A direction that carries nothing for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    since: u64,
    until: u64,
}

/// What becomes of a frame. Times are milliseconds from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Its packet is lost: a stream sends it again.
    Lost,
    /// It is gone for good, by the wish of a story.
    Gone,
    /// It arrives, maybe twice.
    Arrives { after: u64, again: Option<u64>, corrupt: Option<u64> },
}

/// One direction: its model and its state.
#[derive(Debug)]
struct Way {
    model: LinkModel,
    link: Link,
    /// Delays of handshakes.
    dials: Rng,
}

/// All links. Directions are `(from, to)`, by node number.
#[derive(Debug)]
pub(crate) struct SimNet {
    nodes: usize,
    ways: Vec<Way>,
    cuts: BTreeMap<(usize, usize), Cut>,
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
    pub(crate) fn new(options: &Options) -> Self {
        let nodes = options.nodes;
        let way = |n: usize| {
            let special = options.links.iter().find(|way| way.from * nodes + way.to == n);
            let model = special.map_or(&options.link, |way| &way.link).clone();
            let dials = Rng::new(options.seed, 10_000 + n as u64);
            Way { model, link: Link::new(options.seed, 100 + n as u64), dials }
        };
        Self {
            nodes,
            ways: (0..nodes * nodes).map(way).collect(),
            cuts: BTreeMap::new(),
            drop_next: BTreeMap::new(),
            duplicate_next: BTreeMap::new(),
        }
    }

    fn way(&mut self, from: usize, to: usize) -> Option<&mut Way> {
        self.ways.get_mut(from * self.nodes + to)
    }

    /// Replaces what a direction does to frames.
    pub(crate) fn set(&mut self, from: usize, to: usize, model: LinkModel) {
        if let Some(way) = self.way(from, to) {
            way.model = model;
        }
    }

    /// No more loss, duplication, corruption or cuts; delays and bandwidth stay.
    pub(crate) fn heal(&mut self) {
        for way in &mut self.ways {
            let LinkModel { delay, bytes_per_second, queue, .. } = way.model.clone();
            way.model = LinkModel { delay, bytes_per_second, queue, ..LinkModel::default() };
        }
        self.cuts.clear();
    }

    pub(crate) fn cut(&mut self, from: usize, to: usize, since: u64, until: u64) {
        let cut = self.cuts.entry((from, to)).or_insert(Cut { since, until });
        cut.until = cut.until.max(until);
    }

    pub(crate) fn mend(&mut self, from: usize, to: usize) {
        self.cuts.remove(&(from, to));
    }

    fn is_cut(&self, from: usize, to: usize, now: u64) -> bool {
        !self.cuts.is_empty() && self.cuts.get(&(from, to)).is_some_and(|cut| cut.until > now)
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

    /// How long a stream waits before it sends a lost packet again, the first time.
    pub(crate) fn resend_after(&mut self, from: usize, to: usize) -> u64 {
        self.way(from, to).map_or(0, |way| 2 * way.model.delay.max().ms() + 10)
    }

    /// How long a handshake takes: three flights.
    pub(crate) fn handshake(&mut self, a: usize, b: usize) -> u64 {
        let flights = [(a, b), (b, a), (a, b)];
        flights.into_iter().map(|(from, to)| self.delay(from, to)).sum()
    }

    fn delay(&mut self, from: usize, to: usize) -> u64 {
        let Some(way) = self.way(from, to) else { return 0 };
        way.model.delay.draw(&mut way.dials).ms()
    }

    /// What becomes of a frame of `len` bytes sent at `now`.
    pub(crate) fn route(&mut self, from: usize, to: usize, now: u64, len: usize) -> Route {
        if takes_one(&mut self.drop_next, (from, to)) {
            return Route::Gone;
        }
        let twice = takes_one(&mut self.duplicate_next, (from, to));
        let cut = self.is_cut(from, to, now);
        let Some(way) = self.way(from, to) else { return Route::Lost };
        let up = |micros: link::Micros| micros.0.div_ceil(1_000);
        match way.link.pass(now * 1_000, len, &way.model) {
            Fate::Arrives { after, again, corrupt } if !cut => {
                let after = up(after);
                let again = again.map(up).or(twice.then_some(after));
                Route::Arrives { after, again, corrupt }
            }
            _ => Route::Lost,
        }
    }
}
