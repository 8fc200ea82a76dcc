//! Requests become values, or an error that says what is wrong with them.

use super::App;
use super::error::ApiError;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use proto::store::{Read, ReadError, Table};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use utoipa::ToSchema;

/// How long a body may take from its first byte to its last.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);
/// Items on one page of a list; a longer wish is cut to this.
pub(crate) const PAGE_MAX: usize = 1000;
/// Items on a page when the caller does not say.
const PAGE_DEFAULT: usize = 100;
/// Records one request looks at. A page may come out short, or empty, and still have a `next`.
pub(crate) const LOOK_MAX: usize = 4096;
/// Records taken from the store at once.
const SCAN: usize = 32;

/// Query parameters.
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Query::try_from_uri(&parts.uri)
            .map(|Query(params)| Self(params))
            .map_err(|error| ApiError::malformed(error.body_text()))
    }
}

/// A body of JSON, within the length limit, not yet read as anything.
pub(crate) struct JsonBytes(Bytes);

impl JsonBytes {
    /// Whether it is an array.
    pub(crate) fn is_array(&self) -> bool {
        self.0.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[')
    }

    /// The value; nothing may follow it.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(&self.0).map_err(|error| ApiError::malformed(error.to_string()))
    }
}

impl FromRequest<App> for JsonBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let content_type =
            request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let essence =
            content_type.and_then(|text| text.split(';').next()).unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/json") {
            let message = format!("content-type is {essence:?}, not application/json");
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media_type", message));
        }
        match tokio::time::timeout(BODY_TIME_MAX, Bytes::from_request(request, app)).await {
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            Ok(Err(error)) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let max = app.node.config().api.body_len_max;
                let message =
                    format!("the body is over the limit of {max} bytes (api.body_len_max)");
                Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message))
            }
            Ok(Err(error)) => Err(ApiError::malformed(error.body_text())),
            Err(_) => {
                let message = format!("the body took longer than {} s", BODY_TIME_MAX.as_secs());
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", message))
            }
        }
    }
}

/// Part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    /// Oldest first. May hold fewer than `limit` although more follow.
    pub(crate) items: Vec<T>,
    /// Give this as `after` to go on; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// Items a page may hold, of the caller's wish.
pub(crate) fn page_len(limit: Option<usize>) -> usize {
    limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX)
}

/// A cursor that is one number.
pub(crate) fn number_after(after: Option<&str>) -> Result<u64, ApiError> {
    after.map_or(Ok(0), |text| text.parse().map_err(|_| bad_cursor(text)))
}

pub(crate) fn bad_cursor(text: &str) -> ApiError {
    ApiError::malformed(format!("after is {text:?}, not a `next` of this list"))
}

/// What to do with a record.
pub(crate) enum Pick<T> {
    Keep(T),
    Skip,
    /// It and all after it lie outside the list.
    End,
}

/// Up to `limit` picked records from key `from` on, and the last key looked at if more follow.
pub(crate) fn walk<T>(
    store: &dyn Read,
    table: Table,
    mut from: Vec<u8>,
    limit: usize,
    mut pick: impl FnMut(&Bytes, &Bytes) -> Result<Pick<T>, ReadError>,
) -> Result<(Vec<T>, Option<Bytes>), ReadError> {
    let mut items = Vec::new();
    let mut last = None;
    let mut looked = 0;
    loop {
        let records = store.scan(table, &from, SCAN)?;
        let more = records.len() == SCAN;
        for (key, value) in records {
            if items.len() == limit || looked == LOOK_MAX {
                return Ok((items, last));
            }
            match pick(&key, &value)? {
                Pick::Keep(item) => items.push(item),
                Pick::Skip => {}
                Pick::End => return Ok((items, None)),
            }
            looked += 1;
            last = Some(key);
        }
        let Some(key) = last.as_ref().filter(|_| more) else { return Ok((items, None)) };
        from = after_key(key);
    }
}

/// The first key after `key`.
pub(crate) fn after_key(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}
