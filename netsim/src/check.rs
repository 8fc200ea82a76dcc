//! Checkers outside the code under test. They see what a client asked for, what became durable,
//! what left a node and what reached it, and hold it against the rules.
//!
//! They share the record and wire codecs with the core, and none of its machines: admissibility,
//! governed key and change of an obligation come from the [`Spec`] the workload wrote.

mod batch;
mod cells;
mod commit;
mod entries;
mod finish;
mod observe;
mod protect;
mod release;
mod room;
mod told;

use crate::disk::SimStore;
use bytes::Bytes;
use entries::{Entries, Hashed};
use proto::ack::AckStatus;
use proto::id::{AgentId, GovernedKey, ObligationId};
use proto::obligation::Obligation;
use proto::polarity::Change;
use proto::record::{Cell, Role, Terminal};
use proto::settings::WeightBounds;
use proto::step::SessionId;
use proto::store::Table;
use proto::time::Time;
use room::Flights;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use finish::LastLook;

/// What kind of promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// The core panicked or gave its store up.
    Crash,
    /// Something that must happen did not, in time.
    Liveness,
    /// Something that must not happen did.
    Safety,
}

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The rule, such as `AB-3`.
    pub rule: &'static str,
    /// Its class.
    pub class: Class,
    /// When, in world time.
    pub at: u64,
    /// Which node.
    pub node: usize,
    /// What was seen.
    pub detail: String,
}

/// What the workload knows of an obligation it asks for.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The node that issues it.
    pub issuer: usize,
    /// Its id.
    pub id: ObligationId,
    /// The node that must apply it.
    pub target: usize,
    /// Its governed key.
    pub key: GovernedKey,
    /// What applying it changes.
    pub change: Change,
    /// AC-1, by the workload's own judgement.
    pub admissible: bool,
    /// Whether an external handler applies it.
    pub external: bool,
}

/// What the checkers are told of a run.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Largest difference between two clocks, in milliseconds.
    pub skew_ms: u64,
    /// Bounds of weights.
    pub weights: WeightBounds,
    /// How late a terminal may become durable on a node that was up all the while.
    pub late_ms_max: u64,
    /// After healing, how long a prompt receiver may take to be heard.
    pub settle_ms_max: u64,
    /// Whether every receiver is prompt: nothing rate-limited, deferred or out of budget.
    pub prompt: bool,
    /// How long outcomes are kept.
    pub retention_ms: u64,
    /// Outcomes kept at most.
    pub outcomes_max: u64,
    /// Outcomes a busy node may keep above that, until it gets round to it.
    pub outcomes_slack: u64,
    /// Obligations a node may have pending, in all and to one peer.
    pub pending_max: usize,
    /// The same, to one peer.
    pub pending_per_peer_max: usize,
    /// Offers in flight of a session.
    pub window: usize,
    /// Bytes of the same, unless one alone is larger.
    pub window_bytes: usize,
}

/// One obligation as seen from outside.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) spec: Spec,
    /// Number of its transfer, while it is durably pending.
    pending: Option<u64>,
    issued_at: u64,
    deadline_at: Option<Time>,
    max_retries: u32,
    retries: u32,
    terminal: Option<Terminal>,
    ended_at: u64,
    /// Its outcome was pruned: the same id is new again.
    forgotten: bool,
    /// Its ledger entry was pruned.
    ledger_gone: bool,
    /// How often it was issued anew.
    lives: u32,
    escalations: u32,
    /// The principal has acknowledged its escalation, or is about to.
    witnessed: bool,
    late_items: u32,
    safe_weights: u32,
    offers: u32,
    /// The session it is in flight on and its bytes, as far as that can be told from outside.
    flies: Option<(SessionId, usize)>,
    /// It was deferred, refused or recovered: whether it is in flight cannot be told.
    flies_unseen: bool,
    /// Number of the commit of its last attempt.
    attempted_in: u64,
    /// Sessions of its issuer with its target that came or went while it was pending.
    repeats: u32,
    /// What the receiver's ledger says, or said.
    ledger: Option<AckStatus>,
    /// Until when the ledger must keep it, by the receiver's clock.
    ledger_until: Option<Time>,
    effects: u32,
    calls: u32,
    /// Of these, before it was issued anew.
    calls_before: u32,
    /// An effect, ours or external, not before the deadline.
    late_effect: bool,
    pub(crate) seen: observe::Seen,
}

impl Entry {
    pub(crate) const fn terminal(&self) -> Option<Terminal> {
        self.terminal
    }

    /// Retries made, as far as they are durable.
    #[cfg(feature = "node")]
    pub(crate) const fn retries(&self) -> u32 {
        self.retries
    }

    /// When it was durably issued, when it ended, and its deadline; none of what has not ended.
    #[cfg(feature = "node")]
    pub(crate) fn times(&self) -> Option<(u64, u64, Time)> {
        self.terminal.and(self.deadline_at).map(|at| (self.issued_at, self.ended_at, at))
    }

    pub(crate) const fn custody(&self) -> bool {
        self.pending.is_some() || self.terminal.is_some()
    }

    /// Its issuer knows nothing of it any more; its receiver still may.
    fn forget(&mut self) {
        (self.terminal, self.deadline_at) = (None, None);
        (self.retries, self.offers, self.repeats) = (0, 0, 0);
        (self.escalations, self.late_items, self.witnessed) = (0, 0, false);
        (self.flies, self.flies_unseen) = (None, false);
        self.lives += 1;
        self.calls_before = self.calls;
    }

    /// Whether its receiver has applied it, in this life of its id.
    fn applied_now(&self) -> bool {
        self.ledger == Some(AckStatus::Applied) && !(self.ledger_gone && self.lives > 1)
    }

    pub(crate) const fn effects(&self) -> u32 {
        self.effects
    }

    pub(crate) const fn offers(&self) -> u32 {
        self.offers
    }

    pub(crate) const fn ledger(&self) -> Option<AckStatus> {
        self.ledger
    }

    pub(crate) const fn ended_at(&self) -> u64 {
        self.ended_at
    }

    pub(crate) const fn deadline_at(&self) -> Option<Time> {
        self.deadline_at
    }
}

#[derive(Debug)]
struct NodeView {
    name: AgentId,
    up_since: u64,
    down: bool,
    starts: u32,
    entries: Entries,
    nums: BTreeMap<u64, ObligationId>,
    /// `(AgentId, key)` of cells, as their store key.
    cells: Hashed<Bytes, Cell>,
    /// Offers that reached it: whose, and which obligation; none for noise.
    offered: Hashed<(SessionId, u64), Option<(usize, u32)>>,
    intents: Hashed<Bytes, ()>,
    /// The last sessions that came or went: when, and with whom.
    sessions: VecDeque<(u64, usize)>,
    /// Sessions whose offers in flight can be counted from outside.
    flights: BTreeMap<SessionId, Flights>,
    /// Commits so far.
    commits: u64,
    /// Durably pending transfers, by target.
    pending_to: BTreeMap<usize, BTreeSet<u64>>,
    /// Escalations in the inbox, by number.
    inbox: BTreeMap<u64, ObligationId>,
    /// Escalated obligations it was told are applied, and has not filed.
    unfiled: BTreeMap<ObligationId, u64>,
}

/// The checkers of one run.
#[derive(Debug)]
pub struct Checker {
    bounds: Bounds,
    nodes: Vec<NodeView>,
    by_name: BTreeMap<AgentId, usize>,
    healed_at: Option<u64>,
    violations: Vec<Violation>,
    trace: u64,
}

/// Violations kept; the first is the one to look at.
const VIOLATIONS_MAX: usize = 16;
/// Any odd number spreads a word over a hash; this one is the golden ratio's.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Sessions of a node remembered.
const SESSIONS_MAX: usize = 64;

impl Checker {
    /// Checkers for nodes of these names.
    #[must_use]
    pub fn new(bounds: Bounds, names: impl IntoIterator<Item = AgentId>) -> Self {
        let nodes: Vec<NodeView> = names
            .into_iter()
            .map(|name| NodeView {
                name,
                up_since: 0,
                down: false,
                starts: 0,
                entries: Entries::default(),
                nums: BTreeMap::new(),
                cells: Hashed::default(),
                offered: Hashed::default(),
                intents: Hashed::default(),
                sessions: VecDeque::new(),
                flights: BTreeMap::new(),
                commits: 0,
                pending_to: BTreeMap::new(),
                inbox: BTreeMap::new(),
                unfiled: BTreeMap::new(),
            })
            .collect();
        let by_name = nodes.iter().enumerate().map(|(n, node)| (node.name.clone(), n)).collect();
        Self { bounds, nodes, by_name, healed_at: None, violations: Vec::new(), trace: 0 }
    }

    /// What was broken so far.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// A hash over everything seen: equal for equal runs (DT-1).
    #[must_use]
    pub const fn trace(&self) -> u64 {
        self.trace
    }

    /// A client asks `spec.issuer` for an obligation. May be said again.
    pub fn asked(&mut self, spec: Spec) {
        let Some(node) = self.nodes.get_mut(spec.issuer) else { return };
        let id = spec.id.clone();
        node.entries.add(&id, || Entry {
            spec,
            pending: None,
            issued_at: 0,
            deadline_at: None,
            max_retries: 0,
            retries: 0,
            terminal: None,
            ended_at: 0,
            forgotten: false,
            ledger_gone: false,
            lives: 1,
            escalations: 0,
            witnessed: false,
            late_items: 0,
            safe_weights: 0,
            offers: 0,
            flies: None,
            flies_unseen: false,
            attempted_in: 0,
            repeats: 0,
            ledger: None,
            ledger_until: None,
            effects: 0,
            calls: 0,
            calls_before: 0,
            late_effect: false,
            seen: observe::Seen::default(),
        });
    }

    /// A node is up again, or for the first time.
    pub fn up(&mut self, at: u64, node: usize) {
        self.mix(at, node, b"up");
        if let Some(node) = self.nodes.get_mut(node) {
            node.up_since = at;
            node.down = false;
            node.starts += 1;
            node.offered.clear();
            // The attempt under way when the node went down may be repeated.
            for id in node.nums.values() {
                if let Some(entry) = node.entries.get_mut(id.as_str()) {
                    entry.repeats += 1;
                    entry.flies_unseen = true;
                }
            }
            node.flights.clear();
            node.unfiled.clear();
        }
    }

    /// A node stands still until world time `until`.
    pub fn stalled(&mut self, node: usize, until: u64) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.up_since = node.up_since.max(until);
        }
    }

    /// A session of `node` with `peer` came or went: pending offers may be repeated once.
    pub fn session(&mut self, at: u64, node: usize, peer: usize, session: SessionId, up: bool) {
        self.mix(at, node, b"session");
        let Some(node) = self.nodes.get_mut(node) else { return };
        node.session_flights(peer, session, up);
        node.sessions.push_back((at, peer));
        if node.sessions.len() > SESSIONS_MAX {
            node.sessions.pop_front();
        }
        for id in node.pending_to.get(&peer).into_iter().flatten().filter_map(|n| node.nums.get(n))
        {
            if let Some(entry) = node.entries.get_mut(id.as_str()) {
                entry.repeats += 1;
            }
        }
    }

    /// Offers reached `node` on `session`.
    pub fn offered(
        &mut self,
        node: usize,
        peer: usize,
        session: SessionId,
        first_ref: u64,
        items: &[Bytes],
    ) {
        for (reference, item) in (first_ref..).zip(items) {
            let number = |id| self.nodes.get(peer)?.entries.number(id);
            let named = Obligation::id_of(item).and_then(number).map(|number| (peer, number));
            if let Some(view) = self.nodes.get_mut(node) {
                view.offered.insert((session, reference), named);
            }
        }
    }

    /// The external system behind `node` had the effect of an obligation `issuer` issued.
    pub fn called(&mut self, at: u64, node: usize, issuer: usize, id: &ObligationId, clock: Time) {
        let mut broken = None;
        if let Some(entry) = self.entry(issuer, id) {
            entry.calls += 1;
            entry.seen.effect_at.get_or_insert(at);
            if entry.calls > 1 {
                broken =
                    Some(format!("the external effect of {id} happened {} times", entry.calls));
            }
            entry.late_effect |= entry.deadline_at.is_some_and(|deadline| clock >= deadline);
        }
        if let Some(detail) = broken {
            self.breach("AB-3", Class::Safety, at, node, detail);
        }
    }

    /// A principal is about to acknowledge an escalation of `node`.
    pub fn acknowledged(&mut self, node: usize, id: &ObligationId) {
        if let Some(entry) = self.entry(node, id) {
            entry.witnessed = true;
        }
    }

    /// All links and nodes are well from now on.
    pub fn healed(&mut self, at: u64) {
        self.healed_at = Some(at);
    }

    pub(crate) const fn healed_at(&self) -> Option<u64> {
        self.healed_at
    }

    /// Something broke outside the rules below, such as a panic or a damaged read.
    pub fn breach(
        &mut self,
        rule: &'static str,
        class: Class,
        at: u64,
        node: usize,
        detail: String,
    ) {
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { rule, class, at, node, detail });
        }
    }

    /// A node crashed, and unsynced writes may be gone: its state is what its store says.
    pub fn rolled_back(&mut self, node: usize, store: &SimStore) {
        let Some(view) = self.nodes.get_mut(node) else { return };
        view.down = true;
        view.cells = store
            .iter(Table::Cell)
            .filter_map(|(key, value)| {
                Some((Bytes::copy_from_slice(key), Cell::decode(value).ok()?))
            })
            .collect();
    }

    /// Up to `limit` pending obligations of `node` to `target`.
    pub(crate) fn pending_of(&self, node: usize, target: usize, limit: usize) -> Vec<ObligationId> {
        let Some(view) = self.nodes.get(node) else { return Vec::new() };
        let nums = view.pending_to.get(&target).into_iter().flatten();
        nums.filter_map(|num| view.nums.get(num)).take(limit).cloned().collect()
    }

    /// Entries of all nodes.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.nodes.iter().flat_map(|node| node.entries.values())
    }

    pub(crate) fn entry_of(&self, issuer: usize, id: &str) -> Option<&Entry> {
        self.nodes.get(issuer)?.entries.get(id)
    }

    fn entry(&mut self, issuer: usize, id: &ObligationId) -> Option<&mut Entry> {
        self.nodes.get_mut(issuer)?.entries.get_mut(id.as_str())
    }

    pub(crate) fn mix(&mut self, at: u64, node: usize, bytes: &[u8]) {
        let mut hash = self.trace ^ at.rotate_left(32) ^ node as u64;
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            hash = (hash.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(ODD);
        }
        let rest = rest.iter().fold(1, |word, byte| word << 8 | u64::from(*byte));
        self.trace = proto::backoff::mix(hash ^ rest);
    }
}

/// Whether a store key is that of a cell of this role, agent and governed key.
pub(crate) fn is_cell_of(at: &[u8], role: Role, agent: &AgentId, key: &GovernedKey) -> bool {
    proto::record::split_cell_key(at)
        .is_some_and(|named| named.0 == role && named.1 == *agent && named.3 == *key)
}
