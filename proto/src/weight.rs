//! Weights as integers: state that two nodes compare must not depend on float rounding.

use std::fmt;

/// Nano-units in one unit.
const NANOS: f64 = 1e9;

/// A weight, or a change of one, in fixed point with nine decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(i64);

/// Why a number is no [`Weight`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightError {
    /// NaN or infinite.
    #[error("a weight must be a finite number")]
    NotFinite,
    /// Not zero, and yet it would be stored as zero: a correction that corrects nothing.
    #[error("a weight of {value:e} is below the resolution of 1e-9")]
    TooSmall {
        /// The number given.
        value: f64,
    },
    /// Beyond [`Weight::MAX`] or [`Weight::MIN`].
    #[error("a weight of {value:e} is beyond 1e6 in size")]
    TooLarge {
        /// The number given.
        value: f64,
    },
}

impl Weight {
    /// No weight, no change.
    pub const ZERO: Self = Self(0);
    /// The largest weight: one million units.
    pub const MAX: Self = Self(1_000_000_000_000_000);
    /// The smallest weight: minus one million units.
    pub const MIN: Self = Self(-Self::MAX.0);

    /// A weight from a number in units, rounded to nine decimals.
    ///
    /// # Errors
    /// [`WeightError`] for NaN, infinities, sizes over 1e6, and numbers that round to zero
    /// without being zero.
    pub fn from_f64(value: f64) -> Result<Self, WeightError> {
        if !value.is_finite() {
            return Err(WeightError::NotFinite);
        }
        let nanos = (value * NANOS).round();
        // Compared before rounding too, since 1e6 + 1e-10 would round into the range.
        if value.abs() > Self::MAX.to_f64() {
            return Err(WeightError::TooLarge { value });
        }
        if nanos == 0.0 && value != 0.0 {
            return Err(WeightError::TooSmall { value });
        }
        Ok(Self(nanos as i64)) // |nanos| <= 1e15, which f64 and i64 both hold exactly.
    }

    /// A weight from nano-units, pinned at [`Weight::MIN`] and [`Weight::MAX`].
    #[must_use]
    pub fn from_nanos(nanos: i64) -> Self {
        Self(nanos).clamp(Self::MIN, Self::MAX)
    }

    /// Nano-units.
    #[must_use]
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// Units.
    #[must_use]
    pub const fn to_f64(self) -> f64 {
        self.0 as f64 / NANOS
    }

    /// The sum, pinned at [`Weight::MIN`] and [`Weight::MAX`]; clip it to declared bounds with
    /// [`Ord::clamp`].
    #[must_use]
    pub fn saturating_add(self, change: Self) -> Self {
        Self::from_nanos(self.0 + change.0)
    }

    /// The size without the sign.
    #[must_use]
    pub const fn abs(self) -> Self {
        Self(self.0.abs())
    }

    /// The same size with the other sign.
    #[must_use]
    pub const fn negated(self) -> Self {
        Self(-self.0)
    }

    /// Whether it is below zero.
    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_mean_something_are_weights() {
        assert_eq!(Weight::from_f64(-0.4).unwrap().nanos(), -400_000_000);
        assert_eq!(Weight::from_f64(-0.0), Ok(Weight::ZERO));
        assert_eq!(Weight::from_f64(1e6), Ok(Weight::MAX));
        assert_eq!(Weight::from_f64(1e-9).unwrap().nanos(), 1);
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Weight::from_f64(bad), Err(WeightError::NotFinite));
        }
        for small in [4e-10, -4e-10, f64::MIN_POSITIVE, 5e-324] {
            assert_eq!(Weight::from_f64(small), Err(WeightError::TooSmall { value: small }));
        }
        for large in [1e6 + 1e-9, -1_000_001.0, 1e308] {
            assert_eq!(Weight::from_f64(large), Err(WeightError::TooLarge { value: large }));
        }
        assert_eq!(Weight::from_nanos(i64::MIN), Weight::MIN);
    }

    #[test]
    fn sums_are_pinned() {
        assert_eq!(Weight::MAX.saturating_add(Weight::MAX), Weight::MAX);
        assert_eq!(Weight::MIN.saturating_add(Weight::MIN.negated()), Weight::ZERO);
        assert_eq!(Weight::MIN.abs(), Weight::MAX);
    }
}
