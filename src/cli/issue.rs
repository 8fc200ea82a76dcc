//! `abhyasa issue`.

use super::client::Client;
use super::output;
use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Bytes read of a payload or batch file.
const FILE_LEN_MAX: u64 = 1 << 30;

/// What to issue.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Payloads:
  anumati.consent      {\"decision\": \"revoke\", \"scope\": \"calendar.read\"}   or --scope and --revoke, --grant
  oauth.token          {\"action\": \"revoke\", \"token_id\": \"t-1\"}            or --scope TOKEN and --revoke
  phala.belief_update  {\"weight_delta\": -0.25, \"weight_key\": \"routing.x\"}

Grants, reinforcing updates and token issue or refresh are not admissible (AC-1): they go best-effort.

Exit code: 0 issued, and with --wait also applied; 1 otherwise.")]
pub(super) struct IssueArgs {
    /// Kind, such as anumati.consent.
    #[arg(required_unless_present = "file")]
    kind: Option<String>,
    /// The agent that must honour it, a peer of the node.
    #[arg(required_unless_present_any = ["file", "group"], conflicts_with = "group")]
    target: Option<String>,
    /// Issue it to every member of this group.
    #[arg(long, value_name = "NAME", conflicts_with = "wait")]
    group: Option<String>,
    /// Payload: a JSON object, @FILE, or @- for standard input.
    #[arg(long, value_name = "JSON", conflicts_with = "scope")]
    payload: Option<String>,
    /// Scope or token that the payload names.
    #[arg(long, requires = "decision")]
    scope: Option<String>,
    /// Withdraw the scope or token.
    #[arg(long, group = "decision", requires = "scope")]
    revoke: bool,
    /// Grant the scope.
    #[arg(long, group = "decision", requires = "scope")]
    grant: bool,
    /// Obligation id; a random one by default. The same id and content again does nothing.
    #[arg(long)]
    id: Option<String>,
    /// Seconds to the deadline; by default that of the kind.
    #[arg(long, value_name = "N")]
    deadline_seconds: Option<u64>,
    /// Offers after the first; by default that of the kind.
    #[arg(long, value_name = "N")]
    max_retries: Option<u32>,
    /// Order among obligations of the same scope; the next one by default.
    #[arg(long, value_name = "N")]
    sequence: Option<u64>,
    /// Wait up to N seconds for the terminal outcome.
    #[arg(long, value_name = "N")]
    wait: Option<u64>,
    /// Issue a batch: a file with an array of obligations as the API takes them; - for standard
    /// input.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "kind", "target", "payload", "scope", "id", "deadline_seconds", "max_retries", "sequence", "wait",
        "group",
    ])]
    file: Option<PathBuf>,
}

impl IssueArgs {
    pub(super) async fn run(&self, client: &Client, as_json: bool) -> anyhow::Result<ExitCode> {
        match &self.file {
            Some(file) => run_batch(client, &read(&file.display().to_string())?, as_json).await,
            None => self.run_one(client, as_json).await,
        }
    }

    async fn run_one(&self, client: &Client, as_json: bool) -> anyhow::Result<ExitCode> {
        let mut body = Map::new();
        let mut put = |member: &str, value: Option<Value>| {
            body.extend(value.map(|value| (member.to_owned(), value)));
        };
        put("kind", self.kind.clone().map(Value::from));
        put("target", self.target.clone().map(Value::from));
        put("payload", Some(self.payload()?));
        put("obligation_id", self.id.clone().map(Value::from));
        put("deadline_seconds", self.deadline_seconds.map(Value::from));
        put("max_retries", self.max_retries.map(Value::from));
        put("sequence", self.sequence.map(Value::from));
        let query: Vec<_> =
            self.wait.iter().map(|seconds| ("wait_seconds", seconds.to_string())).collect();
        if let Some(group) = &self.group {
            let path = ["v1", "groups", group, "obligations"];
            let issued = client.post(&path, &[], Some(&body.into()), Duration::ZERO).await?;
            output::object(as_json, &issued);
            let refused = issued.get("refused").and_then(Value::as_array);
            let all = refused.is_some_and(Vec::is_empty);
            return Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        let wait = Duration::from_secs(self.wait.unwrap_or(0));
        let issued = client.post(&["v1", "obligations"], &query, Some(&body.into()), wait).await?;
        let state = issued.pointer("/outcome/state").and_then(Value::as_str);
        if as_json {
            output::line(&issued.to_string());
        } else {
            output::line(&told(&issued, state));
        }
        Ok(if state.is_none_or(|state| state == "applied") {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    fn payload(&self) -> anyhow::Result<Value> {
        let kind = self.kind.as_deref().unwrap_or_default();
        match (&self.payload, &self.scope) {
            (Some(text), _) => {
                let text = match text.strip_prefix('@') {
                    Some(file) => read(file)?,
                    None => text.clone(),
                };
                let payload: Value = serde_json::from_str(&text).context("--payload is no JSON")?;
                if !payload.is_object() {
                    bail!("--payload is no JSON object");
                }
                Ok(payload)
            }
            (None, Some(scope)) => match (kind, self.grant) {
                ("anumati.consent", false) => Ok(json!({ "decision": "revoke", "scope": scope })),
                ("anumati.consent", true) => Ok(json!({ "decision": "grant", "scope": scope })),
                ("oauth.token", false) => Ok(json!({ "action": "revoke", "token_id": scope })),
                _ => bail!(
                    "--scope does not say enough for this\n  hint: give the whole --payload; see `abhyasa issue --help`"
                ),
            },
            (None, None) => {
                bail!("no payload\n  hint: --payload JSON, or --scope S with --revoke or --grant")
            }
        }
    }
}

pub(super) fn told(issued: &Value, state: Option<&str>) -> String {
    let id = output::cell(issued, "obligation_id");
    if issued.get("custody") == Some(&Value::Bool(false)) {
        return format!("{id}: not admissible (AC-1), sent best-effort");
    }
    let before =
        if issued.get("existing") == Some(&Value::Bool(true)) { " (issued before)" } else { "" };
    match state {
        None => {
            format!("{id}: under custody until {}{before}", output::cell(issued, "deadline_at_ms"))
        }
        Some("pending") => format!(
            "{id}: still pending; its deadline is {}{before}",
            output::cell(issued, "deadline_at_ms")
        ),
        Some(state) => match issued.pointer("/outcome/reason").and_then(Value::as_str) {
            Some(reason) => format!("{id}: {state}, {reason}{before}"),
            None => format!("{id}: {state}{before}"),
        },
    }
}

async fn run_batch(client: &Client, text: &str, as_json: bool) -> anyhow::Result<ExitCode> {
    let batch: Value = serde_json::from_str(text).context("the batch is no JSON")?;
    let body = if batch.is_array() { json!({ "obligations": batch }) } else { batch };
    let answer = client.post(&["v1", "obligations"], &[], Some(&body), Duration::ZERO).await?;
    let results = answer.get("results").and_then(Value::as_array).cloned().unwrap_or_default();
    let failed = results.iter().filter(|result| result.get("error").is_some()).count();
    if as_json {
        output::line(&answer.to_string());
    } else {
        for (n, result) in results.iter().enumerate() {
            output::line(&match (result.get("ok"), result.get("error")) {
                (Some(issued), _) => told(issued, None),
                (_, Some(error)) => format!("item {n}: {}", output::cell(error, "message")),
                _ => format!("item {n}: no result"),
            });
        }
        output::line(&format!("{} issued, {failed} refused", results.len() - failed));
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The text of a file, or of standard input for `-`.
pub(super) fn read(file: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let result = if file == "-" {
        std::io::stdin().lock().take(FILE_LEN_MAX).read_to_string(&mut text)
    } else {
        std::fs::File::open(file)
            .and_then(|handle| handle.take(FILE_LEN_MAX).read_to_string(&mut text))
    };
    result.with_context(|| format!("cannot read {file}"))?;
    Ok(text)
}
