//! MOQT relays of others, each a process on a loopback port, with a certificate of the test's own CA.
//!
//! aiomoqt comes from PyPI, and every test that wants a relay runs with it. The others take minutes to build, so
//! they are used where `ABHYASA_TEST_RELAYS` names a directory that holds their programs: `tests/moq/relays.sh`
//! installs them and runs the tests so.

use super::{PATIENCE, World, peers};
use abhyasa::demo::relay::RelayProcess;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::RootCertStore;
use std::path::{Path, PathBuf};
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

    /// Its program, if there is one.
    pub fn program(self) -> Option<PathBuf> {
        match self {
            Self::Aiomoqt => Some(aiomoqt().with_file_name("moq-interop-relay")),
            _ => Some(PathBuf::from(std::env::var_os(RELAYS_VARIABLE)?).join(self.name())),
        }
    }
}

/// A relay that runs until it is dropped.
pub struct Relay {
    pub kind: Kind,
    /// PEM of the CA that signed its certificate.
    pub ca: PathBuf,
    process: RelayProcess,
    roots: RootCertStore,
}

impl Relay {
    /// Starts one, and waits until a handshake with it succeeds.
    pub async fn start(world: &World, kind: Kind) -> Self {
        let count = STARTED.fetch_add(1, Ordering::Relaxed);
        let dir = world.path().join(format!("relay-{}-{count}", kind.name()));
        let process = RelayProcess::start(&kind.program().unwrap(), &dir, &world.ca).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(world.ca.cert().clone()).unwrap();
        let mut relay = Self { kind, ca: process.ca().to_owned(), process, roots };
        relay.ready().await;
        relay
    }

    /// Its URL, with the path that is its scope.
    pub fn url(&self, path: &str) -> String {
        self.process.url(path)
    }

    /// Ends it without a word to its clients.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it anew where it was, knowing nothing.
    pub async fn restart(&mut self) {
        self.process.restart().unwrap();
        self.ready().await;
    }

    /// What it has written to its log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    async fn ready(&mut self) {
        let begun = Instant::now();
        while !self.answers().await {
            let (name, log) = (self.kind.name(), self.log());
            assert!(self.process.runs(), "{name} ended:\n{log}");
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
        let address = self.process.address();
        let connecting = endpoint.connect_with(config, address, "localhost").unwrap();
        matches!(tokio::time::timeout(HANDSHAKE_WAIT, connecting).await, Ok(Ok(_)))
    }
}

/// A Python with aiomoqt.
pub fn aiomoqt() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let constraints = "tests/moq/constraints.txt";
        peers::python_312("aiomoqt-1", &["aiomoqt==0.13.3"], "aiomoqt", constraints)
    })
}
