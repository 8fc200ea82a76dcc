//! A fixed set of swarm runs: every option drawn from the seed, every checker on.
#![allow(missing_docs, clippy::unwrap_used)]

use netsim::{Counts, Options, run};

/// Runs the seeds from `first`, and adds their counts up.
fn swarm(first: u64) -> Counts {
    let mut total = Counts::default();
    for seed in first..first + 50 {
        let report = run(&Options::swarm(seed, 50));
        assert!(
            report.violations.is_empty(),
            "netsim run --seed {seed} --transfers 50\n{:#?}\n{:?}",
            report.violations,
            report.options,
        );
        total.add(&report.counts);
    }
    // A swarm that never gets there tests nothing.
    for (what, count) in [
        ("applied", total.applied),
        ("declined", total.declined),
        ("escalated", total.escalated),
        ("spurious", total.spurious),
        ("best effort", total.best_effort),
    ] {
        assert!(count > 10, "{count} {what}");
    }
    total
}

#[test]
fn seeds_0_to_50() {
    swarm(0);
}

#[test]
fn seeds_50_to_100() {
    swarm(50);
}

#[test]
fn seeds_100_to_150() {
    swarm(100);
}

#[test]
fn seeds_150_to_200() {
    swarm(150);
}

/// Seeds that broke a promise once, with what it was.
#[test]
fn seeds_that_found_something() {
    for (seed, transfers) in [
        (8, 50),     // attempt records left behind after recovery
        (16, 50),    // a deferral after recovery refunded a retry
        (98, 50),    // acknowledged escalations stayed for ever
        (254, 50),   // an intent pruned while its handler was asked
        (1546, 50),  // safe(O) of an id's first life lowered the guard of its second
        (5463, 60),  // pruning forgot ledger entries still on their way to the disk
        (8896, 60),  // an older obligation's deferred effect happened after a newer one
        (45763, 80), // an effect in doubt was declined as expired
    ] {
        let report = run(&Options::swarm(seed, transfers));
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
    }
}
