//! Tree heads: what a log signs (RFC 9162 §4.10), as JSON.

use crate::acap::jws::{Jws, JwsError, PublicKey, SigningKey};
use proto::batch::Hash;
use proto::consent::{SIGNATURE_LEN_MAX, Stamp, TERM_LEN_MAX, Text, canonical, read};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What the ids of such logs begin with; the `did:key` of the log follows.
pub const LEDGER_PREFIX: &str = "ct:rfc9162:";
/// What a hash begins with.
const HASH_PREFIX: &str = "sha256:";

/// A SHA-256, as `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub Hash);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HASH_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = &'static str;
    fn try_from(text: String) -> Result<Self, &'static str> {
        const NONE: &str = "a hash is sha256: and 64 hexadecimal digits in small letters";
        let hex = text.strip_prefix(HASH_PREFIX).ok_or(NONE)?.as_bytes();
        let mut hash = Hash::default();
        if hex.len() != 2 * hash.len() {
            return Err(NONE);
        }
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(NONE),
        };
        for (to, pair) in hash.iter_mut().zip(hex.chunks_exact(2)) {
            if let [high, low] = pair {
                *to = (digit(*high)? << 4) | digit(*low)?;
            }
        }
        Ok(Self(hash))
    }
}

/// What is wrong with a tree head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeadFault {
    /// Not one.
    #[error("it is no tree head: {0}")]
    Shape(String),
    /// A log of another kind.
    #[error("its log {log_id:?} is not called {LEDGER_PREFIX} and a did:key")]
    Log {
        /// What it is called.
        log_id: String,
    },
    /// Not signed by its log.
    #[error("its signature is not that of {log_id}: {why}")]
    Signature {
        /// The log.
        log_id: String,
        /// What is wrong with it.
        why: JwsError,
    },
}

/// The state of a log, signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)] // the signature does not cover more
pub struct TreeHead {
    /// Which log.
    pub log_id: Text<TERM_LEN_MAX>,
    /// Its leaves.
    pub tree_size: u64,
    /// The root over them.
    pub root_hash: Digest,
    /// When, by the clock of the log.
    pub timestamp: Stamp,
    /// JWS over its canonical JSON in which this member is empty.
    pub signature: Text<SIGNATURE_LEN_MAX>,
}

/// What a log with this key is called.
pub(super) fn log_id(key: &PublicKey) -> Text<TERM_LEN_MAX> {
    Text::cut(&format!("{LEDGER_PREFIX}{}", key.to_did()))
}

fn input(log_id: &str, size: u64, root: Digest, timestamp: &Stamp) -> Vec<u8> {
    let head = serde_json::json!({
        "log_id": log_id, "tree_size": size, "root_hash": root, "timestamp": timestamp, "signature": "",
    });
    // Texts and a number: it has a canonical form.
    canonical(&head).unwrap_or_default()
}

impl TreeHead {
    pub(super) fn sign(
        key: &SigningKey,
        tree_size: u64,
        root: Hash,
        timestamp: Stamp,
    ) -> Result<Self, JwsError> {
        let (log_id, root_hash) = (log_id(&key.public()), Digest(root));
        let signature = key.sign(&input(log_id.as_str(), tree_size, root_hash, &timestamp))?;
        let signature = Text::new(&signature).map_err(|_| JwsError::Key("its kid is too long"))?;
        Ok(Self { log_id, tree_size, root_hash, timestamp, signature })
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, HeadFault> {
        read(bytes).map_err(|error| HeadFault::Shape(error.to_string()))
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        canonical(self).unwrap_or_default()
    }

    /// Whether its log signed it.
    ///
    /// # Errors
    /// [`HeadFault`] says why not.
    pub fn verify(&self) -> Result<(), HeadFault> {
        if self.tree_size > super::LOG_LEN_MAX {
            let max = super::LOG_LEN_MAX;
            return Err(HeadFault::Shape(format!("{} leaves are over {max}", self.tree_size)));
        }
        let log_id = || self.log_id.to_string();
        let multikey = self.log_id.as_str().strip_prefix(LEDGER_PREFIX);
        let multikey = multikey.and_then(|did| did.strip_prefix("did:key:"));
        let key = multikey.and_then(|text| PublicKey::from_multikey(text).ok());
        let key = key.ok_or_else(|| HeadFault::Log { log_id: log_id() })?;
        let wrong = |why| HeadFault::Signature { log_id: log_id(), why };
        let jws = Jws::parse(self.signature.as_str()).map_err(wrong)?;
        let input = input(self.log_id.as_str(), self.tree_size, self.root_hash, &self.timestamp);
        jws.verify(&input, &key).map_err(wrong)
    }
}
