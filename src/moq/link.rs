//! One MOQT session: what we announce, ask and answer in it.
//!
//! All waits for answers have a limit, all requests are counted, and a session that ends takes everything in it
//! along: who used it begins anew with the next one.

use super::backend::{Backend, Flight, Held, Inlet, Kept, Lifted};
use super::track::{Incoming, TrackError};
use super::unproven::{Doubts, Suspect};
use super::{
    ANSWER_TIME_MAX, GROUPS_FLYING_MAX, PEER_REQUESTS_MAX, REQUESTS_MAX, REQUESTS_TOTAL_MAX,
};
use bytes::Bytes;
use moq_transport::coding::{
    KeyValuePairs, Location, TrackName, TrackNamespace, TrackNamespacePrefix,
};
use moq_transport::data::FetchRecord;
use moq_transport::message::{RequestErrorCode, StandaloneFetch};
use moq_transport::serve::{ServeError, Track};
use moq_transport::session::{
    FetchRequested, PublishedNamespace, Publisher, Session, SessionError, SubscribeNamespace,
    Subscribed, Subscriber, Transport, transport,
};
use moq_transport::setup::AuthorizationToken;
use quinn::Connection;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use url::Url;

/// Requests of a peer that wait for whoever answers them; further ones are refused.
const REQUESTS_WAITING_MAX: usize = 64;

/// Why something of a session could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The session has as many requests open as it may.
    #[error("{max} requests are open in this session")]
    Full { max: usize },
    /// The session has had as many requests as it may: it is time for a new one.
    #[error("the session has had {max} requests")]
    Spent { max: u64 },
    /// The other side did not answer.
    #[error("{what} was not answered within {} s", ANSWER_TIME_MAX.as_secs())]
    NoAnswer { what: &'static str },
    /// Nothing comes of a peer that was up.
    #[error("offers and a hello were answered by nothing, each in {} ms", .answer.as_millis())]
    Deaf { answer: Duration },
    /// A track of a publisher that has not shown who it is takes too much.
    #[error("a publisher that has not shown who it is sends too much, or too slowly")]
    Unproven,
    /// The other side said no.
    #[error("{what} was refused: {source}")]
    Refused { what: &'static str, source: ServeError },
    /// The session is gone, or one of the two sides does not keep to the protocol.
    #[error("MOQT: {0}")]
    Session(#[from] SessionError),
    /// An object came, and not whole.
    #[error(transparent)]
    Track(#[from] TrackError),
}

/// Why a session ended.
pub(crate) type LinkEnd = Result<(), SessionError>;

/// What a peer asks of a namespace of ours.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) subscribed: mpsc::Receiver<Subscribed>,
    pub(crate) fetched: mpsc::Receiver<(FetchRequested, StandaloneFetch)>,
    _shuts: Shuts, // after the receivers, whose end it looks for
}

/// Takes a door away whose other side is gone, unless another has taken its place.
struct Shuts {
    doors: Doors,
    namespace: TrackNamespace,
}

impl std::fmt::Debug for Shuts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Shuts").field(&self.namespace).finish()
    }
}

impl Drop for Shuts {
    fn drop(&mut self) {
        let mut doors = open(&self.doors);
        if doors.get(&self.namespace).is_some_and(|door| door.subscribed.is_closed()) {
            doors.remove(&self.namespace);
        }
    }
}

#[derive(Debug)]
struct Door {
    subscribed: mpsc::Sender<Subscribed>,
    fetched: mpsc::Sender<(FetchRequested, StandaloneFetch)>,
}

type Doors = Arc<Mutex<HashMap<TrackNamespace, Door>>>;

fn open(doors: &Doors) -> MutexGuard<'_, HashMap<TrackNamespace, Door>> {
    doors.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session that runs. Clones are handles of the same one; it ends with its task, or its connection.
#[derive(Clone)]
pub(crate) struct Link {
    publisher: Publisher,
    subscriber: Subscriber,
    doors: Doors,
    slots: Arc<Semaphore>,
    asked: Arc<AtomicU64>,
    flight: Arc<Flight>,
    inlet: Arc<Inlet>,
    doubts: Arc<Doubts>,
    connection: Connection,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("with", &self.connection.remote_address())
            .finish_non_exhaustive()
    }
}

/// A namespace that we have announced, until it is dropped.
pub(crate) struct Announced {
    _slot: OwnedSemaphorePermit,
    routes: JoinSet<()>,
}

impl Announced {
    /// Waits until the other side takes it back.
    pub(crate) async fn ended(&mut self) {
        let _ = self.routes.join_next().await;
    }
}

/// Announcements by others below a prefix, until it is dropped.
pub(crate) struct Announcements {
    pub(crate) of: SubscribeNamespace,
    _slot: OwnedSemaphorePermit,
}

impl Link {
    /// Opens a session as the client of `url`, whose path is the scope. The second value is its task: nothing
    /// happens unless it is polled, and the session ends when it is dropped.
    ///
    /// # Errors
    /// [`LinkError`].
    pub(crate) async fn connect(
        connection: Connection,
        url: Url,
        tokens: Vec<AuthorizationToken>,
    ) -> Result<(Self, impl Future<Output = LinkEnd> + Send), LinkError> {
        let backend = Self::backend(&connection);
        let below = backend.clone();
        let session = transport::Session::new(backend, url);
        let opened = Session::connect_with_tokens(session, None, Transport::RawQuic, tokens);
        let opened = tokio::time::timeout(ANSWER_TIME_MAX, opened).await;
        let (session, publisher, subscriber) =
            opened.map_err(|_| LinkError::NoAnswer { what: "SETUP" })??;
        Ok(Self::run(connection, session, publisher, subscriber, &below))
    }

    /// Takes a session that a peer opens.
    ///
    /// # Errors
    /// [`LinkError`].
    pub(crate) async fn accept(
        connection: Connection,
    ) -> Result<(Self, impl Future<Output = LinkEnd> + Send), LinkError> {
        let backend = Self::backend(&connection);
        let below = backend.clone();
        let url = Url::parse("moqt://localhost").map_err(|_| SessionError::Internal)?;
        let session = transport::Session::new(backend, url);
        let opened = Session::accept(session, None, Transport::RawQuic);
        let opened = tokio::time::timeout(ANSWER_TIME_MAX, opened).await;
        let (session, publisher, subscriber) =
            opened.map_err(|_| LinkError::NoAnswer { what: "SETUP" })??;
        let publisher = publisher.ok_or(SessionError::Internal)?;
        let subscriber = subscriber.ok_or(SessionError::Internal)?;
        Ok(Self::run(connection, session, publisher, subscriber, &below))
    }

    fn backend(connection: &Connection) -> Backend {
        connection.set_max_concurrent_bi_streams(PEER_REQUESTS_MAX.into());
        Backend::new(connection.clone())
    }

    fn run(
        connection: Connection,
        session: Session,
        publisher: Publisher,
        subscriber: Subscriber,
        below: &Backend,
    ) -> (Self, impl Future<Output = LinkEnd> + Send + use<>) {
        publisher.accept_fetch(); // before the first can come
        let link = Self {
            publisher,
            subscriber,
            doors: Doors::default(),
            slots: Arc::new(Semaphore::new(REQUESTS_MAX)),
            asked: Arc::default(),
            flight: below.flight().clone(),
            inlet: below.inlet().clone(),
            doubts: below.doubts().clone(),
            connection: connection.clone(),
        };
        let (publisher, doors) = (link.publisher.clone(), link.doors.clone());
        let run = async move {
            let ended = tokio::select! {
                ended = session.run() => ended,
                () = unannounced(publisher.clone(), doors.clone()) => Ok(()),
                () = fetches(publisher, doors) => Ok(()),
            };
            connection.close(0u32.into(), b"done");
            ended
        };
        (link, run)
    }

    /// The connection below.
    pub(crate) const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits until there is room for a further group.
    pub(crate) async fn room(&self) {
        self.flight.below(GROUPS_FLYING_MAX).await;
    }

    /// Lets no further group come, of whatever track, until the value is dropped: those that come wait in QUIC, and
    /// who sends them waits for credit. A fetch by whomever suspends it.
    pub(crate) fn hold_back(&self) -> Held {
        Held::begin(&self.inlet)
    }

    /// As if it had had all the requests it may.
    #[cfg(test)]
    pub(crate) fn spend(&self) {
        self.asked.store(REQUESTS_TOTAL_MAX, Ordering::Relaxed);
    }

    /// Whether somebody holds it back.
    #[cfg(test)]
    pub(crate) fn is_held_back(&self) -> bool {
        self.inlet.is_held()
    }

    /// Whether groups are on their way that the other side has not acknowledged.
    pub(crate) fn waits(&self) -> bool {
        self.flight.waits()
    }

    /// Gives streams of tracks little room, until one is said to be its peer's: for relays, where anybody can publish
    /// in any name.
    pub(crate) fn doubt(&self) {
        self.doubts.begin();
    }

    /// Says that a track is heard, until the value is dropped.
    pub(crate) fn suspect(&self, track: &Incoming) -> Option<Suspect> {
        Some(self.doubts.suspect(track.alias()?))
    }

    /// Says that a group will stay open, until the value is dropped: it takes none of the [`Self::room`].
    pub(crate) fn keep_open(&self) -> Kept {
        self.flight.keep()
    }

    /// A place for one more request. Those of a session that is just ending are about to be free.
    async fn slot(&self) -> Result<OwnedSemaphorePermit, LinkError> {
        if self.asked.fetch_add(1, Ordering::Relaxed) >= REQUESTS_TOTAL_MAX {
            return Err(LinkError::Spent { max: REQUESTS_TOTAL_MAX });
        }
        let slot = tokio::time::timeout(ANSWER_TIME_MAX, self.slots.clone().acquire_owned()).await;
        slot.ok().and_then(Result::ok).ok_or(LinkError::Full { max: REQUESTS_MAX })
    }

    /// Whether it has had as many requests of ours as it may.
    pub(crate) fn is_spent(&self) -> bool {
        self.asked.load(Ordering::Relaxed) >= REQUESTS_TOTAL_MAX
    }

    /// Answers for a namespace, whether or not it is announced: with a direct peer that knows the name it need
    /// not be. A second call for the same one takes it over.
    pub(crate) fn answer(&self, namespace: TrackNamespace) -> Requests {
        let (subscribed_tx, subscribed) = mpsc::channel(REQUESTS_WAITING_MAX);
        let (fetched_tx, fetched) = mpsc::channel(REQUESTS_WAITING_MAX);
        let door = Door { subscribed: subscribed_tx, fetched: fetched_tx };
        open(&self.doors).insert(namespace.clone(), door);
        Requests { subscribed, fetched, _shuts: Shuts { doors: self.doors.clone(), namespace } }
    }

    /// Announces a namespace, so that the other side may ask for its tracks, and a relay knows whom to ask.
    ///
    /// # Errors
    /// [`LinkError`].
    pub(crate) async fn announce(&self, namespace: TrackNamespace) -> Result<Announced, LinkError> {
        const WHAT: &str = "PUBLISH_NAMESPACE";
        let slot = self.slot().await?;
        let mut publisher = self.publisher.clone();
        let begun = async {
            let announced = publisher.publish_namespace_start(namespace).await?;
            announced.ok().await.map_err(|source| LinkError::Refused { what: WHAT, source })?;
            Ok::<_, LinkError>(announced)
        };
        let announced = tokio::time::timeout(ANSWER_TIME_MAX, begun).await;
        let announced = announced.map_err(|_| LinkError::NoAnswer { what: WHAT })??;
        let doors = self.doors.clone();
        let mut routes = JoinSet::new();
        routes.spawn(async move {
            while let Ok(Some(subscribed)) = announced.subscribed().await {
                enter(&doors, subscribed);
            }
        });
        Ok(Announced { _slot: slot, routes })
    }

    /// Asks to be told of namespaces below a prefix.
    ///
    /// # Errors
    /// [`LinkError`].
    pub(crate) async fn announcements(
        &self,
        prefix: &TrackNamespace,
    ) -> Result<Announcements, LinkError> {
        const WHAT: &str = "SUBSCRIBE_NAMESPACE";
        let slot = self.slot().await?;
        let mut subscriber = self.subscriber.clone();
        let prefix = TrackNamespacePrefix { fields: prefix.fields.clone() };
        let begun = async {
            let of = subscriber.subscribe_namespace(prefix, KeyValuePairs::default()).await?;
            of.ok().await.map_err(|source| LinkError::Refused { what: WHAT, source })?;
            Ok::<_, LinkError>(Announcements { of, _slot: slot })
        };
        let begun = tokio::time::timeout(ANSWER_TIME_MAX, begun).await;
        begun.map_err(|_| LinkError::NoAnswer { what: WHAT })?
    }

    /// The next namespace that the other side announces to us unasked, as a direct peer does. It is to be
    /// accepted or refused by whoever takes it.
    pub(crate) async fn announced(&self) -> Option<PublishedNamespace> {
        self.subscriber.clone().published_namespace().await
    }

    /// Subscribes to a track: all that is published from now on. An object over `len_max` bytes ends it.
    ///
    /// # Errors
    /// [`LinkError`].
    pub(crate) async fn subscribe(
        &self,
        namespace: TrackNamespace,
        name: impl Into<TrackName>,
        len_max: usize,
    ) -> Result<Incoming, LinkError> {
        const WHAT: &str = "SUBSCRIBE";
        let slot = self.slot().await?;
        let mut subscriber = self.subscriber.clone();
        let (writer, reader) = Track::new(namespace, name).produce();
        let begun = subscriber.subscribe_open(writer);
        let begun = tokio::time::timeout(ANSWER_TIME_MAX, begun).await;
        let begun = begun.map_err(|_| LinkError::NoAnswer { what: WHAT })?;
        let subscribe = begun.map_err(|source| LinkError::Refused { what: WHAT, source })?;
        Ok(Incoming::new(subscribe, reader, slot, len_max))
    }

    /// Fetches the objects of groups `from` to `to`, both included, each with its group and object id; in all
    /// at most `len_max` bytes.
    ///
    /// # Errors
    /// [`LinkError`].
    pub(crate) async fn fetch(
        &self,
        namespace: TrackNamespace,
        name: impl Into<TrackName>,
        (from, to): (u64, u64),
        len_max: usize,
    ) -> Result<Vec<(u64, u64, Bytes)>, LinkError> {
        const WHAT: &str = "FETCH";
        let _slot = self.slot().await?;
        let _lifted = Lifted::begin(&self.inlet);
        let mut subscriber = self.subscriber.clone();
        let range = StandaloneFetch {
            track_namespace: namespace,
            track_name: name.into(),
            start_location: Location::new(from, 0),
            end_location: Location::new(to, 0),
        };
        let refused = |source| LinkError::Refused { what: WHAT, source };
        let done = async {
            let begun = subscriber.fetch(range, KeyValuePairs::default()).await;
            let mut fetch = begun.map_err(refused)?;
            fetch.ok().await.map_err(refused)?;
            let (mut found, mut len) = (Vec::new(), 0);
            while let Some(record) = fetch.next().await? {
                let FetchRecord::Object(object) = record else { continue };
                let mut payload = Vec::new();
                while let Some(chunk) = fetch.read_payload_chunk(len_max).await? {
                    len += chunk.len();
                    if len > len_max {
                        return Err(TrackError::TooLong { max: len_max }.into());
                    }
                    payload.extend_from_slice(&chunk);
                }
                found.push((object.group_id, object.object_id, payload.into()));
            }
            Ok(found)
        };
        let done = tokio::time::timeout(ANSWER_TIME_MAX, done).await;
        done.map_err(|_| LinkError::NoAnswer { what: WHAT })?
    }
}

/// Hands a subscription to whoever answers for its namespace.
fn enter(doors: &Doors, subscribed: Subscribed) {
    let mut doors = open(doors);
    let refused = match doors.get(&subscribed.info.track_namespace) {
        None => Some((subscribed, ServeError::NotFound)),
        Some(door) => match door.subscribed.try_send(subscribed) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(subscribed)) => {
                let code = RequestErrorCode::ExcessiveLoad as u64;
                Some((subscribed, ServeError::Closed(code)))
            }
            Err(mpsc::error::TrySendError::Closed(subscribed)) => {
                doors.remove(&subscribed.info.track_namespace);
                Some((subscribed, ServeError::NotFound))
            }
        },
    };
    if let Some((subscribed, error)) = refused {
        let _ = subscribed.close(error); // the session may be gone
    }
}

/// Subscriptions to what was not announced: direct peers know our names.
async fn unannounced(mut publisher: Publisher, doors: Doors) {
    while let Some(subscribed) = publisher.subscribed().await {
        enter(&doors, subscribed);
    }
}

async fn fetches(mut publisher: Publisher, doors: Doors) {
    let mut resolving = JoinSet::new();
    while let Some(request) = publisher.fetch_requested().await {
        while resolving.try_join_next().is_some() {}
        if resolving.len() >= REQUESTS_WAITING_MAX {
            let _ = request.reject(RequestErrorCode::ExcessiveLoad, "too many at once");
            continue;
        }
        let doors = doors.clone();
        resolving.spawn(async move {
            // Joining ones are resolved once their subscription is known, which may be a while.
            let resolved = tokio::time::timeout(ANSWER_TIME_MAX, request.resolve()).await;
            let Ok(Ok(Some(range))) = resolved else {
                let _ = request.reject(RequestErrorCode::InvalidRange, "nothing to join");
                return;
            };
            let refused = match open(&doors).get(&range.track_namespace) {
                None => Some((request, RequestErrorCode::DoesNotExist)),
                Some(door) => match door.fetched.try_send((request, range)) {
                    Ok(()) => None,
                    Err(mpsc::error::TrySendError::Full((request, _))) => {
                        Some((request, RequestErrorCode::ExcessiveLoad))
                    }
                    Err(mpsc::error::TrySendError::Closed((request, _))) => {
                        Some((request, RequestErrorCode::DoesNotExist))
                    }
                },
            };
            if let Some((request, code)) = refused {
                let _ = request.reject(code, "not here");
            }
        });
    }
}
