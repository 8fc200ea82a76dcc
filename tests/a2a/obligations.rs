//! Obligations inside of messages: from a peer to the core, and the custody ack back as an artifact.

use super::{Server, Stream, TOKEN, URI, bob, echo, hello, id_of, json_of, shape, shapes};
use crate::common::web::{Mood, Service};
use crate::common::{CONSENT, World, due, ends, id, issue, revoke};
use proto::record::{Role, Terminal};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

fn obligation(server: &Server, name: &str, scope: &str) -> Value {
    json!({
        "obligation_id": name, "kind": CONSENT, "target": id("alice").to_string(),
        "payload": { "decision": "revoke", "scope": scope },
        "deadline_seconds": 60, "max_retries": 600,
        "created_at": server.handle().now().to_rfc3339(),
    })
}

fn carrying(obligation: &Value) -> Value {
    json!({ "message": {
        "messageId": obligation["obligation_id"], "role": "ROLE_USER",
        "parts": [{ "text": "an obligation" }],
        "extensions": [URI], "metadata": { URI: obligation }
    } })
}

/// As Bob.
fn bobs(server: &Server, method: &str, params: &Value) -> RequestBuilder {
    server.rpc(method, params).bearer_auth(TOKEN).header("a2a-extensions", URI)
}

async fn sent(server: &Server, obligation: &Value) -> Value {
    let answer = bobs(server, "SendMessage", &carrying(obligation)).send().await.unwrap();
    let answer = json_of(answer).await;
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"]["task"].clone()
}

fn ack(task: &Value) -> &Value {
    let artifact = &task["artifacts"][0];
    assert_eq!(artifact["artifactId"], "custody-ack", "{task}");
    assert_eq!(artifact["extensions"], json!([URI]));
    &artifact["parts"][0]["data"]
}

#[tokio::test(flavor = "multi_thread")]
async fn ab3_an_obligation_in_a_message_is_applied_once_and_its_ack_is_an_artifact() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &bob(&world))).await;
    let offer = obligation(&server, "ob-1", "s");
    let task = sent(&server, &offer).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    let first = ack(&task).clone();
    assert_eq!(
        (&first["obligation_id"], &first["status"], &first["target"]),
        (&json!("ob-1"), &json!("applied"), &json!(id("alice").to_string()))
    );
    let store = server.handle().store();
    let withheld = crate::common::granted(store, Role::Receiver, "bob", "s");
    assert_eq!(withheld, Some(false), "the core applied it");
    let commits = crate::common::commits(server.handle());
    // A copy, over the other binding: the same task, and nothing is applied again.
    let request = server.request(Method::POST, "/a2a/rest/message:send").bearer_auth(TOKEN);
    let request = request.header("a2a-extensions", URI).json(&carrying(&offer));
    let again = json_of(request.send().await.unwrap()).await;
    assert_eq!(again["task"], task);
    assert_eq!(crate::common::commits(server.handle()), commits);
    // Its ack is there after a crash, whoever asks first.
    let config = server.crash();
    let server = Server::start(config).await;
    assert_eq!(ack(&sent(&server, &offer).await), &first);
    // The same id with other content: the core's word, in a task of its own.
    let other = sent(&server, &obligation(&server, "ob-1", "t")).await;
    assert_eq!(other["status"]["state"], "TASK_STATE_REJECTED");
    assert_eq!(ack(&other)["reason"], "id_conflict");
    server.stop().await;
}

/// What was refused was not applied, whatever it was refused for.
#[tokio::test(flavor = "multi_thread")]
async fn an_obligation_whose_task_has_no_room_is_not_applied() {
    let world = World::new();
    let limits = "tasks_per_caller_max = 1\ntask_len_max = 4096";
    let server = Server::start(echo(&world, limits, &bob(&world))).await;
    let withheld =
        |scope: &str| crate::common::granted(server.handle().store(), Role::Receiver, "bob", scope);
    let refused = async |params: &Value| {
        let answer = bobs(&server, "SendMessage", params).send().await.unwrap();
        json_of(answer).await["error"]["code"].as_i64()
    };
    let mut long = carrying(&obligation(&server, "ob-long", "l"));
    long["message"]["parts"][0]["text"] = json!("x".repeat(5000));
    assert_eq!(refused(&long).await, Some(-32602));
    let slow = crate::message("m", &["x"], json!({ "delay_ms": 50_000 }));
    let slow = json!({ "message": slow, "configuration": { "returnImmediately": true } });
    let slow = json_of(bobs(&server, "SendMessage", &slow).send().await.unwrap()).await;
    let offer = obligation(&server, "ob-1", "s");
    assert_eq!(refused(&carrying(&offer)).await, Some(-32000));
    assert_eq!((withheld("l"), withheld("s")), (None, None));
    let slow = json!({ "id": slow["result"]["task"]["id"] });
    bobs(&server, "CancelTask", &slow).send().await.unwrap();
    assert_eq!(sent(&server, &offer).await["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(withheld("s"), Some(false));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dl1_an_obligation_past_its_deadline_is_declined_and_its_task_rejected() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &bob(&world))).await;
    let mut late = obligation(&server, "ob-late", "s");
    late["created_at"] = json!("2020-01-01T00:00:00Z");
    let task = sent(&server, &late).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_REJECTED");
    assert_eq!(
        (&ack(&task)["status"], &ack(&task)["reason"]),
        (&json!("declined"), &json!("expired"))
    );
    server.stop().await;
}

/// DF-1: a deferred one is WORKING, and its later ack comes to streams and webhooks; a crash between
/// loses neither.
#[tokio::test(flavor = "multi_thread")]
async fn df1_a_deferred_obligation_works_on_until_it_is_settled_even_over_a_crash() {
    let world = World::new();
    let (service, at) = Service::start().await;
    service.set(Mood::Defers);
    let handler = format!(
        "[kinds.\"{CONSENT}\"]\nhandler = {{ type = \"webhook\", url = \"http://{at}/do\" }}\n"
    );
    let server = Server::start(echo(&world, "", &format!("{}{handler}", bob(&world)))).await;
    let offer = obligation(&server, "ob-2", "s");
    let mut params = carrying(&offer);
    params["configuration"] = json!({ "returnImmediately": true });
    let answer = json_of(bobs(&server, "SendMessage", &params).send().await.unwrap()).await;
    let task = &answer["result"]["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_WORKING", "{answer}");
    let task = id_of(task);
    let stream = async |server: &Server| {
        let request = bobs(server, "SubscribeToTask", &json!({ "id": task }));
        Stream::of(request.send().await.unwrap())
    };
    // What was taken stands, whatever becomes of the call.
    let cancel = bobs(&server, "CancelTask", &json!({ "id": task })).send().await.unwrap();
    assert_eq!(json_of(cancel).await["error"]["code"], -32002);
    let first = stream(&server).await;
    let config = server.crash();
    drop(first);
    let server = Server::start(config).await;
    let mut told = stream(&server).await;
    assert_eq!(shape(&told.next().await.unwrap().1["result"]), "task WORKING");
    service.set(Mood::Applies);
    // Nobody offers it again but the node itself.
    let events = told.rest().await;
    let last = &events.last().unwrap().1["result"];
    assert_eq!(shape(last), "statusUpdate COMPLETED");
    // A copy, as custodians send them: the same task.
    let copy = json_of(bobs(&server, "SendMessage", &params).send().await.unwrap()).await;
    let copy = &copy["result"]["task"];
    assert_eq!(
        (&copy["id"], &copy["status"]["state"]),
        (&json!(task), &json!("TASK_STATE_COMPLETED"))
    );
    assert_eq!(ack(copy)["status"], "applied");
    assert_eq!(service.effects_of("ob-2"), 1, "once in effect");
    server.stop().await;
}

/// The custodian's side: to a peer that speaks nothing but A2A, by its card.
#[tokio::test(flavor = "multi_thread")]
async fn ab1_a_node_delivers_to_a_peer_that_speaks_only_a2a() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &bob(&world))).await;
    let alice = |card: &str| {
        let peer = crate::common::peer_toml("alice", None);
        let token = world.path().join("bob.token");
        format!("{peer}http_token_file = {token:?}\nagent_card = \"{card}\"\n")
    };
    let card = server.url("/.well-known/agent-card.json");
    let custodian = crate::common::start(world.config("bob", &alice(&card))).await;
    let node = custodian.handle();
    issue(&node, revoke("ob-out", "alice", "s")).await;
    ends(&node, "ob-out", Terminal::Applied).await;
    let granted =
        |scope: &str| crate::common::granted(server.handle().store(), Role::Receiver, "bob", scope);
    assert_eq!(granted("s"), Some(false));
    // While she is away it is held, and goes when she is back.
    let config = server.stop().await;
    issue(&node, revoke("ob-later", "alice", "t")).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(node.outcome(&crate::common::ob("ob-later")).unwrap(), None);
    let server = Server::start(config).await;
    ends(&node, "ob-later", Terminal::Applied).await;
    let store = server.handle().store();
    assert_eq!(crate::common::granted(store, Role::Receiver, "bob", "t"), Some(false));
    custodian.stop().await.unwrap();
    server.stop().await;
}

/// AB-4: an agent that does not know the extension answers success, and that counts for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn ab4_an_agent_that_ignores_the_obligation_discharges_nothing() {
    let world = World::new();
    let at = abhyasa::loopback::free_address().unwrap();
    let card = json!({
        "name": "polite", "capabilities": { "extensions": [{ "uri": URI }] },
        "supportedInterfaces": [{
            "url": format!("http://{at}/"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"
        }]
    });
    let done = json!({ "jsonrpc": "2.0", "id": 1, "result": {
        "task": { "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_COMPLETED" } }
    } });
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = calls.clone();
    let answer = move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        std::future::ready(axum::Json(done.clone()))
    };
    let show = move || std::future::ready(axum::Json(card.clone()));
    let router = axum::Router::new()
        .route("/card", axum::routing::get(show))
        .route("/", axum::routing::post(answer));
    let listener = tokio::net::TcpListener::bind(at).await.unwrap();
    let served = tokio::spawn(async move { axum::serve(listener, router).await });
    let peer = crate::common::peer_toml("alice", None);
    let peer = format!("{peer}agent_card = \"http://{at}/card\"\n");
    let custodian = crate::common::start(world.config("bob", &peer)).await;
    let node = custodian.handle();
    issue(&node, due(revoke("ob-void", "alice", "s"), 2)).await;
    ends(&node, "ob-void", Terminal::Escalated).await;
    assert!(calls.load(std::sync::atomic::Ordering::SeqCst) > 1, "it was tried again");
    custodian.stop().await.unwrap();
    served.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_obligation_of_a_peer_for_us_is_refused_and_makes_no_task() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &bob(&world))).await;
    let good = obligation(&server, "ob-3", "s");
    let changed = |name: &str, value: Value| {
        let mut changed = good.clone();
        changed[name] = value;
        carrying(&changed)
    };
    let code = async |request: RequestBuilder| {
        let answer = json_of(request.send().await.unwrap()).await;
        answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{answer}"))
    };
    for (params, expected) in [
        (changed("target", json!("spiffe://test/carol")), -32602),
        (changed("deadline_seconds", json!(0)), -32602),
        (changed("obligation_id", json!("")), -32602),
        (changed("kind", json!("no.such.kind")), -32000), // what Bob may not issue
    ] {
        assert_eq!(code(bobs(&server, "SendMessage", &params)).await, expected, "{params}");
    }
    // From the operator it is no peer's.
    let params = carrying(&good);
    let local = server.rpc("SendMessage", &params).header("a2a-extensions", URI);
    let local = local.send().await.unwrap();
    assert_eq!(local.status(), 403);
    assert_eq!(json_of(local).await["error"]["data"][0]["reason"], "PERMISSION_DENIED");
    // Without a word of the extension it would be taken for talk.
    let mut silent = params.clone();
    silent["message"]["extensions"] = json!([]);
    let silent = server.rpc("SendMessage", &silent).bearer_auth(TOKEN);
    assert_eq!(code(silent).await, -32602);
    // In a conversation that there is already.
    let mut inside = params.clone();
    inside["message"]["taskId"] = json!("some-task");
    assert_eq!(code(bobs(&server, "SendMessage", &inside)).await, -32602);
    let listed = json_of(bobs(&server, "ListTasks", &json!({})).send().await.unwrap()).await;
    assert_eq!(listed["result"]["totalSize"], 0);
    // And the good one still goes, streamed.
    let request = bobs(&server, "SendStreamingMessage", &params);
    let events = Stream::of(request.send().await.unwrap()).rest().await;
    let bare: Vec<(u64, Value)> =
        events.into_iter().map(|(n, e)| (n, e["result"].clone())).collect();
    assert_eq!(shapes(&bare), ["task COMPLETED"]);
    // A message without one is talk, with the extension or not.
    let talk = json!({ "message": hello("m") });
    let talk = json_of(bobs(&server, "SendMessage", &talk).send().await.unwrap()).await;
    assert_eq!(talk["result"]["task"]["artifacts"][0]["artifactId"], "echo");
    server.stop().await;
}
