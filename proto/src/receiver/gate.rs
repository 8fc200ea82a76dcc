//! Rates and windows of one peer: checked before any fsync is paid for it.

use super::PeerLoad;
use crate::id::ObligationId;
use crate::settings::PeerRules;
use crate::time::Time;

/// A token bucket in thousandths, filled by the time told.
#[derive(Clone, Debug, Default)]
pub(super) struct Bucket {
    milli: u64,
    filled_at: Option<Time>,
}

impl Bucket {
    /// Whether `cost` is there at `now`; does not take it.
    fn holds(&mut self, now: Time, per_second: u64, burst: u64, cost: u64) -> bool {
        let full = burst.saturating_mul(1000);
        self.milli = match self.filled_at {
            None => full,
            Some(at) => {
                now.ms_since(at).saturating_mul(per_second).saturating_add(self.milli).min(full)
            }
        };
        self.filled_at = Some(now);
        self.milli >= cost.saturating_mul(1000)
    }

    const fn take(&mut self, cost: u64) {
        self.milli = self.milli.saturating_sub(cost.saturating_mul(1000));
    }
}

impl PeerLoad {
    /// Whether one obligation of `len` bytes is inside the peer's rates; takes it if so.
    //= BD-1
    pub(super) fn admits(&mut self, now: Time, rules: &PeerRules, len: u64) -> bool {
        let burst = rules.obligations_burst.max(1);
        let bytes_burst = rules.bytes_per_second.max(len);
        let fits = self.obligations.holds(now, rules.obligations_per_second, burst, 1)
            && self.bytes.holds(now, rules.bytes_per_second, bytes_burst, len);
        if fits {
            self.obligations.take(1);
            self.bytes.take(len);
        }
        fits
    }

    /// Whether a best-effort id is new within the last `window` ids; remembers it.
    pub(super) fn first_sight(&mut self, id: &ObligationId, window: usize) -> bool {
        if !self.seen.insert(id.clone()) {
            return false;
        }
        self.seen_order.push_back(id.clone());
        if self.seen_order.len() > window
            && let Some(oldest) = self.seen_order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_then_its_rate() {
        let mut bucket = Bucket::default();
        let mut taken = 0;
        for ms in 0..1_000 {
            while bucket.holds(Time::from_ms(ms), 100, 10, 1) {
                bucket.take(1);
                taken += 1;
            }
        }
        assert_eq!(taken, 10 + 99);
    }
}
