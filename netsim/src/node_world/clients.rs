//! Who calls the nodes: clients that issue, and principals that answer what they are told.

use super::hub::{Hub, lock};
use crate::check::{Class, Spec};
use crate::options::Options;
use abhyasa::node::{NodeError, NodeHandle};
use link::Rng;
use proto::custodian::{Draft, IssueError};
use proto::custody::IssueResult;
use proto::event::Event;
use proto::id::ObligationId;
use proto::record::{ReconcileKind, Resolution};
use proto::step::{Output, Ticket};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::broadcast;

/// How long a client waits for an answer before it asks again.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a caller waits for a node that is down.
const DOWN: Duration = Duration::from_millis(500);
/// How long a client waits when it is told "full".
const FULL: Duration = Duration::from_millis(300);
/// How often a client takes "full" for an answer before it gives up.
const FULL_MAX: u32 = 40;
/// How often a principal tries.
const TRIES_MAX: u32 = 100;

/// Everyone around the nodes.
#[derive(Debug)]
pub(super) struct Outside {
    hub: Arc<Hub>,
    options: Options,
    chance: Mutex<Rng>,
    healed: std::sync::atomic::AtomicBool,
    sessions: AtomicU64,
    /// Clients that have no answer yet, by node.
    waiting: Mutex<BTreeMap<usize, u64>>,
}

/// One issue call.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) node: usize,
    pub(super) at: Duration,
    pub(super) drafts: Vec<Draft>,
}

impl Outside {
    pub(super) fn new(options: Options, hub: Arc<Hub>) -> Arc<Self> {
        let chance = Mutex::new(Rng::new(options.seed, 5));
        Arc::new(Self {
            hub,
            options,
            chance,
            healed: false.into(),
            sessions: AtomicU64::new(0),
            waiting: Mutex::default(),
        })
    }

    pub(super) fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
    }

    /// Ends of sessions that came up.
    pub(super) fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// A client issues until it has its answer, and sometimes once more.
    pub(super) async fn issue(self: Arc<Self>, client: Client) {
        let Client { node, at, drafts } = client;
        tokio::time::sleep(at).await;
        self.ask(node, &drafts).await;
        let again = lock(&self.chance).chance(self.options.reissue_permille);
        let after = lock(&self.chance).range(1, 30_000);
        if again && !self.healed.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(after)).await;
            self.ask(node, &drafts).await;
        }
    }

    /// Clients without an answer, by the node they ask.
    pub(super) fn waiting(&self) -> Vec<(usize, u64)> {
        lock(&self.waiting).iter().filter(|(_, n)| **n > 0).map(|(at, n)| (*at, *n)).collect()
    }

    async fn ask(&self, node: usize, drafts: &[Draft]) {
        *lock(&self.waiting).entry(node).or_default() += 1;
        self.insist(node, drafts).await;
        if let Some(waiting) = lock(&self.waiting).get_mut(&node) {
            *waiting -= 1;
        }
    }

    /// Asks until there is an answer.
    async fn insist(&self, node: usize, drafts: &[Draft]) {
        let mut full = 0;
        loop {
            let Some(handle) = self.hub.handle(node) else {
                tokio::time::sleep(DOWN).await;
                continue;
            };
            let (now, ids) = (self.hub.now(), drafts.iter().map(|draft| &draft.id));
            self.hub.check(|checker| checker.called_for(now, node, ids));
            match tokio::time::timeout(PATIENCE, handle.issue(drafts.to_vec())).await {
                Ok(Ok(results)) => {
                    if !self.answered(node, results) || full >= FULL_MAX {
                        return;
                    }
                    full += 1;
                    tokio::time::sleep(FULL).await;
                }
                Ok(Err(NodeError::Busy { retry_after_ms })) => {
                    tokio::time::sleep(Duration::from_millis(retry_after_ms)).await;
                }
                Ok(Err(_)) => tokio::time::sleep(DOWN).await,
                Err(_) => {}
            }
        }
    }

    /// Whether the client is to ask again.
    fn answered(&self, node: usize, results: Vec<IssueResult>) -> bool {
        if results.iter().any(|result| matches!(result, Err(IssueError::Full { .. }))) {
            return true;
        }
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            if !matches!(error, IssueError::Superseded { .. }) && self.options.outcomes_max > 1_000
            {
                let detail = format!("a client is refused what it may issue: {error}");
                self.hub.breach("AB-1", Class::Safety, node, detail);
            }
        }
        let (now, output) = (self.hub.now(), Output::Issued { ticket: Ticket(0), results });
        self.hub.check(|checker| checker.released(now, node, &output));
        false
    }

    /// Hears what a node tells, holds it against what is durable, and answers for its principal.
    pub(super) async fn listen(
        self: Arc<Self>,
        node: usize,
        mut events: broadcast::Receiver<Arc<Event>>,
    ) {
        loop {
            match events.recv().await {
                Ok(event) => self.told(node, &event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    }

    fn told(self: &Arc<Self>, node: usize, event: &Event) {
        let now = self.hub.now();
        self.hub.check(|checker| match event {
            Event::Attested { .. } => checker.attested(now, node, event),
            event => checker.released(now, node, &Output::Event(event.clone())),
        });
        match event {
            Event::SessionUp { .. } => {
                self.sessions.fetch_add(1, Ordering::Relaxed);
            }
            Event::Escalated(item) => {
                let mut chance = lock(&self.chance);
                if chance.chance(300) {
                    let act = Act::Acknowledge(item.obligation_id.clone());
                    tokio::spawn(self.clone().act(node, act, chance.range(1, 5_000)));
                }
            }
            Event::Reconcile(item) if item.kind == ReconcileKind::DeclineSurfaced => {
                let mut chance = lock(&self.chance);
                let safe = chance.chance(500);
                let resolution = if safe { Resolution::ApplySafe } else { Resolution::Noted };
                let act = Act::Resolve(item.obligation_id.clone(), resolution);
                tokio::spawn(self.clone().act(node, act, chance.range(1, 20_000)));
            }
            _ => {}
        }
    }

    /// A person acts after a while, and tries until the node answers, whatever it says.
    async fn act(self: Arc<Self>, node: usize, act: Act, after: u64) {
        tokio::time::sleep(Duration::from_millis(after)).await;
        if let Act::Acknowledge(id) = &act {
            self.hub.check(|checker| checker.acknowledged(node, id));
        }
        for _ in 0..TRIES_MAX {
            if let Some(handle) = self.hub.handle(node)
                && let Ok(Ok(())) = tokio::time::timeout(PATIENCE, act.on(&handle)).await
            {
                return;
            }
            tokio::time::sleep(DOWN).await;
        }
    }
}

/// What a person does.
#[derive(Debug)]
enum Act {
    Acknowledge(ObligationId),
    Resolve(ObligationId, Resolution),
}

impl Act {
    async fn on(&self, node: &NodeHandle) -> Result<(), NodeError> {
        match self {
            Self::Acknowledge(id) => node.ack_escalation(id.clone()).await.map(|_| ()),
            Self::Resolve(id, resolution) => match open_item(node, id) {
                Some(number) => node.resolve(number, *resolution).await.map(|_| ()),
                None => Ok(()),
            },
        }
    }
}

/// The number of the open item about an obligation.
fn open_item(handle: &NodeHandle, id: &ObligationId) -> Option<u64> {
    let items = handle.store().scan(proto::store::Table::Reconcile, &[], usize::MAX).ok()?;
    items.iter().find_map(|(key, value)| {
        let item: proto::record::Reconcile = serde_json::from_slice(value).ok()?;
        let wanted = item.obligation_id == *id
            && item.resolution.is_none()
            && item.kind == ReconcileKind::DeclineSurfaced;
        wanted.then(|| proto::record::key_num(key)).flatten()
    })
}

/// Tells the checkers what will be asked for.
pub(super) fn announce(hub: &Hub, batch: Vec<(Draft, Spec)>) -> Vec<Draft> {
    batch
        .into_iter()
        .map(|(draft, spec)| {
            hub.check(|checker| checker.asked(spec));
            draft
        })
        .collect()
}
