//! What comes as JSON is within the limits of CBOR, and the same when it comes back.
#![no_main]

use abhyasa_proto::ack::CustodyAck;
use abhyasa_proto::obligation::Obligation;
use abhyasa_proto::payload::Payload;
use abhyasa_proto::safe_action::SafeAction;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{from_slice, from_value, to_value};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(payload) = same_again::<Payload>(data) {
        assert_eq!(Payload::decode(payload.as_bytes().clone()), Ok(payload));
    }
    if let Some(obligation) = same_again::<Obligation>(data) {
        assert_eq!(Obligation::decode(&obligation.encode()), Ok(obligation));
    }
    if let Some(ack) = same_again::<CustodyAck>(data) {
        assert_eq!(CustodyAck::decode(&ack.encode()), Ok(ack));
    }
    if let Some(action) = same_again::<SafeAction>(data) {
        assert_eq!(SafeAction::decode(&action.encode()), Ok(action));
    }
});

fn same_again<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(
    json: &[u8],
) -> Option<T> {
    let read: T = from_slice(json).ok()?;
    let again: T =
        from_value(to_value(&read).expect("it came from JSON")).expect("it is in the limits");
    assert_eq!(again, read);
    Some(read)
}
