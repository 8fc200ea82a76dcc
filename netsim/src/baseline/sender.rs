//! The issuer's side: taking obligations, sending, repeating, giving up.

use super::disk::Work;
use super::sim::{Event, Frame, Said, Sim};
use super::{Answer, Traits};
use crate::world::{CLIENT_PATIENCE_MS, DOWN_PATIENCE_MS};
use proto::record::Terminal;

/// What a sender keeps of an obligation it has taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pending {
    retries: u32,
    retry_at: u64,
}

impl Sim {
    /// A client asks for its obligations, again until they are taken.
    pub(super) fn ask(&mut self, client: usize) {
        let Some(call) = self.clients.get(client).cloned() else { return };
        let open: Vec<usize> =
            call.into_iter().filter(|ob| self.obs.get(*ob).is_some_and(|ob| !ob.taken)).collect();
        let Some(issuer) = open.first().and_then(|ob| Some(self.obs.get(*ob)?.issuer)) else {
            return;
        };
        if !self.is_up(issuer) {
            return self.schedule(self.now + DOWN_PATIENCE_MS, Event::Ask { client });
        }
        for number in open {
            let now = self.now;
            if let Some(ob) = self.obs.get_mut(number) {
                ob.asked_at.get_or_insert(now);
                ob.deadline_at = now + ob.deadline_ms;
            }
            if self.traits.durable {
                self.write(issuer, Work::Take(number));
            } else {
                self.take(issuer, number);
            }
        }
        if self.traits.durable {
            self.schedule(self.now + CLIENT_PATIENCE_MS, Event::Ask { client });
        }
    }

    /// An obligation is taken: its call is answered.
    pub(super) fn take(&mut self, node: usize, number: usize) {
        let Some(ob) = self.obs.get_mut(number) else { return };
        ob.taken = true;
        let target = ob.target;
        if self.traits.retries {
            if let Some(node) = self.nodes.get_mut(node) {
                node.pending.insert(number, Pending::default());
            }
            self.arm(node, number);
        }
        let sent = self.offer(node, number);
        // A sender on streams waits for the connection, for as long as one would live idle.
        if !sent && !self.traits.retries && self.streams() {
            let until = self.now + self.options.idle_ms;
            self.waiting.entry((node, target)).or_default().push((until, number));
        }
    }

    /// Sets the timers of a pending obligation: the next retry, and the deadline.
    pub(super) fn arm(&mut self, node: usize, number: usize) {
        let Some(deadline) = self.obs.get(number).map(|ob| ob.deadline_at) else { return };
        let life = self.nodes.get(node).map_or(0, |node| node.life);
        self.schedule(deadline, Event::Deadline { node, life, ob: number });
        self.next_retry(node, number);
    }

    fn next_retry(&mut self, node: usize, number: usize) {
        let (now, options) = (self.now, &self.options);
        let seed = options.seed ^ number as u64;
        let Some(state) = self.nodes.get_mut(node) else { return };
        let life = state.life;
        let Some(pending) = state.pending.get_mut(&number) else { return };
        let at = now + options.backoff.delay_ms(pending.retries, seed);
        pending.retry_at = at;
        self.schedule(at, Event::Retry { node, life, ob: number, at });
    }

    pub(super) fn retry(&mut self, node: usize, number: usize, at: u64) {
        let deadline_ms = self.obs.get(number).map_or(0, |ob| ob.deadline_ms);
        let needed = self.options.backoff.retries_needed(deadline_ms);
        let budget = self.options.retries.map_or(needed, u64::from);
        let pending = self.nodes.get_mut(node).and_then(|node| node.pending.get_mut(&number));
        let Some(pending) = pending.filter(|pending| pending.retry_at == at) else { return };
        if u64::from(pending.retries) >= budget {
            return self.give_up(node, number);
        }
        pending.retries += 1;
        self.next_retry(node, number);
        self.offer(node, number);
    }

    fn offer(&mut self, node: usize, number: usize) -> bool {
        let Some(target) = self.obs.get(number).map(|ob| ob.target) else { return false };
        let sent = self.send(node, target, Frame::Offer(number));
        if let Some(ob) = self.obs.get_mut(number) {
            ob.attempts += u32::from(sent);
        }
        sent
    }

    /// A connection of `node` with `peer` is up: what is pending goes out on it, and what waited.
    pub(super) fn connected(&mut self, node: usize, peer: usize) {
        let to_peer = |number: &usize| self.obs.get(*number).is_some_and(|ob| ob.target == peer);
        let pending: Vec<usize> = self
            .nodes
            .get(node)
            .map(|node| node.pending.keys().copied().filter(to_peer).collect())
            .unwrap_or_default();
        let waiting = self.waiting.remove(&(node, peer)).unwrap_or_default();
        let in_time = waiting.into_iter().filter(|(until, _)| *until >= self.now);
        let all: Vec<usize> = pending.into_iter().chain(in_time.map(|(_, ob)| ob)).collect();
        for number in all {
            self.offer(node, number);
        }
    }

    /// The receiver answered.
    pub(super) fn answered(&mut self, node: usize, number: usize, said: Said) {
        let Traits { retries, durable, answer, .. } = self.traits;
        let terminal = match said {
            Said::Applied => Terminal::Applied,
            Said::Declined => Terminal::Declined,
            Said::Later { .. } => return,
        };
        if let Some(ob) = self.obs.get_mut(number) {
            ob.answered = true;
        }
        let known = self.nodes.get_mut(node).is_some_and(|n| n.pending.remove(&number).is_some());
        if retries && known {
            if durable {
                self.write(node, Work::End(number, terminal));
            } else {
                self.tell(number, terminal);
            }
        }
        debug_assert!(answer != Answer::None, "nobody asked for an answer");
    }

    /// The deadline has passed, or the budget is spent.
    pub(super) fn give_up(&mut self, node: usize, number: usize) {
        let known = self.nodes.get_mut(node).is_some_and(|n| n.pending.remove(&number).is_some());
        if known && self.traits.fail_safe {
            self.write(node, Work::End(number, Terminal::Escalated));
        }
    }
}
