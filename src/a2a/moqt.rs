//! A2A over MOQT, a binding of its own (docs/a2a-moqt.md): a caller publishes its calls on a track, and we
//! our answers on another, a group each; what comes of a task is a track of its own.
//!
//! The names are of one caller and one time, so that no two publishers share one (draft-ietf-moq-transport-18:
//! a track with two is malformed), and nobody but the caller knows them. They give access to nothing: who
//! calls is known by the session's certificate.

mod follow;

use super::A2a;
use super::dispatch::{Answer, Answered, Asked, EVENT, Told, Unread, refusal, response};
use super::fault::{Fault, Kind};
use super::operations::Caller;
use super::quic::{ASKING_TIME_MAX, TAKING_TIME_MAX};
use super::stream::Events;
use crate::calls::Code;
use crate::moq::{
    Incoming, Link, LinkError, Outgoing, PEER_REQUESTS_MAX, Requests, TrackError, namespace, object,
};
use bytes::Bytes;
use follow::{Attempt, Followers};
use futures_util::FutureExt as _;
use moq_transport::coding::TrackNamespace;
use moq_transport::message::RequestErrorCode;
use moq_transport::serve::{ServeError, SubgroupReader};
use moq_transport::session::{PublishedNamespace, Subscribed};
use proto::id::AgentId;
use proto::track::Namespace;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

/// This binding on agent cards (A2A §5.8). A change that breaks clients needs another.
pub(crate) const BINDING: &str =
    "https://ravikiran438.github.io/abhyasa-protocol/bindings/a2a-moqt/v1";
/// Names of members beside those of JSON-RPC: where the events of a task come, and that one was the last.
pub(crate) const FOLLOW: &str = "follow";
pub(crate) const END: &str = "end";

/// Publisher priorities of MOQT: lower is sooner.
pub(crate) mod priority {
    /// Answers.
    pub(crate) const RESPONSE: u8 = 64;
    /// Events of tasks.
    pub(crate) const TASK: u8 = 80;
    /// Calls.
    pub(crate) const REQUEST: u8 = 96;
    /// Agent cards.
    pub(crate) const DISCOVERY: u8 = 160;
}

/// Tasks that are followed in one session at a time: each has a request of the caller's open.
pub(crate) const FOLLOWED_MAX: usize = 64;
/// Inboxes of one session at a time: each has two.
const INBOXES_MAX: usize = 4;
/// Calls of one session that are being answered; a further one is refused.
pub(crate) const CALLS_MAX: usize = 128;
/// Numbers of calls that are remembered to tell copies by.
const NUMBERS_MAX: usize = 1_024;
/// How long who is told nothing more may take to read why.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_millis(500);
/// How often a look is taken for tasks that nobody came to follow.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Requests of the caller's that are none of A2A: custody's, a watcher's, a card's, and some that end.
const REQUESTS_BESIDE: usize = 24;
/// Bytes of a context: 16 at random, in lower-case hex.
const CONTEXT_LEN: usize = 32;

const _: () = assert!(
    FOLLOWED_MAX + 2 * INBOXES_MAX + REQUESTS_BESIDE <= PEER_REQUESTS_MAX as usize,
    "the library stalls beyond without a word"
);

/// An agent's id as a field of a namespace or a part of a track's name.
fn field(agent: &AgentId) -> String {
    let [_, _, field] = Namespace::prefix_of(agent);
    field
}

/// A context of the caller's own.
pub(crate) fn new_context() -> Option<String> {
    let mut bytes = [0u8; CONTEXT_LEN / 2];
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    random.fill(&mut bytes).ok()?;
    Some(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// What a caller announces to an agent: that it will call, and by which context its tracks are named.
pub(crate) fn inbox(agent: &AgentId, context: &str) -> TrackNamespace {
    namespace(&["a2a", "inbox", &field(agent), context])
}

/// Whether an announcement is one of those, to whichever agent.
pub(crate) fn is_inbox(namespace: &TrackNamespace) -> bool {
    let mut fields = namespace.fields.iter().map(|field| field.value.as_slice());
    fields.next() == Some(b"a2a") && fields.next() == Some(b"inbox")
}

/// Where the caller publishes.
pub(crate) fn calls_of(context: &str) -> TrackNamespace {
    namespace(&[format!("{context}-q").as_str(), "a2a"])
}

/// Where the agent publishes for it.
pub(crate) fn answers_to(context: &str) -> TrackNamespace {
    namespace(&[format!("{context}-r").as_str(), "a2a"])
}

/// Where agents publish their cards.
fn discovery() -> TrackNamespace {
    namespace(&["a2a", "discovery"])
}

/// A track of, or to, an agent.
pub(crate) fn track(agent: &AgentId, what: &str) -> String {
    format!("agent-{}/{what}", field(agent))
}

/// The A2A server, for MOQT sessions.
#[derive(Clone, Debug)]
pub(crate) struct Front {
    pub(crate) a2a: Arc<A2a>,
    pub(crate) stop: Receiver<bool>,
}

impl Front {
    /// What a session with this peer has of A2A.
    pub(crate) fn session(&self, link: Link, peer: AgentId) -> Arc<Inboxes> {
        let semaphore = |max| Arc::new(Semaphore::new(max));
        Arc::new(Inboxes {
            front: self.clone(),
            link,
            peer,
            inboxes: semaphore(INBOXES_MAX),
            calls: semaphore(CALLS_MAX),
            followed: semaphore(FOLLOWED_MAX),
        })
    }
}

/// The calls of one session.
#[derive(Debug)]
pub(crate) struct Inboxes {
    front: Front,
    link: Link,
    peer: AgentId,
    inboxes: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    followed: Arc<Semaphore>,
}

impl Inboxes {
    fn me(&self) -> &AgentId {
        &self.front.a2a.config.id
    }

    /// The context of an announcement that is for us.
    fn context<'a>(&self, of: &'a TrackNamespace) -> Option<&'a str> {
        let [.., context] = of.fields.as_slice() else { return None };
        let context = std::str::from_utf8(&context.value).ok()?;
        let hex = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let good = context.len() == CONTEXT_LEN && context.bytes().all(hex);
        (good && *of == inbox(self.me(), context)).then_some(context)
    }

    /// Answers the calls of an inbox that the peer announces, as long as it does.
    pub(crate) async fn serve(self: Arc<Self>, mut announced: PublishedNamespace) {
        let Some(context) = self.context(&announced.info.namespace).map(str::to_owned) else {
            let _ = announced.reject(RequestErrorCode::Uninterested as u64, "not of this agent");
            return;
        };
        let Ok(_place) = self.inboxes.clone().try_acquire_owned() else {
            let code = RequestErrorCode::ExcessiveLoad as u64;
            let _ = announced.reject(code, "too many inboxes in this session");
            return;
        };
        // There before the caller is told that it may ask.
        let requests = self.link.answer(answers_to(&context));
        if announced.ok().is_err() {
            return;
        }
        let (answers, told) = mpsc::channel(CALLS_MAX);
        let inbox = Inbox { of: self.clone(), context, answers, followers: Followers::default() };
        let ended = tokio::select! {
            ended = Arc::new(inbox).run(requests, told) => ended,
            _ = announced.closed() => Ok(()),
        };
        if let Err(error) = ended {
            tracing::debug!(peer = %self.peer, %error, "calls of A2A over MOQT ended");
        }
    }

    /// Publishes the agent's card for whoever subscribes, for ever. The number of its group is since when it
    /// is so, in Unix milliseconds.
    pub(crate) async fn show_card(&self) {
        let mut requests = self.link.answer(discovery());
        let name = format!("agent-{}", field(self.me()));
        let mut showing = JoinSet::new();
        loop {
            let subscribed = tokio::select! {
                Some(_) = showing.join_next() => continue,
                Some((fetch, _)) = requests.fetched.recv() => {
                    let _ = fetch.reject(RequestErrorCode::NotSupported, "subscribe in place of it");
                    continue;
                }
                Some(subscribed) = requests.subscribed.recv() => subscribed,
                else => return std::future::pending().await,
            };
            if subscribed.info.track_name.as_bytes() != name.as_bytes() {
                let _ = subscribed.close(ServeError::NotFound);
                continue;
            }
            let Ok((outgoing, serve)) = Outgoing::accept(subscribed) else { continue };
            let a2a = self.front.a2a.clone();
            showing.spawn(async move {
                let show = async move {
                    let (card, _, since) = a2a.card_now().await;
                    outgoing.show(since, priority::DISCOVERY, card.into()).await
                };
                drop(tokio::join!(serve, show));
            });
        }
    }
}

/// One inbox.
#[derive(Debug)]
struct Inbox {
    of: Arc<Inboxes>,
    context: String,
    /// Answers, each with the number of its group.
    answers: mpsc::Sender<(u64, Bytes)>,
    followers: Followers,
}

impl Inbox {
    async fn run(
        self: Arc<Self>,
        mut requests: Requests,
        told: mpsc::Receiver<(u64, Bytes)>,
    ) -> Result<(), LinkError> {
        let link = &self.of.link;
        let len_max = self.of.front.a2a.request_len_max();
        let name = track(self.of.me(), "request");
        // Who wants our answers may ask for them before it answers us.
        let mut subscribing = pin!(link.subscribe(calls_of(&self.context), name, len_max));
        let mut calls = None;
        let (response, tracks) = mpsc::channel(1);
        let mut tell = pin!(tell(link, tracks, told));
        let mut sweep = tokio::time::interval(SWEEP_EVERY);
        let mut numbers = Numbers::default();
        let mut running = JoinSet::new(); // they end when this does
        loop {
            tokio::select! {
                ended = &mut tell => return ended,
                Some(ended) = running.join_next() => ended.unwrap_or(Ok(()))?,
                _ = sweep.tick() => self.followers.sweep(),
                Some((fetch, _)) = requests.fetched.recv() => {
                    let _ = fetch.reject(RequestErrorCode::NotSupported, "subscribe in place of it");
                }
                Some(subscribed) = requests.subscribed.recv() => {
                    self.subscribed(subscribed, &response, &mut running);
                }
                subscribed = &mut subscribing, if calls.is_none() => calls = Some(subscribed?),
                group = next(&mut calls) => {
                    let Some(group) = group? else { return Ok(()) };
                    // Of a group with several subgroups the first counts, as of one that comes twice.
                    let new = group.info.subgroup_id == 0 && numbers.is_new(group.info.group_id);
                    running.spawn(self.clone().call(group, new));
                }
            }
        }
    }

    /// A track is asked for.
    fn subscribed(
        self: &Arc<Self>,
        subscribed: Subscribed,
        response: &mpsc::Sender<Outgoing>,
        running: &mut JoinSet<Result<(), LinkError>>,
    ) {
        let name = String::from_utf8_lossy(subscribed.info.track_name.as_bytes()).into_owned();
        if name == track(self.of.me(), "response") {
            let Ok((outgoing, serve)) = Outgoing::accept(subscribed) else { return };
            if response.try_send(outgoing).is_ok() {
                running.spawn(async move {
                    let _ = serve.await; // another may be asked for
                    Ok(())
                });
            }
            return;
        }
        match name.strip_prefix(&track(self.of.me(), "task_")) {
            Some(task) => {
                let follow = self.clone().follow(task.to_owned(), subscribed);
                running.spawn(async move {
                    follow.await;
                    Ok(())
                });
            }
            None => drop(subscribed.close(ServeError::NotFound)), // the session may be gone
        }
    }

    /// Answers one call, unless it is no new one.
    async fn call(self: Arc<Self>, mut group: SubgroupReader, new: bool) -> Result<(), LinkError> {
        let (number, len_max) = (group.info.group_id, self.of.front.a2a.request_len_max());
        let asked = tokio::time::timeout(ASKING_TIME_MAX, whole(&mut group, len_max)).await;
        let asked = match asked {
            Ok(Ok(asked)) => Ok(asked),
            Ok(Err(TrackError::Ended(_))) => return Ok(()), // it was cut: nothing was asked
            Ok(Err(TrackError::TooLong { max })) => {
                let what = format!("over the limit of {max} bytes (a2a.request_len_max)");
                Err(Fault::new(Kind::TooLarge, what))
            }
            Ok(Err(error)) => Err(Fault::new(Kind::InvalidRequest, error.to_string())),
            Err(_) => {
                let what = format!("to ask took longer than {} s", ASKING_TIME_MAX.as_secs());
                Err(Fault::new(Kind::Timeout, what))
            }
        };
        drop(group);
        let asked = match asked {
            Ok(_) if !new => {
                tracing::debug!(number, "a copy of a call, or a part of one: not looked at");
                return Ok(());
            }
            Ok(asked) => asked,
            Err(fault) => {
                self.refuse(number, &fault)?;
                // The library reads the rest all the same, and keeps it: only without a connection it does not.
                let connection = self.of.link.connection();
                let _ = tokio::time::timeout(LAST_WORDS_TIME_MAX, connection.closed()).await;
                connection.close(Code::Malformed.into(), b"no call");
                return Ok(());
            }
        };
        let Some(asked) = asked else {
            return self.refuse(number, &Fault::new(Kind::InvalidRequest, "nothing was asked"));
        };
        let Ok(place) = self.of.calls.clone().try_acquire_owned() else {
            let what = format!("{CALLS_MAX} calls of this session are being answered");
            return self.refuse(number, &Fault::overloaded(what));
        };
        let said = match self.room(asked.len()) {
            Ok(held) => self.answer(&asked, held).await,
            Err(fault) => refusal(&Value::Null, &fault),
        };
        let _ = self.answers.send((number, said.into())).await; // an error: nobody is there any more
        drop(place);
        Ok(())
    }

    /// Refuses a call whose id is not known. Who does not hear what it is told is told nothing more.
    fn refuse(&self, number: u64, fault: &Fault) -> Result<(), LinkError> {
        let refused = refusal(&Value::Null, fault);
        let told = self.answers.try_send((number, refused.into()));
        told.map_err(|_| LinkError::Full { max: CALLS_MAX })
    }

    /// Room for the bytes of a call, as long as it is answered.
    fn room(&self, len: usize) -> Result<OwnedSemaphorePermit, Fault> {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let room = self.of.front.a2a.asked.clone().try_acquire_many_owned(len);
        room.map_err(|_| Fault::overloaded("too much is asked at a time"))
    }

    /// What is said to a call: by the same dispatch as over native QUIC.
    async fn answer(&self, asked: &[u8], held: OwnedSemaphorePermit) -> Vec<u8> {
        let asked = match Asked::read(asked, Told::ById) {
            Ok(asked) => asked,
            Err(Unread { id, fault }) => return refusal(&id, &fault),
        };
        // Before the message is taken: one that is taken is followed, too.
        let place = match asked.call.streams().then(|| self.of.followed.clone().try_acquire_owned())
        {
            None => None,
            Some(Ok(place)) => Some(place),
            Some(Err(_)) => {
                let what = format!("{FOLLOWED_MAX} tasks are followed in this session, the limit");
                return refusal(&asked.call.id, &Fault::overloaded(what));
            }
        };
        let Front { a2a, stop } = &self.of.front;
        let Answered { id, beside, answer } = a2a.answer(self.of.peer.clone(), asked, stop).await;
        drop(held);
        match answer {
            Ok(Answer::Whole(result)) => response(&id, &beside, &result),
            Ok(Answer::Events(events)) => self.begin(id, beside, *events, place),
            Err(fault) => refusal(&id, &fault),
        }
    }

    /// The first of several results, and where the others come.
    fn begin(
        &self,
        id: Value,
        mut beside: Map<String, Value>,
        mut events: Events,
        place: Option<OwnedSemaphorePermit>,
    ) -> Vec<u8> {
        // Behind a cursor there may be nothing yet: that is no reason to let the caller wait.
        let first = match events.next().now_or_never() {
            None => None,
            Some(Ok(Some(event))) => Some(event),
            Some(Ok(None)) => {
                beside.insert(END.to_owned(), true.into());
                return response(&id, &beside, b"null");
            }
            Some(Err(error)) => return refusal(&id, &error.into()),
        };
        if let Some(event) = &first {
            beside.insert(EVENT.to_owned(), event.number.into());
        }
        let task = events.task().to_owned();
        let over = events.is_over();
        let body = first.as_ref().map_or_else(|| b"null".to_vec(), |event| event.body.to_vec());
        if over {
            beside.insert(END.to_owned(), true.into());
        } else {
            let base = self.followers.base();
            let attempt = Attempt { base, id: id.clone(), first, events, _place: place };
            let name = self.followers.expect(&task, attempt);
            let track = track(self.of.me(), &format!("task_{name}"));
            beside.insert(FOLLOW.to_owned(), json!({ "track": track, "group": base }));
        }
        response(&id, &beside, &body)
    }

    /// Serves the track of a call or of a task.
    async fn follow(self: Arc<Self>, name: String, subscribed: Subscribed) {
        let attempt = match self.attempt(&name).await {
            Ok(attempt) => attempt,
            Err(code) => {
                let _ = subscribed.close(ServeError::Closed(code as u64)); // the session may be gone
                return;
            }
        };
        follow::serve(&self.of.link, &name, attempt, subscribed).await;
    }

    /// What a call began, or, for who only subscribes, the task as it is and goes on.
    async fn attempt(&self, name: &str) -> Result<Attempt, RequestErrorCode> {
        if let Some(attempt) = self.followers.expected(name) {
            return Ok(attempt);
        }
        let place = self.of.followed.clone().try_acquire_owned();
        let place = place.map_err(|_| RequestErrorCode::ExcessiveLoad)?;
        let peer = Some(self.of.peer.clone());
        let caller = Caller { peer, extensions: Vec::new(), last_event: None, key: None };
        let a2a = &self.of.front.a2a;
        let known = a2a.check_extensions(&caller).await;
        known.map_err(|_| RequestErrorCode::Unauthorized)?;
        let events = a2a.follow(&caller, name).map_err(|fault| match fault.kind {
            Kind::Overloaded => RequestErrorCode::ExcessiveLoad,
            // Not to say whether it is another's.
            Kind::TaskNotFound => RequestErrorCode::DoesNotExist,
            _ => RequestErrorCode::InternalError,
        })?;
        let base = self.followers.base();
        Ok(Attempt { base, id: Value::Null, first: None, events, _place: Some(place) })
    }
}

async fn next(calls: &mut Option<Incoming>) -> Result<Option<SubgroupReader>, TrackError> {
    match calls {
        Some(calls) => calls.group().await,
        None => std::future::pending().await,
    }
}

/// The only object of a group that ends with it.
async fn whole(group: &mut SubgroupReader, len_max: usize) -> Result<Option<Bytes>, TrackError> {
    let only = object(group, len_max).await?;
    match object(group, 0).await {
        Ok(None) => Ok(only),
        Ok(Some(_)) | Err(TrackError::TooLong { .. }) => Err(TrackError::Second),
        Err(error) => Err(error),
    }
}

/// Publishes answers on the track that was last asked for.
async fn tell(
    link: &Link,
    mut tracks: mpsc::Receiver<Outgoing>,
    mut answers: mpsc::Receiver<(u64, Bytes)>,
) -> Result<(), LinkError> {
    let Some(mut track) = tracks.recv().await else { return Ok(()) };
    loop {
        let (number, answer) = tokio::select! {
            biased;
            Some(newer) = tracks.recv() => {
                track = newer;
                continue;
            }
            Some(answer) = answers.recv() => answer,
            else => return Ok(()),
        };
        room(link).await?;
        track.push_as(number, priority::RESPONSE, answer).await?;
    }
}

/// Waits until there is room for a further group, as long as who asked may take.
async fn room(link: &Link) -> Result<(), LinkError> {
    let room = tokio::time::timeout(TAKING_TIME_MAX, link.room()).await;
    room.map_err(|_| LinkError::NoAnswer { what: "an answer" })
}

/// Numbers of calls that came.
#[derive(Debug, Default)]
struct Numbers {
    /// All below came, or are too old to be told from those that did.
    floor: u64,
    above: BTreeSet<u64>,
}

impl Numbers {
    fn is_new(&mut self, number: u64) -> bool {
        if number < self.floor || !self.above.insert(number) {
            return false;
        }
        while self.above.remove(&self.floor) {
            self.floor += 1;
        }
        if self.above.len() > NUMBERS_MAX
            && let Some(lowest) = self.above.pop_first()
        {
            self.floor = lowest + 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bd1_copies_of_calls_are_told_by_few_numbers() {
        let mut numbers = Numbers::default();
        assert!([0, 2, 1, 5].into_iter().all(|number| numbers.is_new(number)));
        assert!([0, 1, 2, 5].into_iter().all(|number| !numbers.is_new(number)));
        assert_eq!((numbers.floor, numbers.above.len()), (3, 1));
        for number in 0..10 * NUMBERS_MAX as u64 {
            assert!(numbers.is_new(1_000 + 2 * number));
        }
        assert!(numbers.above.len() <= NUMBERS_MAX);
        assert!(!numbers.is_new(3), "too old to be known");
    }

    #[test]
    fn an_inbox_names_its_agent_and_a_context() {
        let agent = AgentId::new("spiffe://example.org/a").unwrap();
        let of = inbox(&agent, "00112233445566778899aabbccddeeff");
        assert!(is_inbox(&of) && !is_inbox(&discovery()) && !is_inbox(&namespace(&["a2a"])));
        assert_eq!(of.fields[2].value, b"spiffe:%2F%2Fexample.org%2Fa");
        assert_eq!(track(&agent, "request"), "agent-spiffe:%2F%2Fexample.org%2Fa/request");
    }
}
