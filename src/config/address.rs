//! Addresses and URLs, checked when they are read.

use proto::id::AgentId;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// Why a text is no address or URL of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// No `host:port`.
    #[error(
        "{0:?} is no host:port, such as node-b.example.org:4433, 192.0.2.7:4433 or [2001:db8::7]:4433"
    )]
    HostPort(String),
    /// No usable URL.
    #[error(
        "{0:?} is no URL we can call: http:// or https://, a host, and no user name or password in it"
    )]
    Url(String),
    /// No agent.
    #[error(
        "{0:?} is no agent: \"echo\", an http:// or https:// URL, or the id of a peer, such as spiffe://example.org/agent/b"
    )]
    Agent(String),
}

/// Where a peer can be reached: a host name or address and a port that is not 0.
///
/// Names are looked up at each dial, so that a peer may move.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPort(String);

impl HostPort {
    /// The text, which `tokio::net::lookup_host` takes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for HostPort {
    type Error = AddressError;
    fn try_from(text: String) -> Result<Self, AddressError> {
        let good = match text.parse::<SocketAddr>() {
            Ok(address) => address.port() != 0,
            Err(_) => text.rsplit_once(':').is_some_and(|(host, port)| {
                let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
                !host.is_empty()
                    && host.chars().all(plain)
                    && port.parse::<u16>().is_ok_and(|port| port != 0)
            }),
        };
        if good { Ok(Self(text)) } else { Err(AddressError::HostPort(text)) }
    }
}

impl std::str::FromStr for HostPort {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        text.to_owned().try_into()
    }
}

impl From<HostPort> for String {
    fn from(address: HostPort) -> Self {
        address.0
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An `http` or `https` URL with a host and without credentials.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct HttpUrl(reqwest::Url);

impl HttpUrl {
    /// The URL.
    #[must_use]
    pub const fn url(&self) -> &reqwest::Url {
        &self.0
    }

    /// Whether a secret may be sent there: over TLS, or without leaving the machine.
    #[must_use]
    pub fn is_private(&self) -> bool {
        let host = self.0.host_str().unwrap_or_default().trim_matches(['[', ']']);
        self.0.scheme() == "https"
            || host == "localhost"
            || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
    }
}

impl TryFrom<String> for HttpUrl {
    type Error = AddressError;
    fn try_from(text: String) -> Result<Self, AddressError> {
        match reqwest::Url::parse(&text) {
            Ok(url)
                if matches!(url.scheme(), "http" | "https")
                    && url.has_host()
                    && url.username().is_empty()
                    && url.password().is_none() =>
            {
                Ok(Self(url))
            }
            _ => Err(AddressError::Url(text)),
        }
    }
}

impl std::str::FromStr for HttpUrl {
    type Err = AddressError;
    fn from_str(text: &str) -> Result<Self, AddressError> {
        text.to_owned().try_into()
    }
}

impl From<HttpUrl> for String {
    fn from(url: HttpUrl) -> Self {
        url.0.into()
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Who executes A2A tasks.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(try_from = "String", into = "String")]
pub enum A2aAgent {
    /// The node itself: says back what it is told.
    Echo,
    /// An A2A agent whose card is at `/.well-known/agent-card.json` below this URL.
    Http(HttpUrl),
    /// The agent behind this peer's node, called over QUIC.
    Peer(AgentId),
}

impl TryFrom<String> for A2aAgent {
    type Error = AddressError;
    fn try_from(text: String) -> Result<Self, AddressError> {
        if text == "echo" {
            return Ok(Self::Echo);
        }
        if ["http:", "https:"].iter().any(|scheme| text.starts_with(scheme)) {
            return HttpUrl::try_from(text).map(Self::Http);
        }
        AgentId::new(&text).map(Self::Peer).map_err(|_| AddressError::Agent(text))
    }
}

impl From<A2aAgent> for String {
    fn from(agent: A2aAgent) -> Self {
        match agent {
            A2aAgent::Echo => "echo".into(),
            A2aAgent::Http(url) => url.into(),
            A2aAgent::Peer(id) => id.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_address_has_a_host_and_a_port() {
        for good in ["a:1", "node-b.example.org:4433", "192.0.2.7:65535", "[2001:db8::7]:4433"] {
            assert_eq!(good.parse::<HostPort>().unwrap().as_str(), good);
        }
        for bad in [
            "",
            "a",
            "a:",
            ":1",
            "a:0",
            "1.2.3.4:0",
            "a:65536",
            "a b:1",
            "2001:db8::7:4433",
            "http://a:1",
        ] {
            assert_eq!(bad.parse::<HostPort>(), Err(AddressError::HostPort(bad.into())));
        }
    }

    #[test]
    fn an_agent_is_ours_at_a_url_or_behind_a_peer() {
        let agent = |text: &str| A2aAgent::try_from(text.to_owned());
        for (text, url, peer) in [
            ("echo", false, false),
            ("https://agent.example.org/a", true, false),
            ("spiffe://example.org/agent/b", false, true),
            ("b.example.org", false, true),
        ] {
            let read = agent(text).unwrap();
            let found = (matches!(read, A2aAgent::Http(_)), matches!(read, A2aAgent::Peer(_)));
            assert_eq!(found, (url, peer), "{text}");
            assert_eq!(String::from(read), text);
        }
        assert_eq!(agent("http://"), Err(AddressError::Url("http://".into())));
        assert_eq!(agent(" "), Err(AddressError::Agent(" ".into())));
    }

    #[test]
    fn a_url_can_be_called_and_holds_no_password() {
        for bad in [
            "",
            "example.org",
            "ftp://example.org",
            "http://",
            "http://u:p@example.org",
            "http://u@a",
        ] {
            assert_eq!(bad.parse::<HttpUrl>(), Err(AddressError::Url(bad.into())));
        }
        let private = |text: &str| text.parse::<HttpUrl>().unwrap().is_private();
        for good in
            ["https://example.org/x", "http://127.0.0.1:80/", "http://[::1]/", "http://localhost/"]
        {
            assert!(private(good), "{good}");
        }
        assert!(!private("http://example.org/") && !private("http://localhost.example.org/"));
    }
}
