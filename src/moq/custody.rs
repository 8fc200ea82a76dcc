//! Custody with one peer over tracks.
//!
//! Each side serves two tracks to the other: `to:` has its offers, `acks:` its acks. A session with the peer is
//! up when both sides serve both and have heard both, which hellos establish: until the first group of a track is
//! read, `moq-transport` may drop what is written to it. Nothing that MOQT says of a group discharges custody;
//! only a signed ack of the target does (AC-1).

use super::fanout::{Groups, Hop, Place};
use super::seal::{self, SealKey};
use super::sign::{Opened, Signatures};
use super::silence::{Silence, Step};
use super::track::{Outgoing, TrackError};
use super::watch::Watched;
use super::{Link, OBJECTS_EARLY_MAX};
use crate::clock::Clock;
use crate::driver::{Call, Input};
use crate::router::{Router, SessionOutbox, SessionQueue, ToPeer};
use bytes::Bytes;
use proto::ack::{CustodyAck, RefRange};
use proto::batch::{Audience, Content, Hash, Hello, Refusal, SEAL_KEY_LEN, Sealed, root};
use proto::id::{AgentId, Kind, ObligationId};
use proto::limits::{BATCH_COUNT_MAX, FRAME_LEN_TARGET};
use proto::obligation::Obligation;
use proto::step::SessionId;
use proto::track::{Epoch, GroupName, Namespace, Part};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

/// How long until a hello that had no answer is said again.
const HELLO_AGAIN: Duration = Duration::from_secs(1);
/// Batches of ours that a refusal may still speak of.
const BATCHES_SENT_MAX: usize = 512;
/// Offers of the peer's that may still be answered by reference; older ones are answered when they are offered
/// again.
const OFFERS_HEARD_MAX: usize = 65_536;

/// Obligations taken out of a peer's queue and not yet published; further ones stay in it.
const SENDING_MAX: usize = 8_192;
/// Acks that wait for a peer to read its track.
const ACKS_WAITING_MAX: usize = 65_536;
/// Refusals that wait for a peer to read its track.
const REFUSALS_WAITING_MAX: usize = 512;
/// How long a peer that asks with one hello after the other waits for the next answer.
const HELLO_ANSWERED: Duration = Duration::from_millis(500);

/// What sessions over MOQT share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) me: AgentId,
    pub(crate) signatures: Signatures,
    pub(crate) router: Arc<Router>,
    pub(crate) calls: mpsc::Sender<Call>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) groups: Groups,
    pub(crate) watched: Watched,
    pub(crate) seal_key: SealKey,
    /// Kinds that go by relays sealed, and not otherwise.
    pub(crate) sealed: BTreeSet<Kind>,
    /// Of each peer the groups of ours that it is a member of.
    pub(crate) members: HashMap<AgentId, BTreeSet<GroupName>>,
    /// Counts starts of this node, durably.
    pub(crate) boot: u64,
    /// Counts MOQT sessions since then.
    pub(crate) sessions: AtomicU64,
    pub(crate) in_flight_max: usize,
    /// How long offers, and then a hello, may be answered by nothing.
    pub(crate) answer: Duration,
    pub(crate) queue_bytes_max: usize,
    pub(crate) per_peer_max: usize,
}

impl Shared {
    /// What a track of many subscribers begins with.
    pub(crate) fn greeting(&self, audience: Audience, epoch: Epoch) -> Option<Bytes> {
        let in_flight_max = self.in_flight_max as u64;
        let groups = BTreeSet::new();
        let hello = Hello { in_flight_max, seal_key: None, answers: None, up: true, groups };
        let at = (epoch, Part::All);
        let sealed = self.signatures.seal(at, audience, Content::Hello, vec![hello.encode()]);
        sealed.ok().map(|(_, object)| object)
    }
}

/// Which of the two tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    To = 0,
    Acks = 1,
}

impl Way {
    pub(crate) const BOTH: [Self; 2] = [Self::To, Self::Acks];

    /// Whether the track carries such a batch.
    pub(crate) const fn carries(self, content: Content) -> bool {
        match self {
            Self::To => matches!(
                content,
                Content::Hello | Content::Offers | Content::BestEffort | Content::Refusals
            ),
            Self::Acks => matches!(content, Content::Hello | Content::Acks),
        }
    }
}

/// What happens to the session with one peer.
#[derive(Debug)]
pub(crate) enum Told {
    /// It subscribed to a track of ours.
    Serving(Way, u64, Outgoing),
    /// That subscription is over.
    Unserved(Way, u64),
    /// A good batch came.
    Batch(Way, Opened),
    /// A decision came that it issued to a group, and what we made of it as a member.
    Member(GroupName, Bytes),
    /// The tracks of a session of its are not heard any more.
    Lost(Namespace),
}

#[derive(Debug)]
struct Theirs {
    from: Namespace,
    heard: [bool; 2],
    /// Batches that came before the session was up.
    early: Vec<(Way, Opened)>,
    /// Groups of its that it says we are in.
    groups: BTreeSet<GroupName>,
}

#[derive(Debug)]
struct Up {
    id: SessionId,
    since: Instant,
    /// What payloads are sealed to.
    seal_key: Option<[u8; SEAL_KEY_LEN]>,
    outbox: SessionOutbox,
    next_ref: u64,
    heard: BTreeMap<u64, ObligationId>,
    /// Of batches that came: the first reference, root and count.
    batches: VecDeque<(u64, Hash, u64)>,
    /// Of batches that went: root and references.
    sent: VecDeque<(Hash, Vec<u64>)>,
    offers: VecDeque<(u64, Bytes)>,
    best_effort: VecDeque<Bytes>,
    acks: VecDeque<Bytes>,
    refusals: VecDeque<Bytes>,
    silence: Silence,
}

impl Up {
    fn is_full(&self) -> bool {
        self.offers.len() + self.best_effort.len() >= SENDING_MAX
    }

    fn waits(&self) -> bool {
        !(self.offers.is_empty()
            && self.best_effort.is_empty()
            && self.acks.is_empty()
            && self.refusals.is_empty())
    }
}

/// The session with one peer on one link.
pub(crate) struct Peer {
    shared: Arc<Shared>,
    link: Link,
    hop: Hop,
    peer: AgentId,
    /// Our own session and part, as our namespace has it.
    at: (Epoch, Part),
    serving: [Option<(u64, Outgoing)>; 2],
    theirs: Option<Theirs>,
    up: Option<Up>,
    /// When we last answered a hello that asks for it.
    answered: Option<Instant>,
    /// The session of the peer's that gave way to one by another path, and is not to come back.
    given_up: Option<Epoch>,
    /// Told when its tracks are to be asked for anew.
    deaf: Arc<Notify>,
}

impl Peer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        link: Link,
        hop: Hop,
        peer: AgentId,
        at: (Epoch, Part),
        deaf: Arc<Notify>,
    ) -> Self {
        Self {
            shared,
            link,
            hop,
            peer,
            at,
            serving: [None, None],
            theirs: None,
            up: None,
            answered: None,
            given_up: None,
            deaf,
        }
    }

    /// Runs until the sender is dropped.
    pub(crate) async fn run(mut self, mut told: mpsc::Receiver<Told>) {
        let mut again = tokio::time::interval(HELLO_AGAIN);
        again.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let waits = self.up.as_ref().is_some_and(Up::waits);
            // What a peer does not take stays in its queue, which has a limit of its own.
            let full = self.up.as_ref().is_some_and(Up::is_full);
            let link = self.link.clone();
            let step = self.up.as_ref().and_then(|up| up.silence.due(self.shared.answer));
            let done = tokio::select! {
                told = told.recv() => match told {
                    None => break,
                    Some(told) => self.told(told).await,
                },
                item = next(&mut self.up), if !full => {
                    self.queue(item).await;
                    Ok(())
                }
                () = link.room(), if waits => self.send().await,
                _ = again.tick(), if self.up.is_none() => self.hello().await,
                () = tokio::time::sleep_until(step.unwrap_or_else(Instant::now)), if step.is_some() => {
                    self.unanswered().await
                }
            };
            if let Err(error) = done {
                tracing::debug!(peer = %self.peer, %error, "a track of a MOQT session ended");
                self.serving = [None, None];
                self.down().await;
            }
        }
        self.down().await;
    }

    /// Nothing has come of the peer for as long as it may be.
    //= AB-1
    async fn unanswered(&mut self) -> Result<(), TrackError> {
        match self.up.as_mut().and_then(|up| up.silence.step()) {
            Some(Step::Ask) => self.hello_as(false).await,
            Some(Step::Leave) => {
                tracing::info!(peer = %self.peer, "nothing comes of it over MOQT: its tracks are asked for anew");
                self.theirs = None;
                self.down().await;
                self.deaf.notify_waiters();
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn told(&mut self, told: Told) -> Result<(), TrackError> {
        match told {
            Told::Serving(way, serial, outgoing) => {
                // Who subscribes anew has forgotten what was said.
                self.down().await;
                *self.serving_mut(way) = Some((serial, outgoing));
                self.hello().await?;
            }
            Told::Unserved(way, serial) => {
                if self.serving_mut(way).as_ref().is_some_and(|(of, _)| *of == serial) {
                    *self.serving_mut(way) = None;
                    self.down().await;
                }
            }
            Told::Lost(from) => {
                if self.theirs.as_ref().is_some_and(|theirs| theirs.from == from) {
                    self.theirs = None;
                    self.down().await;
                }
            }
            Told::Batch(way, batch) => {
                let of = &batch.statement.from;
                if self.theirs.as_ref().is_some_and(|theirs| theirs.from == *of)
                    && let Some(up) = &mut self.up
                {
                    up.silence = Silence::default();
                }
                if batch.statement.content == Content::Hello {
                    return self.greeted(way, batch).await;
                }
                let from = &batch.statement.from;
                let Some(theirs) = self.theirs.as_mut().filter(|theirs| theirs.from == *from)
                else {
                    return Ok(());
                };
                if self.up.is_none() {
                    if theirs.early.len() < OBJECTS_EARLY_MAX {
                        theirs.early.push((way, batch));
                    } else {
                        self.shared.router.metrics.moqt_dropped.inc();
                        tracing::debug!(peer = %self.peer, "a batch dropped: too many before the session is up");
                    }
                    return Ok(());
                }
                self.take(way, batch).await;
            }
            Told::Member(group, item) => {
                if self.theirs.as_ref().is_some_and(|theirs| theirs.groups.contains(&group)) {
                    self.offered(root(std::slice::from_ref(&item)), vec![item]).await;
                } else {
                    self.shared.router.metrics.moqt_dropped.inc();
                    tracing::debug!(peer = %self.peer, %group, "a decision dropped: we are no member");
                }
            }
        }
        Ok(())
    }

    fn serving_mut(&mut self, way: Way) -> &mut Option<(u64, Outgoing)> {
        let [to, acks] = &mut self.serving;
        match way {
            Way::To => to,
            Way::Acks => acks,
        }
    }

    /// A hello came. The session is up when theirs answers our session on both tracks. Anybody at a relay can
    /// announce in a peer's name; a session is the peer's by its own signed word alone.
    async fn greeted(&mut self, way: Way, batch: Opened) -> Result<(), TrackError> {
        let hello = batch.items.first().and_then(|item| Hello::decode(item).ok());
        let (Some(hello), from) = (hello, batch.statement.from) else { return Ok(()) };
        if self.given_up.is_some_and(|given_up| from.epoch <= given_up) {
            return Ok(());
        }
        if self.theirs.as_ref().is_none_or(|theirs| theirs.from.epoch < from.epoch) {
            self.down().await;
            let (from, early, groups) = (from.clone(), Vec::new(), BTreeSet::new());
            self.theirs = Some(Theirs { from, heard: [false; 2], early, groups });
        }
        let Some(theirs) = self.theirs.as_mut().filter(|theirs| theirs.from == from) else {
            return Ok(());
        };
        let before = theirs.heard == [true; 2];
        let [to, acks] = &mut theirs.heard;
        match way {
            Way::To => *to = true,
            Way::Acks => *acks = true,
        }
        theirs.groups.clone_from(&hello.groups);
        let now = theirs.heard == [true; 2];
        let answers = hello.answers == Some(self.at.0);
        let asks = !hello.up;
        let served = self.serving.iter().all(Option::is_some);
        if now && answers && served && self.up.is_none() {
            self.begin(&hello).await;
            return self.hello().await;
        }
        if now && !before {
            return self.hello().await;
        }
        let answered = self.answered.is_some_and(|at| at.elapsed() < HELLO_ANSWERED);
        if self.up.is_some() && asks && way == Way::To && !answered {
            self.answered = Some(Instant::now());
            return self.hello().await;
        }
        Ok(())
    }

    /// Says on both tracks what we take, and whose hellos we have heard.
    async fn hello(&mut self) -> Result<(), TrackError> {
        self.hello_as(self.up.is_some()).await
    }

    /// The same; one that says we are not up is answered.
    async fn hello_as(&mut self, up: bool) -> Result<(), TrackError> {
        let answers = self.theirs.as_ref().filter(|theirs| theirs.heard == [true; 2]);
        let groups = self.shared.members.get(&self.peer).cloned().unwrap_or_default();
        let hello = Hello {
            in_flight_max: self.shared.in_flight_max as u64,
            seal_key: Some(self.shared.seal_key.public()),
            answers: answers.map(|theirs| theirs.from.epoch),
            up,
            groups,
        };
        for way in Way::BOTH {
            if self.serving_mut(way).is_some() {
                self.publish(way, Content::Hello, vec![hello.encode()]).await?;
            }
        }
        Ok(())
    }

    async fn begin(&mut self, hello: &Hello) {
        let shared = self.shared.clone();
        let id = shared.router.session_id();
        let (queue, outbox) = SessionQueue::new(self.peer.clone(), shared.queue_bytes_max);
        for oldest in shared.router.add_session(id, queue, shared.per_peer_max) {
            shared.router.remove_session(oldest);
            let _ = shared.calls.send(Call::Input(Input::SessionDown { session: oldest })).await;
        }
        let window = usize::try_from(hello.in_flight_max).unwrap_or(usize::MAX);
        let window = window.clamp(1, shared.in_flight_max);
        let input = Input::SessionUp { session: id, peer: self.peer.clone(), window };
        let _ = shared.calls.send(Call::Input(input)).await;
        tracing::info!(peer = %self.peer, session = id.0, "up over MOQT");
        self.up = Some(Up {
            id,
            since: Instant::now(),
            seal_key: hello.seal_key,
            outbox,
            next_ref: 0,
            heard: BTreeMap::new(),
            batches: VecDeque::new(),
            sent: VecDeque::new(),
            offers: VecDeque::new(),
            best_effort: VecDeque::new(),
            acks: VecDeque::new(),
            refusals: VecDeque::new(),
            silence: Silence::default(),
        });
        let early = self.theirs.as_mut().map(|theirs| std::mem::take(&mut theirs.early));
        for (way, batch) in early.into_iter().flatten() {
            self.take(way, batch).await;
        }
    }

    async fn down(&mut self) {
        let Some(up) = self.up.take() else { return };
        self.shared.router.remove_session(up.id);
        let input = Input::SessionDown { session: up.id };
        let _ = self.shared.calls.send(Call::Input(input)).await;
        tracing::info!(peer = %self.peer, session = up.id.0, "down over MOQT");
    }

    /// Hands a batch of the peer's to the core.
    async fn take(&mut self, way: Way, mut batch: Opened) {
        let Some(up) = self.up.as_mut() else { return };
        if matches!(batch.statement.content, Content::Offers | Content::BestEffort) {
            for item in batch.items.iter_mut().filter(|item| Sealed::is(item)) {
                match self.shared.seal_key.open(&self.peer, &self.shared.me, item) {
                    Ok(opened) => *item = opened,
                    // The core refuses it as it is, by its place in the batch.
                    Err(error) => tracing::warn!(peer = %self.peer, %error, "an item stays sealed"),
                }
            }
        }
        let (session, peer) = (up.id, self.peer.clone());
        let input = match batch.statement.content {
            Content::Offers => return self.offered(batch.statement.root, batch.items).await,
            Content::BestEffort => Input::BestEffort { session, items: batch.items },
            Content::Acks => {
                debug_assert_eq!(way, Way::Acks);
                let acks = batch.items.iter().filter_map(|item| CustodyAck::decode(item).ok());
                Input::Acks { peer, acks: acks.collect() }
            }
            Content::Refusals => {
                for item in &batch.items {
                    let Ok(refusal) = Refusal::decode(item) else { continue };
                    let Some(input) = refused(up, session, &refusal) else { continue };
                    let _ = self.shared.calls.send(Call::Input(input)).await;
                }
                return;
            }
            Content::Hello
            | Content::GroupOffer
            | Content::Escalations
            | Content::Status
            | Content::Events
            | Content::Metrics
            | Content::Policy => return,
        };
        let _ = self.shared.calls.send(Call::Input(input)).await;
    }

    async fn offered(&mut self, root: Hash, items: Vec<Bytes>) {
        let Some(up) = self.up.as_mut() else { return };
        let first_ref = up.next_ref;
        let count = items.len() as u64;
        up.next_ref += count;
        for (reference, item) in (first_ref..).zip(&items) {
            // What cannot be read is refused by its place in the batch.
            if let Ok(obligation) = Obligation::decode(item) {
                up.heard.insert(reference, obligation.id);
            }
        }
        while up.heard.len() > OFFERS_HEARD_MAX {
            up.heard.pop_first();
        }
        up.batches.push_back((first_ref, root, count));
        if up.batches.len() > BATCHES_SENT_MAX {
            up.batches.pop_front();
        }
        let input = Input::Offers { session: up.id, first_ref, items };
        let _ = self.shared.calls.send(Call::Input(input)).await;
    }

    /// Puts what the core sends where it waits for room.
    async fn queue(&mut self, item: Option<ToPeer>) {
        let Some(up) = self.up.as_mut() else { return };
        match item {
            // The session gave way to a newer one, by another path. Said hello to, it would come back and end that.
            None => {
                self.up = None;
                self.given_up = self.theirs.take().map(|theirs| theirs.from.epoch);
                if matches!(self.hop, Hop::Peer(_)) {
                    self.link.connection().close(0u32.into(), b"replaced");
                }
            }
            Some(ToPeer::Offers { first_ref, items }) => {
                for (reference, item) in (first_ref..).zip(items) {
                    let item = match sealed(&self.shared, &self.hop, &self.peer, up, &item) {
                        Seal::No => item,
                        Seal::Done(sealed) => {
                            up.offers.push_back((reference, sealed));
                            continue;
                        }
                        Seal::Impossible => continue,
                    };
                    let place = Place::new(&self.hop, self.at.0);
                    if self.shared.groups.carries(&place, &self.peer, up.since, &item).await {
                        sent(up, root(std::slice::from_ref(&item)), vec![reference]);
                        up.silence.offered();
                    } else {
                        up.offers.push_back((reference, item));
                    }
                }
            }
            Some(ToPeer::BestEffort(items)) => {
                for item in items {
                    match sealed(&self.shared, &self.hop, &self.peer, up, &item) {
                        Seal::No => up.best_effort.push_back(item),
                        Seal::Done(sealed) => up.best_effort.push_back(sealed),
                        Seal::Impossible => {}
                    }
                }
            }
            Some(ToPeer::AckRuns(runs)) => {
                for run in runs {
                    for reference in run.refs.iter().flat_map(|range| range.iter()) {
                        let Some(obligation_id) = up.heard.remove(&reference) else { continue };
                        let ack = CustodyAck {
                            obligation_id,
                            target: self.shared.me.clone(),
                            status: run.status,
                            acked_at: run.acked_at,
                            reason: run.reason.clone(),
                        };
                        ack_waits(&mut up.acks, &ack);
                    }
                }
            }
            Some(ToPeer::Acks(acks)) => {
                acks.iter().for_each(|ack| ack_waits(&mut up.acks, ack));
            }
            Some(ToPeer::Refuse { refs, code, retry_after_ms, text }) => {
                for (first, root, count) in &up.batches {
                    let within = refs.iter().flat_map(|range| range.iter());
                    let within = within.filter(|of| (*first..first + count).contains(of));
                    let indexes = RefRange::collect(within.map(|of| of - first).collect());
                    // What is not said is found out by the next offer.
                    if !indexes.is_empty() && up.refusals.len() < REFUSALS_WAITING_MAX {
                        let (root, text) = (*root, text.clone());
                        let refusal = Refusal { root, indexes, code, retry_after_ms, text };
                        up.refusals.push_back(refusal.encode());
                    }
                }
            }
            // Answers to queries and probes, which nobody sends over MOQT.
            Some(ToPeer::Frame(_)) => {}
        }
    }

    /// Publishes one batch of what waits, the most urgent first.
    async fn send(&mut self) -> Result<(), TrackError> {
        let Some(up) = self.up.as_mut() else { return Ok(()) };
        let (way, content, items) = if !up.acks.is_empty() {
            (Way::Acks, Content::Acks, batch(&mut up.acks, Bytes::len))
        } else if !up.refusals.is_empty() {
            (Way::To, Content::Refusals, batch(&mut up.refusals, Bytes::len))
        } else if !up.offers.is_empty() {
            let of = batch(&mut up.offers, |(_, item)| item.len());
            let (refs, items): (Vec<_>, Vec<_>) = of.into_iter().unzip();
            sent(up, root(&items), refs);
            up.silence.offered();
            (Way::To, Content::Offers, items)
        } else {
            (Way::To, Content::BestEffort, batch(&mut up.best_effort, Bytes::len))
        };
        self.publish(way, content, items).await
    }

    async fn publish(
        &mut self,
        way: Way,
        content: Content,
        items: Vec<Bytes>,
    ) -> Result<(), TrackError> {
        let Ok(audience) = Audience::agent(self.peer.clone()) else { return Ok(()) };
        let object = match self.shared.signatures.seal(self.at, audience, content, items) {
            Ok((_, object)) => object,
            Err(error) => {
                tracing::error!(peer = %self.peer, %error, "a batch could not be signed");
                return Ok(());
            }
        };
        let Some((_, outgoing)) = self.serving_mut(way) else { return Ok(()) };
        let len = object.len();
        outgoing.push(content.priority(), object).await?;
        self.shared.router.metrics.published(content.as_str(), len);
        Ok(())
    }
}

async fn next(up: &mut Option<Up>) -> Option<ToPeer> {
    match up {
        Some(up) => up.outbox.next().await,
        None => std::future::pending().await,
    }
}

/// What became of an item that is to be sealed.
enum Seal {
    /// It need not be.
    No,
    Done(Bytes),
    /// It goes nowhere, and is escalated in time.
    Impossible,
}

/// Seals an obligation to the peer, where relays are not to read it.
fn sealed(shared: &Shared, hop: &Hop, peer: &AgentId, up: &Up, item: &Bytes) -> Seal {
    if shared.sealed.is_empty() || matches!(hop, Hop::Peer(_)) {
        return Seal::No; // TLS ends at the peer itself
    }
    let Ok(obligation) = Obligation::decode(item) else { return Seal::Impossible };
    if !shared.sealed.contains(&obligation.kind) {
        return Seal::No;
    }
    let sealed = up.seal_key.and_then(|key| seal::seal(key, &shared.me, peer, item));
    if sealed.is_none() {
        let (id, kind) = (&obligation.id, &obligation.kind);
        tracing::warn!(%peer, %id, %kind, "not sent: it must be sealed, and the peer has no key");
    }
    sealed.map_or(Seal::Impossible, Seal::Done)
}

/// An ack waits for its track. One too many is dropped: the obligation will be offered again, and acked.
fn ack_waits(acks: &mut VecDeque<Bytes>, ack: &CustodyAck) {
    if acks.len() < ACKS_WAITING_MAX {
        acks.push_back(ack.encode());
    }
}

/// Remembers what a batch of ours was of.
fn sent(up: &mut Up, root: Hash, refs: Vec<u64>) {
    up.sent.push_back((root, refs));
    if up.sent.len() > BATCHES_SENT_MAX {
        up.sent.pop_front();
    }
}

fn refused(up: &Up, session: SessionId, refusal: &Refusal) -> Option<Input> {
    let (_, refs) = up.sent.iter().rev().find(|(root, _)| *root == refusal.root)?;
    let indexes = refusal.indexes.iter().flat_map(|range| range.iter());
    let refs = indexes.filter_map(|index| refs.get(usize::try_from(index).ok()?).copied());
    let refs = RefRange::collect(refs.collect());
    let (code, retry_after_ms) = (refusal.code, refusal.retry_after_ms);
    Some(Input::Refused { session, refs, code, retry_after_ms })
}

/// The first of what waits that go in one object.
fn batch<T>(from: &mut VecDeque<T>, len: impl Fn(&T) -> usize) -> Vec<T> {
    let (mut taken, mut bytes) = (0, 0);
    for item in from.iter() {
        bytes += len(item) + 4;
        if taken > 0 && (bytes > FRAME_LEN_TARGET || taken >= BATCH_COUNT_MAX) {
            break;
        }
        taken += 1;
    }
    from.drain(..taken).collect()
}
