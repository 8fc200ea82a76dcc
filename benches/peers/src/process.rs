//! Child processes that are bound to a core and cannot outlive this one, and what the kernel says of
//! them.

use anyhow::{Context as _, bail, ensure};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The core of a peer's server, and of our custodian.
pub(crate) const SERVER_CORE: usize = 0;
/// The core of a peer's senders and receivers, and of our receiver.
pub(crate) const CLIENT_CORE: usize = 1;
/// Kernel clock ticks a second, as in /proc.
const TICKS_PER_S: f64 = 100.0;
/// How long a process may take to end after it was asked to.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A command line that is yet to be run.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    core: Option<usize>,
    user: Option<String>,
    log: Option<PathBuf>,
    dir: Option<PathBuf>,
}

impl Command {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            argv: vec![program.as_ref().to_owned()],
            env: Vec::new(),
            core: None,
            user: None,
            log: None,
            dir: None,
        }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.argv.push(arg.as_ref().to_owned());
        self
    }

    pub(crate) fn args<T: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.argv.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.dir = Some(dir.to_owned());
        self
    }

    /// Binds the process and all it starts to one core.
    pub(crate) const fn core(mut self, core: usize) -> Self {
        self.core = Some(core);
        self
    }

    /// Another user than root, for what refuses to run as root.
    pub(crate) fn user(mut self, user: &str) -> Self {
        self.user = Some(user.to_owned());
        self
    }

    /// Where its output goes.
    pub(crate) fn log(mut self, log: &Path) -> Self {
        self.log = Some(log.to_owned());
        self
    }

    /// The whole command line. The kernel kills the process when this one ends, however it ends:
    /// setpriv asks for that, after the change of user, which would undo it.
    pub(crate) fn argv(&self) -> Vec<String> {
        let mut argv: Vec<String> = Vec::new();
        if let Some(user) = &self.user {
            argv.extend(["setpriv", "--reuid", user, "--clear-groups"].map(str::to_owned));
        }
        argv.extend(["setpriv", "--pdeathsig", "KILL"].map(str::to_owned));
        if let Some(core) = self.core {
            argv.extend(["taskset".into(), "-c".into(), core.to_string()]);
        }
        argv.extend(self.argv.iter().map(|arg| arg.to_string_lossy().into_owned()));
        argv
    }

    fn prepare(&self) -> anyhow::Result<std::process::Command> {
        let argv = self.argv();
        let (program, args) = argv.split_first().context("an empty command")?;
        let mut command = std::process::Command::new(program);
        command.args(args).envs(self.env.iter().cloned()).stdin(Stdio::null());
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        Ok(command)
    }

    /// Starts it.
    pub(crate) fn start(self) -> anyhow::Result<Process> {
        let mut command = self.prepare()?;
        match &self.log {
            Some(log) => {
                let file = File::create(log).with_context(|| log.display().to_string())?;
                command.stdout(file.try_clone()?).stderr(file);
            }
            None => {
                command.stdout(Stdio::null());
            }
        }
        let child =
            command.spawn().with_context(|| format!("{:?} cannot be started", self.argv()))?;
        Ok(Process { child, argv: self.argv(), log: self.log })
    }

    /// Runs it to its end; returns what it printed.
    pub(crate) fn output(self) -> anyhow::Result<String> {
        let output = self.prepare()?.output().with_context(|| format!("{:?}", self.argv()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("{}: {}: {}", self.argv().join(" "), output.status, tail(&said));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The last lines of what a program said.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines.get(lines.len().saturating_sub(4)..).unwrap_or_default().join(" | ")
}

/// A running process, ended when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pub(crate) argv: Vec<String>,
    log: Option<PathBuf>,
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// # Errors
    /// If it has ended.
    pub(crate) fn still_runs(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let said = self.log.as_ref().and_then(|log| std::fs::read_to_string(log).ok());
        bail!("{} ended: {status}: {}", self.argv.join(" "), tail(&said.unwrap_or_default()))
    }

    /// Waits until it has ended by itself, well.
    pub(crate) fn wait(&mut self, patience: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                let said = self.log.as_ref().and_then(|log| std::fs::read_to_string(log).ok());
                ensure!(status.success(), "{status}: {}", tail(&said.unwrap_or_default()));
                return Ok(());
            }
            if begun.elapsed() > patience {
                self.end("KILL");
                bail!("killed after {} s", patience.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks it to end, and waits until it has. Takes it down with all it started if it does not.
    pub(crate) fn end(&mut self, signal: &str) {
        let all = family(self.pid());
        let _ = signal_to(&[self.pid()], signal);
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begun.elapsed() < END_WITHIN {
            std::thread::sleep(Duration::from_millis(5));
        }
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = signal_to(&all, "KILL");
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end("TERM");
        }
    }
}

pub(crate) fn signal_to(pids: &[u32], signal: &str) -> anyhow::Result<()> {
    let mut kill = std::process::Command::new("kill");
    kill.arg("-s").arg(signal).args(pids.iter().map(u32::to_string));
    kill.stderr(Stdio::null()).status()?;
    Ok(())
}

/// A process and all its descendants.
pub(crate) fn family(root: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(parent) = after_name(&stat).nth(1).and_then(|word| word.parse::<u32>().ok()) {
            parents.push((pid, parent));
        }
    }
    let mut found = BTreeSet::from([root]);
    loop {
        let known = found.len();
        found.extend(
            parents
                .iter()
                .filter(|(_, p)| found.contains(p))
                .map(|(pid, _)| *pid)
                .collect::<Vec<_>>(),
        );
        if found.len() == known {
            return found.into_iter().collect();
        }
    }
}

/// The words of /proc/PID/stat after the name, which may have spaces.
fn after_name(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit(") ").next().unwrap_or_default().split_whitespace()
}

/// CPU time a process has used, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    cpu_of(&stat).with_context(|| format!("/proc/{pid}/stat"))
}

fn cpu_of(stat: &str) -> Option<f64> {
    let mut words = after_name(stat).skip(11);
    let mut ticks = || words.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS_PER_S)
}

/// Bytes of memory this process has resident.
pub(crate) fn resident_bytes() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    kib_of(&status, "VmRSS:").context("/proc/self/status: VmRSS")
}

/// Bytes of memory that the machine could still give.
pub(crate) fn available_bytes() -> anyhow::Result<f64> {
    let memory = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo")?;
    kib_of(&memory, "MemAvailable:").context("/proc/meminfo: MemAvailable")
}

/// The bytes of a line `name: N kB`.
fn kib_of(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
}

/// Bytes this process has written to files; what it sends by sendmsg is not among them.
pub(crate) fn written_bytes() -> anyhow::Result<f64> {
    let io = std::fs::read_to_string("/proc/self/io").context("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    Ok(line.context("/proc/self/io: wchar")?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_brackets_does_not_shift_the_fields() {
        let stat = "42 (a ) b) S 7 42 42 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 1 0 1 1 1";
        assert_eq!(after_name(stat).nth(1), Some("7"));
        assert_eq!(cpu_of(stat), Some(3.0));
        assert_eq!(cpu_of("42 (short) S 7"), None);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(kib_of("VmPeak:\t  9 kB\nVmRSS:\t    2 kB\n", "VmRSS:"), Some(2048.0));
        assert_eq!(kib_of("VmRSS:\n", "VmRSS:"), None);
        assert!(resident_bytes().unwrap() > 0.0 && available_bytes().unwrap() > 0.0);
    }

    #[test]
    fn a_child_is_in_the_family_and_ends_when_dropped() {
        let child = Command::new("sleep").arg("60").core(0).start().unwrap();
        let pid = child.pid();
        assert!(family(std::process::id()).contains(&pid));
        drop(child);
        assert!(!family(std::process::id()).contains(&pid));
    }

    #[test]
    fn death_with_the_parent_is_asked_for_after_the_change_of_user() {
        let argv = Command::new("x").user("nobody").core(1).argv().join(" ");
        let wanted =
            "setpriv --reuid nobody --clear-groups setpriv --pdeathsig KILL taskset -c 1 x";
        assert_eq!(argv, wanted);
    }
}
