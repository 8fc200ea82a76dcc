//! What a caller over MOQT cannot make a node do.

use super::*;

/// What the node takes at a time in one session.
const FOLLOWED_MAX: usize = 64;
const INBOXES_MAX: usize = 4;
const CALLS_MAX: usize = 128;

#[tokio::test(flavor = "multi_thread")]
async fn bd1_so_many_tasks_are_followed_in_a_session_and_so_many_inboxes_answered() {
    let world = World::new();
    let server = Server::start(alice(&world, "", &peer_toml("bob", None))).await;
    let mut caller = Caller::dial(&world, &server, "bob", CONTEXT).await;
    let mut follows = Vec::new();
    for n in 0..FOLLOWED_MAX {
        let slow = slow(&format!("m-{n}"), &["a"], 60_000);
        follows.push(caller.begin("SendStreamingMessage", slow, json!({})).await);
    }
    let more = slow("more", &["a"], 60_000);
    let refused = caller.asks("SendStreamingMessage", more.clone(), json!({})).await;
    assert_eq!(refused["error"]["data"][0]["reason"], "RESOURCE_EXHAUSTED", "{refused}");
    assert_eq!(refused["error"]["data"][1]["@type"], "type.googleapis.com/google.rpc.RetryInfo");
    let mut more = more;
    more["configuration"] = json!({ "returnImmediately": true });
    let begun = caller.result("SendMessage", more).await;
    let task = id_of(&begun["task"]);
    let refused = caller.follow(&task, 0).await.err();
    assert_eq!(refused, Some(ServeError::Closed(EXCESSIVE_LOAD)));
    assert_eq!(
        caller.result("ListTasks", json!({ "pageSize": 1 })).await["totalSize"],
        FOLLOWED_MAX + 1,
        "what was refused did not begin, and the session is there"
    );
    drop(follows.pop());
    let again = eventually("the place", async || caller.follow(&task, 0).await.ok()).await;
    drop(again);

    let inbox = async |agent: &str, context: &str| {
        caller.link.announce(&["a2a", "inbox", agent, context]).await
    };
    let me = field("alice");
    for (agent, context) in [
        (field("carol").as_str(), OTHER),
        (&me, "short"),
        (&me, &OTHER.to_uppercase()),
        (&me, &OTHER.replace('f', "g")),
    ] {
        let refused = inbox(agent, context).await.err();
        assert_eq!(refused, Some(ServeError::Closed(UNINTERESTED)), "{agent} {context}");
    }
    let mut inboxes = Vec::new();
    for n in 1..INBOXES_MAX {
        inboxes.push(inbox(&me, &format!("{n:032x}")).await.unwrap());
    }
    let full = inbox(&me, OTHER).await.err();
    assert_eq!(full, Some(ServeError::Closed(EXCESSIVE_LOAD)));
    drop(inboxes.pop());
    drop(eventually("a place", async || inbox(&me, OTHER).await.ok()).await);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bd1_so_many_calls_of_a_session_are_answered_at_a_time() {
    let world = World::new();
    let server = Server::start(alice(&world, "", &peer_toml("bob", None))).await;
    let mut caller = Caller::dial(&world, &server, "bob", CONTEXT).await;
    let waits =
        |n: usize| asking("SendMessage", slow(&format!("m-{n}"), &["a"], 60_000), json!({}));
    let mut refused = Vec::new();
    for n in 0..CALLS_MAX {
        caller.ask(waits(n));
    }
    // Whichever come last are too many.
    for n in CALLS_MAX..CALLS_MAX + 2 {
        refused.push(caller.ask(waits(n)));
    }
    let told = eventually("refusals", async || {
        let answers = caller.answers.lock().unwrap();
        (answers.len() == refused.len()).then(|| answers.values().cloned().collect::<Vec<_>>())
    })
    .await;
    for answer in told {
        assert_eq!(answer["error"]["data"][0]["reason"], "RESOURCE_EXHAUSTED", "{answer}");
    }
    server.stop().await;
}

/// A library that has not begun to read a track keeps 8 groups: what is there at once comes in fewer.
#[tokio::test(flavor = "multi_thread")]
async fn bd1_many_events_that_are_there_at_once_come_in_few_groups() {
    let world = World::new();
    let server = Server::start(alice(&world, "", &peer_toml("bob", None))).await;
    let mut caller = Caller::dial(&world, &server, "bob", CONTEXT).await;
    let parts: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let many = json!({ "message": message("m", &parts, json!({ "delay_ms": 1 })) });
    let task = id_of(&caller.result("SendMessage", many).await["task"]);
    let cursor = json!({ "Last-Event-ID": "0" });
    let (_, mut follow) = caller.begin("SubscribeToTask", json!({ "id": task }), cursor).await;
    let first = follow.next;
    let events = follow.rest().await;
    assert!(events.iter().map(|(number, _)| *number).eq(1..=203), "{}", events.len());
    assert!(follow.next - first <= 8, "{} groups", follow.next - first);
    server.stop().await;
}

/// What is too long ends the session, with a word, and the next one is as any.
#[tokio::test(flavor = "multi_thread")]
async fn bd1_a_call_that_is_too_long_is_refused_and_the_session_ended() {
    let world = World::new();
    let config = alice(&world, "request_len_max = 1024", &peer_toml("bob", None));
    let server = Server::start(config).await;
    for many in [false, true] {
        let mut caller = Caller::dial(&world, &server, "bob", CONTEXT).await;
        let number = if many { caller.say_more() } else { caller.say(vec![b'x'; 4_000_000]) };
        let answer = caller.answer(number).await;
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
        let why = if many { "second object" } else { "1024 bytes" };
        assert!(text(&answer, "/error/message").contains(why), "{answer}");
        let ended = tokio::time::timeout(PATIENCE, caller.link.ended).await;
        let ended = ended.expect("an end in time").unwrap();
        assert!(ended.contains("error_code: 2"), "malformed: {ended}");
    }
    let mut caller = Caller::dial(&world, &server, "bob", CONTEXT).await;
    assert_eq!(caller.result("ListTasks", json!({})).await["totalSize"], 0);
    server.stop().await;
}

/// The same group twice, as no library writes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_call_is_not_another_call() {
    let world = World::new();
    let server = Server::start(alice(&world, "", &peer_toml("bob", None))).await;
    let mut caller = Caller::dial(&world, &server, "bob", CONTEXT).await;
    let call = asking("SendMessage", json!({ "message": hello("m-1") }), json!({}));
    let number = caller.ask(call.clone());
    assert_eq!(
        caller.answer(number).await["result"]["task"]["status"]["state"],
        "TASK_STATE_COMPLETED"
    );
    let mut copy = call;
    copy["jsonrpc"] = json!("2.0");
    copy["id"] = json!("copy");
    let copy = copy.to_string();
    let short = |number: u64| {
        assert!(number < 1 << 14, "two bytes (draft-ietf-moq-transport-18 §1.4.1)");
        [0x80 | (number >> 8) as u8, number as u8]
    };
    for group in [number, number, 0] {
        let mut stream = caller.link.raw.connection.open_uni().await.unwrap();
        // SUBGROUP_HEADER: subgroup 0, a priority, no properties.
        let mut bytes = vec![0x10];
        bytes.extend(short(caller.alias));
        bytes.extend(short(group));
        bytes.push(96);
        bytes.extend([0]); // the first object
        bytes.extend(short(copy.len() as u64));
        bytes.extend(copy.as_bytes());
        stream.write_all(&bytes).await.unwrap();
        stream.finish().unwrap();
        let _ = tokio::time::timeout(PATIENCE, stream.stopped()).await.expect("taken in time");
    }
    // One that is new is taken from bare bytes all the same: so the copies were what they should be.
    let new = caller.next;
    caller.next += 1;
    let mut stream = caller.link.raw.connection.open_uni().await.unwrap();
    let call = copy.replace("m-1", "m-2");
    let mut bytes = vec![0x10];
    bytes.extend(short(caller.alias));
    bytes.extend(short(new));
    bytes.extend([96, 0]);
    bytes.extend(short(call.len() as u64));
    bytes.extend(call.as_bytes());
    stream.write_all(&bytes).await.unwrap();
    stream.finish().unwrap();
    assert_eq!(caller.answer(new).await["id"], "copy");
    assert_eq!(caller.result("ListTasks", json!({})).await["totalSize"], 2);
    assert!(caller.answers.lock().unwrap().is_empty(), "copies have no answers");
    server.stop().await;
}
