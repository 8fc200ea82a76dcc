//! Drivers that break the order of disk and wire on purpose, for tests of the checkers only.

use super::World;
use crate::node::Fate;
use bytes::Bytes;
use proto::ack::{AckStatus, CustodyAck};
use proto::batch::Batch;
use proto::custody::Input;
use proto::fanout::Template;
use proto::mutant::Mutant;
use proto::obligation::Obligation;
use proto::step::{SessionId, Step};
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

    /// A relay has an object: its publisher takes that for the acks of all who are to get it.
    pub(super) fn relay_is_ack(&mut self, hop: SessionId, object: &Bytes) {
        if self.options.mutant != Some(Mutant::RelayIsAck) {
            return;
        }
        let (Some(end), Ok(batch)) = (self.ends.get(&hop), Batch::decode(object)) else { return };
        let (n, acked_at) = (end.node, Time::from_ms(self.now));
        let mut ids = Vec::new();
        for item in &batch.items {
            let offered = Obligation::decode(item);
            ids.extend(offered.map(|obligation| (obligation.id, obligation.target)));
            let group = Template::decode(item).ok();
            let names = self.by_name.keys();
            ids.extend(group.iter().flat_map(|template| {
                names.clone().map(|name| (template.gid.member(name), name.clone()))
            }));
        }
        for (obligation_id, peer) in ids {
            let (status, reason) = (AckStatus::Applied, None);
            let ack = CustodyAck { obligation_id, target: peer.clone(), status, acked_at, reason };
            self.input(n, Input::Acks { peer, acks: vec![ack] });
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
