//! The world: virtual time, an event queue, and everything that happens in it.

#[cfg(feature = "mutants")]
mod careless;
mod dial;
mod drive;
mod handler;
mod link;
pub(crate) mod metrics;
mod nodes;
mod noise;
mod outside;
mod relay;
pub(crate) mod timeline;
mod tracks;
mod wire;

use crate::check::{Bounds, Checker, Class, LastLook};
use crate::disk::SimStore;
use crate::net::SimNet;
use crate::node::{Clock, Disk, EPOCH_MS, Node};
use crate::options::Options;
use crate::scenario::{Fault, FaultKind};
use crate::workload::Workload;
use ::link::Rng;
use proto::custody::{Custody, Input};
use proto::event::Event as CoreEvent;
use proto::id::{AgentId, ObligationId};
use proto::receiver::Decision;
use proto::step::{SessionId, Ticket};
use std::collections::{BTreeMap, VecDeque};

pub(crate) use dial::DRAIN_MS_MAX;
use dial::{Dial, Loop};
use handler::Handler;
pub(crate) use handler::{Plan, plan};
pub(crate) use link::RESEND_MS_MAX;
use link::{End, Parcel};
use outside::Client;
pub(crate) use outside::{CLIENT_PATIENCE_MS, DOWN_PATIENCE_MS};
use relay::Relay;
pub(crate) use timeline::draw;
pub(crate) use wire::PACKET_OVERHEAD;

/// Events in one millisecond before the world is called stuck.
const EVENTS_PER_MS_MAX: u64 = 200_000;

/// How long the last commits may take, in milliseconds.
const SETTLE_MS_MAX: u64 = 60_000;

/// Something that will happen.
#[derive(Debug)]
pub(crate) enum Event {
    Pump {
        node: usize,
        life: u64,
    },
    Commit {
        node: usize,
        life: u64,
    },
    Alarm {
        node: usize,
        life: u64,
        at: u64,
    },
    Deliver {
        to: SessionId,
        parcel: Box<Parcel>,
    },
    /// A stream sends again what was lost of a frame.
    Resend {
        session: SessionId,
        parcel: Box<Parcel>,
    },
    /// A flight of a handshake is sent, and how long its sender waits for the next.
    Flight {
        of: Loop,
        dial: u64,
        flight: u8,
        wait_ms: u64,
    },
    Dialed {
        of: Loop,
        dial: u64,
    },
    Redial {
        of: Loop,
        dial: u64,
    },
    EndDown {
        session: SessionId,
    },
    Idle {
        session: SessionId,
    },
    FaultBegins {
        fault: usize,
    },
    FaultEnds {
        fault: usize,
    },
    CutEnds {
        from: usize,
        to: usize,
    },
    /// A clock that drifts is set right.
    ClockSet {
        node: usize,
        settings: u32,
    },
    Restart {
        node: usize,
    },
    Ask {
        client: usize,
    },
    Decided {
        node: usize,
        life: u64,
        issuer: AgentId,
        id: ObligationId,
        decision: Decision,
    },
    Acknowledge {
        node: usize,
        id: ObligationId,
    },
    Resolve {
        node: usize,
        id: ObligationId,
    },
}

/// One simulated world.
#[derive(Debug)]
pub struct World {
    options: Options,
    now: u64,
    next_seq: u64,
    queue: BTreeMap<(u64, u64), Event>,
    nodes: Vec<Node>,
    by_name: BTreeMap<AgentId, usize>,
    net: SimNet,
    ends: BTreeMap<SessionId, End>,
    /// The ends by who keeps them, oldest first.
    kept: BTreeMap<Loop, Vec<SessionId>>,
    next_session: u64,
    /// What is between the nodes, if they have no links with each other.
    relay: Option<Relay>,
    dialing: BTreeMap<Loop, Dial>,
    next_dial: u64,
    pub(crate) checker: Checker,
    clients: Vec<Client>,
    tickets: BTreeMap<Ticket, usize>,
    next_ticket: u64,
    handler: Handler,
    pub(crate) workload: Workload,
    /// When the run began.
    begun: u64,
    timeline: Vec<Fault>,
    healed: bool,
    /// Whether a story test runs: events are kept, and clients may be refused.
    pub(crate) story: bool,
    events: VecDeque<(u64, usize, CoreEvent)>,
    /// Things handled, frames and bytes sent, restarts made.
    pub(crate) handled: u64,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
    pub(crate) restarts: u64,
    /// What happened, for people, if anybody wants to read it.
    log: Option<Vec<LogLine>>,
}

/// What happened, when, and at which node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When, in milliseconds since the run began.
    pub at_ms: u64,
    /// Where, if it is about one node.
    pub node: Option<usize>,
    /// What.
    pub what: String,
}

impl World {
    /// A world by `options`, its nodes about to start.
    #[must_use]
    pub fn new(options: Options) -> Self {
        // A relay is the node after the last: it has a process to lose and connections, and no custody.
        let relay = options.relay.map(|model| Relay::new(options.nodes, model));
        let nodes: Vec<Node> = (0..options.nodes + usize::from(relay.is_some()))
            .filter_map(|n| Some((n, options.settings(n)?)))
            .map(|(n, settings)| Node {
                id: settings.me.clone(),
                settings,
                store: SimStore::default(),
                disk: Disk::new(&options, n),
                clock: Clock::default(),
                paused: None,
                armed: None,
                life: 0,
                live: None,
                sent_bytes: 0,
                sent_objects: 0,
            })
            .collect();
        let cores = nodes.iter().take(options.nodes);
        let names: Vec<AgentId> = cores.map(|node| node.id.clone()).collect();
        let seed = options.seed;
        let timeline = options.timeline.clone().unwrap_or_else(|| timeline::draw(&options));
        let mut world = Self {
            now: EPOCH_MS,
            next_seq: 0,
            queue: BTreeMap::new(),
            by_name: names.iter().cloned().zip(0..).collect(),
            net: SimNet::new(&options),
            ends: BTreeMap::new(),
            kept: BTreeMap::new(),
            next_session: 1,
            relay,
            dialing: BTreeMap::new(),
            next_dial: 0,
            checker: Checker::new(bounds(&options, &timeline), names),
            clients: Vec::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            handler: Handler::new(options.handler, seed),
            workload: Workload::new(&options),
            begun: EPOCH_MS,
            timeline,
            healed: false,
            story: false,
            events: VecDeque::new(),
            handled: 0,
            frames: 0,
            bytes: 0,
            restarts: 0,
            log: None,
            nodes,
            options,
        };
        for node in 0..world.nodes.len() {
            let mut rng = Rng::new(seed, 80_000 + node as u64);
            let ahead_ms = timeline::clock(&world.options, &mut rng);
            let drift_ppm = timeline::drift(&world.options, node);
            world.set_clock(node, ahead_ms, drift_ppm);
            world.start(node);
        }
        world
    }

    /// World time, in unix milliseconds.
    #[must_use]
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// The options of the run.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// The checkers.
    #[must_use]
    pub const fn checker(&self) -> &Checker {
        &self.checker
    }

    /// The store of a node.
    #[must_use]
    pub fn store(&self, node: usize) -> Option<&SimStore> {
        self.nodes.get(node).map(|node| &node.store)
    }

    /// The core of a node, if it is up.
    #[must_use]
    pub fn custody(&self, node: usize) -> Option<&Custody> {
        self.nodes.get(node)?.live.as_ref().map(|live| &live.custody)
    }

    /// Events of the cores since the last call, with world time and node; story tests keep them.
    pub fn take_events(&mut self) -> Vec<(u64, usize, CoreEvent)> {
        self.events.drain(..).collect()
    }

    pub(crate) fn schedule(&mut self, at: u64, event: Event) {
        self.queue.insert((at.max(self.now), self.next_seq), event);
        self.next_seq += 1;
    }

    /// Runs until world time `until`, or until something broke.
    pub fn run_to(&mut self, until: u64) {
        let mut at_once = 0u64;
        while let Some(entry) = self.queue.first_entry() {
            let at = entry.key().0;
            if at > until || !self.checker.violations().is_empty() {
                break;
            }
            at_once = if at == self.now { at_once + 1 } else { 0 };
            let event = entry.remove();
            self.now = at;
            self.handled += 1;
            if at_once > EVENTS_PER_MS_MAX {
                let detail = format!("time stands still: {event:?} is always due");
                self.checker.breach("converges", Class::Liveness, at, 0, detail);
                break;
            }
            self.handle(event);
        }
        if self.checker.violations().is_empty() {
            self.now = self.now.max(until);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Pump { node, life }
            | Event::Commit { node, life }
            | Event::Alarm { node, life, .. }
                if !self.lives(node, life) => {}
            Event::Pump { node, .. } | Event::Commit { node, .. } | Event::Alarm { node, .. }
                if self.paused(node).is_some() =>
            {
                let until = self.paused(node).unwrap_or(self.now);
                self.schedule(until, event);
            }
            Event::Pump { node, .. } => self.pump(node),
            Event::Commit { node, .. } => {
                self.commit_done(node);
                self.pump(node);
            }
            Event::Alarm { node, at, .. } => self.alarm(node, at),
            Event::Deliver { to, .. } if self.relay_stands_still(to).is_some() => {
                let until = self.relay_stands_still(to).unwrap_or(self.now);
                self.schedule(until, event);
            }
            Event::Deliver { to, parcel } => self.deliver(to, parcel.load),
            Event::Resend { session, parcel } => self.resend(session, parcel),
            Event::Flight { of, dial, flight, wait_ms } => self.flight(of, dial, flight, wait_ms),
            Event::Dialed { of, dial } => self.dialed(of, dial),
            Event::Redial { of, dial } => self.redial(of, dial),
            Event::EndDown { session } => self.end_down(session),
            Event::Idle { session } => self.idle(session),
            Event::FaultBegins { fault } if !self.healed => self.fault_begins(fault),
            Event::FaultEnds { fault } if !self.healed => self.fault_ends(fault),
            Event::CutEnds { from, to } => self.cut_ends(from, to),
            Event::ClockSet { node, settings } => self.clock_right(node, settings),
            Event::Restart { node } => self.start(node),
            Event::Ask { client } => self.ask(client),
            Event::Decided { node, life, issuer, id, decision } if self.lives(node, life) => {
                self.input(node, Input::Decided { issuer, id, decision });
            }
            Event::Acknowledge { node, id } => self.acknowledge(node, id),
            Event::Resolve { node, id } => self.resolve(node, &id),
            Event::FaultBegins { .. } | Event::FaultEnds { .. } | Event::Decided { .. } => {}
        }
    }

    /// Lays out the faults and the workload of a run.
    pub(crate) fn plan(&mut self) {
        let from = self.now;
        self.begun = from;
        for node in &mut self.nodes {
            (node.sent_bytes, node.sent_objects) = (0, 0);
        }
        for (fault, begins) in (0..).zip(self.timeline.iter().map(|fault| fault.at_ms)) {
            self.queue.insert((from + begins, self.next_seq), Event::FaultBegins { fault });
            self.next_seq += 1;
        }
        while let Some(call) = self.workload.next_call(&self.options, &self.by_name) {
            if !call.drafts.is_empty() {
                let client = self.add_client(call.issuer, call.number, call.drafts);
                self.schedule(from + call.at_ms, Event::Ask { client });
            }
        }
    }

    /// Everything is well from now on: links, nodes, disks. A node that stands still does so to the
    /// end of its pause.
    pub fn heal(&mut self) {
        self.healed = true;
        self.net.heal();
        for node in &mut self.nodes {
            node.disk.heal();
            node.armed = None;
        }
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        let paused = self.nodes.iter().filter_map(|node| node.paused(self.now)).max();
        self.checker.healed(paused.unwrap_or(self.now));
        self.note(None, || "everything heals".to_owned());
    }

    /// Keeps what happens from now on, to be read.
    pub(crate) fn keep_log(&mut self) {
        self.log = Some(Vec::new());
    }

    /// What happened since it was kept.
    pub(crate) fn take_log(&mut self) -> Vec<LogLine> {
        self.log.take().unwrap_or_default()
    }

    /// Notes what happened, if anybody wants to read it.
    fn note(&mut self, node: Option<usize>, what: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(LogLine { at_ms: self.now - self.begun, node, what: what() });
        }
    }

    /// Whether nothing is pending anywhere and every client has its answer.
    #[must_use]
    pub fn quiet(&self) -> bool {
        self.clients.iter().all(Client::answered)
            && self.nodes.iter().all(|node| {
                node.live.as_ref().is_some_and(|live| {
                    live.custody.recovered()
                        && live.custody.pending() == 0
                        && live.inbox.is_empty()
                        && live.flights.is_empty()
                })
            })
    }

    /// Whether some client has no answer yet, or some node has work: slow disks and small limits
    /// make long queues.
    pub(crate) fn is_busy(&self) -> bool {
        self.clients.iter().any(|client| !client.answered())
            || self.nodes.iter().filter_map(|node| node.live.as_ref()).any(|live| {
                live.custody.pending() > 0
                    || !(live.inbox.is_empty() && live.calls.is_empty() && live.flights.is_empty())
            })
    }

    /// Holds the end of the run against the rules. `forgotten`: whether all that may be forgotten
    /// had the time for it.
    pub fn finish(&mut self, forgotten: bool) {
        // Pruning may be on its way to the disk just now.
        for _ in 0..SETTLE_MS_MAX {
            let flying =
                |node: &Node| node.live.as_ref().is_some_and(|live| !live.flights.is_empty());
            if !self.nodes.iter().any(flying) {
                break;
            }
            self.run_to(self.now + 1);
        }
        let looks: Vec<LastLook<'_>> = self
            .nodes
            .iter()
            .filter_map(|node| {
                let custody = &node.live.as_ref()?.custody;
                let (pending, staged) = (custody.pending(), custody.staged());
                Some(LastLook { pending, staged, store: &node.store, forgotten })
            })
            .collect();
        self.checker.finish(self.now, &looks);
    }
}

/// What the checkers may take for granted under `options` and the faults of `timeline`.
pub(crate) fn bounds(options: &Options, timeline: &[Fault]) -> Bounds {
    let stalled = |permille: u32, ms: u64| if permille > 0 { ms } else { 0 };
    let slowest = options
        .disks
        .iter()
        .map(|disk| disk.commit_ms_max + stalled(disk.stall_permille, disk.stall_ms))
        .chain([options.commit_ms_max + stalled(options.stall_permille, options.stall_ms)])
        .max();
    let slower = timeline.iter().filter_map(|fault| match fault.what {
        FaultKind::SlowDisk { by_ms, .. } => Some(by_ms),
        _ => None,
    });
    let commits = 4 * (slowest.unwrap_or(0) + slower.max().unwrap_or(0));
    let profile = options.profile();
    let spans =
        u64::from(profile.max_retries()) >= options.backoff.retries_needed(profile.deadline_ms());
    let kills = |fault: &Fault| {
        matches!(
            fault.what,
            FaultKind::Crash { .. }
                | FaultKind::CrashAt { .. }
                | FaultKind::FailSync { .. }
                | FaultKind::DiskFull { .. }
                | FaultKind::BitRot { .. }
        )
    };
    let delay_ms = options
        .links
        .iter()
        .map(|way| way.link.delay.max().ms())
        .chain([options.link.delay.max().ms()])
        .max();
    let hops = if options.relay.is_some() { 2 } else { 1 };
    let narrow = options.link.bytes_per_second > 0
        || options.links.iter().any(|way| way.link.bytes_per_second > 0);
    Bounds {
        skew_ms: options.skew_ms,
        weights: Options::weights(),
        late_ms_max: 2_000 + 4 * commits + options.skew_ms * 2,
        settle_ms_max: 3 * options.backoff.cap_ms
            + hops * 10 * delay_ms.unwrap_or(0)
            + 4 * commits
            + options.idle_ms
            + options.handshake_ms
            + options.reconnect.cap_ms
            + 10_000,
        prompt: spans
            && options.rate_per_second > 100_000
            && options.window > 1
            && options.window_bytes > 100_000
            && options.commit_fail_permille == 0
            && !narrow
            && !timeline.iter().any(kills),
        retention_ms: options.retention_ms,
        outcomes_max: options.outcomes_max,
        outcomes_slack: options.issue_batch_max.max(64),
        pending_max: options.pending_max,
        pending_per_peer_max: options.pending_per_peer_max,
        window: options.window,
        window_bytes: options.window_bytes,
    }
}
