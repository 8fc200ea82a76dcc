//! Documents are read as they are, written as they were, and refused with a reason.

use crate::setup::*;
use abhyasa_proto::consent::*;
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Without members that are null, which are as if absent.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => members
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), without_nulls(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

fn round_trip<T: Serialize + DeserializeOwned>(value: &Value) -> T {
    let document: T = parsed(value);
    assert_eq!(serde_json::to_value(&document).unwrap(), without_nulls(value));
    document
}

#[test]
fn samples_are_read_and_written_as_they_were() {
    let policy: PolicyDocument = round_trip(&value(POLICY));
    assert_eq!(policy.check(), Ok(()));
    assert_eq!(policy.claims.len(), 5);
    assert_eq!(policy.claims[1].rule_type, RuleType::Prohibition);
    let record: ConsentRecord = round_trip(&value(RECORD));
    assert_eq!(record.check(), Ok(()));
    assert_eq!(record.valid_until, ValidUntil::OnVersionBump);
    assert!(record.extra.0.contains_key("_comment"), "unknown members are kept");
    let event: AdherenceEvent = round_trip(&value(EVENT));
    assert_eq!(event.decision, AdherenceDecision::Deny);
    assert_eq!(event.check_against(&record), Ok(()));
    assert_eq!(event.check_clause(&policy), Ok(()));
    let card = value(CARD);
    let told: UsagePolicyRef = round_trip(&card["usage_policy"]);
    assert_eq!(told.check(), Ok(()));
    assert_eq!(card["capabilities"]["extensions"][0]["uri"], EXTENSION_URI);
    assert_eq!(value(MANIFEST)["extension"]["uri"], EXTENSION_URI);
}

/// What we write for a card is what its schema wants, and what the schema refuses we refuse.
#[test]
fn a_card_s_pointer_is_what_its_schema_says() {
    let manifest = value(MANIFEST);
    let schema = jsonschema::validator_for(&manifest["agent_card_payload_schema"]).unwrap();
    let policy = policy("1.0.0", None);
    for endpoint in [None, Some(Text::new("https://callee.example/acap/consent").unwrap())] {
        let ours = serde_json::to_value(UsagePolicyRef::to(&policy, endpoint)).unwrap();
        assert!(schema.is_valid(&ours), "{ours}");
    }
    let sample = &value(CARD)["usage_policy"];
    assert!(schema.is_valid(sample));
    for (name, _) in sample.as_object().unwrap() {
        for wrong in [None, Some(json!(7)), Some(json!(["1.0.0"]))] {
            let mut broken = sample.clone();
            match &wrong {
                None => drop(broken.as_object_mut().unwrap().remove(name)),
                Some(wrong) => broken[name] = wrong.clone(),
            }
            let ours = read::<UsagePolicyRef>(&serde_json::to_vec(&broken).unwrap());
            assert_eq!(ours.is_ok(), schema.is_valid(&broken), "{name} as {wrong:?}: {ours:?}");
        }
    }
}

#[test]
fn a_pointer_without_an_endpoint_is_of_no_use_where_consent_is_required() {
    let mut card = value(CARD)["usage_policy"].clone();
    card.as_object_mut().unwrap().remove("acceptance_endpoint");
    assert_eq!(parsed::<UsagePolicyRef>(&card).check(), Err(UsagePolicyFault::NoEndpoint));
}

#[test]
fn every_required_member_is_required_and_every_wrong_type_refused() {
    fn each<T: DeserializeOwned>(sample: &Value, optional: &[&str]) {
        for name in sample.as_object().unwrap().keys().filter(|name| !name.starts_with('_')) {
            let mut without = sample.clone();
            without.as_object_mut().unwrap().remove(name);
            let read_without = read::<T>(&serde_json::to_vec(&without).unwrap());
            assert_eq!(read_without.is_ok(), optional.contains(&name.as_str()), "without {name}");
            let mut wrong = sample.clone();
            wrong[name] = json!({"a": [1]});
            if name != "context" {
                assert!(
                    read::<T>(&serde_json::to_vec(&wrong).unwrap()).is_err(),
                    "{name} as an object"
                );
            }
        }
    }
    each::<PolicyDocument>(&value(POLICY), &["supersedes", "change_summary", "jurisdictions"]);
    each::<PolicyClaim>(
        &value(POLICY)["claims"][1],
        &["constraint", "effective_version", "escalate_on_deny"],
    );
    each::<ConsentRecord>(&value(RECORD), &["prev_record_id", "caller_signature", "principal_id"]);
    each::<ParsedClaim>(&value(RECORD)["parsed_claims"][0], &["dispute_reason"]);
    each::<AdherenceEvent>(&value(EVENT), &["prev_event_id", "context", "agent_signature"]);
}

#[test]
fn bd1_each_limit_of_a_document_is_kept() {
    let over = |pointer: &str, wrong: Value, says: &str| {
        let mut document = value(POLICY);
        *document.pointer_mut(pointer).unwrap() = wrong;
        let error = read::<PolicyDocument>(&serde_json::to_vec(&document).unwrap()).unwrap_err();
        assert!(error.to_string().contains(says), "{pointer}: {error}");
    };
    over("/claims", json!([]), "at least 1");
    let claim = &value(POLICY)["claims"][0];
    let mut many: PolicyDocument = parsed(&value(POLICY));
    many.claims = List::new(vec![parsed(claim); CLAIMS_MAX]).unwrap();
    assert!(read::<PolicyDocument>(&serde_json::to_vec(&many).unwrap()).is_ok());
    over("/claims", vec![claim.clone(); CLAIMS_MAX + 1].into(), "over 1024 items");
    over("/version", json!("2.1"), "no semantic version");
    over(
        "/version",
        json!(format!("1.0.0-{}", "a".repeat(VERSION_LEN_MAX))),
        "over the limit of 128",
    );
    over("/effective_date", json!("yesterday"), "RFC 3339");
    over("/document_uri", json!("u".repeat(URI_LEN_MAX + 1)), "over the limit of 2048");
    over("/document_hash", json!("h".repeat(HASH_LEN_MAX + 1)), "over the limit of 128");
    over("/document_hash", json!("sha256: a"), "control character");
    over("/claims/0/claim_id", json!("  "), "claim_id is empty");
    over("/claims/0/action", json!("\u{0}"), "control character");
    over(
        "/claims/0/constraint",
        json!("c".repeat(CONSTRAINT_LEN_MAX + 1)),
        "over the limit of 4096",
    );
    over("/jurisdictions", vec!["GDPR"; JURISDICTIONS_MAX + 1].into(), "over 64 items");
    let extra: serde_json::Map<_, _> =
        (0..=EXTRA_COUNT_MAX).map(|n| (format!("x{n}"), json!(n))).collect();
    let mut full = value(POLICY);
    full.as_object_mut().unwrap().extend(extra);
    let error = read::<PolicyDocument>(&serde_json::to_vec(&full).unwrap()).unwrap_err();
    assert!(error.to_string().contains("unknown members of over 64"), "{error}");

    let mut event = value(EVENT);
    event["context"] = (0..=CONTEXT_COUNT_MAX).map(|n| (format!("c{n}"), json!("v"))).collect();
    let error = read::<AdherenceEvent>(&serde_json::to_vec(&event).unwrap()).unwrap_err();
    assert!(error.to_string().contains("over 64 members"), "{error}");
    event["context"] = json!({"purpose": "p".repeat(CONTEXT_VALUE_LEN_MAX + 1)});
    let error = read::<AdherenceEvent>(&serde_json::to_vec(&event).unwrap()).unwrap_err();
    assert!(error.to_string().contains("purpose in the context: 4097 bytes"), "{error}");
}

#[test]
fn a_trigger_is_read_in_each_spelling_and_written_in_its_own() {
    for (word, trigger) in [
        ("POLICY_BUMP", Some(Trigger::PolicyBump)),
        ("capability_change", Some(Trigger::CapabilityChange)),
        ("RECONSENT_TRIGGER_PRINCIPAL_CHANGE", Some(Trigger::PrincipalChange)),
        ("expiry", Some(Trigger::Expiry)),
        ("whim", None),
    ] {
        let mut document = value(RECORD);
        document["reconsent_trigger"] = json!(word);
        let record: ConsentRecord = round_trip(&document);
        assert_eq!(record.trigger(), trigger, "{word}");
    }
}

#[test]
fn anchors_manifests_and_both_names_of_a_version_are_read() {
    let mut document = value(RECORD);
    document["chain_anchor"] = json!({
        "record_hash": "sha256:00", "ledger_id": "ct:rfc9162:log.example", "transaction_id": "17",
        "block_number": 4, "anchored_at": "2026-03-04T10:00:00Z", "verification_url": "https://log.example/17",
        "strategy": "merkle_batch", "proof": ["a", {"b": 1.5}],
    });
    let record: ConsentRecord = round_trip(&document);
    assert_eq!(record.chain_anchor.unwrap().strategy, AnchorStrategy::MerkleBatch);
    round_trip::<CapabilityManifest>(&json!({
        "caller_capability_hash": "", "config": {"temperature": "0.7"}, "model": "m-1", "tools": ["b", "a"],
    }));
    let mut document = value(POLICY);
    let claims = document["claims"].as_array_mut().unwrap();
    let since = claims[0].as_object_mut().unwrap().remove("effective_version").unwrap();
    claims[0]["since_version"] = since;
    let policy: PolicyDocument = round_trip(&document);
    assert_eq!(policy.claims[0].since().unwrap().to_string(), "1.0.0");
    assert_eq!(policy.check(), Ok(()));
}

/// Pointers to everything in `value`.
fn pointers(value: &Value, at: &str, found: &mut Vec<String>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(members) => members.iter().map(|(name, it)| (name.clone(), it)).collect(),
        Value::Array(items) => {
            items.iter().enumerate().map(|(at, it)| (at.to_string(), it)).collect()
        }
        _ => Vec::new(),
    };
    for (name, value) in inner {
        let at = format!("{at}/{name}");
        pointers(value, &at, found);
        found.push(at);
    }
}

fn small_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        Just(json!("1.0.0")),
        Just(json!("2026-03-04T09:00:00+01:00")),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]{1,3}", inner, 0..3)
                .prop_map(|members| members.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
}

proptest! {
    /// A document with something else at some place is refused, or is written as it came.
    #[test]
    fn whatever_is_read_is_written_as_it_was(which in 0..3_usize, place in any::<prop::sample::Index>(), other in small_json()) {
        let mut document = value([POLICY, RECORD, EVENT][which]);
        let mut places = Vec::new();
        pointers(&document, "", &mut places);
        let place: &String = place.get(&places);
        *document.pointer_mut(place).unwrap() = other;
        let bytes = serde_json::to_vec(&document).unwrap();
        let written = match which {
            0 => read::<PolicyDocument>(&bytes).map(|it| {
                let _ = it.check();
                assert_eq!(it.clone().sealed().verify_hash(), Ok(()));
                serde_json::to_value(it)
            }),
            1 => read::<ConsentRecord>(&bytes).map(|it| {
                let _ = it.check();
                serde_json::to_value(it)
            }),
            _ => read::<AdherenceEvent>(&bytes).map(serde_json::to_value),
        };
        if let Ok(written) = written {
            // Members of ours that are null are as if absent; what we do not know stays, null or not.
            prop_assert_eq!(without_nulls(&written.unwrap()), without_nulls(&document));
        }
    }

    /// Any bytes are refused or read, and nothing else.
    #[test]
    fn any_bytes_are_a_document_or_none(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        prop_assert!(read::<PolicyDocument>(&bytes).is_err());
    }
}
