//! What a peer may send that is not ours: each must be refused, cheaply, and never panic.

use super::properties::RULES;
use super::{hex, recode, samples};
use abhyasa_proto::ack::AckRun;
use abhyasa_proto::cbor::{CborError, Writer};
use abhyasa_proto::frame::Frame;
use abhyasa_proto::limits::{
    BATCH_COUNT_MAX, FRAME_LEN_MAX, OBLIGATION_LEN_MAX, PAYLOAD_ITEMS_MAX, PAYLOAD_LEN_MAX,
};
use abhyasa_proto::obligation::Obligation;
use abhyasa_proto::payload::{PAYLOAD_DEPTH_MAX, Payload};
use bytes::Bytes;

/// RFC 8949 Appendix F.1: examples of CBOR that is not well-formed, all of them.
const NOT_WELL_FORMED: &str = "
18; 19; 1a; 1b; 1901; 1a0102; 1b01020304050607; 38; 58; 78; 98; 9a01ff00; b8; d8; f8; f900; fa0000;
fb000000; 41; 61; 5affffffff00; 5bffffffffffffffff010203; 7affffffff00; 7b7fffffffffffffff010203;
81; 818181818181818181; 8200; a1; a20102; a100; a2000000; c0; 5f4100; 7f6100; 9f; 9f0102; bf;
bf01020102; 819f; 9f8000; 9f9f9f9f9fffffffff; 9f819f819f9fffffff; 1c; 1d; 1e; 3c; 3d; 3e; 5c; 5d;
5e; 7c; 7d; 7e; 9c; 9d; 9e; bc; bd; be; dc; dd; de; fc; fd; fe; f800; f801; f818; f81f; 5f00ff;
5f21ff; 5f6100ff; 5f80ff; 5fa0ff; 5fc000ff; 5fe0ff; 7f4100ff; 5f5f4100ffff; 7f7f6100ffff; ff; 81ff;
8200ff; a1ff; a1ff00; a100ff; a20000ff; 9f81ff; 9f829f819f9fffffffff; bf00ff; bf000000ff; 1f; 3f; df";

/// Well-formed, and another spelling of something, or nothing we speak (RFC 8949 §4.2.1).
const NOT_DETERMINISTIC: &[(&str, &str)] = &[
    ("1800", "0 in two bytes"),
    ("1817", "23 in two bytes"),
    ("1900ff", "255 in three bytes"),
    ("1a0000ffff", "65535 in five bytes"),
    ("1b00000000ffffffff", "2^32-1 in nine bytes"),
    ("3800", "-1 in two bytes"),
    ("780161", "a text length in two bytes"),
    ("580100", "a byte string length in two bytes"),
    ("980100", "an array length in two bytes"),
    ("b801616100", "a map length in two bytes"),
    ("fa3f800000", "1.0 in five bytes"),
    ("fb3ff0000000000000", "1.0 in nine bytes"),
    ("fb3ff8000000000000", "1.5 in nine bytes"),
    ("fb40f86a0000000000", "100000.0 in nine bytes"),
    ("f97e00", "NaN"),
    ("f97e01", "NaN with a payload"),
    ("fa7fc00000", "NaN in five bytes"),
    ("fb7ff8000000000000", "NaN in nine bytes"),
    ("f97c00", "infinity"),
    ("f9fc00", "minus infinity"),
    ("fa7f800000", "infinity in five bytes"),
    ("5fff", "indefinite bytes"),
    ("7fff", "indefinite text"),
    ("9fff", "an indefinite array"),
    ("bfff", "an indefinite map"),
    ("c000", "a tag"),
    ("c2420100", "a bignum"),
    ("d9d9f700", "the self-described tag"),
    ("c0c0c0c0c0c0c0c000", "a chain of tags"),
    ("f7", "undefined"),
    ("e0", "simple value 0"),
    ("f3", "simple value 19"),
    ("f820", "simple value 32"),
    ("f8ff", "simple value 255"),
    ("3b8000000000000000", "-2^63-1"),
    ("3bffffffffffffffff", "-2^64"),
    ("61ff", "text that is not UTF-8"),
    ("62c328", "text with a broken sequence"),
    ("63eda080", "text with a surrogate"),
    ("62c0af", "text in an overlong form"),
    ("64f4908080", "text beyond U+10FFFF"),
    ("a16161a2616100616100", "a key twice, nested"),
    ("a16161a2616200616100", "keys out of order, nested"),
    ("a2626161006162 00", "the longer key first"),
    ("a10000", "an integer key"),
    ("a1810000", "an array as key"),
    ("a1f600", "null as key"),
];

fn payload(bytes: &[u8]) -> Result<Payload, CborError> {
    Payload::decode(Bytes::copy_from_slice(bytes))
}

fn frame(bytes: &[u8]) -> Result<Frame, CborError> {
    Frame::decode(Bytes::copy_from_slice(bytes))
}

/// An obligation with `payload` and `deadline` spliced in as they are.
fn obligation(payload: &[u8], deadline: &[u8]) -> Result<Obligation, CborError> {
    let mut w = Writer::default();
    w.map(7).uint(0).text("a").uint(1).text("k").uint(2).text("t").uint(3).raw(payload);
    w.uint(4).raw(deadline).uint(5).uint(0).uint(6).uint(0);
    Obligation::decode(&w.into_bytes())
}

/// `item` wherever a value of any type could stand.
fn refused_everywhere(item: &[u8], why: &str) {
    for rule in RULES {
        let bytes = Bytes::copy_from_slice(item);
        assert!(recode(rule, &bytes).is_err(), "{why} was read as {rule}");
    }
    let member = [&[0xa1, 0x61, b'a'], item].concat();
    let in_array = [&[0xa1, 0x61, b'a', 0x81], item].concat();
    for body in [member, in_array, item.to_vec()] {
        assert!(payload(&body).is_err(), "{why} was read inside a payload");
        assert!(obligation(&body, &[1]).is_err(), "{why} was read as an obligation's payload");
    }
    assert!(obligation(&[0xa0], item).is_err(), "{why} was read as a deadline");
    for head in
        ["a1 00", "a2 00 06 01", "a3 00 01 01 00 02 81", "a3 00 06 01 00 02", "a2 00 03 01 81"]
    {
        let bytes = [&hex(head), item].concat();
        assert!(frame(&bytes).is_err(), "{why} was read in a frame after {head}");
    }
}

#[test]
fn the_templates_themselves_are_read() {
    assert_eq!(obligation(&[0xa0], &[1]).unwrap().deadline_seconds, 1);
    assert!(payload(&hex("a1 61 61 81 00")).is_ok());
    assert_eq!(
        frame(&hex("a3 00 06 01 00 02 61 61")).unwrap(),
        Frame::Probe { nonce: 0, id: Some(samples::id("a")) }
    );
}

#[test]
fn wr1_not_well_formed_is_refused() {
    let items: Vec<_> = NOT_WELL_FORMED.split(';').map(hex).collect();
    assert_eq!(items.len(), 94);
    for item in items {
        refused_everywhere(&item, &format!("{item:02x?}"));
    }
}

#[test]
fn wr1_other_spellings_are_refused() {
    for (item, why) in NOT_DETERMINISTIC {
        let item = hex(item);
        let member = [&[0xa1, 0x61, b'a'][..], &item].concat();
        assert!(payload(&member).is_err(), "{why} was read inside a payload");
        assert!(obligation(&member, &[1]).is_err(), "{why} was read inside an obligation");
        assert!(frame(&[&hex("a2 00 06 01")[..], &item].concat()).is_err(), "{why} was a nonce");
    }
}

#[test]
fn wr1_a_weight_delta_that_is_no_number_is_refused() {
    let with_delta = |delta: &str| {
        let mut w = Writer::default();
        w.map(2).text("weight_key").text("w").text("weight_delta").raw(&hex(delta));
        obligation(&w.into_vec(), &[1])
    };
    assert!(with_delta("f9 b4 00").is_ok(), "-0.25 is a delta");
    for (delta, why) in
        [("f9 7e 00", "NaN"), ("f9 fc 00", "-inf"), ("fa ff 80 00 00", "-inf, long")]
    {
        assert!(
            matches!(with_delta(delta), Err(CborError::NotDeterministic { .. })),
            "{why} was taken as weight_delta"
        );
    }
}

#[test]
fn bd1_nesting_ends_at_the_limit() {
    let nested = |levels: usize, open: &str| {
        let mut bytes = hex("a1 61 61");
        (1..levels).for_each(|_| bytes.extend(hex(open)));
        bytes.push(0);
        bytes
    };
    for open in ["81", "a1 61 61"] {
        assert!(payload(&nested(PAYLOAD_DEPTH_MAX, open)).is_ok(), "{open} at the limit");
        let deep = payload(&nested(PAYLOAD_DEPTH_MAX + 1, open));
        assert!(matches!(deep, Err(CborError::TooLarge { what: "payload depth", .. })), "{deep:?}");
    }
    for bomb in ["81", "a1 61 61", "c0", "9f", "bf 61 61", "d9 d9 f7"] {
        let bomb = hex(bomb).repeat(PAYLOAD_LEN_MAX / 4);
        refused_everywhere(&bomb, "a bomb");
        refused_everywhere(&bomb[..PAYLOAD_LEN_MAX / 4], "a small bomb");
    }
}

#[test]
fn bd1_declared_lengths_are_checked_before_anything_is_allocated() {
    for head in [
        "9b 7f ff ff ff ff ff ff ff",
        "9b ff ff ff ff ff ff ff ff",
        "9a 7f ff ff ff",
        "9a 00 0f ff ff",
        "bb 7f ff ff ff ff ff ff ff",
        "ba 7f ff ff ff",
        "5b 7f ff ff ff ff ff ff ff",
        "5a 7f ff ff ff",
        "7b 7f ff ff ff ff ff ff ff",
        "7a 7f ff ff ff",
        "99 ff ff",
        "b9 ff ff",
        "59 ff ff",
        "79 ff ff",
    ] {
        refused_everywhere(&hex(head), head);
        refused_everywhere(&[hex(head), vec![0; 64]].concat(), head);
        let read = payload(&[hex("a1 61 61"), hex(head)].concat());
        assert!(matches!(read, Err(CborError::TooLarge { .. })), "{head}: {read:?}");
    }
    let long = vec![0xa0; FRAME_LEN_MAX + 1];
    assert_eq!(
        frame(&long),
        Err(CborError::TooLarge {
            what: "frame",
            len: FRAME_LEN_MAX + 1,
            max: FRAME_LEN_MAX,
            at: 0
        })
    );
    let text = |len: usize| {
        let mut w = Writer::default();
        w.map(1).text("a").text(&"x".repeat(len));
        w.into_vec()
    };
    // The heads of map, key and text and the key itself take 6 bytes.
    assert!(payload(&text(PAYLOAD_LEN_MAX - 6)).is_ok());
    assert!(obligation(&text(PAYLOAD_LEN_MAX - 6), &[1]).is_ok());
    assert!(payload(&text(PAYLOAD_LEN_MAX)).is_err());
    assert!(obligation(&text(PAYLOAD_LEN_MAX), &[1]).is_err());
    let too_long = Bytes::from(vec![0xa0; OBLIGATION_LEN_MAX + 1]);
    assert!(matches!(
        Obligation::decode(&too_long),
        Err(CborError::TooLarge { what: "obligation", .. })
    ));
    let mut w = Writer::default();
    w.map(2).uint(0).uint(9).uint(1).array(1).bytes(&too_long);
    assert!(matches!(frame(&w.into_vec()), Err(CborError::TooLarge { what: "obligation", .. })));
}

#[test]
fn bd1_counts_are_limited() {
    let array = |len: usize| {
        let mut w = Writer::default();
        w.map(1).text("a").array(len);
        for _ in 0..len {
            w.null();
        }
        w.into_vec()
    };
    let map = |len: usize| {
        let mut w = Writer::default();
        w.map(len);
        for i in 0..len {
            w.text(&format!("{i:04}")).null();
        }
        w.into_vec()
    };
    for make in [&array as &dyn Fn(usize) -> Vec<u8>, &map] {
        assert!(payload(&make(PAYLOAD_ITEMS_MAX)).is_ok());
        assert!(matches!(payload(&make(PAYLOAD_ITEMS_MAX + 1)), Err(CborError::TooLarge { .. })));
    }
    let queries =
        |len: usize| Frame::Query { query_ref: 0, ids: vec![samples::id("a"); len] }.encode();
    let items =
        |len: usize| Frame::BestEffort { items: vec![Bytes::from_static(&[0]); len] }.encode();
    for make in [&queries as &dyn Fn(usize) -> Bytes, &items] {
        assert!(Frame::decode(make(BATCH_COUNT_MAX)).is_ok());
        assert!(matches!(
            Frame::decode(make(BATCH_COUNT_MAX + 1)),
            Err(CborError::TooLarge { .. })
        ));
        assert!(matches!(Frame::decode(make(0)), Err(CborError::Invalid { .. })));
    }
    let offers = |first_ref| Frame::Offers { first_ref, items: vec![Bytes::new(); 2] }.encode();
    assert!(Frame::decode(offers(u64::MAX - 2)).is_ok());
    assert!(Frame::decode(offers(u64::MAX - 1)).is_err(), "references ran past 2^64 - 1");
}

#[test]
fn wr1_map_keys_are_ours_in_order_and_once() {
    let ends = |hexes: &str| frame(&hex(hexes));
    assert!(ends("a2 00 06 01 00").is_ok());
    assert_eq!(ends("a2 00 06 00 06"), Err(CborError::KeyOrder { at: 3 }));
    assert_eq!(ends("a3 00 06 01 00 01 00"), Err(CborError::KeyOrder { at: 5 }));
    assert_eq!(ends("a2 01 00 00 06"), Err(CborError::Missing { key: 0 }));
    assert_eq!(ends("a1 00 06"), Err(CborError::Missing { key: 1 }));
    assert_eq!(ends("a3 00 06 01 00 03 00"), Err(CborError::Unknown { key: 3 }));
    assert_eq!(ends("a4 00 06 01 00 02 61 61 18 63 00"), Err(CborError::Unknown { key: 99 }));
    assert_eq!(ends("a3 00 07 02 00 01 00"), Err(CborError::Missing { key: 1 }));
    assert_eq!(
        ends("a2 00 06 20 00"),
        Err(CborError::Unexpected { wanted: "an unsigned integer", at: 3 })
    );
    assert_eq!(ends("a2 00 06 01 00 00"), Err(CborError::Trailing { len: 1 }));
    assert!(ends("a2 00 0a 01 00").is_err(), "frame type 10 is unknown");
    assert!(matches!(payload(&hex("a2 61 61 00 61 61 00")), Err(CborError::KeyOrder { at: 4 })));
    assert!(matches!(payload(&hex("a2 61 62 00 61 61 00")), Err(CborError::KeyOrder { at: 4 })));
    assert!(payload(&hex("a2 61 7a 00 62 61 61 00")).is_ok(), "shorter keys come first");
}

#[test]
fn wr1_names_and_reasons_are_checked() {
    let probe = |id: &str| {
        let mut w = Writer::default();
        w.map(3).uint(0).uint(6).uint(1).uint(0).uint(2).text(id);
        frame(&w.into_vec())
    };
    for (id, why) in
        [("", "empty"), ("  \u{3000}", "blank"), ("a\0", "NUL"), ("a\u{85}", "a C1 control")]
    {
        assert!(matches!(probe(id), Err(CborError::Invalid { .. })), "an id was {why}");
    }
    assert!(probe(&"x".repeat(256)).is_ok());
    assert!(probe(&"x".repeat(257)).is_err());
    let mut w = Writer::default();
    w.map(5)
        .uint(0)
        .uint(8)
        .uint(1)
        .array(0)
        .uint(2)
        .uint(0)
        .uint(3)
        .uint(0)
        .uint(4)
        .text("two\nlines");
    assert!(matches!(frame(&w.into_vec()), Err(CborError::Invalid { what: "reason", .. })));
}

fn runs(runs: &[&[(u64, u64)]]) -> Result<Frame, CborError> {
    let runs = runs.iter().map(|refs| AckRun {
        status: abhyasa_proto::ack::AckStatus::Applied,
        acked_at: samples::at(0),
        reason: None,
        refs: samples::ranges(refs),
    });
    Frame::decode(Frame::AckRuns(runs.collect()).encode())
}

#[test]
fn wr1_ack_ranges_have_one_coding() {
    assert!(runs(&[&[(0, 1), (2, 1), (4, 5)]]).is_ok());
    assert!(runs(&[&[(u64::MAX, 1)]]).is_ok());
    assert!(runs(&[&[(0, 1), (2, 1)], &[(1, 1), (3, 2)]]).is_ok(), "runs may interleave");
    assert!(runs(&[&[(0, 1 << 20)]]).is_ok());
    for (refs, why) in [
        (&[&[][..]][..], "a run without a range"),
        (&[], "no run"),
        (&[&[(0, 0)]], "an empty range"),
        (&[&[(0, 2), (1, 1)]], "overlap"),
        (&[&[(0, 2), (0, 2)]], "the same twice"),
        (&[&[(5, 1), (2, 1)]], "going back"),
        (&[&[(0, 2), (2, 1)]], "touching"),
        (&[&[(u64::MAX, 2)]], "past the last reference"),
        (&[&[(1, u64::MAX)]], "count overflow and too many"),
        (&[&[(2, u64::MAX)]], "overflow by one"),
        (&[&[(0, (1 << 20) + 1)]], "too many references"),
        (&[&[(0, 1 << 19), (1 << 20, (1 << 19) + 1)]], "too many references in two ranges"),
        (&[&[(0, 1 << 20)], &[(1 << 30, 1)]], "too many references in two runs"),
        (&[&[(0, 4)], &[(3, 1)]], "a reference in two runs"),
        (&[&[(9, 1)], &[(0, 1), (9, 3)]], "a reference in two runs, late"),
    ] {
        assert!(matches!(runs(refs), Err(CborError::Invalid { .. })), "{why} was read");
    }
    let many: Vec<_> = (0..=BATCH_COUNT_MAX as u64).map(|i| (2 * i, 1)).collect();
    assert!(runs(&[&many[1..]]).is_ok());
    assert!(matches!(runs(&[&many]), Err(CborError::TooLarge { .. })));
    assert!(matches!(runs(&[&many[1..], &many[..1]]), Err(CborError::TooLarge { .. })));
    // A range is a pair, neither less nor more.
    assert!(frame(&hex("a5 00 08 01 81 82 00 01 02 00 03 00 04 60")).is_ok());
    assert!(frame(&hex("a5 00 08 01 81 81 00 02 00 03 00 04 60")).is_err());
    assert!(frame(&hex("a5 00 08 01 81 83 00 01 00 02 00 03 00 04 60")).is_err());
}

#[test]
fn an_item_that_is_no_obligation_does_not_spoil_its_batch() {
    let good = samples::consent_revoke().encode();
    let items = vec![good.clone(), Bytes::from_static(&[0xff]), good];
    let frame = Frame::Offers { first_ref: 0, items: items.clone() };
    let Frame::Offers { items: read, .. } = Frame::decode(frame.encode()).unwrap() else {
        panic!()
    };
    assert_eq!(read, items);
    let ok: Vec<_> = read.iter().map(|item| Obligation::decode(item).is_ok()).collect();
    assert_eq!(ok, [true, false, true]);
}
