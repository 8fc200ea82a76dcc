//! The paper's TLA+ model, `ConsentLifecycle.tla`, as far as it is about consent and not about who may
//! answer for a change: to see that the real machine, held to what may happen there, comes into the same
//! states.
//!
//! Left out is what no rule of the core looks at: which version was fetched last, how often skills ran, the
//! tier of a review once it is over. Added is the limit of records, without which the model has no end.

use super::Setup;
use proto::consent::{ConsentDecision, State};
use std::collections::BTreeSet;

/// A state of the model, and what the real machine is taken for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Abstract {
    /// `state`.
    pub state: State,
    /// `publishedVersion`.
    pub version: u8,
    /// `capabilityVersion`.
    pub capability: u8,
    /// `Len(consentChain)`.
    pub records: u8,
    /// `Len(adherenceTrail)`.
    pub events: u8,
    /// The last record: `decision`, `version`, `capVer`.
    pub last: Option<(ConsentDecision, u8, u8)>,
}

/// `escalationTier`, as far as it decides what may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tier {
    None,
    Approved,
    /// `human_required`, with `humanApproved`.
    Human(bool),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Spec {
    seen: Abstract,
    /// `policyVersion`.
    fetched: u8,
    /// `consentCapVersion`.
    consented: u8,
    tier: Tier,
}

impl Spec {
    fn init() -> Self {
        let seen = Abstract {
            state: State::Idle,
            version: 1,
            capability: 1,
            records: 0,
            events: 0,
            last: None,
        };
        Self { seen, fetched: 0, consented: 0, tier: Tier::None }
    }

    fn to(&self, state: State) -> Self {
        let mut next = self.clone();
        next.seen.state = state;
        next
    }

    /// `Next`.
    fn next(&self, setup: &Setup) -> Vec<Self> {
        use State::{
            Accepted, Conditional, GovernanceReview, Idle, PolicyFetched, Rejected, Stale,
        };
        let seen = &self.seen;
        let mut next = Vec::new();
        if matches!(seen.state, Idle | Stale | Rejected) {
            next.push(Self { fetched: seen.version, ..self.to(PolicyFetched) });
        }
        if seen.state == PolicyFetched {
            let first = seen.records == 0;
            if !first && self.tier == Tier::None {
                next.push(self.to(GovernanceReview));
            }
            let approved = matches!(self.tier, Tier::Approved | Tier::Human(true));
            if (first || approved) && seen.records < setup.records {
                let decisions = [
                    (ConsentDecision::Accepted, Accepted),
                    (ConsentDecision::Rejected, Rejected),
                    (ConsentDecision::Conditional, Conditional),
                ];
                next.extend(decisions.map(|(decision, state)| {
                    let mut next = self.to(state);
                    next.seen.records += 1;
                    next.seen.last = Some((decision, self.fetched, seen.capability));
                    Self { consented: seen.capability, tier: Tier::None, ..next }
                }));
            }
        }
        if seen.state == GovernanceReview && self.tier == Tier::None {
            next.push(Self { tier: Tier::Approved, ..self.to(PolicyFetched) });
            next.push(Self { tier: Tier::Human(false), ..self.clone() });
        }
        if seen.state == GovernanceReview && self.tier == Tier::Human(false) {
            next.push(Self { tier: Tier::Human(true), ..self.to(PolicyFetched) });
        }
        let live = matches!(seen.state, Accepted | Conditional);
        if live && seen.capability == self.consented && seen.events < setup.events {
            let mut adhered = self.clone();
            adhered.seen.events += 1;
            next.push(adhered);
        }
        if seen.version < setup.versions && (live || seen.state == PolicyFetched) {
            let mut bumped = self.to(Stale);
            bumped.seen.version += 1;
            next.push(bumped);
        }
        if seen.capability < setup.capabilities && live {
            let mut changed = self.to(Stale);
            changed.seen.capability += 1;
            next.push(changed);
        }
        next
    }
}

/// Every state of the model, as far as the real machine is compared with it.
#[must_use]
pub fn states(setup: &Setup) -> BTreeSet<Abstract> {
    let mut known = BTreeSet::from([Spec::init()]);
    let mut queue = vec![Spec::init()];
    while let Some(spec) = queue.pop() {
        for next in spec.next(setup) {
            if known.insert(next.clone()) {
                queue.push(next);
            }
        }
    }
    known.into_iter().map(|spec| spec.seen).collect()
}
