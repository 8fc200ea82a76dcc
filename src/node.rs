//! A node, assembled: store, core, driver, endpoint, peers, handlers.
//!
//! What is outside can be replaced: the UDP socket and runtime, the clock, the store and the seed
//! are given to [`Builder`]; production passes the real ones.

use crate::binding::http::{HttpPeer, HttpPeers};
use crate::binding::quic::Context;
use crate::clock::{Clock, SystemClock};
use crate::config::{ConfigError, HandlerConfig, NodeConfig};
use crate::driver::{Batching, Call, Driver, DriverError, Input, Shared};
use crate::endpoint::Acceptor;
use crate::handler::{HandlerError, Handlers};
use crate::peers::Dialer;
use crate::router::Router;
use crate::store::{FjallStore, Storage, StoreError, StoreOptions};
use crate::telemetry::Metrics;
use crate::tls::{self, TlsError, TlsIdentity};
use proto::ack::CustodyAck;
use proto::backoff::Backoff;
use proto::custodian::Draft;
use proto::custody::{Custody, IssueResult, OperatorResult};
use proto::event::Event;
use proto::id::{AgentId, ObligationId};
use proto::obligation::Obligation;
use proto::polarity::Registry;
use proto::record::{Outcome, Resolution};
use proto::settings::{PeerRules, Settings, WeightBounds};
use proto::store::{Read, ReadError, Table};
use proto::time::Time;
use proto::weight::{Weight, WeightError};
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinSet;

pub use crate::binding::http::OfferReply;

/// Cores from which on the driver gets a thread of its own.
pub const OWN_THREAD_CORES: usize = 4;

/// Worker threads a node's runtime does best with: one on a small machine, where a thread switch
/// costs more than a second worker brings.
#[must_use]
pub fn worker_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cores < OWN_THREAD_CORES { 1 } else { cores }
}

/// Why a node cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A read of the store.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A weight bound.
    #[error("[weights]: {0}")]
    Weight(#[from] WeightError),
    /// A handler.
    #[error(transparent)]
    Handler(#[from] HandlerError),
    /// A socket.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Why a call did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The input queue is full, or the pending set is still being loaded.
    #[error("the node is busy; try again in {retry_after_ms} ms")]
    Busy {
        /// When to come back, in milliseconds.
        retry_after_ms: u64,
    },
    /// The node is stopping, or has stopped.
    #[error("the node is stopping")]
    Stopping,
}

/// What is known of one peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerStatus {
    /// Its identity.
    pub id: AgentId,
    /// Whether a session is up.
    pub connected: bool,
    /// How many are.
    pub sessions: usize,
    /// Where it is dialled.
    pub address: Option<String>,
}

/// A pending obligation, as asked for by id.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingView {
    /// The obligation.
    pub obligation: Obligation,
    /// Retries made.
    pub retries: u32,
    /// Whether its receiver deferred it.
    pub deferred: bool,
}

/// Makes a [`Node`].
pub struct Builder {
    config: NodeConfig,
    storage: Option<Arc<dyn Storage>>,
    clock: Option<Arc<dyn Clock>>,
    socket: Option<Arc<dyn quinn::AsyncUdpSocket>>,
    runtime: Arc<dyn quinn::Runtime>,
    registry: Registry,
    seed: u64,
    driver_thread: bool,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("id", &self.config.id).finish_non_exhaustive()
    }
}

impl Builder {
    /// A node of this configuration, on the real clock, disk and network.
    #[must_use]
    pub fn new(config: NodeConfig) -> Self {
        let seed =
            std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0u8);
        Self {
            config,
            storage: None,
            clock: None,
            socket: None,
            runtime: Arc::new(quinn::TokioRuntime),
            registry: Registry::default(),
            seed,
            driver_thread: std::thread::available_parallelism()
                .is_ok_and(|cores| cores.get() >= OWN_THREAD_CORES),
        }
    }

    /// Another store than fjall in `data_dir`.
    #[must_use]
    pub fn storage(mut self, storage: Arc<dyn Storage>) -> Self {
        self.storage = Some(storage);
        self
    }

    /// Another clock than the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Another UDP socket and runtime than the system's.
    #[must_use]
    pub fn network(
        mut self,
        socket: Arc<dyn quinn::AsyncUdpSocket>,
        runtime: Arc<dyn quinn::Runtime>,
    ) -> Self {
        self.socket = Some(socket);
        self.runtime = runtime;
        self
    }

    /// More or other polarity rules than the papers' three kinds.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// The seed of retry jitter and connection ids.
    #[must_use]
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Whether the driver has a thread of its own, the default on machines of [`OWN_THREAD_CORES`]
    /// and more, or runs as a task of the caller's runtime: fewer thread switches for one
    /// obligation, and what paused time needs.
    #[must_use]
    pub const fn driver_thread(mut self, own: bool) -> Self {
        self.driver_thread = own;
        self
    }

    /// Opens the store, binds the socket and starts. The pending set loads in the background.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(self) -> Result<Node, StartError> {
        let Self { config, storage, clock, socket, runtime, registry, seed, driver_thread } = self;
        let tls = TlsIdentity::load(&config.quic.cert, &config.quic.key, &config.quic.ca)?;
        tls.expect_node(&config.id)?;
        let settings = settings(&config, seed)?;
        let storage: Arc<dyn Storage> = match storage {
            Some(storage) => storage,
            None => {
                Arc::new(FjallStore::open(&config.data_dir, &config.id, &store_options(&config))?)
            }
        };
        let custody = Custody::open(settings, registry, &*storage)?;
        let clock =
            clock.unwrap_or_else(|| Arc::new(SystemClock::starting_at_least(custody.last_time())));
        if tls.valid_until() <= clock.now() {
            tracing::warn!(until = %tls.valid_until(), "our own certificate has expired: peers will refuse us; obligations escalate at their deadlines");
        }
        let endpoint = endpoint(&config, &tls, socket, runtime, seed)?;
        let quic_address = endpoint
            .local_addr()
            .map_err(|source| StartError::Listen { address: config.quic.listen, source })?;
        let metrics = Arc::new(Metrics::default());
        let (router, jobs) = Router::new(metrics);
        let router = Arc::new(router);
        let (calls, rx) = mpsc::channel(config.store.input_queue_max);
        let shared = Arc::new(Shared::default());
        let handlers = Handlers::new(&config, calls.clone())?;
        let driver = Driver {
            custody,
            store: storage.clone(),
            clock: clock.clone(),
            router: router.clone(),
            shared: shared.clone(),
            calls: rx,
            batching: Batching {
                max: config.store.commit_batch_max,
                linger: Duration::from_micros(config.store.commit_linger_us),
            },
        };
        let ended = start_driver(driver, driver_thread)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(handlers.run(jobs));
        tasks.spawn(crate::escalation::run_sink(
            config.escalation.clone(),
            storage.clone(),
            calls.clone(),
            router.subscribe(),
        ));
        let context = Context {
            me: config.id.clone(),
            router: router.clone(),
            calls: calls.clone(),
            in_flight_max: config.custody.in_flight_max,
            send_queue_bytes_max: config.quic.send_queue_bytes_max,
            per_peer_max: config.quic.connections_per_peer_max,
            frame_timeout: Duration::from_millis(config.quic.frame_timeout_ms),
            hello_timeout: Duration::from_millis(config.quic.handshake_timeout_ms),
        };
        let acceptor = Acceptor {
            endpoint: endpoint.clone(),
            context: context.clone(),
            peers: Arc::new(config.peers.iter().map(|peer| peer.id.clone()).collect()),
            connections_max: config.quic.connections_max,
            handshake_timeout: Duration::from_millis(config.quic.handshake_timeout_ms),
        };
        tasks.spawn(acceptor.run());
        let dialer = Dialer {
            endpoint: endpoint.clone(),
            transport: Arc::new(tls::transport(&config.quic)?),
            tls: Arc::new(tls),
            context,
            backoff: Backoff {
                base_ms: config.quic.reconnect_base_ms,
                cap_ms: config.quic.reconnect_cap_ms.max(config.quic.reconnect_base_ms),
                jitter_permille: 200,
            },
            handshake_timeout: Duration::from_millis(config.quic.handshake_timeout_ms),
            racing: config.quic.racing,
            silent_after: Duration::from_millis(config.quic.silent_after_ms),
        };
        let mut http = HttpPeers::new();
        for peer in &config.peers {
            if let Some(address) = &peer.address {
                tasks.spawn(dialer.clone().maintain(peer.id.clone(), address.as_str().to_owned()));
            }
            if peer.http_token_file.is_some() || peer.obligation_endpoint.is_some() {
                let started = HttpPeer::start(
                    config.id.clone(),
                    peer,
                    &router,
                    calls.clone(),
                    config.quic.send_queue_bytes_max,
                );
                http.insert(peer.id.clone(), started.await.map_err(HandlerError::from)?);
            }
        }
        let handle = NodeHandle {
            calls,
            router,
            storage,
            clock,
            shared,
            config: Arc::new(config),
            http: Arc::new(http),
            quic_address,
        };
        handle.count_open_escalations();
        Ok(Node { handle, endpoint, tasks, ended })
    }
}

fn start_driver(
    driver: Driver,
    own_thread: bool,
) -> Result<oneshot::Receiver<Result<(), DriverError>>, StartError> {
    let (tx, ended) = oneshot::channel();
    if own_thread {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(StartError::Thread)?;
        std::thread::Builder::new()
            .name("abhyasa-driver".into())
            .spawn(move || {
                let _ = tx.send(runtime.block_on(driver.run()));
            })
            .map_err(StartError::Thread)?;
    } else {
        tokio::spawn(async move {
            let _ = tx.send(driver.run().await);
        });
    }
    Ok(ended)
}

fn endpoint(
    config: &NodeConfig,
    tls: &TlsIdentity,
    socket: Option<Arc<dyn quinn::AsyncUdpSocket>>,
    runtime: Arc<dyn quinn::Runtime>,
    seed: u64,
) -> Result<quinn::Endpoint, StartError> {
    let transport = Arc::new(tls::transport(&config.quic)?);
    let server = tls.server(&[tls::ALPN], transport)?;
    let listen = |source| StartError::Listen { address: config.quic.listen, source };
    let mut endpoint_config = quinn::EndpointConfig::default();
    match socket {
        Some(socket) => {
            let mut bytes = [0u8; 32];
            for (n, chunk) in (0u64..).zip(bytes.chunks_mut(8)) {
                chunk.copy_from_slice(&proto::backoff::mix(seed ^ n).to_be_bytes());
            }
            endpoint_config.rng_seed(Some(bytes));
            quinn::Endpoint::new_with_abstract_socket(
                endpoint_config,
                Some(server),
                socket,
                runtime,
            )
            .map_err(listen)
        }
        None => {
            let socket = std::net::UdpSocket::bind(config.quic.listen).map_err(listen)?;
            quinn::Endpoint::new(endpoint_config, Some(server), socket, runtime).map_err(listen)
        }
    }
}

fn store_options(config: &NodeConfig) -> StoreOptions {
    StoreOptions {
        cache_bytes: config.store.cache_bytes,
        memtable_bytes: (config.store.write_buffer_bytes / 4).max(1 << 20),
    }
}

fn settings(config: &NodeConfig, seed: u64) -> Result<Settings, StartError> {
    let rules = |peer: &crate::config::PeerConfig| PeerRules {
        principal: peer.principal.clone(),
        may_issue: peer.may_issue.clone(),
        may_receive: peer.may_receive.clone(),
        obligations_per_second: peer.rates.obligations_per_second,
        obligations_burst: peer.rates.obligations_burst,
        bytes_per_second: peer.rates.bytes_per_second,
    };
    let webhook = |handler: &HandlerConfig| matches!(handler, HandlerConfig::Webhook(_));
    Ok(Settings {
        me: config.id.clone(),
        peers: config.peers.iter().map(|peer| (peer.id.clone(), rules(peer))).collect(),
        profiles: config.kinds.iter().map(|(kind, kc)| (kind.clone(), kc.profile)).collect(),
        external: config
            .kinds
            .iter()
            .filter(|(_, kc)| webhook(&kc.handler))
            .map(|(kind, _)| kind.clone())
            .collect(),
        clock_skew_ms_max: config.custody.max_clock_skew_ms,
        pending_max: config.custody.pending_max,
        pending_per_peer_max: config.custody.pending_per_peer_max,
        in_flight_max: config.custody.in_flight_max,
        in_flight_bytes_max: config.custody.in_flight_bytes_max,
        deciding_max: config.custody.deciding_max,
        best_effort_window: config.custody.best_effort_window,
        refuse_retry_after_ms: config.custody.refuse_retry_after_ms,
        coalesce: config.custody.coalesce,
        outcome_retention_ms: config.custody.outcome_retention_seconds.saturating_mul(1000),
        outcomes_max: config.custody.outcomes_max,
        weights: WeightBounds {
            min: Weight::from_f64(config.weights.min)?,
            max: Weight::from_f64(config.weights.max)?,
            initial: Weight::from_f64(config.weights.initial)?,
        },
        seed,
    })
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    handle: NodeHandle,
    endpoint: quinn::Endpoint,
    tasks: JoinSet<()>,
    ended: oneshot::Receiver<Result<(), DriverError>>,
}

impl Node {
    /// A handle for callers. Cheap to clone.
    #[must_use]
    pub fn handle(&self) -> NodeHandle {
        self.handle.clone()
    }

    /// Waits until the driver ends by itself, which only a failing store makes it do.
    ///
    /// # Errors
    /// [`DriverError`]: the process must end (CR-1).
    //= CR-1
    pub async fn failed(&mut self) -> Result<(), DriverError> {
        if self.ended.is_terminated() {
            return Ok(()); // told before
        }
        (&mut self.ended).await.unwrap_or(Ok(()))
    }

    /// Stops: what is accepted is committed, what is pending stays in the store for the next start.
    ///
    /// # Errors
    /// [`DriverError`] if the last commit failed.
    pub async fn stop(self) -> Result<(), DriverError> {
        let Self { handle, endpoint, mut tasks, ended } = self;
        handle.shared.stopping.store(true, Ordering::SeqCst);
        let _ = handle.calls.send(Call::Stop).await;
        let result = if ended.is_terminated() { Ok(()) } else { ended.await.unwrap_or(Ok(())) };
        endpoint.close(0u32.into(), b"stopping");
        // Let the close frames go out; peers would notice anyway, later.
        let _ = tokio::time::timeout(Duration::from_millis(500), endpoint.wait_idle()).await;
        tasks.shutdown().await;
        result
    }
}

/// A hung bell, taken down also when its waiter gives up.
struct Bell<'a> {
    router: &'a Router,
    id: &'a ObligationId,
    bell: Arc<tokio::sync::Notify>,
}

impl Drop for Bell<'_> {
    fn drop(&mut self) {
        self.router.drop_bell(self.id, &self.bell);
    }
}

/// Calls into a running node.
#[derive(Clone, Debug)]
pub struct NodeHandle {
    calls: mpsc::Sender<Call>,
    router: Arc<Router>,
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    shared: Arc<Shared>,
    config: Arc<NodeConfig>,
    http: Arc<HttpPeers>,
    quic_address: SocketAddr,
}

impl std::fmt::Debug for dyn Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Storage")
    }
}

impl std::fmt::Debug for dyn Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

impl NodeHandle {
    /// Issues obligations; returns after they are durable, one result each (AB-1).
    ///
    /// # Errors
    /// [`NodeError::Busy`] while loading or when the queue is full, [`NodeError::Stopping`].
    pub async fn issue(&self, drafts: Vec<Draft>) -> Result<Vec<IssueResult>, NodeError> {
        if !self.shared.recovered.load(Ordering::SeqCst) {
            return Err(self.busy());
        }
        let (reply, ticket) = oneshot::channel();
        self.try_call(Call::Issue { drafts, reply })?;
        let results = ticket.await.map_err(|_| NodeError::Stopping)?;
        results.await.map_err(|_| NodeError::Stopping)
    }

    /// Waits for a transfer's end. `None` at the timeout, or if the id is not known here.
    ///
    /// # Errors
    /// [`NodeError::Stopping`] if the store cannot be read any more.
    pub async fn wait(
        &self,
        id: &ObligationId,
        timeout: Duration,
    ) -> Result<Option<Outcome>, NodeError> {
        let bell = Bell { router: &self.router, id, bell: self.router.terminal_bell(id) };
        // Looked up after the bell is hung, so that no end falls between.
        let outcome = self.outcome(id)?;
        if outcome.is_some() {
            return Ok(outcome);
        }
        let _ = tokio::time::timeout(timeout, bell.bell.notified()).await;
        self.outcome(id)
    }

    /// The terminal outcome of an id, if its transfer ended.
    ///
    /// # Errors
    /// [`NodeError::Stopping`] if the store cannot be read any more.
    pub fn outcome(&self, id: &ObligationId) -> Result<Option<Outcome>, NodeError> {
        let bytes = self
            .storage
            .get(Table::Outcome, id.as_str().as_bytes())
            .map_err(|_| NodeError::Stopping)?;
        bytes.map(|bytes| Outcome::decode(&bytes)).transpose().map_err(|_| NodeError::Stopping)
    }

    /// A pending obligation by id.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn status(&self, id: &ObligationId) -> Result<Option<PendingView>, NodeError> {
        let (reply, answer) = oneshot::channel();
        self.try_call(Call::Find { id: id.clone(), reply })?;
        let found = answer.await.map_err(|_| NodeError::Stopping)?;
        Ok(found.map(|(obligation, retries, deferred)| PendingView {
            obligation,
            retries,
            deferred,
        }))
    }

    /// Acknowledges an escalation.
    ///
    /// # Errors
    /// [`NodeError`]; the inner result says if there is none.
    pub async fn ack_escalation(&self, id: ObligationId) -> Result<OperatorResult, NodeError> {
        let (reply, ticket) = oneshot::channel();
        self.try_call(Call::AckEscalation { id, reply })?;
        let result = ticket
            .await
            .map_err(|_| NodeError::Stopping)?
            .await
            .map_err(|_| NodeError::Stopping)?;
        self.count_open_escalations();
        Ok(result)
    }

    /// Resolves a reconciliation item.
    ///
    /// # Errors
    /// [`NodeError`]; the inner result says if it cannot be resolved so.
    pub async fn resolve(
        &self,
        number: u64,
        resolution: Resolution,
    ) -> Result<OperatorResult, NodeError> {
        let (reply, ticket) = oneshot::channel();
        self.try_call(Call::Resolve { number, resolution, reply })?;
        ticket.await.map_err(|_| NodeError::Stopping)?.await.map_err(|_| NodeError::Stopping)
    }

    /// Offers an obligation on behalf of an HTTP peer that has authenticated itself.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn offer(
        &self,
        peer: AgentId,
        obligation: Obligation,
    ) -> Result<OfferReply, NodeError> {
        let Some(http) = self.http.get(&peer) else {
            let text = proto::ack::Reason::new("not a peer of the HTTP binding");
            return Ok(OfferReply::Refused {
                code: proto::frame::RefuseCode::Unauthorized,
                retry_after_ms: 0,
                text,
            });
        };
        http.offer(&obligation).await.ok_or(NodeError::Stopping)
    }

    /// Takes custody acks of an HTTP peer that has authenticated itself.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn acks(&self, peer: AgentId, acks: Vec<CustodyAck>) -> Result<(), NodeError> {
        self.try_call(Call::Input(Input::Acks { peer, acks }))
    }

    fn try_call(&self, call: Call) -> Result<(), NodeError> {
        self.calls.try_send(call).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => self.busy(),
            mpsc::error::TrySendError::Closed(_) => NodeError::Stopping,
        })
    }

    fn busy(&self) -> NodeError {
        NodeError::Busy { retry_after_ms: self.config.custody.refuse_retry_after_ms }
    }

    /// Durable state, for reading.
    #[must_use]
    pub fn store(&self) -> &dyn Read {
        &*self.storage
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &Arc<NodeConfig> {
        &self.config
    }

    /// Events from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Arc<Event>> {
        self.router.subscribe()
    }

    /// The metrics.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.router.metrics
    }

    /// The configured peers, and whether they are there.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerStatus> {
        let status = |peer: &crate::config::PeerConfig| {
            let sessions = self.router.session_count(&peer.id);
            let address = peer.address.as_ref().map(|address| address.as_str().to_owned());
            PeerStatus { id: peer.id.clone(), connected: sessions > 0, sessions, address }
        };
        self.config.peers.iter().map(status).collect()
    }

    /// Bytes that wait to be sent to a peer.
    #[must_use]
    pub fn queued_bytes(&self, peer: &AgentId) -> usize {
        self.router.queued_bytes(peer)
    }

    /// Pending transfers, as of the last commit.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.shared.pending.load(Ordering::Relaxed)
    }

    /// Whether the node can take obligations.
    ///
    /// # Errors
    /// Why not.
    pub fn readiness(&self) -> Result<(), String> {
        if self.shared.stopping.load(Ordering::SeqCst) {
            return Err("the node is stopping".to_owned());
        }
        if !self.shared.recovered.load(Ordering::SeqCst) {
            return Err("the pending set is being loaded".to_owned());
        }
        let open = self.router.metrics.escalations_open.get();
        if u64::try_from(open).unwrap_or(0) >= self.config.custody.escalations_max {
            return Err(format!("{open} escalations await acknowledgement, the limit"));
        }
        Ok(())
    }

    /// Now, by the node's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The UDP address of the QUIC endpoint.
    #[must_use]
    pub const fn quic_address(&self) -> SocketAddr {
        self.quic_address
    }

    fn count_open_escalations(&self) {
        let mut open = 0i64;
        let mut from = bytes::Bytes::new();
        while let Ok(page) = self.storage.scan(Table::Escalation, &from, 1024) {
            let Some((last, _)) = page.last() else { break };
            from = proto::record::num_key(
                proto::record::key_num(last).unwrap_or(u64::MAX).saturating_add(1),
            );
            let unseen = page.iter().filter(|(_, value)| {
                serde_json::from_slice::<proto::record::Escalation>(value)
                    .is_ok_and(|e| e.acknowledged_at_ms.is_none())
            });
            open += i64::try_from(unseen.count()).unwrap_or(0);
        }
        self.router.metrics.escalations_open.set(open);
    }
}
