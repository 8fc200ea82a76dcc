//! MCP over a stream of bytes: one JSON-RPC message a line, as MCP's stdio transport frames it.

use super::{Caller, Server, stopped};
use crate::node::NodeHandle;
use rmcp::RoleServer;
use rmcp::service::ServerInitializeError;
use rmcp::transport::Transport;
use rmcp::transport::async_rw::AsyncRwTransport;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch::Receiver;

/// Why a stream ended before its client did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinesError {
    /// It did not begin as MCP does.
    #[error("the stream does not begin as MCP does: {0}")]
    Begin(String),
    /// The task that served it ended by itself.
    #[error("the server of the stream ended: {0}")]
    Ended(#[from] tokio::task::JoinError),
}

/// Serves `caller` on a stream of bytes until the client ends it or `stop` is set.
///
/// A line over `mcp.request_len_max` ends the stream: to pass over it would leave its sender waiting.
///
/// # Errors
/// [`LinesError`].
pub async fn serve_lines<R, W>(
    node: NodeHandle,
    caller: Caller,
    stop: Receiver<bool>,
    read: R,
    write: W,
) -> Result<(), LinesError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let max = node.config().mcp.request_len_max;
    let read = Bounded { read, max, len: 0 };
    let transport: AsyncRwTransport<RoleServer, _, _> =
        AsyncRwTransport::new_server(read, write).with_max_line_length(max.saturating_add(1));
    serve_on(node, caller, stop, transport).await
}

/// Serves `caller` over a transport of messages until the client ends it or `stop` is set.
///
/// # Errors
/// [`LinesError`].
pub(crate) async fn serve_on<T>(
    node: NodeHandle,
    caller: Caller,
    stop: Receiver<bool>,
    transport: T,
) -> Result<(), LinesError>
where
    T: Transport<RoleServer> + 'static,
{
    let server = Server::new(node, caller, stop.clone());
    let begun = tokio::select! {
        begun = rmcp::serve_server(server, transport) => begun,
        () = stopped(stop.clone()) => return Ok(()),
    };
    let running = begun.map_err(|error| LinesError::Begin(without_its_message(error)))?;
    let end = running.cancellation_token();
    let waiting = running.waiting();
    tokio::pin!(waiting);
    tokio::select! {
        ended = &mut waiting => ended?,
        () = stopped(stop) => {
            end.cancel();
            waiting.await?
        }
    };
    Ok(())
}

/// Why a stream did not begin, without what was said in it: that may end in a log.
fn without_its_message(error: ServerInitializeError) -> String {
    match error {
        ServerInitializeError::ExpectedInitializeRequest(_) => {
            "its first message neither begins a session nor stands alone".to_owned()
        }
        ServerInitializeError::ConnectionClosed(_) => {
            "it ended before its first message".to_owned()
        }
        other => other.to_string(),
    }
}

/// Reads lines up to a length; a longer one is an error.
struct Bounded<R> {
    read: R,
    max: usize,
    /// Bytes of the line so far.
    len: usize,
}

impl<R: AsyncRead + Unpin> AsyncRead for Bounded<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.read).poll_read(cx, buf))?;
        let mut len = self.len;
        let mut longest = 0;
        for byte in buf.filled().get(before..).unwrap_or_default() {
            len = if *byte == b'\n' { 0 } else { len + 1 };
            longest = longest.max(len);
        }
        self.len = len;
        if longest > self.max {
            buf.set_filled(before); // who reads takes an error for no bytes
            let max = self.max;
            let message = format!("a line is over the limit of {max} bytes (mcp.request_len_max)");
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, message)));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn bd1_a_line_over_the_limit_is_an_error() {
        async fn read(bytes: &[u8]) -> io::Result<String> {
            let mut text = String::new();
            Bounded { read: bytes, max: 4, len: 0 }.read_to_string(&mut text).await.map(|_| text)
        }
        assert_eq!(read(b"1234\n1234\n").await.unwrap(), "1234\n1234\n");
        assert_eq!(read(b"12345\n").await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(read(b"1\n2\n34567").await.is_err());
    }
}
