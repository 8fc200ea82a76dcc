//! Watching the node: peers, events, health, metrics.

use super::App;
use super::error::{ApiError, ErrorBody};
use crate::node::PeerStatus;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use proto::event::Event;
use serde::Serialize;
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use utoipa::ToSchema;

/// Events formatted for one observer and not yet read by it; behind them the node's own queue
/// fills, and then it is told how many it lost.
const EVENTS_READY_MAX: usize = 16;

/// Peers of this node.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Peers {
    #[schema(value_type = Vec<PeerSchema>)]
    items: Vec<PeerStatus>,
}

/// One peer, as [`PeerStatus`] serialises.
#[derive(ToSchema)]
#[schema(as = Peer)]
#[expect(dead_code, reason = "described, never made")]
pub(crate) struct PeerSchema {
    /// Its identity.
    id: String,
    /// Whether a session is up.
    connected: bool,
    /// Sessions that are up.
    sessions: usize,
    /// Where it is dialled; absent if this node only accepts.
    address: Option<String>,
}

/// Peers, and whether they are here.
#[utoipa::path(
    get, path = "/v1/peers", tag = "node",
    responses((status = 200, description = "all peers", body = Peers))
)]
pub(crate) async fn peers(State(app): State<App>) -> Json<Peers> {
    Json(Peers { items: app.node.peers() })
}

/// What happens from now on, as server-sent events.
///
/// Each event has its kind as name (`attested`, `terminal`, `escalated`, `warning`, `received`,
/// `reconcile`, `peer_fault`, `session_up`, `session_down`), its JSON as data and a number as id,
/// counted from the start of the stream. An observer that is too slow gets a `lagged` event with the number it
/// `lost`, and goes on; ids count the lost ones too. Escalations are never only here: the inbox
/// keeps them.
#[utoipa::path(
    get, path = "/v1/events", tag = "node",
    responses((status = 200, description = "endless", content_type = "text/event-stream", body = String))
)]
pub(crate) async fn events(
    State(app): State<App>,
) -> Sse<impl Stream<Item = Result<SseEvent, Infallible>>> {
    let (ready, stream) = mpsc::channel(EVENTS_READY_MAX);
    let events = app.node.events();
    tokio::spawn(async move {
        tokio::select! {
            () = tell(events, &ready) => {}
            () = ready.closed() => {}
            () = app.stopped() => {}
        }
    });
    Sse::new(ReceiverStream::new(stream)).keep_alive(KeepAlive::default())
}

/// Puts events into words for one observer, at its pace.
async fn tell(
    mut events: broadcast::Receiver<Arc<Event>>,
    ready: &mpsc::Sender<Result<SseEvent, Infallible>>,
) {
    let mut id = 0u64;
    loop {
        let data = match events.recv().await {
            Ok(event) => {
                id += 1;
                serde_json::to_value(&*event).unwrap_or_default()
            }
            Err(RecvError::Lagged(lost)) => {
                id += lost;
                serde_json::json!({ "event": "lagged", "lost": lost })
            }
            Err(RecvError::Closed) => return,
        };
        let name = data.get("event").and_then(Value::as_str).unwrap_or("event");
        let event = SseEvent::default().event(name).id(id.to_string()).data(data.to_string());
        if ready.send(Ok(event)).await.is_err() {
            return;
        }
    }
}

/// Health of the process.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    ok: bool,
}

/// Whether the process answers.
#[utoipa::path(
    get, path = "/healthz", tag = "node", security(()),
    responses((status = 200, description = "it does", body = Health))
)]
pub(crate) async fn health() -> Json<Health> {
    Json(Health { ok: true })
}

/// Readiness of the node.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Readiness {
    ready: bool,
    /// What is in the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Whether the node takes obligations.
#[utoipa::path(
    get, path = "/readyz", tag = "node", security(()),
    responses(
        (status = 200, description = "it does", body = Readiness),
        (status = 503, description = "recovering, stopping, or the escalation inbox is full", body = Readiness),
    )
)]
pub(crate) async fn readiness(State(app): State<App>) -> (StatusCode, Json<Readiness>) {
    match app.node.readiness() {
        Ok(()) => (StatusCode::OK, Json(Readiness { ready: true, why: None })),
        Err(why) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(Readiness { ready: false, why: Some(why) }))
        }
    }
}

/// Metrics in the text format of OpenMetrics, which Prometheus reads.
#[utoipa::path(
    get, path = "/metrics", tag = "node",
    responses(
        (status = 200, description = "metrics", content_type = "application/openmetrics-text", body = String),
        (status = 401, body = ErrorBody),
    )
)]
pub(crate) async fn metrics(State(app): State<App>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, TYPE)], app.node.metrics().encode()).into_response()
}

/// No such path.
pub(crate) async fn no_route() -> ApiError {
    ApiError::not_found("no such path; GET /openapi.json lists them")
}

/// No such method.
pub(crate) async fn no_method() -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method",
        "this path has other methods; GET /openapi.json lists them",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;
    use proto::id::AgentId;

    #[tokio::test]
    async fn bd1_a_slow_observer_is_told_what_it_lost_and_goes_on() {
        let (sender, events) = broadcast::channel(4);
        let (ready, stream) = mpsc::channel(EVENTS_READY_MAX);
        let peer = AgentId::new("b").unwrap();
        for _ in 0..10 {
            sender.send(Arc::new(Event::SessionUp { peer: peer.clone() })).unwrap();
        }
        drop(sender);
        tell(events, &ready).await;
        drop(ready);
        let body = Sse::new(ReceiverStream::new(stream)).into_response().into_body();
        let text = String::from_utf8(to_bytes(body, 10_000).await.unwrap().to_vec()).unwrap();
        let told: Vec<(&str, &str)> = text
            .split_terminator("\n\n")
            .map(|event| {
                let field = |name| event.lines().find_map(|line| line.strip_prefix(name)).unwrap();
                (field("event: "), field("id: "))
            })
            .collect();
        let up = |id| ("session_up", id);
        assert_eq!(told, [("lagged", "6"), up("7"), up("8"), up("9"), up("10")]);
        assert!(text.contains(r#"data: {"event":"lagged","lost":6}"#), "{text}");
    }
}
