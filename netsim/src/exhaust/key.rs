//! What makes two states the same.

use super::exact::Exact;
use super::look::{CustodianDisk, Had, Kept, ReceiverDisk, Seen, remembered};

use super::setup::Setup;
use super::state::{World, number};
use super::wire::{Link, Message};
use crate::disk::SimStore;
use proto::ack::AckStatus;
use proto::custody::{DecidingMemory, Memory, TransferMemory};
use proto::frame::RefuseCode;
use proto::step::SessionId;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

/// A state's identity, for the checker's set of states seen.
pub(super) type Digest = u64;

pub(super) fn digest(value: &impl Hash) -> Digest {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What of a state may still be seen, by obligation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    shared: Shared,
    items: Vec<Item>,
    wires: Vec<Wire>,
}

/// What is not of one obligation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shared {
    tick: u8,
    crashes: (u8, u8),
    breaks: u8,
    broken: super::rules::Rules,
    answered: bool,
    /// How far recovery has come; none: down.
    custodian: Option<Option<(u8, Vec<u8>)>>,
    receiver: Option<Option<(u8, Vec<u8>)>>,
    /// The custodian's newest session.
    newest: Class,
    /// Whether it has sessions that are lost.
    lost: bool,
    open: bool,
    /// Queues of the custodian, which are empty in between unless its window is full.
    waiting: Vec<(bool, usize, Option<u64>)>,
}

/// A session, as far as it matters which one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Class {
    #[default]
    None,
    /// Both sides have it, and what is sent on it may arrive.
    Open,
    /// The custodian has it, and it is lost.
    Lost,
    /// The receiver has it, and it is lost.
    Stale,
    /// The custodian has it no more.
    Gone,
}

/// The nodes' part of one obligation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Item {
    admissible: bool,
    /// Which one, where they are not alike.
    place: usize,
    kept: Kept,
    had: Had,
    /// Effects without custody that a crash may take back.
    unsynced: i64,
    pending: Option<Pending>,
    /// Whether the receiver waits for its handler.
    deciding: bool,
    seen: bool,
    taken: bool,
    effects: u8,
    done: bool,
}

/// What the custodian remembers of a pending transfer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pending {
    retries: u32,
    repeat: bool,
    deferred: bool,
    queued: bool,
    refused: Option<RefuseCode>,
    retry_tick: u8,
    deadline_tick: u8,
    sent: Class,
    flying: bool,
}

/// What is on its way for one obligation.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Wire {
    /// Offers and their acks, sorted.
    refs: Vec<Ref>,
    /// What else is on its way.
    net: BTreeSet<Sent>,
    asked: bool,
}

/// One ref of a session: an offer and what was answered to it. Which number it has is no matter.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Ref {
    class: Class,
    /// Whether the receiver can still get the offer.
    offered: bool,
    /// Whether the custodian would take an ack of it, and remembers it as its last offer.
    known: Option<bool>,
    /// Acks on their way, if it would take them.
    acks: BTreeSet<AckStatus>,
    /// Whether the receiver will answer it when its handler has decided.
    deciding: bool,
}

impl Ref {
    /// Offer and acks by themselves. Where copies arrive together, it does not matter which ack is of
    /// which offer, nor how many there are.
    fn apart(self) -> impl Iterator<Item = Self> {
        let acks = Self { offered: false, deciding: false, ..self.clone() };
        let offer = Self { acks: BTreeSet::new(), ..self };
        [offer, acks].into_iter().filter(|of| of.offered || !of.acks.is_empty())
    }
}

/// A message, as far as it matters which copy it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Sent {
    Benign(Class),
    AckById(Class, AckStatus),
}

/// Digests of a state.
pub(super) struct Digests {
    /// Its identity.
    pub(super) whole: Digest,
    /// Of its nodes alone, without what is on its way: reductions must not change which of these
    /// are reached.
    pub(super) nodes: Digest,
}

/// Makes a state's digests.
pub(super) fn digests(setup: &Setup, world: &World, seen: &Seen) -> Digests {
    let mut key = Key::of(setup, world, seen);
    if setup.symmetry {
        key.sort();
    }
    let whole =
        if setup.is_known_exactly() { digest(&Exact::of(world, seen)) } else { digest(&key) };
    key.wires.iter_mut().for_each(|wire| *wire = Wire::default());
    let mut nodes = key.items.clone();
    if setup.symmetry {
        nodes.sort();
    }
    Digests { whole, nodes: digest(&(&key.shared.tick, &key.shared.broken, &nodes)) }
}

impl Key {
    fn sort(&mut self) {
        let mut both: Vec<(Item, Wire)> = self.items.drain(..).zip(self.wires.drain(..)).collect();
        both.sort();
        (self.items, self.wires) = both.into_iter().unzip();
    }

    fn of(setup: &Setup, world: &World, seen: &Seen) -> Self {
        let (no_kept, no_had) = (CustodianDisk::default(), ReceiverDisk::default());
        let kept = seen.kept.as_deref().unwrap_or(&no_kept);
        let had = seen.had.as_deref().unwrap_or(&no_had);
        let (memory, theirs) = (seen.custodian.as_deref(), seen.receiver.as_deref());
        let remembered = remembered(memory);
        let look = Look { setup, world, remembered: &remembered };

        let lasting = (world.receiver.store.unsynced() > 0).then(|| synced(&world.receiver.store));
        let lasting = lasting.as_ref().unwrap_or(had);

        let mut items = Vec::with_capacity(setup.items());
        let mut wires = Vec::with_capacity(setup.items());
        for item in 0..setup.items() {
            let admissible = setup.is_admissible(item);
            let transfer = memory.and_then(|memory| {
                let num = kept.pending.iter().find(|(_, of)| **of == item)?.0;
                memory.transfers.iter().find(|transfer| transfer.num == *num)
            });
            items.push(Item {
                admissible,
                place: if setup.symmetry { 0 } else { item },
                kept: kept.items.get(item).copied().unwrap_or_default(),
                had: had_of(had, item, admissible),
                unsynced: had_of(had, item, true).moved - had_of(lasting, item, true).moved,
                pending: transfer.map(|transfer| look.pending(transfer)),
                deciding: theirs.is_some_and(|memory| deciding(memory, item).is_some()),
                seen: theirs.is_some_and(|memory| has_seen(memory, item)),
                taken: world.taken.has(item),
                effects: if admissible { world.effects.get(item).copied().unwrap_or(0) } else { 0 },
                done: world.done.has(item),
            });
            wires.push(Wire {
                refs: look.refs(item, theirs),
                net: look.net(item),
                asked: world.asked.has(item),
            });
        }
        Self { shared: look.shared(memory, theirs), items, wires }
    }
}

/// A benign effect that comes again after the window was lost in a crash is not counted: nothing
/// rests on it.
fn had_of(disk: &ReceiverDisk, item: usize, admissible: bool) -> Had {
    let had = disk.items.get(item).copied().unwrap_or_default();
    if admissible { had } else { Had { moved: had.moved.min(1), ..had } }
}

/// What a crash that loses all it may would leave.
fn synced(store: &SimStore) -> ReceiverDisk {
    let mut store = store.clone();
    store.crash(0);
    ReceiverDisk::read(&store).unwrap_or_default()
}

fn deciding(memory: &Memory, item: usize) -> Option<&DecidingMemory> {
    memory.deciding.iter().find(|of| number(&of.id) == Some(item))
}

fn has_seen(memory: &Memory, item: usize) -> bool {
    memory.seen.iter().flat_map(|(_, ids)| ids).any(|id| number(id) == Some(item))
}

struct Look<'a> {
    setup: &'a Setup,
    world: &'a World,
    remembered: &'a BTreeMap<(SessionId, u64), bool>,
}

impl Look<'_> {
    /// What a session is to the custodian.
    fn class(&self, session: SessionId) -> Class {
        match self.world.link(session) {
            Some(link) if link.open() => Class::Open,
            Some(Link { custodian: true, .. }) => Class::Lost,
            Some(_) | None => Class::Gone,
        }
    }

    fn pending(&self, transfer: &TransferMemory) -> Pending {
        Pending {
            retries: transfer.retries,
            repeat: transfer.repeat,
            deferred: transfer.deferred,
            queued: transfer.queued,
            refused: transfer.refused,
            retry_tick: self.setup.tick_of(transfer.retry_at),
            deadline_tick: self.setup.tick_of(transfer.deadline_at),
            sent: transfer.sent.map_or(Class::None, |(session, _)| self.class(session)),
            flying: transfer.sent.is_some_and(|at| self.remembered.get(&at) == Some(&true)),
        }
    }

    /// The refs of an obligation that can still matter.
    fn refs(&self, item: usize, theirs: Option<&Memory>) -> Vec<Ref> {
        let waits = theirs.and_then(|memory| deciding(memory, item)).and_then(|of| of.offer);
        let mut refs: BTreeMap<(SessionId, u64), Ref> = BTreeMap::new();
        for message in self.world.net.iter().filter(|message| self.world.arrives(message)) {
            let (at, ack) = match message {
                Message::Offer { session, reference, item: of, .. } if *of == item => {
                    ((*session, *reference), None)
                }
                Message::Ack { session, reference, item: of, status, .. } if *of == item => {
                    ((*session, *reference), Some(*status))
                }
                _ => continue,
            };
            let known = self.remembered.get(&at).copied();
            let entry = refs.entry(at).or_insert_with(|| Ref {
                class: self.side_class(message),
                known,
                deciding: waits == Some(at),
                ..Ref::default()
            });
            match ack {
                None => entry.offered = true,
                Some(status) if known.is_some() => {
                    entry.acks.insert(status);
                }
                Some(_) => {}
            }
        }
        let mut refs: Vec<Ref> = refs
            .into_values()
            .map(|of| {
                // On a lost session nothing more is answered.
                let known = of.known.filter(|_| of.class == Class::Open || !of.acks.is_empty());
                Ref { known, ..of }
            })
            .filter(|of| of.offered || !of.acks.is_empty())
            .collect();
        if self.setup.singly() {
            refs.sort();
        } else {
            refs = refs.into_iter().flat_map(Ref::apart).collect();
            refs.sort();
            refs.dedup();
        }
        refs
    }

    fn side_class(&self, message: &Message) -> Class {
        match (self.class(message.session()) == Class::Open, message.to_receiver()) {
            (true, _) => Class::Open,
            (false, true) => Class::Stale,
            (false, false) => Class::Lost,
        }
    }

    fn net(&self, item: usize) -> BTreeSet<Sent> {
        self.world
            .net
            .iter()
            .filter(|message| self.world.arrives(message))
            .filter_map(|message| self.sent(item, message))
            .collect()
    }

    fn sent(&self, item: usize, message: &Message) -> Option<Sent> {
        let class = self.side_class(message);
        match message {
            Message::Benign { item: of, .. } if *of == item => Some(Sent::Benign(class)),
            Message::AckById { item: of, status, .. } if *of == item => {
                Some(Sent::AckById(class, *status))
            }
            _ => None,
        }
    }

    fn shared(&self, ours: Option<&Memory>, theirs: Option<&Memory>) -> Shared {
        let world = self.world;
        let stage = |memory: &Memory| memory.recovery.clone();
        let peers = ours.map_or(&[][..], |memory| &memory.peers);
        let newest = peers.iter().find_map(|peer| peer.sessions.last());
        Shared {
            tick: world.tick,
            crashes: world.crashes,
            breaks: world.breaks,
            broken: world.broken,
            answered: world.answered,
            custodian: ours.map(stage),
            receiver: theirs.map(stage),
            newest: newest.map_or(Class::None, |session| self.class(*session)),
            lost: world.links.iter().any(|link| link.custodian && !link.open()),
            open: world.open().is_some(),
            waiting: peers.iter().map(|peer| (peer.hungry, peer.due.len(), peer.sweep)).collect(),
        }
    }
}
