//! Mutual TLS 1.3 for the QUIC endpoint.
//!
//! Both rustls configurations are built by hand: quinn's ready-made server accepts 0-RTT, and a
//! replayed flight must not reach custody. Resumption is off too, so that the identity is proved
//! anew in each handshake and never taken from a ticket.

use crate::config::{Congestion, QuicConfig, SecretError, read_secret};
use crate::congestion::TolerantConfig;
use crate::identity::{IdentityError, expect_identity, identity_of};
use proto::id::AgentId;
use proto::limits::FRAME_LEN_MAX;
use proto::time::Time;
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, PrivateKeyDer, ServerName, SignatureVerificationAlgorithm,
    UnixTime,
};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, Signer, SingleCertAndKey};
use rustls::{CertificateError, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// ALPN of the native frames.
pub const ALPN: &[u8] = b"abhyasa/1";
/// ALPN of HTTP/3 (RFC 9114 §3.1).
pub const ALPN_H3: &[u8] = b"h3";
/// ALPN of A2A calls.
pub const ALPN_A2A: &[u8] = b"abhyasa-a2a/1";
/// ALPN of MCP calls.
pub const ALPN_MCP: &[u8] = b"abhyasa-mcp/1";
/// ALPN of MOQT draft-18 (draft-ietf-moq-transport-18).
pub const ALPN_MOQT: &[u8] = b"moqt-18";
/// The name to give to `quinn::Endpoint::connect`. It means nothing: no SNI is sent, and the
/// server is known by the agent id in its certificate, not by a host name.
pub const SERVER_NAME: &str = "abhyasa";
/// Connection attempts that may wait for the endpoint to accept them; more are refused at once.
pub const INCOMING_MAX: usize = 1024;
/// Bytes buffered for one waiting attempt; packets beyond are dropped and sent again by the peer.
pub const INCOMING_BYTES_MAX: u64 = 16 * 1024;
/// Bytes buffered for all waiting attempts together (QUIC-LEAK, CVE-2025-54939).
pub const INCOMING_TOTAL_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Bytes a peer may have unread on one stream: one frame is one stream, so the largest frame.
pub const STREAM_WINDOW_BYTES: u32 = FRAME_LEN_MAX as u32;
/// Bytes a peer may have unread on all streams of a connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
/// Bytes in one certificate file; a longer one is refused.
pub const CERT_FILE_LEN_MAX: u64 = 1024 * 1024;

/// Packets that may overtake another before it counts as lost (RFC 9002 §6.1.1).
pub const REORDERED_MAX: u32 = 64;
/// Round trips after which a packet counts as lost when a later one arrived (RFC 9002 §6.1.2).
pub const LATE_RTTS: f32 = 2.0;

const _: () = assert!(FRAME_LEN_MAX <= STREAM_WINDOW_BYTES as usize, "no frame waits for credit");
const _: () =
    assert!(CONNECTION_WINDOW_BYTES >= 4 * STREAM_WINDOW_BYTES, "one stream cannot fill it");
const _: () =
    assert!(INCOMING_MAX as u64 <= INCOMING_TOTAL_BYTES_MAX / 1200, "each keeps a packet");

/// Why a TLS identity or configuration cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A certificate file is missing, unreadable or too long.
    #[error("cannot read {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// A file is not what its name says.
    #[error("{} holds no PEM {what}: {source}", file.display())]
    Pem {
        /// The file.
        file: PathBuf,
        /// `certificate` or `private key`.
        what: &'static str,
        /// The reason.
        source: pem::Error,
    },
    /// The key file is unreadable or open to other users.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Our own certificate gives no identity.
    #[error("our own certificate gives no identity: {0}")]
    Identity(#[from] IdentityError),
    /// The certificate is for another node than the configuration.
    #[error(
        "node.id is {configured} but the certificate is for {certified}; fix: set node.id = \"{certified}\" or use the certificate of {configured}"
    )]
    WrongNode {
        /// `node.id`.
        configured: AgentId,
        /// The certificate's identity.
        certified: AgentId,
    },
    /// rustls refused a key, certificate or setting; a key of another certificate is one such.
    #[error("TLS set-up refused: {0}")]
    Rustls(#[from] rustls::Error),
    /// A CA certificate is not usable as a trust anchor.
    #[error("no usable CA certificate: {0}")]
    Roots(#[from] rustls::server::VerifierBuilderError),
    /// The crypto provider lacks the cipher suite that QUIC starts with.
    #[error("QUIC needs TLS13_AES_128_GCM_SHA256: {0}")]
    Suite(#[from] NoInitialCipherSuite),
    /// Batches for MOQT cannot be signed with it.
    #[error("MOQT needs a key of Ed25519 or P-256 in quic.key, to sign what it publishes")]
    SigningKey,
    /// A transport limit that QUIC cannot carry.
    #[error("quic.{key} is beyond what QUIC can carry (2^62 - 1)")]
    Transport {
        /// The setting.
        key: &'static str,
    },
}

/// What this node shows to peers, and whom it believes.
#[derive(Clone, Debug)]
pub struct TlsIdentity {
    agent: AgentId,
    key: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl TlsIdentity {
    /// Reads certificate chain, key and CA certificates from PEM files.
    ///
    /// # Errors
    /// [`TlsError`] names the file: unreadable, no PEM, a key open to other users or of another
    /// certificate, a certificate without an identity, no CA.
    pub fn load(cert_pem: &Path, key_pem: &Path, ca_pem: &Path) -> Result<Self, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(&read_secret(key_pem)?).map_err(|source| {
            TlsError::Pem { file: key_pem.to_owned(), what: "private key", source }
        })?;
        Self::from_der(certificates(cert_pem)?, key, certificates(ca_pem)?)
    }

    /// As [`Self::load`], from memory. `chain` begins with the node's own certificate.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn from_der(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        cas: Vec<CertificateDer<'static>>,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let agent = identity_of(chain.first().ok_or(IdentityError::NoCertificate)?)?;
        let mut roots = RootCertStore::empty();
        for ca in cas {
            roots.add(ca)?;
        }
        let key = Arc::new(CertifiedKey::from_der(chain, key, &provider)?);
        Ok(Self { agent, key, roots: Arc::new(roots), provider })
    }

    /// Who this node is, by its certificate.
    #[must_use]
    pub const fn agent(&self) -> &AgentId {
        &self.agent
    }

    /// Checks that the certificate is the one of the configured node.
    ///
    /// # Errors
    /// [`TlsError::WrongNode`].
    pub fn expect_node(&self, configured: &AgentId) -> Result<(), TlsError> {
        if self.agent == *configured {
            return Ok(());
        }
        Err(TlsError::WrongNode { configured: configured.clone(), certified: self.agent.clone() })
    }

    /// When our own certificate ends, for a warning. An expired certificate does not stop a node:
    /// its deadlines and escalations need no network (AB-4).
    #[must_use]
    pub fn valid_until(&self) -> Time {
        let end = self.key.cert.first().and_then(|cert| {
            let (_, cert) = x509_parser::parse_x509_certificate(cert).ok()?;
            u64::try_from(cert.validity().not_after.timestamp()).ok()
        });
        Time::from_ms(end.unwrap_or_default().saturating_mul(1000))
    }

    /// Our certificate, and what is between it and the CA.
    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }

    /// Signs with our key by the first of `schemes` that it knows.
    pub(crate) fn signer(&self, schemes: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.key.key.choose_scheme(schemes)
    }

    /// What verifies signatures of a scheme by keys of an algorithm.
    pub(crate) fn verifier(
        &self,
        scheme: SignatureScheme,
        key: AlgorithmIdentifier,
    ) -> Option<&'static dyn SignatureVerificationAlgorithm> {
        let mapping = self.provider.signature_verification_algorithms.mapping;
        let (_, all) = mapping.iter().find(|(known, _)| *known == scheme)?;
        all.iter().copied().find(|algorithm| algorithm.public_key_alg_id() == key)
    }

    /// Who the first of these certificates is of, if our CA vouches for it at `now`.
    ///
    /// # Errors
    /// What is wrong with the chain.
    pub(crate) fn vouched(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<AgentId, rustls::Error> {
        let (first, intermediates) =
            chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
        vouched(first, intermediates, &self.roots, now, &self.provider)?;
        let unusable = |error| CertificateError::Other(OtherError(Arc::new(error)));
        Ok(identity_of(first).map_err(unusable)?)
    }

    /// The rustls side of [`Self::server`]: a client certificate of our CA is mandatory, no early
    /// data, no tickets.
    ///
    /// # Errors
    /// [`TlsError::Roots`] without a CA.
    pub fn rustls_server(&self, alpn: &[&[u8]]) -> Result<rustls::ServerConfig, TlsError> {
        let (roots, provider) = (self.roots.clone(), self.provider.clone());
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider).build()?;
        let mut config = rustls::ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(self.key.clone())));
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        config.max_early_data_size = 0;
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(config)
    }

    /// The rustls side of [`Self::client`]: the server must be `expected`, by a certificate of our
    /// CA; no early data, no resumption, no SNI.
    ///
    /// # Errors
    /// [`TlsError::Rustls`].
    pub fn rustls_client(
        &self,
        alpn: &[&[u8]],
        expected: &AgentId,
    ) -> Result<rustls::ClientConfig, TlsError> {
        let verifier = ExpectedAgent {
            expected: expected.clone(),
            roots: self.roots.clone(),
            provider: self.provider.clone(),
        };
        let mut config = rustls::ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(self.key.clone())));
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        config.enable_early_data = false;
        config.resumption = Resumption::disabled();
        config.enable_sni = false;
        Ok(config)
    }

    /// A QUIC server configuration; migration stays on, since a peer is its certificate and not
    /// its address.
    ///
    /// # Errors
    /// As [`Self::rustls_server`].
    pub fn server(
        &self,
        alpn: &[&[u8]],
        transport: Arc<quinn::TransportConfig>,
    ) -> Result<quinn::ServerConfig, TlsError> {
        let crypto = QuicServerConfig::try_from(self.rustls_server(alpn)?)?;
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        config
            .transport_config(transport)
            .max_incoming(INCOMING_MAX)
            .incoming_buffer_size(INCOMING_BYTES_MAX)
            .incoming_buffer_size_total(INCOMING_TOTAL_BYTES_MAX);
        Ok(config)
    }

    /// A QUIC client configuration for one dial of `expected`.
    ///
    /// # Errors
    /// As [`Self::rustls_client`].
    pub fn client(
        &self,
        alpn: &[&[u8]],
        expected: &AgentId,
        transport: Arc<quinn::TransportConfig>,
    ) -> Result<quinn::ClientConfig, TlsError> {
        let crypto = QuicClientConfig::try_from(self.rustls_client(alpn, expected)?)?;
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(transport);
        Ok(config)
    }
}

impl TlsIdentity {
    /// A QUIC client configuration for relays whose certificates chain to the CAs in a file, under the name they
    /// are dialled by. We show our certificate to one that asks for it; what we are to our peers does not rest
    /// on the relay.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn relay_client(
        &self,
        alpn: &[&[u8]],
        ca_pem: &Path,
        transport: &Arc<quinn::TransportConfig>,
    ) -> Result<quinn::ClientConfig, TlsError> {
        relay_client(alpn, ca_pem, transport, Some(&self.key))
    }
}

/// Who is at the other end of an established connection. The chain was checked in the handshake;
/// on the accepting side this is where a client without a usable identity is found out.
///
/// # Errors
/// [`IdentityError`].
pub fn peer_identity(connection: &quinn::Connection) -> Result<AgentId, IdentityError> {
    let shown = connection.peer_identity().ok_or(IdentityError::NoCertificate)?;
    let chain = shown.downcast::<Vec<CertificateDer<'static>>>();
    let chain = chain.map_err(|_| IdentityError::NoCertificate)?;
    identity_of(chain.first().ok_or(IdentityError::NoCertificate)?)
}

/// The application protocol that was agreed on.
#[must_use]
pub fn protocol(connection: &quinn::Connection) -> Option<Vec<u8>> {
    let data = connection.handshake_data()?;
    data.downcast::<quinn::crypto::rustls::HandshakeData>().ok()?.protocol
}

/// Transport parameters from the configuration. Windows are sized from the frame limits, so that
/// a peer cannot make us buffer more than [`CONNECTION_WINDOW_BYTES`] a connection; bidirectional
/// streams are allowed to other protocols only, once one is agreed on; MTU discovery stays on.
///
/// # Errors
/// [`TlsError::Transport`] names the setting that is out of range.
pub fn transport(quic: &QuicConfig) -> Result<quinn::TransportConfig, TlsError> {
    let idle = quinn::IdleTimeout::try_from(Duration::from_millis(quic.idle_timeout_ms))
        .map_err(|_| TlsError::Transport { key: "idle_timeout_ms" })?;
    let mut transport = quinn::TransportConfig::default();
    transport
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(Duration::from_millis(quic.keep_alive_ms)))
        .max_concurrent_uni_streams(quic.streams_max.into())
        .max_concurrent_bidi_streams(0u32.into())
        .stream_receive_window(STREAM_WINDOW_BYTES.into())
        .receive_window(CONNECTION_WINDOW_BYTES.into())
        .send_window(quic.send_queue_bytes_max as u64)
        // Frames are short: finishing the oldest beats a fair share for all.
        .send_fairness(false)
        // Jitter reorders packets. What only came late must not count as lost: a window of
        // congestion that shrinks for nothing costs more than a loss that is seen a little later.
        .packet_threshold(REORDERED_MAX)
        .time_threshold(LATE_RTTS)
        .datagram_receive_buffer_size(Some(quic.datagram_buffer_bytes))
        .datagram_send_buffer_size(quic.datagram_buffer_bytes)
        .congestion_controller_factory(match quic.congestion {
            Congestion::Tolerant => Arc::new(TolerantConfig::default()) as Arc<_>,
            Congestion::Bbr => Arc::new(quinn::congestion::BbrConfig::default()),
            Congestion::Cubic => Arc::new(quinn::congestion::CubicConfig::default()),
        });
    Ok(transport)
}

/// A QUIC client configuration for a relay, which is known by a host name and a certificate of a CA in the PEM
/// file `ca_pem`; it is shown `key` if it asks who we are.
///
/// # Errors
/// [`TlsError`] names the file.
pub(crate) fn relay_client(
    alpn: &[&[u8]],
    ca_pem: &Path,
    transport: &Arc<quinn::TransportConfig>,
    key: Option<&Arc<CertifiedKey>>,
) -> Result<quinn::ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for ca in certificates(ca_pem)? {
        roots.add(ca)?;
    }
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots);
    let mut config = match key {
        Some(key) => {
            config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key.clone())))
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    config.enable_early_data = false;
    config.resumption = Resumption::disabled();
    let crypto = QuicClientConfig::try_from(config)?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(transport.clone());
    Ok(config)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Read { file: file.to_owned(), source };
    let len = std::fs::metadata(file).map_err(failed)?.len();
    if len > CERT_FILE_LEN_MAX {
        let text = format!("{len} bytes are over the limit of {CERT_FILE_LEN_MAX}");
        return Err(failed(std::io::Error::other(text)));
    }
    let bytes = std::fs::read(file).map_err(failed)?;
    let refused = |source| TlsError::Pem { file: file.to_owned(), what: "certificate", source };
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(&bytes).collect::<Result<_, _>>().map_err(refused)?;
    if found.is_empty() {
        return Err(refused(pem::Error::NoItemsFound));
    }
    Ok(found)
}

/// Checks that a certificate chains to `roots`.
fn vouched(
    cert: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    roots: &RootCertStore,
    now: UnixTime,
    provider: &CryptoProvider,
) -> Result<(), rustls::Error> {
    let cert = ParsedCertificate::try_from(cert)?;
    let algorithms = provider.signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&cert, roots, intermediates, now, algorithms)
}

/// Accepts one server: `expected`, by a certificate that chains to `roots`. The host name of the
/// dial plays no part.
#[derive(Debug)]
struct ExpectedAgent {
    expected: AgentId,
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ExpectedAgent {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        vouched(end_entity, intermediates, &self.roots, now, &self.provider)?;
        expect_identity(end_entity, &self.expected)
            .map_err(|error| CertificateError::Other(OtherError(Arc::new(error))))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // QUIC is TLS 1.3 only (RFC 9001 §4.2).
        Err(rustls::PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
