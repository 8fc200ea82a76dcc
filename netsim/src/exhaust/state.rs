//! One state of the whole: two real cores, their disks, and what is on its way between them.

use super::action::{Action, Decided, Fate, Side};
use super::machine::{Machine, Work};
use super::rules::{Rule, Rules};
use super::setup::{ITEMS_MAX, Setup};
use super::wire::{Link, Message, ack_input};
use proto::ack::Reason;
use proto::custody::Input;
use proto::id::{AgentId, ObligationId};
use proto::receiver::Decision;
use proto::record::Resolution;
use proto::step::{SessionId, Ticket};
use proto::store::ReadError;
use std::collections::BTreeSet;

/// Offers a session takes at once: more than there are.
const WINDOW: usize = 256;

/// A set of obligations, by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Items(u8);

impl Items {
    pub(super) const fn has(self, item: usize) -> bool {
        self.0 & (1 << item) != 0
    }

    pub(super) const fn add(&mut self, item: usize) {
        self.0 |= 1 << item;
    }

    pub(super) const fn remove(&mut self, item: usize) {
        self.0 &= !(1 << item);
    }
}

/// One state.
#[derive(Clone)]
pub(super) struct World {
    pub(super) tick: u8,
    pub(super) custodian: Machine,
    pub(super) receiver: Machine,
    pub(super) links: Vec<Link>,
    pub(super) next_session: u64,
    pub(super) net: BTreeSet<Message>,
    /// Handler calls under way.
    pub(super) asked: Items,
    /// What the external system has done, whatever the receiver knows of it.
    pub(super) done: Items,
    /// Whether the issue call was answered.
    pub(super) answered: bool,
    /// What was durably under custody at some time.
    pub(super) taken: Items,
    /// Durable commits that had the effect of an obligation.
    pub(super) effects: [u8; ITEMS_MAX],
    /// Crashes so far, where they are counted: custodian, receiver.
    pub(super) crashes: (u8, u8),
    /// Connections lost so far, where they are counted.
    pub(super) breaks: u8,
    /// Rules that were broken on the way here.
    pub(super) broken: Rules,
}

impl World {
    /// Both nodes up for the first time, nothing issued, not connected.
    pub(super) fn first(setup: &Setup) -> Self {
        let mut world = Self {
            tick: 0,
            custodian: Machine::fresh(),
            receiver: Machine::fresh(),
            links: Vec::new(),
            next_session: 1,
            net: BTreeSet::new(),
            asked: Items::default(),
            done: Items::default(),
            answered: false,
            taken: Items::default(),
            effects: [0; ITEMS_MAX],
            crashes: (0, 0),
            breaks: 0,
            broken: Rules::default(),
        };
        for side in [Side::Custodian, Side::Receiver] {
            world.start(setup, side);
            while !world.machine(side).ready() && world.broken.is_empty() {
                world.work(setup, side, Work::Recover);
                world.commit(setup, side);
            }
        }
        world
    }

    pub(super) const fn machine(&self, side: Side) -> &Machine {
        match side {
            Side::Custodian => &self.custodian,
            Side::Receiver => &self.receiver,
        }
    }

    pub(super) const fn machine_mut(&mut self, side: Side) -> &mut Machine {
        match side {
            Side::Custodian => &mut self.custodian,
            Side::Receiver => &mut self.receiver,
        }
    }

    /// Does what an action says. None: it is not possible here, or changes nothing.
    pub(super) fn act(&mut self, setup: &Setup, action: &Action) -> Option<()> {
        match action {
            Action::Advance => self.tick += 1,
            Action::Issue { fate } => {
                let drafts = (0..setup.items()).map(|item| setup.draft(item)).collect();
                let ticket = Ticket(0);
                self.input(setup, Side::Custodian, Input::Issue { ticket, drafts }, *fate)?;
            }
            Action::Tick { side, fate } => {
                self.input(setup, *side, Input::Tick, *fate)?;
            }
            Action::Recover { side, fate } => {
                self.work(setup, *side, Work::Recover);
                self.settle(setup, *side, *fate)?;
            }
            Action::Restart { side } => self.start(setup, *side),
            Action::Connect => self.connect(setup),
            Action::Break => {
                self.breaks += u8::from(setup.breaks.is_some());
                self.links.iter_mut().filter(|link| link.open()).for_each(|link| link.cut = true);
            }
            Action::Notice => self.notice(setup),
            Action::Offer { item, copy, fate } => {
                let inputs = self.offers(*item, *copy);
                self.work(setup, Side::Receiver, Work::Inputs(inputs));
                self.settle(setup, Side::Receiver, *fate)?;
            }
            Action::Benign { message, fate } => {
                let Message::Benign { session, bytes, .. } = message else { return None };
                let (session, items) = (*session, vec![bytes.clone()]);
                self.input(setup, Side::Receiver, Input::BestEffort { session, items }, *fate)?;
            }
            Action::Ack { message, fate } => {
                let inputs = self.acks(setup, message).filter_map(ack_input).collect();
                self.work(setup, Side::Custodian, Work::Inputs(inputs));
                self.settle(setup, Side::Custodian, *fate)?;
            }
            Action::Together { side, fate } => {
                let arriving = self.net.iter().filter(|message| self.arrives(message));
                let inputs = arriving.filter_map(|message| match message {
                    Message::Offer { session, reference, bytes, .. } => Some(Input::Offers {
                        session: *session,
                        first_ref: *reference,
                        items: vec![bytes.clone()],
                    }),
                    Message::Benign { session, bytes, .. } => {
                        let (session, items) = (*session, vec![bytes.clone()]);
                        Some(Input::BestEffort { session, items })
                    }
                    Message::Ack { .. } | Message::AckById { .. } => ack_input(message),
                });
                let of_side = |input: &Input| {
                    let acks = matches!(input, Input::AckRuns { .. } | Input::Acks { .. });
                    acks == (*side == Side::Custodian)
                };
                let inputs = inputs.filter(of_side).collect();
                self.work(setup, *side, Work::Inputs(inputs));
                self.settle(setup, *side, *fate)?;
            }
            Action::Effect { item } => self.done.add(*item),
            Action::Answer { item, decided, fate } => {
                self.asked.remove(*item);
                let input = decided_input(*item, *decided)?;
                self.input(setup, Side::Receiver, input, *fate)?;
            }
            Action::Resolve { number, applied, fate } => {
                let resolution =
                    if *applied { Resolution::Applied } else { Resolution::NotApplied };
                let input =
                    Input::Resolve { ticket: Ticket(u64::MAX), number: *number, resolution };
                self.input(setup, Side::Receiver, input, *fate)?;
            }
            Action::Commit { side } => self.commit(setup, *side),
            Action::Crash { side, durable, keep_behind } => {
                self.crash(setup, *side, *durable, *keep_behind);
            }
        }
        Some(())
    }

    fn start(&mut self, setup: &Setup, side: Side) {
        let node = usize::from(side == Side::Receiver);
        let Some(settings) = setup.settings(node) else { return };
        let result = self.machine_mut(side).start(settings);
        #[cfg(feature = "mutants")]
        self.machine_mut(side).mutate(setup.mutant);
        self.held(result);
    }

    /// A read that fails ends a node for good, and here it means a record that no code reads.
    fn held(&mut self, result: Result<(), ReadError>) {
        if result.is_err() {
            self.broken.add(Rule::TypeOk);
        }
    }

    pub(super) fn work(&mut self, setup: &Setup, side: Side, work: Work) {
        let (now, tick) = (setup.clock(self.tick), self.tick);
        let result = self.machine_mut(side).handle(now, tick, work);
        self.held(result);
    }

    fn input(&mut self, setup: &Setup, side: Side, input: Input, fate: Fate) -> Option<()> {
        self.work(setup, side, Work::Inputs(vec![input]));
        self.settle(setup, side, fate)
    }

    /// What becomes of the steps just sealed.
    fn settle(&mut self, setup: &Setup, side: Side, fate: Fate) -> Option<()> {
        let writes = self.machine(side).flights().iter().map(|flight| flight.writes.len());
        let (count, total) = (writes.clone().count(), writes.sum::<usize>());
        match fate {
            Fate::Waits => {
                // What has nothing to write and nothing before it leaves at once.
                while self.machine(side).flights().first().is_some_and(|f| f.writes.is_empty()) {
                    self.commit(setup, side);
                }
            }
            Fate::Commits => {
                for _ in 0..count {
                    self.commit(setup, side);
                }
            }
            Fate::Dies => {
                if total == 0 {
                    return None; // that is a crash of an idle node
                }
                self.crash(setup, side, count, true);
            }
        }
        Some(())
    }

    pub(super) fn commit(&mut self, setup: &Setup, side: Side) {
        let before = self.machine(side).store.clone();
        if let Some(flight) = self.machine_mut(side).commit() {
            self.durable(setup, side, &flight, &before);
            self.release(setup, flight.outputs);
        }
    }

    fn crash(&mut self, setup: &Setup, side: Side, durable: usize, keep_behind: bool) {
        let before = self.machine(side).store.clone();
        let reached = self.machine_mut(side).crash(durable, keep_behind);
        for flight in reached {
            self.durable(setup, side, &flight, &before);
        }
        let (spent, budget) = match side {
            Side::Custodian => (&mut self.crashes.0, setup.custodian_crashes),
            Side::Receiver => (&mut self.crashes.1, setup.receiver_crashes),
        };
        *spent += u8::from(budget.is_some());
        for link in &mut self.links {
            match side {
                Side::Custodian => link.custodian = false,
                Side::Receiver => link.receiver = false,
            }
        }
        if side == Side::Receiver {
            self.asked = Items::default();
        }
        self.sweep();
    }

    /// Drops what can no longer arrive.
    fn sweep(&mut self) {
        self.links.retain(|link| link.custodian || link.receiver);
        let net = std::mem::take(&mut self.net);
        self.net = net.into_iter().filter(|message| self.arrives(message)).collect();
    }

    fn connect(&mut self, setup: &Setup) {
        let session = SessionId(self.next_session);
        self.next_session += 1;
        self.links.push(Link { session, custodian: true, receiver: true, cut: false });
        for (side, peer) in [(Side::Receiver, "a"), (Side::Custodian, "b")] {
            let Ok(peer) = AgentId::new(peer) else { continue };
            let up = Input::SessionUp { session, peer, window: WINDOW };
            self.work(setup, side, Work::Inputs(vec![up]));
            self.settle(setup, side, Fate::Waits);
        }
    }

    /// The custodian notices that connections are gone. (That the receiver does changes nothing:
    /// it would only hear less.)
    fn notice(&mut self, setup: &Setup) {
        let gone: Vec<SessionId> = self
            .links
            .iter()
            .filter(|link| link.custodian && !link.open())
            .map(|link| link.session)
            .collect();
        for session in gone {
            let down = Input::SessionDown { session };
            self.work(setup, Side::Custodian, Work::Inputs(vec![down]));
            self.settle(setup, Side::Custodian, Fate::Waits);
            self.links
                .iter_mut()
                .filter(|link| link.session == session)
                .for_each(|link| link.custodian = false);
        }
        self.sweep();
    }
}

fn decided_input(item: usize, decided: Decided) -> Option<Input> {
    let decision = match decided {
        Decided::Applied => Decision::Applied,
        Decided::Declined => Decision::Declined(Reason::new("not now")),
        Decided::Deferred => Decision::Deferred(None),
        Decided::NotReached => Decision::NotReached(Reason::new("away")),
        Decided::InDoubt => Decision::InDoubt(Reason::new("no answer")),
    };
    Some(Input::Decided { issuer: AgentId::new("a").ok()?, id: id_of(item)?, decision })
}

/// The number of an obligation.
pub(super) fn number(id: &ObligationId) -> Option<usize> {
    id.as_str().strip_prefix('o')?.parse::<usize>().ok()?.checked_sub(1)
}

/// The id of an obligation.
pub(super) fn id_of(item: usize) -> Option<ObligationId> {
    ObligationId::new(&Setup::name(item)).ok()
}
