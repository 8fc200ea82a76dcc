//! The control: what the disk gives to a program that does nothing but append and sync.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

/// Syncs timed in one round.
const SYNCS: usize = 300;
const BLOCK: usize = 256;

/// Times of `append 256 bytes + fdatasync` into a preallocated file, in microseconds.
pub(super) fn fdatasync_us(dir: &Path) -> std::io::Result<Vec<f64>> {
    let path = dir.join("control.bin");
    let mut file = File::create(&path)?;
    // As the store's journal does: the size does not change while it is appended to.
    file.set_len((SYNCS * BLOCK * 2) as u64)?;
    file.sync_all()?;
    let block = [7u8; BLOCK];
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let begun = Instant::now();
        file.write_all(&block)?;
        file.sync_data()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    drop(file);
    std::fs::remove_file(path)?;
    Ok(times)
}
