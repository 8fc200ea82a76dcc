//! The simulated disk: what was committed is there, what was not is gone.

use bytes::Bytes;
use proto::store::{Read, ReadError, Table, Write};
use std::collections::BTreeMap;
use std::ops::Bound;

/// The durable tables of one node. Writes get in by [`SimStore::apply`] only, a batch at a time.
#[derive(Clone, Debug, Default)]
pub struct SimStore {
    tables: BTreeMap<Table, BTreeMap<Bytes, Bytes>>,
    commits: u64,
}

impl SimStore {
    /// Makes one batch durable, in order.
    pub fn apply(&mut self, writes: &[Write]) {
        self.commits += 1;
        for write in writes {
            let table = self.tables.entry(write.table).or_default();
            match &write.value {
                Some(value) => table.insert(write.key.clone(), value.clone()),
                None => table.remove(&write.key),
            };
        }
    }

    /// Batches made durable so far.
    #[must_use]
    pub const fn commits(&self) -> u64 {
        self.commits
    }

    /// Keys in a table.
    #[must_use]
    pub fn len(&self, table: Table) -> usize {
        self.tables.get(&table).map_or(0, BTreeMap::len)
    }

    /// Whether a table has no keys.
    #[must_use]
    pub fn is_empty(&self, table: Table) -> bool {
        self.len(table) == 0
    }

    /// Members of a table, in order.
    pub fn iter(&self, table: Table) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.tables.get(&table).into_iter().flatten()
    }

    /// The value of a key.
    #[must_use]
    pub fn value(&self, table: Table, key: &[u8]) -> Option<&Bytes> {
        self.tables.get(&table)?.get(key)
    }
}

impl Read for SimStore {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.value(table, key).cloned())
    }

    fn scan(&self, table: Table, from: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let Some(members) = self.tables.get(&table) else { return Ok(Vec::new()) };
        let members = members.range::<[u8], _>((Bound::Included(from), Bound::Unbounded)).take(limit);
        Ok(members.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        let last = self.tables.get(&table).and_then(BTreeMap::last_key_value);
        Ok(last.map(|(key, value)| (key.clone(), value.clone())))
    }
}
