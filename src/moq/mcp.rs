//! MCP in a MOQT session with a peer: docs/mcp-moqt.md. Names and documents as draft-jennings-mcp-over-moqt-00 has
//! them by what implements it.

use super::link::{Link, LinkError, Requests};
use super::ordered::{self, Heard, Inbound, OrderedError, Outbound};
use super::track::{Outgoing, TrackError};
use super::{ALPN, namespace};
use crate::bridge::{Bridge, Code, MESSAGE_LEN_MAX, MESSAGES_READY_MAX};
use crate::calls::LineError;
use crate::peers::{Dial, DialError};
use bytes::Bytes;
use moq_transport::coding::TrackNamespace;
use moq_transport::message::RequestErrorCode;
use moq_transport::serve::ServeError;
use moq_transport::session::{SessionError, Subscribed};
use proto::id::AgentId;
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use url::Url;

const DISCOVERY: [&str; 2] = ["mcp", "discovery"];
/// The track with the document of a session that may begin.
const SESSIONS: &str = "sessions";
const CLIENT_TO_SERVER: &str = "client-to-server";
const SERVER_TO_CLIENT: &str = "server-to-client";
/// Priority of messages.
const PRIORITY: u8 = 64;
/// Priority of documents.
const DISCOVERY_PRIORITY: u8 = 160;
/// Bytes of a document.
const DOCUMENT_LEN_MAX: usize = 16 * 1024;
/// Bytes of the id of a session.
const SESSION_ID_LEN_MAX: usize = 64;
/// Sessions of one connection that have an id and have not begun; further ones are refused.
const SESSIONS_OPENING_MAX: usize = 16;
/// Sessions of one connection that are over, and whose last messages are kept for who did not get them; of further
/// ones they are not, so that who misses one hears of an error.
const LINGERING_MAX: usize = 16;
/// How long that is: longer than a reader may hold its connection back, and then ask.
const LINGERING_TIME_MAX: Duration = Duration::from_secs(60);
/// What a connection is closed with in which a session was broken off.
const BROKEN_OFF: u32 = 1;
/// How long a session may take to begin.
const OPEN_TIME_MAX: Duration = Duration::from_secs(10);

fn discovery(server: Option<&str>) -> TrackNamespace {
    let fields: Vec<&str> = DISCOVERY.into_iter().chain(server).collect();
    namespace(&fields)
}

fn control(session: &str) -> TrackNamespace {
    namespace(&["mcp", session, "control"])
}

/// Says of which server a session with this id is, and on which tracks.
fn document(session: &str, server: &str) -> Bytes {
    let path = |name| format!("mcp/{session}/control/{name}");
    let document = json!({
        "jsonrpc": "2.0",
        "id": 1,
        "result": {
            "session_id": session,
            // Its protocol version is what the two agree on.
            "server_info": { "name": server, "version": env!("CARGO_PKG_VERSION") },
            "available_tracks": { "control": {
                "client_to_server": path(CLIENT_TO_SERVER),
                "server_to_client": path(SERVER_TO_CLIENT),
            } },
        },
    });
    document.to_string().into()
}

/// The id of the session that a document is of.
fn session_of(document: &[u8]) -> Result<String, String> {
    let document: Value =
        serde_json::from_slice(document).map_err(|error| format!("its document: {error}"))?;
    let result = document.get("result");
    let id = result.and_then(|result| result.get("session_id")).and_then(Value::as_str);
    let id = id.ok_or("its document has no session_id")?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if id.is_empty() || id.len() > SESSION_ID_LEN_MAX || !id.bytes().all(plain) {
        return Err("the session_id in its document is none".to_owned());
    }
    Ok(id.to_owned())
}

/// Serves the servers that are the peer's in a session with it. What this gives has no end of its own; the names are
/// answered for before it is polled.
pub(crate) fn serve(
    bridge: Option<Arc<Bridge>>,
    link: &Link,
    peer: &AgentId,
) -> impl Future<Output = ()> + Send + use<> {
    let mut hosts = Vec::new();
    if let Some(bridge) = bridge {
        let opening = Arc::new(Semaphore::new(SESSIONS_OPENING_MAX));
        let lingering = Arc::new(Semaphore::new(LINGERING_MAX));
        let names = bridge.names(peer);
        // The draft has one server at a node, and no word for which.
        let first = names.first().cloned().map(|name| (discovery(None), name));
        let named = names.into_iter().map(|name| (discovery(Some(&name)), name));
        for (of, server) in first.into_iter().chain(named) {
            let requests = link.answer(of);
            let (bridge, link, peer) = (bridge.clone(), link.clone(), peer.clone());
            let (opening, lingering) = (opening.clone(), lingering.clone());
            let host = Host { bridge, link, peer, server, opening, lingering };
            hosts.push(host.run(requests));
        }
    }
    async move {
        futures_util::future::join_all(hosts).await;
        std::future::pending::<()>().await;
    }
}

/// One server, for one peer.
#[derive(Clone)]
struct Host {
    bridge: Arc<Bridge>,
    link: Link,
    peer: AgentId,
    server: String,
    opening: Arc<Semaphore>,
    lingering: Arc<Semaphore>,
}

/// A session that may begin.
struct Opening {
    id: String,
    requests: Requests,
    place: OwnedSemaphorePermit,
}

impl Host {
    async fn run(self, mut requests: Requests) {
        let mut work = JoinSet::new(); // it ends with the connection
        loop {
            tokio::select! {
                Some(_) = work.join_next() => {}
                Some(subscribed) = requests.subscribed.recv() => {
                    let opening = match self.is_sessions(subscribed.info.track_name.as_bytes()) {
                        Ok(()) => self.open(),
                        Err(code) => Err(code),
                    };
                    match opening {
                        Ok(opening) => {
                            let document = document(&opening.id, &self.server);
                            work.spawn(once(subscribed, document));
                            work.spawn(self.clone().session(opening));
                        }
                        Err(code) => {
                            let _ = subscribed.close(ServeError::Closed(code as u64));
                        }
                    }
                }
                Some((request, range)) = requests.fetched.recv() => {
                    let opening = match self.is_sessions(range.track_name.as_bytes()) {
                        Ok(()) if (range.start_location.group_id, range.start_location.object_id) != (0, 0) => {
                            Err(RequestErrorCode::InvalidRange)
                        }
                        Ok(()) => self.open(),
                        Err(code) => Err(code),
                    };
                    match opening {
                        Ok(opening) => {
                            let document = document(&opening.id, &self.server);
                            work.spawn(async move {
                                if let Err(error) = ordered::respond(request, &[(0, document)]).await {
                                    tracing::debug!(%error, "a fetch was not answered");
                                }
                            });
                            work.spawn(self.clone().session(opening));
                        }
                        Err(code) => {
                            let _ = request.reject(code, "no session");
                        }
                    }
                }
                else => return,
            }
        }
    }

    fn is_sessions(&self, track: &[u8]) -> Result<(), RequestErrorCode> {
        if track == SESSIONS.as_bytes() { Ok(()) } else { Err(RequestErrorCode::DoesNotExist) }
    }

    /// An id that is used once, of a session that is expected for a while.
    fn open(&self) -> Result<Opening, RequestErrorCode> {
        if self.link.is_spent() {
            return Err(RequestErrorCode::GoingAway); // nothing could be asked back
        }
        let place = self.opening.clone().try_acquire_owned();
        let place = place.map_err(|_| RequestErrorCode::ExcessiveLoad)?;
        let id = crate::a2a::random_id().map_err(|_| RequestErrorCode::InternalError)?;
        let id = id.replace('-', "");
        let requests = self.link.answer(control(&id));
        Ok(Opening { id, requests, place })
    }

    async fn session(self, opening: Opening) {
        let Opening { id, mut requests, place } = opening;
        let asked = async {
            while let Some(subscribed) = requests.subscribed.recv().await {
                if subscribed.info.track_name.as_bytes() == SERVER_TO_CLIENT.as_bytes() {
                    return Some(subscribed);
                }
                let _ = subscribed.close(ServeError::NotFound); // it is not ours to publish
            }
            None
        };
        let asked = tokio::time::timeout(OPEN_TIME_MAX, asked).await;
        let Ok(Some(subscribed)) = asked else { return };
        drop(place);
        let begun = match self.bridge.begin(&self.peer, &self.server) {
            Ok(begun) => begun,
            Err((code, _)) => {
                let code = match code {
                    Code::Overloaded => RequestErrorCode::ExcessiveLoad,
                    _ => RequestErrorCode::InternalError,
                };
                let _ = subscribed.close(ServeError::Closed(code as u64));
                return;
            }
        };
        let len_max = begun.len_max(self.bridge.config());
        let ends = (SERVER_TO_CLIENT, CLIENT_TO_SERVER);
        let session = match Session::open(&self.link, &id, ends, subscribed, len_max) {
            Ok(session) => session,
            Err(error) => return tracing::debug!(%error, "an MCP session that did not begin"),
        };
        let (client, told) = mpsc::channel(MESSAGES_READY_MAX);
        let (to, heard) = mpsc::channel(MESSAGES_READY_MAX);
        let mut rest = None;
        let wire = async {
            match session.run(requests, to, told).await {
                Ok(passed) => rest = Some(passed),
                Err(error) => {
                    tracing::info!(peer = %self.peer, server = self.server, %error, "an MCP session ends");
                }
            }
        };
        self.bridge.clone().run(self.peer.clone(), begun, (client, heard), wire).await;
        if let Some(rest) = rest.filter(|rest| rest.all_sent)
            && let Ok(_place) = self.lingering.try_acquire()
        {
            drop(rest.reading);
            let mut answering = rest.answering;
            let _ = tokio::time::timeout(LINGERING_TIME_MAX, answering.join_next()).await;
        }
    }
}

/// Serves a subscription one object.
async fn once(subscribed: Subscribed, object: Bytes) {
    let Ok((outgoing, serve)) = Outgoing::accept(subscribed) else { return };
    let publish = async move {
        let _ = outgoing.show(0, DISCOVERY_PRIORITY, object).await; // who is gone needs none
    };
    let _ = tokio::join!(serve, publish);
}

/// Both tracks of a session.
struct Session {
    link: Link,
    namespace: TrackNamespace,
    ours: &'static str,
    theirs: &'static str,
    outgoing: Outgoing,
    serving: JoinSet<Result<(), SessionError>>,
    len_max: usize,
}

impl Session {
    /// Accepts the subscription to our track.
    fn open(
        link: &Link,
        id: &str,
        (ours, theirs): (&'static str, &'static str),
        subscribed: Subscribed,
        len_max: usize,
    ) -> Result<Self, TrackError> {
        let (outgoing, serve) = Outgoing::accept(subscribed)?;
        let mut serving = JoinSet::new();
        serving.spawn(serve);
        let (link, namespace) = (link.clone(), control(id));
        Ok(Self { link, namespace, ours, theirs, outgoing, serving, len_max })
    }

    /// Subscribes to the other track; then passes messages until what is told ends and has arrived, or the other
    /// side is gone. Dropped before, as when the node stops, it closes the connection: the other side is not to take
    /// for all what came so far.
    async fn run(
        self,
        requests: Requests,
        to: mpsc::Sender<Result<Vec<u8>, LineError>>,
        told: mpsc::Receiver<Vec<u8>>,
    ) -> Result<Rest, LinkError> {
        let of = (self.namespace.clone(), self.theirs);
        let incoming = self.link.subscribe(of.0.clone(), of.1, self.len_max).await?;
        let inbound = Inbound::new(self.link.clone(), incoming, of, self.len_max);
        let connection = self.link.connection().clone();
        let pass = self.pass(inbound, requests, to, told);
        tokio::pin!(pass);
        let mut broken = BrokenOff(Some(connection)); // after what it is to be dropped before
        let rest = pass.await;
        broken.0 = None;
        Ok(rest)
    }

    /// Passes messages until what is told ends and has arrived, or nobody is there to have it. The other track is
    /// read for as long as the value that it gives is there.
    async fn pass(
        self,
        inbound: Inbound,
        requests: Requests,
        to: mpsc::Sender<Result<Vec<u8>, LineError>>,
        told: mpsc::Receiver<Vec<u8>>,
    ) -> Rest {
        let Self { link, ours, theirs, outgoing, mut serving, .. } = self;
        let heard = Arc::new(Heard::default());
        let outbound = Outbound::new(link, outgoing, PRIORITY, heard.clone());
        let (mut answering, mut reading) = (JoinSet::new(), JoinSet::new());
        answering.spawn(ordered::answer(requests, ours, outbound.kept().clone()));
        reading.spawn(async move {
            let read = inbound.run(&to, &heard, |message| Ok(message.into())).await;
            if let Err(error) = read {
                tracing::info!(track = theirs, %error, "a track of an MCP session was lost");
                let _ = to.send(Err(lost(error))).await;
            }
        });
        let served = async move {
            let served = serving.join_next().await;
            served.and_then(Result::ok).unwrap_or(Err(SessionError::Internal))
        };
        let all_sent = outbound.run(served, told).await;
        Rest { all_sent, reading, answering }
    }
}

/// Closes the connection if it is dropped with it.
struct BrokenOff(Option<quinn::Connection>);

impl Drop for BrokenOff {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.close(BROKEN_OFF.into(), b"an MCP session was broken off");
        }
    }
}

/// What goes on of a session of which one side has said all.
struct Rest {
    /// Whether QUIC has brought the other side all that was said.
    all_sent: bool,
    reading: JoinSet<()>,
    answering: JoinSet<()>,
}

fn lost(error: OrderedError) -> LineError {
    LineError::Lost(io::Error::other(error))
}

/// Sessions with the MCP servers behind one peer, in one connection of MOQT that is dialled when it is needed.
#[derive(Debug)]
pub(crate) struct Client {
    dial: Dial,
    peer: AgentId,
    address: String,
    open: tokio::sync::Mutex<Option<Arc<Open>>>,
}

/// A session. It ends when its work is dropped.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) to: mpsc::Sender<Vec<u8>>,
    pub(crate) from: mpsc::Receiver<Result<Vec<u8>, LineError>>,
    /// Told when all that was said has arrived, or nobody is there to have it.
    pub(crate) sent: oneshot::Receiver<()>,
    pub(crate) work: JoinSet<()>,
}

/// A connection. It ends with the last session in it, once another has taken its place.
#[derive(Debug)]
struct Open {
    link: Link,
    _task: JoinSet<()>,
}

/// Why a session does not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BeginError {
    #[error("{peer} is not reached: {source}")]
    Dial { peer: AgentId, source: DialError },
    #[error("{peer} speaks no MOQT with us: {source}")]
    Link { peer: AgentId, source: LinkError },
    #[error("{peer} has no MCP server {server:?} for us: {source}")]
    None { peer: AgentId, server: String, source: LinkError },
    #[error("{peer}: {what}")]
    Document { peer: AgentId, what: String },
    #[error("{peer} does not begin the session: {source}")]
    Refused { peer: AgentId, source: LinkError },
    #[error("{peer} does not subscribe to what we say")]
    Silent { peer: AgentId },
}

impl BeginError {
    /// Whether the connection has had all the requests it may, of ours or of the node's, which then asks nothing back.
    const fn is_spent(&self) -> bool {
        const GOING_AWAY: u64 = RequestErrorCode::GoingAway as u64;
        match self {
            Self::Silent { .. } => true,
            Self::None { source, .. } | Self::Refused { source, .. } => matches!(
                source,
                LinkError::Spent { .. }
                    | LinkError::Refused { source: ServeError::Closed(GOING_AWAY), .. }
            ),
            Self::Dial { .. } | Self::Link { .. } | Self::Document { .. } => false,
        }
    }
}

impl Client {
    pub(crate) fn new(dial: Dial, peer: AgentId, address: String) -> Self {
        Self { dial, peer, address, open: tokio::sync::Mutex::default() }
    }

    /// Begins a session.
    ///
    /// # Errors
    /// [`BeginError`].
    pub(crate) async fn begin(&self, server: &str) -> Result<Begun, BeginError> {
        let open = self.open().await?;
        match self.begin_in(open.clone(), server).await {
            Err(error) if error.is_spent() => {
                self.open.lock().await.take_if(|current| Arc::ptr_eq(current, &open));
                self.begin_in(self.open().await?, server).await
            }
            begun => begun,
        }
    }

    async fn open(&self) -> Result<Arc<Open>, BeginError> {
        let mut current = self.open.lock().await; // one dials, the others wait for it
        if let Some(open) = &*current
            && open.link.connection().close_reason().is_none()
        {
            return Ok(open.clone());
        }
        let dialled = self.dial.to(&self.peer, &self.address, ALPN).await;
        let peer = || self.peer.clone();
        let connection = dialled.map_err(|source| BeginError::Dial { peer: peer(), source })?;
        let failed = |source| BeginError::Link { peer: peer(), source };
        let url = Url::parse(&format!("moqt://{}/", self.address))
            .or_else(|_| Url::parse("moqt://localhost/"))
            .map_err(|_| failed(SessionError::Internal.into()))?;
        let (link, run) = Link::connect(connection, url, Vec::new()).await.map_err(failed)?;
        let mut task = JoinSet::new();
        task.spawn(async move { drop(run.await) });
        let announced = link.clone();
        task.spawn(async move {
            // A node announces what it has custody of; that is for nodes.
            while let Some(announced) = announced.announced().await {
                let _ = announced.reject(RequestErrorCode::Uninterested as u64, "MCP only");
            }
        });
        Ok(current.insert(Arc::new(Open { link, _task: task })).clone())
    }

    /// Loses the connection.
    #[cfg(test)]
    pub(crate) async fn lose(&self) {
        if let Some(open) = &*self.open.lock().await {
            open.link.connection().close(0u32.into(), b"lost");
        }
    }

    async fn begin_in(&self, open: Arc<Open>, server: &str) -> Result<Begun, BeginError> {
        let link = &open.link;
        let peer = || self.peer.clone();
        let none = |source| {
            let server = server.to_owned();
            BeginError::None { peer: peer(), server, source }
        };
        let of = discovery(Some(server));
        let found = link.fetch(of, SESSIONS, (0, 0), DOCUMENT_LEN_MAX).await.map_err(none)?;
        let unread = |what| BeginError::Document { peer: peer(), what };
        let [(0, 0, document)] = found.as_slice() else {
            return Err(unread("its answer is not one document".to_owned()));
        };
        let id = session_of(document).map_err(unread)?;
        let mut requests = link.answer(control(&id));
        let refused = |source| BeginError::Refused { peer: peer(), source };
        let of = (control(&id), SERVER_TO_CLIENT);
        let incoming =
            link.subscribe(of.0.clone(), of.1, MESSAGE_LEN_MAX).await.map_err(refused)?;
        let asked = async {
            while let Some(subscribed) = requests.subscribed.recv().await {
                if subscribed.info.track_name.as_bytes() == CLIENT_TO_SERVER.as_bytes() {
                    return Some(subscribed);
                }
                let _ = subscribed.close(ServeError::NotFound);
            }
            None
        };
        let ended = incoming.closed();
        let asked = async move {
            tokio::select! {
                asked = asked => asked,
                _ = ended => None, // it thought better of it
            }
        };
        let asked = tokio::time::timeout(OPEN_TIME_MAX, asked).await;
        let Ok(Some(subscribed)) = asked else { return Err(BeginError::Silent { peer: peer() }) };
        let ends = (CLIENT_TO_SERVER, SERVER_TO_CLIENT);
        let session = Session::open(link, &id, ends, subscribed, MESSAGE_LEN_MAX);
        let session = session.map_err(|error| refused(error.into()))?;
        let inbound = Inbound::new(link.clone(), incoming, of, MESSAGE_LEN_MAX);
        let (to, told) = mpsc::channel(MESSAGES_READY_MAX);
        let (said, from) = mpsc::channel(MESSAGES_READY_MAX);
        let (all, sent) = oneshot::channel();
        let mut work = JoinSet::new();
        work.spawn(async move {
            let mut rest = session.pass(inbound, requests, said, told).await;
            let _ = all.send(());
            // The answers to what was said last.
            rest.reading.join_next().await;
            drop(open);
        });
        Ok(Begun { to, from, sent, work })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_read_as_it_is_written_and_no_other_id_is_taken() {
        let id = "0123456789abcdef0123456789abcdef";
        let written = document(id, "files");
        assert_eq!(session_of(&written).unwrap(), id);
        let read: Value = serde_json::from_slice(&written).unwrap();
        let tracks = &read["result"]["available_tracks"]["control"];
        assert_eq!(tracks["client_to_server"], format!("mcp/{id}/control/client-to-server"));
        assert_eq!(tracks["server_to_client"], format!("mcp/{id}/control/server-to-client"));
        let with = |id: &str| json!({ "result": { "session_id": id } }).to_string();
        for wrong in ["", "a/b", ".", "a b", &"a".repeat(SESSION_ID_LEN_MAX + 1)] {
            assert!(session_of(with(wrong).as_bytes()).is_err(), "{wrong}");
        }
        for wrong in ["", "{", "{}", r#"{"error":{"code":1,"message":"no"}}"#] {
            assert!(session_of(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
