//! `abhyasa init`: a directory from which a node can start.
//!
//! It holds `abhyasa.toml`, `node.pem`, `node.key`, `ca.pem`, `api.token`, and a development CA in
//! `ca/` unless an existing one is named.

pub mod ca;

use crate::config::{ApiConfig, ConfigError, HostPort, NodeConfig, QuicConfig, Sample};
use ca::{CaError, DevCa, NODE_DAYS, valid_days};
use proto::id::{AgentId, IdError};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Name of the configuration file in the directory.
pub const CONFIG_FILE: &str = "abhyasa.toml";
/// Name of the file with the bearer token of the API.
pub const TOKEN_FILE: &str = "api.token";
/// Trust domain of ids that were not chosen.
const DEFAULT_DOMAIN: &str = "spiffe://abhyasa.local/";
const PRIVATE: u32 = 0o600;
const PUBLIC: u32 = 0o644;

/// What to write.
#[derive(Clone, Debug)]
pub struct InitOptions {
    /// Id of the node; by default `spiffe://abhyasa.local/` and the name of the directory.
    pub id: Option<String>,
    /// Directory with the `ca.pem` and `ca.key` to use; by default `ca` in the new directory,
    /// made if it is not there.
    pub ca: Option<PathBuf>,
    /// Where the node listens for peers (UDP).
    pub quic_listen: SocketAddr,
    /// Where it listens for its own agent (TCP). Beyond loopback the API asks for a token.
    pub api_listen: SocketAddr,
    /// Peers, with every kind allowed both ways.
    pub peers: Vec<(AgentId, HostPort)>,
    /// Whether existing files of the node are replaced. A CA never is.
    pub force: bool,
}

impl Default for InitOptions {
    fn default() -> Self {
        Self {
            id: None,
            ca: None,
            quic_listen: QuicConfig::default().listen,
            api_listen: ApiConfig::default().listen,
            peers: Vec::new(),
            force: false,
        }
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct InitReport {
    /// Id of the node.
    pub id: AgentId,
    /// Its configuration.
    pub config: PathBuf,
    /// Directory of the CA that signed its certificate.
    pub ca: PathBuf,
    /// Every file written, in order.
    pub files: Vec<PathBuf>,
}

/// Why nothing, or not everything, was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// A file is there already; nothing was written.
    #[error("{} exists; fix: choose another directory, or replace the node's files with --force", file.display())]
    Exists {
        /// The file.
        file: PathBuf,
    },
    /// A file or directory could not be read or written.
    #[error("{}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The id is not usable.
    #[error("node id: {0}")]
    Id(#[from] IdError),
    /// A certificate could not be made.
    #[error(transparent)]
    Ca(#[from] CaError),
    /// The options make no valid configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system gave no random bytes.
    #[error("no random bytes for a token")]
    Random,
}

/// Writes the files of a new node into `dir`, keys and tokens readable by their owner only.
///
/// # Errors
/// [`InitError`]. Existing files are found before the first one is written.
pub fn init(dir: &Path, options: &InitOptions) -> Result<InitReport, InitError> {
    fs::create_dir_all(dir).map_err(io_error(dir))?;
    let id = match &options.id {
        Some(id) => AgentId::new(id)?,
        None => default_id(dir)?,
    };
    let config = dir.join(CONFIG_FILE);
    let open = !options.api_listen.ip().to_canonical().is_loopback();
    let text = Sample {
        id: &id,
        quic_listen: Some(options.quic_listen),
        api_listen: Some(options.api_listen),
        token_file: open.then_some(TOKEN_FILE),
        peers: &options.peers,
    }
    .to_toml();
    NodeConfig::parse(&text, &config)?;

    let node_files =
        [CONFIG_FILE, "node.pem", "node.key", "ca.pem", TOKEN_FILE].map(|name| dir.join(name));
    if let Some(file) = node_files.iter().find(|file| !options.force && file.exists()) {
        return Err(InitError::Exists { file: file.clone() });
    }
    let mut files = Vec::new();
    let ca_dir = options.ca.clone().unwrap_or_else(|| dir.join("ca"));
    let (ca, is_new) = open_ca(&ca_dir, options.ca.is_none())?;
    let node = ca.issue(&id, valid_days(NODE_DAYS))?;
    let token = token()?;
    if is_new {
        fs::create_dir_all(&ca_dir).map_err(io_error(&ca_dir))?;
        let pair =
            [("ca.key", ca.key_pem(), PRIVATE), ("ca.pem", ca.cert_pem().to_owned(), PUBLIC)];
        for (name, text, mode) in pair {
            let file = ca_dir.join(name);
            write_new(&file, &text, mode)?;
            files.push(file);
        }
    }
    // The configuration comes last: a directory with one is complete.
    let [config_file, cert, key, ca_copy, token_file] = node_files;
    for (file, text, mode) in [
        (key, node.key_pem.as_str(), PRIVATE),
        (cert, node.cert_pem.as_str(), PUBLIC),
        (ca_copy, ca.cert_pem(), PUBLIC),
        (token_file, token.as_str(), PRIVATE),
        (config_file, text.as_str(), PUBLIC),
    ] {
        if options.force {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(io_error(&file)(error));
                }
                _ => {}
            }
        }
        write_new(&file, text, mode)?;
        files.push(file);
    }
    Ok(InitReport { id, config, ca: ca_dir, files })
}

/// The CA in `dir`, or a new one, not yet written, if there is none and it `may_make` one.
fn open_ca(dir: &Path, may_make: bool) -> Result<(DevCa, bool), InitError> {
    let (cert, key) = (dir.join("ca.pem"), dir.join("ca.key"));
    if may_make && !cert.exists() && !key.exists() {
        return Ok((DevCa::generate()?, true));
    }
    let read = |file: &Path| fs::read_to_string(file).map_err(io_error(file));
    Ok((DevCa::from_pem(&read(&cert)?, &read(&key)?)?, false))
}

/// Fails if `file` exists, however it came to be there.
fn write_new(file: &Path, text: &str, mode: u32) -> Result<(), InitError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut handle = options.open(file).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => InitError::Exists { file: file.to_owned() },
        _ => InitError::Io { file: file.to_owned(), source },
    })?;
    handle.write_all(text.as_bytes()).and_then(|()| handle.sync_all()).map_err(io_error(file))
}

fn default_id(dir: &Path) -> Result<AgentId, InitError> {
    let dir = fs::canonicalize(dir).map_err(io_error(dir))?;
    let name = dir.file_name().map_or_else(|| "node".into(), |name| name.to_string_lossy());
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '-' };
    let name: String = name.chars().take(64).map(plain).collect();
    Ok(AgentId::new(&format!("{DEFAULT_DOMAIN}{name}"))?)
}

/// 256 random bits in hex.
fn token() -> Result<String, InitError> {
    let mut bytes = [0; 32];
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| InitError::Random)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn io_error(file: &Path) -> impl FnOnce(io::Error) -> InitError {
    let file = file.to_owned();
    move |source| InitError::Io { file, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_token;
    use crate::tls::TlsIdentity;

    fn temp() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn load(config: &NodeConfig) -> TlsIdentity {
        TlsIdentity::load(&config.quic.cert, &config.quic.key, &config.quic.ca).unwrap()
    }

    #[test]
    fn a_new_directory_is_ready_to_start() {
        let dir = temp();
        let dir = dir.path().join("node a.1");
        let report = init(&dir, &InitOptions::default()).unwrap();
        assert_eq!(report.id.as_str(), "spiffe://abhyasa.local/node-a-1");
        let config = NodeConfig::load(&report.config).unwrap();
        assert_eq!(config.id, report.id);
        assert_eq!(config.api.token_file, None, "loopback needs no token");
        load(&config).expect_node(&config.id).unwrap();
        assert_eq!(read_token(&dir.join(TOKEN_FILE)).unwrap().len(), 64);
        assert!(report.files.iter().all(|file| file.exists()));
        assert_eq!(report.files.last(), Some(&report.config));
    }

    #[cfg(unix)]
    #[test]
    fn keys_and_tokens_are_for_their_owner_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = temp();
        init(dir.path(), &InitOptions::default()).unwrap();
        for name in ["node.key", "ca/ca.key", TOKEN_FILE] {
            let mode = fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn nothing_is_replaced_without_force_and_the_ca_never() {
        let dir = temp();
        let read = |name: &str| fs::read(dir.path().join(name)).unwrap();
        init(dir.path(), &InitOptions::default()).unwrap();
        let (key, ca) = (read("node.key"), read("ca/ca.key"));
        let error = init(dir.path(), &InitOptions::default()).unwrap_err();
        assert!(matches!(error, InitError::Exists { .. }) && error.to_string().contains("--force"));
        assert_eq!(read("node.key"), key);
        // Even a file that appears after the look around is not overwritten.
        let late = write_new(&dir.path().join("node.key"), "", PRIVATE);
        assert!(matches!(late, Err(InitError::Exists { .. })));
        assert_eq!(read("node.key"), key);

        let force = InitOptions { force: true, ..InitOptions::default() };
        let report = init(dir.path(), &force).unwrap();
        assert_ne!(read("node.key"), key);
        assert_eq!(read("ca/ca.key"), ca);
        load(&NodeConfig::load(&report.config).unwrap());
    }

    #[test]
    fn one_file_that_is_there_stops_all_the_others() {
        for name in [CONFIG_FILE, "node.pem", "node.key", "ca.pem", TOKEN_FILE] {
            let dir = temp();
            fs::write(dir.path().join(name), "mine").unwrap();
            let error = init(dir.path(), &InitOptions::default()).unwrap_err();
            assert!(
                matches!(&error, InitError::Exists { file } if file.ends_with(name)),
                "{error}"
            );
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "{name}");
            assert_eq!(fs::read(dir.path().join(name)).unwrap(), b"mine");
        }
    }

    #[test]
    fn two_nodes_of_one_ca_know_each_other() {
        let dir = temp();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let first = init(&a, &InitOptions::default()).unwrap();
        let options = InitOptions {
            id: Some("b.example.org".into()),
            ca: Some(a.join("ca")),
            quic_listen: "0.0.0.0:5000".parse().unwrap(),
            api_listen: "0.0.0.0:6000".parse().unwrap(),
            peers: vec![(first.id.clone(), "127.0.0.1:4433".parse().unwrap())],
            force: false,
        };
        let second = init(&b, &options).unwrap();
        assert!(!b.join("ca").exists());
        assert_eq!(fs::read(a.join("ca.pem")).unwrap(), fs::read(b.join("ca.pem")).unwrap());
        let config = NodeConfig::load(&second.config).unwrap();
        assert_eq!(config.quic.listen, options.quic_listen);
        assert_eq!(config.api.token_file, Some(b.join(TOKEN_FILE)), "beyond loopback");
        let [peer] = config.peers.as_slice() else { panic!("one peer") };
        assert_eq!((&peer.id, peer.may_issue.len(), peer.may_receive.len()), (&first.id, 3, 3));
        load(&config).expect_node(&config.id).unwrap();
    }

    #[test]
    fn options_that_cannot_work_write_nothing() {
        let dir = temp();
        let dir = dir.path().join("a");
        let empty = |dir: &Path| fs::read_dir(dir).unwrap().next().is_none();
        let missing = InitOptions { ca: Some(dir.join("nowhere")), ..InitOptions::default() };
        let error = init(&dir, &missing).unwrap_err();
        assert!(
            matches!(&error, InitError::Io { file, .. } if file.ends_with("nowhere/ca.pem")),
            "{error}"
        );
        let blank = InitOptions { id: Some(" ".into()), ..InitOptions::default() };
        assert!(matches!(init(&dir, &blank), Err(InitError::Id(_))));
        let me = AgentId::new("spiffe://abhyasa.local/a").unwrap();
        let peers = vec![(me, "127.0.0.1:1".parse().unwrap())];
        let error = init(&dir, &InitOptions { peers, ..InitOptions::default() }).unwrap_err();
        assert!(matches!(error, InitError::Config(_)), "{error}");
        let odd = InitOptions { id: Some("https://a".into()), ..InitOptions::default() };
        assert!(matches!(init(&dir, &odd), Err(InitError::Ca(CaError::Id { .. }))));
        assert!(empty(&dir));
    }
}
