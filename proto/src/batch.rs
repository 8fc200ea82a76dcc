//! Batches on MOQT tracks: one object is one batch, signed as a whole by its issuer.
//!
//! A relay ends QUIC and can alter everything, so what an item says is believed because of the
//! signature only. It covers a [`Statement`], which names issuer, audience and the root of a Merkle tree
//! over the items; so one signature does for thousands of them, and each can be shown to others
//! with it. The signature itself (COSE, RFC 9052) is the node's work; here it is bytes.

mod items;
mod sealed;

pub use items::{HELLO_GROUPS_MAX, Hello, Refusal, SEAL_KEY_LEN};
pub use sealed::{SEALED_LEN_MAX, Sealed};

use crate::cbor::{CborError, Reader, Writer};
use crate::field::{Members, at_most, list, name, whole};
use crate::id::AgentId;
use crate::limits::{BATCH_COUNT_MAX, FRAME_LEN_MAX, ITEM_LEN_MAX, SIGNED_LEN_MAX};
use crate::track::{self, GroupName, NameError, Namespace, priority};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// The one version of statements there is.
pub const VERSION: u64 = 1;

/// A hash of the tree: SHA-256.
pub type Hash = [u8; 32];

/// What the items of a batch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// One [`Hello`].
    Hello,
    /// Obligations under custody, each as it is or [`Sealed`].
    Offers,
    /// Obligations without custody, each as it is or [`Sealed`]: never acknowledged.
    BestEffort,
    /// Custody acks.
    Acks,
    /// [`Refusal`]s of batches.
    Refusals,
    /// One [`Template`](crate::fanout::Template).
    GroupOffer,
    /// JSON, for watchers: escalations, and the inbox that they are in.
    Escalations,
    /// JSON, for watchers: the state of the node.
    Status,
    /// JSON, for watchers: what happens at the node.
    Events,
    /// Text of OpenMetrics, for watchers.
    Metrics,
    /// JSON, for watchers: which version of its usage policy the node serves.
    Policy,
}

impl Content {
    /// All there are, by their number on the wire.
    const ALL: [Self; 11] = [
        Self::Hello,
        Self::Offers,
        Self::BestEffort,
        Self::Acks,
        Self::Refusals,
        Self::GroupOffer,
        Self::Escalations,
        Self::Status,
        Self::Events,
        Self::Metrics,
        Self::Policy,
    ];

    /// Its name in logs, metrics and events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Offers => "offers",
            Self::BestEffort => "best_effort",
            Self::Acks => "acks",
            Self::Refusals => "refusals",
            Self::GroupOffer => "group_offer",
            Self::Escalations => "escalations",
            Self::Status => "status",
            Self::Events => "events",
            Self::Metrics => "metrics",
            Self::Policy => "policy",
        }
    }

    /// The publisher priority of its objects.
    #[must_use]
    pub const fn priority(self) -> u8 {
        match self {
            Self::Hello => priority::HELLO,
            Self::Offers => priority::OFFERS,
            Self::BestEffort => priority::BEST_EFFORT,
            Self::Acks => priority::ACKS,
            Self::Refusals => priority::REFUSALS,
            Self::GroupOffer => priority::GROUP,
            Self::Escalations => priority::ESCALATIONS,
            Self::Status | Self::Metrics | Self::Policy => priority::STATUS,
            Self::Events => priority::EVENTS,
        }
    }

    const fn code(self) -> u64 {
        self as u64
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CborError> {
        let code = reader.uint()?;
        let found = Self::ALL.into_iter().find(|content| content.code() == code);
        found.ok_or_else(|| CborError::invalid("content", format_args!("{code} is none we know")))
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whom a batch is for: whoever else gets it must drop it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Audience {
    /// One agent; see [`Audience::agent`].
    Agent(AgentId),
    /// The members of a group.
    Group(GroupName),
    /// Whoever is interested.
    Everyone,
}

const EVERYONE: &str = "*";

impl Audience {
    /// One agent.
    ///
    /// # Errors
    /// [`NameError`] for an id that would be read as another audience: `*`, or one that begins with
    /// `group:`.
    pub fn agent(agent: AgentId) -> Result<Self, NameError> {
        if agent.as_str() == EVERYONE || agent.as_str().starts_with(track::GROUP) {
            return Err(NameError { what: "agent id", why: "reads as an audience of many" });
        }
        Ok(Self::Agent(agent))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CborError> {
        let agent: AgentId = name(reader, "audience")?;
        if agent.as_str() == EVERYONE {
            return Ok(Self::Everyone);
        }
        match agent.as_str().strip_prefix(track::GROUP) {
            Some(group) => GroupName::new(group)
                .map(Self::Group)
                .map_err(|error| CborError::invalid("audience", error)),
            None => Ok(Self::Agent(agent)),
        }
    }
}

impl fmt::Display for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(agent) => f.write_str(agent.as_str()),
            Self::Group(group) => write!(f, "{}{group}", track::GROUP),
            Self::Everyone => f.write_str(EVERYONE),
        }
    }
}

/// What the issuer of a batch signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// Who speaks, and in which of its namespaces. The certificate of the signature must name the same agent; what
    /// comes in another namespace is a copy that somebody else made, and to be dropped.
    pub from: Namespace,
    /// Whom to.
    pub audience: Audience,
    /// What the items are.
    pub content: Content,
    /// How many, at most [`BATCH_COUNT_MAX`].
    pub count: u64,
    /// Root of the Merkle tree over them, see [`root`].
    pub root: Hash,
}

/// Why items are not those of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// More or fewer than signed.
    #[error("the batch holds {found} items, and {signed} are signed")]
    Count {
        /// Items signed.
        signed: u64,
        /// Items found.
        found: usize,
    },
    /// Other items than signed.
    #[error("the {count} items of the batch are not those signed")]
    Root {
        /// Items found.
        count: usize,
    },
}

impl Statement {
    /// The statement over `items`.
    #[must_use]
    pub fn of(from: Namespace, audience: Audience, content: Content, items: &[Bytes]) -> Self {
        Self { from, audience, content, count: items.len() as u64, root: root(items) }
    }

    /// Whether `items` are the ones it speaks of.
    ///
    /// # Errors
    /// [`BatchError`] if they are not.
    pub fn check(&self, items: &[Bytes]) -> Result<(), BatchError> {
        let found = items.len();
        if found as u64 != self.count {
            return Err(BatchError::Count { signed: self.count, found });
        }
        if root(items) != self.root {
            return Err(BatchError::Root { count: found });
        }
        Ok(())
    }

    /// The deterministic CBOR encoding.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let audience = self.audience.to_string();
        let Namespace { publisher, epoch, part } = &self.from;
        let mut to = Writer::with_capacity(96 + publisher.as_str().len() + audience.len());
        to.map(8).uint(1).uint(VERSION).uint(2).text(publisher.as_str());
        to.uint(3).text(&audience).uint(4).uint(self.content.code());
        to.uint(5).uint(self.count).uint(6).bytes(&self.root);
        to.uint(7).text(&epoch.to_string()).uint(8).text(&part.to_string());
        to.into_bytes()
    }

    /// Decodes `bytes`, which must be exactly one statement.
    ///
    /// # Errors
    /// [`CborError`] for anything but the encoding [`Statement::encode`] gives.
    //= WR-1
    pub fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        whole(bytes, |reader| {
            let mut map = Members::open(reader)?;
            let version = map.required(1)?.uint()?;
            if version != VERSION {
                let why = format_args!("{version} is not {VERSION}");
                return Err(CborError::invalid("version", why));
            }
            let publisher = name(map.required(2)?, "issuer")?;
            let audience = Audience::read(map.required(3)?)?;
            let content = Content::read(map.required(4)?)?;
            let count = map.required(5)?.uint()?;
            let root = read_hash(map.required(6)?, "root")?;
            let epoch = read_spelt(map.required(7)?, "epoch")?;
            let part = read_spelt(map.required(8)?, "part")?;
            map.end()?;
            let from = Namespace { publisher, epoch, part };
            let statement = Self { from, audience, content, count, root };
            if statement.count > BATCH_COUNT_MAX as u64 {
                let why = format_args!("{} is over {BATCH_COUNT_MAX}", statement.count);
                return Err(CborError::invalid("count", why));
            }
            Ok(statement)
        })
    }
}

/// One object of a track. `Debug` shows counts: payloads are not for logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Batch {
    /// The signature with its [`Statement`], at most [`SIGNED_LEN_MAX`] bytes, not looked into here.
    pub signed: Bytes,
    /// What it speaks of: at most [`BATCH_COUNT_MAX`], of at most [`ITEM_LEN_MAX`] bytes each.
    pub items: Vec<Bytes>,
}

impl Batch {
    /// The deterministic CBOR encoding. The caller keeps to the limits, and to [`FRAME_LEN_MAX`] for
    /// the whole.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let items: usize = self.items.iter().map(|item| item.len() + 5).sum();
        let mut to = Writer::with_capacity(self.signed.len() + items + 16);
        to.array(2).bytes(&self.signed).array(self.items.len());
        for item in &self.items {
            to.bytes(item);
        }
        to.into_bytes()
    }

    /// Decodes `bytes`, which must be exactly one batch. Signature and items share `bytes` and are
    /// not looked into: nothing of it is to be believed before the signature was verified, its
    /// statement decoded and the items [checked](Statement::check) against it.
    ///
    /// # Errors
    /// [`CborError`] for anything but the encoding [`Batch::encode`] gives.
    //= WR-1 BD-1
    pub fn decode(bytes: &Bytes) -> Result<Self, CborError> {
        at_most("batch", bytes.len(), FRAME_LEN_MAX)?;
        let share = |reader: &mut Reader<'_>, what, max| {
            let len = reader.bytes()?.len();
            at_most(what, len, max)?;
            if len == 0 {
                return Err(CborError::invalid(what, "is empty"));
            }
            let end = reader.offset();
            Ok(bytes.slice(end - len..end))
        };
        whole(bytes, |reader| {
            if reader.array(2)? != 2 {
                return Err(CborError::invalid("batch", "is not signature and items"));
            }
            let signed = share(reader, "signature", SIGNED_LEN_MAX)?;
            let items = list(reader, "items", 0..=BATCH_COUNT_MAX, |reader| {
                share(reader, "item", ITEM_LEN_MAX)
            })?;
            Ok(Self { signed, items })
        })
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch {{ signed: {} bytes, items: {} }}", self.signed.len(), self.items.len())
    }
}

pub(crate) fn read_spelt<T: FromStr<Err = NameError>>(
    reader: &mut Reader<'_>,
    what: &'static str,
) -> Result<T, CborError> {
    reader.text()?.parse().map_err(|error| CborError::invalid(what, error))
}

pub(crate) fn read_hash(reader: &mut Reader<'_>, what: &'static str) -> Result<Hash, CborError> {
    let bytes = reader.bytes()?;
    let why = format_args!("is of {} bytes instead of {}", bytes.len(), Hash::default().len());
    bytes.try_into().map_err(|_| CborError::invalid(what, why))
}

/// The Merkle tree hash of `items` (RFC 9162 §2.1.1).
#[must_use]
pub fn root(items: &[Bytes]) -> Hash {
    match items {
        [] => Sha256::digest([]).into(),
        [item] => leaf(item),
        _ => {
            let (left, right) = halves(items);
            node(&root(left), &root(right))
        }
    }
}

/// The hashes that lead from the item at `index` to the [`root`], from the bottom up
/// (RFC 9162 §2.1.3.1). None if there is no such item.
#[must_use]
pub fn path(items: &[Bytes], index: usize) -> Vec<Hash> {
    let (mut items, mut index) = (items, index);
    let mut path = Vec::new();
    while items.len() > 1 {
        let (left, right) = halves(items);
        if index < left.len() {
            path.push(root(right));
            items = left;
        } else {
            path.push(root(left));
            index -= left.len();
            items = right;
        }
    }
    path.reverse();
    path
}

/// Whether `path` leads from `item` at `index` of `count` items to `root` (RFC 9162 §2.1.3.2).
#[must_use]
pub fn verify_path(root: &Hash, index: u64, count: u64, item: &[u8], path: &[Hash]) -> bool {
    if index >= count {
        return false;
    }
    let (mut at, mut last) = (index, count - 1);
    let mut hash = leaf(item);
    for other in path {
        if last == 0 {
            return false;
        }
        if at & 1 == 1 || at == last {
            hash = node(other, &hash);
            while at & 1 == 0 && at != 0 {
                at >>= 1;
                last >>= 1;
            }
        } else {
            hash = node(&hash, other);
        }
        at >>= 1;
        last >>= 1;
    }
    last == 0 && hash == *root
}

/// Two or more items, split at the largest power of two below their number.
fn halves(items: &[Bytes]) -> (&[Bytes], &[Bytes]) {
    let half = items.len().next_power_of_two() / 2;
    items.split_at_checked(half).unwrap_or_default()
}

/// The hash of a leaf (RFC 9162 §2.1.1).
#[must_use]
pub fn leaf(item: &[u8]) -> Hash {
    Sha256::new().chain_update([0]).chain_update(item).finalize().into()
}

/// The hash of a node over two others (RFC 9162 §2.1.1).
#[must_use]
pub fn node(left: &Hash, right: &Hash) -> Hash {
    Sha256::new().chain_update([1]).chain_update(left).chain_update(right).finalize().into()
}

#[cfg(test)]
mod tests;
