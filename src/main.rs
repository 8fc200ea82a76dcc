//! The `abhyasa` command.

use abhyasa::cli::Cli;
use clap::Parser as _;
use std::process::ExitCode;

/// Obligations are many small, short-lived allocations over several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    Cli::parse().run()
}
