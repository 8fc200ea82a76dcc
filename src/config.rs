//! The configuration of a node: TOML, checked once, then only read.
//!
//! Every setting but `node.id` has a default. Unknown keys, values out of range and settings that
//! contradict each other are refused with the file, the line and the fix ([`ConfigError`]).

mod acap;
mod address;
mod consent;
mod error;
mod gate;
mod kinds;
mod mcp_servers;
mod moq;
mod peers;
mod sample;
mod secret;
mod section;
mod sections;

pub use acap::{
    AcapConfig, AcapMode, Anchoring, Grace, POLICY_CLAIMS_MAX, Permits, PolicyClaims, Signatures,
};
pub use address::{A2aAgent, AddressError, HostPort, HttpUrl};
pub use consent::{Accept, CONSENT_CALLEES_MAX, ConsentTo, Decides, IntendedUse, Review};
pub use error::{CONFIG_LEN_MAX, ConfigError};
pub use gate::{CallPattern, GATE_CALLS_MAX, GATE_RULES_MAX, GatePrincipal, GateRule};
pub use kinds::{HandlerConfig, KindConfig, WebhookConfig};
pub use mcp_servers::{MCP_SERVERS_MAX, McpReach, McpServer, OWN_SERVER};
pub use moq::{GROUPS_MAX, GroupConfig, MoqConfig, RELAYS_MAX, RelayConfig};
pub use peers::{Binding, PEERS_MAX, PeerConfig, SigningKeys};
pub use sample::Sample;
pub use secret::{
    SECRET_FILE_LEN_MAX, SecretError, TOKEN_LEN_MAX, TOKEN_LEN_MIN, read_secret, read_token,
};
pub use sections::{
    A2aConfig, AgentOver, ApiConfig, Congestion, CustodyConfig, EscalationConfig, LogConfig,
    LogFormat, McpConfig, QuicConfig, RatesConfig, StoreConfig, WeightsConfig,
};

use error::Fault;
use proto::id::{AgentId, Kind};
use proto::weight::Weight;
use section::Section;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Everything a node is told at its start. Paths are absolute or start at the working directory:
/// those in the file start at the directory of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeConfig {
    /// Who this node is: the identity in its certificate.
    pub id: AgentId,
    /// Directory of the store.
    pub data_dir: PathBuf,
    /// QUIC endpoint.
    pub quic: QuicConfig,
    /// HTTP API.
    pub api: ApiConfig,
    /// Custody limits.
    pub custody: CustodyConfig,
    /// Store limits.
    pub store: StoreConfig,
    /// Rates of a peer that has no values of its own; those of a listed peer are in its entry.
    pub rates: RatesConfig,
    /// Bounds of weights.
    pub weights: WeightsConfig,
    /// Peers, in the order of the file; ids are unique.
    pub peers: Vec<PeerConfig>,
    /// Each kind this build knows, from the file or by default.
    pub kinds: BTreeMap<Kind, KindConfig>,
    /// A2A server.
    pub a2a: A2aConfig,
    /// What calls of agents behind this node need.
    pub gate: Vec<GateRule>,
    /// Consent to a usage policy.
    pub acap: AcapConfig,
    /// Which claims of it govern which calls.
    pub policy_claims: Vec<PolicyClaims>,
    /// Callees to whose policies this node consents; ids are unique.
    pub consent: Vec<ConsentTo>,
    /// MCP servers behind this node; names are unique.
    pub mcp_servers: Vec<McpServer>,
    /// MCP server.
    pub mcp: McpConfig,
    /// MOQT.
    pub moq: MoqConfig,
    /// Relays for it; names are unique.
    pub relays: Vec<RelayConfig>,
    /// Groups that one decision can go to; names are unique.
    pub groups: Vec<GroupConfig>,
    /// Whether MCP also serves the fixtures of its conformance suite. No file sets it: it is for tests.
    pub conformance: bool,
    /// Escalation sinks.
    pub escalation: EscalationConfig,
    /// Logs.
    pub log: LogConfig,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    node: NodeTable,
    #[serde(default)]
    quic: QuicConfig,
    #[serde(default)]
    api: ApiConfig,
    #[serde(default)]
    custody: CustodyConfig,
    #[serde(default)]
    store: StoreConfig,
    #[serde(default)]
    rates: RatesConfig,
    #[serde(default)]
    weights: WeightsConfig,
    #[serde(default)]
    peers: Vec<peers::PeerTable>,
    #[serde(default)]
    kinds: BTreeMap<String, kinds::KindTable>,
    #[serde(default)]
    a2a: A2aConfig,
    #[serde(default)]
    gate: Vec<gate::GateTable>,
    #[serde(default)]
    acap: AcapConfig,
    #[serde(default)]
    policy_claims: Vec<acap::ClaimsTable>,
    #[serde(default)]
    consent: Vec<consent::ConsentTable>,
    #[serde(default)]
    mcp_servers: Vec<mcp_servers::McpServerTable>,
    #[serde(default)]
    mcp: McpConfig,
    #[serde(default)]
    moq: MoqConfig,
    #[serde(default)]
    relays: Vec<moq::RelayTable>,
    #[serde(default)]
    groups: Vec<moq::GroupTable>,
    #[serde(default)]
    escalation: EscalationConfig,
    #[serde(default)]
    log: LogConfig,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeTable {
    id: AgentId,
    #[serde(default = "default_data_dir")]
    data_dir: PathBuf,
}

fn default_data_dir() -> PathBuf {
    "data".into()
}

impl NodeConfig {
    /// Reads and checks `file`.
    ///
    /// # Errors
    /// [`ConfigError`]: unreadable, too long, or wrong in a named line.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let failed = |source| ConfigError::Read { file: file.to_owned(), source };
        let handle = std::fs::File::open(file).map_err(failed)?;
        let len = handle.metadata().map_err(failed)?.len();
        if len > CONFIG_LEN_MAX {
            return Err(ConfigError::TooLong { file: file.to_owned(), len });
        }
        let mut text = String::new();
        handle.take(CONFIG_LEN_MAX).read_to_string(&mut text).map_err(failed)?;
        Self::parse(&text, file)
    }

    /// Checks `text` as if it were read from `file`, whose directory relative paths start at.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub fn parse(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let raw: File = toml::from_str(text).map_err(|e| error::unparsable(file, text, &e))?;
        let base = file.parent().unwrap_or(Path::new(""));
        raw.check(base).map_err(|fault| fault.at(file, text))
    }
}

impl File {
    fn check(mut self, base: &Path) -> Result<NodeConfig, Fault> {
        in_range(&self.quic)?;
        in_range(&self.api)?;
        in_range(&self.custody)?;
        in_range(&self.store)?;
        in_range(&self.rates)?;
        in_range(&self.weights)?;
        in_range(&self.a2a)?;
        in_range(&self.acap)?;
        in_range(&self.mcp)?;
        in_range(&self.moq)?;
        in_range(&self.escalation)?;
        in_range(&self.log)?;
        self.agree()?;
        for path in
            [&mut self.node.data_dir, &mut self.quic.cert, &mut self.quic.key, &mut self.quic.ca]
                .into_iter()
                .chain(&mut self.api.token_file)
                .chain(&mut self.acap.policy)
                .chain(&mut self.acap.signing_key)
                .chain(&mut self.acap.published_keys)
        {
            *path = base.join(&*path);
        }
        let relays = moq::relays(self.relays, base)?;
        let peers = peers::check(self.peers, &self.node.id, &self.rates, &relays, base)?;
        if let Some(A2aAgent::Peer(id)) = &self.a2a.agent
            && !peers.iter().any(|peer| peer.id == *id && peer.address.is_some())
        {
            let what = format!("agent is {id}, which is no peer with an address");
            let fix = "use \"echo\", a URL, or the id of a [[peers]] table that has an address";
            return Err(Fault::new(["a2a", "agent"], what, fix));
        }
        if self.a2a.agent_over != AgentOver::Quic
            && !matches!(self.a2a.agent, Some(A2aAgent::Peer(_)))
        {
            let what = "agent_over says how a peer is called, and agent is none".to_owned();
            let fix = "leave agent_over out, or set agent to the id of a peer";
            return Err(Fault::new(["a2a", "agent_over"], what, fix));
        }
        let listed = peers.iter().map(|peer| peer.id.clone()).collect();
        Ok(NodeConfig {
            groups: moq::groups(self.groups, &listed)?,
            moq: self.moq,
            relays,
            consent: consent::check(self.consent, &peers, base)?,
            mcp_servers: mcp_servers::check(self.mcp_servers, &listed, base)?,
            peers,
            kinds: kinds::check(self.kinds, base)?,
            id: self.node.id,
            data_dir: self.node.data_dir,
            quic: self.quic,
            api: self.api,
            custody: self.custody,
            store: self.store,
            rates: self.rates,
            weights: self.weights,
            a2a: self.a2a,
            gate: gate::check(self.gate)?,
            policy_claims: acap::check(&self.acap, self.policy_claims)?,
            acap: self.acap,
            mcp: self.mcp,
            conformance: false,
            escalation: self.escalation,
            log: self.log,
        })
    }

    /// Settings that are each in range and yet contradict each other.
    fn agree(&self) -> Result<(), Fault> {
        let Self { quic, api, custody, weights, log, .. } = self;
        let pairs = [
            (
                ["quic", "keep_alive_ms"],
                quic.keep_alive_ms,
                "half of idle_timeout_ms",
                quic.idle_timeout_ms / 2,
            ),
            (
                ["quic", "reconnect_base_ms"],
                quic.reconnect_base_ms,
                "reconnect_cap_ms",
                quic.reconnect_cap_ms,
            ),
            (
                ["quic", "connections_per_peer_max"],
                quic.connections_per_peer_max as u64,
                "connections_max",
                quic.connections_max as u64,
            ),
            (
                ["custody", "pending_per_peer_max"],
                custody.pending_per_peer_max as u64,
                "pending_max",
                custody.pending_max as u64,
            ),
            // Else a task is gone before its webhooks are given up.
            (
                ["a2a", "push_give_up_seconds"],
                self.a2a.push_give_up_seconds,
                "retention_seconds",
                self.a2a.retention_seconds,
            ),
        ];
        for ([table, key], value, other, most) in pairs {
            if value > most {
                let what = format!("{key} is {value}, above {other}, which is {most}");
                return Err(Fault::new(
                    [table, key],
                    what,
                    format!("lower {key} or raise the other"),
                ));
            }
        }
        if !api.is_loopback() && api.token_file.is_none() {
            return Err(Fault::new(
                ["api", "listen"],
                format!("the API would be open to the network at {}: no token_file", api.listen),
                "add token_file = \"api.token\" to [api], or listen on 127.0.0.1",
            ));
        }
        for (key, value) in
            [("min", weights.min), ("max", weights.max), ("initial", weights.initial)]
        {
            Weight::from_f64(value).map_err(|error| {
                Fault::new(["weights", key], error.to_string(), "use 0 or steps of 0.000000001")
            })?;
        }
        if !(weights.min <= weights.initial && weights.initial <= weights.max) {
            let what =
                format!("min {}, initial {}, max {}", weights.min, weights.initial, weights.max);
            return Err(Fault::new(["weights"], what, "keep min <= initial <= max"));
        }
        if let Err(error) = log.filter.parse::<tracing_subscriber::filter::EnvFilter>() {
            let fix = "such as filter = \"info\" or filter = \"warn,abhyasa=debug\"";
            return Err(Fault::new(
                ["log", "filter"],
                format!("filter is not usable: {error}"),
                fix,
            ));
        }
        Ok(())
    }
}

fn in_range<S: Section>(section: &S) -> Result<(), Fault> {
    section.check().map_err(|fault| fault.under([S::NAME]))
}

#[cfg(test)]
mod tests;
