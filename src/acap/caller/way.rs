//! How a callee's ACAP is reached: over HTTP with a bearer token, or over HTTP/3 at its node's QUIC port, where
//! our certificate says who we are.

use crate::config::HttpUrl;
use crate::http3::Http3;
use crate::peers::Dial;
use axum::http::{Method, header};
use proto::id::AgentId;
use std::fmt;
use std::time::Duration;

/// How long one exchange with a callee may take.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of an answer: a policy, a card, or a page of an audit.
const ANSWER_LEN_MAX: usize = 4 * 1024 * 1024;

/// How long a stream of events may be silent: a callee says more often that it is alive.
const SILENT_TIME_MAX: Duration = Duration::from_secs(60);
/// How long one may last; then it is begun anew.
const FOLLOW_TIME_MAX: Duration = Duration::from_secs(3_600);
/// Bytes of one line of it.
const LINE_LEN_MAX: usize = 64 * 1024;

/// What a callee answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) etag: Option<String>,
    pub(super) body: Vec<u8>,
}

/// The way to one callee.
pub struct Way(Kind);

enum Kind {
    Http { client: reqwest::Client, base: HttpUrl, token: Option<String> },
    Http3(Http3),
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Http { base, .. } => write!(f, "{base}"),
            Kind::Http3(http) => write!(f, "{} at {}", http.peer(), http.address()),
        }
    }
}

fn text(error: impl fmt::Display) -> String {
    error.to_string()
}

impl Way {
    /// Over HTTP or HTTPS at `base`, with a bearer token if the callee wants one.
    ///
    /// # Errors
    /// Why there is no HTTP client.
    pub fn http(base: HttpUrl, token: Option<String>) -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(EXCHANGE_TIME_MAX)
            .build()
            .map_err(text)?;
        Ok(Self(Kind::Http { client, base, token }))
    }

    /// Over HTTP/3 at the QUIC port of `peer`.
    pub(crate) fn http3(dial: Dial, peer: AgentId, address: String) -> Self {
        Self(Kind::Http3(Http3::new(dial, peer, address)))
    }

    /// One exchange. An error says that nothing, or not all, was heard.
    pub(super) async fn exchange(
        &self,
        method: Method,
        path: &str,
        etag: Option<&str>,
        body: Vec<u8>,
    ) -> Result<Answer, String> {
        let exchanged = async {
            match &self.0 {
                Kind::Http { client, base, token } => {
                    http(client, base, token.as_deref(), method, path, etag, body).await
                }
                Kind::Http3(way) => http3(way, method, path, etag, body).await,
            }
        };
        let exchanged = tokio::time::timeout(EXCHANGE_TIME_MAX, exchanged).await;
        exchanged.unwrap_or_else(|_| {
            Err(format!("it did not answer in {} s", EXCHANGE_TIME_MAX.as_secs()))
        })
    }
}

/// Server-sent events, as far as it matters that there are any.
#[derive(Default)]
struct Events {
    line: Vec<u8>,
}

impl Events {
    /// Takes bytes, and calls `event` for each event among them.
    fn take(&mut self, bytes: &[u8], event: &mut impl FnMut()) -> Result<(), String> {
        for byte in bytes {
            match byte {
                b'\n' => {
                    if self.line.starts_with(b"data:") {
                        event();
                    }
                    self.line.clear();
                }
                _ if self.line.len() >= LINE_LEN_MAX => {
                    return Err(format!("a line is over the limit of {LINE_LEN_MAX} bytes"));
                }
                byte => self.line.push(*byte),
            }
        }
        Ok(())
    }
}

impl Way {
    /// Reads a stream of events until it ends, and calls `event` for each. Gives the status of an answer that is none.
    pub(super) async fn follow(
        &self,
        path: &str,
        mut event: impl FnMut(),
    ) -> Result<Option<u16>, String> {
        let within = |_| format!("it is silent for {} s", SILENT_TIME_MAX.as_secs());
        let mut events = Events::default();
        match &self.0 {
            Kind::Http { client, base, token } => {
                let url = format!("{}{path}", base.url().as_str().trim_end_matches('/'));
                let mut request = client.get(url).timeout(FOLLOW_TIME_MAX);
                if let Some(token) = token {
                    request = request.bearer_auth(token);
                }
                let sent = tokio::time::timeout(SILENT_TIME_MAX, request.send()).await;
                let sent = sent.map_err(within)?;
                let mut response = sent.map_err(|error| error.without_url().to_string())?;
                let status = response.status().as_u16();
                if status != 200 {
                    return Ok(Some(status));
                }
                loop {
                    let read = tokio::time::timeout(SILENT_TIME_MAX, response.chunk()).await;
                    let Some(data) = read.map_err(within)?.map_err(text)? else { return Ok(None) };
                    events.take(&data, &mut event)?;
                }
            }
            Kind::Http3(way) => {
                let request = way.request(Method::GET, path).body(()).map_err(text)?;
                let said =
                    tokio::time::timeout(SILENT_TIME_MAX, way.say(request, Vec::new().into()));
                let mut exchange = said.await.map_err(within)?.map_err(text)?;
                let head = tokio::time::timeout(SILENT_TIME_MAX, exchange.head()).await;
                let status = head.map_err(within)?.map_err(text)?.status().as_u16();
                if status != 200 {
                    return Ok(Some(status));
                }
                loop {
                    let read = tokio::time::timeout(SILENT_TIME_MAX, exchange.chunk()).await;
                    let Some(data) = read.map_err(within)?.map_err(text)? else { return Ok(None) };
                    events.take(&data, &mut event)?;
                }
            }
        }
    }
}

fn too_long() -> String {
    format!("its answer is over the limit of {ANSWER_LEN_MAX} bytes")
}

async fn http(
    client: &reqwest::Client,
    base: &HttpUrl,
    token: Option<&str>,
    method: Method,
    path: &str,
    etag: Option<&str>,
    body: Vec<u8>,
) -> Result<Answer, String> {
    // A base with a path of its own keeps it.
    let url = format!("{}{path}", base.url().as_str().trim_end_matches('/'));
    let mut request = client.request(method, url).header(header::CONTENT_TYPE, "application/json");
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    if let Some(etag) = etag {
        request = request.header(header::IF_NONE_MATCH, etag);
    }
    let request = if body.is_empty() { request } else { request.body(body) };
    let mut response = request.send().await.map_err(|error| error.without_url().to_string())?;
    let status = response.status().as_u16();
    let etag = response.headers().get(header::ETAG).and_then(|value| value.to_str().ok());
    let etag = etag.map(str::to_owned);
    let mut found = Vec::new();
    while let Some(data) = response.chunk().await.map_err(text)? {
        if found.len() + data.len() > ANSWER_LEN_MAX {
            return Err(too_long());
        }
        found.extend_from_slice(&data);
    }
    Ok(Answer { status, etag, body: found })
}

async fn http3(
    way: &Http3,
    method: Method,
    path: &str,
    etag: Option<&str>,
    body: Vec<u8>,
) -> Result<Answer, String> {
    let mut request = way.request(method, path).header(header::CONTENT_TYPE, "application/json");
    if let Some(etag) = etag {
        request = request.header(header::IF_NONE_MATCH, etag);
    }
    let request = request.body(()).map_err(text)?;
    let mut exchange = way.say(request, body.into()).await.map_err(text)?;
    let head = exchange.head().await.map_err(text)?;
    let mut found = Vec::new();
    while let Some(data) = exchange.chunk().await.map_err(text)? {
        if found.len() + data.len() > ANSWER_LEN_MAX {
            return Err(too_long());
        }
        found.extend_from_slice(&data);
    }
    let etag = head.headers().get(header::ETAG).and_then(|value| value.to_str().ok());
    Ok(Answer { status: head.status().as_u16(), etag: etag.map(str::to_owned), body: found })
}
