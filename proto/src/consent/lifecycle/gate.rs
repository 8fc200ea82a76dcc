//! Events of the trail, and whether a skill may run by them.

use super::{Append, Head, Lifecycle, Now, Refused, Standing};
use crate::consent::adherence::{AdherenceDecision, AdherenceEvent};
use crate::consent::chain::EventFault;
use crate::consent::limits::{CLAIMS_NAMED_MAX, TRAIL_LEN_MAX};
#[cfg(feature = "mutants")]
use crate::consent::mutant::Mutant;
use crate::consent::text::ClaimId;
use std::fmt;

/// Why a claim is in the way of a skill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Block {
    /// The consent record has no answer to it.
    Unanswered,
    /// The caller has not understood it.
    NotUnderstood,
    /// The caller disputes it.
    Disputed,
    /// Nothing was held against it under this record.
    NotEvaluated,
    /// What was held against it last was denied.
    Denied,
    /// What was held against it last waits for a person.
    Escalated,
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unanswered => "not answered by the consent record",
            Self::NotUnderstood => "not understood by the caller",
            Self::Disputed => "disputed by the caller",
            Self::NotEvaluated => "without an adherence event",
            Self::Denied => "denied by its latest adherence event",
            Self::Escalated => "escalated by its latest adherence event",
        })
    }
}

pub(super) fn blocked(claims: &[(ClaimId, Block)], count: usize) -> String {
    let named = claims.iter().map(|(claim, why)| format!("{claim} ({why})"));
    let named = named.collect::<Vec<_>>().join(", ");
    match count.saturating_sub(claims.len()) {
        0 if named.is_empty() => "no adherence event permits it".to_owned(),
        0 => format!("claims in the way: {named}"),
        more => format!("claims in the way: {named} and {more} more"),
    }
}

impl Head {
    /// Notes an event under this record.
    pub(super) fn note(&mut self, event: &AdherenceEvent) {
        self.events += 1;
        self.last_at = event.timestamp.clone();
        let sound = self.claims.get_mut(&event.claim_id).is_some_and(|standing| {
            standing.latest = Some(event.decision);
            standing.understood && !standing.disputed
        });
        self.permits = sound && event.decision == AdherenceDecision::Permit;
    }
}

impl Standing {
    /// S4, S5: whether a skill may run by this claim.
    //= S4 S5
    fn block(self) -> Option<Block> {
        match (self.understood, self.disputed, self.latest) {
            (_, true, _) => Some(Block::Disputed),
            (false, _, _) => Some(Block::NotUnderstood),
            (true, false, None) => Some(Block::NotEvaluated),
            (true, false, Some(AdherenceDecision::Deny)) => Some(Block::Denied),
            (true, false, Some(AdherenceDecision::Escalate)) => Some(Block::Escalated),
            (true, false, Some(AdherenceDecision::Permit)) => None,
        }
    }
}

impl Lifecycle {
    /// What was held against a claim last, under the last record.
    #[must_use]
    pub fn latest(&self, claim: &ClaimId) -> Option<AdherenceDecision> {
        self.head.as_ref()?.claims.get(claim)?.latest
    }

    /// S1: the record that holds, if one does.
    //= S1
    fn live(&self) -> Result<&Head, Refused> {
        let head = self.head.as_ref().filter(|_| self.state.is_live());
        head.ok_or_else(|| Refused::NoConsent {
            pair: self.pair.clone(),
            state: self.state,
            why: self.why,
        })
    }

    /// S3: an event rests on the record that holds. S6: it permits nothing by a disputed claim.
    //= S3 S6
    pub(super) fn adhere(
        &mut self,
        now: &Now<'_>,
        event: &AdherenceEvent,
    ) -> Result<Append, Refused> {
        let head = self.live()?;
        let check = || {
            #[cfg(feature = "mutants")]
            let anchored =
                head.id == event.consent_record_id || self.mutant == Some(Mutant::TakesUnanchored);
            #[cfg(not(feature = "mutants"))]
            let anchored = head.id == event.consent_record_id;
            if !anchored {
                return Err(EventFault::Unanchored { record: event.consent_record_id.clone() });
            }
            let standing = head.claims.get(&event.claim_id).ok_or_else(|| {
                EventFault::UnknownClaim { claim: event.claim_id.clone(), record: head.id.clone() }
            })?;
            #[cfg(feature = "mutants")]
            let standing = match self.mutant {
                Some(Mutant::TakesDisputedPermit) => &Standing { disputed: false, ..*standing },
                _ => standing,
            };
            event.may_say(standing.understood, standing.disputed)?;
            if head.terms.hash == now.policy.document_hash {
                event.check_clause(now.policy)?;
            }
            if head.events >= TRAIL_LEN_MAX {
                return Err(EventFault::Full);
            }
            event.linked(self.last_event.as_ref(), head.events == 0, &head.last_at)
        };
        check().map_err(|fault| Refused::Event { event: event.event_id.clone(), fault })?;
        let number = self.events;
        self.events += 1;
        self.last_event = Some(event.event_id.clone());
        if let Some(head) = &mut self.head {
            head.note(event);
        }
        Ok(Append::Event { number, event: event.clone() })
    }

    /// Whether a skill may run that `claims` govern: each was understood, is not disputed, and what was
    /// held against it last is permitted. Where no claim governs it, the last event must permit.
    //= S1 S4
    pub(super) fn invoke(&self, claims: &[ClaimId]) -> Result<Option<Append>, Refused> {
        let head = self.live()?;
        #[cfg(feature = "mutants")]
        if self.mutant == Some(Mutant::SkipsPermit) {
            return Ok(None);
        }
        let why = |claim| match head.claims.get(claim) {
            Some(standing) => standing.block(),
            None => Some(Block::Unanswered),
        };
        let mut blocks = claims.iter().filter_map(|claim| Some((claim.clone(), why(claim)?)));
        let first: Vec<_> = blocks.by_ref().take(CLAIMS_NAMED_MAX).collect();
        let count = first.len() + blocks.count();
        if count > 0 || (claims.is_empty() && !head.permits) {
            return Err(Refused::Blocked { claims: first, count });
        }
        Ok(None)
    }
}
