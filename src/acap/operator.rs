//! The operator's word on consent, as obligations: our own is withdrawn from a callee, a caller's is revoked,
//! and either is granted again.

use super::{AcapError, CONSENT};
use crate::api::error::ApiError;
use crate::api::issue::{IssuedView, issue_draft, random_id};
use crate::node::NodeHandle;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use proto::custodian::Draft;
use proto::id::{AgentId, Kind, ObligationId};
use proto::payload::Payload;
use serde::Deserialize;
use serde_json::json;

/// The routes; who is let in says whoever serves them.
pub(crate) fn router(node: NodeHandle) -> Router {
    Router::new()
        .route("/v1/consent/withdraw", post(withdraw))
        .route("/v1/consent/revoke", post(revoke))
        .route("/v1/consent/grant", post(grant))
        .route("/v1/consent/policy", post(policy))
        .route("/v1/consent/renew", post(renew))
        .with_state(node)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Of {
    peer: AgentId,
    /// By default a random one: give your own if you may have to repeat the call.
    obligation_id: Option<ObligationId>,
}

type Answer = Result<Json<IssuedView>, ApiError>;

/// Our consent to the policy of a callee.
async fn withdraw(State(node): State<NodeHandle>, Json(of): Json<Of>) -> Answer {
    if !node.consents().is_some_and(|consents| consents.covers(&of.peer)) {
        let what = format!("{} has no table in [[consent]]", of.peer);
        return Err(ApiError::new(StatusCode::NOT_FOUND, "unknown_callee", what));
    }
    issue(&node, of, "revoke").await
}

/// That of a caller to ours.
async fn revoke(State(node): State<NodeHandle>, Json(of): Json<Of>) -> Answer {
    if node.acap().is_none() {
        let what = "this node has no policy to consent to ([acap])";
        return Err(ApiError::new(StatusCode::NOT_FOUND, "no_policy", what));
    }
    issue(&node, of, "revoke").await
}

/// Full chains of a caller go on.
async fn renew(State(node): State<NodeHandle>, Json(of): Json<Of>) -> Response {
    let Some(acap) = node.acap() else {
        let what = "this node has no policy to consent to ([acap])";
        return ApiError::new(StatusCode::NOT_FOUND, "no_policy", what).into_response();
    };
    super::http::answer(acap.renew(&of.peer).await.map(|told| (StatusCode::OK, told)))
}

/// The next version of our policy.
async fn policy(State(node): State<NodeHandle>, request: Request) -> Response {
    let Some(acap) = node.acap().cloned() else {
        let what = "this node has no policy to consent to ([acap])";
        return ApiError::new(StatusCode::NOT_FOUND, "no_policy", what).into_response();
    };
    let bytes = match super::http::read(request.into_body()).await {
        Ok(bytes) => bytes,
        Err(denial) => return super::http::answer(Err(denial)),
    };
    match acap.clone().put_policy(bytes.to_vec()).await {
        Ok(is_new) => {
            let line = acap.line();
            Json(json!({
                "version": line.policy.version, "document_hash": line.policy.document_hash, "new": is_new,
            }))
            .into_response()
        }
        Err(error) => {
            let status = match &error {
                AcapError::Json { .. } | AcapError::Hash { .. } => StatusCode::BAD_REQUEST,
                AcapError::NoClaim { .. } => StatusCode::UNPROCESSABLE_ENTITY,
                AcapError::Write | AcapError::Read(_) => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::CONFLICT,
            };
            ApiError::new(status, "policy", error.to_string()).into_response()
        }
    }
}

/// Either of them again: a new record may be given. It goes best-effort.
async fn grant(State(node): State<NodeHandle>, Json(of): Json<Of>) -> Answer {
    issue(&node, of, "grant").await
}

//= AB-1
async fn issue(node: &NodeHandle, of: Of, decision: &str) -> Answer {
    let payload = json!({ "decision": decision, "scope": node.config().acap.scope });
    let payload = Payload::from_json(payload.as_object().unwrap_or(&serde_json::Map::new()));
    let payload = payload.map_err(|error| ApiError::malformed(error.to_string()))?;
    let draft = Draft {
        id: of.obligation_id.map_or_else(random_id, Ok)?,
        kind: Kind::new(CONSENT)?,
        target: of.peer,
        payload,
        deadline_seconds: None,
        max_retries: None,
        sequence: None,
    };
    issue_draft(node, draft, None, std::future::pending()).await.map(Json)
}
