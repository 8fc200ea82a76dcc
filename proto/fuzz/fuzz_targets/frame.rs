//! WR-1: a frame that is read is written back the same, and so is each obligation in it.
#![no_main]

use abhyasa_proto::frame::Frame;
use abhyasa_proto::obligation::Obligation;
use bytes::Bytes;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(frame) = Frame::decode(Bytes::copy_from_slice(data)) else { return };
    assert_eq!(frame.encode(), data);
    if let Frame::Offers { items, .. } | Frame::BestEffort { items } = frame {
        for item in items {
            if let Ok(obligation) = Obligation::decode(&item) {
                assert_eq!(obligation.encode(), item);
            }
        }
    }
});
