//! The `netsim` program.
//!
//! Exit codes: 0 every promise held, 1 it could not run, 2 bad usage, 127 the core crashed,
//! 128 liveness broke, 129 safety broke.

mod arena;
mod exhaust;
mod fuzz;
mod oracle;
mod progress;
mod replay;
mod run;
mod shrink;
mod size;
mod study;

use crate::check::Class;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Simulator of abhyasa: proves deliver-or-report under faults, and measures its price.
#[derive(Debug, Parser)]
#[command(name = "netsim", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Replay(replay::Args),
    Study(study::StudyArgs),
    Size(size::SizeArgs),
    Fuzz(fuzz::FuzzArgs),
    Exhaust(Box<exhaust::ExhaustArgs>),
    Oracle(oracle::OracleArgs),
    Shrink(shrink::Args),
}

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Replay(args) => replay::run_again(&args),
        Command::Study(args) => study::run(&args),
        Command::Size(args) => size::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Exhaust(args) => exhaust::run(&args),
        Command::Oracle(args) => oracle::run(&args),
        Command::Shrink(args) => shrink::shrink_to_file(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The exit code that tells what broke.
fn code(worst: Option<Class>) -> ExitCode {
    match worst {
        None => ExitCode::SUCCESS,
        Some(Class::Crash) => ExitCode::from(127),
        Some(Class::Liveness) => ExitCode::from(128),
        Some(Class::Safety) => ExitCode::from(129),
    }
}

/// Becomes true at Ctrl-C: what runs is finished, what is there is written. A second Ctrl-C ends
/// the process.
fn interrupted() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        eprintln!("\nfinishing what runs; Ctrl-C again ends at once");
    })?;
    Ok(stop)
}

/// Threads by the flag: all cores if it is left out.
fn threads(given: Option<usize>) -> usize {
    given.unwrap_or_else(crate::pool::cores)
}
