//! Before a message goes to an agent whose policy we consent to: held against it here, and refused here.

use super::{Fault, Proxy, TaskState, Turn, pause};
use crate::a2a::types::Message;
use crate::acap::Action;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use tokio::time::Instant;

/// Member of a message's metadata that says which skill it wants.
const SKILL: &str = "abhyasa.skill";
/// Member with what is known of the action: an object of texts.
const FACTS: &str = "acap/context";
/// What we say of ourselves beside a call.
const CAPABILITY: &str = "acap/caller_capability_hash";
const PRINCIPAL: &str = "acap/principal_id";

impl Proxy {
    /// Whether the message may go. If not, the task is rejected with the refusal, and the turn is over.
    pub(super) async fn may_go(&self, turn: &Turn, message: &mut Message) -> Result<bool, Fault> {
        let Some((caller, callee)) = &self.governed else { return Ok(true) };
        let meta = |name: &str| message.metadata.as_ref()?.get(name);
        let skill = meta(SKILL).and_then(Value::as_str).unwrap_or("*");
        let facts = meta(FACTS).and_then(Value::as_object).map(|facts| {
            let text =
                |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            facts.iter().map(|(name, value)| (name.clone(), text(value))).collect()
        });
        let facts: BTreeMap<String, String> = facts.unwrap_or_default();
        let action = Action { call: format!("a2a:{skill}"), claims: None, facts };
        let begun = Instant::now();
        let mut attempt = 0u32;
        let refusal = loop {
            match caller.act(callee, action.clone()).await {
                Ok(permit) => {
                    let told = [
                        (CAPABILITY, permit.capability.map(|hash| hash.to_string())),
                        (PRINCIPAL, permit.principal.map(|id| id.to_string())),
                    ];
                    for (name, text) in told {
                        if let Some(text) = text {
                            let metadata = message.metadata.get_or_insert_default();
                            metadata.insert(name.to_owned(), text.into());
                        }
                    }
                    return Ok(true);
                }
                Err(refusal) if refusal.is_temporary() && begun.elapsed() < self.silent_max => {
                    pause(attempt).await;
                    attempt = attempt.saturating_add(1);
                }
                Err(refusal) => break refusal,
            }
        };
        let mut says = turn.says(&refusal.to_string());
        let metadata = Map::from_iter([("acap".to_owned(), refusal.to_json())]);
        says.metadata = Some(metadata);
        turn.tell(|edit| edit.status(TaskState::Rejected, Some(says))).await?;
        Ok(false)
    }
}
