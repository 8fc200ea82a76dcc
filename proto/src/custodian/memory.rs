//! What the custodian remembers, for [`Custody::memory`](crate::custody::Custody::memory).

use super::{Custodian, Flying, Peer, Recovery, Session};
use crate::custody::{Memory, PeerMemory, SessionMemory, TransferMemory};
use crate::id::AgentId;
use crate::transfer::Transfer;

impl Custodian {
    /// Its part of the memory; the rest is empty.
    pub(crate) fn memory(&self) -> Memory {
        // The indexes follow from the transfers, the schedules from their records.
        let Self {
            next_num,
            transfers,
            by_id: _,
            alarms: _,
            peers,
            peer_index: _,
            sessions,
            flying: _,
            schedules: _,
            hungry,
            recovery,
            ended: _,
            decided,
        } = self;
        let peer_id = |index: u32| peers.get(index as usize).map(|peer| &peer.id);
        Memory {
            transfers: transfers.iter().map(|(num, transfer)| transfer.memory(*num)).collect(),
            sessions: sessions
                .iter()
                .filter_map(|(id, session)| Some(session.memory(*id, peer_id(session.peer)?)))
                .collect(),
            peers: (0u32..)
                .zip(peers)
                .map(|(index, peer)| peer.memory(hungry.contains(&index)))
                .collect(),
            recovery: recovery.as_ref().map(Recovery::memory),
            decided: decided.ids().cloned().collect(),
            deciding: Vec::new(),
            seen: Vec::new(),
            prune_at: None,
            staged: 0,
            next_num: *next_num,
        }
    }
}

impl Transfer {
    fn memory(&self, num: u64) -> TransferMemory {
        let Self {
            deadline_at,
            retry_at,
            warn_at,
            sent,
            retries,
            repeat,
            max_retries,
            queued,
            peer: _,
            schedule: _,
            deferred,
            refused,
        } = *self;
        TransferMemory {
            num,
            deadline_at,
            retry_at,
            warn_at,
            sent,
            retries,
            max_retries,
            repeat,
            queued,
            deferred,
            refused,
        }
    }
}

impl Session {
    fn memory(&self, session: crate::step::SessionId, peer: &AgentId) -> SessionMemory {
        let Self { peer: _, window, next_ref, in_flight, in_flight_bytes: _, elsewhere } = self;
        let flown = |(reference, flying): (&u64, &Flying)| (*reference, flying.num);
        SessionMemory {
            session,
            peer: peer.clone(),
            window: *window,
            next_ref: *next_ref,
            in_flight: in_flight.iter().map(flown).collect(),
            elsewhere: elsewhere.iter().map(|(at, id)| (*at, id.clone())).collect(),
        }
    }
}

impl Peer {
    fn memory(&self, hungry: bool) -> PeerMemory {
        let Self { id, pending: _, due, sweep, sessions } = self;
        PeerMemory {
            peer: id.clone(),
            sessions: sessions.clone(),
            due: due.iter().copied().collect(),
            sweep: *sweep,
            hungry,
        }
    }
}

impl Recovery {
    fn memory(&self) -> (u8, Vec<u8>) {
        match self {
            Self::Ended(from) => (0, from.to_vec()),
            Self::Outlived(from) => (1, from.to_be_bytes().to_vec()),
            Self::Pending(from) => (2, from.to_be_bytes().to_vec()),
        }
    }
}
