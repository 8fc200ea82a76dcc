//! Consent documents against programs of others, and by our own commands.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "../common/peers.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with tests that use other parts")]
mod peers;

mod commands;
mod hashes;
