//! Real nodes over real QUIC and TLS on virtual time: what they promise under faults, and that a run
//! repeats.
#![cfg(feature = "node")]
#![allow(missing_docs, clippy::unwrap_used)]

use netsim::node_world::{self, NodeReport, swarm};
use netsim::{
    Arena, Chance, Delay, Fault, FaultKind, LinkModel, Micros, Options, Sabotage, Tuning,
};
use proto::backoff::Backoff;

/// Two nodes with the settings a node has by default, 20 ms apart, that issue over a minute.
fn two(seed: u64) -> Options {
    Options {
        world: Arena::Node,
        transfers: 40,
        issue_batch_max: 4,
        faults_ms: 60_000,
        link: LinkModel::with_delay(Delay::Uniform(Micros::from_ms(15), Micros::from_ms(25))),
        racing: true,
        restart_ms_max: 500,
        deadline_s: 300,
        backoff: Backoff { base_ms: 500, cap_ms: 8_000, jitter_permille: 200 },
        skew_ms: 50,
        benign_permille: 100,
        ..Options::quiet(seed)
    }
}

fn fault(at_ms: u64, for_ms: u64, what: FaultKind) -> Fault {
    Fault { at_ms, for_ms, what }
}

/// Runs it; every promise must hold.
fn held(options: &Options) -> NodeReport {
    let report = node_world::run(options).unwrap();
    assert!(
        report.run.violations.is_empty(),
        "{:#?}\n{}",
        report.run.violations,
        options.to_toml().unwrap()
    );
    report
}

/// Runs it; nothing may be escalated either: there was time enough.
fn delivered(options: &Options) -> NodeReport {
    let report = held(options);
    let counts = report.run.counts;
    assert_eq!((counts.escalated, counts.refused), (0, 0), "{report:#?}");
    assert!(counts.applied > 10, "{counts:?}");
    report
}

#[test]
fn ab2_a_third_of_all_packets_lost_is_no_reason_to_escalate() {
    let mut options = two(1);
    options.link.loss = Chance::permille(330);
    options.link.duplicate = Chance::permille(50);
    options.link.corrupt = Chance::permille(20);
    options.link.reorder = Chance::permille(100);
    options.link.reorder_by = Micros::from_ms(200);
    let report = delivered(&options);
    assert!(report.traffic.arrived < report.traffic.packets * 95 / 100, "{report:#?}");
}

#[test]
fn ab2_a_partition_longer_than_the_idle_timeout_is_outlived() {
    let partition = fault(10_000, 90_000, FaultKind::Partition { a: 0, b: 1 });
    for racing in [true, false] {
        let options = Options { racing, timeline: Some(vec![partition.clone()]), ..two(2) };
        let report = delivered(&options);
        assert!(report.applied_ms.max > 40_000, "{report:#?}");
        assert!(report.session_ends > 4, "connections were lost and made again");
    }
}

#[test]
fn ab4_a_partition_longer_than_the_deadline_escalates_in_time() {
    let partition = fault(0, 700_000, FaultKind::Partition { a: 0, b: 1 });
    let options = Options { heal_after_ms: 700_000, timeline: Some(vec![partition]), ..two(3) };
    let report = held(&options);
    assert_eq!(report.run.counts.applied, 0);
    assert!(report.run.counts.escalated > 10);
    assert!(report.late_ms.max <= 50, "{:?}", report.late_ms);
}

#[test]
fn ab2_one_direction_cut_is_survived() {
    for (from, to) in [(0, 1), (1, 0)] {
        let cut = fault(5_000, 120_000, FaultKind::Cut { from, to });
        delivered(&Options { timeline: Some(vec![cut]), ..two(4) });
    }
}

#[test]
fn ab2_a_link_that_flaps_is_used_while_it_is_there() {
    let what = FaultKind::Flap { a: 0, b: 1, down_ms: 3_000, up_ms: 1_500 };
    delivered(&Options { timeline: Some(vec![fault(1_000, 120_000, what)]), ..two(5) });
}

#[test]
fn cr1_a_storm_of_crashes_loses_nothing_and_applies_nothing_twice() {
    let crash = |n: u64| {
        let node = usize::try_from(n % 3 % 2).unwrap();
        fault(1_000 + n * 1_500, n * 37 % 700, FaultKind::Crash { node })
    };
    let options = Options {
        timeline: Some((0..40).map(crash).collect()),
        commit_ms_min: 1,
        commit_ms_max: 30,
        ..two(6)
    };
    let report = held(&options);
    assert!(report.run.kills >= 35, "{}", report.run.kills);
    assert!(report.run.counts.applied > 10);
}

#[test]
fn cr1_a_disk_that_fails_and_fills_ends_the_process_and_no_promise() {
    let timeline = vec![
        fault(5_000, 0, FaultKind::FailSync { node: 0, kept: true }),
        fault(15_000, 0, FaultKind::FailSync { node: 1, kept: false }),
        fault(25_000, 6_000, FaultKind::DiskFull { node: 0 }),
        fault(35_000, 8_000, FaultKind::SlowDisk { node: 1, by_ms: 900 }),
    ];
    let report = held(&Options { timeline: Some(timeline), ..two(7) });
    assert!(report.run.kills >= 3, "{}", report.run.kills);
}

#[test]
fn ab2_a_node_behind_a_nat_keeps_its_sessions_or_makes_new_ones() {
    for one_dials in [true, false] {
        let rebind = |n: u64| fault(2_000 + n * 9_000, 0, FaultKind::Rebind { node: 0 });
        let options = Options {
            timeline: Some((0..6).map(rebind).collect()),
            tuning: Tuning { one_dials, ..Tuning::default() },
            ..two(8)
        };
        let report = delivered(&options);
        assert!(report.applied_ms.max < 60_000, "{report:#?}");
    }
}

#[test]
fn ab2_a_node_that_stands_still_goes_on() {
    let timeline = vec![
        fault(5_000, 20_000, FaultKind::Pause { node: 1 }),
        fault(40_000, 45_000, FaultKind::Pause { node: 0 }),
    ];
    delivered(&Options { timeline: Some(timeline), ..two(9) });
}

#[test]
fn le1_a_disk_that_lies_and_a_ledger_that_is_not_there_are_seen() {
    let crash = |n: u64| fault(500 + n * 700, 100, FaultKind::Crash { node: 1 });
    for sabotage in [Sabotage::LyingDisk, Sabotage::NoLedger] {
        let options = Options {
            timeline: Some((0..80).map(crash).collect()),
            commit_ms_max: 20,
            sabotage,
            ..two(10)
        };
        let report = node_world::run(&options).unwrap();
        assert!(!report.run.violations.is_empty(), "{sabotage:?}");
    }
}

fn traces(report: &NodeReport) -> String {
    format!("{:?} {:x} {:?}", report.traffic, report.run.trace, report.run.counts)
}

#[test]
fn dt1_the_same_seed_gives_the_same_packets_and_commits() {
    let options = swarm(13, 40);
    let first = traces(&node_world::run(&options).unwrap());
    assert_eq!(first, traces(&node_world::run(&options).unwrap()));
    assert_ne!(first, traces(&node_world::run(&swarm(14, 40)).unwrap()));
}

#[test]
fn swarm_seeds_hold() {
    for seed in 0..4 {
        held(&swarm(seed, 30));
    }
}
