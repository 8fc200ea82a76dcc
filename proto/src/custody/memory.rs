//! What a core remembers and no store holds, laid open to those who watch it from outside: tests
//! and model checkers. Reading it changes nothing.
//!
//! Whatever two cores over the same store may do differently, they do by what is here, but for how
//! full the rate buckets are. Left out is what only saves work: the ids that ended, the cells and
//! the counters, which are copies of the store, and the bytes of offers. Each type is taken apart
//! field by field, so that a new field does not compile until somebody has decided whether it shows.

use super::Custody;
use crate::frame::RefuseCode;
use crate::id::{AgentId, ObligationId};
use crate::step::SessionId;
use crate::time::Time;

/// The memory of a core.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Memory {
    /// Pending transfers that are loaded, by number.
    pub transfers: Vec<TransferMemory>,
    /// Sessions, by number.
    pub sessions: Vec<SessionMemory>,
    /// Peers that were met or are owed something.
    pub peers: Vec<PeerMemory>,
    /// How far recovery has come: its stage, and the key it goes on from.
    pub recovery: Option<(u8, Vec<u8>)>,
    /// Grants issued without custody, oldest first.
    pub decided: Vec<ObligationId>,
    /// Offers an external handler decides.
    pub deciding: Vec<DecidingMemory>,
    /// Ids seen without custody in the window, by peer, oldest first.
    pub seen: Vec<(AgentId, Vec<ObligationId>)>,
    /// When it will look for something to forget.
    pub prune_at: Option<Time>,
    /// Writes handled and not durable yet.
    pub staged: usize,
    /// The next transfer's number.
    pub next_num: u64,
}

/// What is remembered of a pending transfer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TransferMemory {
    /// Its number.
    pub num: u64,
    /// Its absolute deadline.
    pub deadline_at: Time,
    /// When the next retry is due.
    pub retry_at: Time,
    /// When the early warning is due.
    pub warn_at: Time,
    /// The session of the last offer, and its ref there.
    pub sent: Option<(SessionId, u64)>,
    /// Retries made.
    pub retries: u32,
    /// Retry budget.
    pub max_retries: u32,
    /// Whether the next retry repeats one that was counted before a restart.
    pub repeat: bool,
    /// Whether it waits for room in its peer's window.
    pub queued: bool,
    /// Whether its receiver deferred it.
    pub deferred: bool,
    /// The last refusal.
    pub refused: Option<RefuseCode>,
}

/// What is remembered of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionMemory {
    /// Its number.
    pub session: SessionId,
    /// With whom.
    pub peer: AgentId,
    /// Offers it takes at once.
    pub window: usize,
    /// The ref of its next offer.
    pub next_ref: u64,
    /// Offers that await an ack: ref and transfer number.
    pub in_flight: Vec<(u64, u64)>,
    /// Earlier offers whose ack still counts: ref and id.
    pub elsewhere: Vec<(u64, ObligationId)>,
}

/// What is remembered of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerMemory {
    /// Who.
    pub peer: AgentId,
    /// Its sessions, oldest first; offers go on the last.
    pub sessions: Vec<SessionId>,
    /// Transfers that wait for room, in turn.
    pub due: Vec<u64>,
    /// The transfer a new session goes on from with its offers.
    pub sweep: Option<u64>,
    /// Whether there is room again, to be filled with the next input.
    pub hungry: bool,
}

/// What is remembered of an offer that an external handler decides.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DecidingMemory {
    /// Who issued the obligation.
    pub issuer: AgentId,
    /// Which.
    pub id: ObligationId,
    /// Session and ref of its last offer, to be acked.
    pub offer: Option<(SessionId, u64)>,
}

impl Custody {
    /// What this core remembers and no store holds.
    #[must_use]
    pub fn memory(&self) -> Memory {
        let Self { settings: _, registry: _, custodian, receiver, staging, counters } = self;
        let mut memory = custodian.memory();
        (memory.deciding, memory.seen) = receiver.memory();
        memory.prune_at = counters.next_prune();
        memory.staged = staging.len();
        memory
    }
}
