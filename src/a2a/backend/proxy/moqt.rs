//! The agent behind another node, over MOQT (docs/a2a-moqt.md).

use super::agent::{Ask, Lost, Said, read, said_in};
use super::quic::parameters;
use crate::a2a::dispatch::{GET_CARD, PARAMETERS};
use crate::a2a::moqt::{
    CALLS_MAX, END, FOLLOW, FOLLOWED_MAX, answers_to, calls_of, inbox, new_context, priority, track,
};
use crate::moq::{
    ALPN, ANSWER_TIME_MAX, Incoming, Link, LinkError, Outgoing, REQUESTS_MAX, Requests, object,
};
use crate::peers::Dial;
use bytes::Bytes;
use moq_transport::message::RequestErrorCode;
use moq_transport::serve::{ServeError, SubgroupReader};
use proto::id::AgentId;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use url::Url;

/// Sessions with the agent's node at a time: it takes few connections of one peer.
const SESSIONS_MAX: usize = 2;
/// Tasks that we follow in one session. Further ones wait. Below what the other side takes, since it may hear
/// of the end of one after the begin of the next.
const FOLLOWS_MAX: usize = 48;
/// Groups that came before those that they follow.
const EARLY_MAX: usize = 256;
/// How long a group may be missing when a later one is there: what a library dropped does not come any more.
const HOLE_TIME_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(FOLLOWS_MAX < FOLLOWED_MAX, "there is room for some that end");
const _: () = assert!(FOLLOWS_MAX + 2 < REQUESTS_MAX, "an inbox and its answers beside them");

/// A session, and a share of what it follows.
type Shared = (Arc<Session>, Option<OwnedSemaphorePermit>);

/// The agent behind a peer's node.
#[derive(Debug)]
pub(crate) struct MoqtAgent {
    dial: Dial,
    peer: AgentId,
    address: String,
    silent_max: Duration,
    len_max: usize,
    places: Arc<Semaphore>,
    sessions: Mutex<Vec<Arc<Session>>>,
    /// Who dials; what needs no new session does not wait for it.
    dialling: tokio::sync::Mutex<()>,
}

impl MoqtAgent {
    pub(super) fn new(
        dial: Dial,
        peer: AgentId,
        address: String,
        silent_max: Duration,
        len_max: usize,
    ) -> Self {
        let places = Arc::new(Semaphore::new(SESSIONS_MAX * FOLLOWS_MAX));
        Self {
            dial,
            peer,
            address,
            silent_max,
            len_max,
            places,
            sessions: Mutex::default(),
            dialling: tokio::sync::Mutex::default(),
        }
    }

    pub(super) const fn peer(&self) -> &AgentId {
        &self.peer
    }

    pub(super) async fn card(&self) -> Result<Value, Lost> {
        let params = Value::Object(Map::new());
        let ask = Ask { method: GET_CARD, params, extensions: &[], after: None, key: None };
        match self.ask(ask).await?.next().await? {
            Some(said) => Ok(said.result),
            None => Err(Lost::Broken("it said nothing".to_owned())),
        }
    }

    pub(super) async fn ask(&self, ask: Ask<'_>) -> Result<Answers, Lost> {
        let follows = ["SendStreamingMessage", "SubscribeToTask"].contains(&ask.method);
        let gone = |_| Lost::Unreached("the node stops".to_owned());
        // To wait for those that are followed is no silence of the agent's.
        let place = match follows {
            true => Some(self.places.clone().acquire_owned().await.map_err(gone)?),
            false => None,
        };
        let begun = tokio::time::timeout(self.silent_max, self.session(follows)).await;
        let begun = begun.unwrap_or_else(|_| Err(Lost::Unreached("it takes no call".to_owned())));
        let (session, share) = begun?;
        let parameters = parameters(&ask);
        let request = json!({ "method": ask.method, "params": ask.params, PARAMETERS: parameters });
        let answered = tokio::time::timeout(self.silent_max, session.call(request)).await;
        let mut answer = answered.unwrap_or_else(|_| Err(Lost::silent()))?;
        let follow = answer.get_mut(FOLLOW).map(Value::take);
        let said = said_in(&mut answer)?;
        let first = Some(said).filter(|said| !follows || !said.result.is_null());
        let rest = match follow {
            None => Rest::Over,
            Some(follow) => self.follow(&session, &follow).await,
        };
        let seen = first.as_ref().and_then(|said| said.event);
        let silent_max = self.silent_max;
        Ok(Answers { first, seen, rest, silent_max, _places: (place, share) })
    }

    /// A session that goes on, or a new one, and a share of what it follows.
    async fn session(&self, follows: bool) -> Result<Shared, Lost> {
        if let Some(found) = self.found(follows)? {
            return Ok(found);
        }
        let _one = self.dialling.lock().await;
        if let Some(found) = self.found(follows)? {
            return Ok(found);
        }
        let opened = Session::open(&self.dial, &self.peer, &self.address, self.len_max).await?;
        let share = match follows {
            true => opened.follows.clone().try_acquire_owned().ok(),
            false => None,
        };
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(opened.clone());
        Ok((opened, share))
    }

    /// A session that goes on and has room, if there is one; an error if there may be no further one.
    fn found(&self, follows: bool) -> Result<Option<Shared>, Lost> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|session| session.is_open());
        for session in sessions.iter() {
            if !follows {
                return Ok(Some((session.clone(), None)));
            }
            if let Ok(share) = session.follows.clone().try_acquire_owned() {
                return Ok(Some((session.clone(), Some(share))));
            }
        }
        if sessions.len() >= SESSIONS_MAX {
            return Err(Lost::Unreached("it follows as much as it may".to_owned()));
        }
        Ok(None)
    }

    async fn follow(&self, session: &Session, follow: &Value) -> Rest {
        let track = follow.get("track").and_then(Value::as_str);
        let group = follow.get("group").and_then(Value::as_u64);
        let (Some(track), Some(next)) = (track, group) else {
            return Rest::Lost("it does not say where the rest comes".to_owned());
        };
        let from = answers_to(&session.context);
        match session.link.subscribe(from, track, self.len_max).await {
            Ok(incoming) => Rest::Follows(Box::new(Following {
                incoming,
                next,
                group: None,
                early: BTreeMap::new(),
                len_max: self.len_max,
            })),
            Err(error) => {
                if matches!(error, LinkError::Spent { .. }) {
                    session.link.connection().close(0u32.into(), b"spent"); // for a new one
                }
                Rest::Lost(error.to_string())
            }
        }
    }
}

fn unreached(error: impl std::fmt::Display) -> Lost {
    Lost::Unreached(error.to_string())
}

/// Calls that wait for their answers, by their numbers. `None` when the session is over.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Bytes>>>>>;

fn waiting(of: &Waiting) -> MutexGuard<'_, Option<HashMap<u64, oneshot::Sender<Bytes>>>> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One session with the agent's node, for nothing but calls.
#[derive(Debug)]
struct Session {
    link: Link,
    context: String,
    asked: tokio::sync::Mutex<Outgoing>,
    number: AtomicU64,
    waiting: Waiting,
    /// Calls that it may have to answer at a time.
    calls: Semaphore,
    follows: Arc<Semaphore>,
    /// What it needs to go on; it ends with them.
    _tasks: JoinSet<()>,
}

impl Session {
    async fn open(
        dial: &Dial,
        peer: &AgentId,
        address: &str,
        len_max: usize,
    ) -> Result<Arc<Self>, Lost> {
        let connection = dial.to(peer, address, ALPN).await.map_err(unreached)?;
        let url = Url::parse(&format!("moqt://{address}/")).map_err(unreached)?;
        let (link, run) = Link::connect(connection, url, Vec::new()).await.map_err(unreached)?;
        let context = new_context();
        let context = context.ok_or_else(|| Lost::Unreached("no random bytes".to_owned()))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(run.await) });
        let theirs = link.clone();
        tasks.spawn(async move {
            // Custody has sessions of its own.
            while let Some(announced) = theirs.announced().await {
                let _ = announced.reject(RequestErrorCode::Uninterested as u64, "calls only");
            }
        });
        let requests = link.answer(calls_of(&context)); // there before it can be asked for
        let announced = link.announce(inbox(peer, &context)).await.map_err(unreached)?;
        let asked = Self::asked(requests, peer, &mut tasks);
        let answers = link.subscribe(answers_to(&context), track(peer, "response"), len_max);
        let answers = async { answers.await.map_err(unreached) };
        let (asked, answers) = tokio::try_join!(asked, answers)?;
        let waits = Waiting::new(Mutex::new(Some(HashMap::new())));
        let heard = waits.clone();
        tasks.spawn(async move {
            let ended = hear(answers, &heard).await;
            tracing::debug!(?ended, "a session for calls over MOQT ended");
            *waiting(&heard) = None;
            drop(announced);
        });
        let session = Self {
            link,
            context,
            asked: tokio::sync::Mutex::new(asked),
            number: AtomicU64::new(0),
            waiting: waits,
            calls: Semaphore::new(CALLS_MAX),
            follows: Arc::new(Semaphore::new(FOLLOWS_MAX)),
            _tasks: tasks,
        };
        // Until both sides have read of the tracks, a library may drop what is written to them: so one call
        // goes alone before all others.
        let first = session.call(json!({ "method": GET_CARD }));
        let first = tokio::time::timeout(ANSWER_TIME_MAX, first).await;
        first.unwrap_or_else(|_| Err(Lost::Unreached("it answers no call".to_owned())))?;
        Ok(Arc::new(session))
    }

    /// The track of our calls, once the other side has asked for it.
    async fn asked(
        mut requests: Requests,
        peer: &AgentId,
        tasks: &mut JoinSet<()>,
    ) -> Result<Outgoing, Lost> {
        let name = track(peer, "request");
        let asked = async {
            while let Some(subscribed) = requests.subscribed.recv().await {
                if subscribed.info.track_name.as_bytes() == name.as_bytes() {
                    return Outgoing::accept(subscribed).ok();
                }
                let _ = subscribed.close(ServeError::NotFound);
            }
            None
        };
        let asked = tokio::time::timeout(ANSWER_TIME_MAX, asked).await.ok().flatten();
        let none = || Lost::Unreached("it does not listen to calls".to_owned());
        let (outgoing, serve) = asked.ok_or_else(none)?;
        tasks.spawn(async move {
            let _door = requests; // as long as it is served
            let _ = serve.await;
        });
        Ok(outgoing)
    }

    fn is_open(&self) -> bool {
        waiting(&self.waiting).is_some() && self.link.connection().close_reason().is_none()
    }

    /// Asks, and gives the answer as it came.
    async fn call(&self, mut request: Value) -> Result<Value, Lost> {
        let _place = self.calls.acquire().await.map_err(unreached)?;
        let (to, answer) = oneshot::channel();
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        match &mut *waiting(&self.waiting) {
            Some(waiting) => waiting.insert(number, to),
            None => return Err(Lost::Unreached("the session is over".to_owned())),
        };
        let _forget = Forget { waiting: &self.waiting, number };
        if let Some(request) = request.as_object_mut() {
            request.insert("jsonrpc".to_owned(), "2.0".into());
            request.insert("id".to_owned(), number.into());
        }
        let object = request.to_string().into();
        self.link.room().await;
        let mut asked = self.asked.lock().await;
        asked.push_as(number, priority::REQUEST, object).await.map_err(unreached)?;
        drop(asked);
        let over = |_| Lost::Broken("the session ended".to_owned());
        read(&answer.await.map_err(over)?)
    }
}

/// A call that is given up waits for no answer.
struct Forget<'a> {
    waiting: &'a Waiting,
    number: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = waiting(self.waiting).as_mut() {
            waiting.remove(&self.number);
        }
    }
}

/// Hands answers to who waits for them, by the id of the call; one without, by its number.
async fn hear(mut answers: Incoming, to: &Waiting) -> Result<(), LinkError> {
    while let Some((group, answer)) = answers.next().await? {
        let id = serde_json::from_slice::<Id>(&answer).ok().and_then(|answer| answer.id);
        let found = waiting(to).as_mut().and_then(|waiting| waiting.remove(&id.unwrap_or(group)));
        match found {
            Some(to) => drop(to.send(answer)),
            None => tracing::debug!(group, "an answer that nobody waits for"),
        }
    }
    Ok(())
}

/// The id of an answer.
#[derive(serde::Deserialize)]
struct Id {
    id: Option<u64>,
}

/// The results of one call. Dropped early, the task is not followed any more, and goes on.
#[derive(Debug)]
pub(super) struct Answers {
    first: Option<Said>,
    /// Number of the last event that was heard.
    seen: Option<u64>,
    rest: Rest,
    silent_max: Duration,
    _places: (Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>),
}

#[derive(Debug)]
enum Rest {
    Over,
    Follows(Box<Following>),
    Lost(String),
}

impl Answers {
    pub(super) async fn next(&mut self) -> Result<Option<Said>, Lost> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        loop {
            let following = match &mut self.rest {
                Rest::Over => return Ok(None),
                Rest::Lost(why) => return Err(Lost::Broken(why.clone())),
                Rest::Follows(following) => following,
            };
            let next = tokio::time::timeout(self.silent_max, following.next()).await;
            let mut event = next.unwrap_or_else(|_| Err(Lost::silent()))?;
            if event.get(END) == Some(&Value::Bool(true)) {
                self.rest = Rest::Over;
            }
            let said = said_in(&mut event)?;
            // The first came in the answer, too.
            if said.event.is_none() || said.event > self.seen {
                self.seen = said.event;
                return Ok(Some(said));
            }
        }
    }
}

/// A task's track, read in the order of its groups.
struct Following {
    incoming: Incoming,
    next: u64,
    group: Option<SubgroupReader>,
    early: BTreeMap<u64, SubgroupReader>,
    len_max: usize,
}

impl std::fmt::Debug for Following {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Following").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Following {
    async fn next(&mut self) -> Result<Value, Lost> {
        let broken = |error: &dyn std::fmt::Display| Lost::Broken(error.to_string());
        loop {
            if let Some(group) = &mut self.group {
                let event = object(group, self.len_max).await.map_err(|error| broken(&error))?;
                if let Some(event) = event {
                    return read(&event);
                }
                self.group = None;
                self.next += 1;
            }
            if let Some(group) = self.early.remove(&self.next) {
                self.group = Some(group);
                continue;
            }
            let group = self.incoming.group();
            let group = if self.early.is_empty() {
                group.await
            } else {
                let group = tokio::time::timeout(HOLE_TIME_MAX, group).await;
                let hole = |_| Lost::Broken(format!("group {} did not come", self.next));
                group.map_err(hole)?
            };
            match group.map_err(|error| broken(&error))? {
                None => return Err(Lost::Broken("the track ended before the task".to_owned())),
                // It was told already, or belongs to an attempt before ours.
                Some(group) if group.info.group_id < self.next => {}
                Some(group) if self.early.len() >= EARLY_MAX => {
                    let id = group.info.group_id;
                    return Err(Lost::Broken(format!(
                        "group {} is missing before {id}",
                        self.next
                    )));
                }
                Some(group) => drop(self.early.insert(group.info.group_id, group)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moq::tests::Pair;

    fn line(event: u64, end: bool) -> Bytes {
        let mut line =
            json!({ "jsonrpc": "2.0", "id": 0, "event": event, "result": { "n": event } });
        if end {
            line[END] = true.into();
        }
        line.to_string().into()
    }

    #[tokio::test]
    async fn what_came_late_of_a_group_before_ours_is_no_hole() {
        let pair = Pair::new().await;
        let (client, server, mut tasks) = pair.links().await;
        let mut requests = server.answer(answers_to("c"));
        let (incoming, mut outgoing) =
            tokio::join!(client.subscribe(answers_to("c"), "t", 1_000), async {
                let subscribed = requests.subscribed.recv().await.unwrap();
                let (outgoing, serve) = Outgoing::accept(subscribed).unwrap();
                tasks.spawn(async move { drop(serve.await) });
                outgoing
            });
        let (incoming, group, early) = (incoming.unwrap(), None, BTreeMap::new());
        let mut following = Following { incoming, next: 5, group, early, len_max: 1_000 };
        outgoing.push_as(3, 80, line(9, true)).await.unwrap();
        for group in 5..25 {
            outgoing.push_as(group, 80, line(group, false)).await.unwrap();
            assert_eq!(following.next().await.unwrap()["event"], group);
        }
        assert!(following.early.is_empty(), "nothing is waited for");
    }

    #[tokio::test]
    async fn events_are_told_in_order_once_and_an_end_that_is_none_is_a_loss() {
        for whole in [true, false] {
            let pair = Pair::new().await;
            let (client, server, mut tasks) = pair.links().await;
            let mut requests = server.answer(answers_to("c"));
            let (incoming, outgoing) =
                tokio::join!(client.subscribe(answers_to("c"), "t", 1_000), async {
                    let subscribed = requests.subscribed.recv().await.unwrap();
                    let (outgoing, serve) = Outgoing::accept(subscribed).unwrap();
                    tasks.spawn(async move { drop(serve.await) });
                    outgoing
                });
            let mut outgoing = outgoing;
            // One that is over; the last first; the event that came in the answer again; and two in one group.
            outgoing.push_as(3, 80, line(9, true)).await.unwrap();
            outgoing.push_as(7, 80, line(4, true)).await.unwrap();
            outgoing.push_as(5, 80, line(1, false)).await.unwrap();
            if whole {
                outgoing.push_all(6, 80, [line(2, false), line(3, false)]).await.unwrap();
            }
            drop(outgoing);
            let following = Following {
                incoming: incoming.unwrap(),
                next: 5,
                group: None,
                early: BTreeMap::new(),
                len_max: 1_000,
            };
            let mut answers = Answers {
                first: Some(Said { result: json!({ "n": 1 }), event: Some(1) }),
                seen: Some(1),
                rest: Rest::Follows(Box::new(following)),
                silent_max: Duration::from_secs(30),
                _places: (None, None),
            };
            let mut told = Vec::new();
            let ended = loop {
                match answers.next().await {
                    Ok(Some(said)) => told.push(said.event.unwrap()),
                    Ok(None) => break true,
                    Err(Lost::Broken(_)) => break false,
                    Err(lost) => panic!("{lost:?}"),
                }
            };
            assert_eq!(ended, whole);
            assert_eq!(told, if whole { vec![1, 2, 3, 4] } else { vec![1] });
        }
    }
}
