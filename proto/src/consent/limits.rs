//! Every maximum of the documents of consent, and of what is kept of them.

/// Bytes of one document as JSON: a policy, a consent record or an adherence event.
//= BD-1
pub const DOCUMENT_LEN_MAX: usize = 1024 * 1024;
/// Nesting depth of a document, itself included.
pub const DOCUMENT_DEPTH_MAX: usize = 16;
/// Values in a document: each object, array, text, number and word counts.
pub const DOCUMENT_VALUES_MAX: usize = 32_768;
/// Claims of a policy.
pub const CLAIMS_MAX: usize = 1_024;
/// Jurisdictions of a policy.
pub const JURISDICTIONS_MAX: usize = 64;
/// Bytes of a URI.
pub const URI_LEN_MAX: usize = 2_048;
/// Bytes of a clause, action, asset, skill, category or other term.
pub const TERM_LEN_MAX: usize = 256;
/// Bytes of a constraint.
pub const CONSTRAINT_LEN_MAX: usize = 4_096;
/// Words and marks of a constraint.
pub const CONSTRAINT_PARTS_MAX: usize = 256;
/// Depth of the parentheses in a constraint.
pub const CONSTRAINT_DEPTH_MAX: usize = 16;
/// Bytes of a text for people: a summary, a dispute or a reasoning.
pub const PROSE_LEN_MAX: usize = 4_096;
/// Bytes of the part of a reasoning that says what a claim comes to; the rest names action and claim.
pub const WHY_LEN_MAX: usize = 2_048;
/// Bytes of a signature (JWS, compact).
pub const SIGNATURE_LEN_MAX: usize = 16 * 1024;
/// Bytes of a hash as text, its algorithm before it.
pub const HASH_LEN_MAX: usize = 128;
/// Bytes of a version.
pub const VERSION_LEN_MAX: usize = 128;
/// Bytes of a date-time.
pub const STAMP_LEN_MAX: usize = 64;
/// Members of a context.
pub const CONTEXT_COUNT_MAX: usize = 64;
/// Bytes of a value in a context.
pub const CONTEXT_VALUE_LEN_MAX: usize = 4_096;
/// Members of one object that this version does not know, and keeps.
pub const EXTRA_COUNT_MAX: usize = 64;
/// Tools, or settings, of a capability manifest.
pub const CAPABILITIES_MAX: usize = 1_024;
/// Claim ids a line of policies may use over all of its versions; retired ones stay taken.
pub const CLAIMS_EVER_MAX: usize = 16_384;
/// Events in the trail of one consent record; a further one needs a new record.
pub const TRAIL_LEN_MAX: u64 = 1_000_000;
/// Records in the chain of one pair.
pub const CHAIN_LEN_MAX: u64 = 1_000_000;
/// Uses in a caller's intent.
pub const USES_MAX: usize = 256;
/// Claims named in one error; of further ones it says how many.
pub const CLAIMS_NAMED_MAX: usize = 8;

const _: () = assert!(CLAIMS_MAX <= CLAIMS_EVER_MAX, "the claims of one policy fit in its line");
const _: () =
    assert!(PROSE_LEN_MAX + SIGNATURE_LEN_MAX < DOCUMENT_LEN_MAX, "an event fits in a document");
const _: () = assert!(
    WHY_LEN_MAX + 6 * TERM_LEN_MAX + VERSION_LEN_MAX + 256 < PROSE_LEN_MAX,
    "a reasoning is not cut where it says what was decided"
);
