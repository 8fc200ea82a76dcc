//! Measures abhyasa beside message queues, each with acks only after fsync.
//!
//! The program is its own load generator and its own second node: it starts itself again for those,
//! so that each can be bound to a core.

mod control;
mod figures;
mod goals;
mod install;
mod load;
mod process;
mod report;
mod run;
mod scale;
mod server;
mod sync;

use clap::Parser as _;
use std::path::PathBuf;

/// As `abhyasa` itself has.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures abhyasa beside message queues, each with acks only after fsync.
#[derive(Debug, clap::Parser)]
#[command(name = "abhyasa-peers", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    run: run::Args,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What this program does in a process of its own.
#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Measures our node alone, as its sizes grow.
    Scale(scale::Args),
    /// Runs one part of one point of a curve.
    #[command(name = "scale-part", hide = true)]
    Point(scale::PartArgs),
    /// Is one peer or many, without a store.
    #[command(name = "scale-stub", hide = true)]
    Stub(scale::StubArgs),
    /// Drives one peer and prints what was measured.
    #[command(hide = true)]
    Load(load::Args),
    /// Runs our second node.
    #[command(hide = true)]
    Node { config: PathBuf },
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    match cli.part {
        Some(Part::Load(args)) => load::main(&args),
        Some(Part::Node { config }) => load::abhyasa::second_node(&config),
        Some(Part::Scale(args)) => scale::run(&args),
        Some(Part::Point(args)) => scale::part(&args),
        Some(Part::Stub(args)) => scale::stub(&args),
        None => run::run(&cli.run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The workspace's test of its documents does not know this program.
    #[test]
    fn the_readme_shows_a_command_that_is_taken() {
        let readme = include_str!("../../../README.md");
        let begun = "cargo run --release --manifest-path benches/peers/Cargo.toml -- ";
        let shown: Vec<&str> = readme.lines().filter_map(|line| line.strip_prefix(begun)).collect();
        assert!(!shown.is_empty());
        for line in shown {
            let words = line.split(" #").next().unwrap_or_default().split_whitespace();
            Cli::try_parse_from(std::iter::once("abhyasa-peers").chain(words)).unwrap();
        }
    }
}
