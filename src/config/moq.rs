//! MOQT: relays, and groups that one decision goes to.

use super::error::Fault;
use super::section::section;
use proto::id::AgentId;
use proto::track::GroupName;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use url::Url;

/// Relays in one configuration.
pub const RELAYS_MAX: usize = 16;
/// Groups in one configuration.
pub const GROUPS_MAX: usize = 64;
/// Bytes of a relay's name.
const NAME_LEN_MAX: usize = 64;

section! {
    /// Media over QUIC (MOQT draft-18).
    MoqConfig "moq" {
        /// Whether peers may open MOQT sessions with us, at quic.listen.
        enabled: bool = false;
        /// Offers of one peer that await an ack, over MOQT.
        in_flight_max: usize = 2_048, 1 => 65_536;
        /// Milliseconds that nothing comes of a peer that has offers, until it is asked whether it is there, and as long
        /// again until its tracks are asked for anew.
        answer_ms: u64 = 10_000, 100 => 600_000;
    }
}

/// A relay that we meet peers at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayConfig {
    /// Its name in this file.
    pub name: String,
    /// `moqt://host:port/scope`.
    pub url: Url,
    /// PEM file with the CA certificates that the relay's certificate must chain to.
    pub ca: PathBuf,
    /// Whether escalations, status, events and metrics of the node go there as tracks, for whoever may subscribe
    /// to them at the relay.
    pub may_watch: bool,
}

/// The table as written.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RelayTable {
    name: String,
    url: Url,
    ca: PathBuf,
    #[serde(default)]
    may_watch: bool,
}

/// Peers that one decision can go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Its name. Members know it by that, too.
    pub name: GroupName,
    /// Its members, each a listed peer.
    pub members: BTreeSet<AgentId>,
}

/// The table as written.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupTable {
    name: GroupName,
    members: BTreeSet<AgentId>,
}

pub(crate) fn relays(tables: Vec<RelayTable>, base: &Path) -> Result<Vec<RelayConfig>, Fault> {
    if tables.len() > RELAYS_MAX {
        let what = format!("{} relays are over the limit of {RELAYS_MAX}", tables.len());
        return Err(Fault::new(["relays"], what, "use fewer"));
    }
    let mut names = BTreeSet::new();
    let checked = tables.into_iter().enumerate().map(|(at, table)| {
        let at = at.to_string();
        let fault =
            |key: &str, what: String, fix: &str| Err(Fault::new(["relays", &at, key], what, fix));
        if table.name.is_empty() || table.name.len() > NAME_LEN_MAX {
            let what = format!("{} bytes; 1 to {NAME_LEN_MAX} are taken", table.name.len());
            return fault("name", what, "give it a short name");
        }
        if !names.insert(table.name.clone()) {
            return fault("name", format!("{} is there twice", table.name), "name each once");
        }
        let url = &table.url;
        if url.scheme() != "moqt" || !url.has_host() || url.port().is_none() {
            let what = format!("{url} is no address of a relay");
            return fault("url", what, "such as moqt://relay.example.org:4443/scope");
        }
        let (name, url, ca) = (table.name, table.url, base.join(table.ca));
        Ok(RelayConfig { name, url, ca, may_watch: table.may_watch })
    });
    checked.collect()
}

pub(crate) fn groups(
    tables: Vec<GroupTable>,
    listed: &BTreeSet<AgentId>,
) -> Result<Vec<GroupConfig>, Fault> {
    if tables.len() > GROUPS_MAX {
        let what = format!("{} groups are over the limit of {GROUPS_MAX}", tables.len());
        return Err(Fault::new(["groups"], what, "join some of them"));
    }
    let mut names = BTreeSet::new();
    let checked = tables.into_iter().enumerate().map(|(at, table)| {
        let at = at.to_string();
        if !names.insert(table.name.clone()) {
            let what = format!("{} is there twice", table.name);
            return Err(Fault::new(["groups", &at, "name"], what, "name each once"));
        }
        if let Some(unknown) = table.members.iter().find(|id| !listed.contains(*id)) {
            let what = format!("{unknown} is no peer");
            let fix = "give it a [[peers]] table, or leave it out";
            return Err(Fault::new(["groups", &at, "members"], what, fix));
        }
        Ok(GroupConfig { name: table.name, members: table.members })
    });
    checked.collect()
}
