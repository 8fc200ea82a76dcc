//! A policy that changes while the node runs, and who is told.

use super::faults::{slow, status};
use super::{BOB, Server, USE, claims, code, config, event, first, policy, record, second};
use crate::common::{PATIENCE, World, eventually, id, web};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, mpsc};

async fn put(server: &Server, policy: &impl serde::Serialize) -> super::Answer {
    server.post(None, "/v1/consent/policy", policy).await
}

/// A new version ends the consent to the one before at once, and outlives a restart with the old file.
#[tokio::test(flavor = "multi_thread")]
async fn s7_a_policy_that_is_put_ends_consent_to_the_one_before() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
    server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
    assert_eq!(server.call("book", json!({})).await, Ok(()));

    // What may not follow changes nothing.
    let mut unsealed = second();
    unsealed.natural_language_uri = first().document_uri.clone();
    assert_eq!(code(&put(&server, &unsealed).await), (400, "policy"));
    let fewer = policy("2.0.0", json!("1.0.0"), &claims()[..1]);
    assert_eq!(code(&put(&server, &fewer).await), (422, "policy"), "[[policy_claims]] names it");
    let old = policy("0.9.0", Value::Null, &claims());
    assert_eq!(code(&put(&server, &old).await), (409, "policy"));
    assert_eq!(server.call("book", json!({})).await, Ok(()));

    let told = put(&server, &second()).await;
    assert_eq!((told.0, &told.1["version"], &told.1["new"]), (200, &json!("2.0.0"), &json!(true)));
    assert_eq!(put(&server, &second()).await.1["new"], false, "told again");
    let refused = server.call("book", json!({})).await.unwrap_err();
    assert_eq!(refused["code"], "consent_stale");
    assert_eq!(refused["policy_version"], "2.0.0");
    let stale = record("r-x", Some("r-1"), &first(), &[], json!({}));
    assert_eq!(code(&server.consent(&stale).await), (409, "policy_version"));
    let path = "/.well-known/usage-policy.json?since_version=1.0.0";
    let diff = super::answer(server.request(Method::GET, path)).await.1;
    assert_eq!(diff["claims"][0]["claim_id"], super::RETENTION, "{diff}");

    let server = Server::start(server.crash()).await; // the file is the first version
    let refused = server.call("book", json!({})).await.unwrap_err();
    assert_eq!(
        (&refused["code"], &refused["policy_version"]),
        (&json!("consent_stale"), &json!("2.0.0"))
    );
    assert_eq!(server.consent(&record("r-2", Some("r-1"), &second(), &[], json!({}))).await.0, 201);
    server.adhere(&event("e-2", None, "r-2", USE, "permit", json!({}))).await;
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    server.stop().await;
}

/// The events of a stream, as far as they have come.
struct Heard {
    response: reqwest::Response,
    text: String,
}

impl Heard {
    async fn begin(server: &Server, last: Option<&str>) -> Self {
        let request = server.request(Method::GET, "/acap/changes").bearer_auth(BOB);
        let request = match last {
            Some(last) => request.header("last-event-id", last),
            None => request,
        };
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        Self { response, text: String::new() }
    }

    /// The data of the next event.
    async fn next(&mut self) -> Value {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                let data = data.map(|data| serde_json::from_str(data).unwrap());
                self.text = rest.to_owned();
                match data {
                    Some(data) => return data,
                    None => continue,
                }
            }
            let chunk = self.response.chunk().await.unwrap().expect("the stream goes on");
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_are_told_by_events_and_streams_are_few() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    let stranger = server.request(Method::GET, "/acap/changes").bearer_auth("nobody-0123456789");
    assert_eq!(stranger.send().await.unwrap().status(), 401);
    let mut all = Heard::begin(&server, None).await;
    let known = all.next().await;
    assert_eq!((&known["version"], &known["publisher"]), (&json!("1.0.0"), &json!(id("alice"))));
    let mut further = Heard::begin(&server, Some("1.0.0")).await;
    put(&server, &second()).await;
    for heard in [&mut all, &mut further] {
        let told = heard.next().await;
        assert_eq!(told["version"], "2.0.0");
        assert_eq!((&told["supersedes"], &told["material"]), (&json!("1.0.0"), &json!(true)));
        assert_eq!(told["document_hash"], json!(second().document_hash));
    }
    let more = [Heard::begin(&server, None).await, Heard::begin(&server, None).await];
    let refused =
        super::answer(server.request(Method::GET, "/acap/changes").bearer_auth(BOB)).await;
    assert_eq!(code(&refused), (429, "full"));
    drop(more);
    eventually("a place", async || {
        let request = server.request(Method::GET, "/acap/changes").bearer_auth(BOB);
        (request.send().await.unwrap().status() == 200).then_some(())
    })
    .await;
    server.stop().await; // streams end with it
}

type Call = (Option<String>, Value);

/// A webhook, and what it is told.
struct Hook {
    url: String,
    heard: Mutex<mpsc::UnboundedReceiver<Call>>,
    refuses: Arc<AtomicUsize>,
}

impl Hook {
    async fn start() -> Self {
        let (tell, heard) = mpsc::unbounded_channel::<Call>();
        let refuses = Arc::new(AtomicUsize::new(0));
        let state = (tell, refuses.clone());
        let take = async |State((tell, refuses)): State<(
            mpsc::UnboundedSender<Call>,
            Arc<AtomicUsize>,
        )>,
                          headers: HeaderMap,
                          body: axum::Json<Value>| {
            let token =
                headers.get("authorization").map(|token| token.to_str().unwrap().to_owned());
            let refused = refuses
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            tell.send((token, body.0)).unwrap();
            if refused.is_ok() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::NO_CONTENT }
        };
        let address =
            web::serve(Router::new().route("/policy", post(take)).with_state(state)).await;
        Self { url: format!("http://{address}/policy"), heard: Mutex::new(heard), refuses }
    }

    async fn next(&self) -> Call {
        let mut heard = self.heard.lock().await;
        tokio::time::timeout(PATIENCE, heard.recv()).await.expect("it is told").unwrap()
    }
}

/// A webhook is registered with a record, and told of what comes until it takes it, also after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_told_of_changes_until_it_takes_them() {
    let world = World::new();
    let hook = Hook::start().await;
    let push = json!({ "policy_push": { "url": hook.url, "token": "shown-there" } });
    let mut private = config(&world, "");
    let server = Server::start(private.clone()).await;
    let refused = server.consent(&record("r-1", None, &first(), &[], push.clone())).await;
    assert_eq!(code(&refused), (422, "policy_push"), "it is on this machine");
    server.stop().await;
    private.a2a.push_to_private = true;
    let server = Server::start(private).await;
    let wrong = json!({ "policy_push": { "url": "file:///etc/passwd" } });
    let refused = server.consent(&record("r-1", None, &first(), &[], wrong)).await;
    assert_eq!(code(&refused), (422, "policy_push"));
    assert_eq!(server.consent(&record("r-1", None, &first(), &[], push)).await.0, 201);
    hook.refuses.store(1, Ordering::SeqCst);
    put(&server, &second()).await;
    let (token, told) = hook.next().await;
    assert_eq!(token.as_deref(), Some("Bearer shown-there"));
    assert_eq!(told["version"], "2.0.0");
    let again = hook.next().await.1;
    assert_eq!(again["version"], "2.0.0", "it had not taken it");
    let same = serde_json::to_value(second().claims).unwrap();
    let third = policy("3.0.0", json!("2.0.0"), same.as_array().unwrap());
    hook.refuses.store(1, Ordering::SeqCst);
    put(&server, &third).await;
    while hook.next().await.1["version"] != "3.0.0" {}
    let server = Server::start(server.crash()).await;
    while hook.next().await.1["version"] != "3.0.0" {}
    server.stop().await;
}

/// The caller's side of a node hears of a version at once, over both ways, and consents anew without a call.
#[tokio::test(flavor = "multi_thread")]
async fn s7_a_node_consents_anew_as_soon_as_a_policy_is_pushed() {
    for over_http3 in [false, true] {
        let world = World::new();
        let mut at_alice = super::caller::alice(&world, "");
        at_alice.api.http3 = over_http3;
        let never = "poll_seconds = 86400";
        let at_bob = super::caller::bob(&world, &at_alice, over_http3, never);
        let alice = Server::start(at_alice).await;
        let bob = Server::start(at_bob).await;
        let versions = async |count: usize| {
            eventually("a record", async || {
                if alice.audit(None, "bob", "").await.0 == 404 {
                    return None;
                }
                let records = alice.entries("record").await;
                (records.len() == count).then(|| records[count - 1]["policy_version"].clone())
            })
            .await
        };
        assert_eq!(versions(1).await, "1.0.0");
        assert_eq!(put(&alice, &second()).await.0, 200);
        assert_eq!(versions(2).await, "2.0.0");
        bob.stop().await;
        alice.stop().await;
    }
}

/// Calls in flight finish, or stop, as the setting says.
#[tokio::test(flavor = "multi_thread")]
async fn s7_calls_in_flight_finish_or_stop() {
    for (grace, state) in [("finish", "TASK_STATE_COMPLETED"), ("stop", "TASK_STATE_CANCELED")] {
        let world = World::new();
        let server = Server::start(config(&world, &format!("grace = \"{grace}\""))).await;
        server.consent(&record("r-1", None, &first(), &[], json!({}))).await;
        server.adhere(&event("e-1", None, "r-1", USE, "permit", json!({}))).await;
        let task = slow(&server, "m-1", Duration::from_secs(2)).await;
        status(&server, &task, "TASK_STATE_WORKING").await;
        put(&server, &second()).await;
        let ended = status(&server, &task, state).await;
        let withheld = &ended["message"]["metadata"]["abhyasa.withheld"]["acap"];
        if grace == "stop" {
            assert_eq!(withheld["code"], "consent_stale", "{ended}");
            assert_eq!(withheld["reconsent_trigger"], "POLICY_BUMP", "{ended}");
        }
        server.stop().await;
    }
}
