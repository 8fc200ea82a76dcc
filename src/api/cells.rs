//! Governed state: what an agent asks before it acts.

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{Page, Params, Pick, after_key, bad_cursor, page_len, walk};
use crate::gate::{self, Authorization, Why};
use crate::node::NodeHandle;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use proto::id::{AgentId, GovernedKey, Kind};
use proto::record::{Cell, CellValue, Role, role_prefix, split_cell_key};
use proto::store::{Read, ReadError, Table};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

#[derive(Clone, Copy, Debug, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RoleView {
    /// What this node, as principal, lets the agent do.
    Principal,
    /// What the agent, as principal, lets this node do.
    Receiver,
}

impl From<RoleView> for Role {
    fn from(role: RoleView) -> Self {
        match role {
            RoleView::Principal => Self::Principal,
            RoleView::Receiver => Self::Receiver,
        }
    }
}

impl From<Role> for RoleView {
    fn from(role: Role) -> Self {
        match role {
            Role::Principal => Self::Principal,
            Role::Receiver => Self::Receiver,
        }
    }
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CellParams {
    /// Only of this agent.
    pub(crate) agent: Option<String>,
    /// Only of this role; both by default.
    #[param(inline)]
    pub(crate) role: Option<RoleView>,
    /// Items wanted, at most 1000; 100 by default.
    pub(crate) limit: Option<usize>,
    /// The `next` of the page before.
    pub(crate) after: Option<String>,
}

/// One authorization.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuthorizationView {
    /// Whose state it is.
    role: RoleView,
    /// The other agent: the one that is let do, or that lets us do.
    agent: String,
    /// Kind of the obligations that govern it.
    kind: String,
    /// What is authorized.
    scope: String,
    /// Whether it is, now.
    allowed: bool,
    #[serde(flatten)]
    origin: Origin,
}

/// One weight.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WeightView {
    /// Whose state it is.
    role: RoleView,
    /// The other agent.
    agent: String,
    /// Kind of the obligations that govern it.
    kind: String,
    /// What is weighed.
    weight_key: String,
    /// The weight, inside the bounds of the configuration.
    weight: f64,
    #[serde(flatten)]
    origin: Origin,
}

/// Where a state comes from.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Origin {
    /// Sequence of the obligation that set it.
    sequence: Option<u64>,
    /// That obligation.
    obligation_id: String,
    /// When it was set, RFC 3339.
    at: String,
}

impl From<&Cell> for Origin {
    fn from(cell: &Cell) -> Self {
        Self {
            sequence: cell.sequence,
            obligation_id: cell.obligation_id.to_string(),
            at: cell.at.to_rfc3339(),
        }
    }
}

/// Authorizations, granted and withheld.
#[utoipa::path(
    get,
    path = "/v1/authorizations",
    tag = "state",
    params(CellParams),
    responses((status = 200, description = "a page", body = Page<AuthorizationView>), (status = 400, body = ErrorBody))
)]
pub(crate) async fn authorizations(
    State(app): State<App>,
    Params(params): Params<CellParams>,
) -> Result<Json<Page<AuthorizationView>>, ApiError> {
    authorization_page(app.node.store(), &params).map(Json)
}

/// A page of authorizations.
pub(crate) fn authorization_page(
    store: &dyn Read,
    params: &CellParams,
) -> Result<Page<AuthorizationView>, ApiError> {
    list(store, params, |role, agent, kind, key, cell| match cell.value {
        CellValue::Authorization { granted } => Some(AuthorizationView {
            role: role.into(),
            agent: agent.into(),
            kind: kind.into(),
            scope: key.into(),
            allowed: granted,
            origin: cell.into(),
        }),
        CellValue::Weight(_) => None,
    })
}

/// Weights that an obligation or a fail-safe has moved. The others stand at weights.initial.
#[utoipa::path(
    get,
    path = "/v1/weights",
    tag = "state",
    params(CellParams),
    responses((status = 200, description = "a page", body = Page<WeightView>), (status = 400, body = ErrorBody))
)]
pub(crate) async fn weights(
    State(app): State<App>,
    Params(params): Params<CellParams>,
) -> Result<Json<Page<WeightView>>, ApiError> {
    list(app.node.store(), &params, |role, agent, kind, key, cell| match cell.value {
        CellValue::Weight(weight) => Some(WeightView {
            role: role.into(),
            agent: agent.into(),
            kind: kind.into(),
            weight_key: key.into(),
            weight: weight.to_f64(),
            origin: cell.into(),
        }),
        CellValue::Authorization { .. } => None,
    })
    .map(Json)
}

/// A page of the cells that `view` wants, in the order of their keys.
fn list<T>(
    store: &dyn Read,
    params: &CellParams,
    view: impl Fn(Role, AgentId, Kind, GovernedKey, &Cell) -> Option<T>,
) -> Result<Page<T>, ApiError> {
    let agent = params.agent.as_deref().map(AgentId::new).transpose()?;
    let wanted: Option<Role> = params.role.map(Into::into);
    let after = params.after.as_deref().map(unhex).transpose()?;
    let limit = page_len(params.limit);
    let mut items = Vec::new();
    let roles = [Role::Principal, Role::Receiver];
    for role in roles.into_iter().filter(|role| wanted.is_none_or(|wanted| wanted == *role)) {
        let mut prefix = format!("{}\0", role_prefix(role)).into_bytes();
        if let Some(agent) = &agent {
            prefix.extend_from_slice(agent.as_str().as_bytes());
            prefix.push(0);
        }
        if items.len() == limit {
            return Ok(Page { items, next: Some(hex(&prefix)) });
        }
        let from = after
            .as_deref()
            .map_or_else(|| prefix.clone(), |after| after_key(after).max(prefix.clone()));
        let (found, last) = walk(store, Table::Cell, from, limit - items.len(), |key, value| {
            if !key.starts_with(&prefix) {
                return Ok(Pick::End);
            }
            let (role, agent, kind, governed) =
                split_cell_key(key).ok_or_else(|| ReadError::damaged(Table::Cell, "key"))?;
            let cell = decode(value)?;
            Ok(view(role, agent, kind, governed, &cell).map_or(Pick::Skip, Pick::Keep))
        })?;
        items.extend(found);
        if let Some(key) = last {
            return Ok(Page { items, next: Some(hex(&key)) });
        }
    }
    Ok(Page { items, next: None })
}

fn decode(value: &[u8]) -> Result<Cell, ReadError> {
    Cell::decode(value).map_err(|error| ReadError::damaged(Table::Cell, error))
}

/// A cursor that is a key.
fn hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, ApiError> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| bad_cursor(text))
}

#[derive(Debug, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct CheckParams {
    /// The other agent.
    pub(crate) agent: String,
    /// What is to be done: a scope, a token.
    scope: String,
    /// Kind that governs it, such as `anumati.consent`. By default every kind is asked, and one
    /// that withholds is enough.
    kind: Option<String>,
    /// `receiver` (default): may this node do it for `agent`, the principal? `principal`: does this
    /// node let `agent` do it?
    #[param(inline)]
    role: Option<RoleView>,
}

/// Answer to a check.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckView {
    /// Whether to go ahead. Anything but `true` means no.
    allowed: bool,
    /// `granted`, `withheld`, `unknown` (never authorized), `not_an_authorization`, or, beside an
    /// error status, its code.
    #[schema(example = "granted")]
    why: &'static str,
    /// Sequence of the obligation that decided it.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    /// That obligation.
    #[serde(skip_serializing_if = "Option::is_none")]
    obligation_id: Option<String>,
    /// When it was decided, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
}

impl CheckView {
    pub(crate) const fn no(why: &'static str) -> Self {
        Self { allowed: false, why, sequence: None, obligation_id: None, at: None }
    }
}

/// Whether to go ahead: what an agent asks before it acts.
///
/// Fails closed: what was never authorized is not allowed, and neither is anything while the store
/// cannot be read. Every answer but that of a missing token carries `allowed`.
#[utoipa::path(
    get,
    path = "/v1/authorizations/check",
    tag = "state",
    params(CheckParams),
    responses(
        (status = 200, description = "known", body = CheckView),
        (status = 400, description = "no such question; not allowed", body = CheckView),
        (status = 503, description = "the node cannot know; not allowed", body = CheckView),
    )
)]
pub(crate) async fn check(
    State(app): State<App>,
    params: Result<Params<CheckParams>, ApiError>,
) -> Response {
    let answer = params.and_then(|Params(params)| check_cells(&app.node, &params));
    match answer {
        Ok(view) => Json(view).into_response(),
        Err(error) if error.status() == StatusCode::SERVICE_UNAVAILABLE => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(CheckView::no("store"))).into_response()
        }
        Err(error) => {
            let body = serde_json::json!({ "allowed": false, "why": "malformed", "error": { "code": "malformed", "message": error.message() } });
            (error.status(), Json(body)).into_response()
        }
    }
}

/// Whether to go ahead. An error means no.
pub(crate) fn check_cells(node: &NodeHandle, params: &CheckParams) -> Result<CheckView, ApiError> {
    let kinds: Vec<Kind> = match &params.kind {
        Some(kind) => vec![Kind::new(kind)?],
        None => node.config().kinds.keys().cloned().collect(),
    };
    check_kinds(node.store(), params, &kinds)
}

fn check_kinds(
    store: &dyn Read,
    params: &CheckParams,
    kinds: &[Kind],
) -> Result<CheckView, ApiError> {
    let role = params.role.unwrap_or(RoleView::Receiver).into();
    let (agent, scope) = (AgentId::new(&params.agent)?, GovernedKey::new(&params.scope)?);
    let Authorization { why, cell } = gate::authorization(store, role, &agent, kinds, &scope)?;
    let mut view = CheckView { allowed: why == Why::Granted, ..CheckView::no(why.as_str()) };
    if let Some(cell) = cell {
        view.sequence = cell.sequence;
        view.obligation_id = Some(cell.obligation_id.to_string());
        view.at = Some(cell.at.to_rfc3339());
    }
    Ok(view)
}

#[cfg(test)]
mod tests;
