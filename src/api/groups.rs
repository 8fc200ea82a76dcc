//! One decision to a group: issued once, under custody of each member, and seen as a whole.

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{JsonBytes, Params};
use super::issue::{IssueBody, random_id, unready};
use super::transfer::{TransferView, issued};
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use proto::fanout::GroupId;
use proto::id::AgentId;
use proto::track::GroupName;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// A member that the decision was not issued to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NotIssued {
    /// The member.
    target: String,
    /// Why.
    #[serde(flatten)]
    error: ErrorBody,
}

/// A decision that was taken, durably, for all members but those named.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GroupIssued {
    /// The group.
    group: String,
    /// The decision's id; each member's obligation has an id derived from it.
    obligation_id: String,
    /// Members under custody for it.
    issued: usize,
    /// Those of them for whom the same had been issued before.
    existing: usize,
    /// Members without custody: the kind's rule finds it inadmissible (AC-1), and it went best-effort.
    best_effort: usize,
    /// Members it was not issued to.
    refused: Vec<NotIssued>,
}

/// Where a decision stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct GroupView {
    /// The group.
    group: String,
    /// The decision's id.
    obligation_id: String,
    /// Members of the group, as configured now.
    members: usize,
    /// Members that have applied it.
    applied: usize,
    /// Members that declined it.
    declined: usize,
    /// Members for whom it was escalated.
    escalated: usize,
    /// Members whose ack is awaited.
    pending: usize,
    /// Members for whom it was never issued, or whose outcome is no longer kept.
    unknown: usize,
    /// Each member's obligation; with `unsettled=true` those that are not applied.
    obligations: Vec<TransferView>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct GroupParams {
    /// Whether to leave out members that have applied it.
    #[serde(default)]
    unsettled: bool,
}

fn members(app: &App, group: &str) -> Result<(GroupName, Vec<AgentId>), ApiError> {
    let groups = &app.node.config().groups;
    let found = groups.iter().find(|known| known.name.as_str() == group);
    let found = found.ok_or_else(|| {
        let message = format!("no [[groups]] table is named {group:?}");
        ApiError::new(StatusCode::NOT_FOUND, "unknown_group", message)
    })?;
    Ok((found.name.clone(), found.members.iter().cloned().collect()))
}

/// Issue one obligation to every member of a group.
///
/// Each member has custody of its own: an own id, ack and escalation. To those that are met over MOQT the
/// first offer goes as one object on the group's track. Issued again under the same id it does nothing anew.
#[utoipa::path(
    post,
    path = "/v1/groups/{group}/obligations",
    tag = "issue",
    params(("group" = String, Path, description = "name of a [[groups]] table")),
    request_body = IssueBody,
    responses(
        (status = 201, description = "taken", body = GroupIssued),
        (status = 400, description = "malformed", body = ErrorBody),
        (status = 404, description = "no such group", body = ErrorBody),
        (status = 429, description = "busy; come back after Retry-After", body = ErrorBody),
        (status = 503, description = "stopping or recovering", body = ErrorBody),
    )
)]
pub(crate) async fn issue(
    State(app): State<App>,
    Path(group): Path<String>,
    body: JsonBytes,
) -> Result<(StatusCode, Json<GroupIssued>), ApiError> {
    let (group, members) = members(&app, &group)?;
    let body: IssueBody = body.parse()?;
    if body.target.is_some() {
        return Err(ApiError::malformed("the group is the target: `target` has no meaning here"));
    }
    let gid = match &body.obligation_id {
        Some(id) => GroupId::new(id.as_str()),
        None => GroupId::new(random_id()?.as_str()),
    };
    let gid = gid.map_err(|error| ApiError::malformed(error.to_string()))?;
    let first = members.first().ok_or_else(|| ApiError::malformed("the group has no members"))?;
    let draft = IssueBody { target: Some(first.clone()), ..body }.into_draft()?;
    let drafts = members.iter().map(|member| {
        let (id, target) = (gid.member(member), member.clone());
        proto::custodian::Draft { id, target, ..draft.clone() }
    });
    let results = app.node.issue_to_group(&gid, &group, drafts.collect()).await;
    let results = results.map_err(|error| unready(&app.node, error))?;
    let mut told = GroupIssued {
        group: group.to_string(),
        obligation_id: gid.as_str().to_owned(),
        issued: 0,
        existing: 0,
        best_effort: 0,
        refused: Vec::new(),
    };
    for (member, result) in members.iter().zip(results) {
        match result {
            Ok(issued) => {
                told.issued += usize::from(issued.custody);
                told.best_effort += usize::from(!issued.custody);
                told.existing += usize::from(issued.existing);
            }
            Err(error) => told.refused.push(NotIssued {
                target: member.to_string(),
                error: ApiError::from(error).into_body(),
            }),
        }
    }
    Ok((StatusCode::CREATED, Json(told)))
}

/// Where a decision to a group stands, member by member.
#[utoipa::path(
    get,
    path = "/v1/groups/{group}/obligations/{id}",
    tag = "transfers",
    params(
        ("group" = String, Path, description = "name of a [[groups]] table"),
        ("id" = String, Path, description = "id of the decision"),
        GroupParams,
    ),
    responses(
        (status = 200, description = "where it stands", body = GroupView),
        (status = 404, description = "no such group, or nothing known of the decision", body = ErrorBody),
    )
)]
pub(crate) async fn status(
    State(app): State<App>,
    Path((group, id)): Path<(String, String)>,
    Params(params): Params<GroupParams>,
) -> Result<Json<GroupView>, ApiError> {
    let (group, members) = members(&app, &group)?;
    let gid = GroupId::new(&id).map_err(|error| ApiError::malformed(error.to_string()))?;
    let mut view = GroupView {
        group: group.to_string(),
        obligation_id: id,
        members: members.len(),
        applied: 0,
        declined: 0,
        escalated: 0,
        pending: 0,
        unknown: 0,
        obligations: Vec::new(),
    };
    for member in &members {
        let Some(transfer) = issued(&app.node, &gid.member(member)).await? else {
            view.unknown += 1;
            continue;
        };
        let applied = transfer.state == "applied";
        match transfer.state {
            "applied" => view.applied += 1,
            "declined" => view.declined += 1,
            "escalated" => view.escalated += 1,
            _ => view.pending += 1,
        }
        if !(applied && params.unsettled) {
            view.obligations.push(transfer);
        }
    }
    if view.unknown == members.len() {
        let message = format!("nothing is known of {} to {group}", view.obligation_id);
        return Err(ApiError::new(StatusCode::NOT_FOUND, "unknown_obligation", message));
    }
    Ok(Json(view))
}
