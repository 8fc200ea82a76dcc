//! Our copy of the chains held against the callee's, entry by entry.

use super::super::book::key;
use super::chain::{Chain, Entry};
use super::{Callee, Caller, GET, Refusal};
use crate::store::SideTable;
use proto::id::AgentId;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Differences that are told. With more no further entry is read: they are no copies of each other.
const DIFFERENCES_MAX: usize = 100;
/// Pages of an audit that are read.
const PAGES_MAX: usize = 10_000;
/// How long that may take in all.
const RECONCILE_TIME_MAX: Duration = Duration::from_secs(600);

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
        self.differences.push(json!({ "what": what, "kind": kind, "number": number, "id": id }));
    }

    const fn is_full(&self) -> bool {
        self.count >= DIFFERENCES_MAX
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
            here.reconciled(callee).await
        });
        done.await.unwrap_or_else(|_| Err(Refusal::store()))
    }

    async fn reconciled(&self, callee: &Callee) -> Result<Value, Refusal> {
        let id = &callee.terms.callee;
        // Meanwhile the chain goes on: no action waits for a callee that takes its time.
        let compared = tokio::time::timeout(RECONCILE_TIME_MAX, self.compare(callee)).await;
        let found = compared.unwrap_or_else(|_| {
            let seconds = RECONCILE_TIME_MAX.as_secs();
            let what = format!("the copy at {id} is not read within {seconds} s, the limit");
            Err(Refusal::new("unreached", what).temporary())
        })?;
        let chain = &mut *callee.chain.lock().await;
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

    async fn compare(&self, callee: &Callee) -> Result<Found, Refusal> {
        let (id, disk) = (&callee.terms.callee, self.log.disk());
        let away = |why: String| {
            Refusal::new("unreached", format!("the copy at {id} cannot be read: {why}")).temporary()
        };
        // What the callee has of ours is here before it is there.
        let ours = async || {
            let chain = callee.chain.lock().await;
            [chain.kept.records, chain.kept.events]
        };
        let (mut found, mut after, mut known) = (Found::default(), None::<String>, ours().await);
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
            after = page.get("next").and_then(Value::as_str).map(str::to_owned);
            if after.is_some() && items.is_none_or(Vec::is_empty) {
                return Err(away("a page has no entries, and says that more follow".to_owned()));
            }
            for item in items.into_iter().flatten() {
                if found.is_full() {
                    return Ok(found);
                }
                let kind = item.get("kind").and_then(Value::as_str).unwrap_or_default();
                let (table, slot, name) = match kind {
                    "record" => (SideTable::CallerRecord, 0, "record_id"),
                    "event" => (SideTable::CallerEvent, 1, "event_id"),
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
                let here = |known: [u64; 2]| known.get(slot).is_some_and(|count| number < *count);
                if !here(known) {
                    known = ours().await;
                }
                if !here(known) {
                    found.tell("missing here", kind, number, their_id);
                    continue;
                }
                let ours = disk.get(table, &key(id, number))?.ok_or_else(Refusal::store)?;
                let ours: Value = disk.parse(&ours)?;
                if !same(&ours, theirs) {
                    found.tell("differs", kind, number, their_id);
                }
            }
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
