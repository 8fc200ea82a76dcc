//! Sessions between nodes, and the frames on them.

use super::dial::Loop;
use super::relay::Moqt;
use super::wire::{PACKET_ROOM, damaged, frame_len, packet_len, packets, told};
use super::{Event, World};
use crate::check::Class;
use crate::net::{Mode, Packet};
use bytes::Bytes;
use proto::custody::Input;
use proto::frame::Frame;
use proto::id::AgentId;
use proto::step::SessionId;

/// Longest time between two attempts of a stream to send a lost packet, in milliseconds.
pub(crate) const RESEND_MS_MAX: u64 = 10_000;
/// Bytes a connection has under way at most before it has heard how much the path takes (RFC 9002, 7.2).
const WINDOW_BYTES: usize = 14_720;

/// What a session carries: frames from node to node, or what a node and a relay say to each other.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    Frame(Frame),
    Moqt(Moqt),
}

impl Load {
    /// For people.
    fn told(&self) -> String {
        match self {
            Self::Frame(frame) => told(frame),
            Self::Moqt(moqt) => moqt.told(),
        }
    }
}

/// A frame on its way.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(super) load: Load,
    /// Bytes of the frame.
    len: usize,
    /// Packets that have not got through.
    left: usize,
    /// When the last of the others is there.
    ready_at: u64,
    /// What its stream waits before it sends what was lost again; none if nobody does.
    resend_ms: Option<u64>,
}

/// One end of a session. Its other end has the session number that differs in the last bit.
#[derive(Debug)]
pub(crate) struct End {
    pub(super) node: usize,
    pub(super) peer: usize,
    pub(super) heard_at: u64,
    /// Who keeps the session.
    pub(super) of: Loop,
    /// Since when what it sent was lost and nothing was heard, and how many bytes that were.
    pub(super) lost_since: Option<u64>,
    pub(super) lost_bytes: usize,
}

pub(super) const fn other(session: SessionId) -> SessionId {
    SessionId(session.0 ^ 1)
}

impl World {
    /// The newest session end of a node with a peer.
    pub(super) fn session_with(&self, n: usize, peer: &AgentId) -> Option<SessionId> {
        self.custody(n)?.current_session(peer)
    }

    /// Sessions that the core of a node has, and with whom.
    pub(super) fn known_to(&self, n: usize) -> Vec<(SessionId, usize)> {
        match &self.relay {
            Some(relay) => relay.known_to(n),
            None => {
                let ends = self.ends.iter().filter(|(_, end)| end.node == n);
                ends.map(|(session, end)| (*session, end.peer)).collect()
            }
        }
    }

    /// Session ends of a node, any peer.
    pub(super) fn sessions_of(&self, n: usize) -> Vec<SessionId> {
        self.ends.iter().filter(|(_, end)| end.node == n).map(|(session, _)| *session).collect()
    }

    /// Sends a frame from this end of a session.
    pub(super) fn send(&mut self, session: SessionId, frame: Frame, unreliable: bool) {
        if self.relay.is_some() {
            return self.publish(session, frame);
        }
        let Some(end) = self.ends.get(&session) else { return };
        let from = end.node;
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
        let len = frame_len(&frame);
        debug_assert_eq!(len, frame.encode().len(), "{frame:?}");
        let lossy = unreliable || self.options.mode == Mode::Datagrams;
        self.carry(session, Load::Frame(frame), len, lossy);
    }

    /// Sends `len` bytes from this end of a session.
    pub(super) fn carry(&mut self, session: SessionId, load: Load, len: usize, lossy: bool) {
        let Some(end) = self.ends.get(&session) else { return };
        let (from, to) = (end.node, end.peer);
        self.frames += 1;
        self.note(Some(from), || format!("to {to} on session {}: {}", session.0, load.told()));
        let resend_ms = (!lossy).then(|| 2 * self.net.delay_max(from, to) + 10);
        let left = packets(len);
        let parcel = Box::new(Parcel { load, len, left, ready_at: self.now, resend_ms });
        if let Some(probe) = resend_ms.and_then(|first| self.probe_after(session, first)) {
            return self.schedule(self.now + probe, Event::Resend { session, parcel });
        }
        self.route(session, parcel);
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

    /// Puts the packets of a frame on their way, those that have not got through yet.
    fn route(&mut self, session: SessionId, mut parcel: Box<Parcel>) {
        let Some(end) = self.ends.get(&session) else { return };
        let (from, peer) = (end.node, end.peer);
        let to = other(session);
        if self.net.vanishes(from, peer) {
            return;
        }
        let mut lost = 0;
        let mut second = None;
        for left in (0..parcel.left).rev() {
            let len = packet_len(parcel.len, left);
            self.bytes += len as u64;
            if let Some(node) = self.nodes.get_mut(from) {
                node.sent_bytes += len as u64;
            }
            match self.net.packet(from, peer, self.now, len) {
                Packet::Lost => lost += 1,
                Packet::Arrives { after, again } => {
                    parcel.ready_at = parcel.ready_at.max(self.now + after);
                    second = again.filter(|_| parcel.len <= PACKET_ROOM);
                }
                Packet::Damaged { after, bits } => {
                    if self.misread(session, &parcel.load, bits, after) {
                        return;
                    }
                    lost += 1;
                }
            }
        }
        if lost == 0 {
            if let Some(second) = second {
                let copy = Parcel { load: parcel.load.clone(), ..*parcel };
                let event = Event::Deliver { to, parcel: Box::new(copy) };
                self.schedule(self.now + second, event);
            }
            return self.schedule(parcel.ready_at, Event::Deliver { to, parcel });
        }
        parcel.left = lost;
        match parcel.resend_ms {
            Some(wait_ms) => {
                let first = 2 * self.net.delay_max(from, peer) + 10;
                if let Some(end) = self.ends.get_mut(&session) {
                    end.lost_since.get_or_insert(self.now);
                    end.lost_bytes += parcel.len;
                }
                let wait_ms = self.probe_after(session, first).unwrap_or(wait_ms);
                parcel.resend_ms = Some((wait_ms * 2).min(RESEND_MS_MAX));
                self.schedule(self.now + wait_ms, Event::Resend { session, parcel });
            }
            None => self.note(Some(from), || format!("lost to {peer}: {}", parcel.load.told())),
        }
    }

    /// A frame some bits of which are flipped reaches its reader. One that does not decode is a
    /// fault of the peer and ends the session; returns whether it did. One that does is dropped: an
    /// AEAD that misses it is none.
    fn misread(&mut self, session: SessionId, load: &Load, bits: u64, after: u64) -> bool {
        let frame = match load {
            Load::Frame(frame) => frame,
            Load::Moqt(moqt) => {
                self.altered(session, moqt, bits);
                return false;
            }
        };
        match damaged(frame, bits) {
            Some(Err(error)) => {
                self.note(None, || format!("session {} ends: {error}", session.0));
                let at = self.now + after;
                self.schedule(at, Event::EndDown { session: other(session) });
                self.schedule(at + after, Event::EndDown { session });
                true
            }
            Some(Ok(read)) => {
                let node = self.ends.get(&session).map_or(0, |end| end.node);
                if Frame::decode(read.encode()).as_ref() != Ok(&read) {
                    let detail = format!("{read:?} was read, and is not written so");
                    self.checker.breach("WR-1", Class::Safety, self.now, node, detail);
                }
                false
            }
            None => false,
        }
    }

    /// A stream repeats what was lost of a frame, as long as its session lives.
    pub(super) fn resend(&mut self, session: SessionId, mut parcel: Box<Parcel>) {
        let sender = self.ends.get(&session).map(|end| end.node);
        if let Some(until) = sender.and_then(|node| self.paused(node)) {
            return self.schedule(until, Event::Resend { session, parcel });
        }
        parcel.ready_at = parcel.ready_at.max(self.now);
        self.route(session, parcel);
    }

    pub(super) fn deliver(&mut self, session: SessionId, load: Load) {
        let Some(end) = self.ends.get_mut(&session) else { return };
        end.heard_at = self.now;
        (end.lost_since, end.lost_bytes) = (None, 0);
        let (node, peer) = (end.node, end.peer);
        self.net.found(node, peer);
        self.note(Some(node), || format!("from {peer} on session {}: {}", session.0, load.told()));
        // Its ack goes back, whatever the frame says.
        if !self.net.is_cut(node, peer, self.now)
            && let Some(sender) = self.ends.get_mut(&other(session))
        {
            sender.heard_at = self.now;
            (sender.lost_since, sender.lost_bytes) = (None, 0);
        }
        let frame = match load {
            Load::Frame(frame) => frame,
            Load::Moqt(moqt) => return self.moqt_arrives(session, node, moqt),
        };
        let input = match frame {
            Frame::Offers { first_ref, items } => {
                self.checker.offered(node, peer, session, first_ref, &items);
                Input::Offers { session, first_ref, items }
            }
            Frame::BestEffort { items } => Input::BestEffort { session, items },
            Frame::AckRuns(runs) => {
                self.checker.acked(self.now, node, peer, other(session), &runs);
                Input::AckRuns { session, runs }
            }
            Frame::Acks(acks) | Frame::Answer { acks, .. } => {
                self.checker.acked_by_id(self.now, node, peer, &acks);
                let Some(peer) = self.name_of(peer) else { return };
                Input::Acks { peer, acks }
            }
            Frame::Query { query_ref, ids } => Input::Query { session, query_ref, ids },
            Frame::Probe { nonce, id } => Input::Probe { session, nonce, id },
            Frame::Refuse { refs, code, retry_after_ms, .. } => {
                self.checker.refused(node, peer, other(session), &refs);
                Input::Refused { session, refs, code, retry_after_ms }
            }
            Frame::Hello { .. } | Frame::ProbeReply { .. } => return,
        };
        self.input(node, input);
    }

    /// A custodian asks what became of some of its pending obligations.
    pub(super) fn ask_status(&mut self, node: usize, peer: usize, session: SessionId) {
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
        if let Some(end) = self.ends.get(&session)
            && let Some(until) = self.paused(end.node)
        {
            return self.schedule(until, Event::EndDown { session });
        }
        let Some(end) = self.remove_end(session) else { return };
        self.note(Some(end.node), || format!("session {} with {} is down", session.0, end.peer));
        if self.relay.is_some() {
            self.hop_down(session, end.node);
        } else {
            self.checker.session(self.now, end.node, end.peer, session, false);
            self.input(end.node, Input::SessionDown { session });
        }
        if self.ends.contains_key(&other(session)) {
            let at = self.now + self.drawn(session, 2).range(0, self.options.idle_ms);
            self.schedule(at, Event::EndDown { session: other(session) });
        }
        if !self.is_relay(end.node) {
            self.dial_if_needed(end.node, end.peer);
        }
    }

    /// All ends of a node that died are gone; the others notice after a while.
    pub(super) fn ends_of_dead(&mut self, n: usize) {
        for session in self.sessions_of(n) {
            self.remove_end(session);
            let at = self.now + self.drawn(session, 3).range(1, self.options.idle_ms);
            self.schedule(at, Event::EndDown { session: other(session) });
        }
    }

    /// Cuts one direction from now until `until`.
    pub(crate) fn cut_begins(&mut self, from: usize, to: usize, until: u64) {
        self.net.cut(from, to, self.now, until);
        self.idles_later(from, to);
        if until != u64::MAX {
            self.schedule(until, Event::CutEnds { from, to });
        }
    }

    /// Looks whether sessions of a link that is cut are idle for too long, when they would be.
    pub(super) fn idles_later(&mut self, from: usize, to: usize) {
        let pair =
            |end: &End| (end.node, end.peer) == (from, to) || (end.node, end.peer) == (to, from);
        let ends: Vec<SessionId> =
            self.ends.iter().filter(|(_, end)| pair(end)).map(|(session, _)| *session).collect();
        for session in ends {
            self.idle_later(session);
        }
    }

    /// Looks whether a session is idle for too long, when it would be.
    pub(super) fn idle_later(&mut self, session: SessionId) {
        let at = self.now + self.options.idle_ms + self.drawn(session, 4).range(0, 50);
        self.schedule(at, Event::Idle { session });
    }

    /// An idle timer: the session is dead if its link has been cut, or its peer has stood still, all
    /// the while.
    pub(super) fn idle(&mut self, session: SessionId) {
        let Some(end) = self.ends.get(&session) else { return };
        let cut = self.net.cut_since(end.node, end.peer, self.now);
        let still = [end.node, end.peer].into_iter().filter_map(|n| {
            let (until, since) = self.nodes.get(n)?.paused?;
            (self.now < until).then_some(since)
        });
        let since = cut.into_iter().chain(still).min();
        if since.is_some_and(|since| self.now - since >= self.options.idle_ms) {
            self.end_down(session);
        }
    }

    /// One direction may be whole again.
    pub(crate) fn cut_ends(&mut self, from: usize, to: usize) {
        if self.net.cut_since(from, to, self.now).is_none() {
            self.net.mend(from, to);
            self.net.mend(to, from);
        }
    }

    /// Randomness of one session and purpose.
    pub(super) const fn drawn(&self, session: SessionId, purpose: u64) -> ::link::Rng {
        ::link::Rng::new(self.options.seed ^ purpose << 56, 1 << 40 | session.0)
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
        if self.relay.is_some() {
            return self.offers_arrive(session, Default::default(), items);
        }
        self.deliver(session, Load::Frame(Frame::Offers { first_ref, items }));
    }
}
