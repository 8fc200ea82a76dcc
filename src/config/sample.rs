//! The commented sample that `init` writes: every setting with its unit, its limit and its
//! default. A line that begins with `#` and no space is a setting at its default.

use super::kinds::{KINDS, WEBHOOK_TIMEOUT_MS};
use super::section::Section;
use super::{
    A2aConfig, AcapConfig, ApiConfig, CustodyConfig, EscalationConfig, HostPort, LogConfig,
    McpConfig, MoqConfig, QuicConfig, RatesConfig, StoreConfig, WeightsConfig,
};
use proto::id::AgentId;
use std::fmt::Write as _;
use std::net::SocketAddr;

/// What a new configuration says beyond the defaults.
pub struct Sample<'a> {
    /// `node.id`.
    pub id: &'a AgentId,
    /// `quic.listen`, if not the default.
    pub quic_listen: Option<SocketAddr>,
    /// `api.listen`, if not the default.
    pub api_listen: Option<SocketAddr>,
    /// `api.token_file`.
    pub token_file: Option<&'a str>,
    /// Peers, with every kind allowed both ways.
    pub peers: &'a [(AgentId, HostPort)],
}

const HEAD: &str = r##"# Configuration of an abhyasa node.
#
# Lines that begin with "# " explain; lines that begin with "#" and no space are settings at
# their defaults: delete the "#" to change one. Relative file names start at this directory.

[node]
# Who this node is: the identity in its certificate, a spiffe:// URI or a DNS name.
id = "##;

const DATA_DIR: &str = r##"
# Directory of the store.
#data_dir = "data"
"##;

const KINDS_HEAD: &str = r##"
# How each kind is carried under custody, and who applies it.
#
# deadline_seconds: absolute from issue; at the deadline the obligation is escalated and the
#   principal's side made safe. 1 to 316224000.
# max_retries: offers after the first. They must span the deadline even when all jitter shortens
#   the waits; a file that says too few is refused with the number it takes. At most 100000.
# backoff_base_ms, backoff_cap_ms: milliseconds before the first retry, doubled each time up to the
#   cap, which is below the deadline.
# jitter_percent: how much of a wait may be cut off at random. 0 to 99.
# on_decline: "apply" makes the principal's side safe when a receiver declines; "surface" reports
#   the decline and its reason for the principal to decide.
# handler: who applies what we receive. "builtin" is the node itself: authorizations and weights.
#   A service of yours that applies, declines or defers, with the obligation id as idempotency key
#   (an id belongs to its issuer, who is named in Abhyasa-Issuer):
#     handler = { type = "webhook", url = "http://127.0.0.1:9000/obligations", timeout_ms = "##;

const KINDS_TAIL: &str = r##", query = true }
#   timeout_ms: a call that takes longer (1 to 300000) is in doubt. query: whether the service can
#   be asked about an id to settle that; if not, it is surfaced for reconciliation.
#   token_file: file with a bearer token to show to the service (https or this machine only).
# seal: whether what we issue of a kind is sealed to its target where it goes by a relay (docs/moqt.md).
"##;

const PEERS_HEAD: &str = r##"
# Peers, one table each, at most 10000. An agent that is not listed may do nothing.
#
#   [[peers]]
#   id = "spiffe://example.org/agent/b"      its identity, as in its certificate
#   address = "node-b.example.org:4433"      where to dial it; without one we only accept
#   principal = "spiffe://example.org/org"   whose governed keys it may set; by default its own
#   may_issue = ["anumati.consent"]          kinds it may issue to us
#   may_receive = ["anumati.consent"]        kinds we may issue to it
#   obligations_per_second = 1000            rates of its own, also obligations_burst and
#   bytes_per_second = 1048576               bytes_per_second, each as in [rates]
#   http_token_file = "b.token"              bearer token that authenticates it on POST
#                                            /abhyasa/obligations and /abhyasa/custody_ack
#   obligation_endpoint = "https://…"        deliver to it by that HTTP binding, not by QUIC
#   custody_ack_endpoint = "https://…"       where it takes later acks by HTTP
#   agent_card = "https://…"                 deliver to it in A2A messages, as its card says, not by QUIC
#   binding = "moqt"                         obligations go to it over MOQT; by default "native"
#   relay = "eu"                             the same by a relay, which needs no address
#   groups = ["agents"]                      groups it may address us as a member of
#   signing_keys = "peer-keys.json"          by which it signs consent: a JWKS in a file or at an https URL, or a did:key
#   may_watch = true                         it may subscribe to our escalations, status, events and metrics
"##;

const RELAYS: &str = r##"
# Relays of MOQT, one table each, at most 16: both sides dial them, and meet there under the same path.
#
#   [[relays]]
#   name = "eu"                              by which [[peers]] speak of it
#   url = "moqt://relay.example.org:4443/x"  where it is; the path is the scope
#   ca = "relay-ca.pem"                      CA certificates that its certificate must chain to
#   may_watch = true                         whoever is there may subscribe to our escalations, status, events
#                                            and metrics
#
# Groups of peers that one decision can be issued to, one table each, at most 64.
#
#   [[groups]]
#   name = "agents"                          members know it by that name, too
#   members = ["spiffe://example.org/agent/b"]
"##;

const GATE: &str = r##"
# What calls of agents behind this node need before they run, one table each, at most 1024. A call that no
# table covers needs nothing. What is withheld later ends the calls that run.
#
#   [[gate]]
#   calls = ["a2a:*", "mcp:files/read"]      a2a:SKILL, mcp:SERVER/TOOL; a * at the end is the rest
#   scope = "calendar.read"                  what must be granted
#   principal = "caller"                     by whom: "caller", whoever acts through the peer that calls;
#                                            "self", this node; or the id of another agent
#   kind = "anumati.consent"                 whose word counts; by default of every kind
#   unknown = "deny"                         what nobody spoke of: "deny" (default) or "allow"
"##;

const POLICY_CLAIMS: &str = r##"
# Which claims of the usage policy in [acap] govern which calls, one table each, at most 1024.
#
#   [[policy_claims]]
#   calls = ["a2a:book", "mcp:files/*"]      a2a:SKILL, mcp:SERVER/TOOL; a * at the end is the rest
#   claims = ["claim-data-retention"]        ids of claims in the policy
"##;

const CONSENT: &str = r##"
# Callees to whose usage policies this node consents, one table each, at most 1024.
#
#   [[consent]]
#   callee = "spiffe://example.org/agent/b"  whose policy; a peer with an address, reached over HTTP/3, or
#   url = "https://node-b.example.org/"      where its ACAP is, over HTTP, and
#   token_file = "b.token"                   the bearer token to show there
#   accept = "understood"                    without a person: policies all of whose claims are understood,
#                                            "listed" in claims as well, or "never"
#   claims = ["claim-data-retention"]        what "listed" takes
#   mode = "local"                           who decides on an action; "delegated": the callee, if stricter
#   principal = "spiffe://example.org/org"   on whose behalf we act
#   manifest = "capability.json"             what we are: a change of it is consented to anew
#   facts = { "odrl:purpose" = "booking" }   what is known of every action
#   uses = [{ action = "odrl:use", asset = "a2a:task_output" }]  what we intend; claims against it are disputed
#   valid_seconds = 2592000                  how long a record holds
#   poll_seconds = 60                        how often the policy is looked at
#   review = "tiered"                        which changes of it wait for a person: what takes away or changes
#                                            a claim; "material": also a prohibition or an obligation more
#   answer_seconds = 86400                   how long she has to answer; then it stays refused
"##;

const MCP_SERVERS: &str = r##"
# MCP servers behind this node, one table each, at most 256: peers reach them with `abhyasa mcp proxy`.
#
#   [[mcp_servers]]
#   name = "files"                           by which peers and [[gate]] speak of it
#   command = ["python3", "server.py"]       a program on standard input and output, one a session, or
#   url = "http://127.0.0.1:9000/mcp"        Streamable HTTP, and
#   token_file = "mcp.token"                 the bearer token to show there
#   peers = ["spiffe://example.org/agent/b"] who may use it; by default every peer
"##;

impl Sample<'_> {
    /// The text of the file.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut out = format!("{HEAD}{}{DATA_DIR}", quoted(self.id.as_str()));
        let address = |at: Option<SocketAddr>| at.map(|at| quoted(&at.to_string()));
        section::<QuicConfig>(&mut out, &[("listen", address(self.quic_listen))]);
        let token_file = self.token_file.map(quoted);
        let api = [("listen", address(self.api_listen)), ("token_file", token_file)];
        section::<ApiConfig>(&mut out, &api);
        section::<CustodyConfig>(&mut out, &[]);
        section::<StoreConfig>(&mut out, &[]);
        section::<RatesConfig>(&mut out, &[]);
        section::<WeightsConfig>(&mut out, &[]);
        section::<A2aConfig>(&mut out, &[]);
        section::<AcapConfig>(&mut out, &[]);
        section::<McpConfig>(&mut out, &[]);
        section::<MoqConfig>(&mut out, &[]);
        section::<EscalationConfig>(&mut out, &[]);
        section::<LogConfig>(&mut out, &[]);
        kinds(&mut out);
        out.push_str(RELAYS);
        out.push_str(GATE);
        out.push_str(POLICY_CLAIMS);
        out.push_str(CONSENT);
        out.push_str(MCP_SERVERS);
        self.peers(&mut out);
        out
    }

    fn peers(&self, out: &mut String) {
        out.push_str(PEERS_HEAD);
        let kinds = KINDS.map(|kind| quoted(kind.name)).join(", ");
        for (id, address) in self.peers {
            let _ = write!(
                out,
                "\n[[peers]]\nid = {}\naddress = {}\nmay_issue = [{kinds}]\nmay_receive = [{kinds}]\n",
                quoted(id.as_str()),
                quoted(address.as_str()),
            );
        }
    }
}

fn section<S: Section>(out: &mut String, set: &[(&str, Option<String>)]) {
    let defaults = toml::Value::try_from(S::default());
    out.push('\n');
    for line in S::ABOUT {
        let _ = writeln!(out, "#{line}");
    }
    let _ = writeln!(out, "[{}]", S::NAME);
    for (at, key) in S::KEYS.iter().enumerate() {
        if at > 0 {
            out.push('\n');
        }
        for line in key.doc {
            let _ = writeln!(out, "#{line}");
        }
        for range in (key.range)() {
            let _ = writeln!(out, "# Allowed: {range}.");
        }
        let given =
            set.iter().find(|(name, _)| *name == key.name).and_then(|(_, value)| value.as_ref());
        let default = defaults.as_ref().ok().and_then(|table| table.get(key.name));
        let _ = match (given, default) {
            (Some(value), _) => writeln!(out, "{} = {value}", key.name),
            (None, Some(value)) => writeln!(out, "#{} = {value}", key.name),
            (None, None) => writeln!(out, "# By default there is no {}.", key.name),
        };
    }
}

fn kinds(out: &mut String) {
    let _ = write!(out, "{KINDS_HEAD}{WEBHOOK_TIMEOUT_MS}{KINDS_TAIL}");
    for kind in &KINDS {
        let _ = write!(
            out,
            "\n[kinds.{}]\n#deadline_seconds = {}\n#max_retries = {}\n#backoff_base_ms = {}\n#backoff_cap_ms = {}\n#jitter_percent = {}\n#on_decline = \"apply\"\n#handler = {{ type = \"builtin\" }}\n#seal = false\n",
            quoted(kind.name),
            kind.deadline_seconds,
            kind.max_retries,
            kind.backoff_base_ms,
            kind.backoff_cap_ms,
            kind.jitter_percent,
        );
    }
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
