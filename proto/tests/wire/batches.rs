//! What a peer or a relay may put on a track that is not ours.

use super::samples;
use abhyasa_proto::ack::Reason;
use abhyasa_proto::batch::{Batch, Hello, Refusal, Statement};
use abhyasa_proto::cbor::{CborError, Writer};
use abhyasa_proto::fanout::Template;
use abhyasa_proto::frame::RefuseCode;
use abhyasa_proto::limits::{FRAME_LEN_MAX, ITEM_LEN_MAX, OBLIGATION_LEN_MAX};
use bytes::Bytes;

/// A statement with one member replaced by `with`.
fn statement(key: u64, with: &dyn Fn(&mut Writer)) -> Result<Statement, CborError> {
    let mut w = Writer::default();
    w.map(8);
    for member in 1..=8 {
        w.uint(member);
        match member {
            _ if member == key => with(&mut w),
            2 => _ = w.text("a"),
            3 => _ = w.text("b"),
            6 => _ = w.bytes(&[0; 32]),
            7 => _ = w.text("1f.2"),
            8 => _ = w.text("0.4"),
            _ => _ = w.uint(1),
        }
    }
    Statement::decode(&w.into_vec())
}

#[test]
fn wr1_statements_say_what_we_know_and_no_more() {
    assert!(statement(0, &|_| ()).is_ok(), "the table's own statement is read");
    for (key, with, why) in [
        (1, &(|w: &mut Writer| _ = w.uint(2)) as &dyn Fn(&mut Writer), "another version"),
        (1, &|w| _ = w.text("1"), "a version in text"),
        (2, &|w| _ = w.text(""), "no issuer"),
        (2, &|w| _ = w.text("a\n"), "an issuer with a control character"),
        (3, &|w| _ = w.text("group:"), "a group without a name"),
        (3, &|w| _ = w.text("group:.eu"), "a group with a dot first"),
        (3, &|w| _ = w.text("group:EU"), "a group in upper case"),
        (4, &|w| _ = w.uint(11), "unknown content"),
        (5, &|w| _ = w.uint(4097), "more items than a batch may hold"),
        (5, &|w| _ = w.int(-1), "fewer than none"),
        (6, &|w| _ = w.bytes(&[0; 31]), "a short root"),
        (6, &|w| _ = w.text(&"0".repeat(32)), "a root in text"),
        (7, &|w| _ = w.text("01.2"), "an epoch with another spelling"),
        (8, &|w| _ = w.text("4.4"), "a share that is none"),
    ] {
        assert!(statement(key, with).is_err(), "{why} was read");
    }
    let mut w = Writer::default();
    w.map(1).uint(1).uint(1);
    assert_eq!(Statement::decode(&w.into_vec()), Err(CborError::Missing { key: 2 }));
}

#[test]
fn bd1_batches_are_limited_before_anything_is_kept() {
    let decode = |write: &dyn Fn(&mut Writer)| {
        let mut w = Writer::default();
        write(&mut w);
        Batch::decode(&w.into_bytes())
    };
    assert!(decode(&|w| _ = w.array(2).bytes(b"s").array(1).bytes(b"i")).is_ok());
    for (write, why) in [
        (&(|w: &mut Writer| _ = w.array(1).bytes(b"s")) as &dyn Fn(&mut Writer), "no items"),
        (&|w| _ = w.array(3).bytes(b"s").array(0).uint(0), "a third part"),
        (&|w| _ = w.array(2).text("s").array(0), "a signature in text"),
        (&|w| _ = w.array(2).bytes(b"").array(0), "no signature"),
        (&|w| _ = w.array(2).bytes(b"s").array(1).bytes(b""), "an empty item"),
        (&|w| _ = w.array(2).bytes(b"s").array(1).text("i"), "an item in text"),
        (&|w| _ = w.array(2).bytes(b"s").array(0).uint(0), "something after it"),
        (&|w| _ = w.map(1).bytes(b"s").array(0), "a map"),
    ] {
        assert!(decode(write).is_err(), "{why} was read");
    }
    // The most items of the largest size that a batch holds, and one byte over the whole.
    let filled = |last: usize| {
        let mut items =
            vec![Bytes::from(vec![7; ITEM_LEN_MAX]); FRAME_LEN_MAX / (ITEM_LEN_MAX + 5)];
        items.push(Bytes::from(vec![7; last]));
        Batch { signed: Bytes::from_static(b"s"), items }.encode()
    };
    let room = FRAME_LEN_MAX - filled(1000).len() + 1000;
    let room = room - (filled(room).len() - FRAME_LEN_MAX);
    assert_eq!(filled(room).len(), FRAME_LEN_MAX);
    assert!(Batch::decode(&filled(room)).is_ok());
    let long = Batch::decode(&filled(room + 1));
    assert!(matches!(long, Err(CborError::TooLarge { what: "batch", .. })), "{long:?}");
}

#[test]
fn wr1_refusals_name_items_that_a_batch_can_hold() {
    let read = |ranges: &[(u64, u64)]| {
        let refusal = Refusal {
            root: [7; 32],
            indexes: samples::ranges(ranges),
            code: RefuseCode::Malformed,
            retry_after_ms: 0,
            text: Reason::default(),
        };
        Refusal::decode(&refusal.encode())
    };
    assert!(read(&[(0, 4096)]).is_ok());
    assert!(read(&[(0, 1), (4095, 1)]).is_ok());
    for (ranges, why) in [
        (&[][..], "no item"),
        (&[(0, 4097)], "one past the last"),
        (&[(4096, 1)], "one past the last, alone"),
        (&[(u64::MAX, 1)], "far past the last"),
        (&[(0, 2), (1, 1)], "overlap"),
        (&[(3, 1), (1, 1)], "going back"),
    ] {
        assert!(read(ranges).is_err(), "{why} was read");
    }
    assert!(Hello::decode(&[0xa1, 1, 0x20]).is_err(), "room for fewer than none");
}

#[test]
fn wr1_templates_keep_the_limits_of_obligations() {
    let read = |gid: &str, deadline: u64, retries: u64, at: u64| {
        let mut w = Writer::default();
        w.map(6).uint(1).text(gid).uint(2).text("k").uint(3).raw(&[0xa0]);
        w.uint(4).uint(deadline).uint(5).uint(retries).uint(6).uint(at);
        Template::decode(&w.into_bytes())
    };
    assert!(read("g", 1, 0, 0).is_ok());
    for (gid, deadline, retries, at, why) in [
        ("", 1, 0, 0, "no group id"),
        ("a~b", 1, 0, 0, "the mark in a group id"),
        ("g", 0, 0, 0, "a deadline at once"),
        ("g", 316_224_001, 0, 0, "a deadline too far"),
        ("g", 1, 100_001, 0, "too many retries"),
        ("g", 1, 1 << 40, 0, "retries past 32 bits"),
        ("g", 1, 0, 253_402_207_200_001, "a time past the year 9999"),
    ] {
        assert!(read(gid, deadline, retries, at).is_err(), "{why} was read");
    }
    let long = Template::decode(&vec![0xa0; OBLIGATION_LEN_MAX + 1].into());
    assert!(matches!(long, Err(CborError::TooLarge { what: "template", .. })), "{long:?}");
}
