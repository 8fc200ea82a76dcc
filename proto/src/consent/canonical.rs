//! One spelling of each document (RFC 8785), and the hashes and signatures that speak of it.
//!
//! Members of ours that are `null` are left out, as if they were absent: that is what they mean, and
//! what the hash of a policy is defined over (Anumati §3.1). Members we do not know stand as they came.
//! Numbers are IEEE 754 doubles, as RFC 8785 has it: an integer beyond 2^53 is rounded.

mod letters;

use super::adherence::AdherenceEvent;
use super::capability::CapabilityManifest;
use super::policy::PolicyDocument;
use super::record::{ChainAnchor, ConsentRecord};
use super::text::{ContentHash, List};
use serde::Serialize;
use serde_json::Value;

/// Why a value has no canonical form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no canonical JSON: {0}")]
pub struct CanonicalError(String);

/// A document does not have the hash it is said to have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} says its hash is {told}, and it is {found}")]
pub struct HashMismatch {
    /// Which document.
    pub what: String,
    /// What is said.
    pub told: ContentHash,
    /// What was computed.
    pub found: ContentHash,
}

/// The canonical JSON of `value` (RFC 8785).
///
/// # Errors
/// [`CanonicalError`] for what JSON cannot say, such as a name that is no text.
pub fn canonical(value: &impl Serialize) -> Result<Vec<u8>, CanonicalError> {
    serde_json_canonicalizer::to_vec(value).map_err(|error| CanonicalError(error.to_string()))
}

/// The canonical JSON of a document of ours, with `empty` set to the empty text and without `without`.
fn bytes(document: &impl Serialize, empty: Option<&str>, without: Option<&str>) -> Vec<u8> {
    // Documents are plain data with text names and finite numbers: neither step can fail. Were it to,
    // the hash of nothing matches no document.
    let mut value = serde_json::to_value(document).unwrap_or_default();
    if let Value::Object(members) = &mut value {
        if let Some(name) = empty {
            members.insert(name.to_owned(), Value::String(String::new()));
        }
        if let Some(name) = without {
            members.remove(name);
        }
    }
    canonical(&value).unwrap_or_default()
}

impl PolicyDocument {
    /// The hash of its content (Anumati §3.1): over its canonical JSON with `document_hash` empty.
    #[must_use]
    pub fn computed_hash(&self) -> ContentHash {
        let letters = letters::of_policy(self);
        ContentHash::of(&letters.unwrap_or_else(|| bytes(self, Some("document_hash"), None)))
    }

    /// Whether it is what its hash says.
    ///
    /// # Errors
    /// [`HashMismatch`] with both.
    pub fn verify_hash(&self) -> Result<(), HashMismatch> {
        let what = || format!("policy {} {}", self.publisher, self.version);
        verify(what, &self.document_hash, self.computed_hash())
    }

    /// The document with its hash, to be published. `jurisdictions` is written even if there are none:
    /// the protocol's first implementation hashes an empty list where there is no such member.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        if self.jurisdictions.is_none() {
            self.jurisdictions = List::new(Vec::new()).ok();
        }
        self.document_hash = self.computed_hash();
        self
    }
}

impl CapabilityManifest {
    /// The hash of what the caller is (Anumati §3.6): over its canonical JSON with
    /// `caller_capability_hash` empty and its tools in order.
    #[must_use]
    pub fn computed_hash(&self) -> ContentHash {
        let mut tools = self.tools.to_vec();
        tools.sort_unstable();
        tools.dedup();
        let tools = List::new(tools).unwrap_or_else(|_| self.tools.clone());
        let sorted = Self { tools, ..self.clone() };
        ContentHash::of(&bytes(&sorted, Some("caller_capability_hash"), None))
    }

    /// Whether it is what its hash says.
    ///
    /// # Errors
    /// [`HashMismatch`] with both.
    pub fn verify_hash(&self) -> Result<(), HashMismatch> {
        let what = || format!("the capability manifest of {}", self.model);
        verify(what, &self.caller_capability_hash, self.computed_hash())
    }

    /// The manifest with its hash.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.caller_capability_hash = self.computed_hash();
        self
    }
}

fn verify(
    what: impl FnOnce() -> String,
    told: &ContentHash,
    found: ContentHash,
) -> Result<(), HashMismatch> {
    if *told == found {
        return Ok(());
    }
    Err(HashMismatch { what: what(), told: told.clone(), found })
}

/// What can be signed, and anchored afterwards: a consent record or an adherence event.
pub trait Anchored {
    /// What its signature is over (Anumati §3.4): its canonical JSON with the signature empty. An anchor
    /// comes after the signature, so it is not covered.
    fn signing_input(&self) -> Vec<u8>;

    /// What its anchor is over: its canonical JSON without the anchor.
    fn record_hash(&self) -> ContentHash;

    /// Its anchor.
    fn anchor(&self) -> Option<&ChainAnchor>;

    /// What it is called in errors.
    fn name(&self) -> String;

    /// Whether its anchor, if it has one that is its own, speaks of it. That the ledger has the anchor
    /// is for those to see who can ask the ledger.
    ///
    /// # Errors
    /// [`HashMismatch`] with both hashes.
    fn verify_anchor(&self) -> Result<(), HashMismatch> {
        match self.anchor() {
            Some(anchor) => verify(
                || format!("the anchor of {}", self.name()),
                &anchor.record_hash,
                self.record_hash(),
            ),
            None => Ok(()),
        }
    }
}

impl Anchored for ConsentRecord {
    fn signing_input(&self) -> Vec<u8> {
        bytes(self, Some("caller_signature"), Some("chain_anchor"))
    }

    fn record_hash(&self) -> ContentHash {
        ContentHash::of(&bytes(self, None, Some("chain_anchor")))
    }

    fn anchor(&self) -> Option<&ChainAnchor> {
        self.chain_anchor.as_ref()
    }

    fn name(&self) -> String {
        format!("consent record {}", self.record_id)
    }
}

impl Anchored for AdherenceEvent {
    fn signing_input(&self) -> Vec<u8> {
        bytes(self, Some("agent_signature"), Some("chain_anchor"))
    }

    fn record_hash(&self) -> ContentHash {
        ContentHash::of(&bytes(self, None, Some("chain_anchor")))
    }

    fn anchor(&self) -> Option<&ChainAnchor> {
        self.chain_anchor.as_ref()
    }

    fn name(&self) -> String {
        format!("adherence event {}", self.event_id)
    }
}
