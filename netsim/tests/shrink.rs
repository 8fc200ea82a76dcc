//! A broken promise is made small, written down, and broken again by the file.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use netsim::shrink::{Broken, Progress, broken, shrink};
use netsim::{Mode, Options, Sabotage, run, run_logged};
use std::collections::BTreeSet;

#[test]
fn dt1_a_run_is_the_same_with_its_faults_and_obligations_named() {
    for seed in 0..20 {
        let options = Options::swarm(seed, 40);
        let explicit = options.explicit();
        assert_eq!(run(&options).trace, run(&explicit).trace, "seed {seed}");
        let read = Options::from_toml(&explicit.to_toml().unwrap()).unwrap();
        assert_eq!(read, explicit);
        assert_eq!(read.explicit(), explicit, "named once is named");
    }
}

#[test]
fn dt1_an_obligation_left_out_changes_nothing_about_the_others() {
    let whole = Options { transfers: 60, faults_ms: 60_000, keys: 1_000_000, ..Options::quiet(5) };
    let (_, log) = run_logged(&whole);
    for number in [0, 17, 59] {
        let alone = Options { only: Some(BTreeSet::from([number])), ..whole.clone() };
        let (report, lines) = run_logged(&alone);
        assert_eq!(report.counts.applied, 1);
        for line in lines.iter().filter(|line| line.what.contains("obligation_id")) {
            assert!(log.contains(line), "{line:?} is not in the whole run");
        }
        let told = lines.iter().filter(|line| line.what.contains("terminal")).count();
        assert_eq!(told, 1);
    }
}

/// A receiver without a ledger, and the first run that shows it.
fn forgetful() -> (Options, Broken) {
    (0..50)
        .find_map(|seed| {
            let options = Options {
                sabotage: Sabotage::NoLedger,
                mode: Mode::Datagrams,
                ..Options::swarm(seed, 60)
            };
            let found = broken(&options)?;
            (found.rule == "AB-3").then_some((options, found))
        })
        .unwrap()
}

#[test]
fn a_second_effect_shrinks_to_an_obligation_or_two_and_replays_from_its_file() {
    let (options, found) = forgetful();
    let before = options.explicit().timeline.unwrap().len();
    let mut seen = 0;
    let mut watch = |progress: &Progress<'_>| {
        seen += 1;
        assert!(progress.obligations <= 60);
        true
    };
    let (small, broken_by_small, runs) = shrink(&options, 3_000, &mut watch).unwrap();
    assert!(seen > 10 && runs <= 3_000, "{runs}");
    assert_eq!(broken_by_small.rule, found.rule);
    let (faults, left) =
        (small.timeline.as_ref().unwrap().len(), small.only.as_ref().unwrap().len());
    assert!(left <= 3, "{left} obligations are left");
    assert!(faults <= before / 2, "{faults} of {before} faults are left");
    assert_eq!(small.noise, 0, "what is left is named");
    let file = small.to_toml().unwrap();
    let again = Options::from_toml(&file).unwrap();
    assert_eq!(broken(&again), Some(broken_by_small), "{file}");
}

#[test]
fn a_shrink_ends_when_it_is_told_to_and_at_its_limit() {
    let (options, found) = forgetful();
    let (some, still, runs) = shrink(&options, 20, &mut |_| true).unwrap();
    assert_eq!((still.rule.as_str(), runs), (found.rule.as_str(), 20));
    assert_eq!(broken(&some), Some(still));
    let (_, still, runs) = shrink(&options, 3_000, &mut |progress| progress.runs < 5).unwrap();
    assert_eq!((still.rule.as_str(), runs), (found.rule.as_str(), 5));
}

#[test]
fn what_breaks_nothing_is_not_shrunk() {
    let options = Options { transfers: 5, faults_ms: 1_000, ..Options::quiet(1) };
    assert_eq!(shrink(&options, 100, &mut |_| true), None);
}
