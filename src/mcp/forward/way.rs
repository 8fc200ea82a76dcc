//! What messages go over: HTTP at a URL, or HTTP/3 at the node of a peer.

use crate::bridge::{BROKE, Code, MESSAGE_LEN_MAX};
use crate::http3::{Connection, Exchange};
use bytes::Bytes;
use proto::id::AgentId;
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode, Url};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of one line over HTTP, in either direction.
pub(super) const LINE_LEN_MAX: usize = 64 * 1024 * 1024;
/// Bytes of an event beside its message.
const EVENT_FRAME_LEN: usize = 64;
/// JSON-RPC: the server is not there, or did not answer as it should.
const INTERNAL_ERROR: i64 = -32_603;
/// Outside of the range that JSON-RPC keeps: too many requests at a time.
const BUSY: i64 = 429;

/// Where messages go.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) http: reqwest::Client,
    /// The MCP endpoint.
    pub(crate) url: Url,
    pub(crate) token: Option<String>,
    /// Who is not there when nobody is: `no node`.
    pub(crate) who: &'static str,
    /// What to do about it.
    pub(crate) hint: String,
}

/// A server behind a peer's node, over a connection with that.
#[derive(Debug)]
pub(crate) struct Behind {
    pub(crate) peer: AgentId,
    pub(crate) connection: Arc<Connection>,
    /// The MCP endpoint.
    pub(crate) uri: String,
}

/// What messages go over.
#[derive(Debug)]
pub(crate) enum Way {
    Http(Target),
    Http3(Behind),
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Unanswered {
    pub(super) code: i64,
    pub(super) message: String,
}

/// An answer of which the head is there.
pub(super) enum Response {
    Http(reqwest::Response),
    Http3 { head: axum::http::Response<()>, exchange: Box<Exchange> },
}

impl Target {
    fn request(&self, method: Method) -> reqwest::RequestBuilder {
        let request = self.http.request(method, self.url.clone());
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    fn away(&self, error: &reqwest::Error) -> String {
        let mut why: &dyn std::error::Error = error;
        while let Some(source) = why.source() {
            why = source;
        }
        let Self { url, who, hint, .. } = self;
        if error.is_connect() {
            format!("{who} answers at {url}: {why}{hint}")
        } else {
            format!("{url} did not answer: {why}")
        }
    }
}

impl Behind {
    async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: String,
    ) -> Result<Response, Unanswered> {
        let away = |why: String| {
            let message = format!("{} does not take the call: {why}", self.peer);
            Unanswered { code: Code::Unavailable as i64, message }
        };
        let request = axum::http::Request::builder().method(method).uri(&self.uri).body(());
        let mut request = request.map_err(|error| away(error.to_string()))?;
        *request.headers_mut() = headers;
        let said = self.connection.say(request, body.into()).await;
        let mut exchange = said.map_err(|error| away(error.to_string()))?;
        let head = exchange.head().await.map_err(|_| broke())?;
        Ok(Response::Http3 { head, exchange: Box::new(exchange) })
    }
}

fn broke() -> Unanswered {
    Unanswered { code: Code::Lost as i64, message: BROKE.to_owned() }
}

impl Way {
    pub(super) async fn send(
        &self,
        method: Method,
        headers: HeaderMap,
        body: String,
        time_max: Option<Duration>,
    ) -> Result<Response, Unanswered> {
        let send = async {
            match self {
                Self::Http(target) => {
                    let request = target.request(method).headers(headers).body(body);
                    let sent = request.send().await;
                    sent.map(Response::Http).map_err(|error| self.lost(target.away(&error)))
                }
                Self::Http3(behind) => behind.send(method, headers, body).await,
            }
        };
        match time_max {
            None => send.await,
            Some(max) => {
                let sent = tokio::time::timeout(max, send).await;
                sent.unwrap_or_else(|_| Err(self.lost("the server takes too long")))
            }
        }
    }

    /// Whether a call ran is not known.
    pub(super) fn lost(&self, what: impl ToString) -> Unanswered {
        let code = match self {
            Self::Http(_) => INTERNAL_ERROR,
            Self::Http3(_) => Code::Lost as i64,
        };
        Unanswered { code, message: what.to_string() }
    }

    /// What an answer says that is no message.
    pub(super) fn refused(&self, status: StatusCode, said: &str) -> Unanswered {
        let ran = !status.is_client_error() && status != StatusCode::SERVICE_UNAVAILABLE;
        let code = match self {
            Self::Http(_) => INTERNAL_ERROR,
            Self::Http3(_) if ran => Code::Lost as i64,
            Self::Http3(_) => Code::Unavailable as i64,
        };
        Unanswered { code, message: format!("the server answered {status}: {said}") }
    }

    /// There are too many calls.
    pub(super) fn busy(&self, what: String) -> Unanswered {
        let code = match self {
            Self::Http(_) => BUSY,
            Self::Http3(_) => Code::Overloaded as i64,
        };
        Unanswered { code, message: what }
    }

    /// Whether the server takes the word that a call is canceled also of clients without a session.
    pub(super) const fn hears_cancels(&self) -> bool {
        matches!(self, Self::Http3(_))
    }

    /// Bytes of a message.
    pub(super) const fn len_max(&self) -> usize {
        match self {
            Self::Http(_) => LINE_LEN_MAX,
            Self::Http3(_) => MESSAGE_LEN_MAX + EVENT_FRAME_LEN,
        }
    }

    /// Returns when nothing can be asked any more.
    pub(super) async fn gone(&self) {
        match self {
            Self::Http(_) => std::future::pending().await,
            Self::Http3(behind) => behind.connection.closed().await,
        }
    }
}

impl Response {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Http(response) => response.status(),
            Self::Http3 { head, .. } => head.status(),
        }
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        match self {
            Self::Http(response) => response.headers(),
            Self::Http3 { head, .. } => head.headers(),
        }
    }

    /// The next bytes of the body.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Unanswered> {
        match self {
            Self::Http(response) => response.chunk().await.map_err(|error| {
                let message = format!("the answer broke off: {error}");
                Unanswered { code: INTERNAL_ERROR, message }
            }),
            Self::Http3 { exchange, .. } => exchange.chunk().await.map_err(|_| broke()),
        }
    }
}
