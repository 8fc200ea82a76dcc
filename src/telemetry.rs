//! Metrics, and what of them is counted where.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use proto::event::{Event, Fault};
use proto::record::{Escalation, Terminal};
use std::sync::atomic::AtomicU64;

/// One label: what came of something.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Label {
    /// The value.
    pub outcome: &'static str,
}

/// A node's metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// Obligations taken under custody.
    pub issued: Counter,
    /// Obligations sent without custody.
    pub best_effort_sent: Counter,
    /// Best-effort obligations applied here.
    pub best_effort_applied: Gauge<u64, AtomicU64>,
    /// Best-effort obligations dropped before the wire.
    pub best_effort_dropped: Counter,
    /// Transfers that ended, by outcome.
    pub terminal: Family<Label, Counter>,
    /// Offers dealt with as receiver, by status.
    pub received: Family<Label, Counter>,
    /// What peers did wrong, by fault.
    pub faults: Family<Label, Counter>,
    /// Commits made durable: one fdatasync each.
    pub commits: Counter,
    /// Time of a commit, in seconds.
    pub commit_seconds: Histogram,
    /// Obligations that shared a commit.
    pub commit_obligations: Histogram,
    /// Pending transfers.
    pub pending: Gauge,
    /// Sessions that are up.
    pub sessions: Gauge,
    /// Handshakes started because a session was silent when a retry was due.
    pub races: Counter,
    /// Batches published over MOQT, by what they hold.
    pub moqt_published: Family<Label, Counter>,
    /// Bytes of those batches.
    pub moqt_published_bytes: Family<Label, Counter>,
    /// Objects of MOQT that were dropped: not signed, wrongly signed, or not for us.
    pub moqt_dropped: Counter,
    /// Tracks at relays that were left since their publisher had not shown in time who it is.
    pub moqt_unproven: Counter,
    /// Unacknowledged escalations.
    pub escalations_open: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Registry::with_prefix("abhyasa"),
            issued: Counter::default(),
            best_effort_sent: Counter::default(),
            best_effort_applied: Gauge::default(),
            best_effort_dropped: Counter::default(),
            terminal: Family::default(),
            received: Family::default(),
            faults: Family::default(),
            commits: Counter::default(),
            commit_seconds: Histogram::new(exponential_buckets(50e-6, 2.0, 16)),
            commit_obligations: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
            pending: Gauge::default(),
            sessions: Gauge::default(),
            races: Counter::default(),
            moqt_published: Family::default(),
            moqt_published_bytes: Family::default(),
            moqt_dropped: Counter::default(),
            moqt_unproven: Counter::default(),
            escalations_open: Gauge::default(),
        };
        metrics.registered()
    }
}

impl Metrics {
    fn registered(mut self) -> Self {
        let r = &mut self.registry;
        r.register("issued", "Obligations taken under custody", self.issued.clone());
        r.register(
            "best_effort_sent",
            "Obligations sent without custody",
            self.best_effort_sent.clone(),
        );
        r.register(
            "best_effort_applied",
            "Best-effort obligations applied here",
            self.best_effort_applied.clone(),
        );
        r.register(
            "best_effort_dropped",
            "Best-effort obligations dropped before the wire",
            self.best_effort_dropped.clone(),
        );
        r.register("transfers_ended", "Transfers that ended, by outcome", self.terminal.clone());
        r.register(
            "offers_received",
            "Offers dealt with as receiver, by status",
            self.received.clone(),
        );
        r.register(
            "peer_faults",
            "Refused or ignored input of peers, by fault",
            self.faults.clone(),
        );
        r.register("commits", "Commits made durable, one fdatasync each", self.commits.clone());
        r.register_with_unit(
            "commit",
            "Time of a commit",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
        r.register(
            "commit_obligations",
            "Obligations that shared a commit",
            self.commit_obligations.clone(),
        );
        r.register("pending", "Pending transfers", self.pending.clone());
        r.register("sessions", "Sessions that are up", self.sessions.clone());
        r.register(
            "handshake_races",
            "Handshakes raced against a silent session",
            self.races.clone(),
        );
        r.register(
            "moqt_objects_published",
            "Batches published over MOQT, by what they hold",
            self.moqt_published.clone(),
        );
        r.register(
            "moqt_published_bytes",
            "Bytes of batches published over MOQT, by what they hold",
            self.moqt_published_bytes.clone(),
        );
        r.register(
            "moqt_objects_dropped",
            "Objects of MOQT not signed, wrongly signed, or not for us",
            self.moqt_dropped.clone(),
        );
        r.register(
            "moqt_tracks_unproven",
            "Tracks at relays left since their publisher had not shown in time who it is",
            self.moqt_unproven.clone(),
        );
        r.register(
            "escalations_open",
            "Escalations the principal has not acknowledged",
            self.escalations_open.clone(),
        );
        self
    }

    /// A batch was published over MOQT.
    pub(crate) fn published(&self, what: &'static str, len: usize) {
        let label = Label { outcome: what };
        self.moqt_published.get_or_create(&label).inc();
        self.moqt_published_bytes.get_or_create(&label).inc_by(len as u64);
    }

    /// The metrics in Prometheus' text format.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// Counts an event, and logs it at its level: `info` terminal states but the common one,
    /// `warn` what needs a person, `debug` the rest. Payloads are not in events.
    pub fn observe(&self, event: &Event) {
        match event {
            Event::Terminal { obligation_id, kind, target, outcome, reason, retries, took_ms } => {
                self.terminal.get_or_create(&terminal_label(*outcome)).inc();
                let reason = reason.as_ref().map(|reason| reason.as_str());
                if *outcome == Terminal::Applied {
                    let _span =
                        tracing::debug_span!("transfer", id = %obligation_id, %kind, %target)
                            .entered();
                    tracing::debug!(retries, took_ms, "applied");
                } else {
                    let _span =
                        tracing::info_span!("transfer", id = %obligation_id, %kind, %target)
                            .entered();
                    tracing::info!(?outcome, reason, retries, took_ms, "ended");
                }
            }
            Event::Escalated(escalation) => {
                self.escalations_open.inc();
                let Escalation { obligation_id, kind, target, reason, safe_action_applied, .. } =
                    &**escalation;
                let _span =
                    tracing::info_span!("transfer", id = %obligation_id, %kind, %target).entered();
                tracing::warn!(?reason, safe_action_applied, "escalated to the principal");
            }
            Event::Acknowledged { obligation_id } => {
                self.escalations_open.dec();
                tracing::info!(id = %obligation_id, "escalation acknowledged");
            }
            Event::Warning { obligation_id, target, retries, left_ms } => {
                let _span = tracing::info_span!("transfer", id = %obligation_id, %target).entered();
                tracing::info!(retries, left_ms, "half the deadline has passed");
            }
            Event::Received { issuer, obligation_id, kind, status, reason } => {
                self.received.get_or_create(&Label { outcome: status.as_str() }).inc();
                let reason = reason.as_ref().map(|reason| reason.as_str());
                let _span =
                    tracing::debug_span!("transfer", id = %obligation_id, %kind, %issuer).entered();
                tracing::debug!(?status, reason, "offer answered");
            }
            Event::Reconcile(item) => {
                tracing::warn!(id = %item.obligation_id, agent = %item.agent, kind = ?item.kind, detail = %item.detail, "needs reconciliation");
            }
            Event::PeerFault { peer, fault, detail } => {
                self.faults.get_or_create(&fault_label(*fault)).inc();
                tracing::debug!(%peer, ?fault, %detail, "peer fault");
            }
            Event::SessionUp { peer } => tracing::info!(%peer, "session up"),
            Event::SessionDown { peer } => tracing::info!(%peer, "session down"),
            _ => {}
        }
    }
}

const fn terminal_label(terminal: Terminal) -> Label {
    let outcome = match terminal {
        Terminal::Applied => "applied",
        Terminal::Declined => "declined",
        Terminal::Escalated => "escalated",
    };
    Label { outcome }
}

const fn fault_label(fault: Fault) -> Label {
    let outcome = match fault {
        Fault::ForeignAck => "foreign_ack",
        Fault::Unauthorized => "unauthorized",
        Fault::WrongTarget => "wrong_target",
        Fault::Malformed => "malformed",
        Fault::Unsupported => "unsupported",
        Fault::Overloaded => "overloaded",
        Fault::RefusedUs => "refused_us",
        _ => "other",
    };
    Label { outcome }
}
