//! Tasks that a caller follows: each is a track, and each call that asks for its events goes on there with
//! numbers of its own.

use super::{END, EVENT, priority, refusal, response, room};
use crate::a2a::stream::{Events, Told};
use crate::moq::{Link, LinkError, Outgoing};
use bytes::Bytes;
use futures_util::FutureExt as _;
use moq_transport::session::Subscribed;
use proto::store::ReadError;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;

/// How long a caller may take to subscribe to the track that it was told of.
const COMING_TIME_MAX: Duration = Duration::from_secs(10);
/// Events that are there at once go as one group, so many at most.
const GROUP_EVENTS_MAX: usize = 256;
/// Bytes after which no further event joins them.
const GROUP_LEN_MAX: usize = 1024 * 1024;
/// Groups of one attempt, which begins with a multiple of it.
const GROUPS_A_TRY: u64 = 1 << 32;

/// The events that one call asked for.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The number of its first group.
    pub(super) base: u64,
    /// The call's id.
    pub(super) id: Value,
    /// Taken already, and not told on the track.
    pub(super) first: Option<Told>,
    pub(super) events: Events,
    /// Its share of what one session may follow.
    pub(super) _place: Option<OwnedSemaphorePermit>,
}

impl Attempt {
    /// Cancel-safe.
    async fn next(&mut self) -> Result<Option<Told>, ReadError> {
        match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.events.next().await,
        }
    }

    fn line(&self, event: &Told) -> Bytes {
        let mut beside = Map::new();
        beside.insert(EVENT.to_owned(), event.number.into());
        if self.events.is_over() {
            beside.insert(END.to_owned(), true.into());
        }
        response(&self.id, &beside, &event.body).into()
    }
}

#[derive(Debug)]
enum Follower {
    /// It will come.
    Expected(Box<Attempt>, Instant),
    /// It is served, and takes newer attempts.
    Served(mpsc::Sender<Attempt>),
}

/// Who follows which task. There are no more than attempts have places.
#[derive(Debug, Default)]
pub(super) struct Followers {
    of: Mutex<HashMap<String, Follower>>,
    attempts: AtomicU64,
}

impl Followers {
    fn of(&self) -> MutexGuard<'_, HashMap<String, Follower>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the first group of a further attempt: no name and number is used twice.
    pub(super) fn base(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed).saturating_mul(GROUPS_A_TRY)
    }

    /// An attempt goes on the task's track: now if that is served, else when it is asked for.
    pub(super) fn expect(&self, task: &str, attempt: Attempt) {
        let mut of = self.of();
        let attempt = match of.get(task) {
            Some(Follower::Served(to)) => match to.try_send(attempt) {
                Ok(()) => return,
                Err(
                    mpsc::error::TrySendError::Full(attempt)
                    | mpsc::error::TrySendError::Closed(attempt),
                ) => attempt,
            },
            _ => attempt,
        };
        of.insert(task.to_owned(), Follower::Expected(Box::new(attempt), Instant::now()));
    }

    /// The attempt that waits for this track to be asked for.
    pub(super) fn expected(&self, task: &str) -> Option<Attempt> {
        let mut of = self.of();
        match of.remove(task)? {
            Follower::Expected(attempt, _) => Some(*attempt),
            served @ Follower::Served(_) => {
                of.insert(task.to_owned(), served);
                None
            }
        }
    }

    /// Forgets those that did not come.
    pub(super) fn sweep(&self) {
        self.of().retain(|_, follower| match follower {
            Follower::Expected(_, since) => since.elapsed() < COMING_TIME_MAX,
            Follower::Served(_) => true,
        });
    }

    /// Serves the track of a task until that ends, or the caller wants no more.
    pub(super) async fn serve(
        &self,
        link: &Link,
        task: &str,
        attempt: Attempt,
        subscribed: Subscribed,
    ) {
        let Ok((outgoing, serve)) = Outgoing::accept(subscribed) else { return };
        let (to, mut newer) = mpsc::channel(1);
        self.of().insert(task.to_owned(), Follower::Served(to.clone()));
        {
            let mut serve = pin!(serve);
            let gone = tokio::select! {
                _ = &mut serve => true,
                told = tell(link, outgoing, attempt, &mut newer) => {
                    if let Err(error) = told {
                        tracing::debug!(task, %error, "a task is not followed any more over MOQT");
                    }
                    false
                }
            };
            if !gone {
                let _ = serve.await; // what was written is still to be sent
            }
        }
        let mut of = self.of();
        let ours =
            |found: &Follower| matches!(found, Follower::Served(now) if now.same_channel(&to));
        if of.get(task).is_some_and(ours) {
            of.remove(task);
        }
        // What came meanwhile waits for the track to be asked for anew.
        while let Ok(attempt) = newer.try_recv() {
            of.insert(task.to_owned(), Follower::Expected(Box::new(attempt), Instant::now()));
        }
    }
}

/// Publishes events as they come. What is there at once goes together: a library that has not begun to read
/// keeps few groups, and any number of objects.
async fn tell(
    link: &Link,
    mut outgoing: Outgoing,
    mut attempt: Attempt,
    newer: &mut mpsc::Receiver<Attempt>,
) -> Result<(), LinkError> {
    let mut group = attempt.base;
    loop {
        let mut event = tokio::select! {
            biased;
            Some(newer) = newer.recv() => {
                group = newer.base;
                attempt = newer;
                continue;
            }
            event = attempt.next() => event,
        };
        let (mut lines, mut len) = (Vec::<Bytes>::new(), 0);
        let over = loop {
            let over = match event {
                Ok(Some(told)) => {
                    let line = attempt.line(&told);
                    len += line.len();
                    lines.push(line);
                    attempt.events.is_over()
                }
                Ok(None) => true,
                Err(error) => {
                    lines.push(refusal(&attempt.id, &error.into()).into());
                    true
                }
            };
            if over || lines.len() >= GROUP_EVENTS_MAX || len >= GROUP_LEN_MAX {
                break over;
            }
            match attempt.next().now_or_never() {
                Some(next) => event = next,
                None => break false,
            }
        };
        if !lines.is_empty() {
            room(link).await?;
            outgoing.push_all(group, priority::TASK, lines).await?;
            group += 1;
        }
        if over {
            return Ok(());
        }
    }
}
