//! Tables of parts of the node that are not the core, in its database and apart from its driver.
//!
//! One database is one journal, one lock and one format version: a copied or restored folder holds
//! both halves of a node as they were at one time.

use super::StoreError;
use super::fault::Strikes;
use super::fjall::{explain, read_error};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use proto::store::ReadError;
use std::path::Path;
use std::sync::Arc;

/// Bytes of one table's write buffer.
const MEMTABLE_BYTES: u64 = 8 << 20;

/// A table beside those of the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideTable {
    /// A2A tasks, by id.
    Task,
    /// What lists and restarts need to know of each task, by id.
    TaskBrief,
    /// What happened to each task, by id and number.
    TaskEvent,
    /// Webhooks of tasks and how far each has come, by task and id.
    TaskPush,
    /// Tasks that carry an obligation, by caller and obligation.
    TaskObligation,
    /// The transparency log of consent: leaves, nodes and tree heads.
    ConsentLog,
    /// Versions of the usage policy that were served, by number.
    AcapPolicy,
    /// How far the chains of each caller are, by caller.
    AcapPair,
    /// Consent records, by caller and number.
    AcapRecord,
    /// Adherence events of callers, by caller and number.
    AcapEvent,
    /// What was attempted at the gate, by caller and number.
    AcapAttempt,
    /// Numbers of records and events, by caller and id.
    AcapId,
    /// Anchors of records, by caller and number.
    AcapRecordAnchor,
    /// Anchors of events, by caller and number.
    AcapEventAnchor,
    /// How far our own chains with each callee are, by callee.
    CallerPair,
    /// Our consent records, as they are sent, by callee and number.
    CallerRecord,
    /// Our adherence events, as they are sent, by callee and number.
    CallerEvent,
    /// What a callee refused of them, and why, by callee and number.
    CallerRefused,
    /// Policies of callees, and what each claim ever meant, by callee.
    CallerPolicy,
}

impl SideTable {
    const ALL: [Self; 19] = [
        Self::Task,
        Self::TaskBrief,
        Self::TaskEvent,
        Self::TaskPush,
        Self::TaskObligation,
        Self::ConsentLog,
        Self::AcapPolicy,
        Self::AcapPair,
        Self::AcapRecord,
        Self::AcapEvent,
        Self::AcapAttempt,
        Self::AcapId,
        Self::AcapRecordAnchor,
        Self::AcapEventAnchor,
        Self::CallerPair,
        Self::CallerRecord,
        Self::CallerEvent,
        Self::CallerRefused,
        Self::CallerPolicy,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Task => "a2a_task",
            Self::TaskBrief => "a2a_task_brief",
            Self::TaskEvent => "a2a_task_event",
            Self::TaskPush => "a2a_task_push",
            Self::TaskObligation => "a2a_task_obligation",
            Self::ConsentLog => "consent_log",
            Self::AcapPolicy => "acap_policy",
            Self::AcapPair => "acap_pair",
            Self::AcapRecord => "acap_record",
            Self::AcapEvent => "acap_event",
            Self::AcapAttempt => "acap_attempt",
            Self::AcapId => "acap_id",
            Self::AcapRecordAnchor => "acap_record_anchor",
            Self::AcapEventAnchor => "acap_event_anchor",
            Self::CallerPair => "caller_pair",
            Self::CallerRecord => "caller_record",
            Self::CallerEvent => "caller_event",
            Self::CallerRefused => "caller_refused",
            Self::CallerPolicy => "caller_policy",
        }
    }
}

/// One write: a value, or nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideWrite {
    /// The table.
    pub table: SideTable,
    /// The key.
    pub key: Vec<u8>,
    /// The value; `None` removes the key.
    pub value: Option<Vec<u8>>,
}

/// A key and its value.
pub type SideEntry = (Vec<u8>, Vec<u8>);

/// The tables. Cheap to clone.
#[derive(Clone)]
pub struct SideStore {
    db: Database,
    tables: [Keyspace; SideTable::ALL.len()],
    /// In tests, what fails and when.
    strikes: Option<Arc<Strikes>>,
}

impl std::fmt::Debug for SideStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SideStore")
    }
}

impl SideStore {
    pub(super) fn open(path: &Path, db: &Database) -> Result<Self, StoreError> {
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| StoreError::Open {
            path: path.to_owned(),
            source,
        };
        let mut tables = Vec::with_capacity(SideTable::ALL.len());
        for table in SideTable::ALL {
            let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
            tables.push(
                db.keyspace(table.name(), options)
                    .map_err(|error| failed(explain(&error).into()))?,
            );
        }
        let tables = tables.try_into().map_err(|_| failed("not all tables were made".into()))?;
        Ok(Self { db: db.clone(), tables, strikes: None })
    }

    /// The same, whose commits fail on a plan.
    pub(super) fn failing(self, strikes: Arc<Strikes>) -> Self {
        Self { strikes: Some(strikes), ..self }
    }

    fn table(&self, table: SideTable) -> &Keyspace {
        let [
            task,
            brief,
            event,
            push,
            obligation,
            consent_log,
            acap_policy,
            acap_pair,
            acap_record,
            acap_event,
            acap_attempt,
            acap_id,
            acap_record_anchor,
            acap_event_anchor,
            caller_pair,
            caller_record,
            caller_event,
            caller_refused,
            caller_policy,
        ] = &self.tables;
        match table {
            SideTable::Task => task,
            SideTable::TaskBrief => brief,
            SideTable::TaskEvent => event,
            SideTable::TaskPush => push,
            SideTable::TaskObligation => obligation,
            SideTable::ConsentLog => consent_log,
            SideTable::AcapPolicy => acap_policy,
            SideTable::AcapPair => acap_pair,
            SideTable::AcapRecord => acap_record,
            SideTable::AcapEvent => acap_event,
            SideTable::AcapAttempt => acap_attempt,
            SideTable::AcapId => acap_id,
            SideTable::AcapRecordAnchor => acap_record_anchor,
            SideTable::AcapEventAnchor => acap_event_anchor,
            SideTable::CallerPair => caller_pair,
            SideTable::CallerRecord => caller_record,
            SideTable::CallerEvent => caller_event,
            SideTable::CallerRefused => caller_refused,
            SideTable::CallerPolicy => caller_policy,
        }
    }

    /// The value of a key, if there is one.
    ///
    /// # Errors
    /// [`ReadError`]: the disk cannot be read.
    pub fn get(&self, table: SideTable, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        let value = self.table(table).get(key).map_err(read_error)?;
        Ok(value.map(|value| value.to_vec()))
    }

    /// Up to `limit` entries in order, from key `from` on and below `to`.
    ///
    /// # Errors
    /// [`ReadError`]: the disk cannot be read.
    pub fn range(
        &self,
        table: SideTable,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<SideEntry>, ReadError> {
        self.range_within(table, from, to, limit, usize::MAX)
    }

    /// As [`Self::range`], and no further once the values have `bytes_max` bytes.
    ///
    /// # Errors
    /// [`ReadError`]: the disk cannot be read.
    pub fn range_within(
        &self,
        table: SideTable,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<SideEntry>, ReadError> {
        let (mut found, mut bytes) = (Vec::new(), 0usize);
        for entry in self.table(table).range(from..).take(limit) {
            let (key, value) = entry.into_inner().map_err(read_error)?;
            if to.is_some_and(|to| key.as_ref() >= to) {
                break;
            }
            bytes = bytes.saturating_add(value.len());
            found.push((key.to_vec(), value.to_vec()));
            if bytes >= bytes_max {
                break;
            }
        }
        Ok(found)
    }

    /// Takes all of `writes`, or none; they are durable when it returns. Reads see them only then.
    ///
    /// # Errors
    /// [`StoreError::Commit`]; the store must not be used again after one.
    pub fn commit<'a>(
        &self,
        writes: impl Iterator<Item = &'a SideWrite>,
    ) -> Result<(), StoreError> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        let (mut count, mut bytes) = (0, 0);
        for SideWrite { table, key, value } in writes {
            count += 1;
            bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            match value {
                Some(value) => batch.insert(self.table(*table), key.as_slice(), value.as_slice()),
                None => batch.remove(self.table(*table), key.as_slice()),
            }
        }
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| StoreError::Commit {
            writes: count,
            bytes,
            source,
        };
        let commit = || batch.commit().map_err(|error| failed(explain(&error).into()));
        match &self.strikes {
            None => commit(),
            Some(strikes) => strikes.commit(commit, |why| failed(why.into())),
        }
    }
}
