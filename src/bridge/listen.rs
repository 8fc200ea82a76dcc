//! `abhyasa mcp proxy --listen`: Streamable HTTP for clients on this machine (MCP 2026-07-28, and
//! 2025-11-25 with its sessions).

use super::MESSAGE_LEN_MAX;
use super::channel::{self, Do};
use super::link::Far;
use super::message::{Form, Message};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::Stream;

/// Sessions of the time of `initialize`: fewer than a peer may have at the node.
const SESSIONS_MAX: usize = 32;
/// How long a session may be idle.
const SESSION_IDLE_MAX: Duration = Duration::from_secs(600);
/// Calls that are not answered, of all clients; fewer than one session at the node may have.
const CALLS_MAX: usize = 200;
/// How often idle sessions are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// What is told of a call and not taken yet; the rest is lost, but not the answer.
const TOLD_MAX: usize = 64;
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
const INVALID: i64 = -32_600;
/// JSON-RPC: no such method.
const NO_METHOD: i64 = -32_601;
/// JSON-RPC: wrong parameters.
const WRONG_PARAMS: i64 = -32_602;
/// MCP: a version that is not spoken.
const NO_VERSION: i64 = -32_022;
/// MCP: header and body differ.
const MISMATCH: i64 = -32_020;

/// Serves clients until `stop`.
///
/// # Errors
/// The listener is broken.
pub(crate) async fn serve(
    far: Far,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let hub = Arc::new(Hub {
        far,
        sessions: Mutex::default(),
        shared: Mutex::default(),
        numbers: AtomicU64::new(1),
        calls: Arc::new(tokio::sync::Semaphore::new(CALLS_MAX)),
    });
    let router = Router::new()
        .route("/mcp", axum::routing::post(post).get(get).delete(delete))
        .layer(middleware::from_fn(of_this_machine))
        .layer(DefaultBodyLimit::max(MESSAGE_LEN_MAX))
        .with_state(hub.clone());
    let sweep = async {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            let mut sessions = hub.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.retain(|_, way| !way.todo.is_closed() && way.idle() < SESSION_IDLE_MAX);
        }
    };
    tokio::select! {
        served = axum::serve(listener, router).into_future() => served,
        () = sweep => Ok(()),
        () = stop => Ok(()),
    }
}

/// Refuses web pages: a browser names the page in `Origin`, or its own host in `Host` after DNS
/// rebinding.
async fn of_this_machine(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let local = |host: &str| {
        let host = host.parse::<Authority>();
        host.is_ok_and(|host| {
            let name = host.host().trim_matches(['[', ']']);
            name.eq_ignore_ascii_case("localhost")
                || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
        })
    };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if headers.contains_key(header::ORIGIN) || !host.is_some_and(local) {
        let what = "this proxy answers to programs of this machine, at a loopback name or address";
        return error(StatusCode::FORBIDDEN, &Value::Null, INVALID, what);
    }
    next.run(request).await
}

fn error(status: StatusCode, id: &Value, code: i64, what: &str) -> Response {
    let body = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": what } });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// A way to the server.
#[derive(Clone, Debug)]
struct Way {
    todo: mpsc::Sender<Do>,
    used: Arc<Mutex<Instant>>,
}

impl Way {
    fn open(far: &Far, of_one: bool) -> Self {
        let (todo, asked) = mpsc::channel(ASKED_MAX);
        tokio::spawn(channel::run(far.held(), of_one, asked)); // it ends when nobody can ask
        Self { todo, used: Arc::new(Mutex::new(Instant::now())) }
    }

    fn idle(&self) -> Duration {
        self.used.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    async fn ask(&self, what: Do) -> bool {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.todo.send(what).await.is_ok()
    }
}

struct Hub {
    far: Far,
    sessions: Mutex<HashMap<String, Way>>,
    /// Of all clients without sessions.
    shared: Mutex<Option<Way>>,
    numbers: AtomicU64,
    calls: Arc<tokio::sync::Semaphore>,
}

impl Hub {
    fn shared(&self) -> Way {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.as_ref().filter(|way| !way.todo.is_closed()) {
            Some(way) => way.clone(),
            None => shared.insert(Way::open(&self.far, false)).clone(),
        }
    }

    /// A session that begins; it is kept once its opening was answered.
    fn begin(&self) -> Option<(String, Way)> {
        let id = crate::a2a::random_id().ok()?;
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, way| !way.todo.is_closed());
        (sessions.len() < SESSIONS_MAX).then(|| (id, Way::open(&self.far, true)))
    }

    fn keep(&self, id: &str, way: Way) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.insert(id.to_owned(), way);
    }

    /// The session that a request names; `None` if it names none.
    fn session(&self, headers: &HeaderMap) -> Option<Result<Way, Box<Response>>> {
        let id = headers.get(SESSION)?.to_str().unwrap_or_default();
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, way| !way.todo.is_closed());
        let way = sessions.get(id).cloned();
        Some(way.ok_or_else(|| {
            Box::new(error(StatusCode::NOT_FOUND, &Value::Null, INVALID, "no such session"))
        }))
    }
}

async fn post(State(hub): State<Arc<Hub>>, headers: HeaderMap, body: Bytes) -> Response {
    let mut message = match Message::parse(&body) {
        Ok(message) => message,
        Err(what) => {
            return error(StatusCode::BAD_REQUEST, &Value::Null, INVALID, &what.to_string());
        }
    };
    let session = match hub.session(&headers) {
        Some(Ok(way)) => Some(way),
        Some(Err(response)) => return *response,
        None => None,
    };
    let (id, method) = match &message.form {
        Form::Request { id, method } => (id.clone(), method.clone()),
        Form::Notification { .. } | Form::Response { .. } => {
            let way = session.unwrap_or_else(|| hub.shared());
            let taken = way.ask(Do::Tell(message)).await;
            return if taken { StatusCode::ACCEPTED } else { StatusCode::BAD_GATEWAY }
                .into_response();
        }
    };
    if let Err(what) = check_headers(&headers, &message, &method) {
        return error(StatusCode::BAD_REQUEST, &id, MISMATCH, &what);
    }
    let Ok(place) = hub.calls.clone().try_acquire_owned() else {
        let what = format!("{CALLS_MAX} calls run, the limit");
        return error(
            StatusCode::TOO_MANY_REQUESTS,
            &id,
            super::message::Code::Overloaded as i64,
            &what,
        );
    };
    if let Some(refusal) = hub.far.hold(&mut message).await {
        let json = [(header::CONTENT_TYPE, "application/json")];
        return (StatusCode::OK, json, refusal.to_vec()).into_response();
    }
    let opened = if session.is_none() && method == "initialize" {
        match hub.begin() {
            Some(opened) => Some(opened),
            None => {
                let what = format!("{SESSIONS_MAX} sessions are open, the limit");
                let code = super::message::Code::Overloaded as i64;
                return error(StatusCode::TOO_MANY_REQUESTS, &id, code, &what);
            }
        }
    } else {
        None
    };
    let of_session = session.is_some() || opened.is_some();
    let way = session.or_else(|| opened.as_ref().map(|(_, way)| way.clone()));
    let way = way.unwrap_or_else(|| hub.shared());
    let number = hub.numbers.fetch_add(1, Ordering::Relaxed);
    let (reply, mut replies) = mpsc::channel(TOLD_MAX);
    let Ok(answer) = reply.clone().try_reserve_owned() else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response(); // an empty channel has room
    };
    // Without sessions to go away is to cancel (MCP 2026-07-28 §Cancellation).
    let gone = Gone { way: way.clone(), number: (!of_session).then_some(number), _place: place };
    let lost = || {
        let what = "the way to the server ended";
        error(StatusCode::BAD_GATEWAY, &id, super::message::Code::Lost as i64, what)
    };
    if !way.ask(Do::Call { message, reply, answer, number }).await {
        return lost();
    }
    let Some(first) = replies.recv().await else { return lost() };
    let opens = opened.filter(|_| first.error_code().is_none());
    let mut response = if matches!(first.form, Form::Response { .. }) {
        gone.answered();
        let status = match first.error_code() {
            Some(NO_METHOD) if !of_session => StatusCode::NOT_FOUND,
            Some(WRONG_PARAMS | NO_VERSION) if !of_session => StatusCode::BAD_REQUEST,
            _ => StatusCode::OK,
        };
        (status, [(header::CONTENT_TYPE, "application/json")], first.to_vec()).into_response()
    } else {
        events(Told { first: Some(first), replies, gone: Some(gone) })
    };
    if let Some((id, way)) = opens
        && let Ok(value) = HeaderValue::try_from(&id)
    {
        hub.keep(&id, way);
        response.headers_mut().insert(SESSION, value);
    }
    response
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

/// The stream of what belongs to no call, in the era of sessions.
async fn get(State(hub): State<Arc<Hub>>, headers: HeaderMap) -> Response {
    let way = match hub.session(&headers) {
        Some(Ok(way)) => way,
        Some(Err(response)) => return *response,
        None => return StatusCode::METHOD_NOT_ALLOWED.into_response(),
    };
    let (hears, replies) = mpsc::channel(TOLD_MAX);
    if !way.ask(Do::Hear(hears)).await {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    events(Told { first: None, replies, gone: None })
}

async fn delete(State(hub): State<Arc<Hub>>, headers: HeaderMap) -> Response {
    let id = headers.get(SESSION).and_then(|id| id.to_str().ok()).unwrap_or_default();
    let mut sessions = hub.sessions.lock().unwrap_or_else(PoisonError::into_inner);
    match sessions.remove(id) {
        Some(_) => StatusCode::NO_CONTENT.into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Tells the way that the client of a call went away, unless it was answered.
struct Gone {
    way: Way,
    number: Option<u64>,
    _place: tokio::sync::OwnedSemaphorePermit,
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

/// What is told of a call, up to its response.
struct Told {
    first: Option<Message>,
    replies: mpsc::Receiver<Message>,
    gone: Option<Gone>,
}

impl Stream for Told {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = match self.first.take() {
            Some(first) => Some(first),
            None => std::task::ready!(self.replies.poll_recv(cx)),
        };
        let Some(message) = next else { return Poll::Ready(None) };
        if matches!(message.form, Form::Response { .. })
            && let Some(gone) = self.gone.take()
        {
            gone.answered();
        }
        let data = String::from_utf8_lossy(&message.to_vec()).into_owned();
        Poll::Ready(Some(Ok(Event::default().data(data))))
    }
}

fn events(told: Told) -> Response {
    let alive = KeepAlive::new().interval(ALIVE_EVERY);
    let mut response = Sse::new(told).keep_alive(alive).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.map(Body::new)
}
