//! Each rule is broken on purpose in whole runs, by a core or a driver made wrong at one place, and
//! its checker fires; without the mutant nothing does.
//!
//! `cargo test -p abhyasa-netsim --features mutants --test mutants`
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use netsim::shrink::{broken, shrink};
use netsim::{
    Chance, Delay, Fault, FaultKind, HandlerModel, LinkModel, LinkOf, Micros, Mode, Options,
    RelayModel, run,
};
use proto::backoff::Backoff;
use proto::mutant::Mutant;

/// Runs tried before a mutant counts as overlooked.
const SEEDS_MAX: u64 = 60;

fn swarm(seed: u64) -> Options {
    Options::swarm(seed, 60)
}

/// Kinds go through a handler that likes to put off and to leave in doubt; nodes crash.
fn handled(seed: u64) -> Options {
    Options {
        external: netsim::KINDS.map(str::to_owned).into(),
        handler: HandlerModel {
            defer_permille: 300,
            defer_forever_permille: 200,
            in_doubt_permille: 300,
            call_ms_max: 300,
            ..HandlerModel::PROMPT
        },
        crashes: 6,
        deadline_s: 20,
        retries: None,
        deciding_max: 64,
        ..swarm(seed)
    }
}

/// A handler puts everything off, so that only the budget ends a transfer, and nodes crash on the way.
fn put_off(seed: u64) -> Options {
    Options {
        transfers: 40,
        keys: 1_000_000,
        external: netsim::KINDS.map(str::to_owned).into(),
        handler: HandlerModel { defer_forever_permille: 1_000, ..HandlerModel::PROMPT },
        faults_ms: 60_000,
        crashes: 12,
        fault_ms_max: 500,
        deadline_s: 600,
        retries: Some(200),
        backoff: Backoff { base_ms: 50, cap_ms: 50, jitter_permille: 200 },
        ..Options::quiet(seed)
    }
}

/// A link that loses much until everything heals, with minutes left to every deadline.
fn long(seed: u64) -> Options {
    Options {
        transfers: 100,
        keys: 1_000_000,
        faults_ms: 30_000,
        mode: Mode::Datagrams,
        link: LinkModel { loss: Chance::permille(600), ..LinkModel::default() },
        deadline_s: 600,
        backoff: Backoff { base_ms: 1_000, cap_ms: 8_000, jitter_permille: 200 },
        ..Options::quiet(seed)
    }
}

/// Node `a` stands still through its deadlines, and hears no ack before; copies of its offers reach
/// `b` when `b` has forgotten them.
fn held_up(seed: u64) -> Options {
    let delay =
        Delay::Pareto { min: Micros::from_ms(5), shape: 0.25, max: Micros::from_ms(120_000) };
    let twice = LinkModel { duplicate: Chance::ALWAYS, ..LinkModel::with_delay(delay) };
    Options {
        transfers: 2_000,
        keys: 1_000_000,
        faults_ms: 1_000,
        warm_up_ms: 1_000,
        heal_after_ms: 100_000,
        mode: Mode::Datagrams,
        singly: true,
        idle_ms: 200_000,
        deadline_s: 10,
        links: vec![LinkOf { from: 0, to: 1, link: twice }],
        timeline: Some(vec![
            Fault { at_ms: 0, for_ms: 30_000, what: FaultKind::Cut { from: 1, to: 0 } },
            Fault { at_ms: 2_000, for_ms: 78_000, what: FaultKind::Pause { node: 0 } },
        ]),
        ..Options::quiet(seed)
    }
}

/// Of the first runs one breaks one of `rules` before anything else; the same run without the mutant,
/// and all before it, break nothing.
#[track_caller]
fn fires(mutant: Mutant, rules: &[&str], options: impl Fn(u64) -> Options) {
    for seed in 0..SEEDS_MAX {
        let options = options(seed);
        let report = run(&options);
        assert_eq!(report.violations, [], "{mutant:?} is not needed for this: seed {seed}");
        let report = run(&Options { mutant: Some(mutant), ..options });
        let Some(violation) = report.violations.first() else { continue };
        assert!(rules.contains(&violation.rule), "{mutant:?}, seed {seed}: {violation:?}");
        return;
    }
    panic!("{mutant:?} was overlooked in {SEEDS_MAX} runs");
}

#[test]
fn ac1_the_inadmissible_under_custody_and_best_effort_that_escalates() {
    fires(Mutant::TakesInadmissible, &["AC-1"], swarm);
    fires(Mutant::EscalatesBestEffort, &["AC-1"], swarm);
}

#[test]
fn ab1_an_issue_that_is_not_durable_withheld_or_made_once() {
    fires(Mutant::SkipsPending, &["AB-1", "PS-1"], swarm);
    fires(Mutant::SkipsWithholding, &["AB-1"], swarm);
    fires(Mutant::IssuesTwice, &["AB-1", "TS-1"], swarm);
}

#[test]
fn ab2_a_budget_or_a_deadline_that_is_not_kept() {
    fires(Mutant::IgnoresBudget, &["AB-2"], swarm);
    fires(Mutant::SkipsAttempts, &["AB-2"], put_off);
    fires(Mutant::MovesDeadline, &["AB-4"], swarm);
}

#[test]
fn df1_a_deferral_that_moves_the_deadline() {
    fires(Mutant::DeferralExtends, &["AB-4"], handled);
}

#[test]
fn deliver_or_report_is_missed_when_a_transfer_or_its_alarm_is_lost() {
    fires(Mutant::ForgetsPending, &["deliver-or-report"], swarm);
    fires(Mutant::LosesDeadline, &["deliver-or-report"], swarm);
}

#[test]
fn ab4_an_escalation_that_is_early_unsafe_unfiled_doubled_or_forgotten() {
    for mutant in [
        Mutant::EscalatesEarly,
        Mutant::EscalatesUnsafe,
        Mutant::EscalatesUnfiled,
        Mutant::EscalatesTwice,
        Mutant::SafeTwice,
        Mutant::InboxForgets,
    ] {
        fires(mutant, &["AB-4"], swarm);
    }
}

#[test]
fn dc1_a_decline_that_protects_nobody_or_says_what_is_not_so() {
    fires(Mutant::DeclineUnprotected, &["DC-1"], swarm);
    fires(Mutant::DeclineIsApplied, &["AB-3", "PS-1"], swarm);
    fires(Mutant::DeclinesDoubt, &["DC-1", "PS-1"], handled);
    fires(Mutant::DeclinePastDeadline, &["DC-1"], held_up);
}

#[test]
fn ts1_a_terminal_that_is_not_final() {
    fires(Mutant::LateReopens, &["TS-1"], swarm);
    fires(Mutant::LateUnfiled, &["TS-1"], swarm);
    fires(Mutant::LateFiledAgain, &["TS-1"], swarm);
}

#[test]
fn sg1_and_sg2_a_guard_that_is_ignored() {
    fires(Mutant::IgnoresGuardHere, &["SG-1"], swarm);
    fires(Mutant::IgnoresGuardThere, &["SG-2"], swarm);
}

#[test]
fn le1_a_ledger_without_effect_an_effect_without_ledger_and_one_that_forgets() {
    fires(Mutant::SkipsLedger, &["LE-1"], swarm);
    fires(Mutant::SkipsEffect, &["LE-1"], swarm);
    fires(Mutant::LedgerForgets, &["LE-1"], swarm);
}

#[test]
fn ab3_a_second_effect() {
    fires(Mutant::AppliesAgain, &["AB-3"], swarm);
    fires(Mutant::OverlooksStaged, &["AB-3"], swarm);
    fires(Mutant::BestEffortAgain, &["AB-3"], swarm);
}

#[test]
fn dl1_an_effect_past_the_deadline() {
    fires(Mutant::AppliesLate, &["DL-1"], swarm);
}

#[test]
fn ps1_what_is_seen_before_it_is_durable() {
    fires(Mutant::AcksReceipt, &["PS-1"], swarm);
    fires(Mutant::SkipsIntent, &["PS-1"], swarm);
    fires(Mutant::ReleasesEarly, &["AB-1", "PS-1"], swarm);
}

#[test]
fn cr1_a_driver_that_outlives_a_failed_commit() {
    fires(Mutant::IgnoresFailure, &["AB-1", "PS-1"], swarm);
}

/// Decisions for many through a relay, which crashes when it has them.
fn relayed(seed: u64) -> Options {
    let nodes = 9;
    let crash = FaultKind::Crash { node: nodes };
    Options {
        nodes,
        relay: Some(RelayModel { fan_out: seed.is_multiple_of(2) }),
        star: true,
        decisions: 1,
        warm_up_ms: 2_000,
        faults_ms: 1,
        heal_after_ms: 20_000,
        timeline: Some(vec![Fault { at_ms: 8, for_ms: 3_000, what: crash }]),
        ..Options::quiet(seed)
    }
}

#[test]
fn ab3_a_relay_that_is_taken_for_its_readers() {
    for seed in [0, 1] {
        fires(Mutant::RelayIsAck, &["AB-3", "PS-1"], |_| relayed(seed));
        // Its principal is told that it is applied, and nobody has applied it: lost silently.
        let report = run(&Options { mutant: Some(Mutant::RelayIsAck), ..relayed(seed) });
        let silent = "its receiver's ledger says None";
        assert!(report.violations[0].detail.contains(silent), "{:?}", report.violations);
    }
}

#[test]
fn bd1_more_than_there_is_room_for() {
    fires(Mutant::IgnoresWindow, &["BD-1"], swarm);
    fires(Mutant::IgnoresFull, &["BD-1"], swarm);
}

#[test]
fn what_is_well_again_and_does_not_converge() {
    fires(Mutant::StopsRetrying, &["converges"], long);
}

#[test]
fn every_mutant_is_named_above() {
    let text = include_str!("mutants.rs");
    for mutant in Mutant::ALL {
        let name = format!("Mutant::{mutant:?}");
        assert!(text.contains(&name), "{name} is in no test");
    }
}

/// The shortest way from a violation to what made it.
#[test]
fn a_mutants_violation_shrinks_into_a_file_that_breaks_the_same_promise() {
    for (mutant, rule) in [
        (Mutant::AppliesAgain, "AB-3"),
        (Mutant::EscalatesUnsafe, "AB-4"),
        (Mutant::ForgetsPending, "deliver-or-report"),
        (Mutant::IgnoresGuardThere, "SG-2"),
    ] {
        let mutated = |seed| Options { mutant: Some(mutant), ..swarm(seed) };
        let (options, found) = (0..SEEDS_MAX)
            .find_map(|seed| Some((mutated(seed), broken(&mutated(seed))?)))
            .expect("seen");
        assert_eq!(found.rule, rule);
        let (small, still, _) = shrink(&options, 1_500, &mut |_| true).unwrap();
        assert_eq!((still.rule.as_str(), still.class), (rule, found.class));
        let (faults, left) = (small.timeline.as_ref().unwrap(), small.only.as_ref().unwrap());
        assert!(left.len() <= 3, "{mutant:?}: obligations {left:?} are left");
        assert!(faults.len() <= 3, "{mutant:?}: {faults:?} are left");
        let file = small.to_toml().unwrap();
        assert!(file.contains("mutant = "), "the file names what was wrong with the core");
        assert_eq!(broken(&Options::from_toml(&file).unwrap()), Some(still), "{file}");
        let sound = Options { mutant: None, ..small };
        assert_eq!(broken(&sound), None, "without the mutant the small run is kept");
    }
}
