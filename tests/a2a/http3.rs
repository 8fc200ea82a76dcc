//! The same routes over HTTP/2 on TCP, and over HTTP/3 on the QUIC port by an independent client.

use super::{Server, Stream, bob, echo, hello, json_of, message, sdk, shapes, text};
use crate::common::{PATIENCE, World, id, kind};
use abhyasa::config::NodeConfig;
use abhyasa::init::ca::valid_days;
use proto::record::Role;
use reqwest::Method;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

#[tokio::test(flavor = "multi_thread")]
async fn http2_carries_calls_and_streams() {
    let world = World::new();
    let mut server = Server::start(echo(&world, "", "")).await;
    server.http = reqwest::Client::builder()
        .no_proxy()
        .http2_prior_knowledge()
        .timeout(PATIENCE)
        .build()
        .unwrap();
    let answer = server.rpc("SendMessage", &json!({ "message": hello("m") })).send().await.unwrap();
    assert_eq!(answer.version(), reqwest::Version::HTTP_2);
    assert_eq!(json_of(answer).await["result"]["task"]["status"]["state"], "TASK_STATE_COMPLETED");
    // Many streams over the one connection.
    let slow = json!({ "message": message("m", &["a", "b"], json!({ "delay_ms": 50 })) });
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let request = server.request(Method::POST, "/a2a/rest/message:stream").json(&slow);
        running.spawn(async { Stream::of(request.send().await.unwrap()).rest().await });
    }
    for events in running.join_all().await {
        assert_eq!(shapes(&events).last().unwrap(), "statusUpdate COMPLETED");
    }
    server.stop().await;
}

/// Alice with HTTP/3, and a certificate that names her address too, as general clients want it.
fn http3(world: &World, more: &str) -> NodeConfig {
    let config = echo(world, "", &format!("[api]\nhttp3 = true\n{more}"));
    let names = vec![
        rcgen::SanType::URI(id("alice").as_str().try_into().unwrap()),
        rcgen::SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)),
    ];
    let issued = world.ca.issue_for(names, valid_days(1)).unwrap();
    std::fs::write(&config.quic.cert, issued.cert_pem).unwrap();
    std::fs::write(&config.quic.key, issued.key_pem).unwrap();
    config
}

/// What the client of `name`, whose directory this is, is answered.
async fn call(server: &Server, dir: &Path, requests: &Value) -> Result<Vec<Value>, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/a2a/http3.py");
    let at = server.handle().quic_address();
    let mut command = tokio::process::Command::new(sdk::python());
    command
        .arg(script)
        .args([at.ip().to_string(), at.port().to_string()])
        .args([dir.join("ca.pem"), dir.join("node.pem"), dir.join("node.key")])
        .arg(requests.to_string())
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE * 3, command.output());
    let output = output.await.expect("the client ends in time").unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(format!("{said}\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(serde_json::from_str(&said).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_calls_over_http3_known_by_its_certificate() {
    sdk::python(); // at its first use it is fetched, which may take longer than the obligation lasts
    let world = World::new();
    let bobs = world.config("bob", "").quic.cert.parent().unwrap().to_owned();
    let server = Server::start(http3(&world, &bob(&world))).await;
    let ours = json!({ "a2a-version": "1.0", "content-type": "application/json" });
    let rpc = json!({
        "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": { "message": hello("m") }
    });
    let stream = json!({ "message": message("m", &["a", "b"], json!({ "delay_ms": 20 })) });
    let obligation = json!({
        "obligation_id": "ob-h3", "kind": "anumati.consent", "target": id("alice").as_str(),
        "payload": { "decision": "revoke", "scope": "h3" }, "deadline_seconds": 60,
        "max_retries": 600, "created_at": server.handle().now().to_rfc3339()
    });
    let requests = json!([
        { "method": "GET", "path": "/.well-known/agent-card.json" },
        { "method": "POST", "path": "/a2a", "headers": ours, "body": rpc.to_string() },
        { "method": "POST", "path": "/a2a/rest/message:stream", "headers": ours, "body": stream.to_string() },
        { "method": "GET", "path": "/a2a/rest/tasks", "headers": { "a2a-version": "1.0" } },
        { "method": "POST", "path": "/abhyasa/obligations",
          "headers": { "content-type": "application/json" }, "body": obligation.to_string() },
        { "method": "GET", "path": "/v1/pending" },
    ]);
    let answers = call(&server, &bobs, &requests).await.unwrap();
    let body = |n: usize| serde_json::from_str::<Value>(text(&answers[n], "/body")).unwrap();
    for (n, status) in [200, 200, 200, 200, 200, 404].into_iter().enumerate() {
        assert_eq!(answers[n]["status"], status, "{}", answers[n]);
    }
    assert_eq!(text(&body(0), "/supportedInterfaces/0/protocolBinding"), "JSONRPC");
    assert_eq!(body(1)["result"]["task"]["status"]["state"], "TASK_STATE_COMPLETED");
    let told: Vec<Value> = text(&answers[2], "/body")
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    assert_eq!(told.len(), 5, "{told:?}");
    assert_eq!(told[4]["statusUpdate"]["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(body(3)["totalSize"], 2, "his own, by his certificate");
    assert_eq!(body(4)["status"], "applied");
    let store = server.handle().store();
    let cell = proto::record::cell_key(
        Role::Receiver,
        &id("bob"),
        &kind("anumati.consent"),
        &crate::common::key("h3"),
    );
    assert!(store.get(proto::store::Table::Cell, &cell).unwrap().is_some());
    // Over TCP the tasks are those of another caller, and say where HTTP/3 is.
    let listed = server.request(Method::GET, "/a2a/rest/tasks").send().await.unwrap();
    let port = server.handle().quic_address().port();
    assert_eq!(listed.headers()["alt-svc"], format!("h3=\":{port}\"; ma=86400"));
    assert_eq!(json_of(listed).await["totalSize"], 0);
    server.stop().await;
}

/// A peer that has nothing but its certificate.
#[tokio::test(flavor = "multi_thread")]
async fn ab3_an_obligation_over_http3_needs_no_token() {
    sdk::python(); // at its first use it is fetched, which may take longer than the obligation lasts
    let world = World::new();
    let bobs = world.config("bob", "").quic.cert.parent().unwrap().to_owned();
    let server = Server::start(http3(&world, &crate::common::peer_toml("bob", None))).await;
    let obligation = json!({
        "obligation_id": "ob-h3", "kind": "anumati.consent", "target": id("alice").as_str(),
        "payload": { "decision": "revoke", "scope": "h3" }, "deadline_seconds": 60,
        "max_retries": 600, "created_at": server.handle().now().to_rfc3339()
    });
    let rpc = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": { "message": {
        "messageId": "ob-h3", "role": "ROLE_USER", "parts": [{ "text": "an obligation" }],
        "extensions": [super::URI], "metadata": { super::URI: obligation }
    } } });
    let headers = json!({ "a2a-version": "1.0", "content-type": "application/json" });
    let requests = json!([
        { "method": "POST", "path": "/a2a", "headers": headers, "body": rpc.to_string() },
    ]);
    let answers = call(&server, &bobs, &requests).await.unwrap();
    let body: Value = serde_json::from_str(text(&answers[0], "/body")).unwrap();
    assert_eq!(body["result"]["task"]["status"]["state"], "TASK_STATE_COMPLETED", "{body}");
    let granted = crate::common::granted(server.handle().store(), Role::Receiver, "bob", "h3");
    assert_eq!(granted, Some(false));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_not_heard_over_http3_and_nobody_where_it_is_off() {
    let world = World::new();
    let bobs = world.config("bob", "").quic.cert.parent().unwrap().to_owned();
    let carols = world.config("carol", "").quic.cert.parent().unwrap().to_owned();
    let server = Server::start(http3(&world, &bob(&world))).await;
    let card = json!([{ "method": "GET", "path": "/.well-known/agent-card.json" }]);
    assert!(call(&server, &bobs, &card).await.is_ok());
    assert!(call(&server, &carols, &card).await.is_err(), "a certificate of the CA, but no peer");
    let mut config = server.stop().await;
    config.api.http3 = false;
    let server = Server::start(config).await;
    assert!(call(&server, &bobs, &card).await.is_err());
    server.stop().await;
}

/// Consent is taken from whom the certificate names, and from nobody else by the same record.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_consents_over_http3_known_by_its_certificate() {
    let world = World::new();
    let home = |name| world.config(name, "").quic.cert.parent().unwrap().to_owned();
    let (bobs, carols) = (home("bob"), home("carol"));
    let document = json!({
        "version": "1.0.0", "document_uri": "https://alice.test/policy", "document_hash": "",
        "effective_date": "2026-02-27T00:00:00Z", "publisher": id("alice"),
        "natural_language_uri": "https://alice.test/terms",
        "claims": [{
            "claim_id": "c-1", "clause_ref": "§1", "action": "odrl:use", "asset": "odrl:All",
            "rule_type": "permission", "since_version": "1.0.0",
        }],
    });
    let policy =
        proto::consent::read::<proto::consent::PolicyDocument>(document.to_string().as_bytes());
    let policy = policy.unwrap().sealed();
    let file = world.path().join("policy.json");
    std::fs::write(&file, serde_json::to_vec(&policy).unwrap()).unwrap();
    let peers = ["bob", "carol"].map(|name| crate::common::peer_toml(name, None)).concat();
    let acap = format!("[acap]\nenabled = true\npolicy = {file:?}\n{peers}");
    let server = Server::start(http3(&world, &acap)).await;
    let record = json!({
        "record_id": "r-1", "caller_agent_id": id("bob"), "callee_agent_id": id("alice"),
        "policy_version": "1.0.0", "policy_hash": policy.document_hash, "decision": "accepted",
        "parsed_claims": [{ "claim_id": "c-1", "understood": true, "disputed": false }],
        "accepted_at": server.handle().now().to_rfc3339(), "valid_until": "on_any_change",
    });
    let headers = json!({ "content-type": "application/json" });
    let consent = json!({
        "method": "POST", "path": "/acap/consent", "headers": headers, "body": record.to_string(),
    });
    let audit = json!({ "method": "GET", "path": format!("/acap/audit/{}", id("bob")) });
    let requests = json!([consent, audit]);
    let replayed = call(&server, &carols, &requests).await.unwrap();
    assert_eq!((&replayed[0]["status"], &replayed[1]["status"]), (&json!(403), &json!(403)));
    let answers = call(&server, &bobs, &requests).await.unwrap();
    assert_eq!((&answers[0]["status"], &answers[1]["status"]), (&json!(201), &json!(200)));
    let told: Value = serde_json::from_str(text(&answers[1], "/body")).unwrap();
    assert_eq!((&told["state"], &told["records"]), (&json!("accepted"), &json!(1)));
    server.stop().await;
}
