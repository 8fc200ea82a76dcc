//! Grants that went out best-effort. They are under no custody, and still must not decide twice: a
//! call for one that is repeated after a revocation would grant anew what was withdrawn meanwhile.

use super::Custodian;
use super::issue::IssueError;
use crate::id::ObligationId;
use crate::obligation::Obligation;
use crate::record::{Cell, CellValue};
use std::collections::{BTreeMap, VecDeque};

/// The last of them, by id. Not durable; the state of a key names the last that decided it, too.
#[derive(Clone, Debug, Default)]
pub(super) struct Decided {
    by_id: BTreeMap<ObligationId, Decision>,
    order: VecDeque<ObligationId>,
}

#[derive(Clone, Copy, Debug)]
struct Decision {
    digest: u64,
    sequence: Option<u64>,
}

impl Decided {
    /// Oldest first.
    pub(super) fn ids(&self) -> impl Iterator<Item = &ObligationId> {
        self.order.iter()
    }
}

impl Custodian {
    /// The sequence that a grant had when it was issued before, if it was; given the state of its
    /// key, whose value it would set to `granted`.
    pub(super) fn decided(
        &self,
        obligation: &Obligation,
        cell: Option<&Cell>,
        granted: bool,
    ) -> Option<Result<Option<u64>, IssueError>> {
        let id = &obligation.id;
        let taken = || Err(IssueError::IdTaken { id: id.clone() });
        // A draft without a sequence got one at its first issue.
        let same = |sequence: Option<u64>| {
            let equal = obligation.sequence.is_none() || obligation.sequence == sequence;
            if equal { Ok(sequence) } else { taken() }
        };
        if let Some(decision) = self.decided.by_id.get(id) {
            let equal = decision.digest == obligation.digest();
            return Some(if equal { same(decision.sequence) } else { taken() });
        }
        let last = cell.filter(|cell| cell.num == 0 && cell.obligation_id == *id)?;
        let equal = last.value == CellValue::Authorization { granted };
        Some(if equal { same(last.sequence) } else { taken() })
    }

    /// Remembers a grant, and no more than `window` of them.
    pub(super) fn remember_decision(&mut self, obligation: &Obligation, window: usize) {
        let id = &obligation.id;
        let (digest, sequence) = (obligation.digest(), obligation.sequence);
        let decided = &mut self.decided;
        if decided.by_id.insert(id.clone(), Decision { digest, sequence }).is_none() {
            decided.order.push_back(id.clone());
        }
        if decided.order.len() > window
            && let Some(oldest) = decided.order.pop_front()
        {
            decided.by_id.remove(&oldest);
        }
    }
}
