//! Bytes of others to documents: what is too long, too deep or too much is refused before a document is
//! built, and so is an object with a name twice, of which two readers may see different values.

use super::limits::{DOCUMENT_DEPTH_MAX, DOCUMENT_LEN_MAX, DOCUMENT_VALUES_MAX};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Why bytes are no document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// Longer than [`DOCUMENT_LEN_MAX`].
    #[error("a document of {len} bytes is over the limit of {max}")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Not the JSON of such a document; it says where.
    #[error("{0}")]
    Invalid(String),
}

/// Reads a document.
///
/// # Errors
/// [`JsonError`] says what is wrong with the bytes, and where.
//= BD-1
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JsonError> {
    if bytes.len() > DOCUMENT_LEN_MAX {
        return Err(JsonError::TooLong { len: bytes.len(), max: DOCUMENT_LEN_MAX });
    }
    let invalid = |error: serde_json::Error| JsonError::Invalid(error.to_string());
    let mut left = DOCUMENT_VALUES_MAX;
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let value = Strict { depth: 1, left: &mut left }.deserialize(&mut from).map_err(invalid)?;
    from.end().map_err(invalid)?;
    serde_json::from_value(value).map_err(invalid)
}

/// One value, within what is left.
struct Strict<'a> {
    depth: usize,
    left: &'a mut usize,
}

impl Strict<'_> {
    fn inner(&mut self) -> Strict<'_> {
        Strict { depth: self.depth + 1, left: self.left }
    }

    fn deep<E: serde::de::Error>(&self) -> Result<(), E> {
        if self.depth > DOCUMENT_DEPTH_MAX {
            return Err(E::custom(format_args!("nested deeper than {DOCUMENT_DEPTH_MAX} levels")));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        *self.left = self.left.checked_sub(1).ok_or_else(|| {
            D::Error::custom(format_args!("more than {DOCUMENT_VALUES_MAX} values"))
        })?;
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number beyond 64 bits"))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut from: A) -> Result<Value, A::Error> {
        self.deep()?;
        let mut items = Vec::new();
        while let Some(item) = from.next_element_seed(self.inner())? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut from: A) -> Result<Value, A::Error> {
        self.deep()?;
        let mut members = Map::new();
        while let Some(name) = from.next_key::<String>()? {
            let value = from.next_value_seed(self.inner())?;
            if members.contains_key(&name) {
                return Err(A::Error::custom(format_args!("an object has {name:?} twice")));
            }
            members.insert(name, value);
        }
        Ok(Value::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bd1_what_is_too_much_is_refused_before_it_is_built() {
        let long = vec![b' '; DOCUMENT_LEN_MAX + 1];
        assert_eq!(
            read::<Value>(&long),
            Err(JsonError::TooLong { len: DOCUMENT_LEN_MAX + 1, max: DOCUMENT_LEN_MAX })
        );
        let nest = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read::<Value>(nest(DOCUMENT_DEPTH_MAX).as_bytes()).is_ok());
        let deep = read::<Value>(nest(DOCUMENT_DEPTH_MAX + 1).as_bytes()).unwrap_err();
        assert!(deep.to_string().contains("deeper than 16"), "{deep}");
        let items = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert!(read::<Value>(items(DOCUMENT_VALUES_MAX - 1).as_bytes()).is_ok());
        let many = read::<Value>(items(DOCUMENT_VALUES_MAX).as_bytes()).unwrap_err();
        assert!(many.to_string().contains("more than 32768 values"), "{many}");
    }

    #[test]
    fn a_name_twice_is_refused_at_any_depth() {
        for text in [r#"{"a":1,"a":1}"#, r#"[{"x":{"b":null,"b":null}}]"#, r#"{"a":1,"\u0061":2}"#]
        {
            assert!(
                read::<Value>(text.as_bytes()).unwrap_err().to_string().contains("twice"),
                "{text}"
            );
        }
        assert!(read::<Value>(b"{} {}").is_err());
        assert!(read::<Value>(br#"["\ud800"]"#).is_err(), "a lone surrogate is no text");
        assert!(read::<Value>(b"[1e999]").is_err());
    }
}
