//! Many runs at once, on all cores. What comes of them does not depend on how many there are.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Does jobs `0..jobs` on `threads` threads, in about that order, and hands each result to `done`,
/// in the order in which they are ready. Once `stop` is set no further job begins; those under way
/// are finished. Returns how many were done.
///
/// # Panics
/// If `work` or `done` does.
pub fn each<R: Send>(
    jobs: usize,
    threads: usize,
    stop: &AtomicBool,
    work: impl Fn(usize) -> R + Sync,
    done: impl FnMut(usize, R) + Send,
) -> usize {
    let next = AtomicUsize::new(0);
    let finished = Mutex::new((0, done));
    let one = || {
        while !stop.load(Ordering::Relaxed) {
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= jobs {
                return;
            }
            let result = work(job);
            // A panic in `done` ends the whole call, so the lock is never seen poisoned.
            if let Ok(mut finished) = finished.lock() {
                finished.0 += 1;
                (finished.1)(job, result);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(one);
        }
        one();
    });
    finished.into_inner().map_or(0, |(count, _)| count)
}

/// As many threads as there are cores.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_once_until_it_is_stopped() {
        for threads in [0, 1, 3, 50] {
            let mut seen = vec![0; 100];
            let stop = AtomicBool::new(false);
            let count = each(
                100,
                threads,
                &stop,
                |job| job * 2,
                |job, twice| {
                    assert_eq!(twice, job * 2);
                    seen[job] += 1;
                },
            );
            assert_eq!((count, seen), (100, vec![1; 100]));
        }
        let stop = AtomicBool::new(false);
        let stopped = each(
            100,
            2,
            &stop,
            |job| job,
            |job, _| {
                if job == 10 {
                    stop.store(true, Ordering::Relaxed);
                }
            },
        );
        assert!((11..100).contains(&stopped), "{stopped}");
    }
}
