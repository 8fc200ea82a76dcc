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
    /// Its publisher is another.
    #[error(
        "usage policy {}: its publisher is {found}, and that of the versions before it {served}, whom records name as their callee",
        file.display()
    )]
    Publisher {
        /// Which.
        file: PathBuf,
        /// Whose the versions before are.
        served: String,
        /// Whose this is.
        found: String,
    },
    /// Over `VERSIONS_MAX`.
    #[error("usage policy {}: {VERSIONS_MAX} versions were served, the limit", file.display())]
    TooMany {
        /// Which.
        file: PathBuf,
    },
    /// A file with keys cannot be used.
    #[error("keys of consent, {}: {what}", file.display())]
    Keys {
        /// Which.
        file: PathBuf,
        /// Why.
        what: String,
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

/// The policy, as it stands.
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
    /// returns. Where a later one was put at a running node, that is served, and the file is old.
    pub(super) async fn open(file: &Path, log: &Log) -> Result<Self, AcapError> {
        let place = || file.to_owned();
        let bytes = letters(file)?;
        let policy = Self::checked(place(), &bytes)?;
        let stored = log.disk().range(SideTable::AcapPolicy, &[], None, VERSIONS_MAX)?;
        let (mut versions, mut latest) = (Vec::with_capacity(stored.len()), Vec::new());
        for (_, value) in stored {
            versions.push(log.disk().parse::<PolicyDocument>(&value)?);
            latest = value.to_vec();
        }
        if let Some(known) = versions.iter().find(|known| known.version == policy.version) {
            if known.document_hash != policy.document_hash {
                return Err(AcapError::Changed {
                    file: place(),
                    version: policy.version,
                    served: known.document_hash.to_string(),
                    found: policy.document_hash.to_string(),
                });
            }
            let Some(served) = versions.pop() else { return Err(AcapError::Write) };
            if served.version == policy.version {
                return Ok(Self { policy, bytes, before: versions });
            }
            tracing::warn!(file = %file.display(), found = %policy.version, served = %served.version, "the policy in the file is older than what is served");
            return Ok(Self { policy: served, bytes: latest, before: versions });
        }
        let Some(served) = versions.pop() else {
            let line = |source| AcapError::Line { file: place(), source: Box::new(source) };
            drop(Lineage::new(policy.clone()).map_err(line)?);
            Self::write(log, 0, &bytes).await?;
            return Ok(Self { policy, bytes, before: versions });
        };
        let before = Self { policy: served, bytes: latest, before: versions };
        before.next(place(), policy, bytes, log).await
    }

    /// Reads a policy out of its letters, from `origin`.
    pub(super) fn checked(origin: PathBuf, bytes: &[u8]) -> Result<PolicyDocument, AcapError> {
        let policy: PolicyDocument = match read(bytes) {
            Ok(policy) => policy,
            Err(source) => return Err(AcapError::Json { file: origin, source }),
        };
        let found = policy.verify_hash();
        found.map_err(|source| AcapError::Hash { file: origin, source })?;
        Ok(policy)
    }

    /// The next version, read out of `bytes`. It is durable when this returns.
    ///
    /// # Errors
    /// [`AcapError`]: it may not follow.
    pub(super) async fn next(
        &self,
        origin: PathBuf,
        policy: PolicyDocument,
        bytes: Vec<u8>,
        log: &Log,
    ) -> Result<Self, AcapError> {
        let line = |source| AcapError::Line { file: origin.clone(), source: Box::new(source) };
        let mut versions = self.before.iter().chain([&self.policy]);
        let first = versions.next().cloned().unwrap_or_else(|| self.policy.clone());
        let mut lineage = Lineage::new(first).map_err(line)?;
        for version in versions {
            drop(lineage.publish(version.clone()).map_err(line)?);
        }
        let diff = lineage.publish(policy.clone()).map_err(line)?;
        if policy.publisher != self.policy.publisher {
            // Whom records name as callee, and the chains are of.
            let (served, found) = (self.policy.publisher.to_string(), policy.publisher.to_string());
            return Err(AcapError::Publisher { file: origin, served, found });
        }
        let mut before = self.before.clone();
        before.push(self.policy.clone());
        if before.len() >= VERSIONS_MAX {
            return Err(AcapError::TooMany { file: origin });
        }
        Self::write(log, before.len(), &bytes).await?;
        tracing::info!(from = %diff.from, to = %diff.to, material = diff.material, "the usage policy has a new version");
        Ok(Self { policy, bytes, before })
    }

    async fn write(log: &Log, count: usize, bytes: &[u8]) -> Result<(), AcapError> {
        let write = SideWrite {
            table: SideTable::AcapPolicy,
            key: (count as u64).to_be_bytes().to_vec(),
            value: Some(bytes.to_vec()),
        };
        let place = log.place(vec![write]).await.map_err(|_| AcapError::Write)?;
        place.commit(|| {}).durable().await.map_err(|_| AcapError::Write)?;
        Ok(())
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
