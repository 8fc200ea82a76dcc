//! Instructions of the hot paths under callgrind. Each has a limit, a tenth above what it took when the
//! limit was set: a change that goes beyond fails, and one that means to moves the limit.
//!
//! Valgrind has no SHA instructions: of the steps that take a digest, about 20,000 instructions an
//! obligation are SHA-256 in software, which a processor that has them does in a few hundred.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

#[path = "../../common/core.rs"]
mod machine;
#[path = "../../common/wire.rs"]
mod wire;

use bytes::Bytes;
use gungraun::{
    Callgrind, CallgrindMetrics, EventKind, LibraryBenchmarkConfig, library_benchmark,
    library_benchmark_group, main,
};
use machine::{BATCH, Core, acks, offers};
use proto::custody::Input;
use proto::frame::Frame;
use proto::obligation::Obligation;
use proto::step::Output;
use std::hint::black_box;
use wire::{full_acks, full_offers, obligation};

fn encoded() -> Bytes {
    obligation(1).encode()
}

fn encoded_offers() -> Bytes {
    full_offers().encode()
}

fn encoded_acks() -> Bytes {
    full_acks().encode()
}

fn limit(instructions: u64) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::default();
    callgrind.hard_limits([(CallgrindMetrics::SingleEvent(EventKind::Ir), instructions)]);
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

#[library_benchmark]
#[bench::one(args = (1), setup = obligation, config = limit(1_650))]
fn encode(one: Obligation) -> Bytes {
    black_box(&one).encode()
}

#[library_benchmark]
#[bench::one(args = (), setup = encoded, config = limit(5_050))]
fn decode(bytes: Bytes) -> Obligation {
    Obligation::decode(black_box(&bytes)).unwrap()
}

#[library_benchmark]
#[bench::offers(args = (), setup = full_offers, config = limit(63_500))]
#[bench::acks(args = (), setup = full_acks, config = limit(125_000))]
fn frame_encode(frame: Frame) -> Bytes {
    black_box(&frame).encode()
}

#[library_benchmark]
#[bench::offers(args = (), setup = encoded_offers, config = limit(47_000))]
#[bench::acks(args = (), setup = encoded_acks, config = limit(293_000))]
fn frame_decode(bytes: Bytes) -> Frame {
    Frame::decode(black_box(bytes)).unwrap()
}

/// A core that has gone round once, so that nothing is counted which only a first step does.
fn custodian() -> (Core, Input) {
    let mut core = Core::new("custodian", "receiver");
    let first = core.next;
    let drafts = core.drafts();
    core.input(drafts);
    core.input(acks(first));
    core.pass();
    let drafts = core.drafts();
    (core, drafts)
}

fn issued() -> (Core, Input) {
    let (mut core, drafts) = custodian();
    core.input(drafts);
    (core, acks(BATCH))
}

fn offered() -> (Core, Input) {
    let (mut sender, drafts) = custodian();
    let offers = offers(sender.input(drafts));
    (Core::new("receiver", "custodian"), offers)
}

fn offered_again() -> (Core, Input) {
    let (mut core, offers) = offered();
    core.input(offers.clone());
    (core, offers)
}

// One step of 1,024 obligations, from its input to its outputs.
#[library_benchmark]
#[bench::issue(args = (), setup = custodian, config = limit(12_870_000))]
#[bench::acked(args = (), setup = issued, config = limit(33_600_000))]
#[bench::apply(args = (), setup = offered, config = limit(45_200_000))]
#[bench::duplicate(args = (), setup = offered_again, config = limit(32_100_000))]
fn step((mut core, input): (Core, Input)) -> (Core, Vec<Output>) {
    let outputs = core.input(black_box(input));
    (core, outputs)
}

library_benchmark_group!(name = codec, benchmarks = [encode, decode, frame_encode, frame_decode]);
library_benchmark_group!(name = machines, benchmarks = step);

main!(library_benchmark_groups = [codec, machines]);
