//! The abhyasa node: the async shell around the custody core.

mod a2a;
pub mod acap;
pub mod api;
mod binding;
mod bridge;
mod calls;
pub mod cli;
pub mod clock;
pub mod config;
mod congestion;
pub mod demo;
mod driver;
mod endpoint;
mod escalation;
mod gate;
mod handler;
mod http3;
pub mod identity;
pub mod init;
pub mod loopback;
pub mod mcp;
mod moq;
pub mod node;
mod peers;
pub mod proxy;
mod router;
pub mod store;
pub mod telemetry;
pub mod tls;

pub use a2a::A2aError;
pub use acap::AcapError;
pub use driver::DriverError;
pub use handler::HandlerError;
pub use proto;
pub mod bench;
