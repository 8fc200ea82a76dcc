//! The papers' HTTP binding, for peers that speak JSON over HTTP.
//!
//! Such a peer has one standing session without a connection. What it POSTs here enters the core as
//! offers of that session; its acks come back on the response or, later, to its custody-ack
//! endpoint. With an obligation endpoint configured, our own offers are POSTed to it.

use super::a2a::{Agent, Said};
use crate::config::PeerConfig;
use crate::driver::{Call, Input};
use crate::handler::bounded_body;
use crate::router::{Router, SessionQueue, ToPeer};
use bytes::Bytes;
use proto::ack::{AckStatus, CustodyAck, Reason};
use proto::frame::RefuseCode;
use proto::id::{AgentId, ObligationId};
use proto::obligation::Obligation;
use proto::step::SessionId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OnceCell, Semaphore, broadcast, mpsc, oneshot};

/// How long a POST waits for its ack before it is answered 202.
const ACK_WAIT: Duration = Duration::from_secs(2);
/// POSTs under way to one peer, and so its session's window.
const POSTS_MAX: usize = 64;
const POST_TIMEOUT: Duration = Duration::from_secs(10);
/// Offers of one peer that wait for a late ack; the oldest are forgotten, and asked for again by
/// the peer's next POST.
const LATE_MAX: usize = 4096;
/// Later acks that one listener may be behind; it misses older ones, and asks again in time.
const LATER_ACKS_MAX: usize = 256;

/// The answer to an offer over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub enum OfferReply {
    /// 200.
    Ack(CustodyAck),
    /// 202: the ack goes to the custody-ack endpoint, or comes with the next POST.
    Later,
    /// Refused before anything was written.
    Refused {
        /// Why.
        code: RefuseCode,
        /// When to come back, in milliseconds.
        retry_after_ms: u64,
        /// For people.
        text: Reason,
    },
}

/// The standing session of one HTTP peer.
#[derive(Debug)]
pub(crate) struct HttpPeer {
    me: AgentId,
    session: SessionId,
    calls: mpsc::Sender<Call>,
    state: Mutex<State>,
    later: broadcast::Sender<CustodyAck>,
}

#[derive(Debug, Default)]
struct State {
    next_ref: u64,
    waiting: std::collections::BTreeMap<u64, (ObligationId, Option<oneshot::Sender<OfferReply>>)>,
}

impl HttpPeer {
    /// Registers the session and starts the task that serves it.
    pub(crate) async fn start(
        me: AgentId,
        config: &PeerConfig,
        router: &Arc<Router>,
        calls: mpsc::Sender<Call>,
        queue_bytes_max: usize,
    ) -> Result<Arc<Self>, reqwest::Error> {
        let client = reqwest::Client::builder()
            .timeout(POST_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        let token =
            config.http_token_file.as_deref().and_then(|file| crate::config::read_token(file).ok());
        let (later, _) = broadcast::channel(LATER_ACKS_MAX);
        let peer = Arc::new(Self {
            me,
            session: router.session_id(),
            calls,
            state: Mutex::default(),
            later,
        });
        let (queue, mut outbox) = SessionQueue::new(config.id.clone(), queue_bytes_max);
        router.add_session(peer.session, queue, usize::MAX);
        let agent = config.agent_card.as_ref().map(|card| Arc::new(Agent::new(card.url().clone())));
        let window =
            if config.obligation_endpoint.is_some() || agent.is_some() { POSTS_MAX } else { 0 };
        let up = Input::SessionUp { session: peer.session, peer: config.id.clone(), window };
        let _ = peer.calls.send(Call::Input(up)).await;
        let poster = Poster {
            client,
            token,
            config: config.clone(),
            agent,
            permits: Arc::new(Semaphore::new(POSTS_MAX)),
            acks: Arc::new(Semaphore::new(POSTS_MAX)),
        };
        let served = peer.clone();
        tokio::spawn(async move {
            while let Some(item) = outbox.next().await {
                served.serve(item, &poster).await;
            }
        });
        Ok(peer)
    }

    /// Offers one obligation to the core and waits a while for the answer.
    pub(crate) async fn offer(&self, obligation: &Obligation) -> Option<OfferReply> {
        let answer = self.begin(obligation).await?;
        match tokio::time::timeout(ACK_WAIT, answer).await {
            Ok(Ok(reply)) => Some(reply),
            Ok(Err(_)) => None,
            Err(_) => Some(OfferReply::Later),
        }
    }

    /// Offers one obligation to the core. Who keeps the receiver gets the answer whenever it comes;
    /// once it is dropped a late one goes to the peer's custody-ack endpoint.
    pub(crate) async fn begin(
        &self,
        obligation: &Obligation,
    ) -> Option<oneshot::Receiver<OfferReply>> {
        let (tx, rx) = oneshot::channel();
        let reference = {
            let mut state = self.state();
            let reference = state.next_ref;
            state.next_ref += 1;
            state.waiting.insert(reference, (obligation.id.clone(), Some(tx)));
            if state.waiting.len() > LATE_MAX {
                state.waiting.pop_first();
            }
            reference
        };
        let items = vec![obligation.encode()];
        let input = Input::Offers { session: self.session, first_ref: reference, items };
        self.calls.send(Call::Input(input)).await.ok()?;
        Some(rx)
    }

    /// Acks that come later than the answer to an offer. A slow reader misses the oldest.
    pub(crate) fn later_acks(&self) -> broadcast::Receiver<CustodyAck> {
        self.later.subscribe()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self, item: ToPeer, poster: &Poster) {
        match item {
            ToPeer::AckRuns(runs) => {
                for run in runs {
                    for reference in run.refs.iter().flat_map(|range| range.iter()) {
                        let Some((id, tx)) = self.state().waiting.remove(&reference) else {
                            continue;
                        };
                        let ack = CustodyAck {
                            obligation_id: id,
                            target: self.me.clone(),
                            status: run.status,
                            acked_at: run.acked_at,
                            reason: run.reason.clone(),
                        };
                        if let Some(Err(OfferReply::Ack(ack))) =
                            tx.map(|tx| tx.send(OfferReply::Ack(ack)))
                        {
                            poster.ack(vec![ack]); // the POST was answered 202 meanwhile
                        }
                    }
                }
            }
            ToPeer::Refuse { refs, code, retry_after_ms, text } => {
                for reference in refs.iter().flat_map(|range| range.iter()) {
                    if let Some((_, Some(tx))) = self.state().waiting.remove(&reference) {
                        let _ = tx.send(OfferReply::Refused {
                            code,
                            retry_after_ms,
                            text: text.clone(),
                        });
                    }
                }
            }
            ToPeer::Acks(acks) => {
                for ack in &acks {
                    let _ = self.later.send(ack.clone()); // nobody need listen
                }
                poster.ack(acks);
            }
            ToPeer::Offers { first_ref, items } => {
                for (reference, item) in (first_ref..).zip(items) {
                    let Ok(permit) = poster.permits.clone().acquire_owned().await else { return };
                    let (poster, calls, session) =
                        (poster.clone(), self.calls.clone(), self.session);
                    tokio::spawn(async move {
                        poster.offer(&calls, session, reference, &item).await;
                        drop(permit);
                    });
                }
            }
            ToPeer::BestEffort(items) => {
                for item in items {
                    poster.best_effort(item);
                }
            }
            ToPeer::Frame(_) => {}
        }
    }
}

#[derive(Clone, Debug)]
struct Poster {
    client: reqwest::Client,
    token: Option<String>,
    config: PeerConfig,
    /// A peer that is found by its card.
    agent: Option<Arc<Agent>>,
    permits: Arc<Semaphore>,
    acks: Arc<Semaphore>,
}

impl Poster {
    fn post(&self, url: &reqwest::Url) -> reqwest::RequestBuilder {
        self.authorized(self.client.post(url.clone()))
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// One try each, in the background and no more than [`POSTS_MAX`] at once: the peer's next POST
    /// finds the same answer in our ledger.
    fn ack(&self, acks: Vec<CustodyAck>) {
        let Some(url) = &self.config.custody_ack_endpoint else { return };
        for ack in acks {
            let Ok(permit) = self.acks.clone().try_acquire_owned() else {
                tracing::debug!(peer = %self.config.id, "custody ack left for the next POST: {POSTS_MAX} are under way");
                continue;
            };
            let request = self.post(url.url()).json(&ack);
            let peer = self.config.id.clone();
            tokio::spawn(async move {
                let _permit = permit;
                if let Err(error) = request.send().await {
                    tracing::debug!(%peer, %error, "custody ack not delivered");
                }
            });
        }
    }

    /// One try, dropped while [`POSTS_MAX`] are under way.
    fn best_effort(&self, item: Bytes) {
        let Ok(obligation) = Obligation::decode(&item) else { return };
        let Ok(permit) = self.permits.clone().try_acquire_owned() else { return };
        if let Some(agent) = self.agent.clone() {
            let poster = self.clone();
            tokio::spawn(async move {
                let _permit = permit;
                agent
                    .offer(&poster.client, |request| poster.authorized(request), &obligation)
                    .await;
            });
            return;
        }
        let Some(url) = &self.config.obligation_endpoint else { return };
        let request = self.post(url.url()).json(&obligation);
        tokio::spawn(async move {
            let _permit = permit;
            let _ = request.send().await;
        });
    }

    /// POSTs one offer. No usable answer is no answer: the custodian's retry comes.
    async fn offer(
        &self,
        calls: &mpsc::Sender<Call>,
        session: SessionId,
        reference: u64,
        item: &Bytes,
    ) {
        let Ok(obligation) = Obligation::decode(item) else { return };
        if let Some(agent) = &self.agent {
            let said =
                agent.offer(&self.client, |request| self.authorized(request), &obligation).await;
            if let Some(input) = heard(said, session, reference, &obligation) {
                let _ = calls.send(Call::Input(input)).await;
            }
            return;
        }
        let Some(url) = &self.config.obligation_endpoint else { return };
        let Ok(response) = self.post(url.url()).json(&obligation).send().await else { return };
        let refs = vec![proto::ack::RefRange { first: reference, count: 1 }];
        let refused = |code, retry_after_ms| Input::Refused {
            session,
            refs: refs.clone(),
            code,
            retry_after_ms,
        };
        let input = match response.status().as_u16() {
            200 => {
                let ack = bounded_body(response)
                    .await
                    .and_then(|body| serde_json::from_slice::<CustodyAck>(&body).ok());
                let Some(ack) = ack.filter(|ack| {
                    ack.obligation_id == obligation.id && ack.target == obligation.target
                }) else {
                    tracing::debug!(peer = %self.config.id, "the answer is no custody ack of this obligation");
                    return;
                };
                let run = proto::ack::AckRun {
                    status: ack.status,
                    acked_at: ack.acked_at,
                    reason: ack.reason,
                    refs,
                };
                Input::AckRuns { session, runs: vec![run] }
            }
            202 => {
                let run = proto::ack::AckRun {
                    status: AckStatus::Deferred,
                    acked_at: obligation.created_at,
                    reason: None,
                    refs,
                };
                Input::AckRuns { session, runs: vec![run] }
            }
            401 | 403 => refused(RefuseCode::Unauthorized, 0),
            404 | 405 | 422 | 501 => refused(RefuseCode::Unsupported, 0),
            429 | 503 => refused(RefuseCode::Overloaded, 1_000),
            _ => return,
        };
        let _ = calls.send(Call::Input(input)).await;
    }
}

/// What the core hears of an offer inside of an A2A message.
fn heard(said: Said, session: SessionId, reference: u64, obligation: &Obligation) -> Option<Input> {
    let refs = vec![proto::ack::RefRange { first: reference, count: 1 }];
    let run = |status, acked_at, reason| {
        let run = proto::ack::AckRun { status, acked_at, reason, refs: refs.clone() };
        Some(Input::AckRuns { session, runs: vec![run] })
    };
    match said {
        Said::Ack(ack) => run(ack.status, ack.acked_at, ack.reason),
        Said::Deferred => run(AckStatus::Deferred, obligation.created_at, None),
        Said::Refused(code, retry_after_ms) => {
            Some(Input::Refused { session, refs, code, retry_after_ms })
        }
        Said::Nothing => None,
    }
}

/// The standing sessions of peers. Those of the HTTP binding begin with the node; another when its peer
/// first gives us an obligation in a call of its own.
#[derive(Debug)]
pub(crate) struct HttpPeers {
    me: AgentId,
    router: Arc<Router>,
    calls: mpsc::Sender<Call>,
    queue_bytes_max: usize,
    begun: HashMap<AgentId, Arc<HttpPeer>>,
    others: HashMap<AgentId, (PeerConfig, OnceCell<Arc<HttpPeer>>)>,
}

impl HttpPeers {
    pub(crate) fn new(
        me: AgentId,
        router: Arc<Router>,
        calls: mpsc::Sender<Call>,
        queue_bytes_max: usize,
    ) -> Self {
        let (begun, others) = (HashMap::new(), HashMap::new());
        Self { me, router, calls, queue_bytes_max, begun, others }
    }

    async fn start(&self, peer: &PeerConfig) -> Result<Arc<HttpPeer>, reqwest::Error> {
        let (me, calls) = (self.me.clone(), self.calls.clone());
        HttpPeer::start(me, peer, &self.router, calls, self.queue_bytes_max).await
    }

    /// Begins the session of a peer of the HTTP binding.
    pub(crate) async fn begin(&mut self, peer: &PeerConfig) -> Result<(), reqwest::Error> {
        let begun = self.start(peer).await?;
        self.begun.insert(peer.id.clone(), begun);
        Ok(())
    }

    /// One that may need a session later.
    pub(crate) fn expect(&mut self, peer: &PeerConfig) {
        self.others.insert(peer.id.clone(), (peer.clone(), OnceCell::new()));
    }

    /// The session of a peer of the HTTP binding.
    pub(crate) fn get(&self, peer: &AgentId) -> Option<&Arc<HttpPeer>> {
        self.begun.get(peer)
    }

    /// The session of any peer that may have one, begun if it is not.
    pub(crate) async fn of(&self, peer: &AgentId) -> Option<&Arc<HttpPeer>> {
        if let Some(begun) = self.begun.get(peer) {
            return Some(begun);
        }
        let (config, session) = self.others.get(peer)?;
        match session.get_or_try_init(|| self.start(config)).await {
            Ok(begun) => Some(begun),
            Err(error) => {
                tracing::error!(%peer, %error, "no session for its obligations");
                None
            }
        }
    }
}
