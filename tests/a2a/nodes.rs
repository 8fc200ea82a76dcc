//! Two nodes: the agent is behind one of them, and its clients speak to the other, which calls over
//! native QUIC or HTTP/3.

use super::quic::BINDING;
use super::{Server, Stream, config, hello, id_of, json_of, message, shapes, text};
use crate::common::raw::identity;
use crate::common::{World, eventually, id, peer_toml};
use abhyasa::loopback::free_address;
use abhyasa::tls::{ALPN_A2A, ALPN_H3};
use axum::http;
use bytes::{Buf as _, Bytes};
use reqwest::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::watch;

/// Who goes away without a word is missed soon.
const QUICK: &str = "[quic]\nidle_timeout_ms = 2000\nkeep_alive_ms = 300\n";

/// How Alice's node calls Carol's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Over {
    Quic,
    Http3,
}

/// Each of these stories over each.
macro_rules! over_each {
    ($($story:ident)*) => {
        mod over_quic {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $story() {
                super::$story(super::Over::Quic).await;
            })*
        }
        mod over_http3 {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $story() {
                super::$story(super::Over::Http3).await;
            })*
        }
    };
}

over_each! {
    the_agent_behind_another_node_does_the_work_and_its_card_is_ours
    questions_and_cancels_go_to_the_other_node_and_back
    ps1_a_task_over_two_nodes_survives_crashes_of_either_and_each_event_comes_once
    a_node_that_is_not_there_fails_the_task_in_time_and_one_that_comes_is_found
    a_message_that_was_not_answered_before_a_crash_is_sent_again_under_its_name
    a_stream_that_was_cut_is_followed_behind_the_last_event_that_was_heard
    more_tasks_than_one_connection_has_streams_are_followed_and_canceled
}

/// Alice's node in front of the agent behind Carol's, who is there or will be.
fn in_front(
    world: &World,
    over: Over,
    carol: SocketAddr,
    more: &str,
) -> abhyasa::config::NodeConfig {
    let over = match over {
        Over::Quic => "quic",
        Over::Http3 => "http3",
    };
    let agent = format!("agent = \"{}\"\nagent_over = \"{over}\"\n{more}", id("carol"));
    config(world, "alice", &agent, &format!("{QUICK}{}", peer_toml("carol", Some(carol))))
}

/// Carol's node, with an agent of its own.
fn behind(world: &World, over: Over, at: SocketAddr) -> abhyasa::config::NodeConfig {
    let api = format!("[api]\nhttp3 = {}\n", over == Over::Http3);
    let more = format!("{api}{QUICK}{}", peer_toml("alice", None));
    let mut carol = config(world, "carol", "agent = \"echo\"", &more);
    carol.quic.listen = at;
    carol
}

async fn pair(world: &World, over: Over) -> (Server, Server) {
    let at = free_address().unwrap();
    let carol = Server::start(behind(world, over, at)).await;
    (Server::start(in_front(world, over, at, "")).await, carol)
}

/// The parts of a task's result.
fn said(task: &Value) -> Vec<String> {
    let parts = task["artifacts"][0]["parts"].as_array().cloned().unwrap_or_default();
    parts.iter().map(|part| text(part, "/text").to_owned()).collect()
}

/// What all clients of Alice hear of a task, from its beginning.
async fn told(alice: &Server, task: &str) -> Vec<String> {
    shapes(&alice.subscribe(task, Some(0)).await.rest().await)
}

async fn the_agent_behind_another_node_does_the_work_and_its_card_is_ours(over: Over) {
    let world = World::new();
    let (alice, carol) = pair(&world, over).await;
    let card = alice.http.get(alice.url("/.well-known/agent-card.json")).send().await.unwrap();
    let card = json_of(card).await;
    assert_eq!(card["skills"][0]["id"], "echo");
    assert_eq!(text(&card, "/supportedInterfaces/0/url"), alice.url("/a2a"));
    let extensions = card["capabilities"]["extensions"].as_array().unwrap();
    assert_eq!(extensions.len(), 1, "hers, and not Carol's too: {card}");
    let task = alice.send(hello("m-1")).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(said(&task), ["hello"]);
    let failed = alice.send(message("m-2", &["x"], json!({ "fail": "no luck" }))).await;
    assert_eq!(failed["status"]["state"], "TASK_STATE_FAILED");
    assert_eq!(failed["status"]["message"]["parts"][0]["text"], "no luck");
    let slow = json!({ "message": message("m", &["a", "b"], json!({ "delay_ms": 30 })) });
    let request = alice.request(Method::POST, "/a2a/rest/message:stream").json(&slow);
    let events = Stream::of(request.send().await.unwrap()).rest().await;
    let chunks = [
        "task SUBMITTED",
        "statusUpdate WORKING",
        "artifactUpdate a",
        "artifactUpdate b",
        "statusUpdate COMPLETED",
    ];
    assert_eq!(shapes(&events), chunks);
    alice.stop().await;
    carol.stop().await;
}

async fn questions_and_cancels_go_to_the_other_node_and_back(over: Over) {
    let world = World::new();
    let (alice, carol) = pair(&world, over).await;
    let asked = alice.send(message("m", &["?"], json!({ "ask": true }))).await;
    assert_eq!(asked["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    assert_eq!(asked["status"]["message"]["parts"][0]["text"], "What shall I say?");
    let mut answer = message("m-2", &["this"], json!({}));
    answer["taskId"] = asked["id"].clone();
    let answered = alice.send(answer).await;
    assert_eq!(answered["status"]["state"], "TASK_STATE_COMPLETED", "{answered}");
    assert_eq!(said(&answered), ["this"]);

    let slow = alice.begin(message("m-3", &["x"], json!({ "delay_ms": 50_000 }))).await;
    // Until the agent has named its task there is nothing to cancel it by.
    let canceled = eventually("its id", async || {
        let request = alice.rpc("CancelTask", &json!({ "id": slow["id"] }));
        json_of(request.send().await.unwrap()).await.get("result").cloned()
    })
    .await;
    assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    assert_eq!(alice.get(&id_of(&slow)).await["status"]["state"], "TASK_STATE_CANCELED");
    alice.stop().await;
    carol.stop().await;
}

/// Whichever of the two goes down, with a word or without: each event comes once, and the task ends.
async fn ps1_a_task_over_two_nodes_survives_crashes_of_either_and_each_event_comes_once(
    over: Over,
) {
    let world = World::new();
    let (alice, carol) = pair(&world, over).await;
    let parts = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let slow = message("m", &parts, json!({ "delay_ms": 300 }));
    let task = id_of(&alice.begin(slow).await);
    let hears = async |server: &Server, count: usize| {
        eventually("parts", async || (said(&server.get(&task).await).len() >= count).then_some(()))
            .await;
    };
    hears(&alice, 1).await;
    let alice = Server::start(alice.crash()).await;
    hears(&alice, 2).await;
    let carol = Server::start(carol.crash()).await;
    hears(&alice, 4).await;
    let carol = Server::start(carol.stop().await).await;
    let done = alice.reaches(&task, "TASK_STATE_COMPLETED").await;
    assert_eq!(said(&done), parts);
    let expected: Vec<String> = ["task SUBMITTED", "statusUpdate WORKING"]
        .into_iter()
        .map(str::to_owned)
        .chain(parts.iter().map(|part| format!("artifactUpdate {part}")))
        .chain(["statusUpdate COMPLETED".to_owned()])
        .collect();
    assert_eq!(told(&alice, &task).await, expected);
    alice.stop().await;
    carol.stop().await;
}

async fn a_node_that_is_not_there_fails_the_task_in_time_and_one_that_comes_is_found(over: Over) {
    let world = World::new();
    let at = free_address().unwrap();
    let alice = Server::start(in_front(&world, over, at, "agent_silent_seconds_max = 1")).await;
    let task = alice.send(hello("m-1")).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_FAILED");
    assert!(text(&task, "/status/message/parts/0/text").contains("carol"), "{task}");
    let carol = Server::start(behind(&world, over, at)).await;
    let task = eventually("the agent", async || {
        let task = alice.send(hello("m-2")).await;
        (task["status"]["state"] == "TASK_STATE_COMPLETED").then_some(task)
    })
    .await;
    assert_eq!(said(&task), ["hello"]);
    alice.stop().await;
    carol.stop().await;
}

/// Carol's node, made of bare quinn and h3: it loses its connection in the middle of a stream, and tells
/// what it was asked.
struct Bare {
    asked: Mutex<Vec<(String, Option<String>)>>,
    /// Names of the messages that came.
    keys: Mutex<Vec<String>>,
    /// Whether it says nothing to messages.
    silent: AtomicBool,
    /// Told when it is to lose its connections.
    kill: watch::Sender<u64>,
}

type Resolver = h3::server::RequestResolver<h3_quinn::Connection, Bytes>;

impl Bare {
    fn start(world: &World, over: Over, at: SocketAddr) -> Arc<Self> {
        let bare = Arc::new(Self {
            asked: Mutex::default(),
            keys: Mutex::default(),
            silent: AtomicBool::new(false),
            kill: watch::Sender::new(0),
        });
        let transport = Arc::new(quinn::TransportConfig::default());
        let alpn = if over == Over::Quic { ALPN_A2A } else { ALPN_H3 };
        let server = identity(world, &id("carol")).server(&[alpn], transport).unwrap();
        let endpoint = quinn::Endpoint::server(server, at).unwrap();
        let this = bare.clone();
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let this = this.clone();
                tokio::spawn(async move {
                    let Ok(connection) = incoming.await else { return };
                    match over {
                        Over::Quic => this.serve(connection).await,
                        Over::Http3 => this.serve_http(connection).await,
                    }
                });
            }
        });
        bare
    }

    async fn serve(self: Arc<Self>, connection: quinn::Connection) {
        while let Ok((send, recv)) = connection.accept_bi().await {
            tokio::spawn(self.clone().answer(connection.clone(), send, recv));
        }
    }

    async fn serve_http(self: Arc<Self>, connection: quinn::Connection) {
        let quic = h3_quinn::Connection::new(connection.clone());
        let mut http = h3::server::builder().build(quic).await.unwrap();
        while let Ok(Some(resolver)) = http.accept().await {
            tokio::spawn(self.clone().answer_http(connection.clone(), resolver));
        }
    }

    async fn answer(
        self: Arc<Self>,
        connection: quinn::Connection,
        mut send: quinn::SendStream,
        recv: quinn::RecvStream,
    ) {
        let mut killed = self.kill.subscribe();
        let mut line = String::new();
        BufReader::new(recv).read_line(&mut line).await.unwrap();
        let asked: Value = serde_json::from_str(&line).unwrap();
        let parameters = &asked["a2a-service-parameters"];
        assert_eq!(parameters["A2A-Version"], "1.0");
        let parameter = |name: &str| parameters[name].as_str().map(str::to_owned);
        let (key, cursor) = (parameter("Idempotency-Key"), parameter("Last-Event-ID"));
        let (events, cut) = self.says(text(&asked, "/method"), key, cursor);
        for (number, result) in events {
            let mut line = json!({ "jsonrpc": "2.0", "id": null, "result": result });
            if let Some(number) = number {
                line["event"] = json!(number);
            }
            send.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        }
        if cut {
            killed.changed().await.unwrap();
            connection.close(0u32.into(), b"killed");
        }
        let _ = send.finish();
    }

    async fn answer_http(self: Arc<Self>, connection: quinn::Connection, resolver: Resolver) {
        let mut killed = self.kill.subscribe();
        let (head, mut stream) = resolver.resolve_request().await.unwrap();
        let mut body = Vec::new();
        while let Some(mut data) = stream.recv_data().await.unwrap() {
            body.extend_from_slice(&data.copy_to_bytes(data.remaining()));
        }
        let header = |name: &str| {
            let value = head.headers().get(name).map(|value| value.to_str().unwrap());
            value.map(str::to_owned)
        };
        let method = if head.method() == Method::GET {
            assert_eq!(head.uri().path(), "/.well-known/agent-card.json");
            "GetAgentCard".to_owned()
        } else {
            assert_eq!(head.uri().path(), "/a2a");
            assert_eq!(header("a2a-version").as_deref(), Some("1.0"));
            assert_eq!(header("content-type").as_deref(), Some("application/json"));
            text(&serde_json::from_slice(&body).unwrap(), "/method").to_owned()
        };
        let (events, cut) = self.says(&method, header("idempotency-key"), header("last-event-id"));
        let streams = events.iter().any(|(number, _)| number.is_some());
        if !events.is_empty() {
            let media = if streams { "text/event-stream" } else { "application/json" };
            let head = http::Response::builder().header("content-type", media).body(()).unwrap();
            stream.send_response(head).await.unwrap();
        }
        for (number, result) in events {
            let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": result });
            let data = match number {
                Some(number) => format!(":\n\nid: {number}\ndata: {answer}\n\n"),
                None if method == "GetAgentCard" => result.to_string(),
                None => answer.to_string(),
            };
            stream.send_data(data.into()).await.unwrap();
        }
        if cut {
            killed.changed().await.unwrap();
            connection.close(0u32.into(), b"killed");
        }
        let _ = stream.finish().await;
    }

    /// What it answers, with numbers where they are events, and whether its connection is lost then.
    fn says(
        &self,
        method: &str,
        key: Option<String>,
        cursor: Option<String>,
    ) -> (Vec<(Option<u64>, Value)>, bool) {
        let part = |text: &str, more: bool| {
            json!({ "artifactUpdate": { "taskId": "t", "contextId": "c", "append": more,
                "artifact": { "artifactId": "x", "parts": [{ "text": text }] } } })
        };
        let status = |state: &str| json!({ "state": format!("TASK_STATE_{state}") });
        let task = json!({ "id": "t", "contextId": "c", "status": status("WORKING") });
        let ends = json!({ "statusUpdate": { "taskId": "t", "contextId": "c", "status": status("COMPLETED") } });
        let says = match method {
            "GetAgentCard" => {
                let interface = |url: &str, binding: &str| json!({ "url": url, "protocolBinding": binding, "protocolVersion": "1.0" });
                let card = json!({
                    "name": "bare", "capabilities": { "streaming": true },
                    "supportedInterfaces": [
                        interface("quic://carol:1", BINDING),
                        interface("https://proxy.example.org/carol/a2a", "JSONRPC")
                    ],
                    "skills": [{ "id": "s", "name": "s", "description": "s", "tags": ["s"] }]
                });
                return (vec![(None, card)], false);
            }
            "SendStreamingMessage" => {
                self.keys.lock().unwrap().push(key.unwrap());
                if self.silent.load(Ordering::SeqCst) {
                    return (Vec::new(), true);
                }
                (vec![(Some(1), json!({ "task": task })), (Some(2), part("a", false))], true)
            }
            "SubscribeToTask" if cursor.is_some() => {
                (vec![(Some(3), part("b", true)), (Some(4), ends)], false)
            }
            _ => (vec![(None, task)], false),
        };
        self.asked.lock().unwrap().push((method.to_owned(), cursor));
        says
    }
}

/// Nobody knows whether the message arrived: it is sent again, under the same name.
async fn a_message_that_was_not_answered_before_a_crash_is_sent_again_under_its_name(over: Over) {
    let world = World::new();
    let at = free_address().unwrap();
    let bare = Bare::start(&world, over, at);
    bare.silent.store(true, Ordering::SeqCst);
    let alice = Server::start(in_front(&world, over, at, "")).await;
    let task = id_of(&alice.begin(hello("m")).await);
    let sent = || bare.keys.lock().unwrap().len();
    eventually("the message", async || (sent() == 1).then_some(())).await;
    let alice = Server::start(alice.crash()).await;
    eventually("the message again", async || (sent() == 2).then_some(())).await;
    // And once more when it is lost with its connection.
    bare.silent.store(false, Ordering::SeqCst);
    bare.kill.send_modify(|kills| *kills += 1);
    eventually("a third time", async || (sent() == 3).then_some(())).await;
    eventually("the first part", async || (said(&alice.get(&task).await) == ["a"]).then_some(()))
        .await;
    bare.kill.send_modify(|kills| *kills += 1);
    let done = alice.reaches(&task, "TASK_STATE_COMPLETED").await;
    assert_eq!(said(&done), ["a", "b"]);
    let keys = bare.keys.lock().unwrap().clone();
    assert_eq!(keys, vec![format!("{task}-0"); 3]);
    alice.stop().await;
}

/// Nothing is polled for: the stream goes on where it was cut, also over a crash of the follower.
async fn a_stream_that_was_cut_is_followed_behind_the_last_event_that_was_heard(over: Over) {
    for crash in [false, true] {
        let world = World::new();
        let at = free_address().unwrap();
        let bare = Bare::start(&world, over, at);
        let alice = Server::start(in_front(&world, over, at, "")).await;
        let task = id_of(&alice.begin(hello("m")).await);
        eventually("the first part", async || {
            (said(&alice.get(&task).await) == ["a"]).then_some(())
        })
        .await;
        let alice = if crash { Server::start(alice.crash()).await } else { alice };
        bare.kill.send_modify(|kills| *kills += 1);
        let done = alice.reaches(&task, "TASK_STATE_COMPLETED").await;
        assert_eq!(said(&done), ["a", "b"]);
        let asked = bare.asked.lock().unwrap().clone();
        let expected = [("SendStreamingMessage", None), ("SubscribeToTask", Some("2"))]
            .map(|(method, cursor)| (method.to_owned(), cursor.map(str::to_owned)));
        assert_eq!(asked, expected);
        alice.stop().await;
    }
}

/// More than there are streams for at the other node: the last wait for the first, and a cancel does not.
async fn more_tasks_than_one_connection_has_streams_are_followed_and_canceled(over: Over) {
    let world = World::new();
    let (alice, carol) = pair(&world, over).await;
    let mut tasks = Vec::new();
    for n in 0..260 {
        let slow = message(&format!("m-{n}"), &["x"], json!({ "delay_ms": 600_000 }));
        tasks.push(id_of(&alice.begin(slow).await));
    }
    for task in tasks {
        let canceled = eventually("its cancel", async || {
            let request = alice.rpc("CancelTask", &json!({ "id": task }));
            json_of(request.send().await.unwrap()).await.get("result").cloned()
        })
        .await;
        assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    }
    let task = alice.send(hello("m")).await;
    assert_eq!(said(&task), ["hello"], "{task}");
    alice.stop().await;
    carol.stop().await;
}
