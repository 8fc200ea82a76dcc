//! Each baseline lacks something, and is seen to lack it on seeds on which custody loses nothing.
#![allow(missing_docs, clippy::unwrap_used)]

use netsim::{Measures, Options, Policy, run, run_model};

/// Hard seeds under a policy, by `how`.
fn hard(policy: Policy, how: impl Fn(&Options) -> netsim::Report) -> Measures {
    let mut total = Measures::default();
    for seed in 0..10 {
        let options = Options { seed, policy, ..Options::builtin("hard").unwrap() };
        let report = how(&options);
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        total.merge(&report.measures);
    }
    assert!(total.transfers > 2_900, "{} of 3,000 taken", total.transfers);
    let told = total.declined + total.escalated;
    assert_eq!(total.applied + told + total.silent, total.transfers);
    total
}

#[test]
fn custody_loses_nothing_and_applies_nothing_twice() {
    let seen = hard(Policy::Custody, run);
    assert_eq!((seen.silent, seen.doubled), (0, 0));
    assert!(seen.declined > 50 && seen.escalated > 50 && seen.spurious > 50);
}

/// So what a baseline loses, it loses for the trait that differs.
#[test]
fn custody_as_a_baseline_loses_nothing_either() {
    let seen = hard(Policy::Custody, run_model);
    assert_eq!((seen.silent, seen.doubled), (0, 0));
    assert!(seen.declined > 50 && seen.escalated > 50 && seen.spurious > 50);
}

#[test]
fn best_effort_on_datagrams_loses_silently() {
    let seen = hard(Policy::BestEffortDatagram, run);
    assert!(seen.silent > 600, "{}", seen.silent);
    assert_eq!((seen.escalated, seen.declined, seen.logged), (0, 0, 0), "nobody is told");
}

#[test]
fn best_effort_on_streams_loses_less_and_silently() {
    let [streams, datagrams] =
        [Policy::BestEffortStream, Policy::BestEffortDatagram].map(|policy| hard(policy, run));
    assert!(streams.silent > 300, "{}", streams.silent);
    assert!(streams.silent < datagrams.silent);
}

#[test]
fn at_least_once_loses_what_its_memory_held_and_what_it_gave_up() {
    let seen = hard(Policy::AtLeastOnce, run);
    assert!(seen.silent > 50, "{}", seen.silent);
    assert_eq!((seen.escalated, seen.doubled), (0, 0));
}

#[test]
fn retry_without_dedup_applies_twice() {
    let seen = hard(Policy::RetryWithoutDedup, run);
    assert!(seen.doubled > 300, "{}", seen.doubled);
}

#[test]
fn one_shot_push_loses_some_that_no_log_names() {
    let seen = hard(Policy::OneShotPush, run);
    assert!(seen.silent > 300 && seen.logged > 200);
    assert!(seen.silent > seen.logged, "receipt was answered, and the effect never came");
}

#[test]
fn receipt_for_application_loses_what_was_received() {
    let seen = hard(Policy::ReceiptAck, run);
    assert!(seen.silent > 20, "{}", seen.silent);
    assert_eq!(seen.doubled, 0);
}

#[test]
fn a_ledger_in_memory_applies_twice() {
    let seen = hard(Policy::VolatileLedger, run);
    assert!(seen.doubled > 5, "{}", seen.doubled);
    assert_eq!(seen.silent, 0);
}

#[test]
fn a_baseline_is_a_function_of_its_seed() {
    for policy in [Policy::AtLeastOnce, Policy::VolatileLedger, Policy::BestEffortStream] {
        let options = |seed| Options { seed, policy, ..Options::builtin("hard").unwrap() };
        let [first, again, other] = [3, 3, 4].map(|seed| run(&options(seed)));
        assert_eq!((first.trace, first.events), (again.trace, again.events));
        assert_ne!(first.trace, other.trace);
    }
}
