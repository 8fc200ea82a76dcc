//! A payload as JSON, and back.
//!
//! Integers stay integers and floats stay floats (`1.0` is a float). JSON has no byte string: one
//! becomes base64url text, which does not turn back, so a payload that must keep its bytes
//! through JSON should hold text from the start.

use super::{PAYLOAD_DEPTH_MAX, Payload, order};
use crate::cbor::{CborError, Head, Reader, Writer};
use crate::limits::{PAYLOAD_ITEMS_MAX, PAYLOAD_LEN_MAX};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Why a JSON object is no [`Payload`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// Nested deeper than [`PAYLOAD_DEPTH_MAX`].
    #[error("the payload is nested deeper than {max} levels")]
    TooDeep {
        /// Levels allowed.
        max: usize,
    },
    /// An array or object with more than [`PAYLOAD_ITEMS_MAX`] items.
    #[error("a payload array or object of {len} items is over the {max} allowed")]
    TooManyItems {
        /// Items given.
        len: usize,
        /// Items allowed.
        max: usize,
    },
    /// Its CBOR encoding is longer than [`PAYLOAD_LEN_MAX`].
    #[error("the payload takes {len} bytes as CBOR, over the {max} allowed")]
    TooLong {
        /// Bytes of the encoding.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// A number that is neither an integer of 64 bits nor a finite float.
    #[error("a payload number is outside of what 64 bits hold")]
    Number,
}

impl Payload {
    /// Encodes `members`.
    ///
    /// # Errors
    /// [`PayloadError`] names the limit it breaks.
    pub fn from_json(members: &Map<String, Value>) -> Result<Self, PayloadError> {
        let mut writer = Writer::with_capacity(256);
        write_map(&mut writer, members, 1)?;
        if writer.len() > PAYLOAD_LEN_MAX {
            return Err(PayloadError::TooLong { len: writer.len(), max: PAYLOAD_LEN_MAX });
        }
        Ok(Self(writer.into_bytes()))
    }

    /// The members as JSON. Byte strings become base64url text without padding.
    #[must_use]
    pub fn to_json(&self) -> Map<String, Value> {
        let mut reader = Reader::new(&self.0);
        // Checked when the payload was made: an error cannot happen, an empty map is harmless.
        match read_value(&mut reader) {
            Ok(Value::Object(members)) => members,
            _ => Map::new(),
        }
    }
}

fn check_container(len: usize, depth: usize) -> Result<(), PayloadError> {
    if depth > PAYLOAD_DEPTH_MAX {
        return Err(PayloadError::TooDeep { max: PAYLOAD_DEPTH_MAX });
    }
    if len > PAYLOAD_ITEMS_MAX {
        return Err(PayloadError::TooManyItems { len, max: PAYLOAD_ITEMS_MAX });
    }
    Ok(())
}

fn write_map(
    writer: &mut Writer,
    members: &Map<String, Value>,
    depth: usize,
) -> Result<(), PayloadError> {
    check_container(members.len(), depth)?;
    let mut sorted: Vec<_> = members.iter().collect();
    sorted.sort_unstable_by_key(|(key, _)| order(key.as_bytes()));
    writer.map(sorted.len());
    for (key, value) in sorted {
        writer.text(key);
        write_value(writer, value, depth)?;
    }
    Ok(())
}

fn write_value(writer: &mut Writer, value: &Value, depth: usize) -> Result<(), PayloadError> {
    match value {
        Value::Null => writer.null(),
        Value::Bool(value) => writer.bool(*value),
        Value::String(text) => writer.text(text),
        Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
            (Some(value), _, _) => writer.uint(value),
            (_, Some(value), _) => writer.int(value),
            (_, _, Some(value)) if value.is_finite() => writer.float(value),
            _ => return Err(PayloadError::Number),
        },
        Value::Array(items) => {
            check_container(items.len(), depth + 1)?;
            writer.array(items.len());
            return items.iter().try_for_each(|item| write_value(writer, item, depth + 1));
        }
        Value::Object(members) => return write_map(writer, members, depth + 1),
    };
    Ok(())
}

fn read_value(reader: &mut Reader<'_>) -> Result<Value, CborError> {
    Ok(match reader.head()? {
        Head::Uint(value) => value.into(),
        Head::Negative(n) => (-1 - i64::try_from(n).unwrap_or(i64::MAX)).into(),
        Head::Float(value) => Number::from_f64(value).map_or(Value::Null, Value::Number),
        Head::Bool(value) => value.into(),
        Head::Null => Value::Null,
        Head::Text(len) => String::from_utf8_lossy(reader.body(len)?).into(),
        Head::Bytes(len) => base64url(reader.body(len)?).into(),
        Head::Array(len) => {
            Value::Array((0..len).map(|_| read_value(reader)).collect::<Result<_, _>>()?)
        }
        Head::Map(len) => {
            let mut members = Map::new();
            for _ in 0..len {
                let key = reader.text()?.to_owned();
                members.insert(key, read_value(reader)?);
            }
            Value::Object(members)
        }
    })
}

/// RFC 4648 §5 without padding.
fn base64url(bytes: &[u8]) -> String {
    let digit = |bits: u32| match u8::try_from(bits & 63).unwrap_or_default() {
        n @ 0..=25 => char::from(b'A' + n),
        n @ 26..=51 => char::from(b'a' + n - 26),
        n @ 52..=61 => char::from(b'0' + n - 52),
        62 => '-',
        _ => '_',
    };
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        text.extend((0..=chunk.len() as u32).map(|i| digit(bits >> (18 - 6 * i))));
    }
    text
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(to)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Strict(1).deserialize(from)? {
            Value::Object(members) => Self::from_json(&members).map_err(D::Error::custom),
            _ => Err(D::Error::custom("the payload is not an object")),
        }
    }
}

/// Reads a JSON value at a depth, refusing what `serde_json::Value` would let pass: a name twice
/// in one object (two readers may see two obligations), and more than the limits before it is
/// held in memory.
struct Strict(usize);

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom(PayloadError::Number))
    }
    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }
    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        check_container(0, self.0).map_err(A::Error::custom)?;
        while let Some(item) = items.next_element_seed(Self(self.0 + 1))? {
            read.push(item);
            check_container(read.len(), self.0).map_err(A::Error::custom)?;
        }
        Ok(Value::Array(read))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        check_container(0, self.0).map_err(A::Error::custom)?;
        while let Some(key) = members.next_key::<String>()? {
            let value = members.next_value_seed(Self(self.0 + 1))?;
            if read.insert(key, value).is_some() {
                return Err(A::Error::custom("a payload object holds a name twice"));
            }
            check_container(read.len(), self.0).map_err(A::Error::custom)?;
        }
        Ok(Value::Object(read))
    }
}
