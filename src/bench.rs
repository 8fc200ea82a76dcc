//! `abhyasa bench`: what custody costs, beside best effort on the same connection.
//!
//! Two nodes in two processes (this one is the custodian, its child the receiver), mTLS, real
//! stores. Rounds are interleaved with an fsync control, since a disk's speed swings by the minute:
//! only ratios within a round mean anything, and medians of them are reported.

mod control;
mod flow;
mod idle;
mod moqt;
mod world;

use anyhow::Context as _;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// What to measure.
    #[arg(value_enum, default_value = "flow")]
    pub what: What,
    /// Interleaved rounds.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Seconds of load in each part of a round.
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Obligations between issue and applied ack at once.
    #[arg(long, default_value_t = 2048)]
    pub in_flight: usize,
    /// Bytes of CBOR payload in each obligation.
    #[arg(long, default_value_t = 256)]
    pub payload_bytes: usize,
    /// Program of a MOQT relay that is started for `moqt`: moq-relay-ietf, moq-relay or moq-interop-relay.
    #[arg(long, value_name = "FILE")]
    pub relay_program: Option<PathBuf>,
    /// Obligations on one session (`moqt` only) after which its memory is compared; 0 leaves that out.
    #[arg(long, default_value_t = 100_000)]
    pub long: usize,
    /// Obligations left pending (`idle` only).
    #[arg(long, default_value_t = 1_000_000)]
    pub pending: usize,
    /// Folder for the stores; on the disk to be measured. Removed afterwards.
    #[arg(long)]
    pub dir: Option<PathBuf>,
}

/// Which figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    /// Throughput and latency, custody beside best effort.
    Flow,
    /// A large pending set to an absent peer: memory, idle cost, restart.
    Idle,
    /// Throughput and latency over MOQT, directly and by a relay, beside the native binding; memory of a long session.
    Moqt,
}

/// Runs a benchmark and prints its figures, as one JSON object if `json`.
///
/// # Errors
/// If a node cannot be started, or a promise breaks while it is loaded.
pub fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(crate::node::worker_threads())
        .enable_all()
        .build()
        .context("the runtime cannot start")?;
    match args.what {
        // On the runtime's own thread, as an agent that lives beside its node would be.
        What::Flow => print(json, &runtime.block_on(runtime.spawn(flow::run(args.clone())))??),
        What::Idle => print(json, &runtime.block_on(runtime.spawn(idle::run(args.clone())))??),
        What::Moqt => print(json, &runtime.block_on(runtime.spawn(moqt::run(args.clone())))??),
    }
    Ok(ExitCode::SUCCESS)
}

fn print<T: Serialize>(json: bool, figures: &T) {
    let value = serde_json::to_value(figures).unwrap_or_default();
    if json {
        println!("{value}");
        return;
    }
    let Some(members) = value.as_object() else { return };
    for (name, value) in members.iter().filter(|(_, value)| !value.is_array()) {
        println!("{name:>32}  {value}");
    }
}

/// The median of figures, by value.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
