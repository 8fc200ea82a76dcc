//! Names of what a node publishes over MOQT: namespaces, tracks, and how urgent each is.
//!
//! A namespace belongs to one publisher and one session of it and is never used again, so that a
//! relay cannot answer a new subscription out of an old cache. Each name has one spelling: what a
//! parser takes is what would have been written.

use crate::id::AgentId;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The fields all our namespaces begin with: the protocol and its version.
pub const PREFIX: [&str; 2] = ["abhyasa", "1"];
/// Fields of a namespace: the prefix, publisher, epoch and part.
pub const FIELDS_COUNT: usize = 5;
/// Bytes in the name of a group.
pub const GROUP_NAME_LEN_MAX: usize = 64;

/// Publisher priorities of MOQT: the lower is sent first, and 128 is its default.
pub mod priority {
    /// Custody acks: they end what is already across.
    pub const ACKS: u8 = 8;
    /// What a node takes, without which nothing is offered.
    pub const HELLO: u8 = 8;
    /// Batches not taken.
    pub const REFUSALS: u8 = 8;
    /// Obligations under custody.
    pub const OFFERS: u8 = 16;
    /// One decision for the members of a group.
    pub const GROUP: u8 = 16;
    /// Escalations, for watchers.
    pub const ESCALATIONS: u8 = 32;
    /// Obligations without custody.
    pub const BEST_EFFORT: u8 = 96;
    /// The state of the node and its metrics, for watchers.
    pub const STATUS: u8 = 160;
    /// What happens at the node, for watchers.
    pub const EVENTS: u8 = 160;
}

/// Why a name is none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {why}")]
pub struct NameError {
    /// Which part of the name.
    pub what: &'static str,
    /// The rule it breaks.
    pub why: &'static str,
}

const fn wrong<T>(what: &'static str, why: &'static str) -> Result<T, NameError> {
    Err(NameError { what, why })
}

/// Which of its sessions a node speaks on. Those of one node and part are ordered: what a later one
/// publishes stands in place of what the earlier ones did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch {
    /// Starts of the node, counted on disk.
    pub boot: u64,
    /// MOQT sessions since that start.
    pub session: u64,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:x}", self.boot, self.session)
    }
}

impl FromStr for Epoch {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        const WRONG: NameError =
            NameError { what: "epoch", why: "is not two numbers in hex, such as 1f.2" };
        let (boot, session) = text.split_once('.').ok_or(WRONG)?;
        let number = |text: &str| u64::from_str_radix(text, 16).map_err(|_| WRONG);
        one_spelling(Self { boot: number(boot)?, session: number(session)? }, text, WRONG)
    }
}

/// Whom the tracks of a namespace are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Peers of one share, see [`part_of`].
    Peers {
        /// The share, below `count`.
        index: u16,
        /// Shares there are, at least 1.
        count: u16,
    },
    /// Everyone.
    All,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peers { index, count } => write!(f, "{index}.{count}"),
            Self::All => f.write_str("all"),
        }
    }
}

impl FromStr for Part {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        const WRONG: NameError =
            NameError { what: "part", why: "is neither all nor a share such as 0.4" };
        if text == "all" {
            return Ok(Self::All);
        }
        let (index, count) = text.split_once('.').ok_or(WRONG)?;
        let number = |text: &str| text.parse::<u16>().map_err(|_| WRONG);
        match (number(index)?, number(count)?) {
            (index, count) if index < count => {
                one_spelling(Self::Peers { index, count }, text, WRONG)
            }
            _ => Err(WRONG),
        }
    }
}

/// The share of `count` that `agent` is in: the first 8 bytes of the SHA-256 of its id, modulo
/// `count`. Every node finds the same one. Of no shares it is the first.
#[must_use]
pub fn part_of(agent: &AgentId, count: u16) -> u16 {
    let hash = Sha256::digest(agent.as_str());
    let number = hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte));
    let share = number.checked_rem(u64::from(count)).unwrap_or_default();
    u16::try_from(share).unwrap_or_default()
}

/// What one node publishes on one session for one part of its peers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace {
    /// The node.
    pub publisher: AgentId,
    /// Its session.
    pub epoch: Epoch,
    /// Whom it is for.
    pub part: Part,
}

impl Namespace {
    /// The fields, in order.
    #[must_use]
    pub fn fields(&self) -> [String; FIELDS_COUNT] {
        let [protocol, version, publisher] = Self::prefix_of(&self.publisher);
        [protocol, version, publisher, self.epoch.to_string(), self.part.to_string()]
    }

    /// Reads the fields of a namespace.
    ///
    /// # Errors
    /// [`NameError`] for anything but what [`Namespace::fields`] gives.
    //= WR-1
    pub fn parse(fields: &[impl AsRef<[u8]>]) -> Result<Self, NameError> {
        let [protocol, version, publisher, epoch, part] = fields else {
            return wrong("namespace", "is not of 5 fields");
        };
        if [protocol.as_ref(), version.as_ref()] != PREFIX.map(str::as_bytes) {
            return wrong("namespace", "does not begin with abhyasa, 1");
        }
        Ok(Self {
            publisher: read_agent(text(publisher.as_ref(), "publisher")?, "publisher")?,
            epoch: text(epoch.as_ref(), "epoch")?.parse()?,
            part: text(part.as_ref(), "part")?.parse()?,
        })
    }

    /// The fields that all namespaces of `publisher` begin with.
    #[must_use]
    pub fn prefix_of(publisher: &AgentId) -> [String; 3] {
        let [protocol, version] = PREFIX.map(str::to_owned);
        [protocol, version, write_agent(publisher)]
    }
}

/// A track inside of a namespace. The first two are in the part of the peer they name, the others in
/// [`Part::All`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Track {
    /// Offers, best effort, refusals and hello, for one peer.
    To(AgentId),
    /// Custody acks for one custodian.
    Acks(AgentId),
    /// Decisions for the members of a group.
    Group(GroupName),
    /// Escalations of the node.
    Escalations,
    /// State of the node.
    Status,
    /// What happens at the node.
    Events,
    /// Metrics of the node.
    Metrics,
    /// The usage policy of the node.
    Policy,
}

const TO: &str = "to:";
const ACKS: &str = "acks:";
pub(crate) const GROUP: &str = "group:";
const ESCALATIONS: &str = "escalations";
const STATUS: &str = "status";
const EVENTS: &str = "events";
const METRICS: &str = "metrics";
const POLICY: &str = "policy";

impl Track {
    /// The name on the wire.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::To(agent) => format!("{TO}{}", write_agent(agent)),
            Self::Acks(agent) => format!("{ACKS}{}", write_agent(agent)),
            Self::Group(group) => format!("{GROUP}{group}"),
            Self::Escalations => ESCALATIONS.to_owned(),
            Self::Status => STATUS.to_owned(),
            Self::Events => EVENTS.to_owned(),
            Self::Metrics => METRICS.to_owned(),
            Self::Policy => POLICY.to_owned(),
        }
    }

    /// Reads a name.
    ///
    /// # Errors
    /// [`NameError`] for anything but what [`Track::name`] gives.
    //= WR-1
    pub fn parse(name: &[u8]) -> Result<Self, NameError> {
        let name = text(name, "track")?;
        if let Some(agent) = name.strip_prefix(TO) {
            return read_agent(agent, "track's peer").map(Self::To);
        }
        if let Some(agent) = name.strip_prefix(ACKS) {
            return read_agent(agent, "track's custodian").map(Self::Acks);
        }
        if let Some(group) = name.strip_prefix(GROUP) {
            return GroupName::new(group).map(Self::Group);
        }
        match name {
            ESCALATIONS => Ok(Self::Escalations),
            STATUS => Ok(Self::Status),
            EVENTS => Ok(Self::Events),
            METRICS => Ok(Self::Metrics),
            POLICY => Ok(Self::Policy),
            _ => wrong("track", "is none we know"),
        }
    }
}

impl fmt::Display for Track {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// The name of a group of agents: 1 to [`GROUP_NAME_LEN_MAX`] of `a-z0-9-_.`, not a dot first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupName(Arc<str>);

impl GroupName {
    /// Checks `name`.
    ///
    /// # Errors
    /// [`NameError`] says which rule it breaks.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let what = "group";
        if name.is_empty() || name.len() > GROUP_NAME_LEN_MAX {
            return wrong(what, "is not named with 1 to 64 characters");
        }
        if name.starts_with('.') {
            return wrong(what, "begins with a dot");
        }
        let ours = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
        if !name.bytes().all(ours) {
            return wrong(what, "is named with more than a-z, 0-9, - _ and .");
        }
        Ok(Self(name.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GroupName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl TryFrom<String> for GroupName {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(&text)
    }
}

impl From<GroupName> for String {
    fn from(name: GroupName) -> Self {
        name.as_str().to_owned()
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

/// `value`, if `text` is what it is written as.
fn one_spelling<T: fmt::Display>(value: T, text: &str, wrong: NameError) -> Result<T, NameError> {
    if value.to_string() == text { Ok(value) } else { Err(wrong) }
}

fn text<'a>(bytes: &'a [u8], what: &'static str) -> Result<&'a str, NameError> {
    std::str::from_utf8(bytes).or(wrong(what, "is not UTF-8"))
}

/// Whether `byte` stands for itself in an agent's field. `%` begins an escape, relays and people
/// join fields with `/`, and MOQT keeps fields with a dot first for itself.
const fn stays(byte: u8, first: bool) -> bool {
    byte.is_ascii_graphic() && byte != b'%' && byte != b'/' && !(first && byte == b'.')
}

/// An agent's id as a field: what does not [stay](stays) is percent-encoded (RFC 3986 §2.1), in
/// upper-case hex.
fn write_agent(agent: &AgentId) -> String {
    use fmt::Write as _;
    let id = agent.as_str();
    let mut field = String::with_capacity(id.len() + 8);
    for (at, byte) in id.bytes().enumerate() {
        if stays(byte, at == 0) {
            field.push(char::from(byte));
        } else {
            let written = write!(field, "%{byte:02X}");
            debug_assert!(written.is_ok(), "a string takes what is written to it");
        }
    }
    field
}

fn read_agent(field: &str, what: &'static str) -> Result<AgentId, NameError> {
    let mut id = Vec::with_capacity(field.len());
    let mut left = field.as_bytes();
    while let [byte, rest @ ..] = left {
        left = rest;
        match (byte, rest) {
            (b'%', [high, low, rest @ ..]) => {
                let digit = |digit: &u8| char::from(*digit).to_digit(16);
                let (Some(high), Some(low)) = (digit(high), digit(low)) else {
                    return wrong(what, "holds a % that begins no escape");
                };
                id.push(u8::try_from(high << 4 | low).unwrap_or_default());
                left = rest;
            }
            _ => id.push(*byte),
        }
    }
    let id = text(&id, what)?;
    let agent = AgentId::new(id).or(wrong(what, "is no agent's id"))?;
    if write_agent(&agent) != field {
        return wrong(what, "is escaped in another way than ours");
    }
    Ok(agent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn agent(id: &str) -> AgentId {
        AgentId::new(id).unwrap()
    }

    fn group(name: &str) -> GroupName {
        GroupName::new(name).unwrap()
    }

    fn an_agent() -> impl Strategy<Value = AgentId> {
        prop_oneof!["[a-z0-9./:%-]{1,40}", "\\PC{1,40}", "x{250,256}"]
            .prop_filter_map("blank or too long", |text| AgentId::new(&text).ok())
    }

    fn a_track() -> impl Strategy<Value = Track> {
        prop_oneof![
            an_agent().prop_map(Track::To),
            an_agent().prop_map(Track::Acks),
            "[a-z0-9_-][a-z0-9._-]{0,63}".prop_map(|name| Track::Group(group(&name))),
            Just(Track::Escalations),
            Just(Track::Status),
            Just(Track::Events),
        ]
    }

    fn a_namespace() -> impl Strategy<Value = Namespace> {
        let peers = any::<[u16; 2]>().prop_map(|[one, other]| Part::Peers {
            index: one.min(other),
            count: one.max(other).saturating_add(1),
        });
        let part = prop_oneof![3 => peers, 1 => Just(Part::All)].prop_filter(
            "no share",
            |part| !matches!(part, Part::Peers { index, count } if index >= count),
        );
        (an_agent(), any::<u64>(), any::<u64>(), part).prop_map(
            |(publisher, boot, session, part)| Namespace {
                publisher,
                epoch: Epoch { boot, session },
                part,
            },
        )
    }

    proptest! {
        #[test]
        fn wr1_names_are_read_as_they_were_written(namespace in a_namespace(), track in a_track()) {
            let fields = namespace.fields();
            prop_assert_eq!(Namespace::parse(&fields), Ok(namespace.clone()));
            prop_assert_eq!(&fields[..3], &Namespace::prefix_of(&namespace.publisher));
            for field in &fields {
                prop_assert!(!field.is_empty() && !field.starts_with('.') && !field.contains('/'));
                prop_assert!(field.bytes().all(|byte| byte.is_ascii_graphic()));
            }
            let name = track.name();
            prop_assert_eq!(Track::parse(name.as_bytes()), Ok(track));
            // MOQT takes no full name over 4096 bytes.
            prop_assert!(fields.iter().map(String::len).sum::<usize>() + name.len() <= 4096);
        }

        #[test]
        fn wr1_what_is_read_is_written_the_same(
            agent in "[a-c%./2EFe]{0,8}",
            epoch in "[0-9a-fA-F+.]{1,5}",
            part in "(all|[0-9+]{1,3}\\.[0-9]{1,3})",
            name in "(to:|acks:|group:|to|)[a-c%./2EF~-]{0,6}",
        ) {
            let fields = ["abhyasa".to_owned(), "1".to_owned(), agent, epoch, part];
            if let Ok(namespace) = Namespace::parse(&fields) {
                prop_assert_eq!(namespace.fields(), fields);
            }
            if let Ok(track) = Track::parse(name.as_bytes()) {
                prop_assert_eq!(track.name(), name);
            }
        }

        #[test]
        fn every_agent_has_one_share(agent in an_agent(), count in any::<u16>()) {
            let index = part_of(&agent, count);
            prop_assert!(index < count.max(1));
        }
    }

    #[test]
    fn names_are_what_the_document_says() {
        let namespace = Namespace {
            publisher: agent("spiffe://example.org/agent/ü b"),
            epoch: Epoch { boot: 31, session: 0 },
            part: Part::Peers { index: 2, count: 25 },
        };
        let publisher = "spiffe:%2F%2Fexample.org%2Fagent%2F%C3%BC%20b";
        assert_eq!(namespace.fields(), ["abhyasa", "1", publisher, "1f.0", "2.25"]);
        let all = Namespace { part: Part::All, publisher: agent(".b"), ..namespace };
        assert_eq!(all.fields(), ["abhyasa", "1", "%2Eb", "1f.0", "all"]);
        for (track, name) in [
            (Track::To(agent("100%.b")), "to:100%25.b"),
            (Track::Acks(agent("a/b")), "acks:a%2Fb"),
            (Track::Group(group("eu-1.agents")), "group:eu-1.agents"),
            (Track::Escalations, "escalations"),
            (Track::Status, "status"),
            (Track::Events, "events"),
        ] {
            assert_eq!(track.name(), name);
        }
        // Two nodes must agree on it: these values may never change.
        let shares =
            ["a", "spiffe://example.org/agent/b", "agent-7"].map(|id| part_of(&agent(id), 40));
        assert_eq!(shares, [10, 16, 20]);
        assert_eq!(part_of(&agent("a"), 0), 0);
    }

    #[test]
    fn wr1_other_names_are_refused() {
        let good = ["abhyasa", "1", "a", "1.2", "0.4"];
        assert!(Namespace::parse(&good).is_ok());
        for (at, field, why) in [
            (0, "abhyasA", "another protocol"),
            (1, "01", "another version"),
            (2, "", "no publisher"),
            (2, ".a", "a dot that is not escaped"),
            (2, "a/b", "a slash that is not escaped"),
            (2, "a b", "a space that is not escaped"),
            (2, "ü", "a letter that is not escaped"),
            (2, "%61", "an escape that is not needed"),
            (2, "a%2f", "an escape in lower case"),
            (2, "a%2", "an escape cut short"),
            (2, "%", "a percent sign alone"),
            (2, "a%zz", "an escape that is not hex"),
            (2, "a%+1", "an escape with a sign"),
            (2, "%FF", "bytes that are not UTF-8"),
            (2, "a%0A", "a control character"),
            (2, "%20", "a blank publisher"),
            (3, "1", "an epoch of one number"),
            (3, "1.2.3", "an epoch of three"),
            (3, "01.2", "an epoch with a zero before it"),
            (3, "1.", "an epoch without its session"),
            (3, "A.2", "an epoch in upper case"),
            (3, "+1.2", "an epoch with a sign"),
            (3, "1.10000000000000000", "an epoch past 64 bits"),
            (4, "ALL", "a part in upper case"),
            (4, "4.4", "a share past the last"),
            (4, "0.0", "a share of none"),
            (4, "00.4", "a share with a zero before it"),
            (4, "+0.4", "a share with a sign"),
            (4, "0.65536", "too many shares"),
        ] {
            let mut fields = good;
            fields[at] = field;
            assert!(Namespace::parse(&fields).is_err(), "{why} was read");
        }
        assert!(Namespace::parse(&good[..4]).is_err());
        assert!(Namespace::parse(&[&good[..], &["x"]].concat()).is_err());
        assert!(Namespace::parse(&[b"abhyasa", &b"1"[..], b"a", b"1.2", b"\xff"]).is_err());
        for name in [
            "",
            "to:",
            "to",
            "TO:a",
            "to:%61",
            "acks:.a",
            "group:",
            "group:.a",
            "group:A",
            "group:a/b",
            "group:ü",
            "escalations2",
            "Status",
            "events ",
            "offers",
        ] {
            assert!(Track::parse(name.as_bytes()).is_err(), "{name} was read");
        }
        assert!(Track::parse(b"to:\xff").is_err());
        assert!(GroupName::new(&"a".repeat(GROUP_NAME_LEN_MAX)).is_ok());
        assert!(GroupName::new(&"a".repeat(GROUP_NAME_LEN_MAX + 1)).is_err());
        assert!(serde_json::from_str::<GroupName>("\"A\"").is_err());
    }

    #[test]
    fn epochs_are_ordered_by_boot_then_session() {
        let epoch = |text: &str| text.parse::<Epoch>().unwrap();
        assert!(epoch("9.ff") < epoch("a.0"));
        assert!(epoch("a.9") < epoch("a.10"));
        assert!(epoch("ff.0") < epoch("100.0"));
    }
}
