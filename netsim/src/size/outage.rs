//! How long outages last.

use link::{Micros, Rng};
use std::fmt;
use std::str::FromStr;

/// A distribution of lengths of outages. Written `"none"`, `"fixed 60s"`, `"uniform 5s 60s"`,
/// `"exp 30s"` (its mean), or `"pareto 5s 1.5 1h"`: shortest, shape, and the longest there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outage {
    /// There are none.
    None,
    /// Always the same.
    Fixed(Micros),
    /// Anything between the two.
    Uniform(Micros, Micros),
    /// Exponential, with this mean.
    Exponential(Micros),
    /// A heavy tail, cut off.
    Pareto {
        /// Shortest.
        min: Micros,
        /// The smaller, the heavier the tail.
        shape: f64,
        /// Longest.
        max: Micros,
    },
}

/// How far out the tail of an exponential distribution is looked for, in means: e^-60.
const EXPONENTIAL_MEANS: f64 = 60.0;

impl Outage {
    /// One length.
    pub fn draw(&self, rng: &mut Rng) -> Micros {
        match *self {
            Self::None => Micros(0),
            Self::Fixed(length) => length,
            Self::Uniform(min, max) => Micros(rng.range(min.0, max.0)),
            Self::Exponential(mean) => Micros(rng.exponential(mean.0)),
            Self::Pareto { min, shape, max } => link::Delay::Pareto { min, shape, max }.draw(rng),
        }
    }

    /// The area under the survival function beyond `x` seconds: the mean of what an outage lasts
    /// longer than that.
    fn beyond(&self, x: f64) -> f64 {
        match *self {
            Self::None => 0.0,
            Self::Fixed(length) => (length.seconds() - x).max(0.0),
            Self::Exponential(mean) => mean.seconds() * (-x / mean.seconds()).exp(),
            Self::Uniform(min, max) => {
                let (a, b) = (min.seconds(), max.seconds());
                match x {
                    _ if x >= b => 0.0,
                    _ if x >= a => (b - x).powi(2) / (2.0 * (b - a)),
                    _ => a - x + (b - a) / 2.0,
                }
            }
            Self::Pareto { min, shape, max } => {
                let (min, max) = (min.seconds(), max.seconds());
                if x < min {
                    return min - x + self.beyond(min);
                }
                if x >= max {
                    return 0.0;
                }
                if (shape - 1.0).abs() < 1e-9 {
                    return min * (max / x).ln();
                }
                min.powf(shape) * (x.powf(1.0 - shape) - max.powf(1.0 - shape)) / (shape - 1.0)
            }
        }
    }

    /// Of all moments inside outages, the share that have more than `x` seconds of theirs left. Long
    /// outages hold more moments, so that this has a heavier tail than their lengths.
    #[must_use]
    pub fn left_beyond(&self, x: f64) -> f64 {
        let all = self.beyond(0.0);
        if all > 0.0 { (self.beyond(x) / all).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// The seconds that all but a share `target` of the moments inside outages have left, at most.
    #[must_use]
    pub fn left_quantile(&self, target: f64) -> f64 {
        let (mut low, mut high) = (0.0, self.longest_s());
        for _ in 0..100 {
            let middle = f64::midpoint(low, high);
            if self.left_beyond(middle) > target {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    fn longest_s(&self) -> f64 {
        match self {
            Self::None => 0.0,
            Self::Fixed(longest) | Self::Uniform(_, longest) => longest.seconds(),
            Self::Exponential(mean) => mean.seconds() * EXPONENTIAL_MEANS,
            Self::Pareto { max, .. } => max.seconds(),
        }
    }

    /// The mean length, in seconds.
    #[must_use]
    pub fn mean_s(&self) -> f64 {
        self.beyond(0.0)
    }
}

impl FromStr for Outage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let outage = match parts.as_slice() {
            ["none"] => Self::None,
            ["fixed", length] => Self::Fixed(length.parse()?),
            ["exp", mean] => Self::Exponential(mean.parse()?),
            ["uniform", min, max] => Self::Uniform(min.parse()?, max.parse()?),
            ["pareto", min, shape, max] => {
                let shape = shape.parse().map_err(|_| format!("{shape:?} is no shape"))?;
                Self::Pareto { min: min.parse()?, shape, max: max.parse()? }
            }
            _ => {
                return Err(format!(
                    "{text:?} is none of \"none\", \"fixed 60s\", \"uniform 5s 60s\", \"exp 30s\", \
                     \"pareto 5s 1.5 1h\""
                ));
            }
        };
        let sound = match outage {
            Self::None => true,
            Self::Fixed(length) | Self::Exponential(length) => length.0 > 0,
            Self::Uniform(min, max) => min < max,
            Self::Pareto { min, shape, max } => {
                min.0 > 0 && min < max && shape > 0.0 && shape.is_finite()
            }
        };
        sound.then_some(outage).ok_or_else(|| format!("{text:?}: lengths are above 0 and in order"))
    }
}

impl fmt::Display for Outage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Fixed(length) => write!(f, "fixed {length}"),
            Self::Exponential(mean) => write!(f, "exp {mean}"),
            Self::Uniform(min, max) => write!(f, "uniform {min} {max}"),
            Self::Pareto { min, shape, max } => write!(f, "pareto {min} {shape} {max}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 5] =
        ["fixed 1m", "exp 30s", "uniform 5s 1m", "pareto 5s 1.5 1h", "pareto 5s 1 1h"];

    #[test]
    fn distributions_are_read_and_written() {
        for text in ALL.into_iter().chain(["none"]) {
            assert_eq!(text.parse::<Outage>().unwrap().to_string(), text);
        }
        for wrong in ["", "fixed", "fixed 0s", "uniform 5s 5s", "pareto 5s 0 1h", "weibull 1s"] {
            assert!(wrong.parse::<Outage>().is_err(), "{wrong:?}");
        }
    }

    /// The formulas, against moments drawn inside of drawn outages.
    #[test]
    fn what_is_left_at_a_moment_inside_an_outage_is_as_the_formula_says() {
        for text in ALL {
            let outage: Outage = text.parse().unwrap();
            let mut rng = Rng::new(1, 1);
            let lengths: Vec<f64> = (0..200_000).map(|_| outage.draw(&mut rng).seconds()).collect();
            let all: f64 = lengths.iter().sum();
            let mean = all / lengths.len() as f64;
            assert!((mean / outage.mean_s() - 1.0).abs() < 0.05, "{text}: mean {mean}");
            for target in [0.5, 0.1, 0.01] {
                let x = outage.left_quantile(target);
                let left = lengths.iter().map(|length| (length - x).max(0.0)).sum::<f64>() / all;
                // Few of the drawn outages are as long as the rarest moments need.
                let off = if target < 0.1 { 0.35 } else { 0.15 };
                assert!((left / target - 1.0).abs() < off, "{text}, {target}: {left} beyond {x} s");
            }
        }
    }
}
