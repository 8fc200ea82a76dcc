//! What only MCP asks and answers; the rest is the API's.

use crate::api::error::ApiError;
use crate::api::issue::IssueBody;
use proto::custodian::{Check, Draft, IssueError};
use proto::id::{AgentId, GovernedKey, Kind, ObligationId};
use proto::obligation::Obligation;
use proto::payload::Payload;
use proto::polarity::{Change, Judgement};
use proto::safe_action::SafeAction;
use proto::time::Time;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The id of an obligation that is only thought of.
const NO_ID: &str = "draft";

/// One obligation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DraftArgs {
    /// Key of idempotent issue and application, at most 256 bytes.
    #[schema(value_type = Option<String>)]
    obligation_id: Option<ObligationId>,
    /// Picks the polarity rule: anumati.consent, phala.belief_update, oauth.token.
    #[schema(value_type = String)]
    kind: Kind,
    /// The agent that must honour it, a peer of this node.
    #[schema(value_type = String)]
    target: AgentId,
    /// What it demands, such as {"decision": "revoke", "scope": "calendar.read"} or
    /// {"weight_key": "routing.b", "weight_delta": -0.2} or {"action": "revoke", "token_id": "t-1"}.
    #[schema(value_type = Object)]
    payload: Payload,
    /// Seconds from issue to the absolute deadline; by default that of the kind.
    #[schema(minimum = 1, maximum = 316_224_000)]
    deadline_seconds: Option<u64>,
    /// Offers after the first; by default that of the kind.
    #[schema(maximum = 100_000)]
    max_retries: Option<u32>,
    /// Order among obligations of one governed key; by default the next.
    sequence: Option<u64>,
}

impl DraftArgs {
    pub(super) fn into_draft(self) -> Result<Draft, ApiError> {
        IssueBody {
            obligation_id: self.obligation_id,
            kind: Some(self.kind),
            target: Some(self.target),
            payload: Some(self.payload),
            deadline_seconds: self.deadline_seconds,
            max_retries: self.max_retries,
            sequence: self.sequence,
            obligations: None,
        }
        .into_draft()
    }
}

/// An obligation to issue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct IssueArgs {
    /// Key of idempotent issue and application, at most 256 bytes. By default a random one: give
    /// your own, and the call may be repeated.
    #[schema(value_type = Option<String>)]
    obligation_id: Option<ObligationId>,
    /// Picks the polarity rule: anumati.consent, phala.belief_update, oauth.token.
    #[schema(value_type = String)]
    kind: Kind,
    /// The agent that must honour it, a peer of this node.
    #[schema(value_type = String)]
    target: AgentId,
    /// What it demands, such as {"decision": "revoke", "scope": "calendar.read"} or
    /// {"weight_key": "routing.b", "weight_delta": -0.2} or {"action": "revoke", "token_id": "t-1"}.
    #[schema(value_type = Object)]
    payload: Payload,
    /// Seconds from issue to the absolute deadline; by default that of the kind.
    #[schema(minimum = 1, maximum = 316_224_000)]
    deadline_seconds: Option<u64>,
    /// Offers after the first; by default that of the kind.
    #[schema(maximum = 100_000)]
    max_retries: Option<u32>,
    /// Order among obligations of one governed key; by default the next.
    sequence: Option<u64>,
    /// Seconds to wait for the terminal outcome, cut to api.wait_seconds_max; by default none.
    pub(super) wait_seconds: Option<u64>,
}

impl IssueArgs {
    pub(super) fn into_draft(self) -> Result<Draft, ApiError> {
        let Self {
            obligation_id,
            kind,
            target,
            payload,
            deadline_seconds,
            max_retries,
            sequence,
            ..
        } = self;
        DraftArgs { obligation_id, kind, target, payload, deadline_seconds, max_retries, sequence }
            .into_draft()
    }
}

/// Which obligation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StatusArgs {
    /// Its id.
    #[schema(value_type = String)]
    pub(super) obligation_id: ObligationId,
    /// Look only for the obligation that this peer issued to us under the id.
    pub(super) issuer: Option<String>,
}

/// Which escalation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AcknowledgeArgs {
    /// The obligation that was escalated.
    #[schema(value_type = String)]
    pub(super) obligation_id: ObligationId,
}

/// An acknowledgement that is durable.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AcknowledgedView {
    /// The obligation.
    #[schema(value_type = String)]
    pub(super) obligation_id: ObligationId,
    /// Always true: now, or before.
    pub(super) acknowledged: bool,
}

/// What the fail-safe is asked of.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SafeArgs {
    /// Picks the polarity rule.
    #[schema(value_type = String)]
    kind: Kind,
    /// The agent that would have to honour it.
    #[schema(value_type = String)]
    target: AgentId,
    /// What it would demand.
    #[schema(value_type = Object)]
    payload: Payload,
    /// Its id, if it has one.
    #[schema(value_type = Option<String>)]
    obligation_id: Option<ObligationId>,
    /// Its sequence, if it has one.
    sequence: Option<u64>,
}

impl SafeArgs {
    /// The obligation as far as a polarity rule looks at it.
    pub(super) fn into_obligation(self, now: Time) -> Result<Obligation, ApiError> {
        Ok(Obligation {
            id: self.obligation_id.map_or_else(|| ObligationId::new(NO_ID), Ok)?,
            kind: self.kind,
            target: self.target,
            payload: self.payload,
            deadline_seconds: 1,
            max_retries: 0,
            created_at: now,
            sequence: self.sequence,
        })
    }
}

/// The fail-safe of an obligation.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SafeView {
    /// AC-1: whether there is one, and so whether it would be carried under custody.
    admissible: bool,
    /// The state that it governs.
    #[schema(value_type = String)]
    governed_key: GovernedKey,
    /// What applying it would change at its receiver.
    changes: ChangeView,
    /// `safe(O)`: what this node would do to its own state if it is not confirmed; null if it is
    /// inadmissible.
    #[schema(value_type = Option<crate::api::operator::schema::SafeAction>)]
    safe_action: Option<SafeAction>,
}

/// What applying an obligation changes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChangeView {
    /// For an authorization: whether it is granted by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    granted: Option<bool>,
    /// For a weight: by how much it moves.
    #[serde(skip_serializing_if = "Option::is_none")]
    weight_delta: Option<f64>,
}

impl From<Change> for ChangeView {
    fn from(change: Change) -> Self {
        match change {
            Change::Authorization { granted } => {
                Self { granted: Some(granted), weight_delta: None }
            }
            Change::Weight { delta } => Self { granted: None, weight_delta: Some(delta.to_f64()) },
        }
    }
}

impl SafeView {
    pub(super) fn new(judgement: Judgement, obligation: &Obligation) -> Self {
        let rationale = format!("not confirmed applied by {}", obligation.target);
        Self {
            admissible: judgement.admissible(),
            safe_action: judgement.safe_action(obligation, &rationale),
            changes: judgement.change.into(),
            governed_key: judgement.key,
        }
    }
}

/// What issuing would come to.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// It would be carried under custody.
    Custody,
    /// It has no fail-safe, so it would be sent once, and promised nothing.
    BestEffort,
    /// It would not be taken.
    Refused,
}

/// What issuing a draft would come to now. Nothing was issued.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct AdmissibilityView {
    /// Whether it would be carried under custody.
    admissible: bool,
    #[schema(inline)]
    verdict: Verdict,
    /// The rule that keeps it out of custody: `AC-1`, or the code of the refusal, such as `polarity`,
    /// `unknown_target`, `not_allowed`, `profile`, `id_taken`, `superseded`, `too_large`, `full`.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'static str>,
    /// What that rule says of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    /// Whether the same was issued before, so that issuing it again does nothing.
    existing: bool,
    /// The state that it governs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    governed_key: Option<GovernedKey>,
    /// Seconds it would have.
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_seconds: Option<u64>,
    /// Offers after the first it would have.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_retries: Option<u32>,
    /// The sequence it would get.
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
    /// `safe(O)`: what this node would do to its own state if it is not confirmed in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::api::operator::schema::SafeAction>)]
    safe_action: Option<SafeAction>,
}

impl AdmissibilityView {
    pub(super) fn new(checked: Result<Check, IssueError>) -> Self {
        let nothing = |verdict, rule, message| Self {
            admissible: false,
            verdict,
            rule,
            message,
            existing: false,
            governed_key: None,
            deadline_seconds: None,
            max_retries: None,
            sequence: None,
            safe_action: None,
        };
        let check = match checked {
            Ok(check) => check,
            Err(error) => {
                let error = ApiError::from(error);
                let message = error.message().to_owned();
                return nothing(Verdict::Refused, Some(error.code()), Some(message));
            }
        };
        let front = if check.custody {
            nothing(Verdict::Custody, None, None)
        } else {
            let message = "it grants or strengthens something, so there is no fail-safe for it: it would \
                be sent best-effort, and nothing promised";
            nothing(Verdict::BestEffort, Some("AC-1"), Some(message.to_owned()))
        };
        Self {
            admissible: check.custody,
            existing: check.existing,
            governed_key: Some(check.judgement.key),
            deadline_seconds: check.deadline_seconds,
            max_retries: check.max_retries,
            sequence: check.sequence,
            safe_action: check.safe_action,
            ..front
        }
    }
}
