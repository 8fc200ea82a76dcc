//! Studies are functions of their seeds, keep to the bound, and write what they say they write.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing)]

use netsim::fuzz::fuzz;
use netsim::oracle::{Ask, ask};
use netsim::report::{Document, Made};
use netsim::size::Wish;
use netsim::study::{Outcome, Point, Row, STUDIES, Study, Work};
use netsim::{Chance, LinkModel, Options, Policy};
use std::sync::atomic::{AtomicBool, Ordering};

static GO: AtomicBool = AtomicBool::new(false);

fn quiet(study: &Study, seeds: u64, threads: usize) -> Outcome {
    study.run(seeds, true, threads, &GO, |_, _| {}).unwrap()
}

/// The outage of one deadline and a half of partition-sweep, with a loss, as a study of its own.
fn outages(quick: bool) -> Vec<Point> {
    let sweep = Study::of("partition-sweep").unwrap();
    let points = match sweep.work {
        Work::Simulated(points) => points,
        #[cfg(feature = "node")]
        Work::Measured(_) => panic!("it is simulated"),
    };
    let points = points(quick).into_iter().filter(|point| {
        point.options.policy == Policy::Custody && point.params[0].1.as_f64() == Some(1.5)
    });
    points.collect()
}

/// The same with a budget of two retries, which end before the deadline (AB-2 forbids it).
fn short_budgets(quick: bool) -> Vec<Point> {
    let short = |point: Point| Point {
        options: Options { retries: Some(2), ..point.options.clone() },
        ..point
    };
    outages(quick).into_iter().map(short).collect()
}

fn small(points: fn(bool) -> Vec<Point>) -> Study {
    Study {
        work: Work::Simulated(points),
        charts: |_| Vec::new(),
        ..Study::of("partition-sweep").unwrap()
    }
}

#[test]
fn a_study_does_not_depend_on_the_number_of_threads() {
    let [one, three] = [1, 3].map(|threads| quiet(&small(outages), 2, threads));
    assert_eq!(one.rows, three.rows);
    assert_eq!((one.runs, one.planned), (24, 24));
    assert_ne!(one.rows, quiet(&small(outages), 3, 2).rows, "more seeds are other figures");
}

#[test]
fn a_study_that_is_stopped_has_a_little_of_everything() {
    let stop = AtomicBool::new(false);
    let told = |done, _| stop.store(done >= 24, Ordering::Relaxed);
    let outcome = small(outages).run(50, true, 2, &stop, told).unwrap();
    assert!((24..30).contains(&outcome.runs), "{}", outcome.runs);
    assert!(outcome.rows.iter().all(|row| row.number("seeds") >= Some(1.0)));
}

#[test]
fn spurious_escalations_stay_below_the_bound() {
    let rows = quiet(&small(outages), 3, 2).rows;
    assert_eq!(rows.len(), 12);
    for row in rows {
        let (seen, bound) = (row.number("spurious_rate").unwrap(), row.number("bound").unwrap());
        assert!(seen > 0.2, "an outage of 1.5 deadlines is felt");
        assert!(seen <= bound, "{:?}: {seen} over {bound}", row.params);
        assert_eq!(row.number("silent_losses"), Some(0.0));
    }
}

#[test]
fn a_budget_that_ends_before_the_deadline_breaks_the_bound() {
    let rows = quiet(&small(short_budgets), 3, 2).rows;
    let over = |row: &&Row| row.number("spurious_rate") > row.number("bound");
    assert!(rows.iter().filter(over).count() >= 9, "the comparison is no tautology");
}

#[test]
fn every_study_runs_and_keeps_its_promises() {
    for study in STUDIES {
        let outcome = quiet(study, 1, 2);
        assert!(outcome.broken.is_empty(), "{}: {:#?}", study.name, outcome.broken);
        let custody = |row: &&Row| row.get("policy").unwrap() == "custody";
        for row in outcome.rows.iter().filter(custody) {
            assert_eq!(row.number("silent_losses"), Some(0.0), "{}", study.name);
            let doubled = row.number("double_applications");
            assert!(doubled.is_none_or(|doubled| doubled == 0.0), "{}", study.name);
        }
        let charts = (study.charts)(&outcome.rows);
        assert!(charts.len() > 1);
        let made = Made { command: "netsim study <x>".to_owned(), seeds: 1, ..Made::default() };
        let document = Document::new(*study, outcome.clone(), made);
        written(study, &outcome, &document, charts.len());
    }
}

fn written(study: &Study, outcome: &Outcome, document: &Document, charts: usize) {
    let json = document.json();
    assert_eq!(json["points"].as_array().unwrap().len(), outcome.rows.len());
    for name in ["policy", "spurious_rate", "bound", "silent_losses", "transfers"] {
        assert!(json["points"][0].get(name).is_some(), "{name}");
    }
    let csv = document.csv();
    let mut lines = csv.lines();
    let columns = lines.next().unwrap().split(',').count();
    assert_eq!(lines.clone().count(), outcome.rows.len());
    assert!(
        lines.filter(|line| !line.contains('"')).all(|line| line.split(',').count() == columns)
    );
    let html = document.html();
    assert_eq!(html.matches("<svg").count(), charts, "{}", study.name);
    assert_eq!(html.matches("<path class=\"line").count() == 0, study.name == "baselines");
    assert!(html.contains("netsim study &lt;x&gt;"));
    for outside in ["http://", "https://", "<script", "<link", "src=", "NaN", "inf"] {
        let found = html.find(outside).map(|at| &html[at.saturating_sub(40)..at + 20]);
        assert_eq!(found, None, "{}: {outside}", study.name);
    }
}

#[test]
fn the_fuzz_of_the_paper_holds_and_repeats() {
    let run = |seed, threads| fuzz(3_500, seed, threads, &GO, |_| {});
    let tally = run(7, 2);
    assert!(tally.holds(), "{tally:#?}");
    assert!(tally.spurious > 200, "{tally:#?}");
    assert_eq!(tally, run(7, 1));
    assert_ne!(tally, run(8, 2));
}

#[test]
fn dt1_the_closed_form_holds_over_fixed_seeds() {
    for (loss_permille, transfers) in [(300, 500), (500, 700), (700, 300), (900, 200)] {
        let found = ask(Ask { loss_permille, transfers, seeds: 8 }, 2, &GO, || {}).unwrap();
        for found in found {
            assert!(found.holds(), "{found:?}");
            assert!(found.spread < 3.0, "{found:?}");
        }
    }
}

#[test]
fn a_size_is_checked_and_raised_if_it_is_too_small() {
    let link = LinkModel { loss: Chance::permille(300), ..Options::quiet(0).link };
    let scenario = Options { link, ..Options::quiet(0) };
    let wish = |outage: &str, target| Wish {
        scenario: scenario.clone(),
        outage: outage.parse().unwrap(),
        target,
        deadline_s_min: 30,
    };
    for outage in ["none", "fixed 60s", "exp 20s", "pareto 5s 1.5 10m"] {
        let trials = wish(outage, 0.01).answer(1_500, 1, 2, &GO, |_| {});
        let trial = trials.last().unwrap();
        assert!(trial.broken.is_empty() && trial.silent == 0, "{trial:?}");
        assert!(trial.rate <= 0.01 && trial.transfers >= 1_500, "{outage}: {trial:?}");
    }
    // A profile for no outages, tried in outages: what the simulation is there to find.
    let hard = wish("fixed 60s", 0.01);
    let trial = hard.try_out(wish("none", 0.01).size(), 1_000, 2, &GO, |_| {});
    assert!(trial.rate > 0.2, "{trial:?}");
}
