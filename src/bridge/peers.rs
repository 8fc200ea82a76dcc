//! The MCP servers behind this node as Streamable HTTP, at `/mcp/{server}` over HTTP/3, for peers by their certificates.

use super::http3::PATH;
use super::hub::{self, Hub, Room};
use super::link::{Far, Link};
use super::message::{Code, Form, Message};
use super::session::Bridge;
use super::{MESSAGE_LEN_MAX, MESSAGES_READY_MAX};
use crate::api::Certified;
use crate::calls::LineError;
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use proto::id::AgentId;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc;
use tokio::sync::watch::Receiver;
use tokio::task::JoinSet;

/// What the requests of one connection share: sessions end with it, as those over native QUIC do with their stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connected(Arc<Hubs>);

#[derive(Debug, Default)]
struct Hubs {
    room: Room,
    /// By server; servers are listed.
    of: Mutex<BTreeMap<String, Arc<Hub>>>,
}

/// What every request has.
#[derive(Clone)]
struct Front {
    bridge: Arc<Bridge>,
    stop: Receiver<bool>,
}

impl Connected {
    fn hub(&self, front: &Front, peer: &AgentId, server: &str) -> Arc<Hub> {
        let mut hubs = self.0.of.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            let far = Far::here(front.bridge.clone(), peer.clone(), server.to_owned());
            Arc::new(Hub::new(far, true, self.0.room.clone(), front.stop.clone()))
        };
        hubs.entry(server.to_owned()).or_insert_with(new).clone()
    }
}

/// The route of the servers, until `stop`.
pub(crate) fn router(bridge: Arc<Bridge>, stop: Receiver<bool>) -> Router {
    let route = format!("{PATH}/{{server}}");
    Router::new().route(&route, any(call)).with_state(Front { bridge, stop })
}

async fn call(
    State(front): State<Front>,
    Path(server): Path<String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let (peer, connected) = match (parts.extensions.get(), parts.extensions.get::<Connected>()) {
        (Some(Certified(peer)), Some(connected)) => (peer.clone(), connected.clone()),
        _ => return StatusCode::UNAUTHORIZED.into_response(),
    };
    let Ok(body) = axum::body::to_bytes(body, MESSAGE_LEN_MAX).await else {
        let what = format!("a message of more than {MESSAGE_LEN_MAX} bytes");
        let code = Code::Envelope as i64;
        return hub::error(StatusCode::PAYLOAD_TOO_LARGE, &Value::Null, code, &what);
    };
    let refused = if *front.stop.borrow() {
        Some((StatusCode::SERVICE_UNAVAILABLE, "the node stops".to_owned()))
    } else if !front.bridge.is_for(&peer, &server) {
        Some((StatusCode::NOT_FOUND, Bridge::none(&peer, &server)))
    } else {
        None
    };
    if let Some((status, what)) = refused {
        let asked = Message::parse(&body).ok();
        let id = match asked.map(|message| message.form) {
            Some(Form::Request { id, .. }) => id,
            _ => Value::Null,
        };
        return hub::error(status, &id, Code::Unavailable as i64, &what);
    }
    let hub = connected.hub(&front, &peer, &server);
    match parts.method {
        Method::POST => hub.post(&parts.headers, &body).await,
        Method::GET => hub.get(&parts.headers).await,
        Method::DELETE => hub.delete(&parts.headers),
        _ => StatusCode::METHOD_NOT_ALLOWED.into_response(),
    }
}

/// Begins a session of `peer` with a server behind this node.
pub(super) fn begin(
    bridge: &Arc<Bridge>,
    peer: &AgentId,
    server: &str,
) -> Result<Link, (Code, String)> {
    let begun = bridge.begin(peer, server)?;
    let len_max = begun.len_max(bridge.config());
    let (to, mut told) = mpsc::channel::<Vec<u8>>(MESSAGES_READY_MAX);
    let (says, heard) = mpsc::channel(1);
    let (client, mut answers) = mpsc::channel::<Vec<u8>>(MESSAGES_READY_MAX);
    let (said, from) = mpsc::channel(MESSAGES_READY_MAX);
    let mut work = JoinSet::new();
    work.spawn(async move {
        while let Some(line) = told.recv().await {
            if line.len() > len_max {
                let _ = says.send(Err(LineError::TooLong { max: len_max })).await;
                return;
            }
            if says.send(Ok(line)).await.is_err() {
                return;
            }
        }
    });
    let wire = async move {
        while let Some(answer) = answers.recv().await {
            if said.send(answer).await.is_err() {
                return; // nobody listens
            }
        }
    };
    work.spawn(bridge.clone().run(peer.clone(), begun, (client, heard), wire));
    Ok(Link { to, from, _work: work })
}
