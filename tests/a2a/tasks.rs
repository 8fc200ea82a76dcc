//! Tasks: from a message to a result, listed, canceled, and there after a restart.

use super::{Server, echo, hello, id_of, json_of, message, text};
use crate::common::World;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[tokio::test(flavor = "multi_thread")]
async fn a_message_becomes_a_task_with_a_result() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let parts =
        json!([{ "text": "hi" }, { "data": { "n": 1 } }, { "raw": "QUJD", "filename": "a.txt" }]);
    let message =
        json!({ "messageId": "m-1", "role": "ROLE_USER", "parts": parts, "contextId": "c-1" });
    let task = server.send(message).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(task["artifacts"][0]["parts"], parts, "what was said comes back");
    assert_eq!(
        (&task["contextId"], &task["history"][0]["contextId"]),
        (&json!("c-1"), &json!("c-1"))
    );
    assert_eq!(task["history"][0]["taskId"], task["id"]);
    let timestamp = text(&task, "/status/timestamp");
    assert!(
        timestamp.ends_with('Z') && timestamp.as_bytes()[timestamp.len() - 5] == b'.',
        "{timestamp}"
    );
    let id = id_of(&task);
    assert_eq!(server.get(&id).await, task, "the same, later");
    let (status, rest) =
        server.rest(Method::GET, &format!("/tasks/{id}?historyLength=0"), None).await;
    assert_eq!(status, 200);
    assert_eq!((rest.get("history"), &rest["artifacts"]), (None, &task["artifacts"]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_asks_back_and_goes_on_with_the_answer() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let task = server.send(message("m-1", &["?"], json!({ "ask": true }))).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    let (id, context) = (id_of(&task), text(&task, "/contextId").to_owned());
    let answer = |context: &str| {
        json!({ "message": {
            "messageId": "m-2", "taskId": id, "contextId": context,
            "role": "ROLE_USER", "parts": [{ "text": "this" }]
        } })
    };
    assert_eq!(server.refused("SendMessage", answer("another")).await, -32602);
    let task = server.call("SendMessage", answer(&context)).await["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "this");
    let said: Vec<(&str, &str)> = task["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| (text(m, "/role"), text(m, "/parts/0/text")))
        .collect();
    assert_eq!(
        said,
        [("ROLE_USER", "?"), ("ROLE_AGENT", "What shall I say?"), ("ROLE_USER", "this")]
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_fail_are_rejected_and_canceled() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let failed = server.send(message("m", &["x"], json!({ "fail": "no luck" }))).await;
    assert_eq!(failed["status"]["state"], "TASK_STATE_FAILED");
    assert_eq!(failed["status"]["message"]["parts"][0]["text"], "no luck");
    let rejected = server.send(message("m", &["x"], json!({ "reject": "not for me" }))).await;
    assert_eq!(rejected["status"]["state"], "TASK_STATE_REJECTED");
    let slow = server.begin(message("m", &["x"], json!({ "delay_ms": 50_000 }))).await;
    let id = id_of(&slow);
    // More is not taken while the agent asks for nothing.
    let more = json!({ "message": {
        "messageId": "m-2", "taskId": id, "role": "ROLE_USER", "parts": [{ "text": "y" }]
    } });
    assert_eq!(server.refused("SendMessage", more).await, -32004);
    let (status, task) = server.rest(Method::POST, &format!("/tasks/{id}:cancel"), None).await;
    assert_eq!((status, &task["status"]["state"]), (200, &json!("TASK_STATE_CANCELED")));
    assert_eq!(server.refused("CancelTask", json!({ "id": id })).await, -32002);
    let config = server.stop().await;
    let server = Server::start(config).await;
    assert_eq!(server.get(&id).await["status"]["state"], "TASK_STATE_CANCELED", "for good");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_the_newest_first_and_go_on_where_they_were() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let mut made = Vec::new();
    for n in 0..7 {
        let context = if n % 2 == 0 { "even" } else { "odd" };
        let mut message = hello(&format!("m-{n}"));
        message["contextId"] = json!(context);
        made.push(id_of(&server.send(message).await));
    }
    let waits = id_of(&server.send(message("m", &["?"], json!({ "ask": true }))).await);
    made.push(waits.clone());
    let mut seen = Vec::new();
    let mut token = String::new();
    loop {
        let page = server.call("ListTasks", json!({ "pageSize": 3, "pageToken": token })).await;
        assert_eq!((&page["totalSize"], &page["pageSize"]), (&json!(8), &json!(3)));
        for task in page["tasks"].as_array().unwrap() {
            assert!(task.get("artifacts").is_none(), "only when asked for: {task}");
            seen.push(id_of(task));
        }
        token = text(&page, "/nextPageToken").to_owned();
        if token.is_empty() {
            break;
        }
    }
    made.reverse();
    assert_eq!(seen, made);
    let (_, even) =
        server.rest(Method::GET, "/tasks?contextId=even&includeArtifacts=true", None).await;
    assert_eq!((&even["totalSize"], even["tasks"].as_array().unwrap().len()), (&json!(4), 4));
    assert_eq!(even["tasks"][0]["artifacts"][0]["parts"][0]["text"], "hello");
    let (_, asked) =
        server.rest(Method::GET, "/tasks?status=TASK_STATE_INPUT_REQUIRED", None).await;
    assert_eq!((&asked["totalSize"], &asked["tasks"][0]["id"]), (&json!(1), &json!(waits)));
    let since = text(&asked["tasks"][0], "/status/timestamp").to_owned();
    let later = server.call("ListTasks", json!({ "statusTimestampAfter": since })).await;
    assert_eq!(later["tasks"][0]["id"], waits.as_str());
    assert!(later["totalSize"].as_u64().unwrap() < 8, "{later}");
    assert_eq!(server.refused("ListTasks", json!({ "pageToken": "x" })).await, -32602);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bd1_a_page_of_large_tasks_ends_early() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let long = "x".repeat(1_500_000);
    let mut made = Vec::new();
    for n in 0..3 {
        let message = message(&format!("m-{n}"), &[long.as_str()], json!({}));
        made.push(id_of(&server.send(message).await));
    }
    made.reverse();
    let all = async |token: &str| {
        let params = json!({ "includeArtifacts": true, "pageToken": token });
        let page = server.call("ListTasks", params).await;
        assert_eq!(page["totalSize"], 3);
        let ids: Vec<String> = page["tasks"].as_array().unwrap().iter().map(id_of).collect();
        (ids, text(&page, "/nextPageToken").to_owned())
    };
    let (first, token) = all("").await;
    assert_eq!(first, made[..2]);
    let (second, end) = all(&token).await;
    assert_eq!((second.as_slice(), end.as_str()), (&made[2..], ""));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_answers_the_calls_that_wait() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let slow = message("m", &["x"], json!({ "delay_ms": 50_000 }));
    let waiting = server.rpc("SendMessage", &json!({ "message": slow }));
    let waiting = tokio::spawn(waiting.send());
    crate::eventually("the task", async || {
        let listed = server.call("ListTasks", json!({ "status": "TASK_STATE_WORKING" })).await;
        (listed["totalSize"] == 1).then_some(())
    })
    .await;
    server.stop().await;
    let answer = json_of(waiting.await.unwrap().unwrap()).await;
    assert_eq!(answer["result"]["task"]["status"]["state"], "TASK_STATE_WORKING");
}

/// PS-1: what a client was told of a task is there after a crash, and the rest still comes.
#[tokio::test(flavor = "multi_thread")]
async fn ps1_no_task_that_was_answered_is_lost_by_a_crash() {
    let world = World::new();
    let mut config = echo(&world, "", "");
    let mut finished: BTreeSet<String> = BTreeSet::new();
    let mut going_on: BTreeSet<String> = BTreeSet::new();
    for round in 0..3 {
        let server = Server::start(config).await;
        for id in &finished {
            assert_eq!(server.get(id).await["status"]["state"], "TASK_STATE_COMPLETED");
        }
        for id in &going_on {
            let task = server.reaches(id, "TASK_STATE_COMPLETED").await;
            assert_eq!(
                task["artifacts"][0]["parts"].as_array().unwrap().len(),
                2,
                "each part once"
            );
            finished.insert(id.clone());
        }
        going_on.clear();
        for n in 0..5 {
            finished.insert(id_of(&server.send(hello(&format!("m-{round}-{n}"))).await));
            let slow = message(&format!("s-{round}-{n}"), &["a", "b"], json!({ "delay_ms": 60 }));
            going_on.insert(id_of(&server.begin(slow).await));
        }
        config = server.crash();
    }
    let server = Server::start(config).await;
    let listed = server.call("ListTasks", json!({})).await;
    assert_eq!(listed["totalSize"], 30);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bd1_what_is_over_a_limit_is_refused_or_forgotten() {
    let world = World::new();
    let limits = "tasks_max = 4\ntasks_per_caller_max = 2\ntask_len_max = 4096\nhistory_max = 1";
    let server = Server::start(echo(&world, limits, "")).await;
    let slow = |id: &str| message(id, &["x"], json!({ "delay_ms": 50_000 }));
    let going_on =
        [id_of(&server.begin(slow("m-1")).await), id_of(&server.begin(slow("m-2")).await)];
    let refused = server.rpc("SendMessage", &json!({ "message": hello("m-3") }));
    let refused = refused.send().await.unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "1");
    assert_eq!(json_of(refused).await["error"]["data"][0]["reason"], "RESOURCE_EXHAUSTED");
    server.call("CancelTask", json!({ "id": going_on[1] })).await;
    let mut ended = vec![going_on[1].clone()];
    for n in 0..4 {
        ended.push(id_of(&server.send(hello(&format!("m-{n}"))).await));
    }
    // Of four places one is of the task that goes on; the oldest that ended gave theirs.
    assert_eq!(server.call("ListTasks", json!({})).await["totalSize"], 4);
    assert_eq!(server.refused("GetTask", json!({ "id": ended[0] })).await, -32001);
    assert_eq!(server.get(&ended[4]).await["id"], ended[4].as_str());
    assert_eq!(server.get(&going_on[0]).await["id"], going_on[0].as_str());
    // A result over the limit fails its task, and a message over it is refused.
    let (status, body) = {
        let long = message("m", &["x".repeat(5000).as_str()], json!({}));
        server.rest(Method::POST, "/message:send", Some(&json!({ "message": long }))).await
    };
    assert_eq!(status, 400, "{body}");
    let half = message("m", &["x".repeat(2500).as_str()], json!({}));
    let task = server.send(half).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_FAILED", "{task}");
    server.stop().await;
}

/// A caller has one share, however many tenants it names, and pays for itself first.
#[tokio::test(flavor = "multi_thread")]
async fn bd1_one_caller_takes_no_place_of_another() {
    let world = World::new();
    let limits = "tasks_max = 3\ntasks_per_caller_max = 2";
    let server = Server::start(echo(&world, limits, &super::bob(&world))).await;
    let ours = id_of(&server.send(hello("m")).await);
    let bobs = async |tenant: &str, wish: Value| {
        let configuration = json!({ "returnImmediately": wish != json!({}) });
        let params = json!({
            "tenant": tenant, "message": message("m", &["x"], wish), "configuration": configuration
        });
        let request = server.rpc("SendMessage", &params).bearer_auth(super::TOKEN);
        json_of(request.send().await.unwrap()).await
    };
    for n in 0..5 {
        let answer = bobs("t", json!({})).await;
        assert!(answer.get("error").is_none(), "{n}: {answer}");
    }
    assert_eq!(server.get(&ours).await["id"], ours.as_str(), "Bob's own went first");
    let slow = json!({ "delay_ms": 50_000 });
    for (tenant, taken) in [("t", true), ("u", true), ("v", false)] {
        let answer = bobs(tenant, slow.clone()).await;
        assert_eq!(answer.get("error").is_none(), taken, "{tenant}: {answer}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_waits_too_long_is_answered_with_the_task_as_it_stands() {
    let world = World::new();
    let server = Server::start(echo(&world, "wait_seconds_max = 1", "")).await;
    let task: Value = server.send(message("m", &["x"], json!({ "delay_ms": 50_000 }))).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_WORKING");
    server.stop().await;
}
