//! Keys by which a node signs what it says as a caller, and holds what its own callers have signed against theirs.

use super::caller::Signer;
use super::jws::{Signed, SigningKey};
use super::keys::{FetchError, KeySet, Resolver, ResolverOptions, SignaturePolicy, Times};
use super::line::AcapError;
use super::{Acap, Denial};
use crate::config::{NodeConfig, Signatures, SigningKeys, read_secret};
use axum::http::StatusCode;
use proto::id::AgentId;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a file with a JWKS.
pub(super) const KEYS_FILE_LEN_MAX: u64 = 64 * 1024;

impl Signer for SigningKey {
    fn sign(&self, input: &[u8]) -> Result<String, String> {
        Self::sign(self, input).map_err(|error| error.to_string())
    }
}

fn fault(file: &Path, what: impl ToString) -> AcapError {
    AcapError::Keys { file: file.to_owned(), what: what.to_string() }
}

fn json_of(file: &Path) -> Result<Value, AcapError> {
    let failed = |error: std::io::Error| fault(file, error);
    let mut bytes = Vec::new();
    let handle = std::fs::File::open(file).map_err(failed)?;
    handle.take(KEYS_FILE_LEN_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > KEYS_FILE_LEN_MAX {
        return Err(fault(file, format!("it is over the limit of {KEYS_FILE_LEN_MAX} bytes")));
    }
    serde_json::from_slice(&bytes).map_err(|error| fault(file, error))
}

/// The key by which the node signs, if one is configured.
///
/// # Errors
/// [`AcapError::Keys`].
pub(crate) fn signing_key(config: &NodeConfig) -> Result<Option<Arc<SigningKey>>, AcapError> {
    Ok(key_of(config)?.map(Arc::new))
}

/// The same, for one who has it alone.
pub(super) fn key_of(config: &NodeConfig) -> Result<Option<SigningKey>, AcapError> {
    let Some(file) = &config.acap.signing_key else { return Ok(None) };
    let pem = read_secret(file).map_err(|error| fault(file, error))?;
    let der = PrivatePkcs8KeyDer::from_pem_slice(&pem).map_err(|error| fault(file, error))?;
    let key = SigningKey::from_pkcs8(der.secret_pkcs8_der(), None);
    key.map(Some).map_err(|error| fault(file, error))
}

/// The JWKS that the node publishes: the key that signs first, then those of `published_keys`. None without either.
///
/// # Errors
/// [`AcapError::Keys`].
pub(crate) fn published(config: &NodeConfig) -> Result<Option<Value>, AcapError> {
    let mut keys: Vec<Value> = Vec::new();
    if let Some(key) = signing_key(config)? {
        let mut jwk = key.public().to_jwk();
        if let Some(members) = jwk.as_object_mut() {
            members.insert("kid".into(), key.kid().into());
            members.insert("use".into(), "sig".into());
        }
        keys.push(jwk);
    }
    if let Some(file) = &config.acap.published_keys {
        let more = json_of(file)?;
        KeySet::from_jwks(&more).map_err(|error| fault(file, error))?;
        keys.extend(more.get("keys").and_then(Value::as_array).into_iter().flatten().cloned());
        // Those who fetch them take no more than that.
        KeySet::from_jwks(&json!({ "keys": keys })).map_err(|error| fault(file, error))?;
    }
    Ok((!keys.is_empty()).then(|| json!({ "keys": keys })))
}

/// What holds signatures of callers against their keys.
#[derive(Debug)]
pub(super) struct Checks {
    resolver: Resolver,
    policy: SignaturePolicy,
}

impl Checks {
    /// As the configuration says; none where signatures are not looked at.
    pub(super) fn new(config: &NodeConfig) -> Result<Option<Self>, AcapError> {
        let policy = match config.acap.signatures {
            Signatures::Off => return Ok(None),
            Signatures::Optional => SignaturePolicy::Optional,
            Signatures::Required => SignaturePolicy::Required,
        };
        let to_private = config.a2a.push_to_private;
        let mut options = ResolverOptions { to_private, ..ResolverOptions::default() };
        for peer in &config.peers {
            match &peer.signing_keys {
                None => {}
                Some(SigningKeys::Url(url)) => {
                    options.jwks.insert(peer.id.clone(), url.clone());
                }
                Some(SigningKeys::Did(did)) => {
                    let keys =
                        KeySet::from_did_key(did).map_err(|why| fault(Path::new(did), why))?;
                    options.known.insert(peer.id.clone(), Arc::new(keys));
                }
                Some(SigningKeys::File(file)) => {
                    let keys =
                        KeySet::from_jwks(&json_of(file)?).map_err(|why| fault(file, why))?;
                    options.known.insert(peer.id.clone(), Arc::new(keys));
                }
            }
        }
        let resolver = Resolver::new(options);
        let resolver = resolver.map_err(|error| fault(Path::new("keys of peers"), error))?;
        Ok(Some(Self { resolver, policy }))
    }
}

impl Acap {
    /// Whether `document` may be taken as `signer`'s. Keys may have to be fetched, so nothing is locked meanwhile. Their
    /// times are held against ours: what a document says of its own time is the signer's word.
    pub(super) async fn check_signature(
        &self,
        document: &impl Signed,
        signer: &AgentId,
    ) -> Result<(), Denial> {
        let Some(Checks { resolver, policy }) = &self.checks else { return Ok(()) };
        let now = self.clock.now();
        let times = Times { signed: now, seen: now };
        match resolver.verify(document, signer, *policy, times).await {
            Ok(_) => Ok(()),
            // Where its keys are nobody knows: it counts as not signed, which is allowed.
            Err(FetchError::NoPlace { .. }) if *policy == SignaturePolicy::Optional => Ok(()),
            // That may be well another time.
            Err(error @ (FetchError::Fetch { .. } | FetchError::Keys { .. })) => {
                Err(Denial::new(StatusCode::SERVICE_UNAVAILABLE, "keys", error.to_string()))
            }
            Err(error) => Err(Denial::forbidden("signature", error.to_string())),
        }
    }
}
