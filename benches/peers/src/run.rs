//! The run: fetch, check, then rounds in which every peer has its turn, with a control between.

use crate::control;
use crate::figures::{Cell, Round, kept, median};
use crate::goals::{self, DEEP};
use crate::install::Scratch;
use crate::load::{Duty, Peer, Sample};
use crate::process::{self, CLIENT_CORE, Command, SERVER_CORE};
use crate::report::{self, Machine, PeerReport, Report};
use crate::server::{self, Server};
use crate::sync::{self, Check};
use anyhow::{Context as _, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Messages in flight that every peer is measured with.
const WINDOWS: [usize; 4] = [1, 64, 512, DEEP];
const WINDOWS_QUICK: [usize; 2] = [64, DEEP];
/// Messages in flight while syncs are counted. One at a time tells whether acks wait for them.
const CHECK_WINDOWS: [usize; 3] = [1, 64, 512];
const CHECK_SECONDS: f64 = 2.0;
/// How long strace may take to attach.
const ATTACH: Duration = Duration::from_millis(700);
/// How long a load may take beyond its time.
const LOAD_PATIENCE: Duration = Duration::from_secs(90);

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder for peers.json and peers.html.
    #[arg(long, default_value = "target/peers/report")]
    pub(crate) out: PathBuf,
    /// Interleaved rounds [default: 7, quick 2].
    #[arg(long)]
    pub(crate) rounds: Option<usize>,
    /// Timed seconds of each load, after its warm-up [default: 3, quick 1].
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// Seconds of warm-up of each load [default: 1, quick 0.5].
    #[arg(long)]
    pub(crate) warm_up: Option<f64>,
    /// Only these peers beside abhyasa.
    #[arg(long, value_delimiter = ',', default_values_t = Peer::ALL.map(|peer| peer.name().to_owned()))]
    pub(crate) peers: Vec<String>,
    /// Fewer windows, shorter loads: to see that everything runs.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Bytes of each payload.
    #[arg(long, default_value_t = 256)]
    pub(crate) payload_bytes: usize,
    /// Folder for the peers and their data, on the disk that is measured.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/peers"))]
    pub(crate) scratch: PathBuf,
}

/// Numbers of a run, the defaults filled in.
#[derive(Clone, Copy, Debug)]
struct Plan {
    rounds: usize,
    seconds: f64,
    warm_up: f64,
    windows: &'static [usize],
    payload_bytes: usize,
}

impl Plan {
    fn of(args: &Args) -> anyhow::Result<Self> {
        let or = |full, quick| if args.quick { quick } else { full };
        let plan = Self {
            rounds: args.rounds.unwrap_or(if args.quick { 2 } else { 7 }),
            seconds: args.seconds.unwrap_or_else(|| or(3.0, 1.0)),
            warm_up: args.warm_up.unwrap_or_else(|| or(1.0, 0.5)),
            windows: if args.quick { &WINDOWS_QUICK } else { &WINDOWS },
            payload_bytes: args.payload_bytes,
        };
        ensure!(plan.rounds > 0, "--rounds: at least one");
        ensure!(plan.seconds > 0.0, "--seconds: more than nothing");
        ensure!(plan.warm_up >= 0.0, "--warm-up: not less than nothing");
        Ok(plan)
    }
}

/// Which peers: us first, then those asked for, each once.
fn peers(names: &[String]) -> anyhow::Result<Vec<Peer>> {
    for name in names {
        let known = Peer::ALL.map(Peer::name);
        ensure!(known.contains(&name.as_str()), "--peers: {name} is none of {}", known.join(", "));
    }
    let wanted = |peer: &Peer| *peer == Peer::Abhyasa || names.iter().any(|n| n == peer.name());
    Ok(Peer::ALL.into_iter().filter(wanted).collect())
}

/// The whole run.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let plan = Plan::of(args)?;
    let scratch = Scratch::new(&args.scratch)?;
    let data = args.scratch.canonicalize()?.join(format!("data-{}", std::process::id()));
    std::fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    std::fs::create_dir_all(&data)?;
    let mut bench = Bench { plan, scratch, data: data.clone(), peers: Vec::new() };
    bench.fetch(&peers(&args.peers)?);
    bench.check();
    let mut rounds = Vec::new();
    for number in 0..plan.rounds {
        let round = bench.round(number)?;
        eprintln!("round {} of {}: fsync {:.0} us", number + 1, plan.rounds, round.control_us);
        rounds.push(round);
        // What is measured is kept, whatever becomes of the rest.
        bench.report(&rounds)?.write(&args.out)?;
    }
    let report = bench.report(&rounds)?;
    let _ = std::fs::remove_dir_all(&data);
    print!("{}", report.table());
    println!("{}", args.out.join("peers.html").display());
    Ok(())
}

struct Bench {
    plan: Plan,
    scratch: Scratch,
    /// Folders of this run, removed when it ends.
    data: PathBuf,
    peers: Vec<PeerReport>,
}

impl Bench {
    /// What cannot be had is told and left out.
    fn fetch(&mut self, peers: &[Peer]) {
        for peer in peers {
            eprintln!("fetch {}", peer.name());
            let fetched = self.scratch.fetch(*peer);
            let version = fetched.and_then(|()| server::version(*peer, &self.scratch));
            let mut report = PeerReport::new(*peer);
            match version {
                Ok(version) => report.version = version,
                Err(error) => report.fails(&error.context("cannot be fetched")),
            }
            self.peers.push(report);
        }
    }

    fn usable(&self) -> Vec<Peer> {
        self.peers.iter().filter(|p| p.error.is_none()).map(|p| p.peer).collect()
    }

    /// Counts each peer's syncs, apart from the rounds: strace slows what it watches.
    fn check(&mut self) {
        let strace = self.scratch.strace();
        for peer in self.usable() {
            eprintln!("count the syncs of {}", peer.name());
            let checked = match (&strace, peer) {
                (Err(error), _) => Err(anyhow::anyhow!("no strace: {error:#}")),
                (Ok(strace), Peer::Abhyasa) => self.check_ours(strace),
                (Ok(strace), peer) => self.check_peer(strace, peer),
            };
            let Some(report) = self.peers.iter_mut().find(|report| report.peer == peer) else {
                continue;
            };
            match checked {
                Ok((checks, argv)) => {
                    report.durable = sync::durable(&checks);
                    (report.checks, report.argv) = (checks, argv);
                }
                Err(error) => report.check_error = Some(format!("{error:#}")),
            }
        }
    }

    fn check_peer(&self, strace: &Path, peer: Peer) -> anyhow::Result<Checked> {
        let dir = self.data.join(format!("check-{}", peer.name()));
        let server = Server::start(peer, &self.scratch, &dir)?;
        let mut checks = Vec::new();
        for in_flight in CHECK_WINDOWS {
            let summary = dir.join(format!("strace-{in_flight}"));
            let watch = sync::strace(strace, &server.pids(), &summary);
            let mut watch = watch.log(&dir.join("strace.log")).start()?;
            std::thread::sleep(ATTACH);
            watch.still_runs()?;
            let load = Load { check: true, ..Load::closed(peer, Duty::Accepted, in_flight) };
            let sample = self.load(&load, &dir.join("load"), Some(&server))?.0;
            let o_dsync = sync::o_dsync_files(&server.pids());
            watch.end("INT");
            let text = std::fs::read_to_string(&summary).context("strace wrote no summary")?;
            checks.push(Check::new(in_flight, sample.total, sync::parse_summary(&text), o_dsync));
        }
        let argv = server.argv();
        drop(server);
        let _ = std::fs::remove_dir_all(&dir);
        Ok((checks, argv))
    }

    /// The custodian only: its accept is what the others' is compared with.
    fn check_ours(&self, strace: &Path) -> anyhow::Result<Checked> {
        let mut checks = Vec::new();
        let mut argv = Vec::new();
        for in_flight in CHECK_WINDOWS {
            let dir = self.data.join("check-ours");
            std::fs::create_dir_all(&dir)?;
            let load =
                Load { check: true, ..Load::closed(Peer::Abhyasa, Duty::Accepted, in_flight) };
            let command = self.command(&load, &dir, None)?;
            let mut running = command.log(&dir.join("load.log")).start()?;
            let (ready, go) = crate::load::gate(&dir);
            let begun = Instant::now();
            while !ready.exists() {
                running.still_runs()?;
                ensure!(begun.elapsed() < LOAD_PATIENCE, "our nodes were not ready");
                std::thread::sleep(Duration::from_millis(20));
            }
            let summary = dir.join("strace");
            let watch = sync::strace(strace, &[running.pid()], &summary);
            let mut watch = watch.log(&dir.join("strace.log")).start()?;
            std::thread::sleep(ATTACH);
            watch.still_runs()?;
            std::fs::write(go, "")?;
            let sample: Sample = finish(&mut running, &dir.join("load.log"), LOAD_PATIENCE)?;
            watch.end("INT");
            let text = std::fs::read_to_string(&summary).context("strace wrote no summary")?;
            argv = vec![running.argv.clone()];
            checks.push(Check::new(in_flight, sample.total, sync::parse_summary(&text), vec![]));
            std::fs::remove_dir_all(&dir)?;
        }
        Ok((checks, argv))
    }

    /// All peers, load by load in turn, so that what is compared is measured within seconds.
    fn round(&mut self, number: usize) -> anyhow::Result<Round> {
        let dir = self.data.join(format!("round-{number}"));
        std::fs::create_dir_all(&dir)?;
        let mut round = Round::default();
        let mut servers = BTreeMap::new();
        let usable = self.usable();
        for peer in usable.iter().filter(|peer| **peer != Peer::Abhyasa) {
            match Server::start(*peer, &self.scratch, &dir.join(peer.name())) {
                Ok(server) => {
                    if let Some(report) = self.peers.iter_mut().find(|r| r.peer == *peer) {
                        report.argv = server.argv();
                    }
                    server.pause();
                    servers.insert(*peer, server);
                }
                Err(error) => {
                    eprintln!("{} does not start: {error:#}", peer.name());
                    if let Some(report) = self.peers.iter_mut().find(|r| r.peer == *peer) {
                        report.fails(&error.context("does not start"));
                    }
                }
            }
        }
        let mut turn = number;
        for duty in [Duty::Accepted, Duty::Applied] {
            for in_flight in self.plan.windows {
                round.controls_us.push(self.fsync_us(&dir)?);
                // Nobody always comes first, or always after the same other.
                let mut order = self.usable();
                let first = turn % order.len().max(1);
                order.rotate_left(first);
                turn += 1;
                for peer in order {
                    let load = Load::closed(peer, duty, *in_flight);
                    round.cells.push(self.cell(&load, &dir, servers.get(&peer)));
                    self.group_commit(&load, &mut round, &dir)?;
                }
            }
        }
        drop(servers);
        self.ours_alone(&mut round, &dir)?;
        round.controls_us.push(self.fsync_us(&dir)?);
        round.control_us = median(&round.controls_us).context("no control")?;
        std::fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok(round)
    }

    fn fsync_us(&self, dir: &Path) -> anyhow::Result<f64> {
        median(&control::fdatasync_us(dir)?).context("no control")
    }

    /// What only we are measured with.
    fn ours_alone(&self, round: &mut Round, dir: &Path) -> anyhow::Result<()> {
        let load = Load::closed(Peer::Abhyasa, Duty::BestEffort, DEEP);
        round.cells.push(self.cell(&load, dir, None));
        let Some(peak) = round.closed(Peer::Abhyasa, Duty::Applied, DEEP) else { return Ok(()) };
        let rate = Some(peak.per_s / 2.0);
        for duty in [Duty::Accepted, Duty::Applied] {
            round.controls_us.push(self.fsync_us(dir)?);
            let load = Load { rate, ..Load::closed(Peer::Abhyasa, duty, DEEP) };
            round.cells.push(self.cell(&load, dir, None));
        }
        Ok(())
    }

    /// The ceiling right after what it is compared with: as many bytes before each sync.
    fn group_commit(&self, load: &Load, round: &mut Round, dir: &Path) -> anyhow::Result<()> {
        if (load.peer, load.duty, load.in_flight) != (Peer::Abhyasa, Duty::Accepted, DEEP) {
            return Ok(());
        }
        let Some(sample) = round.closed(load.peer, load.duty, load.in_flight) else {
            return Ok(());
        };
        let (Some(bytes), Some(messages)) =
            (sample.more.get("bytes_per_commit"), sample.more.get("messages_per_commit"))
        else {
            return Ok(());
        };
        let ceiling = control::syncs_per_s(dir, *bytes as usize)? * messages;
        round.group_commit = Some(sample.per_s / ceiling);
        Ok(())
    }

    fn cell(&self, load: &Load, dir: &Path, server: Option<&Server>) -> Cell {
        if let Some(server) = server {
            server.go_on();
        }
        let cpu = || server.map(Server::cpu_seconds);
        let (before, begun) = (cpu(), Instant::now());
        let measured = self.load(load, &dir.join("load"), server);
        let used = before.zip(cpu()).map(|(before, after)| after - before);
        let mut cell = Cell {
            peer: load.peer,
            duty: load.duty,
            in_flight: load.in_flight,
            rate: load.rate,
            sample: None,
            error: None,
            server_cpu: used.map(|used| used / begun.elapsed().as_secs_f64()),
            argv: Vec::new(),
        };
        if let Some(server) = server {
            server.pause();
        }
        let what =
            format!("{:>14} {:>11} {:>5}", load.peer.name(), load.duty.name(), load.in_flight);
        match measured {
            Ok((sample, argv)) => {
                eprintln!("{what}: {:>9.0}/s, p50 {:>8.0} us", sample.per_s, sample.p50_us);
                (cell.sample, cell.argv) = (Some(sample), argv);
            }
            Err(error) => {
                eprintln!("{what}: {error:#}");
                cell.error = Some(format!("{error:#}"));
            }
        }
        cell
    }

    fn load(
        &self,
        load: &Load,
        dir: &Path,
        server: Option<&Server>,
    ) -> anyhow::Result<(Sample, Vec<String>)> {
        let _ = std::fs::remove_dir_all(dir);
        std::fs::create_dir_all(dir)?;
        let log = dir.join("load.log");
        if load.check {
            std::fs::write(crate::load::gate(dir).1, "")?;
        }
        let mut running = self.command(load, dir, server)?.log(&log).start()?;
        let time = Duration::from_secs_f64(self.plan.seconds + self.plan.warm_up) + LOAD_PATIENCE;
        let sample = finish(&mut running, &log, time)?;
        let argv = running.argv.clone();
        std::fs::remove_dir_all(dir)?;
        Ok((sample, argv))
    }

    fn command(&self, load: &Load, dir: &Path, server: Option<&Server>) -> anyhow::Result<Command> {
        let (seconds, warm_up) =
            if load.check { (CHECK_SECONDS, 0.0) } else { (self.plan.seconds, self.plan.warm_up) };
        let queue = format!("{}_{}", load.duty.name(), load.in_flight);
        let mut command = Command::new(std::env::current_exe()?)
            .args(["load", "--peer", load.peer.name(), "--duty", load.duty.name()])
            .args(["--in-flight", &load.in_flight.to_string(), "--queue", &queue])
            .args(["--seconds", &seconds.to_string(), "--warm-up", &warm_up.to_string()])
            .args(["--payload-bytes", &self.plan.payload_bytes.to_string(), "--dir"])
            .arg(dir)
            // What went wrong is in the last lines a load says.
            .env("RUST_BACKTRACE", "0")
            // Our custodian is in the load's process, and our receiver takes the other core.
            .core(if load.peer == Peer::Abhyasa { SERVER_CORE } else { CLIENT_CORE });
        if let Some(server) = server {
            command = command.arg("--address").arg(server.address.to_string());
        }
        if let Some(rate) = load.rate {
            command = command.arg("--rate").arg(rate.to_string());
        }
        if load.check {
            command = command.arg("--check");
        }
        Ok(command)
    }

    fn report(&self, rounds: &[Round]) -> anyhow::Result<Report> {
        let controls: Vec<f64> = rounds.iter().map(|round| round.control_us).collect();
        let kept = kept(&controls);
        let counted: Vec<&Round> =
            rounds.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(round, _)| round).collect();
        Ok(Report {
            machine: Machine::here(&self.data)?,
            command: std::env::args().collect(),
            payload_bytes: self.plan.payload_bytes,
            seconds: self.plan.seconds,
            warm_up: self.plan.warm_up,
            windows: self.plan.windows.to_vec(),
            goals: goals::goals(&counted),
            rows: report::rows(&counted, self.plan.windows),
            peers: self.peers.clone(),
            kept,
            rounds: rounds.to_vec(),
        })
    }
}

type Checked = (Vec<Check>, Vec<Vec<String>>);

/// One load to be run.
#[derive(Clone, Copy, Debug)]
struct Load {
    peer: Peer,
    duty: Duty,
    in_flight: usize,
    rate: Option<f64>,
    /// For the count of syncs: waits to be watched, and for all it sent.
    check: bool,
}

impl Load {
    const fn closed(peer: Peer, duty: Duty, in_flight: usize) -> Self {
        Self { peer, duty, in_flight, rate: None, check: false }
    }
}

/// Waits for a load and reads what it printed last.
pub(crate) fn finish<T: serde::de::DeserializeOwned>(
    running: &mut process::Process,
    log: &Path,
    patience: Duration,
) -> anyhow::Result<T> {
    running.wait(patience)?;
    let said = std::fs::read_to_string(log)?;
    let last = said.lines().last().context("the load said nothing")?;
    serde_json::from_str(last).with_context(|| format!("the load said: {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_always_measured_and_nobody_twice() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(peers(&names(&["redis", "redis"])).unwrap(), [Peer::Abhyasa, Peer::Redis]);
        assert_eq!(peers(&names(&[])).unwrap(), [Peer::Abhyasa]);
        let error = peers(&names(&["kafka"])).unwrap_err().to_string();
        assert!(error.contains("kafka") && error.contains("rabbitmq"), "{error}");
    }
}
