//! Belief updates where they are sent (Phala): what of one leaves this node, how far it moves a weight, and until
//! when it is worth that.
//!
//! Whether it goes under custody is a matter of its kind, as for every obligation: a corrective one does, and a
//! reinforcing one goes best-effort (AC-1).

use crate::custodian::Draft;
use crate::id::{AgentId, GovernedKey, IdError, Kind, ObligationId};
use crate::limits::DEADLINE_SECONDS_MAX;
use crate::payload::{Payload, PayloadError};
use crate::settings::WeightBounds;
use crate::time::Time;
use serde_json::{Map, Value};

/// The kind of obligation that it becomes.
pub const KIND: &str = "phala.belief_update";
/// How far one update may move a weight, whatever the bounds are.
pub const DELTA_MAX: f64 = 1.0;

/// What is known of an update. The satisfaction record it follows from, and the context, stay with whoever made it.
#[derive(Clone, Debug, PartialEq)]
pub struct BeliefUpdate {
    /// Its id, which is that of the obligation.
    pub id: ObligationId,
    /// Whose weight it moves.
    pub target: AgentId,
    /// Which weight.
    pub weight_key: GovernedKey,
    /// By how much; below zero it corrects.
    pub weight_delta: f64,
    /// From when it holds.
    pub valid_from: Time,
    /// For how long from then.
    pub ttl_seconds: u64,
}

/// Why an update is not sent.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BeliefError {
    /// Its time is over, or will be before a deadline in whole seconds could be.
    #[error("belief update {id} holds until {until}, and it is {now}: it is discarded")]
    Expired {
        /// Which.
        id: ObligationId,
        /// The end of its time.
        until: Time,
        /// Now.
        now: Time,
    },
    /// Its time has not come.
    #[error("belief update {id} holds from {from}, and it is {now}")]
    NotYet {
        /// Which.
        id: ObligationId,
        /// The beginning of its time.
        from: Time,
        /// Now.
        now: Time,
    },
    /// No number.
    #[error("belief update {id} has a weight_delta that is no finite number")]
    NotFinite {
        /// Which.
        id: ObligationId,
    },
    /// No kind of that name.
    #[error(transparent)]
    Kind(#[from] IdError),
    /// The payload is too long.
    #[error(transparent)]
    Payload(#[from] PayloadError),
}

impl BeliefUpdate {
    /// By how much it moves its weight: clipped to [`DELTA_MAX`], and to the width of the bounds that this node
    /// declares, which is as far as a weight can go.
    #[must_use]
    pub fn clipped(&self, weights: &WeightBounds) -> f64 {
        let width = weights.max.to_f64() - weights.min.to_f64();
        let most = width.clamp(0.0, DELTA_MAX);
        self.weight_delta.clamp(-most, most)
    }

    /// The obligation it becomes. Its deadline is the end of the update's time, so that what is expired is applied
    /// nowhere; of the update itself nothing but the weight and its change leaves.
    ///
    /// # Errors
    /// [`BeliefError`]: it is out of its time, or no number.
    //= BU-1
    pub fn draft(&self, now: Time, weights: &WeightBounds) -> Result<Draft, BeliefError> {
        let id = || self.id.clone();
        if !self.weight_delta.is_finite() {
            return Err(BeliefError::NotFinite { id: id() });
        }
        if now < self.valid_from {
            return Err(BeliefError::NotYet { id: id(), from: self.valid_from, now });
        }
        let until = self.valid_from.after_ms(self.ttl_seconds.saturating_mul(1000));
        let left = until.ms_since(now) / 1000;
        if left == 0 {
            return Err(BeliefError::Expired { id: id(), until, now });
        }
        let mut members = Map::new();
        members.insert("weight_key".to_owned(), self.weight_key.as_str().into());
        members.insert("weight_delta".to_owned(), Value::from(self.clipped(weights)));
        Ok(Draft {
            id: id(),
            kind: Kind::new(KIND)?,
            target: self.target.clone(),
            payload: Payload::from_json(&members)?,
            deadline_seconds: Some(left.min(DEADLINE_SECONDS_MAX)),
            max_retries: None,
            sequence: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weight::Weight;

    fn bounds(min: f64, max: f64) -> WeightBounds {
        let weight = |value| Weight::from_f64(value).unwrap();
        WeightBounds { min: weight(min), max: weight(max), initial: weight(min) }
    }

    fn update(weight_delta: f64) -> BeliefUpdate {
        BeliefUpdate {
            id: ObligationId::new("bu-1").unwrap(),
            target: AgentId::new("spiffe://t/b").unwrap(),
            weight_key: GovernedKey::new("routing.b").unwrap(),
            weight_delta,
            valid_from: Time::from_ms(1_000_000),
            ttl_seconds: 60,
        }
    }

    #[test]
    fn bu1_only_the_weight_and_its_change_leave() {
        let draft = update(-0.25).draft(Time::from_ms(1_000_000), &bounds(0.0, 1.0)).unwrap();
        let members = draft.payload.to_json();
        assert_eq!(
            Value::Object(members),
            serde_json::json!({ "weight_delta": -0.25, "weight_key": "routing.b" })
        );
        assert_eq!((draft.id.as_str(), draft.kind.as_str()), ("bu-1", KIND));
    }

    #[test]
    fn a_change_is_clipped_to_the_width_of_the_bounds_and_to_one() {
        for (delta, min, max, clipped) in [
            (-0.9, 0.0, 0.5, -0.5),
            (0.9, 0.0, 0.5, 0.5),
            (-0.4, 0.0, 0.5, -0.4),
            (-7.0, -100.0, 100.0, -1.0),
            (0.3, 2.0, 2.0, 0.0),
        ] {
            assert_eq!(
                update(delta).clipped(&bounds(min, max)),
                clipped,
                "{delta} in {min}..{max}"
            );
        }
        let error = update(f64::NAN).draft(Time::from_ms(1_000_000), &bounds(0.0, 1.0));
        assert!(matches!(error, Err(BeliefError::NotFinite { .. })));
    }

    #[test]
    fn the_deadline_is_the_end_of_its_time() {
        let at = |ms| update(-0.1).draft(Time::from_ms(ms), &bounds(0.0, 1.0));
        assert_eq!(at(1_000_000).unwrap().deadline_seconds, Some(60));
        assert_eq!(at(1_030_500).unwrap().deadline_seconds, Some(29), "never later");
        assert!(matches!(at(999_999), Err(BeliefError::NotYet { .. })));
        let error = at(1_059_001).unwrap_err();
        assert!(matches!(error, BeliefError::Expired { .. }), "no whole second is left");
        assert!(error.to_string().contains("bu-1 holds until 1970-01-01T00:17:40Z"), "{error}");
    }
}
