//! What a bad link does to packets: one model for the simulator's worlds and the fault proxy.
//!
//! No clock and no socket: the caller says when a packet of how many bytes is sent, and is told
//! whether, when and how often it arrives. Everything random comes from a seed, and each concern
//! draws from a stream of its own, so that switching one fault on does not shift the others.

mod delay;
mod model;
mod rng;
mod unit;

pub use delay::Delay;
pub use model::{Bursts, Fate, Link, LinkModel, Loss, flip};
pub use rng::Rng;
pub use unit::{Chance, Micros};
