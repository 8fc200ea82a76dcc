//! Messages in order, whatever the publisher or the network does to their groups.

use super::*;
use crate::moq::ordered::{Heard, Inbound, KEPT_MAX, OrderedError, Outbound, answer, respond};
use moq_transport::coding::{Encode as _, KeyValuePairs, Location};
use moq_transport::data::{StreamHeaderType, SubgroupHeader, SubgroupIdMode, SubgroupObject};
use moq_transport::message::{RequestErrorCode, TrackExtensions};
use moq_transport::session::FetchOkInfo;
use std::time::Duration;
use tokio::sync::mpsc;

const MESSAGE_LEN_MAX: usize = 4 << 20;
const NAME: &str = "t";

/// How long what must come may take.
const PATIENCE: Duration = Duration::from_secs(30);

type Run = Result<(), OrderedError>;

/// A track from the server to the client, whose reader runs.
struct Line {
    _pair: Pair,
    requests: Option<Requests>,
    outgoing: Option<Outgoing>,
    link: Link,
    reader: Link,
    serving: Option<JoinSet<Result<(), moq_transport::session::SessionError>>>,
    messages: mpsc::Receiver<Bytes>,
    reading: JoinSet<Run>,
    tasks: JoinSet<()>,
}

impl Line {
    async fn new() -> Self {
        let pair = Pair::new().await;
        let (client, server, tasks) = pair.links().await;
        let ns = namespace(&["mcp", "s", "control"]);
        let mut requests = server.answer(ns.clone());
        let mut serving = JoinSet::new();
        let (incoming, outgoing) =
            tokio::join!(client.subscribe(ns.clone(), NAME, MESSAGE_LEN_MAX), async {
                let subscribed = requests.subscribed.recv().await.unwrap();
                let (outgoing, serve) = Outgoing::accept(subscribed).unwrap();
                serving.spawn(serve);
                outgoing
            });
        let (to, messages) = mpsc::channel(1);
        let reader = client.clone();
        let inbound = Inbound::new(client, incoming.unwrap(), (ns, NAME), MESSAGE_LEN_MAX);
        let mut reading = JoinSet::new();
        reading.spawn(async move { inbound.run(&to, &Heard::default(), |message| message).await });
        let (outgoing, requests) = (Some(outgoing), Some(requests));
        let (link, serving) = (server, Some(serving));
        Self { _pair: pair, requests, outgoing, link, reader, serving, messages, reading, tasks }
    }

    async fn push(&mut self, id: u64, object: Bytes) {
        self.outgoing.as_mut().unwrap().push_as(id, 64, object).await.unwrap();
    }

    /// Sends a group again, which the library would not.
    async fn copy(&mut self, group_id: u64) {
        let header = SubgroupHeader {
            header_type: StreamHeaderType::subgroup(
                SubgroupIdMode::Explicit,
                false,
                false,
                false,
                true,
            ),
            track_alias: 0, // the id of the only request
            group_id,
            subgroup_id: Some(0),
            publisher_priority: 64,
        };
        let object = SubgroupObject {
            object_id_delta: 0,
            payload_length: message(group_id).len(),
            status: None,
        };
        let mut bytes = Vec::new();
        header.encode(&mut bytes).unwrap();
        object.encode(&mut bytes).unwrap();
        bytes.extend_from_slice(&message(group_id));
        let mut stream = self.link.connection().open_uni().await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        stream.finish().unwrap();
        assert_eq!(stream.stopped().await.unwrap(), None, "it is taken");
    }

    async fn next(&mut self) -> Option<Bytes> {
        tokio::time::timeout(PATIENCE, self.messages.recv()).await.expect("a message in time")
    }

    /// How the reader ended.
    async fn ended(&mut self) -> Run {
        let ended = tokio::time::timeout(PATIENCE, self.reading.join_next());
        ended.await.expect("it ends in time").unwrap().unwrap()
    }

    /// Answers the next fetch as `with` says; gives the group that was asked for.
    async fn fetched(&mut self, with: Result<Vec<(u64, Bytes)>, RequestErrorCode>) -> u64 {
        let fetched =
            tokio::time::timeout(PATIENCE, self.requests.as_mut().unwrap().fetched.recv());
        let (request, range) = fetched.await.expect("a fetch in time").unwrap();
        assert_eq!(range.track_name.as_bytes(), NAME.as_bytes());
        let asked = range.start_location.group_id;
        assert_eq!(range.end_location.group_id, asked);
        match with {
            // Whoever asked may hang up in the middle of an answer that is wrong.
            Ok(objects) if objects.is_empty() => {
                let info = FetchOkInfo {
                    end_of_track: false,
                    end_location: Location::new(asked, 0),
                    params: KeyValuePairs::default(),
                    track_extensions: TrackExtensions::default(),
                };
                request.respond(info).await.unwrap().finish().await.unwrap();
            }
            Ok(objects) => drop(respond(request, &objects).await),
            Err(code) => request.reject(code, "no").unwrap(),
        }
        asked
    }
}

fn message(id: u64) -> Bytes {
    Bytes::from(format!("message {id}"))
}

#[tokio::test]
async fn groups_that_overtake_each_other_or_come_twice_leave_in_order_and_once() {
    let mut line = Line::new().await;
    for id in [2, 0, 1, 5, 3] {
        line.push(id, message(id)).await;
    }
    for id in [0, 3, 5] {
        line.copy(id).await;
    }
    line.copy(4).await; // as good as the first
    line.push(6, message(6)).await;
    for id in 0..=6 {
        assert_eq!(line.next().await.unwrap(), message(id));
    }
    line.outgoing = None;
    assert_eq!(line.next().await, None, "the track ended");
    line.ended().await.unwrap();
}

#[tokio::test]
async fn a_message_that_does_not_come_is_fetched_and_those_after_it_wait() {
    let mut line = Line::new().await;
    for id in [0, 1, 3, 4] {
        line.push(id, message(id)).await;
    }
    assert_eq!(line.next().await.unwrap(), message(0));
    assert_eq!(line.next().await.unwrap(), message(1));
    assert!(line.messages.try_recv().is_err(), "3 is there, and waits");
    assert_eq!(line.fetched(Ok(vec![(2, message(2))])).await, 2);
    for id in [2, 3, 4] {
        assert_eq!(line.next().await.unwrap(), message(id));
    }
    // It comes after all, and is not taken again.
    line.push(2, message(2)).await;
    line.push(5, message(5)).await;
    assert_eq!(line.next().await.unwrap(), message(5));
}

#[tokio::test]
async fn a_message_that_comes_while_it_is_fetched_needs_no_answer() {
    let mut line = Line::new().await;
    for id in [0, 2] {
        line.push(id, message(id)).await;
    }
    assert_eq!(line.next().await.unwrap(), message(0));
    let fetched = tokio::time::timeout(PATIENCE, line.requests.as_mut().unwrap().fetched.recv());
    let (request, _) = fetched.await.expect("a fetch in time").unwrap();
    line.push(1, message(1)).await;
    assert_eq!(line.next().await.unwrap(), message(1));
    assert_eq!(line.next().await.unwrap(), message(2));
    request.reject(RequestErrorCode::InvalidRange, "not kept any more").unwrap();
    for id in 3..20 {
        line.push(id, message(id)).await;
        assert_eq!(line.next().await.unwrap(), message(id));
    }
}

#[tokio::test]
async fn a_message_that_was_cut_is_fetched() {
    let mut line = Line::new().await;
    line.push(0, message(0)).await;
    let mut group = line.outgoing.as_mut().unwrap().begin(1, 64).unwrap();
    let mut object = group.create(100, None).unwrap();
    object.write(Bytes::from_static(b"half")).unwrap();
    assert_eq!(line.next().await.unwrap(), message(0));
    line.push(2, message(2)).await;
    drop((object, group)); // the library resets the stream
    assert_eq!(line.fetched(Ok(vec![(1, message(1))])).await, 1);
    assert_eq!(line.next().await.unwrap(), message(1));
    assert_eq!(line.next().await.unwrap(), message(2));
}

#[tokio::test]
async fn a_message_that_cannot_be_fetched_ends_the_session_and_none_is_passed_over() {
    type Answer = Result<Vec<(u64, Bytes)>, RequestErrorCode>;
    type Expected = fn(&OrderedError) -> bool;
    let answers: [(Answer, Expected); 3] = [
        (Err(RequestErrorCode::InvalidRange), |e| matches!(e, OrderedError::Lost { id: 1, .. })),
        (Ok(Vec::new()), |e| matches!(e, OrderedError::NotFetched { id: 1, count: 0 })),
        (Ok(vec![(1, Bytes::from(vec![0; MESSAGE_LEN_MAX + 1]))]), |e| {
            matches!(e, OrderedError::Lost { id: 1, .. })
        }),
    ];
    for (answer, expected) in answers {
        let mut line = Line::new().await;
        for id in [0, 2, 3] {
            line.push(id, message(id)).await;
        }
        assert_eq!(line.next().await.unwrap(), message(0));
        line.fetched(answer).await;
        let error = line.ended().await.unwrap_err();
        assert!(expected(&error), "{error}");
        assert_eq!(line.next().await, None, "2 and 3 are not given without 1");
    }
}

#[tokio::test]
async fn a_message_that_is_missing_at_the_end_of_the_track_is_fetched() {
    let mut line = Line::new().await;
    for id in [0, 2] {
        line.push(id, message(id)).await;
    }
    line.outgoing = None;
    assert_eq!(line.fetched(Ok(vec![(1, message(1))])).await, 1);
    for id in 0..=2 {
        assert_eq!(line.next().await.unwrap(), message(id));
    }
    assert_eq!(line.next().await, None);
    line.ended().await.unwrap();
}

#[tokio::test]
async fn bd1_what_is_no_message_or_too_long_or_too_far_ends_the_session() {
    // An object too long, and one more object in a group.
    let mut line = Line::new().await;
    line.push(0, Bytes::from(vec![0; MESSAGE_LEN_MAX + 1])).await;
    let error = line.ended().await.unwrap_err();
    let max = MESSAGE_LEN_MAX;
    assert!(matches!(error, OrderedError::Track(TrackError::TooLong { max: m }) if m == max));
    let mut line = Line::new().await;
    let mut group = line.outgoing.as_mut().unwrap().begin(0, 64).unwrap();
    group.write(message(0)).unwrap();
    group.write(message(1)).unwrap();
    group.finish().unwrap();
    let error = line.ended().await.unwrap_err();
    assert!(matches!(error, OrderedError::NotOne { id: 0 }), "{error}");
    // A group far ahead.
    let mut line = Line::new().await;
    line.push(1 << 40, message(0)).await;
    let error = line.ended().await.unwrap_err();
    assert!(matches!(error, OrderedError::Order(_)), "{error}");
    // Many that say they are long, and do not come.
    let mut line = Line::new().await;
    line.push(0, message(0)).await;
    assert_eq!(line.next().await.unwrap(), message(0));
    let mut open = Vec::new();
    for id in 1..10 {
        let mut group = line.outgoing.as_mut().unwrap().begin(id, 64).unwrap();
        let mut object = group.create(MESSAGE_LEN_MAX, None).unwrap();
        object.write(Bytes::from_static(b"x")).unwrap();
        open.push((object, group));
    }
    let error = line.ended().await.unwrap_err();
    assert!(matches!(error, OrderedError::Order(_)), "{error}");
}

/// The whole of it, from one of our senders to one of our receivers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bd1_a_sender_waits_for_a_slow_reader_and_nothing_is_lost() {
    const N: u64 = 700;
    let mut line = Line::new().await;
    let outgoing = line.outgoing.take().unwrap();
    let mut outbound = Outbound::new(line.link.clone(), outgoing, 64, Arc::default());
    let kept = outbound.kept().clone();
    let requests = line.requests.take().unwrap();
    line.tasks.spawn(answer(requests, NAME, kept));
    // 70 MB in all, of which one message is taken at a time, and at first none.
    let object = |id: u64| Bytes::from(vec![id as u8; 1 + (id as usize % 7) * 33_333]);
    let sent = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let count = sent.clone();
    line.tasks.spawn(async move {
        for id in 0..N {
            outbound.send(object(id)).await.unwrap();
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    });
    // It goes on until all that holds messages is full, and then it does not.
    let mut last = u64::MAX;
    while sent.load(std::sync::atomic::Ordering::SeqCst) != last {
        last = sent.load(std::sync::atomic::Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    assert!(last < N, "the sender waits");
    for id in 0..N {
        let got = tokio::time::timeout(PATIENCE, line.messages.recv()).await.unwrap();
        assert!(got.unwrap() == object(id), "{id}");
    }
    assert_eq!(line.next().await, None);
    line.ended().await.unwrap();
}

/// A sender of ours that says `n` messages, all of them, to a reader of ours whose connection is held back for `time`.
async fn read_after(n: u64, time: Duration) -> Vec<Bytes> {
    let mut line = Line::new().await;
    let outgoing = line.outgoing.take().unwrap();
    let outbound = Outbound::new(line.link.clone(), outgoing, 64, Arc::default());
    let requests = line.requests.take().unwrap();
    line.tasks.spawn(answer(requests, NAME, outbound.kept().clone()));
    let held = line.reader.hold_back();
    let (to, told) = mpsc::channel(1);
    let mut serving = line.serving.take().unwrap();
    let served = async move { serving.join_next().await.unwrap().unwrap() };
    line.tasks.spawn(async move {
        outbound.run(served, told).await;
    });
    for id in 0..n {
        to.send(message(id).to_vec()).await.unwrap();
    }
    drop(to);
    tokio::time::sleep(time).await;
    drop(held);
    let mut read = Vec::new();
    while let Some(message) = line.next().await {
        read.push(message);
    }
    line.ended().await.unwrap();
    read
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_said_last_is_there_for_who_reads_late() {
    // More than there is QUIC's credit for: quinn gives it for 100 streams.
    let (few, many) = tokio::join!(
        read_after(40, Duration::from_secs(8)), // longer than the library waits for streams it knows of
        read_after(140, Duration::from_secs(13)),
    );
    assert_eq!(few, (0..40).map(message).collect::<Vec<_>>());
    assert_eq!(many, (0..140).map(message).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bd1_who_takes_no_messages_does_not_hold_up_the_others_for_ever() {
    let pair = Pair::new().await;
    let (client, server, mut tasks) = pair.links().await;
    let track = async |name: &'static str, tasks: &mut JoinSet<()>| {
        let ns = namespace(&["mcp", name, "control"]);
        let mut requests = server.answer(ns.clone());
        let (incoming, outgoing) = tokio::join!(
            client.subscribe(ns.clone(), NAME, MESSAGE_LEN_MAX),
            serve_next(&mut requests, tasks),
        );
        let inbound =
            Inbound::new(client.clone(), incoming.unwrap(), (ns.clone(), NAME), MESSAGE_LEN_MAX);
        (inbound.holding_for(Duration::from_secs(3)), outgoing, requests, ns)
    };
    let (stuck, outgoing, _stuck_requests, _) = track("stuck", &mut tasks).await;
    let (other, mut beside, requests, ns) = track("other", &mut tasks).await;
    let (to, _never_taken) = mpsc::channel(1);
    let mut ended = JoinSet::new();
    ended.spawn(async move { stuck.run(&to, &Heard::default(), |message| message).await });
    let (to, mut messages) = mpsc::channel(1);
    tasks.spawn(async move { drop(other.run(&to, &Heard::default(), |message| message).await) });
    let outbound = Outbound::new(server.clone(), outgoing, 64, Arc::default());
    tasks.spawn(async move {
        let mut outbound = outbound;
        for id in 0.. {
            if outbound.send(message(id)).await.is_err() {
                return;
            }
        }
    });
    let kept = Arc::default();
    tasks.spawn(answer(requests, NAME, Arc::clone(&kept)));
    // Until it is behind, all goes on.
    beside.push(64, message(0)).await.unwrap();
    assert_eq!(messages.recv().await.unwrap(), message(0));
    let behind = async {
        while !client.is_held_back() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, behind).await.expect("it is behind");
    // Whoever fetches is answered all the same: the answer is refused, and so does not even need a stream; what is
    // there comes by one.
    kept.lock().unwrap().push(message(7));
    let found = client.fetch(ns, NAME, (0, 0), 100).await.unwrap();
    assert_eq!(found, [(0, 0, message(7))]);
    let over = tokio::time::timeout(PATIENCE, ended.join_next()).await.expect("it is given up");
    let error = over.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, OrderedError::NotTaken { .. }), "{error}");
    beside.push(64, message(1)).await.unwrap();
    assert_eq!(messages.recv().await.unwrap(), message(1), "and the others go on");
}

#[tokio::test]
async fn what_is_kept_can_be_fetched_and_what_is_not_is_refused() {
    let pair = Pair::new().await;
    let (client, server, mut tasks) = pair.links().await;
    let ns = namespace(&["mcp", "s", "control"]);
    let mut requests = server.answer(ns.clone());
    let (incoming, outgoing) = tokio::join!(
        client.subscribe(ns.clone(), NAME, MESSAGE_LEN_MAX),
        serve_next(&mut requests, &mut tasks),
    );
    let heard = Arc::new(Heard::default());
    let mut outbound = Outbound::new(server.clone(), outgoing, 64, heard.clone());
    tasks.spawn(answer(requests, NAME, outbound.kept().clone()));
    let (to, mut messages) = mpsc::channel(KEPT_MAX * 2);
    let inbound = Inbound::new(client.clone(), incoming.unwrap(), (ns.clone(), NAME), 100);
    tasks.spawn(async move { drop(inbound.run(&to, &heard, |message| message).await) });
    let count = KEPT_MAX as u64 + 10;
    for id in 0..count {
        outbound.send(message(id)).await.unwrap();
    }
    for id in 0..count {
        assert_eq!(messages.recv().await.unwrap(), message(id));
    }
    let fetch = async |from, to| client.fetch(ns.clone(), NAME, (from, to), 10_000).await;
    let found = fetch(10, 11).await.unwrap();
    assert_eq!(found, [(10, 0, message(10)), (11, 0, message(11))]);
    assert_eq!(fetch(count - 1, count - 1).await.unwrap().len(), 1);
    for (from, to) in [(9, 9), (count, count), (u64::MAX >> 2, u64::MAX >> 2)] {
        let error = fetch(from, to).await.unwrap_err();
        assert!(matches!(error, LinkError::Refused { .. }), "{error}");
    }
    let other = client.fetch(ns.clone(), "other", (10, 10), 100).await.unwrap_err();
    assert!(matches!(other, LinkError::Refused { .. }), "{other}");
}
