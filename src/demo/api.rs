//! A node's local API, as the demo and the process tests call it.

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long one call may take.
const CALL_WITHIN: Duration = Duration::from_secs(10);
/// Time between two looks at something awaited.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What an issue call answered.
#[derive(Clone, Debug, serde::Deserialize)]
pub struct Taken {
    /// The id, ours or one the node made up.
    pub obligation_id: String,
    /// Whether it is under custody.
    pub custody: bool,
    /// The absolute deadline, unix milliseconds.
    pub deadline_at_ms: u64,
    /// Its sequence, for kinds that set state.
    pub sequence: Option<u64>,
    /// Whether it had been issued before.
    pub existing: bool,
}

/// An answer of a node, good or not.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body, or null if it has none.
    pub body: Value,
}

impl Answer {
    /// Whether it says yes.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// A node's local API.
#[derive(Clone, Debug)]
pub struct Api {
    base: String,
    client: reqwest::Client,
}

impl Api {
    /// The API at a loopback address.
    ///
    /// # Errors
    /// When the HTTP client cannot be made.
    pub fn new(address: SocketAddr) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder().no_proxy().timeout(CALL_WITHIN).build()?;
        Ok(Self { base: format!("http://{address}"), client })
    }

    /// GET, as JSON.
    ///
    /// # Errors
    /// When there is no answer, or not a good one.
    pub async fn get(&self, path: &str, query: &[(&str, &str)]) -> anyhow::Result<Value> {
        let url = reqwest::Url::parse_with_params(&format!("{}{path}", self.base), query)?;
        good(answer(self.client.get(url).send().await?).await?)
    }

    /// POST of JSON, answered by JSON or nothing.
    ///
    /// # Errors
    /// When there is no answer, or not a good one.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        good(self.ask(path, body).await?)
    }

    /// POST of JSON, whatever the answer.
    ///
    /// # Errors
    /// When there is none: what was asked may or may not have been done.
    pub async fn ask(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        answer(self.client.post(format!("{}{path}", self.base)).json(body).send().await?).await
    }

    /// Issues one obligation; it is durable when this returns.
    ///
    /// # Errors
    /// When the node does not take it.
    pub async fn issue(&self, body: &Value) -> anyhow::Result<Taken> {
        Ok(serde_json::from_value(self.post("/v1/obligations", body).await?)?)
    }

    /// Where an obligation stands.
    ///
    /// # Errors
    /// When the node does not know it.
    pub async fn status(&self, id: &str) -> anyhow::Result<Value> {
        self.get(&format!("/v1/obligations/{id}"), &[]).await
    }

    /// Waits until a transfer has ended.
    ///
    /// # Errors
    /// When it has not `within` that time.
    pub async fn ended(&self, id: &str, within: Duration) -> anyhow::Result<Value> {
        until(within, &format!("{id} to end"), async || {
            let status = self.status(id).await?;
            Ok((text(&status, "state") != "pending").then_some(status))
        })
        .await
    }

    /// Waits until nothing is pending.
    ///
    /// # Errors
    /// When something still is after that time.
    pub async fn idle(&self, within: Duration) -> anyhow::Result<()> {
        until(within, "everything to end", async || {
            let pending = self.get("/v1/pending", &[("limit", "1")]).await?;
            Ok(pending.pointer("/items/0").is_none().then_some(()))
        })
        .await
    }

    /// What the agent of this node is told before it acts: as `receiver`, whether it may use
    /// `scope` for `agent`; as `principal`, whether `agent` may.
    ///
    /// # Errors
    /// When the node cannot say.
    pub async fn allowed(&self, role: &str, agent: &str, scope: &str) -> anyhow::Result<bool> {
        let query = [("role", role), ("agent", agent), ("scope", scope)];
        let check = self.get("/v1/authorizations/check", &query).await?;
        check.get("allowed").and_then(Value::as_bool).context("a check without an answer")
    }

    /// A weight that was moved, in units of 1e-9.
    ///
    /// # Errors
    /// When the node does not answer.
    pub async fn weight(&self, role: &str, agent: &str, key: &str) -> anyhow::Result<Option<i64>> {
        let page =
            self.get("/v1/weights", &[("role", role), ("agent", agent), ("limit", "1000")]).await?;
        let items = page.get("items").and_then(Value::as_array).context("no items")?;
        let found = items.iter().find(|item| text(item, "weight_key") == key);
        Ok(found.and_then(|item| item.get("weight")?.as_f64()).map(nano))
    }

    /// The escalation of an obligation, while nobody has acknowledged it.
    ///
    /// # Errors
    /// When the node does not answer.
    pub async fn escalation(&self, id: &str) -> anyhow::Result<Option<Value>> {
        let page = self.get("/v1/escalations", &[("limit", "1000")]).await?;
        let items = page.get("items").and_then(Value::as_array).context("no items")?;
        Ok(items.iter().find(|item| text(item, "obligation_id") == id).cloned())
    }

    /// Acknowledges an escalation.
    ///
    /// # Errors
    /// When there is none.
    pub async fn acknowledge(&self, id: &str) -> anyhow::Result<()> {
        self.post(&format!("/v1/escalations/{id}/ack"), &json!({})).await.map(drop)
    }

    /// A counter or gauge by its full name, labels included; 0 if it never counted.
    ///
    /// # Errors
    /// When the node does not answer.
    pub async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let text = self
            .client
            .get(format!("{}/metrics", self.base))
            .send()
            .await?
            .error_for_status()?
            .text()
            .await?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.split(' ').next());
        Ok(value.map(str::parse).transpose()?.unwrap_or(0.0))
    }
}

async fn answer(response: reqwest::Response) -> anyhow::Result<Answer> {
    let status = response.status().as_u16();
    let body = response.bytes().await?;
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body)? };
    Ok(Answer { status, body })
}

fn good(answer: Answer) -> anyhow::Result<Value> {
    ensure!(answer.is_ok(), "{}: {}", answer.status, answer.body);
    Ok(answer.body)
}

/// A text member, or nothing.
#[must_use]
pub fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value.get(member).and_then(Value::as_str).unwrap_or_default()
}

/// A number in units of 1e-9, as the node itself counts weights.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "weights are within a million")]
pub fn nano(weight: f64) -> i64 {
    (weight * 1e9).round() as i64
}

/// Looks at something until it is there.
///
/// # Errors
/// When it is not `within` that time, with the last error of looking if there was one.
pub async fn until<T>(
    within: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let begun = Instant::now();
    loop {
        let seen = look().await;
        match seen {
            Ok(Some(seen)) => return Ok(seen),
            Err(error) if begun.elapsed() >= within => {
                return Err(error.context(format!("waited {} ms for {what}", within.as_millis())));
            }
            Ok(None) if begun.elapsed() >= within => {
                bail!("waited {} ms for {what}", within.as_millis())
            }
            _ => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}
