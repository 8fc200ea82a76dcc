//! A server that is reached by sessions, as Streamable HTTP (MCP 2026-07-28, and 2025-11-25 with its sessions).

use super::MESSAGE_LEN_MAX;
use super::channel::{self, Do, Told};
use super::link::Far;
use super::message::{Code, Form, Message};
use crate::api::listen::holding;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_stream::Stream;

/// Sessions with servers, those without an opening among them: fewer than a peer may have at a node.
const SESSIONS_MAX: usize = 33;
/// Calls that are not answered, of all clients; fewer than one session at the node may have.
const CALLS_MAX: usize = 200;
/// What is told of a call and not taken yet; the rest is lost, but not the answer.
const TOLD_MAX: usize = 64;
/// Bytes of all that is told and not read yet; beyond them an answer becomes an error.
const TOLD_LEN_MAX: usize = 16 * MESSAGE_LEN_MAX;
/// Things to do that wait for the way to the server.
const ASKED_MAX: usize = 64;
/// How often a quiet stream says that it is alive.
const ALIVE_EVERY: Duration = Duration::from_secs(15);

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// JSON-RPC: no message.
pub(super) const INVALID: i64 = -32_600;
/// JSON-RPC: no such method.
const NO_METHOD: i64 = -32_601;
/// JSON-RPC: wrong parameters.
const WRONG_PARAMS: i64 = -32_602;
/// MCP: a version that is not spoken.
const NO_VERSION: i64 = -32_022;
/// MCP: header and body differ.
const MISMATCH: i64 = -32_020;

/// An error in answer to `id`.
pub(super) fn error(status: StatusCode, id: &Value, code: i64, what: &str) -> Response {
    let body = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": what } });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// What clients may have at a time.
#[derive(Clone, Debug)]
pub(super) struct Room {
    sessions: Arc<Semaphore>,
    calls: Arc<Semaphore>,
    /// Bytes that they have not read.
    told: Arc<Semaphore>,
}

impl Default for Room {
    fn default() -> Self {
        let of = |max| Arc::new(Semaphore::new(max));
        Self { sessions: of(SESSIONS_MAX), calls: of(CALLS_MAX), told: of(TOLD_LEN_MAX) }
    }
}

/// A way to the server.
#[derive(Clone, Debug)]
struct Way {
    todo: mpsc::Sender<Do>,
    used: Arc<Mutex<Instant>>,
}

impl Way {
    fn idle(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    async fn ask(&self, what: Do) -> bool {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.todo.send(what).await.is_ok()
    }
}

/// The clients of one server.
#[derive(Debug)]
pub(super) struct Hub {
    far: Far,
    /// Whether all clients without sessions are one, which the server may then speak to beside its calls.
    of_one: bool,
    room: Room,
    stop: Receiver<bool>,
    sessions: Mutex<HashMap<String, Way>>,
    /// Of clients without sessions.
    shared: Mutex<Option<Way>>,
    numbers: AtomicU64,
}

impl Hub {
    /// Streams end with `stop`.
    pub(super) fn new(far: Far, of_one: bool, room: Room, stop: Receiver<bool>) -> Self {
        let (sessions, shared) = (Mutex::default(), Mutex::default());
        Self { far, of_one, room, stop, sessions, shared, numbers: AtomicU64::new(1) }
    }

    /// Forgets sessions that are over, or idle for so long.
    pub(super) fn sweep(&self, idle_max: Duration) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, way| !way.todo.is_closed() && way.idle() < idle_max);
    }

    /// A way to the server. It ends when nobody can ask.
    fn open(&self, of_one: bool) -> Option<Way> {
        let place = self.room.sessions.clone().try_acquire_owned().ok()?;
        let (todo, asked) = mpsc::channel(ASKED_MAX);
        let (far, told) = (self.far.held(), self.room.told.clone());
        tokio::spawn(async move {
            channel::run(far, of_one, told, asked).await;
            drop(place);
        });
        Some(Way { todo, used: Arc::new(Mutex::new(Instant::now())) })
    }

    fn shared(&self) -> Option<Way> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(way) = shared.as_ref().filter(|way| !way.todo.is_closed()) {
            return Some(way.clone());
        }
        *shared = None;
        Some(shared.insert(self.open(self.of_one)?).clone())
    }

    /// A session that begins; it is kept once its opening was answered.
    fn begin(&self) -> Option<(String, Way)> {
        let id = crate::a2a::random_id().ok()?;
        self.sweep(Duration::MAX);
        Some((id, self.open(true)?))
    }

    fn keep(&self, id: &str, way: Way) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.insert(id.to_owned(), way);
    }

    /// The session that a request names; `None` if it names none.
    fn session(&self, headers: &HeaderMap) -> Option<Result<Way, Box<Response>>> {
        let id = headers.get(SESSION)?.to_str().unwrap_or_default();
        self.sweep(Duration::MAX);
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let way = sessions.get(id).cloned();
        Some(way.ok_or_else(|| {
            Box::new(error(StatusCode::NOT_FOUND, &Value::Null, INVALID, "no such session"))
        }))
    }

    /// One message of a client, and what it is answered.
    pub(super) async fn post(&self, headers: &HeaderMap, body: &[u8]) -> Response {
        let mut message = match Message::parse(body) {
            Ok(message) => message,
            Err(what) => {
                return error(StatusCode::BAD_REQUEST, &Value::Null, INVALID, &what.to_string());
            }
        };
        let session = match self.session(headers) {
            Some(Ok(way)) => Some(way),
            Some(Err(response)) => return *response,
            None => None,
        };
        let full = |id: &Value| {
            let what = format!("{SESSIONS_MAX} sessions are open, the limit");
            error(StatusCode::TOO_MANY_REQUESTS, id, Code::Overloaded as i64, &what)
        };
        let (id, method) = match &message.form {
            Form::Request { id, method } => (id.clone(), method.clone()),
            Form::Notification { .. } | Form::Response { .. } => {
                let Some(way) = session.or_else(|| self.shared()) else {
                    return full(&Value::Null);
                };
                let taken = way.ask(Do::Tell(message)).await;
                return if taken { StatusCode::ACCEPTED } else { StatusCode::BAD_GATEWAY }
                    .into_response();
            }
        };
        if let Err(what) = check_headers(headers, &message, &method) {
            return error(StatusCode::BAD_REQUEST, &id, MISMATCH, &what);
        }
        let Ok(place) = self.room.calls.clone().try_acquire_owned() else {
            let what = format!("{CALLS_MAX} calls run, the limit");
            return error(StatusCode::TOO_MANY_REQUESTS, &id, Code::Overloaded as i64, &what);
        };
        if let Some(refusal) = self.far.hold(&mut message).await {
            let json = [(header::CONTENT_TYPE, "application/json")];
            return (StatusCode::OK, json, refusal.to_vec()).into_response();
        }
        let begins = session.is_none() && method == "initialize";
        let opened = if begins { self.begin() } else { None };
        let of_session = session.is_some() || begins;
        let way = match (&session, &opened) {
            (Some(way), _) | (None, Some((_, way))) => Some(way.clone()),
            (None, None) if begins => None,
            (None, None) => self.shared(),
        };
        let Some(way) = way else { return full(&id) };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (reply, mut replies) = mpsc::channel(TOLD_MAX);
        let Ok(answer) = reply.clone().try_reserve_owned() else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response(); // an empty channel has room
        };
        // Without sessions to go away is to cancel (MCP 2026-07-28 §Cancellation).
        let gone =
            Gone { way: way.clone(), number: (!of_session).then_some(number), _place: place };
        let lost = || {
            let what = "the way to the server ended";
            error(StatusCode::BAD_GATEWAY, &id, Code::Lost as i64, what)
        };
        if !way.ask(Do::Call { message, reply, answer, number }).await {
            return lost();
        }
        let first = tokio::select! {
            biased;
            first = replies.recv() => first,
            () = crate::mcp::stopped(self.stop.clone()) => Some(stops(&id).into()),
        };
        let Some(first) = first else { return lost() };
        let opens = opened.filter(|_| first.message.error_code().is_none());
        let mut response = if matches!(first.message.form, Form::Response { .. }) {
            gone.answered();
            let Told { message, room } = first;
            let status = match message.error_code() {
                Some(NO_METHOD) if !of_session => StatusCode::NOT_FOUND,
                Some(WRONG_PARAMS | NO_VERSION) if !of_session => StatusCode::BAD_REQUEST,
                _ => StatusCode::OK,
            };
            let json = [(header::CONTENT_TYPE, "application/json")];
            let response = (status, json, message.to_vec()).into_response();
            response.map(|body| holding(body, room))
        } else {
            let events = Events::new(Some(id.clone()), replies, self.stop.clone());
            Events { first: Some(first), gone: Some(gone), ..events }.into_response()
        };
        if let Some((id, way)) = opens
            && let Ok(value) = HeaderValue::try_from(&id)
        {
            self.keep(&id, way);
            response.headers_mut().insert(SESSION, value);
        }
        response
    }

    /// The stream of what belongs to no call, in the era of sessions.
    pub(super) async fn get(&self, headers: &HeaderMap) -> Response {
        let way = match self.session(headers) {
            Some(Ok(way)) => way,
            Some(Err(response)) => return *response,
            None => return StatusCode::METHOD_NOT_ALLOWED.into_response(),
        };
        let (hears, replies) = mpsc::channel(TOLD_MAX);
        if !way.ask(Do::Hear(hears)).await {
            return StatusCode::BAD_GATEWAY.into_response();
        }
        Events::new(None, replies, self.stop.clone()).into_response()
    }

    /// Ends a session.
    pub(super) fn delete(&self, headers: &HeaderMap) -> Response {
        let id = headers.get(SESSION).and_then(|id| id.to_str().ok()).unwrap_or_default();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        match sessions.remove(id) {
            Some(_) => StatusCode::NO_CONTENT.into_response(),
            None => StatusCode::NOT_FOUND.into_response(),
        }
    }
}

/// Of a message that names its version the headers must say what it says (MCP 2026-07-28, Streamable
/// HTTP).
fn check_headers(headers: &HeaderMap, message: &Message, method: &str) -> Result<(), String> {
    let Some(version) = message.meta(META_VERSION).and_then(Value::as_str) else { return Ok(()) };
    let target = match method {
        "tools/call" | "prompts/get" => message.param("name"),
        "resources/read" => message.param("uri"),
        _ => None,
    };
    for (name, body) in [(VERSION, Some(version)), (METHOD, Some(method)), (NAME, target)] {
        let header = headers.get(&name).map(|value| value.to_str().unwrap_or_default());
        if body.is_some() && header != body {
            return Err(format!("{name} is {header:?}, the message says {body:?}"));
        }
    }
    Ok(())
}

/// Tells the way that the client of a call went away, unless it was answered.
struct Gone {
    way: Way,
    number: Option<u64>,
    _place: OwnedSemaphorePermit,
}

impl Gone {
    fn answered(mut self) {
        self.number = None;
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let todo = self.way.todo.clone();
            tokio::spawn(async move { todo.send(Do::Gone(number)).await });
        }
    }
}

/// What a call is answered that runs when the node stops.
fn stops(id: &Value) -> Message {
    let what = "the node stops: whether the call ran is not known";
    Message::error(id, Code::Lost, what, json!({}))
}

/// What is told of a call, up to its response, or of no call.
struct Events {
    /// Of the call.
    id: Option<Value>,
    first: Option<Told>,
    replies: mpsc::Receiver<Told>,
    gone: Option<Gone>,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    stopped: bool,
    /// Room of the event that is on its way.
    sent: Option<OwnedSemaphorePermit>,
}

impl Events {
    fn new(id: Option<Value>, replies: mpsc::Receiver<Told>, stop: Receiver<bool>) -> Self {
        let stop = Box::pin(crate::mcp::stopped(stop));
        Self { id, first: None, replies, gone: None, stop, stopped: false, sent: None }
    }

    fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<Option<Told>> {
        if self.stopped {
            return Poll::Ready(None);
        }
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if let Poll::Ready(told) = self.replies.poll_recv(cx) {
            return Poll::Ready(told);
        }
        std::task::ready!(self.stop.as_mut().poll(cx));
        self.stopped = true;
        Poll::Ready(self.id.as_ref().map(|id| stops(id).into()))
    }

    fn into_response(self) -> Response {
        let alive = KeepAlive::new().interval(ALIVE_EVERY);
        let mut response = Sse::new(self).keep_alive(alive).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response.map(Body::new)
    }
}

impl Stream for Events {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.sent = None; // it was taken
        let Some(Told { message, room }) = std::task::ready!(self.poll_told(cx)) else {
            return Poll::Ready(None);
        };
        self.sent = room;
        if matches!(message.form, Form::Response { .. })
            && !self.stopped
            && let Some(gone) = self.gone.take()
        {
            gone.answered();
        }
        let data = String::from_utf8_lossy(&message.to_vec()).into_owned();
        Poll::Ready(Some(Ok(Event::default().data(data))))
    }
}
