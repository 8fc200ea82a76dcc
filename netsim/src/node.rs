//! One simulated node: the real custody core over a simulated disk, driven as the node drives it.

use crate::disk::SimStore;
use proto::custody::{Custody, Input};
use proto::id::AgentId;
use proto::settings::Settings;
use proto::step::Step;
use proto::time::Time;
use std::collections::VecDeque;

/// World time zero, so that clocks show a plausible date.
pub(crate) const EPOCH_MS: u64 = 1_800_000_000_000;

/// A node, up or down.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: AgentId,
    pub(crate) settings: Settings,
    pub(crate) store: SimStore,
    /// What its clock is ahead of the world's, in milliseconds.
    pub(crate) offset_ms: i64,
    /// Counts starts, so that what belongs to an earlier life is recognised.
    pub(crate) life: u64,
    pub(crate) live: Option<Live>,
}

/// What a running node has in memory.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) custody: Custody,
    pub(crate) inbox: VecDeque<Input>,
    /// Local calls, which wait until the pending set is loaded.
    pub(crate) calls: VecDeque<Input>,
    pub(crate) flights: VecDeque<Flight>,
    pub(crate) pump_queued: bool,
    pub(crate) alarm_at: Option<u64>,
    pub(crate) disk_free_at: u64,
}

/// A sealed step on its way to the disk.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) step: Step,
    /// What the clock said when its inputs were handled.
    pub(crate) clock: Time,
    /// What becomes of its commit.
    pub(crate) fate: Fate,
}

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Durable,
    /// It fails, and nothing of it is on the disk.
    Lost,
    /// It fails, and all of it is on the disk.
    Kept,
}

impl Node {
    /// What its clock says at world time `now`.
    pub(crate) fn clock(&self, now: u64) -> Time {
        Time::from_ms(now.saturating_add_signed(self.offset_ms))
    }

    /// The world time at which its clock says `time`.
    pub(crate) fn world(&self, time: Time) -> u64 {
        time.as_ms().saturating_add_signed(-self.offset_ms)
    }
}
