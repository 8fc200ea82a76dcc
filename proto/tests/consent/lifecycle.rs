//! The machine of one pair. That its rules hold in every state is for the exhaustive check; here each is
//! seen once, with what the machine says of it.

use crate::setup::*;
use abhyasa_proto::consent::*;
use serde_json::json;

/// A machine, its chains, and what is the case.
struct World {
    machine: Lifecycle,
    policy: PolicyDocument,
    capability: Option<ContentHash>,
    principal: Option<PrincipalId>,
    chain: Vec<ConsentRecord>,
    trail: Vec<AdherenceEvent>,
    second: u64,
}

fn pair() -> Pair {
    Pair { caller: agent(CALLER), callee: agent(CALLEE) }
}

impl World {
    fn new(side: Side, always: Triggers) -> Self {
        Self {
            machine: Lifecycle::new(pair(), side, always),
            policy: policy("1.0.0", None),
            capability: None,
            principal: None,
            chain: Vec::new(),
            trail: Vec::new(),
            second: 0,
        }
    }

    fn caller() -> Self {
        Self::new(Side::Caller, Triggers::ALL)
    }

    fn callee() -> Self {
        Self::new(Side::Callee, Triggers::ALL)
    }

    fn handle(&mut self, input: Input<'_>) -> Result<State, Refused> {
        let before = self.machine.clone();
        let now = Now {
            at: at(self.second),
            policy: &self.policy,
            capability: self.capability.as_ref(),
            principal: self.principal.as_ref(),
        };
        // What is stale is seen before the input is looked at.
        let mut looked = self.machine.clone();
        let _ = looked.handle(&now, Input::Look).unwrap();
        let step = match self.machine.handle(&now, input) {
            Ok(step) => step,
            Err(refused) => {
                assert_eq!(self.machine, looked, "a refusal changes nothing");
                return Err(refused);
            }
        };
        assert_eq!((step.from, step.to), (before.state(), self.machine.state()));
        match step.append {
            None => {}
            Some(Append::Record { number, record }) => {
                assert_eq!(number, self.chain.len() as u64);
                self.chain.push(record);
            }
            Some(Append::Event { number, event }) => {
                assert_eq!(number, self.trail.len() as u64);
                self.trail.push(event);
            }
        }
        Ok(step.to)
    }

    fn record(&mut self, decision: ConsentDecision, disputed: &[&str]) -> ConsentRecord {
        self.second += 1;
        let (id, prev) = (
            format!("r{}", self.chain.len()),
            self.chain.last().map(|last| last.record_id.to_string()),
        );
        let mut record =
            record(&id, prev.as_deref(), &self.policy, decision, disputed, self.second);
        record.caller_capability_hash = self.capability.clone();
        record.principal_id = self.principal.clone();
        record
    }

    fn consent(&mut self, decision: ConsentDecision, disputed: &[&str]) -> Result<State, Refused> {
        let record = self.record(decision, disputed);
        self.handle(Input::Consent(&record))
    }

    fn event(&mut self, claim: &str, decision: AdherenceDecision) -> AdherenceEvent {
        let (id, prev) = (
            format!("e{}", self.trail.len()),
            self.trail.last().map(|last| last.event_id.to_string()),
        );
        let under = self.chain.last().map_or("r0", |last| last.record_id.as_str()).to_owned();
        event(&id, prev.as_deref(), &under, claim, decision, self.second)
    }

    fn adhere(&mut self, claim: &str, decision: AdherenceDecision) -> Result<State, Refused> {
        let event = self.event(claim, decision);
        self.handle(Input::Adhere(&event))
    }

    fn invoke(&mut self, claims: &[&str]) -> Result<State, Refused> {
        let claims: Vec<ClaimId> = claims.iter().map(|id| claim(id)).collect();
        self.handle(Input::Invoke(&claims))
    }

    /// Does what is to be done next, and says what that was.
    fn duty(&mut self) -> Option<Duty> {
        let duty = self.machine.duty()?;
        match duty {
            Duty::Fetch => self.handle(Input::Fetch),
            Duty::Review => self.handle(Input::Review),
            Duty::Judge => self.handle(Input::Judge(Tier::HumanRequired)),
            Duty::Answer => self.handle(Input::Answer(true)),
            Duty::Consent => self.consent(ConsentDecision::Accepted, &[]),
        }
        .unwrap();
        Some(duty)
    }

    fn bump(&mut self) {
        let next = format!("1.{}.0", self.chain.len() + 7);
        let last = self.policy.version.to_string();
        self.policy = policy(&next, Some(&last));
    }

    fn accepted() -> Self {
        let mut world = Self::callee();
        world.consent(ConsentDecision::Accepted, &[]).unwrap();
        world.adhere("use", AdherenceDecision::Permit).unwrap();
        world.invoke(&["use"]).unwrap();
        world
    }
}

fn capability(text: &str) -> Option<ContentHash> {
    Some(ContentHash::of(text.as_bytes()))
}

#[test]
fn s1_no_skill_runs_without_consent_that_holds() {
    let mut world = World::caller();
    let refused = |state, why| Err(Refused::NoConsent { pair: pair(), state, why });
    assert_eq!(world.invoke(&[]), refused(State::Idle, None));
    world.handle(Input::Fetch).unwrap();
    assert_eq!(world.invoke(&["use"]), refused(State::PolicyFetched, None));
    assert_eq!(world.adhere("use", AdherenceDecision::Permit), refused(State::PolicyFetched, None));
    world.consent(ConsentDecision::Rejected, &[]).unwrap();
    assert_eq!(world.adhere("use", AdherenceDecision::Permit), refused(State::Rejected, None));
    assert_eq!(world.invoke(&["use"]), refused(State::Rejected, None));
    let mut world = World::accepted();
    world.bump();
    let error = world.invoke(&["use"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no consent of did:web:caller.example to the policy of did:web:callee.example holds: it is stale, \
         since the policy has a new version"
    );
}

#[test]
fn s1_consent_can_be_withdrawn_at_any_time() {
    for side in [Side::Caller, Side::Callee] {
        let mut world = World::new(side, Triggers::ALL);
        world.handle(Input::Fetch).unwrap();
        world.consent(ConsentDecision::Accepted, &[]).unwrap();
        world.adhere("use", AdherenceDecision::Permit).unwrap();
        world.invoke(&["use"]).unwrap();
        assert_eq!(world.consent(ConsentDecision::Rejected, &[]), Ok(State::Rejected));
        assert!(world.invoke(&["use"]).is_err());
        let again = world.record(ConsentDecision::Accepted, &[]);
        if side == Side::Caller {
            let error = world.handle(Input::Consent(&again)).unwrap_err();
            assert!(matches!(error, Refused::State { state: State::Rejected, .. }), "{error}");
        } else {
            assert_eq!(world.handle(Input::Consent(&again)), Ok(State::Accepted));
            assert!(world.invoke(&["use"]).is_err(), "what was permitted before does not count");
        }
    }
}

#[test]
fn s2_records_and_events_only_go_behind_the_last() {
    let mut world = World::accepted();
    world.bump();
    let good = world.record(ConsentDecision::Accepted, &[]);
    for prev in [None, Some("r9")] {
        let prev_record_id = prev.map(|id| RecordId::new(id).unwrap());
        let error = world
            .handle(Input::Consent(&ConsentRecord { prev_record_id, ..good.clone() }))
            .unwrap_err();
        assert!(
            matches!(error, Refused::Record { fault: RecordFault::Link { .. }, .. }),
            "{error}"
        );
    }
    world.handle(Input::Consent(&good)).unwrap();
    let event = world.event("use", AdherenceDecision::Permit);
    let bad = AdherenceEvent { prev_event_id: Some(EventId::new("e9").unwrap()), ..event.clone() };
    let error = world.handle(Input::Adhere(&bad)).unwrap_err();
    assert!(matches!(error, Refused::Event { fault: EventFault::Link { .. }, .. }), "{error}");
    world.handle(Input::Adhere(&event)).unwrap();
    let error = world.handle(Input::Adhere(&event)).unwrap_err();
    assert!(matches!(error, Refused::Event { .. }), "not twice: {error}");
    assert_eq!((world.machine.records(), world.machine.events()), (2, 2));
    let policies = [policy("1.0.0", None), world.policy.clone()];
    assert_eq!(
        validate_chain(&world.chain, |version| policies.iter().find(|it| it.version == *version)),
        Ok(())
    );
    assert_eq!(validate_trail(&world.trail, &world.chain), Ok(()));
}

#[test]
fn s3_an_event_rests_on_the_record_that_holds() {
    let mut world = World::accepted();
    world.bump();
    world.consent(ConsentDecision::Accepted, &[]).unwrap();
    let event = world.event("use", AdherenceDecision::Permit);
    for record in ["r0", "r9"] {
        let consent_record_id = RecordId::new(record).unwrap();
        let error = world
            .handle(Input::Adhere(&AdherenceEvent { consent_record_id, ..event.clone() }))
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("adherence event e1: S3: it rests on consent record {record}")),
            "{error}"
        );
    }
    let other = AdherenceEvent { claim_id: claim("another"), ..event.clone() };
    let error = world.handle(Input::Adhere(&other)).unwrap_err();
    assert!(
        matches!(error, Refused::Event { fault: EventFault::UnknownClaim { .. }, .. }),
        "{error}"
    );
    let other = AdherenceEvent { clause_evaluated: Text::new("§9").unwrap(), ..event };
    let error = world.handle(Input::Adhere(&other)).unwrap_err();
    assert!(matches!(error, Refused::Event { fault: EventFault::Clause { .. }, .. }), "{error}");
}

#[test]
fn s4_a_skill_runs_by_the_latest_event_of_each_of_its_claims() {
    let mut world = World::callee();
    world.consent(ConsentDecision::Accepted, &[]).unwrap();
    let blocked = |claims: &[(&str, Block)]| {
        let claims: Vec<_> = claims.iter().map(|(id, why)| (claim(id), *why)).collect();
        Err(Refused::Blocked { count: claims.len(), claims })
    };
    assert_eq!(
        world.invoke(&["use", "profile"]),
        blocked(&[("use", Block::NotEvaluated), ("profile", Block::NotEvaluated)])
    );
    assert_eq!(world.invoke(&[]), blocked(&[]), "not even one that no claim governs");
    world.adhere("use", AdherenceDecision::Permit).unwrap();
    assert_eq!(world.invoke(&["use"]), Ok(State::Accepted));
    assert_eq!(world.invoke(&[]), Ok(State::Accepted));
    assert_eq!(world.invoke(&["use", "profile"]), blocked(&[("profile", Block::NotEvaluated)]));
    world.adhere("profile", AdherenceDecision::Escalate).unwrap();
    assert_eq!(world.invoke(&["use", "profile"]), blocked(&[("profile", Block::Escalated)]));
    assert_eq!(world.invoke(&[]), blocked(&[]));
    world.adhere("profile", AdherenceDecision::Permit).unwrap();
    assert_eq!(world.invoke(&["use", "profile"]), Ok(State::Accepted));
    world.adhere("use", AdherenceDecision::Deny).unwrap();
    assert_eq!(world.invoke(&["use", "profile"]), blocked(&[("use", Block::Denied)]));
    let error = world.invoke(&["use", "another"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "claims in the way: use (denied by its latest adherence event), another (not answered by the consent record)"
    );
}

#[test]
fn s5_a_skill_with_a_disputed_claim_is_blocked_and_others_run() {
    let mut world = World::callee();
    assert_eq!(world.consent(ConsentDecision::Conditional, &["profile"]), Ok(State::Conditional));
    world.adhere("profile", AdherenceDecision::Deny).unwrap();
    world.adhere("profile", AdherenceDecision::Escalate).unwrap();
    world.adhere("use", AdherenceDecision::Permit).unwrap();
    assert_eq!(world.invoke(&["use"]), Ok(State::Conditional));
    let error = world.invoke(&["use", "profile"]).unwrap_err();
    assert_eq!(
        error,
        Refused::Blocked { claims: vec![(claim("profile"), Block::Disputed)], count: 1 }
    );
}

#[test]
fn s6_an_event_that_permits_by_a_disputed_claim_is_refused() {
    let mut world = World::callee();
    world.consent(ConsentDecision::Conditional, &["profile"]).unwrap();
    let error = world.adhere("profile", AdherenceDecision::Permit).unwrap_err();
    assert_eq!(
        error.to_string(),
        "adherence event e0: S5, S6: it permits by claim profile, which the caller disputes"
    );
    assert_eq!(world.machine.events(), 0);
}

#[test]
fn a_claim_that_was_not_understood_blocks_like_a_disputed_one() {
    let mut world = World::callee();
    let mut record = world.record(ConsentDecision::Accepted, &[]);
    let mut claims = record.parsed_claims.to_vec();
    claims[1].understood = false;
    record.parsed_claims = List::new(claims).unwrap();
    world.handle(Input::Consent(&record)).unwrap();
    let error = world.adhere("profile", AdherenceDecision::Permit).unwrap_err();
    assert!(
        matches!(error, Refused::Event { fault: EventFault::NotUnderstoodPermit { .. }, .. }),
        "{error}"
    );
    let error = world.invoke(&["profile"]).unwrap_err();
    assert_eq!(
        error,
        Refused::Blocked { claims: vec![(claim("profile"), Block::NotUnderstood)], count: 1 }
    );
}

#[test]
fn s7_no_skill_runs_once_the_caller_has_changed() {
    let mut world = World::callee();
    world.capability = capability("m-1");
    world.consent(ConsentDecision::Accepted, &[]).unwrap();
    world.adhere("use", AdherenceDecision::Permit).unwrap();
    world.invoke(&["use"]).unwrap();
    world.capability = capability("m-2");
    let stale = Refused::NoConsent {
        pair: pair(),
        state: State::Stale,
        why: Some(Trigger::CapabilityChange),
    };
    assert_eq!(world.invoke(&["use"]), Err(stale.clone()));
    world.capability = capability("m-1");
    assert_eq!(world.invoke(&["use"]), Err(stale), "nor when it has changed back");
    let mut record = world.record(ConsentDecision::Accepted, &[]);
    record.caller_capability_hash = capability("m-2");
    let error = world.handle(Input::Consent(&record)).unwrap_err();
    assert!(matches!(error, Refused::Capability { .. }), "it is made by who it says: {error}");
    world.consent(ConsentDecision::Accepted, &[]).unwrap();
    world.adhere("use", AdherenceDecision::Permit).unwrap();
    assert_eq!(world.invoke(&["use"]), Ok(State::Accepted));
}

/// Which changes count is the record's to say, and the callee's to overrule.
#[test]
fn s7_what_makes_consent_stale() {
    let all = [Trigger::PolicyBump, Trigger::CapabilityChange, Trigger::PrincipalChange];
    let until = |text: &str| ValidUntil::try_from(text.to_owned()).unwrap();
    let stamp = at(1_000).to_rfc3339();
    for (valid_until, always, counts) in [
        ("on_any_change", Triggers::NONE, [true, true, true]),
        ("on_version_bump", Triggers::NONE, [true, false, true]),
        ("on_capability_change", Triggers::NONE, [false, true, true]),
        (stamp.as_str(), Triggers::NONE, [true, true, true]),
        ("on_version_bump", Triggers::ALL, [true, true, true]),
        ("on_capability_change", Triggers::ALL, [true, true, true]),
        ("on_version_bump", Triggers { policy: false, capability: true }, [true, true, true]),
    ] {
        for (trigger, counts) in all.into_iter().zip(counts) {
            let mut world = World::new(Side::Callee, always);
            world.capability = capability("m-1");
            world.principal = Some(PrincipalId::new("user:a").unwrap());
            let mut record = world.record(ConsentDecision::Accepted, &[]);
            record.valid_until = until(valid_until);
            world.handle(Input::Consent(&record)).unwrap();
            world.adhere("use", AdherenceDecision::Permit).unwrap();
            match trigger {
                Trigger::PolicyBump => world.bump(),
                Trigger::CapabilityChange => world.capability = capability("m-2"),
                _ => world.principal = Some(PrincipalId::new("user:b").unwrap()),
            }
            let found = world.invoke(&["use"]);
            assert_eq!(found.is_err(), counts, "{valid_until} {always:?} {trigger:?}");
            assert_eq!(world.machine.why(), counts.then_some(trigger), "{valid_until} {always:?}");
            if !counts {
                // What does not end it may still be consented to.
                assert_eq!(world.consent(ConsentDecision::Accepted, &[]), Ok(State::Accepted));
            }
        }
    }
}

#[test]
fn consent_ends_with_its_time() {
    let mut world = World::callee();
    let mut record = world.record(ConsentDecision::Accepted, &[]);
    record.valid_until = ValidUntil::At(at(100).into());
    world.handle(Input::Consent(&record)).unwrap();
    assert_eq!(world.machine.next_timeout(), Some(at(100)));
    world.second = 99;
    assert_eq!(world.handle(Input::Look), Ok(State::Accepted));
    world.second = 100;
    assert_eq!(world.handle(Input::Look), Ok(State::Stale));
    assert_eq!((world.machine.why(), world.machine.next_timeout()), (Some(Trigger::Expiry), None));
    let mut late = world.record(ConsentDecision::Accepted, &[]);
    late.valid_until = ValidUntil::At(at(100).into());
    let error = world.handle(Input::Consent(&late)).unwrap_err();
    assert!(matches!(error, Refused::Expired { .. }), "{error}");
}

#[test]
fn l1_a_new_version_leads_to_a_new_decision() {
    let mut world = World::caller();
    world.handle(Input::Fetch).unwrap();
    world.consent(ConsentDecision::Accepted, &[]).unwrap();
    assert_eq!(world.machine.duty(), None);
    world.bump();
    world.handle(Input::Look).unwrap();
    let duties: Vec<Duty> = std::iter::from_fn(|| world.duty()).collect();
    assert_eq!(duties, [Duty::Fetch, Duty::Review, Duty::Judge, Duty::Answer, Duty::Consent]);
    assert_eq!(duties.len(), Duty::STEPS_MAX);
    assert_eq!((world.machine.state(), world.chain.len()), (State::Accepted, 2));
    assert_eq!(world.chain[1].prev_record_id.as_ref(), Some(&world.chain[0].record_id));
}

/// A version that comes in the middle of a review begins it anew: nobody has answered for that one.
#[test]
fn l1_a_review_is_about_what_is_published() {
    let mut world = World::caller();
    world.handle(Input::Fetch).unwrap();
    world.consent(ConsentDecision::Accepted, &[]).unwrap();
    world.bump();
    for steps in 1..=4 {
        world.handle(Input::Look).unwrap();
        for _ in 0..steps {
            world.duty().unwrap();
        }
        let last = world.policy.version.to_string();
        world.policy = policy(&format!("2.{steps}.0"), Some(&last));
        let record = world.record(ConsentDecision::Accepted, &[]);
        let error = world.handle(Input::Consent(&record)).unwrap_err();
        assert!(
            matches!(error, Refused::State { state: State::Stale, .. }),
            "after {steps}: {error}"
        );
        assert_eq!(world.machine.duty(), Some(Duty::Fetch));
    }
    let duties: Vec<Duty> = std::iter::from_fn(|| world.duty()).collect();
    assert_eq!(duties.len(), Duty::STEPS_MAX);
    assert_eq!(world.machine.state(), State::Accepted);
}

#[test]
fn l2_a_change_of_the_caller_leads_to_a_new_decision_about_the_same_policy() {
    let mut world = World::caller();
    world.capability = capability("m-1");
    world.handle(Input::Fetch).unwrap();
    world.consent(ConsentDecision::Conditional, &["profile"]).unwrap();
    world.capability = capability("m-2");
    world.handle(Input::Look).unwrap();
    while world.duty().is_some() {}
    assert_eq!(world.machine.state(), State::Accepted);
    assert_eq!(world.chain[1].policy_hash, world.chain[0].policy_hash);
    assert_eq!(world.chain[1].caller_capability_hash, capability("m-2"));
}

#[test]
fn a_caller_consents_anew_only_after_a_review() {
    let mut world = World::caller();
    world.handle(Input::Fetch).unwrap();
    assert!(world.handle(Input::Review).is_err(), "there is nothing to compare the first with");
    world.consent(ConsentDecision::Accepted, &[]).unwrap();
    world.bump();
    world.handle(Input::Fetch).unwrap();
    let record = world.record(ConsentDecision::Accepted, &[]);
    let error = world.handle(Input::Consent(&record)).unwrap_err();
    assert_eq!(error.to_string(), "consent record r1 needs a review before it, and there was none");
    world.handle(Input::Review).unwrap();
    assert!(world.handle(Input::Answer(true)).is_err(), "nobody was asked");
    world.handle(Input::Judge(Tier::HumanRequired)).unwrap();
    assert!(world.handle(Input::Judge(Tier::AutoApproved)).is_err(), "it is with a person now");
    assert!(world.handle(Input::Consent(&record)).is_err());
    world.handle(Input::Answer(false)).unwrap();
    let error = world.handle(Input::Consent(&record)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "consent record r1 needs a review before it, and a person has refused"
    );
    assert_eq!(world.consent(ConsentDecision::Rejected, &[]), Ok(State::Rejected));
    for tier in [Tier::AutoApproved, Tier::GovernanceReviewed] {
        world.handle(Input::Fetch).unwrap();
        world.handle(Input::Review).unwrap();
        assert_eq!(world.handle(Input::Judge(tier)), Ok(State::PolicyFetched));
        assert_eq!(world.consent(ConsentDecision::Accepted, &[]), Ok(State::Accepted));
        world.bump();
    }
}

#[test]
fn a_record_is_about_this_pair_this_policy_and_this_principal() {
    let mut world = World::callee();
    world.principal = Some(PrincipalId::new("user:a").unwrap());
    let good = world.record(ConsentDecision::Accepted, &[]);
    let mut refused = |record: ConsentRecord| world.handle(Input::Consent(&record)).unwrap_err();
    let error = refused(ConsentRecord {
        caller_agent_id: agent("did:web:another.example"),
        ..good.clone()
    });
    assert!(matches!(error, Refused::Record { fault: RecordFault::Pair { .. }, .. }), "{error}");
    let error = refused(ConsentRecord {
        policy_version: PolicyVersion::new("0.9.0").unwrap(),
        ..good.clone()
    });
    assert!(matches!(error, Refused::Record { fault: RecordFault::Version { .. }, .. }), "{error}");
    let error = refused(ConsentRecord { policy_hash: ContentHash::of(b"another"), ..good.clone() });
    assert!(matches!(error, Refused::Record { fault: RecordFault::Hash { .. }, .. }), "{error}");
    let error = refused(ConsentRecord { principal_id: None, ..good.clone() });
    assert!(matches!(error, Refused::Principal { .. }), "{error}");
    let claims = List::new(good.parsed_claims[..1].to_vec()).unwrap();
    let error = refused(ConsentRecord { parsed_claims: claims, ..good.clone() });
    assert_eq!(
        error.to_string(),
        "consent record r0: it does not answer every claim: missing profile"
    );
    assert_eq!(world.handle(Input::Consent(&good)), Ok(State::Accepted));
}

#[test]
fn after_a_restart_the_machine_is_as_its_chains_have_it() {
    let recovered = |world: &World| {
        let recovery = Recovery {
            records: world.chain.len() as u64,
            head: world.chain.last(),
            ended: None,
            events: world.trail.len() as u64,
            last: world.trail.last(),
        };
        let mut machine = Lifecycle::recover(pair(), Side::Callee, Triggers::ALL, recovery);
        world.trail.iter().for_each(|event| machine.replay(event));
        machine
    };
    let mut world = World::callee();
    assert_eq!(recovered(&world), world.machine);
    world.consent(ConsentDecision::Conditional, &["profile"]).unwrap();
    assert_eq!(recovered(&world), world.machine);
    world.adhere("use", AdherenceDecision::Permit).unwrap();
    world.adhere("profile", AdherenceDecision::Deny).unwrap();
    assert_eq!(recovered(&world), world.machine);
    world.bump();
    world.consent(ConsentDecision::Accepted, &[]).unwrap();
    world.adhere("use", AdherenceDecision::Permit).unwrap();
    assert_eq!(recovered(&world), world.machine);
    world.consent(ConsentDecision::Rejected, &[]).unwrap();
    assert_eq!(recovered(&world), world.machine);
}

/// A caller that changes back, over a restart too, is not the one that consented.
#[test]
fn s7_what_was_stale_stays_so_over_a_restart() {
    let mut world = World::callee();
    world.capability = capability("m-1");
    world.consent(ConsentDecision::Accepted, &[]).unwrap();
    world.adhere("use", AdherenceDecision::Permit).unwrap();
    world.capability = capability("m-2");
    let now = Now {
        at: at(5),
        policy: &world.policy,
        capability: world.capability.as_ref(),
        principal: None,
    };
    let ended = world.machine.look(&now);
    assert_eq!(ended, Some(Trigger::CapabilityChange));
    assert_eq!(world.machine.look(&now), None, "it is told once");
    let recovery = Recovery {
        records: 1,
        head: world.chain.last(),
        ended,
        events: 1,
        last: world.trail.last(),
    };
    let mut machine = Lifecycle::recover(pair(), Side::Callee, Triggers::ALL, recovery);
    world.trail.iter().for_each(|event| machine.replay(event));
    assert_eq!(machine, world.machine);
    world.machine = machine;
    world.capability = capability("m-1");
    assert!(world.invoke(&["use"]).is_err());
    assert_eq!(world.consent(ConsentDecision::Accepted, &[]), Ok(State::Accepted));
}

#[test]
fn states_have_the_paper_s_names() {
    let names: Vec<_> = State::ALL.iter().map(|state| json!(state)).collect();
    let wanted = [
        "idle",
        "policy_fetched",
        "governance_review",
        "accepted",
        "rejected",
        "conditional",
        "stale",
    ];
    assert_eq!(names, wanted);
}
