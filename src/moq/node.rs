//! The MOQT side of a node: sessions with peers that dial us, that we dial, and that we meet at relays.

use super::custody::Shared;
use super::fanout::{Groups, Hop};
use super::seal::SealKey;
use super::session::{self, Fronts, With};
use super::sign::Signatures;
use super::watch::Watched;
use super::{ALPN, Link, LinkError, SHARE_REQUESTS_MAX};
use crate::acap::Acap;
use crate::binding::quic::Silence;
use crate::calls::{Code, Incoming, Serving};
use crate::clock::Clock;
use crate::config::{Binding, GroupConfig, NodeConfig, RelayConfig};
use crate::driver::Call;
use crate::peers::{Dial, DialError, resolve};
use crate::router::Router;
use crate::store::{Storage, StoreError};
use crate::tls::TlsError;
use bytes::Bytes;
use proto::backoff::Backoff;
use proto::id::AgentId;
use proto::store::{ReadError, Table, Write};
use proto::track::{GroupName, part_of};
use quinn::Connection;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use url::Url;

/// Where the count of starts is kept.
const BOOT_KEY: &[u8] = b"moqt_boot";

/// What a node has for MOQT.
#[derive(Debug)]
pub(crate) struct Moq {
    shared: Arc<Shared>,
    config: Arc<NodeConfig>,
    dial: Dial,
    backoff: Backoff,
    seed: u64,
}

/// Why MOQT cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MoqError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What of the node MOQT needs.
pub(crate) struct Around {
    pub(crate) config: Arc<NodeConfig>,
    pub(crate) dial: Dial,
    pub(crate) backoff: Backoff,
    pub(crate) seed: u64,
    pub(crate) router: Arc<Router>,
    pub(crate) calls: mpsc::Sender<Call>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) acap: Option<Arc<Acap>>,
}

/// Whether a configuration has anything to do with MOQT.
pub(crate) fn wanted(config: &NodeConfig) -> bool {
    config.moq.enabled
        || config.relays.iter().any(|relay| relay.may_watch)
        || config.peers.iter().any(|peer| peer.binding != Binding::Native)
}

impl Moq {
    /// Counts this start, durably: names of our tracks are never used twice (draft-ietf-moq-transport-18: who
    /// restarts uses other names, or higher groups).
    ///
    /// # Errors
    /// [`MoqError`].
    pub(crate) fn open(around: Around, storage: Arc<dyn Storage>) -> Result<Arc<Self>, MoqError> {
        let Around { config, dial, backoff, seed, router, calls, clock, acap } = around;
        let kept = storage.get(Table::Meta, BOOT_KEY)?;
        let last = match kept {
            Some(bytes) => {
                let bytes: [u8; 8] = bytes.as_ref().try_into().map_err(|_| {
                    ReadError::damaged(Table::Meta, "the count of starts is not of 8 bytes")
                })?;
                u64::from_be_bytes(bytes)
            }
            None => 0,
        };
        let boot = last.saturating_add(1);
        let write = Write {
            table: Table::Meta,
            key: Bytes::from_static(BOOT_KEY),
            value: Some(Bytes::copy_from_slice(&boot.to_be_bytes())),
        };
        storage.commit(&[write], true)?;
        let sealed = config.kinds.iter().filter(|(_, kind)| kind.seal);
        let shared = Arc::new(Shared {
            me: config.id.clone(),
            signatures: Signatures::new(dial.tls.clone())?,
            groups: Groups::new(Signatures::new(dial.tls.clone())?),
            members: members(&config.groups),
            seal_key: SealKey::generate().map_err(TlsError::from)?,
            sealed: sealed.map(|(kind, _)| kind.clone()).collect(),
            watched: Watched {
                store: storage,
                peers: config.peers.iter().map(|peer| peer.id.clone()).collect(),
                acap,
            },
            router,
            calls,
            clock,
            boot,
            sessions: AtomicU64::new(0),
            in_flight_max: config.moq.in_flight_max,
            answer: Duration::from_millis(config.moq.answer_ms),
            queue_bytes_max: config.quic.send_queue_bytes_max,
            per_peer_max: config.quic.connections_per_peer_max,
        });
        Ok(Arc::new(Self { shared, config, dial, backoff, seed }))
    }

    /// Decisions to groups.
    pub(crate) fn groups(&self) -> &Groups {
        &self.shared.groups
    }

    /// Serves peers that dial us, until the node stops.
    pub(crate) async fn accept(
        self: Arc<Self>,
        serving: Serving,
        incoming: mpsc::Receiver<Incoming>,
        fronts: Fronts,
    ) {
        let stopping = serving.clone();
        serving
            .connections(incoming, Code::Overloaded.into(), move |connection, peer| {
                let (this, stopping, fronts) = (self.clone(), stopping.clone(), fronts.clone());
                let bridge = fronts.mcp.clone();
                async move {
                    let served = async {
                        let (link, task) = Link::accept(connection).await?;
                        let with = this.with_peer(&peer, true);
                        session::run(this.shared.clone(), link, task, with, fronts).await
                    };
                    let stopped = async {
                        match &bridge {
                            Some(bridge) => bridge.stopped().await, // calls have their answers first
                            None => stopping.stopped().await,
                        }
                    };
                    tokio::select! {
                        ended = served => log(&peer, ended),
                        () = stopped => {}
                    }
                }
            })
            .await;
    }

    /// Keeps sessions with peers that are dialled, and with relays, for ever.
    ///
    /// # Errors
    /// [`TlsError`] of a relay.
    pub(crate) fn keep(
        self: &Arc<Self>,
        tasks: &mut JoinSet<()>,
        fronts: &Fronts,
    ) -> Result<(), TlsError> {
        for peer in &self.config.peers {
            if let (Binding::Moqt, Some(address)) = (&peer.binding, &peer.address) {
                let to = Dialled::Peer(peer.id.clone(), address.as_str().to_owned());
                let (this, with) = (self.clone(), self.with_peer(&peer.id, false));
                let fronts = fronts.clone();
                tasks.spawn(async move { this.keep_session(to, with, fronts).await });
            }
        }
        for relay in &self.config.relays {
            let met = self.config.peers.iter();
            let met = met.filter(|peer| peer.binding == Binding::Relay(relay.name.clone()));
            let met: BTreeMap<_, _> =
                met.map(|peer| (peer.id.clone(), peer.groups.clone())).collect();
            if met.is_empty() && !relay.may_watch {
                continue;
            }
            let client = self.dial.tls.relay_client(&[ALPN], &relay.ca, &self.dial.transport)?;
            let shares = shares(&met);
            let count = shares.len();
            for (index, peers) in shares.into_iter().enumerate() {
                let part = |of: usize| u16::try_from(of).unwrap_or(u16::MAX); // PEERS_MAX is less
                let hop = Hop::Relay(relay.name.as_str().into());
                let part = (part(index), part(count));
                let groups = if index == 0 { self.own_groups(&met) } else { BTreeSet::new() };
                let watched = index == 0 && relay.may_watch;
                let with = With { hop, peers, part, groups, watched, guest: false };
                let (this, to) = (self.clone(), Dialled::Relay(relay.clone(), client.clone()));
                tasks.spawn(async move { this.keep_session(to, with, Fronts::default()).await });
            }
        }
        Ok(())
    }

    /// Groups of ours of which one of these is a member.
    fn own_groups(&self, peers: &BTreeMap<AgentId, BTreeSet<GroupName>>) -> BTreeSet<GroupName> {
        let groups = self.config.groups.iter();
        let groups = groups.filter(|group| group.members.iter().any(|id| peers.contains_key(id)));
        groups.map(|group| group.name.clone()).collect()
    }

    fn with_peer(&self, id: &AgentId, guest: bool) -> With {
        let found = self.config.peers.iter().find(|peer| peer.id == *id);
        let groups = found.map(|peer| peer.groups.clone()).unwrap_or_default();
        let watched = found.is_some_and(|peer| peer.may_watch);
        let peers = BTreeMap::from([(id.clone(), groups)]);
        let groups = self.own_groups(&peers);
        With { hop: Hop::Peer(id.clone()), peers, part: (0, 1), groups, watched, guest }
    }

    /// Keeps a session with who is dialled, for ever.
    async fn keep_session(&self, to: Dialled, with: With, fronts: Fronts) {
        let mut wait = self.waiting(&to.to_string());
        let mut fresh = None;
        loop {
            let mut begun = None;
            let ended = async {
                let connection = match fresh.take() {
                    Some(connection) => connection,
                    None => self.dial(&to).await?,
                };
                let (link, task) = Link::connect(connection, to.url()?, Vec::new()).await?;
                begun = Some(Instant::now());
                let (shared, fronts) = (self.shared.clone(), fronts.clone());
                let session = session::run(shared, link.clone(), task, with.clone(), fronts);
                tokio::pin!(session);
                tokio::select! {
                    ended = &mut session => return Ok::<_, SessionFailed>(ended?),
                    connection = self.outlive(&to, &link) => fresh = Some(connection),
                }
                tracing::info!(with = %to, "silent session replaced by a fresh one");
                link.connection().close(0u32.into(), b"replaced by a fresh handshake");
                Ok(session.await?)
            };
            let ended = ended.await;
            log(&to, ended);
            if fresh.is_none() {
                wait.after(begun).await;
            }
        }
    }

    async fn dial(&self, to: &Dialled) -> Result<Connection, DialError> {
        match to {
            Dialled::Peer(peer, address) => self.dial.to(peer, address, ALPN).await,
            Dialled::Relay(relay, client) => self.dial_relay(&relay.url, client.clone()).await,
        }
    }

    /// A fresh connection in place of one that has gone silent with groups on their way, once a handshake of it is
    /// answered: QUIC's own probes back off for as long as an outage lasts, and a relay that was started anew
    /// knows nothing of the old one.
    async fn outlive(&self, to: &Dialled, link: &Link) -> Connection {
        let silent_after = Duration::from_millis(self.config.quic.silent_after_ms);
        let silence = Silence::new();
        let mut look = tokio::time::interval(silent_after / 2);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let silent = silence.lasts(link.connection(), silent_after);
            if !(silent && self.config.quic.racing && link.waits()) {
                continue;
            }
            self.shared.router.metrics.races.inc();
            if let Ok(fresh) = self.dial(to).await {
                if silence.lasts(link.connection(), silent_after) {
                    return fresh;
                }
                fresh.close(0u32.into(), b"the old one answered first");
            }
        }
    }

    async fn dial_relay(
        &self,
        url: &Url,
        client: quinn::ClientConfig,
    ) -> Result<Connection, DialError> {
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let address =
            format!("{}:{}", url.host_str().unwrap_or_default(), url.port().unwrap_or(443));
        let dialled = async {
            let resolved = resolve(&address).await?;
            Ok(self.dial.endpoint.connect_with(client, resolved, host)?.await?)
        };
        let timeout = self.dial.handshake_timeout;
        let done = tokio::time::timeout(timeout, dialled).await;
        done.unwrap_or(Err(DialError::Timeout { ms: timeout.as_millis() }))
    }

    fn waiting(&self, of: &str) -> Waiting {
        let mix = |seed, byte| proto::backoff::mix(seed ^ u64::from(byte));
        let jitter = of.bytes().fold(self.seed, mix);
        Waiting { backoff: self.backoff, jitter, failures: 0 }
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
enum SessionFailed {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error(transparent)]
    Link(#[from] LinkError),
}

fn log<E: std::fmt::Display>(with: &(dyn std::fmt::Display + Sync), ended: Result<(), E>) {
    match ended {
        Ok(()) => tracing::info!(%with, "MOQT session ended"),
        Err(error) => tracing::info!(%with, %error, "MOQT session ended"),
    }
}

/// Who is dialled.
enum Dialled {
    Peer(AgentId, String),
    Relay(RelayConfig, quinn::ClientConfig),
}

impl std::fmt::Display for Dialled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Peer(peer, _) => peer.fmt(f),
            Self::Relay(relay, _) => relay.url.fmt(f),
        }
    }
}

impl Dialled {
    fn url(&self) -> Result<Url, LinkError> {
        let url = match self {
            Self::Peer(_, address) => Url::parse(&format!("moqt://{address}/")),
            Self::Relay(relay, _) => return Ok(relay.url.clone()),
        };
        // A host that dials is one of a URL, but for few.
        url.or_else(|_| Url::parse("moqt://localhost/"))
            .map_err(|_| LinkError::Session(moq_transport::session::SessionError::Internal))
    }
}

struct Waiting {
    backoff: Backoff,
    jitter: u64,
    failures: u32,
}

impl Waiting {
    /// Waits before the next dial; what was there for a while is dialled at once.
    async fn after(&mut self, begun: Option<Instant>) {
        let lasted = begun.map(|begun| begun.elapsed());
        if lasted.is_some_and(|lasted| lasted >= Duration::from_millis(self.backoff.cap_ms)) {
            self.failures = 0;
        }
        let wait = self.backoff.delay_ms(self.failures, self.jitter);
        self.failures = self.failures.saturating_add(1);
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }
}

/// Of each peer the groups that it is a member of.
fn members(groups: &[GroupConfig]) -> HashMap<AgentId, BTreeSet<GroupName>> {
    let mut members: HashMap<AgentId, BTreeSet<GroupName>> = HashMap::new();
    for group in groups {
        for member in &group.members {
            members.entry(member.clone()).or_default().insert(group.name.clone());
        }
    }
    members
}

/// Our peers at a relay, in as many shares as sessions are needed for them. A peer finds its share by its name
/// ([`part_of`]).
fn shares(
    peers: &BTreeMap<AgentId, BTreeSet<GroupName>>,
) -> Vec<BTreeMap<AgentId, BTreeSet<GroupName>>> {
    let needed = |share: &BTreeMap<AgentId, BTreeSet<GroupName>>| -> usize {
        share.values().map(|groups| 2 + groups.len()).sum()
    };
    let mut count = needed(peers).div_ceil(SHARE_REQUESTS_MAX).max(1);
    loop {
        let mut shares = vec![BTreeMap::new(); count];
        for (peer, value) in peers {
            let index = part_of(peer, u16::try_from(count).unwrap_or(u16::MAX));
            if let Some(share) = shares.get_mut(usize::from(index)) {
                share.insert(peer.clone(), value.clone());
            }
        }
        // A hash shares unevenly. One peer may be more than a share by itself: its requests wait for each other.
        let fits = shares.iter().all(|share| needed(share) <= SHARE_REQUESTS_MAX);
        if fits || count > 4 * peers.len() {
            return shares;
        }
        count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bd1_no_session_has_more_peers_than_its_requests_are_enough_for() {
        for (n, groups) in [(1, 0), (32, 0), (33, 0), (1_000, 0), (10_000, 0), (40, 1), (1_000, 6)]
        {
            let names = (0..groups).map(|n| GroupName::new(&n.to_string()).unwrap());
            let names: BTreeSet<_> = names.collect();
            let id = |n| AgentId::new(&format!("spiffe://example.org/{n}")).unwrap();
            let peers = (0..n).map(|n| (id(n), names.clone())).collect();
            let shares = shares(&peers);
            let each = SHARE_REQUESTS_MAX / (2 + groups);
            assert!(shares.iter().all(|share| share.len() <= each), "{n}");
            assert_eq!(shares.iter().map(BTreeMap::len).sum::<usize>(), n, "{n}");
            assert!(shares.len() <= n.div_ceil(each) * 3, "{n}, {groups}: {}", shares.len());
        }
        let names = (0..64).map(|n| GroupName::new(&n.to_string()).unwrap()).collect();
        let id = AgentId::new("spiffe://example.org/a").unwrap();
        assert!(!shares(&BTreeMap::from([(id, names)])).is_empty(), "one with many groups is met");
    }
}
