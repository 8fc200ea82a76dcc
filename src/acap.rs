//! Consent at the node (Anumati; on the wire ACAP), as the callee: its policy, the chains of its callers,
//! and whether a call may pass.
//!
//! One caller's chains change one at a time: a change is computed on a copy, and the copy takes its place
//! once it is durable, before anybody is answered. The gate decides by what is in memory.

pub mod anchor;
mod anchoring;
pub mod audit;
mod book;
pub(crate) mod caller;
mod calls;
mod denial;
pub(crate) mod evidence;
mod export;
pub(crate) mod http;
pub mod jws;
pub mod keys;
mod line;
mod live;
pub mod log;
pub(crate) mod operator;
mod page;
mod probe;
mod push;
mod restrict;

use crate::a2a::log::{Failing, Log};
use crate::clock::Clock;
use crate::config::{AcapMode, NodeConfig};
use crate::driver::DriverError;
use crate::gate::{Authorization, Why, authorization};
use crate::store::{SideStore, SideTable, SideWrite, Storage};
use book::{Book, id_key, json, key, number};
use line::Line;
use proto::consent::{
    AdherenceDecision, AdherenceEvent, Append, ConsentDecision, ConsentRecord, ContentHash, Input,
    Now, Pair, PrincipalId, Refused, Request, Stamp, Triggers, UsagePolicyRef, canonical,
    check_action, read,
};
use proto::id::{AgentId, GovernedKey, Kind};
use proto::record::Role;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore, oneshot, watch};

pub use caller::{Action, Caller, Permit, Pointer, PolicyError, Refusal, Signer, Terms, Way};
pub(crate) use calls::Told;
pub(crate) use denial::Denial;
pub use line::AcapError;
pub(crate) use push::Policies;
pub(crate) use restrict::Issuer;

/// What signs for the caller's side, if there is a key.
pub(crate) fn signer(config: &NodeConfig) -> Result<Option<Arc<dyn Signer>>, AcapError> {
    Ok(evidence::signing_key(config)?.map(|key| key as Arc<dyn Signer>))
}

/// Whose revocation withdraws consent, on the papers' wire.
const CONSENT: &str = "anumati.consent";
/// How far the clock of a caller may be ahead of ours.
const CLOCK_AHEAD_MAX: Duration = Duration::from_secs(300);
/// Callers that are looked at between two pauses, when governed state has changed.
const LOOKS_AT_ONCE: usize = 64;
/// Pause between two looks while it changes all the time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Bytes of the entries on one page of an audit.
const PAGE_LEN_MAX: usize = 1024 * 1024;

/// Where a document with an id went, and what it was.
#[derive(Serialize, Deserialize)]
struct Known {
    number: u64,
    hash: ContentHash,
}

/// Consent of callers to this node's policy.
pub(crate) struct Acap {
    config: Arc<NodeConfig>,
    line: RwLock<Arc<Line>>,
    /// Who puts the next version, one at a time.
    putting: Mutex<()>,
    /// How many were put since the start.
    versions: watch::Sender<u64>,
    scope: GovernedKey,
    kinds: Vec<Kind>,
    principals: BTreeMap<AgentId, AgentId>,
    clock: Arc<dyn Clock>,
    cells: Arc<dyn Storage>,
    log: Log,
    books: RwLock<BTreeMap<AgentId, Arc<Mutex<Book>>>>,
    checks: Option<evidence::Checks>,
    anchoring: Option<anchoring::Anchoring>,
    streams: push::Streams,
    exports: Arc<Semaphore>,
}

impl fmt::Debug for Acap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acap").field("policy", &self.line().policy.version).finish_non_exhaustive()
    }
}

impl Acap {
    /// Reads the policy and the chains. `failed` is told when they cannot be kept any more.
    pub(crate) async fn open(
        config: Arc<NodeConfig>,
        file: &Path,
        clock: Arc<dyn Clock>,
        cells: Arc<dyn Storage>,
        store: SideStore,
        failed: oneshot::Sender<DriverError>,
    ) -> Result<Self, AcapError> {
        let failing = Failing::of("chains of consent", DriverError::Acap, failed);
        let anchoring = anchoring::Anchoring::new(&config, store.clone())?;
        let log = Log::start(store, failing)?;
        let line = Line::open(file, &log).await?;
        live::check_claims(&config, &line.policy)?;
        let name = |text: &str| proto::store::ReadError(format!("acap.scope: {text}").into());
        let scope =
            GovernedKey::new(&config.acap.scope).map_err(|error| name(&error.to_string()))?;
        let kinds = vec![Kind::new(CONSENT).map_err(|error| name(&error.to_string()))?];
        let books = book::recover(&log, &line.policy.publisher, always(&config))?;
        let books = books.into_iter().map(|(caller, book)| (caller, Arc::new(Mutex::new(book))));
        Ok(Self {
            principals: config
                .peers
                .iter()
                .map(|peer| (peer.id.clone(), peer.principal.clone()))
                .collect(),
            books: RwLock::new(books.collect()),
            checks: evidence::Checks::new(&config)?,
            anchoring,
            streams: push::Streams::default(),
            exports: Arc::new(Semaphore::new(export::EXPORTS_MAX)),
            config,
            line: RwLock::new(Arc::new(line)),
            putting: Mutex::new(()),
            versions: watch::Sender::new(0),
            scope,
            kinds,
            clock,
            cells,
            log,
        })
    }

    /// Ends the thread that writes.
    pub(crate) async fn stop(&self) {
        self.log.stop().await;
    }

    fn pair(&self, caller: &AgentId) -> Pair {
        Pair { caller: caller.clone(), callee: self.line().policy.publisher.clone() }
    }

    /// The pointer to the policy, for those who ask at `base`.
    pub(crate) fn reference(&self, base: &str) -> UsagePolicyRef {
        let endpoint = proto::consent::Text::new(&format!("{base}acap/consent")).ok();
        let line = self.line();
        let mut reference = UsagePolicyRef::to(&line.policy, endpoint);
        let extra = &mut reference.extra.0;
        extra.insert("adherence_endpoint".into(), format!("{base}acap/adherence").into());
        extra.insert("adherence_mode".into(), self.config.acap.mode.as_str().into());
        // Whom a record has to name as its callee.
        extra.insert("publisher".into(), line.policy.publisher.as_str().into());
        reference
    }

    /// The same in the words of MCP (Anumati §4.2).
    pub(crate) fn capability(&self) -> Value {
        let line = self.line();
        let policy = &line.policy;
        json!({
            "version": policy.version, "documentUri": policy.document_uri,
            "documentHash": policy.document_hash, "acceptanceRequired": true,
        })
    }

    /// The chains of a caller, for one who may change them.
    async fn book(&self, caller: &AgentId) -> Result<OwnedMutexGuard<Book>, Denial> {
        let found = {
            let books = self.books.read().unwrap_or_else(PoisonError::into_inner);
            books.get(caller).cloned()
        };
        let book = match found {
            Some(book) => book,
            None => {
                let mut books = self.books.write().unwrap_or_else(PoisonError::into_inner);
                let max = self.config.acap.callers_max;
                if books.len() >= max && !books.contains_key(caller) {
                    let what = format!(
                        "the consent of {max} callers is kept, the limit (acap.callers_max)"
                    );
                    return Err(Denial::new(
                        axum::http::StatusCode::TOO_MANY_REQUESTS,
                        "full",
                        what,
                    ));
                }
                let new = || Book::new(self.pair(caller), always(&self.config));
                books.entry(caller.clone()).or_insert_with(|| Arc::new(Mutex::new(new()))).clone()
            }
        };
        Ok(book.lock_owned().await)
    }

    /// Writes, and puts `next` in place of what was once it is durable. Who goes away meanwhile changes
    /// nothing: the book stays locked until then.
    //= PS-1
    async fn keep(
        &self,
        caller: &AgentId,
        mut book: OwnedMutexGuard<Book>,
        next: Book,
        mut writes: Vec<SideWrite>,
    ) -> Result<(), Denial> {
        writes.push(next.write(caller));
        let place = self.log.place(writes).await?;
        let ticket = place.commit(move || *book = next);
        Ok(ticket.durable().await?)
    }

    /// Notes what the caller says of itself, and whether consent has ended by now.
    fn look(&self, caller: &AgentId, next: &mut Book, told: &Told) -> Result<(), Denial> {
        if let Some(capability) = &told.capability {
            next.kept.capability = Some(capability.clone());
        }
        if let Some(principal) = &told.principal {
            next.kept.principal = Some(principal.clone());
        }
        let kept = next.kept.clone();
        if let Some(why) = next.machine.look(&self.now(&self.line(), &kept)) {
            next.kept.ended = Some(why);
        }
        if next.machine.state().is_live()
            && let Some(obligation) = self.ended_by(caller, &next.kept)?
        {
            next.end(self.pair(caller), always(&self.config), obligation);
        }
        Ok(())
    }

    fn now<'a>(&self, line: &'a Line, kept: &'a book::Kept) -> Now<'a> {
        Now {
            at: self.clock.now(),
            policy: &line.policy,
            capability: kept.capability.as_ref(),
            principal: kept.principal.as_ref(),
        }
    }

    /// The obligation by which consent of `caller` is withdrawn, as the governed state has it: that of the
    /// principal it acts for, or ours. Where it cannot be read, nothing is known to hold.
    pub(crate) fn withdrawn(&self, caller: &AgentId) -> Result<Option<String>, Denial> {
        let principal = self.principals.get(caller).unwrap_or(caller);
        for (role, agent) in [(Role::Receiver, principal), (Role::Principal, caller)] {
            match authorization(&*self.cells, role, agent, &self.kinds, &self.scope) {
                Ok(Authorization { why: Why::Withheld, cell }) => {
                    let by = cell.map(|cell| cell.obligation_id.to_string());
                    return Ok(Some(by.unwrap_or_default()));
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::error!(%error, "whether consent is withdrawn cannot be read");
                    return Err(Denial::unavailable());
                }
            }
        }
        Ok(None)
    }

    /// Ends the consent that obligations withdraw, for ever: what is granted anew later does not bring back
    /// a record that was withdrawn.
    pub(crate) async fn run(self: Arc<Self>, mut changes: watch::Receiver<u64>) {
        changes.mark_changed(); // what was withdrawn before the start
        while changes.changed().await.is_ok() {
            let callers: Vec<AgentId> = {
                let books = self.books.read().unwrap_or_else(PoisonError::into_inner);
                books.keys().cloned().collect()
            };
            for (at, caller) in callers.into_iter().enumerate() {
                if at % LOOKS_AT_ONCE == LOOKS_AT_ONCE - 1 {
                    tokio::task::yield_now().await; // the reads block
                }
                let Ok(book) = self.book(&caller).await else { continue };
                if !book.machine.state().is_live()
                    || !matches!(self.ended_by(&caller, &book.kept), Ok(Some(_)))
                {
                    continue;
                }
                let mut next = book.clone();
                let kept = match self.look(&caller, &mut next, &Told::default()) {
                    Ok(()) => self.keep(&caller, book, next, Vec::new()).await,
                    Err(denial) => Err(denial),
                };
                if let Err(denial) = kept {
                    tracing::error!(%caller, %denial, "consent that was withdrawn is not ended");
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        std::future::pending().await // the node is gone
    }

    /// What a document with that id was, if there was one; else what it is.
    fn known(
        &self,
        caller: &AgentId,
        kind: &str,
        id: &str,
        document: &impl Serialize,
    ) -> Result<Result<u64, ContentHash>, Denial> {
        let bytes = canonical(document).map_err(|error| {
            Denial::new(axum::http::StatusCode::BAD_REQUEST, "malformed", error.to_string())
        })?;
        let hash = ContentHash::of(&bytes);
        match self.log.disk().get(SideTable::AcapId, &id_key(caller, kind, id))? {
            None => Ok(Err(hash)),
            Some(value) => {
                let known: Known = self.log.disk().parse(&value)?;
                if known.hash != hash {
                    let what =
                        format!("the id {id} is that of another document, number {}", known.number);
                    return Err(Denial::conflict("id_taken", what));
                }
                Ok(Ok(known.number))
            }
        }
    }

    fn id_write(caller: &AgentId, kind: &str, id: &str, known: &Known) -> SideWrite {
        let (table, key) = (SideTable::AcapId, id_key(caller, kind, id));
        SideWrite { table, key, value: Some(json(known)) }
    }

    fn stored<T: DeserializeOwned>(
        &self,
        table: SideTable,
        caller: &AgentId,
        at: u64,
    ) -> Result<T, Denial> {
        let value = self.log.disk().get(table, &key(caller, at))?;
        Ok(self.log.disk().parse(&value.ok_or_else(Denial::unavailable)?)?)
    }

    /// Takes a consent record of `peer` (Anumati §3.2, §4.1 step 3). Told twice it is answered alike.
    pub(crate) async fn consent(&self, peer: &AgentId, bytes: &[u8]) -> Result<Value, Denial> {
        let record: ConsentRecord = read(bytes)?;
        if record.caller_agent_id != *peer {
            let (id, caller) = (&record.record_id, &record.caller_agent_id);
            let what = format!("consent record {id} is {caller}'s to give, not {peer}'s");
            return Err(Denial::forbidden("caller", what));
        }
        let id = record.record_id.to_string();
        let answer = |number: u64| {
            json!({
                "status": "recorded", "record_id": record.record_id, "number": number,
                "decision": record.decision, "policy_version": record.policy_version,
            })
        };
        let signed = self.check_signature(&record, peer).await;
        let book = self.book(peer).await?;
        let hash = match self.known(peer, "r", &id, &record)? {
            Ok(number) => return Ok(answer(number)),
            Err(hash) => hash,
        };
        self.check_time("accepted_at", &record.accepted_at)?;
        signed?;
        let max = self.config.acap.records_max;
        if book.kept.records - book.kept.renewed.records >= max {
            let what = format!(
                "the chain of {peer} has {max} records, the limit (acap.records_max); it goes on when the operator says so"
            );
            return Err(Denial::new(axum::http::StatusCode::TOO_MANY_REQUESTS, "full", what));
        }
        let mut next = book.clone();
        let len = self.check_len(peer, &book, bytes.len())?;
        let told = Told {
            capability: record.caller_capability_hash.clone(),
            principal: record.principal_id.clone(),
        };
        self.check_principal(peer, &told)?;
        let hook = push::hook_of(&record.extra, self.config.a2a.push_to_private)?;
        let rejects = record.decision == ConsentDecision::Rejected;
        if !rejects && let Some(obligation) = self.withdrawn(peer)? {
            return Err(calls::withdrawn(peer, &obligation));
        }
        // Of an old version: said first, whatever else is the matter.
        let line = self.line();
        let policy = &line.policy;
        if record.policy_version != policy.version {
            let (given, version) = (record.policy_version.clone(), policy.version.clone());
            let fault = proto::consent::RecordFault::Version { given, version };
            return Err(self.hint(Refused::Record { record: record.record_id, fault }.into()));
        }
        self.look(peer, &mut next, &told)?;
        let kept = next.kept.clone();
        let step = next.machine.handle(&self.now(&self.line(), &kept), Input::Consent(&record));
        let number = match step.map(|step| step.append) {
            Ok(Some(Append::Record { number, .. })) => number,
            Ok(_) => return Err(Denial::unavailable()),
            Err(refused) => {
                // That it ended is so, whatever becomes of the record.
                if next.kept != book.kept {
                    self.keep(peer, book, next, Vec::new()).await?;
                }
                return Err(self.hint(refused.into()));
            }
        };
        (next.kept.records, next.kept.len) = (number + 1, len);
        next.kept.first_event = next.kept.events;
        next.kept.first_attempt = next.kept.attempts;
        next.kept.ended = None;
        next.kept.withdrawn = None;
        next.kept.used.clear();
        (next.kept.hook, next.kept.hook_told) = (hook, Some(record.policy_version.clone()));
        next.kept.decided = Some(self.decided(peer)?);
        self.hear_record(peer, &mut next.kept, &record)?;
        next.head = Some(record.clone());
        let write = SideWrite {
            table: SideTable::AcapRecord,
            key: key(peer, number),
            value: Some(json(&record)),
        };
        let writes = vec![write, Self::id_write(peer, "r", &id, &Known { number, hash })];
        self.keep(peer, book, next, writes).await?;
        self.anchoring.iter().for_each(anchoring::Anchoring::wake);
        Ok(answer(number))
    }

    /// Refuses what will have been decided: what follows it could not be told before.
    fn check_time(&self, what: &str, stamp: &Stamp) -> Result<(), Denial> {
        if stamp.time() <= self.clock.now().after(CLOCK_AHEAD_MAX) {
            return Ok(());
        }
        let ahead = CLOCK_AHEAD_MAX.as_secs();
        let what = format!("{what} is {stamp}, more than {ahead} s ahead of this node's clock");
        Err(Denial::new(axum::http::StatusCode::UNPROCESSABLE_ENTITY, "time", what))
    }

    /// Says which policy holds.
    fn hint(&self, denial: Denial) -> Denial {
        let line = self.line();
        let policy = &line.policy;
        denial
            .with("policy_version", policy.version.to_string())
            .with("policy_hash", policy.document_hash.to_string())
            .with("document_uri", policy.document_uri.to_string())
    }

    /// Takes an adherence event of `peer` (Anumati §4.1 step 4). In delegated mode the event that is kept
    /// has our decision where it is stricter, and the caller's as it came beside it.
    pub(crate) async fn adherence(&self, peer: &AgentId, bytes: &[u8]) -> Result<Value, Denial> {
        let given: AdherenceEvent = read(bytes)?;
        let id = given.event_id.to_string();
        let signed = self.check_signature(&given, peer).await;
        let book = self.book(peer).await?;
        let hash = match self.known(peer, "e", &id, &given)? {
            Ok(number) => {
                let event = self.stored(SideTable::AcapEvent, peer, number)?;
                return Ok(self.recorded(number, &event));
            }
            Err(hash) => hash,
        };
        self.check_time("timestamp", &given.timestamp)?;
        signed?;
        let max = self.config.acap.events_max;
        if book.kept.events - book.kept.first_event >= max {
            let what = format!(
                "the trail under the consent record has {max} events, the limit (acap.events_max); it goes on with a new record"
            );
            return Err(Denial::new(axum::http::StatusCode::TOO_MANY_REQUESTS, "full", what));
        }
        let mut next = book.clone();
        let len = self.check_len(peer, &book, bytes.len())?;
        let told = Told::of(&given.extra.0);
        self.check_principal(peer, &told)?;
        self.look(peer, &mut next, &told)?;
        if let Some(obligation) = next.kept.withdrawn.clone() {
            if next.kept != book.kept {
                self.keep(peer, book, next, Vec::new()).await?;
            }
            return Err(calls::withdrawn(peer, &obligation));
        }
        let event = match (self.config.acap.mode, next.anchor()) {
            (AcapMode::Delegated, Some(record)) => self.evaluated(record, &given),
            _ => given,
        };
        let kept = next.kept.clone();
        let step = next.machine.handle(&self.now(&self.line(), &kept), Input::Adhere(&event));
        let number = match step.map(|step| step.append) {
            Ok(Some(Append::Event { number, .. })) => number,
            Ok(_) => return Err(Denial::unavailable()),
            Err(refused) => {
                if next.kept != book.kept {
                    self.keep(peer, book, next, Vec::new()).await?;
                }
                return Err(self.hint(refused.into()));
            }
        };
        (next.kept.events, next.kept.len) = (number + 1, len);
        self.hear_event(peer, &mut next.kept, &event)?;
        next.kept.used.remove(&event.claim_id);
        next.last = Some(event.clone());
        let write = SideWrite {
            table: SideTable::AcapEvent,
            key: key(peer, number),
            value: Some(json(&event)),
        };
        let writes = vec![write, Self::id_write(peer, "e", &id, &Known { number, hash })];
        self.keep(peer, book, next, writes).await?;
        self.anchoring.iter().for_each(anchoring::Anchoring::wake);
        Ok(self.recorded(number, &event))
    }

    fn recorded(&self, number: u64, event: &AdherenceEvent) -> Value {
        let status = match self.config.acap.mode {
            AcapMode::Local => "recorded",
            AcapMode::Delegated => "evaluated",
        };
        json!({
            "status": status, "event_id": event.event_id, "number": number,
            "claim_id": event.claim_id, "decision": event.decision, "reasoning": event.reasoning,
        })
    }

    /// The event, with our decision if that is stricter than the caller's.
    fn evaluated(&self, record: &ConsentRecord, given: &AdherenceEvent) -> AdherenceEvent {
        let line = self.line();
        let policy = &line.policy;
        let Some(claim) = policy.claim(&given.claim_id) else { return given.clone() };
        let nothing = proto::consent::Context::default();
        let request = Request {
            action: &given.action,
            asset: &claim.asset,
            context: given.context.as_ref().unwrap_or(&nothing),
            at: self.clock.now(),
        };
        let governing = [claim.claim_id.clone()];
        let (decision, reasoning) = match check_action(policy, record, &request, &governing) {
            Ok(check) => (check.governing.decision, check.governing.reasoning),
            Err(error) => (AdherenceDecision::Deny, proto::consent::Text::cut(&error.to_string())),
        };
        if decision <= given.decision {
            return given.clone();
        }
        let mut event = given.clone();
        event.agent_signature = None; // it is about what the caller said, which stands beside it
        event.chain_anchor = None;
        event.decision = decision;
        event.reasoning = reasoning;
        let members = &mut event.extra.0;
        members.clear();
        members.insert("evaluated_by".into(), policy.publisher.as_str().into());
        members.insert("event_given".into(), serde_json::to_value(given).unwrap_or_default());
        event
    }

    /// Where the chains of `caller` are, and their entries from `after` on, the oldest first.
    pub(crate) async fn audit(
        &self,
        caller: &AgentId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Value, Denial> {
        let known = {
            let books = self.books.read().unwrap_or_else(PoisonError::into_inner);
            books.get(caller).cloned()
        };
        let Some(book) = known else {
            let what = format!("{caller} has no chain of consent here");
            return Err(Denial::new(axum::http::StatusCode::NOT_FOUND, "not_found", what));
        };
        let mut now = book.lock().await.clone();
        self.look(caller, &mut now, &Told::default())?; // as it stands now, on a copy
        let (kept, state) = (now.kept, now.machine.state());
        let lists = [
            ("record", SideTable::AcapRecord, kept.records),
            ("event", SideTable::AcapEvent, kept.events),
            ("attempt", SideTable::AcapAttempt, kept.attempts),
        ];
        let bad = || {
            let what = "after is not a `next` of this list";
            Denial::new(axum::http::StatusCode::BAD_REQUEST, "malformed", what)
        };
        let (mut list, mut from) = match after {
            None => (0, 0),
            Some(text) => {
                let (name, at) = text.split_once('-').ok_or_else(bad)?;
                let list = lists.iter().position(|(known, ..)| *known == name).ok_or_else(bad)?;
                (list, at.parse::<u64>().map_err(|_| bad())?)
            }
        };
        let (mut items, mut bytes) = (Vec::new(), 0);
        while let Some((name, table, end)) = lists.get(list) {
            if from >= *end {
                (list, from) = (list + 1, 0);
                continue;
            }
            if items.len() >= limit || bytes >= PAGE_LEN_MAX {
                break;
            }
            let (begin, to) = (key(caller, from), key(caller, *end));
            let left = limit - items.len();
            let disk = self.log.disk();
            let page = disk.range_within(*table, &begin, Some(&to), left, PAGE_LEN_MAX - bytes)?;
            if page.is_empty() {
                return Err(Denial::unavailable());
            }
            for (at, value) in page {
                from = number(&at) + 1;
                bytes += value.len();
                let document: Value = disk.parse(&value)?;
                items.push(json!({ "kind": name, "number": number(&at), *name: document }));
            }
        }
        let next = lists.get(list).map(|(name, ..)| format!("{name}-{from}"));
        Ok(json!({
            "caller_agent_id": caller, "callee_agent_id": self.line().policy.publisher,
            "state": state, "ended": kept.ended, "withdrawn_by": kept.withdrawn,
            "policy_version": self.line().policy.version,
            "records": kept.records, "events": kept.events, "attempts": kept.attempts,
            "items": items, "next": next,
        }))
    }
}

/// Which changes end a record whatever it says.
fn always(config: &NodeConfig) -> Triggers {
    if config.acap.strict { Triggers::ALL } else { Triggers::NONE }
}

/// Who the caller is, by what it says beside a call or in an event.
impl Told {
    fn of(members: &BTreeMap<String, Value>) -> Self {
        let text = |name: &str| members.get(name).and_then(Value::as_str);
        Self::new(text(calls::CAPABILITY), text(calls::PRINCIPAL))
    }

    fn new(capability: Option<&str>, principal: Option<&str>) -> Self {
        Self {
            capability: capability.and_then(|text| ContentHash::new(text).ok()),
            principal: principal.and_then(|text| PrincipalId::new(text).ok()),
        }
    }
}
