//! The A2A 1.0 data model in JSON (A2A §4, `lf.a2a.v1`): camelCase, no discriminators, absent means
//! the default. ProtoJSON also allows numbers for enums, snake_case names and `null`: read, never
//! written. Unknown members are ignored (A2A §5.7).

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Free-form members (`google.protobuf.Struct`).
pub(crate) type Struct = Map<String, Value>;

/// Free-form JSON with its whole numbers as integers again: `google.protobuf.Struct` has only doubles,
/// so what a client wrote as 60 arrives as 60.0.
pub(crate) fn whole_numbers(value: Value) -> Value {
    /// Up to here a double is exact.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() <= EXACT_MAX => {
                #[expect(clippy::cast_possible_truncation, reason = "whole, and within 2^53")]
                let whole = float as i64;
                Value::from(whole)
            }
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(whole_numbers).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(name, value)| (name, whole_numbers(value))).collect()
        }
        other => other,
    }
}

/// `null` is the default of a member (ProtoJSON).
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    from: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A member that is there, `null` or not: JSON data may be `null`.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// An integer, which ProtoJSON may put in quotes.
fn integer<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    match Value::deserialize(from)? {
        Value::Null => Ok(None),
        Value::String(text) => text.parse().map(Some).map_err(D::Error::custom),
        value => value.as_i64().map(Some).ok_or_else(|| D::Error::custom("no integer")),
    }
}

/// An enum by its name or number.
macro_rules! proto_enum {
    ($(#[$about:meta])+ $name:ident { $($(#[$doc:meta])+ $variant:ident = $number:literal $text:literal,)+ }) => {
        $(#[$about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub(crate) enum $name {
            $($(#[$doc])+ #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// The value of a ProtoJSON name.
            pub(crate) fn of(name: &str) -> Option<Self> {
                match name { $($text => Some(Self::$variant),)+ _ => None }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let value = Value::deserialize(from)?;
                let known = match &value {
                    Value::String(name) => Self::of(name),
                    Value::Number(number) => match number.as_i64() {
                        $(Some($number) => Some(Self::$variant),)+
                        _ => None,
                    },
                    Value::Null => Some(Self::default()),
                    _ => None,
                };
                known.ok_or_else(|| {
                    D::Error::custom(format!("{value} is none of: {}", [$($text),+].join(", ")))
                })
            }
        }
    };
}

proto_enum! {
    /// Where a task stands (A2A §4.1.3).
    TaskState {
        /// Not known.
        #[default]
        Unspecified = 0 "TASK_STATE_UNSPECIFIED",
        /// Taken, not yet begun.
        Submitted = 1 "TASK_STATE_SUBMITTED",
        /// Being worked on.
        Working = 2 "TASK_STATE_WORKING",
        /// Done.
        Completed = 3 "TASK_STATE_COMPLETED",
        /// Not done, for want of success.
        Failed = 4 "TASK_STATE_FAILED",
        /// Not done, as the client wished.
        Canceled = 5 "TASK_STATE_CANCELED",
        /// The agent asks for more.
        InputRequired = 6 "TASK_STATE_INPUT_REQUIRED",
        /// Not done, as the agent wished.
        Rejected = 7 "TASK_STATE_REJECTED",
        /// The agent needs to be authorized first. Authorizes nothing (A2A §7.6.4).
        AuthRequired = 8 "TASK_STATE_AUTH_REQUIRED",
    }
}

impl TaskState {
    /// Whether nothing comes after it.
    pub(crate) const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Canceled | Self::Rejected)
    }

    /// Whether the next move is the client's.
    pub(crate) const fn is_interrupted(self) -> bool {
        matches!(self, Self::InputRequired | Self::AuthRequired)
    }
}

proto_enum! {
    /// Who speaks.
    Role {
        /// Not known.
        #[default]
        Unspecified = 0 "ROLE_UNSPECIFIED",
        /// The client.
        User = 1 "ROLE_USER",
        /// The agent.
        Agent = 2 "ROLE_AGENT",
    }
}

/// One piece of content: exactly one of text, raw, url, data (A2A §4.1.6).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Part {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// Base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) raw: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub(crate) data: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Struct>,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub(crate) filename: String,
    #[serde(
        default,
        alias = "media_type",
        deserialize_with = "nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub(crate) media_type: String,
}

impl Part {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// How many of the four kinds of content it has.
    pub(crate) fn contents(&self) -> usize {
        [self.text.is_some(), self.raw.is_some(), self.url.is_some(), self.data.is_some()]
            .into_iter()
            .filter(|there| *there)
            .count()
    }
}

/// One turn of a conversation (A2A §4.1.4).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Message {
    #[serde(default, alias = "message_id", deserialize_with = "nullable")]
    pub(crate) message_id: String,
    #[serde(
        default,
        alias = "context_id",
        deserialize_with = "nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub(crate) context_id: String,
    #[serde(
        default,
        alias = "task_id",
        deserialize_with = "nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub(crate) task_id: String,
    #[serde(default)]
    pub(crate) role: Role,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) parts: Vec<Part>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Struct>,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub(crate) extensions: Vec<String>,
    #[serde(
        default,
        alias = "reference_task_ids",
        deserialize_with = "nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub(crate) reference_task_ids: Vec<String>,
}

/// A result (A2A §4.1.7).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Artifact {
    #[serde(default, alias = "artifact_id", deserialize_with = "nullable")]
    pub(crate) artifact_id: String,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub(crate) description: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) parts: Vec<Part>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Struct>,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub(crate) extensions: Vec<String>,
}

/// Where a task stands, since when, and what the agent says of it (A2A §4.1.2).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct TaskStatus {
    pub(crate) state: TaskState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Message>,
    /// UTC with milliseconds (A2A §5.6.1).
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub(crate) timestamp: String,
}

/// A unit of work (A2A §4.1.1).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Task {
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) id: String,
    #[serde(default, alias = "context_id", deserialize_with = "nullable")]
    pub(crate) context_id: String,
    pub(crate) status: TaskStatus,
    /// `None` leaves the member out, as lists do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) artifacts: Option<Vec<Artifact>>,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub(crate) history: Vec<Message>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Struct>,
}

/// A change of status (A2A §4.2.1).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusUpdate {
    #[serde(default, alias = "task_id")]
    pub(crate) task_id: String,
    #[serde(default, alias = "context_id")]
    pub(crate) context_id: String,
    pub(crate) status: TaskStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Struct>,
}

/// A result, or more of one (A2A §4.2.2).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ArtifactUpdate {
    #[serde(default, alias = "task_id")]
    pub(crate) task_id: String,
    #[serde(default, alias = "context_id")]
    pub(crate) context_id: String,
    pub(crate) artifact: Artifact,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "std::ops::Not::not")]
    pub(crate) append: bool,
    #[serde(
        default,
        alias = "last_chunk",
        deserialize_with = "nullable",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub(crate) last_chunk: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Struct>,
}

/// What a stream or a webhook is told: one member of four (A2A §3.2.3).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum StreamResponse {
    /// A whole task.
    Task(Task),
    /// An answer without a task.
    Message(Message),
    /// A change of status.
    #[serde(alias = "status_update")]
    StatusUpdate(StatusUpdate),
    /// A result.
    #[serde(alias = "artifact_update")]
    ArtifactUpdate(ArtifactUpdate),
}

/// What a message is sent with (A2A §3.2.2).
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SendConfiguration {
    #[serde(
        default,
        alias = "accepted_output_modes",
        deserialize_with = "nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub(crate) accepted_output_modes: Vec<String>,
    #[serde(
        default,
        alias = "task_push_notification_config",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) task_push_notification_config: Option<PushConfig>,
    #[serde(
        default,
        alias = "history_length",
        deserialize_with = "integer",
        skip_serializing_if = "Option::is_none"
    )]
    pub(crate) history_length: Option<i64>,
    #[serde(
        default,
        alias = "return_immediately",
        deserialize_with = "nullable",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub(crate) return_immediately: bool,
}

/// `SendMessage` and `SendStreamingMessage` (A2A §3.2.1).
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct SendRequest {
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub(crate) tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Message>,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) configuration: SendConfiguration,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Struct>,
}

/// `GetTask`, `CancelTask`, `SubscribeToTask`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct TaskRequest {
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) tenant: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) id: String,
    #[serde(
        default,
        rename = "historyLength",
        alias = "history_length",
        deserialize_with = "integer"
    )]
    pub(crate) history_length: Option<i64>,
}

/// `ListTasks` (A2A §3.1.4).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListRequest {
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) tenant: String,
    #[serde(default, alias = "context_id", deserialize_with = "nullable")]
    pub(crate) context_id: String,
    #[serde(default)]
    pub(crate) status: TaskState,
    #[serde(default, alias = "page_size", deserialize_with = "integer")]
    pub(crate) page_size: Option<i64>,
    #[serde(default, alias = "page_token", deserialize_with = "nullable")]
    pub(crate) page_token: String,
    #[serde(default, alias = "history_length", deserialize_with = "integer")]
    pub(crate) history_length: Option<i64>,
    #[serde(default, alias = "status_timestamp_after", deserialize_with = "nullable")]
    pub(crate) status_timestamp_after: String,
    #[serde(default, alias = "include_artifacts", deserialize_with = "nullable")]
    pub(crate) include_artifacts: bool,
}

/// One page of tasks.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListResponse {
    pub(crate) tasks: Vec<Task>,
    /// Always there; empty at the end.
    pub(crate) next_page_token: String,
    pub(crate) page_size: usize,
    pub(crate) total_size: usize,
}

/// A webhook of a task (A2A §4.3.1).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PushConfig {
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub(crate) tenant: String,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub(crate) id: String,
    #[serde(
        default,
        alias = "task_id",
        deserialize_with = "nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub(crate) task_id: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) url: String,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub(crate) token: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) authentication: Option<Authentication>,
}

/// How a webhook knows us (A2A §4.3.2).
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Authentication {
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) scheme: String,
    #[serde(default, deserialize_with = "nullable", skip_serializing_if = "String::is_empty")]
    pub(crate) credentials: String,
}

/// `Get-`, `Delete-` and `ListTaskPushNotificationConfig(s)`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PushRequest {
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) tenant: String,
    #[serde(default, alias = "task_id", deserialize_with = "nullable")]
    pub(crate) task_id: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) id: String,
    #[serde(default, alias = "page_size", deserialize_with = "integer")]
    pub(crate) page_size: Option<i64>,
    #[serde(default, alias = "page_token", deserialize_with = "nullable")]
    pub(crate) page_token: String,
}

/// Webhooks of one task.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PushList {
    pub(crate) configs: Vec<PushConfig>,
    pub(crate) next_page_token: String,
}

/// `GetExtendedAgentCard`.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct CardRequest {
    #[serde(default, deserialize_with = "nullable")]
    pub(crate) tenant: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_spelling_that_protojson_allows_is_read_and_one_is_written() {
        let read: Message = serde_json::from_value(json!({
            "message_id": "m", "role": 1, "context_id": null, "extensions": null,
            "parts": [{ "text": "hi", "media_type": "text/plain" }, { "data": null }],
            "unknown": { "of": ["later"] }
        }))
        .unwrap();
        assert_eq!(
            serde_json::to_value(&read).unwrap(),
            json!({
                "messageId": "m", "role": "ROLE_USER",
                "parts": [{ "text": "hi", "mediaType": "text/plain" }, { "data": null }]
            })
        );
        let list: ListRequest =
            serde_json::from_value(json!({ "pageSize": "7", "status": "TASK_STATE_WORKING" }))
                .unwrap();
        assert_eq!((list.page_size, list.status), (Some(7), TaskState::Working));
    }

    #[test]
    fn an_unknown_state_is_refused_with_those_there_are() {
        let error =
            serde_json::from_value::<ListRequest>(json!({ "status": "TASK_STATE_RUNNING" }))
                .unwrap_err()
                .to_string();
        assert!(
            error.contains("TASK_STATE_RUNNING") && error.contains("TASK_STATE_AUTH_REQUIRED"),
            "{error}"
        );
    }

    #[test]
    fn whole_numbers_are_integers_again_and_others_stay() {
        let read: Value =
            serde_json::from_str("[60.0, -1.0, 0.5, 1e300, 7, {\"a\": 2.0}]").unwrap();
        let expected = json!([60, -1, 0.5, 1e300, 7, { "a": 2 }]);
        assert_eq!(whole_numbers(read), expected);
    }

    #[test]
    fn a_part_counts_its_contents() {
        let part: Part = serde_json::from_value(json!({ "text": "a", "data": {} })).unwrap();
        assert_eq!(part.contents(), 2);
        assert_eq!(Part::default().contents(), 0);
    }
}
