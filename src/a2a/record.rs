//! What is kept of one task, and how it changes: state moves forward only, each change with its
//! events.

use super::fault::{Fault, Kind};
use super::jobs;
use super::types::{
    Artifact, ArtifactUpdate, Message, StatusUpdate, StreamResponse, Struct, Task, TaskState,
    TaskStatus,
};
use crate::store::{SideTable, SideWrite};
use proto::id::AgentId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bytes that the end of a task, or the ack of its obligation, may take beyond the limit of a task:
/// neither may fail for want of room.
const END_LEN_MAX: usize = 16 * 1024;

/// An order is a time in milliseconds, shifted by this, and a number.
const ORDER_SHIFT: u32 = 20;

/// What is to be done for a task.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    /// Nothing: it ended, or the next move is the client's.
    #[default]
    None,
    /// The agent answers the last message.
    Turn,
    /// The core decides on an obligation.
    Obligation,
}

impl Work {
    /// Who does it.
    pub(crate) const fn kind(&self) -> Option<jobs::Kind> {
        match self {
            Self::None => None,
            Self::Turn => Some(jobs::Kind::Agent),
            Self::Obligation => Some(jobs::Kind::Custody),
        }
    }
}

/// An obligation that a task carries.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Carried {
    /// Who issued it.
    pub(crate) peer: AgentId,
    /// The papers' JSON.
    pub(crate) obligation: Value,
    /// Hex SHA-256 of its canonical encoding.
    pub(crate) digest: String,
}

/// What a client asked for beside its message.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Asked {
    /// Metadata of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Struct>,
    /// Extensions it named in `A2A-Extensions`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) extensions: Vec<String>,
}

/// One task and what the node knows of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Record {
    /// Whose it is: nobody else can see it.
    pub(crate) scope: String,
    pub(crate) task: Task,
    /// Number of the last event.
    pub(crate) events: u64,
    /// When it last changed its status, see [`order_ms`].
    pub(crate) order: u64,
    pub(crate) work: Work,
    /// Number of that work, so that the end of an earlier one is not taken for its end.
    pub(crate) turn: u64,
    #[serde(default)]
    pub(crate) asked: Asked,
    /// What the agent's backend wants to know after a restart.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(crate) memory: Value,
    /// Number of the last event of the agent's own that is in it, where the agent numbers them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seen: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) carried: Option<Carried>,
    /// Keys of messages in it that their client named, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) keys: Vec<String>,
}

/// What lists and restarts need to know of a task.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct Brief {
    pub(crate) scope: String,
    pub(crate) context: String,
    pub(crate) state: TaskState,
    pub(crate) order: u64,
}

impl Record {
    pub(crate) fn brief(&self) -> Brief {
        Brief {
            scope: self.scope.clone(),
            context: self.task.context_id.clone(),
            state: self.task.status.state,
            order: self.order,
        }
    }

    pub(crate) const fn state(&self) -> TaskState {
        self.task.status.state
    }

    /// Names it can be found by, beside its id.
    pub(crate) fn names(&self) -> Vec<String> {
        let obligation = self.carried.as_ref().and_then(|carried| {
            let id = carried.obligation.get("obligation_id")?;
            id.as_str().map(str::to_owned)
        });
        obligation.into_iter().chain(self.keys.iter().map(|key| named_by(key))).collect()
    }
}

/// Whose the tasks of a scope are, whatever the tenant.
pub(crate) fn caller_of(scope: &str) -> &str {
    scope.split('\n').next().unwrap_or_default()
}

/// The peer whose tasks a scope has; `None` is who may use the API.
pub(crate) fn peer_of(scope: &str) -> Option<AgentId> {
    AgentId::new(caller_of(scope).strip_prefix("peer ")?).ok()
}

/// The time of an order, in unix milliseconds.
pub(crate) const fn order_ms(order: u64) -> u64 {
    order >> ORDER_SHIFT
}

/// The first order of a time in unix milliseconds.
pub(crate) const fn order_of_ms(ms: u64) -> u64 {
    ms << ORDER_SHIFT
}

/// UTC with milliseconds, always (A2A §5.6.1).
pub(crate) fn timestamp(ms: u64) -> String {
    i64::try_from(ms)
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
        .map(|time| format!("{time:.3}"))
        .unwrap_or_default()
}

/// Key of an event.
pub(crate) fn event_key(task: &str, number: u64) -> Vec<u8> {
    let mut key = under(task);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Key of a webhook.
pub(crate) fn push_key(task: &str, config: &str) -> Vec<u8> {
    let mut key = under(task);
    key.extend_from_slice(config.as_bytes());
    key
}

/// What the keys of a task's events and webhooks begin with.
pub(crate) fn under(task: &str) -> Vec<u8> {
    let mut key = task.as_bytes().to_vec();
    key.push(0);
    key
}

/// What lies just behind all those keys.
pub(crate) fn beyond(task: &str) -> Vec<u8> {
    let mut key = task.as_bytes().to_vec();
    key.push(1);
    key
}

/// Key of an obligation's task: ids belong to their issuer, and to its tenant.
pub(crate) fn obligation_key(scope: &str, obligation: &str) -> Vec<u8> {
    let mut key = scope.as_bytes().to_vec();
    key.push(0);
    key.extend_from_slice(obligation.as_bytes());
    key
}

/// An event as stored: whether it is the last, and its JSON.
pub(crate) fn event_value(event: &StreamResponse) -> Vec<u8> {
    let last = match event {
        StreamResponse::Task(task) => task.status.state.is_terminal(),
        StreamResponse::StatusUpdate(update) => update.status.state.is_terminal(),
        StreamResponse::Message(_) => true,
        StreamResponse::ArtifactUpdate(_) => false,
    };
    let mut value = vec![u8::from(last)];
    value.extend(json(event));
    value
}

/// JSON of our own records, which have no maps with other keys than strings.
pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// What a key is in the place of an obligation's id, which has no control characters.
pub(crate) fn named_by(key: &str) -> String {
    format!("\u{1}{key}")
}

/// Done after a commit.
pub(crate) type Then = Box<dyn FnOnce() + Send>;

/// A change to a task, gathered and then committed as one.
pub(crate) struct Edit {
    pub(crate) record: Record,
    events: Vec<(u64, StreamResponse)>,
    /// Other writes of the same commit.
    pub(crate) also: Vec<SideWrite>,
    /// What is done once it is durable, before anybody is told.
    pub(crate) then: Vec<Then>,
    /// Order of this change.
    order: u64,
    history_max: usize,
    /// Whether it adds to the results.
    results: bool,
    /// Whether it may use the room that is kept for ends.
    reserved: bool,
}

impl Edit {
    pub(crate) const fn new(record: Record, order: u64, history_max: usize) -> Self {
        Self {
            record,
            events: Vec::new(),
            also: Vec::new(),
            then: Vec::new(),
            order,
            history_max,
            results: false,
            reserved: false,
        }
    }

    /// Moves it to a later time.
    pub(crate) const fn at(&mut self, order: u64) {
        self.order = order;
    }

    /// Whether the record as it is keeps within a limit, in bytes.
    pub(crate) fn check(&self, len_max: usize) -> Result<(), Fault> {
        fits(json(&self.record).len(), len_max)
    }

    /// What it adds is ours, and small: it may use the room that is kept for ends.
    pub(crate) const fn reserved(&mut self) {
        self.reserved = true;
    }

    /// Tells the whole task, as at its beginning.
    pub(crate) fn tell_task(&mut self) {
        self.tell(StreamResponse::Task(self.record.task.clone()));
    }

    fn tell(&mut self, event: StreamResponse) {
        self.record.events += 1;
        self.events.push((self.record.events, event));
    }

    /// A new state, without an event of its own.
    pub(crate) fn enter(&mut self, state: TaskState, message: Option<Message>) {
        let said = self.record.task.status.message.take();
        self.history(said);
        self.record.order = self.order;
        let timestamp = timestamp(order_ms(self.order));
        self.record.task.status = TaskStatus { state, message, timestamp };
        if state.is_terminal() || state.is_interrupted() {
            self.record.work = Work::None;
        }
    }

    /// A new state, told.
    pub(crate) fn status(&mut self, state: TaskState, message: Option<Message>) {
        self.enter(state, message);
        let task = &self.record.task;
        self.tell(StreamResponse::StatusUpdate(StatusUpdate {
            task_id: task.id.clone(),
            context_id: task.context_id.clone(),
            status: task.status.clone(),
            metadata: None,
        }));
    }

    /// A message of the conversation.
    pub(crate) fn history(&mut self, message: impl IntoIterator<Item = Message>) {
        let history = &mut self.record.task.history;
        history.extend(message);
        let over = history.len().saturating_sub(self.history_max);
        history.drain(..over);
    }

    /// A result: a new one, one in place of the old one of its id, or more of it.
    pub(crate) fn artifact(&mut self, artifact: Artifact, append: bool, last_chunk: bool) {
        let event = StreamResponse::ArtifactUpdate(ArtifactUpdate {
            task_id: self.record.task.id.clone(),
            context_id: self.record.task.context_id.clone(),
            artifact: artifact.clone(),
            append,
            last_chunk,
            metadata: None,
        });
        self.place(artifact, append);
        self.tell(event);
    }

    /// A result of a task that is told as a whole.
    pub(crate) fn artifact_untold(&mut self, artifact: Artifact) {
        self.place(artifact, false);
    }

    fn place(&mut self, artifact: Artifact, append: bool) {
        self.results = true;
        let artifacts = self.record.task.artifacts.get_or_insert_default();
        match artifacts.iter_mut().find(|old| old.artifact_id == artifact.artifact_id) {
            Some(old) if append => old.parts.extend(artifact.parts),
            Some(old) => *old = artifact,
            None => artifacts.push(artifact),
        }
    }

    /// The record as it will be, the writes, and what is done after them. `len_max` is in bytes,
    /// `events_max` events are kept. The end of a task without a result of its own always fits.
    pub(crate) fn finish(
        self,
        len_max: usize,
        events_max: u64,
    ) -> Result<(Record, Vec<SideWrite>, Vec<Then>), Fault> {
        let Self { record, events, mut also, then, results, reserved, .. } = self;
        let id = record.task.id.as_str();
        let value = json(&record);
        let ends = record.state().is_terminal() && !results;
        let room = if ends || reserved { END_LEN_MAX } else { 0 };
        fits(value.len(), len_max.saturating_add(room))?;
        let put = |table, key, value| SideWrite { table, key, value: Some(value) };
        also.push(put(SideTable::Task, id.as_bytes().to_vec(), value));
        also.push(put(SideTable::TaskBrief, id.as_bytes().to_vec(), json(&record.brief())));
        for (number, event) in &events {
            also.push(put(SideTable::TaskEvent, event_key(id, *number), event_value(event)));
            if let Some(old) = number.checked_sub(events_max).filter(|old| *old > 0) {
                let key = event_key(id, old);
                also.push(SideWrite { table: SideTable::TaskEvent, key, value: None });
            }
        }
        Ok((record, also, then))
    }
}

fn fits(len: usize, max: usize) -> Result<(), Fault> {
    if len > max {
        let what = format!("the task of {len} bytes is over the limit of {max}");
        return Err(Fault::new(Kind::InvalidParams, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::a2a::types::Part;

    fn edit() -> Edit {
        let task = Task { id: "t".into(), ..Task::default() };
        Edit::new(Record { task, ..Record::default() }, order_of_ms(1_000), 2)
    }

    #[test]
    fn a_time_is_written_with_milliseconds_even_when_there_are_none() {
        assert_eq!(timestamp(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(timestamp(order_ms(order_of_ms(1_500))), "1970-01-01T00:00:01.500Z");
    }

    #[test]
    fn chunks_add_up_and_a_new_artifact_replaces_one_of_its_id() {
        let part = |text: &str| Artifact {
            artifact_id: "a".into(),
            parts: vec![Part::text(text)],
            ..Artifact::default()
        };
        let mut edit = edit();
        edit.artifact(part("1"), false, false);
        edit.artifact(part("2"), true, true);
        assert_eq!(edit.record.task.artifacts.as_ref().unwrap()[0].parts.len(), 2);
        edit.artifact(part("3"), false, true);
        assert_eq!(edit.record.task.artifacts.as_ref().unwrap()[0].parts, [Part::text("3")]);
        assert_eq!(edit.record.events, 3);
    }

    #[test]
    fn bd1_history_events_and_size_have_their_limits() {
        let mut edit = edit();
        for n in 0..5 {
            let message = Message { message_id: n.to_string(), ..Message::default() };
            edit.history([message]);
            edit.status(TaskState::Working, None);
        }
        assert_eq!(edit.record.task.history.len(), 2);
        assert_eq!(edit.record.task.history[1].message_id, "4");
        let (_, writes, _) = edit.finish(1 << 20, 3).unwrap();
        let of = |value: bool| {
            writes
                .iter()
                .filter(|w| w.table == SideTable::TaskEvent && w.value.is_some() == value)
                .count()
        };
        assert_eq!((of(true), of(false)), (5, 2));
        assert!(super::tests::edit().finish(10, 3).is_err());
    }

    #[test]
    fn bd1_a_task_at_its_limit_can_still_end() {
        let full = || {
            let mut edit = edit();
            edit.history([Message {
                parts: vec![Part::text("x".repeat(1000))],
                ..Message::default()
            }]);
            edit
        };
        let len = json(&full().record).len();
        let mut more = full();
        more.artifact(Artifact::default(), false, true);
        more.status(TaskState::Completed, None);
        assert!(more.finish(len, 9).is_err(), "a result has its limit");
        for state in [TaskState::Completed, TaskState::Failed, TaskState::Canceled] {
            let mut end = full();
            crate::a2a::backend::fail(&mut end, &"why".repeat(10_000));
            end.status(state, None);
            assert!(end.finish(len, 9).is_ok(), "{state:?}");
        }
        let mut end = full();
        let long =
            Message { parts: vec![Part::text("x".repeat(END_LEN_MAX))], ..Message::default() };
        end.status(TaskState::Failed, Some(long));
        assert!(end.finish(len, 9).is_err(), "and so has an end");
    }

    #[test]
    fn the_keys_of_one_task_lie_between_its_bounds() {
        let (from, to) = (under("t"), beyond("t"));
        for key in [event_key("t", 0), event_key("t", u64::MAX), push_key("t", "\u{10ffff}")] {
            assert!(from <= key && key < to);
        }
        assert!(event_key("ta", 0) > to || event_key("ta", 0) < from);
    }
}
