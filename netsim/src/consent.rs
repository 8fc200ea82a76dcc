//! Exhaustive check of the real machine of consent ([`Lifecycle`](proto::consent::Lifecycle)), in every
//! state that one caller and one callee can come into at given bounds.
//!
//! The bounds are those of the protocol paper's TLA+ model ([`Setup::paper`]): three versions of the policy,
//! two of the caller, four adherence events. That model lets a caller reject and be asked again for ever;
//! here a chain has a limit of records ([`Setup::records`]), above what all changes together need.
//!
//! # What is explored
//!
//! Whatever the machine may be told, it is told in every state: what belongs there, and what a caller that
//! lies would send. That is each decision; each event, about a disputed claim too, and resting on the last
//! record, on an earlier one or on none; skills by each set of claims; each turn of a review. The policy and
//! the caller change in any state, time may run out, and the machine may be lost and recovered. What the machine refuses must leave it as it was.
//!
//! What has happened is kept beside the machine, and it is from that, not from what the machine says, that
//! the rules are decided.
//!
//! # Liveness
//!
//! Changes are bounded, and each side does what is to be done ([`Duty`](proto::consent::Duty)): that is the
//! paper's weak fairness. So liveness is a property of states: from each in which consent is stale, or on
//! its way, doing what is to be done ends in a new decision after a bounded number of steps.

mod model;
pub mod paper;
mod rules;
mod world;

pub use rules::Rule;

use model::{Checked, Witnesses};
use proto::consent::{Side, State, Triggers};
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

/// What is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Versions of the policy.
    pub versions: u8,
    /// Versions of the caller.
    pub capabilities: u8,
    /// Adherence events.
    pub events: u8,
    /// Whether those are of each record, or of the whole trail as in the paper's model.
    pub each_record: bool,
    /// Records in the chain.
    pub records: u8,
    /// Whose machine it is.
    pub side: Side,
    /// What the records say of their end.
    pub until: Until,
    /// What ends them in any case.
    pub always: Triggers,
    /// Whether only that happens which may happen in the paper's model: changes where they may be there,
    /// and seen at once; no withdrawal, and no person who says no.
    pub as_paper: bool,
    /// A rule the machine breaks on purpose.
    #[cfg(feature = "mutants")]
    pub mutant: Option<proto::consent::Mutant>,
    /// The one rule that is held against the states, if not all are.
    pub watch: Option<Rule>,
}

/// What records say of their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Until {
    /// A new version of the policy.
    VersionBump,
    /// A change of the caller.
    CapabilityChange,
    /// Either.
    AnyChange,
    /// A time, which comes once, or either.
    Time,
}

impl Setup {
    /// The bounds of the paper's model.
    #[must_use]
    pub const fn paper() -> Self {
        Self {
            versions: 3,
            capabilities: 2,
            events: 4,
            each_record: false,
            records: 5,
            side: Side::Caller,
            until: Until::AnyChange,
            always: Triggers::ALL,
            as_paper: false,
            #[cfg(feature = "mutants")]
            mutant: None,
            watch: None,
        }
    }
}

/// What a check found.
#[derive(Clone, Debug)]
pub struct Report {
    /// States that differ.
    pub unique: usize,
    /// Longest shortest path to a state, in actions, with the first state.
    pub depth: usize,
    /// Each property, and whether it holds in all states seen.
    pub properties: BTreeMap<&'static str, bool>,
    /// Which states of the lifecycle follow which, and by what.
    pub edges: BTreeSet<(State, &'static str, State)>,
    /// What each state is in the paper's model.
    pub paper: BTreeSet<paper::Abstract>,
    /// How often something was seen to happen, so that no property holds for want of an occasion.
    pub witnessed: BTreeMap<&'static str, u64>,
    /// The first broken rule, and a shortest path to it.
    pub counterexample: Option<(&'static str, Vec<String>)>,
}

impl Report {
    /// Whether all was seen and every rule holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.counterexample.is_none() && self.properties.values().all(|holds| *holds)
    }
}

/// Checks every state that can be reached.
#[must_use]
pub fn check(setup: &Setup, threads: usize) -> Report {
    let witnesses = Arc::new(Witnesses::default());
    let model = Checked::new(setup.clone(), witnesses.clone());
    let checker = model
        .checker()
        .threads(threads)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let discoveries = checker.discoveries();
    let broken = |rule: &Rule| discoveries.get(rule.name()).cloned();
    let first = Rule::ALL.iter().find_map(|rule| Some((rule.name(), broken(rule)?)));
    Report {
        unique: checker.unique_state_count(),
        depth: checker.max_depth(),
        properties: Rule::ALL.iter().map(|rule| (rule.name(), broken(rule).is_none())).collect(),
        edges: witnesses.edges.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        paper: witnesses.paper.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        witnessed: witnesses.counts().collect(),
        counterexample: first.map(|(rule, path)| {
            (rule, path.into_actions().iter().map(|action| format!("{action:?}")).collect())
        }),
    }
}
