//! `abhyasa mcp proxy` on standard input and output: to its client it is the server.

use super::link::{Far, Link, Opening};
use super::message::{Code, Form, Message};
use super::{MESSAGE_LEN_MAX, MESSAGES_READY_MAX};
use crate::calls::{LineError, Lines, tell};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How long answers may take once the client has said all.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(10);
/// Calls that are not answered; a further one is refused.
const RUNNING_MAX: usize = 1_024;

/// Passes messages until the client ends its side.
///
/// # Errors
/// The client's side is broken.
pub(crate) async fn lines<R, W>(far: Far, read: R, mut write: W) -> io::Result<()>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin,
{
    let (said, mut heard) = mpsc::channel(MESSAGES_READY_MAX);
    let mut reading = JoinSet::new(); // it ends with this
    reading.spawn(async move {
        let mut lines = Lines::new(read, MESSAGE_LEN_MAX);
        loop {
            let line = match lines.next().await {
                Ok(Some(line)) => Ok(line),
                Ok(None) => return,
                Err(error) => Err(error),
            };
            let over = line.is_err();
            if said.send(line).await.is_err() || over {
                return;
            }
        }
    });
    let mut proxy =
        Proxy { far, link: None, opening: Opening::default(), running: BTreeMap::new() };
    loop {
        let from = async {
            match &mut proxy.link {
                Some(link) => link.from.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            line = from => match line {
                Some(line) => {
                    let over = proxy.answered(&line);
                    tell(&mut write, line).await?;
                    if over {
                        proxy.lose(&mut write).await?;
                    }
                }
                None => proxy.lose(&mut write).await?,
            },
            line = heard.recv() => match line {
                Some(Ok(line)) => {
                    if let Some(error) = proxy.pass(line).await {
                        tell(&mut write, error).await?;
                    }
                }
                Some(Err(error @ LineError::TooLong { .. })) => {
                    let error = Message::error(&Value::Null, Code::Envelope, &error.to_string(), json!({}));
                    tell(&mut write, error.to_vec()).await?;
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Some(Err(LineError::Lost(error))) => return Err(error),
                Some(Err(LineError::Cut | LineError::NoRoom)) | None => break,
            },
        }
    }
    // What runs may be answered still.
    let Some(Link { to, mut from, _work }) = proxy.link.take() else { return Ok(()) };
    drop(to);
    let rest = async {
        while let Some(line) = from.recv().await {
            tell(&mut write, line).await?;
        }
        Ok(())
    };
    tokio::time::timeout(LAST_WORDS_TIME_MAX, rest).await.unwrap_or(Ok(()))
}

struct Proxy {
    far: Far,
    link: Option<Link>,
    opening: Opening,
    /// Calls that are not answered, by id.
    running: BTreeMap<String, Value>,
}

impl Proxy {
    /// Passes one line on; what the client is to be told if that cannot be.
    async fn pass(&mut self, line: Vec<u8>) -> Option<Vec<u8>> {
        let message = match Message::parse(&line) {
            Ok(message) => message,
            Err(error) => {
                let code = Code::Envelope;
                return Some(
                    Message::error(&Value::Null, code, &error.to_string(), json!({})).to_vec(),
                );
            }
        };
        let id = match &message.form {
            Form::Request { id, .. } => Some(id.clone()),
            _ => None,
        };
        let refuse = |(code, what): (Code, String)| {
            id.as_ref().map(|id| Message::error(id, code, &what, json!({})).to_vec())
        };
        if self.running.len() >= RUNNING_MAX && id.is_some() {
            return refuse((Code::Overloaded, format!("{RUNNING_MAX} calls run, the limit")));
        }
        self.opening.hear(&message);
        let opens = matches!(&message.form, Form::Request { method, .. } if method == "initialize");
        if self.link.is_none() {
            match self.open(opens).await {
                Ok(link) => self.link = Some(link),
                Err(why) => return refuse(why),
            }
        }
        let sent = match &self.link {
            Some(link) => link.to.send(line).await.is_ok(),
            None => false,
        };
        if !sent {
            self.link = None;
            return refuse((Code::Unavailable, "the way to the server broke".to_owned()));
        }
        if let Some(id) = id {
            self.running.insert(id.to_string(), id);
        }
        None
    }

    async fn open(&self, opens: bool) -> Result<Link, (Code, String)> {
        let mut link = self.far.begin().await?;
        if !opens {
            self.opening.repeat(&mut link).await?;
        }
        Ok(link)
    }

    /// Takes note of an answer; whether it says that the session is over, so that nothing more is
    /// given to it.
    fn answered(&mut self, line: &[u8]) -> bool {
        let Ok(message) = Message::parse(line) else { return false };
        let Form::Response { id } = &message.form else { return false };
        self.running.remove(&id.to_string());
        message.error_code() == Some(Code::Lost as i64)
    }

    /// Ends the session, and says so to the calls that run.
    async fn lose(&mut self, write: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        self.link = None;
        let what = "the way to the server broke: whether the call ran is not known";
        for id in std::mem::take(&mut self.running).values() {
            tell(write, Message::error(id, Code::Lost, what, json!({})).to_vec()).await?;
        }
        Ok(())
    }
}
