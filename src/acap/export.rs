//! The export of a caller's chains: what a third party checks offline with `abhyasa consent verify`.

use super::anchoring;
use super::audit::Exporter;
use super::book::key;
use super::line::Line;
use super::log::Log;
use super::{Acap, Denial};
use crate::a2a::log::Disk;
use crate::store::SideTable;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use proto::consent::{AdherenceEvent, ChainAnchor, ConsentRecord};
use proto::id::AgentId;
use serde::de::DeserializeOwned;
use std::io::{self, Write};
use std::sync::{Arc, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;

/// Exports that are written at a time; a further one is refused.
pub(super) const EXPORTS_MAX: usize = 8;
/// Documents read at a time.
const PAGE_COUNT: usize = 256;
/// Bytes of them.
const PAGE_LEN_MAX: usize = 1024 * 1024;
/// Bytes that go out at a time.
const CHUNK_LEN: usize = 64 * 1024;
/// Such parts that are written and not yet read; the writer waits.
const CHUNKS_MAX: usize = 4;

type Chunk = io::Result<Bytes>;

/// What is written goes out in parts, at the pace of who reads.
struct Out {
    buffer: Vec<u8>,
    to: mpsc::Sender<Chunk>,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_LEN {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let chunk = Bytes::from(std::mem::take(&mut self.buffer));
        if chunk.is_empty() {
            return Ok(());
        }
        self.to.blocking_send(Ok(chunk)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// What is exported: the chains as long as they were when it was asked for.
struct Chains {
    caller: AgentId,
    line: Arc<Line>,
    disk: Disk,
    records: u64,
    events: u64,
    at: proto::time::Time,
    log: Option<Arc<Log>>,
    _place: OwnedSemaphorePermit,
}

impl Chains {
    fn write(&self, to: Out) -> io::Result<()> {
        let callee = self.line.policy.publisher.clone();
        let mut export = Exporter::new(to, self.caller.clone(), callee, self.at)?;
        for policy in self.line.before.iter().chain([&self.line.policy]) {
            export.policy(policy)?;
        }
        self.each(SideTable::AcapRecord, self.records, |mut record: ConsentRecord, anchor| {
            record.chain_anchor = record.chain_anchor.or(anchor);
            export.record(&record)
        })?;
        self.each(SideTable::AcapEvent, self.events, |mut event: AdherenceEvent, anchor| {
            event.chain_anchor = event.chain_anchor.or(anchor);
            export.event(&event)
        })?;
        if let Some(log) = &self.log {
            export.log(log)?;
        }
        export.end().map(drop)
    }

    fn each<T: DeserializeOwned>(
        &self,
        table: SideTable,
        end: u64,
        mut write: impl FnMut(T, Option<ChainAnchor>) -> io::Result<()>,
    ) -> io::Result<()> {
        let (mut from, to) = (0, key(&self.caller, end));
        while from < end {
            let begin = key(&self.caller, from);
            let page = self.disk.range_within(table, &begin, Some(&to), PAGE_COUNT, PAGE_LEN_MAX);
            let page = page.map_err(io::Error::other)?;
            if page.is_empty() {
                return Err(io::Error::other(format!("document {from} is missing")));
            }
            for (_, value) in page {
                let document = self.disk.parse(&value).map_err(io::Error::other)?;
                let anchor = anchoring::stored(&self.disk, table, &self.caller, from);
                write(document, anchor.map_err(io::Error::other)?)?;
                from += 1;
            }
        }
        Ok(())
    }
}

impl Acap {
    /// The chains of `caller` as JSON lines.
    ///
    /// # Errors
    /// [`Denial`]: there are none, or too many are read by others now.
    pub(super) async fn export(&self, caller: AgentId) -> Result<Response, Denial> {
        let known = {
            let books = self.books.read().unwrap_or_else(PoisonError::into_inner);
            books.get(&caller).cloned()
        };
        let Some(book) = known else {
            let what = format!("{caller} has no chain of consent here");
            return Err(Denial::new(StatusCode::NOT_FOUND, "not_found", what));
        };
        let place = self.exports.clone().try_acquire_owned().map_err(|_| {
            let what = format!("{EXPORTS_MAX} exports are written, the limit");
            Denial::new(StatusCode::TOO_MANY_REQUESTS, "full", what)
        })?;
        let (records, events) = {
            let book = book.lock().await;
            (book.kept.records, book.kept.events)
        };
        let (line, disk, at) = (self.line(), self.log.disk().clone(), self.clock.now());
        let log = self.anchoring.as_ref().map(|anchoring| anchoring.log().clone());
        let chains = Chains { caller, line, disk, records, events, at, log, _place: place };
        let (to, chunks) = mpsc::channel(CHUNKS_MAX);
        tokio::task::spawn_blocking(move || {
            let out = Out { buffer: Vec::with_capacity(CHUNK_LEN), to: to.clone() };
            if let Err(error) = chains.write(out) {
                tracing::info!(caller = %chains.caller, %error, "an export is cut");
                // Without it who reads would take the part for the whole.
                let _ = to.blocking_send(Err(error));
            }
        });
        let lines = [(header::CONTENT_TYPE, "application/jsonl")];
        Ok((lines, Body::from_stream(ReceiverStream::new(chunks))).into_response())
    }
}
