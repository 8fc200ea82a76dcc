//! What goes wrong, in the words of both bindings (A2A §5.4, §9.5, §11.6).

use crate::store::StoreError;
use axum::http::StatusCode;
use proto::store::ReadError;
use serde_json::{Value, json};

/// Domain of the reasons that A2A defines.
const DOMAIN: &str = "a2a-protocol.org";

/// What kind of error, each with its codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Parse,
    InvalidRequest,
    MethodNotFound,
    InvalidParams,
    Internal,
    TaskNotFound,
    TaskNotCancelable,
    UnsupportedOperation,
    ContentTypeNotSupported,
    InvalidAgentResponse,
    ExtensionSupportRequired,
    VersionNotSupported,
    // What A2A leaves to the binding.
    Unauthenticated,
    PermissionDenied,
    MethodNotAllowed,
    TooLarge,
    Timeout,
    Overloaded,
    Unavailable,
}

impl Kind {
    /// JSON-RPC code, HTTP status, `google.rpc.Code` name, reason.
    const fn codes(self) -> (i64, u16, &'static str, &'static str) {
        match self {
            Self::Parse => (-32700, 400, "INVALID_ARGUMENT", "PARSE_ERROR"),
            Self::InvalidRequest => (-32600, 400, "INVALID_ARGUMENT", "INVALID_REQUEST"),
            Self::MethodNotFound => (-32601, 404, "NOT_FOUND", "METHOD_NOT_FOUND"),
            Self::InvalidParams => (-32602, 400, "INVALID_ARGUMENT", "INVALID_PARAMS"),
            Self::Internal => (-32603, 500, "INTERNAL", "INTERNAL_ERROR"),
            Self::TaskNotFound => (-32001, 404, "NOT_FOUND", "TASK_NOT_FOUND"),
            Self::TaskNotCancelable => (-32002, 400, "FAILED_PRECONDITION", "TASK_NOT_CANCELABLE"),
            Self::UnsupportedOperation => {
                (-32004, 400, "FAILED_PRECONDITION", "UNSUPPORTED_OPERATION")
            }
            Self::ContentTypeNotSupported => {
                (-32005, 400, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED")
            }
            Self::InvalidAgentResponse => (-32006, 500, "INTERNAL", "INVALID_AGENT_RESPONSE"),
            Self::ExtensionSupportRequired => {
                (-32008, 400, "FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED")
            }
            Self::VersionNotSupported => {
                (-32009, 400, "FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED")
            }
            // JSON-RPC leaves -32000 to the server, and A2A claims from -32001 on.
            Self::Unauthenticated => (-32000, 401, "UNAUTHENTICATED", "UNAUTHENTICATED"),
            Self::PermissionDenied => (-32000, 403, "PERMISSION_DENIED", "PERMISSION_DENIED"),
            Self::MethodNotAllowed => (-32601, 405, "UNIMPLEMENTED", "METHOD_NOT_FOUND"),
            Self::TooLarge => (-32600, 413, "INVALID_ARGUMENT", "INVALID_REQUEST"),
            Self::Timeout => (-32600, 408, "DEADLINE_EXCEEDED", "INVALID_REQUEST"),
            Self::Overloaded => (-32000, 429, "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"),
            Self::Unavailable => (-32000, 503, "UNAVAILABLE", "UNAVAILABLE"),
        }
    }

    /// Whether A2A or JSON-RPC defines its reason, and not we.
    const fn is_a2a(self) -> bool {
        !matches!(
            self,
            Self::Unauthenticated | Self::PermissionDenied | Self::Overloaded | Self::Unavailable
        )
    }
}

/// One error.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    message: String,
    metadata: Vec<(&'static str, String)>,
    violations: Vec<(String, String)>,
    /// When to come back, in milliseconds.
    pub(crate) retry_after_ms: Option<u64>,
}

impl Fault {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            metadata: Vec::new(),
            violations: Vec::new(),
            retry_after_ms: None,
        }
    }

    /// A parameter that is wrong.
    pub(crate) fn params(field: impl Into<String>, what: impl Into<String>) -> Self {
        let what = what.into();
        let field = field.into();
        let mut fault =
            Self::new(Kind::InvalidParams, format!("Invalid parameters: {field}: {what}"));
        fault.violations.push((field, what));
        fault
    }

    /// One text for what is not there and what is not the caller's (A2A §13.1).
    pub(crate) fn no_task(id: &str) -> Self {
        Self::new(Kind::TaskNotFound, "The specified task ID does not exist or is not accessible")
            .with("taskId", id)
    }

    /// Come back later.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        /// What a caller is asked to wait, in milliseconds.
        const RETRY_AFTER_MS: u64 = 1_000;
        Self::new(Kind::Overloaded, message).after(RETRY_AFTER_MS)
    }

    /// With something to know about it.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.metadata.push((name, value.into()));
        self
    }

    /// With a time to come back, in milliseconds.
    pub(crate) const fn after(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.kind.codes().1).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// `google.rpc` details, the reason first.
    fn details(&self) -> Vec<Value> {
        let (.., reason) = self.kind.codes();
        let metadata: serde_json::Map<String, Value> = self
            .metadata
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str())))
            .collect();
        let domain = if self.kind.is_a2a() { DOMAIN } else { "abhyasa" };
        let mut details = vec![json!({
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": reason, "domain": domain, "metadata": metadata
        })];
        if !self.violations.is_empty() {
            let violations: Vec<Value> = self
                .violations
                .iter()
                .map(|(field, what)| json!({ "field": field, "description": what }))
                .collect();
            details.push(json!({
                "@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": violations
            }));
        }
        if let Some(ms) = self.retry_after_ms {
            details.push(json!({
                "@type": "type.googleapis.com/google.rpc.RetryInfo",
                "retryDelay": format!("{}.{:03}s", ms / 1000, ms % 1000)
            }));
        }
        details
    }

    /// The JSON-RPC error object (A2A §9.5).
    pub(crate) fn rpc(&self) -> Value {
        json!({ "code": self.kind.codes().0, "message": self.message, "data": self.details() })
    }

    /// The body over HTTP+JSON (A2A §11.6).
    pub(crate) fn rest(&self) -> Value {
        let (_, code, status, _) = self.kind.codes();
        json!({ "error": {
            "code": code, "status": status, "message": self.message, "details": self.details()
        } })
    }
}

impl From<ReadError> for Fault {
    fn from(error: ReadError) -> Self {
        tracing::error!(%error, "the A2A tasks cannot be read");
        Self::new(Kind::Internal, "the store cannot be read; the log says why")
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "the A2A tasks cannot be written");
        Self::new(Kind::Internal, "the store cannot be written; the log says why")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_says_the_same_in_both_bindings() {
        let fault = Fault::no_task("t-1");
        let rpc = fault.rpc();
        assert_eq!(rpc["code"], -32001);
        assert_eq!(rpc["data"][0]["reason"], "TASK_NOT_FOUND");
        assert_eq!(rpc["data"][0]["domain"], "a2a-protocol.org");
        assert_eq!(rpc["data"][0]["metadata"]["taskId"], "t-1");
        let rest = fault.rest();
        assert_eq!(rest["error"]["code"], 404);
        assert_eq!(rest["error"]["status"], "NOT_FOUND");
        assert_eq!(rest["error"]["details"], rpc["data"]);
    }

    #[test]
    fn a_wrong_parameter_is_named() {
        let rpc = Fault::params("message.parts", "at least one is needed").rpc();
        assert_eq!(rpc["code"], -32602);
        assert_eq!(rpc["data"][1]["fieldViolations"][0]["field"], "message.parts");
    }
}
