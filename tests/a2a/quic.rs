//! A2A over native QUIC: calls on streams of their own, by a client made of bare quinn.

use super::{Server, TOKEN, URI, bob, echo, hello, id_of, json_of, message, shapes, text};
use crate::common::raw::Raw;
use crate::common::{PATIENCE, World, eventually, id, peer_toml};
use abhyasa::tls::{ALPN, ALPN_A2A};
use proto::record::Role;
use quinn::{ReadError, RecvStream, SendStream};
use serde_json::{Value, json};

pub(crate) const BINDING: &str =
    "https://ravikiran438.github.io/abhyasa-protocol/bindings/a2a-quic/v1";
/// Codes of the ends of streams.
const STOPPING: u64 = 4;

/// A call under way.
struct Call {
    send: SendStream,
    recv: RecvStream,
    buffer: Vec<u8>,
}

/// A call in our version, with more service parameters.
fn asks(method: &str, params: &Value, more: &Value) -> Value {
    let mut parameters = json!({ "A2A-Version": "1.0" });
    parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "id": "c-1", "method": method, "params": params, "a2a-service-parameters": parameters })
}

impl Call {
    /// Says these bytes, and no more.
    async fn say(raw: &Raw, bytes: &[u8]) -> Self {
        let (mut send, recv) = raw.connection.open_bi().await.unwrap();
        let _ = send.write_all(bytes).await; // one that is too long is stopped on its way
        let _ = send.finish();
        Self { send, recv, buffer: Vec::new() }
    }

    async fn ask(raw: &Raw, line: &Value) -> Self {
        Self::say(raw, format!("{line}\n").as_bytes()).await
    }

    /// The next line; `Ok(None)` at the end.
    async fn read(&mut self) -> Result<Option<Value>, ReadError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let line: Value = serde_json::from_slice(&line).unwrap();
                assert_eq!(line["jsonrpc"], "2.0", "{line}");
                return Ok(Some(line));
            }
            let chunk = tokio::time::timeout(PATIENCE, self.recv.read_chunk(1 << 16, true));
            match chunk.await.expect("a line in time")? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk.bytes),
                None => {
                    assert!(self.buffer.is_empty(), "the last line has an end");
                    return Ok(None);
                }
            }
        }
    }

    async fn next(&mut self) -> Option<Value> {
        self.read().await.unwrap()
    }

    /// The next event with its number.
    async fn event(&mut self) -> Option<(u64, Value)> {
        let line = self.next().await?;
        let number = line["event"].as_u64().unwrap_or_else(|| panic!("no number: {line}"));
        Some((number, line["result"].clone()))
    }

    /// All events that are left, to the end.
    async fn rest(&mut self) -> Vec<(u64, Value)> {
        let mut all = Vec::new();
        while let Some(event) = self.event().await {
            all.push(event);
        }
        all
    }

    /// The only line, and the end.
    async fn only(mut self) -> Value {
        let line = self.next().await.expect("an answer");
        assert_eq!(self.next().await, None, "one line");
        line
    }
}

async fn dial(world: &World, server: &Server) -> Raw {
    let at = server.handle().quic_address();
    Raw::dial(world, "bob", ALPN_A2A, "alice", at).await.unwrap()
}

/// The result of a call that must succeed.
async fn call(raw: &Raw, method: &str, params: Value) -> Value {
    let line = Call::ask(raw, &asks(method, &params, &json!({}))).await.only().await;
    assert_eq!(line["id"], "c-1", "{line}");
    line.get("result").unwrap_or_else(|| panic!("{method}: {line}")).clone()
}

/// The error of a line that must fail.
async fn refused(raw: &Raw, bytes: &[u8]) -> Value {
    let line = Call::say(raw, bytes).await.only().await;
    line.get("error").unwrap_or_else(|| panic!("{line}")).clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_is_on_a_stream_and_says_the_same_as_over_http() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &bob(&world))).await;
    let raw = dial(&world, &server).await;
    let over_http = async |method: &str, params: Value| {
        let request = server.rpc(method, &params).bearer_auth(TOKEN);
        json_of(request.send().await.unwrap()).await["result"].clone()
    };
    // What the card says, by either way to it.
    let card = call(&raw, "GetAgentCard", json!({})).await;
    let shown = server.http.get(server.url("/.well-known/agent-card.json")).send().await.unwrap();
    assert_eq!(card, json_of(shown).await);
    let url = format!("quic://127.0.0.1:{}", server.handle().quic_address().port());
    let interface = json!({ "url": url, "protocolBinding": BINDING, "protocolVersion": "1.0" });
    assert_eq!(card["supportedInterfaces"][2], interface);
    assert!(card["securitySchemes"]["certificate"]["mtlsSecurityScheme"].is_object(), "{card}");
    let extended = call(&raw, "GetExtendedAgentCard", json!({})).await;
    assert_eq!(extended, over_http("GetExtendedAgentCard", json!({})).await);

    let task = call(&raw, "SendMessage", json!({ "message": hello("m-1") })).await["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "hello");
    let named = json!({ "id": task["id"] });
    assert_eq!(call(&raw, "GetTask", named.clone()).await, task);
    // Bob is the same by his certificate and by his token.
    assert_eq!(over_http("GetTask", named.clone()).await, task);
    let listed = call(&raw, "ListTasks", json!({ "includeArtifacts": true })).await;
    assert_eq!((&listed["totalSize"], &listed["tasks"][0]), (&json!(1), &task));

    let slow = json!({ "message": message("m-2", &["a", "b"], json!({ "delay_ms": 20 })) });
    let mut stream =
        Call::ask(&raw, &asks("SendStreamingMessage", &slow, &json!({ "a2a-extensions": URI })))
            .await;
    let first = stream.next().await.unwrap();
    // What was activated is said with the first line only.
    assert_eq!(first["a2a-service-parameters"], json!({ "A2A-Extensions": URI }));
    let mut events = vec![(first["event"].as_u64().unwrap(), first["result"].clone())];
    let second = stream.next().await.unwrap();
    assert_eq!(second.get("a2a-service-parameters"), None);
    events.push((second["event"].as_u64().unwrap(), second["result"].clone()));
    events.extend(stream.rest().await);
    let told = [
        "task SUBMITTED",
        "statusUpdate WORKING",
        "artifactUpdate a",
        "artifactUpdate b",
        "statusUpdate COMPLETED",
    ];
    assert_eq!(shapes(&events), told);
    assert!(events.iter().map(|(number, _)| *number).eq(1..=5));

    let slow = json!({
        "message": message("m-3", &["x"], json!({ "delay_ms": 50_000 })),
        "configuration": { "returnImmediately": true }
    });
    let slow = id_of(&call(&raw, "SendMessage", slow).await["task"]);
    let config = json!({ "taskId": slow, "id": "hook", "url": "http://127.0.0.1:9/" });
    let made = call(&raw, "CreateTaskPushNotificationConfig", config).await;
    let hook = json!({ "taskId": slow, "id": "hook" });
    assert_eq!(call(&raw, "GetTaskPushNotificationConfig", hook.clone()).await, made);
    let of_task = json!({ "taskId": slow });
    let hooks = call(&raw, "ListTaskPushNotificationConfigs", of_task.clone()).await;
    assert_eq!(hooks["configs"], json!([made]));
    assert_eq!(call(&raw, "DeleteTaskPushNotificationConfig", hook).await, Value::Null);
    let hooks = call(&raw, "ListTaskPushNotificationConfigs", of_task).await;
    assert_eq!(hooks["configs"], json!([]));

    let named = json!({ "id": slow });
    let mut stream = Call::ask(&raw, &asks("SubscribeToTask", &named, &json!({}))).await;
    // It may have begun by now, or not.
    assert!(shapes(&[stream.event().await.unwrap()])[0].starts_with("task "));
    let canceled = call(&raw, "CancelTask", named.clone()).await;
    assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    assert_eq!(shapes(&stream.rest().await).last().unwrap(), "statusUpdate CANCELED");
    // Another caller's tasks are not there.
    assert_eq!(server.refused("GetTask", named).await, -32001);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_all_their_details_and_what_is_no_call_is_told_why() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &peer_toml("bob", None))).await;
    let raw = dial(&world, &server).await;
    let done = call(&raw, "SendMessage", json!({ "message": hello("m") })).await["task"].clone();
    let ended = json!({ "id": done["id"] });
    let version = json!({ "A2A-Version": "0.3" });
    let twice = json!({ "A2A-Version": "1.0", "a2a-version": "1.0" });
    let xml = json!({ "message": {
        "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "x", "mediaType": "application/xml" }]
    } });
    let more = json!({ "message": {
        "messageId": "m", "role": "ROLE_USER", "taskId": done["id"], "parts": [{ "text": "x" }]
    } });
    let cases: Vec<(String, i64, &str)> = vec![
        (
            asks("GetTask", &json!({ "id": "none" }), &json!({})).to_string(),
            -32001,
            "TASK_NOT_FOUND",
        ),
        (asks("CancelTask", &ended, &json!({})).to_string(), -32002, "TASK_NOT_CANCELABLE"),
        (asks("SubscribeToTask", &ended, &json!({})).to_string(), -32004, "UNSUPPORTED_OPERATION"),
        (
            asks("SendStreamingMessage", &more, &json!({})).to_string(),
            -32004,
            "UNSUPPORTED_OPERATION",
        ),
        (asks("SendMessage", &xml, &json!({})).to_string(), -32005, "CONTENT_TYPE_NOT_SUPPORTED"),
        (asks("ListTasks", &json!({}), &version).to_string(), -32009, "VERSION_NOT_SUPPORTED"),
        (r#"{"method":"ListTasks"}"#.to_owned(), -32009, "VERSION_NOT_SUPPORTED"),
        (asks("ListTasks", &json!({}), &twice).to_string(), -32600, "INVALID_REQUEST"),
        (asks("tasks/get", &json!({}), &json!({})).to_string(), -32601, "METHOD_NOT_FOUND"),
        (asks("GetTask", &json!({ "id": [] }), &json!({})).to_string(), -32602, "INVALID_PARAMS"),
        ("[]".to_owned(), -32600, "INVALID_REQUEST"),
        ("{".to_owned(), -32700, "PARSE_ERROR"),
    ];
    for (line, code, reason) in cases {
        let error = refused(&raw, format!("{line}\n").as_bytes()).await;
        assert_eq!(
            (&error["code"], &error["data"][0]["reason"]),
            (&json!(code), &json!(reason)),
            "{line}"
        );
        assert_eq!(error["data"][0]["domain"], "a2a-protocol.org");
    }
    let bad = json!({ "message": { "messageId": "m", "role": "ROLE_USER", "parts": [] } });
    let bad =
        refused(&raw, format!("{}\n", asks("SendMessage", &bad, &json!({}))).as_bytes()).await;
    assert_eq!(bad["data"][1]["fieldViolations"][0]["field"], "message.parts");
    let none = format!("{}\n", asks("GetTask", &json!({ "id": "none" }), &json!({})));
    let none = refused(&raw, none.as_bytes()).await;
    assert_eq!(none["data"][0]["metadata"]["taskId"], "none");
    // A line without its end, and none at all.
    for bytes in [&b"{\"method\":\"ListTasks\"}"[..], b"", b"\n"] {
        assert_eq!(refused(&raw, bytes).await["code"], -32600, "{bytes:?}");
    }
    // The id is as it was, or null.
    let line = json!({ "id": -7, "method": "GetAgentCard" });
    assert_eq!(Call::ask(&raw, &line).await.only().await["id"], -7);
    assert_eq!(
        Call::ask(&raw, &json!({ "method": "GetAgentCard" })).await.only().await["id"],
        Value::Null
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_is_required_is_named_and_the_card_is_shown_all_the_same() {
    let world = World::new();
    let config = echo(&world, "extension_required = true", &peer_toml("bob", None));
    let server = Server::start(config).await;
    let raw = dial(&world, &server).await;
    let bare = Call::ask(&raw, &json!({ "method": "GetAgentCard" })).await.only().await;
    assert_eq!(bare["result"]["capabilities"]["extensions"][0]["required"], true);
    let line = asks("ListTasks", &json!({}), &json!({}));
    let error = refused(&raw, format!("{line}\n").as_bytes()).await;
    assert_eq!(
        (&error["code"], &error["data"][0]["metadata"]["extension"]),
        (&json!(-32008), &json!(URI))
    );
    let named = asks("ListTasks", &json!({}), &json!({ "A2A-Extensions": URI }));
    let answer = Call::ask(&raw, &named).await.only().await;
    assert_eq!(answer["a2a-service-parameters"]["A2A-Extensions"], URI);
    assert_eq!(answer["result"]["totalSize"], 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bd1_a_line_that_is_too_long_is_refused_and_the_next_call_is_not() {
    let world = World::new();
    let config = echo(&world, "request_len_max = 1024", &peer_toml("bob", None));
    let server = Server::start(config).await;
    let raw = dial(&world, &server).await;
    let long = format!("{{\"method\":\"{}\"}}\n", "x".repeat(4_000_000));
    let error = refused(&raw, long.as_bytes()).await;
    assert_eq!(error["code"], -32600, "{error}");
    assert!(text(&error, "/message").contains("1024 bytes"), "{error}");
    assert_eq!(call(&raw, "ListTasks", json!({})).await["totalSize"], 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_closed_and_nobody_is_served_where_there_is_no_agent() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &peer_toml("bob", None))).await;
    let at = server.handle().quic_address();
    let carol = Raw::dial(&world, "carol", ALPN_A2A, "alice", at).await.unwrap();
    let native = Raw::dial(&world, "carol", ALPN, "alice", at).await.unwrap();
    assert_eq!(carol.closed().await, native.closed().await, "as by any other protocol here");
    let mut config = server.stop().await;
    config.a2a.agent = None;
    let server = Server::start(config).await;
    let at = server.handle().quic_address();
    assert!(Raw::dial(&world, "bob", ALPN_A2A, "alice", at).await.is_err());
    server.stop().await;
}

/// What the standard bindings lack: a stream goes on behind what was seen, also over a crash.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_connection_is_killed_goes_on_from_the_cursor() {
    let world = World::new();
    let at = abhyasa::loopback::free_address().unwrap();
    let mut config = echo(&world, "", &peer_toml("bob", None));
    config.quic.listen = at;
    let server = Server::start(config).await;
    let parts = ["a", "b", "c", "d", "e", "f"];
    let slow = json!({ "message": message("m", &parts, json!({ "delay_ms": 200 })) });
    let raw = dial(&world, &server).await;
    let mut stream = Call::ask(&raw, &asks("SendStreamingMessage", &slow, &json!({}))).await;
    let mut seen = vec![stream.event().await.unwrap(), stream.event().await.unwrap()];
    seen.push(stream.event().await.unwrap());
    let task = text(&seen[0].1, "/task/id").to_owned();
    raw.connection.close(0u32.into(), b"killed");
    let after = |number: u64| {
        let cursor = json!({ "Last-Event-ID": number.to_string() });
        asks("SubscribeToTask", &json!({ "id": task }), &cursor)
    };
    let raw = dial(&world, &server).await;
    let mut stream = Call::ask(&raw, &after(3)).await;
    seen.push(stream.event().await.unwrap());
    let server = Server::start(server.crash()).await;
    let raw = dial(&world, &server).await;
    seen.extend(Call::ask(&raw, &after(4)).await.rest().await);
    let expected: Vec<String> = ["task SUBMITTED", "statusUpdate WORKING"]
        .into_iter()
        .map(str::to_owned)
        .chain(parts.iter().map(|part| format!("artifactUpdate {part}")))
        .chain(["statusUpdate COMPLETED".to_owned()])
        .collect();
    assert_eq!(shapes(&seen), expected, "each event once");
    assert!(seen.iter().map(|(number, _)| *number).eq(1..=9));
    // Behind the last there is nothing, and that is an end and no error.
    assert!(Call::ask(&raw, &after(9)).await.rest().await.is_empty());
    server.stop().await;
}

/// A message that has a name is taken once, by whichever binding and life of the node its copies come.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_one_name_is_taken_once_over_a_crash_too() {
    let world = World::new();
    let mut config = echo(&world, "tasks_max = 2", &bob(&world));
    config.quic.listen = abhyasa::loopback::free_address().unwrap();
    let server = Server::start(config).await;
    let raw = dial(&world, &server).await;
    let named = |message: Value, key: &str| {
        asks("SendMessage", &json!({ "message": message }), &json!({ "idempotency-key": key }))
    };
    let take = async |raw: &Raw, line: &Value| {
        let line = Call::ask(raw, line).await.only().await;
        line["result"].get("task").unwrap_or_else(|| panic!("{line}")).clone()
    };
    let ask = message("m-1", &["?"], json!({ "ask": true }));
    let asked = take(&raw, &named(ask.clone(), "k-1")).await;
    assert_eq!(asked["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    assert_eq!(take(&raw, &named(ask.clone(), "k-1")).await, asked);
    let request = server.rpc("SendMessage", &json!({ "message": ask })).bearer_auth(TOKEN);
    let request = request.header("idempotency-key", "k-1").send().await.unwrap();
    assert_eq!(json_of(request).await["result"]["task"], asked);
    // Many at once are one.
    let mut copies = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let line = named(message("m-2", &["x"], json!({ "delay_ms": 50 })), "k-2");
        let copy = Call::ask(&raw, &line).await;
        copies.spawn(async { id_of(&copy.only().await["result"]["task"]) });
    }
    let ids = copies.join_all().await;
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    // The answer to a question, and then the same over a crash: by now the task has ended.
    let mut answer = hello("m-3");
    answer["taskId"] = asked["id"].clone();
    let answered = take(&raw, &named(answer.clone(), "k-3")).await;
    assert_eq!(answered["status"]["state"], "TASK_STATE_COMPLETED");
    let server = Server::start(server.crash()).await;
    let raw = dial(&world, &server).await;
    assert_eq!(take(&raw, &named(answer.clone(), "k-3")).await, answered);
    let mut stream = Call::ask(
        &raw,
        &asks(
            "SendStreamingMessage",
            &json!({ "message": answer }),
            &json!({ "Idempotency-Key": "k-3" }),
        ),
    )
    .await;
    assert_eq!(shapes(&stream.rest().await), ["task COMPLETED"]);
    assert_eq!(call(&raw, "ListTasks", json!({})).await["totalSize"], 2);
    // What is no name, and what is that of another.
    let refused = async |message: Value, key: &str| {
        let line = format!("{}\n", named(message, key));
        refused(&raw, line.as_bytes()).await["code"].clone()
    };
    assert_eq!(refused(hello("m"), "").await, -32602);
    assert_eq!(refused(hello("m"), &"k".repeat(257)).await, -32602);
    let mut other = hello("m");
    other["taskId"] = json!(ids[0]);
    assert_eq!(refused(other, "k-1").await, -32602);
    // With its task a name is forgotten, and may be that of another message.
    for key in ["k-4", "k-5"] {
        take(&raw, &named(hello("m"), key)).await;
    }
    let anew = take(&raw, &named(hello("m-3"), "k-3")).await;
    assert_ne!(anew["id"], answered["id"]);
    server.stop().await;
}

/// Who hangs up ends the call, and not the task.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_canceled_leaves_its_task_and_frees_its_place() {
    let world = World::new();
    let config = echo(&world, "streams_max = 1", &peer_toml("bob", None));
    let server = Server::start(config).await;
    let raw = dial(&world, &server).await;
    let slow = json!({ "message": message("m", &["x"], json!({ "delay_ms": 50_000 })) });
    let mut stream = Call::ask(&raw, &asks("SendStreamingMessage", &slow, &json!({}))).await;
    let task = text(&stream.event().await.unwrap().1, "/task/id").to_owned();
    let subscribe = asks("SubscribeToTask", &json!({ "id": task }), &json!({}));
    let full = refused(&raw, format!("{subscribe}\n").as_bytes()).await;
    assert_eq!(full["data"][0]["reason"], "RESOURCE_EXHAUSTED");
    assert_eq!(full["data"][1]["@type"], "type.googleapis.com/google.rpc.RetryInfo");
    stream.recv.stop(1u32.into()).unwrap();
    // Another that is reset in place of ended.
    let mut stream = eventually("the place", async || {
        let (mut send, recv) = raw.connection.open_bi().await.unwrap();
        send.write_all(format!("{subscribe}\n").as_bytes()).await.unwrap();
        let mut call = Call { send, recv, buffer: Vec::new() };
        call.next().await.unwrap().get("event").is_some().then_some(call)
    })
    .await;
    stream.send.reset(1u32.into()).unwrap();
    let cut = loop {
        match stream.read().await {
            Ok(Some(_)) => {} // it was told before
            Ok(None) => panic!("an end that says the task has ended"),
            Err(error) => break error,
        }
    };
    assert!(matches!(cut, ReadError::Reset(_)), "{cut}");
    eventually("the place", async || {
        let mut call = Call::ask(&raw, &subscribe).await;
        call.next().await.unwrap().get("event").map(drop)
    })
    .await;
    eventually("the task goes on", async || {
        let found = call(&raw, "GetTask", json!({ "id": task })).await;
        (found["status"]["state"] == "TASK_STATE_WORKING").then_some(())
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_answers_who_waits_and_cuts_streams_so_that_they_go_on() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &peer_toml("bob", None))).await;
    let raw = dial(&world, &server).await;
    let slow = json!({ "message": message("m", &["x"], json!({ "delay_ms": 50_000 })) });
    let mut stream = Call::ask(&raw, &asks("SendStreamingMessage", &slow, &json!({}))).await;
    stream.event().await.unwrap();
    let waits = Call::ask(&raw, &asks("SendMessage", &slow, &json!({}))).await;
    eventually("both tasks", async || {
        (call(&raw, "ListTasks", json!({})).await["totalSize"] == 2).then_some(())
    })
    .await;
    let (_, (answer, cut)) = tokio::join!(server.stop(), async {
        let cut = loop {
            match stream.read().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("an end that says the task has ended"),
                Err(error) => break error,
            }
        };
        (waits.only().await, cut)
    });
    assert_eq!(cut, ReadError::Reset(quinn::VarInt::from_u64(STOPPING).unwrap()));
    let state = text(&answer, "/result/task/status/state");
    assert!(["TASK_STATE_WORKING", "TASK_STATE_SUBMITTED"].contains(&state), "{answer}");
}

/// A peer that has nothing but its certificate.
#[tokio::test(flavor = "multi_thread")]
async fn ab3_an_obligation_in_a_message_over_quic_is_applied_once() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &peer_toml("bob", None))).await;
    let raw = dial(&world, &server).await;
    let obligation = json!({
        "obligation_id": "ob-q", "kind": "anumati.consent", "target": id("alice").as_str(),
        "payload": { "decision": "revoke", "scope": "q" }, "deadline_seconds": 60,
        "max_retries": 600, "created_at": server.handle().now().to_rfc3339()
    });
    let params = json!({ "message": {
        "messageId": "ob-q", "role": "ROLE_USER", "parts": [{ "text": "an obligation" }],
        "metadata": { URI: obligation }
    } });
    let silent = asks("SendMessage", &params, &json!({}));
    assert_eq!(
        refused(&raw, format!("{silent}\n").as_bytes()).await["code"],
        -32602,
        "not activated"
    );
    let line = asks("SendMessage", &params, &json!({ "A2A-Extensions": URI }));
    let first = Call::ask(&raw, &line).await.only().await["result"]["task"].clone();
    assert_eq!(first["status"]["state"], "TASK_STATE_COMPLETED", "{first}");
    assert_eq!(first["artifacts"][0]["parts"][0]["data"]["status"], "applied");
    let granted = crate::common::granted(server.handle().store(), Role::Receiver, "bob", "q");
    assert_eq!(granted, Some(false));
    let commits = crate::common::commits(server.handle());
    assert_eq!(Call::ask(&raw, &line).await.only().await["result"]["task"], first, "a copy");
    assert_eq!(crate::common::commits(server.handle()), commits);
    server.stop().await;
}
