//! What the wire costs: obligations and full frames, encoded and decoded.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "common/wire.rs"]
mod common;

use common::{full_acks, full_count, full_offers, obligation};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use proto::frame::Frame;
use proto::obligation::Obligation;
use std::hint::black_box;

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
    for (name, frame, elements) in
        [("offers", full_offers(), full_count()), ("ack_runs", full_acks(), 1024)]
    {
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
