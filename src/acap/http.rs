//! The endpoints of ACAP (Anumati §4.1): the policy for everybody, the chains for peers, each its own, and
//! for the operator.

use super::line::Line;
use super::{Acap, Denial};
use crate::api::Auth;
use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use proto::consent::{ClaimChange, DOCUMENT_LEN_MAX, PolicyDiff, PolicyVersion};
use proto::id::AgentId;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How long a body may take from its first byte to its last.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// Entries on a page of an audit, at most and when the caller does not say.
const PAGE_MAX: usize = 1_000;
const PAGE_DEFAULT: usize = 100;
/// Seconds a policy may be kept by who fetched it.
const MAX_AGE_SECONDS: u32 = 60;

/// What the handlers have.
#[derive(Clone)]
pub(crate) struct Surface {
    pub(crate) acap: Arc<Acap>,
    pub(crate) auth: Arc<Auth>,
    pub(crate) stop: tokio::sync::watch::Receiver<bool>,
}

/// The routes of ACAP.
pub(crate) fn router(surface: Surface) -> Router {
    Router::new()
        .route("/.well-known/usage-policy.json", get(policy))
        .route("/acap/consent", post(consent))
        .route("/acap/adherence", post(adherence))
        .route("/acap/log/head", get(super::anchoring::head))
        .route("/acap/log/proof", get(super::anchoring::proof))
        .route("/acap/changes", get(super::push::changes))
        .route("/acap/audit/{*caller}", get(audit))
        .route("/acap/page/{*caller}", get(page))
        .route("/acap/export/{*caller}", get(export))
        .with_state(surface)
}

fn query(uri: &Uri, name: &str) -> Option<String> {
    let pairs = axum::extract::Query::<Vec<(String, String)>>::try_from_uri(uri).ok()?.0;
    pairs.into_iter().find(|(given, _)| given == name).map(|(_, value)| value)
}

impl Surface {
    /// Who calls; `None` is the operator.
    pub(super) fn caller(&self, parts: &Parts) -> Result<Option<AgentId>, Denial> {
        self.auth.caller(parts).map_err(|error| {
            let code = match error.status() {
                StatusCode::UNAUTHORIZED => "unauthorized",
                _ => "forbidden",
            };
            Denial::new(error.status(), code, error.message())
        })
    }

    /// The peer that gives a document, and its bytes.
    async fn given(&self, request: Request) -> Result<(AgentId, axum::body::Bytes), Denial> {
        let (parts, body) = request.into_parts();
        let Some(peer) = self.caller(&parts)? else {
            let what =
                "records and events are taken from a peer only, known by its certificate or token";
            return Err(Denial::forbidden("caller", what));
        };
        Ok((peer, read(body).await?))
    }
}

pub(super) async fn read(body: Body) -> Result<axum::body::Bytes, Denial> {
    let bytes = axum::body::to_bytes(body, DOCUMENT_LEN_MAX);
    match tokio::time::timeout(BODY_TIME_MAX, bytes).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if crate::a2a::http::is_length_limit(&error) => {
            let what = format!("the document is over the limit of {DOCUMENT_LEN_MAX} bytes");
            Err(Denial::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", what))
        }
        Ok(Err(error)) => Err(Denial::new(StatusCode::BAD_REQUEST, "malformed", error.to_string())),
        Err(_) => {
            let what = format!("the body took longer than {} s", BODY_TIME_MAX.as_secs());
            Err(Denial::new(StatusCode::REQUEST_TIMEOUT, "timeout", what))
        }
    }
}

pub(super) fn answer(result: Result<(StatusCode, Value), Denial>) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    match result {
        Ok((status, value)) => (status, json, value.to_string()).into_response(),
        Err(denial) => {
            let body = json!({ "error": denial.to_json() }).to_string();
            let mut response = (denial.status, json, body).into_response();
            if denial.status == StatusCode::UNAUTHORIZED {
                let value = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
            }
            response
        }
    }
}

/// The policy, or what has changed in it, or 304 for who has it.
async fn policy(State(surface): State<Surface>, uri: Uri, asked: HeaderMap) -> Response {
    let acap = &surface.acap;
    let since = match query(&uri, "since_version").map(|text| PolicyVersion::new(&text)) {
        None => None,
        Some(Ok(version)) => Some(version),
        Some(Err(error)) => {
            let what = format!("since_version: {error}");
            return answer(Err(Denial::new(StatusCode::BAD_REQUEST, "malformed", what)));
        }
    };
    let of = since.as_ref().map(|version| format!(";since={version}")).unwrap_or_default();
    let line = acap.line();
    let tag = format!("\"{}{of}\"", line.policy.document_hash);
    let Ok(tag_value) = HeaderValue::try_from(&tag) else {
        return answer(Err(Denial::unavailable()));
    };
    let given = asked.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let fresh = given.is_some_and(|tags| {
        tags.split(',').any(|given| {
            let given = given.trim();
            given == "*" || given.trim_start_matches("W/") == tag
        })
    });
    let mut response = match (fresh, since) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, None) => {
            let json = [(header::CONTENT_TYPE, "application/json")];
            (json, line.bytes.clone()).into_response()
        }
        (false, Some(since)) => answer(changes(&line, &since).map(|diff| (StatusCode::OK, diff))),
    };
    if response.status().is_success() || fresh {
        let headers = response.headers_mut();
        headers.insert(header::ETAG, tag_value);
        if let Ok(age) = HeaderValue::try_from(format!("public, max-age={MAX_AGE_SECONDS}")) {
            headers.insert(header::CACHE_CONTROL, age);
        }
    }
    response
}

/// What has changed since a version (Anumati §4.1). Of one that was never served here it is known only
/// what is new.
fn changes(line: &Line, since: &PolicyVersion) -> Result<Value, Denial> {
    let policy = &line.policy;
    if since.is_after(&policy.version) {
        let what = format!("policy {since} is newer than {}, which is served", policy.version);
        return Err(Denial::new(StatusCode::NOT_FOUND, "policy_version", what));
    }
    let claims: Vec<_> = policy.claims_since(since).collect();
    let mut body = json!({
        "version": policy.version, "document_hash": policy.document_hash,
        "document_uri": policy.document_uri, "since_version": since, "claims": claims,
    });
    let old = line.version(since).filter(|old| policy.version.is_after(&old.version));
    if let (Some(old), Some(members)) = (old, body.as_object_mut()) {
        // Versions between them were checked one by one when each was published.
        if let Ok(diff) = PolicyDiff::between(old, policy) {
            for (name, change) in [
                ("added", ClaimChange::Added),
                ("retired", ClaimChange::Retired),
                ("renumbered", ClaimChange::Renumbered),
            ] {
                members.insert(name.to_owned(), json!(diff.changed(change).collect::<Vec<_>>()));
            }
            members.insert("material".to_owned(), diff.material.into());
        }
    }
    Ok(body)
}

async fn consent(State(surface): State<Surface>, request: Request) -> Response {
    let recorded = async {
        let (peer, bytes) = surface.given(request).await?;
        surface.acap.consent(&peer, &bytes).await
    };
    answer(recorded.await.map(|body| (StatusCode::CREATED, body)))
}

async fn adherence(State(surface): State<Surface>, request: Request) -> Response {
    let recorded = async {
        let (peer, bytes) = surface.given(request).await?;
        surface.acap.adherence(&peer, &bytes).await
    };
    answer(recorded.await.map(|body| (StatusCode::CREATED, body)))
}

async fn audit(
    State(surface): State<Surface>,
    Path(caller): Path<String>,
    request: Request,
) -> Response {
    let read = surface.audit(&caller, request).await;
    answer(read.map(|body| (StatusCode::OK, body)))
}

/// The same for people.
async fn page(
    State(surface): State<Surface>,
    Path(caller): Path<String>,
    request: Request,
) -> Response {
    let read = match surface.audit(&caller, request).await {
        Ok(read) => read,
        Err(denial) => return answer(Err(denial)),
    };
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, super::page::POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, super::page::page(&read)).into_response()
}

/// All of them, for a third party.
async fn export(
    State(surface): State<Surface>,
    Path(caller): Path<String>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    let exported = match surface.may_read(&caller, &parts) {
        Ok(caller) => surface.acap.export(caller).await,
        Err(denial) => Err(denial),
    };
    exported.unwrap_or_else(|denial| answer(Err(denial)))
}

fn malformed(what: String) -> Denial {
    Denial::new(StatusCode::BAD_REQUEST, "malformed", what)
}

impl Surface {
    /// Whose chains are asked for, by itself or the operator.
    fn may_read(&self, caller: &str, parts: &Parts) -> Result<AgentId, Denial> {
        let asks = self.caller(parts)?;
        let caller = AgentId::new(caller).map_err(|error| malformed(error.to_string()))?;
        if let Some(peer) = asks.filter(|peer| *peer != caller) {
            let what = format!("the chains of {caller} are not {peer}'s to read");
            return Err(Denial::forbidden("caller", what));
        }
        Ok(caller)
    }

    /// A page of the chains of `caller`, for itself or the operator.
    async fn audit(&self, caller: &str, request: Request) -> Result<Value, Denial> {
        let (parts, _) = request.into_parts();
        let caller = self.may_read(caller, &parts)?;
        let limit = query(&parts.uri, "limit").map(|text| text.parse::<usize>()).transpose();
        let limit = limit.map_err(|_| malformed("limit is no number".to_owned()))?;
        let limit = limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX);
        self.acap.audit(&caller, query(&parts.uri, "after").as_deref(), limit).await
    }
}
