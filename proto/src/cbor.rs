//! Deterministic CBOR (RFC 8949 §4.2.1), and nothing else: what [`Reader`] accepts is exactly
//! what [`Writer`] would have written.
//!
//! Floats rest on `ciborium-ll`. It neither sorts keys nor refuses long forms,
//! indefinite lengths or trailing bytes, so those rules are here: a decoder that takes two encodings
//! of one obligation would break dedup and, later, signatures.

use bytes::Bytes;
use ciborium_ll::{Decoder, Encoder, Header};

/// Why bytes are not the deterministic CBOR we speak.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CborError {
    /// The bytes end inside an item.
    #[error("the bytes end inside an item at offset {at}")]
    Short {
        /// Offset of the item.
        at: usize,
    },
    /// A length that is larger than the bytes left, or than the named limit.
    #[error("{what} of {len} is over the {max} allowed at offset {at}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The declared size.
        len: usize,
        /// The limit.
        max: usize,
        /// Offset of the item.
        at: usize,
    },
    /// Another type than the one expected.
    #[error("expected {wanted} at offset {at}")]
    Unexpected {
        /// The type expected.
        wanted: &'static str,
        /// Offset of the item.
        at: usize,
    },
    /// A form the deterministic encoding does not have: long form, indefinite length, tag,
    /// simple value, NaN or infinity.
    #[error("{what} is not deterministic CBOR, at offset {at}")]
    NotDeterministic {
        /// The form found.
        what: &'static str,
        /// Offset of the item.
        at: usize,
    },
    /// Map keys out of order or twice.
    #[error("map key out of order or twice at offset {at}")]
    KeyOrder {
        /// Offset of the key.
        at: usize,
    },
    /// Bytes after the end of the item.
    #[error("{len} bytes after the end of the item")]
    Trailing {
        /// How many.
        len: usize,
    },
    /// A member that must be there is not.
    #[error("member {key} is missing")]
    Missing {
        /// The integer key.
        key: u64,
    },
    /// A member this version does not know.
    #[error("member {key} is unknown")]
    Unknown {
        /// The integer key.
        key: u64,
    },
    /// A value of the right type that breaks a rule of its field.
    #[error("{what}: {why}")]
    Invalid {
        /// The field.
        what: &'static str,
        /// The rule it breaks.
        why: String,
    },
}

impl CborError {
    /// A value of the right type that breaks a rule of its field.
    pub fn invalid(what: &'static str, why: impl ToString) -> Self {
        Self::Invalid { what, why: why.to_string() }
    }
}

/// Writes deterministic CBOR. Map keys must be written in ascending order by the caller
/// (checked in debug builds by every round-trip test through [`Reader`]).
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { bytes: Vec::with_capacity(capacity) }
    }

    /// A writer that appends to `bytes`.
    pub(crate) const fn onto(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    /// A head of one of the seven major types with an argument, in its shortest form.
    fn push(&mut self, major: u8, argument: u64) -> &mut Self {
        let major = major << 5;
        let bytes = argument.to_be_bytes();
        let [.., e, f, g, h] = bytes;
        match argument {
            0..24 => self.bytes.push(major | h),
            24..0x100 => self.bytes.extend_from_slice(&[major | 24, h]),
            0x100..0x1_0000 => self.bytes.extend_from_slice(&[major | 25, g, h]),
            0x1_0000..0x1_0000_0000 => self.bytes.extend_from_slice(&[major | 26, e, f, g, h]),
            _ => {
                self.bytes.push(major | 27);
                self.bytes.extend_from_slice(&bytes);
            }
        }
        self
    }

    /// An unsigned integer.
    pub fn uint(&mut self, value: u64) -> &mut Self {
        self.push(0, value)
    }

    /// A signed integer.
    pub fn int(&mut self, value: i64) -> &mut Self {
        match u64::try_from(value) {
            Ok(value) => self.push(0, value),
            Err(_) => self.push(1, !value.cast_unsigned()),
        }
    }

    /// A negative integer `-1 - n`, for values below `i64::MIN`.
    pub fn negative(&mut self, n: u64) -> &mut Self {
        self.push(1, n)
    }

    /// A float in its shortest form.
    pub fn float(&mut self, value: f64) -> &mut Self {
        // Through an array, since ciborium-io writes to a `Vec` under some feature sets only.
        let mut head = [0u8; 9];
        let mut room: &mut [u8] = &mut head;
        let pushed = Encoder::from(&mut room).push(Header::Float(value));
        debug_assert!(pushed.is_ok(), "no float is longer than 9 bytes");
        let len = 9 - room.len();
        self.bytes.extend_from_slice(head.get(..len).unwrap_or_default());
        self
    }

    /// `true` or `false`.
    pub fn bool(&mut self, value: bool) -> &mut Self {
        self.push(7, if value { 21 } else { 20 })
    }

    /// `null`.
    pub fn null(&mut self) -> &mut Self {
        self.push(7, 22)
    }

    /// A text string.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.push(3, text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
        self
    }

    /// A byte string.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes_head(bytes.len());
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The head of a byte string of `len` bytes.
    pub(crate) fn bytes_head(&mut self, len: usize) -> &mut Self {
        self.push(2, len as u64)
    }

    /// The head of an array of `len` items.
    pub fn array(&mut self, len: usize) -> &mut Self {
        self.push(4, len as u64)
    }

    /// The head of a map of `len` members.
    pub fn map(&mut self, len: usize) -> &mut Self {
        self.push(5, len as u64)
    }

    /// An item that is already encoded.
    pub fn raw(&mut self, item: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(item);
        self
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The encoding.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }

    /// The encoding, as a vector.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads deterministic CBOR and refuses every other form. Lengths are checked against the bytes
/// left before anything is allocated.
#[derive(Clone, Debug)]
//= WR-1
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// One CBOR item's head, with the value of those that have no body.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Head {
    /// Unsigned integer.
    Uint(u64),
    /// `-1 - n`.
    Negative(u64),
    /// Finite float.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// `null`.
    Null,
    /// Text of so many bytes, which follow.
    Text(usize),
    /// Byte string of so many bytes, which follow.
    Bytes(usize),
    /// Array of so many items, which follow.
    Array(usize),
    /// Map of so many members, which follow.
    Map(usize),
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Offset of the next item.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.at
    }

    fn left(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// The next item's head.
    ///
    /// # Errors
    /// [`CborError`] for anything but the shortest definite form of a type we use.
    pub fn head(&mut self) -> Result<Head, CborError> {
        let at = self.at;
        let left = self.left();
        let Some(&first) = left.first() else { return Err(CborError::Short { at }) };
        let major = first >> 5;
        if major == 7 {
            return self.float_or_simple();
        }
        let (argument, used) = argument(first & 0x1f, left, at)?;
        self.at += used;
        let max = left.len().saturating_sub(used);
        // Every array item is at least one byte, so this bounds counts as well as bytes.
        let sized = |what: &'static str| match usize::try_from(argument) {
            Ok(len) if len <= max => Ok(len),
            len => Err(CborError::TooLarge { what, len: len.unwrap_or(usize::MAX), max, at }),
        };
        match major {
            0 => Ok(Head::Uint(argument)),
            1 => Ok(Head::Negative(argument)),
            2 => sized("byte string").map(Head::Bytes),
            3 => sized("text").map(Head::Text),
            4 => sized("array").map(Head::Array),
            5 => sized("map").map(Head::Map),
            _ => Err(CborError::NotDeterministic { what: "a tag", at }),
        }
    }

    fn float_or_simple(&mut self) -> Result<Head, CborError> {
        let at = self.at;
        let mut decoder = Decoder::from(self.left());
        let header = decoder.pull().map_err(|error| match error {
            ciborium_ll::Error::Io(_) => CborError::Short { at },
            ciborium_ll::Error::Syntax(_) => {
                CborError::NotDeterministic { what: "a reserved head", at }
            }
        })?;
        // RFC 8949 §4.2.2: a float that a shorter one says exactly is a second spelling.
        let mut shortest = [0u8; 9];
        let mut room: &mut [u8] = &mut shortest;
        let pushed = Encoder::from(&mut room).push(header);
        if pushed.is_err() || 9 - room.len() != decoder.offset() {
            return Err(CborError::NotDeterministic { what: "a long form", at });
        }
        self.at += decoder.offset();
        match header {
            Header::Float(value) if value.is_finite() => Ok(Head::Float(value)),
            Header::Float(_) => Err(CborError::NotDeterministic { what: "a NaN or infinity", at }),
            Header::Simple(20) => Ok(Head::Bool(false)),
            Header::Simple(21) => Ok(Head::Bool(true)),
            Header::Simple(22) => Ok(Head::Null),
            _ => Err(CborError::NotDeterministic { what: "a simple value or a break", at }),
        }
    }

    /// The next `len` bytes, the body of a string whose head was just read.
    ///
    /// # Errors
    /// [`CborError::Short`].
    pub fn body(&mut self, len: usize) -> Result<&'a [u8], CborError> {
        let body = self.left().get(..len).ok_or(CborError::Short { at: self.at })?;
        self.at += len;
        Ok(body)
    }

    /// An unsigned integer.
    ///
    /// # Errors
    /// [`CborError`] for anything else.
    pub fn uint(&mut self) -> Result<u64, CborError> {
        let at = self.at;
        match self.head()? {
            Head::Uint(value) => Ok(value),
            _ => Err(CborError::Unexpected { wanted: "an unsigned integer", at }),
        }
    }

    /// A signed integer in the range of `i64`.
    ///
    /// # Errors
    /// [`CborError`] for anything else.
    pub fn int(&mut self) -> Result<i64, CborError> {
        let at = self.at;
        let wanted = CborError::Unexpected { wanted: "an integer of 64 bits", at };
        match self.head()? {
            Head::Uint(value) => i64::try_from(value).map_err(|_| wanted),
            Head::Negative(value) => i64::try_from(value).map(|n| -1 - n).map_err(|_| wanted),
            _ => Err(wanted),
        }
    }

    /// A boolean.
    ///
    /// # Errors
    /// [`CborError`] for anything else.
    pub fn bool(&mut self) -> Result<bool, CborError> {
        let at = self.at;
        match self.head()? {
            Head::Bool(value) => Ok(value),
            _ => Err(CborError::Unexpected { wanted: "a boolean", at }),
        }
    }

    /// A text string, valid UTF-8.
    ///
    /// # Errors
    /// [`CborError`] for anything else.
    pub fn text(&mut self) -> Result<&'a str, CborError> {
        let at = self.at;
        match self.head()? {
            Head::Text(len) => std::str::from_utf8(self.body(len)?)
                .map_err(|_| CborError::NotDeterministic { what: "text that is not UTF-8", at }),
            _ => Err(CborError::Unexpected { wanted: "a text string", at }),
        }
    }

    /// A byte string.
    ///
    /// # Errors
    /// [`CborError`] for anything else.
    pub fn bytes(&mut self) -> Result<&'a [u8], CborError> {
        let at = self.at;
        match self.head()? {
            Head::Bytes(len) => self.body(len),
            _ => Err(CborError::Unexpected { wanted: "a byte string", at }),
        }
    }

    /// The head of an array of at most `max` items.
    ///
    /// # Errors
    /// [`CborError`] for anything else.
    pub fn array(&mut self, max: usize) -> Result<usize, CborError> {
        let at = self.at;
        match self.head()? {
            Head::Array(len) if len <= max => Ok(len),
            Head::Array(len) => Err(CborError::TooLarge { what: "array", len, max, at }),
            _ => Err(CborError::Unexpected { wanted: "an array", at }),
        }
    }

    /// A map with ascending unsigned integer keys: calls `member(self, key)` for each, which must
    /// read the value or refuse the key.
    ///
    /// # Errors
    /// [`CborError`] for anything else, and whatever `member` returns.
    pub fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, u64) -> Result<(), CborError>,
    ) -> Result<(), CborError> {
        let at = self.at;
        let len = match self.head()? {
            Head::Map(len) if len <= 32 => len,
            Head::Map(len) => return Err(CborError::TooLarge { what: "map", len, max: 32, at }),
            _ => return Err(CborError::Unexpected { wanted: "a map", at }),
        };
        let mut last = None;
        for _ in 0..len {
            let at = self.at;
            let key = self.uint()?;
            if last.is_some_and(|last| key <= last) {
                return Err(CborError::KeyOrder { at });
            }
            last = Some(key);
            member(self, key)?;
        }
        Ok(())
    }

    /// Ends the reading: nothing may follow.
    ///
    /// # Errors
    /// [`CborError::Trailing`].
    pub fn end(self) -> Result<(), CborError> {
        match self.left().len() {
            0 => Ok(()),
            len => Err(CborError::Trailing { len }),
        }
    }
}

/// The argument of a head with additional information `info`, and the bytes of that head. Read by
/// hand, as this runs some twenty-five times for each obligation.
fn argument(info: u8, left: &[u8], at: usize) -> Result<(u64, usize), CborError> {
    let wide = |len: usize| {
        let bytes = left.get(1..=len).ok_or(CborError::Short { at })?;
        Ok(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let (argument, used, least) = match info {
        0..=23 => return Ok((u64::from(info), 1)),
        24 => (wide(1)?, 2, 24),
        25 => (wide(2)?, 3, 1 << 8),
        26 => (wide(4)?, 5, 1 << 16),
        27 => (wide(8)?, 9, 1 << 32),
        31 => return Err(CborError::NotDeterministic { what: "an indefinite length", at }),
        _ => return Err(CborError::NotDeterministic { what: "a reserved head", at }),
    };
    // RFC 8949 §4.2.1: shortest form, one rule for integers and lengths.
    if argument < least {
        return Err(CborError::NotDeterministic { what: "a long form", at });
    }
    Ok((argument, used))
}

/// `value`, or an error naming the member that is missing.
///
/// # Errors
/// [`CborError::Missing`].
pub fn required<T>(value: Option<T>, key: u64) -> Result<T, CborError> {
    value.ok_or(CborError::Missing { key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shortest_definite_forms_are_read() {
        for (bytes, why) in [
            (&[0x18, 0x17][..], "23 in two bytes"),
            (&[0x19, 0x00, 0xff], "255 in three bytes"),
            (&[0x5f, 0xff], "indefinite bytes"),
            (&[0x9f, 0xff], "indefinite array"),
            (&[0xc0, 0x00], "tag"),
            (&[0xf7], "undefined"),
            (&[0xf8, 0x18], "reserved simple"),
            (&[0xf9, 0x7e, 0x00], "NaN"),
            (&[0xf9, 0x7c, 0x00], "infinity"),
            (&[0xfa, 0x3f, 0x80, 0x00, 0x00], "1.0 in four bytes"),
            (&[0x1c], "reserved additional information"),
            (&[0x9b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], "huge array"),
            (&[0x62, 0x61], "text cut short"),
        ] {
            assert!(Reader::new(bytes).head().is_err(), "{why} was accepted");
        }
        assert_eq!(Reader::new(&[0xf9, 0x3c, 0x00]).head(), Ok(Head::Float(1.0)));
        assert!(Reader::new(&[0x62, 0xc3, 0x28]).text().is_err(), "invalid UTF-8 was accepted");
    }

    #[test]
    fn integers_round_trip_at_their_edges() {
        for value in [i64::MIN, -25, -24, -1, 0, 23, 24, 255, 256, i64::MAX] {
            let mut writer = Writer::default();
            writer.int(value);
            assert_eq!(Reader::new(&writer.into_vec()).int(), Ok(value));
        }
    }
}
