//! Congestion control that a link's own losses do not slow down.
//!
//! Cubic takes each loss for congestion. On a radio link that loses a few packets in a hundred by
//! itself that holds it at a few packets a round trip, for ever. Here a loss counts only if something
//! else speaks for congestion: a queue on the way, which shows in the round trip; a large share of
//! what is sent lost; ECN; or all lost for several round trips. (TCP Veno, Fu and Liew 2003, draws the
//! same line by the same signal.)

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, Cubic, CubicConfig};
use quinn_proto::RttEstimator;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Share of the bytes sent that a link may lose by itself, in thousandths; and so many bytes anyway,
/// since of a few packets one is a large share.
const TOLERATED_PERMILLE: u64 = 100;
const TOLERATED_MIN: u64 = 48 * 1200;
/// How far the smoothed round trip may be above the lowest it was before there is a queue on the way:
/// half of it, and so long at least. (Above the shortest single one jitter alone would lift it.)
const QUEUE_DIVISOR: u32 = 2;
const QUEUE_MIN: Duration = Duration::from_millis(2);
/// Acks before the smoothed round trip says anything.
const ACKS_MIN: u32 = 16;
/// Over how long the share is taken: so many round trips, and so long at least. A burst that silences
/// the link for a part of one round trip is no large share of that.
const SHARE_RTTS: u32 = 8;
const SHARE_MIN: Duration = Duration::from_secs(1);

/// Makes controllers for connections.
#[derive(Debug, Default)]
pub(crate) struct TolerantConfig(Arc<CubicConfig>);

impl ControllerFactory for TolerantConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let cubic = Cubic::new(self.0.clone(), now, current_mtu);
        Box::new(Tolerant { cubic, seen: Seen::new(now) })
    }
}

#[derive(Clone, Debug)]
struct Tolerant {
    cubic: Cubic,
    seen: Seen,
}

impl Controller for Tolerant {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.seen.acked(now, bytes, rtt.get());
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        let counts = self.seen.lost(now, lost_bytes);
        if counts || is_persistent_congestion {
            self.cubic.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// What a path did with what was sent, in this span and in the one before.
#[derive(Clone, Debug)]
struct Seen {
    since: Instant,
    now: Bytes,
    before: Bytes,
    acks: u32,
    rtt: Duration,
    rtt_lowest: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bytes {
    acked: u64,
    lost: u64,
}

impl Seen {
    fn new(since: Instant) -> Self {
        let (now, before) = (Bytes::default(), Bytes::default());
        let (rtt, rtt_lowest) = (Duration::ZERO, Duration::MAX);
        Self { since, now, before, acks: 0, rtt, rtt_lowest }
    }

    fn acked(&mut self, now: Instant, bytes: u64, rtt: Duration) {
        self.rtt = rtt;
        self.acks = self.acks.saturating_add(1);
        if self.acks > ACKS_MIN {
            self.rtt_lowest = self.rtt_lowest.min(rtt);
        }
        self.turn(now);
        self.now.acked += bytes;
    }

    /// Whether this loss is a sign of congestion. ECN says so with no bytes lost.
    fn lost(&mut self, now: Instant, bytes: u64) -> bool {
        self.turn(now);
        self.now.lost += bytes;
        let lost = self.now.lost + self.before.lost;
        let all = lost + self.now.acked + self.before.acked;
        bytes == 0 || self.queued() || lost > (all * TOLERATED_PERMILLE / 1000).max(TOLERATED_MIN)
    }

    fn queued(&self) -> bool {
        let queue = (self.rtt_lowest / QUEUE_DIVISOR).max(QUEUE_MIN);
        self.rtt > self.rtt_lowest.saturating_add(queue)
    }

    fn turn(&mut self, now: Instant) {
        if now.saturating_duration_since(self.since) >= (self.rtt * SHARE_RTTS).max(SHARE_MIN) {
            (self.before, self.now, self.since) = (self.now, Bytes::default(), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const RTT: Duration = Duration::from_millis(100);

    /// A path on which 100 packets a round trip arrived for two seconds, in the second one with `rtt`.
    fn seen(now: Instant, rtt: Duration) -> Seen {
        let mut seen = Seen::new(now);
        for packet in 0..2_000 {
            seen.acked(now + MS * packet, 1_200, if packet < 1_000 { RTT } else { rtt });
        }
        seen
    }

    #[test]
    fn a_few_losses_on_a_path_without_a_queue_are_the_links_own() {
        let now = Instant::now();
        let mut path = seen(now, RTT);
        let at = now + MS * 2_000;
        assert!(!path.lost(at, 1_200));
        assert!(!path.lost(at, 50 * 1_200), "a burst of half a round trip");
        assert!(path.lost(at, 0), "ECN says congestion");
        let mut fresh = Seen::new(now);
        assert!(!fresh.lost(now, 4 * 1_200), "of the first few packets a few are no share");
    }

    #[test]
    fn a_loss_counts_when_the_round_trip_shows_a_queue() {
        let now = Instant::now();
        assert!(!seen(now, RTT + 45 * MS).lost(now + MS * 2_000, 1_200));
        assert!(seen(now, RTT + 55 * MS).lost(now + MS * 2_000, 1_200));
    }

    #[test]
    fn losses_count_when_they_are_a_large_share() {
        let now = Instant::now();
        let mut path = seen(now, RTT);
        let lost = (1..=1_000).find(|nth| path.lost(now + MS * 2_000 + MS * *nth, 1_200));
        let lost = u64::from(lost.expect("at some time they do"));
        assert!((100..400).contains(&lost), "after {lost} of 2,000");
        // What is long past says nothing.
        let later = now + Duration::from_secs(60);
        for packet in 0..2_000 {
            path.acked(later + MS * packet, 1_200, RTT);
        }
        assert!(!path.lost(later + MS * 2_000, 1_200));
    }
}
