//! The abhyasa node: the async shell around the custody core.

pub mod api;
pub mod cli;
pub mod config;
pub mod demo;
pub mod identity;
pub mod init;
pub mod tls;
mod binding;
pub mod clock;
mod driver;
mod endpoint;
mod escalation;
mod handler;
pub mod node;
mod peers;
pub mod proxy;
mod router;
pub mod store;
pub mod telemetry;

pub use driver::DriverError;
pub use handler::HandlerError;
pub use proto;
pub mod bench;
