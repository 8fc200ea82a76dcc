use super::*;
use crate::acap::jws::SigningKey;
use crate::acap::jws::tests::{ed25519, p256};
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proto::consent::Anchored as _;
use proto::time::Time;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio_rustls::TlsAcceptor;

fn agent(id: &str) -> AgentId {
    AgentId::new(id).unwrap()
}

fn at(second: u64) -> Time {
    Time::from_ms(1_772_614_800_000 + second * 1_000)
}

fn times(signed: u64, seen: u64) -> Times {
    Times { signed: at(signed), seen: at(seen) }
}

/// The JWK of a key of Ed25519.
fn jwk(key: &SigningKey, more: &Value) -> Value {
    let bytes = bs58::decode(&key.public().to_multikey()[1..]).into_vec().unwrap();
    let mut jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": key.kid(), "x": URL_SAFE_NO_PAD.encode(&bytes[2..]) });
    jwk.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    jwk
}

fn check(keys: &KeySet, key: &SigningKey, times: Times) -> Result<(), SignatureFault> {
    let jws = Jws::parse(&key.sign(b"{}").unwrap()).unwrap();
    keys.verify(&jws, b"{}", &agent("did:web:a.example"), times)
}

#[test]
fn a_key_signs_in_its_time_and_a_revoked_one_only_what_was_seen_before() {
    let key = ed25519();
    let seconds = |second| at(second).as_ms() / 1_000;
    let set = |more: Value| KeySet::from_jwks(&json!({ "keys": [jwk(&key, &more)] })).unwrap();
    let window = set(json!({ "nbf": seconds(10), "exp": seconds(20) }));
    assert_eq!(check(&window, &key, times(15, 99)), Ok(()));
    let error = check(&window, &key, times(9, 9)).unwrap_err().to_string();
    assert!(error.contains("signs from 2026-03-04T09:00:10Z"), "{error}");
    let error = check(&window, &key, times(21, 21)).unwrap_err().to_string();
    assert!(error.contains("signs until 2026-03-04T09:00:20Z"), "{error}");
    let revoked = set(json!({ "revoked": { "revoked_at": seconds(20) } }));
    assert_eq!(check(&revoked, &key, times(15, 16)), Ok(()), "it was anchored before");
    let error = check(&revoked, &key, times(15, 30)).unwrap_err();
    assert!(
        matches!(error, SignatureFault::Revoked { .. }),
        "the date is the signer's own: {error}"
    );
    let error = check(&set(json!({ "revoked": {} })), &key, times(15, 16)).unwrap_err();
    assert!(matches!(error, SignatureFault::Revoked { .. }), "revoked without a time: {error}");
    let unread = KeySet::from_jwks(&json!({ "keys": [jwk(&key, &json!({ "exp": "soon" }))] }));
    assert!(matches!(unread, Err(KeySetError::BadTime { member: "exp", .. })));
}

#[test]
fn keys_are_found_by_name_and_rotated() {
    let (old, new, other) = (ed25519(), p256(), ed25519());
    let did = "did:web:a.example";
    let document = json!({
        "id": did,
        "verificationMethod": [
            { "id": "#key-1", "type": "Multikey", "controller": did, "publicKeyMultibase": new.public().to_multikey() },
            { "id": format!("{did}#old"), "type": "Multikey", "controller": did,
              "publicKeyMultibase": old.public().to_multikey(), "revoked": "2026-03-04T09:00:20Z" },
            { "id": "#tls", "controller": did, "publicKeyMultibase": other.public().to_multikey() },
            { "id": "#theirs", "controller": "did:web:b.example", "publicKeyMultibase": other.public().to_multikey() },
        ],
        "assertionMethod": ["#key-1", "#old", "#theirs", "#missing"],
    });
    let keys = KeySet::from_did_document(did, &document).unwrap();
    assert_eq!(keys.keys().len(), 2, "only keys of its own, for statements: {keys:?}");
    assert_eq!(check(&keys, &new, times(1, 1)), Ok(()), "its kid is the last part of the DID URL");
    let error = check(&keys, &other, times(1, 1)).unwrap_err().to_string();
    assert!(error.contains("did:web:a.example has no key") && error.contains("#key-1"), "{error}");
    let der =
        aws_lc_rs::signature::Ed25519KeyPair::generate_pkcs8(&aws_lc_rs::rand::SystemRandom::new());
    let forged = SigningKey::from_pkcs8(der.unwrap().as_ref(), Some("old")).unwrap();
    let error = check(&keys, &forged, times(1, 1)).unwrap_err();
    assert!(matches!(error, SignatureFault::Jws(_)), "another key under its name: {error}");
    let mut copy = document.clone();
    copy["id"] = json!("did:web:b.example");
    assert!(matches!(KeySet::from_did_document(did, &copy), Err(KeySetError::Other { .. })));
    let many: Vec<Value> = (0..=KEYS_MAX).map(|_| jwk(&old, &json!({}))).collect();
    let error = KeySet::from_jwks(&json!({ "keys": many })).unwrap_err();
    assert_eq!(error, KeySetError::TooMany { count: 65 });
    assert_eq!(KeySet::from_jwks(&json!({ "keys": [] })), Err(KeySetError::NoKey));
}

#[test]
fn names_say_where_keys_are() {
    let place = |name: &str| Source::of(&agent(name));
    for (name, url) in [
        ("did:web:a.example", "https://a.example/.well-known/did.json"),
        ("did:web:a.example%3A8443", "https://a.example:8443/.well-known/did.json"),
        ("did:web:a.example:user:alice", "https://a.example/user/alice/did.json"),
    ] {
        assert_eq!(place(name), Some(Source::Did(url.parse().unwrap())), "{name}");
    }
    let jwks = "https://a.example/.well-known/jwks.json".parse().unwrap();
    assert_eq!(place("https://a.example/agents/1"), Some(Source::Jwks(jwks)));
    assert_eq!(place("did:key:z6Mk"), Some(Source::Name));
    for bad in [
        "did:web:a.example/x",
        "did:web:user@a.example",
        "did:web:a.example:..:x",
        "did:web:a.example:user:%2e%2E:x",
        "did:web:a.example:.%2e:x",
        "did:web:a.example?x",
        "did:web:a.example::x",
        "http://a.example",
        "spiffe://example.org/agent/a",
    ] {
        assert_eq!(place(bad), None, "{bad}");
    }
}

/// An HTTPS server on loopback that answers every path with the same.
struct Site {
    port: u16,
    root: reqwest::Certificate,
    answer: Arc<Mutex<(StatusCode, String)>>,
    calls: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Site {
    async fn start() -> Self {
        let cert = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let root = reqwest::Certificate::from_der(cert.cert.der()).unwrap();
        let key =
            rustls::pki_types::PrivateKeyDer::try_from(cert.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![cert.cert.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(Mutex::new((StatusCode::OK, String::new())));
        let calls = Arc::new(AtomicUsize::new(0));
        let (said, counted) = (answer.clone(), calls.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
                let mut request = [0; 4_096];
                let _ = stream.read(&mut request).await;
                counted.fetch_add(1, Ordering::SeqCst);
                let (status, body) = said.lock().unwrap().clone();
                let head = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\nlocation: /other\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await;
                let _ = stream.shutdown().await;
            }
        });
        Self { port, root, answer, calls, task }
    }

    fn says(&self, status: StatusCode, body: &Value) {
        *self.answer.lock().unwrap() = (status, body.to_string());
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn resolver(&self, to_private: bool) -> Resolver {
        let roots = vec![self.root.clone()];
        Resolver::new(ResolverOptions { to_private, roots, ..ResolverOptions::default() }).unwrap()
    }
}

#[tokio::test]
async fn keys_of_a_did_web_are_fetched_kept_and_looked_for_again() {
    let site = Site::start().await;
    let did = format!("did:web:localhost%3A{}", site.port);
    let (first, second) = (ed25519(), ed25519());
    let document = |key: &SigningKey| {
        json!({ "id": did, "assertionMethod": [{
            "id": key.kid(), "type": "Multikey", "controller": did, "publicKeyMultibase": key.public().to_multikey() }] })
    };
    site.says(StatusCode::OK, &document(&first));
    let (resolver, signer) = (site.resolver(true), agent(&did));
    let record = |key: &SigningKey| {
        let record: proto::consent::ConsentRecord = serde_json::from_value(json!({
            "record_id": "r-1", "caller_agent_id": did, "callee_agent_id": "did:web:callee.example",
            "policy_version": "1.0.0", "policy_hash": "", "parsed_claims": [], "decision": "accepted",
            "accepted_at": "2026-03-04T09:00:00Z", "valid_until": "on_any_change" }))
        .unwrap();
        record.signed(key).unwrap()
    };
    let policy = SignaturePolicy::Required;
    for second in [0, 1, 200] {
        let found = resolver.verify(&record(&first), &signer, policy, times(0, second)).await;
        assert_eq!(found, Ok(Verified::Signed));
    }
    assert_eq!(site.calls(), 1, "they are kept");
    // A key that is not known makes it look again, but not at every stranger's word.
    site.says(StatusCode::OK, &document(&second));
    let early = resolver.verify(&record(&second), &signer, policy, times(0, 5)).await;
    assert!(matches!(early, Err(FetchError::Signature(SignatureFault::UnknownKey { .. }))));
    assert_eq!(site.calls(), 1);
    let rotated = resolver.verify(&record(&second), &signer, policy, times(0, 201)).await;
    assert_eq!((rotated, site.calls()), (Ok(Verified::Signed), 2));
    let gone = resolver.verify(&record(&first), &signer, policy, times(0, 202)).await;
    assert!(matches!(gone, Err(FetchError::Signature(SignatureFault::UnknownKey { .. }))));
    // A document that was changed, and one without a signature.
    let mut changed = record(&second);
    changed.accepted_at = proto::consent::Stamp::new("2026-03-04T09:00:01Z").unwrap();
    let wrong = resolver.verify(&changed, &signer, policy, times(0, 203)).await;
    assert!(matches!(wrong, Err(FetchError::Signature(SignatureFault::Jws(_)))));
    changed.caller_signature = None;
    let none = resolver.verify(&changed, &signer, policy, times(0, 203)).await;
    assert_eq!(none, Err(FetchError::Signature(SignatureFault::Missing)));
    let none = resolver.verify(&changed, &signer, SignaturePolicy::Optional, times(0, 203)).await;
    assert_eq!(none, Ok(Verified::Unsigned));
    // When their time is over, and the place fails, they are believed no more.
    site.says(StatusCode::SERVICE_UNAVAILABLE, &json!({}));
    let down = resolver.verify(&record(&second), &signer, policy, times(0, 900)).await.unwrap_err();
    assert!(down.to_string().contains("it answers 503"), "{down}");
    let calls = site.calls();
    assert!(resolver.verify(&record(&second), &signer, policy, times(0, 901)).await.is_err());
    assert_eq!(site.calls(), calls, "a failure is kept for a while too");
}

/// A signature that names no key may be by any: also by one that came after the last look.
#[tokio::test]
async fn a_new_key_is_looked_for_where_a_signature_names_none() {
    let site = Site::start().await;
    let name = agent(&format!("https://localhost:{}/agents/1", site.port));
    let key = || {
        let random = aws_lc_rs::rand::SystemRandom::new();
        let der = aws_lc_rs::signature::Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let pair = aws_lc_rs::signature::Ed25519KeyPair::from_pkcs8(der.as_ref()).unwrap();
        (SigningKey::from_pkcs8(der.as_ref(), None).unwrap(), pair)
    };
    type Keys = (SigningKey, aws_lc_rs::signature::Ed25519KeyPair);
    let unnamed = |record: &proto::consent::ConsentRecord, (_, pair): &Keys| {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let header = encode(br#"{"alg":"EdDSA"}"#);
        let signature =
            pair.sign(format!("{header}.{}", encode(&record.signing_input())).as_bytes());
        let text = format!("{header}..{}", encode(signature.as_ref()));
        record.clone().with_signature(proto::consent::Text::new(&text).unwrap())
    };
    let (first, second) = (key(), key());
    let resolver = site.resolver(true);
    let record: proto::consent::ConsentRecord = serde_json::from_value(json!({
        "record_id": "r-1", "caller_agent_id": name, "callee_agent_id": "did:web:callee.example",
        "policy_version": "1.0.0", "policy_hash": "", "parsed_claims": [], "decision": "accepted",
        "accepted_at": "2026-03-04T09:00:00Z", "valid_until": "on_any_change" }))
    .unwrap();
    let policy = SignaturePolicy::Required;
    for (key, second, calls) in
        [(&first, 0, 1), (&first, 60, 1), (&second, 61, 2), (&second, 62, 2)]
    {
        site.says(StatusCode::OK, &json!({ "keys": [jwk(&key.0, &json!({}))] }));
        let record = unnamed(&record, key);
        let found = resolver.verify(&record, &name, policy, times(0, second)).await;
        assert_eq!((found, site.calls()), (Ok(Verified::Signed), calls), "{second}");
    }
    // One that is no better with new keys is told as it is, and does not make us look each time.
    let forged = unnamed(&record, &first);
    let wrong = resolver.verify(&forged, &name, policy, times(0, 63)).await;
    assert!(matches!(wrong, Err(FetchError::Signature(SignatureFault::Jws(_)))), "{wrong:?}");
    assert_eq!(site.calls(), 2);
}

#[tokio::test]
async fn what_is_not_to_be_called_or_too_long_is_not_believed() {
    let site = Site::start().await;
    let did = format!("did:web:localhost%3A{}", site.port);
    let private = site.resolver(false).keys(&agent(&did), at(0), KEYS_TIME_MAX_MS).await;
    assert!(matches!(private, Err(FetchError::Private { .. })), "{private:?}");
    assert_eq!(site.calls(), 0);
    let fails = async |status, body: &Value, says: &str| {
        site.says(status, body);
        let found = site.resolver(true).keys(&agent(&did), at(0), KEYS_TIME_MAX_MS).await;
        let error = found.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    let long = json!({ "id": did, "x": "x".repeat(KEY_DOCUMENT_LEN_MAX) });
    fails(StatusCode::OK, &long, "over the limit of 65536 bytes").await;
    fails(StatusCode::FOUND, &json!({}), "it answers 302").await;
    fails(StatusCode::OK, &json!({ "id": "did:web:b.example" }), "the document of").await;
    fails(StatusCode::OK, &json!([]), "no DID document").await;
    let stranger =
        Resolver::new(ResolverOptions { to_private: true, ..ResolverOptions::default() });
    let untrusted = stranger.unwrap().keys(&agent(&did), at(0), KEYS_TIME_MAX_MS).await;
    assert!(
        matches!(untrusted, Err(FetchError::Fetch { .. })),
        "a certificate of nobody: {untrusted:?}"
    );
    let nowhere = site.resolver(true).keys(&agent("spiffe://x/a"), at(0), 1).await;
    assert!(matches!(nowhere, Err(FetchError::NoPlace { .. })));
}

#[tokio::test]
async fn a_jwks_may_be_named_for_any_agent() {
    let site = Site::start().await;
    let key = ed25519();
    site.says(StatusCode::OK, &json!({ "keys": [jwk(&key, &json!({}))] }));
    let name = agent("spiffe://example.org/agent/a");
    let url = format!("https://localhost:{}/keys", site.port).parse().unwrap();
    let options = ResolverOptions {
        jwks: [(name.clone(), url)].into(),
        to_private: true,
        roots: vec![site.root.clone()],
        ..ResolverOptions::default()
    };
    let keys = Resolver::new(options).unwrap().keys(&name, at(0), KEYS_TIME_MAX_MS).await.unwrap();
    assert_eq!(keys.keys()[0].public, key.public());
}
