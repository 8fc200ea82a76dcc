//! Curves of our own node: what it does and what it takes as one size grows.

mod curve;
mod page;
mod part;
mod stub;

use crate::load::{Duty, Peer, Sample};
use crate::process::{self, CLIENT_CORE, Command, SERVER_CORE};
use crate::report::Machine;
use crate::run::finish;
use abhyasa::proto::limits::PAYLOAD_LEN_MAX;
use anyhow::{Context as _, ensure};
use curve::{Curve, LeftOut, Memory, Named, Point, Trend};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use part::{Args as PartArgs, main as part};
pub(crate) use stub::{Args as StubArgs, main as stub};

/// Obligations pending to a peer that is away.
const PENDING: [usize; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// The point that `--largest` adds.
const LARGEST: usize = 10_000_000;
/// Bytes of memory and of disk that one pending obligation may take, on the safe side.
const PENDING_MEMORY: f64 = 700.0;
const PENDING_DISK: f64 = 1_500.0;
/// Connected peers.
const PEERS: [usize; 4] = [1, 10, 100, 1_000];
/// Bytes of a payload. The last is the largest that the wire takes.
const PAYLOADS: [usize; 6] = [64, 256, 1_024, 4_096, 16_384, PAYLOAD_LEN_MAX];
/// Bytes of payload in flight at most; of large ones fewer are.
const IN_FLIGHT_BYTES: usize = 32 << 20;
/// How long a part may take beyond its time, and for each pending obligation.
const PATIENCE: Duration = Duration::from_secs(120);
const PATIENCE_EACH: Duration = Duration::from_micros(200);

/// What each load is.
#[derive(Clone, Copy, Debug, Serialize, clap::Args)]
pub(crate) struct Sizes {
    /// Timed seconds of each load, after its warm-up.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Seconds of warm-up of each load.
    #[arg(long, default_value_t = 0.5)]
    warm_up: f64,
    /// Obligations between issue and applied at once.
    #[arg(long, default_value_t = 2_048)]
    in_flight: usize,
    /// Bytes of each payload.
    #[arg(long, default_value_t = 256)]
    payload_bytes: usize,
}

/// What to measure.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder for scale.json and scale.html.
    #[arg(long, default_value = "target/peers/scale")]
    out: PathBuf,
    /// Only these curves.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Curve::ALL)]
    curves: Vec<Curve>,
    /// Rounds of each point.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    sizes: Sizes,
    /// Slices of the age curve, each as long as a load.
    #[arg(long, default_value_t = 32)]
    slices: usize,
    /// Also ten million pending, if memory and disk are there; takes many minutes more.
    #[arg(long)]
    largest: bool,
    /// Folder for the nodes' data, on the disk that is measured.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/peers"))]
    scratch: PathBuf,
}

/// Everything a run found.
#[derive(Clone, Debug, Serialize)]
struct Report {
    machine: Machine,
    command: Vec<String>,
    sizes: Sizes,
    rounds: usize,
    took_s: f64,
    pending: Vec<Point>,
    memory: Memory,
    peers: Vec<Point>,
    payload: Vec<Point>,
    age: Vec<Named>,
    trend: Option<Trend>,
    left_out: Vec<LeftOut>,
}

/// The whole run.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.rounds > 0, "--rounds: at least one");
    ensure!(args.sizes.seconds > 0.0, "--seconds: more than nothing");
    ensure!(args.sizes.warm_up >= 0.0, "--warm-up: not less than nothing");
    ensure!(args.sizes.in_flight > 0, "--in-flight: at least one");
    std::fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    std::fs::create_dir_all(&args.scratch).with_context(|| args.scratch.display().to_string())?;
    let data = args.scratch.canonicalize()?.join(format!("scale-{}", std::process::id()));
    std::fs::create_dir_all(&data)?;
    let mut scale = Scale {
        args: args.clone(),
        data: data.clone(),
        begun: Instant::now(),
        left_out: Vec::new(),
    };
    let ran = scale.run();
    let _ = std::fs::remove_dir_all(&data);
    let report = ran?;
    print!("{}", report.table());
    println!("{}", args.out.join("scale.html").display());
    Ok(())
}

struct Scale {
    args: Args,
    /// Folders of this run, removed when it ends.
    data: PathBuf,
    begun: Instant,
    left_out: Vec<LeftOut>,
}

impl Scale {
    fn run(&mut self) -> anyhow::Result<Report> {
        let mut report = Report {
            machine: Machine::here(&self.data)?,
            command: std::env::args().collect(),
            sizes: self.args.sizes,
            rounds: self.args.rounds,
            took_s: 0.0,
            pending: Vec::new(),
            memory: Memory::default(),
            peers: Vec::new(),
            payload: Vec::new(),
            age: Vec::new(),
            trend: None,
            left_out: Vec::new(),
        };
        report.machine.placement = format!(
            "the node that is measured, with its load in its process, on core {SERVER_CORE}; its peers on core {CLIENT_CORE}"
        );
        let curves: BTreeSet<Curve> = self.args.curves.iter().copied().collect();
        for curve in curves {
            match curve {
                Curve::Pending => report.pending = self.pending()?,
                Curve::Peers => report.peers = self.points(curve, &PEERS, Self::peers)?,
                Curve::Payload => report.payload = self.points(curve, &PAYLOADS, Self::payload)?,
                Curve::Age => report.age = self.age()?,
            }
            report.memory = curve::memory(&report.pending);
            report.trend = curve::trend(&report.age);
            report.left_out.clone_from(&self.left_out);
            report.took_s = self.begun.elapsed().as_secs_f64();
            // What is measured is kept, whatever becomes of the rest.
            report.write(&self.args.out)?;
        }
        Ok(report)
    }

    fn say(&self, what: &str) {
        eprintln!("{:>5.0} s  {what}", self.begun.elapsed().as_secs_f64());
    }

    fn leave_out(&mut self, curve: Curve, at: usize, why: String) {
        self.say(&format!("{} {at} left out: {why}", curve.name()));
        self.left_out.push(LeftOut { curve, at: at as u64, why });
    }

    /// Rounds in which every size has its turn, so that what is compared is measured within
    /// seconds. A size that fails is left out from then on.
    fn rounds(
        &mut self,
        curve: Curve,
        sizes: &[usize],
        filled: &[(usize, Named)],
        measure: impl Fn(&Self, usize) -> anyhow::Result<Named>,
    ) -> anyhow::Result<Vec<Point>> {
        let mut rounds: Vec<(usize, Vec<Named>)> =
            sizes.iter().map(|size| (*size, Vec::new())).collect();
        for turn in 0..self.args.rounds {
            // Nobody always comes first, or always after the same other.
            let mut order: Vec<usize> = (0..rounds.len()).collect();
            order.rotate_left(turn % rounds.len().max(1));
            for nth in order {
                let Some((size, measured)) = rounds.get_mut(nth) else { continue };
                let (size, failed) = (*size, self.left_out.iter());
                if failed.into_iter().any(|out| out.curve == curve && out.at == size as u64) {
                    continue;
                }
                match measure(self, size) {
                    Ok(mut figures) => {
                        let per_s = figures.get("applied_per_s").copied().unwrap_or(f64::NAN);
                        self.say(&format!(
                            "{} {size}, round {} of {}: {per_s:.0}/s",
                            curve.name(),
                            turn + 1,
                            self.args.rounds
                        ));
                        let fill = filled.iter().find(|(at, _)| *at == size && measured.is_empty());
                        figures.extend(fill.map(|(_, fill)| fill.clone()).unwrap_or_default());
                        measured.push(figures);
                    }
                    Err(error) => self.leave_out(curve, size, format!("{error:#}")),
                }
            }
        }
        let measured = rounds.into_iter().filter(|(_, rounds)| !rounds.is_empty());
        Ok(measured.map(|(size, rounds)| Point::new(size as u64, rounds)).collect())
    }

    fn points(
        &mut self,
        curve: Curve,
        sizes: &[usize],
        measure: impl Fn(&Self, usize) -> anyhow::Result<Named>,
    ) -> anyhow::Result<Vec<Point>> {
        self.rounds(curve, sizes, &[], measure)
    }

    /// Each store is filled once; a round restarts on each.
    fn pending(&mut self) -> anyhow::Result<Vec<Point>> {
        let mut sizes = PENDING.to_vec();
        if self.args.largest {
            sizes.push(LARGEST);
        } else {
            let why = "needs --largest".to_owned();
            self.left_out.push(LeftOut { curve: Curve::Pending, at: LARGEST as u64, why });
        }
        let mut filled = Vec::new();
        for size in sizes {
            if let Err(why) = self.room_for(size) {
                self.leave_out(Curve::Pending, size, format!("{why:#}"));
                continue;
            }
            match self.part("fill", &self.store(size), size) {
                Ok(figures) => {
                    let per_s = figures.figures.get("accepted_per_s").copied().unwrap_or(f64::NAN);
                    self.say(&format!("pending {size}: filled, {per_s:.0}/s accepted"));
                    filled.push((size, figures.figures));
                }
                Err(error) => self.leave_out(Curve::Pending, size, format!("{error:#}")),
            }
        }
        let sizes: Vec<usize> = filled.iter().map(|(size, _)| *size).collect();
        let points = self.rounds(Curve::Pending, &sizes, &filled, |scale, size| {
            let dir = scale.store(size);
            let mut figures = scale.part("return", &dir, size)?.figures;
            figures.extend(scale.part("restart", &dir, size)?.figures);
            Ok(figures)
        });
        for (size, _) in &filled {
            std::fs::remove_dir_all(self.store(*size))?;
        }
        points
    }

    fn store(&self, size: usize) -> PathBuf {
        self.data.join(format!("pending-{size}"))
    }

    /// Whether memory and disk take so many pending.
    fn room_for(&self, pending: usize) -> anyhow::Result<()> {
        let room = |what: &str, each: f64, there: f64| {
            let need = pending as f64 * each;
            ensure!(
                need < there * 0.8,
                "needs {:.1} GB of {what}, of {:.1} GB that are free",
                need / 1e9,
                there / 1e9
            );
            anyhow::Ok(())
        };
        let df = Command::new("df").args(["--output=avail", "-B1"]).arg(&self.data).output()?;
        let disk = df.lines().last().context("df")?.trim().parse()?;
        room("memory", PENDING_MEMORY, process::available_bytes()?)?;
        room("disk", PENDING_DISK, disk)
    }

    fn peers(&self, count: usize) -> anyhow::Result<Named> {
        let dir = self.data.join("peers");
        let measured = self.part("peers", &dir, count);
        let _ = std::fs::remove_dir_all(&dir);
        Ok(measured?.figures)
    }

    /// As in the comparison with others: two nodes, the second in a process of its own.
    fn payload(&self, bytes: usize) -> anyhow::Result<Named> {
        let sizes = Sizes {
            payload_bytes: bytes,
            in_flight: in_flight(self.args.sizes.in_flight, bytes),
            ..self.args.sizes
        };
        let dir = self.data.join("payload");
        std::fs::create_dir_all(&dir)?;
        let control = crate::figures::median(&crate::control::fdatasync_us(&dir)?);
        let words = ["load", "--peer", Peer::Abhyasa.name(), "--duty", Duty::Applied.name()];
        let command = command(&words, &dir, sizes)?.args(["--queue", "scale"]);
        let measured = self.output::<Sample>(command, &dir, 0);
        let _ = std::fs::remove_dir_all(&dir);
        let sample = measured?;
        let figures = [
            ("applied_per_s", sample.per_s),
            ("payload_mb_per_s", sample.per_s * bytes as f64 / 1e6),
            ("p99_us", sample.p99_us),
            ("in_flight", sizes.in_flight as f64),
            ("node_cpu", sample.client_cpu),
            ("control_us", control.context("control")?),
        ];
        Ok(figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    fn age(&mut self) -> anyhow::Result<Vec<Named>> {
        let dir = self.data.join("age");
        self.say(&format!("age: {} slices", self.args.slices));
        let measured = self.part("age", &dir, 0);
        let _ = std::fs::remove_dir_all(&dir);
        match measured {
            Ok(figures) => Ok(figures.slices),
            Err(error) => {
                self.leave_out(Curve::Age, self.args.slices, format!("{error:#}"));
                Ok(Vec::new())
            }
        }
    }

    fn part(&self, what: &str, dir: &Path, count: usize) -> anyhow::Result<part::Figures> {
        std::fs::create_dir_all(dir)?;
        let command = command(&["scale-part", what], dir, self.args.sizes)?.args([
            "--count",
            &count.to_string(),
            "--slices",
            &self.args.slices.to_string(),
        ]);
        self.output(command, dir, count)
    }

    fn output<T: serde::de::DeserializeOwned>(
        &self,
        command: Command,
        dir: &Path,
        count: usize,
    ) -> anyhow::Result<T> {
        let log = dir.join("part.log");
        let each = self.args.sizes.seconds + self.args.sizes.warm_up + 1.0;
        let time = Duration::from_secs_f64(each * (self.args.slices + 1) as f64);
        let patience = PATIENCE + time + PATIENCE_EACH * u32::try_from(count)?;
        finish(&mut command.log(&log).start()?, &log, patience)
    }
}

/// The node that is measured, with its load, on its core.
fn command(words: &[&str], dir: &Path, sizes: Sizes) -> anyhow::Result<Command> {
    Ok(Command::new(std::env::current_exe()?)
        .args(words)
        .args(["--in-flight", &sizes.in_flight.to_string()])
        .args(["--seconds", &sizes.seconds.to_string(), "--warm-up", &sizes.warm_up.to_string()])
        .args(["--payload-bytes", &sizes.payload_bytes.to_string(), "--dir"])
        .arg(dir)
        // What went wrong is in the last lines a part says.
        .env("RUST_BACKTRACE", "0")
        .core(SERVER_CORE))
}

/// So many as fit in [`IN_FLIGHT_BYTES`].
fn in_flight(wanted: usize, payload_bytes: usize) -> usize {
    wanted.min(IN_FLIGHT_BYTES / payload_bytes.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_large_payloads_fewer_are_in_flight() {
        assert_eq!(in_flight(2_048, 256), 2_048);
        assert_eq!(in_flight(2_048, 16_384), 2_048);
        assert_eq!(in_flight(2_048, 65_536), 512);
        assert_eq!(in_flight(2_048, usize::MAX), 1);
    }

    #[test]
    fn the_largest_payload_is_what_the_wire_takes() {
        assert_eq!(PAYLOADS.into_iter().max(), Some(PAYLOAD_LEN_MAX));
    }
}
