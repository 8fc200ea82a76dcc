//! Bounded exponential backoff (AB-2): base, factor two, cap, jitter.

/// The schedule of retries. Jitter only shortens a delay, so the cap is a true upper bound on the
/// silence between two attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Backoff {
    /// First delay, in milliseconds; at least 1.
    pub base_ms: u64,
    /// Longest delay, in milliseconds; at least the base.
    pub cap_ms: u64,
    /// How much of a delay may be cut off at random, in thousandths; below 1000.
    pub jitter_permille: u16,
}

impl Backoff {
    /// The delay after `attempt` retries were made, before jitter: `min(cap, base * 2^attempt)`.
    ///
    /// ```
    /// # use abhyasa_proto::backoff::Backoff;
    /// let backoff = Backoff { base_ms: 1_000, cap_ms: 64_000, jitter_permille: 200 };
    /// assert_eq!(backoff.ceiling_ms(0), 1_000);
    /// assert_eq!(backoff.ceiling_ms(30), 64_000);
    /// ```
    #[must_use]
    pub fn ceiling_ms(&self, attempt: u32) -> u64 {
        let factor = 1u64.checked_shl(attempt).unwrap_or(u64::MAX);
        self.base_ms.saturating_mul(factor).min(self.cap_ms)
    }

    /// The shortest delay jitter leaves of [`Self::ceiling_ms`].
    #[must_use]
    pub fn floor_ms(&self, attempt: u32) -> u64 {
        let ceiling = self.ceiling_ms(attempt);
        ceiling
            - ceiling / 1000 * u64::from(self.jitter_permille)
            - ceiling % 1000 * u64::from(self.jitter_permille) / 1000
    }

    /// The delay with jitter drawn from `seed`: the same seed gives the same delay.
    #[must_use]
    //= DT-1
    pub fn delay_ms(&self, attempt: u32, seed: u64) -> u64 {
        let floor = self.floor_ms(attempt);
        let room = self.ceiling_ms(attempt) - floor;
        floor + if room == 0 { 0 } else { mix(seed ^ u64::from(attempt)) % (room + 1) }
    }

    /// How many retries it takes, all at their shortest, to reach `deadline_ms` (AB-2: retries
    /// span the deadline, so the deadline and not the budget ends a transfer).
    #[must_use]
    pub fn retries_needed(&self, deadline_ms: u64) -> u64 {
        let mut reached = 0u64;
        let mut retries = 0u64;
        // At most 64 doublings until the cap, then one division: no loop over the deadline.
        while reached < deadline_ms {
            let attempt = u32::try_from(retries).unwrap_or(u32::MAX);
            let floor = self.floor_ms(attempt).max(1);
            if self.ceiling_ms(attempt) == self.cap_ms {
                return retries + (deadline_ms - reached).div_ceil(floor);
            }
            reached = reached.saturating_add(floor);
            retries += 1;
        }
        retries
    }
}

/// SplitMix64: spreads a seed over 64 bits. Jitter needs no secrecy, only spread and repeatability.
#[must_use]
pub const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ab2_backoff_doubles_to_its_cap_and_jitter_only_shortens() {
        let backoff = Backoff { base_ms: 1_000, cap_ms: 64_000, jitter_permille: 250 };
        let ceilings: Vec<_> = (0..8).map(|n| backoff.ceiling_ms(n)).collect();
        assert_eq!(ceilings, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 64_000]);
        for seed in 0..1_000 {
            let delay = backoff.delay_ms(3, seed);
            assert!((6_000..=8_000).contains(&delay), "{delay}");
        }
        assert_eq!(backoff.delay_ms(3, 9), backoff.delay_ms(3, 9), "same seed, same delay");
        assert!((0..50).any(|s| backoff.delay_ms(3, s) != backoff.delay_ms(3, s + 1)));
    }

    #[test]
    fn ab2_needed_retries_match_a_step_by_step_count() {
        // The papers' conformance channel: deadline 600 s, cap 64 s, no jitter, 15 attempts.
        let paper = Backoff { base_ms: 1_000, cap_ms: 64_000, jitter_permille: 0 };
        assert_eq!(paper.retries_needed(600_000), 15);
        for (base_ms, cap_ms, jitter_permille) in [(1, 1, 0), (7, 900, 300), (1_000, 60_000, 999)] {
            let backoff = Backoff { base_ms, cap_ms, jitter_permille };
            for deadline in [1, 10, 999, 36_000] {
                let (mut reached, mut count) = (0, 0u32);
                while reached < deadline {
                    reached += backoff.floor_ms(count).max(1);
                    count += 1;
                }
                assert_eq!(
                    backoff.retries_needed(deadline),
                    u64::from(count),
                    "{backoff:?} {deadline}"
                );
            }
        }
    }
}
