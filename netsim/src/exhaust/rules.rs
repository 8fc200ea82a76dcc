//! What must hold: the properties of the paper's TLA+ model by their names there, and what it has
//! no words for.

use super::action::{Side, at_rest};
use super::look::{CustodianDisk, ReceiverDisk, Seen};
use super::machine::Flight;
use super::reduce::ALARMS_MAX;
use super::setup::Setup;
use super::state::{World, number};
use crate::disk::SimStore;
use proto::ack::AckStatus;
use proto::custody::Memory;
use proto::obligation::Obligation;
use proto::record::{Attempt, Cell, Ledger, Outcome, Pending, Terminal};
use proto::store::{Table, Write};
use serde::Serialize;

/// A property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
pub enum Rule {
    /// Every record is readable, an obligation is in one place, and memory agrees with the disk.
    TypeOk,
    /// Retries are bounded, and no crash gives any back.
    Ab2Persistence,
    /// The effect happens at most once.
    Ab3EffectivelyOnce,
    /// An escalated obligation has its escalation filed and `safe(O)` applied, once; a declined
    /// one has `safe(O)` applied, or is put before the principal; any other has neither.
    Ab4FailSafe,
    /// What was taken, or its client told so, is pending or discharged, whatever happened since.
    DeliverOrReport,
    /// What is inadmissible is never under custody and never escalated.
    BenignSideBestEffort,
    /// An effect and its ledger entry are on the disk together.
    Le1Together,
    /// Nothing is offered, and no caller told, before it is on the disk.
    Ab1DiskFirst,
    /// A terminal state is final.
    Ts1Final,
    /// Nothing is applied at or past its deadline.
    Dl1NotLate,
    /// What the custodian calls applied was applied.
    AppliedIsApplied,
    /// What the custodian calls declined was not, and never will be.
    DeclinedIsNotApplied,
    /// Liveness: every obligation taken ends applied, declined or escalated.
    Live,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::TypeOk,
        Self::Ab2Persistence,
        Self::Ab3EffectivelyOnce,
        Self::Ab4FailSafe,
        Self::DeliverOrReport,
        Self::BenignSideBestEffort,
        Self::Le1Together,
        Self::Ab1DiskFirst,
        Self::Ts1Final,
        Self::Dl1NotLate,
        Self::AppliedIsApplied,
        Self::DeclinedIsNotApplied,
        Self::Live,
    ];

    /// Its name; the first six and the last as in `Abhyasa.tla`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TypeOk => "TypeOK",
            Self::Ab2Persistence => "AB2Persistence",
            Self::Ab3EffectivelyOnce => "AB3EffectivelyOnce",
            Self::Ab4FailSafe => "AB4FailSafe",
            Self::DeliverOrReport => "DeliverOrReport",
            Self::BenignSideBestEffort => "BenignSideBestEffort",
            Self::Le1Together => "LE1Together",
            Self::Ab1DiskFirst => "AB1DiskFirst",
            Self::Ts1Final => "TS1Final",
            Self::Dl1NotLate => "DL1NotLate",
            Self::AppliedIsApplied => "AppliedIsApplied",
            Self::DeclinedIsNotApplied => "DeclinedIsNotApplied",
            Self::Live => "DeliverOrReportLive",
        }
    }
}

/// A set of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Rules(u16);

impl Rules {
    pub(super) const fn add(&mut self, rule: Rule) {
        self.0 |= 1 << rule as u16;
    }

    pub(super) const fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u16) != 0
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Keeps one of them only, where only one is of interest.
    pub(super) const fn watch(&mut self, rule: Option<Rule>) {
        if let Some(rule) = rule {
            self.0 &= 1 << rule as u16;
        }
    }

    fn add_unless(&mut self, rule: Rule, holds: bool) {
        if !holds {
            self.add(rule);
        }
    }
}

impl World {
    /// Sees what a commit has made durable: rules about steps from one state to the next.
    pub(super) fn durable(
        &mut self,
        setup: &Setup,
        side: Side,
        flight: &Flight,
        before: &SimStore,
    ) {
        for write in &flight.writes {
            let seen = match side {
                Side::Custodian => self.see_kept(write, before),
                Side::Receiver => self.see_had(setup, write, flight.tick),
            };
            self.broken.add_unless(Rule::TypeOk, seen.is_some());
        }
    }

    fn see_kept(&mut self, write: &Write, before: &SimStore) -> Option<()> {
        match (write.table, &write.value) {
            (Table::Pending, Some(value)) => {
                let pending = Pending::decode(value).ok()?;
                self.taken.add(number(&Obligation::decode(&pending.obligation).ok()?.id)?);
            }
            (Table::Attempt, Some(value)) => {
                let Some(old) = before.value(Table::Attempt, &write.key) else { return Some(()) };
                let (old, new) = (Attempt::decode(old).ok()?, Attempt::decode(value).ok()?);
                self.broken.add_unless(Rule::Ab2Persistence, old.retries <= new.retries);
            }
            (Table::Outcome, value) => {
                let Some(old) = before.value(Table::Outcome, &write.key) else { return Some(()) };
                let old = Outcome::decode(old).ok()?.terminal;
                let new = value.as_ref().and_then(|new| Some(Outcome::decode(new).ok()?.terminal));
                self.broken.add_unless(Rule::Ts1Final, new == Some(old));
            }
            _ => {}
        }
        Some(())
    }

    fn see_had(&mut self, setup: &Setup, write: &Write, tick: u8) -> Option<()> {
        let Some(value) = &write.value else { return Some(()) };
        match write.table {
            Table::Cell => {
                let cell = Cell::decode(value).ok()?;
                let effects = self.effects.get_mut(number(&cell.obligation_id)?)?;
                *effects = effects.saturating_add(1).min(2);
            }
            Table::Ledger => {
                let ledger = Ledger::decode(value).ok()?;
                let late = setup.clock(tick) >= ledger.deadline_at;
                // What a handler reports late it may have done in time.
                let applied = ledger.status == AckStatus::Applied && !setup.receiver.external();
                self.broken.add_unless(Rule::Dl1NotLate, !(applied && late));
            }
            _ => {}
        }
        Some(())
    }

    /// Holds a state against the rules about single states.
    pub(super) fn check(&mut self, setup: &Setup, seen: &Seen) {
        let (Some(kept), Some(had)) = (&seen.kept, &seen.had) else {
            self.broken.add(Rule::TypeOk);
            self.broken.watch(setup.watch);
            return;
        };
        let mut broken = self.broken;
        if let Some(memory) = &seen.custodian {
            self.check_memory(setup, kept, memory, &mut broken);
        }
        for item in 0..setup.items() {
            if setup.is_admissible(item) {
                self.check_admissible(setup, item, kept, had, &mut broken);
            } else if let Some(kept) = kept.items.get(item) {
                let custody = kept.pending.is_some() || kept.ended.is_some() || kept.escalation;
                let custody = custody || self.taken.has(item);
                broken.add_unless(Rule::BenignSideBestEffort, !custody);
            }
        }
        let stuck =
            [Side::Custodian, Side::Receiver].iter().any(|side| !self.comes_to_rest(setup, *side));
        broken.add_unless(Rule::Live, !stuck);
        self.broken = broken;
        self.broken.watch(setup.watch);
    }

    fn check_memory(
        &self,
        setup: &Setup,
        kept: &CustodianDisk,
        memory: &Memory,
        broken: &mut Rules,
    ) {
        let bounded = memory.transfers.iter().all(|transfer| transfer.retries <= setup.max_retries);
        broken.add_unless(Rule::Ab2Persistence, bounded);
        if self.custodian.ready() && self.custodian.flights().is_empty() {
            let pending = memory.transfers.iter().map(|transfer| &transfer.num);
            broken.add_unless(Rule::TypeOk, pending.eq(kept.pending.keys()) && memory.staged == 0);
            // What is not counted on the disk, a restart gives back.
            let on_disk = |num| kept.items.get(*kept.pending.get(&num)?)?.pending;
            let counted = memory.transfers.iter().all(|transfer| {
                on_disk(transfer.num).is_none_or(|(retries, _)| retries == transfer.retries)
            });
            broken.add_unless(Rule::Ab2Persistence, counted);
        }
    }

    fn check_admissible(
        &self,
        setup: &Setup,
        item: usize,
        kept: &CustodianDisk,
        had: &ReceiverDisk,
        broken: &mut Rules,
    ) {
        let (Some(kept), Some(had)) = (kept.items.get(item), had.items.get(item)) else { return };
        let effects = self.effects.get(item).copied().unwrap_or(0);
        let (pending, ended) = (kept.pending.is_some(), kept.ended.map(|(how, _)| how));
        broken.add_unless(Rule::TypeOk, !(pending && ended.is_some()));
        let retries = kept.pending.map_or(0, |(retries, _)| retries);
        broken.add_unless(Rule::Ab2Persistence, retries <= setup.max_retries);

        // In the last look the ledger may have been pruned.
        let told = had.ledger == Some(AckStatus::Applied) || self.tick >= setup.later();
        broken.add_unless(Rule::Ab3EffectivelyOnce, effects <= 1 && had.moved <= 1);
        let there = had.moved == i64::from(effects) && (effects == 0 || told);
        let happened = effects > 0 || self.done.has(item);
        let true_told = had.ledger != Some(AckStatus::Applied) || happened;
        broken.add_unless(Rule::Le1Together, there && true_told);

        let escalated = ended == Some(Terminal::Escalated);
        let declined = ended == Some(Terminal::Declined);
        let guarded = escalated || (declined && !setup.surface);
        let safe = kept.protected == i64::from(guarded);
        let told = !(declined && setup.surface) || kept.filed > 0;
        broken.add_unless(Rule::Ab4FailSafe, kept.escalation == escalated && safe && told);

        let reported = pending || ended.is_some();
        let owed = self.taken.has(item) || self.answered;
        broken.add_unless(Rule::DeliverOrReport, !owed || reported);

        let said = ended == Some(Terminal::Applied) || kept.ended.is_some_and(|(_, late)| late);
        broken.add_unless(Rule::AppliedIsApplied, !said || happened);
        broken.add_unless(Rule::DeclinedIsNotApplied, !(declined && happened));

        if at_rest(setup, self) {
            broken.add_unless(Rule::Live, !owed || ended.is_some());
        }
    }

    /// Liveness, first half: the alarms that are due, and recovery, come to an end, so that time
    /// goes on. The second half is that nothing taken is pending when time has come to its end.
    fn comes_to_rest(&self, setup: &Setup, side: Side) -> bool {
        let now = setup.clock(self.tick);
        let mut machine = self.machine(side).clone();
        for _ in 0..ALARMS_MAX {
            let Some(work) = machine.next_work(now) else { return true };
            if machine.handle(now, self.tick, work).is_err() {
                return true; // another rule's
            }
            while machine.commit().is_some() {}
        }
        false
    }
}
