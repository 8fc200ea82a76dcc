//! Histories written by hand, right or wrong.

use crate::common::*;
use bytes::Bytes;
use netsim::Options;
use netsim::check::{Bounds, Checker, Spec};
use proto::ack::{AckRun, AckStatus, RefRange};
use proto::backoff::Backoff;
use proto::id::{GovernedKey, Kind};
use proto::obligation::Obligation;
use proto::polarity::{Change, Registry};
use proto::profile::OnDecline;
use proto::record::{
    Cell, CellValue, Escalation, EscalationReason, Ledger, Outcome, Pending, Reconcile,
    ReconcileKind, Role, Terminal, cell_key, issued_key, num_key,
};
use proto::step::{Output, SessionId};
use proto::store::{Table, Write};
use proto::time::Time;
use proto::weight::Weight;

pub(crate) const T0: u64 = 1_000_000;
pub(crate) const A: usize = 0;
pub(crate) const B: usize = 1;

/// A history being written: node `a` issues to node `b`.
pub(crate) struct History {
    pub(crate) checker: Checker,
}

pub(crate) fn put(table: Table, key: Bytes, value: Bytes) -> Write {
    Write { table, key, value: Some(value) }
}

pub(crate) fn remove(table: Table, key: Bytes) -> Write {
    Write { table, key, value: None }
}

pub(crate) fn weight(units: f64) -> CellValue {
    CellValue::Weight(Weight::from_f64(units).unwrap())
}

pub(crate) fn obligation(id: &'static str) -> Obligation {
    Offered::belief(id, T0, -0.25).to("b")
}

pub(crate) fn pending_of(obligation: &Obligation) -> Bytes {
    let backoff = Backoff { base_ms: 1, cap_ms: 1, jitter_permille: 0 };
    Pending { backoff, on_decline: OnDecline::Apply, obligation: obligation.encode() }.encode()
}

pub(crate) fn pending(num: u64, id: &'static str) -> Write {
    put(Table::Pending, num_key(num), pending_of(&obligation(id)))
}

pub(crate) fn ended(num: u64, id: &str, terminal: Terminal, at: u64) -> [Write; 2] {
    ended_of(num, id, BELIEF, terminal, at, None)
}

pub(crate) fn ended_of(
    num: u64,
    id: &str,
    kind: &str,
    terminal: Terminal,
    at: u64,
    sequence: Option<u64>,
) -> [Write; 2] {
    let outcome = Outcome {
        terminal,
        num,
        kind: Kind::new(kind).unwrap(),
        target: agent("b"),
        at: Time::from_ms(at),
        created_at: Time::from_ms(T0),
        deadline_at: Time::from_ms(T0 + 60_000),
        retries: 0,
        sequence,
        digest: 0,
        reason: None,
        late_applied_at: None,
    };
    [
        put(Table::Outcome, Bytes::copy_from_slice(id.as_bytes()), outcome.encode()),
        remove(Table::Pending, num_key(num)),
    ]
}

pub(crate) fn cell(
    role: Role,
    id: &str,
    kind: &str,
    value: CellValue,
    sequence: Option<u64>,
) -> Write {
    let who = if role == Role::Principal { "b" } else { "a" };
    let key = GovernedKey::new(if kind == BELIEF { "route" } else { "calendar" }).unwrap();
    let at = cell_key(role, &agent(who), &Kind::new(kind).unwrap(), &key);
    let cell = Cell { value, sequence, obligation_id: oid(id), num: 0, at: Time::from_ms(T0) };
    put(Table::Cell, at, cell.encode())
}

pub(crate) fn effect(id: &str, units: f64) -> Write {
    cell(Role::Receiver, id, BELIEF, weight(units), None)
}

pub(crate) fn ledger(id: &str, status: AckStatus) -> Write {
    let deadline_at = Time::from_ms(T0 + 60_000);
    let ledger =
        Ledger { status, acked_at: Time::from_ms(T0), deadline_at, digest: 0, reason: None };
    put(Table::Ledger, issued_key(&agent("a"), &oid(id)), ledger.encode())
}

pub(crate) fn escalation(num: u64, id: &'static str, applied: bool) -> Write {
    let judged = Registry::default().judge(&obligation(id)).unwrap();
    let item = Escalation {
        obligation_id: oid(id),
        kind: Kind::new(BELIEF).unwrap(),
        target: agent("b"),
        reason: EscalationReason::Unreachable,
        at_ms: T0 + 60_000,
        deadline_at_ms: T0 + 60_000,
        retries: 0,
        safe_action: judged.safe_action(&obligation(id), "test").unwrap(),
        safe_action_applied: applied,
        acknowledged_at_ms: None,
        delivered_at_ms: None,
        outlived: false,
    };
    put(Table::Escalation, num_key(num), serde_json::to_vec(&item).unwrap().into())
}

pub(crate) fn late_item(number: u64, id: &str) -> Write {
    reconcile(number, ReconcileKind::LateApplied, id)
}

pub(crate) fn reconcile(number: u64, kind: ReconcileKind, id: &str) -> Write {
    let item = Reconcile {
        kind,
        obligation_id: oid(id),
        agent: agent("b"),
        at_ms: T0,
        detail: String::new(),
        safe_action: None,
        resolution: None,
        resolved_at_ms: None,
    };
    put(Table::Reconcile, num_key(number), serde_json::to_vec(&item).unwrap().into())
}

impl History {
    pub(crate) fn new() -> Self {
        let bounds = Bounds {
            skew_ms: 500,
            weights: Options::weights(),
            late_ms_max: 1_000,
            settle_ms_max: 5_000,
            prompt: true,
            retention_ms: 1_000_000,
            outcomes_max: 10,
            outcomes_slack: 0,
            pending_max: 4,
            pending_per_peer_max: 3,
            window: 2,
            window_bytes: 10_000,
        };
        let mut checker = Checker::new(bounds, [agent("a"), agent("b")]);
        checker.up(T0, A);
        checker.up(T0, B);
        let mut history = Self { checker };
        for id in ["c-1", "c-2"] {
            history.asks(
                id,
                true,
                false,
                Change::Weight { delta: Weight::from_f64(-0.25).unwrap() },
            );
        }
        history
    }

    pub(crate) fn asks(&mut self, id: &str, admissible: bool, external: bool, change: Change) {
        let set = matches!(change, Change::Authorization { .. });
        let key = GovernedKey::new(if set { "calendar" } else { "route" }).unwrap();
        self.checker.asked(Spec {
            issuer: A,
            id: oid(id),
            target: B,
            key,
            change,
            admissible,
            external,
        });
    }

    pub(crate) fn commit(
        mut self,
        node: usize,
        at: u64,
        writes: impl IntoIterator<Item = Write>,
    ) -> Self {
        let writes: Vec<Write> = writes.into_iter().collect();
        self.checker.committed(at, node, Time::from_ms(at), &writes);
        self
    }

    pub(crate) fn release(mut self, node: usize, at: u64, output: &Output) -> Self {
        self.checker.released(at, node, output);
        self
    }

    /// `c-1` issued, and applied at `b`.
    pub(crate) fn applied() -> Self {
        Self::new().commit(A, T0, [pending(1, "c-1")]).commit(
            B,
            T0 + 10,
            [effect("c-1", 0.25), ledger("c-1", AckStatus::Applied)],
        )
    }

    /// `c-1` escalated at its deadline, as it should be.
    pub(crate) fn escalated() -> Self {
        let safe = cell(Role::Principal, "c-1", BELIEF, weight(0.25), None);
        let writes = ended(1, "c-1", Terminal::Escalated, T0 + 60_000)
            .into_iter()
            .chain([safe, escalation(1, "c-1", true)]);
        Self::new().commit(A, T0, [pending(1, "c-1")]).commit(A, T0 + 60_000, writes)
    }

    #[track_caller]
    pub(crate) fn fires(self, rule: &str) {
        let broken = self.checker.violations();
        assert!(
            broken.iter().any(|violation| violation.rule == rule),
            "{rule} did not fire: {broken:?}"
        );
    }

    #[track_caller]
    pub(crate) fn holds(self) -> Self {
        assert!(self.checker.violations().is_empty(), "{:?}", self.checker.violations());
        self
    }
}

pub(crate) fn offers_of(items: &[Obligation]) -> Output {
    let items = items.iter().map(Obligation::encode).collect();
    Output::Offers { session: SessionId(2), first_ref: 0, items }
}

pub(crate) fn ack_of(status: AckStatus) -> Output {
    let refs = vec![RefRange { first: 0, count: 1 }];
    let runs = vec![AckRun { status, acked_at: Time::from_ms(T0), reason: None, refs }];
    Output::AckRuns { session: SessionId(3), runs }
}
