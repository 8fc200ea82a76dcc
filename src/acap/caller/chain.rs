//! Our own copy of the chains with one callee, and what of them the callee has not taken yet.

use super::super::book::{json, key, number};
use super::super::restrict::{Due, Word, name_of};
use super::policy::Line;
use crate::a2a::log::Disk;
use crate::store::{SideTable, SideWrite};
use proto::consent::{
    AdherenceEvent, ClaimId, ConsentRecord, ContentHash, Lifecycle, Pair, PolicyVersion,
    PrincipalId, Recovery, Side, Trigger, Triggers,
};
use proto::id::AgentId;
use proto::store::ReadError;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Events read at a time when a trail is recovered.
const RECOVER_COUNT: usize = 1_024;
/// Where policies of a callee are kept: the latest, and the one that was consented to last.
pub(super) const LATEST: u64 = 0;
pub(super) const AGREED: u64 = 1;
/// Documents that one callee refused; the oldest make room.
const REFUSED_MAX: u64 = 10_000;

/// Something that the callee has not taken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Entry {
    Record(u64),
    Event(u64),
}

impl Entry {
    pub(super) fn table(self) -> (SideTable, u64) {
        match self {
            Self::Record(number) => (SideTable::CallerRecord, number),
            Self::Event(number) => (SideTable::CallerEvent, number),
        }
    }
}

/// What a person has to decide.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Question {
    /// Of which policy.
    pub(super) version: PolicyVersion,
    pub(super) hash: ContentHash,
    pub(super) capability: Option<ContentHash>,
    pub(super) principal: Option<PrincipalId>,
    /// Why.
    pub(super) why: String,
    /// Claims it is about.
    pub(super) claims: Vec<ClaimId>,
    /// What was answered.
    pub(super) answer: Option<bool>,
    /// By which it is answered in the inbox.
    #[serde(default)]
    pub(super) id: String,
    /// When it was asked, and until when it may be answered; unix milliseconds.
    #[serde(default)]
    pub(super) at_ms: u64,
    #[serde(default)]
    pub(super) deadline_at_ms: u64,
    /// Whether the webhook has taken it.
    #[serde(default)]
    pub(super) told: bool,
}

/// How far the chains are. Written with each change of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) records: u64,
    pub(super) events: u64,
    /// Number of the first event under the last record.
    pub(super) first_event: u64,
    /// Why the last record holds no more.
    pub(super) ended: Option<Trigger>,
    /// What the callee has not taken yet, the oldest first.
    pub(super) outbox: VecDeque<Entry>,
    /// How many documents it refused.
    pub(super) refused: u64,
    pub(super) question: Option<Question>,
    /// What the callee's copy has that ours has not: nothing goes on until it is settled.
    pub(super) diverged: Option<String>,
    /// The obligation that withdrew the last record.
    #[serde(default)]
    pub(super) withdrawn: Option<String>,
    /// By which obligations consent was or was not withdrawn when the last record was made.
    #[serde(default)]
    pub(super) decided: Option<Vec<String>>,
    /// Obligations to be issued before anything of the outbox is sent; one for a claim at most.
    #[serde(default)]
    pub(super) due: VecDeque<Due>,
    /// Claims, and "" for the record, that obligations of ours restrict.
    #[serde(default)]
    pub(super) restricted: BTreeSet<String>,
}

impl Kept {
    /// Has an obligation issued, and no other of that claim any more.
    pub(super) fn tell(&mut self, due: Due) {
        let name = name_of(due.claim.as_ref()).to_owned();
        match due.word {
            Word::Grant => self.restricted.remove(&name),
            _ => self.restricted.insert(name),
        };
        self.due.retain(|other| other.claim != due.claim);
        self.due.push_back(due);
    }
}

/// What is known of one callee.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) machine: Lifecycle,
    pub(super) head: Option<ConsentRecord>,
    pub(super) last: Option<AdherenceEvent>,
    pub(super) kept: Kept,
    pub(super) line: Option<Arc<Line>>,
    /// The policy that was consented to last.
    pub(super) agreed: Option<Arc<Line>>,
    /// Claims of each skill, as the card says; none, if there is no card.
    pub(super) skills: Option<Arc<BTreeMap<String, Vec<ClaimId>>>>,
}

/// What was refused, and why.
#[derive(Debug, Serialize, Deserialize)]
struct RefusedEntry {
    document: serde_json::Value,
    why: String,
}

impl Chain {
    /// As it was left.
    pub(super) fn recover(disk: &Disk, pair: &Pair) -> Result<Self, ReadError> {
        let callee = &pair.callee;
        let kept = disk.get(SideTable::CallerPair, &key(callee, 0))?;
        let kept = kept.map(|value| disk.parse(&value)).transpose()?.unwrap_or_default();
        let line = |at: u64| -> Result<_, ReadError> {
            let value = disk.get(SideTable::CallerPolicy, &key(callee, at))?;
            Ok(value.map(|value| disk.parse::<Line>(&value)).transpose()?.map(Arc::new))
        };
        let chain = Self::read(disk, pair, kept, line(LATEST)?)?;
        Ok(Self { agreed: line(AGREED)?, ..chain })
    }

    /// The chains of which `kept` says how far they are.
    fn read(
        disk: &Disk,
        pair: &Pair,
        kept: Kept,
        line: Option<Arc<Line>>,
    ) -> Result<Self, ReadError> {
        let callee = &pair.callee;
        let missing = |what: &str| ReadError(format!("our {what} for {callee} is missing").into());
        let head: Option<ConsentRecord> = match kept.records.checked_sub(1) {
            None => None,
            Some(at) => {
                let value = disk.get(SideTable::CallerRecord, &key(callee, at))?;
                Some(disk.parse(&value.ok_or_else(|| missing("consent record"))?)?)
            }
        };
        let last: Option<AdherenceEvent> = match kept.events.checked_sub(1) {
            None => None,
            Some(at) => {
                let value = disk.get(SideTable::CallerEvent, &key(callee, at))?;
                Some(disk.parse(&value.ok_or_else(|| missing("adherence event"))?)?)
            }
        };
        let from = Recovery {
            records: kept.records,
            head: head.as_ref(),
            ended: kept.ended,
            events: kept.events,
            last: last.as_ref(),
        };
        let mut machine = Lifecycle::recover(pair.clone(), Side::Caller, Triggers::ALL, from);
        let mut next = kept.first_event;
        while next < kept.events {
            let (from, to) = (key(callee, next), key(callee, kept.events));
            let page = disk.range(SideTable::CallerEvent, &from, Some(&to), RECOVER_COUNT)?;
            let Some((at, _)) = page.last() else { return Err(missing("adherence event")) };
            next = number(at) + 1;
            for (_, value) in &page {
                machine.replay(&disk.parse(value)?);
            }
        }
        Ok(Self { machine, head, last, kept, line, agreed: None, skills: None })
    }

    /// How far it is, to be written with what changed it.
    pub(super) fn write(&self, callee: &AgentId) -> SideWrite {
        let table = SideTable::CallerPair;
        SideWrite { table, key: key(callee, 0), value: Some(json(&self.kept)) }
    }

    /// The chains without what the callee refuses, and all that rests on it: those documents stay, in a
    /// place of their own. The numbers they had are given anew.
    pub(super) fn without_outbox(
        &self,
        disk: &Disk,
        pair: &Pair,
        why: &str,
    ) -> Result<(Self, Vec<SideWrite>), ReadError> {
        let callee = &pair.callee;
        let (mut kept, mut writes) = (self.kept.clone(), Vec::new());
        for entry in std::mem::take(&mut kept.outbox) {
            let (table, at) = entry.table();
            let at = key(callee, at);
            if let Some(value) = disk.get(table, &at)? {
                let refused = RefusedEntry { document: disk.parse(&value)?, why: why.to_owned() };
                let key = key(callee, kept.refused % REFUSED_MAX);
                let value = Some(json(&refused));
                writes.push(SideWrite { table: SideTable::CallerRefused, key, value });
                kept.refused += 1;
            }
            writes.push(SideWrite { table, key: at, value: None });
            match entry {
                Entry::Record(number) => kept.records = kept.records.min(number),
                Entry::Event(number) => kept.events = kept.events.min(number),
            }
        }
        // Under the record that is the last now, as far as its events are there.
        let mut first = kept.events;
        if let Some(at) = kept.records.checked_sub(1)
            && let Some(value) = disk.get(SideTable::CallerRecord, &key(callee, at))?
        {
            let head: ConsentRecord = disk.parse(&value)?;
            while let Some(at) = first.checked_sub(1) {
                let Some(value) = disk.get(SideTable::CallerEvent, &key(callee, at))? else {
                    break;
                };
                let event: AdherenceEvent = disk.parse(&value)?;
                if event.consent_record_id != head.record_id {
                    break;
                }
                first = at;
            }
        }
        kept.first_event = first;
        Ok((self.again(disk, pair, kept)?, writes))
    }

    /// The same, with consent ended for a reason that the machine does not see.
    pub(super) fn ended(&self, disk: &Disk, pair: &Pair, why: Trigger) -> Result<Self, ReadError> {
        let kept = Kept { ended: Some(why), ..self.kept.clone() };
        self.again(disk, pair, kept)
    }

    /// The chains as they are after a change on the disk.
    fn again(&self, disk: &Disk, pair: &Pair, kept: Kept) -> Result<Self, ReadError> {
        let chain = Self::read(disk, pair, kept, self.line.clone())?;
        Ok(Self { agreed: self.agreed.clone(), skills: self.skills.clone(), ..chain })
    }
}
