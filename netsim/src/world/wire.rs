//! Frames as packets: how long they are, and what flipped bits do to them.

use bytes::Bytes;
use proto::ack::{AckRun, CustodyAck, RefRange};
use proto::cbor::CborError;
use proto::frame::Frame;
use proto::id::ObligationId;

/// Bytes of frames in a packet: QUIC's least packet size without headers and tag.
pub(super) const PACKET_ROOM: usize = PACKET_LEN - PACKET_OVERHEAD;
/// Bytes of a full packet.
const PACKET_LEN: usize = 1_200;
/// Bytes of a packet beside its frames: short header, stream header, tag.
pub(crate) const PACKET_OVERHEAD: usize = 40;

/// Packets a frame of `len` bytes takes.
pub(super) fn packets(len: usize) -> usize {
    len.div_ceil(PACKET_ROOM).max(1)
}

/// Bytes of the packet that is the last but `left` of a frame of `len` bytes.
pub(super) const fn packet_len(len: usize, left: usize) -> usize {
    if left > 0 {
        PACKET_LEN
    } else {
        len - len.saturating_sub(1) / PACKET_ROOM * PACKET_ROOM + PACKET_OVERHEAD
    }
}

/// Bytes of a CBOR head with this number in it.
const fn head(number: u64) -> usize {
    match number {
        0..24 => 1,
        24..0x100 => 2,
        0x100..0x1_0000 => 3,
        0x1_0000..0x1_0000_0000 => 5,
        _ => 9,
    }
}

const fn text(len: usize) -> usize {
    head(len as u64) + len
}

fn list<T>(items: &[T], one: impl Fn(&T) -> usize) -> usize {
    head(items.len() as u64) + items.iter().map(one).sum::<usize>()
}

fn refs(ranges: &[RefRange]) -> usize {
    list(ranges, |range| 1 + head(range.first) + head(range.count))
}

fn run(run: &AckRun) -> usize {
    let reason = run.reason.as_ref().map_or(0, |reason| 1 + text(reason.as_str().len()));
    // Map head, three keys, status.
    5 + head(run.acked_at.as_ms()) + refs(&run.refs) + reason
}

fn ack(ack: &CustodyAck) -> usize {
    let reason = ack.reason.as_ref().map_or(0, |reason| 1 + text(reason.as_str().len()));
    // Map head, four keys, status.
    6 + text(ack.obligation_id.as_str().len())
        + text(ack.target.as_str().len())
        + head(ack.acked_at.as_ms())
        + reason
}

fn id(id: &ObligationId) -> usize {
    text(id.as_str().len())
}

/// Bytes of a frame as it is encoded, without encoding it.
pub(super) fn frame_len(frame: &Frame) -> usize {
    // Map head, key and value of the type, and one byte for each key.
    3 + match frame {
        Frame::Offers { first_ref, items } => {
            2 + head(*first_ref) + list(items, |item: &Bytes| text(item.len()))
        }
        Frame::BestEffort { items } => 1 + list(items, |item: &Bytes| text(item.len())),
        Frame::AckRuns(runs) => 1 + list(runs, run),
        Frame::Acks(acks) => 1 + list(acks, ack),
        Frame::Query { query_ref, ids } => 2 + head(*query_ref) + list(ids, id),
        Frame::Answer { query_ref, acks, unknown } => {
            3 + head(*query_ref) + list(acks, ack) + list(unknown, id)
        }
        Frame::Probe { nonce, id: named } => {
            1 + head(*nonce) + named.as_ref().map_or(0, |named| 1 + id(named))
        }
        Frame::ProbeReply { nonce, at } => 2 + head(*nonce) + head(at.as_ms()),
        Frame::Refuse { refs: of, code: _, retry_after_ms, text: why } => {
            5 + refs(of) + head(*retry_after_ms) + text(why.as_str().len())
        }
        Frame::Hello { .. } => frame.encode().len() - 3,
    }
}

/// What a frame says, for people.
pub(super) fn told(frame: &Frame) -> String {
    let span = |range: &RefRange| match range.count {
        1 => format!("{}", range.first),
        _ => format!("{}-{}", range.first, range.last()),
    };
    let refs = |refs: &[RefRange]| refs.iter().map(span).collect::<Vec<_>>().join(" ");
    let ids = |items: &[Bytes]| {
        let id = |item: &Bytes| match proto::obligation::Obligation::decode(item) {
            Ok(obligation) => obligation.id.to_string(),
            Err(_) => "garbage".to_owned(),
        };
        items.iter().map(id).collect::<Vec<_>>().join(" ")
    };
    let acks = |acks: &[CustodyAck]| {
        let ack = |ack: &CustodyAck| format!("{} {}", ack.obligation_id, ack.status);
        acks.iter().map(ack).collect::<Vec<_>>().join(", ")
    };
    match frame {
        Frame::Offers { first_ref, items } => {
            format!("offers from ref {first_ref}: {}", ids(items))
        }
        Frame::BestEffort { items } => format!("best effort: {}", ids(items)),
        Frame::AckRuns(runs) => {
            let run = |run: &AckRun| format!("refs {} {}", refs(&run.refs), run.status);
            format!("acks: {}", runs.iter().map(run).collect::<Vec<_>>().join(", "))
        }
        Frame::Acks(list) => format!("acks: {}", acks(list)),
        Frame::Answer { acks: list, .. } => format!("answer: {}", acks(list)),
        Frame::Refuse { refs: of, code, .. } => format!("refuses refs {}: {code}", refs(of)),
        other => format!("{other:?}"),
    }
}

/// What a reader makes of a frame some bits of which are flipped, one to three of them by `bits`.
/// None if they came out as they were.
pub(super) fn damaged(frame: &Frame, mut bits: u64) -> Option<Result<Frame, CborError>> {
    let whole = frame.encode();
    let mut bytes = whole.to_vec();
    let flips = bits % 3 + 1;
    bits /= 3;
    for _ in 0..flips {
        let at = usize::try_from(bits).unwrap_or(0) % (bytes.len() * 8);
        if let Some(byte) = bytes.get_mut(at / 8) {
            *byte ^= 1 << (at % 8);
        }
        bits = proto::backoff::mix(bits);
    }
    (bytes != whole).then(|| Frame::decode(bytes.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::ack::{AckStatus, Reason};
    use proto::frame::RefuseCode;
    use proto::id::AgentId;
    use proto::time::Time;

    fn frames() -> Vec<Frame> {
        let name = |text: &str| ObligationId::new(text).unwrap();
        let ranges =
            vec![RefRange { first: 3, count: 300 }, RefRange { first: 1 << 33, count: 70_000 }];
        let ack = |reason: Option<Reason>| CustodyAck {
            obligation_id: name("an-obligation-of-a-rather-long-name"),
            target: AgentId::new("b").unwrap(),
            status: AckStatus::Declined,
            acked_at: Time::from_ms(1_800_000_000_000),
            reason,
        };
        let items = |len: usize| vec![Bytes::from(vec![7; len]); 30];
        let run = |reason| AckRun {
            status: AckStatus::Deferred,
            acked_at: Time::from_ms(5),
            reason,
            refs: ranges.clone(),
        };
        vec![
            Frame::Offers { first_ref: 23, items: items(10) },
            Frame::Offers { first_ref: 1 << 20, items: items(300) },
            Frame::BestEffort { items: items(24) },
            Frame::AckRuns(vec![run(None)]),
            Frame::AckRuns(vec![run(Some(Reason::EXPIRED))]),
            Frame::Acks(vec![ack(None), ack(Some(Reason::new("x".repeat(200))))]),
            Frame::Query { query_ref: 300, ids: vec![name("one"), name("two")] },
            Frame::Answer { query_ref: 1, acks: vec![ack(None)], unknown: vec![name("three")] },
            Frame::Probe { nonce: 70_000, id: None },
            Frame::Probe { nonce: 7, id: Some(name("four")) },
            Frame::ProbeReply { nonce: 7, at: Time::from_ms(1 << 40) },
            Frame::Refuse {
                refs: ranges.clone(),
                code: RefuseCode::Overloaded,
                retry_after_ms: 300,
                text: Reason::new("busy"),
            },
        ]
    }

    #[test]
    fn lengths_are_those_of_the_encoding() {
        for frame in frames() {
            assert_eq!(frame_len(&frame), frame.encode().len(), "{frame:?}");
        }
    }

    #[test]
    fn a_frame_fills_its_packets() {
        for (len, lens) in [(1, vec![41]), (1_160, vec![1_200]), (1_161, vec![1_200, 41])] {
            let count = packets(len);
            let all: Vec<usize> = (0..count).rev().map(|left| packet_len(len, left)).collect();
            assert_eq!(all, lens, "{len}");
        }
    }

    #[test]
    fn wr1_flipped_bits_are_refused_or_spell_another_frame() {
        let (mut refused, mut read) = (0, 0);
        for frame in frames() {
            for bits in 0..2_000 {
                match damaged(&frame, proto::backoff::mix(bits)) {
                    Some(Ok(other)) => {
                        assert_eq!(frame_len(&other), other.encode().len());
                        assert_ne!(other, frame, "one spelling each");
                        read += 1;
                    }
                    Some(Err(_)) => refused += 1,
                    None => {}
                }
            }
        }
        assert!(refused > 1_000 && read > 1_000, "{refused} refused, {read} read");
    }
}
