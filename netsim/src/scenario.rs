//! What a scenario file says beside the plain options: where it runs, under which policy, and what
//! goes wrong when.

use crate::options::Options;
use link::LinkModel;
use serde::{Deserialize, Serialize};

/// Where a scenario runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arena {
    /// The core on a simulated network, disk and clock.
    #[default]
    Core,
    /// Real nodes, quinn and TLS, on virtual time.
    Node,
    /// Processes, sockets and disks.
    Real,
}

/// How obligations are delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Durable custody until applied, declined or escalated.
    #[default]
    Custody,
    /// Sent once, on a QUIC datagram.
    BestEffortDatagram,
    /// Sent once, on a QUIC stream, which repeats packets while its connection lives.
    BestEffortStream,
    /// Retried until acknowledged or out of budget, from memory, by a receiver that deduplicates;
    /// nobody is told in the end.
    AtLeastOnce,
    /// The same, by a receiver that does not deduplicate.
    RetryWithoutDedup,
    /// Pushed once over a stream, with an error logged if it fails.
    OneShotPush,
    /// Custody that takes receipt for application.
    ReceiptAck,
    /// Custody by a receiver whose ledger is in memory.
    VolatileLedger,
}

/// A MOQT relay: it passes on what nodes publish to those that subscribed, from memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelayModel {
    /// Whether a decision for several peers goes to it once, for all of them, in the first attempt.
    pub fan_out: bool,
}

/// One direction of a link that differs from the others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkOf {
    /// The sending node.
    pub from: usize,
    /// The receiving node.
    pub to: usize,
    /// What it does to packets.
    pub link: LinkModel,
}

/// The disk of one node, where it differs from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskModel {
    /// Whose.
    pub node: usize,
    /// Shortest commit, in milliseconds.
    pub commit_ms_min: u64,
    /// Longest commit, in milliseconds.
    pub commit_ms_max: u64,
    /// Chance of a stalled commit, in thousandths.
    #[serde(default)]
    pub stall_permille: u32,
    /// How long a stalled commit takes, in milliseconds.
    #[serde(default)]
    pub stall_ms: u64,
}

/// Something that goes wrong, for a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// When it begins, in milliseconds since the run began.
    pub at_ms: u64,
    /// How long it lasts, in milliseconds; what is over at once takes none.
    #[serde(default)]
    pub for_ms: u64,
    /// What goes wrong.
    #[serde(flatten)]
    pub what: FaultKind,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "kebab-case")]
pub enum FaultKind {
    /// Nothing gets from one node to another.
    Cut {
        /// The sending node.
        from: usize,
        /// The receiving node.
        to: usize,
    },
    /// Nothing gets through between two nodes, either way.
    Partition {
        /// One.
        a: usize,
        /// The other.
        b: usize,
    },
    /// A link comes and goes, both ways.
    Flap {
        /// One end.
        a: usize,
        /// The other.
        b: usize,
        /// How long it is down each time, in milliseconds.
        down_ms: u64,
        /// How long it is up between, in milliseconds.
        up_ms: u64,
    },
    /// A direction of a link becomes another link, both ways if `back`, until the fault is over; for
    /// good if it takes no time.
    Link {
        /// The sending node.
        from: usize,
        /// The receiving node.
        to: usize,
        /// Whether the way back changes too.
        #[serde(default)]
        back: bool,
        /// What it does to packets.
        link: LinkModel,
    },
    /// A node is killed, and restarts when the fault is over.
    Crash {
        /// Which.
        node: usize,
    },
    /// A node is killed at its next commit, and restarts when the fault is over.
    CrashAt {
        /// Which.
        node: usize,
        /// Where in the commit.
        point: CrashPoint,
    },
    /// A node stands still, as a virtual machine that is not scheduled.
    Pause {
        /// Which.
        node: usize,
    },
    /// Every commit of a node takes so much longer.
    SlowDisk {
        /// Whose.
        node: usize,
        /// How much, in milliseconds.
        by_ms: u64,
    },
    /// The next commit of a node fails, as a failed fsync does.
    FailSync {
        /// Whose.
        node: usize,
        /// Whether it reached the disk all the same.
        #[serde(default)]
        kept: bool,
    },
    /// The disk of a node is full: each commit fails until it is over.
    DiskFull {
        /// Whose.
        node: usize,
    },
    /// A part of the disk of a node cannot be read until it is over: checksums refuse it.
    BitRot {
        /// Whose.
        node: usize,
    },
    /// A clock is set to be so much ahead of the world's, and keeps it.
    ClockStep {
        /// Whose.
        node: usize,
        /// How far ahead, in milliseconds; negative for behind.
        ahead_ms: i64,
    },
    /// The address a node sends from changes, as behind a NAT.
    Rebind {
        /// Whose.
        node: usize,
    },
    /// A malformed, foreign or unknown frame reaches a node.
    Noise {
        /// Which.
        node: usize,
    },
}

/// Where in a commit a node is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CrashPoint {
    /// Before any of it is on the disk.
    BeforeCommit,
    /// When it is durable, before any output leaves.
    AfterCommit,
    /// When some of its outputs have left and others have not.
    BetweenOutputs,
}

/// Nodes of a scenario, each of which may deal with each other.
const NODES_MAX: usize = 64;
/// The same, if all deal with the first only.
const STAR_NODES_MAX: usize = 1 << 14;

impl Options {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        let options: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        options.check()?;
        Ok(options)
    }

    /// Writes it as a scenario file.
    ///
    /// # Errors
    /// If a number is out of the range of TOML.
    pub fn to_toml(&self) -> Result<String, String> {
        toml::to_string(self).map_err(|error| error.to_string())
    }

    /// Whether all it names exists and fits together.
    fn check(&self) -> Result<(), String> {
        let nodes_max = if self.star { STAR_NODES_MAX } else { NODES_MAX };
        if !(2..=nodes_max).contains(&self.nodes) {
            return Err(format!("nodes = {}: a scenario has 2 to {nodes_max} nodes", self.nodes));
        }
        let here = self.world == Arena::Core && self.policy == Policy::Custody;
        let only_here = self.relay.is_some() || self.star || self.decisions > 0;
        if only_here && !here {
            return Err("relay, star and decisions are of the core world under custody".to_owned());
        }
        if self.star && self.relay.is_none() {
            return Err("star: without a relay each node has a link with each other".to_owned());
        }
        let last = self.nodes - usize::from(self.relay.is_none());
        let named = self.timeline.iter().flatten().flat_map(|fault| fault.what.nodes());
        let named = named
            .chain(self.links.iter().flat_map(|link| [link.from, link.to]))
            .chain(self.disks.iter().map(|disk| disk.node));
        if let Some(node) = named.into_iter().find(|node| *node > last) {
            return Err(format!("node {node} is named, and there are nodes 0 to {last}"));
        }
        let pairs = self.timeline.iter().flatten().filter_map(|fault| fault.what.pair());
        let mut pairs = pairs.chain(self.links.iter().map(|link| (link.from, link.to)));
        let astray = pairs.find(|(a, b)| self.relay.is_some() && *a != last && *b != last);
        if let Some((a, b)) = astray {
            return Err(format!("there is no link of {a} and {b}: each has one with relay {last}"));
        }
        let last = self.only.as_ref().and_then(|only| only.last());
        if let Some(last) = last.filter(|last| **last >= self.transfers) {
            let transfers = self.transfers;
            return Err(format!("only: there is no obligation {last} of {transfers}, from 0"));
        }
        let kinds = crate::options::KINDS;
        if let Some(kind) = self.external.iter().find(|kind| !kinds.contains(&kind.as_str())) {
            return Err(format!("external: {kind:?} is none of {kinds:?}"));
        }
        for (name, min, max) in [("commit_ms", self.commit_ms_min, self.commit_ms_max)] {
            if min > max {
                return Err(format!("{name}_min = {min} is above {name}_max = {max}"));
            }
        }
        for (name, backoff) in [("backoff", self.backoff), ("reconnect", self.reconnect)] {
            if backoff.base_ms == 0 || backoff.base_ms > backoff.cap_ms {
                return Err(format!(
                    "{name}: base_ms = {} is not from 1 to cap_ms = {}",
                    backoff.base_ms, backoff.cap_ms
                ));
            }
        }
        if self.handshake_ms == 0 {
            return Err("handshake_ms = 0: no handshake is that fast".to_owned());
        }
        Ok(())
    }
}

impl FaultKind {
    /// Whether nothing gets through somewhere.
    pub(crate) const fn is_outage(&self) -> bool {
        matches!(self, Self::Cut { .. } | Self::Partition { .. } | Self::Flap { .. })
    }

    /// The ends of the link it is about.
    const fn pair(&self) -> Option<(usize, usize)> {
        match *self {
            Self::Cut { from, to } | Self::Link { from, to, .. } => Some((from, to)),
            Self::Partition { a, b } | Self::Flap { a, b, .. } => Some((a, b)),
            _ => None,
        }
    }

    /// The nodes it names.
    fn nodes(&self) -> Vec<usize> {
        if let Some((a, b)) = self.pair() {
            return vec![a, b];
        }
        match *self {
            Self::Crash { node }
            | Self::CrashAt { node, .. }
            | Self::BitRot { node }
            | Self::Pause { node }
            | Self::SlowDisk { node, .. }
            | Self::FailSync { node, .. }
            | Self::DiskFull { node }
            | Self::ClockStep { node, .. }
            | Self::Rebind { node }
            | Self::Noise { node } => vec![node],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_is_written_and_read() {
        let text = r#"
            name = "two bad minutes"
            world = "node"
            transfers = 100
            deadline_s = 600
            backoff = { base_ms = 1000, cap_ms = 64000, jitter_permille = 200 }
            link = { delay = "20ms..80ms", loss = 0.1 }

            [[timeline]]
            at_ms = 10000
            for_ms = 60000
            fault = "partition"
            a = 0
            b = 1

            [[timeline]]
            at_ms = 90000
            for_ms = 500
            fault = "crash"
            node = 1
        "#;
        let options = Options::from_toml(text).unwrap();
        assert_eq!(options.world, Arena::Node);
        assert_eq!(options.timeline.as_ref().map(Vec::len), Some(2));
        assert_eq!(Options::from_toml(&options.to_toml().unwrap()).unwrap(), options);
        let swarm = Options::swarm(7, 50);
        assert_eq!(Options::from_toml(&swarm.to_toml().unwrap()).unwrap(), swarm);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (text, why) in [
            ("nodes = 1", "2 to 64 nodes"),
            ("nodes = 65\nrelay = {}", "2 to 64 nodes"),
            ("star = true", "without a relay"),
            ("world = \"node\"\nrelay = {}", "of the core world"),
            ("policy = \"at-least-once\"\ndecisions = 1", "under custody"),
            ("relay = { fanout = true }", "fanout"),
            ("relay = {}\ntimeline = [{ at_ms = 1, fault = \"crash\", node = 3 }]", "nodes 0 to 2"),
            (
                "relay = {}\ntimeline = [{ at_ms = 1, fault = \"partition\", a = 0, b = 1 }]",
                "each has one with relay 2",
            ),
            ("losss = 1", "losss"),
            ("timeline = [{ at_ms = 1, fault = \"crash\", node = 5 }]", "node 5"),
            ("timeline = [{ at_ms = 1, fault = \"meteor\" }]", "meteor"),
            ("external = [\"x\"]", "\"x\" is none of"),
            ("transfers = 3\nonly = [0, 3]", "no obligation 3 of 3"),
            ("commit_ms_min = 9", "above commit_ms_max"),
            ("backoff = { base_ms = 9, cap_ms = 1, jitter_permille = 0 }", "not from 1 to"),
        ] {
            let error = Options::from_toml(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
