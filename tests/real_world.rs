//! netsim's real world on this package's program: processes, sockets and disks that are spoiled,
//! killed and stopped, judged from outside.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use netsim::Options;
use netsim::real::{RealReport, RealSetup, run, swarm};
use std::path::PathBuf;

fn setup() -> RealSetup {
    RealSetup { program: Some(PathBuf::from(env!("CARGO_BIN_EXE_abhyasa"))), keep: false }
}

fn held(options: &Options) -> RealReport {
    let report = run(options, &setup()).unwrap();
    let files = report.files.clone().unwrap_or_default();
    assert!(report.violations.is_empty(), "{:#?}\nin {}", report.violations, files.display());
    report
}

/// One of everything that can be made to happen to two processes and what is between them.
const EVERYTHING: &str = r#"
name = "everything"
world = "real"
seed = 1
transfers = 400
issue_batch_max = 8
faults_ms = 7000
keys = 6
benign_permille = 200
numbered_permille = 100
reissue_permille = 200
short_permille = 400
deadline_s = 8
idle_ms = 3000
racing = true
backoff = { base_ms = 100, cap_ms = 800, jitter_permille = 200 }
link = { delay = "1ms..20ms", loss = 0.1, duplicate = 0.1, reorder = 0.1, reorder_by = "50ms", corrupt = 0.02 }
timeline = [
    { at_ms = 300, for_ms = 60, fault = "crash", node = 0 },
    { at_ms = 400, for_ms = 40, fault = "crash", node = 0 },
    { at_ms = 700, for_ms = 400, fault = "pause", node = 1 },
    { at_ms = 1300, for_ms = 800, fault = "partition", a = 0, b = 1 },
    { at_ms = 1500, for_ms = 100, fault = "crash", node = 1 },
    { at_ms = 2200, for_ms = 50, fault = "fail-sync", node = 0, kept = true },
    { at_ms = 2600, for_ms = 50, fault = "fail-sync", node = 1, kept = false },
    { at_ms = 3000, for_ms = 600, fault = "flap", a = 0, b = 1, down_ms = 80, up_ms = 60 },
    { at_ms = 3700, fault = "rebind", node = 0 },
    { at_ms = 3800, fault = "noise", node = 1 },
    { at_ms = 4000, for_ms = 700, fault = "disk-full", node = 0 },
    { at_ms = 4800, for_ms = 500, fault = "cut", from = 1, to = 0 },
    { at_ms = 5400, for_ms = 900, fault = "link", from = 0, to = 1, back = true, link = { loss = 0.6, mtu = 1300 } },
    { at_ms = 6300, for_ms = 30, fault = "crash", node = 1 },
    { at_ms = 6500, for_ms = 200, fault = "pause", node = 0 },
]
"#;

#[test]
fn ab4_everything_that_can_happen_to_two_processes_leaves_each_promise_kept() {
    let options = Options::from_toml(EVERYTHING).unwrap();
    let report = held(&options);
    let (counts, deeds) = (report.counts, report.deeds);
    assert!(deeds.kills + deeds.stops >= 4, "{deeds:?}");
    assert!(deeds.store_failures >= 2 && deeds.pauses >= 2, "{deeds:?}");
    assert!(report.packets_lost > 0 && report.packets_doubled > 0 && report.packets_corrupted > 0);
    assert!(counts.applied > 50 && counts.best_effort > 0, "{counts:?}");
}

#[test]
fn ab3_seeds_of_the_real_world_leave_each_promise_kept() {
    for seed in [3, 14] {
        let report = held(&swarm(seed, 150));
        assert!(report.counts.applied > 0, "{:?}", report.counts);
    }
}

#[test]
fn what_this_world_cannot_do_is_refused() {
    for (wrong, why) in [
        (Options { nodes: 3, ..swarm(1, 1) }, "has two"),
        (Options { clock_steps: 1, ..swarm(1, 1) }, "one clock"),
        (Options { retries: Some(1), ..swarm(1, 1) }, "do not span"),
    ] {
        let error = run(&wrong, &setup()).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let nowhere = RealSetup { program: Some("no-such-program".into()), keep: false };
    let error = run(&swarm(1, 1), &nowhere).unwrap_err().to_string();
    assert!(error.contains("no-such-program"), "{error}");
}
