//! Commands that only look: status, lists, authorizations, weights, peers, events.

use super::client::Client;
use super::output;
use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;
use std::process::ExitCode;

/// Bytes of one event.
const EVENT_LEN_MAX: usize = 1 << 20;

/// Which part of a list.
#[derive(Debug, Args)]
pub(super) struct PageArgs {
    /// Items to list at most.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = at_least_one)]
    limit: usize,
    /// Go on where a list ended that said so.
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("not a number from 1 up".to_owned()),
        Ok(n) => Ok(n),
    }
}

impl PageArgs {
    pub(super) async fn fetch(
        &self,
        client: &Client,
        path: &str,
        query: &[(&str, String)],
    ) -> anyhow::Result<Value> {
        client.list(&["v1", path], query, self.limit, self.after.clone()).await
    }
}

/// Whose state.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum RoleArg {
    /// What the node, as principal, lets the agent do.
    Principal,
    /// What the agent, as principal, lets the node do.
    Receiver,
}

impl RoleArg {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Principal => "principal",
            Self::Receiver => "receiver",
        }
    }
}

/// Which state.
#[derive(Debug, Args)]
pub(super) struct CellArgs {
    /// Only of this agent.
    #[arg(long)]
    agent: Option<String>,
    /// Only of this role.
    #[arg(long)]
    role: Option<RoleArg>,
    #[command(flatten)]
    page: PageArgs,
}

impl CellArgs {
    async fn fetch(&self, client: &Client, path: &str) -> anyhow::Result<Value> {
        let agent = self.agent.iter().map(|agent| ("agent", agent.clone()));
        let role = self.role.iter().map(|role| ("role", role.as_str().to_owned()));
        let query: Vec<_> = agent.chain(role).collect();
        self.page.fetch(client, path, &query).await
    }
}

/// The list, or one question.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct AuthorizationArgs {
    #[command(flatten)]
    list: CellArgs,
    #[command(subcommand)]
    command: Option<AuthorizationCommand>,
}

/// What to ask.
#[derive(Debug, Subcommand)]
pub(super) enum AuthorizationCommand {
    /// Ask whether to go ahead. Exit code 0 means allowed; any other means no.
    Check {
        /// The other agent.
        #[arg(long)]
        agent: String,
        /// What is to be done.
        #[arg(long)]
        scope: String,
        /// Kind that governs it; by default every kind is asked, and one that withholds is enough.
        #[arg(long)]
        kind: Option<String>,
        /// `receiver`: may the node do it for the agent? `principal`: does the node let the agent?
        #[arg(long, default_value = "receiver")]
        role: RoleArg,
    },
}

impl AuthorizationArgs {
    pub(super) async fn run(&self, client: &Client, json: bool) -> anyhow::Result<ExitCode> {
        let Some(AuthorizationCommand::Check { agent, scope, kind, role }) = &self.command else {
            let columns = [
                ("ROLE", "role"),
                ("AGENT", "agent"),
                ("KIND", "kind"),
                ("SCOPE", "scope"),
                ("ALLOWED", "allowed"),
                ("SEQ", "sequence"),
                ("SINCE", "at"),
                ("BY", "obligation_id"),
            ];
            output::list(
                json,
                &self.list.fetch(client, "authorizations").await?,
                &columns,
                "no authorizations",
            );
            return Ok(ExitCode::SUCCESS);
        };
        let mut query = vec![
            ("agent", agent.clone()),
            ("scope", scope.clone()),
            ("role", role.as_str().to_owned()),
        ];
        query.extend(kind.iter().map(|kind| ("kind", kind.clone())));
        let answer = client.get(&["v1", "authorizations", "check"], &query).await?;
        let allowed = answer.get("allowed") == Some(&Value::Bool(true));
        if json {
            output::line(&answer.to_string());
        } else {
            let word = if allowed { "allowed" } else { "not allowed" };
            output::line(&format!("{word}: {}", output::cell(&answer, "why")));
        }
        Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

pub(super) async fn weights(client: &Client, args: &CellArgs, json: bool) -> anyhow::Result<()> {
    let columns = [
        ("ROLE", "role"),
        ("AGENT", "agent"),
        ("KIND", "kind"),
        ("WEIGHT KEY", "weight_key"),
        ("WEIGHT", "weight"),
        ("SINCE", "at"),
        ("BY", "obligation_id"),
    ];
    output::list(json, &args.fetch(client, "weights").await?, &columns, "no weights were moved");
    Ok(())
}

pub(super) async fn status(client: &Client, id: &str, json: bool) -> anyhow::Result<()> {
    output::object(json, &client.get(&["v1", "obligations", id], &[]).await?);
    Ok(())
}

pub(super) async fn group_status(
    client: &Client,
    group: &str,
    id: &str,
    json: bool,
) -> anyhow::Result<()> {
    let mut view = client.get(&["v1", "groups", group, "obligations", id], &[]).await?;
    if json {
        output::object(true, &view);
        return Ok(());
    }
    let of = view.get_mut("obligations").map(serde_json::Value::take).unwrap_or_default();
    output::object(false, &view);
    let columns = [
        ("TARGET", "target"),
        ("STATE", "state"),
        ("RETRIES", "retries"),
        ("DEADLINE", "deadline_at"),
        ("REASON", "reason"),
    ];
    let page = serde_json::json!({ "items": of });
    output::list(false, &page, &columns, "nobody has it");
    Ok(())
}

pub(super) async fn pending(client: &Client, args: &PageArgs, json: bool) -> anyhow::Result<()> {
    let columns = [
        ("ID", "obligation_id"),
        ("KIND", "kind"),
        ("TARGET", "target"),
        ("RETRIES", "retries"),
        ("DEFERRED", "deferred"),
        ("ISSUED", "created_at"),
        ("DEADLINE", "deadline_at"),
    ];
    output::list(json, &args.fetch(client, "pending", &[]).await?, &columns, "nothing is pending");
    Ok(())
}

pub(super) async fn terminal(client: &Client, args: &PageArgs, json: bool) -> anyhow::Result<()> {
    let columns = [
        ("ENDED", "at"),
        ("STATE", "state"),
        ("ID", "obligation_id"),
        ("KIND", "kind"),
        ("TARGET", "target"),
        ("RETRIES", "retries"),
        ("REASON", "reason"),
    ];
    output::list(json, &args.fetch(client, "terminal", &[]).await?, &columns, "nothing has ended");
    Ok(())
}

pub(super) async fn peers(client: &Client, json: bool) -> anyhow::Result<()> {
    let columns = [
        ("PEER", "id"),
        ("CONNECTED", "connected"),
        ("SESSIONS", "sessions"),
        ("ADDRESS", "address"),
    ];
    output::list(
        json,
        &client.get(&["v1", "peers"], &[]).await?,
        &columns,
        "no peers are configured",
    );
    Ok(())
}

/// Follows the event stream until nobody reads, or the node ends it.
pub(super) async fn events(client: &Client, json: bool) -> anyhow::Result<()> {
    let mut response = client.stream(&["v1", "events"]).await?;
    let mut buffer = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        buffer.extend_from_slice(&chunk);
        while let Some(end) = buffer.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = buffer.drain(..end + 2).collect();
            if let Some(data) = data_of(&String::from_utf8_lossy(&event))
                && !output::line(&if json { data } else { told(&data) })
            {
                return Ok(());
            }
        }
        if buffer.len() > EVENT_LEN_MAX {
            bail!("an event of more than {EVENT_LEN_MAX} bytes: is that an abhyasa node?");
        }
    }
    bail!("the node ended the stream")
}

/// The data of one server-sent event; none for a comment that keeps the connection alive.
fn data_of(event: &str) -> Option<String> {
    let lines: Vec<&str> = event
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .map(|data| data.strip_prefix(' ').unwrap_or(data))
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// An event as one line: when it was seen, its name, its members.
fn told(data: &str) -> String {
    let event: Value = serde_json::from_str(data).unwrap_or_default();
    let mut line = format!("{:.3}  {}", jiff::Timestamp::now(), output::cell(&event, "event"));
    for (member, value) in event.as_object().into_iter().flatten() {
        if member != "event" && !value.is_null() {
            line.push_str(&format!("  {member}={}", output::cell(&event, member)));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_and_comments_passed_over() {
        assert_eq!(data_of("event: terminal\ndata: {\"a\":1}\nid: 1\n\n").unwrap(), "{\"a\":1}");
        assert_eq!(data_of("data:a\ndata: b\n\n").unwrap(), "a\nb");
        assert_eq!(data_of(":\n\n"), None);
        let line = told(r#"{"event":"escalated","obligation_id":"ob-1","at_ms":0,"retries":3}"#);
        assert!(
            line.contains("  escalated  at_ms=1970-01-01T00:00:00Z  obligation_id=ob-1  retries=3"),
            "{line}"
        );
    }
}
