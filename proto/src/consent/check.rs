//! Holding an action against the claims of a policy, with a reasoning that can be cited.

use super::adherence::{AdherenceDecision, AdherenceEvent};
use super::limits::{PROSE_LEN_MAX, TERM_LEN_MAX, WHY_LEN_MAX};
#[cfg(feature = "mutants")]
use super::mutant::Mutant;
use super::odrl::{Constraint, Truth, given, local};
use super::policy::{PolicyClaim, PolicyDocument, RuleType};
use super::record::{ConsentDecision, ConsentRecord, ParsedClaim};
use super::text::{ClaimId, Context, EventId, Extra, PolicyVersion, RecordId, Text};
use crate::time::Time;

/// What is about to be done.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The skill or action, as it is called.
    pub action: &'a Text<TERM_LEN_MAX>,
    /// What it is done to.
    pub asset: &'a Text<TERM_LEN_MAX>,
    /// What is known of it.
    pub context: &'a Context,
    /// When.
    pub at: Time,
}

/// What one claim says of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The claim.
    pub claim_id: ClaimId,
    /// Its clause, to cite.
    pub clause_ref: Text<TERM_LEN_MAX>,
    /// What it comes to.
    pub decision: AdherenceDecision,
    /// Why.
    pub reasoning: Text<PROSE_LEN_MAX>,
    /// Whether the principal has to hear of it.
    pub notify: bool,
}

/// What all of them say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The finding that decides: the first of the strictest.
    pub governing: Finding,
    /// Each finding, in the order of the claims.
    pub findings: Vec<Finding>,
}

/// Why an action cannot be held against a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The consent record is about another document.
    #[error("consent record {record} is about policy {given}, not {version}")]
    OtherPolicy {
        /// The record.
        record: RecordId,
        /// What it is about.
        given: PolicyVersion,
        /// What was to be held against.
        version: PolicyVersion,
    },
    /// The consent record rejects the policy.
    #[error("consent record {record} rejects the policy")]
    Rejected {
        /// The record.
        record: RecordId,
    },
    /// A skill names a claim that is not there.
    #[error("policy {version} has no claim {claim}")]
    NoClaim {
        /// The claim.
        claim: ClaimId,
        /// The policy.
        version: PolicyVersion,
    },
    /// No claim says anything of the action.
    #[error("no claim of policy {version} governs {action} on {asset}")]
    Ungoverned {
        /// The policy.
        version: PolicyVersion,
        /// The action.
        action: String,
        /// What it would be done to.
        asset: String,
    },
}

/// ODRL's actions that are not a kind of `use` (ODRL Vocabulary 2.2 §3.5).
const NOT_USE: [&str; 3] = ["transfer", "give", "sell"];

/// Whether a claim is about an action on an asset. `odrl:All` is every asset, and `odrl:use` every action
/// of ODRL's that uses.
pub(super) fn applies(claim: &PolicyClaim, action: &str, asset: &str) -> bool {
    // A name without a vocabulary may be of any; two vocabularies may mean two things by one word.
    let bare = |one: &str, other: &str| local(one) == one && one == local(other);
    let same = |one: &str, other: &str| one == other || bare(one, other) || bare(other, one);
    let every = matches!(claim.asset.as_str(), "odrl:All" | "odrl:all" | "*");
    let uses = claim.action.as_str() == "odrl:use"
        && action.strip_prefix("odrl:").is_some_and(|action| !NOT_USE.contains(&action));
    (every || same(claim.asset.as_str(), asset)) && (uses || same(claim.action.as_str(), action))
}

/// Holds an action against the claims that govern it, or, if none are named, against those that are about
/// it.
///
/// # Errors
/// [`CheckError`] if there is nothing to hold it against.
pub fn check_action(
    policy: &PolicyDocument,
    record: &ConsentRecord,
    request: &Request<'_>,
    governing: &[ClaimId],
) -> Result<Check, CheckError> {
    let version = || policy.version.clone();
    if record.policy_version != policy.version || record.policy_hash != policy.document_hash {
        let (record, given) = (record.record_id.clone(), record.policy_version.clone());
        return Err(CheckError::OtherPolicy { record, given, version: version() });
    }
    if record.decision == ConsentDecision::Rejected {
        return Err(CheckError::Rejected { record: record.record_id.clone() });
    }
    if let Some(claim) = governing.iter().find(|id| policy.claim(id).is_none()) {
        return Err(CheckError::NoClaim { claim: claim.clone(), version: version() });
    }
    let governs = |claim: &&PolicyClaim| match governing {
        [] => applies(claim, request.action.as_str(), request.asset.as_str()),
        named => named.contains(&claim.claim_id),
    };
    let found = policy.claims.iter().filter(governs);
    let findings: Vec<Finding> = found
        .map(|claim| evaluate(policy, claim, record.parsed(&claim.claim_id), request))
        .collect();
    // Of the strictest the first: `max_by_key` would take the last.
    let strictest = findings.iter().map(|finding| finding.decision).max();
    let governing = findings.iter().find(|finding| Some(finding.decision) == strictest).cloned();
    let governing = governing.ok_or_else(|| CheckError::Ungoverned {
        version: version(),
        action: request.action.to_string(),
        asset: request.asset.to_string(),
    })?;
    Ok(Check { governing, findings })
}

/// S5: holds an action against one claim. A disputed one never permits.
//= S5
#[must_use]
pub fn evaluate(
    policy: &PolicyDocument,
    claim: &PolicyClaim,
    parsed: Option<&ParsedClaim>,
    request: &Request<'_>,
) -> Finding {
    let blocked = match parsed {
        None => Some("the consent record does not answer it".to_owned()),
        Some(ParsedClaim { disputed: true, dispute_reason, .. }) => Some(format!(
            "the caller disputes it ({})",
            dispute_reason.as_ref().map_or("without a reason", Text::as_str)
        )),
        Some(ParsedClaim { understood: false, .. }) => {
            Some("the caller has not understood it".to_owned())
        }
        Some(_) => None,
    };
    let (decision, why) = match blocked {
        Some(why) => (AdherenceDecision::Escalate, why),
        None => by_rule(claim, request),
    };
    finding(policy, claim, request, decision, &why)
}

/// As [`evaluate`], by a core with a mistake.
#[cfg(feature = "mutants")]
#[must_use]
pub fn evaluate_as(
    mutant: Option<Mutant>,
    policy: &PolicyDocument,
    claim: &PolicyClaim,
    parsed: Option<&ParsedClaim>,
    request: &Request<'_>,
) -> Finding {
    if mutant == Some(Mutant::PermitsDisputed) {
        let (decision, why) = by_rule(claim, request);
        return finding(policy, claim, request, decision, &why);
    }
    evaluate(policy, claim, parsed, request)
}

/// What the rule says, with its constraint.
fn by_rule(claim: &PolicyClaim, request: &Request<'_>) -> (AdherenceDecision, String) {
    use AdherenceDecision::{Deny, Escalate, Permit};
    let text = claim.constraint.as_ref().map_or("", Text::as_str);
    let (met, facts) = match claim.constraint.as_ref().map(|text| Constraint::parse(text.as_str()))
    {
        None => (Truth::Met, "without condition".to_owned()),
        Some(Err(error)) => {
            return (Escalate, format!("its constraint '{text}' is not understood: {error}"));
        }
        Some(Ok(constraint)) => {
            let met = constraint.evaluate(request.context, Some(request.at));
            let mut names = Vec::new();
            constraint.operands(&mut names);
            names.dedup();
            let facts = names.into_iter().filter_map(|name| {
                let value = given(request.context, name, Some(request.at)).ok()?;
                Some(format!("{name}='{value}'"))
            });
            let facts = facts.collect::<Vec<_>>().join(", ");
            let says = if met == Truth::Met { "is met" } else { "is not met" };
            (met, format!("constraint '{text}' {says} by {facts}"))
        }
    };
    match (claim.rule_type, met) {
        (_, Truth::Unknown(why)) => {
            (Escalate, format!("whether its constraint '{text}' is met cannot be said: {why}"))
        }
        (RuleType::Permission, Truth::Met) => (Permit, format!("it permits this, {facts}")),
        (RuleType::Permission, Truth::NotMet) => {
            (Deny, format!("it does not permit this: {facts}"))
        }
        (RuleType::Prohibition, Truth::Met) => (Deny, format!("it prohibits this, {facts}")),
        (RuleType::Prohibition, Truth::NotMet) => {
            (Permit, format!("it does not prohibit this: {facts}"))
        }
        (RuleType::Obligation, Truth::NotMet) => (Permit, format!("it demands nothing: {facts}")),
        (RuleType::Obligation, Truth::Met) => {
            match given(request.context, claim.action.as_str(), None).as_deref() {
                Ok("fulfilled" | "done" | "true") => {
                    (Permit, format!("it demands {}, which is done, {facts}", claim.action))
                }
                _ => (
                    Escalate,
                    format!(
                        "it demands {}, and nothing says that it is done, {facts}",
                        claim.action
                    ),
                ),
            }
        }
    }
}

fn finding(
    policy: &PolicyDocument,
    claim: &PolicyClaim,
    request: &Request<'_>,
    decision: AdherenceDecision,
    why: &str,
) -> Finding {
    let verb = match decision {
        AdherenceDecision::Permit => "Permitting.",
        AdherenceDecision::Escalate => "Escalating to the principal.",
        AdherenceDecision::Deny => "Denying.",
    };
    let on_deny = decision == AdherenceDecision::Deny && claim.escalate_on_deny == Some(true);
    let told = if on_deny { " escalate_on_deny=true: notifying the principal." } else { "" };
    // What was decided stands at the end, and must not be cut off.
    let why = Text::<WHY_LEN_MAX>::cut(why);
    let reasoning = format!(
        "Action '{}' on {} is held against {} of {} on {}. Policy v{} {}: {why}. {verb}{told}",
        request.action,
        request.asset,
        claim.rule_type,
        claim.action,
        claim.asset,
        policy.version,
        claim.clause_ref,
    );
    Finding {
        claim_id: claim.claim_id.clone(),
        clause_ref: claim.clause_ref.clone(),
        decision,
        reasoning: Text::cut(&reasoning),
        notify: on_deny || decision == AdherenceDecision::Escalate,
    }
}

impl Finding {
    /// The event that puts it on record.
    #[must_use]
    pub fn event(
        &self,
        event_id: EventId,
        prev_event_id: Option<EventId>,
        consent_record_id: RecordId,
        request: &Request<'_>,
    ) -> AdherenceEvent {
        let context = (!request.context.is_empty()).then(|| request.context.clone());
        AdherenceEvent {
            event_id,
            prev_event_id,
            consent_record_id,
            action: request.action.clone(),
            clause_evaluated: self.clause_ref.clone(),
            claim_id: self.claim_id.clone(),
            decision: self.decision,
            reasoning: self.reasoning.clone(),
            timestamp: request.at.into(),
            context,
            agent_signature: None,
            chain_anchor: None,
            extra: Extra::default(),
        }
    }
}
