//! Hashes of random policies, records and events, here and in Python.

use crate::peers;
use abhyasa::proto::consent::{
    AdherenceEvent, Anchored as _, ConsentRecord, ContentHash, PolicyDocument, read,
};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Documents that are hashed, of each kind.
const DOCUMENTS: usize = 1_500;
const CONSTRAINTS: &str = "tests/consent/constraints.txt";

/// Letters of all planes; of control characters line breaks and tabulators only.
fn text() -> impl Strategy<Value = String> {
    let letter = prop_oneof![
        any::<char>(),
        prop::char::range('\u{e000}', '\u{ffff}'),
        prop::char::range('\u{1f300}', '\u{1f6ff}'),
        prop::sample::select(vec!['"', '\\', '/', '\n', '\t', '\u{2028}', 'ö', '€', '\u{7a}']),
    ];
    let fits = |c: &char| !c.is_control() || matches!(c, '\n' | '\t');
    prop::collection::vec(letter.prop_filter("control", fits), 1..20)
        .prop_map(|letters| format!("x{}", letters.into_iter().collect::<String>()))
}

fn number() -> impl Strategy<Value = Value> {
    let finite = |number: &f64| number.is_finite();
    prop_oneof![
        (-9_007_199_254_740_991_i64..=9_007_199_254_740_991).prop_map(|n| json!(n)),
        any::<f64>().prop_filter("finite", finite).prop_map(|n| json!(n)),
        (-1_000_000_i32..1_000_000).prop_map(|n| json!(f64::from(n) / 100.0)),
        Just(json!(-0.0)),
        Just(json!(1e21)),
        Just(json!(1e-7)),
    ]
}

/// What this version does not know: kept and hashed.
fn unknown() -> impl Strategy<Value = Map<String, Value>> {
    let leaf = prop_oneof![
        number(),
        text().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null)
    ];
    let value = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(text(), inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    });
    // No member of ours begins so.
    let name = text().prop_map(|name| format!("{name}-unknown"));
    prop::collection::btree_map(name, value, 0..4).prop_map(|members| members.into_iter().collect())
}

fn version() -> impl Strategy<Value = String> {
    (0..20u8, 0..20u8, 0..20u8).prop_map(|(a, b, c)| format!("{a}.{b}.{c}"))
}

fn claim() -> impl Strategy<Value = Value> {
    let rule = prop::sample::select(vec!["permission", "prohibition", "obligation"]);
    let optional = (prop::option::of(text()), prop::option::of(any::<bool>()));
    (text(), text(), text(), text(), rule, version(), optional).prop_map(
        |(id, clause, action, asset, rule, since, (constraint, escalate))| {
            json!({ "claim_id": id.trim().replace(char::is_control, "-"), "clause_ref": clause, "action": action,
                "asset": asset, "rule_type": rule, "effective_version": since, "constraint": constraint,
                "escalate_on_deny": escalate })
        },
    )
}

fn policy() -> impl Strategy<Value = Value> {
    let optional = (
        prop::option::of(version()),
        prop::option::of(text()),
        prop::collection::vec(text(), 0..4),
    );
    (version(), prop::collection::vec(claim(), 1..6), text(), text(), optional).prop_map(
        |(version, claims, publisher, terms, (supersedes, summary, jurisdictions))| {
            json!({ "version": version, "document_uri": "https://a.example/policy", "document_hash": "sha256:x",
                "effective_date": "2026-02-27T00:00:00Z", "supersedes": supersedes, "change_summary": summary,
                "claims": claims, "publisher": publisher.trim().replace(char::is_control, "-"),
                "natural_language_uri": terms, "jurisdictions": jurisdictions })
        },
    )
}

fn name() -> impl Strategy<Value = String> {
    text().prop_map(|text| text.trim().replace(char::is_control, "-"))
}

fn stamp() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "2026-03-04T09:00:00Z",
        "2026-03-04T09:00:00.25Z",
        "2026-03-04T11:00:00+02:00",
    ])
}

fn record() -> impl Strategy<Value = Value> {
    let answer = (name(), any::<bool>(), any::<bool>(), prop::option::of(text())).prop_map(
        |(claim, understood, disputed, reason)| {
            json!({ "claim_id": claim, "understood": understood, "disputed": disputed, "dispute_reason": reason })
        },
    );
    let decision = prop::sample::select(vec!["accepted", "rejected", "conditional"]);
    let until = prop::sample::select(vec![
        "on_version_bump",
        "on_capability_change",
        "on_any_change",
        "2027-01-01T00:00:00Z",
    ]);
    let optional = (prop::option::of(name()), prop::option::of(text()), prop::option::of(name()));
    let said = (decision, stamp(), until, version());
    (name(), name(), name(), prop::collection::vec(answer, 0..6), said, optional).prop_map(
        |(id, caller, callee, answers, (decision, at, until, version), (prev, signature, principal))| {
            json!({ "record_id": id, "prev_record_id": prev, "caller_agent_id": caller,
                "callee_agent_id": callee, "policy_version": version, "policy_hash": "sha256:x",
                "parsed_claims": answers, "decision": decision, "accepted_at": at, "valid_until": until,
                "caller_signature": signature, "principal_id": principal })
        },
    )
}

/// `key` names what is in its context.
fn event(key: impl Strategy<Value = String>) -> impl Strategy<Value = Value> {
    let decision = prop::sample::select(vec!["permit", "escalate", "deny"]);
    let optional = (prop::option::of(name()), prop::option::of(text()));
    let names = (name(), name(), name());
    let context = prop::collection::btree_map(key, text(), 0..5);
    (names, text(), text(), text(), (decision, stamp()), context, optional).prop_map(
        |((id, under, claim), action, clause, reasoning, (decision, at), context, (prev, signature))| {
            json!({ "event_id": id, "prev_event_id": prev, "consent_record_id": under, "action": action,
                "clause_evaluated": clause, "claim_id": claim, "decision": decision, "reasoning": reasoning,
                "timestamp": at, "context": context, "agent_signature": signature })
        },
    )
}

/// Ours of a document of any kind.
fn hash(document: &[u8]) -> ContentHash {
    let value: Value = serde_json::from_slice(document).unwrap();
    let text = || String::from_utf8_lossy(document);
    let fault = |error| -> ContentHash { panic!("{error}: {}", text()) };
    match (value.get("claims"), value.get("record_id")) {
        (Some(_), _) => read(document).map_or_else(fault, |it: PolicyDocument| it.computed_hash()),
        (_, Some(_)) => read(document).map_or_else(fault, |it: ConsentRecord| it.record_hash()),
        _ => read(document).map_or_else(fault, |it: AdherenceEvent| it.record_hash()),
    }
}

/// The same number of documents each time, and the same ones.
fn documents(strategy: &impl Strategy<Value = Value>) -> Vec<Value> {
    let mut runner = TestRunner::deterministic();
    (0..DOCUMENTS).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

/// Ours and theirs, of each document.
fn compare(python: &Path, kind: &str, path: &str, documents: &[Value]) {
    let lines: Vec<String> = documents.iter().map(Value::to_string).collect();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/consent/hash.py");
    let mut child = Command::new(python)
        .arg(script)
        .arg(kind)
        .env("PYTHONPATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, input) = (child.stdin.take().unwrap(), lines.join("\n"));
    let writer = std::thread::spawn(move || to.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    writer.join().unwrap().unwrap();
    let theirs = String::from_utf8(output.stdout).unwrap();
    let theirs: Vec<&str> = theirs.lines().collect();
    assert_eq!(theirs.len(), documents.len());
    for (line, theirs) in lines.iter().zip(theirs) {
        assert_eq!(hash(line.as_bytes()).as_str(), theirs, "{line}");
    }
}

#[test]
fn random_documents_hash_as_by_another_implementation_of_rfc_8785() {
    let python = peers::python("consent-peers-1", &["rfc8785"], "rfc8785", CONSTRAINTS);
    let with_unknown = (policy(), unknown(), unknown()).prop_map(|(mut policy, more, of_claim)| {
        policy.as_object_mut().unwrap().extend(more);
        policy["claims"][0].as_object_mut().unwrap().extend(of_claim);
        policy
    });
    compare(&python, "rfc8785", "", &documents(&with_unknown));
    let more = |(mut document, more): (Value, Map<String, Value>)| {
        document.as_object_mut().unwrap().extend(more);
        document
    };
    compare(&python, "rfc8785", "", &documents(&(record(), unknown()).prop_map(more)));
    compare(&python, "rfc8785", "", &documents(&(event(text()), unknown()).prop_map(more)));
}

/// The protocol's first implementation is in no registry: it takes a checkout of
/// github.com/ravikiran438/agent-consent-protocol, whose folder is in `ABHYASA_ACAP_SOURCE`. It keeps no members
/// that it does not know, and sorts names by code points, where RFC 8785 wants UTF-16 units; they differ beyond
/// U+FFFF only.
#[test]
#[ignore = "needs ABHYASA_ACAP_SOURCE, a checkout of agent-consent-protocol"]
fn random_documents_hash_as_by_the_first_implementation() {
    let source = std::env::var("ABHYASA_ACAP_SOURCE")
        .expect("ABHYASA_ACAP_SOURCE names no checkout: docs/consent.md says how to get one");
    let python = peers::python_312("consent-peers-2", &["pydantic"], "pydantic", CONSTRAINTS);
    let path = format!("{source}/src");
    compare(&python, "reference", &path, &documents(&policy()));
    compare(&python, "reference", &path, &documents(&record()));
    let key = "[a-zA-Z0-9_ \"€§é\u{e000}-\u{fffd}]{1,12}";
    compare(&python, "reference", &path, &documents(&event(key)));
}
