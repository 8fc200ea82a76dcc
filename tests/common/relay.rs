//! MOQT relays of others, each a process on a loopback port, with a certificate of the test's own CA.
//!
//! aiomoqt comes from PyPI, and every test that wants a relay runs with it. The others take minutes to build, so
//! they are used where `ABHYASA_TEST_RELAYS` names a directory that holds their programs: `tests/moq/relays.sh`
//! installs them and runs the tests so.

use super::{PATIENCE, World, peers};
use abhyasa::init::ca::valid_days;
use abhyasa::loopback::free_address;
use quinn::crypto::rustls::QuicClientConfig;
use rcgen::SanType;
use rustls::RootCertStore;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Directory with the programs of relays that are built by `tests/moq/relays.sh`.
const RELAYS_VARIABLE: &str = "ABHYASA_TEST_RELAYS";
/// Longest wait for one handshake; a relay that is not there yet answers nothing.
const HANDSHAKE_WAIT: Duration = Duration::from_millis(500);

static STARTED: AtomicU32 = AtomicU32::new(0);

/// Which relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `moq-interop-relay` of aiomoqt 0.13.3: Python, with picoquic.
    Aiomoqt,
    /// moq-relay-ietf 0.8.0, of the library that we use too.
    MoqRelayIetf,
    /// moq-relay 0.17.10, with a library of its own.
    MoqRelay,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aiomoqt => "aiomoqt",
            Self::MoqRelayIetf => "moq-relay-ietf",
            Self::MoqRelay => "moq-relay",
        }
    }

    /// The relays there are to test with.
    pub fn all() -> Vec<Self> {
        let built = [Self::MoqRelayIetf, Self::MoqRelay].into_iter();
        let built = built.filter(|kind| kind.program().is_some_and(|program| program.exists()));
        std::iter::once(Self::Aiomoqt).chain(built).collect()
    }

    fn program(self) -> Option<PathBuf> {
        Some(PathBuf::from(std::env::var_os(RELAYS_VARIABLE)?).join(self.name()))
    }
}

/// A relay that runs until it is dropped.
pub struct Relay {
    pub kind: Kind,
    pub address: SocketAddr,
    /// PEM of the CA that signed its certificate.
    pub ca: PathBuf,
    dir: PathBuf,
    roots: RootCertStore,
    child: Child,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Relay {
    /// Starts one, and waits until a handshake with it succeeds.
    pub async fn start(world: &World, kind: Kind) -> Self {
        let count = STARTED.fetch_add(1, Ordering::Relaxed);
        let dir = world.path().join(format!("relay-{}-{count}", kind.name()));
        std::fs::create_dir(&dir).unwrap();
        let names = vec![
            SanType::IpAddress([127, 0, 0, 1].into()),
            SanType::DnsName("localhost".try_into().unwrap()),
        ];
        let issued = world.ca.issue_for(names, valid_days(1)).unwrap();
        std::fs::write(dir.join("cert.pem"), &issued.cert_pem).unwrap();
        std::fs::write(dir.join("key.pem"), &issued.key_pem).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(world.ca.cert().clone()).unwrap();
        let address = free_address().unwrap();
        let child = spawn(kind, address, &dir);
        let ca = world.path().join("ca/ca.pem");
        let mut relay = Self { kind, address, ca, dir, roots, child };
        relay.ready().await;
        relay
    }

    /// Its URL, with the path that is its scope.
    pub fn url(&self, path: &str) -> String {
        format!("moqt://{}{path}", self.address)
    }

    /// Ends it without a word to its clients.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it anew where it was, knowing nothing.
    pub async fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.kind, self.address, &self.dir);
        self.ready().await;
    }

    /// What it has written to its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    async fn ready(&mut self) {
        let begun = Instant::now();
        while !self.answers().await {
            let ended = self.child.try_wait().unwrap();
            let (name, log) = (self.kind.name(), self.log());
            assert!(ended.is_none(), "{name} ended with {ended:?}:\n{log}");
            assert!(begun.elapsed() < PATIENCE, "{name} does not answer:\n{log}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn answers(&self) -> bool {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"moqt-18".to_vec()];
        let config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let connecting = endpoint.connect_with(config, self.address, "localhost").unwrap();
        matches!(tokio::time::timeout(HANDSHAKE_WAIT, connecting).await, Ok(Ok(_)))
    }
}

fn spawn(kind: Kind, address: SocketAddr, dir: &Path) -> Child {
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    let program = || {
        kind.program()
            .unwrap_or_else(|| panic!("{RELAYS_VARIABLE} names no directory with {kind:?}"))
    };
    let mut command;
    match kind {
        Kind::Aiomoqt => {
            command = Command::new(aiomoqt());
            command.args(["-m", "aiomoqt.tools.moq_interop_relay", "--quic", "--draft", "18"]);
            command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
            command.arg("--cert").arg(cert).arg("--key").arg(key);
        }
        Kind::MoqRelayIetf => {
            command = Command::new(program());
            command.args(["--bind", &address.to_string()]).arg("--tls-cert").arg(cert);
            command.arg("--tls-key").arg(key);
            // By default one file of the machine, with what earlier relays left in it.
            command.arg("--coordinator-file").arg(dir.join("coordinator.json"));
            let _ = std::fs::remove_file(dir.join("coordinator.json"));
        }
        Kind::MoqRelay => {
            command = Command::new(program());
            command.args(["--listen", &address.to_string()]).arg("--listen-tls-cert").arg(cert);
            command.arg("--listen-tls-key").arg(key).args(["--auth-public", "**"]);
        }
    }
    let log = File::options().create(true).append(true).open(dir.join("log")).unwrap();
    let started = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn();
    started.unwrap_or_else(|error| panic!("{}: {error}", kind.name()))
}

/// A Python with aiomoqt.
pub fn aiomoqt() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let constraints = "tests/moq/constraints.txt";
        peers::python_312("aiomoqt-1", &["aiomoqt==0.13.3"], "aiomoqt", constraints)
    })
}
