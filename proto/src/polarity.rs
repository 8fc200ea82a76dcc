//! Fail-safe polarity (AC-1): which obligations are carried under custody, and `safe(O)`.
//!
//! One rule per kind, found in a [`Registry`]. The machines never name a kind.

mod belief;
mod consent;
mod token;

pub use belief::BeliefUpdate;
pub use consent::Consent;
pub use token::Token;

use crate::ack::Reason;
use crate::id::{GovernedKey, IdError, Kind};
use crate::obligation::Obligation;
use crate::payload::PayloadValue;
use crate::safe_action::{SafeAction, SafeEffect};
use crate::weight::{Weight, WeightError};
use std::collections::BTreeMap;
use std::fmt;

/// What applying an obligation changes at its receiver, and in the principal's own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The authorization under the governed key is set: granted, or withheld (fail-closed).
    /// Last writer wins by sequence.
    Authorization {
        /// `false` withholds.
        granted: bool,
    },
    /// The weight under the governed key moves by a delta. Additive, so it needs no guard.
    Weight {
        /// Signed change.
        delta: Weight,
    },
}

impl Change {
    /// Whether the key holds set-semantic state, which the supersession guard protects.
    #[must_use]
    pub const fn is_set(self) -> bool {
        matches!(self, Self::Authorization { .. })
    }
}

/// What a polarity rule says of one obligation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The key whose state the obligation governs.
    pub key: GovernedKey,
    /// What applying it changes.
    pub change: Change,
    /// The effect of `safe(O)`. AC-1: admissible if and only if there is one.
    pub safe: Option<SafeEffect>,
}

impl Judgement {
    /// AC-1: whether the obligation is carried under custody.
    //= AC-1
    #[must_use]
    pub const fn admissible(&self) -> bool {
        self.safe.is_some()
    }

    /// `safe(O)`: the principal-side action of AB-4, or none for an inadmissible obligation. Pure.
    #[must_use]
    pub fn safe_action(&self, obligation: &Obligation, rationale: &str) -> Option<SafeAction> {
        self.safe.clone().map(|effect| SafeAction {
            obligation_id: obligation.id.clone(),
            target: obligation.target.clone(),
            effect,
            rationale: Reason::new(rationale),
            sequence: obligation.sequence,
        })
    }
}

/// Why an obligation cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolarityError {
    /// No rule for this kind: it declares no polarity, so it is inadmissible.
    #[error(
        "kind {kind} declares no fail-safe polarity here, so it is not carried under custody (AC-1)"
    )]
    UnknownKind {
        /// The kind.
        kind: Kind,
    },
    /// A payload member is missing or of the wrong type.
    #[error("{kind} payload: {member} {why}")]
    Payload {
        /// The kind.
        kind: Kind,
        /// The member.
        member: &'static str,
        /// What is wrong.
        why: String,
    },
}

impl PolarityError {
    fn payload(kind: &Kind, member: &'static str, why: impl ToString) -> Self {
        Self::Payload { kind: kind.clone(), member, why: why.to_string() }
    }

    fn key(kind: &Kind, member: &'static str) -> impl FnOnce(IdError) -> Self {
        move |error| Self::payload(kind, member, error)
    }

    fn weight(kind: &Kind, member: &'static str) -> impl FnOnce(WeightError) -> Self {
        move |error| Self::payload(kind, member, error)
    }
}

/// The polarity rule of one kind: a pure function of the obligation.
pub trait Polarity: Send + Sync + fmt::Debug {
    /// Judges an obligation of this rule's kind.
    ///
    /// # Errors
    /// [`PolarityError::Payload`] if the payload lacks what the rule needs.
    fn judge(&self, obligation: &Obligation) -> Result<Judgement, PolarityError>;
}

/// Polarity rules by kind.
#[derive(Debug)]
pub struct Registry {
    rules: BTreeMap<Kind, Box<dyn Polarity>>,
}

impl Registry {
    /// No rule at all: everything is inadmissible.
    #[must_use]
    pub const fn empty() -> Self {
        Self { rules: BTreeMap::new() }
    }

    /// Adds or replaces the rule of `kind`.
    #[must_use]
    pub fn with(mut self, kind: Kind, rule: impl Polarity + 'static) -> Self {
        self.rules.insert(kind, Box::new(rule));
        self
    }

    /// Kinds that have a rule.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.rules.keys()
    }

    /// Judges an obligation by the rule of its kind.
    ///
    /// # Errors
    /// [`PolarityError::UnknownKind`] without a rule, else what the rule says.
    pub fn judge(&self, obligation: &Obligation) -> Result<Judgement, PolarityError> {
        self.rules
            .get(&obligation.kind)
            .ok_or_else(|| PolarityError::UnknownKind { kind: obligation.kind.clone() })?
            .judge(obligation)
    }
}

impl Default for Registry {
    /// The papers' three kinds: `anumati.consent`, `phala.belief_update`, `oauth.token`.
    fn default() -> Self {
        let builtin: [(&str, Box<dyn Polarity>); 3] = [
            ("anumati.consent", Box::new(Consent)),
            ("phala.belief_update", Box::new(BeliefUpdate)),
            ("oauth.token", Box::new(Token)),
        ];
        let rules = builtin
            .into_iter()
            .filter_map(|(kind, rule)| Kind::new(kind).ok().map(|kind| (kind, rule)))
            .collect();
        Self { rules }
    }
}

/// The key named by payload member `member`, or none when it is absent.
fn key_member(
    obligation: &Obligation,
    member: &'static str,
) -> Result<Option<GovernedKey>, PolarityError> {
    match obligation.payload.get(member) {
        None | Some(PayloadValue::Null) => Ok(None),
        Some(PayloadValue::Text(text)) => {
            GovernedKey::new(text).map(Some).map_err(PolarityError::key(&obligation.kind, member))
        }
        Some(_) => Err(PolarityError::payload(&obligation.kind, member, "is not a text")),
    }
}

/// The obligation's target as a governed key: what a rule falls back to.
fn target_key(obligation: &Obligation) -> Result<GovernedKey, PolarityError> {
    GovernedKey::new(obligation.target.as_str())
        .map_err(PolarityError::key(&obligation.kind, "target"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{AgentId, ObligationId};
    use crate::payload::Payload;
    use crate::time::Time;

    fn obligation(kind: &str, payload: serde_json::Value) -> Obligation {
        Obligation {
            id: ObligationId::new("ob-1").unwrap(),
            kind: Kind::new(kind).unwrap(),
            target: AgentId::new("agent-b").unwrap(),
            payload: Payload::from_json(payload.as_object().unwrap()).unwrap(),
            deadline_seconds: 60,
            max_retries: 15,
            created_at: Time::from_ms(1_000),
            sequence: Some(7),
        }
    }

    fn judge(kind: &str, payload: serde_json::Value) -> Result<Judgement, PolarityError> {
        Registry::default().judge(&obligation(kind, payload))
    }

    #[test]
    fn ac1_consent_is_admissible_unless_it_grants() {
        for payload in [
            serde_json::json!({"decision": "revoke", "scope": "calendar.read"}),
            serde_json::json!({"scope": "calendar.read"}),
            serde_json::json!({"decision": "anything-else", "scope": "calendar.read"}),
        ] {
            let judged = judge("anumati.consent", payload).unwrap();
            assert!(judged.admissible());
            assert_eq!(judged.change, Change::Authorization { granted: false });
            let scope = GovernedKey::new("calendar.read").unwrap();
            assert_eq!(judged.safe, Some(SafeEffect::FailClosed { scope }));
        }
        let grant =
            judge("anumati.consent", serde_json::json!({"decision": "grant", "scope": "s"}));
        assert!(!grant.unwrap().admissible());
        let no_scope = judge("anumati.consent", serde_json::json!({"decision": "revoke"})).unwrap();
        assert_eq!(no_scope.key.as_str(), "agent-b");
    }

    #[test]
    fn ac1_belief_updates_are_admissible_by_the_sign_of_their_delta() {
        let corrective =
            judge("phala.belief_update", serde_json::json!({"weight_delta": -0.25})).unwrap();
        assert!(corrective.admissible());
        assert_eq!(corrective.key.as_str(), "routing.agent-b.preference");
        assert_eq!(
            corrective.safe,
            Some(SafeEffect::DownWeight {
                weight_key: corrective.key.clone(),
                magnitude: Weight::from_f64(0.25).unwrap()
            })
        );
        for benign in [0.0, -0.0, 0.5, 1.0] {
            let judged = judge("phala.belief_update", serde_json::json!({"weight_delta": benign}));
            assert!(!judged.unwrap().admissible(), "{benign}");
        }
        for bad in [
            serde_json::json!({}),
            serde_json::json!({"weight_delta": "x"}),
            serde_json::json!({"weight_delta": -1.5}),
            serde_json::json!({"weight_delta": -1e-300}),
        ] {
            assert!(judge("phala.belief_update", bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn ac1_tokens_are_admissible_when_revoked() {
        let revoked =
            judge("oauth.token", serde_json::json!({"action": "revoke", "token_id": "t"})).unwrap();
        assert!(revoked.admissible());
        assert_eq!(revoked.key.as_str(), "t");
        let client =
            judge("oauth.token", serde_json::json!({"action": "revoke", "client_id": "c"}));
        assert_eq!(client.unwrap().key.as_str(), "c");
        let bare = judge("oauth.token", serde_json::json!({"action": "revoke"}));
        assert_eq!(bare.unwrap().key.as_str(), "agent-b");
        for benign in ["issue", "refresh"] {
            let judged =
                judge("oauth.token", serde_json::json!({"action": benign, "token_id": "t"}));
            assert!(!judged.unwrap().admissible());
        }
        assert!(judge("oauth.token", serde_json::json!({"token_id": "t"})).is_err());
        assert!(judge("oauth.token", serde_json::json!({"action": "burn"})).is_err());
    }

    #[test]
    fn ac1_unknown_kinds_are_inadmissible() {
        assert!(matches!(
            judge("acme.telemetry", serde_json::json!({})),
            Err(PolarityError::UnknownKind { .. })
        ));
    }
}
