//! Every maximum of the wire and the machines, related at compile time.

/// Bytes in one frame, which is one QUIC stream.
//= BD-1
pub const FRAME_LEN_MAX: usize = 256 * 1024;
/// Bytes a batch frame is filled to before the next one is begun.
pub const FRAME_LEN_TARGET: usize = 48 * 1024;
/// Bytes in the CBOR encoding of one payload.
pub const PAYLOAD_LEN_MAX: usize = 64 * 1024;
/// Bytes in the CBOR encoding of one obligation.
pub const OBLIGATION_LEN_MAX: usize = PAYLOAD_LEN_MAX + 2 * 1024;
/// Bytes in an id, kind, agent name or governed key.
pub const ID_LEN_MAX: usize = 256;
/// Bytes in a human-readable reason; longer ones are refused on the wire and cut at the source.
pub const REASON_LEN_MAX: usize = 512;
/// Nesting depth of any CBOR or JSON document of ours; a frame itself is depth 1.
pub const DEPTH_MAX: usize = 8;
/// Items in one batch frame (offers, ack ranges, query ids).
pub const BATCH_COUNT_MAX: usize = 4096;
/// Bytes of the signature of a batch on a MOQT track: statement, signature and certificates.
pub const SIGNED_LEN_MAX: usize = 16 * 1024;
/// Bytes of one item of such a batch: an obligation, sealed or not.
pub const ITEM_LEN_MAX: usize = OBLIGATION_LEN_MAX + 1024;
/// Members of one map or array inside a payload.
pub const PAYLOAD_ITEMS_MAX: usize = 1024;
/// Bytes in one best-effort datagram, below the smallest QUIC datagram we count on.
pub const DATAGRAM_LEN_MAX: usize = 1150;
/// The longest deadline: ten years in seconds.
pub const DEADLINE_SECONDS_MAX: u64 = 10 * 366 * 24 * 3600;
/// The most retries a transfer may have.
pub const RETRIES_MAX: u32 = 100_000;

const _: () = assert!(OBLIGATION_LEN_MAX < FRAME_LEN_MAX, "the largest obligation fits in a frame");
const _: () =
    assert!(SIGNED_LEN_MAX + ITEM_LEN_MAX < FRAME_LEN_MAX, "the largest item fits in a batch");
const _: () =
    assert!(FRAME_LEN_TARGET < FRAME_LEN_MAX, "a batch is closed before the frame is full");
const _: () = assert!(4 * ID_LEN_MAX + REASON_LEN_MAX < 2 * 1024, "ids fit beside the payload");
