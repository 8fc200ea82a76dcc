//! The HTTP client of the commands, and errors that say what to do.

use super::Global;
use crate::config::{HttpUrl, NodeConfig, read_token};
use crate::mcp::forward::Target;
use anyhow::{Context as _, bail};
use reqwest::{Method, Response, StatusCode, Url};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// How long a connection may take to come up.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long an answer may take, beyond what the call itself asks the node to wait.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
/// Items asked for at once.
const PAGE: usize = 1000;

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    #[error(
        "no node answers at {url}: {why}\n  hint: start it with `abhyasa node --config {config}`"
    )]
    NotRunning { url: String, why: String, config: String },
    #[error("{message}{}", hint(*status, code))]
    Api { status: StatusCode, code: String, message: String },
}

fn hint(status: StatusCode, code: &str) -> &'static str {
    match (status, code) {
        (StatusCode::UNAUTHORIZED, _) => {
            "\n  hint: name the file with the node's token: --token-file FILE, or token_file in [api] of --config"
        }
        (_, "unknown_target") => "\n  hint: list it under [[peers]] in the node's configuration",
        (_, "superseded") => "\n  hint: leave --sequence out to take the next one",
        (_, "polarity") => "\n  hint: see `abhyasa issue --help` for the payloads of each kind",
        _ => "",
    }
}

/// A node's API.
#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<String>,
    config: String,
}

impl Client {
    /// Finds the node by the flags, or by its configuration.
    pub(super) fn find(global: &Global) -> anyhow::Result<Self> {
        let file = global.config_file();
        let config = match (&global.api, &global.config) {
            (Some(_), None) => None,
            _ => Some(NodeConfig::load(&file)?),
        };
        let base = match (&global.api, &config) {
            (Some(url), _) => url.clone(),
            (None, Some(config)) => listen_url(config.api.listen)?,
            (None, None) => bail!("neither --api nor a configuration names the node"),
        };
        let token_file =
            global.token_file.as_ref().or_else(|| config.as_ref()?.api.token_file.as_ref());
        let token = token_file.map(|file| read_token(file)).transpose()?;
        if token.is_some() && !base.is_private() {
            eprintln!("warning: the token goes to {base} in clear text; use https or a tunnel");
        }
        // The node is ours and near: no proxy stands between.
        let http =
            reqwest::Client::builder().no_proxy().connect_timeout(CONNECT_TIME_MAX).build()?;
        Ok(Self { http, base: base.url().clone(), token, config: file.display().to_string() })
    }

    /// A path below the API, for those who make the requests themselves.
    pub(super) fn target(&self, path: &str) -> Target {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push(path);
        }
        let hint = format!("\n  hint: start it with `abhyasa node --config {}`", self.config);
        let (http, token) = (self.http.clone(), self.token.clone());
        Target { http, url, token, who: "no node", hint }
    }

    pub(super) async fn get(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> anyhow::Result<Value> {
        json(self.send(Method::GET, path, query, None, Some(ANSWER_TIME_MAX)).await?).await
    }

    /// Posts; the node itself may take `wait` to answer.
    pub(super) async fn post(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
        wait: Duration,
    ) -> anyhow::Result<Value> {
        json(self.send(Method::POST, path, query, body, Some(ANSWER_TIME_MAX + wait)).await?).await
    }

    /// A GET without an end.
    pub(super) async fn stream(&self, path: &[&str]) -> anyhow::Result<Response> {
        self.send(Method::GET, path, &[], None, None).await
    }

    /// Up to `limit` items of a list: `{"items":[…],"next":…}`, and what else its last page has.
    pub(super) async fn list(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        limit: usize,
        mut after: Option<String>,
    ) -> anyhow::Result<Value> {
        let mut items = Vec::new();
        loop {
            let mut query = query.to_vec();
            query.push(("limit", PAGE.min(limit - items.len()).to_string()));
            query.extend(after.map(|after| ("after", after)));
            let mut page = self.get(path, &query).await?;
            if let Some(Value::Array(more)) = page.get_mut("items").map(Value::take) {
                items.extend(more);
            }
            after = page.get("next").and_then(Value::as_str).map(str::to_owned);
            if after.is_none() || items.len() >= limit {
                // What is beside the items is the same on every page, or where the next begins.
                if let Some(members) = page.as_object_mut() {
                    members.insert("items".to_owned(), items.into());
                }
                return Ok(page);
            }
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &[&str],
        query: &[(&str, String)],
        body: Option<&Value>,
        timeout: Option<Duration>,
    ) -> anyhow::Result<Response> {
        let mut url = self.base.clone();
        // The base of an http URL always takes segments, and each is percent-encoded.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = self.http.request(method, url);
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(|error| self.unreachable(error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.unwrap_or_default();
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let of = |member| body.pointer(member).and_then(Value::as_str).map(str::to_owned);
        let code =
            of("/error/code").or_else(|| of("/why")).unwrap_or_else(|| status.as_u16().to_string());
        let message = of("/error/message").unwrap_or_else(|| format!("the node answered {status}"));
        Err(ClientError::Api { status, code, message }.into())
    }

    fn unreachable(&self, error: reqwest::Error) -> anyhow::Error {
        if !error.is_connect() {
            return anyhow::Error::new(error).context(format!("{} did not answer", self.base));
        }
        let mut why: &dyn std::error::Error = &error;
        while let Some(source) = why.source() {
            why = source;
        }
        let (url, why, config) = (self.base.to_string(), why.to_string(), self.config.clone());
        ClientError::NotRunning { url, why, config }.into()
    }
}

async fn json(response: Response) -> anyhow::Result<Value> {
    let text = response.text().await.context("the answer broke off")?;
    if text.is_empty() {
        return Ok(serde_json::json!({}));
    }
    serde_json::from_str(&text).context("the answer is no JSON: is that an abhyasa node?")
}

/// Where to reach a node that listens on `listen`.
fn listen_url(listen: SocketAddr) -> anyhow::Result<HttpUrl> {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    if listen.port() == 0 {
        bail!(
            "[api] listen has port 0, which is chosen at each start\n  hint: --api http://ADDRESS, as the node said when it started"
        );
    }
    Ok(format!("http://{}", SocketAddr::new(ip, listen.port())).parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_listens_everywhere_is_called_here() {
        let url = |listen: &str| listen_url(listen.parse().unwrap()).map(|url| url.to_string());
        assert_eq!(url("0.0.0.0:8433").unwrap(), "http://127.0.0.1:8433/");
        assert_eq!(url("[::]:8433").unwrap(), "http://[::1]:8433/");
        assert_eq!(url("192.0.2.7:1").unwrap(), "http://192.0.2.7:1/");
        assert!(url("127.0.0.1:0").unwrap_err().to_string().contains("--api"));
    }
}
