//! What a caller says of a policy: its consent record, with an answer for each claim.

use super::limits::{CLAIMS_MAX, PROSE_LEN_MAX, SIGNATURE_LEN_MAX, TERM_LEN_MAX, URI_LEN_MAX};
use super::text::{
    ClaimId, ContentHash, Extra, List, PolicyVersion, PrincipalId, RecordId, Stamp, Text, TextError,
};
use crate::id::AgentId;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A caller's understanding of one version of a policy, and its decision (Anumati §3.2).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsentRecord {
    /// Its name.
    pub record_id: RecordId,
    /// The record before it in the chain of this pair; none for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_record_id: Option<RecordId>,
    /// Who consents.
    pub caller_agent_id: AgentId,
    /// To whose policy.
    pub callee_agent_id: AgentId,
    /// To which version of it.
    pub policy_version: PolicyVersion,
    /// And to exactly which document.
    pub policy_hash: ContentHash,
    /// An answer for each claim.
    pub parsed_claims: List<ParsedClaim, 0, CLAIMS_MAX>,
    /// The decision.
    pub decision: ConsentDecision,
    /// When it was taken.
    pub accepted_at: Stamp,
    /// Until when, or until what, it holds.
    pub valid_until: ValidUntil,
    /// JWS over its canonical JSON in which this member is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_signature: Option<Text<SIGNATURE_LEN_MAX>>,
    /// On whose behalf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal_id: Option<PrincipalId>,
    /// What the caller was when it consented.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller_capability_hash: Option<ContentHash>,
    /// Why it consents anew, in its own spelling; [`trigger`](Self::trigger) reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconsent_trigger: Option<Text<TERM_LEN_MAX>>,
    /// Where its hash is kept by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain_anchor: Option<ChainAnchor>,
    /// What this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A caller's answer to one claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParsedClaim {
    /// Which claim.
    pub claim_id: ClaimId,
    /// Whether it can act by it.
    pub understood: bool,
    /// Whether it disagrees.
    pub disputed: bool,
    /// Why it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispute_reason: Option<Text<PROSE_LEN_MAX>>,
    /// What this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What a caller decides of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConsentDecision {
    /// All of it.
    Accepted,
    /// None of it.
    Rejected,
    /// All but what it disputes.
    Conditional,
}

impl fmt::Display for ConsentDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Conditional => "conditional",
        })
    }
}

/// Until when a record holds (Anumati §3.6).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ValidUntil {
    /// Until the policy changes.
    OnVersionBump,
    /// Until the caller changes.
    OnCapabilityChange,
    /// Until either does.
    OnAnyChange,
    /// Until then, or until either does.
    At(Stamp),
}

impl ValidUntil {
    /// What ends it, beside its time.
    #[must_use]
    pub const fn triggers(&self) -> Triggers {
        match self {
            Self::OnVersionBump => Triggers { policy: true, capability: false },
            Self::OnCapabilityChange => Triggers { policy: false, capability: true },
            Self::OnAnyChange | Self::At(_) => Triggers::ALL,
        }
    }

    /// When it ends of itself.
    #[must_use]
    pub const fn time(&self) -> Option<Time> {
        match self {
            Self::At(stamp) => Some(stamp.time()),
            _ => None,
        }
    }
}

impl TryFrom<String> for ValidUntil {
    type Error = TextError;
    fn try_from(text: String) -> Result<Self, TextError> {
        Ok(match text.as_str() {
            "on_version_bump" => Self::OnVersionBump,
            "on_capability_change" => Self::OnCapabilityChange,
            "on_any_change" => Self::OnAnyChange,
            stamp => Self::At(Stamp::new(stamp)?),
        })
    }
}

impl From<ValidUntil> for String {
    fn from(until: ValidUntil) -> Self {
        match until {
            ValidUntil::OnVersionBump => "on_version_bump".to_owned(),
            ValidUntil::OnCapabilityChange => "on_capability_change".to_owned(),
            ValidUntil::OnAnyChange => "on_any_change".to_owned(),
            ValidUntil::At(stamp) => stamp.into(),
        }
    }
}

/// Which changes end a record. A change of the principal and the end of its time always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Triggers {
    /// A new version of the policy.
    pub policy: bool,
    /// A change of the caller.
    pub capability: bool,
}

impl Triggers {
    /// Both.
    pub const ALL: Self = Self { policy: true, capability: true };
    /// Neither.
    pub const NONE: Self = Self { policy: false, capability: false };

    /// What either of two counts.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self {
            policy: self.policy || other.policy,
            capability: self.capability || other.capability,
        }
    }
}

/// Why consent has to be given anew (Anumati §3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Trigger {
    /// The callee has published a new policy.
    PolicyBump,
    /// The caller is another than the one that consented: its model, tools or configuration.
    CapabilityChange,
    /// It acts for somebody else.
    PrincipalChange,
    /// The time of the record is over.
    Expiry,
}

impl Trigger {
    /// Its word in documents.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PolicyBump => "POLICY_BUMP",
            Self::CapabilityChange => "CAPABILITY_CHANGE",
            Self::PrincipalChange => "PRINCIPAL_CHANGE",
            Self::Expiry => "EXPIRY",
        }
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PolicyBump => "the policy has a new version",
            Self::CapabilityChange => "the caller's capability hash has changed",
            Self::PrincipalChange => "the caller acts for another principal",
            Self::Expiry => "its time is over",
        })
    }
}

impl ConsentRecord {
    /// Why it was made, as far as it says so in a word we know; in capitals or small letters, and with
    /// the prefix of the protocol buffers or without.
    #[must_use]
    pub fn trigger(&self) -> Option<Trigger> {
        let word = self.reconsent_trigger.as_ref()?.as_str().to_ascii_uppercase();
        let word = word.strip_prefix("RECONSENT_TRIGGER_").unwrap_or(&word);
        [Trigger::PolicyBump, Trigger::CapabilityChange, Trigger::PrincipalChange, Trigger::Expiry]
            .into_iter()
            .find(|trigger| trigger.as_str() == word)
    }

    /// Its answer to a claim.
    #[must_use]
    pub fn parsed(&self, claim: &ClaimId) -> Option<&ParsedClaim> {
        self.parsed_claims.iter().find(|parsed| parsed.claim_id == *claim)
    }
}

/// Where the hash of a record or event is kept by others (Anumati §3.4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainAnchor {
    /// What was anchored: the hash of the canonical JSON without this anchor.
    pub record_hash: ContentHash,
    /// Which ledger or log.
    pub ledger_id: Text<TERM_LEN_MAX>,
    /// Where in it.
    pub transaction_id: Text<TERM_LEN_MAX>,
    /// Its block, or number in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_number: Option<i64>,
    /// When, by the ledger's clock.
    pub anchored_at: Stamp,
    /// Where to look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification_url: Option<Text<URI_LEN_MAX>>,
    /// What is anchored, and when.
    pub strategy: AnchorStrategy,
    /// What this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What is anchored, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnchorStrategy {
    /// Each record of its own.
    PerRecord,
    /// The Merkle root of many.
    MerkleBatch,
    /// Consent records only.
    ConsentOnly,
}
