//! Sessions of clients that speak a version before 2026-07-28, bounded in number and in silence.

use rmcp::model::{ClientJsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_server::session::ServerSseMessage;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionHandle, LocalSessionManager, LocalSessionManagerError,
};
use rmcp::transport::streamable_http_server::{SessionId, SessionManager};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_stream::Stream;

/// How long the events of an answered request can be asked for again. They take memory, and a call
/// may be repeated.
const ANSWERED_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a session may take to begin.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(10);
/// Messages to one stream that are not taken yet.
const MESSAGES_WAITING_MAX: usize = 16;

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionsError {
    /// There are as many as there may be.
    #[error("{max} sessions are open, the limit (mcp.sessions_max)")]
    Full {
        /// The limit.
        max: usize,
    },
    /// Of the session itself.
    #[error(transparent)]
    Local(#[from] LocalSessionManagerError),
}

/// The sessions of this node.
#[derive(Debug)]
pub(crate) struct Sessions {
    local: LocalSessionManager,
    max: usize,
    idle: Duration,
    /// Held from counting to adding.
    opening: Mutex<()>,
}

impl Sessions {
    pub(crate) fn new(max: usize, idle: Duration) -> Self {
        let mut local = LocalSessionManager::default();
        local.session_config.keep_alive = Some(idle);
        local.session_config.completed_cache_ttl = ANSWERED_TIME_MAX;
        local.session_config.init_timeout = Some(BEGIN_TIME_MAX);
        local.session_config.channel_capacity = MESSAGES_WAITING_MAX;
        Self { local, max, idle, opening: Mutex::default() }
    }

    /// Whether there is room for one more.
    pub(crate) async fn room(&self) -> Result<(), SessionsError> {
        if self.local.sessions.read().await.len() < self.max {
            return Ok(());
        }
        Err(SessionsError::Full { max: self.max })
    }

    /// A stream, during which the session is not silent: somebody reads it.
    async fn open<S: Stream>(&self, id: &SessionId, stream: S) -> Reading<S> {
        let handle = self.local.sessions.read().await.get(id).cloned();
        let mut touching = JoinSet::new();
        if let Some(handle) = handle {
            touching.spawn(touch(handle, self.idle / 2));
        }
        Reading { stream: Box::pin(stream), _touching: touching }
    }
}

/// Lets a session know that it is in use, for as long as it is there.
async fn touch(handle: LocalSessionHandle, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        // There is no such stream: to be asked is all it takes.
        if handle.close_request_wise_channel(u64::MAX).await.is_err() {
            return;
        }
    }
}

/// A stream that somebody reads.
struct Reading<S> {
    stream: Pin<Box<S>>,
    /// Ends with the stream.
    _touching: JoinSet<()>,
}

impl<S: Stream> Stream for Reading<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.stream.as_mut().poll_next(cx)
    }
}

impl SessionManager for Sessions {
    type Error = SessionsError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), SessionsError> {
        let _opening = self.opening.lock().await;
        self.room().await?;
        Ok(self.local.create_session().await?)
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, SessionsError> {
        Ok(self.local.initialize_session(id, message).await?)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, SessionsError> {
        Ok(self.local.has_session(id).await?)
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), SessionsError> {
        Ok(self.local.close_session(id).await?)
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        let stream = self.local.create_stream(id, message).await?;
        Ok(self.open(id, stream).await)
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), SessionsError> {
        Ok(self.local.accept_message(id, message).await?)
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        let stream = self.local.create_standalone_stream(id).await?;
        Ok(self.open(id, stream).await)
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, SessionsError> {
        let stream = self.local.resume(id, last_event_id).await?;
        Ok(self.open(id, stream).await)
    }
}
