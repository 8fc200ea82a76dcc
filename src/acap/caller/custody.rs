//! The caller's decisions under custody: what takes back is issued before the document that says so is
//! sent, and what a callee or we withdraw ends consent here in that very commit.

use super::super::restrict::{Due, Issuer, Word, name_of, of_event, of_record};
use super::chain::Chain;
use super::{Callee, Caller, Refusal};
use proto::consent::{AdherenceDecision, AdherenceEvent, ConsentRecord, Trigger};
use proto::custodian::IssueError;
use proto::id::AgentId;

impl Caller {
    /// In a node that has custody. Without it what is decided goes to the callee as documents only.
    pub(crate) fn under(self, custody: Issuer) -> Self {
        for callee in self.callees.keys().filter(|callee| !custody.tells(callee)) {
            tracing::warn!(%callee, "what we decide of its policy goes without custody: it is no peer that may receive anumati.consent");
        }
        Self { custody: Some(custody), ..self }
    }

    fn tells(&self, callee: &AgentId) -> bool {
        self.custody.as_ref().is_some_and(|custody| custody.tells(callee))
    }

    /// Notes which obligation goes before `record`, the next behind the head of `chain`.
    pub(super) fn tell_record(&self, chain: &mut Chain, record: &ConsentRecord) {
        if !self.tells(&record.callee_agent_id) {
            return;
        }
        let document = record.record_id.to_string();
        if let Some(word) = of_record(chain.head.as_ref(), record) {
            chain.kept.tell(Due { word, claim: None, document });
        } else if record.decision != proto::consent::ConsentDecision::Rejected
            && chain.kept.restricted.contains(name_of(None))
        {
            chain.kept.tell(Due { word: Word::Grant, claim: None, document });
        }
    }

    /// Notes which obligation goes before `event`. `last` was decided on its claim before.
    pub(super) fn tell_event(
        &self,
        callee: &Callee,
        chain: &mut Chain,
        last: Option<AdherenceDecision>,
        event: &AdherenceEvent,
    ) {
        if !self.tells(&callee.terms.callee) {
            return;
        }
        let (claim, document) = (Some(event.claim_id.clone()), event.event_id.to_string());
        let lifts = event.decision == AdherenceDecision::Permit
            && chain.kept.restricted.contains(name_of(claim.as_ref()));
        match of_event(last, event) {
            Some(word) => chain.kept.tell(Due { word, claim, document }),
            None if lifts => chain.kept.tell(Due { word: Word::Grant, claim, document }),
            None => {}
        }
    }

    /// The obligations by which consent stands as it does, for the record that is made now.
    pub(super) fn decided_by(&self, callee: &AgentId) -> Result<Option<Vec<String>>, Refusal> {
        let custody = self.custody.as_ref();
        Ok(custody.map(|custody| custody.decided(callee)).transpose()?)
    }

    /// Issues what is to be issued before anything else is sent.
    pub(super) async fn issue_due(
        &self,
        callee: &Callee,
        chain: &mut Chain,
    ) -> Result<(), Refusal> {
        if chain.kept.due.is_empty() {
            return Ok(());
        }
        let id = &callee.terms.callee;
        if let Some(custody) = &self.custody {
            let due = &chain.kept.due;
            let drafts = due.iter().filter_map(|due| custody.draft(&self.me, id, due)).collect();
            let later = |why: String| {
                let what = format!("what we decided of {id} is not under custody yet: {why}");
                Refusal::new("custody", what).temporary()
            };
            for result in custody.issue(drafts).await.map_err(later)? {
                match result {
                    Ok(_) => {}
                    Err(error @ IssueError::Full { .. }) => return Err(later(error.to_string())),
                    // By the configuration of the kind: it has the document alone.
                    Err(error) => {
                        tracing::warn!(callee = %id, %error, "a decision goes without custody");
                    }
                }
            }
        }
        let mut next = chain.clone();
        next.kept.due.clear();
        self.keep(callee, chain, next, Vec::new()).await
    }

    /// Whether consent to `callee` is withdrawn now. What cannot be read is, as far as we know.
    pub(super) fn is_withdrawn(&self, callee: &AgentId) -> bool {
        let custody = self.custody.as_ref();
        custody.is_some_and(|custody| !matches!(custody.withdrawn(callee), Ok(None)))
    }

    /// Refuses while consent is withdrawn, and ends it for ever: what is granted later does not bring back a
    /// record that was withdrawn.
    pub(super) async fn check_withdrawn(
        &self,
        callee: &Callee,
        chain: &mut Chain,
    ) -> Result<(), Refusal> {
        let Some(custody) = &self.custody else { return Ok(()) };
        let id = &callee.terms.callee;
        let (withdrawn, decided) = (custody.withdrawn(id)?, custody.decided(id)?);
        // What came and was lifted before anybody looked has ended it, too.
        let since = chain.kept.decided.as_ref().is_some_and(|before| *before != decided);
        if chain.machine.state().is_live() && (withdrawn.is_some() || since) {
            let (disk, pair) = (self.log.disk(), self.pair(callee));
            // As at the callee: of the paper's triggers it is that of the principal.
            let mut next = chain.ended(disk, &pair, Trigger::PrincipalChange)?;
            next.kept.withdrawn.clone_from(&withdrawn);
            self.keep(callee, chain, next, Vec::new()).await?;
        }
        let Some(obligation) = withdrawn else { return Ok(()) };
        let what = format!("our consent to the policy of {id} is withdrawn by {obligation}");
        Err(Refusal::new("withdrawn", what).with("obligation_id", obligation.into()))
    }
}
