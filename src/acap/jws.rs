//! Signatures of consent documents: JWS in compact form (RFC 7515), by Ed25519 (RFC 8037) or P-256 (RFC 7518).
//!
//! What is signed is a document's canonical JSON with the signature empty, so whoever has the document has
//! the payload. We leave it out of the signature (RFC 7515 Appendix F), which keeps a long record within the limit
//! of a signature; from others we take either form, and hold a payload that is there against the document.
//!
//! JOSE crates are made for claims of tokens: they decode a payload and judge its times, where here it is known
//! beforehand, and they know no compressed points of P-256, which `did:key` has. So this is three texts of
//! base64url and the primitives of the one cryptographic library in the tree.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ED25519, EcdsaKeyPair,
    Ed25519KeyPair, KeyPair as _, UnparsedPublicKey, VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proto::consent::{AdherenceEvent, Anchored, ConsentRecord, SIGNATURE_LEN_MAX, Text, read};
use serde::Deserialize;
use serde_json::Value;
use std::fmt;

/// Bytes of a header, decoded; a longer one is refused.
pub const HEADER_LEN_MAX: usize = 4_096;
/// Bytes of a key id; a longer one is refused.
pub const KID_LEN_MAX: usize = 1_024;
/// Bytes of a signature by either algorithm.
const SIGNATURE_LEN: usize = 64;
/// Multicodec of an Ed25519 public key, and of one of P-256, as varints.
const MULTICODEC_ED25519: [u8; 2] = [0xed, 0x01];
const MULTICODEC_P256: [u8; 2] = [0x80, 0x24];
const ED25519_KEY_LEN: usize = 32;
/// Bytes of a point of P-256, compressed and not, and of one coordinate.
const P256_COMPRESSED_LEN: usize = 33;
const P256_LEN: usize = 65;
const P256_HALF: usize = 32;

/// What signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// Ed25519.
    EdDsa,
    /// ECDSA on P-256 with SHA-256.
    Es256,
}

impl Algorithm {
    /// Its name in headers (RFC 7518 §3.1, RFC 8037 §3.1). RFC 9864 calls the first one `Ed25519`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Es256 => "ES256",
        }
    }

    fn named(name: &str) -> Option<Self> {
        match name {
            "EdDSA" | "Ed25519" => Some(Self::EdDsa),
            "ES256" => Some(Self::Es256),
            _ => None,
        }
    }

    fn primitive(self) -> &'static dyn VerificationAlgorithm {
        match self {
            Self::EdDsa => &ED25519,
            Self::Es256 => &ECDSA_P256_SHA256_FIXED,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a signature, or a key, is none that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwsError {
    /// Not three parts of base64url.
    #[error("it is no compact JWS: {0}")]
    Shape(&'static str),
    /// The header cannot be read, or demands what we do not know.
    #[error("its header {0}")]
    Header(String),
    /// By an algorithm we do not take.
    #[error("its algorithm is {0:?}, where EdDSA or ES256 belongs")]
    Algorithm(String),
    /// The key is of another algorithm.
    #[error("its algorithm is {said}, and the key is one of {key}")]
    OtherKey {
        /// That of the signature.
        said: Algorithm,
        /// That of the key.
        key: Algorithm,
    },
    /// The payload in it is not the document.
    #[error("its payload of {found} bytes is not the document's {expected} bytes")]
    Payload {
        /// Bytes of the document.
        expected: usize,
        /// Bytes in the signature.
        found: usize,
    },
    /// Another document, or by another key.
    #[error("it is not a signature of this document by this key")]
    Wrong,
    /// No key.
    #[error("no key of Ed25519 or P-256: {0}")]
    Key(&'static str),
}

/// A key that verifies.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    algorithm: Algorithm,
    /// Of Ed25519 the key; of P-256 its point, compressed or not (SEC 1 §2.3.3).
    bytes: Vec<u8>,
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({} of {} bytes)", self.algorithm, self.bytes.len())
    }
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: String,
    x: String,
    y: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    used_for: Option<String>,
}

impl PublicKey {
    fn new(algorithm: Algorithm, bytes: Vec<u8>) -> Result<Self, JwsError> {
        let fits = match algorithm {
            Algorithm::EdDsa => bytes.len() == ED25519_KEY_LEN,
            Algorithm::Es256 => matches!(bytes.len(), P256_COMPRESSED_LEN | P256_LEN),
        };
        if !fits {
            return Err(JwsError::Key("it has another length"));
        }
        let parsed = UnparsedPublicKey::new(algorithm.primitive(), &bytes).parse();
        parsed.map_err(|_| JwsError::Key("it is no point of the curve"))?;
        Ok(Self { algorithm, bytes })
    }

    /// What it verifies.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Reads a JWK (RFC 7517 §4, RFC 7518 §6.2, RFC 8037 §2).
    ///
    /// # Errors
    /// [`JwsError::Key`].
    pub fn from_jwk(jwk: &Value) -> Result<Self, JwsError> {
        let jwk = Jwk::deserialize(jwk).map_err(|_| JwsError::Key("it is no such JWK"))?;
        if jwk.used_for.as_deref().is_some_and(|used| used != "sig") {
            return Err(JwsError::Key("it is not for signatures"));
        }
        let part = |text: &str| {
            URL_SAFE_NO_PAD.decode(text).map_err(|_| JwsError::Key("it is no base64url"))
        };
        let key = match (&*jwk.kty, &*jwk.crv, &jwk.y) {
            ("OKP", "Ed25519", None) => Self::new(Algorithm::EdDsa, part(&jwk.x)?)?,
            ("EC", "P-256", Some(y)) => {
                let (x, y) = (part(&jwk.x)?, part(y)?);
                if x.len() != P256_HALF || y.len() != P256_HALF {
                    return Err(JwsError::Key("it has another length"));
                }
                Self::new(Algorithm::Es256, [&[4], &*x, &*y].concat())?
            }
            _ => return Err(JwsError::Key("it is of another kind")),
        };
        match jwk.alg.as_deref() {
            Some(alg) if Algorithm::named(alg) != Some(key.algorithm) => {
                Err(JwsError::Key("its alg is not that of its curve"))
            }
            _ => Ok(key),
        }
    }

    /// Reads a Multikey (Controlled Identifiers 1.0 §2.2.2), which is also what follows `did:key:`.
    ///
    /// # Errors
    /// [`JwsError::Key`].
    pub fn from_multikey(text: &str) -> Result<Self, JwsError> {
        let base58 = text.strip_prefix('z').ok_or(JwsError::Key("it is not in base58btc"))?;
        // Decoding takes time by the square of the length.
        if base58.len() > 64 {
            return Err(JwsError::Key("it has another length"));
        }
        let bytes =
            bs58::decode(base58).into_vec().map_err(|_| JwsError::Key("it is no base58"))?;
        let (codec, key) = bytes.split_at_checked(2).ok_or(JwsError::Key("it is too short"))?;
        match codec {
            codec if codec == MULTICODEC_ED25519 => Self::new(Algorithm::EdDsa, key.to_vec()),
            codec if codec == MULTICODEC_P256 && key.len() == P256_COMPRESSED_LEN => {
                Self::new(Algorithm::Es256, key.to_vec())
            }
            _ => Err(JwsError::Key("it is of another kind")),
        }
    }

    /// As a Multikey.
    #[must_use]
    pub fn to_multikey(&self) -> String {
        let (codec, key) = match (self.algorithm, &*self.bytes) {
            (Algorithm::EdDsa, key) => (MULTICODEC_ED25519, key.to_vec()),
            (Algorithm::Es256, [4, point @ ..]) => {
                let (x, y) = point.split_at_checked(P256_HALF).unwrap_or_default();
                let odd = y.last().is_some_and(|last| last & 1 == 1);
                (MULTICODEC_P256, [&[2 + u8::from(odd)], x].concat())
            }
            (Algorithm::Es256, key) => (MULTICODEC_P256, key.to_vec()),
        };
        format!("z{}", bs58::encode([&codec[..], &key].concat()).into_string())
    }

    /// As a JWK (RFC 7518 §6.2, RFC 8037 §2).
    #[must_use]
    pub fn to_jwk(&self) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let alg = self.algorithm.as_str();
        match (self.algorithm, &*self.bytes) {
            (Algorithm::Es256, [4, point @ ..]) => {
                let (x, y) = point.split_at_checked(P256_HALF).unwrap_or_default();
                serde_json::json!({ "kty": "EC", "crv": "P-256", "alg": alg, "x": text(x), "y": text(y) })
            }
            (_, key) => {
                serde_json::json!({ "kty": "OKP", "crv": "Ed25519", "alg": alg, "x": text(key) })
            }
        }
    }

    /// The DID that is this key (did:key method v0.7).
    #[must_use]
    pub fn to_did(&self) -> String {
        format!("did:key:{}", self.to_multikey())
    }

    fn verify(&self, message: &[u8], signature: &[u8]) -> Result<(), JwsError> {
        let key = UnparsedPublicKey::new(self.algorithm.primitive(), &self.bytes);
        key.verify(message, signature).map_err(|_| JwsError::Wrong)
    }
}

enum Pair {
    EdDsa(Ed25519KeyPair),
    Es256(Box<EcdsaKeyPair>),
}

/// A key that signs, and what it is called.
pub struct SigningKey {
    pair: Pair,
    kid: String,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.kid)
    }
}

impl SigningKey {
    /// Reads a private key of Ed25519 or P-256 (PKCS #8, DER). Without `kid` it is called by its `did:key`.
    ///
    /// # Errors
    /// [`JwsError::Key`].
    pub fn from_pkcs8(der: &[u8], kid: Option<&str>) -> Result<Self, JwsError> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der)
            .map(Pair::EdDsa)
            .or_else(|_| {
                EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der)
                    .map(|pair| Pair::Es256(Box::new(pair)))
            })
            .map_err(|_| JwsError::Key("it is not in PKCS #8"))?;
        let mut key = Self { pair, kid: String::new() };
        key.kid = match kid {
            Some(kid) if kid.is_empty() || kid.len() > KID_LEN_MAX => {
                return Err(JwsError::Key("its kid is empty or too long"));
            }
            Some(kid) => kid.to_owned(),
            None => {
                let public = key.public();
                format!("{}#{}", public.to_did(), public.to_multikey())
            }
        };
        Ok(key)
    }

    /// Its public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        match &self.pair {
            Pair::EdDsa(pair) => PublicKey {
                algorithm: Algorithm::EdDsa,
                bytes: pair.public_key().as_ref().to_vec(),
            },
            Pair::Es256(pair) => PublicKey {
                algorithm: Algorithm::Es256,
                bytes: pair.public_key().as_ref().to_vec(),
            },
        }
    }

    /// What it is called.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// A JWS of `payload`, which is left out of it (RFC 7515 Appendix F).
    ///
    /// # Errors
    /// [`JwsError::Key`]: the key does not sign.
    pub fn sign(&self, payload: &[u8]) -> Result<String, JwsError> {
        let (header, _, signature) = self.parts(payload)?;
        Ok(format!("{header}..{signature}"))
    }

    /// A JWS with its payload.
    ///
    /// # Errors
    /// [`JwsError::Key`]: the key does not sign.
    pub fn sign_attached(&self, payload: &[u8]) -> Result<String, JwsError> {
        let (header, payload, signature) = self.parts(payload)?;
        Ok(format!("{header}.{payload}.{signature}"))
    }

    fn parts(&self, payload: &[u8]) -> Result<(String, String, String), JwsError> {
        let alg = self.public().algorithm;
        let header = serde_json::json!({ "alg": alg.as_str(), "kid": self.kid }).to_string();
        let (header, payload) = (URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(payload));
        let input = format!("{header}.{payload}");
        let no = |_| JwsError::Key("it does not sign");
        let signature = match &self.pair {
            Pair::EdDsa(pair) => pair.try_sign(input.as_bytes()).map_err(no)?,
            Pair::Es256(pair) => pair.sign(&SystemRandom::new(), input.as_bytes()).map_err(no)?,
        };
        Ok((header, payload, URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// A compact JWS, read and not yet verified.
#[derive(Clone, Debug)]
pub struct Jws {
    header: String,
    payload: Option<Vec<u8>>,
    signature: Vec<u8>,
    algorithm: Algorithm,
    kid: Option<String>,
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
    b64: Option<Value>,
}

impl Jws {
    /// Reads a JWS in compact form, with its payload or without.
    ///
    /// # Errors
    /// [`JwsError`] says what is wrong with it. What it demands to be understood (`crit`) never is.
    pub fn parse(text: &str) -> Result<Self, JwsError> {
        if text.len() > SIGNATURE_LEN_MAX {
            return Err(JwsError::Shape("it is over the limit of 16384 bytes"));
        }
        let mut parts = text.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(JwsError::Shape("it has not three parts"));
        };
        let part = |text: &str| {
            URL_SAFE_NO_PAD.decode(text).map_err(|_| JwsError::Shape("a part is no base64url"))
        };
        let json = part(header)?;
        if json.len() > HEADER_LEN_MAX {
            return Err(JwsError::Header(format!("has {} of {HEADER_LEN_MAX} bytes", json.len())));
        }
        let read: Header =
            read(&json).map_err(|why| JwsError::Header(format!("is none: {why}")))?;
        if read.crit.is_some() || read.b64.is_some() {
            return Err(JwsError::Header("demands an extension (crit, b64)".to_owned()));
        }
        if read.kid.as_ref().is_some_and(|kid| kid.len() > KID_LEN_MAX) {
            return Err(JwsError::Header(format!("has a kid of over {KID_LEN_MAX} bytes")));
        }
        let algorithm = Algorithm::named(&read.alg).ok_or(JwsError::Algorithm(read.alg))?;
        let signature = part(signature)?;
        if signature.len() != SIGNATURE_LEN {
            return Err(JwsError::Shape("its signature has not 64 bytes"));
        }
        let payload = if payload.is_empty() { None } else { Some(part(payload)?) };
        Ok(Self { header: header.to_owned(), payload, signature, algorithm, kid: read.kid })
    }

    /// By what it says it is.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// By which key it says it is.
    #[must_use]
    pub fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }

    /// Whether it is one of `payload` by `key`.
    ///
    /// # Errors
    /// [`JwsError`] says why not.
    pub fn verify(&self, payload: &[u8], key: &PublicKey) -> Result<(), JwsError> {
        if self.algorithm != key.algorithm {
            return Err(JwsError::OtherKey { said: self.algorithm, key: key.algorithm });
        }
        if let Some(own) = &self.payload
            && own != payload
        {
            return Err(JwsError::Payload { expected: payload.len(), found: own.len() });
        }
        let input = format!("{}.{}", self.header, URL_SAFE_NO_PAD.encode(payload));
        key.verify(input.as_bytes(), &self.signature)
    }
}

/// A document that its author may sign.
pub trait Signed: Anchored {
    /// Its signature.
    fn signature(&self) -> Option<&str>;

    /// It with a signature; whatever anchor it had was of something else.
    #[must_use]
    fn with_signature(self, signature: Text<SIGNATURE_LEN_MAX>) -> Self;

    /// It, signed by `key`.
    ///
    /// # Errors
    /// [`JwsError`]: the key does not sign.
    fn signed(self, key: &SigningKey) -> Result<Self, JwsError>
    where
        Self: Sized,
    {
        let signature = key.sign(&self.signing_input())?;
        let signature = Text::new(&signature).map_err(|_| JwsError::Key("its kid is too long"))?;
        Ok(self.with_signature(signature))
    }
}

impl Signed for ConsentRecord {
    fn signature(&self) -> Option<&str> {
        self.caller_signature.as_ref().map(Text::as_str)
    }

    fn with_signature(self, signature: Text<SIGNATURE_LEN_MAX>) -> Self {
        Self { caller_signature: Some(signature), chain_anchor: None, ..self }
    }
}

impl Signed for AdherenceEvent {
    fn signature(&self) -> Option<&str> {
        self.agent_signature.as_ref().map(Text::as_str)
    }

    fn with_signature(self, signature: Text<SIGNATURE_LEN_MAX>) -> Self {
        Self { agent_signature: Some(signature), chain_anchor: None, ..self }
    }
}

#[cfg(test)]
pub(crate) mod tests;
