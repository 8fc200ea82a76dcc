//! Who does the work of tasks. A backend is given one turn at a time and tells what comes of it; the
//! node keeps the task, and the backend nothing.

mod echo;
mod proxy;

pub(crate) use echo::Echo;
pub(crate) use proxy::{Agent, Proxy};

use super::fault::Fault;
use super::record::{Edit, Record, Work};
use super::tasks::{Live, Tasks};
use super::types::{Artifact, Message, Part, Role, TaskState};
use serde_json::Value;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// What a backend does, boxed: there are two of them and a call is a network call.
pub(crate) type Doing<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What an agent is able to do, as its card says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Profile {
    /// `AgentSkill`s.
    pub(crate) skills: Vec<Value>,
    /// Media types of the parts it takes; empty when it is not known.
    pub(crate) input_modes: Vec<String>,
    /// Media types of what it gives.
    pub(crate) output_modes: Vec<String>,
    /// `AgentExtension`s.
    pub(crate) extensions: Vec<Value>,
}

impl Profile {
    /// Whether a part of this media type is taken.
    pub(crate) fn takes(&self, media_type: &str) -> bool {
        let essence = media_type.split(';').next().unwrap_or_default().trim();
        let fits = |mode: &String| {
            mode.eq_ignore_ascii_case(essence)
                || mode == "*/*"
                || mode.strip_suffix("/*").is_some_and(|family| {
                    essence.split('/').next().is_some_and(|of| of.eq_ignore_ascii_case(family))
                })
        };
        self.input_modes.is_empty() || self.input_modes.iter().any(fits)
    }
}

/// An agent.
pub(crate) trait Backend: fmt::Debug + Send + Sync {
    /// Answers the last message of a task, and tells what happens, up to a state that ends the turn.
    /// Dropped when the task is canceled. An error fails the task.
    fn run(&self, turn: Turn) -> Doing<'_, Result<(), Fault>>;

    /// Asks the agent to stop the work on a task. An error says that it goes on.
    fn cancel<'a>(&'a self, record: &'a Record) -> Doing<'a, Result<(), Fault>>;

    /// What it is able to do, from memory when that is fresh enough.
    fn profile(&self) -> Doing<'_, Arc<Profile>>;
}

/// One turn of a task.
#[derive(Debug)]
pub(crate) struct Turn {
    /// The task as it is.
    pub(crate) record: Record,
    /// What is to be answered.
    pub(crate) message: Message,
    tasks: Tasks,
    live: Arc<Live>,
}

impl Turn {
    /// The present turn of a task, if it has one.
    pub(crate) fn of(tasks: &Tasks, live: &Arc<Live>, record: Record) -> Option<Self> {
        if record.work != Work::Turn {
            return None;
        }
        let asked = record.task.history.iter().rev().find(|message| message.role == Role::User);
        let message = asked.cloned()?;
        Some(Self { record, message, tasks: tasks.clone(), live: live.clone() })
    }

    /// Makes changes durable, and then visible.
    ///
    /// # Errors
    /// A later message has taken the place of this one's: it may be taken, and not durable and known yet.
    pub(crate) async fn tell(&self, edit: impl FnOnce(&mut Edit)) -> Result<(), Fault> {
        let change = |change: &mut Edit| {
            if change.record.turn != self.record.turn {
                return Err(Fault::no_task(&self.record.task.id)); // nobody is told: the turn is over
            }
            edit(change);
            Ok(())
        };
        self.tasks.change(&self.live, change).await
    }

    /// Returns when a later message has taken the place of this one's: the turn is over.
    pub(crate) async fn superseded(&self) {
        self.live.turned(self.record.turn).await;
    }

    /// A message of the agent.
    pub(crate) fn says(&self, text: &str) -> Message {
        agent_says(&self.record, text)
    }
}

/// A message of the agent in a task. Its id need only be unique within.
pub(crate) fn agent_says(record: &Record, text: &str) -> Message {
    Message {
        message_id: format!("{}-{}", record.task.id, record.events + 1),
        task_id: record.task.id.clone(),
        context_id: record.task.context_id.clone(),
        role: Role::Agent,
        parts: vec![Part::text(text)],
        ..Message::default()
    }
}

/// Characters of the reason why a task failed; an agent's own words may be long.
const WHY_LEN_MAX: usize = 1_000;

/// Ends a task without success.
pub(crate) fn fail(edit: &mut Edit, why: &str) {
    let why: String = why.chars().take(WHY_LEN_MAX).collect();
    let message = agent_says(&edit.record, &why);
    edit.status(TaskState::Failed, Some(message));
}

/// An artifact of one kind of parts.
pub(crate) fn artifact(id: &str, parts: Vec<Part>) -> Artifact {
    Artifact { artifact_id: id.to_owned(), name: id.to_owned(), parts, ..Artifact::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_types_match_by_name_or_family() {
        let profile = Profile {
            input_modes: vec!["text/*".into(), "application/json".into()],
            ..Profile::default()
        };
        for taken in ["text/plain", "TEXT/markdown; charset=utf-8", "application/json"] {
            assert!(profile.takes(taken), "{taken}");
        }
        for other in ["application/xml", "text", "textual/plain", ""] {
            assert!(!profile.takes(other) || other == "text", "{other}");
        }
        assert!(Profile::default().takes("anything/at-all"), "not known");
    }
}
