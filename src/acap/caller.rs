//! Consent as the caller (Anumati §3.5, §4): a callee's policy is fetched, verified and understood, consent is
//! recorded, and each action is held against the claims that govern it before it is taken.
//!
//! What is said to a callee is on our disk first, and is sent again as it is until it is answered.

mod chain;
mod custody;
mod decide;
pub(crate) mod http;
mod news;
mod outbox;
mod policy;
mod reconcile;
mod refusal;
mod review;
mod sink;
mod way;

use super::AcapError;
use super::Issuer;
use super::book::{json, key};
use crate::a2a::log::{Failing, Log};
use crate::clock::Clock;
use crate::config::{Accept, ConsentTo, Decides, IntendedUse, NodeConfig, Review, read_token};
use crate::driver::DriverError;
use crate::peers::Dial;
use crate::store::{SideTable, SideWrite, Storage};
use axum::http::Method;
use chain::{Chain, Entry, Question};
use proto::consent::{
    AdherenceDecision, Anchored, CapabilityManifest, CheckError, ClaimId, ClaimParser, ContentHash,
    Context, EventId, Finding, Input, Now, OdrlParser, Pair, PrincipalId, Request,
    SIGNATURE_LEN_MAX, Stamp, Text, check_action, read,
};
use proto::id::AgentId;
use proto::time::Time;
use serde_json::{Value, json as value};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

pub use policy::{Pointer, PolicyError};
pub use refusal::Refusal;
pub use way::Way;

/// Records to one callee within [`RECONSENT_WINDOW`]; a further one is refused until it is over.
const RECONSENTS_MAX: usize = 8;
/// The time in which they count.
const RECONSENT_WINDOW: Duration = Duration::from_secs(60);
/// Times an action is begun anew when the callee says that its policy or our consent has changed.
const ATTEMPTS_MAX: usize = 3;
/// Bytes of a file with a capability manifest.
const MANIFEST_LEN_MAX: u64 = 1024 * 1024;

/// Signs what we say, as JWS over its signing input. Without one nothing is signed.
pub trait Signer: Send + Sync + fmt::Debug {
    /// The signature over these bytes.
    ///
    /// # Errors
    /// Why there is none: then nothing is said.
    fn sign(&self, input: &[u8]) -> Result<String, String>;
}

/// To whose policy we consent, and how.
#[derive(Debug)]
pub struct Terms {
    /// Whose.
    pub callee: AgentId,
    /// The way there.
    pub way: Way,
    /// What is consented to without a person.
    pub accept: Accept,
    /// What [`Accept::Listed`] takes.
    pub claims: Vec<ClaimId>,
    /// Who decides on an action.
    pub mode: Decides,
    /// On whose behalf we act.
    pub principal: Option<PrincipalId>,
    /// The hash of what we are.
    pub capability: Option<ContentHash>,
    /// What is known of every action.
    pub facts: Context,
    /// What we intend; claims against it are disputed.
    pub uses: Vec<IntendedUse>,
    /// How long a record holds.
    pub valid: Duration,
    /// How old the policy may be that an action is held against, as we last saw it.
    pub fresh: Duration,
    /// Which changes of a policy wait for a person.
    pub review: Review,
    /// How long she has to answer. Then what she was asked stays refused.
    pub answer: Duration,
}

/// Something that is about to be done with a callee.
#[derive(Clone, Debug, Default)]
pub struct Action {
    /// What is called, such as `a2a:book` or `mcp:files/read`.
    pub call: String,
    /// The claims that govern it; else those that the callee's card names for it, or all.
    pub claims: Option<Vec<ClaimId>>,
    /// What is known of it, beside and over the facts of [`Terms`].
    pub facts: BTreeMap<String, String>,
}

/// Why an action may be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The events that say so, each durable here and taken by the callee.
    pub events: Vec<EventId>,
    /// What to say beside the call.
    pub capability: Option<ContentHash>,
    /// The same.
    pub principal: Option<PrincipalId>,
}

struct Callee {
    terms: Terms,
    capability: Mutex<Option<ContentHash>>,
    chain: tokio::sync::Mutex<Chain>,
    seen: Mutex<Seen>,
    /// What a person is asked, as it is in the chain.
    asked: Mutex<Option<Question>>,
    /// Its policy has changed.
    news: tokio::sync::Notify,
}

/// What is known of the callee's policy since the start.
#[derive(Default)]
struct Seen {
    at: Option<Instant>,
    etag: Option<String>,
    /// When records were made.
    consents: VecDeque<Time>,
}

/// Consent of this node, or of a program that uses it as a library, to callees.
///
/// ```no_run
/// # use abhyasa::acap::{Action, Caller, Terms};
/// # async fn example(caller: std::sync::Arc<Caller>, callee: abhyasa::proto::id::AgentId) {
/// let action = Action { call: "a2a:book".into(), ..Action::default() };
/// match caller.act(&callee, action).await {
///     Ok(permit) => println!("may be called, by {:?}", permit.events),
///     Err(refusal) => println!("may not: {refusal}"),
/// }
/// # }
/// ```
pub struct Caller {
    me: AgentId,
    clock: Arc<dyn Clock>,
    log: Log,
    callees: BTreeMap<AgentId, Callee>,
    parser: Box<dyn ClaimParser + Send + Sync>,
    signer: Option<Arc<dyn Signer>>,
    custody: Option<Issuer>,
    /// There is something to ask a person.
    news: tokio::sync::Notify,
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Terms {
    /// Out of a configuration; `dial` is the way to peers.
    pub(crate) fn of(
        config: &NodeConfig,
        table: &ConsentTo,
        dial: &Dial,
    ) -> Result<Self, AcapError> {
        let wrong = |what: String| AcapError::Caller { callee: table.callee.clone(), what };
        let token = table.token_file.as_ref().map(|file| read_token(file)).transpose();
        let token = token.map_err(|error| wrong(error.to_string()))?;
        let peer = config.peers.iter().find(|peer| peer.id == table.callee);
        let way = match (&table.url, peer.and_then(|peer| peer.address.as_ref())) {
            (Some(url), _) => Way::http(url.clone(), token).map_err(wrong)?,
            (None, Some(address)) => {
                Way::http3(dial.clone(), table.callee.clone(), address.as_str().to_owned())
            }
            (None, None) => return Err(wrong("it has no url and no address".to_owned())),
        };
        let capability = table.manifest.as_deref().map(manifest).transpose().map_err(wrong)?;
        Ok(Self {
            callee: table.callee.clone(),
            way,
            accept: table.accept,
            claims: table.claims.iter().cloned().collect(),
            mode: table.mode,
            principal: table.principal.clone(),
            capability,
            facts: table.facts.clone(),
            uses: table.uses.clone(),
            valid: Duration::from_secs(table.valid_seconds),
            fresh: Duration::from_secs(table.poll_seconds),
            review: table.review,
            answer: Duration::from_secs(table.answer_seconds),
        })
    }
}

/// The hash of the capability manifest in a file.
fn manifest(file: &std::path::Path) -> Result<ContentHash, String> {
    let of = |error: &dyn fmt::Display| format!("{}: {error}", file.display());
    let len = std::fs::metadata(file).map_err(|error| of(&error))?.len();
    if len > MANIFEST_LEN_MAX {
        return Err(of(&format!("{len} bytes are over the limit of {MANIFEST_LEN_MAX}")));
    }
    let bytes = std::fs::read(file).map_err(|error| of(&error))?;
    let manifest: CapabilityManifest = read(&bytes).map_err(|error| of(&error))?;
    Ok(manifest.computed_hash())
}

impl Caller {
    /// Opens the chains of `me` in `store`. A store has one caller at a time. What a callee had not
    /// taken before is sent again as it was.
    ///
    /// # Errors
    /// [`AcapError`]: the chains cannot be read.
    pub fn open(
        me: AgentId,
        terms: Vec<Terms>,
        store: &dyn Storage,
        clock: Arc<dyn Clock>,
        signer: Option<Arc<dyn Signer>>,
    ) -> Result<Self, AcapError> {
        let (failed, _) = oneshot::channel();
        Self::open_in(me, terms, store, clock, signer, failed)
    }

    /// The same, in a node that is told when the chains cannot be kept any more.
    pub(crate) fn open_in(
        me: AgentId,
        terms: Vec<Terms>,
        store: &dyn Storage,
        clock: Arc<dyn Clock>,
        signer: Option<Arc<dyn Signer>>,
        failed: oneshot::Sender<DriverError>,
    ) -> Result<Self, AcapError> {
        let store = store.side().map_err(|error| AcapError::Store(error.to_string()))?;
        let store = store.ok_or(AcapError::NoPlace)?;
        let log = Log::start(store, Failing::of("our consent", DriverError::Acap, failed))?;
        let mut callees = BTreeMap::new();
        for terms in terms {
            let pair = Pair { caller: me.clone(), callee: terms.callee.clone() };
            let chain = Chain::recover(log.disk(), &pair)?;
            let asked = Mutex::new(chain.kept.question.clone());
            let chain = tokio::sync::Mutex::new(chain);
            let capability = Mutex::new(terms.capability.clone());
            let (seen, news) = (Mutex::default(), tokio::sync::Notify::new());
            callees.insert(
                terms.callee.clone(),
                Callee { terms, capability, chain, seen, asked, news },
            );
        }
        let (parser, custody, news) = (Box::new(OdrlParser), None, tokio::sync::Notify::new());
        Ok(Self { me, clock, log, callees, parser, signer, custody, news })
    }

    /// With another parser of claims.
    #[must_use]
    pub fn with_parser(self, parser: Box<dyn ClaimParser + Send + Sync>) -> Self {
        Self { parser, ..self }
    }

    /// Ends the thread that writes.
    pub async fn stop(&self) {
        self.log.stop().await;
    }

    /// Whether actions with `callee` are held against its policy here.
    #[must_use]
    pub fn covers(&self, callee: &AgentId) -> bool {
        self.callees.contains_key(callee)
    }

    /// Says what we are from now on; a change ends consent, which is given anew (CAPABILITY_CHANGE).
    pub fn set_capability(&self, callee: &AgentId, capability: Option<ContentHash>) {
        if let Some(callee) = self.callees.get(callee) {
            *callee.capability.lock().unwrap_or_else(PoisonError::into_inner) = capability;
        }
    }

    fn callee(&self, callee: &AgentId) -> Result<&Callee, Refusal> {
        let unknown =
            || Refusal::new("unknown_callee", format!("{callee} has no table in [[consent]]"));
        self.callees.get(callee).ok_or_else(unknown)
    }

    fn pair(&self, callee: &Callee) -> Pair {
        Pair { caller: self.me.clone(), callee: callee.terms.callee.clone() }
    }

    /// Writes, and puts `next` in place of what was once it is durable.
    async fn keep(
        &self,
        callee: &Callee,
        chain: &mut Chain,
        next: Chain,
        mut writes: Vec<SideWrite>,
    ) -> Result<(), Refusal> {
        writes.push(next.write(&callee.terms.callee));
        let place = self.log.place(writes).await.map_err(|_| Refusal::store())?;
        place.commit(|| {}).durable().await.map_err(|_| Refusal::store())?;
        *chain = next;
        let mut asked = callee.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.clone_from(&chain.kept.question);
        Ok(())
    }

    /// Holds an action against the callee's policy, with consent given or given anew first if that is
    /// needed. When this permits, every event is durable here and taken by the callee. It goes on to the
    /// end though nobody waits for it.
    ///
    /// # Errors
    /// [`Refusal`]: the action must not be taken; whether it may be another time it says.
    //= S1 S3 S4
    pub async fn act(
        self: &Arc<Self>,
        callee: &AgentId,
        action: Action,
    ) -> Result<Permit, Refusal> {
        let (here, callee) = (self.clone(), callee.clone());
        let done = tokio::spawn(async move { here.acted(&callee, action).await });
        done.await.unwrap_or_else(|_| Err(Refusal::store()))
    }

    /// Gives consent if there is none that holds.
    ///
    /// # Errors
    /// [`Refusal`]: there is none.
    pub async fn consent(self: &Arc<Self>, callee: &AgentId) -> Result<(), Refusal> {
        let (here, callee) = (self.clone(), callee.clone());
        let done = tokio::spawn(async move {
            let callee = here.callee(&callee)?;
            let mut chain = callee.chain.lock().await;
            here.ready(callee, &mut chain).await
        });
        done.await.unwrap_or_else(|_| Err(Refusal::store()))
    }

    async fn acted(&self, callee: &AgentId, action: Action) -> Result<Permit, Refusal> {
        let callee = self.callee(callee)?;
        let mut chain = callee.chain.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            self.ready(callee, &mut chain).await?;
            let next = self.evaluated(callee, &chain, &action)?;
            let (findings, next, writes) = next;
            let from = chain.kept.events;
            self.keep(callee, &mut chain, next, writes).await?;
            let Some(told) = self.flush(callee, &mut chain).await? else {
                continue; // consent has ended meanwhile
            };
            let permit = self.decided(callee, &chain, &action, &findings, from, &told)?;
            // It may have come meanwhile.
            self.check_withdrawn(callee, &mut chain).await?;
            if chain.machine.state().is_live() {
                return Ok(permit);
            }
        }
        let what =
            format!("consent to the policy of {} ended {ATTEMPTS_MAX} times", callee.terms.callee);
        Err(Refusal::new("unsettled", what).temporary())
    }

    /// The events that put an action on record, one for each claim that governs it.
    fn evaluated(
        &self,
        callee: &Callee,
        chain: &Chain,
        action: &Action,
    ) -> Result<(Vec<Finding>, Chain, Vec<SideWrite>), Refusal> {
        let (Some(line), Some(record)) = (&chain.line, &chain.head) else {
            return Err(Refusal::new("consent_required", "there is no consent record"));
        };
        let policy = &line.policy;
        let claims = self.governing(chain, action);
        let mut facts: BTreeMap<String, String> = callee
            .terms
            .facts
            .iter()
            .map(|(name, fact)| (name.to_owned(), fact.to_owned()))
            .collect();
        facts.extend(action.facts.clone());
        let context = Context::new(facts).map_err(|what| Refusal::new("facts", what))?;
        let call: Text<256> = Text::cut(&action.call);
        let mut next = chain.clone();
        let (mut findings, mut writes) = (Vec::new(), Vec::new());
        if claims.is_empty() {
            return Ok((findings, next, writes));
        }
        // A trail does not run backwards, though clocks may.
        let last =
            next.last.as_ref().map_or(record.accepted_at.time(), |last| last.timestamp.time());
        let at = self.clock.now().max(last).max(record.accepted_at.time());
        let request = Request { action: &call, asset: &call, context: &context, at };
        let check = check_action(policy, record, &request, &claims).map_err(|error| {
            let code = match &error {
                CheckError::Rejected { .. } => "rejected",
                CheckError::NoClaim { .. } => "no_claim",
                _ => "consent_required",
            };
            Refusal::new(code, error.to_string())
        })?;
        if next.kept.outbox.len() + check.findings.len() > outbox::OUTBOX_MAX {
            let what = format!(
                "{} documents wait for the callee, the limit is {}",
                next.kept.outbox.len(),
                outbox::OUTBOX_MAX
            );
            return Err(Refusal::new("full", what).temporary());
        }
        let record_id = record.record_id.clone();
        for finding in check.findings {
            let id = random()?;
            let first = next.kept.events == next.kept.first_event;
            let prev = next.last.as_ref().filter(|_| !first).map(|last| last.event_id.clone());
            let id = EventId::new(&id).map_err(|_| Refusal::store())?;
            let mut event = finding.event(id, prev, record_id.clone(), &request);
            let told = [
                (super::calls::CAPABILITY, self.capability(callee).map(|hash| hash.to_string())),
                (super::calls::PRINCIPAL, callee.terms.principal.as_ref().map(|id| id.to_string())),
            ];
            for (name, text) in told {
                if let Some(text) = text {
                    event.extra.0.insert(name.to_owned(), text.into());
                }
            }
            if self.signer.is_some() {
                event.agent_signature = Some(Text::cut(""));
                event.agent_signature = Some(self.signed(&event)?);
            }
            let capability = self.capability(callee);
            let now = self.now(callee, policy, capability.as_ref());
            let last = next.machine.latest(&event.claim_id);
            let step = next.machine.handle(&now, Input::Adhere(&event));
            self.tell_event(callee, &mut next, last, &event);
            let _ = step.map_err(|refused| Refusal::new("event", refused.to_string()))?;
            let number = next.kept.events;
            writes.push(SideWrite {
                table: SideTable::CallerEvent,
                key: key(&callee.terms.callee, number),
                value: Some(json(&event)),
            });
            next.kept.events += 1;
            next.kept.outbox.push_back(Entry::Event(number));
            next.last = Some(event);
            findings.push(finding);
        }
        Ok((findings, next, writes))
    }

    /// The claims that govern an action: those it names, else those of the card, else all.
    fn governing(&self, chain: &Chain, action: &Action) -> Vec<ClaimId> {
        let all = || {
            let claims = chain.line.iter().flat_map(|line| &line.policy.claims);
            claims.map(|claim| claim.claim_id.clone()).collect()
        };
        match (&action.claims, &chain.skills) {
            // To name none is not to be held against none.
            (Some(claims), _) if !claims.is_empty() => claims.clone(),
            (_, Some(skills)) if action.call.starts_with("a2a:") => {
                match action.call.strip_prefix("a2a:").and_then(|skill| skills.get(skill)) {
                    Some(claims) => claims.clone(),
                    None => all(),
                }
            }
            _ => all(),
        }
    }

    /// What the findings come to; in delegated mode the callee's decisions count where they are stricter.
    fn decided(
        &self,
        callee: &Callee,
        chain: &Chain,
        action: &Action,
        findings: &[Finding],
        from: u64,
        told: &BTreeMap<u64, Value>,
    ) -> Result<Permit, Refusal> {
        let (mut blocking, mut worst) = (Vec::new(), AdherenceDecision::Permit);
        let mut events = Vec::new();
        for (number, finding) in (from..).zip(findings) {
            let told = told.get(&number);
            let text = |name: &str| told.and_then(|told| told.get(name)).and_then(Value::as_str);
            if let Some(id) = text("event_id").and_then(|id| EventId::new(id).ok()) {
                events.push(id);
            }
            let theirs = match text("decision") {
                _ if callee.terms.mode == Decides::Local => AdherenceDecision::Permit,
                Some("permit") => AdherenceDecision::Permit,
                Some("escalate") => AdherenceDecision::Escalate,
                _ => AdherenceDecision::Deny, // what does not say that it permits does not
            };
            let decision = finding.decision.max(theirs);
            if decision == AdherenceDecision::Permit {
                continue;
            }
            let why = match text("reasoning") {
                Some(reasoning) if theirs > finding.decision => reasoning.to_owned(),
                _ => finding.reasoning.to_string(),
            };
            if decision == AdherenceDecision::Escalate || finding.notify {
                let (claim, call) = (&finding.claim_id, &action.call);
                tracing::warn!(callee = %callee.terms.callee, %claim, call, why, "a person has to look at a claim");
            }
            worst = worst.max(decision);
            blocking.push((finding.claim_id.clone(), why));
        }
        if worst == AdherenceDecision::Permit {
            let (capability, principal) = (self.capability(callee), callee.terms.principal.clone());
            return Ok(Permit { events, capability, principal });
        }
        let code = match worst {
            AdherenceDecision::Escalate => "escalated",
            _ => "denied",
        };
        let names = blocking.iter().map(|(claim, _)| claim.to_string()).collect::<Vec<_>>();
        let what = format!("{} is {code} by {}", action.call, names.join(", "));
        let ids: Vec<String> = events.iter().map(EventId::to_string).collect();
        let policy = chain.line.as_ref().map(|line| line.policy.version.to_string());
        let refusal = Refusal::new(code, what).claims(blocking);
        Err(refusal.with("event_ids", value!(ids)).with("policy_version", value!(policy)))
    }

    fn capability(&self, callee: &Callee) -> Option<ContentHash> {
        callee.capability.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn now<'a>(
        &self,
        callee: &'a Callee,
        policy: &'a proto::consent::PolicyDocument,
        capability: Option<&'a ContentHash>,
    ) -> Now<'a> {
        Now { at: self.clock.now(), policy, capability, principal: callee.terms.principal.as_ref() }
    }

    /// The signature of a document whose own is empty.
    fn signed(&self, document: &impl Anchored) -> Result<Text<SIGNATURE_LEN_MAX>, Refusal> {
        let signer = self.signer.as_ref().ok_or_else(Refusal::store)?;
        let failed = |what: String| Refusal::new("signature", what);
        let text = signer.sign(&document.signing_input()).map_err(failed)?;
        Text::new(&text).map_err(|error| failed(error.to_string()))
    }

    /// Looks at each policy as often as its table says, and consents anew where that is needed. For ever.
    pub(crate) async fn run(self: Arc<Self>, config: Arc<NodeConfig>) {
        let mut polls = tokio::task::JoinSet::new();
        for callee in self.callees.keys() {
            let (here, config, callee) = (self.clone(), config.clone(), callee.clone());
            polls.spawn({
                let (here, callee) = (here.clone(), callee.clone());
                async move { here.listen(&callee).await }
            });
            polls.spawn(async move { here.poll(&callee, &config).await });
        }
        let here = self.clone();
        polls.spawn(async move { here.tell_reviews(&config.escalation).await });
        while polls.join_next().await.is_some() {}
        std::future::pending().await
    }

    async fn poll(self: &Arc<Self>, callee: &AgentId, config: &NodeConfig) {
        let Some(table) = config.consent.iter().find(|table| table.callee == *callee) else {
            return;
        };
        let Ok(of) = self.callee(callee) else { return };
        loop {
            if let Some(file) = &table.manifest {
                match manifest(file) {
                    Ok(hash) => self.set_capability(callee, Some(hash)),
                    Err(why) => {
                        tracing::warn!(%callee, why, "what we are cannot be read; as before")
                    }
                }
            }
            match self.consent(callee).await {
                Ok(()) => {}
                Err(refusal) => tracing::info!(%callee, %refusal, "no consent"),
            }
            let over = tokio::time::sleep(Duration::from_secs(table.poll_seconds));
            tokio::pin!(over);
            // What is withdrawn meanwhile ends at once, and is given anew when that is lifted.
            let mut governed = self.custody.as_ref().map(|custody| custody.governed.clone());
            let stood = self.is_withdrawn(callee);
            while self.is_withdrawn(callee) == stood {
                tokio::select! {
                    () = &mut over => break,
                    () = of.news.notified() => break,
                    () = changed(&mut governed) => {}
                }
            }
        }
    }
}

/// Waits for a change of governed state.
async fn changed(governed: &mut Option<watch::Receiver<u64>>) {
    let Some(changes) = governed else { return std::future::pending().await };
    if changes.changed().await.is_err() {
        std::future::pending().await // the node is gone
    }
}

/// A random id.
fn random() -> Result<String, Refusal> {
    crate::a2a::random_id().map_err(|_| Refusal::store())
}

/// A time as documents have it.
fn stamp(at: Time) -> Stamp {
    Stamp::from(at)
}

/// The path of the policy at its callee.
const POLICY_PATH: &str = "/.well-known/usage-policy.json";
/// That of its card.
const CARD_PATH: &str = "/.well-known/agent-card.json";
const GET: Method = Method::GET;
