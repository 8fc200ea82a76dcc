//! The agent over HTTP: JSON-RPC, and server-sent events.

use super::agent::{Ask, Interface, Lost, Said, said};
use crate::a2a::parameters::VERSION;
use crate::config::HttpUrl;
use reqwest::Response;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// Bytes of an agent card.
const CARD_LEN_MAX: usize = 1024 * 1024;
/// How long a connection to the agent may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

impl From<reqwest::Error> for Lost {
    fn from(error: reqwest::Error) -> Self {
        let unreached = error.is_connect() || error.is_builder();
        let why = error.without_url().to_string();
        if unreached { Self::Unreached(why) } else { Self::Broken(why) }
    }
}

/// An agent at a URL.
#[derive(Debug)]
pub(crate) struct HttpAgent {
    base: HttpUrl,
    client: reqwest::Client,
    silent_max: Duration,
    len_max: usize,
}

impl fmt::Display for HttpAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.base.fmt(f)
    }
}

impl HttpAgent {
    pub(super) fn new(
        base: HttpUrl,
        silent_max: Duration,
        len_max: usize,
    ) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIME_MAX)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self { base, client, silent_max, len_max })
    }

    pub(super) async fn card(&self) -> Result<Value, Lost> {
        let mut url = self.base.url().clone();
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        let url = url
            .join(".well-known/agent-card.json")
            .map_err(|error| Lost::Unreached(error.to_string()))?;
        let response = self.client.get(url).send().await?;
        let status = response.status();
        if !status.is_success() {
            return Err(Lost::Broken(format!("its card is {status}")));
        }
        let body = bounded(response, CARD_LEN_MAX).await?;
        serde_json::from_slice(&body).map_err(|error| Lost::Broken(error.to_string()))
    }

    pub(super) async fn ask(&self, at: &Interface, ask: Ask<'_>) -> Result<Answers, Lost> {
        let url = HttpUrl::try_from(at.url.clone());
        let url = url.map_err(|error| Lost::Unreached(format!("its card: {error}")))?;
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": ask.method, "params": ask.params });
        let mut request = self
            .client
            .post(url.url().clone())
            .header("a2a-version", VERSION)
            .header("accept", "text/event-stream, application/json")
            .json(&body);
        if !ask.extensions.is_empty() {
            request = request.header("a2a-extensions", ask.extensions.join(","));
        }
        if let Some(key) = ask.key {
            request = request.header("idempotency-key", key);
        }
        // An answer begins before the work is done, or the agent counts as silent.
        match tokio::time::timeout(self.silent_max, request.send()).await {
            Ok(response) => Ok(Answers::of(self, response?)),
            Err(_) => Err(Lost::silent()),
        }
    }
}

/// A body within a limit, in bytes.
async fn bounded(mut response: Response, max: usize) -> Result<Vec<u8>, Lost> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > max {
            return Err(Lost::Broken(format!("its answer is over the limit of {max} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The results of one call: a stream of events, or one.
pub(super) struct Answers {
    response: Response,
    streams: bool,
    over: bool,
    buffer: Vec<u8>,
    len_max: usize,
    silent_max: Duration,
}

impl Answers {
    fn of(agent: &HttpAgent, response: Response) -> Self {
        let streams = response
            .headers()
            .get(reqwest::header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|text| text.starts_with("text/event-stream"));
        let (len_max, silent_max) = (agent.len_max, agent.silent_max);
        Self { response, streams, over: false, buffer: Vec::new(), len_max, silent_max }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Said>, Lost> {
        loop {
            if let Some(data) = self.whole() {
                return said(&data).map(Some);
            }
            if self.over {
                return Ok(None);
            }
            match tokio::time::timeout(self.silent_max, self.response.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    if self.buffer.len() + chunk.len() > self.len_max {
                        let max = self.len_max;
                        let what = format!("its answer is over the limit of {max} bytes");
                        return Err(Lost::Broken(what));
                    }
                    self.buffer.extend_from_slice(&chunk);
                }
                Ok(Ok(None)) => self.over = true,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(Lost::silent()),
            }
        }
    }

    /// The data of one whole event in the buffer.
    fn whole(&mut self) -> Option<Vec<u8>> {
        if !self.streams {
            return (self.over && !self.buffer.is_empty())
                .then(|| std::mem::take(&mut self.buffer));
        }
        loop {
            let text = &self.buffer;
            let end = (0..text.len()).find_map(|at| {
                let rest = text.get(at..)?;
                [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"]
                    .into_iter()
                    .find(|end| rest.starts_with(end))
                    .map(|end| at + end.len())
            });
            let event: Vec<u8> = self.buffer.drain(..end?).collect();
            let data: Vec<&[u8]> = event
                .split(|byte| matches!(byte, b'\n' | b'\r'))
                .filter_map(|line| line.strip_prefix(b"data:"))
                .collect();
            if !data.is_empty() {
                return Some(data.join(&b'\n'));
            }
        }
    }
}
