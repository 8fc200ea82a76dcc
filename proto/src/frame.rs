//! The frames of `abhyasa/1`. One frame is one QUIC unidirectional stream, ended by its FIN, or
//! one datagram, so a frame carries no length of its own.

mod codec;

use crate::ack::{AckRun, CustodyAck, Reason, RefRange};
use crate::id::{AgentId, ObligationId};
use crate::time::Time;
use bytes::Bytes;
use std::fmt;

/// Features a hello may name.
pub const FEATURES_COUNT_MAX: usize = 32;

/// The one version of frames there is.
pub const VERSION: u64 = 1;

/// A decoded frame. `Debug` shows counts instead of obligations: payloads are not for logs.
#[derive(Clone, PartialEq, Eq)]
pub enum Frame {
    /// The first frame each way: who speaks, and how much it takes.
    Hello {
        /// Version of the frames, see [`VERSION`].
        version: u64,
        /// The speaker; the binding compares it with the certificate.
        agent: AgentId,
        /// What the speaker takes.
        limits: HelloLimits,
        /// Optional abilities, at most [`FEATURES_COUNT_MAX`] of ids' length; unknown ones are
        /// ignored.
        features: Vec<String>,
    },
    /// Obligations under custody. Item `i` has the reference `first_ref + i` on this connection.
    Offers {
        /// Reference of the first item.
        first_ref: u64,
        /// One encoded obligation each.
        items: Vec<Bytes>,
    },
    /// Outcomes of offers of this connection, thousands in a few bytes.
    AckRuns(Vec<AckRun>),
    /// Outcomes by id, for offers of an earlier connection or settled later.
    Acks(Vec<CustodyAck>),
    /// Asks what became of obligations.
    Query {
        /// Named by the answer.
        query_ref: u64,
        /// The obligations asked for.
        ids: Vec<ObligationId>,
    },
    /// Answers a query from the ledger.
    Answer {
        /// The query answered.
        query_ref: u64,
        /// What is known.
        acks: Vec<CustodyAck>,
        /// Ids the ledger does not hold.
        unknown: Vec<ObligationId>,
    },
    /// Takes the whole path of an offer without one, so that quiet and dead differ.
    Probe {
        /// Named by the reply.
        nonce: u64,
        /// An id to read from the ledger on the way.
        id: Option<ObligationId>,
    },
    /// Answers a probe.
    ProbeReply {
        /// The probe answered.
        nonce: u64,
        /// The time at the speaker.
        at: Time,
    },
    /// Offers not taken, decided before anything of them was stored. Discharges nothing.
    Refuse {
        /// The offers; none if the frame could not be read so far.
        refs: Vec<RefRange>,
        /// Why.
        code: RefuseCode,
        /// When to try again at the soonest, in ms; 0 leaves it to the sender's back-off.
        retry_after_ms: u64,
        /// Why, for people.
        text: Reason,
    },
    /// Obligations without custody: never acknowledged.
    BestEffort {
        /// One encoded obligation each.
        items: Vec<Bytes>,
    },
}

/// What a peer takes, said in its hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloLimits {
    /// Bytes of one frame.
    pub frame_len_max: u64,
    /// Offers not yet answered.
    pub in_flight_max: u64,
    /// Bytes of one datagram; 0 if it takes none.
    pub datagram_len_max: u64,
}

/// Why offers were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefuseCode {
    /// A limit is reached; try again later.
    Overloaded,
    /// The sender may not issue this kind to this target.
    Unauthorized,
    /// The kind is not known, or not admissible (AC-1).
    Unsupported,
    /// The item is no obligation.
    Malformed,
    /// The target is another agent.
    WrongTarget,
    /// The node is shutting down.
    Stopping,
}

impl RefuseCode {
    /// Its name in logs, metrics and events.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Overloaded => "overloaded",
            Self::Unauthorized => "unauthorized",
            Self::Unsupported => "unsupported",
            Self::Malformed => "malformed",
            Self::WrongTarget => "wrong_target",
            Self::Stopping => "stopping",
        }
    }
}

impl fmt::Display for RefuseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hello { version, agent, limits, features } => f
                .debug_struct("Hello")
                .field("version", version)
                .field("agent", agent)
                .field("limits", limits)
                .field("features", features)
                .finish(),
            Self::Offers { first_ref, items } => {
                write!(f, "Offers {{ first_ref: {first_ref}, items: {} }}", items.len())
            }
            Self::AckRuns(runs) => f.debug_tuple("AckRuns").field(runs).finish(),
            Self::Acks(acks) => f.debug_tuple("Acks").field(acks).finish(),
            Self::Query { query_ref, ids } => {
                f.debug_struct("Query").field("query_ref", query_ref).field("ids", ids).finish()
            }
            Self::Answer { query_ref, acks, unknown } => f
                .debug_struct("Answer")
                .field("query_ref", query_ref)
                .field("acks", acks)
                .field("unknown", unknown)
                .finish(),
            Self::Probe { nonce, id } => {
                f.debug_struct("Probe").field("nonce", nonce).field("id", id).finish()
            }
            Self::ProbeReply { nonce, at } => {
                f.debug_struct("ProbeReply").field("nonce", nonce).field("at", at).finish()
            }
            Self::Refuse { refs, code, retry_after_ms, text } => f
                .debug_struct("Refuse")
                .field("refs", refs)
                .field("code", code)
                .field("retry_after_ms", retry_after_ms)
                .field("text", text)
                .finish(),
            Self::BestEffort { items } => write!(f, "BestEffort {{ items: {} }}", items.len()),
        }
    }
}
