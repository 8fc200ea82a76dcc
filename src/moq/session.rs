//! A MOQT session with a peer or a relay: what we announce there, whom we hear of, and who hears us.

use super::candidates::{Candidates, Turn};
use super::custody::{Peer, Shared, Told, Way};
use super::fanout::{Groups, Hop, Place};
use super::link::{Announced, Link, LinkEnd, LinkError, Requests};
use super::track::{Next, Outgoing};
use super::unproven::Proofs;
use super::{PREFIXES_MAX, mcp, namespace, watch};
use crate::a2a::moqt::{Front, Inboxes, is_inbox};
use crate::bridge::Bridge;
use futures_util::future::BoxFuture;
use moq_transport::coding::TrackNamespace;
use moq_transport::message::RequestErrorCode;
use moq_transport::serve::ServeError;
use moq_transport::session::{NamespaceEvent, Subscribed};
use proto::batch::{Audience, Content};
use proto::id::AgentId;
use proto::track::{Epoch, GroupName, Namespace, PREFIX, Part, Track, part_of};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What waits for the session with one peer.
const TOLD_MAX: usize = 256;
/// What is told of announcements and listeners and not yet dealt with.
const HEARD_WAITING_MAX: usize = 64;
/// Tries to announce ourselves in a session that may be for something else than custody.
const ANNOUNCES_MAX: u32 = 3;
/// How long until the second; each further one waits twice as long.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(2);

/// Whom a session is with.
#[derive(Clone, Debug)]
pub(crate) struct With {
    pub(crate) hop: Hop,
    /// The peers met there, each with the groups it may address us by.
    pub(crate) peers: BTreeMap<AgentId, BTreeSet<GroupName>>,
    /// Which share of our peers that is.
    pub(crate) part: (u16, u16),
    /// Groups of ours whose members are met there.
    pub(crate) groups: BTreeSet<GroupName>,
    /// Whether who is there may watch this node.
    pub(crate) watched: bool,
    /// Whether it came to us, and may want something else than custody.
    pub(crate) guest: bool,
}

/// What peers find in a session beside custody.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fronts {
    pub(crate) mcp: Option<Arc<Bridge>>,
    pub(crate) a2a: Option<Front>,
}

pub(super) struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) link: Link,
    pub(super) with: With,
    pub(super) epoch: Epoch,
    pub(super) peers: HashMap<AgentId, Actor>,
    watchers: Arc<Semaphore>,
    agent: Option<Front>,
    /// Whether the peer has announced what it has custody of, and so wants ours.
    custody: AtomicBool,
    pub(super) proofs: Proofs,
    /// The tracks that were asked for and may be, by their names.
    tracks: Mutex<HashMap<Vec<u8>, Next>>,
    pub(super) heard: Mutex<Heard>,
}

/// The custody of a peer.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) tell: mpsc::Sender<Told>,
    /// It says so when its tracks are to be asked for anew.
    pub(super) deaf: Arc<Notify>,
}

/// When something came in a session.
#[derive(Debug)]
pub(super) struct Heard {
    /// Of anybody.
    pub(super) last: Instant,
    /// Peers that were up and of which nothing came any more, since they were not.
    pub(super) lost: HashMap<AgentId, Instant>,
}

/// What happened at a relay.
enum News {
    /// A namespace is announced, or not any more.
    Announced(NamespaceEvent),
    /// A session is its publisher's: it has said so, signed.
    Good(Namespace),
    /// A session is not heard any more, in a turn of it.
    Ended(Namespace, Turn),
}

/// Runs a session until it ends.
pub(crate) async fn run(
    shared: Arc<Shared>,
    link: Link,
    task: impl Future<Output = LinkEnd> + Send,
    with: With,
    fronts: Fronts,
) -> Result<(), LinkError> {
    let session = shared.sessions.fetch_add(1, Ordering::Relaxed);
    let epoch = Epoch { boot: shared.boot, session };
    let mut actors = JoinSet::new();
    let mut peers = HashMap::new();
    let (index, count) = with.part;
    let at = (epoch, Part::Peers { index, count });
    for peer in with.peers.keys() {
        let (tx, rx) = mpsc::channel(TOLD_MAX);
        let (hop, id) = (with.hop.clone(), peer.clone());
        let deaf = Arc::<Notify>::default();
        actors.spawn(Peer::new(shared.clone(), link.clone(), hop, id, at, deaf.clone()).run(rx));
        peers.insert(peer.clone(), Actor { tell: tx, deaf });
    }
    let watchers = Arc::new(Semaphore::new(watch::WATCHERS_MAX));
    let (agent, custody, proofs) = (fronts.a2a.clone(), AtomicBool::new(false), Proofs::default());
    let tracks = Mutex::default();
    let heard = Mutex::new(Heard { last: Instant::now(), lost: HashMap::new() });
    let session = Session {
        shared,
        link,
        with,
        epoch,
        peers,
        watchers,
        agent,
        custody,
        proofs,
        tracks,
        heard,
    };
    let session = Arc::new(session);
    if matches!(session.with.hop, Hop::Relay(_)) {
        session.link.doubt();
    }
    let beside = session.beside(fronts); // before anything can be asked
    let ended = tokio::select! {
        ended = task => ended.map_err(LinkError::from),
        ended = session.work() => ended,
        () = beside => Ok(()),
    };
    session.link.connection().close(0u32.into(), b"done");
    drop(session);
    while actors.join_next().await.is_some() {} // each says to the core that it is down
    ended
}

impl Session {
    fn own(&self, part: Part) -> TrackNamespace {
        let publisher = self.shared.me.clone();
        namespace(&Namespace { publisher, epoch: self.epoch, part }.fields())
    }

    async fn work(self: &Arc<Self>) -> Result<(), LinkError> {
        let (index, count) = self.with.part;
        // Nothing of custody is fetched: who asks is told so.
        let Requests { subscribed: mut requests, .. } =
            self.link.answer(self.own(Part::Peers { index, count }));
        let Requests { subscribed: mut public, .. } = self.link.answer(self.own(Part::All));
        let mut serving = JoinSet::new();
        let mut serial = self.epoch.session << 32; // in no other session the same
        let served = async {
            loop {
                let (subscribed, is_public) = tokio::select! {
                    Some(_) = serving.join_next() => continue,
                    Some(subscribed) = requests.recv() => (subscribed, false),
                    Some(subscribed) = public.recv() => (subscribed, true),
                    else => return Ok(()),
                };
                serial += 1;
                if let Some(serve) = self.serve(subscribed, is_public, serial) {
                    serving.spawn(serve);
                }
            }
        };
        let announced = async {
            let Some(mut peers) = self.announce(Part::Peers { index, count }).await? else {
                tracing::debug!(with = ?self.with.hop, "a session without custody");
                return std::future::pending().await;
            };
            let public = match index {
                0 => self.announce(Part::All).await?,
                _ => None,
            };
            // Who is not announced is found by nobody: a session like that is no use.
            match public {
                Some(mut public) => tokio::select! {
                    () = peers.ended() => {}
                    () = public.ended() => {}
                },
                None => peers.ended().await,
            }
            if self.with.guest && !self.custody.load(Ordering::Acquire) {
                return std::future::pending().await; // it may be here for something else, too
            }
            Ok(())
        };
        let agent = match (&self.with.hop, &self.agent) {
            (Hop::Peer(peer), Some(agent)) => Some(agent.session(self.link.clone(), peer.clone())),
            _ => None,
        };
        let heard = async {
            match &self.with.hop {
                Hop::Peer(_) => self.hear_peer(agent.as_ref()).await,
                Hop::Relay(_) => self.hear_relay().await,
            }
        };
        let shown = async {
            match &agent {
                Some(agent) => agent.show_card().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = served => ended,
            ended = announced => ended,
            ended = heard => ended,
            () = shown => Ok(()),
        }
    }

    /// Announces a part of ours. None if the other side is not here for custody; one that is, and does not answer, is
    /// to dial anew, rather than to be deaf to us for as long as it is there.
    async fn announce(&self, part: Part) -> Result<Option<Announced>, LinkError> {
        let mut wait = ANNOUNCE_AGAIN;
        for tries in 1.. {
            match self.link.announce(self.own(part)).await {
                Err(LinkError::Refused { .. }) if self.with.guest => return Ok(None),
                Err(LinkError::NoAnswer { .. }) if self.with.guest && tries < ANNOUNCES_MAX => {}
                Err(LinkError::NoAnswer { .. })
                    if self.with.guest && !self.custody.load(Ordering::Acquire) =>
                {
                    return Ok(None);
                }
                announced => return announced.map(Some),
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        Ok(None)
    }

    /// What a direct peer finds here beside custody. It has no end of its own.
    fn beside(&self, fronts: Fronts) -> impl Future<Output = ()> + Send + use<> {
        let mcp = match &self.with.hop {
            Hop::Peer(peer) => Some(mcp::serve(fronts.mcp, &self.link, peer)),
            Hop::Relay(_) => None,
        };
        async move {
            match mcp {
                Some(mcp) => mcp.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Accepts a subscription, or refuses it.
    fn serve(
        self: &Arc<Self>,
        subscribed: Subscribed,
        is_public: bool,
        serial: u64,
    ) -> Option<BoxFuture<'static, ()>> {
        match self.wanted(&subscribed, is_public) {
            Ok(wanted) => {
                let next = self.next_of(&subscribed);
                let accepted = Outgoing::accept_from(subscribed, next);
                let Ok((outgoing, serve)) = accepted else { return None };
                let session = self.clone();
                Some(Box::pin(async move {
                    match wanted {
                        Wanted::Custody(to, way) => {
                            if to.send(Told::Serving(way, serial, outgoing)).await.is_ok() {
                                let _ = serve.await;
                                let _ = to.send(Told::Unserved(way, serial)).await;
                            }
                        }
                        Wanted::Group(group) => tokio::select! {
                            _ = serve => {}
                            () = session.publish_to(group, serial, outgoing) => {}
                        },
                        Wanted::Watch(content, _place) => tokio::select! {
                            _ = serve => {}
                            _ = watch::publish(&session.shared, &session.link, (session.epoch, content), outgoing) => {}
                        },
                    }
                }))
            }
            Err(refused) => {
                let _ = subscribed.close(refused); // the session may be gone
                None
            }
        }
    }

    /// Where a track of ours goes on.
    fn next_of(&self, subscribed: &Subscribed) -> Next {
        let name = subscribed.info.track_name.as_bytes().to_vec();
        let mut tracks = self.tracks.lock().unwrap_or_else(PoisonError::into_inner);
        tracks.entry(name).or_default().clone()
    }

    /// What a subscription is to be served, if it may be. A track is in one of the two namespaces only: asked for in
    /// the other it would be another track to a relay, and take the place of the one that a peer hears.
    fn wanted(&self, subscribed: &Subscribed, is_public: bool) -> Result<Wanted, ServeError> {
        const fn no<T>(code: RequestErrorCode) -> Result<T, ServeError> {
            Err(ServeError::Closed(code as u64))
        }
        let track = Track::parse(subscribed.info.track_name.as_bytes());
        let track = track.map_err(|_| ServeError::NotFound)?;
        if is_public == matches!(track, Track::To(_) | Track::Acks(_)) {
            return Err(ServeError::NotFound);
        }
        let (peer, way) = match &track {
            Track::To(peer) => (peer, Way::To),
            Track::Acks(peer) => (peer, Way::Acks),
            Track::Group(group) if self.with.groups.contains(group) => {
                return Ok(Wanted::Group(group.clone()));
            }
            _ => {
                return match watch::content(&track) {
                    None => Err(ServeError::NotFound),
                    Some(_) if !self.with.watched => no(RequestErrorCode::Unauthorized),
                    Some(content) => match self.watchers.clone().try_acquire_owned() {
                        Ok(place) => Ok(Wanted::Watch(content, place)),
                        Err(_) => no(RequestErrorCode::ExcessiveLoad),
                    },
                };
            }
        };
        match self.peers.get(peer) {
            Some(to) => Ok(Wanted::Custody(to.tell.clone(), way)),
            None => no(RequestErrorCode::Unauthorized), // not to say whether there is such a peer
        }
    }

    /// Publishes decisions to a group for one subscriber.
    async fn publish_to(&self, group: GroupName, serial: u64, mut outgoing: Outgoing) {
        let (groups, hop) = (&self.shared.groups, &self.with.hop);
        let place = Place::new(hop, self.epoch);
        let mut objects = groups.served(place.clone(), group.clone(), self.epoch, serial);
        let _served = Served { groups, place, group: &group, serial };
        // Relays of the same library give the first group to one of several subscribers only, unless it is still
        // open when the others come.
        let hello = self.shared.greeting(Audience::Group(group.clone()), self.epoch);
        let _kept = self.link.keep_open();
        let _open = hello.and_then(|hello| outgoing.open(Content::Hello.priority(), hello).ok());
        while let Some(object) = objects.recv().await {
            self.link.room().await;
            let (priority, len) = (Content::GroupOffer.priority(), object.len());
            if outgoing.push(priority, object).await.is_err() {
                break;
            }
            self.shared.router.metrics.published(Content::GroupOffer.as_str(), len);
        }
    }

    /// A direct peer announces to us.
    async fn hear_peer(self: &Arc<Self>, agent: Option<&Arc<Inboxes>>) -> Result<(), LinkError> {
        let mut listening = JoinSet::new();
        loop {
            let mut announced = tokio::select! {
                Some(_) = listening.join_next() => continue,
                announced = self.link.announced() => match announced {
                    Some(announced) => announced,
                    None => return Ok(()),
                },
            };
            if let Some(agent) = agent.filter(|_| is_inbox(&announced.info.namespace)) {
                listening.spawn(agent.clone().serve(announced));
                continue;
            }
            let Some(theirs) = self.theirs(&announced.info.namespace) else {
                let _ = announced.reject(RequestErrorCode::Uninterested as u64, "not of ours");
                continue;
            };
            if announced.ok().is_err() {
                continue;
            }
            self.custody.store(true, Ordering::Release);
            let session = self.clone();
            listening.spawn(async move {
                tokio::select! {
                    heard = session.listen(&theirs, |_| ()) => {
                        said(&theirs, heard);
                        // Not to be deaf to each other, with the connection there: a new one begins anew. Groups
                        // that are not heard cost a retry each, and no more.
                        if theirs.part != Part::All {
                            session.link.connection().close(0u32.into(), b"not heard");
                        }
                    }
                    _ = announced.closed() => {}
                }
            });
        }
    }

    /// A relay tells of who announces to it.
    async fn hear_relay(self: &Arc<Self>) -> Result<(), LinkError> {
        let prefixes: Vec<TrackNamespace> = if self.with.peers.len() <= PREFIXES_MAX {
            self.with.peers.keys().map(|peer| namespace(&Namespace::prefix_of(peer))).collect()
        } else {
            vec![namespace(&PREFIX)]
        };
        if prefixes.is_empty() {
            return std::future::pending().await; // we are there for watchers only
        }
        let (tell, mut told) = mpsc::channel(HEARD_WAITING_MAX);
        let mut telling = JoinSet::new();
        for prefix in prefixes {
            let announcements = self.link.announcements(&prefix).await?;
            let tell = tell.clone();
            telling.spawn(async move {
                while let Ok(Some(event)) = announcements.of.next().await {
                    if tell.send(News::Announced(event)).await.is_err() {
                        return;
                    }
                }
            });
        }
        let mut peers: HashMap<(AgentId, bool), Candidates> = HashMap::new();
        let mut listening = JoinSet::new();
        let mut proofs = self.proofs.news();
        loop {
            let next = peers.values().filter_map(Candidates::due).min();
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let of = tokio::select! {
                // The feed of announcements ends with the session, or the relay has no more to say.
                _ = telling.join_next() => return Ok(()),
                Some(_) = listening.join_next() => continue,
                () = due => None,
                Ok(()) = proofs.changed() => {
                    let for_all = peers.iter_mut().filter(|((_, all), _)| *all);
                    for_all.for_each(|(_, candidates)| candidates.hurry());
                    None
                }
                Some(heard) = told.recv() => match heard {
                    News::Announced(event) => {
                        let (added, of) = match &event {
                            NamespaceEvent::Added(of) => (true, of),
                            NamespaceEvent::Removed(of) => (false, of),
                        };
                        let Some(theirs) = self.theirs(of) else { continue };
                        let no_groups = self.with.peers.get(&theirs.publisher).is_none_or(BTreeSet::is_empty);
                        if theirs.part == Part::All && no_groups {
                            continue; // nothing of it is for us
                        }
                        let of = (theirs.publisher.clone(), theirs.part == Part::All);
                        let candidates = peers.entry(of.clone()).or_default(); // peers are listed
                        if added {
                            candidates.add(theirs);
                        } else {
                            candidates.remove(&theirs);
                        }
                        Some(of)
                    }
                    News::Good(theirs) => {
                        let of = (theirs.publisher.clone(), theirs.part == Part::All);
                        peers.entry(of.clone()).or_default().good(theirs);
                        Some(of)
                    }
                    News::Ended(theirs, turn) => {
                        let of = (theirs.publisher.clone(), theirs.part == Part::All);
                        peers.entry(of.clone()).or_default().ended(&theirs, turn);
                        Some(of)
                    }
                },
            };
            let now = Instant::now();
            let of = of.as_ref();
            for (_, candidates) in peers.iter_mut().filter(|(id, _)| of.is_none_or(|of| of == *id))
            {
                while let Some((theirs, turn)) = candidates.take(now) {
                    let (session, tell, of) = (self.clone(), tell.clone(), theirs.clone());
                    let listen = listening.spawn(async move {
                        let good = |theirs: &Namespace| {
                            // The next good hello says it again.
                            let _ = tell.try_send(News::Good(theirs.clone()));
                        };
                        let heard = session.listen(&of, good).await;
                        if let Err(LinkError::Spent { .. }) = &heard {
                            session.link.connection().close(0u32.into(), b"spent"); // for a new one
                        }
                        said(&of, heard);
                        let _ = tell.send(News::Ended(of, turn)).await;
                    });
                    candidates.listens(theirs, turn, listen);
                }
            }
            peers.retain(|_, candidates| !candidates.is_empty());
        }
    }

    /// What a namespace is to us, if it is of a peer that we meet here and has our share.
    fn theirs(&self, of: &TrackNamespace) -> Option<Namespace> {
        let fields: Vec<&[u8]> = of.fields.iter().map(|field| field.value.as_slice()).collect();
        let theirs = Namespace::parse(&fields).ok()?;
        let ours = match theirs.part {
            Part::All => true,
            Part::Peers { index, count } => part_of(&self.shared.me, count) == index,
        };
        (ours && self.with.peers.contains_key(&theirs.publisher)).then_some(theirs)
    }
}

fn said(theirs: &Namespace, heard: Result<(), LinkError>) {
    let Namespace { publisher: peer, epoch, .. } = theirs;
    match heard {
        Ok(()) => tracing::debug!(%peer, %epoch, "not heard any more over MOQT"),
        Err(error) => tracing::debug!(%peer, %epoch, %error, "not heard any more over MOQT"),
    }
}

/// What a subscription is served.
enum Wanted {
    Custody(mpsc::Sender<Told>, Way),
    Group(GroupName),
    Watch(Content, OwnedSemaphorePermit),
}

/// A group's track that is served, until it is dropped.
struct Served<'a> {
    groups: &'a Groups,
    place: Place,
    group: &'a GroupName,
    serial: u64,
}

impl Drop for Served<'_> {
    fn drop(&mut self) {
        self.groups.unserved(&self.place, self.group, self.serial);
    }
}
