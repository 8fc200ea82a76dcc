//! Durable storage: the seam the driver commits through, and its fjall implementation.

mod fault;
mod fjall;
mod making;
mod packed;
mod side;

pub use self::fault::{FaultPlan, FaultStore};
pub use self::fjall::{FjallStore, StoreOptions};
pub use self::side::{SideEntry, SideStore, SideTable, SideWrite};

use proto::store::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Why the store cannot be used. Every one of these ends the process: memory that ran ahead of
/// the disk is never used again (CR-1), and the next start recovers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The folder cannot be opened.
    #[error("store {path} cannot be opened: {source}")]
    Open {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another program, or another version of this one, wrote the folder.
    #[error(
        "store {path} has format version {found}, this build reads {known}; it is refused, not guessed: use the version of abhyasa that wrote it, or another data_dir"
    )]
    Format {
        /// The folder.
        path: PathBuf,
        /// Version found.
        found: u64,
        /// Version known.
        known: u64,
    },
    /// The folder belongs to a node of another identity.
    #[error(
        "store {path} belongs to {found}, not to {configured}: obligations under custody cannot change hands; set node.id or data_dir right"
    )]
    Owner {
        /// The folder.
        path: PathBuf,
        /// Identity found.
        found: String,
        /// Identity configured.
        configured: String,
    },
    /// A commit did not become durable: a failed fsync, a full disk.
    #[error(
        "commit of {writes} writes ({bytes} bytes) failed, so nothing of it is acknowledged and the node stops: {source}"
    )]
    Commit {
        /// Writes in it.
        writes: usize,
        /// Bytes in it.
        bytes: usize,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl StoreError {
    pub(crate) fn commit(
        writes: &[Write],
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        let bytes =
            writes.iter().map(|w| w.key.len() + w.value.as_ref().map_or(0, |v| v.len())).sum();
        Self::Commit { writes: writes.len(), bytes, source: source.into() }
    }
}

/// What the driver needs of a store: reads, and atomic commits that are durable when they return.
pub trait Storage: Read + Send + Sync + 'static {
    /// Takes all of `writes`, or none. With `sync` they are durable when it returns; without, they
    /// become durable with the next synced commit at the latest.
    ///
    /// # Errors
    /// [`StoreError`]; the store must not be used again after one.
    fn commit(&self, writes: &[Write], sync: bool) -> Result<(), StoreError>;

    /// Told of each commit before it is made, in order. A disk that is simulated says how long it
    /// takes by the runtime's clock, and [`Self::commit`] is called when that time is over. `None`,
    /// as here, is a real disk: the commit takes its time itself, on a thread of its own if it is
    /// large.
    fn begin(&self, _writes: &[Write], _sync: bool) -> Option<Duration> {
        None
    }

    /// Tables for other parts of the node than the core, made when they are first asked for. `None`:
    /// this store has no place for them.
    ///
    /// # Errors
    /// [`StoreError::Open`].
    fn side(&self) -> Result<Option<SideStore>, StoreError> {
        Ok(None)
    }
}
