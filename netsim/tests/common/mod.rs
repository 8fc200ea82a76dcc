//! What the stories share.
#![allow(dead_code, unreachable_pub)]

use bytes::Bytes;
use netsim::{Options, Solo, draft};
use proto::ack::{AckRun, AckStatus, CustodyAck, Reason, RefRange};
use proto::custodian::Draft;
use proto::custody::Input;
use proto::event::Event;
use proto::id::{AgentId, Kind, ObligationId};
use proto::obligation::Obligation;
use proto::payload::Payload;
use proto::record::Outcome;
use proto::step::{Output, SessionId, Ticket};
use proto::store::Table;
use proto::time::Time;
use serde_json::{Value, json};

pub const CONSENT: &str = "anumati.consent";
pub const BELIEF: &str = "phala.belief_update";
pub const TOKEN: &str = "oauth.token";

pub fn revoke(id: &str) -> Draft {
    draft(id, CONSENT, "b", &json!({"decision": "revoke", "scope": "calendar"}))
}

pub fn grant(id: &str) -> Draft {
    draft(id, CONSENT, "b", &json!({"decision": "grant", "scope": "calendar"}))
}

pub fn corrective(id: &str, delta: f64) -> Draft {
    draft(id, BELIEF, "b", &json!({"weight_delta": delta, "weight_key": "route"}))
}

pub fn revoke_token(id: &str) -> Draft {
    draft(id, TOKEN, "b", &json!({"action": "revoke", "token_id": "token"}))
}

pub fn agent(name: &str) -> AgentId {
    AgentId::new(name).unwrap()
}

pub fn oid(id: &str) -> ObligationId {
    ObligationId::new(id).unwrap()
}

/// Node `a` by itself, `b` connected on session 2.
pub fn custodian(options: &Options) -> Solo {
    let mut solo = Solo::new(options.settings(0).unwrap());
    solo.input(up(2, "b", options.window));
    solo
}

/// Node `b` by itself, `a` connected on session 3.
pub fn receiver(options: &Options) -> Solo {
    let mut solo = Solo::new(options.settings(1).unwrap());
    solo.input(up(3, "a", options.window));
    solo
}

pub fn up(session: u64, peer: &str, window: usize) -> Input {
    Input::SessionUp { session: SessionId(session), peer: agent(peer), window }
}

pub fn issue(drafts: impl IntoIterator<Item = Draft>) -> Input {
    Input::Issue { ticket: Ticket(1), drafts: drafts.into_iter().collect() }
}

/// An obligation of `a` to `b`, as it goes on the wire.
pub struct Offered {
    pub id: &'static str,
    pub kind: &'static str,
    pub payload: Value,
    pub deadline_seconds: u64,
    pub sequence: Option<u64>,
    pub created_at: u64,
}

impl Offered {
    pub fn new(id: &'static str, now: u64) -> Self {
        let payload = json!({"decision": "revoke", "scope": "calendar"});
        Self { id, kind: CONSENT, payload, deadline_seconds: 60, sequence: None, created_at: now }
    }

    pub fn belief(id: &'static str, now: u64, delta: f64) -> Self {
        let payload = json!({"weight_delta": delta, "weight_key": "route"});
        Self { kind: BELIEF, payload, ..Self::new(id, now) }
    }

    pub fn token(id: &'static str, now: u64) -> Self {
        let payload = json!({"action": "revoke", "token_id": "token"});
        Self { kind: TOKEN, payload, ..Self::new(id, now) }
    }

    pub fn sequence(self, sequence: u64) -> Self {
        Self { sequence: Some(sequence), ..self }
    }

    pub fn granting(self) -> Self {
        Self { payload: json!({"decision": "grant", "scope": "calendar"}), ..self }
    }

    pub fn encode(&self) -> Bytes {
        self.to("b").encode()
    }

    pub fn to(&self, target: &str) -> Obligation {
        Obligation {
            id: oid(self.id),
            kind: Kind::new(self.kind).unwrap(),
            target: agent(target),
            payload: Payload::from_json(self.payload.as_object().unwrap()).unwrap(),
            deadline_seconds: self.deadline_seconds,
            max_retries: 15,
            created_at: Time::from_ms(self.created_at),
            sequence: self.sequence,
        }
    }
}

pub fn offer(first_ref: u64, items: impl IntoIterator<Item = Bytes>) -> Input {
    Input::Offers { session: SessionId(3), first_ref, items: items.into_iter().collect() }
}

pub fn ack_refs(session: u64, status: AckStatus, first: u64, count: u64) -> Input {
    let refs = vec![RefRange { first, count }];
    let runs = vec![AckRun { status, acked_at: Time::default(), reason: None, refs }];
    Input::AckRuns { session: SessionId(session), runs }
}

pub fn ack_id(peer: &str, id: &str, status: AckStatus) -> Input {
    let ack = CustodyAck {
        obligation_id: oid(id),
        target: agent(peer),
        status,
        acked_at: Time::default(),
        reason: None,
    };
    Input::Acks { peer: agent(peer), acks: vec![ack] }
}

/// Every ack by ref in `outputs`: ref, status, reason.
pub fn acks(outputs: &[Output]) -> Vec<(u64, AckStatus, Option<Reason>)> {
    let runs = outputs.iter().filter_map(|output| match output {
        Output::AckRuns { runs, .. } => Some(runs),
        _ => None,
    });
    let mut all: Vec<_> = runs
        .flatten()
        .flat_map(|run| {
            run.refs
                .iter()
                .flat_map(|range| range.iter())
                .map(|at| (at, run.status, run.reason.clone()))
        })
        .collect();
    all.sort();
    all
}

/// Every offer in `outputs`: session, ref, id.
pub fn offers(outputs: &[Output]) -> Vec<(u64, u64, String)> {
    let mut all = Vec::new();
    for output in outputs {
        if let Output::Offers { session, first_ref, items } = output {
            for (at, item) in (*first_ref..).zip(items) {
                all.push((session.0, at, Obligation::decode(item).unwrap().id.to_string()));
            }
        }
    }
    all
}

pub fn events(outputs: &[Output]) -> Vec<&Event> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Event(event) => Some(event),
            _ => None,
        })
        .collect()
}

pub fn outcome(solo: &Solo, id: &str) -> Option<Outcome> {
    solo.store.value(Table::Outcome, id.as_bytes()).map(|bytes| Outcome::decode(bytes).unwrap())
}
