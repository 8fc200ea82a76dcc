//! What a connection is carrying: offers that its peer has not acknowledged as a transport.
//!
//! Retries are there for silence. On a connection that is slow and not silent a copy of an offer
//! would only queue behind the first, and slow both: with a small bandwidth the copies are soon
//! all there is. So a copy is left out while the first is on its way and the peer's transport
//! acknowledges anything at all. When it does not, copies are what finds out that it is back.

use bytes::Bytes;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};
use tokio::task::JoinSet;

/// Offers on their way, by a hash of their bytes.
#[derive(Debug, Default)]
pub(super) struct Carried {
    /// With the ACK frames that had come in when the last copy was made, or left out.
    offers: HashMap<u64, u64>,
    /// One for each frame, until all of it is acknowledged.
    frames: JoinSet<Vec<u64>>,
}

impl Carried {
    /// Splits offers into those to send now, each run with its first reference. `acks` counts the
    /// ACK frames that have come in so far.
    pub(super) fn fresh(
        &mut self,
        first_ref: u64,
        items: Vec<Bytes>,
        acks: u64,
    ) -> Vec<(u64, Vec<Bytes>)> {
        let mut runs: Vec<(u64, Vec<Bytes>)> = Vec::new();
        let mut gap = true;
        for (reference, item) in (first_ref..).zip(items) {
            let before = self.offers.insert(hash(&item), acks);
            if before.is_some_and(|before| before < acks) {
                gap = true;
                continue;
            }
            match runs.last_mut().filter(|_| !gap) {
                Some((_, run)) => run.push(item),
                None => runs.push((reference, vec![item])),
            }
            gap = false;
        }
        runs
    }

    /// A frame with these offers is on its way until `acknowledged` is over.
    pub(super) fn sent(
        &mut self,
        items: &[Bytes],
        acknowledged: impl Future<Output = ()> + Send + 'static,
    ) {
        let hashes = items.iter().map(hash).collect();
        self.frames.spawn(async move {
            acknowledged.await;
            hashes
        });
    }

    /// Waits until a frame is acknowledged; for ever when none is on its way.
    pub(super) async fn acknowledged(&mut self) {
        match self.frames.join_next().await {
            Some(hashes) => {
                for hash in hashes.unwrap_or_default() {
                    self.offers.remove(&hash);
                }
            }
            None => std::future::pending().await,
        }
    }
}

/// An obligation is encoded once, so its bytes tell it from all others.
fn hash(item: &Bytes) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(item);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(numbers: &[u8]) -> Vec<Bytes> {
        numbers.iter().map(|number| Bytes::from(vec![*number; 3])).collect()
    }

    #[tokio::test]
    async fn a_copy_waits_for_the_first_while_anything_is_acknowledged() {
        let mut carried = Carried::default();
        assert_eq!(carried.fresh(0, items(&[1, 2, 3]), 7), [(0, items(&[1, 2, 3]))]);
        // ACK frames come in: the connection lives, and the copies are left out.
        let runs = carried.fresh(3, items(&[4, 1, 5, 6, 2, 3, 7]), 8);
        assert_eq!(runs, [(3, items(&[4])), (5, items(&[5, 6])), (9, items(&[7]))]);
        // None has since: the copies are all there is to find out with.
        assert_eq!(carried.fresh(10, items(&[1]), 8), [(10, items(&[1]))]);
        assert_eq!(carried.fresh(11, items(&[1]), 9), []);
    }

    #[tokio::test]
    async fn what_was_acknowledged_may_be_offered_again() {
        let mut carried = Carried::default();
        let all = items(&[1, 2]);
        carried.fresh(0, all.clone(), 0);
        carried.sent(&all, async {});
        carried.acknowledged().await;
        assert_eq!(carried.fresh(2, all.clone(), 5), [(2, all)]);
        assert!(carried.frames.is_empty());
    }
}
