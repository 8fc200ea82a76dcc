//! The obligation: a constraint its target is bound to honour, under custody until it does.

use crate::cbor::{CborError, Reader, Writer};
use crate::field::{self, Members, TIME_MS_MAX, at_most, name, whole};
use crate::id::{AgentId, Kind, ObligationId};
use crate::limits::{DEADLINE_SECONDS_MAX, OBLIGATION_LEN_MAX, RETRIES_MAX};
use crate::payload::Payload;
use crate::time::Time;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// An obligation as it is issued, sent and stored.
///
/// JSON carries the papers' member names (`obligation_id`, RFC 3339 `created_at`); CBOR carries
/// integer keys. JSON members we do not know are ignored, those of the payload all survive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ObligationJson")]
pub struct Obligation {
    /// Stable name, the key of idempotent application (AB-3).
    #[serde(rename = "obligation_id")]
    pub id: ObligationId,
    /// Picks the polarity rule.
    pub kind: Kind,
    /// The agent that must apply it.
    pub target: AgentId,
    /// What it demands.
    pub payload: Payload,
    /// Seconds from `created_at` to the deadline, 1 to [`DEADLINE_SECONDS_MAX`].
    pub deadline_seconds: u64,
    /// Transfers after the first, at most [`RETRIES_MAX`].
    pub max_retries: u32,
    /// When it was issued.
    #[serde(serialize_with = "field::json::time::serialize")]
    pub created_at: Time,
    /// Order among obligations of one governed key (SG-1, SG-2); the higher wins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
}

/// Why the values of an obligation do not go together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObligationError {
    /// Zero, or over [`DEADLINE_SECONDS_MAX`].
    #[error("deadline_seconds is {given}; it must be 1 to {max}")]
    Deadline {
        /// Seconds given.
        given: u64,
        /// Seconds allowed.
        max: u64,
    },
    /// Over [`RETRIES_MAX`].
    #[error("max_retries is {given}; it must be at most {max}")]
    Retries {
        /// Retries given.
        given: u64,
        /// Retries allowed.
        max: u32,
    },
    /// A time that RFC 3339 cannot say.
    #[error("created_at of {ms} ms lies after the year 9999")]
    CreatedAt {
        /// Unix ms given.
        ms: u64,
    },
}

impl Obligation {
    /// The absolute deadline. It is fixed at issue: no retry, `deferred` or restart extends it
    /// (DF-1), and a receiver does not apply past it (DL-1).
    #[must_use]
    pub const fn deadline_at(&self) -> Time {
        self.created_at.after_ms(self.deadline_seconds.saturating_mul(1000))
    }

    /// Whether the values lie within the limits, as those of a decoded obligation do.
    ///
    /// # Errors
    /// [`ObligationError`] names the value and its limit.
    pub const fn check(&self) -> Result<(), ObligationError> {
        check_values(self.deadline_seconds, self.max_retries, self.created_at)
    }

    /// What is bound to the id: the first 8 bytes of a SHA-256 over kind, target and payload. An id
    /// that comes back with another digest was reused, and is not a duplicate.
    /// Stored on disk, so its definition is part of the format.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hash = Sha256::new();
        for part in [
            self.kind.as_str().as_bytes(),
            self.target.as_str().as_bytes(),
            self.payload.as_bytes(),
        ] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().iter().take(8).fold(0, |digest, byte| digest << 8 | u64::from(*byte))
    }

    /// The deterministic CBOR encoding.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.encode_after(0).into()
    }

    /// The encoding after `room` zero bytes, for what is to stand before it.
    pub(crate) fn encode_after(&self, room: usize) -> Vec<u8> {
        let names = self.id.as_str().len() + self.kind.as_str().len() + self.target.as_str().len();
        // Heads, keys and the four integers take at most 60 bytes.
        let mut bytes = Vec::with_capacity(room + names + self.payload.as_bytes().len() + 64);
        bytes.resize(room, 0);
        let mut writer = Writer::onto(bytes);
        self.write(&mut writer);
        writer.into_vec()
    }

    fn write(&self, writer: &mut Writer) {
        writer.map(7 + usize::from(self.sequence.is_some()));
        writer.uint(0).text(self.id.as_str());
        writer.uint(1).text(self.kind.as_str());
        writer.uint(2).text(self.target.as_str());
        writer.uint(3).raw(self.payload.as_bytes());
        writer.uint(4).uint(self.deadline_seconds);
        writer.uint(5).uint(u64::from(self.max_retries));
        writer.uint(6).uint(self.created_at.as_ms());
        if let Some(sequence) = self.sequence {
            writer.uint(7).uint(sequence);
        }
    }

    /// Decodes `bytes`, which must be exactly one obligation. The payload shares `bytes`.
    ///
    /// # Errors
    /// [`CborError`] for anything but the encoding [`Obligation::encode`] gives.
    pub fn decode(bytes: &Bytes) -> Result<Self, CborError> {
        at_most("obligation", bytes.len(), OBLIGATION_LEN_MAX)?;
        whole(bytes, |reader| Self::read(reader, bytes))
    }

    /// The id of an encoded obligation, read without the rest of it; none if it is not one. For
    /// observers: it checks nothing else.
    #[must_use]
    pub fn id_of(bytes: &[u8]) -> Option<&str> {
        let mut reader = Reader::new(bytes);
        Members::open(&mut reader).ok()?.required(0).ok()?.text().ok()
    }

    fn read(reader: &mut Reader<'_>, source: &Bytes) -> Result<Self, CborError> {
        let mut map = Members::open(reader)?;
        let id = name(map.required(0)?, "obligation_id")?;
        let kind = name(map.required(1)?, "kind")?;
        let target = name(map.required(2)?, "target")?;
        let payload = Payload::read(map.required(3)?, source)?;
        let deadline_seconds = map.required(4)?.uint()?;
        let max_retries = retries(map.required(5)?.uint()?)
            .map_err(|error| CborError::invalid("max_retries", error))?;
        let created_at = Time::from_ms(map.required(6)?.uint()?);
        let sequence = map.optional(7)?.map(Reader::uint).transpose()?;
        map.end()?;
        let obligation =
            Self { id, kind, target, payload, deadline_seconds, max_retries, created_at, sequence };
        obligation.check().map_err(|error| CborError::invalid("obligation", error))?;
        Ok(obligation)
    }
}

/// Whether the values of an obligation lie within the limits.
pub(crate) const fn check_values(
    deadline_seconds: u64,
    max_retries: u32,
    created_at: Time,
) -> Result<(), ObligationError> {
    let (given, max) = (deadline_seconds, DEADLINE_SECONDS_MAX);
    if given == 0 || given > max {
        return Err(ObligationError::Deadline { given, max });
    }
    if max_retries > RETRIES_MAX {
        return Err(ObligationError::Retries { given: max_retries as u64, max: RETRIES_MAX });
    }
    if created_at.as_ms() > TIME_MS_MAX {
        return Err(ObligationError::CreatedAt { ms: created_at.as_ms() });
    }
    Ok(())
}

pub(crate) fn retries(given: u64) -> Result<u32, ObligationError> {
    u32::try_from(given).map_err(|_| ObligationError::Retries { given, max: RETRIES_MAX })
}

impl fmt::Display for Obligation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} to {})", self.id, self.kind, self.target)
    }
}

/// The JSON form before its values are checked.
#[derive(Deserialize)]
struct ObligationJson {
    obligation_id: ObligationId,
    kind: Kind,
    target: AgentId,
    payload: Payload,
    #[serde(deserialize_with = "field::json::uint")]
    deadline_seconds: u64,
    #[serde(deserialize_with = "field::json::uint")]
    max_retries: u64,
    #[serde(deserialize_with = "field::json::time::deserialize")]
    created_at: Time,
    #[serde(default, deserialize_with = "field::json::uint_optional")]
    sequence: Option<u64>,
}

impl TryFrom<ObligationJson> for Obligation {
    type Error = ObligationError;
    fn try_from(json: ObligationJson) -> Result<Self, ObligationError> {
        let obligation = Self {
            id: json.obligation_id,
            kind: json.kind,
            target: json.target,
            payload: json.payload,
            deadline_seconds: json.deadline_seconds,
            max_retries: retries(json.max_retries)?,
            created_at: json.created_at,
            sequence: json.sequence,
        };
        obligation.check()?;
        Ok(obligation)
    }
}
