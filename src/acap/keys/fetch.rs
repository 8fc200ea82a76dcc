//! Keys that are fetched: over HTTPS only, from the open internet only, in bounded time and size.

use super::{
    AGENTS_KNOWN_MAX, FETCH_PAUSE_MS, FETCH_TIME_MAX_MS, FETCHES_MAX, KEY_DOCUMENT_LEN_MAX,
    KEYS_TIME_MAX_MS, KeySet, KeySetError, SignatureFault, SignaturePolicy, Times, Verified,
    signature_of,
};
use crate::a2a::reach::{PublicOnly, names_public};
use crate::acap::jws::Signed;
use proto::consent::read;
use proto::id::AgentId;
use proto::time::Time;
use reqwest::{Certificate, Client, Url};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Why the keys of an agent are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Its name says no place.
    #[error(
        "nothing says where the keys of {agent} are: it is no did:key, did:web or https URL, and has no JWKS URL"
    )]
    NoPlace {
        /// Whose.
        agent: AgentId,
    },
    /// A place that is not called.
    #[error("the keys of {agent} would be at {url}, on this machine or in a private network")]
    Private {
        /// Whose.
        agent: AgentId,
        /// Where.
        url: String,
    },
    /// No answer that can be used.
    #[error("the keys of {agent} cannot be had from {url}: {why}")]
    Fetch {
        /// Whose.
        agent: AgentId,
        /// Where.
        url: String,
        /// What happened.
        why: String,
    },
    /// A document without its keys.
    #[error("what {place} says of the keys of {agent}: {why}")]
    Keys {
        /// Whose.
        agent: AgentId,
        /// Where.
        place: String,
        /// What is wrong with it.
        why: KeySetError,
    },
    /// The signature is not good by the keys there are.
    #[error(transparent)]
    Signature(#[from] SignatureFault),
}

/// Where an agent's keys are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In its name.
    Name,
    /// In its DID document.
    Did(Url),
    /// In a JWKS.
    Jwks(Url),
}

impl Source {
    /// Where the name of an agent says that its keys are.
    #[must_use]
    pub fn of(agent: &AgentId) -> Option<Self> {
        let name = agent.as_str();
        if name.starts_with("did:key:") {
            return Some(Self::Name);
        }
        if let Some(rest) = name.strip_prefix("did:web:") {
            return did_web(rest).map(Self::Did);
        }
        let url = Url::parse(name).ok().filter(|url| url.scheme() == "https")?;
        url.join("/.well-known/jwks.json").ok().map(Self::Jwks)
    }
}

/// Where the document of a `did:web` is (did:web method §3.2).
fn did_web(rest: &str) -> Option<Url> {
    let mut parts = rest.split(':');
    let host = parts.next()?.replace("%3A", ":").replace("%3a", ":");
    let path: Vec<&str> = parts.collect();
    let plain = |text: &str, also: &[u8]| {
        let good = |byte: u8| {
            byte.is_ascii_alphanumeric() || b".-_".contains(&byte) || also.contains(&byte)
        };
        // A URL takes an encoded dot for a dot: the document of another would be found behind two of them.
        let dots = text.to_ascii_lowercase().replace("%2e", ".");
        !text.is_empty() && dots != "." && dots != ".." && text.bytes().all(good)
    };
    if !plain(&host, b":") || !path.iter().all(|part| plain(part, b"%~")) {
        return None;
    }
    let path = if path.is_empty() { ".well-known".to_owned() } else { path.join("/") };
    Url::parse(&format!("https://{host}/{path}/did.json")).ok()
}

/// How keys are fetched.
#[derive(Clone, Debug, Default)]
pub struct ResolverOptions {
    /// Keys of agents that are known; they go before all else.
    pub known: BTreeMap<AgentId, Arc<KeySet>>,
    /// JWKS URLs of agents; they go before what a name says.
    pub jwks: BTreeMap<AgentId, Url>,
    /// Whether places on this machine and in private networks are called.
    pub to_private: bool,
    /// CAs that are believed beside those of the system.
    pub roots: Vec<Certificate>,
}

/// What was found at an agent's place, and when.
#[derive(Clone)]
struct Known {
    found: Result<Arc<KeySet>, FetchError>,
    at: Time,
}

/// Finds the keys of agents, and keeps them for a while.
pub struct Resolver {
    options: ResolverOptions,
    client: Client,
    known: Mutex<HashMap<AgentId, Known>>,
    fetches: Semaphore,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resolver")
    }
}

impl Resolver {
    /// One that has fetched nothing yet.
    ///
    /// # Errors
    /// The HTTP client cannot be made.
    pub fn new(options: ResolverOptions) -> Result<Self, reqwest::Error> {
        let mut client = Client::builder()
            .https_only(true)
            .timeout(Duration::from_millis(FETCH_TIME_MAX_MS))
            .no_proxy() // a proxy would look names up in our place
            .redirect(reqwest::redirect::Policy::none())
            .tls_certs_merge(options.roots.iter().cloned());
        if !options.to_private {
            client = client.dns_resolver(Arc::new(PublicOnly));
        }
        let client = client.build()?;
        Ok(Self { options, client, known: Mutex::default(), fetches: Semaphore::new(FETCHES_MAX) })
    }

    /// Checks the signature of a document that comes in now.
    ///
    /// # Errors
    /// [`FetchError`]: the signature is not good, or the keys of its signer cannot be had.
    pub async fn verify(
        &self,
        document: &impl Signed,
        signer: &AgentId,
        policy: SignaturePolicy,
        times: Times,
    ) -> Result<Verified, FetchError> {
        let Some(jws) = signature_of(document, policy)? else { return Ok(Verified::Unsigned) };
        let payload = document.signing_input();
        let now = times.seen;
        let keys = self.keys(signer, now, KEYS_TIME_MAX_MS).await?;
        let fault = match keys.verify(&jws, &payload, signer, times) {
            Ok(()) => return Ok(Verified::Signed),
            Err(fault) => fault,
        };
        // It may have a new key, which the signature names, or does not.
        if keys.knows(&jws) && jws.kid().is_some() {
            return Err(fault.into());
        }
        self.keys(signer, now, FETCH_PAUSE_MS).await?.verify(&jws, &payload, signer, times)?;
        Ok(Verified::Signed)
    }

    /// The keys of an agent, fetched at most `age_max_ms` ago.
    ///
    /// # Errors
    /// [`FetchError`]: they cannot be had; that too is kept, for a shorter while.
    pub async fn keys(
        &self,
        agent: &AgentId,
        now: Time,
        age_max_ms: u64,
    ) -> Result<Arc<KeySet>, FetchError> {
        if let Some(known) = self.options.known.get(agent) {
            return Ok(known.clone());
        }
        let told = self.options.jwks.get(agent).cloned().map(Source::Jwks);
        let source = told.clone().or_else(|| Source::of(agent));
        let source = source.ok_or_else(|| FetchError::NoPlace { agent: agent.clone() })?;
        let url = match &source {
            Source::Name => {
                let keys = KeySet::from_did_key(agent.as_str());
                return keys.map(Arc::new).map_err(|why| FetchError::Keys {
                    agent: agent.clone(),
                    place: "its name".to_owned(),
                    why,
                });
            }
            Source::Did(url) | Source::Jwks(url) => url.clone(),
        };
        if let Some(found) = self.known(agent, now, age_max_ms) {
            return found;
        }
        let failed =
            |why: String| FetchError::Fetch { agent: agent.clone(), url: url.to_string(), why };
        if !self.options.to_private && !names_public(&url) {
            return Err(FetchError::Private { agent: agent.clone(), url: url.to_string() });
        }
        let limit = Duration::from_millis(FETCH_TIME_MAX_MS);
        let room = tokio::time::timeout(limit, self.fetches.acquire()).await;
        let Ok(Ok(_room)) = room else {
            return Err(failed(format!("{FETCHES_MAX} fetches are under way, the limit")));
        };
        // Somebody else may have fetched them meanwhile.
        if let Some(found) = self.known(agent, now, age_max_ms) {
            return found;
        }
        let found = match self.fetch(&url).await {
            Err(why) => Err(failed(why)),
            Ok(document) => {
                let keys = match &source {
                    Source::Did(_) => KeySet::from_did_document(agent.as_str(), &document),
                    _ => KeySet::from_jwks(&document),
                };
                keys.map(Arc::new).map_err(|why| FetchError::Keys {
                    agent: agent.clone(),
                    place: url.to_string(),
                    why,
                })
            }
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= AGENTS_KNOWN_MAX && !known.contains_key(agent) {
            let oldest =
                known.iter().min_by_key(|(_, known)| known.at).map(|(agent, _)| agent.clone());
            oldest.and_then(|agent| known.remove(&agent));
        }
        known.insert(agent.clone(), Known { found: found.clone(), at: now });
        found
    }

    fn known(
        &self,
        agent: &AgentId,
        now: Time,
        age_max_ms: u64,
    ) -> Option<Result<Arc<KeySet>, FetchError>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Known { found, at } = known.get(agent)?;
        let age_max_ms = if found.is_ok() { age_max_ms } else { FETCH_PAUSE_MS };
        (now.ms_since(*at) < age_max_ms).then(|| found.clone())
    }

    async fn fetch(&self, url: &Url) -> Result<Value, String> {
        let explain = |error: reqwest::Error| {
            let error = error.without_url();
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            let text = format!("{error}{}", cause.unwrap_or_default());
            text.chars().take(256).collect::<String>()
        };
        let mut response = self.client.get(url.clone()).send().await.map_err(explain)?;
        if response.status() != reqwest::StatusCode::OK {
            return Err(format!("it answers {}", response.status()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(explain)? {
            if body.len() + chunk.len() > KEY_DOCUMENT_LEN_MAX {
                return Err(format!("it is over the limit of {KEY_DOCUMENT_LEN_MAX} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        read(&body).map_err(|error| error.to_string())
    }
}
