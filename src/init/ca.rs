//! The development CA: makes the certificates that `init`, the demo and the tests use.

use crate::identity::{IdentityError, expect_identity};
use proto::id::AgentId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _};
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Days a CA certificate of ours is valid.
pub const CA_DAYS: u64 = 10 * 365;
/// Days a node certificate of ours is valid.
pub const NODE_DAYS: u64 = 365;
/// Seconds a certificate is dated back, for peers whose clock is behind.
const BACKDATE_SECONDS: u64 = 3600;
/// The last second of year 9999, where X.509 time ends (RFC 5280 §4.1.2.5).
const LAST_SECOND: u64 = 253_402_300_799;

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaError {
    /// The certificate library refused.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    /// The CA files are no CA.
    #[error("the CA certificate or key cannot be read: {0}")]
    Load(String),
    /// The id cannot be written in a certificate so that it is read back the same.
    #[error("{id} cannot be the identity of a certificate: {source}")]
    Id {
        /// The id.
        id: AgentId,
        /// Why.
        source: IdentityError,
    },
}

/// A certificate authority for development: one Ed25519 key, no revocation lists.
pub struct DevCa {
    cert: CertificateDer<'static>,
    cert_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key.
pub struct Issued {
    /// The certificate.
    pub cert: CertificateDer<'static>,
    /// Its private key (PKCS #8).
    pub key: PrivateKeyDer<'static>,
    /// The certificate as PEM.
    pub cert_pem: String,
    /// The key as PEM: a secret.
    pub key_pem: String,
}

/// From an hour ago until `days` from now, in unix seconds.
#[must_use]
pub fn valid_days(days: u64) -> Range<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let end = now.saturating_add(days.saturating_mul(24 * 3600));
    now.saturating_sub(BACKDATE_SECONDS)..end
}

impl DevCa {
    /// A fresh CA, valid for [`CA_DAYS`].
    ///
    /// # Errors
    /// [`CaError::Make`] when the crypto provider fails.
    pub fn generate() -> Result<Self, CaError> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        // Each CA has a name of its own, so that a certificate of another one is reported as of an
        // unknown issuer and not as a bad signature.
        let mark: String =
            key.public_key_raw().iter().take(6).map(|b| format!("{b:02x}")).collect();
        let mut params = params(&format!("abhyasa development CA {mark}"), valid_days(CA_DAYS));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(serial(&key));
        let cert = params.self_signed(&key)?;
        Ok(Self { cert_pem: cert.pem(), cert: cert.into(), issuer: Issuer::new(params, key) })
    }

    /// A CA that was written to disk before.
    ///
    /// # Errors
    /// [`CaError::Load`] if either text is no PEM of a certificate or key, or they are no pair.
    pub fn from_pem(cert_pem: &str, key_pem: &str) -> Result<Self, CaError> {
        let refused = |error: &dyn std::fmt::Display| CaError::Load(error.to_string());
        let key = KeyPair::from_pem(key_pem).map_err(|e| refused(&e))?;
        let cert = CertificateDer::from_pem_slice(cert_pem.as_bytes()).map_err(|e| refused(&e))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&cert).map_err(|e| refused(&e))?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            return Err(refused(&"the key is of another certificate"));
        }
        let issuer = Issuer::from_ca_cert_der(&cert, key).map_err(|e| refused(&e))?;
        Ok(Self { cert, cert_pem: cert_pem.to_owned(), issuer })
    }

    /// The CA certificate.
    #[must_use]
    pub const fn cert(&self) -> &CertificateDer<'static> {
        &self.cert
    }

    /// The CA certificate as PEM.
    #[must_use]
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The CA key as PEM: a secret.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// A certificate for `id` (URI name when it is a `spiffe://` id, else a DNS name), valid over
    /// `valid` (unix seconds, see [`valid_days`]).
    ///
    /// # Errors
    /// [`CaError::Id`] if a peer would not read `id` back from it.
    pub fn issue(&self, id: &AgentId, valid: Range<u64>) -> Result<Issued, CaError> {
        let text = id.as_str().try_into()?;
        let name =
            if id.as_str().contains("://") { SanType::URI(text) } else { SanType::DnsName(text) };
        let issued = self.issue_for(vec![name], valid)?;
        expect_identity(&issued.cert, id)
            .map_err(|source| CaError::Id { id: id.clone(), source })?;
        Ok(issued)
    }

    /// A certificate with exactly these names, good or bad: tests make the bad ones.
    ///
    /// # Errors
    /// [`CaError::Make`] when the crypto provider fails.
    pub fn issue_for(&self, names: Vec<SanType>, valid: Range<u64>) -> Result<Issued, CaError> {
        let mut params = params("abhyasa node", valid);
        params.subject_alt_names = names;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        params.serial_number = Some(serial(&key));
        let cert = params.signed_by(&key, &self.issuer)?;
        Ok(Issued {
            cert_pem: cert.pem(),
            cert: cert.into(),
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            key_pem: key.serialize_pem(),
        })
    }
}

/// A serial number taken from the key, always 16 bytes long: handshakes of all nodes have the same
/// size, which runs that must repeat to the byte rely on.
fn serial(key: &KeyPair) -> SerialNumber {
    let mut bytes: Vec<u8> = key.public_key_raw().iter().take(16).copied().collect();
    if let Some(first) = bytes.first_mut() {
        *first = *first & 0x3f | 0x40; // positive, without a leading zero
    }
    SerialNumber::from(bytes)
}

fn params(common_name: &str, valid: Range<u64>) -> CertificateParams {
    let at =
        |seconds: u64| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds.min(LAST_SECOND));
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = at(valid.start);
    params.not_after = at(valid.end);
    params.use_authority_key_identifier_extension = true;
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::identity_of;

    #[test]
    fn an_issued_certificate_reads_back_as_its_id() {
        let ca = DevCa::generate().unwrap();
        let again = DevCa::from_pem(ca.cert_pem(), &ca.key_pem()).unwrap();
        for id in ["spiffe://example.org/agent/a", "node-a.example.org"] {
            let id = AgentId::new(id).unwrap();
            assert_eq!(identity_of(&again.issue(&id, valid_days(1)).unwrap().cert), Ok(id));
        }
        for id in ["Upper.example.org", "https://example.org/a", "*.example.org"] {
            let id = AgentId::new(id).unwrap();
            assert!(matches!(ca.issue(&id, valid_days(1)), Err(CaError::Id { .. })), "{id}");
        }
        assert!(ca.issue(&AgentId::new("agent-é").unwrap(), valid_days(1)).is_err());
    }

    #[test]
    fn certificates_of_one_id_are_of_one_size() {
        let id = AgentId::new("spiffe://example.org/agent/a").unwrap();
        let (ca, other) = (DevCa::generate().unwrap(), DevCa::generate().unwrap());
        let first = ca.issue(&id, valid_days(1)).unwrap().cert.len();
        assert_eq!(other.cert().len(), ca.cert().len());
        for ca in [ca, other].iter().cycle().take(600) {
            assert_eq!(ca.issue(&id, valid_days(1)).unwrap().cert.len(), first);
        }
    }

    #[test]
    fn a_ca_is_read_from_its_own_files_only() {
        let ca = DevCa::generate().unwrap();
        assert!(matches!(DevCa::from_pem("", &ca.key_pem()), Err(CaError::Load(_))));
        assert!(matches!(DevCa::from_pem(ca.cert_pem(), "no key"), Err(CaError::Load(_))));
        let other = DevCa::generate().unwrap().key_pem();
        assert!(matches!(DevCa::from_pem(ca.cert_pem(), &other), Err(CaError::Load(_))));
    }
}
