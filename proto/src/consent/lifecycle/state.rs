//! Where a pair stands, who they are, and what is to be done next.

use crate::id::AgentId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a pair stands (Anumati §3.5, Figure 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// They have nothing to do with each other yet.
    Idle,
    /// The caller has the policy, and has to decide.
    PolicyFetched,
    /// Somebody looks at what has changed since the last consent.
    GovernanceReview,
    /// The caller has accepted all of it.
    Accepted,
    /// The caller has rejected it.
    Rejected,
    /// The caller has accepted what it does not dispute.
    Conditional,
    /// What it consented to, or who it was, is no more.
    Stale,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Idle,
        Self::PolicyFetched,
        Self::GovernanceReview,
        Self::Accepted,
        Self::Rejected,
        Self::Conditional,
        Self::Stale,
    ];

    /// Whether skills may run at all.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Accepted | Self::Conditional)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::PolicyFetched => "policy fetched",
            Self::GovernanceReview => "governance review",
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Conditional => "conditional",
            Self::Stale => "stale",
        })
    }
}

/// A caller and a callee.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair {
    /// Who consents.
    pub caller: AgentId,
    /// To whose policy.
    pub callee: AgentId,
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}", self.caller, self.callee)
    }
}

/// Whose machine it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// It sees each step towards a decision.
    Caller,
    /// It sees the decision; that the record has the hash of the policy shows that it was fetched.
    Callee,
}

/// Who answers for a change of what was consented to (Anumati §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Nobody needs to: it is not material.
    AutoApproved,
    /// The governance agent may.
    GovernanceReviewed,
    /// A person has to.
    HumanRequired,
}

/// What has to be done next, by whom it concerns. Who does it each time comes to a new decision in at
/// most [`Duty::STEPS_MAX`] steps (L1, L2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Duty {
    /// The caller has to fetch the policy.
    Fetch,
    /// It has to put what has changed before the governance agent.
    Review,
    /// The governance agent has to judge.
    Judge,
    /// A person has to answer.
    Answer,
    /// The caller has to decide.
    Consent,
}

impl Duty {
    /// Steps from any state to a decision.
    pub const STEPS_MAX: usize = 5;
}
