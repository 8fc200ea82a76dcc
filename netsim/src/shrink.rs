//! Makes a scenario that breaks a promise smaller, as long as it breaks the same one.
//!
//! First its faults and obligations are named one by one; then faults are left out (delta debugging),
//! then obligations, then options become what they are in a quiet run, then times become shorter;
//! and all of it again until nothing goes any more.

use crate::check::Class;
use crate::options::Options;
use crate::run::run;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is broken, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The rule, or `panic`.
    pub rule: String,
    /// Its class.
    pub class: Class,
    /// When, in milliseconds since the run began.
    pub at_ms: u64,
    /// Which node.
    pub node: usize,
    /// What was seen.
    pub detail: String,
}

impl Options {
    /// The same run, its faults and its obligations named one by one instead of drawn.
    #[must_use]
    pub fn explicit(&self) -> Self {
        let quiet = Self::quiet(self.seed);
        let timeline = self.timeline.clone().unwrap_or_else(|| crate::world::draw(self));
        let only = self.only.clone().unwrap_or_else(|| (0..self.transfers).collect());
        Self {
            timeline: Some(timeline),
            only: Some(only),
            partitions: quiet.partitions,
            one_way_cuts: quiet.one_way_cuts,
            cut_ms_max: quiet.cut_ms_max,
            noise: quiet.noise,
            crashes: quiet.crashes,
            crash_points: quiet.crash_points,
            flaps: quiet.flaps,
            link_faults: quiet.link_faults,
            rebinds: quiet.rebinds,
            pauses: quiet.pauses,
            slow_disks: quiet.slow_disks,
            failed_syncs: quiet.failed_syncs,
            full_disks: quiet.full_disks,
            bit_rots: quiet.bit_rots,
            fault_ms_max: quiet.fault_ms_max,
            clock_steps: quiet.clock_steps,
            ..self.clone()
        }
    }
}

/// The first promise a run breaks.
#[must_use]
pub fn broken(options: &Options) -> Option<Broken> {
    match catch_unwind(AssertUnwindSafe(|| run(options))) {
        Ok(report) => report.violations.first().map(|violation| Broken {
            rule: violation.rule.to_owned(),
            class: violation.class,
            at_ms: report.since_begun(violation),
            node: violation.node,
            detail: violation.detail.clone(),
        }),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
            Some(Broken {
                rule: "panic".to_owned(),
                class: Class::Crash,
                at_ms: 0,
                node: 0,
                detail: said.unwrap_or_default(),
            })
        }
    }
}

/// A scenario on its way to the smallest that breaks the same promise.
pub struct Shrinker<'a> {
    best: Options,
    broken: Broken,
    runs: u32,
    runs_max: u32,
    /// Told of what goes on; says whether to go on.
    watch: &'a mut dyn FnMut(&Progress<'_>) -> bool,
    stopped: bool,
}

/// How far a shrink has come.
#[derive(Debug)]
pub struct Progress<'a> {
    /// What is being left out.
    pub pass: &'a str,
    /// Runs so far.
    pub runs: u32,
    /// Faults left.
    pub faults: usize,
    /// Obligations left.
    pub obligations: usize,
}

/// Shrinks a scenario. None if it breaks nothing. At most `runs_max` runs; `watch` hears of each and
/// says whether to go on.
pub fn shrink(
    options: &Options,
    runs_max: u32,
    watch: &mut dyn FnMut(&Progress<'_>) -> bool,
) -> Option<(Options, Broken, u32)> {
    let explicit = options.explicit();
    let found = broken(&explicit)?;
    let mut shrinker =
        Shrinker { best: explicit, broken: found, runs: 1, runs_max, watch, stopped: false };
    shrinker.run();
    Some((shrinker.best, shrinker.broken, shrinker.runs))
}

impl Shrinker<'_> {
    fn run(&mut self) {
        loop {
            let before = self.best.clone();
            self.faults();
            self.obligations();
            self.simplify();
            self.shorten();
            if self.best == before || self.stopped {
                return;
            }
        }
    }

    /// Takes a smaller scenario if it breaks the same promise.
    fn takes(&mut self, pass: &str, candidate: Options) -> bool {
        if self.stopped || candidate == self.best {
            return false;
        }
        let progress = Progress {
            pass,
            runs: self.runs,
            faults: self.best.timeline.as_ref().map_or(0, Vec::len),
            obligations: self.best.only.as_ref().map_or(0, BTreeSet::len),
        };
        if self.runs >= self.runs_max || !(self.watch)(&progress) {
            self.stopped = true;
            return false;
        }
        self.runs += 1;
        let same =
            |found: &Broken| found.rule == self.broken.rule && found.class == self.broken.class;
        let Some(found) = broken(&candidate).filter(same) else { return false };
        (self.best, self.broken) = (candidate, found);
        true
    }

    fn faults(&mut self) {
        let all = self.best.timeline.clone().unwrap_or_default();
        self.leave_out("faults", all, |options, timeline| options.timeline = Some(timeline));
    }

    fn obligations(&mut self) {
        let all = self.best.only.iter().flatten().copied().collect();
        self.leave_out("obligations", all, |options, only| {
            options.only = Some(only.into_iter().collect());
        });
        let needed =
            self.best.only.as_ref().and_then(|only| only.last()).map_or(0, |last| last + 1);
        self.takes("obligations", Options { transfers: needed, ..self.best.clone() });
    }

    /// Delta debugging: leaves out ever smaller parts of a list.
    fn leave_out<T: Clone>(&mut self, pass: &str, all: Vec<T>, set: impl Fn(&mut Options, Vec<T>)) {
        let mut left = all;
        let mut size = left.len().max(1);
        loop {
            let mut at = 0;
            while at < left.len() {
                let mut fewer = left.clone();
                fewer.drain(at..(at + size).min(left.len()));
                let mut candidate = self.best.clone();
                set(&mut candidate, fewer.clone());
                if self.takes(pass, candidate) {
                    left = fewer;
                } else {
                    at += size;
                }
            }
            if size == 1 || self.stopped {
                return;
            }
            size = size.div_ceil(2);
        }
    }

    /// Each option in turn becomes what it is in a quiet run; so do members of those that have some.
    fn simplify(&mut self) {
        let Some(quiet) = table(&Options::quiet(self.best.seed)) else { return };
        let Some(now) = table(&self.best) else { return };
        for name in now.keys().filter(|name| !KEPT.contains(&name.as_str())) {
            let Some(mut candidate) = table(&self.best) else { return };
            match quiet.get(name) {
                Some(value) => candidate.insert(name.clone(), value.clone()),
                None => candidate.remove(name),
            };
            if read(&candidate).is_some_and(|candidate| self.takes("options", candidate)) {
                continue;
            }
            let Some(members) = now.get(name).and_then(toml::Value::as_table) else { continue };
            for member in members.keys() {
                let Some(mut candidate) = table(&self.best) else { return };
                let plain = quiet.get(name).and_then(|value| value.get(member)).cloned();
                let Some(toml::Value::Table(members)) = candidate.get_mut(name) else { break };
                match plain {
                    Some(value) => members.insert(member.clone(), value),
                    None => members.remove(member),
                };
                if let Some(candidate) = read(&candidate) {
                    self.takes("options", candidate);
                }
            }
        }
    }

    /// Faults become shorter and begin at rounder times; the run becomes shorter.
    fn shorten(&mut self) {
        for fault in 0..self.best.timeline.as_ref().map_or(0, Vec::len) {
            let change = |options: &Options, change: &dyn Fn(&mut u64, &mut u64)| {
                let mut options = options.clone();
                let found = options.timeline.as_mut().and_then(|all| all.get_mut(fault));
                if let Some(fault) = found {
                    change(&mut fault.at_ms, &mut fault.for_ms);
                }
                options
            };
            loop {
                let half = change(&self.best, &|_, for_ms| *for_ms /= 2);
                if !self.takes("times", half) {
                    break;
                }
            }
            for round in [10_000, 1_000, 100, 10] {
                let rounder = change(&self.best, &|at_ms, _| *at_ms = *at_ms / round * round);
                if self.takes("times", rounder) {
                    break;
                }
            }
        }
        for part in [2, 4, 8] {
            let faults_ms = self.best.faults_ms - self.best.faults_ms / part;
            self.takes("times", Options { faults_ms, ..self.best.clone() });
        }
    }
}

/// Options that have passes of their own, or say what is looked for.
const KEPT: [&str; 8] =
    ["name", "world", "policy", "seed", "timeline", "only", "transfers", "mutant"];

fn table(options: &Options) -> Option<toml::Table> {
    toml::Table::try_from(options).ok()
}

fn read(table: &toml::Table) -> Option<Options> {
    Options::from_toml(&toml::to_string(table).ok()?).ok()
}
