//! Nodes start, stop, stand still, and tell the time.

use super::{Event, World, timeline};
use crate::check::Class;
use crate::node::{Live, Rotten};
use crate::scenario::CrashPoint;
use proto::custody::Custody;
use proto::polarity::Registry;
use proto::store::ReadError;
use std::collections::VecDeque;

/// A disk that is full or cannot be read ends a node again at once: it waits so long at most before
/// it tries again, unless restarts take longer anyway, in milliseconds.
const TRY_AGAIN_MS_MAX: u64 = 200;

impl World {
    pub(super) fn lives(&self, node: usize, life: u64) -> bool {
        self.nodes.get(node).is_some_and(|node| node.life == life && node.live.is_some())
    }

    pub(super) fn is_up(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.live.is_some())
    }

    /// Whether a node is up and does not stand still.
    pub(super) fn runs(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.runs(self.now))
    }

    /// Until when a node stands still, if it does.
    pub(super) fn paused(&self, node: usize) -> Option<u64> {
        self.nodes.get(node)?.paused(self.now)
    }

    /// Starts a node that is down: opens its store and begins recovery.
    pub(crate) fn start(&mut self, n: usize) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(n).filter(|node| node.live.is_none()) else { return };
        let opened = match node.disk.rotten(now) {
            Some(which) => {
                let store = Rotten { store: &node.store, which };
                Custody::open(node.settings.clone(), Registry::default(), &store)
            }
            None => Custody::open(node.settings.clone(), Registry::default(), &node.store),
        };
        let custody = match opened {
            Ok(custody) => custody,
            Err(error) => return self.unreadable(n, &error),
        };
        #[cfg(feature = "mutants")]
        let custody = {
            let mut custody = custody;
            if let Some(mutant) = self.options.mutant {
                custody.mutate(mutant);
            }
            custody
        };
        node.life += 1;
        node.live = Some(Live {
            custody,
            inbox: VecDeque::new(),
            calls: VecDeque::new(),
            flights: VecDeque::new(),
            pump_queued: false,
            alarm_at: None,
            tick_due: false,
            tick_last: false,
            disk_free_at: 0,
        });
        self.checker.up(now, n);
        self.note(Some(n), || "starts".to_owned());
        self.pump_soon(n);
        // Who comes back to a relay does so by itself.
        if !self.is_relay(n) {
            for peer in self.neighbours(n) {
                self.dial_anew(n, peer);
            }
        }
    }

    /// A read failed, which ends the process (CR-1). It is a bug unless the disk is damaged.
    pub(super) fn unreadable(&mut self, n: usize, error: &ReadError) {
        let Some(node) = self.nodes.get_mut(n) else { return };
        if node.disk.rotten(self.now).is_none() {
            self.checker.breach("recovery", Class::Crash, self.now, n, error.to_string());
            return;
        }
        let down_ms = node.restart_ms(self.options.restart_ms_max.max(TRY_AGAIN_MS_MAX));
        self.note(Some(n), || format!("{error}"));
        if self.is_up(n) {
            self.kill(n, Some(down_ms));
        } else {
            self.schedule(self.now + down_ms, Event::Restart { node: n });
        }
    }

    /// Ends a node's process: what is not durable is gone, the outputs with it. Of the commits in
    /// flight any first part may have reached the disk.
    pub(crate) fn kill(&mut self, n: usize, down_ms: Option<u64>) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(n) else { return };
        let Some(live) = node.live.take() else { return };
        node.paused = None;
        let mut reached = now >= node.disk.full_until;
        for flight in live.flights {
            let lucky = self.nodes.get_mut(n).is_some_and(|node| node.disk.rng.chance(500));
            reached = reached && lucky;
            if !reached || !flight.step.needs_commit() {
                continue;
            }
            let sync = flight.step.needs_sync();
            self.durable(n, flight.clock, sync, flight.step);
        }
        if let Some(node) = self.nodes.get_mut(n) {
            let kept = node.disk.rng.below(node.store.unsynced() as u64 + 1);
            node.store.crash(usize::try_from(kept).unwrap_or(0));
            self.checker.rolled_back(n, &node.store);
        }
        self.restarts += 1;
        self.note(Some(n), || "is killed".to_owned());
        self.dialing.retain(|_, dial| dial.from != n);
        self.ends_of_dead(n);
        self.relay_of_dead(n);
        if let Some(down_ms) = down_ms {
            self.schedule(now + down_ms, Event::Restart { node: n });
        }
    }

    /// CR-1: a failed commit ends the process. What was to follow it is never written.
    pub(super) fn commit_failed(&mut self, n: usize) {
        let max = self.options.restart_ms_max;
        let Some(node) = self.nodes.get_mut(n) else { return };
        let full = self.now < node.disk.full_until;
        let down_ms = node.restart_ms(if full { max.max(TRY_AGAIN_MS_MAX) } else { max });
        if let Some(live) = &mut node.live {
            live.flights.clear();
        }
        self.note(Some(n), || "a commit failed".to_owned());
        self.kill(n, Some(down_ms));
    }

    /// A node is to be killed at `point` of its next commit.
    pub(super) fn arm(&mut self, n: usize, point: CrashPoint, down_ms: u64) {
        if let Some(node) = self.nodes.get_mut(n) {
            node.armed = Some((point, down_ms));
        }
    }

    /// A node stands still until `until`. Its peers may give it up.
    pub(super) fn pause(&mut self, n: usize, until: u64) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(n).filter(|node| node.live.is_some()) else { return };
        let (until, since) = match node.paused.filter(|(until, _)| now < *until) {
            Some((later, since)) => (later.max(until), since),
            None => (until, now),
        };
        node.paused = Some((until, since));
        self.checker.stalled(n, until);
        for session in self.sessions_of(n) {
            self.idle_later(session);
            self.idle_later(super::link::other(session));
        }
    }

    /// Sets a clock, which may then run fast or slow until it is set right.
    pub(super) fn set_clock(&mut self, n: usize, ahead_ms: i64, drift_ppm: i64) {
        let half_ms = i64::try_from(self.options.skew_ms / 2).unwrap_or(0);
        let now = self.now;
        let Some(node) = self.nodes.get_mut(n) else { return };
        let clock = &mut node.clock;
        clock.settings += 1;
        (clock.ahead_ms, clock.drift_ppm, clock.set_at) = (ahead_ms, drift_ppm, now);
        let right = clock.off_at(half_ms).map(|at| (at, clock.settings));
        if let Some(live) = &mut node.live {
            live.alarm_at = None;
            self.pump_soon(n);
        }
        if let Some((at, settings)) = right {
            self.schedule(at, Event::ClockSet { node: n, settings });
        }
    }

    /// A clock that drifts is about to leave the difference allowed: it is stepped to the other half.
    pub(super) fn clock_right(&mut self, n: usize, settings: u32) {
        let Some(clock) = self.nodes.get(n).map(|node| node.clock) else { return };
        if clock.settings == settings {
            let ahead_ms = timeline::set_right(&self.options, n, &clock);
            self.set_clock(n, ahead_ms, clock.drift_ppm);
            self.note(Some(n), || format!("its clock is set to {ahead_ms} ms ahead"));
        }
    }
}
