//! `netsim size`.

use super::progress::Progress;
use crate::size::{Outage, Trial, Wish};
use crate::{Chance, Delay, LinkModel, Options};
use clap::Args;
use serde_json::json;
use std::process::ExitCode;

/// The deadline and the backoff that keep spurious escalations below a target, checked by simulation.
///
/// Exit code 0: the simulation saw no more than the target. 128: it did, after all rounds.
#[derive(Debug, Args)]
pub(crate) struct SizeArgs {
    /// A built-in scenario, or a scenario file: its link, disks and handlers.
    #[arg(long, conflicts_with_all = ["loss", "delay"])]
    link: Option<String>,
    /// Loss each way, from 0 to 1.
    #[arg(long, value_parser = chance)]
    loss: Option<Chance>,
    /// One-way delay, such as 20ms..80ms.
    #[arg(long)]
    delay: Option<Delay>,
    /// How long outages last: none, "fixed 60s", "uniform 5s 60s", "exp 30s", "pareto 5s 1.5 1h".
    #[arg(long, default_value = "none")]
    outage: Outage,
    /// Spurious escalations among obligations that are issued in outages; among all, without outages.
    #[arg(long, default_value_t = 1e-6, value_parser = target)]
    target: f64,
    /// The shortest deadline wanted, in seconds.
    #[arg(long, default_value_t = 30)]
    deadline_min: u64,
    /// Transfers of the simulation.
    #[arg(long, default_value_t = 100_000)]
    transfers: u64,
    /// How often the deadline may be raised if the simulation says so.
    #[arg(long, default_value_t = 4)]
    rounds: usize,
    /// Threads; all cores if left out.
    #[arg(long)]
    threads: Option<usize>,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

fn chance(text: &str) -> Result<Chance, String> {
    let fraction = text.parse().ok().and_then(Chance::from_fraction);
    fraction
        .filter(|loss| *loss < Chance::ALWAYS)
        .ok_or_else(|| format!("{text:?} is no loss from 0 to below 1"))
}

fn target(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (1e-9..0.5).contains(share));
    share.ok_or_else(|| format!("{text:?} is no share from 1e-9 to 0.5"))
}

/// Runs it.
pub(crate) fn run(args: &SizeArgs) -> anyhow::Result<ExitCode> {
    let scenario = match &args.link {
        Some(name) if std::path::Path::new(name).exists() => {
            Options::from_toml(&std::fs::read_to_string(name)?).map_err(anyhow::Error::msg)?
        }
        Some(name) => Options::builtin(name).map_err(anyhow::Error::msg)?,
        None => {
            let quiet = Options::quiet(0);
            let delay = args.delay.unwrap_or(quiet.link.delay);
            let loss = args.loss.unwrap_or(Chance::NEVER);
            Options { link: LinkModel { loss, ..LinkModel::with_delay(delay) }, ..quiet }
        }
    };
    let (outage, target, deadline_s_min) = (args.outage, args.target, args.deadline_min);
    let wish = Wish { scenario, outage, target, deadline_s_min };
    let stop = super::interrupted()?;
    let mut progress = Progress::new("transfers");
    let trials =
        wish.answer(args.transfers, args.rounds, super::threads(args.threads), &stop, |done| {
            progress.at(done, args.transfers);
        });
    let seconds = progress.done();
    let holds = trials.last().is_some_and(|trial| trial.rate <= target && trial.silent == 0);
    if args.json {
        let all = json!({
            "outage": outage.to_string(),
            "target": target,
            "holds": holds,
            "seconds": seconds,
            "answer": trials.last(),
            "rounds": trials,
        });
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        for trial in &trials {
            explain(trial, target);
        }
        println!("{seconds:.1} s");
    }
    let broken: Vec<&String> = trials.iter().flat_map(|trial| &trial.broken).collect();
    for line in broken.iter().take(3) {
        eprintln!("{line}");
    }
    Ok(match (holds, broken.is_empty()) {
        (_, false) => ExitCode::from(129),
        (true, _) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(128),
    })
}

fn explain(trial: &Trial, target: f64) {
    let profile = &trial.profile;
    println!(
        "deadline {} s, backoff {} ms doubling to {} ms, {} retries",
        profile.deadline_s, profile.base_ms, profile.cap_ms, profile.retries
    );
    println!(
        "  why: an attempt gets through with {:.4}, so {} of them must fit after {:.1} s of outage",
        profile.chance, profile.attempts, profile.outage_s
    );
    let holds = if trial.rate <= target { "holds" } else { "does not hold" };
    println!(
        "  simulated: {} of {} spurious ({:.2e}, 95 %: up to {:.2e}); the target of {target:.0e} {holds}",
        trial.spurious, trial.transfers, trial.rate, trial.high
    );
    println!(
        "  silent losses {}, applied after {} ms in 99 of 100, {:.2} offers each",
        trial.silent,
        trial.p99_ms.map_or("-".to_owned(), |ms| format!("{ms:.0}")),
        trial.attempts_mean
    );
}
