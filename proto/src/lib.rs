//! The sans-IO core of abhyasa: what goes over the wire, and the machines that keep custody.
//!
//! No sockets, no clock, no runtime: bytes, times and outcomes are told by the caller.
//!
#![doc = include_str!("../INVARIANTS.md")]

pub mod ack;
pub mod backoff;
pub mod batch;
pub mod belief;
pub mod cbor;
pub mod consent;
pub mod custodian;
pub mod custody;
pub mod event;
pub mod fanout;
mod field;
pub mod frame;
pub mod id;
pub mod limits;
#[cfg(feature = "mutants")]
pub mod mutant;
pub mod obligation;
pub mod payload;
pub mod polarity;
pub mod profile;
pub mod receiver;
pub mod record;
pub mod safe_action;
pub mod settings;
pub mod step;
pub mod store;
pub mod time;
pub mod track;
mod transfer;
pub mod weight;
