//! Whose signature it is: the keys of an agent, found by its name.
//!
//! `did:key` is its key. `did:web` has a document at a place its name says, an agent that is a URL has
//! `/.well-known/jwks.json` (ACAP §10), and any may have a JWKS at a URL that we are told. What is fetched is
//! believed for a while; a key that is not in it makes us look again, so a rotation is seen at once.
//!
//! A key has a time from which and until which it signs, and may be revoked. Whoever has a revoked key can write
//! any date, so a document's own date is no proof that it was signed before: only an anchor is, or that it was
//! seen then.

mod fetch;
mod set;

pub use fetch::{FetchError, Resolver, ResolverOptions, Source};
pub use set::{Key, KeySet, KeySetError, SignatureFault, Times};

use super::jws::{Jws, Signed};
use proto::id::AgentId;

/// Keys of one agent; a set of more is refused.
pub const KEYS_MAX: usize = 64;
/// Bytes of a DID document or JWKS; a longer one is refused.
pub const KEY_DOCUMENT_LEN_MAX: usize = 64 * 1024;
/// Agents whose keys are kept; the one fetched longest ago goes.
pub const AGENTS_KNOWN_MAX: usize = 1_024;
/// For how long fetched keys are believed, in milliseconds.
pub const KEYS_TIME_MAX_MS: u64 = 300_000;
/// For how long after a fetch there is no other for one agent, in milliseconds.
pub const FETCH_PAUSE_MS: u64 = 10_000;
/// Fetches under way; a further one waits as long as a fetch may take, and fails.
pub const FETCHES_MAX: usize = 8;
/// How long a fetch may take, in milliseconds.
pub const FETCH_TIME_MAX_MS: u64 = 5_000;

/// Whether documents without a signature are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignaturePolicy {
    /// They are; one that is there must be good all the same.
    #[default]
    Optional,
    /// They are not.
    Required,
}

/// What was found of a document's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verified {
    /// It is the signer's.
    Signed,
    /// It has none, and needs none.
    Unsigned,
}

/// Reads the signature of a document, if it has one or needs one.
///
/// # Errors
/// [`SignatureFault`]: there is none, or it cannot be read.
pub fn signature_of(
    document: &impl Signed,
    policy: SignaturePolicy,
) -> Result<Option<Jws>, SignatureFault> {
    match (document.signature(), policy) {
        (Some(text), _) => Ok(Some(Jws::parse(text)?)),
        (None, SignaturePolicy::Optional) => Ok(None),
        (None, SignaturePolicy::Required) => Err(SignatureFault::Missing),
    }
}

/// Checks the signature of a document by keys that are known.
///
/// # Errors
/// [`SignatureFault`] says what is wrong with it.
pub fn verify(
    document: &impl Signed,
    signer: &AgentId,
    keys: &KeySet,
    policy: SignaturePolicy,
    times: Times,
) -> Result<Verified, SignatureFault> {
    let Some(jws) = signature_of(document, policy)? else { return Ok(Verified::Unsigned) };
    keys.verify(&jws, &document.signing_input(), signer, times)?;
    Ok(Verified::Signed)
}

#[cfg(test)]
mod tests;
