//! How a callee's ACAP is reached: over HTTP with a bearer token, or over HTTP/3 at its node's QUIC port, where
//! our certificate says who we are.

use crate::api::h3::HEAD_LEN_MAX;
use crate::config::HttpUrl;
use crate::peers::Dial;
use crate::tls::ALPN_H3;
use axum::http::{Method, Request, header};
use bytes::{Buf as _, Bytes};
use h3::client::SendRequest;
use h3::error::Code;
use proto::id::AgentId;
use std::fmt;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long one exchange with a callee may take.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of an answer: a policy, a card, or a page of an audit.
const ANSWER_LEN_MAX: usize = 4 * 1024 * 1024;

type Requests = SendRequest<h3_quinn::OpenStreams, Bytes>;

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
    Http {
        client: reqwest::Client,
        base: HttpUrl,
        token: Option<String>,
    },
    Http3 {
        dial: Dial,
        peer: AgentId,
        address: String,
        session: tokio::sync::Mutex<Option<Session>>,
    },
}

struct Session {
    quic: quinn::Connection,
    requests: Requests,
    /// What it needs to go on; it ends with it.
    _task: JoinSet<()>,
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Http { base, .. } => write!(f, "{base}"),
            Kind::Http3 { peer, address, .. } => write!(f, "{peer} at {address}"),
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
        Self(Kind::Http3 { dial, peer, address, session: tokio::sync::Mutex::default() })
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
                Kind::Http3 { .. } => self.over_http3(method, path, etag, body.into()).await,
            }
        };
        let exchanged = tokio::time::timeout(EXCHANGE_TIME_MAX, exchanged).await;
        exchanged.unwrap_or_else(|_| {
            Err(format!("it did not answer in {} s", EXCHANGE_TIME_MAX.as_secs()))
        })
    }

    async fn over_http3(
        &self,
        method: Method,
        path: &str,
        etag: Option<&str>,
        body: Bytes,
    ) -> Result<Answer, String> {
        let Kind::Http3 { address, .. } = &self.0 else { return Err("not HTTP/3".to_owned()) };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{address}{path}"))
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(etag) = etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        let request = request.body(()).map_err(text)?;
        let mut stream = self.requests().await?.send_request(request).await.map_err(text)?;
        if !body.is_empty() {
            stream.send_data(body).await.map_err(text)?;
        }
        stream.finish().await.map_err(text)?;
        let head = stream.recv_response().await.map_err(text)?;
        let mut found = Vec::new();
        while let Some(mut data) = stream.recv_data().await.map_err(text)? {
            let data = data.copy_to_bytes(data.remaining());
            if found.len() + data.len() > ANSWER_LEN_MAX {
                return Err(too_long());
            }
            found.extend_from_slice(&data);
        }
        let etag = head.headers().get(header::ETAG).and_then(|value| value.to_str().ok());
        Ok(Answer { status: head.status().as_u16(), etag: etag.map(str::to_owned), body: found })
    }

    /// The connection that there is, or a new one.
    async fn requests(&self) -> Result<Requests, String> {
        let Kind::Http3 { dial, peer, address, session } = &self.0 else {
            return Err("not HTTP/3".to_owned());
        };
        let mut session = session.lock().await; // one dials, the others wait for it
        if let Some(session) = session.as_ref().filter(|open| open.quic.close_reason().is_none()) {
            return Ok(session.requests.clone());
        }
        let quic = dial.to(peer, address, ALPN_H3).await.map_err(text)?;
        let (mut http, requests) = h3::client::builder()
            .max_field_section_size(HEAD_LEN_MAX)
            .send_grease(false)
            .build(h3_quinn::Connection::new(quic.clone()))
            .await
            .map_err(text)?;
        let mut task = JoinSet::new();
        let ends = quic.clone();
        task.spawn(async move {
            let error = http.wait_idle().await;
            tracing::debug!(%error, "an HTTP/3 connection with a callee ended");
            ends.close(u32::try_from(Code::H3_NO_ERROR.value()).unwrap_or_default().into(), b"");
        });
        Ok(session.insert(Session { quic, requests, _task: task }).requests.clone())
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
