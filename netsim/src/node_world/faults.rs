//! What goes wrong in a node world, and when it is over.

use super::World;
use crate::scenario::{CrashPoint, Fault, FaultKind};
use link::LinkModel;

/// Something the world does at its time.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A fault of the timeline begins.
    Begins { fault: usize },
    /// A direction is whole again.
    Mend { from: usize, to: usize },
    /// A link goes down once more, until this time.
    Flap { a: usize, b: usize, down_ms: u64, up_ms: u64, until: u64 },
    /// A direction is again what it was.
    Link { from: usize, to: usize, link: LinkModel },
    /// A node starts again.
    Restart { node: usize },
    /// A disk is as fast as before.
    FastDisk { node: usize },
    /// A disk takes commits again.
    DiskFree { node: usize },
}

impl World {
    pub(super) async fn handle(&mut self, event: Event) {
        match event {
            Event::Begins { fault } if !self.healed => {
                if let Some(fault) = self.timeline.get(fault).cloned() {
                    self.begins(fault);
                }
            }
            Event::Mend { from, to } if !self.healed => self.wire.cut(from, to, false),
            Event::Flap { a, b, down_ms, up_ms, until } if !self.healed => {
                self.flap(a, b, (down_ms, up_ms), until);
            }
            Event::Link { from, to, link } if !self.healed => {
                self.wire.set(from, to, link);
            }
            Event::Restart { node } => self.start(node).await,
            Event::FastDisk { node } => self.on_disk(node, |disk| disk.slow(0)),
            Event::DiskFree { node } => self.on_disk(node, |disk| disk.set_full(false)),
            Event::Begins { .. } | Event::Mend { .. } | Event::Flap { .. } | Event::Link { .. } => {
            }
        }
    }

    fn on_disk(&self, node: usize, what: impl FnOnce(&super::SimDisk)) {
        if let Some(place) = self.places.get(node) {
            what(&place.disk);
        }
    }

    fn cut(&mut self, from: usize, to: usize, until: u64) {
        self.wire.cut(from, to, true);
        self.schedule(until, Event::Mend { from, to });
    }

    fn flap(&mut self, a: usize, b: usize, (down_ms, up_ms): (u64, u64), until: u64) {
        let now = self.now();
        let mended = (now + down_ms.max(1)).min(until);
        self.cut(a, b, mended);
        self.cut(b, a, mended);
        let next = mended + up_ms;
        if next < until {
            self.schedule(next, Event::Flap { a, b, down_ms, up_ms, until });
        }
    }

    fn begins(&mut self, fault: Fault) {
        let Fault { for_ms, what, .. } = fault;
        let until = self.now() + for_ms;
        match what {
            FaultKind::Cut { from, to } => self.cut(from, to, until),
            FaultKind::Partition { a, b } => {
                self.cut(a, b, until);
                self.cut(b, a, until);
            }
            FaultKind::Flap { a, b, down_ms, up_ms } => self.flap(a, b, (down_ms, up_ms), until),
            FaultKind::Link { from, to, back, link } => {
                let ways = if back { vec![(from, to), (to, from)] } else { vec![(from, to)] };
                for (from, to) in ways {
                    if let Some(before) = self.wire.set(from, to, link.clone())
                        && for_ms > 0
                    {
                        self.schedule(until, Event::Link { from, to, link: before });
                    }
                }
            }
            FaultKind::Crash { node } => {
                if self.kill(node) {
                    self.schedule(until, Event::Restart { node });
                }
            }
            FaultKind::Pause { node } => {
                self.wire.pause(node, for_ms);
                let until = self.hub.now() + for_ms;
                self.on_disk(node, |disk| disk.pause(until));
            }
            FaultKind::SlowDisk { node, by_ms } => {
                self.on_disk(node, |disk| disk.slow(by_ms));
                self.schedule(until, Event::FastDisk { node });
            }
            FaultKind::FailSync { node, kept } => self.on_disk(node, |disk| disk.fail_next(kept)),
            // A failed commit ends the node as a kill at that point does.
            FaultKind::CrashAt { node, point } => {
                let kept = point != CrashPoint::BeforeCommit;
                self.on_disk(node, |disk| disk.fail_next(kept));
            }
            FaultKind::DiskFull { node } => {
                self.on_disk(node, |disk| disk.set_full(true));
                self.schedule(until, Event::DiskFree { node });
            }
            FaultKind::ClockStep { node, ahead_ms } => {
                if let Some(place) = self.places.get(node) {
                    place.clock.set(ahead_ms);
                }
            }
            FaultKind::Rebind { node } => self.wire.rebind(node),
            FaultKind::Noise { node } => self.wire.noise(node),
            FaultKind::BitRot { .. } => {} // refused before the run
        }
    }
}

/// How much later than by itself a node may do its duty under these faults, in milliseconds; and
/// whether nodes crash.
pub(super) fn delays(timeline: &[Fault]) -> (u64, bool) {
    let late = timeline.iter().map(|fault| match fault.what {
        FaultKind::Pause { .. } => fault.for_ms,
        FaultKind::SlowDisk { by_ms, .. } => 4 * by_ms,
        _ => 0,
    });
    let crash = |fault: &Fault| {
        matches!(
            fault.what,
            FaultKind::Crash { .. } | FaultKind::FailSync { .. } | FaultKind::DiskFull { .. }
        )
    };
    (late.sum(), timeline.iter().any(crash))
}
