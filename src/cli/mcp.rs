//! `abhyasa mcp stdio`: messages of MCP from standard input to the running node, and its answers back.

use super::client::Client;
use crate::mcp::forward::{self, Way};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;

/// Lines that wait for the client to read them.
const LINES_WAITING_MAX: usize = 64;

/// Forwards until standard input ends.
pub(super) async fn stdio(client: &Client) -> anyhow::Result<()> {
    let (lines, mut waiting) = mpsc::channel::<String>(LINES_WAITING_MAX);
    let writer = tokio::spawn(async move {
        let mut out = tokio::io::stdout();
        while let Some(mut line) = waiting.recv().await {
            line.push('\n');
            out.write_all(line.as_bytes()).await?;
            out.flush().await?;
        }
        std::io::Result::Ok(())
    });
    let way = Way::Http(client.target("mcp"));
    forward::forward(way, tokio::io::stdin(), lines).await?;
    writer.await??; // who stopped reading us is no reader to complain to
    Ok(())
}
