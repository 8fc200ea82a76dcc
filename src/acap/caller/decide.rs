//! From a policy to a decision: fetched, verified, understood claim by claim, and put on record; what is not
//! for a rule to decide waits for a person (Anumati §3.5, §3.6, §6.3).

use super::super::book::{json, key};
use super::chain::{AGREED, Chain, Entry, LATEST, Question};
use super::outbox::diverged;
use super::policy::{Line, Pointer, skills};
use super::{
    ATTEMPTS_MAX, Action, CARD_PATH, Callee, Caller, GET, POLICY_PATH, Permit, RECONSENT_WINDOW,
    RECONSENTS_MAX, Refusal, random, review, stamp,
};
use crate::config::Accept;
use crate::store::{SideTable, SideWrite};
use proto::consent::{
    ClaimId, ConsentDecision, ConsentRecord, Extra, Input, Intent, List, ParsedClaim,
    PolicyVersion, RecordId, State, Text, Tier, Use, ValidUntil,
};
use proto::id::AgentId;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

impl Caller {
    /// Consent that holds, and nothing that waits for the callee.
    //= S7 L1 L2
    pub(super) async fn ready(&self, callee: &Callee, chain: &mut Chain) -> Result<(), Refusal> {
        for _ in 0..ATTEMPTS_MAX {
            if let Some(why) = &chain.kept.diverged {
                return Err(diverged(callee, why));
            }
            self.check_withdrawn(callee, chain).await?;
            if self.flush(callee, chain).await?.is_none() {
                continue;
            }
            self.look_at_policy(callee, chain).await?;
            self.look(callee, chain).await?;
            if chain.machine.state().is_live() {
                return Ok(());
            }
            self.decide(callee, chain).await?;
            if self.flush(callee, chain).await?.is_some() && chain.machine.state().is_live() {
                return Ok(());
            }
            if chain.machine.state() == State::Rejected {
                return Err(rejected(chain));
            }
        }
        let id = &callee.terms.callee;
        let what =
            format!("consent to the policy of {id} does not come about in {ATTEMPTS_MAX} attempts");
        Err(Refusal::new("unsettled", what).temporary())
    }

    /// Whether consent has ended by now; that it has is durable then.
    async fn look(&self, callee: &Callee, chain: &mut Chain) -> Result<(), Refusal> {
        let Some(line) = chain.line.clone() else { return Ok(()) };
        let capability = self.capability(callee);
        let mut next = chain.clone();
        if let Some(why) = next.machine.look(&self.now(callee, &line.policy, capability.as_ref())) {
            tracing::info!(callee = %callee.terms.callee, %why, "consent holds no more");
            next.kept.ended = Some(why);
            self.keep(callee, chain, next, Vec::new()).await?;
        }
        Ok(())
    }

    /// Sees to it that the policy is what the callee points to beside it, if it says so (Anumati §4.2).
    async fn pointed(&self, callee: &AgentId, pointer: &Pointer) -> Result<(), Refusal> {
        let callee = self.callee(callee)?;
        let mut chain = callee.chain.lock().await;
        let other = |chain: &Chain| {
            let policy = &chain.line.as_ref()?.policy;
            // What was said before a newer one was published says nothing.
            let told = pointer.version.as_ref().and_then(|told| PolicyVersion::new(told).ok());
            let is_old = told.is_some_and(|told| policy.version.is_after(&told));
            pointer.check(policy).err().filter(|_| !is_old)
        };
        if other(&chain).is_none() {
            return Ok(());
        }
        callee.seen.lock().unwrap_or_else(PoisonError::into_inner).at = None;
        self.look_at_policy(callee, &mut chain).await?;
        match other(&chain) {
            Some(error) => Err(policy_refused(&callee.terms.callee, &error).temporary()),
            None => Ok(()),
        }
    }

    /// As [`act`](Self::act), with the policy that `pointer` names.
    ///
    /// # Errors
    /// As there; or the callee serves another policy.
    pub(crate) async fn act_by(
        self: &Arc<Self>,
        callee: &AgentId,
        action: Action,
        pointer: Pointer,
    ) -> Result<Permit, Refusal> {
        let (here, id) = (self.clone(), callee.clone());
        let pointed = tokio::spawn(async move { here.pointed(&id, &pointer).await });
        pointed.await.unwrap_or_else(|_| Err(Refusal::store()))?;
        self.act(callee, action).await
    }

    /// The policy, fetched if what we have is old.
    async fn look_at_policy(&self, callee: &Callee, chain: &mut Chain) -> Result<(), Refusal> {
        let (id, way) = (&callee.terms.callee, &callee.terms.way);
        let etag = {
            let seen = callee.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.at.is_some_and(|at| at.elapsed() < callee.terms.fresh) && chain.line.is_some() {
                return Ok(());
            }
            seen.etag.clone().filter(|_| chain.line.is_some())
        };
        let away = |why: String| {
            Refusal::new("unreached", format!("the policy of {id} cannot be fetched: {why}"))
                .temporary()
        };
        let card = way.exchange(GET, CARD_PATH, None, Vec::new()).await.map_err(away)?;
        let card: Option<Value> = match card.status {
            200 => serde_json::from_slice(&card.body).ok(),
            _ => None, // an MCP server alone has none
        };
        let answer =
            way.exchange(GET, POLICY_PATH, etag.as_deref(), Vec::new()).await.map_err(away)?;
        let before = chain.line.clone();
        let line = match (answer.status, &before) {
            (304, Some(line)) => line.clone(),
            (200, _) => {
                let line = Line::next(before.as_deref(), id, &answer.body);
                Arc::new(line.map_err(|error| policy_refused(id, &error))?)
            }
            (404, _) => {
                let what = format!("{id} has no usage policy, and [[consent]] says that it has");
                return Err(Refusal::new("no_policy", what));
            }
            (status, _) => return Err(away(format!("it answers {status}"))),
        };
        if let Some(pointer) = card.as_ref().and_then(Pointer::of_card) {
            // Between the two the callee may have published anew.
            pointer.check(&line.policy).map_err(|error| policy_refused(id, &error).temporary())?;
        }
        let is_new = before
            .as_ref()
            .is_none_or(|before| before.policy.document_hash != line.policy.document_hash);
        chain.skills = card.as_ref().map(|card| Arc::new(skills(card)));
        if is_new {
            let table = SideTable::CallerPolicy;
            let write = SideWrite { table, key: key(id, LATEST), value: Some(json(&*line)) };
            let mut next = chain.clone();
            next.line = Some(line);
            self.keep(callee, chain, next, vec![write]).await?;
        }
        let mut seen = callee.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.at = Some(Instant::now());
        seen.etag = answer.etag.or_else(|| seen.etag.take());
        Ok(())
    }

    /// Makes a record, if that is for a rule to decide or a person has decided; durable when this returns.
    async fn decide(&self, callee: &Callee, chain: &mut Chain) -> Result<(), Refusal> {
        let Some(line) = chain.line.clone() else { return Err(Refusal::store()) };
        let policy = &line.policy;
        let capability = self.capability(callee);
        let principal = callee.terms.principal.clone();
        if chain.machine.state() == State::Rejected
            && chain.head.as_ref().is_some_and(|head| {
                head.policy_hash == policy.document_hash
                    && head.caller_capability_hash == capability
                    && head.principal_id == principal
            })
            && chain.kept.question.as_ref().is_none_or(|question| question.answer != Some(true))
        {
            return Err(rejected(chain));
        }
        let intent = self.intent(callee)?;
        let parsed: Vec<ParsedClaim> =
            policy.claims.iter().map(|claim| self.parser.parse(claim, &intent)).collect();
        let named = |of: &dyn Fn(&ParsedClaim) -> bool| -> Vec<ClaimId> {
            parsed.iter().filter(|one| of(one)).map(|one| one.claim_id.clone()).collect()
        };
        let unclear = named(&|one| !one.understood);
        let unlisted = named(&|one| !callee.terms.claims.contains(&one.claim_id));
        let disputed = named(&|one| one.disputed);
        let judged = chain.head.as_ref().map(|head| {
            let agreed = chain.agreed.as_ref().map(|line| &line.policy);
            review::judge(agreed, head, policy, callee.terms.review)
        });
        let changed =
            judged.as_ref().and_then(|judged| Some((judged.why.clone()?, judged.claims.clone())));
        let question = match callee.terms.accept {
            _ if !unclear.is_empty() => Some(("claims are not understood".to_owned(), unclear)),
            Accept::Understood => changed,
            Accept::Listed if unlisted.is_empty() => changed,
            Accept::Listed => Some(("claims are not listed in [[consent]]".to_owned(), unlisted)),
            Accept::Never => {
                Some(("accept = \"never\" in [[consent]]".to_owned(), named(&|_| true)))
            }
        };
        let now = self.now(callee, policy, capability.as_ref());
        let mut answer = None;
        if let Some((why, claims)) = question {
            let asked = chain.kept.question.clone().filter(|asked| {
                asked.hash == policy.document_hash
                    && asked.capability == capability
                    && asked.principal == principal
            });
            answer = asked.as_ref().and_then(|asked| asked.answer);
            if answer.is_none() {
                let question = match asked {
                    Some(asked) => asked,
                    None => Question {
                        version: policy.version.clone(),
                        hash: policy.document_hash.clone(),
                        capability: capability.clone(),
                        principal: principal.clone(),
                        why,
                        claims,
                        answer,
                        id: format!("review-{}", random()?),
                        at_ms: now.at.as_ms(),
                        deadline_at_ms: now.at.after(callee.terms.answer).as_ms(),
                        told: false,
                    },
                };
                return Err(self.ask(callee, chain, &now, question).await?);
            }
        }
        self.spend(callee)?;
        let rejects =
            answer == Some(false) || !disputed.is_empty() && disputed.len() == policy.claims.len();
        let decision = match () {
            () if rejects => ConsentDecision::Rejected,
            () if !disputed.is_empty() => ConsentDecision::Conditional,
            () => ConsentDecision::Accepted,
        };
        let mut next = chain.clone();
        let trigger = next.machine.why();
        let refused = |refused: proto::consent::Refused| Refusal::new("state", refused.to_string());
        let tier = match answer {
            Some(_) => Tier::HumanRequired,
            None => judged.map_or(Tier::AutoApproved, |judged| judged.tier),
        };
        review::begin(&mut next.machine, &now, tier)?;
        if let (Some(yes), Some(_)) = (answer, &next.head) {
            let _ = next.machine.handle(&now, Input::Answer(yes)).map_err(refused)?;
        }
        let last = next.head.as_ref().map(|head| head.accepted_at.time());
        let at = last.map_or(now.at, |last| now.at.max(last.after(Duration::from_millis(1))));
        let id = random()?;
        let mut record = ConsentRecord {
            record_id: RecordId::new(&id).map_err(|_| Refusal::store())?,
            prev_record_id: next.head.as_ref().map(|head| head.record_id.clone()),
            caller_agent_id: self.me.clone(),
            callee_agent_id: callee.terms.callee.clone(),
            policy_version: policy.version.clone(),
            policy_hash: policy.document_hash.clone(),
            parsed_claims: List::new(parsed).map_err(|what| Refusal::new("record", what))?,
            decision,
            accepted_at: stamp(at),
            // With an end, so that it may be given anew whenever the callee asks for that.
            valid_until: ValidUntil::At(stamp(at.after(callee.terms.valid))),
            caller_signature: None,
            principal_id: principal,
            caller_capability_hash: capability.clone(),
            reconsent_trigger: trigger.map(|trigger| Text::cut(trigger.as_str())),
            chain_anchor: None,
            extra: Extra::default(),
        };
        if self.signer.is_some() {
            record.caller_signature = Some(Text::cut(""));
            record.caller_signature = Some(self.signed(&record)?);
        }
        let _ = next.machine.handle(&now, Input::Consent(&record)).map_err(refused)?;
        let number = next.kept.records;
        let write = SideWrite {
            table: SideTable::CallerRecord,
            key: key(&callee.terms.callee, number),
            value: Some(json(&record)),
        };
        next.kept.records = number + 1;
        next.kept.first_event = next.kept.events;
        next.kept.ended = None;
        next.kept.withdrawn = None;
        next.kept.decided = self.decided_by(&callee.terms.callee)?;
        next.kept.question = None;
        self.tell_record(&mut next, &record);
        next.kept.outbox.push_back(Entry::Record(number));
        next.head = Some(record);
        let mut writes = vec![write];
        if decision != ConsentDecision::Rejected {
            let (table, key) = (SideTable::CallerPolicy, key(&callee.terms.callee, AGREED));
            writes.push(SideWrite { table, key, value: Some(json(&*line)) });
            next.agreed = Some(line.clone());
        }
        self.keep(callee, chain, next, writes).await
    }

    fn intent(&self, callee: &Callee) -> Result<Intent, Refusal> {
        let uses = callee.terms.uses.iter().map(|one| Use {
            action: one.action.clone(),
            asset: one.asset.clone(),
            context: callee.terms.facts.clone(),
        });
        let uses = List::new(uses.collect()).map_err(|what| Refusal::new("uses", what))?;
        Ok(Intent { text: Text::cut("as configured"), uses })
    }

    /// Whether a further record is within the rate.
    fn spend(&self, callee: &Callee) -> Result<(), Refusal> {
        let now = self.clock.now();
        let mut seen = callee.seen.lock().unwrap_or_else(PoisonError::into_inner);
        while seen.consents.front().is_some_and(|at| at.after(RECONSENT_WINDOW) <= now) {
            seen.consents.pop_front();
        }
        if seen.consents.len() >= RECONSENTS_MAX {
            let (id, seconds) = (&callee.terms.callee, RECONSENT_WINDOW.as_secs());
            let what = format!("{RECONSENTS_MAX} records for {id} in {seconds} s, the limit");
            return Err(Refusal::new("rate", what).temporary());
        }
        seen.consents.push_back(now);
        Ok(())
    }

    /// How consent to each callee stands, as JSON.
    pub async fn status(&self) -> Value {
        let mut items = Vec::new();
        for (id, callee) in &self.callees {
            let chain = callee.chain.lock().await;
            let kept = &chain.kept;
            items.push(serde_json::json!({
                "callee": id, "state": chain.machine.state(), "ended": kept.ended,
                "policy_version": chain.line.as_ref().map(|line| &line.policy.version),
                "record_id": chain.head.as_ref().map(|head| &head.record_id),
                "decision": chain.head.as_ref().map(|head| head.decision),
                "records": kept.records, "events": kept.events, "waiting": kept.outbox.len(),
                "refused": kept.refused, "question": kept.question, "diverged": kept.diverged,
                "withdrawn_by": kept.withdrawn, "restricted": kept.restricted,
            }));
        }
        serde_json::json!({ "items": items })
    }
}

fn rejected(chain: &Chain) -> Refusal {
    let disputed: BTreeMap<_, _> = chain
        .head
        .iter()
        .flat_map(|head| &head.parsed_claims)
        .filter_map(|one| Some((one.claim_id.clone(), one.dispute_reason.as_ref()?.to_string())))
        .collect();
    let version = chain.line.as_ref().map(|line| line.policy.version.to_string());
    let what = format!("policy {} is rejected by us", version.unwrap_or_default());
    Refusal::new("rejected", what).claims(disputed.into_iter().collect())
}

fn policy_refused(callee: &AgentId, error: &super::PolicyError) -> Refusal {
    tracing::error!(%callee, %error, "the callee's policy is not taken");
    Refusal::new("policy", format!("the policy of {callee} is not taken: {error}"))
}
