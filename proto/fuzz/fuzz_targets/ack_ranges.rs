//! WR-1: a set of references has one coding, and only that is read.
#![no_main]

use abhyasa_proto::ack::{AckRun, AckStatus, RefRange};
use abhyasa_proto::frame::Frame;
use abhyasa_proto::time::Time;
use std::collections::BTreeSet;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // Three bytes a range: whether a run begins, the gap or jump to it, how many.
    let mut runs: Vec<Vec<RefRange>> = Vec::new();
    for chunk in data.chunks_exact(3).take(64) {
        if runs.is_empty() || chunk[0] & 7 == 0 {
            runs.push(Vec::new());
        }
        let base = if chunk[0] & 0x80 == 0 { 0 } else { u64::MAX - 255 };
        let range = RefRange { first: base + u64::from(chunk[1]), count: u64::from(chunk[2] & 15) };
        runs.last_mut().expect("one was pushed").push(range);
    }
    let whole = |range: &RefRange| range.first.checked_add(range.count.wrapping_sub(1)).is_some();
    let sound = runs.iter().flatten().all(|range| range.count > 0 && whole(range));
    let expected = sound && !runs.is_empty() && {
        let sets: Vec<Vec<u64>> =
            runs.iter().map(|run| run.iter().flat_map(|range| range.iter()).collect()).collect();
        let all = sets.concat();
        BTreeSet::from_iter(&all).len() == all.len()
            && runs.iter().zip(sets).all(|(run, set)| RefRange::collect(set) == *run)
    };
    let frame = Frame::AckRuns(
        runs.into_iter()
            .map(|refs| AckRun {
                status: AckStatus::Applied,
                acked_at: Time::from_ms(0),
                reason: None,
                refs,
            })
            .collect(),
    );
    assert_eq!(Frame::decode(frame.encode()).is_ok(), expected);
});
