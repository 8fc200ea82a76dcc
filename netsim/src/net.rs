//! The simulated network: what becomes of a frame between two nodes.

use crate::options::Options;
use crate::scenario::LinkOf;
use link::{Fate, Link, LinkModel};
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

/// What becomes of a packet. Times are milliseconds from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    /// It does not arrive, or with bits flipped, which its AEAD notices.
    Lost,
    /// It arrives, maybe twice.
    Arrives { after: u64, again: Option<u64> },
    /// It arrives with bits flipped, and nobody notices below the frames.
    Damaged { after: u64, bits: u64 },
}

/// Of this many packets with bits flipped one gets past the AEAD, so that decoders see some.
const DAMAGE_SEEN_ONE_IN: u64 = 16;

/// One direction: its model and its state.
#[derive(Debug)]
struct Way {
    model: LinkModel,
    /// What it is unless a fault changed it.
    own: LinkModel,
    link: Link,
}

/// All links. Directions are `(from, to)`, by node number.
#[derive(Debug)]
pub(crate) struct SimNet {
    seed: u64,
    /// Nodes and relay.
    nodes: usize,
    /// What a direction is unless it is in `special`.
    common: LinkModel,
    special: Vec<LinkOf>,
    healed: bool,
    /// Those that were used: most pairs of a large world never are.
    ways: BTreeMap<(usize, usize), Way>,
    cuts: BTreeMap<(usize, usize), Cut>,
    /// Directions to an address that is no more.
    astray: BTreeMap<(usize, usize), Cut>,
    /// Frames of the direction to lose next, for story tests.
    pub(crate) drop_next: BTreeMap<(usize, usize), u32>,
    /// The same, to duplicate.
    pub(crate) duplicate_next: BTreeMap<(usize, usize), u32>,
}

/// A link without faults: its delays and its bandwidth are what they were.
fn well(own: &LinkModel) -> LinkModel {
    let LinkModel { delay, bytes_per_second, queue, .. } = own.clone();
    LinkModel { delay, bytes_per_second, queue, ..LinkModel::default() }
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
        Self {
            seed: options.seed,
            nodes: options.nodes + usize::from(options.relay.is_some()),
            common: options.link.clone(),
            special: options.links.clone(),
            healed: false,
            ways: BTreeMap::new(),
            cuts: BTreeMap::new(),
            astray: BTreeMap::new(),
            drop_next: BTreeMap::new(),
            duplicate_next: BTreeMap::new(),
        }
    }

    fn way(&mut self, from: usize, to: usize) -> &mut Way {
        let Self { seed, nodes, common, special, healed, .. } = self;
        self.ways.entry((from, to)).or_insert_with(|| {
            let special = special.iter().find(|way| (way.from, way.to) == (from, to));
            let own = special.map_or(&*common, |way| &way.link).clone();
            let model = if *healed { well(&own) } else { own.clone() };
            Way { own, model, link: Link::new(*seed, 100 + (from * *nodes + to) as u64) }
        })
    }

    /// Replaces what a direction does to frames.
    pub(crate) fn set(&mut self, from: usize, to: usize, model: LinkModel) {
        self.way(from, to).model = model;
    }

    /// Makes a direction what it was before a fault changed it.
    pub(crate) fn reset(&mut self, from: usize, to: usize) {
        let way = self.way(from, to);
        way.model = way.own.clone();
    }

    /// No more loss, duplication, corruption or cuts; delays and bandwidth are what they were.
    pub(crate) fn heal(&mut self) {
        self.healed = true;
        for way in self.ways.values_mut() {
            way.model = well(&way.own);
        }
        self.cuts.clear();
        self.astray.clear();
    }

    pub(crate) fn cut(&mut self, from: usize, to: usize, since: u64, until: u64) {
        let cut = self.cuts.entry((from, to)).or_insert(Cut { since, until });
        if cut.until <= since {
            cut.since = since;
        }
        cut.until = cut.until.max(until);
    }

    /// What `from` sends goes to an old address of `to`, until it hears from the new one.
    pub(crate) fn goes_astray(&mut self, from: usize, to: usize, since: u64, until: u64) {
        self.astray.insert((from, to), Cut { since, until });
    }

    /// `from` has heard from `to`, and knows its address.
    pub(crate) fn found(&mut self, from: usize, to: usize) {
        if !self.astray.is_empty() {
            self.astray.remove(&(from, to));
        }
    }

    pub(crate) fn mend(&mut self, from: usize, to: usize) {
        self.cuts.remove(&(from, to));
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize, now: u64) -> bool {
        [&self.cuts, &self.astray]
            .into_iter()
            .any(|all| !all.is_empty() && all.get(&(from, to)).is_some_and(|cut| cut.until > now))
    }

    /// Since when one of the two directions is cut, if one is.
    pub(crate) fn cut_since(&self, a: usize, b: usize, now: u64) -> Option<u64> {
        [(a, b), (b, a)]
            .into_iter()
            .flat_map(|direction| [self.cuts.get(&direction), self.astray.get(&direction)])
            .flatten()
            .filter(|cut| cut.until > now)
            .map(|cut| cut.since)
            .min()
    }

    /// The longest a packet takes.
    pub(crate) fn delay_max(&mut self, from: usize, to: usize) -> u64 {
        self.way(from, to).model.delay.max().ms()
    }

    /// Whether the next frame of a direction is to vanish, by the wish of a story.
    pub(crate) fn vanishes(&mut self, from: usize, to: usize) -> bool {
        !self.drop_next.is_empty() && takes_one(&mut self.drop_next, (from, to))
    }

    /// What becomes of a packet of `len` bytes sent at `now`.
    pub(crate) fn packet(&mut self, from: usize, to: usize, now: u64, len: usize) -> Packet {
        let twice =
            !self.duplicate_next.is_empty() && takes_one(&mut self.duplicate_next, (from, to));
        let cut = self.is_cut(from, to, now);
        let way = self.way(from, to);
        let up = |micros: link::Micros| micros.0.div_ceil(1_000);
        match way.link.pass(now * 1_000, len, &way.model) {
            Fate::Arrives { .. } if cut => Packet::Lost,
            Fate::Arrives { after, corrupt: Some(bits), .. } => {
                if bits.is_multiple_of(DAMAGE_SEEN_ONE_IN) {
                    Packet::Damaged { after: up(after), bits: bits / DAMAGE_SEEN_ONE_IN }
                } else {
                    Packet::Lost
                }
            }
            Fate::Arrives { after, again, corrupt: None } => {
                let after = up(after);
                Packet::Arrives { after, again: again.map(up).or(twice.then_some(after)) }
            }
            Fate::Dropped(_) => Packet::Lost,
        }
    }
}
