//! Calls between nodes over native QUIC: protocols beside the native one, each with an ALPN of its
//! own. A call is one bidirectional stream of lines: JSON texts, each ended by a newline. The side
//! that asks ends its own direction when it has said all; a reset ends the call (RFC 9000 §2.4).

use crate::peers::{Dial, DialError};
use proto::id::AgentId;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::watch::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

/// Calls of one connection at a time; further ones wait at the one who asks. Beyond `a2a.running_max`:
/// a node that gives its tasks to another has a call open for each, and short ones beside them.
const CALLS_MAX: u32 = 2_048;
/// How long who is told nothing more may take to acknowledge the last words, when the server stops.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_millis(500);
/// Bytes read from a stream at a time.
const READ_LEN: usize = 16 * 1024;

/// Why a call's stream or connection ended. What a peer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Code {
    /// Nothing is wrong.
    Done = 0,
    /// Who asked does not want to hear more.
    Canceled = 1,
    /// What was said is no call.
    Malformed = 2,
    /// There is too much to do.
    Overloaded = 3,
    /// The node stops.
    Stopping = 4,
}

impl From<Code> for VarInt {
    fn from(code: Code) -> Self {
        Self::from_u32(code as u32)
    }
}

/// A connection, and who is at its other end.
pub(crate) type Incoming = (Connection, AgentId);

/// Why there is no call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The configuration has no address for it.
    #[error("{0} is no peer with an address")]
    NoAddress(AgentId),
    /// It is not there.
    #[error("{peer} is not reached: {source}")]
    Dial { peer: AgentId, source: DialError },
    /// The connection ended before the call began.
    #[error("the connection with {peer} ended: {source}")]
    Lost { peer: AgentId, source: quinn::ConnectionError },
}

type Slot = Arc<tokio::sync::Mutex<Option<Connection>>>;

/// Connections for calls: one with each peer for each protocol, dialled when it is needed.
#[derive(Debug)]
pub(crate) struct Calls {
    dial: Dial,
    addresses: BTreeMap<AgentId, String>,
    open: Mutex<HashMap<(AgentId, &'static [u8]), Slot>>,
}

impl Calls {
    pub(crate) fn new(dial: Dial, addresses: BTreeMap<AgentId, String>) -> Self {
        Self { dial, addresses, open: Mutex::default() }
    }

    /// Begins a call of `peer`. The peer hears of it with the first byte.
    pub(crate) async fn begin(
        &self,
        peer: &AgentId,
        alpn: &'static [u8],
    ) -> Result<(SendStream, RecvStream), CallError> {
        let Some(address) = self.addresses.get(peer) else {
            return Err(CallError::NoAddress(peer.clone()));
        };
        let slot = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.entry((peer.clone(), alpn)).or_default().clone() // peers are listed: bounded
        };
        let connection = {
            let mut slot = slot.lock().await; // one dials, the others wait for it
            match slot.as_ref().filter(|connection| connection.close_reason().is_none()) {
                Some(connection) => connection.clone(),
                None => {
                    let dialled = self.dial.to(peer, address, alpn).await;
                    let dialled =
                        dialled.map_err(|source| CallError::Dial { peer: peer.clone(), source })?;
                    slot.insert(dialled).clone()
                }
            }
        };
        let begun = connection.open_bi().await;
        begun.map_err(|source| CallError::Lost { peer: peer.clone(), source })
    }
}

/// How connections of one protocol are served.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    /// Connections of one peer at a time; a further one is closed.
    pub(crate) per_peer_max: usize,
    pub(crate) stop: Receiver<bool>,
}

impl Serving {
    /// Returns when the server is told to stop.
    pub(crate) async fn stopped(&self) {
        if self.stop.clone().wait_for(|stop| *stop).await.is_err() {
            std::future::pending().await // nobody can tell us any more
        }
    }

    /// Serves connections until the server stops; then waits for those that are served. A peer's
    /// connections beyond the limit are closed with `overloaded`.
    pub(crate) async fn connections<F>(
        &self,
        mut incoming: mpsc::Receiver<Incoming>,
        overloaded: VarInt,
        serve: impl Fn(Connection, AgentId) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut running = JoinSet::new();
        let mut places: HashMap<AgentId, Arc<Semaphore>> = HashMap::new(); // peers are listed
        loop {
            let next = tokio::select! {
                biased;
                Some(_) = running.join_next() => continue,
                () = self.stopped() => break,
                next = incoming.recv() => next,
            };
            let Some((connection, peer)) = next else { break };
            let of_peer = places
                .entry(peer.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(self.per_peer_max)));
            let Ok(place) = of_peer.clone().try_acquire_owned() else {
                tracing::debug!(%peer, max = self.per_peer_max, "too many connections for calls");
                connection.close(overloaded, b"too many connections");
                continue;
            };
            let served = serve(connection, peer);
            running.spawn(async move {
                served.await;
                drop(place);
            });
        }
        while running.join_next().await.is_some() {}
    }

    /// Serves calls of all connections until the server stops. Each answers in the time it needs, and
    /// ends by itself when the server stops.
    pub(crate) async fn calls<F>(
        self,
        incoming: mpsc::Receiver<Incoming>,
        call: impl Fn(AgentId, SendStream, RecvStream) -> F + Clone + Send + Sync + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let this = self.clone();
        self.connections(incoming, Code::Overloaded.into(), move |connection, peer| {
            this.clone().connection(connection, peer, call.clone())
        })
        .await;
    }

    async fn connection<F>(
        self,
        connection: Connection,
        peer: AgentId,
        call: impl Fn(AgentId, SendStream, RecvStream) -> F + Send,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        connection.set_max_concurrent_bi_streams(CALLS_MAX.into());
        let mut running = JoinSet::new(); // they end when this does
        loop {
            tokio::select! {
                biased;
                Some(_) = running.join_next() => {}
                () = self.stopped() => break,
                begun = connection.accept_bi() => match begun {
                    Ok((send, recv)) => {
                        running.spawn(call(peer.clone(), send, recv));
                    }
                    Err(error) => return tracing::debug!(%peer, %error, "a connection for calls ended"),
                },
            }
        }
        tokio::select! {
            biased;
            () = async { while running.join_next().await.is_some() {} } => {}
            _ = connection.closed() => return,
        }
        // To drop the connection closes it, with what is not acknowledged.
        let _ = tokio::time::timeout(LAST_WORDS_TIME_MAX, connection.closed()).await;
        connection.close(Code::Stopping.into(), b"stopping");
    }
}

/// Why there is no next line.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LineError {
    /// It is over the limit.
    #[error("a line of more than {max} bytes")]
    TooLong { max: usize },
    /// The other side went away in the middle of one.
    #[error("the stream ended in a line")]
    Cut,
    /// Too many are being read at a time.
    #[error("there is no room for it")]
    NoRoom,
    /// The stream or its connection is gone.
    #[error(transparent)]
    Lost(#[from] io::Error),
}

/// The lines that come.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    read: BufReader<R>,
    len_max: usize,
    room: Option<Arc<Semaphore>>,
    held: Option<OwnedSemaphorePermit>,
}

impl<R: tokio::io::AsyncRead + Unpin> Lines<R> {
    /// Lines of at most `len_max` bytes.
    pub(crate) fn new(read: R, len_max: usize) -> Self {
        let read = BufReader::with_capacity(READ_LEN, read);
        Self { read, len_max, room: None, held: None }
    }

    /// The same, in room for bytes that others share: each byte of a line takes one of its permits.
    pub(crate) fn within(read: R, len_max: usize, room: Arc<Semaphore>) -> Self {
        Self { room: Some(room), ..Self::new(read, len_max) }
    }

    /// The next that is not empty, without its end. `None` at the end of the stream. What was read of
    /// a line is lost with this future.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        loop {
            let Some(mut line) = self.any().await? else { return Ok(None) };
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
    }

    async fn any(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        let mut line = Vec::new();
        loop {
            let ready = self.read.fill_buf().await?;
            if ready.is_empty() {
                return if line.is_empty() { Ok(None) } else { Err(LineError::Cut) };
            }
            let end = ready.iter().position(|byte| *byte == b'\n');
            let len = end.unwrap_or(ready.len());
            if line.len() + len > self.len_max {
                self.read.consume(len); // who goes on after it finds the rest, or the next
                return Err(LineError::TooLong { max: self.len_max });
            }
            if let Some(room) = self.room.as_ref().filter(|_| len > 0) {
                let wanted = u32::try_from(len).unwrap_or(u32::MAX);
                let more = room.clone().try_acquire_many_owned(wanted);
                let more = more.map_err(|_| LineError::NoRoom)?;
                match &mut self.held {
                    Some(held) => held.merge(more),
                    None => self.held = Some(more),
                }
            }
            line.extend_from_slice(ready.get(..len).unwrap_or_default());
            self.read.consume(len + usize::from(end.is_some()));
            if end.is_some() {
                return Ok(Some(line));
            }
        }
    }

    /// Feeds a queue until the end, or the first error, which is the last it gets.
    pub(crate) async fn feed(mut self, to: mpsc::Sender<Result<Vec<u8>, LineError>>) {
        loop {
            let line = match self.next().await {
                Ok(Some(line)) => Ok(line),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            let over = line.is_err();
            if to.send(line).await.is_err() || over {
                return;
            }
        }
    }

    /// The room of the lines so far, for whoever keeps them.
    pub(crate) const fn room(&mut self) -> Option<OwnedSemaphorePermit> {
        self.held.take()
    }

    /// What comes after the lines that were read.
    pub(crate) fn into_inner(self) -> BufReader<R> {
        self.read
    }

    /// Where they come from.
    pub(crate) fn source(&mut self) -> &mut R {
        self.read.get_mut()
    }
}

/// Sends one line, which has no newline in it: JSON has none outside of strings, and escapes them inside.
pub(crate) async fn tell(
    write: &mut (impl tokio::io::AsyncWrite + Unpin),
    mut line: Vec<u8>,
) -> io::Result<()> {
    line.push(b'\n');
    write.write_all(&line).await?;
    write.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8], len_max: usize) -> (Vec<String>, Option<LineError>) {
        let mut lines = Lines::new(bytes, len_max);
        let mut found = Vec::new();
        loop {
            match lines.next().await {
                Ok(Some(line)) => found.push(String::from_utf8(line).unwrap()),
                Ok(None) => return (found, None),
                Err(error) => return (found, Some(error)),
            }
        }
    }

    #[tokio::test]
    async fn bd1_lines_are_cut_where_they_end_and_bounded() {
        let (found, error) = read(b"{}\n\n\r\n[1]\r\n1234\n", 4).await;
        assert!(error.is_none() && found == ["{}", "[1]", "1234"], "{found:?} {error:?}");
        let (found, error) = read(b"{}\n12345\n{}\n", 4).await;
        assert!(matches!(error, Some(LineError::TooLong { max: 4 })) && found == ["{}"]);
        let (found, error) = read(b"{}\n{\"half", 40).await;
        assert!(matches!(error, Some(LineError::Cut)) && found == ["{}"]);
    }

    #[tokio::test]
    async fn bd1_lines_of_all_streams_share_their_room() {
        let room = Arc::new(Semaphore::new(10));
        let mut first = Lines::within(&b"123456\n"[..], 40, room.clone());
        assert_eq!(first.next().await.unwrap().unwrap(), b"123456");
        let mut second = Lines::within(&b"12345\n"[..], 40, room.clone());
        assert!(matches!(second.next().await, Err(LineError::NoRoom)));
        drop(first.room());
        let mut third = Lines::within(&b"1234567890\n"[..], 40, room.clone());
        assert_eq!(third.next().await.unwrap().unwrap().len(), 10);
        drop(third);
        assert_eq!(room.available_permits(), 10);
    }
}
