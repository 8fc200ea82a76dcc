//! The command line: `abhyasa COMMAND`.

mod belief;
mod client;
mod consent;
mod inbox;
mod issue;
mod mcp;
mod mcp_proxy;
mod moq;
mod output;
mod read;
mod run;
mod setup;

use crate::bench;
use crate::config::{HttpUrl, NodeConfig};
use crate::demo;
use belief::BeliefArgs;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use client::{Client, ClientError};
use consent::ConsentCommand;
use inbox::{EscalationArgs, ReconciliationArgs};
use issue::IssueArgs;
use mcp_proxy::ProxyArgs;
use moq::MoqCommand;
use read::{AuthorizationArgs, CellArgs, PageArgs};
use setup::InitArgs;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::runtime;

/// Environment variable with the configuration file, when `--config` is not given.
const CONFIG_VARIABLE: &str = "ABHYASA_CONFIG";

/// Carries governance obligations under custody: applied, declined or escalated, never silently
/// lost.
#[derive(Debug, Parser)]
#[command(name = "abhyasa", version, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Flags of every command.
#[derive(Debug, Args)]
struct Global {
    /// Configuration of the node [default: $ABHYASA_CONFIG, else ./abhyasa.toml].
    #[arg(short, long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Call the node at this URL instead of where its configuration says.
    #[arg(long, global = true, value_name = "URL")]
    api: Option<HttpUrl>,
    /// File with the bearer token of the API.
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
}

impl Global {
    fn config_file(&self) -> PathBuf {
        let from_environment = || std::env::var_os(CONFIG_VARIABLE).map(PathBuf::from);
        self.config
            .clone()
            .or_else(from_environment)
            .unwrap_or_else(|| crate::init::CONFIG_FILE.into())
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Set up a node: configuration, certificate, development CA.
    Init(InitArgs),
    /// Run a node.
    Node {
        /// Serve the fixtures of the MCP conformance suite beside the node's own tools. For tests: on a
        /// loopback API only.
        #[arg(long, hide = true)]
        conformance: bool,
    },
    /// Issue an obligation, or a batch of them.
    Issue(IssueArgs),
    /// Send a belief update (Phala).
    Belief(BeliefArgs),
    /// Show where an obligation stands, as its custodian or its receiver.
    Status {
        /// Obligation id.
        id: String,
        /// The group it was issued to: show it member by member.
        #[arg(long, value_name = "NAME")]
        group: Option<String>,
    },
    /// List obligations under custody.
    Pending(PageArgs),
    /// List obligations that ended, in the order they did.
    Terminal(PageArgs),
    /// List escalations, or acknowledge them.
    Escalations(EscalationArgs),
    /// List what a person must reconcile, or resolve it.
    Reconciliation(ReconciliationArgs),
    /// List authorizations, or ask about one before acting.
    Authorizations(AuthorizationArgs),
    /// List weights that were moved.
    Weights(CellArgs),
    /// List peers.
    Peers,
    /// Follow what happens, until interrupted.
    Events,
    /// Speak MCP for the running node, or carry it to a server behind another.
    Mcp {
        #[command(subcommand)]
        command: McpCommand,
    },
    /// Media over QUIC by hand: check a relay, read and write tracks.
    Moq {
        #[command(subcommand)]
        command: MoqCommand,
    },
    /// Hash policies, and check what agents have agreed and done. Needs no node.
    Consent {
        #[command(subcommand)]
        command: ConsentCommand,
    },
    /// See the promise kept over a bad link and through crashes.
    Demo(demo::Args),
    /// Measure what custody costs on this machine.
    Bench(bench::Args),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// How MCP is spoken.
#[derive(Debug, Subcommand)]
enum McpCommand {
    /// On standard input and output, one message a line, for hosts that start their servers.
    Stdio,
    /// Be the server for an MCP client whose calls go to a server behind another node, over QUIC: on
    /// standard input and output, or at a local URL.
    Proxy(ProxyArgs),
}

impl Cli {
    /// Runs the command, and reports its error on standard error.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let json = self.global.json;
        match self.dispatch() {
            Ok(code) => code,
            Err(error) => {
                if json {
                    eprintln!("{}", error_json(&error));
                } else {
                    eprintln!("error: {error:#}");
                }
                ExitCode::FAILURE
            }
        }
    }

    fn dispatch(self) -> anyhow::Result<ExitCode> {
        let Self { global, command } = self;
        match command {
            Command::Init(args) => setup::run(&args, global.json)?,
            Command::Node { conformance } => {
                let mut config = NodeConfig::load(&global.config_file())?;
                if conformance && !config.api.is_loopback() {
                    anyhow::bail!(
                        "--conformance serves tools that are for tests, and the API listens on {}\n  hint: listen on 127.0.0.1 in [api]",
                        config.api.listen
                    );
                }
                config.conformance = conformance;
                runtime::Builder::new_multi_thread()
                    .worker_threads(crate::node::worker_threads())
                    .enable_all()
                    .build()?
                    .block_on(run::run(config, global.json))?;
            }
            Command::Mcp { command: McpCommand::Proxy(args) } => {
                let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
                let done = runtime.block_on(mcp_proxy::run(&global, args));
                // Standard input may be waited for, and nobody writes any more.
                runtime.shutdown_background();
                done?;
            }
            Command::Moq { command } => {
                let runtime = runtime::Builder::new_multi_thread().enable_all().build()?;
                let done = runtime.block_on(command.run(&global));
                // Standard input may be waited for, and nobody writes any more.
                runtime.shutdown_background();
                return done;
            }
            Command::Consent { command } => {
                let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
                return runtime.block_on(command.run(&global));
            }
            Command::Bench(args) => return bench::run(&args, global.json),
            Command::Demo(args) => return demo::run(&args, global.json),
            Command::Completions { shell } => {
                clap_complete::generate(
                    shell,
                    &mut Self::command(),
                    "abhyasa",
                    &mut std::io::stdout(),
                );
            }
            command => {
                let client = Client::find(&global)?;
                let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
                return runtime.block_on(call(command, &client, global.json));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Commands that ask a running node.
async fn call(command: Command, client: &Client, json: bool) -> anyhow::Result<ExitCode> {
    match command {
        Command::Issue(args) => return args.run(client, json).await,
        Command::Belief(args) => return args.run(client, json).await,
        Command::Authorizations(args) => return args.run(client, json).await,
        Command::Status { id, group: None } => read::status(client, &id, json).await?,
        Command::Status { id, group: Some(group) } => {
            read::group_status(client, &group, &id, json).await?;
        }
        Command::Pending(args) => read::pending(client, &args, json).await?,
        Command::Terminal(args) => read::terminal(client, &args, json).await?,
        Command::Escalations(args) => args.run(client, json).await?,
        Command::Reconciliation(args) => args.run(client, json).await?,
        Command::Weights(args) => read::weights(client, &args, json).await?,
        Command::Peers => read::peers(client, json).await?,
        Command::Events => read::events(client, json).await?,
        Command::Mcp { command: McpCommand::Stdio } => mcp::stdio(client).await?,
        Command::Init(_)
        | Command::Node { .. }
        | Command::Bench(_)
        | Command::Mcp { .. }
        | Command::Moq { .. }
        | Command::Consent { .. }
        | Command::Demo(_)
        | Command::Completions { .. } => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn error_json(error: &anyhow::Error) -> serde_json::Value {
    let code = match error.downcast_ref() {
        Some(ClientError::Api { code, .. }) => code.as_str(),
        Some(ClientError::NotRunning { .. }) => "not_running",
        None => "failed",
    };
    serde_json::json!({ "error": { "code": code, "message": format!("{error:#}") } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_goes_together_is_checked_before_anything_runs() {
        let ok = |line: &str| Cli::try_parse_from(line.split(' ')).is_ok();
        assert!(ok("abhyasa issue anumati.consent b --scope s --revoke --wait 3 --json"));
        assert!(ok("abhyasa --json issue --file batch.json"));
        assert!(ok("abhyasa escalations"));
        assert!(ok("abhyasa escalations --all --limit 5"));
        assert!(ok("abhyasa escalations ack ob-1 ob-2"));
        assert!(ok("abhyasa authorizations check --agent a --scope s"));
        assert!(ok("abhyasa reconciliation resolve 4 --as not_applied"));
        assert!(ok("abhyasa init dir --peer spiffe://x/b=127.0.0.1:1"));
        assert!(!ok("abhyasa issue anumati.consent b --scope s"), "neither revoked nor granted");
        assert!(!ok("abhyasa issue anumati.consent b --scope s --revoke --grant"));
        assert!(!ok("abhyasa issue anumati.consent b --revoke"), "of what");
        assert!(!ok("abhyasa issue anumati.consent"));
        assert!(!ok("abhyasa issue --file batch.json --wait 3"));
        assert!(!ok("abhyasa pending --limit 0"));
        assert!(!ok("abhyasa init dir --peer b"));
        assert!(!ok("abhyasa reconciliation resolve 4"));
    }
}
