//! The receiver's side: applying, answering, remembering.

use super::disk::Work;
use super::sim::{Event, Frame, Said, Sim};
use super::{Answer, Ledger};
use crate::world::Plan;

/// How long a receiver waits before it asks a handler again that said "later", in milliseconds.
const LATER_MS: u64 = 1_000;

impl Sim {
    /// A copy of an obligation reached its receiver.
    pub(super) fn received(&mut self, node: usize, number: usize) {
        let Some(ob) = self.obs.get(number) else { return };
        let (external, late) = (ob.external, self.now >= ob.deadline_at);
        if self.traits.answer == Answer::Receipt {
            self.answer(node, number, Said::Applied);
        }
        let Some(state) = self.nodes.get_mut(node) else { return };
        if state.ledger.contains(&number) {
            if self.traits.answer == Answer::Application {
                self.answer(node, number, Said::Applied);
            }
            return;
        }
        if late && self.traits.fail_safe {
            return; // the sender has escalated by now
        }
        if self.traits.ledger != Ledger::None && !state.applying.insert(number) {
            return;
        }
        if external {
            self.ask_handler(node, number);
        } else {
            self.write(node, Work::Apply(number));
        }
    }

    pub(super) fn answer(&mut self, node: usize, number: usize, said: Said) {
        if let Some(issuer) = self.obs.get(number).map(|ob| ob.issuer) {
            self.send(node, issuer, Frame::Answer(number, said));
        }
    }

    /// Asks the external system for an effect. It outlives crashes of the node; with the id as its
    /// key it has the effect once.
    pub(super) fn ask_handler(&mut self, node: usize, number: usize) {
        let longest = self.options.handler.call_ms_max;
        let takes = self.chance.range(0, longest);
        let answers = takes + self.chance.range(0, longest);
        let now = self.now;
        let Some(ob) = self.obs.get_mut(number) else { return };
        ob.calls += 1;
        let known = self.traits.ledger != Ledger::None && ob.called;
        let late = self.traits.fail_safe && now >= ob.deadline_at;
        let (said, effect) = match ob.plan {
            Plan::Doubt { .. } if known => (Said::Later { busy: false }, false),
            _ if known => (Said::Applied, false),
            _ if late => (Said::Later { busy: false }, false),
            Plan::Decline => (Said::Declined, false),
            Plan::Defer(times) if ob.calls <= times => (Said::Later { busy: true }, false),
            Plan::Unreached(times) if ob.calls <= times => (Said::Later { busy: false }, false),
            // Nobody can say, so nobody is told that it is done.
            Plan::Doubt { effect } => (Said::Later { busy: false }, effect),
            _ => (Said::Applied, true),
        };
        ob.called |= effect;
        if effect {
            self.effect(number, now + takes);
        }
        let life = self.nodes.get(node).map_or(0, |node| node.life);
        self.schedule(now + answers, Event::Decided { node, life, ob: number, said });
    }

    /// The external system answered.
    pub(super) fn decided(&mut self, node: usize, number: usize, said: Said) {
        let waits = self.traits.answer != Answer::Application;
        match said {
            Said::Applied => self.write(node, Work::Settle(number)),
            Said::Declined => {
                self.settled(node, number);
                if !waits {
                    self.answer(node, number, Said::Declined);
                }
            }
            Said::Later { .. } if waits => {
                let in_time = self.obs.get(number).is_some_and(|ob| self.now < ob.deadline_at);
                let life = self.nodes.get(node).map_or(0, |node| node.life);
                if in_time {
                    let again = Event::AskHandler { node, life, ob: number };
                    self.schedule(self.now + LATER_MS, again);
                }
            }
            Said::Later { busy } => {
                self.settled(node, number);
                if busy {
                    self.answer(node, number, said);
                }
            }
        }
    }

    /// It is not being applied any more.
    fn settled(&mut self, node: usize, number: usize) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.applying.remove(&number);
        }
    }

    /// What was applied is remembered, if the receiver remembers, and answered.
    pub(super) fn applied(&mut self, node: usize, number: usize) {
        self.remember(node, number);
        self.settled(node, number);
        if self.traits.answer == Answer::Application {
            self.answer(node, number, Said::Applied);
        }
    }

    pub(super) fn remember(&mut self, node: usize, number: usize) {
        if let Some(node) = self.nodes.get_mut(node)
            && self.traits.ledger != Ledger::None
        {
            node.ledger.insert(number);
        }
    }
}
