//! Outages against the deadline: how often custody escalates needlessly, and what the others lose.

use super::{Point, Row, Study, Work};
use crate::net::Mode;
use crate::options::Options;
use crate::report::{Axis, Chart, Scale};
use crate::scenario::{Fault, FaultKind, Policy};
use link::{Chance, Delay, LinkModel, Micros};
use proto::backoff::Backoff;
use serde_json::{Value, json};

/// Deadline of all obligations, in seconds.
const DEADLINE_S: u64 = 60;
/// Deadline of their twins: nothing here takes so long.
const TWIN_DEADLINE_S: u64 = 1_200;
/// Loss of each frame, each way, in thousandths.
const LOSSES: [u32; 3] = [0, 100, 300];
/// Longest time between two attempts, in seconds.
const CAPS_S: [u64; 3] = [4, 15, 30];
/// The cap where only one is shown.
const CAP_S: u64 = 15;
/// Silence after which a connection is dropped, as the node's default.
const IDLE_MS: u64 = 30_000;

/// Spurious escalations against the length of an outage.
pub(super) const SWEEP: Study = Study {
    name: "partition-sweep",
    title: "Spurious escalations against the length of an outage",
    question: "An outage begins, and obligations are issued all through it, spread evenly. How many \
        escalate although their receiver was up and would have applied them? The length of the outage goes \
        from 0 to 2 deadlines of 60 s; with none, obligations are issued over one deadline. The channel of \
        the paper is the first one, \u{201c}messages\u{201d}: each frame is lost for itself, and only custody \
        repeats it. \u{201c}streams\u{201d} is what the node does: QUIC repeats packets, a connection dies of 30 s \
        of silence, and a new one is dialled within 2 s.",
    reading: "Solid lines are measured, their bands are 95 % intervals (Wilson, widened by the spread \
        between seeds); dashed lines are the paper's bound: the share of delivery delays that exceed the \
        deadline. The delay of an obligation is measured on its twin, which says the same, was issued in the \
        same call and travels in the same frames, under a deadline that does not bind. So the two lines come \
        from the same faults and from different transfers, and nothing in the simulator makes one \
        follow the other: a custodian that escalates too early, or whose retries end before its deadline, \
        goes above the line. Here every receiver is up and willing, and the two coincide: the bound is \
        attained. Below a ratio of 1 the curves show what the cap costs: with a cap of half the \
        deadline the next attempt after the outage may come too late. Above it they follow 1 - 1/ratio, the \
        share issued more than a deadline before the end.",
    seeds: 40,
    quick_seeds: 2,
    work: Work::Simulated(sweep_points),
    charts: sweep_charts,
};

/// What the policies lose silently under the same.
pub(super) const BEST_EFFORT: Study = Study {
    name: "best-effort",
    title: "Silent losses of best effort, where custody has none",
    question: "The outages of partition-sweep, the same obligations and the same seeds, under custody and \
        under what one would do without it: best effort on datagrams and on streams, and at-least-once \
        delivery that tells nobody when it gives up.",
    reading: "The share of obligations that never had their effect and of which nobody was told, with \
        95 % intervals. Custody lost none; its interval ends at the rule of three. Best effort on streams \
        survives outages shorter than the 30 s its connection lives; in a longer one it loses what that \
        connection carried, and what waits longer than another 30 s for the next.",
    seeds: 40,
    quick_seeds: 2,
    work: Work::Simulated(best_effort_points),
    charts: best_effort_charts,
};

/// Outages in thousandths of the deadline.
fn ratios(quick: bool) -> Vec<u64> {
    let step = if quick { 500 } else { 125 };
    (0..=2_000 / step).map(|n| n * step).collect()
}

fn scenario(ratio: u64, loss: u32, cap_s: u64, mode: Mode) -> Options {
    let outage_ms = DEADLINE_S * ratio;
    let good = LinkModel::with_delay(Delay::Uniform(Micros::from_ms(10), Micros::from_ms(30)));
    let link = LinkModel { loss: Chance::permille(loss), ..good.clone() };
    let begins = |for_ms, what| Fault { at_ms: 0, for_ms, what };
    // The nodes connect before anything goes wrong.
    let mut timeline = vec![begins(0, FaultKind::Link { from: 0, to: 1, back: true, link })];
    if ratio > 0 {
        timeline.push(begins(outage_ms, FaultKind::Partition { a: 0, b: 1 }));
    }
    Options {
        name: format!("outage of {:.3} deadlines", ratio as f64 / 1000.0),
        transfers: 100,
        warm_up_ms: 1_000,
        faults_ms: if ratio == 0 { DEADLINE_S * 1000 } else { outage_ms },
        // The loss goes on after the outage, until the last deadline.
        heal_after_ms: DEADLINE_S * 4_000,
        timeline: Some(timeline),
        keys: 1_000_000,
        mode,
        wire: false,
        link: good,
        // Messages outlive the outage; a connection does not.
        idle_ms: if mode == Mode::Streams { IDLE_MS } else { DEADLINE_S * 10_000 },
        racing: mode == Mode::Streams,
        deadline_s: DEADLINE_S,
        twin_deadline_s: TWIN_DEADLINE_S,
        // Without jitter an obligation and its twin are repeated at the same moments.
        backoff: Backoff { base_ms: 1_000, cap_ms: cap_s * 1_000, jitter_permille: 0 },
        window: 1 << 16,
        window_bytes: 1 << 30,
        ..Options::quiet(0)
    }
}

fn point(ratio: u64, loss: u32, cap_s: u64, mode: Mode, policy: Policy) -> Point {
    let transport = if mode == Mode::Streams { "streams" } else { "messages" };
    Point {
        params: vec![
            ("ratio", json!(ratio as f64 / 1000.0)),
            ("outage_s", json!((DEADLINE_S * ratio) as f64 / 1000.0)),
            ("deadline_s", json!(DEADLINE_S)),
            ("loss", json!(f64::from(loss) / 1000.0)),
            ("cap_s", json!(cap_s)),
            ("transport", json!(transport)),
        ],
        options: Options { policy, ..scenario(ratio, loss, cap_s, mode) },
    }
}

fn sweep_points(quick: bool) -> Vec<Point> {
    let mut points = Vec::new();
    for ratio in ratios(quick) {
        for loss in LOSSES {
            for cap_s in CAPS_S {
                points.push(point(ratio, loss, cap_s, Mode::Datagrams, Policy::Custody));
            }
            points.push(point(ratio, loss, CAP_S, Mode::Streams, Policy::Custody));
            for policy in [Policy::BestEffortDatagram, Policy::BestEffortStream] {
                points.push(point(ratio, loss, CAP_S, Mode::Streams, policy));
            }
        }
    }
    points
}

fn best_effort_points(quick: bool) -> Vec<Point> {
    let mut points = Vec::new();
    for ratio in ratios(quick) {
        for loss in LOSSES {
            for policy in [
                Policy::Custody,
                Policy::BestEffortDatagram,
                Policy::BestEffortStream,
                Policy::AtLeastOnce,
            ] {
                points.push(point(ratio, loss, CAP_S, Mode::Streams, policy));
            }
        }
    }
    points
}

const RATIO: Axis = Axis::linear("ratio", "outage / deadline");

fn sweep_charts(_: &[Row]) -> Vec<Chart> {
    let base = Chart {
        y: Axis::share("spurious_rate", "spurious escalations"),
        series: vec!["loss"],
        band: Some(("spurious_low", "spurious_high")),
        beside: Some(("bound", "bound")),
        ..Chart::new("", RATIO)
    };
    let of = |title: String, transport: &str, cap_s: u64| Chart {
        title,
        only: vec![
            ("policy", json!("custody")),
            ("transport", json!(transport)),
            ("cap_s", json!(cap_s)),
        ],
        ..base.clone()
    };
    let mut charts: Vec<Chart> = CAPS_S
        .iter()
        .map(|cap| of(format!("Messages, backoff up to {cap} s"), "messages", *cap))
        .collect();
    charts.push(of(format!("Streams, backoff up to {CAP_S} s"), "streams", CAP_S));
    charts.push(Chart {
        note: "Best effort under the same outages: what custody escalates, it loses. More in the study \
            best-effort.",
        ..silent("Silent losses at 10 % loss", json!(0.1))
    });
    charts
}

fn silent(title: &str, loss: Value) -> Chart {
    Chart {
        y: Axis::share("silent_rate", "silent losses"),
        series: vec!["policy"],
        band: Some(("silent_low", "silent_high")),
        only: vec![("transport", json!("streams")), ("loss", loss)],
        ..Chart::new(title, RATIO)
    }
}

fn best_effort_charts(_: &[Row]) -> Vec<Chart> {
    let mut charts: Vec<Chart> = LOSSES
        .iter()
        .map(|loss| {
            silent(&format!("{} % loss each way", loss / 10), json!(f64::from(*loss) / 1000.0))
        })
        .collect();
    charts.push(Chart {
        y: Axis { scale: Scale::Linear, ..Axis::linear("bytes_mean", "bytes") },
        series: vec!["policy"],
        only: vec![("transport", json!("streams")), ("loss", json!(0.1))],
        note: "Acknowledgements, repeats and headers included.",
        ..Chart::new("Bytes on the wire for an obligation, 10 % loss", RATIO)
    });
    charts
}
