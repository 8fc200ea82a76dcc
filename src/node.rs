//! A node, assembled: store, core, driver, endpoint, peers, handlers.
//!
//! What is outside can be replaced: the UDP socket and runtime, the clock, the store and the seed
//! are given to [`Builder`]; production passes the real ones.

use crate::a2a::moqt::Front;
use crate::a2a::{A2a, A2aError, Around};
use crate::acap::{self, Acap, AcapError, Caller, Issuer, Terms};
use crate::api::h3::EXCESSIVE_LOAD;
use crate::binding::http::HttpPeers;
use crate::binding::quic::Context;
use crate::bridge::Bridge;
use crate::calls::{Calls, Code, Serving};
use crate::clock::{Clock, SystemClock};
use crate::config::{Binding, ConfigError, HandlerConfig, NodeConfig};
use crate::driver::{Batching, Call, Driver, DriverError, Shared};
use crate::endpoint::{Acceptor, Door};
use crate::gate::Gate;
use crate::handler::{HandlerError, Handlers};
use crate::moq::Fronts;
use crate::moq::node::{Around as MoqAround, Moq, MoqError};
use crate::peers::{Dial, Dialer};
use crate::router::Router;
use crate::store::{FjallStore, Storage, StoreError, StoreOptions};
use crate::telemetry::Metrics;
use crate::tls::{self, TlsError, TlsIdentity};
use proto::backoff::Backoff;
use proto::custody::Custody;
use proto::polarity::Registry;
use proto::record::{Escalation, key_num, num_key};
use proto::settings::{PeerRules, Settings, WeightBounds};
use proto::store::{ReadError, Table};
use proto::weight::{Weight, WeightError};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

mod handle;

pub use crate::binding::http::OfferReply;
pub use handle::{NodeError, NodeHandle, PeerStatus, PendingView};

/// Cores from which on the driver gets a thread of its own.
pub const OWN_THREAD_CORES: usize = 4;

/// How long calls in progress may take to end once the node stops.
const CALLS_END_TIME_MAX: Duration = Duration::from_secs(5);

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
    /// The A2A server.
    #[error(transparent)]
    A2a(#[from] A2aError),
    /// Consent of callers.
    #[error(transparent)]
    Acap(#[from] AcapError),
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

impl From<MoqError> for StartError {
    fn from(error: MoqError) -> Self {
        match error {
            MoqError::Tls(error) => error.into(),
            MoqError::Read(error) => error.into(),
            MoqError::Store(error) => error.into(),
        }
    }
}

/// Makes a [`Node`].
pub struct Builder {
    config: NodeConfig,
    storage: Option<Arc<dyn Storage>>,
    clock: Option<Arc<dyn Clock>>,
    socket: Option<Arc<dyn quinn::AsyncUdpSocket>>,
    runtime: Arc<dyn quinn::Runtime>,
    identity: Option<TlsIdentity>,
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
            identity: None,
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

    /// Another certificate and CA than those in the files the configuration names.
    #[must_use]
    pub fn identity(mut self, identity: TlsIdentity) -> Self {
        self.identity = Some(identity);
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
        let Self {
            config,
            storage,
            clock,
            socket,
            runtime,
            identity,
            registry,
            seed,
            driver_thread,
        } = self;
        let tls = match identity {
            Some(identity) => identity,
            None => TlsIdentity::load(&config.quic.cert, &config.quic.key, &config.quic.ca)?,
        };
        tls.expect_node(&config.id)?;
        let settings = settings(&config, seed)?;
        let storage: Arc<dyn Storage> = match storage {
            Some(storage) => storage,
            None => {
                Arc::new(FjallStore::open(&config.data_dir, &config.id, &store_options(&config))?)
            }
        };
        let custody = Custody::open(settings, registry, &*storage)?;
        let registry = custody.registry().clone();
        let clock =
            clock.unwrap_or_else(|| Arc::new(SystemClock::starting_at_least(custody.last_time())));
        if tls.valid_until() <= clock.now() {
            tracing::warn!(until = %tls.valid_until(), "our own certificate has expired: peers will refuse us; obligations escalate at their deadlines");
        }
        let (mut doors, mut http3) = (Vec::new(), None);
        if config.api.http3 {
            let (door, incoming) = Door::new(tls::ALPN_H3, EXCESSIVE_LOAD.into());
            doors.push(door);
            http3 = Some(incoming);
        }
        let mut a2a_calls = None;
        if config.a2a.agent.is_some() {
            let (door, incoming) = Door::new(tls::ALPN_A2A, Code::Overloaded.into());
            doors.push(door);
            a2a_calls = Some(incoming);
        }
        let mut mcp_calls = None;
        if config.mcp.enabled || !config.mcp_servers.is_empty() {
            let (door, incoming) = Door::new(tls::ALPN_MCP, Code::Overloaded.into());
            doors.push(door);
            mcp_calls = Some(incoming);
        }
        let (moq_wanted, mut moq_peers) = (crate::moq::node::wanted(&config), None);
        if config.moq.enabled {
            let (door, incoming) = Door::new(tls::ALPN_MOQT, Code::Overloaded.into());
            doors.push(door);
            moq_peers = Some(incoming);
        }
        let endpoint = endpoint(&config, &tls, &doors, socket, runtime, seed)?;
        let quic_address = endpoint
            .local_addr()
            .map_err(|source| StartError::Listen { address: config.quic.listen, source })?;
        let metrics = Arc::new(Metrics::default());
        metrics.escalations_open.set(open_escalations(&*storage)?);
        let (router, jobs) = Router::new(metrics);
        let router = Arc::new(router);
        let (calls, rx) = mpsc::channel(config.store.input_queue_max);
        let shared = Arc::new(Shared::default());
        let handlers = Handlers::new(&config, calls.clone(), clock.clone())?;
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
            doors: doors.into(),
        };
        tasks.spawn(acceptor.run());
        let dial = Dial {
            endpoint: endpoint.clone(),
            transport: Arc::new(tls::transport(&config.quic)?),
            tls: Arc::new(tls),
            handshake_timeout: Duration::from_millis(config.quic.handshake_timeout_ms),
        };
        let dialer = Dialer {
            dial: dial.clone(),
            context,
            backoff: Backoff {
                base_ms: config.quic.reconnect_base_ms,
                cap_ms: config.quic.reconnect_cap_ms.max(config.quic.reconnect_base_ms),
                jitter_permille: 200,
            },
            racing: config.quic.racing,
            silent_after: Duration::from_millis(config.quic.silent_after_ms),
            seed,
        };
        let addresses = config
            .peers
            .iter()
            .filter_map(|peer| Some((peer.id.clone(), peer.address.as_ref()?.as_str().to_owned())));
        let peer_calls = Arc::new(Calls::new(dial.clone(), addresses.collect()));
        let (me, queue_max) = (config.id.clone(), config.quic.send_queue_bytes_max);
        let mut http = HttpPeers::new(me, router.clone(), calls.clone(), queue_max);
        for peer in &config.peers {
            if let (Binding::Native, Some(address)) = (&peer.binding, &peer.address) {
                tasks.spawn(dialer.clone().maintain(peer.id.clone(), address.as_str().to_owned()));
            }
            let endpoint = peer.obligation_endpoint.is_some() || peer.agent_card.is_some();
            // Over HTTP/3 a peer needs no token to give us its own; in other calls it may.
            if peer.http_token_file.is_some() || endpoint || config.api.http3 {
                http.begin(peer).await.map_err(HandlerError::from)?;
            } else {
                http.expect(peer);
            }
        }
        let config = Arc::new(config);
        let http = Arc::new(http);
        let (acap, acap_failed) =
            match config.acap.policy.as_deref().filter(|_| config.acap.enabled) {
                None => (None, None),
                Some(policy) => {
                    let store = storage.side()?.ok_or(AcapError::NoPlace)?;
                    let (failing, failed) = oneshot::channel();
                    let (cells, clock) = (storage.clone(), clock.clone());
                    let acap =
                        Acap::open(config.clone(), policy, clock, cells, store, failing).await?;
                    (Some(Arc::new(acap)), Some(failed))
                }
            };
        if let Some(acap) = &acap {
            tasks.spawn(acap.clone().run(router.governed.subscribe()));
            tasks.spawn(acap.clone().push());
            tasks.spawn(acap.clone().run_anchoring());
        }
        let (consents, consents_failed) = if config.consent.is_empty() {
            (None, None)
        } else {
            let terms = config.consent.iter().map(|table| Terms::of(&config, table, &dial));
            let terms = terms.collect::<Result<_, _>>()?;
            let (failing, failed) = oneshot::channel();
            let (me, clock) = (config.id.clone(), clock.clone());
            let signer = acap::signer(&config)?;
            let caller = Caller::open_in(me, terms, &*storage, clock, signer, failing)?;
            let governed = router.governed.subscribe();
            let (calls, cells, shared) = (calls.clone(), storage.clone(), shared.clone());
            let custody = Issuer::new(&config, calls, cells, shared, governed)?;
            (Some(Arc::new(caller.under(custody))), Some(failed))
        };
        if let Some(consents) = &consents {
            tasks.spawn(consents.clone().run(config.clone()));
        }
        let governed = router.governed.subscribe();
        let gate = Arc::new(Gate::new(&config, storage.clone(), acap.clone(), governed));
        let (stop, stopping) = watch::channel(false);
        let moq = if moq_wanted {
            let around = MoqAround {
                config: config.clone(),
                dial: dial.clone(),
                backoff: dialer.backoff,
                seed,
                router: router.clone(),
                calls: calls.clone(),
                clock: clock.clone(),
                acap: acap.clone(),
            };
            Some(Moq::open(around, storage.clone())?)
        } else {
            None
        };
        let mut servers = JoinSet::new();
        let (a2a, a2a_failed) = match &config.a2a.agent {
            None => (None, None),
            Some(agent) => {
                let store = storage.side()?.ok_or(A2aError::NoPlace)?;
                let around = Around {
                    config: config.clone(),
                    clock: clock.clone(),
                    peers: http.clone(),
                    calls: peer_calls,
                    dial,
                    gate: gate.clone(),
                    consents: consents.clone(),
                    quic_address,
                };
                let (failing, failed) = oneshot::channel();
                (Some(Arc::new(A2a::open(around, agent, store, failing)?)), Some(failed))
            }
        };
        if let Some(a2a) = &a2a {
            tasks.spawn(a2a.clone().run());
            if let Some(incoming) = a2a_calls {
                let per_peer_max = config.quic.connections_per_peer_max;
                let serving = Serving { per_peer_max, stop: stopping.clone() };
                servers.spawn(a2a.clone().serve_quic(serving, incoming));
            }
        }
        let handle = NodeHandle {
            moq,
            calls,
            router,
            storage,
            clock,
            shared,
            config,
            registry,
            http,
            a2a,
            acap,
            consents,
            http3: Arc::new(Mutex::new(http3)),
            bridge: Arc::default(),
            quic_address,
        };
        let per_peer_max = handle.config.quic.connections_per_peer_max;
        let front = |a2a: &Arc<A2a>| Front { a2a: a2a.clone(), stop: stopping.clone() };
        let mut fronts = Fronts { mcp: None, a2a: handle.a2a.as_ref().map(front) };
        if let Some(incoming) = mcp_calls {
            let bridge = Arc::new(Bridge::new(handle.clone(), gate, stopping.clone()));
            fronts.mcp = Some(bridge.clone());
            let _ = handle.bridge.set(Arc::downgrade(&bridge)); // it is the first
            let serving = Serving { per_peer_max, stop: stopping.clone() };
            let serve = move |peer, send, recv| bridge.clone().serve(peer, send, recv);
            servers.spawn(serving.calls(incoming, serve));
        }
        if let Some(moq) = &handle.moq {
            moq.keep(&mut tasks, &fronts)?;
            if let Some(bridge) = fronts.mcp.clone() {
                servers.spawn(async move { bridge.stopped().await });
            }
            if let Some(incoming) = moq_peers {
                // Clients of MCP servers come beside a node that is here for custody.
                let serving = Serving { per_peer_max: 2 * per_peer_max, stop: stopping };
                servers.spawn(moq.clone().accept(serving, incoming, fronts));
            }
        }
        Ok(Node {
            handle,
            endpoint,
            tasks,
            servers,
            stop,
            ended,
            a2a_failed,
            acap_failed,
            consents_failed,
        })
    }
}

/// Why a part of the node that keeps tables of its own cannot go on. Told once; without it, never.
async fn heard(from: &mut Option<oneshot::Receiver<DriverError>>) -> DriverError {
    let Some(receiver) = from.as_mut() else { return std::future::pending().await };
    let told = receiver.await;
    *from = None;
    told.unwrap_or(DriverError::A2a("nobody is there to say why"))
}

fn start_driver(
    driver: Driver,
    own_thread: bool,
) -> Result<oneshot::Receiver<Result<(), DriverError>>, StartError> {
    let (mut tx, ended) = oneshot::channel();
    let run = async move {
        tokio::select! {
            biased;
            () = tx.closed() => {} // the node was dropped, not stopped
            result = driver.run() => {
                let _ = tx.send(result);
            }
        }
    };
    if own_thread {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(StartError::Thread)?;
        std::thread::Builder::new()
            .name("abhyasa-driver".into())
            .spawn(move || runtime.block_on(run))
            .map_err(StartError::Thread)?;
    } else {
        tokio::spawn(run);
    }
    Ok(ended)
}

fn endpoint(
    config: &NodeConfig,
    tls: &TlsIdentity,
    doors: &[Door],
    socket: Option<Arc<dyn quinn::AsyncUdpSocket>>,
    runtime: Arc<dyn quinn::Runtime>,
    seed: u64,
) -> Result<quinn::Endpoint, StartError> {
    let transport = Arc::new(tls::transport(&config.quic)?);
    let mut protocols = vec![tls::ALPN];
    protocols.extend(doors.iter().map(|door| door.alpn));
    let server = tls.server(&protocols, transport)?;
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

/// Escalations nobody has acknowledged; the events count on from here.
fn open_escalations(storage: &dyn Storage) -> Result<i64, ReadError> {
    let mut open = 0;
    let mut from = 0;
    loop {
        let page = storage.scan(Table::Escalation, &num_key(from), 1024)?;
        let Some((last, _)) = page.last() else { return Ok(open) };
        from = key_num(last).unwrap_or(u64::MAX - 1) + 1;
        let unseen = page.iter().filter(|(_, value)| {
            serde_json::from_slice::<Escalation>(value)
                .is_ok_and(|e| e.acknowledged_at_ms.is_none())
        });
        open += i64::try_from(unseen.count()).unwrap_or(0);
    }
}

pub(crate) fn store_options(config: &NodeConfig) -> StoreOptions {
    StoreOptions {
        cache_bytes: config.store.cache_bytes,
        memtable_bytes: (config.store.write_buffer_bytes / 4).max(1 << 20),
    }
}

pub(crate) fn settings(config: &NodeConfig, seed: u64) -> Result<Settings, StartError> {
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

/// A running node. Dropped without [`Node::stop`] it ends as in a crash, without a word to its
/// peers: what is not committed is gone.
#[derive(Debug)]
pub struct Node {
    handle: NodeHandle,
    endpoint: quinn::Endpoint,
    tasks: JoinSet<()>,
    /// Servers of calls, which end by themselves once `stop` says so.
    servers: JoinSet<()>,
    stop: watch::Sender<bool>,
    ended: oneshot::Receiver<Result<(), DriverError>>,
    a2a_failed: Option<oneshot::Receiver<DriverError>>,
    acap_failed: Option<oneshot::Receiver<DriverError>>,
    consents_failed: Option<oneshot::Receiver<DriverError>>,
}

impl Node {
    /// A handle for callers. Cheap to clone.
    #[must_use]
    pub fn handle(&self) -> NodeHandle {
        self.handle.clone()
    }

    /// Waits until the driver or the A2A server ends by itself, which only a failing store makes
    /// them do.
    ///
    /// # Errors
    /// [`DriverError`]: the process must end (CR-1).
    //= CR-1
    pub async fn failed(&mut self) -> Result<(), DriverError> {
        if self.ended.is_terminated() {
            return Ok(()); // told before
        }
        tokio::select! {
            ended = &mut self.ended => ended.unwrap_or(Ok(())),
            error = heard(&mut self.a2a_failed) => Err(error),
            error = heard(&mut self.acap_failed) => Err(error),
            error = heard(&mut self.consents_failed) => Err(error),
        }
    }

    /// Stops: what is accepted is committed, what is pending stays in the store for the next start.
    ///
    /// # Errors
    /// [`DriverError`] if the last commit failed.
    pub async fn stop(self) -> Result<(), DriverError> {
        let Self { handle, endpoint, mut tasks, mut servers, stop, ended, .. } = self;
        stop.send_replace(true);
        handle.shared.stopping.store(true, Ordering::SeqCst);
        let _ = handle.calls.send(Call::Stop).await;
        let result = if ended.is_terminated() { Ok(()) } else { ended.await.unwrap_or(Ok(())) };
        // Calls that are being answered have their answers first.
        let served = async { while servers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(CALLS_END_TIME_MAX, served).await;
        endpoint.close(0u32.into(), b"stopping");
        // Let the close frames go out; peers would notice anyway, later.
        let _ = tokio::time::timeout(Duration::from_millis(500), endpoint.wait_idle()).await;
        tasks.shutdown().await;
        if let Some(a2a) = &handle.a2a {
            a2a.stop().await;
        }
        if let Some(acap) = &handle.acap {
            acap.stop().await;
        }
        if let Some(consents) = &handle.consents {
            consents.stop().await;
        }
        result
    }
}
