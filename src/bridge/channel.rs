//! One way to the far server, shared by calls that come one by one over HTTP: each gets an id of ours,
//! so that ids of different clients cannot meet.

use super::link::Far;
use super::message::{Form, Message};
use super::{MESSAGE_LEN_MAX, MESSAGES_READY_MAX, proxy};
use crate::calls::{Lines, tell};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tokio::io::{DuplexStream, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Bytes on their way to the proxy's task.
const PIPE_LEN: usize = 64 * 1024;
/// Member of `_meta` by which notifications name the request they belong to (MCP 2026-07-28).
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Something to do.
#[derive(Debug)]
pub(super) enum Do {
    /// A request; what comes of it goes to `reply`, the last of it is the response.
    Call { message: Message, reply: mpsc::Sender<Message>, number: u64 },
    /// A notification or a response of the client.
    Tell(Message),
    /// Who is to hear what belongs to no call.
    Hear(mpsc::Sender<Message>),
    /// The client of a call went away.
    Gone(u64),
}

struct Call {
    id: Value,
    token: Option<Value>,
    reply: mpsc::Sender<Message>,
}

/// Serves what is to be done until nobody can ask any more.
///
/// `of_one` says that all calls are of one client, which the server may then speak to beside its calls.
pub(super) async fn run(far: Far, of_one: bool, mut todo: mpsc::Receiver<Do>) {
    let (ours, theirs) = tokio::io::duplex(PIPE_LEN);
    let (read, mut write) = tokio::io::split(ours);
    let (far_read, far_write) = tokio::io::split(theirs);
    let mut work = JoinSet::new(); // they end with this
    work.spawn(async move {
        if let Err(error) = proxy::lines(far, far_read, far_write).await {
            tracing::warn!(%error, "a session with an MCP server ended");
        }
    });
    let (said, mut heard) = mpsc::channel(MESSAGES_READY_MAX);
    work.spawn(async move {
        let mut lines = Lines::new(read, MESSAGE_LEN_MAX);
        while let Ok(Some(line)) = lines.next().await {
            if let Ok(message) = Message::parse(&line)
                && said.send(message).await.is_err()
            {
                return;
            }
        }
    });
    let mut channel = Channel { of_one, calls: BTreeMap::new(), hears: None };
    loop {
        let asked = tokio::select! {
            biased;
            message = heard.recv() => match message {
                Some(message) => {
                    channel.hear(message).await;
                    continue;
                }
                None => return, // and with it the calls, whose clients see that
            },
            asked = todo.recv() => asked,
        };
        let Some(asked) = asked else { return };
        if channel.act(asked, &mut write).await.is_err() {
            return;
        }
    }
}

struct Channel {
    of_one: bool,
    calls: BTreeMap<u64, Call>,
    hears: Option<mpsc::Sender<Message>>,
}

impl Channel {
    async fn act(&mut self, asked: Do, write: &mut WriteHalf<DuplexStream>) -> std::io::Result<()> {
        let message = match asked {
            Do::Call { mut message, reply, number } => {
                let Form::Request { id, .. } = message.form.clone() else { return Ok(()) };
                let token = message.replace_meta("progressToken", number.into());
                self.calls.insert(number, Call { id, token, reply });
                message.with_id(number.into())
            }
            Do::Tell(mut message) => {
                let canceled = matches!(&message.form, Form::Notification { method } if method == "notifications/cancelled");
                if canceled {
                    let id = message.params().and_then(|params| params.get("requestId"));
                    let found = self.calls.iter().find(|(_, call)| Some(&call.id) == id);
                    let Some((number, _)) = found.map(|(number, call)| (*number, call)) else {
                        return Ok(()); // it is answered
                    };
                    self.calls.remove(&number);
                    message.set_param("requestId", number.into());
                }
                message
            }
            Do::Hear(hears) => {
                self.hears = Some(hears);
                return Ok(());
            }
            Do::Gone(number) => {
                let Some(_) = self.calls.remove(&number) else { return Ok(()) };
                let params = json!({ "requestId": number, "reason": "the client went away" });
                Message::notification("notifications/cancelled", params)
            }
        };
        tell(write, message.to_vec()).await
    }

    /// Passes what the server said on to who it is for. Who does not take it loses it.
    async fn hear(&mut self, mut message: Message) {
        if let Form::Response { id } = &message.form {
            let Some(call) = id.as_u64().and_then(|number| self.calls.remove(&number)) else {
                return;
            };
            let _ = call.reply.send(message.with_id(call.id)).await;
            return;
        }
        let token = message.params().and_then(|params| params.get("progressToken"));
        if let Some(number) = token.and_then(Value::as_u64) {
            if let Some(Call { token: Some(token), reply, .. }) = self.calls.get(&number) {
                message.set_param("progressToken", token.clone());
                let _ = reply.send(message).await;
            }
            return;
        }
        if let Some(number) = message.meta(SUBSCRIPTION).and_then(Value::as_u64) {
            if let Some(call) = self.calls.get(&number) {
                message.replace_meta(SUBSCRIPTION, call.id.clone());
                let _ = call.reply.send(message).await;
            }
            return;
        }
        // It says not of which call it is: of the only one, or of the only client.
        if self.of_one {
            if let Some(hears) = self.hears.as_ref().filter(|hears| !hears.is_closed()) {
                let _ = hears.send(message).await;
            } else if let Some((_, call)) = self.calls.iter().next_back() {
                let _ = call.reply.send(message).await;
            }
        } else if self.calls.len() == 1
            && let Some((_, call)) = self.calls.iter().next()
        {
            let _ = call.reply.send(message).await;
        }
    }
}
