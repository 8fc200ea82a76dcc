//! JSON-RPC calls of A2A (§9), whatever carries them.

use super::A2a;
use super::fault::{Fault, Kind};
use super::operations::Caller;
use super::parameters::{check_version, extensions};
use super::record::json;
use super::stream::Events;
use super::types::{SendRequest, StreamResponse};
use proto::id::AgentId;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use tokio::sync::watch::Receiver;

/// The call for the public agent card, which is at a well-known place over HTTP. It is no operation
/// of A2A: neither a version nor an extension is asked for, since who reads the card learns them.
pub(crate) const GET_CARD: &str = "GetAgentCard";
/// Names of the members beside those of JSON-RPC, where there are no headers.
pub(crate) const PARAMETERS: &str = "a2a-service-parameters";
pub(crate) const EVENT: &str = "event";

/// One call, taken apart.
#[derive(Debug, PartialEq)]
pub(crate) struct Call {
    pub(crate) id: Value,
    pub(crate) method: String,
    pub(crate) params: Value,
}

/// What is no call, and its id as far as it has one.
#[derive(Debug)]
pub(crate) struct Unread {
    pub(crate) id: Value,
    pub(crate) fault: Box<Fault>,
}

impl From<Fault> for Unread {
    fn from(fault: Fault) -> Self {
        Self { id: Value::Null, fault: Box::new(fault) }
    }
}

/// What tells one call from another on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Its id, and the envelope is that of JSON-RPC 2.0.
    ById,
    /// The stream it has to itself: neither id nor version of JSON-RPC is needed.
    ByStream,
}

/// The JSON object that a request is.
pub(crate) fn object(bytes: &[u8]) -> Result<Map<String, Value>, Fault> {
    let request: Value = serde_json::from_slice(bytes)
        .map_err(|error| Fault::new(Kind::Parse, format!("Invalid JSON payload: {error}")))?;
    match request {
        Value::Object(request) => Ok(request),
        _ => {
            let what = "not one JSON-RPC request; batches are not taken";
            Err(Fault::new(Kind::InvalidRequest, what))
        }
    }
}

/// A request whose envelope is wrong.
pub(crate) fn wrong(id: Value, what: &str) -> Unread {
    let what = format!("Request payload validation error: {what}");
    Unread { id, ..Fault::new(Kind::InvalidRequest, what).into() }
}

impl Call {
    /// The call that a request is.
    pub(crate) fn of(mut request: Map<String, Value>, told: Told) -> Result<Self, Unread> {
        let alone = told == Told::ByStream;
        let id = request.remove("id").unwrap_or(Value::Null);
        let named = matches!(id, Value::String(_) | Value::Number(_));
        if !(named || alone && id.is_null()) {
            return Err(wrong(Value::Null, "id must be a string or a number"));
        }
        let version = request.get("jsonrpc");
        let known = version.is_some_and(|version| version == "2.0");
        if !(known || alone && version.is_none()) {
            return Err(wrong(id, "jsonrpc must be \"2.0\""));
        }
        let Some(Value::String(method)) = request.remove("method") else {
            return Err(wrong(id, "method must be a string"));
        };
        let params = match request.remove("params") {
            None => json!({}),
            Some(params) if params.is_object() => params,
            Some(_) => {
                return Err(Unread { id, ..Fault::params("params", "must be an object").into() });
            }
        };
        Ok(Self { id, method, params })
    }

    /// Whether it is answered by events.
    pub(crate) fn streams(&self) -> bool {
        ["SendStreamingMessage", "SubscribeToTask"].contains(&self.method.as_str())
    }
}

/// One call with the service parameters beside it, where there are no headers.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) call: Call,
    parameters: BTreeMap<String, String>,
}

impl Asked {
    pub(crate) fn read(line: &[u8], told: Told) -> Result<Self, Unread> {
        let mut request = object(line)?;
        let beside = request.remove(PARAMETERS);
        let call = Call::of(request, told)?;
        let wrong = |what| wrong(call.id.clone(), what);
        let mut parameters = BTreeMap::new();
        match beside {
            None => {}
            Some(Value::Object(members)) => {
                for (name, value) in members {
                    let Value::String(value) = value else {
                        return Err(wrong("a service parameter must be a string"));
                    };
                    // Names are the same in either case (A2A §3.2.6).
                    if parameters.insert(name.to_ascii_lowercase(), value).is_some() {
                        return Err(wrong("a service parameter is there twice"));
                    }
                }
            }
            Some(_) => return Err(wrong("a2a-service-parameters must be an object")),
        }
        Ok(Self { call, parameters })
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }
}

/// A call that was answered.
#[derive(Debug)]
pub(crate) struct Answered {
    /// The id that it came with.
    pub(crate) id: Value,
    /// What is said beside the first result.
    pub(crate) beside: Map<String, Value>,
    pub(crate) answer: Result<Answer, Fault>,
}

/// What a call comes to.
#[derive(Debug)]
pub(crate) enum Answer {
    /// JSON of the result.
    Whole(Vec<u8>),
    /// The results that follow one another.
    Events(Box<Events>),
}

fn read<T: DeserializeOwned>(params: Value) -> Result<T, Fault> {
    serde_json::from_value(params).map_err(|error| Fault::params("params", error.to_string()))
}

impl A2a {
    /// Answers a peer whose call came without headers.
    pub(crate) async fn answer(
        &self,
        peer: AgentId,
        asked: Asked,
        stop: &Receiver<bool>,
    ) -> Answered {
        let version = asked.parameter("a2a-version").map(str::to_owned);
        let caller = Caller {
            peer: Some(peer),
            extensions: extensions(asked.parameter("a2a-extensions").into_iter()),
            last_event: asked.parameter("last-event-id").and_then(|text| text.parse().ok()),
            key: asked.parameter("idempotency-key").map(str::to_owned),
        };
        let Call { id, method, params } = asked.call;
        let answer = async {
            if method == GET_CARD {
                return Ok(Answer::Whole(json(&self.card(None).await)));
            }
            check_version(version.as_deref())?;
            self.check_extensions(&caller).await?;
            self.dispatch(&caller, &method, params, stop).await
        };
        let answer = answer.await;
        let mut beside = Map::new();
        let active = self.active(&caller).await;
        if !active.is_empty() {
            beside.insert(PARAMETERS.to_owned(), json!({ "A2A-Extensions": active.join(",") }));
        }
        Answered { id, beside, answer }
    }

    /// Does what a call asks for. A blocking one is answered early when `stop` says so.
    pub(crate) async fn dispatch(
        &self,
        caller: &Caller,
        method: &str,
        params: Value,
        stop: &Receiver<bool>,
    ) -> Result<Answer, Fault> {
        let result = match method {
            "SendMessage" => {
                let request: SendRequest = read(params)?;
                json(&StreamResponse::Task(self.send(caller, request, stop).await?))
            }
            "SendStreamingMessage" => {
                let events = self.send_streaming(caller, read(params)?).await?;
                return Ok(Answer::Events(Box::new(events)));
            }
            "GetTask" => json(&self.get(caller, &read(params)?)?),
            "ListTasks" => json(&self.list(caller, &read(params)?)?),
            "CancelTask" => json(&self.cancel(caller, &read(params)?).await?),
            "SubscribeToTask" => {
                let events = self.subscribe(caller, &read(params)?).await?;
                return Ok(Answer::Events(Box::new(events)));
            }
            "CreateTaskPushNotificationConfig" => {
                json(&self.create_push(caller, read(params)?).await?)
            }
            "GetTaskPushNotificationConfig" => json(&self.get_push(caller, &read(params)?)?),
            "ListTaskPushNotificationConfigs" => json(&self.list_push(caller, &read(params)?)?),
            "DeleteTaskPushNotificationConfig" => {
                self.delete_push(caller, &read(params)?).await?;
                json(&Value::Null)
            }
            "GetExtendedAgentCard" => json(&self.extended_card(caller, &read(params)?).await?),
            other => {
                let what = format!("Method not found: {other}");
                return Err(Fault::new(Kind::MethodNotFound, what));
            }
        };
        Ok(Answer::Whole(result))
    }
}

/// A response around a result that is JSON already, so that events are not parsed to be sent.
pub(crate) fn response(id: &Value, beside: &Map<String, Value>, result: &[u8]) -> Vec<u8> {
    let mut body = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},").into_bytes();
    for (name, value) in beside {
        body.extend(format!("{}:{value},", Value::from(name.as_str())).into_bytes());
    }
    body.extend_from_slice(b"\"result\":");
    body.extend_from_slice(result);
    body.push(b'}');
    body
}

/// A response that is an error.
pub(crate) fn refusal(id: &Value, fault: &Fault) -> Vec<u8> {
    json(&json!({ "jsonrpc": "2.0", "id": id, "error": fault.rpc() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_keeps_the_id_as_it_was_and_what_is_beside_it() {
        for id in [json!("a\"b"), json!(7), json!(-1.5), Value::Null] {
            let text = response(&id, &Map::new(), b"{\"task\":{}}");
            let parsed: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(parsed, json!({ "jsonrpc": "2.0", "id": id, "result": { "task": {} } }));
        }
        let Value::Object(beside) = json!({ "event": 8, "a\"b": { "c": "d" } }) else { panic!() };
        let text = response(&json!(1), &beside, b"null");
        let parsed: Value = serde_json::from_slice(&text).unwrap();
        let whole = json!({
            "jsonrpc": "2.0", "id": 1, "event": 8, "a\"b": { "c": "d" }, "result": null
        });
        assert_eq!(parsed, whole);
    }

    #[test]
    fn parameters_are_strings_whose_names_have_no_case() {
        let read = |beside: Value| {
            let line = json!({ "method": "M", "id": 7, PARAMETERS: beside }).to_string();
            Asked::read(line.as_bytes(), Told::ByStream)
        };
        let asked = read(json!({ "A2A-Version": "1.0", "X": "y" })).unwrap();
        assert_eq!(
            (asked.parameter("a2a-version"), asked.parameter("x")),
            (Some("1.0"), Some("y"))
        );
        assert_eq!(asked.parameter("a2a-extensions"), None);
        for wrong in [json!([]), json!("a"), json!({ "a": 1 }), json!({ "A": "1", "a": "1" })] {
            let Unread { id, fault } = read(wrong).unwrap_err();
            assert_eq!((id, fault.kind), (json!(7), Kind::InvalidRequest));
        }
        assert!(Asked::read(br#"{"method":"M"}"#, Told::ByStream).is_ok());
    }

    #[test]
    fn a_call_on_a_stream_of_its_own_needs_no_envelope() {
        let call = |text: &str, told| Call::of(object(text.as_bytes()).unwrap(), told);
        let bare = r#"{"method":"M"}"#;
        let read = call(bare, Told::ByStream).unwrap();
        assert_eq!(read, Call { id: Value::Null, method: "M".into(), params: json!({}) });
        assert!(call(bare, Told::ById).is_err());
        for (text, id) in [
            (r#"{"method":"M","id":[],"jsonrpc":"2.0"}"#, Value::Null),
            (r#"{"method":"M","id":7,"jsonrpc":"1.0"}"#, json!(7)),
            (r#"{"method":7,"id":7,"jsonrpc":"2.0"}"#, json!(7)),
            (r#"{"method":"M","params":[],"id":7,"jsonrpc":"2.0"}"#, json!(7)),
        ] {
            for told in [Told::ById, Told::ByStream] {
                assert_eq!(call(text, told).unwrap_err().id, id, "{text}");
            }
        }
    }
}
