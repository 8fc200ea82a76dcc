//! Each checker is fed a broken history and must fire: one that never does proves nothing.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "../common/mod.rs"]
mod common;
mod history;

use bytes::Bytes;
use common::*;
use history::*;
use netsim::check::{Class, LastLook};
use netsim::{Mode, Options, Sabotage, SimStore, Solo, run};
use proto::ack::{AckStatus, RefRange};
use proto::custody::Custody;
use proto::event::Event;
use proto::id::Kind;
use proto::obligation::Obligation;
use proto::polarity::Change;
use proto::record::{Attempt, CellValue, ReconcileKind, Role, Terminal, issued_key, num_key};
use proto::step::{Output, SessionId, Ticket};
use proto::store::Table;
use proto::time::Time;
use proto::weight::Weight;

#[test]
fn right_histories_hold() {
    History::applied().commit(A, T0 + 20, ended(1, "c-1", Terminal::Applied, T0 + 20)).holds();
    History::escalated().holds();
}

#[test]
fn custody_of_the_inadmissible_fires() {
    let mut history = History::new();
    history.asks("c-3", false, false, Change::Weight { delta: Weight::ZERO });
    history.commit(A, T0, [pending(1, "c-3")]).fires("AC-1");
    let mut history = History::new();
    history.asks("c-3", false, false, Change::Weight { delta: Weight::ZERO });
    history.commit(A, T0, [escalation(1, "c-3", false)]).fires("AC-1");
    let item = Output::BestEffort { peer: agent("b"), items: vec![obligation("c-1").encode()] };
    History::new().release(A, T0, &item).fires("AC-1");
}

#[test]
fn a_second_transfer_or_a_moved_deadline_fires() {
    let history = || History::new().commit(A, T0, [pending(1, "c-1")]).holds();
    history().commit(A, T0 + 1, [pending(2, "c-1")]).fires("AB-1");
    let moved = Obligation { deadline_seconds: 61, ..obligation("c-1") };
    history()
        .commit(A, T0 + 1, [put(Table::Pending, num_key(1), pending_of(&moved))])
        .fires("AB-2");
}

#[test]
fn a_revocation_that_does_not_withhold_at_issue_fires() {
    let mut history = History::new();
    history.asks("r-1", true, false, Change::Authorization { granted: false });
    let item = pending_of(&Offered::new("r-1", T0).sequence(1).to("b"));
    history.commit(A, T0, [put(Table::Pending, num_key(1), item)]).fires("AB-1");
}

#[test]
fn a_refilled_or_overdrawn_budget_fires() {
    let attempt =
        |retries| put(Table::Attempt, num_key(1), Attempt { retries, deferred: false }.encode());
    let history =
        || History::new().commit(A, T0, [pending(1, "c-1")]).commit(A, T0, [attempt(3)]).holds();
    history().commit(A, T0 + 1, [attempt(2)]).fires("AB-2");
    history().commit(A, T0 + 1, [attempt(16)]).fires("AB-2");
    let mut history = history();
    for _ in 0..17 {
        history = history.release(A, T0, &offers_of(&[obligation("c-1")]));
    }
    history.checker.finish(T0, &[]);
    history.fires("AB-2");
}

#[test]
fn a_second_effect_fires() {
    History::applied().holds().commit(B, T0 + 20, [effect("c-1", 0.0)]).fires("AB-3");
    let again = [effect("c-1", 0.0), ledger("c-1", AckStatus::Applied)];
    History::applied().commit(B, T0 + 20, again).fires("AB-3");
    let wrong = [effect("c-1", 0.3), ledger("c-1", AckStatus::Applied)];
    History::new().commit(A, T0, [pending(1, "c-1")]).commit(B, T0, wrong).fires("AB-3");
    let mut history = History::new();
    history.asks("x", true, true, Change::Weight { delta: Weight::ZERO });
    history.checker.called(T0, B, A, &oid("x"), Time::from_ms(T0));
    history.checker.called(T0, B, A, &oid("x"), Time::from_ms(T0));
    history.fires("AB-3");
}

#[test]
fn an_effect_without_ledger_or_a_ledger_without_effect_fires() {
    let history = || History::new().commit(A, T0, [pending(1, "c-1")]);
    history().commit(B, T0, [effect("c-1", 0.25)]).fires("LE-1");
    history().commit(B, T0, [ledger("c-1", AckStatus::Applied)]).fires("LE-1");
    let forgotten = [remove(Table::Ledger, issued_key(&agent("a"), &oid("c-1")))];
    History::applied().commit(B, T0 + 60_499, forgotten.clone()).fires("LE-1");
    History::applied().commit(B, T0 + 60_500, forgotten).holds();
}

#[test]
fn an_effect_near_or_past_the_deadline_fires() {
    let history = || History::new().commit(A, T0, [pending(1, "c-1")]);
    let writes = || [effect("c-1", 0.25), ledger("c-1", AckStatus::Applied)];
    history().commit(B, T0 + 59_499, writes()).holds();
    history().commit(B, T0 + 59_500, writes()).fires("DL-1");
    let mut history = History::new();
    history.asks("x", true, true, Change::Weight { delta: Weight::ZERO });
    let mut history =
        history.commit(A, T0, [put(Table::Pending, num_key(1), pending_of(&obligation("x")))]);
    history.checker.called(T0 + 60_000, B, A, &oid("x"), Time::from_ms(T0 + 60_000));
    history.commit(B, T0 + 60_001, [ledger("x", AckStatus::Applied)]).fires("DL-1");
}

#[test]
fn an_ending_that_says_otherwise_than_the_receiver_fires() {
    let history = || History::new().commit(A, T0, [pending(1, "c-1")]);
    history().commit(A, T0 + 1, ended(1, "c-1", Terminal::Applied, T0 + 1)).fires("AB-3");
    History::applied()
        .commit(A, T0 + 20, ended(1, "c-1", Terminal::Declined, T0 + 20))
        .fires("DC-1");
    let mut history = History::new();
    history.asks("x", true, true, Change::Weight { delta: Weight::ZERO });
    history.checker.called(T0, B, A, &oid("x"), Time::from_ms(T0));
    history.commit(B, T0, [ledger("x", AckStatus::Declined)]).fires("DC-1");
}

#[test]
fn a_transfer_that_vanishes_or_never_ends_fires() {
    let history = || History::new().commit(A, T0, [pending(1, "c-1")]);
    history().commit(A, T0 + 1, [remove(Table::Pending, num_key(1))]).fires("deliver-or-report");
    let mut history = history();
    history.checker.finish(T0 + 100_000, &[]);
    let broken = history.checker.violations();
    assert_eq!((broken[0].rule, broken[0].class), ("deliver-or-report", Class::Liveness));
}

#[test]
fn an_escalation_that_is_missing_early_double_or_late_fires() {
    let history = || History::new().commit(A, T0, [pending(1, "c-1")]);
    let deadline = T0 + 60_000;
    history().commit(A, deadline, ended(1, "c-1", Terminal::Escalated, deadline)).fires("AB-4");
    let early = ended(1, "c-1", Terminal::Escalated, deadline - 1)
        .into_iter()
        .chain([escalation(1, "c-1", false)]);
    history().commit(A, deadline - 1, early).fires("AB-4");
    History::escalated().commit(A, deadline + 1, [escalation(2, "c-1", false)]).fires("AB-4");
    let late = ended(1, "c-1", Terminal::Escalated, deadline + 2_000)
        .into_iter()
        .chain([escalation(1, "c-1", false)]);
    let history = history().commit(A, deadline + 2_000, late);
    assert_eq!(history.checker.violations()[0].class, Class::Liveness);
    history.fires("AB-4");
}

#[test]
fn a_safe_action_that_is_missing_or_applied_twice_fires() {
    let deadline = T0 + 60_000;
    let claimed = ended(1, "c-1", Terminal::Escalated, deadline)
        .into_iter()
        .chain([escalation(1, "c-1", true)]);
    History::new().commit(A, T0, [pending(1, "c-1")]).commit(A, deadline, claimed).fires("AB-4");
    let again = cell(Role::Principal, "c-1", BELIEF, weight(0.0), None);
    History::escalated().commit(A, deadline + 1, [again]).fires("AB-4");
}

#[test]
fn an_ending_that_leaves_the_principal_unprotected_fires() {
    let deadline = T0 + 60_000;
    let escalated = || {
        ended(1, "c-1", Terminal::Escalated, deadline)
            .into_iter()
            .chain([escalation(1, "c-1", false)])
    };
    let history = || History::new().commit(A, T0, [pending(1, "c-1")]);
    history().commit(A, deadline, escalated()).fires("AB-4");
    let declined = || ended(1, "c-1", Terminal::Declined, T0 + 10);
    history().commit(A, T0 + 10, declined()).fires("DC-1");
    let safe = cell(Role::Principal, "c-1", BELIEF, weight(0.25), None);
    history().commit(A, T0 + 10, declined().into_iter().chain([safe])).holds();
    let asked = reconcile(1, ReconcileKind::DeclineSurfaced, "c-1");
    history().commit(A, T0 + 10, declined().into_iter().chain([asked])).holds();
}

#[test]
fn a_newer_decision_protects_and_an_older_one_does_not() {
    let withheld = CellValue::Authorization { granted: false };
    let ending = |newer: Option<u64>| {
        let mut history = History::new();
        for id in ["r-1", "r-2"] {
            history.asks(id, true, false, Change::Authorization { granted: false });
        }
        let item = pending_of(&Offered::new("r-1", T0).sequence(5).to("b"));
        let issued = [
            put(Table::Pending, num_key(1), item),
            cell(Role::Principal, "r-1", CONSENT, withheld, Some(5)),
        ];
        let mut history = history.commit(A, T0, issued);
        if let Some(sequence) = newer {
            let later = cell(Role::Principal, "r-2", CONSENT, withheld, Some(sequence));
            history = history.commit(A, T0 + 1, [later]);
        }
        history.commit(
            A,
            T0 + 10,
            ended_of(1, "r-1", CONSENT, Terminal::Declined, T0 + 10, Some(5)),
        )
    };
    ending(Some(6)).holds();
    ending(None).fires("DC-1");
}

#[test]
fn an_inbox_that_forgets_what_nobody_has_seen_fires() {
    let gone = || [remove(Table::Escalation, num_key(1))];
    History::escalated().commit(A, T0 + 70_000, gone()).fires("AB-4");
    let mut history = History::escalated();
    history.checker.acknowledged(A, &oid("c-1"));
    history.commit(A, T0 + 70_000, gone()).holds();
    let both = [escalation(1, "c-2", false), escalation(2, "c-2", false)];
    History::new().commit(A, T0, both).fires("AB-4");
    // What was filed and is not there at the end.
    let solo = Solo::new(Options::quiet(1).settings(0).unwrap());
    let mut history = History::escalated().holds();
    history.checker.finish(T0 + 70_000, &[look(&solo.custody, &SimStore::default(), false)]);
    history.fires("AB-4");
}

#[test]
fn more_pending_or_in_flight_than_there_is_room_for_fires() {
    let issued = || {
        let mut history = History::new();
        history.checker.session(T0, A, B, SessionId(2), true);
        for id in ["d-1", "d-2", "d-3", "d-4"] {
            let lower = Weight::from_f64(-0.25).unwrap();
            history.asks(id, true, false, Change::Weight { delta: lower });
        }
        let three = [pending(1, "d-1"), pending(2, "d-2"), pending(3, "d-3")];
        history.commit(A, T0, three).holds()
    };
    issued().commit(A, T0, [pending(4, "d-4")]).fires("BD-1");
    let offered = |history: History, at: u64, ids: &[&'static str]| {
        let items: Vec<Obligation> = ids.iter().map(|id| obligation(id)).collect();
        history.release(A, at, &offers_of(&items))
    };
    let two = || offered(issued(), T0 + 1, &["d-1", "d-2"]).holds();
    offered(two(), T0 + 2, &["d-1"]).holds(); // the same again takes no more room
    offered(two(), T0 + 2, &["d-3"]).fires("BD-1");
    // A durable attempt gives the place of the last one up; so does a session that went.
    let attempt = put(Table::Attempt, num_key(1), Attempt { retries: 1, deferred: false }.encode());
    offered(two().commit(A, T0 + 2, [attempt]), T0 + 3, &["d-3"]).holds();
    let mut history = two();
    history.checker.session(T0 + 2, A, B, SessionId(4), false);
    offered(history, T0 + 3, &["d-3"]).holds();
    // So does a refusal, as far as the peer got the offers.
    let mut history = two();
    let items = [obligation("d-1").encode(), obligation("d-2").encode()];
    history.checker.offered(B, A, SessionId(3), 0, &items);
    history.checker.refused(A, B, SessionId(3), &[RefRange { first: 0, count: 1 }]);
    offered(history, T0 + 3, &["d-3"]).holds();
}

#[test]
fn what_is_told_as_received_and_is_not_in_the_ledger_fires() {
    let told = |status| {
        Output::Event(Event::Received {
            issuer: agent("a"),
            obligation_id: oid("c-1"),
            kind: Kind::new(BELIEF).unwrap(),
            status,
            reason: None,
        })
    };
    let history = || History::new().commit(A, T0, [pending(1, "c-1")]);
    history().release(B, T0, &told(AckStatus::Applied)).fires("PS-1");
    history().release(B, T0, &told(AckStatus::Deferred)).holds();
    History::applied().release(B, T0 + 20, &told(AckStatus::Applied)).holds();
}

#[test]
fn a_terminal_that_changes_or_reopens_fires() {
    let over = || {
        History::applied().commit(A, T0 + 20, ended(1, "c-1", Terminal::Applied, T0 + 20)).holds()
    };
    over().commit(A, T0 + 30, ended(1, "c-1", Terminal::Declined, T0 + 30)).fires("TS-1");
    over().commit(A, T0 + 30, [pending(2, "c-1")]).fires("TS-1");
    over().commit(A, T0 + 30, [late_item(1, "c-1")]).fires("TS-1");
    let late = History::escalated().commit(A, T0 + 70_000, [late_item(1, "c-1")]).holds();
    late.commit(A, T0 + 70_001, [late_item(2, "c-1")]).fires("TS-1");
}

#[test]
fn an_applied_that_comes_late_and_is_not_filed_fires() {
    let ack = || {
        let mut history = History::escalated();
        history.checker.offered(B, A, SessionId(3), 0, &[obligation("c-1").encode()]);
        let Output::AckRuns { runs, .. } = ack_of(AckStatus::Applied) else { panic!() };
        history.checker.acked(T0 + 70_000, A, B, SessionId(3), &runs);
        history
    };
    let solo = Solo::new(Options::quiet(1).settings(0).unwrap());
    let ends = |mut history: History| {
        let store = SimStore::default();
        history.checker.finish(T0 + 200_000, &[look(&solo.custody, &store, false)]);
        history
    };
    ends(ack()).fires("TS-1");
    let rules = |history: History| {
        let broken = ends(history).checker.violations().to_vec();
        broken.iter().filter(|violation| violation.rule == "TS-1").count()
    };
    assert_eq!(rules(ack().commit(A, T0 + 70_001, [late_item(1, "c-1")])), 0);
    let mut restarted = ack();
    restarted.checker.up(T0 + 70_001, A);
    assert_eq!(rules(restarted), 0, "what it was told was lost with it");
}

#[test]
fn a_guard_that_lets_older_decisions_through_fires() {
    let withheld = CellValue::Authorization { granted: false };
    for (role, node, rule) in [(Role::Principal, A, "SG-1"), (Role::Receiver, B, "SG-2")] {
        let history = || {
            let mut history = History::new();
            for id in ["r-1", "r-2"] {
                history.asks(id, true, false, Change::Authorization { granted: false });
            }
            history.commit(node, T0, [cell(role, "r-2", CONSENT, withheld, Some(5))])
        };
        history().commit(node, T0 + 1, [cell(role, "r-1", CONSENT, withheld, Some(4))]).fires(rule);
        history().commit(node, T0 + 1, [cell(role, "r-1", CONSENT, withheld, Some(5))]).fires(rule);
        let granted = CellValue::Authorization { granted: true };
        history().commit(node, T0 + 1, [cell(role, "r-1", CONSENT, granted, Some(6))]).fires(rule);
    }
}

#[test]
fn what_is_visible_before_it_is_durable_fires() {
    History::new().release(A, T0, &offers_of(&[obligation("c-1")])).fires("PS-1");
    let mut history = History::new().commit(A, T0, [pending(1, "c-1")]);
    history.checker.offered(B, A, SessionId(3), 0, &[obligation("c-1").encode()]);
    history.release(B, T0, &ack_of(AckStatus::Applied)).fires("PS-1");
    let mut history = History::applied();
    history.checker.offered(B, A, SessionId(3), 0, &[obligation("c-1").encode()]);
    let history = history.release(B, T0, &ack_of(AckStatus::Applied)).holds();
    history.release(B, T0, &ack_of(AckStatus::Declined)).fires("PS-1");
    let mut history = History::new().commit(A, T0, [pending(1, "c-1")]);
    history.checker.attested(
        T0,
        A,
        &Event::Attested { obligation_id: oid("c-1"), target: agent("b") },
    );
    history.fires("PS-1");
    let told = Event::Terminal {
        obligation_id: oid("c-1"),
        kind: Kind::new(BELIEF).unwrap(),
        target: agent("b"),
        outcome: Terminal::Applied,
        reason: None,
        retries: 0,
        took_ms: 1,
    };
    History::applied().release(A, T0, &Output::Event(told)).fires("PS-1");
    let decide = Output::Decide {
        issuer: agent("a"),
        obligation: obligation("c-1").encode(),
        in_doubt: false,
        deferred: false,
    };
    History::new().release(B, T0, &decide).fires("PS-1");
    let issued = proto::custodian::Issued {
        obligation_id: oid("c-1"),
        custody: true,
        deadline_at_ms: T0,
        sequence: None,
        existing: false,
    };
    History::new()
        .release(A, T0, &Output::Issued { ticket: Ticket(1), results: vec![Ok(issued)] })
        .fires("AB-1");
}

#[test]
fn an_ack_of_what_was_never_offered_fires() {
    History::new().release(B, T0, &ack_of(AckStatus::Applied)).fires("AB-3");
}

#[test]
fn damaged_records_fire() {
    History::new()
        .commit(A, T0, [put(Table::Pending, num_key(1), Bytes::from_static(b"\xff"))])
        .fires("WR-1");
}

#[test]
fn what_does_not_converge_after_healing_fires() {
    let mut history = History::new().commit(A, T0, [pending(1, "c-1")]);
    history.checker.healed(T0 + 1_000);
    let mut history = history
        .commit(B, T0 + 9_000, [effect("c-1", 0.25), ledger("c-1", AckStatus::Applied)])
        .commit(A, T0 + 9_000, ended(1, "c-1", Terminal::Applied, T0 + 9_000))
        .holds();
    history.checker.finish(T0 + 10_000, &[]);
    history.fires("converges");
}

fn look<'a>(custody: &'a Custody, store: &'a SimStore, forgotten: bool) -> LastLook<'a> {
    LastLook { pending: custody.pending(), staged: custody.staged(), store, forgotten }
}

#[test]
fn what_is_left_behind_fires() {
    let mut solo = custodian(&Options::quiet(1));
    let empty = SimStore::default();
    let mut history = History::new();
    history.checker.finish(T0, &[look(&solo.custody, &empty, true)]);
    let mut history = history.holds();
    drop(solo.step([issue([revoke("r-1")])])); // pending and staged, never committed
    history.checker.finish(T0, &[look(&solo.custody, &empty, false)]);
    let broken = history.checker.violations();
    assert!(broken.iter().all(|violation| violation.rule == "BD-1"));
    let details: Vec<&str> = broken.iter().map(|violation| violation.detail.as_str()).collect();
    assert!(details.iter().any(|detail| detail.contains("pending in memory")), "{details:?}");
    assert!(details.iter().any(|detail| detail.contains("staged")), "{details:?}");
    for write in [
        put(Table::Attempt, num_key(1), Attempt::default().encode()),
        ledger("c-1", AckStatus::Applied),
        put(Table::Intent, issued_key(&agent("a"), &oid("c-1")), Bytes::from_static(b"\x80")),
    ] {
        let mut store = SimStore::default();
        store.apply(&[write], true);
        let solo = Solo::new(Options::quiet(1).settings(0).unwrap());
        let mut history = History::new();
        history.checker.finish(T0, &[look(&solo.custody, &store, true)]);
        history.fires("BD-1");
    }
    let mut store = SimStore::default();
    for n in 0..11u64 {
        store.apply(&[put(Table::Outcome, num_key(n), Bytes::new())], true);
    }
    let solo = Solo::new(Options::quiet(1).settings(0).unwrap());
    let mut history = History::new();
    history.checker.finish(T0, &[look(&solo.custody, &store, true)]);
    history.fires("BD-1");
}

/// Whole runs on a disk that breaks its word: under the same faults the promises must break.
#[test]
fn a_disk_that_breaks_its_word_breaks_promises() {
    for sabotage in [Sabotage::LyingDisk, Sabotage::NoLedger] {
        let broken = (0..30)
            .map(|seed| Options {
                sabotage,
                mode: Mode::Datagrams,
                crashes: 6,
                ..Options::swarm(seed, 40)
            })
            .filter(|options| run(options).worst() == Some(Class::Safety))
            .count();
        assert!(broken > 10, "{sabotage:?}: {broken} of 30 runs noticed");
    }
}
