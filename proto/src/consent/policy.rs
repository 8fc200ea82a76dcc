//! What a callee publishes: its policy, claim by claim, and the pointer to it.

use super::limits::{
    CLAIMS_MAX, CONSTRAINT_LEN_MAX, JURISDICTIONS_MAX, PROSE_LEN_MAX, TERM_LEN_MAX, URI_LEN_MAX,
};
use super::text::{ClaimId, ContentHash, Extra, List, PolicyVersion, Stamp, Text};
use crate::id::AgentId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// A versioned usage policy (Anumati §3.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyDocument {
    /// Its version.
    pub version: PolicyVersion,
    /// Where it is published.
    pub document_uri: Text<URI_LEN_MAX>,
    /// Hash of its canonical JSON in which this member is empty.
    pub document_hash: ContentHash,
    /// From when it holds.
    pub effective_date: Stamp,
    /// The version it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<PolicyVersion>,
    /// What has changed, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_summary: Option<Text<PROSE_LEN_MAX>>,
    /// Its claims; their order counts.
    pub claims: List<PolicyClaim, 1, CLAIMS_MAX>,
    /// Who published it.
    pub publisher: AgentId,
    /// The text for people that the claims are derived from.
    pub natural_language_uri: Text<URI_LEN_MAX>,
    /// Under which laws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jurisdictions: Option<List<Text<TERM_LEN_MAX>, 0, JURISDICTIONS_MAX>>,
    /// What this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// One rule of a policy (Anumati §3.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyClaim {
    /// Its name, stable over versions.
    pub claim_id: ClaimId,
    /// The clause for people it is derived from.
    pub clause_ref: Text<TERM_LEN_MAX>,
    /// The action it governs.
    pub action: Text<TERM_LEN_MAX>,
    /// What the action is done to.
    pub asset: Text<TERM_LEN_MAX>,
    /// Whether it permits, prohibits or obliges.
    pub rule_type: RuleType,
    /// When it applies; always, if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<Text<CONSTRAINT_LEN_MAX>>,
    /// The version that introduced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effective_version: Option<PolicyVersion>,
    /// The same by the paper's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_version: Option<PolicyVersion>,
    /// Whether the principal must hear of a denial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub escalate_on_deny: Option<bool>,
    /// What kind of data it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<Text<TERM_LEN_MAX>>,
    /// What is done with the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimension: Option<Text<TERM_LEN_MAX>>,
    /// What this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What a claim does with its action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleType {
    /// It allows it.
    Permission,
    /// It forbids it.
    Prohibition,
    /// It demands it.
    Obligation,
}

impl fmt::Display for RuleType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Permission => "permission",
            Self::Prohibition => "prohibition",
            Self::Obligation => "obligation",
        })
    }
}

/// Why a policy cannot be published, whatever came before it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyFault {
    /// Two claims have one name.
    #[error("claim {claim} is there twice")]
    ClaimTwice {
        /// Which.
        claim: ClaimId,
    },
    /// A claim does not say which version introduced it.
    #[error("claim {claim} has neither effective_version nor since_version")]
    NoSince {
        /// Which.
        claim: ClaimId,
    },
    /// A claim names two versions.
    #[error("claim {claim} has effective_version {effective} and since_version {since}")]
    TwoSince {
        /// Which.
        claim: ClaimId,
        /// One of them.
        effective: PolicyVersion,
        /// The other.
        since: PolicyVersion,
    },
    /// A claim names a version that was not yet.
    #[error("claim {claim} was introduced by {since}, after this version")]
    Future {
        /// Which.
        claim: ClaimId,
        /// The version it names.
        since: PolicyVersion,
    },
    /// It replaces what is not older.
    #[error("it supersedes {supersedes}, which is not older")]
    Supersedes {
        /// The version it names.
        supersedes: PolicyVersion,
    },
}

impl PolicyClaim {
    /// The version that introduced it, by whichever name.
    #[must_use]
    pub fn since(&self) -> Option<&PolicyVersion> {
        self.effective_version.as_ref().or(self.since_version.as_ref())
    }

    /// Whether it means the same as `other`. The clause it is derived from may be numbered anew; all
    /// else, and what we do not know, is its meaning.
    #[must_use]
    pub fn means_what(&self, other: &Self) -> bool {
        Self { clause_ref: other.clause_ref.clone(), ..self.clone() } == *other
    }
}

impl PolicyDocument {
    /// The claim of that name.
    #[must_use]
    pub fn claim(&self, id: &ClaimId) -> Option<&PolicyClaim> {
        self.claims.iter().find(|claim| claim.claim_id == *id)
    }

    /// Claims introduced after `version`, for a caller that consented to that one.
    pub fn claims_since(&self, version: &PolicyVersion) -> impl Iterator<Item = &PolicyClaim> {
        self.claims.iter().filter(|claim| claim.since().is_none_or(|since| since.is_after(version)))
    }

    /// Checks what one document says of itself. Its hash is checked by
    /// [`verify_hash`](Self::verify_hash), and what it changes by [`Lineage`](super::Lineage).
    ///
    /// # Errors
    /// [`PolicyFault`] names the claim and the rule.
    pub fn check(&self) -> Result<(), PolicyFault> {
        let mut seen = BTreeSet::new();
        for claim in &self.claims {
            let id = || claim.claim_id.clone();
            if !seen.insert(&claim.claim_id) {
                return Err(PolicyFault::ClaimTwice { claim: id() });
            }
            let since = claim.since().ok_or_else(|| PolicyFault::NoSince { claim: id() })?;
            if let Some(other) = claim.since_version.as_ref().filter(|other| *other != since) {
                let (effective, since) = (since.clone(), other.clone());
                return Err(PolicyFault::TwoSince { claim: id(), effective, since });
            }
            if since.is_after(&self.version) {
                return Err(PolicyFault::Future { claim: id(), since: since.clone() });
            }
        }
        match &self.supersedes {
            Some(older) if !self.version.is_after(older) => {
                Err(PolicyFault::Supersedes { supersedes: older.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// Where an agent's policy is, in its card (Anumati §4.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsagePolicyRef {
    /// Version of the policy.
    pub version: PolicyVersion,
    /// Where it is published.
    pub document_uri: Text<URI_LEN_MAX>,
    /// Its hash.
    pub document_hash: ContentHash,
    /// From when it holds.
    pub effective_date: Stamp,
    /// Whether no skill runs without consent.
    pub acceptance_required: bool,
    /// Where consent records go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acceptance_endpoint: Option<Text<URI_LEN_MAX>>,
    /// The version before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<PolicyVersion>,
    /// What has changed, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_summary: Option<Text<PROSE_LEN_MAX>>,
    /// The text for people.
    pub natural_language_uri: Text<URI_LEN_MAX>,
    /// What this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Why a pointer to a policy is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UsagePolicyFault {
    /// Consent is required, and there is nowhere to send it.
    #[error("usage_policy requires acceptance and has no acceptance_endpoint")]
    NoEndpoint,
    /// The document is of another version.
    #[error("usage_policy speaks of version {told}, the document is {found}")]
    Version {
        /// What the card says.
        told: PolicyVersion,
        /// What the document says.
        found: PolicyVersion,
    },
    /// The document is another.
    #[error("usage_policy promises a document with hash {told}, the document has {found}")]
    Hash {
        /// What the card says.
        told: ContentHash,
        /// The hash of the document.
        found: ContentHash,
    },
}

impl UsagePolicyRef {
    /// A pointer to `policy`.
    #[must_use]
    pub fn to(policy: &PolicyDocument, endpoint: Option<Text<URI_LEN_MAX>>) -> Self {
        Self {
            version: policy.version.clone(),
            document_uri: policy.document_uri.clone(),
            document_hash: policy.document_hash.clone(),
            effective_date: policy.effective_date.clone(),
            acceptance_required: endpoint.is_some(),
            acceptance_endpoint: endpoint,
            supersedes: policy.supersedes.clone(),
            change_summary: policy.change_summary.clone(),
            natural_language_uri: policy.natural_language_uri.clone(),
            extra: Extra::default(),
        }
    }

    /// Checks what it says of itself.
    ///
    /// # Errors
    /// [`UsagePolicyFault::NoEndpoint`].
    pub fn check(&self) -> Result<(), UsagePolicyFault> {
        if self.acceptance_required && self.acceptance_endpoint.is_none() {
            return Err(UsagePolicyFault::NoEndpoint);
        }
        Ok(())
    }

    /// Whether `policy` is what it points to; the hash is computed, not believed.
    ///
    /// # Errors
    /// [`UsagePolicyFault`] says what differs.
    pub fn points_to(&self, policy: &PolicyDocument) -> Result<(), UsagePolicyFault> {
        if self.version != policy.version {
            let (told, found) = (self.version.clone(), policy.version.clone());
            return Err(UsagePolicyFault::Version { told, found });
        }
        let found = policy.computed_hash();
        if self.document_hash != found {
            return Err(UsagePolicyFault::Hash { told: self.document_hash.clone(), found });
        }
        Ok(())
    }
}
