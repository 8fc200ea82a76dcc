//! The simulated disk: what was synced is there, what was not may be gone.

use bytes::Bytes;
use proto::store::{Read, ReadError, Table, Write};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Bound;

/// A key, inside the tree's nodes as long as it is short, so that a look-up follows no pointers.
type Key = SmallVec<[u8; 40]>;

/// The value a key had before a write.
type Undo = Vec<(Table, Key, Option<Bytes>)>;

/// The tables of one node. Writes get in by [`SimStore::apply`] only, a batch at a time.
#[derive(Clone, Debug, Default)]
pub struct SimStore {
    tables: [BTreeMap<Key, Bytes>; Table::ALL.len()],
    /// How to take back each batch since the last sync.
    behind: Vec<Undo>,
    commits: u64,
}

impl SimStore {
    /// Takes one batch, in order. With `sync` it is durable, and all before it; without, a crash
    /// may lose it.
    pub fn apply(&mut self, writes: &[Write], sync: bool) {
        let mut undo = Undo::new();
        for write in writes {
            let Some(table) = self.tables.get_mut(write.table as usize) else { continue };
            let before = match &write.value {
                Some(value) => table.insert(Key::from_slice(&write.key), value.clone()),
                None => table.remove(&*write.key),
            };
            if !sync {
                undo.push((write.table, Key::from_slice(&write.key), before));
            }
        }
        if sync {
            self.commits += 1;
            self.behind.clear();
        } else {
            self.behind.push(undo);
        }
    }

    /// Batches a crash may lose.
    #[must_use]
    pub const fn unsynced(&self) -> usize {
        self.behind.len()
    }

    /// A crash: all but the first `kept` of the unsynced batches are gone.
    pub fn crash(&mut self, kept: usize) {
        for undo in self.behind.split_off(kept.min(self.behind.len())).into_iter().rev() {
            for (table, key, before) in undo.into_iter().rev() {
                let Some(table) = self.tables.get_mut(table as usize) else { continue };
                match before {
                    Some(value) => table.insert(key, value),
                    None => table.remove(&*key),
                };
            }
        }
        self.behind.clear();
    }

    /// Syncs so far.
    #[must_use]
    pub const fn commits(&self) -> u64 {
        self.commits
    }

    /// Keys in a table.
    #[must_use]
    pub fn len(&self, table: Table) -> usize {
        self.table(table).map_or(0, BTreeMap::len)
    }

    /// Whether a table has no keys.
    #[must_use]
    pub fn is_empty(&self, table: Table) -> bool {
        self.len(table) == 0
    }

    /// Members of a table, in order.
    pub fn iter(&self, table: Table) -> impl Iterator<Item = (&[u8], &Bytes)> {
        self.table(table).into_iter().flatten().map(|(key, value)| (&**key, value))
    }

    fn table(&self, table: Table) -> Option<&BTreeMap<Key, Bytes>> {
        self.tables.get(table as usize)
    }

    /// The value of a key.
    #[must_use]
    pub fn value(&self, table: Table, key: &[u8]) -> Option<&Bytes> {
        self.table(table)?.get(key)
    }
}

impl Read for SimStore {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.value(table, key).cloned())
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let Some(members) = self.table(table) else { return Ok(Vec::new()) };
        let members =
            members.range::<[u8], _>((Bound::Included(from), Bound::Unbounded)).take(limit);
        Ok(members.map(|(key, value)| (Bytes::copy_from_slice(key), value.clone())).collect())
    }

    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        let last = self.table(table).and_then(BTreeMap::last_key_value);
        Ok(last.map(|(key, value)| (Bytes::copy_from_slice(key), value.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_takes_back_what_was_not_synced() {
        let key = Bytes::from_static(b"k");
        let put = |value: &'static [u8]| {
            let value = Some(Bytes::from_static(value));
            [Write { table: Table::Cell, key: key.clone(), value }]
        };
        let mut store = SimStore::default();
        store.apply(&put(b"1"), true);
        store.apply(&put(b"2"), false);
        store.apply(&put(b"3"), false);
        assert_eq!(store.value(Table::Cell, b"k").unwrap().as_ref(), b"3");
        let mut other = store.clone();
        store.crash(0);
        assert_eq!(store.value(Table::Cell, b"k").unwrap().as_ref(), b"1");
        other.crash(1);
        assert_eq!(other.value(Table::Cell, b"k").unwrap().as_ref(), b"2");
    }
}
