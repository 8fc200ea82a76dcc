//! Webhooks: every event, in order, until it was taken; over failures and restarts.

use super::{Server, echo, id_of, message, shape, text};
use crate::common::{World, eventually, web};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use reqwest::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A receiver of notifications that can be told to fail.
#[derive(Default)]
struct Hook {
    down: AtomicBool,
    refused: AtomicUsize,
    taken: Mutex<Vec<(HeaderMap, Value)>>,
}

impl Hook {
    async fn start() -> (Arc<Self>, SocketAddr) {
        let hook = Arc::new(Self::default());
        let router = axum::Router::new().route("/hook", post(take)).with_state(hook.clone());
        (hook, web::serve(router).await)
    }

    fn shapes(&self) -> Vec<String> {
        self.taken.lock().unwrap().iter().map(|(_, event)| shape(event)).collect()
    }

    fn keys(&self) -> Vec<String> {
        let taken = self.taken.lock().unwrap();
        let key = |headers: &HeaderMap| headers["idempotency-key"].to_str().unwrap().to_owned();
        taken.iter().map(|(headers, _)| key(headers)).collect()
    }

    async fn hears(&self, last: &str) -> Vec<String> {
        eventually(last, async || {
            let shapes = self.shapes();
            shapes.iter().any(|shape| shape == last).then_some(shapes)
        })
        .await
    }
}

async fn take(State(hook): State<Arc<Hook>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    if hook.down.load(Ordering::SeqCst) {
        hook.refused.fetch_add(1, Ordering::SeqCst);
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    hook.taken.lock().unwrap().push((headers, serde_json::from_slice(&body).unwrap()));
    StatusCode::NO_CONTENT
}

fn with_hook(at: SocketAddr, wish: Value) -> Value {
    json!({
        "message": message("m", &["a", "b"], wish),
        "configuration": {
            "returnImmediately": true,
            "taskPushNotificationConfig": {
                "id": "hook-1", "url": format!("http://{at}/hook"), "token": "t-1",
                "authentication": { "scheme": "Bearer", "credentials": "secret" }
            }
        }
    })
}

const ALL: [&str; 5] = [
    "task SUBMITTED",
    "statusUpdate WORKING",
    "artifactUpdate a",
    "artifactUpdate b",
    "statusUpdate COMPLETED",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_hears_every_event_in_order_with_its_credentials() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let (hook, at) = Hook::start().await;
    let task = server.call("SendMessage", with_hook(at, json!({ "delay_ms": 20 }))).await;
    let id = id_of(&task["task"]);
    assert_eq!(hook.hears("statusUpdate COMPLETED").await, ALL);
    for (headers, _) in hook.taken.lock().unwrap().iter() {
        assert_eq!(headers["content-type"], "application/a2a+json");
        assert_eq!(headers["authorization"], "Bearer secret");
        assert_eq!(headers["x-a2a-notification-token"], "t-1");
        assert_eq!(headers["a2a-notification-token"], "t-1");
    }
    let keys: Vec<String> = (1..=5).map(|n| format!("{id}/hook-1/{n}")).collect();
    assert_eq!(hook.keys(), keys);
    // It can be read after the task's end, until the task is forgotten.
    let get = json!({ "taskId": id, "id": "hook-1" });
    let found = server.call("GetTaskPushNotificationConfig", get).await;
    assert_eq!(found["url"], format!("http://{at}/hook"));
    server.stop().await;
}

/// The official SDKs try once.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_is_away_hears_everything_when_it_is_back_even_over_a_crash() {
    let world = World::new();
    let server = Server::start(echo(&world, "push_retry_cap_ms = 500", "")).await;
    let (hook, at) = Hook::start().await;
    hook.down.store(true, Ordering::SeqCst);
    server.call("SendMessage", with_hook(at, json!({}))).await;
    eventually("tries", async || (hook.refused.load(Ordering::SeqCst) >= 3).then_some(())).await;
    let config = server.crash();
    let server = Server::start(config).await;
    let before = hook.refused.load(Ordering::SeqCst);
    eventually("tries", async || (hook.refused.load(Ordering::SeqCst) > before).then_some(()))
        .await;
    hook.down.store(false, Ordering::SeqCst);
    let shapes = hook.hears("statusUpdate COMPLETED").await;
    assert_eq!(
        shapes,
        ["task SUBMITTED", "statusUpdate WORKING", "artifactUpdate a", "statusUpdate COMPLETED"]
    );
    // And after the last event there is nothing more, whatever restarts.
    let config = server.stop().await;
    let server = Server::start(config).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(hook.shapes().len(), 4);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_made_listed_and_deleted_in_both_bindings() {
    let world = World::new();
    let server = Server::start(echo(&world, "push_configs_per_task_max = 3", "")).await;
    let (hook, at) = Hook::start().await;
    let task = server.begin(message("m", &["?"], json!({ "ask": true }))).await;
    let id = id_of(&task);
    server.reaches(&id, "TASK_STATE_INPUT_REQUIRED").await;
    let path = format!("/tasks/{id}/pushNotificationConfigs");
    let url = format!("http://{at}/hook");
    let make = |name: &str| json!({ "id": name, "url": url });
    let (status, made) = server.rest(Method::POST, &path, Some(&make("c-1"))).await;
    assert_eq!((status, &made["id"], &made["taskId"]), (200, &json!("c-1"), &json!(id)));
    let mut named = make("c-2");
    named["taskId"] = json!(id);
    server.call("CreateTaskPushNotificationConfig", named).await;
    let unnamed = json!({ "taskId": id, "url": url });
    let given = server.call("CreateTaskPushNotificationConfig", unnamed.clone()).await;
    assert!(text(&given, "/id").len() > 8, "an id of ours: {given}");
    assert_eq!(
        server.refused("CreateTaskPushNotificationConfig", unnamed).await,
        -32004,
        "a fourth"
    );
    let (_, page) = server.rest(Method::GET, &format!("{path}?pageSize=2"), None).await;
    assert_eq!(page["configs"].as_array().unwrap().len(), 2);
    let token = text(&page, "/nextPageToken").to_owned();
    let rest = json!({ "taskId": id, "pageToken": token });
    let rest = server.call("ListTaskPushNotificationConfigs", rest).await;
    assert_eq!(
        (rest["configs"].as_array().unwrap().len(), &rest["nextPageToken"]),
        (1, &json!(""))
    );
    // Deleting is for good, and twice the same as once.
    for _ in 0..2 {
        let (status, _) = server.rest(Method::DELETE, &format!("{path}/c-1"), None).await;
        assert_eq!(status, 200);
    }
    server.call("DeleteTaskPushNotificationConfig", json!({ "taskId": id, "id": "c-2" })).await;
    let (status, _) = server.rest(Method::GET, &format!("{path}/c-1"), None).await;
    assert_eq!(status, 404);
    let answer = json!({
        "messageId": "m-2", "taskId": id, "role": "ROLE_USER", "parts": [{ "text": "this" }]
    });
    server.send(answer).await;
    let heard = hook.hears("statusUpdate COMPLETED").await;
    let once = [
        "statusUpdate WORKING",
        "statusUpdate WORKING",
        "artifactUpdate this",
        "statusUpdate COMPLETED",
    ];
    assert_eq!(heard, once, "the one that is left, of what came after it");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_on_this_machine_is_refused_unless_allowed() {
    let world = World::new();
    let mut config = echo(&world, "", "");
    config.a2a.push_to_private = false;
    let server = Server::start(config).await;
    let (hook, at) = Hook::start().await;
    for url in [
        format!("http://{at}/hook"),
        "http://localhost/hook".to_owned(),
        "http://169.254.169.254/latest".to_owned(),
        "http://[::ffff:10.0.0.1]/".to_owned(),
        "ftp://example.org/".to_owned(),
        "no url".to_owned(),
    ] {
        let mut request = with_hook(at, json!({}));
        request["configuration"]["taskPushNotificationConfig"]["url"] = json!(url);
        assert_eq!(server.refused("SendMessage", request).await, -32602, "{url}");
    }
    assert_eq!(server.call("ListTasks", json!({})).await["totalSize"], 0, "nothing was begun");
    assert!(hook.shapes().is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_takes_nothing_is_given_up_in_the_end() {
    let world = World::new();
    let limits = "push_retry_cap_ms = 100\npush_give_up_seconds = 1";
    let server = Server::start(echo(&world, limits, "")).await;
    let (hook, at) = Hook::start().await;
    hook.down.store(true, Ordering::SeqCst);
    server.call("SendMessage", with_hook(at, json!({}))).await;
    let quiet = eventually("quiet", async || {
        let tries = hook.refused.load(Ordering::SeqCst);
        tokio::time::sleep(std::time::Duration::from_millis(1_500)).await;
        (tries > 0 && hook.refused.load(Ordering::SeqCst) == tries).then_some(tries)
    })
    .await;
    assert!(quiet >= 2, "{quiet} tries");
    hook.down.store(false, Ordering::SeqCst);
    let config = server.stop().await;
    let server = Server::start(config).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(hook.shapes().is_empty(), "given up for good");
    server.stop().await;
}
