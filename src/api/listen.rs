//! TCP connections of the API: so many at a time, and none that holds its place without asking.

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use axum::serve::{IncomingStream, Listener};
use std::convert::Infallible;
use std::future::{Ready, ready as at_once};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};
use tower_service::Service;

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
    /// How long nothing may pass while requests are being answered over HTTP/2.
    busy: Duration,
}

impl Bounded {
    /// `wait` is how long a handler may wait before it answers.
    pub(crate) fn new(listener: TcpListener, max: usize, idle: Duration, wait: Duration) -> Self {
        let places = Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS)));
        Self { listener, places, idle, busy: idle.saturating_add(wait) }
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
                    return (Timed::new(io, place, self.idle, self.busy), from);
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
    busy: Duration,
    /// Requests being answered. Over HTTP/2 there may be many, and no byte says whose turn it is.
    open: Arc<AtomicUsize>,
    /// When bytes last passed.
    passed: Instant,
}

impl Timed {
    fn new(io: TcpStream, place: OwnedSemaphorePermit, idle: Duration, busy: Duration) -> Self {
        Self {
            io,
            _place: place,
            idle,
            alarm: Box::pin(tokio::time::sleep(idle)),
            head: Head::default(),
            ours: false,
            busy,
            open: Arc::default(),
            passed: Instant::now(),
        }
    }

    fn rearm(&mut self) {
        self.passed = Instant::now();
        self.alarm.as_mut().reset(self.passed + self.idle);
    }

    fn late(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        ready!(self.alarm.as_mut().poll(cx));
        while self.open.load(Ordering::Relaxed) > 0 && self.passed.elapsed() < self.busy {
            self.alarm.as_mut().reset(Instant::now() + self.idle);
            ready!(self.alarm.as_mut().poll(cx));
        }
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

/// Makes the service of each connection, which counts the requests that are being answered.
#[derive(Clone)]
pub(crate) struct Counting(pub(crate) Router);

impl Service<IncomingStream<'_, Bounded>> for Counting {
    type Response = Counted;
    type Error = Infallible;
    type Future = Ready<Result<Counted, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, stream: IncomingStream<'_, Bounded>) -> Self::Future {
        at_once(Ok(Counted { router: self.0.clone(), open: stream.io().open.clone() }))
    }
}

/// The service of one connection.
#[derive(Clone)]
pub(crate) struct Counted {
    router: Router,
    open: Arc<AtomicUsize>,
}

impl Service<Request> for Counted {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(())) // as a router always is
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let open = Open::begin(&self.open);
        let answer = self.router.call(request);
        Box::pin(async move {
            let Ok(response) = answer.await;
            Ok(response.map(|body| holding(body, open)))
        })
    }
}

/// A request that is being answered.
struct Open(Arc<AtomicUsize>);

impl Open {
    fn begin(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body that keeps something until it is given or dropped.
pub(crate) fn holding<T: Send + Unpin + 'static>(body: Body, kept: T) -> Body {
    Body::new(Holding { body, _kept: kept })
}

struct Holding<T> {
    body: Body,
    _kept: T,
}

impl<T: Unpin> HttpBody for Holding<T> {
    type Data = <Body as HttpBody>::Data;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// How an HTTP/2 connection begins (RFC 9113 §3.4), as far as no request of HTTP/1 does.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// Finds the empty line that ends a request head (RFC 9112 §2.1; bare line feeds count, as the
/// parser takes them, §2.2). An empty line inside a body only stops the alarm until the answer. Over
/// HTTP/2 there are no lines: what looks like an empty one there ends nothing.
#[derive(Default)]
struct Head {
    line_is_empty: bool,
    /// Bytes of the preface that came; `None` once this is HTTP/1.
    preface: Option<usize>,
    begun: bool,
}

impl Head {
    /// Takes a byte of the connection's beginning; whether it is HTTP/2 now.
    fn is_http2(&mut self, byte: u8) -> bool {
        if !std::mem::replace(&mut self.begun, true) {
            self.preface = Some(0);
        }
        let Some(came) = self.preface else { return false };
        match PREFACE.get(came) {
            None => return true,
            Some(next) if *next == byte => self.preface = Some(came + 1),
            Some(_) => self.preface = None,
        }
        false
    }

    fn ends_in(&mut self, bytes: &[u8]) -> bool {
        let mut ended = false;
        for byte in bytes {
            if self.is_http2(*byte) {
                return false;
            }
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
        let slow = || async {
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            "slow"
        };
        let router = Router::new().route("/", get(|| async { "quick" })).route("/slow", get(slow));
        serve_router(max, idle, router).await
    }

    async fn serve_router(max: usize, idle: Duration, router: Router) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounded = Bounded::new(listener, max, idle, Duration::from_secs(2));
        tokio::spawn(async move { axum::serve(bounded, Counting(router)).await });
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

    fn h2() -> reqwest::Client {
        reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap()
    }

    #[tokio::test]
    async fn bd1_an_http2_client_may_wait_for_its_answer_and_then_loses_its_place() {
        let address = serve(1, Duration::from_millis(1_000)).await;
        let client = h2();
        let get = |path: &str| client.get(format!("http://{address}{path}")).send();
        let slow = get("/slow").await.unwrap();
        assert_eq!(slow.version(), reqwest::Version::HTTP_2);
        assert_eq!(slow.text().await.unwrap(), "slow", "longer than a client may be silent");
        // The one place is free again, though the client keeps its connection.
        let mut second = TcpStream::connect(address).await.unwrap();
        second.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        assert!(answer(&mut second).await.ends_with("quick"));
        drop(client);
    }

    #[test]
    fn no_head_ends_once_a_connection_is_http2() {
        let mut reader = Head::default();
        assert!(!reader.ends_in(b"PRI * HT"));
        assert!(!reader.ends_in(b"TP/2.0\r\n\r\nSM\r\n\r\n"));
        assert!(!reader.ends_in(&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 10, 10]));
        assert!(Head::default().ends_in(b"PRI / HTTP/1.1\r\n\r\n"));
    }

    #[tokio::test]
    async fn bd1_an_http2_client_with_empty_lines_in_its_frames_loses_its_place() {
        let address = serve(1, Duration::from_millis(500)).await;
        let mut io = TcpStream::connect(address).await.unwrap();
        io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        // WINDOW_UPDATE by 2570, which is two line feeds; the server has nothing to answer.
        io.write_all(&[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 10, 10]).await.unwrap();
        let mut said = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(5), io.read_to_end(&mut said)).await;
        assert!(read.is_ok(), "closed, for it asks nothing");
    }

    #[tokio::test]
    async fn bd1_an_http2_client_that_never_takes_its_answer_loses_its_place_too() {
        let address = serve_router(
            1,
            Duration::from_millis(100),
            Router::new().route("/", get(std::future::pending::<&str>)),
        )
        .await;
        let asked = tokio::time::Instant::now();
        assert!(h2().get(format!("http://{address}/")).send().await.is_err());
        let waited = asked.elapsed();
        assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(8), "{waited:?}");
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
