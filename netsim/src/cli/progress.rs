//! A progress bar on stderr, if that is a terminal.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const WIDTH: usize = 30;
/// Time between two pictures.
const EVERY: Duration = Duration::from_millis(100);

/// A bar with the time that is left.
#[derive(Debug)]
pub(super) struct Progress {
    shown: bool,
    begun: Instant,
    last: Option<Instant>,
    what: String,
}

impl Progress {
    /// A bar for so many `what`.
    pub(super) fn new(what: &str) -> Self {
        let shown = std::io::stderr().is_terminal();
        Self { shown, begun: Instant::now(), last: None, what: what.to_owned() }
    }

    /// So many are done.
    pub(super) fn at(&mut self, done: u64, total: u64) {
        let fresh = self.last.is_some_and(|last| last.elapsed() < EVERY);
        if !self.shown || (fresh && done < total) {
            return;
        }
        self.last = Some(Instant::now());
        let share = done as f64 / total.max(1) as f64;
        let filled = ((share * WIDTH as f64) as usize).min(WIDTH);
        let took = self.begun.elapsed().as_secs_f64();
        let left = if share > 0.0 { took / share - took } else { 0.0 };
        let bar: String = (0..WIDTH).map(|n| if n < filled { '█' } else { '·' }).collect();
        let mut err = std::io::stderr().lock();
        let what = &self.what;
        // A terminal that is gone is no reason to stop.
        let _ = write!(err, "\r{bar} {done}/{total} {what}, {} left   ", clock(left));
        let _ = err.flush();
    }

    /// So many are done, `unique` of them new, of nobody knows how many.
    pub(super) fn so_far(&mut self, done: usize, unique: usize) {
        if self.shown && self.last.is_none_or(|last| last.elapsed() >= EVERY) {
            self.last = Some(Instant::now());
            let (what, took) = (&self.what, clock(self.begun.elapsed().as_secs_f64()));
            // A terminal that is gone is no reason to stop.
            let _ = write!(std::io::stderr().lock(), "\r{done} {what}, {unique} unique, {took}   ");
        }
    }

    /// The bar is taken away; how long it took, in seconds.
    pub(super) fn done(&self) -> f64 {
        if self.shown {
            eprint!("\r{:width$}\r", "", width = WIDTH + 60);
        }
        self.begun.elapsed().as_secs_f64()
    }
}

fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    if seconds < 60 {
        format!("{seconds} s")
    } else {
        format!("{}:{:02}", seconds / 60, seconds % 60)
    }
}
