//! A real node with an MCP server behind it, and a client that does as it likes.

use super::hostile::Stage;
use super::*;
use crate::moq::mcp::Client;
use crate::moq::ordered::{Heard, Inbound, Outbound};
use crate::peers::Dial;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc;

const SESSIONS_OPENING_MAX: usize = 16;
const LEN_MAX: usize = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that gives back what it is told. Requests that come back are requests of its own.
const ECHO: &str = "[[mcp_servers]]\nname = \"echo\"\ncommand = [\"cat\"]\n";

fn control(id: &str) -> moq_transport::coding::TrackNamespace {
    namespace(&["mcp", id, "control"])
}

/// The session id in the document of a server; of the first there is, if it is not named.
async fn discover(link: &Link, server: Option<&str>) -> Result<String, LinkError> {
    let fields: Vec<&str> = ["mcp", "discovery"].into_iter().chain(server).collect();
    let found = link.fetch(namespace(&fields), "sessions", (0, 0), 10_000).await?;
    assert_eq!(found.len(), 1);
    let document: Value = serde_json::from_slice(&found[0].2).unwrap();
    let result = &document["result"];
    assert_eq!(result["server_info"]["name"], server.unwrap_or("echo"), "{document}");
    Ok(result["session_id"].as_str().unwrap().to_owned())
}

/// A session that is up: what we say, and what comes.
struct Up {
    outgoing: Outgoing,
    incoming: Incoming,
    _requests: Requests,
    _tasks: JoinSet<()>,
}

async fn up(link: &Link, id: &str) -> Up {
    let mut requests = link.answer(control(id));
    let incoming = link.subscribe(control(id), "server-to-client", LEN_MAX).await.unwrap();
    let mut tasks = JoinSet::new();
    let outgoing = serve_next(&mut requests, &mut tasks).await;
    Up { outgoing, incoming, _requests: requests, _tasks: tasks }
}

impl Up {
    /// Says something that comes back.
    async fn echo(&mut self, n: u64) {
        let said = json!({ "jsonrpc": "2.0", "method": "notifications/x", "params": { "n": n } });
        self.outgoing.push(64, said.to_string().into()).await.unwrap();
        let (group, heard) = self.next().await.unwrap();
        assert_eq!(group, n);
        assert_eq!(serde_json::from_slice::<Value>(&heard).unwrap(), said);
    }

    async fn next(&mut self) -> Option<(u64, Bytes)> {
        let next = tokio::time::timeout(PATIENCE, self.incoming.next());
        next.await.expect("in time").unwrap_or(None)
    }

    /// Waits for the end of what the node says.
    async fn ended(mut self) {
        while self.next().await.is_some() {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_only_speaks_mcp_finds_the_servers_and_is_served() {
    let stage = Stage::with(ECHO).await;
    let (link, _task) = stage.link().await;
    for server in [None, Some("echo")] {
        let id = discover(&link, server).await.unwrap();
        assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
        let mut up = up(&link, &id).await;
        for n in 0..20 {
            up.echo(n).await;
        }
        drop(up.outgoing); // all is said
        assert!(up.incoming.next().await.unwrap().is_none(), "and all is heard");
    }
    // The document by subscription, as one group.
    let ns = namespace(&["mcp", "discovery"]);
    let mut documents = link.subscribe(ns, "sessions", 10_000).await.unwrap();
    let (group, document) = documents.next().await.unwrap().unwrap();
    let document: Value = serde_json::from_slice(&document).unwrap();
    assert_eq!(group, 0);
    assert!(documents.next().await.unwrap().is_none());
    up(&link, document["result"]["session_id"].as_str().unwrap()).await.echo(0).await;
    // What is not there, or is not a session's to read.
    for fields in [&["mcp", "discovery", "other"][..], &["mcp", "none", "control"]] {
        let refused = link.fetch(namespace(fields), "sessions", (0, 0), 100).await;
        assert!(matches!(refused, Err(LinkError::Refused { .. })), "{fields:?}");
    }
    let ns = namespace(&["mcp", "discovery"]);
    assert!(link.fetch(ns.clone(), "other", (0, 0), 100).await.is_err());
    assert!(link.fetch(ns, "sessions", (1, 1), 100).await.is_err());
    stage.bob.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bd1_a_hostile_client_ends_its_session_and_holds_nothing() {
    let stage = Stage::with(ECHO).await;
    let (link, _task) = stage.link().await;
    // More than a peer may have at a time: what ends gives its place back.
    for n in 0..70 {
        let id = discover(&link, None).await.unwrap();
        if n % 10 == 9 {
            // A track that is the client's own to publish, before the one that is not.
            let wrong = link.subscribe(control(&id), "client-to-server", LEN_MAX).await;
            assert!(matches!(wrong, Err(LinkError::Refused { .. })));
        }
        let mut up = up(&link, &id).await;
        up.echo(0).await;
        let second = link.subscribe(control(&id), "server-to-client", LEN_MAX).await;
        assert!(matches!(second, Err(LinkError::Refused { .. })), "a second subscriber");
        match n % 4 {
            0 => {
                let long = Bytes::from(vec![b'x'; LEN_MAX + 1]);
                up.outgoing.push(64, long).await.unwrap();
            }
            1 => drop(up.outgoing.push_as(1 << 50, 64, Bytes::from_static(b"far")).await),
            2 => {
                // 1 is missing, and nobody is there to be asked for it.
                drop(up._requests);
                up.outgoing.push_as(2, 64, Bytes::from_static(b"early")).await.unwrap();
                let Up { mut incoming, outgoing: _outgoing, _tasks, .. } = up;
                let end = tokio::time::timeout(PATIENCE, incoming.next()).await;
                assert!(end.expect("it ends").unwrap().is_none());
                continue;
            }
            _ => {
                drop(up); // without a word
                continue;
            }
        }
        up.ended().await;
    }
    // Ids that nobody uses.
    for _ in 0..SESSIONS_OPENING_MAX {
        discover(&link, None).await.unwrap();
    }
    let refused = discover(&link, None).await;
    assert!(matches!(refused, Err(LinkError::Refused { .. })), "one too many");
    let (other, _other_task) = stage.link().await;
    let id = discover(&other, Some("echo")).await.unwrap();
    up(&other, &id).await.echo(0).await;
    // They are given up. So is custody with a client that does not answer what the node announces, and the client
    // has the rest all the same.
    let free = async {
        loop {
            match discover(&link, None).await {
                Ok(id) => return id,
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    };
    let id = tokio::time::timeout(PATIENCE, free).await.expect("they are given up");
    up(&link, &id).await.echo(0).await;
    stage.bob.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_one_client_share_a_connection_and_find_a_new_one() {
    let stage = Stage::with(ECHO).await;
    let dial = Dial {
        endpoint: quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap(),
        tls: Arc::new(stage.alice_tls()),
        transport: Arc::new(quinn::TransportConfig::default()),
        handshake_timeout: PATIENCE,
    };
    let at = stage.bob.handle().quic_address().to_string();
    let endpoint = dial.endpoint.clone();
    let client = Client::new(dial, super::signed::id("bob"), at);
    let said = br#"{"jsonrpc":"2.0","method":"notifications/x"}"#;
    let mut sessions = Vec::new();
    for _ in 0..3 {
        let mut begun = client.begin("echo").await.unwrap();
        begun.to.send(said.to_vec()).await.unwrap();
        assert_eq!(begun.from.recv().await.unwrap().unwrap(), said);
        sessions.push(begun);
    }
    assert_eq!(endpoint.open_connections(), 1);
    let error = client.begin("other").await.unwrap_err();
    assert!(error.to_string().contains("no MCP server \"other\" for us"), "{error}");
    // One ends, and the others go on.
    let first = sessions.remove(0);
    drop(first.to);
    let mut from = first.from;
    assert!(from.recv().await.is_none());
    sessions[1].to.send(said.to_vec()).await.unwrap();
    assert_eq!(sessions[1].from.recv().await.unwrap().unwrap(), said);
    // The connection is lost, and with it the sessions; the next has another.
    client.lose().await;
    for session in &mut sessions {
        while let Some(Ok(_)) = session.from.recv().await {}
    }
    let mut begun = client.begin("echo").await.unwrap();
    begun.to.send(said.to_vec()).await.unwrap();
    assert_eq!(begun.from.recv().await.unwrap().unwrap(), said);
    stage.bob.stop().await.unwrap();
}

/// A node that has had all the requests of a connection asks nothing back in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_in_which_the_node_may_ask_nothing_more_is_left_for_another() {
    let stage = Stage::with(ECHO).await;
    let bridge = stage.bob.handle().bridge().unwrap();
    let transport = Arc::new(quinn::TransportConfig::default());
    let server = stage.bob_tls().server(&[ALPN], transport.clone()).unwrap();
    let server = quinn::Endpoint::server(server, ([127, 0, 0, 1], 0).into()).unwrap();
    let at = server.local_addr().unwrap().to_string();
    let dial = Dial {
        endpoint: quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap(),
        tls: Arc::new(stage.alice_tls()),
        transport,
        handshake_timeout: PATIENCE,
    };
    let mut node = JoinSet::new();
    node.spawn(async move {
        let mut serving = JoinSet::new();
        for spent in [true, false] {
            let connection = server.accept().await.unwrap().await.unwrap();
            let (link, run) = Link::accept(connection).await.unwrap();
            let serve =
                crate::moq::mcp::serve(Some(bridge.clone()), &link, &super::signed::id("alice"));
            serving.spawn(async move { drop(run.await) });
            serving.spawn(serve);
            if spent {
                link.spend();
            }
        }
        std::future::pending::<()>().await;
    });
    let client = Client::new(dial, super::signed::id("bob"), at);
    let said = br#"{"jsonrpc":"2.0","method":"notifications/x"}"#;
    let mut begun = client.begin("echo").await.unwrap();
    begun.to.send(said.to_vec()).await.unwrap();
    assert_eq!(begun.from.recv().await.unwrap().unwrap(), said);
    stage.bob.stop().await.unwrap();
}

/// A server that ends while its client's connection takes nothing, for longer than MOQT libraries wait for streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_said_last_is_fetched_by_who_reads_late() {
    let last = "[[mcp_servers]]\nname = \"echo\"\ncommand = [\"sh\", \"-c\", \"head -n 1; sleep 1; yes '{\\\"jsonrpc\\\":\\\"2.0\\\",\\\"method\\\":\\\"notifications/x\\\"}' | head -n 50\"]\n";
    let stage = Stage::with(last).await;
    let (link, _task) = stage.link().await;
    let id = discover(&link, None).await.unwrap();
    let up = up(&link, &id).await;
    let Up { outgoing, incoming, _requests, mut _tasks } = up;
    let heard = Arc::new(Heard::default());
    let mut outbound = Outbound::new(link.clone(), outgoing, 64, heard.clone());
    let (to, mut messages) = mpsc::channel::<Bytes>(1);
    let inbound = Inbound::new(link.clone(), incoming, (control(&id), "server-to-client"), LEN_MAX);
    let mut reading = JoinSet::new();
    reading.spawn(async move { inbound.run(&to, &heard, |message| message).await });
    let go = br#"{"jsonrpc":"2.0","method":"notifications/go"}"#;
    outbound.send(Bytes::from_static(go)).await.unwrap();
    assert_eq!(messages.recv().await.unwrap(), &go[..]);
    let held = link.hold_back();
    tokio::time::sleep(Duration::from_secs(9)).await;
    drop(held);
    let mut count = 0;
    while let Some(message) = tokio::time::timeout(PATIENCE, messages.recv()).await.unwrap() {
        assert!(message.ends_with(b"notifications/x\"}"), "{message:?}");
        count += 1;
    }
    assert_eq!(count, 50);
    reading.join_next().await.unwrap().unwrap().unwrap();
    stage.bob.stop().await.unwrap();
}

/// A client that never reads, and a server that says much: neither the node's memory nor the client's grows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bd1_a_client_that_does_not_take_its_messages_holds_the_server_back() {
    let flood = "[[mcp_servers]]\nname = \"echo\"\ncommand = [\"sh\", \"-c\", \"head -n 1; yes '{\\\"jsonrpc\\\":\\\"2.0\\\",\\\"method\\\":\\\"notifications/x\\\"}' | head -n 4000; cat\"]\n";
    let stage = Stage::with(flood).await;
    let (link, _task) = stage.link().await;
    let id = discover(&link, None).await.unwrap();
    let up = up(&link, &id).await;
    let Up { outgoing, incoming, _requests, mut _tasks } = up;
    let heard = Arc::new(Heard::default());
    let mut outbound = Outbound::new(link.clone(), outgoing, 64, heard.clone());
    let (to, mut messages) = mpsc::channel::<Bytes>(1);
    let inbound = Inbound::new(link.clone(), incoming, (control(&id), "server-to-client"), LEN_MAX);
    _tasks.spawn(async move { drop(inbound.run(&to, &heard, |message| message).await) });
    let go = br#"{"jsonrpc":"2.0","method":"notifications/go"}"#;
    outbound.send(Bytes::from_static(go)).await.unwrap();
    assert_eq!(messages.recv().await.unwrap(), &go[..]);
    tokio::time::sleep(Duration::from_secs(2)).await; // it says what it can
    let mut count = 0;
    while count < 4_000 {
        let next = tokio::time::timeout(PATIENCE, messages.recv()).await.unwrap().unwrap();
        assert!(next.ends_with(b"notifications/x\"}"), "{next:?}");
        count += 1;
    }
    outbound.send(Bytes::from_static(go)).await.unwrap();
    assert_eq!(messages.recv().await.unwrap(), &go[..]);
    stage.bob.stop().await.unwrap();
}
