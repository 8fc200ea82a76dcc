//! External systems behind the nodes, which apply some kinds.

use super::{Event, World};
use crate::options::HandlerModel;
use crate::workload::TWIN;
use ::link::Rng;
use bytes::Bytes;
use proto::ack::Reason;
use proto::id::{AgentId, ObligationId};
use proto::obligation::Obligation;
use proto::receiver::Decision;
use proto::time::Time;
use std::collections::BTreeMap;

/// A number that depends on a seed and an id, and nothing else; the same for a twin.
pub(super) fn id_hash(seed: u64, id: &ObligationId) -> u64 {
    let id = id.as_str();
    id.strip_suffix(TWIN)
        .unwrap_or(id)
        .bytes()
        .fold(seed, |hash, byte| proto::backoff::mix(hash ^ u64::from(byte)))
}

/// External systems behind the nodes. They outlive a node's crash.
#[derive(Debug)]
pub(crate) struct Handler {
    model: HandlerModel,
    seed: u64,
    calls: BTreeMap<(usize, AgentId, ObligationId), Call>,
}

#[derive(Debug, Default)]
struct Call {
    asked: u32,
    effect_at: Option<u64>,
}

/// What a handler does with one obligation, always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Apply,
    Decline,
    Defer(u32),
    Unreached(u32),
    Doubt { effect: bool },
}

impl Handler {
    pub(super) const fn new(model: HandlerModel, seed: u64) -> Self {
        Self { model, seed, calls: BTreeMap::new() }
    }

    /// Whether it applies an obligation in the end.
    pub(super) fn willing(&self, id: &ObligationId) -> bool {
        plan(&self.model, self.seed, id).willing()
    }

    /// Whether the effect happened, whatever anybody knows.
    pub(super) fn happened(&self, node: usize, issuer: &AgentId, id: &ObligationId) -> bool {
        let key = (node, issuer.clone(), id.clone());
        self.calls.get(&key).is_some_and(|call| call.effect_at.is_some())
    }
}

impl Plan {
    /// Whether it ends applied if asked often enough.
    pub(crate) const fn willing(&self) -> bool {
        match self {
            Self::Apply | Self::Unreached(_) => true,
            Self::Defer(times) => *times < u32::MAX,
            Self::Decline | Self::Doubt { .. } => false,
        }
    }
}

/// What a handler does with an obligation, by its id; the same with its twin.
pub(crate) fn plan(model: &HandlerModel, seed: u64, id: &ObligationId) -> Plan {
    let hash = id_hash(seed, id);
    let mut left = u32::try_from(hash % 1000).unwrap_or(0);
    let times = u32::try_from(hash / 1000 % 3 + 1).unwrap_or(1);
    for (permille, plan) in [
        (model.decline_permille, Plan::Decline),
        (model.defer_permille, Plan::Defer(times)),
        (model.defer_forever_permille, Plan::Defer(u32::MAX)),
        (model.unreached_permille, Plan::Unreached(times)),
        (model.in_doubt_permille, Plan::Doubt { effect: times == 1 }),
    ] {
        if left < permille {
            return plan;
        }
        left -= permille;
    }
    Plan::Apply
}

impl World {
    /// A node asks its external system for an effect. A call for an id that has its effect, or is
    /// on its way to it, finds that out instead (the id is the idempotency key). No new effect
    /// begins inside the skew of the deadline.
    pub(super) fn decide(&mut self, n: usize, issuer: AgentId, item: &Bytes) {
        let Ok(obligation) = Obligation::decode(item) else { return };
        let Some(node) = self.nodes.get(n) else { return };
        let (life, clock, skew) = (node.life, node.clock(self.now), self.options.skew_ms);
        let id = obligation.id.clone();
        let plan = plan(&self.handler.model, self.handler.seed, &id);
        let (seed, call_ms_max) = (self.handler.seed, self.handler.model.call_ms_max);
        let call = self.handler.calls.entry((n, issuer.clone(), id.clone())).or_default();
        call.asked += 1;
        let asked = call.asked;
        let mut rng = Rng::new(id_hash(seed, &id), u64::from(asked));
        let takes = rng.range(0, call_ms_max);
        let answers = self.now + takes + rng.range(0, call_ms_max);
        let mut effect = None;
        let late = clock.after_ms(skew) >= obligation.deadline_at();
        let decision = match (call.effect_at, plan) {
            (Some(_), Plan::Doubt { .. }) => {
                Decision::InDoubt(Reason::new("the system cannot say"))
            }
            (Some(_), _) => Decision::Applied,
            (None, _) if late => Decision::NotReached(Reason::new("not asked past the deadline")),
            (None, Plan::Decline) => Decision::Declined(Reason::new("against policy")),
            (None, Plan::Defer(times)) if asked <= times => Decision::Deferred(None),
            (None, Plan::Unreached(times)) if asked <= times => {
                Decision::NotReached(Reason::new("down"))
            }
            (None, Plan::Doubt { effect: happens }) => {
                effect = happens.then_some(self.now + takes);
                Decision::InDoubt(Reason::new("the system cannot say"))
            }
            (None, _) => {
                effect = Some(self.now + takes);
                Decision::Applied
            }
        };
        let mut answers = answers;
        if let Some(at) = effect {
            call.effect_at = Some(at);
            let clock = Time::from_ms(clock.as_ms() + (at - self.now));
            if let Some(issuer) = self.by_name.get(&issuer).copied() {
                self.checker.called(at, n, issuer, &id, clock);
            }
        } else if let Some(at) = call.effect_at {
            answers = answers.max(at);
        }
        self.schedule(answers, Event::Decided { node: n, life, issuer, id, decision });
    }
}
