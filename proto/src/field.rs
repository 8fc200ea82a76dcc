//! Reading and writing the fields our maps share, so that each type's codec is a list of its keys.

use crate::cbor::{CborError, Head, Reader};
use crate::id::IdError;
use crate::time::Time;
use std::str::FromStr;

/// The latest time on the wire, in unix ms: the last whole second RFC 3339 and CBOR both can say.
pub(crate) const TIME_MS_MAX: u64 = 253_402_207_200_000;

/// Members any of our maps may declare; the largest has eight.
const MEMBERS_MAX: usize = 32;

/// A map with ascending integer keys, read in the order of its schema. Asking for the keys one by
/// one leaves no member unread, none read twice, and names the one that is missing or unknown.
pub(crate) struct Members<'r, 'a> {
    reader: &'r mut Reader<'a>,
    left: usize,
    last: Option<u64>,
    next: Option<u64>,
}

impl<'r, 'a> Members<'r, 'a> {
    /// Opens the map that comes next.
    pub(crate) fn open(reader: &'r mut Reader<'a>) -> Result<Self, CborError> {
        let at = reader.offset();
        match reader.head()? {
            Head::Map(left) if left <= MEMBERS_MAX => {
                Ok(Self { reader, left, last: None, next: None })
            }
            Head::Map(len) => Err(CborError::TooLarge { what: "map", len, max: MEMBERS_MAX, at }),
            _ => Err(CborError::Unexpected { wanted: "a map", at }),
        }
    }

    fn peek(&mut self) -> Result<Option<u64>, CborError> {
        if self.next.is_none() && self.left > 0 {
            let at = self.reader.offset();
            let key = self.reader.uint()?;
            if self.last.is_some_and(|last| key <= last) {
                return Err(CborError::KeyOrder { at });
            }
            self.left -= 1;
            self.last = Some(key);
            self.next = Some(key);
        }
        Ok(self.next)
    }

    /// The reader at the value of `key`, or `None` if the map does not have that member.
    pub(crate) fn optional(&mut self, key: u64) -> Result<Option<&mut Reader<'a>>, CborError> {
        match self.peek()? {
            Some(found) if found == key => {
                self.next = None;
                Ok(Some(self.reader))
            }
            _ => Ok(None),
        }
    }

    /// The reader at the value of `key`, which must be there.
    pub(crate) fn required(&mut self, key: u64) -> Result<&mut Reader<'a>, CborError> {
        self.optional(key)?.ok_or(CborError::Missing { key })
    }

    /// Ends the map: a member not asked for is one this version does not know.
    pub(crate) fn end(mut self) -> Result<(), CborError> {
        match self.peek()? {
            Some(key) => Err(CborError::Unknown { key }),
            None => Ok(()),
        }
    }
}

/// A checked name: an id, kind, agent name or governed key.
pub(crate) fn name<T>(reader: &mut Reader<'_>, what: &'static str) -> Result<T, CborError>
where
    T: FromStr<Err = IdError>,
{
    reader.text()?.parse().map_err(|error| CborError::invalid(what, error))
}

/// A time in unix ms that RFC 3339 can say too, so that no document of ours has only one form.
pub(crate) fn time(reader: &mut Reader<'_>, what: &'static str) -> Result<Time, CborError> {
    match reader.uint()? {
        ms if ms <= TIME_MS_MAX => Ok(Time::from_ms(ms)),
        ms => Err(CborError::invalid(what, format_args!("{ms} ms lies after the year 9999"))),
    }
}

/// Exactly one item, made of all of `bytes`.
pub(crate) fn whole<'a, T>(
    bytes: &'a [u8],
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, CborError>,
) -> Result<T, CborError> {
    let mut reader = Reader::new(bytes);
    let value = read(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// Refuses more than `max` of `what` before any of it is read.
pub(crate) fn at_most(what: &'static str, len: usize, max: usize) -> Result<(), CborError> {
    if len > max {
        return Err(CborError::TooLarge { what, len, max, at: 0 });
    }
    Ok(())
}

/// An array with as many items as `sizes` allows, each read by `item`.
pub(crate) fn list<'a, T>(
    reader: &mut Reader<'a>,
    what: &'static str,
    sizes: std::ops::RangeInclusive<usize>,
    mut item: impl FnMut(&mut Reader<'a>) -> Result<T, CborError>,
) -> Result<Vec<T>, CborError> {
    let len = reader.array(*sizes.end())?;
    if len < *sizes.start() {
        return Err(CborError::invalid(what, "holds no item"));
    }
    // The reader has checked that `len` is at most the bytes left.
    let mut items = Vec::with_capacity(len);
    for _ in 0..len {
        items.push(item(reader)?);
    }
    Ok(items)
}

/// The JSON side of [`Time`] and of integers.
pub(crate) mod json {
    use crate::time::Time;
    use serde::de::{Deserializer, Error, Unexpected, Visitor};
    use std::fmt;

    /// `created_at` and `acked_at`: RFC 3339 text.
    pub(crate) mod time {
        use super::{Deserializer, Error, Time};
        use serde::{Deserialize, Serializer};
        use std::borrow::Cow;

        pub(crate) fn serialize<S: Serializer>(time: &Time, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_str(&time.to_rfc3339())
        }

        pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
            let text = Cow::<str>::deserialize(from)?;
            let time = Time::parse_rfc3339(&text).map_err(Error::custom)?;
            if time.as_ms() > super::super::TIME_MS_MAX {
                return Err(Error::custom("the date-time lies after the year 9999"));
            }
            Ok(time)
        }
    }

    /// An integer that some JSON writers send as an integral float (`3600.0`).
    pub(crate) fn uint<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        from.deserialize_any(UintVisitor)
    }

    /// As [`uint`], where `null` and absence mean none.
    pub(crate) fn uint_optional<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<u64>, D::Error> {
        struct Optional;
        impl<'de> Visitor<'de> for Optional {
            type Value = Option<u64>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a non-negative integer or null")
            }
            fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
                Ok(None)
            }
            fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
                Ok(None)
            }
            fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
                uint(from).map(Some)
            }
        }
        from.deserialize_option(Optional)
    }

    struct UintVisitor;

    impl Visitor<'_> for UintVisitor {
        type Value = u64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a non-negative integer")
        }
        fn visit_u64<E: Error>(self, value: u64) -> Result<u64, E> {
            Ok(value)
        }
        fn visit_i64<E: Error>(self, value: i64) -> Result<u64, E> {
            u64::try_from(value).map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))
        }
        fn visit_f64<E: Error>(self, value: f64) -> Result<u64, E> {
            // Above 2^53 a float no longer tells neighbouring integers apart.
            const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
            if value.fract() == 0.0 && (0.0..=EXACT_MAX).contains(&value) {
                return Ok(value as u64);
            }
            Err(E::invalid_value(Unexpected::Float(value), &self))
        }
    }
}
