//! Lists of transfers: those under custody, those that ended.

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{
    LOOK_MAX, Page, Params, Pick, after_key, bad_cursor, number_after, page_len, walk,
};
use super::transfer::TransferView;
use axum::Json;
use axum::extract::State;
use proto::obligation::Obligation;
use proto::record::{Attempt, Outcome, Pending, decode_keys, key_num, num_key, pair_key};
use proto::store::{Read, ReadError, Table};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

/// Log records taken from the store at once; each names all that ended in one commit.
const LOG_SCAN: usize = 4;

#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParams {
    /// Items wanted, at most 1000; 100 by default.
    pub(crate) limit: Option<usize>,
    /// The `next` of the page before.
    pub(crate) after: Option<String>,
}

/// Transfers under custody, in order of issue.
#[utoipa::path(
    get,
    path = "/v1/pending",
    tag = "transfers",
    params(PageParams),
    responses((status = 200, description = "a page", body = Page<TransferView>), (status = 400, body = ErrorBody))
)]
pub(crate) async fn pending(
    State(app): State<App>,
    Params(params): Params<PageParams>,
) -> Result<Json<Page<TransferView>>, ApiError> {
    pending_page(app.node.store(), &params).map(Json)
}

/// A page of the transfers under custody.
pub(crate) fn pending_page(
    store: &dyn Read,
    params: &PageParams,
) -> Result<Page<TransferView>, ApiError> {
    let from = num_key(number_after(params.after.as_deref())?.saturating_add(1)).to_vec();
    let (items, last) = walk(store, Table::Pending, from, page_len(params.limit), |key, value| {
        let pending =
            Pending::decode(value).map_err(|error| ReadError::damaged(Table::Pending, error))?;
        let obligation = Obligation::decode(&pending.obligation)
            .map_err(|error| ReadError::damaged(Table::Pending, error))?;
        let attempt = match store.get(Table::Attempt, key)? {
            Some(bytes) => Attempt::decode(&bytes)
                .map_err(|error| ReadError::damaged(Table::Attempt, error))?,
            None => Attempt::default(),
        };
        Ok(Pick::Keep(TransferView::pending(
            &obligation,
            key_num(key),
            attempt.retries,
            attempt.deferred,
        )))
    })?;
    Ok(Page { items, next: last.and_then(|key| key_num(&key)).map(|number| number.to_string()) })
}

/// Place in the log of outcomes: the two numbers of a record's key, and ids of it passed.
struct LogCursor([u64; 3]);

impl LogCursor {
    fn parse(text: &str) -> Result<Self, ApiError> {
        let mut numbers = text.split('-').map(str::parse);
        match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(ms)), Some(Ok(log)), Some(Ok(passed)), None) => Ok(Self([ms, log, passed])),
            _ => Err(bad_cursor(text)),
        }
    }

    fn text(key: &[u8], passed: usize) -> Option<String> {
        Some(format!("{}-{}-{passed}", key_num(key)?, key_num(key.get(8..)?)?))
    }
}

/// Transfers that ended, in the order they did.
#[utoipa::path(
    get,
    path = "/v1/terminal",
    tag = "transfers",
    params(PageParams),
    responses((status = 200, description = "a page", body = Page<TransferView>), (status = 400, body = ErrorBody))
)]
pub(crate) async fn terminal(
    State(app): State<App>,
    Params(params): Params<PageParams>,
) -> Result<Json<Page<TransferView>>, ApiError> {
    let LogCursor([ms, log, passed]) =
        params.after.as_deref().map_or(Ok(LogCursor([0; 3])), LogCursor::parse)?;
    let passed = usize::try_from(passed).unwrap_or(usize::MAX);
    Ok(Json(terminal_page(
        app.node.store(),
        pair_key(ms, log).to_vec(),
        passed,
        page_len(params.limit),
    )?))
}

fn terminal_page(
    store: &dyn Read,
    mut from: Vec<u8>,
    mut passed: usize,
    limit: usize,
) -> Result<Page<TransferView>, ReadError> {
    let mut items = Vec::new();
    let mut looked = 0;
    // A record that was pruned meanwhile is followed by one whose ids were not passed yet.
    let begun = from.clone();
    loop {
        let records = store.scan(Table::OutcomeLog, &from, LOG_SCAN)?;
        let Some((last, _)) = records.last() else { return Ok(Page { items, next: None }) };
        from = after_key(last);
        for (key, value) in &records {
            let (_, ids) =
                decode_keys(value).map_err(|error| ReadError::damaged(Table::OutcomeLog, error))?;
            let skip =
                if key.as_ref() == begun.as_slice() { std::mem::take(&mut passed) } else { 0 };
            for (n, id) in ids.iter().enumerate().skip(skip) {
                if items.len() == limit || looked == LOOK_MAX {
                    return Ok(Page { items, next: LogCursor::text(key, n) });
                }
                looked += 1;
                let Some(bytes) = store.get(Table::Outcome, id)? else { continue };
                let outcome = Outcome::decode(&bytes)
                    .map_err(|error| ReadError::damaged(Table::Outcome, error))?;
                items.push(TransferView::ended(&String::from_utf8_lossy(id), &outcome));
            }
        }
    }
}
