//! `netsim run`.

use super::arena::{self, Told};
use crate::check::Class;
use crate::options::{Options, Sabotage};
use crate::pool;
use crate::run::Counts;
use crate::scenario::Arena;
use anyhow::{Context as _, bail};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Run a scenario, one seed, or a range of seeds.
///
/// Without a scenario every option is drawn from the seed. Exit code 0: every promise held. 127: the
/// core crashed. 128: liveness broke. 129: safety broke.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A scenario file, or the name of a built-in one.
    scenario: Option<String>,
    /// One seed.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Seeds A to B, B excluded, as `A..B`.
    #[arg(long, value_parser = seeds)]
    seeds: Option<(u64, u64)>,
    /// Obligations of each run [default: the scenario's, or 200].
    #[arg(long)]
    transfers: Option<u32>,
    /// The world that swarm runs take place in: core, node or real.
    #[arg(long, value_parser = world, default_value = "core", conflicts_with = "scenario")]
    world: Arena,
    /// The `abhyasa` program of the real world [default: the one beside this program].
    #[arg(long)]
    program: Option<PathBuf>,
    /// Keep configurations, stores and logs of the real world, also when no promise broke.
    #[arg(long)]
    keep: bool,
    /// Runs at a time [default: one for each core, and one in the real world].
    #[arg(long)]
    threads: Option<usize>,
    /// Break the disk's word, to see promises break: lying-disk or no-ledger.
    #[arg(long, value_parser = sabotage)]
    sabotage: Option<Sabotage>,
    /// Run on after a broken seed.
    #[arg(long)]
    keep_going: bool,
    /// One JSON object for each run instead of text.
    #[arg(long)]
    json: bool,
}

/// Obligations of a swarm run, unless told otherwise.
pub(super) const TRANSFERS_DEFAULT: u32 = 200;

pub(super) fn seeds(text: &str) -> Result<(u64, u64), String> {
    let parse = |part: &str| part.parse().map_err(|_| format!("{part:?} is no seed"));
    let (first, end) = text.split_once("..").ok_or("seeds are given as A..B, such as 0..200")?;
    let (first, end) = (parse(first)?, parse(end)?);
    if first >= end {
        return Err(format!("{first}..{end} holds no seed"));
    }
    Ok((first, end))
}

fn world(text: &str) -> Result<Arena, String> {
    match text {
        "core" => Ok(Arena::Core),
        "node" => Ok(Arena::Node),
        "real" => Ok(Arena::Real),
        other => Err(format!("{other:?} is none of core, node and real")),
    }
}

fn sabotage(text: &str) -> Result<Sabotage, String> {
    match text {
        "lying-disk" => Ok(Sabotage::LyingDisk),
        "no-ledger" => Ok(Sabotage::NoLedger),
        other => Err(format!("{other:?} is neither lying-disk nor no-ledger")),
    }
}

impl Args {
    /// The options of a seed.
    fn options(&self, scenario: Option<&Options>, seed: u64) -> Options {
        let mut options = match scenario {
            Some(scenario) => Options { seed, ..scenario.clone() },
            None => arena::swarm(self.world, seed, self.transfers.unwrap_or(TRANSFERS_DEFAULT)),
        };
        options.transfers = self.transfers.unwrap_or(options.transfers);
        options.sabotage = self.sabotage.unwrap_or(options.sabotage);
        options
    }

    /// The command that runs a seed again.
    fn again(&self, seed: u64) -> String {
        let mut said = "netsim run".to_owned();
        let mut say = |part: String| {
            said.push(' ');
            said.push_str(&part);
        };
        match (&self.scenario, self.world) {
            (Some(scenario), _) => say(scenario.clone()),
            (None, Arena::Core) => {}
            (None, Arena::Node) => say("--world node".to_owned()),
            (None, Arena::Real) => say("--world real".to_owned()),
        }
        say(format!("--seed {seed}"));
        match (self.transfers, &self.scenario) {
            (Some(transfers), _) => say(format!("--transfers {transfers}")),
            (None, None) => say(format!("--transfers {TRANSFERS_DEFAULT}")),
            (None, Some(_)) => {}
        }
        match self.sabotage {
            Some(Sabotage::LyingDisk) => say("--sabotage lying-disk".to_owned()),
            Some(Sabotage::NoLedger) => say("--sabotage no-ledger".to_owned()),
            Some(Sabotage::Honest) | None => {}
        }
        said
    }
}

/// A scenario by file or built-in name. What looks like a path is one.
pub(super) fn scenario(name: &str) -> anyhow::Result<Options> {
    if !name.contains(['/', '\\', '.']) {
        return Options::builtin(name).map_err(anyhow::Error::msg);
    }
    let text = std::fs::read_to_string(name).with_context(|| format!("scenario {name}"))?;
    Options::from_toml(&text).map_err(|why| anyhow::anyhow!("scenario {name}: {why}"))
}

/// What a worker hands back: the report, or why there is none.
enum Ran {
    Told(Told),
    Panicked(String),
    Failed(anyhow::Error),
}

fn ran(options: &Options, program: Option<PathBuf>, keep: bool) -> Ran {
    match std::panic::catch_unwind(|| arena::run(options, program, keep)) {
        Ok(Ok(told)) => Ran::Told(told),
        Ok(Err(error)) => Ran::Failed(error),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Ran::Panicked(text.unwrap_or("for no stated reason").to_owned())
        }
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let scenario = args.scenario.as_deref().map(scenario).transpose()?;
    let (first, end) = match (args.seed, args.seeds, &scenario) {
        (Some(seed), _, _) => (seed, seed.saturating_add(1)),
        (None, Some(range), _) => range,
        (None, None, Some(scenario)) => (scenario.seed, scenario.seed.saturating_add(1)),
        (None, None, None) => {
            bail!("name a scenario, a seed: --seed 1, or a range: --seeds 0..200")
        }
    };
    let stop = super::interrupted()?;
    let begun = Instant::now();
    let mut sum = Sum::default();
    let progress = std::io::stderr().is_terminal() && !args.json;
    let mut failed = None;
    let (program, keep) = (&args.program, args.keep);
    let job = |n: u64| ran(&args.options(scenario.as_ref(), first + n), program.clone(), keep);
    // Processes, disks and clocks are shared in the real world.
    let real = scenario.as_ref().map_or(args.world, |scenario| scenario.world) == Arena::Real;
    let threads = args.threads.unwrap_or_else(|| if real { 1 } else { pool::cores() });
    pool::in_order(threads, end - first, &stop, job, |n, ran| {
        let told = sum.take(args, first + n, end - first, ran);
        if progress {
            let rate = sum.transfers() as f64 / begun.elapsed().as_secs_f64();
            let (done, broken) = (sum.done, sum.broken);
            eprint!(
                "\r{done} of {} seeds, {broken} broken, {} transfers, {rate:.0}/s  ",
                end - first,
                sum.transfers()
            );
            let _ = std::io::stderr().flush();
        }
        match told {
            Ok(()) => sum.broken == 0 || args.keep_going,
            Err(error) => {
                failed = Some(error);
                false
            }
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let Sum { done, broken, counts, .. } = sum;
    eprintln!(
        "\r{done} seeds, {broken} broken, {} transfers in {seconds:.1} s: {:.0}/s        ",
        sum.transfers(),
        sum.transfers() as f64 / seconds
    );
    eprintln!(
        "applied {}, declined {}, escalated {} (spurious {}), best effort {}, refused {}",
        counts.applied,
        counts.declined,
        counts.escalated,
        counts.spurious,
        counts.best_effort,
        counts.refused
    );
    Ok(super::code(sum.worst))
}

/// What came of all seeds.
#[derive(Default)]
struct Sum {
    done: u64,
    broken: u64,
    counts: Counts,
    worst: Option<Class>,
}

impl Sum {
    const fn transfers(&self) -> u64 {
        let counts = &self.counts;
        counts.applied + counts.declined + counts.escalated + counts.best_effort
    }

    fn take(&mut self, args: &Args, seed: u64, of: u64, ran: Ran) -> anyhow::Result<()> {
        self.done += 1;
        let report = match ran {
            Ran::Told(report) => report,
            Ran::Failed(error) => return Err(error.context(format!("seed {seed}"))),
            Ran::Panicked(why) => {
                self.broken += 1;
                self.worst = self.worst.max(Some(Class::Crash));
                eprintln!("\rseed {seed} panicked: {why}\n  again: {}", args.again(seed));
                return Ok(());
            }
        };
        self.counts.add(report.counts());
        if args.json {
            println!("{}", serde_json::to_string(&report)?);
        }
        if let Some(class) = report.worst() {
            self.broken += 1;
            self.worst = self.worst.max(Some(class));
            explain(&report, &args.again(seed), args.json)?;
        } else if of == 1 && !args.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        }
        Ok(())
    }
}

fn explain(report: &Told, again: &str, json: bool) -> anyhow::Result<()> {
    let seed = report.options().seed;
    eprintln!("\rseed {seed} broke a promise after {} ms", report.ms());
    for violation in report.violations().iter().take(3) {
        eprintln!(
            "  {:?} {} at node {}: {}",
            violation.class, violation.rule, violation.node, violation.detail
        );
    }
    if !json {
        eprintln!("  options: {}", serde_json::to_string(report.options())?);
    }
    eprintln!("  again: {again}");
    Ok(())
}
