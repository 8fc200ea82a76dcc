//! The policy of a node that runs: the next version is put at it, and ends the consent to the one before.

use super::Acap;
use super::line::{AcapError, Line};
use crate::config::NodeConfig;
use proto::consent::PolicyDocument;
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
