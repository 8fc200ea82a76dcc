//! Messages that come and go one by one, as transports of rmcp.

use super::BROKE;
use super::link::dial;
use super::message::{Code, Form, Message};
use crate::calls::LineError;
use crate::config::NodeConfig;
use crate::moq::mcp::{Begun, Client};
use proto::id::AgentId;
use rmcp::service::{RxJsonRpcMessage, ServiceRole, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// Requests of ours that are told of a loss; further ones end without a word.
const RUNNING_MAX: usize = 1_024;
/// How long the last messages may take to arrive.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(10);
/// How long the other side may then take to read them: it ends the session when it has, and no call runs.
const READ_TIME_MAX: Duration = Duration::from_secs(2);

/// Why there is no session with an MCP server behind a peer.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub struct ConnectError(anyhow::Error);

/// A session with an MCP server behind a peer, over MOQT (docs/mcp-moqt.md), for an rmcp client.
#[derive(Debug)]
pub struct MoqtTransport {
    messages: Messages,
    /// Told when all that was said has arrived, or nobody is there to have it.
    sent: Option<oneshot::Receiver<()>>,
    _client: Client,
    _work: JoinSet<()>,
}

impl MoqtTransport {
    /// Begins a session with `server` behind `peer`, under the identity of the node of `config`, which has the peer's
    /// address.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        config: &NodeConfig,
        peer: AgentId,
        server: &str,
    ) -> Result<Self, ConnectError> {
        let (dial, address) = dial(config, &peer).map_err(ConnectError)?;
        let client = Client::new(dial, peer, address);
        let begun = client.begin(server).await.map_err(|error| ConnectError(error.into()))?;
        let Begun { to, from, sent, work } = begun;
        let messages = Messages::new(to, from);
        Ok(Self { messages, sent: Some(sent), _client: client, _work: work })
    }
}

impl<R: ServiceRole> Transport<R> for MoqtTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<R>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        Transport::<R>::send(&mut self.messages, item)
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<R>> {
        Transport::<R>::receive(&mut self.messages).await
    }

    /// What comes is no longer heard.
    async fn close(&mut self) -> io::Result<()> {
        Transport::<R>::close(&mut self.messages).await?;
        let Some(sent) = self.sent.take() else { return Ok(()) };
        let from = &mut self.messages.from;
        let ended = async { while from.recv().await.is_some() {} }; // it holds up nothing that way
        tokio::pin!(ended);
        let arrived = tokio::select! {
            () = &mut ended => return Ok(()),
            arrived = tokio::time::timeout(LAST_WORDS_TIME_MAX, sent) => arrived,
        };
        if arrived.is_err() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let _ = tokio::time::timeout(READ_TIME_MAX, ended).await;
        Ok(())
    }
}

/// Both directions of a session. It ends when one of them does.
#[derive(Debug)]
pub(crate) struct Messages {
    /// What the other side is told; gone when this side has closed.
    pub(crate) to: Option<mpsc::Sender<Vec<u8>>>,
    /// What it says. After an error there is nothing more.
    pub(crate) from: mpsc::Receiver<Result<Vec<u8>, LineError>>,
    /// Requests of ours that are not answered, by their ids.
    running: BTreeMap<String, Value>,
    /// What they are answered once there is nothing more.
    lost: Option<String>,
}

impl Messages {
    pub(crate) const fn new(
        to: mpsc::Sender<Vec<u8>>,
        from: mpsc::Receiver<Result<Vec<u8>, LineError>>,
    ) -> Self {
        Self { to: Some(to), from, running: BTreeMap::new(), lost: None }
    }

    fn says(&mut self, text: &[u8]) {
        let Ok(message) = Message::parse(text) else { return };
        match &message.form {
            Form::Request { id, .. } if self.running.len() < RUNNING_MAX => {
                self.running.insert(id.to_string(), id.clone());
            }
            Form::Notification { method } if method == "notifications/cancelled" => {
                let id = message.params().and_then(|params| params.get("requestId"));
                id.and_then(|id| self.running.remove(&id.to_string()));
            }
            _ => {}
        }
    }
}

impl<R: ServiceRole> Transport<R> for Messages {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<R>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (to, text) = (self.to.clone(), serde_json::to_vec(&item));
        if let Ok(text) = &text {
            self.says(text);
        }
        async move {
            let to = to.ok_or(io::ErrorKind::NotConnected)?;
            to.send(text?).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<R>> {
        loop {
            if let Some(why) = &self.lost {
                let (_, id) = self.running.pop_first()?;
                let answer = Message::error(&id, Code::Lost, why, json!({}));
                return serde_json::from_slice(&answer.to_vec()).ok();
            }
            let text = match self.from.recv().await {
                Some(Ok(text)) => text,
                Some(Err(error)) => {
                    tracing::debug!(%error, "an MCP session ends");
                    self.lost = Some(format!("{BROKE}: {error}"));
                    continue;
                }
                None => {
                    self.lost = Some(BROKE.to_owned());
                    continue;
                }
            };
            if !self.running.is_empty()
                && let Ok(Form::Response { id }) = Message::parse(&text).map(|said| said.form)
            {
                self.running.remove(&id.to_string());
            }
            match serde_json::from_slice(&text) {
                Ok(message) => return Some(message),
                Err(error) => {
                    let id = match Message::parse(&text).map(|message| message.form) {
                        Ok(Form::Request { id, .. }) => id,
                        Ok(_) => {
                            tracing::debug!(%error, "a message of MCP that is none of its time");
                            continue; // nobody waits for an answer to it
                        }
                        Err(_) => Value::Null,
                    };
                    let what = format!("no message: {error}");
                    let answer = Message::error(&id, Code::Envelope, &what, json!({}));
                    self.to.as_ref()?.send(answer.to_vec()).await.ok()?;
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        self.to = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moq::LinkError;
    use rmcp::{RoleClient, RoleServer};

    #[tokio::test]
    async fn what_is_no_message_is_answered_and_an_error_is_the_end() {
        let (said, from) = mpsc::channel(8);
        let (to, mut told) = mpsc::channel(8);
        let mut transport = Messages::new(to, from);
        for text in ["[1]", r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#] {
            said.send(Ok(text.into())).await.unwrap();
        }
        let message = Transport::<RoleServer>::receive(&mut transport).await.unwrap();
        let message = serde_json::to_value(message).unwrap();
        assert_eq!((&message["id"], &message["method"]), (&json!(3), &json!("ping")));
        let refused: Value = serde_json::from_slice(&told.recv().await.unwrap()).unwrap();
        assert_eq!(refused["error"]["code"], -31_400, "{refused}");
        said.send(Err(LineError::Cut)).await.unwrap();
        assert!(Transport::<RoleServer>::receive(&mut transport).await.is_none());
        Transport::<RoleServer>::close(&mut transport).await.unwrap();
        assert!(told.recv().await.is_none(), "nothing more is told");
    }

    #[tokio::test]
    async fn what_runs_when_the_session_is_lost_is_told_why() {
        let (said, from) = mpsc::channel(8);
        let (to, mut told) = mpsc::channel(8);
        let mut transport = Messages::new(to, from);
        let request = |id: i64| {
            let request = json!({ "jsonrpc": "2.0", "id": id, "method": "ping" });
            serde_json::from_value::<TxJsonRpcMessage<RoleClient>>(request).unwrap()
        };
        for id in [7, 8, 9] {
            Transport::<RoleClient>::send(&mut transport, request(id)).await.unwrap();
            told.recv().await.unwrap();
        }
        let cancel = json!({ "requestId": 9 });
        let cancel =
            json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancel });
        let cancel = serde_json::from_value(cancel).unwrap();
        Transport::<RoleClient>::send(&mut transport, cancel).await.unwrap();
        let spent = LinkError::Spent { max: 60_000 };
        said.send(Ok(br#"{"jsonrpc":"2.0","id":8,"result":{}}"#.to_vec())).await.unwrap();
        said.send(Err(LineError::Lost(io::Error::other(spent)))).await.unwrap();
        let mut next = async || {
            let message = Transport::<RoleClient>::receive(&mut transport).await?;
            Some(serde_json::to_value(message).unwrap())
        };
        assert_eq!(next().await.unwrap()["id"], 8);
        let lost = next().await.unwrap();
        assert_eq!((&lost["id"], &lost["error"]["code"]), (&json!(7), &json!(-31_502)), "{lost}");
        let why = lost["error"]["message"].as_str().unwrap();
        assert!(why.contains("whether the call ran is not known"), "{why}");
        assert!(why.contains("the session has had 60000 requests"), "{why}");
        assert_eq!(next().await, None, "of one that was answered or canceled it is not");
    }
}
