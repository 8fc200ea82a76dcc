//! The measures of a run, from what its checkers saw.

use super::World;
use crate::check::{Checker, Entry};
use crate::measures::{Around, Life, Measures};
use crate::node::EPOCH_MS;
use crate::options::Options;
use crate::scenario::Fault;
use crate::workload::TWIN;
use proto::id::ObligationId;
use proto::time::Time;

impl World {
    /// What the run is measured by, once it is over.
    #[must_use]
    pub fn measures(&self) -> Measures {
        let syncs = self.nodes.iter().map(|node| node.store.commits()).sum();
        let from = Measures { bytes: self.bytes, syncs, ..Measures::default() };
        let willing = |id: &ObligationId| self.handler.willing(id);
        let mut measures =
            measured(from, &self.checker, &self.options, &self.timeline, self.now, willing);
        if let (true, Some(first)) = (self.options.star, self.nodes.first()) {
            measures.custodian_bytes = first.sent_bytes;
            measures.custodian_objects = first.sent_objects;
            let ended = self.checker.entries().filter_map(|entry| {
                Some(entry.ended_at().checked_sub(entry.seen.asked_at?)?.saturating_mul(1_000))
            });
            ended.max().into_iter().for_each(|us| measures.settled.record(us));
        }
        measures
    }
}

/// Adds what the checkers of a run saw. `willing` says of an obligation for an external handler whether
/// it is applied in the end.
pub(crate) fn measured(
    mut measures: Measures,
    checker: &Checker,
    options: &Options,
    timeline: &[Fault],
    now: u64,
    willing: impl Fn(&ObligationId) -> bool,
) -> Measures {
    let outages = timeline.iter().filter(|fault| fault.what.is_outage());
    let from = EPOCH_MS + options.warm_up_ms;
    let around = Around {
        healed_at: outages.map(|fault| from + fault.at_ms + fault.for_ms).max(),
        well_at: checker.healed_at().unwrap_or(now),
    };
    for entry in checker.entries().filter(|entry| entry.spec.admissible) {
        if let Some(life) = life(entry, checker, options, &willing) {
            measures.add(&life, around);
        }
    }
    measures
}

/// One obligation that was taken.
fn life(
    entry: &Entry,
    checker: &Checker,
    options: &Options,
    willing: &impl Fn(&ObligationId) -> bool,
) -> Option<Life> {
    let (spec, seen) = (&entry.spec, &entry.seen);
    if !entry.custody() {
        return None;
    }
    let life = Life {
        asked_at: seen.asked_at?,
        effect_at: seen.effect_at,
        effects: entry.times_applied(),
        told: entry.terminal().map(|terminal| (terminal, entry.ended_at())),
        logged: false,
        willing: !spec.external || willing(&spec.id),
        receiver_up: seen.receiver_up,
        attempts: entry.offers(),
        late_ms: seen.late_ms,
        cleared_at: seen.cleared_at,
        twin: None,
    };
    match spec.id.as_str().strip_suffix(TWIN) {
        None => Some(life),
        // A twin without the other has nothing to be compared with.
        Some(id) => {
            let other = checker.entry_of(spec.issuer, id).filter(|entry| entry.custody())?;
            let twin_ms = options.twin_deadline_s * 1000;
            let created = Time::from_ms(entry.deadline_at()?.as_ms().checked_sub(twin_ms)?);
            let took = seen.outcome_at?.ms_since(created);
            Some(Life { twin: Some((took, other.deadline_at()?.ms_since(created))), ..life })
        }
    }
}

#[cfg(test)]
impl World {
    /// When clients ask under `options`, for how many obligations each.
    pub(crate) fn asks(options: crate::Options) -> Vec<(u64, usize)> {
        let mut world = Self::new(options);
        world.plan();
        let asks = world.queue.iter().filter_map(|((at, _), event)| match event {
            super::Event::Ask { client } => Some((*at, world.clients.get(*client)?.drafts())),
            _ => None,
        });
        asks.collect()
    }
}
