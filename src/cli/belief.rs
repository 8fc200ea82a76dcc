//! `abhyasa belief`.

use super::client::Client;
use super::issue::{read, told};
use super::output;
use anyhow::Context as _;
use serde_json::Value;
use std::process::ExitCode;
use std::time::Duration;

/// What was learned about another agent.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The update, as Phala has it:
  {\"id\": \"bu-1\", \"target_agent_id\": \"spiffe://example.org/agent/b\", \"weight_key\": \"routing.b\",
   \"weight_delta\": -0.25, \"valid_from\": \"2026-03-04T09:00:00Z\", \"ttl_seconds\": 3600}

A corrective one (below zero) goes under custody until its time is over, a reinforcing one best-effort. Of
satisfaction_record_id, context_hash and all else nothing leaves the node.

Exit code: 0 taken, and with --wait also applied; 1 otherwise.")]
pub(super) struct BeliefArgs {
    /// File with the update (JSON); - for standard input.
    file: String,
    /// Wait up to N seconds for the terminal outcome.
    #[arg(long, value_name = "N")]
    wait: Option<u64>,
}

impl BeliefArgs {
    pub(super) async fn run(&self, client: &Client, as_json: bool) -> anyhow::Result<ExitCode> {
        let update: Value =
            serde_json::from_str(&read(&self.file)?).context("the update is no JSON")?;
        let query: Vec<_> =
            self.wait.iter().map(|seconds| ("wait_seconds", seconds.to_string())).collect();
        let wait = Duration::from_secs(self.wait.unwrap_or(0));
        let path = ["v1", "belief_updates"];
        let issued = client.post(&path, &query, Some(&update), wait).await?;
        let state = issued.pointer("/outcome/state").and_then(Value::as_str);
        if as_json {
            output::line(&issued.to_string());
        } else {
            let clipped = match issued.get("clipped") {
                Some(Value::Bool(true)) => {
                    format!(" (clipped to {})", output::cell(&issued, "weight_delta"))
                }
                _ => String::new(),
            };
            output::line(&format!("{}{clipped}", told(&issued, state)));
        }
        Ok(if state.is_none_or(|state| state == "applied") {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
