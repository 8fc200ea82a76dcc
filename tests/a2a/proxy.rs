//! An A2A agent behind the node: here that of another node, which may go away.

use super::{Server, Stream, config, hello, id_of, message, shapes, text};
use crate::common::{World, eventually};
use reqwest::Method;
use serde_json::{Value, json};

/// Carol's echo agent, and Alice's node in front of it.
async fn pair(world: &World, more: &str) -> (Server, Server) {
    let carol = Server::start(config(world, "carol", "agent = \"echo\"", "")).await;
    let agent = format!("agent = \"{}\"\n{more}", carol.url("/"));
    let alice = Server::start(config(world, "alice", &agent, "")).await;
    (alice, carol)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_behind_does_the_work_and_its_card_is_ours() {
    let world = World::new();
    let (alice, carol) = pair(&world, "").await;
    let card = alice.http.get(alice.url("/.well-known/agent-card.json")).send().await.unwrap();
    let card = super::json_of(card).await;
    assert_eq!(card["skills"][0]["id"], "echo");
    assert_eq!(text(&card, "/supportedInterfaces/0/url"), alice.url("/a2a"));
    let task = alice.send(hello("m-1")).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "hello");
    let theirs = carol.call("ListTasks", json!({})).await;
    assert_eq!(theirs["totalSize"], 1);
    assert_ne!(theirs["tasks"][0]["id"], task["id"], "each has its own ids");
    let failed = alice.send(message("m-2", &["x"], json!({ "fail": "no luck" }))).await;
    assert_eq!(failed["status"]["state"], "TASK_STATE_FAILED");
    assert_eq!(failed["status"]["message"]["parts"][0]["text"], "no luck");
    assert_eq!(failed["status"]["message"]["taskId"], failed["id"]);
    alice.stop().await;
    carol.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_questions_and_cancels_go_through() {
    let world = World::new();
    let (alice, carol) = pair(&world, "").await;
    let slow = json!({ "message": message("m", &["a", "b"], json!({ "delay_ms": 30 })) });
    let request = alice.request(Method::POST, "/a2a/rest/message:stream").json(&slow);
    let events = Stream::of(request.send().await.unwrap()).rest().await;
    assert_eq!(
        shapes(&events),
        [
            "task SUBMITTED",
            "statusUpdate WORKING",
            "artifactUpdate a",
            "artifactUpdate b",
            "statusUpdate COMPLETED"
        ]
    );
    let asked = alice.send(message("m", &["?"], json!({ "ask": true }))).await;
    assert_eq!(asked["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    assert_eq!(asked["status"]["message"]["parts"][0]["text"], "What shall I say?");
    let answer = json!({
        "messageId": "m-2", "taskId": id_of(&asked), "role": "ROLE_USER",
        "parts": [{ "text": "this" }]
    });
    let answered = alice.send(answer).await;
    assert_eq!(answered["status"]["state"], "TASK_STATE_COMPLETED", "{answered}");
    assert_eq!(answered["artifacts"][0]["parts"][0]["text"], "this");

    let slow = message("m-3", &["x"], json!({ "delay_ms": 50_000 }));
    let slow = alice.begin(slow).await;
    let of_state = async |state: &str| {
        let params = json!({ "status": state });
        carol.call("ListTasks", params).await["totalSize"].as_u64().unwrap()
    };
    eventually("work", async || (of_state("TASK_STATE_WORKING").await == 1).then_some(())).await;
    let canceled = alice.call("CancelTask", json!({ "id": slow["id"] })).await;
    assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    assert_eq!(of_state("TASK_STATE_CANCELED").await, 1, "the agent stopped too");
    alice.stop().await;
    carol.stop().await;
}

/// Whichever of the two goes down: the work is done once, and the task ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_followed_over_crashes_of_the_node_and_of_the_agent() {
    let world = World::new();
    let (alice, carol) = pair(&world, "").await;
    let parts = ["a", "b", "c", "d", "e", "f"];
    let slow = message("m", &parts, json!({ "delay_ms": 300 }));
    let task = id_of(&alice.begin(slow).await);
    let said = |task: &Value| {
        let parts = task["artifacts"][0]["parts"].as_array().cloned().unwrap_or_default();
        parts.iter().map(|part| text(part, "/text").to_owned()).collect::<Vec<_>>()
    };
    let hears = async |server: &Server, count: usize| {
        eventually("parts", async || (said(&server.get(&task).await).len() >= count).then_some(()))
            .await;
    };
    hears(&alice, 1).await;
    let alice = Server::start(alice.crash()).await;
    hears(&alice, 2).await;
    let carol = Server::start(carol.crash()).await;
    let done = alice.reaches(&task, "TASK_STATE_COMPLETED").await;
    assert_eq!(said(&done), parts);
    assert_eq!(carol.call("ListTasks", json!({})).await["totalSize"], 1, "sent once");
    alice.stop().await;
    carol.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_not_there_fails_the_task_in_time_and_one_that_comes_is_found() {
    let world = World::new();
    let (alice, carol) = pair(&world, "agent_silent_seconds_max = 1").await;
    let carols = carol.stop().await;
    // Its card is known for a while yet; the agent is not there.
    let task = alice.send(hello("m-1")).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_FAILED");
    assert!(text(&task, "/status/message/parts/0/text").contains("agent"), "{task}");
    let carol = Server::start(carols).await;
    let task = eventually("the agent", async || {
        let task = alice.send(hello("m-2")).await;
        (task["status"]["state"] == "TASK_STATE_COMPLETED").then_some(task)
    })
    .await;
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "hello");
    alice.stop().await;
    carol.stop().await;
}

/// One that takes the message and never begins to answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_never_answers_fails_the_task_in_time() {
    let world = World::new();
    for streaming in [false, true] {
        let silent = axum::routing::post(std::future::pending::<&str>);
        let at = agent(streaming, silent).await;
        let agent = format!("agent = \"http://{at}\"\nagent_silent_seconds_max = 1");
        let name = if streaming { "alice" } else { "carol" };
        let alice = Server::start(config(&world, name, &agent, "")).await;
        let task = alice.send(hello("m")).await;
        assert_eq!(task["status"]["state"], "TASK_STATE_FAILED", "{task}");
        assert!(text(&task, "/status/message/parts/0/text").contains("silent"), "{task}");
        alice.stop().await;
    }
}

/// An agent made of one route, and where it listens.
async fn agent(streaming: bool, route: axum::routing::MethodRouter) -> std::net::SocketAddr {
    let at = abhyasa::loopback::free_address().unwrap();
    let card = json!({
        "name": "odd", "capabilities": { "streaming": streaming },
        "supportedInterfaces": [{
            "url": format!("http://{at}/"), "protocolBinding": "JSONRPC", "protocolVersion": "1.0"
        }],
        "skills": [{ "id": "s", "name": "s", "description": "s", "tags": ["s"] }]
    });
    let show = move || std::future::ready(axum::Json(card.clone()));
    let router = axum::Router::new()
        .route("/.well-known/agent-card.json", axum::routing::get(show))
        .route("/", route);
    let listener = tokio::net::TcpListener::bind(at).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    at
}

/// An agent that says things no A2A agent says.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_makes_no_sense_fails_the_task() {
    let world = World::new();
    let answers = [
        "no json",
        "{}",
        r#"{"jsonrpc":"2.0","id":1,"result":{"other":{}}}"#,
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"broken inside"}}"#,
    ];
    let answer = move |axum::Json(call): axum::Json<Value>| async move {
        let n: usize = text(&call, "/params/message/parts/0/text").parse().unwrap();
        answers[n]
    };
    let at = agent(false, axum::routing::post(answer)).await;
    let agent = format!("agent = \"http://{at}\"\nagent_silent_seconds_max = 2");
    let alice = Server::start(config(&world, "alice", &agent, "")).await;
    for (n, answer) in answers.iter().enumerate() {
        let task = alice.send(message("m", &[n.to_string().as_str()], json!({}))).await;
        assert_eq!(task["status"]["state"], "TASK_STATE_FAILED", "{answer}: {task}");
    }
    alice.stop().await;
}
