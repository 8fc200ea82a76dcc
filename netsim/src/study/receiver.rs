//! What nodes, not links, do to obligations: slow receivers, and policies on hard seeds.

use super::{Point, Row, Study, Work};
use crate::net::Mode;
use crate::options::{HandlerModel, Options};
use crate::report::{Axis, Chart, Kind};
use crate::scenario::{DiskModel, Policy};
use link::{Delay, LinkModel, Micros};
use proto::backoff::Backoff;
use serde_json::json;

/// Deadline of the slow-receiver study, in seconds.
const DEADLINE_S: u64 = 20;

/// Delays inside the nodes as causes of spurious escalation.
pub(super) const SLOW_RECEIVER: Study = Study {
    name: "slow-receiver",
    title: "Slow nodes as causes of spurious escalation",
    question: "The network is perfect and the delay is in a node: commits that stall at the receiver or at \
        the custodian, handlers that take long, handlers that put an obligation off one to three times. The \
        delay goes from 0 to 2 deadlines of 20 s.",
    reading: "Solid lines are measured spurious escalations with their 95 % intervals, dashed lines the \
        bound of the paper, measured on twins as in partition-sweep. \u{201c}network or node-side\u{201d}, the \
        paper says of the delays that count, and so it is. A deferral waits for the next retry, so \
        that there the delay is the time between two attempts: put off three times, a third of \
        the deadline apart, an obligation is late.",
    seeds: 40,
    quick_seeds: 2,
    work: Work::Simulated(slow_points),
    charts: slow_charts,
};

/// All policies on the same hard seeds.
pub(super) const BASELINES: Study = Study {
    name: "baselines",
    title: "Every policy on the same hard seeds",
    question: "Three nodes, 15 % loss and bursts, six partitions and three one-way cuts of up to 40 s, 24 \
        crashes, handlers that decline, put off or are away: the scenario \u{201c}hard\u{201d}. Each policy \
        runs on the same seeds; what each is stands below.",
    reading: "Bars are shares of the obligations taken, with 95 % intervals. Custody must have no \
        bar in the first two charts, and pays with the third: escalations that waiting longer would have \
        spared. A baseline without a loss would mean that the seeds are too soft.",
    seeds: 100,
    quick_seeds: 5,
    work: Work::Simulated(baseline_points),
    charts: baseline_charts,
};

fn slow_points(quick: bool) -> Vec<Point> {
    let mut points = Vec::new();
    let step = if quick { 8 } else { 2 };
    for cause in ["receiver's disk", "custodian's disk", "handler calls", "deferrals"] {
        for delay_s in (0..=2 * DEADLINE_S).step_by(step) {
            let disk = |node| {
                vec![DiskModel {
                    node,
                    commit_ms_min: 1,
                    commit_ms_max: 3,
                    stall_permille: 100,
                    stall_ms: delay_s * 1_000,
                }]
            };
            let all = ["anumati.consent", "phala.belief_update", "oauth.token"];
            let mut options = Options {
                name: format!("{cause}, {delay_s} s"),
                transfers: 100,
                warm_up_ms: 1_000,
                faults_ms: 600_000,
                heal_after_ms: 120_000,
                keys: 1_000_000,
                mode: Mode::Streams,
                wire: false,
                link: LinkModel::with_delay(Delay::Fixed(Micros::from_ms(10))),
                commit_ms_min: 1,
                commit_ms_max: 3,
                deadline_s: DEADLINE_S,
                twin_deadline_s: 3_600,
                backoff: Backoff { base_ms: 1_000, cap_ms: 5_000, jitter_permille: 0 },
                window: 1 << 16,
                window_bytes: 1 << 30,
                deciding_max: 1 << 16,
                ..Options::quiet(0)
            };
            match cause {
                "receiver's disk" => options.disks = disk(1),
                "custodian's disk" => options.disks = disk(0),
                _ => options.external = all.iter().map(|kind| (*kind).to_owned()).collect(),
            }
            if cause == "handler calls" {
                options.handler =
                    HandlerModel { call_ms_max: delay_s * 1_000, ..HandlerModel::PROMPT };
            }
            if cause == "deferrals" {
                options.handler = HandlerModel { defer_permille: 1_000, ..HandlerModel::PROMPT };
                let every_ms = (delay_s * 1_000).clamp(1_000, DEADLINE_S * 999);
                options.backoff.base_ms = every_ms;
                options.backoff.cap_ms = every_ms;
            }
            points.push(Point {
                params: vec![
                    ("cause", json!(cause)),
                    ("delay_s", json!(delay_s)),
                    ("ratio", json!(delay_s as f64 / DEADLINE_S as f64)),
                    ("deadline_s", json!(DEADLINE_S)),
                ],
                options,
            });
        }
    }
    points
}

fn slow_charts(_: &[Row]) -> Vec<Chart> {
    ["receiver's disk", "custodian's disk", "handler calls", "deferrals"]
        .into_iter()
        .map(|cause| Chart {
            y: Axis::share("spurious_rate", "spurious escalations"),
            series: vec!["policy"],
            only: vec![("cause", json!(cause))],
            band: Some(("spurious_low", "spurious_high")),
            beside: Some(("bound", "bound")),
            ..Chart::new(
                &match cause {
                    "receiver's disk" => "One commit in ten stalls at the receiver".to_owned(),
                    "custodian's disk" => "One commit in ten stalls at the custodian".to_owned(),
                    "handler calls" => "A handler takes up to twice the delay".to_owned(),
                    _ => "A handler defers one to three times; the delay is between attempts"
                        .to_owned(),
                },
                Axis::linear("ratio", "delay / deadline"),
            )
        })
        .collect()
}

fn baseline_points(_: bool) -> Vec<Point> {
    [
        Policy::Custody,
        Policy::ReceiptAck,
        Policy::VolatileLedger,
        Policy::AtLeastOnce,
        Policy::RetryWithoutDedup,
        Policy::OneShotPush,
        Policy::BestEffortStream,
        Policy::BestEffortDatagram,
    ]
    .into_iter()
    .filter_map(|policy| {
        let options = Options { policy, ..Options::builtin("hard").ok()? };
        Some(Point { params: vec![("scenario", json!("hard"))], options })
    })
    .collect()
}

fn baseline_charts(_: &[Row]) -> Vec<Chart> {
    [
        ("silent_rate", "Silent losses", ("silent_low", "silent_high")),
        ("double_rate", "Applied more than once", ("double_low", "double_high")),
        ("spurious_rate", "Spurious escalations", ("spurious_low", "spurious_high")),
    ]
    .into_iter()
    .map(|(field, title, band)| Chart {
        kind: Kind::Bars,
        y: Axis::share(field, "share of obligations"),
        band: Some(band),
        ..Chart::new(title, Axis::linear("policy", ""))
    })
    .collect()
}
