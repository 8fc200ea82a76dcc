//! The agent behind another node, over native QUIC.

use super::agent::{Ask, Lost, Said, said};
use crate::a2a::dispatch::{GET_CARD, PARAMETERS};
use crate::a2a::obligation::URI;
use crate::a2a::parameters::VERSION;
use crate::calls::{Calls, Lines};
use crate::tls::ALPN_A2A;
use proto::id::AgentId;
use quinn::{RecvStream, WriteError};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The agent behind a peer's node.
#[derive(Debug)]
pub(crate) struct QuicAgent {
    pub(super) calls: Arc<Calls>,
    pub(super) peer: AgentId,
    pub(super) silent_max: Duration,
    pub(super) len_max: usize,
}

impl QuicAgent {
    pub(super) async fn card(&self) -> Result<Value, Lost> {
        let params = Value::Object(Map::new());
        let ask = Ask { method: GET_CARD, params, extensions: &[], after: None, key: None };
        match self.ask(ask).await?.next().await? {
            Some(said) => Ok(said.result),
            None => Err(Lost::Broken("it said nothing".to_owned())),
        }
    }

    pub(super) async fn ask(&self, ask: Ask<'_>) -> Result<Answers, Lost> {
        let parameters = parameters(&ask);
        let line = json!({ "method": ask.method, "params": ask.params, PARAMETERS: parameters });
        let mut line = line.to_string().into_bytes();
        line.push(b'\n');
        let asked = async {
            let begun = self.calls.begin(&self.peer, ALPN_A2A).await;
            let (mut send, recv) = begun.map_err(|error| Lost::Unreached(error.to_string()))?;
            // Until all is said, nothing is asked.
            match send.write_all(&line).await {
                // It has answered already: that this is too long, say.
                Ok(()) | Err(WriteError::Stopped(_)) => {}
                Err(error) => return Err(Lost::Unreached(error.to_string())),
            }
            let _ = send.finish(); // an error: the same
            Ok(recv)
        };
        let asked = tokio::time::timeout(self.silent_max, asked).await;
        let recv = asked.unwrap_or_else(|_| Err(Lost::Unreached("it takes no call".to_owned())))?;
        Ok(Answers { lines: Lines::new(recv, self.len_max), silent_max: self.silent_max })
    }
}

/// The service parameters of a call.
pub(super) fn parameters(ask: &Ask<'_>) -> Map<String, Value> {
    // Ours is known to whoever calls from here, so a node that requires it is content.
    let extensions: Vec<&str> = ask.extensions.iter().map(String::as_str).chain([URI]).collect();
    let mut parameters = Map::new();
    parameters.insert("A2A-Version".to_owned(), VERSION.into());
    parameters.insert("A2A-Extensions".to_owned(), extensions.join(",").into());
    if let Some(after) = ask.after {
        parameters.insert("Last-Event-ID".to_owned(), after.to_string().into());
    }
    if let Some(key) = &ask.key {
        parameters.insert("Idempotency-Key".to_owned(), key.as_str().into());
    }
    parameters
}

/// The results of one call. Dropped early, the call is canceled, and not what it was about.
pub(super) struct Answers {
    lines: Lines<RecvStream>,
    silent_max: Duration,
}

impl Answers {
    pub(super) async fn next(&mut self) -> Result<Option<Said>, Lost> {
        match tokio::time::timeout(self.silent_max, self.lines.next()).await {
            Ok(Ok(Some(line))) => said(&line).map(Some),
            Ok(Ok(None)) => Ok(None),
            Ok(Err(error)) => Err(Lost::Broken(error.to_string())),
            Err(_) => Err(Lost::silent()),
        }
    }
}
