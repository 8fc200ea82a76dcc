//! The ends of a transfer: applied, declined, escalated; and what comes too late.

use super::Custodian;
use crate::ack::{AckStatus, CustodyAck, Reason};
use crate::event::Event;
use crate::id::ObligationId;
use crate::obligation::Obligation;
use crate::polarity::Registry;
use crate::profile::OnDecline;
use crate::record::{
    Attempt, Cell, CellValue, Escalation, Outcome, Reconcile, ReconcileKind, Role, Terminal,
    cell_key, num_key, to_json,
};
use crate::safe_action::{SafeAction, SafeEffect};
use crate::settings::Settings;
use crate::step::{Ctx, SessionId};
use crate::store::{ReadError, Table};
use crate::transfer::Due;
use bytes::Bytes;

/// What the rest of the core must do after an ack: file an item for reconciliation.
pub(crate) type Filed = Option<Reconcile>;

/// What a receiver says of one offer.
pub(crate) struct Verdict<'a> {
    pub(crate) status: AckStatus,
    pub(crate) reason: Option<&'a Reason>,
}

impl Custodian {
    /// Offers of `session` whose refs lie in `first..=last`, with their transfers.
    pub(crate) fn offers_in(&self, session: SessionId, first: u64, last: u64) -> Vec<u64> {
        self.sessions.get(&session).map_or_else(Vec::new, |session| {
            let flying = session.in_flight.range(first..=last).map(|(reference, _)| *reference);
            flying
                .chain(session.elsewhere.range(first..=last).map(|(reference, _)| *reference))
                .collect()
        })
    }

    /// An ack for an offer of a session. It can only name offers this session carried, so it
    /// comes from the obligation's own target.
    pub(crate) fn ack_offer(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        session: SessionId,
        reference: u64,
        verdict: &Verdict<'_>,
    ) -> Result<Filed, ReadError> {
        if let Some(flying) = self.land(session, reference) {
            return self.settle(ctx, settings, registry, flying.num, &flying.obligation, verdict);
        }
        let elsewhere = self
            .sessions
            .get_mut(&session)
            .and_then(|session| session.elsewhere.remove(&reference));
        let Some(id) = elsewhere else { return Ok(None) };
        match self.find(ctx, &id)? {
            Some((num, obligation)) => {
                self.settle(ctx, settings, registry, num, &obligation, verdict)
            }
            None => Self::late(ctx, &id, verdict),
        }
    }

    /// An ack by id, from an authenticated peer. `None` inside: the peer is not its target, or it
    /// is unknown; no state is made of it.
    pub(crate) fn ack_id(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        peer: &crate::id::AgentId,
        ack: &CustodyAck,
    ) -> Result<Option<Filed>, ReadError> {
        let verdict = Verdict { status: ack.status, reason: ack.reason.as_ref() };
        if let Some((num, obligation)) = self.find(ctx, &ack.obligation_id)? {
            if obligation.target != *peer {
                return Ok(None);
            }
            return self.settle(ctx, settings, registry, num, &obligation, &verdict).map(Some);
        }
        match outcome_of(ctx, &ack.obligation_id)? {
            Some(outcome) if outcome.target == *peer => {
                Self::late(ctx, &ack.obligation_id, &verdict).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn settle(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        num: u64,
        obligation: &Obligation,
        verdict: &Verdict<'_>,
    ) -> Result<Filed, ReadError> {
        let Some(transfer) = self.transfers.get(&num) else {
            return Self::late(ctx, &obligation.id, verdict);
        };
        let status = verdict.status;
        #[cfg(feature = "mutants")]
        let status = match status {
            AckStatus::Declined if ctx.is(crate::mutant::Mutant::DeclineIsApplied) => {
                AckStatus::Applied
            }
            status => status,
        };
        let overdue = transfer.deadline_at <= ctx.now;
        #[cfg(feature = "mutants")]
        let overdue = overdue && !ctx.is(crate::mutant::Mutant::DeclinePastDeadline);
        match status {
            AckStatus::Applied => {
                ctx.step.attested.push(Event::Attested {
                    obligation_id: obligation.id.clone(),
                    target: obligation.target.clone(),
                });
                self.end(ctx, num, obligation, Terminal::Applied, None);
                Ok(None)
            }
            // Past the deadline a receiver may have forgotten what it applied, and decline its offer
            // as expired. The escalation is due now.
            AckStatus::Declined if overdue => Ok(None),
            //= DC-1
            AckStatus::Declined => {
                let schedule = self.schedules.get(usize::from(transfer.schedule));
                let on_decline = schedule.map_or(OnDecline::Apply, |(_, on_decline)| *on_decline);
                let reason = verdict.reason.cloned();
                self.end(ctx, num, obligation, Terminal::Declined, reason.clone());
                #[cfg(feature = "mutants")]
                if ctx.is(crate::mutant::Mutant::DeclineUnprotected) {
                    return Ok(None);
                }
                let told = reason.as_ref().map_or("no reason given", Reason::as_str);
                let Some(action) = safe_of(
                    registry,
                    obligation,
                    &format!("declined by {}: {told}", obligation.target),
                ) else {
                    return Ok(None);
                };
                match on_decline {
                    OnDecline::Apply => {
                        apply_safe(ctx, settings, obligation, &action, num)?;
                        Ok(None)
                    }
                    OnDecline::Surface => Ok(Some(Reconcile {
                        kind: ReconcileKind::DeclineSurfaced,
                        obligation_id: obligation.id.clone(),
                        agent: obligation.target.clone(),
                        at_ms: ctx.now.as_ms(),
                        detail: action.rationale.to_string(),
                        safe_action: Some(action),
                        resolution: None,
                        resolved_at_ms: None,
                    })),
                }
            }
            //= DF-1
            AckStatus::Deferred => {
                #[cfg(feature = "mutants")]
                if ctx.is(crate::mutant::Mutant::DeferralExtends) {
                    self.update(num, |transfer| {
                        transfer.deadline_at = transfer.deadline_at.after_ms(120_000);
                    });
                }
                let attempt = self.update(num, |transfer| {
                    let news = !transfer.deferred;
                    transfer.deferred = true;
                    transfer.refused = None;
                    news.then_some(Attempt { retries: transfer.retries, deferred: true })
                });
                if let Some(Some(attempt)) = attempt {
                    ctx.put(Table::Attempt, num_key(num), attempt.encode());
                }
                Ok(None)
            }
        }
    }

    /// Ends a transfer: the outcome replaces the pending record in one commit.
    pub(super) fn end(
        &mut self,
        ctx: &mut Ctx<'_>,
        num: u64,
        obligation: &Obligation,
        terminal: Terminal,
        reason: Option<Reason>,
    ) {
        let Some(transfer) = self.transfers.remove(&num) else { return };
        self.alarms.remove(&(transfer.alarm(), num));
        let hash = super::id_hash(&obligation.id);
        self.by_id.remove(hash, num);
        self.ended.insert(hash);
        if let Some(peer) = self.peers.get_mut(transfer.peer as usize) {
            peer.pending.remove(&num);
        }
        if let Some((session, reference)) = transfer.sent
            && self.land(session, reference).is_some()
        {
            self.remember(session, reference, obligation.id.clone());
        }
        ctx.remove(Table::Pending, num_key(num));
        if transfer.retries > 0 || transfer.deferred {
            ctx.remove(Table::Attempt, num_key(num));
        }
        let outcome = Outcome {
            terminal,
            num,
            kind: obligation.kind.clone(),
            target: obligation.target.clone(),
            at: ctx.now,
            created_at: obligation.created_at,
            deadline_at: obligation.deadline_at(),
            retries: transfer.retries,
            sequence: obligation.sequence,
            digest: obligation.digest(),
            reason: reason.clone(),
            late_applied_at: None,
        };
        let (key, record) = outcome.encode_after(obligation.id.as_str().as_bytes());
        ctx.put(Table::Outcome, key.clone(), record);
        ctx.step.ended.push(key);
        ctx.step.event(Event::Terminal {
            obligation_id: obligation.id.clone(),
            kind: obligation.kind.clone(),
            target: obligation.target.clone(),
            outcome: terminal,
            reason,
            retries: transfer.retries,
            took_ms: ctx.now.ms_since(obligation.created_at),
        });
    }

    /// AB-4: terminal, `safe(O)` on principal-side state and the escalation, in one commit.
    //= AB-4
    pub(crate) fn escalate(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        num: u64,
        due: Due,
    ) -> Result<(), ReadError> {
        let Some(transfer) = self.transfers.get(&num) else { return Ok(()) };
        let why = transfer.escalation_reason(due);
        let retries = transfer.retries;
        let obligation = self.load(ctx, num)?;
        let said = serde_json::to_string(&why).unwrap_or_default();
        let said = said.trim_matches('"');
        let rationale = format!("not confirmed applied by {}: {said}", obligation.target);
        let Some(action) = safe_of(registry, &obligation, &rationale) else {
            // Admitted under a rule this build no longer has: the principal must still hear of it.
            return Err(ReadError::damaged(
                Table::Pending,
                format!("no safe action for kind {}", obligation.kind),
            ));
        };
        self.end(ctx, num, &obligation, Terminal::Escalated, Some(Reason::new(said)));
        let applied = apply_safe(ctx, settings, &obligation, &action, num)?;
        #[cfg(feature = "mutants")]
        if ctx.is(crate::mutant::Mutant::SafeTwice) {
            apply_safe(ctx, settings, &obligation, &action, num)?;
        }
        let escalation = Escalation {
            obligation_id: obligation.id.clone(),
            kind: obligation.kind.clone(),
            target: obligation.target.clone(),
            reason: why,
            at_ms: ctx.now.as_ms(),
            deadline_at_ms: obligation.deadline_at().as_ms(),
            retries,
            safe_action: action,
            safe_action_applied: applied,
            acknowledged_at_ms: None,
            delivered_at_ms: None,
            outlived: false,
        };
        ctx.put(Table::Escalation, num_key(num), to_json(&escalation));
        #[cfg(feature = "mutants")]
        if ctx.is(crate::mutant::Mutant::EscalatesTwice) {
            ctx.put(Table::Escalation, num_key(num + (1 << 40)), to_json(&escalation));
        }
        ctx.step.event(Event::Escalated(Box::new(escalation)));
        Ok(())
    }

    /// TS-1: a terminal is final. A late `applied` after an escalation is filed once and reopens
    /// nothing.
    //= TS-1
    fn late(
        ctx: &mut Ctx<'_>,
        id: &ObligationId,
        verdict: &Verdict<'_>,
    ) -> Result<Filed, ReadError> {
        let Some(mut outcome) = outcome_of(ctx, id)? else { return Ok(None) };
        let news = outcome.terminal == Terminal::Escalated
            && verdict.status == AckStatus::Applied
            && outcome.late_applied_at.is_none();
        #[cfg(feature = "mutants")]
        let news = news
            || (ctx.is(crate::mutant::Mutant::LateFiledAgain)
                && outcome.late_applied_at.is_some()
                && verdict.status == AckStatus::Applied);
        #[cfg(feature = "mutants")]
        let news = news && !ctx.is(crate::mutant::Mutant::LateUnfiled);
        if !news {
            return Ok(None);
        }
        outcome.late_applied_at = Some(ctx.now);
        #[cfg(feature = "mutants")]
        if ctx.is(crate::mutant::Mutant::LateReopens) {
            outcome.terminal = Terminal::Applied;
        }
        ctx.put(Table::Outcome, id_key(id), outcome.encode());
        Ok(Some(Reconcile {
            kind: ReconcileKind::LateApplied,
            obligation_id: id.clone(),
            agent: outcome.target,
            at_ms: ctx.now.as_ms(),
            detail: format!("applied {} ms after the escalation", ctx.now.ms_since(outcome.at)),
            safe_action: None,
            resolution: None,
            resolved_at_ms: None,
        }))
    }
}

/// Key of an outcome.
pub(crate) fn id_key(id: &ObligationId) -> Bytes {
    Bytes::copy_from_slice(id.as_str().as_bytes())
}

/// The outcome of an id, if its transfer ended.
pub(crate) fn outcome_of(ctx: &Ctx<'_>, id: &ObligationId) -> Result<Option<Outcome>, ReadError> {
    match ctx.get(Table::Outcome, &id_key(id))? {
        Some(bytes) => Outcome::decode(&bytes)
            .map(Some)
            .map_err(|error| ReadError::damaged(Table::Outcome, error)),
        None => Ok(None),
    }
}

fn safe_of(registry: &Registry, obligation: &Obligation, rationale: &str) -> Option<SafeAction> {
    registry.judge(obligation).ok()?.safe_action(obligation, rationale)
}

/// SG-1: applies `safe(O)` to principal-side state unless a newer decision of the same key stands.
/// Returns whether it changed (or re-asserted) the state.
//= SG-1
pub(crate) fn apply_safe(
    ctx: &mut Ctx<'_>,
    settings: &Settings,
    obligation: &Obligation,
    action: &SafeAction,
    num: u64,
) -> Result<bool, ReadError> {
    #[cfg(feature = "mutants")]
    if ctx.skips_safe(action) {
        return Ok(false);
    }
    let key = match &action.effect {
        SafeEffect::FailClosed { scope } => scope,
        SafeEffect::DownWeight { weight_key, .. } => weight_key,
    };
    let at = cell_key(Role::Principal, &obligation.target, &obligation.kind, key);
    let cell = match ctx.get(Table::Cell, &at)? {
        Some(bytes) => Some(Cell::decode(&bytes).map_err(|e| ReadError::damaged(Table::Cell, e))?),
        None => None,
    };
    let value = match &action.effect {
        SafeEffect::FailClosed { .. } => {
            let newer = cell.as_ref().is_some_and(|cell| {
                cell.sequence > action.sequence
                    || (cell.sequence.is_some()
                        && cell.sequence == action.sequence
                        && cell.obligation_id != obligation.id)
            });
            #[cfg(feature = "mutants")]
            let newer = newer && !ctx.is(crate::mutant::Mutant::IgnoresGuardHere);
            if newer {
                return Ok(false);
            }
            CellValue::Authorization { granted: false }
        }
        SafeEffect::DownWeight { magnitude, .. } => {
            let weight = match cell.map(|cell| cell.value) {
                Some(CellValue::Weight(weight)) => weight,
                _ => settings.weights.initial,
            };
            CellValue::Weight(settings.weights.moved(weight, magnitude.negated()))
        }
    };
    let cell = Cell {
        value,
        sequence: action.sequence,
        obligation_id: obligation.id.clone(),
        num,
        at: ctx.now,
    };
    ctx.put(Table::Cell, at, cell.encode());
    Ok(true)
}
