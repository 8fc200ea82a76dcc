//! The two chains of one caller, and how far they are: in memory what decides, on the disk all of it.

use super::line::AcapError;
use super::push::Hook;
use crate::a2a::log::{Disk, Log};
use crate::store::{SideTable, SideWrite};
use proto::consent::{
    AdherenceDecision, AdherenceEvent, ClaimId, ConsentDecision, ConsentRecord, ContentHash,
    EventId, Lifecycle, Pair, PolicyVersion, PrincipalId, Recovery, Side, Stamp, Trigger, Triggers,
};
use proto::id::AgentId;
use proto::store::ReadError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Entries read at a time when the chains are recovered.
const RECOVER_COUNT: usize = 1_024;
/// Bytes of those.
const RECOVER_LEN_MAX: usize = 4 * 1024 * 1024;

/// How far the chains of a caller are, and what was told of it. Written with each change of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) records: u64,
    pub(super) events: u64,
    /// Number of the first event under the last record.
    pub(super) first_event: u64,
    pub(super) attempts: u64,
    /// Number of the first attempt under the last record.
    pub(super) first_attempt: u64,
    /// The last event of ours, and when it was.
    pub(super) last_attempt: Option<(EventId, Stamp)>,
    /// Why the last record holds no more.
    pub(super) ended: Option<Trigger>,
    /// The obligation that withdrew it.
    pub(super) withdrawn: Option<String>,
    /// What the caller last said it is, and for whom it acts.
    pub(super) capability: Option<ContentHash>,
    pub(super) principal: Option<PrincipalId>,
    /// Obligations by which consent stood as it did when the last record was taken.
    #[serde(default)]
    pub(super) decided: Option<[Option<String>; 2]>,
    /// Whom to tell of changes of the policy, and the version it heard of last.
    #[serde(default)]
    pub(super) hook: Option<Hook>,
    #[serde(default)]
    pub(super) hook_told: Option<PolicyVersion>,
    /// Claims whose last permit a call has used up, where it is for one.
    #[serde(default)]
    pub(super) used: BTreeSet<ClaimId>,
    /// Bytes of records and events.
    #[serde(default)]
    pub(super) len: u64,
    /// How many records and bytes there were when the operator let the chain go on: limits count from there.
    #[serde(default)]
    pub(super) renewed: Renewed,
    /// How far the chains are anchored.
    #[serde(default)]
    pub(super) anchored: AnchoredTo,
    /// Obligations by which the caller took back what a later document answers: by claim, and by "" for the
    /// record.
    #[serde(default)]
    pub(super) heard: BTreeMap<String, String>,
}

/// From where limits count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Renewed {
    pub(super) records: u64,
    pub(super) len: u64,
}

/// How many records and events are in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AnchoredTo {
    pub(super) records: u64,
    pub(super) events: u64,
}

/// What is known of one caller.
#[derive(Clone, Debug)]
pub(super) struct Book {
    pub(super) machine: Lifecycle,
    pub(super) head: Option<ConsentRecord>,
    pub(super) last: Option<AdherenceEvent>,
    pub(super) kept: Kept,
}

/// A call that came to the gate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attempt {
    /// When.
    pub(super) at: Stamp,
    /// What was called.
    pub(super) call: String,
    /// What the gate did.
    pub(super) decision: AdherenceDecision,
    /// Why.
    pub(super) why: String,
    /// Claims in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) blocking: Vec<String>,
    /// The event that puts it on record. None, if there is no record it could rest on (S3).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) event: Option<AdherenceEvent>,
}

/// The beginning of all keys of a caller.
fn prefix(caller: &AgentId) -> Vec<u8> {
    let bytes = caller.as_str().as_bytes();
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX); // an id has 256 bytes at most
    [&len.to_be_bytes(), bytes].concat()
}

/// The key of a record, an event or an attempt.
pub(super) fn key(caller: &AgentId, number: u64) -> Vec<u8> {
    [prefix(caller), number.to_be_bytes().to_vec()].concat()
}

/// What a key is of.
pub(super) fn number(key: &[u8]) -> u64 {
    key.last_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// The key of an id.
pub(super) fn id_key(caller: &AgentId, kind: &str, id: &str) -> Vec<u8> {
    [prefix(caller), kind.as_bytes().to_vec(), id.as_bytes().to_vec()].concat()
}

/// A value of ours. Plain data with text names: it cannot fail.
pub(super) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

impl Book {
    /// Of a caller that has nothing to do with us yet.
    pub(super) fn new(pair: Pair, always: Triggers) -> Self {
        let machine = Lifecycle::new(pair, Side::Callee, always);
        Self { machine, head: None, last: None, kept: Kept::default() }
    }

    /// How far it is, to be written with what changed it.
    pub(super) fn write(&self, caller: &AgentId) -> SideWrite {
        let (table, key) = (SideTable::AcapPair, prefix(caller));
        SideWrite { table, key, value: Some(json(&self.kept)) }
    }

    /// The last record, if anything may rest on it.
    pub(super) fn anchor(&self) -> Option<&ConsentRecord> {
        self.head.as_ref().filter(|head| head.decision != ConsentDecision::Rejected)
    }

    /// Ends consent for a reason that the machine does not see: by an obligation, unless that was lifted since.
    pub(super) fn end(&mut self, pair: Pair, always: Triggers, obligation: Option<String>) {
        // Of the paper's triggers it is that of the principal: whom it acts for does not want it.
        self.kept.ended = Some(Trigger::PrincipalChange);
        self.kept.withdrawn = obligation;
        let from = Recovery {
            records: self.kept.records,
            head: self.head.as_ref(),
            ended: self.kept.ended,
            events: self.kept.events,
            last: self.last.as_ref(),
        };
        self.machine = Lifecycle::recover(pair, Side::Callee, always, from);
    }
}

/// The callers there are, as they were left.
pub(super) fn recover(
    log: &Log,
    callee: &AgentId,
    always: Triggers,
) -> Result<Vec<(AgentId, Book)>, AcapError> {
    let (disk, mut books, mut from) = (log.disk(), Vec::new(), Vec::new());
    loop {
        let page = disk.range(SideTable::AcapPair, &from, None, RECOVER_COUNT)?;
        let Some((last, _)) = page.last() else { return Ok(books) };
        from = [last.as_slice(), &[0]].concat();
        for (key, value) in &page {
            let text = key.get(2..).and_then(|bytes| std::str::from_utf8(bytes).ok());
            let caller = text.and_then(|text| AgentId::new(text).ok());
            let damaged = || ReadError("a caller of the chains of consent is damaged".into());
            let caller = caller.ok_or_else(damaged)?;
            let kept: Kept = disk.parse(value)?;
            let pair = Pair { caller: caller.clone(), callee: callee.clone() };
            let book = recover_one(disk, &caller, pair, always, kept)?;
            books.push((caller, book));
        }
    }
}

fn recover_one(
    disk: &Disk,
    caller: &AgentId,
    pair: Pair,
    always: Triggers,
    kept: Kept,
) -> Result<Book, AcapError> {
    let missing = |what| ReadError(format!("{what} of {caller} is missing").into());
    let head: Option<ConsentRecord> = match kept.records.checked_sub(1) {
        None => None,
        Some(at) => {
            let value = disk.get(SideTable::AcapRecord, &key(caller, at))?;
            Some(disk.parse(&value.ok_or_else(|| missing("the last consent record"))?)?)
        }
    };
    let last: Option<AdherenceEvent> = match kept.events.checked_sub(1) {
        None => None,
        Some(at) => {
            let value = disk.get(SideTable::AcapEvent, &key(caller, at))?;
            Some(disk.parse(&value.ok_or_else(|| missing("the last adherence event"))?)?)
        }
    };
    let from = Recovery {
        records: kept.records,
        head: head.as_ref(),
        ended: kept.ended,
        events: kept.events,
        last: last.as_ref(),
    };
    let mut machine = Lifecycle::recover(pair, Side::Callee, always, from);
    let mut next = kept.first_event;
    while next < kept.events {
        let (from, to) = (key(caller, next), key(caller, kept.events));
        let (table, count) = (SideTable::AcapEvent, RECOVER_COUNT);
        let page = disk.range_within(table, &from, Some(&to), count, RECOVER_LEN_MAX)?;
        if page.is_empty() {
            return Err(missing("an adherence event").into());
        }
        for (_, value) in &page {
            machine.replay(&disk.parse(value)?);
        }
        next += page.len() as u64;
    }
    Ok(Book { machine, head, last, kept })
}
