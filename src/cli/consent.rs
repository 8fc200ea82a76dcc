//! `abhyasa consent`: hashes of policies and audits of exports, which need no node; and how our own consent to
//! callees stands at the running one.

use super::client::Client;
use super::{Global, output};
use crate::acap::audit::{self, Report, VerifyOptions};
use crate::acap::keys::{KeySet, SignaturePolicy};
use crate::acap::log::LEDGER_PREFIX;
use anyhow::{Context as _, bail};
use proto::consent::{DOCUMENT_LEN_MAX, PolicyDocument, read};
use proto::id::AgentId;
use proto::time::Time;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// What is done with consent documents.
#[derive(Debug, clap::Subcommand)]
pub(super) enum ConsentCommand {
    /// Print the hash of a policy document (JSON), which its document_hash must be.
    Hash {
        /// The document.
        file: PathBuf,
    },
    /// Check an export: links, hashes, signatures, anchors and proofs, offline. Exit code 1 if
    /// anything is wrong.
    Verify(VerifyArgs),
    /// How our consent to each callee that is configured stands, at the running node.
    Status,
    /// Answer what the node has escalated about a callee's policy.
    Answer {
        /// The callee.
        callee: AgentId,
        /// Consent to its policy as it is; without it the policy is rejected.
        #[arg(long)]
        approve: bool,
    },
    /// Hold our copy of the chains with a callee against its own: what it lacks is sent again. Exit code 1
    /// if they differ.
    Reconcile {
        /// The callee.
        callee: AgentId,
    },
    /// Write the chains of a caller as the running node has them, in JSON lines: what `verify` checks.
    Export {
        /// The caller.
        caller: AgentId,
        /// File to write [default: standard output].
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Serve the next version of our policy, at the running node. Consent to the version before ends.
    Policy {
        /// The document.
        file: PathBuf,
    },
    /// Let the chains of a caller go on that are full: limits count anew.
    Renew {
        /// The caller.
        caller: AgentId,
    },
    /// Withdraw our consent to a callee's policy: here at once, there under custody.
    Withdraw(OneArgs),
    /// Revoke the consent of a caller to our policy, in the same way.
    Revoke(OneArgs),
    /// Lift what was withdrawn or revoked, so that consent may be given anew. Best-effort.
    Grant(OneArgs),
}

/// Whose consent, and by which obligation.
#[derive(Debug, clap::Args)]
pub(super) struct OneArgs {
    /// The other party, a peer.
    peer: AgentId,
    /// Id of the obligation [default: a random one].
    #[arg(long, value_name = "ID")]
    id: Option<String>,
}

impl OneArgs {
    async fn tell(self, client: &Client, word: &str, json: bool) -> anyhow::Result<ExitCode> {
        let body = serde_json::json!({ "peer": self.peer, "obligation_id": self.id });
        let path = ["v1", "consent", word];
        let issued = client.post(&path, &[], Some(&body), Duration::ZERO).await?;
        let text = if json { issued.to_string() } else { super::issue::told(&issued, None) };
        output::line(&text);
        Ok(ExitCode::SUCCESS)
    }
}

/// What is asked of an export.
#[derive(Debug, clap::Args)]
pub(super) struct VerifyArgs {
    /// The export, in JSON lines.
    file: PathBuf,
    /// JSON file with keys of agents: an object of agent id to JWKS or DID document. A did:key needs none.
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// A log to believe: its id, or its did:key. May be given several times; without it any log is.
    #[arg(long = "log", value_name = "ID")]
    logs: Vec<String>,
    /// Every record and event must be signed.
    #[arg(long)]
    require_signatures: bool,
    /// Every record and event must be anchored in a log.
    #[arg(long)]
    require_anchors: bool,
}

impl ConsentCommand {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let json = global.json;
        match self {
            Self::Status => {
                let columns = [
                    ("CALLEE", "callee"),
                    ("STATE", "state"),
                    ("POLICY", "policy_version"),
                    ("DECISION", "decision"),
                    ("RECORDS", "records"),
                    ("EVENTS", "events"),
                    ("WAITING", "waiting"),
                    ("QUESTION", "question/why"),
                    ("DIVERGED", "diverged"),
                ];
                let found = Client::find(global)?.get(&["v1", "consent"], &[]).await?;
                output::list(json, &found, &columns, "no callees in [[consent]]");
                Ok(ExitCode::SUCCESS)
            }
            Self::Answer { callee, approve } => {
                let body = serde_json::json!({ "callee": callee, "approve": approve });
                let path = ["v1", "consent", "answer"];
                let said =
                    Client::find(global)?.post(&path, &[], Some(&body), Duration::ZERO).await?;
                let text = if approve { "consented" } else { "rejected" };
                output::line(&if json { said.to_string() } else { format!("{callee}: {text}") });
                Ok(ExitCode::SUCCESS)
            }
            Self::Reconcile { callee } => {
                let body = serde_json::json!({ "callee": callee });
                let path = ["v1", "consent", "reconcile"];
                let found =
                    Client::find(global)?.post(&path, &[], Some(&body), Duration::ZERO).await?;
                Ok(told(&found, json))
            }
            Self::Export { caller, out } => {
                let path = ["acap", "export", caller.as_str()];
                let mut export = Client::find(global)?.stream(&path).await?;
                let mut to: Box<dyn Write> = match &out {
                    Some(file) => {
                        Box::new(File::create(file).with_context(|| file.display().to_string())?)
                    }
                    None => Box::new(std::io::stdout().lock()),
                };
                while let Some(chunk) = export.chunk().await.context("the export was cut")? {
                    to.write_all(&chunk)?;
                }
                to.flush()?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Policy { file } => {
                let policy: Value = serde_json::from_slice(&small(&file)?)
                    .with_context(|| file.display().to_string())?;
                let path = ["v1", "consent", "policy"];
                let put =
                    Client::find(global)?.post(&path, &[], Some(&policy), Duration::ZERO).await?;
                let version = put.get("version").and_then(Value::as_str).unwrap_or_default();
                let text = match put.get("new") {
                    Some(Value::Bool(false)) => format!("policy {version} was served already"),
                    _ => format!("policy {version} is served"),
                };
                output::line(&if json { put.to_string() } else { text });
                Ok(ExitCode::SUCCESS)
            }
            Self::Renew { caller } => {
                let body = serde_json::json!({ "peer": caller });
                let path = ["v1", "consent", "renew"];
                let told =
                    Client::find(global)?.post(&path, &[], Some(&body), Duration::ZERO).await?;
                let text = format!("{caller}: its chains go on");
                output::line(&if json { told.to_string() } else { text });
                Ok(ExitCode::SUCCESS)
            }
            Self::Withdraw(of) => of.tell(&Client::find(global)?, "withdraw", json).await,
            Self::Revoke(of) => of.tell(&Client::find(global)?, "revoke", json).await,
            Self::Grant(of) => of.tell(&Client::find(global)?, "grant", json).await,
            Self::Hash { file } => hash(&file, json),
            Self::Verify(args) => args.run(json),
        }
    }
}

/// What a reconciliation found.
fn told(found: &Value, json: bool) -> ExitCode {
    let count = |name: &str| found.get(name).and_then(Value::as_u64).unwrap_or_default();
    if json {
        output::line(&found.to_string());
    } else {
        output::line(&format!(
            "here {} records and {} events, there {} and {}; {} sent again, {} differ",
            count("records"),
            count("events"),
            count("records_there"),
            count("events_there"),
            count("resent"),
            count("differences_count")
        ));
        for one in found.get("differences").and_then(Value::as_array).into_iter().flatten() {
            let text = |name: &str| match one.get(name) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                None => String::new(),
            };
            let (kind, number, id) = (text("kind"), text("number"), text("id"));
            output::line(&format!("{kind} {number} ({id}): {}", text("what")));
        }
    }
    if count("differences_count") == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A file of at most the length of a document.
fn small(file: &Path) -> anyhow::Result<Vec<u8>> {
    let name = || file.display().to_string();
    let mut bytes = Vec::new();
    let limit = DOCUMENT_LEN_MAX as u64 + 1; // one more, so that `read` says that it is too long
    File::open(file).with_context(name)?.take(limit).read_to_end(&mut bytes).with_context(name)?;
    Ok(bytes)
}

fn hash(file: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let policy: PolicyDocument =
        read(&small(file)?).with_context(|| format!("{} is no policy", file.display()))?;
    let (told, found) = (&policy.document_hash, policy.computed_hash());
    if json {
        let same = *told == found;
        let text = serde_json::json!({ "hash": found, "document_hash": told, "same": same });
        output::line(&text.to_string());
    } else {
        output::line(found.as_str());
        if *told != found {
            eprintln!("note: its document_hash is {told}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl VerifyArgs {
    fn run(self, json: bool) -> anyhow::Result<ExitCode> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut options = VerifyOptions::at(Time::default().after(since));
        if let Some(file) = &self.keys {
            options.keys = keys(file)?;
        }
        for log in &self.logs {
            let id = log.strip_prefix(LEDGER_PREFIX).unwrap_or(log);
            KeySet::from_did_key(id)
                .with_context(|| format!("--log {log}: a log is called by its did:key"))?;
            options.logs.insert(format!("{LEDGER_PREFIX}{id}"));
        }
        if self.require_signatures {
            options.signatures = SignaturePolicy::Required;
        }
        options.anchors_required = self.require_anchors;
        let name = || self.file.display().to_string();
        let file = File::open(&self.file).with_context(name)?;
        let report = audit::verify(BufReader::new(file), &options).with_context(name)?;
        if json {
            output::line(&serde_json::to_string(&report).context("the report")?);
        } else {
            output::line(&text(&report));
        }
        Ok(if report.good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn keys(file: &Path) -> anyhow::Result<BTreeMap<AgentId, KeySet>> {
    let name = || format!("{}", file.display());
    let found: Map<String, Value> = read(&small(file)?).with_context(name)?;
    let mut keys = BTreeMap::new();
    for (agent, document) in found {
        let of = || format!("{}: the keys of {agent}", file.display());
        let id = AgentId::new(&agent).with_context(of)?;
        let set = if document.get("keys").is_some() {
            KeySet::from_jwks(&document)
        } else {
            KeySet::from_did_document(&agent, &document)
        };
        keys.insert(id, set.with_context(of)?);
    }
    if keys.is_empty() {
        bail!("{} has no keys", file.display());
    }
    Ok(keys)
}

/// The report for people.
fn text(report: &Report) -> String {
    let mut lines: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let told = report.findings.len() as u64;
    if report.count > told {
        lines.push(format!("and {} more", report.count - told));
    }
    lines.extend(report.notes.iter().map(|note| format!("note: {note}")));
    let Report { policies, records, events, signed, anchored, .. } = report;
    let of = format!(
        "{policies} policies, {records} records, {events} events; {signed} signed, {anchored} anchored"
    );
    lines.push(match report.count {
        0 => format!("good: {of}"),
        count => format!("NOT GOOD, {count} findings: {of}"),
    });
    lines.join("\n")
}
