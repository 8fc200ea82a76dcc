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
    // Until the agent has named its task there is nothing to cancel it by.
    let canceled = eventually("its id", async || {
        let request = alice.rpc("CancelTask", &json!({ "id": slow["id"] }));
        let answer = super::json_of(request.send().await.unwrap()).await;
        answer.get("result").cloned()
    })
    .await;
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

/// What the agent may be at work on is not called canceled.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_the_agent_may_go_on_with_is_not_canceled() {
    let world = World::new();
    let working =
        json!({ "id": "t", "contextId": "c", "status": { "state": "TASK_STATE_WORKING" } });
    let answer = move |axum::Json(call): axum::Json<Value>| {
        let task = working.clone();
        async move {
            let result = match text(&call, "/method") {
                "SendMessage" if text(&call, "/params/message/parts/0/text") == "silence" => {
                    std::future::pending::<Value>().await
                }
                "SendMessage" => json!({ "task": task }),
                _ => task,
            };
            axum::Json(json!({ "jsonrpc": "2.0", "id": 1, "result": result }))
        }
    };
    let at = agent(false, axum::routing::post(answer)).await;
    let alice =
        Server::start(config(&world, "alice", &format!("agent = \"http://{at}\""), "")).await;
    for word in ["silence", "work"] {
        let task = id_of(&alice.begin(message("m", &[word], json!({}))).await);
        alice.reaches(&task, "TASK_STATE_WORKING").await;
        assert_eq!(alice.refused("CancelTask", json!({ "id": task })).await, -32002, "{word}");
        assert_eq!(alice.get(&task).await["status"]["state"], "TASK_STATE_WORKING");
    }
    alice.stop().await;
}

/// An answer that never came to the agent: it goes on asking, and nobody knows why.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_the_agent_does_not_have_is_not_forgotten() {
    let world = World::new();
    let asks = json!({ "id": "t", "contextId": "c", "status": {
        "state": "TASK_STATE_INPUT_REQUIRED", "timestamp": "2026-01-01T00:00:00.000Z"
    } });
    let answers = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = answers.clone();
    let answer = move |axum::Json(call): axum::Json<Value>| {
        let (task, counted) = (asks.clone(), counted.clone());
        async move {
            let result = match text(&call, "/method") {
                "SendMessage" if call.pointer("/params/message/taskId") == Some(&json!("t")) => {
                    counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    std::future::pending::<Value>().await
                }
                "SendMessage" => json!({ "task": task }),
                _ => task,
            };
            axum::Json(json!({ "jsonrpc": "2.0", "id": 1, "result": result }))
        }
    };
    let at = agent(false, axum::routing::post(answer)).await;
    let alice =
        Server::start(config(&world, "alice", &format!("agent = \"http://{at}\""), "")).await;
    let task = id_of(&alice.send(hello("m-1")).await);
    let mut more = hello("m-2");
    more["taskId"] = json!(task);
    alice.begin(more).await;
    let count = || answers.load(std::sync::atomic::Ordering::SeqCst);
    eventually("the answer", async || (count() == 1).then_some(())).await;
    let alice = Server::start(alice.crash()).await;
    let failed = alice.reaches(&task, "TASK_STATE_FAILED").await;
    assert!(text(&failed, "/status/message/parts/0/text").contains("not known"), "{failed}");
    assert_eq!(count(), 1, "given once");
    alice.stop().await;
}

/// An agent that says of its one task what it is told to say, and what it was called for.
#[derive(Default)]
struct Actor {
    /// Its task now, for `GetTask`; the last one stands.
    shows: std::sync::Mutex<std::collections::VecDeque<Value>>,
    /// What it answers messages with, one after the other.
    answers: std::sync::Mutex<std::collections::VecDeque<Value>>,
    calls: std::sync::Mutex<Vec<String>>,
}

impl Actor {
    async fn start(answers: &[&str]) -> (std::sync::Arc<Self>, std::net::SocketAddr) {
        let actor = std::sync::Arc::new(Self::default());
        *actor.answers.lock().unwrap() = answers.iter().map(|state| Self::task(state)).collect();
        let this = actor.clone();
        let answer = move |axum::Json(call): axum::Json<Value>| {
            let method = text(&call, "/method").to_owned();
            let result = match method.as_str() {
                "SendMessage" => {
                    json!({ "task": this.answers.lock().unwrap().pop_front().unwrap() })
                }
                _ => {
                    let mut shows = this.shows.lock().unwrap();
                    let last =
                        if shows.len() > 1 { shows.pop_front() } else { shows.front().cloned() };
                    last.unwrap()
                }
            };
            this.calls.lock().unwrap().push(method);
            async move { axum::Json(json!({ "jsonrpc": "2.0", "id": 1, "result": result })) }
        };
        let at = agent(false, axum::routing::post(answer)).await;
        (actor, at)
    }

    /// Its task in a state; since when tells one state from another of its name.
    fn task(state: &str) -> Value {
        let (state, since) = state.split_once('@').unwrap_or((state, "1"));
        let done = (state == "COMPLETED")
            .then(|| json!([{ "artifactId": "x", "parts": [{ "text": "done" }] }]));
        json!({ "id": "t", "contextId": "c", "artifacts": done.unwrap_or(json!([])), "status": {
            "state": format!("TASK_STATE_{state}"), "timestamp": format!("2026-01-01T00:00:0{since}.000Z")
        } })
    }

    fn shows(&self, states: &[&str]) {
        *self.shows.lock().unwrap() = states.iter().map(|state| Self::task(state)).collect();
    }

    fn sent(&self) -> usize {
        self.calls.lock().unwrap().iter().filter(|method| *method == "SendMessage").count()
    }
}

/// Who authorizes may do it without a message, so the agent goes on by itself; and nothing is sent to it
/// anew for that, over a crash too.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_waits_for_an_authorization_is_followed_to_its_end() {
    let world = World::new();
    let (actor, at) = Actor::start(&["AUTH_REQUIRED"]).await;
    actor.shows(&["AUTH_REQUIRED"]);
    let alice =
        Server::start(config(&world, "alice", &format!("agent = \"http://{at}\""), "")).await;
    let task = id_of(&alice.send(hello("m-1")).await);
    assert_eq!(alice.get(&task).await["status"]["state"], "TASK_STATE_AUTH_REQUIRED");
    let alice = Server::start(alice.crash()).await;
    let looked = actor.calls.lock().unwrap().len();
    eventually("a look", async || (actor.calls.lock().unwrap().len() > looked).then_some(())).await;
    assert_eq!(alice.get(&task).await["status"]["state"], "TASK_STATE_AUTH_REQUIRED");
    actor.shows(&["COMPLETED"]);
    let done = alice.reaches(&task, "TASK_STATE_COMPLETED").await;
    assert_eq!(done["artifacts"][0]["parts"][0]["text"], "done");
    assert_eq!(actor.sent(), 1, "given once");
    alice.stop().await;
}

/// The client may also say more, which then is the turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_takes_the_place_of_the_wait_for_an_authorization() {
    let world = World::new();
    let (actor, at) = Actor::start(&["AUTH_REQUIRED", "COMPLETED"]).await;
    actor.shows(&["AUTH_REQUIRED"]);
    let alice =
        Server::start(config(&world, "alice", &format!("agent = \"http://{at}\""), "")).await;
    let task = id_of(&alice.send(hello("m-1")).await);
    let mut more = hello("m-2");
    more["taskId"] = json!(task);
    let done = alice.send(more).await;
    assert_eq!(done["status"]["state"], "TASK_STATE_COMPLETED", "{done}");
    assert_eq!(actor.sent(), 2);
    alice.stop().await;
}

/// Between the question and the answer the agent's task may have ended, or gone on.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_looked_at_before_it_is_told_more() {
    let world = World::new();
    let (actor, at) = Actor::start(&["INPUT_REQUIRED", "INPUT_REQUIRED", "COMPLETED"]).await;
    let alice =
        Server::start(config(&world, "alice", &format!("agent = \"http://{at}\""), "")).await;
    let turn = async || {
        let task = id_of(&alice.send(hello("m-1")).await);
        assert_eq!(alice.get(&task).await["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
        let mut more = hello("m-2");
        more["taskId"] = json!(task);
        actor.calls.lock().unwrap().clear();
        let done = alice.send(more).await;
        assert_eq!(done["status"]["state"], "TASK_STATE_COMPLETED", "{done}");
        assert_eq!(done["artifacts"][0]["parts"][0]["text"], "done");
        actor.calls.lock().unwrap().clone()
    };
    actor.shows(&["COMPLETED"]);
    assert_eq!(turn().await, ["GetTask"], "nobody is there to be told");
    // What it is at work on it is not disturbed in.
    actor.shows(&["WORKING", "WORKING", "INPUT_REQUIRED@2"]);
    assert_eq!(turn().await, ["GetTask", "GetTask", "GetTask", "SendMessage"]);
    alice.stop().await;
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
