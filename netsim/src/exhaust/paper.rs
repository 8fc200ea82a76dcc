//! The paper's TLA+ model, `Abhyasa.tla`, as it stands: what the real core is compared with.
//!
//! Its obligations have nothing to do with each other, so its 31,250 states at the paper's bounds
//! are a product: 25 states of each of three admissible obligations, and two of the benign one.

use super::look::Seen;
use super::rules::Rule;
use super::setup::{Setup, TICK_MS};
use super::state::World;
use proto::obligation::Obligation;
use proto::record::{Outcome, Pending, Terminal, num_key};
use proto::store::Table;
use stateright::{Checker, Model, Property};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// State of one obligation in the paper's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Abstract {
    /// Where it stands.
    pub custody: Custody,
    /// Delivery attempts that failed.
    pub attempts: u8,
    /// Times the effect was applied.
    pub applied_count: u8,
    /// Whether `safe(O)` was applied.
    pub protected: bool,
    /// Ticks since issue.
    pub clock: u8,
}

/// Where an obligation stands in the paper's model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Custody {
    /// Not yet discharged, or not yet sent.
    Pending,
    /// Discharged: applied.
    Applied,
    /// Discharged: declined.
    Declined,
    /// Discharged: escalated.
    Escalated,
    /// Inadmissible, and sent.
    BestEffort,
}

impl Abstract {
    /// At issue.
    pub const FIRST: Self = Self {
        custody: Custody::Pending,
        attempts: 0,
        applied_count: 0,
        protected: false,
        clock: 0,
    };
    /// Applied, and the first ack is on its way: the one state the real core has and the paper's model
    /// has not, where effect and ack are one step unless the ack is lost.
    pub const ACK_ON_ITS_WAY: Self = Self { applied_count: 1, ..Self::FIRST };
}

/// The paper's model at some bounds.
#[derive(Clone, Debug)]
struct Paper {
    setup: Setup,
    /// The states met.
    states: Arc<Mutex<BTreeSet<Vec<Abstract>>>>,
}

/// The actions of `Abhyasa.tla`, by their names there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Apply,
    Decline,
    LoseAndRetry,
    ApplyButAckLost,
    Escalate,
    BestEffort,
}

const STEPS: [Step; 6] = [
    Step::Apply,
    Step::Decline,
    Step::LoseAndRetry,
    Step::ApplyButAckLost,
    Step::Escalate,
    Step::BestEffort,
];

impl Paper {
    fn step(&self, of: Abstract, admissible: bool, step: Step) -> Option<Abstract> {
        let Setup { max_retries, deadline, .. } = self.setup;
        let in_time = of.clock < deadline;
        let may_try = in_time && u32::from(of.attempts) <= max_retries;
        let active = admissible && of.custody == Custody::Pending;
        let (attempts, clock) = (of.attempts + 1, of.clock + 1);
        let next = match step {
            Step::Apply if active && in_time => {
                Abstract { applied_count: 1, custody: Custody::Applied, ..of }
            }
            Step::Decline if active && in_time && of.applied_count == 0 => {
                Abstract { custody: Custody::Declined, ..of }
            }
            Step::LoseAndRetry if active && may_try => Abstract { attempts, clock, ..of },
            Step::ApplyButAckLost if active && may_try => {
                Abstract { applied_count: 1, attempts, clock, ..of }
            }
            Step::Escalate if active && !may_try => {
                Abstract { protected: true, custody: Custody::Escalated, ..of }
            }
            Step::BestEffort if !admissible && of.custody == Custody::Pending => {
                Abstract { custody: Custody::BestEffort, ..of }
            }
            _ => return None,
        };
        Some(next)
    }
}

impl Model for Paper {
    type State = Vec<Abstract>;
    type Action = (usize, Step);

    fn init_states(&self) -> Vec<Self::State> {
        vec![vec![Abstract::FIRST; self.setup.items()]]
    }

    fn actions(&self, state: &Self::State, found: &mut Vec<Self::Action>) {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).insert(state.clone());
        found.extend((0..state.len()).flat_map(|item| STEPS.map(|step| (item, step))));
    }

    fn next_state(&self, last: &Self::State, (item, step): Self::Action) -> Option<Self::State> {
        let next = self.step(*last.get(item)?, item < self.setup.admissible, step)?;
        let mut state = last.clone();
        *state.get_mut(item)? = next;
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(Rule::Ab2Persistence.name(), |model: &Self, state: &Vec<Abstract>| {
                let most = model.setup.max_retries + 1;
                state.iter().all(|of| u32::from(of.attempts) <= most)
            }),
            Property::always(Rule::Ab4FailSafe.name(), |_: &Self, state: &Vec<Abstract>| {
                state.iter().all(|of| of.custody != Custody::Escalated || of.protected)
            }),
            Property::always(
                Rule::BenignSideBestEffort.name(),
                |model: &Self, state: &Vec<Abstract>| {
                    let benign = state.iter().skip(model.setup.admissible);
                    benign
                        .clone()
                        .all(|of| matches!(of.custody, Custody::Pending | Custody::BestEffort))
                },
            ),
        ]
    }
}

/// Every state of the paper's model at the bounds of `setup`.
#[must_use]
pub fn states(setup: &Setup) -> BTreeSet<Vec<Abstract>> {
    let states = Arc::new(Mutex::new(BTreeSet::new()));
    let paper = Paper { setup: setup.clone(), states: states.clone() };
    paper.checker().spawn_bfs().join().assert_properties();
    states.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The states that obligations have in `states`, and whether they are admissible, and
/// [`Abstract::ACK_ON_ITS_WAY`].
#[must_use]
pub fn of_one(setup: &Setup, states: &BTreeSet<Vec<Abstract>>) -> BTreeSet<(bool, Abstract)> {
    let each = |state: &Vec<Abstract>| -> Vec<(bool, Abstract)> {
        let each = state.iter().enumerate();
        each.map(|(item, of)| (setup.is_admissible(item), *of)).collect()
    };
    states.iter().flat_map(each).chain([(true, Abstract::ACK_ON_ITS_WAY)]).collect()
}

/// What each obligation is in the paper's model, where no node crashes, and whether it is
/// admissible: the time since its issue is what the paper counts as attempts and as its clock.
pub(super) fn abstracted(setup: &Setup, world: &World, seen: &Seen) -> Vec<(bool, Abstract)> {
    let one = |item| Some((setup.is_admissible(item), abstracted_one(setup, world, seen, item)?));
    (0..setup.items()).filter_map(one).collect()
}

fn abstracted_one(setup: &Setup, world: &World, seen: &Seen, item: usize) -> Option<Abstract> {
    let mut state = Abstract::FIRST;
    let disk = seen.kept.as_ref()?;
    let kept = disk.items.get(item)?;
    if !setup.is_admissible(item) {
        if world.answered {
            state.custody = Custody::BestEffort;
        }
        return Some(state);
    }
    let store = &world.custodian.store;
    state.applied_count = *world.effects.get(item)?;
    let (issued, until) = if let Some((terminal, _)) = kept.ended {
        let key = Setup::name(item);
        let outcome = Outcome::decode(store.value(Table::Outcome, key.as_bytes())?).ok()?;
        state.custody = match terminal {
            Terminal::Applied => Custody::Applied,
            Terminal::Declined => Custody::Declined,
            Terminal::Escalated => Custody::Escalated,
        };
        state.protected = kept.protected > 0;
        (outcome.created_at, outcome.at)
    } else if kept.pending.is_some() {
        let num = disk.pending.iter().find(|(_, of)| **of == item)?.0;
        let record = store.value(Table::Pending, &num_key(*num))?;
        let pending = Pending::decode(record).ok()?;
        (Obligation::decode(&pending.obligation).ok()?.created_at, setup.clock(world.tick))
    } else {
        return Some(state);
    };
    state.clock = u8::try_from(until.ms_since(issued) / TICK_MS).ok()?;
    state.attempts = state.clock;
    Some(state)
}
