//! `[[peers]]`: whom we deal with, and who may do what. An agent that is not listed may do nothing.

use super::RatesConfig;
use super::address::{HostPort, HttpUrl};
use super::error::Fault;
use super::kinds::known;
use super::moq::RelayConfig;
use super::section::Section as _;
use proto::id::{AgentId, Kind};
use proto::track::GroupName;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Peers in one configuration.
pub const PEERS_MAX: usize = 10_000;

/// One peer.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerConfig {
    /// Its identity, as in its certificate.
    pub id: AgentId,
    /// Where to dial it; without one we only accept its connections.
    pub address: Option<HostPort>,
    /// On whose behalf it acts: the principal whose governed keys it may set. By default itself.
    pub principal: AgentId,
    /// Kinds it may issue to us; offers of others are refused.
    pub may_issue: BTreeSet<Kind>,
    /// Kinds we may issue to it; issuing others is refused at the API.
    pub may_receive: BTreeSet<Kind>,
    /// What it may send us.
    pub rates: RatesConfig,
    /// File with the bearer token that authenticates it on the papers' HTTP binding; without one
    /// it cannot use that binding.
    pub http_token_file: Option<PathBuf>,
    /// Where to post obligations to it by the papers' HTTP binding, in place of QUIC.
    pub obligation_endpoint: Option<HttpUrl>,
    /// Where to post later acks of obligations it issued to us over HTTP.
    pub custody_ack_endpoint: Option<HttpUrl>,
    /// Its agent card: deliver to it inside of A2A messages, in place of QUIC.
    pub agent_card: Option<HttpUrl>,
    /// What obligations go to it by, over QUIC.
    pub binding: Binding,
    /// Groups it may address us as a member of.
    pub groups: BTreeSet<GroupName>,
    /// Whether it may watch this node over MOQT: escalations, status, events and metrics.
    pub may_watch: bool,
    /// Where the keys are by which it signs consent; by default what its name says.
    pub signing_keys: Option<SigningKeys>,
}

/// How obligations and acks go to and fro, over QUIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Binding {
    /// The native frames, ALPN `abhyasa/1`.
    #[default]
    Native,
    /// MOQT with the peer itself.
    Moqt,
    /// MOQT by the relay of this name.
    Relay(String),
}

#[derive(Clone, Copy, Debug, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum BindingName {
    Native,
    Moqt,
}

/// Where the keys of a peer are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SigningKeys {
    /// A JWKS at this URL.
    Url(url::Url),
    /// A key that is its own name.
    Did(String),
    /// A JWKS in a file.
    File(PathBuf),
}

impl SigningKeys {
    fn new(text: &str, base: &Path) -> Result<Self, Fault> {
        let fix = "such as \"https://example.org/.well-known/jwks.json\", \"did:key:z6Mk...\" or \"peer-keys.json\"";
        let fault = |what: &str| Fault::new(["signing_keys"], what.to_owned(), fix);
        if text.starts_with("did:") {
            return match crate::acap::keys::KeySet::from_did_key(text) {
                Ok(_) => Ok(Self::Did(text.to_owned())),
                Err(error) => Err(fault(&error.to_string())),
            };
        }
        if !text.contains("://") {
            return Ok(Self::File(base.join(text)));
        }
        let url = url::Url::parse(text).map_err(|error| fault(&error.to_string()))?;
        match url.scheme() {
            "https" => Ok(Self::Url(url)),
            _ => Err(fault("keys are fetched over https only")),
        }
    }
}

/// The table as written.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PeerTable {
    id: AgentId,
    address: Option<HostPort>,
    principal: Option<AgentId>,
    #[serde(default)]
    may_issue: BTreeSet<Kind>,
    #[serde(default)]
    may_receive: BTreeSet<Kind>,
    obligations_per_second: Option<u64>,
    obligations_burst: Option<u64>,
    bytes_per_second: Option<u64>,
    http_token_file: Option<PathBuf>,
    obligation_endpoint: Option<HttpUrl>,
    custody_ack_endpoint: Option<HttpUrl>,
    agent_card: Option<HttpUrl>,
    binding: Option<BindingName>,
    relay: Option<String>,
    #[serde(default)]
    groups: BTreeSet<GroupName>,
    #[serde(default)]
    may_watch: bool,
    signing_keys: Option<String>,
}

/// All peers, each with its values filled in.
pub(crate) fn check(
    tables: Vec<PeerTable>,
    own: &AgentId,
    rates: &RatesConfig,
    relays: &[RelayConfig],
    base: &Path,
) -> Result<Vec<PeerConfig>, Fault> {
    if tables.len() > PEERS_MAX {
        let what = format!("{} peers are over the limit of {PEERS_MAX}", tables.len());
        return Err(Fault::new(["peers"], what, "split the node"));
    }
    let mut ids = BTreeMap::new();
    let mut token_files = BTreeMap::new();
    let mut peers = Vec::new();
    for (at, table) in tables.into_iter().enumerate() {
        let at = at.to_string();
        let peer = table.check(own, rates, relays, base).map_err(|f| f.under(["peers", &at]))?;
        if ids.insert(peer.id.clone(), at.clone()).is_some() {
            let what = format!("{} is listed twice", peer.id);
            return Err(Fault::new(["peers", &at, "id"], what, "merge the two tables into one"));
        }
        if let Some(file) = &peer.http_token_file
            && let Some(other) = token_files.insert(file.clone(), peer.id.clone())
        {
            let what =
                format!("{other} has the same http_token_file: they could not be told apart");
            return Err(Fault::new(["peers", &at, "http_token_file"], what, "give each its own"));
        }
        peers.push(peer);
    }
    Ok(peers)
}

impl PeerTable {
    fn check(
        self,
        own: &AgentId,
        rates: &RatesConfig,
        relays: &[RelayConfig],
        base: &Path,
    ) -> Result<PeerConfig, Fault> {
        if self.id == *own {
            return Err(Fault::new(
                ["id"],
                format!("{own} is this node itself"),
                "name another agent",
            ));
        }
        for (key, kinds) in [("may_issue", &self.may_issue), ("may_receive", &self.may_receive)] {
            for kind in kinds {
                known(kind).map_err(|f| f.under([key]))?;
            }
        }
        let rates = RatesConfig {
            obligations_per_second: self
                .obligations_per_second
                .unwrap_or(rates.obligations_per_second),
            obligations_burst: self.obligations_burst.unwrap_or(rates.obligations_burst),
            bytes_per_second: self.bytes_per_second.unwrap_or(rates.bytes_per_second),
        };
        rates.check()?;
        if self.agent_card.is_some() && self.obligation_endpoint.is_some() {
            let what = "agent_card and obligation_endpoint are two ways to one peer";
            return Err(Fault::new(["agent_card"], what, "keep one of them"));
        }
        let binding = match (self.binding, self.relay) {
            (Some(_), Some(_)) => {
                let what = "binding is of a direct session, and relay of none";
                return Err(Fault::new(["relay"], what, "keep one of them"));
            }
            (None, Some(name)) => {
                if !relays.iter().any(|relay| relay.name == name) {
                    let what = format!("no [[relays]] table is named {name:?}");
                    return Err(Fault::new(["relay"], what, "add one, or name another"));
                }
                Binding::Relay(name)
            }
            (Some(BindingName::Moqt), None) => Binding::Moqt,
            (Some(BindingName::Native) | None, None) => Binding::Native,
        };
        Ok(PeerConfig {
            binding,
            groups: self.groups,
            may_watch: self.may_watch,
            signing_keys: self
                .signing_keys
                .map(|text| SigningKeys::new(&text, base))
                .transpose()?,
            principal: self.principal.unwrap_or_else(|| self.id.clone()),
            id: self.id,
            address: self.address,
            may_issue: self.may_issue,
            may_receive: self.may_receive,
            rates,
            http_token_file: self.http_token_file.map(|file| base.join(file)),
            obligation_endpoint: self.obligation_endpoint,
            custody_ack_endpoint: self.custody_ack_endpoint,
            agent_card: self.agent_card,
        })
    }
}
