//! The abhyasa node: the async shell around the custody core.

pub mod config;
pub mod identity;
pub mod init;
pub mod tls;
