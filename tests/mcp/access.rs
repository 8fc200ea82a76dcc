//! Who may ask, how much, and for how long.

use super::{ACCEPT, Server, Stream, alice, initialize, json, message_of, modern};
use crate::common::{World, eventually};
use reqwest::Method;
use std::path::Path;

const TOKEN: &str = "token-of-the-operator-0123456789";

fn private(file: &Path, text: &str) {
    std::fs::write(file, text).unwrap();
    #[cfg(unix)]
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

#[tokio::test]
async fn only_the_operator_may_ask() {
    let world = World::new();
    let (file, of_bob) = (world.path().join("operator.token"), world.path().join("bob.token"));
    private(&file, TOKEN);
    private(&of_bob, "token-of-bob-0123456789");
    let mut config = world.config(
        "alice",
        &format!(
            "[api]\ntoken_file = {file:?}\n{}http_token_file = {of_bob:?}\n",
            crate::common::peer_toml("bob", None)
        ),
    );
    config.api.listen = abhyasa::loopback::free_address().unwrap();
    let server = Server::start(config).await;
    let ask = || server.modern("tools/list", json!({}));
    for wrong in [ask(), ask().bearer_auth("wrong"), ask().bearer_auth("token-of-bob-0123456789")] {
        let response = wrong.send().await.unwrap();
        assert_eq!(response.status(), 401);
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
    }
    let answer = message_of(ask().bearer_auth(TOKEN).send().await.unwrap()).await;
    assert_eq!(answer["result"]["tools"].as_array().unwrap().len(), 9, "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn no_web_page_may_ask() {
    let world = World::new();
    let server = Server::start(alice(&world, "")).await;
    let ask = || server.modern("tools/list", json!({}));
    let here = server.address;
    for (name, value, status) in [
        ("origin", "http://evil.example.com".to_owned(), 403),
        ("origin", "null".to_owned(), 403),
        ("origin", "http://localhost:3000".to_owned(), 403),
        ("origin", format!("http://{here}"), 200),
        ("host", "evil.example.com".to_owned(), 403),
        ("host", format!("localhost:{}", here.port()), 200),
    ] {
        let response = ask().header(name, &value).send().await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{name}: {value}");
    }
    // A name that leads here is no origin of ours, though both headers agree.
    let named =
        ask().header("host", "evil.example.com").header("origin", "http://evil.example.com");
    assert_eq!(named.send().await.unwrap().status(), 403);
    server.stop().await;
}

#[tokio::test]
async fn bd1_a_body_over_the_limit_is_refused() {
    let world = World::new();
    let server = Server::start(alice(&world, "[mcp]\nrequest_len_max = 100000")).await;
    let long = "x".repeat(100_000);
    let call =
        json!({ "name": "check_authorization", "arguments": { "agent": "a", "scope": long } });
    let response = server.modern("tools/call", call).send().await.unwrap();
    assert_eq!(response.status(), 413);
    let said = response.text().await.unwrap();
    assert!(said.contains("100000 bytes (mcp.request_len_max)"), "{said}");
    server.stop().await;
}

#[tokio::test]
async fn bd1_sessions_are_bounded_and_end_in_silence() {
    let world = World::new();
    let limits = "[mcp]\nsessions_max = 2\nsession_idle_seconds = 2";
    let server = Server::start(alice(&world, limits)).await;
    let (silent, followed) = (server.begin().await.unwrap(), server.begin().await.unwrap());
    let _stream = server.follow(&followed).await;
    let refused = server.begin().await.unwrap_err();
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let said = refused.text().await.unwrap();
    assert!(said.contains("2 sessions are open, the limit (mcp.sessions_max)"), "{said}");
    // Nobody asks the silent one, so it makes room; the other has a stream that somebody reads.
    let third = eventually("room for a session", async || server.begin().await.ok()).await;
    let ping = json!({ "jsonrpc": "2.0", "id": 7, "method": "ping" });
    let status = async |id: &str| server.in_session(id, &ping).send().await.unwrap().status();
    assert_eq!(status(&followed).await, 200, "as old as the one that is gone");
    assert_eq!(status(&silent).await, 404);
    let end = server.request(Method::DELETE).header("mcp-session-id", &third);
    assert!(end.send().await.unwrap().status().is_success());
    assert_eq!(status(&third).await, 404);
    assert!(server.begin().await.is_ok(), "room again at once");
    server.stop().await;
}

#[tokio::test]
async fn bd1_requests_at_a_time_are_bounded() {
    let world = World::new();
    let server = Server::start(alice(&world, "[mcp]\nrequests_max = 1")).await;
    let stream = server.listen(&["abhyasa://pending"]).await;
    let refused = server.modern("tools/list", json!({})).send().await.unwrap();
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    drop(stream);
    eventually("a place", async || {
        let response = server.modern("tools/list", json!({})).send().await.unwrap();
        (response.status() == 200).then_some(())
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn the_end_of_the_node_ends_its_streams() {
    let world = World::new();
    let config = alice(&world, "");
    let server = Server::start(config.clone()).await;
    let id = server.begin().await.unwrap();
    let mut of_session = server.follow(&id).await;
    let mut alone = server.listen(&["abhyasa://pending"]).await;
    server.stop().await;
    assert_eq!(of_session.next().await, None);
    while let Some(last) = alone.next().await {
        assert_eq!(last["id"], "call-1", "the answer to what was asked: {last}");
    }
    // Nothing of it holds on to the store.
    Server::start(config).await.stop().await;
}

#[tokio::test]
async fn it_can_be_switched_off() {
    let world = World::new();
    let server = Server::start(alice(&world, "[mcp]\nenabled = false")).await;
    assert_eq!(server.post(&initialize()).send().await.unwrap().status(), 404);
    server.stop().await;
}

#[tokio::test]
async fn http2_is_spoken_too() {
    let world = World::new();
    let server = Server::start(alice(&world, "")).await;
    let http = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let ask = |method: &str, params| {
        let request =
            http.post(server.url()).header("accept", ACCEPT).json(&modern(method, params));
        request.header("mcp-protocol-version", super::MODERN).header("mcp-method", method)
    };
    let subscriptions =
        json!({ "notifications": { "resourceSubscriptions": ["abhyasa://pending"] } });
    let listening = ask("subscriptions/listen", subscriptions).send().await.unwrap();
    assert_eq!(listening.version(), reqwest::Version::HTTP_2);
    let mut stream = Stream::of(listening);
    let first = stream.next().await.unwrap();
    assert_eq!(first["method"], "notifications/subscriptions/acknowledged");
    let answer = message_of(ask("tools/list", json!({})).send().await.unwrap()).await;
    assert_eq!(answer["result"]["tools"].as_array().unwrap().len(), 9, "beside a stream: {answer}");
    server.stop().await;
}
