//! Exhaustive check of the real custody core: two [`Custody`](proto::custody::Custody) machines, their
//! disks and the network between them, in every state that can be reached at given bounds.
//!
//! The bounds are those of the protocol paper's TLA+ model ([`Setup::paper`]): four obligations, three of
//! them admissible, four retries, a deadline of six ticks. [`Setup::crashing`] adds what that model leaves
//! out: either side dies in any state, any number of times, with its last commit durable or not, and starts
//! again; connections are lost with and without notice.
//!
//! # What is explored
//!
//! The network keeps what was sent for as long as its connection has an end to arrive at, so every message
//! arrives never, once or often, and in any order. A commit is durable before the next input is handled, or
//! the node dies first; with [`Setup::in_flight`] further inputs are handled while it is on its way, and a
//! crash keeps any prefix. Time goes on by ticks, once no alarm is due ([`Setup::late_alarms`]: or is), to
//! the last deadline, and then to a last look when the ledger may have been pruned.
//!
//! Not explored: two open connections at a time, clocks that differ, decisions on one governed key, limits
//! and rates, more obligations than stated. The simulator has these at random.
//!
//! # Liveness
//!
//! Time is bounded and the custodian acts on alarms alone, so liveness is two properties of states. The
//! alarms that are due, and recovery, end after a bounded number of steps, so that time goes on; and when
//! time has come to its end and the custodian is up with nothing due, nothing is pending. It holds for
//! every path on which the custodian is up at last for long enough; what the receiver and the network do
//! does not matter.
//!
//! # What is reduced, and why
//!
//! States that nothing can tell apart count as one (`key.rs`). Numbers of sessions and refs are compared
//! and never computed with; what counts is whether the custodian takes an ack of them and whether the
//! connection still carries. Obligations of one kind with a governed key each differ in name only, as long
//! as no limit is reached: a state and one with two of them exchanged have the same future, but for
//! names. That this holds of the code is tested, not only argued: at small bounds each state that is met
//! again must have the very successors of the one that stands for it (`model.rs`). With commits in flight
//! nothing is summed up, and states are told apart by all there is in them.
//!
//! Some steps are done at once, or as one (`reduce.rs`, `action.rs`):
//!
//! - An alarm that writes and sends nothing. It changes what one node remembers, and nothing that any rule
//!   or the other node sees; an input handled before it instead ends in the same state, or in one with
//!   another copy of an offer on the way, which is there already. Recovery likewise, except where a
//!   handler decides: there a receiver answers differently before and after.
//! - The answer to a copy of an offer that the ledger has. It writes nothing (that is checked), and an ack
//!   more on the way forces nothing: whatever can happen without it can happen with it.
//! - Where every answer of the receiver is its last, all copies of an offer on the way arrive together, and
//!   so do all acks that say the same of one obligation. The first of them does what there is to do;
//!   the others find it done. That they do is seen here only for copies in one commit and for copies sent
//!   later; for each copy in a commit of its own it rests on the comparison below.
//!
//! So each path without reductions should have one here that passes through the same states of both
//! nodes. This second part is an argument and no proof, so it is tried: [`check_nodes`] explores bounds
//! small enough without any reduction, and the states of both nodes (disk and memory) must be the same set.
//!
//! A state is recognised by 64 bits of hash. With n states the odds that two were taken for one are about
//! n²/2⁶⁵: 4·10⁻⁸ for a million.

mod action;
mod exact;
mod key;
mod look;
mod machine;
mod model;
pub mod paper;
mod reduce;
mod rules;
mod setup;
mod state;
mod wire;

pub use rules::Rule;
pub use setup::{Budget, ITEMS_MAX, Receiving, Setup};

use crate::check::Class;
use model::{Checked, Witnesses};
use paper::Abstract;
use serde::Serialize;
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time between two looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a check found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was checked.
    pub setup: Setup,
    /// What was reduced.
    pub reductions: Vec<&'static str>,
    /// States made, those met before among them.
    pub states: usize,
    /// States that differ.
    pub unique: usize,
    /// Longest shortest path to a state, in actions, with the first state.
    pub depth: usize,
    /// Whether the whole space was seen.
    pub complete: bool,
    /// Each property, and whether it holds in all states seen.
    pub properties: BTreeMap<&'static str, bool>,
    /// States in which something was seen to have happened, so that no property holds for want of an
    /// occasion.
    pub witnessed: BTreeMap<&'static str, u64>,
    /// A path to a state in which the first broken rule is broken.
    pub counterexample: Option<Counterexample>,
}

/// How a rule breaks.
#[derive(Clone, Debug, Serialize)]
pub struct Counterexample {
    /// Its name.
    pub rule: &'static str,
    /// What happened, in order.
    pub steps: Vec<String>,
}

impl Report {
    /// What broke, if something did.
    #[must_use]
    pub fn worst(&self) -> Option<Class> {
        let live = Rule::Live.name();
        let mut broken = self.properties.iter().filter(|(_, holds)| !**holds).peekable();
        broken.peek()?;
        Some(if broken.any(|(name, _)| *name != live) { Class::Safety } else { Class::Liveness })
    }

    /// Whether a rule holds in every state.
    #[must_use]
    pub fn holds(&self, rule: Rule) -> bool {
        self.complete && self.properties.get(rule.name()).copied().unwrap_or(false)
    }
}

/// How a check is run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Threads.
    pub threads: usize,
    /// States made at most, about; 0: no limit.
    pub states_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { threads: 1, states_max: 0 }
    }
}

/// States of one obligation in the paper's model, and whether it is admissible.
type OfOne = BTreeSet<(bool, Abstract)>;

/// What is collected of the states met.
#[derive(Clone, Debug, Default)]
struct Collect {
    nodes: Option<Arc<Mutex<BTreeSet<u64>>>>,
    paper: Option<Arc<Mutex<OfOne>>>,
}

fn taken<T: Ord + Clone>(set: &Mutex<BTreeSet<T>>) -> BTreeSet<T> {
    std::mem::take(&mut *set.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Checks every state that can be reached. `go_on` is told how many were made and how many differ, some times
/// a second; the check ends early when it says no.
#[must_use]
pub fn check(setup: &Setup, limits: &Limits, go_on: impl FnMut(usize, usize) -> bool) -> Report {
    run(setup, limits, Collect::default(), go_on)
}

/// Checks, and gives digests of the two nodes, without what is between them, in each state.
#[must_use]
pub fn check_nodes(
    setup: &Setup,
    limits: &Limits,
    go_on: impl FnMut(usize, usize) -> bool,
) -> (Report, BTreeSet<u64>) {
    let nodes: Arc<Mutex<BTreeSet<u64>>> = Arc::default();
    let collect = Collect { nodes: Some(nodes.clone()), ..Collect::default() };
    (run(setup, limits, collect, go_on), taken(&nodes))
}

/// Checks, and gives what the obligations are in the paper's model in each state, and whether they are
/// admissible.
#[must_use]
pub fn check_paper(
    setup: &Setup,
    limits: &Limits,
    go_on: impl FnMut(usize, usize) -> bool,
) -> (Report, BTreeSet<(bool, Abstract)>) {
    let paper: Arc<Mutex<OfOne>> = Arc::default();
    let collect = Collect { paper: Some(paper.clone()), ..Collect::default() };
    (run(setup, limits, collect, go_on), taken(&paper))
}

fn run(
    setup: &Setup,
    limits: &Limits,
    collect: Collect,
    mut go_on: impl FnMut(usize, usize) -> bool,
) -> Report {
    let witnesses = Arc::new(Witnesses::default());
    let model = Checked {
        setup: setup.clone(),
        collect,
        witnesses: witnesses.clone(),
        first: Arc::default(),
    };
    let mut builder =
        model.checker().threads(limits.threads).finish_when(HasDiscoveries::AnyFailures);
    if limits.states_max > 0 {
        builder = builder.target_state_count(limits.states_max);
    }
    let checker = builder.spawn_bfs();
    let mut stopped = false;
    while !checker.is_done() && !stopped {
        std::thread::sleep(LOOK_EVERY);
        stopped = !go_on(checker.state_count(), checker.unique_state_count());
    }
    let discoveries = checker.discoveries();
    let broken = |rule: &Rule| discoveries.get(rule.name()).cloned();
    let first = Rule::ALL.iter().find_map(|rule| Some((rule.name(), broken(rule)?)));
    let cut = limits.states_max > 0 && checker.state_count() >= limits.states_max;
    Report {
        setup: setup.clone(),
        reductions: setup.reductions(),
        states: checker.state_count(),
        unique: checker.unique_state_count(),
        depth: checker.max_depth(),
        complete: first.is_none() && !stopped && !cut,
        properties: Rule::ALL.iter().map(|rule| (rule.name(), broken(rule).is_none())).collect(),
        witnessed: witnesses.counts().collect(),
        counterexample: first.map(|(rule, path)| Counterexample {
            rule,
            steps: path.into_actions().iter().map(ToString::to_string).collect(),
        }),
    }
}
