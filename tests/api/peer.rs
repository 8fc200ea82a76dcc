use super::{Server, answer, config, token_file, with};
use abhyasa::node::Builder;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

const TOKEN: &str = "token-of-b-0123456789";

async fn node(root: &std::path::Path) -> Server {
    let file = root.join("b.token");
    token_file(&file, TOKEN);
    let entry = format!(
        "[[peers]]\nid = \"spiffe://t/b\"\nmay_issue = [\"anumati.consent\"]\nhttp_token_file = {file:?}\n"
    );
    Server::start(Builder::new(config(root, "a", "batch_max = 8", &entry))).await
}

async fn post(server: &Server, path: &str, body: &Value) -> (StatusCode, Value) {
    answer(server.request(Method::POST, path).bearer_auth(TOKEN).json(body).send().await.unwrap())
        .await
}

fn obligation(server: &Server) -> Value {
    json!({
        "obligation_id": "ob-1",
        "kind": "anumati.consent",
        "target": "spiffe://t/a",
        "payload": { "decision": "revoke", "scope": "s" },
        "deadline_seconds": 60,
        "max_retries": 5,
        "created_at": server.handle.now().to_rfc3339(),
        "sequence": 1,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn ab3_the_papers_client_is_acked_once_applied() {
    let root = tempfile::tempdir().unwrap();
    let a = node(root.path()).await;
    let offer = obligation(&a);
    for _ in 0..2 {
        let (status, ack) = post(&a, "/abhyasa/obligations", &offer).await;
        assert_eq!(status, StatusCode::OK, "{ack}");
        assert_eq!(
            (&ack["obligation_id"], &ack["target"], &ack["status"]),
            (&json!("ob-1"), &json!("spiffe://t/a"), &json!("applied"))
        );
        assert!(ack["acked_at"].is_string());
    }
    let (_, check) = a.get("/v1/authorizations/check?agent=spiffe://t/b&scope=s").await;
    assert_eq!((&check["allowed"], &check["why"]), (&json!(false), &json!("withheld")));
    let (_, ack) = post(
        &a,
        "/abhyasa/obligations",
        &with(offer, json!({ "payload": { "decision": "revoke", "scope": "t" } })),
    )
    .await;
    assert_eq!((&ack["status"], &ack["reason"]), (&json!("declined"), &json!("id_conflict")));
    let expired = with(
        obligation(&a),
        json!({ "obligation_id": "ob-2", "created_at": "2020-01-01T00:00:00Z" }),
    );
    let (_, ack) = post(&a, "/abhyasa/obligations", &expired).await;
    assert_eq!((&ack["status"], &ack["reason"]), (&json!("declined"), &json!("expired")));
    a.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peers_offer_that_is_not_in_order_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let a = node(root.path()).await;
    let refused = |more: Value| {
        let body = with(obligation(&a), more);
        let a = &a;
        async move {
            let (status, body) = post(a, "/abhyasa/obligations", &body).await;
            (
                status.as_u16(),
                body["error"]["code"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned(),
            )
        }
    };
    assert_eq!(
        refused(json!({ "target": "spiffe://t/c" })).await,
        (421, "wrong_target".to_owned())
    );
    assert_eq!(
        refused(json!({ "kind": "oauth.token", "payload": { "action": "revoke" } })).await,
        (403, "unauthorized".to_owned())
    );
    for malformed in [
        json!({ "deadline_seconds": 0 }),
        json!({ "created_at": "yesterday" }),
        json!({ "obligation_id": "" }),
        json!({ "payload": 7 }),
    ] {
        assert_eq!(refused(malformed.clone()).await, (400, "malformed".to_owned()), "{malformed}");
    }
    assert_eq!(
        a.get("/v1/obligations/ob-1").await.0,
        StatusCode::NOT_FOUND,
        "nothing of it was kept"
    );
    a.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_speaks_for_its_own_target_only() {
    let root = tempfile::tempdir().unwrap();
    let a = node(root.path()).await;
    let ack = |target: &str| json!({ "obligation_id": "ob-1", "target": target, "status": "applied", "acked_at": "2026-11-30T12:00:00Z" });
    let path = "/abhyasa/custody_ack";
    assert_eq!(
        post(&a, path, &ack("spiffe://t/b")).await.0,
        StatusCode::NO_CONTENT,
        "unknown here: no state, no oracle"
    );
    assert_eq!(
        post(&a, path, &json!([ack("spiffe://t/b"), ack("spiffe://t/b")])).await.0,
        StatusCode::NO_CONTENT
    );
    assert_eq!(post(&a, path, &json!([])).await.0, StatusCode::NO_CONTENT);
    assert_eq!(
        post(&a, path, &json!([ack("spiffe://t/b"), ack("spiffe://t/c")])).await.0,
        StatusCode::FORBIDDEN
    );
    assert_eq!(
        post(&a, path, &json!(vec![ack("spiffe://t/b"); 9])).await.0,
        StatusCode::PAYLOAD_TOO_LARGE
    );
    assert_eq!(
        post(&a, path, &with(ack("spiffe://t/b"), json!({ "status": "done" }))).await.0,
        StatusCode::BAD_REQUEST
    );
    a.stop().await;
}
