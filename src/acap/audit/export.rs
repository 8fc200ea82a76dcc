//! Writing an export.

use super::{EXPORT_VERSION, Header, Line};
use crate::acap::log::{Log, LogError};
use proto::consent::{AdherenceEvent, Anchored, ConsentRecord, PolicyDocument, Stamp};
use proto::id::AgentId;
use proto::time::Time;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::io::{self, Write};

/// Writes an export, in the order its methods are called: policies, records, events, logs, end.
#[derive(Debug)]
pub struct Exporter<W> {
    to: W,
    lines: u64,
    hash: Sha256,
    /// Sizes of trees that anchors speak of, by log.
    sizes: BTreeSet<(String, u64)>,
}

#[derive(Serialize)]
struct Tagged<'a, T> {
    r#type: &'static str,
    document: &'a T,
}

impl<W: Write> Exporter<W> {
    /// Begins the export of a pair.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(to: W, caller: AgentId, callee: AgentId, now: Time) -> io::Result<Self> {
        let mut export = Self { to, lines: 0, hash: Sha256::new(), sizes: BTreeSet::new() };
        let exported_at = Stamp::from(now);
        let header = Header { version: EXPORT_VERSION, caller, callee, exported_at };
        export.line(&Line::Export(header))?;
        Ok(export)
    }

    /// Writes a version of the policy, the oldest first.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn policy(&mut self, document: &PolicyDocument) -> io::Result<()> {
        self.line(&Tagged { r#type: "policy", document })
    }

    /// Writes a consent record, the oldest first.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn record(&mut self, document: &ConsentRecord) -> io::Result<()> {
        self.anchored(document);
        self.line(&Tagged { r#type: "record", document })
    }

    /// Writes an adherence event, the oldest first.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn event(&mut self, document: &AdherenceEvent) -> io::Result<()> {
        self.anchored(document);
        self.line(&Tagged { r#type: "event", document })
    }

    /// Writes the heads of a log that anchors speak of, and its last, with the proofs that each continues the one
    /// before it.
    ///
    /// # Errors
    /// It cannot be written, or the log not read.
    pub fn log(&mut self, log: &Log) -> io::Result<()> {
        let other = |error: LogError| io::Error::other(error);
        let Some(last) = log.head() else { return Ok(()) };
        let id = log.id().as_str();
        let of_log = |(log, _): &&(String, u64)| log == id;
        let mut sizes: Vec<u64> = self.sizes.iter().filter(of_log).map(|(_, size)| *size).collect();
        if sizes.last() != Some(&last.tree_size) {
            sizes.push(last.tree_size);
        }
        let mut before = None;
        for second in sizes {
            if let Some(head) = log.head_at(second).map_err(other)? {
                self.line(&Line::TreeHead { head })?;
            }
            if let Some(first) = before.replace(second) {
                let path = log.consistency(first, second).map_err(other)?;
                self.line(&Line::Consistency { log_id: id.to_owned(), first, second, path })?;
            }
        }
        Ok(())
    }

    /// Ends the export.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn end(mut self) -> io::Result<W> {
        let digest = super::verify::digest(self.hash.clone());
        let end = Line::End { lines: self.lines, digest };
        self.line(&end)?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn anchored(&mut self, document: &impl Anchored) {
        let Some(anchor) = document.anchor() else { return };
        let size = anchor.extra.0.get("tree_head").and_then(|head| head.get("tree_size")?.as_u64());
        if let Some(size) = size {
            self.sizes.insert((anchor.ledger_id.to_string(), size));
        }
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        self.hash.update(&bytes);
        self.lines += 1;
        self.to.write_all(&bytes)
    }
}
