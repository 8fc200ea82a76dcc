//! What a run of curves leaves: one JSON file, one page, one table.

use super::Report;
use super::curve::{Named, Point, bytes_per_pending};
use crate::figures::Spread;
use crate::report::page::{STYLE, escape};
use crate::report::plot::{Axes, Line, plot};
use crate::report::{range, short};
use anyhow::Context as _;
use std::fmt::Write as _;
use std::path::Path;

const COLORS: [&str; 4] = ["#d1007a", "#2563c9", "#0f766e", "#a16207"];
const LOG: Axes = Axes { x_log: true, y_log: true };
/// A curve that should be flat is shown from zero.
const FLAT: Axes = Axes { x_log: true, y_log: false };
const LINEAR: Axes = Axes { x_log: false, y_log: false };

/// What the figures do not say.
const NOTES: [&str; 7] = [
    "Applied: durably applied by a second party, and the first durably knows. All obligations are under custody.",
    "Pending: the store is filled once; each round is two restarts on it after an end without warning, one in which the away peer is back (time until its first offer is on the wire, from opening the store) and one in which it stays away and a live peer is loaded. Retries to who is away are an hour apart, so that none falls due meanwhile; a filled set whose retries are due costs a durable write for each besides.",
    "Resident memory is of the node and its load in one process. Of fewer than 100,000 pending it is less than what a node takes and frees anyway, and not told.",
    "Peers: each is an identity of its own on a QUIC connection of its own; all are in one process, on one socket, and have no store: they call everything applied at once. So the rates are of the node that issues alone. Each obligation goes to the next peer.",
    "Payload: two real nodes, as in the comparison with others. At most 32 MB of payload are in flight.",
    "Age: two real nodes, one load after the other, each after 300 syncs of a control; history is what the process wrote to files, journal and compactions together. Tables that went between two looks were merged by compactions.",
    "Medians over rounds with min and max; sizes take turns in each round.",
];

/// A column of a table: heading, figure, unit it is shown in.
type Column = (&'static str, &'static str, f64);

const PENDING: [Column; 9] = [
    ("applied a second", "applied_per_s", 1.0),
    ("p99, ms", "p99_us", 1e3),
    ("accepted a second, filling", "accepted_per_s", 1.0),
    ("resident, filled, MB", "rss_filled_bytes", 1e6),
    ("resident, restarted, MB", "rss_restarted_bytes", 1e6),
    ("store open, ms", "open_ms", 1.0),
    ("ready, ms", "ready_ms", 1.0),
    ("first retransmit, ms", "first_offer_ms", 1.0),
    ("fsync control, µs", "control_us", 1.0),
];
const PEERS: [Column; 8] = [
    ("applied a second", "applied_per_s", 1.0),
    ("p99, ms", "p99_us", 1e3),
    ("obligations a commit", "obligations_per_commit", 1.0),
    ("all connected, ms", "connected_ms", 1.0),
    ("resident, idle, MB", "rss_connected_bytes", 1e6),
    ("resident, loaded, MB", "rss_loaded_bytes", 1e6),
    ("a connection, KB", "rss_per_connection_bytes", 1e3),
    ("CPU of the node", "node_cpu", 1.0),
];
const PAYLOAD: [Column; 6] = [
    ("applied a second", "applied_per_s", 1.0),
    ("payload, MB a second", "payload_mb_per_s", 1.0),
    ("p99, ms", "p99_us", 1e3),
    ("in flight", "in_flight", 1.0),
    ("CPU of the node", "node_cpu", 1.0),
    ("fsync control, µs", "control_us", 1.0),
];

fn scaled(spread: Spread, unit: f64) -> Spread {
    let Spread { median, min, max, rounds } = spread;
    Spread { median: median / unit, min: min / unit, max: max / unit, rounds }
}

/// What was measured once has no range.
fn told(spread: Spread, unit: f64) -> String {
    let spread = scaled(spread, unit);
    if spread.rounds == 1 { short(spread.median) } else { range(spread) }
}

/// One figure of each point.
fn line(name: &str, nth: usize, points: &[Point], figure: &str, unit: f64) -> Line {
    let of = |point: &Point| Some((point.at as f64, scaled(*point.figures.get(figure)?, unit)));
    let all: Vec<(f64, Spread)> = points.iter().filter_map(of).collect();
    Line {
        name: name.to_owned(),
        color: COLORS.get(nth).copied().unwrap_or("#444"),
        wide: 2,
        points: all.iter().map(|(at, spread)| (*at, spread.median)).collect(),
        ranges: all.iter().map(|(_, spread)| (spread.min, spread.max)).collect(),
    }
}

/// One figure of each slice, by gigabytes of history.
fn aged(name: &str, nth: usize, slices: &[Named], figure: &str, unit: f64) -> Line {
    let of = |slice: &Named| Some((slice.get("history_bytes")? / 1e9, slice.get(figure)? / unit));
    Line {
        name: name.to_owned(),
        color: COLORS.get(nth).copied().unwrap_or("#444"),
        wide: 2,
        points: slices.iter().filter_map(of).collect(),
        ranges: Vec::new(),
    }
}

impl Report {
    /// Writes scale.json and scale.html.
    pub(super) fn write(&self, out: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        for (name, text) in [("scale.json", json), ("scale.html", self.page())] {
            let file = out.join(name);
            std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    fn curves(&self) -> [(&'static str, &'static str, &[Point], &'static [Column]); 3] {
        [
            ("Pending to a peer that is away", "pending", &self.pending, &PENDING),
            ("Connected peers", "peers", &self.peers, &PEERS),
            ("Bytes of a payload", "payload", &self.payload, &PAYLOAD),
        ]
    }

    /// How memory goes with the pending set, and throughput with age.
    fn verdicts(&self) -> Vec<String> {
        let mut all = Vec::new();
        let memory = self.memory;
        if let Some(bytes) = memory.bytes_per_pending {
            all.push(format!("one more pending obligation takes {bytes:.0} bytes (between the two largest points, as filled)"));
        }
        if let Some(bytes) = memory.bytes_per_pending_restarted {
            all.push(format!("after a restart it takes {bytes:.0} bytes (between the smallest and the largest point)"));
        }
        if let Some(trend) = self.trend {
            all.push(format!(
                "age: {} slices, {:.2} GB written, {:.0} tables compacted away: last quarter over first {:.3} (disk {:.3}), slope {:+.0} a second for each GB ({:+.2} % of the mean){}",
                trend.slices,
                trend.history_bytes / 1e9,
                trend.tables_compacted,
                trend.last_over_first,
                trend.disk_last_over_first,
                trend.slope_per_gb,
                trend.slope_share_per_gb * 100.0,
                if trend.aged { "" } else { "; NOT AGED: too little was written, or nothing compacted" }
            ));
        }
        all.extend(
            self.left_out
                .iter()
                .map(|out| format!("left out: {} {}: {}", out.curve.name(), out.at, out.why)),
        );
        all
    }

    /// For the terminal.
    pub(super) fn table(&self) -> String {
        let mut text = String::new();
        for (title, name, points, columns) in self.curves() {
            for point in points {
                let _ = write!(text, "{name} {}", point.at);
                for (heading, figure, unit) in columns {
                    if let Some(spread) = point.figures.get(*figure) {
                        let _ = write!(text, "; {heading} {}", told(*spread, *unit));
                    }
                }
                let _ = writeln!(text);
            }
            if points.is_empty() {
                let _ = writeln!(text, "{title}: not measured");
            }
        }
        for verdict in self.verdicts() {
            let _ = writeln!(text, "{verdict}");
        }
        let _ = writeln!(text, "took {:.0} s", self.took_s);
        text
    }

    fn page(&self) -> String {
        let machine = &self.machine;
        let mut html = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>abhyasa: scale</title>\
             <style>{STYLE}</style><h1>How abhyasa scales</h1>\
             <p>{} cores of {}, Linux {}, {}, {}, load average {} at the start. {} rounds of {} s after {} s of \
             warm-up, {} in flight, {} bytes a payload where nothing else is said. On cores: {}. Took {:.0} s.</p><ul>",
            machine.cores,
            escape(&machine.cpu),
            escape(&machine.kernel),
            escape(&machine.filesystem),
            escape(&machine.date),
            escape(&machine.load_average),
            self.rounds,
            self.sizes.seconds,
            self.sizes.warm_up,
            self.sizes.in_flight,
            self.sizes.payload_bytes,
            escape(&machine.placement),
            self.took_s
        );
        for verdict in self.verdicts() {
            let _ = write!(html, "<li>{}</li>", escape(&verdict));
        }
        html.push_str("</ul>");
        for (title, name, points, columns) in self.curves() {
            let _ = write!(html, "<h2>{title}</h2><div class=\"plots\">");
            html.push_str(&self.plots(name));
            html.push_str("</div>");
            table(&mut html, name, points, columns);
        }
        html.push_str("<h2>Age of the store</h2><div class=\"plots\">");
        html.push_str(&self.age_plots());
        html.push_str("</div><h2>Notes</h2><ul>");
        for note in NOTES {
            let _ = write!(html, "<li>{}</li>", escape(note));
        }
        let _ = write!(html, "</ul><p><code>{}</code></p></html>", escape(&self.command.join(" ")));
        html
    }

    fn plots(&self, curve: &str) -> String {
        let of = |points, figures: &[(&str, &str, f64)]| -> Vec<Line> {
            let lines = figures.iter().enumerate();
            lines
                .map(|(nth, (name, figure, unit))| line(name, nth, points, figure, *unit))
                .collect()
        };
        match curve {
            "pending" => {
                let points = &self.pending;
                let applied = of(points, &[("applied", "applied_per_s", 1.0)]);
                let memory = of(
                    points,
                    &[
                        ("filled", "rss_filled_bytes", 1e6),
                        ("restarted", "rss_restarted_bytes", 1e6),
                    ],
                );
                let restart = of(
                    points,
                    &[("ready", "ready_ms", 1.0), ("first retransmit", "first_offer_ms", 1.0)],
                );
                let each = Line {
                    name: "filled".to_owned(),
                    color: COLORS.first().copied().unwrap_or("#444"),
                    wide: 2,
                    points: points
                        .iter()
                        .filter_map(|p| Some((p.at as f64, bytes_per_pending(p)?)))
                        .collect(),
                    ranges: Vec::new(),
                };
                plot("Applied beside them", "a second, by pending", FLAT, &applied)
                    + &plot("Resident memory", "MB, by pending", LOG, &memory)
                    + &plot("Memory of one pending", "bytes, by pending", FLAT, &[each])
                    + &plot("Restart", "ms, by pending", LOG, &restart)
            }
            "peers" => {
                let points = &self.peers;
                let applied = of(points, &[("all peers", "applied_per_s", 1.0)]);
                let each = of(points, &[("idle", "rss_per_connection_bytes", 1e3)]);
                let memory = of(
                    points,
                    &[("idle", "rss_connected_bytes", 1e6), ("loaded", "rss_loaded_bytes", 1e6)],
                );
                plot("Applied in all", "a second, by peers", FLAT, &applied)
                    + &plot("Resident memory", "MB, by peers", LOG, &memory)
                    + &plot("Memory of one connection", "KB, by peers", LOG, &each)
            }
            _ => {
                let points = &self.payload;
                let applied = of(points, &[("applied", "applied_per_s", 1.0)]);
                let bytes = of(points, &[("payload", "payload_mb_per_s", 1.0)]);
                plot("Applied", "a second, by bytes of a payload", LOG, &applied)
                    + &plot("Payload applied", "MB a second, by bytes of one", LOG, &bytes)
            }
        }
    }

    fn age_plots(&self) -> String {
        let of = |name, nth, figure, unit| aged(name, nth, &self.age, figure, unit);
        plot(
            "Applied",
            "a second, by GB written",
            LINEAR,
            &[of("applied", 0, "applied_per_s", 1.0)],
        ) + &plot(
            "fsync control",
            "µs, by GB written",
            LINEAR,
            &[of("median", 1, "control_us", 1.0)],
        ) + &plot(
            "Resident memory, store",
            "MB, by GB written",
            LINEAR,
            &[of("memory", 0, "rss_bytes", 1e6), of("store", 1, "store_bytes", 1e6)],
        ) + &plot(
            "Tables",
            "by GB written",
            LINEAR,
            &[of("there", 0, "tables", 1.0), of("compacted away", 1, "tables_compacted", 1.0)],
        )
    }
}

fn table(html: &mut String, name: &str, points: &[Point], columns: &[Column]) {
    if points.is_empty() {
        html.push_str("<p>Not measured.</p>");
        return;
    }
    let _ = write!(html, "<table><tr><th>{name}</th>");
    for (heading, ..) in columns {
        let _ = write!(html, "<th>{}</th>", escape(heading));
    }
    html.push_str("</tr>");
    for point in points {
        let _ = write!(html, "<tr><td>{}</td>", point.at);
        for (_, figure, unit) in columns {
            let shown = point.figures.get(*figure).map(|spread| told(*spread, *unit));
            let _ = write!(html, "<td>{}</td>", shown.unwrap_or_else(|| "-".to_owned()));
        }
        html.push_str("</tr>");
    }
    html.push_str("</table>");
}

#[cfg(test)]
mod tests {
    use super::super::Sizes;
    use super::super::curve::tests::named;
    use super::super::curve::{Curve, LeftOut, Memory, trend};
    use super::*;
    use crate::report::Machine;

    fn report() -> Report {
        let point = |at, per_s| {
            let all = [("applied_per_s", per_s), ("ready_ms", 3.0), ("rss_filled_bytes", 5e7)];
            Point::new(at, vec![named(&all), named(&[("applied_per_s", per_s * 1.1)])])
        };
        let slice = |nth: u32| {
            named(&[
                ("applied_per_s", 40_000.0),
                ("history_bytes", f64::from(nth + 1) * 1e7),
                ("tables_compacted", 2.0),
                ("control_us", 100.0),
            ])
        };
        let age: Vec<Named> = (0..12).map(slice).collect();
        Report {
            machine: Machine::here(Path::new("/")).unwrap(),
            command: vec!["<scale>".into()],
            sizes: Sizes { seconds: 1.0, warm_up: 0.5, in_flight: 64, payload_bytes: 256 },
            rounds: 2,
            took_s: 9.0,
            pending: vec![point(1_000, 40_000.0), point(100_000, 39_000.0)],
            memory: Memory::default(),
            peers: vec![point(1, 9_000.0)],
            payload: Vec::new(),
            trend: trend(&age),
            age,
            left_out: vec![LeftOut {
                curve: Curve::Pending,
                at: 10_000_000,
                why: "disk & memory".into(),
            }],
        }
    }

    #[test]
    fn the_page_stands_alone_and_escapes() {
        let page = report().page();
        assert!(page.contains("&lt;scale&gt;") && page.contains("disk &amp; memory"));
        assert!(page.contains("<svg") && !page.contains("NaN") && !page.contains("inf"));
        assert!(page.contains("Not measured."));
        for outside in ["http:", "https:", "<script"] {
            assert!(!page.replace("http://www.w3.org/2000/svg", "").contains(outside), "{outside}");
        }
    }

    #[test]
    fn what_was_left_out_and_how_age_goes_is_told() {
        let table = report().table();
        assert!(table.contains("left out: pending 10000000: disk & memory"), "{table}");
        assert!(table.contains("last quarter over first 1.000 (disk 1.000)"), "{table}");
        assert!(table.contains("pending 1000; applied a second 42000 (40000 to 44000)"), "{table}");
        assert!(table.contains("Bytes of a payload: not measured"), "{table}");
    }
}
