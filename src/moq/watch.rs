//! Tracks for watchers: escalations, status, events and metrics of the node, and its usage policy.
//!
//! A group begins with what somebody who has just come needs, such as the inbox as it is, and then has what is new.
//! It stays open until the next one, since relays give late subscribers the group that is open. Nothing here
//! stands in for the inbox, which is on disk: a watcher that falls behind gets the inbox again.

use super::Link;
use super::backend::Kept;
use super::custody::Shared;
use super::track::{Outgoing, TrackError};
use crate::acap::{Acap, Policies};
use crate::store::Storage;
use bytes::Bytes;
use moq_transport::serve::{SubgroupInfo, SubgroupWriter};
use proto::batch::{Audience, Content};
use proto::event::Event;
use proto::id::AgentId;
use proto::limits::{BATCH_COUNT_MAX, FRAME_LEN_TARGET, ITEM_LEN_MAX};
use proto::record::Escalation;
use proto::store::{ReadError, Table};
use proto::track::{Epoch, Part};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};
use tokio::time::Instant;

/// Tracks of one session that are served to watchers at a time.
pub(super) const WATCHERS_MAX: usize = 16;
/// Objects of one group; who comes late gets them all.
const GROUP_OBJECTS_MAX: usize = 64;
/// Events in one object.
const OBJECT_EVENTS_MAX: usize = 64;
/// Escalations of the inbox that a group begins with, oldest first. How many there are in all is told, too.
const INBOX_TOLD_MAX: usize = 1_024;
/// Bytes of them; the first is told in any case.
const INBOX_TOLD_LEN_MAX: usize = 1024 * 1024;
/// Bytes of a group after which the next begins: with the inbox and what is told at once below the 8 MiB that one of our
/// readers takes of a stream.
const GROUP_LEN_MAX: usize = 3 * 1024 * 1024;
/// Bytes of events after which no further one is told at once.
const TOLD_LEN_MAX: usize = 1024 * 1024;
/// Peers of which a status tells; how many more there are is told.
const PEERS_TOLD_MAX: usize = 1_000;
/// Records of the store read at a time.
const PAGE: usize = 256;
/// How often status and metrics are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often they are published though they did not change.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// How long between two looks whether a group has been taken.
const TAKEN_LOOK: Duration = Duration::from_millis(10);

/// What of the node watchers are told of, beside what sessions know.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) store: Arc<dyn Storage>,
    /// Its peers, as configured.
    pub(crate) peers: Vec<AgentId>,
    /// Whose policy is told, if it has one.
    pub(crate) acap: Option<Arc<Acap>>,
}

/// What a track is of, if it is one for watchers.
pub(super) const fn content(track: &proto::track::Track) -> Option<Content> {
    use proto::track::Track;
    match track {
        Track::Escalations => Some(Content::Escalations),
        Track::Status => Some(Content::Status),
        Track::Events => Some(Content::Events),
        Track::Metrics => Some(Content::Metrics),
        Track::Policy => Some(Content::Policy),
        Track::To(_) | Track::Acks(_) | Track::Group(_) => None,
    }
}

/// Publishes for one subscription, until it ends or the node does.
pub(super) async fn publish(
    shared: &Shared,
    link: &Link,
    (epoch, content): (Epoch, Content),
    outgoing: Outgoing,
) -> Result<(), TrackError> {
    let mut told = Telling { shared, link, epoch, content, outgoing, group: None, len: 0 };
    match content {
        Content::Status | Content::Metrics => told.state().await,
        Content::Policy => told.policy().await,
        _ => told.events(shared.router.subscribe()).await,
    }
}

struct Telling<'a> {
    shared: &'a Shared,
    link: &'a Link,
    epoch: Epoch,
    content: Content,
    outgoing: Outgoing,
    group: Option<(SubgroupWriter, Arc<SubgroupInfo>, Kept)>,
    /// Bytes of it so far.
    len: usize,
}

impl Telling<'_> {
    /// Ends the group that is open, waits until the watcher has it, and begins the next: of a watcher that does
    /// not read, no more than one is kept.
    async fn begin(&mut self) -> Result<(), TrackError> {
        if let Some((group, info, _kept)) = self.group.take() {
            group.finish()?;
            // Whoever has it still to send holds a copy.
            while Arc::strong_count(&info) > 1 {
                tokio::time::sleep(TAKEN_LOOK).await;
            }
        }
        self.link.room().await;
        let group = self.outgoing.begin(self.outgoing.take_id(), self.content.priority())?;
        let info = group.info.clone();
        self.group = Some((group, info, self.link.keep_open()));
        self.len = 0;
        Ok(())
    }

    fn write(&mut self, items: Vec<Bytes>) -> Result<(), TrackError> {
        let Some((group, ..)) = &mut self.group else { return Ok(()) };
        let at = (self.epoch, Part::All);
        let sealed = self.shared.signatures.seal(at, Audience::Everyone, self.content, items);
        match sealed {
            Ok((_, object)) => {
                let len = object.len();
                group.write(object)?;
                self.len += len;
                self.shared.router.metrics.published(self.content.as_str(), len);
            }
            Err(error) => {
                tracing::error!(%error, "watchers are not told: it cannot be signed");
                return Ok(());
            }
        }
        Ok(())
    }

    /// Items in as many objects as they take.
    fn write_all(&mut self, items: impl IntoIterator<Item = Bytes>) -> Result<(), TrackError> {
        let (mut batch, mut len) = (Vec::new(), 0);
        for item in items {
            if !batch.is_empty()
                && (len + item.len() > FRAME_LEN_TARGET || batch.len() == BATCH_COUNT_MAX)
            {
                self.write(std::mem::take(&mut batch))?;
                len = 0;
            }
            len += item.len();
            batch.push(item);
        }
        if batch.is_empty() { Ok(()) } else { self.write(batch) }
    }

    async fn events(
        &mut self,
        mut events: broadcast::Receiver<Arc<Event>>,
    ) -> Result<(), TrackError> {
        loop {
            self.begin().await?;
            // What was filed before this is in the store. An escalation can be in both: its id tells.
            let first = match self.content {
                Content::Escalations => self.inbox().await,
                _ => vec![self.status()],
            };
            self.write_all(first.iter().map(text))?;
            for _ in 0..GROUP_OBJECTS_MAX {
                let Some((told, lost)) = self.next(&mut events).await else { return Ok(()) };
                if !told.is_empty() {
                    self.write_all(told)?;
                }
                if lost && self.content == Content::Escalations {
                    break; // the inbox has them
                }
                if self.len >= GROUP_LEN_MAX {
                    break;
                }
            }
        }
    }

    /// What happened since, and whether some of it was lost. None at the end of the node.
    async fn next(
        &self,
        events: &mut broadcast::Receiver<Arc<Event>>,
    ) -> Option<(Vec<Bytes>, bool)> {
        let mut told: Vec<Bytes> = Vec::new();
        let mut next = events.recv().await;
        loop {
            match next {
                Ok(event) if self.tells(&event) => {
                    let event = serde_json::to_value(&*event).unwrap_or_default();
                    told.push(text(&event));
                }
                Ok(_) => {}
                Err(RecvError::Lagged(lost)) => {
                    told.push(text(&json!({ "event": "lagged", "lost": lost })));
                    return Some((told, true));
                }
                Err(RecvError::Closed) => return None,
            }
            next = match events.try_recv() {
                Ok(event) if told.len() < OBJECT_EVENTS_MAX && len(&told) < TOLD_LEN_MAX => {
                    Ok(event)
                }
                // Not to leave one behind that was taken out.
                Ok(event) => {
                    if self.tells(&event) {
                        told.push(text(&serde_json::to_value(&*event).unwrap_or_default()));
                    }
                    return Some((told, false));
                }
                Err(TryRecvError::Lagged(lost)) => Err(RecvError::Lagged(lost)),
                Err(TryRecvError::Empty | TryRecvError::Closed) if told.is_empty() => {
                    events.recv().await
                }
                Err(TryRecvError::Empty | TryRecvError::Closed) => return Some((told, false)),
            };
        }
    }

    fn tells(&self, event: &Event) -> bool {
        self.content == Content::Events
            || matches!(event, Event::Escalated(_) | Event::Acknowledged { .. })
    }

    /// Publishes a state whenever it is another one, and from time to time.
    async fn state(&mut self) -> Result<(), TrackError> {
        let mut last: Option<(Vec<Bytes>, Instant)> = None;
        loop {
            let now = match self.content {
                Content::Status => vec![text(&self.status())],
                _ => lines(&self.shared.router.metrics.encode()),
            };
            let due = last.as_ref().is_none_or(|(last, at)| {
                at.elapsed() >= TELL_EVERY || (self.content == Content::Status && *last != now)
            });
            if due {
                self.begin().await?;
                self.write_all(now.iter().cloned())?;
                last = Some((now, Instant::now()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Publishes which policy is served, and each version after it; of several at once the last.
    async fn policy(&mut self) -> Result<(), TrackError> {
        let mut policies = self.shared.watched.acap.as_ref().map(Policies::of);
        loop {
            let policy = match &mut policies {
                Some(policies) => policies.next().await,
                None => Value::Null,
            };
            self.begin().await?;
            self.write(vec![text(&json!({ "event": "policy", "policy": policy }))])?;
            if policies.is_none() {
                return std::future::pending().await; // the group stays open
            }
        }
    }

    /// The inbox as it is: how many wait to be acknowledged, and the oldest of them.
    async fn inbox(&self) -> Vec<Value> {
        let store = self.shared.watched.store.clone();
        let read = tokio::task::spawn_blocking(move || open_escalations(&*store)).await;
        let (told, failed) = read.unwrap_or_default();
        let open = self.shared.router.metrics.escalations_open.get();
        let mut head = json!({ "event": "inbox", "open": open, "told": told.len() });
        if let (Some(head), Some(failed)) = (head.as_object_mut(), failed) {
            head.insert("error".to_owned(), failed.to_string().into());
        }
        std::iter::once(head).chain(told).collect()
    }

    fn status(&self) -> Value {
        let Shared { me, router, watched, boot, .. } = self.shared;
        let metrics = &router.metrics;
        let peers = watched.peers.iter().take(PEERS_TOLD_MAX);
        let peers: Vec<_> = peers
            .map(|id| json!({ "id": id, "connected": router.session_count(id) > 0 }))
            .collect();
        json!({
            "event": "status",
            "node": me,
            "starts": boot,
            "pending": metrics.pending.get(),
            "escalations_open": metrics.escalations_open.get(),
            "sessions": metrics.sessions.get(),
            "peers_left_off": watched.peers.len().saturating_sub(peers.len()),
            "peers": peers,
        })
    }
}

/// The oldest of the inbox that wait to be acknowledged, and why there are not more of them, if not for the limits.
fn open_escalations(store: &dyn Storage) -> (Vec<Value>, Option<ReadError>) {
    let (mut told, mut len) = (Vec::new(), 0);
    let mut from = Vec::new();
    loop {
        let page = match store.scan(Table::Escalation, &from, PAGE) {
            Ok(page) => page,
            Err(error) => return (told, Some(error)),
        };
        let Some((last, _)) = page.last() else { return (told, None) };
        from = last.to_vec();
        from.push(0);
        for (_, value) in &page {
            let Ok(escalation) = serde_json::from_slice::<Escalation>(value) else { continue };
            if escalation.acknowledged_at_ms.is_none() {
                let event = Event::Escalated(Box::new(escalation));
                let event = serde_json::to_value(&event).unwrap_or_default();
                len += text(&event).len();
                if len > INBOX_TOLD_LEN_MAX && !told.is_empty() {
                    return (told, None);
                }
                told.push(event);
                if told.len() == INBOX_TOLD_MAX {
                    return (told, None);
                }
            }
        }
    }
}

fn len(items: &[Bytes]) -> usize {
    items.iter().map(Bytes::len).sum()
}

fn text(value: &Value) -> Bytes {
    value.to_string().into_bytes().into()
}

/// A text in items of whole lines.
fn lines(text: &str) -> Vec<Bytes> {
    let mut items = Vec::new();
    let mut item = String::new();
    for line in text.split_inclusive('\n') {
        if !item.is_empty() && item.len() + line.len() > ITEM_LEN_MAX {
            items.push(std::mem::take(&mut item).into_bytes().into());
        }
        item.push_str(line);
    }
    items.push(item.into_bytes().into());
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bd1_a_long_text_is_cut_between_its_lines() {
        let text: String = (0..20_000).map(|n| format!("a_metric_total {n}\n")).collect();
        let items = lines(&text);
        assert!(items.len() > 1 && items.iter().all(|item| item.len() <= ITEM_LEN_MAX));
        assert!(items.iter().all(|item| item.ends_with(b"\n")));
        assert_eq!(items.concat(), text.as_bytes());
    }

    #[test]
    fn bd1_of_a_large_inbox_a_group_begins_with_what_one_stream_may_bring() {
        use crate::store::{FjallStore, StoreOptions};
        use proto::id::{GovernedKey, Kind, ObligationId};
        use proto::record::EscalationReason;
        use proto::safe_action::{SafeAction, SafeEffect};
        use proto::store::Write;
        let dir = tempfile::tempdir().unwrap();
        let long = |len: usize| "x".repeat(len);
        let me = AgentId::new("spiffe://example.org/a").unwrap();
        let store = FjallStore::open(dir.path(), &me, &StoreOptions::default()).unwrap();
        let target = AgentId::new(&format!("spiffe://example.org/{}", long(200))).unwrap();
        let escalation = |n: u64| {
            let id = ObligationId::new(&format!("{}{n}", long(200))).unwrap();
            Escalation {
                obligation_id: id.clone(),
                kind: Kind::new("anumati.consent").unwrap(),
                target: target.clone(),
                reason: EscalationReason::Unreachable,
                at_ms: n,
                deadline_at_ms: n,
                retries: 1,
                safe_action: SafeAction {
                    obligation_id: id,
                    target: target.clone(),
                    effect: SafeEffect::FailClosed { scope: GovernedKey::new(&long(200)).unwrap() },
                    rationale: proto::ack::Reason::new("x"),
                    sequence: None,
                },
                safe_action_applied: true,
                acknowledged_at_ms: None,
                delivered_at_ms: None,
                outlived: false,
            }
        };
        let writes: Vec<Write> = (0..INBOX_TOLD_MAX as u64 + 100)
            .map(|n| Write {
                table: Table::Escalation,
                key: Bytes::copy_from_slice(&n.to_be_bytes()),
                value: Some(serde_json::to_vec(&escalation(n)).unwrap().into()),
            })
            .collect();
        store.commit(&writes, true).unwrap();
        let (told, error) = open_escalations(&store);
        let bytes: usize = told.iter().map(|told| text(told).len()).sum();
        assert!(error.is_none() && bytes <= INBOX_TOLD_LEN_MAX, "{bytes} bytes");
        assert!(!told.is_empty() && told.len() < INBOX_TOLD_MAX, "{} of them", told.len());
        assert_eq!(told[0]["at_ms"], 0, "the oldest first");
    }
}
