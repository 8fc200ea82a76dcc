//! The webhook sink of the escalation inbox: each escalation is POSTed until the sink answers 2xx.
//! An escalation nobody saw would be a silent loss one level up, so that the sink took it is noted
//! durably in the escalation itself, and only after its answer.
//!
//! Escalations end in the order of their deadlines and are kept in the order of their issue, so no
//! cursor over the inbox would do.

use crate::config::EscalationConfig;
use crate::driver::{Call, Input};
use crate::store::Storage;
use bytes::Bytes;
use proto::backoff::Backoff;
use proto::event::Event;
use proto::id::ObligationId;
use proto::record::{Escalation, Outcome, key_num, num_key};
use proto::store::Table;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};

const SINK_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_BASE_MS: u64 = 500;
/// Escalations looked at by one read of the inbox.
const PAGE: usize = 256;
/// Escalations known to be due. Further ones are found by another walk over the inbox.
const DUE_MAX: usize = 4096;

/// Delivers escalations to the configured webhook for ever. What was filed before `events` began is
/// found in the store.
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
    let mut due = Due::new(store);
    let mut failures = 0;
    loop {
        while let Some(heard) = hear(events.try_recv()) {
            due.heard(heard);
        }
        let Some((num, body)) = due.next() else {
            due.heard(told(&mut events).await);
            continue;
        };
        let sent = client
            .post(url.url().clone())
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await;
        match sent {
            Ok(response) if response.status().is_success() => {
                failures = 0;
                due.taken(num);
                if calls.send(Call::Input(Input::SinkDelivered { num })).await.is_err() {
                    return;
                }
            }
            answer => {
                let why = answer.map_or_else(
                    |error| error.to_string(),
                    |response| response.status().to_string(),
                );
                tracing::warn!(%url, why, failures, "escalation not delivered, trying again");
                due.again(num);
                tokio::time::sleep(Duration::from_millis(backoff.delay_ms(failures, num))).await;
                failures = failures.saturating_add(1);
            }
        }
    }
}

/// What is heard of escalations.
enum Heard {
    /// One was filed.
    Filed(ObligationId),
    /// Some events were missed.
    Missed,
    /// Something else.
    Nothing,
}

fn hear(event: Result<Arc<Event>, broadcast::error::TryRecvError>) -> Option<Heard> {
    match event {
        Ok(event) => Some(match &*event {
            Event::Escalated(escalation) => Heard::Filed(escalation.obligation_id.clone()),
            _ => Heard::Nothing,
        }),
        Err(broadcast::error::TryRecvError::Lagged(_)) => Some(Heard::Missed),
        Err(_) => None,
    }
}

/// Waits for the next event.
async fn told(events: &mut broadcast::Receiver<Arc<Event>>) -> Heard {
    use broadcast::error::{RecvError, TryRecvError};
    let event = events.recv().await;
    if matches!(event, Err(RecvError::Closed)) {
        return std::future::pending().await;
    }
    hear(event.map_err(|_| TryRecvError::Lagged(0))).unwrap_or(Heard::Nothing)
}

/// Escalations that the sink has not taken, by transfer number.
struct Due {
    store: Arc<dyn Storage>,
    known: VecDeque<u64>,
    /// Where a walk over the inbox stands, if there may be more than is known.
    walk: Option<u64>,
    /// Taken, and not yet noted so.
    taken: BTreeSet<u64>,
}

impl Due {
    fn new(store: Arc<dyn Storage>) -> Self {
        Self { store, known: VecDeque::new(), walk: Some(0), taken: BTreeSet::new() }
    }

    fn heard(&mut self, heard: Heard) {
        match heard {
            Heard::Filed(id) => {
                let bytes = self.store.get(Table::Outcome, id.as_str().as_bytes()).ok().flatten();
                match bytes.map(|bytes| Outcome::decode(&bytes)) {
                    Some(Ok(outcome)) => self.again(outcome.num),
                    // It cannot be read, or was pruned meanwhile; the inbox itself says what is due.
                    _ => self.walk = Some(0),
                }
            }
            Heard::Missed => self.walk = Some(0),
            Heard::Nothing => {}
        }
    }

    /// It is due, after all that are known.
    fn again(&mut self, num: u64) {
        if self.known.len() >= DUE_MAX {
            self.known.clear();
            self.walk = Some(0);
        } else if !self.known.contains(&num) {
            self.known.push_back(num);
        }
    }

    fn taken(&mut self, num: u64) {
        let mut taken = std::mem::take(&mut self.taken);
        taken.insert(num);
        taken.retain(|num| self.open(*num).is_some());
        self.taken = taken;
    }

    /// The next that is due, and what to post.
    fn next(&mut self) -> Option<(u64, Bytes)> {
        loop {
            while let Some(num) = self.known.pop_front() {
                if !self.taken.contains(&num)
                    && let Some(body) = self.open(num)
                {
                    return Some((num, body));
                }
            }
            let page = self.store.scan(Table::Escalation, &num_key(self.walk?), PAGE);
            let page = page
                .inspect_err(
                    |error| tracing::error!(%error, "the inbox cannot be read for the sink"),
                )
                .ok()?;
            self.walk = page.last().and_then(|(key, _)| key_num(key)).map(|num| num + 1);
            let open = page.iter().filter(|(_, value)| is_open(value));
            self.known.extend(open.filter_map(|(key, _)| key_num(key)));
        }
    }

    /// The escalation of a transfer, unless the sink has taken it or a person has seen it.
    fn open(&self, num: u64) -> Option<Bytes> {
        self.store.get(Table::Escalation, &num_key(num)).ok()?.filter(is_open)
    }
}

fn is_open(value: &Bytes) -> bool {
    serde_json::from_slice::<Escalation>(value).is_ok_and(|escalation| {
        escalation.acknowledged_at_ms.is_none() && escalation.delivered_at_ms.is_none()
    })
}
