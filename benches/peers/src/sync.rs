//! Whether a peer's acks wait for the disk: its syncs are counted by strace beside what it acked.

use crate::process::Command;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// System calls that make something durable.
const SYNC_CALLS: &str = "fsync,fdatasync,sync_file_range,msync,syncfs,sync";
/// Bits of the flags of an open file that make each write durable.
const O_DSYNC: u32 = 0o10_000;
/// With one in flight an ack needs a sync of its own; a peer with fewer does not wait for the disk.
pub(crate) const SYNCS_OF_ONE_MIN: f64 = 0.9;

/// Syncs of one load.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) in_flight: usize,
    pub(crate) messages: u64,
    pub(crate) calls: BTreeMap<String, u64>,
    pub(crate) syncs_per_message: f64,
    /// Files that are open with O_DSYNC, whose writes are syncs too and are not counted here.
    pub(crate) o_dsync: Vec<String>,
}

impl Check {
    pub(crate) fn new(
        in_flight: usize,
        messages: u64,
        calls: BTreeMap<String, u64>,
        o_dsync: Vec<String>,
    ) -> Self {
        let syncs: u64 = calls.values().sum();
        let syncs_per_message = syncs as f64 / messages as f64;
        Self { in_flight, messages, calls, syncs_per_message, o_dsync }
    }
}

/// Whether checks show that acks wait for the disk. None if it was not checked with one in flight.
pub(crate) fn durable(checks: &[Check]) -> Option<bool> {
    let one = checks.iter().find(|check| check.in_flight == 1)?;
    Some(one.syncs_per_message >= SYNCS_OF_ONE_MIN || !one.o_dsync.is_empty())
}

/// strace on running processes; it writes its summary to `summary` when interrupted.
pub(crate) fn strace(program: &Path, pids: &[u32], summary: &Path) -> Command {
    let mut command = Command::new(program)
        .args(["-f", "-c", "-e", &format!("trace={SYNC_CALLS}"), "-o"])
        .arg(summary);
    for pid in pids {
        command = command.arg("-p").arg(pid.to_string());
    }
    command
}

/// Calls by name, of the table that `strace -c` writes.
pub(crate) fn parse_summary(text: &str) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // % time, seconds, usecs/call, calls, [errors,] syscall
        let (Some(share), Some(calls), Some(name)) = (words.first(), words.get(3), words.last())
        else {
            continue;
        };
        let (Ok(_), Ok(calls)) = (share.parse::<f64>(), calls.parse::<u64>()) else { continue };
        if *name != "total" {
            *found.entry((*name).to_owned()).or_insert(0) += calls;
        }
    }
    found
}

/// Regular files that these processes have open with O_DSYNC or O_SYNC.
pub(crate) fn o_dsync_files(pids: &[u32]) -> Vec<String> {
    let mut found = Vec::new();
    for pid in pids {
        for fd in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let Some(number) = fd.file_name().to_str().map(str::to_owned) else { continue };
            let Ok(target) = std::fs::read_link(fd.path()) else { continue };
            let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"));
            if target.is_absolute() && info.is_ok_and(|info| is_dsync(&info)) {
                found.push(target.display().to_string());
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

fn is_dsync(fdinfo: &str) -> bool {
    let flags = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"));
    flags
        .and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok())
        .is_some_and(|f| f & O_DSYNC != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 98.01    0.245123         122      2003           fdatasync
  1.99    0.005000         166        30         2 fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.250123         123      2033         2 total
";

    #[test]
    fn a_summary_is_read_with_and_without_errors() {
        let calls = parse_summary(SUMMARY);
        let wanted = [("fdatasync".to_owned(), 2003), ("fsync".to_owned(), 30)];
        assert_eq!(calls, BTreeMap::from(wanted));
        assert!(parse_summary("").is_empty());
        assert!(parse_summary("strace: Process 42 attached\n").is_empty());
    }

    #[test]
    fn acks_that_do_not_move_the_syncs_are_not_durable() {
        let check = |in_flight, messages, o_dsync| {
            Check::new(in_flight, messages, parse_summary(SUMMARY), o_dsync)
        };
        assert_eq!(durable(&[check(1, 2000, vec![])]), Some(true));
        assert_eq!(durable(&[check(1, 200_000, vec![])]), Some(false));
        // Group commit: few syncs with many in flight prove nothing.
        assert_eq!(durable(&[check(64, 200_000, vec![]), check(1, 2000, vec![])]), Some(true));
        assert_eq!(durable(&[check(64, 2000, vec![])]), None);
        // Each write of such a file is a sync.
        assert_eq!(durable(&[check(1, 200_000, vec!["/wal".into()])]), Some(true));
        let nothing = Check::new(1, 1000, BTreeMap::new(), vec![]);
        assert_eq!(durable(&[nothing]), Some(false));
    }

    #[test]
    fn o_dsync_is_seen_in_the_flags() {
        assert!(is_dsync("pos:\t0\nflags:\t0112002\nmnt_id:\t25\n"));
        assert!(is_dsync("flags:\t04012001\n")); // O_SYNC has the bit too
        assert!(!is_dsync("pos:\t0\nflags:\t0102002\n"));
        assert!(!is_dsync(""));
    }
}
