//! The webhook sink of the escalation inbox: each escalation is POSTed, in order, until the sink
//! answers 2xx. An escalation nobody saw would be a silent loss one level up, so the cursor is
//! durable and moves only after an answer.

use crate::config::EscalationConfig;
use crate::driver::{Call, Input};
use crate::store::Storage;
use proto::backoff::Backoff;
use proto::custody::SINK_CURSOR_KEY;
use proto::event::Event;
use proto::record::{key_num, num_key};
use proto::store::Table;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};

const SINK_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_BASE_MS: u64 = 500;
/// How often the inbox is looked at without an event, so that a lagging subscription loses none.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Delivers escalations to the configured webhook for ever.
pub(crate) async fn run_sink(
    config: EscalationConfig,
    store: Arc<dyn Storage>,
    calls: mpsc::Sender<Call>,
    mut events: broadcast::Receiver<Arc<Event>>,
) {
    let Some(url) = config.webhook_url else { return };
    let client = match reqwest::Client::builder().timeout(SINK_TIMEOUT).build() {
        Ok(client) => client,
        Err(error) => {
            tracing::error!(%url, %error, "no HTTP client: escalations stay in the inbox, and none is delivered");
            return;
        }
    };
    let backoff = Backoff {
        base_ms: RETRY_BASE_MS,
        cap_ms: config.webhook_retry_cap_ms.max(RETRY_BASE_MS),
        jitter_permille: 200,
    };
    let stored = store.get(Table::Meta, SINK_CURSOR_KEY).ok().flatten();
    let mut cursor = stored.as_deref().and_then(key_num).unwrap_or(0);
    let mut failures = 0;
    loop {
        let next = store
            .scan(Table::Escalation, &num_key(cursor + 1), 1)
            .ok()
            .and_then(|found| found.into_iter().next());
        let Some((key, body)) = next else {
            wait(&mut events).await;
            continue;
        };
        let num = key_num(&key).unwrap_or(cursor + 1);
        let sent = client
            .post(url.url().clone())
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await;
        match sent {
            Ok(response) if response.status().is_success() => {
                cursor = num;
                failures = 0;
                if calls.send(Call::Input(Input::SinkDelivered { cursor })).await.is_err() {
                    return;
                }
            }
            answer => {
                let why = answer.map_or_else(
                    |error| error.to_string(),
                    |response| response.status().to_string(),
                );
                tracing::warn!(%url, why, failures, "escalation not delivered, trying again");
                tokio::time::sleep(Duration::from_millis(backoff.delay_ms(failures, num))).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

async fn wait(events: &mut broadcast::Receiver<Arc<Event>>) {
    let _ = tokio::time::timeout(LOOK_EVERY, async {
        loop {
            match events.recv().await {
                Ok(event) if !matches!(*event, Event::Escalated(_)) => {}
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
                _ => return,
            }
        }
    })
    .await;
}
