//! Who is heard in a session, and what of it is believed.

use super::custody::{Told, Way};
use super::fanout::Hop;
use super::link::LinkError;
use super::namespace;
use super::session::{Actor, Heard, Session};
use super::sign::Opened;
use super::track::Incoming;
use super::unproven::Suspect;
use bytes::Bytes;
use proto::batch::{Audience, Content, Hello};
use proto::fanout::Template;
use proto::limits::FRAME_LEN_MAX;
use proto::track::{Namespace, Part, Track};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How long a session that is announced as a peer's may take until it says a good hello.
const HELLO_TIME_MAX: Duration = Duration::from_secs(15);
/// How long it may take then until a hello of its answers one of ours: what was signed in an earlier session does not.
const PROOF_TIME_MAX: Duration = Duration::from_secs(30);
/// Tries to subscribe to a track that was announced.
const TRIES_MAX: u32 = 5;
/// How long until the second; each further one waits twice as long.
const TRY_AGAIN: Duration = Duration::from_millis(100);

impl Session {
    /// Hears a peer's session until it ends, or says nothing good; `good` is told of its hellos.
    pub(super) async fn listen(
        &self,
        theirs: &Namespace,
        good: impl Fn(&Namespace),
    ) -> Result<(), LinkError> {
        let Some(actor) = self.peers.get(&theirs.publisher) else { return Ok(()) };
        let to = &actor.tell;
        match theirs.part {
            Part::Peers { .. } => {
                let _lost = Lost { to: to.clone(), theirs: theirs.clone() };
                let heard = self.hear_tracks(theirs, actor, good).await;
                self.is_anybody_heard(theirs, &heard);
                heard
            }
            Part::All => self.hear_groups(theirs, to, good).await,
        }
    }

    async fn hear_tracks(
        &self,
        theirs: &Namespace,
        Actor { tell: to, deaf }: &Actor,
        good: impl Fn(&Namespace),
    ) -> Result<(), LinkError> {
        let me = &self.shared.me;
        let mut offers = self.subscribe(theirs, &Track::To(me.clone())).await?;
        let mut acks = self.subscribe(theirs, &Track::Acks(me.clone())).await?;
        let mine = Audience::Agent(me.clone());
        let silent = tokio::time::sleep(HELLO_TIME_MAX);
        tokio::pin!(silent);
        // A peer itself needs to prove nothing.
        let proof = tokio::time::sleep(PROOF_TIME_MAX);
        tokio::pin!(proof);
        let direct = matches!(self.with.hop, Hop::Peer(_));
        let (mut greeted, mut proven) = (false, direct);
        let deaf = deaf.notified();
        tokio::pin!(deaf);
        deaf.as_mut().enable(); // not to miss it while something else is done
        let suspects = [self.link.suspect(&offers), self.link.suspect(&acks)];
        loop {
            let (way, object) = tokio::select! {
                object = acks.next() => (Way::Acks, object?),
                object = offers.next() => (Way::To, object?),
                () = &mut silent, if !greeted => {
                    return Err(LinkError::NoAnswer { what: "a hello" });
                }
                () = spoilt(&suspects) => return Err(self.unproven()),
                () = &mut deaf, if proven => {
                    self.heard().lost.insert(theirs.publisher.clone(), Instant::now());
                    return Err(LinkError::Deaf { answer: self.shared.answer });
                }
                () = &mut proof, if !proven => {
                    return Err(LinkError::NoAnswer { what: "our hello" });
                }
            };
            let Some((_, object)) = object else { return Ok(()) };
            let fits = |content| way.carries(content);
            let Some(opened) = self.open(theirs, &mine, &object, fits) else { continue };
            self.heard().last = Instant::now();
            if opened.statement.content == Content::Hello {
                greeted = true;
                good(theirs);
                let hello = opened.items.first().and_then(|item| Hello::decode(item).ok());
                if !direct && hello.is_some_and(|hello| hello.answers == Some(self.epoch)) {
                    proven = true;
                    self.heard().lost.remove(&theirs.publisher);
                    self.proofs.answered(theirs);
                    let [to, acks] = &suspects;
                    let suspect = if way == Way::To { to } else { acks };
                    suspect.iter().for_each(Suspect::prove);
                }
            }
            if !self.tell(to, Told::Batch(way, opened)).await {
                return Ok(());
            }
        }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a session for a new one, where a peer that was up is not heard when it is asked for anew, and since then
    /// nobody else is: what should come is stuck, such as for want of streams that a relay never ends.
    fn is_anybody_heard(&self, theirs: &Namespace, ended: &Result<(), LinkError>) {
        let mut heard = self.heard();
        if let Err(LinkError::NoAnswer { .. }) = ended
            && let Some(since) = heard.lost.remove(&theirs.publisher)
            && heard.last < since
        {
            tracing::info!(peer = %theirs.publisher, "nothing comes of anybody in a MOQT session: it is closed for a new one");
            self.link.connection().close(0u32.into(), b"deaf");
        }
    }

    /// Tells the custody of a peer. While that does not take what it is told nothing further comes: the library would
    /// keep it.
    //= BD-1
    async fn tell(&self, to: &mpsc::Sender<Told>, told: Told) -> bool {
        match to.try_send(told) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(told)) => {
                let _held = self.link.hold_back();
                to.send(told).await.is_ok()
            }
        }
    }

    fn unproven(&self) -> LinkError {
        self.shared.router.metrics.moqt_unproven.inc();
        LinkError::Unproven
    }

    async fn hear_groups(
        &self,
        theirs: &Namespace,
        to: &mpsc::Sender<Told>,
        good: impl Fn(&Namespace),
    ) -> Result<(), LinkError> {
        let groups = self.with.peers.get(&theirs.publisher).cloned().unwrap_or_default();
        if groups.is_empty() {
            return std::future::pending().await; // a direct peer announces it all the same, and is not refused
        }
        let good = &good;
        let hear = groups.into_iter().map(async |group| {
            let mut objects = self.subscribe(theirs, &Track::Group(group.clone())).await?;
            let audience = Audience::Group(group.clone());
            let suspect = [self.link.suspect(&objects)];
            // The first group stays open, and nothing more may come of the track before the proof does.
            let mut news = self.proofs.news();
            let mut proven = false;
            loop {
                let next = tokio::select! {
                    next = objects.next() => next?,
                    () = spoilt(&suspect) => return Err(self.unproven()),
                    _ = news.changed(), if !proven => {
                        proven = self.proofs.hold(theirs);
                        if proven {
                            suspect.iter().flatten().for_each(Suspect::prove);
                        }
                        continue;
                    }
                };
                let Some((_, object)) = next else { break };
                let fits = |content| matches!(content, Content::GroupOffer | Content::Hello);
                let Some(opened) = self.open(theirs, &audience, &object, fits) else { continue };
                good(theirs);
                self.proofs.public(theirs);
                if !proven {
                    news.mark_changed(); // it may be known already that this is no news
                }
                if opened.statement.content == Content::Hello {
                    continue;
                }
                for item in &opened.items {
                    let Ok(template) = Template::decode(item) else { continue };
                    let item = template.for_member(&self.shared.me).encode();
                    if !self.tell(to, Told::Member(group.clone(), item)).await {
                        return Ok(());
                    }
                }
            }
            Ok::<_, LinkError>(())
        });
        // One that is refused, as by a custodian that has no such group any more, is no reason to leave the others.
        let heard = futures_util::future::join_all(hear).await;
        heard.into_iter().collect()
    }

    /// An announcement may be here before the way to its tracks is.
    async fn subscribe(&self, theirs: &Namespace, track: &Track) -> Result<Incoming, LinkError> {
        let mut wait = TRY_AGAIN;
        let mut tries = 1;
        loop {
            let of = namespace(&theirs.fields());
            match self.link.subscribe(of, track.name(), FRAME_LEN_MAX).await {
                Err(LinkError::Refused { .. } | LinkError::NoAnswer { .. })
                    if tries < TRIES_MAX => {}
                subscribed => return subscribed,
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
            tries += 1;
        }
    }

    /// A batch of the peer's for us. All others are dropped, counted and said.
    //= AC-1
    fn open(
        &self,
        theirs: &Namespace,
        audience: &Audience,
        object: &Bytes,
        good: impl Fn(Content) -> bool,
    ) -> Option<Opened> {
        let peer = &theirs.publisher;
        let why = match self.shared.signatures.open(object, self.shared.clock.now()) {
            Ok(opened) if opened.statement.from != *theirs => {
                let Namespace { publisher, epoch, part } = &opened.statement.from;
                format!("it is of {publisher}, session {epoch}, part {part}")
            }
            Ok(opened) if opened.statement.audience != *audience => {
                format!("it is for {}", opened.statement.audience)
            }
            Ok(opened) if !good(opened.statement.content) => {
                format!("{} do not go on this track", opened.statement.content)
            }
            Ok(opened) => return Some(opened),
            Err(error) => error.to_string(),
        };
        self.shared.router.metrics.moqt_dropped.inc();
        tracing::warn!(%peer, why, "an object dropped");
        None
    }
}

/// Waits until one of them is to be left.
async fn spoilt(suspects: &[Option<Suspect>]) {
    let each = suspects.iter().flatten().map(|suspect| Box::pin(suspect.spoilt()));
    let each: Vec<_> = each.collect();
    match each.is_empty() {
        true => std::future::pending().await,
        false => drop(futures_util::future::select_all(each).await),
    }
}

/// Says at its end that a session of the peer's is over, also when its task is ended from outside.
struct Lost {
    to: mpsc::Sender<Told>,
    theirs: Namespace,
}

impl Drop for Lost {
    fn drop(&mut self) {
        let (to, lost) = (self.to.clone(), Told::Lost(self.theirs.clone()));
        if let Err(mpsc::error::TrySendError::Full(lost)) = to.try_send(lost) {
            tokio::spawn(async move { drop(to.send(lost).await) });
        }
    }
}
