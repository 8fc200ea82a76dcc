//! `POST /v1/belief_updates`: what an agent has learned about another, on its way to that one (Phala).

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{JsonBytes, Params};
use super::issue::{IssueParams, IssuedView, issue_draft};
use crate::node::NodeHandle;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use proto::belief::{BeliefError, BeliefUpdate};
use proto::consent::{ContentHash, Text};
use proto::id::{AgentId, GovernedKey, ObligationId};
use proto::settings::WeightBounds;
use proto::time::Time;
use proto::weight::Weight;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A belief update. Only weight_key and weight_delta leave the node, and only to the target.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BeliefBody {
    /// Its id, which becomes that of the obligation: the same update again does nothing.
    #[schema(value_type = String, example = "bu-42")]
    id: ObligationId,
    /// The record it follows from. It stays here.
    #[schema(value_type = Option<String>)]
    #[expect(dead_code, reason = "checked as it is read, and kept from leaving")]
    satisfaction_record_id: Option<Text<256>>,
    /// The agent whose weight it moves, a peer of this node.
    #[schema(value_type = String, example = "spiffe://example.org/agent/b")]
    target_agent_id: AgentId,
    /// Which weight.
    #[schema(value_type = String, example = "routing.b.preference")]
    weight_key: GovernedKey,
    /// By how much: below zero it corrects, and goes under custody; else it reinforces, best-effort. Clipped to
    /// the width of the bounds in `[weights]`, and to 1.
    weight_delta: f64,
    /// What the outcome was about. It stays here.
    #[schema(value_type = Option<String>)]
    #[expect(dead_code, reason = "checked as it is read, and kept from leaving")]
    context_hash: Option<ContentHash>,
    /// From when it holds (RFC 3339).
    #[schema(example = "2026-03-04T09:00:00Z")]
    valid_from: String,
    /// For how many seconds from then. What is expired is not sent, and applied nowhere.
    ttl_seconds: u64,
}

/// An update that was taken, durably if it is under custody.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BeliefView {
    #[serde(flatten)]
    issued: IssuedView,
    /// The change that leaves.
    weight_delta: f64,
    /// Whether it is less than was asked for.
    clipped: bool,
}

impl From<BeliefError> for ApiError {
    fn from(error: BeliefError) -> Self {
        let (status, code) = match &error {
            BeliefError::Expired { .. } => (StatusCode::GONE, "expired"),
            BeliefError::NotYet { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "not_yet"),
            _ => (StatusCode::BAD_REQUEST, "malformed"),
        };
        Self::new(status, code, error.to_string())
    }
}

/// Send a belief update.
///
/// A corrective one goes under custody until its time is over; if the target has not applied it by then, this
/// node's own weight goes down. A reinforcing one goes best-effort.
#[utoipa::path(
    post,
    path = "/v1/belief_updates",
    tag = "issue",
    params(IssueParams),
    request_body = BeliefBody,
    responses(
        (status = 201, description = "taken", body = BeliefView),
        (status = 200, description = "the same was issued before", body = BeliefView),
        (status = 400, description = "malformed", body = ErrorBody),
        (status = 403, description = "the target may not receive belief updates", body = ErrorBody),
        (status = 404, description = "the target is no peer", body = ErrorBody),
        (status = 409, description = "the id is that of another obligation", body = ErrorBody),
        (status = 410, description = "its time is over", body = ErrorBody),
        (status = 422, description = "its time has not come", body = ErrorBody),
        (status = 429, description = "full or busy; come back after Retry-After", body = ErrorBody),
        (status = 503, description = "stopping or recovering", body = ErrorBody),
    )
)]
pub(crate) async fn send(
    State(app): State<App>,
    Params(params): Params<IssueParams>,
    body: JsonBytes,
) -> Result<(StatusCode, Json<BeliefView>), ApiError> {
    let wait_seconds = params.wait_seconds;
    let view = send_update(&app.node, body.parse()?, wait_seconds, app.stopped()).await?;
    let status = if view.issued.existing { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(view)))
}

/// Sends one, and waits for its end unless `given_up` comes first.
pub(crate) async fn send_update(
    node: &NodeHandle,
    body: BeliefBody,
    wait_seconds: Option<u64>,
    given_up: impl Future<Output = ()>,
) -> Result<BeliefView, ApiError> {
    let valid_from = Time::parse_rfc3339(&body.valid_from)
        .map_err(|error| ApiError::malformed(format!("valid_from: {error}")))?;
    let update = BeliefUpdate {
        id: body.id,
        target: body.target_agent_id,
        weight_key: body.weight_key,
        weight_delta: body.weight_delta,
        valid_from,
        ttl_seconds: body.ttl_seconds,
    };
    let weights = bounds(node)?;
    let draft = update.draft(node.now(), &weights)?;
    let weight_delta = update.clipped(&weights);
    let issued = issue_draft(node, draft, wait_seconds, given_up).await?;
    Ok(BeliefView { issued, weight_delta, clipped: weight_delta != update.weight_delta })
}

fn bounds(node: &NodeHandle) -> Result<WeightBounds, ApiError> {
    let config = &node.config().weights;
    // Checked when the configuration was read.
    let weight = |value| {
        Weight::from_f64(value).map_err(|error| {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
        })
    };
    let (min, max, initial) = (weight(config.min)?, weight(config.max)?, weight(config.initial)?);
    Ok(WeightBounds { min, max, initial })
}
