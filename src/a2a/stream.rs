//! Streams of one task's events (A2A §3.5.2).
//!
//! A stream is a cursor into the durable events and nothing else: each reads the same ones in the
//! same order, none holds up another or the task, and one that comes back with the number of the
//! last event it saw goes on from there.

use super::fault::Fault;
use super::record::{Record, beyond, event_key, json};
use super::tasks::{Live, Tasks, read};
use super::types::StreamResponse;
use crate::store::SideTable;
use proto::store::ReadError;
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Events read from the disk at once.
const PAGE: usize = 32;
/// Bytes of them.
const PAGE_LEN_MAX: usize = 256 * 1024;

/// One event, on its way to a client.
#[derive(Debug)]
pub(crate) struct Told {
    /// Its number, the cursor to go on from.
    pub(crate) number: u64,
    /// JSON of a `StreamResponse`.
    pub(crate) body: Vec<u8>,
}

/// Where a stream begins.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// With the whole task as it is.
    Now,
    /// With what came after this event.
    After(u64),
}

/// A stream.
#[derive(Debug)]
pub(crate) struct Events {
    tasks: Tasks,
    task: String,
    /// Number of the last event that was told.
    cursor: u64,
    /// Read from the disk, and not told yet.
    ready: std::collections::VecDeque<(Told, bool)>,
    /// Tells of new events; `None` when the task had ended at the start.
    told: Option<watch::Receiver<u64>>,
    over: bool,
    _place: OwnedSemaphorePermit,
}

impl Events {
    /// A stream of a task that goes on.
    pub(crate) fn of(
        tasks: Tasks,
        live: &Live,
        from: Start,
        place: OwnedSemaphorePermit,
    ) -> Result<Self, Fault> {
        let told = live.told(); // before the task is read, so that nothing falls between
        let record = tasks.record(live)?;
        let mut events = Self::new(tasks, live.id.clone(), Some(told), place);
        events.begin(from, record);
        Ok(events)
    }

    /// What is left of the events of a task that ended.
    pub(crate) fn of_ended(
        tasks: Tasks,
        record: Record,
        from: Start,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let mut events = Self::new(tasks, record.task.id.clone(), None, place);
        events.begin(from, record);
        events
    }

    fn new(
        tasks: Tasks,
        task: String,
        told: Option<watch::Receiver<u64>>,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let ready = std::collections::VecDeque::new();
        Self { tasks, task, cursor: 0, ready, told, over: false, _place: place }
    }

    fn begin(&mut self, from: Start, record: Record) {
        match from {
            Start::After(cursor) if cursor <= record.events => self.cursor = cursor,
            // A number we never gave is no cursor.
            Start::After(_) | Start::Now => self.whole(record),
        }
    }

    /// The whole task in place of the events that led to it.
    fn whole(&mut self, record: Record) {
        let last = record.state().is_terminal();
        self.cursor = record.events;
        let told = Told { number: record.events, body: json(&StreamResponse::Task(record.task)) };
        self.ready.push_back((told, last));
    }

    /// The task they are of.
    pub(crate) fn task(&self) -> &str {
        &self.task
    }

    /// Whether the last was told.
    pub(crate) const fn is_over(&self) -> bool {
        self.over
    }

    /// The next event, as soon as it is durable. `None` after the last. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Told>, ReadError> {
        loop {
            if self.over {
                return Ok(None);
            }
            if let Some((told, last)) = self.ready.pop_front() {
                self.over = last;
                return Ok(Some(told));
            }
            if let Some(told) = &mut self.told {
                told.mark_unchanged();
            }
            self.read()?;
            if !self.ready.is_empty() {
                continue;
            }
            match &mut self.told {
                // The sender goes with the task's end, which is durable before: look once more.
                Some(told) => {
                    if told.changed().await.is_err() {
                        self.told = None;
                    }
                }
                None => self.over = true,
            }
        }
    }

    fn read(&mut self) -> Result<(), ReadError> {
        let from = event_key(&self.task, self.cursor.saturating_add(1));
        let to = beyond(&self.task);
        let page = self.tasks.disk().range_within(
            SideTable::TaskEvent,
            &from,
            Some(&to),
            PAGE,
            PAGE_LEN_MAX,
        )?;
        if page.first().is_some_and(|(key, _)| *key != from) {
            // Some that it has not seen are forgotten.
            if let Some(record) = read(self.tasks.disk(), &self.task)? {
                self.whole(record);
            }
            return Ok(());
        }
        for (_, value) in page {
            let Some((last, body)) = value.split_first() else { continue };
            self.cursor += 1;
            self.ready.push_back((Told { number: self.cursor, body: body.to_vec() }, *last == 1));
        }
        Ok(())
    }
}
