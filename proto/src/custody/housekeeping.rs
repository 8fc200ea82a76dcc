//! Counters that outlive a restart, and the pruning of what may be forgotten.

use crate::cbor::{CborError, Reader, Writer};
use crate::receiver::{EXPIRY_BUCKET_MS, Receiver};
use crate::record::{
    Escalation, Intent, IntentState, Outcome, Terminal, decode_keys, encode_keys, key_num, num_key,
    pair_key, to_json,
};
use crate::settings::Settings;
use crate::step::Ctx;
use crate::store::{Read, ReadError, Table};
use crate::time::Time;
use bytes::Bytes;

const COUNTERS_KEY: &[u8] = b"counters";
/// Time between two looks for something to forget, in milliseconds.
const PRUNE_EVERY_MS: u64 = 1_000;
/// Keys forgotten by one look; while there are more, the next look is at once.
const PRUNE_KEYS_MAX: usize = 4096;
/// Log records read by one look.
const PRUNE_RECORDS_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    pub(super) next_num: u64,
    next_log: u64,
    outcomes_total: u64,
    outcomes_pruned: u64,
    reconcile: u64,
    last_time: Time,
    pub(super) best_effort_applied: u64,
    prune_at: Option<Time>,
    /// The generation of the last pruning, while it is not durable.
    pruning: Option<u64>,
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
            pruning: None,
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
        if self.pruning.is_some() { None } else { self.prune_at }
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
            let soon = ctx.now.after_ms(PRUNE_EVERY_MS);
            self.prune_at = Some(self.prune_at.map_or(soon, |at| at.min(soon)));
        }
    }

    /// Gives the ids whose outcomes went. Forgets ledger entries whose obligations can no longer be applied, intents nobody can act
    /// on any more, and old outcomes. Looks again only when the last pruning is durable, since it
    /// reads the store.
    pub(super) fn prune(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        receiver: &Receiver,
    ) -> Result<Vec<Bytes>, ReadError> {
        let mut forgotten = Vec::new();
        if self.prune_at.is_none_or(|at| ctx.now < at) || self.pruning.is_some() {
            return Ok(forgotten);
        }
        let mut left = PRUNE_KEYS_MAX;
        let ledger_next = Self::prune_ledger(ctx, receiver, &mut left)?;
        let outcomes_next = self.prune_outcomes(ctx, settings, &mut left, &mut forgotten)?;
        let later = ctx.now.after_ms(PRUNE_EVERY_MS);
        self.prune_at = if left == 0 {
            Some(ctx.now)
        } else {
            ledger_next.into_iter().chain(outcomes_next).min().map(|at| at.max(later))
        };
        if ctx.staging.len() > 0 {
            // What is not durable yet was not seen.
            self.prune_at = Some(self.prune_at.map_or(later, |at| at.min(later)));
        }
        if left < PRUNE_KEYS_MAX {
            self.pruning = Some(ctx.staging.open_generation());
        }
        Ok(forgotten)
    }

    /// The commit of this generation is durable.
    pub(super) fn committed(&mut self, generation: u64) {
        self.pruning = self.pruning.filter(|pruning| *pruning > generation);
    }

    fn prune_ledger(
        ctx: &mut Ctx<'_>,
        receiver: &Receiver,
        left: &mut usize,
    ) -> Result<Option<Time>, ReadError> {
        let this_bucket = ctx.now.as_ms() / EXPIRY_BUCKET_MS;
        for (key, value) in first_then_more(ctx, Table::LedgerExpiry, |key| {
            key_num(key).unwrap_or(0) <= this_bucket
        })? {
            let bucket = key_num(&key).unwrap_or(0);
            if bucket > this_bucket {
                return Ok(Some(Time::from_ms(bucket.saturating_mul(EXPIRY_BUCKET_MS))));
            }
            if *left == 0 {
                return Ok(None);
            }
            let (_, keys) =
                decode_keys(&value).map_err(|e| ReadError::damaged(Table::LedgerExpiry, e))?;
            *left = left.saturating_sub(keys.len().max(1));
            for key in keys {
                if receiver.decides(&key) {
                    // Its handler is still out: its answer needs the intent.
                    ctx.step.expiring.entry(this_bucket + 1).or_default().push(key);
                    continue;
                }
                if let Some(bytes) = ctx.get(Table::Intent, &key)? {
                    let intent = Intent::decode(&bytes)
                        .map_err(|error| ReadError::damaged(Table::Intent, error))?;
                    if intent.state != IntentState::InDoubt {
                        ctx.remove(Table::Intent, key.clone());
                    }
                }
                ctx.remove(Table::Ledger, key);
            }
            ctx.remove(Table::LedgerExpiry, key);
        }
        Ok(None)
    }

    fn prune_outcomes(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        left: &mut usize,
        forgotten: &mut Vec<Bytes>,
    ) -> Result<Option<Time>, ReadError> {
        let over = self.outcomes_total - self.outcomes_pruned.min(self.outcomes_total)
            > settings.outcomes_max;
        for (key, value) in first_then_more(ctx, Table::OutcomeLog, |key| {
            over || Time::from_ms(key_num(key).unwrap_or(0)).after_ms(settings.outcome_retention_ms)
                <= ctx.now
        })? {
            let at = Time::from_ms(key_num(&key).unwrap_or(0));
            let forget_at = at.after_ms(settings.outcome_retention_ms);
            let kept = self.outcomes_total - self.outcomes_pruned.min(self.outcomes_total);
            if forget_at > ctx.now && kept <= settings.outcomes_max {
                return Ok(Some(forget_at));
            }
            if *left == 0 {
                return Ok(None);
            }
            let (_, ids) =
                decode_keys(&value).map_err(|e| ReadError::damaged(Table::OutcomeLog, e))?;
            *left = left.saturating_sub(ids.len().max(1));
            self.outcomes_pruned += ids.len() as u64;
            for id in ids {
                if Self::prune_outcome(ctx, &id)? {
                    forgotten.push(id);
                }
            }
            ctx.remove(Table::OutcomeLog, key);
        }
        Ok(None)
    }

    /// Removes an outcome, and its escalation if the principal has seen it. One nobody has seen
    /// stays, with its outcome, however old. Returns whether it went.
    fn prune_outcome(ctx: &mut Ctx<'_>, id: &Bytes) -> Result<bool, ReadError> {
        let Some(bytes) = ctx.get(Table::Outcome, id)? else { return Ok(true) };
        let outcome =
            Outcome::decode(&bytes).map_err(|error| ReadError::damaged(Table::Outcome, error))?;
        if outcome.terminal == Terminal::Escalated {
            let key = num_key(outcome.num);
            if let Some(bytes) = ctx.get(Table::Escalation, &key)? {
                let escalation: Escalation = serde_json::from_slice(&bytes)
                    .map_err(|error| ReadError::damaged(Table::Escalation, error))?;
                #[cfg(feature = "mutants")]
                if ctx.is(crate::mutant::Mutant::InboxForgets) {
                    ctx.remove(Table::Escalation, key);
                    ctx.remove(Table::Outcome, id.clone());
                    return Ok(true);
                }
                if escalation.acknowledged_at_ms.is_none() {
                    let escalation = Escalation { outlived: true, ..escalation };
                    ctx.put(Table::Escalation, key, to_json(&escalation));
                    return Ok(false);
                }
                ctx.remove(Table::Escalation, key);
            }
        }
        ctx.remove(Table::Outcome, id.clone());
        Ok(true)
    }
}

/// The oldest records of a log: one, unless `due` says that it is to be pruned.
fn first_then_more(
    ctx: &Ctx<'_>,
    table: Table,
    due: impl Fn(&[u8]) -> bool,
) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
    let first = ctx.store.scan(table, &[], 1)?;
    match first.first() {
        Some((key, _)) if due(key) => ctx.store.scan(table, &[], PRUNE_RECORDS_MAX),
        _ => Ok(first),
    }
}
