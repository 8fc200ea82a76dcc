//! What is kept of the agent's task, and how it becomes part of ours.

use crate::a2a::record::{Edit, Record, Work};
use crate::a2a::types::{Message, Task, TaskState, TaskStatus};
use serde::{Deserialize, Serialize};

/// What we remember of a task over a restart.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Memory {
    /// The turn whose message was sent, or was about to be.
    pub(super) sent: Option<u64>,
    /// The agent's own id of the task.
    pub(super) task: Option<String>,
    pub(super) context: Option<String>,
    /// What the agent last asked back, and in which turn.
    pub(super) question: Option<String>,
    pub(super) asked_in: u64,
}

impl Memory {
    pub(super) fn of(record: &Record) -> Self {
        serde_json::from_value(record.memory.clone()).unwrap_or_default()
    }

    pub(super) fn keep(&self, edit: &mut Edit) {
        edit.record.memory = serde_json::to_value(self).unwrap_or_default();
    }

    /// Whether the message of this turn was sent, or was about to be.
    pub(super) fn is_sent(&self, turn: u64) -> bool {
        self.sent == Some(turn)
    }

    /// The question that this turn answers: while the agent's task still asks it, it has no answer.
    pub(super) fn answered_in(&self, turn: u64) -> Option<String> {
        self.question.clone().filter(|_| self.asked_in < turn)
    }
}

/// The agent's task becomes part of ours: what differs is told.
pub(super) fn take_task(edit: &mut Edit, found: Task) {
    let memory = Memory::of(&edit.record);
    if memory.task.as_deref() != Some(&found.id) {
        let context = Some(found.context_id).filter(|context| !context.is_empty());
        Memory { task: Some(found.id), context, ..memory }.keep(edit);
    }
    for artifact in found.artifacts.unwrap_or_default() {
        let known = edit.record.task.artifacts.as_ref().is_some_and(|all| all.contains(&artifact));
        if !known {
            edit.artifact(artifact, false, true);
        }
    }
    take_status(edit, found.status);
}

/// Tells one question of the agent from another; `None` where there is none, or nothing to tell it by.
pub(super) fn question(status: &TaskStatus) -> Option<String> {
    let message = status.message.as_ref().map_or("", |message| &message.message_id);
    let told = !message.is_empty() || !status.timestamp.is_empty();
    (status.state.is_interrupted() && told).then(|| format!("{} {message}", status.timestamp))
}

pub(super) fn take_status(edit: &mut Edit, status: TaskStatus) {
    let asked = question(&status);
    let task = &edit.record.task;
    let message = status.message.map(|message| Message {
        task_id: task.id.clone(),
        context_id: task.context_id.clone(),
        ..message
    });
    let same =
        task.status.state == status.state && (message.is_none() || task.status.message == message);
    let begins = matches!(status.state, TaskState::Submitted | TaskState::Unspecified);
    if same || (begins && message.is_none()) {
        return;
    }
    if status.state.is_interrupted() {
        let asked_in = edit.record.turn;
        Memory { question: asked, asked_in, ..Memory::of(&edit.record) }.keep(edit);
    }
    let state = if begins { TaskState::Working } else { status.state };
    edit.status(state, message);
    if state == TaskState::AuthRequired {
        // Who authorizes need not do it by a message: the agent may go on by itself.
        edit.record.work = Work::Turn;
    }
}

/// Whether the agent does nothing more until it is told more.
pub(super) const fn rests(state: TaskState) -> bool {
    state.is_terminal() || matches!(state, TaskState::InputRequired)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(edit: &mut Edit, state: TaskState, second: u8) {
        let timestamp = format!("2026-01-01T00:00:0{second}.000Z");
        take_status(edit, TaskStatus { state, message: None, timestamp });
    }

    #[test]
    fn what_was_sent_is_told_by_the_number_of_its_turn() {
        let mut edit = Edit::new(Record::default(), 1, 9);
        assert!(!Memory::of(&edit.record).is_sent(0), "nothing was");
        Memory { sent: Some(0), ..Memory::default() }.keep(&mut edit);
        // Neither a question nor the agent's id of its task makes it unsent, or sent for another turn.
        asks(&mut edit, TaskState::AuthRequired, 1);
        take_task(&mut edit, Task { id: "t".into(), ..Task::default() });
        let memory = Memory::of(&edit.record);
        assert!(memory.is_sent(0) && !memory.is_sent(1));
    }

    #[test]
    fn a_question_is_answered_by_a_later_turn_only() {
        let mut edit = Edit::new(Record { turn: 3, ..Record::default() }, 1, 9);
        asks(&mut edit, TaskState::InputRequired, 1);
        let memory = Memory::of(&edit.record);
        assert_eq!((memory.answered_in(3), edit.record.work.clone()), (None, Work::None));
        assert!(memory.answered_in(4).unwrap().contains("00:01"));
    }

    #[test]
    fn an_authorization_is_waited_for_by_us_and_an_answer_by_the_client() {
        for (state, work, over) in [
            (TaskState::AuthRequired, Work::Turn, false),
            (TaskState::InputRequired, Work::None, true),
            (TaskState::Completed, Work::None, true),
        ] {
            let mut edit = Edit::new(Record { work: Work::Turn, ..Record::default() }, 1, 9);
            asks(&mut edit, state, 1);
            assert_eq!((edit.record.work, rests(state)), (work, over), "{state:?}");
        }
    }
}
