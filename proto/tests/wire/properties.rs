//! WR-1 for all documents: read back as written, one spelling each, and the same to other decoders.

use super::cddl::Schema;
use super::diag::{encode, value};
use super::{arbitrary, recode};
use abhyasa_proto::ack::{AckRun, AckStatus, CustodyAck, RefRange};
use abhyasa_proto::batch::{Batch, Hello, Refusal, Statement};
use abhyasa_proto::cbor::Reader;
use abhyasa_proto::fanout::Template;
use abhyasa_proto::frame::Frame;
use abhyasa_proto::obligation::Obligation;
use abhyasa_proto::payload::{PAYLOAD_DEPTH_MAX, Payload};
use abhyasa_proto::safe_action::SafeAction;
use abhyasa_proto::time::Time;
use bytes::Bytes;
use ciborium::Value;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeSet;
use std::sync::LazyLock;

static SCHEMA: LazyLock<Schema> = LazyLock::new(Schema::load);

/// What can be decoded by itself.
pub const RULES: [&str; 11] = [
    "frame",
    "obligation",
    "custody-ack",
    "safe-action",
    "payload",
    "batch",
    "statement",
    "batch-hello",
    "batch-refusal",
    "sealed",
    "template",
];

/// JSON as ciborium would hold it.
fn cbor(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::String(text) => Value::Text(text.clone()),
        Json::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => value.into(),
            (_, Some(value)) => value.into(),
            _ => Value::Float(number.as_f64().unwrap()),
        },
        Json::Array(items) => Value::Array(items.iter().map(cbor).collect()),
        Json::Object(members) => {
            let mut members: Vec<_> = members.iter().collect();
            members.sort_by_key(|(key, _)| (key.len(), key.as_bytes()));
            Value::Map(
                members.into_iter().map(|(key, v)| (Value::Text(key.clone()), cbor(v))).collect(),
            )
        }
    }
}

/// An obligation as ciborium would hold it: the model, written a second time.
fn model(obligation: &Obligation) -> Value {
    let mut members = vec![
        Value::Text(obligation.id.to_string()),
        Value::Text(obligation.kind.to_string()),
        Value::Text(obligation.target.to_string()),
        cbor(&serde_json::Value::Object(obligation.payload.to_json())),
        obligation.deadline_seconds.into(),
        obligation.max_retries.into(),
        obligation.created_at.as_ms().into(),
    ];
    members.extend(obligation.sequence.map(Value::from));
    Value::Map((0u64..).zip(members).map(|(key, value)| (key.into(), value)).collect())
}

/// Whether a payload may hold `value`, told without our reader.
fn is_ours(value: &Value, depth: usize) -> bool {
    match value {
        Value::Null | Value::Bool(_) | Value::Text(_) | Value::Bytes(_) => true,
        Value::Integer(n) => i128::from(*n) >= i128::from(i64::MIN),
        Value::Float(n) => n.is_finite(),
        Value::Array(items) => {
            depth <= PAYLOAD_DEPTH_MAX && items.iter().all(|item| is_ours(item, depth + 1))
        }
        Value::Map(members) => {
            let keys: Vec<_> = members.iter().map(|(key, _)| encode(key)).collect();
            depth <= PAYLOAD_DEPTH_MAX
                && keys.is_sorted_by(|one, next| one < next)
                && members.iter().all(|(key, value)| key.is_text() && is_ours(value, depth + 1))
        }
        _ => false,
    }
}

/// CBOR with every sin ciborium can write.
fn any_cbor() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => any::<i64>().prop_map(Value::from),
        4 => "[a-c]{0,2}".prop_map(Value::from),
        2 => vec(any::<u8>(), 0..3).prop_map(Value::Bytes),
        2 => prop_oneof![Just(0.0), Just(-0.0), Just(0.1), Just(f64::MAX)].prop_map(Value::Float),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY)].prop_map(Value::Float),
        1 => any::<u64>().prop_map(|n| Value::Integer((-1 - i128::from(n)).try_into().unwrap())),
        1 => Just(Value::Tag(1, Box::new(0.into()))),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(6, 20, 3, |inner| {
        let key = prop_oneof![12 => "[a-c]{0,2}".prop_map(Value::from), 1 => Just(0.into())];
        prop_oneof![
            vec(inner.clone(), 0..3).prop_map(Value::Array),
            vec((key, inner), 0..3).prop_map(Value::Map),
        ]
    })
}

proptest! {
    #[test]
    fn wr1_frames_round_trip(frame in arbitrary::frame()) {
        let bytes = frame.encode();
        prop_assert_eq!(Frame::decode(bytes).unwrap(), frame);
    }

    #[test]
    fn wr1_obligations_round_trip(obligation in arbitrary::obligation()) {
        let bytes = obligation.encode();
        prop_assert_eq!(&Obligation::decode(&bytes).unwrap(), &obligation);
        let json = serde_json::to_value(&obligation).unwrap();
        prop_assert_eq!(&serde_json::from_value::<Obligation>(json).unwrap(), &obligation);
        prop_assert_eq!(Payload::from_json(&obligation.payload.to_json()).unwrap(), obligation.payload);
    }

    #[test]
    fn wr1_acks_and_safe_actions_round_trip(ack in arbitrary::ack(), action in arbitrary::safe_action()) {
        prop_assert_eq!(&CustodyAck::decode(&ack.encode()).unwrap(), &ack);
        prop_assert_eq!(&SafeAction::decode(&action.encode()).unwrap(), &action);
        let text = serde_json::to_string(&ack).unwrap();
        prop_assert_eq!(&serde_json::from_str::<CustodyAck>(&text).unwrap(), &ack);
        let json = serde_json::to_value(&action).unwrap();
        prop_assert_eq!(&serde_json::from_value::<SafeAction>(json).unwrap(), &action);
    }

    #[test]
    fn wr1_what_goes_on_tracks_round_trips(
        batch in arbitrary::batch(),
        statement in arbitrary::statement(),
        hello in arbitrary::hello(),
        refusal in arbitrary::refusal(),
        template in arbitrary::template(),
    ) {
        prop_assert_eq!(Batch::decode(&batch.encode()).unwrap(), batch);
        prop_assert_eq!(Statement::decode(&statement.encode()).unwrap(), statement);
        prop_assert_eq!(Hello::decode(&hello.encode()).unwrap(), hello);
        prop_assert_eq!(Refusal::decode(&refusal.encode()).unwrap(), refusal);
        prop_assert_eq!(Template::decode(&template.encode()).unwrap(), template);
    }

    #[test]
    fn wr1_every_document_is_in_the_schema((rule, bytes) in arbitrary::document()) {
        prop_assert_eq!(SCHEMA.check(rule, &bytes), Ok(()));
    }

    #[test]
    fn wr1_other_decoders_see_the_same((_, bytes) in arbitrary::document(), obligation in arbitrary::obligation()) {
        prop_assert_eq!(encode(&value(&bytes)), bytes);
        prop_assert_eq!(value(&obligation.encode()), model(&obligation));
    }

    #[test]
    fn wr1_a_payload_is_taken_if_and_only_if_it_is_ours(cbor in any_cbor()) {
        let bytes = Bytes::from(encode(&cbor));
        prop_assert_eq!(Payload::decode(bytes).is_ok(), cbor.is_map() && is_ours(&cbor, 1));
        let member = Value::Map(vec![("a".into(), cbor)]);
        prop_assert_eq!(Payload::decode(encode(&member).into()).is_ok(), is_ours(&member, 1));
    }

    #[test]
    fn wr1_what_is_read_is_written_back_the_same(bytes in vec(any::<u8>(), 0..300)) {
        let bytes = Bytes::from(bytes);
        for rule in RULES {
            if let Ok(again) = recode(rule, &bytes) {
                prop_assert_eq!(&again, &bytes);
            }
        }
        let mut reader = Reader::new(&bytes);
        while reader.head().is_ok() {}
    }

    #[test]
    fn wr1_what_is_read_of_a_damaged_document_is_written_back_the_same(
        (rule, bytes) in arbitrary::document(),
        damage in vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = bytes.to_vec();
        for (at, with) in damage {
            let at = at.index(bytes.len());
            bytes[at] = with;
        }
        let bytes = Bytes::from(bytes);
        if let Ok(again) = recode(rule, &bytes) {
            prop_assert_eq!(&again, &bytes);
        }
        // Items are decoded later, by themselves.
        if let Ok(Frame::Offers { items, .. }) = Frame::decode(bytes) {
            for item in items {
                if let Ok(obligation) = Obligation::decode(&item) {
                    prop_assert_eq!(obligation.encode(), item);
                }
            }
        }
    }

    #[test]
    fn wr1_ack_ranges_are_taken_if_and_only_if_they_are_the_one_coding(
        runs in vec(vec((0..40u64, 0..6u64), 0..4), 0..3)
    ) {
        let refs = |&(first, count): &(u64, u64)| first..first + count;
        let sets: Vec<Vec<u64>> = runs.iter().map(|run| run.iter().flat_map(refs).collect()).collect();
        let one_coding = runs.iter().zip(&sets).all(|(run, set)| {
            let ranges: Vec<_> = run.iter().map(|&(first, count)| RefRange { first, count }).collect();
            !run.is_empty() && RefRange::collect(set.clone()) == ranges
        });
        let all: Vec<u64> = sets.concat();
        let apart = BTreeSet::from_iter(&all).len() == all.len();
        let frame = Frame::AckRuns(runs.iter().map(|run| AckRun {
            status: AckStatus::Applied,
            acked_at: Time::from_ms(0),
            reason: None,
            refs: run.iter().map(|&(first, count)| RefRange { first, count }).collect(),
        }).collect());
        let taken = Frame::decode(frame.encode()).is_ok();
        prop_assert_eq!(taken, one_coding && apart && !runs.is_empty());
    }

    #[test]
    fn ranges_cover_what_was_collected(refs in btree_set(0..200u64, 0..80), order in any::<u64>()) {
        let mut shuffled: Vec<_> = refs.iter().copied().chain(refs.iter().copied().take(3)).collect();
        shuffled.sort_by_key(|r| (r ^ order).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let ranges = RefRange::collect(shuffled);
        let covered: Vec<u64> = ranges.iter().flat_map(|range| range.iter()).collect();
        prop_assert_eq!(BTreeSet::from_iter(covered.iter().copied()), refs.clone());
        prop_assert_eq!(covered.len(), refs.len());
        prop_assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.last() + 1 < b.first));
    }
}
