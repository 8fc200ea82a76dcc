//! Constraints of claims, by the operators of ODRL 2.2, and the parser of claims that rests on them.
//!
//! The same claim, intent and context always come to the same answer, so that consent can be checked by
//! whoever has the documents. What is not certain is not guessed: a constraint that is no ODRL of ours is
//! not understood, and a comparison that cannot be made is [`Truth::Unknown`]. Either goes to a person.

mod compare;
mod parse;

use super::check::applies;
use super::limits::{PROSE_LEN_MAX, TERM_LEN_MAX, USES_MAX};
use super::policy::{PolicyClaim, RuleType};
use super::record::ParsedClaim;
use super::text::{Context, Extra, List, Text};
use crate::time::Time;
use std::fmt;

pub use parse::ConstraintError;

/// A constraint (ODRL Information Model 2.2 §2.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Constraint {
    /// One comparison.
    Compare {
        /// What is compared, such as `odrl:purpose`.
        left: String,
        /// How.
        operator: Operator,
        /// With what; with one of them, but for operators over sets.
        right: Vec<String>,
    },
    /// All of them (`and`).
    All(Vec<Self>),
    /// At least one of them (`or`).
    Any(Vec<Self>),
    /// Exactly one of them (`xone`).
    One(Vec<Self>),
}

/// How two operands are compared (ODRL Vocabulary 2.2 §3.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// `eq`, also `is`.
    Eq,
    /// `neq`, also `isNot`.
    Neq,
    /// `gt`, also `greaterThan`.
    Gt,
    /// `gteq`, also `greaterThanOrEqual`.
    Gteq,
    /// `lt`, also `lessThan`.
    Lt,
    /// `lteq`, also `lessThanOrEqual`.
    Lteq,
    /// `isA`: an instance of it. Without a vocabulary only what is it itself is known to be one.
    IsA,
    /// `hasPart`: what is given contains all of the right operand.
    HasPart,
    /// `isPartOf`: all of what is given is in the right operand.
    IsPartOf,
    /// `isAllOf`: all of the right operand is given.
    IsAllOf,
    /// `isAnyOf`: some of the right operand is given.
    IsAnyOf,
    /// `isNoneOf`: none of the right operand is given.
    IsNoneOf,
}

impl Operator {
    const fn is_order(self) -> bool {
        matches!(self, Self::Gt | Self::Gteq | Self::Lt | Self::Lteq)
    }

    const fn is_set(self) -> bool {
        matches!(
            self,
            Self::HasPart | Self::IsPartOf | Self::IsAllOf | Self::IsAnyOf | Self::IsNoneOf
        )
    }
}

/// Whether a constraint is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Truth {
    /// It is.
    Met,
    /// It is not.
    NotMet,
    /// That cannot be said, and why.
    Unknown(String),
}

impl From<bool> for Truth {
    fn from(met: bool) -> Self {
        if met { Self::Met } else { Self::NotMet }
    }
}

impl Truth {
    fn not(self) -> Self {
        match self {
            Self::Met => Self::NotMet,
            Self::NotMet => Self::Met,
            unknown @ Self::Unknown(_) => unknown,
        }
    }

    /// One that is not met decides; else one that is unknown.
    fn all(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self::Met;
        for part in parts {
            match part {
                Self::NotMet => return Self::NotMet,
                Self::Unknown(_) if all == Self::Met => all = part,
                Self::Met | Self::Unknown(_) => {}
            }
        }
        all
    }

    /// One that is met decides; else one that is unknown.
    fn any(parts: impl IntoIterator<Item = Self>) -> Self {
        Self::all(parts.into_iter().map(Self::not)).not()
    }

    /// Two that are met decide; else one that is unknown.
    fn one(parts: impl IntoIterator<Item = Self>) -> Self {
        let (mut met, mut unknown) = (0, None);
        for part in parts {
            match part {
                Self::Met => met += 1,
                Self::NotMet => {}
                Self::Unknown(_) => unknown = unknown.or(Some(part)),
            }
        }
        if met > 1 { Self::NotMet } else { unknown.unwrap_or_else(|| (met == 1).into()) }
    }
}

impl Constraint {
    /// Reads a constraint such as `odrl:purpose isNot profiling and a2a:retention_days lteq 90`.
    ///
    /// # Errors
    /// [`ConstraintError`] says what is not understood.
    pub fn parse(text: &str) -> Result<Self, ConstraintError> {
        parse::parse(text)
    }

    /// Whether it is met by what is known of an action at that time.
    #[must_use]
    pub fn evaluate(&self, context: &Context, at: Option<Time>) -> Truth {
        match self {
            Self::Compare { left, operator, right } => match given(context, left, at) {
                Ok(given) => compare::compare(left, &given, *operator, right),
                Err(why) => Truth::Unknown(why),
            },
            Self::All(parts) => Truth::all(parts.iter().map(|part| part.evaluate(context, at))),
            Self::Any(parts) => Truth::any(parts.iter().map(|part| part.evaluate(context, at))),
            Self::One(parts) => Truth::one(parts.iter().map(|part| part.evaluate(context, at))),
        }
    }

    /// What it compares, in its order.
    pub(super) fn operands<'a>(&'a self, found: &mut Vec<&'a str>) {
        match self {
            Self::Compare { left, .. } => found.push(left),
            Self::All(parts) | Self::Any(parts) | Self::One(parts) => {
                parts.iter().for_each(|part| part.operands(found));
            }
        }
    }
}

/// The name of a term without the vocabulary before it.
pub(super) fn local(term: &str) -> &str {
    match term.split_once(':') {
        Some((_, local)) if !local.starts_with('/') && !local.is_empty() => local,
        _ => term,
    }
}

/// What the context says of `left`, by its whole name or without the vocabulary.
pub(super) fn given(context: &Context, left: &str, at: Option<Time>) -> Result<String, String> {
    match (context.get(left), context.get(local(left)), at) {
        (Some(one), Some(other), _) if one != other => {
            Err(format!("the context says both {one:?} and {other:?} of {left}"))
        }
        (Some(value), ..) | (None, Some(value), _) => Ok(value.to_owned()),
        (None, None, Some(at)) if matches!(left, "odrl:dateTime" | "dateTime") => {
            Ok(at.to_rfc3339())
        }
        (None, None, _) => Err(format!("the context says nothing of {left}")),
    }
}

/// Whether two terms are one; unknown where only their vocabularies differ.
fn same(one: &str, other: &str) -> Truth {
    if one == other {
        return Truth::Met;
    }
    if let (Some(one), Some(other)) = (compare::Number::parse(one), compare::Number::parse(other)) {
        return (one == other).into();
    }
    if local(one) == local(other) {
        return Truth::Unknown(format!("{one} and {other} may be one, in two vocabularies"));
    }
    Truth::NotMet
}

/// Turns a claim into the caller's answer to it (Anumati §4.4).
pub trait ClaimParser {
    /// What the caller understands of `claim`, and whether it is against what the caller intends.
    fn parse(&self, claim: &PolicyClaim, intent: &Intent) -> ParsedClaim;
}

/// What a caller is about to do with the callee's skills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// For people, and for parsers that read.
    pub text: Text<PROSE_LEN_MAX>,
    /// For parsers that compare.
    pub uses: List<Use, 0, USES_MAX>,
}

/// One use a caller intends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The action.
    pub action: Text<TERM_LEN_MAX>,
    /// What it is done to.
    pub asset: Text<TERM_LEN_MAX>,
    /// What is known of it.
    pub context: Context,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.action, self.asset)
    }
}

/// Understands claims whose constraints it can evaluate, and disputes those that an intended use is
/// against. It knows of a use what its context says, and leaves the rest to each action.
#[derive(Clone, Copy, Debug, Default)]
pub struct OdrlParser;

impl ClaimParser for OdrlParser {
    fn parse(&self, claim: &PolicyClaim, intent: &Intent) -> ParsedClaim {
        let constraint = claim.constraint.as_ref().map(|text| Constraint::parse(text.as_str()));
        let understood = !matches!(constraint, Some(Err(_)));
        let constraint = constraint.and_then(Result::ok);
        let against = |one: &&Use| {
            let met = constraint.as_ref().map_or(Truth::Met, |it| it.evaluate(&one.context, None));
            let against = match claim.rule_type {
                RuleType::Prohibition => Truth::Met,
                RuleType::Permission => Truth::NotMet,
                RuleType::Obligation => return false,
            };
            applies(claim, one.action.as_str(), one.asset.as_str()) && met == against
        };
        let against = intent.uses.iter().filter(|_| understood).find(against);
        let reason = against.map(|one| {
            let what = match claim.rule_type {
                RuleType::Prohibition => "is what it prohibits",
                _ => "is outside of what it permits",
            };
            let constraint = claim.constraint.as_ref().map(|text| format!(" where {text}"));
            Text::cut(&format!(
                "The intended {one} {what}: {} of {} on {}{}.",
                claim.rule_type,
                claim.action,
                claim.asset,
                constraint.unwrap_or_default()
            ))
        });
        ParsedClaim {
            claim_id: claim.claim_id.clone(),
            understood,
            disputed: reason.is_some(),
            dispute_reason: reason,
            extra: Extra::default(),
        }
    }
}
