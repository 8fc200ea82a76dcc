//! Recovery: the pending set streams in from the store, while retries already run (AB-2).

use super::{Custodian, ENDED_IDS_MAX, Recovery, bytes_hash, id_hash};
use crate::backoff::mix;
use crate::obligation::Obligation;
use crate::record::{Attempt, Escalation, Pending, decode_keys, key_num, num_key};
use crate::settings::Settings;
use crate::step::Ctx;
use crate::store::{ReadError, Table};
use crate::time::Time;
use crate::transfer::Transfer;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Log records read by one call.
const ENDED_RECORDS_PER_CALL: usize = 256;
/// Escalations read by one call.
const ESCALATIONS_PER_CALL: usize = 1024;

impl Custodian {
    /// Begins recovery: first the ids that ended, then the pending set, oldest first.
    pub(crate) fn begin_recovery(&mut self) {
        self.recovery = Some(Recovery::Ended(Bytes::new()));
    }

    /// Remembers the ids of the outcomes that are kept.
    fn recover_ended(&mut self, ctx: &Ctx<'_>, from: &Bytes) -> Result<Recovery, ReadError> {
        let records = ctx.store.scan(Table::OutcomeLog, from, ENDED_RECORDS_PER_CALL)?;
        let Some((last, _)) = records.last() else { return Ok(Recovery::Outlived(0)) };
        let mut next = last.to_vec();
        next.push(0);
        for (_, value) in &records {
            let (_, ids) =
                decode_keys(value).map_err(|e| ReadError::damaged(Table::OutcomeLog, e))?;
            for id in ids.iter().take((ENDED_IDS_MAX + 1).saturating_sub(self.ended.hashes.len())) {
                self.ended.hashes.insert(bytes_hash(id));
            }
        }
        Ok(Recovery::Ended(next.into()))
    }

    /// Remembers the ids of outcomes that are kept only for an escalation nobody has seen: their
    /// log records are gone.
    fn recover_outlived(&mut self, ctx: &Ctx<'_>, from: u64) -> Result<Recovery, ReadError> {
        let records = ctx.store.scan(Table::Escalation, &num_key(from), ESCALATIONS_PER_CALL)?;
        let Some((last, _)) = records.last() else {
            self.ended.complete = self.ended.hashes.len() <= ENDED_IDS_MAX;
            return Ok(Recovery::Pending(0));
        };
        for (_, value) in &records {
            let escalation: Escalation = serde_json::from_slice(value)
                .map_err(|error| ReadError::damaged(Table::Escalation, error))?;
            if escalation.outlived && self.ended.hashes.len() <= ENDED_IDS_MAX {
                self.ended.hashes.insert(id_hash(&escalation.obligation_id));
            }
        }
        Ok(Recovery::Outlived(key_num(last).unwrap_or(u64::MAX).saturating_add(1)))
    }

    /// Whether the whole pending set is loaded.
    pub(crate) const fn recovered(&self) -> bool {
        self.recovery.is_none()
    }

    /// Loads up to `limit` more transfers. The absolute deadline comes from the store: a restart
    /// never extends it. Retries are spread over their current delay, so that a million of them
    /// do not start at once.
    //= AB-2
    pub(crate) fn recover(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        limit: usize,
    ) -> Result<usize, ReadError> {
        let from = match &self.recovery {
            None => return Ok(0),
            Some(Recovery::Ended(from)) => {
                let from = from.clone();
                self.recovery = Some(self.recover_ended(ctx, &from)?);
                return Ok(0);
            }
            Some(Recovery::Outlived(from)) => {
                self.recovery = Some(self.recover_outlived(ctx, *from)?);
                return Ok(0);
            }
            Some(Recovery::Pending(from)) => *from,
        };
        let records = ctx.store.scan(Table::Pending, &num_key(from), limit)?;
        let mut attempts: BTreeMap<u64, Attempt> = BTreeMap::new();
        for (key, value) in ctx.store.scan(Table::Attempt, &num_key(from), limit)? {
            let num = key_num(&key).ok_or_else(|| ReadError::damaged(Table::Attempt, "key"))?;
            let attempt =
                Attempt::decode(&value).map_err(|e| ReadError::damaged(Table::Attempt, e))?;
            attempts.insert(num, attempt);
        }
        let count = records.len();
        for (key, value) in records {
            let num = key_num(&key).ok_or_else(|| ReadError::damaged(Table::Pending, "key"))?;
            #[cfg(feature = "mutants")]
            if ctx.is(crate::mutant::Mutant::ForgetsPending) {
                self.recovery = Some(Recovery::Pending(num + 1));
                continue;
            }
            let pending =
                Pending::decode(&value).map_err(|e| ReadError::damaged(Table::Pending, e))?;
            let obligation = Obligation::decode(&pending.obligation)
                .map_err(|e| ReadError::damaged(Table::Pending, e))?;
            self.recovery = Some(Recovery::Pending(num + 1));
            if self.transfers.contains_key(&num) {
                continue;
            }
            let attempt = attempts.get(&num).copied().unwrap_or_default();
            let delay = pending.backoff.delay_ms(attempt.retries, settings.seed ^ num).max(1);
            let spread = mix(settings.seed ^ num ^ ctx.now.as_ms()) % delay + 1;
            let deadline_at = obligation.deadline_at();
            #[cfg(feature = "mutants")]
            let deadline_at = if ctx.is(crate::mutant::Mutant::MovesDeadline) {
                ctx.now.after_ms(obligation.deadline_seconds * 1000)
            } else {
                deadline_at
            };
            let half =
                obligation.created_at.after_ms(deadline_at.ms_since(obligation.created_at) / 2);
            let peer = self.peer_of(&obligation.target);
            let schedule = self.schedule_of(pending.backoff, pending.on_decline);
            self.insert(
                num,
                &obligation.id,
                Transfer {
                    deadline_at,
                    retry_at: ctx.now.after_ms(spread),
                    warn_at: if half > ctx.now { half } else { Time::NEVER },
                    sent: None,
                    retries: attempt.retries,
                    repeat: true,
                    queued: false,
                    max_retries: obligation.max_retries,
                    peer,
                    schedule,
                    deferred: attempt.deferred,
                    refused: None,
                },
            );
            if let Some(peer) = self.peers.get_mut(peer as usize)
                && !peer.sessions.is_empty()
                && peer.sweep.is_none()
            {
                peer.sweep = Some(num);
            }
        }
        if count < limit {
            self.recovery = None;
        }
        let up: Vec<u32> = (0u32..)
            .zip(&self.peers)
            .filter(|(_, p)| !p.sessions.is_empty())
            .map(|(n, _)| n)
            .collect();
        for index in up {
            self.fill(ctx, settings, index)?;
        }
        Ok(count)
    }
}
