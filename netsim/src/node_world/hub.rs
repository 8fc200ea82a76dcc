//! What the parts of a node world share: virtual time, the checkers, and who is up.

use crate::check::{Checker, Class};
use crate::node::EPOCH_MS;
use abhyasa::clock::Clock;
use abhyasa::node::NodeHandle;
use proto::time::Time;
use std::cell::RefCell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Looks at the clock in one millisecond before the world is called stuck.
const LOOKS_PER_MS_MAX: u64 = 5_000_000;

/// Shared by all parts of one run.
#[derive(Debug)]
pub(super) struct Hub {
    begun: Instant,
    checker: Mutex<Checker>,
    handles: Mutex<Vec<Option<NodeHandle>>>,
    /// Rings when something broke.
    pub(super) broken: Notify,
    looked_at: AtomicU64,
    looks: AtomicU64,
}

impl Hub {
    /// Begins now, with `nodes` nodes that are not up yet.
    pub(super) fn new(checker: Checker, nodes: usize) -> Self {
        Self {
            begun: Instant::now(),
            checker: Mutex::new(checker),
            handles: Mutex::new(vec![None; nodes]),
            broken: Notify::new(),
            looked_at: AtomicU64::new(0),
            looks: AtomicU64::new(0),
        }
    }

    /// World time, in unix milliseconds.
    pub(super) fn now(&self) -> u64 {
        EPOCH_MS + self.micros() / 1_000
    }

    /// Since the run began, in microseconds.
    pub(super) fn micros(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// When it is `micros` since the run began.
    pub(super) fn instant(&self, micros: u64) -> Instant {
        self.begun + std::time::Duration::from_micros(micros)
    }

    /// Has the checkers look at something, and tells the world if they object.
    pub(super) fn check<T>(&self, look: impl FnOnce(&mut Checker) -> T) -> T {
        let mut checker = lock(&self.checker);
        let seen = look(&mut checker);
        if !checker.violations().is_empty() {
            self.broken.notify_one();
        }
        seen
    }

    /// Something broke outside of the checkers' rules.
    pub(super) fn breach(&self, rule: &'static str, class: Class, node: usize, detail: String) {
        self.check(|checker| checker.breach(rule, class, self.now(), node, detail));
    }

    /// Whether something broke.
    pub(super) fn is_broken(&self) -> bool {
        !lock(&self.checker).violations().is_empty()
    }

    /// A node, if it is up.
    pub(super) fn handle(&self, node: usize) -> Option<NodeHandle> {
        lock(&self.handles).get(node).cloned().flatten()
    }

    /// A node came up, or went.
    pub(super) fn set_handle(&self, node: usize, handle: Option<NodeHandle>) {
        if let Some(place) = lock(&self.handles).get_mut(node) {
            *place = handle;
        }
    }

    /// Counts a look at the clock; a node that looks on and on while time stands still would hang
    /// the run.
    fn look(&self) -> u64 {
        let now = self.now();
        if self.looked_at.swap(now, Ordering::Relaxed) == now {
            let looks = self.looks.fetch_add(1, Ordering::Relaxed);
            assert!(looks < LOOKS_PER_MS_MAX, "time stands still: a node spins");
        } else {
            self.looks.store(0, Ordering::Relaxed);
        }
        now
    }
}

/// The wall clock of one node. It outlives the node's crashes, and may be set.
#[derive(Debug)]
pub(super) struct SimClock {
    hub: Arc<Hub>,
    ahead_ms: AtomicI64,
}

impl SimClock {
    pub(super) const fn new(hub: Arc<Hub>, ahead_ms: i64) -> Self {
        Self { hub, ahead_ms: AtomicI64::new(ahead_ms) }
    }

    /// Sets it to be so far ahead of the world's.
    pub(super) fn set(&self, ahead_ms: i64) {
        self.ahead_ms.store(ahead_ms, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        Time::from_ms(self.hub.look().saturating_add_signed(self.ahead_ms.load(Ordering::Relaxed)))
    }
}

thread_local! {
    /// What the last panic on this thread said.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes panics from now on: tokio keeps those of a task to itself.
pub(super) fn watch_panics() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANIC.with_borrow_mut(|panic| *panic = Some(info.to_string()));
            before(info);
        }));
    });
    take_panic();
}

/// What the last panic on this thread said, if there was one since this was asked.
pub(super) fn take_panic() -> Option<String> {
    PANIC.with_borrow_mut(Option::take)
}

/// The lock, also after a panic elsewhere, which ends the run by itself.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
