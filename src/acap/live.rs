//! The policy of a node that runs: the next version is put at it, and ends the consent to the one before.

use super::book::{Book, Renewed};
use super::line::{AcapError, Line};
use super::{Acap, Denial};
use crate::config::NodeConfig;
use axum::http::StatusCode;
use proto::consent::PolicyDocument;
use proto::id::AgentId;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use tokio::sync::watch;

/// Where a policy comes from that is no file.
const PUT: &str = "as put";

/// Holds the claims that the configuration speaks of against a policy.
pub(super) fn check_claims(config: &NodeConfig, policy: &PolicyDocument) -> Result<(), AcapError> {
    for claim in config.policy_claims.iter().flat_map(|table| &table.claims) {
        if policy.claim(claim).is_none() {
            let version = policy.version.clone();
            return Err(AcapError::NoClaim { claim: claim.to_string(), version });
        }
    }
    Ok(())
}

impl Acap {
    /// Bytes of the chains of a caller with a document of `len` more, if there is room for it.
    //= BD-1
    pub(super) fn check_len(
        &self,
        caller: &AgentId,
        book: &Book,
        len: usize,
    ) -> Result<u64, Denial> {
        let sum = book.kept.len + len as u64;
        let max = self.config.acap.caller_len_max;
        if sum - book.kept.renewed.len <= max {
            return Ok(sum);
        }
        let what = format!(
            "the chains of {caller} have {max} bytes, the limit (acap.caller_len_max); they go on when the operator says so"
        );
        Err(Denial::new(StatusCode::TOO_MANY_REQUESTS, "full", what))
    }

    /// Lets full chains of a caller go on: limits count from now. What there is stays, and so do the links to it.
    pub(crate) async fn renew(&self, caller: &AgentId) -> Result<Value, Denial> {
        let known = self.books.read().unwrap_or_else(PoisonError::into_inner).contains_key(caller);
        if !known {
            let what = format!("{caller} has no chain of consent here");
            return Err(Denial::new(StatusCode::NOT_FOUND, "not_found", what));
        }
        let book = self.book(caller).await?;
        let mut next = book.clone();
        next.kept.renewed = Renewed { records: next.kept.records, len: next.kept.len };
        let told = json!({ "peer": caller, "records": next.kept.records, "bytes": next.kept.len });
        self.keep(caller, book, next, Vec::new()).await?;
        Ok(told)
    }

    /// The policy as it is served now.
    pub(super) fn line(&self) -> Arc<Line> {
        self.line.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells of each further version.
    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.versions.subscribe()
    }

    /// Serves `bytes` from now on: whether it is another policy than before. It is durable when this returns, and
    /// so is what it ends: consent to the version before is looked at anew before a call passes by it.
    ///
    /// # Errors
    /// [`AcapError`]: it is no policy, or none that may follow; nothing has changed.
    //= S7
    pub(crate) async fn put_policy(self: Arc<Self>, bytes: Vec<u8>) -> Result<bool, AcapError> {
        // Who goes away meanwhile does not leave a version that is durable and not served.
        let put = tokio::spawn(async move {
            let _one = self.putting.lock().await;
            let (served, origin) = (self.line(), PathBuf::from(PUT));
            let policy = Line::checked(origin.clone(), &bytes)?;
            if policy.document_hash == served.policy.document_hash {
                return Ok(false);
            }
            check_claims(&self.config, &policy)?;
            let next = served.next(origin, policy, bytes, &self.log).await?;
            *self.line.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
            self.versions.send_modify(|count| *count += 1);
            Ok(true)
        });
        put.await.unwrap_or(Err(AcapError::Write))
    }
}
