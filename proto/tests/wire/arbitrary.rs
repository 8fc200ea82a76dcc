//! Random documents, within the limits.

use abhyasa_proto::ack::{AckRun, AckStatus, CustodyAck, Reason, RefRange};
use abhyasa_proto::batch::{Audience, Batch, Content, Hello, Refusal, Sealed, Statement};
use abhyasa_proto::fanout::{GroupId, Template};
use abhyasa_proto::frame::{Frame, HelloLimits, RefuseCode};
use abhyasa_proto::id::IdError;
use abhyasa_proto::limits::{DEADLINE_SECONDS_MAX, RETRIES_MAX};
use abhyasa_proto::obligation::Obligation;
use abhyasa_proto::payload::Payload;
use abhyasa_proto::safe_action::{SafeAction, SafeEffect};
use abhyasa_proto::time::Time;
use abhyasa_proto::track::{Epoch, GroupName, Namespace, Part};
use abhyasa_proto::weight::Weight;
use bytes::Bytes;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::num::f64::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
use proptest::option;
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::str::FromStr;

/// A checked name.
pub fn name<T: FromStr<Err = IdError> + std::fmt::Debug>() -> impl Strategy<Value = T> {
    prop_oneof!["[a-z0-9./:-]{1,40}", "\\PC{1,40}", "x{250,256}"]
        .prop_filter_map("blank or too long", |text| text.parse().ok())
}

/// What RFC 3339 and the schema can say.
fn time() -> impl Strategy<Value = Time> {
    (0..=253_402_207_200_000u64).prop_map(Time::from_ms)
}

fn reason() -> impl Strategy<Value = Reason> {
    "\\PC{0,300}".prop_map(Reason::new)
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (POSITIVE | NEGATIVE | NORMAL | SUBNORMAL | ZERO).prop_map(Value::from),
        (-8i8..8).prop_map(|n| Value::from(f64::from(n) / 4.0)),
        ".{0,30}".prop_map(Value::from),
    ];
    // Four levels inside the payload's own map.
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            btree_map(".{0,8}", inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

pub fn payload() -> impl Strategy<Value = Payload> {
    btree_map(".{0,12}", json(), 0..6)
        .prop_map(|map| Payload::from_json(&map.into_iter().collect()).unwrap())
}

pub fn obligation() -> impl Strategy<Value = Obligation> {
    (
        name(),
        name(),
        name(),
        payload(),
        1..=DEADLINE_SECONDS_MAX,
        0..=RETRIES_MAX,
        time(),
        option::of(any::<u64>()),
    )
        .prop_map(
            |(id, kind, target, payload, deadline_seconds, max_retries, created_at, sequence)| {
                Obligation {
                    id,
                    kind,
                    target,
                    payload,
                    deadline_seconds,
                    max_retries,
                    created_at,
                    sequence,
                }
            },
        )
}

fn status() -> impl Strategy<Value = AckStatus> {
    prop_oneof![Just(AckStatus::Applied), Just(AckStatus::Declined), Just(AckStatus::Deferred)]
}

pub fn ack() -> impl Strategy<Value = CustodyAck> {
    (name(), name(), status(), time(), option::of(reason())).prop_map(
        |(obligation_id, target, status, acked_at, reason)| CustodyAck {
            obligation_id,
            target,
            status,
            acked_at,
            reason,
        },
    )
}

pub fn safe_action() -> impl Strategy<Value = SafeAction> {
    let effect = prop_oneof![
        name().prop_map(|scope| SafeEffect::FailClosed { scope }),
        (name(), 0..=Weight::MAX.nanos()).prop_map(|(weight_key, nanos)| SafeEffect::DownWeight {
            weight_key,
            magnitude: Weight::from_nanos(nanos),
        }),
    ];
    (name(), name(), effect, reason(), option::of(any::<u64>())).prop_map(
        |(obligation_id, target, effect, rationale, sequence)| SafeAction {
            obligation_id,
            target,
            effect,
            rationale,
            sequence,
        },
    )
}

fn ranges(least: usize) -> impl Strategy<Value = Vec<RefRange>> {
    vec(0..3000u64, least..60).prop_map(RefRange::collect)
}

fn ack_runs() -> impl Strategy<Value = Frame> {
    let outcomes = vec((status(), time(), option::of(reason())), 1..5);
    let refs = btree_map(0..500u64, any::<proptest::sample::Index>(), 1..200);
    (outcomes, refs).prop_map(|(outcomes, refs)| {
        let mut by_run: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (reference, index) in refs {
            by_run.entry(index.index(outcomes.len())).or_default().push(reference);
        }
        Frame::AckRuns(
            by_run
                .into_iter()
                .map(|(index, refs)| {
                    let (status, acked_at, reason) = outcomes[index].clone();
                    AckRun { status, acked_at, reason, refs: RefRange::collect(refs) }
                })
                .collect(),
        )
    })
}

fn code() -> impl Strategy<Value = RefuseCode> {
    prop_oneof![
        Just(RefuseCode::Overloaded),
        Just(RefuseCode::Unauthorized),
        Just(RefuseCode::Unsupported),
        Just(RefuseCode::Malformed),
        Just(RefuseCode::WrongTarget),
        Just(RefuseCode::Stopping),
    ]
}

pub fn frame() -> impl Strategy<Value = Frame> {
    let items = || vec(obligation().prop_map(|obligation| obligation.encode()), 1..4);
    prop_oneof![
        (any::<u64>(), name(), any::<[u64; 3]>(), vec("\\PC{0,20}", 0..4)).prop_map(
            |(version, agent, [frame_len_max, in_flight_max, datagram_len_max], features)| {
                let limits = HelloLimits { frame_len_max, in_flight_max, datagram_len_max };
                Frame::Hello { version, agent, limits, features }
            }
        ),
        (0..u64::MAX - 4, items())
            .prop_map(|(first_ref, items)| Frame::Offers { first_ref, items }),
        ack_runs(),
        vec(ack(), 1..4).prop_map(Frame::Acks),
        (any::<u64>(), vec(name(), 1..5))
            .prop_map(|(query_ref, ids)| Frame::Query { query_ref, ids }),
        (any::<u64>(), vec(ack(), 0..3), vec(name(), 0..3))
            .prop_map(|(query_ref, acks, unknown)| Frame::Answer { query_ref, acks, unknown }),
        (any::<u64>(), option::of(name())).prop_map(|(nonce, id)| Frame::Probe { nonce, id }),
        (any::<u64>(), time()).prop_map(|(nonce, at)| Frame::ProbeReply { nonce, at }),
        (ranges(0), code(), any::<u64>(), reason()).prop_map(
            |(refs, code, retry_after_ms, text)| {
                Frame::Refuse { refs, code, retry_after_ms, text }
            }
        ),
        items().prop_map(|items| Frame::BestEffort { items }),
    ]
}

fn items() -> impl Strategy<Value = Vec<Bytes>> {
    vec(vec(any::<u8>(), 1..60).prop_map(Bytes::from), 0..6)
}

pub fn batch() -> impl Strategy<Value = Batch> {
    (vec(any::<u8>(), 1..800), items())
        .prop_map(|(signed, items)| Batch { signed: signed.into(), items })
}

pub fn statement() -> impl Strategy<Value = Statement> {
    let audience = prop_oneof![
        name().prop_filter_map("an audience of many", |agent| Audience::agent(agent).ok()),
        "[a-z0-9_-][a-z0-9._-]{0,63}"
            .prop_map(|name| Audience::Group(GroupName::new(&name).unwrap())),
        Just(Audience::Everyone),
    ];
    let content = prop_oneof![
        Just(Content::Hello),
        Just(Content::Offers),
        Just(Content::BestEffort),
        Just(Content::Acks),
        Just(Content::Refusals),
        Just(Content::GroupOffer),
        Just(Content::Escalations),
        Just(Content::Status),
        Just(Content::Events),
        Just(Content::Metrics),
        Just(Content::Policy),
    ];
    (namespace(), audience, content, items())
        .prop_map(|(from, audience, content, items)| Statement::of(from, audience, content, &items))
}

fn epoch() -> impl Strategy<Value = Epoch> {
    (any::<u64>(), any::<u64>()).prop_map(|(boot, session)| Epoch { boot, session })
}

fn namespace() -> impl Strategy<Value = Namespace> {
    let share = (any::<u16>(), 1..=u16::MAX)
        .prop_map(|(index, count)| Part::Peers { index: index % count, count });
    let part = prop_oneof![Just(Part::All), share];
    (name(), epoch(), part).prop_map(|(publisher, epoch, part)| Namespace {
        publisher,
        epoch,
        part,
    })
}

pub fn hello() -> impl Strategy<Value = Hello> {
    let key = option::of(any::<[u8; 32]>());
    let group = "[a-z0-9_-][a-z0-9._-]{0,63}".prop_map(|name| GroupName::new(&name).unwrap());
    let groups = btree_set(group, 0..4);
    (any::<u64>(), key, option::of(epoch()), any::<bool>(), groups).prop_map(
        |(in_flight_max, seal_key, answers, up, groups)| Hello {
            in_flight_max,
            seal_key,
            answers,
            up,
            groups,
        },
    )
}

pub fn refusal() -> impl Strategy<Value = Refusal> {
    (any::<[u8; 32]>(), ranges(1), code(), any::<u64>(), reason()).prop_map(
        |(root, indexes, code, retry_after_ms, text)| Refusal {
            root,
            indexes,
            code,
            retry_after_ms,
            text,
        },
    )
}

pub fn template() -> impl Strategy<Value = Template> {
    ("[a-z0-9.:/-]{1,229}", obligation())
        .prop_map(|(gid, obligation)| Template::of(GroupId::new(&gid).unwrap(), &obligation))
}

/// The rule and the bytes of a document of any type.
pub fn document() -> impl Strategy<Value = (&'static str, Bytes)> {
    prop_oneof![
        4 => frame().prop_map(|frame| ("frame", frame.encode())),
        2 => obligation().prop_map(|obligation| ("obligation", obligation.encode())),
        1 => ack().prop_map(|ack| ("custody-ack", ack.encode())),
        1 => safe_action().prop_map(|action| ("safe-action", action.encode())),
        1 => payload().prop_map(|payload| ("payload", payload.as_bytes().clone())),
        1 => batch().prop_map(|batch| ("batch", batch.encode())),
        1 => statement().prop_map(|statement| ("statement", statement.encode())),
        1 => hello().prop_map(|hello| ("batch-hello", hello.encode())),
        1 => refusal().prop_map(|refusal| ("batch-refusal", refusal.encode())),
        1 => (any::<[u8; 32]>(), vec(any::<u8>(), 17..60))
            .prop_map(|(enc, text)| ("sealed", Sealed { enc, text: text.into() }.encode())),
        1 => template().prop_map(|template| ("template", template.encode())),
    ]
}
