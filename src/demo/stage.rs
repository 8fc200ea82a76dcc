//! Two real nodes in processes of their own, with a bad link between them: what the demo plays on,
//! and what the process tests torture.

use super::api::{Api, LOOK_EVERY, until};
use crate::config::{HostPort, NodeConfig};
use crate::init::{InitOptions, init};
use crate::loopback::free_address;
use crate::proxy::{self, Count, Faults, ProxyHandle, Way};
use anyhow::{Context as _, bail};
use proto::id::AgentId;
use serde_json::Value;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Identity of the node that issues.
pub const ALICE: &str = "spiffe://demo.abhyasa/alice";
/// Identity of the node that must honour.
pub const BOB: &str = "spiffe://demo.abhyasa/bob";
/// How long a node may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(15);
/// Tries to find a free name.
const TRIES_MAX: u32 = 64;

/// Settings of both nodes, beside those `init` writes: everything faster than in production, so
/// that a story takes seconds.
const TUNING: &str = r#"
quic = { handshake_timeout_ms = 1500, reconnect_cap_ms = 500, silent_after_ms = 300, idle_timeout_ms = 10000, keep_alive_ms = 1000 }
custody = { max_clock_skew_ms = 50, refuse_retry_after_ms = 100 }

[kinds."anumati.consent"]
deadline_seconds = 60
backoff_base_ms = 100
backoff_cap_ms = 1000

[kinds."oauth.token"]
deadline_seconds = 60
backoff_base_ms = 100
backoff_cap_ms = 1000

[kinds."phala.belief_update"]
deadline_seconds = 60
backoff_base_ms = 100
backoff_cap_ms = 1000
"#;

/// A new directory only we may read, removed when dropped unless kept, or in a panic.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
    keep: bool,
}

impl TempDir {
    /// Makes the directory.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new() -> anyhow::Result<Self> {
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        for n in 0..TRIES_MAX {
            let path = std::env::temp_dir().join(format!("abhyasa-{}-{n}", std::process::id()));
            match builder.create(&path) {
                Ok(()) => return Ok(Self { path, keep: false }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| path.display().to_string()),
            }
        }
        bail!("no free name for a directory in {}", std::env::temp_dir().display())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it there.
    pub const fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if !self.keep && !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Both nodes and the link between them. Dropped, the processes are killed, then the link and the
/// files go.
#[derive(Debug)]
pub struct Stage {
    /// The node that issues.
    pub alice: NodeProcess,
    /// The node that must honour.
    pub bob: NodeProcess,
    /// All there is between them.
    pub link: Link,
    /// Their files.
    pub dir: TempDir,
}

impl Stage {
    /// Sets both nodes up, with one development CA, each knowing the other only by an address of
    /// the link. `program` is the `abhyasa` executable; `tuning` is more TOML for both. Starts the
    /// link, not the nodes.
    ///
    /// # Errors
    /// When files or sockets cannot be had.
    pub async fn set(program: &Path, seed: u64, tuning: &str) -> anyhow::Result<Self> {
        let dir = TempDir::new()?;
        let (at_alice, at_bob) = (free_address()?, free_address()?);
        let link = Link {
            out: proxy::start(at_bob, seed).await?,
            back: proxy::start(at_alice, seed ^ 1).await?,
        };
        let make = |name: &str,
                    id: &str,
                    at: SocketAddr,
                    ca: Option<PathBuf>,
                    peer: &str,
                    via: &ProxyHandle| {
            let address: HostPort = via.address().to_string().parse()?;
            let options = InitOptions {
                id: Some(id.to_owned()),
                ca,
                quic_listen: at,
                api_listen: at,
                peers: vec![(AgentId::new(peer)?, address)],
                force: false,
            };
            let report = init(&dir.path().join(name), &options)?;
            tune(&report.config, TUNING)?;
            tune(&report.config, tuning)?;
            let node =
                NodeProcess::new(program, &report.config, dir.path().join(format!("{name}.log")))?;
            anyhow::Ok((node, report.ca))
        };
        let (alice, ca) = make("alice", ALICE, at_alice, None, BOB, &link.out)?;
        let (bob, _) = make("bob", BOB, at_bob, Some(ca), ALICE, &link.back)?;
        Ok(Self { alice, bob, link, dir })
    }

    /// Starts both nodes and waits until they are ready and connected.
    ///
    /// # Errors
    /// When they are not within a while.
    pub async fn start(&mut self) -> anyhow::Result<()> {
        self.alice.start(None)?;
        self.bob.start(None)?;
        self.alice.ready().await?;
        self.bob.ready().await?;
        self.connected().await
    }

    /// Starts both nodes anew, as ones that meet at a relay and nowhere else.
    ///
    /// # Errors
    /// When they are not connected within a while.
    pub async fn meet_at(&mut self, url: &str, ca: &Path) -> anyhow::Result<()> {
        for node in [&mut self.alice, &mut self.bob] {
            node.kill();
            let mut table: toml::Table = fs::read_to_string(node.config())?.parse()?;
            let peers = table.get_mut("peers").and_then(toml::Value::as_array_mut);
            for peer in peers.into_iter().flatten().filter_map(toml::Value::as_table_mut) {
                peer.remove("address");
                peer.insert("relay".to_owned(), "demo".into());
            }
            let relay = [("name", "demo".to_owned()), ("url", url.to_owned())];
            let ca = ("ca", ca.display().to_string());
            let relay =
                relay.into_iter().chain([ca]).map(|(key, value)| (key.to_owned(), value.into()));
            let relay = toml::Value::Table(relay.collect());
            table.insert("relays".to_owned(), vec![relay].into());
            fs::write(node.config(), toml::to_string(&table)?)?;
            NodeConfig::load(node.config())?;
        }
        self.start().await
    }

    /// Waits until each node has a session with the other.
    ///
    /// # Errors
    /// When they have not within a while.
    pub async fn connected(&self) -> anyhow::Result<()> {
        for node in [&self.alice, &self.bob] {
            until(READY_WITHIN, "the nodes to connect", async || {
                let peers = node.api.get("/v1/peers", &[]).await?;
                let connected = peers.pointer("/items/0/connected").and_then(Value::as_bool);
                Ok(connected.filter(|connected| *connected))
            })
            .await?;
        }
        Ok(())
    }
}

/// Merges `changes` into a TOML file: tables key by key, the rest replaced.
///
/// # Errors
/// When either is no TOML, or the result is no configuration of a node.
pub fn tune(file: &Path, changes: &str) -> anyhow::Result<()> {
    let mut table: toml::Table = fs::read_to_string(file)?.parse()?;
    merge(&mut table, changes.parse()?);
    fs::write(file, toml::to_string(&table)?)?;
    NodeConfig::load(file)?;
    Ok(())
}

fn merge(into: &mut toml::Table, changes: toml::Table) {
    for (key, value) in changes {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(changes)) => merge(into, changes),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// The link, both ways of dialling: what A dials B through, and what B dials A through.
#[derive(Debug)]
pub struct Link {
    /// Alice's connections to Bob.
    pub out: ProxyHandle,
    /// Bob's connections to Alice.
    pub back: ProxyHandle,
}

impl Link {
    /// The same faults for all packets.
    pub fn set(&self, faults: Faults) {
        self.out.set(faults.clone());
        self.back.set(faults.turned());
    }

    /// Takes all faults away.
    pub fn heal(&self) {
        self.set(Faults::default());
    }

    /// Cuts or heals everything, both ways.
    pub fn partition(&self, cut: bool) {
        self.out.partition(cut);
        self.back.partition(cut);
    }

    /// Cuts only what goes from Bob to Alice.
    pub fn cut_from_bob(&self) {
        self.out.cut(Way::ToClient, true);
        self.back.cut(Way::ToTarget, true);
    }

    /// Packets so far, on all ways together.
    #[must_use]
    pub fn count(&self) -> Count {
        self.out.counters().total().plus(self.back.counters().total())
    }
}

/// A node in a child process, killed when dropped.
#[derive(Debug)]
pub struct NodeProcess {
    /// Its local API.
    pub api: Api,
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

impl NodeProcess {
    /// A node of this configuration, not started. Its log is appended to `log`.
    ///
    /// # Errors
    /// When the configuration cannot be read.
    pub fn new(program: &Path, config: &Path, log: PathBuf) -> anyhow::Result<Self> {
        let api = Api::new(NodeConfig::load(config)?.api.listen)?;
        Ok(Self { api, program: program.to_owned(), config: config.to_owned(), log, child: None })
    }

    /// Its configuration file.
    #[must_use]
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Where its log is.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The process, if it was started and not killed since.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Starts the process, with an injected store fault if one is named.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(&mut self, fault: Option<&str>) -> anyhow::Result<()> {
        self.kill();
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command.args(["node", "--config"]).arg(&self.config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        match fault {
            Some(plan) => command.env("ABHYASA_FAULT", plan),
            None => command.env_remove("ABHYASA_FAULT"),
        };
        let child = command
            .spawn()
            .with_context(|| format!("{} cannot be started", self.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Waits until it takes obligations.
    ///
    /// # Errors
    /// When the process ends, or takes too long.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < READY_WITHIN {
            if let Some(status) = self.exited()? {
                bail!("the node ended ({status}); see {}", self.log.display());
            }
            if self.api.get("/readyz", &[]).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        bail!(
            "the node was not ready within {} s; see {}",
            READY_WITHIN.as_secs(),
            self.log.display()
        )
    }

    /// How the process ended, if it did.
    ///
    /// # Errors
    /// When the operating system does not say.
    pub fn exited(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.as_mut().map(Child::try_wait).transpose()?.flatten())
    }

    /// Whether the process runs.
    pub fn runs(&mut self) -> bool {
        self.child.is_some() && self.exited().is_ok_and(|status| status.is_none())
    }

    /// Kills it with SIGKILL: no clean-up, no last commit.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
