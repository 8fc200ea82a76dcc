//! Seeded randomness: SplitMix64, one stream per concern, so that a draw of one never shifts
//! another.

use proto::backoff::mix;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random numbers, the same for the same seed.
#[derive(Clone, Debug)]
//= DT-1
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

    /// One of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let at = usize::try_from(self.below(items.len() as u64)).ok()?;
        items.get(at).copied()
    }
}
