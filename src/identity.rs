//! Who a certificate speaks for.
//!
//! One certificate, one identity: exactly one SPIFFE URI subject alternative name, or else exactly
//! one DNS name. The common name never counts (RFC 9525 §2), and a certificate with two URIs is
//! refused rather than resolved by order (X509-SVID §2).

use proto::id::{AgentId, IdError};
use rustls::pki_types::{CertificateDer, DnsName};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

const SPIFFE: &str = "spiffe://";

/// Why a certificate gives no usable identity, or not the one that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The peer showed no certificate.
    #[error("the peer presented no certificate")]
    NoCertificate,
    /// Not an X.509 certificate, or one whose name extension cannot be read.
    #[error("the certificate cannot be read: {0}")]
    Malformed(String),
    /// No URI and no DNS name; a common name alone is not an identity.
    #[error(
        "the certificate has no URI or DNS subject alternative name (subject is {subject:?}, which does not count)"
    )]
    NoName {
        /// The subject it has instead.
        subject: String,
    },
    /// More than one candidate: we do not pick.
    #[error("the certificate has {} {what} subject alternative names, need exactly one: {}", found.len(), found.join(", "))]
    Ambiguous {
        /// `URI` or `DNS`.
        what: &'static str,
        /// All of them.
        found: Vec<String>,
    },
    /// The one name is no SPIFFE id or host name.
    #[error("the certificate name {found:?} is no identity: {why}")]
    NotAnIdentity {
        /// The name.
        found: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// Longer than an agent id may be, or holding control characters.
    #[error("the certificate name is not usable: {0}")]
    BadId(#[from] IdError),
    /// A good identity, but another one.
    #[error("the certificate belongs to {found}, not to {expected}")]
    Mismatch {
        /// Who was asked for.
        expected: AgentId,
        /// Who answered.
        found: AgentId,
    },
}

/// The identity `cert` speaks for. Says nothing about who signed it: chain and validity are
/// checked by the TLS handshake.
///
/// # Errors
/// [`IdentityError`] names what was found instead.
pub fn identity_of(cert: &CertificateDer<'_>) -> Result<AgentId, IdentityError> {
    let malformed = |error: &dyn std::fmt::Display| IdentityError::Malformed(error.to_string());
    let (rest, parsed) = X509Certificate::from_der(cert).map_err(|e| malformed(&e))?;
    if !rest.is_empty() {
        return Err(malformed(&format_args!("{} bytes follow it", rest.len())));
    }
    let names = parsed.subject_alternative_name().map_err(|e| malformed(&e))?;
    let (mut uris, mut hosts) = (Vec::new(), Vec::new());
    for name in names.iter().flat_map(|extension| &extension.value.general_names) {
        match name {
            GeneralName::URI(uri) => uris.push((*uri).to_owned()),
            GeneralName::DNSName(host) => hosts.push((*host).to_owned()),
            GeneralName::Invalid(..) => {
                return Err(malformed(&"a subject alternative name is not text"));
            }
            _ => {}
        }
    }
    match (uris.as_slice(), hosts.as_slice()) {
        ([uri], _) => spiffe_id(uri),
        ([], [host]) => host_name(host),
        ([], []) => Err(IdentityError::NoName { subject: parsed.subject().to_string() }),
        ([], _) => Err(IdentityError::Ambiguous { what: "DNS", found: hosts }),
        _ => Err(IdentityError::Ambiguous { what: "URI", found: uris }),
    }
}

/// Checks that `cert` speaks for `expected`.
///
/// # Errors
/// As [`identity_of`], and [`IdentityError::Mismatch`].
pub fn expect_identity(cert: &CertificateDer<'_>, expected: &AgentId) -> Result<(), IdentityError> {
    let found = identity_of(cert)?;
    if found == *expected {
        return Ok(());
    }
    Err(IdentityError::Mismatch { expected: expected.clone(), found })
}

/// Character rules of SPIFFE-ID §2: with no escapes, ports or dot segments, equal bytes are the
/// only way to be equal.
fn spiffe_id(uri: &str) -> Result<AgentId, IdentityError> {
    let refuse = |why| Err(IdentityError::NotAnIdentity { found: uri.to_owned(), why });
    let Some(rest) = uri.strip_prefix(SPIFFE) else {
        return refuse("a URI name must begin with spiffe://");
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let mut parts = rest.split('/');
    let domain = parts.next().unwrap_or_default();
    if domain.is_empty() || !domain.chars().all(|c| plain(c) && !c.is_ascii_uppercase()) {
        return refuse("a trust domain is lower case letters, digits, '.', '-' and '_'");
    }
    if parts.any(|part| matches!(part, "" | "." | "..") || !part.chars().all(plain)) {
        return refuse("path segments are non-empty letters, digits, '.', '-' and '_'");
    }
    Ok(AgentId::new(uri)?)
}

fn host_name(host: &str) -> Result<AgentId, IdentityError> {
    // A wildcard, which would name many agents, is no `DnsName` either.
    if DnsName::try_from(host).is_err() || host.ends_with('.') {
        return Err(IdentityError::NotAnIdentity {
            found: host.to_owned(),
            why: "it is no full host name",
        });
    }
    // Host names compare without case (RFC 4343); ids compare by bytes.
    Ok(AgentId::new(&host.to_ascii_lowercase())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::ca::{DevCa, valid_days};
    use rcgen::SanType;

    fn with_names(names: &[SanType]) -> Result<AgentId, IdentityError> {
        let ca = DevCa::generate().unwrap();
        identity_of(&ca.issue_for(names.to_vec(), valid_days(1)).unwrap().cert)
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    fn dns(text: &str) -> SanType {
        SanType::DnsName(text.try_into().unwrap())
    }

    #[test]
    fn one_spiffe_uri_wins_over_any_number_of_dns_names() {
        let id = "spiffe://example.org/agent/a";
        let found = with_names(&[dns("a.example.org"), uri(id), dns("b.example.org")]);
        assert_eq!(found.unwrap().as_str(), id);
        assert_eq!(with_names(&[dns("A.Example.org")]).unwrap().as_str(), "a.example.org");
    }

    #[test]
    fn two_candidates_are_refused_and_both_are_named() {
        let error = with_names(&[uri("spiffe://x.org/a"), uri("spiffe://x.org/b")]).unwrap_err();
        assert!(
            matches!(&error, IdentityError::Ambiguous { what: "URI", found } if found.len() == 2)
        );
        assert!(error.to_string().contains("spiffe://x.org/a, spiffe://x.org/b"), "{error}");
        // A second URI is not excused because it is no SPIFFE id.
        assert!(with_names(&[uri("spiffe://x.org/a"), uri("https://x.org")]).is_err());
        let error = with_names(&[dns("a.org"), dns("b.org")]).unwrap_err();
        assert!(matches!(error, IdentityError::Ambiguous { what: "DNS", .. }));
    }

    #[test]
    fn a_common_name_is_not_an_identity() {
        let error = with_names(&[]).unwrap_err();
        assert!(
            matches!(&error, IdentityError::NoName { subject } if subject.contains("CN=")),
            "{error}"
        );
        let address = SanType::IpAddress([127, 0, 0, 1].into());
        assert!(matches!(with_names(&[address]), Err(IdentityError::NoName { .. })));
    }

    #[test]
    fn names_that_could_be_read_two_ways_are_refused() {
        for text in [
            "https://example.org/agent",
            "spiffe://",
            "spiffe://Example.org/a",
            "spiffe://example.org:4433/a",
            "spiffe://user@example.org/a",
            "spiffe://example.org/a/",
            "spiffe://example.org//a",
            "spiffe://example.org/a/../b",
            "spiffe://example.org/%61",
            "spiffe://example.org/a?b",
            "spiffe://example.org/a#b",
        ] {
            let error = with_names(&[uri(text)]).unwrap_err();
            assert!(
                matches!(&error, IdentityError::NotAnIdentity { found, .. } if found == text),
                "{error}"
            );
        }
        for text in ["*.example.org", "example.org.", "two words", ""] {
            let error = with_names(&[dns(text)]).unwrap_err();
            assert!(matches!(&error, IdentityError::NotAnIdentity { .. }), "{error}");
        }
        let long = format!("spiffe://example.org/{}", "a".repeat(256));
        assert!(matches!(with_names(&[uri(&long)]), Err(IdentityError::BadId(_))));
    }

    #[test]
    fn bytes_that_are_no_certificate_are_refused() {
        assert!(matches!(identity_of(&vec![0x30, 0x00].into()), Err(IdentityError::Malformed(_))));
        let ca = DevCa::generate().unwrap();
        let mut bytes = ca.issue_for(vec![dns("a.org")], valid_days(1)).unwrap().cert.to_vec();
        bytes.push(0);
        assert!(matches!(identity_of(&bytes.into()), Err(IdentityError::Malformed(_))));
    }
}
