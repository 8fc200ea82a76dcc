//! Rules of what leaves a node: nothing is visible before it is durable (PS-1).

use super::{Checker, Class, Entry};
use proto::ack::AckStatus;
use proto::event::Event;
use proto::id::{AgentId, ObligationId};
use proto::obligation::Obligation;
use proto::record::{Terminal, issued_key};
use proto::step::{Output, SessionId};

impl Checker {
    /// `output` left `node` at world time `at`.
    pub fn released(&mut self, at: u64, node: usize, output: &Output) {
        let broken = match output {
            Output::Offers { session, items, .. } => {
                let broken = self.offers_out(node, *session, items);
                self.window_rule(at, node, *session);
                broken
            }
            Output::AckRuns { session, runs } => {
                let mut broken = Vec::new();
                let Some(view) = self.nodes.get(node) else { return };
                for run in runs.iter().filter(|run| run.status.is_final()) {
                    for reference in run.refs.iter().flat_map(|range| range.iter()) {
                        match view.offered.get(&(*session, reference)) {
                            Some(Some((issuer, number))) => {
                                let id_conflict = run
                                    .reason
                                    .as_ref()
                                    .is_some_and(|r| r.as_str() == "id_conflict");
                                let entry = self.nodes.get(*issuer);
                                let entry = entry.and_then(|view| view.entries.numbered(*number));
                                broken.extend(ack_out(entry, run.status, id_conflict));
                            }
                            _ => broken.push((
                                "AB-3",
                                format!(
                                    "{} for ref {reference}, which offered nothing",
                                    run.status
                                ),
                            )),
                        }
                    }
                }
                broken
            }
            Output::Acks { peer, acks } => {
                let issuer = self.by_name.get(peer).copied().unwrap_or(usize::MAX);
                let finals = acks.iter().filter(|ack| ack.status.is_final());
                finals
                    .filter_map(|ack| {
                        let entry = self.entry_of(issuer, ack.obligation_id.as_str());
                        ack_out(entry, ack.status, false)
                    })
                    .collect()
            }
            Output::Answer { session: _, acks, .. } => acks
                .iter()
                .filter(|ack| ack.status.is_final())
                .filter(|ack| {
                    !self.nodes.iter().any(|view| {
                        view.entries.get(ack.obligation_id.as_str()).is_some_and(|entry| {
                            entry.spec.target == node && entry.ledger == Some(ack.status)
                        })
                    })
                })
                .map(|ack| {
                    (
                        "PS-1",
                        format!(
                            "answered {} for {}, not in the ledger",
                            ack.status, ack.obligation_id
                        ),
                    )
                })
                .collect(),
            Output::BestEffort { items, .. } => self.best_effort_out(node, items),
            Output::Decide { issuer, obligation, .. } => self.decide_out(node, issuer, obligation),
            Output::Issued { results, .. } => {
                let view = self.nodes.get(node);
                let issued = results.iter().filter_map(|result| result.as_ref().ok());
                let lost = issued.filter(|issued| {
                    let entry =
                        view.and_then(|view| view.entries.get(issued.obligation_id.as_str()));
                    entry.is_none_or(|entry| {
                        issued.custody != entry.spec.admissible || issued.custody != entry.custody()
                    })
                });
                lost.map(|issued| {
                    (
                        "AB-1",
                        format!(
                            "{} was answered, and is not durable as said: {issued:?}",
                            issued.obligation_id
                        ),
                    )
                })
                .collect()
            }
            Output::Event(Event::Terminal { obligation_id, outcome, .. }) => {
                self.ended(node, obligation_id, *outcome)
            }
            Output::Event(Event::Received { issuer, obligation_id, status, .. })
                if status.is_final() =>
            {
                let issuer = self.by_name.get(issuer).copied().unwrap_or(usize::MAX);
                let entry = self.entry_of(issuer, obligation_id.as_str());
                let wrong = entry.is_some_and(|entry| entry.ledger != Some(*status));
                let told = || format!("{obligation_id} is told as {status}, not in the ledger");
                wrong.then(|| ("PS-1", told())).into_iter().collect()
            }
            Output::Event(Event::Escalated(item)) => {
                self.ended(node, &item.obligation_id, Terminal::Escalated)
            }
            _ => Vec::new(),
        };
        for (rule, detail) in broken {
            self.breach(rule, Class::Safety, at, node, detail);
        }
    }

    /// A node tells what a receiver attested, before its own commit: it rests on the receiver's
    /// disk.
    pub fn attested(&mut self, at: u64, node: usize, event: &Event) {
        let Event::Attested { obligation_id: id, .. } = event else { return };
        let ledger = self.entry_of(node, id.as_str()).and_then(Entry::ledger);
        if ledger != Some(AckStatus::Applied) {
            let detail = format!("{id} is told as attested, its receiver's ledger says {ledger:?}");
            self.breach("PS-1", Class::Safety, at, node, detail);
        }
    }

    fn ended(&self, node: usize, id: &ObligationId, told: Terminal) -> Vec<(&'static str, String)> {
        let durable = self.nodes.get(node).and_then(|view| view.entries.get(id.as_str())?.terminal);
        if durable == Some(told) {
            return Vec::new();
        }
        vec![("PS-1", format!("{id} is told to have ended {told:?}, durable is {durable:?}"))]
    }

    fn offers_out(
        &mut self,
        node: usize,
        session: SessionId,
        items: &[bytes::Bytes],
    ) -> Vec<(&'static str, String)> {
        let mut broken = Vec::new();
        let Some(view) = self.nodes.get_mut(node) else { return broken };
        for item in items {
            let Some(id) = Obligation::id_of(item) else {
                broken.push(("WR-1", "an offer that does not decode".to_owned()));
                continue;
            };
            match view.entries.get_mut(id) {
                Some(entry) if entry.custody() => {
                    entry.offers += 1;
                    entry.takes_off(&mut view.flights, view.commits, session, item.len());
                }
                _ => broken.push(("PS-1", format!("{id} was offered before it was durable"))),
            }
        }
        broken
    }

    fn best_effort_out(&self, node: usize, items: &[bytes::Bytes]) -> Vec<(&'static str, String)> {
        let named = items.iter().filter_map(|item| Obligation::id_of(item));
        let wrong = named.filter(|id| {
            let entry = self.nodes.get(node).and_then(|view| view.entries.get(id));
            entry.is_none_or(|entry| entry.spec.admissible)
        });
        wrong.map(|id| ("AC-1", format!("{id} went best-effort"))).collect()
    }

    fn decide_out(
        &self,
        node: usize,
        issuer: &AgentId,
        item: &bytes::Bytes,
    ) -> Vec<(&'static str, String)> {
        let Ok(obligation) = Obligation::decode(item) else {
            return vec![("WR-1", "a decision asked on what does not decode".to_owned())];
        };
        let key = issued_key(issuer, &obligation.id);
        if self.nodes.get(node).is_some_and(|view| view.intents.contains_key(&key)) {
            return Vec::new();
        }
        vec![(
            "PS-1",
            format!("the handler is asked for {} before the intent is durable", obligation.id),
        )]
    }
}

/// An `applied` needs the ledger; a decline may come without (expired, superseded), but not against
/// what the ledger has not forgotten.
fn ack_out(
    entry: Option<&Entry>,
    status: AckStatus,
    id_conflict: bool,
) -> Option<(&'static str, String)> {
    let ledger = entry.and_then(Entry::ledger);
    let wrong = match status {
        AckStatus::Applied => ledger != Some(AckStatus::Applied),
        _ => {
            ledger == Some(AckStatus::Applied)
                && !id_conflict
                && entry.is_some_and(|entry| !entry.ledger_gone)
        }
    };
    wrong.then(|| {
        let id = entry.map_or("an unknown id", |entry| entry.spec.id.as_str());
        ("PS-1", format!("{status} for {id} left, the durable ledger says {ledger:?}"))
    })
}
