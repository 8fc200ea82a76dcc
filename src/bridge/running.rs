//! The calls of one session that run.

use super::message::{Form, Message};
use crate::gate::Wanted;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};

/// Calls of one session at a time; a further one is refused.
pub(super) const RUNNING_MAX: usize = 256;
/// Progress tokens of calls that were ended, which still may be spoken of.
const ENDED_MAX: usize = RUNNING_MAX;

/// Methods that reach nothing of a server but what it says of itself (MCP 2025-11-25, 2026-07-28).
const FREE: [&str; 10] = [
    "initialize",
    "ping",
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/unsubscribe",
    "logging/setLevel",
    "tasks/cancel",
];

/// One call.
#[derive(Debug)]
pub(super) struct Running {
    /// Which of all the calls of the session: an id may be used again.
    pub(super) serial: u64,
    /// What it reaches.
    pub(super) wanted: Option<Wanted>,
    /// The ack of the obligation that came with it.
    pub(super) ack: Option<Value>,
    progress: Option<Value>,
    /// Whether it opens a session, or asks what there is.
    pub(super) opens: bool,
    /// Whether it asks for the tools.
    pub(super) lists: bool,
    /// Whether the server has it. Else its obligation is being decided.
    pub(super) given: bool,
}

/// What a message of the server `name` tells of, if the gate has to know of it.
pub(super) fn told_of(server: &str, message: &Message) -> Option<Wanted> {
    match &message.form {
        Form::Notification { method } if method == "notifications/resources/updated" => {
            let uri = message.param("uri").unwrap_or_default();
            Some(Wanted::Named(format!("mcp:{server}/resource:{uri}")))
        }
        _ => None,
    }
}

/// The calls, by id.
#[derive(Debug, Default)]
pub(super) struct Calls {
    begun: u64,
    running: HashMap<String, Running>,
    ended: VecDeque<Value>,
}

/// Requests have ids that are texts or numbers: `1` is not `"1"`.
fn key(id: &Value) -> String {
    id.to_string()
}

/// What a call of the server `name` reaches, if the gate has to know of it.
pub(super) fn wanted(server: &str, message: &Message) -> Option<Wanted> {
    let Form::Request { method, .. } = &message.form else { return None };
    let name = match method.as_str() {
        "tools/call" => message.param("name").unwrap_or_default().to_owned(),
        "prompts/get" => format!("prompt:{}", message.param("name").unwrap_or_default()),
        "resources/read" | "resources/subscribe" => {
            format!("resource:{}", message.param("uri").unwrap_or_default())
        }
        "completion/complete" => match completes(message) {
            Some(name) => name,
            None => return Some(Wanted::Any(format!("mcp:{server}/"))),
        },
        // Which resources is not looked at: whatever there is.
        "subscriptions/listen" => return Some(Wanted::Any(format!("mcp:{server}/resource:"))),
        method if FREE.contains(&method) => return None,
        // The tools of tasks, and what methods that are not known here reach, neither.
        _ => return Some(Wanted::Any(format!("mcp:{server}/"))),
    };
    Some(Wanted::Named(format!("mcp:{server}/{name}")))
}

/// The prompt or resource whose arguments are to be completed.
fn completes(message: &Message) -> Option<String> {
    let of = message.params()?.get("ref")?;
    let text = |member: &str| of.get(member).and_then(Value::as_str);
    match text("type")? {
        "ref/prompt" => text("name").map(|name| format!("prompt:{name}")),
        "ref/resource" => text("uri").map(|uri| format!("resource:{uri}")),
        _ => None,
    }
}

/// Why a message is not passed: what it reaches is not what the gate would be asked about. A server may take a call
/// that wants no answer, or a name that is no text, for what it looks like.
pub(super) fn evades(message: &Message) -> Option<String> {
    match &message.form {
        Form::Request { method, .. } => {
            let member = match method.as_str() {
                "tools/call" | "prompts/get" => "name",
                "resources/read" | "resources/subscribe" => "uri",
                _ => return None,
            };
            let what = || format!("{method} has no {member} that is a text");
            message.param(member).is_none().then(what)
        }
        Form::Notification { method } if !method.starts_with("notifications/") => {
            Some(format!("{method} has no id, and is no notification of MCP"))
        }
        _ => None,
    }
}

impl Calls {
    /// A call begins, unless there are too many, or one of that id.
    pub(super) fn begin(
        &mut self,
        message: &Message,
        wanted: Option<Wanted>,
    ) -> Result<(), String> {
        let Form::Request { id, method } = &message.form else { return Ok(()) };
        if self.running.len() >= RUNNING_MAX {
            return Err(format!("{RUNNING_MAX} calls of this session run, the limit"));
        }
        let progress = message.meta("progressToken").cloned();
        self.ended.retain(|token| Some(token) != progress.as_ref());
        let opens = matches!(method.as_str(), "initialize" | "server/discover");
        let lists = method == "tools/list";
        self.begun += 1;
        let serial = self.begun;
        let call = Running { serial, wanted, ack: None, progress, opens, lists, given: false };
        match self.running.entry(key(id)) {
            std::collections::hash_map::Entry::Occupied(_) => {
                Err(format!("a call with the id {id} runs"))
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(call);
                Ok(())
            }
        }
    }

    pub(super) fn get(&mut self, id: &Value) -> Option<&mut Running> {
        self.running.get_mut(&key(id))
    }

    /// The call that was begun as this one; not another that has its id since.
    pub(super) fn get_as(&mut self, id: &Value, serial: u64) -> Option<&mut Running> {
        self.get(id).filter(|call| call.serial == serial)
    }

    /// A call is over.
    pub(super) fn end(&mut self, id: &Value) -> Option<Running> {
        self.running.remove(&key(id))
    }

    /// Ends a call whose server may not know that it is over.
    pub(super) fn cut(&mut self, id: &Value) -> Option<Running> {
        let call = self.running.remove(&key(id))?;
        if let Some(token) = &call.progress {
            if self.ended.len() >= ENDED_MAX {
                self.ended.pop_front();
            }
            self.ended.push_back(token.clone());
        }
        Some(call)
    }

    /// Whether a message tells of a call that was ended.
    pub(super) fn is_late(&self, message: &Message) -> bool {
        let Form::Notification { method } = &message.form else { return false };
        method == "notifications/progress"
            && message
                .params()
                .and_then(|params| params.get("progressToken"))
                .is_some_and(|token| self.ended.contains(token))
    }

    /// The calls that the gate has to know of.
    pub(super) fn governed(&self) -> Vec<(Value, Wanted)> {
        let wanted = self.running.iter().filter_map(|(id, call)| {
            let id = serde_json::from_str(id).ok()?;
            Some((id, call.wanted.clone().filter(|_| call.given)?))
        });
        wanted.collect()
    }

    /// Whether the gate has to know of any.
    pub(super) fn any(&self) -> bool {
        self.running.values().any(|call| call.wanted.is_some())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// All ids.
    pub(super) fn ids(&self) -> Vec<Value> {
        self.running.keys().filter_map(|id| serde_json::from_str(id).ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(id: Value, name: &str) -> Message {
        let params = json!({ "name": name, "_meta": { "progressToken": id } });
        let value = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        Message::of(value).unwrap()
    }

    #[test]
    fn bd1_calls_are_bounded_and_an_id_is_one_at_a_time() {
        let mut calls = Calls::default();
        assert!(calls.begin(&call(json!(1), "t"), None).is_ok());
        assert!(calls.begin(&call(json!(1), "t"), None).is_err());
        assert!(calls.begin(&call(json!("1"), "t"), None).is_ok(), "a text is another id");
        for id in 2..RUNNING_MAX {
            assert!(calls.begin(&call(json!(id), "t"), None).is_ok());
        }
        assert!(calls.begin(&call(json!("more"), "t"), None).is_err());
        assert!(calls.end(&json!(1)).is_some() && calls.end(&json!(1)).is_none());
        assert!(calls.begin(&call(json!("more"), "t"), None).is_ok());
    }

    #[test]
    fn an_id_that_is_used_again_is_another_call() {
        let mut calls = Calls::default();
        calls.begin(&call(json!(1), "permitted"), None).unwrap();
        let first = calls.get(&json!(1)).unwrap().serial;
        assert!(calls.get_as(&json!(1), first).is_some());
        calls.cut(&json!(1)).unwrap();
        calls.begin(&call(json!(1), "other"), None).unwrap();
        assert!(
            calls.get_as(&json!(1), first).is_none(),
            "what was said of the first is not of it"
        );
    }

    #[test]
    fn what_the_gate_could_not_be_asked_about_is_not_passed() {
        let evades = |message: Value| {
            let mut message = message;
            message["jsonrpc"] = json!("2.0");
            super::evades(&Message::of(message).unwrap())
        };
        for message in [
            json!({ "method": "tools/call", "params": { "name": "delete" } }),
            json!({ "method": "resources/read", "params": { "uri": "file:///a" } }),
            json!({ "id": 1, "method": "tools/call", "params": { "name": ["delete"] } }),
            json!({ "id": 1, "method": "tools/call" }),
            json!({ "id": 1, "method": "prompts/get", "params": { "name": 7 } }),
            json!({ "id": 1, "method": "resources/read", "params": {} }),
        ] {
            assert!(evades(message.clone()).is_some(), "{message}");
        }
        for message in [
            json!({ "id": 1, "method": "tools/call", "params": { "name": "delete" } }),
            json!({ "id": 1, "method": "tools/list" }),
            json!({ "method": "notifications/progress", "params": { "progressToken": 1 } }),
            json!({ "id": 1, "result": {} }),
        ] {
            assert_eq!(evades(message.clone()), None, "{message}");
        }
    }

    #[test]
    fn what_is_told_of_an_ended_call_is_late() {
        let mut calls = Calls::default();
        let progress = |token: i64| {
            Message::notification("notifications/progress", json!({ "progressToken": token }))
        };
        for id in 0..i64::try_from(ENDED_MAX).unwrap() + 1 {
            calls.begin(&call(json!(id), "t"), None).unwrap();
            assert!(!calls.is_late(&progress(id)));
            calls.cut(&json!(id)).unwrap();
            assert!(calls.is_late(&progress(id)));
        }
        assert!(!calls.is_late(&progress(0)), "bounded");
        calls.begin(&call(json!(5), "t"), None).unwrap();
        assert!(!calls.is_late(&progress(5)), "a token may be used again");
    }

    #[test]
    fn the_gate_knows_calls_by_server_and_name() {
        let named = |method: &str, params: Value| {
            let value = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
            match wanted("files", &Message::of(value).unwrap()) {
                Some(Wanted::Named(name)) => Some(name),
                _ => None,
            }
        };
        assert_eq!(named("tools/call", json!({ "name": "read" })).unwrap(), "mcp:files/read");
        assert_eq!(
            named("resources/read", json!({ "uri": "file:///a" })).unwrap(),
            "mcp:files/resource:file:///a"
        );
        assert_eq!(named("prompts/get", json!({ "name": "p" })).unwrap(), "mcp:files/prompt:p");
        let prompt = json!({ "ref": { "type": "ref/prompt", "name": "p" } });
        assert_eq!(named("completion/complete", prompt).unwrap(), "mcp:files/prompt:p");
        let resource = json!({ "ref": { "type": "ref/resource", "uri": "file:///{a}" } });
        assert_eq!(
            named("completion/complete", resource).unwrap(),
            "mcp:files/resource:file:///{a}"
        );
        let any = |method: &str| {
            let value = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": {} });
            wanted("files", &Message::of(value).unwrap())
        };
        assert_eq!(any("tasks/result"), Some(Wanted::Any("mcp:files/".into())));
        for method in ["completion/complete", "vendor/run", "tools/calls", "tasks/get", ""] {
            assert_eq!(any(method), Some(Wanted::Any("mcp:files/".into())), "{method}");
        }
        for method in FREE {
            assert_eq!(any(method), None, "{method}");
        }
        assert_eq!(any("subscriptions/listen"), Some(Wanted::Any("mcp:files/resource:".into())));
    }
}
