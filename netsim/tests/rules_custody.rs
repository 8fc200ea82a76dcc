//! AC-1, AB-1, AB-2: what is taken into custody, held and offered again.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use common::*;
use netsim::{Delay, Micros, Options, Pair, Solo, draft};
use proto::ack::AckStatus;
use proto::backoff::Backoff;
use proto::custodian::IssueError;
use proto::event::{Event, Fault};
use proto::record::{CellValue, EscalationReason, Role, Terminal};
use proto::step::Output;
use proto::store::Table;
use serde_json::json;

const WITHHELD: CellValue = CellValue::Authorization { granted: false };

#[test]
fn ac1_a_grant_travels_without_custody() {
    let mut pair = Pair::new();
    let call = pair.issue(grant("g-1"));
    pair.run_until_quiet();
    assert!(!pair.answer(call).as_ref().unwrap().custody);
    let cell = pair.cell(1, Role::Receiver, "a", "calendar").unwrap();
    assert_eq!(cell.value, CellValue::Authorization { granted: true });
    assert!(pair.terminal("g-1").is_none() && pair.ledger("g-1").is_none());
    pair.end();
}

#[test]
fn ac1_a_lost_grant_is_nobodys_alarm() {
    let mut pair = Pair::new();
    pair.cut();
    pair.issue(grant("g-1"));
    pair.run_for(120_000);
    assert!(pair.escalations().is_empty() && pair.terminal("g-1").is_none());
    pair.mend();
    pair.run_for(1_000);
    assert_eq!(pair.effects("g-1"), 0);
    pair.end();
}

#[test]
fn ac1_kinds_without_polarity_or_permission_are_refused() {
    let mut solo = custodian(&Options::quiet(1));
    let unknown = draft("x", "acme.telemetry", "b", &json!({}));
    let stranger = draft("x", CONSENT, "nobody", &json!({}));
    let oneself = draft("x", CONSENT, "a", &json!({}));
    let outputs = solo.input(issue([unknown, stranger, oneself]));
    let Some(Output::Issued { results, .. }) = outputs.first() else { panic!("{outputs:?}") };
    assert!(matches!(results[0], Err(IssueError::NotAllowed { .. })));
    assert!(matches!(results[1], Err(IssueError::UnknownTarget { .. })));
    assert!(matches!(results[2], Err(IssueError::Oneself { .. })));
    assert!(solo.store.is_empty(Table::Pending));
}

#[test]
fn ab1_issue_withholds_here_at_once_whatever_the_network_does() {
    let mut pair = Pair::new();
    pair.cut();
    let call = pair.issue(revoke("r-1"));
    pair.run_for(10);
    assert!(pair.answer(call).as_ref().unwrap().custody);
    assert_eq!(pair.cell(0, Role::Principal, "b", "calendar").unwrap().value, WITHHELD);
    pair.run_until_quiet();
    pair.end();
}

#[test]
fn ab1_pending_record_and_withhold_share_the_commit_of_the_first_offer() {
    let mut solo = custodian(&Options::quiet(1));
    let step = solo.step([issue([revoke("r-1")])]);
    let tables: Vec<Table> = step.writes().iter().map(|write| write.table).collect();
    assert!(tables.contains(&Table::Pending) && tables.contains(&Table::Cell));
    assert!(solo.store.is_empty(Table::Pending));
    assert_eq!(offers(&solo.commit(step)), [(2, 0, "r-1".to_owned())]);
}

#[test]
fn ab1_the_same_obligation_issued_again_is_one() {
    let mut pair = Pair::new();
    pair.cut();
    pair.issue(revoke("r-1"));
    pair.run_for(100);
    let while_pending = pair.issue(revoke("r-1"));
    pair.run_for(100);
    pair.mend();
    pair.run_until_quiet();
    let after_end = pair.issue(revoke("r-1"));
    pair.run_until_quiet();
    for call in [while_pending, after_end] {
        let issued = pair.answer(call).as_ref().unwrap();
        assert!(issued.existing && issued.custody, "{issued:?}");
        assert_eq!(issued.sequence, Some(1));
    }
    assert_eq!(pair.terminal("r-1"), Some(Terminal::Applied));
    assert_eq!(pair.effects("r-1"), 1);
    pair.end();
}

#[test]
fn ab1_an_id_with_other_content_is_refused() {
    let mut pair = Pair::new();
    pair.issue(corrective("x", -0.25));
    pair.run_until_quiet();
    let other = pair.issue(corrective("x", -0.5));
    let mut numbered = corrective("x", -0.25);
    numbered.sequence = Some(9);
    let numbered = pair.issue(numbered);
    pair.run_until_quiet();
    for call in [other, numbered] {
        assert!(matches!(pair.answer(call), Err(IssueError::IdTaken { .. })));
    }
    assert_eq!(pair.effects("x"), 1);
    pair.end();
}

#[test]
fn ab1_an_ack_from_another_agent_changes_nothing() {
    let options = Options { nodes: 3, ..Options::quiet(1) };
    let mut solo = custodian(&options);
    solo.input(up(4, "c", 9));
    solo.input(issue([revoke("r-1")]));
    for foreign in [
        ack_id("c", "r-1", AckStatus::Applied),
        ack_id("b", "never-issued", AckStatus::Applied),
        ack_refs(4, AckStatus::Applied, 0, 1),
        ack_refs(2, AckStatus::Applied, 1, 1 << 20),
    ] {
        let step = solo.step([foreign]);
        assert!(step.writes().is_empty());
        let outputs = solo.commit(step);
        let told = events(&outputs);
        assert!(
            matches!(told[..], [Event::PeerFault { fault: Fault::ForeignAck, .. }]),
            "{told:?}"
        );
    }
    assert_eq!(solo.custody.pending(), 1);
    solo.input(ack_refs(2, AckStatus::Applied, 0, 1));
    assert_eq!(outcome(&solo, "r-1").unwrap().terminal, Terminal::Applied);
}

#[test]
fn ab2_retries_back_off_and_end_at_the_deadline() {
    let mut solo = custodian(&Options::quiet(1));
    let begun = solo.now;
    solo.input(issue([revoke("r-1")]));
    let mut at = Vec::new();
    for _ in 0..700 {
        if !offers(&solo.pass(100)).is_empty() {
            at.push((solo.now - begun) / 1000);
        }
    }
    assert_eq!(at, [1, 3, 7, 15, 23, 31, 39, 47, 55]);
    let outcome = outcome(&solo, "r-1").unwrap();
    assert_eq!((outcome.terminal, outcome.at.as_ms() - begun), (Terminal::Escalated, 60_000));
}

#[test]
fn ab2_a_custodian_killed_in_mid_retry_resumes_with_the_old_deadline() {
    let mut pair = Pair::new();
    pair.cut();
    pair.issue(revoke("r-1"));
    pair.run_for(20_000);
    pair.kill(0);
    pair.run_for(10_000);
    pair.restart(0);
    pair.mend();
    pair.run_for(200);
    let outcome = pair.outcome("r-1").expect("repeated as soon as the link is back");
    assert_eq!(outcome.terminal, Terminal::Applied);
    assert_eq!(outcome.deadline_at.as_ms() - outcome.created_at.as_ms(), 60_000);
    pair.end();
}

#[test]
fn ab2_a_restart_extends_no_deadline() {
    let mut pair = Pair::new();
    pair.cut();
    pair.issue(revoke("r-1"));
    for _ in 0..5 {
        pair.run_for(9_000);
        pair.kill(0);
        pair.run_for(1_000);
        pair.restart(0);
    }
    pair.run_until_quiet();
    let outcome = pair.outcome("r-1").unwrap();
    assert_eq!(outcome.terminal, Terminal::Escalated);
    let late = outcome.at.as_ms() - outcome.deadline_at.as_ms();
    assert!(late < 50, "escalated {late} ms after the deadline");
    pair.end();
}

#[test]
fn ab2_a_recovered_budget_is_not_refilled() {
    let options = Options { retries: Some(4), deadline_s: 600, ..Options::quiet(1) };
    let mut solo = custodian(&options);
    let mut sent = offers(&solo.input(issue([revoke("r-1")]))).len();
    sent += offers(&solo.pass(8_000)).len(); // retries at 1, 3 and 7 s
    assert_eq!(sent, 4);
    for _ in 0..3 {
        let (next, outputs) = solo.restarted(10);
        solo = next;
        sent += offers(&outputs).len();
        sent += offers(&solo.input(up(2, "b", 9))).len();
    }
    sent += offers(&solo.pass(300_000)).len();
    // One repeat for each new session, the fourth retry, and at most one repeat of the attempt
    // that was under way.
    assert!(sent <= 4 + 3 + 2, "{sent} offers");
    let outcome = outcome(&solo, "r-1").unwrap();
    assert_eq!(outcome.reason.unwrap().as_str(), "retries_exhausted");
    assert_eq!(outcome.retries, 4);
    assert!(solo.store.is_empty(Table::Attempt));
}

#[test]
fn ab2_a_deferral_after_a_restart_refunds_no_retry() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(issue([revoke("r-1")]));
    solo.pass(8_000);
    let (mut solo, _) = solo.restarted(10);
    solo.input(up(2, "b", 9));
    solo.input(ack_id("b", "r-1", AckStatus::Deferred));
    let noted = solo.store.iter(Table::Attempt).next().unwrap().1.clone();
    assert_eq!(proto::record::Attempt::decode(&noted).unwrap().retries, 3);
    solo.input(ack_id("b", "r-1", AckStatus::Applied));
    assert!(solo.store.is_empty(Table::Attempt), "the record goes with its transfer");
}

#[test]
fn ab2_a_crash_loop_does_not_eat_the_budget() {
    let mut solo = custodian(&Options::quiet(1));
    let begun = solo.now;
    solo.input(issue([revoke("r-1")]));
    while solo.now < begun + 55_000 {
        solo.pass(400);
        solo = solo.restarted(50).0;
        assert!(outcome(&solo, "r-1").is_none(), "ended {} ms after issue", solo.now - begun);
    }
    solo.pass(6_000);
    assert_eq!(outcome(&solo, "r-1").unwrap().terminal, Terminal::Escalated);
}

#[test]
fn ab2_an_ack_slower_than_every_retry_still_counts() {
    let mut options = Options::quiet(1);
    options.backoff = Backoff { base_ms: 200, cap_ms: 1_000, jitter_permille: 0 };
    options.link.delay = Delay::Fixed(Micros::from_ms(2_000));
    let mut pair = Pair::with(options);
    pair.run_for(10_000);
    pair.events();
    pair.issue(revoke("r-1"));
    pair.run_for(4_500);
    assert_eq!(pair.terminal("r-1"), Some(Terminal::Applied));
    let faults = pair.events();
    assert!(
        !faults.iter().any(|(_, _, event)| matches!(event, Event::PeerFault { .. })),
        "{faults:?}"
    );
    pair.end();
}

#[test]
fn ab2_an_ack_on_the_older_of_two_sessions_counts() {
    let mut solo = custodian(&Options::quiet(1));
    assert_eq!(offers(&solo.input(issue([revoke("r-1")]))), [(2, 0, "r-1".to_owned())]);
    let repeated = solo.input(up(6, "b", 9));
    assert_eq!(offers(&repeated), [(6, 0, "r-1".to_owned())]);
    solo.input(ack_refs(2, AckStatus::Applied, 0, 1));
    assert_eq!(outcome(&solo, "r-1").unwrap().terminal, Terminal::Applied);
    let late = solo.input(ack_refs(6, AckStatus::Applied, 0, 1));
    assert!(events(&late).is_empty(), "the second ack is no news: {late:?}");
}

#[test]
fn ab2_when_the_newest_session_dies_the_older_one_carries_on() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(up(6, "b", 9));
    assert_eq!(offers(&solo.input(issue([revoke("r-1")])))[0].0, 6);
    let outputs =
        solo.input(proto::custody::Input::SessionDown { session: proto::step::SessionId(6) });
    assert_eq!(offers(&outputs), [(2, 0, "r-1".to_owned())]);
}

#[test]
fn ab2_escalations_say_what_is_known_of_the_receiver() {
    use proto::frame::RefuseCode::*;
    let cases = [
        (None, EscalationReason::Unreachable),
        (Some(Unauthorized), EscalationReason::Unauthenticated),
        (Some(Unsupported), EscalationReason::Unsupported),
        (Some(Malformed), EscalationReason::Unsupported),
        (Some(WrongTarget), EscalationReason::Unsupported),
        (Some(Overloaded), EscalationReason::Overloaded),
    ];
    for (code, expected) in cases {
        let mut solo = custodian(&Options::quiet(1));
        solo.input(issue([revoke("r-1")]));
        let mut first = 0;
        for _ in 0..70 {
            if let Some(code) = code {
                let refs = vec![proto::ack::RefRange { first, count: 9 }];
                let session = proto::step::SessionId(2);
                solo.input(proto::custody::Input::Refused {
                    session,
                    refs,
                    code,
                    retry_after_ms: 10,
                });
            }
            first += offers(&solo.pass(1_000)).len() as u64;
        }
        let item = solo.store.iter(Table::Escalation).next().unwrap().1.clone();
        let item: proto::record::Escalation = serde_json::from_slice(&item).unwrap();
        assert_eq!(item.reason, expected, "{code:?}");
    }
}

#[test]
fn ab2_a_refusal_keeps_budget_and_deadline_and_is_waited_out() {
    let mut solo = custodian(&Options::quiet(1));
    let begun = solo.now;
    solo.input(issue([revoke("r-1")]));
    let refs = vec![proto::ack::RefRange { first: 0, count: 1 }];
    let (session, code) = (proto::step::SessionId(2), proto::frame::RefuseCode::Overloaded);
    solo.input(proto::custody::Input::Refused { session, refs, code, retry_after_ms: 5_000 });
    assert!(offers(&solo.pass(4_900)).is_empty());
    assert_eq!(offers(&solo.pass(200)).len(), 1);
    solo.pass(60_000);
    let outcome = outcome(&solo, "r-1").unwrap();
    assert_eq!(outcome.at.as_ms() - begun, 60_000);
}

/// What queues for room in its peer's window is offered when there is room, or goes with its session.
#[test]
fn ab2_what_waits_for_room_uses_up_no_retry() {
    let mut solo = Solo::new(Options::quiet(1).settings(0).unwrap());
    let mut sent = offers(&solo.input(up(2, "b", 1)));
    sent.extend(offers(&solo.input(issue((0..10).map(|n| revoke(&format!("r-{n}")))))));
    assert_eq!(sent.len(), 1, "the window takes one");
    sent.extend(offers(&solo.pass(20_000)));
    let retries = |solo: &Solo| -> u32 {
        let attempts = solo.store.iter(Table::Attempt);
        attempts.map(|(_, value)| proto::record::Attempt::decode(value).unwrap().retries).sum()
    };
    let made = retries(&solo);
    assert!(made > 5, "each that is offered in vain gives its place up, and counts: {made}");
    assert_eq!(sent.len(), made as usize + 1, "{sent:?}");
    sent.extend(offers(
        &solo.input(proto::custody::Input::SessionDown { session: proto::step::SessionId(2) }),
    ));
    solo.pass(20_000);
    assert!(retries(&solo) >= made + 10, "silence again for each of them");
    sent = offers(&solo.input(up(3, "b", 10)));
    assert_eq!(sent.len(), 10, "all of them on the next session");
}

#[test]
fn ab2_a_million_would_not_start_at_once_after_a_restart() {
    let mut solo = Solo::new(Options { transfers: 0, ..Options::quiet(1) }.settings(0).unwrap());
    let drafts = (0..200).map(|n| {
        draft(
            &format!("r-{n}"),
            TOKEN,
            "b",
            &json!({"action": "revoke", "token_id": format!("t-{n}")}),
        )
    });
    solo.input(issue(drafts));
    let (mut solo, _) = solo.restarted(10);
    solo.input(up(2, "b", 1_000));
    let halves: Vec<usize> = (0..2).map(|_| offers(&solo.pass(500)).len()).collect();
    assert!(
        halves.iter().all(|half| *half > 50),
        "retries of one backoff delay come spread: {halves:?}"
    );
}
