use super::{Server, revoke, with};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The next event of a stream: name, id, data.
async fn event(
    response: &mut reqwest::Response,
    buffer: &mut String,
) -> Option<(String, u64, Value)> {
    loop {
        if let Some((event, rest)) = buffer.split_once("\n\n") {
            let field = |name: &str| {
                let line =
                    event.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                line.map(|value| value.trim().to_owned())
            };
            let found = field("data").map(|data| {
                (
                    field("event").unwrap(),
                    field("id").unwrap().parse().unwrap(),
                    serde_json::from_str(&data).unwrap(),
                )
            });
            *buffer = rest.to_owned();
            if found.is_some() {
                return found;
            }
            continue;
        }
        let chunk = tokio::time::timeout(Duration::from_secs(10), response.chunk()).await.unwrap();
        buffer.push_str(std::str::from_utf8(&chunk.ok()??).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_told_as_they_happen_until_the_node_stops() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = Server::pair(root.path()).await;
    let mut stream = a.request(Method::GET, "/v1/events").send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    a.post("/v1/obligations", with(revoke("s"), json!({ "obligation_id": "ob-1" }))).await;
    let mut buffer = String::new();
    let (first, id, _) = event(&mut stream, &mut buffer).await.unwrap();
    assert_eq!((first.as_str(), id), ("attested", 1), "the receiver's word, before our own disk");
    let (name, id, data) = event(&mut stream, &mut buffer).await.unwrap();
    assert_eq!((name.as_str(), id), ("terminal", 2));
    assert_eq!(
        (&data["event"], &data["obligation_id"], &data["outcome"]),
        (&json!("terminal"), &json!("ob-1"), &json!("applied"))
    );
    assert!(!data.to_string().contains("revoke"), "no payload");
    let begun = Instant::now();
    a.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(4), "an open stream does not hold up the end");
    while event(&mut stream, &mut buffer).await.is_some() {}
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_can_be_watched() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = Server::pair(root.path()).await;
    let (_, peers) = a.get("/v1/peers").await;
    assert_eq!(
        (&peers["items"][0]["id"], &peers["items"][0]["connected"]),
        (&json!("spiffe://t/b"), &json!(true))
    );
    assert_eq!(a.get("/healthz").await, (StatusCode::OK, json!({ "ok": true })));
    a.post("/v1/obligations?wait_seconds=10", revoke("s")).await;
    let metrics = a.request(Method::GET, "/metrics").send().await.unwrap();
    assert!(
        metrics.headers()["content-type"]
            .to_str()
            .unwrap()
            .starts_with("application/openmetrics-text")
    );
    let text = metrics.text().await.unwrap();
    assert!(text.ends_with("# EOF\n") && text.contains("issued"), "{text}");
    for (method, path, status) in [
        (Method::GET, "/", StatusCode::NOT_FOUND),
        (Method::GET, "/v1", StatusCode::NOT_FOUND),
        (Method::DELETE, "/v1/pending", StatusCode::METHOD_NOT_ALLOWED),
        (Method::GET, "/v1/obligations", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let (found, body) =
            super::answer(a.request(method.clone(), path).send().await.unwrap()).await;
        assert_eq!(found, status, "{method} {path}");
        assert!(body["error"]["message"].as_str().unwrap().contains("/openapi.json"));
    }
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openapi_document_lists_every_route() {
    let root = tempfile::tempdir().unwrap();
    let a = Server::alone(root.path()).await;
    let (_, document) = a.get("/openapi.json").await;
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    for (method, path) in [
        ("post", "/v1/obligations"),
        ("get", "/v1/obligations/{id}"),
        ("get", "/v1/pending"),
        ("get", "/v1/terminal"),
        ("get", "/v1/escalations"),
        ("post", "/v1/escalations/{id}/ack"),
        ("get", "/v1/reconciliation"),
        ("post", "/v1/reconciliation/{number}/resolve"),
        ("get", "/v1/authorizations"),
        ("get", "/v1/authorizations/check"),
        ("get", "/v1/weights"),
        ("get", "/v1/peers"),
        ("get", "/v1/events"),
        ("get", "/healthz"),
        ("get", "/readyz"),
        ("get", "/metrics"),
        ("get", "/openapi.json"),
        ("post", "/abhyasa/obligations"),
        ("post", "/abhyasa/custody_ack"),
    ] {
        let operation = &document["paths"][path][method];
        assert!(operation["responses"].is_object(), "{method} {path}");
        assert!(operation["summary"].is_string(), "{method} {path}");
    }
    a.stop().await;
}
