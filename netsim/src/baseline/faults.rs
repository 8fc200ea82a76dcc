//! What goes wrong with the nodes and links of a baseline.

use super::Ledger;
use super::sim::{Event, Sim};
use crate::node::Fate;
use crate::scenario::{Fault, FaultKind};

impl Sim {
    pub(super) fn fault_begins(&mut self, fault: usize) {
        let Some(Fault { for_ms, what, .. }) = self.timeline.get(fault).cloned() else { return };
        let until = self.now + for_ms;
        match what {
            FaultKind::Cut { from, to } => self.cut_begins(from, to, until),
            FaultKind::Partition { a, b } => self.partition(a, b, until),
            FaultKind::Flap { a, b, down_ms, up_ms } => {
                self.partition(a, b, until.min(self.now + down_ms));
                let next = down_ms + up_ms;
                if next > 0 && next < for_ms {
                    self.flap_again(fault, next, for_ms - next);
                }
            }
            FaultKind::Link { from, to, back, link } => {
                if back {
                    self.net.set(to, from, link.clone());
                }
                self.net.set(from, to, link);
            }
            FaultKind::Crash { node } | FaultKind::CrashAt { node, .. } => self.kill(node, for_ms),
            FaultKind::Pause { node } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.paused_until = node.paused_until.max(until);
                }
            }
            FaultKind::SlowDisk { node, by_ms } => {
                self.disk_of(node, |disk| disk.slow = Some((until, by_ms)));
            }
            FaultKind::FailSync { node, kept } => {
                let fate = if kept { Fate::Kept } else { Fate::Lost };
                self.disk_of(node, |disk| disk.fails_next = Some(fate));
            }
            FaultKind::DiskFull { node } => self.disk_of(node, |disk| disk.full_until = until),
            // Timers run by monotonic clocks, connections survive an address change, nothing is read
            // back, and there is no parser to confuse.
            FaultKind::ClockStep { .. }
            | FaultKind::Rebind { .. }
            | FaultKind::BitRot { .. }
            | FaultKind::Noise { .. } => {}
        }
    }

    fn partition(&mut self, a: usize, b: usize, until: u64) {
        self.cut_begins(a, b, until);
        self.cut_begins(b, a, until);
    }

    /// The rest of a flapping link, as a fault of its own.
    fn flap_again(&mut self, fault: usize, after: u64, for_ms: u64) {
        let Some(what) = self.timeline.get(fault).map(|fault| fault.what.clone()) else { return };
        let at = self.now + after;
        self.timeline.push(Fault { at_ms: at - self.from(), for_ms, what });
        self.schedule(at, Event::Fault { fault: self.timeline.len() - 1 });
    }

    fn disk_of(&mut self, node: usize, change: impl FnOnce(&mut super::disk::Disk)) {
        if let Some(node) = self.nodes.get_mut(node) {
            change(&mut node.disk);
        }
    }

    /// Starts a node that is down: what is on its disk is pending again.
    pub(super) fn start(&mut self, n: usize) {
        let Some(node) = self.nodes.get_mut(n).filter(|node| !node.up) else { return };
        node.up = true;
        node.up_since = self.now;
        node.life += 1;
        let kept: Vec<usize> = node.kept.iter().copied().collect();
        for number in kept {
            if let Some(node) = self.nodes.get_mut(n) {
                node.pending.insert(number, Default::default());
            }
            if let Some(ob) = self.obs.get_mut(number) {
                ob.taken = true; // its client is answered when it asks again
            }
            self.arm(n, number);
        }
        for peer in 0..self.nodes.len() {
            self.dial_if_needed(n, peer);
        }
    }

    /// Ends a node: what is not on its disk is gone.
    pub(super) fn kill(&mut self, n: usize, down_ms: u64) {
        let Some(node) = self.nodes.get_mut(n).filter(|node| node.up) else { return };
        node.up = false;
        node.pending.clear();
        node.applying.clear();
        self.kills += 1;
        self.mix(0, n);
        self.disk_of_dead(n);
        if self.traits.ledger == Ledger::Memory
            && let Some(node) = self.nodes.get_mut(n)
        {
            node.ledger.clear();
        }
        self.waiting.retain(|(from, _), _| *from != n);
        self.ends_of_dead(n);
        self.schedule(self.now + down_ms, Event::Restart { node: n });
    }

    /// Everything is well from now on: links, nodes, disks.
    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.net.heal();
        self.options.commit_fail_permille = 0;
        for n in 0..self.nodes.len() {
            if let Some(node) = self.nodes.get_mut(n) {
                node.paused_until = 0;
                (node.disk.slow, node.disk.fails_next, node.disk.full_until) = (None, None, 0);
            }
            self.start(n);
        }
        for a in 0..self.nodes.len() {
            for b in 0..a {
                self.dial_if_needed(a, b);
            }
        }
    }

    /// When the last cut of the timeline ended.
    pub(super) fn last_outage(&self) -> Option<u64> {
        let outages = self.timeline.iter().filter(|fault| fault.what.is_outage());
        outages.map(|fault| self.from() + fault.at_ms + fault.for_ms).max()
    }
}
