//! Jobs over all cores, their results in order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

/// Jobs that may be ahead of the oldest one not done, for each thread.
const AHEAD_PER_THREAD: u64 = 256;

/// Does `job` for 0 to `count` on `threads` threads and gives the results to `sink`, in order, on
/// the calling thread. Once `stop` is set or `sink` says so with false, no further job begins;
/// results of jobs that had begun still come, as far as there is no gap before them.
pub fn in_order<T: Send>(
    threads: usize,
    count: u64,
    stop: &AtomicBool,
    job: impl Fn(u64) -> T + Sync,
    mut sink: impl FnMut(u64, T) -> bool,
) {
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let ended = AtomicBool::new(false);
    let threads = threads.max(1);
    let ahead = AHEAD_PER_THREAD * threads as u64;
    std::thread::scope(|scope| {
        let (tx, rx) = mpsc::channel();
        let (next, done, ended, job) = (&next, &done, &ended, &job);
        for _ in 0..threads {
            let tx = tx.clone();
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) && !ended.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return;
                    }
                    while n > done.load(Ordering::Relaxed) + ahead {
                        std::thread::yield_now();
                        if ended.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                    if tx.send((n, job(n))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tx);
        let mut early = BTreeMap::new();
        let mut wanted = 0;
        for (n, result) in rx {
            early.insert(n, result);
            while let Some(result) = early.remove(&wanted) {
                if !ended.load(Ordering::Relaxed) && !sink(wanted, result) {
                    ended.store(true, Ordering::Relaxed);
                }
                wanted += 1;
                done.store(wanted, Ordering::Relaxed);
            }
        }
    });
}

/// Threads there are cores for.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_whatever_the_threads() {
        for threads in [1, 3] {
            let mut seen = Vec::new();
            let stop = AtomicBool::new(false);
            let job = |n: u64| (0..(n * 7919) % 1_000).fold(n, |sum, m| sum ^ m);
            in_order(threads, 500, &stop, job, |n, result| {
                assert_eq!(result, job(n));
                seen.push(n);
                true
            });
            assert_eq!(seen, (0..500).collect::<Vec<_>>());
        }
    }

    #[test]
    fn it_ends_early_when_told() {
        let stop = AtomicBool::new(false);
        let mut seen = 0;
        in_order(
            2,
            1 << 40,
            &stop,
            |n| n,
            |n, _| {
                seen = n;
                n < 10
            },
        );
        assert_eq!(seen, 10);
        let mut seen = 0;
        in_order(
            2,
            1 << 40,
            &stop,
            |n| n,
            |n, _| {
                stop.store(n >= 10, Ordering::Relaxed);
                seen = n;
                true
            },
        );
        assert!(seen >= 10);
    }
}
