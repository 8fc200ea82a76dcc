//! What the checkers note beside the rules, for the measures of a run.

use super::batch::Batch;
use super::{Checker, Entry};
use proto::ack::AckStatus;
use proto::id::ObligationId;
use proto::record::{ReconcileKind, Terminal};
use proto::time::Time;

/// Times of one obligation. World time in milliseconds, unless said otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// When a client asked a live node for it, first.
    pub(crate) asked_at: Option<u64>,
    /// When its effect happened, first.
    pub(crate) effect_at: Option<u64>,
    /// When its end was decided, by the custodian's clock.
    pub(crate) outcome_at: Option<Time>,
    /// How late it escalated for its deadline, while the custodian was up.
    pub(crate) late_ms: Option<u64>,
    /// Whether its receiver was up when it ended.
    pub(crate) receiver_up: bool,
    /// When a late `applied` of it was filed.
    pub(crate) cleared_at: Option<u64>,
}

impl Checker {
    /// A client's call for `ids` reached `node`, which is up.
    pub(crate) fn called_for<'a>(
        &mut self,
        at: u64,
        node: usize,
        ids: impl Iterator<Item = &'a ObligationId>,
    ) {
        let Some(view) = self.nodes.get_mut(node) else { return };
        for id in ids {
            if let Some(entry) = view.entries.get_mut(id.as_str()) {
                entry.seen.asked_at.get_or_insert(at);
            }
        }
    }

    /// Notes the times of what one commit of `node` made durable.
    pub(super) fn observe(&mut self, at: u64, node: usize, batch: &Batch) {
        for ((issuer, id), ledger) in &batch.ledger {
            let issuer = self.by_name.get(issuer).copied();
            if let Some(entry) = issuer.and_then(|issuer| self.entry(issuer, id))
                && ledger.status == AckStatus::Applied
            {
                entry.seen.effect_at.get_or_insert(at);
            }
        }
        for (id, outcome) in &batch.outcomes {
            let target = self.entry_of(node, id.as_str()).map(|entry| entry.spec.target);
            let receiver_up =
                target.and_then(|target| self.nodes.get(target)).is_some_and(|view| !view.down);
            let up_since = self.nodes.get(node).map_or(0, |view| view.up_since);
            let Some(entry) = self.entry(node, id).filter(|entry| entry.ended_at == at) else {
                continue;
            };
            entry.seen.outcome_at = Some(outcome.at);
            entry.seen.receiver_up = receiver_up;
            let due = outcome.deadline_at.as_ms().max(up_since);
            let overdue =
                outcome.terminal == Terminal::Escalated && outcome.at >= outcome.deadline_at;
            entry.seen.late_ms = overdue.then(|| at.saturating_sub(due));
        }
        for item in &batch.reconcile {
            if item.kind == ReconcileKind::LateApplied
                && let Some(entry) = self.entry(node, &item.obligation_id)
            {
                entry.seen.cleared_at.get_or_insert(at);
            }
        }
    }
}

impl Entry {
    /// How often it had its effect, ours or an external one, beyond what its lives allow.
    pub(crate) fn times_applied(&self) -> u32 {
        self.effects.max(self.calls).min(1)
            + self.effects.max(self.calls).saturating_sub(self.lives)
    }
}
