//! The papers' JSON.

use super::samples::{self, ack, at};
use abhyasa_proto::ack::{AckStatus, CustodyAck, Reason};
use abhyasa_proto::frame::Frame;
use abhyasa_proto::obligation::Obligation;
use abhyasa_proto::payload::{PAYLOAD_DEPTH_MAX, Payload, PayloadValue};
use abhyasa_proto::safe_action::{SafeAction, SafeEffect};
use serde_json::{Value, from_str, from_value, json, to_value};

fn sample() -> Value {
    json!({
        "obligation_id": "consent-0001",
        "kind": "anumati.consent",
        "target": "spiffe://example.org/agent/b",
        "payload": {"decision": "revoke", "scope": "calendar.write"},
        "deadline_seconds": 3600,
        "max_retries": 16,
        "created_at": "2026-11-30T12:00:00Z",
        "sequence": 7,
    })
}

fn with(member: &str, value: Value) -> Value {
    let mut json = sample();
    json[member] = value;
    json
}

#[test]
fn the_papers_names_are_written_and_read() {
    let obligation = samples::consent_revoke();
    assert_eq!(to_value(&obligation).unwrap(), sample());
    assert_eq!(from_value::<Obligation>(sample()).unwrap(), obligation);
    let applied = ack("consent-0001", AckStatus::Applied, 1, None);
    let json = json!({
        "obligation_id": "consent-0001",
        "target": "spiffe://example.org/agent/b",
        "status": "applied",
        "acked_at": "2026-11-30T12:00:01Z",
    });
    assert_eq!(to_value(&applied).unwrap(), json);
    assert_eq!(from_value::<CustodyAck>(json).unwrap(), applied);
    let declined = ack("consent-0001", AckStatus::Declined, 1, Some(Reason::EXPIRED));
    assert_eq!(to_value(&declined).unwrap()["reason"], "expired");
    assert_eq!(from_value::<CustodyAck>(to_value(&declined).unwrap()).unwrap(), declined);
}

#[test]
fn what_other_writers_do_is_read() {
    let expected = samples::consent_revoke();
    for (member, value) in [
        ("deadline_seconds", json!(3600.0)),
        ("max_retries", json!(16.0)),
        ("sequence", json!(7.0)),
        ("created_at", json!("2026-11-30T12:00:00.000000+00:00")),
        ("created_at", json!("2026-11-30T17:30:00+05:30")),
        ("x-extension", json!({"unknown": ["members", "are", "ignored"]})),
    ] {
        let read = from_value::<Obligation>(with(member, value.clone()));
        assert_eq!(read.unwrap(), expected, "{member} as {value}");
    }
    let none = from_value::<Obligation>(with("sequence", Value::Null)).unwrap();
    assert_eq!(none.sequence, None);
    let text = r#"{"obligation_id":"a","target":"b","status":"deferred",
        "acked_at":"2026-11-30T12:00:00Z","reason":null,"signature":"later"}"#;
    assert_eq!(from_str::<CustodyAck>(text).unwrap().status, AckStatus::Deferred);
}

#[test]
fn what_breaks_a_rule_is_refused_with_its_name() {
    for (member, value, says) in [
        ("obligation_id", json!(""), "obligation_id is empty"),
        ("obligation_id", json!(" \t"), "obligation_id is empty"),
        ("obligation_id", json!("x".repeat(257)), "257"),
        ("kind", json!("\u{3000}"), "kind is empty"),
        ("target", json!("a\nb"), "control character"),
        ("payload", json!([]), "not an object"),
        ("payload", Value::Null, "not an object"),
        ("deadline_seconds", json!(0), "deadline_seconds is 0"),
        ("deadline_seconds", json!(-1), "-1"),
        ("deadline_seconds", json!(1.5), "1.5"),
        ("deadline_seconds", json!(1e300), "floating point"),
        ("deadline_seconds", json!(316_224_001), "316224001"),
        ("deadline_seconds", json!("3600"), "string"),
        ("deadline_seconds", Value::Null, "null"),
        ("max_retries", json!(-1), "-1"),
        ("max_retries", json!(100_001), "max_retries is 100001"),
        ("max_retries", json!(4_294_967_296u64), "max_retries is 4294967296"),
        ("created_at", json!("2026-11-30T12:00:00"), "RFC 3339"),
        ("created_at", json!("1969-12-31T23:59:59Z"), "1970"),
        ("created_at", json!("9999-12-30T22:00:00.5Z"), "9999"),
        ("created_at", json!(1_780_000_000), "integer"),
        ("sequence", json!(-1), "-1"),
        ("sequence", json!("7"), "string"),
    ] {
        let error = from_value::<Obligation>(with(member, value.clone())).unwrap_err().to_string();
        assert!(error.contains(says), "{member} as {value}: {error}");
    }
    for member in sample().as_object().unwrap().keys().filter(|name| *name != "sequence") {
        let mut json = sample();
        json.as_object_mut().unwrap().remove(member);
        let error = from_value::<Obligation>(json).unwrap_err().to_string();
        assert!(error.contains(member), "{member} missing: {error}");
    }
    let mut json = to_value(ack("a", AckStatus::Declined, 0, Some(Reason::EXPIRED))).unwrap();
    json["reason"] = json!("x".repeat(513));
    assert!(from_value::<CustodyAck>(json.clone()).unwrap_err().to_string().contains("513"));
    json["reason"] = json!("ok");
    json["status"] = json!("Applied");
    assert!(from_value::<CustodyAck>(json).is_err(), "status words are lower case");
}

fn payload(text: &str) -> Result<Payload, serde_json::Error> {
    from_str(text)
}

#[test]
fn payload_members_all_survive_as_they_are() {
    let text = r#"{"z":[1,-1,1.0,-0.0,0.1,1e308,5e-324,18446744073709551615,-9223372036854775808],
        "decision":"revoke","ü":{"":null,"x-unknown":{"deep":[[]]}},"":true}"#;
    let read = payload(text).unwrap();
    assert_eq!(read.to_json(), *from_str::<Value>(text).unwrap().as_object().unwrap());
    let number = |text: &str| payload(&format!(r#"{{"n":{text}}}"#)).unwrap().as_bytes().to_vec();
    assert_eq!(number("1"), [0xa1, 0x61, b'n', 1]);
    assert_eq!(number("1.0"), [0xa1, 0x61, b'n', 0xf9, 0x3c, 0]);
    assert_eq!(number("-0.0"), [0xa1, 0x61, b'n', 0xf9, 0x80, 0]);
    let all = samples::all();
    let every = &all.iter().find(|sample| sample.0 == "obligation-every-value").unwrap().3;
    let json = Obligation::decode(every).unwrap().payload.to_json();
    assert_eq!(json["bytes!"], "AP8", "byte strings become base64url without padding");
    assert_eq!((&json["u"], &json["i"]), (&json!(u64::MAX), &json!(i64::MIN)));
}

#[test]
fn bd1_payload_limits_hold_for_json_too() {
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels - 1), "]".repeat(levels - 1));
        payload(&format!(r#"{{"a":{open}{close}}}"#))
    };
    let deepest = nested(PAYLOAD_DEPTH_MAX).unwrap();
    assert_eq!(Payload::decode(deepest.as_bytes().clone()).unwrap(), deepest);
    assert!(nested(PAYLOAD_DEPTH_MAX + 1).unwrap_err().to_string().contains("deeper"));
    assert!(nested(100_000).is_err());
    let items = |len: usize| payload(&format!(r#"{{"a":[{}]}}"#, vec!["0"; len].join(",")));
    assert!(items(1024).is_ok());
    assert!(items(1025).unwrap_err().to_string().contains("1025"));
    let members = |len: usize| {
        let members: Vec<_> = (0..len).map(|i| format!(r#""{i}":0"#)).collect();
        payload(&format!("{{{}}}", members.join(",")))
    };
    assert!(members(1024).is_ok());
    assert!(members(1025).is_err());
    let long = |len: usize| payload(&format!(r#"{{"a":"{}"}}"#, "x".repeat(len)));
    assert!(long(65_530).is_ok());
    assert!(long(65_531).unwrap_err().to_string().contains("65537"));
    let value = json!({"a": vec![0; 1025]});
    assert!(Payload::from_json(value.as_object().unwrap()).is_err(), "from a value as from text");
    assert!(payload(r#"{"a":1e400}"#).is_err(), "infinite");
    assert!(payload(r#"{"a":NaN}"#).is_err());
}

#[test]
fn a_name_twice_is_refused_lest_two_readers_see_two_obligations() {
    let twice = r#"{"decision":"revoke","decision":"grant"}"#;
    assert!(payload(twice).unwrap_err().to_string().contains("twice"));
    assert!(payload(r#"{"a":{"b":0,"b":0}}"#).is_err());
    let whole = sample().to_string();
    let whole = whole.replacen('{', r#"{"kind":"oauth.token","#, 1);
    assert!(from_str::<Obligation>(&whole).is_err());
}

#[test]
fn members_are_looked_up_without_the_rest() {
    let text = r#"{"b":-3,"f":0.5,"n":null,"t":true,"text":"x","list":[{"a":1}],"big":18446744073709551615}"#;
    let read = payload(text).unwrap();
    for (key, expected) in [
        ("b", Some(PayloadValue::Int(-3))),
        ("f", Some(PayloadValue::Number(0.5))),
        ("n", Some(PayloadValue::Null)),
        ("t", Some(PayloadValue::Bool(true))),
        ("text", Some(PayloadValue::Text("x"))),
        ("list", Some(PayloadValue::Other)),
        ("big", Some(PayloadValue::Other)),
        ("a", None),
        ("c", None),
        ("zzzzz", None),
        ("", None),
    ] {
        assert_eq!(read.get(key), expected, "{key}");
    }
    assert_eq!(Payload::EMPTY.get("a"), None);
    assert_eq!(payload("{}").unwrap(), Payload::EMPTY);
}

#[test]
fn safe_actions_in_json() {
    let closed = samples::fail_closed();
    let json = json!({
        "obligation_id": "consent-0001",
        "target": "spiffe://example.org/agent/b",
        "effect": "fail_closed",
        "magnitude": 0.0,
        "scope": "calendar.write",
        "rationale": "deadline passed: agent-b is unreachable",
        "sequence": 7,
    });
    assert_eq!(to_value(&closed).unwrap(), json);
    assert_eq!(from_value::<SafeAction>(json).unwrap(), closed);
    let read = |change: Value| {
        let mut json =
            json!({"obligation_id": "o", "target": "b", "rationale": "r", "scope": null});
        json.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        from_value::<SafeAction>(json)
    };
    let down = read(json!({"effect": "down_weight", "magnitude": 1, "weight_key": "w"})).unwrap();
    assert!(
        matches!(&down.effect, SafeEffect::DownWeight { magnitude, .. } if magnitude.to_f64() == 1.0)
    );
    assert_eq!(down.effect.key().as_str(), "w");
    assert_eq!(from_value::<SafeAction>(to_value(&down).unwrap()).unwrap(), down);
    let fallback = read(json!({"effect": "down_weight", "magnitude": 0.5})).unwrap();
    assert_eq!(fallback.effect.key().as_str(), "routing.b.preference");
    assert_eq!(
        read(json!({"effect": "fail_closed", "magnitude": 0})).unwrap().effect.key().as_str(),
        "b"
    );
    for bad in [
        json!({"effect": "fail_closed", "magnitude": 1}),
        json!({"effect": "down_weight", "magnitude": -0.5}),
        json!({"effect": "down_weight", "magnitude": 1e-12}),
        json!({"effect": "down_weight", "magnitude": 1e7}),
        json!({"effect": "fail_open", "magnitude": 0}),
        json!({"effect": "fail_closed"}),
    ] {
        assert!(read(bad.clone()).is_err(), "{bad} was read");
    }
}

#[test]
fn payloads_stay_out_of_debug_output() {
    let obligation = samples::consent_revoke();
    let offers = Frame::Offers { first_ref: 1, items: vec![obligation.encode()] };
    for text in [format!("{obligation:?}"), format!("{offers:?}"), format!("{obligation}")] {
        assert!(!text.contains("calendar"), "{text}");
    }
}

#[test]
fn the_deadline_is_absolute_and_the_digest_is_of_the_content() {
    let one = samples::consent_revoke();
    assert_eq!(one.deadline_at(), at(3600));
    // On disk: a change of this number orphans every stored digest.
    assert_eq!(one.digest(), 9_024_009_184_192_993_934);
    let resent =
        Obligation { created_at: at(9), max_retries: 0, deadline_seconds: 1, ..one.clone() };
    assert_eq!(resent.digest(), one.digest(), "times do not make another obligation");
    let numbered = Obligation { sequence: None, ..one.clone() };
    assert_eq!(numbered.digest(), one.digest(), "nor does the sequence the custodian gives it");
    for other in [
        Obligation { payload: Payload::EMPTY, ..one.clone() },
        Obligation { target: samples::agent("c"), ..one.clone() },
        Obligation { kind: "anumati.other".parse().unwrap(), ..one.clone() },
    ] {
        assert_ne!(other.digest(), one.digest(), "{other:?}");
    }
}
