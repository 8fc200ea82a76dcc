//! WR-1: what the decoder takes is what the schema says, in both directions.

use super::diag::{encode, value};
use super::{recode, samples};
use abhyasa_proto::ack::{AckStatus, REFS_COUNT_MAX, Reason};
use abhyasa_proto::batch::SEALED_LEN_MAX;
use abhyasa_proto::fanout::GROUP_ID_LEN_MAX;
use abhyasa_proto::frame::{FEATURES_COUNT_MAX, Frame, RefuseCode};
use abhyasa_proto::limits::{
    BATCH_COUNT_MAX, DEADLINE_SECONDS_MAX, ID_LEN_MAX, ITEM_LEN_MAX, REASON_LEN_MAX, RETRIES_MAX,
    SIGNED_LEN_MAX,
};
use abhyasa_proto::weight::Weight;
use cddl_cat::{cbor::validate_cbor, context::BasicContext, flatten::flatten_from_str};
use ciborium::Value;

pub struct Schema(BasicContext);

impl Schema {
    pub fn load() -> Self {
        let text = include_str!("../../schema/abhyasa.cddl");
        Self(BasicContext::new(flatten_from_str(text).unwrap()))
    }

    pub fn check(&self, rule: &str, bytes: &[u8]) -> Result<(), String> {
        let definition = self.0.rules.get(rule).ok_or_else(|| format!("no rule {rule}"))?;
        let value: Value = ciborium::from_reader(bytes).map_err(|error| error.to_string())?;
        validate_cbor(definition, &value, &self.0).map_err(|error| error.to_string())
    }

    /// Whether schema and decoder agree on `bytes`; what they say.
    fn agrees(&self, rule: &str, bytes: Vec<u8>, what: &str) -> bool {
        let (schema, decoder) = (self.check(rule, &bytes), recode(rule, &bytes.into()));
        assert_eq!(
            schema.is_ok(),
            decoder.is_ok(),
            "{what}: schema says {schema:?}, decoder says {:?}",
            decoder.as_ref().err()
        );
        schema.is_ok()
    }
}

/// `value` with one change at a time: each map loses a member or gains an unknown one, each scalar
/// becomes another type.
fn changed(value: &Value) -> Vec<Value> {
    match value {
        Value::Map(members) => {
            let mut all = Vec::new();
            let unknown =
                members.iter().all(|(key, _)| key.is_integer()).then(|| (99.into(), 0.into()));
            all.extend(unknown.map(|one| Value::Map([members.clone(), vec![one]].concat())));
            for i in 0..members.len() {
                let mut fewer = members.clone();
                fewer.remove(i);
                all.push(Value::Map(fewer));
                all.extend(changed(&members[i].1).into_iter().map(|value| {
                    let mut members = members.clone();
                    members[i].1 = value;
                    Value::Map(members)
                }));
            }
            all
        }
        Value::Array(items) => {
            let mut all = vec![Value::Array(vec![]), Value::Null];
            for i in 0..items.len() {
                all.extend(changed(&items[i]).into_iter().map(|value| {
                    let mut items = items.clone();
                    items[i] = value;
                    Value::Array(items)
                }));
            }
            all
        }
        Value::Integer(_) => vec![Value::Text("1".into()), (-1).into(), 2.5.into(), Value::Null],
        _ => vec![1_000_000_000_000_000u64.into(), Value::Bytes(vec![0xa0]), Value::Array(vec![])],
    }
}

#[test]
fn wr1_schema_and_decoder_refuse_the_same_changes() {
    let schema = Schema::load();
    let (mut taken, mut refused) = (0, 0);
    for samples::Sample(name, rule, _, bytes) in samples::all() {
        for changed in changed(&value(&bytes)) {
            let what = format!("{name} as {changed:?}");
            let bytes = encode(&changed);
            // An item inside a frame is decoded by itself, later; the schema looks into it at once.
            let schema_says = schema.check(rule, &bytes);
            if recode(rule, &bytes.clone().into()).is_ok() && schema_says.is_err() {
                let frame = Frame::decode(bytes.into()).unwrap();
                let (Frame::Offers { items, .. } | Frame::BestEffort { items }) = frame else {
                    panic!("{what}: taken against the schema: {schema_says:?}");
                };
                assert!(items.iter().any(|item| recode("obligation", item).is_err()), "{what}");
                refused += 1;
            } else if schema.agrees(rule, bytes, &what) {
                taken += 1;
            } else {
                refused += 1;
            }
        }
    }
    assert!(taken > 20 && refused > 400, "{taken} taken, {refused} refused: changes are too tame");
}

#[test]
fn wr1_schema_and_decoder_have_the_same_limits() {
    let schema = Schema::load();
    let change = |of: &[u8], path: &[usize], to: Value| {
        let mut whole = value(of);
        let mut at = &mut whole;
        for &step in path {
            at = match at {
                Value::Map(members) => &mut members[step].1,
                Value::Array(items) => &mut items[step],
                _ => panic!("no path {path:?}"),
            };
        }
        *at = to;
        encode(&whole)
    };
    let text = |len: usize| Value::Text("x".repeat(len));
    let obligation = samples::consent_revoke().encode();
    let named = |name: &str| samples::all().into_iter().find(|s| s.0 == name).unwrap().3;
    let hello = named("hello-features");
    let down = named("ab4-safe-action-down-weight");
    let nanos_max = Weight::MAX.nanos();
    let ack = samples::ack("a", AckStatus::Declined, 0, Some(Reason::EXPIRED)).encode();
    let refuse = Frame::Refuse {
        refs: samples::ranges(&[(0, 1)]),
        code: RefuseCode::Stopping,
        retry_after_ms: 0,
        text: Reason::default(),
    }
    .encode();
    let features = |len| Value::Array(vec![text(1); len]);
    let time_max = 253_402_207_200_000u64;
    let batch = named("batch-offers");
    let statement = named("statement-offers");
    let batch_hello = named("batch-hello-seal");
    let refusal = named("bd1-batch-refusal");
    let template = named("group-template");
    let sealed = named("sealed");
    let bytes = |len| Value::Bytes(vec![7; len]);
    let items = |len| Value::Array(vec![bytes(1); len]);
    for (rule, of, path, within, beyond) in [
        ("obligation", &obligation, &[0][..], text(ID_LEN_MAX), text(ID_LEN_MAX + 1)),
        ("obligation", &obligation, &[1], text(1), text(0)),
        (
            "obligation",
            &obligation,
            &[4],
            DEADLINE_SECONDS_MAX.into(),
            (DEADLINE_SECONDS_MAX + 1).into(),
        ),
        ("obligation", &obligation, &[4], 1.into(), 0.into()),
        ("obligation", &obligation, &[5], RETRIES_MAX.into(), (RETRIES_MAX + 1).into()),
        ("obligation", &obligation, &[6], time_max.into(), (time_max + 1).into()),
        ("obligation", &obligation, &[7], u64::MAX.into(), (-1).into()),
        ("custody-ack", &ack, &[2], 2.into(), 3.into()),
        ("custody-ack", &ack, &[3], time_max.into(), (time_max + 1).into()),
        ("custody-ack", &ack, &[4], text(REASON_LEN_MAX), text(REASON_LEN_MAX + 1)),
        ("frame", &hello, &[4], features(FEATURES_COUNT_MAX), features(FEATURES_COUNT_MAX + 1)),
        ("frame", &hello, &[4], features(1), features(0)),
        ("frame", &hello, &[4, 0], text(ID_LEN_MAX), text(ID_LEN_MAX + 1)),
        ("safe-action", &down, &[2, 2], nanos_max.into(), (nanos_max + 1).into()),
        ("safe-action", &down, &[2, 2], 0.into(), (-1).into()),
        ("frame", &refuse, &[1, 0, 1], REFS_COUNT_MAX.into(), (REFS_COUNT_MAX + 1).into()),
        ("frame", &refuse, &[1, 0, 1], 1.into(), 0.into()),
        ("frame", &refuse, &[2], 5.into(), 6.into()),
        ("frame", &refuse, &[0], 8.into(), 10.into()),
        ("batch", &batch, &[0], bytes(SIGNED_LEN_MAX), bytes(SIGNED_LEN_MAX + 1)),
        ("batch", &batch, &[0], bytes(1), bytes(0)),
        ("batch", &batch, &[1], items(BATCH_COUNT_MAX), items(BATCH_COUNT_MAX + 1)),
        ("batch", &batch, &[1, 0], bytes(ITEM_LEN_MAX), bytes(ITEM_LEN_MAX + 1)),
        ("batch", &batch, &[1, 0], bytes(1), bytes(0)),
        ("statement", &statement, &[0], 1.into(), 2.into()),
        ("statement", &statement, &[2], text(ID_LEN_MAX), text(ID_LEN_MAX + 1)),
        ("statement", &statement, &[3], 10.into(), 11.into()),
        ("statement", &statement, &[4], 4096.into(), 4097.into()),
        ("statement", &statement, &[5], bytes(32), bytes(31)),
        ("statement", &statement, &[5], bytes(32), bytes(33)),
        ("batch-hello", &batch_hello, &[1], bytes(32), bytes(33)),
        ("batch-refusal", &refusal, &[1, 0, 1], 4094.into(), 4097.into()),
        ("batch-refusal", &refusal, &[1, 1, 0], 4095.into(), 4096.into()),
        ("batch-refusal", &refusal, &[2], 5.into(), 6.into()),
        ("sealed", &sealed, &[0], bytes(32), bytes(31)),
        ("sealed", &sealed, &[1], bytes(17), bytes(16)),
        ("sealed", &sealed, &[1], bytes(SEALED_LEN_MAX), bytes(SEALED_LEN_MAX + 1)),
        ("template", &template, &[0], text(GROUP_ID_LEN_MAX), text(GROUP_ID_LEN_MAX + 1)),
        (
            "template",
            &template,
            &[3],
            DEADLINE_SECONDS_MAX.into(),
            (DEADLINE_SECONDS_MAX + 1).into(),
        ),
        ("template", &template, &[4], RETRIES_MAX.into(), (RETRIES_MAX + 1).into()),
        ("template", &template, &[5], time_max.into(), (time_max + 1).into()),
    ] {
        assert!(schema.agrees(rule, change(of, path, within), "within"), "{rule} {path:?}");
        assert!(!schema.agrees(rule, change(of, path, beyond), "beyond"), "{rule} {path:?}");
    }
}
