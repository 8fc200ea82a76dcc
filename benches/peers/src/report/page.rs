//! The page: tables and plots in one file that needs nothing else.

use super::plot::{Axes, Line, plot};
use super::{NOTES, Report, Row, limit, range, short, verdict};
use crate::load::{Duty, Peer};
use std::fmt::Write as _;

/// Of a page of figures.
pub(crate) const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em;\
background:#fff;color:#1b1f24}table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .7em;text-align:right;\
border-bottom:1px solid #d8dde3}td:first-child,th:first-child{text-align:left}.met{color:#0a6b2d}.missed{color:#b00020}\
svg{margin:.5em 1em .5em 0}svg text{font:12px system-ui,sans-serif;fill:#444}code{font-size:12px;word-break:break-all}\
.plots{display:flex;flex-wrap:wrap}";

/// Peers are orders of magnitude apart, and windows too.
const AXES: Axes = Axes { x_log: true, y_log: true };

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

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Report {
    fn lines(&self, duty: Duty, figure: impl Fn(&Row) -> f64) -> Vec<Line> {
        let line = |peer: Peer| {
            let rows = self.rows.iter().filter(|row| (row.peer, row.duty) == (peer, duty));
            Line {
                name: peer.name().to_owned(),
                color: color(peer),
                wide: if peer == Peer::Abhyasa { 3 } else { 2 },
                points: rows.map(|row| (row.in_flight as f64, figure(row))).collect(),
                ranges: Vec::new(),
            }
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
            html.push_str(&plot(what, "a second", AXES, &self.lines(duty, |row| row.per_s.median)));
            html.push_str(&plot(what, "p50, µs", AXES, &self.lines(duty, |row| row.p50_us)));
            html.push_str(&plot(what, "p99, µs", AXES, &self.lines(duty, |row| row.p99_us)));
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
