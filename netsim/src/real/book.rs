//! What was asked of the nodes and what they said, as the world outside knows it.

use super::work::Work;
use crate::check::{Class, Violation};
use abhyasa::demo::api::Taken;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Broken promises kept at most; one is enough, and a broken node breaks many.
const VIOLATIONS_MAX: usize = 64;

/// What is known of one obligation.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) work: Work,
    /// What the node said when it took it.
    pub(super) taken: Option<Taken>,
    /// Whether a call for it had no answer: it may have been taken.
    pub(super) unanswered: bool,
    /// Whether it was asked for at all.
    pub(super) asked: bool,
}

/// How a transfer was first seen to have ended: its state, when, and after how many retries.
type End = (String, String, u64);

/// The book of a run.
#[derive(Debug)]
pub(super) struct Book {
    begun: Instant,
    pub(super) entries: Vec<Entry>,
    /// Ends seen while the run went on, by node and id.
    pub(super) ends: BTreeMap<(usize, String), End>,
    /// Escalations that a node has let somebody acknowledge.
    pub(super) acknowledged: BTreeSet<(usize, String)>,
    /// Reconciliation items that a node has let somebody resolve, by number, and how.
    pub(super) resolved: BTreeMap<(usize, u64), String>,
    pub(super) violations: Vec<Violation>,
}

/// The book, shared by all that write in it.
#[derive(Clone, Debug)]
pub(super) struct Shared(Arc<Mutex<Book>>);

impl Shared {
    pub(super) fn new(works: Vec<Work>) -> Self {
        let entry = |work| Entry { work, taken: None, unanswered: false, asked: false };
        Self(Arc::new(Mutex::new(Book {
            begun: Instant::now(),
            entries: works.into_iter().map(entry).collect(),
            ends: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            resolved: BTreeMap::new(),
            violations: Vec::new(),
        })))
    }

    pub(super) fn open(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Time of the run, in milliseconds.
    pub(super) fn now_ms(&self) -> u64 {
        ms(self.begun.elapsed())
    }

    pub(super) fn breach(&mut self, rule: &'static str, class: Class, node: usize, detail: String) {
        let at = self.now_ms();
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(Violation { rule, class, at, node, detail });
        }
    }

    /// The bodies of some obligations, which are asked for now.
    pub(super) fn ask(&mut self, works: &[usize]) -> Vec<Value> {
        let mut bodies = Vec::with_capacity(works.len());
        for work in works {
            if let Some(entry) = self.entries.get_mut(*work) {
                entry.asked = true;
                bodies.push(entry.work.body.clone());
            }
        }
        bodies
    }

    pub(super) fn unanswered(&mut self, works: &[usize]) {
        for work in works {
            if let Some(entry) = self.entries.get_mut(*work) {
                entry.unanswered = true;
            }
        }
    }

    /// The node says that it has taken an obligation.
    pub(super) fn taken(&mut self, work: usize, taken: Taken) {
        let Some(entry) = self.entries.get_mut(work) else { return };
        let spec = &entry.work.spec;
        let (node, id) = (spec.issuer, spec.id.clone());
        let mut broken = Vec::new();
        if taken.obligation_id != id.as_str() {
            broken.push(("AB-1", format!("{id} is answered as {}", taken.obligation_id)));
        }
        //= AC-1
        if taken.custody != spec.admissible {
            broken.push((
                "AC-1",
                format!(
                    "{id} is under custody: {}, admissible: {}",
                    taken.custody, spec.admissible
                ),
            ));
        }
        match &entry.taken {
            // What is under no custody may be taken anew.
            Some(before) => {
                let same = (before.deadline_at_ms, before.sequence)
                    == (taken.deadline_at_ms, taken.sequence);
                if taken.custody && !(same && taken.existing) {
                    broken.push((
                        "AB-1",
                        format!("{id} was taken as {before:?}, and asked for again as {taken:?}"),
                    ));
                }
            }
            None if taken.existing && !entry.unanswered => {
                broken.push(("AB-1", format!("{id} existed before anybody asked for it")));
            }
            None => {}
        }
        entry.taken.get_or_insert(taken);
        for (rule, detail) in broken {
            self.breach(rule, Class::Safety, node, detail);
        }
    }

    /// The node will not take an obligation, and will not later either.
    pub(super) fn refused(&mut self, work: usize, code: &str, message: &str) {
        let Some(entry) = self.entries.get(work) else { return };
        let (node, id) = (entry.work.spec.issuer, entry.work.spec.id.clone());
        // A sequence that came too late; what is under custody is known by its id before that.
        let known = entry.taken.as_ref().is_some_and(|taken| taken.custody);
        if !(code == "superseded" && entry.work.numbered && !known) {
            let detail = format!("{id}, which may be issued, is refused: {code}: {message}");
            self.breach("AB-1", Class::Safety, node, detail);
        }
    }

    /// A node lists a transfer as ended.
    pub(super) fn ended(&mut self, node: usize, id: &str, end: End) {
        let before = self.ends.entry((node, id.to_owned())).or_insert_with(|| end.clone());
        if *before != end {
            let detail = format!("{id} ended {before:?}, and then {end:?}");
            self.breach("TS-1", Class::Safety, node, detail);
        }
    }
}

pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Wall time, in unix milliseconds.
pub(super) fn unix_ms() -> u64 {
    ms(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}
