//! Whoever is not known to have applied an obligation leaves its principal protected: `safe(O)` is
//! applied here, or a newer decision stands (AB-4, DC-1, SG-1).

use super::NodeView;
use super::batch::Batch;
use proto::id::ObligationId;
use proto::polarity::Change;
use proto::record::{Cell, Outcome, ReconcileKind, Role, Terminal, cell_key};

/// What is wrong with the ending of `id`, if its principal is left unprotected.
pub(super) fn unprotected(
    view: &NodeView,
    batch: &Batch,
    id: &ObligationId,
    outcome: &Outcome,
) -> Option<(&'static str, String)> {
    let spec = &view.entries.get(id.as_str())?.spec;
    let applied = |(_, role, _, cell): &(_, Role, _, Cell)| {
        *role == Role::Principal && cell.obligation_id == *id
    };
    if batch.cells.iter().any(applied) {
        return None;
    }
    let newer = |cell: &Cell| {
        cell.sequence > outcome.sequence
            || (cell.sequence.is_some()
                && cell.sequence == outcome.sequence
                && cell.obligation_id != *id)
    };
    if matches!(spec.change, Change::Authorization { .. }) {
        let at = cell_key(Role::Principal, &outcome.target, &outcome.kind, &spec.key);
        let before = view.cells.get(&at).is_some_and(newer);
        if before || batch.cells.iter().any(|(key, _, _, cell)| *key == at && newer(cell)) {
            return None;
        }
    }
    match outcome.terminal {
        Terminal::Escalated => {
            Some(("AB-4", format!("{id} escalated, and safe(O) was not applied here")))
        }
        Terminal::Declined if !batch.files(ReconcileKind::DeclineSurfaced, id) => Some((
            "DC-1",
            format!("{id} is declined, safe(O) was not applied, and nobody is asked"),
        )),
        _ => None,
    }
}
