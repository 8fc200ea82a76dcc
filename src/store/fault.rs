use super::{SideStore, Storage, StoreError};
use bytes::Bytes;
use proto::store::{Read, ReadError, Table, Write};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const FAILED: &str = "injected: fdatasync failed (EIO)";

/// What a [`FaultStore`] does, and at which of its synced commits (counted from 1).
///
/// As text, for the `ABHYASA_FAULT` environment variable of a node under test: `fail@7` (the sync
/// of commit 7 fails, and nothing of it is there), `fail-kept@7` (it fails, and all of it is there
/// all the same), `full@7` (the disk is full), `abort-before@7` and `abort-after@7` (the process
/// dies just before, or just after, commit 7 became durable; nothing of it has left).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultPlan {
    fault: Fault,
    at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    FailSync,
    FailSyncKept,
    DiskFull,
    AbortBefore,
    AbortAfter,
}

impl FromStr for FaultPlan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "fault plan {text:?} is not one of fail@N, fail-kept@N, full@N, abort-before@N, abort-after@N"
            )
        };
        let (name, at) = text.split_once('@').ok_or_else(wrong)?;
        let fault = match name {
            "fail" => Fault::FailSync,
            "fail-kept" => Fault::FailSyncKept,
            "full" => Fault::DiskFull,
            "abort-before" => Fault::AbortBefore,
            "abort-after" => Fault::AbortAfter,
            _ => return Err(wrong()),
        };
        Ok(Self { fault, at: at.parse().map_err(|_| wrong())? })
    }
}

/// A store that fails once, on plan. For tests of what must hold when a disk does.
#[derive(Debug)]
pub struct FaultStore<S> {
    inner: S,
    plan: FaultPlan,
    commits: AtomicU64,
}

impl<S> FaultStore<S> {
    /// `inner`, failing on `plan`.
    pub const fn new(inner: S, plan: FaultPlan) -> Self {
        Self { inner, plan, commits: AtomicU64::new(0) }
    }
}

impl<S: Read> Read for FaultStore<S> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.inner.get(table, key)
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        self.inner.scan(table, from, limit)
    }

    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        self.inner.last(table)
    }
}

impl<S: Storage> Storage for FaultStore<S> {
    fn begin(&self, writes: &[Write], sync: bool) -> Option<Duration> {
        self.inner.begin(writes, sync)
    }

    fn side(&self) -> Result<Option<SideStore>, StoreError> {
        self.inner.side()
    }

    fn commit(&self, writes: &[Write], sync: bool) -> Result<(), StoreError> {
        if !sync || self.commits.fetch_add(1, Ordering::Relaxed) + 1 != self.plan.at {
            return self.inner.commit(writes, sync);
        }
        match self.plan.fault {
            Fault::FailSync => Err(StoreError::commit(writes, FAILED)),
            Fault::FailSyncKept => {
                self.inner.commit(writes, sync)?;
                Err(StoreError::commit(writes, FAILED))
            }
            Fault::DiskFull => {
                Err(StoreError::commit(writes, "injected: no space left on device (ENOSPC)"))
            }
            Fault::AbortBefore => std::process::abort(),
            Fault::AbortAfter => {
                self.inner.commit(writes, sync)?;
                std::process::abort()
            }
        }
    }
}
