//! `abhyasa moq`: MOQT by hand.

mod hand;

use super::{Global, output};
use crate::moq::check::{self, Finding, Relay, Verdict};
use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use hand::{PubArgs, SubArgs};
use std::path::PathBuf;
use std::process::ExitCode;
use url::Url;

/// What is done by hand.
#[derive(Debug, clap::Subcommand)]
pub(super) enum MoqCommand {
    /// Check a relay for what abhyasa needs of one, and say what it lacks. It takes a minute or two: that a
    /// publisher is gone without a word is noticed no sooner.
    RelayCheck(RelayCheckArgs),
    /// Subscribe to a track, and print its objects decoded; without a track, print the namespaces there are.
    Sub(SubArgs),
    /// Publish lines of standard input at a relay, each as a group of one object.
    Pub(PubArgs),
}

/// Which relay.
#[derive(Debug, clap::Args)]
pub(super) struct RelayCheckArgs {
    /// The relay: moqt://HOST:PORT, with a path where it has scopes.
    url: Url,
    /// PEM file with the CA that its certificate is of.
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
    /// Only these checks, separated by commas.
    #[arg(long, value_name = "CHECK", value_delimiter = ',', hide_possible_values = true, value_parser = PossibleValuesParser::new(check::names()))]
    only: Vec<String>,
}

impl MoqCommand {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        match self {
            Self::RelayCheck(args) => args.run(global.json).await,
            Self::Sub(args) => args.run(global).await,
            Self::Pub(args) => args.run(global).await,
        }
    }
}

impl RelayCheckArgs {
    /// Success if all that custody needs and was asked for is there.
    async fn run(self, json: bool) -> anyhow::Result<ExitCode> {
        let relay = Relay::new(self.url, &self.ca).await?;
        let asked = |name: &str| self.only.is_empty() || self.only.iter().any(|only| only == name);
        let width = check::names().map(str::len).max().unwrap_or_default();
        let report = check::check(&relay, asked, |finding| {
            if !json {
                output::line(&text(finding, width));
            }
        });
        let report = report.await;
        if json {
            output::line(&serde_json::to_string(&report).context("the report")?);
        } else if self.only.is_empty() {
            output::line(if report.usable {
                "All that custody needs is there."
            } else {
                "Custody does not work through this relay."
            });
        }
        Ok(if report.usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// One finding, and what it comes to where something is lacking.
fn text(finding: &Finding, width: usize) -> String {
    let Finding { check, verdict, needed, saw, without } = finding;
    let said = match verdict {
        Verdict::Ok => "ok",
        Verdict::Lacks => "lacks",
        Verdict::NotAsked => "not asked",
    };
    let line = format!("{check:width$}  {said:9}  {saw}");
    match (verdict, needed) {
        (Verdict::Lacks, true) => format!("{line}\n{:width$}  NEEDED     {without}", ""),
        (Verdict::Lacks, false) => format!("{line}\n{:width$}  so:        {without}", ""),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lacking_is_followed_by_what_does_not_work_then() {
        let finding = |verdict, needed| Finding {
            check: "groups",
            verdict,
            needed,
            saw: "9 are missing".to_owned(),
            without: "batches get lost",
        };
        assert_eq!(text(&finding(Verdict::Ok, true), 8), "groups    ok         9 are missing");
        assert_eq!(
            text(&finding(Verdict::Lacks, true), 8),
            "groups    lacks      9 are missing\n          NEEDED     batches get lost"
        );
        assert_eq!(
            text(&finding(Verdict::Lacks, false), 8),
            "groups    lacks      9 are missing\n          so:        batches get lost"
        );
        let not_asked = text(&finding(Verdict::NotAsked, true), 8);
        assert_eq!(not_asked, "groups    not asked  9 are missing");
    }
}
