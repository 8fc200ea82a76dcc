//! safe(O): what the principal's side does by itself when an obligation is not confirmed.

use crate::ack::Reason;
use crate::cbor::{CborError, Reader, Writer};
use crate::field::{self, Members, name, whole};
use crate::id::{AgentId, GovernedKey, IdError, ObligationId};
use crate::weight::{Weight, WeightError};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The action AB-4 applies to principal state, without the target's help.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SafeActionJson", into = "SafeActionJson")]
pub struct SafeAction {
    /// The obligation it stands in for.
    pub obligation_id: ObligationId,
    /// The agent that did not confirm.
    pub target: AgentId,
    /// What to do.
    pub effect: SafeEffect,
    /// Why, for people.
    pub rationale: Reason,
    /// The obligation's sequence: a lower or equal one of another obligation drops the action (SG-1).
    pub sequence: Option<u64>,
}

/// What a [`SafeAction`] does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SafeEffect {
    /// Withhold the authority named by the scope.
    FailClosed {
        /// Scope, token or target whose authority is withheld.
        scope: GovernedKey,
    },
    /// Lower a weight, clipped to its declared bounds.
    DownWeight {
        /// The weight.
        weight_key: GovernedKey,
        /// By how much, zero or more.
        magnitude: Weight,
    },
}

impl SafeEffect {
    /// The governed key whose state it sets.
    #[must_use]
    pub const fn key(&self) -> &GovernedKey {
        match self {
            Self::FailClosed { scope } => scope,
            Self::DownWeight { weight_key, .. } => weight_key,
        }
    }
}

/// Why a JSON document is no [`SafeAction`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SafeActionError {
    /// A `fail_closed` with a magnitude other than 0, or a magnitude below 0.
    #[error("a magnitude of {given} does not go with this effect")]
    Magnitude {
        /// Units given.
        given: f64,
    },
    /// A magnitude that is no weight.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// The scope or weight key to fall back on is no governed key.
    #[error(transparent)]
    Key(#[from] IdError),
}

impl SafeAction {
    /// The deterministic CBOR encoding. The magnitude is an integer of 1e-9 units.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(512);
        writer.map(4 + usize::from(self.sequence.is_some()));
        writer.uint(0).text(self.obligation_id.as_str());
        writer.uint(1).text(self.target.as_str());
        writer.uint(2);
        match &self.effect {
            SafeEffect::FailClosed { scope } => writer.array(2).uint(0).text(scope.as_str()),
            SafeEffect::DownWeight { weight_key, magnitude } => {
                writer.array(3).uint(1).text(weight_key.as_str()).int(magnitude.nanos())
            }
        };
        writer.uint(3).text(self.rationale.as_str());
        if let Some(sequence) = self.sequence {
            writer.uint(4).uint(sequence);
        }
        writer.into_bytes()
    }

    /// Decodes `bytes`, which must be exactly one safe action.
    ///
    /// # Errors
    /// [`CborError`] for anything but the encoding [`SafeAction::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        whole(bytes, |reader| {
            let mut map = Members::open(reader)?;
            let action = Self {
                obligation_id: name(map.required(0)?, "obligation_id")?,
                target: name(map.required(1)?, "target")?,
                effect: SafeEffect::read(map.required(2)?)?,
                rationale: Reason::read(map.required(3)?)?,
                sequence: map.optional(4)?.map(Reader::uint).transpose()?,
            };
            map.end()?;
            Ok(action)
        })
    }
}

impl SafeEffect {
    fn read(reader: &mut Reader<'_>) -> Result<Self, CborError> {
        match (reader.array(3)?, reader.uint()?) {
            (2, 0) => Ok(Self::FailClosed { scope: name(reader, "scope")? }),
            (3, 1) => {
                let weight_key = name(reader, "weight_key")?;
                let nanos = reader.int()?;
                let magnitude = Weight::from_nanos(nanos);
                if magnitude.nanos() != nanos || nanos < 0 {
                    return Err(CborError::invalid("magnitude", "is below zero or beyond 1e6"));
                }
                Ok(Self::DownWeight { weight_key, magnitude })
            }
            _ => Err(CborError::invalid("effect", "is neither fail_closed nor down_weight")),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EffectName {
    FailClosed,
    DownWeight,
}

/// The JSON form before its values are checked.
#[derive(Serialize, Deserialize)]
struct SafeActionJson {
    obligation_id: ObligationId,
    target: AgentId,
    effect: EffectName,
    magnitude: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weight_key: Option<GovernedKey>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scope: Option<GovernedKey>,
    rationale: Reason,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "field::json::uint_optional"
    )]
    sequence: Option<u64>,
}

impl TryFrom<SafeActionJson> for SafeAction {
    type Error = SafeActionError;
    fn try_from(json: SafeActionJson) -> Result<Self, SafeActionError> {
        let magnitude = Weight::from_f64(json.magnitude)?;
        let target = json.target.as_str();
        // Without a key of its own the action is on the target.
        let effect = match json.effect {
            EffectName::FailClosed if magnitude == Weight::ZERO => SafeEffect::FailClosed {
                scope: json.scope.map_or_else(|| GovernedKey::new(target), Ok)?,
            },
            EffectName::DownWeight if !magnitude.is_negative() => SafeEffect::DownWeight {
                weight_key: json.weight_key.map_or_else(
                    || GovernedKey::new(&format!("routing.{target}.preference")),
                    Ok,
                )?,
                magnitude,
            },
            _ => return Err(SafeActionError::Magnitude { given: json.magnitude }),
        };
        Ok(Self {
            obligation_id: json.obligation_id,
            target: json.target,
            effect,
            rationale: json.rationale,
            sequence: json.sequence,
        })
    }
}

impl From<SafeAction> for SafeActionJson {
    fn from(action: SafeAction) -> Self {
        let (effect, magnitude, scope, weight_key) = match action.effect {
            SafeEffect::FailClosed { scope } => (EffectName::FailClosed, 0.0, Some(scope), None),
            SafeEffect::DownWeight { weight_key, magnitude } => {
                (EffectName::DownWeight, magnitude.to_f64(), None, Some(weight_key))
            }
        };
        Self {
            obligation_id: action.obligation_id,
            target: action.target,
            effect,
            magnitude,
            weight_key,
            scope,
            rationale: action.rationale,
            sequence: action.sequence,
        }
    }
}
