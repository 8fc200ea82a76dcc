//! The disks of a baseline: what waits is written in one commit, as the core does.

use super::sim::{Event, Sim};
use crate::node::Fate;
use proto::record::Terminal;
use std::collections::VecDeque;

/// Something to make durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// An obligation that was issued.
    Take(usize),
    /// The effect of one, and that it happened.
    Apply(usize),
    /// That its effect happened, elsewhere.
    Settle(usize),
    /// How it ended.
    End(usize, Terminal),
}

/// The disk of a node.
#[derive(Debug, Default)]
pub(super) struct Disk {
    waiting: VecDeque<Work>,
    flying: Option<(Vec<Work>, Option<Fate>)>,
    pub(super) syncs: u64,
    /// Until when each commit takes so much longer.
    pub(super) slow: Option<(u64, u64)>,
    /// The next commit fails this way.
    pub(super) fails_next: Option<Fate>,
    pub(super) full_until: u64,
}

impl Sim {
    pub(super) fn write(&mut self, node: usize, work: Work) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.disk.waiting.push_back(work);
        }
        self.launch(node);
    }

    /// Sends what waits on its way, if the disk is idle.
    fn launch(&mut self, n: usize) {
        let now = self.now;
        let special = self.options.disks.iter().find(|disk| disk.node == n);
        let (min, max) = special
            .map_or((self.options.commit_ms_min, self.options.commit_ms_max), |disk| {
                (disk.commit_ms_min, disk.commit_ms_max)
            });
        let (stalls, stall_ms) = special
            .map_or((self.options.stall_permille, self.options.stall_ms), |disk| {
                (disk.stall_permille, disk.stall_ms)
            });
        let Some(node) = self.nodes.get_mut(n) else { return };
        if node.disk.flying.is_some() || node.disk.waiting.is_empty() {
            return;
        }
        let mut takes = self.disk.range(min, max);
        if self.disk.chance(if self.healed { 0 } else { stalls }) {
            takes += stall_ms;
        }
        let disk = &mut node.disk;
        if let Some((until, by)) = disk.slow
            && until > now
        {
            takes += by;
        }
        let mut fate = disk.fails_next.take();
        if disk.full_until > now {
            fate = Some(Fate::Lost);
        }
        if self.disk.chance(self.options.commit_fail_permille) {
            fate = Some(if self.disk.chance(500) { Fate::Kept } else { Fate::Lost });
        }
        let taken = self.options.inputs_per_commit.min(disk.waiting.len());
        disk.flying = Some((disk.waiting.drain(..taken).collect(), fate));
        let life = node.life;
        self.schedule(now + takes, Event::Commit { node: n, life });
    }

    pub(super) fn commit_done(&mut self, n: usize) {
        let Some(node) = self.nodes.get_mut(n) else { return };
        let Some((works, fate)) = node.disk.flying.take() else { return };
        match fate {
            Some(Fate::Lost) => {}
            _ => {
                node.disk.syncs += 1;
                for work in &works {
                    self.durable(n, *work);
                }
            }
        }
        if fate.is_some_and(|fate| fate != Fate::Durable) {
            let down_ms = self.disk.range(1, self.options.restart_ms_max.max(1));
            return self.kill(n, down_ms);
        }
        for work in works {
            match work {
                Work::Take(ob) if self.obs.get(ob).is_some_and(|ob| !ob.taken) => self.take(n, ob),
                Work::Apply(ob) | Work::Settle(ob) => self.applied(n, ob),
                Work::Take(_) | Work::End(..) => {}
            }
        }
        self.launch(n);
    }

    /// What a commit changes whether or not anybody lives to tell of it.
    fn durable(&mut self, n: usize, work: Work) {
        match work {
            Work::Take(ob) => {
                if let Some(node) = self.nodes.get_mut(n) {
                    node.kept.insert(ob);
                }
            }
            Work::Apply(ob) => {
                self.effect(ob, self.now);
                self.remember(n, ob);
            }
            Work::Settle(ob) => self.remember(n, ob),
            Work::End(ob, terminal) => {
                if let Some(node) = self.nodes.get_mut(n) {
                    node.kept.remove(&ob);
                }
                self.tell(ob, terminal);
            }
        }
    }

    /// The disk of a node that died: a commit under way may have reached it, what waited has not.
    pub(super) fn disk_of_dead(&mut self, n: usize) {
        let Some(node) = self.nodes.get_mut(n) else { return };
        node.disk.waiting.clear();
        if let Some((works, _)) = node.disk.flying.take()
            && self.disk.chance(500)
        {
            for work in works {
                self.durable(n, work);
            }
        }
    }
}
