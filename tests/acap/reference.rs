//! The protocol's first implementation as the caller: its handshake, its events, and its validators over what
//! the node keeps.
//!
//! It is in no registry: `ABHYASA_ACAP_SOURCE` names a checkout of github.com/ravikiran438/agent-consent-protocol.

use super::{BOB, PROFILING, Server, USE, claims, config, policy, publish};
use crate::common::{World, id, peers};
use abhyasa::proto::consent::{PolicyDocument, read};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const CONSTRAINTS: &str = "tests/consent/constraints.txt";

/// The program, which keeps what its caller has bound to.
struct Reference {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Reference {
    fn start(base: &str) -> Self {
        let source = std::env::var("ABHYASA_ACAP_SOURCE")
            .expect("ABHYASA_ACAP_SOURCE names no checkout: docs/consent.md says how to get one");
        let packages = ["pydantic", "httpx", "fastapi"];
        let modules = "pydantic, httpx, fastapi";
        let python = peers::python_312("consent-peers-3", &packages, modules, CONSTRAINTS);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/acap/reference.py");
        let mut child = Command::new(python)
            .arg(script)
            .args([base, BOB, id("bob").as_str()])
            .env("PYTHONPATH", format!("{source}/src"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    /// Node and program wait for each other, so this thread waits for both.
    fn tell(&mut self, command: &Value) -> Value {
        tokio::task::block_in_place(|| {
            self.stdin.write_all(format!("{command}\n").as_bytes()).unwrap();
            let mut line = String::new();
            self.stdout.read_line(&mut line).unwrap();
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
        })
    }

    fn bind(&mut self, disputed: &[&str]) -> Value {
        self.tell(&json!({ "do": "bind", "disputed": disputed }))
    }

    fn check(&mut self, claim: &str, purpose: &str) -> Value {
        let (action, clause) = match claim {
            USE => ("odrl:use", "§2.1"),
            _ => ("odrl:aggregate", "§3.4"),
        };
        self.tell(&json!({
            "do": "check", "action": action, "claim_id": claim, "clause_evaluated": clause,
            "context": { "purpose": purpose },
        }))
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A policy where that caller finds it, with constraints in the words it knows.
fn at(base: &str, version: &str, supersedes: Value) -> PolicyDocument {
    let mut claims = claims();
    claims[1]["constraint"] = json!("odrl:purpose is behavioural_profiling");
    let mut document = serde_json::to_value(policy(version, supersedes, &claims)).unwrap();
    document["document_uri"] = json!(format!("{base}/.well-known/usage-policy.json"));
    read::<PolicyDocument>(document.to_string().as_bytes()).unwrap().sealed()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs ABHYASA_ACAP_SOURCE, a checkout of agent-consent-protocol"]
async fn its_caller_consents_acts_and_finds_our_chains_good() {
    let world = World::new();
    let config = config(&world, "usage_policy_in_card = true\n");
    let base = format!("http://{}", config.api.listen);
    publish(&world, &at(&base, "1.0.0", Value::Null));
    let server = Server::start(config).await;
    let mut caller = Reference::start(&base);

    let record = caller.bind(&[]);
    assert_eq!(record["decision"], "accepted", "{record}");
    assert_eq!(record["callee_agent_id"], json!(id("alice")), "by the card's publisher");
    assert_eq!(server.call("analyse", json!({})).await.unwrap_err()["code"], "claims_blocked");
    assert_eq!(caller.check(USE, "statistical_analysis")["decision"], "permit");
    assert_eq!(caller.check(PROFILING, "behavioural_profiling")["decision"], "deny");
    let refusal = server.call("analyse", json!({})).await.unwrap_err();
    assert_eq!(super::blocking(&refusal), [PROFILING]);
    assert_eq!(caller.check(PROFILING, "statistical_analysis")["decision"], "permit");
    assert_eq!(server.call("analyse", json!({})).await, Ok(()));
    let audit = caller.tell(&json!({ "do": "audit" }));
    assert_eq!(audit, json!({ "records": 1, "events": 3, "attempts": 3 }));

    // A new version: what it said before holds no more, and it consents anew, behind its first record.
    let config = server.stop().await;
    publish(&world, &at(&base, "1.1.0", json!("1.0.0")));
    let server = Server::start(config).await;
    assert_eq!(server.call("book", json!({})).await.unwrap_err()["code"], "consent_stale");
    let stale = caller.check(USE, "statistical_analysis");
    assert_eq!((&stale["status"], &stale["error"]["code"]), (&json!(403), &json!("consent_stale")));
    let second = caller.bind(&[PROFILING]);
    assert_eq!(second["decision"], "conditional", "{second}");
    assert_eq!(second["prev_record_id"], record["record_id"]);
    assert_eq!(caller.check(USE, "statistical_analysis")["decision"], "permit");
    assert_eq!(caller.check(PROFILING, "statistical_analysis")["decision"], "deny");
    assert_eq!(server.call("book", json!({})).await, Ok(()));
    assert_eq!(super::blocking(&server.call("analyse", json!({})).await.unwrap_err()), [PROFILING]);
    let audit = caller.tell(&json!({ "do": "audit" }));
    assert_eq!(audit, json!({ "records": 2, "events": 5, "attempts": 6 }));
    server.stop().await;
}

/// Where its caller looks, and only if the configuration says so.
#[tokio::test(flavor = "multi_thread")]
async fn usage_policy_is_at_the_top_of_the_card_if_so_configured() {
    let world = World::new();
    let mut config = config(&world, "");
    for wanted in [false, true] {
        config.acap.usage_policy_in_card = wanted;
        let server = Server::start(config).await;
        let path = "/.well-known/agent-card.json";
        let (status, card) = super::answer(server.request(reqwest::Method::GET, path)).await;
        assert_eq!(status, 200);
        let extensions = card["capabilities"]["extensions"].as_array().unwrap();
        let named = |extension: &&Value| extension["uri"] == abhyasa::proto::consent::EXTENSION_URI;
        let params = &extensions.iter().find(named).unwrap()["params"];
        assert_eq!(params["publisher"], json!(id("alice")));
        let expected = if wanted { params } else { &Value::Null };
        assert_eq!(&card["usage_policy"], expected);
        config = server.stop().await;
    }
}

/// Whose agent is behind the node, and has a policy of its own: callers consent to the node's.
#[tokio::test(flavor = "multi_thread")]
async fn the_card_names_claims_of_the_nodes_policy_only() {
    let skill = |id: &str| json!({ "id": id, "name": id, "description": id, "tags": ["t"], "policy_claims": ["claim-of-theirs"] });
    let uri = abhyasa::proto::consent::EXTENSION_URI;
    let theirs = json!({
        "name": "theirs", "description": "theirs", "version": "1",
        "supportedInterfaces": [
            { "url": "http://127.0.0.1:1/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0" },
        ],
        "capabilities": { "extensions": [
            { "uri": uri, "params": { "version": "9.9.9" } }, { "uri": "https://other.example/x" },
        ] },
        "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
        "skills": [skill("book"), skill("else")],
    });
    let card = axum::Json(theirs);
    let router = axum::Router::new()
        .route("/.well-known/agent-card.json", axum::routing::get(async move || card));
    let agent = crate::common::web::serve(router).await;
    let world = World::new();
    let mut config = config(&world, "");
    let more = format!("[a2a]\nagent = \"http://{agent}\"\n");
    let file = world.path().join("alice/abhyasa.toml");
    abhyasa::demo::stage::tune(&file, &more).unwrap();
    config.a2a = abhyasa::config::NodeConfig::load(&file).unwrap().a2a;
    let server = Server::start(config).await;
    let path = "/.well-known/agent-card.json";
    let card = crate::common::eventually("their skills", async || {
        let (_, card) = super::answer(server.request(reqwest::Method::GET, path)).await;
        card["skills"].as_array().is_some_and(|skills| skills.len() == 2).then_some(card)
    })
    .await;
    assert_eq!(card["skills"][0]["policy_claims"], json!([USE]));
    assert_eq!(card["skills"][1].get("policy_claims"), None, "{card}");
    let extensions = card["capabilities"]["extensions"].as_array().unwrap();
    let of = |uri: &str| extensions.iter().filter(|extension| extension["uri"] == uri).count();
    assert_eq!((of(uri), of("https://other.example/x")), (1, 1), "{card}");
    let ours = extensions.iter().find(|extension| extension["uri"] == uri).unwrap();
    assert_eq!(ours["params"]["version"], "1.0.0");
    server.stop().await;
}
