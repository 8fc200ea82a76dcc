//! Every state of the real machine of consent, at the paper's bounds. How many there are is asserted, so
//! that a check that explores nothing does not pass.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use netsim::consent::{Report, Rule, Setup, Until, check, paper};
use proto::consent::{Side, State, Triggers};
use std::collections::BTreeSet;

fn whole(setup: &Setup) -> Report {
    let report = check(setup, 2);
    assert!(report.holds(), "{setup:?}: {:#?}", report.counterexample);
    assert_eq!(report.properties.len(), Rule::ALL.len());
    report
}

fn small() -> Setup {
    Setup { versions: 2, events: 2, records: 3, ..Setup::paper() }
}

/// S1 to S7, L1 and L2; and the machine goes by these edges, and by no others.
#[test]
fn the_paper_s_bounds() {
    use State::{Accepted, Conditional, GovernanceReview, Idle, PolicyFetched, Rejected, Stale};
    let report = whole(&Setup::paper());
    assert_eq!(report.unique, 219_392);
    for (what, count) in &report.witnessed {
        assert!(*count > 0, "never: {what}");
    }
    let edges: BTreeSet<_> = [
        (Idle, "fetch", PolicyFetched),
        (Stale, "fetch", PolicyFetched),
        (Rejected, "fetch", PolicyFetched),
        (PolicyFetched, "accept", Accepted),
        (PolicyFetched, "condition", Conditional),
        (PolicyFetched, "reject", Rejected),
        (PolicyFetched, "review", GovernanceReview),
        (GovernanceReview, "judge", PolicyFetched),
        (GovernanceReview, "answer", PolicyFetched),
        // Consent can be withdrawn. The paper's model has no such edge.
        (Accepted, "reject", Rejected),
        (Conditional, "reject", Rejected),
        // Whatever has changed is seen by the next input. In the paper's model a review does not notice.
        (Accepted, "look", Stale),
        (Conditional, "look", Stale),
        (PolicyFetched, "look", Stale),
        (GovernanceReview, "look", Stale),
    ]
    .into();
    assert_eq!(report.edges, edges);
}

/// Held to what may happen in the paper's model, the machine comes into exactly the states it has there.
#[test]
fn the_paper_s_states_are_met() {
    let setup = Setup { as_paper: true, ..Setup::paper() };
    let there = paper::states(&setup);
    let here = whole(&setup).paper;
    assert_eq!(here.difference(&there).next(), None, "only here");
    assert_eq!(there.difference(&here).next(), None, "only there");
    assert_eq!(there.len(), 2580);
}

#[test]
fn the_callee_s_machine() {
    let report = whole(&Setup { side: Side::Callee, ..small() });
    assert_eq!(report.unique, 4481);
}

/// As many events under each record.
#[test]
fn events_of_each_record() {
    let report = whole(&Setup { each_record: true, ..small() });
    assert_eq!(report.unique, 17_767);
}

/// Records that hold until something of their own, and a callee that leaves it to them.
#[test]
fn what_ends_a_record_is_its_own_to_say() {
    let setup = Setup { always: Triggers::NONE, events: 1, ..small() };
    for (until, unique) in
        [(Until::VersionBump, 3149), (Until::CapabilityChange, 3149), (Until::Time, 28_258)]
    {
        let report = whole(&Setup { until, ..setup.clone() });
        assert_eq!(report.unique, unique, "{until:?}");
    }
}
