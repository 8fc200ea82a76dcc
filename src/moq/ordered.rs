//! Messages over a track, each a group of its own, which arrive once and in order: the sender keeps the last ones, and
//! the receiver fetches what does not come.

use super::backend::Held;
use super::link::{Link, LinkError, Requests};
use super::order::{Hole, Order, OrderError};
use super::track::{Incoming, Outgoing, TrackError, payload};
use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use moq_transport::coding::{KeyValuePairs, Location, TrackNamespace};
use moq_transport::data::{ExtensionHeaders, FetchRecord, FetchRecordObject, ObjectStatus};
use moq_transport::message::{RequestErrorCode, StandaloneFetch, TrackExtensions};
use moq_transport::serve::{ServeError, SubgroupInfo, SubgroupObjectReader, SubgroupReader};
use moq_transport::session::{FetchOkInfo, FetchRequested, SessionError};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Messages of a track that are kept to be fetched.
pub(crate) const KEPT_MAX: usize = 256;
/// Bytes of them; the last one is kept however long it is.
pub(crate) const KEPT_LEN_MAX: usize = 8 * 1024 * 1024;
/// Messages of a track that are not with QUIC yet; further ones wait. Below the 128 that the library sends at once.
const UNSENT_MAX: usize = 64;
/// Bytes of them.
const UNSENT_LEN_MAX: usize = 8 * 1024 * 1024;
/// Messages before the other side has said anything: what it has not begun to read, its library may drop, and
/// `moq-transport` keeps 8.
const EARLY_MAX: u64 = 4;
/// How long who says nothing is taken to read nothing. After that what is dropped is fetched.
const EARLY_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a message that others overtook may be missing beyond two round trips, before it is fetched.
const HOLE_TIME: Duration = Duration::from_millis(250);
/// The same, of one that has begun to come.
const STALLED_TIME: Duration = Duration::from_secs(20);
/// How long a track of which too much waits may hold its connection back without a break; then it is given up.
pub(crate) const HOLD_TIME_MAX: Duration = Duration::from_secs(30);
/// Fetches of a track that are answered at a time; a further one is refused.
const FETCHES_MAX: usize = 4;
/// The priority that fetched objects are said to have.
const FETCHED_PRIORITY: u8 = 64;
/// How long between two looks at what QUIC has taken.
const LOOK: Duration = Duration::from_millis(1);

/// Why a track of messages ended before its time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OrderedError {
    #[error(transparent)]
    Track(#[from] TrackError),
    #[error(transparent)]
    Order(#[from] OrderError),
    /// A message did not come, and the publisher does not have it any more, or does not answer.
    #[error("message {id} was lost, and is not to be fetched: {source}")]
    Lost { id: u64, source: LinkError },
    /// A fetch gave something else than the message.
    #[error("message {id} was lost, and its group has {count} objects where it was fetched")]
    NotFetched { id: u64, count: usize },
    /// A group has more than one object.
    #[error("group {id} is not one message")]
    NotOne { id: u64 },
    /// Whoever is to have the messages does not take them, or one that is missing holds up the others.
    #[error("{count} messages waited for {} s, while nothing else could come", waited.as_secs())]
    NotTaken { count: usize, waited: Duration },
}

/// Whether the other side has said something.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    said: AtomicBool,
    bell: Notify,
}

impl Heard {
    fn note(&self) {
        self.said.store(true, Ordering::Release);
        self.bell.notify_waiters();
    }

    /// Waits for that, or for as long as nothing said means nothing.
    async fn wait(&self) {
        let bell = self.bell.notified();
        if !self.said.load(Ordering::Acquire) {
            let _ = tokio::time::timeout(EARLY_TIME_MAX, bell).await;
            self.said.store(true, Ordering::Release);
        }
    }
}

/// The last messages of a track.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    first: u64,
    messages: VecDeque<Bytes>,
    len: usize,
}

impl Kept {
    pub(crate) fn push(&mut self, message: Bytes) {
        self.len += message.len();
        self.messages.push_back(message);
        while self.messages.len() > KEPT_MAX || (self.len > KEPT_LEN_MAX && self.messages.len() > 1)
        {
            let Some(oldest) = self.messages.pop_front() else { return };
            self.len -= oldest.len();
            self.first += 1;
        }
    }

    /// What of a range there is: from its beginning, or nothing.
    fn range(&self, range: &StandaloneFetch) -> Option<Vec<(u64, Bytes)>> {
        let (start, end) = (range.start_location, range.end_location);
        let from = start.group_id.checked_add(u64::from(start.object_id > 0))?;
        let skip = usize::try_from(from.checked_sub(self.first)?).ok()?;
        let wanted = (from..=end.group_id).zip(self.messages.iter().skip(skip).cloned());
        let found: Vec<_> = wanted.collect();
        (!found.is_empty()).then_some(found)
    }
}

type Shared = Arc<Mutex<Kept>>;

/// A track that is written.
pub(crate) struct Outbound {
    link: Link,
    outgoing: Outgoing,
    kept: Shared,
    priority: u8,
    heard: Arc<Heard>,
    unsent: VecDeque<(Arc<SubgroupInfo>, usize)>,
    unsent_len: usize,
}

impl Outbound {
    /// Messages on a track that is served. `heard` tells when something came of who reads them.
    pub(crate) fn new(link: Link, outgoing: Outgoing, priority: u8, heard: Arc<Heard>) -> Self {
        let (kept, unsent) = (Shared::default(), VecDeque::new());
        Self { link, outgoing, kept, priority, heard, unsent, unsent_len: 0 }
    }

    /// What can be fetched of it.
    pub(crate) const fn kept(&self) -> &Shared {
        &self.kept
    }

    /// Publishes one message; waits until there is room for the next.
    ///
    /// # Errors
    /// [`TrackError`]: nobody is there any more.
    pub(crate) async fn send(&mut self, message: Bytes) -> Result<(), TrackError> {
        let id = self.outgoing.next_id();
        if (1..=EARLY_MAX).contains(&id) {
            // The first is taken before the second goes; then few, until one of the other side came.
            self.settle(0, 0).await?;
        }
        if id >= EARLY_MAX {
            self.heard.wait().await;
        }
        self.link.room().await;
        self.settle(UNSENT_MAX - 1, UNSENT_LEN_MAX).await?;
        let mut group = self.outgoing.begin(id, self.priority)?;
        self.unsent.push_back((group.info.clone(), message.len()));
        self.unsent_len += message.len();
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(message.clone());
        group.write(message)?;
        group.finish()?;
        Ok(())
    }

    /// Waits until no more than so much is not with QUIC. The library has no word for it, so this looks now and then.
    async fn settle(&mut self, count_max: usize, len_max: usize) -> Result<(), TrackError> {
        loop {
            // Whoever has it still to send holds a copy.
            while let Some((info, len)) = self.unsent.front()
                && Arc::strong_count(info) == 1
            {
                self.unsent_len -= len;
                self.unsent.pop_front();
            }
            if self.unsent.len() <= count_max && self.unsent_len <= len_max {
                return Ok(());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Publishes what is told until that ends, and with it the track; returns when all of it is acknowledged, however
    /// long that takes, or nobody is there any more. `serve` is what serves the subscription: dropped before its end
    /// it would end the track as if all had been sent. Gives whether all was.
    pub(crate) async fn run(
        mut self,
        serve: impl Future<Output = Result<(), SessionError>>,
        mut told: mpsc::Receiver<Vec<u8>>,
    ) -> bool {
        tokio::pin!(serve);
        let publish = async move {
            while let Some(message) = told.recv().await {
                if let Err(error) = self.send(message.into()).await {
                    return tracing::debug!(%error, "messages over MOQT are not taken any more");
                }
            }
        };
        tokio::select! {
            served = &mut serve => return served.is_ok(),
            () = publish => {}
        }
        serve.await.is_ok()
    }
}

/// Answers fetches of the track `name`, and refuses all else that is asked of its namespace, until the session ends.
pub(crate) async fn answer(mut requests: Requests, name: &str, kept: Shared) {
    let mut answering = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = answering.join_next() => {}
            Some(subscribed) = requests.subscribed.recv() => {
                let _ = subscribed.close(ServeError::NotFound); // the one subscription there is has been
            }
            Some((request, range)) = requests.fetched.recv() => {
                if range.track_name.as_bytes() != name.as_bytes() {
                    let _ = request.reject(RequestErrorCode::DoesNotExist, "no such track");
                    continue;
                }
                if answering.len() >= FETCHES_MAX {
                    let _ = request.reject(RequestErrorCode::ExcessiveLoad, "one after the other");
                    continue;
                }
                let found = kept.lock().unwrap_or_else(PoisonError::into_inner).range(&range);
                match found {
                    None => {
                        let _ = request.reject(RequestErrorCode::InvalidRange, "not kept");
                    }
                    Some(found) => {
                        answering.spawn(async move {
                            if let Err(error) = respond(request, &found).await {
                                tracing::debug!(%error, "a fetch was not answered");
                            }
                        });
                    }
                }
            }
            else => return,
        }
    }
}

/// Answers a fetch with these objects, each the only one of its group.
pub(crate) async fn respond(
    request: FetchRequested,
    objects: &[(u64, Bytes)],
) -> Result<(), SessionError> {
    let last = objects.last().map_or(0, |(id, _)| *id);
    let info = FetchOkInfo {
        end_of_track: false,
        end_location: Location::new(last, 0),
        params: KeyValuePairs::default(),
        track_extensions: TrackExtensions::default(),
    };
    let mut writer = request.respond(info).await?;
    for (group_id, object) in objects {
        let record = FetchRecordObject {
            group_id: *group_id,
            subgroup_id: Some(0),
            object_id: 0,
            publisher_priority: FETCHED_PRIORITY,
            extension_headers: ExtensionHeaders::default(),
            payload_length: object.len() as u64,
        };
        writer.write_record(&FetchRecord::Object(record)).await?;
        writer.write_payload(object).await?;
    }
    writer.finish().await
}

enum Read {
    Header(u64, SubgroupReader, SubgroupObjectReader),
    Whole(u64, SubgroupReader, Bytes),
    Cut(u64, usize),
    /// The group of a message that is read is over.
    Done,
    Failed(OrderedError),
}

type Reading = Pin<Box<dyn Future<Output = Read> + Send>>;
type Repair = Pin<Box<dyn Future<Output = Result<Bytes, OrderedError>> + Send>>;

/// A track that is read.
pub(crate) struct Inbound {
    link: Link,
    incoming: Incoming,
    namespace: TrackNamespace,
    name: &'static str,
    len_max: usize,
    order: Order,
    reading: FuturesUnordered<Reading>,
    hole: Option<(Hole, bool, Instant)>,
    hold_time: Duration,
}

impl Inbound {
    /// The messages of a subscription to `name` in `namespace`, each at most `len_max` bytes.
    pub(crate) fn new(
        link: Link,
        incoming: Incoming,
        (namespace, name): (TrackNamespace, &'static str),
        len_max: usize,
    ) -> Self {
        let (order, reading) = (Order::default(), FuturesUnordered::new());
        let hold_time = HOLD_TIME_MAX;
        Self { link, incoming, namespace, name, len_max, order, reading, hole: None, hold_time }
    }

    /// Holds the connection back for another time.
    #[cfg(test)]
    pub(crate) fn holding_for(mut self, time: Duration) -> Self {
        self.hold_time = time;
        self
    }

    /// Gives the messages in order to `to`, until the track ends or nobody takes them. While they are not taken,
    /// the connection is held back.
    ///
    /// # Errors
    /// [`OrderedError`]: one of them will not come. None is passed over.
    pub(crate) async fn run<T>(
        mut self,
        to: &mpsc::Sender<T>,
        heard: &Heard,
        wrap: impl Fn(Bytes) -> T,
    ) -> Result<(), OrderedError> {
        let mut over = false;
        let mut repair: Option<(u64, Repair)> = None;
        let mut held: Option<(Held, Instant)> = None;
        loop {
            let ready = self.order.is_ready();
            let hole = self.order.hole();
            if over && self.reading.is_empty() && !ready && hole.is_none() && repair.is_none() {
                return Ok(());
            }
            // What is fetched has to come over the same connection.
            if !self.order.is_behind() || repair.is_some() {
                held = None;
            } else if held.is_none() {
                held = Some((self.link.hold_back(), Instant::now() + self.hold_time));
            }
            let given_up = held.as_ref().map(|(_, until)| *until);
            let due = if repair.is_none() { self.due(over) } else { None };
            let fetched = async {
                match &mut repair {
                    Some((_, fetch)) => fetch.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = to.closed() => return Ok(()),
                room = to.reserve(), if ready => {
                    let (Ok(room), Some(message)) = (room, self.order.pop()) else { return Ok(()) };
                    heard.note();
                    room.send(wrap(message));
                }
                Some(read) = self.reading.next() => self.read(read)?,
                group = self.incoming.group(), if !over => match group? {
                    None => {
                        over = true;
                        // Streams that were not accepted in time are not known to the library any more.
                        self.order.over(self.incoming.published().unwrap_or_default());
                    }
                    // Ours have one subgroup; of others nothing is known.
                    Some(group) if group.info.subgroup_id != 0 => {
                        return Err(OrderedError::NotOne { id: group.info.group_id });
                    }
                    Some(group) => {
                        self.order.begin(group.info.group_id)?;
                        self.reading.push(Box::pin(header(group, self.len_max)));
                    }
                },
                found = fetched => match (found, repair.take()) {
                    (Ok(message), Some((id, _))) => self.order.repaired(id, message),
                    // Meanwhile it came.
                    (Err(_), Some((id, _))) if self.order.hole().is_none_or(|hole| hole.id != id) => {}
                    (Err(error), _) => return Err(error),
                    (Ok(_), None) => {}
                },
                () = at(given_up) => {
                    let count = self.order.waiting();
                    return Err(OrderedError::NotTaken { count, waited: self.hold_time });
                }
                () = at(due) => {
                    if let Some(hole) = hole {
                        tracing::debug!(id = hole.id, track = self.name, "a message is fetched");
                        repair = Some((hole.id, self.fetch(hole.id)));
                    }
                }
            }
        }
    }

    /// When what is missing is to be fetched.
    fn due(&mut self, over: bool) -> Option<Instant> {
        let Some(hole) = self.order.hole() else {
            self.hole = None;
            return None;
        };
        match self.hole {
            Some((known, was_over, due)) if (known, was_over) == (hole, over) => Some(due),
            _ => {
                let wait = match hole.begun {
                    true => STALLED_TIME,
                    false if over => Duration::ZERO, // nothing more comes
                    false => HOLE_TIME + 2 * self.link.connection().rtt(),
                };
                let due = Instant::now() + wait;
                self.hole = Some((hole, over, due));
                Some(due)
            }
        }
    }

    fn read(&mut self, read: Read) -> Result<(), OrderedError> {
        match read {
            Read::Header(id, group, object) => {
                self.order.sized(object.size)?;
                self.reading.push(Box::pin(body(id, group, object)));
            }
            Read::Whole(id, group, message) => {
                self.order.whole(id, message);
                self.reading.push(Box::pin(rest(id, group)));
            }
            Read::Cut(id, len) => self.order.cut(id, len),
            Read::Done => {}
            Read::Failed(error) => return Err(error),
        }
        Ok(())
    }

    fn fetch(&self, id: u64) -> Repair {
        let (link, namespace, name) = (self.link.clone(), self.namespace.clone(), self.name);
        let len_max = self.len_max;
        Box::pin(async move {
            let fetched = link.fetch(namespace, name, (id, id), len_max).await;
            let mut found = fetched.map_err(|source| OrderedError::Lost { id, source })?;
            let count = found.len();
            match found.pop() {
                Some((group, 0, message)) if count == 1 && group == id => Ok(message),
                _ => Err(OrderedError::NotFetched { id, count }),
            }
        })
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

async fn header(mut group: SubgroupReader, len_max: usize) -> Read {
    let id = group.info.group_id;
    match group.next().await {
        Ok(Some(object)) if object.size > len_max => {
            Read::Failed(TrackError::TooLong { max: len_max }.into())
        }
        Ok(Some(object)) if object.status != ObjectStatus::NormalObject => Read::Cut(id, 0),
        Ok(Some(object)) if object.object_id == 0 => Read::Header(id, group, object),
        Ok(Some(_)) => Read::Failed(OrderedError::NotOne { id }),
        Ok(None) | Err(_) => Read::Cut(id, 0),
    }
}

async fn body(id: u64, group: SubgroupReader, object: SubgroupObjectReader) -> Read {
    let len = object.size;
    match payload(object).await {
        Ok(message) => Read::Whole(id, group, message),
        Err(_) => Read::Cut(id, len),
    }
}

/// A group is held to its end: the library ends the subscription if nobody reads what comes of it.
async fn rest(id: u64, mut group: SubgroupReader) -> Read {
    match group.next().await {
        Ok(Some(object)) if object.status == ObjectStatus::NormalObject => {
            Read::Failed(OrderedError::NotOne { id })
        }
        Ok(_) | Err(_) => Read::Done,
    }
}

const _: () = assert!(EARLY_MAX < 8 && UNSENT_MAX < 128);
const _: () = assert!(STALLED_TIME.as_secs() < HOLD_TIME_MAX.as_secs());
