//! One caller, one callee, and what has happened between them.

use super::paper::Abstract;
use super::rules::{Rule, Rules};
use super::{Setup, Until};
use proto::consent::{
    AdherenceDecision, AdherenceEvent, Append, ClaimId, ConsentDecision, ConsentRecord,
    ContentHash, Context, Duty, EventId, Extra, Finding, Input, Lifecycle, Now, Pair, ParsedClaim,
    PolicyDocument, RecordId, Recovery, Refused, Request, Stamp, State, Step, Text, Tier, Trigger,
    Triggers, ValidUntil,
};
use proto::id::AgentId;
use proto::time::Time;
use serde_json::json;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Names of the two claims: one that is never disputed, and one that a conditional record disputes.
const CLAIMS: [&str; 2] = ["use", "profile"];
/// The claim that may be disputed.
const DISPUTED: usize = 1;
/// Seconds between two records.
const RECORD_SECONDS: u64 = 10;
/// When time has run out: long after every record.
const END_SECONDS: u64 = 100_000;

/// On which record an event rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Under {
    /// The last one.
    Last,
    /// One before it.
    Earlier,
    /// One that does not exist.
    Nobody,
}

/// Something that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// The callee publishes a new version.
    Publish,
    /// The caller becomes another.
    Change,
    /// Time runs out.
    Expire,
    /// The machine is lost, and recovered from its chains.
    Restart,
    /// Somebody looks.
    Look,
    /// The caller fetches the policy.
    Fetch,
    /// What has changed is put before the governance agent.
    Review,
    /// The governance agent judges.
    Judge(Tier),
    /// A person answers.
    Answer(bool),
    /// The caller decides.
    Consent(ConsentDecision),
    /// The caller holds an action against a claim, and says what came of it. With the purpose that the
    /// claim names, or with another.
    Attempt(usize, bool),
    /// The caller says what it likes of a claim.
    Claim(usize, AdherenceDecision, Under),
    /// A skill is about to run, governed by the claims of these bits.
    Invoke(u8),
}

impl Action {
    /// What kind of action it is.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Change => "change",
            Self::Expire => "expire",
            Self::Restart => "restart",
            Self::Look => "look",
            Self::Fetch => "fetch",
            Self::Review => "review",
            Self::Judge(_) => "judge",
            Self::Answer(_) => "answer",
            Self::Consent(ConsentDecision::Accepted) => "accept",
            Self::Consent(ConsentDecision::Rejected) => "reject",
            Self::Consent(ConsentDecision::Conditional) => "condition",
            Self::Attempt(..) | Self::Claim(..) => "adhere",
            Self::Invoke(_) => "invoke",
        }
    }
}

/// The last record, as it was made.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Last {
    decision: ConsentDecision,
    version: u8,
    capability: u8,
    expired: bool,
    /// The latest event of each claim under it.
    latest: [Option<AdherenceDecision>; 2],
    /// Whether the last event under it permits.
    permits: bool,
    events: u8,
}

/// A state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) machine: Lifecycle,
    version: u8,
    capability: u8,
    expired: bool,
    records: u8,
    events: u8,
    last: Option<Last>,
    /// Why the last record holds no more, once the machine has said so.
    ended: Option<Trigger>,
    /// The last record, and the events under it.
    kept: Aside<(Option<ConsentRecord>, Vec<AdherenceEvent>)>,
    /// What the last action did, for the witnesses.
    pub(super) did: Did,
    pub(super) broken: Rules,
}

/// What makes no two states differ: all that counts of it is in the machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Aside<T>(Arc<T>);

impl<T> PartialEq for Aside<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Aside<T> {}

impl<T> Hash for Aside<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// What an action did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Did {
    /// A skill ran.
    pub(super) ran: bool,
    /// A skill ran under a conditional record.
    pub(super) ran_conditional: bool,
    /// A permit by a disputed claim was refused.
    pub(super) refused_permit: bool,
    /// An event that rests on another record was refused.
    pub(super) refused_anchor: bool,
    /// A skill was refused since the caller had changed.
    pub(super) refused_drift: bool,
    /// Consent was given anew.
    pub(super) anew: bool,
    /// The state in which the machine handled it, having looked.
    pub(super) from: Option<State>,
}

impl Did {
    /// Whether something of note was refused.
    const fn refused(self) -> bool {
        self.refused_permit || self.refused_anchor || self.refused_drift || self.ran
    }
}

/// What does not change in a run: the documents.
#[derive(Clone, Debug)]
pub(super) struct Documents {
    policies: Vec<PolicyDocument>,
    capabilities: Vec<ContentHash>,
    claims: Vec<ClaimId>,
    pair: Pair,
}

/// Names of our own making are short and printable.
fn known<T, E: std::fmt::Display>(made: Result<T, E>) -> T {
    made.unwrap_or_else(|error| panic!("the check's own documents: {error}"))
}

impl Documents {
    pub(super) fn new(setup: &Setup) -> Self {
        let policy = |version: u8| {
            let claim = |id: &str, rule: &str, constraint: Option<&str>| {
                json!({
                    "claim_id": id, "clause_ref": id, "action": "odrl:aggregate", "asset": "odrl:All",
                    "rule_type": rule, "constraint": constraint, "effective_version": "1.0.0",
                })
            };
            let document = json!({
                "version": format!("{version}.0.0"), "document_uri": "https://callee.example/policy",
                "document_hash": "", "effective_date": "2026-03-01T00:00:00Z",
                "claims": [
                    claim("use", "permission", Some("odrl:purpose is good")),
                    claim("profile", "prohibition", Some("odrl:purpose isNot good")),
                ],
                "publisher": "did:web:callee.example",
                "natural_language_uri": "https://callee.example/terms",
            });
            known(serde_json::from_value::<PolicyDocument>(document)).sealed()
        };
        Self {
            policies: (1..=setup.versions).map(policy).collect(),
            capabilities: (1..=setup.capabilities).map(|n| ContentHash::of(&[n])).collect(),
            claims: CLAIMS.iter().map(|id| known(ClaimId::new(id))).collect(),
            pair: Pair {
                caller: known(AgentId::new("did:web:caller.example")),
                callee: known(AgentId::new("did:web:callee.example")),
            },
        }
    }

    fn policy(&self, version: u8) -> &PolicyDocument {
        let policy = self.policies.get(usize::from(version) - 1);
        policy.unwrap_or_else(|| panic!("no policy of version {version}"))
    }
}

fn second(seconds: u64) -> Time {
    Time::from_ms(1_772_600_000_000).after_ms(seconds * 1_000)
}

fn record_id(number: u8) -> RecordId {
    known(RecordId::new(&format!("r{number}")))
}

fn event_id(number: u8) -> EventId {
    known(EventId::new(&format!("e{number}")))
}

impl World {
    pub(super) fn first(setup: &Setup, documents: &Documents) -> Self {
        let machine = Lifecycle::new(documents.pair.clone(), setup.side, setup.always);
        #[cfg(feature = "mutants")]
        let machine = machine.with_mutant(setup.mutant);
        Self {
            machine,
            version: 1,
            capability: 1,
            expired: false,
            records: 0,
            events: 0,
            last: None,
            ended: None,
            kept: Aside::default(),
            did: Did::default(),
            broken: Rules::default(),
        }
    }

    /// What it is in the paper's model.
    pub(super) fn abstracted(&self) -> Abstract {
        Abstract {
            state: self.machine.state(),
            version: self.version,
            capability: self.capability,
            records: self.records,
            events: self.events,
            last: self.last.as_ref().map(|last| (last.decision, last.version, last.capability)),
        }
    }

    /// What may happen. What the machine must refuse is among it.
    pub(super) fn actions(&self, setup: &Setup, found: &mut Vec<Action>) {
        use AdherenceDecision::{Deny, Escalate, Permit};
        let live = self.machine.state().is_live();
        let bumps = live || self.machine.state() == State::PolicyFetched;
        if self.version < setup.versions && (bumps || !setup.as_paper) {
            found.push(Action::Publish);
        }
        if self.capability < setup.capabilities && (live || !setup.as_paper) {
            found.push(Action::Change);
        }
        if setup.until == Until::Time && !self.expired {
            found.push(Action::Expire);
        }
        if !setup.as_paper {
            found.push(Action::Restart);
        }
        found.extend([Action::Look, Action::Fetch, Action::Review]);
        let tiers = [Tier::AutoApproved, Tier::GovernanceReviewed, Tier::HumanRequired];
        // Where something does not belong, one of it shows that it is refused.
        let reviewed = self.machine.state() == State::GovernanceReview;
        let some = |count: usize, belongs: bool| if belongs { count } else { 1 };
        found.extend(tiers.map(Action::Judge).into_iter().take(some(3, reviewed)));
        found.extend([true, false].map(Action::Answer).into_iter().take(some(2, reviewed)));
        if self.records < setup.records {
            let decisions = [
                ConsentDecision::Accepted,
                ConsentDecision::Rejected,
                ConsentDecision::Conditional,
            ];
            found.extend(decisions.map(Action::Consent));
        }
        let under_last = self.last.as_ref().map_or(0, |last| last.events);
        if (if setup.each_record { under_last } else { self.events }) < setup.events {
            for claim in 0..some(CLAIMS.len(), live) {
                found.extend([true, false].map(|good| Action::Attempt(claim, good)));
                for under in [Under::Last, Under::Earlier, Under::Nobody] {
                    let said = some(3, live && under == Under::Last);
                    let decisions = [Permit, Deny, Escalate].into_iter().take(said);
                    found.extend(decisions.map(|it| Action::Claim(claim, it, under)));
                }
            }
        }
        found.extend((0..4).map(Action::Invoke).take(some(4, live)));
        if setup.as_paper {
            let rejects = Action::Consent(ConsentDecision::Rejected);
            found.retain(|it| *it != Action::Answer(false) && !(live && *it == rejects));
        }
    }

    /// Does it, in the state `before`. None if nothing came of it.
    pub(super) fn act(
        &mut self,
        before: &Self,
        setup: &Setup,
        documents: &Documents,
        action: Action,
    ) -> Option<()> {
        match action {
            Action::Publish => self.version += 1,
            Action::Change => self.capability += 1,
            Action::Expire => self.expired = true,
            Action::Restart => self.restart(setup, documents),
            Action::Look => drop(self.handle(documents, Input::Look)),
            Action::Fetch => drop(self.handle(documents, Input::Fetch)),
            Action::Review => drop(self.handle(documents, Input::Review)),
            Action::Judge(tier) => drop(self.handle(documents, Input::Judge(tier))),
            Action::Answer(yes) => drop(self.handle(documents, Input::Answer(yes))),
            Action::Consent(decision) => {
                let record = self.record(setup, documents, decision);
                drop(self.handle(documents, Input::Consent(&record)));
            }
            Action::Attempt(claim, good) => {
                let finding = self.evaluate(setup, documents, claim, good)?;
                let event = self.event(claim, finding.decision, Under::Last);
                drop(self.handle(documents, Input::Adhere(&event)));
            }
            Action::Claim(claim, decision, under) => {
                let event = self.event(claim, decision, under);
                let refused = self.handle(documents, Input::Adhere(&event)).is_err();
                let live = self.machine.state().is_live();
                self.did.refused_anchor = refused && live && under != Under::Last;
                self.did.refused_permit = refused && live && under == Under::Last;
            }
            Action::Invoke(bits) => self.invoke(setup, documents, bits),
        }
        if setup.as_paper {
            drop(self.handle(documents, Input::Look));
        }
        self.check(setup);
        let did = std::mem::replace(&mut self.did, before.did);
        let changed = self != before;
        self.did = did;
        (changed || self.did.refused()).then_some(())
    }

    fn now<'a>(&self, documents: &'a Documents) -> Now<'a> {
        let at = if self.expired { END_SECONDS } else { u64::from(self.records) * RECORD_SECONDS };
        Now {
            at: second(at),
            policy: documents.policy(self.version),
            capability: documents.capabilities.get(usize::from(self.capability) - 1),
            principal: None,
        }
    }

    /// Tells the machine something, and keeps what it asks to have appended.
    fn handle(&mut self, documents: &Documents, input: Input<'_>) -> Result<Step, Refused> {
        let now = self.now(documents);
        let mut looked = self.machine.clone();
        let result = self.machine.handle(&now, input);
        let from = looked.state();
        // By itself, to see that to handle an input begins with this.
        if let Some(why) = looked.look(&now) {
            self.ended = Some(why);
        }
        self.did.from = Some(looked.state());
        match &result {
            Err(_) => self.broken.add_unless(Rule::TypeOk, self.machine == looked),
            Ok(step) => {
                let told = step.from == from && step.to == self.machine.state();
                self.broken.add_unless(Rule::TypeOk, told);
                match &step.append {
                    Some(Append::Record { number, record }) => self.keep_record(*number, record),
                    Some(Append::Event { number, event }) => self.keep_event(*number, event),
                    None => {}
                }
            }
        }
        result
    }

    /// The machine after a restart is as it was, but for what was on its way to a decision.
    fn restart(&mut self, setup: &Setup, documents: &Documents) {
        let (record, under) = &*self.kept.0;
        let last = self.events.checked_sub(1).map(|number| AdherenceEvent {
            event_id: event_id(number),
            ..self.event(0, AdherenceDecision::Deny, Under::Last)
        });
        let recovery = Recovery {
            records: u64::from(self.records),
            head: record.as_ref(),
            ended: self.ended,
            events: u64::from(self.events),
            last: last.as_ref(),
        };
        let pair = documents.pair.clone();
        let mut machine = Lifecycle::recover(pair, setup.side, setup.always, recovery);
        #[cfg(feature = "mutants")]
        {
            machine = machine.with_mutant(setup.mutant);
        }
        under.iter().for_each(|event| machine.replay(event));
        let deciding = matches!(
            self.machine.state(),
            State::PolicyFetched | State::GovernanceReview | State::Stale
        );
        self.broken.add_unless(Rule::TypeOk, deciding || machine == self.machine);
        self.machine = machine;
    }

    fn keep_record(&mut self, number: u64, record: &ConsentRecord) {
        let before = self.records.checked_sub(1).map(record_id);
        let behind = number == u64::from(self.records) && record.prev_record_id == before;
        self.broken.add_unless(Rule::ChainMonotonicity, behind);
        self.did.anew = self.records > 0;
        self.records += 1;
        self.ended = None;
        self.kept = Aside(Arc::new((Some(record.clone()), Vec::new())));
        self.last = Some(Last {
            decision: record.decision,
            version: self.version,
            capability: self.capability,
            expired: self.expired,
            latest: [None; 2],
            permits: false,
            events: 0,
        });
    }

    fn keep_event(&mut self, number: u64, event: &AdherenceEvent) {
        let before = self.events.checked_sub(1).map(event_id);
        let behind = number == u64::from(self.events) && event.prev_event_id == before;
        self.broken.add_unless(Rule::ChainMonotonicity, behind);
        let newest = self.records.checked_sub(1).map(record_id);
        let anchored = newest.as_ref() == Some(&event.consent_record_id)
            && self.last.as_ref().is_some_and(|last| last.decision != ConsentDecision::Rejected);
        self.broken.add_unless(Rule::AdherenceAnchored, anchored);
        self.events += 1;
        let (record, mut under) = (*self.kept.0).clone();
        under.push(event.clone());
        self.kept = Aside(Arc::new((record, under)));
        let claim = CLAIMS.iter().position(|id| *id == event.claim_id.as_str());
        let permits = event.decision == AdherenceDecision::Permit;
        let disputed = claim.is_some_and(|claim| self.disputes(claim));
        self.broken.add_unless(Rule::NoDisputedPermit, !(disputed && permits));
        if let Some(last) = self.last.as_mut() {
            last.events += 1;
            last.permits = permits && !disputed;
            if let Some(latest) = claim.and_then(|claim| last.latest.get_mut(claim)) {
                *latest = Some(event.decision);
            }
        }
    }

    fn disputes(&self, claim: usize) -> bool {
        let conditional = |last: &Last| last.decision == ConsentDecision::Conditional;
        claim == DISPUTED && self.last.as_ref().is_some_and(conditional)
    }

    fn parsed(claim: &ClaimId, disputed: bool) -> ParsedClaim {
        ParsedClaim {
            claim_id: claim.clone(),
            understood: true,
            disputed,
            dispute_reason: disputed.then(|| Text::cut("it is against what we do")),
            extra: Extra::default(),
        }
    }

    fn record(
        &self,
        setup: &Setup,
        documents: &Documents,
        decision: ConsentDecision,
    ) -> ConsentRecord {
        let policy = documents.policy(self.version);
        let now = self.now(documents);
        let conditional = decision == ConsentDecision::Conditional;
        let disputed = |claim: &ClaimId| conditional && claim.as_str() == CLAIMS[DISPUTED];
        let claims = documents.claims.iter().map(|claim| Self::parsed(claim, disputed(claim)));
        let made = second(u64::from(self.records) * RECORD_SECONDS);
        ConsentRecord {
            record_id: record_id(self.records),
            prev_record_id: self.records.checked_sub(1).map(record_id),
            caller_agent_id: documents.pair.caller.clone(),
            callee_agent_id: documents.pair.callee.clone(),
            policy_version: policy.version.clone(),
            policy_hash: policy.document_hash.clone(),
            parsed_claims: known(proto::consent::List::new(claims.collect())),
            decision,
            accepted_at: Stamp::from(made),
            valid_until: match setup.until {
                Until::VersionBump => ValidUntil::OnVersionBump,
                Until::CapabilityChange => ValidUntil::OnCapabilityChange,
                Until::AnyChange => ValidUntil::OnAnyChange,
                Until::Time if self.expired => ValidUntil::At(second(2 * END_SECONDS).into()),
                Until::Time => ValidUntil::At(second(END_SECONDS).into()),
            },
            caller_signature: None,
            principal_id: None,
            caller_capability_hash: now.capability.cloned(),
            reconsent_trigger: None,
            chain_anchor: None,
            extra: Extra::default(),
        }
    }

    fn event(&self, claim: usize, decision: AdherenceDecision, under: Under) -> AdherenceEvent {
        let newest = self.records.saturating_sub(1);
        let id = CLAIMS.get(claim).copied().unwrap_or_default();
        AdherenceEvent {
            event_id: event_id(self.events),
            prev_event_id: self.events.checked_sub(1).map(event_id),
            consent_record_id: match under {
                Under::Last => record_id(newest),
                Under::Earlier => record_id(newest.saturating_sub(1)),
                Under::Nobody => record_id(u8::MAX),
            },
            action: Text::cut("skill"),
            clause_evaluated: Text::cut(id),
            claim_id: known(ClaimId::new(id)),
            decision,
            reasoning: Text::cut("held against the clause"),
            timestamp: second(u64::from(newest) * RECORD_SECONDS).into(),
            context: None,
            agent_signature: None,
            chain_anchor: None,
            extra: Extra::default(),
        }
    }

    /// S5: holds an action against a claim by the real evaluation.
    fn evaluate(
        &mut self,
        setup: &Setup,
        documents: &Documents,
        claim: usize,
        good: bool,
    ) -> Option<Finding> {
        self.last.as_ref()?;
        let policy = documents.policy(self.version);
        let disputed = self.disputes(claim);
        let id = documents.claims.get(claim)?;
        let purpose = if good { "good" } else { "bad" };
        let context = known(Context::new([("purpose".to_owned(), purpose.to_owned())].into()));
        let (action, asset) = (Text::cut("odrl:aggregate"), Text::cut("pii:session_data"));
        let at = self.now(documents).at;
        let request = Request { action: &action, asset: &asset, context: &context, at };
        let parsed = Self::parsed(id, disputed);
        let claim = policy.claim(id)?;
        #[cfg(feature = "mutants")]
        let found =
            proto::consent::evaluate_as(setup.mutant, policy, claim, Some(&parsed), &request);
        #[cfg(not(feature = "mutants"))]
        let found = {
            let _ = setup;
            proto::consent::evaluate(policy, claim, Some(&parsed), &request)
        };
        let permits = found.decision == AdherenceDecision::Permit;
        self.broken.add_unless(Rule::ConditionalGating, !(disputed && permits));
        Some(found)
    }

    /// S1, S4, S5, S7: whether a skill runs, and whether it may.
    fn invoke(&mut self, setup: &Setup, documents: &Documents, bits: u8) {
        let governing: Vec<usize> =
            (0..CLAIMS.len()).filter(|claim| bits >> claim & 1 == 1).collect();
        let claims: Vec<ClaimId> =
            governing.iter().filter_map(|claim| documents.claims.get(*claim).cloned()).collect();
        let ran = self.handle(documents, Input::Invoke(&claims)).is_ok();
        let counts = match setup.until {
            Until::VersionBump => Triggers { policy: true, capability: false },
            Until::CapabilityChange => Triggers { policy: false, capability: true },
            Until::AnyChange | Until::Time => Triggers::ALL,
        }
        .or(setup.always);
        let changed = self.last.as_ref().is_some_and(|last| last.capability != self.capability);
        self.did.refused_drift = !ran && changed;
        if !ran {
            return;
        }
        let Some(last) = &self.last else {
            self.broken.add_unless(Rule::NoSkillWithoutConsent, false);
            return;
        };
        let mut broken = self.broken;
        let accepts = last.decision != ConsentDecision::Rejected;
        broken.add_unless(Rule::NoSkillWithoutConsent, accepts);
        let permitted = governing
            .iter()
            .all(|claim| last.latest.get(*claim) == Some(&Some(AdherenceDecision::Permit)));
        let permitted = if governing.is_empty() { last.permits } else { permitted };
        broken.add_unless(Rule::SkillRequiresPermit, permitted);
        let disputed = governing.iter().any(|claim| self.disputes(*claim));
        broken.add_unless(Rule::ConditionalGating, !disputed);
        let drifted = counts.capability && last.capability != self.capability;
        broken.add_unless(Rule::NoSkillOnCapabilityDrift, !drifted);
        let bumped = counts.policy && last.version != self.version;
        let over = setup.until == Until::Time && last.expired != self.expired;
        broken.add_unless(Rule::NoSkillOnStalePolicy, !bumped && !over);
        self.did.ran = true;
        self.did.ran_conditional = last.decision == ConsentDecision::Conditional;
        self.broken = broken;
    }

    /// Holds a state against the rules about single states.
    fn check(&mut self, setup: &Setup) {
        let decided = self.last.as_ref().map(|last| last.decision);
        let state = match self.machine.state() {
            State::Idle => decided.is_none(),
            State::Accepted => decided == Some(ConsentDecision::Accepted),
            State::Conditional => decided == Some(ConsentDecision::Conditional),
            State::Rejected => decided == Some(ConsentDecision::Rejected),
            State::PolicyFetched | State::GovernanceReview | State::Stale => true,
        };
        let counted = self.machine.records() == u64::from(self.records)
            && self.machine.events() == u64::from(self.events);
        let head = self.machine.head() == self.records.checked_sub(1).map(record_id).as_ref();
        self.broken.add_unless(Rule::TypeOk, state && head);
        self.broken.add_unless(Rule::ChainMonotonicity, counted);
        self.broken.watch(setup.watch);
    }

    /// L1, L2: whether stale consent, here, ends in a new decision by doing what is to be done. L2 is about
    /// consent to a policy that has not changed since.
    pub(super) fn decides(&self, setup: &Setup, documents: &Documents, rule: Rule) -> bool {
        let same = self.last.as_ref().is_some_and(|last| last.version == self.version);
        if same != (rule == Rule::EventualCapabilityReConsent)
            || setup.watch.is_some_and(|watched| watched != rule)
        {
            return true;
        }
        let now = self.now(documents);
        let mut machine = self.machine.clone();
        let _ = machine.handle(&now, Input::Look);
        if machine.duty().is_none() {
            return true;
        }
        // Where a person has refused, to reject is what is left.
        let record = |decision| self.record(setup, documents, decision);
        let (accept, reject) =
            (record(ConsentDecision::Accepted), record(ConsentDecision::Rejected));
        for _ in 0..Duty::STEPS_MAX {
            let input = match machine.duty() {
                None => break,
                Some(Duty::Fetch) => Input::Fetch,
                Some(Duty::Review) => Input::Review,
                // The longest way.
                Some(Duty::Judge) => Input::Judge(Tier::HumanRequired),
                Some(Duty::Answer) => Input::Answer(true),
                Some(Duty::Consent) if machine.handle(&now, Input::Consent(&accept)).is_ok() => {
                    break;
                }
                Some(Duty::Consent) => Input::Consent(&reject),
            };
            if machine.handle(&now, input).is_err() {
                return false;
            }
        }
        machine.duty().is_none() && machine.records() > u64::from(self.records)
    }
}
