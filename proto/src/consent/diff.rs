//! What a new version of a policy changes, and what it may not: a claim keeps its meaning as long as it
//! keeps its id (Anumati §3.1).

use super::limits::CLAIMS_EVER_MAX;
use super::policy::{PolicyClaim, PolicyDocument, PolicyFault, RuleType};
use super::text::{ClaimId, PolicyVersion};
use crate::id::AgentId;
use std::collections::BTreeMap;

/// What became of one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClaimChange {
    /// New in this version.
    Added,
    /// No longer there; its id is not used again.
    Retired,
    /// Means what it meant, and is derived from a clause with another number.
    Renumbered,
    /// The same.
    Kept,
}

/// What a version of a policy changes against another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyDiff {
    /// The older version.
    pub from: PolicyVersion,
    /// The newer version.
    pub to: PolicyVersion,
    /// What became of each claim of either.
    pub claims: BTreeMap<ClaimId, ClaimChange>,
    /// Whether it narrows what a caller may do: a prohibition or an obligation more, a permission less, or
    /// other laws.
    pub material: bool,
}

/// Why a document is no next version of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiffError {
    /// The document is faulty by itself.
    #[error("policy {version}: {fault}")]
    Faulty {
        /// Which.
        version: PolicyVersion,
        /// What is wrong.
        fault: PolicyFault,
    },
    /// Of another publisher.
    #[error("policy {version} is by {by}, and this line of policies by {of}")]
    Publisher {
        /// Which.
        version: PolicyVersion,
        /// Its publisher.
        by: AgentId,
        /// The publisher of the others.
        of: AgentId,
    },
    /// Not newer than the one before.
    #[error("policy {version} is not newer than {latest}")]
    NotNewer {
        /// Which.
        version: PolicyVersion,
        /// The latest.
        latest: PolicyVersion,
    },
    /// Does not replace the one before.
    #[error("policy {version} supersedes {supersedes:?}, and the latest is {latest}")]
    Supersedes {
        /// Which.
        version: PolicyVersion,
        /// What it says it replaces.
        supersedes: Option<PolicyVersion>,
        /// What it should replace.
        latest: PolicyVersion,
    },
    /// A claim has changed its meaning and kept its id.
    #[error(
        "policy {version}: claim {claim} means something else than in {since}; a changed claim takes a new id"
    )]
    Meaning {
        /// Which version.
        version: PolicyVersion,
        /// Which claim.
        claim: ClaimId,
        /// The version it is compared with.
        since: PolicyVersion,
    },
    /// A new claim says that it is an old one.
    #[error(
        "policy {version}: claim {claim} is new against {latest} and says it came with {since}"
    )]
    Backdated {
        /// Which version.
        version: PolicyVersion,
        /// Which claim.
        claim: ClaimId,
        /// What it says.
        since: PolicyVersion,
        /// The version before.
        latest: PolicyVersion,
    },
    /// The id of a retired claim is used again.
    #[error("policy {version}: claim {claim} was retired by {retired}; its id stays taken")]
    Reused {
        /// Which version.
        version: PolicyVersion,
        /// Which claim.
        claim: ClaimId,
        /// The version that no longer had it.
        retired: PolicyVersion,
    },
    /// Over [`CLAIMS_EVER_MAX`].
    #[error("policy {version}: {count} claim ids over all versions are over the limit of {max}")]
    TooManyClaims {
        /// Which version.
        version: PolicyVersion,
        /// Ids used so far, with this version.
        count: usize,
        /// Ids allowed.
        max: usize,
    },
}

impl PolicyDiff {
    /// Compares two versions of a policy, of which others may lie between.
    ///
    /// # Errors
    /// [`DiffError`] if `new` is not newer, or a claim has changed its meaning or its past.
    pub fn between(old: &PolicyDocument, new: &PolicyDocument) -> Result<Self, DiffError> {
        let version = || new.version.clone();
        if !new.version.is_after(&old.version) {
            return Err(DiffError::NotNewer { version: version(), latest: old.version.clone() });
        }
        let before: BTreeMap<&ClaimId, &PolicyClaim> =
            old.claims.iter().map(|claim| (&claim.claim_id, claim)).collect();
        let mut claims = BTreeMap::new();
        let mut material = old.jurisdictions != new.jurisdictions;
        for claim in &new.claims {
            let id = &claim.claim_id;
            let change = match before.get(id) {
                None => {
                    if let Some(since) = claim.since().filter(|since| !since.is_after(&old.version))
                    {
                        let (claim, since) = (id.clone(), since.clone());
                        let latest = old.version.clone();
                        return Err(DiffError::Backdated {
                            version: version(),
                            claim,
                            since,
                            latest,
                        });
                    }
                    material |= claim.rule_type != RuleType::Permission;
                    ClaimChange::Added
                }
                Some(was) if !claim.means_what(was) => {
                    let (claim, since) = (id.clone(), old.version.clone());
                    return Err(DiffError::Meaning { version: version(), claim, since });
                }
                Some(was) if claim.clause_ref != was.clause_ref => ClaimChange::Renumbered,
                Some(_) => ClaimChange::Kept,
            };
            claims.insert(id.clone(), change);
        }
        for (id, claim) in before {
            if !claims.contains_key(id) {
                material |= claim.rule_type == RuleType::Permission;
                claims.insert(id.clone(), ClaimChange::Retired);
            }
        }
        Ok(Self { from: old.version.clone(), to: version(), claims, material })
    }

    /// The claims that something became of.
    pub fn changed(&self, what: ClaimChange) -> impl Iterator<Item = &ClaimId> {
        self.claims.iter().filter(move |(_, change)| **change == what).map(|(id, _)| id)
    }
}

/// The versions of one policy: the latest, and which ids its predecessors have used up.
#[derive(Clone, Debug)]
pub struct Lineage {
    latest: PolicyDocument,
    retired: BTreeMap<ClaimId, PolicyVersion>,
}

impl Lineage {
    /// A line that begins with `first`.
    ///
    /// # Errors
    /// [`DiffError::Faulty`].
    pub fn new(first: PolicyDocument) -> Result<Self, DiffError> {
        check(&first)?;
        Ok(Self { latest: first, retired: BTreeMap::new() })
    }

    /// The latest version.
    #[must_use]
    pub const fn latest(&self) -> &PolicyDocument {
        &self.latest
    }

    /// Publishes the next version, and says what it changes.
    ///
    /// # Errors
    /// [`DiffError`] names the claim and the rule; the line is as it was.
    pub fn publish(&mut self, next: PolicyDocument) -> Result<PolicyDiff, DiffError> {
        check(&next)?;
        let version = || next.version.clone();
        if next.publisher != self.latest.publisher {
            let (by, of) = (next.publisher.clone(), self.latest.publisher.clone());
            return Err(DiffError::Publisher { version: version(), by, of });
        }
        let diff = PolicyDiff::between(&self.latest, &next)?;
        let latest = &self.latest.version;
        if next.supersedes.as_ref() != Some(latest) {
            let (supersedes, latest) = (next.supersedes.clone(), latest.clone());
            return Err(DiffError::Supersedes { version: version(), supersedes, latest });
        }
        for claim in diff.changed(ClaimChange::Added) {
            if let Some(retired) = self.retired.get(claim) {
                let (claim, retired) = (claim.clone(), retired.clone());
                return Err(DiffError::Reused { version: version(), claim, retired });
            }
        }
        let count = self.retired.len() + diff.claims.len();
        if count > CLAIMS_EVER_MAX {
            return Err(DiffError::TooManyClaims {
                version: version(),
                count,
                max: CLAIMS_EVER_MAX,
            });
        }
        let gone = diff.changed(ClaimChange::Retired).map(|id| (id.clone(), version()));
        self.retired.extend(gone);
        self.latest = next;
        Ok(diff)
    }
}

fn check(policy: &PolicyDocument) -> Result<(), DiffError> {
    let faulty = |fault| DiffError::Faulty { version: policy.version.clone(), fault };
    policy.check().map_err(faulty)
}
