//! What the core reports: for the event stream, the log and metrics. Payloads never appear.

use crate::ack::{AckStatus, Reason};
use crate::id::{AgentId, Kind, ObligationId};
use crate::record::{Escalation, Reconcile, Terminal};
use serde::Serialize;

/// One thing that happened, after it became durable.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The receiver attests application. Told at once: what it says is durable at the receiver and
    /// promises nothing of our own disk, where [`Event::Terminal`] follows.
    Attested {
        /// The obligation.
        obligation_id: ObligationId,
        /// Its target.
        target: AgentId,
    },
    /// A transfer ended.
    Terminal {
        /// The obligation.
        obligation_id: ObligationId,
        /// Its kind.
        kind: Kind,
        /// Its target.
        target: AgentId,
        /// How it ended.
        outcome: Terminal,
        /// Why, when declined or escalated.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Reason>,
        /// Retries made.
        retries: u32,
        /// From issue to end, in milliseconds.
        took_ms: u64,
    },
    /// AB-4: filed in the escalation inbox.
    Escalated(Box<Escalation>),
    /// The principal has seen an escalation, for the first time.
    Acknowledged {
        /// The obligation.
        obligation_id: ObligationId,
    },
    /// Half the deadline has passed without a terminal ack.
    Warning {
        /// The obligation.
        obligation_id: ObligationId,
        /// Its target.
        target: AgentId,
        /// Retries made.
        retries: u32,
        /// What is left, in milliseconds.
        left_ms: u64,
    },
    /// This node, as receiver, dealt with an offer for the first time.
    Received {
        /// Who issued it.
        issuer: AgentId,
        /// The obligation.
        obligation_id: ObligationId,
        /// Its kind.
        kind: Kind,
        /// What came of it.
        status: AckStatus,
        /// Why, when declined or deferred.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Reason>,
    },
    /// An item for reconciliation was filed.
    Reconcile(Box<Reconcile>),
    /// Offers or acks of a peer were refused or ignored.
    PeerFault {
        /// The peer.
        peer: AgentId,
        /// What was wrong.
        fault: Fault,
        /// For people.
        detail: String,
    },
    /// A session came up.
    SessionUp {
        /// The peer.
        peer: AgentId,
    },
    /// A session went down.
    SessionDown {
        /// The peer.
        peer: AgentId,
    },
}

/// What a peer did wrong, or could not be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fault {
    /// An ack for an obligation it was never offered, or is not the target of.
    ForeignAck,
    /// An issue it is not authorized for.
    Unauthorized,
    /// An obligation for another target.
    WrongTarget,
    /// Bytes that do not decode.
    Malformed,
    /// A kind we do not carry.
    Unsupported,
    /// More than its rate or our queues allow.
    Overloaded,
    /// It refused our offer.
    RefusedUs,
}
