//! Each property of the exhaustive check is broken by a core made wrong at one place, and found out.
//!
//! `cargo test -p abhyasa-netsim --no-default-features --features mutants --test exhaust_mutants`
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use netsim::exhaust::{Limits, Receiving, Rule, Setup, check};
use proto::mutant::Mutant;

/// Small, with crashes, and a benign obligation.
fn crashing() -> Setup {
    Setup { admissible: 1, deadline: 3, max_retries: 2, ..Setup::crashing() }
}

/// A handler that declines, and leaves in doubt.
fn handled() -> Setup {
    Setup {
        receiver: Receiving::InDoubt,
        surface: false,
        custodian_crashes: Some(1),
        receiver_crashes: Some(1),
        breaks: Some(0),
        benign: 0,
        ..crashing()
    }
}

fn breaks(setup: Setup, mutant: Mutant, rule: Rule) {
    let setup = Setup { mutant: Some(mutant), watch: Some(rule), ..setup };
    let report = check(&setup, &Limits { threads: 2, states_max: 0 }, |_, _| true);
    let found = report.counterexample;
    assert_eq!(found.map(|found| found.rule), Some(rule.name()), "{mutant:?} is overlooked");
}

#[test]
fn type_ok() {
    breaks(crashing(), Mutant::ForgetsPending, Rule::TypeOk);
}

#[test]
fn ab2_persistence() {
    let tight = Setup { max_retries: 1, ..crashing() };
    breaks(tight, Mutant::IgnoresBudget, Rule::Ab2Persistence);
    breaks(crashing(), Mutant::SkipsAttempts, Rule::Ab2Persistence);
}

#[test]
fn ab3_effectively_once() {
    breaks(crashing(), Mutant::AppliesAgain, Rule::Ab3EffectivelyOnce);
    let flying = Setup { in_flight: 2, custodian_crashes: Some(0), ..crashing() };
    breaks(flying, Mutant::OverlooksStaged, Rule::Ab3EffectivelyOnce);
}

#[test]
fn ab4_fail_safe() {
    for mutant in [Mutant::EscalatesUnsafe, Mutant::EscalatesUnfiled, Mutant::SafeTwice] {
        breaks(crashing(), mutant, Rule::Ab4FailSafe);
    }
    breaks(handled(), Mutant::DeclineUnprotected, Rule::Ab4FailSafe);
}

#[test]
fn deliver_or_report() {
    breaks(crashing(), Mutant::SkipsPending, Rule::DeliverOrReport);
}

#[test]
fn benign_side_best_effort() {
    breaks(crashing(), Mutant::TakesInadmissible, Rule::BenignSideBestEffort);
}

#[test]
fn le1_together() {
    breaks(crashing(), Mutant::SkipsLedger, Rule::Le1Together);
    breaks(crashing(), Mutant::SkipsEffect, Rule::Le1Together);
}

#[test]
fn ab1_disk_first() {
    breaks(crashing(), Mutant::SkipsPending, Rule::Ab1DiskFirst);
}

#[test]
fn ts1_final() {
    breaks(crashing(), Mutant::LateReopens, Rule::Ts1Final);
}

#[test]
fn dl1_not_late() {
    breaks(crashing(), Mutant::AppliesLate, Rule::Dl1NotLate);
}

#[test]
fn applied_is_applied() {
    breaks(handled(), Mutant::DeclineIsApplied, Rule::AppliedIsApplied);
}

#[test]
fn declined_is_not_applied() {
    breaks(handled(), Mutant::DeclinesDoubt, Rule::DeclinedIsNotApplied);
}

#[test]
fn liveness() {
    breaks(crashing(), Mutant::LosesDeadline, Rule::Live);
    breaks(crashing(), Mutant::ForgetsPending, Rule::Live);
}
