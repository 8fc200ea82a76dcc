//! External handlers: a local webhook applies obligations of a kind.
//!
//! The node POSTs the obligation's JSON with `Idempotency-Key: <obligation_id>` and takes
//! `{"status": "applied" | "declined" | "deferred", "reason"?}` for an answer. When a call may have
//! had its effect without our knowing (a crash, a lost answer), the node asks first:
//! `GET <url>/<obligation_id>` gives the same answer, 404 for an id never seen. Both carry
//! `Abhyasa-Issuer`: ids belong to their issuer, and two may have the same. What the handler cannot
//! say is never guessed: it goes to reconciliation.

use crate::clock::Clock;
use crate::config::{HandlerConfig, NodeConfig, WebhookConfig, read_token};
use crate::driver::{Call, Input};
use crate::router::HandlerJob;
use bytes::Bytes;
use proto::ack::Reason;
use proto::backoff::Backoff;
use proto::id::{AgentId, Kind};
use proto::obligation::Obligation;
use proto::receiver::Decision;
use reqwest::StatusCode;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

/// Webhook calls of one kind under way at once.
const CALLS_MAX: usize = 64;
/// How often the status of an effect in doubt is asked for while the handler is away.
const QUERY_BACKOFF: Backoff = Backoff { base_ms: 200, cap_ms: 5_000, jitter_permille: 200 };
const NO_HANDLER: &str = "no handler for this kind any more";
/// Bytes of a handler's answer that are read.
const ANSWER_LEN_MAX: usize = 16 * 1024;

/// A kind's webhook, ready to call.
#[derive(Debug)]
struct Webhook {
    config: WebhookConfig,
    token: Option<String>,
    client: reqwest::Client,
    permits: Semaphore,
}

/// Why the handlers cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// A token file.
    #[error(transparent)]
    Token(#[from] crate::config::SecretError),
    /// The HTTP client.
    #[error("HTTP client: {0}")]
    Client(#[from] reqwest::Error),
}

/// Calls the external handlers.
#[derive(Clone, Debug)]
pub(crate) struct Handlers {
    webhooks: Arc<BTreeMap<Kind, Webhook>>,
    calls: mpsc::Sender<Call>,
    clock: Deadlines,
}

/// The clock, and how far others may be from it.
#[derive(Clone)]
struct Deadlines {
    clock: Arc<dyn Clock>,
    skew_ms: u64,
}

impl std::fmt::Debug for Deadlines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deadlines").field("skew_ms", &self.skew_ms).finish_non_exhaustive()
    }
}

impl Deadlines {
    /// Milliseconds left until the deadline of an obligation.
    fn left_ms(&self, obligation: &Obligation) -> u64 {
        obligation.deadline_at().ms_since(self.clock.now())
    }

    /// Whether no effect of it may begin any more: the deadline is here, or nearer than the skew.
    //= DL-1
    fn passed(&self, obligation: &Obligation) -> bool {
        self.left_ms(obligation) <= self.skew_ms
    }
}

#[derive(serde::Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    reason: Option<String>,
}

/// What a call to the webhook came to.
enum Called {
    /// A clear answer.
    Decided(Decision),
    /// The id is not known there (status query only).
    Unknown,
    /// It was never reached: no effect can have happened.
    NotReached(String),
    /// It takes no calls for now.
    Busy(String),
    /// It may have been reached.
    Unclear(String),
}

impl Handlers {
    pub(crate) fn new(
        config: &NodeConfig,
        calls: mpsc::Sender<Call>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, HandlerError> {
        let mut webhooks = BTreeMap::new();
        for (kind, kind_config) in &config.kinds {
            let HandlerConfig::Webhook(webhook) = &kind_config.handler else { continue };
            let client = reqwest::Client::builder()
                .timeout(Duration::from_millis(webhook.timeout_ms))
                .redirect(reqwest::redirect::Policy::none())
                .build()?;
            let token = webhook.token_file.as_deref().map(read_token).transpose()?;
            let (config, permits) = (webhook.clone(), Semaphore::new(CALLS_MAX));
            webhooks.insert(kind.clone(), Webhook { config, token, client, permits });
        }
        let clock = Deadlines { clock, skew_ms: config.custody.max_clock_skew_ms };
        Ok(Self { webhooks: Arc::new(webhooks), calls, clock })
    }

    /// Takes jobs until the router is gone. Jobs are bounded where they are made; the calls under
    /// way are bounded for each kind, so that one slow handler holds up no other.
    pub(crate) async fn run(self, mut jobs: mpsc::UnboundedReceiver<HandlerJob>) {
        while let Some(job) = jobs.recv().await {
            let handlers = self.clone();
            tokio::spawn(async move {
                match job {
                    HandlerJob::Decide { issuer, obligation, in_doubt, deferred } => {
                        handlers.decide(issuer, &obligation, in_doubt, deferred).await;
                    }
                    HandlerJob::Inform { issuer, obligation, permit } => {
                        handlers.inform(&issuer, &obligation).await;
                        drop(permit);
                    }
                }
            });
        }
    }

    async fn decide(&self, issuer: AgentId, bytes: &Bytes, in_doubt: bool, deferred: bool) {
        let Ok(obligation) = Obligation::decode(bytes) else { return };
        let decision = match self.webhooks.get(&obligation.kind) {
            None if in_doubt && !deferred => Decision::InDoubt(Reason::new(NO_HANDLER)),
            None => Decision::NotReached(Reason::new(NO_HANDLER)),
            Some(webhook) => {
                // Without a status query, its own word that nothing happened yet is what counts.
                let ask = in_doubt && (webhook.config.query || !deferred);
                webhook.settle(&issuer, &obligation, ask, &self.clock).await
            }
        };
        let _ = self
            .calls
            .send(Call::Input(Input::Decided { issuer, id: obligation.id, decision }))
            .await;
    }

    async fn inform(&self, issuer: &AgentId, bytes: &Bytes) {
        let Ok(obligation) = Obligation::decode(bytes) else { return };
        if let Some(webhook) = self.webhooks.get(&obligation.kind) {
            let _ = webhook.post(issuer, &obligation, &self.clock).await;
        }
    }
}

impl Webhook {
    /// Gets a decision without ever asking twice for an effect that may have happened.
    async fn settle(
        &self,
        issuer: &AgentId,
        obligation: &Obligation,
        in_doubt: bool,
        clock: &Deadlines,
    ) -> Decision {
        if in_doubt {
            match self.query_until_deadline(issuer, obligation, clock).await {
                Called::Decided(decision) => return decision,
                Called::Unknown => {}
                Called::NotReached(why) | Called::Busy(why) | Called::Unclear(why) => {
                    return Decision::InDoubt(Reason::new(why));
                }
            }
        }
        match self.post(issuer, obligation, clock).await {
            Called::Decided(decision) => decision,
            Called::NotReached(why) => Decision::NotReached(Reason::new(why)),
            Called::Busy(why) => Decision::Deferred(Some(Reason::new(why))),
            Called::Unknown => Decision::InDoubt(Reason::new("the handler answered 404 to a POST")),
            Called::Unclear(why) => {
                match self.query_until_deadline(issuer, obligation, clock).await {
                    Called::Decided(decision) => decision,
                    Called::Unknown => Decision::NotReached(Reason::new(why)),
                    Called::NotReached(_) | Called::Busy(_) | Called::Unclear(_) => {
                        Decision::InDoubt(Reason::new(why))
                    }
                }
            }
        }
    }

    /// Asks for the status of an effect that may have happened, again while the handler is away and
    /// the deadline has not passed. Meanwhile the obligation counts as being decided, and nobody
    /// declines it.
    async fn query_until_deadline(
        &self,
        issuer: &AgentId,
        obligation: &Obligation,
        clock: &Deadlines,
    ) -> Called {
        let mut tries = 0;
        loop {
            let called = self.query(issuer, obligation).await;
            if !matches!(called, Called::NotReached(_) | Called::Busy(_)) {
                return called;
            }
            let left = clock.left_ms(obligation);
            if left == 0 {
                return called;
            }
            let wait = QUERY_BACKOFF.delay_ms(tries, obligation.digest()).min(left);
            tokio::time::sleep(Duration::from_millis(wait)).await;
            tries = tries.saturating_add(1);
        }
    }

    /// Asks for the effect, unless it would begin too late.
    async fn post(&self, issuer: &AgentId, obligation: &Obligation, clock: &Deadlines) -> Called {
        let request = self
            .client
            .post(self.config.url.url().clone())
            .header("idempotency-key", header_text(obligation.id.as_str()))
            .json(obligation);
        // A call may have waited for its turn, or for what the handler knows of an earlier one.
        self.send(issuer, request, || clock.passed(obligation)).await
    }

    async fn query(&self, issuer: &AgentId, obligation: &Obligation) -> Called {
        if !self.config.query {
            return Called::Unclear("the handler has no status query".to_owned());
        }
        let mut url = self.config.url.url().clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push(obligation.id.as_str());
        }
        self.send(issuer, self.client.get(url), || false).await
    }

    async fn send(
        &self,
        issuer: &AgentId,
        request: reqwest::RequestBuilder,
        too_late: impl Fn() -> bool,
    ) -> Called {
        let Ok(_permit) = self.permits.acquire().await else {
            return Called::NotReached("the node is stopping".to_owned());
        };
        if too_late() {
            return Called::NotReached("the deadline has passed".to_owned());
        }
        let request = request.header("abhyasa-issuer", header_text(issuer.as_str()));
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => {
                return Called::NotReached(format!("handler not reached: {error}"));
            }
            Err(error) => return Called::Unclear(format!("no answer from the handler: {error}")),
        };
        let status = response.status();
        if status == StatusCode::NOT_FOUND {
            return Called::Unknown;
        }
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            return Called::Busy(format!("handler answered {status}"));
        }
        if !status.is_success() {
            return Called::Unclear(format!("handler answered {status}"));
        }
        match bounded_body(response)
            .await
            .and_then(|body| serde_json::from_slice::<Answer>(&body).ok())
        {
            Some(answer) => Self::decision(answer),
            None => Called::Unclear("the handler's answer is not {\"status\": …}".to_owned()),
        }
    }

    fn decision(answer: Answer) -> Called {
        let reason = answer.reason.map(Reason::new);
        match answer.status.as_str() {
            "applied" => Called::Decided(Decision::Applied),
            "declined" => Called::Decided(Decision::Declined(
                reason.unwrap_or_else(|| Reason::new("declined by the handler")),
            )),
            "deferred" => Called::Decided(Decision::Deferred(reason)),
            other => Called::Unclear(format!(
                "handler status {other:?} is not applied, declined or deferred"
            )),
        }
    }
}

/// An id as a header value. Ids may hold any text, headers only visible ASCII: the rest is
/// percent-encoded, and `%` with it, so that no two ids become one.
fn header_text(id: &str) -> String {
    let mut text = String::with_capacity(id.len());
    for byte in id.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// A response's body, unless it is longer than we read.
pub(crate) async fn bounded_body(mut response: reqwest::Response) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        if body.len() + chunk.len() > ANSWER_LEN_MAX {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    Some(body)
}
