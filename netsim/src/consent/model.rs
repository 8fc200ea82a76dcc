//! The states and actions as a model of `stateright`.

use super::Setup;
use super::paper::Abstract;
use super::rules::Rule;
use super::world::{Action, Did, Documents, World};
use proto::consent::State;
use stateright::{Model, Property};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// What was seen to happen.
#[derive(Debug, Default)]
pub(super) struct Witnesses {
    counts: [AtomicU64; 6],
    pub(super) edges: Mutex<BTreeSet<(State, &'static str, State)>>,
    pub(super) paper: Mutex<BTreeSet<Abstract>>,
}

impl Witnesses {
    /// What is counted.
    const NAMES: [&str; 6] = [
        "a skill ran",
        "a skill ran under conditional consent",
        "a permit by a disputed claim was refused",
        "an event under another record was refused",
        "a skill was refused to a caller that has changed",
        "consent was given anew",
    ];

    fn note(&self, did: Did, from: State, name: &'static str, to: State) {
        let seen = [
            did.ran,
            did.ran_conditional,
            did.refused_permit,
            did.refused_anchor,
            did.refused_drift,
            did.anew,
        ];
        for (count, seen) in self.counts.iter().zip(seen) {
            count.fetch_add(u64::from(seen), Ordering::Relaxed);
        }
        // What the machine has seen to have changed comes before what it was told.
        let looked = did.from.unwrap_or(from);
        let edges = [(from, "look", looked), (looked, name, to)];
        // Where a restart leads is what the chains say.
        for edge in edges.into_iter().filter(|edge| edge.0 != edge.2 && edge.1 != "restart") {
            self.edges.lock().unwrap_or_else(PoisonError::into_inner).insert(edge);
        }
    }

    /// How often each was seen.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Self::NAMES.into_iter().zip(counts)
    }
}

/// The model.
#[derive(Clone)]
pub(super) struct Checked {
    setup: Setup,
    documents: Documents,
    witnesses: Arc<Witnesses>,
    /// The first broken state that was found.
    first: Arc<OnceLock<World>>,
}

impl Checked {
    pub(super) fn new(setup: Setup, witnesses: Arc<Witnesses>) -> Self {
        let documents = Documents::new(&setup);
        Self { setup, documents, witnesses, first: Arc::default() }
    }

    /// Whether another broken state was found before. The checker reports the last one it finds and
    /// searches breadth first, so with the first alone the path reported is a shortest one.
    fn is_not_first(&self, state: &World) -> bool {
        *self.first.get_or_init(|| state.clone()) != *state
    }
}

impl Model for Checked {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::first(&self.setup, &self.documents)]
    }

    fn actions(&self, state: &World, found: &mut Vec<Action>) {
        // What is broken is told, and not followed.
        if state.broken.is_empty() {
            let mut paper = self.witnesses.paper.lock().unwrap_or_else(PoisonError::into_inner);
            paper.insert(state.abstracted());
            drop(paper);
            state.actions(&self.setup, found);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        world.act(last, &self.setup, &self.documents, action)?;
        let (from, to) = (last.machine.state(), world.machine.state());
        self.witnesses.note(world.did, from, action.name(), to);
        // What an action did is seen by now, and no part of the state it leads to.
        world.did = Did::default();
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! always {
            ($($rule:ident),*) => {
                vec![$(Property::<Self>::always(Rule::$rule.name(), |model, state| {
                    !state.broken.has(Rule::$rule) || model.is_not_first(state)
                })),*]
            };
        }
        macro_rules! eventually {
            ($rule:ident) => {
                Property::<Self>::always(Rule::$rule.name(), |model, state| {
                    state.decides(&model.setup, &model.documents, Rule::$rule)
                        || model.is_not_first(state)
                })
            };
        }
        let mut all = always![
            TypeOk,
            NoSkillWithoutConsent,
            ChainMonotonicity,
            AdherenceAnchored,
            SkillRequiresPermit,
            ConditionalGating,
            NoDisputedPermit,
            NoSkillOnCapabilityDrift,
            NoSkillOnStalePolicy
        ];
        all.extend([eventually!(EventualReConsent), eventually!(EventualCapabilityReConsent)]);
        all
    }
}
