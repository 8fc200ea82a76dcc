//! What may happen when between one caller and one callee (Anumati §3.5): seven states, and the rules
//! that lead from one to another.
//!
//! The machine is a function of what has been appended to its two chains and of what is the case
//! [`Now`]. Both sides run it. What it asks to have appended must be durable before anything rests on
//! it; if that fails, the machine is ahead of its chain and of no more use.

mod gate;
mod refused;
mod state;

use super::adherence::{AdherenceDecision, AdherenceEvent};
use super::chain::RecordFault;
use super::limits::CHAIN_LEN_MAX;
#[cfg(feature = "mutants")]
use super::mutant::Mutant;
use super::policy::PolicyDocument;
use super::record::{ConsentDecision, ConsentRecord, Trigger, Triggers, ValidUntil};
use super::text::{ClaimId, ContentHash, EventId, PolicyVersion, PrincipalId, RecordId, Stamp};
use crate::time::Time;
use std::collections::BTreeMap;

pub use gate::Block;
pub use refused::Refused;
pub use state::{Duty, Pair, Side, State, Tier};

/// What is the case when an input is handled.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// The time.
    pub at: Time,
    /// The callee's policy. Its hash has been verified.
    pub policy: &'a PolicyDocument,
    /// What the caller is, if it is known.
    pub capability: Option<&'a ContentHash>,
    /// On whose behalf it acts, if it is known.
    pub principal: Option<&'a PrincipalId>,
}

/// Something to handle.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Nothing but to see what has changed.
    Look,
    /// The caller has fetched the policy.
    Fetch,
    /// What has changed is put before the governance agent.
    Review,
    /// The governance agent says who answers for it.
    Judge(Tier),
    /// The person who has to answer for it has, with yes or no.
    Answer(bool),
    /// The caller decides.
    Consent(&'a ConsentRecord),
    /// The caller has held an action against a claim.
    Adhere(&'a AdherenceEvent),
    /// A skill is about to run that these claims govern.
    Invoke(&'a [ClaimId]),
}

impl Input<'_> {
    const fn name(&self) -> &'static str {
        match self {
            Self::Look => "a look",
            Self::Fetch => "a fetch",
            Self::Review => "a review",
            Self::Judge(_) => "a judgement",
            Self::Answer(_) => "a person's answer",
            Self::Consent(_) => "a consent record",
            Self::Adhere(_) => "an adherence event",
            Self::Invoke(_) => "a skill",
        }
    }
}

/// What a handled input has done.
#[must_use = "what is not appended is lost"]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The state before.
    pub from: State,
    /// The state now.
    pub to: State,
    /// What is to be appended.
    pub append: Option<Append>,
}

/// Something to append to a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Append {
    /// To the consent chain.
    Record {
        /// Its number, from 0: how many are before it.
        number: u64,
        /// The record.
        record: ConsentRecord,
    },
    /// To the adherence trail.
    Event {
        /// Its number, from 0: how many are before it.
        number: u64,
        /// The event.
        event: AdherenceEvent,
    },
}

/// A policy as it was consented to, or fetched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Terms {
    version: PolicyVersion,
    hash: ContentHash,
    capability: Option<ContentHash>,
    principal: Option<PrincipalId>,
}

impl Terms {
    fn of(now: &Now<'_>) -> Self {
        Self {
            version: now.policy.version.clone(),
            hash: now.policy.document_hash.clone(),
            capability: now.capability.cloned(),
            principal: now.principal.cloned(),
        }
    }

    /// What has changed since, of what counts. Who does not say what it is has not changed.
    fn changed(&self, now: &Now<'_>, counts: Triggers) -> Option<Trigger> {
        let policy = self.version != now.policy.version || self.hash != now.policy.document_hash;
        let differs = now.capability.is_some() && self.capability.as_ref() != now.capability;
        let principal = now.principal.is_some() && self.principal.as_ref() != now.principal;
        [
            (policy && counts.policy, Trigger::PolicyBump),
            (differs && counts.capability, Trigger::CapabilityChange),
            (principal, Trigger::PrincipalChange),
        ]
        .into_iter()
        .find_map(|(changed, why)| changed.then_some(why))
    }
}

/// How far a review is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Review {
    Open,
    WaitsForPerson,
    Approved,
    /// A person said no: all that is left is to reject.
    Refused,
}

/// The last record of the chain, and what was said under it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Head {
    id: RecordId,
    terms: Terms,
    decision: ConsentDecision,
    accepted_at: Stamp,
    valid_until: ValidUntil,
    claims: BTreeMap<ClaimId, Standing>,
    /// Events under it.
    events: u64,
    /// When the last of them was.
    last_at: Stamp,
    /// Whether the last of them permits.
    permits: bool,
}

/// How a caller stands to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Standing {
    understood: bool,
    disputed: bool,
    latest: Option<AdherenceDecision>,
}

impl Head {
    fn of(record: &ConsentRecord) -> Self {
        let standing = |understood, disputed| Standing { understood, disputed, latest: None };
        let claims = record.parsed_claims.iter();
        Self {
            id: record.record_id.clone(),
            terms: Terms {
                version: record.policy_version.clone(),
                hash: record.policy_hash.clone(),
                capability: record.caller_capability_hash.clone(),
                principal: record.principal_id.clone(),
            },
            decision: record.decision,
            accepted_at: record.accepted_at.clone(),
            valid_until: record.valid_until.clone(),
            claims: claims
                .map(|one| (one.claim_id.clone(), standing(one.understood, one.disputed)))
                .collect(),
            events: 0,
            last_at: record.accepted_at.clone(),
            permits: false,
        }
    }
}

/// The machine of one pair.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lifecycle {
    pair: Pair,
    side: Side,
    always: Triggers,
    state: State,
    why: Option<Trigger>,
    fetched: Option<Terms>,
    review: Review,
    head: Option<Head>,
    records: u64,
    events: u64,
    last_event: Option<EventId>,
    #[cfg(feature = "mutants")]
    mutant: Option<Mutant>,
}

/// What is read of the chains after a restart.
#[derive(Clone, Copy, Debug)]
pub struct Recovery<'a> {
    /// Records in the chain.
    pub records: u64,
    /// The last of them.
    pub head: Option<&'a ConsentRecord>,
    /// Why it holds no more, if [`Lifecycle::look`] has said so.
    pub ended: Option<Trigger>,
    /// Events in the trail.
    pub events: u64,
    /// The last of them, under whichever record.
    pub last: Option<&'a AdherenceEvent>,
}

impl Lifecycle {
    /// The machine of a pair that has nothing to do with each other yet.
    ///
    /// `always` are changes that end a record whatever its `valid_until` says. [`Triggers::ALL`] is the
    /// strict choice, under which S7 holds for every record; a callee that can do with less leaves it to
    /// the records (Anumati §3.6).
    #[must_use]
    pub const fn new(pair: Pair, side: Side, always: Triggers) -> Self {
        Self {
            pair,
            side,
            always,
            state: State::Idle,
            why: None,
            fetched: None,
            review: Review::Open,
            head: None,
            records: 0,
            events: 0,
            last_event: None,
            #[cfg(feature = "mutants")]
            mutant: None,
        }
    }

    /// The machine after a restart. What was fetched or reviewed and not decided is to be done again.
    /// The events under the last record are told with [`replay`](Self::replay), the oldest first.
    #[must_use]
    pub fn recover(pair: Pair, side: Side, always: Triggers, from: Recovery<'_>) -> Self {
        let head = from.head.map(Head::of);
        let state = match head.as_ref().map(|head| head.decision) {
            None => State::Idle,
            Some(decision) => after(decision),
        };
        let why = from.ended.filter(|_| state.is_live());
        let state = if why.is_some() { State::Stale } else { state };
        let last_event = from.last.map(|event| event.event_id.clone());
        let (records, events) = (from.records, from.events);
        Self { state, why, head, records, events, last_event, ..Self::new(pair, side, always) }
    }

    /// Takes an event of the trail as it is: it was taken before.
    pub fn replay(&mut self, event: &AdherenceEvent) {
        if let Some(head) = self.head.as_mut().filter(|head| head.id == event.consent_record_id) {
            head.note(event);
        }
    }

    /// This machine with a mistake.
    #[cfg(feature = "mutants")]
    #[must_use]
    pub const fn with_mutant(mut self, mutant: Option<Mutant>) -> Self {
        self.mutant = mutant;
        self
    }

    /// Where the pair stands.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// Why consent holds no more, while it is stale and until it is given anew.
    #[must_use]
    pub const fn why(&self) -> Option<Trigger> {
        self.why
    }

    /// Records in the chain.
    #[must_use]
    pub const fn records(&self) -> u64 {
        self.records
    }

    /// Events in the trail.
    #[must_use]
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// The last record.
    #[must_use]
    pub fn head(&self) -> Option<&RecordId> {
        self.head.as_ref().map(|head| &head.id)
    }

    /// The last event.
    #[must_use]
    pub const fn last_event(&self) -> Option<&EventId> {
        self.last_event.as_ref()
    }

    /// When a record that holds ends of itself.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        self.head.as_ref().filter(|_| self.state.is_live())?.valid_until.time()
    }

    /// What has to be done next; none, if a decision stands or none was ever asked for.
    //= L1 L2
    #[must_use]
    pub fn duty(&self) -> Option<Duty> {
        match self.state {
            State::Idle | State::Accepted | State::Rejected | State::Conditional => None,
            State::Stale => Some(Duty::Fetch),
            State::PolicyFetched if self.unreviewed().is_some() => Some(Duty::Review),
            State::PolicyFetched => Some(Duty::Consent),
            State::GovernanceReview if self.review == Review::WaitsForPerson => Some(Duty::Answer),
            State::GovernanceReview => Some(Duty::Judge),
        }
    }

    /// Handles one input.
    ///
    /// # Errors
    /// [`Refused`] says who, what and by which rule.
    pub fn handle(&mut self, now: &Now<'_>, input: Input<'_>) -> Result<Step, Refused> {
        let from = self.state;
        let _ = self.look(now);
        let append = match input {
            Input::Look => None,
            Input::Fetch => self.fetch(now, &input)?,
            Input::Review => self.begin_review(&input)?,
            Input::Judge(tier) => self.judge(tier, &input)?,
            Input::Answer(yes) => self.answer(yes, &input)?,
            Input::Consent(record) => Some(self.consent(now, record, &input)?),
            Input::Adhere(event) => Some(self.adhere(now, event)?),
            Input::Invoke(claims) => self.invoke(claims)?,
        };
        Ok(Step { from, to: self.state, append })
    }

    /// S7: sees what has changed since the last consent, or since the policy was fetched. Each input does so
    /// first. What it gives is why consent has ended just now: that must be durable before a restart (in
    /// [`Recovery::ended`]), since a caller may change back, and what was once stale stays so.
    //= S7
    pub fn look(&mut self, now: &Now<'_>) -> Option<Trigger> {
        let live = self.state.is_live();
        let why = match self.state {
            State::Accepted | State::Conditional => self.ended(now),
            // What is decided now would be about what is no more.
            State::PolicyFetched | State::GovernanceReview => {
                self.fetched.as_ref().and_then(|terms| terms.changed(now, Triggers::ALL))
            }
            State::Idle | State::Rejected | State::Stale => None,
        }?;
        self.state = State::Stale;
        self.why = Some(why);
        self.fetched = None;
        self.review = Review::Open;
        live.then_some(why)
    }

    fn ended(&self, now: &Now<'_>) -> Option<Trigger> {
        let head = self.head.as_ref()?;
        let counts = head.valid_until.triggers().or(self.always);
        #[cfg(feature = "mutants")]
        let counts = match self.mutant {
            Some(Mutant::OverlooksBump) => Triggers { policy: false, ..counts },
            Some(Mutant::OverlooksDrift) => Triggers { capability: false, ..counts },
            _ => counts,
        };
        let over = head.valid_until.time().is_some_and(|end| now.at >= end);
        head.terms.changed(now, counts).or_else(|| over.then_some(Trigger::Expiry))
    }

    /// L1, L2: whatever made consent stale, the way to a new one begins here and is open.
    //= L1 L2
    fn fetch(&mut self, now: &Now<'_>, input: &Input<'_>) -> Result<Option<Append>, Refused> {
        let open = match self.state {
            State::Idle | State::Stale | State::Rejected => true,
            State::Accepted | State::Conditional => self.renewable(now),
            State::PolicyFetched | State::GovernanceReview => false,
        };
        #[cfg(feature = "mutants")]
        let open = open && !self.is_stuck(now);
        if !open {
            return Err(self.not_now(input));
        }
        self.fetched = Some(Terms::of(now));
        self.review = Review::Open;
        self.state = State::PolicyFetched;
        Ok(None)
    }

    #[cfg(feature = "mutants")]
    fn is_stuck(&self, now: &Now<'_>) -> bool {
        let stale = self.state == State::Stale;
        let same = self.head.as_ref().is_some_and(|head| head.terms.version == now.policy.version);
        match self.mutant {
            Some(Mutant::StuckOnBump) => stale && !same,
            Some(Mutant::StuckOnDrift) => stale && same,
            _ => false,
        }
    }

    /// Whether there is something to consent to anew, though the last consent holds.
    fn renewable(&self, now: &Now<'_>) -> bool {
        self.head.as_ref().is_some_and(|head| {
            head.valid_until.time().is_some() || head.terms.changed(now, Triggers::ALL).is_some()
        })
    }

    fn begin_review(&mut self, input: &Input<'_>) -> Result<Option<Append>, Refused> {
        if self.state != State::PolicyFetched || self.unreviewed().is_none() {
            return Err(self.not_now(input));
        }
        self.state = State::GovernanceReview;
        Ok(None)
    }

    fn judge(&mut self, tier: Tier, input: &Input<'_>) -> Result<Option<Append>, Refused> {
        if self.state != State::GovernanceReview || self.review != Review::Open {
            return Err(self.not_now(input));
        }
        if tier == Tier::HumanRequired {
            self.review = Review::WaitsForPerson;
        } else {
            self.review = Review::Approved;
            self.state = State::PolicyFetched;
        }
        Ok(None)
    }

    fn answer(&mut self, yes: bool, input: &Input<'_>) -> Result<Option<Append>, Refused> {
        if self.state != State::GovernanceReview || self.review != Review::WaitsForPerson {
            return Err(self.not_now(input));
        }
        self.review = if yes { Review::Approved } else { Review::Refused };
        self.state = State::PolicyFetched;
        Ok(None)
    }

    /// What is missing before the caller may decide anew; its first decision needs no review, since
    /// there is nothing it differs from.
    const fn unreviewed(&self) -> Option<&'static str> {
        match (self.side, &self.head, self.review) {
            (Side::Caller, Some(_), Review::Open) => Some("there was none"),
            (Side::Caller, Some(_), Review::WaitsForPerson) => Some("a person has not answered"),
            _ => None,
        }
    }

    /// S2: a record goes behind all others, and names the one it follows.
    //= S2
    fn consent(
        &mut self,
        now: &Now<'_>,
        record: &ConsentRecord,
        input: &Input<'_>,
    ) -> Result<Append, Refused> {
        let rejects = record.decision == ConsentDecision::Rejected;
        let id = || record.record_id.clone();
        let fault = |fault| Refused::Record { record: id(), fault };
        let open = match (self.side, self.state) {
            (_, State::PolicyFetched) => true,
            // Consent can be withdrawn at any time.
            (_, State::Accepted | State::Conditional) if rejects => true,
            (Side::Callee, State::Idle | State::Stale | State::Rejected) => true,
            (Side::Callee, State::Accepted | State::Conditional) => self.renewable(now),
            _ => false,
        };
        if !open {
            return Err(self.not_now(input));
        }
        let pair =
            Pair { caller: record.caller_agent_id.clone(), callee: record.callee_agent_id.clone() };
        if pair != self.pair {
            let (given, expected) = (pair.to_string(), self.pair.to_string());
            return Err(fault(RecordFault::Pair { given, expected }));
        }
        record.covers(now.policy, &now.policy.document_hash).map_err(fault)?;
        let before = self.head.as_ref().map(|head| (&head.id, &head.accepted_at));
        record.linked(before).map_err(fault)?;
        if self.records >= CHAIN_LEN_MAX {
            return Err(fault(RecordFault::Full));
        }
        if let Some(now) =
            now.capability.filter(|now| record.caller_capability_hash.as_ref() != Some(*now))
        {
            let (given, now) = (record.caller_capability_hash.clone(), now.clone());
            return Err(Refused::Capability { record: id(), given, now });
        }
        if let Some(now) = now.principal.filter(|now| record.principal_id.as_ref() != Some(*now)) {
            let (given, now) = (record.principal_id.clone(), now.clone());
            return Err(Refused::Principal { record: id(), given, now });
        }
        if let ValidUntil::At(until) = &record.valid_until
            && until.time() <= now.at
        {
            return Err(Refused::Expired { record: id(), until: until.clone() });
        }
        if !rejects && let Some(state) = self.unreviewed() {
            return Err(Refused::Unreviewed { record: id(), state });
        }
        if !rejects && self.review == Review::Refused {
            let state = "a person has refused";
            return Err(Refused::Unreviewed { record: id(), state });
        }
        let number = self.records;
        #[cfg(feature = "mutants")]
        let number = match self.mutant {
            Some(Mutant::Overwrites) => number.saturating_sub(1),
            _ => number,
        };
        self.records = number + 1;
        self.head = Some(Head::of(record));
        self.state = after(record.decision);
        #[cfg(feature = "mutants")]
        if self.mutant == Some(Mutant::TakesRejection) {
            self.state = State::Accepted;
        }
        self.why = None;
        self.fetched = None;
        self.review = Review::Open;
        Ok(Append::Record { number, record: record.clone() })
    }

    fn not_now(&self, input: &Input<'_>) -> Refused {
        Refused::State { input: input.name(), pair: self.pair.clone(), state: self.state }
    }
}

/// The state that a decision leads to.
const fn after(decision: ConsentDecision) -> State {
    match decision {
        ConsentDecision::Accepted => State::Accepted,
        ConsentDecision::Rejected => State::Rejected,
        ConsentDecision::Conditional => State::Conditional,
    }
}
