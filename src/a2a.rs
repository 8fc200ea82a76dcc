//! Agent2Agent (A2A) 1.0: a node as the front of an agent.
//!
//! The node answers for the agent behind it: it takes messages, keeps their tasks on the disk, has
//! the agent work on them, and tells streams and webhooks what comes of it. What it says of a task
//! is durable before it leaves, so a restart loses no task, no event and no notification.
//!
//! ```text
//!  rpc, quic, moqt ─► dispatch ─► operations ─► tasks ─► log: one commit, one sync ─► streams, webhooks, answers
//!    rest ──────────────────────▲           ▲                                  (read what is durable)
//!  (bytes)                                  └── backend (echo, proxy), obligation: one turn at a time
//! ```

mod backend;
mod card;
mod dispatch;
pub(crate) mod fault;
pub(crate) mod http;
mod jobs;
mod keys;
pub(crate) mod log;
pub(crate) mod moqt;
mod obligation;
mod operations;
pub(crate) mod parameters;
mod push;
mod quic;
pub(crate) mod reach;
mod record;
mod rest;
mod rpc;
mod stream;
mod tasks;
mod types;

use crate::binding::http::HttpPeers;
use crate::calls::Calls;
use crate::clock::Clock;
use crate::config::{A2aAgent, AgentOver, NodeConfig};
use crate::driver::DriverError;
use crate::gate::{Gate, Refusal, Wanted};
use crate::peers::Dial;
use crate::store::SideStore;
use backend::{Agent, Backend, Echo, Proxy, Turn, agent_says, fail};
use fault::Fault;
use jobs::{Jobs, Kind};
use keys::Keys;
use log::{Failing, Log};
use obligation::Obligations;
use proto::store::ReadError;
use push::{Hooks, Push};
use record::{Record, Work, peer_of};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tasks::{Live, Tasks};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinError, JoinSet};
use types::{Message, Role, TaskState};

pub(crate) use tasks::random_id;
pub(crate) use types::whole_numbers;

/// Obligations whose tasks wait for the core at a time; the acks of further ones come with copies.
const SETTLING_MAX: usize = 16_384;
/// Agents told at a time to cancel what they may not do.
const CANCELING_MAX: usize = 64;
/// How often tasks that are kept long enough are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// How the names of calls begin that the gate knows: `a2a:SKILL`.
const CALLS: &str = "a2a:";
/// Metadata of a message that names the skill it is for.
const SKILL: &str = "abhyasa.skill";
/// Metadata of the message that says why a task may not go on.
const WITHHELD: &str = "abhyasa.withheld";

/// What a message wants of the agent. A skill that it names counts only where it is `believed`; else, and
/// where it names none, it may want any.
fn wanted(message: &Message, believed: bool) -> Wanted {
    let skill = message.metadata.as_ref().and_then(|metadata| metadata.get(SKILL)?.as_str());
    match skill.filter(|_| believed) {
        Some(skill) => Wanted::Named(format!("{CALLS}{skill}")),
        None => Wanted::Any(CALLS.to_owned()),
    }
}

/// What a task wants of the agent, by its last message.
fn wanted_of(record: &Record, believed: bool) -> Option<Wanted> {
    if record.carried.is_some() {
        return None; // that goes to the core
    }
    let asked = record.task.history.iter().rev().find(|message| message.role == Role::User);
    asked.map(|message| wanted(message, believed))
}

/// Why there is no A2A server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum A2aError {
    /// The tasks cannot be read.
    #[error("A2A tasks: {0}")]
    Read(#[from] ReadError),
    /// The HTTP client.
    #[error("A2A: HTTP client: {0}")]
    Client(#[from] reqwest::Error),
    /// A thread.
    #[error("A2A: cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The store keeps nothing but the core's records.
    #[error("A2A: this store has no place for tasks; fix: take agent out of [a2a]")]
    NoPlace,
}

fn ended(worked: Result<(), JoinError>) {
    if let Err(error) = worked {
        tracing::error!(%error, "the work on an A2A task goes on after a restart only");
    }
}

/// What the rest of the node gives its A2A server.
#[derive(Debug)]
pub(crate) struct Around {
    pub(crate) config: Arc<NodeConfig>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Who may give obligations.
    pub(crate) peers: Arc<HttpPeers>,
    /// Calls of other nodes.
    pub(crate) calls: Arc<Calls>,
    /// Connections with them that are no calls.
    pub(crate) dial: Dial,
    pub(crate) gate: Arc<Gate>,
    /// Our consent to agents behind other nodes.
    pub(crate) consents: Option<Arc<crate::acap::Caller>>,
    /// Where other nodes call us.
    pub(crate) quic_address: SocketAddr,
}

/// The A2A server of a node.
pub(crate) struct A2a {
    config: Arc<NodeConfig>,
    clock: Arc<dyn Clock>,
    quic_address: SocketAddr,
    tasks: Tasks,
    push: Push,
    obligations: Obligations,
    backend: Arc<dyn Backend>,
    gate: Arc<Gate>,
    jobs: Arc<Jobs>,
    keys: Keys,
    streams: Arc<Semaphore>,
    /// Room for calls of peers that are not answered yet, in bytes.
    asked: Arc<Semaphore>,
    canceling: Arc<Semaphore>,
    cards: card::Cards,
    failing: Failing,
}

impl fmt::Debug for A2a {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tasks, going_on) = self.tasks.count();
        f.debug_struct("A2a").field("tasks", &tasks).field("going_on", &going_on).finish()
    }
}

impl A2a {
    /// The server of `agent` over the tasks in `store`. What an earlier life of the node left undone
    /// goes on once [`Self::run`] does. `failed` is told when it cannot go on.
    pub(crate) fn open(
        around: Around,
        agent: &A2aAgent,
        store: SideStore,
        failed: oneshot::Sender<DriverError>,
    ) -> Result<Self, A2aError> {
        let Around { config, clock, peers, calls, dial, gate, consents, quic_address } = around;
        let limits = &config.a2a;
        let hooks = Hooks::default();
        let failing = Failing::new(failed);
        let log = Log::start(store, failing.clone())?;
        hooks.load(log.disk())?;
        let jobs = Arc::new(Jobs::default());
        let (hooked, queue) = (hooks.clone(), jobs.clone());
        let tasks = Tasks::open(log, hooked, queue, clock.clone(), limits.clone())?;
        let silent_max = Duration::from_secs(limits.agent_silent_seconds_max);
        let callee = match agent {
            A2aAgent::Echo => None,
            A2aAgent::Peer(peer) => Some(peer.clone()),
            A2aAgent::Http(url) => {
                let table = config.consent.iter().find(|table| table.url.as_ref() == Some(url));
                table.map(|table| table.callee.clone())
            }
        };
        let agent = match agent {
            A2aAgent::Echo => None,
            A2aAgent::Http(url) => Some(Agent::http(url.clone(), silent_max, limits.task_len_max)?),
            A2aAgent::Peer(peer) => {
                let found = config.peers.iter().find(|known| known.id == *peer);
                let address = found.and_then(|known| known.address.as_ref());
                let address = address.map(|at| at.as_str().to_owned()).unwrap_or_default();
                let (peer, len_max) = (peer.clone(), limits.task_len_max);
                Some(match limits.agent_over {
                    AgentOver::Quic => Agent::quic(calls, peer, silent_max, len_max),
                    AgentOver::Moqt => Agent::moqt(dial, peer, address, silent_max, len_max),
                    AgentOver::Http3 => Agent::http3(dial, peer, address, silent_max, len_max),
                })
            }
        };
        let backend: Arc<dyn Backend> = match agent {
            None => Arc::new(Echo::new()),
            Some(agent) => {
                let governed =
                    consents.zip(callee).filter(|(caller, callee)| caller.covers(callee));
                Arc::new(Proxy::new(agent, silent_max, governed))
            }
        };
        Ok(Self {
            push: Push::new(tasks.clone(), hooks, clock.clone(), limits.clone())?,
            obligations: Obligations::new(tasks.clone(), peers, clock.clone()),
            streams: Arc::new(Semaphore::new(limits.streams_max.min(Semaphore::MAX_PERMITS))),
            asked: Arc::new(Semaphore::new(quic::ASKED_LEN_MAX)),
            canceling: Arc::new(Semaphore::new(CANCELING_MAX)),
            cards: card::Cards::default(),
            keys: Keys::new(),
            quic_address,
            config,
            clock,
            tasks,
            backend,
            gate,
            jobs,
            failing,
        })
    }

    /// Bytes a request may have.
    pub(crate) fn request_len_max(&self) -> usize {
        self.config.a2a.request_len_max
    }

    /// Works for ever.
    pub(crate) async fn run(self: Arc<Self>) {
        // They go when this task does.
        let (mut works, mut settling, mut others) =
            (JoinSet::new(), JoinSet::new(), JoinSet::new());
        others.spawn(self.push.clone().run());
        others.spawn(self.clone().sweep());
        others.spawn(self.clone().watch_gate());
        loop {
            let running_max = self.config.a2a.running_max;
            for (kind, works, max) in [
                (Kind::Agent, &mut works, running_max),
                (Kind::Custody, &mut settling, SETTLING_MAX),
            ] {
                while works.len() < max
                    && let Some(job) = self.jobs.pop(kind)
                {
                    let Some(live) = self.tasks.live(&job.id) else { continue };
                    let work = self.clone().work(live);
                    works.spawn(async move {
                        work.await;
                        drop(job);
                    });
                }
            }
            tokio::select! {
                biased;
                Some(_) = others.join_next() => {
                    let what = "its webhooks, its gate or the forgetting of old tasks ended";
                    return self.failing.tell(DriverError::A2a(what));
                }
                Some(worked) = works.join_next() => ended(worked),
                Some(worked) = settling.join_next() => ended(worked),
                () = self.jobs.rung() => {}
            }
        }
    }

    /// Ends the thread that writes. [`Self::run`] is over.
    pub(crate) async fn stop(&self) {
        self.tasks.log().stop().await;
    }

    /// Does what is to be done for one task.
    async fn work(self: Arc<Self>, live: Arc<Live>) {
        let Ok(record) = self.tasks.record(&live) else { return }; // the disk failed, and the node ends
        let turn = record.turn;
        let (caller, wanted) =
            (peer_of(&record.scope), wanted_of(&record, self.config.a2a.skills_believed));
        if let (Work::Turn, Some(wanted)) = (&record.work, &wanted)
            && let Err(refusal) = self.gate.still(caller.as_ref(), wanted).await
        {
            return self.withhold(&live, &refusal).await;
        }
        let done = async {
            match record.work {
                Work::None => Ok(()),
                Work::Obligation => self.obligations.settle(&live).await,
                Work::Turn => match Turn::of(&self.tasks, &live, record) {
                    Some(turn) => self.backend.run(turn).await,
                    None => Ok(()),
                },
            }
        };
        let result = tokio::select! {
            biased;
            () = live.stopped() => return, // canceled: who did that ends the task
            refusal = async {
                match &wanted {
                    Some(wanted) => self.gate.withdrawn(caller.as_ref(), wanted).await,
                    None => std::future::pending().await,
                }
            } => return self.withhold(&live, &refusal).await,
            result = done => result,
        };
        let ended = self
            .tasks
            .change(&live, |edit| {
                if edit.record.work == Work::None || edit.record.turn != turn {
                    return Err(Fault::no_task(&live.id)); // as it should be
                }
                match result {
                    Err(fault) => fail(edit, fault.message()),
                    Ok(()) => fail(edit, "the agent ended without a result"),
                }
                Ok(())
            })
            .await;
        if ended.is_ok() {
            tracing::debug!(task = live.id, "a task failed");
        }
        // It may have begun to wait for its client just before what it needs was withdrawn.
        if let Some(wanted) = wanted
            && let Err(refusal) = self.gate.may_go_on(caller.as_ref(), &wanted).await
        {
            self.withhold(&live, &refusal).await;
        }
    }

    /// Ends a task that may not go on, and tells the agent to stop.
    async fn withhold(&self, live: &Live, refusal: &Refusal) {
        let withheld = self.tasks.change(live, |edit| {
            let before = edit.record.clone();
            let mut message = agent_says(&edit.record, &refusal.to_string());
            message.metadata =
                Some([(WITHHELD.to_owned(), refusal.to_json())].into_iter().collect());
            edit.status(TaskState::Canceled, Some(message));
            Ok(before)
        });
        // It ended by itself, or the disk failed, and the node ends.
        let Ok(record) = withheld.await else { return };
        live.stop();
        tracing::info!(task = live.id, %refusal, "a task was ended");
        // The agent may be away; other tasks do not wait for it.
        let Ok(place) = self.canceling.clone().try_acquire_owned() else {
            return tracing::warn!(task = live.id, "the agent is not told: {CANCELING_MAX} are");
        };
        let backend = self.backend.clone();
        tokio::spawn(async move {
            if let Err(fault) = backend.cancel(&record).await {
                let (task, why) = (&record.task.id, fault.message());
                tracing::warn!(task, why, "the agent did not cancel what it may not do");
            }
            drop(place);
        });
    }

    /// Ends tasks that wait for their client and may not go on, for ever. Those that are worked on end
    /// with their work.
    async fn watch_gate(self: Arc<Self>) {
        if !self.gate.governs(&Wanted::Any(CALLS.to_owned())) {
            return std::future::pending().await;
        }
        let mut changes = self.gate.changes();
        loop {
            changes.next().await;
            for live in self.tasks.waiting() {
                let Ok(record) = self.tasks.record(&live) else { continue }; // it ended
                let Some(wanted) = wanted_of(&record, self.config.a2a.skills_believed) else {
                    continue;
                };
                let caller = peer_of(&record.scope);
                if let Err(refusal) = self.gate.may_go_on(caller.as_ref(), &wanted).await {
                    self.withhold(&live, &refusal).await;
                }
            }
        }
    }

    /// Forgets old tasks for ever.
    async fn sweep(self: Arc<Self>) {
        loop {
            match self.tasks.sweep().await {
                Ok(true) => {}
                Ok(false) => tokio::time::sleep(SWEEP_EVERY).await,
                Err(_) => return, // the disk failed, and the node ends
            }
        }
    }
}
