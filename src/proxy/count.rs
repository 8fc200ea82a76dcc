//! What a direction of the proxy has done.

use std::sync::atomic::{AtomicU64, Ordering};

/// What one direction has done so far, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Sent on, duplicates among them.
    pub forwarded: u64,
    /// Bytes of UDP payload in these.
    pub forwarded_bytes: u64,
    /// Lost by loss, a cut, a full queue or the MTU.
    pub dropped: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Sent on with bits flipped.
    pub corrupted: u64,
    /// Lost to a limit of the proxy itself or of the sockets.
    pub overflowed: u64,
}

impl Count {
    /// The sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            forwarded: self.forwarded + other.forwarded,
            forwarded_bytes: self.forwarded_bytes + other.forwarded_bytes,
            dropped: self.dropped + other.dropped,
            duplicated: self.duplicated + other.duplicated,
            corrupted: self.corrupted + other.corrupted,
            overflowed: self.overflowed + other.overflowed,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct LinkCounters {
    forwarded: AtomicU64,
    forwarded_bytes: AtomicU64,
    dropped: AtomicU64,
    duplicated: AtomicU64,
    corrupted: AtomicU64,
    overflowed: AtomicU64,
}

impl LinkCounters {
    pub(super) fn forwarded(&self, bytes: usize) {
        add(&self.forwarded, 1);
        add(&self.forwarded_bytes, bytes as u64);
    }

    pub(super) fn dropped(&self) {
        add(&self.dropped, 1);
    }

    pub(super) fn duplicated(&self) {
        add(&self.duplicated, 1);
    }

    pub(super) fn corrupted(&self) {
        add(&self.corrupted, 1);
    }

    pub(super) fn overflowed(&self) {
        add(&self.overflowed, 1);
    }

    pub(super) fn read(&self) -> Count {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Count {
            forwarded: read(&self.forwarded),
            forwarded_bytes: read(&self.forwarded_bytes),
            dropped: read(&self.dropped),
            duplicated: read(&self.duplicated),
            corrupted: read(&self.corrupted),
            overflowed: read(&self.overflowed),
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
