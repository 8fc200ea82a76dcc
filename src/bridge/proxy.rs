//! `abhyasa mcp proxy` on standard input and output: to its client it is the server.

use super::link::{Far, Link, Opening};
use super::message::{Code, Form, Message};
use super::{BROKE, MESSAGE_LEN_MAX, MESSAGES_READY_MAX};
use crate::calls::{LineError, Lines, tell};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long answers may take once the client has said all.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(10);
/// Calls that are not answered; a further one is refused.
const RUNNING_MAX: usize = 1_024;
/// Answers that wait for the client; then neither side is heard further.
const ANSWERS_MAX: usize = 8;

/// Passes messages until the client ends its side.
///
/// # Errors
/// The client's side is broken.
pub(crate) async fn lines<R, W>(far: Far, read: R, write: W) -> io::Result<()>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (said, mut heard) = mpsc::channel(MESSAGES_READY_MAX);
    let mut reading = JoinSet::new(); // it ends with this
    reading.spawn(Lines::new(read, MESSAGE_LEN_MAX).feed(said));
    let (tells, told) = mpsc::channel(MESSAGES_READY_MAX);
    let mut writing = tokio::spawn(writer(write, told));
    let mut proxy = Proxy {
        far,
        link: None,
        opening: Opening::default(),
        running: BTreeMap::new(),
        pending: None,
        answers: VecDeque::new(),
    };
    let result = loop {
        let (answers, room) = (!proxy.answers.is_empty(), proxy.has_room());
        let (full, pending) = (proxy.is_full(), proxy.pending.is_some());
        let hears = proxy.answers.len() < ANSWERS_MAX;
        let to = proxy.link.as_ref().map(|link| link.to.clone());
        // Nothing is waited for here but in the branches' heads: neither direction holds up the other.
        let from = async {
            match &mut proxy.link {
                Some(link) => link.from.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            room = tells.reserve(), if answers => {
                let (Ok(room), Some(answer)) = (room, proxy.answers.pop_front()) else {
                    break Ok(()); // nobody listens
                };
                room.send(answer);
            }
            line = from, if hears => match line {
                Some(line) => proxy.answered(line),
                None => proxy.lose(),
            },
            () = std::future::ready(()), if pending && !full => {
                proxy.pass_on().await;
            }
            () = room_of(to), if full => {}
            line = heard.recv(), if room => match line {
                Some(Ok(line)) => proxy.pass(line),
                Some(Err(error @ LineError::TooLong { .. })) => {
                    proxy.answer(&Value::Null, Code::Envelope, &error.to_string());
                    break Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
                Some(Err(LineError::Lost(error))) => break Err(error),
                Some(Err(LineError::Cut | LineError::NoRoom)) | None => break Ok(()),
            },
        }
    };
    // Who does not read the last words does without.
    let _ = tokio::time::timeout(2 * LAST_WORDS_TIME_MAX, proxy.last_words(tells)).await;
    if tokio::time::timeout(LAST_WORDS_TIME_MAX, &mut writing).await.is_err() {
        writing.abort();
    }
    result
}

async fn writer<W: AsyncWrite + Unpin>(mut write: W, mut told: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = told.recv().await {
        if tell(&mut write, line).await.is_err() {
            return;
        }
    }
}

/// Returns when the way has room, or is broken.
async fn room_of(to: Option<mpsc::Sender<Vec<u8>>>) {
    if let Some(to) = to {
        let _ = to.reserve().await;
    }
}

struct Proxy {
    far: Far,
    link: Option<Link>,
    opening: Opening,
    /// Calls that are not answered, by id, and their methods.
    running: BTreeMap<String, (Value, String)>,
    /// What waits for room on the way to the server.
    pending: Option<(Message, Vec<u8>)>,
    /// What waits for the client.
    answers: VecDeque<Vec<u8>>,
}

impl Proxy {
    fn has_room(&self) -> bool {
        self.pending.is_none() && self.answers.len() < ANSWERS_MAX
    }

    /// Whether the way to the server is there and has no room.
    fn is_full(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.to.capacity() == 0 && !link.to.is_closed())
            && self.pending.is_some()
    }

    fn answer(&mut self, id: &Value, code: Code, what: &str) {
        self.answers.push_back(Message::error(id, code, what, json!({})).to_vec());
    }

    /// Takes one line of the client.
    fn pass(&mut self, line: Vec<u8>) {
        let message = match Message::parse(&line) {
            Ok(message) => message,
            Err(error) => return self.answer(&Value::Null, Code::Envelope, &error.to_string()),
        };
        if let Form::Request { id, .. } = &message.form
            && self.running.len() >= RUNNING_MAX
        {
            return self.answer(
                id,
                Code::Overloaded,
                &format!("{RUNNING_MAX} calls run, the limit"),
            );
        }
        if let Form::Notification { method } = &message.form
            && method == "notifications/cancelled"
            && let Some(id) = message.params().and_then(|params| params.get("requestId"))
        {
            self.running.remove(&id.to_string()); // there is no answer then
        }
        self.opening.hear(&message);
        self.pending = Some((message, line));
    }

    /// Gives what is pending to the server, over a new way if there is none.
    async fn pass_on(&mut self) {
        let Some((mut message, mut line)) = self.pending.take() else { return };
        let before = message.clone();
        if let Some(refusal) = self.far.hold(&mut message).await {
            self.answers.push_back(refusal.to_vec());
            return;
        }
        if message != before {
            line = message.to_vec();
        }
        let opens = matches!(&message.form, Form::Request { method, .. } if method == "initialize");
        let (id, method) = match message.form {
            Form::Request { id, method } => (Some(id), method),
            _ => (None, String::new()),
        };
        if self.link.as_ref().is_some_and(|link| link.to.is_closed()) {
            self.lose();
        }
        if self.link.is_none() {
            match self.open(opens).await {
                Ok(link) => self.link = Some(link),
                Err((code, what)) => {
                    if let Some(id) = id {
                        self.answer(&id, code, &what);
                    }
                    return;
                }
            }
        }
        let Some(link) = &self.link else { return };
        if link.to.try_send(line).is_err() {
            // It broke at this moment; there is room, and nobody else gives it anything.
            self.lose();
            if let Some(id) = id {
                self.answer(&id, Code::Unavailable, "the way to the server broke");
            }
        } else if let Some(id) = id {
            self.running.insert(id.to_string(), (id, method));
        }
    }

    async fn open(&self, opens: bool) -> Result<Link, (Code, String)> {
        let mut link = self.far.begin().await?;
        if !opens {
            self.opening.repeat(&mut link).await?;
        }
        Ok(link)
    }

    /// Takes one line of the server. One that says that the session is over ends it, so that nothing
    /// more is given to it.
    fn answered(&mut self, line: Vec<u8>) {
        let mut over = false;
        if let Ok(message) = Message::parse(&line)
            && let Form::Response { id } = &message.form
        {
            if let Some((_, method)) = self.running.remove(&id.to_string()) {
                self.far.hear(&method, &message);
            }
            over = message.error_code() == Some(Code::Lost as i64);
        }
        self.answers.push_back(line);
        if over {
            self.lose();
        }
    }

    /// Ends the session, and says so to the calls that run. What it said before still counts.
    fn lose(&mut self) {
        if let Some(mut link) = self.link.take() {
            while let Ok(line) = link.from.try_recv() {
                self.answered(line);
            }
        }
        for (id, _) in std::mem::take(&mut self.running).into_values() {
            self.answer(&id, Code::Lost, BROKE);
        }
    }

    /// The client has said all: what runs may be answered still.
    async fn last_words(mut self, tells: mpsc::Sender<Vec<u8>>) {
        let until = Instant::now() + LAST_WORDS_TIME_MAX;
        if self.pending.is_some() {
            let passed = async {
                room_of(self.link.as_ref().map(|link| link.to.clone())).await;
                self.pass_on().await;
            };
            let _ = tokio::time::timeout_at(until, passed).await;
        }
        for answer in self.answers.drain(..) {
            if tells.send(answer).await.is_err() {
                return;
            }
        }
        let Some(Link { to, mut from, _work }) = self.link.take() else { return };
        drop(to);
        while !self.running.is_empty()
            && let Ok(Some(line)) = tokio::time::timeout_at(until, from.recv()).await
        {
            self.answered(line);
            for answer in self.answers.drain(..) {
                if tells.send(answer).await.is_err() {
                    return;
                }
            }
        }
        self.lose();
        for answer in self.answers.drain(..) {
            if tells.send(answer).await.is_err() {
                return;
            }
        }
    }
}
