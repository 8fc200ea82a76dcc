//! What a caller says of one action: the claim it was held against, the decision, and why.

use super::limits::{PROSE_LEN_MAX, SIGNATURE_LEN_MAX, TERM_LEN_MAX};
use super::record::ChainAnchor;
use super::text::{ClaimId, Context, EventId, Extra, RecordId, Stamp, Text};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The evaluation of one claim for one action (Anumati §3.3).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdherenceEvent {
    /// Its name.
    pub event_id: EventId,
    /// The event before it in the trail; none for the first of its record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_event_id: Option<EventId>,
    /// The consent record it rests on.
    pub consent_record_id: RecordId,
    /// The skill or action that was attempted.
    pub action: Text<TERM_LEN_MAX>,
    /// The clause of the claim, to cite.
    pub clause_evaluated: Text<TERM_LEN_MAX>,
    /// The claim.
    pub claim_id: ClaimId,
    /// The decision.
    pub decision: AdherenceDecision,
    /// Why.
    pub reasoning: Text<PROSE_LEN_MAX>,
    /// When.
    pub timestamp: Stamp,
    /// What was known of the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Context>,
    /// JWS over its canonical JSON in which this member is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_signature: Option<Text<SIGNATURE_LEN_MAX>>,
    /// Where its hash is kept by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain_anchor: Option<ChainAnchor>,
    /// What this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What an evaluation comes to, the mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdherenceDecision {
    /// The action may be taken.
    Permit,
    /// A person has to look: it is not clear, or in dispute.
    Escalate,
    /// The action may not be taken.
    Deny,
}

impl fmt::Display for AdherenceDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Permit => "permit",
            Self::Escalate => "escalate",
            Self::Deny => "deny",
        })
    }
}
