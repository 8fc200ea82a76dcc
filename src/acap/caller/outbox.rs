//! What is durable here and not yet taken by the callee: sent in order, the same bytes each time, until
//! it is answered.

use super::super::book::key;
use super::chain::{Chain, Entry};
use super::{Callee, Caller, Refusal};
use axum::http::Method;
use proto::consent::Trigger;
use serde_json::Value;
use std::collections::BTreeMap;

/// Documents that wait for one callee; then nothing more is said to it, and its actions are refused.
pub(super) const OUTBOX_MAX: usize = 4_096;

/// What an answer means.
enum Taken {
    Yes(Value),
    /// Nobody knows, or not now.
    Later(String),
    /// Consent is to be given anew, and why, if it says so.
    Stale(String, Option<Trigger>),
    /// Consent is withdrawn, and may be given anew once that is lifted.
    Withdrawn(String),
    /// The callee's chain is another than ours.
    Diverged(String),
    /// For another reason.
    No {
        code: String,
        why: String,
    },
}

fn taken(status: u16, body: &[u8]) -> Taken {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |name: &str| body.pointer(name).and_then(Value::as_str).unwrap_or_default();
    let (code, said) = (text("/error/code"), text("/error/message"));
    let why = format!("it answers {status} {code}: {said}");
    match (status, code) {
        (200..=299, _) => Taken::Yes(body),
        (408 | 429 | 401, _) if code != "full" => Taken::Later(why),
        (500.., _) => Taken::Later(why),
        (_, "consent_stale" | "consent_required" | "unanchored" | "event") => {
            let told = body.pointer("/error/reconsent_trigger").cloned();
            Taken::Stale(why, told.and_then(|told| serde_json::from_value(told).ok()))
        }
        (_, "policy_version" | "policy_hash") => Taken::Stale(why, Some(Trigger::PolicyBump)),
        (_, "capability") => Taken::Stale(why, Some(Trigger::CapabilityChange)),
        (_, "principal") => Taken::Stale(why, Some(Trigger::PrincipalChange)),
        // It has lasted long enough, in time or in events.
        (_, "expired" | "full") => Taken::Stale(why, Some(Trigger::Expiry)),
        (_, "withdrawn") => Taken::Withdrawn(why),
        (409, _) => Taken::Diverged(why),
        _ => Taken::No { code: code.to_owned(), why },
    }
}

impl Caller {
    /// Sends what waits. What was answered, by number of the event; or `None`, if consent has ended by
    /// what the callee says and has to be given anew.
    pub(super) async fn flush(
        &self,
        callee: &Callee,
        chain: &mut Chain,
    ) -> Result<Option<BTreeMap<u64, Value>>, Refusal> {
        let mut told = BTreeMap::new();
        let id = &callee.terms.callee;
        self.issue_due(callee, chain).await?;
        while let Some(entry) = chain.kept.outbox.front().copied() {
            let (table, number) = entry.table();
            let bytes = self.log.disk().get(table, &key(id, number))?.ok_or_else(Refusal::store)?;
            let path = match entry {
                Entry::Record(_) => "/acap/consent",
                Entry::Event(_) => "/acap/adherence",
            };
            let answer = callee.terms.way.exchange(Method::POST, path, None, bytes).await;
            let taken = match answer {
                Ok(answer) => taken(answer.status, &answer.body),
                Err(why) => Taken::Later(why),
            };
            match taken {
                Taken::Yes(body) => {
                    // Durable with the next change: told again after a crash, it is answered alike.
                    chain.kept.outbox.pop_front();
                    if let Entry::Event(number) = entry {
                        told.insert(number, body);
                    }
                }
                Taken::Later(why) => {
                    let what = format!("{id} has not taken what we say: {why}");
                    return Err(Refusal::new("unreached", what).temporary());
                }
                Taken::Stale(why, trigger) => {
                    tracing::info!(callee = %id, why, "consent is to be given anew");
                    // What it does not name is most likely what only it knows of: its policy.
                    let trigger = trigger.or(chain.kept.ended).unwrap_or(Trigger::PolicyBump);
                    self.take_back(callee, chain, &why, trigger).await?;
                    let mut seen =
                        callee.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    seen.at = None;
                    return Ok(None);
                }
                Taken::Diverged(why) => {
                    tracing::error!(callee = %id, why, "the callee's copy of our chains is another than ours: run `abhyasa consent reconcile`");
                    self.diverge(callee, chain, &why).await?;
                    return Err(diverged(callee, &why));
                }
                Taken::Withdrawn(why) => {
                    self.take_back(callee, chain, &why, Trigger::PrincipalChange).await?;
                    let what = format!("our consent is withdrawn at {id}: {why}");
                    return Err(Refusal::new("withdrawn", what).with("by", "callee".into()));
                }
                Taken::No { code, why } => {
                    self.take_back(callee, chain, &why, Trigger::PolicyBump).await?;
                    let what = format!("{id} refuses what we say: {why}");
                    return Err(Refusal::new("refused", what).with("callee_code", code.into()));
                }
            }
        }
        Ok(Some(told))
    }

    /// Takes back what the callee refuses; consent that rests on it has ended.
    async fn take_back(
        &self,
        callee: &Callee,
        chain: &mut Chain,
        why: &str,
        trigger: Trigger,
    ) -> Result<(), Refusal> {
        let (disk, pair) = (self.log.disk(), self.pair(callee));
        let (next, writes) = chain.without_outbox(disk, &pair, why)?;
        let next = next.ended(disk, &pair, trigger)?;
        self.keep(callee, chain, next, writes).await
    }

    pub(super) async fn diverge(
        &self,
        callee: &Callee,
        chain: &mut Chain,
        why: &str,
    ) -> Result<(), Refusal> {
        let mut next = chain.clone();
        next.kept.diverged = Some(why.to_owned());
        self.keep(callee, chain, next, Vec::new()).await
    }
}

/// Nothing goes on until a person has looked.
pub(super) fn diverged(callee: &Callee, why: &str) -> Refusal {
    let id = &callee.terms.callee;
    Refusal::new("diverged", format!("the copies of our chains here and at {id} differ: {why}"))
}
