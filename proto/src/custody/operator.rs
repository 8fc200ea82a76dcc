//! What a person decides: escalations seen, reconciliation items resolved.

use super::Custody;
use crate::ack::Reason;
use crate::custodian::{apply_safe, id_key, outcome_of};
use crate::event::Event;
use crate::id::ObligationId;
use crate::obligation::Obligation;
use crate::payload::Payload;
use crate::receiver::Decision;
use crate::record::{Escalation, Reconcile, ReconcileKind, Resolution, Terminal, num_key, to_json};
use crate::step::{Ctx, Step};
use crate::store::{Read, ReadError, Table};
use crate::time::Time;

/// Result of an operator call.
pub type OperatorResult = Result<(), OperatorError>;

/// Why an operator call did nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// No escalation of that id.
    #[error("no escalation of obligation {id}")]
    NoEscalation {
        /// The id.
        id: ObligationId,
    },
    /// No reconciliation item of that number.
    #[error("no reconciliation item {number}")]
    NoItem {
        /// The number.
        number: u64,
    },
    /// Resolved before.
    #[error("reconciliation item {number} is resolved already")]
    Resolved {
        /// The number.
        number: u64,
    },
    /// That answer does not fit the item.
    #[error("{resolution:?} does not resolve an item of kind {kind:?}")]
    Unfit {
        /// The answer.
        resolution: Resolution,
        /// The item.
        kind: ReconcileKind,
    },
}

pub(super) fn ack_escalation(
    ctx: &mut Ctx<'_>,
    id: &ObligationId,
) -> Result<OperatorResult, ReadError> {
    let none = || OperatorError::NoEscalation { id: id.clone() };
    let Some(outcome) =
        outcome_of(ctx, id)?.filter(|outcome| outcome.terminal == Terminal::Escalated)
    else {
        return Ok(Err(none()));
    };
    let key = num_key(outcome.num);
    let Some(bytes) = ctx.get(Table::Escalation, &key)? else { return Ok(Err(none())) };
    let mut escalation: Escalation = serde_json::from_slice(&bytes)
        .map_err(|error| ReadError::damaged(Table::Escalation, error))?;
    if escalation.acknowledged_at_ms.is_none() {
        ctx.step.event(Event::Acknowledged { obligation_id: id.clone() });
        if escalation.outlived {
            ctx.remove(Table::Escalation, key);
            ctx.remove(Table::Outcome, id_key(id));
            return Ok(Ok(()));
        }
        escalation.acknowledged_at_ms = Some(ctx.now.as_ms());
        ctx.put(Table::Escalation, key, to_json(&escalation));
    }
    Ok(Ok(()))
}

/// Notes that the sink has taken an escalation. One that is gone was seen by a person meanwhile.
pub(super) fn delivered(ctx: &mut Ctx<'_>, num: u64) -> Result<(), ReadError> {
    let key = num_key(num);
    let Some(bytes) = ctx.get(Table::Escalation, &key)? else { return Ok(()) };
    let escalation: Escalation = serde_json::from_slice(&bytes)
        .map_err(|error| ReadError::damaged(Table::Escalation, error))?;
    if escalation.delivered_at_ms.is_none() {
        let escalation = Escalation { delivered_at_ms: Some(ctx.now.as_ms()), ..escalation };
        ctx.put(Table::Escalation, key, to_json(&escalation));
    }
    Ok(())
}

impl Custody {
    pub(super) fn resolve(
        &mut self,
        now: Time,
        store: &dyn Read,
        step: &mut Step,
        number: u64,
        resolution: Resolution,
    ) -> Result<OperatorResult, ReadError> {
        let mut ctx = Ctx { now, store, staging: &mut self.staging, step };
        let key = num_key(number);
        let Some(bytes) = ctx.get(Table::Reconcile, &key)? else {
            return Ok(Err(OperatorError::NoItem { number }));
        };
        let mut item: Reconcile = serde_json::from_slice(&bytes)
            .map_err(|error| ReadError::damaged(Table::Reconcile, error))?;
        if item.resolution.is_some() {
            return Ok(Err(OperatorError::Resolved { number }));
        }
        match (item.kind, resolution) {
            (ReconcileKind::InDoubt, Resolution::Applied | Resolution::NotApplied) => {
                let decision = match resolution {
                    Resolution::Applied => Decision::Applied,
                    _ => Decision::Declined(Reason::new("reconciled: the effect did not happen")),
                };
                self.receiver.decided(
                    &mut ctx,
                    &self.settings,
                    &self.registry,
                    &item.agent,
                    &item.obligation_id,
                    decision,
                )?;
            }
            (ReconcileKind::DeclineSurfaced, Resolution::ApplySafe) => {
                if let Some(action) = &item.safe_action
                    && let Some(outcome) = outcome_of(&ctx, &item.obligation_id)?
                {
                    let obligation = Obligation {
                        id: item.obligation_id.clone(),
                        kind: outcome.kind,
                        target: outcome.target,
                        payload: Payload::EMPTY,
                        deadline_seconds: 1,
                        max_retries: 0,
                        created_at: outcome.created_at,
                        sequence: outcome.sequence,
                    };
                    apply_safe(&mut ctx, &self.settings, &obligation, action, outcome.num)?;
                }
            }
            (kind, Resolution::Noted) if kind != ReconcileKind::InDoubt => {}
            (kind, resolution) => return Ok(Err(OperatorError::Unfit { resolution, kind })),
        }
        item.resolution = Some(resolution);
        item.resolved_at_ms = Some(now.as_ms());
        ctx.put(Table::Reconcile, key, to_json(&item));
        Ok(Ok(()))
    }
}
