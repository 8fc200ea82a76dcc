//! What the wire costs: obligations and full frames, encoded and decoded.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use proto::ack::{AckRun, AckStatus, RefRange};
use proto::frame::Frame;
use proto::id::{AgentId, Kind, ObligationId};
use proto::limits::FRAME_LEN_TARGET;
use proto::obligation::Obligation;
use proto::payload::Payload;
use proto::time::Time;
use std::hint::black_box;

/// Bytes of payload, as in the figures of the README.
const PAYLOAD_LEN: usize = 256;

fn obligation(number: u64) -> Obligation {
    let payload = serde_json::json!({
        "weight_delta": -0.001,
        "weight_key": "routing.bench.preference",
        "note": "x".repeat(PAYLOAD_LEN - 70),
    });
    Obligation {
        id: ObligationId::new(&format!("bench-{number:012x}")).unwrap(),
        kind: Kind::new("phala.belief_update").unwrap(),
        target: AgentId::new("spiffe://bench.local/receiver").unwrap(),
        payload: Payload::from_json(payload.as_object().unwrap()).unwrap(),
        deadline_seconds: 86_400,
        max_retries: 200,
        created_at: Time::from_ms(1_800_000_000_000),
        sequence: None,
    }
}

fn obligations(c: &mut Criterion) {
    let one = obligation(1);
    let bytes = one.encode();
    let mut group = c.benchmark_group("obligation");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("encode", |b| b.iter(|| black_box(&one).encode()));
    group.bench_function("decode", |b| b.iter(|| Obligation::decode(black_box(&bytes)).unwrap()));
    group.bench_function("digest", |b| b.iter(|| black_box(&one).digest()));
    group.bench_function("to_json", |b| b.iter(|| serde_json::to_vec(black_box(&one)).unwrap()));
    let json = serde_json::to_vec(&one).unwrap();
    group.bench_function("from_json", |b| {
        b.iter(|| serde_json::from_slice::<Obligation>(black_box(&json)).unwrap())
    });
    group.finish();
}

fn frames(c: &mut Criterion) {
    let count = FRAME_LEN_TARGET / (obligation(0).encode().len() + 4);
    let items: Vec<_> = (0..count as u64).map(|n| obligation(n).encode()).collect();
    let offers = Frame::Offers { first_ref: 7, items };
    // Every other offer of a window of 2,048: the worst that ranges have to code.
    let refs = (0..1024).map(|n| RefRange { first: n * 2, count: 1 }).collect();
    let acks = Frame::AckRuns(vec![AckRun {
        status: AckStatus::Applied,
        acked_at: Time::from_ms(1_800_000_000_000),
        reason: None,
        refs,
    }]);
    for (name, frame, elements) in [("offers", offers, count as u64), ("ack_runs", acks, 1024)] {
        let bytes = frame.encode();
        let mut group = c.benchmark_group(format!("frame/{name}"));
        group.throughput(Throughput::Elements(elements));
        group.bench_function("encode", |b| b.iter(|| black_box(&frame).encode()));
        group.bench_function("decode", |b| {
            b.iter_batched(
                || bytes.clone(),
                |bytes| Frame::decode(black_box(bytes)).unwrap(),
                BatchSize::SmallInput,
            );
        });
        group.finish();
    }
}

criterion_group!(benches, obligations, frames);
criterion_main!(benches);
