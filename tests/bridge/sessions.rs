//! What becomes of sessions when one of the ends goes away, or asks for too much.

use super::{ACK_KEY, GATE, Over, Proxy, configs, files, start};
use crate::common::{self, CONSENT, World, id};
use serde_json::{Value, json};

const LOST: i64 = -31_502;
const UNAVAILABLE: i64 = -31_503;
const ENVELOPE: i64 = -31_400;

fn text(answer: &Value) -> &str {
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("no text in {answer}"))
}

fn code(answer: &Value) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("no error: {answer}"))
}

/// A server that dies takes the calls that run with it, and says so; the next call is for a new one,
/// which hears the opening of the session first.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_loses_its_calls_and_nothing_else() {
    for over in Over::ALL {
        let world = World::new();
        let (alice, bob) = configs(&world, &files());
        let alice = start(alice).await;
        let mut client = Proxy::start(&bob, "files", over);
        client.open().await;
        assert_eq!(text(&client.tool("read", json!({ "path": "a" })).await), "content of a");
        let params = json!({ "name": "watch", "arguments": { "seconds": 60 }, "_meta": { "progressToken": 1 } });
        let watch = client.ask("tools/call", params).await;
        assert_eq!(client.read().await.unwrap()["method"], "notifications/progress");
        let leave = client.ask("tools/call", json!({ "name": "leave", "arguments": {} })).await;
        for _ in [watch, leave] {
            let lost = loop {
                let line = client.read().await.unwrap();
                if line.get("id").is_some() {
                    break line;
                }
            };
            assert!(lost["id"] == watch || lost["id"] == leave, "{lost}");
            assert_eq!(code(&lost), LOST);
        }
        assert_eq!(text(&client.tool("read", json!({ "path": "b" })).await), "content of b");
        client.end().await;
        alice.stop().await;
    }
}

/// The node before the server goes away, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_says_so_and_is_found_again() {
    for over in Over::ALL {
        let world = World::new();
        let (config, bob) = configs(&world, &files());
        let mut client = Proxy::start(&bob, "files", over);
        let early = client.tool("read", json!({ "path": "a" })).await;
        assert_eq!(code(&early), UNAVAILABLE, "nobody is there: {early}");
        let alice = start(config.clone()).await;
        client.open().await;
        let params = json!({ "name": "watch", "arguments": { "seconds": 60 }, "_meta": { "progressToken": 1 } });
        let watch = client.ask("tools/call", params).await;
        assert_eq!(client.read().await.unwrap()["method"], "notifications/progress");
        alice.stop().await;
        let lost = client.answer(watch).await;
        assert_eq!(code(&lost), LOST);
        let why = lost["error"]["message"].as_str().unwrap();
        assert!(why.starts_with("the node stops"), "{over:?}: the node has a word for it: {why}");
        let alice = start(config).await;
        assert_eq!(text(&client.tool("read", json!({ "path": "b" })).await), "content of b");
        client.end().await;
        alice.stop().await;
    }
}

/// Who may use what: names that are not there and names that are not for this peer look alike, and a
/// stranger is not heard at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_for_those_it_is_for() {
    let world = World::new();
    let others = files().replace("files", "others") + "peers = []\n";
    let (alice, bob) = configs(&world, &format!("{}{others}", files()));
    let alice = start(alice).await;
    for (name, over) in
        ["others", "nothing"].into_iter().flat_map(|name| Over::ALL.map(|over| (name, over)))
    {
        let mut client = Proxy::start(&bob, name, over);
        let refused = client.tool("read", json!({ "path": "a" })).await;
        assert_eq!(code(&refused), UNAVAILABLE);
        let why = refused["error"]["message"].as_str().unwrap();
        let us = match over {
            Over::Native | Over::Http3 => "spiffe://test/bob",
            Over::Moqt => "us",
        };
        assert!(why.contains(&format!("no MCP server {name:?} for {us}")), "{why}");
        client.end().await;
    }
    let tuning = common::peer_toml("alice", Some(alice.handle().quic_address()));
    world.config("mallory", &tuning);
    for over in Over::ALL {
        let mallory = world.path().join("mallory/abhyasa.toml");
        let mut client = Proxy::start(&mallory, "files", over);
        assert_eq!(code(&client.tool("read", json!({ "path": "a" })).await), UNAVAILABLE);
        client.end().await;
    }
    alice.stop().await;
}

/// What is no message is an error to who sent it; what is too long ends the session.
#[tokio::test(flavor = "multi_thread")]
async fn bd1_what_is_no_message_or_too_long_is_refused() {
    for over in Over::ALL {
        let world = World::new();
        let (alice, bob) = configs(&world, &files());
        let alice = start(alice).await;
        let mut client = Proxy::start(&bob, "files", over);
        client.open().await;
        client.write("[1]").await;
        assert_eq!(code(&client.read().await.unwrap()), ENVELOPE);
        client.write("no JSON").await;
        assert_eq!(code(&client.read().await.unwrap()), ENVELOPE);
        assert_eq!(text(&client.tool("read", json!({ "path": "b" })).await), "content of b");
        let long = "x".repeat(1 << 20);
        for _ in 0..9 {
            use tokio::io::AsyncWriteExt as _;
            if client.stdin.as_mut().unwrap().write_all(long.as_bytes()).await.is_err() {
                break; // it has seen enough
            }
        }
        let refused = client.read().await.unwrap();
        assert!(refused["error"]["message"].as_str().unwrap().contains("more than"), "{refused}");
        assert!(client.read().await.is_none(), "it ended");
        alice.stop().await;
    }
}

/// A call that is canceled while its obligation is decided does not run; the obligation stands.
#[tokio::test(flavor = "multi_thread")]
async fn df1_a_deferred_obligation_is_no_reason_to_hold_the_call_and_a_canceled_call_does_not_run()
{
    for over in Over::ALL {
        let world = World::new();
        let (service, at) = crate::common::web::Service::start().await;
        service.set(crate::common::web::Mood::Defers);
        let handler = format!(
            "[kinds.\"{CONSENT}\"]\nhandler = {{ type = \"webhook\", url = \"http://{at}/do\" }}\n"
        );
        let (alice, bob) = configs(&world, &format!("{}{GATE}{handler}", files()));
        let alice = start(alice).await;
        let mut client = Proxy::start(&bob, "files", over);
        client.open().await;
        let envelope = json!({
            "obligation_id": "ob-1", "kind": CONSENT, "target": id("alice").to_string(),
            "payload": { "decision": "revoke", "scope": "files.watch" },
            "deadline_seconds": 60, "max_retries": 600,
            "created_at": alice.handle().now().to_rfc3339(),
        });
        let meta = json!({ "io.github.ravikiran438/abhyasa.obligation": envelope });
        let params = json!({ "name": "read", "arguments": { "path": "a" }, "_meta": meta });
        let answer = client.call("tools/call", params).await;
        assert_eq!(text(&answer), "content of a");
        assert_eq!(answer["result"]["_meta"][ACK_KEY]["status"], "deferred", "{answer}");
        client.end().await;
        alice.stop().await;
    }
}

/// The node itself has a server for its peers: what concerns them, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn the_node_itself_is_a_server_for_its_peers() {
    for over in Over::ALL {
        let world = World::new();
        let (alice, bob) = configs(&world, "");
        let alice = start(alice).await;
        let mut client = Proxy::start(&bob, "abhyasa", over);
        let info = json!({ "name": "test", "version": "1" });
        let params =
            json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info });
        let opened = client.call("initialize", params).await;
        assert_eq!(opened["result"]["serverInfo"]["name"], "abhyasa", "{opened}");
        client.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        let tools = client.call("tools/list", json!({})).await;
        let tools: Vec<&str> = tools["result"]["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        assert_eq!(tools.len(), 2, "{tools:?}");
        assert!(tools.contains(&"check_authorization") && tools.contains(&"obligation_status"));
        client.end().await;
        alice.stop().await;
    }
}

/// Nodes that have custody over MOQT, and clients of MCP servers beside them under the same identity.
#[tokio::test(flavor = "multi_thread")]
async fn ab1_custody_and_calls_go_over_moqt_beside_each_other() {
    let world = World::new();
    let (mut alice, mut bob) =
        world.configs(&format!("[moq]\nenabled = true\n{}", files()), "[moq]\nenabled = true\n");
    bob.peers[0].binding = abhyasa::config::Binding::Moqt;
    alice.peers[0].binding = abhyasa::config::Binding::Moqt;
    alice.peers[0].address = None; // Bob dials
    let (alice, bob) = (start(alice).await, common::start(bob).await);
    common::connected(&alice.handle(), 1).await;
    let config = world.path().join("bob/abhyasa.toml");
    let mut clients: Vec<Proxy> =
        (0..5).map(|_| Proxy::start(&config, "files", Over::Moqt)).collect();
    for (client, n) in clients.iter_mut().zip(0..) {
        client.open().await;
        let name = format!("ob-{n}");
        common::issue(&bob.handle(), common::revoke(&name, "alice", &name)).await;
        assert_eq!(
            text(&client.tool("read", json!({ "path": name })).await),
            format!("content of {name}")
        );
        common::ends(&bob.handle(), &name, proto::record::Terminal::Applied).await;
    }
    assert_eq!(alice.handle().peers()[0].sessions, 1, "of custody there is one");
    for client in clients {
        client.end().await;
    }
    bob.stop().await.unwrap();
    alice.stop().await;
}
