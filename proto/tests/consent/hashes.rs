//! Hashes are those that others compute: RFC 8785, and the protocol's first implementation.

use crate::setup::*;
use abhyasa_proto::consent::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn canon(value: &Value) -> String {
    String::from_utf8(canonical(value).unwrap()).unwrap()
}

/// RFC 8785 §3.2.2, §3.2.3 and Appendix B.
#[test]
fn canonical_json_is_that_of_rfc_8785() {
    let sample = value(
        r#"{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],
            "string":"\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}"#,
    );
    assert_eq!(
        canon(&sample),
        "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\
         \"string\":\"€$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}"
    );
    let names = value(
        r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh",
            "1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control",
            "\u00f6":"Latin Small Letter O With Diaeresis"}"#,
    );
    let order = ["Carriage", "One", "Control", "Latin", "Euro", "Emoji", "Hebrew"];
    let text = canon(&names);
    let places: Vec<usize> = order.iter().map(|word| text.find(word).unwrap()).collect();
    assert!(places.is_sorted(), "names go by UTF-16 units: {text}");
    for (bits, text) in [
        (0x0000_0000_0000_0000, "0"),
        (0x8000_0000_0000_0000, "0"),
        (0x0000_0000_0000_0001, "5e-324"),
        (0x7fef_ffff_ffff_ffff, "1.7976931348623157e+308"),
        (0x4340_0000_0000_0000, "9007199254740992"),
        (0x4430_0000_0000_0000, "295147905179352830000"),
        (0x44b5_2d02_c7e1_4af5, "9.999999999999997e+22"),
        (0x44b5_2d02_c7e1_4af6, "1e+23"),
        (0x444b_1ae4_d6e2_ef4f, "999999999999999900000"),
        (0x444b_1ae4_d6e2_ef50, "1e+21"),
        (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
        (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
        (0x41b3_de43_5555_5553, "333333333.3333332"),
        (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
        (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
    ] {
        assert_eq!(canon(&json!(f64::from_bits(bits))), text, "{bits:#x}");
    }
    assert_eq!(canon(&json!(9_007_199_254_740_993_u64)), "9007199254740992");
    assert!(canonical(&f64::NAN).is_err());
}

/// Digests computed with the Python implementation of the protocol's author.
#[test]
fn the_hash_of_a_policy_is_the_one_others_compute() {
    let policy: PolicyDocument = parsed(&value(POLICY));
    let found = policy.computed_hash();
    assert_eq!(
        found.as_str(),
        "sha256:e7152ef2d3e1c5937854e72caa3653d80eb8a995247031bce57ddc54e0e2b57c"
    );
    // The sample holds a made-up hash, and that is seen.
    let error = policy.verify_hash().unwrap_err();
    assert_eq!((&error.told, &error.found), (&policy.document_hash, &found));
    assert!(error.to_string().contains("did:web:data-agent.example.com 2.1.0"), "{error}");
    let sealed = policy.sealed();
    assert_eq!(sealed.verify_hash(), Ok(()));
    assert_eq!(sealed.document_hash, found, "what is in document_hash does not count");
    let told = UsagePolicyRef::to(&sealed, None);
    assert_eq!(told.points_to(&sealed), Ok(()));
}

/// The first implementation writes an empty list where there are none; a document of ours does too.
#[test]
fn without_jurisdictions_both_come_to_one_hash() {
    let mut document = value(POLICY);
    document.as_object_mut().unwrap().remove("jurisdictions");
    let theirs = "sha256:1742ecec058f227c7eb47f1e6a70eeddf26b67b4d5f11fb761726f110cb1908b";
    let policy: PolicyDocument = parsed(&document);
    assert_eq!(policy.clone().sealed().document_hash.as_str(), theirs);
    assert_ne!(policy.computed_hash().as_str(), theirs, "as it stands it is another document");
}

#[test]
fn every_letter_of_a_policy_counts_but_nulls() {
    let base: PolicyDocument = parsed(&value(POLICY));
    let base = base.computed_hash();
    let hash = |change: &dyn Fn(&mut Value)| {
        let mut document = value(POLICY);
        change(&mut document);
        parsed::<PolicyDocument>(&document).computed_hash()
    };
    assert_eq!(base, hash(&|document| document["claims"][0]["category"] = Value::Null));
    assert_eq!(
        base,
        hash(&|document| drop(document["claims"][0].as_object_mut().unwrap().remove("constraint")))
    );
    assert_ne!(base, hash(&|document| document["claims"].as_array_mut().unwrap().swap(0, 1)));
    assert_ne!(
        base,
        hash(&|document| document["effective_date"] = json!("2026-02-27T00:00:00.0Z"))
    );
    assert_ne!(
        base,
        hash(&|document| document["claims"][1]["constraint"] = json!("odrl:purpose is x"))
    );
    assert_ne!(base, hash(&|document| document["claims"][1]["unknown"] = json!(1)));
    assert_ne!(base, hash(&|document| document["unknown"] = Value::Null));
}

#[test]
fn signatures_and_anchors_leave_themselves_out() {
    let record: ConsentRecord = parsed(&value(RECORD));
    let input = record.signing_input();
    // The digest was computed with the Python implementation's canonical JSON.
    assert_eq!(
        ContentHash::of(&input).as_str(),
        "sha256:fca09ac5f2dbaba887aeb590d93180ae6a5d8cd65e15e9da2ac3a0771da80a7c"
    );
    let unsigned = ConsentRecord { caller_signature: None, ..record.clone() };
    assert_eq!(unsigned.signing_input(), input);
    assert_ne!(unsigned.record_hash(), record.record_hash(), "an anchor covers the signature");

    let anchor = |record_hash: ContentHash| -> ChainAnchor {
        parsed(&json!({
            "record_hash": record_hash, "ledger_id": "ct:rfc9162:log.example", "transaction_id": "17",
            "anchored_at": "2026-03-04T10:00:00Z", "strategy": "per_record",
        }))
    };
    let hash = record.record_hash();
    let anchored = ConsentRecord { chain_anchor: Some(anchor(hash.clone())), ..record.clone() };
    assert_eq!(anchored.signing_input(), input, "an anchor comes after the signature");
    assert_eq!(anchored.verify_anchor(), Ok(()));
    let other = ConsentRecord { decision: ConsentDecision::Rejected, ..anchored };
    let error = other.verify_anchor().unwrap_err();
    assert_eq!(error.told, hash);
    assert!(error.to_string().contains("consent record 019500a0-0001"), "{error}");

    let event: AdherenceEvent = parsed(&value(EVENT));
    let anchored =
        AdherenceEvent { chain_anchor: Some(anchor(event.record_hash())), ..event.clone() };
    assert_eq!(anchored.verify_anchor(), Ok(()));
    let unsigned = AdherenceEvent { agent_signature: None, ..event.clone() };
    assert_eq!(unsigned.signing_input(), event.signing_input());
    assert!(AdherenceEvent { chain_anchor: Some(anchor(hash)), ..event }.verify_anchor().is_err());
}

#[test]
fn s7_what_a_caller_is_has_one_hash() {
    let manifest = |tools: &[&str], temperature: &str| -> CapabilityManifest {
        parsed(&json!({"model": "m-1", "tools": tools, "config": {
            "chain_of_thought": "enabled", "rag_enabled": "true", "temperature": temperature,
        }}))
    };
    let one = manifest(&["a", "b"], "0.7").sealed();
    assert_eq!(
        one.caller_capability_hash.as_str(),
        "sha256:eda312222690f3706cc60a2d2387a245d1f4576cad57de00dc2ad0f19aee744f"
    );
    assert_eq!(one.verify_hash(), Ok(()));
    assert_eq!(manifest(&["b", "a"], "0.7").computed_hash(), one.caller_capability_hash);
    assert_ne!(manifest(&["a", "b"], "0.8").computed_hash(), one.caller_capability_hash);
    assert_ne!(manifest(&["a"], "0.7").computed_hash(), one.caller_capability_hash);
    assert!(CapabilityManifest { model: Text::new("m-2").unwrap(), ..one }.verify_hash().is_err());
}

fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f64>().prop_filter("finite", |float| float.is_finite()).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..6)
                .prop_map(|members| members.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
}

proptest! {
    #[test]
    fn canonical_json_is_its_own_canonical_json(value in arbitrary_json()) {
        let once = canonical(&value).unwrap();
        let read: Value = serde_json::from_slice(&once).unwrap();
        prop_assert_eq!(canonical(&read).unwrap(), once);
    }

    #[test]
    fn names_are_in_the_order_of_their_utf_16_units(names in prop::collection::btree_set(any::<String>(), 0..12)) {
        let object: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), json!(name))).collect();
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort_by_key(|name| name.encode_utf16().collect::<Vec<_>>());
        let members = sorted.iter().map(|name| {
            let text = canonical(name).unwrap();
            let text = String::from_utf8(text).unwrap();
            format!("{text}:{text}")
        });
        let members = members.collect::<Vec<_>>().join(",");
        prop_assert_eq!(canon(&object.into()), format!("{{{members}}}"));
    }
}

/// Texts with letters that are escaped and ones that are not, versions of every form, and members that are there or
/// not: written straight or by way of values, a policy has the same letters.
fn arbitrary_policy() -> impl Strategy<Value = Value> {
    let text = || prop_oneof!["[a-z:§é]{1,12}", "[ -~\\t\\n€😀\u{2028}]{0,12}x", "\"{1,3}x\\\\?"];
    let number = || prop_oneof![0..12u64, Just(u64::MAX)];
    let version = move || {
        (
            number(),
            number(),
            number(),
            prop_oneof![Just(""), Just("-rc.1"), Just("-a+b.0"), Just("+7")],
        )
            .prop_map(|(a, b, c, rest)| format!("{a}.{b}.{c}{rest}"))
    };
    let optional = (
        prop::option::of(text()),
        prop::option::of(text()),
        prop::option::of(text()),
        prop::option::of(version()),
        prop::option::of(any::<bool>()),
    );
    let rule = prop::sample::select(vec!["permission", "prohibition", "obligation"]);
    let claim = ("[a-z\"]{1,8}", text(), text(), text(), rule, prop::option::of(version()), optional, any::<u8>())
        .prop_map(|(id, clause, action, asset, rule, since, (constraint, category, dimension, other, escalate), odd)| {
            let mut claim = json!({
                "claim_id": id, "clause_ref": clause, "action": action, "asset": asset, "rule_type": rule,
                "effective_version": since, "constraint": constraint, "category": category,
                "dimension": dimension, "since_version": other, "escalate_on_deny": escalate,
            });
            if odd < 16 {
                claim["aa\"unknown"] = json!({ "b": odd, "a": [1.5, null] });
            }
            claim
        });
    let optional = (
        prop::option::of(version()),
        prop::option::of(text()),
        prop::option::of(prop::collection::vec(text(), 0..3)),
    );
    (version(), prop::collection::vec(claim, 1..4), text(), text(), optional, any::<u8>()).prop_map(
        |(version, claims, uri, terms, (supersedes, summary, jurisdictions), odd)| {
            let mut policy = json!({
                "version": version, "document_uri": uri, "document_hash": "sha256:x",
                "effective_date": "2026-02-27T00:00:00Z", "supersedes": supersedes, "change_summary": summary,
                "claims": claims, "publisher": CALLEE, "natural_language_uri": terms, "jurisdictions": jurisdictions,
            });
            if odd < 16 {
                policy["zz"] = json!("unknown");
            }
            policy
        },
    )
}

proptest! {
    #[test]
    fn a_policy_has_one_hash_however_its_letters_are_written(policy in arbitrary_policy()) {
        let policy: PolicyDocument = parsed(&policy);
        let mut by_values = serde_json::to_value(&policy).unwrap();
        by_values["document_hash"] = json!("");
        let letters = canon(&by_values);
        prop_assert_eq!(policy.computed_hash(), ContentHash::of(letters.as_bytes()), "{}", letters);
    }
}
