//! Custody on tracks: what a node's binding makes of the outputs of its core, and of the objects that
//! come. Batches, statements, hellos, refusals and templates are the real ones; a signature is as many
//! zeros, which nobody in this world forges.

use super::World;
use super::link::other;
use super::relay::{Moqt, Path, Taken};
use crate::check::Class;
use bytes::Bytes;
use proto::ack::{AckRun, CustodyAck, RefRange};
use proto::batch::{Audience, Batch, Content, Hash, Hello, Refusal, Statement};
use proto::custody::Input;
use proto::fanout::{GroupId, Template, group_of};
use proto::frame::Frame;
use proto::id::{AgentId, ObligationId};
use proto::obligation::Obligation;
use proto::step::{Output, SessionId};
use proto::track::{Epoch, GroupName, Namespace, Part, Track};
use std::collections::BTreeMap;

/// Bytes of a signature beside its statement: heads and algorithm of the COSE_Sign1 (16), the signature
/// (64) and a certificate in x5chain (600).
const SIGNATURE_LEN: usize = 16 + 64 + 600;
/// Batches of a path whose refusal is understood.
const SENT_MAX: usize = 1_024;
/// Offers of a path that await an answer, at most.
const TAKEN_MAX: usize = 1 << 16;
/// The group of all peers.
const EVERYBODY: &str = "all";

/// A batch of `issuer`, and its root.
fn object(
    (publisher, session): (AgentId, SessionId),
    audience: Audience,
    content: Content,
    items: Vec<Bytes>,
) -> (Hash, Bytes) {
    let epoch = Epoch { boot: 1, session: session.0 };
    let part = match audience {
        Audience::Agent(_) => Part::Peers { index: 0, count: 1 },
        Audience::Group(_) | Audience::Everyone => Part::All,
    };
    let statement = Statement::of(Namespace { publisher, epoch, part }, audience, content, &items);
    let mut signed = statement.encode().to_vec();
    signed.resize(signed.len() + SIGNATURE_LEN, 0);
    (statement.root, Batch { signed: signed.into(), items }.encode())
}

/// What an object says, if its signature is one and speaks of its items.
fn read(object: &Bytes) -> Result<(Statement, Vec<Bytes>), String> {
    let batch = Batch::decode(object).map_err(|error| error.to_string())?;
    let len = batch.signed.len().checked_sub(SIGNATURE_LEN).ok_or("no signature")?;
    let statement = batch.signed.get(..len).unwrap_or_default();
    let statement = Statement::decode(statement).map_err(|error| error.to_string())?;
    statement.check(&batch.items).map_err(|error| error.to_string())?;
    Ok((statement, batch.items))
}

impl World {
    /// Puts what a core says to a peer on the track for that peer.
    pub(super) fn publish(&mut self, path: SessionId, frame: Frame) {
        let Some((me, peer, _)) = self.ends_of(path) else { return };
        match frame {
            Frame::Offers { first_ref, items } => {
                let refs = (first_ref..).take(items.len()).collect();
                self.publish_offers(path, items, refs);
            }
            Frame::BestEffort { items } => {
                self.object_to(path, Track::To(peer), Content::BestEffort, items);
            }
            Frame::AckRuns(runs) => {
                let acks = self.acks_by_id(path, &me, &runs);
                self.object_to(path, Track::Acks(peer), Content::Acks, acks);
            }
            Frame::Acks(acks) => {
                let acks = acks.iter().map(CustodyAck::encode).collect();
                self.object_to(path, Track::Acks(peer), Content::Acks, acks);
            }
            Frame::Refuse { refs, code, retry_after_ms, text } => {
                let refusals = self.refused_by_root(path, &refs);
                let refusals = refusals.into_iter().map(|(root, indexes)| {
                    let (indexes, text) = (RefRange::collect(indexes), text.clone());
                    Refusal { root, indexes, code, retry_after_ms, text }.encode()
                });
                let refusals = refusals.collect();
                self.object_to(path, Track::To(peer), Content::Refusals, refusals);
            }
            // Neither asked for nor answered on tracks.
            Frame::Hello { .. }
            | Frame::Query { .. }
            | Frame::Answer { .. }
            | Frame::Probe { .. }
            | Frame::ProbeReply { .. } => {}
        }
    }

    fn publish_offers(&mut self, path: SessionId, items: Vec<Bytes>, refs: Vec<u64>) {
        let Some((_, peer, _)) = self.ends_of(path) else { return };
        if let Some(root) = self.object_to(path, Track::To(peer), Content::Offers, items) {
            self.remember_batch(path, root, refs);
        }
    }

    /// Publishes one object for the other end of a path.
    fn object_to(
        &mut self,
        path: SessionId,
        track: Track,
        content: Content,
        items: Vec<Bytes>,
    ) -> Option<Hash> {
        let (me, peer, hop) = self.ends_of(path)?;
        if items.is_empty() {
            return None;
        }
        let audience = Audience::agent(peer).ok()?;
        let (root, object) = object((me, hop), audience, content, items);
        self.say(hop, Moqt::Object { publisher: hop, track, object });
        Some(root)
    }

    /// Says hello to the other end of a path.
    pub(super) fn greet(&mut self, path: SessionId) {
        let Some((_, peer, _)) = self.ends_of(path) else { return };
        // No object is lost for want of a reader here, so that nothing is to be answered.
        let in_flight_max = self.options.window as u64;
        let groups = GroupName::new(EVERYBODY).into_iter().collect();
        let hello = Hello { in_flight_max, seal_key: None, answers: None, up: true, groups };
        self.object_to(path, Track::To(peer), Content::Hello, vec![hello.encode()]);
    }

    fn path(&mut self, path: SessionId) -> Option<&mut Path> {
        self.relay.as_mut()?.paths.get_mut(&path)
    }

    fn remember_batch(&mut self, path: SessionId, root: Hash, refs: Vec<u64>) {
        let Some(end) = self.path(path) else { return };
        end.sent.push_back((root, refs));
        if end.sent.len() > SENT_MAX {
            end.sent.pop_front();
        }
    }

    /// Acks of numbered offers as acks by id, which mean the same on any path.
    fn acks_by_id(&mut self, path: SessionId, me: &AgentId, runs: &[AckRun]) -> Vec<Bytes> {
        let Some(end) = self.path(path) else { return Vec::new() };
        let mut acks = Vec::new();
        for run in runs {
            for reference in run.refs.iter().flat_map(|range| range.iter()) {
                let id = end.taken.get(&reference).and_then(|taken| taken.id.clone());
                if run.status.is_final() {
                    end.taken.remove(&reference);
                }
                acks.extend(id.map(|obligation_id| {
                    let (status, acked_at, reason) = (run.status, run.acked_at, run.reason.clone());
                    CustodyAck { obligation_id, target: me.clone(), status, acked_at, reason }
                        .encode()
                }));
            }
        }
        acks
    }

    /// Refused offers by their batch and place in it.
    fn refused_by_root(&mut self, path: SessionId, refs: &[RefRange]) -> BTreeMap<Hash, Vec<u64>> {
        let mut by_root: BTreeMap<Hash, Vec<u64>> = BTreeMap::new();
        let Some(end) = self.path(path) else { return by_root };
        let (node, peer) = (end.node, end.peer);
        for reference in refs.iter().flat_map(|range| range.iter()) {
            if let Some(taken) = end.taken.remove(&reference) {
                by_root.entry(taken.root).or_default().push(taken.index);
            }
        }
        self.checker.refused(peer, node, path, refs);
        by_root
    }

    /// Whether decisions for many go to their group.
    pub(super) fn fans_out(&self) -> bool {
        self.relay.as_ref().is_some_and(|relay| relay.model.fan_out)
    }

    /// Sends the offers of one step. Of a decision for several peers all first attempts are one object
    /// for their group; what comes later, or again, goes to each by itself.
    pub(super) fn fan_out(&mut self, n: usize, offers: Vec<Output>) {
        let mut decisions: BTreeMap<(SessionId, Bytes), Vec<(SessionId, u64)>> = BTreeMap::new();
        for output in &offers {
            let Output::Offers { session, first_ref, items } = output else { continue };
            let Some((_, _, hop)) = self.ends_of(*session) else { continue };
            for (reference, item) in (*first_ref..).zip(items) {
                if let Some(template) = decision(item) {
                    let all = decisions.entry((hop, template.encode())).or_default();
                    all.push((*session, reference));
                }
            }
        }
        let mut gone: BTreeMap<SessionId, Vec<u64>> = BTreeMap::new();
        for ((hop, template), members) in decisions {
            if members.len() > 1 && self.publish_decision(n, hop, template, &members) {
                for (session, reference) in members {
                    gone.entry(session).or_default().push(reference);
                }
            }
        }
        for output in offers {
            match output {
                Output::Offers { session, first_ref, items } if gone.contains_key(&session) => {
                    let gone = gone.get(&session).map_or(&[][..], Vec::as_slice);
                    let left = (first_ref..).zip(items).filter(|(at, _)| !gone.contains(at));
                    let (refs, items): (Vec<u64>, Vec<Bytes>) = left.unzip();
                    self.publish_offers(session, items, refs);
                }
                output => self.act(n, output),
            }
        }
    }

    /// Publishes a decision for the group of all peers, once. Returns whether it did.
    fn publish_decision(
        &mut self,
        n: usize,
        hop: SessionId,
        template: Bytes,
        members: &[(SessionId, u64)],
    ) -> bool {
        let (Some(me), Ok(group)) = (self.name_of(n), GroupName::new(EVERYBODY)) else {
            return false;
        };
        let gid = Template::decode(&template).ok().map(|template| template.gid);
        let fresh = |relay: &mut super::Relay| gid.is_some_and(|gid| relay.fanned.insert((n, gid)));
        if !self.relay.as_mut().is_some_and(fresh) {
            return false;
        }
        let audience = Audience::Group(group.clone());
        let (root, object) = object((me, hop), audience, Content::GroupOffer, vec![template]);
        self.say(hop, Moqt::Object { publisher: hop, track: Track::Group(group), object });
        for (path, reference) in members {
            self.remember_batch(*path, root, vec![*reference]);
        }
        true
    }

    /// An object arrives on a path. What it says comes from the other end, and is for this one.
    pub(super) fn object_arrives(&mut self, path: SessionId, object: &Bytes) {
        let Some((me, peer, _)) = self.ends_of(path) else { return };
        let Some(node) = self.path(path).map(|end| end.node) else { return };
        let (statement, items) = match read(object) {
            Ok(read) => read,
            Err(why) => {
                let detail = format!("an object of {peer} is not what was published: {why}");
                return self.checker.breach("WR-1", Class::Safety, self.now, node, detail);
            }
        };
        let ours = match &statement.audience {
            Audience::Agent(agent) => *agent == me,
            Audience::Group(group) => group.as_str() == EVERYBODY,
            Audience::Everyone => true,
        };
        let publisher = &statement.from.publisher;
        if !ours || *publisher != peer {
            let detail = format!("an object of {publisher} for {}", statement.audience);
            return self.checker.breach("WR-1", Class::Safety, self.now, node, detail);
        }
        if statement.content == Content::Hello {
            return self.greeted(path);
        }
        // Whoever says anything else had heard from us.
        self.path_up(path);
        match statement.content {
            Content::Offers => self.offers_arrive(path, statement.root, items),
            Content::GroupOffer => {
                let templates = items.iter().filter_map(|item| Template::decode(item).ok());
                let items = templates.map(|template| template.for_member(&me).encode()).collect();
                self.offers_arrive(path, statement.root, items);
            }
            Content::BestEffort => self.input(node, Input::BestEffort { session: path, items }),
            Content::Acks => self.acks_arrive(path, peer, &items),
            Content::Refusals => self.refusals_arrive(path, &items),
            // Nobody watches here.
            Content::Hello
            | Content::Escalations
            | Content::Status
            | Content::Events
            | Content::Metrics
            | Content::Policy => {}
        }
    }

    /// Offers of a batch reach a node, which numbers them as they come.
    pub(super) fn offers_arrive(&mut self, path: SessionId, root: Hash, items: Vec<Bytes>) {
        let Some(end) = self.path(path) else { return };
        let (node, peer, first_ref) = (end.node, end.peer, end.next_in);
        end.next_in += items.len() as u64;
        for (index, item) in (0..).zip(&items) {
            let id = Obligation::id_of(item).and_then(|id| ObligationId::new(id).ok());
            end.taken.insert(first_ref + index, Taken { id, root, index });
            if end.taken.len() > TAKEN_MAX {
                end.taken.pop_first();
            }
        }
        self.checker.offered(node, peer, path, first_ref, &items);
        self.input(node, Input::Offers { session: path, first_ref, items });
    }

    fn acks_arrive(&mut self, path: SessionId, peer: AgentId, items: &[Bytes]) {
        let Some(end) = self.path(path) else { return };
        let (node, from) = (end.node, end.peer);
        let acks: Vec<CustodyAck> =
            items.iter().filter_map(|item| CustodyAck::decode(item).ok()).collect();
        self.checker.acked_by_id(self.now, node, from, &acks);
        self.input(node, Input::Acks { peer, acks });
    }

    fn refusals_arrive(&mut self, path: SessionId, items: &[Bytes]) {
        for refusal in items.iter().filter_map(|item| Refusal::decode(item).ok()) {
            let Some(end) = self.path(path) else { return };
            let node = end.node;
            let batch = end.sent.iter().rev().find(|(root, _)| *root == refusal.root);
            let at = |index: u64| batch?.1.get(usize::try_from(index).ok()?).copied();
            let refs = refusal.indexes.iter().flat_map(|range| range.iter()).filter_map(at);
            let refs = RefRange::collect(refs.collect());
            let Refusal { code, retry_after_ms, .. } = refusal;
            self.input(node, Input::Refused { session: path, refs, code, retry_after_ms });
        }
    }

    /// An object some bits of which are flipped, one to three of them by `bits`, is none: its reader drops
    /// it, and it comes again as any lost packet.
    pub(super) fn altered(&mut self, session: SessionId, moqt: &Moqt, bits: u64) {
        let Moqt::Object { object, .. } = moqt else { return };
        let mut bytes = object.to_vec();
        ::link::flip(&mut bytes, bits);
        let altered = Bytes::from(bytes);
        let signed = |object: &Bytes| Batch::decode(object).ok().map(|batch| batch.signed);
        // The zeros of the signature stand for one that would not be good for other bytes.
        if read(&altered).is_ok() && signed(&altered) == signed(object) {
            let node = self.ends.get(&other(session)).map_or(0, |end| end.node);
            let detail = "an altered object was taken for the one published".to_owned();
            self.checker.breach("WR-1", Class::Safety, self.now, node, detail);
        }
    }
}

/// The template of an obligation that was derived from one.
fn decision(item: &Bytes) -> Option<Template> {
    Obligation::id_of(item).filter(|id| id.contains('~'))?;
    let obligation = Obligation::decode(item).ok()?;
    let gid = GroupId::new(group_of(&obligation.id)?).ok()?;
    (gid.member(&obligation.target) == obligation.id).then(|| Template::of(gid, &obligation))
}
