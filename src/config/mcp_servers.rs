//! `[[mcp_servers]]`: MCP servers behind this node, which peers reach through it.

use super::address::HttpUrl;
use super::error::Fault;
use proto::id::AgentId;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// MCP servers in one configuration.
pub const MCP_SERVERS_MAX: usize = 256;
/// Name of the node's own server, for peers.
pub const OWN_SERVER: &str = "abhyasa";
/// Bytes of a server's name.
const NAME_LEN_MAX: usize = 64;

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpServer {
    /// Its name, by which peers and `[[gate]]` speak of it.
    pub name: String,
    /// How it is reached.
    pub reach: McpReach,
    /// Peers that may use it; `None` for all.
    pub peers: Option<BTreeSet<AgentId>>,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum McpReach {
    /// A program that speaks MCP on standard input and output, started for each session.
    Command(Vec<String>),
    /// Streamable HTTP, with the bearer token in a file, if it wants one.
    Http {
        /// Its endpoint.
        url: HttpUrl,
        /// The token's file.
        token_file: Option<PathBuf>,
    },
}

/// The table as written.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct McpServerTable {
    name: String,
    command: Option<Vec<String>>,
    url: Option<HttpUrl>,
    token_file: Option<PathBuf>,
    peers: Option<BTreeSet<AgentId>>,
}

pub(crate) fn check(
    tables: Vec<McpServerTable>,
    listed: &BTreeSet<AgentId>,
    base: &Path,
) -> Result<Vec<McpServer>, Fault> {
    if tables.len() > MCP_SERVERS_MAX {
        let what = format!("{} servers are over the limit of {MCP_SERVERS_MAX}", tables.len());
        return Err(Fault::new(["mcp_servers"], what, "put another node before some of them"));
    }
    let mut names = BTreeSet::new();
    let mut servers = Vec::new();
    for (at, table) in tables.into_iter().enumerate() {
        let at = at.to_string();
        let server = table.check(listed, base).map_err(|f| f.under(["mcp_servers", &at]))?;
        if !names.insert(server.name.clone()) {
            let what = format!("{} is listed twice", server.name);
            return Err(Fault::new(["mcp_servers", &at, "name"], what, "give each its own name"));
        }
        servers.push(server);
    }
    Ok(servers)
}

impl McpServerTable {
    fn check(self, listed: &BTreeSet<AgentId>, base: &Path) -> Result<McpServer, Fault> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || self.name.len() > NAME_LEN_MAX || !self.name.chars().all(fits) {
            let what = format!("{:?} is no name of a server", self.name);
            let fix = format!("1 to {NAME_LEN_MAX} letters, digits, '-', '_' and '.'");
            return Err(Fault::new(["name"], what, fix));
        }
        if self.name == OWN_SERVER {
            let what = format!("{OWN_SERVER} is the node's own server");
            return Err(Fault::new(["name"], what, "give it another name"));
        }
        let reach = match (self.command, self.url) {
            (Some(command), None) if command.first().is_some_and(|program| !program.is_empty()) => {
                McpReach::Command(command)
            }
            (None, Some(url)) => {
                let token_file = self.token_file.map(|file| base.join(file));
                McpReach::Http { url, token_file }
            }
            _ => {
                let what = "neither one command nor one url";
                let fix = "say command = [\"program\", \"argument\"] or url = \"http://127.0.0.1:9000/mcp\"";
                return Err(Fault::new(["name"], what, fix));
            }
        };
        if let Some(stranger) = self.peers.iter().flatten().find(|peer| !listed.contains(*peer)) {
            let what = format!("{stranger} is not listed in [[peers]]");
            return Err(Fault::new(["peers"], what, "list it there, or take it out here"));
        }
        Ok(McpServer { name: self.name, reach, peers: self.peers })
    }
}
