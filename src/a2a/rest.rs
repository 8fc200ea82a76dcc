//! The HTTP+JSON binding (A2A §11). Paths are taken apart by hand: a task's id and its verb share a
//! segment, and every path may begin with a tenant.

use super::fault::{Fault, Kind};
use super::http::{Surface, fault_headers, media_type, query};
use super::operations::Caller;
use super::record::json;
use super::types::{
    CardRequest, PushConfig, PushRequest, SendRequest, StreamResponse, TaskRequest,
};
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, Method, Uri, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The media type of A2A (A2A §14.1).
const A2A_JSON: &str = "application/a2a+json";

/// What a path and a method ask for.
#[derive(Debug, PartialEq, Eq)]
enum Operation<'a> {
    Send,
    Stream,
    List,
    Get(&'a str),
    Cancel(&'a str),
    Subscribe(&'a str),
    CreatePush(&'a str),
    ListPush(&'a str),
    GetPush(&'a str, &'a str),
    DeletePush(&'a str, &'a str),
    ExtendedCard,
}

/// Answers one request.
pub(crate) async fn call(
    State(surface): State<Surface>,
    Path(path): Path<String>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    let (method, headers) = (&parts.method, &parts.headers);
    let answer = async {
        let caller = surface.caller(&parts)?;
        surface.check_version(&parts)?;
        surface.a2a.check_extensions(&caller).await?;
        let (tenant, operation) = route(method, &path)?;
        let request = read(&surface, method, &parts.uri, body).await?;
        let response = dispatch(&surface, &caller, tenant, &operation, request, headers).await?;
        Ok(surface.activated(&caller, response).await)
    };
    match answer.await {
        Ok(response) => response,
        Err(fault) => refused(&fault, headers),
    }
}

/// The tenant and the operation of a path.
fn route<'a>(method: &Method, path: &'a str) -> Result<(&'a str, Operation<'a>), Fault> {
    let whole: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    let no_path = || Fault::new(Kind::MethodNotFound, format!("no such path: {path}"));
    // A tenant named as a path of ours would be taken for it: those are the same without one.
    if let Some(found) = operation(method, &whole)? {
        return Ok(("", found));
    }
    let (tenant, rest) = whole.split_first().ok_or_else(no_path)?;
    operation(method, rest)?.map(|found| (*tenant, found)).ok_or_else(no_path)
}

fn operation<'a>(method: &Method, path: &[&'a str]) -> Result<Option<Operation<'a>>, Fault> {
    let (get, post, delete) =
        (*method == Method::GET, *method == Method::POST, *method == Method::DELETE);
    let found = match path {
        ["message:send"] => post.then_some(Operation::Send),
        ["message:stream"] => post.then_some(Operation::Stream),
        ["extendedAgentCard"] => get.then_some(Operation::ExtendedCard),
        ["tasks"] => get.then_some(Operation::List),
        ["tasks", task] => match task.rsplit_once(':') {
            Some((task, "cancel")) => post.then_some(Operation::Cancel(task)),
            // A2A §11.3.2 says POST, and a2a.proto GET.
            Some((task, "subscribe")) => (get || post).then_some(Operation::Subscribe(task)),
            _ => get.then_some(Operation::Get(task)),
        },
        ["tasks", task, "pushNotificationConfigs"] => {
            if post {
                Some(Operation::CreatePush(task))
            } else {
                get.then_some(Operation::ListPush(task))
            }
        }
        ["tasks", task, "pushNotificationConfigs", config] => {
            if delete {
                Some(Operation::DeletePush(task, config))
            } else {
                get.then_some(Operation::GetPush(task, config))
            }
        }
        _ => return Ok(None),
    };
    match found {
        Some(found) => Ok(Some(found)),
        None => Err(Fault::new(Kind::MethodNotAllowed, format!("not with {method}"))),
    }
}

/// The members of a request: its body, or its query parameters (A2A §11.5).
async fn read(
    surface: &Surface,
    method: &Method,
    uri: &Uri,
    body: Body,
) -> Result<Map<String, Value>, Fault> {
    if *method != Method::POST {
        let members = query(uri).into_iter().map(|(name, text)| {
            let value = match text.as_str() {
                "true" if name == "includeArtifacts" => Value::Bool(true),
                "false" if name == "includeArtifacts" => Value::Bool(false),
                _ => Value::String(text),
            };
            (name, value)
        });
        return Ok(members.collect());
    }
    let bytes = surface.body(body).await?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new()); // what has everything in its path needs no body
    }
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => Err(Fault::new(Kind::InvalidRequest, "the body is no JSON object")),
        Err(error) => {
            Err(Fault::new(Kind::InvalidRequest, format!("Invalid JSON payload: {error}")))
        }
    }
}

/// The request with what its path says; a tenant in the path counts.
fn request<T: DeserializeOwned>(
    mut members: Map<String, Value>,
    path: &[(&str, &str)],
) -> Result<T, Fault> {
    for (name, value) in path {
        if *name != "tenant" || !value.is_empty() {
            members.insert((*name).to_owned(), Value::from(*value));
        }
    }
    serde_json::from_value(Value::Object(members))
        .map_err(|error| Fault::params("request", error.to_string()))
}

async fn dispatch(
    surface: &Surface,
    caller: &Caller,
    tenant: &str,
    operation: &Operation<'_>,
    members: Map<String, Value>,
    headers: &HeaderMap,
) -> Result<Response, Fault> {
    let a2a = &surface.a2a;
    let of = |task: &str| -> Result<TaskRequest, Fault> {
        request(members.clone(), &[("tenant", tenant), ("id", task)])
    };
    let push = |task: &str, id: &str| -> Result<PushRequest, Fault> {
        request(members.clone(), &[("tenant", tenant), ("taskId", task), ("id", id)])
    };
    match operation {
        Operation::Send => {
            let request: SendRequest = request(members, &[("tenant", tenant)])?;
            ok(headers, &StreamResponse::Task(a2a.send(caller, request, &surface.stop).await?))
        }
        Operation::Stream => {
            let request: SendRequest = request(members, &[("tenant", tenant)])?;
            let events = a2a.send_streaming(caller, request).await?;
            Ok(surface.sse(events, |event| event))
        }
        Operation::List => {
            ok(headers, &a2a.list(caller, &request(members, &[("tenant", tenant)])?)?)
        }
        Operation::Get(task) => ok(headers, &a2a.get(caller, &of(task)?)?),
        Operation::Cancel(task) => ok(headers, &a2a.cancel(caller, &of(task)?).await?),
        Operation::Subscribe(task) => {
            Ok(surface.sse(a2a.subscribe(caller, &of(task)?).await?, |event| event))
        }
        Operation::CreatePush(task) => {
            let config: PushConfig = request(members, &[("tenant", tenant), ("taskId", task)])?;
            ok(headers, &a2a.create_push(caller, config).await?)
        }
        Operation::ListPush(task) => ok(headers, &a2a.list_push(caller, &push(task, "")?)?),
        Operation::GetPush(task, id) => ok(headers, &a2a.get_push(caller, &push(task, id)?)?),
        Operation::DeletePush(task, id) => {
            a2a.delete_push(caller, &push(task, id)?).await?;
            ok(headers, &serde_json::json!({})) // google.protobuf.Empty
        }
        Operation::ExtendedCard => {
            let request: CardRequest = request(members, &[("tenant", tenant)])?;
            ok(headers, &a2a.extended_card(caller, &request).await?)
        }
    }
}

/// The media type of an answer: that of the question, or else that of A2A.
fn answer_type(headers: &HeaderMap) -> &'static str {
    let plain = "application/json";
    let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let accepts = accepts.unwrap_or_default();
    if accepts.contains(A2A_JSON) {
        return A2A_JSON;
    }
    let asked = media_type(headers).is_some_and(|essence| essence.eq_ignore_ascii_case(plain));
    if asked || accepts.contains(plain) { plain } else { A2A_JSON }
}

fn ok(headers: &HeaderMap, value: &impl Serialize) -> Result<Response, Fault> {
    Ok(([(header::CONTENT_TYPE, answer_type(headers))], json(value)).into_response())
}

fn refused(fault: &Fault, headers: &HeaderMap) -> Response {
    let body = fault.rest().to_string();
    let content_type = [(header::CONTENT_TYPE, answer_type(headers))];
    let mut response = (fault.status(), content_type, body).into_response();
    fault_headers(fault, &mut response);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_there_with_and_without_a_tenant() {
        use Operation as O;
        let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
        let cases = [
            (&post, "message:send", O::Send),
            (&post, "message:stream", O::Stream),
            (&get, "tasks", O::List),
            (&get, "tasks/t-1", O::Get("t-1")),
            (&get, "tasks/a:b", O::Get("a:b")),
            (&post, "tasks/t-1:cancel", O::Cancel("t-1")),
            (&get, "tasks/t-1:subscribe", O::Subscribe("t-1")),
            (&post, "tasks/t-1:subscribe", O::Subscribe("t-1")),
            (&post, "tasks/t/pushNotificationConfigs", O::CreatePush("t")),
            (&get, "tasks/t/pushNotificationConfigs", O::ListPush("t")),
            (&get, "tasks/t/pushNotificationConfigs/c", O::GetPush("t", "c")),
            (&delete, "tasks/t/pushNotificationConfigs/c", O::DeletePush("t", "c")),
            (&get, "extendedAgentCard", O::ExtendedCard),
        ];
        for (method, path, operation) in cases {
            assert_eq!(route(method, path).unwrap(), ("", operation), "{path}");
            let below = format!("acme/{path}");
            assert_eq!(route(method, &below).unwrap().0, "acme", "{below}");
        }
    }

    #[test]
    fn a_wrong_path_and_a_wrong_method_are_told_apart() {
        let kind = |method, path| route(&method, path).unwrap_err().kind;
        assert_eq!(kind(Method::GET, "nothing/here"), Kind::MethodNotFound);
        assert_eq!(kind(Method::GET, "a/b/tasks"), Kind::MethodNotFound);
        assert_eq!(kind(Method::PUT, "tasks/t-1"), Kind::MethodNotAllowed);
        assert_eq!(kind(Method::GET, "message:send"), Kind::MethodNotAllowed);
    }
}
