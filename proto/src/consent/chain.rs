//! Whether records make a chain, and events a trail, and each is what it may be. Signatures and
//! anchors are for those to check who have the keys, or the ledger.

use super::adherence::{AdherenceDecision, AdherenceEvent};
use super::limits::{CHAIN_LEN_MAX, TRAIL_LEN_MAX};
use super::policy::PolicyDocument;
use super::record::{ConsentDecision, ConsentRecord, ParsedClaim};
use super::text::{ClaimId, ClaimNames, ContentHash, EventId, PolicyVersion, RecordId, Stamp};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;

/// What is wrong with a consent record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordFault {
    /// It speaks of another version.
    #[error("it is about policy version {given}, and the document has {version}")]
    Version {
        /// The version it names.
        given: PolicyVersion,
        /// That of the document.
        version: PolicyVersion,
    },
    /// It speaks of another document.
    #[error("its policy_hash is {given}, and the document of version {version} has {found}")]
    Hash {
        /// The version.
        version: PolicyVersion,
        /// What it says.
        given: ContentHash,
        /// What was computed.
        found: ContentHash,
    },
    /// Claims without an answer.
    #[error("it does not answer every claim: missing {claims}")]
    Missing {
        /// Which.
        claims: ClaimNames,
    },
    /// Answers without a claim.
    #[error("it answers claims the policy does not have: {claims}")]
    Unasked {
        /// Which.
        claims: ClaimNames,
    },
    /// Two answers to one claim.
    #[error("it answers claim {claim} twice")]
    Twice {
        /// Which.
        claim: ClaimId,
    },
    /// A dispute that gives no reason.
    #[error("it disputes claim {claim} without a dispute_reason")]
    NoReason {
        /// Which.
        claim: ClaimId,
    },
    /// Conditional on nothing.
    #[error("it is conditional and disputes no claim")]
    NoDispute,
    /// Accepted as a whole, and yet not.
    #[error(
        "it is accepted and disputes {claims}; with disputes a decision is conditional or rejected"
    )]
    AcceptedDisputed {
        /// What it disputes.
        claims: ClaimNames,
    },
    /// Not behind the record it belongs behind.
    #[error("its prev_record_id is {given:?}, where {expected:?} belongs")]
    Link {
        /// What it names.
        given: Option<RecordId>,
        /// The record before it.
        expected: Option<RecordId>,
    },
    /// Of another pair.
    #[error("it is between {given}, and the chain is between {expected}")]
    Pair {
        /// Its caller and callee.
        given: String,
        /// Those of the chain.
        expected: String,
    },
    /// Its id is that of another.
    #[error("its record_id was used before in the chain")]
    Again,
    /// Not later than the record before it.
    #[error("it was decided at {given}, not after {before}, when the record before it was")]
    Order {
        /// When it was decided.
        given: Stamp,
        /// When the one before was.
        before: Stamp,
    },
    /// There is no document to hold it against.
    #[error("there is no document of version {version} to hold it against")]
    NoPolicy {
        /// The version it names.
        version: PolicyVersion,
    },
    /// The chain is full.
    #[error("the chain has {CHAIN_LEN_MAX} records, the limit")]
    Full,
}

/// A chain is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("consent record {record}, number {at} of its chain: {fault}")]
pub struct ChainError {
    /// Which record.
    pub record: RecordId,
    /// Where it stands, from 0.
    pub at: usize,
    /// What is wrong.
    pub fault: RecordFault,
}

impl ConsentRecord {
    /// Holds it against itself: what it decides against what it disputes.
    ///
    /// # Errors
    /// [`RecordFault`] says which rule is broken.
    pub fn check(&self) -> Result<(), RecordFault> {
        let mut seen = Names::of(self.parsed_claims.len());
        for parsed in &self.parsed_claims {
            let claim = || parsed.claim_id.clone();
            if !seen.insert(&parsed.claim_id) {
                return Err(RecordFault::Twice { claim: claim() });
            }
            if parsed.disputed && parsed.dispute_reason.is_none() {
                return Err(RecordFault::NoReason { claim: claim() });
            }
        }
        let disputed: ClaimNames = self.disputed().collect();
        match self.decision {
            ConsentDecision::Conditional if disputed.count == 0 => Err(RecordFault::NoDispute),
            ConsentDecision::Accepted if disputed.count > 0 => {
                Err(RecordFault::AcceptedDisputed { claims: disputed })
            }
            _ => Ok(()),
        }
    }

    /// Holds it against the document it speaks of, whose hash is computed, not believed.
    ///
    /// # Errors
    /// [`RecordFault`] says which rule is broken.
    pub fn check_against(&self, policy: &PolicyDocument) -> Result<(), RecordFault> {
        self.covers(policy, &policy.computed_hash())
    }

    pub(super) fn covers(
        &self,
        policy: &PolicyDocument,
        hash: &ContentHash,
    ) -> Result<(), RecordFault> {
        if self.policy_version != policy.version {
            let (given, version) = (self.policy_version.clone(), policy.version.clone());
            return Err(RecordFault::Version { given, version });
        }
        if self.policy_hash != *hash {
            let (version, given) = (policy.version.clone(), self.policy_hash.clone());
            return Err(RecordFault::Hash { version, given, found: hash.clone() });
        }
        let asked = policy.claims.iter().map(|claim| &claim.claim_id);
        let answered = self.parsed_claims.iter().map(|parsed| &parsed.claim_id);
        // As most do, it answers in the order of the policy.
        if asked.clone().eq(answered.clone()) {
            return self.check();
        }
        let (asked, answered): (BTreeSet<_>, BTreeSet<_>) = (asked.collect(), answered.collect());
        let claims: ClaimNames = asked.difference(&answered).copied().collect();
        if claims.count > 0 {
            return Err(RecordFault::Missing { claims });
        }
        let claims: ClaimNames = answered.difference(&asked).copied().collect();
        if claims.count > 0 {
            return Err(RecordFault::Unasked { claims });
        }
        self.check()
    }

    /// Holds it against the record before it, or against its being the first.
    ///
    /// # Errors
    /// [`RecordFault`] says which rule is broken.
    pub fn check_behind(&self, before: Option<&Self>) -> Result<(), RecordFault> {
        if let Some(before) = before
            && (&self.caller_agent_id, &self.callee_agent_id)
                != (&before.caller_agent_id, &before.callee_agent_id)
        {
            let pair = |one: &Self| format!("{} and {}", one.caller_agent_id, one.callee_agent_id);
            return Err(RecordFault::Pair { given: pair(self), expected: pair(before) });
        }
        self.linked(before.map(|before| (&before.record_id, &before.accepted_at)))
    }

    pub(super) fn linked(&self, before: Option<(&RecordId, &Stamp)>) -> Result<(), RecordFault> {
        let (expected, since) = before.unzip();
        if self.prev_record_id.as_ref() != expected {
            let (given, expected) = (self.prev_record_id.clone(), expected.cloned());
            return Err(RecordFault::Link { given, expected });
        }
        if expected == Some(&self.record_id) {
            return Err(RecordFault::Again);
        }
        match since {
            Some(before) if self.accepted_at.time() <= before.time() => {
                Err(RecordFault::Order { given: self.accepted_at.clone(), before: before.clone() })
            }
            _ => Ok(()),
        }
    }

    fn disputed(&self) -> impl Iterator<Item = &ClaimId> {
        self.parsed_claims.iter().filter(|parsed| parsed.disputed).map(|parsed| &parsed.claim_id)
    }
}

/// Whether `chain`, the oldest first, is one: each record behind the one before it, all of one pair, and
/// each a full answer to its document, which `policy_of` finds by version.
///
/// # Errors
/// [`ChainError`] for the first broken record.
pub fn validate_chain<'a, 'p>(
    chain: impl IntoIterator<Item = &'a ConsentRecord>,
    mut policy_of: impl FnMut(&PolicyVersion) -> Option<&'p PolicyDocument>,
) -> Result<(), ChainError> {
    let mut before: Option<&ConsentRecord> = None;
    let chain = chain.into_iter();
    let mut seen = Names::of(chain.size_hint().0);
    let mut computed: Option<(&PolicyDocument, ContentHash)> = None;
    for (at, record) in chain.enumerate() {
        let mut check = || {
            record.check_behind(before)?;
            if !seen.insert(&record.record_id) {
                return Err(RecordFault::Again);
            }
            if at as u64 >= CHAIN_LEN_MAX {
                return Err(RecordFault::Full);
            }
            let version = &record.policy_version;
            let policy = policy_of(version)
                .ok_or_else(|| RecordFault::NoPolicy { version: version.clone() })?;
            // Neighbours mostly speak of one document, which is hashed once.
            match &computed {
                Some((known, hash)) if std::ptr::eq(*known, policy) => record.covers(policy, hash),
                _ => {
                    let (_, hash) = computed.insert((policy, policy.computed_hash()));
                    record.covers(policy, hash)
                }
            }
        };
        check().map_err(|fault| ChainError { record: record.record_id.clone(), at, fault })?;
        before = Some(record);
    }
    Ok(())
}

/// What is wrong with an adherence event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventFault {
    /// It rests on no record of the chain (S3).
    #[error("S3: it rests on consent record {record}, which is not the one it may rest on")]
    Unanchored {
        /// The record it names.
        record: RecordId,
    },
    /// It rests on a record by which nothing may be done.
    #[error("S3: it rests on consent record {record}, which rejects the policy")]
    Rejected {
        /// The record.
        record: RecordId,
    },
    /// It cites a claim the record does not answer.
    #[error("it cites claim {claim}, which consent record {record} does not answer")]
    UnknownClaim {
        /// The claim.
        claim: ClaimId,
        /// The record.
        record: RecordId,
    },
    /// It cites another clause than that of its claim.
    #[error("it cites {given} for claim {claim}, which is derived from {clause}")]
    Clause {
        /// The claim.
        claim: ClaimId,
        /// What it cites.
        given: String,
        /// The clause of the claim.
        clause: String,
    },
    /// It permits what is disputed (S5, S6).
    #[error("S5, S6: it permits by claim {claim}, which the caller disputes")]
    DisputedPermit {
        /// The claim.
        claim: ClaimId,
    },
    /// It permits what was not understood.
    #[error("it permits by claim {claim}, which the caller did not understand")]
    NotUnderstoodPermit {
        /// The claim.
        claim: ClaimId,
    },
    /// Not behind the event it belongs behind.
    #[error("its prev_event_id is {given:?}, where {expected:?} belongs")]
    Link {
        /// What it names.
        given: Option<EventId>,
        /// The event before it.
        expected: Option<EventId>,
    },
    /// Its id is that of another.
    #[error("its event_id was used before in the trail")]
    Again,
    /// Earlier than what it follows.
    #[error("it was decided at {given}, before {before}, when what it follows was")]
    Order {
        /// When it was decided.
        given: Stamp,
        /// When what it follows was.
        before: Stamp,
    },
    /// The trail is full.
    #[error(
        "the trail has {TRAIL_LEN_MAX} events, the limit; it goes on with a new consent record"
    )]
    Full,
}

/// A trail is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("adherence event {event}, number {at} of its trail: {fault}")]
pub struct TrailError {
    /// Which event.
    pub event: EventId,
    /// Where it stands, from 0.
    pub at: usize,
    /// What is wrong.
    pub fault: EventFault,
}

impl AdherenceEvent {
    /// Holds it against the record it rests on.
    ///
    /// # Errors
    /// [`EventFault`] says which rule is broken.
    //= S3
    pub fn check_against(&self, record: &ConsentRecord) -> Result<(), EventFault> {
        if self.consent_record_id != record.record_id {
            return Err(EventFault::Unanchored { record: self.consent_record_id.clone() });
        }
        if record.decision == ConsentDecision::Rejected {
            return Err(EventFault::Rejected { record: record.record_id.clone() });
        }
        match record.parsed(&self.claim_id) {
            Some(ParsedClaim { understood, disputed, .. }) => self.may_say(*understood, *disputed),
            None => Err(EventFault::UnknownClaim {
                claim: self.claim_id.clone(),
                record: record.record_id.clone(),
            }),
        }
    }

    /// S6: a disputed claim permits nothing, and neither does one that was not understood.
    //= S6
    pub(super) fn may_say(&self, understood: bool, disputed: bool) -> Result<(), EventFault> {
        let claim = || self.claim_id.clone();
        match self.decision {
            AdherenceDecision::Permit if disputed => {
                Err(EventFault::DisputedPermit { claim: claim() })
            }
            AdherenceDecision::Permit if !understood => {
                Err(EventFault::NotUnderstoodPermit { claim: claim() })
            }
            _ => Ok(()),
        }
    }

    /// Holds its clause against the policy.
    ///
    /// # Errors
    /// [`EventFault::Clause`].
    pub fn check_clause(&self, policy: &PolicyDocument) -> Result<(), EventFault> {
        match policy.claim(&self.claim_id) {
            Some(claim) if claim.clause_ref != self.clause_evaluated => Err(EventFault::Clause {
                claim: self.claim_id.clone(),
                given: self.clause_evaluated.to_string(),
                clause: claim.clause_ref.to_string(),
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn linked(
        &self,
        last: Option<&EventId>,
        first_of_record: bool,
        since: &Stamp,
    ) -> Result<(), EventFault> {
        let prev = self.prev_event_id.as_ref();
        // The first of a record begins a trail, or goes on with that of the record before.
        if prev != last && !(first_of_record && prev.is_none()) {
            return Err(EventFault::Link { given: prev.cloned(), expected: last.cloned() });
        }
        if last == Some(&self.event_id) {
            return Err(EventFault::Again);
        }
        if self.timestamp.time() < since.time() {
            let (given, before) = (self.timestamp.clone(), since.clone());
            return Err(EventFault::Order { given, before });
        }
        Ok(())
    }
}

/// Whether `trail`, the oldest first, is one: each event behind the one before it, and resting on a
/// record of `chain` that may have it.
///
/// # Errors
/// [`TrailError`] for the first broken event.
pub fn validate_trail<'a>(
    trail: impl IntoIterator<Item = &'a AdherenceEvent>,
    chain: &[ConsentRecord],
) -> Result<(), TrailError> {
    let records: BTreeMap<&RecordId, (usize, &ConsentRecord)> =
        chain.iter().enumerate().map(|(at, record)| (&record.record_id, (at, record))).collect();
    let trail = trail.into_iter();
    let mut seen = Names::of(trail.size_hint().0);
    let mut last: Option<&AdherenceEvent> = None;
    let mut found: Option<(usize, &ConsentRecord)> = None;
    let mut under: (usize, u64) = (0, 0);
    for (at, event) in trail.enumerate() {
        let mut check = || {
            let unanchored = || EventFault::Unanchored { record: event.consent_record_id.clone() };
            let (number, record) = match found {
                Some((number, record)) if record.record_id == event.consent_record_id => {
                    (number, record)
                }
                _ => *records.get(&event.consent_record_id).ok_or_else(unanchored)?,
            };
            found = Some((number, record));
            event.check_against(record)?;
            // Once a caller has consented anew, nothing rests on what it said before.
            if last.is_some() && number < under.0 {
                return Err(unanchored());
            }
            let first = last.is_none() || number > under.0;
            under = (number, if first { 1 } else { under.1 + 1 });
            if under.1 > TRAIL_LEN_MAX {
                return Err(EventFault::Full);
            }
            let since = match last {
                Some(last) if !first => &last.timestamp,
                _ => &record.accepted_at,
            };
            event.linked(last.map(|last| &last.event_id), first, since)?;
            if seen.insert(&event.event_id) { Ok(()) } else { Err(EventFault::Again) }
        };
        check().map_err(|fault| TrailError { event: event.event_id.clone(), at, fault })?;
        last = Some(event);
    }
    Ok(())
}

/// Asked and never iterated, so its order cannot show. Names come from others: the hash is keyed.
#[expect(clippy::disallowed_types, reason = "never iterated")]
type Set<T> = std::collections::HashSet<T, foldhash::fast::RandomState>;

/// Names of which none may be there twice. While they ascend, as those that begin with a time do, each is held
/// against the one before; from then on against a set.
struct Names<'a, T> {
    ascending: Vec<&'a T>,
    others: Set<&'a T>,
}

impl<'a, T: Ord + Hash> Names<'a, T> {
    /// With room for `count`, within reason.
    fn of(count: usize) -> Self {
        Self { ascending: Vec::with_capacity(count.min(4_096)), others: Set::default() }
    }

    /// Whether it was not there before.
    fn insert(&mut self, name: &'a T) -> bool {
        if self.others.is_empty() {
            match self.ascending.last() {
                Some(last) if *last >= name => {
                    self.others.reserve(self.ascending.capacity());
                    self.others.extend(self.ascending.drain(..));
                }
                _ => {
                    self.ascending.push(name);
                    return true;
                }
            }
        }
        self.others.insert(name)
    }
}
