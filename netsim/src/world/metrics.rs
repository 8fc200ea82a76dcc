//! The measures of a run, from what its checkers saw.

use super::World;
use crate::check::Entry;
use crate::measures::{Around, Life, Measures};
use crate::node::EPOCH_MS;
use crate::workload::TWIN;
use proto::time::Time;

impl World {
    /// What the run is measured by, once it is over.
    #[must_use]
    pub fn measures(&self) -> Measures {
        let mut measures = Measures {
            bytes: self.bytes,
            syncs: self.nodes.iter().map(|node| node.store.commits()).sum(),
            ..Measures::default()
        };
        let around = Around {
            healed_at: self.last_outage(),
            well_at: self.checker.healed_at().unwrap_or(self.now),
        };
        for entry in self.checker.entries().filter(|entry| entry.spec.admissible) {
            if let Some(life) = self.life(entry) {
                measures.add(&life, around);
            }
        }
        measures
    }

    /// When the last cut of the timeline ended.
    fn last_outage(&self) -> Option<u64> {
        let outages = self.timeline.iter().filter(|fault| fault.what.is_outage());
        let from = EPOCH_MS + self.options.warm_up_ms;
        outages.map(|fault| from + fault.at_ms + fault.for_ms).max()
    }

    /// One obligation that was taken.
    fn life(&self, entry: &Entry) -> Option<Life> {
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
            willing: !spec.external || self.handler.willing(&spec.id),
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
                let other =
                    self.checker.entry_of(spec.issuer, id).filter(|entry| entry.custody())?;
                let twin_ms = self.options.twin_deadline_s * 1000;
                let created = Time::from_ms(entry.deadline_at()?.as_ms().checked_sub(twin_ms)?);
                let took = seen.outcome_at?.ms_since(created);
                Some(Life { twin: Some((took, other.deadline_at()?.ms_since(created))), ..life })
            }
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
