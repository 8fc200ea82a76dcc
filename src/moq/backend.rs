//! The QUIC connection below a MOQT session.
//!
//! MOQT numbers are more urgent the smaller they are; quinn sends the larger number first, and
//! `moq-transport` hands the one to the other as it is, and leaves its control and request streams behind all
//! of them. So this backend turns them round: control, then requests, then data by its priority
//! (draft-ietf-moq-transport-18, scheduling).

use super::unproven::{Doubts, UNPROVEN_LEN_MAX, UNPROVEN_TIME_MAX, Unproven, Verdict};
use bytes::Bytes;
use quinn::{Connection, ConnectionError, ReadError, RecvStream, SendStream, VarInt, WriteError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::sync::Notify;
use web_transport_trait as wt;

/// Priority in quinn of the control stream.
const CONTROL_PRIORITY: i32 = i32::MAX;
/// Priority in quinn of request streams.
const REQUEST_PRIORITY: i32 = i32::MAX - 1;
/// Priority in quinn of data of which nothing is said: answers to FETCH.
const FETCH_PRIORITY: i32 = 127;

/// Bytes of one stream of data that comes, and of all in a session that are not ended or not read.
const STREAM_LEN_MAX: usize = 8 * 1024 * 1024;
pub(super) const STREAMS_LEN_MAX: usize = 64 * 1024 * 1024;
/// What `moq-transport` asks for when it reads the header of a stream or an object, and what it is given.
const LOOKED_AHEAD: usize = 8 * 1024;
const HEADER_LEN: usize = 128;

/// A connection whose protocol is MOQT, as a transport of `moq-transport`.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    connection: Connection,
    control_open: Arc<AtomicBool>,
    flight: Arc<Flight>,
    arriving: Arc<AtomicUsize>,
    inlet: Arc<Inlet>,
    doubts: Arc<Doubts>,
}

/// Who wants no further streams of data to come, and who needs them all the same.
#[derive(Debug, Default)]
pub(crate) struct Inlet {
    holding: AtomicUsize,
    lifting: AtomicUsize,
    open: Notify,
}

impl Inlet {
    pub(crate) fn is_held(&self) -> bool {
        self.holding.load(Ordering::Acquire) > 0
    }

    async fn opened(&self) {
        loop {
            let open = self.open.notified();
            if !self.is_held() || self.lifting.load(Ordering::Acquire) > 0 {
                return;
            }
            open.await;
        }
    }
}

/// One of those.
#[derive(Debug)]
pub(crate) struct Held(Arc<Inlet>);

impl Held {
    pub(crate) fn begin(inlet: &Arc<Inlet>) -> Self {
        inlet.holding.fetch_add(1, Ordering::AcqRel);
        Self(inlet.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.holding.fetch_sub(1, Ordering::AcqRel);
        self.0.open.notify_waiters();
    }
}

/// Whoever waits for something that has to come by a stream: nobody holds them back meanwhile.
#[derive(Debug)]
pub(crate) struct Lifted(Arc<Inlet>);

impl Lifted {
    pub(crate) fn begin(inlet: &Arc<Inlet>) -> Self {
        inlet.lifting.fetch_add(1, Ordering::AcqRel);
        inlet.open.notify_waiters();
        Self(inlet.clone())
    }
}

impl Drop for Lifted {
    fn drop(&mut self) {
        self.0.lifting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Streams of data that the other side has not wholly acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    streams: AtomicUsize,
    /// Those among them that are to stay open.
    kept: AtomicUsize,
    landed: Notify,
}

impl Flight {
    /// Waits until fewer than `max` are on their way, beside those that stay open.
    pub(crate) async fn below(&self, max: usize) {
        loop {
            let landed = self.landed.notified();
            if self.streams.load(Ordering::Acquire) < max + self.kept.load(Ordering::Acquire) {
                return;
            }
            landed.await;
        }
    }

    /// Whether any are on their way, beside those that stay open.
    pub(crate) fn waits(&self) -> bool {
        self.streams.load(Ordering::Acquire) > self.kept.load(Ordering::Acquire)
    }

    /// Says that one more group will stay open, until the value is dropped.
    pub(crate) fn keep(self: &Arc<Self>) -> Kept {
        self.kept.fetch_add(1, Ordering::AcqRel);
        self.landed.notify_waiters();
        Kept(self.clone())
    }
}

/// A group that stays open: it takes no place of those that come and go.
#[derive(Debug)]
pub(crate) struct Kept(Arc<Flight>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.kept.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug)]
struct Flying(Arc<Flight>);

impl Flying {
    fn begin(flight: &Arc<Flight>) -> Self {
        flight.streams.fetch_add(1, Ordering::AcqRel);
        Self(flight.clone())
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
        self.0.landed.notify_waiters();
    }
}

impl Backend {
    pub(crate) fn new(connection: Connection) -> Self {
        let (control_open, flight, arriving, inlet, doubts) = Default::default();
        Self { connection, control_open, flight, arriving, inlet, doubts }
    }

    pub(crate) const fn inlet(&self) -> &Arc<Inlet> {
        &self.inlet
    }

    pub(crate) const fn doubts(&self) -> &Arc<Doubts> {
        &self.doubts
    }

    pub(crate) const fn flight(&self) -> &Arc<Flight> {
        &self.flight
    }
}

/// Why the connection, or a stream of it, does not go on.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum BackendError {
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error("read: {0}")]
    Read(ReadError),
    #[error("write: {0}")]
    Write(WriteError),
    #[error("the peer stopped the stream with code {0}")]
    Stopped(VarInt),
    #[error("the stream was ended before")]
    Ended,
    #[error(
        "{len} bytes in one stream, or {all} in all that are not ended or not read; {STREAM_LEN_MAX} and {STREAMS_LEN_MAX} are taken"
    )]
    TooMuch { len: usize, all: usize },
    #[error(
        "who publishes the track has not said who it is: {UNPROVEN_LEN_MAX} bytes and {} s are what its streams may have, and a place among few",
        UNPROVEN_TIME_MAX.as_secs()
    )]
    Unproven,
    #[error("datagram: {0}")]
    Datagram(#[from] quinn::SendDatagramError),
}

impl From<ReadError> for BackendError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::ConnectionLost(error) => Self::Connection(error),
            error => Self::Read(error),
        }
    }
}

impl From<WriteError> for BackendError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::ConnectionLost(error) => Self::Connection(error),
            WriteError::Stopped(code) => Self::Stopped(code),
            error => Self::Write(error),
        }
    }
}

fn small(code: VarInt) -> u32 {
    u32::try_from(code.into_inner()).unwrap_or(u32::MAX)
}

impl wt::Error for BackendError {
    fn session_error(&self) -> Option<(u32, String)> {
        let Self::Connection(ConnectionError::ApplicationClosed(closed)) = self else {
            return None;
        };
        Some((small(closed.error_code), String::from_utf8_lossy(&closed.reason).into_owned()))
    }

    fn stream_error(&self) -> Option<u32> {
        match self {
            Self::Stopped(code) | Self::Read(ReadError::Reset(code)) => Some(small(*code)),
            // It is one stream that is stopped: the library is not to end the session for it.
            Self::TooMuch { .. } | Self::Unproven => Some(0),
            _ => None,
        }
    }
}

impl wt::Session for Backend {
    type SendStream = Sending;
    type RecvStream = Receiving;
    type Error = BackendError;

    async fn accept_uni(&self) -> Result<Receiving, BackendError> {
        self.inlet.opened().await;
        let stream = self.connection.accept_uni().await?;
        let arriving = Some(Arriving { all: self.arriving.clone(), own: 0 });
        Ok(Receiving { stream, arriving, unproven: self.doubts.stream() })
    }

    async fn accept_bi(&self) -> Result<(Sending, Receiving), BackendError> {
        let (send, recv) = self.connection.accept_bi().await?;
        Ok((Sending::first(send, REQUEST_PRIORITY), Receiving::request(recv)))
    }

    async fn open_bi(&self) -> Result<(Sending, Receiving), BackendError> {
        let (send, recv) = self.connection.open_bi().await?;
        Ok((Sending::first(send, REQUEST_PRIORITY), Receiving::request(recv)))
    }

    async fn open_uni(&self) -> Result<Sending, BackendError> {
        // Counted before there is credit for it: a peer that gives none has no more written to it.
        let flying = Flying::begin(&self.flight);
        let stream = self.connection.open_uni().await?;
        // The first one carries SETUP and what else is said of the session.
        if !self.control_open.swap(true, Ordering::AcqRel) {
            return Ok(Sending::first(stream, CONTROL_PRIORITY));
        }
        let mut sending = Sending::first(stream, FETCH_PRIORITY);
        sending.flying = Some(flying);
        Ok(sending)
    }

    fn send_datagram(&self, payload: Bytes) -> Result<(), BackendError> {
        Ok(self.connection.send_datagram(payload)?)
    }

    async fn recv_datagram(&self) -> Result<Bytes, BackendError> {
        Ok(self.connection.read_datagram().await?)
    }

    fn max_datagram_size(&self) -> usize {
        self.connection.max_datagram_size().unwrap_or_default()
    }

    fn close(&self, code: u32, reason: &str) {
        self.connection.close(code.into(), reason.as_bytes());
    }

    async fn closed(&self) -> BackendError {
        self.connection.closed().await.into()
    }
}

/// The sending half of a stream.
#[derive(Debug)]
pub(crate) struct Sending {
    stream: SendStream,
    /// Until all of it is acknowledged or given up, for streams of data.
    flying: Option<Flying>,
}

impl Sending {
    fn first(stream: SendStream, priority: i32) -> Self {
        // It can only fail on a stream that is closed.
        let _ = stream.set_priority(priority);
        Self { stream, flying: None }
    }
}

impl wt::SendStream for Sending {
    type Error = BackendError;

    async fn write(&mut self, buf: &[u8]) -> Result<usize, BackendError> {
        Ok(self.stream.write(buf).await?)
    }

    fn set_priority(&mut self, order: u8) {
        let _ = self.stream.set_priority(i32::from(u8::MAX - order));
    }

    fn finish(&mut self) -> Result<(), BackendError> {
        self.stream.finish().map_err(|_| BackendError::Ended)
    }

    fn reset(&mut self, code: u32) {
        let _ = self.stream.reset(code.into());
        self.flying = None;
    }

    async fn closed(&mut self) -> Result<(), BackendError> {
        let stopped = self.stream.stopped().await;
        self.flying = None;
        match stopped {
            Ok(None) => Ok(()),
            Ok(Some(code)) => Err(BackendError::Stopped(code)),
            Err(quinn::StoppedError::ConnectionLost(error)) => Err(error.into()),
            Err(_) => Err(BackendError::Ended),
        }
    }
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(crate) struct Receiving {
    stream: RecvStream,
    arriving: Option<Arriving>,
    unproven: Option<Unproven>,
}

/// What came of a stream of data.
#[derive(Debug)]
struct Arriving {
    /// Bytes of all streams of the session that somebody holds.
    all: Arc<AtomicUsize>,
    own: usize,
}

/// Bytes of a stream that are counted for as long as somebody holds them: the library, which keeps the objects of a
/// stream until that has ended and they were read, or whoever reads them.
struct Counted {
    bytes: Bytes,
    all: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.len(), Ordering::AcqRel);
    }
}

impl Receiving {
    const fn request(stream: RecvStream) -> Self {
        Self { stream, arriving: None, unproven: None }
    }

    //= BD-1
    fn counted(&mut self, bytes: Bytes) -> Result<Bytes, BackendError> {
        let Some(arriving) = &mut self.arriving else { return Ok(bytes) };
        let n = bytes.len();
        arriving.own += n;
        let all = arriving.all.fetch_add(n, Ordering::AcqRel) + n;
        let counted = Bytes::from_owner(Counted { bytes, all: arriving.all.clone() });
        if arriving.own > STREAM_LEN_MAX || all > STREAMS_LEN_MAX {
            let len = arriving.own;
            let _ = self.stream.stop(0u32.into());
            return Err(BackendError::TooMuch { len, all });
        }
        Ok(counted)
    }

    /// The next bytes, unless nothing good is known of the stream and it has had enough.
    async fn next(&mut self, max: usize) -> Result<Option<Bytes>, BackendError> {
        loop {
            let Some(unproven) = &mut self.unproven else {
                return Ok(self.stream.read_chunk(max, true).await?.map(|chunk| chunk.bytes));
            };
            let (verdict, chunk) = tokio::select! {
                chunk = self.stream.read_chunk(max, true) => {
                    let chunk = chunk?.map(|chunk| chunk.bytes);
                    (chunk.as_ref().map_or(Verdict::Good, |bytes| unproven.came(bytes)), Some(chunk))
                }
                verdict = unproven.ends() => (verdict, None),
            };
            match verdict {
                Verdict::Good => self.unproven = None,
                Verdict::Open => {}
                Verdict::Over => {
                    let _ = self.stream.stop(0u32.into());
                    return Err(BackendError::Unproven);
                }
            }
            if let Some(chunk) = chunk {
                return Ok(chunk);
            }
        }
    }
}

impl wt::RecvStream for Receiving {
    type Error = BackendError;

    async fn read(&mut self, dst: &mut [u8]) -> Result<Option<usize>, BackendError> {
        let Some(bytes) = self.read_chunk(dst.len()).await? else { return Ok(None) };
        if let Some(dst) = dst.get_mut(..bytes.len()) {
            dst.copy_from_slice(&bytes);
        }
        Ok(Some(bytes.len()))
    }

    async fn read_chunk(&mut self, max: usize) -> Result<Option<Bytes>, BackendError> {
        // What the library reads to look for a header it copies, which is not counted: so that is little.
        let max = if self.arriving.is_some() && max == LOOKED_AHEAD { HEADER_LEN } else { max };
        let chunk = self.next(max).await?;
        chunk.map(|bytes| self.counted(bytes)).transpose()
    }

    fn stop(&mut self, code: u32) {
        let _ = self.stream.stop(code.into());
    }

    async fn closed(&mut self) -> Result<(), BackendError> {
        match self.stream.received_reset().await {
            Ok(_) => Ok(()),
            Err(quinn::ResetError::ConnectionLost(error)) => Err(error.into()),
            Err(_) => Err(BackendError::Ended),
        }
    }
}
