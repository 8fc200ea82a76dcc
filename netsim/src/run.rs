//! One run of a seed: faults, healing, quiet, and the verdict.

use crate::check::{Checker, Class, Violation};
use crate::measures::Measures;
use crate::options::Options;
use crate::scenario::Policy;
use crate::world::{LogLine, World};
use proto::ack::AckStatus;
use proto::record::Terminal;
use serde::Serialize;

/// How much longer a run may be busy, for each of its transfers, and how often it is looked whether
/// it is.
const BUSY_MS_PER_TRANSFER: u64 = 1_000;
const BUSY_STEP_MS: u64 = 10_000;

/// How obligations ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Applied, as the custodian knows.
    pub applied: u64,
    /// Declined.
    pub declined: u64,
    /// Escalated.
    pub escalated: u64,
    /// Of these, applied at the receiver all the same.
    pub spurious: u64,
    /// Best effort.
    pub best_effort: u64,
    /// Asked for, and never taken.
    pub refused: u64,
}

impl Counts {
    /// How the obligations ended that the checkers know of.
    pub(crate) fn of(checker: &Checker) -> Self {
        let mut counts = Self::default();
        for entry in checker.entries() {
            match entry.terminal() {
                Some(Terminal::Applied) => counts.applied += 1,
                Some(Terminal::Declined) => counts.declined += 1,
                Some(Terminal::Escalated) => {
                    counts.escalated += 1;
                    counts.spurious += u64::from(entry.ledger() == Some(AckStatus::Applied));
                }
                None if !entry.spec.admissible => counts.best_effort += 1,
                None => counts.refused += 1,
            }
        }
        counts
    }

    /// Adds another run's.
    pub const fn add(&mut self, other: &Self) {
        self.applied += other.applied;
        self.declined += other.declined;
        self.escalated += other.escalated;
        self.spurious += other.spurious;
        self.best_effort += other.best_effort;
        self.refused += other.refused;
    }
}

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The options it ran under.
    pub options: Options,
    /// How obligations ended.
    pub counts: Counts,
    /// What it is measured by.
    #[serde(serialize_with = "in_short")]
    pub measures: Measures,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
    /// Events handled.
    pub events: u64,
    /// Frames sent.
    pub frames: u64,
    /// Bytes of all packets sent, IP and UDP headers aside.
    pub bytes: u64,
    /// Syncs of all disks.
    pub syncs: u64,
    /// Nodes killed.
    pub kills: u64,
    /// Hash of everything the checkers saw: equal for equal runs (DT-1).
    pub trace: u64,
    /// What was broken; the first is the one to look at.
    pub violations: Vec<Violation>,
}

fn in_short<S: serde::Serializer>(measures: &Measures, serializer: S) -> Result<S::Ok, S::Error> {
    measures.summary().serialize(serializer)
}

impl Report {
    /// The worst class of what was broken: safety before liveness before a crash.
    #[must_use]
    pub fn worst(&self) -> Option<Class> {
        self.violations.iter().map(|violation| violation.class).max()
    }

    /// When something was broken, in milliseconds since the run began.
    #[must_use]
    pub const fn since_begun(&self, violation: &Violation) -> u64 {
        violation.at.saturating_sub(crate::node::EPOCH_MS)
    }
}

/// Runs `options` to the end, under their policy.
#[must_use]
pub fn run(options: &Options) -> Report {
    if options.policy != Policy::Custody {
        return crate::baseline::run(options);
    }
    through(options, World::new(options.clone())).0
}

/// The same, with everything that happened, for people. It is the same run.
#[must_use]
pub fn run_logged(options: &Options) -> (Report, Vec<LogLine>) {
    let mut world = World::new(options.clone());
    world.keep_log();
    let (report, mut world) = through(options, world);
    (report, world.take_log())
}

fn through(options: &Options, mut world: World) -> (Report, World) {
    let begun = world.now();
    world.run_to(begun + options.warm_up_ms);
    world.plan();
    world.run_to(world.now() + options.faults_ms + options.heal_after_ms);
    world.heal();
    // Long enough for every deadline, client and person; then for all that may be forgotten.
    let longest_s = options.deadline_s.max(options.twin_deadline_s);
    let quiet_by = world.now() + longest_s * 1000 + 120_000;
    world.run_to(quiet_by);
    let mut quiet_by = quiet_by;
    let patience = quiet_by + u64::from(options.transfers) * BUSY_MS_PER_TRANSFER;
    while world.is_busy() && quiet_by < patience && world.checker().violations().is_empty() {
        quiet_by += BUSY_STEP_MS;
        world.run_to(quiet_by);
    }
    if world.checker().violations().is_empty() {
        world.finish(false);
    }
    if world.checker().violations().is_empty() {
        let forgotten_by = quiet_by + options.retention_ms + 300_000;
        world.run_to(forgotten_by);
        if world.checker().violations().is_empty() {
            world.finish(true);
        }
    }
    (Report { options: options.clone(), ..report(&world, begun) }, world)
}

fn report(world: &World, begun: u64) -> Report {
    let stores = (0..world.options().nodes).filter_map(|n| world.store(n));
    Report {
        options: world.options().clone(),
        counts: Counts::of(world.checker()),
        measures: world.measures(),
        virtual_ms: world.now() - begun,
        events: world.handled,
        frames: world.frames,
        bytes: world.bytes,
        syncs: stores.map(crate::disk::SimStore::commits).sum(),
        kills: world.restarts,
        trace: world.checker().trace(),
        violations: world.checker().violations().to_vec(),
    }
}
