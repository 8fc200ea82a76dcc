//! Why an action must not be taken, in words and as JSON: the same members as a callee's refusal has.

use proto::consent::{CLAIMS_NAMED_MAX, ClaimId};
use serde_json::{Value, json};
use std::fmt;

/// Why an action must not be taken.
#[derive(Clone, Debug)]
pub struct Refusal {
    code: &'static str,
    message: String,
    claims: Vec<(ClaimId, String)>,
    temporary: bool,
    more: Vec<(&'static str, Value)>,
}

impl Refusal {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        let (claims, more) = (Vec::new(), Vec::new());
        Self { code, message: message.into(), claims, temporary: false, more }
    }

    /// Our chains cannot be read or written.
    pub(super) fn store() -> Self {
        Self::new("store", "our chains of consent cannot be read or written; the log says why")
    }

    pub(super) fn temporary(self) -> Self {
        Self { temporary: true, ..self }
    }

    pub(super) fn claims(self, claims: Vec<(ClaimId, String)>) -> Self {
        Self { claims, ..self }
    }

    pub(super) fn with(mut self, name: &'static str, value: Value) -> Self {
        self.more.push((name, value));
        self
    }

    /// For machines: `denied`, `escalated`, `rejected`, `unreached`, `diverged`, …
    #[must_use]
    pub const fn code(&self) -> &'static str {
        self.code
    }

    /// Whether the same may be well another time.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        self.temporary
    }

    /// Claims in the way, each with the reasoning.
    pub fn blocking(&self) -> impl Iterator<Item = (&ClaimId, &str)> {
        self.claims.iter().map(|(claim, why)| (claim, why.as_str()))
    }

    /// For machines.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut json = json!({ "code": self.code, "message": self.message, "by": "caller" });
        if let Some(members) = json.as_object_mut() {
            if !self.claims.is_empty() {
                let named = self.claims.iter().take(CLAIMS_NAMED_MAX);
                let named = named.map(|(claim, why)| json!({ "claim_id": claim, "why": why }));
                members.insert("blocking_claims".into(), named.collect());
                members.insert("blocking_claims_count".into(), self.claims.len().into());
            }
            for (name, value) in &self.more {
                members.insert((*name).to_owned(), value.clone());
            }
        }
        json
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}

impl From<proto::store::ReadError> for Refusal {
    fn from(_: proto::store::ReadError) -> Self {
        Self::store() // the node ends, and its log says why
    }
}
