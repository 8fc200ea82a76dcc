//! Streamable HTTP at `/mcp`, for operators.

use super::conformance::Conformance;
use super::sessions::Sessions;
use super::{Caller, Server, stopped};
use crate::api::error::ApiError;
use crate::api::listen::holding;
use crate::node::NodeHandle;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use rmcp::ServerHandler;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use std::borrow::Cow;
use std::sync::{Arc, Once};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::sync::watch::Receiver;

/// How long a body may take from its first byte to its last.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// How often a quiet stream says that it is alive.
const ALIVE_EVERY: Duration = Duration::from_secs(15);
/// The header with the session of a client.
const SESSION: &str = "mcp-session-id";

/// The route of MCP. Who may use it is for the caller to see to.
pub(crate) fn router(node: NodeHandle, stop: Receiver<bool>) -> Router {
    let server = {
        let (node, stop) = (node.clone(), stop.clone());
        move || Server::new(node.clone(), Caller::Operator, stop.clone())
    };
    if node.config().conformance {
        let shared = Conformance::shared();
        return surface(&node, stop, move || Conformance::new(server(), shared.clone()));
    }
    surface(&node, stop, server)
}

fn surface<S: ServerHandler>(
    node: &NodeHandle,
    stop: Receiver<bool>,
    server: impl Fn() -> S + Send + Sync + 'static,
) -> Router {
    let limits = &node.config().mcp;
    // Who may ask, from where, was decided before, by the same rules as for the rest of the API.
    let config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .with_sse_keep_alive(Some(ALIVE_EVERY))
        .with_max_request_body_bytes(limits.request_len_max);
    let idle = Duration::from_secs(limits.session_idle_seconds);
    let sessions = Arc::new(Sessions::new(limits.sessions_max, idle));
    let mcp = Surface {
        places: Arc::new(Semaphore::new(limits.requests_max.min(Semaphore::MAX_PERMITS))),
        service: StreamableHttpService::new(move || Ok(server()), sessions.clone(), config),
        sessions,
        node: node.clone(),
        stop,
        stopping: Once::new(),
    };
    Router::new().route("/mcp", any(call::<S>)).with_state(Arc::new(mcp))
}

/// What the handler has.
struct Surface<S> {
    service: StreamableHttpService<S, Sessions>,
    sessions: Arc<Sessions>,
    /// Requests at a time, streams among them.
    places: Arc<Semaphore>,
    node: NodeHandle,
    stop: Receiver<bool>,
    stopping: Once,
}

/// As much of a message as tells whether it begins a session.
#[derive(Deserialize)]
struct Beginning<'a> {
    #[serde(borrow)]
    method: Option<Cow<'a, str>>,
}

async fn call<S: ServerHandler>(State(mcp): State<Arc<Surface<S>>>, request: Request) -> Response {
    match mcp.answer(request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

impl<S: ServerHandler> Surface<S> {
    async fn answer(&self, request: Request) -> Result<Response, ApiError> {
        self.end_with_the_node();
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let max = self.node.config().mcp.requests_max;
            self.busy(
                "busy",
                format!("{max} requests are being answered, the limit (mcp.requests_max)"),
            )
        })?;
        let (parts, body) = request.into_parts();
        let body = if parts.method == Method::POST { self.body(body).await? } else { Bytes::new() };
        if begins_session(&parts.headers, &body) {
            self.sessions.room().await.map_err(|full| self.busy("sessions", full.to_string()))?;
        }
        let response = self.service.handle(Request::from_parts(parts, Body::from(body))).await;
        Ok(response.map(|body| holding(Body::new(body), place)))
    }

    /// Ends sessions and streams when the node stops. A router is made outside of any runtime, so
    /// this waits for the first request.
    fn end_with_the_node(&self) {
        self.stopping.call_once(|| {
            let (stop, token) = (self.stop.clone(), self.service.config.cancellation_token.clone());
            tokio::spawn(async move {
                stopped(stop).await;
                token.cancel();
            });
        });
    }

    async fn body(&self, body: Body) -> Result<Bytes, ApiError> {
        let max = self.node.config().mcp.request_len_max;
        match tokio::time::timeout(BODY_TIME_MAX, axum::body::to_bytes(body, max)).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(error)) if crate::a2a::http::is_length_limit(&error) => {
                let message =
                    format!("the body is over the limit of {max} bytes (mcp.request_len_max)");
                Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message))
            }
            Ok(Err(error)) => Err(ApiError::malformed(error.to_string())),
            Err(_) => {
                let message = format!("the body took longer than {} s", BODY_TIME_MAX.as_secs());
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message))
            }
        }
    }

    fn busy(&self, code: &'static str, message: String) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
            .after(Some(self.node.config().custody.refuse_retry_after_ms))
    }
}

fn begins_session(headers: &HeaderMap, body: &[u8]) -> bool {
    !headers.contains_key(SESSION)
        && serde_json::from_slice::<Beginning<'_>>(body)
            .is_ok_and(|message| message.method.as_deref() == Some("initialize"))
}
