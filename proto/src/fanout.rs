//! One decision for many agents: a template, and the obligation each of them derives from it.
//!
//! No list of members goes over the wire. Custodian and member derive the same obligation, byte
//! for byte, from the template and the member's own id; from there on it is an obligation like any
//! other, with its own custody, ack and escalation.

use crate::cbor::{CborError, Reader, Writer};
use crate::field::{Members, at_most, name, whole};
use crate::id::{AgentId, IdError, Kind, ObligationId};
use crate::limits::{ID_LEN_MAX, OBLIGATION_LEN_MAX};
use crate::obligation::{Obligation, check_values, retries};
use crate::payload::Payload;
use crate::time::Time;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;

/// Stands between a group id and what makes it a member's; no group id holds it.
const MARK: char = '~';
/// Bytes of the hash in a member's id. Two members of one group share an id at odds of 1 in 2^128.
const HASH_LEN: usize = 16;
/// Characters of that hash in base32.
const SUFFIX_LEN: usize = (HASH_LEN * 8).div_ceil(5);
/// Bytes in a group id, so that the ids derived from it are within [`ID_LEN_MAX`].
pub const GROUP_ID_LEN_MAX: usize = ID_LEN_MAX - SUFFIX_LEN - MARK.len_utf8();

/// Base32 (RFC 4648 §6) in lower case.
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Name of a decision for a group: an obligation id of at most [`GROUP_ID_LEN_MAX`] bytes without `~`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(ObligationId);

impl GroupId {
    /// Checks `text`.
    ///
    /// # Errors
    /// [`IdError`] says which rule it breaks.
    pub fn new(text: &str) -> Result<Self, IdError> {
        let what = "group id";
        if text.len() > GROUP_ID_LEN_MAX {
            return Err(IdError::TooLong { what, len: text.len(), max: GROUP_ID_LEN_MAX });
        }
        if let Some(at) = text.find(MARK) {
            return Err(IdError::Reserved { what, at });
        }
        ObligationId::named(what, text).map(Self)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The id of the obligation that `target` derives: `<group id>~<hash>`, where the hash is the
    /// first 16 bytes of the SHA-256 of group id, a zero byte and target, in base32 (RFC 4648 §6) in
    /// lower case without padding.
    #[must_use]
    pub fn member(&self, target: &AgentId) -> ObligationId {
        let hash = Sha256::new()
            .chain_update(self.as_str())
            .chain_update([0])
            .chain_update(target.as_str())
            .finalize();
        let mut id = String::with_capacity(self.as_str().len() + 1 + SUFFIX_LEN);
        id.push_str(self.as_str());
        id.push(MARK);
        let (mut bits, mut held) = (0u32, 0);
        for byte in hash.iter().take(HASH_LEN) {
            bits = bits << 8 | u32::from(*byte);
            held += 8;
            while held >= 5 {
                held -= 5;
                id.push(digit(bits >> held));
            }
        }
        id.push(digit(bits << (5 - held)));
        ObligationId::derived(id)
    }
}

impl FromStr for GroupId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        Self::new(text)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The digit of the lowest five bits.
fn digit(bits: u32) -> char {
    BASE32.get((bits & 31) as usize).copied().map_or('a', char::from)
}

/// The id of the obligation that `target` derives from the decision `gid`, see [`GroupId::member`].
///
/// # Errors
/// [`IdError`] if `gid` is none that others can be derived from.
pub fn member_id(gid: &ObligationId, target: &AgentId) -> Result<ObligationId, IdError> {
    Ok(GroupId::new(gid.as_str())?.member(target))
}

/// The group id of an id that has the form of a derived one. Whose it is only [`member_id`] can
/// tell: anybody can issue an id of this form.
#[must_use]
pub fn group_of(id: &ObligationId) -> Option<&str> {
    let (gid, suffix) = id.as_str().split_once(MARK)?;
    // 128 bits fill 25 digits and three bits of the last.
    let last = suffix.bytes().last().and_then(|last| BASE32.iter().position(|d| *d == last))?;
    let ours = suffix.len() == SUFFIX_LEN
        && suffix.bytes().all(|byte| BASE32.contains(&byte))
        && last & 3 == 0
        && GroupId::new(gid).is_ok();
    ours.then_some(gid)
}

/// An obligation without its target, for all members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Names the decision.
    pub gid: GroupId,
    /// Picks the polarity rule.
    pub kind: Kind,
    /// What it demands.
    pub payload: Payload,
    /// Seconds from `created_at` to the deadline, as in [`Obligation::deadline_seconds`].
    pub deadline_seconds: u64,
    /// Transfers after the first, as in [`Obligation::max_retries`].
    pub max_retries: u32,
    /// When it was issued.
    pub created_at: Time,
    /// Order among obligations of one governed key (SG-1, SG-2).
    pub sequence: Option<u64>,
}

impl Template {
    /// `obligation` under another name and for whoever derives it.
    #[must_use]
    pub fn of(gid: GroupId, obligation: &Obligation) -> Self {
        Self {
            gid,
            kind: obligation.kind.clone(),
            payload: obligation.payload.clone(),
            deadline_seconds: obligation.deadline_seconds,
            max_retries: obligation.max_retries,
            created_at: obligation.created_at,
            sequence: obligation.sequence,
        }
    }

    /// The obligation of one member. All of them are equal but in id and target.
    #[must_use]
    pub fn for_member(&self, target: &AgentId) -> Obligation {
        Obligation {
            id: self.gid.member(target),
            kind: self.kind.clone(),
            target: target.clone(),
            payload: self.payload.clone(),
            deadline_seconds: self.deadline_seconds,
            max_retries: self.max_retries,
            created_at: self.created_at,
            sequence: self.sequence,
        }
    }

    /// The deterministic CBOR encoding.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let names = self.gid.as_str().len() + self.kind.as_str().len();
        let mut to = Writer::with_capacity(names + self.payload.as_bytes().len() + 64);
        to.map(6 + usize::from(self.sequence.is_some()));
        to.uint(1).text(self.gid.as_str());
        to.uint(2).text(self.kind.as_str());
        to.uint(3).raw(self.payload.as_bytes());
        to.uint(4).uint(self.deadline_seconds);
        to.uint(5).uint(u64::from(self.max_retries));
        to.uint(6).uint(self.created_at.as_ms());
        if let Some(sequence) = self.sequence {
            to.uint(7).uint(sequence);
        }
        to.into_bytes()
    }

    /// Decodes `bytes`, which must be exactly one template. The payload shares `bytes`.
    ///
    /// # Errors
    /// [`CborError`] for anything but the encoding [`Template::encode`] gives.
    //= WR-1
    pub fn decode(bytes: &Bytes) -> Result<Self, CborError> {
        at_most("template", bytes.len(), OBLIGATION_LEN_MAX)?;
        whole(bytes, |reader| Self::read(reader, bytes))
    }

    fn read(reader: &mut Reader<'_>, source: &Bytes) -> Result<Self, CborError> {
        let mut map = Members::open(reader)?;
        let template = Self {
            gid: name(map.required(1)?, "group id")?,
            kind: name(map.required(2)?, "kind")?,
            payload: Payload::read(map.required(3)?, source)?,
            deadline_seconds: map.required(4)?.uint()?,
            max_retries: retries(map.required(5)?.uint()?)
                .map_err(|error| CborError::invalid("max_retries", error))?,
            created_at: Time::from_ms(map.required(6)?.uint()?),
            sequence: map.optional(7)?.map(Reader::uint).transpose()?,
        };
        map.end()?;
        check_values(template.deadline_seconds, template.max_retries, template.created_at)
            .map_err(|error| CborError::invalid("template", error))?;
        Ok(template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn agent(id: &str) -> AgentId {
        AgentId::new(id).unwrap()
    }

    fn template(gid: &str) -> Template {
        let payload = json!({"decision": "revoke", "scope": "calendar.write"});
        Template {
            gid: GroupId::new(gid).unwrap(),
            kind: Kind::new("anumati.consent").unwrap(),
            payload: Payload::from_json(payload.as_object().unwrap()).unwrap(),
            deadline_seconds: 3600,
            max_retries: 16,
            created_at: Time::from_ms(1_796_040_000_000),
            sequence: Some(7),
        }
    }

    proptest! {
        #[test]
        fn members_differ_in_id_and_target_only(
            gid in "[a-z0-9.:-]{1,40}", one in "[a-z0-9./:-]{1,30}", other in "[a-z0-9./:-]{1,30}"
        ) {
            let (one, other) = (agent(&one), agent(&other));
            let template = template(&gid);
            let (first, second) = (template.for_member(&one), template.for_member(&other));
            prop_assert_eq!(template.for_member(&one).encode(), first.encode());
            prop_assert_eq!(&first.target, &one);
            prop_assert_eq!(first.id == second.id, one == other);
            let renamed = Obligation { id: first.id.clone(), target: one.clone(), ..second };
            prop_assert_eq!(&renamed, &first);
            prop_assert_eq!(Template::of(template.gid.clone(), &first), template.clone());
            // What the member derives from the bytes is what the custodian has under custody.
            let read = Template::decode(&template.encode()).unwrap();
            prop_assert_eq!(read.for_member(&one).encode(), first.encode());
            prop_assert!(Obligation::decode(&first.encode()).is_ok());
        }

        #[test]
        fn a_derived_id_names_its_group(gid in "\\PC{1,60}", target in "[a-z0-9./:-]{1,30}") {
            let (Ok(id), target) = (ObligationId::new(&gid), agent(&target)) else { return Ok(()) };
            match member_id(&id, &target) {
                Ok(derived) => {
                    prop_assert_eq!(group_of(&derived), Some(id.as_str()));
                    prop_assert!(member_id(&derived, &target).is_err(), "derived of a derived one");
                }
                Err(_) => prop_assert!(gid.contains(MARK) || gid.len() > GROUP_ID_LEN_MAX),
            }
        }
    }

    #[test]
    fn ids_are_derived_as_the_document_says() {
        // Custodian and member must agree on it: this value may never change.
        let id = template("revoke-7").for_member(&agent("spiffe://example.org/agent/b")).id;
        assert_eq!(id.as_str(), "revoke-7~pnboznwhe4o7hlpm3d2zdtfv4q");
    }

    #[test]
    fn bd1_a_group_id_leaves_room_for_its_members() {
        let longest = "g".repeat(GROUP_ID_LEN_MAX);
        let derived = GroupId::new(&longest).unwrap().member(&agent("b"));
        assert_eq!(derived.as_str().len(), ID_LEN_MAX);
        assert_eq!(ObligationId::new(derived.as_str()), Ok(derived.clone()));
        assert_eq!(group_of(&derived), Some(&*longest));
        let (what, len, max) = ("group id", GROUP_ID_LEN_MAX + 1, GROUP_ID_LEN_MAX);
        assert_eq!(GroupId::new(&(longest + "g")), Err(IdError::TooLong { what, len, max }));
        assert_eq!(GroupId::new("a~b"), Err(IdError::Reserved { what, at: 1 }));
        assert_eq!(GroupId::new(" "), Err(IdError::Empty { what }));
        assert_eq!(GroupId::new("a\n"), Err(IdError::Control { what, at: 1 }));
    }

    #[test]
    fn other_ids_have_no_group() {
        let good = "g~aaaaaaaaaaaaaaaaaaaaaaaaaa";
        assert_eq!(group_of(&ObligationId::new(good).unwrap()), Some("g"));
        for (id, why) in [
            ("g", "no mark"),
            ("g~", "no hash"),
            ("~aaaaaaaaaaaaaaaaaaaaaaaaaa", "no group"),
            ("g~aaaaaaaaaaaaaaaaaaaaaaaaa", "a digit short"),
            ("g~aaaaaaaaaaaaaaaaaaaaaaaaaaa", "a digit more"),
            ("g~Aaaaaaaaaaaaaaaaaaaaaaaaaa", "a digit in upper case"),
            ("g~1aaaaaaaaaaaaaaaaaaaaaaaaa", "no digit of base32"),
            ("g~aaaaaaaaaaaaaaaaaaaaaaaaab", "padding that is not zero"),
            ("a~g~aaaaaaaaaaaaaaaaaaaaaaaaaa", "two marks"),
        ] {
            assert_eq!(group_of(&ObligationId::new(id).unwrap()), None, "{why}");
        }
    }
}
