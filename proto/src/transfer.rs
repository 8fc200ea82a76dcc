//! State of one transfer: what is kept in memory of a pending obligation. Its payload stays in the
//! store.

use crate::frame::RefuseCode;
use crate::record::EscalationReason;
use crate::step::SessionId;
use crate::time::Time;

/// One pending transfer, small since there may be millions.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    /// Absolute; set at issue, never moved (AB-2).
    pub(crate) deadline_at: Time,
    /// When the next retry is due.
    pub(crate) retry_at: Time,
    /// When the early warning is due; never, once given.
    pub(crate) warn_at: Time,
    /// The session of the last offer, and its ref there.
    pub(crate) sent: Option<(SessionId, u64)>,
    /// Retries made.
    pub(crate) retries: u32,
    /// Recovered: the attempt that was under way when the node went down is repeated, and not
    /// counted again, so that no crash loop eats the budget.
    pub(crate) repeat: bool,
    /// Retry budget.
    pub(crate) max_retries: u32,
    /// Whether it waits in its peer's queue for room.
    pub(crate) queued: bool,
    /// Index into the custodian's peers.
    pub(crate) peer: u32,
    /// Index into the custodian's schedules.
    pub(crate) schedule: u16,
    /// DF-1: a deferral changes what an escalation says, and nothing else.
    pub(crate) deferred: bool,
    /// The last refusal, if the receiver refused the offer.
    pub(crate) refused: Option<RefuseCode>,
}

/// Why a transfer's alarm went off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// AB-4: the deadline.
    Deadline,
    /// AB-4: the last retry went unanswered.
    Exhausted,
    /// AB-2: time to offer again.
    Retry,
    /// Half the deadline is gone.
    Warning,
}

impl Transfer {
    /// The one alarm of this transfer.
    pub(crate) fn alarm(&self) -> Time {
        self.deadline_at.min(self.retry_at).min(self.warn_at)
    }

    /// What is due at `now`, the most final first.
    pub(crate) fn due(&self, now: Time) -> Option<Due> {
        if self.deadline_at <= now {
            Some(Due::Deadline)
        } else if self.retry_at <= now && self.retries >= self.max_retries && !self.repeat {
            Some(Due::Exhausted)
        } else if self.retry_at <= now {
            Some(Due::Retry)
        } else if self.warn_at <= now {
            Some(Due::Warning)
        } else {
            None
        }
    }

    /// What is known of the receiver, for the escalation.
    pub(crate) const fn escalation_reason(&self, due: Due) -> EscalationReason {
        match (self.refused, self.deferred, due) {
            (Some(RefuseCode::Unauthorized), ..) => EscalationReason::Unauthenticated,
            (
                Some(RefuseCode::Unsupported | RefuseCode::Malformed | RefuseCode::WrongTarget),
                ..,
            ) => EscalationReason::Unsupported,
            (_, true, _) => EscalationReason::Deferring,
            (Some(RefuseCode::Overloaded), ..) => EscalationReason::Overloaded,
            (.., Due::Exhausted) => EscalationReason::RetriesExhausted,
            _ => EscalationReason::Unreachable,
        }
    }
}
