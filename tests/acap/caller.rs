//! The caller's side, between two nodes: consent that is given by itself, actions that are held against it,
//! and two copies that agree.

use super::{
    BOB, PROFILING, RETENTION, Server, USE, answer, claim, config, policy, private, publish,
    record, second,
};
use crate::common::{World, id, peer_toml};
use abhyasa::acap::{Action, Caller, Terms, Way};
use abhyasa::clock::{Clock, SystemClock};
use abhyasa::config::{Accept, Decides, HttpUrl, NodeConfig, Review};
use abhyasa::loopback::free_address;
use abhyasa::proto::consent::{ContentHash, Context};
use abhyasa::proto::time::Time;
use abhyasa::store::{FjallStore, StoreOptions};
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method as HttpMethod, StatusCode, Uri};
use axum::response::IntoResponse as _;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Alice, the callee, and what Bob's configuration says of her.
pub(super) fn alice(world: &World, more: &str) -> NodeConfig {
    let mut alice = config(world, more);
    alice.quic.listen = free_address().unwrap();
    alice
}

/// Bob, whose agent is Alice's. `more` belongs to `[[consent]]`.
pub(super) fn bob(world: &World, alice: &NodeConfig, over_http3: bool, more: &str) -> NodeConfig {
    let token = world.path().join("bob-shows.token");
    std::fs::write(&token, BOB).unwrap();
    private(&token);
    let way = match over_http3 {
        true => String::new(),
        false => format!("url = \"http://{}/\"\ntoken_file = {token:?}\n", alice.api.listen),
    };
    let callee = id("alice");
    let facts = "facts = { \"odrl:purpose\" = \"booking\", \"a2a:retention_days\" = \"30\" }";
    let own = format!(
        "[a2a]\nagent = \"{callee}\"\n[[consent]]\ncallee = \"{callee}\"\n{way}{facts}\n{more}\n{}",
        peer_toml("alice", Some(alice.quic.listen))
    );
    let mut bob = world.config("bob", &own);
    bob.api.listen = free_address().unwrap();
    bob
}

/// Has Bob's agent, which is Alice's, called by a client of his: the task.
pub(super) async fn ask(bob: &Server, facts: Value) -> Value {
    let message = json!({
        "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "hello" }],
        "metadata": { "abhyasa.skill": "analyse", "acap/context": facts },
    });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": { "message": message } });
    let request = bob.request(Method::POST, "/a2a").header("a2a-version", "1.0").json(&body);
    let (_, answer) = answer(request).await;
    assert!(answer["result"]["task"].is_object(), "{answer}");
    answer["result"]["task"].clone()
}

pub(super) async fn operator(bob: &Server, path: &str, body: Value) -> (u16, Value) {
    answer(bob.request(Method::POST, path).json(&body)).await
}

pub(super) async fn status(bob: &Server) -> Value {
    answer(bob.request(Method::GET, "/v1/consent")).await.1["items"][0].clone()
}

/// Nobody has consented, and a call goes through: the policy was fetched, consented to, and each claim was put
/// on record first. What a claim prohibits does not leave the caller.
#[tokio::test(flavor = "multi_thread")]
async fn s1_s4_consent_is_given_by_itself_and_a_denied_action_does_not_leave() {
    for over_http3 in [false, true] {
        let world = World::new();
        let mut at_alice = alice(&world, "");
        at_alice.api.http3 = over_http3;
        let at_bob = bob(&world, &at_alice, over_http3, "");
        let alice = Server::start(at_alice).await;
        let bob = Server::start(at_bob).await;
        let task = ask(&bob, json!({})).await;
        assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
        let records = alice.entries("record").await;
        assert_eq!((records.len(), &records[0]["decision"]), (1, &json!("accepted")));
        let events = alice.entries("event").await;
        let said = |event: &Value| (event["claim_id"].clone(), event["decision"].clone());
        let permits: Vec<_> = events.iter().map(said).collect();
        assert_eq!(permits, [(json!(USE), json!("permit")), (json!(PROFILING), json!("permit"))]);
        assert!(events[1]["reasoning"].as_str().unwrap().contains("§3.4"), "{events:?}");
        let attempts = alice.entries("attempt").await.len();
        let denied = ask(&bob, json!({ "odrl:purpose": "behavioral_profiling" })).await;
        assert_eq!(denied["status"]["state"], "TASK_STATE_REJECTED", "{denied}");
        let refusal = &denied["status"]["message"]["metadata"]["acap"];
        assert_eq!((&refusal["code"], &refusal["by"]), (&json!("denied"), &json!("caller")));
        assert_eq!(refusal["blocking_claims"][0]["claim_id"], PROFILING);
        assert_eq!(alice.entries("attempt").await.len(), attempts, "it did not leave");
        assert_eq!(alice.entries("event").await[3]["decision"], "deny", "and is on record");
        // Two purposes, one of them prohibited: which is meant is for a person to say.
        let both = json!({ "odrl:purpose": "booking,behavioral_profiling" });
        let unclear = ask(&bob, both).await;
        assert_eq!(unclear["status"]["message"]["metadata"]["acap"]["code"], "escalated");
        let (code, found) =
            operator(&bob, "/v1/consent/reconcile", json!({ "callee": id("alice") })).await;
        assert_eq!((code, &found["differences_count"]), (200, &json!(0)), "{found}");
        assert_eq!((&found["events"], &found["events_there"]), (&json!(6), &json!(6)), "{found}");
        bob.stop().await;
        alice.stop().await;
    }
}

/// The callee publishes a second version: the next action is consented to anew, in the same chain.
#[tokio::test(flavor = "multi_thread")]
async fn s7_a_policy_bump_is_consented_to_anew() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let at_bob = bob(&world, &at_alice, false, "");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    assert_eq!(ask(&bob, json!({})).await["status"]["state"], "TASK_STATE_COMPLETED");
    let at_alice = alice.stop().await;
    publish(&world, &second());
    let alice = Server::start(at_alice).await;
    let task = ask(&bob, json!({})).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    let records = alice.entries("record").await;
    assert_eq!(records.len(), 2, "{records:?}");
    assert_eq!(records[1]["reconsent_trigger"], "POLICY_BUMP");
    assert_eq!(records[1]["prev_record_id"], records[0]["record_id"]);
    let claims: Vec<_> =
        alice.entries("event").await.iter().map(|e| e["claim_id"].clone()).collect();
    assert_eq!(claims[claims.len() - 1], json!(RETENTION));
    bob.stop().await;
    alice.stop().await;
}

/// A constraint that is no ODRL of ours is not understood, and waits for a person; her yes makes the record.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_understood_waits_for_a_person() {
    let world = World::new();
    let vague =
        claim(USE, "§2.1", "odrl:use", "permission", json!("be nice to each other"), "1.0.0");
    publish(&world, &policy("1.0.0", Value::Null, &[vague]));
    let at_alice = {
        let mut alice = alice(&world, "");
        alice.policy_claims.pop(); // it names a claim that is not there
        alice
    };
    let at_bob = bob(&world, &at_alice, false, "");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    let held = ask(&bob, json!({})).await;
    let refusal = &held["status"]["message"]["metadata"]["acap"];
    assert_eq!(
        (&refusal["code"], &refusal["blocking_claims"][0]["claim_id"]),
        (&json!("escalated"), &json!(USE))
    );
    assert_eq!(alice.audit(None, "bob", "").await.0, 404, "nothing was said");
    let at_bob = bob.crash();
    let bob = Server::start(at_bob).await;
    let question = &status(&bob).await["question"];
    assert_eq!(
        (&question["claims"][0], &question["answer"]),
        (&json!(USE), &Value::Null),
        "asked still"
    );
    let review = super::review::open(&bob).await.remove(0);
    assert_eq!((&review["claims"][0], &review["lapsed"]), (&json!(USE), &json!(false)));
    let path = format!("/v1/escalations/{}/answer", review["id"].as_str().unwrap());
    let (code, said) = operator(&bob, &path, json!({ "approve": true })).await;
    assert_eq!(code, 204, "{said}");
    assert!(super::review::open(&bob).await.is_empty());
    let records = alice.entries("record").await;
    assert_eq!(records[0]["parsed_claims"][0]["understood"], false);
    let held = ask(&bob, json!({})).await;
    let refusal = &held["status"]["message"]["metadata"]["acap"];
    assert_eq!(refusal["code"], "escalated", "what nobody understands permits nothing: {refusal}");
    bob.stop().await;
    alice.stop().await;
}

/// What we intend is against a claim: consent is conditional, the claim is disputed with a reason, and no
/// action that it governs leaves.
#[tokio::test(flavor = "multi_thread")]
async fn s5_what_is_disputed_permits_nothing() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let uses = "uses = [{ action = \"odrl:aggregate\", asset = \"a2a:task_output\" }]";
    let mut at_bob = bob(&world, &at_alice, false, uses);
    let facts = [("odrl:purpose".to_owned(), "behavioral_profiling".to_owned())];
    at_bob.consent[0].facts = Context::new(facts.into()).unwrap();
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    let held = ask(&bob, json!({ "odrl:purpose": "statistics" })).await;
    let refusal = &held["status"]["message"]["metadata"]["acap"];
    assert_eq!(refusal["blocking_claims"][0]["claim_id"], PROFILING, "{refusal}");
    let records = alice.entries("record").await;
    assert_eq!(records[0]["decision"], "conditional");
    let disputed = &records[0]["parsed_claims"][1];
    assert_eq!(
        (&disputed["disputed"], disputed["dispute_reason"].is_string()),
        (&json!(true), true)
    );
    bob.stop().await;
    alice.stop().await;
}

/// In delegated mode the callee's stricter word counts here, too, and the two copies still agree.
#[tokio::test(flavor = "multi_thread")]
async fn in_delegated_mode_the_callees_word_counts() {
    let world = World::new();
    let at_alice = alice(&world, "mode = \"delegated\"");
    let at_bob = bob(&world, &at_alice, false, "mode = \"delegated\"");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    assert_eq!(ask(&bob, json!({})).await["status"]["state"], "TASK_STATE_COMPLETED");
    let of = json!({ "callee": id("alice") });
    let (_, found) = operator(&bob, "/v1/consent/reconcile", of).await;
    assert_eq!(found["differences_count"], 0, "{found}");
    bob.stop().await;
    alice.stop().await;
}

/// A policy that goes back, or bends a claim under its old id, is refused, and no call is held against it.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_bends_what_it_said_is_refused() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let at_bob = bob(&world, &at_alice, false, "");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    assert_eq!(ask(&bob, json!({})).await["status"]["state"], "TASK_STATE_COMPLETED");
    let (mut at_alice, at_bob) = (alice.stop().await, bob.stop().await);
    let bent = claim(USE, "§2.1", "odrl:use", "permission", json!("odrl:purpose eq sale"), "1.0.0");
    publish(&world, &policy("2.0.0", json!("1.0.0"), &[bent, super::claims()[1].clone()]));
    // Alice has forgotten what she served.
    at_alice.data_dir = world.path().join("alice-anew");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    let held = ask(&bob, json!({})).await;
    let refusal = &held["status"]["message"]["metadata"]["acap"];
    assert_eq!(refusal["code"], "policy", "{refusal}");
    assert!(refusal["message"].as_str().unwrap().contains(USE), "{refusal}");
    bob.stop().await;
    alice.stop().await;
}

/// A server of MCP with one tool.
const TOOL: &str = r#"
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    else:
        result = {"content": [{"type": "text", "text": "done"}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"#;

/// `abhyasa mcp proxy` has its node hold calls of tools against the policy; what is denied does not leave.
#[tokio::test(flavor = "multi_thread")]
async fn s4_calls_of_tools_are_held_by_the_mcp_proxy() {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    let world = World::new();
    let script = world.path().join("server.py");
    std::fs::write(&script, TOOL).unwrap();
    let mut at_alice = alice(&world, "");
    let file = world.path().join("alice/abhyasa.toml");
    let text = std::fs::read_to_string(&file).unwrap().replace("a2a:analyse", "mcp:files/*");
    let server =
        format!("[[mcp_servers]]\nname = \"files\"\ncommand = [\"python3\", {script:?}]\n");
    std::fs::write(&file, format!("{text}\n{server}")).unwrap();
    let loaded = NodeConfig::load(&file).unwrap();
    (at_alice.policy_claims, at_alice.mcp_servers) = (loaded.policy_claims, loaded.mcp_servers);
    let api = free_address().unwrap();
    let mut at_bob = bob(&world, &at_alice, false, "");
    let file = world.path().join("bob/abhyasa.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replacen("listen = \"127.0.0.1:8433\"", &format!("listen = \"{api}\""), 1);
    std::fs::write(&file, text).unwrap();
    at_bob.api.listen = api;
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    let mut proxy = tokio::process::Command::new(env!("CARGO_BIN_EXE_abhyasa"))
        .args(["mcp", "proxy", "--config", file.to_str().unwrap()])
        .args(["--peer", id("alice").as_str(), "--server", "files"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut says = proxy.stdin.take().unwrap();
    let mut hears = BufReader::new(proxy.stdout.take().unwrap()).lines();
    let mut ask = async |message: Value| {
        says.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        let line = tokio::time::timeout(super::PATIENCE, hears.next_line()).await;
        serde_json::from_str::<Value>(&line.unwrap().unwrap().unwrap()).unwrap()
    };
    let opens = json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": { "name": "c", "version": "1" },
    });
    ask(json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opens })).await;
    let call = |id: u64, facts: Value| {
        json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": { "name": "read", "arguments": {}, "_meta": { "acap/context": facts } },
        })
    };
    let done = ask(call(2, json!({}))).await;
    assert_eq!(done["result"]["content"][0]["text"], "done", "{done}");
    assert_eq!(alice.entries("record").await.len(), 1);
    let attempts = alice.entries("attempt").await.len();
    let denied = ask(call(3, json!({ "odrl:purpose": "behavioral_profiling" }))).await;
    assert_eq!(denied["error"]["code"], -31_403, "{denied}");
    let refusal = &denied["error"]["data"]["acap"];
    assert_eq!((&refusal["code"], &refusal["by"]), (&json!("denied"), &json!("caller")));
    assert_eq!(alice.entries("attempt").await.len(), attempts, "it did not leave");
    drop(says);
    proxy.wait().await.unwrap();
    bob.stop().await;
    alice.stop().await;
}

/// A path and a body.
type Posted = (String, Vec<u8>);

/// Stands between a caller and a callee: passes on what comes, and is told what to do with answers.
#[derive(Clone)]
pub(super) struct Between {
    to: String,
    http: reqwest::Client,
    pub(super) at: std::net::SocketAddr,
    /// Paths and bodies of what was posted.
    pub(super) heard: Arc<Mutex<Vec<Posted>>>,
    /// What is posted does not arrive.
    pub(super) cuts: Arc<AtomicBool>,
    /// Who asks for the callee's copy waits for a place.
    copies: Arc<tokio::sync::Semaphore>,
    /// The callee's copy has no end. How many of its pages were asked for.
    floods: Arc<AtomicBool>,
    pages: Arc<AtomicU64>,
    /// What the next event is answered in place of the callee.
    says: Arc<Mutex<Option<(u16, Value)>>>,
    /// Answers to what is posted are lost.
    loses: Arc<AtomicBool>,
    /// The callee's copy is told with another decision.
    lies: Arc<AtomicBool>,
}

async fn pass(
    State(between): State<Between>,
    method: HttpMethod,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> axum::response::Response {
    let mut request = between.http.request(method.clone(), format!("{}{uri}", between.to));
    if let Some(token) = headers.get("authorization") {
        request = request.header("authorization", token);
    }
    let posts = method == HttpMethod::POST;
    if posts {
        between.heard.lock().unwrap().push((uri.path().to_owned(), body.to_vec()));
    }
    if posts && between.cuts.load(Ordering::SeqCst) {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    if uri.path() == "/acap/adherence"
        && let Some((status, says)) = between.says.lock().unwrap().take()
    {
        return (StatusCode::from_u16(status).unwrap(), says.to_string()).into_response();
    }
    if uri.path().starts_with("/acap/audit") {
        drop(between.copies.acquire().await.unwrap());
        let page = between.pages.fetch_add(1, Ordering::SeqCst);
        if between.floods.load(Ordering::SeqCst) {
            let record = json!({ "record_id": format!("r-{page}") });
            let item = json!({ "kind": "record", "number": page, "record": record });
            let page = json!({ "items": [item], "next": format!("record-{}", page + 1) });
            return page.to_string().into_response();
        }
    }
    let response = request.body(body.to_vec()).send().await.unwrap();
    let status = StatusCode::from_u16(response.status().as_u16()).unwrap();
    let mut text = response.text().await.unwrap();
    if posts && between.loses.load(Ordering::SeqCst) {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    if uri.path().starts_with("/acap/audit") && between.lies.load(Ordering::SeqCst) {
        text = text.replacen("\"decision\":\"permit\"", "\"decision\":\"deny\"", 1);
    }
    (status, text).into_response()
}

impl Between {
    /// Serves before `alice`, as long as the set lives.
    pub(super) async fn before(alice: &NodeConfig) -> (Self, tokio::task::JoinSet<()>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let between = Self {
            to: format!("http://{}", alice.api.listen),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            at: listener.local_addr().unwrap(),
            heard: Arc::default(),
            cuts: Arc::default(),
            copies: Arc::new(tokio::sync::Semaphore::new(1)),
            floods: Arc::default(),
            pages: Arc::default(),
            says: Arc::default(),
            loses: Arc::default(),
            lies: Arc::default(),
        };
        let router = axum::Router::new().fallback(pass).with_state(between.clone());
        let mut served = tokio::task::JoinSet::new();
        served.spawn(async move { drop(axum::serve(listener, router).await) });
        (between, served)
    }
}

/// A callee, what stands before it, and the terms of a caller that uses the library.
pub(super) struct Stage {
    world: World,
    pub(super) alice: Server,
    pub(super) between: Between,
    _served: tokio::task::JoinSet<()>,
}

impl Stage {
    pub(super) async fn set() -> Self {
        let world = World::new();
        let alice = Server::start(alice(&world, "")).await;
        let (between, served) = Between::before(&alice.config).await;
        Self { world, alice, between, _served: served }
    }

    /// The caller's store, opened as after a crash.
    pub(super) async fn caller(&self) -> Arc<Caller> {
        self.caller_on(Arc::new(SystemClock::starting_at_least(Time::default())), |_| ()).await
    }

    /// The same, on another clock and under other terms.
    pub(super) async fn caller_on(
        &self,
        clock: Arc<dyn Clock>,
        change: impl FnOnce(&mut Terms),
    ) -> Arc<Caller> {
        let (dir, me) = (self.world.path().join("library"), id("bob"));
        let options = StoreOptions { cache_bytes: 1 << 20, memtable_bytes: 1 << 20 };
        let store =
            super::eventually("the store", async || FjallStore::open(&dir, &me, &options).ok())
                .await;
        let url: HttpUrl = HttpUrl::try_from(format!("http://{}/", self.between.at)).unwrap();
        let facts = [("odrl:purpose".to_owned(), "booking".to_owned())];
        let mut terms = Terms {
            callee: id("alice"),
            way: Way::http(url, Some(BOB.to_owned())).unwrap(),
            accept: Accept::Understood,
            claims: Vec::new(),
            mode: Decides::Local,
            principal: None,
            capability: Some(ContentHash::of(b"one")),
            facts: Context::new(facts.into()).unwrap(),
            uses: Vec::new(),
            valid: Duration::from_secs(3_600),
            fresh: Duration::from_secs(3_600),
            review: Review::Tiered,
            answer: Duration::from_secs(60),
        };
        change(&mut terms);
        Arc::new(Caller::open(me, vec![terms], &store, clock, None).unwrap())
    }

    fn heard(&self) -> Vec<Posted> {
        self.between.heard.lock().unwrap().clone()
    }
}

pub(super) fn analyse() -> Action {
    Action { call: "a2a:analyse".into(), claims: None, facts: BTreeMap::new() }
}

/// The answer is lost and the process ends: what was said is said again, to the letter, and counts once.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_durable_and_not_answered_is_sent_again_to_the_letter() {
    let stage = Stage::set().await;
    stage.between.loses.store(true, Ordering::SeqCst);
    let caller = stage.caller().await;
    let lost = caller.act(&id("alice"), analyse()).await.unwrap_err();
    assert!(lost.is_temporary() && lost.code() == "unreached", "{lost}");
    caller.stop().await;
    drop(caller);
    let first = stage.heard();
    assert_eq!(first.len(), 1, "the record, and nothing before it is answered");
    stage.between.loses.store(false, Ordering::SeqCst);
    let caller = stage.caller().await;
    let permit = caller.act(&id("alice"), analyse()).await.unwrap();
    assert_eq!(permit.events.len(), 2);
    let all = stage.heard();
    assert_eq!(all[1], first[0], "to the letter");
    assert_eq!(all[1].0, "/acap/consent");
    assert_eq!(all.len(), 4, "the record again, and two events");
    assert_eq!(stage.alice.entries("record").await.len(), 1);
    caller.stop().await;
    stage.alice.stop().await;
}

/// What we are changes: consent is given anew, and says why.
#[tokio::test(flavor = "multi_thread")]
async fn s7_a_capability_change_is_consented_to_anew() {
    let stage = Stage::set().await;
    let caller = stage.caller().await;
    caller.act(&id("alice"), analyse()).await.unwrap();
    caller.set_capability(&id("alice"), Some(ContentHash::of(b"two")));
    let permit = caller.act(&id("alice"), analyse()).await.unwrap();
    // To name no claim is not to be held against none.
    let unnamed = Action { claims: Some(Vec::new()), ..analyse() };
    let as_any = caller.act(&id("alice"), unnamed).await.unwrap();
    assert!(!permit.events.is_empty() && as_any.events.len() == permit.events.len());
    assert_eq!(permit.capability, Some(ContentHash::of(b"two")));
    let records = stage.alice.entries("record").await;
    assert_eq!(records.len(), 2);
    assert_eq!(records[1]["reconsent_trigger"], "CAPABILITY_CHANGE");
    caller.stop().await;
    stage.alice.stop().await;
}

/// The callee's copy is altered, or has what was never said: that is found, named, and stops what follows.
#[tokio::test(flavor = "multi_thread")]
async fn reconciliation_finds_what_differs_and_what_was_never_said() {
    let stage = Stage::set().await;
    let caller = stage.caller().await;
    caller.act(&id("alice"), analyse()).await.unwrap();
    stage.between.lies.store(true, Ordering::SeqCst);
    let found = caller.reconcile(&id("alice")).await.unwrap();
    let differs = &found["differences"][0];
    assert_eq!(
        (&differs["what"], &differs["kind"]),
        (&json!("differs"), &json!("event")),
        "{found}"
    );
    assert_eq!(caller.act(&id("alice"), analyse()).await.unwrap_err().code(), "diverged");
    stage.between.lies.store(false, Ordering::SeqCst);
    assert_eq!(caller.reconcile(&id("alice")).await.unwrap()["differences_count"], 0);
    caller.act(&id("alice"), analyse()).await.unwrap();
    // Somebody who has our token consents in our name.
    let last = stage.alice.entries("record").await[0]["record_id"].as_str().unwrap().to_owned();
    let more = json!({
        "decision": "rejected", "caller_capability_hash": ContentHash::of(b"one"),
    });
    let rejects = record("r-stolen", Some(&last), &super::first(), &[], more);
    let taken = stage.alice.consent(&rejects).await;
    assert_eq!(taken.0, 201, "{taken:?}");
    let found = caller.reconcile(&id("alice")).await.unwrap();
    let differs = &found["differences"][0];
    assert_eq!(
        (&differs["what"], &differs["id"]),
        (&json!("missing here"), &json!("r-stolen")),
        "{found}"
    );
    caller.stop().await;
    stage.alice.stop().await;
}

/// The callee has lost its copy: it is given ours again, in order.
#[tokio::test(flavor = "multi_thread")]
async fn reconciliation_sends_again_what_the_callee_lacks() {
    let stage = Stage::set().await;
    let caller = stage.caller().await;
    caller.act(&id("alice"), analyse()).await.unwrap();
    caller.act(&id("alice"), analyse()).await.unwrap();
    let had = stage.alice.entries("event").await;
    let Stage { alice, between, _served, world } = stage;
    let at_alice = alice.stop().await;
    std::fs::remove_dir_all(&at_alice.data_dir).unwrap();
    let alice = Server::start(at_alice).await;
    let stage = Stage { alice, between, _served, world };
    let found = caller.reconcile(&id("alice")).await.unwrap();
    assert_eq!((&found["resent"], &found["differences_count"]), (&json!(5), &json!(0)), "{found}");
    assert_eq!(stage.alice.entries("event").await, had);
    caller.stop().await;
    stage.alice.stop().await;
}

/// The callee refuses an event, and says why: the next record says the same.
#[tokio::test(flavor = "multi_thread")]
async fn s7_consent_is_given_anew_for_the_reason_that_the_callee_names() {
    let stage = Stage::set().await;
    let caller = stage.caller().await;
    caller.act(&id("alice"), analyse()).await.unwrap();
    let stale = |trigger: &str| json!({ "code": "consent_stale", "reconsent_trigger": trigger });
    let cases = [
        (403, stale("EXPIRY"), "EXPIRY"),
        (403, stale("CAPABILITY_CHANGE"), "CAPABILITY_CHANGE"),
        (403, json!({ "code": "consent_stale" }), "POLICY_BUMP"),
        (409, json!({ "code": "principal" }), "PRINCIPAL_CHANGE"),
        (409, json!({ "code": "capability" }), "CAPABILITY_CHANGE"),
        (429, json!({ "code": "full" }), "EXPIRY"),
    ];
    for (count, (status, error, trigger)) in (1..).zip(cases) {
        *stage.between.says.lock().unwrap() = Some((status, json!({ "error": error })));
        caller.act(&id("alice"), analyse()).await.unwrap();
        let records = stage.alice.entries("record").await;
        assert_eq!(records.len(), 1 + count, "{error}");
        assert_eq!(records[count]["reconsent_trigger"], trigger, "{error}");
    }
    // Of withdrawn consent it is given none anew until that is lifted.
    let withdrawn = json!({ "error": { "code": "withdrawn" } });
    *stage.between.says.lock().unwrap() = Some((403, withdrawn));
    let refused = caller.act(&id("alice"), analyse()).await.unwrap_err();
    assert_eq!(refused.code(), "withdrawn", "{refused}");
    caller.stop().await;
    stage.alice.stop().await;
}

/// A callee that takes its time over its copy holds up the reconciliation, and no action; what is said
/// meanwhile is no difference. One whose copy has no end is found out after a hundred differences.
#[tokio::test(flavor = "multi_thread")]
async fn bd1_actions_do_not_wait_for_a_reconciliation() {
    let stage = Stage::set().await;
    let caller = stage.caller().await;
    caller.act(&id("alice"), analyse()).await.unwrap();
    let held = stage.between.copies.clone().acquire_owned().await.unwrap();
    let reconciles = {
        let caller = caller.clone();
        tokio::spawn(async move { caller.reconcile(&id("alice")).await })
    };
    for _ in 0..3 {
        caller.act(&id("alice"), analyse()).await.unwrap();
    }
    assert!(!reconciles.is_finished());
    drop(held);
    let found = reconciles.await.unwrap().unwrap();
    assert_eq!(
        (&found["differences_count"], &found["events"], &found["events_there"]),
        (&json!(0), &json!(8), &json!(8)),
        "{found}"
    );
    stage.between.pages.store(0, Ordering::SeqCst);
    stage.between.floods.store(true, Ordering::SeqCst);
    let found = caller.reconcile(&id("alice")).await.unwrap();
    assert_eq!(found["differences_count"], 100, "{found}");
    assert!(stage.between.pages.load(Ordering::SeqCst) <= 101);
    assert_eq!(caller.act(&id("alice"), analyse()).await.unwrap_err().code(), "diverged");
    caller.stop().await;
    stage.alice.stop().await;
}
