//! Tables of the checkers: looked up by hash, gone through in the order of arrival.

use super::Entry;
use proto::id::ObligationId;

/// A hash table. Its order would be that of the hashes: it is never iterated.
pub(super) type Hashed<K, V> = std::collections::HashMap<K, V, rustc_hash::FxBuildHasher>;

/// The obligations one node was asked to issue.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    index: Hashed<ObligationId, u32>,
    list: Vec<Entry>,
}

impl Entries {
    /// Adds an obligation that was not asked for before.
    pub(super) fn add(&mut self, id: &ObligationId, entry: impl FnOnce() -> Entry) {
        if !self.index.contains_key(id) {
            self.index.insert(id.clone(), u32::try_from(self.list.len()).unwrap_or(u32::MAX));
            self.list.push(entry());
        }
    }

    /// The number of an obligation, in the order of arrival.
    pub(super) fn number(&self, id: &str) -> Option<u32> {
        self.index.get(id).copied()
    }

    pub(super) fn numbered(&self, number: u32) -> Option<&Entry> {
        self.list.get(number as usize)
    }

    pub(super) fn numbered_mut(&mut self, number: u32) -> Option<&mut Entry> {
        self.list.get_mut(number as usize)
    }

    pub(super) fn get(&self, id: &str) -> Option<&Entry> {
        self.list.get(*self.index.get(id)? as usize)
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Entry> {
        self.list.get_mut(*self.index.get(id)? as usize)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Entry> {
        self.list.iter()
    }
}
