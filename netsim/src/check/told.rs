//! TS-1, the other half: an `applied` that comes after the escalation is not only filed at most once,
//! but once.

use super::{Checker, Entry};
use proto::ack::{AckRun, AckStatus, CustodyAck};
use proto::record::Terminal;
use proto::step::SessionId;

impl Entry {
    /// Whether an `applied` that comes now must be filed.
    fn must_be_filed(&self) -> bool {
        self.terminal == Some(Terminal::Escalated) && self.late_items == 0 && !self.forgotten
    }
}

impl Checker {
    /// Acks of offers reached `node`, made by `peer` on its end of the session, `there`.
    pub fn acked(&mut self, at: u64, node: usize, peer: usize, there: SessionId, runs: &[AckRun]) {
        let applied = runs.iter().filter(|run| run.status == AckStatus::Applied);
        for reference in applied.flat_map(|run| &run.refs).flat_map(|range| range.iter()) {
            let offered =
                self.nodes.get(peer).and_then(|view| view.offered.get(&(there, reference)));
            let Some(Some((issuer, number))) = offered.copied() else { continue };
            let Some(view) = self.nodes.get_mut(node).filter(|_| issuer == node) else { continue };
            // The ack of an offer that was deferred before may no longer be known for one.
            let late = view
                .entries
                .numbered(number)
                .filter(|entry| entry.must_be_filed() && !entry.flies_unseen);
            if let Some(entry) = late {
                view.unfiled.insert(entry.spec.id.clone(), at);
            }
        }
    }

    /// Acks by id reached `node`, made by `peer`.
    pub fn acked_by_id(&mut self, at: u64, node: usize, peer: usize, acks: &[CustodyAck]) {
        let Some(view) = self.nodes.get_mut(node) else { return };
        for ack in acks.iter().filter(|ack| ack.status == AckStatus::Applied) {
            let late = view
                .entries
                .get(ack.obligation_id.as_str())
                .filter(|entry| entry.must_be_filed() && entry.spec.target == peer);
            if late.is_some() {
                view.unfiled.insert(ack.obligation_id.clone(), at);
            }
        }
    }
}
