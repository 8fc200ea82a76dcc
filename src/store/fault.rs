use super::{SideStore, Storage, StoreError};
use bytes::Bytes;
use proto::store::{Read, ReadError, Table, Write};
use std::str::FromStr;
use std::sync::Arc;
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

/// A plan, and how many synced commits there were: of the core, and of what is beside it.
#[derive(Debug)]
pub(super) struct Strikes {
    plan: FaultPlan,
    commits: AtomicU64,
}

impl Strikes {
    /// Makes a synced commit, or what the plan has in its place. `failed` is an error that says why.
    pub(super) fn commit(
        &self,
        commit: impl FnOnce() -> Result<(), StoreError>,
        failed: impl FnOnce(&'static str) -> StoreError,
    ) -> Result<(), StoreError> {
        if self.commits.fetch_add(1, Ordering::Relaxed) + 1 != self.plan.at {
            return commit();
        }
        match self.plan.fault {
            Fault::FailSync => Err(failed(FAILED)),
            Fault::FailSyncKept => {
                commit()?;
                Err(failed(FAILED))
            }
            Fault::DiskFull => Err(failed("injected: no space left on device (ENOSPC)")),
            Fault::AbortBefore => std::process::abort(),
            Fault::AbortAfter => {
                commit()?;
                std::process::abort()
            }
        }
    }
}

/// A store that fails once, on plan. For tests of what must hold when a disk does.
#[derive(Debug)]
pub struct FaultStore<S> {
    inner: S,
    strikes: Arc<Strikes>,
}

impl<S> FaultStore<S> {
    /// `inner`, failing on `plan`.
    pub fn new(inner: S, plan: FaultPlan) -> Self {
        Self { inner, strikes: Arc::new(Strikes { plan, commits: AtomicU64::new(0) }) }
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
        Ok(self.inner.side()?.map(|side| side.failing(self.strikes.clone())))
    }

    fn commit(&self, writes: &[Write], sync: bool) -> Result<(), StoreError> {
        if !sync {
            return self.inner.commit(writes, sync);
        }
        let commit = || self.inner.commit(writes, sync);
        self.strikes.commit(commit, |why| StoreError::commit(writes, why))
    }
}
