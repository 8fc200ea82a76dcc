//! The commands beside `run`.

pub(crate) mod fuzz;
pub(crate) mod oracle;
mod progress;
pub(crate) mod size;
pub(crate) mod study;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that Ctrl-C sets: what is under way is finished and written. A second Ctrl-C ends at once.
fn stop_on_ctrl_c() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("\nfinishing the runs under way; Ctrl-C again to leave at once");
    })?;
    Ok(stop)
}

/// Threads by the flag: all cores if it is left out.
fn threads(given: Option<usize>) -> usize {
    given.unwrap_or_else(netsim::parallel::cores)
}
