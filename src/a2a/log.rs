//! Commits of tasks: many callers, one thread, one sync for all that wait.
//!
//! What a commit changes in memory is changed by that thread, after the sync and before anybody is
//! told. So a caller that goes away in the middle leaves no memory behind that differs from the disk.

use super::fault::{Fault, Kind};
use crate::driver::DriverError;
use crate::store::{SideEntry, SideStore, SideTable, SideWrite};
use proto::store::ReadError;
use std::cmp::min;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Commits that wait for the disk; further callers wait before they change anything.
const COMMITS_WAITING_MAX: usize = 4_096;
/// Bytes of those; further callers wait.
const BYTES_WAITING_MAX: usize = 64 * 1024 * 1024;
/// Commits that share a sync; the rest go into the next.
const COMMITS_SHARED_MAX: usize = 1_024;
/// Bytes after which no further commit joins them: the core's own commits wait for each sync.
const BYTES_SHARED_MAX: usize = 1024 * 1024;

/// Tells the node that the A2A server cannot go on. The first to tell is heard. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Failing {
    what: &'static str,
    panicked: fn(&'static str) -> DriverError,
    node: Arc<Mutex<Option<oneshot::Sender<DriverError>>>>,
}

impl Failing {
    pub(crate) fn new(node: oneshot::Sender<DriverError>) -> Self {
        Self::of("A2A tasks", DriverError::A2a, node)
    }

    /// For another part of the node that keeps its tables this way.
    pub(crate) fn of(
        what: &'static str,
        panicked: fn(&'static str) -> DriverError,
        node: oneshot::Sender<DriverError>,
    ) -> Self {
        Self { what, panicked, node: Arc::new(Mutex::new(Some(node))) }
    }

    //= CR-1
    pub(crate) fn tell(&self, error: DriverError) {
        tracing::error!(%error, "{} cannot go on", self.what);
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(node) = node {
            let _ = node.send(error); // a node that stops hears nothing any more
        }
    }
}

/// The tables of tasks, for reading: what is there is durable. A read that fails ends the node.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    store: SideStore,
    failing: Failing,
}

impl Disk {
    pub(crate) fn get(&self, table: SideTable, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.store.get(table, key).map_err(|error| self.failed(error))
    }

    pub(crate) fn range(
        &self,
        table: SideTable,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<SideEntry>, ReadError> {
        self.store.range(table, from, to, limit).map_err(|error| self.failed(error))
    }

    pub(crate) fn range_within(
        &self,
        table: SideTable,
        from: &[u8],
        to: Option<&[u8]>,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<SideEntry>, ReadError> {
        let found = self.store.range_within(table, from, to, limit, bytes_max);
        found.map_err(|error| self.failed(error))
    }

    /// A record. One that is not what we wrote is never passed over.
    pub(crate) fn parse<T: serde::de::DeserializeOwned>(
        &self,
        value: &[u8],
    ) -> Result<T, ReadError> {
        serde_json::from_slice(value).map_err(|error| {
            let what = format!("a record of the {} is damaged: {error}", self.failing.what);
            self.failed(ReadError(what.into()))
        })
    }

    fn failed(&self, error: ReadError) -> ReadError {
        self.failing.tell(DriverError::Read(ReadError(error.to_string().into())));
        error
    }
}

/// One commit on its way.
struct Commit {
    writes: Vec<SideWrite>,
    bytes: usize,
    _room: OwnedSemaphorePermit,
    then: Box<dyn FnOnce() + Send>,
    done: oneshot::Sender<()>,
}

/// What the thread is told.
enum Order {
    Commit(Commit),
    /// No more commits.
    Stop,
}

/// Where tasks are kept.
#[derive(Clone)]
pub(crate) struct Log {
    disk: Disk,
    queue: mpsc::Sender<Order>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    room: Arc<Semaphore>,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

/// A place in the queue for some writes: from here on nothing is waited for, so order can be decided
/// under a lock.
pub(crate) struct Place<'a> {
    place: mpsc::Permit<'a, Order>,
    room: OwnedSemaphorePermit,
    writes: Vec<SideWrite>,
    bytes: usize,
}

/// A commit that was handed over.
#[must_use = "only a commit that was waited for is known to be durable"]
pub(crate) struct Ticket(oneshot::Receiver<()>);

impl Log {
    /// Starts the thread. What fails is told to `failing`, and no commit is made after one that did.
    pub(crate) fn start(store: SideStore, failing: Failing) -> io::Result<Self> {
        let (queue, commits) = mpsc::channel(COMMITS_WAITING_MAX);
        let disk = Disk { store: store.clone(), failing: failing.clone() };
        let thread = std::thread::Builder::new().name("abhyasa-a2a".into()).spawn(move || {
            match catch_unwind(AssertUnwindSafe(|| run(&store, commits))) {
                Ok(Ok(())) => {} // nobody has the log any more
                Ok(Err(error)) => failing.tell(error),
                Err(_) => failing.tell((failing.panicked)("its commit thread panicked")),
            }
        })?;
        let thread = Arc::new(Mutex::new(Some(thread)));
        Ok(Self { disk, queue, thread, room: Arc::new(Semaphore::new(BYTES_WAITING_MAX)) })
    }

    /// For reading: what is there is durable.
    pub(crate) const fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Makes the commits that wait, and none after them. Returns when nothing writes any more.
    pub(crate) async fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = self.queue.send(Order::Stop).await; // or it ended before
        if let Some(thread) = thread {
            let _ = tokio::task::spawn_blocking(|| thread.join()).await;
        }
    }

    /// A place for a commit of these writes.
    pub(crate) async fn place(&self, writes: Vec<SideWrite>) -> Result<Place<'_>, Fault> {
        let len = |write: &SideWrite| write.key.len() + write.value.as_ref().map_or(0, Vec::len);
        let bytes = writes.iter().map(len).sum();
        let share = u32::try_from(min(bytes, BYTES_WAITING_MAX)).unwrap_or(u32::MAX);
        let room = self.room.clone().acquire_many_owned(share).await.map_err(|_| gone())?;
        let place = self.queue.reserve().await.map_err(|_| gone())?;
        Ok(Place { place, room, writes, bytes })
    }
}

impl Place<'_> {
    /// Hands the writes over. `then` runs once they are durable, and not at all if they are not.
    pub(crate) fn commit(self, then: impl FnOnce() + Send + 'static) -> Ticket {
        let Self { place, room, writes, bytes } = self;
        let (done, ticket) = oneshot::channel();
        place.send(Order::Commit(Commit {
            writes,
            bytes,
            _room: room,
            then: Box::new(then),
            done,
        }));
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

fn run(store: &SideStore, mut queue: mpsc::Receiver<Order>) -> Result<(), DriverError> {
    while let Some(Order::Commit(first)) = queue.blocking_recv() {
        let mut bytes = first.bytes;
        let (mut commits, mut stops) = (vec![first], false);
        while commits.len() < COMMITS_SHARED_MAX
            && bytes < BYTES_SHARED_MAX
            && !stops
            && let Ok(next) = queue.try_recv()
        {
            match next {
                Order::Commit(next) => {
                    bytes += next.bytes;
                    commits.push(next);
                }
                Order::Stop => stops = true,
            }
        }
        // Whoever waits, or comes, hears that nobody is here when this fails.
        //= PS-1 CR-1
        store.commit(commits.iter().flat_map(|commit| &commit.writes))?;
        for Commit { then, done, .. } in commits {
            then();
            let _ = done.send(());
        }
        if stops {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::a2a::record::Record;
    use crate::store::{FjallStore, Storage as _, StoreOptions};
    use proto::id::AgentId;

    /// A log in a folder of its own, and who is told when it fails.
    pub(crate) fn log() -> (tempfile::TempDir, Log, oneshot::Receiver<DriverError>) {
        let dir = tempfile::tempdir().unwrap();
        let me = AgentId::new("spiffe://test/alice").unwrap();
        let store = FjallStore::open(dir.path(), &me, &StoreOptions::default()).unwrap();
        let (node, failed) = oneshot::channel();
        let log = Log::start(store.side().unwrap().unwrap(), Failing::new(node)).unwrap();
        (dir, log, failed)
    }

    fn write(value: &[u8]) -> Vec<SideWrite> {
        vec![SideWrite { table: SideTable::Task, key: b"t".to_vec(), value: Some(value.to_vec()) }]
    }

    #[tokio::test]
    async fn cr1_a_commit_thread_that_panics_ends_the_node() {
        let (_dir, log, failed) = log();
        let ticket = log.place(write(b"{}")).await.unwrap().commit(|| panic!("on purpose"));
        assert!(ticket.durable().await.is_err());
        assert!(matches!(failed.await, Ok(DriverError::A2a(_))));
        // Somebody still has the log, and is told that it is of no use.
        while let Ok(place) = log.place(write(b"{}")).await {
            assert!(place.commit(|| {}).durable().await.is_err());
        }
    }

    #[tokio::test]
    async fn a_log_that_stops_makes_what_waits_and_no_more() {
        let (_dir, log, _failed) = log();
        let mut tickets = Vec::new();
        for _ in 0..10 {
            tickets.push(log.place(write(b"{}")).await.unwrap().commit(|| {}));
        }
        log.stop().await;
        for ticket in tickets {
            ticket.durable().await.unwrap();
        }
        assert!(log.place(write(b"{}")).await.is_err());
        log.stop().await;
    }

    #[tokio::test]
    async fn bd1_commits_that_wait_have_so_many_bytes_at_most() {
        let (_dir, log, _failed) = log();
        let half = vec![0; BYTES_WAITING_MAX / 2];
        let mut places = Vec::new();
        places.push(log.place(write(&half[1..])).await.unwrap());
        places.push(log.place(write(&half[1..])).await.unwrap());
        let third = async |log: &Log| {
            let short = std::time::Duration::from_millis(100);
            let third = tokio::time::timeout(short, log.place(write(&half))).await;
            third.is_ok_and(|place| place.is_ok())
        };
        assert!(!third(&log).await, "it waits");
        places.clear();
        assert!(third(&log).await, "what was not handed over gives its room back");
        // One that is larger than all of it goes alone.
        let huge = vec![0; BYTES_WAITING_MAX + 1];
        drop(log.place(write(&huge)).await.unwrap());
    }

    #[tokio::test]
    async fn cr1_a_damaged_record_ends_the_node() {
        let (_dir, log, failed) = log();
        log.place(write(b"no json")).await.unwrap().commit(|| {}).durable().await.unwrap();
        let value = log.disk().get(SideTable::Task, b"t").unwrap().unwrap();
        assert!(log.disk().parse::<Record>(&value).is_err());
        assert!(matches!(failed.await, Ok(DriverError::Read(_))));
    }
}
