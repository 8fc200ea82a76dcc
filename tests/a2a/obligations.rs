//! Obligations inside of messages: from a peer to the core, and the custody ack back as an artifact.

use super::{Server, Stream, TOKEN, URI, bob, echo, hello, id_of, json_of, shape, shapes};
use crate::common::web::{Mood, Service};
use crate::common::{CONSENT, World, eventually, id};
use proto::record::Role;
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
    let settled = eventually("the ack", async || {
        // The custodian offers again, as custodians do; the task of it is the same.
        let copy = json_of(bobs(&server, "SendMessage", &params).send().await.unwrap()).await;
        let copy = &copy["result"]["task"];
        assert_eq!(copy["id"], task.as_str(), "{copy}");
        (copy["status"]["state"] == "TASK_STATE_COMPLETED").then(|| copy.clone())
    })
    .await;
    assert_eq!(ack(&settled)["status"], "applied");
    assert_eq!(service.effects_of("ob-2"), 1, "once in effect");
    let events = told.rest().await;
    let last = &events.last().unwrap().1["result"];
    assert_eq!(shape(last), "statusUpdate COMPLETED");
    server.stop().await;
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
