//! The QUIC endpoint: accepts peers, refuses everyone else, and bounds how many there are.

use crate::binding::quic::{self, Close, Context};
use crate::calls::Incoming;
use crate::tls;
use proto::id::AgentId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinSet;

/// Handshakes under way before new ones must prove their address first (RFC 9000 §8.1).
const HALF_OPEN_UNTIL_RETRY: usize = 64;

/// Connections that wait for the server of their protocol to take them; further ones are closed.
const WAITING_MAX: usize = 64;

/// Where connections of a protocol beside the native one go.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    pub(crate) alpn: &'static [u8],
    /// What one is closed with that finds no room.
    pub(crate) overloaded: quinn::VarInt,
    to: mpsc::Sender<Incoming>,
}

impl Door {
    pub(crate) fn new(
        alpn: &'static [u8],
        overloaded: quinn::VarInt,
    ) -> (Self, mpsc::Receiver<Incoming>) {
        let (to, incoming) = mpsc::channel(WAITING_MAX);
        (Self { alpn, overloaded, to }, incoming)
    }

    fn enter(&self, incoming: Incoming) {
        let closed = match self.to.try_send(incoming) {
            Ok(()) => return,
            Err(TrySendError::Full(incoming) | TrySendError::Closed(incoming)) => incoming,
        };
        let (connection, peer) = closed;
        tracing::debug!(%peer, "closed: nobody is there to take it");
        connection.close(self.overloaded, b"overloaded");
    }
}

/// Accepts connections.
#[derive(Clone)]
pub(crate) struct Acceptor {
    pub(crate) endpoint: quinn::Endpoint,
    pub(crate) context: Context,
    pub(crate) peers: Arc<BTreeSet<AgentId>>,
    pub(crate) connections_max: usize,
    pub(crate) handshake_timeout: Duration,
    /// The other protocols that are spoken.
    pub(crate) doors: Arc<[Door]>,
}

impl Acceptor {
    /// Runs until the endpoint is closed.
    pub(crate) async fn run(self) {
        let half_open = Arc::new(AtomicUsize::new(0));
        let mut sessions = JoinSet::new(); // they go when this task does
        loop {
            let incoming = tokio::select! {
                biased;
                Some(_) = sessions.join_next() => continue,
                incoming = self.endpoint.accept() => incoming,
            };
            let Some(incoming) = incoming else { break };
            if self.endpoint.open_connections() >= self.connections_max {
                incoming.refuse();
                continue;
            }
            if half_open.load(Ordering::Relaxed) >= HALF_OPEN_UNTIL_RETRY
                && !incoming.remote_address_validated()
            {
                // A retry costs us no state; it can only fail on an address that is validated.
                let _ = incoming.retry();
                continue;
            }
            let (acceptor, half_open) = (self.clone(), half_open.clone());
            half_open.fetch_add(1, Ordering::Relaxed);
            sessions.spawn(async move {
                let accepted = acceptor.handshake(incoming).await;
                half_open.fetch_sub(1, Ordering::Relaxed);
                let Some((connection, peer)) = accepted else { return };
                let protocol = tls::protocol(&connection);
                let mut doors = acceptor.doors.iter();
                if let Some(door) = doors.find(|door| protocol.as_deref() == Some(door.alpn)) {
                    return door.enter((connection, peer));
                }
                if let Err(error) = quic::run(acceptor.context, connection, peer.clone()).await {
                    tracing::info!(%peer, %error, "session ended");
                }
            });
        }
        // The endpoint is closed, and with it the connections: each session sees its own end.
        while sessions.join_next().await.is_some() {}
    }

    async fn handshake(&self, incoming: quinn::Incoming) -> Option<(quinn::Connection, AgentId)> {
        let from = incoming.remote_address();
        let connecting = incoming.accept().ok()?;
        let connection = match tokio::time::timeout(self.handshake_timeout, connecting).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(error)) => {
                tracing::debug!(%from, %error, "handshake failed");
                return None;
            }
            Err(_) => return None,
        };
        match tls::peer_identity(&connection) {
            Ok(peer) if self.peers.contains(&peer) => Some((connection, peer)),
            Ok(peer) => {
                tracing::warn!(%from, %peer, "refused: not a peer of this node");
                connection.close((Close::NotAPeer as u32).into(), b"not a peer of this node");
                None
            }
            Err(error) => {
                tracing::warn!(%from, %error, "refused: no usable identity");
                connection.close((Close::NotAPeer as u32).into(), b"no usable identity");
                None
            }
        }
    }
}
