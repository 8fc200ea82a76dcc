use super::{Change, Judgement, Polarity, PolarityError, key_member, target_key};
use crate::obligation::Obligation;
use crate::payload::PayloadValue;
use crate::safe_action::SafeEffect;

/// `anumati.consent`: binary polarity. Anything but a grant is restrictive, and `safe(O)` fails
/// closed on the scope.
#[derive(Clone, Copy, Debug)]
pub struct Consent;

impl Polarity for Consent {
    fn judge(&self, obligation: &Obligation) -> Result<Judgement, PolarityError> {
        let key = match key_member(obligation, "scope")? {
            Some(scope) => scope,
            None => target_key(obligation)?,
        };
        let granted =
            matches!(obligation.payload.get("decision"), Some(PayloadValue::Text("grant")));
        let safe = (!granted).then(|| SafeEffect::FailClosed { scope: key.clone() });
        Ok(Judgement { key, change: Change::Authorization { granted }, safe })
    }
}
