//! One direction of a link: what becomes of each packet. No clock and no socket.

use proto::backoff::mix;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Longest time a packet waits for its turn when bandwidth is limited. Beyond it the tail drops.
pub(super) const QUEUE_MAX: Duration = Duration::from_millis(250);

/// What one direction does to packets. The default is a perfect link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFaults {
    /// Packets lost, in thousandths.
    pub loss_permille: u16,
    /// Packets that arrive twice, in thousandths of those not lost.
    pub duplicate_permille: u16,
    /// Delay of every packet, in milliseconds.
    pub delay_ms: u32,
    /// Random delay on top, up to so many milliseconds: it reorders.
    pub jitter_ms: u32,
    /// Bytes a second; 0 for no limit. Packets that would queue for more than 250 ms are lost.
    pub bytes_per_second: u64,
    /// Whether nothing gets through.
    pub cut: bool,
}

/// What one direction has done so far, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Sent on, duplicates among them.
    pub forwarded: u64,
    /// Lost by loss, a cut or a full queue.
    pub dropped: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Lost to a limit of the proxy itself or of the sockets.
    pub overflowed: u64,
}

impl Count {
    /// The sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            forwarded: self.forwarded + other.forwarded,
            dropped: self.dropped + other.dropped,
            duplicated: self.duplicated + other.duplicated,
            overflowed: self.overflowed + other.overflowed,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct LinkCounters {
    forwarded: AtomicU64,
    dropped: AtomicU64,
    duplicated: AtomicU64,
    overflowed: AtomicU64,
}

impl LinkCounters {
    pub(super) fn forwarded(&self) {
        self.forwarded.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn duplicated(&self) {
        self.duplicated.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn overflowed(&self) {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Count {
        Count {
            forwarded: self.forwarded.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            duplicated: self.duplicated.load(Ordering::Relaxed),
            overflowed: self.overflowed.load(Ordering::Relaxed),
        }
    }
}

/// What becomes of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Drop,
    Deliver { after: Duration, again: Option<Duration> },
}

#[derive(Debug)]
pub(super) struct Link {
    seed: u64,
    drawn: u64,
    free_at: Option<Instant>,
}

impl Link {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed: mix(seed), drawn: 0, free_at: None }
    }

    /// Decides on a packet of `len` bytes. Four numbers are drawn for each, whatever the faults,
    /// so that the fate of one does not shift that of the next.
    pub(super) fn judge(&mut self, now: Instant, len: usize, faults: &LinkFaults) -> Verdict {
        let (loss, twice) = (self.draw() % 1000, self.draw() % 1000);
        let (first, second) = (self.jitter(faults), self.jitter(faults));
        if faults.cut || loss < u64::from(faults.loss_permille) {
            return Verdict::Drop;
        }
        let Some(queued) = self.queue(now, len, faults) else { return Verdict::Drop };
        let fixed = queued + Duration::from_millis(faults.delay_ms.into());
        let again = (twice < u64::from(faults.duplicate_permille)).then_some(fixed + second);
        Verdict::Deliver { after: fixed + first, again }
    }

    /// How long the packet waits for those before it, unless the queue is full.
    fn queue(&mut self, now: Instant, len: usize, faults: &LinkFaults) -> Option<Duration> {
        if faults.bytes_per_second == 0 {
            return Some(Duration::ZERO);
        }
        let begins = self.free_at.map_or(now, |at| at.max(now));
        let takes = Duration::from_nanos(
            (len as u64).saturating_mul(1_000_000_000) / faults.bytes_per_second,
        );
        let wait = (begins - now).saturating_add(takes);
        if begins - now > QUEUE_MAX {
            return None;
        }
        self.free_at = Some(now + wait);
        Some(wait)
    }

    fn jitter(&mut self, faults: &LinkFaults) -> Duration {
        let micros = u64::from(faults.jitter_ms) * 1000;
        Duration::from_micros(self.draw() % (micros + 1))
    }

    const fn draw(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.seed ^ self.drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(seed: u64, faults: LinkFaults) -> Vec<Verdict> {
        let mut link = Link::new(seed);
        let now = Instant::now();
        (0..10_000).map(|_| link.judge(now, 1200, &faults)).collect()
    }

    #[test]
    fn the_default_link_is_perfect() {
        let untouched = Verdict::Deliver { after: Duration::ZERO, again: None };
        assert!(fates(1, LinkFaults::default()).iter().all(|fate| *fate == untouched));
        let cut = LinkFaults { cut: true, ..LinkFaults::default() };
        assert!(fates(1, cut).iter().all(|fate| *fate == Verdict::Drop));
    }

    #[test]
    fn rates_are_as_told_and_repeat_by_seed() {
        let faults = LinkFaults {
            loss_permille: 300,
            duplicate_permille: 100,
            delay_ms: 5,
            jitter_ms: 20,
            ..LinkFaults::default()
        };
        let fates_1 = fates(1, faults);
        assert_eq!(fates_1, fates(1, faults));
        assert_ne!(fates_1, fates(2, faults));
        let lost = fates_1.iter().filter(|fate| **fate == Verdict::Drop).count();
        assert!((2_800..3_200).contains(&lost), "{lost}");
        let twice =
            fates_1.iter().filter(|f| matches!(f, Verdict::Deliver { again: Some(_), .. })).count();
        assert!((600..800).contains(&twice), "{twice}");
        for fate in fates_1 {
            let Verdict::Deliver { after, .. } = fate else { continue };
            assert!((Duration::from_millis(5)..=Duration::from_millis(25)).contains(&after));
        }
    }

    #[test]
    fn bandwidth_queues_then_drops_the_tail() {
        let mut link = Link::new(1);
        let now = Instant::now();
        let faults = LinkFaults { bytes_per_second: 100_000, ..LinkFaults::default() };
        let mut last = Duration::ZERO;
        let mut delivered = 0;
        for _ in 0..100 {
            if let Verdict::Deliver { after, .. } = link.judge(now, 1000, &faults) {
                assert!(after > last, "in order");
                last = after;
                delivered += 1;
            }
        }
        assert_eq!(delivered, 26, "250 ms of 10 ms each, and the one that crosses");
        let later = now + Duration::from_secs(1);
        let fate = link.judge(later, 1000, &faults);
        assert_eq!(fate, Verdict::Deliver { after: Duration::from_millis(10), again: None });
    }
}
