//! What is issued, by seed; and the workload's own judgement of it.

use crate::check::Spec;
use crate::options::{KINDS, Options};
use link::Rng;
use proto::custodian::Draft;
use proto::fanout::GroupId;
use proto::id::{AgentId, GovernedKey, Kind, ObligationId};
use proto::payload::Payload;
use proto::polarity::Change;
use proto::weight::Weight;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What the id and the key of a twin end in.
pub(crate) const TWIN: &str = "~";

/// Issues obligations until its transfers are spent.
///
/// Each issue call and each obligation draws from a stream of its own number: leaving some out
/// changes nothing about the others.
#[derive(Debug)]
pub(crate) struct Workload {
    left: u32,
    decisions: u32,
    calls: u64,
    count: u32,
    shared: BTreeMap<usize, u64>,
}

/// One issue call.
#[derive(Debug)]
pub(crate) struct Call {
    /// Its number, from 0.
    pub(crate) number: u64,
    /// The node that issues.
    pub(crate) issuer: usize,
    /// When, in milliseconds since the run began.
    pub(crate) at_ms: u64,
    /// What it issues; nothing, if all of it is left out.
    pub(crate) drafts: Vec<(Draft, Spec)>,
}

/// Streams of issue calls and of obligations.
const CALLS: u64 = 1 << 40;
const OBLIGATIONS: u64 = 2 << 40;
/// Streams of decisions.
const DECISIONS: u64 = 4 << 40;

/// What an obligation is to say.
struct Wish {
    kind: usize,
    key: Option<String>,
    benign: bool,
    /// Size of the weight change, in thousandths.
    milli: u64,
    /// Whether it brings its own sequence.
    numbered: bool,
    /// A deadline of its own, in seconds.
    deadline_s: Option<u64>,
}

impl Wish {
    fn payload(&self) -> Map<String, Value> {
        let (mut payload, member) = match self.kind {
            0 => (json!({"decision": if self.benign { "grant" } else { "revoke" }}), "scope"),
            1 => {
                let size = self.milli as f64 / 1000.0;
                (json!({"weight_delta": if self.benign { size } else { -size }}), "weight_key")
            }
            _ => (json!({"action": if self.benign { "issue" } else { "revoke" }}), "token_id"),
        };
        if let (Some(members), Some(key)) = (payload.as_object_mut(), &self.key) {
            members.insert(member.to_owned(), json!(key));
        }
        match payload {
            Value::Object(members) => members,
            _ => Map::new(),
        }
    }

    fn change(&self) -> Change {
        let nanos = i64::try_from(self.milli).unwrap_or(0) * 1_000_000;
        match self.kind {
            1 => Change::Weight {
                delta: Weight::from_nanos(if self.benign { nanos } else { -nanos }),
            },
            _ => Change::Authorization { granted: self.benign },
        }
    }

    fn key(&self, target: &AgentId) -> Option<GovernedKey> {
        let key = match (&self.key, self.kind) {
            (Some(key), _) => key.clone(),
            (None, 1) => format!("routing.{target}.preference"),
            (None, _) => target.to_string(),
        };
        GovernedKey::new(&key).ok()
    }
}

impl Workload {
    pub(crate) const fn new(options: &Options) -> Self {
        let (left, decisions) = (options.transfers, options.decisions);
        Self { left, decisions, calls: 0, count: 0, shared: BTreeMap::new() }
    }

    /// The next issue call.
    pub(crate) fn next_call(
        &mut self,
        options: &Options,
        nodes: &BTreeMap<AgentId, usize>,
    ) -> Option<Call> {
        let number = self.calls;
        self.calls += 1;
        if self.left == 0 {
            return self.next_decision(options, nodes, number);
        }
        let mut rng = Rng::new(options.seed, CALLS + number);
        let issuer = usize::try_from(rng.below(nodes.len() as u64)).ok()?;
        let at_ms = rng.below(options.faults_ms);
        let count = rng.range(1, options.issue_batch_max).min(self.left.into());
        self.left -= u32::try_from(count).unwrap_or(self.left);
        let drafts = (0..count).flat_map(|_| self.one(options, nodes, issuer)).collect();
        Some(Call { number, issuer, at_ms, drafts })
    }

    /// The next decision for all peers of a node. Its key is its own, so that it gets the same sequence
    /// everywhere.
    fn next_decision(
        &mut self,
        options: &Options,
        nodes: &BTreeMap<AgentId, usize>,
        number: u64,
    ) -> Option<Call> {
        self.decisions = self.decisions.checked_sub(1)?;
        let decision = self.decisions;
        let rng = &mut Rng::new(options.seed, DECISIONS + u64::from(decision));
        let issuer = usize::try_from(rng.below(nodes.len() as u64)).ok()?;
        let issuer = if options.star { 0 } else { issuer };
        let at_ms = rng.below(options.faults_ms);
        let gid = GroupId::new(&format!("{issuer}-decision-{decision}")).ok()?;
        let wish = Wish {
            kind: usize::try_from(rng.below(3)).ok()?,
            key: Some(format!("decision-{decision}")),
            benign: false,
            milli: rng.range(1, 1000),
            numbered: false,
            deadline_s: None,
        };
        let peers = nodes.iter().filter(|(_, peer)| **peer != issuer);
        let drafts = peers.filter_map(|(name, peer)| {
            let id = gid.member(name);
            wish.draft(options, issuer, (*peer, name), id.as_str(), None)
        });
        Some(Call { number, issuer, at_ms, drafts: drafts.collect() })
    }

    fn one(
        &mut self,
        options: &Options,
        nodes: &BTreeMap<AgentId, usize>,
        issuer: usize,
    ) -> Vec<(Draft, Spec)> {
        let number = self.count;
        let Some((wish, target, id)) = self.wish(options, nodes, issuer) else {
            return Vec::new();
        };
        if options.only.as_ref().is_some_and(|only| !only.contains(&number)) {
            return Vec::new();
        }
        let Some(name) = nodes.iter().find(|(_, n)| **n == target).map(|(name, _)| name) else {
            return Vec::new();
        };
        let mut made = wish.draft(options, issuer, (target, name), &id, wish.deadline_s);
        if let Some((draft, _)) = &mut made {
            draft.sequence = wish.numbered.then_some(u64::from(number) * 10 + 10);
        }
        let twin = (options.twin_deadline_s > 0 && !wish.benign).then(|| {
            let id = format!("{id}{TWIN}");
            let deadline = Some(options.twin_deadline_s);
            wish.twin().draft(options, issuer, (target, name), &id, deadline)
        });
        made.into_iter().chain(twin.flatten()).collect()
    }

    /// What the next obligation is to say, to whom and under which id.
    fn wish(
        &mut self,
        options: &Options,
        nodes: &BTreeMap<AgentId, usize>,
        issuer: usize,
    ) -> Option<(Wish, usize, String)> {
        let number = self.count;
        self.count += 1;
        let rng = &mut Rng::new(options.seed, OBLIGATIONS + u64::from(number));
        let hop = 1 + usize::try_from(rng.below(nodes.len() as u64 - 1)).ok()?;
        let target = (issuer + hop) % nodes.len();
        let id = match rng.below(10) {
            0 => {
                // Each issuer has its own space of ids: others may use the same.
                let shared = self.shared.entry(issuer).or_default();
                *shared += 1;
                format!("shared-{shared}")
            }
            _ => format!("{issuer}-{number}"),
        };
        let kind = usize::try_from(rng.below(3)).ok()?;
        let key = rng.below(options.keys);
        let name =
            if options.shared_keys { "key" } else { ["scope", "weight", "token"].get(kind)? };
        let milli = rng.range(1, 1000);
        let benign = rng.chance(options.benign_permille);
        let numbered = rng.chance(options.numbered_permille);
        let shorter = rng.range(1, options.deadline_s);
        let deadline_s = rng.chance(options.short_permille).then_some(shorter);
        let key = (key > 0 || !options.shared_keys).then(|| format!("{name}-{key}"));
        Some((Wish { kind, key, benign, milli, numbered, deadline_s }, target, id))
    }
}

impl Wish {
    /// The same under a key of its own, so that neither supersedes the other.
    fn twin(&self) -> Self {
        let key = Some(format!("{}{TWIN}", self.key.as_deref().unwrap_or_default()));
        Self { key, ..*self }
    }

    fn draft(
        &self,
        options: &Options,
        issuer: usize,
        (target, name): (usize, &AgentId),
        id: &str,
        deadline_seconds: Option<u64>,
    ) -> Option<(Draft, Spec)> {
        let id = ObligationId::new(id).ok()?;
        let kind = KINDS.get(self.kind)?;
        let spec = Spec {
            issuer,
            id: id.clone(),
            target,
            key: self.key(name)?,
            change: self.change(),
            admissible: !self.benign,
            external: options.external.iter().any(|name| name == kind),
        };
        let draft = Draft {
            id,
            kind: Kind::new(kind).ok()?,
            target: name.clone(),
            payload: Payload::from_json(&self.payload()).ok()?,
            deadline_seconds,
            max_retries: None,
            sequence: None,
        };
        Some((draft, spec))
    }
}
