//! HTTP/3 to the node of a peer (RFC 9114), under our certificate: a connection that is dialled when it is needed, and
//! anew when it has ended.

use crate::api::h3::HEAD_LEN_MAX;
use crate::peers::{Dial, DialError};
use crate::tls::ALPN_H3;
use axum::http::{Method, Request, Response, request};
use bytes::{Buf as _, Bytes};
use h3::client::{RequestStream, SendRequest};
use h3::error::{Code, ConnectionError, StreamError};
use proto::id::AgentId;
use std::fmt;
use std::sync::Arc;
use tokio::task::JoinSet;

type Stream = RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

/// The way to one peer's node.
#[derive(Debug)]
pub(crate) struct Http3 {
    dial: Dial,
    peer: AgentId,
    address: String,
    open: tokio::sync::Mutex<Option<Arc<Connection>>>,
}

/// Why a request was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Http3Error {
    #[error("{peer} is not reached: {source}")]
    Dial { peer: AgentId, source: DialError },
    #[error("{peer} speaks no HTTP/3 with us: {source}")]
    Begin { peer: AgentId, source: ConnectionError },
    #[error("{peer} does not take the request: {source}")]
    Request { peer: AgentId, source: StreamError },
}

impl Http3 {
    pub(crate) fn new(dial: Dial, peer: AgentId, address: String) -> Self {
        Self { dial, peer, address, open: tokio::sync::Mutex::default() }
    }

    pub(crate) const fn peer(&self) -> &AgentId {
        &self.peer
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A request for `path` there.
    pub(crate) fn request(&self, method: Method, path: &str) -> request::Builder {
        Request::builder().method(method).uri(format!("https://{}{path}", self.address))
    }

    /// Says a request, over the connection that there is or a new one. Until all is said, nothing is asked.
    pub(crate) async fn say(
        &self,
        request: Request<()>,
        body: Bytes,
    ) -> Result<Exchange, Http3Error> {
        let said = self.connection().await?.say(request, body).await;
        said.map_err(|source| Http3Error::Request { peer: self.peer.clone(), source })
    }

    /// The connection that there is, or a new one.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, Http3Error> {
        let mut open = self.open.lock().await; // one dials, the others wait for it
        if let Some(open) = open.as_ref().filter(|open| open.quic.close_reason().is_none()) {
            return Ok(open.clone());
        }
        let peer = || self.peer.clone();
        let dialled = self.dial.to(&self.peer, &self.address, ALPN_H3).await;
        let quic = dialled.map_err(|source| Http3Error::Dial { peer: peer(), source })?;
        let begun = Connection::begin(quic, &self.peer).await;
        let begun = begun.map_err(|source| Http3Error::Begin { peer: peer(), source })?;
        Ok(open.insert(Arc::new(begun)).clone())
    }
}

/// A connection. It ends when nobody has it any more.
pub(crate) struct Connection {
    quic: quinn::Connection,
    requests: SendRequest<h3_quinn::OpenStreams, Bytes>,
    /// What it needs to go on; it ends with it.
    _task: JoinSet<()>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("quic", &self.quic).finish_non_exhaustive()
    }
}

impl Connection {
    async fn begin(quic: quinn::Connection, peer: &AgentId) -> Result<Self, ConnectionError> {
        let (mut http, requests) = h3::client::builder()
            .max_field_section_size(HEAD_LEN_MAX)
            .send_grease(false)
            .build(h3_quinn::Connection::new(quic.clone()))
            .await?;
        let mut task = JoinSet::new();
        let (ends, peer) = (quic.clone(), peer.clone());
        task.spawn(async move {
            let error = http.wait_idle().await;
            tracing::debug!(%peer, %error, "an HTTP/3 connection with a peer's node ended");
            ends.close(u32::try_from(Code::H3_NO_ERROR.value()).unwrap_or_default().into(), b"");
        });
        Ok(Self { quic, requests, _task: task })
    }

    /// Says a request. Until all is said, nothing is asked.
    pub(crate) async fn say(
        &self,
        request: Request<()>,
        body: Bytes,
    ) -> Result<Exchange, StreamError> {
        let stream = self.requests.clone().send_request(request).await?;
        let mut exchange = Exchange { stream, said: false };
        let said = async {
            if !body.is_empty() {
                exchange.stream.send_data(body).await?;
            }
            exchange.stream.finish().await
        };
        match said.await {
            // It has answered already: that this is too long, say.
            Ok(()) | Err(StreamError::RemoteTerminate { .. }) => {}
            Err(error) => return Err(error),
        }
        exchange.said = true;
        Ok(exchange)
    }

    /// Returns when it has ended.
    pub(crate) async fn closed(&self) {
        self.quic.closed().await;
    }
}

/// A request, and its answer. Dropped early, the rest of the answer is not wanted; what it was about may go on.
pub(crate) struct Exchange {
    stream: Stream,
    said: bool,
}

impl Exchange {
    /// The head of the answer.
    pub(crate) async fn head(&mut self) -> Result<Response<()>, StreamError> {
        self.stream.recv_response().await
    }

    /// The next bytes of its body; `None` at the end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, StreamError> {
        let data = self.stream.recv_data().await?;
        Ok(data.map(|mut data| data.copy_to_bytes(data.remaining())))
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.said {
            // Else its half would end as if it were whole.
            self.stream.stop_stream(Code::H3_REQUEST_CANCELLED);
        }
    }
}
