//! Chains and trails: a broken one is told by the record and by the rule.

use crate::setup::*;
use abhyasa_proto::consent::*;

fn chain() -> (PolicyDocument, PolicyDocument, Vec<ConsentRecord>) {
    let (one, two) = (policy("1.0.0", None), policy("1.1.0", Some("1.0.0")));
    let chain = vec![
        record("r1", None, &one, ConsentDecision::Accepted, &[], 0),
        record("r2", Some("r1"), &two, ConsentDecision::Conditional, &["profile"], 10),
        record("r3", Some("r2"), &two, ConsentDecision::Rejected, &[], 20),
    ];
    (one, two, chain)
}

fn fault(change: impl FnOnce(&mut Vec<ConsentRecord>)) -> (String, usize, RecordFault, String) {
    let (one, two, mut chain) = chain();
    change(&mut chain);
    let found = validate_chain(&chain, |version| {
        [&one, &two].into_iter().find(|it| it.version == *version)
    });
    let error = found.unwrap_err();
    let text = error.to_string();
    (error.record.to_string(), error.at, error.fault, text)
}

#[test]
fn s2_a_whole_chain_is_one() {
    let (one, two, chain) = chain();
    let policy_of =
        |version: &PolicyVersion| [&one, &two].into_iter().find(|it| it.version == *version);
    assert_eq!(validate_chain(&chain, policy_of), Ok(()));
    assert_eq!(validate_chain(&chain[..0], policy_of), Ok(()));
}

#[test]
fn s2_a_broken_link_is_told_by_the_record() {
    let (record, at, fault_, text) = fault(|chain| drop(chain.remove(1)));
    assert_eq!((record.as_str(), at), ("r3", 1));
    assert!(matches!(fault_, RecordFault::Link { .. }));
    assert_eq!(
        text,
        "consent record r3, number 1 of its chain: its prev_record_id is Some(\"r2\"), where Some(\"r1\") belongs"
    );
    let (record, at, fault_, _) = fault(|chain| drop(chain.remove(0)));
    assert_eq!((record.as_str(), at), ("r2", 0));
    assert!(
        matches!(fault_, RecordFault::Link { expected: None, .. }),
        "the first has none before it"
    );
    let (.., fault_, _) = fault(|chain| chain[2].record_id = RecordId::new("r1").unwrap());
    assert_eq!(fault_, RecordFault::Again);
    let (.., fault_, _) = fault(|chain| chain[1].accepted_at = chain[0].accepted_at.clone());
    assert!(matches!(fault_, RecordFault::Order { .. }), "{fault_:?}");
    let (.., fault_, text) =
        fault(|chain| chain[1].callee_agent_id = agent("did:web:another.example"));
    assert!(matches!(fault_, RecordFault::Pair { .. }), "{fault_:?}");
    assert!(text.contains("did:web:caller.example and did:web:another.example"), "{text}");
}

#[test]
fn a_record_answers_every_claim_once_and_no_other() {
    let list = |claims: Vec<ParsedClaim>| List::new(claims).unwrap();
    let (record, _, fault_, text) =
        fault(|chain| chain[1].parsed_claims = list(chain[1].parsed_claims[1..].to_vec()));
    assert_eq!(record, "r2");
    assert!(matches!(fault_, RecordFault::Missing { .. }), "{fault_:?}");
    assert!(text.ends_with("missing use"), "{text}");
    let more = |id: &str| {
        let id = claim(id);
        move |chain: &mut Vec<ConsentRecord>| {
            let mut claims = chain[1].parsed_claims.to_vec();
            claims.push(ParsedClaim { claim_id: id, ..claims[0].clone() });
            chain[1].parsed_claims = list(claims);
        }
    };
    let (.., fault_, _) = fault(more("another"));
    assert!(matches!(fault_, RecordFault::Unasked { .. }), "{fault_:?}");
    let (.., fault_, _) = fault(more("use"));
    assert_eq!(fault_, RecordFault::Twice { claim: claim("use") });
    let none = |chain: &mut Vec<ConsentRecord>| {
        let mut claims = chain[1].parsed_claims.to_vec();
        claims[1].dispute_reason = None;
        chain[1].parsed_claims = list(claims);
    };
    let (.., fault_, _) = fault(none);
    assert_eq!(fault_, RecordFault::NoReason { claim: claim("profile") });
}

#[test]
fn a_decision_agrees_with_its_disputes() {
    let (.., fault_, _) = fault(|chain| chain[1].decision = ConsentDecision::Accepted);
    assert!(matches!(fault_, RecordFault::AcceptedDisputed { .. }), "{fault_:?}");
    let (record, .., fault_, _) = fault(|chain| chain[0].decision = ConsentDecision::Conditional);
    assert_eq!((record.as_str(), fault_), ("r1", RecordFault::NoDispute));
}

#[test]
fn a_record_is_about_exactly_its_document() {
    let (.., fault_, text) = fault(|chain| chain[1].policy_hash = chain[0].policy_hash.clone());
    assert!(matches!(fault_, RecordFault::Hash { .. }), "{fault_:?}");
    assert!(text.contains("of version 1.1.0"), "{text}");
    let (.., fault_, _) =
        fault(|chain| chain[1].policy_version = PolicyVersion::new("3.0.0").unwrap());
    assert!(matches!(fault_, RecordFault::NoPolicy { .. }), "{fault_:?}");
    let (one, two, chain) = chain();
    assert!(matches!(chain[0].check_against(&two), Err(RecordFault::Version { .. })));
    // A document that says of itself what it is not does not fool the check.
    let forged = PolicyDocument { claims: two.claims, ..one };
    assert_eq!(chain[0].check_against(&forged), Ok(()));
    let publisher = agent("did:web:another.example");
    let forged = PolicyDocument { publisher, ..forged };
    assert!(matches!(chain[0].check_against(&forged), Err(RecordFault::Hash { .. })));
}

fn trail() -> Vec<AdherenceEvent> {
    use AdherenceDecision::{Deny, Escalate, Permit};
    vec![
        event("e1", None, "r1", "use", Permit, 1),
        event("e2", Some("e1"), "r1", "profile", Deny, 1),
        event("e3", Some("e2"), "r2", "use", Permit, 11),
        event("e4", Some("e3"), "r2", "profile", Escalate, 12),
    ]
}

fn trail_fault(change: impl FnOnce(&mut Vec<AdherenceEvent>)) -> (String, usize, EventFault) {
    let (.., chain) = chain();
    let mut trail = trail();
    change(&mut trail);
    let error = validate_trail(&trail, &chain).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(&format!("adherence event {}, number {}", error.event, error.at)),
        "{text}"
    );
    (error.event.to_string(), error.at, error.fault)
}

#[test]
fn s2_a_whole_trail_is_one() {
    let (.., chain) = chain();
    assert_eq!(validate_trail(&trail(), &chain), Ok(()));
    assert_eq!(validate_trail(&[], &chain), Ok(()));
    // The first event under a record may begin a trail of its own.
    let mut trail = trail();
    trail[2].prev_event_id = None;
    assert_eq!(validate_trail(&trail, &chain), Ok(()));
}

#[test]
fn s2_a_broken_trail_is_told_by_the_event() {
    let (event, at, fault) = trail_fault(|trail| drop(trail.remove(1)));
    assert_eq!((event.as_str(), at), ("e3", 1));
    assert!(matches!(fault, EventFault::Link { .. }), "{fault:?}");
    let (event, _, fault) = trail_fault(|trail| trail[1].prev_event_id = None);
    assert_eq!(event, "e2");
    assert!(matches!(fault, EventFault::Link { given: None, .. }), "{fault:?}");
    let (.., fault) =
        trail_fault(|trail| trail[0].prev_event_id = Some(EventId::new("e0").unwrap()));
    assert!(matches!(fault, EventFault::Link { expected: None, .. }), "{fault:?}");
    let (.., fault) = trail_fault(|trail| trail[3].event_id = EventId::new("e1").unwrap());
    assert_eq!(fault, EventFault::Again);
    let (.., fault) = trail_fault(|trail| trail[3].timestamp = trail[0].timestamp.clone());
    assert!(matches!(fault, EventFault::Order { .. }), "{fault:?}");
    let (event, _, fault) = trail_fault(|trail| trail[2].timestamp = trail[0].timestamp.clone());
    assert!(
        matches!(fault, EventFault::Order { .. }),
        "{event} comes before its record: {fault:?}"
    );
}

#[test]
fn s3_an_event_rests_on_a_record_that_may_have_it() {
    let under = |at: usize, record: &str| {
        let record = RecordId::new(record).unwrap();
        trail_fault(move |trail| trail[at].consent_record_id = record)
    };
    let (event, _, fault) = under(3, "r9");
    assert_eq!(
        (event.as_str(), fault),
        ("e4", EventFault::Unanchored { record: RecordId::new("r9").unwrap() })
    );
    let (event, _, fault) = under(3, "r1");
    assert_eq!(event, "e4");
    assert!(
        matches!(fault, EventFault::Unanchored { .. }),
        "an earlier record holds no more: {fault:?}"
    );
    let (.., fault) = under(3, "r3");
    assert!(matches!(fault, EventFault::Rejected { .. }), "{fault:?}");
    let (.., fault) = trail_fault(|trail| trail[3].claim_id = claim("another"));
    assert!(matches!(fault, EventFault::UnknownClaim { .. }), "{fault:?}");
}

#[test]
fn s6_no_event_permits_by_a_disputed_claim() {
    let (event, _, fault) = trail_fault(|trail| trail[3].decision = AdherenceDecision::Permit);
    assert_eq!(
        (event.as_str(), fault),
        ("e4", EventFault::DisputedPermit { claim: claim("profile") })
    );
    let (.., mut chain) = chain();
    let mut claims = chain[1].parsed_claims.to_vec();
    claims[0].understood = false;
    chain[1].parsed_claims = List::new(claims).unwrap();
    let error = validate_trail(&trail(), &chain).unwrap_err();
    assert_eq!(error.fault, EventFault::NotUnderstoodPermit { claim: claim("use") });
}

#[test]
fn an_event_cites_the_clause_of_its_claim() {
    let policy = policy("1.0.0", None);
    let mut event = event("e1", None, "r1", "use", AdherenceDecision::Permit, 1);
    assert_eq!(event.check_clause(&policy), Ok(()));
    event.clause_evaluated = Text::new("§profile").unwrap();
    let error = event.check_clause(&policy).unwrap_err();
    assert_eq!(error.to_string(), "it cites §profile for claim use, which is derived from §use");
}

#[test]
fn bd1_an_error_names_a_few_claims_and_counts_the_rest() {
    let claims: Vec<ClaimId> = (0..20).map(|n| claim(&format!("c{n}"))).collect();
    let names: ClaimNames = claims.iter().collect();
    assert_eq!(names.to_string(), "c0, c1, c2, c3, c4, c5, c6, c7 and 12 more");
}
