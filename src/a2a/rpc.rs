//! The JSON-RPC binding over HTTP (A2A §9).

use super::dispatch::{Answer, Call, Told, Unread, object, refusal, response};
use super::fault::{Fault, Kind};
use super::http::{Surface, fault_headers, media_type};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value};

/// Answers one JSON-RPC request.
pub(crate) async fn call(State(surface): State<Surface>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let caller = match surface.caller(&parts) {
        Ok(caller) => caller,
        Err(fault) => return refused(&Value::Null, &fault),
    };
    let Call { id, method, params } = match read(&surface, &parts.headers, body).await {
        Ok(call) => call,
        Err(Unread { id, fault }) => return refused(&id, &fault),
    };
    let answer = async {
        surface.check_version(&parts)?;
        surface.a2a.check_extensions(&caller).await?;
        surface.a2a.dispatch(&caller, &method, params, &surface.stop).await
    };
    let answered = match answer.await {
        Ok(Answer::Whole(result)) => {
            let body = response(&id, &Map::new(), &result);
            ([(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Ok(Answer::Events(events)) => {
            surface.sse(*events, move |event| response(&id, &Map::new(), &event))
        }
        Err(fault) => return refused(&id, &fault),
    };
    surface.activated(&caller, answered).await
}

async fn read(surface: &Surface, headers: &HeaderMap, body: Body) -> Result<Call, Unread> {
    let essence = media_type(headers).unwrap_or_default();
    if !essence.eq_ignore_ascii_case("application/json") {
        let what = format!("Content-Type is {essence:?}, not application/json");
        return Err(Fault::new(Kind::ContentTypeNotSupported, what).into());
    }
    Call::of(object(&surface.body(body).await?)?, Told::ById)
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
    let content_type = [(header::CONTENT_TYPE, "application/json")];
    let mut response = (status, content_type, refusal(id, fault)).into_response();
    fault_headers(fault, &mut response);
    response
}
