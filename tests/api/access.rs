use super::{Server, answer, config, peer_entry, revoke, token_file};
use abhyasa::node::Builder;
use abhyasa::proto::store::{Read, ReadError, Table, Write};
use abhyasa::store::{FjallStore, Storage, StoreError, StoreOptions};
use bytes::Bytes;
use reqwest::header::{HOST, ORIGIN, WWW_AUTHENTICATE};
use reqwest::{Method, StatusCode};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const GUARDED: [(Method, &str); 14] = [
    (Method::POST, "/v1/obligations"),
    (Method::GET, "/v1/obligations/x"),
    (Method::GET, "/v1/pending"),
    (Method::GET, "/v1/terminal"),
    (Method::GET, "/v1/escalations"),
    (Method::POST, "/v1/escalations/x/ack"),
    (Method::GET, "/v1/reconciliation"),
    (Method::POST, "/v1/reconciliation/1/resolve"),
    (Method::GET, "/v1/authorizations"),
    (Method::GET, "/v1/authorizations/check?agent=x&scope=y"),
    (Method::GET, "/v1/weights"),
    (Method::GET, "/v1/peers"),
    (Method::GET, "/v1/events"),
    (Method::GET, "/metrics"),
];
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/openapi.json"];
const PEER: [&str; 2] = ["/abhyasa/obligations", "/abhyasa/custody_ack"];

#[tokio::test(flavor = "multi_thread")]
async fn web_pages_are_refused_on_loopback() {
    let root = tempfile::tempdir().unwrap();
    let a = Server::alone(root.path()).await;
    let all = GUARDED.into_iter().chain(OPEN.map(|path| (Method::GET, path)));
    for (method, path) in all {
        let page = a
            .request(method.clone(), path)
            .header(ORIGIN, "http://evil.example")
            .send()
            .await
            .unwrap();
        assert_eq!(page.status(), StatusCode::FORBIDDEN, "{method} {path}: Origin");
        let rebound =
            a.request(method.clone(), path).header(HOST, "evil.example").send().await.unwrap();
        assert_eq!(rebound.status(), StatusCode::FORBIDDEN, "{method} {path}: Host");
    }
    let named =
        a.request(Method::GET, "/v1/pending").header(HOST, "localhost:1").send().await.unwrap();
    assert_eq!(named.status(), StatusCode::OK);
    a.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_and_peers_each_need_their_own_token() {
    let root = tempfile::tempdir().unwrap();
    let (operator, peer) = ("operator-0123456789", "token-of-b-0123456789");
    let files = [root.path().join("operator.token"), root.path().join("b.token")];
    token_file(&files[0], operator);
    token_file(&files[1], peer);
    let entry = peer_entry("b", None, &format!("http_token_file = {:?}", files[1]));
    let a = Server::start(Builder::new(config(
        root.path(),
        "a",
        &format!("token_file = {:?}", files[0]),
        &entry,
    )))
    .await;

    let mut refusals = Vec::new();
    let peers = PEER.map(|path| (Method::POST, path));
    for (method, path) in GUARDED.into_iter().chain(peers.clone()) {
        let wrong = if PEER.contains(&path) { operator } else { peer };
        for token in [None, Some(wrong), Some("operator-012345678"), Some("")] {
            let mut request = a.request(method.clone(), path);
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{method} {path} {token:?}");
            assert_eq!(response.headers()[WWW_AUTHENTICATE], "Bearer");
            refusals.push(response.text().await.unwrap());
        }
    }
    refusals.dedup();
    assert_eq!(refusals.len(), 1, "no answer tells which part was wrong: {refusals:?}");

    for (method, path) in GUARDED {
        let response = a.request(method.clone(), path).bearer_auth(operator).send().await.unwrap();
        assert_ne!(response.status(), StatusCode::UNAUTHORIZED, "{method} {path}");
    }
    for (method, path) in peers {
        let response = a.request(method, path).bearer_auth(peer).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE, "{path}: past the token");
    }
    for path in OPEN {
        assert_eq!(a.get(path).await.0, StatusCode::OK, "{path}");
    }
    a.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_peer_tokens_nobody_is_a_peer() {
    let root = tempfile::tempdir().unwrap();
    let a = Server::alone(root.path()).await;
    for path in PEER {
        assert_eq!(
            a.post(path, json!({})).await.0,
            StatusCode::UNAUTHORIZED,
            "{path}: loopback counts for nothing"
        );
    }
    a.stop().await;
}

/// A store whose reads can be made to fail.
#[derive(Debug)]
struct Failing {
    inner: FjallStore,
    broken: Arc<AtomicBool>,
}

impl Failing {
    fn check(&self) -> Result<(), ReadError> {
        if self.broken.load(Ordering::SeqCst) {
            Err(ReadError("input/output error".into()))
        } else {
            Ok(())
        }
    }
}

impl Read for Failing {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.check()?;
        self.inner.get(table, key)
    }
    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        self.check()?;
        self.inner.scan(table, from, limit)
    }
    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        self.check()?;
        self.inner.last(table)
    }
}

impl Storage for Failing {
    fn commit(&self, writes: &[Write], sync: bool) -> Result<(), StoreError> {
        self.inner.commit(writes, sync)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_fails_closed_when_the_node_cannot_know() {
    let root = tempfile::tempdir().unwrap();
    let config = config(root.path(), "a", "", &peer_entry("b", None, ""));
    let broken = Arc::new(AtomicBool::new(false));
    let inner = FjallStore::open(&config.data_dir, &config.id, &StoreOptions::default()).unwrap();
    let storage = Arc::new(Failing { inner, broken: broken.clone() });
    let a = Server::start(Builder::new(config).storage(storage)).await;
    let grant = json!({ "kind": super::CONSENT, "target": "spiffe://t/b", "payload": { "decision": "grant", "scope": "s" } });
    assert_eq!(a.post("/v1/obligations", grant).await.0, StatusCode::CREATED);

    let check = "/v1/authorizations/check?agent=spiffe://t/b&scope=s&role=principal";
    assert_eq!(a.get(check).await.1["allowed"], true);
    let (status, view) =
        a.get("/v1/authorizations/check?agent=spiffe://t/b&scope=other&role=principal").await;
    assert_eq!(
        (status, &view["allowed"], &view["why"]),
        (StatusCode::OK, &json!(false), &json!("unknown"))
    );
    for bad in [
        "agent=spiffe://t/b",
        "agent=&scope=s",
        "agent=x&scope=s&role=king",
        "agent=x&scope=s&more=1",
    ] {
        let (status, view) = a.get(&format!("/v1/authorizations/check?{bad}")).await;
        assert_eq!((status, &view["allowed"]), (StatusCode::BAD_REQUEST, &json!(false)), "{bad}");
    }
    broken.store(true, Ordering::SeqCst);
    let (status, view) = a.get(check).await;
    assert_eq!(
        (status, &view["allowed"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!(false)),
        "{view}"
    );
    let (status, body) = a.get("/v1/pending").await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("store"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_node_says_so() {
    let root = tempfile::tempdir().unwrap();
    let a = Server::alone(root.path()).await;
    assert_eq!(a.get("/readyz").await, (StatusCode::OK, json!({ "ready": true })));
    let Server { node, http, address, .. } = a;
    node.stop().await.unwrap();
    let ready = answer(http.get(format!("http://{address}/readyz")).send().await.unwrap()).await;
    assert_eq!((ready.0, &ready.1["ready"]), (StatusCode::SERVICE_UNAVAILABLE, &json!(false)));
    assert!(ready.1["why"].as_str().unwrap().contains("stopping"));
    let issue = answer(
        http.post(format!("http://{address}/v1/obligations"))
            .json(&revoke("s"))
            .send()
            .await
            .unwrap(),
    )
    .await;
    assert_eq!(
        (issue.0, &issue.1["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("stopping"))
    );
}
