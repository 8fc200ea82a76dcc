//! One way to the far server, shared by calls that come one by one over HTTP: each gets an id of ours,
//! so that ids of different clients cannot meet.

use super::link::Far;
use super::message::{Code, Form, Message};
use super::{MESSAGE_LEN_MAX, MESSAGES_READY_MAX, proxy};
use crate::calls::{Lines, tell};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
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
    Call { message: Message, reply: mpsc::Sender<Told>, answer: OwnedPermit<Told>, number: u64 },
    /// A notification or a response of the client.
    Tell(Message),
    /// Who is to hear what belongs to no call.
    Hear(mpsc::Sender<Told>),
    /// The client of a call went away.
    Gone(u64),
}

/// What a client is told, with the room that it takes until its client has it.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) message: Message,
    pub(super) room: Option<OwnedSemaphorePermit>,
}

impl From<Message> for Told {
    fn from(message: Message) -> Self {
        Self { message, room: None }
    }
}

struct Call {
    id: Value,
    token: Option<Value>,
    reply: mpsc::Sender<Told>,
    answer: OwnedPermit<Told>,
}

/// Serves what is to be done until nobody can ask any more.
///
/// `of_one` says that all calls are of one client, which the server may then speak to beside its calls; `room` is for
/// bytes that clients have not read.
pub(super) async fn run(
    far: Far,
    of_one: bool,
    room: Arc<Semaphore>,
    mut todo: mpsc::Receiver<Do>,
) {
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
    let (calls, unheard) = (BTreeMap::new(), VecDeque::new());
    let mut channel = Channel { of_one, room, calls, hears: None, unheard };
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
    room: Arc<Semaphore>,
    calls: BTreeMap<u64, Call>,
    hears: Option<mpsc::Sender<Told>>,
    unheard: VecDeque<Told>,
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
                    answer.send(Message::error(&id, Code::Envelope, &what, json!({})).into());
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
                for told in self.unheard.drain(..) {
                    let _ = hears.try_send(told);
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
            let len = message.len + call.id.to_string().len();
            let room = match self.room_for(&message) {
                Some(room) if len <= MESSAGE_LEN_MAX => Ok(room),
                Some(_) => {
                    Err(format!("an answer of {len} bytes, over the limit of {MESSAGE_LEN_MAX}"))
                }
                None => Err("no room for the answer: those before it are not read".to_owned()),
            };
            let room = match room {
                Ok(room) => room,
                Err(what) => {
                    let error = Message::error(&call.id, Code::TooLong, &what, json!({}));
                    call.answer.send(error.into());
                    return;
                }
            };
            call.answer.send(Told { message: message.with_id(call.id), room: Some(room) });
            return;
        }
        let Some(room) = self.room_for(&message) else { return };
        let room = Some(room);
        let token = message.params().and_then(|params| params.get("progressToken"));
        if let Some(number) = token.and_then(number_of) {
            if let Some(Call { token: Some(token), reply, .. }) = self.calls.get(&number) {
                message.set_param("progressToken", token.clone());
                let _ = reply.try_send(Told { message, room });
            }
            return;
        }
        if let Some(number) = message.meta(SUBSCRIPTION).and_then(number_of) {
            if let Some(call) = self.calls.get(&number) {
                message.replace_meta(SUBSCRIPTION, call.id.clone());
                let _ = call.reply.try_send(Told { message, room });
            }
            return;
        }
        // It says not of which call it is: of the only client, or it is nobody's.
        if !self.of_one {
            return;
        }
        let told = Told { message, room };
        if let Some(hears) = self.hears.as_ref().filter(|hears| !hears.is_closed()) {
            let _ = hears.try_send(told);
        } else if let Some((_, call)) = self.calls.iter().next_back() {
            let _ = call.reply.try_send(told);
        } else if self.unheard.len() < UNHEARD_MAX {
            self.unheard.push_back(told);
        }
    }

    /// Room for a message that somebody is to read.
    fn room_for(&self, message: &Message) -> Option<OwnedSemaphorePermit> {
        let len = u32::try_from(message.len).unwrap_or(u32::MAX);
        self.room.clone().try_acquire_many_owned(len).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(room: usize) -> Channel {
        let (calls, unheard) = (BTreeMap::new(), VecDeque::new());
        Channel { of_one: true, room: Arc::new(Semaphore::new(room)), calls, hears: None, unheard }
    }

    #[test]
    fn bd1_what_clients_have_not_read_is_bounded_in_bytes() {
        let text = json!({ "jsonrpc": "2.0", "id": 1, "result": { "text": "0123456789" } });
        let answer = |id: i64| {
            let mut text = text.clone();
            text["id"] = id.into();
            Message::parse(text.to_string().as_bytes()).unwrap()
        };
        let mut channel = channel(answer(1).len);
        let call = |channel: &mut Channel, number: u64| {
            let (reply, replies) = mpsc::channel(4);
            let permit = reply.clone().try_reserve_owned().unwrap();
            let asked = json!({ "jsonrpc": "2.0", "id": "a", "method": "ping" });
            let message = Message::of(asked).unwrap();
            channel.act(Do::Call { message, reply, answer: permit, number });
            replies
        };
        let (mut first, mut second) = (call(&mut channel, 1), call(&mut channel, 2));
        channel.hear(answer(1));
        channel.hear(answer(2));
        let told = first.try_recv().unwrap();
        assert_eq!(told.message.error_code(), None);
        let refused = second.try_recv().unwrap().message;
        assert_eq!(refused.error_code(), Some(Code::TooLong as i64), "it is told, in few bytes");
        assert_eq!(refused.form, Form::Response { id: json!("a") });
        drop(told); // it is read
        let mut third = call(&mut channel, 3);
        channel.hear(answer(3));
        assert_eq!(third.try_recv().unwrap().message.error_code(), None);
    }

    #[test]
    fn bd1_an_answer_that_its_clients_id_makes_too_long_is_an_error() {
        let mut channel = channel(2 * MESSAGE_LEN_MAX);
        for (len, fits) in [(MESSAGE_LEN_MAX - 200, true), (MESSAGE_LEN_MAX - 50, false)] {
            let (reply, mut replies) = mpsc::channel(4);
            let answer = reply.clone().try_reserve_owned().unwrap();
            let asked = json!({ "jsonrpc": "2.0", "id": "x".repeat(100), "method": "ping" });
            let message = Message::of(asked).unwrap();
            channel.act(Do::Call { message, reply, answer, number: 1 });
            let mut said = json!({ "jsonrpc": "2.0", "id": 1, "result": { "text": "" } });
            let short = said.to_string().len();
            said["result"]["text"] = "x".repeat(len - short).into();
            channel.hear(Message::parse(said.to_string().as_bytes()).unwrap());
            let told = replies.try_recv().unwrap().message;
            assert_eq!(told.error_code().is_none(), fits, "{len}");
            assert!(told.to_vec().len() <= MESSAGE_LEN_MAX);
        }
    }

    #[test]
    fn bd1_what_the_server_says_before_its_client_hears_is_kept_within_a_limit() {
        let mut channel = channel(1);
        for number in 0..=UNHEARD_MAX {
            channel.hear(Message::notification("notifications/message", json!({ "data": number })));
        }
        let (hears, mut heard) = mpsc::channel(2 * UNHEARD_MAX);
        assert!(channel.act(Do::Hear(hears)).is_none());
        for number in 0..UNHEARD_MAX {
            let told = heard.try_recv().unwrap();
            assert_eq!(told.message.params().unwrap()["data"], number);
        }
        assert!(heard.try_recv().is_err(), "no more than the limit");
        channel.hear(Message::notification("notifications/message", json!({})));
        assert!(heard.try_recv().is_ok(), "who hears is told at once");
    }
}
