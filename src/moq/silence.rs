//! Whether a peer that has offers of ours is heard.
//!
//! An ack that is lost is offered for once more. A track of which nothing comes any more would lose them all.

use std::time::Duration;
use tokio::time::Instant;

/// What nothing was heard since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Silence {
    /// Nothing is to be answered, or something came since.
    #[default]
    No,
    /// Offers are out since then.
    Offered(Instant),
    /// It was asked then whether it is there.
    Asked(Instant),
}

/// What is to be done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask it: who takes its time for an offer answers that.
    Ask,
    /// Meet it anew.
    Leave,
}

impl Silence {
    /// Offers went to it.
    pub(super) fn offered(&mut self) {
        if *self == Self::No {
            *self = Self::Offered(Instant::now());
        }
    }

    /// When the next step is due, if nothing comes until then; a step is due `answer` after the one before it.
    pub(super) fn due(self, answer: Duration) -> Option<Instant> {
        match self {
            Self::No => None,
            Self::Offered(since) | Self::Asked(since) => Some(since + answer),
        }
    }

    /// Takes the step that is due.
    pub(super) fn step(&mut self) -> Option<Step> {
        match self {
            Self::No => None,
            Self::Offered(_) => {
                *self = Self::Asked(Instant::now());
                Some(Step::Ask)
            }
            Self::Asked(_) => Some(Step::Leave),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ab1_who_answers_nothing_is_asked_and_then_left() {
        const ANSWER: Duration = Duration::from_secs(10);
        let mut silence = Silence::default();
        assert_eq!((silence.due(ANSWER), silence.step()), (None, None));
        silence.offered();
        let begun = Instant::now();
        tokio::time::advance(ANSWER / 2).await;
        silence.offered(); // a retry does not put it off
        assert_eq!(silence.due(ANSWER), Some(begun + ANSWER));
        tokio::time::advance(ANSWER / 2).await;
        assert_eq!(silence.step(), Some(Step::Ask));
        silence.offered();
        assert_eq!(silence.due(ANSWER), Some(begun + 2 * ANSWER));
        assert_eq!(silence.step(), Some(Step::Leave));
    }
}
