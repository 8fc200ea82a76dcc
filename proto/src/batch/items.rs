//! Items that only batches have; the others are those of frames.

use super::{Hash, read_hash, read_spelt};
use crate::ack::{Reason, RefRange};
use crate::cbor::{CborError, Reader, Writer};
use crate::field::{Members, list, whole};
use crate::frame::RefuseCode;
use crate::limits::BATCH_COUNT_MAX;
use crate::track::{Epoch, GroupName};
use bytes::Bytes;
use std::collections::BTreeSet;

/// Bytes of a public key of X25519 (RFC 7748 §5).
pub const SEAL_KEY_LEN: usize = 32;
/// Groups in one hello.
pub const HELLO_GROUPS_MAX: usize = 64;

/// What a node takes, said to each peer before it is offered anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Offers not yet answered.
    pub in_flight_max: u64,
    /// Public key of X25519 that payloads may be sealed to, if it opens such.
    pub seal_key: Option<[u8; SEAL_KEY_LEN]>,
    /// The session of the reader's whose hellos it answers: from now on nothing sent there is lost on its way.
    pub answers: Option<Epoch>,
    /// Whether the speaker waits for nothing more: such a hello needs no answer.
    pub up: bool,
    /// Groups of the speaker's that the reader is a member of: decisions to others are none to it. At most
    /// [`HELLO_GROUPS_MAX`].
    pub groups: BTreeSet<GroupName>,
}

impl Hello {
    /// The deterministic CBOR encoding.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::with_capacity(64 + SEAL_KEY_LEN);
        let some =
            [self.seal_key.is_some(), self.answers.is_some(), self.up, !self.groups.is_empty()];
        to.map(1 + some.into_iter().filter(|some| *some).count());
        to.uint(1).uint(self.in_flight_max);
        if let Some(key) = &self.seal_key {
            to.uint(2).bytes(key);
        }
        if let Some(epoch) = &self.answers {
            to.uint(3).text(&epoch.to_string());
        }
        if self.up {
            to.uint(4).uint(1);
        }
        if !self.groups.is_empty() {
            to.uint(5).array(self.groups.len());
            for group in &self.groups {
                to.text(group.as_str());
            }
        }
        to.into_bytes()
    }

    /// Decodes `bytes`, which must be exactly one hello.
    ///
    /// # Errors
    /// [`CborError`] for anything but the encoding [`Hello::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        whole(bytes, |reader| {
            let mut map = Members::open(reader)?;
            let in_flight_max = map.required(1)?.uint()?;
            let seal_key = map.optional(2)?.map(|key| read_hash(key, "seal key")).transpose()?;
            let answers = map.optional(3)?.map(|of| read_spelt(of, "answers")).transpose()?;
            let up = match map.optional(4)?.map(Reader::uint).transpose()? {
                None => false,
                Some(1) => true,
                Some(_) => return Err(CborError::invalid("up", "is not 1")),
            };
            let groups = map.optional(5)?.map(read_groups).transpose()?.unwrap_or_default();
            map.end()?;
            Ok(Self { in_flight_max, seal_key, answers, up, groups })
        })
    }
}

fn read_groups(reader: &mut Reader<'_>) -> Result<BTreeSet<GroupName>, CborError> {
    let groups =
        list(reader, "groups", 1..=HELLO_GROUPS_MAX, |reader| read_spelt(reader, "group"))?;
    if !groups.is_sorted_by(|a: &GroupName, b| a < b) {
        return Err(CborError::invalid("groups", "are not in order, each once"));
    }
    Ok(groups.into_iter().collect())
}

/// Items of a batch not taken, decided before anything of them was stored. Discharges nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Root of the batch.
    pub root: Hash,
    /// Its items by their place in it, as ranges below [`BATCH_COUNT_MAX`].
    pub indexes: Vec<RefRange>,
    /// Why.
    pub code: RefuseCode,
    /// When to try again at the soonest, in ms; 0 leaves it to the sender's back-off.
    pub retry_after_ms: u64,
    /// Why, for people.
    pub text: Reason,
}

impl Refusal {
    /// The deterministic CBOR encoding.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let text = self.text.as_str();
        let mut to = Writer::with_capacity(64 + text.len() + self.indexes.len() * 8);
        to.map(5).uint(1).bytes(&self.root).uint(2);
        RefRange::write_all(&self.indexes, &mut to);
        to.uint(3).uint(self.code.code()).uint(4).uint(self.retry_after_ms);
        to.uint(5).text(text);
        to.into_bytes()
    }

    /// Decodes `bytes`, which must be exactly one refusal.
    ///
    /// # Errors
    /// [`CborError`] for anything but the encoding [`Refusal::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        whole(bytes, Self::read)
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, CborError> {
        let mut map = Members::open(reader)?;
        let root = read_hash(map.required(1)?, "root")?;
        let indexes = RefRange::read_all(map.required(2)?, 1)?;
        if indexes.last().is_some_and(|range| range.last() >= BATCH_COUNT_MAX as u64) {
            return Err(CborError::invalid("indexes", "name an item past the last of a batch"));
        }
        let refusal = Self {
            root,
            indexes,
            code: RefuseCode::read(map.required(3)?)?,
            retry_after_ms: map.required(4)?.uint()?,
            text: Reason::read(map.required(5)?)?,
        };
        map.end()?;
        Ok(refusal)
    }
}
