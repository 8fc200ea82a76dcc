//! What the receiver remembers, for [`Custody::memory`](crate::custody::Custody::memory).

use super::{PeerLoad, Receiver, Waiting};
use crate::custody::DecidingMemory;
use crate::id::{AgentId, ObligationId};

impl Receiver {
    /// What it decides, and the ids it has seen without custody.
    pub(crate) fn memory(&self) -> (Vec<DecidingMemory>, Vec<(AgentId, Vec<ObligationId>)>) {
        // Whether there are intents follows from the store.
        let Self { deciding, peers, no_intents: _ } = self;
        let deciding = deciding
            .iter()
            .map(|((issuer, id), Waiting { offer })| DecidingMemory {
                issuer: issuer.clone(),
                id: id.clone(),
                offer: *offer,
            })
            .collect();
        let seen = peers
            .iter()
            .map(|(peer, load)| {
                // How full the buckets are shows in refusals only, and these are answers. The count
                // is that of `deciding`.
                let PeerLoad { obligations: _, bytes: _, deciding: _, seen: _, seen_order } = load;
                (peer.clone(), seen_order.iter().cloned().collect())
            })
            .collect();
        (deciding, seen)
    }
}
