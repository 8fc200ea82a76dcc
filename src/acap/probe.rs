//! What `benches/consent.rs` measures below the HTTP surface.

use super::{Acap, Denial, Told};
use crate::gate::Wanted;
use crate::node::NodeHandle;
use proto::id::AgentId;
use serde_json::Value;

impl Acap {
    /// The decision of [`Acap::admit`] without the record of it: the same looks and the same machine.
    async fn decide(&self, caller: &AgentId, wanted: &Wanted, told: &Told) -> Result<(), Denial> {
        self.check_withdrawn(caller)?; // as the gate does first
        let book = self.book(caller).await?;
        let mut next = book.clone();
        self.look(caller, &mut next, told)?;
        let claims = self.claims(wanted);
        let refused = self.judged(caller, &mut next, &claims)?;
        let call = match wanted {
            Wanted::Named(call) | Wanted::Any(call) => call,
        };
        self.event(&next, call, &claims, refused.as_ref(), None)?;
        refused.map_or(Ok(()), |refused| Err(refused.into()))
    }
}

/// One call at the gate, of a node that asks for consent.
#[doc(hidden)]
impl NodeHandle {
    /// Decides a call, and keeps nothing of it.
    pub async fn probe_decision(&self, caller: &AgentId, call: &str) -> Result<(), String> {
        let acap = self.acap().ok_or("no consent is asked for")?;
        let wanted = Wanted::Named(call.to_owned());
        let decided = acap.decide(caller, &wanted, &Told::default()).await;
        decided.map_err(|denial| denial.to_string())
    }

    /// Decides a call, and returns once that is on record and durable.
    pub async fn probe_admission(&self, caller: &AgentId, call: &str) -> Result<(), String> {
        let acap = self.acap().ok_or("no consent is asked for")?;
        let wanted = Wanted::Named(call.to_owned());
        acap.check_withdrawn(caller).map_err(|denial| denial.to_string())?;
        let admitted = acap.admit(caller, &wanted, &Told::default()).await;
        admitted.map_err(|denial| denial.to_string())
    }

    /// Takes a consent record as from `peer`.
    pub async fn probe_consent(&self, peer: &AgentId, bytes: &[u8]) -> Result<Value, String> {
        let acap = self.acap().ok_or("no consent is asked for")?;
        acap.consent(peer, bytes).await.map_err(|denial| denial.to_string())
    }

    /// Takes an adherence event as from `peer`.
    pub async fn probe_adherence(&self, peer: &AgentId, bytes: &[u8]) -> Result<Value, String> {
        let acap = self.acap().ok_or("no consent is asked for")?;
        acap.adherence(peer, bytes).await.map_err(|denial| denial.to_string())
    }
}
