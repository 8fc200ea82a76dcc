//! The built-in agent: says back what it is told. To try things out, and to test a client with.
//!
//! A member `abhyasa.echo` of the message's metadata tells it how: `{"ask": true}` asks back first,
//! `{"delay_ms": 500}` takes its time before each part, `{"fail": "why"}` and `{"reject": "why"}`
//! end badly.

use super::{Backend, Doing, Profile, Turn, artifact};
use crate::a2a::fault::{Fault, Kind};
use crate::a2a::record::Record;
use crate::a2a::types::{TaskState, whole_numbers};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Key of what a message tells the echo agent.
const METADATA_KEY: &str = "abhyasa.echo";
/// The longest it waits before one part, in milliseconds.
const DELAY_MS_MAX: u64 = 60_000;

/// The agent.
#[derive(Debug)]
pub(crate) struct Echo {
    profile: Arc<Profile>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wish {
    ask: bool,
    delay_ms: u64,
    fail: Option<String>,
    reject: Option<String>,
}

impl Echo {
    pub(crate) fn new() -> Self {
        let modes: Vec<String> =
            ["text/*", "application/json", "application/octet-stream"].map(str::to_owned).to_vec();
        let skill = json!({
            "id": "echo", "name": "Echo", "tags": ["echo", "test"],
            "description": "Says back what it is told, part by part.",
            "examples": ["Hello"]
        });
        let profile = Profile {
            skills: vec![skill],
            input_modes: modes.clone(),
            output_modes: modes,
            extensions: Vec::new(),
        };
        Self { profile: Arc::new(profile) }
    }

    async fn answer(turn: Turn) -> Result<(), Fault> {
        let wish: Wish = turn
            .message
            .metadata
            .as_ref()
            .and_then(|metadata| metadata.get(METADATA_KEY))
            .map(|wish| serde_json::from_value(whole_numbers(wish.clone())))
            .transpose()
            .map_err(|error| Fault::new(Kind::InvalidParams, format!("{METADATA_KEY}: {error}")))?
            .unwrap_or_default();
        if let Some(why) = &wish.fail {
            return Err(Fault::new(Kind::Internal, why.clone()));
        }
        if let Some(why) = &wish.reject {
            let message = turn.says(why);
            return turn.tell(|edit| edit.status(TaskState::Rejected, Some(message))).await;
        }
        if wish.ask {
            let message = turn.says("What shall I say?");
            return turn.tell(|edit| edit.status(TaskState::InputRequired, Some(message))).await;
        }
        let parts = turn.message.parts.clone();
        let last = parts.len().saturating_sub(1);
        if wish.delay_ms == 0 {
            // All at once, in one commit.
            return turn
                .tell(|edit| {
                    edit.status(TaskState::Working, None);
                    edit.artifact(artifact("echo", parts), false, true);
                    edit.status(TaskState::Completed, None);
                })
                .await;
        }
        let delay = Duration::from_millis(wish.delay_ms.min(DELAY_MS_MAX));
        // What an earlier life of the node has said already is not said again.
        let said = turn.record.task.artifacts.iter().flatten().map(|a| a.parts.len()).sum();
        if turn.record.state() != TaskState::Working {
            turn.tell(|edit| edit.status(TaskState::Working, None)).await?;
        }
        for (at, part) in parts.into_iter().enumerate().skip(said) {
            tokio::time::sleep(delay).await;
            turn.tell(|edit| edit.artifact(artifact("echo", vec![part]), at > 0, at == last))
                .await?;
        }
        tokio::time::sleep(delay).await;
        turn.tell(|edit| edit.status(TaskState::Completed, None)).await
    }
}

impl Backend for Echo {
    fn run(&self, turn: Turn) -> Doing<'_, Result<(), Fault>> {
        Box::pin(Self::answer(turn))
    }

    fn cancel<'a>(&'a self, _: &'a Record) -> Doing<'a, Result<(), Fault>> {
        Box::pin(async { Ok(()) })
    }

    fn profile(&self) -> Doing<'_, Arc<Profile>> {
        Box::pin(async { self.profile.clone() })
    }
}
