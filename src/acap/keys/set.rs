//! The keys of one agent, and when each of them signs.

use super::KEYS_MAX;
use crate::acap::jws::{Jws, JwsError, PublicKey};
use proto::id::AgentId;
use proto::time::Time;
use serde_json::Value;

/// One key of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// What signatures call it, if they do.
    pub kid: Option<String>,
    /// The key.
    pub public: PublicKey,
    /// Before this it does not sign.
    pub not_before: Option<Time>,
    /// After this it does not sign.
    pub not_after: Option<Time>,
    /// From then on it may be in the hands of others.
    pub revoked_at: Option<Time>,
}

/// When a document says it was signed, and since when the signature is known to have been there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// What the document says.
    pub signed: Time,
    /// When it was anchored, or seen by us.
    pub seen: Time,
}

/// Why a document does not tell the keys of an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeySetError {
    /// Not such a document.
    #[error("it is no {0}")]
    Document(&'static str),
    /// The document of another.
    #[error("it is the document of {found:?}, where that of {expected} belongs")]
    Other {
        /// Whose is asked for.
        expected: String,
        /// Whose it is.
        found: String,
    },
    /// More than [`KEYS_MAX`].
    #[error("it has {count} keys, over the limit of {KEYS_MAX}")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// A key without a use for us is passed over; if none is left, there is nothing to verify with.
    #[error("it has no key of Ed25519 or P-256 that signs statements")]
    NoKey,
    /// A key with a time that cannot be read: to pass it over would make a revoked key good.
    #[error("its key {kid:?} has a {member} that is no time")]
    BadTime {
        /// Which key.
        kid: String,
        /// Which member.
        member: &'static str,
    },
}

/// What is wrong with the signature of a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureFault {
    /// It has none, and needs one.
    #[error("it has no signature, and needs one")]
    Missing,
    /// It is not one of this document by that key.
    #[error(transparent)]
    Jws(#[from] JwsError),
    /// No key of that name.
    #[error("{signer} has no key {kid:?} for {algorithm}; it has {known}")]
    UnknownKey {
        /// Who should have signed.
        signer: AgentId,
        /// The key named.
        kid: String,
        /// By which algorithm.
        algorithm: &'static str,
        /// The keys there are.
        known: String,
    },
    /// The key did not sign yet, or no more.
    #[error("key {kid:?} of {signer} signs {rule}, and this was signed at {signed}")]
    Times {
        /// Who signed.
        signer: AgentId,
        /// The key.
        kid: String,
        /// From when, or until when.
        rule: String,
        /// What the document says.
        signed: String,
    },
    /// The key was revoked before the signature is known to have been there.
    #[error(
        "key {kid:?} of {signer} was revoked at {revoked}, and nothing shows the signature before {seen}"
    )]
    Revoked {
        /// Who signed.
        signer: AgentId,
        /// The key.
        kid: String,
        /// When it was revoked.
        revoked: String,
        /// Since when the signature is known.
        seen: String,
    },
}

/// The keys of one agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySet(Vec<Key>);

impl KeySet {
    fn new(keys: Vec<Key>) -> Result<Self, KeySetError> {
        if keys.is_empty() { Err(KeySetError::NoKey) } else { Ok(Self(keys)) }
    }

    /// The key that a `did:key` is.
    ///
    /// # Errors
    /// [`KeySetError`]: it is none.
    pub fn from_did_key(did: &str) -> Result<Self, KeySetError> {
        let none = || KeySetError::Document("did:key of Ed25519 or P-256");
        let multikey = did.strip_prefix("did:key:").ok_or_else(none)?;
        let public = PublicKey::from_multikey(multikey).map_err(|_| none())?;
        let kid = Some(format!("{did}#{multikey}"));
        Self::new(vec![Key { kid, public, not_before: None, not_after: None, revoked_at: None }])
    }

    /// The keys in a JWKS (RFC 7517 §5). Their times are in `nbf`, `exp` and `revoked.revoked_at`, in seconds
    /// (OpenID Federation 1.0 §8.7.2).
    ///
    /// # Errors
    /// [`KeySetError`]: it is none, or has no key for us.
    pub fn from_jwks(jwks: &Value) -> Result<Self, KeySetError> {
        let keys = jwks.get("keys").and_then(Value::as_array);
        let keys = keys.ok_or(KeySetError::Document("JWKS"))?;
        few(keys.len())?;
        let mut found = Vec::new();
        for jwk in keys {
            // A set may hold keys for other things and of other kinds.
            let Ok(public) = PublicKey::from_jwk(jwk) else { continue };
            let kid = jwk.get("kid").and_then(Value::as_str).map(str::to_owned);
            let time = |member: &'static str, pointer: &str| {
                let seconds = jwk.pointer(pointer).filter(|value| !value.is_null());
                let bad = || KeySetError::BadTime { kid: kid.clone().unwrap_or_default(), member };
                let seconds = seconds.map(|value| value.as_u64().ok_or_else(bad)).transpose()?;
                Ok(seconds.map(|seconds| Time::from_ms(seconds.saturating_mul(1_000))))
            };
            let (not_before, not_after) = (time("nbf", "/nbf")?, time("exp", "/exp")?);
            let revoked_at = match jwk.get("revoked") {
                None | Some(Value::Null) => None,
                // Revoked without saying when: for as long as there was time.
                Some(_) => {
                    Some(time("revoked_at", "/revoked/revoked_at")?.unwrap_or(Time::from_ms(0)))
                }
            };
            found.push(Key { kid, public, not_before, not_after, revoked_at });
        }
        Self::new(found)
    }

    /// The keys by which the subject of a DID document makes statements (DID Core §5.3.2). Their times are in
    /// `expires` and `revoked` (Controlled Identifiers 1.0 §2.2).
    ///
    /// # Errors
    /// [`KeySetError`]: it is the document of another, or has no key for us.
    pub fn from_did_document(did: &str, document: &Value) -> Result<Self, KeySetError> {
        let id = document.get("id").and_then(Value::as_str);
        let id = id.ok_or(KeySetError::Document("DID document"))?;
        if id != did {
            let found = id.chars().take(256).collect();
            return Err(KeySetError::Other { expected: did.to_owned(), found });
        }
        let list = |name: &str| {
            let items = document.get(name).and_then(Value::as_array);
            items.map(Vec::as_slice).unwrap_or_default()
        };
        let (methods, uses) = (list("verificationMethod"), list("assertionMethod"));
        few(methods.len())?;
        few(uses.len())?;
        let full =
            |id: &str| if id.starts_with('#') { format!("{did}{id}") } else { id.to_owned() };
        let id_of = |method: &Value| method.get("id").and_then(Value::as_str).map(full);
        let mut found = Vec::new();
        for used in uses {
            // By name, or in place.
            let method = match used {
                Value::String(name) => {
                    let name = Some(full(name));
                    methods.iter().find(|method| id_of(method) == name)
                }
                method => Some(method),
            };
            let Some((method, kid)) = method.and_then(|method| Some((method, id_of(method)?)))
            else {
                continue;
            };
            // What another controls is not this one's word.
            let controller = method.get("controller").and_then(Value::as_str);
            if controller.is_some_and(|controller| controller != did) {
                continue;
            }
            let public = match (method.get("publicKeyJwk"), method.get("publicKeyMultibase")) {
                (Some(jwk), None) => PublicKey::from_jwk(jwk),
                (None, Some(Value::String(text))) => PublicKey::from_multikey(text),
                _ => continue,
            };
            let Ok(public) = public else { continue };
            let time = |member: &'static str| match method.get(member) {
                None | Some(Value::Null) => Ok(None),
                Some(value) => value
                    .as_str()
                    .and_then(|text| Time::parse_rfc3339(text).ok())
                    .map(Some)
                    .ok_or_else(|| KeySetError::BadTime { kid: kid.clone(), member }),
            };
            let (not_after, revoked_at) = (time("expires")?, time("revoked")?);
            found.push(Key { kid: Some(kid), public, not_before: None, not_after, revoked_at });
        }
        Self::new(found)
    }

    /// Its keys.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.0
    }

    /// Whether a key of that name is there. A name may be the last part of a DID URL.
    #[must_use]
    pub fn knows(&self, jws: &Jws) -> bool {
        self.named(jws).next().is_some()
    }

    /// Keys that a signature may be by.
    fn named<'a>(&'a self, jws: &'a Jws) -> impl Iterator<Item = &'a Key> {
        self.0.iter().filter(|key| {
            let named = match (jws.kid(), key.kid.as_deref()) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(said), Some(kid)) => {
                    said == kid || kid.rsplit_once('#').is_some_and(|(_, last)| last == said)
                }
            };
            named && key.public.algorithm() == jws.algorithm()
        })
    }

    /// Checks a signature over `payload`.
    ///
    /// # Errors
    /// [`SignatureFault`] says what is wrong with it.
    pub fn verify(
        &self,
        jws: &Jws,
        payload: &[u8],
        signer: &AgentId,
        times: Times,
    ) -> Result<(), SignatureFault> {
        let mut fault = None;
        for key in self.named(jws) {
            let found = jws.verify(payload, &key.public).map_err(SignatureFault::from);
            match found.and_then(|()| key.in_time(signer, times)) {
                Ok(()) => return Ok(()),
                Err(why) => fault = Some(why),
            }
        }
        Err(fault.unwrap_or_else(|| SignatureFault::UnknownKey {
            signer: signer.clone(),
            kid: jws.kid().unwrap_or("(none named)").to_owned(),
            algorithm: jws.algorithm().as_str(),
            known: self.names(),
        }))
    }

    fn names(&self) -> String {
        let names: Vec<&str> =
            self.0.iter().take(4).map(|key| key.kid.as_deref().unwrap_or("(no kid)")).collect();
        let more = self.0.len().saturating_sub(names.len());
        let names = names.join(", ");
        if more == 0 { names } else { format!("{names} and {more} more") }
    }
}

impl Key {
    fn in_time(
        &self,
        signer: &AgentId,
        Times { signed, seen }: Times,
    ) -> Result<(), SignatureFault> {
        let kid = || self.kid.clone().unwrap_or_default();
        let outside = |rule: String| SignatureFault::Times {
            signer: signer.clone(),
            kid: kid(),
            rule,
            signed: signed.to_rfc3339(),
        };
        if let Some(from) = self.not_before.filter(|from| signed < *from) {
            return Err(outside(format!("from {}", from.to_rfc3339())));
        }
        if let Some(until) = self.not_after.filter(|until| signed > *until) {
            return Err(outside(format!("until {}", until.to_rfc3339())));
        }
        match self.revoked_at {
            Some(revoked) if seen >= revoked || signed >= revoked => Err(SignatureFault::Revoked {
                signer: signer.clone(),
                kid: kid(),
                revoked: revoked.to_rfc3339(),
                seen: seen.to_rfc3339(),
            }),
            _ => Ok(()),
        }
    }
}

fn few(count: usize) -> Result<(), KeySetError> {
    if count > KEYS_MAX { Err(KeySetError::TooMany { count }) } else { Ok(()) }
}
