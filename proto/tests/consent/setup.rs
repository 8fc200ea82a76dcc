//! Documents to test with.

use abhyasa_proto::consent::{
    AdherenceDecision, AdherenceEvent, ClaimId, ConsentDecision, ConsentRecord, Context,
    PolicyDocument, read,
};
use abhyasa_proto::id::AgentId;
use abhyasa_proto::time::Time;
use serde_json::{Value, json};

pub const CALLER: &str = "did:web:caller.example";
pub const CALLEE: &str = "did:web:callee.example";

pub const POLICY: &str = include_str!("samples/usage_policy.json");
pub const RECORD: &str = include_str!("samples/consent_record.json");
pub const EVENT: &str = include_str!("samples/adherence_event.json");
pub const CARD: &str = include_str!("samples/callee_agent.json");
pub const MANIFEST: &str = include_str!("samples/manifest.json");

pub fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

pub fn parsed<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    read(&serde_json::to_vec(value).unwrap()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

pub fn at(second: u64) -> Time {
    Time::parse_rfc3339("2026-03-04T09:00:00Z").unwrap().after_ms(second * 1000)
}

pub fn claim(id: &str) -> ClaimId {
    ClaimId::new(id).unwrap()
}

pub fn agent(id: &str) -> AgentId {
    AgentId::new(id).unwrap()
}

pub fn context(members: &[(&str, &str)]) -> Context {
    let members = members.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Context::new(members.collect()).unwrap()
}

/// A claim: id, rule, action, asset, constraint, and the version that introduced it.
pub fn claim_json(
    id: &str,
    rule: &str,
    action: &str,
    constraint: Option<&str>,
    since: &str,
) -> Value {
    json!({
        "claim_id": id, "clause_ref": format!("§{id}"), "action": action, "asset": "pii:session_data",
        "rule_type": rule, "constraint": constraint, "effective_version": since,
    })
}

pub fn policy_json(version: &str, supersedes: Option<&str>, claims: &[Value]) -> Value {
    json!({
        "version": version, "document_uri": "https://callee.example/.well-known/usage-policy.json",
        "document_hash": "", "effective_date": "2026-02-27T00:00:00Z", "supersedes": supersedes,
        "claims": claims, "publisher": CALLEE, "natural_language_uri": "https://callee.example/terms",
    })
}

/// A policy with a permission `use` and a prohibition `profile`.
pub fn policy(version: &str, supersedes: Option<&str>) -> PolicyDocument {
    let claims = [
        claim_json("use", "permission", "odrl:use", None, "1.0.0"),
        claim_json(
            "profile",
            "prohibition",
            "odrl:aggregate",
            Some("odrl:purpose is profiling"),
            "1.0.0",
        ),
    ];
    parsed::<PolicyDocument>(&policy_json(version, supersedes, &claims)).sealed()
}

/// A record about all claims of `policy`, of which it disputes those named.
pub fn record(
    id: &str,
    prev: Option<&str>,
    policy: &PolicyDocument,
    decision: ConsentDecision,
    disputed: &[&str],
    second: u64,
) -> ConsentRecord {
    let claims: Vec<Value> = policy
        .claims
        .iter()
        .map(|claim| {
            let disputes = disputed.contains(&claim.claim_id.as_str());
            let reason = disputes.then_some("it is against what we do");
            json!({"claim_id": claim.claim_id, "understood": true, "disputed": disputes, "dispute_reason": reason})
        })
        .collect();
    parsed(&json!({
        "record_id": id, "prev_record_id": prev, "caller_agent_id": CALLER, "callee_agent_id": CALLEE,
        "policy_version": policy.version, "policy_hash": policy.document_hash, "parsed_claims": claims,
        "decision": decision, "accepted_at": at(second).to_rfc3339(), "valid_until": "on_any_change",
    }))
}

pub fn event(
    id: &str,
    prev: Option<&str>,
    under: &str,
    claim: &str,
    decision: AdherenceDecision,
    second: u64,
) -> AdherenceEvent {
    parsed(&json!({
        "event_id": id, "prev_event_id": prev, "consent_record_id": under, "action": "analyse",
        "clause_evaluated": format!("§{claim}"), "claim_id": claim, "decision": decision,
        "reasoning": "held against the clause", "timestamp": at(second).to_rfc3339(),
    }))
}
