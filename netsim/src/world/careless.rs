//! Drivers that break the order of disk and wire on purpose, for tests of the checkers only.

use super::World;
use crate::node::Fate;
use proto::mutant::Mutant;
use proto::step::Step;
use proto::time::Time;

impl World {
    /// Whether the driver of this node breaks the order at this commit.
    pub(super) fn careless(&self, n: usize, fate: Fate) -> bool {
        match self.options.mutant {
            Some(Mutant::ReleasesEarly) => fate == Fate::Durable,
            Some(Mutant::IgnoresFailure) => fate == Fate::Lost && self.is_up(n),
            _ => false,
        }
    }

    /// Lets the outputs go first, and makes the writes durable after them, or not at all.
    pub(super) fn release_carelessly(&mut self, n: usize, step: Step, clock: Time, fate: Fate) {
        let (generation, sync) = (step.generation(), step.needs_sync());
        let writes = step.writes().to_vec();
        let outputs = step.commit(|_| Ok::<(), std::convert::Infallible>(())).unwrap_or_default();
        for output in &outputs {
            self.checker.released(self.now, n, output);
        }
        if let Some(node) = self.nodes.get_mut(n).filter(|_| fate == Fate::Durable) {
            node.store.apply(&writes, sync);
            self.checker.committed(self.now, n, clock, &writes);
        }
        if let Some(live) = self.nodes.get_mut(n).and_then(|node| node.live.as_mut()) {
            live.custody.committed(generation);
        }
        for output in outputs {
            self.act(n, output);
        }
    }
}
