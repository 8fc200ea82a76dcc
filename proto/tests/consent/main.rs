//! Consent (Anumati): documents, hashes, chains, versions, constraints, and the lifecycle.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::indexing_slicing)]

mod actions;
mod chains;
mod documents;
mod hashes;
mod lifecycle;
mod setup;
mod versions;
