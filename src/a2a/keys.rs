//! Messages that their client names by a key, so that to send one again does nothing twice: A2A has
//! no way to ask whether a message arrived.

use super::fault::Fault;
use super::record::{Edit, Record, named_by, obligation_key};
use super::tasks::Tasks;
use crate::store::{SideTable, SideWrite};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// Bytes of a key.
const KEY_LEN_MAX: usize = 256;
/// Keys kept of one task; the oldest are forgotten.
const KEYS_MAX: usize = 64;
/// Messages with keys that are taken at a time, at most: two of one key never are.
const TAKING_MAX: usize = 64;

/// What tells copies of a message that are taken at the same time.
#[derive(Debug)]
pub(crate) struct Keys {
    places: Vec<Arc<Mutex<()>>>,
    hasher: RandomState,
}

/// A message that was not taken yet, and is not by anybody else meanwhile.
#[derive(Debug)]
pub(crate) struct Keyed {
    key: String,
    place: OwnedMutexGuard<()>,
}

/// Whether a message with a key was taken.
pub(crate) enum Claim {
    Free(Keyed),
    /// In this task.
    Taken(Box<Record>),
}

impl Keys {
    pub(crate) fn new() -> Self {
        let places = std::iter::repeat_with(Arc::default).take(TAKING_MAX).collect();
        Self { places, hasher: RandomState::new() }
    }

    /// Claims a key for a message to `task`, or to a new one if that is empty.
    pub(crate) async fn claim(
        &self,
        tasks: &Tasks,
        scope: &str,
        key: &str,
        task: &str,
    ) -> Result<Claim, Fault> {
        let wrong = |what: &str| Err(Fault::params("Idempotency-Key", what));
        if key.is_empty() || key.len() > KEY_LEN_MAX || key.contains(char::is_control) {
            return wrong("1 to 256 bytes, and no control characters");
        }
        let hash = usize::try_from(self.hasher.hash_one((scope, key)) >> 32).unwrap_or(0);
        let place = self.places.get(hash % TAKING_MAX).cloned().unwrap_or_default();
        let place = place.lock_owned().await;
        match tasks.of_obligation(scope, &named_by(key))? {
            Some(record) if task.is_empty() || task == record.task.id => {
                Ok(Claim::Taken(Box::new(record)))
            }
            Some(_) => wrong("it is that of a message to another task"),
            None => Ok(Claim::Free(Keyed { key: key.to_owned(), place })),
        }
    }
}

impl Keyed {
    /// Notes with the change that takes the message that it is taken.
    pub(crate) fn note(self, edit: &mut Edit) {
        let Self { key, place } = self;
        let (scope, task) = (edit.record.scope.clone(), edit.record.task.id.clone());
        let write = |key: &str, value| SideWrite {
            table: SideTable::TaskObligation,
            key: obligation_key(&scope, &named_by(key)),
            value,
        };
        edit.also.push(write(&key, Some(task.into_bytes())));
        edit.record.keys.push(key);
        let over = edit.record.keys.len().saturating_sub(KEYS_MAX);
        edit.also.extend(edit.record.keys.drain(..over).map(|old| write(&old, None)));
        // Not before it is durable, whoever hangs up, is the next let in.
        edit.then.push(Box::new(move || drop(place)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2a::record::Record;

    #[tokio::test]
    async fn bd1_a_task_keeps_the_newest_of_its_keys() {
        let mut edit = Edit::new(Record::default(), 1, 9);
        for n in 0..=KEYS_MAX {
            let place = Arc::<Mutex<()>>::default().lock_owned().await;
            Keyed { key: n.to_string(), place }.note(&mut edit);
        }
        assert_eq!(edit.record.keys.len(), KEYS_MAX);
        assert_eq!(edit.record.keys.first().map(String::as_str), Some("1"));
        let gone: Vec<_> = edit.also.iter().filter(|write| write.value.is_none()).collect();
        assert_eq!(gone.len(), 1);
        assert_eq!(gone[0].key, obligation_key("", &named_by("0")));
    }
}
