//! The world: virtual time, an event queue, and everything that happens in it.

mod drive;
mod link;
mod metrics;
mod outside;
mod timeline;

use crate::check::{Bounds, Checker, Class, LastLook};
use crate::disk::SimStore;
use crate::net::SimNet;
use crate::node::{EPOCH_MS, Live, Node};
use crate::options::Options;
use crate::scenario::Fault;
use crate::workload::Workload;
use ::link::Rng;
use proto::custody::Custody;
use proto::event::Event as CoreEvent;
use proto::frame::Frame;
use proto::id::{AgentId, ObligationId};
use proto::polarity::Registry;
use proto::receiver::Decision;
use proto::step::{SessionId, Ticket};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use link::End;
pub(crate) use link::{DRAIN_MS_MAX, FRAME_OVERHEAD, RESEND_MS_MAX};
pub(crate) use outside::{CLIENT_PATIENCE_MS, DOWN_PATIENCE_MS, Plan, plan};
use outside::{Client, Handler};
pub(crate) use timeline::{clock, draw};

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
        frame: Box<Frame>,
    },
    /// A stream sends a frame again that was lost; `after` is what it waits the next time.
    Resend {
        session: SessionId,
        frame: Box<Frame>,
        after: u64,
    },
    Redial {
        a: usize,
        b: usize,
    },
    Dialed {
        a: usize,
        b: usize,
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
    CutEnds {
        from: usize,
        to: usize,
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
    next_session: u64,
    dialing: BTreeSet<(usize, usize)>,
    pub(crate) checker: Checker,
    clients: Vec<Client>,
    tickets: BTreeMap<Ticket, usize>,
    next_ticket: u64,
    handler: Handler,
    pub(crate) workload: Workload,
    faults: Rng,
    timeline: Vec<Fault>,
    disk: Rng,
    chance: Rng,
    healed: bool,
    /// Whether a story test runs: events are kept, and clients may be refused.
    pub(crate) story: bool,
    events: VecDeque<(u64, usize, CoreEvent)>,
    /// Things handled, frames sent, restarts made.
    pub(crate) handled: u64,
    pub(crate) frames: u64,
    /// Bytes handed to the network, repeats included.
    pub(crate) bytes: u64,
    pub(crate) restarts: u64,
}

impl World {
    /// A world by `options`, its nodes about to start.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let nodes: Vec<Node> = (0..options.nodes)
            .filter_map(|n| options.settings(n))
            .map(|settings| Node {
                id: settings.me.clone(),
                settings,
                store: SimStore::default(),
                offset_ms: 0,
                life: 0,
                live: None,
            })
            .collect();
        let names: Vec<AgentId> = nodes.iter().map(|node| node.id.clone()).collect();
        let seed = options.seed;
        let mut world = Self {
            now: EPOCH_MS,
            next_seq: 0,
            queue: BTreeMap::new(),
            by_name: names.iter().cloned().zip(0..).collect(),
            net: SimNet::new(&options),
            ends: BTreeMap::new(),
            next_session: 1,
            dialing: BTreeSet::new(),
            checker: Checker::new(bounds(&options), names),
            clients: Vec::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            handler: Handler::new(options.handler, seed),
            workload: Workload::new(&options),
            faults: Rng::new(seed, 3),
            timeline: Vec::new(),
            disk: Rng::new(seed, 4),
            chance: Rng::new(seed, 5),
            healed: false,
            story: false,
            events: VecDeque::new(),
            handled: 0,
            frames: 0,
            bytes: 0,
            restarts: 0,
            nodes,
            options,
        };
        for node in 0..world.nodes.len() {
            let ahead_ms = timeline::clock(&world.options, &mut world.faults);
            world.set_clock(node, ahead_ms);
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
            Event::Pump { node, life } if self.lives(node, life) => self.pump(node),
            Event::Commit { node, life } if self.lives(node, life) => {
                self.commit_done(node);
                self.pump(node);
            }
            Event::Alarm { node, life, at } if self.lives(node, life) => self.alarm(node, at),
            Event::Deliver { to, frame } => self.deliver(to, *frame),
            Event::Resend { session, frame, after } => self.resend(session, frame, after),
            Event::Redial { a, b } => self.dial_if_needed(a, b),
            Event::Dialed { a, b } => self.dialed(a, b),
            Event::EndDown { session } => self.end_down(session),
            Event::Idle { session } => self.idle(session),
            Event::FaultBegins { fault } if !self.healed => self.fault_begins(fault),
            Event::CutEnds { from, to } => self.cut_ends(from, to),
            Event::Restart { node } => self.start(node),
            Event::Ask { client } => self.ask(client),
            Event::Decided { node, life, issuer, id, decision } if self.lives(node, life) => {
                self.input(node, proto::custody::Input::Decided { issuer, id, decision });
            }
            Event::Acknowledge { node, id } => self.acknowledge(node, id),
            Event::Resolve { node, id } => self.resolve(node, &id),
            _ => {}
        }
    }

    fn lives(&self, node: usize, life: u64) -> bool {
        self.nodes.get(node).is_some_and(|node| node.life == life && node.live.is_some())
    }

    fn is_up(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|node| node.live.is_some())
    }

    /// Starts a node that is down: opens its store and begins recovery.
    pub(crate) fn start(&mut self, n: usize) {
        let Some(node) = self.nodes.get_mut(n).filter(|node| node.live.is_none()) else { return };
        let custody = match Custody::open(node.settings.clone(), Registry::default(), &node.store) {
            Ok(custody) => custody,
            Err(error) => {
                self.checker.breach("recovery", Class::Crash, self.now, n, error.to_string());
                return;
            }
        };
        node.life += 1;
        node.live = Some(Live {
            custody,
            inbox: VecDeque::new(),
            calls: VecDeque::new(),
            flights: VecDeque::new(),
            pump_queued: false,
            alarm_at: None,
            disk_free_at: 0,
        });
        self.checker.up(self.now, n);
        self.pump_soon(n);
        for peer in 0..self.nodes.len() {
            self.dial_if_needed(n, peer);
        }
    }

    /// Ends a node's process: what is not durable is gone, the outputs with it. Of the commits in
    /// flight any first part may have reached the disk.
    pub(crate) fn kill(&mut self, n: usize, down_ms: Option<u64>) {
        let Some(live) = self.nodes.get_mut(n).and_then(|node| node.live.take()) else { return };
        let mut reached = true;
        for flight in live.flights {
            reached = reached && self.disk.chance(500);
            if !reached || !flight.step.needs_commit() {
                continue;
            }
            let sync = flight.step.needs_sync();
            self.durable(n, flight.clock, sync, flight.step);
        }
        if let Some(node) = self.nodes.get_mut(n) {
            let kept = self.disk.below(node.store.unsynced() as u64 + 1);
            node.store.crash(usize::try_from(kept).unwrap_or(0));
            self.checker.rolled_back(n, &node.store);
        }
        self.restarts += 1;
        self.ends_of_dead(n);
        if let Some(down_ms) = down_ms {
            self.schedule(self.now + down_ms, Event::Restart { node: n });
        }
    }

    fn set_clock(&mut self, n: usize, ahead_ms: i64) {
        let Some(node) = self.nodes.get_mut(n) else { return };
        node.offset_ms = ahead_ms;
        if let Some(live) = &mut node.live {
            live.alarm_at = None;
            self.pump_soon(n);
        }
    }

    /// Lays out the faults and the workload of a run.
    pub(crate) fn plan(&mut self) {
        let (from, span) = (self.now, self.options.faults_ms);
        self.timeline = match &self.options.timeline {
            Some(timeline) => timeline.clone(),
            None => timeline::draw(&self.options),
        };
        for (fault, begins) in (0..).zip(self.timeline.iter().map(|fault| fault.at_ms)) {
            self.queue.insert((from + begins, self.next_seq), Event::FaultBegins { fault });
            self.next_seq += 1;
        }
        while let Some((issuer, drafts)) = self.next_batch() {
            let at = from + self.faults.below(span);
            let client = self.add_client(issuer, drafts);
            self.schedule(at, Event::Ask { client });
        }
    }

    /// Everything is well from now on: links, nodes, disks.
    pub fn heal(&mut self) {
        self.healed = true;
        self.net.heal();
        self.options.stall_permille = 0;
        self.options.commit_fail_permille = 0;
        for node in 0..self.nodes.len() {
            self.start(node);
        }
        for a in 0..self.nodes.len() {
            for b in 0..a {
                self.dial_if_needed(a, b);
            }
        }
        self.checker.healed(self.now);
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
                Some(LastLook { custody, store: &node.store, forgotten })
            })
            .collect();
        self.checker.finish(self.now, &looks);
    }
}

/// What the checkers may take for granted under `options`.
fn bounds(options: &Options) -> Bounds {
    let commits = 4 * options.commit_ms_max.max(if options.stall_permille > 0 {
        options.stall_ms
    } else {
        0
    });
    let profile = options.profile();
    let spans =
        u64::from(profile.max_retries()) >= options.backoff.retries_needed(profile.deadline_ms());
    Bounds {
        skew_ms: options.skew_ms,
        weights: Options::weights(),
        late_ms_max: 2_000 + 4 * commits + options.skew_ms * 2,
        settle_ms_max: 3 * options.backoff.cap_ms
            + 10 * options.link.delay.max().ms()
            + 4 * commits
            + 10_000,
        prompt: spans
            && options.rate_per_second > 100_000
            && options.window > 1
            && options.window_bytes > 100_000
            && options.crashes == 0
            && options.commit_fail_permille == 0,
        retention_ms: options.retention_ms,
        outcomes_max: options.outcomes_max,
        outcomes_slack: options.issue_batch_max.max(64),
    }
}
