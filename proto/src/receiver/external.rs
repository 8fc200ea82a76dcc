//! External handlers: a durable intent before the call, the obligation id as idempotency key, and
//! nothing guessed after a crash (AB-3).

use super::{
    Disposition, Receiver, apply, fault, forget_later, intent_of, received, record, refuse,
};
use crate::ack::{AckStatus, CustodyAck, Reason};
use crate::event::Fault;
use crate::id::{AgentId, ObligationId};
use crate::obligation::Obligation;
use crate::polarity::Registry;
use crate::record::{Intent, IntentState, Reconcile, ReconcileKind, issued_key, split_issued_key};
use crate::settings::Settings;
use crate::step::{Ctx, Output, SessionId};
use crate::store::{ReadError, Table};
use bytes::Bytes;

/// Intents settled per scan at start.
const SETTLE_PER_SCAN_MAX: usize = 1024;

/// What the custodian hears of an effect that nobody can speak for.
pub(super) const IN_DOUBT: &str = "waits for reconciliation";

/// What an external handler decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The effect happened, at most once for this id.
    Applied,
    /// Refused, with a reason.
    Declined(Reason),
    /// Not yet. It is asked again when the custodian offers again.
    Deferred(Option<Reason>),
    /// The effect did not happen, and the handler was not reached: ask again later.
    NotReached(Reason),
    /// Nobody can say whether the effect happened: a person must.
    InDoubt(Reason),
}

impl Receiver {
    /// Writes the intent and asks the handler.
    pub(super) fn ask(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        peer: &AgentId,
        obligation: Obligation,
        first: bool,
        (offer, item): ((SessionId, u64), &Bytes),
    ) -> Disposition {
        #[cfg(feature = "mutants")]
        if ctx.is(crate::mutant::Mutant::AcksReceipt) {
            return Disposition::Ack(AckStatus::Applied, None);
        }
        let load = self.peers.entry(peer.clone()).or_default();
        if load.deciding >= settings.deciding_max {
            let why =
                format!("{} obligations of this peer are being decided, the limit", load.deciding);
            return refuse(ctx, peer, Fault::Overloaded, &why);
        }
        load.deciding += 1;
        let key = issued_key(peer, &obligation.id);
        let intent = Intent { at: ctx.now, state: IntentState::Asked, obligation: item.clone() };
        ctx.put(Table::Intent, key.clone(), intent.encode());
        if first {
            forget_later(ctx, settings, &obligation, key);
        }
        self.deciding.entry((peer.clone(), obligation.id)).or_default().offer = Some(offer);
        ctx.step.output(Output::Decide {
            issuer: peer.clone(),
            obligation: item.clone(),
            in_doubt: !first,
            deferred: !first,
        });
        Disposition::Deciding
    }

    /// The handler's decision on an obligation: effect known, ledger and ack in one commit.
    pub(crate) fn decided(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        issuer: &AgentId,
        id: &ObligationId,
        decision: Decision,
    ) -> Result<Option<Reconcile>, ReadError> {
        let offer = self.deciding.remove(&(issuer.clone(), id.clone())).and_then(|waiting| {
            if let Some(load) = self.peers.get_mut(issuer) {
                load.deciding = load.deciding.saturating_sub(1);
            }
            waiting.offer
        });
        let key = issued_key(issuer, id);
        let Some((intent, obligation)) = intent_of(ctx, issuer, id)? else { return Ok(None) };
        let late = ctx.now >= obligation.deadline_at();
        let mut filed = None;
        let file = |kind, detail: String| Reconcile {
            kind,
            obligation_id: id.clone(),
            agent: issuer.clone(),
            at_ms: ctx.now.as_ms(),
            detail,
            safe_action: None,
            resolution: None,
            resolved_at_ms: None,
        };
        let mut state = IntentState::Deferred;
        let (status, reason) = match decision {
            Decision::Applied => {
                if late {
                    let ms = ctx.now.ms_since(obligation.deadline_at());
                    let detail =
                        format!("the handler reported the effect {ms} ms after the deadline");
                    filed = Some(file(ReconcileKind::AppliedPastDeadline, detail));
                }
                (AckStatus::Applied, None)
            }
            Decision::Declined(reason) => (AckStatus::Declined, Some(reason)),
            Decision::Deferred(_) | Decision::NotReached(_) if late => {
                (AckStatus::Declined, Some(Reason::EXPIRED))
            }
            Decision::Deferred(reason) => (AckStatus::Deferred, reason),
            Decision::NotReached(reason) => {
                fault(ctx, issuer, Fault::Unsupported, &format!("handler not reached: {reason}"));
                (AckStatus::Deferred, Some(reason))
            }
            Decision::InDoubt(reason) => {
                filed = Some(file(ReconcileKind::InDoubt, reason.to_string()));
                state = IntentState::InDoubt;
                (AckStatus::Deferred, Some(Reason::new(IN_DOUBT)))
            }
        };
        if status.is_final() {
            if status == AckStatus::Applied
                && let Some(rules) = settings.peers.get(issuer)
                && let Ok(judged) = registry.judge(&obligation)
                && !apply::superseded(ctx, &rules.principal, &obligation, &judged)?
            {
                apply::apply(ctx, settings, &rules.principal, &obligation, &judged, true)?;
            }
            record(ctx, settings, issuer, &obligation, status, reason.clone());
            ctx.remove(Table::Intent, key);
        } else {
            let intent = Intent { state, ..intent };
            ctx.put(Table::Intent, key, intent.encode());
            received(ctx, issuer, &obligation, status, reason.clone());
        }
        match offer {
            Some((session, reference)) => ctx.step.ack(session, reference, status, ctx.now, reason),
            None => ctx.step.output(Output::Acks {
                peer: issuer.clone(),
                acks: vec![CustodyAck {
                    obligation_id: id.clone(),
                    target: settings.me.clone(),
                    status,
                    acked_at: ctx.now,
                    reason,
                }],
            }),
        }
        Ok(filed)
    }

    /// After a start: an effect that was being asked for may have happened. The handler is asked for
    /// its status first. What it had deferred waits for the next offer.
    pub(crate) fn settle_intents(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
    ) -> Result<(), ReadError> {
        let mut from = Bytes::new();
        self.no_intents = settings.external.is_empty();
        loop {
            let records = ctx.store.scan(Table::Intent, &from, SETTLE_PER_SCAN_MAX)?;
            let Some((last, _)) = records.last() else { return Ok(()) };
            self.no_intents = false;
            let mut next = last.to_vec();
            next.push(0);
            from = next.into();
            for (key, value) in records {
                let intent =
                    Intent::decode(&value).map_err(|e| ReadError::damaged(Table::Intent, e))?;
                let named = split_issued_key(&key)
                    .ok_or_else(|| ReadError::damaged(Table::Intent, "key"))?;
                if intent.state != IntentState::Asked
                    || !settings.peers.contains_key(&named.0)
                    || self.deciding.contains_key(&named)
                {
                    continue;
                }
                self.peers.entry(named.0.clone()).or_default().deciding += 1;
                let issuer = named.0.clone();
                self.deciding.entry(named).or_default();
                ctx.step.output(Output::Decide {
                    issuer,
                    obligation: intent.obligation,
                    in_doubt: true,
                    deferred: false,
                });
            }
        }
    }
}
