//! The native QUIC binding, ALPN `abhyasa/1`.
//!
//! One frame is one unidirectional stream, ended by its FIN: the loss of one frame's packets holds
//! up no other frame, and a peer's streams are bounded by QUIC itself. Best-effort frames that fit
//! go as datagrams (RFC 9221). The first frame each side sends is its hello; nothing a peer sends
//! is looked at before it.

use super::carried::Carried;
use crate::driver::{Call, Input};
use crate::router::{Router, SessionOutbox, SessionQueue, ToPeer};
use proto::frame::{Frame, HelloLimits, VERSION};
use proto::id::AgentId;
use proto::limits::{DATAGRAM_LEN_MAX, FRAME_LEN_MAX};
use proto::step::SessionId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, watch};

/// Priority of streams that carry no offers; theirs is 0.
const ANSWER_PRIORITY: i32 = 1;

/// Close codes a peer may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Close {
    Done = 0,
    NotAPeer = 1,
    WrongHello = 2,
    BadFrame = 3,
    Replaced = 4,
}

/// What a session needs to run.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) me: AgentId,
    pub(crate) router: Arc<Router>,
    pub(crate) calls: mpsc::Sender<Call>,
    pub(crate) in_flight_max: usize,
    pub(crate) send_queue_bytes_max: usize,
    pub(crate) per_peer_max: usize,
    pub(crate) frame_timeout: Duration,
    pub(crate) hello_timeout: Duration,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("connection lost: {0}")]
    Connection(#[from] quinn::ConnectionError),
    #[error("hello of {peer}: {why}")]
    Hello { peer: AgentId, why: String },
    #[error("stream of {peer}: {why}")]
    Frame { peer: AgentId, why: String },
    #[error("the node is stopping")]
    Stopping,
}

/// Runs one session with an authenticated peer until its connection is gone.
pub(crate) async fn run(
    context: Context,
    connection: quinn::Connection,
    peer: AgentId,
) -> Result<(), SessionError> {
    let session = context.router.session_id();
    let hello = hello(&context);
    send_frame(&connection, &hello)
        .await
        .map_err(|error| SessionError::Frame { peer: peer.clone(), why: error.to_string() })?;
    let (hello_tx, hello_rx) = watch::channel(None);
    let known = Arc::new(Semaphore::new(0));
    let reader = Reader {
        context: context.clone(),
        connection: connection.clone(),
        peer: peer.clone(),
        session,
        known: known.clone(),
    };
    // The first to fail ends the session; each is polled first in its turn.
    let ended = tokio::try_join!(
        reader.streams(hello_tx),
        reader.datagrams(),
        drive(&context, &connection, &peer, session, hello_rx, &known),
    );
    let result = ended.map(|_| ());
    context.router.remove_session(session);
    let _ = context.calls.send(Call::Input(Input::SessionDown { session })).await;
    let (code, text): (Close, &[u8]) = match &result {
        Err(SessionError::Hello { .. }) => (Close::WrongHello, b"hello refused"),
        Err(SessionError::Frame { .. }) => (Close::BadFrame, b"frame refused"),
        _ => (Close::Done, b"done"),
    };
    connection.close((code as u32).into(), text);
    result
}

fn hello(context: &Context) -> Frame {
    Frame::Hello {
        version: VERSION,
        agent: context.me.clone(),
        limits: HelloLimits {
            frame_len_max: FRAME_LEN_MAX as u64,
            in_flight_max: context.in_flight_max as u64,
            datagram_len_max: DATAGRAM_LEN_MAX as u64,
        },
        features: Vec::new(),
    }
}

/// Brings the session up once the peer's hello is here, then sends what is queued for it.
async fn drive(
    context: &Context,
    connection: &quinn::Connection,
    peer: &AgentId,
    session: SessionId,
    mut hello: watch::Receiver<Option<HelloLimits>>,
    known: &Semaphore,
) -> Result<(), SessionError> {
    let seen = async { hello.wait_for(Option::is_some).await.ok().and_then(|limits| *limits) };
    let limits = tokio::time::timeout(context.hello_timeout, seen).await.ok().flatten();
    let Some(limits) = limits else {
        let why = format!("none within {} ms", context.hello_timeout.as_millis());
        return Err(SessionError::Hello { peer: peer.clone(), why });
    };
    let (queue, outbox) = SessionQueue::new(peer.clone(), context.send_queue_bytes_max);
    for oldest in context.router.add_session(session, queue, context.per_peer_max) {
        tracing::info!(%peer, session = oldest.0, "session given up: over connections_per_peer_max");
        context.router.remove_session(oldest);
        let _ = context.calls.send(Call::Input(Input::SessionDown { session: oldest })).await;
    }
    let window = usize::try_from(limits.in_flight_max).unwrap_or(usize::MAX).max(1);
    let input = Input::SessionUp { session, peer: peer.clone(), window };
    context.calls.send(Call::Input(input)).await.map_err(|_| SessionError::Stopping)?;
    known.close();
    write(connection, peer, outbox, limits, &context.router).await
}

async fn write(
    connection: &quinn::Connection,
    peer: &AgentId,
    mut outbox: SessionOutbox,
    limits: HelloLimits,
    router: &Router,
) -> Result<(), SessionError> {
    let datagram_len = usize::try_from(limits.datagram_len_max).unwrap_or(usize::MAX);
    let mut carried = Carried::default();
    loop {
        let item = tokio::select! {
            biased;
            () = carried.acknowledged() => continue,
            item = outbox.next() => item,
        };
        let sent = match item {
            None => break,
            Some(ToPeer::BestEffort(items)) => {
                best_effort(connection, items, datagram_len, router).await?;
                continue;
            }
            Some(ToPeer::Offers { first_ref, items }) => {
                offers(connection, &mut carried, first_ref, items).await
            }
            Some(item) => send_frames(connection, item.into_frames()).await,
        };
        if let Err(error) = sent {
            return Err(connection.close_reason().map_or_else(
                || SessionError::Frame { peer: peer.clone(), why: error.to_string() },
                SessionError::Connection,
            ));
        }
    }
    // The session was given up for a newer one.
    connection.close((Close::Replaced as u32).into(), b"replaced by a newer session");
    Err(SessionError::Connection(connection.closed().await))
}

/// Sends offers, but for copies of what is still on its way.
async fn offers(
    connection: &quinn::Connection,
    carried: &mut Carried,
    first_ref: u64,
    items: Vec<bytes::Bytes>,
) -> Result<(), quinn::WriteError> {
    let acks = connection.stats().frame_rx.acks;
    for (first_ref, items) in carried.fresh(first_ref, items, acks) {
        for frame in (ToPeer::Offers { first_ref, items }).into_frames() {
            let stream = send_frame(connection, &frame).await?;
            if let Frame::Offers { items, .. } = &frame {
                let stopped = stream.stopped();
                carried.sent(items, async move { drop(stopped.await) });
            }
        }
    }
    Ok(())
}

async fn send_frames(
    connection: &quinn::Connection,
    frames: Vec<Frame>,
) -> Result<(), quinn::WriteError> {
    for frame in frames {
        send_frame(connection, &frame).await?;
    }
    Ok(())
}

/// Packs best-effort obligations into datagrams; what is too large for one goes on a stream.
async fn best_effort(
    connection: &quinn::Connection,
    items: Vec<bytes::Bytes>,
    peer_max: usize,
    router: &Router,
) -> Result<(), SessionError> {
    let max = connection.max_datagram_size().unwrap_or(0).min(peer_max);
    let mut batch: Vec<bytes::Bytes> = Vec::new();
    let mut len = 0;
    let mut large = Vec::new();
    for item in items {
        let item_len = item.len() + 4;
        if item_len + 16 > max {
            large.push(item);
            continue;
        }
        if len + item_len + 16 > max {
            datagram(connection, std::mem::take(&mut batch), router).await?;
            len = 0;
        }
        len += item_len;
        batch.push(item);
    }
    if !batch.is_empty() {
        datagram(connection, batch, router).await?;
    }
    for frame in ToPeer::BestEffort(large).into_frames() {
        if send_frame(connection, &frame).await.is_err() {
            router.metrics.best_effort_dropped.inc();
        }
    }
    Ok(())
}

async fn datagram(
    connection: &quinn::Connection,
    items: Vec<bytes::Bytes>,
    router: &Router,
) -> Result<(), SessionError> {
    let count = items.len() as u64;
    match connection.send_datagram_wait(Frame::BestEffort { items }.encode()).await {
        Ok(()) => Ok(()),
        Err(quinn::SendDatagramError::ConnectionLost(error)) => Err(error.into()),
        Err(_) => {
            router.metrics.best_effort_dropped.inc_by(count);
            Ok(())
        }
    }
}

async fn send_frame(
    connection: &quinn::Connection,
    frame: &Frame,
) -> Result<quinn::SendStream, quinn::WriteError> {
    let mut stream = connection.open_uni().await?;
    if !matches!(frame, Frame::Offers { .. }) {
        // Answers end what is already across; they do not wait behind offers. It cannot fail on a
        // stream that was just opened.
        let _ = stream.set_priority(ANSWER_PRIORITY);
    }
    stream.write_chunk(frame.encode()).await?;
    // Finishing can only fail on a stream that was reset or finished before.
    let _ = stream.finish();
    Ok(stream)
}

#[derive(Clone)]
struct Reader {
    context: Context,
    connection: quinn::Connection,
    peer: AgentId,
    session: SessionId,
    /// Without permits, and closed once the driver has been told of the session: what comes to it
    /// before is dropped. Those who wait at it go on in the order they came in, which a
    /// `watch` channel does not keep.
    known: Arc<Semaphore>,
}

impl Reader {
    /// Takes the peer's streams. Each is read by its own task, so that a lost packet of one does
    /// not hold up another; their number is bounded by the transport's stream limit.
    async fn streams(&self, hello: watch::Sender<Option<HelloLimits>>) -> Result<(), SessionError> {
        let hello = Arc::new(hello);
        let mut tasks = tokio::task::JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Some(done) = tasks.join_next() => {
                    if let Ok(Err(error)) = done {
                        return Err(error);
                    }
                }
                stream = self.connection.accept_uni() => {
                    let (reader, hello, stream) = (self.clone(), hello.clone(), stream?);
                    tasks.spawn(async move { reader.stream(stream, &hello).await });
                }
            }
        }
    }

    async fn stream(
        self,
        mut stream: quinn::RecvStream,
        hello: &watch::Sender<Option<HelloLimits>>,
    ) -> Result<(), SessionError> {
        let read =
            tokio::time::timeout(self.context.frame_timeout, stream.read_to_end(FRAME_LEN_MAX))
                .await;
        let bytes = match read {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(quinn::ReadToEndError::TooLong)) => {
                return Err(self.fault(format!("frame over the limit of {FRAME_LEN_MAX} bytes")));
            }
            Ok(Err(quinn::ReadToEndError::Read(quinn::ReadError::ConnectionLost(error)))) => {
                return Err(error.into());
            }
            // A reset stream carried nothing: its offers are offered again.
            Ok(Err(quinn::ReadToEndError::Read(_))) => return Ok(()),
            Err(_) => {
                let _ = stream.stop((Close::BadFrame as u32).into());
                tracing::debug!(peer = %self.peer, "stream stopped: no whole frame within frame_timeout_ms");
                return Ok(());
            }
        };
        let frame = Frame::decode(bytes.into()).map_err(|error| self.fault(error.to_string()))?;
        if let Frame::Hello { version, agent, limits, .. } = frame {
            if version != VERSION || agent != self.peer {
                let why = format!(
                    "version {version} of {agent}, where version {VERSION} of {} was due",
                    self.peer
                );
                return Err(SessionError::Hello { peer: self.peer.clone(), why });
            }
            hello.send_replace(Some(limits));
            return Ok(());
        }
        // Frames may overtake the hello; they wait for it.
        let _ = self.known.acquire().await;
        self.take(frame).await
    }

    async fn datagrams(&self) -> Result<(), SessionError> {
        loop {
            let bytes = self.connection.read_datagram().await?;
            // Datagrams promise nothing; those before the hello are dropped.
            if !self.known.is_closed() {
                continue;
            }
            match Frame::decode(bytes) {
                Ok(frame @ Frame::BestEffort { .. }) => self.take(frame).await?,
                Ok(_) => {
                    return Err(self.fault("only best-effort frames go in datagrams".to_owned()));
                }
                Err(error) => return Err(self.fault(error.to_string())),
            }
        }
    }

    /// Hands a frame to the driver. A full queue holds this stream, and so the peer, back.
    async fn take(&self, frame: Frame) -> Result<(), SessionError> {
        let session = self.session;
        let input = match frame {
            Frame::Offers { first_ref, items } => Input::Offers { session, first_ref, items },
            Frame::BestEffort { items } => Input::BestEffort { session, items },
            Frame::AckRuns(runs) => Input::AckRuns { session, runs },
            Frame::Acks(acks) | Frame::Answer { acks, .. } => {
                Input::Acks { peer: self.peer.clone(), acks }
            }
            Frame::Refuse { refs, code, retry_after_ms, .. } => {
                Input::Refused { session, refs, code, retry_after_ms }
            }
            Frame::Query { query_ref, ids } => Input::Query { session, query_ref, ids },
            Frame::Probe { nonce, id } => Input::Probe { session, nonce, id },
            Frame::ProbeReply { .. } | Frame::Hello { .. } => return Ok(()),
        };
        self.context.calls.send(Call::Input(input)).await.map_err(|_| SessionError::Stopping)
    }

    fn fault(&self, why: String) -> SessionError {
        SessionError::Frame { peer: self.peer.clone(), why }
    }
}

/// Tells whether a connection has gone silent.
#[derive(Debug)]
pub(crate) struct Silence {
    received: AtomicU64,
    since: std::sync::Mutex<tokio::time::Instant>,
}

impl Silence {
    pub(crate) fn new() -> Self {
        Self {
            received: AtomicU64::new(0),
            since: std::sync::Mutex::new(tokio::time::Instant::now()),
        }
    }

    /// Whether nothing has come in on `connection` for `silent_after`, as far as calls of this
    /// have seen.
    pub(crate) fn lasts(&self, connection: &quinn::Connection, silent_after: Duration) -> bool {
        let received = connection.stats().udp_rx.datagrams;
        let mut since = self.since.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if self.received.swap(received, Ordering::Relaxed) != received {
            *since = tokio::time::Instant::now();
        }
        since.elapsed() >= silent_after
    }
}
