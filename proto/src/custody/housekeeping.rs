//! Counters that outlive a restart, and the pruning of what may be forgotten.

use crate::cbor::{CborError, Reader, Writer};
use crate::receiver::EXPIRY_BUCKET_MS;
use crate::record::{decode_keys, encode_keys, key_num, pair_key};
use crate::settings::Settings;
use crate::step::Ctx;
use crate::store::{Read, ReadError, Table};
use crate::time::Time;
use bytes::Bytes;

const COUNTERS_KEY: &[u8] = b"counters";
/// Time between two looks for something to forget, in milliseconds.
const PRUNE_EVERY_MS: u64 = 1_000;
/// Log records looked at each time.
const PRUNE_RECORDS_MAX: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) next_num: u64,
    next_log: u64,
    outcomes_total: u64,
    outcomes_pruned: u64,
    reconcile: u64,
    last_time: Time,
    pub(super) best_effort_applied: u64,
    prune_at: Option<Time>,
}

impl Counters {
    pub(super) fn load(store: &dyn Read) -> Result<Self, ReadError> {
        let Some(bytes) = store.get(Table::Meta, COUNTERS_KEY)? else {
            return Ok(Self { next_num: 1, prune_at: Some(Time::default()), ..Self::default() });
        };
        Self::decode(&bytes).map_err(|error| ReadError::damaged(Table::Meta, error))
    }

    fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        let mut r = Reader::new(bytes);
        r.array(6)?;
        let counters = Self {
            next_num: r.uint()?,
            next_log: r.uint()?,
            outcomes_total: r.uint()?,
            outcomes_pruned: r.uint()?,
            reconcile: r.uint()?,
            last_time: Time::from_ms(r.uint()?),
            best_effort_applied: 0,
            prune_at: Some(Time::default()),
        };
        r.end()?;
        Ok(counters)
    }

    fn encode(&self) -> Bytes {
        let mut w = Writer::with_capacity(56);
        w.array(6)
            .uint(self.next_num)
            .uint(self.next_log)
            .uint(self.outcomes_total)
            .uint(self.outcomes_pruned)
            .uint(self.reconcile)
            .uint(self.last_time.as_ms());
        w.into_bytes()
    }

    pub(super) const fn next_reconcile(&mut self) -> u64 {
        self.reconcile += 1;
        self.reconcile
    }

    pub(super) const fn last_time(&self) -> Time {
        self.last_time
    }

    pub(super) const fn next_prune(&self) -> Option<Time> {
        self.prune_at
    }

    /// Adds the records one commit shares.
    pub(super) fn seal(&mut self, ctx: &mut Ctx<'_>) {
        let ended = std::mem::take(&mut ctx.step.ended);
        if !ended.is_empty() {
            self.outcomes_total += ended.len() as u64;
            self.next_log += 1;
            let key = pair_key(ctx.now.as_ms(), self.next_log);
            ctx.put(Table::OutcomeLog, key, encode_keys(self.outcomes_total, &ended));
        }
        for (bucket, keys) in std::mem::take(&mut ctx.step.expiring) {
            self.next_log += 1;
            ctx.put(Table::LedgerExpiry, pair_key(bucket, self.next_log), encode_keys(0, &keys));
        }
        if ctx.step.needs_sync() {
            self.last_time = self.last_time.max(ctx.now);
            ctx.put(Table::Meta, Bytes::from_static(COUNTERS_KEY), self.encode());
            self.prune_at.get_or_insert(ctx.now.after_ms(PRUNE_EVERY_MS));
        }
    }

    /// Forgets ledger entries whose obligations can no longer be applied, and old outcomes.
    pub(super) fn prune(&mut self, ctx: &mut Ctx<'_>, settings: &Settings) -> Result<(), ReadError> {
        if self.prune_at.is_none_or(|at| ctx.now < at) {
            return Ok(());
        }
        let mut more = false;
        let this_bucket = ctx.now.as_ms() / EXPIRY_BUCKET_MS;
        let records = ctx.store.scan(Table::LedgerExpiry, &[], PRUNE_RECORDS_MAX)?;
        let mut next_at = None;
        for (key, value) in records {
            let bucket = key_num(&key).unwrap_or(0);
            if bucket > this_bucket {
                next_at = Some(Time::from_ms(bucket.saturating_mul(EXPIRY_BUCKET_MS)));
                more = false;
                break;
            }
            more = true;
            let (_, keys) = decode_keys(&value).map_err(|e| ReadError::damaged(Table::LedgerExpiry, e))?;
            for key in keys {
                ctx.remove(Table::Ledger, key);
            }
            ctx.remove(Table::LedgerExpiry, key);
        }
        let (outcomes_next, outcomes_more) = self.prune_outcomes(ctx, settings)?;
        self.prune_at = if more || outcomes_more {
            Some(ctx.now.after_ms(PRUNE_EVERY_MS / 20))
        } else {
            next_at.into_iter().chain(outcomes_next).min().map(|at| at.max(ctx.now.after_ms(PRUNE_EVERY_MS)))
        };
        Ok(())
    }

    fn prune_outcomes(&mut self, ctx: &mut Ctx<'_>, settings: &Settings) -> Result<(Option<Time>, bool), ReadError> {
        for (key, value) in ctx.store.scan(Table::OutcomeLog, &[], PRUNE_RECORDS_MAX)? {
            let at = Time::from_ms(key_num(&key).unwrap_or(0));
            let forget_at = at.after_ms(settings.outcome_retention_ms);
            let kept = self.outcomes_total - self.outcomes_pruned.min(self.outcomes_total);
            if forget_at > ctx.now && kept <= settings.outcomes_max {
                return Ok((Some(forget_at), false));
            }
            let (_, ids) = decode_keys(&value).map_err(|e| ReadError::damaged(Table::OutcomeLog, e))?;
            self.outcomes_pruned += ids.len() as u64;
            for id in ids {
                ctx.remove(Table::Outcome, id);
            }
            ctx.remove(Table::OutcomeLog, key);
        }
        Ok((None, false))
    }
}
