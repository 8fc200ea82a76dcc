//! Rules of governed state: the guards, and one effect for one obligation.

use super::batch::Batch;
use super::{Checker, Class};
use proto::ack::AckStatus;
use proto::polarity::Change;
use proto::record::{Cell, CellValue, ReconcileKind, Role};
use proto::time::Time;
use proto::weight::Weight;

fn weight_of(cell: Option<&Cell>, initial: Weight) -> Weight {
    match cell.map(|cell| cell.value) {
        Some(CellValue::Weight(weight)) => weight,
        _ => initial,
    }
}

/// Whether `next` falls behind `before` in the order of sequences.
fn regresses(before: Option<&Cell>, next: &Cell) -> bool {
    before.is_some_and(|before| {
        next.sequence < before.sequence
            || (next.sequence.is_some()
                && next.sequence == before.sequence
                && next.obligation_id != before.obligation_id)
    })
}

impl Checker {
    pub(super) fn cell_rules(
        &mut self,
        node: usize,
        clock: Time,
        batch: &Batch,
        broken: &mut Vec<(&'static str, Class, String)>,
    ) {
        let (weights, skew_ms) = (self.bounds.weights, self.bounds.skew_ms);
        let mut breach = |rule, detail| broken.push((rule, Class::Safety, detail));
        for (key, role, agent, cell) in &batch.cells {
            let id = &cell.obligation_id;
            let Some(view) = self.nodes.get_mut(node) else { return };
            let before = view.cells.insert(key.clone(), cell.clone());
            let starts = view.starts;
            let issuer = if *role == Role::Principal {
                Some(node)
            } else {
                self.by_name.get(agent).copied()
            };
            let entry = issuer.and_then(|n| self.nodes.get_mut(n)?.entries.get_mut(id.as_str()));
            let Some(entry) = entry else {
                breach("AB-3", format!("state set by {id} of {agent}, which nobody asked for"));
                continue;
            };
            let guard = if *role == Role::Principal { "SG-1" } else { "SG-2" };
            match (cell.value, entry.spec.change) {
                (
                    CellValue::Authorization { granted },
                    Change::Authorization { granted: wanted },
                ) => {
                    if regresses(before.as_ref(), cell) {
                        breach(
                            guard,
                            format!("{id} with sequence {:?} overwrote {before:?}", cell.sequence),
                        );
                    }
                    if granted != wanted {
                        breach(
                            guard,
                            format!("{id} sets granted to {granted}, it asks for {wanted}"),
                        );
                    }
                }
                (CellValue::Weight(weight), Change::Weight { delta }) => {
                    let moved = weights.moved(weight_of(before.as_ref(), weights.initial), delta);
                    if weight != moved {
                        breach("AB-3", format!("{id} moved a weight to {weight}, not {moved}"));
                    }
                    if *role == Role::Principal {
                        entry.safe_weights += 1;
                        if entry.safe_weights > entry.lives || !entry.spec.admissible {
                            breach(
                                "AB-4",
                                format!(
                                    "safe(O) of {id} lowered a weight {} times",
                                    entry.safe_weights
                                ),
                            );
                        }
                        if !batch.ends_safe(id) && !batch.resolves_safe(id) {
                            breach(
                                "AB-4",
                                format!("{id} lowered a weight without having ended so"),
                            );
                        }
                    }
                }
                (value, change) => {
                    breach(guard, format!("{id} asks for {change:?} and set {value:?}"))
                }
            }
            if let Some(before) = &before
                && std::mem::discriminant(&before.value) != std::mem::discriminant(&cell.value)
            {
                breach(
                    guard,
                    format!("{id} replaced {before:?}, state of another sort, under one key"),
                );
            }
            if *role == Role::Principal {
                continue;
            }
            entry.effects += 1;
            if entry.spec.target != node {
                breach("AB-3", format!("{id} was applied at a node it is not for"));
            }
            if entry.spec.admissible {
                if entry.effects > entry.lives {
                    breach("AB-3", format!("{id} was applied {} times", entry.effects));
                }
                let noted = batch.ledger.get(&(agent.clone(), id.clone()));
                if noted.is_none_or(|ledger| ledger.status != AckStatus::Applied) {
                    breach(
                        "LE-1",
                        format!("{id} was applied without a ledger entry in the same commit"),
                    );
                }
                let late =
                    entry.deadline_at.is_none_or(|deadline| clock.after_ms(skew_ms) >= deadline);
                if late && !entry.spec.external {
                    breach(
                        "DL-1",
                        format!("{id} was applied inside the skew of its deadline or after"),
                    );
                }
                let past = entry.deadline_at.is_none_or(|deadline| clock >= deadline);
                if past
                    && entry.spec.external
                    && !batch.files(ReconcileKind::AppliedPastDeadline, id)
                    && !batch.files(ReconcileKind::InDoubt, id)
                {
                    breach(
                        "DL-1",
                        format!("{id} was applied after its deadline, and nobody is told"),
                    );
                }
            } else if entry.effects > starts + entry.lives - 1 {
                breach("AB-3", format!("best-effort {id} was applied {} times", entry.effects));
            }
        }
    }
}
