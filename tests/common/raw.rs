//! A peer made of bare quinn and frames, with a real certificate, that does as the test says.

use super::{PATIENCE, World, id};
use abhyasa::config::QuicConfig;
use abhyasa::init::ca::valid_days;
use abhyasa::tls::{self, ALPN, SERVER_NAME, TlsIdentity};
use bytes::Bytes;
use proto::ack::{AckRun, AckStatus, Reason, RefRange};
use proto::frame::{Frame, HelloLimits, RefuseCode, VERSION};
use proto::id::AgentId;
use proto::obligation::Obligation;
use proto::time::Time;
use quinn::{Connection, ConnectionError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub const FRAME_MAX: usize = 1 << 20;

/// One connection to a node.
pub struct Raw {
    pub connection: Connection,
    endpoint: quinn::Endpoint,
}

pub fn identity(world: &World, name: &AgentId) -> TlsIdentity {
    let issued = world.ca.issue(name, valid_days(1)).unwrap();
    TlsIdentity::from_der(vec![issued.cert], issued.key, vec![world.ca.cert().clone()]).unwrap()
}

pub fn hello(name: &AgentId) -> Frame {
    let limits =
        HelloLimits { frame_len_max: 256 * 1024, in_flight_max: 8192, datagram_len_max: 1150 };
    Frame::Hello { version: VERSION, agent: name.clone(), limits, features: Vec::new() }
}

impl Raw {
    /// The handshake only.
    pub async fn dial(
        world: &World,
        name: &str,
        alpn: &[u8],
        node: &str,
        at: SocketAddr,
    ) -> Result<Self, ConnectionError> {
        let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let transport = Arc::new(tls::transport(&QuicConfig::default()).unwrap());
        let config = identity(world, &id(name)).client(&[alpn], &id(node), transport).unwrap();
        endpoint.set_default_client_config(config);
        let connection = endpoint.connect(at, SERVER_NAME).unwrap().await?;
        Ok(Self { connection, endpoint })
    }

    /// A session: handshake, and both hellos.
    pub async fn session(world: &World, name: &str, node: &str, at: SocketAddr) -> Self {
        let raw = Self::dial(world, name, ALPN, node, at).await.unwrap();
        raw.send(&hello(&id(name))).await;
        let Frame::Hello { agent, .. } = raw.next().await else { panic!("no hello") };
        assert_eq!(agent, id(node));
        raw
    }

    pub async fn send(&self, frame: &Frame) {
        self.send_bytes(&frame.encode()).await;
    }

    pub async fn send_bytes(&self, bytes: &[u8]) {
        let mut stream = self.connection.open_uni().await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.finish().unwrap();
    }

    /// The next frame the node sends.
    pub async fn next(&self) -> Frame {
        tokio::time::timeout(PATIENCE, self.read()).await.expect("a frame").expect("a connection")
    }

    /// The next frame within a time, if there is one.
    pub async fn next_within(&self, time: Duration) -> Option<Frame> {
        tokio::time::timeout(time, self.read()).await.ok()?.ok()
    }

    async fn read(&self) -> Result<Frame, ConnectionError> {
        let mut stream = self.connection.accept_uni().await?;
        let bytes = stream.read_to_end(FRAME_MAX).await.unwrap();
        Ok(Frame::decode(bytes.into()).unwrap())
    }

    pub async fn offer(&self, first_ref: u64, obligations: &[Obligation]) {
        let items = obligations.iter().map(Obligation::encode).collect();
        self.send(&Frame::Offers { first_ref, items }).await;
    }

    /// The ack of one offer.
    pub async fn acked(&self, reference: u64) -> (AckStatus, Option<Reason>) {
        match self.next().await {
            Frame::AckRuns(runs) => {
                let run = runs
                    .iter()
                    .find(|run| run.refs.iter().any(|range| range.iter().any(|r| r == reference)));
                let run = run.unwrap_or_else(|| panic!("no ack of {reference} in {runs:?}"));
                (run.status, run.reason.clone())
            }
            other => panic!("{other:?} is no ack"),
        }
    }

    /// The refusal of one offer.
    pub async fn refused(&self, reference: u64) -> (RefuseCode, u64) {
        match self.next().await {
            Frame::Refuse { refs, code, retry_after_ms, .. } => {
                assert_eq!(refs, [one(reference)]);
                (code, retry_after_ms)
            }
            other => panic!("{other:?} is no refusal"),
        }
    }

    /// The next offers the node makes, and the ref of the first.
    pub async fn offered(&self) -> (u64, Vec<Obligation>) {
        match self.next().await {
            Frame::Offers { first_ref, items } => {
                (first_ref, items.iter().map(|item| Obligation::decode(item).unwrap()).collect())
            }
            other => panic!("{other:?} is no offer"),
        }
    }

    pub async fn ack(&self, reference: u64, status: AckStatus) {
        let run =
            AckRun { status, acked_at: Time::from_ms(1), reason: None, refs: vec![one(reference)] };
        self.send(&Frame::AckRuns(vec![run])).await;
    }

    /// Waits until the node closes the connection, and tells its code.
    pub async fn closed(&self) -> u64 {
        match tokio::time::timeout(PATIENCE, self.connection.closed()).await.expect("a close") {
            ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
            other => panic!("closed by {other}"),
        }
    }

    /// Sends a probe and waits for its reply: all that was sent before on any one stream may still
    /// be under way, but the node is there.
    pub async fn probe(&self, nonce: u64) {
        self.send(&Frame::Probe { nonce, id: None }).await;
        loop {
            if let Frame::ProbeReply { nonce: found, .. } = self.next().await {
                assert_eq!(found, nonce);
                return;
            }
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.endpoint.close(0u32.into(), b"");
    }
}

pub const fn one(reference: u64) -> RefRange {
    RefRange { first: reference, count: 1 }
}

pub fn best_effort(obligations: &[Obligation]) -> Frame {
    Frame::BestEffort { items: obligations.iter().map(Obligation::encode).collect::<Vec<Bytes>>() }
}
