//! Sessions between nodes, and the frames on them.

use super::{Event, World};
use crate::check::Class;
use crate::net::{Mode, Route};
use bytes::Bytes;
use proto::custody::Input;
use proto::frame::Frame;
use proto::id::AgentId;
use proto::step::SessionId;

/// Silence after which a retry tries a fresh handshake, in milliseconds.
const SILENT_MS: u64 = 1_000;
/// How long an older session lives beside a fresh one, at most, in milliseconds.
pub(crate) const DRAIN_MS_MAX: u64 = 2_000;
/// Longest time between two attempts of a stream to send a lost packet, in milliseconds.
pub(crate) const RESEND_MS_MAX: u64 = 10_000;
/// Bytes a connection has under way at most before it has heard how much the path takes (RFC 9002, 7.2).
const WINDOW_BYTES: usize = 14_720;
/// Bytes of a frame beside its items, about: QUIC and UDP headers, tags.
pub(crate) const FRAME_OVERHEAD: usize = 60;

/// Bytes of a frame on the wire, about.
fn frame_len(frame: &Frame) -> usize {
    FRAME_OVERHEAD
        + match frame {
            Frame::Offers { items, .. } | Frame::BestEffort { items } => {
                items.iter().map(bytes::Bytes::len).sum()
            }
            Frame::AckRuns(runs) => runs.iter().map(|run| 16 + 4 * run.refs.len()).sum(),
            Frame::Acks(acks) | Frame::Answer { acks, .. } => 64 * acks.len(),
            _ => 32,
        }
}

/// One end of a session. Its other end has the session number that differs in the last bit.
#[derive(Debug)]
pub(super) struct End {
    node: usize,
    peer: usize,
    heard_at: u64,
    /// Since when what it sent was lost and nothing was heard, and how many bytes that were.
    lost_since: Option<u64>,
    lost_bytes: usize,
}

const fn other(session: SessionId) -> SessionId {
    SessionId(session.0 ^ 1)
}

impl World {
    /// The newest session end of a node with a peer.
    pub(super) fn session_with(&self, n: usize, peer: &AgentId) -> Option<SessionId> {
        self.custody(n)?.current_session(peer)
    }

    /// Session ends of a node, any peer.
    pub(super) fn sessions_of(&self, n: usize) -> Vec<SessionId> {
        self.ends.iter().filter(|(_, end)| end.node == n).map(|(session, _)| *session).collect()
    }

    pub(super) fn peer_of(&self, session: SessionId) -> Option<usize> {
        self.ends.get(&session).map(|end| end.peer)
    }

    fn has_end(&self, n: usize, peer: usize) -> bool {
        self.ends.values().any(|end| end.node == n && end.peer == peer)
    }

    /// Sends a frame from this end of a session.
    pub(super) fn send(&mut self, session: SessionId, frame: Frame, unreliable: bool) {
        let Some(end) = self.ends.get(&session) else { return };
        let (from, to) = (end.node, end.peer);
        self.frames += 1;
        let mut frame = frame;
        if self.options.wire {
            let bytes = frame.encode();
            match Frame::decode(bytes) {
                Ok(read) if read == frame => frame = read,
                Ok(read) => {
                    let detail = format!("{frame:?} reads back as {read:?}");
                    return self.checker.breach("WR-1", Class::Safety, self.now, from, detail);
                }
                Err(error) => {
                    let detail = format!("{frame:?} does not decode: {error}");
                    return self.checker.breach("WR-1", Class::Safety, self.now, from, detail);
                }
            }
        }
        let lossy = unreliable || self.options.mode == Mode::Datagrams;
        let after = if lossy { None } else { Some(self.net.resend_after(from, to)) };
        let frame = Box::new(frame);
        if let Some(probe) = after.and_then(|first| self.probe_after(session, first)) {
            let event = Event::Resend { session, frame, after: probe };
            return self.schedule(self.now + probe, event);
        }
        self.route(session, frame, after);
    }

    /// When a session that waits for its next probe sends again: the time between the probes of a
    /// connection doubles for as long as nothing is heard (RFC 9002, 6.2.1). None if it need not wait:
    /// it hears its peer, or what it lost fills no congestion window yet.
    fn probe_after(&self, session: SessionId, first: u64) -> Option<u64> {
        let end = self.ends.get(&session).filter(|_| self.options.probe_backoff)?;
        let since = end.lost_since.filter(|_| end.lost_bytes >= WINDOW_BYTES)?;
        let mut probe = since + first;
        while probe <= self.now {
            probe += probe - since;
        }
        Some(probe - self.now)
    }

    /// Puts a frame on its way. If it is lost and its stream will repeat it, `after` says when.
    fn route(&mut self, session: SessionId, frame: Box<Frame>, after: Option<u64>) {
        let Some(end) = self.ends.get(&session) else { return };
        let (from, peer) = (end.node, end.peer);
        let to = other(session);
        let len = frame_len(&frame);
        self.bytes += len as u64;
        match (self.net.route(from, peer, self.now, len), after) {
            (Route::Arrives { after, again, .. }, _) => {
                if let Some(again) = again {
                    let frame = frame.clone();
                    self.schedule(self.now + again, Event::Deliver { to, frame });
                }
                self.schedule(self.now + after, Event::Deliver { to, frame });
            }
            (Route::Lost, Some(after)) => {
                if let Some(end) = self.ends.get_mut(&session) {
                    end.lost_since.get_or_insert(self.now);
                    end.lost_bytes += len;
                }
                let first = self.net.resend_after(from, peer);
                let after = self.probe_after(session, first).unwrap_or(after);
                let next = (after * 2).min(RESEND_MS_MAX);
                let event = Event::Resend { session, frame, after: next };
                self.schedule(self.now + after, event);
            }
            (Route::Lost, None) | (Route::Gone, _) => {}
        }
    }

    /// A stream repeats a frame, as long as its session lives.
    pub(super) fn resend(&mut self, session: SessionId, frame: Box<Frame>, after: u64) {
        self.route(session, frame, Some(after));
    }

    pub(super) fn deliver(&mut self, session: SessionId, frame: Frame) {
        let Some(end) = self.ends.get_mut(&session) else { return };
        end.heard_at = self.now;
        (end.lost_since, end.lost_bytes) = (None, 0);
        let (node, peer) = (end.node, end.peer);
        let Some(from) = self.nodes.get(peer).map(|node| node.id.clone()) else { return };
        let input = match frame {
            Frame::Offers { first_ref, items } => {
                self.checker.offered(node, peer, session, first_ref, &items);
                Input::Offers { session, first_ref, items }
            }
            Frame::BestEffort { items } => Input::BestEffort { session, items },
            Frame::AckRuns(runs) => Input::AckRuns { session, runs },
            Frame::Acks(acks) | Frame::Answer { acks, .. } => Input::Acks { peer: from, acks },
            Frame::Query { query_ref, ids } => Input::Query { session, query_ref, ids },
            Frame::Probe { nonce, id } => Input::Probe { session, nonce, id },
            Frame::Refuse { refs, code, retry_after_ms, .. } => {
                Input::Refused { session, refs, code, retry_after_ms }
            }
            Frame::Hello { .. } | Frame::ProbeReply { .. } => return,
        };
        self.input(node, input);
    }

    /// Tries a handshake unless both sides have a session or one is being tried.
    pub(super) fn dial_if_needed(&mut self, a: usize, b: usize) {
        if a != b && !(self.has_end(a, b) && self.has_end(b, a)) {
            self.dial(a, b);
        }
    }

    fn dial(&mut self, a: usize, b: usize) {
        let pair = (a.min(b), a.max(b));
        if self.is_up(a) && self.is_up(b) && self.dialing.insert(pair) {
            let at = self.now + 1 + self.net.handshake(pair.0, pair.1);
            self.schedule(at, Event::Dialed { a: pair.0, b: pair.1 });
        }
    }

    pub(super) fn dialed(&mut self, a: usize, b: usize) {
        self.dialing.remove(&(a, b));
        if !(self.is_up(a) && self.is_up(b)) || self.net.cut_since(a, b, self.now).is_some() {
            return; // the restart or the end of the cut tries again
        }
        let older: Vec<SessionId> = self
            .ends
            .iter()
            .filter(|(_, end)| (end.node, end.peer) == (a, b) || (end.node, end.peer) == (b, a))
            .map(|(session, _)| *session)
            .collect();
        for session in older {
            let at = self.now + self.chance.range(0, DRAIN_MS_MAX);
            self.schedule(at, Event::EndDown { session });
        }
        let first = SessionId(self.next_session * 2);
        self.next_session += 1;
        for (session, node, peer) in [(first, a, b), (other(first), b, a)] {
            self.ends.insert(
                session,
                End { node, peer, heard_at: self.now, lost_since: None, lost_bytes: 0 },
            );
            self.checker.session(self.now, node, peer);
            let Some(id) = self.nodes.get(peer).map(|node| node.id.clone()) else { return };
            let window = self.options.window;
            self.input(node, Input::SessionUp { session, peer: id, window });
            self.ask_status(node, peer, session);
        }
    }

    /// A custodian asks what became of some of its pending obligations.
    fn ask_status(&mut self, node: usize, peer: usize, session: SessionId) {
        if !self.options.queries {
            return;
        }
        let ids = self.checker.pending_of(node, peer, 8);
        if !ids.is_empty() {
            self.send(session, Frame::Query { query_ref: session.0, ids }, false);
        }
    }

    /// This end of a session is gone: its node hears of it, if it lives.
    pub(super) fn end_down(&mut self, session: SessionId) {
        let Some(end) = self.ends.remove(&session) else { return };
        self.checker.session(self.now, end.node, end.peer);
        self.input(end.node, Input::SessionDown { session });
        if self.ends.contains_key(&other(session)) {
            let at = self.now + self.chance.range(0, self.options.idle_ms);
            self.schedule(at, Event::EndDown { session: other(session) });
        }
        self.dial_if_needed(end.node, end.peer);
    }

    /// All ends of a node that died are gone; the others notice after a while.
    pub(super) fn ends_of_dead(&mut self, n: usize) {
        for session in self.sessions_of(n) {
            self.ends.remove(&session);
            let at = self.now + self.chance.range(1, self.options.idle_ms);
            self.schedule(at, Event::EndDown { session: other(session) });
        }
    }

    /// Cuts one direction from now until `until`.
    pub(crate) fn cut_begins(&mut self, from: usize, to: usize, until: u64) {
        self.net.cut(from, to, self.now, until);
        let pair =
            |end: &End| (end.node, end.peer) == (from, to) || (end.node, end.peer) == (to, from);
        let ends: Vec<SessionId> =
            self.ends.iter().filter(|(_, end)| pair(end)).map(|(session, _)| *session).collect();
        for session in ends {
            let at = self.now + self.options.idle_ms + self.chance.range(0, 50);
            self.schedule(at, Event::Idle { session });
        }
        if until != u64::MAX {
            self.schedule(until, Event::CutEnds { from, to });
        }
    }

    /// An idle timer: the session is dead if its link has been cut all the while.
    pub(super) fn idle(&mut self, session: SessionId) {
        let Some(end) = self.ends.get(&session) else { return };
        let cut = self.net.cut_since(end.node, end.peer, self.now);
        if cut.is_some_and(|since| self.now - since >= self.options.idle_ms) {
            self.end_down(session);
        }
    }

    /// One direction may be whole again.
    pub(crate) fn cut_ends(&mut self, from: usize, to: usize) {
        if self.net.cut_since(from, to, self.now).is_none() {
            self.net.mend(from, to);
            self.net.mend(to, from);
            self.redial(from, to);
        }
    }

    /// The next dial of a pair that lost its session comes within the time that dials are apart.
    fn redial(&mut self, a: usize, b: usize) {
        if self.options.redial_ms_max == 0 {
            return self.dial_if_needed(a, b);
        }
        let at = self.now + self.chance.range(0, self.options.redial_ms_max);
        self.schedule(at, Event::Redial { a, b });
    }

    /// A retry is due: beside a silent session a fresh one is tried.
    pub(super) fn retry_due(&mut self, n: usize, peer: &AgentId) {
        let Some(session) = self.session_with(n, peer) else { return };
        let Some(end) = self.ends.get(&session) else { return };
        let (silent, peer) = (self.now - end.heard_at >= SILENT_MS, end.peer);
        if self.options.racing && silent {
            self.dial(n, peer);
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
            self.dial_if_needed(a, b);
        }
    }

    /// Loses the next `count` frames from `a` to `b`.
    pub fn drop_next(&mut self, a: usize, b: usize, count: u32) {
        self.net.drop_next.insert((a, b), count);
    }

    /// Duplicates the next `count` frames from `a` to `b`.
    pub fn duplicate_next(&mut self, a: usize, b: usize, count: u32) {
        self.net.duplicate_next.insert((a, b), count);
    }

    /// Puts offers into a node as if they came from `peer`, on the session they share.
    pub(crate) fn inject_offers(&mut self, session: SessionId, first_ref: u64, items: Vec<Bytes>) {
        self.deliver(session, Frame::Offers { first_ref, items });
    }
}
