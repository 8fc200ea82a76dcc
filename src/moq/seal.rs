//! Payloads that relays cannot read: obligations sealed to their target by HPKE (RFC 9180).
//!
//! The key lives as long as the process. It is told in each signed hello, so that a session knows the one of the
//! node that it is with; what was sealed to an earlier one is offered again, in another session.

use bytes::Bytes;
use proto::batch::{SEAL_KEY_LEN, Sealed};
use proto::cbor::CborError;
use proto::id::AgentId;
use rustls::crypto::aws_lc_rs::hpke::DH_KEM_X25519_HKDF_SHA256_AES_128;
use rustls::crypto::hpke::{EncapsulatedSecret, Hpke, HpkePrivateKey, HpkePublicKey};

/// The one suite there is.
fn suite() -> &'static dyn Hpke {
    DH_KEM_X25519_HKDF_SHA256_AES_128
}

/// Why a sealed item cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SealError {
    #[error("no sealed obligation: {0}")]
    Cbor(#[from] CborError),
    #[error("it does not open with our key")]
    Key,
}

/// Seals an obligation to the key of its target. None if that is no key.
pub(crate) fn seal(
    key: [u8; SEAL_KEY_LEN],
    issuer: &AgentId,
    target: &AgentId,
    obligation: &[u8],
) -> Option<Bytes> {
    let aad = Sealed::aad(issuer.as_str(), target.as_str());
    let key = HpkePublicKey(key.to_vec());
    let (enc, text) = suite().seal(Sealed::INFO, &aad, obligation, &key).ok()?;
    Some(Sealed { enc: enc.0.try_into().ok()?, text: text.into() }.encode())
}

/// Our own key.
pub(crate) struct SealKey {
    public: [u8; SEAL_KEY_LEN],
    private: HpkePrivateKey,
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealKey").finish_non_exhaustive()
    }
}

impl SealKey {
    /// A new one.
    ///
    /// # Errors
    /// When the machine has no randomness.
    pub(crate) fn generate() -> Result<Self, rustls::Error> {
        let (public, private) = suite().generate_key_pair()?;
        let public = public.0.try_into();
        let public =
            public.map_err(|_| rustls::Error::General("a key of another length".to_owned()))?;
        Ok(Self { public, private })
    }

    /// What peers seal to.
    pub(crate) const fn public(&self) -> [u8; SEAL_KEY_LEN] {
        self.public
    }

    /// The obligation in a sealed item.
    ///
    /// # Errors
    /// [`SealError`].
    pub(crate) fn open(
        &self,
        issuer: &AgentId,
        target: &AgentId,
        item: &[u8],
    ) -> Result<Bytes, SealError> {
        let Sealed { enc, text } = Sealed::decode(item)?;
        let aad = Sealed::aad(issuer.as_str(), target.as_str());
        let enc = EncapsulatedSecret(enc.to_vec());
        let opened = suite().open(&enc, Sealed::INFO, &aad, &text, &self.private);
        opened.map(Bytes::from).map_err(|_| SealError::Key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_target_reads_what_is_sealed_to_it() {
        let id = |name: &str| AgentId::new(&format!("spiffe://example.org/{name}")).unwrap();
        let (a, b) = (id("a"), id("b"));
        let key = SealKey::generate().unwrap();
        let sealed = seal(key.public(), &a, &b, b"revoke calendar.read").unwrap();
        assert!(Sealed::is(&sealed));
        let readable = sealed.windows(8).any(|window| window == b"calendar");
        assert!(!readable, "it is there in clear");
        assert_eq!(key.open(&a, &b, &sealed).unwrap().as_ref(), b"revoke calendar.read");
        assert!(key.open(&b, &a, &sealed).is_err(), "as if another had issued it");
        assert!(SealKey::generate().unwrap().open(&a, &b, &sealed).is_err(), "with another key");
        for at in 0..sealed.len() {
            let mut altered = sealed.to_vec();
            altered[at] ^= 1;
            assert!(key.open(&a, &b, &altered).is_err(), "byte {at}");
        }
    }
}
