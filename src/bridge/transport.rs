//! Messages that come and go one by one, as transports of rmcp.

use super::link::dial;
use super::message::{Code, Form, Message};
use crate::calls::LineError;
use crate::config::NodeConfig;
use crate::moq::mcp::{Begun, Client};
use proto::id::AgentId;
use rmcp::service::{RxJsonRpcMessage, ServiceRole, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::{Value, json};
use std::io;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Why there is no session with an MCP server behind a peer.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub struct ConnectError(anyhow::Error);

/// A session with an MCP server behind a peer, over MOQT (docs/mcp-moqt.md), for an rmcp client.
#[derive(Debug)]
pub struct MoqtTransport {
    messages: Messages,
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
        let Begun { to, from, work } = begun;
        Ok(Self { messages: Messages { to: Some(to), from }, _client: client, _work: work })
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

    async fn close(&mut self) -> io::Result<()> {
        Transport::<R>::close(&mut self.messages).await
    }
}

/// Both directions of a session. It ends when one of them does.
#[derive(Debug)]
pub(crate) struct Messages {
    /// What the other side is told; gone when this side has closed.
    pub(crate) to: Option<mpsc::Sender<Vec<u8>>>,
    /// What it says. After an error there is nothing more.
    pub(crate) from: mpsc::Receiver<Result<Vec<u8>, LineError>>,
}

impl<R: ServiceRole> Transport<R> for Messages {
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<R>,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (to, text) = (self.to.clone(), serde_json::to_vec(&item));
        async move {
            let to = to.ok_or(io::ErrorKind::NotConnected)?;
            to.send(text?).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<R>> {
        loop {
            let text = match self.from.recv().await? {
                Ok(text) => text,
                Err(error) => {
                    tracing::debug!(%error, "an MCP session ends");
                    return None;
                }
            };
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
    use rmcp::RoleServer;

    #[tokio::test]
    async fn what_is_no_message_is_answered_and_an_error_is_the_end() {
        let (said, from) = mpsc::channel(8);
        let (to, mut told) = mpsc::channel(8);
        let mut transport = Messages { to: Some(to), from };
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
}
