//! A MOQT relay of others, as a process on this machine.

use crate::init::ca::{DevCa, valid_days};
use crate::loopback::free_address;
use anyhow::{Context as _, bail};
use rcgen::SanType;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Programs of relays that we know how to start, by their file names.
const PROGRAMS: [&str; 3] = ["moq-interop-relay", "moq-relay-ietf", "moq-relay"];

/// A relay, killed when dropped.
#[derive(Debug)]
pub struct RelayProcess {
    program: PathBuf,
    dir: PathBuf,
    address: SocketAddr,
    ca: PathBuf,
    child: Option<Child>,
}

impl RelayProcess {
    /// Starts the relay `program` on a free loopback port, with a certificate of the development CA `ca`, and its
    /// files in `dir`, which is made. It may be there only a moment later.
    ///
    /// # Errors
    /// When it is no program we know, or cannot be started.
    pub fn start(program: &Path, dir: &Path, ca: &DevCa) -> anyhow::Result<Self> {
        fs::create_dir(dir).with_context(|| dir.display().to_string())?;
        let loopback = SanType::IpAddress([127, 0, 0, 1].into());
        let names = vec![loopback, SanType::DnsName("localhost".try_into()?)];
        let issued = ca.issue_for(names, valid_days(1))?;
        fs::write(dir.join("cert.pem"), &issued.cert_pem)?;
        fs::write(dir.join("key.pem"), &issued.key_pem)?;
        let trusted = dir.join("ca.pem");
        fs::write(&trusted, ca.cert_pem())?;
        let (program, dir) = (program.to_owned(), dir.to_owned());
        let mut relay = Self { program, dir, address: free_address()?, ca: trusted, child: None };
        relay.restart()?;
        Ok(relay)
    }

    /// Its URL, with the path that is its scope.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("moqt://{}{path}", self.address)
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// PEM file with the CA that its certificate is of.
    #[must_use]
    pub fn ca(&self) -> &Path {
        &self.ca
    }

    /// What it has written to its log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Ends it without a word to its clients.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it anew where it was, knowing nothing.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        let mut command = self.command()?;
        let log = File::options().create(true).append(true).open(self.dir.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn();
        let child =
            child.with_context(|| format!("{} cannot be started", self.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    fn command(&self) -> anyhow::Result<Command> {
        let mut command = Command::new(&self.program);
        let (cert, key) = (self.dir.join("cert.pem"), self.dir.join("key.pem"));
        let (at, port) = (self.address.to_string(), self.address.port().to_string());
        let name = self.program.file_name().unwrap_or_default();
        match PROGRAMS.iter().position(|program| name == *program) {
            Some(0) => {
                command.args(["--quic", "--draft", "18", "--bind", "127.0.0.1", "--port", &port]);
                command.arg("--cert").arg(cert).arg("--key").arg(key);
            }
            Some(1) => {
                command.args(["--bind", &at]).arg("--tls-cert").arg(cert);
                command.arg("--tls-key").arg(key);
                // By default one file of the machine, with what earlier relays left in it.
                let coordinator = self.dir.join("coordinator.json");
                let _ = fs::remove_file(&coordinator);
                command.arg("--coordinator-file").arg(coordinator);
            }
            Some(_) => {
                command.args(["--listen", &at]).arg("--listen-tls-cert").arg(cert);
                command.arg("--listen-tls-key").arg(key).args(["--auth-public", "**"]);
            }
            None => bail!(
                "{} is no relay that we know how to start\n  hint: these are: {}",
                self.program.display(),
                PROGRAMS.join(", ")
            ),
        }
        Ok(command)
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
