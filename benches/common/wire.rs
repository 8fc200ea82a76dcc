//! Obligations and full frames that benches encode and decode.

use proto::ack::{AckRun, AckStatus, RefRange};
use proto::frame::Frame;
use proto::id::{AgentId, Kind, ObligationId};
use proto::limits::FRAME_LEN_TARGET;
use proto::obligation::Obligation;
use proto::payload::Payload;
use proto::time::Time;

/// Bytes of payload, as in the figures of the README.
const PAYLOAD_LEN: usize = 256;

pub fn obligation(number: u64) -> Obligation {
    let payload = serde_json::json!({
        "weight_delta": -0.001,
        "weight_key": "routing.bench.preference",
        "note": "x".repeat(PAYLOAD_LEN - 70),
    });
    Obligation {
        id: ObligationId::new(&format!("bench-{number:012x}")).unwrap(),
        kind: Kind::new("phala.belief_update").unwrap(),
        target: AgentId::new("spiffe://bench.local/receiver").unwrap(),
        payload: Payload::from_json(payload.as_object().unwrap()).unwrap(),
        deadline_seconds: 86_400,
        max_retries: 200,
        created_at: Time::from_ms(1_800_000_000_000),
        sequence: None,
    }
}

/// Obligations that fill a frame.
pub fn full_count() -> u64 {
    (FRAME_LEN_TARGET / (obligation(0).encode().len() + 4)) as u64
}

pub fn full_offers() -> Frame {
    let items = (0..full_count()).map(|n| obligation(n).encode()).collect();
    Frame::Offers { first_ref: 7, items }
}

/// Every other offer of a window of 2,048: the worst that ranges have to code.
pub fn full_acks() -> Frame {
    let refs = (0..1024).map(|n| RefRange { first: n * 2, count: 1 }).collect();
    Frame::AckRuns(vec![AckRun {
        status: AckStatus::Applied,
        acked_at: Time::from_ms(1_800_000_000_000),
        reason: None,
        refs,
    }])
}
