//! `POST /v1/obligations`: the door into custody.

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{JsonBytes, Params};
use super::transfer::{TransferView, outcome};
use crate::node::{NodeError, NodeHandle};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use proto::custodian::{Draft, Issued};
use proto::custody::IssueResult;
use proto::id::{AgentId, Kind, ObligationId};
use proto::limits::{DEADLINE_SECONDS_MAX, RETRIES_MAX};
use proto::payload::Payload;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// Members of one obligation to issue, or `obligations` alone with several.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct IssueBody {
    /// Key of idempotent issue and application, at most 256 bytes. By default a random one: give
    /// your own if you may have to repeat the call.
    #[schema(value_type = Option<String>, example = "consent-42")]
    pub(crate) obligation_id: Option<ObligationId>,
    /// Picks the polarity rule. Needed for one obligation.
    #[schema(value_type = Option<String>, example = "anumati.consent")]
    pub(crate) kind: Option<Kind>,
    /// The agent that must honour it, a peer of this node. Needed for one obligation.
    #[schema(value_type = Option<String>, example = "spiffe://example.org/agent/b")]
    pub(crate) target: Option<AgentId>,
    /// What it demands. Needed for one obligation.
    #[schema(value_type = Option<Object>, example = json!({"decision": "revoke", "scope": "calendar.read"}))]
    pub(crate) payload: Option<Payload>,
    /// Seconds from now to the absolute deadline; by default that of the kind.
    #[schema(minimum = 1, maximum = 316_224_000)]
    pub(crate) deadline_seconds: Option<u64>,
    /// Offers after the first; by default that of the kind.
    #[schema(maximum = 100_000)]
    pub(crate) max_retries: Option<u32>,
    /// Order among obligations of one governed key; by default the next.
    pub(crate) sequence: Option<u64>,
    /// A batch, at most api.batch_max of them. Each stands for itself.
    #[schema(no_recursion, value_type = Option<Vec<IssueBody>>)]
    pub(crate) obligations: Option<Vec<Self>>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct IssueParams {
    /// Seconds to wait for the terminal outcome of one obligation, cut to api.wait_seconds_max.
    pub(super) wait_seconds: Option<u64>,
}

/// An obligation that was taken, durably.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IssuedView {
    /// Its id.
    #[schema(value_type = String)]
    obligation_id: ObligationId,
    /// Whether it is under custody; `false`: inadmissible (AC-1), sent best-effort.
    custody: bool,
    /// Its absolute deadline, unix milliseconds.
    deadline_at_ms: u64,
    /// Its sequence, for kinds that set state.
    sequence: Option<u64>,
    /// Whether the same obligation had been issued before; nothing was done again.
    pub(super) existing: bool,
    /// With `wait_seconds`, and under custody: where it stands after the wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Box<TransferView>>,
}

impl IssuedView {
    fn new(issued: Issued, outcome: Option<Box<TransferView>>) -> Self {
        let Issued { obligation_id, custody, deadline_at_ms, sequence, existing } = issued;
        Self { obligation_id, custody, deadline_at_ms, sequence, existing, outcome }
    }
}

/// Results of a batch, in its order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchResults {
    results: Vec<BatchResult>,
}

/// Answer to an issue that got through.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum IssueAnswer {
    One(IssuedView),
    Batch(BatchResults),
}

/// Result of one obligation of a batch.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum BatchResult {
    /// Taken.
    Taken {
        /// What was taken.
        ok: IssuedView,
    },
    /// Not taken; nothing of it was kept.
    Refused(ErrorBody),
}

/// Issue one obligation or a batch.
///
/// The answer comes after the commit: what it says is taken survives a crash. Issuing the same
/// obligation again under the same id does nothing, so a call may be repeated.
#[utoipa::path(
    post,
    path = "/v1/obligations",
    tag = "issue",
    params(IssueParams),
    request_body = IssueBody,
    responses(
        (status = 201, description = "taken", body = IssuedView),
        (status = 200, description = "the same was issued before, or the results of a batch",
            body = IssueAnswer),
        (status = 400, description = "malformed, or without polarity or profile", body = ErrorBody),
        (status = 403, description = "the target may not receive this kind", body = ErrorBody),
        (status = 404, description = "the target is no peer", body = ErrorBody),
        (status = 409, description = "id or sequence taken", body = ErrorBody),
        (status = 413, description = "too large", body = ErrorBody),
        (status = 429, description = "full or busy; come back after Retry-After", body = ErrorBody),
        (status = 503, description = "stopping or recovering, or `unanswered`: the node ended before \
            it knew whether it was taken", body = ErrorBody),
    )
)]
pub(crate) async fn issue(
    State(app): State<App>,
    Params(params): Params<IssueParams>,
    body: JsonBytes,
) -> Result<(StatusCode, Json<IssueAnswer>), ApiError> {
    let body: IssueBody = body.parse()?;
    match body.obligations {
        Some(_) if body.is_single() => Err(ApiError::malformed(
            "`obligations` stands alone: other members beside it have no meaning",
        )),
        Some(_) if params.wait_seconds.is_some() => {
            Err(ApiError::malformed("wait_seconds goes with one obligation, not with a batch"))
        }
        Some(batch) => issue_batch(&app, batch).await,
        None => issue_one(&app, body, params.wait_seconds).await,
    }
}

async fn issue_one(
    app: &App,
    body: IssueBody,
    wait_seconds: Option<u64>,
) -> Result<(StatusCode, Json<IssueAnswer>), ApiError> {
    let draft = body.into_draft()?;
    let view = issue_draft(&app.node, draft, wait_seconds, app.stopped()).await?;
    let status = if view.existing { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(IssueAnswer::One(view))))
}

/// Issues a draft, and waits for its outcome unless `given_up` comes first. What was taken stays
/// taken, whoever waits.
pub(crate) async fn issue_draft(
    node: &NodeHandle,
    draft: Draft,
    wait_seconds: Option<u64>,
    given_up: impl Future<Output = ()>,
) -> Result<IssuedView, ApiError> {
    let mut results = take(node, vec![draft]).await?;
    let issued = results.pop().ok_or_else(no_result)??;
    let outcome = match wait_seconds {
        Some(seconds) if issued.custody => {
            let time = Duration::from_secs(seconds.min(node.config().api.wait_seconds_max));
            Some(Box::new(outcome(node, &issued.obligation_id, time, given_up).await?))
        }
        _ => None,
    };
    Ok(IssuedView::new(issued, outcome))
}

async fn issue_batch(
    app: &App,
    batch: Vec<IssueBody>,
) -> Result<(StatusCode, Json<IssueAnswer>), ApiError> {
    let max = app.node.config().api.batch_max;
    if batch.len() > max {
        let message =
            format!("a batch of {} is over the limit of {max} (api.batch_max)", batch.len());
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message));
    }
    let (mut drafts, mut faults) =
        (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
    for body in batch {
        match body.into_draft() {
            Ok(draft) => {
                drafts.push(draft);
                faults.push(None);
            }
            Err(fault) => faults.push(Some(fault)),
        }
    }
    let mut issued =
        if drafts.is_empty() { Vec::new() } else { take(&app.node, drafts).await? }.into_iter();
    let result = |fault: Option<ApiError>| {
        let result = match fault {
            Some(fault) => Err(fault),
            None => issued.next().ok_or_else(no_result)?.map_err(ApiError::from),
        };
        Ok(match result {
            Ok(issued) => BatchResult::Taken { ok: IssuedView::new(issued, None) },
            Err(error) => BatchResult::Refused(error.into_body()),
        })
    };
    let results = faults.into_iter().map(result).collect::<Result<_, ApiError>>()?;
    Ok((StatusCode::OK, Json(IssueAnswer::Batch(BatchResults { results }))))
}

/// Gives drafts to the node.
async fn take(node: &NodeHandle, drafts: Vec<Draft>) -> Result<Vec<IssueResult>, ApiError> {
    node.issue(drafts).await.map_err(|error| unready(node, error))
}

/// Busy because it is not ready is another answer than busy with others.
pub(crate) fn unready(node: &NodeHandle, error: NodeError) -> ApiError {
    match (error, node.readiness()) {
        (NodeError::Busy { retry_after_ms }, Err(why)) => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", why)
                .after(Some(retry_after_ms))
        }
        (error, _) => error.into(),
    }
}

fn no_result() -> ApiError {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "the node gave fewer results than it was asked for",
    )
}

impl IssueBody {
    const fn is_single(&self) -> bool {
        self.obligation_id.is_some()
            || self.kind.is_some()
            || self.target.is_some()
            || self.payload.is_some()
            || self.deadline_seconds.is_some()
            || self.max_retries.is_some()
            || self.sequence.is_some()
    }

    pub(crate) fn into_draft(self) -> Result<Draft, ApiError> {
        let missing = |member| ApiError::malformed(format!("`{member}` is missing"));
        if self.obligations.is_some() {
            return Err(ApiError::malformed("a batch in a batch"));
        }
        // Best-effort obligations have no profile that would check these.
        if let Some(given) =
            self.deadline_seconds.filter(|given| !(1..=DEADLINE_SECONDS_MAX).contains(given))
        {
            let message =
                format!("deadline_seconds is {given}; it must be 1 to {DEADLINE_SECONDS_MAX}");
            return Err(ApiError::malformed(message));
        }
        if let Some(given) = self.max_retries.filter(|given| *given > RETRIES_MAX) {
            return Err(ApiError::malformed(format!(
                "max_retries is {given}; it must be at most {RETRIES_MAX}"
            )));
        }
        Ok(Draft {
            id: self.obligation_id.map_or_else(random_id, Ok)?,
            kind: self.kind.ok_or_else(|| missing("kind"))?,
            target: self.target.ok_or_else(|| missing("target"))?,
            payload: self.payload.ok_or_else(|| missing("payload"))?,
            deadline_seconds: self.deadline_seconds,
            max_retries: self.max_retries,
            sequence: self.sequence,
        })
    }
}

/// 128 random bits in hex.
pub(crate) fn random_id() -> Result<ObligationId, ApiError> {
    let mut bytes = [0; 16];
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "no random bytes for an id: give an obligation_id",
        )
    })?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(ObligationId::new(&text)?)
}
