//! Consent between agents (Anumati; on the wire ACAP): signatures, anchors and audit of its documents.

pub mod anchor;
pub mod audit;
pub mod jws;
pub mod keys;
pub mod log;
