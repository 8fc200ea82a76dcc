//! Watchers: tracks of a node's escalations, status, events, metrics and policy, and tracks by hand.

use crate::common::relay::{Kind, Relay};
use crate::common::*;
use abhyasa::loopback::free_address;
use abhyasa::node::NodeHandle;
use proto::consent::PolicyDocument;
use proto::record::{Role, Terminal};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::oneshot;

fn abhyasa(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abhyasa"));
    command.args(args).stdout(Stdio::piped()).kill_on_drop(true);
    command
}

/// A subscription by hand that runs until it is dropped.
struct Sub {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Sub {
    fn start(args: &[&str], config: &Path) -> Self {
        let config = config.to_str().unwrap();
        let sub = [&["moq", "sub", "--json", "--config", config], args].concat();
        let mut child = abhyasa(&sub).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _child: child, lines }
    }

    /// The next object.
    async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await;
        serde_json::from_str(&line.expect("in time").unwrap().expect("an object")).unwrap()
    }

    /// The items of the next object, whose signature is good.
    async fn items(&mut self, issuer: &str, content: &str) -> Vec<Value> {
        let object = self.next().await;
        assert_eq!(object["signature"], "good", "{object}");
        assert_eq!(object["issuer"], id(issuer).as_str(), "{object}");
        assert_eq!(object["content"], content, "{object}");
        object["items"].as_array().unwrap().clone()
    }
}

/// Has an obligation escalate: nobody is there who could apply it.
async fn escalate(node: &NodeHandle, name: &str) {
    issue(node, due(revoke(name, "nobody", name), 1)).await;
    ends(node, name, Terminal::Escalated).await;
}

/// The file of a node that is only a name: its identity is what subscriptions are made under.
fn watcher(world: &World, name: &str, tuning: &str) -> PathBuf {
    world.config(name, tuning);
    world.path().join(name).join("abhyasa.toml")
}

fn escalated(items: &[Value]) -> Vec<&str> {
    let escalated = items.iter().filter(|item| item["event"] == "escalated");
    escalated.map(|item| item["obligation_id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab4_a_watcher_gets_the_inbox_and_each_escalation_after_it() {
    let world = World::new();
    let at = free_address().unwrap();
    let peers = ["nobody", "friend", "stranger"].map(|name| peer_toml(name, None));
    let [nobody, friend, stranger] = peers;
    let quic = "[quic]\nconnections_per_peer_max = 16\n";
    let tuning =
        format!("{quic}[moq]\nenabled = true\n{nobody}{friend}may_watch = true\n{stranger}");
    let node = start(world.config_at("alice", at, &tuning)).await;
    let handle = node.handle();
    escalate(&handle, "before").await;

    let friend = watcher(&world, "friend", &peer_toml("alice", Some(at)));
    let alice = id("alice");
    let mut early = Sub::start(&[alice.as_str(), "escalations"], &friend);
    let items = early.items("alice", "escalations").await;
    assert_eq!((&items[0]["event"], &items[0]["open"]), (&"inbox".into(), &1.into()), "{items:?}");
    assert_eq!(escalated(&items), ["before"]);
    escalate(&handle, "after").await;
    assert_eq!(escalated(&early.items("alice", "escalations").await), ["after"]);

    handle.ack_escalation(ob("before")).await.unwrap().unwrap();
    let seen = early.items("alice", "escalations").await;
    assert_eq!(seen[0]["event"], "acknowledged", "{seen:?}");
    let mut late = Sub::start(&[alice.as_str(), "escalations"], &friend);
    assert_eq!(escalated(&late.items("alice", "escalations").await), ["after"]);

    let mut status = Sub::start(&[alice.as_str(), "status"], &friend);
    let items = status.items("alice", "status").await;
    assert_eq!(
        (&items[0]["node"], &items[0]["escalations_open"]),
        (&alice.as_str().into(), &1.into())
    );
    issue(&handle, revoke("waits", "nobody", "waits")).await;
    let mut pending = items[0]["pending"].clone();
    while pending != 1 {
        pending = status.items("alice", "status").await[0]["pending"].clone();
    }
    let mut metrics = Sub::start(&[alice.as_str(), "metrics"], &friend);
    let items = metrics.items("alice", "metrics").await;
    assert!(items[0].as_str().unwrap().contains("\nabhyasa_"), "{items:?}");
    let mut events = Sub::start(&[alice.as_str(), "events"], &friend);
    assert_eq!(events.items("alice", "events").await[0]["event"], "status");
    escalate(&handle, "more").await;
    while escalated(&events.items("alice", "events").await) != ["more"] {}

    // Who may not watch is refused, and told so.
    let stranger = watcher(&world, "stranger", &peer_toml("alice", Some(at)));
    let stranger = stranger.to_str().unwrap();
    let mut sub = abhyasa(&["moq", "sub", "--config", stranger, alice.as_str(), "escalations"]);
    let refused = sub.stderr(Stdio::piped()).output().await.unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("SUBSCRIBE was refused"), "{said}");
    node.stop().await.unwrap();
}

/// A usage policy of the node: this version of it.
fn usage_policy(version: &str, supersedes: Option<&str>) -> PolicyDocument {
    let document = json!({
        "version": version, "document_uri": "https://alice.test/.well-known/usage-policy.json",
        "document_hash": "", "effective_date": "2026-02-27T00:00:00Z", "supersedes": supersedes,
        "claims": [{
            "claim_id": "claim-use", "clause_ref": "§2", "action": "odrl:use", "asset": "odrl:All",
            "rule_type": "permission", "since_version": "1.0.0",
        }],
        "publisher": id("alice"), "natural_language_uri": "https://alice.test/terms",
    });
    proto::consent::read::<PolicyDocument>(document.to_string().as_bytes()).unwrap().sealed()
}

/// Anumati §4.4: versions of the policy are pushed, here to watchers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_gets_the_policy_and_each_version_after_it() {
    let world = World::new();
    let at = free_address().unwrap();
    let file = world.path().join("policy.json");
    std::fs::write(&file, json!(usage_policy("1.0.0", None)).to_string()).unwrap();
    let tuning = format!(
        "[moq]\nenabled = true\n[acap]\nenabled = true\npolicy = {file:?}\n{}may_watch = true\n",
        peer_toml("friend", None)
    );
    let mut config = world.config_at("alice", at, &tuning);
    config.api.listen = free_address().unwrap();
    let base = format!("http://{}", config.api.listen);
    let listener = TcpListener::bind(config.api.listen).await.unwrap();
    let node = start(config).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = abhyasa::api::serve(listener, node.handle(), async { drop(stopped.await) });
    let served = tokio::spawn(serve);

    let friend = watcher(&world, "friend", &peer_toml("alice", Some(at)));
    let alice = id("alice");
    let mut early = Sub::start(&[alice.as_str(), "policy"], &friend);
    let items = early.items("alice", "policy").await;
    assert_eq!(items[0]["policy"]["version"], "1.0.0", "{items:?}");
    let next = usage_policy("2.0.0", Some("1.0.0"));
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let put = http.post(format!("{base}/v1/consent/policy")).json(&next).send().await.unwrap();
    assert_eq!(put.status(), 200);
    let items = early.items("alice", "policy").await;
    let told = &items[0]["policy"];
    assert_eq!(
        (&told["version"], &told["document_hash"], &told["supersedes"]),
        (&json!("2.0.0"), &json!(next.document_hash), &json!("1.0.0"))
    );
    let mut late = Sub::start(&[alice.as_str(), "policy"], &friend);
    assert_eq!(late.items("alice", "policy").await[0]["policy"]["version"], "2.0.0");
    drop(stop);
    served.await.unwrap().unwrap();
    node.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab4_late_watchers_at_a_relay_get_the_inbox_too() {
    for kind in Kind::all() {
        let world = World::new();
        let relay = Relay::start(&world, kind).await;
        let relays = format!(
            "[[relays]]\nname = \"r\"\nurl = \"{}\"\nca = \"{}\"\nmay_watch = true\n{}",
            relay.url("/test"),
            relay.ca.display(),
            peer_toml("nobody", None)
        );
        let node = start(world.config("alice", &relays)).await;
        let handle = node.handle();
        escalate(&handle, "before").await;
        let config = watcher(&world, "friend", "");
        let (url, ca, alice) = (relay.url("/test"), relay.ca.to_str().unwrap(), id("alice"));
        let args = [&url, "escalations", "--of", alice.as_str(), "--ca", ca];
        let mut early = Sub::start(&args, &config);
        assert_eq!(escalated(&early.items("alice", "escalations").await), ["before"], "{kind:?}");
        escalate(&handle, "after").await;
        assert_eq!(escalated(&early.items("alice", "escalations").await), ["after"], "{kind:?}");
        let mut late = Sub::start(&args, &config);
        let mut found = Vec::new();
        while found.len() < 2 {
            let items = late.items("alice", "escalations").await;
            found.extend(escalated(&items).into_iter().map(str::to_owned));
        }
        assert_eq!(found, ["before", "after"], "{kind:?}");
        node.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lines_published_by_hand_are_read_by_hand() {
    for kind in Kind::all() {
        let world = World::new();
        let relay = Relay::start(&world, kind).await;
        let (url, ca) = (relay.url("/hand"), relay.ca.to_str().unwrap());
        let space = format!("test/{}", kind.name());
        let at = [&url, "lines", "--namespace", &space, "--ca", ca];
        let mut publisher =
            abhyasa(&[&["moq", "pub"], &at[..]].concat()).stdin(Stdio::piped()).spawn().unwrap();
        let none = world.path().join("none.toml");
        let list = Sub::start(&[&url, "--namespace", &space, "--ca", ca], &none).next().await;
        assert_eq!(list["namespace"], serde_json::json!(["test", kind.name()]), "{list}");
        let mut sub = Sub::start(&at, &none);
        let mut stdin = publisher.stdin.take().unwrap();
        for n in 0..3 {
            stdin.write_all(format!("line {n}\n").as_bytes()).await.unwrap();
            let seen = sub.next().await;
            let line = (seen["group"].as_u64().unwrap(), seen["payload"].as_str().unwrap());
            assert_eq!(line, (n, format!("line {n}").as_str()), "{kind:?}");
        }
        drop(stdin);
        assert!(publisher.wait().await.unwrap().success(), "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sealed_is_applied_and_no_relay_reads_it() {
    // A relay may give a late subscriber the hellos, too. They are shorter than any obligation.
    const HELLO_LEN: usize = 130;
    for seal in [false, true] {
        let world = World::new();
        let relay = Relay::start(&world, Kind::Aiomoqt).await;
        let (url, ca) = (relay.url("/test"), relay.ca.to_str().unwrap());
        let of = |peer| {
            let relays = format!("[[relays]]\nname = \"r\"\nurl = \"{url}\"\nca = \"{ca}\"\n");
            let kinds = format!("[kinds.\"{CONSENT}\"]\nseal = {seal}\n");
            format!("{kinds}{relays}{}relay = \"r\"\n", peer_toml(peer, None))
        };
        let alice = start(world.config("alice", &of("bob"))).await;
        let bob = start(world.config("bob", &of("alice"))).await;
        connected(&alice.handle(), 1).await;
        connected(&bob.handle(), 1).await;
        // What anybody sees who has the path of the relay.
        let to_bob = proto::track::Track::To(id("bob")).name();
        let args = [&url, &to_bob, "--of", id("alice").as_str(), "--ca", ca].map(str::to_owned);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut spy = Sub::start(&args, &world.path().join("none.toml"));
        let mut seen = String::new();
        for n in 0.. {
            issue(&alice.handle(), revoke(&format!("r{n}"), "bob", "calendar")).await;
            ends(&alice.handle(), &format!("r{n}"), Terminal::Applied).await;
            // It begins to see at some time.
            let next = async {
                loop {
                    let items = spy.next().await["items"].to_string();
                    if items.len() > HELLO_LEN {
                        return items;
                    }
                }
            };
            let next = tokio::time::timeout(std::time::Duration::from_millis(500), next);
            if let Ok(items) = next.await {
                seen = items;
                break;
            }
            assert!(n < 60, "the spy sees nothing");
        }
        assert_eq!(granted(bob.handle().store(), Role::Receiver, "alice", "calendar"), Some(false));
        let clear: String = "calendar".bytes().map(|byte| format!("{byte:02x}")).collect();
        let readable = seen.contains(&clear) || seen.contains("calendar");
        assert_eq!(readable, !seal, "seal = {seal}: {seen}");
        alice.stop().await.unwrap();
        bob.stop().await.unwrap();
    }
}
