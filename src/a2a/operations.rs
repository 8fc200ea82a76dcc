//! The eleven operations of A2A (§3.1), whatever binding they come by.

use super::fault::{Fault, Kind};
use super::keys::Claim;
use super::obligation;
use super::record::{Asked, Edit, Record, Work, json};
use super::stream::{Events, Start};
use super::tasks::{Filter, Live};
use super::types::{
    CardRequest, ListRequest, ListResponse, Message, PushConfig, PushList, PushRequest, Role,
    SendRequest, Task, TaskRequest, TaskState,
};
use super::{A2a, wanted};
use crate::acap::Told;
use proto::consent::EXTENSION_URI;
use proto::id::AgentId;
use proto::time::Time;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::watch::Receiver;
use tokio::time::Instant;

/// Bytes of an id that a client chooses.
const ID_LEN_MAX: usize = 256;
/// Extensions, references and parts of one message.
const ITEMS_MAX: usize = 1_024;
/// Tasks, or webhooks, on a page when the client does not say, and at most (A2A §3.1.4).
const PAGE_DEFAULT: usize = 50;
const PAGE_MAX: usize = 100;
/// Bytes after which a page ends, however few tasks are on it.
const PAGE_LEN_MAX: usize = 4 * 1024 * 1024;
/// Messages of each task in a list when the client does not say.
const LIST_HISTORY_DEFAULT: usize = 10;

/// Who calls, and how.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// A peer of this node; `None` is who is on this machine or has the operator's token.
    pub(crate) peer: Option<AgentId>,
    /// Extensions named in `A2A-Extensions`.
    pub(crate) extensions: Vec<String>,
    /// Number of the last event the client has seen, in `Last-Event-ID`.
    pub(crate) last_event: Option<u64>,
    /// What the client names its message by, in `Idempotency-Key`.
    pub(crate) key: Option<String>,
}

impl Caller {
    /// Whose tasks these are: those of one caller in one tenant (A2A §13.1).
    fn scope(&self, tenant: &str) -> Result<String, Fault> {
        let tenant = id("tenant", tenant)?;
        let caller = match &self.peer {
            Some(peer) => format!("peer {peer}"),
            None => "local".to_owned(),
        };
        Ok(format!("{caller}\n{tenant}"))
    }

    fn has_extension(&self) -> bool {
        self.extensions.iter().any(|uri| uri == obligation::URI)
    }
}

fn id<'a>(field: &str, text: &'a str) -> Result<&'a str, Fault> {
    if text.len() > ID_LEN_MAX || text.contains(char::is_control) {
        let what = format!("at most {ID_LEN_MAX} bytes and no control characters");
        return Err(Fault::params(field, what));
    }
    Ok(text)
}

/// A number that is not negative.
fn count(field: &str, given: Option<i64>) -> Result<Option<usize>, Fault> {
    given
        .map(|given| {
            usize::try_from(given).map_err(|_| {
                Fault::params(field, format!("Must be non-negative integer, got {given}"))
            })
        })
        .transpose()
}

fn page_size(given: Option<i64>) -> Result<usize, Fault> {
    match given {
        None | Some(0) => Ok(PAGE_DEFAULT), // 0 is absent, to protobuf
        Some(given) => {
            usize::try_from(given).ok().filter(|size| *size <= PAGE_MAX).ok_or_else(|| {
                let what = format!("Must be between 1 and {PAGE_MAX} inclusive, got {given}");
                Fault::params("pageSize", what)
            })
        }
    }
}

/// Leaves the newest `max` messages in (A2A §3.2.4).
fn cut_history(task: &mut Task, max: Option<usize>) {
    if let Some(max) = max {
        let over = task.history.len().saturating_sub(max);
        task.history.drain(..over);
    }
}

impl A2a {
    /// Refuses who does not know an extension that is required (A2A §3.3.4).
    pub(crate) async fn check_extensions(&self, caller: &Caller) -> Result<(), Fault> {
        let ours = self.config.a2a.extension_required.then_some(obligation::URI);
        let profile = self.backend.profile().await;
        let required = |extension: &&Value| extension.get("required") == Some(&Value::Bool(true));
        let agents = profile.extensions.iter().filter(required);
        let uris = agents.filter_map(|extension| extension.get("uri").and_then(Value::as_str));
        for uri in ours.into_iter().chain(uris) {
            if !caller.extensions.iter().any(|named| named == uri) {
                let what = format!("{uri} is required; name it in A2A-Extensions");
                let fault = Fault::new(Kind::ExtensionSupportRequired, what);
                return Err(fault.with("extension", uri));
            }
        }
        Ok(())
    }

    /// Those of the extensions a caller named that are known here or to the agent.
    pub(crate) async fn active(&self, caller: &Caller) -> Vec<String> {
        if caller.extensions.is_empty() {
            return Vec::new();
        }
        let profile = self.backend.profile().await;
        let known = |uri: &&String| {
            uri.as_str() == obligation::URI
                || (self.gate.acap().is_some() && uri.as_str() == EXTENSION_URI)
                || profile
                    .extensions
                    .iter()
                    .any(|known| known.get("uri").and_then(Value::as_str) == Some(uri))
        };
        caller.extensions.iter().filter(known).cloned().collect()
    }

    async fn checked(&self, message: Option<Message>) -> Result<Message, Fault> {
        let message = message.ok_or_else(|| Fault::params("message", "missing"))?;
        if message.message_id.is_empty() {
            return Err(Fault::params("message.messageId", "missing"));
        }
        for (field, text) in [
            ("message.messageId", &message.message_id),
            ("message.taskId", &message.task_id),
            ("message.contextId", &message.context_id),
        ] {
            id(field, text)?;
        }
        if message.role == Role::Agent {
            return Err(Fault::params("message.role", "Must be ROLE_USER"));
        }
        if message.parts.is_empty() {
            return Err(Fault::params("message.parts", "At least one part is required"));
        }
        let most =
            [message.parts.len(), message.extensions.len(), message.reference_task_ids.len()];
        if most.into_iter().any(|count| count > ITEMS_MAX) {
            return Err(Fault::params("message", format!("a list of more than {ITEMS_MAX}")));
        }
        let profile = self.backend.profile().await;
        for (at, part) in message.parts.iter().enumerate() {
            if part.contents() != 1 {
                let what = "Exactly one of text, raw, url, data is required";
                return Err(Fault::params(format!("message.parts[{at}]"), what));
            }
            if part.raw.as_ref().is_some_and(|raw| !is_base64(raw)) {
                return Err(Fault::params(format!("message.parts[{at}].raw"), "no base64"));
            }
            if !part.media_type.is_empty() && !profile.takes(&part.media_type) {
                let what = format!("{} is not taken", part.media_type);
                return Err(Fault::new(Kind::ContentTypeNotSupported, what)
                    .with("mediaType", &part.media_type));
            }
        }
        Ok(message)
    }

    /// Takes a message: a new task, or more for one (A2A §3.1.1). Durable when it returns.
    async fn take(&self, caller: &Caller, request: SendRequest) -> Result<Record, Fault> {
        let scope = caller.scope(&request.tenant)?;
        let mut message = self.checked(request.message).await?;
        message.role = Role::User;
        let config = request.configuration.task_push_notification_config;
        let unnamed = config.as_ref().is_some_and(|config| config.id.is_empty());
        let mut config = config
            .map(|config| self.push.checked(config, "configuration.taskPushNotificationConfig."))
            .transpose()?;
        let extensions = self.active(caller).await;
        let asked = Asked {
            metadata: request.metadata,
            // Ours end here: the agent behind has no part in custody, nor in consent.
            extensions: extensions
                .into_iter()
                .filter(|uri| uri != obligation::URI && uri != EXTENSION_URI)
                .collect(),
        };
        let carried = obligation::find(&message, caller.has_extension())?;
        if let Some(config) = config.as_mut().filter(|_| unnamed && carried.is_some()) {
            // Copies of an obligation name the same one.
            obligation::WEBHOOK.clone_into(&mut config.id);
        }
        // One place for both: of a new task when there is no id.
        let config = config.map(|config| PushConfig { task_id: message.task_id.clone(), ..config });
        let again = carried.as_ref().and_then(|_| config.clone());
        let webhook = config.map(|config| self.push.with_change(config)).transpose()?;
        if carried.is_none() {
            self.pass(caller, &message).await?;
        }
        // Copies of an obligation have its id.
        let keyed = match caller.key.as_deref().filter(|_| carried.is_none()) {
            None => None,
            Some(key) => match self.keys.claim(&self.tasks, &scope, key, &message.task_id).await? {
                Claim::Taken(record) => return Ok(*record),
                Claim::Free(keyed) => Some(keyed),
            },
        };
        let with_webhook = |edit: &mut Edit| {
            if let Some(webhook) = webhook {
                webhook(edit);
            }
            if let Some(keyed) = keyed {
                keyed.note(edit);
            }
        };
        if !message.task_id.is_empty() {
            return self.take_more(&scope, message, asked, with_webhook).await;
        }
        if let Some(carried) = carried {
            let Some(peer) = &caller.peer else {
                let what = "an obligation is taken from a peer only, known by its token";
                return Err(Fault::new(Kind::PermissionDenied, what));
            };
            let (record, begun) =
                self.obligations.take(&scope, peer, message, carried, with_webhook).await?;
            if let Some(config) = again.filter(|_| !begun) {
                self.hook_again(&scope, &record, config).await;
            }
            Ok(record)
        } else {
            let context = message.context_id.clone();
            self.tasks
                .begin(&scope, &context, |edit| {
                    message.task_id.clone_from(&edit.record.task.id);
                    message.context_id.clone_from(&edit.record.task.context_id);
                    edit.history([message]);
                    edit.record.work = Work::Turn;
                    edit.record.asked = asked;
                    edit.enter(TaskState::Submitted, None);
                    with_webhook(edit);
                })
                .await
        }
    }

    /// Whether the gate lets a message pass to the agent.
    async fn pass(&self, caller: &Caller, message: &Message) -> Result<(), Fault> {
        let told = Told::beside(|name| message.metadata.as_ref()?.get(name));
        let wanted = wanted(message, self.config.a2a.skills_believed);
        self.gate.admit(caller.peer.as_ref(), &wanted, &told).await.map_err(|refusal| {
            let kind =
                if refusal.is_temporary() { Kind::Unavailable } else { Kind::PermissionDenied };
            let fault = Fault::new(kind, refusal.to_string());
            let fault = match refusal.scope() {
                Some(scope) => fault.with("scope", scope),
                None => fault,
            };
            let fault = match refusal.consent() {
                Some(denial) => fault.with("acap", denial.to_string()),
                None => fault,
            };
            match refusal.obligation() {
                Some(obligation) => fault.with("obligationId", &obligation),
                None => fault,
            }
        })
    }

    /// The webhook that a copy of an obligation names. It is not worth to refuse the ack for.
    async fn hook_again(&self, scope: &str, record: &Record, config: PushConfig) {
        let config = PushConfig { task_id: record.task.id.clone(), ..config };
        let known = self.push.get(scope, &config.task_id, &config.id);
        if known.is_ok_and(|known| known == config) {
            return; // and it goes on where it was
        }
        if let Err(fault) = self.push.create(scope, config).await {
            tracing::debug!(why = fault.message(), "a copy of an obligation has no webhook");
        }
    }

    /// Takes a message for a task that waits for one.
    async fn take_more(
        &self,
        scope: &str,
        mut message: Message,
        asked: Asked,
        with_webhook: impl FnOnce(&mut Edit),
    ) -> Result<Record, Fault> {
        let task = message.task_id.clone();
        let live = self.going_on(scope, &task)?;
        let record = self.tasks.record(&live)?;
        if !message.context_id.is_empty() && message.context_id != record.task.context_id {
            return Err(Fault::params("message.contextId", "not the context of this task"));
        }
        self.tasks
            .change(&live, |edit| {
                if !edit.record.state().is_interrupted() {
                    let what = "the agent is at work on this task and asks for nothing; wait for its answer";
                    return Err(Fault::new(Kind::UnsupportedOperation, what).with("taskId", &task));
                }
                message.context_id.clone_from(&edit.record.task.context_id);
                // What the agent asked comes before what it is told.
                let question = edit.record.task.status.message.take();
                edit.history(question.into_iter().chain([message]));
                edit.record.asked = asked;
                with_webhook(edit);
                edit.status(TaskState::Working, None);
                edit.record.work = Work::Turn;
                edit.record.turn += 1;
                Ok(edit.record.clone())
            })
            .await
            .map_err(|fault| match fault.kind {
                Kind::TaskNotFound => has_ended(&live.id), // meanwhile
                _ => fault,
            })
    }

    /// A task that goes on, or the error of one that ended (A2A §3.1.2).
    fn going_on(&self, scope: &str, task: &str) -> Result<Arc<Live>, Fault> {
        self.tasks.live_of(scope, task)?.ok_or_else(|| has_ended(task))
    }

    /// `SendMessage` (A2A §3.1.1).
    /// A server that stops answers with the task as it stands.
    pub(crate) async fn send(
        &self,
        caller: &Caller,
        request: SendRequest,
        stop: &Receiver<bool>,
    ) -> Result<Task, Fault> {
        let history = count("configuration.historyLength", request.configuration.history_length)?;
        let waits = !request.configuration.return_immediately;
        let Record { scope, mut task, .. } = self.take(caller, request).await?;
        if waits && !task.status.state.is_terminal() {
            let id = std::mem::take(&mut task).id; // what was said need not wait in memory
            let mut stop = stop.clone();
            let waited = tokio::select! {
                biased;
                Ok(_) = stop.wait_for(|stop| *stop) => self.tasks.read_of(&scope, &id)?,
                waited = self.wait(&scope, &id) => waited?,
            };
            task = waited.task;
        }
        cut_history(&mut task, history);
        Ok(task)
    }

    /// Waits until a task ends or asks for something, or for as long as calls wait.
    async fn wait(&self, scope: &str, task: &str) -> Result<Record, Fault> {
        let until = Instant::now() + Duration::from_secs(self.config.a2a.wait_seconds_max);
        if let Some(live) = self.tasks.live(task) {
            let mut told = live.told();
            drop(live);
            loop {
                told.mark_unchanged();
                let record = self.tasks.read_of(scope, task)?;
                if record.state().is_terminal() || record.state().is_interrupted() {
                    return Ok(record);
                }
                match tokio::time::timeout_at(until, told.changed()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => break,
                }
            }
        }
        self.tasks.read_of(scope, task)
    }

    fn stream_place(&self) -> Result<OwnedSemaphorePermit, Fault> {
        self.streams.clone().try_acquire_owned().map_err(|_| {
            let max = self.config.a2a.streams_max;
            Fault::overloaded(format!("{max} streams are open, the limit"))
        })
    }

    /// `SendStreamingMessage` (A2A §3.1.2).
    pub(crate) async fn send_streaming(
        &self,
        caller: &Caller,
        request: SendRequest,
    ) -> Result<Events, Fault> {
        let place = self.stream_place()?;
        let follows = request.message.as_ref().is_some_and(|message| !message.task_id.is_empty());
        let record = self.take(caller, request).await?;
        // A new task's first event is the task itself.
        let first = Start::After(0);
        match self.tasks.live(&record.task.id) {
            Some(live) if follows => Events::of(self.tasks.clone(), &live, Start::Now, place),
            Some(live) => Events::of(self.tasks.clone(), &live, first, place),
            None if follows => {
                let record = self.tasks.read_of(&record.scope, &record.task.id)?;
                Ok(Events::of_ended(self.tasks.clone(), record, Start::Now, place))
            }
            None => {
                let record = self.tasks.read_of(&record.scope, &record.task.id)?;
                Ok(Events::of_ended(self.tasks.clone(), record, first, place))
            }
        }
    }

    /// A task for who follows it without a call: whole, and then what comes of it, if anything does.
    pub(crate) fn follow(&self, caller: &Caller, task: &str) -> Result<Events, Fault> {
        let scope = caller.scope("")?;
        let place = self.stream_place()?;
        match self.tasks.live_of(&scope, task)? {
            Some(live) => Events::of(self.tasks.clone(), &live, Start::Now, place),
            None => {
                let record = self.tasks.read_of(&scope, task)?;
                Ok(Events::of_ended(self.tasks.clone(), record, Start::Now, place))
            }
        }
    }

    /// `SubscribeToTask` (A2A §3.1.6). With a cursor it goes on behind that event, and then also a
    /// task that ended meanwhile tells its end.
    pub(crate) async fn subscribe(
        &self,
        caller: &Caller,
        request: &TaskRequest,
    ) -> Result<Events, Fault> {
        let scope = caller.scope(&request.tenant)?;
        let place = self.stream_place()?;
        let start = caller.last_event.map_or(Start::Now, Start::After);
        match (self.tasks.live_of(&scope, &request.id)?, start) {
            (Some(live), _) => Events::of(self.tasks.clone(), &live, start, place),
            (None, Start::After(_)) => {
                let record = self.tasks.read_of(&scope, &request.id)?;
                Ok(Events::of_ended(self.tasks.clone(), record, start, place))
            }
            (None, Start::Now) => {
                let what = "the task has ended; get it in place of subscribing";
                Err(Fault::new(Kind::UnsupportedOperation, what).with("taskId", &request.id))
            }
        }
    }

    /// `GetTask` (A2A §3.1.3).
    pub(crate) fn get(&self, caller: &Caller, request: &TaskRequest) -> Result<Task, Fault> {
        let history = count("historyLength", request.history_length)?;
        let mut task = self.tasks.read_of(&caller.scope(&request.tenant)?, &request.id)?.task;
        cut_history(&mut task, history);
        Ok(task)
    }

    /// `ListTasks` (A2A §3.1.4).
    pub(crate) fn list(
        &self,
        caller: &Caller,
        request: &ListRequest,
    ) -> Result<ListResponse, Fault> {
        let scope = caller.scope(&request.tenant)?;
        let page_size = page_size(request.page_size)?;
        let history =
            count("historyLength", request.history_length)?.unwrap_or(LIST_HISTORY_DEFAULT);
        let since_ms = match request.status_timestamp_after.as_str() {
            "" => 0,
            text => Time::parse_rfc3339(text)
                .map_err(|error| Fault::params("statusTimestampAfter", error.to_string()))?
                .as_ms(),
        };
        let before = match request.page_token.as_str() {
            "" => u64::MAX,
            text => {
                text.parse().map_err(|_| Fault::params("pageToken", "not a token of this list"))?
            }
        };
        let filter = Filter {
            context: request.context_id.clone(),
            state: request.status,
            since_ms,
            before,
            limit: page_size,
        };
        let listed = self.tasks.list(&scope, &filter);
        let (mut tasks, mut bytes, mut next) = (Vec::new(), 0, listed.next);
        let mut left = listed.tasks.into_iter().peekable();
        while let Some((order, id)) = left.next() {
            // One that was forgotten since is left out.
            let Ok(record) = self.tasks.read_of(&scope, &id) else { continue };
            let mut task = record.task;
            cut_history(&mut task, Some(history));
            if request.include_artifacts {
                task.artifacts.get_or_insert_default();
            } else {
                task.artifacts = None;
            }
            bytes += json(&task).len();
            tasks.push(task);
            if bytes >= PAGE_LEN_MAX && left.peek().is_some() {
                next = Some(order);
                break;
            }
        }
        Ok(ListResponse {
            tasks,
            next_page_token: next.map(|order| order.to_string()).unwrap_or_default(),
            page_size,
            total_size: listed.total,
        })
    }

    /// `CancelTask` (A2A §3.1.5).
    pub(crate) async fn cancel(
        &self,
        caller: &Caller,
        request: &TaskRequest,
    ) -> Result<Task, Fault> {
        let scope = caller.scope(&request.tenant)?;
        let not_cancelable = || {
            Fault::new(Kind::TaskNotCancelable, "the task has ended").with("taskId", &request.id)
        };
        let live = self.tasks.live_of(&scope, &request.id)?.ok_or_else(not_cancelable)?;
        let record = self.tasks.record(&live)?;
        if record.carried.is_some() {
            return Err(obligation::stands(&record));
        }
        self.backend.cancel(&record).await?;
        let canceled = self
            .tasks
            .change(&live, |edit| {
                if edit.record.memory != record.memory {
                    let what = "the agent got on with it meanwhile; try again";
                    return Err(
                        Fault::new(Kind::TaskNotCancelable, what).with("taskId", &request.id)
                    );
                }
                edit.status(TaskState::Canceled, None);
                Ok(edit.record.task.clone())
            })
            .await;
        // What could not be canceled goes on.
        let over = |fault: &Fault| fault.kind == Kind::TaskNotFound;
        if canceled.as_ref().err().is_none_or(over) {
            live.stop();
        }
        match canceled {
            // It ended by itself, or with our word to the agent: how, it says itself.
            Err(fault) if over(&fault) => {
                let task = self.tasks.read_of(&scope, &request.id)?.task;
                match task.status.state {
                    TaskState::Canceled => Ok(task),
                    _ => Err(not_cancelable()),
                }
            }
            other => other,
        }
    }

    /// `CreateTaskPushNotificationConfig` (A2A §3.1.7).
    pub(crate) async fn create_push(
        &self,
        caller: &Caller,
        config: PushConfig,
    ) -> Result<PushConfig, Fault> {
        self.push.create(&caller.scope(&config.tenant)?, config).await
    }

    /// `GetTaskPushNotificationConfig` (A2A §3.1.8).
    pub(crate) fn get_push(
        &self,
        caller: &Caller,
        request: &PushRequest,
    ) -> Result<PushConfig, Fault> {
        self.push.get(&caller.scope(&request.tenant)?, &request.task_id, &request.id)
    }

    /// `ListTaskPushNotificationConfigs` (A2A §3.1.9). The token of a page is the last id on it.
    pub(crate) fn list_push(
        &self,
        caller: &Caller,
        request: &PushRequest,
    ) -> Result<PushList, Fault> {
        let scope = caller.scope(&request.tenant)?;
        let size = page_size(request.page_size)?;
        let (configs, more) =
            self.push.list(&scope, &request.task_id, &request.page_token, size)?;
        let last = configs.last().filter(|_| more).map(|config| config.id.clone());
        Ok(PushList { configs, next_page_token: last.unwrap_or_default() })
    }

    /// `DeleteTaskPushNotificationConfig` (A2A §3.1.10).
    pub(crate) async fn delete_push(
        &self,
        caller: &Caller,
        request: &PushRequest,
    ) -> Result<(), Fault> {
        self.push.delete(&caller.scope(&request.tenant)?, &request.task_id, &request.id).await
    }

    /// `GetExtendedAgentCard` (A2A §3.1.11): for a peer, with the kinds that it may issue.
    pub(crate) async fn extended_card(
        &self,
        caller: &Caller,
        request: &CardRequest,
    ) -> Result<Value, Fault> {
        id("tenant", &request.tenant)?;
        Ok(self.card(caller.peer.as_ref()).await)
    }
}

fn has_ended(task: &str) -> Fault {
    Fault::new(Kind::UnsupportedOperation, "the task has ended").with("taskId", task)
}

/// Whether this is base64 of either alphabet, padded or not (ProtoJSON of bytes).
fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    let fits = match digits.len() % 4 {
        0 => padding == 0,
        2 => matches!(padding, 0 | 2),
        3 => matches!(padding, 0 | 1),
        _ => false,
    };
    fits && digits.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/-_".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_either_alphabet_and_whole_bytes() {
        for good in ["", "QQ==", "QQ", "QUI=", "QUI", "QUJD", "-_-_", "+/+/"] {
            assert!(is_base64(good), "{good}");
        }
        for bad in ["Q", "QQ=", "QUJD=", "Q Q=", "Q=Q=", "QUI==", "é"] {
            assert!(!is_base64(bad), "{bad}");
        }
    }

    #[test]
    fn two_callers_and_two_tenants_never_share_a_scope() {
        let caller = |peer: Option<&str>| Caller {
            peer: peer.map(|name| AgentId::new(name).unwrap()),
            extensions: Vec::new(),
            last_event: None,
            key: None,
        };
        let scopes = [
            caller(None).scope("").unwrap(),
            caller(None).scope("t").unwrap(),
            caller(Some("local")).scope("").unwrap(),
            caller(Some("a")).scope("t").unwrap(),
            caller(Some("b")).scope("t").unwrap(),
        ];
        let distinct: std::collections::BTreeSet<_> = scopes.iter().collect();
        assert_eq!(distinct.len(), scopes.len());
        assert!(caller(None).scope("a\nb").is_err());
    }
}
