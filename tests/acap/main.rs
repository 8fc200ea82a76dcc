//! Consent at the node, over its HTTP surface: the policy, the chains, and what the gate makes of them.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
#[allow(unreachable_pub, reason = "shared with tests that are one file each")]
mod common;

mod caller;
mod calls;
mod chains;
mod crashes;
mod custody;
mod demo;
mod evidence;
mod faults;
mod live;
mod page;
mod policy;
mod reference;
mod restrict;
mod review;
mod tools;

use abhyasa::api;
use abhyasa::config::NodeConfig;
use abhyasa::loopback::free_address;
use abhyasa::node::Node;
use abhyasa::proto::consent::{AdherenceEvent, ConsentRecord, PolicyDocument, read};
use abhyasa::proto::time::Time;
use common::{PATIENCE, World, eventually, id};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const BOB: &str = "token-of-bob-0123456789";
const CAROL: &str = "token-of-carol-0123456789";
/// Claims of the policies here.
const USE: &str = "claim-use";
const PROFILING: &str = "claim-no-profiling";
const RETENTION: &str = "claim-retention";

/// A claim: id, clause, action, rule, constraint, version.
fn claim(
    id: &str,
    clause: &str,
    action: &str,
    rule: &str,
    constraint: Value,
    since: &str,
) -> Value {
    json!({
        "claim_id": id, "clause_ref": clause, "action": action, "asset": "a2a:task_output",
        "rule_type": rule, "constraint": constraint, "effective_version": since,
    })
}

fn claims() -> Vec<Value> {
    vec![
        claim(USE, "§2.1", "odrl:use", "permission", Value::Null, "1.0.0"),
        claim(
            PROFILING,
            "§3.4",
            "odrl:aggregate",
            "prohibition",
            json!("odrl:purpose eq behavioral_profiling"),
            "1.0.0",
        ),
    ]
}

/// A policy, with its hash.
fn policy(version: &str, supersedes: Value, claims: &[Value]) -> PolicyDocument {
    let document = json!({
        "version": version, "document_uri": "https://alice.test/.well-known/usage-policy.json",
        "document_hash": "", "effective_date": "2026-02-27T00:00:00Z", "supersedes": supersedes,
        "claims": claims, "publisher": id("alice"), "natural_language_uri": "https://alice.test/terms",
    });
    read::<PolicyDocument>(document.to_string().as_bytes()).unwrap().sealed()
}

fn first() -> PolicyDocument {
    policy("1.0.0", Value::Null, &claims())
}

/// A second version, with one claim more.
fn second() -> PolicyDocument {
    let mut claims = claims();
    claims.push(claim(
        RETENTION,
        "§6.3",
        "a2a:store_output",
        "prohibition",
        json!("a2a:retention_days gt 90"),
        "2.0.0",
    ));
    policy("2.0.0", json!("1.0.0"), &claims)
}

fn file(world: &World) -> PathBuf {
    world.path().join("usage-policy.json")
}

fn publish(world: &World, policy: &PolicyDocument) {
    std::fs::write(file(world), serde_json::to_vec_pretty(policy).unwrap()).unwrap();
}

/// `[[peers]]` of a caller with a token.
fn caller(world: &World, name: &str, token: &str) -> String {
    let file = world.path().join(format!("{name}.token"));
    std::fs::write(&file, token).unwrap();
    private(&file);
    format!("{}http_token_file = {file:?}\n", common::peer_toml(name, None))
}

/// Only its owner may read it.
fn private(file: &Path) {
    #[cfg(unix)]
    std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
}

/// `[acap]` over the policy in [`file`], with the claims of two skills. `more` belongs to `[acap]`.
fn acap(world: &World, more: &str) -> String {
    format!(
        "[acap]\nenabled = true\npolicy = {:?}\n{more}\n\
         [[policy_claims]]\ncalls = [\"a2a:book\"]\nclaims = [\"{USE}\"]\n\
         [[policy_claims]]\ncalls = [\"a2a:analyse\"]\nclaims = [\"{USE}\", \"{PROFILING}\"]\n",
        file(world)
    )
}

/// Alice's node with the echo agent, a policy, and Bob and Carol as callers.
fn config(world: &World, more: &str) -> NodeConfig {
    if !file(world).exists() {
        publish(world, &first());
    }
    let at = free_address().unwrap();
    let callers = format!("{}{}", caller(world, "bob", BOB), caller(world, "carol", CAROL));
    let a2a = "[a2a]\nagent = \"echo\"\nskills_believed = true\n";
    let mut config = world.config("alice", &format!("{a2a}{}{callers}", acap(world, more)));
    config.api.listen = at;
    config
}

/// A node and its HTTP surface, on a runtime of their own, so that nothing of them outlives a crash.
struct Server {
    runtime: Option<Runtime>,
    node: Option<Node>,
    config: NodeConfig,
    http: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<std::io::Result<()>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // a test that failed
        }
    }
}

/// A status and a body.
type Answer = (u16, Value);

impl Server {
    async fn start(config: NodeConfig) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (here, started) = (runtime.handle().clone(), config.clone());
        let address = config.api.listen;
        let (node, listener) = tokio::task::spawn_blocking(move || {
            here.block_on(async {
                let node = common::start(started).await;
                let bind = async || TcpListener::bind(address).await.ok();
                (node, eventually("the port", bind).await)
            })
        })
        .await
        .unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let handle = node.handle();
        let served = runtime.spawn(api::serve(listener, handle, async { drop(stopped.await) }));
        let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
        Self {
            runtime: Some(runtime),
            node: Some(node),
            config,
            http,
            stop: Some(stop),
            served: Some(served),
        }
    }

    async fn stop(mut self) -> NodeConfig {
        drop(self.stop.take());
        self.served.take().unwrap().await.unwrap().unwrap();
        let node = self.node.take().unwrap();
        let runtime = self.runtime.take().unwrap();
        runtime.spawn(node.stop()).await.unwrap().unwrap();
        runtime.shutdown_background();
        self.config.clone()
    }

    /// Ends it without a word, as a crash does.
    fn crash(mut self) -> NodeConfig {
        drop(self.node.take());
        self.runtime.take().unwrap().shutdown_background();
        self.config.clone()
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("http://{}{path}", self.config.api.listen))
    }

    async fn post(&self, token: Option<&str>, path: &str, body: &impl serde::Serialize) -> Answer {
        let request = self.request(Method::POST, path).json(body);
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        answer(request).await
    }

    async fn consent(&self, record: &ConsentRecord) -> Answer {
        self.post(Some(BOB), "/acap/consent", record).await
    }

    async fn adhere(&self, event: &AdherenceEvent) -> Answer {
        self.post(Some(BOB), "/acap/adherence", event).await
    }

    async fn audit(&self, token: Option<&str>, of: &str, query: &str) -> Answer {
        let path = format!("/acap/audit/{}{query}", id(of));
        let request = self.request(Method::GET, &path);
        answer(match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        })
        .await
    }

    /// All entries of a kind in Bob's chains.
    async fn entries(&self, kind: &str) -> Vec<Value> {
        let (status, audit) = self.audit(None, "bob", "?limit=1000").await;
        assert_eq!((status, &audit["next"]), (200, &Value::Null), "{audit}");
        let items = audit["items"].as_array().unwrap();
        items.iter().filter(|item| item["kind"] == kind).map(|item| item[kind].clone()).collect()
    }

    /// Asks the agent by its protocol.
    async fn rpc(&self, token: Option<&str>, method: &str, params: Value) -> Value {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let request = self.request(Method::POST, "/a2a").header("a2a-version", "1.0");
        let request = request.json(&body);
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        answer(request).await.1
    }

    /// Calls a skill as Bob; `meta` goes beside it.
    async fn call(&self, skill: &str, meta: Value) -> Result<(), Value> {
        self.call_as(Some(BOB), skill, meta).await
    }

    /// The same by who shows `token`.
    async fn call_as(&self, token: Option<&str>, skill: &str, meta: Value) -> Result<(), Value> {
        let mut metadata = meta;
        metadata["abhyasa.skill"] = json!(skill);
        let message = json!({
            "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "hello" }],
            "metadata": metadata,
        });
        let answer = self.rpc(token, "SendMessage", json!({ "message": message })).await;
        match answer.get("error") {
            Some(error) => {
                let data = error["data"][0]["metadata"]["acap"].as_str();
                let data = data.unwrap_or_else(|| panic!("no word of consent: {answer}"));
                Err(serde_json::from_str(data).unwrap())
            }
            None => {
                let state = &answer["result"]["task"]["status"]["state"];
                assert_eq!(state, "TASK_STATE_COMPLETED", "{answer}");
                Ok(())
            }
        }
    }
}

async fn answer(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

/// The code of a refusal of ours.
fn code(answer: &Answer) -> (u16, &str) {
    (answer.0, answer.1["error"]["code"].as_str().unwrap_or_else(|| panic!("{answer:?}")))
}

/// A time, each later than the one before.
fn now() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let unix = u64::try_from(unix.as_millis()).unwrap();
    let last =
        LAST.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some(unix.max(last + 1)));
    Time::from_ms(unix.max(last.unwrap() + 1)).to_rfc3339()
}

/// Bob's consent to `policy`, with `disputed` claims.
fn record(
    name: &str,
    prev: Option<&str>,
    policy: &PolicyDocument,
    disputed: &[&str],
    more: Value,
) -> ConsentRecord {
    let parsed = policy.claims.iter().map(|claim| {
        let disputed = disputed.contains(&claim.claim_id.as_str());
        let reason = disputed.then_some("we do profile");
        json!({
            "claim_id": claim.claim_id, "understood": true, "disputed": disputed,
            "dispute_reason": reason,
        })
    });
    let mut record = json!({
        "record_id": name, "prev_record_id": prev, "caller_agent_id": id("bob"),
        "callee_agent_id": policy.publisher, "policy_version": policy.version,
        "policy_hash": policy.document_hash, "parsed_claims": parsed.collect::<Vec<_>>(),
        "decision": if disputed.is_empty() { "accepted" } else { "conditional" },
        "accepted_at": now(), "valid_until": "on_any_change",
    });
    for (name, value) in more.as_object().unwrap() {
        record[name] = value.clone();
    }
    read(record.to_string().as_bytes()).unwrap()
}

/// An event of Bob's under a record.
fn event(
    name: &str,
    prev: Option<&str>,
    under: &str,
    claim: &str,
    decision: &str,
    more: Value,
) -> AdherenceEvent {
    let clause = if claim == USE { "§2.1" } else { "§3.4" };
    let mut event = json!({
        "event_id": name, "prev_event_id": prev, "consent_record_id": under, "action": "odrl:aggregate",
        "clause_evaluated": clause, "claim_id": claim, "decision": decision,
        "reasoning": "The clause was read.", "timestamp": now(),
    });
    for (name, value) in more.as_object().unwrap() {
        event[name] = value.clone();
    }
    read(event.to_string().as_bytes()).unwrap()
}

/// Claims that a refusal of a call names.
fn blocking(refusal: &Value) -> Vec<&str> {
    let claims = refusal["blocking_claims"].as_array();
    claims.into_iter().flatten().map(|claim| claim["claim_id"].as_str().unwrap()).collect()
}
