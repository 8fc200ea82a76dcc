//! Rules of the end of a run: everything ended, and nothing is left behind.

use super::{Checker, Class};
use crate::disk::SimStore;
use proto::record::{Escalation, Intent, IntentState, Reconcile, Terminal, num_key};
use proto::store::Table;

/// How long a node may take to file what it is told too late, in milliseconds.
const FILE_MS_MAX: u64 = 60_000;

/// A node when a run is over.
#[derive(Clone, Copy, Debug)]
pub struct LastLook<'a> {
    /// Transfers it has pending in memory.
    pub pending: usize,
    /// Writes it has staged in memory, as far as it tells.
    pub staged: usize,
    /// Its store.
    pub store: &'a SimStore,
    /// Whether everything that may be forgotten was given the time for it.
    pub forgotten: bool,
}

impl Checker {
    /// The run has healed and had its time at world time `at`: what must have happened, did.
    pub fn finish(&mut self, at: u64, looks: &[LastLook<'_>]) {
        let mut broken = Vec::new();
        for (node, view) in self.nodes.iter().enumerate() {
            for entry in view.entries.values() {
                let id = &entry.spec.id;
                let mut breach = |rule, class, detail| broken.push((rule, class, node, detail));
                if entry.pending.is_some() {
                    breach("deliver-or-report", Class::Liveness, format!("{id} is still pending"));
                }
                if entry.terminal == Some(Terminal::Escalated) && entry.escalations != 1 {
                    breach(
                        "AB-4",
                        Class::Safety,
                        format!("{id} escalated with {} escalations", entry.escalations),
                    );
                }
                let allowed = entry.max_retries.saturating_add(1).saturating_add(entry.repeats);
                if entry.offers > allowed {
                    breach(
                        "AB-2",
                        Class::Safety,
                        format!("{id} was offered {} times, {allowed} allowed", entry.offers),
                    );
                }
                if let Some(healed) = self.healed_at
                    && self.bounds.prompt
                    && entry.custody()
                    && !entry.spec.external
                    && let Some(deadline) = entry.deadline_at
                {
                    let from = healed.max(entry.issued_at);
                    let room = deadline.as_ms().saturating_sub(from);
                    let heard_late = entry.ended_at > from + self.bounds.settle_ms_max;
                    let unheard = heard_late || entry.terminal == Some(Terminal::Escalated);
                    if entry.ended_at > from
                        && unheard
                        && room > self.bounds.settle_ms_max + self.bounds.skew_ms
                    {
                        let (ended, after) = (entry.terminal, entry.ended_at - from);
                        breach(
                            "converges",
                            Class::Liveness,
                            format!(
                                "{id} ended {ended:?} {after} ms after all was well, with {room} ms left"
                            ),
                        );
                    }
                }
            }
        }
        let forget_ms = self.bounds.retention_ms + 120_000;
        for (node, look) in looks.iter().enumerate() {
            broken.extend(
                left_behind(look, at, forget_ms)
                    .into_iter()
                    .map(|detail| ("BD-1", Class::Safety, node, detail)),
            );
            let unfiled = self.nodes.get(node).into_iter().flat_map(|view| &view.unfiled);
            for (id, told_at) in unfiled.filter(|(_, told_at)| **told_at + FILE_MS_MAX < at) {
                let ms = at - told_at;
                let detail = format!("{id} was told applied {ms} ms ago, escalated, and not filed");
                broken.push(("TS-1", Class::Liveness, node, detail));
            }
            let inbox = self.nodes.get(node).into_iter().flat_map(|view| &view.inbox);
            for (num, id) in inbox {
                if look.store.value(Table::Escalation, &num_key(*num)).is_none() {
                    let detail = format!("the escalation of {id} is no longer in the inbox");
                    broken.push(("AB-4", Class::Safety, node, detail));
                }
            }
            // An escalation nobody has seen keeps its outcome.
            let kept =
                look.store.len(Table::Outcome).saturating_sub(look.store.len(Table::Escalation))
                    as u64;
            if look.forgotten && kept > self.bounds.outcomes_max + self.bounds.outcomes_slack {
                let detail =
                    format!("{kept} outcomes are kept, {} allowed", self.bounds.outcomes_max);
                broken.push(("BD-1", Class::Safety, node, detail));
            }
        }
        for (rule, class, node, detail) in broken {
            self.breach(rule, class, at, node, detail);
        }
    }
}

fn left_behind(look: &LastLook<'_>, now: u64, forget_ms: u64) -> Vec<String> {
    let LastLook { pending, staged, store, forgotten } = look;
    let mut left = Vec::new();
    if *pending > 0 {
        left.push(format!("{pending} transfers are pending in memory"));
    }
    for table in [Table::Pending, Table::Attempt] {
        if !store.is_empty(table) {
            left.push(format!("{} records are left in table {}", store.len(table), table.name()));
        }
    }
    if *forgotten {
        for table in [Table::Ledger, Table::LedgerExpiry] {
            if !store.is_empty(table) {
                left.push(format!(
                    "{} records are left in table {}",
                    store.len(table),
                    table.name()
                ));
            }
        }
        let asked = |id: &proto::id::ObligationId| {
            store.iter(Table::Reconcile).any(|(_, value)| {
                serde_json::from_slice::<Reconcile>(value)
                    .is_ok_and(|item| item.obligation_id == *id)
            })
        };
        for (_, value) in store.iter(Table::Escalation) {
            let item: Result<Escalation, _> = serde_json::from_slice(value);
            if let Ok(item) = item
                && item.acknowledged_at_ms.is_some_and(|at| at + forget_ms < now)
            {
                left.push(format!(
                    "the escalation of {} was acknowledged long ago",
                    item.obligation_id
                ));
            }
        }
        for (key, value) in store.iter(Table::Intent) {
            let waits =
                Intent::decode(value).is_ok_and(|intent| intent.state == IntentState::InDoubt);
            let named = proto::record::split_issued_key(key);
            if !(waits && named.is_some_and(|(_, id)| asked(&id))) {
                left.push("an intent is left of an obligation long past its deadline".to_owned());
            }
        }
    }
    if *staged > 0 {
        left.push(format!("{staged} writes are staged though all commits are done"));
    }
    left
}
