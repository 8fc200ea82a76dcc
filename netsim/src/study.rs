//! Studies: named questions, each a grid of scenarios run over many seeds.
//!
//! A study's points are scenarios without a seed. Each is run under seeds `0..N`, all points under the
//! same seeds, and its measures are summed. The result does not depend on the number of threads.

mod catalog;
mod latency;
mod partition;
#[cfg(feature = "node")]
mod price;
mod receiver;
mod relay;
mod row;

use crate::measures::Measures;
use crate::options::Options;
use crate::pool;
use crate::report::Chart;
use crate::run::run;
use crate::stats::Share;
use serde::Serialize;
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

pub use catalog::STUDIES;
pub use row::Row;

/// A named question.
#[derive(Clone, Copy, Debug)]
pub struct Study {
    /// What it is called on the command line and on disk.
    pub name: &'static str,
    /// Its headline.
    pub title: &'static str,
    /// What it asks, and how it goes about it.
    pub question: &'static str,
    /// How its charts are read.
    pub reading: &'static str,
    /// Seeds of each point, unless said otherwise.
    pub seeds: u64,
    /// The same, for a quick look.
    pub quick_seeds: u64,
    /// Where its rows come from.
    pub work: Work,
    /// Its charts.
    pub charts: fn(rows: &[Row]) -> Vec<Chart>,
}

/// Hears how many runs are done, and of how many.
pub type Told<'a> = &'a mut dyn FnMut(u64, u64);

/// Where the rows of a study come from.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Its points, fewer for a quick look, are simulated.
    Simulated(fn(quick: bool) -> Vec<Point>),
    /// Real nodes are measured, in so many rounds.
    #[cfg(feature = "node")]
    Measured(fn(rounds: u64, quick: bool, told: Told<'_>) -> Result<Outcome, String>),
}

/// One scenario of a study, under one policy. Its seed is set by the study.
#[derive(Clone, Debug)]
pub struct Point {
    /// What sets it apart from the others.
    pub params: Vec<(&'static str, Value)>,
    /// The scenario.
    pub options: Options,
}

/// A run in which a promise broke: the find of a study.
#[derive(Clone, Debug, Serialize)]
pub struct Broken {
    /// Which point.
    pub point: usize,
    /// Which seed.
    pub seed: u64,
    /// The rule, or that the run panicked.
    pub rule: String,
    /// What was seen.
    pub detail: String,
    /// The scenario file that does it again.
    pub scenario: String,
}

/// What came of a study.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// One row for each point, in order.
    pub rows: Vec<Row>,
    /// Broken promises, by point and seed.
    pub broken: Vec<Broken>,
    /// Runs made.
    pub runs: u64,
    /// Runs planned.
    pub planned: u64,
}

/// Sums of one point.
#[derive(Debug, Default)]
struct Sum {
    measures: Measures,
    seeds: u64,
    broken: u64,
    spurious: Vec<Share>,
    silent: Vec<Share>,
    doubled: Vec<Share>,
    late: Vec<Share>,
}

/// How a run of one seed ended.
enum Ran {
    Well(Box<Measures>),
    Broke { rule: String, detail: String, measures: Box<Measures> },
}

impl Study {
    /// Runs the study. `told` hears after each run how many are done.
    ///
    /// # Errors
    /// If real nodes cannot be measured.
    pub fn run(
        &self,
        seeds: u64,
        quick: bool,
        threads: usize,
        stop: &AtomicBool,
        mut told: impl FnMut(u64, u64),
    ) -> Result<Outcome, String> {
        let points = match self.work {
            Work::Simulated(points) => points(quick),
            #[cfg(feature = "node")]
            Work::Measured(measure) => return measure(seeds, quick, &mut told),
        };
        let planned = points.len() as u64 * seeds;
        let mut sums: Vec<Sum> = points.iter().map(|_| Sum::default()).collect();
        let mut broken = Vec::new();
        // Seed by seed, so that a study that is cut short has a little of everything.
        let count = points.len() as u64;
        let split = |job: u64| (usize::try_from(job % count).unwrap_or(0), job / count);
        let work = |job| {
            let (point, seed) = split(job);
            points.get(point).map(|point| one(&Options { seed, ..point.options.clone() }))
        };
        let mut done = 0;
        pool::in_order(threads, planned, stop, work, |job, ran| {
            let (point, seed) = split(job);
            done += 1;
            told(done, planned);
            let (Some(sum), Some(ran)) = (sums.get_mut(point), ran) else { return true };
            if let Ran::Broke { rule, detail, .. } = &ran {
                let options =
                    points.get(point).map(|point| Options { seed, ..point.options.clone() });
                let scenario = options.and_then(|options| options.to_toml().ok());
                broken.push(Broken {
                    point,
                    seed,
                    rule: rule.clone(),
                    detail: detail.clone(),
                    scenario: scenario.unwrap_or_default(),
                });
            }
            sum.add(ran);
            true
        });
        broken.sort_by_key(|broken| (broken.point, broken.seed));
        let rows = points.iter().zip(&sums).map(|(point, sum)| Row::of(point, sum)).collect();
        Ok(Outcome { rows, broken, runs: done, planned })
    }
}

fn one(options: &Options) -> Ran {
    match catch_unwind(AssertUnwindSafe(|| run(options))) {
        Err(_) => Ran::Broke {
            rule: "panic".to_owned(),
            detail: "the run panicked".to_owned(),
            measures: Box::default(),
        },
        Ok(report) => match report.violations.first() {
            None => Ran::Well(Box::new(report.measures)),
            Some(violation) => Ran::Broke {
                rule: violation.rule.to_owned(),
                detail: violation.detail.clone(),
                measures: Box::new(report.measures),
            },
        },
    }
}

impl Sum {
    fn add(&mut self, ran: Ran) {
        let measures = match ran {
            Ran::Well(measures) => measures,
            Ran::Broke { measures, .. } => {
                self.broken += 1;
                measures
            }
        };
        self.seeds += 1;
        let n = measures.transfers;
        self.spurious.push(Share { hits: measures.spurious, n });
        self.silent.push(Share { hits: measures.silent, n });
        self.doubled.push(Share { hits: measures.doubled, n });
        self.late.push(Share { hits: measures.twins_late, n: measures.twins });
        self.measures.merge(&measures);
    }
}
