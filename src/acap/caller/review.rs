//! Governance review (Anumati §3.5, §6.3): what has changed since the last consent is judged, and what is
//! beyond a rule waits in the inbox for a person. Meanwhile nothing is consented to and no call goes; so it
//! stays when her time is over.
//!
//! The tiers are those of the protocol's extension for them: what is added may be judged by a rule, what is
//! taken away, turned round or under other laws may not.

use super::chain::{Chain, Question};
use super::{Callee, Caller, Refusal};
use crate::config::Review;
use proto::consent::{
    ClaimChange, ClaimId, ConsentDecision, ConsentRecord, ContentHash, Input, Lifecycle, Now,
    PolicyDiff, PolicyDocument, State, Tier,
};
use proto::id::AgentId;
use serde_json::Value;
use std::sync::{Arc, PoisonError};

/// How a change is to be answered for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) tier: Tier,
    /// Why a person has to, and the claims that it is about.
    pub(super) why: Option<String>,
    pub(super) claims: Vec<ClaimId>,
}

/// What lies between `agreed`, the policy that was consented to last, and `policy`. `head` is the last record,
/// which may have rejected another one in between.
pub(super) fn judge(
    agreed: Option<&PolicyDocument>,
    head: &ConsentRecord,
    policy: &PolicyDocument,
    review: Review,
) -> Judged {
    let rule = |tier| Judged { tier, why: None, claims: Vec::new() };
    let person = |why: String, claims| Judged { tier: Tier::HumanRequired, why: Some(why), claims };
    let same = |hash: &ContentHash| *hash == policy.document_hash;
    let agreed = match agreed {
        // Who we are has changed, and each claim is parsed anew.
        Some(agreed) if same(&agreed.document_hash) => return rule(Tier::GovernanceReviewed),
        Some(agreed) => agreed,
        None if same(&head.policy_hash) || head.decision == ConsentDecision::Rejected => {
            return rule(Tier::GovernanceReviewed);
        }
        None => {
            let version = &head.policy_version;
            return person(
                format!("policy {version}, which was consented to, is not kept"),
                vec![],
            );
        }
    };
    let diff = match PolicyDiff::between(agreed, policy) {
        Ok(diff) => diff,
        Err(error) => return person(format!("it cannot be compared: {error}"), Vec::new()),
    };
    let retired: Vec<ClaimId> = diff.changed(ClaimChange::Retired).cloned().collect();
    if !retired.is_empty() {
        let since = &agreed.version;
        return person(format!("claims of policy {since} are retired or changed"), retired);
    }
    if agreed.jurisdictions != policy.jurisdictions {
        return person("other laws apply".to_owned(), Vec::new());
    }
    if diff.material && review == Review::Material {
        let added = diff.changed(ClaimChange::Added).cloned().collect();
        return person("it narrows what we may do".to_owned(), added);
    }
    rule(if diff.material { Tier::GovernanceReviewed } else { Tier::AutoApproved })
}

/// Takes the machine to where the policy is reviewed by whom `tier` says, if it is not there.
pub(super) fn begin(machine: &mut Lifecycle, now: &Now<'_>, tier: Tier) -> Result<(), Refusal> {
    let refused = |refused: proto::consent::Refused| Refusal::new("state", refused.to_string());
    if machine.state() != State::GovernanceReview {
        let _ = machine.handle(now, Input::Fetch).map_err(refused)?;
        if machine.head().is_some() {
            let _ = machine.handle(now, Input::Review).map_err(refused)?;
            let _ = machine.handle(now, Input::Judge(tier)).map_err(refused)?;
        }
    }
    Ok(())
}

impl Question {
    /// For the inbox.
    pub(super) fn view(&self, callee: &AgentId, now_ms: u64) -> Value {
        serde_json::json!({
            "id": self.id, "callee": callee, "policy_version": self.version, "reason": self.why,
            "claims": self.claims, "at_ms": self.at_ms, "deadline_at_ms": self.deadline_at_ms,
            "lapsed": self.has_lapsed(now_ms), "approved": self.answer,
            "delivered": self.told,
        })
    }

    /// Whether the time to answer is over.
    pub(super) const fn has_lapsed(&self, now_ms: u64) -> bool {
        self.answer.is_none() && now_ms >= self.deadline_at_ms
    }
}

impl Caller {
    /// Consent that waits for a person, for the inbox: as JSON, the least recent first.
    #[must_use]
    pub fn reviews(&self) -> Vec<Value> {
        let now = self.clock.now().as_ms();
        let mut open: Vec<(u64, Value)> = Vec::new();
        for (id, callee) in &self.callees {
            let asked = callee.asked.lock().unwrap_or_else(PoisonError::into_inner);
            open.extend(asked.iter().map(|asked| (asked.at_ms, asked.view(id, now))));
        }
        open.sort_by_key(|(at, _)| *at);
        open.into_iter().map(|(_, view)| view).collect()
    }

    /// A person answers one of [`reviews`](Self::reviews): yes makes the record, no one that rejects.
    ///
    /// # Errors
    /// [`Refusal`]: it is not asked, or not any more; or the record does not reach the callee now, though
    /// the answer is kept.
    pub async fn answer_review(self: &Arc<Self>, review: &str, yes: bool) -> Result<(), Refusal> {
        let of = self.callees.iter().find(|(_, callee)| {
            let asked = callee.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.as_ref().is_some_and(|asked| asked.id == review)
        });
        let gone = || Refusal::new("not_asked", format!("no review {review} waits for an answer"));
        let (id, _) = of.ok_or_else(gone)?;
        self.answered(&id.clone(), Some(review), yes).await
    }

    /// The same of a callee.
    ///
    /// # Errors
    /// [`Refusal`], as there.
    pub async fn answer(self: &Arc<Self>, callee: &AgentId, yes: bool) -> Result<(), Refusal> {
        self.answered(callee, None, yes).await
    }

    async fn answered(
        self: &Arc<Self>,
        callee: &AgentId,
        review: Option<&str>,
        yes: bool,
    ) -> Result<(), Refusal> {
        {
            let callee = self.callee(callee)?;
            let mut chain = callee.chain.lock().await;
            let mut next = chain.clone();
            let asked = next.kept.question.as_mut();
            let asked = asked.filter(|asked| review.is_none_or(|review| asked.id == review));
            let Some(question) = asked else {
                let what = format!("nothing is asked about {}", callee.terms.callee);
                return Err(Refusal::new("not_asked", what));
            };
            question.answer = Some(yes);
            self.keep(callee, &mut chain, next, Vec::new()).await?;
        }
        match self.consent(callee).await {
            Err(refusal) if refusal.code() == "rejected" && !yes => Ok(()),
            done => done,
        }
    }

    /// Why nothing goes on: a person has to answer, or had to.
    pub(super) fn unanswered(&self, callee: &Callee, question: &Question) -> Refusal {
        let (id, version, why) = (&callee.terms.callee, &question.version, &question.why);
        let by = proto::time::Time::from_ms(question.deadline_at_ms).to_rfc3339();
        let what = match question.has_lapsed(self.clock.now().as_ms()) {
            true => format!(
                "nobody has decided on policy {version} of {id} by {by}: it stays refused: {why}"
            ),
            false => format!("a person has to decide on policy {version} of {id} by {by}: {why}"),
        };
        let claims = question.claims.iter().map(|claim| (claim.clone(), why.clone())).collect();
        Refusal::new("escalated", what)
            .claims(claims)
            .with("review", question.id.clone().into())
            .with("deadline_at_ms", question.deadline_at_ms.into())
    }

    /// Asks a person; durable when this returns. The machine stands in review from then on.
    pub(super) async fn ask(
        &self,
        callee: &Callee,
        chain: &mut Chain,
        now: &Now<'_>,
        question: Question,
    ) -> Result<Refusal, Refusal> {
        let refusal = self.unanswered(callee, &question);
        let mut next = chain.clone();
        if next.head.is_some() {
            begin(&mut next.machine, now, Tier::HumanRequired)?;
        }
        if next.kept.question.as_ref() != Some(&question) {
            tracing::warn!(callee = %callee.terms.callee, review = question.id, %refusal, "a person has to decide: `abhyasa escalations`");
            next.kept.question = Some(question);
            self.keep(callee, chain, next, Vec::new()).await?;
            self.news.notify_one();
        } else {
            *chain = next; // asked before; where the machine stands is not kept
        }
        Ok(refusal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::consent::read;
    use serde_json::json;

    fn claim(id: &str, rule: &str, since: &str) -> Value {
        json!({
            "claim_id": id, "clause_ref": "§1", "action": "odrl:use", "asset": "a2a:task_output",
            "rule_type": rule, "effective_version": since,
        })
    }

    fn policy(version: &str, claims: &[Value], laws: &[&str]) -> PolicyDocument {
        let document = json!({
            "version": version, "document_uri": "https://a.test/p.json", "document_hash": "",
            "effective_date": "2026-02-27T00:00:00Z", "claims": claims, "publisher": "spiffe://test/a",
            "natural_language_uri": "https://a.test/terms", "jurisdictions": laws,
        });
        read::<PolicyDocument>(document.to_string().as_bytes()).unwrap().sealed()
    }

    fn record(policy: &PolicyDocument) -> ConsentRecord {
        let record = json!({
            "record_id": "r-1", "caller_agent_id": "spiffe://test/b", "callee_agent_id": "spiffe://test/a",
            "policy_version": policy.version, "policy_hash": policy.document_hash,
            "parsed_claims": [{ "claim_id": "use", "understood": true, "disputed": false }],
            "decision": "accepted", "accepted_at": "2026-03-01T00:00:00Z", "valid_until": "on_any_change",
        });
        read(record.to_string().as_bytes()).unwrap()
    }

    /// Each kind of change, and who answers for it.
    #[test]
    fn what_is_taken_away_is_for_a_person() {
        let may = claim("use", "permission", "1.0.0");
        let first = policy("1.0.0", std::slice::from_ref(&may), &["EU"]);
        let head = record(&first);
        let tier = |next: &PolicyDocument, review| judge(Some(&first), &head, next, review).tier;
        let permits = [may.clone(), claim("share", "permission", "2.0.0")];
        let wider = policy("2.0.0", &permits, &["EU"]);
        assert_eq!(tier(&wider, Review::Tiered), Tier::AutoApproved);
        let narrower = [may.clone(), claim("keep", "prohibition", "2.0.0")];
        let narrower = policy("2.0.0", &narrower, &["EU"]);
        assert_eq!(tier(&narrower, Review::Tiered), Tier::GovernanceReviewed);
        assert_eq!(tier(&narrower, Review::Material), Tier::HumanRequired);
        let turned = policy("2.0.0", &[claim("use-2", "prohibition", "2.0.0")], &["EU"]);
        let judged = judge(Some(&first), &head, &turned, Review::Tiered);
        assert_eq!(judged.tier, Tier::HumanRequired);
        assert_eq!(judged.claims, [ClaimId::new("use").unwrap()]);
        let moved = policy("2.0.0", &[may], &["US"]);
        assert_eq!(tier(&moved, Review::Tiered), Tier::HumanRequired);
        // What it is compared with must be what was agreed to.
        assert_eq!(judge(None, &head, &wider, Review::Tiered).tier, Tier::HumanRequired);
        // A version that was rejected in between changes nothing of that.
        let rejects = ConsentRecord { decision: ConsentDecision::Rejected, ..record(&turned) };
        let again =
            policy("3.0.0", &turned.claims.iter().map(|c| json!(c)).collect::<Vec<_>>(), &["EU"]);
        assert_eq!(
            judge(Some(&first), &rejects, &turned, Review::Tiered).tier,
            Tier::HumanRequired
        );
        assert_eq!(judge(Some(&first), &rejects, &again, Review::Tiered).tier, Tier::HumanRequired);
        assert_eq!(judge(None, &head, &first, Review::Tiered).tier, Tier::GovernanceReviewed);
    }
}
