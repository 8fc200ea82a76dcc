//! The callee's policy as we have it: what its card says of it, that it is what its hash says, and that
//! no claim changes its meaning under its id (Anumati §3.1, §4.1).

use proto::consent::{
    CLAIMS_EVER_MAX, ClaimId, ContentHash, DiffError, EXTENSION_URI, HashMismatch, JsonError,
    PolicyDocument, PolicyFault, PolicyVersion, Text, canonical, read,
};
use proto::id::AgentId;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Skills of a card whose claims are kept; of further ones all claims of the policy count.
const SKILLS_MAX: usize = 1_024;

/// Why a policy is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// It is none.
    #[error("it is no policy: {0}")]
    Json(#[from] JsonError),
    /// It is not what its hash says.
    #[error(transparent)]
    Hash(#[from] HashMismatch),
    /// It is faulty by itself.
    #[error("policy {version}: {fault}")]
    Faulty {
        /// Which.
        version: PolicyVersion,
        /// What is wrong.
        fault: PolicyFault,
    },
    /// It is another's.
    #[error("policy {version} is by {publisher}, not {callee}")]
    Publisher {
        /// Which.
        version: PolicyVersion,
        /// By whom.
        publisher: AgentId,
        /// Whose it should be.
        callee: AgentId,
    },
    /// It is not what was pointed to.
    #[error("{told} was pointed to, and policy {version} has {found}")]
    Pointer {
        /// What was said.
        told: String,
        /// The version that was found.
        version: PolicyVersion,
        /// Its hash.
        found: ContentHash,
    },
    /// The version is an old one, or the same with another content.
    #[error("policy {version} comes after {latest} was seen, and is not newer")]
    Back {
        /// Which.
        version: PolicyVersion,
        /// The latest that was seen.
        latest: PolicyVersion,
    },
    /// A claim has changed its meaning and kept its id.
    #[error("policy {version}: claim {claim} means something else than before under this id")]
    Meaning {
        /// Which.
        version: PolicyVersion,
        /// The claim.
        claim: ClaimId,
    },
    /// Against the line of versions.
    #[error(transparent)]
    Line(#[from] Box<DiffError>),
    /// Over `CLAIMS_EVER_MAX`.
    #[error("{count} claim ids over all versions are over the limit of {CLAIMS_EVER_MAX}")]
    TooMany {
        /// How many.
        count: usize,
    },
}

/// What a callee says of its policy beside it: in its card, or as a server of MCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// Its version.
    pub version: Option<String>,
    /// Its hash.
    pub hash: Option<String>,
}

impl Pointer {
    /// Out of an agent card: the extension's `params`, or `usage_policy` (Anumati §4.1).
    #[must_use]
    pub fn of_card(card: &Value) -> Option<Self> {
        let extensions = card.pointer("/capabilities/extensions").and_then(Value::as_array);
        let ours = |one: &&Value| one.get("uri").and_then(Value::as_str) == Some(EXTENSION_URI);
        let params = extensions.and_then(|all| all.iter().find(ours)?.get("params"));
        let found =
            params.or_else(|| card.get("usage_policy")).filter(|found| found.is_object())?;
        Some(Self::of(found, "version", "document_hash"))
    }

    /// Out of the capabilities of a server of MCP (Anumati §4.2).
    #[must_use]
    pub fn of_mcp(capabilities: &Value) -> Option<Self> {
        let found = capabilities.get("usagePolicy").filter(|found| found.is_object())?;
        Some(Self::of(found, "version", "documentHash"))
    }

    fn of(found: &Value, version: &str, hash: &str) -> Self {
        let text = |name: &str| found.get(name).and_then(Value::as_str).map(str::to_owned);
        Self { version: text(version), hash: text(hash) }
    }

    /// Whether `policy` is what it points to.
    pub(super) fn check(&self, policy: &PolicyDocument) -> Result<(), PolicyError> {
        let differs =
            |told: &Option<String>, found: String| told.clone().filter(|told| *told != found);
        let told = differs(&self.version, policy.version.to_string())
            .or_else(|| differs(&self.hash, policy.document_hash.to_string()));
        match told {
            None => Ok(()),
            Some(told) => {
                let (version, found) = (policy.version.clone(), policy.document_hash.clone());
                Err(PolicyError::Pointer { told, version, found })
            }
        }
    }
}

/// The claims that govern each skill, as a card says.
pub(super) fn skills(card: &Value) -> BTreeMap<String, Vec<ClaimId>> {
    let skills = card.get("skills").and_then(Value::as_array);
    let claims = |skill: &Value| -> Option<(String, Vec<ClaimId>)> {
        let id = skill.get("id")?.as_str()?;
        let claims = skill.get("policy_claims").and_then(Value::as_array);
        let claims = claims.into_iter().flatten().filter_map(Value::as_str);
        Some((id.to_owned(), claims.filter_map(|claim| ClaimId::new(claim).ok()).collect()))
    };
    skills.into_iter().flatten().take(SKILLS_MAX).filter_map(claims).collect()
}

/// The latest policy that was taken, and what each claim ever meant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) policy: PolicyDocument,
    meanings: BTreeMap<ClaimId, ContentHash>,
}

impl Line {
    /// Reads a policy of `callee` and holds it against what was taken before.
    pub(super) fn next(
        before: Option<&Self>,
        callee: &AgentId,
        bytes: &[u8],
    ) -> Result<Self, PolicyError> {
        let policy: PolicyDocument = read(bytes)?;
        policy.verify_hash()?;
        let version = || policy.version.clone();
        policy.check().map_err(|fault| PolicyError::Faulty { version: version(), fault })?;
        if policy.publisher != *callee {
            let (publisher, callee) = (policy.publisher.clone(), callee.clone());
            return Err(PolicyError::Publisher { version: version(), publisher, callee });
        }
        let mut meanings = BTreeMap::new();
        if let Some(before) = before {
            let (latest, same) = (&before.policy.version, &before.policy.document_hash);
            if !policy.version.is_after(latest) && policy.document_hash != *same {
                return Err(PolicyError::Back { version: version(), latest: latest.clone() });
            }
            meanings = before.meanings.clone();
        }
        for claim in &policy.claims {
            let mut plain = claim.clone();
            plain.clause_ref = Text::cut("-"); // it may be numbered anew
            let meaning = ContentHash::of(&canonical(&plain).unwrap_or_default());
            match meanings.insert(claim.claim_id.clone(), meaning.clone()) {
                Some(other) if other != meaning => {
                    let claim = claim.claim_id.clone();
                    return Err(PolicyError::Meaning { version: version(), claim });
                }
                _ => {}
            }
        }
        if meanings.len() > CLAIMS_EVER_MAX {
            return Err(PolicyError::TooMany { count: meanings.len() });
        }
        Ok(Self { policy, meanings })
    }
}
