//! `netsim replay`.

use crate::options::Options;
use crate::run::{run, run_logged};
use anyhow::bail;
use std::io::Write;
use std::process::ExitCode;

/// Run one scenario again, and tell what happened in it.
///
/// Prints the hash of all that the checkers saw: the same file gives the same hash. Exit code 0: every
/// promise held. 128: liveness broke. 129: safety broke.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A scenario file, as `netsim shrink` writes them.
    #[arg(required_unless_present = "seed")]
    file: Option<String>,
    /// The swarm run of this seed instead.
    #[arg(long, conflicts_with = "file")]
    seed: Option<u64>,
    /// Obligations of the swarm run.
    #[arg(long, default_value_t = super::run::TRANSFERS_DEFAULT)]
    transfers: u32,
    /// Tell everything that happened, a line each.
    #[arg(long)]
    events: bool,
    /// Of that, only the lines that name this, such as the id of an obligation.
    #[arg(long, requires = "events")]
    about: Option<String>,
}

/// The options of a scenario file, or of the swarm run of a seed.
pub(super) fn options(
    file: Option<&str>,
    seed: Option<u64>,
    transfers: u32,
) -> anyhow::Result<Options> {
    match (file, seed) {
        (_, Some(seed)) => Ok(Options::swarm(seed, transfers)),
        (Some(file), None) => super::run::scenario(file),
        (None, None) => bail!("name a scenario file, or a seed: --seed 1"),
    }
}

pub(super) fn run_again(args: &Args) -> anyhow::Result<ExitCode> {
    let options = options(args.file.as_deref(), args.seed, args.transfers)?;
    let (report, log) =
        if args.events { run_logged(&options) } else { (run(&options), Vec::new()) };
    let mut out = std::io::stdout().lock();
    let about = args.about.as_deref().unwrap_or_default();
    for line in log.iter().filter(|line| line.what.contains(about)) {
        let node = line.node.map(Options::name).unwrap_or_default();
        writeln!(out, "{:>10} ms {node:>6}  {}", line.at_ms, line.what)?;
    }
    writeln!(out, "trace {:016x}, {} events", report.trace, report.events)?;
    writeln!(out, "{}", serde_json::to_string(&report.counts)?)?;
    for violation in &report.violations {
        let at_ms = report.since_begun(violation);
        writeln!(
            out,
            "{:?} {} at node {} after {at_ms} ms: {}",
            violation.class,
            violation.rule,
            Options::name(violation.node),
            violation.detail
        )?;
    }
    Ok(super::code(report.worst()))
}
