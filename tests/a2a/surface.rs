//! Who may call, in which version, and how errors look in both bindings.

use super::{Server, TOKEN, URI, bob, echo, hello, id_of, json_of, message, text};
use crate::common::World;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn the_card_says_what_is_here_and_is_cached_by_the_rules() {
    let world = World::new();
    let server = Server::start(echo(&world, "name = \"Alice's agent\"", &bob(&world))).await;
    let get = |name: &'static str, value: String| {
        let request = server.http.get(server.url("/.well-known/agent-card.json"));
        async move { request.header(name, value).send().await.unwrap() }
    };
    let first = get("accept", "*/*".into()).await; // no version is needed for the card
    assert_eq!(first.status(), 200);
    let header = |name: &str| first.headers()[name].to_str().unwrap().to_owned();
    assert!(header("cache-control").contains("max-age="));
    let (tag, modified) = (header("etag"), header("last-modified"));
    assert!(tag.starts_with('"') && modified.ends_with(" GMT"), "{tag} {modified}");
    let card = json_of(first).await;
    for required in [
        "name",
        "description",
        "supportedInterfaces",
        "version",
        "capabilities",
        "defaultInputModes",
        "defaultOutputModes",
        "skills",
    ] {
        assert!(card.get(required).is_some(), "{required}");
    }
    assert_eq!(card["name"], "Alice's agent");
    let interfaces = card["supportedInterfaces"].as_array().unwrap();
    let found: Vec<(&str, &str)> =
        interfaces.iter().map(|i| (text(i, "/protocolBinding"), text(i, "/url"))).collect();
    let (rpc, rest) = (server.url("/a2a"), server.url("/a2a/rest"));
    let quic = format!("quic://127.0.0.1:{}", server.handle().quic_address().port());
    let expected = [
        ("JSONRPC", rpc.as_str()),
        ("HTTP+JSON", rest.as_str()),
        (super::quic::BINDING, quic.as_str()),
    ];
    assert_eq!(found, expected);
    let extension = &card["capabilities"]["extensions"][0];
    assert_eq!((&extension["uri"], &extension["required"]), (&json!(URI), &json!(false)));
    let params = &extension["params"];
    assert_eq!(params["custody_ack_endpoint"], server.url("/abhyasa/custody_ack"));
    let kinds = params["supported_kinds"].as_array().unwrap();
    assert_eq!(kinds.len(), 3);
    for kind in kinds {
        assert_eq!(kind["obligation_endpoint"], server.url("/abhyasa/obligations"));
        assert_eq!(kind["backoff"], "exponential");
        // The reference refuses a profile whose retries do not span its deadline.
        let number = |name: &str| kind[name].as_f64().unwrap_or_else(|| panic!("{name}: {kind}"));
        let (base, cap) = (number("backoff_base_seconds"), number("backoff_cap_seconds"));
        let span: f64 = (0..kind["max_retries"].as_u64().unwrap().min(100_000))
            .map(|n| (base * 2f64.powi(n.min(60) as i32)).min(cap))
            .sum();
        assert!(span >= number("deadline_seconds") && cap < number("deadline_seconds"), "{kind}");
    }
    assert_eq!(get("if-none-match", tag.clone()).await.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(get("if-none-match", format!("\"x\", W/{tag}")).await.status(), 304);
    assert_eq!(get("if-none-match", "\"other\"".into()).await.status(), 200);
    assert_eq!(get("if-modified-since", modified).await.status(), StatusCode::NOT_MODIFIED);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_agent_there_is_no_a2a() {
    let world = World::new();
    let server = Server::start(super::config(&world, "alice", "", "")).await;
    let card = server.http.get(server.url("/.well-known/agent-card.json")).send().await.unwrap();
    assert_eq!(card.status(), 404);
    assert_eq!(server.rpc("ListTasks", &json!({})).send().await.unwrap().status(), 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_named_and_ours_or_the_call_is_refused() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let rpc = json!({ "jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {} });
    for (header, query, code) in [
        (None, "", Some(-32009)),
        (Some(""), "", Some(-32009)),
        (Some("0.3"), "", Some(-32009)),
        (Some("2.0"), "", Some(-32009)),
        (Some("1.0"), "", None),
        (Some("1.0.3"), "", None),
        (None, "?A2A-Version=1.0", None),
        (None, "?A2A-Version=0.3", Some(-32009)),
    ] {
        let mut post = server.http.post(server.url(&format!("/a2a{query}"))).json(&rpc);
        let mut get = server.http.get(server.url(&format!("/a2a/rest/tasks{query}")));
        if let Some(version) = header {
            post = post.header("a2a-version", version);
            get = get.header("a2a-version", version);
        }
        let answer = json_of(post.send().await.unwrap()).await;
        assert_eq!(answer["error"]["code"].as_i64(), code, "{header:?} {query}: {answer}");
        let rest = get.send().await.unwrap();
        assert_eq!(rest.status().as_u16(), if code.is_some() { 400 } else { 200 });
        if code.is_some() {
            let body = json_of(rest).await;
            assert_eq!(body["error"]["details"][0]["reason"], "VERSION_NOT_SUPPORTED");
        }
    }
    server.stop().await;
}

/// What each error is in each binding (A2A §5.4).
#[tokio::test(flavor = "multi_thread")]
async fn errors_are_those_of_the_specification_in_both_bindings() {
    let world = World::new();
    let server = Server::start(echo(&world, "", "")).await;
    let done = id_of(&server.send(hello("m-1")).await);
    let of_type = |media_type: &str| {
        json!({ "message": {
            "messageId": "m", "role": "ROLE_USER",
            "parts": [{ "text": "x", "mediaType": media_type }]
        } })
    };
    let more = json!({ "message": {
        "messageId": "m", "taskId": done, "role": "ROLE_USER", "parts": [{ "text": "x" }]
    } });
    let unknown = json!({ "message": {
        "messageId": "m", "taskId": "no-such-task", "role": "ROLE_USER", "parts": [{ "text": "x" }]
    } });
    let no_parts = json!({ "message": { "messageId": "m", "role": "ROLE_USER", "parts": [] } });
    let unsupported = of_type("application/x-unsupported-tck-type");
    let cases = [
        (
            "GetTask",
            json!({ "id": "nope" }),
            Method::GET,
            "/tasks/nope".into(),
            -32001,
            404,
            "NOT_FOUND",
            "TASK_NOT_FOUND",
        ),
        (
            "SendMessage",
            unknown,
            Method::POST,
            "/message:send".into(),
            -32001,
            404,
            "NOT_FOUND",
            "TASK_NOT_FOUND",
        ),
        (
            "CancelTask",
            json!({ "id": done }),
            Method::POST,
            format!("/tasks/{done}:cancel"),
            -32002,
            400,
            "FAILED_PRECONDITION",
            "TASK_NOT_CANCELABLE",
        ),
        (
            "SendMessage",
            more,
            Method::POST,
            "/message:send".into(),
            -32004,
            400,
            "FAILED_PRECONDITION",
            "UNSUPPORTED_OPERATION",
        ),
        (
            "SubscribeToTask",
            json!({ "id": done }),
            Method::GET,
            format!("/tasks/{done}:subscribe"),
            -32004,
            400,
            "FAILED_PRECONDITION",
            "UNSUPPORTED_OPERATION",
        ),
        (
            "SendMessage",
            unsupported,
            Method::POST,
            "/message:send".into(),
            -32005,
            400,
            "INVALID_ARGUMENT",
            "CONTENT_TYPE_NOT_SUPPORTED",
        ),
        (
            "SendMessage",
            no_parts,
            Method::POST,
            "/message:send".into(),
            -32602,
            400,
            "INVALID_ARGUMENT",
            "INVALID_PARAMS",
        ),
        (
            "ListTasks",
            json!({ "pageSize": 101 }),
            Method::GET,
            "/tasks?pageSize=101".into(),
            -32602,
            400,
            "INVALID_ARGUMENT",
            "INVALID_PARAMS",
        ),
        (
            "ListTasks",
            json!({ "historyLength": -5 }),
            Method::GET,
            "/tasks?historyLength=-5".into(),
            -32602,
            400,
            "INVALID_ARGUMENT",
            "INVALID_PARAMS",
        ),
        (
            "ListTasks",
            json!({ "status": "TASK_STATE_RUNNING" }),
            Method::GET,
            "/tasks?status=TASK_STATE_RUNNING".into(),
            -32602,
            400,
            "INVALID_ARGUMENT",
            "INVALID_PARAMS",
        ),
        (
            "GetTaskPushNotificationConfig",
            json!({ "taskId": done, "id": "c" }),
            Method::GET,
            format!("/tasks/{done}/pushNotificationConfigs/c"),
            -32001,
            404,
            "NOT_FOUND",
            "TASK_NOT_FOUND",
        ),
        (
            "tasks/get",
            json!({}),
            Method::GET,
            "/nothing".into(),
            -32601,
            404,
            "NOT_FOUND",
            "METHOD_NOT_FOUND",
        ),
    ];
    for (method, params, verb, path, code, status, name, reason) in cases {
        let response = server.rpc(method, &params).send().await.unwrap();
        assert_eq!(response.status(), 200, "{method}");
        let answer = json_of(response).await;
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!("call-1")));
        assert_eq!(answer["error"]["code"], code, "{method}: {answer}");
        let info = &answer["error"]["data"][0];
        assert_eq!(info["@type"], "type.googleapis.com/google.rpc.ErrorInfo");
        assert_eq!(
            (&info["reason"], &info["domain"]),
            (&json!(reason), &json!("a2a-protocol.org"))
        );
        let body = (verb == Method::POST).then_some(&params);
        let (found, answer) = server.rest(verb, &path, body).await;
        let error = &answer["error"];
        assert_eq!(found, status, "{path}: {answer}");
        assert_eq!((&error["code"], &error["status"]), (&json!(status), &json!(name)), "{path}");
        assert_eq!(error["details"][0]["reason"], reason, "{path}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_json_rpc_gets_its_code_and_what_is_no_json_too() {
    let world = World::new();
    let server = Server::start(echo(&world, "request_len_max = 2000", "")).await;
    for (content_type, body, code) in [
        ("application/json", "{", -32700),
        ("application/json", "[]", -32600),
        ("application/json", "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ListTasks\"}", -32600),
        ("application/json", "{\"jsonrpc\":\"2.0\",\"method\":\"ListTasks\"}", -32600),
        ("application/json", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}", -32600),
        (
            "application/json",
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ListTasks\",\"params\":[]}",
            -32602,
        ),
        ("text/plain", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ListTasks\"}", -32005),
    ] {
        let post = server.request(Method::POST, "/a2a/").header("content-type", content_type);
        let answer = json_of(post.body(body).send().await.unwrap()).await;
        assert_eq!(answer["error"]["code"], code, "{body}: {answer}");
    }
    let long = message("m", &["x".repeat(3000).as_str()], json!({}));
    let (status, body) =
        server.rest(Method::POST, "/message:send", Some(&json!({ "message": long }))).await;
    assert_eq!(status, 413, "{body}");
    let (status, _) = server.rest(Method::PUT, "/tasks", None).await;
    assert_eq!(status, 405);
    // The answer's media type is that of the question, and else that of A2A.
    let typed = async |content_type: Option<&str>| {
        let mut request = server.request(Method::POST, "/a2a/rest/tasks/x:cancel");
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let response = request.send().await.unwrap();
        response.headers()["content-type"].to_str().unwrap().to_owned()
    };
    assert_eq!(typed(Some("application/json")).await, "application/json");
    assert_eq!(typed(Some("application/a2a+json")).await, "application/a2a+json");
    assert_eq!(typed(None).await, "application/a2a+json");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_sees_the_tasks_of_another() {
    let world = World::new();
    let server = Server::start(echo(&world, "", &bob(&world))).await;
    let mine = id_of(&server.send(hello("m-1")).await);
    let bobs = async |method: &str, params: Value| {
        let request = server.rpc(method, &params).bearer_auth(TOKEN);
        json_of(request.send().await.unwrap()).await
    };
    let sent = bobs("SendMessage", json!({ "message": hello("m-1") })).await;
    let his = id_of(&sent["result"]["task"]);
    assert_ne!(mine, his, "a message id belongs to its sender");
    // Not there, and not his, look the same.
    let strange = bobs("GetTask", json!({ "id": mine })).await;
    let missing = bobs("GetTask", json!({ "id": "nope" })).await;
    assert_eq!(strange["error"]["code"], -32001);
    assert_eq!(strange["error"]["message"], missing["error"]["message"]);
    let listed = bobs("ListTasks", json!({})).await;
    assert_eq!(listed["result"]["totalSize"], 1);
    assert_eq!(listed["result"]["tasks"][0]["id"], his.as_str());
    for method in ["CancelTask", "SubscribeToTask"] {
        assert_eq!(server.refused(method, json!({ "id": his })).await, -32001, "{method}");
    }
    let hook = json!({ "taskId": his, "url": "http://127.0.0.1:9/" });
    assert_eq!(server.refused("CreateTaskPushNotificationConfig", hook).await, -32001);
    assert_eq!(
        server.refused("ListTaskPushNotificationConfigs", json!({ "taskId": his })).await,
        -32001
    );
    // A tenant is a world of its own, in a path or a body.
    let (status, _) = server.rest(Method::GET, &format!("/acme/tasks/{mine}"), None).await;
    assert_eq!(status, 404);
    let (status, body) = server
        .rest(Method::POST, "/acme/message:send", Some(&json!({ "message": hello("m-2") })))
        .await;
    assert_eq!(status, 200, "{body}");
    let acmes = id_of(&body["task"]);
    assert_eq!(
        server.call("GetTask", json!({ "id": acmes, "tenant": "acme" })).await["id"],
        acmes.as_str()
    );
    assert_eq!(server.refused("GetTask", json!({ "id": acmes })).await, -32001);
    // A token that is nobody's is refused, and so is a web page.
    for request in [
        server.rpc("ListTasks", &json!({})).bearer_auth("token-of-nobody-0123456"),
        server.request(Method::GET, "/a2a/rest/tasks").bearer_auth("token-of-nobody-0123456"),
    ] {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 401);
        assert_eq!(response.headers()["www-authenticate"], "Bearer");
    }
    let page = server.rpc("ListTasks", &json!({})).header("origin", "http://evil.example");
    assert_eq!(page.send().await.unwrap().status(), 403);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn extensions_are_negotiated_and_may_be_required() {
    let world = World::new();
    let server = Server::start(echo(&world, "extension_required = true", "")).await;
    assert_eq!(server.refused("SendMessage", json!({ "message": hello("m") })).await, -32008);
    let (status, body) = server.rest(Method::GET, "/tasks", None).await;
    assert_eq!(
        (status, &body["error"]["details"][0]["reason"]),
        (400, &json!("EXTENSION_SUPPORT_REQUIRED"))
    );
    let named = format!("https://example.org/other/v1, {URI}");
    let response = server
        .rpc("SendMessage", &json!({ "message": hello("m") }))
        .header("a2a-extensions", named)
        .send()
        .await
        .unwrap();
    assert_eq!(response.headers()["a2a-extensions"], URI, "those that are active");
    assert_eq!(
        json_of(response).await["result"]["task"]["status"]["state"],
        "TASK_STATE_COMPLETED"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_extended_card_tells_a_peer_what_it_may_issue() {
    let world = World::new();
    let peer = bob(&world).replace(
        "may_issue = [\"anumati.consent\", \"phala.belief_update\", \"oauth.token\"]",
        "may_issue = [\"oauth.token\"]",
    );
    let server = Server::start(echo(&world, "", &peer)).await;
    let kinds = |card: &Value| {
        let kinds = card["capabilities"]["extensions"][0]["params"]["supported_kinds"].clone();
        kinds
            .as_array()
            .unwrap()
            .iter()
            .map(|kind| text(kind, "/kind").to_owned())
            .collect::<Vec<_>>()
    };
    let request = server.request(Method::GET, "/a2a/rest/extendedAgentCard").bearer_auth(TOKEN);
    let card = json_of(request.send().await.unwrap()).await;
    assert_eq!(kinds(&card), ["oauth.token"]);
    assert_eq!(kinds(&server.call("GetExtendedAgentCard", json!({})).await).len(), 3);
    server.stop().await;
}
