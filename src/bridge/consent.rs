//! Calls of tools, held against our consent to the peer's policy before they go. The chains are the node's:
//! `abhyasa mcp proxy` asks it.

use super::message::{Code, Form, Message};
use crate::acap::Pointer;
use crate::config::{NodeConfig, read_token};
use proto::consent::ClaimId;
use proto::id::AgentId;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long the node may take for one call: it may have to consent first, and to tell the callee.
const HOLD_TIME_MAX: Duration = Duration::from_secs(60);
/// Tools whose claims are kept, as the callee names them; of further ones all claims count.
const TOOLS_MAX: usize = 1_024;
/// Claims of one of them; of a tool with more all claims count.
const TOOL_CLAIMS_MAX: usize = 64;
/// Bytes of a name, a version or a hash that is kept.
const NAME_LEN_MAX: usize = 256;
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
    known: Mutex<Known>,
}

/// What the callee says of its policy as a server of MCP (Anumati §4.2).
#[derive(Debug, Default)]
struct Known {
    /// Claims of each tool.
    tools: BTreeMap<String, Vec<ClaimId>>,
    pointer: Option<Pointer>,
}

impl Known {
    fn list(&mut self, tools: &[Value]) {
        for tool in tools {
            let Some(name) = tool.get("name").and_then(Value::as_str) else { continue };
            let named = tool.get("policyClaims").and_then(Value::as_array);
            let named = named.filter(|named| (1..=TOOL_CLAIMS_MAX).contains(&named.len()));
            let claims: Option<Vec<ClaimId>> = named.and_then(|named| {
                named.iter().map(|claim| ClaimId::new(claim.as_str()?).ok()).collect()
            });
            match claims {
                Some(claims)
                    if name.len() <= NAME_LEN_MAX
                        && (self.tools.len() < TOOLS_MAX || self.tools.contains_key(name)) =>
                {
                    self.tools.insert(name.to_owned(), claims);
                }
                _ => drop(self.tools.remove(name)),
            }
        }
    }
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
            known: Mutex::default(),
        }))
    }

    /// Learns from the answer to a call of `method`.
    pub(super) fn hear(&self, method: &str, answer: &Message) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match method {
            "tools/list" => {
                let tools = answer.result("tools").and_then(Value::as_array);
                known.list(tools.map(Vec::as_slice).unwrap_or_default());
            }
            "initialize" | "server/discover" => {
                let short = |text: &Option<String>| {
                    text.as_ref().is_none_or(|text| text.len() <= NAME_LEN_MAX)
                };
                let pointer = answer.result("capabilities").and_then(Pointer::of_mcp);
                known.pointer = pointer.filter(|told| short(&told.version) && short(&told.hash));
            }
            // Other claims may govern the tool by now.
            _ if answer.error_code() == Some(Code::Withheld as i64) => *known = Known::default(),
            _ => {}
        }
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
        let (mut claims, pointer) = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            (known.tools.get(tool).cloned(), known.pointer.clone())
        };
        let away = |why: String| {
            let what = format!(
                "whether the call may go cannot be asked of the node at {}: {why}",
                self.url
            );
            Some(Message::error(&id, Code::Unavailable, &what, json!({})))
        };
        let (status, said) = loop {
            let asks = json!({
                "callee": self.callee, "call": format!("mcp:{}/{tool}", self.server),
                "facts": facts, "claims": claims, "policy": pointer,
            });
            let mut request = self.http.post(&self.url).json(&asks);
            if let Some(token) = &self.token {
                request = request.bearer_auth(token);
            }
            let answer = match request.send().await {
                Ok(answer) => answer,
                Err(error) => return away(error.without_url().to_string()),
            };
            let status = answer.status();
            let said = answer.json::<Value>().await.unwrap_or_default();
            let of_another = said.pointer("/error/code").is_some_and(|code| code == "no_claim");
            if !of_another || claims.take().is_none() {
                break (status, said);
            }
            // Those of a policy that is no more: then it is held against all.
            self.known.lock().unwrap_or_else(PoisonError::into_inner).tools.clear();
        };
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
