use super::{Server, peer_entry, revoke, token_file, with};
use abhyasa::node::Builder;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn ab4_an_escalation_is_shown_acknowledged_and_reconciled() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("b.token");
    token_file(&file, "token-of-b-0123456789");
    let entry = peer_entry("b", None, &format!("http_token_file = {file:?}"));
    let a = Server::start(Builder::new(super::config(root.path(), "a", "", &entry))).await;

    let (_, issued) = a
        .post(
            "/v1/obligations?wait_seconds=15",
            with(revoke("s"), json!({ "obligation_id": "ob-1" })),
        )
        .await;
    assert_eq!(
        (&issued["outcome"]["state"], &issued["outcome"]["reason"]),
        (&json!("escalated"), &json!("unreachable")),
        "{issued}"
    );

    let (_, inbox) = a.get("/v1/escalations").await;
    let escalation = &inbox["items"][0];
    assert_eq!(escalation["obligation_id"], "ob-1", "{inbox}");
    assert_eq!(escalation["safe_action"]["effect"], "fail_closed");
    assert_eq!(escalation["safe_action_applied"], true);
    let (_, check) =
        a.get("/v1/authorizations/check?agent=spiffe://t/b&scope=s&role=principal").await;
    assert_eq!((&check["allowed"], &check["why"]), (&json!(false), &json!("withheld")));

    for _ in 0..2 {
        let (status, _) = a.post("/v1/escalations/ob-1/ack", Value::Null).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "and again is no error");
    }
    assert_eq!(a.get("/v1/escalations").await.1["items"], json!([]));
    let (_, all) = a.get("/v1/escalations?all=true").await;
    assert!(all["items"][0]["acknowledged_at_ms"].is_u64(), "{all}");
    assert_eq!(a.post("/v1/escalations/ob-2/ack", Value::Null).await.0, StatusCode::NOT_FOUND);

    // TS-1: the peer's `applied` comes too late; it reopens nothing and a person is asked.
    assert_eq!(a.get("/v1/reconciliation").await.1["items"], json!([]));
    let ack = json!({ "obligation_id": "ob-1", "target": "spiffe://t/b", "status": "applied", "acked_at": "2026-11-30T12:00:00Z" });
    let late = a
        .request(Method::POST, "/abhyasa/custody_ack")
        .bearer_auth("token-of-b-0123456789")
        .json(&ack);
    assert_eq!(late.send().await.unwrap().status(), StatusCode::NO_CONTENT);
    let item = loop {
        let (_, page) = a.get("/v1/reconciliation").await;
        if let Some(item) = page["items"].get(0) {
            break item.clone();
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };
    assert_eq!((&item["kind"], &item["number"]), (&json!("late_applied"), &json!(1)));
    let (_, status) = a.get("/v1/obligations/ob-1").await;
    assert_eq!(
        (&status["state"], status["late_applied_at"].is_string()),
        (&json!("escalated"), true)
    );

    let resolve = |number: &str, word: &str| {
        let path = format!("/v1/reconciliation/{number}/resolve");
        let body = json!({ "resolution": word });
        let a = &a;
        async move { a.post(&path, body).await.0 }
    };
    assert_eq!(resolve("1", "maybe").await, StatusCode::BAD_REQUEST);
    assert_eq!(resolve("one", "noted").await, StatusCode::BAD_REQUEST);
    assert_eq!(resolve("2", "noted").await, StatusCode::NOT_FOUND);
    assert_eq!(resolve("1", "applied").await, StatusCode::CONFLICT, "no answer to that kind");
    assert_eq!(resolve("1", "noted").await, StatusCode::NO_CONTENT);
    assert_eq!(resolve("1", "noted").await, StatusCode::CONFLICT, "resolved before");
    assert_eq!(a.get("/v1/reconciliation").await.1["items"], json!([]));
    assert_eq!(a.get("/v1/reconciliation?all=true").await.1["items"][0]["resolution"], "noted");
    a.stop().await;
}
