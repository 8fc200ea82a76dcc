//! A node's disk on virtual time: what is committed outlives the node, and nothing else does.

use super::hub::{Hub, SimClock, lock};
use crate::disk::SimStore;
use crate::options::{Options, Sabotage};
use abhyasa::clock::Clock as _;
use abhyasa::store::{Storage, StoreError};
use bytes::Bytes;
use link::Rng;
use proto::store::{Read, ReadError, Table, Write};
use proto::time::Time;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One disk.
#[derive(Debug)]
pub(super) struct SimDisk {
    node: usize,
    hub: Arc<Hub>,
    clock: Arc<SimClock>,
    linger_ms: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    store: SimStore,
    /// Counts the node's starts: who holds an older number is dead.
    life: u64,
    rng: Rng,
    speed: Speed,
    sabotage: Sabotage,
    /// Every commit takes so much longer.
    slow_ms: u64,
    /// Nothing moves before this world time: the machine stands still.
    paused_until: u64,
    /// What becomes of the next commit, if it fails: whether it reaches the disk all the same.
    fails: Option<bool>,
    full: bool,
    flight: Option<Flight>,
    last_begun: Time,
    last_done: u64,
}

/// How long commits take, and how many fail.
#[derive(Clone, Copy, Debug)]
struct Speed {
    min_ms: u64,
    max_ms: u64,
    stall_permille: u32,
    stall_ms: u64,
    fail_permille: u32,
}

/// A commit under way.
#[derive(Debug)]
struct Flight {
    writes: Vec<Write>,
    sync: bool,
    handled: Handled,
}

/// Between which two times of the node's clock the inputs of a commit were handled.
#[derive(Clone, Copy, Debug)]
struct Handled {
    first: Time,
    last: Time,
}

impl SimDisk {
    pub(super) fn new(
        options: &Options,
        node: usize,
        hub: Arc<Hub>,
        clock: Arc<SimClock>,
    ) -> Arc<Self> {
        let own = options.disks.iter().find(|disk| disk.node == node);
        let speed = Speed {
            min_ms: own.map_or(options.commit_ms_min, |disk| disk.commit_ms_min),
            max_ms: own.map_or(options.commit_ms_max, |disk| disk.commit_ms_max),
            stall_permille: own.map_or(options.stall_permille, |disk| disk.stall_permille),
            stall_ms: own.map_or(options.stall_ms, |disk| disk.stall_ms),
            fail_permille: options.commit_fail_permille,
        };
        let state = State {
            store: SimStore::default(),
            life: 0,
            rng: Rng::new(options.seed, 30_000 + node as u64),
            speed,
            sabotage: options.sabotage,
            slow_ms: 0,
            paused_until: 0,
            fails: None,
            full: false,
            flight: None,
            last_begun: Time::default(),
            last_done: 0,
        };
        let linger_ms = options.tuning.commit_linger_us.div_ceil(1_000);
        Arc::new(Self { node, hub, clock, linger_ms, state: Mutex::new(state) })
    }

    /// The store as the next life of the node sees it.
    pub(super) fn open(self: &Arc<Self>) -> Arc<dyn Storage> {
        let mut state = lock(&self.state);
        state.life += 1;
        Arc::new(Opened { disk: self.clone(), life: state.life })
    }

    /// The node is dead. A commit under way may have reached the disk; what was not synced may be
    /// gone.
    pub(super) fn crash(&self) {
        let mut state = lock(&self.state);
        state.life += 1;
        if let Some(flight) = state.flight.take()
            && !state.full
            && state.rng.chance(500)
        {
            self.apply(&mut state, &flight);
        }
        let unsynced = state.store.unsynced() as u64;
        let kept = state.rng.below(unsynced + 1);
        state.store.crash(usize::try_from(kept).unwrap_or(0));
        self.hub.check(|checker| checker.rolled_back(self.node, &state.store));
    }

    /// Every commit takes so much longer from now on.
    pub(super) fn slow(&self, by_ms: u64) {
        lock(&self.state).slow_ms = by_ms;
    }

    /// No commit is done before this world time.
    pub(super) fn pause(&self, until: u64) {
        let mut state = lock(&self.state);
        state.paused_until = state.paused_until.max(until);
    }

    /// The next commit fails; `kept` if it reaches the disk all the same.
    pub(super) fn fail_next(&self, kept: bool) {
        lock(&self.state).fails = Some(kept);
    }

    /// Whether it takes nothing more.
    pub(super) fn set_full(&self, full: bool) {
        lock(&self.state).full = full;
    }

    /// No stalls, no failures.
    pub(super) fn heal(&self) {
        let mut state = lock(&self.state);
        (state.speed.stall_permille, state.speed.fail_permille) = (0, 0);
        (state.slow_ms, state.fails, state.full) = (0, None, false);
    }

    /// Whether a commit is under way.
    pub(super) fn is_busy(&self) -> bool {
        lock(&self.state).flight.is_some()
    }

    /// A look at what is durable.
    pub(super) fn store(&self) -> SimStore {
        lock(&self.state).store.clone()
    }

    /// Syncs so far.
    pub(super) fn syncs(&self) -> u64 {
        lock(&self.state).store.commits()
    }

    fn begin(&self, life: u64, writes: &[Write], sync: bool) -> Duration {
        let mut state = lock(&self.state);
        if state.life != life {
            return Duration::ZERO; // its commit fails
        }
        let (now, clock) = (self.hub.now(), self.clock.now());
        let handled = Handled { first: self.handled_since(&state, now, clock), last: clock };
        state.last_begun = clock;
        state.flight = Some(Flight { writes: writes.to_vec(), sync, handled });
        let mut takes = 0;
        if sync {
            let Speed { min_ms, max_ms, stall_permille, stall_ms, fail_permille } = state.speed;
            takes = state.rng.range(min_ms, max_ms) + state.slow_ms;
            if state.rng.chance(stall_permille) {
                takes += stall_ms;
            }
            if state.rng.chance(fail_permille) {
                state.fails = Some(state.rng.chance(500));
            }
        }
        Duration::from_millis((now + takes).max(state.paused_until) - now)
    }

    /// The earliest the node's clock can have said when an input of the step was handled that is
    /// sealed now: a step opens at the earliest when the one before is sealed, and is sealed at the
    /// latest when its linger time, or the commit before, is over.
    fn handled_since(&self, state: &State, now: u64, clock: Time) -> Time {
        let lingered = self.linger_ms + 2;
        if now > state.last_done + lingered {
            return Time::from_ms(clock.as_ms().saturating_sub(lingered));
        }
        state.last_begun.min(clock)
    }

    fn commit(&self, life: u64, writes: &[Write]) -> Result<(), StoreError> {
        let mut state = lock(&self.state);
        if state.life != life {
            return Err(refused(writes, "the process is dead"));
        }
        let flight = state.flight.take();
        let fails = state.fails.take();
        state.last_done = self.hub.now();
        if state.full {
            return Err(refused(writes, "no space left on device"));
        }
        if let Some(flight) = flight.filter(|_| fails != Some(false)) {
            self.apply(&mut state, &flight);
        }
        if fails.is_some() {
            return Err(refused(writes, "the sync failed"));
        }
        Ok(())
    }

    /// Makes a commit durable, before the eyes of the checkers.
    fn apply(&self, state: &mut State, flight: &Flight) {
        let Flight { writes, sync, handled } = flight;
        match state.sabotage {
            Sabotage::Honest => state.store.apply(writes, *sync),
            Sabotage::LyingDisk => state.store.apply(writes, false),
            Sabotage::NoLedger => {
                let kept = writes.iter().filter(|write| write.table != Table::Ledger);
                state.store.apply(&kept.cloned().collect::<Vec<_>>(), *sync);
            }
        }
        // What is forgotten is judged by the latest time it can have been decided, all else by the
        // earliest.
        let forgets = |write: &Write| write.table == Table::Ledger && write.value.is_none();
        let now = self.hub.now();
        self.hub.check(|checker| {
            if !writes.iter().any(forgets) {
                return checker.committed(now, self.node, handled.first, writes);
            }
            let (forgotten, rest): (Vec<Write>, Vec<Write>) =
                writes.iter().cloned().partition(forgets);
            checker.committed(now, self.node, handled.first, &rest);
            checker.committed(now, self.node, handled.last, &forgotten);
        });
    }
}

fn refused(writes: &[Write], why: &str) -> StoreError {
    StoreError::Commit { writes: writes.len(), bytes: 0, source: why.into() }
}

/// The disk, as one life of its node has it open.
struct Opened {
    disk: Arc<SimDisk>,
    life: u64,
}

impl Read for Opened {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        lock(&self.disk.state).store.get(table, key)
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        lock(&self.disk.state).store.scan(table, from, limit)
    }

    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        lock(&self.disk.state).store.last(table)
    }
}

impl Storage for Opened {
    fn begin(&self, writes: &[Write], sync: bool) -> Option<Duration> {
        Some(self.disk.begin(self.life, writes, sync))
    }

    fn commit(&self, writes: &[Write], _sync: bool) -> Result<(), StoreError> {
        self.disk.commit(self.life, writes)
    }
}
