//! Tasks that a caller follows: each call that asks for the events of one gets a track of its own.

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
use tokio::sync::OwnedSemaphorePermit;
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

/// Calls whose tracks are not asked for yet, by the names of these. There are no more than attempts have places.
#[derive(Debug, Default)]
pub(super) struct Followers {
    expected: Mutex<HashMap<String, (Attempt, Instant)>>,
    attempts: AtomicU64,
}

impl Followers {
    fn of(&self) -> MutexGuard<'_, HashMap<String, (Attempt, Instant)>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the first group of a further attempt: no name and number is used twice.
    pub(super) fn base(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed).saturating_mul(GROUPS_A_TRY)
    }

    /// The events of an attempt wait for their track to be asked for. Its name has the task's and the attempt's own:
    /// a further call for the same task takes nothing from those before it.
    pub(super) fn expect(&self, task: &str, attempt: Attempt) -> String {
        let name = format!("{task}/{}", attempt.base / GROUPS_A_TRY);
        self.of().insert(name.clone(), (attempt, Instant::now()));
        name
    }

    /// The attempt that waits for the track of this name to be asked for.
    pub(super) fn expected(&self, name: &str) -> Option<Attempt> {
        self.of().remove(name).map(|(attempt, _)| attempt)
    }

    /// Forgets those that did not come.
    pub(super) fn sweep(&self) {
        self.of().retain(|_, (_, since)| since.elapsed() < COMING_TIME_MAX);
    }
}

/// Serves a track until it ends, or the caller wants no more.
pub(super) async fn serve(link: &Link, name: &str, attempt: Attempt, subscribed: Subscribed) {
    let Ok((outgoing, serve)) = Outgoing::accept(subscribed) else { return };
    let mut serve = pin!(serve);
    tokio::select! {
        _ = &mut serve => return,
        told = tell(link, outgoing, attempt) => {
            if let Err(error) = told {
                tracing::debug!(name, %error, "a task is not followed any more over MOQT");
            }
        }
    }
    let _ = serve.await; // what was written is still to be sent
}

/// Publishes events as they come. What is there at once goes together: a library that has not begun to read
/// keeps few groups, and any number of objects.
async fn tell(link: &Link, mut outgoing: Outgoing, mut attempt: Attempt) -> Result<(), LinkError> {
    let mut group = attempt.base;
    loop {
        let mut event = attempt.next().await;
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
