//! MCP between nodes: a client here, a server behind another node, and QUIC, HTTP/3 or MOQT between them.
//!
//! ```text
//!  MCP client ──stdio, HTTP──► proxy ══ QUIC: lines, HTTP/3, MOQT ══► node: session ──stdio, HTTP──► MCP server
//!                                                                  │ envelope to the core, then the gate
//! ```
//!
//! Messages pass as they are: what neither side of the bridge knows reaches the other end whole. The
//! node behind which the server is looks at calls: an obligation in `params._meta` is given to the
//! core before the call runs, and its ack comes back in `_meta` of the result; a call that needs an
//! authorization which is withheld is refused, and one that runs is ended when it is withdrawn.

mod channel;
mod consent;
mod http3;
mod hub;
mod link;
pub(crate) mod listen;
mod message;
mod peers;
pub(crate) mod proxy;
mod running;
mod session;
mod transport;
mod upstream;

pub(crate) use link::{Far, Over};
pub(crate) use message::Code;
pub(crate) use peers::{Connected, router};
pub(crate) use session::Bridge;
pub use transport::{ConnectError, MoqtTransport};

/// Bytes of one message.
pub(crate) const MESSAGE_LEN_MAX: usize = 4 * 1024 * 1024;
/// Messages on their way in one direction of one session; further ones wait at their sender.
pub(crate) const MESSAGES_READY_MAX: usize = 4;
/// What a call is answered whose way broke.
pub(crate) const BROKE: &str = "the way to the server broke: whether the call ran is not known";
