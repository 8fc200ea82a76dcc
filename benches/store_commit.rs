//! What the disk costs: one commit with its fdatasync, by obligations in the batch.
//!
//! The store is below `target`, so the figures are those of the disk that the repository is on.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

use abhyasa::store::{FjallStore, Storage as _, StoreOptions};
use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use proto::id::AgentId;
use proto::record::num_key;
use proto::store::{Table, Write};
use std::time::Duration;

/// Bytes of one pending record: a payload of 256 bytes and its envelope.
const RECORD_LEN: usize = 380;
/// Obligations that are pending; with each new one the oldest ends, so that the store does not grow.
const PENDING: u64 = 65_536;

fn commits(c: &mut Criterion) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let owner = AgentId::new("spiffe://bench.local/node").unwrap();
    let store = FjallStore::open(dir.path(), &owner, &StoreOptions::default()).unwrap();
    let record = Bytes::from(vec![7u8; RECORD_LEN]);
    let mut next = 0u64;
    let mut group = c.benchmark_group("store_commit");
    group
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    for obligations in [1u64, 16, 64, 256, 1024, 4096] {
        group.throughput(Throughput::Elements(obligations));
        group.bench_function(BenchmarkId::new("obligations", obligations), |b| {
            let batch = || -> Vec<Write> {
                let from = next;
                next += obligations;
                let write = |num, value| Write { table: Table::Pending, key: num_key(num), value };
                let ends = from.saturating_sub(PENDING)..next.saturating_sub(PENDING);
                let issued = (from..next).map(|num| write(num, Some(record.clone())));
                issued.chain(ends.map(|num| write(num, None))).collect()
            };
            b.iter_batched(
                batch,
                |writes| store.commit(&writes, true).unwrap(),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, commits);
criterion_main!(benches);
