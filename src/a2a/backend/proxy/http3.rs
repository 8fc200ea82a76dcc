//! The agent behind another node, over HTTP/3 (RFC 9114): the JSON-RPC binding at the node's QUIC port, where
//! a certificate says who calls. As over native QUIC, a message of a name is taken once, and events have numbers.

use super::agent::{Ask, Lost};
use super::body::{Answers, CARD_LEN_MAX, Source, bounded, streams};
use super::quic::parameters;
use crate::a2a::http::{CARD_PATH, RPC_PATH};
use crate::api::h3::REQUESTS_MAX;
use crate::http3::{Exchange, Http3};
use crate::peers::Dial;
use axum::http::{self, Method, StatusCode, header};
use bytes::Bytes;
use proto::id::AgentId;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Tasks that we follow at a time. Further ones wait, so that there are streams for short calls.
const FOLLOWS_MAX: usize = 192;

const _: () = assert!(FOLLOWS_MAX < REQUESTS_MAX as usize, "there is room for short calls");

/// The agent behind a peer's node.
#[derive(Debug)]
pub(crate) struct Http3Agent {
    http: Http3,
    silent_max: Duration,
    len_max: usize,
    places: Arc<Semaphore>,
}

fn unreached(error: impl std::fmt::Display) -> Lost {
    Lost::Unreached(error.to_string())
}

fn broken(error: impl std::fmt::Display) -> Lost {
    Lost::Broken(error.to_string())
}

impl Http3Agent {
    pub(super) fn new(
        dial: Dial,
        peer: AgentId,
        address: String,
        silent_max: Duration,
        len_max: usize,
    ) -> Self {
        let places = Arc::new(Semaphore::new(FOLLOWS_MAX));
        Self { http: Http3::new(dial, peer, address), silent_max, len_max, places }
    }

    pub(super) const fn peer(&self) -> &AgentId {
        self.http.peer()
    }

    pub(super) async fn card(&self) -> Result<Value, Lost> {
        let request = self.http.request(Method::GET, CARD_PATH);
        let (head, mut response) = self.send(request, Bytes::new(), None).await?;
        if !head.status().is_success() {
            return Err(Lost::Broken(format!("its card is {}", head.status())));
        }
        let body = bounded(&mut response, CARD_LEN_MAX).await?;
        serde_json::from_slice(&body).map_err(broken)
    }

    /// Its card says at which URL it is called over TCP, which may be that of a proxy; here is none.
    pub(super) async fn ask(&self, ask: Ask<'_>) -> Result<Answers<Response>, Lost> {
        let place = if ["SendStreamingMessage", "SubscribeToTask"].contains(&ask.method) {
            // To wait for those that are followed is no silence of the agent's.
            let place = self.places.clone().acquire_owned().await;
            Some(place.map_err(|_| Lost::Unreached("the node stops".to_owned()))?)
        } else {
            None
        };
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": ask.method, "params": ask.params });
        let mut request = self
            .http
            .request(Method::POST, RPC_PATH)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "text/event-stream, application/json");
        for (name, value) in &parameters(&ask) {
            request = request.header(name, value.as_str().unwrap_or_default());
        }
        let (head, response) = self.send(request, body.to_string().into(), place).await?;
        let content_type = head.headers().get(header::CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        if !head.status().is_success() && content_type.is_none() {
            return Err(refused(head.status()));
        }
        let streams = streams(content_type);
        Ok(Answers::new(response, streams, self.len_max, self.silent_max).numbered())
    }

    /// Sends a request, and hears the head of the answer.
    async fn send(
        &self,
        request: http::request::Builder,
        body: Bytes,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<(http::Response<()>, Response), Lost> {
        let request = request.body(()).map_err(unreached)?;
        let said = tokio::time::timeout(self.silent_max, self.http.say(request, body)).await;
        let said = said.map_err(|_| Lost::Unreached("it takes no call".to_owned()))?;
        let mut exchange = said.map_err(unreached)?;
        // An answer begins before the work is done, or the agent counts as silent.
        let head = tokio::time::timeout(self.silent_max, exchange.head()).await;
        let head = head.map_err(|_| Lost::silent())?.map_err(broken)?;
        Ok((head, Response { exchange, _place: place }))
    }
}

/// What a status without a body says.
fn refused(status: StatusCode) -> Lost {
    if status == StatusCode::SERVICE_UNAVAILABLE {
        return Lost::Unreached(format!("it answers {status}")); // it took nothing
    }
    if status.is_client_error() {
        let message = status.canonical_reason().unwrap_or("refused").to_owned();
        return Lost::Refused { code: status.as_u16().into(), message };
    }
    Lost::Broken(format!("it answers {status}"))
}

/// The body of an answer. Dropped early, the request is canceled, and not what it was about.
pub(super) struct Response {
    exchange: Exchange,
    _place: Option<OwnedSemaphorePermit>,
}

impl Source for Response {
    async fn chunk(&mut self) -> Result<Option<Bytes>, Lost> {
        self.exchange.chunk().await.map_err(broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_taken_is_sent_again_at_once_and_what_is_refused_never() {
        assert!(matches!(refused(StatusCode::SERVICE_UNAVAILABLE), Lost::Unreached(_)));
        assert!(matches!(refused(StatusCode::PAYLOAD_TOO_LARGE), Lost::Refused { code: 413, .. }));
        assert!(matches!(refused(StatusCode::BAD_GATEWAY), Lost::Broken(_)));
    }
}
