//! One way to the far server, shared by calls that come one by one over HTTP: each gets an id of ours,
//! so that ids of different clients cannot meet.

use super::link::Far;
use super::message::{Code, Form, Message};
use super::{MESSAGE_LEN_MAX, MESSAGES_READY_MAX, proxy};
use crate::calls::{Lines, tell};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::task::JoinSet;

/// Bytes on their way to the proxy's task.
const PIPE_LEN: usize = 64 * 1024;
/// What the server of one client says before that hears it; further messages are lost.
const UNHEARD_MAX: usize = 16;
/// Member of `_meta` by which notifications name the request they belong to (MCP 2026-07-28).
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Something to do.
#[derive(Debug)]
pub(super) enum Do {
    /// A request. What is told of it on its way goes to `reply`, if there is room, and its response to
    /// `answer`, which has its room already.
    Call {
        message: Message,
        reply: mpsc::Sender<Message>,
        answer: OwnedPermit<Message>,
        number: u64,
    },
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
    answer: OwnedPermit<Message>,
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
    let (tells, mut told) = mpsc::channel::<Vec<u8>>(1);
    work.spawn(async move {
        while let Some(line) = told.recv().await {
            if tell(&mut write, line).await.is_err() {
                return;
            }
        }
    });
    let mut channel =
        Channel { of_one, calls: BTreeMap::new(), hears: None, unheard: VecDeque::new() };
    let mut pending: Option<Vec<u8>> = None;
    loop {
        // What the server says is heard also while it hears nothing.
        tokio::select! {
            biased;
            message = heard.recv() => match message {
                Some(message) => channel.hear(message),
                None => return, // and with it the calls, whose clients see that
            },
            room = tells.reserve(), if pending.is_some() => {
                let (Ok(room), Some(line)) = (room, pending.take()) else { return };
                room.send(line);
            }
            asked = todo.recv(), if pending.is_none() => match asked {
                Some(asked) => pending = channel.act(asked),
                None => return,
            },
        }
    }
}

struct Channel {
    of_one: bool,
    calls: BTreeMap<u64, Call>,
    hears: Option<mpsc::Sender<Message>>,
    unheard: VecDeque<Message>,
}

impl Channel {
    /// Does what is to be done; what the server is to be told.
    fn act(&mut self, asked: Do) -> Option<Vec<u8>> {
        let message = match asked {
            Do::Call { mut message, reply, answer, number } => {
                let Form::Request { id, .. } = message.form.clone() else { return None };
                let token = message.replace_meta("progressToken", number.into());
                let message = message.with_id(number.into());
                // With our number in it, it may have become too long.
                let text = message.to_vec();
                if text.len() > MESSAGE_LEN_MAX {
                    let what = format!("over the limit of {MESSAGE_LEN_MAX} bytes");
                    answer.send(Message::error(&id, Code::Envelope, &what, json!({})));
                    return None;
                }
                self.calls.insert(number, Call { id, token, reply, answer });
                return Some(text);
            }
            Do::Tell(mut message) => {
                let canceled = matches!(&message.form, Form::Notification { method } if method == "notifications/cancelled");
                if canceled {
                    if !self.of_one {
                        return None; // an id is not of one client; to hang up is to cancel
                    }
                    let id = message.params().and_then(|params| params.get("requestId"));
                    let found = self.calls.iter().find(|(_, call)| Some(&call.id) == id);
                    let number = found.map(|(number, _)| *number)?; // else it is answered
                    self.calls.remove(&number);
                    message.set_param("requestId", number.into());
                }
                message
            }
            Do::Hear(hears) => {
                for message in self.unheard.drain(..) {
                    let _ = hears.try_send(message);
                }
                self.hears = Some(hears);
                return None;
            }
            Do::Gone(number) => {
                self.calls.remove(&number)?;
                let params = json!({ "requestId": number, "reason": "the client went away" });
                Message::notification("notifications/cancelled", params)
            }
        };
        message.within(MESSAGE_LEN_MAX)
    }

    /// Passes what the server said on to who it is for. Who has no room for what is told on the way loses
    /// it: nobody waits for a slow reader.
    fn hear(&mut self, mut message: Message) {
        let number_of = |value: &Value| match value {
            Value::String(text) => text.parse().ok(),
            other => other.as_u64(),
        };
        if let Form::Response { id } = &message.form {
            let Some(call) = number_of(id).and_then(|number| self.calls.remove(&number)) else {
                return;
            };
            message.replace_result_meta(SUBSCRIPTION, call.id.clone());
            call.answer.send(message.with_id(call.id));
            return;
        }
        let token = message.params().and_then(|params| params.get("progressToken"));
        if let Some(number) = token.and_then(number_of) {
            if let Some(Call { token: Some(token), reply, .. }) = self.calls.get(&number) {
                message.set_param("progressToken", token.clone());
                let _ = reply.try_send(message);
            }
            return;
        }
        if let Some(number) = message.meta(SUBSCRIPTION).and_then(number_of) {
            if let Some(call) = self.calls.get(&number) {
                message.replace_meta(SUBSCRIPTION, call.id.clone());
                let _ = call.reply.try_send(message);
            }
            return;
        }
        // It says not of which call it is: of the only client, or it is nobody's.
        if !self.of_one {
            return;
        }
        if let Some(hears) = self.hears.as_ref().filter(|hears| !hears.is_closed()) {
            let _ = hears.try_send(message);
        } else if let Some((_, call)) = self.calls.iter().next_back() {
            let _ = call.reply.try_send(message);
        } else if self.unheard.len() < UNHEARD_MAX {
            self.unheard.push_back(message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bd1_what_the_server_says_before_its_client_hears_is_kept_within_a_limit() {
        let (calls, unheard) = (BTreeMap::new(), VecDeque::new());
        let mut channel = Channel { of_one: true, calls, hears: None, unheard };
        for number in 0..=UNHEARD_MAX {
            channel.hear(Message::notification("notifications/message", json!({ "data": number })));
        }
        let (hears, mut heard) = mpsc::channel(2 * UNHEARD_MAX);
        assert!(channel.act(Do::Hear(hears)).is_none());
        for number in 0..UNHEARD_MAX {
            let message = heard.try_recv().unwrap();
            assert_eq!(message.params().unwrap()["data"], number);
        }
        assert!(heard.try_recv().is_err(), "no more than the limit");
        channel.hear(Message::notification("notifications/message", json!({})));
        assert!(heard.try_recv().is_ok(), "who hears is told at once");
    }
}
