//! The control: what the disk gives to a program that does nothing but append and sync.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Syncs timed for the median.
const SYNCS: usize = 300;
/// Bytes of one append, as a message has.
const BLOCK: usize = 256;
/// Bytes that [`fdatasync_us`] writes.
pub(crate) const FDATASYNC_BYTES: f64 = (SYNCS * BLOCK) as f64;
/// How long the ceiling is measured.
const CEILING: Duration = Duration::from_millis(700);
/// The file is written again from its start beyond this.
const FILE_LEN: u64 = 256 << 20;

/// Times of `append 256 bytes + fdatasync` into a preallocated file, in microseconds.
pub(crate) fn fdatasync_us(dir: &Path) -> std::io::Result<Vec<f64>> {
    let mut times = Vec::with_capacity(SYNCS);
    append(dir, BLOCK, |took| {
        times.push(took.as_secs_f64() * 1e6);
        times.len() < SYNCS
    })?;
    Ok(times)
}

/// Syncs a second with `bytes` appended before each.
pub(crate) fn syncs_per_s(dir: &Path, bytes: usize) -> std::io::Result<f64> {
    let (begun, mut count) = (Instant::now(), 0u32);
    append(dir, bytes, |_| {
        count += 1;
        begun.elapsed() < CEILING
    })?;
    Ok(f64::from(count) / begun.elapsed().as_secs_f64())
}

fn append(
    dir: &Path,
    bytes: usize,
    mut go_on: impl FnMut(Duration) -> bool,
) -> std::io::Result<()> {
    let path = dir.join("control.bin");
    let block = vec![7u8; bytes.max(1)];
    let mut file = File::create(&path)?;
    // As a journal does: the size does not change while it is appended to.
    file.set_len(FILE_LEN)?;
    file.sync_all()?;
    let mut left = FILE_LEN;
    loop {
        let begun = Instant::now();
        if left < block.len() as u64 {
            break;
        }
        left -= block.len() as u64;
        file.write_all(&block)?;
        file.sync_data()?;
        if !go_on(begun.elapsed()) {
            break;
        }
    }
    drop(file);
    std::fs::remove_file(path)
}
