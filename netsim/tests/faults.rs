//! Each fault does what it says: one that does nothing tests nothing.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use netsim::{
    Chance, CrashPoint, Delay, DiskModel, Fault, FaultKind, LinkModel, LogLine, Micros, Mode,
    Options, Report, run, run_logged,
};

fn fault(at_ms: u64, for_ms: u64, what: FaultKind) -> Fault {
    Fault { at_ms, for_ms, what }
}

/// Two nodes, sixty obligations in thirty seconds, and these faults.
fn options(timeline: Vec<Fault>) -> Options {
    Options {
        transfers: 60,
        keys: 1_000_000,
        faults_ms: 30_000,
        heal_after_ms: 5_000,
        restart_ms_max: 500,
        timeline: Some(timeline),
        ..Options::quiet(7)
    }
}

/// Runs to the end, every promise kept.
#[track_caller]
fn kept(options: &Options) -> (Report, Vec<LogLine>) {
    let (report, log) = run_logged(options);
    assert_eq!(report.violations, [], "{}", options.to_toml().unwrap());
    assert_eq!(run(options).trace, report.trace, "reading along changes nothing");
    (report, log)
}

fn count(log: &[LogLine], node: Option<usize>, what: &str) -> usize {
    log.iter()
        .filter(|line| (node.is_none() || line.node == node) && line.what.contains(what))
        .count()
}

/// Times from first to last of what a log says.
fn span(log: &[LogLine], what: &str) -> (u64, u64) {
    let mut at = log.iter().filter(|line| line.what.contains(what)).map(|line| line.at_ms);
    let first = at.next().unwrap();
    (first, at.next_back().unwrap_or(first))
}

/// How long each transfer took, in milliseconds.
fn took(log: &[LogLine]) -> impl Iterator<Item = u64> {
    log.iter().filter_map(|line| {
        let (_, rest) = line.what.split_once("took_ms\":")?;
        rest.trim_end_matches('}').parse().ok()
    })
}

#[test]
fn without_faults_everything_is_applied_at_once() {
    let (report, log) = kept(&options(Vec::new()));
    assert_eq!((report.counts.applied, report.kills), (60, 0));
    assert_eq!(count(&log, None, "is down"), 0);
    assert!(log.iter().all(|line| !line.what.contains("retries\":1")), "nothing was repeated");
}

#[test]
fn a_flapping_link_comes_and_goes_until_it_is_over() {
    let flap = FaultKind::Flap { a: 0, b: 1, down_ms: 900, up_ms: 300 };
    let (report, log) = kept(&options(vec![fault(5_000, 12_000, flap)]));
    assert_eq!(report.counts.applied, 60);
    assert_eq!(count(&log, None, "Flap"), 10, "once every 1,200 ms");
    assert!(count(&log, None, "is down") >= 2, "longer than the idle time");
    assert!(span(&log, "is down").1 < 18_000);
}

#[test]
fn a_paused_node_does_nothing_and_catches_up() {
    let pause = fault(5_000, 8_000, FaultKind::Pause { node: 1 });
    let (report, log) = kept(&options(vec![pause]));
    assert_eq!((report.counts.applied, report.kills), (60, 0));
    let still = log.iter().filter(|line| {
        line.node == Some(1)
            && (5_001..13_000).contains(&line.at_ms)
            && line.what.starts_with("commits")
    });
    assert_eq!(still.count(), 0);
    assert!(count(&log, Some(0), "is down") > 0, "its peer gives it up");
}

#[test]
fn a_slow_disk_holds_up_and_loses_nothing() {
    let slowest = |timeline: Vec<Fault>, disks: Vec<DiskModel>| {
        let (report, log) = kept(&Options { disks, ..options(timeline) });
        assert_eq!(report.counts.applied, 60);
        took(&log).max().unwrap()
    };
    let quick = slowest(Vec::new(), Vec::new());
    assert!(quick < 100, "{quick} ms");
    let slow =
        slowest(vec![fault(0, 30_000, FaultKind::SlowDisk { node: 1, by_ms: 400 })], Vec::new());
    assert!(slow >= 400, "{slow} ms");
    let own = DiskModel {
        node: 1,
        commit_ms_min: 300,
        commit_ms_max: 310,
        stall_permille: 100,
        stall_ms: 700,
    };
    let own = slowest(Vec::new(), vec![own]);
    assert!(own >= 1_000, "{own} ms, with a stall");
}

#[test]
fn cr1_a_failed_sync_ends_the_node_whether_or_not_it_reached_the_disk() {
    for kept_on_disk in [false, true] {
        let fail = |at_ms, node| fault(at_ms, 0, FaultKind::FailSync { node, kept: kept_on_disk });
        let (report, log) = kept(&options(vec![fail(8_000, 0), fail(15_000, 1)]));
        assert_eq!((report.counts.applied, report.kills), (60, 2));
        assert_eq!(count(&log, None, "a commit failed"), 2);
    }
}

#[test]
fn cr1_a_full_disk_ends_the_node_again_and_again_until_there_is_room() {
    let (report, log) = kept(&options(vec![fault(8_000, 6_000, FaultKind::DiskFull { node: 1 })]));
    assert!(report.kills > 3, "{} ends", report.kills);
    assert_eq!(report.counts.applied, 60);
    let full = log.iter().filter(|line| {
        line.node == Some(1)
            && (8_010..14_000).contains(&line.at_ms)
            && line.what.starts_with("commits")
    });
    assert_eq!(full.count(), 0);
}

#[test]
fn cr1_what_cannot_be_read_ends_the_node_and_is_never_taken_for_something_else() {
    let (report, log) = kept(&options(vec![fault(8_000, 6_000, FaultKind::BitRot { node: 1 })]));
    assert!(report.kills > 0);
    assert!(count(&log, Some(1), "checksum mismatch") > 1, "also when it starts");
    assert_eq!(report.counts.applied, 60);
}

#[test]
fn ps1_a_node_is_killed_at_each_point_of_a_commit() {
    for point in [CrashPoint::BeforeCommit, CrashPoint::AfterCommit, CrashPoint::BetweenOutputs] {
        let at = |at_ms, node| fault(at_ms, 300, FaultKind::CrashAt { node, point });
        let timeline = (0..12).map(|n| at(2_000 * n, usize::from(n % 2 == 1))).collect();
        let (report, log) = kept(&options(timeline));
        assert_eq!(report.counts.applied, 60, "{point:?}");
        assert_eq!(count(&log, None, &format!("point: {point:?}")), 12);
        assert_eq!(count(&log, None, &format!("is killed: {point:?}")), 12);
    }
}

#[test]
fn a_rebind_loses_packets_and_no_session() {
    let timeline = (1..10).map(|n| fault(n * 3_000, 0, FaultKind::Rebind { node: 1 })).collect();
    let (report, log) = kept(&Options { idle_ms: 4_000, ..options(timeline) });
    assert_eq!((report.counts.applied, report.kills), (60, 0));
    assert_eq!(count(&log, None, "is down"), 0);
    let (still, _) = kept(&options(Vec::new()));
    assert!(report.bytes > still.bytes, "what was lost is sent again");
}

#[test]
fn a_link_changes_for_a_time_or_for_good() {
    let black_hole = LinkModel { loss: Chance::ALWAYS, ..LinkModel::default() };
    let worse = |for_ms| {
        let link = black_hole.clone();
        fault(5_000, for_ms, FaultKind::Link { from: 0, to: 1, back: false, link })
    };
    let datagrams = |timeline| Options { mode: Mode::Datagrams, ..options(timeline) };
    let (_, log) = kept(&datagrams(vec![worse(10_000)]));
    assert!(span(&log, "lost to 1").1 < 15_000);
    assert!(count(&log, None, "lost to 0") == 0);
    let (_, log) = kept(&datagrams(vec![worse(0)]));
    assert!(span(&log, "lost to 1").1 > 25_000);
}

#[test]
fn what_fills_a_packet_vanishes_in_a_black_hole_and_the_rest_passes() {
    let link = LinkModel { mtu: 600, ..LinkModel::with_delay(Delay::Fixed(Micros::from_ms(5))) };
    let hole = fault(500, 29_000, FaultKind::Link { from: 0, to: 1, back: true, link });
    let slowest = |singly| {
        let batches =
            Options { issue_batch_max: 32, transfers: 400, singly, ..options(vec![hole.clone()]) };
        let (report, log) = kept(&batches);
        assert_eq!(report.counts.applied, 400);
        took(&log).max().unwrap()
    };
    assert!(slowest(true) < 100, "one obligation does not fill a packet");
    assert!(slowest(false) > 1_000, "thirty-two do");
}

#[test]
fn a_damaged_frame_ends_its_session_or_is_dropped() {
    let link = LinkModel {
        corrupt: Chance::permille(300),
        ..LinkModel::with_delay(Delay::Fixed(Micros::from_ms(5)))
    };
    let (report, log) = kept(&Options { link, transfers: 400, ..options(Vec::new()) });
    assert_eq!(report.counts.applied, 400);
    let ended = log.iter().filter(|line| line.what.contains(" ends: ")).count();
    assert!(ended > 2, "{ended} sessions ended by a frame that does not decode");
}

#[test]
fn a_lost_flight_costs_a_probe_timeout_and_a_long_handshake_is_given_up() {
    // Of the first handshake everything is lost for seven seconds: it is given up after five.
    let link = LinkModel { loss: Chance::ALWAYS, ..LinkModel::default() };
    let lost = fault(0, 7_000, FaultKind::Link { from: 0, to: 1, back: true, link });
    let crash = |node| fault(1, 1, FaultKind::Crash { node });
    let (_, log) = kept(&options(vec![lost, crash(0), crash(1)]));
    let ups: Vec<u64> =
        log.iter().filter(|line| line.what.contains("is up")).map(|line| line.at_ms).collect();
    let again = *ups.last().unwrap();
    // Tried again at 5.1 s and lost, lost again a second later, and through two seconds after that.
    assert!((8_000..8_500).contains(&again), "{ups:?}");
}

#[test]
fn a_clock_that_drifts_stays_inside_what_is_allowed() {
    let drifting =
        Options { skew_ms: 100, drift_ppm_max: 50_000, faults_ms: 60_000, ..options(Vec::new()) };
    let (report, log) = kept(&drifting);
    assert_eq!(report.counts.applied, 60);
    let set: Vec<i64> = log
        .iter()
        .filter_map(|line| {
            let rest = line.what.strip_prefix("its clock is set to ")?;
            rest.split(' ').next()?.parse().ok()
        })
        .collect();
    assert!(set.len() > 20 && set.iter().all(|ahead| ahead.abs() <= 50), "{set:?}");
}

#[test]
fn both_nodes_may_keep_a_session_of_their_own() {
    let (report, log) = kept(&Options { both_dial: true, ..options(Vec::new()) });
    assert_eq!(report.counts.applied, 60);
    assert_eq!(count(&log, Some(0), "session_up"), 2);
}
