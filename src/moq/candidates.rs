//! Which of the sessions that are announced as one peer's are heard.
//!
//! Anybody at a relay can announce in any name, and a relay goes on announcing a node that died until it notices.
//! So each gets a turn, a few at a time, and the one that says a good hello ends those before it.

use proto::track::Namespace;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Sessions of one peer that are heard at a time.
const HEARD_MAX: usize = 3;
/// Sessions of one peer that are announced, and not heard for now; of more one is forgotten.
const WAITING_MAX: usize = 32;
/// Tries after which one may be forgotten for another.
const FAILED_OFTEN: u32 = 4;
/// How long until one is tried again; each further time twice as long.
const AGAIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Waiting {
    of: Namespace,
    due: Instant,
}

/// The sessions announced as one peer's, for one kind of part.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    waiting: Vec<Waiting>,
    heard: HashMap<Namespace, AbortHandle>,
    tries: HashMap<Namespace, u32>,
    good: Option<Namespace>,
}

impl Candidates {
    /// One is announced.
    pub(super) fn add(&mut self, of: Namespace) {
        if self.tries.contains_key(&of) {
            return;
        }
        if self.waiting.len() >= WAITING_MAX {
            let tries = |at: &usize| {
                self.waiting.get(*at).and_then(|waiting| self.tries.get(&waiting.of)).copied()
            };
            // One that failed often, or else the new one: it is of those who announce too many.
            let often = |at: &usize| tries(at).is_some_and(|tries| tries >= FAILED_OFTEN);
            let at = (0..self.waiting.len()).filter(often).max_by_key(tries);
            let forgotten = match at {
                Some(at) => self.waiting.swap_remove(at).of,
                None => of.clone(),
            };
            tracing::warn!(peer = %forgotten.publisher, epoch = %forgotten.epoch, "too many sessions announced in its name: one is forgotten");
            if at.is_none() {
                return;
            }
            self.tries.remove(&forgotten);
        }
        self.tries.insert(of.clone(), 0);
        self.waiting.push(Waiting { of, due: Instant::now() });
    }

    /// One is announced no more.
    pub(super) fn remove(&mut self, of: &Namespace) {
        self.tries.remove(of);
        self.waiting.retain(|waiting| waiting.of != *of);
        if let Some(listen) = self.heard.remove(of) {
            listen.abort();
        }
        if self.good.as_ref() == Some(of) {
            self.good = None;
        }
    }

    /// One is the peer's: those before it are over.
    pub(super) fn good(&mut self, of: Namespace) {
        if !self.heard.contains_key(&of)
            || self.good.as_ref().is_some_and(|good| good.epoch >= of.epoch)
        {
            return;
        }
        self.tries.insert(of.clone(), 0);
        if let Some(before) = self.good.replace(of) {
            self.remove(&before);
        }
    }

    /// One is not heard any more. It is tried again, as long as it is announced.
    pub(super) fn ended(&mut self, of: &Namespace) {
        if self.heard.remove(of).is_none() {
            return;
        }
        if let Some(tries) = self.tries.get_mut(of) {
            let wait = AGAIN.saturating_mul(1 << (*tries).min(16)).min(AGAIN_MAX);
            *tries = tries.saturating_add(1);
            self.waiting.push(Waiting { of: of.clone(), due: Instant::now() + wait });
        }
    }

    /// When the next may be tried.
    pub(super) fn due(&self) -> Option<Instant> {
        let room = self.heard.len() < HEARD_MAX;
        self.waiting.iter().map(|waiting| waiting.due).min().filter(|_| room)
    }

    /// The one to hear next, if there is room: who has waited longest, and of several the latest session.
    pub(super) fn take(&mut self, now: Instant) -> Option<Namespace> {
        if self.heard.len() >= HEARD_MAX {
            return None;
        }
        let due = self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.due <= now);
        let first = due.min_by_key(|(_, waiting)| (waiting.due, Reverse(waiting.of.epoch)));
        let (at, _) = first?;
        Some(self.waiting.swap_remove(at).of)
    }

    /// That one is heard now.
    pub(super) fn listens(&mut self, of: Namespace, listen: AbortHandle) {
        self.heard.insert(of, listen);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.heard.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::id::AgentId;
    use proto::track::{Epoch, Part};

    fn session(session: u64) -> Namespace {
        let publisher = AgentId::new("spiffe://example.org/a").unwrap();
        Namespace { publisher, epoch: Epoch { boot: 1, session }, part: Part::All }
    }

    fn hear_all(candidates: &mut Candidates) -> Vec<u64> {
        let mut heard = Vec::new();
        while let Some(of) = candidates.take(Instant::now()) {
            heard.push(of.epoch.session);
            let task = tokio::spawn(std::future::pending::<()>());
            candidates.listens(of, task.abort_handle());
        }
        heard
    }

    #[tokio::test(start_paused = true)]
    async fn bd1_strangers_in_a_peers_name_do_not_keep_it_out() {
        let mut candidates = Candidates::default();
        for of in [10, 11, 12, 13, 14, 5] {
            candidates.add(session(of));
        }
        // The latest first. None of them says a good hello, and each in turn makes room.
        assert_eq!(hear_all(&mut candidates), [14, 13, 12]);
        for of in [14, 13, 12] {
            candidates.ended(&session(of));
        }
        assert_eq!(hear_all(&mut candidates), [11, 10, 5], "who was not tried comes first");
        candidates.good(session(5));
        for of in [11, 10] {
            candidates.ended(&session(of));
        }
        tokio::time::advance(AGAIN).await;
        assert_eq!(hear_all(&mut candidates), [14, 13]);
        assert!(candidates.heard.contains_key(&session(5)), "what is good stays");
        // New names, however late their sessions, do not go before who waits.
        candidates.ended(&session(5));
        tokio::time::advance(AGAIN + Duration::from_millis(1)).await;
        for of in [14, 13] {
            candidates.ended(&session(of));
        }
        for of in 50..60 {
            candidates.add(session(of));
        }
        assert_eq!(hear_all(&mut candidates), [12, 11, 10], "they were there before");
        for of in [12, 11] {
            candidates.ended(&session(of));
        }
        assert_eq!(hear_all(&mut candidates), [5, 59], "and so was this");
        for of in 100..1_000 {
            candidates.add(session(of));
        }
        assert!(
            candidates.waiting.len() <= WAITING_MAX
                && candidates.tries.len() <= WAITING_MAX + HEARD_MAX
        );
        assert!(candidates.heard.contains_key(&session(5)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_good_ends_those_before_it() {
        let mut candidates = Candidates::default();
        for of in [1, 2, 3] {
            candidates.add(session(of));
            hear_all(&mut candidates);
            candidates.good(session(of));
        }
        assert_eq!(candidates.heard.len(), 1);
        candidates.add(session(4));
        assert_eq!(hear_all(&mut candidates), [4]);
        candidates.remove(&session(4));
        candidates.ended(&session(3));
        tokio::time::advance(AGAIN).await;
        assert_eq!(hear_all(&mut candidates), [3], "it is heard anew while it is announced");
        candidates.remove(&session(3));
        assert!(candidates.is_empty() && candidates.tries.is_empty());
    }
}
