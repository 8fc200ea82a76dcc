//! What an obligation says: an open map the core carries without knowing its kind.

mod json;

use crate::cbor::{CborError, Head, Reader};
use crate::field::{at_most, whole};
use crate::limits::{DEPTH_MAX, PAYLOAD_ITEMS_MAX, PAYLOAD_LEN_MAX};
use bytes::Bytes;
use std::fmt;

pub use json::PayloadError;

/// Nesting depth of a payload, itself the first: a frame, its list and the obligation are around it.
pub const PAYLOAD_DEPTH_MAX: usize = DEPTH_MAX - 3;

/// A deterministic CBOR map with text keys, checked once and then shared without copying.
///
/// Integers span -2^63 to 2^64 - 1, so that JSON can say each of them. `Debug` shows the size
/// only: payloads are not for logs.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Payload(Bytes);

/// One top-level member of a [`Payload`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum PayloadValue<'a> {
    /// A text.
    Text(&'a str),
    /// A float, always finite.
    Number(f64),
    /// An integer of 64 bits.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// `null`.
    Null,
    /// A byte string.
    Bytes(&'a [u8]),
    /// An array, a map, or an integer over `i64::MAX`.
    Other,
}

impl<'a> PayloadValue<'a> {
    /// The text, if it is one.
    #[must_use]
    pub const fn as_text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number, be it written as an integer or as a float.
    #[must_use]
    pub const fn as_f64(self) -> Option<f64> {
        match self {
            Self::Number(value) => Some(value),
            Self::Int(value) => Some(value as f64),
            _ => None,
        }
    }
}

impl Payload {
    /// The payload without members.
    pub const EMPTY: Self = Self(Bytes::from_static(&[0xa0]));

    /// Checks `bytes`, which must be the whole payload, and keeps them.
    ///
    /// # Errors
    /// [`CborError`] for anything but a deterministic CBOR map with text keys, finite floats and
    /// no tags, within [`PAYLOAD_LEN_MAX`], [`PAYLOAD_DEPTH_MAX`] and [`PAYLOAD_ITEMS_MAX`].
    pub fn decode(bytes: Bytes) -> Result<Self, CborError> {
        at_most("payload", bytes.len(), PAYLOAD_LEN_MAX)?;
        whole(&bytes, check)?;
        Ok(Self(bytes))
    }

    /// The payload that `reader`, which reads from the start of `source`, is at.
    pub(crate) fn read(reader: &mut Reader<'_>, source: &Bytes) -> Result<Self, CborError> {
        let start = reader.offset();
        check(reader)?;
        let end = reader.offset();
        at_most("payload", end - start, PAYLOAD_LEN_MAX)?;
        Ok(Self(source.slice(start..end)))
    }

    /// The encoding.
    #[must_use]
    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The top-level member `key`, without allocating.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<PayloadValue<'_>> {
        let mut reader = Reader::new(&self.0);
        let Ok(Head::Map(len)) = reader.head() else { return None };
        for _ in 0..len {
            let found = reader.text().ok()?;
            if found == key {
                return value(&mut reader).ok();
            }
            if order(found.as_bytes()) > order(key.as_bytes()) {
                return None;
            }
            check_value(&mut reader, 1).ok()?;
        }
        None
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

/// RFC 8949 §4.2.1 order of encoded text keys: the head makes the shorter come first.
fn order(key: &[u8]) -> (usize, &[u8]) {
    (key.len(), key)
}

fn check(reader: &mut Reader<'_>) -> Result<(), CborError> {
    let at = reader.offset();
    match reader.head()? {
        Head::Map(len) => check_map(reader, len, 1, at),
        _ => Err(CborError::Unexpected { wanted: "a payload map", at }),
    }
}

/// Checks one value inside `depth` containers. Recursion ends at [`PAYLOAD_DEPTH_MAX`].
fn check_value(reader: &mut Reader<'_>, depth: usize) -> Result<(), CborError> {
    let at = reader.offset();
    match reader.head()? {
        Head::Uint(_) | Head::Float(_) | Head::Bool(_) | Head::Null => Ok(()),
        Head::Negative(n) if i64::try_from(n).is_ok() => Ok(()),
        Head::Negative(_) => Err(CborError::Unexpected { wanted: "an integer over -2^63", at }),
        Head::Bytes(len) => reader.body(len).map(drop),
        Head::Text(len) => std::str::from_utf8(reader.body(len)?)
            .map(drop)
            .map_err(|_| CborError::NotDeterministic { what: "text that is not UTF-8", at }),
        Head::Array(len) => {
            check_container("array", len, depth + 1, at)?;
            (0..len).try_for_each(|_| check_value(reader, depth + 1))
        }
        Head::Map(len) => check_map(reader, len, depth + 1, at),
    }
}

fn check_map(
    reader: &mut Reader<'_>,
    len: usize,
    depth: usize,
    at: usize,
) -> Result<(), CborError> {
    check_container("map", len, depth, at)?;
    let mut last = None;
    for _ in 0..len {
        let at = reader.offset();
        let key = order(reader.text()?.as_bytes());
        if last.is_some_and(|last| key <= last) {
            return Err(CborError::KeyOrder { at });
        }
        last = Some(key);
        check_value(reader, depth)?;
    }
    Ok(())
}

fn check_container(
    what: &'static str,
    len: usize,
    depth: usize,
    at: usize,
) -> Result<(), CborError> {
    if depth > PAYLOAD_DEPTH_MAX {
        let what = "payload depth";
        return Err(CborError::TooLarge { what, len: depth, max: PAYLOAD_DEPTH_MAX, at });
    }
    if len > PAYLOAD_ITEMS_MAX {
        return Err(CborError::TooLarge { what, len, max: PAYLOAD_ITEMS_MAX, at });
    }
    Ok(())
}

fn value<'a>(reader: &mut Reader<'a>) -> Result<PayloadValue<'a>, CborError> {
    let at = reader.offset();
    Ok(match reader.head()? {
        Head::Uint(n) => i64::try_from(n).map_or(PayloadValue::Other, PayloadValue::Int),
        Head::Negative(n) => {
            i64::try_from(n).map_or(PayloadValue::Other, |n| PayloadValue::Int(-1 - n))
        }
        Head::Float(value) => PayloadValue::Number(value),
        Head::Bool(value) => PayloadValue::Bool(value),
        Head::Null => PayloadValue::Null,
        Head::Bytes(len) => PayloadValue::Bytes(reader.body(len)?),
        Head::Text(len) => std::str::from_utf8(reader.body(len)?)
            .map(PayloadValue::Text)
            .map_err(|_| CborError::NotDeterministic { what: "text that is not UTF-8", at })?,
        Head::Array(_) | Head::Map(_) => PayloadValue::Other,
    })
}
