//! `abhyasa escalations` and `abhyasa reconciliation`: what waits for a person.

use super::client::Client;
use super::output;
use super::read::PageArgs;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use std::time::Duration;

/// Which part of an inbox.
#[derive(Debug, Args)]
pub(super) struct InboxArgs {
    /// Also what was dealt with before.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    page: PageArgs,
}

impl InboxArgs {
    async fn fetch(&self, client: &Client, path: &str) -> anyhow::Result<serde_json::Value> {
        self.page.fetch(client, path, &[("all", self.all.to_string())]).await
    }
}

/// The escalation inbox.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct EscalationArgs {
    #[command(flatten)]
    list: InboxArgs,
    #[command(subcommand)]
    command: Option<EscalationCommand>,
}

/// What to do with the inbox.
#[derive(Debug, Subcommand)]
pub(super) enum EscalationCommand {
    /// List escalations (the default).
    List(InboxArgs),
    /// Acknowledge escalations: the principal has seen them.
    Ack {
        /// Obligation ids.
        #[arg(required = true)]
        ids: Vec<String>,
    },
    /// Answer a review: consent to a policy that waits for a person.
    #[command(group = clap::ArgGroup::new("answer").required(true))]
    Answer {
        /// Its id.
        id: String,
        /// Consent to the policy as it is.
        #[arg(long, group = "answer")]
        approve: bool,
        /// Reject it.
        #[arg(long, group = "answer")]
        reject: bool,
    },
}

impl EscalationArgs {
    pub(super) async fn run(&self, client: &Client, json: bool) -> anyhow::Result<()> {
        let list = match &self.command {
            Some(EscalationCommand::Ack { ids }) => return ack(client, ids, json).await,
            Some(EscalationCommand::Answer { id, approve, .. }) => {
                return answer(client, id, *approve, json).await;
            }
            Some(EscalationCommand::List(list)) => list,
            None => &self.list,
        };
        let columns = [
            ("AT", "at_ms"),
            ("ID", "obligation_id"),
            ("KIND", "kind"),
            ("TARGET", "target"),
            ("REASON", "reason"),
            ("RETRIES", "retries"),
            ("FAIL-SAFE", "safe_action/effect"),
            ("APPLIED", "safe_action_applied"),
            ("ACKNOWLEDGED", "acknowledged_at_ms"),
        ];
        let page = list.fetch(client, "escalations").await?;
        output::list(json, &page, &columns, "no escalations");
        let reviews = page.get("reviews").and_then(Value::as_array).map(Vec::as_slice);
        if let Some(reviews) = reviews.filter(|reviews| !json && !reviews.is_empty()) {
            let columns = [
                ("AT", "at_ms"),
                ("REVIEW", "id"),
                ("CALLEE", "callee"),
                ("POLICY", "policy_version"),
                ("REASON", "reason"),
                ("CLAIMS", "claims"),
                ("UNTIL", "deadline_at_ms"),
                ("LAPSED", "lapsed"),
            ];
            output::line(&format!("\n{}", output::table(&columns, reviews)));
        }
        Ok(())
    }
}

async fn answer(client: &Client, id: &str, approve: bool, json: bool) -> anyhow::Result<()> {
    let body = json!({ "approve": approve });
    let path = ["v1", "escalations", id, "answer"];
    client.post(&path, &[], Some(&body), Duration::ZERO).await?;
    let text = if approve { "approved" } else { "rejected" };
    output::line(&match json {
        true => json!({ "id": id, "approve": approve }).to_string(),
        false => format!("{id}: {text}"),
    });
    Ok(())
}

async fn ack(client: &Client, ids: &[String], json: bool) -> anyhow::Result<()> {
    for id in ids {
        client.post(&["v1", "escalations", id, "ack"], &[], None, Duration::ZERO).await?;
        if !json {
            output::line(&format!("{id}: acknowledged"));
        }
    }
    if json {
        output::line(&json!({ "acknowledged": ids }).to_string());
    }
    Ok(())
}

/// Reconciliation items.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct ReconciliationArgs {
    #[command(flatten)]
    list: InboxArgs,
    #[command(subcommand)]
    command: Option<ReconciliationCommand>,
}

/// What to do with the items.
#[derive(Debug, Subcommand)]
pub(super) enum ReconciliationCommand {
    /// List items (the default).
    List(InboxArgs),
    /// Resolve an item.
    Resolve {
        /// Its number.
        number: u64,
        /// How.
        #[arg(long = "as", value_name = "RESOLUTION")]
        resolution: ResolutionArg,
    },
}

/// How an item is resolved.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum ResolutionArg {
    /// Seen; nothing to do.
    Noted,
    /// In doubt: the effect did happen.
    Applied,
    /// In doubt: the effect did not happen, and will not be asked for again.
    #[value(name = "not_applied", alias = "not-applied")]
    NotApplied,
    /// Surfaced decline: apply the fail-safe now.
    #[value(name = "apply_safe", alias = "apply-safe")]
    ApplySafe,
}

impl ReconciliationArgs {
    pub(super) async fn run(&self, client: &Client, json: bool) -> anyhow::Result<()> {
        let list = match &self.command {
            Some(ReconciliationCommand::Resolve { number, resolution }) => {
                return resolve(client, *number, *resolution, json).await;
            }
            Some(ReconciliationCommand::List(list)) => list,
            None => &self.list,
        };
        let columns = [
            ("NUMBER", "number"),
            ("AT", "at_ms"),
            ("KIND", "kind"),
            ("ID", "obligation_id"),
            ("AGENT", "agent"),
            ("RESOLUTION", "resolution"),
            ("DETAIL", "detail"),
        ];
        output::list(
            json,
            &list.fetch(client, "reconciliation").await?,
            &columns,
            "nothing to reconcile",
        );
        Ok(())
    }
}

async fn resolve(
    client: &Client,
    number: u64,
    resolution: ResolutionArg,
    json: bool,
) -> anyhow::Result<()> {
    let word = match resolution {
        ResolutionArg::Noted => "noted",
        ResolutionArg::Applied => "applied",
        ResolutionArg::NotApplied => "not_applied",
        ResolutionArg::ApplySafe => "apply_safe",
    };
    let path = ["v1", "reconciliation", &number.to_string(), "resolve"];
    client.post(&path, &[], Some(&json!({ "resolution": word })), Duration::ZERO).await?;
    if json {
        output::line(&json!({ "number": number, "resolution": word }).to_string());
    } else {
        output::line(&format!("item {number}: {word}"));
    }
    Ok(())
}
