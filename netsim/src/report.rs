//! Reports of studies: JSON and CSV for machines, one HTML file for people.

mod chart;
mod html;
mod svg;

use crate::study::{Broken, Outcome, Row, Study};
use serde_json::{Value, json};
use std::fmt::Write as _;

pub use chart::{Axis, Chart, Kind, Scale};

/// What a report says of how it came about.
#[derive(Clone, Debug, Default)]
pub struct Made {
    /// The command that makes it again.
    pub command: String,
    /// Seeds of each point: `0..seeds`.
    pub seeds: u64,
    /// When it was begun, as RFC 3339 says it.
    pub started: String,
    /// How long it took.
    pub seconds: f64,
    /// Threads.
    pub threads: usize,
    /// Whether it was cut short.
    pub partial: bool,
}

/// A report, ready to be written.
#[derive(Clone, Debug)]
pub struct Document {
    study: Study,
    made: Made,
    rows: Vec<Row>,
    broken: Vec<Broken>,
    runs: u64,
}

/// The commit it was built from, if the build was told.
const COMMIT: Option<&str> = option_env!("ABHYASA_COMMIT");

impl Document {
    /// The report of a study.
    #[must_use]
    pub fn new(study: Study, outcome: Outcome, made: Made) -> Self {
        let Outcome { rows, broken, runs, .. } = outcome;
        Self { study, made, rows, broken, runs }
    }

    /// All of it, for machines.
    #[must_use]
    pub fn json(&self) -> Value {
        let Made { command, seeds, started, seconds, threads, partial } = &self.made;
        let points: Vec<Value> = self.rows.iter().map(Row::to_json).collect();
        json!({
            "study": self.study.name,
            "title": self.study.title,
            "command": command,
            "version": env!("CARGO_PKG_VERSION"),
            "commit": COMMIT,
            "seeds": format!("0..{seeds}"),
            "started": started,
            "seconds": (seconds * 1000.0).round() / 1000.0,
            "threads": threads,
            "runs": self.runs,
            "partial": partial,
            "broken": self.broken,
            "points": points,
        })
    }

    /// The points as a table.
    #[must_use]
    pub fn csv(&self) -> String {
        let columns = self.columns();
        let mut text = columns.join(",");
        text.push('\n');
        for row in &self.rows {
            let cells: Vec<String> = columns.iter().map(|name| cell(row.get(name))).collect();
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }

    /// One page for people, that needs nothing else.
    #[must_use]
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// Each chart as a file of its own, in the order of the page.
    #[must_use]
    pub fn svgs(&self) -> Vec<String> {
        let charts = (self.study.charts)(&self.rows);
        charts.iter().map(|chart| svg::alone(chart, &chart.data(&self.rows))).collect()
    }

    /// Names of all columns: those of the first row, then what only later ones have.
    fn columns(&self) -> Vec<&str> {
        let mut columns: Vec<&str> = Vec::new();
        for row in &self.rows {
            for (name, _) in row.params.iter().chain(&row.values) {
                if !columns.contains(&name.as_str()) {
                    columns.push(name);
                }
            }
        }
        columns
    }
}

/// A cell of a CSV file (RFC 4180).
fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) if text.contains([',', '"', '\n']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_they_must_be() {
        for (value, text) in [
            (json!("plain"), "plain"),
            (json!("a, \"b\""), "\"a, \"\"b\"\"\""),
            (json!(0.5), "0.5"),
            (json!(null), ""),
        ] {
            assert_eq!(cell(Some(&value)), text);
        }
    }
}
