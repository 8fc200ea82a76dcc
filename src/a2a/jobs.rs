//! Tasks with work to do, in the order it came. Each is here once, so tasks bound it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Where a task is.
#[derive(Debug, PartialEq)]
enum State {
    Waiting,
    Running,
    /// There is more work for it, which waits for the end of what runs.
    Again,
}

/// Who does the work: one kind does not wait for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The agent.
    Agent,
    /// The core.
    Custody,
}

#[derive(Debug, Default)]
struct Table {
    agent: VecDeque<String>,
    custody: VecDeque<String>,
    known: HashMap<String, State>,
}

/// The queue. What is in it is durable as the work of the task.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    table: Mutex<Table>,
    bell: Notify,
}

/// Work that runs, until it is dropped.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: String,
    kind: Kind,
    jobs: Arc<Jobs>,
}

impl Table {
    const fn queue(&mut self, kind: Kind) -> &mut VecDeque<String> {
        match kind {
            Kind::Agent => &mut self.agent,
            Kind::Custody => &mut self.custody,
        }
    }
}

impl Jobs {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is work for a task, unless it waits already. A task has one kind for ever.
    pub(crate) fn push(&self, kind: Kind, id: String) {
        let mut table = self.table();
        match table.known.get_mut(&id) {
            Some(State::Waiting | State::Again) => return,
            Some(running) => {
                *running = State::Again;
                return;
            }
            None => {}
        }
        table.known.insert(id.clone(), State::Waiting);
        table.queue(kind).push_back(id);
        drop(table);
        self.bell.notify_one();
    }

    /// The next to work on.
    pub(crate) fn pop(self: &Arc<Self>, kind: Kind) -> Option<Job> {
        let mut table = self.table();
        let id = table.queue(kind).pop_front()?;
        table.known.insert(id.clone(), State::Running);
        Some(Job { id, kind, jobs: self.clone() })
    }

    /// Returns when there may be one.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let again = self.jobs.table().known.remove(&self.id) == Some(State::Again);
        if again {
            self.jobs.push(self.kind, std::mem::take(&mut self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bd1_a_task_is_worked_on_once_at_a_time_however_often_it_is_asked_for() {
        let jobs = Arc::new(Jobs::default());
        for id in ["a", "b", "a", "a"] {
            jobs.push(Kind::Agent, id.to_owned());
        }
        let a = jobs.pop(Kind::Agent).unwrap();
        let b = jobs.pop(Kind::Agent).unwrap();
        assert_eq!((a.id.as_str(), b.id.as_str()), ("a", "b"));
        assert!(jobs.pop(Kind::Agent).is_none());
        jobs.push(Kind::Custody, "c".to_owned());
        assert!(jobs.pop(Kind::Agent).is_none());
        assert_eq!(jobs.pop(Kind::Custody).unwrap().id, "c");
        // What comes while it runs waits for its end.
        jobs.push(Kind::Agent, "a".to_owned());
        jobs.push(Kind::Agent, "a".to_owned());
        assert!(jobs.pop(Kind::Agent).is_none());
        drop(b);
        drop(a);
        let a = jobs.pop(Kind::Agent).unwrap();
        assert!(a.id == "a" && jobs.pop(Kind::Agent).is_none());
        drop(a);
        assert!(jobs.table().known.is_empty());
    }
}
