//! Documents of every type, as the golden vectors hold them.

use abhyasa_proto::ack::{AckRun, AckStatus, CustodyAck, Reason, RefRange};
use abhyasa_proto::batch::{Audience, Batch, Content, Hello, Refusal, Sealed, Statement};
use abhyasa_proto::cbor::Writer;
use abhyasa_proto::fanout::{GroupId, Template};
use abhyasa_proto::frame::{Frame, HelloLimits, RefuseCode, VERSION};
use abhyasa_proto::id::{AgentId, GovernedKey, Kind, ObligationId};
use abhyasa_proto::limits::{DATAGRAM_LEN_MAX, FRAME_LEN_MAX};
use abhyasa_proto::obligation::Obligation;
use abhyasa_proto::payload::Payload;
use abhyasa_proto::safe_action::{SafeAction, SafeEffect};
use abhyasa_proto::time::Time;
use abhyasa_proto::track::{Epoch, GroupName, Namespace, Part};
use abhyasa_proto::weight::Weight;
use bytes::Bytes;
use serde_json::{Value, json};

/// File name, rule of the schema, what it shows, bytes.
pub struct Sample(pub &'static str, pub &'static str, pub &'static str, pub Bytes);

const TARGET: &str = "spiffe://example.org/agent/b";

pub fn at(seconds: u64) -> Time {
    Time::parse_rfc3339("2026-11-30T12:00:00Z").unwrap().after_ms(seconds * 1000)
}

pub fn id(text: &str) -> ObligationId {
    ObligationId::new(text).unwrap()
}

pub fn agent(text: &str) -> AgentId {
    AgentId::new(text).unwrap()
}

fn key(text: &str) -> GovernedKey {
    GovernedKey::new(text).unwrap()
}

pub fn payload(json: &Value) -> Payload {
    Payload::from_json(json.as_object().unwrap()).unwrap()
}

pub fn obligation(name: &str, kind: &str, body: &Value) -> Obligation {
    Obligation {
        id: id(name),
        kind: Kind::new(kind).unwrap(),
        target: agent(TARGET),
        payload: payload(body),
        deadline_seconds: 3600,
        max_retries: 16,
        created_at: at(0),
        sequence: None,
    }
}

pub fn consent_revoke() -> Obligation {
    let body = json!({"decision": "revoke", "scope": "calendar.write"});
    Obligation { sequence: Some(7), ..obligation("consent-0001", "anumati.consent", &body) }
}

pub fn phala_corrective() -> Obligation {
    let body = json!({"weight_delta": -0.25, "weight_key": "routing.agent-b.preference"});
    obligation("belief-0001", "phala.belief_update", &body)
}

pub fn oauth_revoke() -> Obligation {
    let body = json!({"action": "revoke", "token_id": "tok-9", "client_id": "client-3"});
    obligation("token-0001", "oauth.token", &body)
}

pub fn ack(name: &str, status: AckStatus, seconds: u64, reason: Option<Reason>) -> CustodyAck {
    CustodyAck {
        obligation_id: id(name),
        target: agent(TARGET),
        status,
        acked_at: at(seconds),
        reason,
    }
}

fn run(status: AckStatus, seconds: u64, reason: Option<Reason>, refs: &[(u64, u64)]) -> Frame {
    Frame::AckRuns(vec![AckRun { status, acked_at: at(seconds), reason, refs: ranges(refs) }])
}

pub fn ranges(refs: &[(u64, u64)]) -> Vec<RefRange> {
    refs.iter().map(|&(first, count)| RefRange { first, count }).collect()
}

fn refuse(code: RefuseCode, retry_after_ms: u64, text: &str) -> Bytes {
    let refs = ranges(&[(4096, 64)]);
    Frame::Refuse { refs, code, retry_after_ms, text: Reason::new(text) }.encode()
}

/// Every CBOR type a payload may hold, byte string included.
fn every_value() -> Obligation {
    let mut w = Writer::default();
    w.map(9);
    w.text("f").float(-0.125);
    w.text("i").int(i64::MIN);
    w.text("u").uint(u64::MAX);
    w.text("nil").null();
    w.text("bool").bool(true);
    w.text("text").text("ü — \u{1F980}");
    w.text("whole").float(3.0);
    w.text("bytes!").bytes(&[0, 255]);
    w.text("nested").array(2).map(1).text("a").array(0).map(0);
    let payload = Payload::decode(w.into_bytes()).unwrap();
    Obligation { payload, ..obligation("values-0001", "example.values", &json!({})) }
}

fn down_weight() -> SafeAction {
    let magnitude = Weight::from_f64(0.25).unwrap();
    let weight_key = key("routing.agent-b.preference");
    SafeAction {
        obligation_id: id("belief-0001"),
        target: agent(TARGET),
        effect: SafeEffect::DownWeight { weight_key, magnitude },
        rationale: Reason::new("retries exhausted"),
        sequence: None,
    }
}

pub fn fail_closed() -> SafeAction {
    SafeAction {
        obligation_id: id("consent-0001"),
        target: agent(TARGET),
        effect: SafeEffect::FailClosed { scope: key("calendar.write") },
        rationale: Reason::new("deadline passed: agent-b is unreachable"),
        sequence: Some(7),
    }
}

pub fn all() -> Vec<Sample> {
    let mut all = documents();
    all.extend(outcomes());
    all.extend(exchanges());
    all.extend(batches());
    all
}

/// What goes on MOQT tracks. The signature is a text in its place: it is made and read elsewhere.
fn batches() -> Vec<Sample> {
    let items = vec![consent_revoke().encode(), phala_corrective().encode()];
    let b = Audience::agent(agent(TARGET)).unwrap();
    let from = |part| {
        let (publisher, epoch) =
            (agent("spiffe://example.org/agent/a"), Epoch { boot: 3, session: 0 });
        Namespace { publisher, epoch, part }
    };
    let a = from(Part::Peers { index: 0, count: 2 });
    let offers = Statement::of(a.clone(), b, Content::Offers, &items);
    let refusal = Refusal {
        root: offers.root,
        indexes: ranges(&[(0, 1), (4095, 1)]),
        code: RefuseCode::Overloaded,
        retry_after_ms: 250,
        text: Reason::new("queue of 100000 is full"),
    };
    let template = Template::of(GroupId::new("revoke-7").unwrap(), &consent_revoke());
    let group = Audience::Group(GroupName::new("eu-1").unwrap());
    let decision = Statement::of(from(Part::All), group, Content::GroupOffer, &[template.encode()]);
    let nothing = Statement::of(a, Audience::Everyone, Content::Acks, &[]);
    let hello = |seal_key, answers: Option<Epoch>| {
        let up = answers.is_some();
        let names = ["agents", "eu-1"].into_iter().filter(|_| up);
        let groups = names.map(|name| GroupName::new(name).unwrap()).collect();
        Hello { in_flight_max: 8192, seal_key, answers, up, groups }.encode()
    };
    let signed = Bytes::from_static(b"a COSE_Sign1");
    vec![
        Sample(
            "sealed",
            "sealed",
            "An obligation that only its target reads.",
            Sealed { enc: [7; 32], text: Bytes::from_static(&[8; 40]) }.encode(),
        ),
        Sample(
            "batch-offers",
            "batch",
            "AB-1: obligations under custody on a track; one signature for all.",
            Batch { signed: signed.clone(), items }.encode(),
        ),
        Sample(
            "batch-empty",
            "batch",
            "Of no items, and signed all the same.",
            Batch { signed, items: vec![] }.encode(),
        ),
        Sample(
            "statement-offers",
            "statement",
            "What is signed of batch-offers: its root is over two leaves.",
            offers.encode(),
        ),
        Sample(
            "statement-group-offer",
            "statement",
            "One decision for the members of a group.",
            decision.encode(),
        ),
        Sample(
            "statement-empty",
            "statement",
            "For everyone; the root of no items is the hash of nothing.",
            nothing.encode(),
        ),
        Sample("batch-hello", "batch-hello", "What a node takes.", hello(None, None)),
        Sample(
            "batch-hello-seal",
            "batch-hello",
            "It opens what is sealed to its key.",
            hello(Some([7; 32]), None),
        ),
        Sample(
            "batch-hello-answer",
            "batch-hello",
            "It answers a session of the reader's, and asks for no answer.",
            hello(None, Some(Epoch { boot: 0x1f, session: 2 })),
        ),
        Sample(
            "bd1-batch-refusal",
            "batch-refusal",
            "BD-1: a full queue is an answer; items by their place in the batch of that root.",
            refusal.encode(),
        ),
        Sample(
            "group-template",
            "template",
            "AB-1: an obligation without a target; each member derives its own.",
            template.encode(),
        ),
        Sample(
            "group-member",
            "obligation",
            "What agent b derives of group-template.",
            template.for_member(&agent(TARGET)).encode(),
        ),
    ]
}

fn documents() -> Vec<Sample> {
    let o = "obligation";
    vec![
        Sample(
            "ac1-consent-revoke",
            o,
            "AC-1: a consent revocation is admissible; its sequence orders the scope (SG-1, SG-2).",
            consent_revoke().encode(),
        ),
        Sample(
            "ac1-phala-corrective",
            o,
            "AC-1: a corrective belief update is admissible; the delta is a float, -0.25 in half precision.",
            phala_corrective().encode(),
        ),
        Sample(
            "ac1-oauth-revoke",
            o,
            "AC-1: a token revocation is admissible; payload keys sort by length, then by bytes.",
            oauth_revoke().encode(),
        ),
        Sample(
            "obligation-every-value",
            o,
            "WR-1: every type of value a payload may hold, at its edges.",
            every_value().encode(),
        ),
        Sample(
            "ab4-safe-action-fail-closed",
            "safe-action",
            "AB-4: at the deadline the scope is withheld on the principal's side.",
            fail_closed().encode(),
        ),
        Sample(
            "ab4-safe-action-down-weight",
            "safe-action",
            "AB-4: at the deadline the weight is lowered; the magnitude counts 1e-9 units.",
            down_weight().encode(),
        ),
        Sample(
            "custody-ack-applied",
            "custody-ack",
            "A custody ack attests application.",
            ack("consent-0001", AckStatus::Applied, 1, None).encode(),
        ),
        Sample(
            "dc1-custody-ack-declined",
            "custody-ack",
            "DC-1: a decline ends delivery with a reason, and is no apply.",
            ack("consent-0001", AckStatus::Declined, 1, Some(Reason::new("scope is not ours")))
                .encode(),
        ),
        Sample(
            "df1-custody-ack-deferred",
            "custody-ack",
            "DF-1: received and not yet applied; extends nothing.",
            ack("consent-0001", AckStatus::Deferred, 1, Some(Reason::new("waiting for a human")))
                .encode(),
        ),
    ]
}

fn outcomes() -> Vec<Sample> {
    use AckStatus::{Applied, Declined, Deferred};
    let f = "frame";
    let mixed = Frame::AckRuns(vec![
        AckRun {
            status: Applied,
            acked_at: at(2),
            reason: None,
            refs: ranges(&[(0, 1000), (1001, 3)]),
        },
        AckRun {
            status: Deferred,
            acked_at: at(3),
            reason: Some(Reason::new("busy")),
            refs: ranges(&[(1000, 1)]),
        },
    ]);
    let reacked = Frame::Acks(vec![ack("consent-0001", Applied, 1, None)]);
    let late = Frame::Acks(vec![ack("consent-0001", Applied, 7200, None)]);
    vec![
        Sample(
            "ack-runs-mixed",
            f,
            "Ranges of references: a thousand offers in a few bytes, apart from one that was deferred.",
            mixed.encode(),
        ),
        Sample(
            "ab3-duplicate-ack",
            f,
            "AB-3: a redelivery is acknowledged applied with the time of the first application.",
            reacked.encode(),
        ),
        Sample(
            "ab3-id-conflict-declined",
            f,
            "AB-3: an id that comes back with other content is no duplicate.",
            run(Declined, 4, Some(Reason::ID_CONFLICT), &[(12, 1)]).encode(),
        ),
        Sample(
            "dl1-expired-declined",
            f,
            "DL-1: past the deadline nothing is applied.",
            run(Declined, 3601, Some(Reason::EXPIRED), &[(9, 1)]).encode(),
        ),
        Sample(
            "sg2-superseded-declined",
            f,
            "SG-2: a lower sequence of the same governed key applies nothing.",
            run(Declined, 5, Some(Reason::SUPERSEDED), &[(10, 1), (12, 2)]).encode(),
        ),
        Sample(
            "df1-deferred",
            f,
            "DF-1: custody goes on with the old deadline.",
            run(Deferred, 6, None, &[(u64::MAX, 1)]).encode(),
        ),
        Sample(
            "ts1-late-applied",
            f,
            "TS-1: applied, told after the deadline; logged for reconciliation, reopens nothing.",
            late.encode(),
        ),
    ]
}

fn exchanges() -> Vec<Sample> {
    use RefuseCode::{Malformed, Overloaded, Stopping, Unauthorized, Unsupported, WrongTarget};
    let f = "frame";
    let limits = HelloLimits {
        frame_len_max: FRAME_LEN_MAX as u64,
        in_flight_max: 8192,
        datagram_len_max: DATAGRAM_LEN_MAX as u64,
    };
    let hello = |features: &[&str]| {
        let features = features.iter().map(|&f| f.to_owned()).collect();
        Frame::Hello {
            version: VERSION,
            agent: agent("spiffe://example.org/agent/a"),
            limits,
            features,
        }
        .encode()
    };
    let offers = Frame::Offers {
        first_ref: 4095,
        items: vec![consent_revoke().encode(), phala_corrective().encode()],
    };
    let grant = obligation(
        "consent-0002",
        "anumati.consent",
        &json!({"decision": "grant", "scope": "calendar.read"}),
    );
    let query = Frame::Query { query_ref: 3, ids: vec![id("consent-0001"), id("belief-0001")] };
    let answer = Frame::Answer {
        query_ref: 3,
        acks: vec![ack("consent-0001", AckStatus::Applied, 1, None)],
        unknown: vec![id("belief-0001")],
    };
    let unread =
        Frame::Refuse { refs: vec![], code: Malformed, retry_after_ms: 0, text: Reason::default() };
    vec![
        Sample("hello", f, "The first frame each way.", hello(&[])),
        Sample(
            "hello-features",
            f,
            "Features are left out when there are none.",
            hello(&["cose-sign1"]),
        ),
        Sample(
            "ab1-offers",
            f,
            "AB-1: obligations under custody, each an embedded item; references 4095 and 4096.",
            offers.encode(),
        ),
        Sample(
            "ac1-grant-best-effort",
            f,
            "AC-1: a grant is not admissible and travels without custody.",
            Frame::BestEffort { items: vec![grant.encode()] }.encode(),
        ),
        Sample(
            "ab2-query-after-restart",
            f,
            "AB-2: a custodian that was down asks for the outcomes it missed.",
            query.encode(),
        ),
        Sample(
            "ab2-answer",
            f,
            "AB-2: the ledger answers by id, and names the ids it does not hold.",
            answer.encode(),
        ),
        Sample("probe", f, "Quiet or dead?", Frame::Probe { nonce: 1, id: None }.encode()),
        Sample(
            "probe-with-id",
            f,
            "Quiet or dead, ledger read included?",
            Frame::Probe { nonce: 2, id: Some(id("consent-0001")) }.encode(),
        ),
        Sample("probe-reply", f, "Quiet.", Frame::ProbeReply { nonce: 2, at: at(8) }.encode()),
        Sample(
            "bd1-refuse-overloaded",
            f,
            "BD-1: a full queue is an answer, before any fsync.",
            refuse(Overloaded, 250, "queue of 100000 is full"),
        ),
        Sample(
            "refuse-unauthorized",
            f,
            "The sender may not issue this kind.",
            refuse(Unauthorized, 0, "oauth.token is not granted to you"),
        ),
        Sample(
            "ac1-refuse-unsupported",
            f,
            "AC-1: a kind without a polarity rule is not admissible.",
            refuse(Unsupported, 0, "no rule for this kind"),
        ),
        Sample(
            "wr1-refuse-malformed",
            f,
            "WR-1: bytes that are no obligation.",
            refuse(Malformed, 0, "a tag is not deterministic CBOR"),
        ),
        Sample(
            "wr1-refuse-unreadable",
            f,
            "WR-1: a frame that could not be read so far as its references.",
            unread.encode(),
        ),
        Sample(
            "refuse-wrong-target",
            f,
            "The obligation is for another agent.",
            refuse(WrongTarget, 0, "we are agent-c"),
        ),
        Sample("refuse-stopping", f, "The node is shutting down.", refuse(Stopping, 5000, "")),
    ]
}
