//! Webhooks of tasks: each is told every event of its task, in order, until it answers 2xx (A2A
//! §4.3.3, §13.2).
//!
//! There is no queue of notifications: the events of a task are durable, and of each webhook is kept
//! how far it has come. So nothing is lost by a restart, and a webhook that is away costs one record.
//! A notification may come twice; its `Idempotency-Key` is the same then.

#[cfg(test)]
mod tests;

use super::fault::{Fault, Kind};
use super::log::Disk;
use super::reach::{PublicOnly, names_public};
use super::record::{Edit, beyond, event_key, json, push_key, under};
use super::tasks::{Tasks, random_id, read};
use super::types::{PushConfig, StreamResponse};
use crate::clock::Clock;
use crate::config::A2aConfig;
use crate::store::{SideTable, SideWrite};
use proto::backoff::Backoff;
use proto::store::ReadError;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// How long one call may take (A2A §13.2 recommends 10 to 30 s).
const CALL_TIME_MAX: Duration = Duration::from_secs(15);
/// Milliseconds before the first retry; doubles up to `a2a.push_retry_cap_ms`.
const RETRY_BASE_MS: u64 = 500;
/// Bytes of the id, token, scheme, credentials or URL of a webhook; longer ones are refused.
const TEXT_LEN_MAX: usize = 4_096;
/// Records read from the disk at once.
const PAGE: usize = 1_024;
/// Events told in one turn of a webhook, before others have theirs.
const EVENTS_A_TURN: usize = 64;
/// The longest sleep, after which the table is looked at all the same.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// Whom tokens are shown: the name of the SDKs for Python and JavaScript, and that of the Rust one.
const TOKEN_HEADERS: [HeaderName; 2] = [
    HeaderName::from_static("x-a2a-notification-token"),
    HeaderName::from_static("a2a-notification-token"),
];

/// A webhook and how far it has come.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
struct Hook {
    config: PushConfig,
    /// Number of the event it is told next.
    next: u64,
    /// Whether there is nothing more to tell it: the task ended, or it was given up.
    over: bool,
}

/// What memory has of a webhook.
#[derive(Debug, Default)]
struct Slot {
    /// Told apart from an older one of its name.
    generation: u64,
    /// When it is told next, in unix milliseconds; `None` when there is nothing to tell.
    due_ms: Option<u64>,
    /// Whether a call is under way.
    busy: bool,
    /// Whether something happened during that call.
    again: bool,
    /// Tries of the present event that failed, and when the first did.
    failures: u32,
    failing_since_ms: u64,
}

/// Task and id of a webhook.
type Key = (String, String);

#[derive(Debug, Default)]
struct Table {
    slots: BTreeMap<Key, Slot>,
    /// Slots that have something to tell, the soonest first.
    due: BTreeSet<(u64, Key)>,
    generations: u64,
    /// Webhooks being made.
    beginning: usize,
}

impl Table {
    fn of_task(&self, task: &str) -> Vec<Key> {
        let first = (task.to_owned(), String::new());
        let slots = self.slots.range(first..).take_while(|((of, _), _)| of == task);
        slots.map(|(key, _)| key.clone()).collect()
    }

    /// Puts a slot in, in place of an older one.
    fn put(&mut self, key: Key, slot: Slot) {
        self.remove(&key);
        if let Some(due_ms) = slot.due_ms {
            self.due.insert((due_ms, key.clone()));
        }
        self.slots.insert(key, slot);
    }

    fn remove(&mut self, key: &Key) {
        if let Some(due_ms) = self.slots.remove(key).and_then(|slot| slot.due_ms) {
            self.due.remove(&(due_ms, key.clone()));
        }
    }

    /// Sets when a slot is told next.
    fn arm(&mut self, key: &Key, due_ms: Option<u64>) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        if let Some(old) = std::mem::replace(&mut slot.due_ms, due_ms) {
            self.due.remove(&(old, key.clone()));
        }
        if let Some(due_ms) = due_ms {
            self.due.insert((due_ms, key.clone()));
        }
    }
}

/// The webhooks of all tasks. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hooks {
    table: Arc<Mutex<Table>>,
    bell: Arc<Notify>,
}

impl Hooks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happened to a task.
    pub(crate) fn wake(&self, task: &str) {
        let mut table = self.table();
        for key in table.of_task(task) {
            match table.slots.get_mut(&key) {
                Some(slot) if slot.busy => slot.again = true,
                Some(slot) if slot.due_ms.is_none() => {
                    table.arm(&key, Some(0));
                    self.bell.notify_one();
                }
                _ => {}
            }
        }
    }

    /// Whether a webhook of a task has something to hear yet.
    pub(crate) fn telling(&self, task: &str) -> bool {
        let table = self.table();
        let first = (task.to_owned(), String::new());
        let mut slots = table.slots.range(first..).take_while(|((of, _), _)| of == task);
        slots.any(|(_, slot)| slot.busy || slot.due_ms.is_some())
    }

    /// A task is gone, and its webhooks with it.
    pub(crate) fn forget(&self, task: &str) {
        let mut table = self.table();
        for key in table.of_task(task) {
            table.remove(&key);
        }
    }

    /// Takes the webhooks that are on the disk into memory.
    pub(crate) fn load(&self, disk: &Disk) -> Result<(), ReadError> {
        let mut table = self.table();
        let mut from = Vec::new();
        loop {
            let page = disk.range(SideTable::TaskPush, &from, None, PAGE)?;
            let Some((key, _)) = page.last() else { return Ok(()) };
            from.clone_from(key);
            from.push(0);
            for (_, value) in page {
                let hook: Hook = disk.parse(&value)?;
                let key = (hook.config.task_id.clone(), hook.config.id.clone());
                let due_ms = (!hook.over).then_some(0);
                table.put(key, Slot { due_ms, ..Slot::default() });
            }
        }
    }
}

/// A place in the table, given back if nothing comes of it.
struct Beginning(Hooks);

impl Drop for Beginning {
    fn drop(&mut self) {
        self.0.table().beginning -= 1;
    }
}

/// A webhook that is being made with a change of its task. The one before it, if there is one, is not
/// called meanwhile, and goes on if nothing comes of this.
struct Anew {
    beginning: Beginning,
    key: Key,
    generation: u64,
}

impl Anew {
    fn begin(beginning: Beginning, key: Key) -> Self {
        let mut table = beginning.0.table();
        table.generations += 1;
        let generation = table.generations;
        table.arm(&key, None);
        if let Some(slot) = table.slots.get_mut(&key) {
            slot.generation = generation;
            slot.busy = true;
        }
        drop(table);
        Self { beginning, key, generation }
    }

    fn made(self) {
        let slot = Slot { generation: self.generation, ..Slot::default() };
        self.beginning.0.table().put(self.key.clone(), slot);
    }
}

impl Drop for Anew {
    fn drop(&mut self) {
        let hooks = &self.beginning.0;
        let mut table = hooks.table();
        if let Some(slot) = table.slots.get_mut(&self.key)
            && slot.generation == self.generation
        {
            slot.busy = false;
            table.arm(&self.key, Some(0));
            hooks.bell.notify_one();
        }
    }
}

/// Makes, lists and calls webhooks.
#[derive(Clone, Debug)]
pub(crate) struct Push {
    tasks: Tasks,
    hooks: Hooks,
    clock: Arc<dyn Clock>,
    limits: A2aConfig,
    client: reqwest::Client,
}

impl Push {
    pub(crate) fn new(
        tasks: Tasks,
        hooks: Hooks,
        clock: Arc<dyn Clock>,
        limits: A2aConfig,
    ) -> Result<Self, reqwest::Error> {
        let mut client = reqwest::Client::builder()
            .timeout(CALL_TIME_MAX)
            .no_proxy() // a proxy would look names up in our place
            .redirect(reqwest::redirect::Policy::none());
        if !limits.push_to_private {
            client = client.dns_resolver(Arc::new(PublicOnly));
        }
        Ok(Self { tasks, hooks, clock, limits, client: client.build()? })
    }

    /// Whether a webhook may be made of this, its gaps filled in.
    pub(crate) fn checked(&self, mut config: PushConfig, field: &str) -> Result<PushConfig, Fault> {
        let wrong = |name: &str, what: &str| Fault::params(format!("{field}{name}"), what);
        for (name, text) in [
            ("id", &config.id),
            ("url", &config.url),
            ("token", &config.token),
            ("tenant", &config.tenant),
        ] {
            if text.len() > TEXT_LEN_MAX {
                return Err(wrong(name, "longer than 4096 bytes"));
            }
        }
        let url = reqwest::Url::parse(&config.url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| wrong("url", "no http or https URL"))?;
        if !self.limits.push_to_private && !names_public(&url) {
            return Err(wrong("url", "on this machine or in a private network"));
        }
        headers(&config).map_err(|name| wrong(name, "cannot be sent in a header"))?;
        if config.id.is_empty() {
            config.id = random_id()?;
        }
        Ok(config)
    }

    /// What makes a webhook with a change of its task, which it is told too; or another of one of its
    /// id. A task that is being made has no id yet.
    pub(crate) fn with_change(
        &self,
        config: PushConfig,
    ) -> Result<impl FnOnce(&mut Edit) + Send + use<>, Fault> {
        let known = !config.task_id.is_empty();
        self.room(known.then_some((config.task_id.as_str(), config.id.as_str())))?;
        let beginning = Beginning(self.hooks.clone());
        Ok(move |edit: &mut Edit| {
            let config = PushConfig { task_id: edit.record.task.id.clone(), ..config };
            let key = (config.task_id.clone(), config.id.clone());
            let hook = Hook { config, next: edit.record.events + 1, over: false };
            edit.also.push(SideWrite {
                table: SideTable::TaskPush,
                key: push_key(&key.0, &key.1),
                value: Some(json(&hook)),
            });
            let anew = Anew::begin(beginning, key);
            edit.then.push(Box::new(move || anew.made()));
        })
    }

    /// Takes a place for one more webhook, of a task if it is known.
    fn room(&self, task: Option<(&str, &str)>) -> Result<(), Fault> {
        let mut table = self.hooks.table();
        if let Some((task, id)) = task {
            let max = self.limits.push_configs_per_task_max;
            if table.of_task(task).iter().filter(|(_, of)| of != id).count() >= max {
                let what = format!("a task has {max} webhooks at most");
                return Err(Fault::new(Kind::UnsupportedOperation, what));
            }
        }
        if table.slots.len() + table.beginning >= self.limits.push_configs_max {
            let what = format!("{} webhooks, the limit", self.limits.push_configs_max);
            return Err(Fault::overloaded(what));
        }
        table.beginning += 1;
        Ok(())
    }

    /// Makes a webhook, or another of one of the same id. It is told what happens from now on.
    pub(crate) async fn create(
        &self,
        scope: &str,
        config: PushConfig,
    ) -> Result<PushConfig, Fault> {
        let record = self.tasks.read_of(scope, &config.task_id)?;
        let config = self.checked(config, "")?;
        self.room(Some((&config.task_id, &config.id)))?;
        let beginning = Beginning(self.hooks.clone());
        let key = (config.task_id.clone(), config.id.clone());
        let over = record.state().is_terminal();
        let hook = Hook { config: config.clone(), next: record.events + 1, over };
        let write = SideWrite {
            table: SideTable::TaskPush,
            key: push_key(&key.0, &key.1),
            value: Some(json(&hook)),
        };
        let place = self.tasks.log().place(vec![write]).await?;
        let ticket = {
            let mut table = self.hooks.table();
            table.generations += 1;
            let generation = table.generations;
            // Busy until it is durable: a call in between would read, and write, the one before it.
            table.put(key.clone(), Slot { generation, busy: true, ..Slot::default() });
            let hooks = self.hooks.clone();
            place.commit(move || {
                let mut table = hooks.table();
                let slot = table.slots.get_mut(&key).filter(|slot| slot.generation == generation);
                if let Some(slot) = slot {
                    slot.busy = false;
                }
                drop(table);
                hooks.wake(&key.0);
            })
        };
        drop(beginning);
        ticket.durable().await?;
        Ok(config)
    }

    /// The webhook of this id.
    pub(crate) fn get(&self, scope: &str, task: &str, id: &str) -> Result<PushConfig, Fault> {
        self.tasks.read_of(scope, task)?;
        let hook = self.read(task, id)?;
        hook.map(|hook| hook.config).ok_or_else(|| Fault::no_task(task).with("configId", id))
    }

    /// Webhooks of a task after the one of id `after`, in order, and whether there are more.
    pub(crate) fn list(
        &self,
        scope: &str,
        task: &str,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<PushConfig>, bool), Fault> {
        self.tasks.read_of(scope, task)?;
        let mut from = under(task);
        if !after.is_empty() {
            from = push_key(task, after);
            from.push(0);
        }
        let to = beyond(task);
        let found = self.tasks.disk().range(
            SideTable::TaskPush,
            &from,
            Some(&to),
            limit.saturating_add(1),
        )?;
        let more = found.len() > limit;
        let mut configs = Vec::new();
        for (_, value) in found.into_iter().take(limit) {
            configs.push(self.tasks.disk().parse::<Hook>(&value)?.config);
        }
        Ok((configs, more))
    }

    /// Removes a webhook, or nothing.
    pub(crate) async fn delete(&self, scope: &str, task: &str, id: &str) -> Result<(), Fault> {
        self.tasks.read_of(scope, task)?;
        let write = SideWrite { table: SideTable::TaskPush, key: push_key(task, id), value: None };
        let place = self.tasks.log().place(vec![write]).await?;
        let ticket = {
            // A call that is under way looks for its slot, under this lock, before it notes its end.
            let mut table = self.hooks.table();
            table.remove(&(task.to_owned(), id.to_owned()));
            place.commit(|| {})
        };
        ticket.durable().await
    }

    fn read(&self, task: &str, id: &str) -> Result<Option<Hook>, ReadError> {
        let bytes = self.tasks.disk().get(SideTable::TaskPush, &push_key(task, id))?;
        bytes.map(|bytes| self.tasks.disk().parse(&bytes)).transpose()
    }

    /// Calls webhooks for ever.
    pub(crate) async fn run(self) {
        let mut calls = JoinSet::new();
        loop {
            let soonest = self.start_due(&mut calls);
            let wait = soonest.map_or(SLEEP_MAX, |due_ms| {
                Duration::from_millis(due_ms.saturating_sub(self.clock.now().as_ms()))
                    .clamp(Duration::from_millis(1), SLEEP_MAX)
            });
            tokio::select! {
                biased;
                Some(_) = calls.join_next() => {}
                () = self.hooks.bell.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Starts what is due, within the limit; when the next is.
    fn start_due(&self, calls: &mut JoinSet<()>) -> Option<u64> {
        let now = self.clock.now().as_ms();
        let mut table = self.hooks.table();
        while let Some((due_ms, key)) = table.due.first().cloned() {
            if due_ms > now {
                return Some(due_ms);
            }
            if calls.len() >= self.limits.push_calls_max {
                return None; // the end of one of them wakes us
            }
            table.arm(&key, None);
            let Some(slot) = table.slots.get_mut(&key) else { continue };
            slot.busy = true;
            slot.again = false;
            let (push, generation) = (self.clone(), slot.generation);
            calls.spawn(async move {
                let told = push.tell(&key, generation).await;
                push.told(&key, generation, told);
            });
        }
        None
    }

    /// What becomes of a webhook after its turn.
    fn told(&self, key: &Key, generation: u64, told: Told) {
        let now = self.clock.now().as_ms();
        let mut table = self.hooks.table();
        let Some(slot) = table.slots.get_mut(key).filter(|slot| slot.generation == generation)
        else {
            return;
        };
        slot.busy = false;
        let due_ms = match told {
            Told::All => {
                slot.failures = 0;
                std::mem::take(&mut slot.again).then_some(0)
            }
            Told::Some => {
                slot.failures = 0;
                Some(0)
            }
            Told::Failed => {
                if slot.failures == 0 {
                    slot.failing_since_ms = now;
                }
                let backoff = Backoff {
                    base_ms: RETRY_BASE_MS,
                    cap_ms: self.limits.push_retry_cap_ms.max(RETRY_BASE_MS),
                    jitter_permille: 200,
                };
                let wait_ms = backoff.delay_ms(slot.failures, now);
                slot.failures = slot.failures.saturating_add(1);
                Some(now.saturating_add(wait_ms))
            }
        };
        table.arm(key, due_ms);
    }

    /// Tells a webhook what it has not heard yet.
    async fn tell(&self, key: &Key, generation: u64) -> Told {
        let (task, id) = key;
        for _ in 0..EVENTS_A_TURN {
            let next = match self.next(task, id) {
                Ok(Some(next)) => next,
                Ok(None) => return Told::All,
                Err(error) => {
                    tracing::error!(%error, task, "a webhook cannot be told");
                    return Told::Failed;
                }
            };
            let sent = self.send(&next).await;
            let mut hook = next.hook;
            match sent {
                Ok(()) => {
                    hook.next = next.number + 1;
                    hook.over = next.last;
                }
                Err(why) => {
                    let tried_ms = {
                        let table = self.hooks.table();
                        let slot = table.slots.get(key).filter(|slot| slot.failures > 0);
                        slot.map_or(0, |s| {
                            self.clock.now().as_ms().saturating_sub(s.failing_since_ms)
                        })
                    };
                    tracing::debug!(
                        task,
                        why,
                        event = next.number,
                        "a webhook did not take an event"
                    );
                    if tried_ms < self.limits.push_give_up_seconds.saturating_mul(1_000) {
                        return Told::Failed;
                    }
                    tracing::warn!(
                        task,
                        why,
                        event = next.number,
                        "a webhook is given up: it took nothing for a2a.push_give_up_seconds"
                    );
                    hook.over = true;
                }
            }
            let write = SideWrite {
                table: SideTable::TaskPush,
                key: push_key(task, id),
                value: Some(json(&hook)),
            };
            let Ok(place) = self.tasks.log().place(vec![write]).await else {
                return Told::Failed;
            };
            let ticket = {
                let table = self.hooks.table();
                if table.slots.get(key).is_none_or(|slot| slot.generation != generation) {
                    return Told::All; // deleted, or made anew: what we know of it is of the old one
                }
                place.commit(|| {})
            };
            if ticket.durable().await.is_err() {
                return Told::Failed;
            }
            if hook.over {
                return Told::All;
            }
        }
        Told::Some
    }

    /// The next thing to tell a webhook.
    fn next(&self, task: &str, id: &str) -> Result<Option<Next>, ReadError> {
        let Some(hook) = self.read(task, id)?.filter(|hook| !hook.over) else { return Ok(None) };
        let from = event_key(task, hook.next);
        let found = self.tasks.disk().range(SideTable::TaskEvent, &from, Some(&beyond(task)), 1)?;
        let Some((key, value)) = found.into_iter().next() else { return Ok(None) };
        let Some((last, body)) = value.split_first() else { return Ok(None) };
        if key == from {
            let (number, last, body) = (hook.next, *last == 1, body.to_vec());
            return Ok(Some(Next { hook, number, last, body }));
        }
        // What it would be told next is forgotten: it gets the whole task in its place.
        let Some(record) = read(self.tasks.disk(), task)? else { return Ok(None) };
        let (number, last) = (record.events, record.state().is_terminal());
        let body = json(&StreamResponse::Task(record.task));
        Ok(Some(Next { hook, number, last, body }))
    }

    async fn send(&self, next: &Next) -> Result<(), String> {
        let config = &next.hook.config;
        let url = reqwest::Url::parse(&config.url).map_err(|error| error.to_string())?;
        if !self.limits.push_to_private && !names_public(&url) {
            return Err("it is on this machine or in a private network".to_owned());
        }
        let mut headers = headers(config).map_err(str::to_owned)?;
        let key = format!("{}/{}/{}", config.task_id, config.id, next.number);
        if let Ok(key) = HeaderValue::try_from(key) {
            headers.insert("idempotency-key", key);
        }
        let sent = self.client.post(url).headers(headers).body(next.body.clone()).send().await;
        let response = sent.map_err(|error| error.without_url().to_string())?;
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
    }
}

/// How a turn of a webhook ended.
#[derive(Debug)]
enum Told {
    /// It knows everything.
    All,
    /// It has had its turn, and there is more.
    Some,
    /// It did not take an event.
    Failed,
}

/// What a webhook is told next.
#[derive(Debug)]
struct Next {
    hook: Hook,
    number: u64,
    last: bool,
    body: Vec<u8>,
}

/// The headers of a webhook's calls, or what of its configuration cannot be sent.
fn headers(config: &PushConfig) -> Result<HeaderMap, &'static str> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/a2a+json"));
    if let Some(auth) = config.authentication.as_ref().filter(|auth| !auth.scheme.is_empty()) {
        let text = format!("{} {}", auth.scheme, auth.credentials);
        if text.len() > TEXT_LEN_MAX {
            return Err("authentication");
        }
        let mut value = HeaderValue::try_from(text.trim_end()).map_err(|_| "authentication")?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    if !config.token.is_empty() {
        let mut value = HeaderValue::try_from(config.token.as_str()).map_err(|_| "token")?;
        value.set_sensitive(true);
        for name in TOKEN_HEADERS {
            headers.insert(name, value.clone());
        }
    }
    Ok(headers)
}
