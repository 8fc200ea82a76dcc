//! Sessions, windows and offers.

use super::{Custodian, ELSEWHERE_PER_SESSION_MAX, Flying, Session, WORK_PER_INPUT_MAX};
use crate::frame::RefuseCode;
use crate::id::{AgentId, ObligationId};
use crate::obligation::Obligation;
use crate::settings::Settings;
use crate::step::{Ctx, SessionId};
use crate::store::{ReadError, Table};
use crate::time::Time;
use bytes::Bytes;
use std::ops::Bound;
use std::sync::Arc;

impl Session {
    fn is_full(&self, settings: &Settings, len: usize) -> bool {
        self.in_flight.len() >= self.window
            || (self.in_flight_bytes + len > settings.in_flight_bytes_max
                && !self.in_flight.is_empty())
    }
}

impl Custodian {
    /// A session with `peer` is up: offers go to it from now on, and the current attempt of every
    /// pending transfer is repeated there, as its window opens.
    pub(crate) fn session_up(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        session: SessionId,
        peer: &AgentId,
        window: usize,
    ) -> Result<(), ReadError> {
        let index = self.peer_of(peer);
        self.sessions.insert(
            session,
            Session {
                peer: index,
                window: window.min(settings.in_flight_max),
                next_ref: 0,
                in_flight: Default::default(),
                in_flight_bytes: 0,
                elsewhere: Default::default(),
            },
        );
        if window == 0 {
            return Ok(()); // receive only: a peer that calls us and cannot be called
        }
        if let Some(peer) = self.peers.get_mut(index as usize) {
            peer.sessions.push(session);
            peer.sweep = Some(0);
        }
        self.unqueue(ctx.now, settings, index);
        self.fill(ctx, settings, index)
    }

    /// A session is gone, and what was in flight on it with it.
    pub(crate) fn session_down(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        session: SessionId,
    ) -> Result<(), ReadError> {
        let Some(gone) = self.sessions.remove(&session) else { return Ok(()) };
        ctx.step.forget_session(session);
        self.flying -= gone.in_flight.len();
        let Some(peer) = self.peers.get_mut(gone.peer as usize) else { return Ok(()) };
        let was_current = peer.sessions.last() == Some(&session);
        peer.sessions.retain(|other| *other != session);
        if peer.sessions.is_empty() {
            self.unqueue(ctx.now, settings, gone.peer);
            return Ok(());
        }
        if was_current {
            peer.sweep = Some(0);
            return self.fill(ctx, settings, gone.peer);
        }
        Ok(())
    }

    /// Leaves what queues to the sweep of the peer's next session. Until then it is silence again.
    fn unqueue(&mut self, now: Time, settings: &Settings, index: u32) {
        let Some(peer) = self.peers.get_mut(index as usize) else { return };
        for num in std::mem::take(&mut peer.due) {
            let Some(transfer) = self.transfers.get_mut(&num) else { continue };
            if std::mem::take(&mut transfer.queued) {
                self.rearm(now, settings, num);
            }
        }
    }

    pub(crate) fn is_away(&self, peer: u32) -> bool {
        self.peers.get(peer as usize).is_none_or(|peer| peer.sessions.is_empty())
    }

    /// Offers a transfer on its peer's current session, or leaves it for when there is room.
    pub(super) fn offer(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        num: u64,
        loaded: Option<(Arc<Obligation>, Bytes)>,
    ) -> Result<(), ReadError> {
        let Some(transfer) = self.transfers.get(&num) else { return Ok(()) };
        let index = transfer.peer;
        let Some(id) =
            self.peers.get(index as usize).and_then(|peer| peer.sessions.last().copied())
        else {
            return Ok(()); // away: the sweep of its next session repeats this attempt
        };
        let (obligation, bytes) = match loaded {
            Some(loaded) => loaded,
            None => {
                let bytes = self.load_bytes(ctx, num)?;
                let obligation = Obligation::decode(&bytes)
                    .map_err(|error| ReadError::damaged(Table::Pending, error))?;
                (Arc::new(obligation), bytes)
            }
        };
        self.recall(num);
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(()) };
        let full = session.is_full(settings, bytes.len());
        #[cfg(feature = "mutants")]
        let full = full && !ctx.is(crate::mutant::Mutant::IgnoresWindow);
        if full {
            self.queue(num);
            return Ok(());
        }
        let reference = session.next_ref;
        session.next_ref += 1;
        session.in_flight_bytes += bytes.len();
        self.flying += 1;
        session.in_flight.insert(reference, Flying { num, obligation, bytes: bytes.clone() });
        ctx.step.offer(id, reference, bytes);
        if let Some(transfer) = self.transfers.get_mut(&num) {
            transfer.sent = Some((id, reference));
        }
        Ok(())
    }

    /// The offer of a transfer that is to be made again gives its place in the window up; an ack of
    /// it still counts.
    pub(super) fn recall(&mut self, num: u64) {
        if let Some((session, reference)) =
            self.transfers.get(&num).and_then(|transfer| transfer.sent)
            && let Some(flying) = self.land(session, reference)
        {
            self.remember(session, reference, flying.obligation.id.clone());
        }
    }

    /// Queues a transfer up for room in its peer's window. The time of its attempt does not run
    /// meanwhile: that it was not offered yet is no silence of the peer.
    pub(super) fn queue(&mut self, num: u64) {
        let queued = self.update(num, |transfer| {
            transfer.retry_at = Time::NEVER;
            (std::mem::replace(&mut transfer.queued, true), transfer.peer)
        });
        if let Some((false, peer)) = queued
            && let Some(peer) = self.peers.get_mut(peer as usize)
        {
            peer.due.push_back(num);
        }
    }

    /// Whether an offer of `len` bytes would have to queue up for room now.
    pub(super) fn is_full(&self, settings: &Settings, peer: u32, len: usize) -> bool {
        let current = self.peers.get(peer as usize).and_then(|peer| peer.sessions.last());
        current
            .and_then(|session| self.sessions.get(session))
            .is_some_and(|session| session.is_full(settings, len))
    }

    /// Takes an offer out of its session's window.
    pub(super) fn land(&mut self, session: SessionId, reference: u64) -> Option<Flying> {
        let session = self.sessions.get_mut(&session)?;
        let landed = session.in_flight.remove(&reference)?;
        session.in_flight_bytes = session.in_flight_bytes.saturating_sub(landed.bytes.len());
        self.flying -= 1;
        self.hungry.insert(session.peer);
        Some(landed)
    }

    /// Remembers an offer that was made again, or whose transfer ended, before its ack came.
    pub(super) fn remember(&mut self, session: SessionId, reference: u64, id: ObligationId) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.elsewhere.insert(reference, id);
            if session.elsewhere.len() > ELSEWHERE_PER_SESSION_MAX {
                session.elsewhere.pop_first();
            }
        }
    }

    /// Offers what waits for room: first what is due again, then the sweep.
    pub(super) fn fill(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        index: u32,
    ) -> Result<(), ReadError> {
        for _ in 0..WORK_PER_INPUT_MAX {
            let Some(peer) = self.peers.get_mut(index as usize) else { return Ok(()) };
            let Some(current) = peer.sessions.last().copied() else { return Ok(()) };
            let Some(session) = self.sessions.get(&current) else { return Ok(()) };
            if session.in_flight.len() >= session.window
                || session.in_flight_bytes >= settings.in_flight_bytes_max
            {
                return Ok(());
            }
            let num = if let Some(num) = peer.due.pop_front() {
                let Some(transfer) = self.transfers.get_mut(&num) else { continue };
                if !std::mem::take(&mut transfer.queued) {
                    continue;
                }
                if transfer.sent.is_some_and(|(at, reference)| {
                    at == current && session.in_flight.contains_key(&reference)
                }) {
                    self.rearm(ctx.now, settings, num); // a newer session was there for a moment
                    continue;
                }
                num
            } else if let Some(from) = peer.sweep {
                let Some(num) =
                    peer.pending.range((Bound::Included(from), Bound::Unbounded)).next()
                else {
                    peer.sweep = None;
                    return Ok(());
                };
                let num = *num;
                peer.sweep = Some(num + 1);
                let sent = self.transfers.get(&num).and_then(|transfer| transfer.sent);
                if sent.is_some_and(|(session, _)| session == current) {
                    continue; // this session has carried it already
                }
                num
            } else {
                return Ok(());
            };
            self.offer(ctx, settings, num, None)?;
            if self.transfers.get(&num).is_some_and(|transfer| transfer.queued) {
                return Ok(()); // too large for what room there is
            }
            if self.transfers.get(&num).is_some_and(|transfer| transfer.retry_at == Time::NEVER) {
                self.rearm(ctx.now, settings, num);
            }
        }
        self.hungry.insert(index);
        Ok(())
    }

    /// The receiver refused offers before any fsync. Nothing is discharged; the budget and the
    /// deadline stand, and the next retry waits at least as long as it asked for.
    pub(crate) fn refused(
        &mut self,
        ctx: &Ctx<'_>,
        session: SessionId,
        refs: impl Iterator<Item = (u64, u64)>,
        code: RefuseCode,
        retry_after_ms: u64,
    ) -> usize {
        let mut count = 0;
        for (first, last) in refs {
            let Some(found) = self.sessions.get(&session) else { break };
            let nums: Vec<(u64, u64)> =
                found.in_flight.range(first..=last).map(|(r, flying)| (*r, flying.num)).collect();
            for (reference, num) in nums {
                self.land(session, reference);
                let not_before = ctx.now.after_ms(retry_after_ms);
                self.update(num, |transfer| {
                    transfer.refused = Some(code);
                    transfer.retry_at = transfer.retry_at.max(not_before);
                });
                count += 1;
            }
        }
        count
    }

    /// Offers of all sessions that await an ack.
    pub(crate) const fn in_flight(&self) -> usize {
        self.flying
    }

    /// The peer of a session.
    pub(crate) fn session_peer(&self, session: SessionId) -> Option<&AgentId> {
        let index = self.sessions.get(&session)?.peer;
        self.peers.get(index as usize).map(|peer| &peer.id)
    }

    /// The newest session with a peer.
    pub(crate) fn current_session(&self, peer: &AgentId) -> Option<SessionId> {
        let index = self.peer_index.get(peer)?;
        self.peers.get(*index as usize)?.sessions.last().copied()
    }
}
