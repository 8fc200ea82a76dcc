//! Runs seeds of the core world and tells which promise broke, with the command that reproduces it.

mod cli;

use anyhow::bail;
use clap::{Parser, Subcommand};
use netsim::check::Class;
use netsim::{Options, Report, Sabotage, run};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

/// Deterministic simulator for the abhyasa custody core.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one seed, or a range of them.
    ///
    /// Exit code 0: every promise held. 127: the core crashed. 128: liveness broke. 129: safety broke.
    Run {
        /// One seed.
        #[arg(long, conflicts_with = "seeds")]
        seed: Option<u64>,
        /// Seeds A to B, B excluded, as `A..B`.
        #[arg(long, value_parser = seeds)]
        seeds: Option<(u64, u64)>,
        /// Obligations of each run.
        #[arg(long, default_value_t = 200)]
        transfers: u32,
        /// Break the disk's word, to see promises break: lying-disk or no-ledger.
        #[arg(long, value_parser = sabotage)]
        sabotage: Option<Sabotage>,
        /// Run on after a broken seed.
        #[arg(long)]
        keep_going: bool,
        /// One JSON object for each run instead of text.
        #[arg(long)]
        json: bool,
    },
    Study(cli::study::StudyArgs),
    Size(cli::size::SizeArgs),
    Fuzz(cli::fuzz::FuzzArgs),
    Oracle(cli::oracle::OracleArgs),
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let parse = |part: &str| part.parse().map_err(|_| format!("{part:?} is no seed"));
    let (first, end) = text.split_once("..").ok_or("seeds are given as A..B, such as 0..200")?;
    let (first, end) = (parse(first)?, parse(end)?);
    if first >= end {
        return Err(format!("{first}..{end} holds no seed"));
    }
    Ok((first, end))
}

fn sabotage(text: &str) -> Result<Sabotage, String> {
    match text {
        "lying-disk" => Ok(Sabotage::LyingDisk),
        "no-ledger" => Ok(Sabotage::NoLedger),
        other => Err(format!("{other:?} is neither lying-disk nor no-ledger")),
    }
}

fn main() -> anyhow::Result<ExitCode> {
    let (seed, seeds, transfers, sabotage, keep_going, json) = match Cli::parse().command {
        Command::Run { seed, seeds, transfers, sabotage, keep_going, json } => {
            (seed, seeds, transfers, sabotage, keep_going, json)
        }
        Command::Study(args) => return cli::study::run(&args),
        Command::Size(args) => return cli::size::run(&args),
        Command::Fuzz(args) => return cli::fuzz::run(&args),
        Command::Oracle(args) => return cli::oracle::run(&args),
    };
    let (first, end) = match (seed, seeds) {
        (Some(seed), _) => (seed, seed.saturating_add(1)),
        (None, Some(range)) => range,
        (None, None) => bail!("name a seed: --seed 1, or a range: --seeds 0..200"),
    };
    let again = |seed: u64| {
        let sabotage = match sabotage {
            Some(Sabotage::LyingDisk) => " --sabotage lying-disk",
            Some(Sabotage::NoLedger) => " --sabotage no-ledger",
            Some(Sabotage::Honest) | None => "",
        };
        format!("netsim run --seed {seed} --transfers {transfers}{sabotage}")
    };
    let begun = Instant::now();
    let (mut done, mut broken, mut total, mut worst) = (0u64, 0u64, 0u64, None);
    let progress = std::io::stderr().is_terminal() && !json;
    for seed in first..end {
        let mut options = Options::swarm(seed, transfers);
        options.sabotage = sabotage.unwrap_or(options.sabotage);
        let Ok(report) = std::panic::catch_unwind(|| run(&options)) else {
            eprintln!("seed {seed} panicked; options: {}", serde_json::to_string(&options)?);
            eprintln!("again: {}", again(seed));
            worst = worst.max(Some(Class::Crash));
            broken += 1;
            if keep_going {
                continue;
            }
            break;
        };
        done += 1;
        let counts = &report.counts;
        total += counts.applied + counts.declined + counts.escalated + counts.best_effort;
        if json {
            println!("{}", serde_json::to_string(&report)?);
        }
        if progress {
            let rate = total as f64 / begun.elapsed().as_secs_f64();
            eprint!(
                "\rseed {seed}: {done} of {} done, {broken} broken, {total} transfers, {rate:.0}/s  ",
                end - first
            );
            std::io::stderr().flush()?;
        }
        if let Some(class) = report.worst() {
            broken += 1;
            worst = worst.max(Some(class));
            explain(&report, &again(seed), json)?;
            if !keep_going {
                break;
            }
        } else if end - first == 1 && !json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    eprintln!(
        "\r{done} seeds, {broken} broken, {total} transfers in {seconds:.1} s: {:.0}/s        ",
        total as f64 / seconds
    );
    Ok(match worst {
        None => ExitCode::SUCCESS,
        Some(Class::Crash) => ExitCode::from(127),
        Some(Class::Liveness) => ExitCode::from(128),
        Some(Class::Safety) => ExitCode::from(129),
    })
}

fn explain(report: &Report, again: &str, json: bool) -> anyhow::Result<()> {
    let seed = report.options.seed;
    eprintln!("\rseed {seed} broke a promise after {} ms of virtual time", report.virtual_ms);
    for violation in report.violations.iter().take(3) {
        eprintln!(
            "  {:?} {} at node {}: {}",
            violation.class, violation.rule, violation.node, violation.detail
        );
    }
    if !json {
        eprintln!("  options: {}", serde_json::to_string(&report.options)?);
    }
    eprintln!("  again: {again}");
    Ok(())
}
