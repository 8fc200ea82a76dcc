//! Media over QUIC Transport (draft-ietf-moq-transport-18, ALPN `moqt-18`): obligations, MCP and A2A on tracks,
//! with a peer directly or through relays that know nothing of them.

mod backend;
mod candidates;
pub(crate) mod check;
mod custody;
mod fanout;
pub(crate) mod hand;
mod link;
mod listen;
pub(crate) mod mcp;
pub(crate) mod node;
mod order;
mod ordered;
mod seal;
mod session;
mod sign;
mod silence;
mod track;
mod unproven;
mod watch;

pub(crate) use link::{Link, LinkError, Requests};
pub(crate) use session::Fronts;
pub(crate) use track::{Incoming, Outgoing, TrackError, object};

use moq_transport::coding::TrackNamespace;
use std::time::Duration;

pub(crate) use crate::tls::ALPN_MOQT as ALPN;

/// Requests that we keep open in one session: subscriptions, announcements. `moq-transport` stalls without a word
/// at 128 from a peer, and `moq-relay-ietf` 0.8.0 at 100.
pub(crate) const REQUESTS_MAX: usize = 90;
/// Requests a peer may have open in one session.
pub(crate) const PEER_REQUESTS_MAX: u32 = 128;
/// Requests of one session in all, after which it is given up for a new one: the library ends at 65,536.
pub(crate) const REQUESTS_TOTAL_MAX: u64 = 60_000;
/// How long the other side may take to answer a request.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);
/// Requests that the peers of one session with a relay need, each two and one for each of its groups. The others
/// are for announcements, and for sessions that peers begin before their last one is seen to have ended.
pub(crate) const SHARE_REQUESTS_MAX: usize = 64;
/// Prefixes of namespaces that we ask a relay for; with more peers we ask for all there are.
pub(crate) const PREFIXES_MAX: usize = 8;
/// Batches that may come from a peer before the session with it is up.
pub(crate) const OBJECTS_EARLY_MAX: usize = 64;
/// Groups of one session on their way at a time; what comes further waits, and is put together. With those of
/// decisions and watchers that stay open, no more than the 128 that the library sends at once.
pub(crate) const GROUPS_FLYING_MAX: usize = 48;
/// How long one group may take to come; then it is given up, and what was in it is sent again.
pub(crate) const GROUP_TIME_MAX: Duration = Duration::from_secs(30);
/// Groups of one track that are read at a time; the library ends a subscription 1,024 behind.
pub(crate) const GROUPS_READ_MAX: usize = 256;

/// A namespace of these fields.
pub(crate) fn namespace<T: AsRef<str>>(fields: &[T]) -> TrackNamespace {
    let field = |field: &T| moq_transport::coding::TupleField::from_utf8(field.as_ref());
    TrackNamespace { fields: fields.iter().map(field).collect() }
}

#[cfg(test)]
pub(crate) mod tests;
