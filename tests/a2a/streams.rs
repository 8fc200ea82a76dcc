//! Streams: every client sees the same events in the same order, and one that was cut off goes on.

use super::{Server, Stream, echo, id_of, json_of, message, shape, shapes, text};
use crate::common::World;
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;

const PARTS: [&str; 4] = ["a", "b", "c", "d"];

fn all() -> Vec<String> {
    [
        "task SUBMITTED",
        "statusUpdate WORKING",
        "artifactUpdate a",
        "artifactUpdate b",
        "artifactUpdate c",
        "artifactUpdate d",
        "statusUpdate COMPLETED",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn slow(ms: u64) -> Value {
    json!({ "message": message("m", &PARTS, json!({ "delay_ms": ms })) })
}

#[tokio::test(flavor = "multi_thread")]
async fn both_bindings_stream_the_same_and_close_at_the_end() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let request = server.request(Method::POST, "/a2a/rest/message:stream").json(&slow(20));
    let events = Stream::of(request.send().await.unwrap()).rest().await;
    assert_eq!(shapes(&events), all());
    let numbers: Vec<u64> = events.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(events[5].1["artifactUpdate"]["lastChunk"], true);
    assert_eq!(events[3].1["artifactUpdate"]["append"], true);

    let request = server.rpc("SendStreamingMessage", &slow(20));
    let events = Stream::of(request.send().await.unwrap()).rest().await;
    let bare: Vec<(u64, Value)> = events
        .into_iter()
        .map(|(number, event)| {
            assert_eq!((&event["jsonrpc"], &event["id"]), (&json!("2.0"), &json!("call-1")));
            (number, event["result"].clone())
        })
        .collect();
    assert_eq!(shapes(&bare), all());
    let task = server.get(text(&bare[0].1, "/task/id")).await;
    let said = task["artifacts"][0]["parts"].as_array().unwrap();
    assert_eq!(said.iter().map(|part| text(part, "/text")).collect::<Vec<_>>(), PARTS);
    // An error before the first event is an answer, not a stream.
    let none = server.rpc("SubscribeToTask", &json!({ "id": task["id"] })).send().await.unwrap();
    assert_eq!(json_of(none).await["error"]["code"], -32004);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_comes_late_begins_with_the_task_and_one_that_leaves_disturbs_nobody() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let request = server.request(Method::POST, "/a2a/rest/message:stream").json(&slow(400));
    let mut first = Stream::of(request.send().await.unwrap());
    let id = text(&first.next().await.unwrap().1, "/task/id").to_owned();
    let mut second = server.subscribe(&id, None).await;
    let (begins, snapshot) = second.next().await.unwrap();
    assert!(shape(&snapshot).starts_with("task "), "{snapshot}");
    let leaves = server.subscribe(&id, None).await;
    drop(leaves);
    let rest: Vec<_> = second.rest().await;
    let same: Vec<_> = first.rest().await.into_iter().filter(|(n, _)| *n > begins).collect();
    assert_eq!(rest, same);
    assert_eq!(rest.last().map(|(_, event)| shape(event)).unwrap(), "statusUpdate COMPLETED");
    server.stop().await;
}

/// What the standard bindings lack: a cursor, in the field that SSE has for it.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_cut_off_goes_on_behind_what_it_saw_even_over_a_crash() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let request = server.request(Method::POST, "/a2a/rest/message:stream").json(&slow(150));
    let mut stream = Stream::of(request.send().await.unwrap());
    let mut seen = vec![stream.next().await.unwrap(), stream.next().await.unwrap()];
    seen.push(stream.next().await.unwrap());
    let id = text(&seen[0].1, "/task/id").to_owned();
    let config = server.crash();
    drop(stream);
    let server = Server::start(config).await;
    let mut stream = server.subscribe(&id, Some(3)).await;
    seen.push(stream.next().await.unwrap());
    drop(stream); // and cut off once more, until the task has ended
    server.reaches(&id, "TASK_STATE_COMPLETED").await;
    seen.extend(server.subscribe(&id, Some(4)).await.rest().await);
    assert_eq!(shapes(&seen), all(), "each event once");
    assert_eq!(seen.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    assert!(server.subscribe(&id, Some(7)).await.rest().await.is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bd1_one_that_is_too_far_behind_gets_the_task_in_place_of_what_it_missed() {
    let world = World::new();
    let server = Server::start(echo(&world, "events_max = 3\nstreams_max = 1", "")).await;
    let task = server.call("SendMessage", slow(1)).await["task"].clone();
    let id = id_of(&task);
    let events = server.subscribe(&id, Some(1)).await.rest().await;
    assert_eq!(shapes(&events), ["task COMPLETED"]);
    assert_eq!(events[0].0, 7);
    assert_eq!(events[0].1["task"], task);
    let events = server.subscribe(&id, Some(4)).await.rest().await;
    assert_eq!(shapes(&events), ["artifactUpdate c", "artifactUpdate d", "statusUpdate COMPLETED"]);
    // A cursor we never gave is none.
    assert_eq!(shapes(&server.subscribe(&id, Some(99)).await.rest().await), ["task COMPLETED"]);
    // The one place is taken by a stream that goes on.
    let request = server.request(Method::POST, "/a2a/rest/message:stream").json(&slow(50_000));
    let holds = Stream::of(request.send().await.unwrap());
    let (status, body) = server.rest(Method::POST, "/message:stream", Some(&slow(1))).await;
    assert_eq!((status, &body["error"]["status"]), (429, &json!("RESOURCE_EXHAUSTED")));
    drop(holds);
    crate::common::eventually("the place of who has left", async || {
        let request = server.request(Method::POST, "/a2a/rest/message:stream").json(&slow(1));
        (request.send().await.unwrap().status() == 200).then_some(())
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_stays_open_while_the_agent_asks_and_ends_when_the_node_does() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let ask = json!({ "message": message("m-1", &["?"], json!({ "ask": true })) });
    let request = server.request(Method::POST, "/a2a/rest/message:stream").json(&ask);
    let mut stream = Stream::of(request.send().await.unwrap());
    let id = text(&stream.next().await.unwrap().1, "/task/id").to_owned();
    assert_eq!(shape(&stream.next().await.unwrap().1), "statusUpdate INPUT_REQUIRED");
    assert!(tokio::time::timeout(Duration::from_millis(200), stream.next()).await.is_err());
    let answer = json!({
        "messageId": "m-2", "taskId": id, "role": "ROLE_USER", "parts": [{ "text": "this" }]
    });
    // The answer's own stream begins with the task.
    let request = server
        .request(Method::POST, "/a2a/rest/message:stream")
        .json(&json!({ "message": answer }));
    let own = Stream::of(request.send().await.unwrap()).rest().await;
    assert!(shape(&own[0].1).starts_with("task "), "{own:?}");
    let rest = shapes(&stream.rest().await);
    assert_eq!(rest.last().unwrap(), "statusUpdate COMPLETED");
    assert!(rest.contains(&"artifactUpdate this".to_owned()), "{rest:?}");

    let request = server.request(Method::POST, "/a2a/rest/message:stream").json(&slow(50_000));
    let mut stream = Stream::of(request.send().await.unwrap());
    stream.next().await.unwrap();
    let (_, rest) = tokio::join!(server.stop(), stream.rest());
    assert!(rest.len() <= 1, "{rest:?}");
}
