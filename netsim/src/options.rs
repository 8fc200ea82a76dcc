//! What one run is made of. Every option of a swarm run is drawn from its seed.

mod swarm;

use crate::net::Mode;
use crate::scenario::{Arena, DiskModel, Fault, LinkOf, Policy, RelayModel};
use crate::tuning::Tuning;
use link::{Delay, LinkModel, Micros};
use proto::backoff::Backoff;
use proto::id::{AgentId, Kind};
use proto::profile::{OnDecline, Profile};
use proto::settings::{PeerRules, Settings, WeightBounds};
use proto::weight::Weight;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The kinds a run issues: consent, belief updates, tokens.
pub const KINDS: [&str; 3] = ["anumati.consent", "phala.belief_update", "oauth.token"];

/// All options of a run: a scenario. Times are milliseconds of virtual time, chances thousandths.
///
/// A scenario file is these fields in TOML; what it leaves out is as in [`Options::quiet`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// What it is called in reports.
    pub name: String,
    /// Where it runs.
    pub world: Arena,
    /// How obligations are delivered.
    pub policy: Policy,
    /// Everything random comes from it.
    pub seed: u64,
    /// Nodes.
    pub nodes: usize,
    /// A MOQT relay that all nodes have a link with, instead of links with each other. In faults and links
    /// its number is the one after the last node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<RelayModel>,
    /// Whether the nodes know only the first, which knows them all.
    pub star: bool,
    /// Obligations issued in all.
    pub transfers: u32,
    /// Decisions for all peers of a node, beside these: one issue call each, an obligation for each peer.
    pub decisions: u32,
    /// Obligations of one issue call, at most.
    pub issue_batch_max: u64,
    /// Time in which the nodes connect, before anything is issued or goes wrong.
    pub warm_up_ms: u64,
    /// Time in which they are issued and faults happen; then everything heals.
    pub faults_ms: u64,
    /// How long faults go on after the last issue and before everything heals.
    pub heal_after_ms: u64,
    /// Keys of each kind; few keys supersede often.
    pub keys: u64,
    /// Whether kinds draw their keys from the same names.
    pub shared_keys: bool,
    /// Chance that an obligation is benign (a grant, a reinforcing update, an issued token).
    pub benign_permille: u32,
    /// Chance that an obligation brings its own sequence.
    pub numbered_permille: u32,
    /// Chance that a client issues an answered obligation again.
    pub reissue_permille: u32,
    /// How frames are lost.
    pub mode: Mode,
    /// All links, each direction by itself.
    pub link: LinkModel,
    /// Directions that differ.
    pub links: Vec<LinkOf>,
    /// Whether each frame carries one offer or ack only.
    pub singly: bool,
    /// Whether every frame goes through its encoding.
    pub wire: bool,
    /// What goes wrong and when; if none, it is drawn from the seed and the counts below.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Vec<Fault>>,
    /// Numbers of the obligations that are issued, from 0; if none, all of `transfers`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only: Option<BTreeSet<u32>>,
    /// Cuts of a link, both ways.
    pub partitions: u32,
    /// Cuts of one direction.
    pub one_way_cuts: u32,
    /// Longest cut.
    pub cut_ms_max: u64,
    /// Silence after which a session counts as dead.
    pub idle_ms: u64,
    /// Longest time a handshake may take before it is given up.
    pub handshake_ms: u64,
    /// Time between handshakes that failed.
    pub reconnect: Backoff,
    /// Whether each node keeps a session of its own dialling, so that there are two with each peer.
    pub both_dial: bool,
    /// Whether a fresh handshake is tried beside a silent session.
    pub racing: bool,
    /// Whether a session sends nothing sooner than its probes, which back off for as long as nothing is
    /// heard, as those of QUIC do.
    pub probe_backoff: bool,
    /// Whether a custodian asks for the status of what is pending on a new session.
    pub queries: bool,
    /// Malformed, foreign and unknown frames thrown in.
    pub noise: u32,
    /// Node crashes.
    pub crashes: u32,
    /// Crashes at a point of a commit that is drawn too.
    pub crash_points: u32,
    /// Longest time a node stays down.
    pub restart_ms_max: u64,
    /// Links that come and go for a time.
    pub flaps: u32,
    /// Times a link is lossy, narrow or slow, or loses what fills a packet.
    pub link_faults: u32,
    /// Changes of the address a node sends from.
    pub rebinds: u32,
    /// Times a node stands still.
    pub pauses: u32,
    /// Times a disk is slow.
    pub slow_disks: u32,
    /// Commits that fail once, which ends the node.
    pub failed_syncs: u32,
    /// Times a disk is full.
    pub full_disks: u32,
    /// Times a part of a disk cannot be read.
    pub bit_rots: u32,
    /// Longest of these that take time.
    pub fault_ms_max: u64,
    /// Shortest commit.
    pub commit_ms_min: u64,
    /// Longest commit.
    pub commit_ms_max: u64,
    /// Chance of a stalled commit.
    pub stall_permille: u32,
    /// How long a stalled commit takes.
    pub stall_ms: u64,
    /// Chance of a failed commit, which ends the node.
    pub commit_fail_permille: u32,
    /// Nodes whose disk differs.
    pub disks: Vec<DiskModel>,
    /// Inputs one commit takes.
    pub inputs_per_commit: usize,
    /// Commits in flight.
    pub commits_in_flight: usize,
    /// Largest difference between two clocks, which is also what nodes are told.
    pub skew_ms: u64,
    /// Steps of a clock, inside the difference allowed.
    pub clock_steps: u32,
    /// How fast a clock runs ahead or falls behind at most, in millionths; it is set right before
    /// it leaves the difference allowed.
    pub drift_ppm_max: u32,
    /// Kinds applied by an external handler.
    pub external: Vec<String>,
    /// How handlers behave.
    pub handler: HandlerModel,
    /// Deadline of all kinds, in seconds.
    pub deadline_s: u64,
    /// Chance that an obligation brings its own, shorter deadline.
    pub short_permille: u32,
    /// Deadline of a twin that goes with each admissible obligation, in seconds; 0 for no twins. A
    /// twin shows how long the delivery takes when no deadline ends it.
    pub twin_deadline_s: u64,
    /// Backoff of all kinds.
    pub backoff: Backoff,
    /// A retry budget other than what spans the deadline, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Whether declines are surfaced instead of acted on.
    pub surface: bool,
    /// Whether obligations to an agent that is away coalesce.
    pub coalesce: bool,
    /// Offers in flight of a session.
    pub window: usize,
    /// Bytes of the same.
    pub window_bytes: usize,
    /// Pending obligations of a node.
    pub pending_max: usize,
    /// Pending obligations to one peer.
    pub pending_per_peer_max: usize,
    /// Offers being decided.
    pub deciding_max: usize,
    /// Obligations a second a peer may offer.
    pub rate_per_second: u64,
    /// How long outcomes are kept.
    pub retention_ms: u64,
    /// Outcomes kept at most.
    pub outcomes_max: u64,
    /// Whether the disk keeps its word.
    pub sabotage: Sabotage,
    /// What real nodes are told besides.
    pub tuning: Tuning,
    /// The rule the nodes break, if any.
    #[cfg(feature = "mutants")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutant: Option<proto::mutant::Mutant>,
}

/// A disk that breaks its word, to see that the checkers notice and the faults are hard enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sabotage {
    /// None: the disk is honest.
    Honest,
    /// What was synced may be gone after a crash.
    LyingDisk,
    /// A receiver without a durable ledger.
    NoLedger,
}

/// How external handlers behave, by obligation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HandlerModel {
    /// Chance to decline.
    pub decline_permille: u32,
    /// Chance to defer a few times first.
    pub defer_permille: u32,
    /// Chance to defer for ever.
    pub defer_forever_permille: u32,
    /// Chance not to be reached a few times first.
    pub unreached_permille: u32,
    /// Chance that nobody can say whether the effect happened.
    pub in_doubt_permille: u32,
    /// Longest call.
    pub call_ms_max: u64,
}

impl HandlerModel {
    /// Applies everything, quickly.
    pub const PROMPT: Self = Self {
        decline_permille: 0,
        defer_permille: 0,
        defer_forever_permille: 0,
        unreached_permille: 0,
        in_doubt_permille: 0,
        call_ms_max: 5,
    };
}

impl Default for HandlerModel {
    fn default() -> Self {
        Self::PROMPT
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::quiet(0)
    }
}

impl Options {
    /// A run in which nothing goes wrong: two nodes, a link of 5 ms, commits of 2 ms, a deadline of
    /// 60 s with a backoff from 1 s to 8 s. Story tests start here.
    #[must_use]
    pub fn quiet(seed: u64) -> Self {
        Self {
            name: String::new(),
            world: Arena::Core,
            policy: Policy::Custody,
            seed,
            nodes: 2,
            relay: None,
            star: false,
            transfers: 0,
            decisions: 0,
            issue_batch_max: 1,
            warm_up_ms: 0,
            faults_ms: 0,
            heal_after_ms: 0,
            keys: 4,
            shared_keys: false,
            benign_permille: 0,
            numbered_permille: 0,
            reissue_permille: 0,
            mode: Mode::Streams,
            link: LinkModel::with_delay(Delay::Fixed(Micros::from_ms(5))),
            links: Vec::new(),
            singly: false,
            wire: true,
            timeline: None,
            only: None,
            partitions: 0,
            one_way_cuts: 0,
            cut_ms_max: 0,
            idle_ms: 500,
            handshake_ms: 5_000,
            reconnect: Backoff { base_ms: 100, cap_ms: 2_000, jitter_permille: 200 },
            both_dial: false,
            racing: false,
            probe_backoff: false,
            queries: false,
            noise: 0,
            crashes: 0,
            crash_points: 0,
            restart_ms_max: 0,
            flaps: 0,
            link_faults: 0,
            rebinds: 0,
            pauses: 0,
            slow_disks: 0,
            failed_syncs: 0,
            full_disks: 0,
            bit_rots: 0,
            fault_ms_max: 1_000,
            commit_ms_min: 2,
            commit_ms_max: 2,
            stall_permille: 0,
            stall_ms: 0,
            commit_fail_permille: 0,
            disks: Vec::new(),
            inputs_per_commit: 64,
            commits_in_flight: 2,
            skew_ms: 0,
            clock_steps: 0,
            drift_ppm_max: 0,
            external: Vec::new(),
            handler: HandlerModel::PROMPT,
            deadline_s: 60,
            short_permille: 0,
            twin_deadline_s: 0,
            backoff: Backoff { base_ms: 1_000, cap_ms: 8_000, jitter_permille: 0 },
            retries: None,
            surface: false,
            coalesce: true,
            window: 256,
            window_bytes: 1 << 20,
            pending_max: 1 << 20,
            pending_per_peer_max: 1 << 20,
            deciding_max: 64,
            rate_per_second: 1_000_000,
            retention_ms: 7 * 24 * 3_600_000,
            outcomes_max: 1_000_000,
            sabotage: Sabotage::Honest,
            tuning: Tuning::default(),
            #[cfg(feature = "mutants")]
            mutant: None,
        }
    }

    /// The name of a node.
    #[must_use]
    pub fn name(node: usize) -> String {
        match u8::try_from(node) {
            Ok(n) if n < 26 => char::from(b'a' + n).to_string(),
            _ => format!("node-{node}"),
        }
    }

    /// The delivery profile of all kinds.
    #[must_use]
    pub fn profile(&self) -> Profile {
        let deadline_ms = self.deadline_s * 1000;
        let needed = u32::try_from(self.backoff.retries_needed(deadline_ms)).unwrap_or(u32::MAX);
        // Profile::new refuses what a budget of `needed` makes coherent only if the cap is not
        // below the deadline, which no run asks for.
        let mut profile =
            Profile::unchecked(deadline_ms, self.retries.unwrap_or(needed), self.backoff);
        profile.on_decline = if self.surface { OnDecline::Surface } else { OnDecline::Apply };
        profile
    }

    /// Bounds of weights, the same everywhere.
    #[must_use]
    pub fn weights() -> WeightBounds {
        let half = Weight::from_nanos(500_000_000);
        WeightBounds { min: Weight::ZERO, max: half.saturating_add(half), initial: half }
    }

    /// What node `node` is told.
    #[must_use]
    pub fn settings(&self, node: usize) -> Option<Settings> {
        let agent = |node| AgentId::new(&Self::name(node)).ok();
        let kinds: BTreeSet<Kind> = KINDS.iter().filter_map(|kind| Kind::new(kind).ok()).collect();
        let peers: BTreeMap<AgentId, PeerRules> = (0..self.nodes)
            .filter(|peer| *peer != node && node < self.nodes)
            .filter(|peer| !self.star || *peer == 0 || node == 0)
            .filter_map(agent)
            .map(|peer| {
                let rules = PeerRules {
                    principal: peer.clone(),
                    may_issue: kinds.clone(),
                    may_receive: kinds.clone(),
                    obligations_per_second: self.rate_per_second,
                    obligations_burst: self.rate_per_second,
                    bytes_per_second: 100_000_000,
                };
                (peer, rules)
            })
            .collect();
        Some(Settings {
            me: agent(node)?,
            peers,
            profiles: kinds.iter().map(|kind| (kind.clone(), self.profile())).collect(),
            external: self.external.iter().filter_map(|kind| Kind::new(kind).ok()).collect(),
            clock_skew_ms_max: self.skew_ms,
            pending_max: self.pending_max,
            pending_per_peer_max: self.pending_per_peer_max,
            in_flight_max: self.window,
            in_flight_bytes_max: self.window_bytes,
            deciding_max: self.deciding_max,
            best_effort_window: 65_536,
            refuse_retry_after_ms: 300,
            coalesce: self.coalesce,
            outcome_retention_ms: self.retention_ms,
            outcomes_max: self.outcomes_max,
            weights: Self::weights(),
            seed: self.seed,
        })
    }
}
