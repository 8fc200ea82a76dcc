//! What is between the nodes: connections, and what was sent on them.

use super::action::Copy;
use super::rules::Rule;
use super::setup::Setup;
use super::state::{World, id_of, number};
use bytes::Bytes;
use proto::ack::{AckRun, AckStatus, CustodyAck, Reason, RefRange};
use proto::custody::Input;
use proto::id::AgentId;
use proto::obligation::Obligation;
use proto::step::{Output, SessionId};
use proto::time::Time;

/// A connection. Each side has it until it notices that the other has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) session: SessionId,
    /// Whether the custodian has it.
    pub(super) custodian: bool,
    /// Whether the receiver has it.
    pub(super) receiver: bool,
    /// Whether nothing more gets onto it.
    pub(super) cut: bool,
}

impl Link {
    /// Whether what is sent on it may arrive.
    pub(super) const fn open(&self) -> bool {
        self.custodian && self.receiver && !self.cut
    }
}

/// Something sent. It stays in the network for as long as its session has an end to arrive at: so
/// it is delivered never, once or often, and in any order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Message {
    /// An offer under custody, to the receiver.
    Offer { session: SessionId, reference: u64, item: usize, bytes: Bytes },
    /// A benign obligation, to the receiver.
    Benign { session: SessionId, item: usize, bytes: Bytes },
    /// An ack by ref, to the custodian.
    Ack {
        session: SessionId,
        reference: u64,
        item: usize,
        status: AckStatus,
        reason: Option<Reason>,
    },
    /// An ack by id, to the custodian.
    AckById { session: SessionId, item: usize, status: AckStatus, reason: Option<Reason> },
}

impl Message {
    pub(super) const fn session(&self) -> SessionId {
        match self {
            Self::Offer { session, .. }
            | Self::Benign { session, .. }
            | Self::Ack { session, .. }
            | Self::AckById { session, .. } => *session,
        }
    }

    pub(super) const fn session_mut(&mut self) -> &mut SessionId {
        match self {
            Self::Offer { session, .. }
            | Self::Benign { session, .. }
            | Self::Ack { session, .. }
            | Self::AckById { session, .. } => session,
        }
    }

    pub(super) const fn to_receiver(&self) -> bool {
        matches!(self, Self::Offer { .. } | Self::Benign { .. })
    }
}

impl World {
    /// The session that carries what is sent now.
    pub(super) fn open(&self) -> Option<SessionId> {
        self.links.iter().find(|link| link.open()).map(|link| link.session)
    }

    pub(super) fn link(&self, session: SessionId) -> Option<&Link> {
        self.links.iter().find(|link| link.session == session)
    }

    /// Whether a message still has an end to arrive at.
    pub(super) fn arrives(&self, message: &Message) -> bool {
        self.link(message.session())
            .is_some_and(|link| if message.to_receiver() { link.receiver } else { link.custodian })
    }

    /// Hands outputs over that are free to go.
    pub(super) fn release(&mut self, setup: &Setup, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Offers { session, first_ref, items } => {
                    for (reference, bytes) in (first_ref..).zip(items) {
                        let Some(item) = self.item_of(&bytes) else { continue };
                        if !self.taken.has(item) {
                            self.broken.add(Rule::Ab1DiskFirst);
                        }
                        self.send(Message::Offer { session, reference, item, bytes });
                    }
                }
                Output::BestEffort { items, .. } => {
                    let Some(session) = self.open() else { continue };
                    for bytes in items {
                        let Some(item) = self.item_of(&bytes) else { continue };
                        self.send(Message::Benign { session, item, bytes });
                    }
                }
                Output::AckRuns { session, runs } => {
                    for run in runs {
                        self.send_acks(session, &run);
                    }
                }
                Output::Acks { acks, .. } => {
                    let Some(session) = self.open() else { continue };
                    for CustodyAck { obligation_id, status, reason, .. } in acks {
                        let Some(item) = number(&obligation_id) else { continue };
                        self.send(Message::AckById { session, item, status, reason });
                    }
                }
                Output::Decide { obligation, .. } => {
                    if let Some(item) = self.item_of(&obligation) {
                        self.asked.add(item);
                    }
                }
                Output::Issued { results, .. } => {
                    self.answered = true;
                    if results.iter().any(Result::is_err) {
                        self.broken.add(Rule::TypeOk);
                    }
                    let kept = |item: usize| !setup.is_admissible(item) || self.taken.has(item);
                    if !(0..setup.items()).all(kept) {
                        self.broken.add(Rule::Ab1DiskFirst);
                    }
                }
                // Rates and limits are out of reach, so nothing is refused.
                Output::Refuse { .. } => self.broken.add(Rule::TypeOk),
                Output::Answer { .. }
                | Output::ProbeReply { .. }
                | Output::RetryDue { .. }
                | Output::Inform { .. }
                | Output::Operated { .. }
                | Output::Event(_) => {}
            }
        }
    }

    fn send(&mut self, message: Message) {
        if self.link(message.session()).is_some_and(Link::open) {
            self.net.insert(message);
        }
    }

    fn send_acks(&mut self, session: SessionId, run: &AckRun) {
        for reference in run.refs.iter().flat_map(|range| range.iter()) {
            let offered = self.net.iter().find_map(|message| match message {
                Message::Offer { session: on, reference: at, item, .. }
                    if (*on, *at) == (session, reference) =>
                {
                    Some(*item)
                }
                _ => None,
            });
            let Some(item) = offered else { continue };
            let (status, reason) = (run.status, run.reason.clone());
            self.send(Message::Ack { session, reference, item, status, reason });
        }
    }

    fn item_of(&mut self, bytes: &Bytes) -> Option<usize> {
        let item = Obligation::decode(bytes).ok().and_then(|obligation| number(&obligation.id));
        if item.is_none() {
            self.broken.add(Rule::TypeOk);
        }
        item
    }

    /// Copies of an offer that can be delivered: session, ref, bytes.
    pub(super) fn copies(&self, item: usize) -> impl Iterator<Item = (SessionId, u64, &Bytes)> {
        self.net.iter().filter_map(move |message| match message {
            Message::Offer { session, reference, item: of, bytes } if *of == item => self
                .link(*session)
                .is_some_and(|link| link.receiver)
                .then_some((*session, *reference, bytes)),
            _ => None,
        })
    }

    /// An ack, with all on their way that say the same of its obligation, where these arrive together.
    pub(super) fn acks<'a>(
        &'a self,
        setup: &Setup,
        one: &'a Message,
    ) -> impl Iterator<Item = &'a Message> {
        let singly = setup.singly();
        self.net.iter().filter(move |other| match (one, other) {
            _ if singly => *other == one,
            (Message::Ack { item, status, .. }, Message::Ack { item: of, status: says, .. }) => {
                (item, status) == (of, says) && self.arrives(other)
            }
            _ => *other == one,
        })
    }

    pub(super) fn offers(&self, item: usize, copy: Copy) -> Vec<Input> {
        let wanted = |session, reference| match copy {
            Copy::All => true,
            Copy::One(one) => one == (session, reference),
        };
        self.copies(item)
            .filter(|(session, reference, _)| wanted(*session, *reference))
            .map(|(session, first_ref, bytes)| Input::Offers {
                session,
                first_ref,
                items: vec![bytes.clone()],
            })
            .collect()
    }
}

pub(super) fn ack_input(message: &Message) -> Option<Input> {
    match message {
        Message::Ack { session, reference, status, reason, .. } => {
            let run = AckRun {
                status: *status,
                acked_at: Time::default(),
                reason: reason.clone(),
                refs: vec![RefRange { first: *reference, count: 1 }],
            };
            Some(Input::AckRuns { session: *session, runs: vec![run] })
        }
        Message::AckById { item, status, reason, .. } => {
            let target = AgentId::new("b").ok()?;
            let ack = CustodyAck {
                obligation_id: id_of(*item)?,
                target: target.clone(),
                status: *status,
                acked_at: Time::default(),
                reason: reason.clone(),
            };
            Some(Input::Acks { peer: target, acks: vec![ack] })
        }
        Message::Offer { .. } | Message::Benign { .. } => None,
    }
}
