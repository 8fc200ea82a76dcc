//! Settings of a real node that its core does not know.

use link::Rng;
use serde::{Deserialize, Serialize};

/// What a real node is told beside the options of its core. The defaults are the node's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tuning {
    /// Silence after which a connection is dropped, in milliseconds.
    pub idle_timeout_ms: u64,
    /// Between keep-alive packets, in milliseconds.
    pub keep_alive_ms: u64,
    /// How long a handshake may take, in milliseconds.
    pub handshake_timeout_ms: u64,
    /// Before the first new dial, in milliseconds.
    pub reconnect_base_ms: u64,
    /// Between two dials at most, in milliseconds.
    pub reconnect_cap_ms: u64,
    /// Silence after which a connection is raced, in milliseconds.
    pub silent_after_ms: u64,
    /// How long a frame may take, in milliseconds.
    pub frame_timeout_ms: u64,
    /// Connections of one peer.
    pub connections_per_peer_max: usize,
    /// Frames a peer may have open on a connection.
    pub streams_max: u32,
    /// Obligations a commit takes.
    pub commit_batch_max: usize,
    /// Longest wait to fill a batch, in microseconds.
    pub commit_linger_us: u64,
    /// Inputs queued to the driver.
    pub input_queue_max: usize,
    /// Congestion control.
    pub congestion: Congestion,
    /// Whether of two nodes only the first dials the other, as when the second has no address.
    pub one_dials: bool,
}

/// Congestion control of a node's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// By loss, unless the link loses by itself.
    Tolerant,
    /// By bandwidth and round trip.
    Bbr,
    /// By loss.
    Cubic,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            idle_timeout_ms: 30_000,
            keep_alive_ms: 5_000,
            handshake_timeout_ms: 5_000,
            reconnect_base_ms: 100,
            reconnect_cap_ms: 2_000,
            silent_after_ms: 1_000,
            frame_timeout_ms: 10_000,
            connections_per_peer_max: 4,
            streams_max: 256,
            commit_batch_max: 4_096,
            commit_linger_us: 10_000,
            input_queue_max: 8_192,
            congestion: Congestion::Tolerant,
            one_dials: false,
        }
    }
}

impl Tuning {
    /// The tuning of a swarm run: half the time the node's own, else each setting small or large.
    #[must_use]
    pub fn swarm(seed: u64) -> Self {
        let mut rng = Rng::new(seed, 20);
        let r = &mut rng;
        // From a stream of its own, so that old seeds draw what they did.
        let congestion = match Rng::new(seed, 22).below(10) {
            0 | 1 => Congestion::Cubic,
            2 | 3 => Congestion::Bbr,
            _ => Congestion::Tolerant,
        };
        let own = Self { one_dials: r.chance(300), congestion, ..Self::default() };
        if r.chance(500) {
            return own;
        }
        let idle_timeout_ms = r.pick(&[1_500, 5_000, 30_000]).unwrap_or(5_000);
        let reconnect_base_ms = r.range(20, 500);
        Self {
            idle_timeout_ms,
            keep_alive_ms: r.range(200, idle_timeout_ms / 2),
            handshake_timeout_ms: r.pick(&[800, 2_000, 5_000]).unwrap_or(5_000),
            reconnect_base_ms,
            reconnect_cap_ms: reconnect_base_ms * r.range(1, 10),
            silent_after_ms: r.range(100, 3_000),
            frame_timeout_ms: r.pick(&[500, 10_000]).unwrap_or(10_000),
            connections_per_peer_max: r.pick(&[2, 3, 4]).unwrap_or(4),
            streams_max: r.pick(&[8, 8, 256]).unwrap_or(256),
            commit_batch_max: r.pick(&[1, 16, 4_096]).unwrap_or(4_096),
            commit_linger_us: r.pick(&[0, 2_000, 10_000, 100_000]).unwrap_or(0),
            input_queue_max: r.pick(&[1, 8, 8_192]).unwrap_or(8_192),
            congestion,
            one_dials: own.one_dials,
        }
    }
}
