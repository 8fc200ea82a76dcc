use super::*;
use crate::acap::anchor::{Anchor as _, Anchorable, LogAnchor};
use crate::acap::jws::tests::{ed25519, p256};
use crate::acap::jws::{Signed, SigningKey};
use crate::acap::keys::{KeySet, SignaturePolicy};
use crate::acap::log::Log;
use crate::acap::log::tests::{T0, side};
use proto::consent::{AnchorStrategy, Anchored as _, read};
use proto::time::Time;
use serde_json::{Value, json};
use std::sync::Arc;

const CALLEE: &str = "did:web:callee.example";

fn document<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    read(value.to_string().as_bytes()).unwrap()
}

fn policy(version: &str, supersedes: Option<&str>) -> PolicyDocument {
    let claim = |id: &str, rule: &str, action: &str, constraint: Option<&str>| {
        json!({ "claim_id": id, "clause_ref": format!("§{id}"), "action": action, "asset": "pii:session_data",
            "rule_type": rule, "constraint": constraint, "effective_version": "1.0.0" })
    };
    let policy: PolicyDocument = document(&json!({
        "version": version, "document_uri": "https://callee.example/.well-known/usage-policy.json",
        "document_hash": "", "effective_date": "2026-02-27T00:00:00Z", "supersedes": supersedes,
        "claims": [
            claim("use", "permission", "odrl:use", None),
            claim("profile", "prohibition", "odrl:aggregate", Some("odrl:purpose is profiling")),
        ],
        "publisher": CALLEE, "natural_language_uri": "https://callee.example/bedingungen-für-alle",
    }));
    policy.sealed()
}

fn at(second: u64) -> String {
    Time::from_ms(T0 + second * 1_000).to_rfc3339()
}

fn record(
    id: &str,
    prev: Option<&str>,
    caller: &str,
    policy: &PolicyDocument,
    second: u64,
) -> ConsentRecord {
    let answer = |id: &str| json!({ "claim_id": id, "understood": true, "disputed": false });
    document(&json!({
        "record_id": id, "prev_record_id": prev, "caller_agent_id": caller, "callee_agent_id": CALLEE,
        "policy_version": policy.version, "policy_hash": policy.document_hash,
        "parsed_claims": [answer("use"), answer("profile")], "decision": "accepted",
        "accepted_at": at(second), "valid_until": "on_any_change" }))
}

fn event(
    id: &str,
    prev: Option<&str>,
    record: &str,
    claim: &str,
    decision: &str,
    second: u64,
) -> AdherenceEvent {
    document(&json!({
        "event_id": id, "prev_event_id": prev, "consent_record_id": record, "action": "read",
        "clause_evaluated": format!("§{claim}"), "claim_id": claim, "decision": decision,
        "reasoning": "Größe und Zweck passen.", "timestamp": at(second) }))
}

/// An export, and what it was made with.
struct Made {
    key: SigningKey,
    log: Arc<Log>,
    lines: Vec<Value>,
    _dir: tempfile::TempDir,
}

/// Two versions, two records under a head each, three events under one, and one leaf of others.
async fn made(key: SigningKey) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let log = Arc::new(Log::open(side(dir.path()), p256()).unwrap());
    let ledger = LogAnchor::new(log.clone(), Some("https://log.example/consent".to_owned()));
    let caller = key.public().to_did();
    let policies = [policy("1.0.0", None), policy("1.1.0", Some("1.0.0"))];
    let records = [
        record("r-1", None, &caller, &policies[0], 0),
        record("r-2", Some("r-1"), &caller, &policies[1], 20),
    ];
    let records = records.map(|one| one.signed(&key).unwrap());
    let events = [
        event("e-1", None, "r-1", "use", "permit", 10),
        event("e-2", Some("e-1"), "r-1", "profile", "deny", 11),
        event("e-3", Some("e-2"), "r-2", "use", "permit", 30),
    ];
    let events = events.map(|one| one.signed(&key).unwrap());
    let now = Time::from_ms(T0 + 60_000);
    let hashes = records.iter().map(|one| one.record_hash()).collect();
    let anchors = ledger.anchor(hashes, AnchorStrategy::PerRecord, now).await.unwrap();
    let records = records.into_iter().zip(anchors).map(|(one, anchor)| one.with_anchor(anchor));
    let hashes = events.iter().map(|one| one.record_hash()).collect();
    let anchors = ledger.anchor(hashes, AnchorStrategy::MerkleBatch, now).await.unwrap();
    let events = events.into_iter().zip(anchors).map(|(one, anchor)| one.with_anchor(anchor));
    log.append(&[ContentHash::of(b"of others")], now).unwrap();
    let (caller, callee) = (AgentId::new(&caller).unwrap(), AgentId::new(CALLEE).unwrap());
    let mut export = Exporter::new(Vec::new(), caller, callee, now).unwrap();
    policies.iter().for_each(|one| export.policy(one).unwrap());
    records.for_each(|one| export.record(&one).unwrap());
    events.for_each(|one| export.event(&one).unwrap());
    export.log(&log).unwrap();
    let text = String::from_utf8(export.end().unwrap()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    Made { key, log, lines, _dir: dir }
}

/// Lines as an export, whose end says what it should.
fn sealed(lines: &[Value]) -> Vec<u8> {
    let mut text: String =
        lines[..lines.len() - 1].iter().map(|line| format!("{line}\n")).collect();
    let digest = ContentHash::of(text.as_bytes());
    text += &json!({ "type": "end", "lines": lines.len() - 1, "digest": digest }).to_string();
    text.into_bytes()
}

fn options() -> VerifyOptions {
    VerifyOptions {
        signatures: SignaturePolicy::Required,
        anchors_required: true,
        ..VerifyOptions::at(Time::from_ms(T0 + 3_600_000))
    }
}

fn check(export: &[u8], options: &VerifyOptions) -> Report {
    verify(export, options).unwrap()
}

#[tokio::test]
async fn a_good_export_verifies_offline() {
    for key in [ed25519(), {
        let der = aws_lc_rs::signature::EcdsaKeyPair::generate_pkcs8(
            &aws_lc_rs::signature::ECDSA_P256_SHA256_FIXED_SIGNING,
            &aws_lc_rs::rand::SystemRandom::new(),
        );
        SigningKey::from_pkcs8(der.unwrap().as_ref(), None).unwrap()
    }] {
        let made = made(key).await;
        let named = VerifyOptions { logs: [made.log.id().to_string()].into(), ..options() };
        let report = check(&sealed(&made.lines), &named);
        assert_eq!(report.findings, []);
        let Report { policies, records, events, signed, anchored, .. } = report;
        assert_eq!((policies, records, events, signed, anchored), (2, 2, 3, 5, 5));
        assert!(report.good && report.notes.is_empty());
        let unnamed = check(&sealed(&made.lines), &options());
        assert!(unnamed.good && unnamed.notes[0].contains("taken at its word"), "{unnamed:?}");
    }
}

type Change = fn(&mut Vec<Value>);

/// Where documents stand in the export.
const POLICY_1: usize = 1;
const POLICY_2: usize = 2;
const RECORD_1: usize = 3;
const RECORD_2: usize = 4;
const EVENT_1: usize = 5;
const EVENT_2: usize = 6;
const EVENT_3: usize = 7;

fn doc(lines: &mut [Value], at: usize) -> &mut Value {
    &mut lines[at]["document"]
}

fn reseal(lines: &mut [Value], at: usize) {
    let sealed = document::<PolicyDocument>(doc(lines, at)).sealed();
    lines[at]["document"] = serde_json::to_value(sealed).unwrap();
}

fn kind(lines: &[Value], kind: &str) -> usize {
    lines.iter().position(|line| line["type"] == kind).unwrap()
}

/// What somebody may do to an export, its end made anew, and what is found: where, which rule, and what it says.
const CHANGES: &[(&str, Change, &str, Rule, &str)] = &[
    (
        "a policy is reworded",
        |l| doc(l, POLICY_1)["claims"][0]["action"] = json!("odrl:sell"),
        "policy 1.0.0",
        Rule::PolicyHash,
        "not that of its content",
    ),
    (
        "and hashed anew",
        |l| {
            doc(l, POLICY_1)["claims"][0]["action"] = json!("odrl:sell");
            reseal(l, POLICY_1)
        },
        "consent record r-1",
        Rule::Claims,
        "its policy_hash is sha256:",
    ),
    (
        "a claim changes its meaning",
        |l| {
            doc(l, POLICY_2)["claims"][0]["action"] = json!("odrl:sell");
            reseal(l, POLICY_2)
        },
        "policy 1.1.0",
        Rule::PolicyVersions,
        "claim use means something else",
    ),
    (
        "a version is left out",
        |l| drop(l.remove(POLICY_1)),
        "consent record r-1",
        Rule::Claims,
        "there is no document of version 1.0.0",
    ),
    (
        "versions change places",
        |l| l.swap(POLICY_1, POLICY_2),
        "policy 1.0.0",
        Rule::PolicyVersions,
        "not newer than 1.1.0",
    ),
    (
        "a record is left out",
        |l| drop(l.remove(RECORD_1)),
        "consent record r-2",
        Rule::Chain,
        "prev_record_id",
    ),
    (
        "records change places",
        |l| l.swap(RECORD_1, RECORD_2),
        "consent record r-1",
        Rule::Chain,
        "where Some",
    ),
    (
        "a record is there twice",
        |l| l.insert(RECORD_2, l[RECORD_1].clone()),
        "consent record r-1",
        Rule::Chain,
        "used before in the chain",
    ),
    (
        "a record's link is changed",
        |l| doc(l, RECORD_2)["prev_record_id"] = json!("r-0"),
        "consent record r-2",
        Rule::Chain,
        "prev_record_id",
    ),
    (
        "a record is dated back",
        |l| doc(l, RECORD_2)["accepted_at"] = json!("2026-03-04T08:00:00Z"),
        "consent record r-2",
        Rule::Chain,
        "not after",
    ),
    (
        "an answer is left out",
        |l| drop(doc(l, RECORD_1)["parsed_claims"].as_array_mut().unwrap().pop()),
        "consent record r-1",
        Rule::Claims,
        "missing profile",
    ),
    (
        "a decision is changed",
        |l| doc(l, RECORD_1)["decision"] = json!("rejected"),
        "consent record r-1",
        Rule::Signature,
        "not a signature of this document",
    ),
    (
        "of another caller",
        |l| doc(l, RECORD_1)["caller_agent_id"] = json!("did:web:other.example"),
        "consent record r-1",
        Rule::Chain,
        "not between the two",
    ),
    (
        "of another callee",
        |l| l[0]["callee"] = json!("did:web:other.example"),
        "consent record r-1",
        Rule::Chain,
        "not between the two",
    ),
    (
        "an unknown member is added",
        |l| doc(l, RECORD_1)["note"] = json!("agreed by phone"),
        "consent record r-1",
        Rule::Anchor,
        "and the document has",
    ),
    (
        "an event is left out",
        |l| drop(l.remove(EVENT_2)),
        "adherence event e-3",
        Rule::Trail,
        "prev_event_id",
    ),
    (
        "events change places",
        |l| l.swap(EVENT_1, EVENT_2),
        "adherence event e-2",
        Rule::Trail,
        "prev_event_id",
    ),
    (
        "a denial becomes a permit",
        |l| doc(l, EVENT_2)["decision"] = json!("permit"),
        "adherence event e-2",
        Rule::Signature,
        "not a signature of this document",
    ),
    (
        "a reason is reworded",
        |l| doc(l, EVENT_2)["reasoning"] = json!("Größe passt."),
        "adherence event e-2",
        Rule::Anchor,
        "and the document has",
    ),
    (
        "another clause is cited",
        |l| doc(l, EVENT_1)["clause_evaluated"] = json!("§9"),
        "adherence event e-1",
        Rule::Trail,
        "it cites §9",
    ),
    (
        "an event rests on another record",
        |l| doc(l, EVENT_1)["consent_record_id"] = json!("r-9"),
        "adherence event e-1",
        Rule::Trail,
        "S3",
    ),
    (
        "a signature is taken off",
        |l| drop(doc(l, EVENT_3).as_object_mut().unwrap().remove("agent_signature")),
        "adherence event e-3",
        Rule::Signature,
        "it has no signature, and needs one",
    ),
    (
        "a signature is of another document",
        |l| doc(l, EVENT_3)["agent_signature"] = doc(l, EVENT_2)["agent_signature"].clone(),
        "adherence event e-3",
        Rule::Signature,
        "not a signature of this document",
    ),
    (
        "a signature is by no algorithm",
        |l| doc(l, EVENT_3)["agent_signature"] = json!("eyJhbGciOiJub25lIn0.."),
        "adherence event e-3",
        Rule::Signature,
        "\"none\"",
    ),
    (
        "an anchor is taken off",
        |l| drop(doc(l, EVENT_3).as_object_mut().unwrap().remove("chain_anchor")),
        "adherence event e-3",
        Rule::Anchor,
        "it has no anchor, and needs one",
    ),
    (
        "an anchor is of another document",
        |l| doc(l, EVENT_3)["chain_anchor"] = doc(l, EVENT_2)["chain_anchor"].clone(),
        "adherence event e-3",
        Rule::Anchor,
        "and the document has",
    ),
    (
        "an anchor is dated back",
        |l| doc(l, EVENT_1)["chain_anchor"]["anchored_at"] = json!("2026-03-04T08:00:00Z"),
        "adherence event e-1",
        Rule::Anchor,
        "its anchored_at is",
    ),
    (
        "an anchor is moved",
        |l| doc(l, EVENT_1)["chain_anchor"]["block_number"] = json!(3),
        "adherence event e-1",
        Rule::Anchor,
        "does not lead from leaf 3",
    ),
    (
        "a path is changed",
        |l| doc(l, EVENT_1)["chain_anchor"]["inclusion_path"] = json!([]),
        "adherence event e-1",
        Rule::Anchor,
        "does not lead from leaf 2",
    ),
    (
        "a head in an anchor is changed",
        |l| doc(l, EVENT_1)["chain_anchor"]["tree_head"]["tree_size"] = json!(6),
        "adherence event e-1",
        Rule::Anchor,
        "its signature is not that of ct:rfc9162:",
    ),
    (
        "an anchor is of no log",
        |l| doc(l, EVENT_1)["chain_anchor"]["ledger_id"] = json!("ethereum:mainnet"),
        "adherence event e-1",
        Rule::Anchor,
        "ledger ethereum:mainnet is of a kind",
    ),
    (
        "a tree head is changed",
        |l| {
            let at = kind(l, "tree_head");
            l[at]["head"]["timestamp"] = json!("2026-03-04T08:00:00Z")
        },
        "tree head of 1 leaves",
        Rule::TreeHead,
        "its signature is not that of",
    ),
    (
        "a proof is changed",
        |l| {
            let at = kind(l, "consistency");
            l[at]["path"] = json!([])
        },
        "tree head of 2 leaves",
        Rule::Consistency,
        "it does not continue that of 1 leaves",
    ),
    (
        "a proof is left out",
        |l| drop(l.remove(kind(l, "consistency"))),
        "tree head of 2 leaves",
        Rule::Consistency,
        "nothing shows that it continues that of 1 leaves",
    ),
    (
        "a line is of no kind",
        |l| l[EVENT_1]["type"] = json!("evnet"),
        "the line",
        Rule::Format,
        "unknown variant",
    ),
    (
        "a document is none",
        |l| drop(doc(l, EVENT_1).as_object_mut().unwrap().remove("action")),
        "the line",
        Rule::Format,
        "missing field `action`",
    ),
    (
        "it does not say whose it is",
        |l| drop(l.remove(0)),
        "the export",
        Rule::Format,
        "does not say whose it is",
    ),
    (
        "another version",
        |l| l[0]["version"] = json!(2),
        "the export",
        Rule::Format,
        "another version",
    ),
];

#[tokio::test]
async fn whatever_is_tampered_with_is_found_and_named() {
    let made = made(ed25519()).await;
    let mut missed = Vec::new();
    for (name, change, what, rule, says) in CHANGES {
        let mut lines = made.lines.clone();
        change(&mut lines);
        let report = check(&sealed(&lines), &options());
        let found = report.findings.iter().any(|finding| {
            finding.what == *what && finding.rule == *rule && finding.says.contains(says)
        });
        if !found || report.good {
            let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
            missed.push(format!("{name}:\n  {}", findings.join("\n  ")));
        }
    }
    assert!(missed.is_empty(), "not found as they should be:\n{}", missed.join("\n"));
}

/// What is wrong with single values is told with both.
#[tokio::test]
async fn a_finding_has_line_expected_and_found() {
    let made = made(ed25519()).await;
    let mut lines = made.lines.clone();
    let before = document::<ConsentRecord>(doc(&mut lines, RECORD_2)).record_hash();
    doc(&mut lines, RECORD_2)["prev_record_id"] = json!("r-0");
    let after = document::<ConsentRecord>(doc(&mut lines, RECORD_2)).record_hash();
    let report = check(&sealed(&lines), &options());
    let values = |rule: Rule| {
        let finding = report.findings.iter().find(|finding| finding.rule == rule).unwrap();
        assert_eq!(finding.line, 5);
        (finding.expected.clone().unwrap(), finding.found.clone().unwrap())
    };
    assert_eq!(values(Rule::Chain), ("r-1".to_owned(), "r-0".to_owned()));
    assert_eq!(values(Rule::Anchor), (before.to_string(), after.to_string()));
    let text = report.findings[0].to_string();
    assert!(text.starts_with("line 5: consent record r-2: chain: its prev_record_id"), "{text}");
    assert!(text.ends_with("\n    expected r-1\n    found    r-0"), "{text}");
}

/// Caller and callee agree to say something else: every signature is good, and only the log tells.
#[tokio::test]
async fn two_who_rewrite_their_past_together_are_caught_by_the_log() {
    let made = made(ed25519()).await;
    let mut lines = made.lines.clone();
    let mut event: AdherenceEvent = document(doc(&mut lines, EVENT_2));
    let anchor = event.chain_anchor.take().unwrap();
    event.decision = proto::consent::AdherenceDecision::Escalate;
    let event = event.signed(&made.key).unwrap().with_anchor(anchor);
    lines[EVENT_2]["document"] = serde_json::to_value(event).unwrap();
    let report = check(&sealed(&lines), &options());
    let rules: Vec<Rule> = report.findings.iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, [Rule::Anchor], "{:#?}", report.findings);
}

/// A log that shows two trees of one size is caught by whoever has both heads.
#[tokio::test]
async fn a_log_with_two_faces_is_caught() {
    let made = made(ed25519()).await;
    let dir = tempfile::tempdir().unwrap();
    let der =
        aws_lc_rs::signature::Ed25519KeyPair::generate_pkcs8(&aws_lc_rs::rand::SystemRandom::new());
    let der = der.unwrap();
    let key = || SigningKey::from_pkcs8(der.as_ref(), None).unwrap();
    let faces = ["one", "two"].map(|face| {
        let log = Log::open(side(&dir.path().join(face)), key()).unwrap();
        log.append(&[ContentHash::of(face.as_bytes())], Time::from_ms(T0)).unwrap();
        json!({ "type": "tree_head", "head": log.head().unwrap() })
    });
    let mut lines = made.lines;
    for face in faces {
        lines.insert(lines.len() - 1, face);
    }
    let report = check(&sealed(&lines), &options());
    let [finding] = &report.findings[..] else { panic!("{report:#?}") };
    assert_eq!(
        (finding.rule, &*finding.says),
        (Rule::TreeHead, "its log has signed two roots for one size")
    );
}

#[tokio::test]
async fn what_is_cut_off_or_not_resealed_is_found() {
    let made = made(ed25519()).await;
    let whole = sealed(&made.lines);
    let says = |bytes: &[u8]| {
        let report = check(bytes, &options());
        let ends = report.findings.into_iter().filter(|finding| finding.rule == Rule::End);
        ends.map(|finding| finding.says).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(says(&whole), "");
    let text = String::from_utf8(whole.clone()).unwrap();
    let end = text.rfind("{\"digest").or_else(|| text.rfind("{\"type\":\"end\"")).unwrap();
    assert!(says(&whole[..end]).contains("cut off"));
    assert!(says(&whole[..end - 40]).contains("cut off"));
    let less: String = text
        .lines()
        .enumerate()
        .filter(|(at, _)| *at != 6)
        .map(|(_, l)| format!("{l}\n"))
        .collect();
    assert!(says(less.as_bytes()).contains("not as many lines"));
    let other = text.replacen("Größe", "Grösse", 1);
    assert!(says(other.as_bytes()).contains("not those it was made with"));
    let more = format!("{text}\n{{\"type\":\"end\",\"lines\":0,\"digest\":\"\"}}\n");
    assert!(says(more.as_bytes()).contains("lines follow its end"));
    assert!(says(b"").contains("cut off"));
}

#[tokio::test]
async fn keys_and_logs_are_believed_only_if_they_are_named() {
    let made = made(ed25519()).await;
    let stranger = p256();
    let other = format!("ct:rfc9162:{}", stranger.public().to_did());
    let named = VerifyOptions { logs: [other.clone()].into(), ..options() };
    let report = check(&sealed(&made.lines), &named);
    let finding = &report.findings[0];
    assert_eq!((finding.rule, finding.expected.as_ref()), (Rule::Anchor, Some(&other)));
    assert_eq!((report.count, report.anchored), (5, 0));
    // The caller's name has a key; another one that we are told goes before it.
    let caller = AgentId::new(&made.key.public().to_did()).unwrap();
    let keys = KeySet::from_did_key(&ed25519().public().to_did()).unwrap();
    let told = VerifyOptions { keys: [(caller, keys)].into(), ..options() };
    let report = check(&sealed(&made.lines), &told);
    assert_eq!((report.count, report.signed), (5, 0), "{:#?}", report.findings);
}

/// Who has a stolen key can write any date, and make a log of his own that says so too.
#[tokio::test]
async fn a_revoked_key_signs_only_what_a_believed_log_had_before() {
    let made = made(ed25519()).await;
    let key = bs58::decode(&made.key.public().to_multikey()[1..]).into_vec().unwrap();
    let x = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, &key[2..]);
    let keys = |revoked_at: u64| {
        let jwks = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": made.key.kid(),
            "revoked": { "revoked_at": revoked_at } }] });
        let caller = AgentId::new(&made.key.public().to_did()).unwrap();
        [(caller, KeySet::from_jwks(&jwks).unwrap())].into()
    };
    let logs = || [made.log.id().to_string()].into();
    let anchored = T0 / 1_000 + 60;
    let later = VerifyOptions { keys: keys(anchored + 1), logs: logs(), ..options() };
    assert_eq!(check(&sealed(&made.lines), &later).findings, []);
    let unnamed = VerifyOptions { keys: keys(anchored + 1), ..options() };
    let earlier = VerifyOptions { keys: keys(anchored), logs: logs(), ..options() };
    for options in [unnamed, earlier] {
        let report = check(&sealed(&made.lines), &options);
        assert_eq!((report.count, report.findings[0].rule), (5, Rule::Signature));
        assert!(report.findings[0].says.contains("was revoked at"), "{report:?}");
    }
}

#[test]
fn bd1_lines_that_are_too_long_are_passed_over_and_told() {
    let long = [&vec![b'x'; LINE_LEN_MAX + 1][..], b"\n{\"type\":\"policy\"}\n"].concat();
    let report = check(&long, &options());
    assert!(report.findings[0].says.contains("over the limit of 1049600 bytes"), "{report:?}");
    assert_eq!(report.findings[1].line, 2, "and the next line is read");
    let many = "x\n".repeat(FINDINGS_MAX * 3);
    let report = check(many.as_bytes(), &options());
    assert_eq!(report.findings.len(), FINDINGS_MAX);
    assert_eq!(report.count, FINDINGS_MAX as u64 * 3 + 2, "and the end, and the first line");
}
