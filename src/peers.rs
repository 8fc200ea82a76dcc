//! Keeps a session with every peer that has an address: dials, dials again, and races a silent
//! connection with a fresh handshake.

use crate::binding::quic::{self, Close, Context, Silence};
use crate::config::NodeConfig;
use crate::tls::{self, TlsIdentity};
use anyhow::Context as _;
use proto::backoff::Backoff;
use proto::id::AgentId;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// One dial, of whichever protocol.
#[derive(Clone, Debug)]
pub(crate) struct Dial {
    pub(crate) endpoint: quinn::Endpoint,
    pub(crate) tls: Arc<TlsIdentity>,
    pub(crate) transport: Arc<quinn::TransportConfig>,
    pub(crate) handshake_timeout: Duration,
}

/// How peers are dialled.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) dial: Dial,
    pub(crate) context: Context,
    pub(crate) backoff: Backoff,
    pub(crate) racing: bool,
    pub(crate) silent_after: Duration,
    /// Of the jitter between two dials: nodes that lost one peer shall not all come back at once.
    pub(crate) seed: u64,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("{address} does not resolve: {source}")]
    Resolve { address: String, source: std::io::Error },
    #[error("{address} resolves to no address")]
    NoAddress { address: String },
    #[error(transparent)]
    Connect(#[from] quinn::ConnectError),
    #[error(transparent)]
    Connection(#[from] quinn::ConnectionError),
    #[error(transparent)]
    Tls(#[from] crate::tls::TlsError),
    #[error("no handshake within {ms} ms")]
    Timeout { ms: u128 },
}

impl Dialer {
    /// Keeps `peer` connected for ever.
    pub(crate) async fn maintain(self, peer: AgentId, address: String) {
        let bell = self.context.router.retry_bell(&peer);
        let bytes = peer.as_str().bytes();
        let jitter =
            bytes.fold(self.seed, |seed, byte| proto::backoff::mix(seed ^ u64::from(byte)));
        let mut failures = 0u32;
        loop {
            match self.dial.to(&peer, &address, tls::ALPN).await {
                Ok(connection) => {
                    let begun = Instant::now();
                    self.hold(&peer, &address, connection, &bell).await;
                    if begun.elapsed() >= Duration::from_millis(self.backoff.cap_ms) {
                        failures = 0;
                        continue; // it was there, and is dialled at once
                    }
                    tracing::debug!(%peer, %address, failures, "session ended at once");
                }
                Err(error) if failures == 0 => {
                    tracing::info!(%peer, %address, %error, "peer not reached, dialling on");
                }
                Err(error) => {
                    tracing::debug!(%peer, %address, %error, failures, "peer not reached")
                }
            }
            let wait = self.backoff.delay_ms(failures, jitter);
            failures = failures.saturating_add(1);
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }

    /// Runs sessions with the peer, one after the other and for a moment two at a time, until
    /// none is left.
    async fn hold(
        &self,
        peer: &AgentId,
        address: &str,
        connection: quinn::Connection,
        bell: &tokio::sync::Notify,
    ) {
        let mut current = connection;
        loop {
            let silence = Silence::new();
            let mut session = JoinSet::new(); // one task, which goes when this one does
            session.spawn(quic::run(self.context.clone(), current.clone(), peer.clone()));
            // Sampled all along, so that the first retry of an outage already knows of it.
            let mut look = tokio::time::interval(self.silent_after / 2);
            look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let fresh = loop {
                tokio::select! {
                    biased;
                    _ = look.tick() => {
                        silence.lasts(&current, self.silent_after);
                    }
                    ended = session.join_next() => {
                        if let Some(Ok(Err(error))) = ended {
                            tracing::info!(%peer, %error, "session ended");
                        }
                        break None;
                    }
                    () = bell.notified() => {
                        // A retry is due: the last offer had no answer for its whole backoff.
                        if self.racing && silence.lasts(&current, self.silent_after)
                            && let Some(fresh) = self.race(peer, address, &current, &silence).await
                        {
                            break Some(fresh);
                        }
                    }
                }
            };
            let Some(fresh) = fresh else { return };
            tracing::info!(%peer, "silent session replaced by a fresh one");
            current.close((Close::Replaced as u32).into(), b"replaced by a fresh handshake");
            let _ = session.join_next().await;
            current = fresh;
        }
    }

    /// QUIC's own probes back off for as long as an outage lasted; a fresh handshake does not.
    /// Whichever answers first wins.
    async fn race(
        &self,
        peer: &AgentId,
        address: &str,
        old: &quinn::Connection,
        silence: &Silence,
    ) -> Option<quinn::Connection> {
        self.context.router.metrics.races.inc();
        let fresh = self.dial.to(peer, address, tls::ALPN);
        tokio::pin!(fresh);
        let mut look = tokio::time::interval(Duration::from_millis(50));
        loop {
            tokio::select! {
                biased;
                fresh = &mut fresh => return fresh.ok(),
                _ = old.closed() => return fresh.await.ok(),
                _ = look.tick() => {
                    if !silence.lasts(old, self.silent_after) {
                        return None; // the old one answered first
                    }
                }
            }
        }
    }
}

impl Dial {
    /// Dials as the node of `config`, from a UDP port of its own beside that of the node.
    pub(crate) fn alone(config: &NodeConfig, tls: TlsIdentity) -> anyhow::Result<Self> {
        let any: SocketAddr = (Ipv6Addr::UNSPECIFIED, 0).into();
        let endpoint = quinn::Endpoint::client(any)
            .or_else(|_| quinn::Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into()))
            .context("no UDP socket")?;
        Ok(Self {
            endpoint,
            tls: Arc::new(tls),
            transport: Arc::new(tls::transport(&config.quic)?),
            handshake_timeout: Duration::from_millis(config.quic.handshake_timeout_ms),
        })
    }

    /// A connection with `peer` that speaks `alpn`.
    pub(crate) async fn to(
        &self,
        peer: &AgentId,
        address: &str,
        alpn: &[u8],
    ) -> Result<quinn::Connection, DialError> {
        let dialled = async {
            let resolved = resolve(address).await?;
            let config = self.tls.client(&[alpn], peer, self.transport.clone())?;
            // The name is not used: the verifier knows whom it expects.
            Ok(self.endpoint.connect_with(config, resolved, tls::SERVER_NAME)?.await?)
        };
        let done = tokio::time::timeout(self.handshake_timeout, dialled).await;
        done.unwrap_or(Err(DialError::Timeout { ms: self.handshake_timeout.as_millis() }))
    }
}

pub(crate) async fn resolve(address: &str) -> Result<SocketAddr, DialError> {
    if let Ok(address) = address.parse() {
        return Ok(address);
    }
    let failed = |source| DialError::Resolve { address: address.to_owned(), source };
    let mut found = tokio::net::lookup_host(address).await.map_err(failed)?;
    found.next().ok_or_else(|| DialError::NoAddress { address: address.to_owned() })
}
