//! Where released outputs go: to sessions, to callers that wait, to handlers, to observers.

use crate::telemetry::Metrics;
use bytes::Bytes;
use proto::ack::{AckRun, CustodyAck, Reason, RefRange};
use proto::custody::{IssueResult, OperatorResult};
use proto::event::Event;
use proto::frame::{Frame, RefuseCode};
use proto::id::{AgentId, ObligationId};
use proto::limits::{BATCH_COUNT_MAX, FRAME_LEN_MAX, FRAME_LEN_TARGET, ID_LEN_MAX, REASON_LEN_MAX};
use proto::step::{Output, SessionId, Ticket};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot, watch};

/// Events a slow observer may be behind before it is told that it lost some.
const EVENTS_BEHIND_MAX: usize = 4096;
/// Acks by id in one frame: three names and a reason each, at their longest, fit.
const ACKS_PER_FRAME_MAX: usize = FRAME_LEN_MAX / (4 * ID_LEN_MAX + REASON_LEN_MAX);
/// Best-effort obligations on their way to an external handler. Further ones are dropped.
const INFORMS_MAX: usize = 1024;
/// Ack ranges in one frame.
const RANGES_PER_FRAME_MAX: usize = 2048;

/// Something for one peer, on one session.
#[derive(Debug)]
pub(crate) enum ToPeer {
    Offers { first_ref: u64, items: Vec<Bytes> },
    AckRuns(Vec<AckRun>),
    Acks(Vec<CustodyAck>),
    Refuse { refs: Vec<RefRange>, code: RefuseCode, retry_after_ms: u64, text: Reason },
    BestEffort(Vec<Bytes>),
    Frame(Frame),
}

impl ToPeer {
    fn len(&self) -> usize {
        match self {
            Self::Offers { items, .. } | Self::BestEffort(items) => {
                items.iter().map(Bytes::len).sum()
            }
            _ => 64,
        }
    }

    /// The frames it takes, none over the size target unless one item is.
    pub(crate) fn into_frames(self) -> Vec<Frame> {
        match self {
            Self::Offers { mut first_ref, items } => chunks(items)
                .into_iter()
                .map(|items| {
                    let first = first_ref;
                    first_ref += items.len() as u64;
                    Frame::Offers { first_ref: first, items }
                })
                .collect(),
            Self::BestEffort(items) => {
                chunks(items).into_iter().map(|items| Frame::BestEffort { items }).collect()
            }
            Self::AckRuns(runs) => runs
                .into_iter()
                .flat_map(|run| {
                    let AckRun { status, acked_at, reason, refs } = run;
                    let parts: Vec<Frame> = refs
                        .chunks(RANGES_PER_FRAME_MAX)
                        .map(|refs| {
                            let (reason, refs) = (reason.clone(), refs.to_vec());
                            Frame::AckRuns(vec![AckRun { status, acked_at, reason, refs }])
                        })
                        .collect();
                    parts
                })
                .collect(),
            Self::Acks(acks) => {
                acks.chunks(ACKS_PER_FRAME_MAX).map(|acks| Frame::Acks(acks.to_vec())).collect()
            }
            Self::Refuse { refs, code, retry_after_ms, text } => refs
                .chunks(RANGES_PER_FRAME_MAX)
                .map(|refs| Frame::Refuse {
                    refs: refs.to_vec(),
                    code,
                    retry_after_ms,
                    text: text.clone(),
                })
                .collect(),
            Self::Frame(Frame::Answer { query_ref, acks, unknown }) => {
                let of = |acks: &[CustodyAck], unknown: &[ObligationId]| Frame::Answer {
                    query_ref,
                    acks: acks.to_vec(),
                    unknown: unknown.to_vec(),
                };
                let known = acks.chunks(ACKS_PER_FRAME_MAX).map(|acks| of(acks, &[]));
                known
                    .chain(unknown.chunks(ACKS_PER_FRAME_MAX).map(|unknown| of(&[], unknown)))
                    .collect()
            }
            Self::Frame(frame) => vec![frame],
        }
    }
}

fn chunks(items: Vec<Bytes>) -> Vec<Vec<Bytes>> {
    let mut chunks: Vec<Vec<Bytes>> = Vec::new();
    let mut len = usize::MAX;
    for item in items {
        len = len.saturating_add(item.len() + 4);
        match chunks.last_mut() {
            Some(chunk) if len <= FRAME_LEN_TARGET && chunk.len() < BATCH_COUNT_MAX => {
                chunk.push(item)
            }
            _ => {
                len = item.len() + 4;
                chunks.push(vec![item]);
            }
        }
    }
    chunks
}

/// The sending end of one session. Custody frames are bounded by the session's window; best-effort
/// ones are dropped when more than `bytes_max` wait.
#[derive(Clone, Debug)]
pub(crate) struct SessionQueue {
    pub(crate) peer: AgentId,
    tx: mpsc::UnboundedSender<ToPeer>,
    queued: Arc<AtomicUsize>,
    bytes_max: usize,
}

/// The receiving end of a [`SessionQueue`].
#[derive(Debug)]
pub(crate) struct SessionOutbox {
    rx: mpsc::UnboundedReceiver<ToPeer>,
    queued: Arc<AtomicUsize>,
}

impl SessionQueue {
    pub(crate) fn new(peer: AgentId, bytes_max: usize) -> (Self, SessionOutbox) {
        let (tx, rx) = mpsc::unbounded_channel();
        let queued = Arc::new(AtomicUsize::new(0));
        (Self { peer, tx, queued: queued.clone(), bytes_max }, SessionOutbox { rx, queued })
    }

    fn push(&self, item: ToPeer) -> bool {
        let len = item.len();
        let queued = self.queued.fetch_add(len, Ordering::Relaxed);
        if matches!(item, ToPeer::BestEffort(_)) && queued + len > self.bytes_max {
            self.queued.fetch_sub(len, Ordering::Relaxed);
            return false;
        }
        // A closed session drops it: its transfers are offered again on the next one.
        self.tx.send(item).is_ok()
    }
}

impl SessionOutbox {
    pub(crate) async fn next(&mut self) -> Option<ToPeer> {
        let item = self.rx.recv().await?;
        self.queued.fetch_sub(item.len(), Ordering::Relaxed);
        Some(item)
    }
}

/// An effect to ask of an external handler.
#[derive(Debug)]
pub(crate) enum HandlerJob {
    Decide { issuer: AgentId, obligation: Bytes, in_doubt: bool, deferred: bool },
    Inform { issuer: AgentId, obligation: Bytes, permit: OwnedSemaphorePermit },
}

#[derive(Debug)]
enum Reply {
    Issued(oneshot::Sender<Vec<IssueResult>>),
    Operated(oneshot::Sender<OperatorResult>),
}

#[derive(Debug, Default)]
struct Sessions {
    by_id: BTreeMap<SessionId, SessionQueue>,
    by_peer: HashMap<AgentId, Vec<SessionId>>,
}

/// Routes outputs. Shared between the commit thread, which dispatches, and the bindings, which
/// register.
#[derive(Debug)]
pub(crate) struct Router {
    sessions: Mutex<Sessions>,
    /// In order, so that callers who are let go hear it in the order they came.
    replies: Mutex<BTreeMap<Ticket, Reply>>,
    waiters: Mutex<HashMap<ObligationId, Vec<Arc<Notify>>>>,
    retry: Mutex<HashMap<AgentId, Arc<Notify>>>,
    next_ticket: AtomicU64,
    /// Durable answers that no event tells of: issues that took something, and decisions of a person.
    issues: AtomicU64,
    decisions: AtomicU64,
    next_session: AtomicU64,
    events: broadcast::Sender<Arc<Event>>,
    handlers: mpsc::UnboundedSender<HandlerJob>,
    informs: Arc<Semaphore>,
    /// Counts commits that changed governed state, told when they are durable.
    pub(crate) governed: watch::Sender<u64>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Router {
    pub(crate) fn new(metrics: Arc<Metrics>) -> (Self, mpsc::UnboundedReceiver<HandlerJob>) {
        // Bounded by `deciding_max` of each peer, in the core, and by `INFORMS_MAX`.
        let (handlers, jobs) = mpsc::unbounded_channel();
        let router = Self {
            sessions: Mutex::default(),
            replies: Mutex::default(),
            waiters: Mutex::default(),
            retry: Mutex::default(),
            next_ticket: AtomicU64::new(1),
            issues: AtomicU64::new(0),
            decisions: AtomicU64::new(0),
            next_session: AtomicU64::new(1),
            events: broadcast::channel(EVENTS_BEHIND_MAX).0,
            handlers,
            informs: Arc::new(Semaphore::new(INFORMS_MAX)),
            governed: watch::Sender::new(0),
            metrics,
        };
        (router, jobs)
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Arc<Event>> {
        self.events.subscribe()
    }

    pub(crate) fn session_id(&self) -> SessionId {
        SessionId(self.next_session.fetch_add(1, Ordering::Relaxed))
    }

    /// Adds a session; returns those of the same peer that are over `per_peer_max` now.
    pub(crate) fn add_session(
        &self,
        id: SessionId,
        queue: SessionQueue,
        per_peer_max: usize,
    ) -> Vec<SessionId> {
        let mut sessions = lock(&self.sessions);
        let peer = sessions.by_peer.entry(queue.peer.clone()).or_default();
        peer.push(id);
        let over = peer.len().saturating_sub(per_peer_max);
        let oldest = peer.get(..over).unwrap_or_default().to_vec();
        sessions.by_id.insert(id, queue);
        self.metrics.sessions.inc();
        oldest
    }

    pub(crate) fn remove_session(&self, id: SessionId) {
        let mut sessions = lock(&self.sessions);
        let Some(queue) = sessions.by_id.remove(&id) else { return };
        self.metrics.sessions.dec();
        if let Some(peer) = sessions.by_peer.get_mut(&queue.peer) {
            peer.retain(|other| *other != id);
        }
    }

    /// Sessions of a peer that are up.
    pub(crate) fn session_count(&self, peer: &AgentId) -> usize {
        lock(&self.sessions).by_peer.get(peer).map_or(0, Vec::len)
    }

    /// Bytes that wait to be sent to a peer.
    pub(crate) fn queued_bytes(&self, peer: &AgentId) -> usize {
        let sessions = lock(&self.sessions);
        let ids = sessions.by_peer.get(peer).into_iter().flatten();
        ids.filter_map(|id| sessions.by_id.get(id))
            .map(|queue| queue.queued.load(Ordering::Relaxed))
            .sum()
    }

    /// Rings when a retry to this peer is due.
    pub(crate) fn retry_bell(&self, peer: &AgentId) -> Arc<Notify> {
        lock(&self.retry).entry(peer.clone()).or_default().clone()
    }

    pub(crate) fn expect_issued(&self) -> (Ticket, oneshot::Receiver<Vec<IssueResult>>) {
        let (tx, rx) = oneshot::channel();
        (self.expect(Reply::Issued(tx)), rx)
    }

    pub(crate) fn expect_operated(&self) -> (Ticket, oneshot::Receiver<OperatorResult>) {
        let (tx, rx) = oneshot::channel();
        (self.expect(Reply::Operated(tx)), rx)
    }

    /// How many durable answers there were that no event tells of: issues, decisions of a person.
    pub(crate) fn untold(&self) -> (u64, u64) {
        (self.issues.load(Ordering::Relaxed), self.decisions.load(Ordering::Relaxed))
    }

    fn expect(&self, reply: Reply) -> Ticket {
        let ticket = Ticket(self.next_ticket.fetch_add(1, Ordering::Relaxed));
        lock(&self.replies).insert(ticket, reply);
        ticket
    }

    /// The driver is gone: whoever waits for an answer of it shall know.
    pub(crate) fn abandon(&self) {
        lock(&self.replies).clear();
    }

    pub(crate) fn forget(&self, ticket: Ticket) {
        lock(&self.replies).remove(&ticket);
    }

    /// Rings when the transfer of `id` ends.
    pub(crate) fn terminal_bell(&self, id: &ObligationId) -> Arc<Notify> {
        let bell = Arc::new(Notify::new());
        lock(&self.waiters).entry(id.clone()).or_default().push(bell.clone());
        bell
    }

    pub(crate) fn drop_bell(&self, id: &ObligationId, bell: &Arc<Notify>) {
        let mut waiters = lock(&self.waiters);
        if let Some(bells) = waiters.get_mut(id) {
            bells.retain(|other| !Arc::ptr_eq(other, bell));
            if bells.is_empty() {
                waiters.remove(id);
            }
        }
    }

    /// Sends outputs on their way. Their writes are durable: only [`proto::step::Step::commit`]
    /// gives outputs out.
    pub(crate) fn dispatch(&self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Offers { session, first_ref, items } => {
                    self.to_session(session, ToPeer::Offers { first_ref, items });
                }
                Output::AckRuns { session, runs } => {
                    self.to_session(session, ToPeer::AckRuns(runs));
                }
                Output::Refuse { session, refs, code, retry_after_ms, text } => {
                    self.to_session(session, ToPeer::Refuse { refs, code, retry_after_ms, text });
                }
                Output::Answer { session, query_ref, acks, unknown } => {
                    self.to_session(
                        session,
                        ToPeer::Frame(Frame::Answer { query_ref, acks, unknown }),
                    );
                }
                Output::ProbeReply { session, nonce, at } => {
                    self.to_session(session, ToPeer::Frame(Frame::ProbeReply { nonce, at }));
                }
                Output::Acks { peer, acks } => {
                    self.to_peer(&peer, ToPeer::Acks(acks));
                }
                Output::BestEffort { peer, items } => {
                    let count = items.len() as u64;
                    if self.to_peer(&peer, ToPeer::BestEffort(items)) {
                        self.metrics.best_effort_sent.inc_by(count);
                    } else {
                        self.metrics.best_effort_dropped.inc_by(count);
                    }
                }
                Output::RetryDue { peer } => {
                    if let Some(bell) = lock(&self.retry).get(&peer) {
                        bell.notify_one();
                    }
                }
                Output::Decide { issuer, obligation, in_doubt, deferred } => {
                    let job = HandlerJob::Decide { issuer, obligation, in_doubt, deferred };
                    let _ = self.handlers.send(job);
                }
                Output::Inform { issuer, obligation } => {
                    // Best effort: beyond the limit the handler is not told.
                    if let Ok(permit) = self.informs.clone().try_acquire_owned() {
                        let _ =
                            self.handlers.send(HandlerJob::Inform { issuer, obligation, permit });
                    } else {
                        self.metrics.best_effort_dropped.inc();
                    }
                }
                Output::Issued { ticket, results } => {
                    let taken = results
                        .iter()
                        .filter(|r| r.as_ref().is_ok_and(|i| i.custody && !i.existing))
                        .count();
                    self.metrics.issued.inc_by(taken as u64);
                    let any = results.iter().any(|r| r.as_ref().is_ok_and(|i| !i.existing));
                    self.issues.fetch_add(u64::from(any), Ordering::Relaxed);
                    if let Some(Reply::Issued(tx)) = lock(&self.replies).remove(&ticket) {
                        let _ = tx.send(results);
                    }
                }
                Output::Operated { ticket, result } => {
                    self.decisions.fetch_add(u64::from(result.is_ok()), Ordering::Relaxed);
                    if let Some(Reply::Operated(tx)) = lock(&self.replies).remove(&ticket) {
                        let _ = tx.send(result);
                    }
                }
                Output::Event(event) => self.event(event),
            }
        }
    }

    /// Tells observers what receivers attest.
    pub(crate) fn attested(&self, events: Vec<Event>) {
        if self.events.receiver_count() > 0 {
            for event in events {
                let _ = self.events.send(Arc::new(event));
            }
        }
    }

    fn event(&self, event: Event) {
        self.metrics.observe(&event);
        if let Event::Terminal { obligation_id, .. } = &event {
            let bells = lock(&self.waiters).remove(obligation_id);
            for bell in bells.into_iter().flatten() {
                bell.notify_one();
            }
        }
        if self.events.receiver_count() > 0 {
            let _ = self.events.send(Arc::new(event));
        }
    }

    fn to_session(&self, session: SessionId, item: ToPeer) -> bool {
        lock(&self.sessions).by_id.get(&session).is_some_and(|queue| queue.push(item))
    }

    fn to_peer(&self, peer: &AgentId, item: ToPeer) -> bool {
        let sessions = lock(&self.sessions);
        let newest = sessions.by_peer.get(peer).and_then(|ids| ids.last());
        newest.and_then(|id| sessions.by_id.get(id)).is_some_and(|queue| queue.push(item))
    }
}

/// The lock, also after a panic elsewhere: the maps hold no invariant a panic could break.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bd1_batches_are_cut_at_the_frame_target() {
        let items: Vec<Bytes> = (0..1000).map(|_| Bytes::from(vec![0u8; 300])).collect();
        let frames = ToPeer::Offers { first_ref: 5, items }.into_frames();
        let mut next = 5;
        for frame in &frames {
            let Frame::Offers { first_ref, items } = frame else { panic!("not offers") };
            assert_eq!(*first_ref, next);
            assert!(items.iter().map(Bytes::len).sum::<usize>() <= FRAME_LEN_TARGET);
            next += items.len() as u64;
        }
        assert_eq!(next, 1005);
        assert!(frames.len() > 1);
    }

    #[test]
    fn bd1_best_effort_is_dropped_beyond_the_queue_limit_and_custody_is_not() {
        let peer = AgentId::new("b").unwrap();
        let (queue, mut outbox) = SessionQueue::new(peer, 1_000);
        let item = || vec![Bytes::from(vec![0u8; 600])];
        assert!(queue.push(ToPeer::BestEffort(item())));
        assert!(!queue.push(ToPeer::BestEffort(item())));
        assert!(queue.push(ToPeer::Offers { first_ref: 0, items: item() }));
        assert!(outbox.rx.try_recv().is_ok());
    }
}
