//! Two nodes: the agent is behind one of them, and the other calls it over MOQT.

use super::*;
use crate::common::{ends, issue, revoke};
use proto::record::Terminal;

/// Alice's node in front of the agent behind Carol's, which it calls over MOQT.
async fn gateway(world: &World) -> (Server, Server) {
    let quick = "[quic]\nidle_timeout_ms = 2000\nkeep_alive_ms = 300\n";
    let at = free_address().unwrap();
    let more = format!("[moq]\nenabled = true\n{quick}{}", peer_toml("alice", None));
    let mut carol = config(world, "carol", "agent = \"echo\"", &more);
    carol.quic.listen = at;
    let carol = Server::start(carol).await;
    let agent = format!("agent = \"{}\"\nagent_over = \"moqt\"", id("carol"));
    let peer = format!("{quick}{}", peer_toml("carol", Some(at)));
    (Server::start(config(world, "alice", &agent, &peer)).await, carol)
}

fn said(task: &Value) -> Vec<String> {
    let parts = task["artifacts"][0]["parts"].as_array().cloned().unwrap_or_default();
    parts.iter().map(|part| text(part, "/text").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_calls_the_agent_of_another_over_moqt() {
    let world = World::new();
    let (alice, carol) = gateway(&world).await;
    let task = alice.send(hello("m-1")).await;
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{task}");
    assert_eq!(said(&task), ["hello"]);
    let failed = alice.send(message("m-2", &["x"], json!({ "fail": "no luck" }))).await;
    assert_eq!(failed["status"]["message"]["parts"][0]["text"], "no luck");
    let asked = alice.send(message("m", &["?"], json!({ "ask": true }))).await;
    assert_eq!(asked["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    let mut answer = message("m-3", &["this"], json!({}));
    answer["taskId"] = asked["id"].clone();
    let answered = alice.send(answer).await;
    assert_eq!(said(&answered), ["this"], "{answered}");
    let slow = alice.begin(message("m-4", &["x"], json!({ "delay_ms": 50_000 }))).await;
    let canceled = eventually("its id", async || {
        let request = alice.rpc("CancelTask", &json!({ "id": slow["id"] }));
        json_of(request.send().await.unwrap()).await.get("result").cloned()
    })
    .await;
    assert_eq!(canceled["status"]["state"], "TASK_STATE_CANCELED");
    alice.stop().await;
    carol.stop().await;
}

/// Whichever of the two goes down: each event comes once, and the task ends.
#[tokio::test(flavor = "multi_thread")]
async fn ps1_a_task_over_two_nodes_and_moqt_survives_crashes_of_either() {
    let world = World::new();
    let (alice, carol) = gateway(&world).await;
    let parts = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let task = id_of(&alice.begin(message("m", &parts, json!({ "delay_ms": 300 }))).await);
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
    let told = shapes(&alice.subscribe(&task, Some(0)).await.rest().await);
    assert_eq!(told.len(), parts.len() + 3, "each once: {told:?}");
    alice.stop().await;
    carol.stop().await;
}

/// More tasks at a time than one session follows.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_follows_more_tasks_than_one_session_has_places() {
    let world = World::new();
    let (alice, carol) = gateway(&world).await;
    let mut tasks = Vec::new();
    for n in 0..110 {
        let slow = message(&format!("m-{n}"), &["x"], json!({ "delay_ms": 1_000 }));
        tasks.push(id_of(&alice.begin(slow).await));
    }
    for task in tasks {
        let done = alice.reaches(&task, "TASK_STATE_COMPLETED").await;
        assert_eq!(said(&done), ["x"]);
    }
    alice.stop().await;
    carol.stop().await;
}

/// Custody over MOQT and calls over MOQT, each in sessions of its own.
#[tokio::test(flavor = "multi_thread")]
async fn custody_and_calls_do_not_disturb_one_another() {
    let world = World::new();
    let (alices, carols) = (free_address().unwrap(), free_address().unwrap());
    let moqt = |name, at| format!("{}binding = \"moqt\"\n", peer_toml(name, Some(at)));
    let enabled = "[moq]\nenabled = true\n";
    let more = format!("{enabled}{}", moqt("alice", alices));
    let mut carol = config(&world, "carol", "agent = \"echo\"", &more);
    carol.quic.listen = carols;
    let agent = format!("agent = \"{}\"\nagent_over = \"moqt\"", id("carol"));
    let more = format!("{enabled}{}", moqt("carol", carols));
    let mut alice = config(&world, "alice", &agent, &more);
    alice.quic.listen = alices;
    let (carol, alice) = (Server::start(carol).await, Server::start(alice).await);
    let task = alice.send(hello("m-1")).await;
    assert_eq!(said(&task), ["hello"], "{task}");
    issue(alice.handle(), revoke("ob-1", "carol", "calendar")).await;
    ends(alice.handle(), "ob-1", Terminal::Applied).await;
    issue(carol.handle(), revoke("ob-2", "alice", "calendar")).await;
    ends(carol.handle(), "ob-2", Terminal::Applied).await;
    let task = alice.send(hello("m-2")).await;
    assert_eq!(said(&task), ["hello"], "{task}");
    alice.stop().await;
    carol.stop().await;
}
