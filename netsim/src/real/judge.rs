//! The verdict on a run of the real world: what both stores hold when all is over, against what the
//! nodes answered and showed meanwhile.
//!
//! A call without an answer may have been taken or not. All else must be as it was promised.

use super::book::{Book, Entry};
use super::service::Effect;
use super::store::Image;
use super::work::NAMES;
use crate::check::{Class, Spec};
use crate::run::Counts;
use proto::ack::AckStatus;
use proto::id::AgentId;
use proto::polarity::Change;
use proto::record::{
    Cell, CellValue, EscalationReason, Outcome, ReconcileKind, Resolution, Role, Terminal,
};
use std::collections::{BTreeMap, BTreeSet};

/// Wall time for what happens at once: on a busy machine a commit or a start takes a while.
const LATE_MS_MAX: u64 = 5_000;
/// From a look at the clock until a call has reached an external system.
const CALL_MS_MAX: u64 = 500;

/// What the judge knows beside the book and the stores.
pub(super) struct Facts<'a> {
    /// For how much of a time a node could work: node, from and to in unix milliseconds.
    pub(super) able_ms: &'a dyn Fn(usize, u64, u64) -> u64,
    /// What an external system has done.
    pub(super) effect: &'a dyn Fn(&Spec) -> Effect,
    /// Whether the sink has the escalation of an obligation.
    pub(super) sunk: &'a dyn Fn(&Spec) -> bool,
    /// When all faults ended, in unix milliseconds.
    pub(super) healed_at_ms: u64,
    /// How long after that a receiver may take to be heard.
    pub(super) settle_ms: u64,
    /// Whether declines are left to the principal.
    pub(super) surface: bool,
}

/// How obligations ended, and how late.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) counts: Counts,
    /// Calls without an answer, that nobody repeated.
    pub(super) unanswered: u64,
    /// From deadline to escalation, in milliseconds that the node could work.
    pub(super) lateness_ms: Vec<u64>,
}

struct Judge<'a> {
    book: &'a Book,
    facts: &'a Facts<'a>,
    images: &'a [Image; 2],
    names: [AgentId; 2],
    verdict: Verdict,
    broken: Vec<(&'static str, Class, usize, String)>,
}

/// Judges; what is broken goes into the book.
pub(super) fn judge(
    book: &mut Book,
    images: &[Image; 2],
    facts: &Facts<'_>,
) -> anyhow::Result<Verdict> {
    let [alice, bob] = NAMES;
    let names = [AgentId::new(alice)?, AgentId::new(bob)?];
    let (verdict, broken) = (Verdict::default(), Vec::new());
    let mut judge = Judge { book, facts, images, names, verdict, broken };
    for entry in &judge.book.entries {
        judge.entry(entry);
    }
    for node in [0, 1] {
        judge.whole(node);
    }
    let Judge { verdict, broken, .. } = judge;
    for (rule, class, node, detail) in broken {
        book.breach(rule, class, node, detail);
    }
    Ok(verdict)
}

impl Judge<'_> {
    fn breach(&mut self, rule: &'static str, class: Class, node: usize, detail: String) {
        self.broken.push((rule, class, node, detail));
    }

    fn image(&self, node: usize) -> &Image {
        let [alice, bob] = self.images;
        if node == 0 { alice } else { bob }
    }

    fn name(&self, node: usize) -> &AgentId {
        let [alice, bob] = &self.names;
        if node == 0 { alice } else { bob }
    }

    /// The state of an obligation's key, as its issuer or its target holds it.
    fn cell(&self, entry: &Entry, role: Role) -> Option<&Cell> {
        let spec = &entry.work.spec;
        let (node, other) = match role {
            Role::Principal => (spec.issuer, spec.target),
            Role::Receiver => (spec.target, spec.issuer),
        };
        self.image(node).cell(role, self.name(other), &entry.work.kind, &spec.key)
    }

    fn entry(&mut self, entry: &Entry) {
        let spec = &entry.work.spec;
        let (node, id) = (spec.issuer, &spec.id);
        let outcome = self.image(node).outcomes.get(id.as_str()).cloned();
        if !spec.admissible {
            self.verdict.counts.best_effort += u64::from(entry.taken.is_some());
            self.not_under_custody(entry, outcome.as_ref());
            return;
        }
        if self.image(node).pending.contains(id) {
            let detail = format!("{id} is still pending");
            self.breach("deliver-or-report", Class::Liveness, node, detail);
            return;
        }
        match (outcome, &entry.taken) {
            (Some(outcome), _) => self.ended(entry, &outcome),
            (None, Some(taken)) => {
                let detail = format!("{id} was taken ({taken:?}), and there is no trace of it");
                self.breach("deliver-or-report", Class::Safety, node, detail);
            }
            (None, None) => {
                self.verdict.unanswered += u64::from(entry.unanswered);
                self.verdict.counts.refused += u64::from(entry.asked && !entry.unanswered);
                self.no_effect(entry, "was never taken");
            }
        }
    }

    //= AC-1
    fn not_under_custody(&mut self, entry: &Entry, outcome: Option<&Outcome>) {
        let spec = &entry.work.spec;
        let image = self.image(spec.issuer);
        let held = outcome.is_some()
            || image.pending.contains(&spec.id)
            || image.escalations.contains_key(spec.id.as_str());
        if held {
            let detail = format!("{} is best effort, and was under custody", spec.id);
            self.breach("AC-1", Class::Safety, spec.issuer, detail);
        }
        let ledger =
            self.image(spec.target).ledger.get(&(self.name(spec.issuer).clone(), spec.id.clone()));
        if ledger.is_some() {
            let detail = format!("{} is best effort, and in the ledger", spec.id);
            self.breach("AC-1", Class::Safety, spec.target, detail);
        }
    }

    fn ended(&mut self, entry: &Entry, outcome: &Outcome) {
        let spec = &entry.work.spec;
        let (node, id) = (spec.issuer, &spec.id);
        if let Some(taken) = &entry.taken
            && (taken.deadline_at_ms, taken.sequence)
                != (outcome.deadline_at.as_ms(), outcome.sequence)
        {
            let detail = format!("{id} was taken as {taken:?}, and ended as {outcome:?}");
            self.breach("AB-2", Class::Safety, node, detail);
        }
        self.seen(entry, outcome);
        self.withheld(entry, outcome);
        match outcome.terminal {
            Terminal::Applied => self.applied(entry, outcome),
            Terminal::Declined => self.declined(entry, outcome),
            Terminal::Escalated => self.escalated(entry, outcome),
        }
        self.ledger(entry, outcome);
        if spec.external {
            self.outside(entry, outcome);
        }
        if outcome.terminal != Terminal::Escalated
            && self.image(node).escalations.contains_key(id.as_str())
        {
            let detail = format!("{id} ended {:?}, and is in the inbox", outcome.terminal);
            self.breach("AB-4", Class::Safety, node, detail);
        }
    }

    /// What was shown as ended is what is stored.
    //= TS-1
    fn seen(&mut self, entry: &Entry, outcome: &Outcome) {
        let spec = &entry.work.spec;
        let Some(seen) = self.book.ends.get(&(spec.issuer, spec.id.to_string())) else { return };
        let state = format!("{:?}", outcome.terminal).to_lowercase();
        let stored = (state, outcome.at.to_rfc3339(), u64::from(outcome.retries));
        if *seen != stored {
            let detail = format!("{} was shown as {seen:?}, and is {stored:?}", spec.id);
            self.breach("TS-1", Class::Safety, spec.issuer, detail);
        }
    }

    fn applied(&mut self, entry: &Entry, outcome: &Outcome) {
        let (spec, id) = (&entry.work.spec, &entry.work.spec.id);
        self.verdict.counts.applied += 1;
        match (spec.change, self.cell(entry, Role::Receiver).cloned()) {
            (Change::Weight { .. }, cell) => {
                self.moved(entry, cell.as_ref(), 1, Role::Receiver);
                let own = self.cell(entry, Role::Principal).cloned();
                self.moved(entry, own.as_ref(), 0, Role::Principal);
            }
            (Change::Authorization { .. }, cell) => {
                // Its effect, or that of a newer decision.
                let sequence = cell.as_ref().and_then(|cell| cell.sequence);
                if sequence.is_none() || sequence < outcome.sequence {
                    let detail =
                        format!("{id} is applied, and its target's state is {cell:?}: {outcome:?}");
                    self.breach("AB-3", Class::Safety, spec.target, detail);
                }
            }
        }
    }

    //= DC-1
    fn declined(&mut self, entry: &Entry, outcome: &Outcome) {
        let (spec, id) = (&entry.work.spec, &entry.work.spec.id);
        self.verdict.counts.declined += 1;
        let reason = outcome.reason.as_ref().map(ToString::to_string).unwrap_or_default();
        let own = ["expired", "superseded"].iter().any(|known| reason.starts_with(known));
        if !own && !spec.external {
            let detail = format!("{id} was declined, of all things because {reason:?}");
            self.breach("DC-1", Class::Safety, spec.target, detail);
        }
        if !coalesced(outcome) {
            self.no_effect(entry, "was declined");
        }
        let surfaced = self.image(spec.issuer).filed(id, ReconcileKind::DeclineSurfaced);
        let superseded = reason.starts_with("superseded");
        if let Change::Weight { .. } = spec.change {
            let own = self.cell(entry, Role::Principal).cloned();
            let chosen = {
                let items = self.image(spec.issuer).items(id, ReconcileKind::DeclineSurfaced);
                items.filter(|item| item.resolution == Some(Resolution::ApplySafe)).count() as i64
            };
            let times = if self.facts.surface { chosen } else { 1 };
            self.moved(entry, own.as_ref(), times, Role::Principal);
        }
        if surfaced > 1 || (self.facts.surface && surfaced == 0 && !superseded) {
            let detail = format!(
                "{id} was declined ({reason}), and put before the principal {surfaced} times"
            );
            self.breach("DC-1", Class::Safety, spec.issuer, detail);
        }
    }

    //= AB-4
    fn escalated(&mut self, entry: &Entry, outcome: &Outcome) {
        let (spec, id) = (&entry.work.spec, &entry.work.spec.id);
        let node = spec.issuer;
        self.verdict.counts.escalated += 1;
        let found = self.image(node).escalations.get(id.as_str()).cloned().unwrap_or_default();
        let [escalation] = found.as_slice() else {
            let detail = format!("{id} escalated, with {} items in the inbox", found.len());
            return self.breach("AB-4", Class::Safety, node, detail);
        };
        let (at, deadline) = (escalation.at_ms, outcome.deadline_at.as_ms());
        if at != outcome.at.as_ms() || escalation.deadline_at_ms != deadline {
            let detail = format!("{id}: {escalation:?} and {outcome:?}");
            self.breach("AB-4", Class::Safety, node, detail);
        }
        if at < deadline && escalation.reason != EscalationReason::RetriesExhausted {
            let detail = format!("{id} escalated {} ms before its deadline", deadline - at);
            self.breach("AB-4", Class::Safety, node, detail);
        }
        let sunk = (self.facts.sunk)(spec);
        if escalation.delivered_at_ms.is_some() != sunk && escalation.acknowledged_at_ms.is_none() {
            let detail = format!("{escalation:?}, and its sink has it: {sunk}");
            self.breach("AB-4", Class::Safety, node, detail);
        }
        if escalation.delivered_at_ms.is_none() && escalation.acknowledged_at_ms.is_none() {
            let detail = format!("nobody has heard of the escalation of {id}");
            self.breach("AB-4", Class::Liveness, node, detail);
        }
        let late = (self.facts.able_ms)(node, deadline, at);
        self.verdict.lateness_ms.push(late);
        if late > LATE_MS_MAX {
            let detail = format!("{id} escalated {late} ms after its deadline");
            self.breach("AB-4", Class::Liveness, node, detail);
        }
        // With all well and time enough, the receiver must have been heard.
        let from = self.facts.healed_at_ms.max(outcome.created_at.as_ms());
        if deadline > from + self.facts.settle_ms {
            let detail = format!("{id} escalated, {} ms after all was well", deadline - from);
            self.breach("converges", Class::Liveness, node, detail);
        }
        let effects = match spec.change {
            Change::Weight { .. } => {
                let own = self.cell(entry, Role::Principal).cloned();
                self.moved(entry, own.as_ref(), 1, Role::Principal);
                self.effects(entry)
            }
            Change::Authorization { .. } => {
                let cell = self.cell(entry, Role::Receiver);
                i64::from(cell.is_some_and(|cell| cell.obligation_id == *id))
            }
        };
        let late_item = self.image(node).filed(id, ReconcileKind::LateApplied);
        if late_item != usize::from(outcome.late_applied_at.is_some()) {
            let detail = format!("{id} has {late_item} items of a late ack: {outcome:?}");
            self.breach("TS-1", Class::Safety, node, detail);
        }
        let spurious = effects > 0 || outcome.late_applied_at.is_some();
        self.verdict.counts.spurious += u64::from(spurious);
    }

    /// From its issue on, the principal's side acts on a decision or on a newer one of its key.
    //= AB-1 SG-1
    fn withheld(&mut self, entry: &Entry, outcome: &Outcome) {
        let spec = &entry.work.spec;
        let Change::Authorization { granted } = spec.change else { return };
        let cell = self.cell(entry, Role::Principal).cloned();
        let newer = cell.as_ref().is_some_and(|cell| cell.sequence > outcome.sequence);
        let own = cell.as_ref().is_some_and(|cell| {
            cell.sequence == outcome.sequence
                && cell.obligation_id == spec.id
                && cell.value == CellValue::Authorization { granted }
        });
        if !newer && !own {
            let detail =
                format!("{} ended {outcome:?}, and its issuer's own state is {cell:?}", spec.id);
            self.breach("SG-1", Class::Safety, spec.issuer, detail);
        }
    }

    /// What the receiver noted, as long as it must keep the note.
    //= LE-1
    fn ledger(&mut self, entry: &Entry, outcome: &Outcome) {
        let (spec, id) = (&entry.work.spec, &entry.work.spec.id);
        let key = (self.name(spec.issuer).clone(), id.clone());
        let noted = self.image(spec.target).ledger.get(&key).cloned();
        let status = noted.as_ref().map(|noted| noted.status);
        let read_at = self.image(spec.target).read_at_ms;
        let fits = match (outcome.terminal, status) {
            (Terminal::Applied, None) => outcome.deadline_at.as_ms() <= read_at,
            (Terminal::Applied, Some(status)) => status == AckStatus::Applied,
            (Terminal::Declined, status) => {
                status != Some(AckStatus::Applied) || coalesced(outcome)
            }
            (Terminal::Escalated, _) => true,
        };
        if !fits {
            let detail = format!("{id} ended {outcome:?}, and its receiver noted {noted:?}");
            self.breach("LE-1", Class::Safety, spec.target, detail);
        }
        if status == Some(AckStatus::Applied)
            && matches!(spec.change, Change::Weight { .. })
            && self.effects(entry) != 1
        {
            let detail = format!("{id} is in the ledger, and its effect is not there");
            self.breach("LE-1", Class::Safety, spec.target, detail);
        }
    }

    /// An external effect: in time, and as its issuer was told.
    //= AB-3 DL-1
    fn outside(&mut self, entry: &Entry, outcome: &Outcome) {
        let (spec, id) = (&entry.work.spec, &entry.work.spec.id);
        let Effect { happened, last_asked_ms } = (self.facts.effect)(spec);
        let told = match outcome.terminal {
            Terminal::Applied => happened,
            Terminal::Declined => !happened || coalesced(outcome),
            Terminal::Escalated => true,
        };
        if !told {
            let detail = format!("{id} ended {outcome:?}, and its effect happened: {happened}");
            self.breach("AB-3", Class::Safety, spec.target, detail);
        }
        let deadline = outcome.deadline_at.as_ms();
        let late = (self.facts.able_ms)(spec.target, deadline, last_asked_ms);
        if late > CALL_MS_MAX {
            let detail = format!("an effect was asked for {late} ms after the deadline of {id}");
            self.breach("DL-1", Class::Safety, spec.target, detail);
        }
    }

    /// How often a correction moved its weight at its target.
    fn effects(&self, entry: &Entry) -> i64 {
        let Change::Weight { delta } = entry.work.spec.change else { return 0 };
        moves(self.cell(entry, Role::Receiver), delta.nanos())
    }

    fn moved(&mut self, entry: &Entry, cell: Option<&Cell>, wanted: i64, role: Role) {
        let spec = &entry.work.spec;
        let Change::Weight { delta } = spec.change else { return };
        let found = moves(cell, delta.nanos());
        if found != wanted {
            let (rule, node) = match role {
                Role::Receiver => ("AB-3", spec.target),
                Role::Principal => ("AB-4", spec.issuer),
            };
            let detail =
                format!("{} moved its weight {found} times as {role:?}, not {wanted}", spec.id);
            self.breach(rule, Class::Safety, node, detail);
        }
    }

    fn no_effect(&mut self, entry: &Entry, why: &str) {
        let (spec, id) = (&entry.work.spec, &entry.work.spec.id);
        let outside = spec.external && (self.facts.effect)(spec).happened;
        let done = outside
            || match spec.change {
                Change::Weight { .. } => self.effects(entry) != 0,
                Change::Authorization { .. } => self
                    .cell(entry, Role::Receiver)
                    .is_some_and(|cell| cell.obligation_id == *id && cell.sequence.is_some()),
            };
        if done {
            let detail = format!("{id} {why}, and had its effect");
            self.breach("AB-3", Class::Safety, spec.target, detail);
        }
    }

    /// What a store holds beside its obligations.
    fn whole(&mut self, node: usize) {
        let image = self.image(node);
        let mut broken = Vec::new();
        let known = |issuer: usize| -> BTreeMap<&str, &Entry> {
            let own = self.book.entries.iter().filter(|entry| entry.work.spec.issuer == issuer);
            own.filter(|entry| entry.asked).map(|e| (e.work.spec.id.as_str(), e)).collect()
        };
        let (own, theirs) = (known(node), known(1 - node));
        let ids = image.outcomes.keys().chain(image.escalations.keys());
        let strange: BTreeSet<&String> = ids.filter(|id| !own.contains_key(id.as_str())).collect();
        if !strange.is_empty() {
            broken.push(("AB-1", format!("nobody issued {strange:?}")));
        }
        for (issuer, id) in image.ledger.keys() {
            if issuer != self.name(1 - node) || !theirs.contains_key(id.as_str()) {
                broken.push(("AB-3", format!("nobody issued {id} in the ledger, by {issuer}")));
            }
        }
        for ((role, agent, kind, key), cell) in &image.cells {
            let from = if *role == Role::Principal { &own } else { &theirs };
            let entry = from.get(cell.obligation_id.as_str());
            let fits = entry.is_some_and(|entry| {
                let spec = &entry.work.spec;
                let granted = match (spec.change, cell.value) {
                    (
                        Change::Authorization { granted },
                        CellValue::Authorization { granted: is },
                    ) => granted == is,
                    (Change::Weight { .. }, CellValue::Weight(_)) => true,
                    _ => false,
                };
                agent == self.name(1 - node)
                    && entry.work.kind == *kind
                    && spec.key == *key
                    && granted
            });
            if !fits {
                broken.push(("AB-3", format!("{role:?} state of {kind} {key} is {cell:?}")));
            }
        }
        for (_, id) in self.book.ends.keys().filter(|(at, _)| *at == node) {
            if !image.outcomes.contains_key(id) {
                broken.push(("TS-1", format!("{id} was shown as ended, and has not")));
            }
        }
        for (_, id) in self.book.acknowledged.iter().filter(|(at, _)| *at == node) {
            let found = image.escalations.get(id).map_or(&[] as &[_], Vec::as_slice);
            if found.iter().any(|escalation| escalation.acknowledged_at_ms.is_none()) {
                broken.push(("AB-4", format!("{id} was acknowledged, and is not any more")));
            }
        }
        for ((_, number), how) in self.book.resolved.iter().filter(|((at, _), _)| *at == node) {
            let item = image.reconcile.get(number);
            let is = item.and_then(|item| serde_json::to_value(item.resolution).ok());
            if is.as_ref().and_then(serde_json::Value::as_str) != Some(how) {
                broken.push(("TS-1", format!("item {number} was resolved {how}, and is {item:?}")));
            }
        }
        if image.attempts > 0 {
            broken.push(("BD-1", format!("{} attempts of nothing are left", image.attempts)));
        }
        for (rule, detail) in broken {
            self.breach(rule, Class::Safety, node, detail);
        }
    }
}

/// Whether its issuer ended it for a newer decision, without the receiver: what that one did before
/// its acks were lost is unknown.
fn coalesced(outcome: &Outcome) -> bool {
    outcome.terminal == Terminal::Declined
        && outcome.reason.as_ref().is_some_and(|why| why.as_str().starts_with("superseded by "))
}

/// How often a step of `delta` billionths leads from the initial weight to that of the cell; −1 if
/// no number of them does.
fn moves(cell: Option<&Cell>, delta: i64) -> i64 {
    let Some(cell) = cell else { return 0 };
    let CellValue::Weight(weight) = cell.value else { return -1 };
    let moved = weight.nanos() - crate::options::Options::weights().initial.nanos();
    if moved % delta == 0 { moved / delta } else { -1 }
}

#[cfg(test)]
mod tests;
