//! Where obligations stand: one by id, those pending, those that ended.

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::Params;
use crate::node::{NodeHandle, PendingView};
use axum::Json;
use axum::extract::{Path, State};
use proto::id::{AgentId, ObligationId};
use proto::obligation::Obligation;
use proto::record::{Intent, IntentState, Ledger, Outcome, Terminal, issued_key};
use proto::store::{Read, ReadError, Table};
use proto::time::Time;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// A custody transfer of this node. Times are RFC 3339.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TransferView {
    /// Always `custodian`.
    role: &'static str,
    /// The obligation.
    obligation_id: String,
    /// Where it stands.
    #[schema(value_type = TransferState)]
    pub(crate) state: &'static str,
    /// Its kind.
    kind: String,
    /// The agent that must honour it.
    target: String,
    /// Transfer number, in order of issue.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    /// When it was issued.
    created_at: String,
    /// Its absolute deadline.
    deadline_at: String,
    /// Order among obligations of its governed key.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    /// Offers after the first.
    retries: u32,
    /// While pending: whether the receiver has it and defers.
    #[serde(skip_serializing_if = "Option::is_none")]
    deferred: Option<bool>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    /// Why it was declined or escalated.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// When an `applied` came in after the escalation. It reopened nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    late_applied_at: Option<String>,
}

/// States of a transfer; all but `pending` are terminal.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "documents the words of TransferView::state")]
pub(crate) enum TransferState {
    Pending,
    Applied,
    Declined,
    Escalated,
}

impl TransferView {
    pub(crate) fn pending(
        obligation: &Obligation,
        number: Option<u64>,
        retries: u32,
        deferred: bool,
    ) -> Self {
        Self {
            role: "custodian",
            obligation_id: obligation.id.to_string(),
            state: "pending",
            kind: obligation.kind.to_string(),
            target: obligation.target.to_string(),
            number,
            created_at: obligation.created_at.to_rfc3339(),
            deadline_at: obligation.deadline_at().to_rfc3339(),
            sequence: obligation.sequence,
            retries,
            deferred: Some(deferred),
            at: None,
            reason: None,
            late_applied_at: None,
        }
    }

    pub(crate) fn ended(id: &str, outcome: &Outcome) -> Self {
        Self {
            role: "custodian",
            obligation_id: id.to_owned(),
            state: match outcome.terminal {
                Terminal::Applied => "applied",
                Terminal::Declined => "declined",
                Terminal::Escalated => "escalated",
            },
            kind: outcome.kind.to_string(),
            target: outcome.target.to_string(),
            number: Some(outcome.num),
            created_at: outcome.created_at.to_rfc3339(),
            deadline_at: outcome.deadline_at.to_rfc3339(),
            sequence: outcome.sequence,
            retries: outcome.retries,
            deferred: None,
            at: Some(outcome.at.to_rfc3339()),
            reason: outcome.reason.as_ref().map(ToString::to_string),
            late_applied_at: outcome.late_applied_at.map(Time::to_rfc3339),
        }
    }
}

/// What this node, as receiver, did with an obligation a peer issued. Times are RFC 3339.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReceiptView {
    /// Always `receiver`.
    role: &'static str,
    /// The obligation.
    obligation_id: String,
    /// Who issued it.
    issuer: String,
    /// Where it stands.
    #[schema(value_type = ReceiptState)]
    state: &'static str,
    /// When that was settled, or when the handler was asked.
    at: String,
    /// Its absolute deadline.
    deadline_at: String,
    /// Why it was declined.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Where an obligation stands, on this node's side of it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum StatusView {
    Custodian(TransferView),
    Receiver(ReceiptView),
}

/// States of an obligation at its receiver.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "documents the words of ReceiptView::state")]
pub(crate) enum ReceiptState {
    /// Its effect is durable here.
    Applied,
    /// Refused, accountably.
    Declined,
    /// With the external handler.
    Deciding,
    /// Waits in reconciliation: nobody could say whether the effect happened.
    InDoubt,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StatusParams {
    /// Look only for the obligation that this peer issued to us under the id.
    pub(crate) issuer: Option<String>,
}

/// Where one obligation stands.
///
/// As custodian if this node issued it, else as receiver. An outcome can be asked for as long as
/// custody.outcome_retention_seconds says; a receipt until its deadline has passed.
#[utoipa::path(
    get,
    path = "/v1/obligations/{id}",
    tag = "transfers",
    params(("id" = String, Path, description = "obligation_id, percent-encoded"), StatusParams),
    responses(
        (status = 200, description = "known", body = StatusView),
        (status = 404, description = "neither issued nor received, or forgotten", body = ErrorBody),
    )
)]
pub(crate) async fn status(
    State(app): State<App>,
    Path(id): Path<String>,
    Params(params): Params<StatusParams>,
) -> Result<Json<StatusView>, ApiError> {
    find(&app.node, &ObligationId::new(&id)?, &params).await.map(Json)
}

/// Where an obligation stands, as its custodian or its receiver.
pub(crate) async fn find(
    node: &NodeHandle,
    id: &ObligationId,
    params: &StatusParams,
) -> Result<StatusView, ApiError> {
    if let Some(issuer) = &params.issuer {
        let found = receipt(node.store(), &AgentId::new(issuer)?, id)?;
        return found.map(StatusView::Receiver).ok_or_else(|| unknown(id));
    }
    if let Some(view) = issued(node, id).await? {
        return Ok(StatusView::Custodian(view));
    }
    for peer in &node.config().peers {
        if let Some(view) = receipt(node.store(), &peer.id, id)? {
            return Ok(StatusView::Receiver(view));
        }
    }
    Err(unknown(id))
}

/// As [`find`], of what concerns `peer` alone: what we issued to it, or it to us. What it may not
/// know looks like what does not exist.
pub(crate) async fn find_for(
    node: &NodeHandle,
    id: &ObligationId,
    peer: &AgentId,
) -> Result<StatusView, ApiError> {
    let ours = issued(node, id).await?.filter(|view| view.target == peer.as_str());
    if let Some(view) = ours {
        return Ok(StatusView::Custodian(view));
    }
    let found = receipt(node.store(), peer, id)?;
    found.map(StatusView::Receiver).ok_or_else(|| unknown(id))
}

/// A transfer of this node, pending or ended.
pub(crate) async fn issued(
    node: &NodeHandle,
    id: &ObligationId,
) -> Result<Option<TransferView>, ApiError> {
    if let Some(view) = outcome_of(node.store(), id)? {
        return Ok(Some(view));
    }
    if let Some(PendingView { obligation, retries, deferred, .. }) = node.status(id).await? {
        return Ok(Some(TransferView::pending(&obligation, None, retries, deferred)));
    }
    // Ended meanwhile? The node answers "not pending" only when what ended it is on disk.
    Ok(outcome_of(node.store(), id)?)
}

fn unknown(id: &ObligationId) -> ApiError {
    ApiError::not_found(format!("no obligation {id} is known here"))
}

/// The outcome of a transfer within `time`, or where it stands then, or once nobody waits any more.
pub(crate) async fn outcome(
    node: &NodeHandle,
    id: &ObligationId,
    time: Duration,
    given_up: impl Future<Output = ()>,
) -> Result<TransferView, ApiError> {
    let ended = tokio::select! {
        ended = node.wait(id, time) => ended?,
        () = given_up => None,
    };
    if let Some(outcome) = ended {
        return Ok(TransferView::ended(id.as_str(), &outcome));
    }
    issued(node, id).await?.ok_or_else(|| unknown(id))
}

fn outcome_of(store: &dyn Read, id: &ObligationId) -> Result<Option<TransferView>, ReadError> {
    let Some(bytes) = store.get(Table::Outcome, id.as_str().as_bytes())? else { return Ok(None) };
    let outcome =
        Outcome::decode(&bytes).map_err(|error| ReadError::damaged(Table::Outcome, error))?;
    Ok(Some(TransferView::ended(id.as_str(), &outcome)))
}

fn receipt(
    store: &dyn Read,
    issuer: &AgentId,
    id: &ObligationId,
) -> Result<Option<ReceiptView>, ReadError> {
    let key = issued_key(issuer, id);
    let view = |state, at: Time, deadline_at: Time, reason| ReceiptView {
        role: "receiver",
        obligation_id: id.to_string(),
        issuer: issuer.to_string(),
        state,
        at: at.to_rfc3339(),
        deadline_at: deadline_at.to_rfc3339(),
        reason,
    };
    if let Some(bytes) = store.get(Table::Ledger, &key)? {
        let ledger =
            Ledger::decode(&bytes).map_err(|error| ReadError::damaged(Table::Ledger, error))?;
        let reason = ledger.reason.map(|reason| reason.to_string());
        return Ok(Some(view(ledger.status.as_str(), ledger.acked_at, ledger.deadline_at, reason)));
    }
    let Some(bytes) = store.get(Table::Intent, &key)? else { return Ok(None) };
    let intent =
        Intent::decode(&bytes).map_err(|error| ReadError::damaged(Table::Intent, error))?;
    let obligation = Obligation::decode(&intent.obligation)
        .map_err(|error| ReadError::damaged(Table::Intent, error))?;
    let state = match intent.state {
        IntentState::InDoubt => "in_doubt",
        IntentState::Asked | IntentState::Deferred => "deciding",
    };
    Ok(Some(view(state, intent.at, obligation.deadline_at(), None)))
}
