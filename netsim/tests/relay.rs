//! Custody through a relay: what it forgets, passes on twice or never gets changes no promise, and a
//! decision for many is one object of its custodian.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use netsim::{Counts, Fault, FaultKind, Options, RelayModel, Report, run};

/// A decision of node 0 for so many others, through a relay that does it once for all or for each.
fn decision(targets: usize, fan_out: bool) -> Options {
    Options {
        nodes: targets + 1,
        relay: Some(RelayModel { fan_out }),
        star: true,
        decisions: 1,
        warm_up_ms: 2_000,
        faults_ms: 1,
        heal_after_ms: 20_000,
        timeline: Some(Vec::new()),
        ..Options::quiet(1)
    }
}

fn well(options: &Options) -> Report {
    let report = run(options);
    assert_eq!(report.violations, [], "{options:?}");
    report
}

#[test]
fn a_decision_for_many_is_one_object_for_each_its_own_custody() {
    let report = well(&decision(40, true));
    assert_eq!((report.counts.applied, report.counts.escalated), (40, 0));
    let m = &report.measures;
    assert_eq!((m.transfers, m.applied, m.silent, m.doubled), (40, 40, 0, 0));
    assert_eq!(m.custodian_objects, 1);
    let unicast = well(&decision(40, false)).measures;
    assert_eq!((unicast.applied, unicast.custodian_objects), (40, 40));
    assert!(unicast.custodian_bytes > 30 * m.custodian_bytes);
    assert_eq!(unicast.settled.count(), 1);
}

#[test]
fn who_missed_the_object_is_offered_its_own() {
    // Node 3 has no connection when the decision goes out, and one well before the deadline.
    let cut = FaultKind::Partition { a: 3, b: 6 };
    let away = Fault { at_ms: 0, for_ms: 6_000, what: cut };
    let options = Options {
        timeline: Some(vec![away]),
        // The decision is published when its connection has been given up.
        faults_ms: 4_000,
        idle_ms: 200,
        seed: 3,
        ..decision(5, true)
    };
    let report = well(&options);
    assert_eq!(report.counts.applied, 5);
    let objects = report.measures.custodian_objects;
    assert!(
        (2..=6).contains(&objects),
        "{objects}: the group's, a hello, and what node 3 was offered"
    );
}

#[test]
fn a_relay_that_forgets_everything_loses_nothing_silently() {
    let mut total = Counts::default();
    for at_ms in [4, 8, 12, 16, 20, 25] {
        for fan_out in [true, false] {
            let crash = Fault { at_ms, for_ms: 3_000, what: FaultKind::Crash { node: 21 } };
            let options =
                Options { timeline: Some(vec![crash]), idle_ms: 1_000, ..decision(20, fan_out) };
            let report = well(&options);
            assert_eq!((report.counts.applied, report.measures.silent), (20, 0), "at {at_ms} ms");
            assert_eq!(report.kills, 1);
            total.add(&report.counts);
        }
    }
    assert_eq!((total.applied, total.escalated), (240, 0));
}

#[test]
fn a_relay_that_stays_away_is_an_escalation_for_each_member() {
    let crash = Fault { at_ms: 12, for_ms: 100_000, what: FaultKind::Crash { node: 21 } };
    let options =
        Options { timeline: Some(vec![crash]), heal_after_ms: 90_000, ..decision(20, true) };
    let report = well(&options);
    assert_eq!((report.counts.escalated, report.counts.applied), (20, 0));
    // The object had left the relay, and no ack got back.
    assert_eq!((report.counts.spurious, report.measures.silent), (20, 0));
}

#[test]
fn dt1_everything_at_once_through_a_relay() {
    let mut total = Counts::default();
    for seed in 0..24 {
        let options = Options { seed, ..Options::builtin("relay").unwrap() };
        let report = run(&options);
        assert_eq!(report.violations, [], "netsim run relay --seed {seed}");
        total.add(&report.counts);
        if seed < 3 {
            assert_eq!(run(&options).trace, report.trace);
        }
    }
    for (what, count) in [
        ("applied", total.applied),
        ("declined", total.declined),
        ("escalated", total.escalated),
        ("spurious", total.spurious),
        ("best effort", total.best_effort),
    ] {
        assert!(count > 2, "{count} {what}");
    }
}
