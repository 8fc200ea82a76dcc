//! AB-3, DL-1 for effects of external handlers: a durable intent first, nothing guessed after.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use common::*;
use netsim::{HandlerModel, Options, Pair, Solo};
use proto::ack::{AckStatus, Reason};
use proto::custody::Input;
use proto::event::Event;
use proto::receiver::Decision;
use proto::record::{Intent, IntentState, Reconcile, ReconcileKind, Resolution, issued_key};
use proto::step::{Output, Ticket};
use proto::store::Table;
use serde_json::json;

const APPLIED: AckStatus = AckStatus::Applied;
const DECLINED: AckStatus = AckStatus::Declined;
const DEFERRED: AckStatus = AckStatus::Deferred;

fn external() -> Options {
    Options { external: vec![TOKEN.to_owned()], ..Options::quiet(1) }
}

fn asked(outputs: &[Output]) -> Vec<bool> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Decide { in_doubt, .. } => Some(*in_doubt),
            _ => None,
        })
        .collect()
}

fn decided(id: &str, decision: Decision) -> Input {
    Input::Decided { issuer: agent("a"), id: oid(id), decision }
}

fn by_id(outputs: &[Output]) -> Vec<AckStatus> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Acks { acks, .. } => Some(acks[0].status),
            _ => None,
        })
        .collect()
}

#[test]
fn dl1_an_external_effect_reported_late_is_filed() {
    let mut solo = receiver(&external());
    assert_eq!(
        asked(&solo.input(offer(0, [Offered::token("t-1", solo.now).sequence(1).encode()]))),
        [false]
    );
    solo.pass(60_500);
    let outputs = solo.input(decided("t-1", Decision::Applied));
    assert_eq!(acks(&outputs), [(0, APPLIED, None)]);
    let told = events(&outputs);
    let filed = told.iter().any(
        |e| matches!(e, Event::Reconcile(item) if item.kind == ReconcileKind::AppliedPastDeadline),
    );
    assert!(filed, "{told:?}");
}

#[test]
fn dl1_a_handler_that_did_not_apply_by_the_deadline_declines() {
    for decision in [Decision::Deferred(None), Decision::NotReached(Reason::new("down"))] {
        let mut solo = receiver(&external());
        solo.input(offer(0, [Offered::token("t-1", solo.now).sequence(1).encode()]));
        solo.pass(60_500);
        let outputs = solo.input(decided("t-1", decision));
        assert_eq!(acks(&outputs), [(0, DECLINED, Some(Reason::EXPIRED))]);
        assert!(solo.store.is_empty(Table::Intent));
    }
}

#[test]
fn ab3_an_external_effect_has_a_durable_intent_first_and_one_ledger_entry_after() {
    let mut solo = receiver(&external());
    let item = Offered::token("t-1", solo.now).sequence(1).encode();
    let step = solo.step([offer(0, [item.clone()])]);
    assert!(step.writes().iter().any(|write| write.table == Table::Intent));
    assert!(solo.store.is_empty(Table::Intent));
    assert_eq!(asked(&solo.commit(step)), [false]);
    // A repeat while the handler is out asks nobody; the ack goes to the newer offer.
    assert!(asked(&solo.input(offer(1, [item]))).is_empty());
    let outputs = solo.input(decided("t-1", Decision::Applied));
    assert_eq!(acks(&outputs), [(1, APPLIED, None)]);
    assert!(solo.store.is_empty(Table::Intent));
    assert_eq!(solo.store.len(Table::Ledger), 1);
    let again = solo.step([decided("t-1", Decision::Applied)]);
    assert!(again.writes().is_empty(), "a decision told twice counts once");
    solo.commit(again);
}

#[test]
fn ab3_after_a_crash_the_handler_is_asked_for_the_status_and_the_ack_goes_by_id() {
    let mut solo = receiver(&external());
    solo.input(offer(0, [Offered::token("t-1", solo.now).sequence(1).encode()]));
    let (mut solo, outputs) = solo.restarted(100);
    assert_eq!(asked(&outputs), [true]);
    let outputs = solo.input(decided("t-1", Decision::Applied));
    assert_eq!(by_id(&outputs), [APPLIED]);
    assert_eq!(solo.store.len(Table::Ledger), 1);
}

#[test]
fn ab3_an_effect_in_doubt_waits_for_a_person() {
    for (resolution, expected) in
        [(Resolution::Applied, APPLIED), (Resolution::NotApplied, DECLINED)]
    {
        let mut solo = receiver(&external());
        let item = Offered::token("t-1", solo.now).sequence(1).encode();
        solo.input(offer(0, [item.clone()]));
        let outputs = solo.input(decided("t-1", Decision::InDoubt(Reason::new("timed out"))));
        assert_eq!(acks(&outputs)[0].1, DEFERRED);
        let (next, outputs) = solo.restarted(100);
        solo = next;
        assert!(asked(&outputs).is_empty(), "nobody guesses");
        solo.input(up(3, "a", 9));
        let outputs = solo.input(offer(0, [item.clone()]));
        assert_eq!((acks(&outputs)[0].1, asked(&outputs).len()), (DEFERRED, 0));
        let resolve = |resolution| Input::Resolve { ticket: Ticket(1), number: 1, resolution };
        let outputs = solo.input(resolve(Resolution::Noted));
        assert!(
            matches!(&outputs[0], Output::Operated { result: Err(_), .. }),
            "noted is no answer"
        );
        let outputs = solo.input(resolve(resolution));
        assert_eq!(by_id(&outputs), [expected]);
        assert_eq!(acks(&solo.input(offer(1, [item])))[0].1, expected);
        let stored = solo.store.iter(Table::Reconcile).next().unwrap().1;
        let stored: Reconcile = serde_json::from_slice(stored).unwrap();
        assert_eq!(stored.resolution, Some(resolution));
    }
}

#[test]
fn ab3_an_id_reused_while_its_handler_is_out_or_defers_is_declined() {
    let mut solo = receiver(&external());
    let first = Offered::token("t-1", solo.now).sequence(1).encode();
    let payload = json!({"action": "revoke", "token_id": "another"});
    let other = Offered { payload, ..Offered::token("t-1", solo.now).sequence(1) }.encode();
    solo.input(offer(0, [first.clone()]));
    let outputs = solo.input(offer(1, [other.clone()]));
    assert_eq!(acks(&outputs), [(1, DECLINED, Some(Reason::ID_CONFLICT))]);
    assert_eq!(acks(&solo.input(decided("t-1", Decision::Deferred(None)))), [(0, DEFERRED, None)]);
    let outputs = solo.input(offer(2, [other]));
    assert_eq!(acks(&outputs), [(2, DECLINED, Some(Reason::ID_CONFLICT))]);
    assert_eq!(asked(&solo.input(offer(3, [first]))), [true]);
}

/// Found by swarm seed 48 of 1,000 transfers.
#[test]
fn le1_an_id_issued_anew_waits_until_what_was_deferred_under_it_is_forgotten() {
    let mut solo = receiver(&external());
    solo.input(offer(0, [Offered::token("t-1", solo.now).sequence(1).encode()]));
    solo.input(decided("t-1", Decision::Deferred(None)));
    solo.pass(61_000);
    // Its custodian escalated it, a person has seen that, and it is issued anew.
    let anew = Offered { deadline_seconds: 600, ..Offered::token("t-1", solo.now) };
    let anew = anew.sequence(1).encode();
    let outputs = solo.input(offer(1, [anew.clone()]));
    assert_eq!((acks(&outputs)[0].1, asked(&outputs).len()), (DEFERRED, 0));
    solo.pass(180_000);
    solo.input(Input::Tick);
    assert!(solo.store.is_empty(Table::Intent), "forgotten a while after its deadline");
    assert_eq!(asked(&solo.input(offer(2, [anew.clone()]))), [false]);
    solo.input(decided("t-1", Decision::Applied));
    for nth in 3..6 {
        solo.pass(60_000);
        solo.input(Input::Tick);
        let outputs = solo.input(offer(nth, [anew.clone()]));
        assert_eq!(acks(&outputs), [(nth, APPLIED, None)], "remembered until its own deadline");
    }
}

#[test]
fn ab3_recovery_in_several_calls_asks_each_handler_once() {
    let options =
        Options { deciding_max: 1, external: vec![BELIEF.to_owned()], ..Options::quiet(1) };
    let mut solo = Solo::new(options.settings(1).unwrap());
    let drafts = (0..8_300).map(|n| {
        netsim::draft(
            &format!("p-{n}"),
            TOKEN,
            "a",
            &json!({"action": "revoke", "token_id": format!("t-{n}")}),
        )
    });
    solo.input(issue(drafts));
    let mut solo = Solo::over(options.settings(1).unwrap(), solo.store.clone(), solo.now);
    solo.recover_once();
    assert!(!solo.custody.recovered(), "more than one call holds");
    solo.input(up(3, "a", 1));
    let item = |id| Offered::belief(id, solo.now, -0.25).encode();
    let (first, second) = (item("c-1"), item("c-2"));
    assert_eq!(asked(&solo.input(offer(0, [first]))), [false]);
    assert!(asked(&solo.recover_once()).is_empty(), "it is being decided already");
    solo.input(decided("c-1", Decision::Applied));
    assert_eq!(asked(&solo.input(offer(1, [second]))), [false], "its place is free again");
}

#[test]
fn ab3_intents_of_what_was_deferred_for_ever_are_forgotten() {
    let handler = HandlerModel { defer_forever_permille: 1000, ..HandlerModel::PROMPT };
    let mut pair = Pair::with(Options { handler, ..external() });
    pair.issue(revoke_token("t-1"));
    pair.run_until_quiet();
    let key = issued_key(&agent("a"), &oid("t-1"));
    let intent = Intent::decode(pair.store(1).value(Table::Intent, &key).unwrap()).unwrap();
    assert_eq!(intent.state, IntentState::Deferred);
    pair.run_for(180_000);
    assert!(pair.store(1).is_empty(Table::Intent));
    pair.end();
}

#[test]
fn ab3_a_decision_that_comes_after_everything_expired_is_still_filed() {
    let mut solo = receiver(&external());
    solo.input(offer(0, [Offered::token("t-1", solo.now).sequence(1).encode()]));
    let (mut solo, outputs) = solo.restarted(600_000);
    assert_eq!(asked(&outputs), [true]);
    solo.pass(300_000);
    let outputs = solo.input(decided("t-1", Decision::Applied));
    let told = events(&outputs);
    let filed = told.iter().any(
        |e| matches!(e, Event::Reconcile(item) if item.kind == ReconcileKind::AppliedPastDeadline),
    );
    assert!(filed, "{told:?}");
    solo.pass(300_000);
    assert!(solo.store.is_empty(Table::Ledger) && solo.store.is_empty(Table::Intent));
}

#[test]
fn sg2_an_older_obligation_that_was_deferred_is_not_applied_after_a_newer_one() {
    let mut solo = receiver(&external());
    let older = Offered::token("t-1", solo.now).sequence(1).encode();
    let newer = Offered::token("t-2", solo.now).sequence(2).encode();
    solo.input(offer(0, [older.clone()]));
    solo.input(decided("t-1", Decision::Deferred(None)));
    solo.input(offer(1, [newer]));
    solo.input(decided("t-2", Decision::Applied));
    assert_eq!(acks(&solo.input(offer(2, [older]))), [(2, DECLINED, Some(Reason::SUPERSEDED))]);
    let (_, outputs) = solo.restarted(100);
    assert!(asked(&outputs).is_empty(), "what was declined is not asked for again");
}

#[test]
fn dc1_what_is_in_doubt_is_not_declined_by_the_clock_or_a_newer_decision() {
    let options = Options { skew_ms: 500, ..external() };
    let mut solo = receiver(&options);
    let item = Offered::token("t-1", solo.now).sequence(1).encode();
    solo.input(offer(0, [item.clone()]));
    solo.input(decided("t-1", Decision::InDoubt(Reason::new("timed out"))));
    solo.input(offer(1, [Offered::token("t-2", solo.now).sequence(2).encode()]));
    solo.input(decided("t-2", Decision::Applied));
    assert_eq!(acks(&solo.input(offer(2, [item.clone()])))[0].1, DEFERRED, "superseded");
    solo.pass(59_600); // inside the skew of its deadline
    assert_eq!(acks(&solo.input(offer(3, [item.clone()])))[0].1, DEFERRED, "about to expire");
    let resolution = Resolution::Applied;
    solo.input(Input::Resolve { ticket: Ticket(1), number: 1, resolution });
    assert_eq!(acks(&solo.input(offer(4, [item]))), [(4, APPLIED, None)]);
}

#[test]
fn wr1_a_reference_is_in_one_run_of_an_ack_frame_also_when_its_offer_came_twice() {
    let mut solo = receiver(&external());
    let older = Offered::token("t-1", solo.now).sequence(1).encode();
    solo.input(offer(0, [older.clone()]));
    solo.input(offer(1, [Offered::token("t-2", solo.now).sequence(2).encode()]));
    solo.input(decided("t-2", Decision::Applied));
    // The offer comes a second time, on the same reference, in the step of its deferral.
    let step = solo.step([decided("t-1", Decision::Deferred(None)), offer(0, [older])]);
    for output in solo.commit(step) {
        if let Output::AckRuns { runs, .. } = output {
            let frame = proto::frame::Frame::AckRuns(runs);
            assert_eq!(proto::frame::Frame::decode(frame.encode()), Ok(frame));
        }
    }
}

#[test]
fn bd1_an_intent_nobody_settles_is_forgotten_with_its_minute() {
    let mut solo = receiver(&external());
    solo.input(offer(0, [Offered::token("t-1", solo.now).sequence(1).encode()]));
    solo.input(decided("t-1", Decision::Deferred(None)));
    assert_eq!(solo.store.len(Table::Intent), 1);
    solo.pass(180_000);
    assert!(solo.store.is_empty(Table::Intent));
    assert!(solo.store.is_empty(Table::LedgerExpiry));
}
