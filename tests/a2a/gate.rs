//! The gate: what a call of the agent needs, before it runs and while it does.

use super::{
    Server, Stream, TOKEN, bob, config, echo, hello, id_of, json_of, message, shape, text,
};
use crate::common::{CONSENT, World, eventually, id};
use reqwest::Method;
use serde_json::{Value, json};

/// Bob may call while he, as principal, grants what `calls` need.
fn gated(world: &World, calls: &str, more: &str) -> String {
    let rule = "scope = \"calendar.read\"\nprincipal = \"caller\"\n";
    format!("{}[[gate]]\ncalls = [{calls}]\n{rule}{more}", bob(world))
}

async fn as_bob(server: &Server, method: &str, params: &Value) -> Value {
    json_of(server.rpc(method, params).bearer_auth(TOKEN).send().await.unwrap()).await
}

/// An obligation of Bob, applied.
async fn decides(server: &Server, name: &str, sequence: u64, decision: &str) {
    let obligation = json!({
        "obligation_id": name, "kind": CONSENT, "target": id("alice").to_string(),
        "payload": { "decision": decision, "scope": "calendar.read", "sequence": sequence },
        "deadline_seconds": 60, "max_retries": 600,
        "created_at": server.handle().now().to_rfc3339(),
    });
    let request = server.http.post(server.url("/abhyasa/obligations")).bearer_auth(TOKEN);
    let answer = json_of(request.json(&obligation).send().await.unwrap()).await;
    assert_eq!(answer["status"], "applied", "{answer}");
}

fn refusal(answer: &Value) -> (&str, &str) {
    (text(answer, "/error/message"), text(answer, "/error/data/0/reason"))
}

/// Fail closed: what was never granted is not allowed; then granted; then withdrawn.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_blocks_new_calls_and_ends_those_that_run() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &gated(&world, "\"a2a:*\"", ""))).await;
    let call = json!({ "message": hello("m-1") });
    let answer = as_bob(&server, "SendMessage", &call).await;
    assert_eq!(
        refusal(&answer),
        ("authority withheld: calendar.read of spiffe://test/bob is unknown", "PERMISSION_DENIED")
    );
    decides(&server, "grant-1", 1, "grant").await;
    let answer = as_bob(&server, "SendMessage", &call).await;
    assert_eq!(answer["result"]["task"]["status"]["state"], "TASK_STATE_COMPLETED", "{answer}");
    // One at work, one that waits for its client.
    let slow = json!({ "message": message("m-2", &["a", "b"], json!({ "delay_ms": 40_000 })) });
    let request = server.rpc("SendStreamingMessage", &slow).bearer_auth(TOKEN);
    let mut stream = Stream::of(request.send().await.unwrap());
    let (_, first) = stream.next().await.unwrap();
    assert_eq!(shape(&first["result"]), "task SUBMITTED");
    let asks = json!({ "message": message("m-3", &["?"], json!({ "ask": true })) });
    let asks = id_of(&as_bob(&server, "SendMessage", &asks).await["result"]["task"]);
    decides(&server, "revoke-1", 2, "revoke").await;
    let rest = stream.rest().await;
    let (_, last) = rest.last().unwrap();
    assert_eq!(shape(&last["result"]), "statusUpdate CANCELED");
    let why = text(last, "/result/statusUpdate/status/message/parts/0/text");
    assert!(
        why.starts_with("authority withheld: calendar.read of") && why.contains("revoke-1"),
        "{why}"
    );
    let data = &last["result"]["statusUpdate"]["status"]["message"]["metadata"]["abhyasa.withheld"];
    assert_eq!((&data["why"], &data["obligation_id"]), (&json!("withheld"), &json!("revoke-1")));
    eventually("its end", async || {
        let task = as_bob(&server, "GetTask", &json!({ "id": asks })).await;
        (task["result"]["status"]["state"] == "TASK_STATE_CANCELED").then_some(())
    })
    .await;
    let answer = as_bob(&server, "SendMessage", &call).await;
    assert!(refusal(&answer).0.contains("withheld, by obligation revoke-1"), "{answer}");
    // And over a restart.
    let server = Server::start(server.crash()).await;
    let answer = as_bob(&server, "SendMessage", &call).await;
    assert_eq!(refusal(&answer).1, "PERMISSION_DENIED");
    // Who is on this machine acts for nobody but this node.
    assert_eq!(server.send(hello("m")).await["status"]["state"], "TASK_STATE_COMPLETED");
    // Results of what ran before are still there.
    assert_eq!(as_bob(&server, "ListTasks", &json!({})).await["result"]["totalSize"], 3);
    server.stop().await;
}

/// A message that names a skill needs what that skill needs; one that names none, what any does.
#[tokio::test(flavor = "multi_thread")]
async fn a_rule_for_one_skill_leaves_the_others_alone() {
    let world = World::new();
    let rules = gated(&world, "\"a2a:book\"", "");
    let server = Server::start(echo(&world, "", &rules)).await;
    let mut named = hello("m");
    named["metadata"]["abhyasa.skill"] = json!("echo");
    let answer = as_bob(&server, "SendMessage", &json!({ "message": named })).await;
    assert_eq!(refusal(&answer).1, "PERMISSION_DENIED", "it is only said: {answer}");
    let mut config = server.stop().await;
    config.a2a.skills_believed = true;
    let server = Server::start(config).await;
    let of = async |skill: Option<&str>| {
        let mut message = hello("m");
        if let Some(skill) = skill {
            message["metadata"]["abhyasa.skill"] = json!(skill);
        }
        let answer = as_bob(&server, "SendMessage", &json!({ "message": message })).await;
        answer.get("error").is_none()
    };
    assert_eq!(
        (of(Some("echo")).await, of(Some("book")).await, of(None).await),
        (true, false, false)
    );
    decides(&server, "grant-1", 1, "grant").await;
    assert_eq!((of(Some("book")).await, of(None).await), (true, true));
    server.stop().await;
}

/// The agent behind hears that it is to stop, over its own protocol; and one whose work was not
/// begun when the node went down does not begin it.
#[tokio::test(flavor = "multi_thread")]
async fn the_agent_behind_is_told_to_stop() {
    let world = World::new();
    let carol = Server::start(config(&world, "carol", "agent = \"echo\"", "")).await;
    let agent = format!("agent = \"{}\"", carol.url("/"));
    let rules = gated(&world, "\"a2a:*\"", "unknown = \"allow\"\n");
    let alice = Server::start(config(&world, "alice", &agent, &rules)).await;
    let slow = message("m", &["a"], json!({ "delay_ms": 40_000 }));
    let params = json!({ "message": slow, "configuration": { "returnImmediately": true } });
    let task = id_of(&as_bob(&alice, "SendMessage", &params).await["result"]["task"]);
    let theirs = async |state: &str| {
        let params = json!({ "status": state });
        let listed = carol.call("ListTasks", params).await;
        (listed["totalSize"] == 1).then_some(())
    };
    eventually("work", async || theirs("TASK_STATE_WORKING").await).await;
    // Before the agent has named its task there is nothing to cancel it by.
    eventually("its id", async || {
        let params = json!({ "id": task });
        let found = as_bob(&alice, "GetTask", &params).await;
        (found["result"]["status"]["state"] == "TASK_STATE_WORKING").then_some(())
    })
    .await;
    decides(&alice, "revoke-1", 1, "revoke").await;
    eventually("the end there", async || theirs("TASK_STATE_CANCELED").await).await;
    let params = json!({ "id": task });
    let found = as_bob(&alice, "GetTask", &params).await;
    assert_eq!(found["result"]["status"]["state"], "TASK_STATE_CANCELED");
    alice.stop().await;
    carol.stop().await;
}

/// What this node itself lets a peer do.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_may_be_the_principal() {
    let world = World::new();
    let rule =
        "[[gate]]\ncalls = [\"a2a:*\"]\nscope = \"s\"\nprincipal = \"self\"\nunknown = \"allow\"\n";
    let server = Server::start(echo(&world, "", &format!("{}{rule}", bob(&world)))).await;
    let call = json!({ "message": hello("m-1") });
    assert!(as_bob(&server, "SendMessage", &call).await.get("error").is_none());
    // Withheld here from the moment it is issued, whether Bob is there or not.
    crate::common::issue(server.handle(), crate::common::revoke("r-1", "bob", "s")).await;
    let answer = as_bob(&server, "SendMessage", &call).await;
    assert_eq!(refusal(&answer).1, "PERMISSION_DENIED", "{answer}");
    let rest = server.request(Method::POST, "/a2a/rest/message:send").bearer_auth(TOKEN);
    assert_eq!(rest.json(&call).send().await.unwrap().status(), 403);
    server.stop().await;
}
