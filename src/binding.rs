//! Bindings: bytes of one transport to inputs of the core, outputs to bytes, nothing else.

pub(crate) mod a2a;
mod carried;
pub(crate) mod http;
pub(crate) mod quic;
