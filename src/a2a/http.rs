//! What both HTTP bindings of A2A share: who calls, in which version, with which extensions; bodies
//! and event streams.

use super::A2a;
use super::fault::{Fault, Kind};
use super::operations::Caller;
use super::stream::Events;
use super::{parameters, rest, rpc};
use crate::api::Auth;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::{self, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::sync::watch::Receiver;
use tokio_stream::wrappers::ReceiverStream;

pub(crate) const A2A_VERSION: HeaderName = HeaderName::from_static("a2a-version");
pub(crate) const A2A_EXTENSIONS: HeaderName = HeaderName::from_static("a2a-extensions");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Path of the agent card (A2A §8.2).
pub(crate) const CARD_PATH: &str = "/.well-known/agent-card.json";
/// Path of the JSON-RPC binding.
pub(crate) const RPC_PATH: &str = "/a2a";
/// How long a body may take from its first byte to its last.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// Events ready for one client and not yet taken; behind them the disk has the rest.
const EVENTS_READY_MAX: usize = 4;
/// How often a quiet stream says that it is alive.
const ALIVE_EVERY: Duration = Duration::from_secs(15);

/// What the handlers have.
#[derive(Clone)]
pub(crate) struct Surface {
    pub(crate) a2a: Arc<A2a>,
    pub(crate) auth: Arc<Auth>,
    pub(crate) stop: Receiver<bool>,
}

impl std::fmt::Debug for Surface {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surface").field("a2a", &self.a2a).finish_non_exhaustive()
    }
}

/// The routes of A2A.
pub(crate) fn router(surface: Surface) -> Router {
    Router::new()
        .route(CARD_PATH, get(card))
        .route(RPC_PATH, post(rpc::call))
        .route("/a2a/", post(rpc::call))
        .route("/a2a/rest/{*path}", any(rest::call))
        .with_state(surface)
}

async fn card(State(surface): State<Surface>, headers: HeaderMap) -> Response {
    surface.a2a.card_response(&headers).await
}

/// The values of a query parameter.
pub(crate) fn query(uri: &Uri) -> Vec<(String, String)> {
    axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri)
        .map(|query| query.0)
        .unwrap_or_default()
}

impl Surface {
    /// Who calls.
    pub(crate) fn caller(&self, parts: &Parts) -> Result<Caller, Fault> {
        let headers = &parts.headers;
        let peer = self.auth.caller(parts).map_err(|error| {
            let kind = match error.status() {
                StatusCode::UNAUTHORIZED => Kind::Unauthenticated,
                _ => Kind::PermissionDenied,
            };
            Fault::new(kind, error.message())
        })?;
        let lists = headers.get_all(A2A_EXTENSIONS).iter().filter_map(|list| list.to_str().ok());
        let extensions = parameters::extensions(lists);
        let last_event = headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok());
        let last_event = last_event.and_then(|text| text.parse().ok());
        let key = headers.get(IDEMPOTENCY_KEY).and_then(|value| value.to_str().ok());
        Ok(Caller { peer, extensions, last_event, key: key.map(str::to_owned) })
    }

    /// Refuses versions that are not ours, in a header or a query parameter.
    pub(crate) fn check_version(&self, parts: &Parts) -> Result<(), Fault> {
        let named = parts.headers.get(A2A_VERSION);
        let named = named.map(|value| value.to_str().unwrap_or("?").to_owned()).or_else(|| {
            let mut pairs = query(&parts.uri).into_iter();
            pairs.find(|(name, _)| name.eq_ignore_ascii_case("a2a-version")).map(|(_, value)| value)
        });
        parameters::check_version(named.as_deref())
    }

    /// A body within the limits.
    pub(crate) async fn body(&self, body: Body) -> Result<Bytes, Fault> {
        let max = self.a2a.request_len_max();
        match tokio::time::timeout(BODY_TIME_MAX, axum::body::to_bytes(body, max)).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(error)) if is_length_limit(&error) => {
                let what = format!("over the limit of {max} bytes (a2a.request_len_max)");
                Err(Fault::new(Kind::TooLarge, what))
            }
            Ok(Err(error)) => Err(Fault::new(Kind::InvalidRequest, error.to_string())),
            Err(_) => {
                let what = format!("the body took longer than {} s", BODY_TIME_MAX.as_secs());
                Err(Fault::new(Kind::Timeout, what))
            }
        }
    }

    /// Names the extensions that were activated (A2A §3.2.6).
    pub(crate) async fn activated(&self, caller: &Caller, mut response: Response) -> Response {
        let active = self.a2a.active(caller).await;
        if let Ok(value) = HeaderValue::try_from(active.join(","))
            && !active.is_empty()
        {
            response.headers_mut().insert(A2A_EXTENSIONS, value);
        }
        response
    }

    /// Events as server-sent events; `wrap` makes the data of each.
    pub(crate) fn sse(
        &self,
        mut events: Events,
        wrap: impl Fn(Vec<u8>) -> Vec<u8> + Send + 'static,
    ) -> Response {
        let (ready, stream) = mpsc::channel::<Result<Event, Infallible>>(EVENTS_READY_MAX);
        let mut stop = self.stop.clone();
        let tell = async move {
            loop {
                let event = match events.next().await {
                    Ok(Some(event)) => event,
                    Ok(None) => return,
                    Err(error) => {
                        tracing::error!(%error, "a stream of A2A events cannot be read");
                        return;
                    }
                };
                let data = String::from_utf8_lossy(&wrap(event.body)).into_owned();
                let event = Event::default().id(event.number.to_string()).data(data);
                if ready.send(Ok(event)).await.is_err() {
                    return;
                }
            }
        };
        // Dropped with the response's body, or when the server stops.
        let task = async move {
            tokio::select! {
                biased;
                () = tell => {}
                Ok(_) = stop.wait_for(|stop| *stop) => {} // an error: nobody can tell us
            }
        };
        let stream = Fed { stream: ReceiverStream::new(stream), feeder: Some(Box::pin(task)) };
        let alive = KeepAlive::new().interval(ALIVE_EVERY);
        Sse::new(stream).keep_alive(alive).into_response()
    }
}

/// Whether a body was cut for its length.
pub(crate) fn is_length_limit(error: &axum::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains("length limit") {
            return true;
        }
        cause = error.source();
    }
    false
}

/// A stream with the future that fills it: polled together, so that no task of its own is left when
/// the client is gone.
struct Fed<S> {
    stream: S,
    feeder: Option<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<S: tokio_stream::Stream + Unpin> tokio_stream::Stream for Fed<S> {
    type Item = S::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        if let Some(feeder) = &mut self.feeder
            && feeder.as_mut().poll(cx).is_ready()
        {
            self.feeder = None; // and with it the sender: what is ready is the rest
        }
        std::pin::Pin::new(&mut self.stream).poll_next(cx)
    }
}

/// Headers of a fault beside its body.
pub(crate) fn fault_headers(fault: &Fault, response: &mut Response) {
    let headers = response.headers_mut();
    if let Some(ms) = fault.retry_after_ms {
        headers.insert(header::RETRY_AFTER, ms.div_ceil(1000).max(1).into());
    }
    if fault.kind == Kind::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
}

/// The media type of a body, without parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    text.split(';').next().map(str::trim)
}
