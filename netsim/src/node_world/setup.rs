//! How the nodes of a run are configured, and who they are.

use super::wire::address;
use crate::options::{KINDS, Options};
use crate::tuning::Congestion;
use abhyasa::config::{ConfigError, NodeConfig};
use abhyasa::init::ca::{CaError, DevCa, NODE_DAYS, valid_days};
use abhyasa::tls::{TlsError, TlsIdentity};
use proto::id::{AgentId, IdError};
use serde_json::json;
use std::fmt::Write as _;
use std::path::Path;

/// Why the nodes cannot be set up. Only a broken build or machine gets here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SetupError {
    /// A name.
    #[error(transparent)]
    Id(#[from] IdError),
    /// A configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The certificate authority.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// A certificate.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A fault that this world has not.
    #[error("bit-rot is a fault of the core world only")]
    BitRot,
    /// The runtime.
    #[error(transparent)]
    Runtime(#[from] std::io::Error),
}

/// The name of a node.
pub(super) fn name(node: usize) -> Result<AgentId, IdError> {
    AgentId::new(&format!("spiffe://netsim/{}", Options::name(node)))
}

/// What a node is told.
pub(super) fn config(options: &Options, node: usize) -> Result<NodeConfig, SetupError> {
    let mut text = format!("[node]\nid = \"{}\"\n", name(node)?);
    for peer in (0..options.nodes).filter(|peer| *peer != node) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "[[peers]]\nid = \"{}\"", name(peer)?);
        let _ = writeln!(text, "may_issue = {0}\nmay_receive = {0}", json!(KINDS));
        let rate = options.rate_per_second;
        let _ = writeln!(text, "obligations_per_second = {rate}");
        let _ = writeln!(text, "obligations_burst = {}", rate.max(4_096));
        if node < peer || !options.tuning.one_dials {
            let _ = writeln!(text, "address = \"{}\"", address(peer));
        }
    }
    let mut config = NodeConfig::parse(&text, Path::new("netsim.toml"))?;
    for kind in config.kinds.values_mut() {
        kind.profile = options.profile();
    }
    let tuning = &options.tuning;
    let quic = &mut config.quic;
    quic.racing = options.racing;
    quic.idle_timeout_ms = tuning.idle_timeout_ms;
    quic.keep_alive_ms = tuning.keep_alive_ms;
    quic.handshake_timeout_ms = tuning.handshake_timeout_ms;
    quic.reconnect_base_ms = tuning.reconnect_base_ms;
    quic.reconnect_cap_ms = tuning.reconnect_cap_ms;
    quic.silent_after_ms = tuning.silent_after_ms;
    quic.frame_timeout_ms = tuning.frame_timeout_ms;
    quic.connections_per_peer_max = tuning.connections_per_peer_max;
    quic.streams_max = tuning.streams_max;
    quic.congestion = match tuning.congestion {
        Congestion::Tolerant => abhyasa::config::Congestion::Tolerant,
        Congestion::Bbr => abhyasa::config::Congestion::Bbr,
        Congestion::Cubic => abhyasa::config::Congestion::Cubic,
    };
    let custody = &mut config.custody;
    custody.max_clock_skew_ms = options.skew_ms;
    custody.pending_max = options.pending_max;
    custody.pending_per_peer_max = options.pending_per_peer_max;
    custody.in_flight_max = options.window;
    custody.in_flight_bytes_max = options.window_bytes;
    custody.deciding_max = options.deciding_max;
    custody.coalesce = options.coalesce;
    custody.outcome_retention_seconds = options.retention_ms / 1_000;
    custody.outcomes_max = options.outcomes_max;
    custody.refuse_retry_after_ms = 300;
    let store = &mut config.store;
    store.commit_batch_max = tuning.commit_batch_max;
    store.commit_linger_us = tuning.commit_linger_us;
    store.input_queue_max = tuning.input_queue_max;
    Ok(config)
}

/// Certificates of one CA for all nodes. They are judged by the machine's clock and say nothing of
/// virtual time; their keys differ with each run and their sizes do not.
pub(super) fn identities(options: &Options) -> Result<Vec<TlsIdentity>, SetupError> {
    let ca = DevCa::generate()?;
    let one = |node| {
        let issued = ca.issue(&name(node)?, valid_days(NODE_DAYS))?;
        Ok(TlsIdentity::from_der(vec![issued.cert], issued.key, vec![ca.cert().clone()])?)
    };
    (0..options.nodes).map(one).collect()
}
