//! The chains of callers in the node's own transparency log: what is durable here is anchored soon after, and shown
//! to whoever asks the log (Anumati §3.4).
//!
//! How far the chains are anchored is kept with them, so that a restart goes on. A crash between the log and the
//! chains puts hashes into the log a second time, which is no error.

use super::anchor::{Anchor as _, LogAnchor};
use super::book::{json, key};
use super::evidence;
use super::http::{Surface, answer};
use super::line::AcapError;
use super::log::{LOG_BATCH_MAX, Log, LogError};
use super::{Acap, Denial};
use crate::a2a::log::Disk;
use crate::config::{Anchoring as Setting, NodeConfig};
use crate::store::{SideStore, SideTable, SideWrite};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use proto::consent::{
    AdherenceEvent, AnchorStrategy, Anchored, ChainAnchor, ConsentRecord, ContentHash,
};
use proto::id::AgentId;
use proto::store::ReadError;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json as object};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Pause after the log took nothing.
const AGAIN: Duration = Duration::from_secs(5);
/// Bytes of documents that are read at a time.
const PAGE_LEN_MAX: usize = 1024 * 1024;

/// The log, and what goes into it.
#[derive(Debug)]
pub(super) struct Anchoring {
    log: Arc<Log>,
    anchor: LogAnchor,
    strategy: AnchorStrategy,
    pause: Duration,
    news: Notify,
}

impl Anchoring {
    /// As the configuration says.
    pub(super) fn new(config: &NodeConfig, side: SideStore) -> Result<Option<Self>, AcapError> {
        let strategy = match config.acap.anchor {
            Setting::Off => return Ok(None),
            Setting::Record => AnchorStrategy::PerRecord,
            Setting::Batch => AnchorStrategy::MerkleBatch,
            Setting::Consent => AnchorStrategy::ConsentOnly,
        };
        let Some(key) = evidence::key_of(config)? else {
            let what = "anchor in [acap] needs a key for the log; fix: add signing_key".to_owned();
            return Err(AcapError::Keys { file: Path::new("acap.signing_key").to_owned(), what });
        };
        let log = Log::open(side, key).map_err(|error| AcapError::Store(error.to_string()))?;
        let log = Arc::new(log);
        let url = config.a2a.public_url.as_ref().map(|url| format!("{url}"));
        let anchor = LogAnchor::new(
            log.clone(),
            url.map(|url| format!("{}/acap/log", url.trim_end_matches('/'))),
        );
        let pause = Duration::from_millis(config.acap.anchor_interval_ms);
        Ok(Some(Self { log, anchor, strategy, pause, news: Notify::new() }))
    }

    /// There is something to be anchored.
    pub(super) fn wake(&self) {
        self.news.notify_one();
    }

    pub(super) fn log(&self) -> &Arc<Log> {
        &self.log
    }
}

/// The table of the anchors of a table of documents.
pub(super) const fn anchors_of(table: SideTable) -> SideTable {
    match table {
        SideTable::AcapRecord => SideTable::AcapRecordAnchor,
        _ => SideTable::AcapEventAnchor,
    }
}

/// The anchor of a document of ours, if it has one by now.
pub(super) fn stored(
    disk: &Disk,
    table: SideTable,
    caller: &AgentId,
    number: u64,
) -> Result<Option<ChainAnchor>, ReadError> {
    let value = disk.get(anchors_of(table), &key(caller, number))?;
    value.map(|value| disk.parse(&value)).transpose()
}

impl Acap {
    /// Anchors what is not anchored yet, for ever.
    pub(crate) async fn run_anchoring(self: Arc<Self>) {
        let Some(anchoring) = &self.anchoring else { return std::future::pending().await };
        loop {
            let callers: Vec<AgentId> = {
                let books = self.books.read().unwrap_or_else(PoisonError::into_inner);
                books.keys().cloned().collect()
            };
            let mut failed = false;
            for caller in callers {
                while let Some(all) =
                    self.anchor_some(anchoring, &caller).await.unwrap_or_else(|error| {
                        tracing::error!(%caller, error, "chains of consent are not anchored");
                        failed = true;
                        None
                    })
                {
                    if all {
                        break;
                    }
                }
            }
            if failed {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            anchoring.news.notified().await;
            tokio::time::sleep(anchoring.pause).await; // what comes meanwhile goes under one head
        }
    }

    /// Anchors what comes next of a caller's chains; whether that was all, or none if there was nothing.
    async fn anchor_some(
        &self,
        anchoring: &Anchoring,
        caller: &AgentId,
    ) -> Result<Option<bool>, String> {
        let text = |denial: Denial| denial.to_string();
        let (kept, (records, events)) = {
            let book = self.book(caller).await.map_err(text)?;
            (book.kept.anchored, (book.kept.records, book.kept.events))
        };
        let events = match anchoring.strategy {
            AnchorStrategy::ConsentOnly => kept.events,
            _ => events,
        };
        let disk = self.log.disk();
        let read = |error: ReadError| error.to_string();
        let (table, from, hashes) = if kept.records < records {
            let found =
                next::<ConsentRecord>(disk, SideTable::AcapRecord, caller, kept.records, records);
            (SideTable::AcapRecord, kept.records, found.map_err(read)?)
        } else if kept.events < events {
            let found =
                next::<AdherenceEvent>(disk, SideTable::AcapEvent, caller, kept.events, events);
            (SideTable::AcapEvent, kept.events, found.map_err(read)?)
        } else {
            return Ok(None);
        };
        let count = hashes.len() as u64;
        let now = self.clock.now();
        let anchors = anchoring.anchor.anchor(hashes, anchoring.strategy, now).await;
        let anchors = anchors.map_err(|error| error.to_string())?;
        let writes = (from..).zip(&anchors).map(|(number, anchor)| SideWrite {
            table: anchors_of(table),
            key: key(caller, number),
            value: Some(json(anchor)),
        });
        let writes = writes.collect();
        let book = self.book(caller).await.map_err(text)?;
        let mut next = book.clone();
        match table {
            SideTable::AcapRecord => next.kept.anchored.records = from + count,
            _ => next.kept.anchored.events = from + count,
        }
        let done = next.kept.anchored.records >= records && next.kept.anchored.events >= events;
        self.keep(caller, book, next, writes).await.map_err(text)?;
        Ok(Some(done))
    }
}

/// Hashes of the documents that come next, not all of them perhaps.
fn next<T: Anchored + DeserializeOwned>(
    disk: &Disk,
    table: SideTable,
    caller: &AgentId,
    from: u64,
    end: u64,
) -> Result<Vec<ContentHash>, ReadError> {
    let (begin, to) = (key(caller, from), key(caller, end));
    let page = disk.range_within(table, &begin, Some(&to), LOG_BATCH_MAX, PAGE_LEN_MAX)?;
    if page.is_empty() {
        return Err(ReadError(format!("document {from} of {caller} is missing").into()));
    }
    page.into_iter().map(|(_, value)| Ok(disk.parse::<T>(&value)?.record_hash())).collect()
}

/// What is asked of the log: that its tree of `size` leaves continues that of `first`, or holds leaf `leaf`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    size: Option<u64>,
    first: Option<u64>,
    leaf: Option<u64>,
}

fn told(result: Result<Value, LogError>) -> Result<(StatusCode, Value), Denial> {
    match result {
        Ok(body) => Ok((StatusCode::OK, body)),
        Err(error) => Err(Denial::new(StatusCode::UNPROCESSABLE_ENTITY, "log", error.to_string())),
    }
}

fn none() -> Denial {
    Denial::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "this node has no log of consent, or nothing in it",
    )
}

/// The last head of the log, or that of `size` leaves if one was signed. Of a log everybody may ask.
pub(super) async fn head(State(surface): State<Surface>, Query(asked): Query<Asked>) -> Response {
    let Some(log) = surface.acap.anchoring.as_ref().map(|anchoring| anchoring.log.clone()) else {
        return answer(Err(none()));
    };
    let found = tokio::task::spawn_blocking(move || match asked.size {
        Some(size) => log.head_at(size),
        None => Ok(log.head()),
    });
    answer(match found.await {
        Ok(Ok(Some(head))) => told(Ok(object!({ "head": head }))),
        Ok(Ok(None)) => Err(none()),
        Ok(Err(error)) => told(Err(error)),
        Err(_) => Err(Denial::unavailable()),
    })
}

/// A proof: of inclusion of `leaf`, or of consistency from `first`, in the tree of `size`, by default the last.
pub(super) async fn proof(State(surface): State<Surface>, Query(asked): Query<Asked>) -> Response {
    let Some(log) = surface.acap.anchoring.as_ref().map(|anchoring| anchoring.log.clone()) else {
        return answer(Err(none()));
    };
    let found = tokio::task::spawn_blocking(move || {
        let Some(last) = log.head() else { return Err(none()) };
        let size = asked.size.unwrap_or(last.tree_size);
        match (asked.leaf, asked.first) {
            (Some(leaf), None) => told(log.inclusion(leaf, size).map(
                |path| object!({ "log_id": log.id(), "leaf": leaf, "size": size, "path": path }),
            )),
            (None, Some(first)) => told(log.consistency(first, size).map(
                |path| object!({ "log_id": log.id(), "first": first, "second": size, "path": path }),
            )),
            _ => {
                let what = "one of leaf and first is asked for";
                Err(Denial::new(StatusCode::BAD_REQUEST, "malformed", what))
            }
        }
    });
    answer(found.await.unwrap_or_else(|_| Err(Denial::unavailable())))
}
