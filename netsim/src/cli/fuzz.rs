//! `netsim fuzz`.

use super::progress::Progress;
use crate::fuzz::{REFERENCE, REFERENCE_ATTEMPTS, expected, expected_attempts, fuzz};
use clap::Args;
use serde_json::json;
use std::process::ExitCode;

/// The conformance fuzz of the paper on the real core: loss, duplication and loss of the answer drawn
/// evenly for each transfer.
///
/// Exit code 0: nothing was lost or applied twice, and the shares are those of the closed form, inside
/// the 99 % interval. 129: not so.
#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// How many.
    #[arg(long, default_value_t = 1_000_000)]
    transfers: u64,
    /// Everything random comes from it.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads; all cores if left out.
    #[arg(long)]
    threads: Option<usize>,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(crate) fn run(args: &FuzzArgs) -> anyhow::Result<ExitCode> {
    let stop = super::interrupted()?;
    let mut progress = Progress::new("transfers");
    let tally = fuzz(args.transfers, args.seed, super::threads(args.threads), &stop, |done| {
        progress.at(done, args.transfers);
    });
    let seconds = progress.done();
    let (shares, form) = (tally.shares(), expected());
    let holds = tally.holds();
    if args.json {
        let all = json!({
            "command": format!("netsim fuzz --transfers {} --seed {}", args.transfers, args.seed),
            "seconds": seconds,
            "tally": tally,
            "shares": shares,
            "attempts_mean": tally.attempts_mean(),
            "closed_form": {"shares": form, "attempts_mean": expected_attempts()},
            "reference": {"shares": REFERENCE, "attempts_mean": REFERENCE_ATTEMPTS, "transfers": 100_000},
            "holds": holds,
        });
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        println!("{:14} {:>10} {:>10} {:>10}", "", "here", "closed form", "reference");
        for (name, here, form, reference) in [
            ("applied", shares.applied, form.applied, REFERENCE.applied),
            ("declined", shares.declined, form.declined, REFERENCE.declined),
            ("escalated", shares.escalated, form.escalated, REFERENCE.escalated),
        ] {
            println!(
                "{name:14} {:>9.3} % {:>9.3} % {:>9.1} %",
                here * 100.0,
                form * 100.0,
                reference * 100.0
            );
        }
        println!(
            "{:14} {:>10.3}  {:>10.3}  {:>10.1}",
            "attempts",
            tally.attempts_mean(),
            expected_attempts(),
            REFERENCE_ATTEMPTS
        );
        println!(
            "{} transfers in {seconds:.1} s: {} silent losses, {} applied twice, {} broken promises",
            tally.transfers,
            tally.silent,
            tally.doubled,
            tally.violations.len()
        );
        for violation in &tally.violations {
            println!("  {violation}");
        }
    }
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(129) })
}
