//! The agent card (A2A §4.4.1, §8): who is behind this node, what it can do, and that obligations
//! are carried here under custody.

use super::A2a;
use super::moqt;
use super::obligation::URI;
use super::quic::BINDING;
use axum::http::HeaderMap;
use axum::http::StatusCode;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED,
};
use axum::response::{IntoResponse, Response};
use proto::consent::EXTENSION_URI;
use proto::id::{AgentId, Kind};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::sync::{Mutex, PoisonError};

/// Version of the Abhyasa protocol, as the papers count.
const ABHYASA_VERSION: &str = "1.0.0";
/// Seconds a card may be kept: that of the agent behind may change.
const MAX_AGE_SECONDS: u32 = 60;

/// What was last served, to say since when it is so.
#[derive(Debug, Default)]
pub(crate) struct Cards(Mutex<(String, u64)>);

impl Cards {
    /// Unix milliseconds since when the card has this tag.
    fn since(&self, tag: &str, now_ms: u64) -> u64 {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != tag {
            *last = (tag.to_owned(), now_ms);
        }
        last.1
    }
}

impl A2a {
    /// Base of our URLs, with a slash at its end.
    fn base(&self) -> String {
        let mut base = match &self.config.a2a.public_url {
            Some(url) => url.to_string(),
            None => format!("http://{}/", self.config.api.listen),
        };
        if !base.ends_with('/') {
            base.push('/');
        }
        base
    }

    /// Where peers call us over native QUIC, host and port.
    fn quic_authority(&self) -> String {
        let port = self.quic_address.port();
        match self.config.a2a.public_url.as_ref().and_then(|url| url.url().host_str()) {
            Some(host) => format!("{host}:{port}"),
            None => self.quic_address.to_string(),
        }
    }

    /// What we can do for `peer`, or for anybody.
    pub(crate) async fn card(&self, peer: Option<&AgentId>) -> Value {
        let profile = self.backend.profile().await;
        let (base, at) = (self.base(), self.quic_authority());
        let interface = |url: String, binding: &str| json!({ "url": url, "protocolBinding": binding, "protocolVersion": "1.0" });
        let mut interfaces = vec![
            interface(format!("{base}a2a"), "JSONRPC"),
            interface(format!("{base}a2a/rest"), "HTTP+JSON"),
            interface(format!("quic://{at}"), BINDING),
        ];
        if self.config.moq.enabled {
            interfaces.push(interface(format!("moqt://{at}/"), moqt::BINDING));
        }
        let mut extensions = vec![json!({
            "uri": URI,
            "description": "Obligations under custody: each ends applied, declined or escalated, and is never silently lost.",
            "required": self.config.a2a.extension_required,
            "params": self.service_ref(&base, peer)
        })];
        let mut skills = profile.skills.clone();
        if let Some(acap) = self.gate.acap() {
            extensions.push(json!({
                "uri": EXTENSION_URI,
                "description": "A usage policy that callers consent to, claim by claim, before a skill runs (ACAP).",
                "required": false, // who does not know it is refused with what is missing
                "params": acap.reference(&base)
            }));
            acap.annotate_skills(&mut skills);
        }
        // A policy of the agent behind is not the one that callers of this node consent to.
        let is_acap = |extension: &&Value| {
            extension.get("uri").and_then(Value::as_str) == Some(EXTENSION_URI)
        };
        let asks = self.gate.acap().is_some();
        let others = profile.extensions.iter().filter(|extension| !(asks && is_acap(extension)));
        extensions.extend(others.cloned());
        let modes = |modes: &[String]| {
            if modes.is_empty() { vec!["text/plain".to_owned()] } else { modes.to_vec() }
        };
        let mut card = json!({
            "name": self.config.a2a.name,
            "description": self.config.a2a.description,
            "version": env!("CARGO_PKG_VERSION"),
            "supportedInterfaces": interfaces,
            "capabilities": {
                "streaming": true, "pushNotifications": true, "extendedAgentCard": true,
                "extensions": extensions
            },
            "securitySchemes": {
                "bearer": { "httpAuthSecurityScheme": { "scheme": "Bearer" } },
                "certificate": { "mtlsSecurityScheme": {
                    "description": "The certificate of a peer of this node, over QUIC."
                } }
            },
            "defaultInputModes": modes(&profile.input_modes),
            "defaultOutputModes": modes(&profile.output_modes),
            "skills": skills
        });
        if let (true, Some(acap), Some(card)) =
            (self.config.acap.usage_policy_in_card, self.gate.acap(), card.as_object_mut())
        {
            card.insert("usage_policy".to_owned(), json!(acap.reference(&base)));
        }
        // On a loopback address without a token, who is on this machine needs none.
        let open = self.config.api.is_loopback() && self.config.api.token_file.is_none();
        if let (false, Some(card)) = (open, card.as_object_mut()) {
            let either = ["bearer", "certificate"]
                .map(|scheme| json!({ "schemes": { scheme: { "list": [] } } }));
            card.insert("securityRequirements".to_owned(), json!(either));
        }
        card
    }

    /// `AbhyasaServiceRef`: each kind that is carried here, and how. For a peer, those it may issue.
    fn service_ref(&self, base: &str, peer: Option<&AgentId>) -> Value {
        let peer = peer.and_then(|id| self.config.peers.iter().find(|peer| peer.id == *id));
        let may = |kind: &Kind| peer.is_none_or(|peer| peer.may_issue.contains(kind));
        let kinds: Vec<Value> = self
            .config
            .kinds
            .iter()
            .filter(|(kind, _)| may(kind))
            .map(|(kind, config)| {
                let (profile, backoff) = (config.profile, config.profile.backoff());
                json!({
                    "kind": kind,
                    "obligation_endpoint": format!("{base}abhyasa/obligations"),
                    "deadline_seconds": profile.deadline_ms() / 1000,
                    "max_retries": profile.max_retries(),
                    "backoff": "exponential",
                    "backoff_base_seconds": std::time::Duration::from_millis(backoff.base_ms).as_secs_f64(),
                    "backoff_cap_seconds": backoff.cap_ms.div_ceil(1000),
                })
            })
            .collect();
        json!({
            "version": ABHYASA_VERSION,
            "custody_ack_endpoint": format!("{base}abhyasa/custody_ack"),
            "supported_kinds": kinds
        })
    }

    /// The public card, its tag, and since when it is so in Unix milliseconds.
    pub(crate) async fn card_now(&self) -> (String, String, u64) {
        let body = self.card(None).await.to_string();
        let hash: String =
            Sha256::digest(&body).iter().take(16).map(|b| format!("{b:02x}")).collect();
        let tag = format!("\"{hash}\"");
        let since = self.cards.since(&tag, self.clock.now().as_ms());
        (body, tag, since)
    }

    /// The public card, or 304 for who has it (A2A §8.6.1).
    pub(crate) async fn card_response(&self, asked: &HeaderMap) -> Response {
        let (body, tag, since) = self.card_now().await;
        let modified = http_date(since);
        let text = |name| asked.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        // RFC 9110 §13.2.2: a tag that is given decides alone.
        let fresh = match text(IF_NONE_MATCH) {
            Some(tags) => tags.split(',').any(|given| {
                let given = given.trim();
                given == "*" || given.trim_start_matches("W/") == tag
            }),
            None => text(IF_MODIFIED_SINCE) == Some(&modified),
        };
        let max_age = format!("public, max-age={MAX_AGE_SECONDS}");
        let headers = [(CACHE_CONTROL, max_age), (ETAG, tag), (LAST_MODIFIED, modified)];
        if fresh {
            return (StatusCode::NOT_MODIFIED, headers).into_response();
        }
        (headers, [(CONTENT_TYPE, "application/json")], body).into_response()
    }
}

/// IMF-fixdate (RFC 9110 §5.6.7) of unix milliseconds.
fn http_date(ms: u64) -> String {
    i64::try_from(ms / 1000)
        .ok()
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
        .map(|time| time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_as_http_wants_it() {
        assert_eq!(http_date(784_111_777_000), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn a_card_is_as_old_as_its_content() {
        let cards = Cards::default();
        assert_eq!(cards.since("a", 1), 1);
        assert_eq!(cards.since("a", 2), 1);
        assert_eq!(cards.since("b", 3), 3);
    }
}
