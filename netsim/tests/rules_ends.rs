//! AB-4, SG-1, DC-1, DF-1, TS-1: how a transfer ends, and that it has ended.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use common::*;
use netsim::{HandlerModel, Options, Pair, Solo, draft};
use proto::ack::{AckStatus, Reason};
use proto::custodian::{Draft, IssueError};
use proto::custody::{Input, OperatorError};
use proto::event::Event;
use proto::id::{GovernedKey, Kind};
use proto::record::{
    Cell, CellValue, EscalationReason, ReconcileKind, Resolution, Role, Terminal, cell_key,
};
use proto::step::{Output, SessionId, Ticket};
use proto::store::Table;
use proto::weight::Weight;
use serde_json::json;

const WITHHELD: CellValue = CellValue::Authorization { granted: false };

fn weight(units: f64) -> CellValue {
    CellValue::Weight(Weight::from_f64(units).unwrap())
}

fn handled(kinds: &[&'static str], handler: HandlerModel) -> Options {
    Options {
        external: kinds.iter().map(ToString::to_string).collect(),
        handler,
        ..Options::quiet(1)
    }
}

#[test]
fn ab4_a_dead_link_ends_in_safe_state_and_one_escalation() {
    let mut pair = Pair::new();
    pair.cut();
    pair.issue(corrective("c-1", -0.25));
    pair.run_until_quiet();
    assert_eq!(pair.terminal("c-1"), Some(Terminal::Escalated));
    let items = pair.escalations();
    assert_eq!(items.len(), 1);
    assert_eq!(items[0].reason, EscalationReason::Unreachable);
    assert!(items[0].safe_action_applied);
    assert_eq!(pair.cell(0, Role::Principal, "b", "route").unwrap().value, weight(0.25));
    pair.end();
}

#[test]
fn ab4_recovered_into_a_dead_channel_escalates_with_the_fail_safe() {
    let mut pair = Pair::new();
    pair.cut();
    pair.issue(corrective("c-1", -0.5));
    pair.run_for(20_000);
    pair.kill(0);
    pair.run_for(100_000);
    pair.restart(0);
    pair.run_for(100);
    assert_eq!(
        pair.terminal("c-1"),
        Some(Terminal::Escalated),
        "at once: the deadline is long past"
    );
    assert_eq!(pair.cell(0, Role::Principal, "b", "route").unwrap().value, weight(0.0));
    pair.kill(0);
    pair.restart(0);
    pair.run_for(100);
    assert_eq!(pair.escalations().len(), 1);
    assert_eq!(pair.cell(0, Role::Principal, "b", "route").unwrap().value, weight(0.0));
    pair.end();
}

#[test]
fn ab4_an_exhausted_budget_escalates_before_the_deadline() {
    let mut pair = Pair::with(Options { retries: Some(2), ..Options::quiet(1) });
    pair.cut();
    pair.issue(revoke("r-1"));
    pair.run_until_quiet();
    let outcome = pair.outcome("r-1").unwrap();
    assert_eq!(outcome.reason.unwrap().as_str(), "retries_exhausted");
    // 1 s, 2 s, and 4 s to wait for the answer to the last.
    assert_eq!(outcome.at.as_ms() - outcome.created_at.as_ms(), 7_000);
    assert_eq!(outcome.retries, 2);
    pair.end();
}

#[test]
fn ab4_a_warning_comes_once_at_half_the_deadline() {
    let mut solo = custodian(&Options::quiet(1));
    let begun = solo.now;
    solo.input(issue([revoke("r-1")]));
    let mut warned = Vec::new();
    for _ in 0..590 {
        let outputs = solo.pass(100);
        if events(&outputs).iter().any(|event| matches!(event, Event::Warning { .. })) {
            warned.push(solo.now - begun);
        }
    }
    assert_eq!(warned, [30_000]);
}

#[test]
fn ab4_an_escalation_waits_for_the_principal_and_is_acknowledged_once() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(issue([revoke("r-1")]));
    solo.pass(61_000);
    let ask = |id: &str| Input::AckEscalation { ticket: Ticket(5), id: oid(id) };
    let outputs = solo.input(ask("r-1"));
    let [Output::Event(Event::Acknowledged { .. }), Output::Operated { result: Ok(()), .. }] =
        &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    let step = solo.step([ask("r-1")]);
    assert!(!step.needs_commit(), "a second acknowledgement writes nothing");
    solo.commit(step);
    let outputs = solo.input(ask("r-2"));
    let Output::Operated { result, .. } = &outputs[0] else { panic!("{outputs:?}") };
    assert!(matches!(result, Err(OperatorError::NoEscalation { .. })));
}

#[test]
fn sg1_a_newer_decision_stands_and_the_escalation_still_fires() {
    let mut pair = Pair::with(Options { coalesce: false, ..Options::quiet(1) });
    pair.cut();
    pair.issue(revoke("r-1"));
    pair.run_for(1_000);
    pair.issue(grant("g-2"));
    pair.run_until_quiet();
    assert_eq!(pair.terminal("r-1"), Some(Terminal::Escalated));
    assert!(!pair.escalations()[0].safe_action_applied);
    let cell = pair.cell(0, Role::Principal, "b", "calendar").unwrap();
    assert_eq!(cell.value, CellValue::Authorization { granted: true });
    assert_eq!(cell.sequence, Some(2));
    pair.end();
}

#[test]
fn sg1_a_grant_asked_for_again_after_its_revocation_grants_nothing_anew() {
    let mut solo = custodian(&Options::quiet(1));
    let ask = |solo: &mut Solo, draft: Draft| {
        let outputs = solo.input(issue([draft]));
        let sent = outputs.iter().any(|output| matches!(output, Output::BestEffort { .. }));
        let results = outputs.into_iter().find_map(|output| match output {
            Output::Issued { results, .. } => Some(results),
            _ => None,
        });
        (results.unwrap().pop().unwrap(), sent)
    };
    let first = ask(&mut solo, grant("g-1")).0.unwrap();
    assert_eq!((first.sequence, first.existing), (Some(1), false));
    ask(&mut solo, revoke("r-2")).0.unwrap();
    // The caller of the first had no answer, and repeats its call. It goes out again, as what it
    // was: the receiver knows by its sequence that it is outdated.
    let (again, sent) = ask(&mut solo, grant("g-1"));
    let again = again.unwrap();
    assert_eq!((again.sequence, again.existing, sent), (Some(1), true, true));
    assert_eq!(principal_cell(&solo).value, CellValue::Authorization { granted: false });
    let other = draft("g-1", CONSENT, "b", &json!({"decision": "grant", "scope": "photos"}));
    assert!(matches!(ask(&mut solo, other).0, Err(IssueError::IdTaken { .. })));
    // After a restart what it knows is what each key was decided by last.
    ask(&mut solo, grant("g-3")).0.unwrap();
    let (mut solo, _) = solo.restarted(10);
    let again = ask(&mut solo, grant("g-3")).0.unwrap();
    assert_eq!((again.sequence, again.existing), (Some(3), true));
    assert_eq!(principal_cell(&solo).sequence, Some(3));
}

fn principal_cell(solo: &Solo) -> Cell {
    let key = GovernedKey::new("calendar").unwrap();
    let at = cell_key(Role::Principal, &agent("b"), &Kind::new(CONSENT).unwrap(), &key);
    Cell::decode(solo.store.value(Table::Cell, &at).unwrap()).unwrap()
}

#[test]
fn sg1_a_sequence_not_above_the_latest_is_refused() {
    let mut solo = custodian(&Options::quiet(1));
    let numbered = |id: &str, sequence| {
        let mut draft = revoke(id);
        draft.sequence = Some(sequence);
        draft
    };
    let outputs = solo.input(issue([
        numbered("r-1", 7),
        numbered("r-2", 7),
        revoke("r-3"),
        numbered("r-4", 3),
    ]));
    let Some(Output::Issued { results, .. }) = outputs.first() else { panic!("{outputs:?}") };
    assert_eq!(results[0].as_ref().unwrap().sequence, Some(7));
    assert!(matches!(results[1], Err(IssueError::Superseded { given: 7, latest: 7, .. })));
    assert_eq!(results[2].as_ref().unwrap().sequence, Some(8));
    assert!(matches!(results[3], Err(IssueError::Superseded { given: 3, latest: 8, .. })));
}

#[test]
fn sg1_obligations_to_an_agent_that_is_away_coalesce_and_each_is_reported() {
    let mut pair = Pair::new();
    pair.cut();
    pair.run_for(2_000); // the session is down
    pair.events();
    for id in ["r-1", "r-2", "r-3"] {
        pair.issue(revoke(id));
        pair.run_for(100);
    }
    let told = pair.events();
    let ended: Vec<_> = told
        .iter()
        .filter_map(|(_, _, event)| match event {
            Event::Terminal { obligation_id, outcome, reason, .. } => {
                Some((obligation_id.as_str(), *outcome, reason.as_ref().unwrap().as_str()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        ended,
        [
            ("r-1", Terminal::Declined, "superseded by r-2"),
            ("r-2", Terminal::Declined, "superseded by r-3")
        ]
    );
    pair.mend();
    pair.run_until_quiet();
    assert_eq!(pair.terminal("r-3"), Some(Terminal::Applied));
    assert_eq!((pair.effects("r-1"), pair.effects("r-2"), pair.effects("r-3")), (0, 0, 1));
    pair.end();
}

#[test]
fn sg1_nothing_coalesces_while_the_agent_is_there() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(issue([revoke("r-1"), revoke("r-2")]));
    assert_eq!(solo.custody.pending(), 2);
}

#[test]
fn sg1_kinds_do_not_share_a_governed_key() {
    let token = |id: &str, action: &str| {
        draft(id, TOKEN, "b", &json!({"action": action, "token_id": "calendar"}))
    };
    let mut belief = corrective("w-1", -0.25);
    belief.payload =
        draft("w", BELIEF, "b", &json!({"weight_delta": -0.25, "weight_key": "calendar"})).payload;
    let mut pair = Pair::new();
    pair.cut();
    pair.run_for(2_000);
    // A revoked token is not superseded by a consent of the same name, nor granted by another kind.
    for draft in [token("t-1", "revoke"), revoke("r-1"), token("t-2", "issue"), belief] {
        pair.issue(draft);
        pair.run_for(100);
    }
    assert_eq!(pair.world.custody(0).unwrap().pending(), 3);
    pair.mend();
    pair.run_until_quiet();
    for id in ["r-1", "w-1"] {
        assert_eq!(pair.terminal(id), Some(Terminal::Applied), "{id}");
    }
    assert_eq!(
        pair.store(0).len(Table::Cell),
        2,
        "consent, token; safe(O) of the weight was not needed"
    );
    assert_eq!(pair.store(1).len(Table::Cell), 3);
    pair.end();
}

#[test]
fn dc1_a_decline_applies_the_safe_action_and_is_no_escalation() {
    let handler = HandlerModel { decline_permille: 1000, ..HandlerModel::PROMPT };
    let mut pair = Pair::with(handled(&[BELIEF], handler));
    pair.issue(corrective("c-1", -0.25));
    pair.run_until_quiet();
    let outcome = pair.outcome("c-1").unwrap();
    assert_eq!(
        (outcome.terminal, outcome.reason.unwrap().as_str()),
        (Terminal::Declined, "against policy")
    );
    assert_eq!(pair.cell(0, Role::Principal, "b", "route").unwrap().value, weight(0.25));
    assert!(pair.escalations().is_empty() && pair.reconcile(0).is_empty());
    assert_eq!(pair.effects("c-1"), 0);
    pair.end();
}

#[test]
fn dc1_a_surfaced_decline_waits_for_the_principal() {
    let handler = HandlerModel { decline_permille: 1000, ..HandlerModel::PROMPT };
    let mut pair = Pair::with(Options { surface: true, ..handled(&[BELIEF], handler) });
    pair.issue(corrective("c-1", -0.25));
    pair.run_for(100);
    assert_eq!(pair.terminal("c-1"), Some(Terminal::Declined));
    assert!(pair.cell(0, Role::Principal, "b", "route").is_none());
    let items = pair.reconcile(0);
    assert_eq!((items.len(), items[0].kind), (1, ReconcileKind::DeclineSurfaced));
    let resolve =
        Input::Resolve { ticket: Ticket(9), number: 1, resolution: Resolution::ApplySafe };
    pair.input(0, resolve.clone());
    pair.run_for(100);
    assert_eq!(pair.cell(0, Role::Principal, "b", "route").unwrap().value, weight(0.25));
    pair.input(0, resolve);
    pair.run_for(100);
    assert_eq!(pair.cell(0, Role::Principal, "b", "route").unwrap().value, weight(0.25), "once");
    pair.run_for(30_000);
    pair.end();
}

#[test]
fn df1_a_deferral_extends_nothing() {
    let handler = HandlerModel { defer_forever_permille: 1000, ..HandlerModel::PROMPT };
    let mut pair = Pair::with(handled(&[TOKEN], handler));
    pair.issue(revoke_token("t-1"));
    pair.run_until_quiet();
    let outcome = pair.outcome("t-1").unwrap();
    assert_eq!(outcome.terminal, Terminal::Escalated);
    assert_eq!(outcome.at, outcome.deadline_at);
    assert_eq!(outcome.retries, 9, "the schedule of a dead link");
    assert_eq!(pair.escalations()[0].reason, EscalationReason::Deferring);
    assert_eq!(pair.cell(0, Role::Principal, "b", "token").unwrap().value, WITHHELD);
    pair.end();
}

#[test]
fn df1_deferred_and_later_applied_by_id() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(issue([revoke("r-1")]));
    solo.input(ack_refs(2, AckStatus::Deferred, 0, 1));
    assert_eq!(solo.custody.pending(), 1);
    solo.pass(5_000);
    solo.input(ack_id("b", "r-1", AckStatus::Applied));
    assert_eq!(outcome(&solo, "r-1").unwrap().terminal, Terminal::Applied);
    assert!(solo.store.is_empty(Table::Attempt));
}

#[test]
fn df1_deferred_a_while_then_applied() {
    let handler = HandlerModel { defer_permille: 1000, ..HandlerModel::PROMPT };
    let mut pair = Pair::with(handled(&[TOKEN], handler));
    pair.issue(revoke_token("t-1"));
    pair.run_until_quiet();
    let outcome = pair.outcome("t-1").unwrap();
    assert_eq!(outcome.terminal, Terminal::Applied);
    assert!(outcome.retries > 0);
    pair.end();
}

#[test]
fn ts1_a_late_applied_is_filed_once_and_reopens_nothing() {
    let mut pair = Pair::new();
    pair.world.drop_next(1, 0, 1_000); // no ack gets back
    pair.issue(revoke("r-1"));
    pair.run_until_quiet();
    assert_eq!(pair.ledger("r-1"), Some(AckStatus::Applied));
    assert_eq!(pair.terminal("r-1"), Some(Terminal::Escalated));
    for _ in 0..2 {
        pair.input(0, ack_id("b", "r-1", AckStatus::Applied));
        pair.input(0, ack_id("b", "r-1", AckStatus::Declined));
        pair.run_for(100);
    }
    let outcome = pair.outcome("r-1").unwrap();
    assert_eq!(outcome.terminal, Terminal::Escalated);
    assert!(outcome.late_applied_at.is_some());
    let items = pair.reconcile(0);
    assert_eq!((items.len(), items[0].kind), (1, ReconcileKind::LateApplied));
    assert_eq!(pair.escalations().len(), 1);
    pair.end();
}

#[test]
fn ts1_an_escalation_nobody_saw_is_still_an_ending() {
    let mut solo = custodian(&Options { retention_ms: 3_600_000, ..Options::quiet(1) });
    solo.input(issue([revoke("r-1")]));
    solo.pass(2 * 3_600_000);
    for _ in 0..2 {
        let outputs = solo.input(issue([revoke("r-1")]));
        let Some(Output::Issued { results, .. }) = outputs.first() else { panic!("{outputs:?}") };
        assert!(results[0].as_ref().unwrap().existing, "{results:?}");
        assert_eq!(solo.custody.pending(), 0);
        solo = solo.restarted(10).0;
    }
}

#[test]
fn ts1_a_late_ack_of_an_offer_is_told_from_a_foreign_one() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(issue([revoke("r-1")]));
    solo.pass(61_000);
    let outputs = solo.input(ack_refs(2, AckStatus::Applied, 9, 1));
    let told = events(&outputs);
    assert!(
        matches!(told[..], [Event::Reconcile(item)] if item.kind == ReconcileKind::LateApplied),
        "{told:?}"
    );
}

#[test]
fn ts1_what_is_applied_stays_applied() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(issue([revoke("r-1")]));
    solo.input(ack_refs(2, AckStatus::Applied, 0, 1));
    for ack in [
        ack_refs(2, AckStatus::Declined, 0, 1),
        ack_id("b", "r-1", AckStatus::Declined),
        ack_id("b", "r-1", AckStatus::Deferred),
    ] {
        let step = solo.step([ack]);
        assert!(step.writes().is_empty());
        solo.commit(step);
    }
    solo.pass(100_000);
    let outcome = outcome(&solo, "r-1").unwrap();
    assert_eq!((outcome.terminal, outcome.reason), (Terminal::Applied, None::<Reason>));
    assert!(solo.store.is_empty(Table::Escalation));
}

#[test]
fn ts1_offer_ack_and_deadline_in_one_step_end_it_once() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(issue([revoke("r-1")]));
    solo.now += 60_000;
    let step = solo.step([
        Input::Tick,
        ack_refs(2, AckStatus::Applied, 0, 1),
        Input::SessionDown { session: SessionId(2) },
    ]);
    let outcomes = step.writes().iter().filter(|write| write.table == Table::Escalation).count();
    assert_eq!(outcomes, 1);
    solo.commit(step);
    assert_eq!(outcome(&solo, "r-1").unwrap().terminal, Terminal::Escalated);
    assert_eq!(solo.store.len(Table::Reconcile), 1, "the ack is late, and filed");
}

/// What a receiver says past the deadline may only mean that it has forgotten: its ledger keeps an
/// `applied` until then and no longer.
#[test]
fn dc1_a_decline_that_comes_after_the_deadline_says_nothing() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(issue([revoke("r-1")]));
    solo.now += 60_000; // and no alarm was handled
    solo.input(ack_refs(2, AckStatus::Declined, 0, 1));
    solo.input(ack_id("b", "r-1", AckStatus::Declined));
    assert_eq!(outcome(&solo, "r-1"), None);
    solo.input(Input::Tick);
    assert_eq!(outcome(&solo, "r-1").unwrap().terminal, Terminal::Escalated);
}

#[test]
fn ab4_an_applied_that_comes_after_the_deadline_and_before_the_escalation_counts() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(issue([revoke("r-1")]));
    solo.now += 60_000;
    solo.input(ack_refs(2, AckStatus::Applied, 0, 1));
    assert_eq!(outcome(&solo, "r-1").unwrap().terminal, Terminal::Applied);
}
