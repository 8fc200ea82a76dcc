//! The webhook of the inbox for reviews, as for escalations: each is POSTed until the sink answers 2xx, and
//! that it took one is noted in it durably. A question that nobody hears of is answered by nobody.

use super::{Caller, Refusal};
use crate::config::EscalationConfig;
use proto::backoff::Backoff;
use proto::id::AgentId;
use serde_json::{Value, json};
use std::sync::PoisonError;
use std::time::Duration;

/// For the sink to answer.
const SINK_TIME_MAX: Duration = Duration::from_secs(10);
/// The first pause between two tries, in milliseconds.
const RETRY_BASE_MS: u64 = 500;

impl Caller {
    /// Delivers reviews for ever, if there is a sink.
    pub(super) async fn tell_reviews(&self, config: &EscalationConfig) {
        let Some(url) = &config.webhook_url else { return };
        let client = match reqwest::Client::builder().timeout(SINK_TIME_MAX).build() {
            Ok(client) => client,
            Err(error) => {
                tracing::error!(%url, %error, "no HTTP client: reviews stay in the inbox, and none is delivered");
                return;
            }
        };
        let backoff = Backoff {
            base_ms: RETRY_BASE_MS,
            cap_ms: config.webhook_retry_cap_ms.max(RETRY_BASE_MS),
            jitter_permille: 200,
        };
        let mut failures = 0;
        loop {
            let Some((callee, review, body)) = self.untold() else {
                self.news.notified().await;
                continue;
            };
            let sent = client.post(url.url().clone()).json(&body).send().await;
            let why = match sent {
                Ok(answer) if answer.status().is_success() => {
                    failures = 0;
                    match self.told(&callee, &review).await {
                        Ok(()) => continue,
                        Err(refusal) => refusal.to_string(),
                    }
                }
                Ok(answer) => answer.status().to_string(),
                Err(error) => error.without_url().to_string(),
            };
            tracing::warn!(%url, why, failures, "review not delivered, trying again");
            tokio::time::sleep(Duration::from_millis(backoff.delay_ms(failures, 0))).await;
            failures = failures.saturating_add(1);
        }
    }

    /// A review that the sink has not taken, and that nobody has answered.
    fn untold(&self) -> Option<(AgentId, String, Value)> {
        let now = self.clock.now().as_ms();
        self.callees.iter().find_map(|(id, callee)| {
            let asked = callee.asked.lock().unwrap_or_else(PoisonError::into_inner);
            let asked = asked.as_ref().filter(|asked| !asked.told && asked.answer.is_none())?;
            let mut body = asked.view(id, now);
            if let Some(members) = body.as_object_mut() {
                members.insert("kind".to_owned(), json!("consent_review"));
            }
            Some((id.clone(), asked.id.clone(), body))
        })
    }

    async fn told(&self, callee: &AgentId, review: &str) -> Result<(), Refusal> {
        let callee = self.callee(callee)?;
        let mut chain = callee.chain.lock().await;
        let mut next = chain.clone();
        let asked = next.kept.question.as_mut().filter(|asked| asked.id == review);
        let Some(asked) = asked else { return Ok(()) }; // answered meanwhile
        asked.told = true;
        self.keep(callee, &mut chain, next, Vec::new()).await
    }
}
