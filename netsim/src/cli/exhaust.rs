//! `netsim exhaust`.

use super::progress::Progress;
use crate::exhaust::paper::{self, Abstract};
use crate::exhaust::{Limits, Receiving, Report, Setup, check, check_nodes, check_paper};
use clap::Args;
use serde_json::json;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Every state that can be reached by the real custody core, two nodes and what is between them, at the
/// bounds of the protocol paper's TLA+ model, with crashes of either side added.
///
/// Exit code 0: every property holds in every state. 1: not all were seen. 128: liveness has a
/// counterexample. 129: safety has one.
#[derive(Debug, Args)]
pub(crate) struct ExhaustArgs {
    /// The paper's model itself: four obligations, no crashes, no lost connections, a receiver that may
    /// decline. Each obligation must come into the states it has there, and one more: applied, with the
    /// first ack on its way.
    #[arg(long, conflicts_with_all = ["obligations", "benign", "crashes", "breaks", "receiver", "compare"])]
    paper: bool,
    /// How many; the paper has 4.
    #[arg(long, default_value_t = 3)]
    obligations: usize,
    /// Benign ones among them; if left out, the last of three and more.
    #[arg(long)]
    benign: Option<usize>,
    /// Deadline, in ticks.
    #[arg(long, default_value_t = 6)]
    deadline: u8,
    /// Retry budget.
    #[arg(long, default_value_t = 4)]
    max_retries: u32,
    /// Crashes of each side; any number if left out.
    #[arg(long)]
    crashes: Option<u8>,
    /// Connections lost without a crash; any number if left out.
    #[arg(long)]
    breaks: Option<u8>,
    /// How the receiver has effects.
    #[arg(long, value_enum, default_value = "built-in")]
    receiver: Receiving,
    /// Commits on their way to the disk while further inputs are handled.
    #[arg(long, default_value_t = 0)]
    in_flight: usize,
    /// Alarms may go off late.
    #[arg(long)]
    late_alarms: bool,
    /// Also reduce nothing, and hold the states of the nodes against each other; the bounds must be small.
    #[arg(long)]
    compare: bool,
    /// Give up after so many states; 0: never.
    #[arg(long, default_value_t = 0)]
    states_max: usize,
    /// Threads; all cores if left out.
    #[arg(long)]
    threads: Option<usize>,
    /// One JSON object instead of text.
    #[arg(long)]
    json: bool,
}

impl ExhaustArgs {
    fn setup(&self) -> Setup {
        let bounds = if self.paper { Setup::paper() } else { Setup::crashing() };
        let bounds = Setup {
            deadline: self.deadline,
            max_retries: self.max_retries,
            in_flight: self.in_flight,
            late_alarms: self.late_alarms,
            ..bounds
        };
        if self.paper {
            return bounds;
        }
        let benign = self.benign.unwrap_or(usize::from(self.obligations >= 3));
        Setup {
            admissible: self.obligations.saturating_sub(benign),
            benign,
            custodian_crashes: self.crashes,
            receiver_crashes: self.crashes,
            breaks: self.breaks,
            receiver: self.receiver,
            ..bounds
        }
    }
}

/// A check beside the one that was asked for.
enum Beside {
    Nothing,
    /// The states of an admissible and of a benign obligation, here and in the paper's model, and all
    /// states of that model.
    Paper {
        here: BTreeSet<(bool, Abstract)>,
        there: BTreeSet<(bool, Abstract)>,
        all: usize,
    },
    /// The states of the nodes, with and without reductions, and the report without.
    Exact {
        few: BTreeSet<u64>,
        all: BTreeSet<u64>,
        report: Box<Report>,
    },
}

impl Beside {
    fn holds(&self) -> bool {
        match self {
            Self::Nothing => true,
            Self::Paper { here, there, .. } => here == there,
            Self::Exact { few, all, report } => few == all && report.complete,
        }
    }

    fn json(&self) -> serde_json::Value {
        match self {
            Self::Nothing => serde_json::Value::Null,
            Self::Paper { here, there, all } => json!({
                "paper_states": all,
                "states_of_one": there.len(),
                "met": here.intersection(there).count(),
                "foreign": here.difference(there).count(),
            }),
            Self::Exact { few, all, report } => json!({
                "states": report.states,
                "unique": report.unique,
                "nodes": all.len(),
                "missed": all.difference(few).count(),
                "foreign": few.difference(all).count(),
            }),
        }
    }
}

/// Runs it.
pub(crate) fn run(args: &ExhaustArgs) -> anyhow::Result<ExitCode> {
    let setup = args.setup();
    if let Some(fault) = setup.fault() {
        anyhow::bail!(fault);
    }
    let stop = super::interrupted()?;
    let limits = Limits { threads: super::threads(args.threads), states_max: args.states_max };
    let mut progress = Progress::new("states");
    let (report, beside) = checks(args, &setup, &limits, &stop, &mut progress);
    let seconds = progress.done();
    if args.json {
        let all = json!({"seconds": seconds, "report": report, "beside": beside.json()});
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else {
        print(&report, &beside, seconds);
    }
    Ok(match report.worst() {
        None if !report.complete || !beside.holds() => ExitCode::FAILURE,
        worst => super::code(worst),
    })
}

fn checks(
    args: &ExhaustArgs,
    setup: &Setup,
    limits: &Limits,
    stop: &AtomicBool,
    progress: &mut Progress,
) -> (Report, Beside) {
    let mut go_on = |states, unique| {
        progress.so_far(states, unique);
        !stop.load(Ordering::SeqCst)
    };
    if args.compare {
        let (report, few) = check_nodes(setup, limits, &mut go_on);
        let exact = Setup { exact: true, ..setup.clone() };
        let (exact, all) = check_nodes(&exact, limits, &mut go_on);
        return (report, Beside::Exact { few, all, report: Box::new(exact) });
    }
    if args.paper {
        let (report, here) = check_paper(setup, limits, &mut go_on);
        let states = paper::states(setup);
        let there = paper::of_one(setup, &states);
        return (report, Beside::Paper { here, there, all: states.len() });
    }
    (check(setup, limits, go_on), Beside::Nothing)
}

fn print(report: &Report, beside: &Beside, seconds: f64) {
    println!(
        "{} states, {} unique, depth {}, {seconds:.1} s{}",
        report.states,
        report.unique,
        report.depth,
        if report.complete { "" } else { ", not all of them" }
    );
    for (name, holds) in &report.properties {
        println!("  {name}: {}", if *holds { "holds" } else { "BROKEN" });
    }
    for (name, count) in &report.witnessed {
        println!("  {name}: in {count} states");
    }
    for reduction in &report.reductions {
        println!("  reduced: {reduction}");
    }
    match beside {
        Beside::Nothing => {}
        Beside::Paper { here, there, all } => println!(
            "the paper's model has {all} states. Of an admissible and a benign obligation it has {}, one with an \
             effect and no ack yet included; met {}, and {} others",
            there.len(),
            here.intersection(there).count(),
            here.difference(there).count()
        ),
        Beside::Exact { few, all, report } => println!(
            "without reductions {} states, {} unique; of the nodes {}, missed with reductions {}, only with them {}",
            report.states,
            report.unique,
            all.len(),
            all.difference(few).count(),
            few.difference(all).count()
        ),
    }
    if let Some(broken) = &report.counterexample {
        println!("{} breaks:", broken.rule);
        for (n, step) in broken.steps.iter().enumerate() {
            println!("  {:2}. {step}", n + 1);
        }
    }
}
