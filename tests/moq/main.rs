//! MOQT: custody with a peer directly and by relays of others.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    unreachable_pub
)]

#[path = "../common/mod.rs"]
mod common;

mod custody;
mod relays;
mod watch;
mod wire;
