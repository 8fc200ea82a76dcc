//! The custodian: holds each admissible obligation until it is applied, declined or escalated.

mod decided;
mod end;
mod issue;
mod memory;
mod recover;
mod send;

use crate::backoff::Backoff;
use crate::id::{AgentId, ObligationId};
use crate::obligation::Obligation;
use crate::profile::OnDecline;
use crate::record::{Attempt, Pending, num_key};
use crate::settings::Settings;
use crate::step::{Ctx, Output, SessionId};
use crate::store::{ReadError, Table};
use crate::time::Time;
use crate::transfer::{Due, Transfer};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub(crate) use end::{Verdict, apply_safe, id_key, outcome_of};
pub use issue::{Check, Draft, IssueError, Issued};

/// Alarms handled, and offers filled in, by one input: the driver comes straight back for more, so
/// no burst of timers holds up an ack.
const WORK_PER_INPUT_MAX: usize = 2048;
/// Offers of a session that were made again, or whose transfer ended here, before their ack came:
/// remembered to take that ack, and to tell a late `applied` from a foreign one.
const ELSEWHERE_PER_SESSION_MAX: usize = 4096;

/// All pending transfers of this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Custodian {
    pub(crate) next_num: u64,
    transfers: BTreeMap<u64, Transfer>,
    by_id: Ids,
    alarms: BTreeSet<(Time, u64)>,
    peers: Vec<Peer>,
    peer_index: BTreeMap<AgentId, u32>,
    sessions: BTreeMap<SessionId, Session>,
    /// Offers in flight on all of them.
    flying: usize,
    schedules: Vec<(Backoff, OnDecline)>,
    /// Peers with room in their window and more to offer.
    hungry: BTreeSet<u32>,
    recovery: Option<Recovery>,
    ended: EndedIds,
    decided: decided::Decided,
}

/// Where recovery stands: first the ids that ended, then the pending set.
#[derive(Clone, Debug)]
enum Recovery {
    Ended(Bytes),
    Outlived(u64),
    Pending(u64),
}

/// Pending transfers by the hash of their ids.
#[derive(Clone, Debug, Default)]
#[expect(clippy::disallowed_types, reason = "never iterated")]
struct Ids {
    one: std::collections::HashMap<u64, u64, foldhash::fast::RandomState>,
    /// Further transfers of a hash that has one.
    more: BTreeSet<(u64, u64)>,
}

impl Ids {
    fn insert(&mut self, hash: u64, num: u64) {
        if *self.one.entry(hash).or_insert(num) != num {
            self.more.insert((hash, num));
        }
    }

    fn remove(&mut self, hash: u64, num: u64) {
        if self.one.get(&hash) != Some(&num) {
            self.more.remove(&(hash, num));
            return;
        }
        match self.more.range((hash, 0)..=(hash, u64::MAX)).next().copied() {
            Some(next) => {
                self.more.remove(&next);
                self.one.insert(hash, next.1);
            }
            None => {
                self.one.remove(&hash);
            }
        }
    }

    fn of(&self, hash: u64) -> impl Iterator<Item = u64> {
        let one = self.one.get(&hash).copied();
        let more = one.map(|_| self.more.range((hash, 0)..=(hash, u64::MAX)));
        one.into_iter().chain(more.into_iter().flatten().map(|(_, num)| *num))
    }
}

/// Hashes of the ids that ended and are remembered, so that issuing a new id costs no read. Never
/// iterated. Over the limit it gives up, and every issue asks the store.
#[derive(Clone, Debug, Default)]
#[expect(clippy::disallowed_types, reason = "never iterated")]
struct EndedIds {
    hashes: std::collections::HashSet<u64, foldhash::fast::RandomState>,
    complete: bool,
}

/// Ids remembered in memory: 16 to 32 MB.
const ENDED_IDS_MAX: usize = 2_000_000;

impl EndedIds {
    fn insert(&mut self, hash: u64) {
        self.hashes.insert(hash);
        if self.hashes.len() > ENDED_IDS_MAX {
            *self = Self::default();
        }
    }

    fn rules_out(&self, hash: u64) -> bool {
        self.complete && !self.hashes.contains(&hash)
    }
}

#[derive(Clone, Debug)]
struct Peer {
    id: AgentId,
    pending: BTreeSet<u64>,
    /// Transfers to offer that found the window full, in turn. Those that ended meanwhile, or
    /// were offered by a sweep, are passed over.
    due: VecDeque<u64>,
    /// On a new session the current attempt of every pending transfer is repeated, in order of
    /// issue; this is the next one.
    sweep: Option<u64>,
    /// Oldest first; offers go to the newest.
    sessions: Vec<SessionId>,
}

#[derive(Clone, Debug)]
struct Session {
    peer: u32,
    window: usize,
    next_ref: u64,
    in_flight: BTreeMap<u64, Flying>,
    in_flight_bytes: usize,
    elsewhere: BTreeMap<u64, ObligationId>,
}

/// An offer that awaits its ack; bounded by the window, so it may keep what the ack needs.
#[derive(Clone, Debug)]
struct Flying {
    num: u64,
    obligation: Arc<Obligation>,
    bytes: Bytes,
}

impl Custodian {
    /// Pending transfers in all.
    pub(crate) fn pending(&self) -> usize {
        self.transfers.len()
    }

    /// Outcomes of these ids are forgotten.
    pub(crate) fn forget(&mut self, ids: &[Bytes]) {
        for id in ids {
            self.ended.hashes.remove(&bytes_hash(id));
        }
    }

    /// Pending transfers to `peer`.
    pub(crate) fn pending_to(&self, peer: &AgentId) -> usize {
        self.peer_index
            .get(peer)
            .and_then(|index| self.peers.get(*index as usize))
            .map_or(0, |peer| peer.pending.len())
    }

    /// When the next alarm goes off; at once while there is more to fill in.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        if !self.hungry.is_empty() {
            return Some(Time::default());
        }
        self.alarms.first().map(|(at, _)| *at)
    }

    fn peer_of(&mut self, id: &AgentId) -> u32 {
        if let Some(index) = self.peer_index.get(id) {
            return *index;
        }
        let index = u32::try_from(self.peers.len()).unwrap_or(u32::MAX);
        self.peers.push(Peer {
            id: id.clone(),
            pending: BTreeSet::new(),
            due: VecDeque::new(),
            sweep: None,
            sessions: Vec::new(),
        });
        self.peer_index.insert(id.clone(), index);
        index
    }

    fn schedule_of(&mut self, backoff: Backoff, on_decline: OnDecline) -> u16 {
        let wanted = (backoff, on_decline);
        let found = self.schedules.iter().position(|schedule| *schedule == wanted);
        let index = found.unwrap_or_else(|| {
            // Schedules come from profiles and short deadlines; past the range the last is shared.
            if self.schedules.len() < usize::from(u16::MAX) {
                self.schedules.push(wanted);
            }
            self.schedules.len() - 1
        });
        u16::try_from(index).unwrap_or(u16::MAX)
    }

    fn backoff(&self, transfer: &Transfer) -> Backoff {
        self.schedules.get(usize::from(transfer.schedule)).map_or(
            Backoff { base_ms: 1_000, cap_ms: 60_000, jitter_permille: 0 },
            |(backoff, _)| *backoff,
        )
    }

    fn insert(&mut self, num: u64, id: &ObligationId, transfer: Transfer) {
        self.by_id.insert(id_hash(id), num);
        self.alarms.insert((transfer.alarm(), num));
        if let Some(peer) = self.peers.get_mut(transfer.peer as usize) {
            peer.pending.insert(num);
        }
        self.transfers.insert(num, transfer);
    }

    /// Changes a transfer and moves its alarm with it.
    fn update<T>(&mut self, num: u64, change: impl FnOnce(&mut Transfer) -> T) -> Option<T> {
        let transfer = self.transfers.get_mut(&num)?;
        let before = transfer.alarm();
        let result = change(transfer);
        let after = transfer.alarm();
        if before != after {
            self.alarms.remove(&(before, num));
            self.alarms.insert((after, num));
        }
        Some(result)
    }

    /// The pending transfer of an id.
    pub(crate) fn find(
        &self,
        ctx: &Ctx<'_>,
        id: &ObligationId,
    ) -> Result<Option<(u64, Obligation)>, ReadError> {
        let hash = id_hash(id);
        for num in self.by_id.of(hash) {
            let obligation = self.load(ctx, num)?;
            if obligation.id == *id {
                return Ok(Some((num, obligation)));
            }
        }
        Ok(None)
    }

    /// The pending transfer of an id, with its retries and whether it was deferred.
    pub(crate) fn find_view(
        &self,
        ctx: &Ctx<'_>,
        id: &ObligationId,
    ) -> Result<Option<(Obligation, u32, bool)>, ReadError> {
        let Some((num, obligation)) = self.find(ctx, id)? else { return Ok(None) };
        Ok(self
            .transfers
            .get(&num)
            .map(|transfer| (obligation, transfer.retries, transfer.deferred)))
    }

    fn load_bytes(&self, ctx: &Ctx<'_>, num: u64) -> Result<Bytes, ReadError> {
        let flying = self.transfers.get(&num).and_then(|transfer| transfer.sent).and_then(
            |(session, reference)| self.sessions.get(&session)?.in_flight.get(&reference),
        );
        if let Some(flying) = flying {
            return Ok(flying.bytes.clone());
        }
        let record = ctx
            .get(Table::Pending, &num_key(num))?
            .ok_or_else(|| ReadError::damaged(Table::Pending, format!("transfer {num} is gone")))?;
        Pending::decode(&record)
            .map(|pending| pending.obligation)
            .map_err(|error| ReadError::damaged(Table::Pending, error))
    }

    fn load(&self, ctx: &Ctx<'_>, num: u64) -> Result<Obligation, ReadError> {
        Obligation::decode(&self.load_bytes(ctx, num)?)
            .map_err(|error| ReadError::damaged(Table::Pending, error))
    }

    /// Handles what is due at `ctx.now`, up to a bound.
    pub(crate) fn on_timeout(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
    ) -> Result<Vec<(u64, Due)>, ReadError> {
        let mut ending = Vec::new();
        let mut retried = BTreeSet::new();
        for _ in 0..WORK_PER_INPUT_MAX {
            let Some((at, num)) = self.alarms.first().copied() else { break };
            if at > ctx.now {
                break;
            }
            let Some(due) = self.transfers.get(&num).and_then(|transfer| transfer.due(ctx.now))
            else {
                self.alarms.remove(&(at, num));
                continue;
            };
            #[cfg(feature = "mutants")]
            let due = match due {
                Due::Exhausted if ctx.is(crate::mutant::Mutant::IgnoresBudget) => Due::Retry,
                Due::Warning if ctx.is(crate::mutant::Mutant::EscalatesEarly) => Due::Deadline,
                Due::Deadline if ctx.is(crate::mutant::Mutant::LosesDeadline) => {
                    self.alarms.remove(&(at, num));
                    continue;
                }
                due => due,
            };
            match due {
                Due::Retry | Due::Exhausted if self.is_swept_later(num) => self.queue(num),
                Due::Deadline | Due::Exhausted => {
                    // Out of the alarms now, so that the bound above counts each once; the caller
                    // ends it in this same input.
                    self.alarms.remove(&(at, num));
                    ending.push((num, due));
                }
                Due::Retry => {
                    self.retry(ctx, settings, num)?;
                    retried.extend(self.transfers.get(&num).map(|transfer| transfer.peer));
                }
                Due::Warning => self.warn(ctx, num)?,
            }
        }
        for index in retried {
            if let Some(peer) = self.peers.get(index as usize) {
                ctx.step.output(Output::RetryDue { peer: peer.id.clone() });
            }
        }
        Ok(ending)
    }

    /// Fills the windows that have room again.
    pub(crate) fn feed(&mut self, ctx: &mut Ctx<'_>, settings: &Settings) -> Result<(), ReadError> {
        for index in std::mem::take(&mut self.hungry) {
            self.fill(ctx, settings, index)?;
        }
        Ok(())
    }

    /// Whether the sweep of its peer's session is still to come to it: that it was not offered yet is no
    /// silence of the peer, and costs no retry.
    fn is_swept_later(&self, num: u64) -> bool {
        let Some(transfer) = self.transfers.get(&num) else { return false };
        let Some(peer) = self.peers.get(transfer.peer as usize) else { return false };
        let Some(current) = peer.sessions.last() else { return false };
        peer.sweep.is_some_and(|from| from <= num)
            && transfer.sent.is_none_or(|(session, _)| session != *current)
    }

    /// Gives an attempt its whole time from now on.
    fn rearm(&mut self, now: Time, settings: &Settings, num: u64) {
        let Some(transfer) = self.transfers.get(&num) else { return };
        let delay = self.backoff(transfer).delay_ms(transfer.retries, settings.seed ^ num);
        self.update(num, |transfer| transfer.retry_at = now.after_ms(delay));
    }

    //= AB-2
    fn retry(&mut self, ctx: &mut Ctx<'_>, settings: &Settings, num: u64) -> Result<(), ReadError> {
        let Some(transfer) = self.transfers.get(&num) else { return Ok(()) };
        let backoff = self.backoff(transfer);
        let now = ctx.now;
        let attempt = self.update(num, |transfer| {
            let counts = !std::mem::take(&mut transfer.repeat);
            transfer.retries += u32::from(counts);
            let delay = backoff.delay_ms(transfer.retries, settings.seed ^ num);
            transfer.retry_at = now.after_ms(delay);
            counts.then_some(Attempt { retries: transfer.retries, deferred: transfer.deferred })
        });
        if let Some(Some(attempt)) = attempt {
            // Durable with the offer it counts, so that no crash refills the budget.
            ctx.put(Table::Attempt, num_key(num), attempt.encode());
        }
        #[cfg(feature = "mutants")]
        if ctx.is(crate::mutant::Mutant::StopsRetrying) {
            return Ok(());
        }
        let waiting = self
            .transfers
            .get(&num)
            .and_then(|transfer| self.peers.get(transfer.peer as usize))
            .is_some_and(|peer| !peer.due.is_empty());
        if waiting {
            // Others wait for room: its place goes to them, and it queues up behind.
            self.recall(num);
            self.queue(num);
            return Ok(());
        }
        self.offer(ctx, settings, num, None)
    }

    fn warn(&mut self, ctx: &mut Ctx<'_>, num: u64) -> Result<(), ReadError> {
        let obligation = self.load(ctx, num)?;
        let now = ctx.now;
        let told = self.update(num, |transfer| {
            transfer.warn_at = Time::NEVER;
            (transfer.retries, transfer.deadline_at.ms_since(now))
        });
        if let Some((retries, left_ms)) = told {
            ctx.step.event(crate::event::Event::Warning {
                obligation_id: obligation.id,
                target: obligation.target,
                retries,
                left_ms,
            });
        }
        Ok(())
    }
}

/// A 64-bit hash of an id (FNV-1a, spread). Collisions are told apart by reading the record.
fn id_hash(id: &ObligationId) -> u64 {
    bytes_hash(id.as_str().as_bytes())
}

fn bytes_hash(id: &[u8]) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    crate::backoff::mix(id.iter().copied().fold(0xcbf2_9ce4_8422_2325, fold))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_hash_are_told_apart() {
        let mut ids = Ids::default();
        [(7, 1), (7, 3), (7, 2), (8, 9)].into_iter().for_each(|(hash, num)| ids.insert(hash, num));
        assert_eq!(ids.of(7).collect::<Vec<_>>(), [1, 2, 3]);
        ids.remove(7, 1);
        ids.remove(7, 5); // not there
        assert_eq!(ids.of(7).collect::<Vec<_>>(), [2, 3]);
        ids.remove(7, 3);
        ids.remove(7, 2);
        assert!(ids.of(7).next().is_none() && ids.more.is_empty());
        assert_eq!(ids.of(8).collect::<Vec<_>>(), [9]);
    }
}
