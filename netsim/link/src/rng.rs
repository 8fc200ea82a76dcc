//! Seeded randomness: SplitMix64, one stream per concern, so that a draw of one never shifts
//! another.

use crate::Chance;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The SplitMix64 finalizer.
const fn mix(n: u64) -> u64 {
    let mut n = n.wrapping_add(GOLDEN);
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// A stream of random numbers, the same for the same seed on every machine.
//= DT-1
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream `name` of `seed`.
    #[must_use]
    pub const fn new(seed: u64, name: u64) -> Self {
        Self(mix(seed ^ mix(name)))
    }

    /// The next number.
    pub const fn draw(&mut self) -> u64 {
        let drawn = mix(self.0);
        self.0 = self.0.wrapping_add(GOLDEN);
        drawn
    }

    /// A number below `bound`; 0 if the bound is 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        match self.draw().checked_rem(bound) {
            Some(drawn) => drawn,
            None => 0,
        }
    }

    /// A number from `low` to `high`, both included; `low` if they are the wrong way round.
    pub const fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Whether something with this chance, in thousandths, happens.
    pub const fn chance(&mut self, permille: u32) -> bool {
        self.below(1000) < permille as u64
    }

    /// Whether something with this chance happens.
    pub const fn happens(&mut self, chance: Chance) -> bool {
        self.below(Chance::ALWAYS.ppm() as u64) < chance.ppm() as u64
    }

    /// A fraction above 0, up to and with 1.
    pub fn fraction(&mut self) -> f64 {
        ((self.draw() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A duration of an exponential distribution with this mean.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        (-libm::log(self.fraction()) * mean as f64) as u64
    }

    /// One of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let at = usize::try_from(self.below(items.len() as u64)).ok()?;
        items.get(at).copied()
    }
}
