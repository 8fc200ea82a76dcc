//! The policy that is served, and the versions that were: a claim keeps its meaning as long as it keeps its
//! id, also over restarts (Anumati §3.1).

use crate::a2a::log::Log;
use crate::store::{SideTable, SideWrite};
use proto::consent::{
    DOCUMENT_LEN_MAX, DiffError, HashMismatch, JsonError, Lineage, PolicyDocument, PolicyVersion,
    read,
};
use proto::store::ReadError;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Versions of the policy that are kept; a further one is not served.
pub(super) const VERSIONS_MAX: usize = 256;

/// Why consent is not kept here.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcapError {
    /// The file cannot be read.
    #[error("usage policy {}: {source}", file.display())]
    File {
        /// Which.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no policy.
    #[error("usage policy {}: {source}", file.display())]
    Json {
        /// Which.
        file: PathBuf,
        /// Why.
        source: JsonError,
    },
    /// It is not what its hash says.
    #[error(
        "usage policy {}: {source}; fix: set document_hash to the hash found, once you have read what changed",
        file.display()
    )]
    Hash {
        /// Which.
        file: PathBuf,
        /// What differs.
        source: HashMismatch,
    },
    /// It is no next version of what was served before.
    #[error("usage policy {}: {source}", file.display())]
    Line {
        /// Which.
        file: PathBuf,
        /// Which rule is broken.
        source: Box<DiffError>,
    },
    /// A version that was served has changed.
    #[error(
        "usage policy {}: version {version} was served with hash {served}, and the file has {found}; fix: a policy that changes takes a new version",
        file.display()
    )]
    Changed {
        /// Which.
        file: PathBuf,
        /// The version.
        version: PolicyVersion,
        /// The hash it was served with.
        served: String,
        /// That of the file.
        found: String,
    },
    /// Over `VERSIONS_MAX`.
    #[error("usage policy {}: {VERSIONS_MAX} versions were served, the limit", file.display())]
    TooMany {
        /// Which.
        file: PathBuf,
    },
    /// A skill names a claim that is not there.
    #[error("[[policy_claims]] names claim {claim}, which policy {version} does not have")]
    NoClaim {
        /// The claim.
        claim: String,
        /// The policy.
        version: PolicyVersion,
    },
    /// The chains cannot be read.
    #[error("consent: {0}")]
    Read(#[from] ReadError),
    /// The chains cannot be written.
    #[error("consent: the store cannot be written; the log says why")]
    Write,
    /// A thread.
    #[error("consent: cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A callee of ours cannot be consented to.
    #[error("[[consent]] {callee}: {what}")]
    Caller {
        /// Whom.
        callee: proto::id::AgentId,
        /// Why.
        what: String,
    },
    /// The store has no tables for it.
    #[error("consent: {0}")]
    Store(String),
    /// The store keeps nothing but the core's records.
    #[error("consent: this store has no place for it; fix: set enabled = false in [acap]")]
    NoPlace,
}

/// The policy.
#[derive(Debug)]
pub(crate) struct Line {
    /// The document that is served.
    pub(crate) policy: PolicyDocument,
    /// Its letters.
    pub(crate) bytes: Vec<u8>,
    /// Versions served before it, the oldest first.
    pub(crate) before: Vec<PolicyDocument>,
}

impl Line {
    /// Reads the policy and holds it against what was served before. A new version is durable when this
    /// returns.
    pub(super) async fn open(file: &Path, log: &Log) -> Result<Self, AcapError> {
        let bytes = letters(file)?;
        let json = |source| AcapError::Json { file: file.to_owned(), source };
        let policy: PolicyDocument = read(&bytes).map_err(json)?;
        let hash = |source| AcapError::Hash { file: file.to_owned(), source };
        policy.verify_hash().map_err(hash)?;
        let line = |source| AcapError::Line { file: file.to_owned(), source: Box::new(source) };
        let stored = log.disk().range(SideTable::AcapPolicy, &[], None, VERSIONS_MAX)?;
        let count = stored.len();
        let mut versions = Vec::with_capacity(count);
        for (_, value) in stored {
            versions.push(log.disk().parse::<PolicyDocument>(&value)?);
        }
        let mut lineage: Option<Lineage> = None;
        for version in &versions {
            match &mut lineage {
                None => lineage = Some(Lineage::new(version.clone()).map_err(line)?),
                Some(lineage) => drop(lineage.publish(version.clone()).map_err(line)?),
            }
        }
        match lineage {
            Some(lineage) if lineage.latest().version == policy.version => {
                let served = &lineage.latest().document_hash;
                if *served != policy.document_hash {
                    return Err(AcapError::Changed {
                        file: file.to_owned(),
                        version: policy.version,
                        served: served.to_string(),
                        found: policy.document_hash.to_string(),
                    });
                }
                versions.pop();
                return Ok(Self { policy, bytes, before: versions });
            }
            Some(mut lineage) => {
                let diff = lineage.publish(policy.clone()).map_err(line)?;
                tracing::info!(from = %diff.from, to = %diff.to, material = diff.material, "the usage policy has a new version");
            }
            None => drop(Lineage::new(policy.clone()).map_err(line)?),
        }
        if count >= VERSIONS_MAX {
            return Err(AcapError::TooMany { file: file.to_owned() });
        }
        let write = SideWrite {
            table: SideTable::AcapPolicy,
            key: (count as u64).to_be_bytes().to_vec(),
            value: Some(bytes.clone()),
        };
        let place = log.place(vec![write]).await.map_err(|_| AcapError::Write)?;
        place.commit(|| {}).durable().await.map_err(|_| AcapError::Write)?;
        Ok(Self { policy, bytes, before: versions })
    }

    /// The version of that name, if it was ever served.
    pub(super) fn version(&self, version: &PolicyVersion) -> Option<&PolicyDocument> {
        self.before.iter().chain([&self.policy]).find(|policy| policy.version == *version)
    }
}

fn letters(file: &Path) -> Result<Vec<u8>, AcapError> {
    let failed = |source| AcapError::File { file: file.to_owned(), source };
    let handle = std::fs::File::open(file).map_err(failed)?;
    let mut bytes = Vec::new();
    // One more than is taken, so that a longer one is seen.
    handle.take(DOCUMENT_LEN_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
