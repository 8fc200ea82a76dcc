//! What goes wrong in a run, and when.

use super::{Event, World};
use crate::node::{Clock, Fate};
use crate::options::Options;
use crate::scenario::{CrashPoint, Fault, FaultKind};
use ::link::{Chance, LinkModel, Micros, Rng};

/// A clock's distance from the world's, in milliseconds, inside what is allowed.
pub(crate) fn clock(options: &Options, rng: &mut Rng) -> i64 {
    let half = options.skew_ms / 2;
    let drawn = rng.range(0, 2 * half);
    i64::try_from(drawn).unwrap_or(0) - i64::try_from(half).unwrap_or(0)
}

/// How much a node's clock gains, in millionths. Where no difference is allowed none drifts.
pub(super) fn drift(options: &Options, node: usize) -> i64 {
    let max = if options.skew_ms < 2 { 0 } else { u64::from(options.drift_ppm_max) };
    let drawn = Rng::new(options.seed, 40_000 + node as u64).range(0, 2 * max);
    i64::try_from(drawn).unwrap_or(0) - i64::try_from(max).unwrap_or(0)
}

/// What a clock that ran fast or slow is set to: somewhere in the other half of what is allowed.
pub(super) fn set_right(options: &Options, node: usize, clock: &Clock) -> i64 {
    let settings = u64::from(clock.settings) << 32;
    let drawn =
        Rng::new(options.seed, settings + 40_000 + node as u64).range(0, options.skew_ms / 2);
    let drawn = i64::try_from(drawn).unwrap_or(0);
    if clock.drift_ppm > 0 { -drawn } else { drawn }
}

/// Draws the faults of a run from its seed and counts.
pub(crate) fn draw(options: &Options) -> Vec<Fault> {
    let rng = &mut Rng::new(options.seed, 9);
    // A relay can be killed like a node.
    let nodes = options.nodes as u64 + u64::from(options.relay.is_some());
    let node = |rng: &mut Rng| usize::try_from(rng.below(nodes)).unwrap_or(0);
    let mut faults = Vec::new();
    for n in 0..options.partitions + options.one_way_cuts {
        let (a, b) = pair(options, rng);
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
    faults.extend(draw_more(options));
    faults
}

fn pair(options: &Options, rng: &mut Rng) -> (usize, usize) {
    let nodes = options.nodes as u64;
    let a = usize::try_from(rng.below(nodes)).unwrap_or(0);
    let b = (a + 1 + usize::try_from(rng.below(nodes - 1)).unwrap_or(0)) % options.nodes;
    if options.relay.is_some() {
        return if rng.chance(500) { (a, options.nodes) } else { (options.nodes, a) };
    }
    (a, b)
}

/// Faults that came later: each sort draws from a stream of its own.
fn draw_more(options: &Options) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut some =
        |stream: u64, count: u32, lasts: bool, what: &dyn Fn(&mut Rng, usize) -> FaultKind| {
            let mut rng = Rng::new(options.seed, 50_000 + stream);
            for _ in 0..count {
                let at_ms = rng.below(options.faults_ms);
                // What takes time is over when everything heals.
                let left_ms = options.faults_ms - at_ms;
                let for_ms = rng.range(1, options.fault_ms_max).min(left_ms);
                let node = usize::try_from(rng.below(options.nodes as u64)).unwrap_or(0);
                let what = what(&mut rng, node);
                faults.push(Fault { at_ms, for_ms: if lasts { for_ms } else { 0 }, what });
            }
        };
    some(0, options.flaps, true, &|rng, _| {
        let (a, b) = pair(options, rng);
        let longest = options.fault_ms_max.min(2_000);
        FaultKind::Flap { a, b, down_ms: rng.range(1, longest), up_ms: rng.range(1, longest) }
    });
    some(1, options.pauses, true, &|_, node| FaultKind::Pause { node });
    some(2, options.slow_disks, true, &|rng, node| FaultKind::SlowDisk {
        node,
        by_ms: rng.range(1, 1_500),
    });
    some(3, options.failed_syncs, false, &|rng, node| FaultKind::FailSync {
        node,
        kept: rng.chance(500),
    });
    some(4, options.full_disks, true, &|_, node| FaultKind::DiskFull { node });
    some(5, options.rebinds, false, &|_, node| FaultKind::Rebind { node });
    some(6, options.bit_rots, true, &|_, node| FaultKind::BitRot { node });
    some(7, options.link_faults, true, &|rng, _| {
        let (from, to) = pair(options, rng);
        FaultKind::Link { from, to, back: rng.chance(500), link: worse(&options.link, rng) }
    });
    let mut rng = Rng::new(options.seed, 50_008);
    for _ in 0..options.crash_points {
        let at_ms = rng.below(options.faults_ms);
        let for_ms = rng.range(1, options.restart_ms_max.max(1));
        let points =
            [CrashPoint::BeforeCommit, CrashPoint::AfterCommit, CrashPoint::BetweenOutputs];
        let point = rng.pick(&points).unwrap_or(CrashPoint::AfterCommit);
        let node = usize::try_from(rng.below(options.nodes as u64)).unwrap_or(0);
        faults.push(Fault { at_ms, for_ms, what: FaultKind::CrashAt { node, point } });
    }
    faults
}

/// A link in one of several bad states: lossy, narrow, slow, or a black hole for full packets.
fn worse(link: &LinkModel, rng: &mut Rng) -> LinkModel {
    let link = link.clone();
    match rng.below(4) {
        0 => {
            let loss = u32::try_from(rng.range(200, 950)).unwrap_or(950);
            LinkModel { loss: Chance::permille(loss), ..link }
        }
        1 => LinkModel { bytes_per_second: rng.range(1_000, 20_000), ..link },
        2 => {
            let by = Micros::from_ms(rng.range(100, 3_000));
            LinkModel { reorder: Chance::permille(900), reorder_by: by, ..link }
        }
        _ => LinkModel { mtu: 600, ..link },
    }
}

impl World {
    pub(super) fn fault_begins(&mut self, fault: usize) {
        let Some(Fault { at_ms, for_ms, what }) = self.timeline.get(fault).cloned() else { return };
        let until = self.now + for_ms;
        self.note(None, || format!("fault {fault}: {what:?} for {for_ms} ms"));
        match what {
            FaultKind::Cut { from, to } => self.cut_begins(from, to, until),
            FaultKind::Partition { a, b } => {
                self.cut_begins(a, b, until);
                self.cut_begins(b, a, until);
            }
            FaultKind::Flap { a, b, down_ms, up_ms } => {
                let over = self.begun + at_ms + for_ms;
                let until = (self.now + down_ms.max(1)).min(over);
                self.cut_begins(a, b, until);
                self.cut_begins(b, a, until);
                if until + up_ms < over {
                    self.schedule(until + up_ms.max(1), Event::FaultBegins { fault });
                }
            }
            FaultKind::Link { from, to, back, link } => {
                if back {
                    self.net.set(to, from, link.clone());
                }
                self.net.set(from, to, link);
                if for_ms > 0 {
                    self.schedule(until, Event::FaultEnds { fault });
                }
            }
            FaultKind::Rebind { node } => self.rebind(node, fault),
            FaultKind::Crash { node } => self.kill(node, Some(for_ms)),
            FaultKind::CrashAt { node, point } => self.arm(node, point, for_ms),
            FaultKind::Pause { node } => self.pause(node, until),
            FaultKind::ClockStep { node, ahead_ms } => {
                let drift_ppm = self.nodes.get(node).map_or(0, |node| node.clock.drift_ppm);
                self.set_clock(node, ahead_ms, drift_ppm);
            }
            FaultKind::Noise { node } => self.noise(node, fault),
            FaultKind::SlowDisk { node, .. }
            | FaultKind::FailSync { node, .. }
            | FaultKind::DiskFull { node }
            | FaultKind::BitRot { node } => {
                let Some(disk) = self.nodes.get_mut(node).map(|node| &mut node.disk) else {
                    return;
                };
                match what {
                    FaultKind::SlowDisk { by_ms, .. } => disk.slow = Some((until, by_ms)),
                    FaultKind::FailSync { kept, .. } => {
                        disk.fails_next = Some(if kept { Fate::Kept } else { Fate::Lost });
                    }
                    FaultKind::DiskFull { .. } => disk.full_until = disk.full_until.max(until),
                    _ => disk.rot = Some((until, at_ms)),
                }
            }
        }
    }

    /// What lasts for a time and has no other end, ends.
    pub(super) fn fault_ends(&mut self, fault: usize) {
        let what = self.timeline.get(fault).map(|fault| fault.what.clone());
        if let Some(FaultKind::Link { from, to, back, .. }) = what {
            self.net.reset(from, to);
            if back {
                self.net.reset(to, from);
            }
        }
    }
}
