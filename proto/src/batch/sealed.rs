//! Obligations that only their target can read.

use crate::cbor::{CborError, Reader, Writer};
use crate::field::{at_most, whole};
use crate::limits::OBLIGATION_LEN_MAX;
use bytes::Bytes;

/// Bytes of the tag that ends a ciphertext (RFC 5116).
const TAG_LEN: usize = 16;
/// Bytes of the ciphertext of the longest obligation.
pub const SEALED_LEN_MAX: usize = OBLIGATION_LEN_MAX + TAG_LEN;

/// An item in place of an obligation, sealed to its target by HPKE (RFC 9180) in base mode, with DHKEM(X25519,
/// HKDF-SHA256), HKDF-SHA256 and AES-128-GCM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The encapsulated key.
    pub enc: [u8; super::SEAL_KEY_LEN],
    /// The ciphertext of the obligation's encoding, at most [`SEALED_LEN_MAX`] bytes.
    pub text: Bytes,
}

impl Sealed {
    /// What HPKE calls info.
    pub const INFO: &[u8] = b"abhyasa sealed obligation 1";

    /// Whether an item is one: an obligation is a map, and this an array.
    #[must_use]
    pub fn is(item: &[u8]) -> bool {
        item.first().is_some_and(|first| first >> 5 == 4)
    }

    /// The additional data that is authenticated: who issued it, and to whom.
    #[must_use]
    pub fn aad(issuer: &str, target: &str) -> Vec<u8> {
        [issuer.as_bytes(), &[0], target.as_bytes()].concat()
    }

    /// The deterministic CBOR encoding.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut to = Writer::with_capacity(self.text.len() + 48);
        to.array(2).bytes(&self.enc).bytes(&self.text);
        to.into_bytes()
    }

    /// Decodes `bytes`, which must be exactly one.
    ///
    /// # Errors
    /// [`CborError`] for anything but the encoding [`Sealed::encode`] gives.
    //= WR-1
    pub fn decode(bytes: &[u8]) -> Result<Self, CborError> {
        whole(bytes, |reader: &mut Reader<'_>| {
            if reader.array(2)? != 2 {
                return Err(CborError::invalid("sealed", "is not key and ciphertext"));
            }
            let enc = super::read_hash(reader, "encapsulated key")?;
            let text = reader.bytes()?;
            at_most("ciphertext", text.len(), SEALED_LEN_MAX)?;
            if text.len() <= TAG_LEN {
                return Err(CborError::invalid("ciphertext", "is of nothing"));
            }
            Ok(Self { enc, text: Bytes::copy_from_slice(text) })
        })
    }
}
