//! The states and actions as a model of `stateright`.

use super::Collect;
use super::action::{Action, actions, at_rest};
use super::key::{Digest, digests};
use super::look::{CustodianDisk, Seen};
use super::paper::abstracted;
use super::rules::Rule;
use super::setup::Setup;
use super::state::World;
use proto::record::Terminal;
use stateright::{Model, Property};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

/// A state and its identity.
#[derive(Clone)]
pub(super) struct State {
    pub(super) world: World,
    seen: Seen,
    digest: Digest,
    /// What has happened, as in [`Witnesses::NAMES`].
    happened: u8,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

/// The model.
#[derive(Clone)]
pub(super) struct Checked {
    pub(super) setup: Setup,
    /// What somebody wants of every state.
    pub(super) collect: Collect,
    /// What was seen to happen, so that no rule holds for want of an occasion.
    pub(super) witnesses: Arc<Witnesses>,
    /// The first broken state that was found.
    pub(super) first: Arc<OnceLock<Digest>>,
}

/// States in which something has happened, each counted when it is expanded.
#[derive(Debug, Default)]
pub(super) struct Witnesses {
    counts: [AtomicU64; 7],
}

impl Witnesses {
    /// What is counted.
    pub(super) const NAMES: [&str; 7] = [
        "applied",
        "declined",
        "escalated",
        "escalated and yet applied",
        "applied reported after the escalation",
        "benign applied",
        "at rest",
    ];

    fn of(setup: &Setup, world: &World, kept: &CustodianDisk) -> u8 {
        let ended = |item: usize| kept.items.get(item).and_then(|kept| kept.ended);
        let effects = |item: usize| world.effects.get(item).copied().unwrap_or(0) > 0;
        let any = |wanted: &dyn Fn(usize) -> bool| (0..setup.items()).any(wanted);
        let is = |item: usize, how: Terminal| ended(item).is_some_and(|(as_is, _)| as_is == how);
        [
            any(&|item| is(item, Terminal::Applied)),
            any(&|item| is(item, Terminal::Declined)),
            any(&|item| is(item, Terminal::Escalated)),
            any(&|item| is(item, Terminal::Escalated) && effects(item)),
            any(&|item| ended(item).is_some_and(|(_, late)| late)),
            any(&|item| !setup.is_admissible(item) && effects(item)),
            at_rest(setup, world),
        ]
        .into_iter()
        .rev()
        .fold(0, |bits, happened| bits << 1 | u8::from(happened))
    }

    fn count(&self, happened: u8) {
        for (bit, count) in self.counts.iter().enumerate() {
            count.fetch_add(u64::from(happened >> bit & 1), Ordering::Relaxed);
        }
    }

    /// States in which each was seen.
    pub(super) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        Self::NAMES.into_iter().zip(counts)
    }
}

impl Checked {
    /// Whether another broken state was found before. The checker reports the last one it finds
    /// and searches breadth first, so with the first alone the path reported is a shortest one.
    fn is_not_first(&self, state: &State) -> bool {
        *self.first.get_or_init(|| state.digest) != state.digest
    }

    /// The nodes' digest of an exact state, once what a reduced one does at once is done.
    fn calmed(&self, world: &World) -> Digest {
        let mut world = world.clone();
        world.calm(&self.setup);
        let seen = Seen::of(&world, None);
        digests(&self.setup, &world, &seen).nodes
    }

    /// A state, after what is done at once.
    fn state(&self, mut world: World, last: Option<&State>) -> State {
        let setup = &self.setup;
        if !setup.exact {
            world.calm(setup);
            world.answer_known(setup);
        }
        let seen = Seen::of(&world, last.map(|last| (&last.world, &last.seen)));
        world.check(setup, &seen);
        let digests = digests(setup, &world, &seen);
        if let Some(nodes) = &self.collect.nodes {
            let digest = if setup.exact { self.calmed(&world) } else { digests.nodes };
            nodes.lock().unwrap_or_else(PoisonError::into_inner).insert(digest);
        }
        if let Some(paper) = &self.collect.paper {
            let state = abstracted(setup, &world, &seen);
            paper.lock().unwrap_or_else(PoisonError::into_inner).extend(state);
        }
        let happened = seen.kept.as_ref().map_or(0, |kept| Witnesses::of(setup, &world, kept));
        State { world, seen, digest: digests.whole, happened }
    }
}

impl Model for Checked {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.state(World::first(&self.setup), None)]
    }

    fn actions(&self, state: &State, found: &mut Vec<Action>) {
        self.witnesses.count(state.happened);
        actions(&self.setup, &state.world, found);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut world = last.world.clone();
        world.act(&self.setup, &action)?;
        Some(self.state(world, Some(last)))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! always {
            ($($rule:ident),*) => {
                vec![$(Property::<Self>::always(Rule::$rule.name(), |model, state| {
                    !state.world.broken.has(Rule::$rule) || model.is_not_first(state)
                })),*]
            };
        }
        always![
            TypeOk,
            Ab2Persistence,
            Ab3EffectivelyOnce,
            Ab4FailSafe,
            DeliverOrReport,
            BenignSideBestEffort,
            Le1Together,
            Ab1DiskFirst,
            Ts1Final,
            Dl1NotLate,
            AppliedIsApplied,
            DeclinedIsNotApplied,
            Live
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exhaust::Receiving;
    use std::collections::{BTreeMap, BTreeSet, VecDeque};

    fn nexts(model: &Checked, state: &State) -> Vec<(Action, State)> {
        let mut found = Vec::new();
        model.actions(state, &mut found);
        let next = |action: Action| Some((action.clone(), model.next_state(state, action)?));
        found.into_iter().filter_map(next).collect()
    }

    /// States that count as one have the same futures: whichever of them is met first stands for all.
    fn one_future(setup: Setup) {
        let model = Checked {
            setup,
            collect: Collect::default(),
            witnesses: Arc::default(),
            first: Arc::default(),
        };
        let mut futures: BTreeMap<Digest, BTreeSet<Digest>> = BTreeMap::new();
        let mut queue: VecDeque<(State, Vec<String>)> =
            model.init_states().into_iter().map(|first| (first, Vec::new())).collect();
        while let Some((state, path)) = queue.pop_front() {
            let nexts = nexts(&model, &state);
            let here: BTreeSet<Digest> = nexts.iter().map(|(_, next)| next.digest).collect();
            if let Some(known) = futures.get(&state.digest) {
                let new = nexts.iter().find(|(_, next)| !known.contains(&next.digest));
                let new = new.map(|(action, _)| action.to_string());
                assert!(*known == here, "after {path:#?}: new by {new:?}");
                continue;
            }
            futures.insert(state.digest, here);
            queue.extend(nexts.into_iter().map(|(action, next)| {
                (next, path.iter().cloned().chain([action.to_string()]).collect())
            }));
        }
        assert!(futures.len() > 100, "{} states", futures.len());
    }

    fn small(admissible: usize, benign: usize) -> Setup {
        Setup {
            admissible,
            benign,
            deadline: 2,
            max_retries: 1,
            custodian_crashes: Some(0),
            receiver_crashes: Some(0),
            breaks: Some(0),
            ..Setup::crashing()
        }
    }

    #[test]
    fn states_that_count_as_one_have_one_future() {
        one_future(Setup { receiver: Receiving::Declining, ..small(2, 0) });
        one_future(Setup { breaks: Some(1), ..small(2, 0) });
    }

    #[test]
    fn states_after_a_crash_have_one_future() {
        one_future(Setup { receiver_crashes: Some(1), ..small(1, 1) });
        one_future(Setup { custodian_crashes: Some(1), ..small(2, 0) });
    }

    #[test]
    fn states_with_a_handler_have_one_future() {
        one_future(Setup { receiver: Receiving::InDoubt, ..small(1, 0) });
    }
}
