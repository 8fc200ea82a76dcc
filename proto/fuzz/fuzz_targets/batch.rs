//! WR-1: a batch that is read is written back the same, and so is each item in it that is one of ours.
#![no_main]

use abhyasa_proto::batch::{Batch, Hello, Refusal, Statement};
use abhyasa_proto::fanout::Template;
use bytes::Bytes;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(batch) = Batch::decode(&Bytes::copy_from_slice(data)) else { return };
    assert_eq!(batch.encode(), data);
    if let Ok(statement) = Statement::decode(&batch.signed) {
        assert_eq!(statement.encode(), batch.signed);
    }
    for item in batch.items {
        if let Ok(hello) = Hello::decode(&item) {
            assert_eq!(hello.encode(), item);
        }
        if let Ok(refusal) = Refusal::decode(&item) {
            assert_eq!(refusal.encode(), item);
        }
        if let Ok(template) = Template::decode(&item) {
            assert_eq!(template.encode(), item);
        }
    }
});
