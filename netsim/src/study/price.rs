//! What the two durable writes cost, measured on the real disk.

use super::row::number;
use super::{Outcome, Row, Study, Told, Work};
use crate::price::{Price, PriceFigure, PriceOptions, price};
use crate::report::{Axis, Chart, Kind};
use serde_json::{Value, json};
use std::sync::mpsc;

pub(super) const PRICE: Study = Study {
    name: "price",
    title: "The price of the two durable writes",
    question: "Two real nodes with mTLS over loopback, each with its own fjall on this machine's disk. In \
        each round the same load goes through three ways in turn: custody; custody whose fsyncs are left \
        out at both ends; and best effort. It is repeated with 1, 64 and 2,048 obligations at once. What \
        is called seeds here are rounds.",
    reading: "Figures are medians over the rounds, ratios are taken within a round: machines and disks \
        differ and swing. The gap between custody and custody without fsyncs is the price of the disk, \
        the gap from there to best effort the price of the bookkeeping. fdatasync_p50_us is what the \
        disk gives to a program that only appends 256 bytes and syncs.",
    seeds: 5,
    quick_seeds: 1,
    work: Work::Measured(measure),
    charts,
};

fn measure(rounds: u64, quick: bool, told: Told<'_>) -> Result<Outcome, String> {
    let mut options =
        PriceOptions { rounds: usize::try_from(rounds).unwrap_or(1), ..PriceOptions::default() };
    if quick {
        options.seconds = 0.3;
    }
    let planned = rounds * (options.in_flight.len() * crate::price::Way::ALL.len()) as u64;
    let (tx, rx) = mpsc::channel();
    let price = std::thread::scope(|scope| {
        let job = scope.spawn(|| {
            price(&options, move |_| {
                let _ = tx.send(());
            })
        });
        for (done, ()) in (1..).zip(rx) {
            told(done, planned);
        }
        job.join().map_err(|_| "the measurement panicked".to_owned())
    })?;
    let price = price.map_err(|error| format!("{error:#}"))?;
    let rows = price.figures.iter().map(|figure| row(&price, figure)).collect();
    Ok(Outcome { rows, broken: Vec::new(), runs: price.rows.len() as u64, planned })
}

fn row(price: &Price, figure: &PriceFigure) -> Row {
    let of =
        price.rows.iter().filter(|row| (row.in_flight, row.way) == (figure.in_flight, figure.way));
    let (mut rounds, mut transfers, mut lost) = (0, 0, 0);
    for row in of {
        (rounds, transfers, lost) = (rounds + 1, transfers + row.transfers, lost + row.lost);
    }
    let whole = |name: &str, value: Value| (name.to_owned(), value);
    let some = |name: &str, value: f64| (name.to_owned(), number(Some(value)));
    let (least, greatest) = figure.over_best_effort_range;
    Row {
        params: vec![
            whole("in_flight", json!(figure.in_flight)),
            whole("policy", json!(figure.way)),
        ],
        values: vec![
            whole("seeds", json!(rounds)),
            whole("transfers", json!(transfers)),
            whole("silent_losses", json!(lost)),
            // A transfer under custody that does not end applied fails the measurement.
            some("spurious_rate", 0.0),
            some("bound", 0.0),
            some("per_s", figure.per_s),
            some("over_best_effort", figure.over_best_effort),
            some("over_best_effort_low", least),
            some("over_best_effort_high", greatest),
            some("over_unsynced", figure.over_unsynced),
            some("applied_p50_us", figure.applied_p50_us),
            some("applied_p99_us", figure.applied_p99_us),
            ("acked_p50_us".to_owned(), number(figure.acked_p50_us)),
            ("acked_p99_us".to_owned(), number(figure.acked_p99_us)),
            some("fsyncs", figure.fsyncs),
            some("wire_bytes", figure.wire_bytes),
            some("datagrams", figure.datagrams),
            some("fdatasync_p50_us", price.fdatasync_p50_us),
        ],
        curve: Vec::new(),
    }
}

fn charts(rows: &[Row]) -> Vec<Chart> {
    let by_load = |title: &str, y: Axis| Chart {
        y,
        series: vec!["policy"],
        ..Chart::new(title, Axis::log("in_flight", "obligations at once"))
    };
    let mut charts = vec![
        by_load("Throughput", Axis::log("per_s", "applied in a second")),
        by_load("From issue to the durable effect", Axis::log("applied_p50_us", "median, µs")),
        by_load("Durable writes", Axis::linear("fsyncs", "fsyncs of both ends, each obligation")),
        by_load("Bytes on the wire", Axis::linear("wire_bytes", "UDP payload, each obligation")),
    ];
    let most = rows.iter().filter_map(|row| row.number("in_flight")).fold(0.0, f64::max) as u64;
    charts.push(Chart {
        kind: Kind::Bars,
        y: Axis::share("over_best_effort", "throughput, of best effort in the same round"),
        only: vec![("in_flight", json!(most))],
        band: Some(("over_best_effort_low", "over_best_effort_high")),
        note: "Lines are the least and the greatest of the rounds.",
        ..Chart::new("With the most obligations at once", Axis::linear("policy", ""))
    });
    charts
}
