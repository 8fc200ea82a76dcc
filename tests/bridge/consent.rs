//! Consent before the tools of a server behind a node (Anumati §4.2).

use super::{Over, Proxy, configs, files};
use crate::common::{self, World, id, issue, revoke};
use abhyasa::api;
use abhyasa::loopback::free_address;
use abhyasa::node::Node;
use abhyasa::proto::consent::{PolicyDocument, read};
use serde_json::{Value, json};
use std::path::Path;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const TOKEN: &str = "token-of-bob-0123456789";
const WITHHELD: i64 = -31_403;

fn policy() -> PolicyDocument {
    version("1.0.0", None)
}

fn version(version: &str, supersedes: Option<&str>) -> PolicyDocument {
    let document = json!({
        "version": version, "document_uri": "https://alice.test/.well-known/usage-policy.json",
        "document_hash": "", "effective_date": "2026-02-27T00:00:00Z", "supersedes": supersedes,
        "claims": [{
            "claim_id": "claim-files", "clause_ref": "§2", "action": "odrl:use", "asset": "odrl:All",
            "rule_type": "permission", "since_version": "1.0.0",
        }],
        "publisher": id("alice"), "natural_language_uri": "https://alice.test/terms",
    });
    read::<PolicyDocument>(document.to_string().as_bytes()).unwrap().sealed()
}

fn private(file: &Path, text: &str) {
    std::fs::write(file, text).unwrap();
    #[cfg(unix)]
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

async fn post(url: &str, body: &Value) -> Value {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let response = http.post(url).bearer_auth(TOKEN).json(body).send().await.unwrap();
    assert_eq!(response.status(), 201, "{url}");
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

/// Alice's node with the tools and a policy, and Bob's way to them.
struct Stage {
    alice: Node,
    base: String,
    client: Proxy,
    /// What the server said of itself.
    opened: Value,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Stage {
    async fn start(world: &World, over: Over, grace: &str) -> Self {
        let (file, token) = (world.path().join("policy.json"), world.path().join("bob.token"));
        std::fs::write(&file, serde_json::to_vec(&policy()).unwrap()).unwrap();
        private(&token, TOKEN);
        let more = format!(
            "[acap]\nenabled = true\npolicy = {file:?}\n{grace}{}\n[[policy_claims]]\ncalls = [\"mcp:files/*\"]\nclaims = [\"claim-files\"]\n",
            files()
        );
        let (mut config, bob) = configs(world, &more);
        config.api.listen = free_address().unwrap();
        config.peers[0].http_token_file = Some(token);
        let base = format!("http://{}", config.api.listen);
        let listener = TcpListener::bind(config.api.listen).await.unwrap();
        let alice = common::start(config).await;
        let (stop, stopped) = oneshot::channel::<()>();
        let served =
            tokio::spawn(api::serve(listener, alice.handle(), async { drop(stopped.await) }));
        let mut client = Proxy::start(&bob, "files", over);
        let info = json!({ "name": "test", "version": "1" });
        let params =
            json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
        let opened = client.call("initialize", params).await;
        Self { alice, base, client, opened, stop, served }
    }

    async fn end(self) {
        self.client.end().await;
        drop(self.stop);
        self.served.await.unwrap().unwrap();
        self.alice.stop().await.unwrap();
    }
}

/// A tool is called by who consented, and no longer by who does not.
#[tokio::test(flavor = "multi_thread")]
async fn s1_tools_need_consent_that_holds() {
    for over in Over::ALL {
        let world = World::new();
        let Stage { alice, base, mut client, opened, stop, served, .. } =
            Stage::start(&world, over, "").await;
        let told = &opened["result"]["capabilities"]["usagePolicy"];
        assert_eq!(
            (&told["version"], &told["documentHash"], &told["acceptanceRequired"]),
            (&json!("1.0.0"), &json!(policy().document_hash), &json!(true)),
            "{opened}"
        );
        client.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        let listed = client.call("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().unwrap();
        assert!(
            tools.iter().all(|tool| tool["policyClaims"] == json!(["claim-files"])),
            "{listed}"
        );
        let refused = client.tool("read", json!({ "path": "a" })).await;
        assert_eq!(refused["error"]["code"], WITHHELD, "{refused}");
        let why = &refused["error"]["data"]["acap"];
        assert_eq!(why["code"], "consent_required");
        assert_eq!(why["blocking_claims"][0]["claim_id"], "claim-files");
        let now = || alice.handle().now().to_rfc3339();
        let record = json!({
            "record_id": "r-1", "caller_agent_id": id("bob"), "callee_agent_id": id("alice"),
            "policy_version": "1.0.0", "policy_hash": policy().document_hash,
            "parsed_claims": [{ "claim_id": "claim-files", "understood": true, "disputed": false }],
            "decision": "accepted", "accepted_at": now(), "valid_until": "on_any_change",
        });
        post(&format!("{base}/acap/consent"), &record).await;
        let refused = client.tool("read", json!({ "path": "a" })).await;
        assert_eq!(refused["error"]["data"]["acap"]["code"], "claims_blocked", "{refused}");
        let event = json!({
            "event_id": "e-1", "consent_record_id": "r-1", "action": "odrl:use",
            "clause_evaluated": "§2", "claim_id": "claim-files", "decision": "permit",
            "reasoning": "§2 permits it.", "timestamp": now(),
        });
        post(&format!("{base}/acap/adherence"), &event).await;
        let read = client.tool("read", json!({ "path": "a" })).await;
        assert_eq!(read["result"]["content"][0]["text"], "content of a", "{read}");
        // What withdraws consent under custody ends a call that runs; here it is this node's own word.
        let params = json!({
            "name": "watch", "arguments": { "seconds": 60 }, "_meta": { "progressToken": 1 },
        });
        let watch = client.ask("tools/call", params).await;
        assert_eq!(client.read().await.unwrap()["method"], "notifications/progress");
        issue(&alice.handle(), revoke("withdraw-1", "bob", "acap.consent")).await;
        let ended = client.answer(watch).await;
        assert_eq!(ended["error"]["code"], WITHHELD, "{ended}");
        assert_eq!(ended["error"]["data"]["acap"]["obligation_id"], "withdraw-1", "{ended}");
        let refused = client.tool("read", json!({ "path": "a" })).await;
        assert_eq!(refused["error"]["data"]["acap"]["code"], "withdrawn", "{refused}");
        client.end().await;
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let audit = http.get(format!("{base}/acap/audit/{}", id("bob"))).send().await.unwrap();
        let audit: Value = serde_json::from_str(&audit.text().await.unwrap()).unwrap();
        let said: Vec<&str> = audit["items"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|item| item["attempt"]["decision"].as_str())
            .collect();
        assert_eq!(said, ["deny", "deny", "permit", "permit", "deny"], "{audit}");
        drop(stop);
        served.await.unwrap().unwrap();
        alice.stop().await.unwrap();
    }
}

/// A policy that changes lets a call that runs finish (Anumati §6.2), or ends it, as is configured; the next call
/// needs consent anew in any case.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_of_a_tool_over_a_change_of_the_policy() {
    for (over, grace) in Over::ALL.into_iter().flat_map(|over| [(over, "finish"), (over, "stop")]) {
        let world = World::new();
        let mut stage = Stage::start(&world, over, &format!("grace = \"{grace}\"\n")).await;
        let base = stage.base.clone();
        let now = || stage.alice.handle().now().to_rfc3339();
        let record = json!({
            "record_id": "r-1", "caller_agent_id": id("bob"), "callee_agent_id": id("alice"),
            "policy_version": "1.0.0", "policy_hash": policy().document_hash,
            "parsed_claims": [{ "claim_id": "claim-files", "understood": true, "disputed": false }],
            "decision": "accepted", "accepted_at": now(), "valid_until": "on_any_change",
        });
        post(&format!("{base}/acap/consent"), &record).await;
        let event = json!({
            "event_id": "e-1", "consent_record_id": "r-1", "action": "odrl:use",
            "clause_evaluated": "§2", "claim_id": "claim-files", "decision": "permit",
            "reasoning": "§2 permits it.", "timestamp": now(),
        });
        post(&format!("{base}/acap/adherence"), &event).await;
        let client = &mut stage.client;
        client.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        // One that is to be ended runs longer than this test has patience.
        let seconds = if grace == "stop" { 60.0 } else { 1.0 };
        let params = json!({
            "name": "watch", "arguments": { "seconds": seconds }, "_meta": { "progressToken": 1 },
        });
        let watch = client.ask("tools/call", params).await;
        assert_eq!(client.read().await.unwrap()["method"], "notifications/progress");
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let put =
            http.post(format!("{base}/v1/consent/policy")).json(&version("2.0.0", Some("1.0.0")));
        assert_eq!(put.send().await.unwrap().status(), 200);
        let ended = client.answer(watch).await;
        if grace == "stop" {
            assert_eq!(ended["error"]["code"], WITHHELD, "{ended}");
            let why = &ended["error"]["data"]["acap"];
            assert_eq!(
                (&why["code"], &why["policy_version"]),
                (&json!("consent_stale"), &json!("2.0.0"))
            );
        } else {
            assert!(ended["result"].is_object(), "{ended}");
        }
        let refused = client.tool("read", json!({ "path": "a" })).await;
        assert_eq!(refused["error"]["data"]["acap"]["code"], "consent_stale", "{refused}");
        stage.end().await;
    }
}
