//! BD-1, PS-1, CR-1: everything is bounded, disk comes before wire, a failed commit is the end.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use bytes::Bytes;
use common::*;
use netsim::{Options, Pair, SimStore, Solo, draft};
use proto::ack::AckStatus;
use proto::custodian::{Draft, IssueError};
use proto::custody::{Custody, Input, IssueResult};
use proto::event::{Event, Fault};
use proto::frame::RefuseCode;
use proto::polarity::Registry;
use proto::receiver::Decision;
use proto::record::Terminal;
use proto::settings::Settings;
use proto::step::{Output, SessionId, Step, Ticket};
use proto::store::{ReadError, Table, Write};
use proto::time::Time;
use serde_json::json;

fn tokens(count: usize) -> Vec<Draft> {
    let token = |n| json!({"action": "revoke", "token_id": format!("t-{n}")});
    (0..count).map(|n| draft(&format!("t-{n}"), TOKEN, "b", &token(n))).collect()
}

fn results(outputs: &[Output]) -> &[IssueResult] {
    let found = outputs.iter().find_map(|output| match output {
        Output::Issued { results, .. } => Some(results),
        _ => None,
    });
    found.unwrap()
}

fn refusals(outputs: &[Output]) -> Vec<(RefuseCode, u64)> {
    let refused = outputs.iter().filter_map(|output| match output {
        Output::Refuse { code, refs, .. } => {
            Some((*code, refs.iter().map(|range| range.count).sum()))
        }
        _ => None,
    });
    refused.collect()
}

#[test]
fn bd1_pending_is_bounded_in_all_and_by_peer() {
    for (all, by_peer) in [(3, 99), (99, 3)] {
        let options =
            Options { pending_max: all, pending_per_peer_max: by_peer, ..Options::quiet(1) };
        let mut solo = custodian(&options);
        let outputs = solo.input(issue(tokens(4)));
        let taken = results(&outputs);
        assert!(taken[..3].iter().all(Result::is_ok));
        assert!(matches!(taken[3], Err(IssueError::Full { pending: 3, .. })), "{:?}", taken[3]);
        assert_eq!(solo.store.len(Table::Cell), 3, "nothing is kept of what was refused");
        solo.input(ack_refs(2, AckStatus::Applied, 0, 1));
        let outputs = solo.input(issue(tokens(4).into_iter().skip(3)));
        assert!(results(&outputs)[0].is_ok(), "there is room again");
    }
}

#[test]
fn bd1_benign_obligations_pass_a_full_pending_set() {
    let mut solo = custodian(&Options { pending_max: 0, ..Options::quiet(1) });
    let outputs = solo.input(issue([grant("g-1"), revoke("r-1")]));
    assert!(results(&outputs)[0].is_ok() && results(&outputs)[1].is_err());
}

#[test]
fn bd1_offers_in_flight_stay_inside_the_window() {
    let mut solo = custodian(&Options { window: 3, ..Options::quiet(1) });
    assert_eq!(offers(&solo.input(issue(tokens(10)))).len(), 3);
    let freed = offers(&solo.input(ack_refs(2, AckStatus::Applied, 0, 2)));
    assert_eq!(freed.iter().map(|(_, at, _)| *at).collect::<Vec<_>>(), [3, 4]);
    for done in 1..5 {
        solo.input(ack_refs(2, AckStatus::Applied, 2 * done, 2));
    }
    assert_eq!(solo.custody.pending(), 0);
}

#[test]
fn bd1_bytes_in_flight_stay_inside_their_limit_and_one_always_fits() {
    let mut solo = custodian(&Options { window_bytes: 1, ..Options::quiet(1) });
    assert_eq!(offers(&solo.input(issue(tokens(3)))).len(), 1);
    for at in 0..3 {
        solo.input(ack_refs(2, AckStatus::Applied, at, 1));
    }
    assert_eq!(solo.custody.pending(), 0);
}

#[test]
fn bd1_a_small_window_starves_nobody_when_acks_are_lost() {
    let mut solo = custodian(&Options { window: 1, ..Options::quiet(1) });
    solo.input(issue(tokens(3)));
    let mut seen: Vec<String> =
        (0..120).flat_map(|_| offers(&solo.pass(500))).map(|(_, _, id)| id).collect();
    seen.sort();
    seen.dedup();
    assert_eq!(seen, ["t-0", "t-1", "t-2"]);
}

#[test]
fn bd1_an_ack_of_every_reference_there_is_costs_nothing() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(issue(tokens(2)));
    solo.input(ack_refs(2, AckStatus::Applied, 0, u64::MAX));
    assert_eq!(solo.custody.pending(), 0);
}

#[test]
fn bd1_a_peer_over_its_rate_is_refused_before_any_write() {
    let mut solo = receiver(&Options { rate_per_second: 5, ..Options::quiet(1) });
    let now = solo.now;
    let ids: Vec<&'static str> = vec!["c-0", "c-1", "c-2", "c-3", "c-4", "c-5", "c-6"];
    let items: Vec<_> = ids.iter().map(|id| Offered::belief(id, now, -0.01).encode()).collect();
    let outputs = solo.input(offer(0, items.clone()));
    assert_eq!(acks(&outputs).len(), 5);
    assert_eq!(refusals(&outputs), [(RefuseCode::Overloaded, 2)]);
    assert_eq!(solo.store.len(Table::Ledger), 5);
    solo.pass(1_000);
    assert_eq!(
        acks(&solo.input(offer(7, items[5..].to_vec()))).len(),
        2,
        "a second later there is room"
    );
}

#[test]
fn bd1_decisions_under_way_are_bounded_and_given_back() {
    let options =
        Options { deciding_max: 2, external: vec![BELIEF.to_owned()], ..Options::quiet(1) };
    let mut solo = receiver(&options);
    let now = solo.now;
    let items: Vec<_> =
        ["c-0", "c-1", "c-2"].iter().map(|id| Offered::belief(id, now, -0.01).encode()).collect();
    let outputs = solo.input(offer(0, items.clone()));
    assert_eq!(refusals(&outputs), [(RefuseCode::Overloaded, 1)]);
    assert_eq!(solo.store.len(Table::Intent), 2);
    let (issuer, decision) = (agent("a"), proto::receiver::Decision::Applied);
    solo.input(Input::Decided { issuer, id: oid("c-0"), decision });
    assert!(refusals(&solo.input(offer(3, [items[2].clone()]))).is_empty());
}

#[test]
fn bd1_outcomes_are_kept_up_to_their_number_and_age() {
    let options = Options { outcomes_max: 10, ..Options::quiet(1) };
    let mut solo = custodian(&options);
    for token in tokens(60) {
        let first = offers(&solo.input(issue([token])))[0].1;
        solo.input(ack_refs(2, AckStatus::Applied, first, 1));
        solo.pass(100);
    }
    solo.pass(5_000);
    assert!(solo.store.len(Table::Outcome) <= 10, "{} kept", solo.store.len(Table::Outcome));
    let aged = Options { retention_ms: 3_600_000, ..Options::quiet(1) };
    let mut solo = custodian(&aged);
    let first = offers(&solo.input(issue(tokens(1))))[0].1;
    solo.input(ack_refs(2, AckStatus::Applied, first, 1));
    solo.pass(3_590_000);
    assert_eq!(solo.store.len(Table::Outcome), 1);
    solo.pass(20_000);
    assert!(solo.store.is_empty(Table::Outcome) && solo.store.is_empty(Table::OutcomeLog));
}

#[test]
fn bd1_pruning_keeps_up_with_a_thousand_commits_a_second() {
    let mut solo = receiver(&Options::quiet(1));
    for n in 0..4_000u64 {
        let id: &'static str = Box::leak(format!("c-{n}").into_boxed_str());
        let item = Offered { deadline_seconds: 1, ..Offered::belief(id, solo.now, -0.001) };
        solo.input(offer(n, [item.encode()]));
        solo.pass(1);
    }
    assert_eq!(solo.store.len(Table::Ledger), 4_000);
    solo.pass(125_000);
    assert!(solo.store.is_empty(Table::Ledger), "{} left", solo.store.len(Table::Ledger));
    assert!(solo.store.is_empty(Table::LedgerExpiry));
}

#[test]
fn bd1_pruning_on_a_slow_disk_counts_nothing_twice() {
    let mut solo = custodian(&Options { outcomes_max: 20, ..Options::quiet(1) });
    for token in tokens(30) {
        let first = offers(&solo.input(issue([token])))[0].1;
        solo.input(ack_refs(2, AckStatus::Applied, first, 1));
    }
    // Ticks come while the first pruning is still on its way to the disk.
    let mut steps = Vec::new();
    for _ in 0..20 {
        solo.now += 1_000;
        steps.push(solo.step([Input::Tick]));
    }
    for step in steps {
        solo.commit(step);
    }
    solo.pass(20_000);
    for token in tokens(90).into_iter().skip(30) {
        let first = offers(&solo.input(issue([token])))[0].1;
        solo.input(ack_refs(2, AckStatus::Applied, first, 1));
        solo.pass(1_100);
    }
    solo.pass(20_000);
    let kept = solo.store.len(Table::Outcome);
    assert!((19..=20).contains(&kept), "{kept} kept");
}

#[test]
fn bd1_an_escalation_nobody_saw_outlives_its_outcomes_time_and_goes_when_seen() {
    let mut solo = custodian(&Options { retention_ms: 3_600_000, ..Options::quiet(1) });
    solo.input(issue([revoke("r-1"), revoke_token("t-1")]));
    solo.pass(61_000);
    let see = |id| Input::AckEscalation { ticket: Ticket(1), id: oid(id) };
    solo.input(see("r-1"));
    solo.pass(2 * 3_600_000);
    assert_eq!(solo.store.len(Table::Escalation), 1, "t-1 waits");
    let outputs = solo.input(see("t-1"));
    assert!(matches!(outputs[1], Output::Operated { result: Ok(()), .. }), "{outputs:?}");
    solo.pass(2 * 3_600_000);
    assert!(solo.store.is_empty(Table::Escalation) && solo.store.is_empty(Table::Outcome));
}

#[test]
fn bd1_what_is_too_large_or_out_of_range_is_not_taken() {
    let mut solo = custodian(&Options::quiet(1));
    let with = |deadline_seconds, draft: Draft| Draft {
        deadline_seconds: Some(deadline_seconds),
        ..draft
    };
    let budget = Draft { max_retries: Some(2), ..revoke("r-3") };
    let drafts = [
        with(0, grant("g-1")),
        with(u64::MAX, grant("g-2")),
        with(0, revoke("r-1")),
        with(u64::MAX, revoke("r-2")),
        budget,
    ];
    let outputs = solo.input(issue(drafts));
    assert!(results(&outputs).iter().all(Result::is_err), "{:?}", results(&outputs));
    assert!(solo.store.is_empty(Table::Pending) && solo.store.is_empty(Table::Cell));
}

#[test]
fn bd1_noise_of_a_peer_makes_no_state() {
    let mut solo = custodian(&Options::quiet(1));
    for n in 0..100 {
        let step = solo.step([
            ack_refs(2, AckStatus::Applied, n, 1),
            ack_id("b", &format!("x-{n}"), AckStatus::Declined),
        ]);
        assert!(step.writes().is_empty());
        let outputs = solo.commit(step);
        let faults = events(&outputs)
            .iter()
            .filter(|e| matches!(e, Event::PeerFault { fault: Fault::ForeignAck, .. }))
            .count();
        assert_eq!(faults, 2);
    }
}

#[test]
fn ps1_a_failed_commit_lets_nothing_out() {
    let mut solo = custodian(&Options::quiet(1));
    let step = solo.step([issue([revoke("r-1")])]);
    assert!(step.needs_sync());
    assert_eq!(step.commit(|_| Err::<(), _>("disk full")), Err("disk full"));
}

#[test]
fn ps1_an_ack_that_rests_on_an_earlier_step_has_no_writes_of_its_own() {
    // So a driver must release steps in order, also those without writes.
    let mut solo = receiver(&Options::quiet(1));
    let item = Offered::belief("c-1", solo.now, -0.25).encode();
    let first = solo.step([offer(0, [item.clone()])]);
    let second = solo.step([offer(1, [item])]);
    assert!(first.needs_commit() && !second.needs_commit());
    assert!(first.generation() < second.generation());
    solo.commit(first);
    assert_eq!(acks(&solo.commit(second)), [(1, AckStatus::Applied, None)]);
}

#[test]
fn cr1_a_restart_knows_only_what_was_committed() {
    let mut solo = custodian(&Options::quiet(1));
    solo.input(issue([revoke("r-1")]));
    drop(solo.step([issue([revoke_token("t-1")])]));
    let (mut solo, _) = solo.restarted(10);
    assert_eq!(solo.custody.pending(), 1);
    solo.input(up(2, "b", 9));
    let outputs = solo.input(issue([revoke_token("t-1")]));
    assert!(!results(&outputs)[0].as_ref().unwrap().existing, "it was never durable");
}

#[test]
fn cr1_state_written_behind_may_be_lost_and_custody_is_not() {
    let mut solo = receiver(&Options::quiet(1));
    let now = solo.now;
    let items = vec![Offered::belief("w-1", now, 0.25).encode()];
    let step = solo.step([Input::BestEffort { session: SessionId(3), items }]);
    assert!(step.needs_commit() && !step.needs_sync());
    solo.commit(step);
    assert_eq!(solo.store.len(Table::Cell), 1);
    let (mut solo, _) = solo.restarted(10);
    assert!(solo.store.is_empty(Table::Cell), "best effort");
    solo.input(up(3, "a", 9));
    solo.input(offer(0, [Offered::belief("c-1", now, -0.25).encode()]));
    let (solo, _) = solo.restarted(10);
    assert_eq!((solo.store.len(Table::Cell), solo.store.len(Table::Ledger)), (1, 1));
}

#[test]
fn cr1_both_nodes_killed_at_once_lose_nothing() {
    let mut pair = Pair::new();
    for n in 0..20 {
        pair.issue(corrective(&format!("c-{n}"), -0.001));
    }
    for ms in [3, 6, 9, 12, 15] {
        pair.run_for(ms);
        pair.kill(0);
        pair.kill(1);
        pair.restart(1);
        pair.restart(0);
    }
    pair.run_until_quiet();
    for n in 0..20 {
        assert_eq!(pair.terminal(&format!("c-{n}")), Some(Terminal::Applied));
    }
    pair.end();
}

#[test]
fn bd1_a_session_nobody_told_of_is_nobody() {
    let mut solo = Solo::new(Options::quiet(1).settings(1).unwrap());
    let item = Offered::belief("c-1", solo.now, -0.25).encode();
    let step = solo.step([offer(0, [item])]);
    assert!(step.is_empty());
    solo.commit(step);
}

/// Reads a store through everything a start and the time after it read.
fn read_all(settings: &Settings, store: &SimStore, from: u64) -> Result<(), ReadError> {
    let mut custody = Custody::open(settings.clone(), Registry::default(), store)?;
    let mut step = Step::default();
    while !custody.recover(Time::from_ms(from), store, &mut step)? {}
    for hours in 0..3 {
        let now = Time::from_ms(from + hours * 3_600_000);
        let mut step = Step::default();
        custody.handle(now, Input::Tick, store, &mut step)?;
        custody.seal(now, store, &mut step);
        custody.committed(step.generation());
        drop(step);
    }
    Ok(())
}

#[test]
fn cr1_a_damaged_record_is_an_error_and_never_passed_over() {
    let options =
        Options { retention_ms: 3_600_000, external: vec![TOKEN.to_owned()], ..Options::quiet(1) };
    let mut solo = Solo::new(options.settings(1).unwrap());
    solo.input(up(3, "a", 9));
    // As a receiver: an entry in the ledger, and an intent.
    solo.input(offer(0, [Offered::new("r-1", solo.now).encode()]));
    solo.input(offer(1, [Offered::token("t-1", solo.now).encode()]));
    let deferred = Decision::Deferred(None);
    solo.input(Input::Decided { issuer: agent("a"), id: oid("t-1"), decision: deferred });
    // As a custodian: one that escalated, and one pending with retries.
    let to_a = |id: &str| draft(id, CONSENT, "a", &json!({"decision": "revoke", "scope": "x"}));
    solo.input(issue([to_a("r-2")]));
    solo.pass(61_000);
    solo.input(issue([to_a("r-3")]));
    solo.pass(5_000);
    let (settings, from) = (options.settings(1).unwrap(), solo.now);
    read_all(&settings, &solo.store, from).unwrap();
    let read = [
        Table::Meta,
        Table::Pending,
        Table::Attempt,
        Table::Outcome,
        Table::OutcomeLog,
        Table::Escalation,
        Table::LedgerExpiry,
        Table::Intent,
    ];
    for table in read {
        let keys: Vec<Bytes> =
            solo.store.iter(table).map(|(key, _)| Bytes::copy_from_slice(key)).collect();
        assert!(!keys.is_empty(), "{table:?}");
        let damaged = keys.into_iter().filter(|key| {
            let value = Some(Bytes::from_static(b"\xff"));
            let mut store = solo.store.clone();
            store.apply(&[Write { table, key: key.clone(), value }], true);
            read_all(&settings, &store, from).is_err()
        });
        assert!(damaged.count() > 0, "{table:?}: damage is passed over");
    }
}
