//! HTTP/3 on the UDP port of the node (RFC 9114): the routes of peers, of A2A and of MCP servers, for peers known by
//! their certificates. The operator's routes are not here: they trust a machine, or a token.

use super::auth::Certified;
use super::listen::IDLE_TIME_MAX;
use crate::bridge::Connected;
use crate::calls::{Incoming, Serving};
use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::{Request, Response, StatusCode};
use bytes::Buf;
use proto::id::AgentId;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tower_service::Service as _;

/// The error code of a server that has too much to do (RFC 9114 §8.1).
pub(crate) const EXCESSIVE_LOAD: u32 = 0x107;
/// Requests of one connection at a time; its streams wait beyond.
pub(crate) const REQUESTS_MAX: u32 = 256;
/// Bytes of a request's head, as HTTP/3 counts them.
pub(crate) const HEAD_LEN_MAX: u64 = 64 * 1024;
/// Bytes of bodies that are not answered yet, of all connections; a further request is refused.
const BODIES_LEN_MAX: usize = 128 * 1024 * 1024;
/// How long a request may take from its first byte to its last.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a client may take to acknowledge the last answers when the server stops.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_millis(500);

type Stream = h3::server::RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;
type Resolver = h3::server::RequestResolver<h3_quinn::Connection, Bytes>;

/// What every connection has.
#[derive(Clone)]
pub(crate) struct Http3 {
    pub(crate) router: Router,
    pub(crate) body_len_max: usize,
    pub(crate) serving: Serving,
    /// Room for bodies, in bytes.
    bodies: Arc<Semaphore>,
}

impl Http3 {
    pub(crate) fn new(router: Router, body_len_max: usize, serving: Serving) -> Self {
        let bodies = Arc::new(Semaphore::new(BODIES_LEN_MAX));
        Self { router, body_len_max, serving, bodies }
    }

    /// Serves connections until the server stops; then lets requests in progress end.
    pub(crate) async fn serve(self, connections: mpsc::Receiver<Incoming>) {
        let serving = self.serving.clone();
        let serve = |quic, peer| self.clone().connection(quic, peer);
        serving.connections(connections, EXCESSIVE_LOAD.into(), serve).await;
    }

    async fn connection(self, quic: quinn::Connection, peer: AgentId) {
        quic.set_max_concurrent_bi_streams(REQUESTS_MAX.into());
        let built = h3::server::builder()
            .max_field_section_size(HEAD_LEN_MAX)
            .build(h3_quinn::Connection::new(quic.clone()))
            .await;
        let mut http = match built {
            Ok(http) => http,
            Err(error) => return tracing::debug!(%peer, %error, "no HTTP/3"),
        };
        let connected = Connected::default(); // as do sessions
        let mut requests = JoinSet::new(); // they end when this does
        let stops = loop {
            tokio::select! {
                biased;
                Some(_) = requests.join_next() => {}
                () = self.serving.stopped() => {
                    let _ = http.shutdown(0).await;
                    break true;
                }
                accepted = http.accept() => match accepted {
                    Ok(Some(resolver)) => {
                        let of = (Certified(peer.clone()), connected.clone());
                        requests.spawn(self.clone().request(resolver, of));
                    }
                    Ok(None) => break false,
                    Err(error) => {
                        // Nobody is there to be answered.
                        return tracing::debug!(%peer, %error, "an HTTP/3 connection ended");
                    }
                },
            }
        };
        tokio::select! {
            biased;
            () = async { while requests.join_next().await.is_some() {} } => {}
            _ = quic.closed() => return,
        }
        if stops {
            // To drop the connection closes it, with what is not acknowledged.
            let _ = tokio::time::timeout(LAST_WORDS_TIME_MAX, quic.closed()).await;
        }
    }

    /// Answers one request. `None`: the client is gone, or took too long.
    async fn request(
        mut self,
        resolver: Resolver,
        (certified, connected): (Certified, Connected),
    ) -> Option<()> {
        let taken = tokio::time::timeout(REQUEST_TIME_MAX, async {
            let (head, mut stream) = resolver.resolve_request().await.ok()?;
            let body = read(&mut stream, self.body_len_max, &self.bodies).await;
            Some((head, stream, body))
        });
        let (head, mut stream, body) = taken.await.ok()??;
        let response = match body {
            Ok((body, _room)) => {
                let (mut parts, ()) = head.into_parts();
                parts.extensions.insert(certified);
                parts.extensions.insert(connected);
                let Ok(response) =
                    self.router.call(Request::from_parts(parts, Body::from(body))).await;
                response
            }
            Err(status) => {
                let mut response = Response::new(Body::empty());
                *response.status_mut() = status;
                response
            }
        };
        let (parts, mut body) = response.into_parts();
        in_time(stream.send_response(Response::from_parts(parts, ()))).await?;
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            if let Ok(data) = frame.ok()?.into_data() {
                in_time(stream.send_data(data)).await?;
            }
        }
        in_time(stream.finish()).await
    }
}

/// A body within a limit, in bytes, with the room it takes; or the status of the refusal.
async fn read(
    stream: &mut Stream,
    max: usize,
    bodies: &Arc<Semaphore>,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), StatusCode> {
    let (mut body, mut room) = (Vec::new(), None::<OwnedSemaphorePermit>);
    loop {
        match stream.recv_data().await {
            Ok(Some(mut data)) => {
                if body.len() + data.remaining() > max {
                    return Err(StatusCode::PAYLOAD_TOO_LARGE);
                }
                let len = u32::try_from(data.remaining()).unwrap_or(u32::MAX);
                let Ok(more) = bodies.clone().try_acquire_many_owned(len) else {
                    return Err(StatusCode::SERVICE_UNAVAILABLE);
                };
                match &mut room {
                    Some(room) => room.merge(more),
                    None => room = Some(more),
                }
                while data.has_remaining() {
                    let chunk = data.chunk();
                    let len = chunk.len();
                    body.extend_from_slice(chunk);
                    data.advance(len);
                }
            }
            Ok(None) => return Ok((body, room)),
            Err(_) => return Err(StatusCode::BAD_REQUEST),
        }
    }
}

/// A client that does not take what it asked for loses it.
async fn in_time<T, E>(sent: impl Future<Output = Result<T, E>>) -> Option<T> {
    tokio::time::timeout(IDLE_TIME_MAX, sent).await.ok()?.ok()
}
