//! Calls of tools, held against our consent to the peer's policy before they go. The chains are the node's:
//! `abhyasa mcp proxy` asks it.

use super::message::{Code, Form, Message};
use crate::config::{NodeConfig, read_token};
use proto::id::AgentId;
use serde_json::{Value, json};
use std::time::Duration;

/// How long the node may take for one call: it may have to consent first, and to tell the callee.
const HOLD_TIME_MAX: Duration = Duration::from_secs(60);
/// Member of `_meta` with what is known of the action: an object of texts.
const FACTS: &str = "acap/context";

/// Where the node is asked, and about whom.
#[derive(Debug)]
pub(super) struct Consent {
    http: reqwest::Client,
    url: String,
    token: Option<String>,
    callee: AgentId,
    server: String,
}

impl Consent {
    /// For a peer that `[[consent]]` names.
    pub(super) fn of(
        config: &NodeConfig,
        peer: &AgentId,
        server: &str,
    ) -> anyhow::Result<Option<Self>> {
        if !config.consent.iter().any(|table| table.callee == *peer) {
            return Ok(None);
        }
        let mut at = config.api.listen;
        if at.ip().is_unspecified() {
            at.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        let token = config.api.token_file.as_deref().map(read_token).transpose()?;
        Ok(Some(Self {
            http: reqwest::Client::builder().no_proxy().timeout(HOLD_TIME_MAX).build()?,
            url: format!("http://{at}/v1/consent/act"),
            token,
            callee: peer.clone(),
            server: server.to_owned(),
        }))
    }

    /// The answer to a call that may not go.
    pub(super) async fn hold(&self, message: &mut Message) -> Option<Message> {
        let Form::Request { id, method } = &message.form else { return None };
        if method != "tools/call" {
            return None;
        }
        let id = id.clone();
        let tool = message.param("name").unwrap_or_default();
        let facts = message.meta(FACTS).cloned().unwrap_or_else(|| json!({}));
        let asks = json!({
            "callee": self.callee, "call": format!("mcp:{}/{tool}", self.server), "facts": facts,
        });
        let mut request = self.http.post(&self.url).json(&asks);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let away = |why: String| {
            let what = format!(
                "whether the call may go cannot be asked of the node at {}: {why}",
                self.url
            );
            Some(Message::error(&id, Code::Unavailable, &what, json!({})))
        };
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => return away(error.without_url().to_string()),
        };
        let (status, said) = (answer.status(), answer.json::<Value>().await.unwrap_or_default());
        if status.is_success() {
            for (member, name) in [
                ("caller_capability_hash", "acap/caller_capability_hash"),
                ("principal_id", "acap/principal_id"),
            ] {
                if let Some(text) = said.get(member).filter(|text| text.is_string()) {
                    message.put_meta(name, text.clone());
                }
            }
            return None;
        }
        let Some(refusal) = said.get("error").filter(|error| error.is_object()) else {
            return away(format!("it answers {status}"));
        };
        let what = refusal.get("message").and_then(Value::as_str).unwrap_or("refused");
        let code = match status.is_server_error() {
            true => Code::Unavailable,
            false => Code::Withheld,
        };
        Some(Message::error(&id, code, what, json!({ "acap": refusal })))
    }
}
