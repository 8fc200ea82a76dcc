//! One run of a baseline: its state, its events and its end.

use super::disk::Disk;
use super::sender::Pending;
use super::{Traits, conn::End};
use crate::measures::{Around, Life, Measures};
use crate::net::{Mode, SimNet};
use crate::node::EPOCH_MS;
use crate::options::Options;
use crate::run::{Counts, Report};
use crate::scenario::{Fault, Policy};
use crate::workload::Workload;
use crate::world::{draw, plan};
use link::Rng;
use proto::id::AgentId;
use proto::obligation::Obligation;
use proto::record::Terminal;
use proto::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// How long after everything is well a run goes on beside its deadline, as the core's do.
const QUIET_MS: u64 = 120_000;

/// One obligation: what it is, and what became of it.
#[derive(Debug)]
pub(super) struct Ob {
    pub(super) issuer: usize,
    pub(super) target: usize,
    pub(super) external: bool,
    pub(super) plan: crate::world::Plan,
    pub(super) len: usize,
    pub(super) deadline_ms: u64,
    pub(super) asked_at: Option<u64>,
    pub(super) deadline_at: u64,
    /// Whether its issuer took it.
    pub(super) taken: bool,
    pub(super) effects: u32,
    pub(super) effect_at: Option<u64>,
    pub(super) told: Option<(Terminal, u64)>,
    pub(super) receiver_up: bool,
    /// How long after its deadline it ended, while its issuer was up.
    pub(super) late_ms: u64,
    pub(super) answered: bool,
    pub(super) attempts: u32,
    /// How often its handler was asked.
    pub(super) calls: u32,
    /// Whether the system behind it has had the effect.
    pub(super) called: bool,
}

/// One node.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) up: bool,
    pub(super) life: u64,
    pub(super) up_since: u64,
    pub(super) paused_until: u64,
    /// What it has taken and not seen the end of.
    pub(super) pending: BTreeMap<usize, Pending>,
    /// The part of it that is on its disk.
    pub(super) kept: BTreeSet<usize>,
    /// What it has applied, as far as it remembers.
    pub(super) ledger: BTreeSet<usize>,
    /// What it is applying just now.
    pub(super) applying: BTreeSet<usize>,
    pub(super) disk: Disk,
}

/// What a handler said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Applied,
    Declined,
    Later { busy: bool },
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Offer(usize),
    Answer(usize, Said),
}

/// Something that will happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Ask { client: usize },
    Retry { node: usize, life: u64, ob: usize, at: u64 },
    Deadline { node: usize, life: u64, ob: usize },
    Deliver { to: u64, frame: Frame },
    Resend { end: u64, frame: Frame, after: u64 },
    Dialed { a: usize, b: usize },
    Redial { a: usize, b: usize },
    EndDown { end: u64 },
    Idle { end: u64 },
    CutEnds { from: usize, to: usize },
    Decided { node: usize, life: u64, ob: usize, said: Said },
    AskHandler { node: usize, life: u64, ob: usize },
    Commit { node: usize, life: u64 },
    Fault { fault: usize },
    Restart { node: usize },
}

/// One run.
#[derive(Debug)]
pub(super) struct Sim {
    pub(super) options: Options,
    pub(super) traits: Traits,
    pub(super) now: u64,
    pub(super) queue: BTreeMap<(u64, u64), Event>,
    next_seq: u64,
    pub(super) net: SimNet,
    pub(super) nodes: Vec<Node>,
    pub(super) obs: Vec<Ob>,
    /// Obligations of each call.
    pub(super) clients: Vec<Vec<usize>>,
    pub(super) ends: BTreeMap<u64, End>,
    pub(super) next_session: u64,
    pub(super) dialing: BTreeSet<(usize, usize)>,
    /// What waits for a connection: since when it is given up, and the obligation.
    pub(super) waiting: BTreeMap<(usize, usize), Vec<(u64, usize)>>,
    pub(super) timeline: Vec<Fault>,
    pub(super) disk: Rng,
    pub(super) chance: Rng,
    pub(super) healed: bool,
    pub(super) handled: u64,
    pub(super) frames: u64,
    pub(super) bytes: u64,
    pub(super) kills: u64,
    trace: u64,
}

impl Sim {
    pub(super) fn new(options: Options) -> Self {
        let seed = options.seed;
        let mut sim = Self {
            traits: Traits::of(options.policy),
            now: EPOCH_MS,
            queue: BTreeMap::new(),
            next_seq: 0,
            net: SimNet::new(&options),
            nodes: (0..options.nodes).map(|_| Node::default()).collect(),
            obs: Vec::new(),
            clients: Vec::new(),
            ends: BTreeMap::new(),
            next_session: 1,
            dialing: BTreeSet::new(),
            waiting: BTreeMap::new(),
            timeline: Vec::new(),
            disk: Rng::new(seed, 4),
            chance: Rng::new(seed, 5),
            healed: false,
            handled: 0,
            frames: 0,
            bytes: 0,
            kills: 0,
            trace: 0,
            options,
        };
        sim.lay_out();
        for node in 0..sim.nodes.len() {
            sim.start(node);
        }
        sim
    }

    /// Whether a lost packet is sent again by the transport.
    pub(super) fn streams(&self) -> bool {
        match self.options.policy {
            Policy::BestEffortDatagram => false,
            Policy::BestEffortStream | Policy::OneShotPush => true,
            _ => self.options.mode == Mode::Streams,
        }
    }

    /// The obligations and faults of the seed, at the times at which the core's run has them.
    fn lay_out(&mut self) {
        let options = self.options.clone();
        let names: BTreeMap<AgentId, usize> = (0..options.nodes)
            .filter_map(|n| Some((AgentId::new(&Options::name(n)).ok()?, n)))
            .collect();
        let mut workload = Workload::new(&Options { twin_deadline_s: 0, ..options.clone() });
        while let Some(issue) = workload.next_call(&options, &names) {
            let (issuer, at) = (issue.issuer, self.from() + issue.at_ms);
            let mut call = Vec::new();
            for (draft, spec) in issue.drafts {
                let deadline_s = draft.deadline_seconds.unwrap_or(options.deadline_s);
                if !spec.admissible || draft.id.as_str().ends_with(crate::workload::TWIN) {
                    continue;
                }
                let ob = Ob {
                    issuer,
                    target: spec.target,
                    external: spec.external,
                    plan: plan(&options.handler, options.seed, &draft.id),
                    len: encoded_len(draft, deadline_s),
                    deadline_ms: deadline_s * 1000,
                    asked_at: None,
                    deadline_at: u64::MAX,
                    taken: false,
                    effects: 0,
                    effect_at: None,
                    told: None,
                    receiver_up: false,
                    late_ms: 0,
                    answered: false,
                    attempts: 0,
                    calls: 0,
                    called: false,
                };
                call.push(self.obs.len());
                self.obs.push(ob);
            }
            self.clients.push(call);
            self.schedule(at, Event::Ask { client: self.clients.len() - 1 });
        }
        let drawn = options.timeline.clone();
        self.timeline = drawn.unwrap_or_else(|| draw(&options));
        for fault in 0..self.timeline.len() {
            let at = self.timeline.get(fault).map_or(0, |fault| fault.at_ms);
            self.schedule(self.from() + at, Event::Fault { fault });
        }
    }

    /// When issues and faults begin.
    pub(super) const fn from(&self) -> u64 {
        EPOCH_MS + self.options.warm_up_ms
    }

    pub(super) fn schedule(&mut self, at: u64, event: Event) {
        self.queue.insert((at.max(self.now), self.next_seq), event);
        self.next_seq += 1;
    }

    /// Runs to the end: faults, healing, and time for every deadline.
    pub(super) fn run(mut self) -> Report {
        let begun = self.now;
        self.run_to(self.from() + self.options.faults_ms + self.options.heal_after_ms);
        self.heal();
        let well_at = self.now;
        self.run_to(well_at + self.options.deadline_s * 1000 + QUIET_MS);
        let measures = self.measures(well_at);
        let counts = Counts {
            applied: measures.applied,
            declined: measures.declined,
            escalated: measures.escalated,
            spurious: measures.spurious_applied,
            best_effort: 0,
            refused: 0,
        };
        Report {
            counts,
            virtual_ms: self.now - begun,
            events: self.handled,
            frames: self.frames,
            bytes: self.bytes,
            syncs: measures.syncs,
            kills: self.kills,
            trace: self.trace,
            violations: Vec::new(),
            measures,
            options: self.options,
        }
    }

    fn run_to(&mut self, until: u64) {
        while let Some(entry) = self.queue.first_entry() {
            let at = entry.key().0;
            if at > until {
                break;
            }
            let event = entry.remove();
            self.now = at;
            self.handled += 1;
            if let Some(resumes) = self.paused(event) {
                self.schedule(resumes, event);
                continue;
            }
            self.handle(event);
        }
        self.now = self.now.max(until);
    }

    /// When the node of an event goes on, if it stands still.
    fn paused(&self, event: Event) -> Option<u64> {
        let node = match event {
            Event::Retry { node, .. }
            | Event::Deadline { node, .. }
            | Event::Decided { node, .. }
            | Event::AskHandler { node, .. }
            | Event::Commit { node, .. } => node,
            Event::Deliver { to, .. } => self.ends.get(&to)?.node,
            Event::Ask { client } => self.obs.get(*self.clients.get(client)?.first()?)?.issuer,
            _ => return None,
        };
        self.nodes.get(node).map(|node| node.paused_until).filter(|until| *until > self.now)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ask { client } => self.ask(client),
            Event::Retry { node, life, ob, at } if self.lives(node, life) => {
                self.retry(node, ob, at);
            }
            Event::Deadline { node, life, ob } if self.lives(node, life) => self.give_up(node, ob),
            Event::Deliver { to, frame } => self.deliver(to, frame),
            Event::Resend { end, frame, after } => self.route(end, frame, Some(after)),
            Event::Dialed { a, b } => self.dialed(a, b),
            Event::Redial { a, b } => self.dial_if_needed(a, b),
            Event::EndDown { end } => self.end_down(end),
            Event::Idle { end } => self.idle(end),
            Event::CutEnds { from, to } => self.cut_ends(from, to),
            Event::Decided { node, life, ob, said } if self.lives(node, life) => {
                self.decided(node, ob, said);
            }
            Event::AskHandler { node, life, ob } if self.lives(node, life) => {
                self.ask_handler(node, ob);
            }
            Event::Commit { node, life } if self.lives(node, life) => self.commit_done(node),
            Event::Fault { fault } if !self.healed => self.fault_begins(fault),
            Event::Restart { node } => self.start(node),
            _ => {}
        }
    }

    pub(super) fn lives(&self, node: usize, life: u64) -> bool {
        self.nodes.get(node).is_some_and(|node| node.up && node.life == life)
    }

    pub(super) fn is_up(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.up)
    }

    /// Adds to the hash that equal runs have in common.
    pub(super) fn mix(&mut self, what: u64, ob: usize) {
        let seen = self.now ^ what.rotate_left(48) ^ (ob as u64).rotate_left(20);
        self.trace = proto::backoff::mix(self.trace ^ seen);
    }

    /// An obligation had its effect at its receiver, or in the system behind it.
    pub(super) fn effect(&mut self, ob: usize, at: u64) {
        self.mix(1, ob);
        if let Some(ob) = self.obs.get_mut(ob) {
            ob.effects += 1;
            ob.effect_at.get_or_insert(at);
        }
    }

    /// The principal of the issuer is told how it ended.
    pub(super) fn tell(&mut self, ob: usize, terminal: Terminal) {
        self.mix(2 + terminal as u64, ob);
        let (issuer, target) = self.obs.get(ob).map_or((0, 0), |ob| (ob.issuer, ob.target));
        let (now, receiver_up) = (self.now, self.is_up(target));
        let up_since = self.nodes.get(issuer).map_or(0, |node| node.up_since);
        if let Some(ob) = self.obs.get_mut(ob) {
            ob.receiver_up = receiver_up;
            ob.late_ms = now.saturating_sub(ob.deadline_at.max(up_since));
            ob.told.get_or_insert((terminal, now));
        }
    }

    fn measures(&self, well_at: u64) -> Measures {
        let mut measures = Measures {
            bytes: self.bytes,
            syncs: self.nodes.iter().map(|node| node.disk.syncs).sum(),
            ..Measures::default()
        };
        let around = Around { healed_at: self.last_outage(), well_at };
        for ob in self.obs.iter().filter(|ob| ob.taken) {
            let escalated = ob.told.filter(|(terminal, _)| *terminal == Terminal::Escalated);
            let life = Life {
                asked_at: ob.asked_at.unwrap_or(0),
                effect_at: ob.effect_at,
                effects: ob.effects,
                told: ob.told,
                logged: self.traits.logs && !ob.answered,
                willing: !ob.external || ob.plan.willing(),
                receiver_up: ob.receiver_up,
                attempts: ob.attempts,
                late_ms: escalated.filter(|(_, at)| *at >= ob.deadline_at).map(|_| ob.late_ms),
                cleared_at: None,
                twin: None,
            };
            measures.add(&life, around);
        }
        measures
    }
}

#[cfg(test)]
impl Sim {
    /// When its clients ask, for how many obligations each.
    pub(super) fn asks(&self) -> Vec<(u64, usize)> {
        let asks = self.queue.iter().filter_map(|((at, _), event)| match event {
            Event::Ask { client } => Some((*at, self.clients.get(*client)?.len())),
            _ => None,
        });
        asks.collect()
    }
}

/// Bytes of an obligation on the wire.
fn encoded_len(draft: proto::custodian::Draft, deadline_seconds: u64) -> usize {
    let obligation = Obligation {
        id: draft.id,
        kind: draft.kind,
        target: draft.target,
        payload: draft.payload,
        deadline_seconds,
        max_retries: 15,
        created_at: Time::from_ms(EPOCH_MS),
        sequence: draft.sequence,
    };
    obligation.encode().len()
}
