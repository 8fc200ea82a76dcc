//! A2A over MOQT: a real node, and a caller made of the library that knows nothing of nodes.

mod limits;
mod nodes;

use super::{Server, TOKEN, bob, config, echo, hello, id_of, json_of, message, shapes, text};
use crate::common::raw::Raw;
use crate::common::{PATIENCE, World, eventually, id, peer_toml};
use abhyasa::config::NodeConfig;
use abhyasa::loopback::free_address;
use abhyasa::tls::ALPN_MOQT;
use moq_transport::coding::{TrackNamespace, TupleField};
use moq_transport::serve::{
    ServeError, Subgroup, SubgroupsWriter, Track, TrackReader, TrackReaderMode,
};
use moq_transport::session::{
    PublishNamespace, Publisher, Session, SessionError, Subscribe, Subscriber, Transport, transport,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

const BINDING: &str = "https://ravikiran438.github.io/abhyasa-protocol/bindings/a2a-moqt/v1";
/// Codes of refusals (draft-ietf-moq-transport-18 §15.10.2).
const EXCESSIVE_LOAD: u64 = 0x9;
const UNINTERESTED: u64 = 0x20;

fn namespace(fields: &[&str]) -> TrackNamespace {
    TrackNamespace { fields: fields.iter().map(|field| TupleField::from_utf8(field)).collect() }
}

/// An agent's id in names.
fn field(name: &str) -> String {
    id(name).as_str().replace('/', "%2F")
}

fn track(what: &str) -> String {
    format!("agent-{}/{what}", field("alice"))
}

/// A session with Alice's node that answers nothing of custody.
struct Link {
    raw: Raw,
    publisher: Publisher,
    subscriber: Subscriber,
    /// Why it ended.
    ended: oneshot::Receiver<String>,
    _tasks: JoinSet<()>,
}

/// An inbox that Alice answers.
struct Caller {
    link: Link,
    context: String,
    asked: SubgroupsWriter,
    /// What names the track of our calls on streams.
    alias: u64,
    next: u64,
    answers: Arc<Mutex<BTreeMap<u64, Value>>>,
    _kept: (PublishNamespace, Subscribe, JoinSet<()>),
}

/// A task that is followed: its events in the order of their groups.
struct Follow {
    subscribe: Subscribe,
    groups: mpsc::UnboundedReceiver<(u64, Vec<Value>)>,
    next: u64,
    early: BTreeMap<u64, Vec<Value>>,
    ready: VecDeque<Value>,
    over: bool,
    _task: JoinSet<()>,
}

impl Link {
    async fn dial(world: &World, name: &str, at: SocketAddr) -> Self {
        let raw = Raw::dial(world, name, ALPN_MOQT, "alice", at).await.unwrap();
        raw.connection.set_max_concurrent_bi_streams(128u32.into());
        let url: url::Url = "moqt://127.0.0.1/".parse().unwrap();
        let response = transport::quinn::proto::ConnectResponse::default();
        let session = transport::quinn::Session::raw(raw.connection.clone(), url.clone(), response);
        let session = transport::Session::new(session, url);
        let opened = Session::connect(session, None, Transport::RawQuic).await;
        let (session, publisher, subscriber) = opened.unwrap();
        let mut tasks = JoinSet::new();
        let (end, ended) = oneshot::channel();
        tasks.spawn(async move { drop(end.send(format!("{:?}", session.run().await))) });
        let mut theirs = subscriber.clone();
        tasks.spawn(async move {
            while let Some(announced) = theirs.published_namespace().await {
                let _ = announced.reject(UNINTERESTED, "calls only");
            }
        });
        Self { raw, publisher, subscriber, ended, _tasks: tasks }
    }

    /// Announces, and tells how that was taken.
    async fn announce(&self, fields: &[&str]) -> Result<PublishNamespace, ServeError> {
        let mut publisher = self.publisher.clone();
        let begun = match publisher.publish_namespace_start(namespace(fields)).await {
            Err(SessionError::Serve(error)) => return Err(error), // the one before is not over yet
            begun => begun.unwrap(),
        };
        tokio::time::timeout(PATIENCE, begun.ok()).await.expect("an answer in time")?;
        Ok(begun)
    }

    async fn subscribe(
        &self,
        fields: &[&str],
        name: &str,
    ) -> Result<(Subscribe, TrackReader), ServeError> {
        let (writer, reader) = Track::new(namespace(fields), name).produce();
        let mut subscriber = self.subscriber.clone();
        let begun = subscriber.subscribe_open(writer);
        let begun = tokio::time::timeout(PATIENCE, begun).await.expect("an answer in time")?;
        Ok((begun, reader))
    }

    /// Which code a subscription is refused with, if it is not as an unknown one.
    async fn refused(&self, fields: &[&str], name: &str) -> ServeError {
        match self.subscribe(fields, name).await {
            Ok(_) => panic!("{name} is served"),
            Err(error) => error,
        }
    }
}

fn is_unknown(error: &ServeError) -> bool {
    matches!(error, ServeError::NotFound | ServeError::NotFoundWithId(..))
}

/// Reads all groups of a track.
fn read(reader: TrackReader) -> (JoinSet<()>, mpsc::UnboundedReceiver<(u64, Vec<Value>)>) {
    let (tell, groups) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let Ok(TrackReaderMode::Subgroups(mut groups)) = reader.mode().await else { return };
        let mut reading = JoinSet::new();
        while let Ok(Some(mut group)) = groups.next().await {
            let tell = tell.clone();
            reading.spawn(async move {
                let mut objects = Vec::new();
                while let Ok(Some(object)) = group.read_next().await {
                    objects.push(serde_json::from_slice(&object).unwrap());
                }
                let _ = tell.send((group.info.group_id, objects));
            });
        }
        while reading.join_next().await.is_some() {}
    });
    (tasks, groups)
}

impl Caller {
    /// An inbox of this context, and one call alone before any other.
    async fn open(link: Link, context: &str) -> Self {
        let inbox = ["a2a", "inbox", &field("alice"), context];
        let announced = link.announce(&inbox).await.unwrap();
        // Before we answer its subscription: the order is the caller's.
        let from = format!("{context}-r");
        let (subscribe, response) =
            link.subscribe(&[&from, "a2a"], &track("response")).await.unwrap();
        let mut publisher = link.publisher.clone();
        let subscribed = tokio::time::timeout(PATIENCE, publisher.subscribed()).await;
        let subscribed = subscribed.expect("a subscription in time").unwrap();
        let calls = namespace(&[&format!("{context}-q"), "a2a"]);
        assert_eq!(subscribed.info.track_namespace, calls);
        assert_eq!(subscribed.info.track_name.as_bytes(), track("request").as_bytes());
        let alias = subscribed.info.id;
        let (writer, reader) = Track::new(calls, track("request")).produce();
        let asked = writer.subgroups().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(subscribed.serve(reader).await) });
        let (reading, mut groups) = read(response);
        let answers = Arc::new(Mutex::new(BTreeMap::new()));
        let heard = answers.clone();
        tasks.spawn(async move {
            let _reading = reading;
            while let Some((group, objects)) = groups.recv().await {
                let [answer] = &objects[..] else { panic!("{objects:?}") };
                assert_eq!(answer["jsonrpc"], "2.0", "{answer}");
                assert!(heard.lock().unwrap().insert(group, answer.clone()).is_none(), "twice");
            }
        });
        let _kept = (announced, subscribe, tasks);
        let context = context.to_owned();
        let mut caller = Self { link, context, asked, alias, next: 0, answers, _kept };
        let card = caller.call(json!({ "method": "GetAgentCard" })).await;
        assert_eq!(card["result"]["supportedInterfaces"][3]["protocolBinding"], BINDING);
        caller
    }

    async fn dial(world: &World, server: &Server, name: &str, context: &str) -> Self {
        let at = server.handle().quic_address();
        Self::open(Link::dial(world, name, at).await, context).await
    }

    /// Says this as the next call, and tells its number.
    fn say(&mut self, bytes: Vec<u8>) -> u64 {
        let number = self.next;
        self.next += 1;
        let group = Subgroup { group_id: number, subgroup_id: 0, priority: 96 };
        let mut group = self.asked.create(group).unwrap();
        group.write(bytes.into()).unwrap();
        group.finish().unwrap();
        number
    }

    /// Says two things in one group.
    fn say_more(&mut self) -> u64 {
        let group_id = self.next;
        self.next += 1;
        let group = Subgroup { group_id, subgroup_id: 0, priority: 96 };
        let mut group = self.asked.create(group).unwrap();
        let call = asking("SendMessage", json!({ "message": hello("m") }), json!({}));
        group.write(call.to_string().into()).unwrap();
        group.write(vec![b'x'; 4_000_000].into()).unwrap();
        group.finish().unwrap();
        group_id
    }

    fn ask(&mut self, mut request: Value) -> u64 {
        request["jsonrpc"] = json!("2.0");
        request["id"] = json!(format!("c-{}", self.next));
        self.say(request.to_string().into_bytes())
    }

    async fn answer(&self, number: u64) -> Value {
        eventually("an answer", async || self.answers.lock().unwrap().remove(&number)).await
    }

    async fn call(&mut self, request: Value) -> Value {
        let number = self.ask(request);
        let answer = self.answer(number).await;
        assert_eq!(answer["id"], json!(format!("c-{number}")), "{answer}");
        answer
    }

    /// A call in our version, with more service parameters.
    async fn asks(&mut self, method: &str, params: Value, more: Value) -> Value {
        self.call(asking(method, params, more)).await
    }

    async fn result(&mut self, method: &str, params: Value) -> Value {
        let answer = self.asks(method, params, json!({})).await;
        answer.get("result").unwrap_or_else(|| panic!("{method}: {answer}")).clone()
    }

    fn answers_to(&self) -> String {
        format!("{}-r", self.context)
    }

    /// Follows a task, from this group on.
    async fn follow(&self, task: &str, next: u64) -> Result<Follow, ServeError> {
        self.read(&track(&format!("task_{task}")), next).await
    }

    /// Reads a track of events, from this group on.
    async fn read(&self, name: &str, next: u64) -> Result<Follow, ServeError> {
        let (subscribe, reader) = self.link.subscribe(&[&self.answers_to(), "a2a"], name).await?;
        let (task, groups) = read(reader);
        let (early, ready) = (BTreeMap::new(), VecDeque::new());
        Ok(Follow { subscribe, groups, next, early, ready, over: false, _task: task })
    }

    /// A call that is answered by events, and all that follows it: the task's id, and its events.
    async fn begin(&mut self, method: &str, params: Value, more: Value) -> (String, Follow) {
        let answer = self.asks(method, params, more).await;
        let track = text(&answer, "/follow/track");
        let task = track.split_once("/task_").unwrap().1.rsplit_once('/').unwrap().0.to_owned();
        let first = answer["follow"]["group"].as_u64().unwrap();
        let follow = self.read(track, first).await.unwrap();
        (task, follow)
    }
}

fn asking(method: &str, params: Value, more: Value) -> Value {
    let mut parameters = json!({ "A2A-Version": "1.0" });
    parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "method": method, "params": params, "a2a-service-parameters": parameters })
}

impl Follow {
    /// The next event with its number; `None` after the last.
    async fn event(&mut self) -> Option<(u64, Value)> {
        if self.over {
            return None;
        }
        loop {
            if let Some(event) = self.ready.pop_front() {
                self.over = event.get("end") == Some(&json!(true));
                assert!(event.get("error").is_none(), "{event}");
                return Some((event["event"].as_u64().unwrap(), event["result"].clone()));
            }
            if let Some(events) = self.early.remove(&self.next) {
                self.next += 1;
                self.ready.extend(events);
                continue;
            }
            let group = tokio::time::timeout(PATIENCE, self.groups.recv()).await;
            let (number, objects) = group.expect("a group in time").expect("a group");
            self.early.insert(number, objects);
        }
    }

    async fn events(&mut self, count: usize) -> Vec<(u64, Value)> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.event().await.expect("an event"));
        }
        events
    }

    /// All that are left, and the end of the track (PUBLISH_DONE, TRACK_ENDED).
    async fn rest(&mut self) -> Vec<(u64, Value)> {
        let mut events = Vec::new();
        while let Some(event) = self.event().await {
            events.push(event);
        }
        let done = tokio::time::timeout(PATIENCE, self.subscribe.closed()).await;
        let done = done.expect("an end in time");
        assert!(matches!(done, Ok(()) | Err(ServeError::Done | ServeError::Closed(2))), "{done:?}");
        events
    }
}

/// Alice with the echo agent, reached over MOQT.
fn alice(world: &World, a2a: &str, more: &str) -> NodeConfig {
    echo(world, a2a, &format!("[moq]\nenabled = true\n{more}"))
}

const CONTEXT: &str = "00112233445566778899aabbccddeeff";
const OTHER: &str = "ffeeddccbbaa99887766554433221100";

const SLOW: [&str; 5] = [
    "task SUBMITTED",
    "statusUpdate WORKING",
    "artifactUpdate a",
    "artifactUpdate b",
    "statusUpdate COMPLETED",
];

fn slow(id: &str, parts: &[&str], ms: u64) -> Value {
    json!({ "message": message(id, parts, json!({ "delay_ms": ms })) })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_as_over_http_and_errors_are_told_by_id_or_number() {
    let world = World::new();
    let server = Server::start(alice(&world, "", &bob(&world))).await;
    let mut caller = Caller::dial(&world, &server, "bob", CONTEXT).await;
    let over_http = async |method: &str, params: Value| {
        let request = server.rpc(method, &params).bearer_auth(TOKEN);
        json_of(request.send().await.unwrap()).await["result"].clone()
    };
    // The card, by the track that shows it too.
    let card = caller.call(json!({ "method": "GetAgentCard" })).await["result"].clone();
    let name = format!("agent-{}", field("alice"));
    let (_shown, reader) = caller.link.subscribe(&["a2a", "discovery"], &name).await.unwrap();
    let (_reading, mut groups) = read(reader);
    assert_eq!(groups.recv().await.unwrap().1, vec![card.clone()]);
    let url = format!("moqt://127.0.0.1:{}/", server.handle().quic_address().port());
    let interface = json!({ "url": url, "protocolBinding": BINDING, "protocolVersion": "1.0" });
    assert_eq!(card["supportedInterfaces"][3], interface);

    let task = caller.result("SendMessage", json!({ "message": hello("m-1") })).await;
    let task = task["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED");
    assert_eq!(task["artifacts"][0]["parts"][0]["text"], "hello");
    let named = json!({ "id": task["id"] });
    assert_eq!(caller.result("GetTask", named.clone()).await, task);
    assert_eq!(over_http("GetTask", named.clone()).await, task, "Bob is one, by either way");

    // A message of one name is taken once.
    let key = json!({ "Idempotency-Key": "k-1" });
    let mut once = async |key: &Value| {
        let message = json!({ "message": hello("m-2") });
        caller.asks("SendMessage", message, key.clone()).await["result"]["task"].clone()
    };
    assert_eq!(once(&key).await, once(&key).await);
    assert_eq!(caller.result("ListTasks", json!({})).await["totalSize"], 2);

    for (method, params, more, code) in [
        ("GetTask", json!({ "id": "none" }), json!({}), -32001),
        ("CancelTask", named.clone(), json!({}), -32002),
        ("SubscribeToTask", named.clone(), json!({}), -32004),
        ("ListTasks", json!({}), json!({ "A2A-Version": "0.3" }), -32009),
        ("tasks/get", json!({}), json!({}), -32601),
        ("GetTask", json!({ "id": [] }), json!({}), -32602),
    ] {
        let answer = caller.asks(method, params, more).await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    // What has no id is told by its number.
    for (bytes, code) in [("{", -32700), ("[]", -32600), ("{\"method\":\"ListTasks\"}", -32600)] {
        let number = caller.say(bytes.into());
        let answer = caller.answer(number).await;
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&Value::Null, &json!(code)));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_a_track_and_many_calls_at_a_time_are_all_answered() {
    let world = World::new();
    let server = Server::start(alice(&world, "", &peer_toml("bob", None))).await;
    let mut caller = Caller::dial(&world, &server, "bob", CONTEXT).await;
    let answer = caller.asks("SendStreamingMessage", slow("m", &["a", "b"], 50), json!({})).await;
    assert_eq!(shapes(&[(1, answer["result"].clone())]), ["task SUBMITTED"]);
    assert_eq!(answer["event"], 1, "{answer}");
    let task = text(&answer, "/result/task/id").to_owned();
    let name = text(&answer, "/follow/track");
    assert_eq!(name, track(&format!("task_{task}/0")));
    let first = answer["follow"]["group"].as_u64().unwrap();
    let events = caller.read(name, first).await.unwrap().rest().await;
    assert_eq!(shapes(&events), SLOW);
    assert!(events.iter().map(|(number, _)| *number).eq(1..=5));
    // A task that is over at once has no track.
    let ended = json!({ "Last-Event-ID": "5" });
    let answer = caller.asks("SubscribeToTask", json!({ "id": task }), ended).await;
    assert_eq!((&answer["result"], &answer["end"]), (&Value::Null, &json!(true)));
    assert!(answer.get("follow").is_none(), "{answer}");

    let calls: Vec<u64> =
        (0..40).map(|_| caller.ask(asking("ListTasks", json!({}), json!({})))).collect();
    for number in calls {
        assert_eq!(caller.answer(number).await["result"]["totalSize"], 1);
    }
    server.stop().await;
}

/// A caller that comes late sees the task as it is, and the same end.
#[tokio::test(flavor = "multi_thread")]
async fn who_subscribes_late_gets_the_task_and_the_same_end() {
    let world = World::new();
    let server = Server::start(alice(&world, "", &peer_toml("bob", None))).await;
    let mut caller = Caller::dial(&world, &server, "bob", CONTEXT).await;
    let late = Caller::dial(&world, &server, "bob", OTHER).await;
    let parts = ["a", "b", "c", "d"];
    let slow = slow("m", &parts, 300);
    let (task, mut first) = caller.begin("SendStreamingMessage", slow, json!({})).await;
    let mut seen = first.events(3).await;
    assert_eq!(shapes(&seen)[2], "artifactUpdate a");
    // No call: the first group is the task, whose number is that of the last event in it.
    let mut second = late.follow(&task, 0).await.unwrap();
    let late_saw = second.rest().await;
    seen.extend(first.rest().await);
    assert!(seen.iter().map(|(number, _)| *number).eq(1..=7));
    let (number, whole) = &late_saw[0];
    assert_eq!(whole["task"]["id"], json!(task));
    assert_eq!(text(whole, "/task/artifacts/0/parts/0/text"), "a");
    assert!((3..7).contains(number), "{number}");
    assert_eq!(late_saw[1..], seen[*number as usize..], "the same events after it");
    // Later still it is the whole of it.
    drop(second);
    let again = async || late.follow(&task, 1 << 32).await.ok();
    let over = eventually("the track again", again).await.rest().await;
    assert_eq!(shapes(&over), ["task COMPLETED"]);
    assert_eq!(over[0].0, 7);
    server.stop().await;
}

/// The cursor of the native binding, over a lost connection and a crash.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_session_is_lost_goes_on_from_the_cursor() {
    let world = World::new();
    let mut config = alice(&world, "", &peer_toml("bob", None));
    config.quic.listen = free_address().unwrap();
    let server = Server::start(config).await;
    let parts = ["a", "b", "c", "d", "e", "f"];
    let mut caller = Caller::dial(&world, &server, "bob", CONTEXT).await;
    let slow = slow("m", &parts, 200);
    let (task, mut follow) = caller.begin("SendStreamingMessage", slow, json!({})).await;
    let mut seen = follow.events(3).await;
    caller.link.raw.connection.close(0u32.into(), b"killed");
    let after = |number: u64| json!({ "Last-Event-ID": number.to_string() });
    let named = json!({ "id": task });
    let mut caller = Caller::dial(&world, &server, "bob", OTHER).await;
    let (_, mut follow) = caller.begin("SubscribeToTask", named.clone(), after(3)).await;
    seen.extend(follow.events(1).await);
    let server = Server::start(server.crash()).await;
    let third = format!("{:032x}", 3);
    let mut caller = Caller::dial(&world, &server, "bob", &third).await;
    let (_, mut follow) = caller.begin("SubscribeToTask", named.clone(), after(4)).await;
    seen.extend(follow.rest().await);
    let expected: Vec<String> = ["task SUBMITTED", "statusUpdate WORKING"]
        .into_iter()
        .map(str::to_owned)
        .chain(parts.iter().map(|part| format!("artifactUpdate {part}")))
        .chain(["statusUpdate COMPLETED".to_owned()])
        .collect();
    assert_eq!(shapes(&seen), expected, "each event once");
    assert!(seen.iter().map(|(number, _)| *number).eq(1..=9));
    server.stop().await;
}

/// In one session a task can be followed several times.
#[tokio::test(flavor = "multi_thread")]
async fn a_further_call_for_the_events_of_a_task_takes_nothing_from_those_before_it() {
    let world = World::new();
    let server = Server::start(alice(&world, "", &peer_toml("bob", None))).await;
    let mut caller = Caller::dial(&world, &server, "bob", CONTEXT).await;
    let slow = slow("m", &["a", "b", "c"], 400);
    let (task, mut first) = caller.begin("SendStreamingMessage", slow, json!({})).await;
    assert_eq!(first.events(2).await.len(), 2);
    let named = json!({ "id": task });
    let after = |number: &str| json!({ "Last-Event-ID": number });
    // Two calls whose tracks are asked for only when both are answered, and in the other order.
    let second = caller.asks("SubscribeToTask", named.clone(), after("1")).await;
    let third = caller.asks("SubscribeToTask", named, after("0")).await;
    assert_eq!((&second["event"], &third["event"]), (&json!(2), &json!(1)));
    let group = |answer: &Value| answer["follow"]["group"].as_u64().unwrap();
    let mut third = caller.read(text(&third, "/follow/track"), group(&third)).await.unwrap();
    let mut second = caller.read(text(&second, "/follow/track"), group(&second)).await.unwrap();
    for (follow, from) in [(&mut first, 3), (&mut second, 2), (&mut third, 1)] {
        let events = follow.rest().await;
        assert!(events.iter().map(|(number, _)| *number).eq(from..=6), "{from}: {events:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_caller_reads_neither_answers_nor_tasks() {
    let world = World::new();
    let peers = format!("{}{}", peer_toml("bob", None), peer_toml("carol", None));
    let server = Server::start(alice(&world, "", &peers)).await;
    let mut bob = Caller::dial(&world, &server, "bob", CONTEXT).await;
    let slow = slow("m", &["a"], 20_000);
    let (task, _follow) = bob.begin("SendStreamingMessage", slow, json!({})).await;
    let begun = bob.asks("SubscribeToTask", json!({ "id": task }), json!({})).await;
    let link = Link::dial(&world, "carol", server.handle().quic_address()).await;
    // She has Bob's names, and not his session.
    let bobs = [&bob.answers_to(), "a2a"];
    let name = track(&format!("task_{task}"));
    for name in [&track("response"), &name, text(&begun, "/follow/track")] {
        assert!(is_unknown(&link.refused(&bobs, name).await), "{name}");
    }
    // Nor do the names alone make her Bob.
    let mut carol = Caller::open(link, CONTEXT).await;
    assert!(carol.follow(&task, 0).await.is_err_and(|error| is_unknown(&error)));
    assert!(carol.follow("none", 0).await.is_err_and(|error| is_unknown(&error)));
    let found = carol.asks("GetTask", json!({ "id": task }), json!({})).await;
    assert_eq!(found["error"]["code"], -32001);
    let found = carol.asks("SubscribeToTask", json!({ "id": task }), json!({})).await;
    assert_eq!(found["error"]["code"], -32001);
    assert_eq!(carol.result("ListTasks", json!({})).await["totalSize"], 0);
    assert_eq!(bob.result("ListTasks", json!({})).await["totalSize"], 1);
    server.stop().await;
}
