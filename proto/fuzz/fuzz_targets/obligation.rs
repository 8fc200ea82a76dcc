//! WR-1: what is stored or sent by itself is written back as it was read.
#![no_main]

use abhyasa_proto::ack::CustodyAck;
use abhyasa_proto::obligation::Obligation;
use abhyasa_proto::payload::Payload;
use abhyasa_proto::safe_action::SafeAction;
use bytes::Bytes;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(obligation) = Obligation::decode(&bytes) {
        assert_eq!(obligation.encode(), bytes);
        assert!(obligation.check().is_ok());
        assert!(serde_json::to_value(&obligation).is_ok());
    }
    if let Ok(ack) = CustodyAck::decode(&bytes) {
        assert_eq!(ack.encode(), bytes);
    }
    if let Ok(action) = SafeAction::decode(&bytes) {
        assert_eq!(action.encode(), bytes);
    }
    if let Ok(payload) = Payload::decode(bytes) {
        for key in payload.to_json().keys() {
            assert!(payload.get(key).is_some());
        }
    }
});
