//! The tools, and what each does with the node.

use super::views::{
    AcknowledgeArgs, AcknowledgedView, AdmissibilityView, DraftArgs, IssueArgs, SafeArgs, SafeView,
    StatusArgs,
};
use super::{Caller, Server, schema};
use crate::api::belief::{BeliefBody, BeliefView, send_update};
use crate::api::cells::{CheckParams, CheckView, check_cells};
use crate::api::error::ApiError;
use crate::api::issue::{IssuedView, issue_draft, unready};
use crate::api::lists::{PageParams, pending_page};
use crate::api::operator::{InboxParams, inbox, schema as records};
use crate::api::transfer::{StatusParams, StatusView, TransferView, find, find_for};
use axum::http::StatusCode;
use proto::polarity::PolarityError;
use rmcp::ErrorData;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::sync::{Arc, LazyLock};
use utoipa::ToSchema;

/// What a tool does to the node.
#[derive(Clone, Copy)]
enum Does {
    Reads,
    /// Adds something, once however often it is called with the same arguments.
    Adds,
}

/// Tools that a peer may call: they tell it what concerns itself.
const OF_PEERS: [&str; 2] = ["check_authorization", "obligation_status"];

fn tool<Args: ToSchema>(
    name: &'static str,
    does: Does,
    result: Arc<JsonObject>,
    about: &'static str,
) -> Tool {
    let hints = ToolAnnotations::new()
        .read_only(matches!(does, Does::Reads))
        .destructive(false)
        .idempotent(true)
        .open_world(matches!(does, Does::Adds));
    Tool::new(name, about, schema::of::<Args>())
        .with_raw_output_schema(result)
        .with_annotations(hints)
}

static TOOLS: LazyLock<[Tool; 9]> = LazyLock::new(|| {
    [
        tool::<IssueArgs>(
            "issue_obligation",
            Does::Adds,
            schema::of::<IssuedView>(),
            "Issue an obligation to a peer. The answer comes once it is durable: from then on it ends \
             applied, declined or escalated, also through crashes. Issuing the same again under the same \
             obligation_id does nothing.",
        ),
        tool::<BeliefBody>(
            "send_belief_update",
            Does::Adds,
            schema::of::<BeliefView>(),
            "Tell a peer what was learned about it (Phala): a corrective weight_delta goes under custody \
             until its time is over, a reinforcing one best-effort. Only weight_key and weight_delta leave.",
        ),
        tool::<StatusArgs>(
            "obligation_status",
            Does::Reads,
            schema::of::<StatusView>(),
            "Where an obligation stands: as its custodian if this node issued it (pending, applied, \
             declined, escalated), else as its receiver (applied, declined, deciding, in_doubt).",
        ),
        tool::<DraftArgs>(
            "check_admissibility",
            Does::Reads,
            schema::of::<AdmissibilityView>(),
            "What issuing this obligation would come to, without issuing it: custody, best effort, or \
             which rule refuses it.",
        ),
        tool::<SafeArgs>(
            "compute_safe_action",
            Does::Reads,
            schema::of::<SafeView>(),
            "safe(O), the fail-safe of an obligation: what this node does to its own state, without the \
             target's help, when the obligation is not confirmed in time. Nothing is issued or changed.",
        ),
        tool::<InboxParams>(
            "list_escalations",
            Does::Reads,
            schema::of::<records::Inbox>(),
            "Obligations that were not confirmed in time and wait for a person, oldest first, with the \
             fail-safe that was applied; and consent that waits for a person.",
        ),
        tool::<AcknowledgeArgs>(
            "acknowledge_escalation",
            Does::Adds,
            schema::of::<AcknowledgedView>(),
            "Take an escalation out of the inbox: the principal has seen it. Ask a person first.",
        ),
        tool::<CheckParams>(
            "check_authorization",
            Does::Reads,
            schema::of::<CheckView>(),
            "Whether to go ahead, to be asked before acting. Fails closed: anything but allowed=true \
             means no.",
        ),
        tool::<PageParams>(
            "list_pending",
            Does::Reads,
            schema::of_page::<TransferView>(),
            "Obligations under custody, in order of issue, a page at a time.",
        ),
    ]
});

/// Those that `caller` may call.
pub(super) fn list(caller: &Caller) -> Vec<Tool> {
    let all = TOOLS.iter();
    all.filter(|tool| may_call(caller, &tool.name)).map(|tool| for_caller(caller, tool)).collect()
}

fn may_call(caller: &Caller, name: &str) -> bool {
    match caller {
        Caller::Operator => TOOLS.iter().any(|tool| tool.name == name),
        Caller::Peer(_) => OF_PEERS.contains(&name),
    }
}

/// A peer need not say who it is, and may name no other.
fn for_caller(caller: &Caller, tool: &Tool) -> Tool {
    let mut tool = tool.clone();
    if let Caller::Peer(_) = caller {
        let mut schema = (*tool.input_schema).clone();
        if let Some(Value::Array(required)) = schema.get_mut("required") {
            required.retain(|member| member != "agent");
        }
        if let Some(Value::Object(members)) = schema.get_mut("properties") {
            members.remove("issuer");
        }
        tool.input_schema = schema.into();
    }
    tool
}

/// Calls a tool. What the tool cannot do is a result that says why, for the model to read; only a
/// name that is no tool here is an error of the protocol.
pub(super) async fn call(
    server: &Server,
    name: &str,
    arguments: JsonObject,
    given_up: impl Future<Output = ()>,
) -> Result<CallToolResult, ErrorData> {
    if !may_call(&server.caller, name) {
        let message = format!("there is no tool {name} here; tools/list names those there are");
        return Err(ErrorData::invalid_params(message, None));
    }
    let done = run(server, name, arguments, given_up).await;
    Ok(done.map_or_else(|error| failed(&error), CallToolResult::structured))
}

/// Who, what, how much; then the code, for those who look for it.
fn failed(error: &ApiError) -> CallToolResult {
    let mut text = format!("{} [{}]", error.message(), error.code());
    if let Some(ms) = error.retry_after_ms() {
        text.push_str(&format!("; try again in {ms} ms"));
    }
    CallToolResult::error(vec![ContentBlock::text(text)])
}

async fn run(
    server: &Server,
    name: &str,
    arguments: JsonObject,
    given_up: impl Future<Output = ()>,
) -> Result<Value, ApiError> {
    let node = &server.node;
    match name {
        "issue_obligation" => {
            let args: IssueArgs = parse(arguments)?;
            let wait_seconds = args.wait_seconds;
            value(issue_draft(node, args.into_draft()?, wait_seconds, given_up).await?)
        }
        "send_belief_update" => value(send_update(node, parse(arguments)?, None, given_up).await?),
        "obligation_status" => {
            let StatusArgs { obligation_id, issuer } = parse(arguments)?;
            value(match &server.caller {
                Caller::Operator => find(node, &obligation_id, &StatusParams { issuer }).await?,
                Caller::Peer(peer) => {
                    itself(peer.as_str(), issuer.as_deref().unwrap_or(peer.as_str()))?;
                    find_for(node, &obligation_id, peer).await?
                }
            })
        }
        "check_admissibility" => {
            let draft = parse::<DraftArgs>(arguments)?.into_draft()?;
            let checked = node.check(draft).await.map_err(|error| unready(node, error))?;
            value(AdmissibilityView::new(checked))
        }
        "compute_safe_action" => {
            let obligation = parse::<SafeArgs>(arguments)?.into_obligation(node.now())?;
            let judgement = node.registry().judge(&obligation).map_err(unjudged)?;
            value(SafeView::new(judgement, &obligation))
        }
        "list_escalations" => value(inbox(node, &parse::<InboxParams>(arguments)?)?),
        "acknowledge_escalation" => {
            let AcknowledgeArgs { obligation_id } = parse(arguments)?;
            node.ack_escalation(obligation_id.clone()).await??;
            value(AcknowledgedView { obligation_id, acknowledged: true })
        }
        "check_authorization" => value(check(server, arguments)?),
        "list_pending" => value(pending_page(node.store(), &parse::<PageParams>(arguments)?)?),
        other => Err(ApiError::not_found(format!("there is no tool {other}"))),
    }
}

/// Fails closed, as the API does: a store that cannot be read is an answer, and it is no.
fn check(server: &Server, mut arguments: Map<String, Value>) -> Result<CheckView, ApiError> {
    if let Caller::Peer(peer) = &server.caller {
        let named = arguments.entry("agent").or_insert_with(|| peer.as_str().into());
        itself(peer.as_str(), named.as_str().unwrap_or_default())?;
    }
    match check_cells(&server.node, &parse(arguments)?) {
        Err(error) if error.status() == StatusCode::SERVICE_UNAVAILABLE => {
            Ok(CheckView::no("store"))
        }
        answer => answer,
    }
}

/// A peer asks for itself only.
fn itself(peer: &str, named: &str) -> Result<(), ApiError> {
    if peer == named {
        return Ok(());
    }
    let message = format!("{peer} may ask for itself only, not for {named}");
    Err(ApiError::new(StatusCode::FORBIDDEN, "forbidden", message))
}

fn unjudged(error: PolarityError) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "polarity", error.to_string())
}

fn parse<T: DeserializeOwned>(arguments: JsonObject) -> Result<T, ApiError> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| ApiError::malformed(format!("arguments: {error}")))
}

fn value(view: impl Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(view).map_err(|error| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::id::AgentId;

    /// `$ref`s of a value.
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str).map(str::to_owned));
                members.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn schemas_are_objects_that_refer_to_nothing_outside() {
        let tools = list(&Caller::Operator);
        assert_eq!(tools.len(), 9);
        for tool in tools {
            for schema in [&tool.input_schema, tool.output_schema.as_ref().unwrap()] {
                let schema = Value::Object((**schema).clone());
                assert_eq!(schema["type"], "object", "{}: {schema}", tool.name);
                let mut found = Vec::new();
                references(&schema, &mut found);
                for reference in found {
                    let at = reference.strip_prefix('#').unwrap_or_else(|| panic!("{reference}"));
                    assert!(schema.pointer(at).is_some(), "{}: {reference} in {schema}", tool.name);
                }
            }
            assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
        }
    }

    #[test]
    fn a_peer_sees_what_concerns_itself() {
        let peer = Caller::Peer(AgentId::new("spiffe://test/b").unwrap());
        let tools = list(&peer);
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
        assert_eq!(names, ["obligation_status", "check_authorization"]);
        let required = &tools[1].input_schema["required"];
        assert_eq!(*required, serde_json::json!(["scope"]), "who asks is known");
        assert!(itself("b", "b").is_ok() && itself("b", "c").is_err());
    }
}
