//! The MCP server behind the node, as a pair of queues.

use super::message::Message;
use super::{MESSAGE_LEN_MAX, MESSAGES_READY_MAX};
use crate::calls::{LineError, Lines, tell};
use crate::config::{HttpUrl, read_token};
use crate::mcp::forward::{Target, Way, forward};
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::JoinSet;

/// How long a program may take to end once its input has.
const END_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a connection with a server may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// Bytes on their way to what speaks HTTP.
const PIPE_LEN: usize = 64 * 1024;
/// How long the farewell to a server may take.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of a line that a program writes to standard error; a longer one ends the reading of it.
const ERROR_LINE_LEN_MAX: usize = 8 * 1024;

/// A session's place among all, and among those of its peer. Held for as long as the server may live.
#[derive(Debug)]
pub(crate) struct Place {
    pub(super) _of_all: OwnedSemaphorePermit,
    pub(super) _of_peer: OwnedSemaphorePermit,
}

/// A server. It ends when this is dropped; a program gets a little time.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// What it is told. Dropped: nothing more comes.
    pub(super) to: mpsc::Sender<Message>,
    /// What it says. Closed: it ended.
    pub(super) from: mpsc::Receiver<Message>,
    pub(super) _work: JoinSet<()>,
    /// Dropped: it is to end.
    pub(super) _end: oneshot::Sender<()>,
}

impl Upstream {
    /// Starts a program.
    pub(super) fn program(name: &str, command: &[String], place: Place) -> io::Result<Self> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let (to, mut told) = mpsc::channel::<Message>(MESSAGES_READY_MAX);
        let (said, from) = mpsc::channel(MESSAGES_READY_MAX);
        let mut work = JoinSet::new();
        let server = name.to_owned();
        work.spawn(async move {
            let mut lines = Lines::new(stdout, MESSAGE_LEN_MAX);
            loop {
                match lines.next().await {
                    Ok(Some(line)) => match Message::parse(&line) {
                        Ok(message) => {
                            if said.send(message).await.is_err() {
                                return;
                            }
                        }
                        Err(error) => tracing::warn!(server, %error, "a line that is no message"),
                    },
                    Ok(None) => return,
                    Err(error) => return tracing::warn!(server, %error, "the server's output"),
                }
            }
        });
        let server = name.to_owned();
        work.spawn(async move {
            let mut lines = Lines::new(stderr, ERROR_LINE_LEN_MAX);
            loop {
                match lines.next().await {
                    Ok(Some(line)) => tracing::info!(server, "{}", String::from_utf8_lossy(&line)),
                    Err(LineError::TooLong { .. }) => {} // the rest of it is another
                    Ok(None) | Err(_) => return,
                }
            }
        });
        // Not of this set: it outlives the session for as long as the program may take to end.
        let (end, mut ended) = oneshot::channel::<()>();
        tokio::spawn(async move {
            {
                let feed = async {
                    while let Some(message) = told.recv().await {
                        if tell(&mut stdin, message.to_vec()).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::pin!(feed);
                tokio::select! {
                    () = &mut feed => {
                        let _ = ended.await; // it ends with its session
                    }
                    _ = &mut ended => {
                        // What was said last it may still read.
                        let _ = tokio::time::timeout(END_TIME_MAX, feed).await;
                    }
                }
            }
            drop(stdin);
            kill(child).await;
            drop(place);
        });
        Ok(Self { to, from, _work: work, _end: end })
    }

    /// Speaks Streamable HTTP with a server.
    pub(super) fn http(
        name: &str,
        url: &HttpUrl,
        token_file: Option<&Path>,
        place: Place,
    ) -> io::Result<Self> {
        let token = token_file.map(read_token).transpose().map_err(io::Error::other)?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIME_MAX)
            .build()
            .map_err(io::Error::other)?;
        let (who, hint) = ("no MCP server", String::new());
        let target = Target { http, url: url.url().clone(), token, who, hint };
        let (to, mut told) = mpsc::channel::<Message>(MESSAGES_READY_MAX);
        let (said, from) = mpsc::channel(MESSAGES_READY_MAX);
        let (lines, mut answers) = mpsc::channel::<String>(MESSAGES_READY_MAX);
        let (read, mut write) = tokio::io::duplex(PIPE_LEN);
        let mut work = JoinSet::new();
        work.spawn(async move {
            while let Some(message) = told.recv().await {
                if tell(&mut write, message.to_vec()).await.is_err() {
                    return;
                }
            }
        });
        let server = name.to_owned();
        work.spawn(async move {
            while let Some(line) = answers.recv().await {
                match Message::parse(line.as_bytes()) {
                    Ok(message) => {
                        if said.send(message).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => tracing::warn!(server, %error, "an answer that is no message"),
                }
            }
        });
        let server = name.to_owned();
        // Not of this set: it tells the server that the session ended.
        let (end, ended) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let late = async {
                let _ = ended.await;
                tokio::time::sleep(FAREWELL_TIME_MAX).await;
            };
            tokio::select! {
                forwarded = forward(Way::Http(target), read, lines) => {
                    if let Err(error) = forwarded {
                        tracing::warn!(server, %error, "the way to an MCP server");
                    }
                }
                () = late => {}
            }
            drop(place);
        });
        Ok(Self { to, from, _work: work, _end: end })
    }
}

async fn kill(mut child: Child) {
    if tokio::time::timeout(END_TIME_MAX, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}
