//! The gate's part: a call passes by consent that holds and by events that permit, and leaves an event of
//! its own, whether it passes or not (Anumati §3.4).
//!
//! These events are a trail beside the caller's: its own would not follow each other any more, were ours
//! among them.

use super::book::{Attempt, Book, json, key};
use super::{Acap, Denial};
use crate::a2a::random_id;
use crate::config::Permits;
use crate::gate::Wanted;
use crate::store::{SideTable, SideWrite};
use axum::http::StatusCode;
use proto::consent::{
    AdherenceDecision, AdherenceEvent, Block, ClaimId, ContentHash, EventId, Extra, Input,
    PrincipalId, Refused, Stamp, Text,
};
use proto::id::AgentId;
use serde_json::{Value, json};
use std::cmp::max;

/// What a caller may say of itself beside a call, or in an event: the hash of what it is.
pub(super) const CAPABILITY: &str = "caller_capability_hash";
/// And for whom it acts.
pub(super) const PRINCIPAL: &str = "principal_id";
/// The same in metadata of A2A and `_meta` of MCP.
const CAPABILITY_META: &str = "acap/caller_capability_hash";
const PRINCIPAL_META: &str = "acap/principal_id";

/// What a caller says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(super) capability: Option<ContentHash>,
    pub(super) principal: Option<PrincipalId>,
}

impl Told {
    /// Out of what comes beside a call.
    pub(crate) fn beside<'a>(meta: impl Fn(&str) -> Option<&'a Value>) -> Self {
        let text = |name: &str| meta(name).and_then(Value::as_str);
        Self::new(text(CAPABILITY_META), text(PRINCIPAL_META))
    }
}

/// Why a caller's calls are refused that does not consent any more, though it says nothing.
pub(super) fn withdrawn(caller: &AgentId, obligation: &str) -> Denial {
    let what = format!("consent of {caller} is withdrawn by obligation {obligation}");
    Denial::forbidden("withdrawn", what).with("obligation_id", obligation)
}

/// A refusal in the words of who is refused.
fn why(caller: &AgentId, book: &Book, claims: &[ClaimId], refused: Refused) -> Denial {
    match (&book.kept.withdrawn, refused) {
        (Some(obligation), Refused::NoConsent { .. }) => withdrawn(caller, obligation),
        // All of them: none is consented to.
        (_, refused @ Refused::NoConsent { .. }) => without(refused.into(), claims),
        (_, refused) => refused.into(),
    }
}

/// That none of these claims is consented to.
fn without(mut denial: Denial, claims: &[ClaimId]) -> Denial {
    let named = claims.iter().take(proto::consent::CLAIMS_NAMED_MAX);
    denial.claims = named.map(|claim| (claim.to_string(), "without consent".to_owned())).collect();
    denial.claims_count = claims.len();
    denial
}

impl Acap {
    /// The claims that govern a call; where it does not say what it wants, those of all it may reach.
    pub(crate) fn claims(&self, wanted: &Wanted) -> Vec<ClaimId> {
        let mut claims = Vec::new();
        for table in &self.config.policy_claims {
            let governs = table.calls.iter().any(|pattern| match wanted {
                Wanted::Named(name) => pattern.covers(name),
                Wanted::Any(beginning) => pattern.reaches(beginning),
            });
            for claim in table.claims.iter().filter(|_| governs) {
                if !claims.contains(claim) {
                    claims.push(claim.clone());
                }
            }
        }
        claims
    }

    /// Refuses a caller whose consent an obligation withdraws.
    pub(crate) fn check_withdrawn(&self, caller: &AgentId) -> Result<(), Denial> {
        match self.withdrawn(caller)? {
            Some(obligation) => Err(withdrawn(caller, &obligation)),
            None => Ok(()),
        }
    }

    /// Whether a call of `caller` may run. What was decided is durable when this returns.
    pub(crate) async fn admit(
        &self,
        caller: &AgentId,
        wanted: &Wanted,
        told: &Told,
    ) -> Result<(), Denial> {
        let Err(denial) = self.check_principal(caller, told) else {
            return self.attempt(caller, wanted, told, None).await;
        };
        let believed = Told { principal: None, ..told.clone() };
        self.attempt(caller, wanted, &believed, Some(&denial.message)).await?;
        Err(denial)
    }

    /// For whom a caller acts its `[[peers]]` table says, if that names somebody; then it may say nothing else.
    pub(super) fn check_principal(&self, caller: &AgentId, told: &Told) -> Result<(), Denial> {
        let known = self.principals.get(caller).filter(|known| *known != caller);
        match (known, &told.principal) {
            (Some(known), Some(said)) if said.as_str() != known.as_str() => {
                let what = format!("{caller} says that it acts for {said}, and acts for {known}");
                Err(Denial::forbidden("principal", what))
            }
            _ => Ok(()),
        }
    }

    /// Whether a call may run of one who is no peer: the operator, by a token or since this machine is its own.
    /// There is no chain that it could be put on record in.
    pub(crate) fn admit_nobody(&self, wanted: &Wanted) -> Result<(), Denial> {
        if self.config.acap.local_callers || self.config.api.token_file.is_some() {
            return Ok(());
        }
        let claims = self.claims(wanted);
        if claims.is_empty() {
            return Ok(());
        }
        let what = "who calls without a token is nobody that could have consented; fix: call as a peer, or set local_callers = true in [acap]";
        Err(self.hint(without(Denial::forbidden("consent_required", what), &claims)))
    }

    /// Puts on record that a call was refused for another reason than consent.
    pub(crate) async fn denied(
        &self,
        caller: &AgentId,
        wanted: &Wanted,
        told: &Told,
        why: &str,
    ) -> Result<(), Denial> {
        self.attempt(caller, wanted, told, Some(why)).await
    }

    //= S1 S4 S7
    async fn attempt(
        &self,
        caller: &AgentId,
        wanted: &Wanted,
        told: &Told,
        elsewhere: Option<&str>,
    ) -> Result<(), Denial> {
        let (Wanted::Named(call) | Wanted::Any(call)) = wanted;
        let book = self.book(caller).await?;
        let limit = self.config.acap.attempts_max;
        if book.kept.attempts - book.kept.first_attempt >= limit {
            let what = format!(
                "{limit} calls of {caller} are on record under its consent record, the limit (acap.attempts_max); nothing runs that cannot be put on record: consent anew"
            );
            return Err(Denial::new(StatusCode::TOO_MANY_REQUESTS, "full", what));
        }
        let mut next = book.clone();
        self.look(caller, &mut next, told)?;
        let claims = self.claims(wanted);
        let refused = match elsewhere {
            Some(_) => None,
            None => match self.judged(caller, &mut next, &claims)? {
                None => self.spend(&mut next, &claims),
                refused => refused,
            },
        };
        let event = self.event(&next, call, &claims, refused.as_ref(), elsewhere)?;
        let denial = refused.map(|refused| why(caller, &next, &claims, refused));
        let attempt = Attempt {
            at: event.as_ref().map_or_else(|| self.clock.now().into(), |e| e.timestamp.clone()),
            call: call.clone(),
            // Nothing passes without an event.
            decision: event.as_ref().map_or(AdherenceDecision::Deny, |event| event.decision),
            why: match (&denial, elsewhere) {
                (Some(denial), _) => denial.to_string(),
                (None, Some(why)) => why.to_owned(),
                (None, None) => "passed".to_owned(),
            },
            blocking: denial
                .iter()
                .flat_map(|denial| denial.claims.iter().map(|(claim, _)| claim.clone()))
                .collect(),
            event,
        };
        let number = next.kept.attempts;
        next.kept.attempts += 1;
        if let Some(event) = &attempt.event {
            next.kept.last_attempt = Some((event.event_id.clone(), event.timestamp.clone()));
        }
        let write = SideWrite {
            table: SideTable::AcapAttempt,
            key: key(caller, number),
            value: Some(json(&attempt)),
        };
        self.keep(caller, book, next, vec![write]).await?;
        match denial {
            None => Ok(()),
            Some(denial) => {
                let id = attempt.event.map(|event| event.event_id.to_string());
                Err(self.hint(denial.with("event_id", id).with("attempt", number)))
            }
        }
    }

    /// Why a call of these claims is refused as the chains are, if it is.
    //= S1 S4 S7
    pub(super) fn judged(
        &self,
        caller: &AgentId,
        next: &mut Book,
        claims: &[ClaimId],
    ) -> Result<Option<Refused>, Denial> {
        let kept = next.kept.clone();
        match next.machine.handle(&self.now(&self.line(), &kept), Input::Invoke(claims)) {
            Ok(_) => self.restricted(caller, &kept, claims),
            Err(refused) => Ok(Some(refused)),
        }
    }

    /// Uses up the permits of these claims, or refuses where a call has; where they are for one call.
    fn spend(&self, next: &mut Book, claims: &[ClaimId]) -> Option<Refused> {
        if self.config.acap.permit == Permits::Standing {
            return None;
        }
        let used: Vec<_> = claims.iter().filter(|claim| next.kept.used.contains(*claim)).collect();
        if used.is_empty() {
            next.kept.used.extend(claims.iter().cloned());
            return None;
        }
        let named = used.iter().take(proto::consent::CLAIMS_NAMED_MAX);
        let claims = named.map(|claim| ((*claim).clone(), Block::NotEvaluated)).collect();
        Some(Refused::Blocked { claims, count: used.len() })
    }

    /// Whether a call that was let in may begin, though it waited, or the node was started anew. A refusal is on
    /// record when this returns.
    pub(crate) async fn still(&self, caller: &AgentId, wanted: &Wanted) -> Result<(), Denial> {
        let claims = self.claims(wanted);
        let told = Told::default();
        let mut book = self.book(caller).await?.clone();
        self.look(caller, &mut book, &told)?;
        let Some(refused) = self.judged(caller, &mut book, &claims)? else { return Ok(()) };
        let denial = why(caller, &book, &claims, refused);
        self.denied(caller, wanted, &told, &denial.message).await?;
        Err(self.hint(denial))
    }

    /// The event of one attempt; none, if there is no record that it could rest on (S3).
    //= S3 S5 S6
    pub(super) fn event(
        &self,
        book: &Book,
        call: &str,
        claims: &[ClaimId],
        refused: Option<&Refused>,
        elsewhere: Option<&str>,
    ) -> Result<Option<AdherenceEvent>, Denial> {
        let Some(record) = book.anchor() else { return Ok(None) };
        let answered = |claim: &ClaimId| record.parsed(claim).is_some();
        let (decision, claim, why) = match (refused, elsewhere) {
            (None, Some(why)) => {
                let claim = claims.iter().find(|claim| answered(claim));
                (AdherenceDecision::Deny, claim, why.to_owned())
            }
            (None, None) => {
                let claim = claims.first().or(book.last.as_ref().map(|event| &event.claim_id));
                let by = match book.machine.last_event() {
                    Some(last) => format!("its adherence events permit it, the last {last}"),
                    None => "its adherence events permit it".to_owned(),
                };
                (AdherenceDecision::Permit, claim, by)
            }
            (Some(refused), _) => {
                let blocking: &[(ClaimId, Block)] = match refused {
                    Refused::Blocked { claims, .. } => claims,
                    _ => &[],
                };
                let escalated = blocking.iter().any(|(_, why)| *why == Block::Escalated)
                    && blocking.iter().all(|(_, why)| *why == Block::Escalated);
                let decision =
                    if escalated { AdherenceDecision::Escalate } else { AdherenceDecision::Deny };
                let blocked = blocking.iter().map(|(claim, _)| claim);
                let claim = blocked.chain(claims).find(|claim| answered(claim));
                (decision, claim, refused.to_string())
            }
        };
        // A record answers each claim of a policy, and a policy has one at least.
        let claim = claim.or_else(|| record.parsed_claims.first().map(|parsed| &parsed.claim_id));
        let Some(claim) = claim else { return Ok(None) };
        let line = self.line();
        let policy = line.version(&record.policy_version).unwrap_or(&line.policy);
        let clause = policy.claim(claim).map_or("-", |claim| claim.clause_ref.as_str());
        let verb = match decision {
            AdherenceDecision::Permit => "Permitting.",
            AdherenceDecision::Escalate => "Escalating to the principal.",
            AdherenceDecision::Deny => "Denying.",
        };
        let why = Text::<{ proto::consent::WHY_LEN_MAX }>::cut(&why);
        let reasoning = format!(
            "Call '{}' at the gate, policy v{} {clause}: {why}. {verb}",
            Text::<256>::cut(call),
            policy.version
        );
        let id = random_id().ok().and_then(|id| EventId::new(&id).ok());
        let event_id = id.ok_or_else(Denial::unavailable)?;
        let last = book.kept.last_attempt.as_ref();
        let first = book.kept.attempts == book.kept.first_attempt;
        let since = match last {
            Some((_, at)) if !first => at.time(),
            _ => record.accepted_at.time(),
        };
        // A trail does not run backwards, though clocks may.
        let timestamp = Stamp::from(max(self.clock.now(), since));
        let event = AdherenceEvent {
            event_id,
            prev_event_id: last.map(|(id, _)| id.clone()),
            consent_record_id: record.record_id.clone(),
            action: Text::cut(call),
            clause_evaluated: Text::cut(clause),
            claim_id: claim.clone(),
            decision,
            reasoning: Text::cut(&reasoning),
            timestamp,
            context: None,
            agent_signature: None,
            chain_anchor: None,
            extra: Extra::default(),
        };
        if let Err(fault) = event.check_against(record) {
            tracing::error!(%fault, "an event of the gate is none");
            return Err(Denial::unavailable());
        }
        Ok(Some(event))
    }

    /// Names the claims that govern each of `skills`, by its member `id` (Anumati §4.1 step 2).
    pub(crate) fn annotate_skills(&self, skills: &mut [Value]) {
        self.annotate(skills, "id", "policy_claims", |id| format!("a2a:{id}"));
    }

    /// The same for the tools of an MCP server (Anumati §4.2).
    pub(crate) fn annotate_tools(&self, server: &str, tools: &mut [Value]) {
        self.annotate(tools, "name", "policyClaims", |name| format!("mcp:{server}/{name}"));
    }

    fn annotate(
        &self,
        items: &mut [Value],
        named: &str,
        member: &str,
        call: impl Fn(&str) -> String,
    ) {
        for item in items {
            let Some(name) = item.get(named).and_then(Value::as_str) else { continue };
            let claims = self.claims(&Wanted::Named(call(name)));
            let Some(item) = item.as_object_mut() else { continue };
            match claims.is_empty() {
                // Of another policy, which is not the one to consent to here.
                true => item.remove(member),
                false => item.insert(member.to_owned(), json!(claims)),
            };
        }
    }
}
