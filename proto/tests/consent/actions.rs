//! Constraints, the parser of claims, and actions held against claims.

use crate::setup::*;
use abhyasa_proto::consent::*;
use proptest::prelude::*;
use serde_json::json;

fn truth(constraint: &str, facts: &[(&str, &str)]) -> Option<bool> {
    match Constraint::parse(constraint).unwrap().evaluate(&context(facts), None) {
        Truth::Met => Some(true),
        Truth::NotMet => Some(false),
        Truth::Unknown(_) => None,
    }
}

#[test]
fn each_operator_of_odrl() {
    let cases: &[(&str, &str, Option<bool>)] = &[
        ("x eq a", "a", Some(true)),
        ("x odrl:eq a", "b", Some(false)),
        ("x is 90", "90.00", Some(true)),
        ("x == 2026-01-01T00:00:00Z", "2026-01-01T01:00:00+01:00", Some(true)),
        ("x neq a", "b", Some(true)),
        ("x isNot a", "a", Some(false)),
        ("x gt 100", "100", Some(false)),
        ("x greaterThan 100", "100.01", Some(true)),
        ("x > -5", "-4.9", Some(true)),
        ("x gteq 100", "100.0", Some(true)),
        ("x lt 9", "10", Some(false)),
        ("x lessThan 0.1", "0.09", Some(true)),
        ("x lteq 18446744073709551616", "18446744073709551617", Some(false)),
        ("x lteq 2026-03-01", "2026-02-28", Some(true)),
        ("x gt 2026-03-01T00:00:00Z", "2026-03-01T00:00:00.001Z", Some(true)),
        ("x gt 5", "much", None),
        ("x gt 5", "1e3", None),
        ("x gt 2026-03-01", "5", None),
        ("x isA a", "a", Some(true)),
        ("x isA a", "b", None),
        ("x hasPart [a, b]", "c, b, a", Some(true)),
        ("x hasPart a, b", "a", Some(false)),
        ("x isPartOf {a, b}", "b", Some(true)),
        ("x isPartOf [a, b]", "a, c", Some(false)),
        ("x isAllOf (a, b)", "a,b", Some(true)),
        ("x isAllOf a, b", "b", Some(false)),
        ("x isAnyOf a, b", "c, b", Some(true)),
        ("x isAnyOf [a]", "c", Some(false)),
        ("x isNoneOf a, b", "c, d", Some(true)),
        ("x isNoneOf a, b", "c, b", Some(false)),
        ("x is \"a b\"", "a b", Some(true)),
        ("x is 'and'", "and", Some(true)),
        ("x is odrl:a", "a", None),
        ("x is odrl:a", "odrl:a", Some(true)),
        ("x isAnyOf odrl:a, b", "b", Some(true)),
        // Several values where one is compared: nobody says which is meant.
        ("x eq a", "a, b", None),
        ("x neq a", "b, a", None),
        ("x eq \"a, b\"", "a, b", Some(true)),
        ("x isNoneOf a", "b, c", Some(true)),
        ("x eq a", " ", None),
        ("x neq a", "", None),
        ("x isNoneOf a", " , ", None),
        ("x isAnyOf a", "", None),
        ("x hasPart a", "", None),
    ];
    for (constraint, given, wanted) in cases {
        assert_eq!(truth(constraint, &[("x", given)]), *wanted, "{constraint} with {given}");
        assert_eq!(truth(constraint, &[("y", given)]), None, "{constraint} without x");
    }
}

#[test]
fn constraints_are_joined_as_odrl_joins_them() {
    let facts = [("a", "1"), ("b", "2")];
    for (constraint, wanted) in [
        ("a is 1 and b is 2", Some(true)),
        ("a is 1 and b is 3", Some(false)),
        ("a is 3 or b is 2", Some(true)),
        ("a is 1 xone b is 2", Some(false)),
        ("a is 1 xone b is 3", Some(true)),
        ("a is 3 xone b is 3", Some(false)),
        ("a is 1 or b is 3 and b is 4", Some(true)),
        ("(a is 1 or b is 3) and b is 4", Some(false)),
        // What is not known decides only where nothing else does.
        ("c is 1 and a is 3", Some(false)),
        ("c is 1 and a is 1", None),
        ("c is 1 or a is 1", Some(true)),
        ("c is 1 or a is 3", None),
        ("c is 1 xone a is 1", None),
        ("c is 1 xone a is 1 xone b is 2", Some(false)),
    ] {
        assert_eq!(truth(constraint, &facts), wanted, "{constraint}");
    }
}

#[test]
fn an_operand_is_found_by_either_name_and_never_by_two() {
    assert_eq!(truth("odrl:purpose is x", &[("purpose", "x")]), Some(true));
    assert_eq!(truth("odrl:purpose is x", &[("odrl:purpose", "x")]), Some(true));
    assert_eq!(truth("odrl:purpose is x", &[("odrl:purpose", "x"), ("purpose", "x")]), Some(true));
    assert_eq!(truth("odrl:purpose is x", &[("odrl:purpose", "x"), ("purpose", "y")]), None);
    let until = Constraint::parse("odrl:dateTime lt 2026-03-05T00:00:00Z").unwrap();
    assert_eq!(until.evaluate(&Context::default(), Some(at(0))), Truth::Met);
    assert_eq!(until.evaluate(&Context::default(), Some(at(86_400))), Truth::NotMet);
    assert!(matches!(until.evaluate(&Context::default(), None), Truth::Unknown(_)));
}

#[test]
fn what_is_no_constraint_is_not_understood() {
    for (text, says) in [
        ("", "where an operand belongs there is the end"),
        ("x", "where an operator belongs there is the end"),
        ("x is", "where a value belongs there is the end"),
        ("x resembles y", "\"resembles\" is no operator"),
        (
            "x is behavioural profiling",
            "where the end, or and, or, xone belongs there is \"profiling\"",
        ),
        ("x gt 100 USD", "there is \"USD\""),
        ("x gt much", "\"much\" is neither a number nor a date"),
        ("x is 5^^xsd:integer", "has a data type"),
        ("x is a, b", "there is ','"),
        ("x isAnyOf [a, b", "where the end of a list belongs"),
        ("(x is a", "where a closing parenthesis belongs"),
        ("x is \"a", "a quotation does not end"),
        ("x is a andSequence y is b", "there is \"andSequence\""),
        ("x is and", "where a value belongs there is \"and\""),
        ("x is a and or is b", "where an operand belongs there is \"or\""),
        ("x is a and", "where an operand belongs there is the end"),
        ("the purpose of the processing is not profiling", "\"purpose\" is no operator"),
    ] {
        let error = Constraint::parse(text).unwrap_err();
        assert!(error.to_string().contains(says), "{text}: {error}");
    }
}

#[test]
fn bd1_a_constraint_is_bounded() {
    let many = |count: usize| vec!["x is a"; count].join(" or ");
    assert!(Constraint::parse(&many(CONSTRAINT_PARTS_MAX / 4)).is_ok());
    let error = Constraint::parse(&many(CONSTRAINT_PARTS_MAX / 4 + 1)).unwrap_err();
    assert_eq!(error.to_string(), "a constraint with 257 parts is over the limit of 256");
    let nest = |depth: usize| format!("{}x is a{}", "(".repeat(depth), ")".repeat(depth));
    assert!(Constraint::parse(&nest(CONSTRAINT_DEPTH_MAX)).is_ok());
    let error = Constraint::parse(&nest(CONSTRAINT_DEPTH_MAX + 1)).unwrap_err();
    assert!(error.to_string().contains("17 levels of parentheses"), "{error}");
}

fn a_claim(rule: &str, constraint: Option<&str>) -> PolicyDocument {
    let mut claim = claim_json("c", rule, "odrl:aggregate", constraint, "1.0.0");
    claim["clause_ref"] = json!("§3.4");
    claim["escalate_on_deny"] = json!(true);
    parsed::<PolicyDocument>(&policy_json("2.1.0", None, &[claim])).sealed()
}

fn finding(policy: &PolicyDocument, disputed: bool, facts: &[(&str, &str)]) -> Finding {
    let claim = &policy.claims[0];
    let parsed: ParsedClaim = parsed(
        &json!({"claim_id": "c", "understood": true, "disputed": disputed, "dispute_reason": "we never do"}),
    );
    let (action, asset) =
        (Text::new("aggregate_sessions").unwrap(), Text::new("pii:session_data").unwrap());
    let request = Request { action: &action, asset: &asset, context: &context(facts), at: at(0) };
    evaluate(policy, claim, Some(&parsed), &request)
}

#[test]
fn a_finding_can_be_cited() {
    let policy = a_claim("prohibition", Some("odrl:purpose isNot behavioral_profiling"));
    let denied = finding(&policy, false, &[("purpose", "user_behaviour_model")]);
    assert_eq!(denied.decision, AdherenceDecision::Deny);
    assert!(denied.notify, "escalate_on_deny");
    assert_eq!(
        denied.reasoning.as_str(),
        "Action 'aggregate_sessions' on pii:session_data is held against prohibition of odrl:aggregate on \
         pii:session_data. Policy v2.1.0 §3.4: it prohibits this, constraint 'odrl:purpose isNot \
         behavioral_profiling' is met by odrl:purpose='user_behaviour_model'. Denying. \
         escalate_on_deny=true: notifying the principal."
    );
    let permitted = finding(&policy, false, &[("purpose", "behavioral_profiling")]);
    assert_eq!((permitted.decision, permitted.notify), (AdherenceDecision::Permit, false));
}

#[test]
fn each_rule_says_what_it_says() {
    use AdherenceDecision::{Deny, Escalate, Permit};
    let x = Some("x is 1");
    for (rule, constraint, facts, decision) in [
        ("permission", None, &[][..], Permit),
        ("permission", x, &[("x", "1")][..], Permit),
        ("permission", x, &[("x", "2")][..], Deny),
        ("prohibition", None, &[][..], Deny),
        ("prohibition", x, &[("x", "1")][..], Deny),
        ("prohibition", x, &[("x", "2")][..], Permit),
        ("obligation", x, &[("x", "2")][..], Permit),
        ("obligation", x, &[("x", "1")][..], Escalate),
        ("obligation", x, &[("x", "1"), ("aggregate", "fulfilled")][..], Permit),
        ("obligation", None, &[("odrl:aggregate", "no")][..], Escalate),
        ("permission", x, &[][..], Escalate),
        ("prohibition", x, &[][..], Escalate),
        ("obligation", x, &[][..], Escalate),
        ("prohibition", Some("when it suits us"), &[("x", "1")][..], Escalate),
        ("permission", Some("when it suits us"), &[("x", "1")][..], Escalate),
    ] {
        let found = finding(&a_claim(rule, constraint), false, facts);
        assert_eq!(
            found.decision, decision,
            "{rule} {constraint:?} {facts:?}: {}",
            found.reasoning
        );
        assert_eq!(found.clause_ref.as_str(), "§3.4");
    }
}

#[test]
fn s5_a_disputed_claim_never_permits() {
    for rule in ["permission", "prohibition", "obligation"] {
        for constraint in [None, Some("x is 1"), Some("no constraint at all")] {
            for facts in [&[][..], &[("x", "1")], &[("x", "2")]] {
                let found = finding(&a_claim(rule, constraint), true, facts);
                assert_eq!(found.decision, AdherenceDecision::Escalate, "{rule} {constraint:?}");
                assert!(
                    found.reasoning.as_str().contains("disputes it (we never do)"),
                    "{}",
                    found.reasoning
                );
            }
        }
    }
}

#[test]
fn bd1_a_reasoning_keeps_its_end() {
    let long = format!("odrl:purpose is {}", "p".repeat(CONSTRAINT_LEN_MAX - 16));
    let found =
        finding(&a_claim("prohibition", Some(&long)), false, &[("purpose", &"q".repeat(4096))]);
    assert_eq!(found.decision, AdherenceDecision::Permit);
    assert!(found.reasoning.as_str().ends_with("Permitting."));
    assert!(found.reasoning.as_str().len() <= PROSE_LEN_MAX);
}

fn intent(action: &str, asset: &str, facts: &[(&str, &str)]) -> Intent {
    let one = Use {
        action: Text::new(action).unwrap(),
        asset: Text::new(asset).unwrap(),
        context: context(facts),
    };
    Intent { text: Text::new("a quarterly report").unwrap(), uses: List::new(vec![one]).unwrap() }
}

#[test]
fn the_parser_disputes_what_an_intended_use_is_against() {
    let policy: PolicyDocument = parsed(&value(POLICY));
    let parse = |at: usize, intent: &Intent| {
        let parsed = OdrlParser.parse(&policy.claims[at], intent);
        assert_eq!(parsed.claim_id, policy.claims[at].claim_id);
        (parsed.understood, parsed.disputed, parsed.dispute_reason.map(String::from))
    };
    let marketing = intent("odrl:aggregate", "pii:session_data", &[("purpose", "marketing")]);
    let (understood, disputed, reason) = parse(1, &marketing);
    assert!(understood && disputed);
    assert_eq!(
        reason.unwrap(),
        "The intended odrl:aggregate on pii:session_data is what it prohibits: prohibition of odrl:aggregate \
         on pii:session_data where odrl:purpose isNot behavioral_profiling."
    );
    for (at, intent) in [
        (1, intent("odrl:aggregate", "pii:session_data", &[("purpose", "behavioral_profiling")])),
        (1, intent("odrl:aggregate", "pii:session_data", &[])),
        (1, intent("odrl:read", "pii:session_data", &[("purpose", "marketing")])),
        (1, intent("other:aggregate", "pii:session_data", &[("purpose", "marketing")])),
        (1, intent("odrl:aggregate", "a2a:task_output", &[("purpose", "marketing")])),
        (0, intent("odrl:read", "a2a:task_output", &[])),
        (3, intent("a2a:notify_principal", "anything", &[("task_cost", "200")])),
    ] {
        assert_eq!(parse(at, &intent), (true, false, None), "{at} {intent:?}");
    }
    let mut vague = policy.claims[1].clone();
    vague.constraint = Some(Text::new("unless we say otherwise").unwrap());
    let parsed = OdrlParser.parse(&vague, &marketing);
    assert!(!parsed.understood && !parsed.disputed);
    assert_eq!(parsed, OdrlParser.parse(&vague, &marketing), "twice the same");
}

#[test]
fn the_strictest_claim_governs() {
    let policy = parsed::<PolicyDocument>(&value(POLICY)).sealed();
    let mut record: ConsentRecord = parsed(&value(RECORD));
    record.policy_hash = policy.document_hash.clone();
    let (action, asset) =
        (Text::new("odrl:aggregate").unwrap(), Text::new("pii:session_data").unwrap());
    let facts = context(&[("purpose", "marketing"), ("task_cost", "5")]);
    let request = Request { action: &action, asset: &asset, context: &facts, at: at(1) };
    let id = |at: usize| policy.claims[at].claim_id.clone();

    let check = check_action(&policy, &record, &request, &[]).unwrap();
    assert_eq!(check.findings.len(), 1, "one claim is about it");
    assert_eq!(
        (check.governing.claim_id.clone(), check.governing.decision),
        (id(1), AdherenceDecision::Deny)
    );
    // A skill names its claims: of those the strictest counts, and what is not known is not permitted.
    let check = check_action(&policy, &record, &request, &[id(0), id(3), id(4)]).unwrap();
    let decisions: Vec<_> = check.findings.iter().map(|finding| finding.decision).collect();
    assert_eq!(
        decisions,
        [AdherenceDecision::Permit, AdherenceDecision::Permit, AdherenceDecision::Escalate]
    );
    assert_eq!(check.governing.claim_id, id(4));

    let event = check.governing.event(
        EventId::new("e1").unwrap(),
        None,
        record.record_id.clone(),
        &request,
    );
    assert_eq!(event.check_against(&record), Ok(()));
    assert_eq!(event.check_clause(&policy), Ok(()));
    assert_eq!(event.reasoning, check.governing.reasoning);
    assert_eq!(event.context.unwrap().get("purpose"), Some("marketing"));

    let other = Text::new("a2a:cache_context").unwrap();
    let error =
        check_action(&policy, &record, &Request { action: &other, ..request }, &[]).unwrap_err();
    assert!(matches!(error, CheckError::Ungoverned { .. }), "{error}");
    let error = check_action(&policy, &record, &request, &[claim("another")]).unwrap_err();
    assert!(matches!(error, CheckError::NoClaim { .. }), "{error}");
    let rejected = ConsentRecord { decision: ConsentDecision::Rejected, ..record.clone() };
    assert!(matches!(
        check_action(&policy, &rejected, &request, &[]),
        Err(CheckError::Rejected { .. })
    ));
    let stale = ConsentRecord { policy_hash: ContentHash::unset(), ..record };
    assert!(matches!(
        check_action(&policy, &stale, &request, &[]),
        Err(CheckError::OtherPolicy { .. })
    ));
}

proptest! {
    /// Whatever a policy says, the parser ends, and says the same again.
    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,200}", given in ".{0,20}") {
        let once = Constraint::parse(&text);
        prop_assert_eq!(&once, &Constraint::parse(&text));
        if let Ok(constraint) = once {
            let facts = context(&[("x", &given)]);
            prop_assert_eq!(constraint.evaluate(&facts, None), constraint.evaluate(&facts, None));
        }
    }

    /// Order of decimals is that of integers scaled.
    #[test]
    fn decimals_are_compared_exactly(one in -1_000_000_i64..1_000_000, other in -1_000_000_i64..1_000_000) {
        let shown = |value: i64| {
            let (sign, value) = (if value < 0 { "-" } else { "" }, value.abs());
            format!("{sign}{}.{:03}", value / 1000, value % 1000)
        };
        let (one_text, other_text) = (shown(one), shown(other));
        for (operator, wanted) in
            [("lt", one < other), ("lteq", one <= other), ("gt", one > other), ("gteq", one >= other), ("eq", one == other)]
        {
            let found = truth(&format!("x {operator} {other_text}"), &[("x", &one_text)]);
            prop_assert_eq!(found, Some(wanted), "{} {} {}", one_text, operator, other_text);
        }
    }

    /// An intent that is disputed would be denied, and one that would be denied is disputed.
    #[test]
    fn a_dispute_is_a_denial_to_come(purpose in "[ab]", wanted in "[ab]", operator in "is|isNot", rule in "permission|prohibition") {
        let text = format!("odrl:purpose {operator} {wanted}");
        let policy = a_claim(&rule, Some(&text));
        let facts = [("purpose", purpose.as_str())];
        let parsed = OdrlParser.parse(&policy.claims[0], &intent("odrl:aggregate", "pii:session_data", &facts));
        let denied = finding(&policy, false, &facts).decision == AdherenceDecision::Deny;
        prop_assert_eq!(parsed.disputed, denied);
    }
}
