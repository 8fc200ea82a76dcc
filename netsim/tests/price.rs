//! Study of the price, small: what it counts is counted, on real disks and sockets.
#![cfg(feature = "node")]
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use netsim::price::{PriceOptions, PriceRow, Way, price};

#[test]
fn ab1_one_obligation_costs_its_durable_writes_and_best_effort_none() {
    let options =
        PriceOptions { rounds: 1, seconds: 0.1, in_flight: vec![1, 16], ..PriceOptions::default() };
    let price = price(&options, |_| {}).unwrap();
    assert_eq!((price.rows.len(), price.figures.len()), (6, 6));
    assert!(!price.interrupted && price.fdatasync_p50_us > 0.0);
    let row = |in_flight: usize, way: Way| -> &PriceRow {
        price.rows.iter().find(|row| row.in_flight == in_flight && row.way == way).unwrap()
    };
    let one = row(1, Way::Custody);
    // The pending record and the outcome; the effect with its ledger entry.
    assert!((1.9..=2.1).contains(&one.custodian_fsyncs), "{one:?}");
    assert!((0.9..=1.1).contains(&one.receiver_fsyncs), "{one:?}");
    for in_flight in [1, 16] {
        for way in Way::ALL {
            let row = row(in_flight, way);
            assert!(row.transfers > 0 && row.applied_p50_us > 0.0, "{row:?}");
            assert!(row.wire_bytes > 256.0 && row.datagrams > 0.0, "{row:?}");
            assert_eq!(row.acked_p50_us.is_some(), way != Way::BestEffort, "{row:?}");
            if way != Way::Custody {
                assert_eq!((row.custodian_fsyncs, row.receiver_fsyncs), (0.0, 0.0), "{row:?}");
            }
        }
    }
    assert!(row(16, Way::Custody).custodian_fsyncs < one.custodian_fsyncs, "commits are shared");
}
