//! Our copy of the chains held against the callee's, entry by entry.

use super::super::book::key;
use super::chain::{Chain, Entry};
use super::{Callee, Caller, GET, Refusal};
use crate::store::SideTable;
use proto::id::AgentId;
use serde_json::{Value, json};
use std::sync::Arc;

/// Differences told in full; of further ones it is said how many.
const DIFFERENCES_MAX: usize = 100;
/// Pages of an audit that are read.
const PAGES_MAX: usize = 100_000;

/// What was found.
#[derive(Debug, Default)]
struct Found {
    differences: Vec<Value>,
    count: usize,
    /// How many records and events the callee has.
    theirs: [u64; 2],
}

impl Found {
    fn tell(&mut self, what: &str, kind: &str, number: u64, id: Option<&str>) {
        self.count += 1;
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences
                .push(json!({ "what": what, "kind": kind, "number": number, "id": id }));
        }
    }
}

/// An entry as we have it, and as the callee has it; where the callee decided, it has ours beside its own.
fn same(ours: &Value, theirs: &Value) -> bool {
    ours == theirs || theirs.get("event_given") == Some(ours)
}

impl Caller {
    /// Holds our copy against that of `callee`: what it lacks is sent again, and what differs or is not
    /// ours stops all further consent with it until a person has looked. What was found, as JSON.
    ///
    /// # Errors
    /// [`Refusal`]: the callee's copy cannot be read.
    pub async fn reconcile(self: &Arc<Self>, callee: &AgentId) -> Result<Value, Refusal> {
        let (here, callee) = (self.clone(), callee.clone());
        let done = tokio::spawn(async move {
            let callee = here.callee(&callee)?;
            let mut chain = callee.chain.lock().await;
            here.reconciled(callee, &mut chain).await
        });
        done.await.unwrap_or_else(|_| Err(Refusal::store()))
    }

    async fn reconciled(&self, callee: &Callee, chain: &mut Chain) -> Result<Value, Refusal> {
        let id = &callee.terms.callee;
        let found = self.compare(callee, chain).await?;
        let [records, events] = found.theirs;
        let (mut resent, mut why) = (0, None);
        if found.count > 0 {
            let what = format!("{} entries differ", found.count);
            tracing::error!(callee = %id, what, "the callee's copy of our chains is another than ours");
            self.diverge(callee, chain, &what).await?;
            why = Some(what);
        } else {
            let mut next = chain.clone();
            next.kept.diverged = None;
            next.kept.outbox = self.lacking(callee, chain, records, events)?.into();
            let before = next.kept.outbox.len();
            self.keep(callee, chain, next, Vec::new()).await?;
            if before > 0 {
                // An entry that is refused is told by the flush itself.
                let _ = self.flush(callee, chain).await?;
                resent = before - chain.kept.outbox.len();
            }
        }
        Ok(json!({
            "callee": id, "records": chain.kept.records, "events": chain.kept.events,
            "records_there": records, "events_there": events, "resent": resent,
            "differences": found.differences, "differences_count": found.count, "diverged": why,
        }))
    }

    async fn compare(&self, callee: &Callee, chain: &Chain) -> Result<Found, Refusal> {
        let (id, disk) = (&callee.terms.callee, self.log.disk());
        let away = |why: String| {
            Refusal::new("unreached", format!("the copy at {id} cannot be read: {why}")).temporary()
        };
        let (mut found, mut after) = (Found::default(), None::<String>);
        for _ in 0..PAGES_MAX {
            let query = after.map_or_else(String::new, |after| format!("&after={after}"));
            let path = format!("/acap/audit/{}?limit=1000{query}", self.me);
            let answer = callee.terms.way.exchange(GET, &path, None, Vec::new()).await;
            let answer = answer.map_err(away)?;
            if answer.status == 404 {
                return Ok(found); // it has nothing of ours
            }
            if answer.status != 200 {
                return Err(away(format!("it answers {}", answer.status)));
            }
            let page: Value =
                serde_json::from_slice(&answer.body).map_err(|error| away(error.to_string()))?;
            let items = page.get("items").and_then(Value::as_array);
            for item in items.into_iter().flatten() {
                let kind = item.get("kind").and_then(Value::as_str).unwrap_or_default();
                let (table, known, slot, name) = match kind {
                    "record" => (SideTable::CallerRecord, chain.kept.records, 0, "record_id"),
                    "event" => (SideTable::CallerEvent, chain.kept.events, 1, "event_id"),
                    _ => return Ok(found), // calls at its gate are its own to tell
                };
                let (Some(number), Some(theirs)) =
                    (item.get("number").and_then(Value::as_u64), item.get(kind))
                else {
                    return Err(away("an entry has no number or no document".to_owned()));
                };
                let their_id = theirs.get(name).and_then(Value::as_str);
                if let Some(expected) = found.theirs.get_mut(slot) {
                    if number != *expected {
                        return Err(away(format!("{kind} {number} comes where {expected} should")));
                    }
                    *expected += 1;
                }
                if number >= known {
                    found.tell("missing here", kind, number, their_id);
                    continue;
                }
                let ours = disk.get(table, &key(id, number))?.ok_or_else(Refusal::store)?;
                let ours: Value = disk.parse(&ours)?;
                if !same(&ours, theirs) {
                    found.tell("differs", kind, number, their_id);
                }
            }
            after = page.get("next").and_then(Value::as_str).map(str::to_owned);
            if after.is_none() {
                return Ok(found);
            }
        }
        Err(away(format!("it has more than {PAGES_MAX} pages")))
    }

    /// What the callee lacks, in the order in which it was said.
    fn lacking(
        &self,
        callee: &Callee,
        chain: &Chain,
        records: u64,
        events: u64,
    ) -> Result<Vec<Entry>, Refusal> {
        let disk = self.log.disk();
        let id = &callee.terms.callee;
        let mut entries = Vec::new();
        let mut event = events;
        let get = |table, number| -> Result<Value, Refusal> {
            let value = disk.get(table, &key(id, number))?.ok_or_else(Refusal::store)?;
            Ok(disk.parse(&value)?)
        };
        // Events that rest on the last record there come before the next record.
        for record in records.saturating_sub(1)..chain.kept.records {
            if record >= records {
                entries.push(Entry::Record(record));
            }
            let head = get(SideTable::CallerRecord, record)?;
            while event < chain.kept.events && entries.len() < super::outbox::OUTBOX_MAX {
                let one = get(SideTable::CallerEvent, event)?;
                if one.get("consent_record_id") != head.get("record_id") {
                    break;
                }
                entries.push(Entry::Event(event));
                event += 1;
            }
            if entries.len() >= super::outbox::OUTBOX_MAX {
                break; // the rest with the next reconciliation
            }
        }
        Ok(entries)
    }
}
