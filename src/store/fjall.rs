use super::making::Making;
use super::packed::{Changes, Packed};
use super::{SideStore, Storage, StoreError};
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use proto::id::AgentId;
use proto::store::{FORMAT_VERSION, Read, ReadError, Table, Write};
use std::path::{Path, PathBuf};

const FORMAT_KEY: &[u8] = b"format";
const OWNER_KEY: &[u8] = b"owner";
/// Keyspace of the bitmaps of the pending set, beside its table's own.
const PENDING_INDEX: &str = "pending_index";

/// Bytes of journal kept at most, which is also the least fjall takes.
const JOURNAL_BYTES_MAX: u64 = 64 << 20;

/// Sizes of a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes of block cache.
    pub cache_bytes: u64,
    /// Bytes of one table's write buffer.
    pub memtable_bytes: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { cache_bytes: 32 << 20, memtable_bytes: 16 << 20 }
    }
}

/// A store on disk. One keyspace a table, one batch a commit, one fdatasync a batch. The pending set
/// is packed.
pub struct FjallStore {
    path: PathBuf,
    db: Database,
    tables: [Keyspace; Table::ALL.len()],
    pending: Packed,
}

impl std::fmt::Debug for FjallStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl FjallStore {
    /// Opens or creates the store of node `owner` in `path`.
    ///
    /// # Errors
    /// [`StoreError::Open`], and [`StoreError::Format`] or [`StoreError::Owner`] for a folder
    /// another version or node wrote.
    pub fn open(path: &Path, owner: &AgentId, options: &StoreOptions) -> Result<Self, StoreError> {
        let io_error = |source: std::io::Error| StoreError::Open {
            path: path.to_owned(),
            source: source.into(),
        };
        let Some(making) = Making::begin(path).map_err(io_error)? else {
            return Self::open_made(path, owner, options);
        };
        let mut store = Self::open_made(path, owner, options);
        if making.resumed() && matches!(store, Err(StoreError::Open { .. })) {
            tracing::warn!(path = %path.display(), "a crash interrupted the making of the store, which was never used; it is made anew");
            making.clear().map_err(io_error)?;
            store = Self::open_made(path, owner, options);
        }
        let store = store?;
        making.done().map_err(io_error)?;
        Ok(store)
    }

    /// Opens what is there, or makes what is missing.
    fn open_made(path: &Path, owner: &AgentId, options: &StoreOptions) -> Result<Self, StoreError> {
        let open_error = |source: fjall::Error| StoreError::Open {
            path: path.to_owned(),
            source: explain(&source).into(),
        };
        let db = Database::builder(path)
            .cache_size(options.cache_bytes)
            .worker_threads(1)
            // What is replayed after a crash before the node can do anything.
            .max_journaling_size(JOURNAL_BYTES_MAX)
            .open()
            .map_err(open_error)?;
        let keyspace = |name| {
            let create =
                || KeyspaceCreateOptions::default().max_memtable_size(options.memtable_bytes);
            db.keyspace(name, create).map_err(open_error)
        };
        let mut tables = Vec::with_capacity(Table::ALL.len());
        for table in Table::ALL {
            tables.push(keyspace(table.name())?);
        }
        let tables = tables.try_into().map_err(|_| StoreError::Open {
            path: path.to_owned(),
            source: "not all tables could be made".into(),
        })?;
        let index = keyspace(PENDING_INDEX)?;
        // Another version may pack otherwise, or not at all.
        claim(path, &db, table_of(&tables, Table::Meta), owner)?;
        let pending = Packed::open(table_of(&tables, Table::Pending).clone(), index);
        let pending = pending
            .map_err(|error| StoreError::Open { path: path.to_owned(), source: Box::new(error) })?;
        Ok(Self { path: path.to_owned(), db, tables, pending })
    }

    fn table(&self, table: Table) -> &Keyspace {
        table_of(&self.tables, table)
    }
}

impl Read for FjallStore {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        if table == Table::Pending {
            return self.pending.get(key);
        }
        let value = self.table(table).get(key).map_err(read_error)?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        if table == Table::Pending {
            return self.pending.scan(from, limit);
        }
        self.table(table)
            .range(from..)
            .take(limit)
            .map(|member| {
                let (key, value) = member.into_inner().map_err(read_error)?;
                Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
            })
            .collect()
    }

    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        if table == Table::Pending {
            return self.pending.last();
        }
        let Some(member) = self.table(table).last_key_value() else { return Ok(None) };
        let (key, value) = member.into_inner().map_err(read_error)?;
        Ok(Some((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value))))
    }
}

impl Storage for FjallStore {
    fn side(&self) -> Result<Option<SideStore>, StoreError> {
        SideStore::open(&self.path, &self.db).map(Some)
    }

    /// One journal record and one fdatasync for the whole batch; the memtables, which readers see,
    /// change only after it. (`batch()` alone would stop at the OS buffers.)
    fn commit(&self, writes: &[Write], sync: bool) -> Result<(), StoreError> {
        let mode = if sync { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.db.batch().durability(Some(mode));
        let mut changes = Changes::default();
        for Write { table, key, value } in writes {
            match value {
                _ if *table == Table::Pending => changes
                    .add(key, value.as_ref())
                    .ok_or_else(|| StoreError::commit(writes, "a pending record has no number"))?,
                Some(value) => batch.insert(self.table(*table), key.as_ref(), value.as_ref()),
                None => batch.remove(self.table(*table), key.as_ref()),
            }
        }
        let packing = self.pending.pack(changes, &mut batch);
        let packing = packing.map_err(|error| StoreError::commit(writes, error))?;
        batch.commit().map_err(|error| StoreError::commit(writes, explain(&error)))?;
        self.pending.done(packing);
        Ok(())
    }
}

const fn table_of(tables: &[Keyspace; Table::ALL.len()], table: Table) -> &Keyspace {
    let [
        meta,
        pending,
        attempt,
        outcome,
        outcome_log,
        cell,
        escalation,
        ledger,
        ledger_expiry,
        intent,
        reconcile,
    ] = tables;
    match table {
        Table::Meta => meta,
        Table::Pending => pending,
        Table::Attempt => attempt,
        Table::Outcome => outcome,
        Table::OutcomeLog => outcome_log,
        Table::Cell => cell,
        Table::Escalation => escalation,
        Table::Ledger => ledger,
        Table::LedgerExpiry => ledger_expiry,
        Table::Intent => intent,
        Table::Reconcile => reconcile,
    }
}

/// Checks the format version and the owner, or writes them into an empty store.
fn claim(path: &Path, db: &Database, meta: &Keyspace, owner: &AgentId) -> Result<(), StoreError> {
    let open_error = |error: fjall::Error| StoreError::Open {
        path: path.to_owned(),
        source: explain(&error).into(),
    };
    let Some(format) = meta.get(FORMAT_KEY).map_err(open_error)? else {
        let mut batch = db.batch().durability(Some(PersistMode::SyncData));
        batch.insert(meta, FORMAT_KEY, proto::record::num_key(FORMAT_VERSION).as_ref());
        batch.insert(meta, OWNER_KEY, owner.as_str());
        return batch.commit().map_err(open_error);
    };
    let version = proto::record::key_num(&format).unwrap_or(u64::MAX);
    if version != FORMAT_VERSION {
        return Err(StoreError::Format {
            path: path.to_owned(),
            found: version,
            known: FORMAT_VERSION,
        });
    }
    let found = meta.get(OWNER_KEY).map_err(open_error)?.unwrap_or_default();
    if *found != *owner.as_str().as_bytes() {
        return Err(StoreError::Owner {
            path: path.to_owned(),
            found: String::from_utf8_lossy(&found).into_owned(),
            configured: owner.to_string(),
        });
    }
    Ok(())
}

pub(super) fn read_error(error: fjall::Error) -> ReadError {
    ReadError(explain(&error).into())
}

/// fjall's error with what an operator can do about it.
pub(super) fn explain(error: &fjall::Error) -> String {
    let hint = match error {
        fjall::Error::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => {
            ": the disk is full; free space and start again, nothing acknowledged is lost"
        }
        fjall::Error::Poisoned => ": an earlier sync failed; start again to recover",
        fjall::Error::Locked => ": another process has it open",
        fjall::Error::InvalidVersion(_) => ": another version of the storage engine wrote it",
        _ => "",
    };
    format!("{error}{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(name: &str) -> AgentId {
        AgentId::new(name).unwrap()
    }

    fn open(path: &Path) -> Result<FjallStore, StoreError> {
        FjallStore::open(path, &agent("a"), &StoreOptions::default())
    }

    #[test]
    fn a_commit_is_there_after_reopening_and_scans_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        let writes: Vec<Write> = [3u64, 1, 2]
            .into_iter()
            .map(|num| Write {
                table: Table::Pending,
                key: proto::record::num_key(num),
                value: Some(Bytes::from(vec![u8::try_from(num).unwrap()])),
            })
            .collect();
        store.commit(&writes, true).unwrap();
        drop(store);
        let store = open(dir.path()).unwrap();
        let found = store.scan(Table::Pending, &proto::record::num_key(2), 9).unwrap();
        let values: Vec<u8> = found.iter().map(|(_, value)| value[0]).collect();
        assert_eq!(values, [2, 3]);
        assert_eq!(store.last(Table::Pending).unwrap().unwrap().1[0], 3);
    }

    /// What a crash may leave of a store that is being made.
    #[test]
    fn a_store_whose_making_was_interrupted_is_made_anew() {
        let write = |dir: &Path, name: &str, bytes: &[u8]| {
            std::fs::create_dir_all(dir).unwrap();
            std::fs::write(dir.join(name), bytes).unwrap();
        };
        let whole = tempfile::tempdir().unwrap();
        drop(open(whole.path()).unwrap());
        let whole_version = std::fs::read(whole.path().join("version")).unwrap();
        let leftovers: [&dyn Fn(&Path); 5] = [
            &|_| {},
            &|dir| write(dir, "lock", b""),
            &|dir| write(dir, "0.jnl", &[0; 4096]),
            &|dir| {
                write(dir, "0.jnl", &[0; 4096]);
                write(dir, "version", b"");
            },
            &|dir| {
                write(dir, "version", &whole_version);
                write(&dir.join("keyspaces/0"), "current", b"half");
            },
        ];
        for (n, leave) in leftovers.iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), "making", b"");
            write(dir.path(), "notes.txt", b"of somebody else");
            leave(dir.path());
            drop(open(dir.path()).unwrap_or_else(|error| panic!("leftover {n}: {error}")));
            assert!(!dir.path().join("making").exists(), "leftover {n}");
            assert!(dir.path().join("notes.txt").exists(), "leftover {n}");
            drop(open(dir.path()).unwrap());
        }
    }

    #[test]
    fn a_store_that_was_made_is_never_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        let write = Write {
            table: Table::Pending,
            key: proto::record::num_key(1),
            value: Some(Bytes::from_static(b"owed")),
        };
        store.commit(&[write], true).unwrap();
        // Not even when the flag is back, by a file system that lost its removal.
        std::fs::write(dir.path().join("making"), b"").unwrap();
        assert!(matches!(open(dir.path()), Err(StoreError::Open { .. })), "it is open");
        drop(store);
        let other = FjallStore::open(dir.path(), &agent("b"), &StoreOptions::default());
        assert!(matches!(other, Err(StoreError::Owner { .. })));
        let store = open(dir.path()).unwrap();
        assert_eq!(store.last(Table::Pending).unwrap().unwrap().1, "owed");
        drop(store);
        // Half a store that nobody says was being made is refused, not guessed.
        std::fs::remove_file(dir.path().join("version")).unwrap();
        assert!(matches!(open(dir.path()), Err(StoreError::Open { .. })));
        assert!(dir.path().join("0.jnl").exists());
    }

    #[test]
    fn two_processes_do_not_make_one_store() {
        let dir = tempfile::tempdir().unwrap();
        let making = Making::begin(dir.path()).unwrap().unwrap();
        assert!(matches!(open(dir.path()), Err(StoreError::Open { .. })));
        drop(making);
        open(dir.path()).unwrap();
    }

    #[test]
    fn another_format_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        store
            .commit(
                &[Write {
                    table: Table::Meta,
                    key: Bytes::from_static(FORMAT_KEY),
                    value: Some(proto::record::num_key(FORMAT_VERSION + 1)),
                }],
                true,
            )
            .unwrap();
        drop(store);
        let opened = open(dir.path());
        assert!(
            matches!(opened, Err(StoreError::Format { found, known, .. }) if found == known + 1)
        );
    }

    #[test]
    fn another_owner_and_a_second_process_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path()).unwrap();
        assert!(matches!(open(dir.path()), Err(StoreError::Open { .. })), "opened twice");
        drop(store);
        let other = FjallStore::open(dir.path(), &agent("b"), &StoreOptions::default());
        assert!(matches!(other, Err(StoreError::Owner { .. })));
    }
}
