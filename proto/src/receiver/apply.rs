//! Built-in effects: the state under a governed key changes in the commit of its ledger entry.

use crate::id::AgentId;
use crate::obligation::Obligation;
use crate::polarity::{Change, Judgement};
use crate::record::{Cell, CellValue, Role, cell_key};
use crate::settings::Settings;
use crate::step::Ctx;
use crate::store::{ReadError, Table};

fn cell(
    ctx: &mut Ctx<'_>,
    principal: &AgentId,
    obligation: &Obligation,
    judged: &Judgement,
) -> Result<Option<Cell>, ReadError> {
    match ctx.cell(&cell_key(Role::Receiver, principal, &obligation.kind, &judged.key))? {
        Some(bytes) => {
            Cell::decode(&bytes).map(Some).map_err(|error| ReadError::damaged(Table::Cell, error))
        }
        None => Ok(None),
    }
}

/// SG-2: whether a newer obligation of the same governed key was applied before this one.
///
/// Without a sequence there is nothing to compare: a restriction is applied (the safe direction),
/// a grant never overrides state that has one.
//= SG-2
pub(super) fn superseded(
    ctx: &mut Ctx<'_>,
    principal: &AgentId,
    obligation: &Obligation,
    judged: &Judgement,
) -> Result<bool, ReadError> {
    #[cfg(feature = "mutants")]
    if ctx.is(crate::mutant::Mutant::IgnoresGuardThere) {
        return Ok(false);
    }
    let Change::Authorization { granted } = judged.change else { return Ok(false) };
    let Some(cell) = cell(ctx, principal, obligation, judged)? else { return Ok(false) };
    Ok(match (obligation.sequence, cell.sequence) {
        (Some(given), Some(latest)) => given <= latest && cell.obligation_id != obligation.id,
        (None, Some(_)) => granted,
        (_, None) => false,
    })
}

/// Applies the change, behind the next sync when it came without custody. The caller has asked the ledger and the guard, and records the id in the
/// same step.
pub(super) fn apply(
    ctx: &mut Ctx<'_>,
    settings: &Settings,
    principal: &AgentId,
    obligation: &Obligation,
    judged: &Judgement,
    custody: bool,
) -> Result<(), ReadError> {
    let before = cell(ctx, principal, obligation, judged)?;
    let latest = before.as_ref().and_then(|cell| cell.sequence);
    let value = match judged.change {
        Change::Authorization { granted } => CellValue::Authorization { granted },
        Change::Weight { delta } => {
            let weight = match before.map(|cell| cell.value) {
                Some(CellValue::Weight(weight)) => weight,
                _ => settings.weights.initial,
            };
            CellValue::Weight(settings.weights.moved(weight, delta))
        }
    };
    let cell = Cell {
        value,
        sequence: obligation.sequence.max(latest),
        obligation_id: obligation.id.clone(),
        num: 0,
        at: ctx.now,
    };
    let at = cell_key(Role::Receiver, principal, &obligation.kind, &judged.key);
    if custody {
        ctx.put(Table::Cell, at, cell.encode());
    } else {
        ctx.put_behind(Table::Cell, at, cell.encode());
    }
    Ok(())
}
