//! What may happen next in a state.

use super::look::remembered;
use super::setup::{Budget, Receiving, Setup};
use super::state::World;
use super::wire::Message;
use proto::ack::AckStatus;
use proto::custody::Custody;
use proto::record::{Reconcile, ReconcileKind, key_num};
use proto::step::SessionId;
use proto::store::Table;
use std::collections::BTreeSet;
use std::fmt;

/// One of the two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Custodian,
    Receiver,
}

/// What becomes of the commit of what is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is durable, and its outputs leave, before anything else happens.
    Commits,
    /// It is on its way while other things happen.
    Waits,
    /// It is durable, and the node dies before its outputs leave. (Dying before it is durable is
    /// the same as dying before the input.)
    Dies,
}

/// Which copies of an offer are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    /// All that were sent, in one step.
    All,
    /// The one of this session and ref.
    One((SessionId, u64)),
}

/// What an external handler says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decided {
    Applied,
    Declined,
    Deferred,
    NotReached,
    InDoubt,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Time goes on by one tick.
    Advance,
    /// The client issues, again if it had no answer.
    Issue { fate: Fate },
    /// An alarm goes off.
    Tick { side: Side, fate: Fate },
    /// One call of recovery.
    Recover { side: Side, fate: Fate },
    /// A dead node starts again.
    Restart { side: Side },
    /// A connection comes up.
    Connect,
    /// A connection is lost, and nobody has noticed.
    Break,
    /// The custodian notices which connections are lost.
    Notice,
    /// An offer arrives.
    Offer { item: usize, copy: Copy, fate: Fate },
    /// A benign obligation arrives.
    Benign { message: Message, fate: Fate },
    /// An ack arrives.
    Ack { message: Message, fate: Fate },
    /// All that is on its way to a node arrives, and is committed as one.
    Together { side: Side, fate: Fate },
    /// The external system has the effect it was asked for.
    Effect { item: usize },
    /// The handler answers.
    Answer { item: usize, decided: Decided, fate: Fate },
    /// A person looks, and says whether the effect happened.
    Resolve { number: u64, applied: bool, fate: Fate },
    /// The oldest commit on its way is durable.
    Commit { side: Side },
    /// A node dies; the first `durable` of its commits on their way are on the disk.
    Crash { side: Side, durable: usize, keep_behind: bool },
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Custodian => "custodian",
            Self::Receiver => "receiver",
        })
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Commits => "",
            Self::Waits => ", its commit on the way",
            Self::Dies => ", committed, and died before a word got out",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |item: &usize| Setup::name(*item);
        match self {
            Self::Advance => write!(f, "a tick passes"),
            Self::Issue { fate } => write!(f, "the issue call came{fate}"),
            Self::Tick { side, fate } => write!(f, "{side}: alarm went off{fate}"),
            Self::Recover { side, fate } => write!(f, "{side}: recovered a part{fate}"),
            Self::Restart { side } => write!(f, "{side}: started again"),
            Self::Connect => write!(f, "a connection came up"),
            Self::Break => write!(f, "the connection was lost"),
            Self::Notice => write!(f, "custodian: noticed the lost connection"),
            Self::Offer { item, copy: Copy::All, fate } => {
                write!(f, "receiver: all offers of {} came{fate}", name(item))
            }
            Self::Offer { item, copy: Copy::One((session, reference)), fate } => {
                write!(f, "receiver: offer {}.{reference} of {} came{fate}", session.0, name(item))
            }
            Self::Benign { message, fate } => {
                let Message::Benign { item, .. } = message else { return Ok(()) };
                write!(f, "receiver: benign {} came{fate}", name(item))
            }
            Self::Ack { message, fate } => match message {
                Message::Ack { session, reference, item, status, .. } => write!(
                    f,
                    "custodian: ack {}.{reference} came, {} {status:?}{fate}",
                    session.0,
                    name(item)
                ),
                Message::AckById { item, status, .. } => {
                    write!(f, "custodian: ack by id came, {} {status:?}{fate}", name(item))
                }
                Message::Offer { .. } | Message::Benign { .. } => Ok(()),
            },
            Self::Together { side, fate } => write!(f, "{side}: all that was sent came{fate}"),
            Self::Effect { item } => write!(f, "handler: did {}", name(item)),
            Self::Answer { item, decided, fate } => {
                write!(f, "receiver: the handler said {decided:?} of {}{fate}", name(item))
            }
            Self::Resolve { number, applied, fate } => {
                write!(f, "receiver: a person resolved item {number}, applied: {applied}{fate}")
            }
            Self::Commit { side } => write!(f, "{side}: a commit was durable"),
            Self::Crash { side, durable: 0, .. } => write!(f, "{side}: died"),
            Self::Crash { side, durable, .. } => {
                write!(f, "{side}: died, {durable} of its commits on the disk")
            }
        }
    }
}

/// Adds the arrival of all messages at once, where `found` from `first` on has two and more.
fn together(setup: &Setup, world: &World, side: Side, first: usize, found: &mut Vec<Action>) {
    let fates = fates(setup, world, side);
    if found.len() - first > fates.len() {
        found.extend(fates.into_iter().map(|fate| Action::Together { side, fate }));
    }
}

/// All that may happen in a state.
pub(super) fn actions(setup: &Setup, world: &World, found: &mut Vec<Action>) {
    if !world.broken.is_empty() {
        return; // one broken rule ends a path
    }
    for side in [Side::Custodian, Side::Receiver] {
        of_node(setup, world, side, found);
    }
    links(setup, world, found);
    if takes_work(setup, world, Side::Custodian) {
        issues(setup, world, found);
        let first = found.len();
        acks(setup, world, found);
        together(setup, world, Side::Custodian, first, found);
    }
    if takes_work(setup, world, Side::Receiver) {
        let first = found.len();
        arrivals(setup, world, found);
        together(setup, world, Side::Receiver, first, found);
        handler(setup, world, found);
    }
    if may_advance(setup, world) {
        found.push(Action::Advance);
    }
}

fn left(budget: Budget, spent: u8) -> bool {
    budget.is_none_or(|budget| spent < budget)
}

fn may_crash(setup: &Setup, world: &World, side: Side) -> bool {
    match side {
        Side::Custodian => left(setup.custodian_crashes, world.crashes.0),
        Side::Receiver => left(setup.receiver_crashes, world.crashes.1),
    }
}

/// What may become of a commit of `side`.
fn fates(setup: &Setup, world: &World, side: Side) -> Vec<Fate> {
    if setup.in_flight > 0 {
        return vec![Fate::Waits]; // the crash is an action of its own
    }
    let mut fates = vec![Fate::Commits];
    if may_crash(setup, world, side) {
        fates.push(Fate::Dies);
    }
    fates
}

/// Whether a node is up and its disk takes another commit.
fn takes_work(setup: &Setup, world: &World, side: Side) -> bool {
    let machine = world.machine(side);
    machine.live.is_some() && machine.flights().len() < setup.in_flight.max(1)
}

fn of_node(setup: &Setup, world: &World, side: Side, found: &mut Vec<Action>) {
    let machine = world.machine(side);
    if machine.live.is_none() {
        found.push(Action::Restart { side });
        return;
    }
    if takes_work(setup, world, side) {
        if !machine.ready() {
            let fates = fates(setup, world, side);
            found.extend(fates.into_iter().map(|fate| Action::Recover { side, fate }));
        } else if machine.is_due(setup.clock(world.tick)) {
            let fates = fates(setup, world, side);
            found.extend(fates.into_iter().map(|fate| Action::Tick { side, fate }));
        }
    }
    let flights = machine.flights().len();
    if flights > 0 {
        found.push(Action::Commit { side });
    }
    if may_crash(setup, world, side) {
        let behind = machine.store.unsynced() > 0;
        for durable in 0..=flights {
            found.push(Action::Crash { side, durable, keep_behind: false });
            if behind {
                found.push(Action::Crash { side, durable, keep_behind: true });
            }
        }
    }
}

fn links(setup: &Setup, world: &World, found: &mut Vec<Action>) {
    let both =
        takes_work(setup, world, Side::Custodian) && takes_work(setup, world, Side::Receiver);
    if world.open().is_some() {
        if left(setup.breaks, world.breaks) {
            found.push(Action::Break);
        }
    } else if both {
        found.push(Action::Connect);
    }
    if takes_work(setup, world, Side::Custodian)
        && world.links.iter().any(|link| link.custodian && !link.open())
    {
        found.push(Action::Notice);
    }
}

fn issues(setup: &Setup, world: &World, found: &mut Vec<Action>) {
    if world.custodian.ready() && world.tick == 0 && !world.answered {
        let fates = fates(setup, world, Side::Custodian);
        found.extend(fates.into_iter().map(|fate| Action::Issue { fate }));
    }
}

/// Acks on their way. An ack of an offer that the custodian does not remember does nothing; several that
/// say the same of one obligation arrive together where nothing is deferred.
fn acks(setup: &Setup, world: &World, found: &mut Vec<Action>) {
    if world.net.iter().all(Message::to_receiver) {
        return;
    }
    let memory = world.custodian.custody().filter(|_| !setup.exact).map(Custody::memory);
    let known = memory.as_ref().map(|memory| remembered(Some(memory)));
    let singly = setup.singly();
    let mut said: BTreeSet<(usize, AckStatus)> = BTreeSet::new();
    let mut arriving: Vec<&Message> = world
        .net
        .iter()
        .filter(|message| !message.to_receiver() && world.arrives(message))
        .filter(|message| match (message, &known) {
            (Message::Ack { session, reference, .. }, Some(known)) => {
                known.contains_key(&(*session, *reference))
            }
            _ => true,
        })
        .collect();
    // The last offer's first.
    arriving.reverse();
    for message in arriving {
        let new = match message {
            Message::Ack { item, status, .. } => singly || said.insert((*item, *status)),
            _ => true,
        };
        if new {
            let fates = fates(setup, world, Side::Custodian);
            let message = || message.clone();
            found.extend(fates.into_iter().map(|fate| Action::Ack { message: message(), fate }));
        }
    }
}

fn arrivals(setup: &Setup, world: &World, found: &mut Vec<Action>) {
    let singly = setup.singly();
    let fates = fates(setup, world, Side::Receiver);
    for item in 0..setup.items() {
        let mut copies = world.copies(item).peekable();
        if copies.peek().is_none() {
            continue;
        }
        if singly {
            for (session, reference, _) in copies {
                let copy = Copy::One((session, reference));
                found.extend(fates.iter().map(|fate| Action::Offer { item, copy, fate: *fate }));
            }
        } else {
            let copy = Copy::All;
            found.extend(fates.iter().map(|fate| Action::Offer { item, copy, fate: *fate }));
        }
    }
    for message in world.net.iter().filter(|message| world.arrives(message)) {
        if matches!(message, Message::Benign { .. }) {
            let message = || message.clone();
            found.extend(
                fates.iter().map(|fate| Action::Benign { message: message(), fate: *fate }),
            );
        }
    }
}

fn handler(setup: &Setup, world: &World, found: &mut Vec<Action>) {
    let fates = fates(setup, world, Side::Receiver);
    for item in (0..setup.items()).filter(|item| world.asked.has(*item)) {
        let done = world.done.has(item);
        let mut says = if done { vec![Decided::Applied] } else { vec![Decided::Declined] };
        if !done {
            found.push(Action::Effect { item });
        }
        if !done && setup.receiver.defers() {
            says.extend([Decided::Deferred, Decided::NotReached]);
        }
        if setup.receiver == Receiving::InDoubt {
            says.push(Decided::InDoubt);
        }
        for decided in says {
            found.extend(fates.iter().map(|fate| Action::Answer { item, decided, fate: *fate }));
        }
    }
    if setup.receiver == Receiving::InDoubt {
        for (key, value) in world.receiver.store.iter(Table::Reconcile) {
            let Ok(open) = serde_json::from_slice::<Reconcile>(value) else { continue };
            if open.kind != ReconcileKind::InDoubt || open.resolution.is_some() {
                continue;
            }
            let Some(number) = key_num(key) else { continue };
            let item = super::state::number(&open.obligation_id);
            let applied = item.is_some_and(|item| world.done.has(item));
            found.extend(fates.iter().map(|fate| Action::Resolve { number, applied, fate: *fate }));
        }
    }
}

/// Time goes on when no alarm that could go off is left, unless alarms may be late.
fn may_advance(setup: &Setup, world: &World) -> bool {
    if world.tick >= setup.later() {
        return false;
    }
    setup.late_alarms
        || !(is_due(setup, world, Side::Custodian) || is_due(setup, world, Side::Receiver))
}

/// Whether a node that is up has an alarm that is due, or recovery to go on with.
pub(super) fn is_due(setup: &Setup, world: &World, side: Side) -> bool {
    world.machine(side).next_work(setup.clock(world.tick)).is_some()
}

/// Nothing is left to do that the custodian must do by itself: what is pending now stays so.
pub(super) fn at_rest(setup: &Setup, world: &World) -> bool {
    let custodian = &world.custodian;
    world.tick >= setup.later()
        && custodian.ready()
        && custodian.flights().is_empty()
        && !is_due(setup, world, Side::Custodian)
}
