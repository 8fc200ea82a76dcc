//! Why something of consent is refused, in words, as JSON, and as a status of HTTP.

use crate::a2a::fault::Fault;
use axum::http::StatusCode;
use proto::consent::{EventFault, JsonError, RecordFault, Refused};
use proto::store::ReadError;
use serde_json::{Value, json};
use std::fmt;

/// One refusal.
#[derive(Clone, Debug)]
pub(crate) struct Denial {
    pub(super) status: StatusCode,
    /// For machines.
    pub(super) code: &'static str,
    /// For people.
    pub(super) message: String,
    /// Claims in the way, each with what is the matter, and how many there are.
    pub(super) claims: Vec<(String, String)>,
    pub(super) claims_count: usize,
    /// What else helps to go on: the policy that holds, the last id of a chain, the event on record.
    pub(super) more: Vec<(&'static str, Value)>,
}

impl Denial {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let (claims, claims_count, more) = (Vec::new(), 0, Vec::new());
        Self { status, code, message: message.into(), claims, claims_count, more }
    }

    pub(super) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, message)
    }

    pub(super) fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    pub(super) fn unavailable() -> Self {
        let what = "the chains of consent cannot be read or written; the log says why";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store", what)
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.more.push((name, value.into()));
        self
    }

    /// Whether it may be well another time.
    pub(crate) fn is_temporary(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }

    /// For machines.
    pub(crate) fn to_json(&self) -> Value {
        let mut json = json!({ "code": self.code, "message": self.message });
        if let Some(members) = json.as_object_mut() {
            if self.claims_count > 0 {
                let claims = self.claims.iter();
                let claims = claims.map(|(claim, why)| json!({ "claim_id": claim, "why": why }));
                members.insert("blocking_claims".into(), claims.collect());
                members.insert("blocking_claims_count".into(), self.claims_count.into());
            }
            for (name, value) in &self.more {
                members.insert((*name).to_owned(), value.clone());
            }
        }
        json
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Refused> for Denial {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        let unfit = StatusCode::UNPROCESSABLE_ENTITY;
        let (status, code) = match &refused {
            Refused::State { .. } => (StatusCode::CONFLICT, "state"),
            Refused::NoConsent { why: Some(_), .. } => (StatusCode::FORBIDDEN, "consent_stale"),
            Refused::NoConsent { .. } => (StatusCode::FORBIDDEN, "consent_required"),
            Refused::Blocked { .. } => (StatusCode::FORBIDDEN, "claims_blocked"),
            Refused::Capability { .. } => (StatusCode::CONFLICT, "capability"),
            Refused::Principal { .. } => (StatusCode::CONFLICT, "principal"),
            Refused::Expired { .. } => (StatusCode::CONFLICT, "expired"),
            Refused::Record { fault, .. } => match fault {
                RecordFault::Version { .. } => (StatusCode::CONFLICT, "policy_version"),
                RecordFault::Hash { .. } => (StatusCode::CONFLICT, "policy_hash"),
                RecordFault::Link { .. } => (StatusCode::CONFLICT, "chain"),
                RecordFault::Again => (StatusCode::CONFLICT, "id_taken"),
                RecordFault::Pair { .. } => (StatusCode::FORBIDDEN, "pair"),
                RecordFault::Full => (StatusCode::TOO_MANY_REQUESTS, "full"),
                _ => (unfit, "record"),
            },
            Refused::Event { fault, .. } => match fault {
                EventFault::Link { .. } => (StatusCode::CONFLICT, "chain"),
                EventFault::Again => (StatusCode::CONFLICT, "id_taken"),
                EventFault::Unanchored { .. } => (StatusCode::CONFLICT, "unanchored"),
                EventFault::Full => (StatusCode::TOO_MANY_REQUESTS, "full"),
                EventFault::DisputedPermit { .. } | EventFault::NotUnderstoodPermit { .. } => {
                    (StatusCode::FORBIDDEN, "claims_blocked")
                }
                _ => (unfit, "event"),
            },
            _ => (unfit, "refused"),
        };
        let mut denial = Self::new(status, code, message);
        match refused {
            Refused::NoConsent { why: Some(why), .. } => {
                denial = denial.with("reconsent_trigger", why.as_str());
            }
            Refused::Blocked { claims, count } => {
                let named = claims.into_iter();
                denial.claims =
                    named.map(|(claim, why)| (claim.to_string(), why.to_string())).collect();
                denial.claims_count = count;
            }
            Refused::Event {
                fault:
                    EventFault::DisputedPermit { claim } | EventFault::NotUnderstoodPermit { claim },
                ..
            } => {
                denial.claims = vec![(claim.to_string(), denial.message.clone())];
                denial.claims_count = 1;
            }
            Refused::Record { fault: RecordFault::Link { expected, .. }, .. } => {
                denial = denial.with("prev_record_id", expected.map(|id| id.to_string()));
            }
            Refused::Event { fault: EventFault::Link { expected, .. }, .. } => {
                denial = denial.with("prev_event_id", expected.map(|id| id.to_string()));
            }
            _ => {}
        }
        denial
    }
}

impl From<JsonError> for Denial {
    fn from(error: JsonError) -> Self {
        let (status, code) = match error {
            JsonError::TooLong { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            _ => (StatusCode::BAD_REQUEST, "malformed"),
        };
        Self::new(status, code, error.to_string())
    }
}

impl From<ReadError> for Denial {
    fn from(_: ReadError) -> Self {
        Self::unavailable() // the node ends, and its log says why
    }
}

impl From<Fault> for Denial {
    fn from(_: Fault) -> Self {
        Self::unavailable()
    }
}
