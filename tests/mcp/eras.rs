//! What both eras of the protocol see of the node, by raw requests.

use super::{Server, alice, json, message_of, revoke};
use crate::common::World;
use serde_json::Value;

#[tokio::test]
async fn a_change_is_told_in_both_eras() {
    let world = World::new();
    let server = Server::start(alice(&world, "")).await;
    let id = server.begin().await.unwrap();
    let mut of_session = server.follow(&id).await;
    let subscribe = json!({
        "jsonrpc": "2.0", "id": 2, "method": "resources/subscribe", "params": { "uri": "abhyasa://pending" }
    });
    let answer = message_of(server.in_session(&id, &subscribe).send().await.unwrap()).await;
    assert_eq!(answer["result"], json!({}), "{answer}");
    let mut alone = server.listen(&["abhyasa://pending", "abhyasa://nothing"]).await;
    let issued = server.tool("issue_obligation", revoke("ob-1", "mail")).await;
    assert_eq!(issued["custody"], true, "{issued}");
    of_session.updated("abhyasa://pending").await;
    let told = alone.updated("abhyasa://pending").await;
    let of = &told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"];
    assert_eq!(*of, "call-1", "{told}");
    // What a grant sets is no transfer, and no event tells of it.
    let mut authorizations = server.listen(&["abhyasa://authorizations"]).await;
    let payload = json!({ "decision": "grant", "scope": "files" });
    let grant = json!({ "kind": crate::common::CONSENT, "target": crate::common::id("bob"), "payload": payload });
    assert_eq!(server.tool("issue_obligation", grant).await["custody"], false);
    authorizations.updated("abhyasa://authorizations").await;
    let answer = server.ask("resources/read", json!({ "uri": "abhyasa://authorizations" })).await;
    let text = answer["result"]["contents"][0]["text"].as_str().unwrap();
    assert!(text.contains(r#""scope":"files","allowed":true"#), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn one_notification_stands_for_many_changes() {
    let world = World::new();
    let server = Server::start(alice(&world, "")).await;
    let mut stream = server.listen(&["abhyasa://pending"]).await;
    let node = server.handle();
    for round in 0..200 {
        let draft = crate::common::revoke(&format!("ob-{round}"), "bob", &format!("scope-{round}"));
        crate::common::issue(&node, draft).await;
    }
    stream.updated("abhyasa://pending").await;
    // What came since waits as one; then there is nothing to tell until something changes again.
    let answer = server.ask("resources/read", json!({ "uri": "abhyasa://pending" })).await;
    let text = answer["result"]["contents"][0]["text"].as_str().unwrap();
    let page: Value = serde_json::from_str(text).unwrap();
    assert_eq!(page["items"].as_array().unwrap().len(), 100, "a page at a time");
    let next = format!("abhyasa://pending?after={}", page["next"].as_str().unwrap());
    let answer = server.ask("resources/read", json!({ "uri": next })).await;
    let text = answer["result"]["contents"][0]["text"].as_str().unwrap();
    let page: Value = serde_json::from_str(text).unwrap();
    assert_eq!(page["items"].as_array().unwrap().len(), 100, "the rest");
    assert_eq!(page["items"][99]["obligation_id"], "ob-199");
    let mut told = 1;
    crate::common::issue(&node, crate::common::revoke("last", "bob", "last")).await;
    server.stop().await;
    while let Some(message) = stream.next().await {
        told += u32::from(message["method"] == "notifications/resources/updated");
    }
    assert!(told < 100, "{told} notifications of 201 changes");
}

#[tokio::test]
async fn a_call_ends_with_its_client_and_the_obligation_does_not() {
    let world = World::new();
    let server = Server::start(alice(&world, "")).await;
    let mut arguments = revoke("ob-1", "mail");
    arguments["wait_seconds"] = json!(300);
    let call = json!({ "name": "issue_obligation", "arguments": arguments });
    let waiting = server.modern("tools/call", call).send();
    let node = server.handle();
    let taken = crate::common::eventually("the issue", async || {
        node.status(&crate::common::ob("ob-1")).await.unwrap()
    });
    tokio::select! {
        answer = waiting => panic!("bob is not there: {answer:?}"),
        taken = taken => assert_eq!(taken.obligation.id, crate::common::ob("ob-1")),
    }
    // The client is gone, and asks again under the same id.
    let again = server.tool("issue_obligation", revoke("ob-1", "mail")).await;
    assert_eq!(again["existing"], true, "{again}");
    let status = server.tool("obligation_status", json!({ "obligation_id": "ob-1" })).await;
    assert_eq!(status["state"], "pending", "{status}");
    server.stop().await;
}

#[tokio::test]
async fn errors_have_codes_of_their_own() {
    let world = World::new();
    let server = Server::start(alice(&world, "")).await;
    let code = async |method: &str, params: Value| {
        let answer = server.ask(method, params).await;
        answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{method}: {answer}"))
    };
    assert_eq!(
        code("tools/call", json!({ "name": "no_such_tool", "arguments": {} })).await,
        -32602
    );
    assert_eq!(code("resources/read", json!({ "uri": "abhyasa://nothing" })).await, -32602);
    assert_eq!(code("resources/read", json!({ "uri": "abhyasa://pending?after=x" })).await, -32602);
    assert_eq!(code("no/such/method", json!({})).await, -32601);
    assert_eq!(
        code("prompts/get", json!({ "name": "test_simple_prompt" })).await,
        -32601,
        "no fixtures"
    );
    // What a tool cannot do is for the model to read.
    let call = json!({ "name": "issue_obligation", "arguments": { "kind": "x", "wait": 3 } });
    let answer = server.ask("tools/call", call).await;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    let said = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(said.contains("unknown field `wait`") && said.contains("[malformed]"), "{said}");
    server.stop().await;
}

#[tokio::test]
async fn ac1_what_would_be_issued_is_asked_without_issuing_it() {
    let world = World::new();
    let server = Server::start(alice(&world, "")).await;
    let check = async |arguments: Value| server.tool("check_admissibility", arguments).await;
    let first = check(revoke("ob-1", "mail")).await;
    assert_eq!(
        (&first["verdict"], &first["sequence"], &first["deadline_seconds"], &first["existing"]),
        (&json!("custody"), &json!(1), &json!(120), &json!(false)),
        "{first}"
    );
    assert_eq!(server.handle().pending(), 0);
    server.tool("issue_obligation", revoke("ob-1", "mail")).await;
    let same = check(revoke("ob-1", "mail")).await;
    assert_eq!((&same["verdict"], &same["existing"]), (&json!("custody"), &json!(true)), "{same}");
    let other = check(revoke("ob-1", "files")).await;
    assert_eq!(
        (&other["verdict"], &other["rule"]),
        (&json!("refused"), &json!("id_taken")),
        "{other}"
    );
    let mut old = revoke("ob-2", "mail");
    old["sequence"] = json!(1);
    assert_eq!(check(old).await["rule"], "superseded");
    let mut short = revoke("ob-3", "mail");
    short["max_retries"] = json!(1);
    assert_eq!(check(short).await["rule"], "profile");
    assert_eq!(check(revoke("ob-4", "mail")).await["sequence"], 2, "the next");
    server.stop().await;
}
