//! `abhyasa node`: runs a node until it is told to stop.

use super::output;
use crate::api;
use crate::config::{LogConfig, LogFormat, NodeConfig};
use crate::node::{Builder, store_options};
use crate::store::{FaultPlan, FaultStore, FjallStore};
use anyhow::Context as _;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Names an injected fault of the store, for tests of crashes; see [`FaultPlan`].
const FAULT_VARIABLE: &str = "ABHYASA_FAULT";

/// Runs the node of `config`.
///
/// SIGINT and SIGTERM stop it: no new requests, those in progress end, what was accepted is
/// committed. A second signal ends it at once, which loses nothing that was acknowledged.
pub(super) async fn run(config: NodeConfig, json: bool) -> anyhow::Result<()> {
    log_to_stderr(&config.log)?;
    let mut signals = Signals::new()?;
    let address = config.api.listen;
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("the API cannot listen on {address}\n  hint: another node may run there; change listen in [api]")
    })?;
    let api_address = listener.local_addr()?;
    let mut builder = Builder::new(config.clone());
    if let Ok(plan) = std::env::var(FAULT_VARIABLE) {
        let plan: FaultPlan = plan.parse().map_err(anyhow::Error::msg)?;
        tracing::warn!(?plan, "the store fails on purpose");
        let options = store_options(&config);
        builder = builder.storage(Arc::new(FaultStore::new(
            FjallStore::open(&config.data_dir, &config.id, &options)?,
            plan,
        )));
    }
    let mut node = builder.start().await?;
    let handle = node.handle();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let mut server = tokio::spawn(api::serve(listener, handle.clone(), stopped));
    let quic_address = handle.quic_address();
    tracing::info!(id = %config.id, api = %api_address, quic = %quic_address, "node started");
    output::line(&if json {
        let id = &config.id;
        serde_json::json!({ "event": "started", "id": id, "api": api_address, "quic": quic_address }).to_string()
    } else {
        format!("{} runs: API http://{api_address}, QUIC {quic_address}", config.id)
    });
    tokio::select! {
        () = signals.next() => {}
        failed = node.failed() => {
            failed?;
            anyhow::bail!("the node ended by itself");
        }
        ended = &mut server => {
            ended.context("the API ended")?.context("the API ended")?;
            anyhow::bail!("the API ended by itself");
        }
    }
    tracing::info!("stopping");
    let graceful = async {
        let _ = stop.send(());
        let _ = server.await;
        node.stop().await
    };
    tokio::select! {
        result = graceful => result?,
        () = signals.next() => anyhow::bail!("stopped at once by a second signal"),
    }
    tracing::info!("stopped");
    Ok(())
}

pub(super) fn log_to_stderr(config: &LogConfig) -> anyhow::Result<()> {
    let filter: tracing_subscriber::EnvFilter = config.filter.parse()?;
    // At its other levels it logs whole messages, and payloads are never logged.
    let filter = filter.add_directive("rmcp=warn".parse()?);
    // It warns of each subscription that is over, and of each stream that a peer ends.
    let filter = filter.add_directive("moq_transport=error".parse()?);
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr);
    let result = match config.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    result.map_err(anyhow::Error::from_boxed)
}

/// Signals that ask the process to end.
#[cfg(unix)]
pub(super) struct Signals([tokio::signal::unix::Signal; 2]);

#[cfg(unix)]
impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]))
    }

    pub(super) async fn next(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
pub(super) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self)
    }

    pub(super) async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
