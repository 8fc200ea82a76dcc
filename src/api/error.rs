//! What goes wrong, as `{"error":{"code","message"}}` with a status that says whose turn it is.

use crate::node::NodeError;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use proto::custodian::IssueError;
use proto::custody::OperatorError;
use proto::frame::RefuseCode;
use proto::id::IdError;
use proto::store::ReadError;
use serde::Serialize;
use utoipa::ToSchema;

/// One refusal.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    retry_after_ms: Option<u64>,
}

/// Body of every answer that is no success.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// What went wrong.
    error: ErrorDetail,
}

/// What went wrong.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorDetail {
    /// For machines: stable, snake case.
    #[schema(example = "id_taken")]
    code: &'static str,
    /// For people: who, what, how much.
    message: String,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after_ms: None }
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// No usable token. Says the same whatever was wrong with it.
    pub(crate) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "a valid bearer token is needed")
    }

    /// A refusal by a peer-facing rule, with the code the frame would carry.
    pub(crate) fn refused(code: RefuseCode, retry_after_ms: u64, text: &str) -> Self {
        let (status, retry) = match code {
            RefuseCode::Overloaded => (StatusCode::TOO_MANY_REQUESTS, true),
            RefuseCode::Unauthorized => (StatusCode::FORBIDDEN, false),
            RefuseCode::Unsupported => (StatusCode::UNPROCESSABLE_ENTITY, false),
            RefuseCode::Malformed => (StatusCode::BAD_REQUEST, false),
            RefuseCode::WrongTarget => (StatusCode::MISDIRECTED_REQUEST, false),
            RefuseCode::Stopping => (StatusCode::SERVICE_UNAVAILABLE, true),
        };
        Self::new(status, code.as_str(), text).after(retry.then_some(retry_after_ms))
    }

    /// With a `Retry-After`.
    pub(crate) fn after(mut self, retry_after_ms: Option<u64>) -> Self {
        self.retry_after_ms = retry_after_ms;
        self
    }

    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) const fn code(&self) -> &'static str {
        self.code
    }

    pub(crate) const fn retry_after_ms(&self) -> Option<u64> {
        self.retry_after_ms
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn into_body(self) -> ErrorBody {
        ErrorBody { error: ErrorDetail { code: self.code, message: self.message } }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let retry_after = self.retry_after_ms.map(|ms| ms.div_ceil(1000).max(1));
        let mut response = (self.status, Json(self.into_body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if response.status() == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<IssueError> for ApiError {
    fn from(error: IssueError) -> Self {
        let (status, code) = match &error {
            IssueError::UnknownTarget { .. } => (StatusCode::NOT_FOUND, "unknown_target"),
            IssueError::Oneself { .. } => (StatusCode::BAD_REQUEST, "oneself"),
            IssueError::NotAllowed { .. } => (StatusCode::FORBIDDEN, "not_allowed"),
            IssueError::NoProfile { .. } => (StatusCode::BAD_REQUEST, "no_profile"),
            IssueError::Polarity(_) => (StatusCode::BAD_REQUEST, "polarity"),
            IssueError::Profile(_) => (StatusCode::BAD_REQUEST, "profile"),
            IssueError::IdTaken { .. } => (StatusCode::CONFLICT, "id_taken"),
            IssueError::Superseded { .. } => (StatusCode::CONFLICT, "superseded"),
            IssueError::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            IssueError::Full { .. } => (StatusCode::TOO_MANY_REQUESTS, "full"),
            _ => (StatusCode::BAD_REQUEST, "refused"),
        };
        let retry_after_ms = match &error {
            IssueError::Full { retry_after_ms, .. } => Some(*retry_after_ms),
            _ => None,
        };
        Self::new(status, code, error.to_string()).after(retry_after_ms)
    }
}

impl From<NodeError> for ApiError {
    fn from(error: NodeError) -> Self {
        let message = error.to_string();
        match error {
            NodeError::Busy { retry_after_ms } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", message)
                    .after(Some(retry_after_ms))
            }
            NodeError::Stopping => Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", message),
            NodeError::Unanswered => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unanswered", message)
            }
        }
    }
}

impl From<OperatorError> for ApiError {
    fn from(error: OperatorError) -> Self {
        let (status, code) = match &error {
            OperatorError::NoEscalation { .. } | OperatorError::NoItem { .. } => {
                (StatusCode::NOT_FOUND, "not_found")
            }
            OperatorError::Resolved { .. } => (StatusCode::CONFLICT, "resolved"),
            _ => (StatusCode::CONFLICT, "unfit"),
        };
        Self::new(status, code, error.to_string())
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        tracing::error!(%error, "the API cannot read the store");
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store",
            "the store cannot be read; the log says why",
        )
    }
}

impl From<IdError> for ApiError {
    fn from(error: IdError) -> Self {
        Self::malformed(error.to_string())
    }
}
