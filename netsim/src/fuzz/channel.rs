//! A thousand transfers between two cores, each over a channel of its own.

use super::Tally;
use crate::check::{Bounds, Checker, LastLook, Spec};
use crate::options::Options;
use crate::solo::Solo;
use link::Rng;
use proto::ack::{AckRun, RefRange};
use proto::backoff::Backoff;
use proto::custodian::Draft;
use proto::custody::Input;
use proto::id::{AgentId, GovernedKey, Kind, ObligationId};
use proto::obligation::Obligation;
use proto::payload::Payload;
use proto::polarity::Change;
use proto::receiver::Decision;
use proto::record::Terminal;
use proto::step::{Output, SessionId, Step, Ticket};
use proto::time::Time;
use proto::weight::Weight;
use std::collections::BTreeMap;

const CUSTODIAN: usize = 0;
const RECEIVER: usize = 1;
/// The one session, as each side calls it.
const SESSIONS: [SessionId; 2] = [SessionId(2), SessionId(3)];
const KIND: &str = "phala.belief_update";
const DEADLINE_S: u64 = 600;

/// The channel of one transfer, and what its receiver decides.
#[derive(Clone, Debug)]
struct Channel {
    rng: Rng,
    lost: f64,
    twice: f64,
    answer_lost: f64,
    declines: bool,
}

impl Channel {
    fn new(seed: u64, transfer: u64) -> Self {
        let mut rng = Rng::new(seed, transfer);
        let (lost, twice, answer_lost) = (rng.fraction(), rng.fraction(), rng.fraction());
        Self { lost, twice, answer_lost, declines: rng.below(3) == 0, rng }
    }

    /// One round trip: how many copies arrive, and whether the answer gets back.
    fn attempt(&mut self) -> (usize, bool) {
        if self.rng.fraction() < self.lost {
            return (0, false);
        }
        let copies = if self.rng.fraction() < self.twice { 2 } else { 1 };
        (copies, self.rng.fraction() >= self.answer_lost)
    }
}

/// Two cores, their checkers, and the channels between them.
#[derive(Debug)]
pub(super) struct Shard {
    cores: [Solo; 2],
    checker: Checker,
    channels: BTreeMap<ObligationId, Channel>,
    /// Whose answers get back, of what was offered just now.
    heard: BTreeMap<ObligationId, bool>,
    /// Which obligation an offer was.
    offered: BTreeMap<u64, ObligationId>,
}

impl Shard {
    /// Transfers `first..first + count` of a seed, issued at once.
    pub(super) fn new(seed: u64, first: u64, count: u64) -> Self {
        let options = Options {
            deadline_s: DEADLINE_S,
            backoff: Backoff { base_ms: 1_000, cap_ms: 64_000, jitter_permille: 0 },
            retries: Some(64),
            external: vec![KIND.to_owned()],
            window: 1 << 20,
            window_bytes: 1 << 30,
            deciding_max: 1 << 20,
            ..Options::quiet(seed)
        };
        // Two nodes with settings: constants that the options make valid.
        let core = |n| options.settings(n).map(Solo::new);
        let names = (0..2).filter_map(|n| AgentId::new(&Options::name(n)).ok());
        let bounds = Bounds {
            skew_ms: 0,
            weights: Options::weights(),
            late_ms_max: 0,
            settle_ms_max: 0,
            prompt: false,
            retention_ms: options.retention_ms,
            outcomes_max: options.outcomes_max,
            outcomes_slack: count,
            pending_max: options.pending_max,
            pending_per_peer_max: options.pending_per_peer_max,
            window: options.window,
            window_bytes: options.window_bytes,
        };
        let mut shard = Self {
            cores: match (core(CUSTODIAN), core(RECEIVER)) {
                (Some(custodian), Some(receiver)) => [custodian, receiver],
                _ => unreachable!("nodes 0 and 1 have names"),
            },
            checker: Checker::new(bounds, names),
            channels: BTreeMap::new(),
            heard: BTreeMap::new(),
            offered: BTreeMap::new(),
        };
        for node in [CUSTODIAN, RECEIVER] {
            shard.checker.up(shard.now(), node);
            if let Ok(peer) = AgentId::new(&Options::name(1 - node)) {
                let session = session(node);
                shard.input(node, [Input::SessionUp { session, peer, window: options.window }]);
            }
        }
        let transfers = (first..first + count).filter_map(|n| Some((n, draft(n)?)));
        let mut drafts = Vec::new();
        for (n, (draft, spec)) in transfers {
            shard.channels.insert(draft.id.clone(), Channel::new(seed, n));
            shard.checker.asked(spec);
            drafts.push(draft);
        }
        shard.settle(CUSTODIAN, vec![Input::Issue { ticket: Ticket(1), drafts }]);
        shard
    }

    fn now(&self) -> u64 {
        let [custodian, _] = &self.cores;
        custodian.now
    }

    fn core(&mut self, node: usize) -> &mut Solo {
        let [custodian, receiver] = &mut self.cores;
        if node == CUSTODIAN { custodian } else { receiver }
    }

    /// Lets time pass until every transfer must have ended, and tells how they did.
    pub(super) fn run(mut self) -> Tally {
        let until = self.now() + DEADLINE_S * 1000;
        while let Some((due, node)) = self.next().filter(|(due, _)| *due <= until) {
            for core in &mut self.cores {
                core.now = core.now.max(due);
            }
            self.settle(node, vec![Input::Tick]);
        }
        let now = self.now();
        let [custodian, receiver] = &self.cores;
        let looks = [custodian, receiver].map(|core| LastLook {
            pending: core.custody.pending(),
            staged: core.custody.staged(),
            store: &core.store,
            forgotten: false,
        });
        self.checker.finish(now, &looks);
        self.tally()
    }

    /// Whose alarm is next, and when.
    fn next(&self) -> Option<(u64, usize)> {
        let due = self.cores.iter().map(|core| core.custody.next_timeout());
        let alarms = due.zip(0..).filter_map(|(at, node)| Some((at?.as_ms(), node)));
        alarms.map(|(at, node)| (at.max(self.now()), node)).min()
    }

    fn tally(&self) -> Tally {
        let mut tally = Tally {
            violations: self
                .checker
                .violations()
                .iter()
                .map(|violation| format!("{}: {}", violation.rule, violation.detail))
                .collect(),
            ..Tally::default()
        };
        for entry in self.checker.entries() {
            let applied = entry.times_applied() > 0;
            tally.transfers += 1;
            tally.attempts += u64::from(entry.offers());
            tally.attempts_max = tally.attempts_max.max(entry.offers());
            tally.doubled += u64::from(entry.times_applied() > 1);
            match entry.terminal() {
                Some(Terminal::Applied) if applied => tally.applied += 1,
                Some(Terminal::Declined) => tally.declined += 1,
                Some(Terminal::Escalated) => {
                    tally.escalated += 1;
                    tally.spurious += u64::from(applied);
                }
                _ => tally.silent += 1,
            }
        }
        tally
    }

    /// Gives a core inputs, and does what comes of them until nothing more does. No time passes.
    fn settle(&mut self, node: usize, inputs: Vec<Input>) {
        let mut next = vec![(node, inputs)];
        while let Some((node, inputs)) = next.pop() {
            if inputs.is_empty() {
                continue;
            }
            let outputs = self.input(node, inputs);
            let mut offers = Vec::new();
            let mut decisions = Vec::new();
            let mut answers = Vec::new();
            for output in outputs {
                match output {
                    Output::Offers { first_ref, items, .. } => {
                        for (reference, item) in (first_ref..).zip(items) {
                            offers.extend(self.offer(reference, item));
                        }
                    }
                    Output::Decide { issuer, obligation, .. } => {
                        decisions.extend(self.decide(issuer, &obligation));
                    }
                    Output::AckRuns { runs, .. } => answers.extend(self.runs_back(runs)),
                    Output::Acks { acks, .. } => {
                        let acks = acks
                            .into_iter()
                            .filter(|ack| self.heard.get(&ack.obligation_id) == Some(&true))
                            .collect();
                        if let Ok(peer) = AgentId::new(&Options::name(RECEIVER)) {
                            answers.push(Input::Acks { peer, acks });
                        }
                    }
                    _ => {}
                }
            }
            next.push((CUSTODIAN, answers));
            next.push((RECEIVER, decisions));
            next.push((RECEIVER, offers));
        }
    }

    /// The copies of one offer that arrive.
    fn offer(&mut self, reference: u64, item: bytes::Bytes) -> Vec<Input> {
        let Ok(obligation) = Obligation::decode(&item) else { return Vec::new() };
        let id = obligation.id;
        let Some(channel) = self.channels.get_mut(&id) else { return Vec::new() };
        let (copies, heard) = channel.attempt();
        self.offered.insert(reference, id.clone());
        self.heard.insert(id, heard);
        let session = session(RECEIVER);
        let input = Input::Offers { session, first_ref: reference, items: vec![item.clone()] };
        if copies > 0 {
            self.checker.offered(RECEIVER, CUSTODIAN, session, reference, &[item]);
        }
        vec![input; copies]
    }

    /// The handler's word.
    fn decide(&mut self, issuer: AgentId, item: &bytes::Bytes) -> Option<Input> {
        let id = Obligation::decode(item).ok()?.id;
        let declines = self.channels.get(&id)?.declines;
        let decision = if declines {
            Decision::Declined(proto::ack::Reason::new("one in three"))
        } else {
            let clock = Time::from_ms(self.now());
            self.checker.called(self.now(), RECEIVER, CUSTODIAN, &id, clock);
            Decision::Applied
        };
        Some(Input::Decided { issuer, id, decision })
    }

    /// What of the answers by reference gets back.
    fn runs_back(&self, runs: Vec<AckRun>) -> Option<Input> {
        let heard = |reference: &u64| {
            let id = self.offered.get(reference);
            id.and_then(|id| self.heard.get(id)) == Some(&true)
        };
        let runs: Vec<AckRun> = runs
            .into_iter()
            .filter_map(|run| {
                let all = run.refs.iter().flat_map(|range| range.iter());
                let refs = RefRange::collect(all.filter(heard).collect());
                (!refs.is_empty()).then_some(AckRun { refs, ..run })
            })
            .collect();
        (!runs.is_empty()).then_some(Input::AckRuns { session: session(CUSTODIAN), runs })
    }

    /// Inputs in one step, committed at once, under the eyes of the checkers.
    fn input(&mut self, node: usize, inputs: impl IntoIterator<Item = Input>) -> Vec<Output> {
        let now = self.now();
        let step = self.core(node).step(inputs);
        let (generation, sync) = (step.generation(), step.needs_sync());
        let outputs = self.durable(node, now, step, sync);
        self.core(node).custody.committed(generation);
        for output in &outputs {
            self.checker.released(now, node, output);
        }
        outputs
    }

    fn durable(&mut self, node: usize, now: u64, step: Step, sync: bool) -> Vec<Output> {
        let [custodian, receiver] = &mut self.cores;
        let store = &mut (if node == CUSTODIAN { custodian } else { receiver }).store;
        let checker = &mut self.checker;
        let outputs = step.commit(|writes| {
            store.apply(writes, sync);
            checker.committed(now, node, Time::from_ms(now), writes);
            Ok::<(), std::convert::Infallible>(())
        });
        outputs.unwrap_or_default()
    }
}

const fn session(node: usize) -> SessionId {
    let [custodian, receiver] = SESSIONS;
    if node == CUSTODIAN { custodian } else { receiver }
}

/// A corrective update, as the reference issues it.
fn draft(n: u64) -> Option<(Draft, Spec)> {
    let key = "routing.agent_b.preference";
    let payload = serde_json::json!({"weight_delta": -0.4, "weight_key": key});
    let id = ObligationId::new(&format!("bu-{n}")).ok()?;
    let draft = Draft {
        id: id.clone(),
        kind: Kind::new(KIND).ok()?,
        target: AgentId::new(&Options::name(RECEIVER)).ok()?,
        payload: Payload::from_json(payload.as_object()?).ok()?,
        deadline_seconds: None,
        max_retries: None,
        sequence: None,
    };
    let spec = Spec {
        issuer: CUSTODIAN,
        id,
        target: RECEIVER,
        key: GovernedKey::new(key).ok()?,
        change: Change::Weight { delta: Weight::from_nanos(-400_000_000) },
        admissible: true,
        external: true,
    };
    Some((draft, spec))
}
