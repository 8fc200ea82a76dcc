//! BD-1 of a custodian, counted from outside: how much is pending, how much is in flight.
//!
//! What is in flight can be told from outside as long as the session has not changed: an offer flies
//! from when it leaves until its transfer has ended or its next attempt is durable. One that was
//! deferred, refused or recovered has given its place up unseen, and is not counted.

use super::{Checker, Class, Entry, NodeView};
use proto::ack::RefRange;
use proto::step::SessionId;
use proto::time::Time;
use std::collections::BTreeMap;

/// Offers in flight on a session.
#[derive(Debug, Default)]
pub(super) struct Flights {
    peer: usize,
    count: usize,
    bytes: usize,
}

impl NodeView {
    /// A session with a peer came or went. With one that went, places on the others may be given up.
    pub(super) fn session_flights(&mut self, peer: usize, session: SessionId, up: bool) {
        if up {
            self.flights.insert(session, Flights { peer, ..Flights::default() });
        } else {
            self.flights.retain(|_, flights| flights.peer != peer);
        }
    }
}

impl Entry {
    /// An offer of it of so many bytes left on a session. If its attempt was counted in the same
    /// commit, the offer may be one that was already given up for the next.
    pub(super) fn takes_off(
        &mut self,
        flights: &mut BTreeMap<SessionId, Flights>,
        commit: u64,
        session: SessionId,
        len: usize,
    ) {
        self.lands(flights);
        if self.flies_unseen || self.pending.is_none() || self.attempted_in == commit {
            return;
        }
        if let Some(here) = flights.get_mut(&session) {
            here.count += 1;
            here.bytes += len;
            self.flies = Some((session, len));
        }
    }

    /// Its offer has no place in the window any more.
    pub(super) fn lands(&mut self, flights: &mut BTreeMap<SessionId, Flights>) {
        if let Some((session, len)) = self.flies.take()
            && let Some(there) = flights.get_mut(&session)
        {
            there.count = there.count.saturating_sub(1);
            there.bytes = there.bytes.saturating_sub(len);
        }
    }
}

impl Checker {
    /// A peer of `node` refused offers of a session, whose references the peer got on `there`.
    pub fn refused(&mut self, node: usize, peer: usize, there: SessionId, refs: &[RefRange]) {
        for reference in refs.iter().flat_map(|range| range.iter().take(1 << 16)) {
            let offered =
                self.nodes.get(peer).and_then(|view| view.offered.get(&(there, reference)));
            let Some(offered) = offered.copied() else {
                // The peer has restarted since: what it refused before cannot be told any more.
                if let Some(view) = self.nodes.get_mut(node) {
                    view.flights.retain(|_, flights| flights.peer != peer);
                }
                continue;
            };
            let Some((issuer, number)) = offered else { continue };
            let Some(view) = self.nodes.get_mut(node).filter(|_| issuer == node) else { continue };
            if let Some(entry) = view.entries.numbered_mut(number) {
                entry.flies_unseen = true;
                entry.lands(&mut view.flights);
            }
        }
    }

    /// Whether the offers in flight on a session of `node` are inside its window.
    pub(super) fn window_rule(&mut self, at: u64, node: usize, session: SessionId) {
        let (window, window_bytes) = (self.bounds.window, self.bounds.window_bytes);
        let over = |flights: &Flights| {
            flights.count > window || (flights.bytes > window_bytes && flights.count > 1)
        };
        let Some(view) = self.nodes.get(node) else { return };
        if !view.flights.get(&session).is_some_and(over) {
            return;
        }
        // A decline past the deadline gives a place up, and nobody outside sees it.
        let soon = Time::from_ms(at + self.bounds.skew_ms);
        let mut flights = Flights::default();
        for id in view.nums.values() {
            let flies = view
                .entries
                .get(id.as_str())
                .filter(|entry| entry.deadline_at.is_some_and(|deadline| deadline > soon))
                .and_then(|entry| entry.flies.filter(|(on, _)| *on == session));
            if let Some((_, len)) = flies {
                flights.count += 1;
                flights.bytes += len;
            }
        }
        if over(&flights) {
            let Flights { count, bytes, .. } = flights;
            let detail = format!(
                "{count} offers of {bytes} bytes are in flight on session {}, {window} of {window_bytes} allowed",
                session.0
            );
            self.breach("BD-1", Class::Safety, at, node, detail);
        }
    }
}
