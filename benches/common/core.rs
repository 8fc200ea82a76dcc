//! A custody core over a store in memory, with a clock that stands still: what benches step.

use bytes::Bytes;
use proto::ack::{AckRun, AckStatus, RefRange};
use proto::backoff::Backoff;
use proto::custodian::Draft;
use proto::custody::{Custody, Input};
use proto::id::{AgentId, Kind, ObligationId};
use proto::payload::Payload;
use proto::polarity::Registry;
use proto::profile::Profile;
use proto::settings::{PeerRules, Settings, WeightBounds};
use proto::step::{Output, SessionId, Step, Ticket};
use proto::store::{Read, ReadError, Table, Write};
use proto::time::Time;
use proto::weight::Weight;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

/// Obligations of one step.
pub const BATCH: u64 = 1024;
const BELIEF: &str = "phala.belief_update";
const SESSION: SessionId = SessionId(1);
/// A rate that is never reached.
const UNLIMITED: u64 = 1 << 50;
/// Short, so that the ledger is pruned while a bench runs.
const DEADLINE_SECONDS: u64 = 60;

/// Ordered tables, and nothing that could fail.
#[derive(Clone, Default)]
struct Memory(BTreeMap<Table, BTreeMap<Bytes, Bytes>>);

impl Memory {
    fn take(&mut self, writes: &[Write]) {
        for Write { table, key, value } in writes {
            let table = self.0.entry(*table).or_default();
            match value {
                Some(value) => table.insert(key.clone(), value.clone()),
                None => table.remove(key),
            };
        }
    }
}

impl Read for Memory {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.0.get(&table).and_then(|table| table.get(key)).cloned())
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        let members = self
            .0
            .get(&table)
            .into_iter()
            .flat_map(|table| table.range(Bytes::copy_from_slice(from)..));
        Ok(members.take(limit).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        let last = self.0.get(&table).and_then(BTreeMap::last_key_value);
        Ok(last.map(|(key, value)| (key.clone(), value.clone())))
    }
}

/// A core, its store, and a clock that stands still until told.
pub struct Core {
    pub custody: Custody,
    store: Memory,
    now: u64,
    pub next: u64,
}

fn agent(name: &str) -> AgentId {
    AgentId::new(&format!("spiffe://bench.local/{name}")).unwrap()
}

impl Core {
    /// A recovered core that has a session with its one peer.
    pub fn new(me: &str, peer: &str) -> Self {
        let kinds: BTreeSet<Kind> = [Kind::new(BELIEF).unwrap()].into();
        let rules = PeerRules {
            principal: agent(peer),
            may_issue: kinds.clone(),
            may_receive: kinds.clone(),
            obligations_per_second: UNLIMITED,
            obligations_burst: UNLIMITED,
            bytes_per_second: UNLIMITED,
        };
        let backoff = Backoff { base_ms: 1_000, cap_ms: 16_000, jitter_permille: 200 };
        let profile = Profile::new(DEADLINE_SECONDS * 1000, 20, backoff).unwrap();
        let settings = Settings {
            me: agent(me),
            peers: [(agent(peer), rules)].into(),
            profiles: kinds.into_iter().map(|kind| (kind, profile)).collect(),
            external: BTreeSet::new(),
            clock_skew_ms_max: 500,
            pending_max: 10_000_000,
            pending_per_peer_max: 10_000_000,
            in_flight_max: 1 << 20,
            in_flight_bytes_max: 1 << 30,
            deciding_max: 1024,
            best_effort_window: 65_536,
            refuse_retry_after_ms: 1_000,
            coalesce: true,
            outcome_retention_ms: 604_800_000,
            outcomes_max: 10_000,
            weights: WeightBounds {
                min: Weight::ZERO,
                max: Weight::from_f64(1.0).unwrap(),
                initial: Weight::from_f64(0.5).unwrap(),
            },
            seed: 7,
        };
        let store = Memory::default();
        let custody = Custody::open(settings, Registry::default(), &store).unwrap();
        let mut core = Self { custody, store, now: 1_800_000_000_000, next: 0 };
        while !core.custody.recovered() {
            let mut step = Step::default();
            core.custody.recover(Time::from_ms(core.now), &core.store, &mut step).unwrap();
            core.commit(step);
        }
        core.input(Input::SessionUp { session: SESSION, peer: agent(peer), window: 1 << 20 });
        core
    }

    /// One input, one step, one commit.
    pub fn input(&mut self, input: Input) -> Vec<Output> {
        let mut step = Step::default();
        self.custody.handle(Time::from_ms(self.now), input, &self.store, &mut step).unwrap();
        self.commit(step)
    }

    /// A second passes, and with it the housekeeping that is due: no bench grows without end.
    pub fn pass(&mut self) {
        self.now += 1000;
        self.input(Input::Tick);
    }

    fn commit(&mut self, mut step: Step) -> Vec<Output> {
        self.custody.seal(Time::from_ms(self.now), &self.store, &mut step);
        let generation = step.generation();
        let store = &mut self.store;
        let outputs = step.commit(|writes| {
            store.take(writes);
            Ok::<(), Infallible>(())
        });
        self.custody.committed(generation);
        outputs.unwrap()
    }

    pub fn drafts(&mut self) -> Input {
        let payload = serde_json::json!({ "weight_delta": -0.001, "weight_key": "routing.bench", "note": "x".repeat(190) });
        let payload = Payload::from_json(payload.as_object().unwrap()).unwrap();
        let first = self.next;
        self.next += BATCH;
        let draft = |number| Draft {
            id: ObligationId::new(&format!("bench-{number:012x}")).unwrap(),
            kind: Kind::new(BELIEF).unwrap(),
            target: agent("receiver"),
            payload: payload.clone(),
            deadline_seconds: None,
            max_retries: None,
            sequence: None,
        };
        Input::Issue { ticket: Ticket(first), drafts: (first..self.next).map(draft).collect() }
    }
}

/// The offers among outputs, as the peer takes them in.
pub fn offers(outputs: Vec<Output>) -> Input {
    let offers = outputs.into_iter().find_map(|output| match output {
        Output::Offers { first_ref, items, .. } => {
            Some(Input::Offers { session: SESSION, first_ref, items })
        }
        _ => None,
    });
    offers.unwrap()
}

pub fn acks(first: u64) -> Input {
    let refs = vec![RefRange { first, count: BATCH }];
    let run = AckRun {
        status: AckStatus::Applied,
        acked_at: Time::from_ms(1_800_000_000_000),
        reason: None,
        refs,
    };
    Input::AckRuns { session: SESSION, runs: vec![run] }
}
