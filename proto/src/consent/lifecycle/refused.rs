//! Why an input is refused.

use super::gate::{self, Block};
use super::state::{Pair, State};
use crate::consent::chain::{EventFault, RecordFault};
use crate::consent::record::Trigger;
use crate::consent::text::{ClaimId, ContentHash, EventId, PrincipalId, RecordId, Stamp};

/// Why an input is refused. The machine is as it was, but for what it has seen to be stale.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// Not in this state.
    #[error("{input} does not belong here: consent between {pair} is {state}")]
    State {
        /// What was refused.
        input: &'static str,
        /// Between whom.
        pair: Pair,
        /// The state.
        state: State,
    },
    /// No consent, or none that holds (S1, S7).
    #[error("no consent of {} to the policy of {} holds: it is {state}{}", pair.caller, pair.callee, because(*why))]
    NoConsent {
        /// Between whom.
        pair: Pair,
        /// The state.
        state: State,
        /// Why it holds no more.
        why: Option<Trigger>,
    },
    /// Claims in the way (S4, S5).
    #[error("{}", gate::blocked(claims, *count))]
    Blocked {
        /// The first of them, and what is the matter.
        claims: Vec<(ClaimId, Block)>,
        /// How many there are.
        count: usize,
    },
    /// A consent record is wrong.
    #[error("consent record {record}: {fault}")]
    Record {
        /// Which.
        record: RecordId,
        /// What is wrong.
        fault: RecordFault,
    },
    /// A consent record was made by another caller than there is now: other model, tools or configuration.
    #[error(
        "consent record {record} was made with caller_capability_hash {given:?}, and the caller has {now}"
    )]
    Capability {
        /// Which.
        record: RecordId,
        /// What it says.
        given: Option<ContentHash>,
        /// What is the case.
        now: ContentHash,
    },
    /// A consent record was made for another principal than the caller acts for now.
    #[error("consent record {record} was made for {given:?}, and the caller acts for {now}")]
    Principal {
        /// Which.
        record: RecordId,
        /// What it says.
        given: Option<PrincipalId>,
        /// What is the case.
        now: PrincipalId,
    },
    /// A consent record that no longer holds when it comes.
    #[error("consent record {record} holds until {until}, which has passed")]
    Expired {
        /// Which.
        record: RecordId,
        /// Until when.
        until: Stamp,
    },
    /// A consent record that nobody has answered for.
    #[error("consent record {record} needs a review before it, and {state}")]
    Unreviewed {
        /// Which.
        record: RecordId,
        /// How far the review is.
        state: &'static str,
    },
    /// An adherence event is wrong.
    #[error("adherence event {event}: {fault}")]
    Event {
        /// Which.
        event: EventId,
        /// What is wrong.
        fault: EventFault,
    },
}

fn because(why: Option<Trigger>) -> String {
    why.map(|why| format!(", since {why}")).unwrap_or_default()
}
