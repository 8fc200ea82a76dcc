//! Anchors: that a document was there at a time, shown by a ledger that neither of its two parties can rewrite.
//!
//! [`Anchor`] is any such ledger. Ours is a transparency log ([`LogAnchor`]): its anchors hold the signed tree head and
//! the path to it, so they are checked offline. Of a ledger of another kind it can be said only that the anchor
//! speaks of this document.

use super::log::{
    Digest, HeadFault, Inclusion, LEDGER_PREFIX, LOG_BATCH_MAX, Log, LogError, TreeHead,
};
use futures_util::future::BoxFuture;
use proto::batch::{leaf, verify_path};
use proto::consent::{
    AdherenceEvent, AnchorStrategy, Anchored, ChainAnchor, ConsentRecord, ContentHash, Extra, Text,
};
use proto::time::Time;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// Steps of a path; a tree has no more levels.
pub const PATH_LEN_MAX: usize = 64;
/// Members of an anchor that are ours: the head, and the path from the leaf to it.
const TREE_HEAD: &str = "tree_head";
const INCLUSION_PATH: &str = "inclusion_path";

/// Why nothing was anchored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnchorError {
    /// The log did not take it.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The ledger did not take it.
    #[error("ledger {ledger} took none of {count} hashes: {why}")]
    Ledger {
        /// Which.
        ledger: String,
        /// How many hashes.
        count: usize,
        /// What it says.
        why: String,
    },
}

/// A ledger that hashes can be put into and not taken out of.
pub trait Anchor: Send + Sync {
    /// What it is called in anchors.
    fn ledger_id(&self) -> &str;

    /// Puts hashes into it, at most [`LOG_BATCH_MAX`], and says of each where it is. Once this has returned, the ledger
    /// has them. To put one in again is no error.
    ///
    /// # Errors
    /// [`AnchorError`]: none of them is to be counted on.
    fn anchor(
        &self,
        hashes: Vec<ContentHash>,
        strategy: AnchorStrategy,
        now: Time,
    ) -> BoxFuture<'_, Result<Vec<ChainAnchor>, AnchorError>>;
}

/// Anchors in a log of this node.
#[derive(Debug)]
pub struct LogAnchor {
    log: Arc<Log>,
    /// Where others may ask the log.
    url: Option<String>,
}

impl LogAnchor {
    /// Anchors in `log`; others may ask about it at `url`.
    #[must_use]
    pub const fn new(log: Arc<Log>, url: Option<String>) -> Self {
        Self { log, url }
    }
}

impl Anchor for LogAnchor {
    fn ledger_id(&self) -> &str {
        self.log.id().as_str()
    }

    fn anchor(
        &self,
        hashes: Vec<ContentHash>,
        strategy: AnchorStrategy,
        now: Time,
    ) -> BoxFuture<'_, Result<Vec<ChainAnchor>, AnchorError>> {
        let (log, url) = (self.log.clone(), self.url.clone());
        Box::pin(async move {
            let count = hashes.len();
            let ledger = log.id().to_string();
            if count > LOG_BATCH_MAX {
                return Err(LogError::TooMany { count }.into());
            }
            // It waits for the disk.
            let done = tokio::task::spawn_blocking(move || {
                let places = match strategy {
                    // Each under a head of its own.
                    AnchorStrategy::PerRecord => {
                        let mut places = Vec::with_capacity(count);
                        for hash in &hashes {
                            places.extend(log.append(std::slice::from_ref(hash), now)?);
                        }
                        places
                    }
                    AnchorStrategy::MerkleBatch | AnchorStrategy::ConsentOnly => {
                        log.append(&hashes, now)?
                    }
                };
                let anchors = hashes.iter().zip(&places);
                Ok(anchors.map(|(hash, at)| of(hash, at, strategy, url.as_deref())).collect())
            });
            let lost = |error: tokio::task::JoinError| AnchorError::Ledger {
                ledger,
                count,
                why: error.to_string(),
            };
            done.await.map_err(lost)?
        })
    }
}

/// The anchor of a hash that is in a log.
fn of(
    hash: &ContentHash,
    Inclusion { index, path, head }: &Inclusion,
    strategy: AnchorStrategy,
    url: Option<&str>,
) -> ChainAnchor {
    // Plain data: it has a form in JSON.
    let extra = [
        (TREE_HEAD, serde_json::to_value(head).unwrap_or_default()),
        (INCLUSION_PATH, serde_json::to_value(path).unwrap_or_default()),
    ];
    ChainAnchor {
        record_hash: hash.clone(),
        ledger_id: head.log_id.clone(),
        transaction_id: Text::cut(&Digest(leaf(hash.as_str().as_bytes())).to_string()),
        block_number: i64::try_from(*index).ok(),
        anchored_at: head.timestamp.clone(),
        verification_url: url.and_then(|url| Text::new(url).ok()),
        strategy,
        extra: Extra(extra.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
    }
}

/// A document that can take an anchor.
pub trait Anchorable: Anchored {
    /// It with that anchor.
    #[must_use]
    fn with_anchor(self, anchor: ChainAnchor) -> Self;
}

impl Anchorable for ConsentRecord {
    fn with_anchor(self, anchor: ChainAnchor) -> Self {
        Self { chain_anchor: Some(anchor), ..self }
    }
}

impl Anchorable for AdherenceEvent {
    fn with_anchor(self, anchor: ChainAnchor) -> Self {
        Self { chain_anchor: Some(anchor), ..self }
    }
}

/// What is wrong with an anchor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnchorFault {
    /// Of another document.
    #[error("it is over {told}, and the document has {found}")]
    Hash {
        /// What the anchor says.
        told: String,
        /// What was computed.
        found: String,
    },
    /// A ledger we cannot check.
    #[error("ledger {ledger} is of a kind that is not checked here")]
    Kind {
        /// Which.
        ledger: String,
    },
    /// No proof in it.
    #[error("it holds no proof: {0}")]
    Proof(String),
    /// Its head is not one.
    #[error("its tree head: {0}")]
    Head(#[from] HeadFault),
    /// It says something else than its head.
    #[error("its {member} is {told}, and its proof says {found}")]
    Member {
        /// Which member.
        member: &'static str,
        /// What the anchor says.
        told: String,
        /// What is proved.
        found: String,
    },
    /// The path leads elsewhere.
    #[error(
        "its inclusion path does not lead from leaf {index} to the root {root} of {size} leaves"
    )]
    Path {
        /// The leaf.
        index: u64,
        /// The root that was signed.
        root: String,
        /// Leaves.
        size: u64,
    },
}

#[derive(Deserialize)]
struct Proof {
    tree_head: TreeHead,
    inclusion_path: Vec<Digest>,
}

/// Checks that a log has what an anchor says, with nothing but the anchor; whether the log is one to believe is for the
/// caller to say.
///
/// # Errors
/// [`AnchorFault`] says what is wrong with it.
pub fn verify_in_log(anchor: &ChainAnchor) -> Result<TreeHead, AnchorFault> {
    if !anchor.ledger_id.as_str().starts_with(LEDGER_PREFIX) {
        return Err(AnchorFault::Kind { ledger: anchor.ledger_id.to_string() });
    }
    let member = |name: &str| {
        let value = anchor.extra.0.get(name).cloned();
        value.ok_or_else(|| AnchorFault::Proof(format!("it has no {name}")))
    };
    let proof = [TREE_HEAD, INCLUSION_PATH].map(|name| member(name).map(|v| (name.to_owned(), v)));
    let proof = proof.into_iter().collect::<Result<serde_json::Map<_, _>, _>>()?;
    let proof = Proof::deserialize(Value::Object(proof));
    let Proof { tree_head: head, inclusion_path: path } =
        proof.map_err(|error| AnchorFault::Proof(error.to_string()))?;
    if path.len() > PATH_LEN_MAX {
        return Err(AnchorFault::Proof(format!("its path has over {PATH_LEN_MAX} steps")));
    }
    let same = |member, told: String, found: String| {
        if told == found { Ok(()) } else { Err(AnchorFault::Member { member, told, found }) }
    };
    same("ledger_id", anchor.ledger_id.to_string(), head.log_id.to_string())?;
    head.verify()?;
    same("anchored_at", anchor.anchored_at.to_string(), head.timestamp.to_string())?;
    let item = anchor.record_hash.as_str().as_bytes();
    same("transaction_id", anchor.transaction_id.to_string(), Digest(leaf(item)).to_string())?;
    let index = anchor.block_number.and_then(|number| u64::try_from(number).ok());
    let index = index.ok_or_else(|| AnchorFault::Proof("it has no block_number".to_owned()))?;
    let path: Vec<_> = path.into_iter().map(|Digest(hash)| hash).collect();
    if !verify_path(&head.root_hash.0, index, head.tree_size, item, &path) {
        let (root, size) = (head.root_hash.to_string(), head.tree_size);
        return Err(AnchorFault::Path { index, root, size });
    }
    Ok(head)
}

/// Checks the anchor of a document, if it has one, and gives the tree head it is under.
///
/// # Errors
/// [`AnchorFault`] says what is wrong with it.
pub fn verify(document: &impl Anchored) -> Result<Option<TreeHead>, AnchorFault> {
    let Some(anchor) = document.anchor() else { return Ok(None) };
    document.verify_anchor().map_err(|wrong| AnchorFault::Hash {
        told: wrong.told.to_string(),
        found: wrong.found.to_string(),
    })?;
    verify_in_log(anchor).map(Some)
}
