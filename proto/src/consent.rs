//! Consent proved for each action (Anumati; on the wire ACAP): documents, rules, and the machine of
//! one caller and one callee.
//!
//! A callee publishes a [`PolicyDocument`]. A caller answers with a [`ConsentRecord`] that says of every
//! claim of it whether it is understood and whether it is disputed, and before each action with an
//! [`AdherenceEvent`] that cites the claim it was held against, and says why. Both are chains that only
//! grow. [`Lifecycle`] says what may happen when; it keeps what it needs of the two chains, and asks for
//! records to be appended. Nothing here has a clock, a network or a disk.
//!
//! Documents are JSON with the protocol's names. [`read`] is the one door for bytes of others: it checks
//! their size, their depth and their names before anything is built of them.

mod adherence;
mod canonical;
mod capability;
mod chain;
mod check;
mod diff;
mod json;
mod lifecycle;
mod limits;
#[cfg(feature = "mutants")]
mod mutant;
mod odrl;
mod policy;
mod record;
mod text;

pub use adherence::{AdherenceDecision, AdherenceEvent};
pub use canonical::{Anchored, CanonicalError, HashMismatch, canonical};
pub use capability::CapabilityManifest;
pub use chain::{ChainError, EventFault, RecordFault, TrailError, validate_chain, validate_trail};
#[cfg(feature = "mutants")]
pub use check::evaluate_as;
pub use check::{Check, CheckError, Finding, Request, check_action, evaluate};
pub use diff::{ClaimChange, DiffError, Lineage, PolicyDiff};
pub use json::{JsonError, read};
pub use lifecycle::{
    Append, Block, Duty, Input, Lifecycle, Now, Pair, Recovery, Refused, Side, State, Step, Tier,
};
pub use limits::*;
#[cfg(feature = "mutants")]
pub use mutant::Mutant;
pub use odrl::{
    ClaimParser, Constraint, ConstraintError, Intent, OdrlParser, Operator, Truth, Use,
};
pub use policy::{
    PolicyClaim, PolicyDocument, PolicyFault, RuleType, UsagePolicyFault, UsagePolicyRef,
};
pub use record::{
    AnchorStrategy, ChainAnchor, ConsentDecision, ConsentRecord, ParsedClaim, Trigger, Triggers,
    ValidUntil,
};
pub use text::{
    ClaimId, ClaimNames, ContentHash, Context, EventId, Extra, List, PolicyVersion, PrincipalId,
    RecordId, Stamp, Text, TextError,
};

/// The URI by which an agent says that it speaks ACAP.
pub const EXTENSION_URI: &str = "https://ravikiran438.github.io/agent-consent-protocol/v1";
