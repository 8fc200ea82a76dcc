//! The pending set on disk: neighbours that came in one commit share one value.
//!
//! An obligation is pending for a moment as a rule, and the records of one commit come and go
//! together. One value for some of them costs the storage engine one insertion and one removal
//! instead of one each. Which of them are still pending is in a bitmap beside them, written with the
//! commit that ends one; the whole goes with its last.

use bytes::Bytes;
use fjall::{Keyspace, OwnedWriteBatch as WriteBatch, UserValue};
use proto::record::{key_num, num_key};
use proto::store::{ReadError, Table};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError, RwLock};

/// Records of one pack at most.
const RECORDS_MAX: usize = 256;
/// Bytes of one pack at which the next is begun: what one straggler may keep from being freed until
/// its pack is thinned, and what a read of one record may have to load.
const BYTES_MAX: usize = 32 << 10;
/// A pack is thinned to what is still pending of it once that is so small a part.
const THINNED_BELOW: usize = 8;

const WORD_BITS: usize = u64::BITS as usize;

/// One pack, by the number of its first record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pack {
    records: u16,
    thinned: bool,
    /// Bit `n`: record `first + n` is pending.
    alive: [u64; RECORDS_MAX / WORD_BITS],
}

impl Pack {
    fn set(&mut self, at: usize, alive: bool) {
        if let Some(word) = self.alive.get_mut(at / WORD_BITS) {
            let bit = 1 << (at % WORD_BITS);
            *word = if alive { *word | bit } else { *word & !bit };
        }
    }

    fn has(&self, at: usize) -> bool {
        self.alive.get(at / WORD_BITS).is_some_and(|word| word >> (at % WORD_BITS) & 1 == 1)
    }

    fn left(&self) -> usize {
        self.alive.iter().map(|word| word.count_ones() as usize).sum()
    }

    fn records(&self) -> usize {
        usize::from(self.records)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.records.to_be_bytes().to_vec();
        bytes.push(u8::from(self.thinned));
        let words = self.alive.iter().take(self.records().div_ceil(WORD_BITS));
        bytes.extend(words.flat_map(|word| word.to_be_bytes()));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (records, bytes) = bytes.split_first_chunk::<2>()?;
        let (thinned, mut bytes) = bytes.split_first()?;
        let records = u16::from_be_bytes(*records);
        let mut pack = Self { records, thinned: *thinned == 1, ..Self::default() };
        if *thinned > 1 || pack.records() > RECORDS_MAX {
            return None;
        }
        for word in pack.alive.iter_mut().take(usize::from(records).div_ceil(WORD_BITS)) {
            let (first, rest) = bytes.split_first_chunk::<8>()?;
            *word = u64::from_be_bytes(*first);
            bytes = rest;
        }
        let inside = (pack.records()..RECORDS_MAX).all(|at| !pack.has(at));
        (bytes.is_empty() && inside && pack.left() > 0).then_some(pack)
    }
}

/// A value: where each record ends, then the records. One that is gone is empty.
fn encode<'a>(records: impl Iterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
    let len = records.clone().map(|record| size_of::<u32>() + record.len()).sum();
    let mut bytes = Vec::with_capacity(len);
    let mut end = 0;
    for record in records.clone() {
        end += record.len();
        bytes.extend_from_slice(&u32::try_from(end).unwrap_or(u32::MAX).to_be_bytes());
    }
    records.for_each(|record| bytes.extend_from_slice(record));
    bytes
}

/// The records of a value.
struct Records<'a> {
    ends: &'a [[u8; 4]],
    bytes: &'a [u8],
}

impl<'a> Records<'a> {
    fn of(value: &'a [u8], records: usize) -> Result<Self, ReadError> {
        let split = value.split_at_checked(records * size_of::<u32>());
        let (ends, bytes) = split.ok_or_else(Self::damaged)?;
        Ok(Self { ends: ends.as_chunks().0, bytes })
    }

    fn damaged() -> ReadError {
        ReadError::damaged(Table::Pending, "the lengths in a pack")
    }

    fn get(&self, at: usize) -> Result<&'a [u8], ReadError> {
        let end = |at: usize| self.ends.get(at).map(|end| u32::from_be_bytes(*end) as usize);
        let from = at.checked_sub(1).map_or(Some(0), end);
        let range = from.zip(end(at)).map(|(from, end)| from..end);
        range.and_then(|range| self.bytes.get(range)).ok_or_else(Self::damaged)
    }
}

/// The pending set of an open store. One thread at a time commits to it; others may read meanwhile.
pub(super) struct Packed {
    values: Keyspace,
    index: Keyspace,
    packs: RwLock<BTreeMap<u64, Pack>>,
    /// The value read last: offers of what has waited are read in order.
    recent: Mutex<Option<(u64, UserValue)>>,
}

/// What one commit does to it.
#[derive(Default)]
pub(super) struct Changes<'a>(BTreeMap<u64, Option<&'a Bytes>>);

/// What the index becomes, once the commit is durable: packs that are new or other, or gone.
pub(super) struct Packing(Vec<(u64, Option<Pack>)>);

impl<'a> Changes<'a> {
    /// Sets or removes a record; of two changes of one record the later counts. `None`: the key is
    /// no transfer number.
    pub(super) fn add(&mut self, key: &[u8], value: Option<&'a Bytes>) -> Option<()> {
        self.0.insert(key_num(key)?, value);
        Some(())
    }
}

impl Packed {
    /// Reads which records there are; the records themselves are read when they are asked for.
    pub(super) fn open(values: Keyspace, index: Keyspace) -> Result<Self, ReadError> {
        let mut packs = BTreeMap::new();
        for member in index.iter() {
            let (key, value) = member.into_inner().map_err(super::fjall::read_error)?;
            let pack = key_num(&key).zip(Pack::decode(&value));
            let (first, pack) =
                pack.ok_or_else(|| ReadError::damaged(Table::Pending, "the index"))?;
            packs.insert(first, pack);
        }
        Ok(Self { values, index, packs: RwLock::new(packs), recent: Mutex::default() })
    }

    fn find(packs: &BTreeMap<u64, Pack>, num: u64) -> Option<(u64, usize, Pack)> {
        let (first, pack) = packs.range(..=num).next_back()?;
        let at = usize::try_from(num - first).ok().filter(|at| *at < pack.records())?;
        Some((*first, at, *pack))
    }

    /// The lock is held while the value is read, so that it is not kept longer than the commit that
    /// changes it, which takes the lock after.
    fn value(&self, first: u64) -> Result<Option<UserValue>, ReadError> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, value)) = recent.as_ref().filter(|(at, _)| *at == first) {
            return Ok(Some(value.clone()));
        }
        let value = self.values.get(num_key(first)).map_err(super::fjall::read_error)?;
        *recent = value.clone().map(|value| (first, value));
        Ok(value)
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        let Some(num) = key_num(key) else { return Ok(None) };
        let found = Self::find(&self.packs.read().unwrap_or_else(PoisonError::into_inner), num);
        let Some((first, at, pack)) = found.filter(|(_, at, pack)| pack.has(*at)) else {
            return Ok(None);
        };
        // A commit beside us may have ended the last of them since.
        let Some(value) = self.value(first)? else { return Ok(None) };
        let record = Records::of(&value, pack.records())?.get(at)?;
        Ok(Some(Bytes::copy_from_slice(record)))
    }

    pub(super) fn scan(&self, from: &[u8], limit: usize) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        // Keys are numbers of eight bytes: a shorter one stands before all that it begins.
        let mut low = [0; 8];
        low.iter_mut().zip(from).for_each(|(to, byte)| *to = *byte);
        let from = u64::from_be_bytes(low).saturating_add(u64::from(from.len() > low.len()));
        let mut wanted = Vec::new();
        {
            let packs = self.packs.read().unwrap_or_else(PoisonError::into_inner);
            let begin = Self::find(&packs, from).map_or(from, |(first, ..)| first);
            let mut left = limit;
            for (first, pack) in packs.range(begin..) {
                let skipped = usize::try_from(from.saturating_sub(*first)).unwrap_or(usize::MAX);
                let nth: Vec<usize> =
                    (skipped..pack.records()).filter(|at| pack.has(*at)).take(left).collect();
                left -= nth.len();
                wanted.push((*first, pack.records(), nth));
                if left == 0 {
                    break;
                }
            }
        }
        let mut found = Vec::new();
        for (first, records, nth) in wanted {
            let Some(value) = self.value(first)? else { continue };
            let records = Records::of(&value, records)?;
            for at in nth {
                let record = Bytes::copy_from_slice(records.get(at)?);
                found.push((num_key(first + at as u64), record));
            }
        }
        Ok(found)
    }

    pub(super) fn last(&self) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        let last = {
            let packs = self.packs.read().unwrap_or_else(PoisonError::into_inner);
            packs.last_key_value().and_then(|(first, pack)| {
                let at = (0..pack.records()).rev().find(|at| pack.has(*at))?;
                Some(num_key(first + at as u64))
            })
        };
        let Some(key) = last else { return Ok(None) };
        Ok(self.get(&key)?.map(|value| (key, value)))
    }

    /// Adds to `batch` what `changes` come to on disk. [`Self::done`] must follow its commit.
    pub(super) fn pack(
        &self,
        changes: Changes<'_>,
        batch: &mut WriteBatch,
    ) -> Result<Packing, ReadError> {
        let mut touched: BTreeMap<u64, Pack> = BTreeMap::new();
        let mut again: BTreeMap<u64, &Bytes> = BTreeMap::new();
        let mut fresh: Vec<(u64, &Bytes)> = Vec::new();
        {
            let packs = self.packs.read().unwrap_or_else(PoisonError::into_inner);
            for (num, change) in changes.0 {
                let Some((first, at, pack)) = Self::find(&packs, num) else {
                    fresh.extend(change.map(|record| (num, record)));
                    continue;
                };
                touched.entry(first).or_insert(pack).set(at, change.is_some());
                again.extend(change.map(|record| (num, record)));
            }
        }
        let mut index = Vec::new();
        for (first, mut pack) in touched {
            let (left, key) = (pack.left(), num_key(first));
            if left == 0 {
                batch.remove(&self.values, key.as_ref());
                batch.remove(&self.index, key.as_ref());
                index.push((first, None));
                continue;
            }
            let thin = !pack.thinned && left * THINNED_BELOW <= pack.records();
            let last = first + pack.records() as u64;
            if thin || again.range(first..last).next().is_some() {
                pack.thinned = left * THINNED_BELOW <= pack.records();
                let value = self.value(first)?.ok_or_else(|| {
                    ReadError::damaged(Table::Pending, format!("pack {first} is gone"))
                })?;
                let old = Records::of(&value, pack.records())?;
                let mut records = Vec::with_capacity(pack.records());
                for at in 0..pack.records() {
                    records.push(match again.get(&(first + at as u64)) {
                        _ if !pack.has(at) => &[],
                        Some(record) => record.as_ref(),
                        None => old.get(at)?,
                    });
                }
                batch.insert(&self.values, key.as_ref(), encode(records.into_iter()));
            }
            batch.insert(&self.index, key.as_ref(), pack.encode());
            index.push((first, Some(pack)));
        }
        let mut rest = fresh.as_slice();
        while let [(first, _), ..] = rest {
            let (run, others) = rest.split_at(run_len(rest));
            let key = num_key(*first);
            let mut pack =
                Pack { records: u16::try_from(run.len()).unwrap_or(u16::MAX), ..Pack::default() };
            (0..run.len()).for_each(|at| pack.set(at, true));
            let records = run.iter().map(|(_, record)| record.as_ref());
            batch.insert(&self.values, key.as_ref(), encode(records));
            batch.insert(&self.index, key.as_ref(), pack.encode());
            index.push((*first, Some(pack)));
            rest = others;
        }
        Ok(Packing(index))
    }

    /// The commit is durable: readers see it.
    pub(super) fn done(&self, packing: Packing) {
        if packing.0.is_empty() {
            return;
        }
        let mut packs = self.packs.write().unwrap_or_else(PoisonError::into_inner);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        *recent = recent.take().filter(|(at, _)| packing.0.iter().all(|(first, _)| first != at));
        for (first, pack) in packing.0 {
            match pack {
                Some(pack) => packs.insert(first, pack),
                None => packs.remove(&first),
            };
        }
    }
}

/// How many of these new records, in order, the next pack takes: numbers without a gap, up to its
/// limits, and one at least.
fn run_len(fresh: &[(u64, &Bytes)]) -> usize {
    let Some((first, _)) = fresh.first() else { return 0 };
    let mut bytes = 0;
    let fits = |(num, record): &&(u64, &Bytes), nth: u64| {
        let fits = *num == first + nth && (nth == 0 || bytes < BYTES_MAX);
        bytes += record.len();
        fits
    };
    let mut fits = fits;
    let taken = fresh.iter().zip(0u64..).take(RECORDS_MAX);
    taken.take_while(|(member, nth)| fits(member, *nth)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fjall::{Database, KeyspaceCreateOptions};
    use proptest::prelude::*;

    fn keyspaces(db: &Database) -> (Keyspace, Keyspace) {
        let make = |name| db.keyspace(name, KeyspaceCreateOptions::default).unwrap();
        (make("pending"), make("pending_index"))
    }

    fn open(path: &std::path::Path) -> (Database, Packed) {
        let db = Database::builder(path).worker_threads(1).open().unwrap();
        let (values, index) = keyspaces(&db);
        let packed = Packed::open(values, index).unwrap();
        (db, packed)
    }

    fn commit(db: &Database, packed: &Packed, writes: &[(u64, Option<Bytes>)]) {
        let mut changes = Changes::default();
        for (num, value) in writes {
            changes.add(&num_key(*num), value.as_ref()).unwrap();
        }
        let mut batch = db.batch();
        let packing = packed.pack(changes, &mut batch).unwrap();
        batch.commit().unwrap();
        packed.done(packing);
    }

    fn record(num: u64, len: usize) -> Bytes {
        Bytes::from([&num.to_be_bytes()[..], &vec![7; len]].concat())
    }

    fn all(packed: &Packed) -> Vec<(u64, Bytes)> {
        let found = packed.scan(&[], usize::MAX).unwrap();
        found.into_iter().map(|(key, value)| (key_num(&key).unwrap(), value)).collect()
    }

    fn values(packed: &Packed) -> Vec<usize> {
        packed.values.iter().map(|member| member.value().unwrap().len()).collect()
    }

    #[test]
    fn a_commit_is_a_few_values_and_goes_with_its_last_record() {
        let dir = tempfile::tempdir().unwrap();
        let (db, packed) = open(dir.path());
        let puts: Vec<_> = (1..=1000).map(|num| (num, Some(record(num, 92)))).collect();
        commit(&db, &packed, &puts);
        assert_eq!(values(&packed), [26_624, 26_624, 26_624, 24_128], "256 records at most");
        let most: Vec<_> = (1..1000).map(|num| (num, None)).collect();
        commit(&db, &packed, &most);
        assert_eq!(all(&packed), [(1000, record(1000, 92))]);
        assert_eq!(values(&packed), [232 * 4 + 100], "one straggler keeps its own bytes only");
        commit(&db, &packed, &[(1000, None)]);
        assert!(values(&packed).is_empty() && packed.index.is_empty().unwrap());
    }

    #[test]
    fn large_records_share_no_value() {
        let dir = tempfile::tempdir().unwrap();
        let (db, packed) = open(dir.path());
        let puts: Vec<_> = (1..=3).map(|num| (num, Some(record(num, BYTES_MAX)))).collect();
        commit(&db, &packed, &puts);
        assert_eq!(values(&packed).len(), 3);
    }

    #[test]
    fn a_damaged_index_or_pack_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (db, packed) = open(dir.path());
        commit(&db, &packed, &[(1, Some(record(1, 5))), (2, Some(record(2, 5)))]);
        packed.values.insert(num_key(1).as_ref(), b"\0\0\0\x09\0\0\0\x0b\0\0").unwrap();
        assert!(packed.get(&num_key(1)).is_err() && packed.scan(&[], 9).is_err());
        for damaged in [&b""[..], &[0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 4], &[0, 1, 2], &[9, 9, 0]] {
            packed.index.insert(num_key(1).as_ref(), damaged).unwrap();
            let (values, index) = keyspaces(&db);
            assert!(Packed::open(values, index).is_err(), "{damaged:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        /// Beside a plain map: the same members whatever is set, set again and removed, and after
        /// opening again.
        #[test]
        fn it_is_a_map(
            commits in prop::collection::vec(
                prop::collection::vec((0u64..700, prop::option::of(0usize..900)), 1..400),
                1..8,
            ),
            from in 0u64..700,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let (mut db, mut packed) = open(dir.path());
            let mut plain: BTreeMap<u64, Bytes> = BTreeMap::new();
            for (nth, writes) in commits.into_iter().enumerate() {
                let writes: Vec<_> = writes
                    .into_iter()
                    .map(|(num, len)| (num, len.map(|len| record(num, len))))
                    .collect();
                commit(&db, &packed, &writes);
                for (num, value) in writes {
                    match value {
                        Some(value) => plain.insert(num, value),
                        None => plain.remove(&num),
                    };
                }
                if nth % 3 == 2 {
                    drop((packed, db));
                    (db, packed) = open(dir.path());
                }
                let members: Vec<_> = plain.clone().into_iter().collect();
                prop_assert_eq!(all(&packed), members);
                for num in 0..700 {
                    let found = packed.get(&num_key(num)).unwrap();
                    prop_assert_eq!(found.as_ref(), plain.get(&num));
                }
                let some = packed.scan(&num_key(from), 50).unwrap();
                let some: Vec<_> = some.iter().map(|(key, _)| key_num(key).unwrap()).collect();
                let want: Vec<_> = plain.range(from..).take(50).map(|(num, _)| *num).collect();
                prop_assert_eq!(some, want);
                let last = packed.last().unwrap().map(|(key, value)| (key_num(&key).unwrap(), value));
                prop_assert_eq!(last, plain.last_key_value().map(|(num, value)| (*num, value.clone())));
            }
        }
    }
}
