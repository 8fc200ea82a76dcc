//! A state without any reduction.

use super::key::digest;
use super::look::Seen;
use super::machine::Machine;
use super::rules::Rules;
use super::setup::ITEMS_MAX;
use super::state::{Items, World};
use super::wire::{Link, Message};
use crate::disk::SimStore;
use bytes::Bytes;
use proto::custody::{Memory, SessionMemory};
use proto::step::SessionId;
use proto::store::Table;
use std::collections::{BTreeMap, BTreeSet};

/// A table's keys and values.
type Members = (Table, Vec<(Vec<u8>, Bytes)>);

/// A state as it is: every record, all that is remembered, every message. Only the numbers of
/// sessions are by rank, since they are compared and never shown.
#[derive(Hash)]
pub(super) struct Exact {
    tick: u8,
    crashes: (u8, u8),
    breaks: u8,
    broken: Rules,
    answered: bool,
    marks: [Items; 3],
    effects: [u8; ITEMS_MAX],
    links: Vec<Link>,
    net: Vec<Message>,
    disks: [Vec<Members>; 2],
    lasting: u64,
    memories: [Option<Memory>; 2],
    flights: [Vec<(bool, u8, String)>; 2],
}

impl Exact {
    pub(super) fn of(world: &World, seen: &Seen) -> Self {
        let mut memories =
            [&seen.custodian, &seen.receiver].map(|memory| memory.as_deref().cloned());
        let mut sessions: BTreeSet<SessionId> =
            world.links.iter().map(|link| link.session).collect();
        for memory in memories.iter_mut().flatten() {
            each_session(memory, &mut |session| {
                sessions.insert(*session);
            });
        }
        let ranks: BTreeMap<SessionId, u64> = sessions.into_iter().zip(0..).collect();
        let rank = |session: &mut SessionId| {
            *session = SessionId(ranks.get(session).copied().unwrap_or(u64::MAX));
        };
        for memory in memories.iter_mut().flatten() {
            each_session(memory, &mut |session| rank(session));
        }
        let mut links = world.links.clone();
        links.iter_mut().for_each(|link| rank(&mut link.session));
        let mut net: Vec<Message> = world.net.iter().cloned().collect();
        net.iter_mut().for_each(|message| rank(message.session_mut()));
        let disk = |machine: &Machine| {
            Table::ALL
                .iter()
                .map(|table| {
                    let members = machine.store.iter(*table);
                    (*table, members.map(|(key, value)| (key.to_vec(), value.clone())).collect())
                })
                .collect()
        };
        let mut lasting = SimStore::clone(&world.receiver.store);
        lasting.crash(0);
        let lasting: Vec<_> = lasting.iter(Table::Cell).collect();
        let flights = |machine: &Machine| {
            let each = machine.flights().iter();
            each.map(|flight| {
                (flight.sync, flight.tick, format!("{:?} {:?}", flight.writes, flight.outputs))
            })
            .collect()
        };
        Self {
            tick: world.tick,
            crashes: world.crashes,
            breaks: world.breaks,
            broken: world.broken,
            answered: world.answered,
            marks: [world.asked, world.done, world.taken],
            effects: world.effects,
            links,
            net,
            disks: [disk(&world.custodian), disk(&world.receiver)],
            lasting: digest(&lasting),
            memories,
            flights: [flights(&world.custodian), flights(&world.receiver)],
        }
    }
}

fn each_session(memory: &mut Memory, with: &mut impl FnMut(&mut SessionId)) {
    for transfer in &mut memory.transfers {
        transfer.sent.iter_mut().for_each(|(session, _)| with(session));
    }
    memory.sessions.iter_mut().for_each(|SessionMemory { session, .. }| with(session));
    for peer in &mut memory.peers {
        peer.sessions.iter_mut().for_each(&mut *with);
    }
    for deciding in &mut memory.deciding {
        deciding.offer.iter_mut().for_each(|(session, _)| with(session));
    }
}
