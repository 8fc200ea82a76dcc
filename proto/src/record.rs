//! Durable records: key and value layouts of each [`Table`](crate::store::Table).
//!
//! Hot records are CBOR arrays, written and read by hand; the rare ones that people read
//! (escalations, reconciliation items) are JSON. Times are unix milliseconds.

use crate::ack::{AckStatus, Reason};
use crate::backoff::Backoff;
use crate::cbor::{CborError, Reader, Writer};
use crate::id::{AgentId, GovernedKey, Kind, ObligationId};
use crate::profile::OnDecline;
use crate::safe_action::SafeAction;
use crate::time::Time;
use crate::weight::Weight;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Key of a numbered record: big-endian, so that order is issue order.
#[must_use]
pub fn num_key(num: u64) -> Bytes {
    Bytes::copy_from_slice(&num.to_be_bytes())
}

/// The number in a key made by [`num_key`].
#[must_use]
pub fn key_num(key: &[u8]) -> Option<u64> {
    key.get(..8)?.try_into().ok().map(u64::from_be_bytes)
}

/// Key made of two numbers.
#[must_use]
pub fn pair_key(first: u64, second: u64) -> Bytes {
    let mut key = Vec::with_capacity(16);
    key.extend_from_slice(&first.to_be_bytes());
    key.extend_from_slice(&second.to_be_bytes());
    key.into()
}

/// Key of the ledger and of intents: the issuer owns its id space, so one issuer cannot occupy
/// another's ids.
#[must_use]
pub fn issued_key(issuer: &AgentId, id: &ObligationId) -> Bytes {
    joined(&[issuer.as_str(), id.as_str()])
}

/// Issuer and id of a key made by [`issued_key`].
#[must_use]
pub fn split_issued_key(key: &[u8]) -> Option<(AgentId, ObligationId)> {
    let text = std::str::from_utf8(key).ok()?;
    let (issuer, id) = text.split_once('\0')?;
    Some((AgentId::new(issuer).ok()?, ObligationId::new(id).ok()?))
}

fn joined(parts: &[&str]) -> Bytes {
    let mut key = Vec::with_capacity(parts.iter().map(|part| part.len() + 1).sum());
    for (n, part) in parts.iter().enumerate() {
        if n > 0 {
            key.push(0); // names hold no control characters, so 0 separates
        }
        key.extend_from_slice(part.as_bytes());
    }
    key.into()
}

/// Whose state a cell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Ours as principal: what we let the agent named do. Set at issue and by `safe(O)`.
    Principal,
    /// Ours as receiver: what the principal named lets us do. Set by applying obligations.
    Receiver,
}

/// Key of a cell. The kind is part of it: a token and a scope of one name are two states.
#[must_use]
pub fn cell_key(role: Role, agent: &AgentId, kind: &Kind, key: &GovernedKey) -> Bytes {
    joined(&[role_prefix(role), agent.as_str(), kind.as_str(), key.as_str()])
}

/// The text a cell key of `role` begins with.
#[must_use]
pub const fn role_prefix(role: Role) -> &'static str {
    match role {
        Role::Principal => "p",
        Role::Receiver => "r",
    }
}

/// Role, agent, kind and governed key of a key made by [`cell_key`].
#[must_use]
pub fn split_cell_key(key: &[u8]) -> Option<(Role, AgentId, Kind, GovernedKey)> {
    let mut parts = std::str::from_utf8(key).ok()?.splitn(4, '\0');
    let role = match parts.next()? {
        "p" => Role::Principal,
        "r" => Role::Receiver,
        _ => return None,
    };
    let agent = AgentId::new(parts.next()?).ok()?;
    Some((role, agent, Kind::new(parts.next()?).ok()?, GovernedKey::new(parts.next()?).ok()?))
}

/// State under one governed key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The state.
    pub value: CellValue,
    /// Highest sequence applied (supersession guard), for set-semantic state.
    pub sequence: Option<u64>,
    /// The obligation that set it last.
    pub obligation_id: ObligationId,
    /// Its transfer number, when this node issued it; 0 otherwise.
    pub num: u64,
    /// When it was set.
    pub at: Time,
}

/// What a cell holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellValue {
    /// An authorization.
    Authorization {
        /// `false`: withheld.
        granted: bool,
    },
    /// A weight.
    Weight(Weight),
}

impl Cell {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(32 + self.obligation_id.as_str().len());
        w.array(6);
        match self.value {
            CellValue::Authorization { granted } => w.uint(0).bool(granted),
            CellValue::Weight(weight) => w.uint(1).int(weight.nanos()),
        };
        option(&mut w, self.sequence);
        w.text(self.obligation_id.as_str()).uint(self.num).uint(self.at.as_ms());
        w.into_bytes()
    }

    /// Reads the record.
    ///
    /// # Errors
    /// [`CborError`] for damaged bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        let mut r = Reader::new(bytes);
        fixed(&mut r, 6)?;
        let value = match r.uint()? {
            0 => CellValue::Authorization { granted: r.bool()? },
            1 => CellValue::Weight(Weight::from_nanos(r.int()?)),
            other => return Err(CborError::invalid("cell", format!("value type {other}"))),
        };
        let cell = Self {
            value,
            sequence: read_option(&mut r)?,
            obligation_id: name(&mut r, "obligation_id", ObligationId::new)?,
            num: r.uint()?,
            at: Time::from_ms(r.uint()?),
        };
        r.end()?;
        Ok(cell)
    }
}

/// AB-1: one pending transfer. The deadline inside the obligation is absolute, so no restart
/// extends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The retry schedule it was issued with.
    pub backoff: Backoff,
    /// What a decline does.
    pub on_decline: OnDecline,
    /// The obligation exactly as it goes on the wire.
    pub obligation: Bytes,
}

impl Pending {
    /// Room before an obligation for the key and the rest of its record.
    pub(crate) const ROOM: usize = 8 + 28;

    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(Self::ROOM + self.obligation.len());
        Self::head(&mut w, self.backoff, self.on_decline, self.obligation.len());
        w.raw(&self.obligation);
        w.into_bytes()
    }

    /// Key and value of a new record and the obligation in it, all parts of one allocation: `bytes`
    /// is the encoded obligation after [`Self::ROOM`] bytes.
    pub(crate) fn around(
        num: u64,
        backoff: Backoff,
        on_decline: OnDecline,
        mut bytes: Vec<u8>,
    ) -> (Bytes, Bytes, Bytes) {
        let mut front = Writer::with_capacity(Self::ROOM);
        front.raw(&num.to_be_bytes());
        Self::head(&mut front, backoff, on_decline, bytes.len().saturating_sub(Self::ROOM));
        let from = Self::ROOM.saturating_sub(front.len());
        debug_assert!(front.len() <= Self::ROOM, "no head is longer than its room");
        if let Some(room) = bytes.get_mut(from..Self::ROOM) {
            room.copy_from_slice(&front.into_vec());
        }
        let mut key = Bytes::from(bytes).split_off(from);
        let value = key.split_off(8);
        let obligation = value.slice(Self::ROOM - from - 8..);
        (key, value, obligation)
    }

    fn head(w: &mut Writer, backoff: Backoff, on_decline: OnDecline, obligation_len: usize) {
        w.array(5)
            .uint(backoff.base_ms)
            .uint(backoff.cap_ms)
            .uint(backoff.jitter_permille.into())
            .bool(on_decline == OnDecline::Surface)
            .bytes_head(obligation_len);
    }

    /// Reads the record; the obligation is a slice of `bytes`.
    ///
    /// # Errors
    /// [`CborError`] for damaged bytes.
    pub fn decode(bytes: &Bytes) -> Result<Self, CborError> {
        let mut r = Reader::new(bytes);
        fixed(&mut r, 5)?;
        let backoff = Backoff {
            base_ms: r.uint()?,
            cap_ms: r.uint()?,
            jitter_permille: u16::try_from(r.uint()?)
                .map_err(|e| CborError::invalid("jitter", e))?,
        };
        let on_decline = if r.bool()? { OnDecline::Surface } else { OnDecline::Apply };
        let obligation = bytes.slice_ref(r.bytes()?);
        r.end()?;
        Ok(Self { backoff, on_decline, obligation })
    }
}

/// Retries made of a pending transfer, and what the receiver said so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// Retries made.
    pub retries: u32,
    /// Whether the receiver deferred it.
    pub deferred: bool,
}

impl Attempt {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(8);
        w.array(2).uint(self.retries.into()).bool(self.deferred);
        w.into_bytes()
    }

    /// Reads the record.
    ///
    /// # Errors
    /// [`CborError`] for damaged bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        let mut r = Reader::new(bytes);
        fixed(&mut r, 2)?;
        let retries = u32::try_from(r.uint()?).map_err(|e| CborError::invalid("retries", e))?;
        let attempt = Self { retries, deferred: r.bool()? };
        r.end()?;
        Ok(attempt)
    }
}

/// How a transfer ended. A terminal is final (TS-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Terminal {
    /// The receiver attested application.
    Applied,
    /// The receiver refused, accountably, or a newer obligation of the key superseded it.
    Declined,
    /// The deadline or the retry budget ended it: `safe(O)` applied, escalation filed (AB-4).
    Escalated,
}

/// One terminal outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub terminal: Terminal,
    /// Transfer number.
    pub num: u64,
    /// Kind.
    pub kind: Kind,
    /// Target.
    pub target: AgentId,
    /// When the transfer ended here.
    pub at: Time,
    /// When it was issued.
    pub created_at: Time,
    /// Its absolute deadline.
    pub deadline_at: Time,
    /// Retries made.
    pub retries: u32,
    /// Its sequence.
    pub sequence: Option<u64>,
    /// Digest of its content, to recognise an id issued again.
    pub digest: u64,
    /// Why it was declined or escalated.
    pub reason: Option<Reason>,
    /// When an `applied` came in after the escalation, if one did.
    pub late_applied_at: Option<Time>,
}

impl Outcome {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        self.encode_after(&[]).1
    }

    /// `key` and the record's bytes, in one allocation.
    pub(crate) fn encode_after(&self, key: &[u8]) -> (Bytes, Bytes) {
        let names = self.kind.as_str().len() + self.target.as_str().len();
        let mut w = Writer::with_capacity(key.len() + 96 + names);
        w.raw(key)
            .array(12)
            .uint(match self.terminal {
                Terminal::Applied => 0,
                Terminal::Declined => 1,
                Terminal::Escalated => 2,
            })
            .uint(self.num)
            .text(self.kind.as_str())
            .text(self.target.as_str())
            .uint(self.at.as_ms())
            .uint(self.created_at.as_ms())
            .uint(self.deadline_at.as_ms())
            .uint(self.retries.into());
        option(&mut w, self.sequence);
        w.uint(self.digest);
        reason(&mut w, self.reason.as_ref());
        option(&mut w, self.late_applied_at.map(Time::as_ms));
        let mut bytes = w.into_bytes();
        let record = bytes.split_off(key.len());
        (bytes, record)
    }

    /// Reads the record.
    ///
    /// # Errors
    /// [`CborError`] for damaged bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        let mut r = Reader::new(bytes);
        fixed(&mut r, 12)?;
        let terminal = match r.uint()? {
            0 => Terminal::Applied,
            1 => Terminal::Declined,
            2 => Terminal::Escalated,
            other => return Err(CborError::invalid("outcome", format!("terminal {other}"))),
        };
        let outcome = Self {
            terminal,
            num: r.uint()?,
            kind: name(&mut r, "kind", Kind::new)?,
            target: name(&mut r, "target", AgentId::new)?,
            at: Time::from_ms(r.uint()?),
            created_at: Time::from_ms(r.uint()?),
            deadline_at: Time::from_ms(r.uint()?),
            retries: u32::try_from(r.uint()?).map_err(|e| CborError::invalid("retries", e))?,
            sequence: read_option(&mut r)?,
            digest: r.uint()?,
            reason: read_reason(&mut r)?,
            late_applied_at: read_option(&mut r)?.map(Time::from_ms),
        };
        r.end()?;
        Ok(outcome)
    }
}

/// Several keys in one value: ids of outcomes that ended in one commit, or ledger keys that
/// expire in one minute. `total` counts all keys logged so far.
#[must_use]
pub fn encode_keys(total: u64, keys: &[Bytes]) -> Bytes {
    let mut w = Writer::with_capacity(16 + keys.iter().map(|key| key.len() + 3).sum::<usize>());
    w.array(2).uint(total).array(keys.len());
    for key in keys {
        w.bytes(key);
    }
    w.into_bytes()
}

/// Reads what [`encode_keys`] wrote.
///
/// # Errors
/// [`CborError`] for damaged bytes.
pub fn decode_keys(bytes: &Bytes) -> Result<(u64, Vec<Bytes>), CborError> {
    let mut r = Reader::new(bytes);
    fixed(&mut r, 2)?;
    let total = r.uint()?;
    let len = r.array(bytes.len())?;
    let mut keys = Vec::with_capacity(len.min(4096));
    for _ in 0..len {
        keys.push(bytes.slice_ref(r.bytes()?));
    }
    r.end()?;
    Ok((total, keys))
}

/// AB-3: what a receiver did with an obligation. Kept until its deadline and the allowed clock
/// skew have passed; a redelivery after that is declined as expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// Applied or declined.
    pub status: AckStatus,
    /// When.
    pub acked_at: Time,
    /// The obligation's absolute deadline.
    pub deadline_at: Time,
    /// Digest of its content, to recognise an id reused for something else.
    pub digest: u64,
    /// Why it was declined.
    pub reason: Option<Reason>,
}

impl Ledger {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(40);
        w.array(5)
            .bool(self.status == AckStatus::Applied)
            .uint(self.acked_at.as_ms())
            .uint(self.deadline_at.as_ms())
            .uint(self.digest);
        reason(&mut w, self.reason.as_ref());
        w.into_bytes()
    }

    /// Reads the record.
    ///
    /// # Errors
    /// [`CborError`] for damaged bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        let mut r = Reader::new(bytes);
        fixed(&mut r, 5)?;
        let status = if r.bool()? { AckStatus::Applied } else { AckStatus::Declined };
        let ledger = Self {
            status,
            acked_at: Time::from_ms(r.uint()?),
            deadline_at: Time::from_ms(r.uint()?),
            digest: r.uint()?,
            reason: read_reason(&mut r)?,
        };
        r.end()?;
        Ok(ledger)
    }
}

/// AB-3, external effects: an effect that was, or is about to be, asked of an external handler.
/// Durable before the call, so that a crash in between is known and settled, never guessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// When the offer was taken.
    pub at: Time,
    /// What is known of the effect.
    pub state: IntentState,
    /// The obligation as it came.
    pub obligation: Bytes,
}

/// What is known of an effect asked of an external handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntentState {
    /// The handler is, or was, being asked: the effect may have happened.
    Asked,
    /// The handler said that it has not happened yet, or was not reached.
    Deferred,
    /// Nobody could say; a person must.
    InDoubt,
}

impl IntentState {
    const fn code(self) -> u64 {
        match self {
            Self::Asked => 0,
            Self::Deferred => 1,
            Self::InDoubt => 2,
        }
    }

    fn from_code(code: u64) -> Result<Self, CborError> {
        match code {
            0 => Ok(Self::Asked),
            1 => Ok(Self::Deferred),
            2 => Ok(Self::InDoubt),
            other => Err(CborError::invalid("intent", format!("state {other}"))),
        }
    }
}

impl Intent {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(16 + self.obligation.len());
        w.array(3).uint(self.at.as_ms()).uint(self.state.code()).bytes(&self.obligation);
        w.into_bytes()
    }

    /// Reads the record; the obligation is a slice of `bytes`.
    ///
    /// # Errors
    /// [`CborError`] for damaged bytes.
    pub fn decode(bytes: &Bytes) -> Result<Self, CborError> {
        let mut r = Reader::new(bytes);
        fixed(&mut r, 3)?;
        let at = Time::from_ms(r.uint()?);
        let state = IntentState::from_code(r.uint()?)?;
        let obligation = bytes.slice_ref(r.bytes()?);
        r.end()?;
        Ok(Self { at, state, obligation })
    }
}

/// Why an obligation was escalated: what was known of the receiver when its time ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EscalationReason {
    /// No answer of any kind.
    Unreachable,
    /// The receiver answers, and defers.
    Deferring,
    /// The receiver refuses us: not authorized there.
    Unauthenticated,
    /// The receiver does not carry this kind, or cannot make sense of the obligation.
    Unsupported,
    /// The receiver is overloaded and refused every offer.
    Overloaded,
    /// The retry budget ended before the deadline.
    RetriesExhausted,
}

/// One escalation in the principal's inbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Escalation {
    /// The obligation.
    pub obligation_id: ObligationId,
    /// Its kind.
    pub kind: Kind,
    /// The agent that was not confirmed to have applied it.
    pub target: AgentId,
    /// Why.
    pub reason: EscalationReason,
    /// When it was escalated, unix milliseconds.
    pub at_ms: u64,
    /// Its absolute deadline, unix milliseconds.
    pub deadline_at_ms: u64,
    /// Retries made.
    pub retries: u32,
    /// `safe(O)`.
    pub safe_action: SafeAction,
    /// Whether `safe(O)` changed principal-side state; `false` when a newer decision of the same
    /// key stands (supersession guard) .
    pub safe_action_applied: bool,
    /// When the principal acknowledged it, unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acknowledged_at_ms: Option<u64>,
    /// When the webhook sink took it, unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at_ms: Option<u64>,
    /// Whether it would have been forgotten by now, had the principal seen it. It goes when
    /// acknowledged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outlived: bool,
}

/// What a person is asked to reconcile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReconcileKind {
    /// An `applied` came in after the escalation. It reopens nothing.
    LateApplied,
    /// Nobody could say whether an external effect happened.
    InDoubt,
    /// The receiver declined, and the profile leaves the decision to the principal.
    DeclineSurfaced,
    /// An external handler reported its effect only after the deadline.
    AppliedPastDeadline,
}

/// One reconciliation item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reconcile {
    /// What happened.
    pub kind: ReconcileKind,
    /// The obligation.
    pub obligation_id: ObligationId,
    /// The other party.
    pub agent: AgentId,
    /// When, unix milliseconds.
    pub at_ms: u64,
    /// Detail for people.
    pub detail: String,
    /// `safe(O)`, where the principal may choose to apply it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub safe_action: Option<SafeAction>,
    /// How it was resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<Resolution>,
    /// When it was resolved, unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_at_ms: Option<u64>,
}

/// A person's answer to a reconciliation item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// Seen; nothing to do.
    Noted,
    /// In doubt: the effect did happen.
    Applied,
    /// In doubt: the effect did not happen and will not be asked for again.
    NotApplied,
    /// Surfaced decline: apply `safe(O)` now.
    ApplySafe,
}

/// JSON value of a rare record.
pub(crate) fn to_json(record: &impl Serialize) -> Bytes {
    // Records are plain data with text keys: serialising them to memory cannot fail.
    serde_json::to_vec(record).unwrap_or_default().into()
}

fn fixed(r: &mut Reader<'_>, len: usize) -> Result<(), CborError> {
    match r.array(len)? {
        found if found == len => Ok(()),
        found => Err(CborError::invalid("record", format!("{found} members, not {len}"))),
    }
}

fn option(w: &mut Writer, value: Option<u64>) {
    match value {
        Some(value) => w.array(1).uint(value),
        None => w.array(0),
    };
}

fn read_option(r: &mut Reader<'_>) -> Result<Option<u64>, CborError> {
    match r.array(1)? {
        0 => Ok(None),
        _ => r.uint().map(Some),
    }
}

fn reason(w: &mut Writer, reason: Option<&Reason>) {
    w.text(reason.map_or("", Reason::as_str));
}

fn read_reason(r: &mut Reader<'_>) -> Result<Option<Reason>, CborError> {
    match r.text()? {
        "" => Ok(None),
        text => Ok(Some(Reason::new(text))),
    }
}

fn name<T>(
    r: &mut Reader<'_>,
    what: &'static str,
    make: impl FnOnce(&str) -> Result<T, crate::id::IdError>,
) -> Result<T, CborError> {
    make(r.text()?).map_err(|error| CborError::invalid(what, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_made_in_one_allocation_are_those_made_alone() {
        for (base_ms, jitter_permille, len) in [(1, 0, 0), (u64::MAX, u16::MAX, 70_000)] {
            let backoff = Backoff { base_ms, cap_ms: base_ms, jitter_permille };
            let obligation = Bytes::from(vec![7; len]);
            let room = [vec![0; Pending::ROOM], obligation.to_vec()].concat();
            let (key, value, inner) = Pending::around(9, backoff, OnDecline::Surface, room);
            assert_eq!((key, &inner), (num_key(9), &obligation));
            let pending = Pending { backoff, on_decline: OnDecline::Surface, obligation };
            assert_eq!(value, pending.encode());
            assert_eq!(Pending::decode(&value), Ok(pending));
        }
    }
}
