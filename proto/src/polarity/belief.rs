use super::{Change, Judgement, Polarity, PolarityError, key_member};
use crate::id::GovernedKey;
use crate::obligation::Obligation;
use crate::payload::PayloadValue;
use crate::safe_action::SafeEffect;
use crate::weight::Weight;

/// `phala.belief_update`: signed polarity. A corrective update (negative delta) is admissible and
/// `safe(O)` down-weights by its magnitude; a reinforcing one travels best-effort.
#[derive(Clone, Copy, Debug)]
pub struct BeliefUpdate;

impl Polarity for BeliefUpdate {
    fn judge(&self, obligation: &Obligation) -> Result<Judgement, PolarityError> {
        let fault = |why: &str| PolarityError::payload(&obligation.kind, "weight_delta", why);
        let number = match obligation.payload.get("weight_delta") {
            Some(PayloadValue::Number(number)) => number,
            Some(PayloadValue::Int(number @ -1..=1)) => number as f64,
            Some(PayloadValue::Int(_)) => return Err(fault("is outside [-1, 1]")),
            Some(_) => return Err(fault("is not a number")),
            None => return Err(fault("is missing")),
        };
        if !(-1.0..=1.0).contains(&number) {
            return Err(fault("is outside [-1, 1]"));
        }
        let delta = Weight::from_f64(number)
            .map_err(PolarityError::weight(&obligation.kind, "weight_delta"))?;
        let key = match key_member(obligation, "weight_key")? {
            Some(key) => key,
            None => GovernedKey::new(&format!("routing.{}.preference", obligation.target))
                .map_err(PolarityError::key(&obligation.kind, "weight_key"))?,
        };
        let safe = (delta < Weight::ZERO)
            .then(|| SafeEffect::DownWeight { weight_key: key.clone(), magnitude: delta.abs() });
        Ok(Judgement { key, change: Change::Weight { delta }, safe })
    }
}
