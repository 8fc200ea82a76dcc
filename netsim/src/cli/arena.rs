//! Runs a scenario in the world it asks for.

use crate::check::{Class, Violation};
use crate::options::Options;
use crate::run::{Counts, Report};
use crate::scenario::Arena;
use serde::Serialize;
use std::path::PathBuf;

/// What came of a run, in whatever world.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Told {
    Core(Box<Report>),
    #[cfg(feature = "node")]
    Node(Box<crate::node_world::NodeReport>),
    #[cfg(feature = "node")]
    Real(Box<crate::real::RealReport>),
}

impl Told {
    pub(super) const fn counts(&self) -> &Counts {
        match self {
            Self::Core(report) => &report.counts,
            #[cfg(feature = "node")]
            Self::Node(report) => &report.run.counts,
            #[cfg(feature = "node")]
            Self::Real(report) => &report.counts,
        }
    }

    pub(super) fn violations(&self) -> &[Violation] {
        match self {
            Self::Core(report) => &report.violations,
            #[cfg(feature = "node")]
            Self::Node(report) => &report.run.violations,
            #[cfg(feature = "node")]
            Self::Real(report) => &report.violations,
        }
    }

    pub(super) const fn options(&self) -> &Options {
        match self {
            Self::Core(report) => &report.options,
            #[cfg(feature = "node")]
            Self::Node(report) => &report.run.options,
            #[cfg(feature = "node")]
            Self::Real(report) => &report.options,
        }
    }

    /// How long it took, in the time of its world.
    pub(super) const fn ms(&self) -> u64 {
        match self {
            Self::Core(report) => report.virtual_ms,
            #[cfg(feature = "node")]
            Self::Node(report) => report.run.virtual_ms,
            #[cfg(feature = "node")]
            Self::Real(report) => report.wall_ms,
        }
    }

    /// The worst class of what was broken: safety before liveness before a crash.
    pub(super) fn worst(&self) -> Option<Class> {
        self.violations().iter().map(|violation| violation.class).max()
    }
}

/// The swarm run of a seed in a world.
pub(super) fn swarm(arena: Arena, seed: u64, transfers: u32) -> Options {
    match arena {
        #[cfg(feature = "node")]
        Arena::Node => crate::node_world::swarm(seed, transfers),
        #[cfg(feature = "node")]
        Arena::Real => crate::real::swarm(seed, transfers),
        _ => Options { world: arena, ..Options::swarm(seed, transfers) },
    }
}

/// Runs a scenario. `program` is the `abhyasa` executable for the real world, if it is not the one
/// beside this program; `keep` its files, whatever comes of the run.
#[cfg_attr(not(feature = "node"), expect(unused_variables, reason = "the core needs no program"))]
pub(super) fn run(options: &Options, program: Option<PathBuf>, keep: bool) -> anyhow::Result<Told> {
    match options.world {
        Arena::Core => Ok(Told::Core(Box::new(crate::run::run(options)))),
        #[cfg(feature = "node")]
        Arena::Node => Ok(Told::Node(Box::new(crate::node_world::run(options)?))),
        #[cfg(feature = "node")]
        Arena::Real => {
            let setup = crate::real::RealSetup { program, keep };
            Ok(Told::Real(Box::new(crate::real::run(options, &setup)?)))
        }
        #[allow(unreachable_patterns, reason = "without the node there are two more")]
        _ => anyhow::bail!(
            "this netsim was built without the node: build it with its default features"
        ),
    }
}
