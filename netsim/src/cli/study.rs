//! `netsim study`.

use super::progress::Progress;
use crate::report::{Document, Made};
use crate::study::{STUDIES, Study};
use anyhow::Context;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Run a named study over many seeds, and write its report as JSON, CSV and HTML.
///
/// Exit code 0: every promise held. 129: one broke in some run; the JSON file holds its scenario.
#[derive(Debug, Args)]
pub(crate) struct StudyArgs {
    /// Which; see --list.
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// Names the studies and what they ask.
    #[arg(long)]
    list: bool,
    /// Where NAME.json, NAME.csv and NAME.html are written.
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// Seeds of each point, from 0.
    #[arg(long)]
    seeds: Option<u64>,
    /// Threads; all cores if left out.
    #[arg(long)]
    threads: Option<usize>,
    /// Write each chart as NAME-N.svg too.
    #[arg(long)]
    svg: bool,
    /// Few points and few seeds.
    #[arg(long)]
    quick: bool,
}

/// Runs it.
pub(crate) fn run(args: &StudyArgs) -> anyhow::Result<ExitCode> {
    let Some(name) = args.name.as_deref().filter(|_| !args.list) else {
        for study in STUDIES {
            println!("{:16} {}", study.name, study.title);
        }
        return Ok(ExitCode::SUCCESS);
    };
    let study = Study::of(name).map_err(anyhow::Error::msg)?;
    let seeds = args.seeds.unwrap_or(if args.quick { study.quick_seeds } else { study.seeds });
    let threads = super::threads(args.threads);
    std::fs::create_dir_all(&args.out).with_context(|| format!("{}", args.out.display()))?;
    let stop = super::interrupted()?;
    let started = now();
    let mut progress = Progress::new("runs");
    let told = |done, planned| progress.at(done, planned);
    let outcome = study.run(seeds, args.quick, threads, &stop, told).map_err(anyhow::Error::msg)?;
    let seconds = progress.done();
    let quick = if args.quick { " --quick" } else { "" };
    let made = Made {
        command: format!("netsim study {name} --out DIR --seeds {seeds}{quick}"),
        seeds,
        started,
        seconds,
        threads,
        partial: stop.load(Ordering::Relaxed) && outcome.runs < outcome.planned,
    };
    let (runs, broken, partial) = (outcome.runs, outcome.broken.clone(), made.partial);
    let document = Document::new(study, outcome, made);
    let json = serde_json::to_string_pretty(&document.json())? + "\n";
    let mut files = vec![
        (format!("{name}.json"), json),
        (format!("{name}.csv"), document.csv()),
        (format!("{name}.html"), document.html()),
    ];
    if args.svg {
        files.extend((1..).zip(document.svgs()).map(|(n, svg)| (format!("{name}-{n}.svg"), svg)));
    }
    for (file, text) in files {
        let path = args.out.join(file);
        std::fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        println!("{}", path.display());
    }
    let cut = if partial { ", cut short" } else { "" };
    eprintln!("{runs} runs in {seconds:.1} s on {threads} threads{cut}");
    for broken in broken.iter().take(3) {
        eprintln!(
            "point {}, seed {}: {}: {}",
            broken.point, broken.seed, broken.rule, broken.detail
        );
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(129) })
}

/// The time, as RFC 3339 says it, to the second.
fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seconds = since.map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// Year, month and day of a day since 1970 (H. Hinnant, "chrono-compatible low-level date
/// algorithms").
const fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + if month <= 2 { 1 } else { 0 }, month, day)
}

#[cfg(test)]
mod tests {
    use super::civil;

    #[test]
    fn days_have_their_dates() {
        for (days, date) in [(0, (1970, 1, 1)), (11_016, (2000, 2, 29)), (20_422, (2025, 11, 30))] {
            assert_eq!(civil(days), date);
        }
    }
}
