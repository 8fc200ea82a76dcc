//! The page: tables and plots in one file that needs nothing else.

use super::{NOTES, Report, Row, limit, range, short, verdict};
use crate::load::{Duty, Peer};
use std::fmt::Write as _;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
/// Room for what stands beside the axes.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 110.0;
const MARGIN: f64 = 30.0;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em;\
background:#fff;color:#1b1f24}table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .7em;text-align:right;\
border-bottom:1px solid #d8dde3}td:first-child,th:first-child{text-align:left}.met{color:#0a6b2d}.missed{color:#b00020}\
svg{margin:.5em 1em .5em 0}svg text{font:12px system-ui,sans-serif;fill:#444}code{font-size:12px;word-break:break-all}\
.plots{display:flex;flex-wrap:wrap}";

const fn color(peer: Peer) -> &'static str {
    match peer {
        Peer::Abhyasa => "#d1007a",
        Peer::Nats => "#2563c9",
        Peer::Redis => "#c2410c",
        Peer::Postgres => "#0f766e",
        Peer::PostgresBatch => "#64a30d",
        Peer::Beanstalkd => "#7c3aed",
        Peer::Rabbitmq => "#a16207",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A line through points of one peer.
struct Line {
    peer: Peer,
    points: Vec<(f64, f64)>,
}

/// Both axes logarithmic: peers are orders of magnitude apart.
fn plot(title: &str, unit: &str, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let values = || all().map(|(_, y)| y).filter(|y| *y > 0.0);
    let (Some(low), Some(high)) =
        (values().min_by(f64::total_cmp), values().max_by(f64::total_cmp))
    else {
        return String::new();
    };
    let (low, high) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    let steps: std::collections::BTreeSet<u64> = all().map(|(x, _)| x as u64).collect();
    let widest = all().map(|(x, _)| x).fold(2.0, f64::max).log2();
    let narrowest = all().map(|(x, _)| x).fold(f64::INFINITY, f64::min).max(1.0).log2();
    let span = (widest - narrowest).max(1.0);
    let x = |at: f64| LEFT + (at.log2() - narrowest) / span * (WIDTH - LEFT - RIGHT);
    let y = |at: f64| HEIGHT - MARGIN - (at.log10() - low) / (high - low) * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\"><title>{title}</title>\
         <text x=\"{LEFT}\" y=\"16\" style=\"font-weight:600\">{title} ({unit})</text>"
    );
    for power in low as i32..=high as i32 {
        let at = 10f64.powi(power);
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#e3e7ec\"/><text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
            WIDTH - RIGHT,
            y(at),
            LEFT - 6.0,
            y(at) + 4.0,
            grouped(at)
        );
    }
    for step in steps {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{step}</text>",
            x(step as f64),
            HEIGHT - MARGIN + 16.0
        );
    }
    let mut taken: Vec<f64> = Vec::new();
    for line in lines {
        let points: Vec<(f64, f64)> =
            line.points.iter().filter(|(_, y)| *y > 0.0).map(|(px, py)| (x(*px), y(*py))).collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (color, wide) = (color(line.peer), if line.peer == Peer::Abhyasa { 3 } else { 2 });
        let _ = write!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{wide}\"/>",
            path.join(" ")
        );
        for (x, y) in &points {
            let _ = write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"/>");
        }
        if let Some((end_x, end_y)) = points.last() {
            // Names of lines that end close to each other would cover each other.
            let mut at = end_y + 4.0;
            while taken.iter().any(|other| (other - at).abs() < 12.0) {
                at -= 12.0;
            }
            taken.push(at);
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{at:.1}\" style=\"fill:{color}\">{}</text>",
                end_x + 8.0,
                line.peer.name()
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

/// A power of ten, with commas.
fn grouped(at: f64) -> String {
    if at < 1.0 {
        return format!("{at}");
    }
    let digits = format!("{at:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl Report {
    fn lines(&self, duty: Duty, figure: impl Fn(&Row) -> f64) -> Vec<Line> {
        let line = |peer: Peer| {
            let rows = self.rows.iter().filter(|row| (row.peer, row.duty) == (peer, duty));
            Line { peer, points: rows.map(|row| (row.in_flight as f64, figure(row))).collect() }
        };
        let peers = Peer::ALL.into_iter().filter(|peer| self.is_durable(*peer));
        peers.map(line).filter(|line| !line.points.is_empty()).collect()
    }

    pub(super) fn page(&self) -> String {
        let machine = &self.machine;
        let mut html = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>abhyasa beside its peers</title>\
             <style>{STYLE}</style><h1>abhyasa beside its peers</h1>\
             <p>{} cores of {}, Linux {}, {}, {}, load average {}. {} of {} rounds count: the others' \
             fsync control was more than 30 % from the median control. {} bytes a payload, {} s a load \
             after {} s of warm-up. On cores: {}.</p>",
            machine.cores,
            escape(&machine.cpu),
            escape(&machine.kernel),
            escape(&machine.filesystem),
            escape(&machine.date),
            escape(&machine.load_average),
            self.kept_count(),
            self.rounds.len(),
            self.payload_bytes,
            self.seconds,
            self.warm_up,
            escape(&machine.placement)
        );
        self.goals_table(&mut html);
        html.push_str("<h2>By messages in flight</h2><div class=\"plots\">");
        for (duty, what) in [
            (Duty::Accepted, "Accepted: submitted and durable"),
            (Duty::Applied, "Applied by a second party, and known"),
        ] {
            html.push_str(&plot(what, "a second", &self.lines(duty, |row| row.per_s.median)));
            html.push_str(&plot(what, "p50, µs", &self.lines(duty, |row| row.p50_us)));
            html.push_str(&plot(what, "p99, µs", &self.lines(duty, |row| row.p99_us)));
        }
        html.push_str("</div>");
        self.rows_table(&mut html);
        self.peers_table(&mut html);
        self.rounds_table(&mut html);
        html.push_str("<h2>Notes</h2><ul>");
        for note in NOTES {
            let _ = write!(html, "<li>{}</li>", escape(note));
        }
        let _ = write!(html, "</ul><p><code>{}</code></p></html>", escape(&self.command.join(" ")));
        html
    }

    fn goals_table(&self, html: &mut String) {
        html.push_str(
            "<h2>Goals</h2><table><tr><th>goal</th><th>limit</th><th>median (min to max)</th><th></th></tr>",
        );
        for goal in &self.goals {
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{3}\">{3}</td></tr>",
                escape(goal.name),
                escape(&limit(goal)),
                goal.figure.map_or("-".to_owned(), range),
                verdict(goal)
            );
        }
        html.push_str("</table>");
    }

    fn rows_table(&self, html: &mut String) {
        html.push_str(
            "<h2>Medians</h2><table><tr><th>peer</th><th>duty</th><th>in flight</th><th>a second</th><th>p50 µs</th>\
             <th>p99 µs</th><th>CPU of its clients</th><th>of its server</th><th>ours over it</th></tr>",
        );
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        for row in self.rows.iter().filter(|row| self.is_durable(row.peer)) {
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.0}</td><td>{:.0}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                row.peer.name(),
                row.duty.name(),
                row.in_flight,
                range(row.per_s),
                row.p50_us,
                row.p99_us,
                percent(row.client_cpu),
                row.server_cpu.map_or("-".to_owned(), percent),
                row.ours_over.map(range).unwrap_or_default()
            );
        }
        html.push_str("</table>");
    }

    fn peers_table(&self, html: &mut String) {
        html.push_str(
            "<h2>Peers</h2><table><tr><th>peer</th><th>version</th><th>durability</th><th>syncs a message</th>\
             <th>command lines</th></tr>",
        );
        for peer in &self.peers {
            let checks: Vec<String> = peer
                .checks
                .iter()
                .map(|check| {
                    let dsync = if check.o_dsync.is_empty() { "" } else { " and O_DSYNC" };
                    format!("{} at {}{dsync}", short(check.syncs_per_message), check.in_flight)
                })
                .collect();
            let argv: Vec<String> = peer.argv.iter().map(|argv| escape(&argv.join(" "))).collect();
            let state = peer.error.clone().unwrap_or_else(|| peer.durability());
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td style=\"text-align:left\"><code>{}</code></td></tr>",
                peer.peer.name(),
                escape(&peer.version),
                escape(&state),
                checks.join("<br>"),
                argv.join("<br>")
            );
        }
        html.push_str("</table>");
    }

    fn rounds_table(&self, html: &mut String) {
        html.push_str(
            "<h2>Rounds</h2><table><tr><th>round</th><th>fsync control, median µs</th><th>range within</th><th>counts</th>\
             <th>loads that failed</th></tr>",
        );
        for (number, (round, kept)) in self.rounds.iter().zip(&self.kept).enumerate() {
            let low = round.controls_us.iter().copied().fold(f64::MAX, f64::min);
            let high = round.controls_us.iter().copied().fold(0.0, f64::max);
            let failed: Vec<String> = round
                .cells
                .iter()
                .filter_map(|cell| {
                    let error = escape(cell.error.as_ref()?);
                    let (peer, duty) = (cell.peer.name(), cell.duty.name());
                    Some(format!("{peer} {duty} {}: {error}", cell.in_flight))
                })
                .collect();
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{:.0}</td><td>{low:.0} to {high:.0}</td><td>{}</td><td>{}</td></tr>",
                number + 1,
                round.control_us,
                if *kept { "yes" } else { "no" },
                failed.join("<br>")
            );
        }
        html.push_str("</table>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_ten_are_grouped() {
        assert_eq!(grouped(1.0), "1");
        assert_eq!(grouped(1000.0), "1,000");
        assert_eq!(grouped(1e6), "1,000,000");
        assert_eq!(grouped(0.1), "0.1");
    }
}
