//! The papers' HTTP binding: obligations in, acks in, both from authenticated peers.

use super::App;
use super::auth::Peer;
use super::error::{ApiError, ErrorBody};
use super::extract::JsonBytes;
use crate::node::OfferReply;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use proto::ack::CustodyAck;
use proto::frame::RefuseCode;
use proto::obligation::Obligation;
use serde::Serialize;
use utoipa::ToSchema;

/// Received, not yet applied.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Deferred {
    /// Always `deferred`.
    status: &'static str,
}

/// Offer an obligation, as a peer.
///
/// The peer keeps custody until it has an `applied` or `declined` ack: on this response, or later
/// at its custody_ack_endpoint. Offering again is harmless.
#[utoipa::path(
    post,
    path = "/abhyasa/obligations",
    tag = "peers",
    security(("peer" = [])),
    request_body(content = schema::Obligation),
    responses(
        (status = 200, description = "settled, durably", body = schema::CustodyAck),
        (status = 202, description = "received; the ack comes later", body = Deferred),
        (status = 400, description = "no obligation", body = ErrorBody),
        (status = 401, description = "no peer's token", body = ErrorBody),
        (status = 403, description = "this peer may not issue that", body = ErrorBody),
        (status = 421, description = "addressed to another agent", body = ErrorBody),
        (status = 422, description = "kind not carried here", body = ErrorBody),
        (status = 429, description = "overloaded; come back after Retry-After", body = ErrorBody),
    )
)]
pub(crate) async fn offer(
    State(app): State<App>,
    Peer(peer): Peer,
    body: JsonBytes,
) -> Result<Response, ApiError> {
    let obligation: Obligation = body.parse()?;
    match app.node.offer(peer, obligation).await? {
        OfferReply::Ack(ack) => Ok(Json(ack).into_response()),
        OfferReply::Later => {
            Ok((StatusCode::ACCEPTED, Json(Deferred { status: "deferred" })).into_response())
        }
        OfferReply::Refused { code, retry_after_ms, text } => {
            Err(ApiError::refused(code, retry_after_ms, text.as_str()))
        }
    }
}

/// Acknowledge obligations of this node, as a peer. One ack, or an array of them.
#[utoipa::path(
    post,
    path = "/abhyasa/custody_ack",
    tag = "peers",
    security(("peer" = [])),
    request_body(content = schema::CustodyAck, description = "one, or an array of them"),
    responses(
        (status = 204, description = "heard"),
        (status = 400, description = "no ack", body = ErrorBody),
        (status = 401, description = "no peer's token", body = ErrorBody),
        (status = 403, description = "an ack in another agent's name; none was heard", body = ErrorBody),
        (status = 413, description = "more than api.batch_max", body = ErrorBody),
    )
)]
pub(crate) async fn custody_ack(
    State(app): State<App>,
    Peer(peer): Peer,
    body: JsonBytes,
) -> Result<StatusCode, ApiError> {
    let acks: Vec<CustodyAck> = if body.is_array() { body.parse()? } else { vec![body.parse()?] };
    let max = app.node.config().api.batch_max;
    if acks.len() > max {
        let message = format!("{} acks are over the limit of {max} (api.batch_max)", acks.len());
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
    }
    // An ack speaks for its target only, and the token says who speaks.
    if let Some(ack) = acks.iter().find(|ack| ack.target != peer) {
        let text =
            format!("the ack of {} is {}'s to give, not {peer}'s", ack.obligation_id, ack.target);
        return Err(ApiError::refused(RefuseCode::Unauthorized, 0, &text));
    }
    app.node.acks(peer, acks).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The papers' documents as the OpenAPI document describes them; a test holds both together.
pub(crate) mod schema {
    #![expect(dead_code, reason = "described, never made")]
    use utoipa::ToSchema;

    /// An obligation on the papers' wire.
    #[derive(ToSchema)]
    pub(crate) struct Obligation {
        obligation_id: String,
        #[schema(example = "anumati.consent")]
        kind: String,
        target: String,
        #[schema(value_type = Object)]
        payload: (),
        #[schema(minimum = 1, maximum = 316_224_000)]
        deadline_seconds: u64,
        #[schema(maximum = 100_000)]
        max_retries: u32,
        #[schema(format = DateTime)]
        created_at: String,
        sequence: Option<u64>,
    }

    /// A custody ack on the papers' wire: attests application, not receipt.
    #[derive(ToSchema)]
    pub(crate) struct CustodyAck {
        obligation_id: String,
        target: String,
        status: AckStatus,
        #[schema(format = DateTime)]
        acked_at: String,
        reason: Option<String>,
    }

    #[derive(ToSchema)]
    #[schema(rename_all = "snake_case")]
    pub(crate) enum AckStatus {
        Applied,
        Declined,
        Deferred,
    }
}
