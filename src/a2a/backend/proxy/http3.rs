//! The agent behind another node, over HTTP/3 (RFC 9114): the JSON-RPC binding at the node's QUIC port, where
//! a certificate says who calls. As over native QUIC, a message of a name is taken once, and events have numbers.

use super::agent::{Ask, Lost};
use super::body::{Answers, CARD_LEN_MAX, Source, bounded, streams};
use super::quic::parameters;
use crate::a2a::http::{CARD_PATH, RPC_PATH};
use crate::api::h3::{HEAD_LEN_MAX, REQUESTS_MAX};
use crate::peers::Dial;
use crate::tls::ALPN_H3;
use axum::http::{self, Method, Request, StatusCode, header};
use bytes::{Buf as _, Bytes};
use h3::client::{RequestStream, SendRequest};
use h3::error::{Code, StreamError};
use proto::id::AgentId;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// Tasks that we follow at a time. Further ones wait, so that there are streams for short calls.
const FOLLOWS_MAX: usize = 192;

const _: () = assert!(FOLLOWS_MAX < REQUESTS_MAX as usize, "there is room for short calls");

type Stream = RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;
type Requests = SendRequest<h3_quinn::OpenStreams, Bytes>;

/// The agent behind a peer's node.
#[derive(Debug)]
pub(crate) struct Http3Agent {
    dial: Dial,
    peer: AgentId,
    address: String,
    silent_max: Duration,
    len_max: usize,
    places: Arc<Semaphore>,
    session: tokio::sync::Mutex<Option<Session>>,
}

/// The connection with the agent's node.
struct Session {
    quic: quinn::Connection,
    requests: Requests,
    /// What it needs to go on; it ends with it.
    _task: JoinSet<()>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("quic", &self.quic).finish_non_exhaustive()
    }
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
        let session = tokio::sync::Mutex::default();
        Self { dial, peer, address, silent_max, len_max, places, session }
    }

    pub(super) const fn peer(&self) -> &AgentId {
        &self.peer
    }

    pub(super) async fn card(&self) -> Result<Value, Lost> {
        let request = self.request(Method::GET, CARD_PATH);
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

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let uri = format!("https://{}{path}", self.address);
        Request::builder().method(method).uri(uri)
    }

    /// Sends a request, and hears the head of the answer.
    async fn send(
        &self,
        request: http::request::Builder,
        body: Bytes,
        place: Option<OwnedSemaphorePermit>,
    ) -> Result<(http::Response<()>, Response), Lost> {
        let request = request.body(()).map_err(unreached)?;
        let said = tokio::time::timeout(self.silent_max, self.say(request, body)).await;
        let said = said.unwrap_or_else(|_| Err(Lost::Unreached("it takes no call".to_owned())));
        let mut stream = said?;
        // An answer begins before the work is done, or the agent counts as silent.
        let head = tokio::time::timeout(self.silent_max, stream.recv_response()).await;
        let head = head.map_err(|_| Lost::silent())?.map_err(broken)?;
        Ok((head, Response { stream, _place: place }))
    }

    /// Says a request. Until all is said, nothing is asked.
    async fn say(&self, request: Request<()>, body: Bytes) -> Result<Stream, Lost> {
        let stream = self.requests().await?.send_request(request).await.map_err(unreached)?;
        let mut saying = Saying(Some(stream));
        let Some(stream) = &mut saying.0 else { return Err(unreached("it has no stream")) };
        let said = async {
            if !body.is_empty() {
                stream.send_data(body).await?;
            }
            stream.finish().await
        };
        match said.await {
            // It has answered already: that this is too long, say.
            Ok(()) | Err(StreamError::RemoteTerminate { .. }) => {}
            Err(error) => return Err(unreached(error)),
        }
        saying.0.take().ok_or_else(|| unreached("it has no stream"))
    }

    /// The connection that there is, or a new one.
    async fn requests(&self) -> Result<Requests, Lost> {
        let mut session = self.session.lock().await; // one dials, the others wait for it
        if let Some(session) = session.as_ref().filter(|open| open.quic.close_reason().is_none()) {
            return Ok(session.requests.clone());
        }
        let quic = self.dial.to(&self.peer, &self.address, ALPN_H3).await.map_err(unreached)?;
        let (mut http, requests) = h3::client::builder()
            .max_field_section_size(HEAD_LEN_MAX)
            .send_grease(false)
            .build(h3_quinn::Connection::new(quic.clone()))
            .await
            .map_err(unreached)?;
        let mut task = JoinSet::new();
        let (ends, peer) = (quic.clone(), self.peer.clone());
        task.spawn(async move {
            let error = http.wait_idle().await;
            tracing::debug!(%peer, %error, "an HTTP/3 connection with the agent's node ended");
            ends.close(u32::try_from(Code::H3_NO_ERROR.value()).unwrap_or_default().into(), b"");
        });
        Ok(session.insert(Session { quic, requests, _task: task }).requests.clone())
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

/// A request that is not said yet. Dropped, it is reset: else its half would end as if it were whole.
struct Saying(Option<Stream>);

impl Drop for Saying {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.0 {
            stream.stop_stream(Code::H3_REQUEST_CANCELLED);
        }
    }
}

/// The body of an answer. Dropped early, the request is canceled, and not what it was about.
pub(super) struct Response {
    stream: Stream,
    _place: Option<OwnedSemaphorePermit>,
}

impl Source for Response {
    async fn chunk(&mut self) -> Result<Option<Bytes>, Lost> {
        let data = self.stream.recv_data().await.map_err(broken)?;
        Ok(data.map(|mut data| data.copy_to_bytes(data.remaining())))
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
