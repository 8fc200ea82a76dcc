//! Connections between nodes and what is sent on them, after the core's world.

use super::sim::{Event, Frame, Sim};
use crate::net::Packet;
use crate::world::{DRAIN_MS_MAX, PACKET_OVERHEAD, RESEND_MS_MAX};

/// Bytes of an answer beside the overhead of its frame.
const ANSWER_LEN: usize = 64;

/// Bytes of a flight of a handshake.
const FLIGHT_LEN: usize = 1_200;
/// How often a flight is sent before its handshake goes on without it.
const FLIGHT_PROBES_MAX: u32 = 4;
/// How long a flight without an answer is waited for, the first time, in milliseconds.
const PROBE_MS: u64 = 1_000;

/// One end of a connection. The number of the other end differs in the last bit.
#[derive(Debug)]
pub(super) struct End {
    pub(super) node: usize,
    pub(super) peer: usize,
}

impl Sim {
    /// The newest connection of a node with a peer.
    fn end_with(&self, node: usize, peer: usize) -> Option<u64> {
        let mut ends = self.ends.iter().rev();
        ends.find(|(_, end)| (end.node, end.peer) == (node, peer)).map(|(number, _)| *number)
    }

    /// Sends a frame to a peer, if there is a connection. Says whether it went out.
    pub(super) fn send(&mut self, node: usize, peer: usize, frame: Frame) -> bool {
        let Some(end) = self.end_with(node, peer) else { return false };
        self.frames += 1;
        let after = self.streams().then(|| 2 * self.net.delay_max(node, peer) + 10);
        self.route(end, frame, after);
        true
    }

    /// Puts a frame on its way. A stream sends it again `after` a while if it is lost, for as long as
    /// the connection lives.
    pub(super) fn route(&mut self, number: u64, frame: Frame, after: Option<u64>) {
        let Some(end) = self.ends.get(&number) else { return };
        let (from, to) = (end.node, end.peer);
        let len = PACKET_OVERHEAD
            + match frame {
                Frame::Offer(ob) => self.obs.get(ob).map_or(0, |ob| ob.len),
                Frame::Answer(..) => ANSWER_LEN,
            };
        self.bytes += len as u64;
        match (self.net.packet(from, to, self.now, len), after) {
            // A second copy of a packet is dropped by its number.
            (Packet::Arrives { after, .. }, _) => {
                self.schedule(self.now + after, Event::Deliver { to: number ^ 1, frame });
            }
            (_, Some(after)) => {
                let next = (after * 2).min(RESEND_MS_MAX);
                let event = Event::Resend { end: number, frame, after: next };
                self.schedule(self.now + after, event);
            }
            (_, None) => {}
        }
    }

    pub(super) fn deliver(&mut self, to: u64, frame: Frame) {
        let Some(end) = self.ends.get(&to) else { return };
        let node = end.node;
        match frame {
            Frame::Offer(ob) => self.received(node, ob),
            Frame::Answer(ob, said) => self.answered(node, ob, said),
        }
    }

    pub(super) fn dial_if_needed(&mut self, a: usize, b: usize) {
        if a != b && !(self.end_with(a, b).is_some() && self.end_with(b, a).is_some()) {
            let pair = (a.min(b), a.max(b));
            if self.is_up(a) && self.is_up(b) && self.dialing.insert(pair) {
                let at = self.now + 1 + self.handshake(pair.0, pair.1);
                self.schedule(at, Event::Dialed { a: pair.0, b: pair.1 });
            }
        }
    }

    /// How long a handshake takes: three flights, each sent again until it arrives.
    fn handshake(&mut self, a: usize, b: usize) -> u64 {
        let mut takes = 0;
        for (from, to) in [(a, b), (b, a), (a, b)] {
            for probe in 0..FLIGHT_PROBES_MAX {
                if let Packet::Arrives { after, .. } =
                    self.net.packet(from, to, self.now, FLIGHT_LEN)
                {
                    takes += after;
                    break;
                }
                takes += PROBE_MS << probe;
            }
        }
        takes
    }

    pub(super) fn dialed(&mut self, a: usize, b: usize) {
        self.dialing.remove(&(a, b));
        if !(self.is_up(a) && self.is_up(b)) || self.net.cut_since(a, b, self.now).is_some() {
            return; // the restart or the end of the cut tries again
        }
        for number in self.ends_between(a, b) {
            let at = self.now + self.chance.range(0, DRAIN_MS_MAX);
            self.schedule(at, Event::EndDown { end: number });
        }
        let first = self.next_session * 2;
        self.next_session += 1;
        for (number, node, peer) in [(first, a, b), (first ^ 1, b, a)] {
            self.ends.insert(number, End { node, peer });
        }
        self.connected(a, b);
        self.connected(b, a);
    }

    fn ends_between(&self, a: usize, b: usize) -> Vec<u64> {
        let pair = |end: &End| (end.node, end.peer) == (a, b) || (end.node, end.peer) == (b, a);
        self.ends.iter().filter(|(_, end)| pair(end)).map(|(number, _)| *number).collect()
    }

    pub(super) fn end_down(&mut self, number: u64) {
        let Some(end) = self.ends.remove(&number) else { return };
        if self.ends.contains_key(&(number ^ 1)) {
            let at = self.now + self.chance.range(0, self.options.idle_ms);
            self.schedule(at, Event::EndDown { end: number ^ 1 });
        }
        self.dial_if_needed(end.node, end.peer);
    }

    /// All ends of a node that died are gone; the others notice after a while.
    pub(super) fn ends_of_dead(&mut self, node: usize) {
        let dead: Vec<u64> =
            self.ends.iter().filter(|(_, end)| end.node == node).map(|(n, _)| *n).collect();
        for number in dead {
            self.ends.remove(&number);
            let at = self.now + self.chance.range(1, self.options.idle_ms);
            self.schedule(at, Event::EndDown { end: number ^ 1 });
        }
    }

    pub(super) fn cut_begins(&mut self, from: usize, to: usize, until: u64) {
        self.net.cut(from, to, self.now, until);
        for number in self.ends_between(from, to) {
            let at = self.now + self.options.idle_ms + self.chance.range(0, 50);
            self.schedule(at, Event::Idle { end: number });
        }
        self.schedule(until, Event::CutEnds { from, to });
    }

    /// An idle timer: the connection is dead if its link has been cut all the while.
    pub(super) fn idle(&mut self, number: u64) {
        let Some(end) = self.ends.get(&number) else { return };
        let cut = self.net.cut_since(end.node, end.peer, self.now);
        if cut.is_some_and(|since| self.now - since >= self.options.idle_ms) {
            self.end_down(number);
        }
    }

    pub(super) fn cut_ends(&mut self, from: usize, to: usize) {
        if self.net.cut_since(from, to, self.now).is_none() {
            self.net.mend(from, to);
            self.net.mend(to, from);
            let wait = self.chance.range(0, self.options.reconnect.cap_ms);
            self.schedule(self.now + wait, Event::Redial { a: from, b: to });
        }
    }
}
