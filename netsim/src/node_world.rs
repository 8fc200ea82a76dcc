//! The node world: real nodes, real QUIC and TLS on virtual time.
//!
//! Each node is the one that ships, started by its [`Builder`]. Simulated are what it is given there:
//! the UDP socket, the clock, the store and the certificates; tokio's paused clock makes the time
//! pass. All runs on one thread, and nothing that nodes decide by is random but by the seed, so the
//! same options give the same packets at the same times (DT-1). What differs from run to run is what
//! is inside of them: keys are drawn anew.
//!
//! Time has the grain of tokio's timers, a millisecond. Webhooks, and so external handlers, are not
//! simulated: kinds are applied by the nodes themselves.

mod clients;
mod disk;
mod faults;
mod hub;
mod report;
mod setup;
mod swarm;
mod wire;

pub use report::{NodeReport, Quantiles};
pub use setup::SetupError;
pub use swarm::swarm;
pub use wire::Traffic;

use crate::check::{Bounds, Checker, Class, LastLook};
use crate::node::EPOCH_MS;
use crate::options::Options;
use crate::scenario::Fault;
use crate::workload::Workload;
use crate::world::timeline;
use abhyasa::DriverError;
use abhyasa::config::NodeConfig;
use abhyasa::node::{Builder, Node};
use abhyasa::tls::TlsIdentity;
use clients::{Client, Outside};
use disk::SimDisk;
use faults::Event;
use hub::{Hub, SimClock};
use link::Rng;
use proto::id::AgentId;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::task::AbortHandle;
use wire::Wire;

/// Retention up to which a run waits to see that what may be forgotten is.
const RETENTION_WAITED_FOR_MS: u64 = 3_600_000;
/// How long the last commits may take.
const SETTLE_MS_MAX: u64 = 60_000;

/// One place for a node, and what outlives its crashes.
struct Place {
    config: NodeConfig,
    identity: TlsIdentity,
    clock: Arc<SimClock>,
    disk: Arc<SimDisk>,
    life: u64,
    live: Option<Live>,
}

/// A node that is up.
struct Live {
    node: Node,
    listener: AbortHandle,
}

/// The world.
struct World {
    options: Options,
    hub: Arc<Hub>,
    wire: Arc<Wire>,
    outside: Arc<Outside>,
    places: Vec<Place>,
    timeline: Vec<Fault>,
    queue: BTreeMap<(u64, u64), Event>,
    next_seq: u64,
    rng: Rng,
    healed: bool,
    kills: u64,
    races: u64,
    events: u64,
}

/// Runs a scenario with real nodes, to the end.
///
/// # Errors
/// [`SetupError`] if the nodes cannot be set up.
pub fn run(options: &Options) -> Result<NodeReport, SetupError> {
    let rots = |fault: &Fault| matches!(fault.what, crate::scenario::FaultKind::BitRot { .. });
    if options.timeline.iter().flatten().any(rots) {
        return Err(SetupError::BitRot);
    }
    hub::watch_panics();
    let mut options = options.clone();
    options.external.clear();
    options.bit_rots = 0;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(SetupError::Runtime)?;
    runtime.block_on(async { Ok(World::new(options)?.run().await) })
}

impl World {
    fn new(options: Options) -> Result<Self, SetupError> {
        let names = (0..options.nodes).map(setup::name).collect::<Result<Vec<AgentId>, _>>()?;
        let timeline = options.timeline.clone().unwrap_or_else(|| timeline::draw(&options));
        let checker = Checker::new(bounds(&options, &timeline), names);
        let hub = Arc::new(Hub::new(checker, options.nodes));
        let mut rng = Rng::new(options.seed, 3);
        let mut places = Vec::new();
        for (node, identity) in setup::identities(&options)?.into_iter().enumerate() {
            let ahead_ms = timeline::clock(&options, &mut rng);
            let clock = Arc::new(SimClock::new(hub.clone(), ahead_ms));
            let disk = SimDisk::new(&options, node, hub.clone(), clock.clone());
            let config = setup::config(&options, node)?;
            places.push(Place { config, identity, clock, disk, life: 0, live: None });
        }
        Ok(Self {
            wire: Wire::new(&options, hub.clone()),
            outside: Outside::new(options.clone(), hub.clone()),
            hub,
            places,
            timeline,
            queue: BTreeMap::new(),
            next_seq: 0,
            rng,
            healed: false,
            kills: 0,
            races: 0,
            events: 0,
            options,
        })
    }

    async fn run(mut self) -> NodeReport {
        let carrier = tokio::spawn(self.wire.clone().run());
        for node in 0..self.places.len() {
            self.start(node).await;
        }
        self.plan();
        let healed_at = self.options.faults_ms + self.options.heal_after_ms;
        self.run_to(healed_at).await;
        self.heal().await;
        // Long enough for every deadline, client and person; then for all that may be forgotten.
        let quiet_at = healed_at + self.options.deadline_s * 1_000 + 120_000;
        self.run_to(quiet_at).await;
        self.finish(false).await;
        if self.options.retention_ms <= RETENTION_WAITED_FOR_MS {
            self.run_to(quiet_at + self.options.retention_ms + 300_000).await;
            self.finish(true).await;
        }
        carrier.abort();
        self.report()
    }

    /// Lays out the faults and the workload.
    fn plan(&mut self) {
        let begins: Vec<u64> = self.timeline.iter().map(|fault| fault.at_ms).collect();
        for (fault, at) in begins.into_iter().enumerate() {
            self.schedule(at, Event::Begins { fault });
        }
        let mut workload = Workload::new(&self.options);
        let names = (0..self.options.nodes).filter_map(|node| setup::name(node).ok());
        let by_name: BTreeMap<AgentId, usize> = names.zip(0..).collect();
        while let Some(call) = workload.next_call(&self.options, &by_name) {
            if !call.drafts.is_empty() {
                let (node, at) = (call.issuer, Duration::from_millis(call.at_ms));
                let drafts = clients::announce(&self.hub, call.drafts);
                tokio::spawn(self.outside.clone().issue(Client { node, at, drafts }));
            }
        }
    }

    /// Since the run began, in milliseconds.
    fn now(&self) -> u64 {
        self.hub.micros() / 1_000
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.queue.insert((at, self.next_seq), event);
        self.next_seq += 1;
    }

    /// Runs until so many milliseconds after the beginning, or until something broke.
    async fn run_to(&mut self, until: u64) {
        while !self.hub.is_broken() {
            let now = self.now();
            let next = self.queue.first_key_value().map_or(until, |(key, _)| key.0.min(until));
            if next <= now {
                let due = self.queue.first_entry().filter(|entry| entry.key().0 <= now);
                let Some(event) = due.map(|entry| entry.remove()) else { return };
                self.events += 1;
                self.handle(event).await;
                continue;
            }
            let alarm = self.hub.instant(next * 1_000);
            tokio::select! {
                biased;
                (node, result) = ended(&mut self.places) => self.ended(node, result),
                () = self.hub.broken.notified() => {}
                () = tokio::time::sleep_until(alarm) => {}
            }
            if let Some(panic) = hub::take_panic() {
                self.hub.breach("CR-1", Class::Crash, 0, format!("a task panicked: {panic}"));
            }
        }
    }

    /// Starts a node that is down.
    async fn start(&mut self, n: usize) {
        let Some(place) = self.places.get_mut(n).filter(|place| place.live.is_none()) else {
            return;
        };
        place.life += 1;
        let lives = (n as u64) << 32 | place.life;
        let started = Builder::new(place.config.clone())
            .storage(place.disk.open())
            .clock(place.clock.clone())
            .network(self.wire.open(n), Arc::new(quinn::TokioRuntime))
            .identity(place.identity.clone())
            .seed(proto::backoff::mix(self.options.seed ^ proto::backoff::mix(lives)))
            .driver_thread(false)
            .start()
            .await;
        match started {
            Ok(node) => {
                self.hub.check(|checker| checker.up(self.hub.now(), n));
                let handle = node.handle();
                let listener = tokio::spawn(self.outside.clone().listen(n, handle.events()));
                self.hub.set_handle(n, Some(handle));
                place.live = Some(Live { node, listener: listener.abort_handle() });
            }
            Err(error) => self.hub.breach("recovery", Class::Crash, n, error.to_string()),
        }
    }

    /// Ends a node's process: what is not durable is gone, and its peers hear nothing.
    fn kill(&mut self, n: usize) -> bool {
        let Some(place) = self.places.get_mut(n) else { return false };
        let Some(Live { node, listener }) = place.live.take() else { return false };
        self.wire.close(n);
        self.hub.set_handle(n, None);
        self.races += node.handle().metrics().races.get();
        listener.abort();
        drop(node);
        place.disk.crash();
        self.kills += 1;
        true
    }

    /// A node ended by itself: its disk failed. It is started again, as by a supervisor.
    fn ended(&mut self, n: usize, result: Result<(), DriverError>) {
        if let Err(DriverError::Commit(_)) = result {
            self.kill(n);
            let down_ms = self.rng.range(200, 200 + self.options.restart_ms_max);
            return self.schedule(self.now() + down_ms, Event::Restart { node: n });
        }
        self.hub.breach("CR-1", Class::Crash, n, format!("the driver ended: {result:?}"));
    }

    /// Everything is well from now on: links, nodes, disks.
    async fn heal(&mut self) {
        self.healed = true;
        self.wire.heal();
        self.outside.heal();
        for place in &self.places {
            place.disk.heal();
        }
        for node in 0..self.places.len() {
            self.start(node).await;
        }
        self.hub.check(|checker| checker.healed(self.hub.now()));
    }

    /// Holds the end of the run against the rules. `forgotten`: whether all that may be forgotten
    /// had the time for it.
    async fn finish(&mut self, forgotten: bool) {
        for _ in 0..SETTLE_MS_MAX {
            if !self.places.iter().any(|place| place.disk.is_busy()) {
                break;
            }
            self.run_to(self.now() + 1).await;
        }
        if self.hub.is_broken() {
            return;
        }
        for (node, clients) in self.outside.waiting() {
            let detail = format!("{clients} clients still wait for an answer");
            self.hub.breach("converges", Class::Liveness, node, detail);
        }
        let stores: Vec<_> = self.places.iter().map(|place| place.disk.store()).collect();
        let looks: Vec<LastLook<'_>> = stores
            .iter()
            .enumerate()
            .filter_map(|(n, store)| {
                let pending = self.hub.handle(n)?.pending();
                Some(LastLook { pending, staged: 0, store, forgotten })
            })
            .collect();
        self.hub.check(|checker| checker.finish(self.hub.now(), &looks));
    }
}

/// Waits until some node ends by itself.
async fn ended(places: &mut [Place]) -> (usize, Result<(), DriverError>) {
    poll_fn(|cx| {
        for (n, place) in places.iter_mut().enumerate() {
            let Some(live) = &mut place.live else { continue };
            if let Poll::Ready(result) = pin!(live.node.failed()).poll(cx) {
                return Poll::Ready((n, result));
            }
        }
        Poll::Pending
    })
    .await
}

/// What the checkers may take for granted of real nodes under `options`.
fn bounds(options: &Options, timeline: &[Fault]) -> Bounds {
    let core = crate::world::bounds(options, timeline);
    let (late_ms, crashes) = faults::delays(timeline);
    let tuning = &options.tuning;
    let connects_ms =
        tuning.idle_timeout_ms + 2 * tuning.handshake_timeout_ms + 2 * tuning.reconnect_cap_ms;
    Bounds {
        late_ms_max: core.late_ms_max + tuning.commit_linger_us / 1_000 + late_ms,
        settle_ms_max: core.settle_ms_max + connects_ms + late_ms,
        prompt: core.prompt && !crashes,
        ..core
    }
}

const _: () = assert!(EPOCH_MS.is_multiple_of(1_000), "a run begins on a full second");
