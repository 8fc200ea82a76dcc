//! One simulated node: the real custody core over a simulated disk, driven as the node drives it.

use crate::disk::SimStore;
use crate::options::Options;
use crate::scenario::{CrashPoint, DiskModel};
use bytes::Bytes;
use link::Rng;
use proto::custody::{Custody, Input};
use proto::id::AgentId;
use proto::settings::Settings;
use proto::step::Step;
use proto::store::{Read, ReadError, Table};
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
    pub(crate) disk: Disk,
    pub(crate) clock: Clock,
    /// Until when it stands still, and since when.
    pub(crate) paused: Option<(u64, u64)>,
    /// Where in its next commit it is killed, and how long it is down then.
    pub(crate) armed: Option<(CrashPoint, u64)>,
    /// Counts starts, so that what belongs to an earlier life is recognised.
    pub(crate) life: u64,
    pub(crate) live: Option<Live>,
    /// Bytes of all packets and objects of tracks it has sent.
    pub(crate) sent_bytes: u64,
    pub(crate) sent_objects: u64,
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
    /// The alarm has rung: the next step has a tick, whatever waits in the queues.
    pub(crate) tick_due: bool,
    pub(crate) tick_last: bool,
    pub(crate) disk_free_at: u64,
}

impl Live {
    /// Commits on their way to the disk.
    pub(crate) fn writing(&self) -> usize {
        self.flights.iter().filter(|flight| flight.step.needs_commit()).count()
    }
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

/// What is wrong with a disk, and its randomness.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) model: DiskModel,
    pub(crate) fail_permille: u32,
    pub(crate) rng: Rng,
    /// Until when every commit takes so much longer.
    pub(crate) slow: Option<(u64, u64)>,
    /// What becomes of the next commit, if it fails.
    pub(crate) fails_next: Option<Fate>,
    /// Until when each commit fails.
    pub(crate) full_until: u64,
    /// Until when some records cannot be read, and which.
    pub(crate) rot: Option<(u64, u64)>,
}

impl Disk {
    pub(crate) fn new(options: &Options, node: usize) -> Self {
        let own = options.disks.iter().find(|disk| disk.node == node).copied();
        let model = own.unwrap_or(DiskModel {
            node,
            commit_ms_min: options.commit_ms_min,
            commit_ms_max: options.commit_ms_max,
            stall_permille: options.stall_permille,
            stall_ms: options.stall_ms,
        });
        Self {
            model,
            fail_permille: options.commit_fail_permille,
            rng: Rng::new(options.seed, 30_000 + node as u64),
            slow: None,
            fails_next: None,
            full_until: 0,
            rot: None,
        }
    }

    /// How long a commit at `now` takes, in milliseconds, and what becomes of it. Only one that is
    /// to be synced takes time.
    pub(crate) fn commit(&mut self, now: u64, sync: bool) -> (u64, Fate) {
        let mut fate = Fate::Durable;
        let mut takes = 0;
        if sync {
            takes = self.rng.range(self.model.commit_ms_min, self.model.commit_ms_max);
            if self.rng.chance(self.model.stall_permille) {
                takes += self.model.stall_ms;
            }
            if self.rng.chance(self.fail_permille) {
                fate = if self.rng.chance(500) { Fate::Kept } else { Fate::Lost };
            }
            if let Some((until, by_ms)) = self.slow {
                takes += if now < until { by_ms } else { 0 };
            }
            fate = self.fails_next.take().unwrap_or(fate);
        }
        if now < self.full_until {
            fate = Fate::Lost;
        }
        (takes, fate)
    }

    /// It is well from now on, and as fast as it was.
    pub(crate) fn heal(&mut self) {
        self.model.stall_permille = 0;
        self.fail_permille = 0;
        (self.slow, self.fails_next, self.full_until, self.rot) = (None, None, 0, None);
    }

    /// Which records cannot be read at `now`, if any.
    pub(crate) fn rotten(&self, now: u64) -> Option<u64> {
        self.rot.filter(|(until, _)| now < *until).map(|(_, which)| which)
    }
}

/// A store some records of which cannot be read: their checksums are wrong.
pub(crate) struct Rotten<'a> {
    pub(crate) store: &'a SimStore,
    pub(crate) which: u64,
}

/// Of this many records one is damaged.
const ROTTEN_ONE_IN: u64 = 8;

impl Rotten<'_> {
    fn check(&self, table: Table, key: &[u8]) -> Result<(), ReadError> {
        let hash = key.iter().fold(self.which ^ table as u64, |hash, byte| {
            proto::backoff::mix(hash ^ u64::from(*byte))
        });
        if hash.is_multiple_of(ROTTEN_ONE_IN) {
            return Err(ReadError::damaged(table, "checksum mismatch"));
        }
        Ok(())
    }
}

impl Read for Rotten<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.check(table, key)?;
        self.store.get(table, key)
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let found = self.store.scan(table, from, limit)?;
        found.iter().try_for_each(|(key, _)| self.check(table, key))?;
        Ok(found)
    }

    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        let found = self.store.last(table)?;
        found.iter().try_for_each(|(key, _)| self.check(table, key))?;
        Ok(found)
    }
}

/// A clock that may run fast or slow.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// What it was ahead of the world's when it was set, in milliseconds.
    pub(crate) ahead_ms: i64,
    /// How much it gains, in millionths.
    pub(crate) drift_ppm: i64,
    /// When it was set.
    pub(crate) set_at: u64,
    /// How often it was set.
    pub(crate) settings: u32,
}

impl Clock {
    /// What it says at world time `now`.
    pub(crate) const fn time(&self, now: u64) -> Time {
        Time::from_ms(now.saturating_add_signed(self.ahead_ms + self.gained(now)))
    }

    const fn gained(&self, now: u64) -> i64 {
        if self.drift_ppm == 0 {
            return 0;
        }
        let passed = now.saturating_sub(self.set_at) as i64;
        passed.saturating_mul(self.drift_ppm).div_euclid(1_000_000)
    }

    /// The world time at which it says `time`, or a little later.
    pub(crate) fn world(&self, time: Time) -> u64 {
        let at = time.as_ms().saturating_add_signed(-self.ahead_ms);
        if self.drift_ppm == 0 {
            return at;
        }
        let passed = i64::try_from(at.saturating_sub(self.set_at)).unwrap_or(i64::MAX);
        let gained = passed.saturating_mul(self.drift_ppm) / (1_000_000 + self.drift_ppm);
        let mut at = at.saturating_add_signed(-gained);
        while self.time(at) < time {
            at += 1;
        }
        at
    }

    /// When it will be `half_ms` off the world's, if it ever is.
    pub(crate) fn off_at(&self, half_ms: i64) -> Option<u64> {
        let room =
            if self.drift_ppm > 0 { half_ms - self.ahead_ms } else { half_ms + self.ahead_ms };
        let takes = room.max(0).saturating_mul(1_000_000).checked_div(self.drift_ppm.abs())?;
        Some(self.set_at + u64::try_from(takes).unwrap_or(0))
    }
}

impl Node {
    /// What its clock says at world time `now`.
    pub(crate) const fn clock(&self, now: u64) -> Time {
        self.clock.time(now)
    }

    /// Until when it stands still, if it does at `now`.
    pub(crate) fn paused(&self, now: u64) -> Option<u64> {
        self.paused.map(|(until, _)| until).filter(|until| now < *until)
    }

    /// Whether it does anything at `now`.
    pub(crate) fn runs(&self, now: u64) -> bool {
        self.live.is_some() && self.paused(now).is_none()
    }

    /// How long it is down after it ended itself, in milliseconds.
    pub(crate) const fn restart_ms(&mut self, max: u64) -> u64 {
        self.disk.rng.range(1, if max == 0 { 1 } else { max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_drifts_is_met_when_it_says_so() {
        for drift_ppm in [-20_000, -7, 0, 3, 50_000] {
            for ahead_ms in [-250, 0, 250] {
                let clock = Clock { ahead_ms, drift_ppm, set_at: EPOCH_MS, settings: 0 };
                for ms in (0..4_000_000).step_by(1_237) {
                    let due = clock.time(EPOCH_MS).after_ms(ms);
                    let at = clock.world(due);
                    assert!(clock.time(at) >= due, "{clock:?} {ms}");
                    assert!(clock.time(at - 2) < due, "{clock:?} {ms}: too late");
                }
            }
        }
        let fast = Clock { ahead_ms: 50, drift_ppm: 1_000, set_at: EPOCH_MS, settings: 0 };
        let off_at = fast.off_at(250).unwrap();
        assert_eq!(fast.time(off_at).as_ms(), off_at + 250);
        let slow = Clock { drift_ppm: -1_000, ..fast };
        let off_at = slow.off_at(250).unwrap();
        assert_eq!(slow.time(off_at).as_ms(), off_at - 250);
        assert_eq!(Clock { drift_ppm: 0, ..fast }.off_at(250), None);
    }
}
