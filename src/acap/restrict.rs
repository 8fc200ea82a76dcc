//! Decisions that take back what was permitted travel as obligations of the kind `anumati.consent`, under
//! custody; what permits again goes best-effort (AC-1). Applied at a receiver they count in the gate in that
//! very commit, since the gate reads the governed state itself.
//!
//! Withdrawn consent is a decision of people, and only a grant lifts it. What a caller decides by itself, a
//! record that rejects or disputes, an event that denies, is about one document, whose id the obligation has
//! in its own: it counts until that document, or a later one that permits, is in the chain.

use super::book::{Kept, id_key};
use super::{Acap, CONSENT, Denial};
use crate::config::NodeConfig;
use crate::driver::{Call, Shared};
use crate::gate::{Why, authorization};
use crate::store::{SideTable, Storage};
use proto::consent::{
    AdherenceDecision, AdherenceEvent, Block, CLAIMS_NAMED_MAX, ClaimId, ConsentDecision,
    ConsentRecord, ContentHash, Refused, Text,
};
use proto::custodian::Draft;
use proto::custody::IssueResult;
use proto::id::{AgentId, GovernedKey, Kind, ObligationId};
use proto::payload::Payload;
use proto::record::{Cell, Role};
use proto::store::ReadError;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{mpsc, oneshot, watch};

/// How ids of obligations begin that are about a document; its id is behind the word.
const ID_BEGINNING: &str = "acap-";
/// Bytes of a scope that are kept where the whole key would be too long.
const SCOPE_LEN_MAX: usize = 128;

/// What a caller decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    /// A record rejects the policy that was consented to.
    Reject,
    /// A record disputes, or does not understand any more, what the one before accepted.
    Dispute,
    /// An event denies by a claim that was permitted.
    Deny,
    /// An event escalates by a claim that was permitted.
    Escalate,
    /// A document permits again what one of these took back.
    Grant,
}

impl Word {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Dispute => "dispute",
            Self::Deny => "deny",
            Self::Escalate => "escalate",
            Self::Grant => "grant",
        }
    }
}

/// An obligation to be issued before the document is sent that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Due {
    pub(super) word: Word,
    /// Of one claim, else of the whole record.
    pub(super) claim: Option<ClaimId>,
    /// The document.
    pub(super) document: String,
}

/// The governed key of a caller's own decisions, on one claim or on the whole record. It names the caller:
/// others may act for the same principal.
fn key_of(scope: &GovernedKey, caller: &AgentId, claim: Option<&ClaimId>) -> GovernedKey {
    let scope_text = scope.as_str();
    let plain = match claim {
        Some(claim) => format!("{scope_text}#{caller}#{claim}"),
        None => format!("{scope_text}#{caller}"),
    };
    let short = || {
        let scope = Text::<SCOPE_LEN_MAX>::cut(scope_text);
        GovernedKey::new(&format!("{scope}#{}", ContentHash::of(plain.as_bytes())))
    };
    // A key of all consent, if there could be none: that stops more, and nothing less.
    GovernedKey::new(&plain).or_else(|_| short()).unwrap_or_else(|_| scope.clone())
}

/// The id of the document that an obligation is about, if it is about one.
fn document_of(id: &ObligationId) -> Option<&str> {
    let (_, document) = id.as_str().strip_prefix(ID_BEGINNING)?.split_once('-')?;
    Some(document)
}

/// What withholds a scope, by the word of `agent`.
fn withholds(
    cells: &dyn Storage,
    role: Role,
    agent: &AgentId,
    kinds: &[Kind],
    scope: &GovernedKey,
) -> Result<Option<Cell>, ReadError> {
    let found = authorization(cells, role, agent, kinds, scope)?;
    Ok(found.cell.filter(|_| found.why == Why::Withheld))
}

/// The node's custody, for the caller's side of consent.
pub(crate) struct Issuer {
    calls: mpsc::Sender<Call>,
    cells: Arc<dyn Storage>,
    shared: Arc<Shared>,
    scope: GovernedKey,
    kinds: Vec<Kind>,
    principals: BTreeMap<AgentId, AgentId>,
    /// Peers that may be given these obligations.
    told: BTreeSet<AgentId>,
    /// Counts changes of governed state.
    pub(super) governed: watch::Receiver<u64>,
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl Issuer {
    /// Of a node.
    ///
    /// # Errors
    /// `acap.scope` is no key.
    pub(crate) fn new(
        config: &NodeConfig,
        calls: mpsc::Sender<Call>,
        cells: Arc<dyn Storage>,
        shared: Arc<Shared>,
        governed: watch::Receiver<u64>,
    ) -> Result<Self, ReadError> {
        let wrong = |error: proto::id::IdError| ReadError(format!("acap.scope: {error}").into());
        let (peers, kind) = (config.peers.iter(), Kind::new(CONSENT).map_err(wrong)?);
        let told = peers.clone().filter(|peer| peer.may_receive.contains(&kind));
        Ok(Self {
            told: told.map(|peer| peer.id.clone()).collect(),
            calls,
            cells,
            shared,
            scope: GovernedKey::new(&config.acap.scope).map_err(wrong)?,
            kinds: vec![kind],
            principals: peers.map(|peer| (peer.id.clone(), peer.principal.clone())).collect(),
            governed,
        })
    }

    /// The obligation by which our consent to `callee` is withdrawn: that of the principal it acts for, or
    /// ours.
    pub(super) fn withdrawn(&self, callee: &AgentId) -> Result<Option<String>, ReadError> {
        let principal = self.principals.get(callee).unwrap_or(callee);
        for (role, agent) in [(Role::Receiver, principal), (Role::Principal, callee)] {
            let cell = withholds(&*self.cells, role, agent, &self.kinds, &self.scope)?;
            if let Some(cell) = cell {
                return Ok(Some(cell.obligation_id.to_string()));
            }
        }
        Ok(None)
    }

    /// The obligations that were decided by last, whatever they say: what came and was lifted again shows by
    /// another one.
    pub(super) fn decided(&self, callee: &AgentId) -> Result<Vec<String>, ReadError> {
        let principal = self.principals.get(callee).unwrap_or(callee);
        let mut by = Vec::new();
        for (role, agent) in [(Role::Receiver, principal), (Role::Principal, callee)] {
            let found = authorization(&*self.cells, role, agent, &self.kinds, &self.scope)?;
            by.push(found.cell.map(|cell| cell.obligation_id.to_string()).unwrap_or_default());
        }
        Ok(by)
    }

    /// Whether `callee` is a peer that may be given our decisions.
    pub(super) fn tells(&self, callee: &AgentId) -> bool {
        self.told.contains(callee)
    }

    /// The obligation that tells `callee` what `me` has decided.
    pub(super) fn draft(&self, me: &AgentId, callee: &AgentId, due: &Due) -> Option<Draft> {
        let word = due.word.as_str();
        let payload = json!({
            "decision": word, "scope": key_of(&self.scope, me, due.claim.as_ref()),
            "caller_agent_id": me, "document": due.document, "claim_id": due.claim,
        });
        Some(Draft {
            id: ObligationId::new(&format!("{ID_BEGINNING}{word}-{}", due.document)).ok()?,
            kind: self.kinds.first()?.clone(),
            target: callee.clone(),
            payload: Payload::from_json(payload.as_object()?).ok()?,
            deadline_seconds: None,
            max_retries: None,
            sequence: None,
        })
    }

    /// Issues; each is durable when this returns. The error is a reason to come back.
    //= AB-1
    pub(super) async fn issue(&self, drafts: Vec<Draft>) -> Result<Vec<IssueResult>, String> {
        if !self.shared.recovered.load(Ordering::SeqCst) {
            return Err("the pending set is being loaded".to_owned());
        }
        let gone = |_| "the node is stopping".to_owned();
        let (reply, ticket) = oneshot::channel();
        let sent = self.calls.send(Call::Issue { drafts, reply }).await;
        sent.map_err(|_| "the node is stopping".to_owned())?;
        ticket.await.map_err(gone)?.await.map_err(gone)
    }
}

/// What of `record` takes back what `before` gave. A first record takes back nothing.
pub(super) fn of_record(before: Option<&ConsentRecord>, record: &ConsentRecord) -> Option<Word> {
    let before = before.filter(|before| before.decision != ConsentDecision::Rejected)?;
    if record.decision == ConsentDecision::Rejected {
        return Some(Word::Reject);
    }
    let narrows = record.parsed_claims.iter().any(|now| {
        let open = before.parsed(&now.claim_id).is_some_and(|was| was.understood && !was.disputed);
        open && (now.disputed || !now.understood)
    });
    narrows.then_some(Word::Dispute)
}

/// What of `event` takes back what was last decided on its claim.
pub(super) fn of_event(last: Option<AdherenceDecision>, event: &AdherenceEvent) -> Option<Word> {
    match (last, event.decision) {
        (Some(AdherenceDecision::Permit), AdherenceDecision::Deny) => Some(Word::Deny),
        (Some(AdherenceDecision::Permit), AdherenceDecision::Escalate) => Some(Word::Escalate),
        _ => None,
    }
}

/// The callee's side.
impl Acap {
    /// The obligation by which a caller has taken back its record or, with `claim`, a permit, of which the
    /// chain does not know yet.
    fn taken_back_by(
        &self,
        caller: &AgentId,
        kept: &Kept,
        claim: Option<&ClaimId>,
    ) -> Result<Option<String>, Denial> {
        let Some(cell) = self.decision_of(caller, claim)? else { return Ok(None) };
        let id = cell.obligation_id;
        if kept.heard.get(name_of(claim)).is_some_and(|heard| heard == id.as_str()) {
            return Ok(None);
        }
        if let Some(document) = document_of(&id) {
            let kind = if claim.is_some() { "e" } else { "r" };
            if self.log.disk().get(SideTable::AcapId, &id_key(caller, kind, document))?.is_some() {
                return Ok(None);
            }
        }
        Ok(Some(id.to_string()))
    }

    fn decision_of(
        &self,
        caller: &AgentId,
        claim: Option<&ClaimId>,
    ) -> Result<Option<Cell>, Denial> {
        let principal = self.principals.get(caller).unwrap_or(caller);
        let key = key_of(&self.scope, caller, claim);
        withholds(&*self.cells, Role::Receiver, principal, &self.kinds, &key).map_err(|error| {
            tracing::error!(%error, "what a caller has decided cannot be read");
            Denial::unavailable()
        })
    }

    /// Whether consent of `caller` has ended, and by which obligation, withdrawn or taken back by itself. By none if
    /// it was withdrawn and granted again before anybody looked, which does not bring back the record.
    pub(super) fn ended_by(
        &self,
        caller: &AgentId,
        kept: &Kept,
    ) -> Result<Option<Option<String>>, Denial> {
        if let Some(obligation) = self.withdrawn(caller)? {
            return Ok(Some(Some(obligation)));
        }
        if let Some(obligation) = self.taken_back_by(caller, kept, None)? {
            return Ok(Some(Some(obligation)));
        }
        match &kept.decided {
            Some(before) if *before != self.decided(caller)? => Ok(Some(None)),
            _ => Ok(None),
        }
    }

    /// The obligations that were decided by last on the consent of `caller`, whatever they say.
    pub(super) fn decided(&self, caller: &AgentId) -> Result<[Option<String>; 2], Denial> {
        let principal = self.principals.get(caller).unwrap_or(caller);
        let by = |role, agent| {
            let found = authorization(&*self.cells, role, agent, &self.kinds, &self.scope);
            let found = found.map_err(|error| {
                tracing::error!(%error, "what was decided of consent cannot be read");
                Denial::unavailable()
            })?;
            Ok::<_, Denial>(found.cell.map(|cell| cell.obligation_id.to_string()))
        };
        Ok([by(Role::Receiver, principal)?, by(Role::Principal, caller)?])
    }

    /// Refuses a call of which the caller has taken back a permit.
    //= S4 S5
    pub(super) fn restricted(
        &self,
        caller: &AgentId,
        kept: &Kept,
        governing: &[ClaimId],
    ) -> Result<Option<Refused>, Denial> {
        let (mut claims, mut count) = (Vec::new(), 0);
        for claim in governing {
            if self.taken_back_by(caller, kept, Some(claim))?.is_some() {
                count += 1;
                if claims.len() < CLAIMS_NAMED_MAX {
                    claims.push((claim.clone(), Block::Denied));
                }
            }
        }
        Ok((count > 0).then_some(Refused::Blocked { claims, count }))
    }

    /// A record is taken: what was taken back before it is answered by it.
    pub(super) fn hear_record(
        &self,
        caller: &AgentId,
        kept: &mut Kept,
        record: &ConsentRecord,
    ) -> Result<(), Denial> {
        kept.heard.clear();
        self.hear(caller, kept, None)?;
        for parsed in &record.parsed_claims {
            self.hear(caller, kept, Some(&parsed.claim_id))?;
        }
        Ok(())
    }

    /// An event is taken, and the same.
    pub(super) fn hear_event(
        &self,
        caller: &AgentId,
        kept: &mut Kept,
        event: &AdherenceEvent,
    ) -> Result<(), Denial> {
        self.hear(caller, kept, Some(&event.claim_id))
    }

    fn hear(
        &self,
        caller: &AgentId,
        kept: &mut Kept,
        claim: Option<&ClaimId>,
    ) -> Result<(), Denial> {
        let name = name_of(claim);
        match self.decision_of(caller, claim)? {
            Some(cell) => kept.heard.insert(name.to_owned(), cell.obligation_id.to_string()),
            None => kept.heard.remove(name),
        };
        Ok(())
    }
}

/// The name of a claim, or of the whole record, where both are kept together.
pub(super) fn name_of(claim: Option<&ClaimId>) -> &str {
    claim.map_or("", |claim| claim.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of two callers or two claims are never the same, however long the names are.
    #[test]
    fn each_caller_and_claim_has_a_key_of_its_own() {
        let scope = GovernedKey::new(&"s".repeat(proto::limits::ID_LEN_MAX)).unwrap();
        let agent = |name: &str| AgentId::new(&format!("spiffe://{}/{name}", "x".repeat(200)));
        let (bob, carol) = (agent("bob").unwrap(), agent("carol").unwrap());
        let claim = ClaimId::new("claim-use").unwrap();
        let keys = [
            key_of(&scope, &bob, None),
            key_of(&scope, &carol, None),
            key_of(&scope, &bob, Some(&claim)),
            key_of(&scope, &carol, Some(&claim)),
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len(), "{keys:?}");
        assert!(!keys.contains(&scope));
    }

    #[test]
    fn an_obligation_names_its_document() {
        let id = |text: &str| ObligationId::new(text).unwrap();
        assert_eq!(document_of(&id("acap-deny-e-1")), Some("e-1"));
        assert_eq!(document_of(&id("withdraw-1")), None);
    }
}
