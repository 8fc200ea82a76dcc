//! Which of the sessions that are announced as one peer's are heard.
//!
//! Anybody at a relay can announce in any name, and a relay goes on announcing a node that died until it notices.
//! So each gets a turn, a few at a time, and the one that says a good hello ends those before it.

use proto::track::Namespace;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Sessions of one peer that are heard at a time.
const HEARD_MAX: usize = 3;
/// Sessions of one peer that are announced, and are tried one after the other; further ones stand in line.
const WAITING_MAX: usize = 32;
/// Sessions of one peer that stand in line; a further one is forgotten until it is announced anew.
pub(super) const LINE_MAX: usize = 256;
/// How long until one is tried again; each further time twice as long.
const AGAIN: Duration = Duration::from_millis(100);
const AGAIN_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Waiting {
    of: Namespace,
    due: Instant,
}

/// Which time it is that a session is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(u64);

/// The sessions announced as one peer's, for one kind of part.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    waiting: Vec<Waiting>,
    heard: HashMap<Namespace, (Turn, AbortHandle)>,
    tries: HashMap<Namespace, u32>,
    line: VecDeque<Namespace>,
    turns: u64,
    good: Option<Namespace>,
}

impl Candidates {
    /// One is announced.
    pub(super) fn add(&mut self, of: Namespace) {
        if self.tries.contains_key(&of) || self.line.contains(&of) {
            return;
        }
        if self.waiting.len() < WAITING_MAX {
            self.enter(of);
        } else if self.line.len() < LINE_MAX {
            self.line.push_back(of);
        } else {
            tracing::warn!(peer = %of.publisher, epoch = %of.epoch, "too many sessions announced in its name: one is forgotten");
        }
    }

    fn enter(&mut self, of: Namespace) {
        self.tries.insert(of.clone(), 0);
        self.waiting.push(Waiting { of, due: Instant::now() });
    }

    /// Lets in who stands in line, while there is room.
    fn advance(&mut self) {
        while self.waiting.len() < WAITING_MAX
            && let Some(next) = self.line.pop_front()
        {
            self.enter(next);
        }
    }

    /// One is announced no more.
    pub(super) fn remove(&mut self, of: &Namespace) {
        self.tries.remove(of);
        self.waiting.retain(|waiting| waiting.of != *of);
        self.line.retain(|next| next != of);
        if let Some((_, listen)) = self.heard.remove(of) {
            listen.abort();
        }
        if self.good.as_ref() == Some(of) {
            self.good = None;
        }
        self.advance();
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

    /// One is not heard any more, in that turn of it. It is tried again, as long as it is announced, after those that
    /// stand in line if it is not known to be the peer's.
    pub(super) fn ended(&mut self, of: &Namespace, turn: Turn) {
        if self.heard.get(of).is_none_or(|(heard, _)| *heard != turn) {
            return; // it was announced anew since, and is heard again
        }
        self.heard.remove(of);
        if self.good.as_ref() != Some(of)
            && let Some(next) = self.line.pop_front()
        {
            self.tries.remove(of);
            self.line.push_back(of.clone());
            return self.enter(next);
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

    /// Those that wait for another turn may have it now: what was missing is there.
    pub(super) fn hurry(&mut self) {
        let now = Instant::now();
        self.waiting.iter_mut().for_each(|waiting| waiting.due = waiting.due.min(now));
    }

    /// The one to hear next, if there is room: who has waited longest, and of several the latest session.
    pub(super) fn take(&mut self, now: Instant) -> Option<(Namespace, Turn)> {
        if self.heard.len() >= HEARD_MAX {
            return None;
        }
        let due = self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.due <= now);
        let first = due.min_by_key(|(_, waiting)| (waiting.due, Reverse(waiting.of.epoch)));
        let (at, _) = first?;
        let of = self.waiting.swap_remove(at).of;
        self.advance();
        self.turns += 1;
        Some((of, Turn(self.turns)))
    }

    /// That one is heard now.
    pub(super) fn listens(&mut self, of: Namespace, turn: Turn, listen: AbortHandle) {
        self.heard.insert(of, (turn, listen));
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
        while let Some((of, turn)) = candidates.take(Instant::now()) {
            heard.push(of.epoch.session);
            let task = tokio::spawn(std::future::pending::<()>());
            candidates.listens(of, turn, task.abort_handle());
        }
        heard
    }

    fn end(candidates: &mut Candidates, of: Namespace) {
        let (turn, _) = candidates.heard[&of];
        candidates.ended(&of, turn);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_said_of_a_turn_that_is_over_does_not_end_the_next() {
        let mut candidates = Candidates::default();
        candidates.add(session(1));
        hear_all(&mut candidates);
        let (first, _) = candidates.heard[&session(1)];
        candidates.remove(&session(1));
        candidates.add(session(1));
        assert_eq!(hear_all(&mut candidates), [1]);
        candidates.ended(&session(1), first);
        assert!(candidates.heard.contains_key(&session(1)), "it is heard");
        end(&mut candidates, session(1));
        assert!(candidates.heard.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn bd1_each_of_many_sessions_gets_a_turn() {
        let mut candidates = Candidates::default();
        let all = WAITING_MAX + LINE_MAX;
        for of in 1..=all as u64 + 10 {
            candidates.add(session(of));
        }
        assert_eq!((candidates.waiting.len(), candidates.line.len()), (WAITING_MAX, LINE_MAX));
        // Most do not end well, and one is never heard enough to know.
        let (mut seen, mut rounds) = (std::collections::HashSet::new(), 0);
        while seen.len() < all {
            for of in hear_all(&mut candidates) {
                seen.insert(of);
                end(&mut candidates, session(of));
            }
            rounds += 1;
            assert!(rounds < 2 * all, "{} of {all} had a turn", seen.len());
            tokio::time::advance(Duration::from_secs(15)).await;
        }
        assert_eq!(seen.len(), all);
        // Who is good stays before all of them.
        candidates.remove(&session(1));
        candidates.add(session(2_000));
        while !candidates.heard.contains_key(&session(2_000)) {
            for of in hear_all(&mut candidates).into_iter().filter(|of| *of != 2_000) {
                end(&mut candidates, session(of));
            }
            tokio::time::advance(Duration::from_secs(15)).await;
        }
        candidates.good(session(2_000));
        end(&mut candidates, session(2_000));
        tokio::time::advance(AGAIN_MAX).await;
        assert!(candidates.waiting.iter().any(|waiting| waiting.of == session(2_000)));
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
            end(&mut candidates, session(of));
        }
        assert_eq!(hear_all(&mut candidates), [11, 10, 5], "who was not tried comes first");
        candidates.good(session(5));
        for of in [11, 10] {
            end(&mut candidates, session(of));
        }
        tokio::time::advance(AGAIN).await;
        assert_eq!(hear_all(&mut candidates), [14, 13]);
        assert!(candidates.heard.contains_key(&session(5)), "what is good stays");
        // New names, however late their sessions, do not go before who waits.
        end(&mut candidates, session(5));
        tokio::time::advance(AGAIN + Duration::from_millis(1)).await;
        for of in [14, 13] {
            end(&mut candidates, session(of));
        }
        for of in 50..60 {
            candidates.add(session(of));
        }
        assert_eq!(hear_all(&mut candidates), [12, 11, 10], "they were there before");
        for of in [12, 11] {
            end(&mut candidates, session(of));
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
    async fn who_has_something_new_to_show_has_a_turn_at_once() {
        let mut candidates = Candidates::default();
        candidates.add(session(1));
        for _ in 0..5 {
            hear_all(&mut candidates);
            end(&mut candidates, session(1));
            tokio::time::advance(AGAIN_MAX).await;
        }
        hear_all(&mut candidates);
        end(&mut candidates, session(1));
        assert!(hear_all(&mut candidates).is_empty());
        candidates.hurry();
        assert_eq!(hear_all(&mut candidates), [1]);
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
        end(&mut candidates, session(3));
        tokio::time::advance(AGAIN).await;
        assert_eq!(hear_all(&mut candidates), [3], "it is heard anew while it is announced");
        candidates.remove(&session(3));
        assert!(candidates.is_empty() && candidates.tries.is_empty());
    }
}
