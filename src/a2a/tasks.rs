//! The tasks of a node: who may see them, how they change, and when they are forgotten.
//!
//! The disk has them all. Memory has what lists need of each, and locks and bells of those that go on.

use super::backend::fail;
use super::fault::{Fault, Kind};
use super::jobs::Jobs;
use super::log::{Disk, Log};
use super::push::Hooks;
use super::record::{
    Brief, Carried, Edit, Record, beyond, caller_of, obligation_key, order_ms, order_of_ms, under,
};
use super::types::{Task, TaskState};
use crate::clock::Clock;
use crate::config::A2aConfig;
use crate::store::{SideTable, SideWrite};
use proto::store::ReadError;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Records read from the disk at once.
const PAGE: usize = 1_024;
/// Tasks forgotten in one go; the rest go in the next.
const FORGET_MAX: usize = 256;

/// A task that goes on.
#[derive(Debug)]
pub(crate) struct Live {
    /// Its id.
    pub(crate) id: String,
    /// Locked from the start of a change until it is durable.
    lock: Arc<tokio::sync::Mutex<()>>,
    /// Number of the last durable event.
    told: watch::Sender<u64>,
    /// Number of its work, as of the last durable change.
    turn: watch::Sender<u64>,
    /// Set when the work on it is to stop.
    stop: watch::Sender<bool>,
}

impl Live {
    fn new(record: &Record) -> Self {
        Self {
            id: record.task.id.clone(),
            told: watch::Sender::new(record.events),
            turn: watch::Sender::new(record.turn),
            stop: watch::Sender::new(false),
            lock: Arc::default(),
        }
    }

    /// Tells of events as they become durable; closed after the last.
    pub(crate) fn told(&self) -> watch::Receiver<u64> {
        self.told.subscribe()
    }

    /// Returns when its work is that of a later number.
    pub(crate) async fn turned(&self, from: u64) {
        // We hold the sender, so it cannot be closed.
        let _ = self.turn.subscribe().wait_for(|turn| *turn > from).await;
    }

    /// Ends the work on it.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Returns when the work on it is to end.
    pub(crate) async fn stopped(&self) {
        // We hold the sender, so it cannot be closed.
        let _ = self.stop.subscribe().wait_for(|stop| *stop).await;
    }
}

/// What memory has of all tasks.
#[derive(Debug, Default)]
struct Index {
    briefs: HashMap<String, Brief>,
    /// Tasks of each scope by order.
    scopes: HashMap<String, BTreeMap<u64, String>>,
    /// Tasks that ended, by order.
    ended: BTreeMap<u64, String>,
    live: HashMap<String, Arc<Live>>,
    /// Tasks that go on or begin, by caller.
    going_on: HashMap<String, usize>,
    /// Tasks that begin.
    beginning: usize,
}

impl Index {
    fn put(&mut self, id: &str, brief: Brief) {
        if let Some(old) = self.briefs.remove(id) {
            self.leave(&old);
        }
        self.scopes.entry(brief.scope.clone()).or_default().insert(brief.order, id.to_owned());
        if brief.state.is_terminal() {
            self.ended.insert(brief.order, id.to_owned());
        }
        self.briefs.insert(id.to_owned(), brief);
    }

    fn leave(&mut self, brief: &Brief) {
        self.ended.remove(&brief.order);
        if let Some(tasks) = self.scopes.get_mut(&brief.scope) {
            tasks.remove(&brief.order);
            if tasks.is_empty() {
                self.scopes.remove(&brief.scope);
            }
        }
    }

    fn ends(&mut self, scope: &str) {
        let caller = caller_of(scope);
        if let Some(count) = self.going_on.get_mut(caller) {
            *count -= 1;
            if *count == 0 {
                self.going_on.remove(caller);
            }
        }
    }

    /// Tasks to forget for one of `scope`: that ended, the oldest first, the caller's own before those
    /// of others. One whose webhooks have not heard all of it goes last.
    fn to_forget(&self, scope: &str, hooks: &Hooks, most: usize) -> Vec<String> {
        let caller = caller_of(scope);
        let of = |mine: bool, telling: bool| {
            let fits = move |id: &&String| {
                let brief = self.briefs.get(id.as_str());
                brief.is_some_and(|brief| (caller_of(&brief.scope) == caller) == mine)
                    && hooks.telling(id) == telling
            };
            self.ended.values().filter(fits).take(most).cloned().collect::<Vec<_>>()
        };
        for telling in [false, true] {
            for mine in [true, false] {
                let found = of(mine, telling);
                if found.is_empty() {
                    continue;
                }
                if telling {
                    tracing::warn!(
                        tasks = found.len(),
                        "tasks are forgotten before their webhooks heard of them: a2a.tasks_max"
                    );
                }
                return found;
            }
        }
        Vec::new()
    }
}

/// What is listed.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    /// Of this context; empty for any.
    pub(crate) context: String,
    /// In this state; unspecified for any.
    pub(crate) state: TaskState,
    /// Changed at this unix millisecond or later.
    pub(crate) since_ms: u64,
    /// Only those before this order, the last of the page before.
    pub(crate) before: u64,
    /// Tasks on a page.
    pub(crate) limit: usize,
}

/// Part of a list.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// Orders and ids, the last changed first.
    pub(crate) tasks: Vec<(u64, String)>,
    /// Order to go on before, if there is more.
    pub(crate) next: Option<u64>,
    /// How many there are on all pages.
    pub(crate) total: usize,
}

#[derive(Debug)]
struct Inner {
    log: Log,
    hooks: Hooks,
    jobs: Arc<Jobs>,
    index: Mutex<Index>,
    orders: AtomicU64,
}

/// All tasks. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    inner: Arc<Inner>,
    clock: Arc<dyn Clock>,
    limits: A2aConfig,
}

/// A place for a task that begins, given back if it does not.
struct Beginning {
    inner: Arc<Inner>,
    scope: String,
    begun: bool,
}

impl Drop for Beginning {
    fn drop(&mut self) {
        let mut index = self.inner.index();
        index.beginning -= 1;
        if !self.begun {
            index.ends(&self.scope);
        }
    }
}

/// A task that has its place and is not there yet.
pub(crate) struct Draft {
    beginning: Beginning,
    pub(crate) edit: Edit,
}

impl Inner {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tasks {
    /// The tasks in `log`; there is a job for each that goes on.
    pub(crate) fn open(
        log: Log,
        hooks: Hooks,
        jobs: Arc<Jobs>,
        clock: Arc<dyn Clock>,
        limits: A2aConfig,
    ) -> Result<Self, ReadError> {
        let mut index = Index::default();
        let mut last = 0;
        let mut from = Vec::new();
        loop {
            let page = log.disk().range(SideTable::TaskBrief, &from, None, PAGE)?;
            let Some((key, _)) = page.last() else { break };
            from.clone_from(key);
            from.push(0);
            for (key, value) in page {
                let brief: Brief = log.disk().parse(&value)?;
                let id = String::from_utf8_lossy(&key).into_owned();
                last = last.max(brief.order);
                if !brief.state.is_terminal() {
                    let record = read(log.disk(), &id)?
                        .ok_or_else(|| ReadError(format!("task {id} is gone").into()))?;
                    if let Some(kind) = record.work.kind() {
                        jobs.push(kind, id.clone());
                    }
                    let caller = caller_of(&brief.scope).to_owned();
                    *index.going_on.entry(caller).or_default() += 1;
                    index.live.insert(id.clone(), Arc::new(Live::new(&record)));
                }
                index.put(&id, brief);
            }
        }
        let inner =
            Inner { log, hooks, jobs, index: Mutex::new(index), orders: AtomicU64::new(last) };
        Ok(Self { inner: Arc::new(inner), clock, limits })
    }

    pub(crate) fn disk(&self) -> &Disk {
        self.inner.log.disk()
    }

    /// Orders only grow, whatever the clock does.
    fn order(&self) -> u64 {
        let now = order_of_ms(self.clock.now().as_ms());
        let next = |last: u64| (last + 1).max(now);
        match self
            .inner
            .orders
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |last| Some(next(last)))
        {
            Ok(last) | Err(last) => next(last),
        }
    }

    /// A task that goes on.
    pub(crate) fn live(&self, id: &str) -> Option<Arc<Live>> {
        self.inner.index().live.get(id).cloned()
    }

    /// A task of this scope that goes on; `Ok(None)` if it ended.
    pub(crate) fn live_of(&self, scope: &str, id: &str) -> Result<Option<Arc<Live>>, Fault> {
        let index = self.inner.index();
        match index.briefs.get(id) {
            Some(brief) if brief.scope == scope => Ok(index.live.get(id).cloned()),
            _ => Err(Fault::no_task(id)),
        }
    }

    /// A task that goes on, as it is on the disk.
    pub(crate) fn record(&self, live: &Live) -> Result<Record, Fault> {
        read(self.disk(), &live.id)?.ok_or_else(|| Fault::no_task(&live.id))
    }

    /// A task of this scope as it is on the disk.
    pub(crate) fn read_of(&self, scope: &str, id: &str) -> Result<Record, Fault> {
        let known = self.inner.index().briefs.get(id).is_some_and(|brief| brief.scope == scope);
        let record = if known { read(self.disk(), id)? } else { None };
        record.ok_or_else(|| Fault::no_task(id))
    }

    /// The task of an obligation or of a key, if there was one.
    pub(crate) fn of_obligation(
        &self,
        scope: &str,
        obligation: &str,
    ) -> Result<Option<Record>, Fault> {
        let key = obligation_key(scope, obligation);
        let Some(id) = self.disk().get(SideTable::TaskObligation, &key)? else {
            return Ok(None);
        };
        Ok(read(self.disk(), &String::from_utf8_lossy(&id))?)
    }

    /// Begins a task: `edit` fills it in, and then it is durable.
    pub(crate) async fn begin(
        &self,
        scope: &str,
        context: &str,
        edit: impl FnOnce(&mut Edit),
    ) -> Result<Record, Fault> {
        let draft = self.draft(scope, context).await?;
        self.make(draft, edit).await
    }

    /// A place for a task, so that nothing but the disk stands between it and [`Self::make`].
    pub(crate) async fn draft(&self, scope: &str, context: &str) -> Result<Draft, Fault> {
        let beginning = self.place(scope).await?;
        let id = random_id()?;
        let context_id = if context.is_empty() { random_id()? } else { context.to_owned() };
        let task = Task { id, context_id, ..Task::default() };
        let record = Record { scope: scope.to_owned(), task, ..Record::default() };
        let edit = Edit::new(record, self.order(), self.limits.history_max);
        Ok(Draft { beginning, edit })
    }

    /// Whether what a draft has is short enough; what [`Edit::reserved`] is for may be added.
    pub(crate) fn check(&self, draft: &Draft) -> Result<(), Fault> {
        draft.edit.check(self.limits.task_len_max)
    }

    /// Makes the task of a draft: `edit` fills it in, and then it is durable.
    pub(crate) async fn make(
        &self,
        draft: Draft,
        edit: impl FnOnce(&mut Edit),
    ) -> Result<Record, Fault> {
        let Draft { beginning, edit: mut change } = draft;
        change.at(self.order());
        edit(&mut change);
        change.tell_task();
        if let Some(Carried { obligation, .. }) = &change.record.carried
            && let Some(name) = obligation.get("obligation_id").and_then(|id| id.as_str())
        {
            change.also.push(SideWrite {
                table: SideTable::TaskObligation,
                key: obligation_key(&change.record.scope, name),
                value: Some(change.record.task.id.clone().into_bytes()),
            });
        }
        let (record, writes, then) =
            change.finish(self.limits.task_len_max, self.limits.events_max)?;
        let place = self.inner.log.place(writes).await?;
        let (inner, begun) = (self.inner.clone(), record.clone());
        let ticket = place.commit(move || {
            let mut beginning = beginning;
            beginning.begun = !begun.state().is_terminal();
            let id = begun.task.id.clone();
            {
                let mut index = inner.index();
                index.put(&id, begun.brief());
                if beginning.begun {
                    index.live.insert(id.clone(), Arc::new(Live::new(&begun)));
                }
            }
            then.into_iter().for_each(|then| then());
            // Here and not by the caller, who may be gone: what is durable is worked on.
            if let Some(kind) = begun.work.kind() {
                inner.jobs.push(kind, id.clone());
            }
            inner.hooks.wake(&id);
        });
        ticket.durable().await?;
        Ok(record)
    }

    /// Makes room for one more task, or says why there is none.
    async fn place(&self, scope: &str) -> Result<Beginning, Fault> {
        loop {
            let oldest = {
                let mut index = self.inner.index();
                let mine = index.going_on.get(caller_of(scope)).copied().unwrap_or(0);
                if mine >= self.limits.tasks_per_caller_max {
                    let what = format!("{mine} tasks of this caller go on, the limit");
                    return Err(Fault::overloaded(what));
                }
                if index.briefs.len() + index.beginning < self.limits.tasks_max {
                    *index.going_on.entry(caller_of(scope).to_owned()).or_default() += 1;
                    index.beginning += 1;
                    let inner = self.inner.clone();
                    return Ok(Beginning { inner, scope: scope.to_owned(), begun: false });
                }
                let most = FORGET_MAX.min(1 + self.limits.tasks_max / 16);
                index.to_forget(scope, &self.inner.hooks, most)
            };
            if oldest.is_empty() {
                let what = format!("all {} tasks go on, the limit", self.limits.tasks_max);
                return Err(Fault::overloaded(what));
            }
            self.forget(oldest).await?;
        }
    }

    /// Changes a task that goes on; returns when that is durable. What `edit` refuses changes nothing.
    pub(crate) async fn change<T>(
        &self,
        live: &Live,
        edit: impl FnOnce(&mut Edit) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let held = live.lock.clone().lock_owned().await;
        let record = self.record(live)?;
        let turn = record.turn;
        let mut change = Edit::new(record, self.order(), self.limits.history_max);
        if change.record.state().is_terminal() {
            return Err(Fault::no_task(&live.id)); // it ended while we waited
        }
        let result = edit(&mut change)?;
        let (record, writes, then) =
            change.finish(self.limits.task_len_max, self.limits.events_max)?;
        let place = self.inner.log.place(writes).await?;
        let (inner, told, now) = (self.inner.clone(), live.told.clone(), live.turn.clone());
        let ticket = place.commit(move || {
            let id = &record.task.id;
            {
                let mut index = inner.index();
                index.put(id, record.brief());
                if record.state().is_terminal() {
                    index.live.remove(id);
                    index.ends(&record.scope);
                }
            }
            drop(held);
            then.into_iter().for_each(|then| then());
            if let Some(kind) = record.work.kind().filter(|_| record.turn != turn) {
                inner.jobs.push(kind, id.clone());
            }
            now.send_replace(record.turn);
            told.send_replace(record.events);
            inner.hooks.wake(id);
        });
        ticket.durable().await?;
        Ok(result)
    }

    /// Tasks of a scope.
    pub(crate) fn list(&self, scope: &str, filter: &Filter) -> Listed {
        let index = self.inner.index();
        let mut listed = Listed::default();
        let (mut last, mut more) = (None, false);
        let Some(tasks) = index.scopes.get(scope) else { return listed };
        for (order, id) in tasks.range(order_of_ms(filter.since_ms)..).rev() {
            let fits = index.briefs.get(id).is_some_and(|brief| {
                (filter.context.is_empty() || brief.context == filter.context)
                    && (filter.state == TaskState::Unspecified || brief.state == filter.state)
            });
            if !fits {
                continue;
            }
            listed.total += 1;
            if *order >= filter.before {
                continue;
            }
            if listed.tasks.len() < filter.limit {
                listed.tasks.push((*order, id.clone()));
                last = Some(*order);
            } else {
                more = true;
            }
        }
        listed.next = last.filter(|_| more);
        listed
    }

    /// Ends tasks that have waited for their client as long as tasks are kept.
    async fn expire(&self, until: u64) -> Result<(), Fault> {
        let old: Vec<Arc<Live>> = {
            let index = self.inner.index();
            let waits = |live: &&Arc<Live>| {
                index.briefs.get(&live.id).is_some_and(|brief| {
                    brief.state.is_interrupted() && order_ms(brief.order) < until
                })
            };
            index.live.values().filter(waits).take(FORGET_MAX).cloned().collect()
        };
        for live in old {
            let ended = self
                .change(&live, |edit| {
                    if edit.record.state().is_interrupted() && order_ms(edit.record.order) < until {
                        fail(edit, "nobody answered for as long as tasks are kept");
                        return Ok(());
                    }
                    Err(Fault::no_task(&live.id)) // it was answered meanwhile
                })
                .await;
            match ended {
                Err(fault) if fault.kind != Kind::TaskNotFound => return Err(fault),
                _ => live.stop(),
            }
        }
        Ok(())
    }

    /// Tasks that wait for their client.
    pub(crate) fn waiting(&self) -> Vec<Arc<Live>> {
        let index = self.inner.index();
        let waits = |live: &&Arc<Live>| {
            index.briefs.get(&live.id).is_some_and(|brief| brief.state.is_interrupted())
        };
        index.live.values().filter(waits).cloned().collect()
    }

    /// Forgets tasks that ended longer ago than they are kept; whether there may be more.
    pub(crate) async fn sweep(&self) -> Result<bool, Fault> {
        let kept_ms = self.limits.retention_seconds.saturating_mul(1_000);
        let until = self.clock.now().before_ms(kept_ms).as_ms();
        self.expire(until).await?;
        let old: Vec<String> = {
            let index = self.inner.index();
            let old = index.ended.iter().take_while(|(order, _)| order_ms(**order) < until);
            old.take(FORGET_MAX).map(|(_, id)| id.clone()).collect()
        };
        let more = old.len() == FORGET_MAX;
        self.forget(old).await?;
        Ok(more)
    }

    /// Forgets tasks that ended, with all that belongs to them.
    async fn forget(&self, ids: Vec<String>) -> Result<(), Fault> {
        let mut writes = Vec::new();
        for id in &ids {
            let gone = |table, key| SideWrite { table, key, value: None };
            for table in [SideTable::TaskEvent, SideTable::TaskPush] {
                let mut from = under(id);
                loop {
                    let page = self.disk().range(table, &from, Some(&beyond(id)), PAGE)?;
                    let Some((key, _)) = page.last() else { break };
                    from.clone_from(key);
                    from.push(0);
                    writes.extend(page.into_iter().map(|(key, _)| gone(table, key)));
                }
            }
            let record = read(self.disk(), id)?.unwrap_or_default();
            for name in record.names() {
                let key = obligation_key(&record.scope, &name);
                // A later task may carry the same obligation.
                if self.disk().get(SideTable::TaskObligation, &key)?.as_deref()
                    == Some(id.as_bytes())
                {
                    writes.push(gone(SideTable::TaskObligation, key));
                }
            }
            writes.push(gone(SideTable::Task, id.clone().into_bytes()));
            writes.push(gone(SideTable::TaskBrief, id.clone().into_bytes()));
        }
        if writes.is_empty() {
            return Ok(());
        }
        let inner = self.inner.clone();
        let ticket = self.inner.log.place(writes).await?.commit(move || {
            let mut index = inner.index();
            for id in &ids {
                inner.hooks.forget(id);
                if let Some(brief) = index.briefs.remove(id) {
                    index.leave(&brief);
                }
            }
        });
        ticket.durable().await
    }

    /// How many tasks there are, and how many of them go on.
    pub(crate) fn count(&self) -> (usize, usize) {
        let index = self.inner.index();
        (index.briefs.len(), index.live.len())
    }

    /// For commits beside those of tasks.
    pub(crate) fn log(&self) -> &Log {
        &self.inner.log
    }
}

/// A task by id.
pub(crate) fn read(disk: &Disk, id: &str) -> Result<Option<Record>, ReadError> {
    let bytes = disk.get(SideTable::Task, id.as_bytes())?;
    bytes.map(|bytes| disk.parse(&bytes)).transpose()
}

/// A random UUID (RFC 9562 §5.4).
pub(crate) fn random_id() -> Result<String, Fault> {
    let mut bytes = [0u8; 16];
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    random.fill(&mut bytes).map_err(|_| Fault::new(Kind::Internal, "no random bytes for an id"))?;
    let mut bits = u128::from_be_bytes(bytes);
    bits = bits & !(0xf << 76) | (4 << 76);
    bits = bits & !(0b11 << 62) | (0b10 << 62);
    let hex = format!("{bits:032x}");
    let mut text = String::with_capacity(36);
    for (at, digit) in hex.chars().enumerate() {
        if matches!(at, 8 | 12 | 16 | 20) {
            text.push('-');
        }
        text.push(digit);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2a::record::Work;
    use crate::clock::SystemClock;
    use proto::time::Time;

    /// PS-1, CR-1: a caller that hangs up during the sync leaves a task that is worked on.
    #[tokio::test]
    async fn what_is_durable_is_worked_on_whoever_hangs_up() {
        let (_dir, log, _failed) = crate::a2a::log::tests::log();
        let (jobs, clock) =
            (Arc::new(Jobs::default()), SystemClock::starting_at_least(Time::default()));
        let limits = A2aConfig::default();
        let tasks =
            Tasks::open(log, Hooks::default(), jobs.clone(), Arc::new(clock), limits).unwrap();
        let hung_up = tasks.begin("s", "", |edit| {
            edit.record.work = Work::Turn;
            edit.enter(TaskState::Submitted, None);
        });
        tokio::select! {
            biased;
            _ = hung_up => {}
            () = std::future::ready(()) => {}
        }
        let next = async || {
            let soon = async {
                loop {
                    match jobs.pop(crate::a2a::jobs::Kind::Agent) {
                        Some(job) => return job,
                        None => jobs.rung().await,
                    }
                }
            };
            tokio::time::timeout(std::time::Duration::from_secs(10), soon).await.expect("a job")
        };
        let job = next().await;
        let live = tasks.live(&job.id).unwrap();
        drop(job);
        // The same for a further turn of it.
        let hung_up = tasks.change(&live, |edit| {
            edit.record.turn += 1;
            Ok(())
        });
        tokio::select! {
            biased;
            _ = hung_up => {}
            () = std::future::ready(()) => {}
        }
        assert_eq!(next().await.id, live.id);
    }
}
