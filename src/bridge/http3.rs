//! Sessions with a server behind a peer's node as Streamable HTTP over HTTP/3.

use super::MESSAGES_READY_MAX;
use super::link::{HEAD_TIME_MAX, Link};
use super::message::Code;
use crate::calls::tell;
use crate::http3::{Exchange, Http3};
use crate::mcp::forward::{Behind, Way, forward};
use axum::http::{Method, StatusCode, header};
use bytes::Bytes;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Where a node has its MCP servers.
pub(super) const PATH: &str = "/mcp";
/// Bytes on their way to what speaks HTTP.
const PIPE_LEN: usize = 64 * 1024;
/// Bytes of a refusal.
const REFUSAL_LEN_MAX: usize = 16 * 1024;
/// How long the other node may take to hear that a session is over.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(10);

/// Begins a session. It is over when the connection is.
///
/// # Errors
/// Why there is none, as a client may be told.
pub(super) async fn begin(http: &Http3, server: &str) -> Result<Link, (Code, String)> {
    let lost = |why: String| (Code::Unavailable, why);
    let peer = http.peer().clone();
    let connection = http.connection().await.map_err(|error| lost(error.to_string()))?;
    let path = format!("{PATH}/{server}");
    let asked = async {
        let request = http.request(Method::GET, &path);
        let request = request.header(header::ACCEPT, "text/event-stream").body(());
        let request = request.map_err(|error| error.to_string())?;
        let said = connection.say(request, Bytes::new()).await;
        let mut exchange = said.map_err(|error| error.to_string())?;
        let head = exchange.head().await.map_err(|error| error.to_string())?;
        Ok::<_, String>((head.status(), refusal(&mut exchange).await))
    };
    match tokio::time::timeout(HEAD_TIME_MAX, asked).await {
        // There is no stream without a session, and so there is the server.
        Ok(Ok((StatusCode::METHOD_NOT_ALLOWED, _))) => {}
        Ok(Ok((_, Some(why)))) => return Err(lost(format!("{peer} refuses: {why}"))),
        Ok(Ok((status, None))) => {
            return Err(lost(format!("{peer} does not begin: it answers {status}")));
        }
        Ok(Err(why)) => return Err(lost(format!("{peer} does not begin: {why}"))),
        Err(_) => return Err(lost(format!("{peer} says nothing"))),
    }
    let uri = format!("https://{}{path}", http.address());
    let way = Way::Http3(Behind { peer: peer.clone(), connection, uri });
    let (to, mut told) = mpsc::channel::<Vec<u8>>(MESSAGES_READY_MAX);
    let (said, from) = mpsc::channel(MESSAGES_READY_MAX);
    let (lines, mut answers) = mpsc::channel::<String>(MESSAGES_READY_MAX);
    let (read, mut write) = tokio::io::duplex(PIPE_LEN);
    let mut work = JoinSet::new();
    work.spawn(async move {
        while let Some(line) = told.recv().await {
            if tell(&mut write, line).await.is_err() {
                return;
            }
        }
    });
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    work.spawn(async move {
        while let Some(line) = answers.recv().await {
            if said.send(line.into_bytes()).await.is_err() {
                break;
            }
        }
        drop(ended);
    });
    // Not of this set: it tells the node that the session is over.
    tokio::spawn(async move {
        let late = async {
            let _ = end.await;
            tokio::time::sleep(FAREWELL_TIME_MAX).await;
        };
        tokio::select! {
            forwarded = forward(way, read, lines) => {
                if let Err(error) = forwarded {
                    tracing::warn!(%peer, %error, "an MCP session was lost");
                }
            }
            () = late => {}
        }
    });
    Ok(Link { to, from, _work: work })
}

/// What the body of a refusal says.
async fn refusal(exchange: &mut Exchange) -> Option<String> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = exchange.chunk().await {
        if body.len() + chunk.len() > REFUSAL_LEN_MAX {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    let body: Value = serde_json::from_slice(&body).ok()?;
    Some(body.pointer("/error/message")?.as_str()?.to_owned())
}
