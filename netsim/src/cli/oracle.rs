//! `netsim oracle`.

use super::progress::Progress;
use crate::oracle::{ASKS, Ask, Found, ask};
use anyhow::ensure;
use clap::Args;
use serde_json::json;
use std::process::ExitCode;

/// Holds the simulator against the closed form of escalations at a given loss.
///
/// Exit code 0: every count lies inside the 99 % interval. 129: one does not.
#[derive(Debug, Args)]
pub(crate) struct OracleArgs {
    /// Seeds of each loss, from 0.
    #[arg(long)]
    seeds: Option<u64>,
    /// Only this loss: 0.3, 0.5, 0.7 or 0.9.
    #[arg(long)]
    loss: Option<f64>,
    /// Threads; all cores if left out.
    #[arg(long)]
    threads: Option<usize>,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub(crate) fn run(args: &OracleArgs) -> anyhow::Result<ExitCode> {
    let stop = super::interrupted()?;
    let threads = super::threads(args.threads);
    let wanted = |ask: &Ask| args.loss.is_none_or(|loss| loss == ask.loss());
    let mut asks: Vec<Ask> = ASKS.into_iter().filter(wanted).collect();
    ensure!(
        !asks.is_empty(),
        "the losses are {}",
        ASKS.map(|ask| ask.loss().to_string()).join(", ")
    );
    for ask in &mut asks {
        ask.seeds = args.seeds.unwrap_or(ask.seeds);
    }
    let total: u64 = asks.iter().map(|ask| ask.seeds).sum();
    let mut progress = Progress::new("seeds");
    let (mut done, mut found): (u64, Vec<Found>) = (0, Vec::new());
    for one in asks {
        let told = || {
            done += 1;
            progress.at(done, total);
        };
        found.extend(ask(one, threads, &stop, told).map_err(anyhow::Error::msg)?);
    }
    let seconds = progress.done();
    let holds = found.iter().all(Found::holds);
    if args.json {
        let all = json!({"seconds": seconds, "holds": holds, "found": found});
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        println!(
            "{:>5} {:10} {:>10} {:>12} {:>12} {:>9} {:>7} {:>7} {:>8}",
            "loss", "", "transfers", "odds", "expected", "seen", "sigmas", "spread", "outside"
        );
        for f in &found {
            println!(
                "{:>5} {:10} {:>10} {:>12.3e} {:>12.1} {:>9} {:>7.2} {:>7.2} {:>4}/{}",
                f.loss,
                f.what,
                f.transfers,
                f.odds,
                f.expected,
                f.seen,
                f.sigmas,
                f.spread,
                f.seeds_outside,
                f.seeds
            );
        }
        println!("{seconds:.1} s");
    }
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(129) })
}
