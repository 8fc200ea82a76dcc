//! Chances and durations, as scenario files write them.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;
use std::str::FromStr;

/// A chance, in millionths. Written as a fraction: `0.25`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chance(u32);

impl Chance {
    /// It does not happen.
    pub const NEVER: Self = Self(0);
    /// It happens each time.
    pub const ALWAYS: Self = Self(1_000_000);

    /// So many thousandths, at most all of them.
    #[must_use]
    pub const fn permille(permille: u32) -> Self {
        Self(if permille > 1_000 { 1_000_000 } else { permille * 1_000 })
    }

    /// The nearest chance to a fraction from 0 to 1.
    #[must_use]
    pub fn from_fraction(fraction: f64) -> Option<Self> {
        (0.0..=1.0).contains(&fraction).then_some(Self((fraction * 1e6).round() as u32))
    }

    /// In millionths.
    #[must_use]
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// As a fraction from 0 to 1.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / 1e6
    }

    /// Whether it never happens.
    #[must_use]
    pub const fn is_never(&self) -> bool {
        self.0 == 0
    }
}

impl Serialize for Chance {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.fraction())
    }
}

impl<'de> Deserialize<'de> for Chance {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fraction = f64::deserialize(deserializer)?;
        Self::from_fraction(fraction)
            .ok_or_else(|| D::Error::custom(format!("{fraction} is no chance between 0 and 1")))
    }
}

/// A duration in microseconds. Written with its unit: `"250us"`, `"40ms"`, `"1.5s"`, `"10m"`, `"1h"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

const UNITS: [(&str, u64); 5] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000)];

impl Micros {
    /// So many milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000))
    }

    /// In milliseconds, rounded down.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0 / 1_000
    }

    /// In seconds.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl FromStr for Micros {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no duration such as 250us, 40ms, 1.5s, 10m or 1h");
        let text = text.trim();
        if text == "0" {
            return Ok(Self(0));
        }
        let unit = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at_checked(unit).ok_or_else(wrong)?;
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let micros = number * *scale as f64;
        (0.0..1e18).contains(&micros).then_some(Self(micros.round() as u64)).ok_or_else(wrong)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |scale: &u64| self.0.is_multiple_of(*scale) && self.0 >= *scale;
        let unit = UNITS.iter().rev().find(|(_, scale)| whole(scale));
        let (name, scale) = unit.copied().unwrap_or(("us", 1));
        write!(f, "{}{name}", self.0 / scale)
    }
}

impl Serialize for Micros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Micros {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'_, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_with_their_unit() {
        for (text, micros) in [("250us", 250), ("40ms", 40_000), ("2s", 2_000_000)] {
            let read: Micros = text.parse().unwrap();
            assert_eq!((read.0, read.to_string().as_str()), (micros, text));
        }
        assert_eq!("1.5s".parse::<Micros>().unwrap().to_string(), "1500ms");
        assert_eq!("90m".parse::<Micros>().unwrap().to_string(), "90m");
        for wrong in ["", "5", "-1s", "s", "5 parsecs", "nanms"] {
            assert!(wrong.parse::<Micros>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_chance_is_between_never_and_always() {
        assert_eq!(Chance::from_fraction(0.25), Some(Chance::permille(250)));
        assert_eq!(Chance::from_fraction(1.1), None);
        assert_eq!(Chance::from_fraction(f64::NAN), None);
        assert_eq!(Chance::permille(2_000), Chance::ALWAYS);
    }
}
