//! The page of a report.

use super::svg::{draw, escape};
use super::{COMMIT, Document};
use crate::report::chart::Chart;
use crate::study::Row;
use serde_json::Value;
use std::fmt::Write as _;

const STYLE: &str = include_str!("style.css");
/// What charts look like, in the page and by themselves.
pub(super) const CHART_STYLE: &str = include_str!("chart.css");

/// What the columns mean, for those that need a word.
const WORDS: [(&str, &str); 14] = [
    (
        "silent loss",
        "an admissible obligation that never had its effect at its receiver, and of which its \
        issuer's principal was told nothing, or was told that it was applied; a line in a log tells nobody",
    ),
    (
        "spurious",
        "escalated although the receiver had applied it, or was up and would have applied it, had \
        it only come",
    ),
    ("spurious_applied", "of these, applied at the receiver: only its answer did not come"),
    (
        "bound",
        "the share of twins whose delivery took longer than the deadline of the obligation they go \
        with",
    ),
    ("applied", "had its effect, and was neither declined nor escalated"),
    ("logged_losses", "of the silent losses, those with an error in a log"),
    ("double_applications", "had their effect more than once"),
    (
        "…_low, …_high",
        "the ends of a 95 % interval: Wilson, on the number of transfers over the design \
        effect of the seeds",
    ),
    ("p50_ms … max_ms", "from the client's call to the durable effect at the receiver"),
    (
        "recovery_…",
        "from the end of the last outage to the effect, of what was issued before it ended",
    ),
    ("lateness_…", "from the deadline to the durable escalation"),
    (
        "overprotection_mean_s",
        "for how long the safe state of an escalated obligation stood though it was \
        applied: until a late answer told so, or else until everything was well",
    ),
    ("attempts_mean", "offers of an obligation, repeats by a transport aside"),
    (
        "bytes_mean",
        "bytes handed to the network for an obligation, by all nodes: answers, repeats and \
        headers included",
    ),
];

/// What the policies are.
const POLICIES: [(&str, &str); 8] = [
    (
        "custody",
        "the core under test: durable on both sides, repeated until applied, declined or the \
        deadline, which escalates and takes the safe side",
    ),
    (
        "receipt-ack",
        "custody, but the receiver answers when the bytes have come, before it applies them",
    ),
    ("volatile-ledger", "custody, but the receiver remembers what it applied in memory only"),
    (
        "at-least-once",
        "repeated until the receiver, which deduplicates durably, says applied, or until the \
        deadline; held in memory, and nobody is told when it is given up",
    ),
    ("retry-without-dedup", "the same, by a receiver that does not deduplicate"),
    (
        "one-shot-push",
        "sent once on a stream; the receiver answers receipt; a failure is logged (after \
        RFC 8935)",
    ),
    (
        "best-effort-stream",
        "sent once on a stream, which repeats packets while its connection lives",
    ),
    ("best-effort-datagram", "sent once on a datagram"),
];

pub(super) fn page(document: &Document) -> String {
    let Document { study, made, rows, broken, runs } = document;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>{CHART_STYLE}{STYLE}</style></head>\n\
         <body><main>\n<p class=\"kicker\">netsim study {name}</p>\n<h1>{title}</h1>\n<p class=\"lead\">{question}</p>\n",
        title = escape(study.title),
        name = escape(study.name),
        question = escape(study.question),
    );
    if made.partial {
        page.push_str(
            "<p class=\"warning\">Cut short: points have fewer seeds than planned.</p>\n",
        );
    }
    if !broken.is_empty() {
        let _ = writeln!(
            page,
            "<p class=\"warning\">{} runs broke a promise; the JSON file holds their scenarios.</p>",
            broken.len()
        );
    }
    page.push_str("<section class=\"charts\">\n");
    for chart in (study.charts)(rows) {
        figure(&mut page, &chart, rows);
    }
    let _ = write!(
        page,
        "</section>\n<h2>How to read it</h2>\n<p>{}</p>\n<h2>Figures</h2>\n",
        escape(study.reading)
    );
    table(&mut page, document);
    page.push_str("<h2>Words</h2>\n<dl>\n");
    let here = |name: &str| rows.iter().any(|row| row.get("policy").is_some_and(|p| p == name));
    let policies = POLICIES.iter().filter(|(name, _)| here(name));
    for (word, meaning) in policies.chain(&WORDS) {
        let _ = writeln!(page, "<dt>{}</dt><dd>{}.</dd>", escape(word), escape(meaning));
    }
    let commit = COMMIT.map_or(String::new(), |commit| format!(", commit {}", escape(commit)));
    let _ = write!(
        page,
        "</dl>\n<h2>How it was made</h2>\n<pre><code>{command}</code></pre>\n<p>Seeds 0 to {last} of each of \
         {points} points, {runs} runs in {seconds:.1} s on {threads} threads, begun {started}. netsim \
         {version}{commit}. The same command gives the same figures on any machine, with any \
         number of threads.</p>\n</main></body></html>\n",
        command = escape(&made.command),
        last = made.seeds.saturating_sub(1),
        points = rows.len(),
        seconds = made.seconds,
        threads = made.threads,
        started = escape(&made.started),
        version = env!("CARGO_PKG_VERSION"),
    );
    page
}

fn figure(page: &mut String, chart: &Chart, rows: &[Row]) {
    let data = chart.data(rows);
    let _ = write!(
        page,
        "<figure><figcaption>{}</figcaption>{}",
        escape(&chart.title),
        draw(chart, &data)
    );
    if chart.kind != super::Kind::Bars && (data.len() > 1 || chart.beside.is_some()) {
        page.push_str("<p class=\"legend\">");
        for (n, series) in data.iter().enumerate() {
            let colour = n % super::svg::COLOURS;
            let _ = write!(
                page,
                "<span><i class=\"swatch c{colour}\"></i>{}</span>",
                escape(&series.name)
            );
        }
        if let Some((_, name)) = chart.beside {
            let _ = write!(page, "<span><i class=\"dashes\"></i>{}</span>", escape(name));
        }
        page.push_str("</p>");
    }
    if !chart.note.is_empty() {
        let _ = write!(page, "<p class=\"note\">{}</p>", escape(chart.note));
    }
    page.push_str("</figure>\n");
}

/// All rows. Columns that say nothing anywhere are left out.
fn table(page: &mut String, document: &Document) {
    let says = |name: &&str| {
        document.rows.iter().any(|row| {
            row.get(name).is_some_and(|value| !value.is_null() && value.as_f64() != Some(0.0))
        })
    };
    let always = ["silent_losses", "double_applications", "spurious", "transfers"];
    let columns: Vec<&str> =
        document.columns().into_iter().filter(|name| always.contains(name) || says(name)).collect();
    let _ = write!(
        page,
        "<details{}><summary>{} points, {} columns (the same as in the CSV file)</summary>\n<div \
         class=\"scroll\"><table><thead><tr>",
        if document.rows.len() <= 30 { " open" } else { "" },
        document.rows.len(),
        columns.len()
    );
    for name in &columns {
        let _ = write!(page, "<th>{}</th>", escape(&name.replace('_', " ")));
    }
    page.push_str("</tr></thead><tbody>\n");
    for row in &document.rows {
        page.push_str("<tr>");
        for name in &columns {
            let (class, text) = match row.get(name) {
                None | Some(Value::Null) => (" class=\"none\"", "–".to_owned()),
                Some(Value::String(text)) => (" class=\"text\"", text.clone()),
                Some(Value::Number(number)) => ("", figure_text(number.as_f64().unwrap_or(0.0))),
                Some(other) => ("", other.to_string()),
            };
            let _ = write!(page, "<td{class}>{}</td>", escape(&text));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div></details>\n");
}

/// A figure of the table: whole numbers whole, others with four digits.
fn figure_text(value: f64) -> String {
    match value {
        _ if value == value.trunc() && value.abs() < 1e12 => format!("{value:.0}"),
        _ if value.abs() >= 1_000.0 => format!("{value:.0}"),
        _ if value.abs() >= 10.0 => format!("{value:.1}"),
        _ if value.abs() >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}
