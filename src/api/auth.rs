//! Who may call: operators by token or by being on this machine, peers by their own token only.

use super::App;
use super::error::ApiError;
use crate::config::{NodeConfig, SecretError, read_token};
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use proto::id::AgentId;
use std::fmt;
use std::hint::black_box;
use std::net::IpAddr;

/// Tokens of the API, and whether it stands on a loopback address.
pub struct Auth {
    loopback: bool,
    operator: Option<Token>,
    peers: Vec<(AgentId, Token)>,
}

/// Why the tokens cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// A token file is missing, open to all, or holds no token.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Two callers could not be told apart.
    #[error("{first} and {second} have the same token; fix: give each its own")]
    SameToken {
        /// A peer, or the operator.
        first: String,
        /// The other.
        second: String,
    },
}

struct Token(String);

impl Token {
    /// Takes as long for a wrong token as for the right one, so that time tells nothing of it.
    fn is(&self, given: &str) -> bool {
        let (mine, given) = (self.0.as_bytes(), given.as_bytes());
        let differ = mine.iter().zip(given).fold(0, |differ, (a, b)| black_box(differ | (a ^ b)));
        mine.len() == given.len() && differ == 0
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peers: Vec<_> = self.peers.iter().map(|(peer, _)| peer).collect();
        f.debug_struct("Auth")
            .field("loopback", &self.loopback)
            .field("operator_token", &self.operator.is_some())
            .field("peers", &peers)
            .finish()
    }
}

impl Auth {
    /// Reads the token files that `config` names.
    ///
    /// # Errors
    /// [`AuthError`]: a file cannot be used, or two of them hold the same token.
    pub fn load(config: &NodeConfig) -> Result<Self, AuthError> {
        let token = |file: &std::path::PathBuf| read_token(file).map(Token);
        let operator = config.api.token_file.as_ref().map(token).transpose()?;
        let mut peers: Vec<(AgentId, Token)> = Vec::new();
        for peer in &config.peers {
            let Some(file) = &peer.http_token_file else { continue };
            let token = token(file)?;
            let named = |(id, other): &(AgentId, Token)| other.is(&token.0).then(|| id.to_string());
            let same =
                operator.iter().find(|other| other.is(&token.0)).map(|_| "the operator".to_owned());
            if let Some(first) = same.or_else(|| peers.iter().find_map(named)) {
                return Err(AuthError::SameToken { first, second: peer.id.to_string() });
            }
            peers.push((peer.id.clone(), token));
        }
        Ok(Self { loopback: config.api.is_loopback(), operator, peers })
    }

    /// Without a token a loopback API trusts whoever reaches it, so a web page must not: a browser
    /// names the page in `Origin`, or the page's own host in `Host` after DNS rebinding.
    fn check_browser(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
        if !self.loopback {
            return Ok(());
        }
        if headers.contains_key(header::ORIGIN) {
            return Err(page("requests from web pages are refused: they carry an Origin header"));
        }
        self.check_host(headers, uri)
    }

    /// Clients of MCP may name an origin, and it must be that of the very server they ask (MCP,
    /// Streamable HTTP): the one page we serve, of an audit, is sandboxed, so none that a browser shows has it.
    fn check_own_origin(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
        let host = host.or_else(|| uri.authority().map(Authority::as_str));
        for origin in headers.get_all(header::ORIGIN) {
            let named = origin.to_str().ok().and_then(|text| {
                text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))
            });
            let own = named.zip(host).is_some_and(|(named, host)| named.eq_ignore_ascii_case(host));
            if !own {
                return Err(page("the Origin header names another place than the Host header"));
            }
        }
        self.check_host(headers, uri)
    }

    /// A page whose name was made to lead here still says its own name in `Host`.
    fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), ApiError> {
        if !self.loopback {
            return Ok(());
        }
        let mut hosts = headers
            .get_all(header::HOST)
            .iter()
            .map(|value| value.to_str().unwrap_or_default())
            .peekable();
        let named = hosts.peek().is_some() || uri.authority().is_some();
        if !named
            || !hosts.all(is_loopback)
            || !uri.authority().is_none_or(|host| is_loopback(host.as_str()))
        {
            return Err(page(
                "this API answers to loopback names and addresses only, as its Host header should say",
            ));
        }
        Ok(())
    }

    fn check_operator(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        match (&self.operator, bearer(headers)) {
            // A configuration beyond loopback without a token is refused; this is the second lock.
            (None, _) if self.loopback => Ok(()),
            (Some(token), Some(given)) if token.is(given) => Ok(()),
            _ => Err(ApiError::unauthorized()),
        }
    }

    /// Who calls the agent behind this node: a peer by its certificate or token, or (`None`) who may
    /// use the API. A token that is nobody's is refused even where none is needed.
    pub(crate) fn caller(&self, parts: &Parts) -> Result<Option<AgentId>, ApiError> {
        let (headers, uri) = (&parts.headers, &parts.uri);
        if let Some(Certified(peer)) = parts.extensions.get() {
            return Ok(Some(peer.clone()));
        }
        if !headers.contains_key(header::AUTHORIZATION) {
            self.check_browser(headers, uri)?;
            return self.check_operator(headers).map(|()| None);
        }
        if let Ok(peer) = self.peer(headers) {
            return Ok(Some(peer));
        }
        self.check_browser(headers, uri)?;
        let given = bearer(headers).unwrap_or_default();
        match &self.operator {
            Some(token) if token.is(given) => Ok(None),
            _ => Err(ApiError::unauthorized()),
        }
    }

    fn peer(&self, headers: &HeaderMap) -> Result<AgentId, ApiError> {
        let given = bearer(headers).unwrap_or_default();
        let mut found = None;
        for (peer, token) in &self.peers {
            if token.is(given) {
                found = Some(peer); // and on, so that its place in the list tells nothing
            }
        }
        found.cloned().ok_or_else(ApiError::unauthorized)
    }
}

/// Refuses what a web page may have sent.
fn page(message: &str) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, "browser", message)
}

/// The token of an `Authorization: Bearer` header (RFC 6750 §2.1).
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_matches(['[', ']']);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Lets no web page through.
pub(crate) async fn no_browser(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.auth.check_browser(request.headers(), request.uri()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Lets through who names no origin, or ours.
pub(crate) async fn own_origin(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.auth.check_own_origin(request.headers(), request.uri()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Lets operators through.
pub(crate) async fn operator(State(app): State<App>, request: Request, next: Next) -> Response {
    match app.auth.check_operator(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

/// Who is known by the certificate of its connection, put into its requests by the server.
#[derive(Clone, Debug)]
pub(crate) struct Certified(pub(crate) AgentId);

/// The peer whose certificate the connection or whose token the request shows. Being on this
/// machine counts for nothing.
pub(crate) struct Peer(pub(crate) AgentId);

impl FromRequestParts<App> for Peer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        match parts.extensions.get::<Certified>() {
            Some(Certified(peer)) => Ok(Self(peer.clone())),
            None => app.auth.peer(&parts.headers).map(Self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderValue, Request};

    fn headers(pairs: &[(header::HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    fn auth(loopback: bool, operator: Option<&str>) -> Auth {
        let id = |name| AgentId::new(name).unwrap();
        let peers =
            vec![(id("a"), Token("token-of-a".into())), (id("b"), Token("token-of-b".into()))];
        Auth { loopback, operator: operator.map(|token| Token(token.into())), peers }
    }

    #[test]
    fn a_web_page_does_not_get_through() {
        let auth = auth(true, None);
        let check = |host, uri: &'static str| {
            auth.check_browser(&headers(&[(header::HOST, host)]), &Uri::from_static(uri))
        };
        for host in [
            "localhost",
            "LOCALHOST:8433",
            "127.0.0.1",
            "127.9.9.9:1",
            "[::1]:8433",
            "[::ffff:127.0.0.1]",
        ] {
            assert!(check(host, "/v1/pending").is_ok(), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[2001:db8::1]",
            "",
            "127.0.0.1@evil",
        ] {
            assert_eq!(
                check(host, "/v1/pending").unwrap_err().status(),
                StatusCode::FORBIDDEN,
                "{host}"
            );
        }
        assert!(check("localhost", "http://evil.example/v1/pending").is_err(), "absolute form");
        assert!(
            auth.check_browser(&HeaderMap::new(), &Uri::from_static("/")).is_err(),
            "no host at all"
        );
        let page =
            headers(&[(header::HOST, "localhost"), (header::ORIGIN, "http://localhost:3000")]);
        assert!(auth.check_browser(&page, &Uri::from_static("/")).is_err());
    }

    #[test]
    fn operators_need_the_token_where_there_is_one() {
        let with = |token| headers(&[(header::AUTHORIZATION, token)]);
        assert!(auth(true, None).check_operator(&HeaderMap::new()).is_ok());
        assert!(auth(false, None).check_operator(&HeaderMap::new()).is_err(), "fails closed");
        let auth = auth(true, Some("operator-token"));
        assert!(auth.check_operator(&with("bearer operator-token")).is_ok());
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer operator-toke",
            "Bearer operator-token2",
            "Basic operator-token",
            "Bearer token-of-a",
        ] {
            assert!(auth.check_operator(&with(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_peer_is_who_its_token_says() {
        let auth = auth(true, None);
        let peer = |token| auth.peer(&headers(&[(header::AUTHORIZATION, token)]));
        assert_eq!(peer("Bearer token-of-b").unwrap().as_str(), "b");
        assert!(peer("Bearer token-of-c").is_err());
        assert!(auth.peer(&HeaderMap::new()).is_err(), "loopback is no identity");
    }

    #[test]
    fn a_caller_is_a_peer_or_who_may_use_the_api_and_no_other() {
        let parts = |more: Option<(header::HeaderName, &'static str)>| {
            let mut request = Request::new(());
            request.headers_mut().insert(header::HOST, HeaderValue::from_static("localhost"));
            if let Some((name, value)) = more {
                request.headers_mut().insert(name, HeaderValue::from_static(value));
            }
            request.into_parts().0
        };
        let call = |auth: &Auth, token: Option<&'static str>| {
            let sent = parts(token.map(|token| (header::AUTHORIZATION, token)));
            auth.caller(&sent).map(|peer| peer.map(|peer| peer.to_string()))
        };
        let open = auth(true, None);
        assert_eq!(call(&open, None).unwrap(), None);
        assert_eq!(call(&open, Some("Bearer token-of-a")).unwrap(), Some("a".to_owned()));
        assert!(call(&open, Some("Bearer token-of-nobody")).is_err());
        let closed = auth(false, Some("operator-token"));
        assert!(call(&closed, None).is_err());
        assert_eq!(call(&closed, Some("Bearer operator-token")).unwrap(), None);
        assert_eq!(call(&closed, Some("Bearer token-of-b")).unwrap(), Some("b".to_owned()));
        let page = parts(Some((header::ORIGIN, "http://evil.example")));
        assert!(open.caller(&page).is_err(), "a web page");
        let mut certified = parts(None);
        certified.extensions.insert(Certified(AgentId::new("c").unwrap()));
        assert_eq!(closed.caller(&certified).unwrap().unwrap().as_str(), "c");
    }

    #[test]
    #[cfg(unix)]
    fn two_callers_with_one_token_are_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        for name in ["x.token", "y.token"] {
            let file = dir.path().join(name);
            std::fs::write(&file, "0123456789abcdef").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let load = |text: &str| {
            let config = NodeConfig::parse(text, &dir.path().join("abhyasa.toml")).unwrap();
            Auth::load(&config).map_err(|error| error.to_string())
        };
        let error = load("[node]\nid='n'\n[[peers]]\nid='x'\nhttp_token_file='x.token'\n[[peers]]\nid='y'\nhttp_token_file='y.token'").unwrap_err();
        assert!(error.starts_with("x and y have the same token"), "{error}");
        let error = load("[node]\nid='n'\n[api]\ntoken_file='y.token'\n[[peers]]\nid='x'\nhttp_token_file='x.token'").unwrap_err();
        assert!(error.starts_with("the operator and x"), "{error}");
    }
}
