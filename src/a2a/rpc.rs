//! The JSON-RPC binding (A2A §9).

use super::fault::{Fault, Kind};
use super::http::{Surface, fault_headers, media_type};
use super::operations::Caller;
use super::record::json;
use super::types::{SendRequest, StreamResponse};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// One call, taken apart.
struct Call {
    id: Value,
    method: String,
    params: Value,
}

/// Answers one JSON-RPC request.
pub(crate) async fn call(State(surface): State<Surface>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let caller = match surface.caller(&parts) {
        Ok(caller) => caller,
        Err(fault) => return refused(&Value::Null, &fault),
    };
    let call = match read(&surface, &parts.headers, body).await {
        Ok(call) => call,
        Err(Unread { id, fault }) => return refused(&id, &fault),
    };
    let checked = match surface.check_version(&parts) {
        Ok(()) => surface.a2a.check_extensions(&caller).await,
        Err(fault) => Err(fault),
    };
    let answer = match checked {
        Ok(()) => dispatch(&surface, &caller, &call).await,
        Err(fault) => Err(fault),
    };
    match answer {
        Ok(response) => surface.activated(&caller, response).await,
        Err(fault) => refused(&call.id, &fault),
    }
}

/// A request that is none, and its id as far as it has one.
struct Unread {
    id: Value,
    fault: Box<Fault>,
}

impl From<Fault> for Unread {
    fn from(fault: Fault) -> Self {
        Self { id: Value::Null, fault: Box::new(fault) }
    }
}

async fn read(surface: &Surface, headers: &HeaderMap, body: Body) -> Result<Call, Unread> {
    let essence = media_type(headers).unwrap_or_default();
    if !essence.eq_ignore_ascii_case("application/json") {
        let what = format!("Content-Type is {essence:?}, not application/json");
        return Err(Fault::new(Kind::ContentTypeNotSupported, what).into());
    }
    let bytes = surface.body(body).await?;
    let request: Value = serde_json::from_slice(&bytes)
        .map_err(|error| Fault::new(Kind::Parse, format!("Invalid JSON payload: {error}")))?;
    let Value::Object(mut request) = request else {
        let what = "not one JSON-RPC request; batches are not taken";
        return Err(Fault::new(Kind::InvalidRequest, what).into());
    };
    let id = request.remove("id").unwrap_or(Value::Null);
    let wrong = |id: Value, what: &str| {
        let what = format!("Request payload validation error: {what}");
        Err(Unread { id, ..Fault::new(Kind::InvalidRequest, what).into() })
    };
    if !matches!(id, Value::String(_) | Value::Number(_)) {
        return wrong(Value::Null, "id must be a string or a number");
    }
    if request.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return wrong(id, "jsonrpc must be \"2.0\"");
    }
    let Some(Value::String(method)) = request.remove("method") else {
        return wrong(id, "method must be a string");
    };
    let params = match request.remove("params") {
        None => json!({}),
        Some(params) if params.is_object() => params,
        Some(_) => {
            return Err(Unread { id, ..Fault::params("params", "must be an object").into() });
        }
    };
    Ok(Call { id, method, params })
}

fn params<T: DeserializeOwned>(call: &Call) -> Result<T, Fault> {
    serde_json::from_value(call.params.clone())
        .map_err(|error| Fault::params("params", error.to_string()))
}

async fn dispatch(surface: &Surface, caller: &Caller, call: &Call) -> Result<Response, Fault> {
    let a2a = &surface.a2a;
    match call.method.as_str() {
        "SendMessage" => {
            let request: SendRequest = params(call)?;
            let task = a2a.send(caller, request, &surface.stop).await?;
            Ok(result(&call.id, &StreamResponse::Task(task)))
        }
        "SendStreamingMessage" => {
            let events = a2a.send_streaming(caller, params(call)?).await?;
            Ok(stream(surface, &call.id, events))
        }
        "GetTask" => Ok(result(&call.id, &a2a.get(caller, &params(call)?)?)),
        "ListTasks" => Ok(result(&call.id, &a2a.list(caller, &params(call)?)?)),
        "CancelTask" => Ok(result(&call.id, &a2a.cancel(caller, &params(call)?).await?)),
        "SubscribeToTask" => {
            let events = a2a.subscribe(caller, &params(call)?).await?;
            Ok(stream(surface, &call.id, events))
        }
        "CreateTaskPushNotificationConfig" => {
            Ok(result(&call.id, &a2a.create_push(caller, params(call)?).await?))
        }
        "GetTaskPushNotificationConfig" => {
            Ok(result(&call.id, &a2a.get_push(caller, &params(call)?)?))
        }
        "ListTaskPushNotificationConfigs" => {
            Ok(result(&call.id, &a2a.list_push(caller, &params(call)?)?))
        }
        "DeleteTaskPushNotificationConfig" => {
            a2a.delete_push(caller, &params(call)?).await?;
            Ok(result(&call.id, &Value::Null))
        }
        "GetExtendedAgentCard" => {
            Ok(result(&call.id, &a2a.extended_card(caller, &params(call)?).await?))
        }
        other => Err(Fault::new(Kind::MethodNotFound, format!("Method not found: {other}"))),
    }
}

/// A response around a result that is JSON already, so that events are not parsed to be sent.
fn wrapped(id: &Value, result: &[u8]) -> Vec<u8> {
    let mut body = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":").into_bytes();
    body.extend_from_slice(result);
    body.push(b'}');
    body
}

fn result(id: &Value, result: &impl Serialize) -> Response {
    let body = wrapped(id, &json(result));
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn stream(surface: &Surface, id: &Value, events: super::stream::Events) -> Response {
    let id = id.clone();
    surface.sse(events, move |event| wrapped(&id, &event))
}

/// An error. HTTP says 200, as JSON-RPC over HTTP does, but to whom the call itself is refused.
fn refused(id: &Value, fault: &Fault) -> Response {
    let status = match fault.kind {
        Kind::Unauthenticated
        | Kind::PermissionDenied
        | Kind::TooLarge
        | Kind::Timeout
        | Kind::Overloaded
        | Kind::Unavailable => fault.status(),
        _ => StatusCode::OK,
    };
    let body = json!({ "jsonrpc": "2.0", "id": id, "error": fault.rpc() }).to_string();
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
    fault_headers(fault, &mut response);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_keeps_the_id_as_it_was() {
        for id in [json!("a\"b"), json!(7), json!(-1.5)] {
            let text = wrapped(&id, b"{\"task\":{}}");
            let parsed: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(parsed, json!({ "jsonrpc": "2.0", "id": id, "result": { "task": {} } }));
        }
    }
}
