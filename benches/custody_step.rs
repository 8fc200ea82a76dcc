//! What the core costs without disk and network: steps of a custodian and of a receiver over a store
//! in memory.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "common/core.rs"]
mod common;

use common::{BATCH, Core, acks, offers};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use proto::ack::{AckRun, AckStatus};
use proto::custody::Input;
use proto::step::Output;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long `core` takes for inputs, and what came out last.
fn timed(core: &mut Core, inputs: impl IntoIterator<Item = Input>) -> (Duration, Vec<Output>) {
    let begun = Instant::now();
    let mut outputs = Vec::new();
    for input in inputs {
        outputs = black_box(core.input(input));
    }
    (begun.elapsed(), outputs)
}

fn custodian(c: &mut Criterion) {
    let mut group = c.benchmark_group("custodian");
    group.throughput(Throughput::Elements(BATCH));
    let mut core = Core::new("custodian", "receiver");
    group.bench_function("issue_to_applied", |b| {
        b.iter_custom(|rounds| {
            let round = |_| {
                core.pass();
                let first = core.next;
                let inputs = [core.drafts(), acks(first)];
                let (took, _) = timed(&mut core, inputs);
                assert_eq!(core.custody.pending(), 0, "each is applied");
                took
            };
            (0..rounds).map(round).sum()
        });
    });
    group.finish();
}

fn receiver(c: &mut Criterion) {
    let mut group = c.benchmark_group("receiver");
    group.throughput(Throughput::Elements(BATCH));
    let mut custodian = Core::new("custodian", "receiver");
    let mut core = Core::new("receiver", "custodian");
    let mut fresh = || {
        custodian.pass();
        let first = custodian.next;
        let issue = custodian.drafts();
        let offered = offers(custodian.input(issue));
        custodian.input(acks(first));
        offered
    };
    let acked = |outputs: &[Output]| {
        let all = |run: &AckRun| {
            run.status == AckStatus::Applied
                && run.refs.iter().map(|range| range.count).sum::<u64>() == BATCH
        };
        outputs
            .iter()
            .any(|output| matches!(output, Output::AckRuns { runs, .. } if runs.iter().all(all)))
    };
    group.bench_function("apply", |b| {
        b.iter_custom(|rounds| {
            let round = |_| {
                core.pass();
                let (took, outputs) = timed(&mut core, [fresh()]);
                assert!(acked(&outputs), "each is applied");
                took
            };
            (0..rounds).map(round).sum()
        });
    });
    let again = fresh();
    core.input(again.clone());
    group.bench_function("duplicate", |b| {
        b.iter_custom(|rounds| {
            let round = |_| {
                let (took, outputs) = timed(&mut core, [again.clone()]);
                assert!(acked(&outputs), "each is acked again");
                took
            };
            (0..rounds).map(round).sum()
        });
    });
    group.finish();
}

criterion_group!(benches, custodian, receiver);
criterion_main!(benches);
