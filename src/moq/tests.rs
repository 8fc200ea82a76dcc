use super::link::Requests;
use super::track::{Incoming, Outgoing, TrackError};
use super::*;
use crate::init::ca::{DevCa, valid_days};
use crate::tls::{self, TlsIdentity};
use bytes::Bytes;
use moq_transport::serve::{ServeError, Subgroup, Track, TrackReaderMode};
use moq_transport::session::{Publisher, Session, Transport, transport};
use proto::id::AgentId;
use std::sync::Arc;
use tokio::task::JoinSet;

const OBJECT_LEN_MAX: usize = 1 << 20;

/// Two ends of a QUIC connection on loopback that speak MOQT, and what keeps them.
pub(crate) struct Pair {
    pub(crate) client: quinn::Connection,
    pub(crate) server: quinn::Connection,
    _endpoint: quinn::Endpoint,
}

impl Pair {
    pub(crate) async fn new() -> Self {
        let ca = DevCa::generate().unwrap();
        let of = |name: &str| {
            let id = AgentId::new(name).unwrap();
            let issued = ca.issue(&id, valid_days(1)).unwrap();
            TlsIdentity::from_der(vec![issued.cert], issued.key, vec![ca.cert().clone()]).unwrap()
        };
        let (a, b) = (of("spiffe://example.org/a"), of("spiffe://example.org/b"));
        let transport = Arc::new(quinn::TransportConfig::default());
        let server = b.server(&[ALPN], transport.clone()).unwrap();
        let endpoint = quinn::Endpoint::server(server, ([127, 0, 0, 1], 0).into()).unwrap();
        let config = a.client(&[ALPN], b.agent(), transport).unwrap();
        let at = endpoint.local_addr().unwrap();
        let dialled = endpoint.connect_with(config, at, tls::SERVER_NAME).unwrap();
        let (client, server) =
            tokio::join!(dialled, async { endpoint.accept().await.unwrap().await.unwrap() });
        Self { client: client.unwrap(), server, _endpoint: endpoint }
    }

    /// Sessions of ours at both ends, and their tasks.
    pub(crate) async fn links(&self) -> (Link, Link, JoinSet<()>) {
        let url = "moqt://127.0.0.1/".parse().unwrap();
        let (client, server) = tokio::join!(
            Link::connect(self.client.clone(), url, Vec::new()),
            Link::accept(self.server.clone()),
        );
        let ((client, client_run), (server, server_run)) = (client.unwrap(), server.unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(client_run.await) });
        tasks.spawn(async move { drop(server_run.await) });
        (client, server, tasks)
    }
}

/// Serves the next subscription.
async fn serve_next(requests: &mut Requests, tasks: &mut JoinSet<()>) -> Outgoing {
    let subscribed = requests.subscribed.recv().await.unwrap();
    let (outgoing, serve) = Outgoing::accept(subscribed).unwrap();
    tasks.spawn(async move { drop(serve.await) });
    outgoing
}

#[tokio::test]
async fn groups_come_whole_and_fetches_and_unknown_names_are_answered() {
    let pair = Pair::new().await;
    let (client, server, mut tasks) = pair.links().await;
    let ns = namespace(&["abhyasa", "1", "a"]);
    let mut requests = server.answer(ns.clone());
    let announced = server.announce(ns.clone());
    let (announced, heard) = tokio::join!(announced, async {
        let mut heard = client.announced().await.unwrap();
        heard.ok().unwrap();
        heard
    });
    assert!(announced.is_ok() && heard.info.namespace == ns);
    let (incoming, mut outgoing) = tokio::join!(
        client.subscribe(ns.clone(), "t", OBJECT_LEN_MAX),
        serve_next(&mut requests, &mut tasks),
    );
    let mut incoming = incoming.unwrap();
    let object = |n: u64| Bytes::from(vec![n as u8; 1 + n as usize * 997]);
    outgoing.push(16, object(0)).await.unwrap();
    let mut found = vec![incoming.next().await.unwrap().unwrap()];
    for n in 1..50 {
        assert_eq!(outgoing.push(16, object(n)).await.unwrap(), n);
    }
    while found.len() < 50 {
        found.push(incoming.next().await.unwrap().unwrap());
    }
    found.sort();
    assert!(found.iter().zip(0..).all(|((id, bytes), n)| *id == n && *bytes == object(n)));
    drop(outgoing);
    assert!(incoming.next().await.unwrap().is_none(), "the publisher ended it");

    let error = client.subscribe(namespace(&["other"]), "t", 1).await.unwrap_err();
    assert!(
        matches!(error, LinkError::Refused { source: ServeError::NotFoundWithId(..), .. }),
        "{error}"
    );
    let error = client.fetch(namespace(&["other"]), "t", (0, 0), 1).await.unwrap_err();
    assert!(matches!(error, LinkError::Refused { .. }), "{error}");
}

/// Relays keep what they had of a track, and take nothing for new that has a number they know.
#[tokio::test]
async fn a_track_that_is_asked_for_again_goes_on_with_further_groups() {
    let pair = Pair::new().await;
    let (client, server, mut tasks) = pair.links().await;
    let ns = namespace(&["n"]);
    let mut requests = server.answer(ns.clone());
    let next = super::track::Next::default();
    let mut found = Vec::new();
    for _ in 0..2 {
        let (incoming, mut outgoing) =
            tokio::join!(client.subscribe(ns.clone(), "t", OBJECT_LEN_MAX), async {
                let subscribed = requests.subscribed.recv().await.unwrap();
                let (outgoing, serve) = Outgoing::accept_from(subscribed, next.clone()).unwrap();
                tasks.spawn(async move { drop(serve.await) });
                outgoing
            });
        let mut incoming = incoming.unwrap();
        let open = outgoing.open(16, Bytes::from_static(b"open")).unwrap();
        found.push(incoming.next().await.unwrap().unwrap().0);
        drop(open);
        outgoing.push(16, Bytes::from_static(b"object")).await.unwrap();
        found.push(incoming.next().await.unwrap().unwrap().0);
    }
    assert_eq!(found, [0, 1, 2, 3]);
}

/// What is fetched comes over the same connection, and may be what whoever holds it back waits for.
#[tokio::test]
async fn a_fetch_is_answered_while_the_connection_is_held_back() {
    let pair = Pair::new().await;
    let (client, server, mut tasks) = pair.links().await;
    let ns = namespace(&["n"]);
    let mut requests = server.answer(ns.clone());
    tasks.spawn(async move {
        while let Some((request, _)) = requests.fetched.recv().await {
            crate::moq::ordered::respond(request, &[(0, Bytes::from_static(b"found"))])
                .await
                .unwrap();
        }
    });
    let _held = client.hold_back();
    for n in 0..3 {
        // The first may have a stream that was waited for before.
        let fetch = client.fetch(ns.clone(), "t", (0, 0), OBJECT_LEN_MAX);
        let found = tokio::time::timeout(std::time::Duration::from_secs(20), fetch).await;
        let found = found.unwrap_or_else(|_| panic!("fetch {n} is held back")).unwrap();
        assert_eq!(found[0].2, "found");
    }
}

#[tokio::test]
async fn an_object_over_the_limit_ends_the_subscription() {
    let pair = Pair::new().await;
    let (client, server, mut tasks) = pair.links().await;
    let ns = namespace(&["n"]);
    let mut requests = server.answer(ns.clone());
    let (incoming, mut outgoing) =
        tokio::join!(client.subscribe(ns, "t", 10), serve_next(&mut requests, &mut tasks),);
    let mut incoming = incoming.unwrap();
    outgoing.push(1, Bytes::from_static(&[0; 10])).await.unwrap();
    assert_eq!(incoming.next().await.unwrap().unwrap().1.len(), 10);
    outgoing.push(1, Bytes::from_static(&[0; 11])).await.unwrap();
    assert!(matches!(incoming.next().await, Err(TrackError::TooLong { max: 10 })));
}

#[tokio::test]
async fn requests_beyond_the_limit_are_refused_and_come_free_again() {
    let pair = Pair::new().await;
    let (client, server, mut tasks) = pair.links().await;
    let ns = namespace(&["n"]);
    let mut requests = server.answer(ns.clone());
    let mut held = Vec::new();
    for n in 0..REQUESTS_MAX {
        let (incoming, outgoing) = tokio::join!(
            client.subscribe(ns.clone(), format!("t{n}"), 10),
            serve_next(&mut requests, &mut tasks),
        );
        held.push((incoming.unwrap(), outgoing));
    }
    let error = client.subscribe(ns.clone(), "more", 10).await.unwrap_err();
    assert!(matches!(error, LinkError::Full { max: REQUESTS_MAX }), "{error}");
    drop(held.pop());
    let (incoming, _outgoing) =
        tokio::join!(client.subscribe(ns, "more", 10), serve_next(&mut requests, &mut tasks),);
    assert!(incoming.is_ok());
}

/// Whether what was sent last arrives among the first: 8 MiB of bulk are with QUIC before it.
async fn ack_overtakes_bulk(publisher: transport::Session, subscriber: transport::Session) -> bool {
    let (publishing, subscribing) = tokio::join!(
        Session::connect(publisher, None, Transport::RawQuic),
        Session::accept(subscriber, None, Transport::RawQuic),
    );
    let (session, mut publisher, _subscriber) = publishing.unwrap();
    let (other, _publisher, subscriber) = subscribing.unwrap();
    let mut subscriber = subscriber.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { drop(session.run().await) });
    tasks.spawn(async move { drop(other.run().await) });
    let ns = namespace(&["n"]);
    let (writer, reader) = Track::new(ns.clone(), "t").produce();
    let serve = async |publisher: &mut Publisher| publisher.subscribed().await.unwrap();
    let (subscribe, subscribed) = tokio::join!(subscriber.subscribe_open(writer), async {
        let subscribed = serve(&mut publisher).await;
        let track = Track::new(ns.clone(), "t");
        let (writer, reader) = track.produce();
        tasks.spawn(async move { drop(subscribed.serve(reader).await) });
        writer.subgroups().unwrap()
    });
    let (_subscribe, mut groups) = (subscribe.unwrap(), subscribed);
    let mut group = |group_id, priority, len| {
        let mut group = groups.create(Subgroup { group_id, subgroup_id: 0, priority }).unwrap();
        group.write(Bytes::from(vec![7; len])).unwrap();
        group.finish().unwrap();
    };
    group(0, 8, 1); // before it is here, the others could be dropped
    let TrackReaderMode::Subgroups(mut groups) = reader.mode().await.unwrap() else {
        panic!("not subgroups")
    };
    let mut whole = Vec::new();
    let mut reading = JoinSet::new();
    for n in 0..34 {
        let mut one = groups.next().await.unwrap().unwrap();
        reading.spawn(async move {
            let object = one.read_next().await.unwrap().unwrap();
            (one.info.group_id, object.len())
        });
        match n {
            0 => (1..33).for_each(|bulk| group(bulk, 200, 256 * 1024)),
            1 => group(33, 8, 100), // all bulk is with QUIC, little of it there
            _ => {}
        }
    }
    while let Some(read) = reading.join_next().await {
        whole.push(read.unwrap().0);
    }
    let ack = whole.iter().position(|id| *id == 33).unwrap();
    assert_eq!(whole.len(), 34, "{whole:?}");
    eprintln!("{whole:?}");
    ack < 17
}

#[tokio::test]
async fn an_ack_overtakes_bulk_that_was_sent_before_it() {
    let url: url::Url = "moqt://127.0.0.1/".parse().unwrap();
    let session =
        |connection| transport::Session::new(backend::Backend::new(connection), url.clone());
    let pair = Pair::new().await;
    assert!(ack_overtakes_bulk(session(pair.client.clone()), session(pair.server.clone())).await);
    // The library's own backend: the bulk is through before the ack. If it no longer is, ours can go.
    let raw = |connection| {
        let response = transport::quinn::proto::ConnectResponse::default();
        let session = transport::quinn::Session::raw(connection, url.clone(), response);
        transport::Session::new(session, url.clone())
    };
    let pair = Pair::new().await;
    assert!(!ack_overtakes_bulk(raw(pair.client.clone()), raw(pair.server.clone())).await);
}

/// Publishes `n` groups of `len` bytes, all of which are over, to a reader that takes none but the first. Gives how many
/// of them are whole when it reads at last.
async fn whole_of_unread(n: u64, len: usize) -> usize {
    let pair = Pair::new().await;
    let (client, server, mut tasks) = pair.links().await;
    let ns = namespace(&["n"]);
    let mut requests = server.answer(ns.clone());
    let (incoming, mut outgoing) =
        tokio::join!(client.subscribe(ns, "t", 4 << 20), serve_next(&mut requests, &mut tasks));
    let mut incoming = incoming.unwrap();
    outgoing.push(16, Bytes::from_static(b"first")).await.unwrap();
    let mut first = incoming.group().await.unwrap().unwrap();
    while first.read_next().await.unwrap().is_some() {}
    for _ in 0..n {
        server.room().await;
        outgoing.push(16, Bytes::from(vec![7; len])).await.unwrap();
    }
    while server.waits() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    outgoing.push(16, Bytes::from_static(b"last")).await.unwrap();
    let mut whole = 0;
    loop {
        let (_, object) = incoming.next().await.unwrap().unwrap();
        match object.len() {
            4 => return whole,
            n => whole += usize::from(n == len),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bd1_groups_that_are_over_and_not_read_count_among_the_bytes_of_a_connection() {
    // Below the limit all are kept; above it they are not, however small they are beside what the library reads ahead.
    assert_eq!(whole_of_unread(20, 2 << 20).await, 20);
    let max = backend::STREAMS_LEN_MAX;
    let whole = whole_of_unread(40, 2 << 20).await;
    assert!(whole < 40 && whole * (2 << 20) <= max, "{whole} groups of 2 MiB");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bd1_a_publisher_that_is_not_known_has_little_of_a_connection() {
    let pair = Pair::new().await;
    let (client, server, mut tasks) = pair.links().await;
    client.doubt();
    let ns = namespace(&["n"]);
    let mut requests = server.answer(ns.clone());
    let subscribe = async |name: &'static str, requests: &mut Requests, tasks: &mut JoinSet<()>| {
        let (incoming, outgoing) =
            tokio::join!(client.subscribe(ns.clone(), name, 1 << 20), serve_next(requests, tasks));
        let incoming = incoming.unwrap();
        let suspect = client.suspect(&incoming).unwrap();
        (incoming, outgoing, suspect)
    };
    let (mut peer, mut peers, known) = subscribe("peer", &mut requests, &mut tasks).await;
    let (stranger, mut strangers, suspect) = subscribe("stranger", &mut requests, &mut tasks).await;
    peers.push(16, Bytes::from_static(b"hello")).await.unwrap();
    assert_eq!(peer.next().await.unwrap().unwrap().1, b"hello"[..]);
    known.prove();
    // As many streams as QUIC gives, of which none comes to an end.
    let mut open = Vec::new();
    for id in 0..99 {
        let mut group = strangers.begin(id, 16).unwrap();
        let mut object = group.create(100, None).unwrap();
        object.write(Bytes::from_static(b"half")).unwrap();
        open.push((object, group));
    }
    let spoilt = tokio::time::timeout(std::time::Duration::from_secs(3), suspect.spoilt());
    spoilt.await.expect("it takes too much, before its time is over");
    drop((stranger, suspect));
    // What is known has room for what is long.
    for _ in 0..5 {
        peers.push(16, Bytes::from(vec![7; 200_000])).await.unwrap();
        let next = tokio::time::timeout(std::time::Duration::from_secs(30), peer.next());
        assert_eq!(next.await.expect("in time").unwrap().unwrap().1.len(), 200_000);
    }
    let (_stranger, mut strangers, suspect) = subscribe("long", &mut requests, &mut tasks).await;
    strangers.push(16, Bytes::from(vec![7; 200_000])).await.unwrap();
    let spoilt = tokio::time::timeout(std::time::Duration::from_secs(3), suspect.spoilt());
    spoilt.await.expect("what is not known has not");
}

mod fanout;
mod hostile;
mod mcp;
mod ordered;
mod signed;
