//! What a person decides: the escalation inbox and reconciliation.

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{JsonBytes, Page, Params, Pick, number_after, page_len, walk};
use crate::node::NodeHandle;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use bytes::Bytes;
use proto::id::ObligationId;
use proto::record::{Escalation, Reconcile, Resolution, key_num, num_key};
use proto::store::{ReadError, Table};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct InboxParams {
    /// Also what was acknowledged or resolved.
    #[serde(default)]
    pub(crate) all: bool,
    /// Items wanted, at most 1000; 100 by default.
    pub(crate) limit: Option<usize>,
    /// The `next` of the page before.
    pub(crate) after: Option<String>,
}

impl InboxParams {
    /// A page of JSON records by number.
    fn page<T: DeserializeOwned, V>(
        &self,
        node: &NodeHandle,
        table: Table,
        is_open: impl Fn(&T) -> bool,
        view: impl Fn(u64, T) -> V,
    ) -> Result<Page<V>, ApiError> {
        let from = num_key(number_after(self.after.as_deref())?.saturating_add(1)).to_vec();
        let pick = |key: &Bytes, value: &Bytes| {
            let number = key_num(key).ok_or_else(|| ReadError::damaged(table, "key"))?;
            let record: T =
                serde_json::from_slice(value).map_err(|error| ReadError::damaged(table, error))?;
            Ok(if self.all || is_open(&record) {
                Pick::Keep(view(number, record))
            } else {
                Pick::Skip
            })
        };
        let (items, last) = walk(node.store(), table, from, page_len(self.limit), pick)?;
        Ok(Page {
            items,
            next: last.and_then(|key| key_num(&key)).map(|number| number.to_string()),
        })
    }
}

/// The escalation inbox: obligations not confirmed applied in time, oldest first.
///
/// Each has its fail-safe applied to this node's own state, unless a newer decision stands. Beside them is
/// consent that waits for a person: it blocks the calls it is about.
#[utoipa::path(
    get,
    path = "/v1/escalations",
    tag = "inbox",
    params(InboxParams),
    responses((status = 200, description = "a page", body = schema::Inbox), (status = 400, body = ErrorBody))
)]
pub(crate) async fn escalations(
    State(app): State<App>,
    Params(params): Params<InboxParams>,
) -> Result<Json<Inbox>, ApiError> {
    inbox(&app.node, &params).map(Json)
}

/// A page of escalations, and consent that waits for a person: one review of each callee at most.
#[derive(Debug, Serialize)]
pub(crate) struct Inbox {
    items: Vec<Escalation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
    reviews: Vec<serde_json::Value>,
}

/// A person's answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerBody {
    /// Whether the policy is consented to as it is. If not, it is rejected.
    approve: bool,
}

/// Answer a review: consent to a policy that waits for a person.
#[utoipa::path(
    post,
    path = "/v1/escalations/{id}/answer",
    tag = "inbox",
    params(("id" = String, Path, description = "id of the review")),
    request_body = AnswerBody,
    responses(
        (status = 204, description = "answered; the callee is told now, or when it is reached"),
        (status = 403, description = "answered, and the callee does not take it", body = ErrorBody),
        (status = 404, description = "no such review waits for an answer", body = ErrorBody),
    )
)]
pub(crate) async fn answer_review(
    State(app): State<App>,
    Path(id): Path<String>,
    body: JsonBytes,
) -> Result<StatusCode, ApiError> {
    let AnswerBody { approve } = body.parse()?;
    let Some(consents) = app.node.consents() else {
        return Err(ApiError::not_found(format!("no review {id} waits for an answer")));
    };
    match consents.answer_review(&id, approve).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(refusal) if refusal.code() == "not_asked" => {
            Err(ApiError::not_found(refusal.to_string()))
        }
        // The answer is on the disk.
        Err(refusal) if refusal.is_temporary() => Ok(StatusCode::NO_CONTENT),
        Err(refusal) => {
            Err(ApiError::new(StatusCode::FORBIDDEN, refusal.code(), refusal.to_string()))
        }
    }
}

/// A page of the inbox.
pub(crate) fn inbox(node: &NodeHandle, params: &InboxParams) -> Result<Inbox, ApiError> {
    let is_open = |escalation: &Escalation| escalation.acknowledged_at_ms.is_none();
    let page = params.page(node, Table::Escalation, is_open, |_, escalation| escalation)?;
    let reviews = node.consents().map(|consents| consents.reviews()).unwrap_or_default();
    Ok(Inbox { items: page.items, next: page.next, reviews })
}

/// Acknowledge an escalation: the principal has seen it.
#[utoipa::path(
    post,
    path = "/v1/escalations/{id}/ack",
    tag = "inbox",
    params(("id" = String, Path, description = "obligation_id, percent-encoded")),
    responses(
        (status = 204, description = "acknowledged, now or before"),
        (status = 404, description = "no escalation of that obligation", body = ErrorBody),
    )
)]
pub(crate) async fn ack_escalation(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.node.ack_escalation(ObligationId::new(&id)?).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// A reconciliation item and its number.
#[derive(Debug, Serialize)]
pub(crate) struct Numbered {
    number: u64,
    #[serde(flatten)]
    item: Reconcile,
}

/// What a person is asked to reconcile, oldest first.
#[utoipa::path(
    get,
    path = "/v1/reconciliation",
    tag = "inbox",
    params(InboxParams),
    responses((status = 200, description = "a page", body = Page<schema::Reconcile>), (status = 400, body = ErrorBody))
)]
pub(crate) async fn reconciliation(
    State(app): State<App>,
    Params(params): Params<InboxParams>,
) -> Result<Json<Page<Numbered>>, ApiError> {
    let is_open = |item: &Reconcile| item.resolution.is_none();
    params
        .page(&app.node, Table::Reconcile, is_open, |number, item| Numbered { number, item })
        .map(Json)
}

/// How an item is resolved.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResolveBody {
    #[schema(value_type = schema::Resolution)]
    resolution: Resolution,
}

/// Resolve a reconciliation item.
#[utoipa::path(
    post,
    path = "/v1/reconciliation/{number}/resolve",
    tag = "inbox",
    params(("number" = u64, Path, description = "number of the item")),
    request_body = ResolveBody,
    responses(
        (status = 204, description = "resolved"),
        (status = 404, description = "no such item", body = ErrorBody),
        (status = 409, description = "resolved before, or the answer does not fit the item", body = ErrorBody),
    )
)]
pub(crate) async fn resolve(
    State(app): State<App>,
    Path(number): Path<String>,
    body: JsonBytes,
) -> Result<StatusCode, ApiError> {
    let number =
        number.parse().map_err(|_| ApiError::malformed(format!("{number:?} is no item number")))?;
    let ResolveBody { resolution } = body.parse()?;
    app.node.resolve(number, resolution).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// The records of the core as the document describes them; a test holds both together.
pub(crate) mod schema {
    #![expect(dead_code, reason = "described, never made")]
    use utoipa::ToSchema;

    /// A page of the inbox.
    #[derive(ToSchema)]
    pub(crate) struct Inbox {
        /// Oldest first. May hold fewer than `limit` although more follow.
        items: Vec<Escalation>,
        /// Give this as `after` to go on; absent at the end.
        next: Option<String>,
        /// Consent that waits for a person; the same on every page.
        reviews: Vec<Review>,
    }

    /// Consent to the policy of a callee, which is not for a rule to give.
    #[derive(ToSchema)]
    pub(crate) struct Review {
        id: String,
        callee: String,
        policy_version: String,
        reason: String,
        claims: Vec<String>,
        /// When it was asked, unix milliseconds.
        at_ms: u64,
        /// Until when it may be answered, unix milliseconds; then it stays refused.
        deadline_at_ms: u64,
        /// Whether that is over.
        lapsed: bool,
        /// What was answered; the callee does not know yet.
        approved: Option<bool>,
        /// Whether the webhook sink took it.
        delivered: bool,
    }

    /// One escalation, the same here, in the event stream and at the webhook.
    #[derive(ToSchema)]
    pub(crate) struct Escalation {
        obligation_id: String,
        kind: String,
        /// The agent that was not confirmed to have applied it.
        target: String,
        reason: EscalationReason,
        /// When it was escalated, unix milliseconds.
        at_ms: u64,
        /// Its absolute deadline, unix milliseconds.
        deadline_at_ms: u64,
        /// Offers after the first.
        retries: u32,
        safe_action: SafeAction,
        /// `false` when a newer decision of the same key stands.
        safe_action_applied: bool,
        /// When the principal acknowledged it, unix milliseconds.
        acknowledged_at_ms: Option<u64>,
        /// When the webhook sink took it, unix milliseconds.
        delivered_at_ms: Option<u64>,
    }

    /// What was known of the receiver when the time ran out.
    #[derive(ToSchema)]
    #[schema(rename_all = "snake_case")]
    pub(crate) enum EscalationReason {
        Unreachable,
        Deferring,
        Unauthenticated,
        Unsupported,
        Overloaded,
        RetriesExhausted,
    }

    /// `safe(O)`: what this node does to its own state when an obligation is not confirmed.
    #[derive(ToSchema)]
    pub(crate) struct SafeAction {
        obligation_id: String,
        target: String,
        effect: SafeEffect,
        /// By how much a weight goes down; 0 for `fail_closed`.
        magnitude: f64,
        /// The weight, for `down_weight`.
        weight_key: Option<String>,
        /// What is withheld, for `fail_closed`.
        scope: Option<String>,
        rationale: String,
        sequence: Option<u64>,
    }

    #[derive(ToSchema)]
    #[schema(rename_all = "snake_case")]
    pub(crate) enum SafeEffect {
        FailClosed,
        DownWeight,
    }

    /// What a person is asked to reconcile.
    #[derive(ToSchema)]
    pub(crate) struct Reconcile {
        number: u64,
        kind: ReconcileKind,
        obligation_id: String,
        /// The other party.
        agent: String,
        /// When, unix milliseconds.
        at_ms: u64,
        detail: String,
        /// Where the principal may choose to apply it.
        safe_action: Option<SafeAction>,
        resolution: Option<Resolution>,
        /// When it was resolved, unix milliseconds.
        resolved_at_ms: Option<u64>,
    }

    #[derive(ToSchema)]
    #[schema(rename_all = "snake_case")]
    pub(crate) enum ReconcileKind {
        /// An `applied` came in after the escalation. Takes `noted`.
        LateApplied,
        /// Nobody could say whether an external effect happened. Takes `applied`, `not_applied`.
        InDoubt,
        /// Declined, and left to the principal. Takes `apply_safe`, `noted`.
        DeclineSurfaced,
        /// The external effect was reported after the deadline. Takes `noted`.
        AppliedPastDeadline,
    }

    #[derive(ToSchema)]
    #[schema(rename_all = "snake_case")]
    pub(crate) enum Resolution {
        Noted,
        Applied,
        NotApplied,
        ApplySafe,
    }
}
