//! JSON-RPC calls of A2A (§9), whatever carries them.

use super::A2a;
use super::fault::{Fault, Kind};
use super::operations::Caller;
use super::record::json;
use super::stream::Events;
use super::types::{SendRequest, StreamResponse};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::watch::Receiver;

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
