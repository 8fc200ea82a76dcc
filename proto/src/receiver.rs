//! The receiver: applies each obligation at most once, and answers for it (AB-3).

mod apply;
mod external;
mod gate;
mod memory;

use crate::ack::{AckStatus, CustodyAck, Reason};
use crate::event::{Event, Fault};
use crate::frame::RefuseCode;
use crate::id::{AgentId, ObligationId};
use crate::obligation::Obligation;
use crate::polarity::Registry;
use crate::record::{Intent, IntentState, Ledger, issued_key};
use crate::settings::Settings;
use crate::step::{Ctx, Output, SessionId};
use crate::store::{ReadError, Table};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use external::Decision;
use gate::Bucket;

/// Minutes are the grain in which the ledger is pruned.
pub(crate) const EXPIRY_BUCKET_MS: u64 = 60_000;

/// What this node owes as a receiver, in memory. The ledger and the state are in the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Receiver {
    deciding: BTreeMap<(AgentId, ObligationId), Waiting>,
    peers: BTreeMap<AgentId, PeerLoad>,
    /// No effect was, or can be, asked of an external handler: there is no intent to look for.
    no_intents: bool,
}

/// Who waits for a decision.
#[derive(Clone, Debug, Default)]
struct Waiting {
    /// The last offer of it, to be acked by ref.
    offer: Option<(SessionId, u64)>,
}

#[derive(Clone, Debug, Default)]
struct PeerLoad {
    obligations: Bucket,
    bytes: Bucket,
    deciding: usize,
    seen: BTreeSet<ObligationId>,
    seen_order: VecDeque<ObligationId>,
}

/// What became of one offer.
enum Disposition {
    /// Ack now (after the commit, if it wrote anything).
    Ack(AckStatus, Option<Reason>),
    /// Refuse: nothing was written.
    Refuse(RefuseCode, Reason),
    /// An external handler is asked.
    Deciding,
}

impl Receiver {
    /// Handles the offers of one frame. Everything that can refuse comes before the first write.
    pub(crate) fn on_offers(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        peer: &AgentId,
        (session, first_ref): (SessionId, u64),
        items: &[Bytes],
    ) -> Result<(), ReadError> {
        for (reference, item) in (first_ref..).zip(items) {
            match self.on_offer(ctx, settings, registry, peer, (session, reference), item)? {
                Disposition::Ack(status, reason) => {
                    ctx.step.ack(session, reference, status, ctx.now, reason);
                }
                Disposition::Refuse(code, text) => {
                    let retry = settings.refuse_retry_after_ms;
                    ctx.step.refuse(session, reference, code, retry, text);
                }
                Disposition::Deciding => {}
            }
        }
        Ok(())
    }

    fn on_offer(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        peer: &AgentId,
        offer: (SessionId, u64),
        item: &Bytes,
    ) -> Result<Disposition, ReadError> {
        let Some(rules) = settings.peers.get(peer) else {
            return Ok(refuse(ctx, peer, Fault::Unauthorized, "not a peer of this node"));
        };
        let obligation = match Obligation::decode(item) {
            Ok(obligation) => obligation,
            Err(error) => return Ok(refuse(ctx, peer, Fault::Malformed, &error.to_string())),
        };
        if obligation.target != settings.me {
            return Ok(refuse(ctx, peer, Fault::WrongTarget, "this node is not the target"));
        }
        if !rules.may_issue.contains(&obligation.kind) {
            let why = format!("{peer} may not issue {} here", obligation.kind);
            return Ok(refuse(ctx, peer, Fault::Unauthorized, &why));
        }
        let load = self.peers.entry(peer.clone()).or_default();
        if !load.admits(ctx.now, rules, item.len() as u64) {
            return Ok(refuse(ctx, peer, Fault::Overloaded, "over the rate agreed for this peer"));
        }
        if let Some(disposition) = Self::known(ctx, peer, &obligation)? {
            return Ok(disposition);
        }
        let intent = if self.no_intents { None } else { intent_of(ctx, peer, &obligation.id)? };
        if intent.as_ref().is_some_and(|(_, asked)| asked.digest() != obligation.digest()) {
            return Ok(Disposition::Ack(AckStatus::Declined, Some(Reason::ID_CONFLICT)));
        }
        if !self.deciding.is_empty()
            && let Some(waiting) = self.deciding.get_mut(&(peer.clone(), obligation.id.clone()))
        {
            waiting.offer = Some(offer);
            return Ok(Disposition::Deciding);
        }
        // While the effect may have happened, neither the clock nor a newer decision may say that
        // it did not.
        let why = match intent.as_ref().map(|(intent, asked)| (intent.state, asked)) {
            Some((IntentState::InDoubt, _)) => Some(external::IN_DOUBT),
            Some((IntentState::Asked, _)) => Some("the handler is asked again after a restart"),
            // Issued anew after its escalation. What was kept of the earlier one is forgotten by its
            // key, and would take what is kept of this one with it (LE-1).
            Some((IntentState::Deferred, asked))
                if asked.deadline_at() != obligation.deadline_at() =>
            {
                Some("an earlier obligation of this id is not forgotten yet")
            }
            Some((IntentState::Deferred, _)) | None => None,
        };
        #[cfg(feature = "mutants")]
        let why = why.filter(|_| !ctx.is(crate::mutant::Mutant::DeclinesDoubt));
        if let Some(why) = why {
            return Ok(Disposition::Ack(AckStatus::Deferred, Some(Reason::new(why))));
        }
        if expired(ctx, settings, &obligation) {
            let reason = Some(Reason::EXPIRED);
            if intent.is_some() {
                // Deferred until now, and asked for no more.
                ctx.remove(Table::Intent, issued_key(peer, &obligation.id));
                record(ctx, settings, peer, &obligation, AckStatus::Declined, reason.clone());
            }
            return Ok(Disposition::Ack(AckStatus::Declined, reason));
        }
        let judged = match registry.judge(&obligation) {
            Ok(judged) => judged,
            Err(error @ crate::polarity::PolarityError::UnknownKind { .. }) => {
                return Ok(refuse(ctx, peer, Fault::Unsupported, &error.to_string()));
            }
            Err(error) => return Ok(refuse(ctx, peer, Fault::Malformed, &error.to_string())),
        };
        if apply::superseded(ctx, &rules.principal, &obligation, &judged)? {
            // Recorded, so that the newer state it rests on is durable before the decline is told,
            // and no handler is asked any more for an effect it deferred.
            if intent.is_some() {
                ctx.remove(Table::Intent, issued_key(peer, &obligation.id));
            }
            let reason = Some(Reason::SUPERSEDED);
            record(ctx, settings, peer, &obligation, AckStatus::Declined, reason.clone());
            return Ok(Disposition::Ack(AckStatus::Declined, reason));
        }
        if settings.external.contains(&obligation.kind) {
            let first = intent.is_none();
            return Ok(self.ask(ctx, settings, peer, obligation, first, (offer, item)));
        }
        apply::apply(ctx, settings, &rules.principal, &obligation, &judged, true)?;
        record(ctx, settings, peer, &obligation, AckStatus::Applied, None);
        Ok(Disposition::Ack(AckStatus::Applied, None))
    }

    /// AB-3: what the ledger says of an id. A redelivery is acknowledged as before, without effect.
    //= AB-3
    fn known(
        ctx: &Ctx<'_>,
        peer: &AgentId,
        obligation: &Obligation,
    ) -> Result<Option<Disposition>, ReadError> {
        #[cfg(feature = "mutants")]
        if ctx.is(crate::mutant::Mutant::AppliesAgain) {
            return Ok(None);
        }
        let Some(ledger) = ledger_of(ctx, peer, &obligation.id)? else { return Ok(None) };
        if ledger.digest != obligation.digest() {
            // Acking it `applied` would attest something that was never applied.
            return Ok(Some(Disposition::Ack(AckStatus::Declined, Some(Reason::ID_CONFLICT))));
        }
        Ok(Some(Disposition::Ack(ledger.status, ledger.reason)))
    }

    /// Handles best-effort obligations: applied at most once within a bounded window, never acked.
    pub(crate) fn on_best_effort(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        peer: &AgentId,
        items: &[Bytes],
    ) -> Result<u64, ReadError> {
        let mut applied = 0;
        for item in items {
            applied += u64::from(self.on_best_effort_item(ctx, settings, registry, peer, item)?);
        }
        Ok(applied)
    }

    fn on_best_effort_item(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        peer: &AgentId,
        item: &Bytes,
    ) -> Result<bool, ReadError> {
        let Some(rules) = settings.peers.get(peer) else { return Ok(false) };
        let Ok(obligation) = Obligation::decode(item) else {
            fault(ctx, peer, Fault::Malformed, "best-effort obligation does not decode");
            return Ok(false);
        };
        if obligation.target != settings.me || !rules.may_issue.contains(&obligation.kind) {
            fault(ctx, peer, Fault::Unauthorized, "best-effort obligation not allowed");
            return Ok(false);
        }
        let load = self.peers.entry(peer.clone()).or_default();
        #[cfg(feature = "mutants")]
        if ctx.is(crate::mutant::Mutant::BestEffortAgain) {
            load.seen.clear();
        }
        if !load.admits(ctx.now, rules, item.len() as u64)
            || expired(ctx, settings, &obligation)
            || !load.first_sight(&obligation.id, settings.best_effort_window)
        {
            return Ok(false);
        }
        let Ok(judged) = registry.judge(&obligation) else { return Ok(false) };
        if judged.admissible() {
            // Restrictive decisions never travel without custody; one that does is not ours to drop
            // silently, but it is no duplicate-safe delivery either.
            fault(ctx, peer, Fault::Malformed, "admissible obligation sent best-effort");
            return Ok(false);
        }
        if apply::superseded(ctx, &rules.principal, &obligation, &judged)? {
            return Ok(false);
        }
        if settings.external.contains(&obligation.kind) {
            ctx.step.output(Output::Inform { issuer: peer.clone(), obligation: item.clone() });
        }
        apply::apply(ctx, settings, &rules.principal, &obligation, &judged, false)?;
        Ok(true)
    }

    /// Whether the external handler is being asked about the obligation of a ledger key.
    pub(crate) fn decides(&self, key: &[u8]) -> bool {
        !self.deciding.is_empty()
            && crate::record::split_issued_key(key)
                .is_some_and(|named| self.deciding.contains_key(&named))
    }

    /// What this receiver did with an obligation that `peer` issued. Another issuer's ids are as
    /// unknown as those that never existed.
    pub(crate) fn status(
        &self,
        ctx: &Ctx<'_>,
        settings: &Settings,
        peer: &AgentId,
        id: &ObligationId,
    ) -> Result<Option<CustodyAck>, ReadError> {
        let ack = |status, acked_at, reason| CustodyAck {
            obligation_id: id.clone(),
            target: settings.me.clone(),
            status,
            acked_at,
            reason,
        };
        if let Some(ledger) = ledger_of(ctx, peer, id)? {
            return Ok(Some(ack(ledger.status, ledger.acked_at, ledger.reason)));
        }
        let asked = ctx.get(Table::Intent, &issued_key(peer, id))?.is_some();
        Ok(asked.then(|| ack(AckStatus::Deferred, ctx.now, None)))
    }
}

/// DL-1: a receiver never applies past the deadline, and refuses inside the clock-skew margin
/// rather than apply late.
//= DL-1
fn expired(ctx: &Ctx<'_>, settings: &Settings, obligation: &Obligation) -> bool {
    #[cfg(feature = "mutants")]
    if ctx.is(crate::mutant::Mutant::AppliesLate) {
        return false;
    }
    ctx.now.after_ms(settings.clock_skew_ms_max) >= obligation.deadline_at()
}

fn ledger_of(
    ctx: &Ctx<'_>,
    peer: &AgentId,
    id: &ObligationId,
) -> Result<Option<Ledger>, ReadError> {
    match ctx.get(Table::Ledger, &issued_key(peer, id))? {
        Some(bytes) => Ledger::decode(&bytes)
            .map(Some)
            .map_err(|error| ReadError::damaged(Table::Ledger, error)),
        None => Ok(None),
    }
}

fn intent_of(
    ctx: &Ctx<'_>,
    peer: &AgentId,
    id: &ObligationId,
) -> Result<Option<(Intent, Obligation)>, ReadError> {
    let Some(bytes) = ctx.get(Table::Intent, &issued_key(peer, id))? else { return Ok(None) };
    let damaged = |error| ReadError::damaged(Table::Intent, error);
    let intent = Intent::decode(&bytes).map_err(damaged)?;
    let obligation = Obligation::decode(&intent.obligation).map_err(damaged)?;
    Ok(Some((intent, obligation)))
}

/// LE-1: the ledger entry, in the same commit as whatever effect this step has written.
//= LE-1
fn record(
    ctx: &mut Ctx<'_>,
    settings: &Settings,
    peer: &AgentId,
    obligation: &Obligation,
    status: AckStatus,
    reason: Option<Reason>,
) {
    let key = issued_key(peer, &obligation.id);
    let ledger = Ledger {
        status,
        acked_at: ctx.now,
        deadline_at: obligation.deadline_at(),
        digest: obligation.digest(),
        reason: reason.clone(),
    };
    ctx.put(Table::Ledger, key.clone(), ledger.encode());
    forget_later(ctx, settings, obligation, key);
    received(ctx, peer, obligation, status, reason);
}

/// A redelivery after the deadline and the skew is declined as expired, so the id may go then.
fn forget_later(ctx: &mut Ctx<'_>, settings: &Settings, obligation: &Obligation, key: Bytes) {
    let forget_at = obligation.deadline_at().after_ms(settings.clock_skew_ms_max);
    let bucket = forget_at.max(ctx.now).as_ms() / EXPIRY_BUCKET_MS + 1;
    #[cfg(feature = "mutants")]
    let bucket = if ctx.is(crate::mutant::Mutant::LedgerForgets) { 0 } else { bucket };
    ctx.step.expiring.entry(bucket).or_default().push(key);
}

fn received(
    ctx: &mut Ctx<'_>,
    peer: &AgentId,
    obligation: &Obligation,
    status: AckStatus,
    reason: Option<Reason>,
) {
    ctx.step.event(Event::Received {
        issuer: peer.clone(),
        obligation_id: obligation.id.clone(),
        kind: obligation.kind.clone(),
        status,
        reason,
    });
}

fn fault(ctx: &mut Ctx<'_>, peer: &AgentId, fault: Fault, detail: &str) {
    ctx.step.event(Event::PeerFault { peer: peer.clone(), fault, detail: detail.to_owned() });
}

fn refuse(ctx: &mut Ctx<'_>, peer: &AgentId, kind: Fault, detail: &str) -> Disposition {
    fault(ctx, peer, kind, detail);
    let code = match kind {
        Fault::Malformed => RefuseCode::Malformed,
        Fault::WrongTarget => RefuseCode::WrongTarget,
        Fault::Unsupported => RefuseCode::Unsupported,
        Fault::Overloaded => RefuseCode::Overloaded,
        Fault::Unauthorized | Fault::ForeignAck | Fault::RefusedUs => RefuseCode::Unauthorized,
    };
    Disposition::Refuse(code, Reason::new(detail))
}
