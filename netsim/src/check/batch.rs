//! One commit, read: its records by what they say.

use super::entries::Hashed;
use bytes::Bytes;
use proto::id::{AgentId, ObligationId};
use proto::obligation::Obligation;
use proto::record::{
    Attempt, Cell, CellValue, Escalation, Ledger, Outcome, Pending, Reconcile, ReconcileKind,
    Resolution, Role, Terminal, key_num, split_cell_key, split_issued_key,
};
use proto::store::{Table, Write};
use std::collections::BTreeMap;

/// One commit, read.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) pending: Vec<(u64, Obligation)>,
    pub(super) unpending: Vec<u64>,
    pub(super) attempts: Vec<(u64, Attempt)>,
    pub(super) outcomes: BTreeMap<ObligationId, Outcome>,
    pub(super) outcomes_gone: Vec<ObligationId>,
    /// By id, with the number they are filed under.
    pub(super) escalations: BTreeMap<ObligationId, (u64, Escalation)>,
    pub(super) escalations_twice: Vec<ObligationId>,
    pub(super) escalations_gone: Vec<u64>,
    pub(super) cells: Vec<(Bytes, Role, AgentId, Cell)>,
    /// Ids with a withheld principal cell.
    pub(super) withheld: Hashed<ObligationId, ()>,
    /// `(issuer, id)` with a receiver cell.
    pub(super) effects: Hashed<(AgentId, ObligationId), ()>,
    pub(super) ledger: BTreeMap<(AgentId, ObligationId), Ledger>,
    pub(super) ledger_gone: Vec<(AgentId, ObligationId)>,
    pub(super) intents: Vec<Bytes>,
    pub(super) intents_gone: Vec<Bytes>,
    pub(super) reconcile: Vec<Reconcile>,
}

impl Batch {
    pub(super) fn read(writes: &[Write]) -> Result<Self, String> {
        let mut batch = Self::default();
        for write in writes {
            batch.take(write).map_err(|why| format!("{} record: {why}", write.table.name()))?;
        }
        Ok(batch)
    }

    fn take(&mut self, write: &Write) -> Result<(), String> {
        let num = || key_num(&write.key).ok_or_else(|| "bad number".to_owned());
        let issued = || split_issued_key(&write.key).ok_or_else(|| "bad key".to_owned());
        fn text(error: impl std::fmt::Display) -> String {
            error.to_string()
        }
        match (write.table, &write.value) {
            (Table::Pending, Some(value)) => {
                let pending = Pending::decode(value).map_err(text)?;
                self.pending.push((num()?, Obligation::decode(&pending.obligation).map_err(text)?));
            }
            (Table::Pending, None) => self.unpending.push(num()?),
            (Table::Attempt, Some(value)) => {
                self.attempts.push((num()?, Attempt::decode(value).map_err(text)?));
            }
            (Table::Outcome, Some(value)) => {
                let id = std::str::from_utf8(&write.key).map_err(text)?;
                let id = ObligationId::new(id).map_err(text)?;
                self.outcomes.insert(id, Outcome::decode(value).map_err(text)?);
            }
            (Table::Outcome, None) => {
                let id = std::str::from_utf8(&write.key).map_err(text)?;
                self.outcomes_gone.push(ObligationId::new(id).map_err(text)?);
            }
            (Table::Escalation, Some(value)) => {
                let item: Escalation = serde_json::from_slice(value).map_err(text)?;
                let (id, num) = (item.obligation_id.clone(), num()?);
                if self.escalations.insert(id.clone(), (num, item)).is_some_and(|(n, _)| n != num) {
                    self.escalations_twice.push(id);
                }
            }
            (Table::Escalation, None) => {
                let num = num()?;
                self.escalations.retain(|_, (filed, _)| *filed != num);
                self.escalations_gone.push(num);
            }
            (Table::Cell, Some(value)) => {
                let (role, agent, ..) = split_cell_key(&write.key).ok_or("bad key")?;
                let cell = Cell::decode(value).map_err(text)?;
                if role == Role::Receiver {
                    self.effects.insert((agent.clone(), cell.obligation_id.clone()), ());
                } else if cell.value == (CellValue::Authorization { granted: false }) {
                    self.withheld.insert(cell.obligation_id.clone(), ());
                }
                self.cells.push((write.key.clone(), role, agent, cell));
            }
            (Table::Ledger, Some(value)) => {
                self.ledger.insert(issued()?, Ledger::decode(value).map_err(text)?);
            }
            (Table::Ledger, None) => self.ledger_gone.push(issued()?),
            (Table::Intent, Some(_)) => self.intents.push(write.key.clone()),
            (Table::Intent, None) => self.intents_gone.push(write.key.clone()),
            (Table::Reconcile, Some(value)) => {
                self.reconcile.push(serde_json::from_slice(value).map_err(text)?);
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn files(&self, kind: ReconcileKind, id: &ObligationId) -> bool {
        self.reconcile.iter().any(|item| item.kind == kind && item.obligation_id == *id)
    }

    pub(super) fn ends_safe(&self, id: &ObligationId) -> bool {
        self.outcomes.get(id).is_some_and(|outcome| outcome.terminal != Terminal::Applied)
    }

    pub(super) fn resolves_safe(&self, id: &ObligationId) -> bool {
        let by = Some(Resolution::ApplySafe);
        self.reconcile.iter().any(|item| item.obligation_id == *id && item.resolution == by)
    }
}
