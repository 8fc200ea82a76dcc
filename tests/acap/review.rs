//! Governance review: what waits in the inbox for a person, and blocks meanwhile.

use super::caller::{Stage, alice, analyse, ask, bob, operator, status};
use super::restrict::{acts, applied, begun, refusal};
use super::{PROFILING, RETENTION, Server, USE, claim, code, policy, publish};
use crate::common::{World, eventually, id};
use abhyasa::clock::{Clock, SystemClock};
use abhyasa::config::{Accept, NodeConfig};
use abhyasa::proto::consent::{ClaimId, ContentHash, PolicyDocument};
use abhyasa::proto::time::Time;
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What waits for a person at a node.
pub(super) async fn open(node: &Server) -> Vec<Value> {
    let (status, inbox) = super::answer(node.request(Method::GET, "/v1/escalations")).await;
    assert_eq!(status, 200, "{inbox}");
    inbox["reviews"].as_array().unwrap().clone()
}

/// A second version that prohibits less, and something else.
fn turned() -> PolicyDocument {
    let claims = [
        super::claims()[0].clone(),
        claim(
            RETENTION,
            "§6.3",
            "a2a:store_output",
            "prohibition",
            json!("a2a:retention_days gt 90"),
            "2.0.0",
        ),
    ];
    policy("2.0.0", json!("1.0.0"), &claims)
}

/// Alice publishes a version without a claim that was consented to.
async fn publishes(world: &World, alice: Server) -> Server {
    let mut at_alice: NodeConfig = alice.stop().await;
    publish(world, &turned());
    at_alice.policy_claims[1].claims = [USE, RETENTION].map(|id| ClaimId::new(id).unwrap()).into();
    Server::start(at_alice).await
}

/// The command line at a node.
async fn run(node: &Server, arguments: &[&str]) -> (bool, String) {
    let api = format!("http://{}", node.config.api.listen);
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_abhyasa"));
    let output = command.args(arguments).args(["--api", &api]).output().await.unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

/// A claim is retired: nothing goes until a person says yes, over a restart too, and then it is on record that
/// she was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn s7_a_change_of_tier_blocks_until_a_person_has_approved_it() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let at_bob = bob(&world, &at_alice, false, "poll_seconds = 3600");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    assert!(acts(&ask(&bob, json!({})).await));
    let alice = publishes(&world, alice).await;
    let attempts = alice.entries("attempt").await.len();
    let review = {
        // The policy is looked at anew when the callee says that it has changed.
        let held = async || {
            let held = ask(&bob, json!({})).await;
            (refusal(&held)["code"] == "escalated").then(|| refusal(&held).clone())
        };
        eventually("the review", held).await
    };
    assert_eq!(review["blocking_claims"][0]["claim_id"], PROFILING, "{review}");
    assert_eq!(status(&bob).await["state"], "governance_review");
    let waits = open(&bob).await;
    assert_eq!((waits.len(), &waits[0]["id"]), (1, &review["review"]), "{waits:?}");
    assert_eq!(
        (&waits[0]["policy_version"], &waits[0]["lapsed"]),
        (&json!("2.0.0"), &json!(false))
    );
    assert_eq!(alice.entries("record").await.len(), 1, "nothing is consented to meanwhile");
    let bob = Server::start(bob.crash()).await;
    assert_eq!(refusal(&ask(&bob, json!({})).await)["review"], review["review"]);
    assert_eq!(open(&bob).await, waits, "and no deadline is later for it");
    assert_eq!(alice.entries("attempt").await.len(), attempts, "nothing has left");
    let name = waits[0]["id"].as_str().unwrap();
    let (well, listed) = run(&bob, &["escalations"]).await;
    assert!(well && listed.contains(name) && listed.contains("retired"), "{listed}");
    let (well, said) = run(&bob, &["escalations", "answer", name, "--approve"]).await;
    assert!(well, "{said}");
    assert!(acts(&ask(&bob, json!({})).await));
    let records = alice.entries("record").await;
    assert_eq!(
        (&records[1]["policy_version"], &records[1]["reconsent_trigger"]),
        (&json!("2.0.0"), &json!("POLICY_BUMP"))
    );
    assert!(open(&bob).await.is_empty());
    let path = format!("/v1/escalations/{name}/answer");
    let again = operator(&bob, &path, json!({ "approve": true })).await;
    assert_eq!(code(&again), (404, "not_found"));
    bob.stop().await;
    alice.stop().await;
}

/// She says no: the policy is rejected, under custody, and stays so.
#[tokio::test(flavor = "multi_thread")]
async fn ab_1_a_change_that_a_person_rejects_is_rejected_under_custody() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let at_bob = bob(&world, &at_alice, false, "poll_seconds = 3600");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    assert!(acts(&ask(&bob, json!({})).await));
    let alice = publishes(&world, alice).await;
    let bob = Server::start(bob.stop().await).await; // it looks at the policy anew
    begun(&bob).await;
    let asked = async || open(&bob).await.pop();
    let review = eventually("the review", asked).await;
    let name = review["id"].as_str().unwrap();
    let (well, _) = run(&bob, &["escalations", "answer", name]).await;
    assert!(!well, "neither yes nor no");
    let (well, said) = run(&bob, &["escalations", "answer", name, "--reject"]).await;
    assert!(well, "{said}");
    let told = async || applied(&bob, "acap-reject-").await.pop();
    let rejects = eventually("the obligation at Alice", told).await;
    let records = alice.entries("record").await;
    assert_eq!((records.len(), &records[1]["decision"]), (2, &json!("rejected")));
    assert_eq!(rejects, format!("acap-reject-{}", records[1]["record_id"].as_str().unwrap()));
    assert_eq!(refusal(&ask(&bob, json!({})).await)["code"], "rejected");
    assert_eq!(alice.call("book", json!({})).await.unwrap_err()["code"], "consent_required");
    bob.stop().await;
    alice.stop().await;
}

/// A clock that can be put ahead.
struct Ahead {
    clock: SystemClock,
    seconds: AtomicU64,
}

impl Ahead {
    fn new() -> Arc<Self> {
        let clock = SystemClock::starting_at_least(Time::default());
        Arc::new(Self { clock, seconds: AtomicU64::new(0) })
    }
}

impl Clock for Ahead {
    fn now(&self) -> Time {
        self.clock.now().after(Duration::from_secs(self.seconds.load(Ordering::SeqCst)))
    }
}

/// Nobody answers in time: it stays refused, and says so; an answer that comes late is one all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_answers_in_time_stays_refused() {
    let stage = Stage::set().await;
    let clock = Ahead::new();
    let terms = |terms: &mut abhyasa::acap::Terms| terms.accept = Accept::Never;
    let caller = stage.caller_on(clock.clone(), terms).await;
    let refused = caller.act(&id("alice"), analyse()).await.unwrap_err();
    assert_eq!(refused.code(), "escalated");
    assert_eq!(caller.reviews()[0]["lapsed"], false);
    clock.seconds.store(61, Ordering::SeqCst);
    let refused = caller.act(&id("alice"), analyse()).await.unwrap_err();
    assert_eq!(refused.code(), "escalated");
    assert!(refused.to_string().contains("nobody has decided"), "{refused}");
    let review = caller.reviews().remove(0);
    assert_eq!(review["lapsed"], true);
    assert_eq!(stage.alice.audit(None, "bob", "").await.0, 404, "nothing was said");
    caller.answer_review(review["id"].as_str().unwrap(), true).await.unwrap();
    caller.act(&id("alice"), analyse()).await.unwrap();
    assert!(caller.reviews().is_empty());
    caller.stop().await;
    stage.alice.stop().await;
}

/// Consent that ends again and again is not given again and again: eight records a minute.
#[tokio::test(flavor = "multi_thread")]
async fn bd1_a_caller_consents_to_one_callee_at_a_limited_rate() {
    let stage = Stage::set().await;
    let clock = Ahead::new();
    let caller = stage.caller_on(clock.clone(), |_| ()).await;
    for round in 0..8u8 {
        caller.set_capability(&id("alice"), Some(ContentHash::of(&[round])));
        caller.act(&id("alice"), analyse()).await.unwrap();
    }
    caller.set_capability(&id("alice"), Some(ContentHash::of(b"once more")));
    let refused = caller.act(&id("alice"), analyse()).await.unwrap_err();
    assert!(refused.code() == "rate" && refused.is_temporary(), "{refused}");
    assert_eq!(stage.alice.entries("record").await.len(), 8);
    clock.seconds.store(61, Ordering::SeqCst);
    caller.act(&id("alice"), analyse()).await.unwrap();
    assert_eq!(stage.alice.entries("record").await.len(), 9);
    caller.stop().await;
    stage.alice.stop().await;
}

/// The operator's commands of the caller's side, at a node that consents to nothing by itself.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_answers_reconciles_and_withdraws() {
    let world = World::new();
    let at_alice = alice(&world, "");
    let at_bob = bob(&world, &at_alice, false, "accept = \"never\"\npoll_seconds = 3600");
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    begun(&bob).await;
    let callee = id("alice");
    let asked = async || open(&bob).await.pop();
    eventually("the question", asked).await;
    let (well, said) = run(&bob, &["consent", "status"]).await;
    assert!(
        well && said.contains(callee.as_str()) && said.contains("accept = \"never\""),
        "{said}"
    );
    let (well, said) = run(&bob, &["consent", "answer", callee.as_str(), "--approve"]).await;
    assert!(well && said.contains("consented"), "{said}");
    assert!(acts(&ask(&bob, json!({})).await));
    let (well, said) = run(&bob, &["consent", "answer", callee.as_str()]).await;
    assert!(!well && said.contains("nothing is asked"), "{said}");
    let (well, said) = run(&bob, &["consent", "reconcile", callee.as_str()]).await;
    assert!(
        well && said.contains("here 1 records and 2 events, there 1 and 2; 0 sent again"),
        "{said}"
    );
    let (well, said) = run(&bob, &["consent", "withdraw", callee.as_str(), "--id", "w-1"]).await;
    assert!(well && said.contains("w-1: under custody"), "{said}");
    assert_eq!(refusal(&ask(&bob, json!({})).await)["code"], "withdrawn");
    let (well, said) = run(&bob, &["consent", "status", "--json"]).await;
    assert!(well && said.contains("\"withdrawn_by\":\"w-1\""), "{said}");
    let (well, said) = run(&alice, &["consent", "revoke", id("bob").as_str(), "--id", "r-1"]).await;
    assert!(well && said.contains("r-1: under custody"), "{said}");
    for node in [(&bob, "alice"), (&alice, "bob")] {
        let (well, said) = run(node.0, &["consent", "grant", id(node.1).as_str()]).await;
        assert!(well && said.contains("best-effort"), "{said}");
    }
    bob.stop().await;
    alice.stop().await;
}

/// The webhook is told of a review until it takes it, and once it has, not again.
#[tokio::test(flavor = "multi_thread")]
async fn a_review_is_told_to_the_webhook() {
    let world = World::new();
    let heard = Arc::new(std::sync::Mutex::new(Vec::<Value>::new()));
    let told = heard.clone();
    let sink = axum::routing::post(async move |axum::Json(body): axum::Json<Value>| {
        let mut told = told.lock().unwrap();
        told.push(body);
        match told.len() {
            1 => axum::http::StatusCode::SERVICE_UNAVAILABLE,
            _ => axum::http::StatusCode::OK,
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let mut served = tokio::task::JoinSet::new();
    let router = axum::Router::new().route("/inbox", sink);
    served.spawn(async move { drop(axum::serve(listener, router).await) });
    let at_alice = alice(&world, "");
    let mut at_bob = bob(&world, &at_alice, false, "accept = \"never\"\npoll_seconds = 3600");
    at_bob.escalation.webhook_url = Some(format!("http://{at}/inbox").parse().unwrap());
    let alice = Server::start(at_alice).await;
    let bob = Server::start(at_bob).await;
    let taken = async || (heard.lock().unwrap().len() == 2).then_some(());
    eventually("the second try", taken).await;
    let noted = async || open(&bob).await.pop().filter(|review| review["delivered"] == true);
    let review = eventually("the note that it was taken", noted).await;
    let bodies = heard.lock().unwrap().clone();
    assert_eq!((&bodies[0]["kind"], &bodies[0]["id"]), (&json!("consent_review"), &review["id"]));
    assert_eq!(bodies[0], bodies[1]);
    let bob = Server::start(bob.crash()).await;
    assert_eq!(open(&bob).await[0], review);
    let path = format!("/v1/escalations/{}/answer", review["id"].as_str().unwrap());
    assert_eq!(operator(&bob, &path, json!({ "approve": true })).await.0, 204);
    assert!(acts(&ask(&bob, json!({})).await));
    assert_eq!(heard.lock().unwrap().len(), 2, "it has taken it");
    bob.stop().await;
    alice.stop().await;
}
