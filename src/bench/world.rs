//! The two nodes of a benchmark.

use crate::config::{HostPort, NodeConfig};
use crate::init::{InitOptions, init};
use crate::loopback::free_address;
use anyhow::Context as _;
use proto::id::AgentId;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a node may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// A node in a child process, killed when dropped.
pub(super) struct ChildNode {
    child: Child,
    pub(super) api: SocketAddr,
    client: reqwest::Client,
}

impl Drop for ChildNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ChildNode {
    pub(super) fn start(config: &Path) -> anyhow::Result<Self> {
        let api = NodeConfig::load(config)?.api.listen;
        let child = Command::new(std::env::current_exe()?)
            .args(["node", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("the child node cannot be started")?;
        Ok(Self { child, api, client: reqwest::Client::new() })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) async fn ready(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < READY_WITHIN {
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("the child node ended: {status}");
            }
            if self.get("/readyz").await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::bail!("the child node was not ready within {} s", READY_WITHIN.as_secs())
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<String> {
        let response = self
            .client
            .get(format!("http://{}{path}", self.api))
            .send()
            .await?
            .error_for_status()?;
        Ok(response.text().await?)
    }

    /// One counter or gauge of the child.
    pub(super) async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let text = self.get("/metrics").await?;
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        let value = line.and_then(|line| line.rsplit(' ').next()).context(name.to_owned())?;
        Ok(value.parse()?)
    }
}

/// Two configured nodes in `dir`.
pub(super) struct Pair {
    pub(super) custodian: PathBuf,
    pub(super) receiver: PathBuf,
    pub(super) target: AgentId,
}

impl Pair {
    pub(super) fn init(dir: &Path) -> anyhow::Result<Self> {
        let (a, b) = (free_address()?, free_address()?);
        let target = AgentId::new("spiffe://bench.local/receiver")?;
        let source = AgentId::new("spiffe://bench.local/custodian")?;
        let options = |id: &AgentId, at: SocketAddr, ca: Option<PathBuf>, peers| InitOptions {
            id: Some(id.to_string()),
            ca,
            quic_listen: at,
            api_listen: at,
            peers,
            force: false,
        };
        let address: HostPort = b.to_string().parse()?;
        let custodian = init(
            &dir.join("custodian"),
            &options(&source, a, None, vec![(target.clone(), address)]),
        )?;
        let ca = Some(custodian.ca.clone());
        let back: HostPort = a.to_string().parse()?;
        let receiver = init(&dir.join("receiver"), &options(&target, b, ca, vec![(source, back)]))?;
        // The receiver only accepts: one connection, as between a custodian and an edge node. And
        // neither end is to be held back by rates meant for strangers.
        let text = std::fs::read_to_string(&receiver.config)?;
        let text: String = text
            .lines()
            .filter(|line| !line.starts_with("address"))
            .map(|line| format!("{line}\n"))
            .collect();
        std::fs::write(&receiver.config, text)?;
        Ok(Self { custodian: custodian.config, receiver: receiver.config, target })
    }

    /// Has both deal with each other over MOQT: directly, or where `relay`, its URL and CA, is.
    pub(super) fn over_moqt(self, relay: Option<(&str, &Path)>) -> anyhow::Result<Self> {
        for file in [&self.custodian, &self.receiver] {
            let mut table: toml::Table = std::fs::read_to_string(file)?.parse()?;
            let peers = table.get_mut("peers").and_then(toml::Value::as_array_mut);
            for peer in peers.into_iter().flatten().filter_map(toml::Value::as_table_mut) {
                match relay {
                    Some(_) => {
                        peer.remove("address");
                        peer.insert("relay".to_owned(), "bench".into());
                    }
                    None => _ = peer.insert("binding".to_owned(), "moqt".into()),
                }
            }
            let more = match relay {
                Some((url, ca)) => format!(
                    "[[relays]]\nname = \"bench\"\nurl = \"{url}\"\nca = \"{}\"\n",
                    ca.display()
                ),
                None => "[moq]\nenabled = true\n".to_owned(),
            };
            for (key, value) in more.parse::<toml::Table>()? {
                table.insert(key, value);
            }
            std::fs::write(file, toml::to_string(&table)?)?;
        }
        Ok(self)
    }
}
