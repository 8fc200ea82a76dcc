//! The wire: bytes against the schema, the golden vectors, and what hostile peers send.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing
)]

mod arbitrary;
mod batches;
mod cddl;
mod diag;
mod hostile;
mod json;
mod properties;
mod samples;
mod vectors;

use abhyasa_proto::ack::CustodyAck;
use abhyasa_proto::batch::{Batch, Hello, Refusal, Sealed, Statement};
use abhyasa_proto::cbor::CborError;
use abhyasa_proto::fanout::Template;
use abhyasa_proto::frame::Frame;
use abhyasa_proto::obligation::Obligation;
use abhyasa_proto::payload::Payload;
use abhyasa_proto::safe_action::SafeAction;
use bytes::Bytes;

/// Decodes a document of the schema's `rule` and encodes it again.
pub fn recode(rule: &str, bytes: &Bytes) -> Result<Bytes, CborError> {
    match rule {
        "frame" => Frame::decode(bytes.clone()).map(|frame| frame.encode()),
        "obligation" => Obligation::decode(bytes).map(|obligation| obligation.encode()),
        "custody-ack" => CustodyAck::decode(bytes).map(|ack| ack.encode()),
        "safe-action" => SafeAction::decode(bytes).map(|action| action.encode()),
        "payload" => Payload::decode(bytes.clone()).map(|payload| payload.as_bytes().clone()),
        "batch" => Batch::decode(bytes).map(|batch| batch.encode()),
        "statement" => Statement::decode(bytes).map(|statement| statement.encode()),
        "batch-hello" => Hello::decode(bytes).map(|hello| hello.encode()),
        "sealed" => Sealed::decode(bytes).map(|sealed| sealed.encode()),
        "batch-refusal" => Refusal::decode(bytes).map(|refusal| refusal.encode()),
        "template" => Template::decode(bytes).map(|template| template.encode()),
        _ => panic!("{rule} is no rule of the schema"),
    }
}

pub fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap())
        .collect()
}
