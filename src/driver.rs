//! The one owner of the custody core, and of the order of commits.
//!
//! Inputs are handled as they come and gather in an open step. While a commit is in fdatasync the
//! next step fills; when it is done, the open step is sealed and committed. So a batch is as large
//! as the disk is slow, and one alone waits for nothing.

use crate::clock::Clock;
use crate::router::Router;
use crate::store::{Storage, StoreError};
use proto::custodian::{Check, Draft, IssueError};
use proto::custody::{Custody, IssueResult, OperatorResult};
use proto::id::ObligationId;
use proto::obligation::Obligation;
use proto::record::Resolution;
use proto::step::Step;
use proto::store::{ReadError, Table};
use proto::time::Time;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Sleep};

pub(crate) use proto::custody::Input;

/// Calls taken from the queue at once.
const CALLS_PER_TURN: usize = 64;
/// A step of at most so many obligations is committed by the driver itself, which saves two thread
/// switches; larger ones go to the commit thread and the next step is computed meanwhile.
const INLINE_MAX: usize = 4;
/// A step waits for company at most so large a part of what a commit takes. Half of it costs an
/// obligation little, and under load half as many commits; whole ones and more made everything wait
/// for a timer while nothing was gained.
const LINGER_DIVISOR: u32 = 2;

/// Something for the driver to do.
#[derive(Debug)]
pub(crate) enum Call {
    Input(Input),
    Issue {
        drafts: Vec<Draft>,
        reply: oneshot::Sender<oneshot::Receiver<Vec<IssueResult>>>,
    },
    AckEscalation {
        id: ObligationId,
        reply: oneshot::Sender<oneshot::Receiver<OperatorResult>>,
    },
    Resolve {
        number: u64,
        resolution: Resolution,
        reply: oneshot::Sender<oneshot::Receiver<OperatorResult>>,
    },
    Find {
        id: ObligationId,
        reply: oneshot::Sender<Option<PendingObligation>>,
    },
    /// Told at once: it says what would be, and promises nothing.
    Check {
        draft: Box<Draft>,
        reply: oneshot::Sender<Result<Check, IssueError>>,
    },
    Stop,
}

/// Why the driver ended. Each ends the process (CR-1).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
//= CR-1
pub enum DriverError {
    /// A commit failed.
    #[error(transparent)]
    Commit(#[from] StoreError),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The commit thread is gone without an error of its own: it panicked, and what it was handed
    /// may or may not be on disk.
    #[error("the commit thread ended; the state in memory is ahead of the disk and is dropped")]
    CommitThread,
    /// The commit thread cannot be started.
    #[error("cannot start the commit thread: {0}")]
    Thread(std::io::Error),
    /// A part of the A2A server ended without an error of its own.
    #[error("the A2A server cannot go on: {0}")]
    A2a(&'static str),
    /// A part of what keeps consent ended without an error of its own.
    #[error("consent cannot be kept any more: {0}")]
    Acap(&'static str),
}

/// What others may know of the driver's state without asking it.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) recovered: AtomicBool,
    pub(crate) stopping: AtomicBool,
    pub(crate) pending: AtomicUsize,
}

/// How the driver batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batching {
    pub(crate) max: usize,
    pub(crate) linger: Duration,
}

pub(crate) struct Driver {
    pub(crate) custody: Custody,
    pub(crate) store: Arc<dyn Storage>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) router: Arc<Router>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) calls: mpsc::Receiver<Call>,
    pub(crate) batching: Batching,
}

/// The open step, and how full it is.
#[derive(Default)]
struct Open {
    step: Step,
    /// Answers that may rest on writes not durable yet; told when they are.
    found: Vec<Found>,
    obligations: usize,
    since: Option<Instant>,
    /// Whether observers were told something that they may act on before this step's commit.
    attested: bool,
}

type Committed = Result<u64, StoreError>;

/// A looked-up obligation, and who asked.
type Found = (oneshot::Sender<Option<PendingObligation>>, Option<PendingObligation>);
type PendingObligation = (Obligation, u32, bool);

/// A sealed step on its way to the disk.
struct Work {
    step: Step,
    obligations: usize,
    found: Vec<Found>,
    begun: Instant,
}

impl Work {
    /// Tells the store what is to come; how long it takes by the runtime's clock, if it says so.
    fn begin(&self, store: &dyn Storage) -> Option<Duration> {
        if !self.step.needs_commit() {
            return None;
        }
        store.begin(self.step.writes(), self.step.needs_sync())
    }
}

impl Open {
    fn is_empty(&self) -> bool {
        self.step.is_empty() && self.found.is_empty()
    }
}

/// Where larger steps are committed while the driver goes on: a thread, started with the first of
/// them, or for a simulated disk the runtime's clock. One at a time.
struct Lane {
    store: Arc<dyn Storage>,
    router: Arc<Router>,
    thread: Option<CommitThread>,
    waiting: Option<(Pin<Box<Sleep>>, Work)>,
}

struct CommitThread {
    work: std::sync::mpsc::SyncSender<Work>,
    done: mpsc::UnboundedReceiver<Committed>,
    handle: std::thread::JoinHandle<()>,
}

impl CommitThread {
    fn start(store: Arc<dyn Storage>, router: Arc<Router>) -> Result<Self, DriverError> {
        let (work, work_rx) = std::sync::mpsc::sync_channel::<Work>(1);
        let (done_tx, done) = mpsc::unbounded_channel::<Committed>();
        let run = move || {
            while let Ok(work) = work_rx.recv() {
                let done = commit(&*store, &router, work);
                let failed = done.is_err();
                if done_tx.send(done).is_err() || failed {
                    return;
                }
            }
        };
        let named = std::thread::Builder::new().name("abhyasa-commit".into());
        let handle = named.spawn(run).map_err(DriverError::Thread)?;
        Ok(Self { work, done, handle })
    }
}

impl Lane {
    fn send(&mut self, work: Work) -> Result<(), DriverError> {
        if let Some(takes) = work.begin(&*self.store) {
            self.waiting = Some((Box::pin(tokio::time::sleep(takes)), work));
            return Ok(());
        }
        let thread = match &mut self.thread {
            Some(thread) => thread,
            none => none.insert(CommitThread::start(self.store.clone(), self.router.clone())?),
        };
        thread.work.send(work).map_err(|_| DriverError::CommitThread)
    }

    /// Waits for the commit that was sent. Nothing is lost if the wait is given up.
    async fn done(&mut self) -> Result<u64, DriverError> {
        if let Some((sleep, _)) = &mut self.waiting {
            sleep.as_mut().await;
        }
        if let Some((_, work)) = self.waiting.take() {
            return Ok(commit(&*self.store, &self.router, work)?);
        }
        let Some(thread) = &mut self.thread else { return Err(DriverError::CommitThread) };
        Ok(thread.done.recv().await.ok_or(DriverError::CommitThread)??)
    }

    /// Waits until the commit in flight is done, or failed.
    fn close(self) {
        if let Some(CommitThread { work, handle, .. }) = self.thread {
            drop(work);
            let _ = handle.join();
        }
    }
}

/// However the driver ends, also by being dropped: whoever waits for an answer of it shall know.
struct Ending {
    router: Arc<Router>,
    shared: Arc<Shared>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        self.router.abandon();
    }
}

impl Driver {
    /// Runs until [`Call::Stop`] or an error. Dropped before, it ends as in a crash: what is not
    /// committed is gone.
    pub(crate) async fn run(mut self) -> Result<(), DriverError> {
        let _ending = Ending { router: self.router.clone(), shared: self.shared.clone() };
        let mut lane = Lane {
            store: self.store.clone(),
            router: self.router.clone(),
            thread: None,
            waiting: None,
        };
        let result = self.turn(&mut lane).await;
        self.shared.stopping.store(true, Ordering::SeqCst);
        lane.close(); // before the store is let go
        result
    }

    async fn turn(&mut self, lane: &mut Lane) -> Result<(), DriverError> {
        let mut open = Open::default();
        let mut buffer = Vec::with_capacity(CALLS_PER_TURN);
        let mut committing = None;
        let mut stopping = false;
        // What a commit takes, smoothed.
        let mut takes = Duration::ZERO;
        // Obligations to gather before a commit; grows under load, falls back when idle.
        let mut target = 1usize;
        loop {
            // Not in the select below, where a flood of calls could hold up every deadline.
            self.tick_if_due(&mut open)?;
            if !self.custody.recovered() && committing.is_none() {
                let now = self.clock.now();
                let all = self.custody.recover(now, &*self.store, &mut open.step)?;
                self.shared.recovered.store(all, Ordering::SeqCst);
                open.obligations += 1;
            }
            if open.is_empty() {
                open.obligations = 0; // what came to nothing is no reason to take no more
            }
            // Under load a window is a few commits and not hundreds. (An obligation counts twice in
            // it: at its issue and at its ack.)
            // Without load it does not count: offers to a silent peer must hold up no one else.
            let share = (self.custody.in_flight() * 2 / 3).min(target * target);
            let wanted = target.max(share).min(self.batching.max);
            let linger = self.batching.linger.min(takes / LINGER_DIVISOR);
            let lingered = open.since.is_some_and(|since| since.elapsed() >= linger);
            if committing.is_none()
                && !open.is_empty()
                && (open.obligations >= wanted || lingered || stopping)
            {
                target = next_target(target, wanted, open.obligations, !self.calls.is_empty())
                    .min(self.batching.max);
                let now = self.clock.now();
                let Open { mut step, found, obligations, attested, .. } = std::mem::take(&mut open);
                open.step = Step::with_room_of(&step);
                self.custody.seal(now, &*self.store, &mut step);
                self.shared.pending.store(self.custody.pending(), Ordering::Relaxed);
                self.router
                    .metrics
                    .pending
                    .set(i64::try_from(self.custody.pending()).unwrap_or(i64::MAX));
                self.router.metrics.best_effort_applied.set(self.custody.best_effort_applied());
                let small = obligations <= INLINE_MAX && self.calls.is_empty();
                let work = |step| Work { step, obligations, found, begun: Instant::now() };
                if small || !step.needs_commit() {
                    if attested {
                        // Whoever waits for the receiver's word shares this thread, and does not
                        // wait for our own mark of it.
                        tokio::task::yield_now().await;
                    }
                    let work = work(step);
                    let (begun, needs) = (work.begun, work.step.needs_commit());
                    if let Some(takes) = work.begin(&*self.store) {
                        tokio::time::sleep(takes).await;
                    }
                    let generation = commit(&*self.store, &self.router, work)?;
                    if needs {
                        takes = smoothed(takes, begun.elapsed());
                    }
                    self.custody.committed(generation);
                } else {
                    let work = work(step);
                    committing = Some(work.begun);
                    lane.send(work)?;
                }
                continue;
            }
            if stopping && committing.is_none() {
                return Ok(());
            }
            if !self.custody.recovered() && committing.is_none() {
                // More to load; but let what has come in the meantime through.
                for _ in 0..CALLS_PER_TURN {
                    let Ok(call) = self.calls.try_recv() else { break };
                    stopping |= self.call(call, &mut open)?;
                }
                tokio::task::yield_now().await;
                continue;
            }
            let alarm = self.alarm(&open, committing.is_none().then_some(linger));
            tokio::select! {
                biased;
                generation = lane.done(), if committing.is_some() => {
                    self.custody.committed(generation?);
                    if let Some(begun) = committing.take() {
                        takes = smoothed(takes, begun.elapsed());
                    }
                }
                count = self.calls.recv_many(&mut buffer, CALLS_PER_TURN), if open.obligations < self.batching.max && !stopping => {
                    if count == 0 {
                        stopping = true;
                    }
                    for call in buffer.drain(..) {
                        stopping |= self.call(call, &mut open)?;
                    }
                }
                () = sleep_until(alarm) => {}
            }
        }
    }

    //= AB-4
    fn tick_if_due(&mut self, open: &mut Open) -> Result<(), DriverError> {
        let now = self.clock.now();
        if self.custody.next_timeout().is_some_and(|at| at <= now) {
            self.input(Input::Tick, open)?;
            open.obligations += usize::from(!open.step.is_empty());
        }
        Ok(())
    }

    /// When to look again, if nothing comes in before: with `linger`, also for the open step.
    fn alarm(&self, open: &Open, linger: Option<Duration>) -> Option<Duration> {
        let now = self.clock.now();
        let timeout = self.custody.next_timeout().map(|at| Duration::from_millis(at.ms_since(now)));
        let waited = || open.since.map_or(Duration::ZERO, |since| since.elapsed());
        let linger =
            linger.filter(|_| !open.is_empty()).map(|linger| linger.saturating_sub(waited()));
        timeout.into_iter().chain(linger).min()
    }

    fn input(&mut self, input: Input, open: &mut Open) -> Result<Time, DriverError> {
        let now = self.clock.now();
        self.custody.handle(now, input, &*self.store, &mut open.step)?;
        let attested = open.step.take_attested();
        open.attested |= !attested.is_empty();
        self.router.attested(attested);
        if open.since.is_none() && !open.step.is_empty() {
            open.since = Some(Instant::now());
        }
        Ok(now)
    }

    /// Handles one call; returns whether it was the last.
    fn call(&mut self, call: Call, open: &mut Open) -> Result<bool, DriverError> {
        match call {
            Call::Input(input) => {
                open.obligations += weight(&input);
                self.input(input, open)?;
            }
            Call::Issue { drafts, reply } => {
                let (ticket, results) = self.router.expect_issued();
                if reply.send(results).is_err() {
                    self.router.forget(ticket); // the caller is gone; nothing was promised yet
                    return Ok(false);
                }
                open.obligations += drafts.len();
                self.input(Input::Issue { ticket, drafts }, open)?;
            }
            Call::AckEscalation { id, reply } => {
                let (ticket, result) = self.router.expect_operated();
                let _ = reply.send(result);
                open.obligations += 1;
                self.input(Input::AckEscalation { ticket, id }, open)?;
            }
            Call::Resolve { number, resolution, reply } => {
                let (ticket, result) = self.router.expect_operated();
                let _ = reply.send(result);
                open.obligations += 1;
                self.input(Input::Resolve { ticket, number, resolution }, open)?;
            }
            Call::Find { id, reply } => {
                let now = self.clock.now();
                let found = self.custody.find_pending(now, &*self.store, &id)?;
                open.found.push((reply, found));
                open.obligations += 1;
                open.since.get_or_insert_with(Instant::now);
            }
            Call::Check { draft, reply } => {
                let checked = self.custody.check(self.clock.now(), &*self.store, *draft)?;
                let _ = reply.send(checked);
            }
            Call::Stop => return Ok(true),
        }
        Ok(false)
    }
}

/// What commits take, after one that took `sample`.
fn smoothed(takes: Duration, sample: Duration) -> Duration {
    if takes.is_zero() { sample } else { (takes * 7 + sample) / 8 }
}

/// How many obligations the next commit waits for: twice as many when this one filled up and more
/// were waiting; a little less when it did not fill up in time; none but its own when load is gone.
fn next_target(target: usize, wanted: usize, had: usize, more: bool) -> usize {
    if had >= wanted {
        if more { had.max(target) * 2 } else { target }
    } else if had * 8 < target {
        had.max(1)
    } else {
        had.max(target - target.div_ceil(4)).max(1)
    }
}

/// Obligations an input brings.
fn weight(input: &Input) -> usize {
    match input {
        Input::Offers { items, .. } | Input::BestEffort { items, .. } => items.len(),
        Input::AckRuns { runs, .. } => {
            let count: u64 = runs.iter().flat_map(|run| &run.refs).map(|range| range.count).sum();
            usize::try_from(count).unwrap_or(usize::MAX).min(1 << 20)
        }
        _ => 1,
    }
}

fn commit(store: &dyn Storage, router: &Router, work: Work) -> Committed {
    let Work { step, obligations, found, begun } = work;
    let generation = step.generation();
    if step.needs_commit() {
        let sync = step.needs_sync();
        let governs = step.writes().iter().any(|write| write.table == Table::Cell);
        let outputs = step.commit(|writes| store.commit(writes, sync))?;
        if sync {
            router.metrics.commits.inc();
            router.metrics.commit_seconds.observe(begun.elapsed().as_secs_f64());
            router.metrics.commit_obligations.observe(obligations as f64);
        }
        if governs {
            router.governed.send_modify(|changes| *changes += 1);
        }
        router.dispatch(outputs);
    } else {
        router.dispatch(step.commit(|_| Ok::<(), StoreError>(()))?);
    }
    for (reply, found) in found {
        let _ = reply.send(found);
    }
    Ok(generation)
}

async fn sleep_until(delay: Option<Duration>) {
    match delay {
        Some(delay) => tokio::time::sleep(delay).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;
    use crate::store::{FjallStore, StoreOptions};
    use crate::telemetry::Metrics;
    use proto::custodian::Draft;
    use proto::event::Event;
    use proto::id::AgentId;
    use proto::payload::Payload;
    use proto::polarity::Registry;
    use std::path::Path;
    use std::sync::atomic::AtomicU64;

    /// A clock on which each look takes a millisecond.
    struct Stepping(AtomicU64);

    impl Clock for Stepping {
        fn now(&self) -> Time {
            Time::from_ms(1_800_000_000_000 + self.0.fetch_add(1, Ordering::SeqCst))
        }
    }

    fn driver(dir: &Path) -> (Driver, mpsc::Sender<Call>) {
        let text =
            "[node]\nid = \"a\"\n[[peers]]\nid = \"b\"\nmay_receive = [\"anumati.consent\"]\n";
        let config = NodeConfig::parse(text, Path::new("a.toml")).unwrap();
        let store = FjallStore::open(dir, &config.id, &StoreOptions::default()).unwrap();
        let settings = crate::node::settings(&config, 1).unwrap();
        let (router, _jobs) = Router::new(Arc::new(Metrics::default()));
        let (calls, rx) = mpsc::channel(config.store.input_queue_max);
        let driver = Driver {
            custody: Custody::open(settings, Registry::default(), &store).unwrap(),
            store: Arc::new(store),
            clock: Arc::new(Stepping(AtomicU64::new(0))),
            router: Arc::new(router),
            shared: Arc::new(Shared::default()),
            calls: rx,
            batching: Batching { max: 4096, linger: Duration::from_millis(10) },
        };
        (driver, calls)
    }

    #[tokio::test]
    async fn ab4_a_flood_of_calls_holds_up_no_deadline() {
        const FLOOD_MAX: usize = 2_000_000;
        let dir = tempfile::tempdir().unwrap();
        let (driver, calls) = driver(dir.path());
        let mut events = driver.router.subscribe();
        let driver = tokio::spawn(driver.run());
        let payload = serde_json::json!({ "decision": "revoke", "scope": "s" });
        let draft = Draft {
            id: ObligationId::new("o").unwrap(),
            kind: "anumati.consent".parse().unwrap(),
            target: AgentId::new("b").unwrap(),
            payload: Payload::from_json(payload.as_object().unwrap()).unwrap(),
            deadline_seconds: Some(30),
            max_retries: None,
            sequence: None,
        };
        let (reply, issued) = oneshot::channel();
        calls.send(Call::Issue { drafts: vec![draft], reply }).await.unwrap();
        let results = issued.await.unwrap().await.unwrap();
        assert!(matches!(results[..], [Ok(_)]), "{results:?}");
        // The queue never empties: each look-up is a call, and nobody waits for its answer.
        let mut flood = 0;
        let escalated = loop {
            if let Ok(event) = events.try_recv()
                && let Event::Escalated(escalation) = &*event
            {
                break Some(escalation.obligation_id.clone());
            }
            if flood == FLOOD_MAX {
                break None;
            }
            let (reply, _) = oneshot::channel();
            calls.send(Call::Find { id: ObligationId::new("x").unwrap(), reply }).await.unwrap();
            flood += 1;
        };
        assert_eq!(escalated, Some(ObligationId::new("o").unwrap()), "of {flood} calls");
        calls.send(Call::Stop).await.unwrap();
        driver.await.unwrap().unwrap();
    }

    #[test]
    fn a_batch_grows_under_load_and_one_alone_waits_for_nothing() {
        let mut target = 1;
        for _ in 0..12 {
            target = next_target(target, target, target, true);
        }
        assert_eq!(target, 4096, "doubles while more is waiting");
        assert_eq!(next_target(4096, 4096, 4096, false), 4096, "stands when it just filled up");
        assert_eq!(next_target(4096, 4096, 3500, false), 3500, "falls back gently");
        assert_eq!(next_target(4096, 4096, 1000, false), 3072);
        assert_eq!(next_target(4096, 4096, 1, false), 1, "falls at once when the load is gone");
        assert_eq!(next_target(1, 1, 1, false), 1);
        for start in 1..100 {
            let fallen = (0..20).fold(start, |target, _| next_target(target, target, 1, false));
            assert_eq!(fallen, 1, "one at a time after batches of {start} waits for nothing");
        }
    }
}
