//! What the machines are told once, at start.

use crate::id::{AgentId, Kind};
use crate::profile::Profile;
use crate::weight::Weight;
use std::collections::{BTreeMap, BTreeSet};

/// Settings of one node's custody core. Read-only after start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This node's own identity.
    pub me: AgentId,
    /// Who may exchange what with us. An agent not listed may do nothing.
    pub peers: BTreeMap<AgentId, PeerRules>,
    /// Delivery profiles of the kinds we issue.
    pub profiles: BTreeMap<Kind, Profile>,
    /// Kinds applied by an external handler. The others change built-in state.
    pub external: BTreeSet<Kind>,
    /// Largest difference between two nodes' clocks, in milliseconds: a receiver declines what is
    /// closer than this to its deadline, and keeps its ledger so much longer.
    pub clock_skew_ms_max: u64,
    /// Pending obligations in all. At the limit, issue is refused.
    pub pending_max: usize,
    /// Pending obligations to one peer. At the limit, issue to it is refused.
    pub pending_per_peer_max: usize,
    /// Offers of one session that await an ack. At the limit, offers wait.
    pub in_flight_max: usize,
    /// Bytes of the same.
    pub in_flight_bytes_max: usize,
    /// Offers of one peer being decided by an external handler. At the limit, offers are refused.
    pub deciding_max: usize,
    /// Ids remembered of one peer's best-effort obligations, to drop duplicates.
    pub best_effort_window: usize,
    /// What a refusal for overload tells the peer to wait, in milliseconds.
    pub refuse_retry_after_ms: u64,
    /// Whether a newer obligation of a governed key ends older ones still pending to an agent that
    /// is away.
    pub coalesce: bool,
    /// How long outcomes are kept, in milliseconds.
    pub outcome_retention_ms: u64,
    /// Outcomes kept at most; the oldest go first.
    pub outcomes_max: u64,
    /// Bounds of weights, and where a weight never touched stands.
    pub weights: WeightBounds,
    /// Seed of the retry jitter.
    pub seed: u64,
}

/// What one peer may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRules {
    /// Whose decisions this agent conveys: the namespace of the state its obligations set.
    pub principal: AgentId,
    /// Kinds it may issue to us.
    pub may_issue: BTreeSet<Kind>,
    /// Kinds we may issue to it.
    pub may_receive: BTreeSet<Kind>,
    /// Obligations a second it may offer, and how many at once.
    pub obligations_per_second: u64,
    /// Burst of the same.
    pub obligations_burst: u64,
    /// Bytes a second it may offer; a second's worth at once.
    pub bytes_per_second: u64,
}

/// Bounds of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightBounds {
    /// Least.
    pub min: Weight,
    /// Greatest.
    pub max: Weight,
    /// Of a key never touched.
    pub initial: Weight,
}

impl WeightBounds {
    /// `weight` moved by `delta`, inside the bounds.
    #[must_use]
    pub fn moved(&self, weight: Weight, delta: Weight) -> Weight {
        weight.saturating_add(delta).clamp(self.min, self.max)
    }
}
