use super::{Change, Judgement, Polarity, PolarityError, key_member, target_key};
use crate::obligation::Obligation;
use crate::payload::PayloadValue;
use crate::safe_action::SafeEffect;

/// `oauth.token`: a revocation (RFC 7009) fails closed on the token; issue and refresh are benign.
#[derive(Clone, Copy, Debug)]
pub struct Token;

impl Polarity for Token {
    fn judge(&self, obligation: &Obligation) -> Result<Judgement, PolarityError> {
        let granted = match obligation.payload.get("action") {
            Some(PayloadValue::Text("revoke")) => false,
            Some(PayloadValue::Text("issue" | "refresh")) => true,
            _ => {
                let why = "is not one of revoke, issue, refresh";
                return Err(PolarityError::payload(&obligation.kind, "action", why));
            }
        };
        let key = match key_member(obligation, "token_id")? {
            Some(token) => token,
            None => match key_member(obligation, "client_id")? {
                Some(client) => client,
                None => target_key(obligation)?,
            },
        };
        let safe = (!granted).then(|| SafeEffect::FailClosed { scope: key.clone() });
        Ok(Judgement { key, change: Change::Authorization { granted }, safe })
    }
}
