//! Two or three nodes in a quiet world, for short stories.

use crate::check::Spec;
use crate::disk::SimStore;
use crate::options::Options;
use crate::world::{Event, World};
use proto::ack::AckStatus;
use proto::custodian::Draft;
use proto::custody::{Input, IssueResult};
use proto::event::Event as CoreEvent;
use proto::id::{AgentId, GovernedKey, Kind, ObligationId};
use proto::obligation::Obligation;
use proto::payload::Payload;
use proto::polarity::Registry;
use proto::record::{Cell, Escalation, Outcome, Reconcile, Role, Terminal, issued_key};
use proto::store::Table;
use proto::time::Time;

/// A draft for a story; panics on nonsense, as tests should.
///
/// # Panics
/// If a name or the payload is no good.
#[must_use]
pub fn draft(id: &str, kind: &str, target: &str, payload: &serde_json::Value) -> Draft {
    let made = || {
        Some(Draft {
            id: ObligationId::new(id).ok()?,
            kind: Kind::new(kind).ok()?,
            target: AgentId::new(target).ok()?,
            payload: Payload::from_json(payload.as_object()?).ok()?,
            deadline_seconds: None,
            max_retries: None,
            sequence: None,
        })
    };
    made().unwrap_or_else(|| panic!("{id} is no draft"))
}

/// Nodes `a`, `b` (and `c`) that talk over a quiet link, in virtual time. The checkers watch; a
/// story ends with [`Pair::end`].
#[derive(Debug)]
pub struct Pair {
    /// The world they live in.
    pub world: World,
}

/// Number of node `a`, the custodian of most stories.
const A: usize = 0;
/// Number of node `b`, its receiver.
const B: usize = 1;

impl Pair {
    /// The quiet pair, connected.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Options::quiet(1))
    }

    /// A pair by options, connected.
    #[must_use]
    pub fn with(options: Options) -> Self {
        let mut world = World::new(options);
        world.story = true;
        let mut pair = Self { world };
        pair.run_for(100);
        pair.world.take_events();
        pair
    }

    /// `a` issues; nothing happens until time passes.
    pub fn issue(&mut self, draft: Draft) -> usize {
        self.issue_at(A, draft)
    }

    /// A node issues.
    ///
    /// # Panics
    /// If the draft cannot be judged.
    pub fn issue_at(&mut self, node: usize, draft: Draft) -> usize {
        let spec = self.spec(node, &draft);
        let client = self.world.add_client(node, 0, vec![(draft, spec)]);
        let now = self.world.now();
        self.world.schedule(now, Event::Ask { client });
        client
    }

    fn spec(&self, issuer: usize, draft: &Draft) -> Spec {
        let obligation = Obligation {
            id: draft.id.clone(),
            kind: draft.kind.clone(),
            target: draft.target.clone(),
            payload: draft.payload.clone(),
            deadline_seconds: 1,
            max_retries: 0,
            created_at: Time::default(),
            sequence: None,
        };
        let judged =
            Registry::default().judge(&obligation).unwrap_or_else(|error| panic!("{error}"));
        let options = self.world.options();
        Spec {
            issuer,
            id: draft.id.clone(),
            target: usize::from(draft.target.as_str().bytes().next().unwrap_or(b'a') - b'a'),
            key: judged.key.clone(),
            change: judged.change,
            admissible: judged.admissible(),
            external: options.external.iter().any(|kind| *kind == draft.kind.as_str()),
        }
    }

    /// The answer to an issue call.
    ///
    /// # Panics
    /// If there is none yet.
    pub fn answer(&self, client: usize) -> &IssueResult {
        let answer = self.world.results(client).and_then(|results| results.first());
        answer.unwrap_or_else(|| panic!("call {client} has no answer yet"))
    }

    /// Lets time pass.
    pub fn run_for(&mut self, ms: u64) {
        self.world.run_to(self.world.now() + ms);
    }

    /// Lets time pass until nothing is pending and all is answered, ten minutes at most.
    pub fn run_until_quiet(&mut self) {
        for _ in 0..60_000 {
            self.run_for(10);
            if self.world.quiet() {
                return;
            }
        }
    }

    /// Cuts the link of `a` and `b`, both ways.
    pub fn cut(&mut self) {
        self.world.set_link(A, B, false);
    }

    /// Mends it.
    pub fn mend(&mut self) {
        self.world.set_link(A, B, true);
    }

    /// Kills a node; it stays down until [`Pair::restart`].
    pub fn kill(&mut self, node: usize) {
        self.world.kill(node, None);
    }

    /// Starts a dead node.
    pub fn restart(&mut self, node: usize) {
        self.world.start(node);
    }

    /// Gives a node an input.
    pub fn input(&mut self, node: usize, input: Input) {
        self.world.input(node, input);
    }

    /// The store of a node.
    ///
    /// # Panics
    /// If there is no such node.
    #[must_use]
    pub fn store(&self, node: usize) -> &SimStore {
        self.world.store(node).unwrap_or_else(|| panic!("no node {node}"))
    }

    /// The outcome `a` has of an obligation.
    #[must_use]
    pub fn outcome(&self, id: &str) -> Option<Outcome> {
        Outcome::decode(self.store(A).value(Table::Outcome, id.as_bytes())?).ok()
    }

    /// How an obligation of `a` ended.
    #[must_use]
    pub fn terminal(&self, id: &str) -> Option<Terminal> {
        self.outcome(id).map(|outcome| outcome.terminal)
    }

    /// What `b` has in its ledger of an obligation of `a`.
    #[must_use]
    pub fn ledger(&self, id: &str) -> Option<AckStatus> {
        let key = issued_key(&AgentId::new("a").ok()?, &ObligationId::new(id).ok()?);
        let value = self.store(B).value(Table::Ledger, &key)?;
        proto::record::Ledger::decode(value).ok().map(|ledger| ledger.status)
    }

    /// How often `b` had the effect of an obligation of `a`, as the checkers saw it.
    #[must_use]
    pub fn effects(&self, id: &str) -> u32 {
        self.world.checker.entry_of(A, id).map_or(0, crate::check::Entry::effects)
    }

    /// How often `a` offered an obligation.
    #[must_use]
    pub fn offers(&self, id: &str) -> u32 {
        self.world.checker.entry_of(A, id).map_or(0, crate::check::Entry::offers)
    }

    /// State a node holds for an agent under a governed key, whatever the kind that set it.
    #[must_use]
    pub fn cell(&self, node: usize, role: Role, agent: &str, key: &str) -> Option<Cell> {
        let (agent, key) = (AgentId::new(agent).ok()?, GovernedKey::new(key).ok()?);
        let cells = self.store(node).iter(Table::Cell);
        let mut found = cells.filter(|(at, _)| crate::check::is_cell_of(at, role, &agent, &key));
        Cell::decode(found.next()?.1).ok()
    }

    /// The escalations of `a`.
    #[must_use]
    pub fn escalations(&self) -> Vec<Escalation> {
        let items = self.store(A).iter(Table::Escalation);
        items.filter_map(|(_, value)| serde_json::from_slice(value).ok()).collect()
    }

    /// Reconciliation items of a node.
    #[must_use]
    pub fn reconcile(&self, node: usize) -> Vec<Reconcile> {
        let items = self.store(node).iter(Table::Reconcile);
        items.filter_map(|(_, value)| serde_json::from_slice(value).ok()).collect()
    }

    /// Events since the last call, with world time and node.
    pub fn events(&mut self) -> Vec<(u64, usize, CoreEvent)> {
        self.world.take_events()
    }

    /// The story is told: everything ended, and no checker fired.
    ///
    /// # Panics
    /// If one did.
    pub fn end(mut self) {
        self.world.finish(false);
        let broken = self.world.checker().violations();
        assert!(broken.is_empty(), "{broken:#?}");
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::new()
    }
}
