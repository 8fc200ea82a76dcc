//! What a disk says of each obligation, read with the node's own record code.

use super::action::Side;
use super::machine::Machine;
use super::setup::ITEMS_MAX;
use super::state::{World, number};
use crate::disk::SimStore;
use proto::ack::AckStatus;
use proto::custody::Memory;
use proto::obligation::Obligation;
use proto::record::{
    Attempt, Cell, CellValue, Intent, IntentState, Ledger, Outcome, Pending, Reconcile, Role,
    Terminal, key_num, num_key, split_cell_key, split_issued_key,
};
use proto::step::SessionId;
use proto::store::Table;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Nano-units of weight one effect moves.
const STEP_NANOS: i64 = 100_000_000;

/// What the custodian's disk says of one obligation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Kept {
    /// Retries, and whether it was deferred, if it is pending.
    pub(super) pending: Option<(u32, bool)>,
    /// How it ended, and whether an `applied` came later.
    pub(super) ended: Option<(Terminal, bool)>,
    /// Whether its escalation is in the inbox.
    pub(super) escalation: bool,
    /// Items filed for reconciliation.
    pub(super) filed: u8,
    /// Times the principal's weight was lowered for it.
    pub(super) protected: i64,
}

/// What the receiver's disk says of one obligation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Had {
    /// What it has answered.
    pub(super) ledger: Option<AckStatus>,
    /// What is known of the effect asked of a handler: 0 asked, 1 deferred, 2 in doubt.
    pub(super) intent: Option<u8>,
    /// Items filed for reconciliation, and how many are open.
    pub(super) filed: (u8, u8),
    /// Times its weight moved.
    pub(super) moved: i64,
}

/// Everything a state is judged and recognised by, read once.
#[derive(Clone)]
pub(super) struct Seen {
    /// None: damaged.
    pub(super) kept: Option<Arc<CustodianDisk>>,
    /// None: damaged.
    pub(super) had: Option<Arc<ReceiverDisk>>,
    /// What the custodian remembers, if it is up.
    pub(super) custodian: Option<Arc<Memory>>,
    /// What the receiver remembers, if it is up.
    pub(super) receiver: Option<Arc<Memory>>,
}

impl Seen {
    /// Reads a state; what is as it was in the state `last`, and is shared with it, is not read
    /// again.
    pub(super) fn of(world: &World, last: Option<(&World, &Self)>) -> Self {
        let same = |old: &Machine, new: &Machine| Arc::ptr_eq(&old.store, &new.store);
        let kept = match last {
            Some((old, seen)) if same(&old.custodian, &world.custodian) => seen.kept.clone(),
            _ => CustodianDisk::read(&world.custodian.store).map(Arc::new),
        };
        let had = match last {
            Some((old, seen)) if same(&old.receiver, &world.receiver) => seen.had.clone(),
            _ => ReceiverDisk::read(&world.receiver.store).map(Arc::new),
        };
        let memory = |side: Side| {
            let live = world.machine(side).live.as_ref()?;
            let old = last.and_then(|(old, seen)| Some((old.machine(side).live.as_ref()?, seen)));
            if let Some((_, seen)) = old.filter(|(old, _)| Arc::ptr_eq(old, live)) {
                return seen.memory(side);
            }
            Some(Arc::new(live.custody.memory()))
        };
        let (custodian, receiver) = (memory(Side::Custodian), memory(Side::Receiver));
        Self { kept, had, custodian, receiver }
    }

    fn memory(&self, side: Side) -> Option<Arc<Memory>> {
        match side {
            Side::Custodian => self.custodian.clone(),
            Side::Receiver => self.receiver.clone(),
        }
    }
}

/// Offers whose acks the custodian would take, and whether they are its last ones.
pub(super) fn remembered(memory: Option<&Memory>) -> BTreeMap<(SessionId, u64), bool> {
    let mut remembered = BTreeMap::new();
    for session in memory.map_or(&[][..], |memory| &memory.sessions) {
        let id = session.session;
        remembered.extend(session.elsewhere.iter().map(|(at, _)| ((id, *at), false)));
        remembered.extend(session.in_flight.iter().map(|(at, _)| ((id, *at), true)));
    }
    remembered
}

/// What the custodian's disk says.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CustodianDisk {
    pub(super) items: [Kept; ITEMS_MAX],
    /// The pending set, by transfer number.
    pub(super) pending: BTreeMap<u64, usize>,
}

/// What the receiver's disk says.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ReceiverDisk {
    pub(super) items: [Had; ITEMS_MAX],
}

impl CustodianDisk {
    /// Reads it. None: there is a record that nothing reads.
    pub(super) fn read(store: &SimStore) -> Option<Self> {
        let mut disk = Self::default();
        for (key, value) in store.iter(Table::Pending) {
            let num = key_num(key)?;
            let pending = Pending::decode(value).ok()?;
            let item = number(&Obligation::decode(&pending.obligation).ok()?.id)?;
            let attempt = match store.value(Table::Attempt, key) {
                Some(attempt) => Attempt::decode(attempt).ok()?,
                None => Attempt::default(),
            };
            disk.items.get_mut(item)?.pending = Some((attempt.retries, attempt.deferred));
            disk.pending.insert(num, item);
        }
        for (key, value) in store.iter(Table::Outcome) {
            let item = number(&proto::id::ObligationId::new(std::str::from_utf8(key).ok()?).ok()?)?;
            let outcome = Outcome::decode(value).ok()?;
            let kept = disk.items.get_mut(item)?;
            kept.ended = Some((outcome.terminal, outcome.late_applied_at.is_some()));
            kept.escalation = store.value(Table::Escalation, &num_key(outcome.num)).is_some();
        }
        for (_, value) in store.iter(Table::Reconcile) {
            let filed: Reconcile = serde_json::from_slice(value).ok()?;
            disk.items.get_mut(number(&filed.obligation_id)?)?.filed += 1;
        }
        let mut moved = [0; ITEMS_MAX];
        moves(store, Role::Principal, &mut moved)?;
        for (kept, moved) in disk.items.iter_mut().zip(moved) {
            kept.protected = moved;
        }
        Some(disk)
    }
}

impl ReceiverDisk {
    /// Reads it. None: there is a record that nothing reads.
    pub(super) fn read(store: &SimStore) -> Option<Self> {
        let mut disk = Self::default();
        for (key, value) in store.iter(Table::Ledger) {
            let item = number(&split_issued_key(key)?.1)?;
            disk.items.get_mut(item)?.ledger = Some(Ledger::decode(value).ok()?.status);
        }
        for (key, value) in store.iter(Table::Intent) {
            let item = number(&split_issued_key(key)?.1)?;
            disk.items.get_mut(item)?.intent = Some(match Intent::decode(value).ok()?.state {
                IntentState::Asked => 0,
                IntentState::Deferred => 1,
                IntentState::InDoubt => 2,
            });
        }
        for (_, value) in store.iter(Table::Reconcile) {
            let filed: Reconcile = serde_json::from_slice(value).ok()?;
            let (all, open) = &mut disk.items.get_mut(number(&filed.obligation_id)?)?.filed;
            *all += 1;
            *open += u8::from(filed.resolution.is_none());
        }
        let mut moved = [0; ITEMS_MAX];
        moves(store, Role::Receiver, &mut moved)?;
        for (had, moved) in disk.items.iter_mut().zip(moved) {
            had.moved = moved;
        }
        Some(disk)
    }
}

/// How often the weights of a role moved. None: a damaged cell.
fn moves(store: &SimStore, role: Role, moved: &mut [i64; ITEMS_MAX]) -> Option<()> {
    let initial = crate::Options::weights().initial.nanos();
    for (key, value) in store.iter(Table::Cell) {
        let (of, _, _, name) = split_cell_key(key)?;
        let CellValue::Weight(weight) = Cell::decode(value).ok()?.value else { return None };
        let item: usize = name.as_str().strip_prefix("route-")?.parse().ok()?;
        let away = (weight.nanos() - initial).abs();
        if of != role || away % STEP_NANOS != 0 {
            return None;
        }
        *moved.get_mut(item)? = away / STEP_NANOS;
    }
    Some(())
}
