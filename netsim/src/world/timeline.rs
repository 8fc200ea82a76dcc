//! What goes wrong in a run, and when.

use super::World;
use crate::options::Options;
use crate::scenario::{Fault, FaultKind};
use ::link::Rng;

/// A clock's distance from the world's, in milliseconds, inside what is allowed.
pub(crate) fn clock(options: &Options, rng: &mut Rng) -> i64 {
    let half = options.skew_ms / 2;
    let drawn = rng.range(0, 2 * half);
    i64::try_from(drawn).unwrap_or(0) - i64::try_from(half).unwrap_or(0)
}

/// Draws the faults of a run from its seed and counts.
pub(crate) fn draw(options: &Options) -> Vec<Fault> {
    let rng = &mut Rng::new(options.seed, 9);
    let nodes = options.nodes as u64;
    let node = |rng: &mut Rng| usize::try_from(rng.below(nodes)).unwrap_or(0);
    let mut faults = Vec::new();
    for n in 0..options.partitions + options.one_way_cuts {
        let a = node(rng);
        let b = (a + 1 + usize::try_from(rng.below(nodes - 1)).unwrap_or(0)) % options.nodes;
        let at_ms = rng.below(options.faults_ms);
        let for_ms = rng.range(1, options.cut_ms_max);
        let what = if n < options.partitions {
            FaultKind::Partition { a, b }
        } else {
            FaultKind::Cut { from: a, to: b }
        };
        faults.push(Fault { at_ms, for_ms, what });
    }
    for _ in 0..options.crashes {
        let at_ms = rng.below(options.faults_ms);
        let for_ms = rng.range(1, options.restart_ms_max);
        faults.push(Fault { at_ms, for_ms, what: FaultKind::Crash { node: node(rng) } });
    }
    for _ in 0..options.clock_steps {
        let at_ms = rng.below(options.faults_ms);
        let what = FaultKind::ClockStep { node: node(rng), ahead_ms: clock(options, rng) };
        faults.push(Fault { at_ms, for_ms: 0, what });
    }
    for _ in 0..options.noise {
        let at_ms = rng.below(options.faults_ms);
        faults.push(Fault { at_ms, for_ms: 0, what: FaultKind::Noise { node: node(rng) } });
    }
    faults
}

impl World {
    pub(super) fn fault_begins(&mut self, fault: usize) {
        let Some(Fault { for_ms, what, .. }) = self.timeline.get(fault).cloned() else { return };
        let until = self.now + for_ms;
        match what {
            FaultKind::Cut { from, to } => self.cut_begins(from, to, until),
            FaultKind::Partition { a, b } => {
                self.cut_begins(a, b, until);
                self.cut_begins(b, a, until);
            }
            FaultKind::Crash { node } => self.kill(node, Some(for_ms)),
            FaultKind::ClockStep { node, ahead_ms } => self.set_clock(node, ahead_ms),
            FaultKind::Noise { node } => self.noise(node),
            FaultKind::Link { from, to, back, link } => {
                if back {
                    self.net.set(to, from, link.clone());
                }
                self.net.set(from, to, link);
            }
            FaultKind::Flap { .. }
            | FaultKind::Pause { .. }
            | FaultKind::SlowDisk { .. }
            | FaultKind::FailSync { .. }
            | FaultKind::DiskFull { .. }
            | FaultKind::Rebind { .. } => {}
        }
    }
}
