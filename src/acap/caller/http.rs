//! The operator's routes of the caller's side: how consent stands, a person's answers, reconciliation, and
//! actions of programs beside the node, such as `abhyasa mcp proxy`.

use super::{Action, Caller, Pointer, Refusal};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use proto::consent::ClaimId;
use proto::id::AgentId;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The routes; who is let in says whoever serves them.
pub(crate) fn router(caller: Arc<Caller>) -> Router {
    Router::new()
        .route("/v1/consent", get(status))
        .route("/v1/consent/act", post(act))
        .route("/v1/consent/answer", post(answer))
        .route("/v1/consent/reconcile", post(reconcile))
        .with_state(caller)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Act {
    callee: AgentId,
    call: String,
    #[serde(default)]
    claims: Option<Vec<ClaimId>>,
    #[serde(default)]
    facts: BTreeMap<String, String>,
    /// What the callee says its policy is.
    #[serde(default)]
    policy: Option<Pointer>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    callee: AgentId,
    approve: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reconcile {
    callee: AgentId,
}

fn reply(result: Result<Value, Refusal>) -> Response {
    match result {
        Ok(value) => Json(value).into_response(),
        Err(refusal) => {
            let status = match refusal.is_temporary() {
                true => StatusCode::SERVICE_UNAVAILABLE,
                false => StatusCode::FORBIDDEN,
            };
            (status, Json(json!({ "error": refusal.to_json() }))).into_response()
        }
    }
}

async fn status(State(caller): State<Arc<Caller>>) -> Response {
    Json(caller.status().await).into_response()
}

async fn act(State(caller): State<Arc<Caller>>, Json(act): Json<Act>) -> Response {
    if !caller.covers(&act.callee) {
        return Json(json!({ "governed": false })).into_response();
    }
    let action = Action { call: act.call, claims: act.claims, facts: act.facts };
    let permit = match act.policy {
        Some(pointer) => caller.act_by(&act.callee, action, pointer).await,
        None => caller.act(&act.callee, action).await,
    };
    reply(permit.map(|permit| {
        json!({
            "governed": true, "events": permit.events,
            "caller_capability_hash": permit.capability, "principal_id": permit.principal,
        })
    }))
}

async fn answer(State(caller): State<Arc<Caller>>, Json(answer): Json<Answer>) -> Response {
    let done = caller.answer(&answer.callee, answer.approve).await;
    reply(done.map(|()| json!({ "callee": answer.callee, "approved": answer.approve })))
}

async fn reconcile(State(caller): State<Arc<Caller>>, Json(of): Json<Reconcile>) -> Response {
    reply(caller.reconcile(&of.callee).await)
}
