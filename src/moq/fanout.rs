//! One decision to many: the obligation goes once on the group's track, and each member derives its own from it.
//!
//! Custody stays with each member: an own pending record, ack and escalation. Only the first offer to members
//! that were there goes by the group; what is offered again, or to one that came later, goes on its own track.

use super::sign::Signatures;
use bytes::Bytes;
use proto::batch::{Audience, Content};
use proto::fanout::{GroupId, Template, group_of};
use proto::id::AgentId;
use proto::obligation::Obligation;
use proto::track::{Epoch, GroupName, Part};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Decisions that may be published on a group's track at a time; members get further ones each by itself.
pub(crate) const DECISIONS_MAX: usize = 1_024;
/// How long after its issue a decision may still be published so.
const PUBLISH_TIME_MAX: Duration = Duration::from_secs(30);
/// How long the first offers of a decision wait until it is known to whom it was issued, which is as long as one
/// commit takes.
const ISSUE_TIME_MAX: Duration = Duration::from_secs(1);
/// Objects that wait for a group's track.
pub(super) const WAITING_MAX: usize = 256;

/// Where a group's track goes: to a peer itself, or to all that a relay serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hop {
    Peer(AgentId),
    Relay(Arc<str>),
}

/// Where a group's track is served: at a relay once, to a peer in each session with it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(Hop, Option<Epoch>);

impl Place {
    pub(crate) fn new(hop: &Hop, epoch: Epoch) -> Self {
        let epoch = matches!(hop, Hop::Peer(_)).then_some(epoch);
        Self(hop.clone(), epoch)
    }
}

#[derive(Debug)]
struct Decision {
    group: GroupName,
    until: Instant,
    /// Whether it was issued, now and alike, to every member; none while that is not known.
    whole: watch::Sender<Option<bool>>,
    /// Known with the first offer.
    template: Option<Template>,
    /// When it was published, where it could be.
    published: BTreeMap<Place, Option<Instant>>,
    /// Members whose first offer it was.
    carried: BTreeSet<AgentId>,
}

#[derive(Debug, Default)]
struct State {
    decisions: BTreeMap<GroupId, Decision>,
    tracks: BTreeMap<(Place, GroupName), Served>,
}

#[derive(Debug)]
struct Served {
    serial: u64,
    epoch: Epoch,
    to: mpsc::Sender<Bytes>,
}

/// Decisions to groups, and the tracks they go on.
#[derive(Debug)]
pub(crate) struct Groups {
    signatures: Signatures,
    state: Mutex<State>,
    live: AtomicUsize,
}

impl Groups {
    pub(crate) fn new(signatures: Signatures) -> Self {
        Self { signatures, state: Mutex::default(), live: AtomicUsize::new(0) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says, before its obligations are issued, that a decision is one of a group. Their first offers wait for
    /// [`Self::issued`].
    pub(crate) fn expect(&self, gid: GroupId, group: GroupName) {
        let mut state = self.state();
        let now = Instant::now();
        state.decisions.retain(|_, decision| decision.until > now);
        if state.decisions.len() < DECISIONS_MAX {
            let (published, carried) = (BTreeMap::new(), BTreeSet::new());
            let until = now + PUBLISH_TIME_MAX;
            let whole = watch::Sender::new(None);
            let decision = Decision { group, until, whole, template: None, published, carried };
            state.decisions.entry(gid).or_insert(decision);
        }
        self.live.store(state.decisions.len(), Ordering::Release);
    }

    /// Says whether a decision was issued, for the first time, to `whole` of its group. If not it goes to each
    /// member alone: all who hear a group's track make an obligation of what comes there, and one that was
    /// refused, or is long over, has none.
    //= AB-1
    pub(crate) fn issued(&self, gid: &GroupId, whole: bool) {
        if let Some(decision) = self.state().decisions.get(gid) {
            decision.whole.send_replace(Some(whole));
        }
    }

    /// A subscriber of a group's track is there; what it gets comes out of the receiver.
    pub(crate) fn served(
        &self,
        place: Place,
        group: GroupName,
        epoch: Epoch,
        serial: u64,
    ) -> mpsc::Receiver<Bytes> {
        let (to, objects) = mpsc::channel(WAITING_MAX);
        self.state().tracks.insert((place, group), Served { serial, epoch, to });
        objects
    }

    /// That subscriber has gone.
    pub(crate) fn unserved(&self, place: &Place, group: &GroupName, serial: u64) {
        let key = (place.clone(), group.clone());
        let mut state = self.state();
        if state.tracks.get(&key).is_some_and(|served| served.serial == serial) {
            state.tracks.remove(&key);
        }
    }

    /// Whether an offer to `peer`, which has been there `since`, goes by its group. The first that does has it
    /// published.
    pub(crate) async fn carries(
        &self,
        place: &Place,
        peer: &AgentId,
        since: Instant,
        item: &Bytes,
    ) -> bool {
        if self.live.load(Ordering::Acquire) == 0 {
            return false;
        }
        let Ok(obligation) = Obligation::decode(item) else { return false };
        let Some(gid) = group_of(&obligation.id).and_then(|gid| GroupId::new(gid).ok()) else {
            return false;
        };
        let whole = self.state().decisions.get(&gid).map(|decision| decision.whole.subscribe());
        let Some(mut whole) = whole else { return false };
        let known = tokio::time::timeout(ISSUE_TIME_MAX, whole.wait_for(Option::is_some)).await;
        if !known.is_ok_and(|known| known.is_ok_and(|known| *known == Some(true))) {
            return false;
        }
        let mut state = self.state();
        let State { decisions, tracks } = &mut *state;
        let Some(decision) = decisions.get_mut(&gid) else { return false };
        if decision.until <= Instant::now() {
            return false;
        }
        let template = decision.template.get_or_insert_with(|| Template::of(gid, &obligation));
        if template.for_member(peer) != obligation {
            return false; // such as for another sequence
        }
        let published = decision.published.entry(place.clone()).or_insert_with(|| {
            let track = tracks.get(&(place.clone(), decision.group.clone()));
            self.publish(&decision.group, template, track?)
        });
        published.is_some_and(|at| since < at) && decision.carried.insert(peer.clone())
    }

    fn publish(&self, group: &GroupName, template: &Template, track: &Served) -> Option<Instant> {
        let (audience, items) = (Audience::Group(group.clone()), vec![template.encode()]);
        let at = (track.epoch, Part::All);
        let sealed = self.signatures.seal(at, audience, Content::GroupOffer, items);
        let (_, object) = sealed.ok()?;
        track.to.try_send(object).ok()?;
        Some(Instant::now())
    }
}
