//! One decision for many, through a relay: published once for all, or offered to each.

use super::{Point, Row, Study, Work};
use crate::options::Options;
use crate::report::{Axis, Chart};
use crate::scenario::{Fault, FaultKind, LinkOf, RelayModel};
use link::{Chance, Delay, LinkModel, Micros};
use proto::backoff::Backoff;
use serde_json::json;

/// One decision for 10 to 10,000 agents behind a relay.
pub(super) const RELAY_FANOUT: Study = Study {
    name: "relay-fanout",
    title: "One decision for many agents, through a relay",
    question: "A custodian withdraws something from n agents at once. All of them have a connection with one MOQT \
        relay and none with each other. Fan-out: the decision is published once, for the group, and each \
        member derives its obligation from it; retries go to those that have not acknowledged. Unicast: n \
        obligations on n tracks through the same relay. Every link delays 20 to 60 ms and loses 0, 1 or 5 % \
        of the packets; the custodian has 100 Mbit/s each way, an agent 10. Each object carries a signature \
        with a certificate, 680 bytes. Or the relay crashes 100 ms after the issue, with all it has in \
        memory, and is back after 5 s; a connection that says nothing counts as dead after 5 s.",
    reading: "Settled is when the last of the n is applied, declined or escalated at the custodian. Bytes are \
        those of the packets that the custodian sends from the issue on, repeats by its streams and connections \
        made anew included, acknowledgments of the transport not. Deadlines are 30 s.",
    seeds: 5,
    quick_seeds: 1,
    work: Work::Simulated(points),
    charts,
};

/// Agents a decision goes to.
const TARGETS: [usize; 4] = [10, 100, 1_000, 10_000];
/// The same, for a quick look.
const QUICK_TARGETS: [usize; 2] = [10, 100];
/// Loss of packets, in thousandths.
const LOSSES: [u32; 3] = [0, 10, 50];
/// When the relay crashes, in milliseconds after the issue: it has the decision, and few acks.
const CRASH_AT_MS: u64 = 100;
/// How long it is away, in milliseconds.
const CRASH_MS: u64 = 5_000;

fn points(quick: bool) -> Vec<Point> {
    let targets = if quick { &QUICK_TARGETS[..] } else { &TARGETS[..] };
    let mut points = Vec::new();
    for targets in targets {
        let well = LOSSES.map(|loss| (loss, false));
        for (loss, crash) in well.into_iter().chain([(10, true)]) {
            for (way, fan_out) in [("fan-out", true), ("unicast", false)] {
                let loss_percent = f64::from(loss) / 10.0;
                let mut options = decision(*targets, loss, fan_out);
                options.name = format!("{way} to {targets}, {loss_percent} %");
                if crash {
                    let what = FaultKind::Crash { node: options.nodes };
                    options.timeline =
                        Some(vec![Fault { at_ms: CRASH_AT_MS, for_ms: CRASH_MS, what }]);
                }
                points.push(Point {
                    params: vec![
                        ("targets", json!(targets)),
                        ("loss_percent", json!(loss_percent)),
                        ("relay", json!(if crash { "crashes" } else { "well" })),
                        ("way", json!(way)),
                    ],
                    options,
                });
            }
        }
    }
    points
}

/// One decision of node 0 for so many others, with a relay between.
fn decision(targets: usize, loss_permille: u32, fan_out: bool) -> Options {
    let nodes = targets + 1;
    let link = |bytes_per_second| LinkModel {
        loss: Chance::permille(loss_permille),
        bytes_per_second,
        // Nothing here slows a sender down: what waits for its turn is kept.
        queue: Micros::from_ms(60_000),
        ..LinkModel::with_delay(Delay::Uniform(Micros::from_ms(20), Micros::from_ms(60)))
    };
    let wide = |from, to| LinkOf { from, to, link: link(12_500_000) };
    Options {
        nodes,
        relay: Some(RelayModel { fan_out }),
        star: true,
        decisions: 1,
        // All have their connections and paths before.
        warm_up_ms: 30_000,
        faults_ms: 1,
        heal_after_ms: 60_000,
        timeline: Some(Vec::new()),
        link: link(1_250_000),
        links: vec![wide(0, nodes), wide(nodes, 0)],
        wire: false,
        idle_ms: 5_000,
        racing: true,
        deadline_s: 30,
        backoff: Backoff { base_ms: 1_000, cap_ms: 8_000, jitter_permille: 200 },
        retention_ms: 60_000,
        ..Options::quiet(0)
    }
}

fn charts(_: &[Row]) -> Vec<Chart> {
    let base = Chart {
        series: vec!["way"],
        only: vec![("loss_percent", json!(1.0)), ("relay", json!("well"))],
        ..Chart::new("", Axis::log("targets", "agents"))
    };
    let crash = vec![("loss_percent", json!(1.0)), ("relay", json!("crashes"))];
    vec![
        Chart {
            title: "Until all are settled, 1 % loss".to_owned(),
            y: Axis::log("settled_p50_ms", "ms"),
            ..base.clone()
        },
        Chart {
            title: "Bytes the custodian sends, 1 % loss".to_owned(),
            y: Axis::log("custodian_bytes_mean", "bytes"),
            ..base.clone()
        },
        Chart {
            title: "Until all are settled, the relay crashes".to_owned(),
            y: Axis::log("settled_p50_ms", "ms"),
            only: crash.clone(),
            ..base.clone()
        },
        Chart {
            title: "Bytes the custodian sends, the relay crashes".to_owned(),
            y: Axis::log("custodian_bytes_mean", "bytes"),
            only: crash,
            ..base
        },
    ]
}
