//! Handshakes, as the node makes them: three flights that can be lost, given up after a while and
//! tried again after a backoff, for ever; and raced beside a session that is silent.

use super::{Event, World};
use crate::net::Packet;
use crate::node::Node;
use proto::id::AgentId;
use proto::step::SessionId;

use super::link::End;

/// Silence after which a retry tries a fresh handshake, in milliseconds.
const SILENT_MS: u64 = 1_000;
/// How long an older session lives beside a fresh one, at most, in milliseconds.
pub(crate) const DRAIN_MS_MAX: u64 = 2_000;
/// Bytes of a flight of a handshake.
const FLIGHT_LEN: usize = 1_200;
/// Flights until both sides have the session.
const FLIGHTS: u8 = 3;
/// How long a flight without an answer is waited for, the first time: QUIC's probe timeout before it
/// knows the path, in milliseconds. Doubles each time.
const PROBE_MS: u64 = 1_000;

/// Who keeps a session: the dialling node and its peer; or, if one session does for both, the two in
/// order.
pub(crate) type Loop = (usize, usize);

/// A handshake that is being tried, or waited for.
#[derive(Debug)]
pub(crate) struct Dial {
    number: u64,
    pub(super) from: usize,
    to: usize,
    failures: u32,
    begun_at: u64,
}

impl World {
    /// The loop by which a node keeps a session with a peer.
    fn loop_of(&self, n: usize, peer: usize) -> Loop {
        let one = !self.options.both_dial || self.relay.is_some();
        if one { (n.min(peer), n.max(peer)) } else { (n, peer) }
    }

    /// Sessions that a loop keeps, oldest first.
    fn kept_by(&self, of: Loop) -> impl Iterator<Item = (SessionId, &End)> {
        let sessions = self.kept.get(&of).into_iter().flatten();
        sessions.filter_map(|session| Some((*session, self.ends.get(session)?)))
    }

    pub(super) fn add_end(&mut self, session: SessionId, end: End) {
        self.kept.entry(end.of).or_default().push(session);
        self.ends.insert(session, end);
    }

    pub(super) fn remove_end(&mut self, session: SessionId) -> Option<End> {
        let end = self.ends.remove(&session)?;
        if let Some(kept) = self.kept.get_mut(&end.of) {
            kept.retain(|other| *other != session);
        }
        Some(end)
    }

    /// Whether a loop has no session that both its ends know of.
    fn lacks_session(&self, of: Loop) -> bool {
        let mut ends = self.kept_by(of).map(|(_, end)| end);
        if self.options.both_dial && self.relay.is_none() {
            return !ends.any(|end| end.node == of.0);
        }
        let (mut first, mut second) = (false, false);
        for end in ends {
            first |= end.node == of.0;
            second |= end.node == of.1;
        }
        !(first && second)
    }

    /// Tries a handshake unless there is a session or one is being tried.
    pub(super) fn dial_if_needed(&mut self, n: usize, peer: usize) {
        let of = self.loop_of(n, peer);
        if n != peer && !self.dialing.contains_key(&of) && self.lacks_session(of) {
            self.dial(of, n, peer, 0);
        }
    }

    /// The same, whatever was tried before.
    pub(super) fn dial_anew(&mut self, n: usize, peer: usize) {
        let of = self.loop_of(n, peer);
        if n != peer && self.lacks_session(of) {
            self.dial(of, n, peer, 0);
        }
    }

    fn dial(&mut self, of: Loop, from: usize, to: usize, failures: u32) {
        // A relay dials nobody.
        let (from, to) = match self.relay.is_some() {
            true => of,
            false if self.is_up(from) => (from, to),
            false => (to, from),
        };
        if !self.is_up(from) || (self.options.both_dial && from != of.0) {
            return;
        }
        let dial = self.remember_dial(of, from, to, failures);
        let event = Event::Flight { of, dial, flight: 0, wait_ms: PROBE_MS };
        self.schedule(self.now + 1, event);
    }

    fn remember_dial(&mut self, of: Loop, from: usize, to: usize, failures: u32) -> u64 {
        let number = self.next_dial;
        self.next_dial += 1;
        self.dialing.insert(of, Dial { number, from, to, failures, begun_at: self.now });
        number
    }

    fn current_dial(&self, of: Loop, number: u64) -> Option<&Dial> {
        self.dialing.get(&of).filter(|dial| dial.number == number)
    }

    /// A flight of a handshake is sent; a lost one is sent again when its probe timeout is over.
    pub(super) fn flight(&mut self, of: Loop, number: u64, flight: u8, wait_ms: u64) {
        let Some(dial) = self.current_dial(of, number) else { return };
        let (from, to, begun_at) = (dial.from, dial.to, dial.begun_at);
        if self.now - begun_at >= self.options.handshake_ms {
            return self.dial_failed(of);
        }
        if self.heard_since(of, from, begun_at) {
            self.dialing.remove(&of); // the silent session answered first
            return;
        }
        let (sender, reader) = if flight.is_multiple_of(2) { (from, to) } else { (to, from) };
        let both_run = self.runs(sender) && self.runs(reader);
        let packet = self.net.packet(sender, reader, self.now, FLIGHT_LEN);
        self.bytes += FLIGHT_LEN as u64;
        match packet {
            Packet::Arrives { after, .. } if both_run => {
                let next = flight + 1;
                let event = if next == FLIGHTS {
                    Event::Dialed { of, dial: number }
                } else {
                    Event::Flight { of, dial: number, flight: next, wait_ms: PROBE_MS }
                };
                self.schedule(self.now + after, event);
            }
            _ => {
                let gives_up = begun_at + self.options.handshake_ms;
                let event = Event::Flight { of, dial: number, flight, wait_ms: wait_ms * 2 };
                self.schedule((self.now + wait_ms).min(gives_up), event);
            }
        }
    }

    /// Whether the dialling node heard something on its session since `at`, so that no race is
    /// needed.
    fn heard_since(&self, of: Loop, from: usize, at: u64) -> bool {
        !self.lacks_session(of)
            && self.kept_by(of).any(|(_, end)| end.node == from && end.heard_at > at)
    }

    fn dial_failed(&mut self, of: Loop) {
        let Some(dial) = self.dialing.remove(&of) else { return };
        if !self.lacks_session(of) {
            return; // a race that came to nothing; the next retry may try again
        }
        let wait_ms = self.options.reconnect.delay_ms(dial.failures, self.options.seed);
        let failures = dial.failures.saturating_add(1);
        let number = self.remember_dial(of, dial.from, dial.to, failures);
        self.schedule(self.now + wait_ms, Event::Redial { of, dial: number });
    }

    pub(super) fn redial(&mut self, of: Loop, number: u64) {
        let Some(dial) = self.current_dial(of, number) else { return };
        let (from, to, failures) = (dial.from, dial.to, dial.failures);
        self.dialing.remove(&of);
        if self.lacks_session(of) {
            self.dial(of, from, to, failures);
        }
    }

    /// A handshake is done: both sides have a new session, and older ones of the same loop go.
    pub(super) fn dialed(&mut self, of: Loop, number: u64) {
        let Some(dial) = self.current_dial(of, number) else { return };
        let (from, to) = (dial.from, dial.to);
        if !(self.is_up(from) && self.is_up(to)) {
            return self.dial_failed(of);
        }
        self.dialing.remove(&of);
        let older: Vec<SessionId> = self.kept_by(of).map(|(session, _)| session).collect();
        for session in older {
            let at = self.now + self.drawn(session, 1).range(0, DRAIN_MS_MAX);
            self.schedule(at, Event::EndDown { session });
        }
        let first = SessionId(self.next_session * 2);
        self.next_session += 1;
        self.note(None, || format!("session {} of {from} and {to} is up", first.0));
        for (session, node, peer) in [(first, from, to), (super::link::other(first), to, from)] {
            let heard_at = self.now;
            let end = End { node, peer, heard_at, of, lost_since: None, lost_bytes: 0 };
            self.add_end(session, end);
            if self.relay.is_some() {
                continue;
            }
            self.checker.session(self.now, node, peer, session, true);
            let Some(id) = self.nodes.get(peer).map(|node| node.id.clone()) else { return };
            let window = self.options.window;
            self.input(node, proto::custody::Input::SessionUp { session, peer: id, window });
            self.ask_status(node, peer, session);
        }
        if self.relay.is_some() {
            self.hop_up(first, from);
        }
        if self.net.cut_since(from, to, self.now).is_some() {
            self.idle_later(first);
            self.idle_later(super::link::other(first));
        }
    }

    /// A retry is due: beside a silent session a fresh one is tried.
    pub(super) fn retry_due(&mut self, n: usize, peer: &AgentId) {
        if !self.options.racing {
            return;
        }
        let Some(peer) = self.by_name.get(peer).copied() else { return };
        let peer = self.relay.as_ref().map_or(peer, |relay| relay.node);
        let of = self.loop_of(n, peer);
        let newest = self.kept_by(of).filter(|(_, end)| end.node == n);
        let heard_at = newest.map(|(_, end)| end.heard_at).max();
        if heard_at.is_some_and(|at| self.now - at >= SILENT_MS) && !self.dialing.contains_key(&of)
        {
            self.note(Some(n), || format!("races its silent session with {peer}"));
            self.dial(of, n, peer, 0);
        }
    }

    /// The address a node sends from changes: what its peers send goes nowhere until they have heard
    /// from the new one.
    pub(super) fn rebind(&mut self, n: usize, fault: usize) {
        let mut rng = ::link::Rng::new(self.options.seed, 60_000 + fault as u64);
        for peer in self.neighbours(n) {
            // At the latest the next keep-alive tells them, half the idle time from now.
            let told_ms = 1 + rng.below(self.options.idle_ms / 2 + 1);
            let until = self.now + told_ms + self.net.delay_max(n, peer);
            self.net.goes_astray(peer, n, self.now, until);
            self.idles_later(peer, n);
        }
    }

    /// Mends both directions of a link, or cuts them for good.
    pub fn set_link(&mut self, a: usize, b: usize, whole: bool) {
        for (from, to) in [(a, b), (b, a)] {
            if whole {
                self.net.mend(from, to);
            } else {
                self.cut_begins(from, to, u64::MAX);
            }
        }
        if whole {
            self.dial_anew(a, b);
        }
    }

    /// The nodes a node has a link with: the relay, or all others.
    pub(super) fn neighbours(&self, n: usize) -> impl Iterator<Item = usize> + use<> {
        let relay = self.relay.as_ref().map(|relay| relay.node);
        (0..self.nodes.len()).filter(move |peer| {
            *peer != n && relay.is_none_or(|relay| n == relay || *peer == relay)
        })
    }

    /// Names of all nodes, by number.
    pub(super) fn name_of(&self, n: usize) -> Option<AgentId> {
        self.nodes.get(n).map(|node: &Node| node.id.clone())
    }
}
