//! How long a packet takes.

use crate::{Micros, Rng};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::fmt;
use std::str::FromStr;

/// One-way delay of a packet. A spread reorders.
///
/// Written `"50ms"`, `"20ms..80ms"` (uniform), or `"pareto 20ms 1.5 2s"`: least delay, shape, and
/// the longest there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Delay {
    /// Always the same.
    Fixed(Micros),
    /// Anything between the two.
    Uniform(Micros, Micros),
    /// A heavy tail: `min / u^(1/shape)`, at most `max`.
    Pareto {
        /// Least.
        min: Micros,
        /// The smaller, the heavier the tail.
        shape: f64,
        /// Longest.
        max: Micros,
    },
}

impl Default for Delay {
    fn default() -> Self {
        Self::Fixed(Micros(0))
    }
}

impl Delay {
    /// One delay.
    pub fn draw(&self, rng: &mut Rng) -> Micros {
        match *self {
            Self::Fixed(delay) => delay,
            Self::Uniform(min, max) => Micros(rng.range(min.0, max.0)),
            Self::Pareto { min, shape, max } => {
                let drawn = min.0 as f64 * libm::pow(rng.fraction(), -1.0 / shape);
                Micros((drawn as u64).min(max.0))
            }
        }
    }

    /// The shortest there is.
    #[must_use]
    pub const fn min(&self) -> Micros {
        match *self {
            Self::Fixed(min) | Self::Uniform(min, _) | Self::Pareto { min, .. } => min,
        }
    }

    /// The longest there is.
    #[must_use]
    pub const fn max(&self) -> Micros {
        match *self {
            Self::Fixed(max) | Self::Uniform(_, max) | Self::Pareto { max, .. } => max,
        }
    }
}

impl FromStr for Delay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.trim().strip_prefix("pareto ") {
            let wrong = || format!("{text:?} is no delay such as \"pareto 20ms 1.5 2s\"");
            let parts: Vec<&str> = rest.split_whitespace().collect();
            let [min, shape, max] = parts.as_slice() else { return Err(wrong()) };
            let (min, max) = (min.parse::<Micros>()?, max.parse::<Micros>()?);
            let shape: f64 = shape.parse().map_err(|_| wrong())?;
            let good = shape > 0.0 && shape.is_finite() && min <= max && min.0 > 0;
            return good.then_some(Self::Pareto { min, shape, max }).ok_or_else(wrong);
        }
        match text.split_once("..") {
            None => text.parse().map(Self::Fixed),
            Some((min, max)) => {
                let (min, max) = (min.parse::<Micros>()?, max.parse::<Micros>()?);
                let ordered = (min <= max).then_some(Self::Uniform(min, max));
                ordered.ok_or_else(|| format!("{text:?}: the shortest delay comes first"))
            }
        }
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(delay) => delay.fmt(f),
            Self::Uniform(min, max) => write!(f, "{min}..{max}"),
            Self::Pareto { min, shape, max } => write!(f, "pareto {min} {shape} {max}"),
        }
    }
}

impl Serialize for Delay {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Delay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'_, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}
