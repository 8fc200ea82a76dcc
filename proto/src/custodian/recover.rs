//! Recovery: the pending set streams in from the store, while retries already run (AB-2).

use super::Custodian;
use crate::backoff::mix;
use crate::obligation::Obligation;
use crate::record::{Attempt, Pending, key_num, num_key};
use crate::settings::Settings;
use crate::step::Ctx;
use crate::store::{ReadError, Table};
use crate::time::Time;
use crate::transfer::Transfer;
use std::collections::BTreeMap;

impl Custodian {
    /// Begins recovery at the oldest pending transfer.
    pub(crate) const fn begin_recovery(&mut self) {
        self.recovery = Some(0);
    }

    /// Whether the whole pending set is loaded.
    pub(crate) const fn recovered(&self) -> bool {
        self.recovery.is_none()
    }

    /// Loads up to `limit` more transfers. The absolute deadline comes from the store: a restart
    /// never extends it. Retries are spread over their current delay, so that a million of them
    /// do not start at once.
    //= AB-2
    pub(crate) fn recover(&mut self, ctx: &mut Ctx<'_>, settings: &Settings, limit: usize) -> Result<usize, ReadError> {
        let Some(from) = self.recovery else { return Ok(0) };
        let records = ctx.store.scan(Table::Pending, &num_key(from), limit)?;
        let attempts: BTreeMap<u64, Attempt> = ctx
            .store
            .scan(Table::Attempt, &num_key(from), limit)?
            .into_iter()
            .filter_map(|(key, value)| Some((key_num(&key)?, Attempt::decode(&value).ok()?)))
            .collect();
        let count = records.len();
        for (key, value) in records {
            let num = key_num(&key).ok_or_else(|| ReadError::damaged(Table::Pending, "key"))?;
            let pending = Pending::decode(&value).map_err(|e| ReadError::damaged(Table::Pending, e))?;
            let obligation = Obligation::decode(&pending.obligation)
                .map_err(|e| ReadError::damaged(Table::Pending, e))?;
            self.recovery = Some(num + 1);
            if self.transfers.contains_key(&num) {
                continue;
            }
            let attempt = attempts.get(&num).copied().unwrap_or_default();
            let delay = pending.backoff.delay_ms(attempt.retries, settings.seed ^ num).max(1);
            let spread = mix(settings.seed ^ num ^ ctx.now.as_ms()) % delay + 1;
            let deadline_at = obligation.deadline_at();
            let half = obligation.created_at.after_ms(deadline_at.ms_since(obligation.created_at) / 2);
            let peer = self.peer_of(&obligation.target);
            let schedule = self.schedule_of(pending.backoff, pending.on_decline);
            self.insert(num, &obligation.id, Transfer {
                deadline_at,
                retry_at: ctx.now.after_ms(spread),
                warn_at: if half > ctx.now { half } else { Time::NEVER },
                sent: None,
                retries: attempt.retries,
                repeat: true,
                max_retries: obligation.max_retries,
                peer,
                schedule,
                deferred: attempt.deferred,
                refused: None,
            });
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
        let up: Vec<u32> = (0u32..).zip(&self.peers).filter(|(_, p)| !p.sessions.is_empty()).map(|(n, _)| n).collect();
        for index in up {
            self.fill(ctx, settings, index)?;
        }
        Ok(count)
    }
}
