//! The custody acknowledgment: what became of an obligation, told by its target.

mod refs;

use crate::cbor::{CborError, Reader, Writer};
use crate::field::{self, Members, name, time, whole};
use crate::id::{AgentId, ObligationId};
use crate::limits::REASON_LEN_MAX;
use crate::time::Time;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

pub use refs::{AckRun, REFS_COUNT_MAX, RefRange};

/// Attests application, refusal or delay of an obligation; never mere receipt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CustodyAck {
    /// The obligation it speaks of.
    pub obligation_id: ObligationId,
    /// The agent that speaks, the obligation's target.
    pub target: AgentId,
    /// What became of it.
    pub status: AckStatus,
    /// When that was settled, by the target's clock.
    #[serde(with = "field::json::time")]
    pub acked_at: Time,
    /// Why it was declined or deferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

/// What became of an obligation at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckStatus {
    /// The effect is durable, now or since an earlier delivery (AB-3).
    Applied,
    /// Refused for good: delivery is discharged, protection is not (DC-1).
    Declined,
    /// Received and not yet applied: custody goes on, and nothing is extended (DF-1).
    Deferred,
}

impl AckStatus {
    /// The word of the papers' wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Declined => "declined",
            Self::Deferred => "deferred",
        }
    }

    /// Whether it ends custody: `applied` and `declined` do.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Deferred)
    }

    pub(crate) const fn code(self) -> u64 {
        match self {
            Self::Applied => 0,
            Self::Declined => 1,
            Self::Deferred => 2,
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, CborError> {
        match reader.uint()? {
            0 => Ok(Self::Applied),
            1 => Ok(Self::Declined),
            2 => Ok(Self::Deferred),
            code => Err(CborError::invalid("status", format_args!("{code} is no status"))),
        }
    }
}

impl fmt::Display for AckStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl CustodyAck {
    /// The deterministic CBOR encoding.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(64 + self.text_len());
        self.write(&mut writer);
        writer.into_bytes()
    }

    /// Decodes `bytes`, which must be exactly one acknowledgment.
    ///
    /// # Errors
    /// [`CborError`] for anything but the encoding [`CustodyAck::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        whole(bytes, Self::read)
    }

    /// Bytes of its texts.
    pub(crate) fn text_len(&self) -> usize {
        let reason = self.reason.as_ref().map_or(0, |reason| reason.as_str().len());
        self.obligation_id.as_str().len() + self.target.as_str().len() + reason
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.map(4 + usize::from(self.reason.is_some()));
        writer.uint(0).text(self.obligation_id.as_str());
        writer.uint(1).text(self.target.as_str());
        writer.uint(2).uint(self.status.code());
        writer.uint(3).uint(self.acked_at.as_ms());
        if let Some(reason) = &self.reason {
            writer.uint(4).text(reason.as_str());
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, CborError> {
        let mut map = Members::open(reader)?;
        let ack = Self {
            obligation_id: name(map.required(0)?, "obligation_id")?,
            target: name(map.required(1)?, "target")?,
            status: AckStatus::read(map.required(2)?)?,
            acked_at: time(map.required(3)?, "acked_at")?,
            reason: map.optional(4)?.map(Reason::read).transpose()?,
        };
        map.end()?;
        Ok(ack)
    }
}

/// A sentence for people: why something was declined, deferred or refused. At most
/// [`REASON_LEN_MAX`] bytes and free of control characters, so that it cannot break a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reason(Cow<'static, str>);

/// Why a text from elsewhere is no [`Reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReasonError {
    /// Longer than [`REASON_LEN_MAX`].
    #[error("a reason of {len} bytes is over the limit of {max}")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Holds a control character.
    #[error("a reason holds a control character at byte {at}")]
    Control {
        /// Byte offset.
        at: usize,
    },
}

impl Reason {
    /// The deadline had passed, or its skew margin begun (DL-1).
    pub const EXPIRED: Self = Self(Cow::Borrowed("expired"));
    /// A higher sequence of the same governed key was here first (SG-2).
    pub const SUPERSEDED: Self = Self(Cow::Borrowed("superseded"));
    /// The id was used before for other content.
    pub const ID_CONFLICT: Self = Self(Cow::Borrowed("id_conflict"));

    /// A reason of our own: control characters become spaces, and what is over
    /// [`REASON_LEN_MAX`] bytes is cut off at a character's edge.
    #[must_use]
    pub fn new(text: impl AsRef<str>) -> Self {
        let text = text.as_ref();
        let end = (0..=REASON_LEN_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        let cut = text.get(..end.unwrap_or_default()).unwrap_or_default();
        Self(cut.replace(char::is_control, " ").into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn check(text: &str) -> Result<(), ReasonError> {
        if text.len() > REASON_LEN_MAX {
            return Err(ReasonError::TooLong { len: text.len(), max: REASON_LEN_MAX });
        }
        match text.char_indices().find(|(_, c)| c.is_control()) {
            Some((at, _)) => Err(ReasonError::Control { at }),
            None => Ok(()),
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, CborError> {
        let text = reader.text()?;
        Self::check(text).map_err(|error| CborError::invalid("reason", error))?;
        Ok(Self(text.to_owned().into()))
    }
}

impl TryFrom<String> for Reason {
    type Error = ReasonError;
    fn try_from(text: String) -> Result<Self, ReasonError> {
        Self::check(&text)?;
        Ok(Self(text.into()))
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        reason.0.into()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_reasons_are_cut_and_others_refused() {
        let long = format!("{}é", "x".repeat(REASON_LEN_MAX - 1));
        assert_eq!(Reason::new(&long).as_str().len(), REASON_LEN_MAX - 1);
        assert_eq!(
            Reason::try_from(long),
            Err(ReasonError::TooLong { len: REASON_LEN_MAX + 1, max: REASON_LEN_MAX })
        );
        // U+0085 is two bytes and becomes one: the cut comes first, so the limit holds.
        assert_eq!(Reason::new("a\nb\u{85}c").as_str(), "a b c");
        assert_eq!(Reason::try_from("a\nb".to_owned()), Err(ReasonError::Control { at: 1 }));
    }
}
