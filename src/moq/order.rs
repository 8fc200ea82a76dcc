//! Messages that come each as a group of its own, in whatever order, put into the order of their ids.

use bytes::Bytes;
use std::collections::BTreeMap;

/// Messages of one track that are read or wait for an earlier one; with more the track is given up. Beyond what may
/// be on its way when a connection is held back: its streams, and [`BEHIND_MAX`].
pub(crate) const HELD_MAX: usize = 1_024;
/// Bytes of them: what a connection has in flight, what is held, and one message more.
pub(crate) const HELD_LEN_MAX: usize = 32 * 1024 * 1024;
/// Messages that wait, from which on the connection is held back: no further stream of it is accepted.
pub(crate) const BEHIND_MAX: usize = 256;
/// Bytes of them.
pub(crate) const BEHIND_LEN_MAX: usize = 8 * 1024 * 1024;

const _: () = assert!(BEHIND_MAX < HELD_MAX && BEHIND_LEN_MAX < HELD_LEN_MAX);

/// Why a track cannot be put in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OrderError {
    #[error("more than {max} messages wait for an earlier one, or are read")]
    Count { max: usize },
    #[error("more than {max} bytes of messages wait for an earlier one, or are read")]
    Len { max: usize },
    #[error("group {id} while {next} is awaited: {max} ahead is the limit")]
    Distance { id: u64, next: u64, max: usize },
}

/// A message that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    pub(crate) id: u64,
    /// Whether it is being read.
    pub(crate) begun: bool,
}

/// What has come of a track whose groups count from 0.
#[derive(Debug, Default)]
pub(crate) struct Order {
    next: u64,
    whole: BTreeMap<u64, Bytes>,
    /// Groups that are read, and how many streams of each.
    begun: BTreeMap<u64, usize>,
    reads: usize,
    /// Bytes of what is whole, and announced of what is read.
    len: usize,
    last: Option<u64>,
}

impl Order {
    /// A group begins, to be read to its end even if it is a copy.
    ///
    /// # Errors
    /// [`OrderError`].
    //= BD-1
    pub(crate) fn begin(&mut self, id: u64) -> Result<(), OrderError> {
        let ahead = id.saturating_sub(self.next);
        if ahead >= HELD_MAX as u64 {
            return Err(OrderError::Distance { id, next: self.next, max: HELD_MAX });
        }
        if self.reads + self.whole.len() >= HELD_MAX {
            return Err(OrderError::Count { max: HELD_MAX });
        }
        self.reads += 1;
        *self.begun.entry(id).or_default() += 1;
        self.last = self.last.max(Some(id));
        Ok(())
    }

    /// One of those says how long it is.
    ///
    /// # Errors
    /// [`OrderError`].
    pub(crate) const fn sized(&mut self, len: usize) -> Result<(), OrderError> {
        if len > HELD_LEN_MAX - self.len {
            return Err(OrderError::Len { max: HELD_LEN_MAX });
        }
        self.len += len;
        Ok(())
    }

    /// One is read. A copy of what came before is dropped.
    pub(crate) fn whole(&mut self, id: u64, message: Bytes) {
        self.ended(id);
        self.len -= message.len();
        self.insert(id, message);
    }

    /// One was cut that had said it would be so long.
    pub(crate) fn cut(&mut self, id: u64, len: usize) {
        self.ended(id);
        self.len -= len;
    }

    /// One came another way.
    pub(crate) fn repaired(&mut self, id: u64, message: Bytes) {
        self.insert(id, message);
    }

    /// The track has ended, with so many groups. What says more than could be on its way says nothing.
    pub(crate) fn over(&mut self, count: u64) {
        if count.saturating_sub(self.next) <= HELD_MAX as u64 {
            self.last = self.last.max(count.checked_sub(1));
        }
    }

    fn ended(&mut self, id: u64) {
        self.reads -= 1;
        if let Some(count) = self.begun.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.begun.remove(&id);
            }
        }
    }

    fn insert(&mut self, id: u64, message: Bytes) {
        if id >= self.next && !self.whole.contains_key(&id) {
            self.len += message.len();
            self.whole.insert(id, message);
        }
    }

    /// Whether the next one is there.
    pub(crate) fn is_ready(&self) -> bool {
        self.whole.contains_key(&self.next)
    }

    /// Takes the next one.
    pub(crate) fn pop(&mut self) -> Option<Bytes> {
        let message = self.whole.remove(&self.next)?;
        self.len -= message.len();
        self.next += 1;
        Some(message)
    }

    /// What is missing before something that is there, or was cut.
    pub(crate) fn hole(&self) -> Option<Hole> {
        let begun = self.begun.contains_key(&self.next);
        let beyond = self.last >= Some(self.next) && !self.is_ready();
        // One that is read while nothing waits for it is not missing.
        (beyond && !(begun && self.whole.is_empty())).then_some(Hole { id: self.next, begun })
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.whole.len()
    }

    /// Whether so much waits that no more should come.
    pub(crate) fn is_behind(&self) -> bool {
        self.whole.len() >= BEHIND_MAX || self.len >= BEHIND_LEN_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(id: u64) -> Bytes {
        Bytes::from(format!("m{id}"))
    }

    fn come(order: &mut Order, id: u64) {
        order.begin(id).unwrap();
        order.sized(message(id).len()).unwrap();
        order.whole(id, message(id));
    }

    fn taken(order: &mut Order) -> Vec<Bytes> {
        std::iter::from_fn(|| order.pop()).collect()
    }

    #[test]
    fn messages_leave_in_order_and_once() {
        let mut order = Order::default();
        for id in [2, 0, 0, 2, 4] {
            come(&mut order, id);
        }
        assert_eq!(taken(&mut order), [message(0)]);
        assert_eq!(order.hole(), Some(Hole { id: 1, begun: false }));
        come(&mut order, 1);
        come(&mut order, 0);
        assert_eq!(taken(&mut order), [message(1), message(2)]);
        order.begin(3).unwrap();
        assert_eq!(order.hole(), Some(Hole { id: 3, begun: true }), "4 waits for it");
        order.cut(3, 0);
        assert_eq!(order.hole(), Some(Hole { id: 3, begun: false }));
        order.repaired(3, message(3));
        order.repaired(3, message(3));
        assert_eq!(taken(&mut order), [message(3), message(4)]);
        assert_eq!((order.hole(), order.len, order.reads), (None, 0, 0));
        order.begin(5).unwrap();
        assert_eq!(order.hole(), None, "it is on its way");
        order.cut(5, 0);
        assert_eq!(order.hole(), Some(Hole { id: 5, begun: false }), "it was");
    }

    #[test]
    fn bd1_what_waits_is_bounded_in_number_distance_and_bytes() {
        let mut order = Order::default();
        let far = HELD_MAX as u64;
        assert_eq!(order.begin(far), Err(OrderError::Distance { id: far, next: 0, max: HELD_MAX }));
        assert!(matches!(order.begin(u64::MAX), Err(OrderError::Distance { .. })));
        for id in 1..far {
            assert_eq!(order.is_behind(), order.whole.len() >= BEHIND_MAX);
            come(&mut order, id);
        }
        order.begin(0).unwrap();
        assert_eq!(order.begin(0), Err(OrderError::Count { max: HELD_MAX }), "a copy");
        order.whole(0, Bytes::new());
        assert_eq!(taken(&mut order).len(), HELD_MAX);
        order.begin(far).unwrap();
        order.sized(HELD_LEN_MAX).unwrap();
        assert_eq!(order.sized(1), Err(OrderError::Len { max: HELD_LEN_MAX }));
        assert!(order.sized(usize::MAX).is_err());
        order.cut(far, HELD_LEN_MAX);
        assert_eq!(order.len, 0);
    }

    #[test]
    fn what_is_missing_at_the_end_is_known_by_the_count() {
        let mut order = Order::default();
        come(&mut order, 0);
        assert_eq!(taken(&mut order), [message(0)]);
        for none in [0, 1, u64::MAX, 2 + HELD_MAX as u64] {
            order.over(none);
            assert_eq!(order.hole(), None, "{none}");
        }
        order.over(3);
        assert_eq!(order.hole(), Some(Hole { id: 1, begun: false }));
        order.repaired(1, message(1));
        assert_eq!(taken(&mut order), [message(1)]);
        assert_eq!(order.hole(), Some(Hole { id: 2, begun: false }));
        order.repaired(2, message(2));
        assert_eq!(taken(&mut order), [message(2)]);
        assert_eq!(order.hole(), None);
    }

    proptest! {
        /// However they come, copies and all, each is taken once and in its place, up to the first that is missing.
        #[test]
        fn any_order_of_arrival_comes_out_sorted(ids in prop::collection::vec(0u64..40, 0..120)) {
            let (mut order, mut out) = (Order::default(), Vec::new());
            for id in &ids {
                come(&mut order, *id);
                out.extend(taken(&mut order));
            }
            let count = (0..).take_while(|id| ids.contains(id)).count() as u64;
            prop_assert_eq!(out, (0..count).map(message).collect::<Vec<_>>());
            let missing = ids.iter().any(|id| *id > count);
            prop_assert_eq!(order.hole().map(|hole| hole.id), missing.then_some(count));
        }
    }
}
