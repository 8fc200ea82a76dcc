//! Every reachable state of the real core, at bounds that fit a debug build. How many there are is
//! asserted, so that a check that explores nothing does not pass.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use netsim::exhaust::{
    Limits, Receiving, Report, Rule, Setup, check, check_nodes, check_paper, paper,
};

fn whole(setup: &Setup) -> Report {
    let report = check(setup, &Limits { threads: 2, states_max: 0 }, |_, _| true);
    assert!(report.complete, "{:#?}", report.counterexample);
    assert!(Rule::ALL.iter().all(|rule| report.holds(*rule)));
    report
}

/// One obligation, its effect and its ends, whatever crashes.
#[test]
fn one_obligation_with_crashes() {
    let report = whole(&Setup {
        admissible: 1,
        benign: 0,
        deadline: 3,
        max_retries: 1,
        ..Setup::crashing()
    });
    assert_eq!(report.unique, 3335);
    for seen in ["applied", "escalated", "escalated and yet applied", "at rest"] {
        assert!(report.witnessed[seen] > 0, "nothing was ever {seen}");
    }
}

#[test]
fn two_obligations_and_one_crash_of_each_side() {
    let report = whole(&Setup {
        admissible: 1,
        benign: 1,
        deadline: 2,
        max_retries: 1,
        custodian_crashes: Some(1),
        receiver_crashes: Some(1),
        breaks: Some(0),
        ..Setup::crashing()
    });
    assert_eq!(report.unique, 4031);
    assert!(report.witnessed["benign applied"] > 0);
}

/// A handler that declines, defers and leaves in doubt.
#[test]
fn one_obligation_in_doubt() {
    let report = whole(&Setup {
        admissible: 1,
        benign: 0,
        deadline: 3,
        max_retries: 1,
        receiver: Receiving::InDoubt,
        surface: false,
        ..Setup::paper()
    });
    assert_eq!(report.unique, 834);
    assert!(report.witnessed["declined"] > 0);
}

/// Further inputs are handled while a commit is on its way, and a crash keeps any prefix.
#[test]
fn commits_in_flight() {
    let report = whole(&Setup {
        admissible: 1,
        benign: 0,
        deadline: 2,
        max_retries: 1,
        in_flight: 1,
        custodian_crashes: Some(0),
        receiver_crashes: Some(1),
        breaks: Some(0),
        ..Setup::crashing()
    });
    assert_eq!(report.unique, 2828);
}

/// The paper's model at its bounds has the states it says, and an obligation of the real core comes
/// into exactly those of one there. (All four at once are for the program: `netsim exhaust --paper`.)
#[test]
fn the_paper_s_states_are_met() {
    let bounds = Setup::paper();
    let states = paper::states(&bounds);
    assert_eq!(states.len(), 31_250);
    let there = paper::of_one(&bounds, &states);
    assert_eq!(there.len(), 25 + 2 + 1); // with the one of `Abstract::ACK_ON_ITS_WAY`
    let small = Setup { admissible: 1, ..bounds };
    let (report, here) = check_paper(&small, &Limits::default(), |_, _| true);
    assert!(report.complete, "{:#?}", report.counterexample);
    assert_eq!(here, there);
}

/// With reductions the nodes come into the same states as without. (With crashes that takes minutes:
/// `netsim exhaust --compare`.)
#[test]
fn reductions_lose_nothing() {
    let small = Setup { admissible: 1, benign: 0, deadline: 2, max_retries: 1, ..Setup::paper() };
    let built_in = Setup { receiver: Receiving::BuiltIn, ..small.clone() };
    for setup in [small, built_in] {
        let (reduced, few) = check_nodes(&setup, &Limits::default(), |_, _| true);
        let (exact, all) =
            check_nodes(&Setup { exact: true, ..setup }, &Limits::default(), |_, _| true);
        assert!(reduced.complete && exact.complete);
        assert!(reduced.unique < exact.unique);
        assert_eq!(few, all);
    }
}
