//! What callees push: that their policy has changed is heard at once, where they say so, and not when it is next
//! looked at.

use super::{Callee, Caller};
use proto::id::AgentId;
use std::sync::PoisonError;
use std::time::Duration;

/// Where a callee that is a node of ours tells of changes.
const CHANGES: &str = "/acap/changes";
/// Pause after a stream that ended; a callee that has none is not asked for one more often than for its policy.
const AGAIN: Duration = Duration::from_secs(5);

impl Caller {
    /// Hears of changes of a callee's policy, for ever.
    pub(super) async fn listen(&self, callee: &AgentId) {
        let Ok(callee) = self.callee(callee) else { return };
        loop {
            let ended = callee.terms.way.follow(CHANGES, || Self::changed(callee)).await;
            tracing::debug!(callee = %callee.terms.callee, ?ended, "changes of a policy are not heard");
            let pause = match ended {
                Ok(Some(_)) => callee.terms.fresh.max(AGAIN), // it has none for us
                _ => AGAIN,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// The policy of a callee is to be looked at now, whenever that was done last.
    fn changed(callee: &Callee) {
        callee.seen.lock().unwrap_or_else(PoisonError::into_inner).at = None;
        callee.news.notify_one();
    }
}
