//! Each rule of the judge is shown a run that breaks it.

use super::super::book::Shared;
use super::super::work::{self, Work};
use super::*;
use crate::check::Violation;
use crate::options::Options;
use abhyasa::demo::api::Taken;
use proto::ack::Reason;
use proto::id::{GovernedKey, ObligationId};
use proto::record::{Escalation, Ledger, Reconcile};
use proto::safe_action::{SafeAction, SafeEffect};
use proto::time::Time;
use proto::weight::Weight;

const DEADLINE: u64 = 60_000;
const END: u64 = 100_000;

/// A run in which nothing is wrong: node 0 has issued a correction that was applied, one that was
/// declined and one that escalated; a revocation that was applied; and a grant.
struct Run {
    book: Shared,
    images: [Image; 2],
}

const APPLIED: usize = 0;
const DECLINED: usize = 1;
const ESCALATED: usize = 2;
const REVOKED: usize = 3;
const GRANTED: usize = 4;

fn name(node: usize) -> AgentId {
    AgentId::new(NAMES[node]).unwrap()
}

/// What the workload draws, with the kinds that are wanted.
fn works() -> Vec<Work> {
    let options = Options { transfers: 400, benign_permille: 300, ..Options::quiet(1) };
    let (works, _) = work::draw(&options).unwrap();
    let own = |work: &&Work| work.spec.issuer == 0 && !work.numbered;
    let weights = works.iter().filter(own).filter(|w| !w.spec.change.is_set() && w.spec.admissible);
    let sets = |granted: bool| {
        let change = Change::Authorization { granted };
        works.iter().filter(own).find(|w| w.spec.change == change).cloned().unwrap()
    };
    let mut works: Vec<Work> = weights.take(3).cloned().collect();
    let (revoked, mut granted) = (sets(false), sets(true));
    granted.spec.key = GovernedKey::new("another").unwrap();
    works.extend([revoked, granted]);
    works
}

fn outcome(work: &Work, terminal: Terminal) -> Outcome {
    Outcome {
        terminal,
        num: 1,
        kind: work.kind.clone(),
        target: name(1),
        at: Time::from_ms(if terminal == Terminal::Escalated { DEADLINE } else { 50_000 }),
        created_at: Time::from_ms(10_000),
        deadline_at: Time::from_ms(DEADLINE),
        retries: 1,
        sequence: work.spec.change.is_set().then_some(1),
        digest: 7,
        reason: (terminal == Terminal::Declined).then(|| Reason::new("expired")),
        late_applied_at: None,
    }
}

fn cell(work: &Work, value: CellValue) -> Cell {
    let sequence = work.spec.change.is_set().then_some(1);
    let obligation_id = work.spec.id.clone();
    Cell { value, sequence, obligation_id, num: 1, at: Time::from_ms(50_000) }
}

fn lowered() -> CellValue {
    CellValue::Weight(Weight::from_nanos(499_000_000))
}

fn ledger(status: AckStatus) -> Ledger {
    let (acked_at, deadline_at) = (Time::from_ms(40_000), Time::from_ms(DEADLINE));
    Ledger { status, acked_at, deadline_at, digest: 7, reason: None }
}

fn escalation(work: &Work) -> Escalation {
    let effect = SafeEffect::DownWeight {
        weight_key: work.spec.key.clone(),
        magnitude: Weight::from_nanos(1_000_000),
    };
    Escalation {
        obligation_id: work.spec.id.clone(),
        kind: work.kind.clone(),
        target: name(1),
        reason: EscalationReason::Unreachable,
        at_ms: DEADLINE,
        deadline_at_ms: DEADLINE,
        retries: 1,
        safe_action: SafeAction {
            obligation_id: work.spec.id.clone(),
            target: name(1),
            effect,
            rationale: Reason::new("unreachable"),
            sequence: None,
        },
        safe_action_applied: true,
        acknowledged_at_ms: None,
        delivered_at_ms: Some(DEADLINE + 10),
        outlived: false,
    }
}

impl Run {
    fn new() -> Self {
        let works = works();
        let book = Shared::new(works.clone());
        let mut images = [Image::default(), Image::default()];
        for image in &mut images {
            image.read_at_ms = END;
        }
        let mut run = Self { book, images };
        let ends = [Terminal::Applied, Terminal::Declined, Terminal::Escalated, Terminal::Applied];
        for (n, work) in works.iter().enumerate() {
            {
                let mut book = run.book.open();
                book.ask(&[n]);
                let taken = Taken {
                    obligation_id: work.spec.id.to_string(),
                    custody: work.spec.admissible,
                    deadline_at_ms: DEADLINE,
                    sequence: work.spec.change.is_set().then_some(1),
                    existing: false,
                };
                book.taken(n, taken);
            }
            if let Some(terminal) = ends.get(n) {
                let id = work.spec.id.to_string();
                run.images[0].outcomes.insert(id, outcome(work, *terminal));
            }
        }
        run.put(APPLIED, Role::Receiver, lowered());
        run.note(APPLIED, AckStatus::Applied);
        run.put(DECLINED, Role::Principal, lowered());
        run.put(ESCALATED, Role::Principal, lowered());
        let id = works[ESCALATED].spec.id.to_string();
        run.images[0].escalations.insert(id, vec![escalation(&works[ESCALATED])]);
        for role in [Role::Principal, Role::Receiver] {
            run.put(REVOKED, role, CellValue::Authorization { granted: false });
            run.put(GRANTED, role, CellValue::Authorization { granted: true });
        }
        run.note(REVOKED, AckStatus::Applied);
        run
    }

    fn work(&self, n: usize) -> Work {
        self.book.open().entries[n].work.clone()
    }

    fn id(&self, n: usize) -> String {
        self.work(n).spec.id.to_string()
    }

    fn cell(&mut self, n: usize, role: Role) -> &mut Cell {
        let work = self.work(n);
        let node = usize::from(role == Role::Receiver);
        let key = (role, name(1 - node), work.kind, work.spec.key);
        self.images[node].cells.get_mut(&key).unwrap()
    }

    fn put(&mut self, n: usize, role: Role, value: CellValue) {
        let work = self.work(n);
        let node = usize::from(role == Role::Receiver);
        let key = (role, name(1 - node), work.kind.clone(), work.spec.key.clone());
        self.images[node].cells.insert(key, cell(&work, value));
    }

    fn note(&mut self, n: usize, status: AckStatus) {
        let id = self.work(n).spec.id;
        self.images[1].ledger.insert((name(0), id), ledger(status));
    }

    fn end(&mut self, n: usize) -> &mut Outcome {
        let id = self.id(n);
        self.images[0].outcomes.get_mut(&id).unwrap()
    }

    fn judged(self, facts: &Facts<'_>) -> Vec<Violation> {
        let mut book = self.book.open();
        judge(&mut book, &self.images, facts).unwrap();
        book.violations.clone()
    }
}

fn facts() -> Facts<'static> {
    Facts {
        able_ms: &|_, from, to| to.saturating_sub(from),
        effect: &|_| Effect::default(),
        sunk: &|_| true,
        healed_at_ms: DEADLINE,
        settle_ms: 10_000,
        surface: false,
    }
}

#[test]
fn a_run_in_which_nothing_is_wrong_is_found_so() {
    let run = Run::new();
    let mut book = run.book.open();
    let verdict = judge(&mut book, &run.images, &facts()).unwrap();
    assert_eq!(book.violations, []);
    let counts = verdict.counts;
    assert_eq!((counts.applied, counts.declined, counts.escalated), (2, 1, 1));
    assert_eq!((counts.best_effort, counts.spurious, counts.refused), (1, 0, 0));
    assert_eq!(verdict.lateness_ms, [0]);
}

/// A way to break a run, and the rule that must be named.
type Break = (&'static str, fn(&mut Run));

const BREAKS: [Break; 25] = [
    ("deliver-or-report", |run| {
        let id = run.id(APPLIED);
        run.images[0].outcomes.remove(&id);
    }),
    ("deliver-or-report", |run| {
        let id = run.work(APPLIED).spec.id;
        run.images[0].pending.insert(id);
    }),
    ("AB-1", |run| {
        let other = run.end(APPLIED).clone();
        run.images[0].outcomes.insert("nobody-asked".to_owned(), other);
    }),
    ("AB-2", |run| run.end(ESCALATED).deadline_at = Time::from_ms(DEADLINE + 1)),
    ("AB-3", |run| {
        run.cell(APPLIED, Role::Receiver).value =
            CellValue::Weight(Weight::from_nanos(498_000_000));
    }),
    ("AB-3", |run| {
        run.put(APPLIED, Role::Receiver, CellValue::Weight(Weight::from_nanos(500_000_000)));
    }),
    ("AB-3", |run| run.put(DECLINED, Role::Receiver, lowered())),
    ("AB-3", |run| {
        run.cell(REVOKED, Role::Receiver).value = CellValue::Authorization { granted: true };
    }),
    ("AB-3", |run| {
        let work = run.work(REVOKED);
        let key = (Role::Receiver, name(0), work.kind, work.spec.key);
        run.images[1].cells.remove(&key);
    }),
    ("AB-3", |run| {
        let key = (name(0), ObligationId::new("nobody-asked").unwrap());
        run.images[1].ledger.insert(key, ledger(AckStatus::Applied));
    }),
    ("AB-4", |run| run.put(APPLIED, Role::Principal, lowered())),
    ("AB-4", |run| {
        let work = run.work(ESCALATED);
        let key = (Role::Principal, name(1), work.kind, work.spec.key);
        run.images[0].cells.remove(&key);
    }),
    ("AB-4", |run| run.images[0].escalations.clear()),
    ("AB-4", |run| {
        let id = run.id(ESCALATED);
        let items = run.images[0].escalations.get_mut(&id).unwrap();
        items.push(items[0].clone());
    }),
    ("AB-4", |run| {
        let work = run.work(APPLIED);
        run.images[0].escalations.insert(run.id(APPLIED), vec![escalation(&work)]);
    }),
    ("AB-4", |run| {
        let id = run.id(ESCALATED);
        run.end(ESCALATED).at = Time::from_ms(DEADLINE - 5);
        run.images[0].escalations.get_mut(&id).unwrap()[0].at_ms = DEADLINE - 5;
    }),
    ("AB-4", |run| {
        let late = DEADLINE + LATE_MS_MAX + 1;
        let id = run.id(ESCALATED);
        run.end(ESCALATED).at = Time::from_ms(late);
        run.images[0].escalations.get_mut(&id).unwrap()[0].at_ms = late;
    }),
    ("AB-4", |run| {
        let id = run.id(ESCALATED);
        run.book.open().acknowledged.insert((0, id));
    }),
    ("AC-1", |run| {
        let (work, id) = (run.work(GRANTED), run.id(GRANTED));
        run.images[0].outcomes.insert(id, outcome(&work, Terminal::Applied));
    }),
    ("AC-1", |run| run.note(GRANTED, AckStatus::Applied)),
    ("DC-1", |run| run.end(DECLINED).reason = Some(Reason::new("a bad day"))),
    ("LE-1", |run| run.note(DECLINED, AckStatus::Applied)),
    ("LE-1", |run| {
        let id = run.work(REVOKED).spec.id;
        run.images[1].ledger.remove(&(name(0), id));
        run.images[1].read_at_ms = DEADLINE - 1;
    }),
    ("SG-1", |run| run.cell(REVOKED, Role::Principal).sequence = None),
    ("TS-1", |run| {
        let id = run.id(APPLIED);
        let seen = ("declined".to_owned(), Time::from_ms(50_000).to_rfc3339(), 1);
        run.book.open().ended(0, &id, seen);
    }),
];

#[test]
fn each_rule_is_seen_to_be_broken() {
    for (n, (rule, break_it)) in BREAKS.into_iter().enumerate() {
        let mut run = Run::new();
        break_it(&mut run);
        let broken = run.judged(&facts());
        let named = broken.iter().any(|violation| violation.rule == rule);
        assert!(named, "break {n} of {rule} went unseen: {broken:?}");
    }
}

#[test]
fn what_escalates_with_all_well_and_time_enough_does_not_converge() {
    let facts = Facts { healed_at_ms: 20_000, ..facts() };
    let broken = Run::new().judged(&facts);
    assert!(broken.iter().any(|violation| violation.rule == "converges"), "{broken:?}");
}

#[test]
fn a_late_ack_is_filed_once() {
    let mut run = Run::new();
    run.end(ESCALATED).late_applied_at = Some(Time::from_ms(70_000));
    let item = Reconcile {
        kind: ReconcileKind::LateApplied,
        obligation_id: run.work(ESCALATED).spec.id,
        agent: name(1),
        at_ms: 70_000,
        detail: String::new(),
        safe_action: None,
        resolution: None,
        resolved_at_ms: None,
    };
    run.images[0].reconcile.insert(1, item.clone());
    run.put(ESCALATED, Role::Receiver, lowered());
    let verdict = judge(&mut run.book.open(), &run.images, &facts()).unwrap();
    assert_eq!(run.book.open().violations, []);
    assert_eq!(verdict.counts.spurious, 1, "it was applied, and escalated");
    run.images[0].reconcile.insert(2, item);
    let broken = run.judged(&facts());
    assert!(broken.iter().any(|violation| violation.rule == "TS-1"), "{broken:?}");
}

/// Judges a run whose corrections are applied by an external system.
fn judged_outside(effect: Effect) -> Vec<Violation> {
    let run = Run::new();
    for n in [APPLIED, DECLINED, ESCALATED] {
        run.book.open().entries[n].work.spec.external = true;
    }
    let applied = run.work(APPLIED).spec.id;
    let effect = |spec: &Spec| {
        let happened = if spec.id == applied { effect.happened } else { !effect.happened };
        Effect { happened, ..effect }
    };
    run.judged(&Facts { effect: &effect, ..facts() })
}

#[test]
fn external_effects_are_as_told_and_not_asked_for_late() {
    let in_time = Effect { happened: true, last_asked_ms: DEADLINE - 1 };
    assert_eq!(judged_outside(in_time), []);
    let late = Effect { last_asked_ms: DEADLINE + CALL_MS_MAX + 1, ..in_time };
    let rules = |violations: Vec<Violation>| -> BTreeSet<&str> {
        violations.iter().map(|violation| violation.rule).collect()
    };
    assert_eq!(rules(judged_outside(late)), BTreeSet::from(["DL-1"]));
    // Applied without an effect, and declined with one.
    let untrue = judged_outside(Effect { happened: false, ..in_time });
    assert_eq!(untrue.iter().filter(|violation| violation.rule == "AB-3").count(), 3);
}

#[test]
fn an_escalation_that_nobody_heard_of_is_a_silent_loss() {
    let broken = Run::new().judged(&Facts { sunk: &|_| false, ..facts() });
    assert!(broken.iter().any(|violation| violation.class == Class::Safety), "noted, and untrue");
    let mut run = Run::new();
    let id = run.id(ESCALATED);
    run.images[0].escalations.get_mut(&id).unwrap()[0].delivered_at_ms = None;
    let broken = run.judged(&Facts { sunk: &|_| false, ..facts() });
    assert_eq!(broken.len(), 1);
    assert_eq!((broken[0].rule, broken[0].class), ("AB-4", Class::Liveness));
}

#[test]
fn what_a_person_resolved_stays_resolved() {
    let mut run = Run::new();
    let item = Reconcile {
        kind: ReconcileKind::InDoubt,
        obligation_id: run.work(ESCALATED).spec.id,
        agent: name(1),
        at_ms: 1,
        detail: String::new(),
        safe_action: None,
        resolution: Some(Resolution::Noted),
        resolved_at_ms: Some(2),
    };
    run.images[0].reconcile.insert(7, item);
    run.book.open().resolved.insert((0, 7), "noted".to_owned());
    judge(&mut run.book.open(), &run.images, &facts()).unwrap();
    assert_eq!(run.book.open().violations, []);
    run.book.open().resolved.insert((0, 7), "applied".to_owned());
    let broken = run.judged(&facts());
    assert!(broken.iter().any(|violation| violation.rule == "TS-1"), "{broken:?}");
}

#[test]
fn what_answers_say_is_held_against_them() {
    let run = Run::new();
    let taken = |id: &str| Taken {
        obligation_id: id.to_owned(),
        custody: true,
        deadline_at_ms: DEADLINE,
        sequence: None,
        existing: true,
    };
    let mut book = run.book.open();
    let id = book.entries[APPLIED].work.spec.id.to_string();
    book.taken(APPLIED, taken(&id));
    assert_eq!(book.violations, [], "asked for again, and the same");
    book.taken(APPLIED, Taken { deadline_at_ms: DEADLINE + 1, ..taken(&id) });
    book.taken(APPLIED, taken("another"));
    let granted = book.entries[GRANTED].work.spec.id.to_string();
    book.taken(GRANTED, taken(&granted));
    book.refused(REVOKED, "superseded", "of all things");
    let rules: Vec<&str> = book.violations.iter().map(|violation| violation.rule).collect();
    assert_eq!(rules, ["AB-1", "AB-1", "AC-1", "AB-1", "AB-1"]);
}
