//! AB-3, LE-1, SG-2, DL-1: what a receiver applies, and answers for.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use common::*;
use netsim::{Options, Pair, Solo};
use proto::ack::{AckStatus, Reason};
use proto::custody::Input;
use proto::frame::RefuseCode;
use proto::id::Kind;
use proto::record::{Cell, CellValue, Role, Terminal, cell_key};
use proto::step::{Output, SessionId};
use proto::store::Table;
use proto::weight::Weight;
use serde_json::json;

const APPLIED: AckStatus = AckStatus::Applied;
const DECLINED: AckStatus = AckStatus::Declined;

fn weight(units: f64) -> CellValue {
    CellValue::Weight(Weight::from_f64(units).unwrap())
}

fn cell(solo: &Solo, kind: &str, key: &str) -> Option<Cell> {
    let key = proto::id::GovernedKey::new(key).unwrap();
    let at = cell_key(Role::Receiver, &agent("a"), &Kind::new(kind).unwrap(), &key);
    solo.store.value(Table::Cell, &at).map(|bytes| Cell::decode(bytes).unwrap())
}

#[test]
fn ab3_a_duplicated_offer_applies_once() {
    let mut pair = Pair::new();
    pair.world.duplicate_next(0, 1, 3);
    pair.issue(corrective("c-1", -0.25));
    pair.run_until_quiet();
    assert_eq!(pair.terminal("c-1"), Some(Terminal::Applied));
    assert_eq!(pair.cell(1, Role::Receiver, "a", "route").unwrap().value, weight(0.25));
    pair.end();
}

#[test]
fn ab3_a_lost_ack_is_repeated_without_a_second_effect() {
    let mut pair = Pair::new();
    pair.world.drop_next(1, 0, 2);
    pair.issue(corrective("c-1", -0.25));
    pair.run_until_quiet();
    assert_eq!(pair.terminal("c-1"), Some(Terminal::Applied));
    assert_eq!((pair.offers("c-1"), pair.effects("c-1")), (3, 1));
    pair.end();
}

#[test]
fn ab3_a_receiver_killed_between_apply_and_ack_acks_again_without_applying() {
    let mut solo = receiver(&Options::quiet(1));
    let item = Offered::belief("c-1", solo.now, -0.25).encode();
    let step = solo.step([offer(0, [item.clone()])]);
    let unsent = solo.commit(step); // durable, and the acks never leave
    assert_eq!(acks(&unsent), [(0, APPLIED, None)]);
    let (mut solo, _) = solo.restarted(50);
    solo.input(up(3, "a", 9));
    let step = solo.step([offer(0, [item])]);
    assert!(step.writes().is_empty(), "nothing is applied again");
    assert_eq!(acks(&solo.commit(step)), [(0, APPLIED, None)]);
    assert_eq!(cell(&solo, BELIEF, "route").unwrap().value, weight(0.25));
}

#[test]
fn ab3_a_receiver_killed_before_the_commit_applies_on_redelivery() {
    let mut solo = receiver(&Options::quiet(1));
    let item = Offered::belief("c-1", solo.now, -0.25).encode();
    drop(solo.step([offer(0, [item.clone()])])); // never durable
    let (mut solo, _) = solo.restarted(50);
    solo.input(up(3, "a", 9));
    assert_eq!(acks(&solo.input(offer(0, [item]))), [(0, APPLIED, None)]);
    assert_eq!(cell(&solo, BELIEF, "route").unwrap().value, weight(0.25));
}

#[test]
fn ab3_duplicates_in_one_step_and_before_the_commit_apply_once() {
    let mut solo = receiver(&Options::quiet(1));
    let item = Offered::belief("c-1", solo.now, -0.25).encode();
    let first = solo.step([offer(0, [item.clone(), item.clone()])]);
    let second = solo.step([offer(2, [item])]); // the first is not durable yet
    assert!(second.writes().is_empty());
    assert_eq!(acks(&solo.commit(first)), [(0, APPLIED, None), (1, APPLIED, None)]);
    assert_eq!(acks(&solo.commit(second)), [(2, APPLIED, None)]);
    assert_eq!(cell(&solo, BELIEF, "route").unwrap().value, weight(0.25));
    assert_eq!(solo.custody.staged(), 0);
}

#[test]
fn ab3_an_id_reused_for_something_else_is_declined() {
    let mut solo = receiver(&Options::quiet(1));
    let first = Offered::belief("c-1", solo.now, -0.25).encode();
    let other = Offered::belief("c-1", solo.now, -0.125).encode();
    solo.input(offer(0, [first.clone()]));
    let step = solo.step([offer(1, [other, first])]);
    assert!(step.writes().is_empty());
    let told = acks(&solo.commit(step));
    assert_eq!(told, [(1, DECLINED, Some(Reason::ID_CONFLICT)), (2, APPLIED, None)]);
}

#[test]
fn ab3_each_issuer_has_its_own_ids() {
    let mut solo = receiver(&Options { nodes: 3, ..Options::quiet(1) });
    solo.input(up(5, "c", 9));
    let item = Offered::belief("c-1", solo.now, -0.25).encode();
    solo.input(offer(0, [item.clone()]));
    let outputs =
        solo.input(Input::Offers { session: SessionId(5), first_ref: 0, items: vec![item] });
    assert_eq!(acks(&outputs), [(0, APPLIED, None)]);
    assert_eq!(solo.store.len(Table::Ledger), 2);
    assert_eq!(solo.store.len(Table::Cell), 2, "each principal has its own state");
}

#[test]
fn ab3_status_is_told_to_the_issuer_and_nobody_else() {
    let mut solo = receiver(&Options { nodes: 3, ..Options::quiet(1) });
    solo.input(up(5, "c", 9));
    let item = Offered::new("r-1", solo.now).sequence(1).encode();
    solo.input(offer(0, [item]));
    for (session, known) in [(3, 1), (5, 0)] {
        let ids = vec![oid("r-1"), oid("r-2")];
        let outputs = solo.input(Input::Query { session: SessionId(session), query_ref: 7, ids });
        let Output::Answer { query_ref: 7, acks, unknown, .. } = &outputs[0] else {
            panic!("{outputs:?}")
        };
        assert_eq!((acks.len(), unknown.len()), (known, 2 - known));
    }
}

#[test]
fn ab3_what_may_not_be_offered_is_refused_and_writes_nothing() {
    let mut options = Options::quiet(1);
    options.nodes = 3;
    let mut settings = options.settings(1).unwrap();
    settings.peers.get_mut(&agent("a")).unwrap().may_issue.remove(&Kind::new(TOKEN).unwrap());
    let telemetry = Kind::new("acme.telemetry").unwrap();
    settings.peers.get_mut(&agent("a")).unwrap().may_issue.insert(telemetry);
    let mut solo = Solo::new(settings);
    solo.input(up(3, "a", 9));
    let now = solo.now;
    let unknown = Offered { kind: "acme.telemetry", ..Offered::new("x", now) };
    let bad_delta =
        Offered { payload: json!({"weight_delta": 7}), ..Offered::belief("x", now, 0.0) };
    let cases = [
        (Offered::token("x", now).encode(), RefuseCode::Unauthorized),
        (Offered::new("x", now).to("c").encode(), RefuseCode::WrongTarget),
        (unknown.encode(), RefuseCode::Unsupported),
        (bad_delta.encode(), RefuseCode::Malformed),
        (bytes::Bytes::from_static(b"\xa1\x00"), RefuseCode::Malformed),
    ];
    for (item, expected) in cases {
        let step = solo.step([offer(4, [item])]);
        assert!(step.writes().is_empty(), "{expected}");
        let outputs = solo.commit(step);
        let refused = outputs.iter().find_map(|output| match output {
            Output::Refuse { code, refs, .. } => Some((*code, refs[0].first)),
            _ => None,
        });
        assert_eq!(refused, Some((expected, 4)));
        assert!(acks(&outputs).is_empty());
    }
}

#[test]
fn le1_effect_and_ledger_share_a_commit() {
    let mut solo = receiver(&Options::quiet(1));
    let step = solo.step([offer(0, [Offered::belief("c-1", solo.now, -0.25).encode()])]);
    let tables: Vec<Table> = step.writes().iter().map(|write| write.table).collect();
    assert!(tables.contains(&Table::Cell) && tables.contains(&Table::Ledger), "{tables:?}");
}

#[test]
fn le1_the_ledger_outlives_the_deadline_and_a_replay_is_declined_then() {
    let options = Options { skew_ms: 500, ..Options::quiet(1) };
    let mut solo = receiver(&options);
    let item = Offered::belief("c-1", solo.now, -0.25).encode();
    solo.input(offer(0, [item.clone()]));
    solo.pass(60_499);
    assert_eq!(acks(&solo.input(offer(1, [item.clone()]))), [(1, APPLIED, None)], "still known");
    solo.pass(180_000);
    assert!(solo.store.is_empty(Table::Ledger) && solo.store.is_empty(Table::LedgerExpiry));
    let step = solo.step([offer(2, [item])]);
    assert!(step.writes().is_empty());
    assert_eq!(acks(&solo.commit(step)), [(2, DECLINED, Some(Reason::EXPIRED))]);
    assert_eq!(cell(&solo, BELIEF, "route").unwrap().value, weight(0.25));
}

#[test]
fn dl1_nothing_is_applied_inside_the_skew_of_its_deadline() {
    let options = Options { skew_ms: 500, ..Options::quiet(1) };
    for (age_ms, expected) in
        [(59_499, APPLIED), (59_500, DECLINED), (60_000, DECLINED), (90_000, DECLINED)]
    {
        let mut solo = receiver(&options);
        let item = Offered::belief("c-1", solo.now, -0.25).encode();
        solo.pass(age_ms);
        let told = acks(&solo.input(offer(0, [item])));
        assert_eq!(told[0].1, expected, "{age_ms} ms after issue");
        assert_eq!(cell(&solo, BELIEF, "route").is_some(), expected == APPLIED);
    }
}

#[test]
fn sg2_an_older_decision_never_overrides_a_newer_one() {
    let mut solo = receiver(&Options::quiet(1));
    let now = solo.now;
    let newer = Offered::new("r-5", now).sequence(5).encode();
    let older = Offered::new("r-4", now).sequence(4).encode();
    let equal = Offered::new("r-x", now).sequence(5).encode();
    let grant = Offered::new("g-3", now).sequence(3).granting().encode();
    solo.input(offer(0, [newer.clone()]));
    let step = solo.step([offer(1, [older, equal, newer])]);
    // The declines are recorded; nothing governed is touched.
    assert!(step.writes().iter().all(|write| write.table != Table::Cell));
    let superseded = Some(Reason::SUPERSEDED);
    assert_eq!(
        acks(&solo.commit(step)),
        [(1, DECLINED, superseded.clone()), (2, DECLINED, superseded), (3, APPLIED, None)]
    );
    solo.input(Input::BestEffort { session: SessionId(3), items: vec![grant] });
    let cell = cell(&solo, CONSENT, "calendar").unwrap();
    assert_eq!((cell.value, cell.sequence), (CellValue::Authorization { granted: false }, Some(5)));
}

#[test]
fn sg2_a_restriction_without_a_sequence_is_applied_and_a_grant_is_not() {
    let mut solo = receiver(&Options::quiet(1));
    let now = solo.now;
    let best_effort = |item| Input::BestEffort { session: SessionId(3), items: vec![item] };
    solo.input(best_effort(Offered::new("g-5", now).sequence(5).granting().encode()));
    solo.input(best_effort(Offered::new("g-0", now).granting().encode()));
    assert_eq!(cell(&solo, CONSENT, "calendar").unwrap().obligation_id, oid("g-5"));
    assert_eq!(
        acks(&solo.input(offer(0, [Offered::new("r-0", now).encode()]))),
        [(0, APPLIED, None)]
    );
    let cell = cell(&solo, CONSENT, "calendar").unwrap();
    assert_eq!((cell.value, cell.sequence), (CellValue::Authorization { granted: false }, Some(5)));
}

#[test]
fn sg2_weights_add_up_in_any_order_inside_their_bounds() {
    let mut solo = receiver(&Options::quiet(1));
    let now = solo.now;
    let items = [("c-1", -0.25), ("c-2", -0.125), ("c-3", -1.0)]
        .map(|(id, delta)| Offered::belief(id, now, delta).encode());
    solo.input(offer(0, [items[1].clone(), items[0].clone()]));
    assert_eq!(cell(&solo, BELIEF, "route").unwrap().value, weight(0.125));
    solo.input(offer(2, [items[2].clone()]));
    assert_eq!(cell(&solo, BELIEF, "route").unwrap().value, weight(0.0));
}

#[test]
fn ab3_best_effort_applies_once_in_time_and_only_what_is_benign() {
    let mut solo = receiver(&Options::quiet(1));
    let now = solo.now;
    let best_effort =
        |items: &[bytes::Bytes]| Input::BestEffort { session: SessionId(3), items: items.to_vec() };
    let reinforcing = Offered::belief("w-1", now, 0.125).encode();
    solo.input(best_effort(&[reinforcing.clone(), reinforcing.clone()]));
    solo.input(best_effort(&[reinforcing]));
    assert_eq!(cell(&solo, BELIEF, "route").unwrap().value, weight(0.625));
    let admissible = Offered::belief("c-1", now, -0.25).encode();
    let old = Offered::belief("w-2", now - 60_000, 0.125).encode();
    let step = solo.step([best_effort(&[admissible, old])]);
    assert!(step.writes().is_empty());
    assert!(acks(&solo.commit(step)).is_empty(), "best effort is never acknowledged");
}
