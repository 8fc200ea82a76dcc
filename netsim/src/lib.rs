//! The core world: real custody machines on a simulated network, disk and clock.
//!
//! A run is a function of its [`Options`]: no threads, no OS clock, no map of random order. Faults
//! come first, then everything heals and must converge. [`check::Checker`] watches from outside.

pub mod check;
pub mod cli;
mod disk;
mod net;
mod node;
#[cfg(feature = "node")]
pub mod node_world;
mod options;
mod pair;
pub mod pool;
#[cfg(feature = "node")]
pub mod real;
mod run;
mod scenario;
mod solo;
mod tuning;
mod workload;
mod world;

pub use disk::SimStore;
pub use link::{Bursts, Chance, Delay, LinkModel, Micros, Rng};
pub use net::Mode;
pub use options::{HandlerModel, KINDS, Options, Sabotage};
pub use pair::{Pair, draft};
pub use run::{Counts, Report, run, run_logged};
pub use scenario::{Arena, CrashPoint, DiskModel, Fault, FaultKind, LinkOf, Policy};
pub use solo::Solo;
pub use tuning::Tuning;
pub use world::{LogLine, World};
