//! The `abhyasa` command.

use abhyasa::cli::Cli;
use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    Cli::parse().run()
}
