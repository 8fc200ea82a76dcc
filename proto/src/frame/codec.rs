//! Frames as deterministic CBOR maps: key 0 is the type, the others are its members.

use super::{FEATURES_COUNT_MAX, Frame, HelloLimits, RefuseCode};
use crate::ack::{AckRun, CustodyAck, Reason, RefRange};
use crate::cbor::{CborError, Reader, Writer};
use crate::field::{Members, at_most, list, name, time, whole};
use crate::id::ObligationId;
use crate::limits::{BATCH_COUNT_MAX, FRAME_LEN_MAX, ID_LEN_MAX, OBLIGATION_LEN_MAX};
use bytes::Bytes;

const HELLO: u64 = 0;
const OFFERS: u64 = 1;
const ACK_RUNS: u64 = 2;
const ACKS: u64 = 3;
const QUERY: u64 = 4;
const ANSWER: u64 = 5;
const PROBE: u64 = 6;
const PROBE_REPLY: u64 = 7;
const REFUSE: u64 = 8;
const BEST_EFFORT: u64 = 9;

impl Frame {
    /// The deterministic CBOR encoding, in one buffer.
    ///
    /// The caller keeps to what [`Frame::decode`] accepts (counts, ascending ranges and
    /// [`FRAME_LEN_MAX`]): whoever fills a batch is who can end it in time.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(self.capacity());
        self.write(&mut writer);
        writer.into_bytes()
    }

    /// Decodes `bytes`, which must be exactly one frame. Obligations inside share `bytes` and
    /// are not looked into, so that one bad item does not spoil its batch.
    ///
    /// # Errors
    /// [`CborError`] for anything but the encoding [`Frame::encode`] gives.
    //= WR-1
    pub fn decode(bytes: Bytes) -> Result<Self, CborError> {
        at_most("frame", bytes.len(), FRAME_LEN_MAX)?;
        whole(&bytes, |reader| Self::read(reader, &bytes))
    }

    /// Bytes that hold any frame of this one's texts and counts.
    fn capacity(&self) -> usize {
        let ids = |ids: &[ObligationId]| ids.iter().map(|id| id.as_str().len() + 3).sum::<usize>();
        let acks = |acks: &[CustodyAck]| acks.iter().map(|a| a.text_len() + 32).sum::<usize>();
        let body = match self {
            Self::Offers { items, .. } | Self::BestEffort { items } => {
                items.iter().map(|item| item.len() + 5).sum()
            }
            Self::AckRuns(runs) => runs.iter().map(|run| 48 + run.refs.len() * 19).sum(),
            Self::Acks(list) => acks(list),
            Self::Query { ids: list, .. } => ids(list),
            Self::Answer { acks: list, unknown, .. } => acks(list) + ids(unknown),
            Self::Refuse { refs, text, .. } => text.as_str().len() + refs.len() * 19,
            Self::Hello { .. } | Self::Probe { .. } | Self::ProbeReply { .. } => ID_LEN_MAX,
        };
        body + 64
    }

    fn write(&self, to: &mut Writer) {
        match self {
            Self::Hello { version, agent, limits, features } => {
                to.map(4 + usize::from(!features.is_empty())).uint(0).uint(HELLO);
                to.uint(1).uint(*version).uint(2).text(agent.as_str());
                to.uint(3).map(3);
                to.uint(0).uint(limits.frame_len_max);
                to.uint(1).uint(limits.in_flight_max);
                to.uint(2).uint(limits.datagram_len_max);
                if !features.is_empty() {
                    to.uint(4);
                    write_list(to, features, |to, feature| {
                        to.text(feature);
                    });
                }
            }
            Self::Offers { first_ref, items } => {
                to.map(3).uint(0).uint(OFFERS).uint(1).uint(*first_ref).uint(2);
                write_list(to, items, |to, item| {
                    to.bytes(item);
                });
            }
            Self::AckRuns(runs) => {
                to.map(2).uint(0).uint(ACK_RUNS).uint(1);
                write_list(to, runs, |to, run| run.write(to));
            }
            Self::Acks(acks) => {
                to.map(2).uint(0).uint(ACKS).uint(1);
                write_list(to, acks, |to, ack| ack.write(to));
            }
            Self::Query { query_ref, ids } => {
                to.map(3).uint(0).uint(QUERY).uint(1).uint(*query_ref).uint(2);
                write_list(to, ids, write_id);
            }
            Self::Answer { query_ref, acks, unknown } => {
                to.map(4).uint(0).uint(ANSWER).uint(1).uint(*query_ref).uint(2);
                write_list(to, acks, |to, ack| ack.write(to));
                to.uint(3);
                write_list(to, unknown, write_id);
            }
            Self::Probe { nonce, id } => {
                to.map(2 + usize::from(id.is_some())).uint(0).uint(PROBE).uint(1).uint(*nonce);
                if let Some(id) = id {
                    to.uint(2).text(id.as_str());
                }
            }
            Self::ProbeReply { nonce, at } => {
                to.map(3).uint(0).uint(PROBE_REPLY).uint(1).uint(*nonce).uint(2).uint(at.as_ms());
            }
            Self::Refuse { refs, code, retry_after_ms, text } => {
                to.map(5).uint(0).uint(REFUSE).uint(1);
                RefRange::write_all(refs, to);
                to.uint(2).uint(code.code()).uint(3).uint(*retry_after_ms);
                to.uint(4).text(text.as_str());
            }
            Self::BestEffort { items } => {
                to.map(2).uint(0).uint(BEST_EFFORT).uint(1);
                write_list(to, items, |to, item| {
                    to.bytes(item);
                });
            }
        }
    }

    fn read(reader: &mut Reader<'_>, source: &Bytes) -> Result<Self, CborError> {
        const SOME: std::ops::RangeInclusive<usize> = 1..=BATCH_COUNT_MAX;
        const ANY: std::ops::RangeInclusive<usize> = 0..=BATCH_COUNT_MAX;
        let item = |reader: &mut Reader<'_>| read_item(reader, source);
        let id = |reader: &mut Reader<'_>| name(reader, "obligation_id");
        let mut map = Members::open(reader)?;
        let frame = match map.required(0)?.uint()? {
            HELLO => Self::Hello {
                version: map.required(1)?.uint()?,
                agent: name(map.required(2)?, "agent")?,
                limits: read_limits(map.required(3)?)?,
                features: match map.optional(4)? {
                    Some(reader) => list(reader, "features", 1..=FEATURES_COUNT_MAX, read_feature)?,
                    None => Vec::new(),
                },
            },
            OFFERS => {
                let first_ref = map.required(1)?.uint()?;
                let items = list(map.required(2)?, "items", SOME, item)?;
                if first_ref.checked_add(items.len() as u64).is_none() {
                    return Err(CborError::invalid("first_ref", "leaves no room for the items"));
                }
                Self::Offers { first_ref, items }
            }
            ACK_RUNS => {
                let runs = list(map.required(1)?, "runs", SOME, AckRun::read)?;
                AckRun::check_apart(&runs)?;
                Self::AckRuns(runs)
            }
            ACKS => Self::Acks(list(map.required(1)?, "acks", SOME, CustodyAck::read)?),
            QUERY => Self::Query {
                query_ref: map.required(1)?.uint()?,
                ids: list(map.required(2)?, "ids", SOME, id)?,
            },
            ANSWER => Self::Answer {
                query_ref: map.required(1)?.uint()?,
                acks: list(map.required(2)?, "acks", ANY, CustodyAck::read)?,
                unknown: list(map.required(3)?, "unknown", ANY, id)?,
            },
            PROBE => Self::Probe {
                nonce: map.required(1)?.uint()?,
                id: map.optional(2)?.map(id).transpose()?,
            },
            PROBE_REPLY => Self::ProbeReply {
                nonce: map.required(1)?.uint()?,
                at: time(map.required(2)?, "at")?,
            },
            REFUSE => Self::Refuse {
                refs: RefRange::read_all(map.required(1)?, 0)?,
                code: RefuseCode::read(map.required(2)?)?,
                retry_after_ms: map.required(3)?.uint()?,
                text: Reason::read(map.required(4)?)?,
            },
            BEST_EFFORT => Self::BestEffort { items: list(map.required(1)?, "items", SOME, item)? },
            other => {
                return Err(CborError::invalid("frame", format_args!("{other} is no frame type")));
            }
        };
        map.end()?;
        Ok(frame)
    }
}

impl RefuseCode {
    pub(crate) const fn code(self) -> u64 {
        match self {
            Self::Overloaded => 0,
            Self::Unauthorized => 1,
            Self::Unsupported => 2,
            Self::Malformed => 3,
            Self::WrongTarget => 4,
            Self::Stopping => 5,
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, CborError> {
        match reader.uint()? {
            0 => Ok(Self::Overloaded),
            1 => Ok(Self::Unauthorized),
            2 => Ok(Self::Unsupported),
            3 => Ok(Self::Malformed),
            4 => Ok(Self::WrongTarget),
            5 => Ok(Self::Stopping),
            code => Err(CborError::invalid("code", format_args!("{code} is no refusal"))),
        }
    }
}

fn write_list<T>(to: &mut Writer, items: &[T], mut item: impl FnMut(&mut Writer, &T)) {
    to.array(items.len());
    items.iter().for_each(|one| item(to, one));
}

fn write_id(to: &mut Writer, id: &ObligationId) {
    to.text(id.as_str());
}

fn read_limits(reader: &mut Reader<'_>) -> Result<HelloLimits, CborError> {
    let mut map = Members::open(reader)?;
    let limits = HelloLimits {
        frame_len_max: map.required(0)?.uint()?,
        in_flight_max: map.required(1)?.uint()?,
        datagram_len_max: map.required(2)?.uint()?,
    };
    map.end()?;
    Ok(limits)
}

fn read_feature(reader: &mut Reader<'_>) -> Result<String, CborError> {
    let feature = reader.text()?;
    at_most("feature", feature.len(), ID_LEN_MAX)?;
    Ok(feature.to_owned())
}

/// One encoded obligation, as a slice of the frame it came in.
fn read_item(reader: &mut Reader<'_>, source: &Bytes) -> Result<Bytes, CborError> {
    let len = reader.bytes()?.len();
    at_most("obligation", len, OBLIGATION_LEN_MAX)?;
    let end = reader.offset();
    Ok(source.slice(end - len..end))
}
