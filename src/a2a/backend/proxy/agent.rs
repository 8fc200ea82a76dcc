//! The agent behind the node, however it is reached: its card, and calls that are answered by one
//! result or by one after the other.

use super::super::Profile;
use super::body;
use super::http::HttpAgent;
use super::http3::{self, Http3Agent};
use super::moqt::{self, MoqtAgent};
use super::quic::{self, QuicAgent};
use crate::a2a::dispatch::EVENT;
use crate::a2a::moqt::BINDING as MOQT_BINDING;
use crate::a2a::obligation::URI;
use crate::a2a::parameters::is_our_version;
use crate::a2a::quic::BINDING;
use crate::calls::Calls;
use crate::config::HttpUrl;
use crate::peers::Dial;
use proto::id::AgentId;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a call of the agent has no result.
#[derive(Debug)]
pub(super) enum Lost {
    /// It was not reached, so it has nothing of it.
    Unreached(String),
    /// The connection ended, or what came was no answer.
    Broken(String),
    /// What it answered could not be kept.
    Untaken(String),
    /// It answered with an error.
    Refused { code: i64, message: String },
}

impl Lost {
    pub(super) fn text(self) -> String {
        match self {
            Self::Unreached(why) => format!("the agent cannot be reached: {why}"),
            Self::Broken(why) | Self::Untaken(why) => {
                format!("the agent's answer was lost: {why}")
            }
            Self::Refused { code, message } => format!("the agent refused ({code}): {message}"),
        }
    }

    /// It said nothing for too long.
    pub(super) fn silent() -> Self {
        Self::Broken("it went silent".to_owned())
    }
}

/// One call.
#[derive(Debug)]
pub(super) struct Ask<'a> {
    pub(super) method: &'a str,
    pub(super) params: Value,
    /// Extensions the client named.
    pub(super) extensions: &'a [String],
    /// Number of the event to go on behind, where the agent numbers them.
    pub(super) after: Option<u64>,
    /// What the message is named by, where the agent takes one of a name once.
    pub(super) key: Option<String>,
}

/// One result, with the number of the event that it is if it has one.
#[derive(Debug, PartialEq)]
pub(super) struct Said {
    pub(super) result: Value,
    pub(super) event: Option<u64>,
}

/// Where the agent takes calls of A2A 1.0.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Interface {
    pub(super) url: String,
    /// Named in each call there, if it is not empty (A2A §4.4.6).
    pub(super) tenant: String,
    pub(super) streams: bool,
}

/// How the agent is reached.
#[derive(Debug)]
pub(crate) enum Agent {
    Http(HttpAgent),
    Quic(QuicAgent),
    Moqt(MoqtAgent),
    Http3(Http3Agent),
}

impl Agent {
    /// At a URL. An answer is at most `len_max` bytes long, as is each event of one.
    pub(crate) fn http(
        base: HttpUrl,
        silent_max: Duration,
        len_max: usize,
    ) -> Result<Self, reqwest::Error> {
        Ok(Self::Http(HttpAgent::new(base, silent_max, len_max)?))
    }

    /// Behind the node of `peer`.
    pub(crate) const fn quic(
        calls: Arc<Calls>,
        peer: AgentId,
        silent_max: Duration,
        len_max: usize,
    ) -> Self {
        Self::Quic(QuicAgent { calls, peer, silent_max, len_max })
    }

    /// The same, at this address, over MOQT.
    pub(crate) fn moqt(
        dial: Dial,
        peer: AgentId,
        address: String,
        silent_max: Duration,
        len_max: usize,
    ) -> Self {
        Self::Moqt(MoqtAgent::new(dial, peer, address, silent_max, len_max))
    }

    /// The same, over HTTP/3.
    pub(crate) fn http3(
        dial: Dial,
        peer: AgentId,
        address: String,
        silent_max: Duration,
        len_max: usize,
    ) -> Self {
        Self::Http3(Http3Agent::new(dial, peer, address, silent_max, len_max))
    }

    pub(super) async fn card(&self) -> Result<Value, Lost> {
        match self {
            Self::Http(agent) => agent.card().await,
            Self::Quic(agent) => agent.card().await,
            Self::Moqt(agent) => agent.card().await,
            Self::Http3(agent) => agent.card().await,
        }
    }

    /// The binding it is called by, as agent cards name it.
    pub(super) const fn binding(&self) -> &'static str {
        match self {
            Self::Http(_) | Self::Http3(_) => "JSONRPC",
            Self::Quic(_) => BINDING,
            Self::Moqt(_) => MOQT_BINDING,
        }
    }

    /// Whether it is another node: its events have numbers to go on from, and a message that it may
    /// have is sent again without harm.
    pub(super) const fn is_node(&self) -> bool {
        matches!(self, Self::Quic(_) | Self::Moqt(_) | Self::Http3(_))
    }

    /// What a call is answered with. An answer that does not begin in time is none.
    pub(super) async fn ask(&self, at: &Interface, ask: Ask<'_>) -> Result<Answers, Lost> {
        Ok(match self {
            Self::Http(agent) => Answers::Http(agent.ask(at, ask).await?),
            Self::Quic(agent) => Answers::Quic(agent.ask(ask).await?),
            Self::Moqt(agent) => Answers::Moqt(Box::new(agent.ask(ask).await?)),
            Self::Http3(agent) => Answers::Http3(Box::new(agent.ask(ask).await?)),
        })
    }
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(agent) => agent.fmt(f),
            Self::Quic(agent) => agent.peer.fmt(f),
            Self::Moqt(agent) => agent.peer().fmt(f),
            Self::Http3(agent) => agent.peer().fmt(f),
        }
    }
}

/// The results of one call.
pub(super) enum Answers {
    Http(body::Answers<reqwest::Response>),
    Quic(quic::Answers),
    Moqt(Box<moqt::Answers>),
    Http3(Box<body::Answers<http3::Response>>),
}

impl Answers {
    /// The next, in time. `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Said>, Lost> {
        match self {
            Self::Http(answers) => answers.next().await,
            Self::Quic(answers) => answers.next().await,
            Self::Moqt(answers) => answers.next().await,
            Self::Http3(answers) => answers.next().await,
        }
    }
}

/// What a JSON-RPC response says.
pub(super) fn said(body: &[u8]) -> Result<Said, Lost> {
    said_in(&mut read(body)?)
}

pub(super) fn read(body: &[u8]) -> Result<Value, Lost> {
    serde_json::from_slice(body).map_err(|error| Lost::Broken(error.to_string()))
}

/// The same of one that is read.
pub(super) fn said_in(answer: &mut Value) -> Result<Said, Lost> {
    if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
        let code = error.get("code").and_then(Value::as_i64).unwrap_or_default();
        let message = error.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        return Err(Lost::Refused { code, message });
    }
    let event = answer.get(EVENT).and_then(Value::as_u64);
    match answer.get_mut("result").map(Value::take) {
        Some(result) => Ok(Said { result, event }),
        None => Err(Lost::Broken("neither a result nor an error".to_owned())),
    }
}

/// What a card says of the agent, and where it takes calls by `binding`.
pub(super) fn read_card(card: &Value, binding: &str) -> (Profile, Option<Interface>) {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let texts = |name: &str| {
        let texts = list(card.get(name));
        texts.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let capabilities = card.get("capabilities");
    let of = |name: &str| capabilities.and_then(|capabilities| capabilities.get(name));
    let text = |interface: &Value, name: &str| {
        interface.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let interface = list(card.get("supportedInterfaces"))
        .iter()
        .find(|interface| {
            text(interface, "protocolBinding") == binding
                && is_our_version(&text(interface, "protocolVersion"))
        })
        .map(|interface| Interface {
            url: text(interface, "url"),
            tenant: text(interface, "tenant"),
            streams: of("streaming") == Some(&Value::Bool(true)),
        });
    // What one skill takes, the agent takes.
    let mut input_modes = texts("defaultInputModes");
    let skills = if input_modes.is_empty() { Vec::new() } else { list(card.get("skills")) };
    for skill in &skills {
        let modes = list(skill.get("inputModes"));
        input_modes.extend(modes.iter().filter_map(Value::as_str).map(str::to_owned));
    }
    // Obligations end at each node: what is said of them is not said for the agent behind it.
    let mut extensions = list(of("extensions"));
    extensions.retain(|extension| extension.get("uri").and_then(Value::as_str) != Some(URI));
    let profile = Profile {
        skills: list(card.get("skills")),
        input_modes,
        output_modes: texts("defaultOutputModes"),
        extensions,
    };
    (profile, interface)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_card_says_where_for_which_tenant_and_what_is_taken() {
        let card = json!({
            "capabilities": { "streaming": true, "extensions": [{ "uri": URI }, { "uri": "u:1" }] },
            "supportedInterfaces": [
                { "url": "http://a/grpc", "protocolBinding": "GRPC", "protocolVersion": "1.0" },
                { "url": "http://a/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "t" },
                { "url": "quic://a:1", "protocolBinding": BINDING, "protocolVersion": "1.0" }
            ],
            "defaultInputModes": ["text/plain"],
            "skills": [{ "id": "s", "inputModes": ["image/png"] }]
        });
        let (profile, interface) = read_card(&card, "JSONRPC");
        let url = "http://a/rpc".to_owned();
        assert_eq!(interface, Some(Interface { url, tenant: "t".into(), streams: true }));
        assert_eq!(profile.input_modes, ["text/plain", "image/png"]);
        assert_eq!(profile.extensions, [json!({ "uri": "u:1" })]);
        assert_eq!(read_card(&card, BINDING).1.unwrap().url, "quic://a:1");
        assert_eq!(read_card(&card, "OTHER").1, None);
    }

    #[test]
    fn a_response_is_a_result_or_an_error() {
        let found = said(br#"{"jsonrpc":"2.0","id":1,"event":8,"result":{"task":{}}}"#).unwrap();
        assert_eq!(found, Said { result: json!({ "task": {} }), event: Some(8) });
        let error = said(br#"{"error":{"code":-32001,"message":"m"}}"#);
        assert!(matches!(error, Err(Lost::Refused { code: -32001, .. })), "{error:?}");
        assert!(matches!(said(b"{}"), Err(Lost::Broken(_))));
        assert!(matches!(said(b"no json"), Err(Lost::Broken(_))));
    }
}
