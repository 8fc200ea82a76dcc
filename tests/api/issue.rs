use super::{BELIEF, CONSENT, Server, revoke, with};
use abhyasa::node::Builder;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn an_obligation_is_followed_from_issue_to_both_ends() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = Server::pair(root.path()).await;

    let body = with(revoke("calendar.read"), json!({ "obligation_id": "ob/1 ä" }));
    let (status, issued) = a.post("/v1/obligations?wait_seconds=10", body.clone()).await;
    assert_eq!(status, StatusCode::CREATED, "{issued}");
    assert_eq!(
        (&issued["custody"], &issued["existing"], &issued["sequence"]),
        (&json!(true), &json!(false), &json!(1))
    );
    assert_eq!(issued["outcome"]["state"], "applied", "{issued}");

    // By id, percent-encoded, on both sides.
    let (status, ended) = a.get("/v1/obligations/ob%2F1%20%C3%A4").await;
    assert_eq!(
        (status, &ended["state"], &ended["role"]),
        (StatusCode::OK, &json!("applied"), &json!("custodian"))
    );
    assert!(ended["at"].as_str().unwrap().ends_with('Z'));
    let (_, receipt) = b.get("/v1/obligations/ob%2F1%20%C3%A4").await;
    assert_eq!(
        (&receipt["state"], &receipt["role"], &receipt["issuer"]),
        (&json!("applied"), &json!("receiver"), &json!("spiffe://t/a"))
    );
    assert_eq!(
        b.get("/v1/obligations/ob%2F1%20%C3%A4?issuer=spiffe://t/a").await.0,
        StatusCode::OK
    );
    assert_eq!(
        b.get("/v1/obligations/ob%2F1%20%C3%A4?issuer=spiffe://t/c").await.0,
        StatusCode::NOT_FOUND
    );

    // Again is no second time; with other content it is a conflict.
    let (status, again) = a.post("/v1/obligations", body.clone()).await;
    assert_eq!((status, &again["existing"]), (StatusCode::OK, &json!(true)));
    let other = with(revoke("mail.send"), json!({ "obligation_id": "ob/1 ä" }));
    assert_eq!(a.refused(other).await, (409, "id_taken".to_owned()));
    assert_eq!(
        a.refused(with(revoke("calendar.read"), json!({ "sequence": 1 }))).await,
        (409, "superseded".to_owned())
    );

    // What an agent asks before it acts, on both sides.
    let (_, check) = b.get("/v1/authorizations/check?agent=spiffe://t/a&scope=calendar.read").await;
    assert_eq!(
        (&check["allowed"], &check["why"], &check["sequence"]),
        (&json!(false), &json!("withheld"), &json!(1))
    );
    let (_, check) = a
        .get("/v1/authorizations/check?agent=spiffe://t/b&scope=calendar.read&role=principal")
        .await;
    assert_eq!((&check["allowed"], &check["obligation_id"]), (&json!(false), &json!("ob/1 ä")));

    // A grant is inadmissible: best effort, and there is no outcome to wait for.
    let grant = json!({ "kind": CONSENT, "target": "spiffe://t/b", "payload": { "decision": "grant", "scope": "calendar.read" } });
    let (status, issued) = a.post("/v1/obligations?wait_seconds=10", grant).await;
    assert_eq!(
        (status, &issued["custody"], issued.get("outcome")),
        (StatusCode::CREATED, &json!(false), None)
    );
    assert_eq!(issued["obligation_id"].as_str().unwrap().len(), 32, "a random id");
    let allowed = async {
        loop {
            let (_, check) =
                b.get("/v1/authorizations/check?agent=spiffe://t/a&scope=calendar.read").await;
            if check["allowed"] == true {
                return check;
            }
        }
    };
    let check = tokio::time::timeout(std::time::Duration::from_secs(5), allowed).await.unwrap();
    assert_eq!(check["why"], "granted");

    // Weights: the receiver's moved, inside the bounds.
    let update = json!({ "kind": BELIEF, "target": "spiffe://t/b", "payload": { "weight_delta": -0.25, "weight_key": "w" } });
    a.post("/v1/obligations?wait_seconds=10", update).await;
    let (_, weights) = b.get("/v1/weights?agent=spiffe://t/a&role=receiver").await;
    assert_eq!(weights["items"][0]["weight"], json!(0.25), "{weights}");
    assert_eq!(weights["items"][0]["weight_key"], "w");
    let (_, authorizations) = b.get("/v1/authorizations").await;
    assert_eq!(
        authorizations["items"].as_array().unwrap().len(),
        1,
        "weights are not among them: {authorizations}"
    );
    assert_eq!(authorizations["items"][0]["allowed"], true);
    assert_eq!(b.get("/v1/authorizations?role=principal").await.1["items"], json!([]));

    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_issued_is_refused_with_its_reason() {
    let root = tempfile::tempdir().unwrap();
    let config = super::config(
        root.path(),
        "a",
        "body_len_max = 70000\nbatch_max = 4",
        &super::peer_entry("b", None, ""),
    );
    let a = Server::start(Builder::new(config)).await;
    let refused = |body: Value| a.refused(body);
    let code = |code: &str| code.to_owned();

    assert_eq!(
        refused(with(revoke("s"), json!({ "target": "spiffe://t/c" }))).await,
        (404, code("unknown_target"))
    );
    assert_eq!(
        refused(with(revoke("s"), json!({ "target": "spiffe://t/a" }))).await,
        (400, code("oneself"))
    );
    let token = json!({ "kind": "oauth.token", "target": "spiffe://t/b", "payload": { "action": "revoke" } });
    assert_eq!(refused(token).await, (403, code("not_allowed")));
    let belief = |delta: Value| json!({ "kind": BELIEF, "target": "spiffe://t/b", "payload": { "weight_delta": delta } });
    assert_eq!(refused(belief(json!(-2))).await, (400, code("polarity")));
    assert_eq!(refused(belief(Value::Null)).await, (400, code("polarity")));
    assert_eq!(
        refused(with(revoke("s"), json!({ "max_retries": 1 }))).await,
        (400, code("profile"))
    );
    for malformed in [
        json!({}),
        json!([]),
        json!({ "kind": CONSENT, "payload": {} }),
        json!({ "obligations": [], "kind": CONSENT }),
        json!({ "obligations": {} }),
        with(revoke("s"), json!({ "deadline": 5 })),
        with(revoke("s"), json!({ "deadline_seconds": 0 })),
        with(revoke("s"), json!({ "deadline_seconds": 400_000_000 })),
        with(revoke("s"), json!({ "max_retries": 100_001 })),
        with(revoke("s"), json!({ "obligation_id": " " })),
        with(revoke("s"), json!({ "payload": [] })),
    ] {
        assert_eq!(refused(malformed.clone()).await, (400, code("malformed")), "{malformed}");
    }
    let send = |content_type: &'static str, body: String| {
        a.request(Method::POST, "/v1/obligations")
            .header("content-type", content_type)
            .body(body)
            .send()
    };
    let twice = r#"{"kind":"anumati.consent","target":"spiffe://t/b","payload":{"decision":"revoke","decision":"grant"}}"#;
    assert_eq!(
        send("application/json", twice.into()).await.unwrap().status(),
        StatusCode::BAD_REQUEST,
        "a name twice"
    );
    assert_eq!(
        send("text/plain", revoke("s").to_string()).await.unwrap().status(),
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    );
    assert_eq!(
        send("application/json", "x".repeat(70_001)).await.unwrap().status(),
        StatusCode::PAYLOAD_TOO_LARGE
    );
    let large = with(
        revoke("s"),
        json!({ "payload": { "decision": "revoke", "note": "x".repeat(66_000) } }),
    );
    assert_eq!(
        a.post("/v1/obligations", large).await.0,
        StatusCode::BAD_REQUEST,
        "over the payload limit"
    );
    assert_eq!(
        a.post("/v1/obligations?wait=3", revoke("s")).await.0,
        StatusCode::BAD_REQUEST,
        "unknown parameter"
    );
    assert_eq!(a.get("/v1/pending").await.1["items"], json!([]), "nothing of it was kept");
    a.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_answers_for_each_and_lists_come_in_pages() {
    let root = tempfile::tempdir().unwrap();
    let config =
        super::config(root.path(), "a", "batch_max = 4", &super::peer_entry("b", None, ""));
    let a = Server::start(Builder::new(config)).await;
    let named =
        |n: usize| with(revoke(&format!("s{n}")), json!({ "obligation_id": format!("ob-{n}") }));

    let batch = json!({ "obligations": [named(1), with(named(2), json!({ "target": "x" })), with(named(3), json!({ "deadline_seconds": 0 })), named(4)] });
    let (status, answer) = a.post("/v1/obligations", batch).await;
    assert_eq!(status, StatusCode::OK);
    let results = answer["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    assert_eq!(
        (&results[0]["ok"]["obligation_id"], &results[3]["ok"]["obligation_id"]),
        (&json!("ob-1"), &json!("ob-4"))
    );
    assert_eq!(
        (&results[1]["error"]["code"], &results[2]["error"]["code"]),
        (&json!("unknown_target"), &json!("malformed"))
    );
    assert_eq!(
        a.post("/v1/obligations", json!({ "obligations": [] })).await.1["results"],
        json!([])
    );
    let five: Vec<Value> = (0..5).map(named).collect();
    assert_eq!(a.refused(json!({ "obligations": five })).await, (413, "too_large".to_owned()));
    let (status, _) = a.post("/v1/obligations?wait_seconds=1", json!({ "obligations": [] })).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);

    // Under custody to a peer that is away.
    for n in 5..10 {
        a.post("/v1/obligations", named(n)).await;
    }
    let (_, status) = a.get("/v1/obligations/ob-5").await;
    assert_eq!((&status["state"], &status["deferred"]), (&json!("pending"), &json!(false)));
    let waited = a.post("/v1/obligations?wait_seconds=0", named(5)).await.1;
    assert_eq!(waited["outcome"]["state"], "pending", "{waited}");
    assert_eq!(
        pages(&a, "/v1/pending", 3).await,
        ["ob-1", "ob-4", "ob-5", "ob-6", "ob-7", "ob-8", "ob-9"]
    );

    // All end at their deadline, in one commit or several.
    for _ in 0..100 {
        if a.get("/v1/pending").await.1["items"] == json!([]) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    for limit in [1, 2, 3, 7, 8] {
        let mut ended = pages(&a, "/v1/terminal", limit).await;
        ended.sort();
        assert_eq!(
            ended,
            ["ob-1", "ob-4", "ob-5", "ob-6", "ob-7", "ob-8", "ob-9"],
            "pages of {limit}"
        );
    }
    for bad in [
        "/v1/terminal?after=x",
        "/v1/terminal?after=1-2",
        "/v1/pending?after=-1",
        "/v1/weights?after=zz",
        "/v1/pending?limit=x",
    ] {
        assert_eq!(a.get(bad).await.0, StatusCode::BAD_REQUEST, "{bad}");
    }
    assert_eq!(a.get("/v1/obligations/never").await.0, StatusCode::NOT_FOUND);
    a.stop().await;
}

async fn pages(server: &Server, path: &str, limit: usize) -> Vec<String> {
    let (mut ids, mut after) = (Vec::new(), String::new());
    loop {
        let (_, page) = server.get(&format!("{path}?limit={limit}{after}")).await;
        let items = page["items"].as_array().unwrap_or_else(|| panic!("{page}"));
        assert!(items.len() <= limit);
        ids.extend(items.iter().map(|item| item["obligation_id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { return ids };
        after = format!("&after={next}");
    }
}

/// Phala: a correction goes under custody until its time is over, and a peer learns nothing but the change.
#[tokio::test(flavor = "multi_thread")]
async fn bu1_a_belief_update_is_clipped_and_says_only_what_changes() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = Server::pair(root.path()).await;
    let now = || {
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        abhyasa::proto::time::Time::default().after(unix)
    };
    let update = |id: &str, delta: f64, valid_from: &str, ttl: u64| {
        json!({
            "id": id, "satisfaction_record_id": "sr-1", "target_agent_id": "spiffe://t/b",
            "weight_key": "routing.b", "weight_delta": delta, "context_hash": "sha256:00",
            "valid_from": valid_from, "ttl_seconds": ttl,
        })
    };
    let from = now().to_rfc3339();
    let correction = update("bu-1", -3.0, &from, 3_600);
    let (status, sent) = a.post("/v1/belief_updates?wait_seconds=10", correction.clone()).await;
    assert_eq!((status, &sent["custody"]), (StatusCode::CREATED, &json!(true)), "{sent}");
    assert_eq!((&sent["weight_delta"], &sent["clipped"]), (&json!(-1.0), &json!(true)));
    assert_eq!(sent["outcome"]["state"], "applied");
    let end = abhyasa::proto::time::Time::parse_rfc3339(&from).unwrap().after_ms(3_600_000);
    let deadline = sent["deadline_at_ms"].as_u64().unwrap();
    assert!(deadline <= end.as_ms() && deadline + 60_000 > end.as_ms(), "{sent}");
    let (_, weights) = b.get("/v1/weights").await;
    assert_eq!(weights["items"][0]["weight"], json!(0.0), "clipped to the bounds there: {weights}");
    let (status, again) = a.post("/v1/belief_updates", correction).await;
    assert_eq!((status, &again["existing"]), (StatusCode::OK, &json!(true)));

    let (status, sent) = a.post("/v1/belief_updates", update("bu-2", 0.25, &from, 3_600)).await;
    assert_eq!((status, &sent["custody"]), (StatusCode::CREATED, &json!(false)), "it reinforces");
    let refused = async |body: Value| {
        let (status, answer) = a.post("/v1/belief_updates", body).await;
        (status.as_u16(), answer["error"]["code"].as_str().unwrap().to_owned())
    };
    let old = now().before_ms(60_000).to_rfc3339();
    assert_eq!(refused(update("bu-3", -0.1, &old, 60)).await, (410, "expired".into()));
    let coming = now().after_ms(60_000).to_rfc3339();
    assert_eq!(refused(update("bu-3", -0.1, &coming, 60)).await, (422, "not_yet".into()));
    let raw = with(update("bu-3", -0.1, &from, 60), json!({ "signal_components": { "anger": 1 } }));
    assert_eq!(refused(raw).await, (400, "malformed".into()), "raw signals go nowhere");
}
