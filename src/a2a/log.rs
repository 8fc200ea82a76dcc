//! Commits of tasks: many callers, one thread, one sync for all that wait.
//!
//! What a commit changes in memory is changed by that thread, after the sync and before anybody is
//! told. So a caller that goes away in the middle leaves no memory behind that differs from the disk.

use super::fault::{Fault, Kind};
use crate::store::{SideStore, SideWrite, StoreError};
use std::fmt;
use std::io;
use tokio::sync::{mpsc, oneshot};

/// Commits that wait for the disk; further callers wait before they change anything.
const COMMITS_WAITING_MAX: usize = 4_096;
/// Commits that share a sync; the rest go into the next.
const COMMITS_SHARED_MAX: usize = 1_024;

/// One commit on its way.
struct Commit {
    writes: Vec<SideWrite>,
    then: Box<dyn FnOnce() + Send>,
    done: oneshot::Sender<()>,
}

/// Where tasks are kept.
#[derive(Clone)]
pub(crate) struct Log {
    store: SideStore,
    queue: mpsc::Sender<Commit>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

/// A place in the queue: from here on nothing is waited for, so order can be decided under a lock.
pub(crate) struct Place<'a>(mpsc::Permit<'a, Commit>);

/// A commit that was handed over.
#[must_use = "only a commit that was waited for is known to be durable"]
pub(crate) struct Ticket(oneshot::Receiver<()>);

impl Log {
    /// Starts the thread. The first commit that fails is told to `failed`, and none is made after it.
    pub(crate) fn start(store: SideStore, failed: oneshot::Sender<StoreError>) -> io::Result<Self> {
        let (queue, commits) = mpsc::channel(COMMITS_WAITING_MAX);
        let disk = store.clone();
        std::thread::Builder::new()
            .name("abhyasa-a2a".into())
            .spawn(move || run(&disk, commits, failed))?;
        Ok(Self { store, queue })
    }

    /// For reading: what is there is durable.
    pub(crate) const fn store(&self) -> &SideStore {
        &self.store
    }

    /// A place for one commit.
    pub(crate) async fn place(&self) -> Result<Place<'_>, Fault> {
        self.queue.reserve().await.map(Place).map_err(|_| gone())
    }
}

impl Place<'_> {
    /// Hands `writes` over. `then` runs once they are durable, and not at all if they are not.
    pub(crate) fn commit(
        self,
        writes: Vec<SideWrite>,
        then: impl FnOnce() + Send + 'static,
    ) -> Ticket {
        let (done, ticket) = oneshot::channel();
        self.0.send(Commit { writes, then: Box::new(then), done });
        Ticket(ticket)
    }
}

impl Ticket {
    /// Returns when the commit is durable.
    pub(crate) async fn durable(self) -> Result<(), Fault> {
        self.0.await.map_err(|_| gone())
    }
}

fn gone() -> Fault {
    Fault::new(Kind::Internal, "the store cannot be written any more; the log says why")
}

fn run(store: &SideStore, mut queue: mpsc::Receiver<Commit>, failed: oneshot::Sender<StoreError>) {
    while let Some(first) = queue.blocking_recv() {
        let mut commits = vec![first];
        while commits.len() < COMMITS_SHARED_MAX
            && let Ok(next) = queue.try_recv()
        {
            commits.push(next);
        }
        //= PS-1
        if let Err(error) = store.commit(commits.iter().flat_map(|commit| &commit.writes)) {
            //= CR-1
            tracing::error!(%error, "A2A tasks");
            let _ = failed.send(error);
            return; // whoever waits, or comes, hears that nobody is here
        }
        for Commit { then, done, .. } in commits {
            then();
            let _ = done.send(());
        }
    }
}
