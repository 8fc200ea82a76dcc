//! A transparency log: a Merkle tree of RFC 9162 that only grows, over the hashes of consent documents.
//!
//! A leaf is the text of a document's `record_hash`. Each append, of one leaf or of many, is one durable commit with
//! a tree head that is signed by the log's key; nothing is told of it before. Whoever keeps a head can hold the log
//! to it: a later head comes with a proof that it continues the earlier one, or the log is caught.
//!
//! The log is called by its key, so a head is checked with nothing else at hand; whom to believe is for the
//! one who checks. A log with another key is another log.

mod head;
pub mod tree;

pub use head::{Digest, HeadFault, LEDGER_PREFIX, TreeHead};

use super::jws::{JwsError, SigningKey};
use crate::store::{SideStore, SideTable, SideWrite, StoreError};
use proto::batch::{Hash, leaf, node};
use proto::consent::{ContentHash, Stamp, TERM_LEN_MAX, Text};
use proto::store::ReadError;
use proto::time::Time;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

/// Leaves of a log; a further one is refused. Sizes stay exact in JSON's numbers.
pub const LOG_LEN_MAX: u64 = 1 << 40;
/// Hashes of one append; more are refused.
pub const LOG_BATCH_MAX: usize = 1_024;
/// Entries read at a time when a log is checked from its leaves.
const CHECK_PAGE: usize = 4_096;
/// First bytes of keys: leaf by number, number by leaf, node by level and number, head by size, last head.
const ENTRY: u8 = b'e';
const NUMBER: u8 = b'i';
const NODE: u8 = b'n';
const HEAD: u8 = b'h';
const LAST: u8 = b'l';

/// Why the log cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The disk cannot be read.
    #[error("the log of consent cannot be read: {0}")]
    Read(#[from] ReadError),
    /// An append did not become durable. The log takes no more of them: the node must start again.
    #[error("the log of consent cannot be written: {0}")]
    Store(#[from] StoreError),
    /// An earlier append failed.
    #[error("the log of consent takes nothing more: an append failed before")]
    Broken,
    /// What is stored is not what was signed.
    #[error(
        "the log of consent is not what was signed: {what} is {found}, and {expected} was signed"
    )]
    Tampered {
        /// Which part.
        what: String,
        /// What was signed.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A part is missing.
    #[error("the log of consent lacks {what}")]
    Lacks {
        /// Which part.
        what: String,
    },
    /// The last head is not good.
    #[error("the last tree head of the log of consent: {0}")]
    Head(#[from] HeadFault),
    /// The key does not sign.
    #[error("the key of the log of consent: {0}")]
    Key(#[from] JwsError),
    /// Too much at once.
    #[error("{count} hashes in one append are over the limit of {LOG_BATCH_MAX}")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// The log is full.
    #[error("the log of consent has {size} leaves, the limit is {LOG_LEN_MAX}")]
    Full {
        /// Leaves.
        size: u64,
    },
    /// Not in the log.
    #[error("the log of consent has {size} leaves, and was asked for {asked}")]
    Beyond {
        /// Leaves.
        size: u64,
        /// What was asked for.
        asked: u64,
    },
}

/// Where a hash is in the log, and the proof of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inclusion {
    /// Its number.
    pub index: u64,
    /// The hashes that lead from it to the root, from the bottom up (RFC 9162 §2.1.3.1).
    pub path: Vec<Digest>,
    /// The head of the tree that it is in.
    pub head: TreeHead,
}

#[derive(Debug, Default)]
struct State {
    head: Option<TreeHead>,
    broken: bool,
}

impl State {
    fn size(&self) -> u64 {
        self.head.as_ref().map_or(0, |head| head.tree_size)
    }
}

/// A log in the tables of a node. Its calls wait for the disk.
#[derive(Debug)]
pub struct Log {
    side: SideStore,
    key: SigningKey,
    id: Text<TERM_LEN_MAX>,
    state: Mutex<State>,
}

/// Nodes of a tree whose number of leaves is a power of two never change, so they are kept.
type Fresh = BTreeMap<(u32, u64), Hash>;
/// Level, number, and hash.
type Node = ((u32, u64), Hash);

impl Log {
    /// Opens the log of `key`, and holds what is stored against the last head that was signed.
    ///
    /// # Errors
    /// [`LogError`]: it cannot be read, or is not what was signed.
    pub fn open(side: SideStore, key: SigningKey) -> Result<Self, LogError> {
        let id = head::log_id(&key.public());
        let log = Self { side, key, id, state: Mutex::default() };
        let last = log.get(&[LAST])?;
        if last.is_none() {
            log.nothing_after(0)?;
        }
        if let Some(bytes) = last {
            let head = TreeHead::read(&bytes)?;
            if head.log_id != log.id {
                let (expected, found) = (log.id.to_string(), head.log_id.to_string());
                return Err(LogError::Tampered { what: "its name".to_owned(), expected, found });
            }
            head.verify()?;
            log.same_root(&head, log.root(head.tree_size, &Fresh::new())?)?;
            log.nothing_after(head.tree_size)?;
            *log.state() = State { head: Some(head), broken: false };
        }
        Ok(log)
    }

    /// What it is called: `ct:rfc9162:` and the `did:key` of its key.
    #[must_use]
    pub const fn id(&self) -> &Text<TERM_LEN_MAX> {
        &self.id
    }

    /// The last head that was signed; none before the first append.
    #[must_use]
    pub fn head(&self) -> Option<TreeHead> {
        self.state().head.clone()
    }

    /// The head that was signed when the log had `size` leaves, if one was.
    ///
    /// # Errors
    /// [`LogError`]: it cannot be read.
    pub fn head_at(&self, size: u64) -> Result<Option<TreeHead>, LogError> {
        let bytes = self.get(&numbered(HEAD, size))?;
        Ok(bytes.map(|bytes| TreeHead::read(&bytes)).transpose()?)
    }

    /// Appends hashes in one commit under one head, and proves of each where it is. One that is there
    /// already is not appended again.
    ///
    /// # Errors
    /// [`LogError`]: nothing was appended; after a failed commit nothing will be.
    pub fn append(&self, hashes: &[ContentHash], now: Time) -> Result<Vec<Inclusion>, LogError> {
        if hashes.len() > LOG_BATCH_MAX {
            return Err(LogError::TooMany { count: hashes.len() });
        }
        let mut state = self.state();
        if state.broken {
            return Err(LogError::Broken);
        }
        let mut size = state.size();
        let (mut fresh, mut writes) = (Fresh::new(), Vec::new());
        let (mut numbers, mut places) = (HashMap::new(), Vec::with_capacity(hashes.len()));
        for hash in hashes {
            let key = [&[NUMBER], hash.as_str().as_bytes()].concat();
            let known = match numbers.get(hash) {
                Some(number) => Some(*number),
                None => self.get(&key)?.map(|bytes| number_of(&bytes)).transpose()?,
            };
            let number = known.unwrap_or(size);
            numbers.insert(hash, number);
            places.push(number);
            if known.is_some() {
                continue;
            }
            if size >= LOG_LEN_MAX {
                return Err(LogError::Full { size });
            }
            writes.push(write(key, size.to_be_bytes().to_vec()));
            writes.push(write(numbered(ENTRY, size), hash.as_str().as_bytes().to_vec()));
            let made = grown(size, leaf(hash.as_str().as_bytes()), |level, index| {
                self.node(level, index, &fresh)
            })?;
            fresh.extend(made);
            size += 1;
        }
        let head = match &state.head {
            Some(head) if head.tree_size == size => head.clone(),
            last => {
                // Its clock never goes back: an earlier head is not later than a later one.
                let not_before = last.as_ref().map_or(now, |head| head.timestamp.time());
                let root = self.root(size, &fresh)?;
                TreeHead::sign(&self.key, size, root, Stamp::from(now.max(not_before)))?
            }
        };
        if size > state.size() {
            let bytes = head.to_bytes();
            writes.push(write(numbered(HEAD, size), bytes.clone()));
            writes.push(write(vec![LAST], bytes));
            writes.extend(
                fresh.iter().map(|(&(level, at), hash)| write(node_key(level, at), hash.to_vec())),
            );
            if let Err(error) = self.side.commit(writes.iter()) {
                state.broken = true;
                return Err(error.into());
            }
            state.head = Some(head.clone());
        }
        drop(state);
        let of = |index| {
            self.path(index, size).map(|path| Inclusion { index, path, head: head.clone() })
        };
        places.into_iter().map(of).collect()
    }

    /// The proof that the tree of `first` leaves is the beginning of that of `second` (RFC 9162 §2.1.4.1).
    ///
    /// # Errors
    /// [`LogError`]: there are not so many leaves, or they cannot be read.
    pub fn consistency(&self, first: u64, second: u64) -> Result<Vec<Digest>, LogError> {
        let size = self.state().size();
        if second > size || first > second {
            return Err(LogError::Beyond { size, asked: second.max(first) });
        }
        let none = Fresh::new();
        let path = tree::consistency(&|level, at| self.node(level, at, &none), first, second)?;
        Ok(path.into_iter().map(Digest).collect())
    }

    /// The proof that the leaf of a number is in the tree of `size` leaves.
    ///
    /// # Errors
    /// [`LogError`]: there are not so many leaves, or they cannot be read.
    pub fn inclusion(&self, index: u64, size: u64) -> Result<Vec<Digest>, LogError> {
        let all = self.state().size();
        if size > all || index >= size {
            return Err(LogError::Beyond { size: all, asked: size.max(index) });
        }
        self.path(index, size)
    }

    /// Makes the tree anew from its leaves, and holds it against every head that was signed.
    ///
    /// # Errors
    /// [`LogError`] says which leaf, node or head is not what was signed.
    pub fn check(&self) -> Result<(), LogError> {
        let size = self.state().size();
        let (mut right, mut at) = (Fresh::new(), 0);
        while at < size {
            let from = numbered(ENTRY, at);
            let page =
                self.side.range(SideTable::ConsentLog, &from, Some(&[ENTRY + 1]), CHECK_PAGE)?;
            if page.is_empty() {
                return Err(LogError::Lacks { what: format!("leaf {at}") });
            }
            for (key, text) in page {
                if at == size {
                    break; // appended meanwhile
                }
                if key != numbered(ENTRY, at) {
                    return Err(LogError::Lacks { what: format!("leaf {at}") });
                }
                let made = grown(at, leaf(&text), |level, index| {
                    let lacks = || LogError::Lacks { what: format!("node {level}/{index}") };
                    right.get(&(level, index)).copied().ok_or_else(lacks)
                })?;
                for &((level, index), hash) in &made {
                    let stored = self.node(level, index, &Fresh::new())?;
                    if stored != hash {
                        let what = match level {
                            0 => format!("leaf {index}"),
                            _ => format!("node {level}/{index}"),
                        };
                        let (expected, found) =
                            (Digest(stored).to_string(), Digest(hash).to_string());
                        return Err(LogError::Tampered { what, expected, found });
                    }
                    // Of each level the last two nodes are enough to go on.
                    if let Some(old) = index.checked_sub(2) {
                        right.remove(&(level, old));
                    }
                }
                right.extend(made);
                at += 1;
                if let Some(head) = self.head_at(at)? {
                    head.verify()?;
                    self.same_root(&head, self.root(at, &Fresh::new())?)?;
                }
            }
        }
        Ok(())
    }

    /// A last head that is not the last would have us sign another tree for sizes that were signed.
    fn nothing_after(&self, size: u64) -> Result<(), LogError> {
        for (kind, at) in [(ENTRY, size), (HEAD, size + 1)] {
            let from = numbered(kind, at);
            let more = self.side.range(SideTable::ConsentLog, &from, Some(&[kind + 1]), 1)?;
            if !more.is_empty() {
                let (what, expected) = ("its size".to_owned(), size.to_string());
                return Err(LogError::Tampered { what, expected, found: "more".to_owned() });
            }
        }
        Ok(())
    }

    fn same_root(&self, head: &TreeHead, found: Hash) -> Result<(), LogError> {
        if head.root_hash == Digest(found) {
            return Ok(());
        }
        let what = format!("the root of its {} leaves", head.tree_size);
        let (expected, found) = (head.root_hash.to_string(), Digest(found).to_string());
        Err(LogError::Tampered { what, expected, found })
    }

    fn root(&self, size: u64, fresh: &Fresh) -> Result<Hash, LogError> {
        tree::root(&|level, at| self.node(level, at, fresh), size)
    }

    fn path(&self, index: u64, size: u64) -> Result<Vec<Digest>, LogError> {
        let none = Fresh::new();
        let path = tree::inclusion(&|level, at| self.node(level, at, &none), index, size)?;
        Ok(path.into_iter().map(Digest).collect())
    }

    fn node(&self, level: u32, at: u64, fresh: &Fresh) -> Result<Hash, LogError> {
        if let Some(hash) = fresh.get(&(level, at)) {
            return Ok(*hash);
        }
        let lacks = || LogError::Lacks { what: format!("node {level}/{at}") };
        let bytes = self.get(&node_key(level, at))?.ok_or_else(lacks)?;
        bytes.try_into().map_err(|_| lacks())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, LogError> {
        Ok(self.side.get(SideTable::ConsentLog, key)?)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a further leaf adds: itself, and each node that it completes.
fn grown(
    at: u64,
    hash: Hash,
    left_of: impl Fn(u32, u64) -> Result<Hash, LogError>,
) -> Result<Vec<Node>, LogError> {
    let (mut level, mut index, mut hash) = (0, at, hash);
    let mut made = vec![((level, index), hash)];
    while index & 1 == 1 {
        hash = node(&left_of(level, index - 1)?, &hash);
        (level, index) = (level + 1, index >> 1);
        made.push(((level, index), hash));
    }
    Ok(made)
}

fn numbered(kind: u8, number: u64) -> Vec<u8> {
    [&[kind][..], &number.to_be_bytes()].concat()
}

fn node_key(level: u32, at: u64) -> Vec<u8> {
    [&[NODE][..], &level.to_be_bytes(), &at.to_be_bytes()].concat()
}

fn number_of(bytes: &[u8]) -> Result<u64, LogError> {
    let lacks = |_| LogError::Lacks { what: "the number of a leaf".to_owned() };
    Ok(u64::from_be_bytes(bytes.try_into().map_err(lacks)?))
}

fn write(key: Vec<u8>, value: Vec<u8>) -> SideWrite {
    SideWrite { table: SideTable::ConsentLog, key, value: Some(value) }
}

#[cfg(test)]
pub(crate) mod tests;
