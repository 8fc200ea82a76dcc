//! Each property of the check of consent is broken by a machine made wrong at one place, and found out.
//!
//! `cargo test -p abhyasa-netsim --no-default-features --features mutants --test consent_mutants`
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use netsim::consent::{Rule, Setup, check};
use proto::consent::{Mutant, Side};

/// The shortest path to what a mutant breaks.
fn breaks(mutant: Mutant, rule: Rule) -> Vec<String> {
    // The rule holds without the mistake, at the same bounds.
    let setup = Setup { versions: 2, events: 2, records: 2, watch: Some(rule), ..Setup::paper() };
    assert!(check(&setup, 2).holds(), "{rule:?}");
    let found = check(&Setup { mutant: Some(mutant), ..setup.clone() }, 2).counterexample;
    let (name, path) = found.unwrap_or_else(|| panic!("{mutant:?} is overlooked"));
    assert_eq!(name, rule.name(), "{mutant:?}");
    // On the other side too.
    let there = Setup { mutant: Some(mutant), side: Side::Callee, ..setup };
    assert!(!check(&there, 2).holds(), "{mutant:?} is overlooked at the callee");
    path
}

#[test]
fn s1_a_rejection_taken_for_consent() {
    let path = breaks(Mutant::TakesRejection, Rule::NoSkillWithoutConsent);
    assert!(path.contains(&"Consent(Rejected)".to_owned()), "{path:?}");
}

#[test]
fn s1_a_new_version_overlooked() {
    let path = breaks(Mutant::OverlooksBump, Rule::NoSkillOnStalePolicy);
    assert!(path.contains(&"Publish".to_owned()), "{path:?}");
}

#[test]
fn s2_a_record_in_place_of_another() {
    let path = breaks(Mutant::Overwrites, Rule::ChainMonotonicity);
    assert_eq!(path.iter().filter(|step| step.starts_with("Consent")).count(), 2, "{path:?}");
}

#[test]
fn s3_an_event_that_rests_on_nothing() {
    let path = breaks(Mutant::TakesUnanchored, Rule::AdherenceAnchored);
    assert!(path.last().unwrap().starts_with("Claim("), "{path:?}");
}

#[test]
fn s4_a_skill_that_nothing_permits() {
    let path = breaks(Mutant::SkipsPermit, Rule::SkillRequiresPermit);
    assert!(path.last().unwrap().starts_with("Invoke("), "{path:?}");
}

#[test]
fn s5_a_disputed_claim_that_permits() {
    let path = breaks(Mutant::PermitsDisputed, Rule::ConditionalGating);
    assert_eq!(path.last().unwrap(), "Attempt(1, true)", "{path:?}");
}

#[test]
fn s6_a_permit_by_a_disputed_claim_on_the_trail() {
    let path = breaks(Mutant::TakesDisputedPermit, Rule::NoDisputedPermit);
    assert_eq!(path.last().unwrap(), "Claim(1, Permit, Last)", "{path:?}");
}

#[test]
fn s7_a_change_of_the_caller_overlooked() {
    let path = breaks(Mutant::OverlooksDrift, Rule::NoSkillOnCapabilityDrift);
    assert!(path.contains(&"Change".to_owned()), "{path:?}");
}

#[test]
fn l1_no_way_back_after_a_new_version() {
    let path = breaks(Mutant::StuckOnBump, Rule::EventualReConsent);
    assert_eq!(path.last().unwrap(), "Publish", "{path:?}");
}

#[test]
fn l2_no_way_back_after_a_change_of_the_caller() {
    let path = breaks(Mutant::StuckOnDrift, Rule::EventualCapabilityReConsent);
    assert_eq!(path.last().unwrap(), "Change", "{path:?}");
}

/// Nobody forgets one: each mutant there is has a test here.
#[test]
fn every_mutant_is_tried() {
    let here = include_str!("consent_mutants.rs");
    for mutant in Mutant::ALL {
        assert!(here.contains(&format!("breaks(Mutant::{mutant:?}, ")), "{mutant:?}");
    }
}
