//! The caller's agent: plain HTTP, and the rules of the core on its own side.

use anyhow::{Context as _, bail, ensure};
use proto::consent::{
    AdherenceDecision, AdherenceEvent, ClaimId, ClaimParser as _, ConsentDecision, ConsentRecord,
    Context, EXTENSION_URI, EventId, Intent, List, OdrlParser, PolicyDocument, RecordId, Request,
    Stamp, Text, UsagePolicyRef, Use, ValidUntil, check_action, read, validate_chain,
    validate_trail,
};
use proto::id::AgentId;
use proto::time::Time;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

/// How long one call may take.
const CALL_WITHIN: Duration = Duration::from_secs(10);
const ACTION: &str = "odrl:aggregate";
const ASSET: &str = "pii:session_data";

/// A refusal of the callee's gate, as it says it.
pub(super) struct Refusal(pub(super) Value);

pub(super) struct Agent {
    http: reqwest::Client,
    id: AgentId,
    base: String,
    token: String,
    skill: String,
    /// Policies consented to, the oldest first.
    policies: Vec<PolicyDocument>,
    record: Option<ConsentRecord>,
    last: Option<EventId>,
    adherence: String,
    governing: Vec<ClaimId>,
}

fn random_id() -> anyhow::Result<String> {
    crate::a2a::random_id().map_err(|_| anyhow::anyhow!("no random bytes for an id"))
}

fn now() -> Time {
    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Time::default().after(unix)
}

fn context(members: &[(&str, &str)]) -> anyhow::Result<Context> {
    let owned = members.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Context::new(owned.collect()).map_err(anyhow::Error::msg)
}

/// What the agent is about to do, for its parser of claims.
fn intent() -> anyhow::Result<Intent> {
    let one = Use {
        action: Text::new(ACTION)?,
        asset: Text::new(ASSET)?,
        context: context(&[("purpose", "statistical_analysis")])?,
    };
    let text = "Produce a marketing insights report for the current quarter. It will not be used for behavioural \
                profiling of individual customers.";
    let uses = List::new(vec![one]).map_err(anyhow::Error::msg)?;
    Ok(Intent { text: Text::new(text)?, uses })
}

impl Agent {
    pub(super) fn new(id: AgentId, base: &str, token: &str, skill: &str) -> anyhow::Result<Self> {
        Ok(Self {
            http: reqwest::Client::builder().no_proxy().timeout(CALL_WITHIN).build()?,
            id,
            base: base.to_owned(),
            token: token.to_owned(),
            skill: skill.to_owned(),
            policies: Vec::new(),
            record: None,
            last: None,
            adherence: String::new(),
            governing: Vec::new(),
        })
    }

    async fn get(&self, url: &str) -> anyhow::Result<Vec<u8>> {
        let answer = self.http.get(url).bearer_auth(&self.token).send().await?;
        let status = answer.status();
        let bytes = answer.bytes().await?;
        ensure!(status.is_success(), "{url}: {status}: {}", String::from_utf8_lossy(&bytes));
        Ok(bytes.to_vec())
    }

    async fn post(&self, url: &str, body: &impl Serialize) -> anyhow::Result<Value> {
        let answer = self.http.post(url).bearer_auth(&self.token).json(body).send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        ensure!(status.is_success(), "{url}: {status}: {text}");
        serde_json::from_str(&text).with_context(|| format!("{url}: {text}"))
    }

    /// The policy and the last record.
    pub(super) fn bound(&self) -> anyhow::Result<(&PolicyDocument, &ConsentRecord)> {
        self.policies.last().zip(self.record.as_ref()).context("nothing was consented to")
    }

    /// The handshake (Anumati §4.1): card, policy, an answer to each claim, and the record.
    pub(super) async fn bind(&mut self) -> anyhow::Result<&ConsentRecord> {
        let card = self.get(&format!("{}/.well-known/agent-card.json", self.base)).await?;
        let card: Value = serde_json::from_slice(&card)?;
        let extensions = card.pointer("/capabilities/extensions").and_then(Value::as_array);
        let is_acap = |extension: &&Value| {
            extension.get("uri").and_then(Value::as_str) == Some(EXTENSION_URI)
        };
        let found = extensions.into_iter().flatten().find(is_acap).and_then(|it| it.get("params"));
        let reference = serde_json::to_vec(found.context("the card has no usage policy")?)?;
        let reference: UsagePolicyRef = read(&reference)?;
        let policy: PolicyDocument = read(&self.get(reference.document_uri.as_str()).await?)?;
        reference.points_to(&policy)?;
        let intent = intent()?;
        let answers: Vec<_> =
            policy.claims.iter().map(|claim| OdrlParser.parse(claim, &intent)).collect();
        let decision = if answers.iter().any(|answer| !answer.understood) {
            ConsentDecision::Rejected
        } else if answers.iter().any(|answer| answer.disputed) {
            ConsentDecision::Conditional
        } else {
            ConsentDecision::Accepted
        };
        let record = ConsentRecord {
            record_id: RecordId::new(&random_id()?)?,
            prev_record_id: self.record.as_ref().map(|record| record.record_id.clone()),
            caller_agent_id: self.id.clone(),
            callee_agent_id: policy.publisher.clone(),
            policy_version: policy.version.clone(),
            policy_hash: policy.document_hash.clone(),
            parsed_claims: List::new(answers).map_err(anyhow::Error::msg)?,
            decision,
            accepted_at: Stamp::from(now()),
            valid_until: ValidUntil::OnVersionBump,
            caller_signature: None,
            principal_id: None,
            caller_capability_hash: None,
            reconsent_trigger: None,
            chain_anchor: None,
            extra: Default::default(),
        };
        let endpoint = reference.acceptance_endpoint.as_ref().context("no acceptance_endpoint")?;
        self.post(endpoint.as_str(), &record).await?;
        let adherence = reference.extra.0.get("adherence_endpoint").and_then(Value::as_str);
        self.adherence = adherence.context("no adherence_endpoint")?.to_owned();
        // Which of them the skill is under it hears from the gate.
        self.governing.clear();
        self.policies.push(policy);
        self.last = None;
        Ok(self.record.insert(record))
    }

    /// Holds an action against what governs the skill, and puts each finding on record (Anumati §3.3).
    pub(super) async fn check(
        &mut self,
        members: &[(&str, &str)],
    ) -> anyhow::Result<(AdherenceDecision, Vec<AdherenceEvent>)> {
        if self.governing.is_empty() {
            self.ask().await?;
        }
        let (policy, record) = self.bound()?;
        let (action, asset, context) = (Text::new(ACTION)?, Text::new(ASSET)?, context(members)?);
        let request = Request { action: &action, asset: &asset, context: &context, at: now() };
        let check = check_action(policy, record, &request, &self.governing)?;
        let (mut events, mut last) = (Vec::new(), self.last.clone());
        for finding in &check.findings {
            let id = EventId::new(&random_id()?)?;
            let event = finding.event(id.clone(), last, record.record_id.clone(), &request);
            self.post(&self.adherence, &event).await?;
            last = Some(id);
            events.push(event);
        }
        self.last = last;
        Ok((check.governing.decision, events))
    }

    /// Asks the gate which claims govern the skill: it names those in the way.
    async fn ask(&mut self) -> anyhow::Result<()> {
        let Err(Refusal(refusal)) = self.call("Which claims govern this?").await? else {
            bail!("a skill runs without an adherence event");
        };
        ensure!(!self.governing.is_empty(), "the gate names no claims: {refusal}");
        Ok(())
    }

    /// Claims that are new since what was consented to last.
    pub(super) async fn changes(&self) -> anyhow::Result<Vec<String>> {
        let (policy, _) = self.bound()?;
        let url = format!("{}?since_version={}", policy.document_uri, policy.version);
        let changes: Value = serde_json::from_slice(&self.get(&url).await?)?;
        let added = changes.get("added").and_then(Value::as_array).context("no list of claims")?;
        Ok(added.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    /// Calls the skill over A2A; the refusal of the gate is no error here, and tells which claims govern the skill.
    pub(super) async fn call(&mut self, text: &str) -> anyhow::Result<Result<String, Refusal>> {
        let message = json!({
            "messageId": random_id()?, "role": "ROLE_USER", "parts": [{ "text": text }],
            "metadata": { "abhyasa.skill": self.skill },
        });
        let body = json!({
            "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": { "message": message },
        });
        let request = self.http.post(format!("{}/a2a", self.base)).header("a2a-version", "1.0");
        let answer = request.bearer_auth(&self.token).json(&body).send().await?;
        let answer: Value = serde_json::from_str(&answer.text().await?)?;
        if let Some(refusal) = answer.pointer("/error/data/0/metadata/acap").and_then(Value::as_str)
        {
            let refusal: Value = serde_json::from_str(refusal)?;
            if self.governing.is_empty() {
                let named = refusal.get("blocking_claims").and_then(Value::as_array);
                let ids = named.into_iter().flatten();
                let ids = ids.filter_map(|claim| claim.get("claim_id")?.as_str());
                self.governing = ids.map(ClaimId::new).collect::<Result<_, _>>()?;
            }
            return Ok(Err(Refusal(refusal)));
        }
        let state = answer.pointer("/result/task/status/state").and_then(Value::as_str);
        ensure!(state == Some("TASK_STATE_COMPLETED"), "the call failed: {answer}");
        let said = answer.pointer("/result/task/artifacts/0/parts/0/text").and_then(Value::as_str);
        Ok(Ok(said.unwrap_or_default().to_owned()))
    }

    /// The callee's page of what it has of this agent.
    pub(super) async fn page(&self) -> anyhow::Result<Vec<u8>> {
        self.get(&format!("{}/acap/page/{}?limit=1000", self.base, self.id)).await
    }

    /// Holds the entries of an audit against the rules, and against what this agent has said.
    pub(super) fn prove(&self, items: &[Value]) -> anyhow::Result<()> {
        fn of<T: serde::de::DeserializeOwned>(items: &[Value], at: &str) -> anyhow::Result<Vec<T>> {
            let found = items.iter().filter_map(|item| item.pointer(at));
            found.map(|value| Ok(read(&serde_json::to_vec(value)?)?)).collect()
        }
        let records: Vec<ConsentRecord> = of(items, "/record")?;
        let policy = |version: &_| self.policies.iter().find(|policy| policy.version == *version);
        validate_chain(&records, policy)?;
        validate_trail(&of::<AdherenceEvent>(items, "/event")?, &records)?;
        validate_trail(&of::<AdherenceEvent>(items, "/attempt/event")?, &records)?;
        ensure!(records.last() == self.record.as_ref(), "the last record is another");
        Ok(())
    }
}
