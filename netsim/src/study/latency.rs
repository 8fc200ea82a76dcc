//! How long it takes: from issue to the effect, and from the end of an outage.

use super::{Point, Row, Study, Work};
use crate::net::Mode;
use crate::options::Options;
use crate::report::{Axis, Chart, Kind};
use crate::scenario::{Fault, FaultKind, Policy};
use link::{Chance, Delay, LinkModel, Micros};
use proto::backoff::Backoff;
use serde_json::json;

/// Scenarios whose latencies are compared.
const PROFILES: [&str; 7] = [
    "clean",
    "lossy-wifi",
    "leo-satellite",
    "cellular-handover",
    "flapping",
    "slow-receiver",
    "crash-storm",
];

/// From issue to the effect under each link profile.
pub(super) const LATENCY: Study = Study {
    name: "latency",
    title: "From issue to the effect, under each link profile",
    question: "The built-in scenarios, each with 1,000 obligations a seed: how long from the client's call \
        to the durable effect at the receiver? The same under best effort on streams and at-least-once.",
    reading: "The share of all obligations that had their effect by a time. A curve that ends below 1 \
        lost, declined or escalated the rest; the table says which. The step to the right of custody \
        against best effort on the clean link is the custodian's own durable write.",
    seeds: 20,
    quick_seeds: 1,
    work: Work::Simulated(latency_points),
    charts: latency_charts,
};

/// Recovery after an outage, against its length.
pub(super) const RECOVERY: Study = Study {
    name: "recovery",
    title: "Recovery after an outage, against its length",
    question: "Obligations are issued all through an outage of one second to one hour, under a deadline of \
        four hours and a backoff of up to 60 s. How long after the end of the outage do the pending ones take \
        effect? Four ways to get through: the connection dies of 30 s of silence and is dialled anew within \
        2 s, or it never gives up; and with each, a fresh handshake is raced at the retry that finds it \
        silent, or not. A connection that has more than a congestion window lost sends only at its \
        probes, which are twice as far apart each time (RFC 9002).",
    reading: "99 in 100 obligations had their effect within the time shown; the dotted line is the backoff \
        cap. Raced or dialled anew, recovery is bounded by the cap whatever the outage. A connection that \
        never gives up and is not raced is the last to notice, and takes the longer the longer the outage \
        was.",
    seeds: 200,
    quick_seeds: 5,
    work: Work::Simulated(recovery_points),
    charts: recovery_charts,
};

fn latency_points(_: bool) -> Vec<Point> {
    let mut points = Vec::new();
    for profile in PROFILES {
        for policy in [Policy::Custody, Policy::BestEffortStream, Policy::AtLeastOnce] {
            // Built in, and read by a test.
            let Ok(options) = Options::builtin(profile) else { continue };
            points.push(Point {
                params: vec![("profile", json!(profile))],
                options: Options { policy, ..options },
            });
        }
    }
    points
}

fn latency_charts(_: &[Row]) -> Vec<Chart> {
    let base = Chart {
        kind: Kind::Curve,
        y: Axis::share("share", "had their effect"),
        ..Chart::new("", Axis::log("ms", "after issue, ms"))
    };
    let mut charts = vec![Chart {
        title: "Custody, all profiles".to_owned(),
        series: vec!["profile"],
        only: vec![("policy", json!("custody"))],
        ..base.clone()
    }];
    charts.extend(PROFILES.iter().map(|profile| Chart {
        title: (*profile).to_owned(),
        series: vec!["policy"],
        only: vec![("profile", json!(profile))],
        ..base.clone()
    }));
    charts
}

/// Outages of the recovery study, in seconds.
const OUTAGES_S: [u64; 9] = [1, 3, 10, 30, 60, 180, 600, 1_800, 3_600];
/// Longest time between two attempts, in seconds.
const CAP_S: u64 = 60;
/// The deadline, in seconds: longer than any outage.
const DEADLINE_S: u64 = 14_400;

fn recovery_points(quick: bool) -> Vec<Point> {
    let mut points = Vec::new();
    for outage_s in OUTAGES_S.into_iter().filter(|outage| !quick || outage % 30 == 0) {
        for (connection, idle_ms) in
            [("idle 30 s", 30_000), ("no idle timeout", DEADLINE_S * 2_000)]
        {
            for (raced, racing) in [("raced", true), ("not raced", false)] {
                points.push(Point {
                    params: vec![
                        ("outage_s", json!(outage_s)),
                        ("connection", json!(connection)),
                        ("racing", json!(raced)),
                        ("cap_s", json!(CAP_S)),
                    ],
                    options: Options { idle_ms, racing, ..outage(outage_s) },
                });
            }
        }
    }
    points
}

/// One outage, over a link that is a little lossy.
fn outage(outage_s: u64) -> Options {
    let good = LinkModel::with_delay(Delay::Uniform(Micros::from_ms(10), Micros::from_ms(30)));
    let link = LinkModel { loss: Chance::permille(10), ..good.clone() };
    let begins = |for_ms, what| Fault { at_ms: 0, for_ms, what };
    Options {
        name: format!("outage of {outage_s} s"),
        // Few: many pending ones retry at so many moments that one always comes soon.
        transfers: 5,
        // The nodes connect before anything goes wrong.
        warm_up_ms: 1_000,
        faults_ms: outage_s * 1_000,
        // As long as the slowest connection needs to notice.
        heal_after_ms: outage_s * 2_000 + 600_000,
        timeline: Some(vec![
            begins(0, FaultKind::Link { from: 0, to: 1, back: true, link }),
            begins(outage_s * 1_000, FaultKind::Partition { a: 0, b: 1 }),
        ]),
        keys: 1_000_000,
        mode: Mode::Streams,
        wire: false,
        link: good,
        probe_backoff: true,
        deadline_s: DEADLINE_S,
        backoff: Backoff { base_ms: 1_000, cap_ms: CAP_S * 1_000, jitter_permille: 200 },
        window: 1 << 16,
        window_bytes: 1 << 30,
        ..Options::quiet(0)
    }
}

fn recovery_charts(_: &[Row]) -> Vec<Chart> {
    let base = Chart {
        series: vec!["connection", "racing"],
        level: Some((CAP_S as f64 * 1_000.0, "backoff cap")),
        ..Chart::new("", Axis::log("outage_s", "outage, s"))
    };
    [("recovery_p50_ms", "Half of the pending"), ("recovery_p99_ms", "99 in 100 of the pending")]
        .into_iter()
        .map(|(field, title)| Chart {
            title: title.to_owned(),
            y: Axis::log(field, "after the outage, ms"),
            ..base.clone()
        })
        .collect()
}
