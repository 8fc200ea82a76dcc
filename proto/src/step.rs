//! What handling inputs asks for: writes, and outputs that stay locked until the writes are
//! durable (PS-1: disk before wire, by type).

use crate::ack::{AckRun, AckStatus, CustodyAck, Reason, RefRange};
use crate::custody::{IssueResult, OperatorResult};
use crate::event::Event;
use crate::frame::RefuseCode;
use crate::id::{AgentId, ObligationId};
use crate::store::{Read, ReadError, Table, Write};
use crate::time::Time;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One connection with an authenticated peer, numbered by the driver and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Ties an answer to the call that asked, for the local API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Something to do once the step's writes are durable.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Offer obligations on a session: item `n` has ref `first_ref + n`.
    Offers {
        /// Where.
        session: SessionId,
        /// Ref of the first item.
        first_ref: u64,
        /// Encoded obligations.
        items: Vec<Bytes>,
    },
    /// Acknowledge offers of a session.
    AckRuns {
        /// Where.
        session: SessionId,
        /// Range-coded acks.
        runs: Vec<AckRun>,
    },
    /// Acknowledge by id, on whatever session the peer has now.
    Acks {
        /// To whom.
        peer: AgentId,
        /// The acks.
        acks: Vec<CustodyAck>,
    },
    /// Refuse offers before any fsync. Discharges nothing.
    Refuse {
        /// Where.
        session: SessionId,
        /// Which offers.
        refs: Vec<RefRange>,
        /// Why.
        code: RefuseCode,
        /// When to come back, in milliseconds.
        retry_after_ms: u64,
        /// For people.
        text: Reason,
    },
    /// Answer a status query.
    Answer {
        /// Where.
        session: SessionId,
        /// The query's ref.
        query_ref: u64,
        /// What is known.
        acks: Vec<CustodyAck>,
        /// What is not.
        unknown: Vec<ObligationId>,
    },
    /// Answer a probe.
    ProbeReply {
        /// Where.
        session: SessionId,
        /// The probe's nonce.
        nonce: u64,
        /// Our time.
        at: Time,
    },
    /// Send without custody.
    BestEffort {
        /// To whom.
        peer: AgentId,
        /// Encoded obligations.
        items: Vec<Bytes>,
    },
    /// A retry to `peer` is due: if its session is silent, or there is none, try a fresh handshake.
    RetryDue {
        /// Whom.
        peer: AgentId,
    },
    /// Ask the external handler of its kind to apply an obligation. Its intent is durable.
    Decide {
        /// Who issued it.
        issuer: AgentId,
        /// Encoded obligation.
        obligation: Bytes,
        /// Whether an earlier call may have had its effect: ask for its status first.
        in_doubt: bool,
        /// Whether its last word was that the effect had not happened yet: one that has no status
        /// query may then be asked for the effect again.
        deferred: bool,
    },
    /// Hand a best-effort obligation to the external handler of its kind; nobody waits.
    Inform {
        /// Who issued it.
        issuer: AgentId,
        /// Encoded obligation.
        obligation: Bytes,
    },
    /// Answer of an issue call.
    Issued {
        /// Which call.
        ticket: Ticket,
        /// One result for each draft, in order.
        results: Vec<IssueResult>,
    },
    /// Answer of an operator call.
    Operated {
        /// Which call.
        ticket: Ticket,
        /// What came of it.
        result: OperatorResult,
    },
    /// Something the principal or an observer may want to know.
    Event(Event),
}

type AckKey = (SessionId, AckStatus, Option<Reason>);
type RefuseKey = (SessionId, RefuseCode);

/// Writes and locked outputs of one or more inputs.
#[must_use = "a dropped step loses an obligation"]
#[derive(Debug, Default)]
pub struct Step {
    generation: u64,
    sync: bool,
    writes: Vec<Write>,
    outputs: Vec<Output>,
    offers: BTreeMap<SessionId, (u64, Vec<Bytes>)>,
    acks: BTreeMap<AckKey, (Time, Vec<u64>)>,
    refusals: BTreeMap<RefuseKey, (u64, Reason, Vec<u64>)>,
    pub(crate) best_effort: BTreeMap<AgentId, Vec<Bytes>>,
    pub(crate) ended: Vec<Bytes>,
    pub(crate) expiring: BTreeMap<u64, Vec<Bytes>>,
    pub(crate) attested: Vec<Event>,
}

impl Step {
    /// An empty step with room for as much as `other` holds: under load one is like the next, and to
    /// grow costs copies.
    pub fn with_room_of(other: &Self) -> Self {
        Self {
            writes: Vec::with_capacity(other.writes.len()),
            outputs: Vec::with_capacity(other.outputs.len()),
            ended: Vec::with_capacity(other.ended.len()),
            ..Self::default()
        }
    }

    /// Whether there is nothing to write and nothing to send.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
            && self.outputs.is_empty()
            && self.offers.is_empty()
            && self.acks.is_empty()
            && self.refusals.is_empty()
            && self.best_effort.is_empty()
    }

    /// Whether a commit is needed before the outputs may leave.
    #[must_use]
    pub fn needs_commit(&self) -> bool {
        !self.writes.is_empty()
    }

    /// Takes what receivers have attested. It may be told before the commit: it rests on their
    /// disks, not on ours.
    pub fn take_attested(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.attested)
    }

    /// Whether the writes must survive a power loss before the outputs leave. Without it they may
    /// be written behind: nothing was promised of them (best effort).
    #[must_use]
    pub const fn needs_sync(&self) -> bool {
        self.sync
    }

    /// Writes so far.
    #[must_use]
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// Which commit this is; told back with [`Custody::committed`](crate::custody::Custody::committed).
    #[must_use]
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) const fn set_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// PS-1: makes the writes durable with `durable`, then hands the outputs over.
    ///
    /// # Errors
    /// Whatever `durable` returns. The outputs are gone then, and the process must end: memory
    /// that ran ahead of the disk is never used again (CR-1).
    //= PS-1
    pub fn commit<E>(
        self,
        durable: impl FnOnce(&[Write]) -> Result<(), E>,
    ) -> Result<Vec<Output>, E> {
        if !self.writes.is_empty() {
            durable(&self.writes)?;
        }
        Ok(self.release())
    }

    fn release(self) -> Vec<Output> {
        let Self { mut outputs, offers, acks, refusals, best_effort, .. } = self;
        outputs.extend(offers.into_iter().map(|(session, (first_ref, items))| Output::Offers {
            session,
            first_ref,
            items,
        }));
        let mut by_session: BTreeMap<SessionId, Vec<AckRun>> = BTreeMap::new();
        // An offer that came twice may have been answered twice, but a reference is in one run of a
        // frame: the most final answer, which is the first in order of status.
        let mut told: BTreeSet<(SessionId, u64)> = BTreeSet::new();
        let several = acks.len() > 1;
        for ((session, status, reason), (acked_at, mut refs)) in acks {
            if several {
                refs.retain(|reference| told.insert((session, *reference)));
            }
            if refs.is_empty() {
                continue;
            }
            let refs = RefRange::collect(refs);
            by_session.entry(session).or_default().push(AckRun { status, acked_at, reason, refs });
        }
        outputs.extend(
            by_session.into_iter().map(|(session, runs)| Output::AckRuns { session, runs }),
        );
        for ((session, code), (retry_after_ms, text, refs)) in refusals {
            let refs = RefRange::collect(refs);
            outputs.push(Output::Refuse { session, refs, code, retry_after_ms, text });
        }
        outputs.extend(
            best_effort.into_iter().map(|(peer, items)| Output::BestEffort { peer, items }),
        );
        outputs
    }

    pub(crate) fn output(&mut self, output: Output) {
        self.outputs.push(output);
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.outputs.push(Output::Event(event));
    }

    /// Adds an offer; refs of one session are handed out in order, so a step's run has no gap.
    pub(crate) fn offer(&mut self, session: SessionId, reference: u64, item: Bytes) {
        let (_, items) = self.offers.entry(session).or_insert((reference, Vec::new()));
        items.push(item);
    }

    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.offers.remove(&session);
    }

    pub(crate) fn ack(
        &mut self,
        session: SessionId,
        reference: u64,
        status: AckStatus,
        at: Time,
        reason: Option<Reason>,
    ) {
        let (latest, refs) = self.acks.entry((session, status, reason)).or_default();
        *latest = at.max(*latest);
        refs.push(reference);
    }

    pub(crate) fn refuse(
        &mut self,
        session: SessionId,
        reference: u64,
        code: RefuseCode,
        retry_after_ms: u64,
        text: Reason,
    ) {
        let (_, _, refs) = self
            .refusals
            .entry((session, code))
            .or_insert_with(|| (retry_after_ms, text, Vec::new()));
        refs.push(reference);
    }
}

/// Looked up and never iterated, so its order cannot show. Keys come from peers: the hash is keyed.
#[expect(clippy::disallowed_types, reason = "never iterated")]
type Map<V> = std::collections::HashMap<Bytes, V, foldhash::fast::RandomState>;

/// Cells remembered as they are, so that hot keys cost no read; all are dropped at the limit.
const CELLS_CACHED_MAX: usize = 16_384;

/// Writes that are not durable yet, so that the next inputs are handled as if they were. If their
/// commit fails the process ends, so nothing computed from them can get out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Staging {
    /// The newest value of each key, and the generation that wrote it.
    staged: [Map<(u64, Option<Bytes>)>; Table::ALL.len()],
    /// Keys the open generation wrote.
    open: Vec<(Table, Bytes)>,
    flying: VecDeque<(u64, Vec<(Table, Bytes)>)>,
    cells: Map<Option<Bytes>>,
    next_generation: u64,
    #[cfg(feature = "mutants")]
    pub(crate) mutant: Option<crate::mutant::Mutant>,
}

impl Staging {
    fn put(&mut self, table: Table, key: Bytes, value: Option<Bytes>) {
        if table == Table::Cell {
            self.remember(key.clone(), value.clone());
        }
        self.open.push((table, key.clone()));
        if let Some(staged) = self.staged.get_mut(table as usize) {
            staged.insert(key, (self.next_generation, value));
        }
    }

    fn get(&self, table: Table, key: &[u8]) -> Option<Option<Bytes>> {
        if table == Table::Cell
            && let Some(value) = self.cells.get(key)
        {
            return Some(value.clone());
        }
        let (_, value) = self.staged.get(table as usize)?.get(key)?;
        Some(value.clone())
    }

    fn remember(&mut self, key: Bytes, value: Option<Bytes>) {
        if self.cells.len() >= CELLS_CACHED_MAX {
            self.cells.clear();
        }
        self.cells.insert(key, value);
    }

    /// The generation that is open.
    pub(crate) const fn open_generation(&self) -> u64 {
        self.next_generation
    }

    /// Keys whose newest value is not durable yet.
    pub(crate) fn len(&self) -> usize {
        self.staged.iter().map(Map::len).sum()
    }

    /// Closes the open generation and returns its number.
    pub(crate) fn close(&mut self) -> u64 {
        let generation = self.next_generation;
        self.next_generation += 1;
        self.flying.push_back((generation, std::mem::take(&mut self.open)));
        generation
    }

    /// Drops what is durable by now.
    pub(crate) fn committed(&mut self, generation: u64) {
        while self.flying.front().is_some_and(|(front, _)| *front <= generation) {
            let Some((_, mut keys)) = self.flying.pop_front() else { return };
            for (table, key) in keys.drain(..) {
                let Some(staged) = self.staged.get_mut(table as usize) else { continue };
                if staged.get(&key).is_some_and(|(newest, _)| *newest <= generation) {
                    staged.remove(&key);
                }
            }
            if self.open.capacity() == 0 {
                self.open = keys; // its room is used again
            }
        }
    }
}

/// What a machine works with while it handles one input.
pub(crate) struct Ctx<'a> {
    pub(crate) now: Time,
    pub(crate) store: &'a dyn Read,
    pub(crate) staging: &'a mut Staging,
    pub(crate) step: &'a mut Step,
}

impl Ctx<'_> {
    pub(crate) fn get(&self, table: Table, key: &Bytes) -> Result<Option<Bytes>, ReadError> {
        debug_assert!(table.read_while_staged(), "{table:?} is not staged");
        #[cfg(feature = "mutants")]
        if self.is(crate::mutant::Mutant::OverlooksStaged) {
            return self.store.get(table, key);
        }
        match self.staging.get(table, key) {
            Some(value) => Ok(value),
            None => self.store.get(table, key),
        }
    }

    /// A cell, remembered for the next time.
    pub(crate) fn cell(&mut self, key: &Bytes) -> Result<Option<Bytes>, ReadError> {
        if let Some(value) = self.staging.get(Table::Cell, key) {
            return Ok(value);
        }
        let value = self.store.get(Table::Cell, key)?;
        self.staging.remember(key.clone(), value.clone());
        Ok(value)
    }

    pub(crate) fn put(&mut self, table: Table, key: Bytes, value: Bytes) {
        self.step.sync = true;
        self.write(table, key, Some(value));
    }

    /// Writes what no promise rests on.
    pub(crate) fn put_behind(&mut self, table: Table, key: Bytes, value: Bytes) {
        self.write(table, key, Some(value));
    }

    pub(crate) fn remove(&mut self, table: Table, key: Bytes) {
        self.step.sync = true;
        self.write(table, key, None);
    }

    fn write(&mut self, table: Table, key: Bytes, value: Option<Bytes>) {
        #[cfg(feature = "mutants")]
        if self.staging.skips(table, &key, value.as_ref()) {
            return;
        }
        if table.read_while_staged() {
            self.staging.put(table, key.clone(), value.clone());
        }
        self.step.writes.push(Write { table, key, value });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ps1_a_failed_commit_releases_nothing() {
        let mut step = Step::default();
        step.writes.push(Write { table: Table::Meta, key: Bytes::new(), value: None });
        step.output(Output::RetryDue { peer: AgentId::new("b").unwrap() });
        assert_eq!(step.commit(|_| Err("disk full")), Err("disk full"));
    }

    #[test]
    fn ps1_writes_come_before_outputs() {
        let mut order = Vec::new();
        let mut step = Step::default();
        step.writes.push(Write { table: Table::Meta, key: Bytes::new(), value: None });
        step.output(Output::RetryDue { peer: AgentId::new("b").unwrap() });
        let outputs = step
            .commit(|writes| {
                order.push(writes.len());
                Ok::<(), ()>(())
            })
            .unwrap();
        assert_eq!((order, outputs.len()), (vec![1], 1));
    }
}
