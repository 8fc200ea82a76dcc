//! What a node's store holds, read after its process has ended.

use abhyasa::config::NodeConfig;
use abhyasa::store::{FjallStore, StoreOptions};
use anyhow::Context as _;
use bytes::Bytes;
use proto::id::{AgentId, GovernedKey, Kind, ObligationId};
use proto::obligation::Obligation;
use proto::record::{
    Cell, Escalation, Ledger, Outcome, Pending, Reconcile, ReconcileKind, Role, key_num,
    split_cell_key, split_issued_key,
};
use proto::store::{Read, Table};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Records read at once.
const SCAN: usize = 1_000;

type CellKey = (Role, AgentId, Kind, GovernedKey);

/// The tables of one store.
#[derive(Debug, Default)]
pub(super) struct Image {
    /// When it was read, in unix milliseconds.
    pub(super) read_at_ms: u64,
    pub(super) pending: BTreeSet<ObligationId>,
    pub(super) attempts: usize,
    pub(super) outcomes: BTreeMap<String, Outcome>,
    pub(super) escalations: BTreeMap<String, Vec<Escalation>>,
    pub(super) reconcile: BTreeMap<u64, Reconcile>,
    pub(super) ledger: BTreeMap<(AgentId, ObligationId), Ledger>,
    pub(super) cells: BTreeMap<CellKey, Cell>,
}

impl Image {
    /// Reads the store of a node that does not run.
    ///
    /// # Errors
    /// When it cannot be opened, or holds what no node writes.
    pub(super) fn read(config: &Path) -> anyhow::Result<Self> {
        let config = NodeConfig::load(config)?;
        let store = FjallStore::open(&config.data_dir, &config.id, &StoreOptions::default())?;
        let mut image = Self { read_at_ms: super::book::unix_ms(), ..Self::default() };
        for (_, value) in all(&store, Table::Pending)? {
            let pending = Pending::decode(&value)?;
            image.pending.insert(Obligation::decode(&pending.obligation)?.id);
        }
        image.attempts = all(&store, Table::Attempt)?.len();
        for (key, value) in all(&store, Table::Outcome)? {
            image.outcomes.insert(std::str::from_utf8(&key)?.to_owned(), Outcome::decode(&value)?);
        }
        for (_, value) in all(&store, Table::Escalation)? {
            let found: Escalation = serde_json::from_slice(&value)?;
            image.escalations.entry(found.obligation_id.to_string()).or_default().push(found);
        }
        for (key, value) in all(&store, Table::Reconcile)? {
            let number = key_num(&key).context("a number")?;
            image.reconcile.insert(number, serde_json::from_slice(&value)?);
        }
        for (key, value) in all(&store, Table::Ledger)? {
            let key = split_issued_key(&key).context("a ledger key")?;
            image.ledger.insert(key, Ledger::decode(&value)?);
        }
        for (key, value) in all(&store, Table::Cell)? {
            let key = split_cell_key(&key).context("a cell key")?;
            image.cells.insert(key, Cell::decode(&value)?);
        }
        Ok(image)
    }

    pub(super) fn cell(
        &self,
        role: Role,
        agent: &AgentId,
        kind: &Kind,
        key: &GovernedKey,
    ) -> Option<&Cell> {
        self.cells.get(&(role, agent.clone(), kind.clone(), key.clone()))
    }

    /// How many items of a sort were filed of an obligation.
    pub(super) fn filed(&self, id: &ObligationId, kind: ReconcileKind) -> usize {
        self.items(id, kind).count()
    }

    /// The items of a sort that were filed of an obligation.
    pub(super) fn items(
        &self,
        id: &ObligationId,
        kind: ReconcileKind,
    ) -> impl Iterator<Item = &Reconcile> {
        self.reconcile.values().filter(move |item| item.kind == kind && item.obligation_id == *id)
    }
}

fn all(store: &FjallStore, table: Table) -> anyhow::Result<Vec<(Bytes, Bytes)>> {
    let mut found: Vec<(Bytes, Bytes)> = Vec::new();
    loop {
        let from = found.last().map_or_else(Vec::new, |(key, _)| [key.as_ref(), &[0]].concat());
        let more = store.scan(table, &from, SCAN)?;
        let last = more.len() < SCAN;
        found.extend(more);
        if last {
            return Ok(found);
        }
    }
}
