//! The agent over HTTP: JSON-RPC, and server-sent events.

use super::agent::{Ask, Interface, Lost};
use super::body::{Answers, CARD_LEN_MAX, Source, bounded, streams};
use crate::a2a::parameters::VERSION;
use crate::config::HttpUrl;
use bytes::Bytes;
use reqwest::Response;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// How long a connection to the agent may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

impl Source for Response {
    async fn chunk(&mut self) -> Result<Option<Bytes>, Lost> {
        Ok(Self::chunk(self).await?)
    }
}

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
        let mut response = self.client.get(url).send().await?;
        let status = response.status();
        if !status.is_success() {
            return Err(Lost::Broken(format!("its card is {status}")));
        }
        let body = bounded(&mut response, CARD_LEN_MAX).await?;
        serde_json::from_slice(&body).map_err(|error| Lost::Broken(error.to_string()))
    }

    pub(super) async fn ask(
        &self,
        at: &Interface,
        ask: Ask<'_>,
    ) -> Result<Answers<Response>, Lost> {
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
        let response = tokio::time::timeout(self.silent_max, request.send()).await;
        let response = response.map_err(|_| Lost::silent())??;
        let content_type = response.headers().get(reqwest::header::CONTENT_TYPE);
        let streams = streams(content_type.and_then(|value| value.to_str().ok()));
        Ok(Answers::new(response, streams, self.len_max, self.silent_max))
    }
}
