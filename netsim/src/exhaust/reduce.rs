//! Reductions: what is done at once because its order with everything else cannot be seen.

use super::action::{Copy, Side};
use super::machine::Work;
use super::rules::Rule;
use super::setup::Setup;
use super::state::World;
use super::wire::Message;
use proto::ack::AckStatus;
use proto::step::{Output, SessionId};

/// Alarms and steps of recovery in a row, before a node is called stuck.
pub(super) const ALARMS_MAX: usize = 16;

impl World {
    /// Lets alarms go off that write nothing and send nothing: early warnings, looks for something
    /// to forget that find nothing, retries that go nowhere. And recovery, as far as it is silent
    /// and nothing depends on how far it has come.
    pub(super) fn calm(&mut self, setup: &Setup) {
        for side in [Side::Custodian, Side::Receiver] {
            // One that never stops is seen by the check of liveness.
            for _ in 0..ALARMS_MAX {
                if !self.calm_once(setup, side) {
                    break;
                }
            }
        }
    }

    fn calm_once(&mut self, setup: &Setup, side: Side) -> bool {
        let machine = self.machine(side);
        let now = setup.clock(self.tick);
        if !machine.flights().is_empty() {
            return false;
        }
        let Some(work) = machine.next_work(now) else { return false };
        if setup.receiver.external() && matches!(work, Work::Recover) {
            return false; // a receiver answers differently before and after
        }
        let mut trial = machine.clone();
        if trial.handle(now, self.tick, work).is_err() {
            self.broken.add(Rule::TypeOk);
            return false;
        }
        let silent = trial.flights().iter().all(|flight| {
            let told =
                |output: &Output| !matches!(output, Output::Event(_) | Output::RetryDue { .. });
            flight.writes.is_empty() && !flight.outputs.iter().any(told)
        });
        if silent {
            trial.commit();
            *self.machine_mut(side) = trial;
        }
        silent
    }

    /// Has the receiver answer every copy of an offer that is in its ledger: the answer changes
    /// nothing there, and an ack more on the way only adds to what may happen.
    pub(super) fn answer_known(&mut self, setup: &Setup) {
        if !self.receiver.ready() || !self.receiver.flights().is_empty() {
            return;
        }
        let Some(open) = self.open() else { return };
        if !self.net.iter().any(Message::to_receiver) {
            return;
        }
        let Some(had) = super::look::ReceiverDisk::read(&self.receiver.store) else { return };
        for (item, had) in had.items.iter().enumerate().take(setup.items()) {
            let Some(status) = had.ledger else { continue };
            let unanswered: Vec<(SessionId, u64)> = self
                .copies(item)
                .map(|(session, reference, _)| (session, reference))
                .filter(|copy| copy.0 == open && !self.is_acked(*copy, status))
                .collect();
            for copy in unanswered {
                self.answer(setup, item, copy);
            }
        }
    }

    fn is_acked(&self, copy: (SessionId, u64), as_status: AckStatus) -> bool {
        self.net.iter().any(|message| match message {
            Message::Ack { session, reference, status, .. } => {
                (*session, *reference) == copy && *status == as_status
            }
            _ => false,
        })
    }

    fn answer(&mut self, setup: &Setup, item: usize, copy: (SessionId, u64)) {
        let inputs = self.offers(item, Copy::One(copy));
        self.work(setup, Side::Receiver, Work::Inputs(inputs));
        if self.receiver.flights().iter().any(|flight| !flight.writes.is_empty()) {
            self.broken.add(Rule::Ab3EffectivelyOnce); // a redelivery must change nothing
        }
        self.commit(setup, Side::Receiver);
    }
}
