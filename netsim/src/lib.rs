//! The core world: real custody machines on a simulated network, disk and clock.
//!
//! A run is a function of its [`Options`]: no threads, no OS clock, no map of random order. Faults
//! come first, then everything heals and must converge. [`check::Checker`] watches from outside.

mod baseline;
mod builtin;
pub mod check;
pub mod cli;
pub mod consent;
mod disk;
pub mod exhaust;
pub mod fuzz;
mod measures;
mod net;
mod node;
#[cfg(feature = "node")]
pub mod node_world;
mod options;
pub mod oracle;
mod pair;
pub mod pool;
#[cfg(feature = "node")]
pub mod price;
#[cfg(feature = "node")]
pub mod real;
pub mod report;
mod run;
mod scenario;
pub mod shrink;
pub mod size;
mod solo;
pub mod stats;
pub mod study;
mod tuning;
mod workload;
mod world;

pub use baseline::run as run_model;
pub use builtin::SCENARIOS;
pub use disk::SimStore;
pub use link::{Bursts, Chance, Delay, LinkModel, Micros, Rng};
pub use measures::{Measures, Summary};
pub use net::Mode;
pub use options::{HandlerModel, KINDS, Options, Sabotage};
pub use pair::{Pair, draft};
pub use run::{Counts, Report, run, run_logged};
pub use scenario::{Arena, CrashPoint, DiskModel, Fault, FaultKind, LinkOf, Policy, RelayModel};
pub use solo::Solo;
pub use tuning::{Congestion, Tuning};
pub use world::{LogLine, World};
