//! The price of the two durable writes, in real time on a real disk.
//!
//! Two nodes of this process, each on a runtime of its own, with mTLS over loopback and their own
//! fjall. In each round the same load goes through three ways in turn: custody; custody whose
//! fsyncs are left out at both ends, by a seam around the store; and best effort. Machines and
//! disks differ and swing, so what means something is the ratio within a round; figures are medians
//! over rounds.

mod load;
mod nodes;
mod seam;

use abhyasa::node::worker_threads;
use anyhow::{Context as _, ensure};
use load::{Load, Sample};
use nodes::Nodes;
use serde::Serialize;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Syncs timed in one round, and bytes of each.
const SYNCS: usize = 100;
const BLOCK: usize = 256;

/// How obligations travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Durable custody.
    Custody,
    /// The same work without the fsyncs: what a crash of the machine would lose.
    CustodyUnsynced,
    /// Sent once, nothing kept.
    BestEffort,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Custody, Self::CustodyUnsynced, Self::BestEffort];
}

/// What to measure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PriceOptions {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Seconds of load of each way, in each round.
    pub seconds: f64,
    /// Obligations between issue and end at once; one series for each.
    pub in_flight: Vec<usize>,
    /// Bytes of CBOR payload in each obligation.
    pub payload_bytes: usize,
    /// Folder for the stores, on the disk to be measured; if none, that of temporary files. What
    /// is made in it is removed.
    pub dir: Option<PathBuf>,
}

impl Default for PriceOptions {
    fn default() -> Self {
        let in_flight = vec![1, 64, 2048];
        Self { rounds: 5, seconds: 2.0, in_flight, payload_bytes: 256, dir: None }
    }
}

/// One way in one round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PriceRow {
    /// Which round, from 0.
    pub round: usize,
    /// Obligations at once.
    pub in_flight: usize,
    /// Which way.
    pub way: Way,
    /// Obligations applied.
    pub transfers: u64,
    /// Best-effort obligations that never arrived.
    pub lost: u64,
    /// Applied in a second.
    pub per_s: f64,
    /// From issue until the commit of its effect has returned, in the median, in microseconds.
    pub applied_p50_us: f64,
    /// The same for one in a hundred.
    pub applied_p99_us: f64,
    /// From issue until its custodian knows, in the median, in microseconds.
    pub acked_p50_us: Option<f64>,
    /// The same for one in a hundred.
    pub acked_p99_us: Option<f64>,
    /// Fsyncs of the custodian's store for each obligation.
    pub custodian_fsyncs: f64,
    /// Fsyncs of the receiver's store for each obligation.
    pub receiver_fsyncs: f64,
    /// Bytes of UDP payload for each obligation, both directions.
    pub wire_bytes: f64,
    /// UDP datagrams for each obligation, both directions.
    pub datagrams: f64,
    /// Append of 256 bytes and fdatasync on the same disk in this round, in the median.
    pub fdatasync_p50_us: f64,
}

/// One way, in the median over rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PriceFigure {
    /// Obligations at once.
    pub in_flight: usize,
    /// Which way.
    pub way: Way,
    /// Applied in a second.
    pub per_s: f64,
    /// Its throughput over that of best effort in the same round.
    pub over_best_effort: f64,
    /// Least and greatest of these.
    pub over_best_effort_range: (f64, f64),
    /// Its throughput over that of custody without fsyncs in the same round.
    pub over_unsynced: f64,
    /// See [`PriceRow`].
    pub applied_p50_us: f64,
    /// See [`PriceRow`].
    pub applied_p99_us: f64,
    /// See [`PriceRow`].
    pub acked_p50_us: Option<f64>,
    /// See [`PriceRow`].
    pub acked_p99_us: Option<f64>,
    /// Fsyncs of both stores for each obligation.
    pub fsyncs: f64,
    /// See [`PriceRow`].
    pub wire_bytes: f64,
    /// See [`PriceRow`].
    pub datagrams: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Price {
    /// What was asked for.
    pub options: PriceOptions,
    /// Cores of the machine.
    pub cores: usize,
    /// Append of 256 bytes and fdatasync, in the median of all rounds, in microseconds.
    pub fdatasync_p50_us: f64,
    /// Whether it was interrupted; then rounds are missing.
    pub interrupted: bool,
    /// Medians.
    pub figures: Vec<PriceFigure>,
    /// Every round.
    pub rows: Vec<PriceRow>,
}

/// Measures. `progress` hears of each row as it is done.
///
/// # Errors
/// If a node cannot be started, or an obligation under custody does not end applied.
pub fn price(
    options: &PriceOptions,
    progress: impl FnMut(&PriceRow) + Send + 'static,
) -> anyhow::Result<Price> {
    ensure!(options.rounds > 0 && !options.in_flight.contains(&0), "nothing to measure");
    let root = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = root.join(format!("abhyasa-price-{}", std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let measured = rounds(options, &dir, progress);
    let _ = std::fs::remove_dir_all(&dir);
    let (rows, interrupted) = measured?;
    Ok(Price {
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        fdatasync_p50_us: median(rows.iter().map(|row| row.fdatasync_p50_us)),
        interrupted,
        figures: figures(options, &rows),
        rows,
        options: options.clone(),
    })
}

fn rounds(
    options: &PriceOptions,
    dir: &Path,
    mut progress: impl FnMut(&PriceRow) + Send + 'static,
) -> anyhow::Result<(Vec<PriceRow>, bool)> {
    let (ours, theirs) = (runtime()?, runtime()?);
    let (nodes, running) = Nodes::start(dir, &ours, &theirs)?;
    let (own, dir) = (options.clone(), dir.to_owned());
    // On the runtime's own thread, as an agent that lives beside its node would be.
    let measured = ours.block_on(ours.spawn(async move {
        let mut load = Load::new(nodes, own.payload_bytes)?;
        let warm_up = own.in_flight.iter().copied().max().unwrap_or(1);
        load.run(Way::Custody, warm_up, Duration::from_secs_f64(own.seconds.min(1.0))).await?;
        let mut rows = Vec::new();
        for round in 0..own.rounds {
            let fdatasync_p50_us = fdatasync_us(&dir)?;
            for in_flight in own.in_flight.iter().copied() {
                for n in 0..Way::ALL.len() {
                    // Each begins a round as often as the others.
                    let way = Way::ALL.get((n + round) % Way::ALL.len()).copied();
                    let way = way.unwrap_or(Way::Custody);
                    let seconds = Duration::from_secs_f64(own.seconds);
                    let sample = tokio::select! {
                        sample = load.run(way, in_flight, seconds) => sample?,
                        () = abhyasa::demo::interrupted() => return Ok((rows, true)),
                    };
                    let row = row(round, in_flight, way, &sample, fdatasync_p50_us);
                    progress(&row);
                    rows.push(row);
                }
            }
        }
        anyhow::Ok((rows, false))
    }));
    running.stop(&ours, &theirs)?;
    measured?
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(worker_threads())
        .enable_all()
        .build()
        .context("the runtime cannot start")
}

fn row(
    round: usize,
    in_flight: usize,
    way: Way,
    sample: &Sample,
    fdatasync_p50_us: f64,
) -> PriceRow {
    let each = |count: u64| count as f64 / sample.transfers.max(1) as f64;
    let acked = |share| (!sample.acked_us.is_empty()).then(|| quantile(&sample.acked_us, share));
    PriceRow {
        round,
        in_flight,
        way,
        transfers: sample.transfers,
        lost: sample.lost,
        per_s: sample.transfers as f64 / sample.took.as_secs_f64(),
        applied_p50_us: quantile(&sample.applied_us, 0.5),
        applied_p99_us: quantile(&sample.applied_us, 0.99),
        acked_p50_us: acked(0.5),
        acked_p99_us: acked(0.99),
        custodian_fsyncs: each(sample.custodian_fsyncs),
        receiver_fsyncs: each(sample.receiver_fsyncs),
        wire_bytes: each(sample.wire_bytes),
        datagrams: each(sample.datagrams),
        fdatasync_p50_us,
    }
}

fn figures(options: &PriceOptions, rows: &[PriceRow]) -> Vec<PriceFigure> {
    let mut figures = Vec::new();
    for in_flight in options.in_flight.iter().copied() {
        for way in Way::ALL {
            let of =
                |way| rows.iter().filter(move |row| row.in_flight == in_flight && row.way == way);
            let ratios = |to: Way| -> Vec<f64> {
                let beside = |row: &PriceRow| {
                    of(to).find(|other| other.round == row.round).map(|other| other.per_s)
                };
                of(way).filter_map(|row| Some(row.per_s / beside(row)?)).collect()
            };
            if of(way).next().is_none() {
                continue;
            }
            let over_best_effort = ratios(Way::BestEffort);
            let least = over_best_effort.iter().copied().fold(f64::INFINITY, f64::min);
            let greatest = over_best_effort.iter().copied().fold(0.0, f64::max);
            let all = |figure: fn(&PriceRow) -> f64| median(of(way).map(figure));
            let some = |figure: fn(&PriceRow) -> Option<f64>| {
                let found: Vec<f64> = of(way).filter_map(figure).collect();
                (!found.is_empty()).then(|| median(found))
            };
            figures.push(PriceFigure {
                in_flight,
                way,
                per_s: all(|row| row.per_s),
                over_best_effort: median(over_best_effort),
                over_best_effort_range: (least, greatest),
                over_unsynced: median(ratios(Way::CustodyUnsynced)),
                applied_p50_us: all(|row| row.applied_p50_us),
                applied_p99_us: all(|row| row.applied_p99_us),
                acked_p50_us: some(|row| row.acked_p50_us),
                acked_p99_us: some(|row| row.acked_p99_us),
                fsyncs: all(|row| row.custodian_fsyncs + row.receiver_fsyncs),
                wire_bytes: all(|row| row.wire_bytes),
                datagrams: all(|row| row.datagrams),
            });
        }
    }
    figures
}

/// What the disk gives to a program that does nothing but append and sync: microseconds of one
/// append of 256 bytes into a file that has its size already, as the store's journal does.
fn fdatasync_us(dir: &Path) -> std::io::Result<f64> {
    let path = dir.join("control.bin");
    let mut file = File::create(&path)?;
    file.set_len((SYNCS * BLOCK * 2) as u64)?;
    file.sync_all()?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let begun = Instant::now();
        file.write_all(&[7u8; BLOCK])?;
        file.sync_data()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    std::fs::remove_file(path)?;
    Ok(median(times))
}

fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.into_iter().collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A quantile of microseconds that are sorted.
fn quantile(sorted: &[u64], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).map_or(f64::NAN, |us| *us as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(round: usize, way: Way, per_s: f64) -> PriceRow {
        PriceRow {
            round,
            in_flight: 1,
            way,
            transfers: 1,
            lost: 0,
            per_s,
            applied_p50_us: per_s,
            applied_p99_us: 0.0,
            acked_p50_us: (way != Way::BestEffort).then_some(1.0),
            acked_p99_us: None,
            custodian_fsyncs: 1.0,
            receiver_fsyncs: 2.0,
            wire_bytes: 0.0,
            datagrams: 0.0,
            fdatasync_p50_us: 0.0,
        }
    }

    #[test]
    fn ratios_are_within_a_round_and_figures_are_medians() {
        // The machine is twice as fast in each further round; the ratios stay.
        let rows: Vec<PriceRow> = (0..3)
            .flat_map(|round| {
                let speed = f64::from(1 << round);
                [(Way::Custody, 2.0), (Way::CustodyUnsynced, 4.0), (Way::BestEffort, 8.0)]
                    .map(|(way, rate)| row(round as usize, way, rate * speed))
            })
            .collect();
        let options = PriceOptions { in_flight: vec![1, 64], ..PriceOptions::default() };
        let figures = figures(&options, &rows);
        assert_eq!(figures.len(), 3, "nothing was measured with 64 in flight");
        let custody = &figures[0];
        assert_eq!((custody.way, custody.per_s), (Way::Custody, 4.0));
        assert_eq!((custody.over_best_effort, custody.over_unsynced), (0.25, 0.5));
        assert_eq!(custody.over_best_effort_range, (0.25, 0.25));
        assert_eq!((custody.fsyncs, custody.acked_p50_us), (3.0, Some(1.0)));
        assert_eq!(figures[2].acked_p50_us, None);
    }

    #[test]
    fn quantiles_are_of_what_was_seen() {
        let sorted: Vec<u64> = (0..100).collect();
        assert_eq!((quantile(&sorted, 0.5), quantile(&sorted, 0.99)), (50.0, 99.0));
        assert!(quantile(&[], 0.5).is_nan());
        assert_eq!(quantile(&[7], 1.0), 7.0);
    }
}
