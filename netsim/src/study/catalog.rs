//! All studies.

#[cfg(feature = "node")]
use super::price;
use super::{Study, latency, partition, receiver, relay};

/// The studies there are.
pub const STUDIES: &[Study] = &[
    partition::SWEEP,
    partition::BEST_EFFORT,
    latency::LATENCY,
    latency::RECOVERY,
    receiver::SLOW_RECEIVER,
    receiver::BASELINES,
    relay::RELAY_FANOUT,
    #[cfg(feature = "node")]
    price::PRICE,
];

impl Study {
    /// The study of a name.
    ///
    /// # Errors
    /// There is none, and those there are.
    pub fn of(name: &str) -> Result<Self, String> {
        STUDIES.iter().find(|study| study.name == name).copied().ok_or_else(|| {
            let names: Vec<&str> = STUDIES.iter().map(|study| study.name).collect();
            format!("there is no study {name:?}; there are {}", names.join(", "))
        })
    }
}
