//! PS-1 with real processes: the node dies just before, or just after, each of its first commits, and
//! what a client was told of a task is there, whole, when it is back.

use super::{hello, id_of, message, shape, text};
use crate::common::{PATIENCE, World, eventually};
use abhyasa::demo::stage::NodeProcess;
use abhyasa::loopback::free_address;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Commits at which it dies, each in a life of its own.
const POINTS: std::ops::RangeInclusive<u64> = 1..=12;
/// Messages of one life, by which it must have died.
const MESSAGES_MAX: usize = 2_000;

async fn dies_at_each_commit(mode: &str) {
    let world = World::new();
    let at = free_address().unwrap();
    world.config("alice", &format!("[api]\nlisten = \"{at}\"\n[a2a]\nagent = \"echo\"\n"));
    let file = world.path().join("alice/abhyasa.toml");
    let program = Path::new(env!("CARGO_BIN_EXE_abhyasa"));
    let mut node = NodeProcess::new(program, &file, world.path().join("log")).unwrap();
    let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    let ask = async |method: &str, params: Value| {
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let request = http.post(format!("http://{at}/a2a")).header("a2a-version", "1.0");
        let answer: Value = request.json(&call).send().await.ok()?.json().await.ok()?;
        answer.get("result").cloned()
    };
    let mut ended: BTreeMap<String, Value> = BTreeMap::new();
    let mut begun: Vec<String> = Vec::new();
    for point in POINTS {
        node.start(Some(&format!("{mode}@{point}"))).unwrap();
        let _ = node.ready().await; // it may die while it starts
        let (mut count, mut quick) = (0, false);
        while node.exited().unwrap().is_none() {
            count += 1;
            assert!(count < MESSAGES_MAX, "{mode}@{point}: it never died");
            quick = !quick;
            let wish = json!({ "delay_ms": 5 });
            let said = if quick { hello("m") } else { message("m", &["a", "b"], wish) };
            let configuration = json!({ "returnImmediately": !quick });
            let params = json!({ "message": said, "configuration": configuration });
            match ask("SendMessage", params).await {
                Some(answer) if quick => {
                    ended.insert(id_of(&answer["task"]), answer["task"].clone());
                }
                Some(answer) => begun.push(id_of(&answer["task"])),
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }
    node.start(None).unwrap();
    node.ready().await.unwrap();
    for (id, told) in &ended {
        assert_eq!(text(told, "/status/state"), "TASK_STATE_COMPLETED");
        assert_eq!(ask("GetTask", json!({ "id": id })).await.as_ref(), Some(told), "{mode}");
    }
    for id in &begun {
        let task = eventually("the end", async || {
            let task = ask("GetTask", json!({ "id": id })).await;
            let task = task.unwrap_or_else(|| panic!("{mode}: {id} was told, and is lost"));
            (task["status"]["state"] == "TASK_STATE_COMPLETED").then_some(task)
        })
        .await;
        let parts = task["artifacts"][0]["parts"].as_array().unwrap();
        assert_eq!(parts.len(), 2, "{mode}: each part once: {task}");
        // Its events have all their numbers, and say the same.
        let path = format!("http://{at}/a2a/rest/tasks/{id}:subscribe");
        let request = http.post(path).header("a2a-version", "1.0").header("last-event-id", "0");
        let events = super::Stream::of(request.send().await.unwrap()).rest().await;
        let numbers: Vec<u64> = events.iter().map(|(number, _)| *number).collect();
        assert!(numbers.iter().copied().eq((1..).take(numbers.len())), "{mode}: {numbers:?}");
        assert_eq!(shape(&events.last().unwrap().1), "statusUpdate COMPLETED");
    }
    assert!(!begun.is_empty() && !ended.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn ps1_a_node_that_dies_before_a_commit_has_said_nothing_of_it() {
    dies_at_each_commit("abort-before").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ps1_a_node_that_dies_after_a_commit_has_all_of_it() {
    dies_at_each_commit("abort-after").await;
}
