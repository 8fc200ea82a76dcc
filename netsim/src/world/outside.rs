//! Everything around the nodes: clients that issue, principals that decide, external systems, and
//! noise.

use super::{Event, World};
use crate::check::Spec;
use crate::options::HandlerModel;
use crate::workload::TWIN;
use ::link::Rng;
use bytes::Bytes;
use proto::ack::{AckRun, AckStatus, CustodyAck, Reason, RefRange};
use proto::custodian::{Draft, IssueError};
use proto::custody::{Input, IssueResult};
use proto::frame::RefuseCode;
use proto::id::{AgentId, ObligationId};
use proto::obligation::Obligation;
use proto::receiver::Decision;
use proto::record::{Reconcile, ReconcileKind, Resolution, key_num};
use proto::step::Ticket;
use proto::store::Table;
use proto::time::Time;
use std::collections::BTreeMap;

/// How long a client waits for an answer before it asks again, in milliseconds.
pub(crate) const CLIENT_PATIENCE_MS: u64 = 10_000;
/// How long it waits if its node is down.
pub(crate) const DOWN_PATIENCE_MS: u64 = 500;
/// How often a client takes "full" for an answer before it gives up.
const FULL_MAX: u32 = 40;

/// One issue call, asked again until it is answered.
#[derive(Debug)]
pub(crate) struct Client {
    node: usize,
    drafts: Vec<Draft>,
    answered: bool,
    full: u32,
    again: u32,
    last: Vec<IssueResult>,
}

impl Client {
    #[cfg(test)]
    pub(super) fn drafts(&self) -> usize {
        self.drafts.len()
    }

    pub(super) const fn answered(&self) -> bool {
        self.answered
    }
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
    fn happened(&self, node: usize, issuer: &AgentId, id: &ObligationId) -> bool {
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

/// A hash of an id, the same for its twin's.
fn hash(seed: u64, id: &ObligationId) -> u64 {
    let id = id.as_str();
    let bytes = id.strip_suffix(TWIN).unwrap_or(id).bytes();
    bytes.fold(seed, |hash, byte| proto::backoff::mix(hash ^ u64::from(byte)))
}

/// What a handler does with an obligation, by its id; the same with its twin.
pub(crate) fn plan(model: &HandlerModel, seed: u64, id: &ObligationId) -> Plan {
    let hash = hash(seed, id);
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
    /// A client that will issue `drafts` at `node`.
    pub(crate) fn add_client(&mut self, node: usize, drafts: Vec<(Draft, Spec)>) -> usize {
        let mut asked = Vec::with_capacity(drafts.len());
        for (draft, spec) in drafts {
            self.checker.asked(spec);
            asked.push(draft);
        }
        let client =
            Client { node, drafts: asked, answered: false, full: 0, again: 0, last: Vec::new() };
        self.clients.push(client);
        self.clients.len() - 1
    }

    pub(super) fn next_batch(&mut self) -> Option<(usize, Vec<(Draft, Spec)>)> {
        self.workload.next_batch(&self.options, &self.by_name)
    }

    /// The results of a client's last answer, once it has one.
    pub(crate) fn results(&self, client: usize) -> Option<&[IssueResult]> {
        self.clients
            .get(client)
            .filter(|client| client.answered)
            .map(|client| client.last.as_slice())
    }

    pub(crate) fn ask(&mut self, n: usize) {
        let ticket = Ticket(self.next_ticket);
        let Some(client) = self.clients.get_mut(n).filter(|client| !client.answered) else {
            return;
        };
        let (node, drafts) = (client.node, client.drafts.clone());
        self.tickets.insert(ticket, n);
        self.next_ticket += 1;
        let ids: Vec<ObligationId> = drafts.iter().map(|draft| draft.id.clone()).collect();
        let patience = if self.call(node, Input::Issue { ticket, drafts }) {
            self.checker.called_for(self.now, node, ids.iter());
            CLIENT_PATIENCE_MS
        } else {
            DOWN_PATIENCE_MS
        };
        self.schedule(self.now + patience, Event::Ask { client: n });
    }

    pub(super) fn answered(&mut self, node: usize, ticket: Ticket, results: &[IssueResult]) {
        let Some(n) = self.tickets.remove(&ticket) else { return };
        let again_too = self.chance.chance(self.options.reissue_permille);
        let after = self.chance.range(1, 30_000);
        let Some(client) = self.clients.get_mut(n) else { return };
        let full = results.iter().any(|result| matches!(result, Err(IssueError::Full { .. })));
        if full && client.full < FULL_MAX {
            client.full += 1;
            self.schedule(self.now + 300, Event::Ask { client: n });
            return;
        }
        for result in results {
            if let Err(error) = result
                && !matches!(error, IssueError::Full { .. } | IssueError::Superseded { .. })
                && self.options.outcomes_max > 1_000
                && !self.story
            {
                let detail = format!("a client is refused what it may issue: {error}");
                self.checker.breach("AB-1", crate::check::Class::Safety, self.now, node, detail);
            }
        }
        client.answered = true;
        client.last = results.to_vec();
        if again_too && client.again == 0 && !self.healed {
            client.again += 1;
            client.answered = false;
            self.schedule(self.now + after, Event::Ask { client: n });
        }
    }

    pub(super) fn acknowledge(&mut self, node: usize, id: ObligationId) {
        let ticket = Ticket(u64::MAX);
        if !self.call(node, Input::AckEscalation { ticket, id: id.clone() }) {
            self.schedule(self.now + 1_000, Event::Acknowledge { node, id });
        }
    }

    /// A person resolves the open item of an obligation, by what the external system says.
    pub(super) fn resolve(&mut self, node: usize, id: &ObligationId) {
        let Some(store) = self.store(node) else { return };
        let open = store.iter(Table::Reconcile).find_map(|(key, value)| {
            let item: Reconcile = serde_json::from_slice(value).ok()?;
            let wanted =
                matches!(item.kind, ReconcileKind::InDoubt | ReconcileKind::DeclineSurfaced);
            (item.obligation_id == *id && item.resolution.is_none() && wanted)
                .then(|| Some((key_num(key)?, item)))?
        });
        let Some((number, item)) = open else { return };
        let resolution = match item.kind {
            ReconcileKind::InDoubt if self.handler.happened(node, &item.agent, id) => {
                Resolution::Applied
            }
            ReconcileKind::InDoubt => Resolution::NotApplied,
            _ if self.chance.chance(500) => Resolution::ApplySafe,
            _ => Resolution::Noted,
        };
        let ticket = Ticket(u64::MAX);
        if !self.call(node, Input::Resolve { ticket, number, resolution }) {
            self.schedule(self.now + 1_000, Event::Resolve { node, id: id.clone() });
        }
    }

    /// A node asks its external system for an effect. A call for an id that has its effect, or is
    /// on its way to it, finds that out instead (the id is the idempotency key). No new effect
    /// begins inside the skew of the deadline.
    pub(super) fn decide(&mut self, n: usize, issuer: AgentId, item: &Bytes) {
        let Ok(obligation) = Obligation::decode(item) else { return };
        let Some(node) = self.nodes.get(n) else { return };
        let (life, clock, skew) = (node.life, node.clock(self.now), self.options.skew_ms);
        let id = obligation.id.clone();
        let plan = plan(&self.handler.model, self.handler.seed, &id);
        let call = self.handler.calls.entry((n, issuer.clone(), id.clone())).or_default();
        call.asked += 1;
        let asked = call.asked;
        let longest = self.handler.model.call_ms_max;
        let (takes, back) = if self.options.twin_deadline_s > 0 {
            let rng = &mut Rng::new(hash(self.options.seed, &id), asked.into());
            (rng.range(0, longest), rng.range(0, longest))
        } else {
            (self.chance.range(0, longest), self.chance.range(0, longest))
        };
        let answers = self.now + takes + back;
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

    /// Something no honest peer would send, or that came out of nowhere.
    pub(super) fn noise(&mut self, n: usize) {
        let sessions = self.sessions_of(n);
        let Some(session) = self.chance.pick(&sessions) else { return };
        let Some(peer) = self.peer_of(session) else { return };
        let Some(from) = self.nodes.get(peer).map(|node| node.id.clone()) else { return };
        let first = 1_000_000 + self.chance.below(1_000);
        let refs = vec![RefRange { first, count: 1 + self.chance.below(1 << 20) }];
        let unknown = ObligationId::new("nobody-issued-this").ok();
        match self.chance.below(7) {
            0 => {
                let (status, acked_at, reason) =
                    (AckStatus::Applied, Time::from_ms(self.now), None);
                self.input(
                    n,
                    Input::AckRuns {
                        session,
                        runs: vec![AckRun { status, acked_at, reason, refs }],
                    },
                );
            }
            1 => self.input(
                n,
                Input::Refused { session, refs, code: RefuseCode::Unauthorized, retry_after_ms: 5 },
            ),
            2 => self.inject_offers(session, first, vec![Bytes::from_static(b"\xff\x00garbage")]),
            3 => {
                // An ack from an agent that is not the target.
                let targets: Vec<usize> =
                    (0..self.nodes.len()).filter(|other| *other != peer && *other != n).collect();
                let Some(target) = self.chance.pick(&targets) else { return };
                for obligation_id in self.checker.pending_of(n, target, 3) {
                    let ack = CustodyAck {
                        obligation_id,
                        target: from.clone(),
                        status: AckStatus::Applied,
                        acked_at: Time::from_ms(self.now),
                        reason: None,
                    };
                    self.input(n, Input::Acks { peer: from.clone(), acks: vec![ack] });
                }
            }
            4 => self.input(
                n,
                Input::Query { session, query_ref: 1, ids: unknown.into_iter().collect() },
            ),
            5 => self.input(n, Input::Probe { session, nonce: first, id: unknown }),
            _ => {
                let acks = unknown.into_iter().map(|obligation_id| CustodyAck {
                    obligation_id,
                    target: from.clone(),
                    status: AckStatus::Applied,
                    acked_at: Time::from_ms(self.now),
                    reason: None,
                });
                self.input(n, Input::Acks { peer: from.clone(), acks: acks.collect() });
            }
        }
    }
}
