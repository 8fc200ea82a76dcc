use super::*;
use crate::init::ca::{DevCa, Issued, valid_days};
use quinn::{ConnectionError, Endpoint};
use rcgen::SanType;
use std::ops::Range;

const ALICE: &str = "spiffe://example.org/alice";
const BOB: &str = "spiffe://example.org/bob";

fn id(text: &str) -> AgentId {
    AgentId::new(text).unwrap()
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

/// An identity that skips the checks of our own loader, as a foreign implementation would.
fn unchecked(issued: Issued, ca: &DevCa) -> TlsIdentity {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(ca.cert().clone()).unwrap();
    let key = CertifiedKey::from_der(vec![issued.cert], issued.key, &provider).unwrap();
    TlsIdentity { agent: id("unchecked"), key: Arc::new(key), roots: Arc::new(roots), provider }
}

fn named(ca: &DevCa, names: &[&str]) -> TlsIdentity {
    let names = names.iter().map(|name| uri(name)).collect();
    unchecked(ca.issue_for(names, valid_days(1)).unwrap(), ca)
}

fn valid(ca: &DevCa, name: &str, valid: Range<u64>) -> TlsIdentity {
    unchecked(ca.issue(&id(name), valid).unwrap(), ca)
}

struct Met {
    client: Result<AgentId, String>,
    server: Result<AgentId, String>,
}

/// A real handshake on loopback; each side says whom it met, or why it met no one.
async fn meet_as(server: rustls::ServerConfig, client: rustls::ClientConfig) -> Met {
    let loopback = ([127, 0, 0, 1], 0).into();
    let crypto = QuicServerConfig::try_from(server).unwrap();
    let listener =
        Endpoint::server(quinn::ServerConfig::with_crypto(Arc::new(crypto)), loopback).unwrap();
    let dialer = Endpoint::client(loopback).unwrap();
    let crypto = QuicClientConfig::try_from(client).unwrap();
    let config = quinn::ClientConfig::new(Arc::new(crypto));
    let dial = async {
        let dialing = dialer.connect_with(config, listener.local_addr().unwrap(), SERVER_NAME);
        let connection = dialing.unwrap().await.map_err(|e| e.to_string())?;
        // The server judges our certificate after our side of the handshake is done.
        let mut stream = connection.open_uni().await.map_err(|e| e.to_string())?;
        stream.write_all(b"hello").await.map_err(|e| e.to_string())?;
        let peer = peer_identity(&connection).map_err(|e| e.to_string())?;
        match connection.closed().await {
            ConnectionError::ApplicationClosed(_) => Ok(peer),
            other => Err(other.to_string()),
        }
    };
    let accept = async {
        let connection = listener.accept().await.unwrap().await.map_err(|e| e.to_string())?;
        let peer = peer_identity(&connection).map_err(|e| e.to_string());
        connection.accept_uni().await.map_err(|e| e.to_string())?;
        connection.close(0u32.into(), b"done");
        peer
    };
    let (client, server) = tokio::join!(dial, accept);
    Met { client, server }
}

/// `client` dials `server`, expecting to find Bob.
async fn meet(server: &TlsIdentity, client: &TlsIdentity) -> Met {
    let client = client.rustls_client(&[ALPN], &id(BOB)).unwrap();
    meet_as(server.rustls_server(&[ALPN]).unwrap(), client).await
}

#[tokio::test]
async fn both_sides_learn_who_the_other_is() {
    let ca = DevCa::generate().unwrap();
    let met = meet(&named(&ca, &[BOB]), &named(&ca, &[ALICE])).await;
    assert_eq!(met.client, Ok(id(BOB)));
    assert_eq!(met.server, Ok(id(ALICE)));
}

#[tokio::test]
async fn a_server_that_is_not_the_expected_agent_is_refused() {
    let ca = DevCa::generate().unwrap();
    let alice = named(&ca, &[ALICE]);
    let cases: [(&str, &[&str], &str); 3] = [
        ("wrong identity", &["spiffe://example.org/mallory"], "mallory"),
        ("two URIs", &[BOB, "spiffe://example.org/mallory"], "Ambiguous"),
        ("CN only", &[], "NoName"),
    ];
    for (case, names, why) in cases {
        let met = meet(&named(&ca, names), &alice).await;
        let error = met.client.unwrap_err();
        assert!(error.contains(why), "{case}: {error}");
        assert!(met.server.is_err(), "{case}: the server must not think it is connected");
    }
}

#[tokio::test]
async fn a_client_without_one_identity_is_found_out_after_the_handshake() {
    let ca = DevCa::generate().unwrap();
    let bob = named(&ca, &[BOB]);
    let cases: [(&[&str], &str); 2] =
        [(&[], "does not count"), (&[ALICE, "spiffe://example.org/mallory"], "exactly one")];
    for (names, why) in cases {
        let error = meet(&bob, &named(&ca, names)).await.server.unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test]
async fn another_ca_is_refused_by_both_sides() {
    let (ours, theirs) = (DevCa::generate().unwrap(), DevCa::generate().unwrap());
    // Mallory trusts us, so only our side can refuse.
    let mallory = |name: &str| unchecked(theirs.issue(&id(name), valid_days(1)).unwrap(), &ours);
    let met = meet(&mallory(BOB), &named(&ours, &[ALICE])).await;
    let error = met.client.unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");
    let met = meet(&named(&ours, &[BOB]), &mallory(ALICE)).await;
    let error = met.server.unwrap_err();
    assert!(error.contains("UnknownIssuer"), "{error}");
    assert!(met.client.is_err());
}

#[tokio::test]
async fn expired_and_not_yet_valid_certificates_are_refused_by_both_sides() {
    let ca = DevCa::generate().unwrap();
    let now = valid_days(0).end;
    for (period, why) in
        [(now - 900..now - 600, "expired"), (now + 600..now + 900, "not valid yet")]
    {
        let met = meet(&valid(&ca, BOB, period.clone()), &named(&ca, &[ALICE])).await;
        let error = met.client.unwrap_err();
        assert!(error.contains(why), "{error}");
        let met = meet(&named(&ca, &[BOB]), &valid(&ca, ALICE, period)).await;
        let error = met.server.unwrap_err();
        assert!(error.contains(why), "{error}");
        assert!(met.client.is_err());
    }
}

#[derive(Debug)]
struct Nobody;

impl rustls::client::ResolvesClientCert for Nobody {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let ca = DevCa::generate().unwrap();
    let mut client = named(&ca, &[ALICE]).rustls_client(&[ALPN], &id(BOB)).unwrap();
    client.client_auth_cert_resolver = Arc::new(Nobody);
    let met = meet_as(named(&ca, &[BOB]).rustls_server(&[ALPN]).unwrap(), client).await;
    let error = met.server.unwrap_err();
    assert!(error.contains("sent no certificates"), "{error}");
    assert!(met.client.is_err());
}

#[tokio::test]
async fn an_unknown_alpn_is_refused() {
    let ca = DevCa::generate().unwrap();
    let client = named(&ca, &[ALICE]).rustls_client(&[b"moqt-18"], &id(BOB)).unwrap();
    let server = named(&ca, &[BOB]).rustls_server(&[ALPN, b"abhyasa/2"]).unwrap();
    let met = meet_as(server, client).await;
    assert!(met.client.is_err() && met.server.is_err());
}

#[test]
fn early_data_and_resumption_are_off() {
    let ca = DevCa::generate().unwrap();
    let bob = named(&ca, &[BOB]);
    let server = bob.rustls_server(&[ALPN]).unwrap();
    assert_eq!(server.max_early_data_size, 0, "a 0-RTT flight can be replayed (RFC 8446 §8)");
    assert_eq!(server.send_tls13_tickets, 0);
    assert!(!server.session_storage.can_cache());
    assert!(!server.ticketer.enabled());
    assert!(!bob.rustls_client(&[ALPN], &id(ALICE)).unwrap().enable_early_data);
}

/// Dials twice with one client configuration: were a ticket kept, quinn would offer 0-RTT.
#[tokio::test]
async fn a_second_dial_has_no_ticket_to_offer() {
    let ca = DevCa::generate().unwrap();
    let transport = Arc::new(transport(&QuicConfig::default()).unwrap());
    let server = named(&ca, &[BOB]).server(&[ALPN], transport.clone()).unwrap();
    let loopback = ([127, 0, 0, 1], 0).into();
    let listener = Endpoint::server(server, loopback).unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        while let Some(incoming) = listener.accept().await {
            if let Ok(connection) = incoming.await {
                connection.closed().await;
            }
        }
    });
    let config = named(&ca, &[ALICE]).client(&[ALPN], &id(BOB), transport).unwrap();
    let dialer = Endpoint::client(loopback).unwrap();
    for _ in 0..2 {
        let connecting = dialer.connect_with(config.clone(), address, SERVER_NAME).unwrap();
        let connection = connecting.into_0rtt().err().unwrap().await.unwrap();
        assert_eq!(peer_identity(&connection), Ok(id(BOB)));
        connection.close(0u32.into(), b"");
    }
    accepting.abort();
}

#[test]
fn transport_limits_come_from_the_configuration() {
    let quic = QuicConfig { streams_max: 7, idle_timeout_ms: 12_000, ..QuicConfig::default() };
    let text = format!("{:?}", transport(&quic).unwrap());
    for part in [
        "max_concurrent_uni_streams: 7",
        "max_concurrent_bidi_streams: 0",
        "max_idle_timeout: Some(12000)",
        "keep_alive_interval: Some(5s)",
        "stream_receive_window: 262144",
        "receive_window: 8388608",
        "send_window: 16777216",
        "datagram_receive_buffer_size: Some(1048576)",
    ] {
        assert!(text.contains(part), "{part} not in {text}");
    }
    let quic = QuicConfig { idle_timeout_ms: u64::MAX, ..QuicConfig::default() };
    assert!(matches!(transport(&quic), Err(TlsError::Transport { key: "idle_timeout_ms" })));
}

struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn write(issued: &Issued, ca: &DevCa, key_mode: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("node.pem"), &issued.cert_pem).unwrap();
        std::fs::write(dir.path().join("ca.pem"), ca.cert_pem()).unwrap();
        let key = dir.path().join("node.key");
        std::fs::write(&key, &issued.key_pem).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(&key, std::fs::Permissions::from_mode(key_mode)).unwrap();
        }
        Self { dir }
    }

    fn load(&self) -> Result<TlsIdentity, TlsError> {
        let file = |name| self.dir.path().join(name);
        TlsIdentity::load(&file("node.pem"), &file("node.key"), &file("ca.pem"))
    }
}

#[test]
fn the_loader_checks_the_node_and_the_files() {
    let ca = DevCa::generate().unwrap();
    let bob = ca.issue(&id(BOB), valid_days(1)).unwrap();
    let files = Files::write(&bob, &ca, 0o600);
    let loaded = files.load().unwrap();
    assert_eq!(loaded.agent(), &id(BOB));
    let left_ms = loaded.valid_until().as_ms() - valid_days(0).end * 1000;
    assert!((86_000_000..=86_400_000).contains(&left_ms), "{left_ms}");
    assert!(loaded.expect_node(&id(BOB)).is_ok());
    let error = loaded.expect_node(&id(ALICE)).unwrap_err().to_string();
    assert!(error.contains(&format!("node.id = \"{BOB}\"")), "{error}");

    for name in ["node.pem", "node.key", "ca.pem"] {
        let files = Files::write(&bob, &ca, 0o600);
        std::fs::write(files.dir.path().join(name), "not PEM").unwrap();
        let error = files.load().unwrap_err();
        assert!(
            matches!(error, TlsError::Pem { .. }) && error.to_string().contains(name),
            "{error}"
        );
        std::fs::remove_file(files.dir.path().join(name)).unwrap();
        assert!(files.load().unwrap_err().to_string().contains(name));
    }
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let ca = DevCa::generate().unwrap();
    let mut bob = ca.issue(&id(BOB), valid_days(1)).unwrap();
    bob.key_pem = ca.issue(&id(BOB), valid_days(1)).unwrap().key_pem;
    let error = Files::write(&bob, &ca, 0o600).load().unwrap_err();
    assert!(matches!(error, TlsError::Rustls(rustls::Error::InconsistentKeys(_))), "{error}");
}

#[cfg(unix)]
#[test]
fn a_key_open_to_every_user_is_refused() {
    let ca = DevCa::generate().unwrap();
    let bob = ca.issue(&id(BOB), valid_days(1)).unwrap();
    let error = Files::write(&bob, &ca, 0o644).load().unwrap_err().to_string();
    assert!(error.contains("node.key") && error.contains("0644"), "{error}");
}
