//! Checked parts of documents. Each is written as it was read: a hash or a signature speaks of the
//! letters, not of what they mean.

use super::limits::{
    CLAIMS_NAMED_MAX, CONTEXT_COUNT_MAX, CONTEXT_VALUE_LEN_MAX, EXTRA_COUNT_MAX, HASH_LEN_MAX,
    STAMP_LEN_MAX, TERM_LEN_MAX, VERSION_LEN_MAX,
};
use crate::id::checked_name;
use crate::time::{Time, TimeError};
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

checked_name!(
    /// Stable name of a claim over the versions of a policy.
    ClaimId,
    "claim_id"
);
checked_name!(
    /// Name of a consent record.
    RecordId,
    "record_id"
);
checked_name!(
    /// Name of an adherence event.
    EventId,
    "event_id"
);
checked_name!(
    /// On whose behalf a caller acts.
    PrincipalId,
    "principal_id"
);

/// Why a text is not what its member holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// Empty, or white space only.
    #[error("it is empty")]
    Empty,
    /// Too long.
    #[error("{len} bytes are over the limit of {max}")]
    TooLong {
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Holds a control character that is no line break or tabulator.
    #[error("it holds a control character at byte {at}")]
    Control {
        /// Byte offset.
        at: usize,
    },
    /// No version of Semantic Versioning 2.0.0.
    #[error("{text:?} is no semantic version: {why}")]
    Version {
        /// What was given, cut.
        text: String,
        /// What is wrong.
        why: String,
    },
    /// No date-time.
    #[error(transparent)]
    Time(#[from] TimeError),
}

fn at_most(text: &str, max: usize) -> Result<(), TextError> {
    match text.len() {
        len if len > max => Err(TextError::TooLong { len, max }),
        _ => Ok(()),
    }
}

/// A text of at most `MAX` bytes that is not blank and holds no control characters but line breaks and
/// tabulators.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Text<const MAX: usize>(Box<str>);

impl<const MAX: usize> Text<MAX> {
    /// Checks `text`.
    ///
    /// # Errors
    /// [`TextError`] says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, TextError> {
        at_most(text, MAX)?;
        if text.trim().is_empty() {
            return Err(TextError::Empty);
        }
        let bad = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
        if let Some((at, _)) = text.char_indices().find(|(_, c)| bad(*c)) {
            return Err(TextError::Control { at });
        }
        Ok(Self(text.into()))
    }

    /// A text of our own making: cut at the limit, without control characters.
    #[must_use]
    pub fn cut(text: &str) -> Self {
        let mut end = text.len().min(MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let kept = text.get(..end).unwrap_or_default();
        let clean: String = kept.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        if clean.trim().is_empty() { Self("-".into()) } else { Self(clean.into()) }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> TryFrom<String> for Text<MAX> {
    type Error = TextError;
    fn try_from(text: String) -> Result<Self, TextError> {
        Self::new(&text)
    }
}

impl<const MAX: usize> From<Text<MAX>> for String {
    fn from(text: Text<MAX>) -> Self {
        text.0.into()
    }
}

impl<const MAX: usize> fmt::Display for Text<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<const MAX: usize> fmt::Debug for Text<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A version of a policy, by Semantic Versioning 2.0.0.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PolicyVersion(Box<semver::Version>);

impl PolicyVersion {
    /// Reads a version.
    ///
    /// # Errors
    /// [`TextError`] if it is none, or too long.
    pub fn new(text: &str) -> Result<Self, TextError> {
        at_most(text, VERSION_LEN_MAX)?;
        semver::Version::parse(text)
            .map(|version| Self(version.into()))
            .map_err(|why| TextError::Version { text: text.to_owned(), why: why.to_string() })
    }

    /// Which of two is newer. Build metadata makes no difference (Semantic Versioning 2.0.0 §10).
    #[must_use]
    pub fn precedence(&self, other: &Self) -> Ordering {
        self.0.cmp_precedence(&other.0)
    }

    /// Its letters, behind those of `out`: those of [`Display`](fmt::Display).
    pub(super) fn write_to(&self, out: &mut Vec<u8>) {
        let semver::Version { major, minor, patch, pre, build } = &*self.0;
        let digits = [*major, *minor, *patch].map(|number| u8::try_from(number).unwrap_or(10));
        match digits {
            // Nearly all of them.
            [a @ 0..=9, b @ 0..=9, c @ 0..=9] if pre.is_empty() && build.is_empty() => {
                out.extend_from_slice(&[b'0' + a, b'.', b'0' + b, b'.', b'0' + c]);
            }
            _ => out.extend_from_slice(self.0.to_string().as_bytes()),
        }
    }

    /// Whether it is newer than `other`.
    #[must_use]
    pub fn is_after(&self, other: &Self) -> bool {
        self.precedence(other) == Ordering::Greater
    }
}

impl TryFrom<String> for PolicyVersion {
    type Error = TextError;
    fn try_from(text: String) -> Result<Self, TextError> {
        Self::new(&text)
    }
}

impl From<PolicyVersion> for String {
    fn from(version: PolicyVersion) -> Self {
        version.0.to_string()
    }
}

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A hash as documents hold it: `sha256:` and 64 hexadecimal digits where it is one that can match.
/// Others are read too, and match nothing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContentHash(Box<str>);

impl ContentHash {
    /// What stands in a document that is not hashed yet.
    #[must_use]
    pub fn unset() -> Self {
        Self("".into())
    }

    /// Checks `text`: at most [`HASH_LEN_MAX`] bytes of printable ASCII, or none.
    ///
    /// # Errors
    /// [`TextError`] says what is wrong with it.
    pub fn new(text: &str) -> Result<Self, TextError> {
        at_most(text, HASH_LEN_MAX)?;
        match text.bytes().position(|byte| !byte.is_ascii_graphic()) {
            Some(at) => Err(TextError::Control { at }),
            None => Ok(Self(text.into())),
        }
    }

    /// The SHA-256 of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut text = String::with_capacity(71);
        text.push_str("sha256:");
        let digit = |half: u8| char::from(if half < 10 { b'0' + half } else { b'a' - 10 + half });
        for byte in Sha256::digest(bytes) {
            text.push(digit(byte >> 4));
            text.push(digit(byte & 0xf));
        }
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ContentHash {
    type Error = TextError;
    fn try_from(text: String) -> Result<Self, TextError> {
        Self::new(&text)
    }
}

impl From<ContentHash> for String {
    fn from(hash: ContentHash) -> Self {
        hash.0.into()
    }
}

impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "(none)" } else { &self.0 })
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// A date-time of RFC 3339, in the letters it came in.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Stamp {
    text: Box<str>,
    time: Time,
}

impl Stamp {
    /// Reads a date-time.
    ///
    /// # Errors
    /// [`TextError`] if it is none.
    pub fn new(text: &str) -> Result<Self, TextError> {
        at_most(text, STAMP_LEN_MAX)?;
        Ok(Self { text: text.into(), time: Time::parse_rfc3339(text)? })
    }

    /// Its letters.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// When it is.
    #[must_use]
    pub const fn time(&self) -> Time {
        self.time
    }
}

impl From<Time> for Stamp {
    fn from(time: Time) -> Self {
        Self { text: time.to_rfc3339().into(), time }
    }
}

impl TryFrom<String> for Stamp {
    type Error = TextError;
    fn try_from(text: String) -> Result<Self, TextError> {
        Self::new(&text)
    }
}

impl From<Stamp> for String {
    fn from(stamp: Stamp) -> Self {
        stamp.text.into()
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// From `MIN` to `MAX` items, in the order of the document.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct List<T, const MIN: usize, const MAX: usize>(Vec<T>);

impl<T, const MIN: usize, const MAX: usize> List<T, MIN, MAX> {
    /// A list of `items`.
    ///
    /// # Errors
    /// A sentence with the count, if there are too few or too many.
    pub fn new(items: Vec<T>) -> Result<Self, String> {
        match items.len() {
            len if len < MIN => Err(format!("a list of {len} items, where at least {MIN} belong")),
            len if len > MAX => Err(format!("a list of {len} items is over the limit of {MAX}")),
            _ => Ok(Self(items)),
        }
    }
}

impl<T, const MIN: usize, const MAX: usize> Deref for List<T, MIN, MAX> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: fmt::Debug, const MIN: usize, const MAX: usize> fmt::Debug for List<T, MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'a, T, const MIN: usize, const MAX: usize> IntoIterator for &'a List<T, MIN, MAX> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T: Serialize, const MIN: usize, const MAX: usize> Serialize for List<T, MIN, MAX> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(to)
    }
}

impl<'de, T: Deserialize<'de>, const MIN: usize, const MAX: usize> Deserialize<'de>
    for List<T, MIN, MAX>
{
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Items<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Items<T, MAX> {
            type Value = Vec<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX} items")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = from.next_element()? {
                    if items.len() == MAX {
                        return Err(A::Error::custom(format_args!("a list of over {MAX} items")));
                    }
                    items.push(item);
                }
                Ok(items)
            }
        }
        let items = from.deserialize_seq(Items::<T, MAX>(PhantomData))?;
        Self::new(items).map_err(D::Error::custom)
    }
}

/// An object with at most `max` members, none of them twice.
struct Members<V>(&'static str, usize, PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Members<V> {
    type Value = BTreeMap<String, V>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of at most {} members", self.0, self.1)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
        let Self(what, max, _) = self;
        let mut members = BTreeMap::new();
        while let Some((name, value)) = from.next_entry::<String, V>()? {
            if members.len() == max {
                return Err(A::Error::custom(format_args!("{what} of over {max} members")));
            }
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom(format_args!("{what} has a member twice")));
            }
        }
        Ok(members)
    }
}

/// Members that this version does not know. They are kept: hashes and signatures cover them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Extra(pub BTreeMap<String, Value>);

impl<'de> Deserialize<'de> for Extra {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Members("unknown members", EXTRA_COUNT_MAX, PhantomData)).map(Self)
    }
}

/// What is known of an action: names and values, all text.
#[derive(Clone, Default, PartialEq, Eq, Serialize)]
pub struct Context(BTreeMap<String, String>);

/// What an action is about may be private: logs get the names alone.
impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Context {
    /// Checks `members`.
    ///
    /// # Errors
    /// A sentence that says which limit is broken.
    pub fn new(members: BTreeMap<String, String>) -> Result<Self, String> {
        if members.len() > CONTEXT_COUNT_MAX {
            let len = members.len();
            return Err(format!(
                "a context of {len} members is over the limit of {CONTEXT_COUNT_MAX}"
            ));
        }
        for (name, value) in &members {
            at_most(name, TERM_LEN_MAX).map_err(|why| format!("a name in the context: {why}"))?;
            at_most(value, CONTEXT_VALUE_LEN_MAX)
                .map_err(|why| format!("{name} in the context: {why}"))?;
        }
        Ok(Self(members))
    }

    /// Whether it has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Names and values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<'de> Deserialize<'de> for Context {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let members = from.deserialize_map(Members("a context", CONTEXT_COUNT_MAX, PhantomData))?;
        Self::new(members).map_err(D::Error::custom)
    }
}

/// Claims that an error speaks of: the first few by name, the rest by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimNames {
    /// The first [`CLAIMS_NAMED_MAX`].
    pub named: Vec<ClaimId>,
    /// How many there are.
    pub count: usize,
}

impl<'a> FromIterator<&'a ClaimId> for ClaimNames {
    fn from_iter<I: IntoIterator<Item = &'a ClaimId>>(claims: I) -> Self {
        let mut names = Self { named: Vec::new(), count: 0 };
        for claim in claims {
            names.count += 1;
            if names.named.len() < CLAIMS_NAMED_MAX {
                names.named.push(claim.clone());
            }
        }
        names
    }
}

impl fmt::Display for ClaimNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, claim) in self.named.iter().enumerate() {
            write!(f, "{}{claim}", if at == 0 { "" } else { ", " })?;
        }
        match self.count.saturating_sub(self.named.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
