//! Signed batches: relays end TLS, so what crosses one carries the signature of its issuer.
//!
//! The signature is a COSE_Sign1 (RFC 9052 §4.2) by the key of the node's certificate, which is in its protected
//! header (RFC 9360, x5chain). So a signing key is bound to an identity by the CA that vouches for the node, is
//! published with each object, and changes when the certificate does. One signature covers a batch: the root of
//! a Merkle tree over its items.

use crate::identity::IdentityError;
use crate::tls::{TlsError, TlsIdentity};
use bytes::Bytes;
use coset::iana::Algorithm;
use coset::{ContentType, CoseSign1, CoseSign1Builder, Header, Label};
use coset::{RegisteredLabelWithPrivate, TaggedCborSerializable as _, cbor::Value};
use proto::batch::{Audience, Batch, BatchError, Content, Hash, Statement};
use proto::cbor::CborError;
use proto::id::AgentId;
use proto::time::Time;
use proto::track::{Epoch, Namespace, Part};
use rustls::SignatureScheme;
use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, UnixTime, alg_id};
use rustls::sign::Signer;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Signers whose certificates need not be checked again for a while.
const KNOWN_MAX: usize = 4_096;
/// How long a checked chain is believed, in milliseconds.
const KNOWN_TIME_MAX_MS: u64 = 600_000;
/// Certificates in a chain.
const CHAIN_MAX: usize = 4;
/// Type of what is signed. It is in the protected header, so that no signature for another purpose, by the
/// same key, is one of a batch.
const CONTENT_TYPE: &str = "application/abhyasa-statement+cbor";
/// Label of x5chain (RFC 9360 §2).
const X5CHAIN: i64 = 33;
/// Bytes of an Ed25519 signature, and of each half of one of P-256.
const ED25519_LEN: usize = 64;
const P256_HALF: usize = 32;

/// Why a batch is not believed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignError {
    #[error("no batch: {0}")]
    Cbor(#[from] CborError),
    #[error("no COSE_Sign1: {0}")]
    Cose(String),
    #[error("the signature has no {0}")]
    Header(&'static str),
    #[error("the certificate is not good: {0}")]
    Certificate(#[from] rustls::Error),
    #[error("the certificate gives no identity: {0}")]
    Identity(#[from] IdentityError),
    #[error("the signature is not of this batch")]
    Signature,
    #[error("it says to be of {said}, and {signed} signed it")]
    Issuer { said: AgentId, signed: AgentId },
    #[error(transparent)]
    Items(#[from] BatchError),
}

/// A batch whose signature and items were found good. Whom it is for is not looked at here.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) statement: Statement,
    pub(crate) items: Vec<Bytes>,
}

#[derive(Clone)]
struct Known {
    agent: AgentId,
    /// What verifies its signatures, and its public key.
    with: Verifier,
    key: Arc<[u8]>,
    until_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    EdDsa,
    Es256,
}

type Verifier = (Kind, &'static dyn SignatureVerificationAlgorithm);

/// Signs our batches, and opens those of others.
pub(crate) struct Signatures {
    tls: Arc<TlsIdentity>,
    kind: Kind,
    signer: Box<dyn Signer>,
    header: Header,
    known: Mutex<HashMap<Hash, Known>>,
}

impl std::fmt::Debug for Signatures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signatures of {}", self.tls.agent())
    }
}

impl Signatures {
    /// Signs with the key of our certificate, which must be of Ed25519 or P-256.
    ///
    /// # Errors
    /// [`TlsError::SigningKey`].
    pub(crate) fn new(tls: Arc<TlsIdentity>) -> Result<Self, TlsError> {
        let schemes = [SignatureScheme::ED25519, SignatureScheme::ECDSA_NISTP256_SHA256];
        let signer = tls.signer(&schemes).ok_or(TlsError::SigningKey)?;
        let (kind, algorithm) = match signer.scheme() {
            SignatureScheme::ED25519 => (Kind::EdDsa, Algorithm::EdDSA),
            _ => (Kind::Es256, Algorithm::ES256),
        };
        let mut chain: Vec<_> =
            tls.chain().iter().map(|cert| Value::Bytes(cert.to_vec())).collect();
        let chain = if chain.len() == 1 { chain.remove(0) } else { Value::Array(chain) };
        let header = Header {
            alg: Some(RegisteredLabelWithPrivate::Assigned(algorithm)),
            content_type: Some(ContentType::Text(CONTENT_TYPE.to_owned())),
            rest: vec![(Label::Int(X5CHAIN), chain)],
            ..Header::default()
        };
        Ok(Self { tls, kind, signer, header, known: Mutex::default() })
    }

    /// An object with these items, signed, for a namespace of ours of the session and part `at`.
    ///
    /// # Errors
    /// [`SignError`]: the key does not sign.
    pub(crate) fn seal(
        &self,
        (epoch, part): (Epoch, Part),
        audience: Audience,
        content: Content,
        items: Vec<Bytes>,
    ) -> Result<(Statement, Bytes), SignError> {
        let from = Namespace { publisher: self.tls.agent().clone(), epoch, part };
        let statement = Statement::of(from, audience, content, &items);
        let sign = |bytes: &[u8]| -> Result<Vec<u8>, SignError> {
            let signature = self.signer.sign(bytes)?;
            match self.kind {
                Kind::EdDsa => Ok(signature),
                Kind::Es256 => fixed(&signature).ok_or(SignError::Signature),
            }
        };
        let signed = CoseSign1Builder::new()
            .protected(self.header.clone())
            .payload(statement.encode().to_vec())
            .try_create_signature(&[], sign)?
            .build()
            .to_tagged_vec()
            .map_err(|error| SignError::Cose(error.to_string()))?;
        let object = Batch { signed: signed.into(), items }.encode();
        Ok((statement, object))
    }

    /// Checks an object: its signature, who signed it, and that its items are those that were signed.
    ///
    /// # Errors
    /// [`SignError`]: nothing of it may be used.
    pub(crate) fn open(&self, object: &Bytes, now: Time) -> Result<Opened, SignError> {
        let Batch { signed, items } = Batch::decode(object)?;
        let cose = CoseSign1::from_tagged_slice(&signed)
            .map_err(|error| SignError::Cose(error.to_string()))?;
        let header = &cose.protected.header;
        if header.content_type != Some(ContentType::Text(CONTENT_TYPE.to_owned())) {
            return Err(SignError::Header("content type of ours"));
        }
        let chain = header.rest.iter().find(|(label, _)| *label == Label::Int(X5CHAIN));
        let (_, chain) = chain.ok_or(SignError::Header("x5chain"))?;
        let known = self.signer_of(chain, now)?;
        let algorithm = match header.alg {
            Some(RegisteredLabelWithPrivate::Assigned(Algorithm::EdDSA)) => Kind::EdDsa,
            Some(RegisteredLabelWithPrivate::Assigned(Algorithm::ES256)) => Kind::Es256,
            _ => return Err(SignError::Header("algorithm that we know")),
        };
        let (kind, with) = known.with;
        if algorithm != kind {
            return Err(SignError::Header("algorithm of its key"));
        }
        cose.verify_signature(&[], |signature, bytes| {
            let der;
            let signature = match kind {
                Kind::EdDsa if signature.len() == ED25519_LEN => signature,
                Kind::EdDsa => return Err(SignError::Signature),
                Kind::Es256 => {
                    der = unfixed(signature).ok_or(SignError::Signature)?;
                    &der
                }
            };
            with.verify_signature(&known.key, bytes, signature).map_err(|_| SignError::Signature)
        })?;
        let payload = cose.payload.as_deref().ok_or(SignError::Header("payload"))?;
        let statement = Statement::decode(payload)?;
        let said = &statement.from.publisher;
        if *said != known.agent {
            return Err(SignError::Issuer { said: said.clone(), signed: known.agent });
        }
        statement.check(&items)?;
        Ok(Opened { statement, items })
    }

    /// Whose chain it is, by our CA.
    fn signer_of(&self, chain: &Value, now: Time) -> Result<Known, SignError> {
        let certs: Vec<&[u8]> = match chain {
            Value::Bytes(cert) => vec![cert],
            Value::Array(certs) if certs.len() <= CHAIN_MAX => {
                certs.iter().filter_map(|cert| cert.as_bytes().map(Vec::as_slice)).collect()
            }
            _ => return Err(SignError::Header("x5chain")),
        };
        let mut hash = Sha256::new();
        for cert in &certs {
            hash.update((cert.len() as u64).to_be_bytes());
            hash.update(cert);
        }
        let hash: Hash = hash.finalize().into();
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known().get(&hash).filter(|known| now.as_ms() < known.until_ms) {
            return Ok(known.clone());
        }
        let chain: Vec<_> = certs.iter().map(|cert| CertificateDer::from(*cert)).collect();
        let at = UnixTime::since_unix_epoch(Duration::from_millis(now.as_ms()));
        let agent = self.tls.vouched(&chain, at)?;
        let cert = chain.first().ok_or(SignError::Header("x5chain"))?;
        let (with, key) = public_key(cert, &self.tls)?;
        let ends = chain.iter().map(|cert| not_after_ms(cert)).min().flatten().unwrap_or_default();
        let until_ms = now.as_ms().saturating_add(KNOWN_TIME_MAX_MS).min(ends);
        let found = Known { agent, with, key, until_ms };
        let mut known = known();
        if known.len() >= KNOWN_MAX {
            known.clear(); // each is checked again when it is seen next
        }
        known.insert(hash, found.clone());
        Ok(found)
    }
}

/// When a certificate ends, in unix milliseconds.
fn not_after_ms(cert: &CertificateDer<'_>) -> Option<u64> {
    let (_, cert) = x509_parser::parse_x509_certificate(cert).ok()?;
    let seconds = u64::try_from(cert.validity().not_after.timestamp()).ok()?;
    Some(seconds.saturating_mul(1_000))
}

/// The key of a certificate, and what verifies with it.
fn public_key(
    cert: &CertificateDer<'_>,
    tls: &TlsIdentity,
) -> Result<(Verifier, Arc<[u8]>), SignError> {
    const NO_KEY: SignError = SignError::Header("certificate with a key of Ed25519 or P-256");
    let (_, cert) = x509_parser::parse_x509_certificate(cert).map_err(|_| NO_KEY)?;
    let spki = cert.public_key();
    let key: Arc<[u8]> = spki.subject_public_key.data.as_ref().into();
    let wanted = [
        (Kind::EdDsa, SignatureScheme::ED25519, alg_id::ED25519),
        (Kind::Es256, SignatureScheme::ECDSA_NISTP256_SHA256, alg_id::ECDSA_P256),
    ];
    let of = spki.algorithm.algorithm.as_bytes();
    for (kind, scheme, id) in wanted {
        // An AlgorithmIdentifier without its outer tag: the object identifier comes first.
        let parameters = spki.algorithm.parameters.as_ref().map(|any| any.data);
        let starts = id.as_ref().get(2..2 + of.len()) == Some(of);
        let curve = id.as_ref().get(2 + of.len() + 2..);
        if starts && (kind == Kind::EdDsa || parameters == curve) {
            let with = tls.verifier(scheme, id).ok_or(NO_KEY)?;
            return Ok(((kind, with), key));
        }
    }
    Err(NO_KEY)
}

/// The two numbers of an ECDSA signature, side by side (RFC 9053 §2.1), from their DER.
fn fixed(der: &[u8]) -> Option<Vec<u8>> {
    let [0x30, len, rest @ ..] = der else { return None };
    if usize::from(*len) != rest.len() {
        return None;
    }
    let (r, rest) = integer(rest)?;
    let (s, rest) = integer(rest)?;
    rest.is_empty().then(|| [r, s].concat())
}

fn integer(der: &[u8]) -> Option<([u8; P256_HALF], &[u8])> {
    let [0x02, len, rest @ ..] = der else { return None };
    let (number, rest) = rest.split_at_checked(usize::from(*len))?;
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let number = number.get(zeros..)?;
    let mut fixed = [0; P256_HALF];
    fixed.get_mut(P256_HALF.checked_sub(number.len())?..)?.copy_from_slice(number);
    Some((fixed, rest))
}

/// The DER of an ECDSA signature, from its two numbers.
fn unfixed(signature: &[u8]) -> Option<Vec<u8>> {
    if signature.len() != 2 * P256_HALF {
        return None;
    }
    let mut body = Vec::with_capacity(2 * (P256_HALF + 3));
    for number in signature.chunks(P256_HALF) {
        let zeros = number.iter().take_while(|byte| **byte == 0).count().min(P256_HALF - 1);
        let number = number.get(zeros..)?;
        let pad = number.first().is_some_and(|first| first & 0x80 != 0);
        body.extend([0x02, u8::try_from(number.len() + usize::from(pad)).ok()?]);
        body.extend(pad.then_some(0));
        body.extend(number);
    }
    let mut der = vec![0x30, u8::try_from(body.len()).ok()?];
    der.extend(body);
    Some(der)
}
