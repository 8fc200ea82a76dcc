//! What the machines need of durable storage: tables of ordered keys, atomic batches, reads.

use bytes::Bytes;
use std::fmt;

/// Version of the on-disk layout. A store of another version is refused, not guessed.
pub const FORMAT_VERSION: u64 = 2;

/// The tables of a node's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Counters and the format version, by name.
    Meta,
    /// AB-1: the pending set, by transfer number.
    Pending,
    /// Retries made of a pending transfer, by transfer number.
    Attempt,
    /// Terminal outcomes, by obligation id.
    Outcome,
    /// Ids of outcomes in the order they ended, for listing and pruning.
    OutcomeLog,
    /// State governed by obligations: authorizations and weights, by role, agent and key.
    Cell,
    /// Escalation inbox, by transfer number.
    Escalation,
    /// AB-3: what a receiver has done with an obligation, by issuer and id.
    Ledger,
    /// Ledger keys by the minute in which they may be forgotten.
    LedgerExpiry,
    /// Effects an external handler was asked for, by issuer and id.
    Intent,
    /// Items for reconciliation by a person, by number.
    Reconcile,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 11] = [
        Self::Meta,
        Self::Pending,
        Self::Attempt,
        Self::Outcome,
        Self::OutcomeLog,
        Self::Cell,
        Self::Escalation,
        Self::Ledger,
        Self::LedgerExpiry,
        Self::Intent,
        Self::Reconcile,
    ];

    /// The table's name on disk.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Meta => "meta",
            Self::Pending => "pending",
            Self::Attempt => "attempt",
            Self::Outcome => "outcome",
            Self::OutcomeLog => "outcome_log",
            Self::Cell => "cell",
            Self::Escalation => "escalation",
            Self::Ledger => "ledger",
            Self::LedgerExpiry => "ledger_expiry",
            Self::Intent => "intent",
            Self::Reconcile => "reconcile",
        }
    }

    /// Whether a machine reads this table while it handles inputs, so that writes not yet durable
    /// must be visible to it. The others are read at start or far behind their writes.
    #[must_use]
    pub const fn read_while_staged(self) -> bool {
        matches!(
            self,
            Self::Pending
                | Self::Outcome
                | Self::Cell
                | Self::Ledger
                | Self::Intent
                | Self::Escalation
                | Self::Reconcile
        )
    }
}

/// One key set or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Which table.
    pub table: Table,
    /// Which key.
    pub key: Bytes,
    /// The new value, or none to remove the key.
    pub value: Option<Bytes>,
}

/// A read failed: the store is damaged or gone, and the process must end (CR-1).
#[derive(Debug)]
pub struct ReadError(pub Box<dyn std::error::Error + Send + Sync>);

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store cannot be read: {}", self.0)
    }
}

impl std::error::Error for ReadError {}

impl ReadError {
    /// A record that does not decode: damage, or a bug.
    pub fn damaged(table: Table, why: impl fmt::Display) -> Self {
        Self(format!("damaged record in table {}: {why}", table.name()).into())
    }
}

/// Reads of what is durable. Writes go through a [`Step`](crate::step::Step) only.
pub trait Read {
    /// The value of `key`, if any.
    ///
    /// # Errors
    /// [`ReadError`] if the store cannot be read.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError>;

    /// At most `limit` members from key `from` (inclusive) in ascending order.
    ///
    /// # Errors
    /// [`ReadError`] if the store cannot be read.
    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError>;

    /// The largest key and its value.
    ///
    /// # Errors
    /// [`ReadError`] if the store cannot be read.
    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError>;
}
