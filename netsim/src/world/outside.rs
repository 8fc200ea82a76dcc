//! The people around the nodes: clients that issue, principals that decide.

use super::{Event, World};
use crate::check::Spec;
use ::link::Rng;
use proto::custodian::{Draft, IssueError};
use proto::custody::{Input, IssueResult};
use proto::event::Event as CoreEvent;
use proto::id::ObligationId;
use proto::record::{Reconcile, ReconcileKind, Resolution, key_num};
use proto::step::Ticket;
use proto::store::Table;

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
    /// Number of the call.
    number: u64,
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

impl World {
    /// A client that will issue `drafts` at `node`.
    pub(crate) fn add_client(
        &mut self,
        node: usize,
        number: u64,
        drafts: Vec<(Draft, Spec)>,
    ) -> usize {
        let mut asked = Vec::with_capacity(drafts.len());
        for (draft, spec) in drafts {
            self.checker.asked(spec);
            asked.push(draft);
        }
        let client = Client {
            node,
            number,
            drafts: asked,
            answered: false,
            full: 0,
            again: 0,
            last: Vec::new(),
        };
        self.clients.push(client);
        self.clients.len() - 1
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
        let Some(client) = self.clients.get_mut(n) else { return };
        let mut rng = Rng::new(self.options.seed, 3 << 40 | client.number);
        let after = rng.range(1, 30_000);
        let again_too = rng.chance(self.options.reissue_permille);
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
            _ if self.told_of(id, 3).chance(500) => Resolution::ApplySafe,
            _ => Resolution::Noted,
        };
        let ticket = Ticket(u64::MAX);
        if !self.call(node, Input::Resolve { ticket, number, resolution }) {
            self.schedule(self.now + 1_000, Event::Resolve { node, id: id.clone() });
        }
    }

    /// What the principal hears, and does about it.
    pub(super) fn told(&mut self, n: usize, event: CoreEvent) {
        self.note(Some(n), || {
            format!("tells {}", serde_json::to_string(&event).unwrap_or_default())
        });
        match &event {
            CoreEvent::Escalated(item) => {
                let id = item.obligation_id.clone();
                let mut rng = self.told_of(&id, 1);
                if rng.chance(300) {
                    let at = self.now + rng.range(1, 5_000);
                    self.schedule(at, Event::Acknowledge { node: n, id });
                }
            }
            CoreEvent::Reconcile(item)
                if matches!(item.kind, ReconcileKind::InDoubt | ReconcileKind::DeclineSurfaced) =>
            {
                let id = item.obligation_id.clone();
                let at = self.now + self.told_of(&id, 2).range(1, 20_000);
                self.schedule(at, Event::Resolve { node: n, id });
            }
            _ => {}
        }
        if self.story {
            self.events.push_back((self.now, n, event));
        }
    }

    /// Randomness of what a person does about one obligation: another obligation does not shift it.
    fn told_of(&self, id: &ObligationId, purpose: u64) -> Rng {
        Rng::new(super::handler::id_hash(self.options.seed, id), purpose)
    }
}
