//! Offers inside of A2A messages, to a peer that speaks nothing else: the obligation goes in the
//! metadata, and the custody ack is looked for in the task's artifacts.
//!
//! Only an ack of the obligation's own target counts. That a task completed says nothing: an agent
//! that does not know the extension completes tasks too, and then the transfer runs into its deadline.

use proto::ack::{AckStatus, CustodyAck};
use proto::frame::RefuseCode;
use proto::obligation::Obligation;
use reqwest::{RequestBuilder, Response, Url};
use serde_json::{Value, json};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The extension of the Abhyasa papers, frozen by their reference implementation.
pub(crate) const URI: &str = "https://ravikiran438.github.io/abhyasa-protocol/v1";
/// How long a card is used before it is fetched again.
const CARD_FRESH: Duration = Duration::from_secs(60);
/// Bytes of a card or a task that are read.
const ANSWER_LEN_MAX: usize = 256 * 1024;
/// What a peer that has too much to do is left alone for, when it does not say, in milliseconds.
const RETRY_AFTER_MS: u64 = 1_000;

/// What an offer came to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    /// Settled.
    Ack(CustodyAck),
    /// Received, not yet settled.
    Deferred,
    /// Refused; when to come back, in milliseconds.
    Refused(RefuseCode, u64),
    /// Nothing that counts: the custodian's retry comes.
    Nothing,
}

/// A peer, by its agent card.
#[derive(Debug)]
pub(crate) struct Agent {
    card: Url,
    /// Where it takes JSON-RPC, and when its card said so.
    endpoint: Mutex<Option<(Instant, Url)>>,
}

impl Agent {
    pub(crate) const fn new(card: Url) -> Self {
        Self { card, endpoint: Mutex::new(None) }
    }

    fn known(&self) -> MutexGuard<'_, Option<(Instant, Url)>> {
        self.endpoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers one obligation. `authorized` adds our credentials.
    pub(crate) async fn offer(
        &self,
        client: &reqwest::Client,
        authorized: impl Fn(RequestBuilder) -> RequestBuilder,
        obligation: &Obligation,
    ) -> Said {
        let url = match self.endpoint(client).await {
            Ok(url) => url,
            Err(said) => return said,
        };
        let request = client.post(url).header("a2a-version", "1.0").header("a2a-extensions", URI);
        let sent = authorized(request).json(&message(obligation)).send().await;
        let Ok(response) = sent else {
            *self.known() = None; // it may have moved
            return Said::Nothing;
        };
        let refused = match response.status().as_u16() {
            200 => None,
            401 | 403 => Some(Said::Refused(RefuseCode::Unauthorized, 0)),
            429 | 503 => Some(Said::Refused(RefuseCode::Overloaded, retry_after_ms(&response))),
            404 | 405 | 501 => Some(Said::Refused(RefuseCode::Unsupported, 0)),
            _ => Some(Said::Nothing),
        };
        if let Some(refused) = refused {
            return refused;
        }
        body(response).await.map_or(Said::Nothing, |answer| said(&answer, obligation))
    }

    /// Where it takes JSON-RPC of A2A 1.0, if it knows the extension.
    async fn endpoint(&self, client: &reqwest::Client) -> Result<Url, Said> {
        if let Some((_, url)) =
            self.known().clone().filter(|(since, _)| since.elapsed() < CARD_FRESH)
        {
            return Ok(url);
        }
        let response = client.get(self.card.clone()).send().await.map_err(|_| Said::Nothing)?;
        if !response.status().is_success() {
            return Err(Said::Nothing);
        }
        let card = body(response).await.ok_or(Said::Nothing)?;
        let url = read_card(&card, &self.card).map_err(|why| {
            tracing::warn!(card = %self.card, why, "obligations cannot be given to this peer");
            Said::Refused(RefuseCode::Unsupported, 0)
        })?;
        *self.known() = Some((Instant::now(), url.clone()));
        Ok(url)
    }
}

/// The endpoint that a card names, or why there is none for us.
fn read_card(card: &Value, at: &Url) -> Result<Url, &'static str> {
    let items =
        |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let is =
        |item: &Value, name: &str, text: &str| item.get(name).and_then(Value::as_str) == Some(text);
    let extensions = items(card.pointer("/capabilities/extensions"));
    if !extensions.iter().any(|extension| is(extension, "uri", URI)) {
        return Err("its card does not name the extension");
    }
    let interfaces = items(card.get("supportedInterfaces"));
    let ours = |interface: &&Value| {
        is(interface, "protocolBinding", "JSONRPC")
            && interface
                .get("protocolVersion")
                .and_then(Value::as_str)
                .is_some_and(crate::a2a::parameters::is_our_version)
    };
    let url = interfaces.iter().find(ours).and_then(|interface| interface.get("url"));
    let url = url.and_then(Value::as_str).and_then(|url| Url::parse(url).ok());
    let url = url.ok_or("its card names no JSONRPC interface of A2A 1.0")?;
    // Our token goes there: a card cannot send it to somebody else.
    if url.origin() != at.origin() {
        return Err("its card names an interface of another origin");
    }
    Ok(url)
}

fn message(obligation: &Obligation) -> Value {
    json!({
        "jsonrpc": "2.0", "id": obligation.id, "method": "SendMessage",
        "params": {
            "message": {
                "messageId": obligation.id, "role": "ROLE_USER", "extensions": [URI],
                "parts": [{ "text": format!("An obligation of kind {}.", obligation.kind) }],
                "metadata": { URI: obligation }
            },
            "configuration": { "returnImmediately": true, "historyLength": 0 }
        }
    })
}

/// What a JSON-RPC response says of an obligation.
fn said(answer: &Value, obligation: &Obligation) -> Said {
    if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
        return match error.get("code").and_then(Value::as_i64) {
            Some(-32602) => Said::Refused(RefuseCode::Malformed, 0),
            Some(-32601 | -32009..=-32003) => Said::Refused(RefuseCode::Unsupported, 0),
            _ => Said::Nothing,
        };
    }
    let artifacts = answer.pointer("/result/task/artifacts").and_then(Value::as_array);
    let ack = artifacts
        .into_iter()
        .flatten()
        .filter_map(|artifact| artifact.get("parts")?.as_array())
        .flatten()
        .filter_map(|part| serde_json::from_value::<CustodyAck>(part.get("data")?.clone()).ok())
        .rfind(|ack| ack.obligation_id == obligation.id && ack.target == obligation.target);
    let state = answer.pointer("/result/task/status/state").and_then(Value::as_str);
    match ack {
        Some(ack) if ack.status != AckStatus::Deferred => Said::Ack(ack),
        Some(_) => Said::Deferred,
        None if matches!(state, Some("TASK_STATE_SUBMITTED" | "TASK_STATE_WORKING")) => {
            Said::Deferred
        }
        None => Said::Nothing,
    }
}

fn retry_after_ms(response: &Response) -> u64 {
    let text = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
    let seconds = text.and_then(|text| text.parse::<u64>().ok());
    seconds.map_or(RETRY_AFTER_MS, |seconds| seconds.saturating_mul(1_000))
}

/// A JSON body within the limit.
async fn body(mut response: Response) -> Option<Value> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        if body.len() + chunk.len() > ANSWER_LEN_MAX {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&body).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::id::{AgentId, Kind, ObligationId};
    use proto::payload::Payload;
    use proto::time::Time;

    fn obligation() -> Obligation {
        Obligation {
            id: ObligationId::new("ob").unwrap(),
            kind: Kind::new("anumati.consent").unwrap(),
            target: AgentId::new("b").unwrap(),
            payload: Payload::EMPTY,
            deadline_seconds: 1,
            max_retries: 0,
            created_at: Time::from_ms(1),
            sequence: None,
        }
    }

    fn task(state: &str, acks: &[(&str, &str, &str)]) -> Value {
        let artifacts: Vec<Value> = acks
            .iter()
            .map(|(id, target, status)| {
                json!({ "artifactId": "a", "parts": [{ "data": {
                    "obligation_id": id, "target": target, "status": status,
                    "acked_at": "2026-11-30T12:00:00Z"
                } }] })
            })
            .collect();
        json!({ "result": { "task": { "status": { "state": state }, "artifacts": artifacts } } })
    }

    #[test]
    fn only_an_ack_of_this_obligation_by_its_target_counts() {
        let of = |state: &str, acks: &[(&str, &str, &str)]| said(&task(state, acks), &obligation());
        let done = "TASK_STATE_COMPLETED";
        assert!(matches!(of(done, &[("ob", "b", "applied")]), Said::Ack(_)));
        assert!(matches!(of("TASK_STATE_REJECTED", &[("ob", "b", "declined")]), Said::Ack(_)));
        assert_eq!(of(done, &[]), Said::Nothing, "who does not know us completes too");
        assert_eq!(of(done, &[("other", "b", "applied")]), Said::Nothing);
        assert_eq!(of(done, &[("ob", "c", "applied")]), Said::Nothing);
        assert_eq!(of("TASK_STATE_WORKING", &[("ob", "b", "deferred")]), Said::Deferred);
        assert_eq!(of("TASK_STATE_WORKING", &[]), Said::Deferred);
        let message =
            json!({ "result": { "message": { "parts": [{ "text": "sure, applied" }] } } });
        assert_eq!(said(&message, &obligation()), Said::Nothing);
        let error = |code: i64| said(&json!({ "error": { "code": code } }), &obligation());
        assert_eq!(error(-32602), Said::Refused(RefuseCode::Malformed, 0));
        assert_eq!(error(-32004), Said::Refused(RefuseCode::Unsupported, 0));
        assert_eq!(error(-32603), Said::Nothing);
    }

    #[test]
    fn a_card_leads_to_its_own_origin_only_and_must_know_the_extension() {
        let at: Url = "https://b.example/.well-known/agent-card.json".parse().unwrap();
        let card = |uri: &str, url: &str, version: &str| {
            json!({
                "capabilities": { "extensions": [{ "uri": uri }] },
                "supportedInterfaces": [
                    { "url": "moqt://b.example", "protocolBinding": "x", "protocolVersion": "1.0" },
                    { "url": url, "protocolBinding": "JSONRPC", "protocolVersion": version }
                ]
            })
        };
        let found = |uri, url, version| read_card(&card(uri, url, version), &at);
        let url = found(URI, "https://b.example/a2a", "1.0").unwrap();
        assert_eq!(url.as_str(), "https://b.example/a2a");
        assert!(found("https://other", "https://b.example/a2a", "1.0").is_err());
        assert!(found(URI, "https://evil.example/a2a", "1.0").is_err());
        assert!(found(URI, "http://b.example/a2a", "1.0").is_err());
        assert!(found(URI, "https://b.example/a2a", "0.3").is_err());
    }
}
