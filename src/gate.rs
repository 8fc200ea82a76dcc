//! The gate of calls: before an agent behind this node is called, the authorizations that the call
//! needs are looked at, and they are looked at again whenever governed state changes. What is
//! withheld blocks new calls and ends those that run. Nothing that cannot be known is allowed.

use crate::config::{GatePrincipal, GateRule, NodeConfig};
use crate::store::Storage;
use proto::id::{AgentId, GovernedKey, Kind};
use proto::record::{Cell, CellValue, Role, cell_key};
use proto::store::{Read, ReadError, Table};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Pause between two looks at the state while it changes all the time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What the governed state says of one scope.
#[derive(Clone, Debug)]
pub(crate) struct Authorization {
    pub(crate) why: Why,
    /// What decided it.
    pub(crate) cell: Option<Cell>,
}

/// How an authorization stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Granted,
    Withheld,
    /// Nobody ever spoke of it.
    Unknown,
    /// The key is that of something else, such as a weight.
    NotAnAuthorization,
}

impl Why {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Withheld => "withheld",
            Self::Unknown => "unknown",
            Self::NotAnAuthorization => "not_an_authorization",
        }
    }
}

/// How `scope` stands by any of `kinds`: one that withholds is enough to stop, one that grants is
/// needed to go.
pub(crate) fn authorization(
    store: &dyn Read,
    role: Role,
    agent: &AgentId,
    kinds: &[Kind],
    scope: &GovernedKey,
) -> Result<Authorization, ReadError> {
    let mut answer = Authorization { why: Why::Unknown, cell: None };
    for kind in kinds {
        let Some(bytes) = store.get(Table::Cell, &cell_key(role, agent, kind, scope))? else {
            continue;
        };
        let cell = Cell::decode(&bytes).map_err(|error| ReadError::damaged(Table::Cell, error))?;
        match cell.value {
            CellValue::Authorization { granted: false } => {
                return Ok(Authorization { why: Why::Withheld, cell: Some(cell) });
            }
            CellValue::Authorization { granted: true } => {
                answer = Authorization { why: Why::Granted, cell: Some(cell) };
            }
            CellValue::Weight(_) if answer.why == Why::Unknown => {
                answer.why = Why::NotAnAuthorization;
            }
            CellValue::Weight(_) => {}
        }
    }
    Ok(answer)
}

/// What a call wants to reach.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Wanted {
    /// This, such as `mcp:files/read`.
    Named(String),
    /// Whatever begins so, since the call does not say what.
    Any(String),
}

/// Why a call does not run.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    scope: GovernedKey,
    /// Whose word is missing.
    principal: AgentId,
    why: &'static str,
    cell: Option<Cell>,
    /// Whether the state could not be read: it may be well another time.
    pub(crate) unreadable: bool,
}

impl Refusal {
    /// For machines.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let mut json = serde_json::json!({
            "scope": self.scope.as_str(), "principal": self.principal.as_str(), "why": self.why,
        });
        if let (Some(cell), Some(json)) = (&self.cell, json.as_object_mut()) {
            json.insert("obligation_id".into(), cell.obligation_id.to_string().into());
            json.insert("at".into(), cell.at.to_rfc3339().into());
        }
        json
    }

    pub(crate) fn scope(&self) -> &str {
        self.scope.as_str()
    }

    pub(crate) fn obligation(&self) -> Option<String> {
        self.cell.as_ref().map(|cell| cell.obligation_id.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scope, principal, why, cell, .. } = self;
        write!(f, "authority withheld: {scope} of {principal} is {why}")?;
        match cell {
            Some(cell) => {
                write!(f, ", by obligation {} at {}", cell.obligation_id, cell.at.to_rfc3339())
            }
            None => Ok(()),
        }
    }
}

/// The gate of a node. Without rules it lets everything pass.
pub(crate) struct Gate {
    me: AgentId,
    rules: Vec<GateRule>,
    kinds: Vec<Kind>,
    /// On whose behalf peers act.
    principals: BTreeMap<AgentId, AgentId>,
    store: Arc<dyn Storage>,
    /// Counts changes of governed state, told when they are durable.
    changes: watch::Receiver<u64>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("rules", &self.rules.len()).finish_non_exhaustive()
    }
}

impl Gate {
    pub(crate) fn new(
        config: &NodeConfig,
        store: Arc<dyn Storage>,
        changes: watch::Receiver<u64>,
    ) -> Self {
        let of = |peer: &crate::config::PeerConfig| (peer.id.clone(), peer.principal.clone());
        Self {
            me: config.id.clone(),
            rules: config.gate.clone(),
            kinds: config.kinds.keys().cloned().collect(),
            principals: config.peers.iter().map(of).collect(),
            store,
            changes,
        }
    }

    fn rules<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = &'a GateRule> {
        self.rules.iter().filter(move |rule| {
            rule.calls.iter().any(|pattern| match wanted {
                Wanted::Named(name) => pattern.covers(name),
                Wanted::Any(beginning) => pattern.reaches(beginning),
            })
        })
    }

    /// Whether there is any rule for such calls.
    pub(crate) fn governs(&self, wanted: &Wanted) -> bool {
        self.rules(wanted).next().is_some()
    }

    /// Whether a call of `caller` may run; `None` is this node's own side.
    pub(crate) fn check(&self, caller: Option<&AgentId>, wanted: &Wanted) -> Result<(), Refusal> {
        for rule in self.rules(wanted) {
            let (role, agent, principal) = match (&rule.principal, caller) {
                // What is done for itself, or lets itself do, an agent needs no word for.
                (GatePrincipal::Caller | GatePrincipal::Own, None) => continue,
                (GatePrincipal::Caller, Some(caller)) => {
                    let principal = self.principals.get(caller).unwrap_or(caller);
                    (Role::Receiver, principal, principal)
                }
                (GatePrincipal::Own, Some(caller)) => (Role::Principal, caller, &self.me),
                (GatePrincipal::Named(agent), _) => (Role::Receiver, agent, agent),
            };
            let kinds = if rule.kinds.is_empty() { &self.kinds } else { &rule.kinds };
            let refuse = |why, cell, unreadable| {
                let (scope, principal) = (rule.scope.clone(), principal.clone());
                Err(Refusal { scope, principal, why, cell, unreadable })
            };
            match authorization(&*self.store, role, agent, kinds, &rule.scope) {
                Ok(Authorization { why: Why::Granted, .. }) => {}
                Ok(Authorization { why: Why::Unknown, .. }) if rule.unknown_allowed => {}
                Ok(Authorization { why, cell }) => return refuse(why.as_str(), cell, false),
                Err(error) => {
                    tracing::error!(%error, "the gate cannot read the governed state");
                    return refuse("not readable", None, true);
                }
            }
        }
        Ok(())
    }

    /// Tells of changes of governed state.
    pub(crate) fn changes(&self) -> Changes {
        let mut changes = self.changes.clone();
        changes.mark_changed(); // the first look is due
        Changes { changes, looked: None }
    }

    /// Returns when a call that was let in may not go on.
    pub(crate) async fn withdrawn(&self, caller: Option<&AgentId>, wanted: &Wanted) -> Refusal {
        if !self.governs(wanted) {
            std::future::pending::<()>().await;
        }
        let mut changes = self.changes();
        loop {
            changes.next().await;
            if let Err(refusal) = self.check(caller, wanted) {
                return refusal;
            }
        }
    }
}

/// Changes of governed state, however many at a time.
#[derive(Debug)]
pub(crate) struct Changes {
    changes: watch::Receiver<u64>,
    looked: Option<Instant>,
}

impl Changes {
    /// Returns after the next change; at once the first time.
    pub(crate) async fn next(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending().await // the node is gone
        }
        // Not seen before it is told: this future may be dropped while it waits.
        self.changes.mark_changed();
        if let Some(looked) = self.looked {
            tokio::time::sleep_until(looked + LOOK_AGAIN).await;
        }
        self.changes.mark_unchanged(); // before the look, which sees all there is by then
        self.looked = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who waits among other things drops the wait when one of them comes.
    #[tokio::test(start_paused = true)]
    async fn a_change_is_seen_although_who_waited_for_it_looked_away() {
        let (governed, changes) = watch::channel(0u64);
        let mut changes = Changes { changes, looked: None };
        changes.changes.mark_changed();
        changes.next().await;
        governed.send_modify(|count| *count += 1);
        let dropped = tokio::time::timeout(LOOK_AGAIN / 4, changes.next());
        assert!(dropped.await.is_err(), "it is too early to look again");
        let seen = tokio::time::timeout(Duration::from_secs(60), changes.next());
        seen.await.expect("the change is told");
        let quiet = tokio::time::timeout(Duration::from_secs(60), changes.next());
        assert!(quiet.await.is_err(), "and told once");
    }
}
