//! What a run leaves: one JSON file, one page, one table.

pub(crate) mod page;
pub(crate) mod plot;

use crate::figures::{Round, Spread, spread};
use crate::goals::Goal;
use crate::load::{Duty, Peer, Sample};
use crate::process::{CLIENT_CORE, Command, SERVER_CORE};
use crate::sync::Check;
use anyhow::Context as _;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// Where it was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    pub(crate) filesystem: String,
    /// Load average of the last 1, 5 and 15 minutes: above what the run itself brings (about 1.5)
    /// the machine was not quiet.
    pub(crate) load_average: String,
    pub(crate) placement: String,
}

impl Machine {
    pub(crate) fn here(data: &Path) -> anyhow::Result<Self> {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let cpu = read("/proc/cpuinfo");
        let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
        let filesystem = Command::new("df").args(["--output=source,fstype"]).arg(data).output()?;
        Ok(Self {
            date: Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output()?.trim().into(),
            cpu: cpu.unwrap_or("unknown").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            filesystem: filesystem.lines().last().unwrap_or_default().to_owned(),
            load_average: read("/proc/loadavg").trim().to_owned(),
            placement: format!(
                "a peer's server on core {SERVER_CORE}, its senders and receivers on core {CLIENT_CORE}; \
                 our custodian with its sender on core {SERVER_CORE}, our receiver on core {CLIENT_CORE}"
            ),
        })
    }
}

/// One peer, and how it was run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PeerReport {
    pub(crate) peer: Peer,
    pub(crate) version: String,
    pub(crate) argv: Vec<Vec<String>>,
    /// Whether its acks wait for the disk. None if that was not found out.
    pub(crate) durable: Option<bool>,
    pub(crate) checks: Vec<Check>,
    /// Why its syncs were not counted.
    pub(crate) check_error: Option<String>,
    /// Why it is not among the figures.
    pub(crate) error: Option<String>,
}

impl PeerReport {
    pub(crate) const fn new(peer: Peer) -> Self {
        Self {
            peer,
            version: String::new(),
            argv: Vec::new(),
            durable: None,
            checks: Vec::new(),
            check_error: None,
            error: None,
        }
    }

    pub(crate) fn fails(&mut self, error: &anyhow::Error) {
        self.error = Some(format!("{error:#}"));
    }

    fn durability(&self) -> String {
        match (self.durable, &self.check_error) {
            (Some(true), _) => "waits for the disk".to_owned(),
            (Some(false), _) => "does NOT wait for the disk".to_owned(),
            (None, Some(error)) => format!("not checked: {error}"),
            (None, None) => "not checked".to_owned(),
        }
    }
}

/// Medians of one peer, duty and window.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) peer: Peer,
    pub(crate) duty: Duty,
    pub(crate) in_flight: usize,
    pub(crate) per_s: Spread,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) client_cpu: f64,
    pub(crate) server_cpu: Option<f64>,
    /// Our messages a second over theirs.
    pub(crate) ours_over: Option<Spread>,
}

/// The medians over the rounds that count.
pub(crate) fn rows(rounds: &[&Round], windows: &[usize]) -> Vec<Row> {
    let mut rows = Vec::new();
    for duty in [Duty::Accepted, Duty::Applied, Duty::BestEffort] {
        for in_flight in windows {
            for peer in Peer::ALL {
                let of = |figure: &dyn Fn(&Sample) -> f64| {
                    spread(rounds.iter().copied(), |round| {
                        round.closed(peer, duty, *in_flight).map(figure)
                    })
                };
                let Some(per_s) = of(&|sample| sample.per_s) else { continue };
                let median = |figure: &dyn Fn(&Sample) -> f64| of(figure).map_or(0.0, |f| f.median);
                let server_cpu = spread(rounds.iter().copied(), |round| {
                    let cell = round.cells.iter().find(|cell| {
                        (cell.peer, cell.duty, cell.in_flight) == (peer, duty, *in_flight)
                    });
                    cell?.server_cpu
                });
                rows.push(Row {
                    peer,
                    duty,
                    in_flight: *in_flight,
                    per_s,
                    p50_us: median(&|sample| sample.p50_us),
                    p99_us: median(&|sample| sample.p99_us),
                    client_cpu: median(&|sample| sample.client_cpu),
                    server_cpu: server_cpu.map(|cpu| cpu.median),
                    ours_over: spread(rounds.iter().copied(), |round| {
                        let theirs = round.closed(peer, duty, *in_flight)?.per_s;
                        Some(round.closed(Peer::Abhyasa, duty, *in_flight)?.per_s / theirs)
                    }),
                });
            }
        }
    }
    rows
}

/// Everything a run found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) command: Vec<String>,
    pub(crate) payload_bytes: usize,
    pub(crate) seconds: f64,
    pub(crate) warm_up: f64,
    pub(crate) windows: Vec<usize>,
    pub(crate) goals: Vec<Goal>,
    pub(crate) rows: Vec<Row>,
    pub(crate) peers: Vec<PeerReport>,
    /// For each round, whether it counts.
    pub(crate) kept: Vec<bool>,
    pub(crate) rounds: Vec<Round>,
}

/// What the run leaves out on purpose, and what its figures do not say.
const NOTES: [&str; 6] = [
    "The protocol's Python reference is not on a registry (abhyasa on PyPI is another project), so it is not run.",
    "The effect of NATS, Redis, beanstalkd and RabbitMQ is a line in a log of the receiver, one fdatasync for all that wait: the cheapest there is, without the ledger that ours keeps in the same commit. PostgreSQL's is a row in the same transaction.",
    "AMQP does not confirm a consumer's ack: RabbitMQ's messages count as applied when the ack is sent.",
    "Up to 32 messages share a call of Redis (pipeline), postgres-batch (rows of an insert) and abhyasa (drafts of an issue), in-flight / 64 of them; the others have one in a call, and as many calls at once as messages in flight. Connections: at most 64.",
    "While ours accepts it also delivers over mutual TLS, and the receiver applies what it can.",
    "An idle peer's server is stopped (SIGSTOP) while another is measured.",
];

impl Report {
    /// Writes peers.json and peers.html.
    pub(crate) fn write(&self, out: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        for (name, text) in [("peers.json", json), ("peers.html", self.page())] {
            let file = out.join(name);
            std::fs::write(&file, text).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    fn kept_count(&self) -> usize {
        self.kept.iter().filter(|kept| **kept).count()
    }

    /// Whether a peer's figures may stand in the table of durable ones.
    fn is_durable(&self, peer: Peer) -> bool {
        !self.peers.iter().any(|report| report.peer == peer && report.durable == Some(false))
    }

    /// For the terminal.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let machine = &self.machine;
        let _ = writeln!(
            text,
            "{} cores of {}, Linux {}, {}, {}, load {}; {} of {} rounds count",
            machine.cores,
            machine.cpu,
            machine.kernel,
            machine.filesystem,
            machine.date,
            machine.load_average,
            self.kept_count(),
            self.rounds.len()
        );
        for peer in &self.peers {
            let checks: Vec<String> = peer
                .checks
                .iter()
                .map(|check| format!("{:.3} at {}", check.syncs_per_message, check.in_flight))
                .collect();
            let state = peer.error.clone().unwrap_or_else(|| peer.durability());
            let _ = writeln!(
                text,
                "{:>14}  {state}; syncs a message: {}; {}",
                peer.peer.name(),
                if checks.is_empty() { "-".to_owned() } else { checks.join(", ") },
                peer.version
            );
        }
        let _ = writeln!(
            text,
            "\n{:>11} {:>9} {:>14} {:>10} {:>11} {:>11}  ours over it",
            "duty", "in flight", "peer", "per s", "p50 us", "p99 us"
        );
        for row in self.rows.iter().filter(|row| self.is_durable(row.peer)) {
            let _ = writeln!(
                text,
                "{:>11} {:>9} {:>14} {:>10.0} {:>11.0} {:>11.0}  {}",
                row.duty.name(),
                row.in_flight,
                row.peer.name(),
                row.per_s.median,
                row.p50_us,
                row.p99_us,
                row.ours_over.map(range).unwrap_or_default()
            );
        }
        let _ = writeln!(text, "\n{:<70} {:>10}  figure", "goal", "limit");
        for goal in &self.goals {
            let _ = writeln!(
                text,
                "{:<70} {:>10}  {}: {}",
                goal.name,
                limit(goal),
                verdict(goal),
                goal.figure.map_or("-".to_owned(), range)
            );
        }
        let _ = writeln!(text);
        for note in NOTES {
            let _ = writeln!(text, "- {note}");
        }
        text
    }
}

fn limit(goal: &Goal) -> String {
    format!("{} {}", if goal.at_least { ">=" } else { "<=" }, goal.limit)
}

const fn verdict(goal: &Goal) -> &'static str {
    match goal.met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "not measured",
    }
}

/// `median (min to max)`.
pub(crate) fn range(spread: Spread) -> String {
    format!("{} ({} to {})", short(spread.median), short(spread.min), short(spread.max))
}

pub(crate) fn short(figure: f64) -> String {
    if figure >= 100.0 { format!("{figure:.0}") } else { format!("{figure:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::cell;

    pub(super) fn report() -> Report {
        let round = Round {
            controls_us: vec![100.0],
            control_us: 100.0,
            group_commit: Some(0.3),
            cells: vec![
                cell(Peer::Abhyasa, Duty::Accepted, 64, 90_000.0, 9.0),
                cell(Peer::Nats, Duty::Accepted, 64, 3000.0, 900.0),
                cell(Peer::Redis, Duty::Accepted, 64, 30_000.0, 90.0),
            ],
        };
        let mut redis = PeerReport::new(Peer::Redis);
        redis.durable = Some(false);
        let mut nats = PeerReport::new(Peer::Nats);
        nats.version = "<nats>".into();
        Report {
            machine: Machine::here(Path::new("/")).unwrap(),
            command: vec!["peers".into()],
            payload_bytes: 256,
            seconds: 1.0,
            warm_up: 0.5,
            windows: vec![64],
            goals: crate::goals::goals(&[&round]),
            rows: rows(&[&round], &[64]),
            peers: vec![PeerReport::new(Peer::Abhyasa), nats, redis],
            kept: vec![true],
            rounds: vec![round],
        }
    }

    #[test]
    fn who_does_not_wait_for_the_disk_is_named_and_left_out() {
        let table = report().table();
        assert!(table.contains("redis  does NOT wait for the disk"), "{table}");
        let rows = table.lines().filter(|line| line.trim_start().starts_with("accepted  "));
        let rows: Vec<&str> = rows.collect();
        assert!(rows.iter().any(|row| row.contains(" nats ") && row.contains("30.00")), "{table}");
        assert!(!rows.iter().any(|row| row.contains(" redis ")), "{table}");
    }

    #[test]
    fn the_page_stands_alone_and_escapes() {
        let page = report().page();
        assert!(page.contains("&lt;nats&gt;") && !page.contains("<nats>"));
        assert!(page.contains("<svg") && !page.contains("NaN") && !page.contains("inf"));
        for outside in ["http:", "https:", "<script"] {
            assert!(!page.replace("http://www.w3.org/2000/svg", "").contains(outside), "{outside}");
        }
    }
}
