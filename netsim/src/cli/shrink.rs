//! `netsim shrink`.

use crate::shrink::{Broken, Progress, shrink};
use anyhow::{Context as _, bail};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Make a scenario that breaks a promise as small as it goes, and write it down.
///
/// Faults and obligations are named and left out one after the other, options become those of a quiet
/// run, times become shorter, as long as the same promise breaks. Ctrl-C writes what is there. Exit code
/// 0: nothing was broken. 127: a crash was shrunk. 128: a liveness violation. 129: a safety violation.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A scenario file.
    #[arg(required_unless_present = "seed")]
    file: Option<String>,
    /// The swarm run of this seed instead.
    #[arg(long, conflicts_with = "file")]
    seed: Option<u64>,
    /// Obligations of the swarm run.
    #[arg(long, default_value_t = super::run::TRANSFERS_DEFAULT)]
    transfers: u32,
    /// Where the small scenario is written.
    #[arg(long, default_value = "shrunk.toml")]
    out: String,
    /// Runs at most.
    #[arg(long, default_value_t = 5_000)]
    runs: u32,
}

pub(super) fn shrink_to_file(args: &Args) -> anyhow::Result<ExitCode> {
    let options = super::replay::options(args.file.as_deref(), args.seed, args.transfers)?;
    if options.world != crate::Arena::Core {
        bail!("{:?} is another world than the core's", options.world);
    }
    let stop = super::interrupted()?;
    // Panics are looked for too, and told once, at the end.
    std::panic::set_hook(Box::new(|_| {}));
    let progress = std::io::stderr().is_terminal();
    let mut watch = |seen: &Progress<'_>| {
        if progress {
            let Progress { pass, runs, faults, obligations } = seen;
            eprint!("\r{runs} runs, {pass}: {faults} faults, {obligations} obligations left    ");
            let _ = std::io::stderr().flush();
        }
        !stop.load(Ordering::SeqCst)
    };
    let Some((small, broken, runs)) = shrink(&options, args.runs, &mut watch) else {
        eprintln!("every promise was kept: there is nothing to shrink");
        return Ok(ExitCode::SUCCESS);
    };
    let Broken { rule, class, at_ms, node, detail } = &broken;
    let name = crate::Options::name(*node);
    let told = format!("{class:?} {rule} at node {name} after {at_ms} ms: {detail}");
    let again = format!("netsim replay {} --events", args.out);
    let toml = small.to_toml().map_err(|why| anyhow::anyhow!("{why}"))?;
    let text = format!("# {}\n# {again}\n{toml}", told.replace('\n', " "));
    std::fs::write(&args.out, text).with_context(|| args.out.clone())?;
    eprintln!("\r{told}                    ");
    eprintln!(
        "{} faults and {} obligations are left after {runs} runs, in {}",
        small.timeline.as_ref().map_or(0, Vec::len),
        small.only.as_ref().map_or(0, std::collections::BTreeSet::len),
        args.out
    );
    eprintln!("again: {again}");
    Ok(super::code(Some(*class)))
}
