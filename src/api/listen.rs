//! TCP connections of the API: so many at a time, and none that holds its place without asking.

use axum::serve::Listener;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

/// How long a client may take to send a whole request head, to ask again on a kept connection, or
/// to take the next bytes of an answer.
pub(crate) const IDLE_TIME_MAX: Duration = Duration::from_secs(30);
/// Wait before the next accept after one failed for want of resources.
const ACCEPT_AGAIN: Duration = Duration::from_millis(500);

/// A listener that leaves further connections in the kernel while `max` are open.
pub(crate) struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
    idle: Duration,
}

impl Bounded {
    pub(crate) fn new(listener: TcpListener, max: usize, idle: Duration) -> Self {
        let places = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self { listener, places, idle }
    }
}

impl Listener for Bounded {
    type Io = Timed;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Timed, SocketAddr) {
        loop {
            // The semaphore is never closed.
            let Ok(place) = self.places.clone().acquire_owned().await else { continue };
            match self.listener.accept().await {
                Ok((io, from)) => {
                    let _ = io.set_nodelay(true);
                    return (Timed::new(io, place, self.idle), from);
                }
                Err(error) => {
                    tracing::warn!(%error, "the API could not accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection with an alarm that runs whenever it is the client's turn.
pub(crate) struct Timed {
    io: TcpStream,
    _place: OwnedSemaphorePermit,
    idle: Duration,
    alarm: Pin<Box<Sleep>>,
    head: Head,
    /// A request is being answered: it is our turn, however long a handler waits.
    ours: bool,
}

impl Timed {
    fn new(io: TcpStream, place: OwnedSemaphorePermit, idle: Duration) -> Self {
        let alarm = Box::pin(tokio::time::sleep(idle));
        Self { io, _place: place, idle, alarm, head: Head::default(), ours: false }
    }

    fn rearm(&mut self) {
        self.alarm.as_mut().reset(Instant::now() + self.idle);
    }

    fn late(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        ready!(self.alarm.as_mut().poll(cx));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the client took too long"))
    }

    /// After a write: whatever was asked is being answered, so the next move is the client's.
    fn wrote(
        &mut self,
        cx: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match result {
            Poll::Pending => self.late(cx).map(Err),
            done => {
                self.rearm();
                // A read that waits since before is not polled again until something wakes it.
                let _ = self.alarm.as_mut().poll(cx);
                done
            }
        }
    }

    fn begin_write(&mut self) {
        if std::mem::take(&mut self.ours) {
            self.rearm();
        }
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        match Pin::new(&mut self.io).poll_read(cx, buf) {
            Poll::Pending if !self.ours => self.late(cx).map(Err),
            Poll::Pending => Poll::Pending,
            done => {
                let new = buf.filled().get(before..).unwrap_or_default();
                if self.head.ends_in(new) {
                    self.ours = true;
                }
                done
            }
        }
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.begin_write();
        let result = Pin::new(&mut self.io).poll_write(cx, buf);
        self.wrote(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.begin_write();
        let result = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.wrote(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Finds the empty line that ends a request head (RFC 9112 §2.1; bare line feeds count, as the
/// parser takes them, §2.2). An empty line inside a body only stops the alarm until the answer.
#[derive(Default)]
struct Head {
    line_is_empty: bool,
}

impl Head {
    fn ends_in(&mut self, bytes: &[u8]) -> bool {
        let mut ended = false;
        for byte in bytes {
            match byte {
                b'\n' if self.line_is_empty => {
                    ended = true;
                    self.line_is_empty = false;
                }
                b'\n' => self.line_is_empty = true,
                b'\r' => {}
                _ => self.line_is_empty = false,
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn a_head_ends_at_its_empty_line_however_it_is_cut() {
        for head in ["GET / HTTP/1.1\r\nhost: a\r\n\r\n", "GET / HTTP/1.1\nhost: a\n\n"] {
            for cut in 0..head.len() {
                let mut reader = Head::default();
                let first = reader.ends_in(&head.as_bytes()[..cut]);
                assert!(!first && reader.ends_in(&head.as_bytes()[cut..]), "{cut}");
            }
        }
    }

    async fn serve(max: usize, idle: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let slow = || async {
            tokio::time::sleep(Duration::from_millis(600)).await;
            "slow"
        };
        let router = Router::new().route("/", get(|| async { "quick" })).route("/slow", get(slow));
        tokio::spawn(async move { axum::serve(Bounded::new(listener, max, idle), router).await });
        address
    }

    async fn answer(io: &mut TcpStream) -> String {
        let mut buf = vec![0; 1024];
        let read = tokio::time::timeout(Duration::from_secs(10), io.read(&mut buf));
        let len = read.await.expect("an answer or an end").unwrap_or(0);
        String::from_utf8_lossy(&buf[..len]).into_owned()
    }

    #[tokio::test]
    async fn bd1_a_client_that_does_not_ask_loses_its_place() {
        let address = serve(8, Duration::from_millis(200)).await;
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(b"GET / HTTP/1.1\r\nhost: lo").await.unwrap();
        let mut slow = TcpStream::connect(address).await.unwrap();
        slow.write_all(b"GET /slow HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        assert_eq!(answer(&mut half).await, "", "closed for want of a whole head");
        assert!(answer(&mut slow).await.ends_with("slow"), "a handler may take longer than that");
        assert_eq!(answer(&mut slow).await, "", "and then the kept connection is idle");
    }

    #[tokio::test]
    async fn bd1_connections_beyond_the_limit_wait_for_a_place() {
        let address = serve(1, Duration::from_secs(5)).await;
        let ask = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let mut first = TcpStream::connect(address).await.unwrap();
        first.write_all(ask).await.unwrap();
        assert!(answer(&mut first).await.ends_with("quick"));
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(ask).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(300), answer(&mut second)).await;
        assert!(early.is_err(), "no place yet");
        drop(first);
        assert!(answer(&mut second).await.ends_with("quick"));
    }
}
