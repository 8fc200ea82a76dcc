//! Tracks: groups that we write, and groups that come.

use bytes::{Bytes, BytesMut};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use moq_transport::message::PublishDoneCode;
use moq_transport::serve::{
    ServeError, Subgroup, SubgroupObjectReader, SubgroupReader, SubgroupWriter, SubgroupsReader,
    SubgroupsWriter, Track, TrackReader, TrackReaderMode,
};
use moq_transport::session::{SessionError, Subscribe, Subscribed};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::{ANSWER_TIME_MAX, GROUP_TIME_MAX, GROUPS_READ_MAX};

/// Why a track does not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrackError {
    /// An object is over the limit.
    #[error("an object of more than {max} bytes")]
    TooLong { max: usize },
    /// A group has more than it may.
    #[error("a second object in a group of one")]
    Second,
    /// It is not in groups and subgroups, but in datagrams.
    #[error("the track comes in datagrams")]
    Datagrams,
    /// The publisher ended it, or the session ended.
    #[error("the track ended: {0}")]
    Ended(#[from] ServeError),
}

/// The id of the next group of a track. What was published under a name stays that for all who have it, as relays do:
/// another subscription goes on where the one before it was (draft-ietf-moq-transport-18, objects are immutable).
pub(crate) type Next = Arc<AtomicU64>;

/// A track that one subscription is served.
///
/// `moq-transport` keeps no more than 8 groups before it has begun to serve, and drops older ones without a
/// word. So who writes the first group waits until it is taken. On the other side the same holds until the
/// first group is read: what must not be lost there has to wait for an answer to it.
pub(crate) struct Outgoing {
    groups: SubgroupsWriter,
    next: Next,
    taken: bool,
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing").field("next", &self.next).finish_non_exhaustive()
    }
}

/// How long a track of one object stays open.
const SHOWN_TIME: Duration = Duration::from_secs(2);
/// How long between two looks whether the first group is taken.
const TAKEN_LOOK: Duration = Duration::from_millis(1);

impl Outgoing {
    /// Accepts a subscription. The second value serves it, and ends when it does.
    ///
    /// # Errors
    /// [`TrackError`].
    pub(crate) fn accept(
        subscribed: Subscribed,
    ) -> Result<(Self, impl Future<Output = Result<(), SessionError>> + Send), TrackError> {
        Self::accept_from(subscribed, Next::default())
    }

    /// As [`Self::accept`], of a track that may have been published before.
    ///
    /// # Errors
    /// [`TrackError`].
    pub(crate) fn accept_from(
        subscribed: Subscribed,
        next: Next,
    ) -> Result<(Self, impl Future<Output = Result<(), SessionError>> + Send), TrackError> {
        let info = &subscribed.info;
        let track = Track::new(info.track_namespace.clone(), info.track_name.clone());
        let (writer, reader) = track.produce();
        let groups = writer.subgroups()?;
        // Of what was published before nothing is kept: all that is written now is for the subscriber.
        let serve = subscribed.serve_with_largest_location(reader, None);
        Ok((Self { groups, next, taken: false }, serve))
    }

    /// Publishes one object as a group of its own; its id is told.
    ///
    /// # Errors
    /// [`TrackError`]: nobody is there any more.
    pub(crate) async fn push(&mut self, priority: u8, object: Bytes) -> Result<u64, TrackError> {
        self.push_as(self.take_id(), priority, object).await
    }

    /// As [`Self::push`], as the group `id`.
    ///
    /// # Errors
    /// [`TrackError`].
    pub(crate) async fn push_as(
        &mut self,
        id: u64,
        priority: u8,
        object: Bytes,
    ) -> Result<u64, TrackError> {
        self.push_all(id, priority, [object]).await
    }

    /// As [`Self::push_as`], several objects, one after the other.
    ///
    /// # Errors
    /// [`TrackError`].
    pub(crate) async fn push_all(
        &mut self,
        id: u64,
        priority: u8,
        objects: impl IntoIterator<Item = Bytes> + Send,
    ) -> Result<u64, TrackError> {
        let mut group = self.begin(id, priority)?;
        let info = group.info.clone();
        for object in objects {
            group.write(object)?;
        }
        group.finish()?;
        let until = Instant::now() + ANSWER_TIME_MAX;
        // Whoever has it still to send holds a copy.
        while !self.taken && Arc::strong_count(&info) > 1 {
            if Instant::now() > until {
                return Err(ServeError::Timeout.into());
            }
            tokio::time::sleep(TAKEN_LOOK).await;
        }
        self.taken = true;
        Ok(id)
    }

    /// Publishes the one object of a track, as the group `id`, and ends the track a moment later: a subscription
    /// that ends before its answer was read is taken for one that was refused.
    ///
    /// # Errors
    /// [`TrackError`].
    pub(crate) async fn show(
        mut self,
        id: u64,
        priority: u8,
        object: Bytes,
    ) -> Result<(), TrackError> {
        self.push_as(id, priority, object).await?;
        tokio::time::sleep(SHOWN_TIME).await;
        Ok(())
    }

    /// Publishes an object as the first of a group that stays open until the value is dropped.
    ///
    /// # Errors
    /// [`TrackError`].
    pub(crate) fn open(
        &mut self,
        priority: u8,
        object: Bytes,
    ) -> Result<SubgroupWriter, TrackError> {
        let mut group = self.begin(self.take_id(), priority)?;
        group.write(object)?;
        self.taken = true; // who comes later has it, too
        Ok(group)
    }

    /// Begins the group `id`, whose objects come one after the other.
    ///
    /// # Errors
    /// [`TrackError`].
    pub(crate) fn begin(&mut self, id: u64, priority: u8) -> Result<SubgroupWriter, TrackError> {
        let group = self.groups.create(Subgroup { group_id: id, subgroup_id: 0, priority })?;
        self.next.fetch_max(id.saturating_add(1), Ordering::AcqRel);
        Ok(group)
    }

    /// The id of the next group.
    pub(crate) fn next_id(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// The same, for nobody else.
    pub(crate) fn take_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::AcqRel)
    }
}

type Reading = Pin<Box<dyn Future<Output = Result<Option<(u64, Bytes)>, TrackError>> + Send>>;

/// A subscription of ours. It ends when this is dropped.
pub(crate) struct Incoming {
    subscribe: Subscribe,
    reader: Option<TrackReader>,
    groups: Option<SubgroupsReader>,
    reading: FuturesUnordered<Reading>,
    over: bool,
    len_max: usize,
    _slot: OwnedSemaphorePermit,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming").field("track", &self.subscribe.info).finish_non_exhaustive()
    }
}

impl Incoming {
    pub(super) fn new(
        subscribe: Subscribe,
        reader: TrackReader,
        slot: OwnedSemaphorePermit,
        len_max: usize,
    ) -> Self {
        Self {
            subscribe,
            reader: Some(reader),
            groups: None,
            reading: FuturesUnordered::new(),
            over: false,
            len_max,
            _slot: slot,
        }
    }

    /// The first object of the next group that is whole, with the group's id. Groups are read side by side, so
    /// that a lost packet of one holds up no other; they come in whatever order they are whole. A group that
    /// was cut is skipped. `None` when the publisher has ended the track. Cancel-safe.
    ///
    /// # Errors
    /// [`TrackError`].
    pub(crate) async fn next(&mut self) -> Result<Option<(u64, Bytes)>, TrackError> {
        loop {
            if self.over && self.reading.is_empty() {
                return Ok(None);
            }
            let (full, over) = (self.reading.len() >= GROUPS_READ_MAX, self.over);
            let len_max = self.len_max;
            tokio::select! {
                Some(read) = self.reading.next() => {
                    if let Some(object) = read? {
                        return Ok(Some(object));
                    }
                }
                group = next_group(&mut self.reader, &mut self.groups), if !full && !over => {
                    match group? {
                        None => self.over = true,
                        Some(group) => self.reading.push(Box::pin(only(group, len_max))),
                    }
                }
            }
        }
    }

    /// The next group, of which the objects are read one after the other with [`object`]. Cancel-safe. Not to
    /// be mixed with [`Self::next`].
    ///
    /// # Errors
    /// [`TrackError`].
    pub(crate) async fn group(&mut self) -> Result<Option<SubgroupReader>, TrackError> {
        next_group(&mut self.reader, &mut self.groups).await
    }

    /// What its streams are known by.
    pub(crate) fn alias(&self) -> Option<u64> {
        self.subscribe.subscribe_ok().map(|ok| ok.track_alias)
    }

    /// How many groups the publisher says it published, once it has ended the track.
    pub(crate) fn published(&self) -> Option<u64> {
        self.subscribe.publish_done().map(|done| done.stream_count)
    }

    /// Why the publisher ended it, once it did.
    pub(crate) fn closed(&self) -> impl Future<Output = Result<(), ServeError>> + Send + '_ {
        self.subscribe.closed()
    }
}

async fn next_group(
    reader: &mut Option<TrackReader>,
    groups: &mut Option<SubgroupsReader>,
) -> Result<Option<SubgroupReader>, TrackError> {
    if let Some(track) = reader {
        match track.mode().await {
            Ok(TrackReaderMode::Subgroups(found)) => *groups = Some(found),
            Ok(_) => return Err(TrackError::Datagrams),
            Err(error) => return ended(error),
        }
        *reader = None;
    }
    let Some(groups) = groups else { return Ok(None) };
    groups.next().await.or_else(ended)
}

/// The end of a track is none of its failures.
fn ended<T>(error: ServeError) -> Result<Option<T>, TrackError> {
    const TRACK_ENDED: u64 = PublishDoneCode::TrackEnded as u64;
    match error {
        ServeError::Done | ServeError::Closed(TRACK_ENDED) => Ok(None),
        error => Err(error.into()),
    }
}

/// The next object of a group, at most `len_max` bytes of it.
///
/// # Errors
/// [`TrackError`].
pub(crate) async fn object(
    group: &mut SubgroupReader,
    len_max: usize,
) -> Result<Option<Bytes>, TrackError> {
    let Some(object) = group.next().await? else { return Ok(None) };
    if object.size > len_max {
        return Err(TrackError::TooLong { max: len_max });
    }
    payload(object).await.map(Some)
}

/// The payload of an object, which is as long as it says.
///
/// # Errors
/// [`TrackError`].
pub(crate) async fn payload(mut object: SubgroupObjectReader) -> Result<Bytes, TrackError> {
    let mut whole = match object.read().await? {
        None if object.size == 0 => return Ok(Bytes::new()),
        None => return Err(ServeError::Size.into()),
        Some(first) if first.len() == object.size => return Ok(first),
        Some(first) => BytesMut::from(first),
    };
    while let Some(chunk) = object.read().await? {
        whole.extend_from_slice(&chunk);
    }
    if whole.len() != object.size {
        return Err(ServeError::Size.into());
    }
    Ok(whole.freeze())
}

async fn only(
    mut group: SubgroupReader,
    len_max: usize,
) -> Result<Option<(u64, Bytes)>, TrackError> {
    let id = group.info.group_id;
    let read = tokio::time::timeout(GROUP_TIME_MAX, object(&mut group, len_max)).await;
    let Ok(read) = read else {
        tracing::warn!(track = %group.info.track.name, group = id, "given up: not whole within {} s", GROUP_TIME_MAX.as_secs());
        return Ok(None);
    };
    match read {
        Ok(Some(object)) => Ok(Some((id, object))),
        Ok(None) | Err(TrackError::Ended(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
