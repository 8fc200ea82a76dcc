//! Calls into a running node.

use crate::a2a::A2a;
use crate::acap::{Acap, Caller};
use crate::binding::http::{HttpPeers, OfferReply};
use crate::bridge::Bridge;
use crate::calls::Incoming;
use crate::clock::Clock;
use crate::config::NodeConfig;
use crate::driver::{Call, Input, Shared};
use crate::moq::node::Moq;
use crate::router::Router;
use crate::store::Storage;
use crate::telemetry::Metrics;
use proto::ack::CustodyAck;
use proto::custodian::{Check, Draft, IssueError};
use proto::custody::{IssueResult, OperatorResult};
use proto::event::Event;
use proto::fanout::GroupId;
use proto::id::{AgentId, ObligationId};
use proto::obligation::Obligation;
use proto::polarity::Registry;
use proto::record::{Cell, Outcome, Resolution, Role, cell_key};
use proto::store::{Read, Table};
use proto::time::Time;
use proto::track::GroupName;
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, oneshot};

/// Why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The input queue is full, or the pending set is still being loaded.
    #[error("the node is busy; try again in {retry_after_ms} ms")]
    Busy {
        /// When to come back, in milliseconds.
        retry_after_ms: u64,
    },
    /// The node is stopping, or has stopped; nothing was done.
    #[error("the node is stopping")]
    Stopping,
    /// The node ended with the call under way. The commit that failed may be on the disk all the
    /// same, so only the next start knows: asking again under the same id does nothing twice.
    #[error(
        "the node ended before it could say whether this was done; ask again under the same id"
    )]
    Unanswered,
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
    pub(super) calls: mpsc::Sender<Call>,
    pub(super) router: Arc<Router>,
    pub(super) storage: Arc<dyn Storage>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) shared: Arc<Shared>,
    pub(super) config: Arc<NodeConfig>,
    pub(super) registry: Arc<Registry>,
    pub(super) http: Arc<HttpPeers>,
    pub(super) a2a: Option<Arc<A2a>>,
    pub(super) acap: Option<Arc<Acap>>,
    pub(super) consents: Option<Arc<Caller>>,
    pub(super) moq: Option<Arc<Moq>>,
    pub(super) http3: Arc<Mutex<Option<mpsc::Receiver<Incoming>>>>,
    /// Not to be kept by what it keeps.
    pub(super) bridge: Arc<OnceLock<Weak<Bridge>>>,
    pub(super) quic_address: SocketAddr,
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
    /// [`NodeError::Busy`] while loading or when the queue is full, [`NodeError::Stopping`], and
    /// [`NodeError::Unanswered`] when it is unknown whether they were taken.
    pub async fn issue(&self, drafts: Vec<Draft>) -> Result<Vec<IssueResult>, NodeError> {
        if !self.shared.recovered.load(Ordering::SeqCst) {
            return Err(self.busy());
        }
        let (reply, ticket) = oneshot::channel();
        self.try_call(Call::Issue { drafts, reply })?;
        let results = ticket.await.map_err(|_| NodeError::Unanswered)?;
        results.await.map_err(|_| NodeError::Unanswered)
    }

    /// Issues one decision to members of a group, as [`Self::issue`] does the obligation of each. Over MOQT
    /// their first offer goes once for all of them.
    ///
    /// # Errors
    /// As [`Self::issue`].
    pub async fn issue_to_group(
        &self,
        gid: &GroupId,
        group: &GroupName,
        drafts: Vec<Draft>,
    ) -> Result<Vec<IssueResult>, NodeError> {
        let Some(moq) = &self.moq else { return self.issue(drafts).await };
        // The same for all, or they could not have it from one object.
        let drafts = match self.same_sequence(&drafts)? {
            Some(sequence) => drafts
                .into_iter()
                .map(|draft| Draft { sequence: draft.sequence.or(Some(sequence)), ..draft })
                .collect(),
            None => drafts,
        };
        moq.groups().expect(gid.clone(), group.clone());
        let retried = drafts.clone();
        let results = self.issue(drafts).await;
        let made = |result: &IssueResult| {
            result.as_ref().is_ok_and(|issued| issued.custody && !issued.existing)
        };
        let whole = results.as_ref().is_ok_and(|results| results.iter().all(made));
        moq.groups().issued(gid, whole);
        let mut results = results?;
        // A newer decision to one of them came between, or it has the obligation, under another sequence.
        for (result, draft) in results.iter_mut().zip(retried) {
            if let Err(IssueError::Superseded { .. } | IssueError::IdTaken { .. }) = result {
                let again = self.issue(vec![Draft { sequence: None, ..draft }]).await?;
                if let Some(again) = again.into_iter().next() {
                    *result = again;
                }
            }
        }
        Ok(results)
    }

    /// A sequence that is newer than any of the keys that drafts govern, if they leave it to us and govern one.
    fn same_sequence(&self, drafts: &[Draft]) -> Result<Option<u64>, NodeError> {
        let mut latest = None;
        for draft in drafts.iter().filter(|draft| draft.sequence.is_none()) {
            let Draft { id, kind, target, payload, .. } = draft.clone();
            let (deadline_seconds, max_retries, created_at) = (1, 0, self.now());
            let obligation = Obligation {
                id,
                kind,
                target,
                payload,
                deadline_seconds,
                max_retries,
                created_at,
                sequence: None,
            };
            let Ok(judged) = self.registry.judge(&obligation) else { continue };
            if !judged.change.is_set() {
                continue;
            }
            let Obligation { kind, target, .. } = &obligation;
            let key = cell_key(Role::Principal, target, kind, &judged.key);
            let cell = self.storage.get(Table::Cell, &key).map_err(|_| NodeError::Stopping)?;
            let cell = cell.and_then(|bytes| Cell::decode(&bytes).ok());
            latest = latest.max(Some(cell.and_then(|cell| cell.sequence).unwrap_or_default()));
        }
        Ok(latest.map(|latest| latest.saturating_add(1)))
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

    /// What issuing `draft` would come to now. Nothing is kept, and nothing promised: the next
    /// issue may change it.
    ///
    /// # Errors
    /// [`NodeError`]; the inner result is the rule that refuses.
    pub async fn check(&self, draft: Draft) -> Result<Result<Check, IssueError>, NodeError> {
        if !self.shared.recovered.load(Ordering::SeqCst) {
            return Err(self.busy());
        }
        let (reply, answer) = oneshot::channel();
        self.try_call(Call::Check { draft: Box::new(draft), reply })?;
        answer.await.map_err(|_| NodeError::Stopping)
    }

    /// The polarity rules of this node.
    #[must_use]
    pub const fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// How many durable answers there were that no event tells of: issues, decisions of a person.
    pub(crate) fn untold(&self) -> (u64, u64) {
        self.router.untold()
    }

    /// Acknowledges an escalation.
    ///
    /// # Errors
    /// [`NodeError`]; the inner result says if there is none.
    pub async fn ack_escalation(&self, id: ObligationId) -> Result<OperatorResult, NodeError> {
        let (reply, ticket) = oneshot::channel();
        self.try_call(Call::AckEscalation { id, reply })?;
        let result = ticket.await.map_err(|_| NodeError::Unanswered)?;
        result.await.map_err(|_| NodeError::Unanswered)
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
        let result = ticket.await.map_err(|_| NodeError::Unanswered)?;
        result.await.map_err(|_| NodeError::Unanswered)
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

    /// Consent of callers, if it is asked for.
    pub(crate) const fn acap(&self) -> Option<&Arc<Acap>> {
        self.acap.as_ref()
    }

    /// Our consent to callees, if there are any in `[[consent]]`.
    #[must_use]
    pub const fn consents(&self) -> Option<&Arc<Caller>> {
        self.consents.as_ref()
    }

    /// The A2A server, if one is configured.
    pub(crate) const fn a2a(&self) -> Option<&Arc<A2a>> {
        self.a2a.as_ref()
    }

    /// The sessions of peers that are not of a connection.
    pub(crate) const fn http_peers(&self) -> &Arc<HttpPeers> {
        &self.http
    }

    /// The HTTP/3 connections of this node, for the one that serves them.
    pub(crate) fn http3(&self) -> Option<mpsc::Receiver<Incoming>> {
        self.http3.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The MCP servers behind this node, if there are any.
    pub(crate) fn bridge(&self) -> Option<Arc<Bridge>> {
        self.bridge.get()?.upgrade()
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
}
