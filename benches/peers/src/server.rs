//! The peers' servers: each with acks only after fsync, on loopback.

use crate::install::Scratch;
use crate::load::Peer;
use crate::process::{self, Command, Process, SERVER_CORE};
use abhyasa::loopback::free_address;
use anyhow::{Context as _, ensure};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a server may take to listen.
const READY_WITHIN: Duration = Duration::from_secs(90);
/// Whom a server runs as that refuses to be root.
const NOBODY: &str = "nobody";

/// A running peer, ended when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    /// The server itself first; ended from the first to the last.
    processes: Vec<Process>,
}

impl Server {
    /// Starts a peer with its data in the new folder `dir`.
    pub(crate) fn start(peer: Peer, scratch: &Scratch, dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        let address = free_address()?;
        let log = dir.join("server.log");
        let mut processes = Vec::new();
        if peer == Peer::Rabbitmq {
            processes.push(epmd(scratch, dir)?);
        }
        let command = command(peer, scratch, dir, address, &processes)?;
        let lib_dirs = scratch.lib_dirs();
        let command = command.env("LD_LIBRARY_PATH", lib_dirs).core(SERVER_CORE).log(&log);
        processes.insert(0, command.start()?);
        let mut server = Self { address, processes };
        server.ready(peer, &log).with_context(|| peer.name())?;
        Ok(server)
    }

    fn ready(&mut self, peer: Peer, log: &Path) -> anyhow::Result<()> {
        let begun = Instant::now();
        let says = |text: &str| std::fs::read_to_string(log).is_ok_and(|log| log.contains(text));
        loop {
            self.still_runs()?;
            // PostgreSQL listens before it takes anybody in.
            let postgres = matches!(peer, Peer::Postgres | Peer::PostgresBatch);
            if TcpStream::connect(self.address).is_ok()
                && (!postgres || says("ready to accept connections"))
            {
                return Ok(());
            }
            let waited = begun.elapsed();
            ensure!(waited < READY_WITHIN, "not ready within {} s", READY_WITHIN.as_secs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn still_runs(&mut self) -> anyhow::Result<()> {
        self.processes.iter_mut().try_for_each(Process::still_runs)
    }

    pub(crate) fn argv(&self) -> Vec<Vec<String>> {
        self.processes.iter().map(|process| process.argv.clone()).collect()
    }

    /// Every process of the peer.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.processes.iter().flat_map(|process| process::family(process.pid())).collect()
    }

    /// CPU time of all its processes that still are, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.pids().into_iter().filter_map(|pid| process::cpu_seconds(pid).ok()).sum()
    }

    /// What is not measured does not run. Only the servers themselves: children that are stopped
    /// would not see their parent die, and outlive a run that is killed.
    pub(crate) fn pause(&self) {
        let _ = process::signal_to(&self.own_pids(), "STOP");
    }

    pub(crate) fn go_on(&self) {
        let _ = process::signal_to(&self.own_pids(), "CONT");
    }

    fn own_pids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::pid).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A stopped process does not hear that it is to end.
        self.go_on();
        // Their data is of no further use; children must not write on while it is removed.
        let all = self.pids();
        for process in &mut self.processes {
            process.end("KILL");
        }
        let _ = process::signal_to(&all, "KILL");
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn command(
    peer: Peer,
    scratch: &Scratch,
    dir: &Path,
    address: SocketAddr,
    others: &[Process],
) -> anyhow::Result<Command> {
    let port = address.port().to_string();
    let ip = address.ip().to_string();
    let path = dir.display().to_string();
    Ok(match peer {
        Peer::Abhyasa => anyhow::bail!("our nodes are started by their load"),
        Peer::Nats => {
            let config = dir.join("nats.conf");
            let text = format!(
                "listen: {address}\njetstream {{\n  store_dir: {path}/js\n  sync_interval: always\n  max_file: 8GB\n}}\n"
            );
            std::fs::write(&config, text)?;
            Command::new(scratch.file("usr/bin/nats-server")).arg("-c").arg(config)
        }
        Peer::Redis => Command::new(scratch.file("usr/bin/redis-server"))
            .args(["--port", &port, "--bind", &ip, "--dir", &path])
            .args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""])
            .args(["--auto-aof-rewrite-percentage", "0"]),
        Peer::Postgres | Peer::PostgresBatch => {
            let bin = scratch.entry("usr/lib/postgresql", "")?.join("bin");
            let data = dir.join("data");
            let as_user = |command: Command| {
                if is_root() { command.user(NOBODY) } else { command }
            };
            if is_root() {
                Command::new("chown").arg(NOBODY).arg(dir).output()?;
            }
            let init = Command::new(bin.join("initdb"))
                .args(["--auth", "trust", "--username", "bench", "--no-locale", "--no-sync"])
                .arg("--pgdata")
                .arg(&data)
                .dir(dir)
                .env("LD_LIBRARY_PATH", scratch.lib_dirs());
            as_user(init).output()?;
            let mut postgres = Command::new(bin.join("postgres")).dir(dir).arg("-D").arg(data);
            for setting in [
                format!("listen_addresses={ip}"),
                format!("port={port}"),
                format!("unix_socket_directories={path}"),
                "max_connections=200".to_owned(),
                "fsync=on".to_owned(),
                "synchronous_commit=on".to_owned(),
                "jit=off".to_owned(),
                "max_wal_size=4GB".to_owned(),
            ] {
                postgres = postgres.arg("-c").arg(setting);
            }
            as_user(postgres)
        }
        Peer::Beanstalkd => Command::new(scratch.file("usr/bin/beanstalkd"))
            .args(["-l", &ip, "-p", &port, "-b", &path, "-f", "0"]),
        Peer::Rabbitmq => {
            let base = scratch.entry("usr/lib/rabbitmq/lib", "rabbitmq_server-")?;
            let epmd = others.first().and_then(|epmd| epmd.argv.last()).context("epmd")?;
            let search = std::env::var("PATH").unwrap_or_default();
            let erlang = scratch.file("usr/lib/erlang/bin");
            std::fs::write(dir.join("plugins"), "[].\n")?;
            std::fs::write(dir.join("rabbitmq.conf"), "")?;
            let dist = free_address()?.port().to_string();
            let only_loopback = "-kernel inet_dist_use_interface {127,0,0,1}";
            Command::new(base.join("sbin/rabbitmq-server"))
                .dir(dir)
                .env("PATH", format!("{}:{search}", erlang.display()))
                .env("HOME", &path)
                // The virtual machine takes the place of the script that starts it.
                .env("RUNNING_UNDER_SYSTEMD", "1")
                .env("RABBITMQ_NODENAME", format!("peers{port}@localhost"))
                .env("RABBITMQ_NODE_IP_ADDRESS", &ip)
                .env("RABBITMQ_NODE_PORT", &port)
                .env("RABBITMQ_DIST_PORT", dist)
                .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", only_loopback)
                .env("RABBITMQ_BASE", &path)
                .env("RABBITMQ_MNESIA_BASE", dir.join("mnesia"))
                .env("RABBITMQ_LOG_BASE", dir.join("log"))
                .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq"))
                .env("RABBITMQ_CONF_ENV_FILE", dir.join("none"))
                .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("plugins"))
                .env("RABBITMQ_PID_FILE", dir.join("pid"))
                .env("ERL_EPMD_PORT", epmd)
                .env("ERL_EPMD_ADDRESS", ip)
        }
    })
}

/// Erlang's name server, which RabbitMQ would otherwise leave behind as a daemon.
fn epmd(scratch: &Scratch, dir: &Path) -> anyhow::Result<Process> {
    let port = free_address()?.port().to_string();
    Command::new(scratch.file("usr/lib/erlang/bin/epmd"))
        .args(["-address", "127.0.0.1", "-port", &port])
        .core(SERVER_CORE)
        .log(&dir.join("epmd.log"))
        .start()
}

/// What the peer calls itself.
pub(crate) fn version(peer: Peer, scratch: &Scratch) -> anyhow::Result<String> {
    let ask = |program: std::path::PathBuf, flag: &str| {
        let command = Command::new(program).arg(flag);
        command.env("LD_LIBRARY_PATH", scratch.lib_dirs()).output()
    };
    let said = match peer {
        Peer::Abhyasa => Command::new("git")
            .args(["describe", "--always", "--dirty", "--abbrev=12"])
            .dir(Path::new(env!("CARGO_MANIFEST_DIR")))
            .output()
            .unwrap_or_else(|_| "not from a git work tree".into()),
        Peer::Nats => ask(scratch.file("usr/bin/nats-server"), "--version")?,
        Peer::Redis => ask(scratch.file("usr/bin/redis-server"), "--version")?,
        Peer::Postgres | Peer::PostgresBatch => {
            ask(scratch.entry("usr/lib/postgresql", "")?.join("bin/postgres"), "--version")?
        }
        Peer::Beanstalkd => ask(scratch.file("usr/bin/beanstalkd"), "-v")?,
        Peer::Rabbitmq => {
            let name = |path: std::path::PathBuf| {
                path.file_name().unwrap_or_default().to_string_lossy().into_owned()
            };
            let server = name(scratch.entry("usr/lib/rabbitmq/lib", "rabbitmq_server-")?);
            format!("{server}, {}", name(scratch.entry("usr/lib/erlang", "erts-")?))
        }
    };
    Ok(said.trim().to_owned())
}
