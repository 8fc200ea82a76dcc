//! A MOQT relay: each node keeps one connection, with it, and what a node publishes goes on to whoever
//! has subscribed to it. It is a pipe with a memory that a crash ends, and knows nothing of custody.
//!
//! What two nodes have through it is a *path*: to their cores a session like any other. Its end is up
//! when the other end has subscribed to what is published here, and has said hello.

use super::World;
use super::link::{Load, other};
use crate::scenario::RelayModel;
use bytes::Bytes;
use proto::batch::Hash;
use proto::custody::Input;
use proto::fanout::GroupId;
use proto::id::{AgentId, ObligationId};
use proto::step::SessionId;
use proto::track::Track;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Bytes of a message about names, with a namespace of five fields in it.
const CONTROL_LEN: usize = 120;
/// Bytes before an object on its stream: those of the subgroup and of the object itself.
const OBJECT_HEAD_LEN: usize = 12;

/// What a node and a relay say to each other. A connection is named by its node's end, a path by the
/// end of the node that reads or says it.
#[derive(Clone, Debug)]
pub(crate) enum Moqt {
    /// Another node publishes.
    Announced { path: SessionId },
    /// It publishes no more.
    Gone { path: SessionId },
    /// This node wants what is published at the other end.
    Subscribe { path: SessionId },
    /// The other end wants what is published here.
    Subscribed { path: SessionId },
    /// An object of a track, and on which connection it was published.
    Object { publisher: SessionId, track: Track, object: Bytes },
}

impl Moqt {
    /// For people.
    pub(super) fn told(&self) -> String {
        match self {
            Self::Object { track, object, .. } => format!("{track}, {} bytes", object.len()),
            other => format!("{other:?}"),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Object { object, .. } => OBJECT_HEAD_LEN + object.len(),
            _ => CONTROL_LEN,
        }
    }
}

/// One end of a path.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) node: usize,
    pub(super) peer: usize,
    /// The node's connection with the relay, and its peer's.
    pub(super) hop: SessionId,
    peer_hop: SessionId,
    /// Whether the other end has subscribed, and has said hello.
    wanted: bool,
    greeted: bool,
    /// Whether the core knows it.
    up: bool,
    /// The number of the next offer that comes.
    pub(super) next_in: u64,
    /// Offers that came and have no answer yet.
    pub(super) taken: BTreeMap<u64, Taken>,
    /// The last batches that went, and the numbers of their offers.
    pub(super) sent: VecDeque<(Hash, Vec<u64>)>,
}

/// An offer that came.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) id: Option<ObligationId>,
    /// Root of its batch, and its place in it.
    pub(super) root: Hash,
    pub(super) index: u64,
}

/// The relay, and what the nodes know of what goes through it.
#[derive(Debug)]
pub(super) struct Relay {
    /// Its number among the nodes.
    pub(super) node: usize,
    pub(super) model: RelayModel,
    /// In its memory: connections by node, and the others that each was told of.
    hops: BTreeMap<(usize, SessionId), BTreeSet<SessionId>>,
    /// In its memory: who wants what is published on a connection, on which and as whom.
    wants: BTreeMap<SessionId, BTreeMap<SessionId, usize>>,
    /// In the memory of the nodes: the ends of paths, and the same by connection and peer's connection.
    pub(super) paths: BTreeMap<SessionId, Path>,
    between: BTreeMap<SessionId, BTreeMap<SessionId, SessionId>>,
    /// In the memory of the nodes: decisions that went to their group.
    pub(super) fanned: BTreeSet<(usize, GroupId)>,
}

impl Relay {
    pub(super) fn new(node: usize, model: RelayModel) -> Self {
        Self {
            node,
            model,
            hops: BTreeMap::new(),
            wants: BTreeMap::new(),
            paths: BTreeMap::new(),
            between: BTreeMap::new(),
            fanned: BTreeSet::new(),
        }
    }

    /// The paths that the core of a node knows, and with whom.
    pub(super) fn known_to(&self, n: usize) -> Vec<(SessionId, usize)> {
        let known = self.paths.iter().filter(|(_, path)| path.node == n && path.up);
        known.map(|(session, path)| (*session, path.peer)).collect()
    }

    fn add_path(
        &mut self,
        session: SessionId,
        (node, hop): (usize, SessionId),
        to: (usize, SessionId),
    ) {
        let (peer, peer_hop) = to;
        self.between.entry(hop).or_default().insert(peer_hop, session);
        let path = Path {
            node,
            peer,
            hop,
            peer_hop,
            wanted: false,
            greeted: false,
            up: false,
            next_in: 0,
            taken: BTreeMap::new(),
            sent: VecDeque::new(),
        };
        self.paths.insert(session, path);
    }

    fn remove_path(&mut self, session: SessionId) -> Option<Path> {
        let path = self.paths.remove(&session)?;
        if let Some(between) = self.between.get_mut(&path.hop) {
            between.remove(&path.peer_hop);
            if between.is_empty() {
                self.between.remove(&path.hop);
            }
        }
        Some(path)
    }

    /// Ends of paths on a connection of a node.
    fn paths_on(&self, hop: SessionId) -> Vec<SessionId> {
        self.between.get(&hop).into_iter().flat_map(BTreeMap::values).copied().collect()
    }
}

impl World {
    /// Whether a node is the relay.
    pub(super) fn is_relay(&self, n: usize) -> bool {
        self.relay.as_ref().is_some_and(|relay| relay.node == n)
    }

    /// Until when the relay stands still, if this is an end of its and it does.
    pub(super) fn relay_stands_still(&self, session: SessionId) -> Option<u64> {
        let node = self.relay.as_ref()?.node;
        self.paused(node).filter(|_| self.ends.get(&session).is_some_and(|end| end.node == node))
    }

    /// A node has a connection with the relay, which tells it and those it may deal with of each other.
    pub(super) fn hop_up(&mut self, hop: SessionId, node: usize) {
        let star = self.options.star;
        let Some(relay) = &mut self.relay else { return };
        let last = if star && node > 0 { 0 } else { usize::MAX };
        let there = relay.hops.range(..=(last, SessionId(u64::MAX)));
        let peers: Vec<(usize, SessionId)> =
            there.map(|(peer, _)| *peer).filter(|(peer, _)| *peer != node).collect();
        let met = peers.iter().map(|(_, hop)| *hop).collect();
        relay.hops.insert((node, hop), met);
        for (peer, peer_hop) in peers {
            let path = SessionId(self.next_session * 2);
            self.next_session += 1;
            let Some(relay) = &mut self.relay else { return };
            relay.add_path(path, (node, hop), (peer, peer_hop));
            relay.add_path(other(path), (peer, peer_hop), (node, hop));
            if let Some(met) = relay.hops.get_mut(&(peer, peer_hop)) {
                met.insert(hop);
            }
            self.say(other(hop), Moqt::Announced { path });
            self.say(other(peer_hop), Moqt::Announced { path: other(path) });
        }
    }

    /// An end of a connection is gone: the node's, and its paths with it; or the relay's, which tells the
    /// others.
    pub(super) fn hop_down(&mut self, session: SessionId, n: usize) {
        let Some(relay) = &mut self.relay else { return };
        if relay.node != n {
            for path in relay.paths_on(session) {
                self.path_down(path);
            }
            return;
        }
        let hop = other(session);
        relay.wants.remove(&hop);
        let Some(at) = relay.hops.keys().find(|(_, known)| *known == hop).copied() else { return };
        for peer_hop in relay.hops.remove(&at).unwrap_or_default() {
            let Some(relay) = &mut self.relay else { return };
            if let Some(wants) = relay.wants.get_mut(&peer_hop) {
                wants.remove(&hop);
            }
            if let Some(path) = relay.between.get(&peer_hop).and_then(|to| to.get(&hop)).copied() {
                self.say(other(peer_hop), Moqt::Gone { path });
            }
        }
    }

    /// A node that died knows nothing any more; a relay has nothing else to lose.
    pub(super) fn relay_of_dead(&mut self, n: usize) {
        let Some(relay) = &mut self.relay else { return };
        if relay.node == n {
            relay.hops.clear();
            relay.wants.clear();
            return;
        }
        relay.fanned.retain(|(node, _)| *node != n);
        let dead = relay.paths.iter().filter(|(_, path)| path.node == n);
        let dead: Vec<SessionId> = dead.map(|(session, _)| *session).collect();
        for path in dead {
            relay.remove_path(path);
        }
    }

    /// Says something on this end of a connection.
    pub(super) fn say(&mut self, session: SessionId, moqt: Moqt) {
        let len = moqt.len();
        if let (Moqt::Object { .. }, Some(end)) = (&moqt, self.ends.get(&session))
            && let Some(node) = self.nodes.get_mut(end.node)
        {
            node.sent_objects += 1;
        }
        self.carry(session, Load::Moqt(moqt), len, false);
    }

    /// Something arrives at this end of a connection.
    pub(super) fn moqt_arrives(&mut self, session: SessionId, node: usize, moqt: Moqt) {
        if self.is_relay(node) {
            return self.relayed(other(session), moqt);
        }
        let Some(relay) = &mut self.relay else { return };
        match moqt {
            Moqt::Announced { path } if relay.paths.contains_key(&path) => {
                self.say(session, Moqt::Subscribe { path });
            }
            Moqt::Gone { path } => self.path_down(path),
            Moqt::Subscribed { path } => {
                let Some(end) = relay.paths.get_mut(&path) else { return };
                end.wanted = true;
                let greeted = end.greeted;
                self.greet(path);
                if greeted {
                    self.path_up(path);
                }
            }
            Moqt::Object { publisher, object, .. } => {
                let path = relay.between.get(&session).and_then(|to| to.get(&publisher)).copied();
                if let Some(path) = path {
                    self.object_arrives(path, &object);
                }
            }
            Moqt::Announced { .. } | Moqt::Subscribe { .. } => {}
        }
    }

    /// The relay hears something on a connection.
    fn relayed(&mut self, hop: SessionId, moqt: Moqt) {
        let Some(relay) = &mut self.relay else { return };
        match moqt {
            Moqt::Subscribe { path } => {
                let Some((node, publisher)) =
                    relay.paths.get(&path).map(|path| (path.node, path.peer_hop))
                else {
                    return;
                };
                relay.wants.entry(publisher).or_default().insert(hop, node);
                self.say(other(publisher), Moqt::Subscribed { path: other(path) });
            }
            Moqt::Object { track, object, .. } => {
                let only = match &track {
                    Track::To(agent) | Track::Acks(agent) => self.by_name.get(agent),
                    _ => None,
                };
                let wants = relay.wants.get(&hop).into_iter().flatten();
                let to: Vec<SessionId> = wants
                    .filter(|(_, node)| only.is_none_or(|only| only == *node))
                    .map(|(reader, _)| *reader)
                    .collect();
                #[cfg(feature = "mutants")]
                self.relay_is_ack(hop, &object);
                for reader in to {
                    let (track, object) = (track.clone(), object.clone());
                    self.say(other(reader), Moqt::Object { publisher: hop, track, object });
                }
            }
            Moqt::Announced { .. } | Moqt::Gone { .. } | Moqt::Subscribed { .. } => {}
        }
    }

    /// The other end of a path has said hello.
    pub(super) fn greeted(&mut self, path: SessionId) {
        let Some(end) = self.relay.as_mut().and_then(|relay| relay.paths.get_mut(&path)) else {
            return;
        };
        end.greeted = true;
        if end.wanted {
            self.path_up(path);
        }
    }

    /// The other end of a path is there: the core may use it.
    pub(super) fn path_up(&mut self, path: SessionId) {
        let Some(end) = self.relay.as_mut().and_then(|relay| relay.paths.get_mut(&path)) else {
            return;
        };
        let (node, at) = (end.node, end.peer);
        if std::mem::replace(&mut end.up, true) {
            return;
        }
        self.note(Some(node), || format!("path {} with {at} is up", path.0));
        self.checker.session(self.now, node, at, path, true);
        let Some(peer) = self.name_of(at) else { return };
        let window = self.options.window;
        self.input(node, Input::SessionUp { session: path, peer, window });
    }

    fn path_down(&mut self, path: SessionId) {
        let Some(end) = self.relay.as_mut().and_then(|relay| relay.remove_path(path)) else {
            return;
        };
        if end.up {
            self.note(Some(end.node), || format!("path {} with {} is down", path.0, end.peer));
            self.checker.session(self.now, end.node, end.peer, path, false);
            self.input(end.node, Input::SessionDown { session: path });
        }
    }

    /// Names of this end of a path and of the other, and the connection of this one.
    pub(super) fn ends_of(&self, path: SessionId) -> Option<(AgentId, AgentId, SessionId)> {
        let end = self.relay.as_ref()?.paths.get(&path)?;
        Some((self.name_of(end.node)?, self.name_of(end.peer)?, end.hop))
    }
}
